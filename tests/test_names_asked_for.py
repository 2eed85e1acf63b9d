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
from completing import _ends, file_of, folder, offered, submitted, until  # noqa: F401
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
        timeout=60,
    ).stdout


def standing_in(path):
    """The processes whose folder is this one."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (one / "cwd").readlink() == path:
                found.append(one)
    return found


def waiting():
    """The children that wait for another one to have asked."""
    locks = [one.split() for one in Path("/proc/locks").read_text().splitlines()]
    held = {f":{one.stat().st_ino}" for one in folder().glob("busy-*")}
    return [one for one in locks if one[1] == "->" and any(map(one[6].endswith, held))]


def turns():
    found = []
    for one in folder().glob("turn-*"):
        with contextlib.suppress(FileNotFoundError):  # its child has just ended
            found.append(one.read_text())
    return found


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
        until(waiting, 30)
        assert not [one for one in cluster.requests[before:] if "team-a/mpijobs" in one]
    finally:
        held.set()
    until(lambda: "bert" in tab("get", ""))
    until(lambda: not turns())
    lists = [one for one in cluster.requests[before:] if "default/mpijobs" in one]
    assert len(lists) == 1
    assert [one for one in cluster.requests[before:] if "team-a/mpijobs" in one]


def test_pods_of_one_job_and_claims_are_asked_for(cluster, operator):
    submitted("bert", "gpt")
    operator.start("bert")
    cluster.add(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "corpus"},
            "spec": {"resources": {"requests": {"storage": "1Ti"}}},
            "status": {"phase": "Bound"},
        }
    )
    assert tab("submit", "mpi", "--data", "") == "words nospace keep\n"
    assert tab("logs", "bert", "-i", "") == "words keep\n"
    until(lambda: "\nbert-worker-1\ton node-0\n" in tab("logs", "bert", "-i", ""))
    until(lambda: "\ncorpus:" in tab("submit", "mpi", "--data", ""))
    until(lambda: not turns())
    file_of("instances").write_text(f"{names.HEAD} 1\nbert\tbert-worker-9=\ngpt\t\n")
    before = len(cluster.requests)
    assert tab("logs", "bert", "-i", "") == "words keep\nbert-worker-9\n"
    until(lambda: "\nbert-worker-1\ton node-0\n" in tab("logs", "bert", "-i", ""))
    assert [one for one in cluster.requests[before:] if one.endswith("/mpijobs/bert")]
    assert not [one for one in cluster.requests[before:] if one.endswith("/mpijobs")]


def test_machines_that_are_pretended_and_profiles_are_asked_for_without_a_cluster(user):
    user.write_text('[profile.big]\nuser = "alice"\n')
    local = ["--backend=local", "--emulate=dgx-1-v100:2", "top", "node", ""]
    tab(*local)
    assert tab("list", "--profile", "") == "words keep\n"
    machines = "dgx-1-v100-0\t8 GPUs\ndgx-1-v100-1\t8 GPUs\n"
    until(lambda: any(one.read_text().endswith(machines) for one in folder().glob("*-nodes")))
    assert tab(*local) == f"words keep\n{machines}"
    until(lambda: tab("list", "--profile", "") == "words keep\nbig\n")


OLD = {"jobs": 5, "instances": 5, "namespaces": 60, "nodes": 60, "claims": 60, "priorities": 600}
LINES = {
    "jobs": ["get", ""],
    "instances": ["logs", "bert", "-i", ""],
    "namespaces": ["-n", ""],
    "nodes": ["top", "node", ""],
    "claims": ["submit", "mpi", "--data", ""],
    "priorities": ["submit", "mpi", "--priority", ""],
}


@pytest.mark.parametrize("kind", OLD)
def test_names_are_asked_for_again_once_they_are_old(kind, cluster, monkeypatch):
    # No child is started, but for whom it is the turn.
    monkeypatch.setattr(sys, "executable", "")
    submitted("bert")
    at = keeping.now()
    (start, _, _) = file_of("jobs").name.partition("-")
    name = f"{start}-{kind}" + ("-default" if kind in names.OF_NAMESPACES else "")
    (folder() / name).write_text(f"{names.HEAD} {at}\nbert\tbert-0=\n")
    (folder() / name).chmod(0o600)
    for past, asked in ((OLD[kind] - 0.1, 0), (OLD[kind] + 0.1, 1)):
        with monkeypatch.context() as patched:
            patched.setattr(time, "time", lambda past=past: at / 1000 + past)
            assert [one[:4] for one in offered(*LINES[kind])] == ["bert"]
            assert len(turns()) == asked
    del cluster


def test_what_lies_in_the_folder_of_who_presses_tab_is_not_loaded(cluster, tmp_path, monkeypatch):
    submitted("bert")
    file_of("jobs").unlink()
    here = tmp_path / "here"
    here.mkdir()
    for one in ("yaml", "typer", "click", "rich", "email"):
        (here / f"{one}.py").write_text(f"open({str(tmp_path / 'loaded')!r}, 'w')\n")
    monkeypatch.chdir(here)
    tab("get", "")
    until(lambda: "bert" in tab("get", "") or (tmp_path / "loaded").exists())
    assert not (tmp_path / "loaded").exists()
    del cluster


def test_after_a_failure_nobody_asks_for_a_while(cluster):
    submitted("bert")
    cluster.close()
    file_of("jobs").write_text(f"{names.HEAD} 1\nbert\tRUNNING\n")
    assert tab("get", "") == "words keep\nbert\tRUNNING\n"
    until(lambda: any(one.startswith("failed ") for one in turns()))
    (failed,) = turns()
    for _ in range(3):
        assert tab("get", "") == "words keep\nbert\tRUNNING\n"
    assert turns() == [failed]
    (path,) = folder().glob("turn-*")
    for seconds, asked in ((10, False), (31, True)):
        earlier = f"failed {keeping.now() - seconds * 1000}\n"
        path.write_text(earlier)
        tab("get", "")  # it says whose turn it is before it answers
        assert (turns() != [earlier]) is asked
    until(lambda: turns()[0].startswith("failed "))


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
