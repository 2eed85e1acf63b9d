"""The child that asks a cluster for names at TAB: alone, without a terminal, and not for long."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from completing import file_of, folder, submitted, until
from fake_api import kubeconfig

from arena_topo.completion import keeping, names, place, refresh


@pytest.fixture
def cluster(api, tmp_path, monkeypatch, capfd):
    """A cluster that KUBECONFIG names."""
    del capfd
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path / "config", api.url))
    return api


def tab(*words, **more):
    """What a shell is answered, by a process as it would start it."""
    return subprocess.run(
        [sys.executable, "-m", "arena_topo", *words],
        env=os.environ | {"_ARENA_TOPO_COMPLETE": "bash"} | more,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def standing_in(path):
    """The processes whose folder is this one."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (one / "cwd").readlink() == path:
                found.append(one)
    return found


def turns():
    return [one.read_text() for one in folder().glob("turn-*")]


def test_where_nothing_is_known_a_child_asks_and_the_next_tab_knows(cluster):
    submitted("bert")
    for one in folder().iterdir():
        one.unlink()
    assert tab("get", "") == "words keep\n"
    until(lambda: tab("get", "") == "words keep\nbert\tPENDING, 4 GPUs\n")
    until(lambda: tab("get", "--context", "") == "words keep\ntest\n")
    until(lambda: tab("get", "-n", "").split() == ["words", "keep", *SPACES])
    until(lambda: not turns())
    del cluster


SPACES = ("default", "kube-system", "team-a")


def test_one_child_asks_at_a_time_however_often_tab_is_pressed(cluster):
    submitted("bert")
    for one in folder().iterdir():
        one.unlink()
    held = threading.Event()
    cluster.before("GET .*/mpijobs", held.wait)
    before = len(cluster.requests)
    try:
        asked = [threading.Thread(target=tab, args=("get", "")) for _ in range(6)]
        for one in asked:
            one.start()
        for one in asked:
            one.join()  # none of them waits for the server
        until(lambda: any("mpijobs" in one for one in cluster.requests[before:]))
        tab("get", "")
        tab("-n", "team-a", "get", "")  # another question to the same cluster
    finally:
        held.set()
    until(lambda: "bert" in tab("get", ""))
    until(lambda: not turns())
    lists = [one for one in cluster.requests[before:] if "default/mpijobs" in one]
    assert len(lists) == 1


def test_after_a_failure_nobody_asks_for_a_while(cluster):
    submitted("bert")
    cluster.close()
    file_of("jobs").write_text(f"{names.HEAD} 1\nbert\tRUNNING\n")
    assert tab("get", "") == "words keep\nbert\tRUNNING\n"
    until(lambda: any(one.startswith("failed ") for one in turns()))
    (failed,) = turns()
    for _ in range(3):
        assert tab("get", "") == "words keep\nbert\tRUNNING\n"
    time.sleep(0.5)
    assert turns() == [failed]
    (path,) = folder().glob("turn-*")
    path.write_text(f"failed {keeping.now() - refresh.BACKOFF * 1000}\n")
    tab("get", "")
    until(lambda: turns() not in ([failed], [path.read_text()]) or turns() != [failed])


def test_a_kubeconfig_that_was_written_anew_is_read_before_the_cluster_is_asked(cluster):
    submitted("bert")
    submitted("gpt", flags=["-n", "team-a"])
    cluster.close()
    config = Path(os.environ["KUBECONFIG"])
    said = json.loads(config.read_text())
    context = said["contexts"][0]["context"]
    said["contexts"].append({"name": "other", "context": context | {"namespace": "team-a"}})
    config.write_text(json.dumps(said | {"current-context": "other"}))
    assert tab("get", "") == "words keep\n"
    until(lambda: tab("get", "") == "words keep\ngpt\t4 GPUs\n")
    # A plugin that gives nothing is asked later, too.
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "false"}}
    said["users"][0]["user"] = user
    config.write_text(json.dumps(said))
    until(lambda: tab("get", "") == "words keep\nbert\t4 GPUs\n")
    until(lambda: not any(one.startswith("running") for one in turns()))


PLUGIN = """#!{python}
import os, sys, time
with open({seen!r}, "w") as file:
    try:
        os.open("/dev/tty", os.O_RDWR)
        file.write("terminal ")
    except OSError:
        pass
    file.write(f"{{os.getpid()}} {{os.readlink('/proc/self/fd/0')}}")
time.sleep(600)
"""


def test_a_plugin_that_waits_for_somebody_has_no_terminal_and_is_ended(tmp_path, monkeypatch):
    seen = tmp_path / "seen"
    plugin = tmp_path / "plugin"
    plugin.write_text(PLUGIN.format(python=sys.executable, seen=str(seen)))
    plugin.chmod(0o755)
    user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": str(plugin),
            "interactiveMode": "IfAvailable",
        }
    }
    config = kubeconfig(tmp_path / "config", "http://127.0.0.1:1", user=user)
    monkeypatch.setenv("KUBECONFIG", config)
    line = place.Line([], os.environ)
    impatient = (
        "from arena_topo import cli; from arena_topo.completion import refresh;"
        " refresh.LIMIT = 3; cli.main()"
    )
    with keeping.Folder(os.environ):
        pass
    child = subprocess.Popen(
        [sys.executable, "-c", impatient],
        env=os.environ | {refresh.ASKED: f"jobs turn-x {place.digest(line.key)} "},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    child.wait(timeout=25)
    number, _, rest = seen.read_text().partition(" ")
    assert rest == "/dev/null"
    until(lambda: not Path(f"/proc/{number}").exists(), 20)
    assert turns()[0].startswith("failed ")


def test_what_a_child_gets_is_no_terminal_no_window_and_nothing_that_is_open(cluster, tmp_path):
    submitted("bert")
    file_of("jobs").write_text(f"{names.HEAD} 1\n")
    held = threading.Event()
    cluster.before("GET .*/mpijobs", held.wait)
    before = len(cluster.requests)
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    try:
        subprocess.run(
            [sys.executable, "-m", "arena_topo", "get", ""],
            env=os.environ | {"_ARENA_TOPO_COMPLETE": "bash", "DISPLAY": ":0"},
            check=True,
            close_fds=False,
            capture_output=True,
            cwd=tmp_path,
        )
        os.close(writing)
        until(lambda: any("mpijobs" in one for one in cluster.requests[before:]))
        # A shell that waits for the end of its pipe is not kept waiting.
        os.set_blocking(reading, False)
        assert os.read(reading, 1) == b""
        (child,) = standing_in(tmp_path)
        assert {(child / "fd" / one).readlink() for one in "012"} == {Path("/dev/null")}
        assert b"DISPLAY" not in (child / "environ").read_bytes()
        assert os.getsid(int(child.name)) == int(child.name)
    finally:
        held.set()
        os.close(reading)
    until(lambda: "bert" in tab("get", ""))
