"""The names that completion offers: those of the cluster that is meant, from its cache."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import program
import pytest
from fake_api import FakeApi, kubeconfig

from arena_topo import cli, completion
from arena_topo.cli.options import CommonOptions
from arena_topo.completion import names
from arena_topo.engines import Options, engine_choice
from arena_topo.flag import flags_of, spelling

NAMES = ["one", "two", "three"]
MPI = ["submit", "mpi", "--image=x", "--gpus=2", "--workers=2"]


@pytest.fixture(autouse=True)
def _ends():
    """No test lasts longer: whatever waits for ever is interrupted."""

    def late(*_):
        pytest.fail("it waits for something that does not happen")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(90)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def cluster(api, tmp_path, monkeypatch, capfd):
    """A cluster that KUBECONFIG names."""
    del capfd
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path / "config", api.url))
    return api


def did(*line):
    assert cli.run(line) == 0, line


def submitted(*some, flags=()):
    for name in some:
        did(*flags, *MPI, f"--name={name}", "sleep 1")


def answer(*words):
    """What is offered from the cache alone, with what is said of each."""
    text = completion.answer("bash", list(words), os.environ)
    return dict(one.partition("\t")[::2] for one in text.splitlines()[1:])


def offered(*words):
    return list(answer(*words))


def folder():
    return Path(names.folder(os.environ))


def the_file():
    (found,) = folder().glob("context-*")
    return found


def tab(*words, **more):
    """What a shell is answered, by a process as it would start it."""
    done = program.run(words, env=os.environ | {"_ARENA_TOPO_COMPLETE": "bash"} | more, text=True)
    assert done.returncode == 0
    return done.stdout


@pytest.fixture
def patient(monkeypatch):
    """TAB waits for names: on a busy machine they may take more than its one second."""
    monkeypatch.setattr(names, "TAB_TIMEOUT", 60.0)


def forgotten(api, name):
    """Delete a job as somebody else does, whose cache is another."""
    api.remove("mpijobs", "default", name)


def aged(seconds):
    """Let all names be so much older."""
    path = the_file()
    lines = path.read_text().split("\n")
    for at, line in enumerate(lines):
        if line.startswith("["):
            title, _, when = line.partition("\t")
            lines[at] = f"{title}\t{max(0, int(when) - seconds)}"
    path.write_text("\n".join(lines))


# ---------------------------------------------------------------- what commands leave


def test_a_job_is_offered_once_it_is_submitted_and_no_longer_once_it_is_deleted(cluster):
    del cluster
    assert offered("get", "") == []
    submitted("bert", "gpt")
    assert answer("get", "") == {"bert": "4 GPUs", "gpt": "4 GPUs"}
    did("delete", "bert")
    assert offered("get", "") == ["gpt"]
    submitted("bert")
    assert set(offered("delete", "gpt", "")) == {"bert"}


def test_a_list_has_all_jobs_and_part_of_a_list_only_adds(cluster, operator):
    submitted(*NAMES)
    operator.start("one")
    did("list")
    assert answer("get", "")["one"] == "RUNNING, 4 GPUs"
    for part in (["-l", "no=such"], ["--mine"], ["--status", "FAILED"], ["--type", "tfjob"]):
        did("list", *part)
        assert set(offered("get", "")) == set(NAMES), part
    forgotten(cluster, "two")
    did("list", "--status", "RUNNING")
    assert set(offered("get", "")) == {"one", "three"}


def test_a_list_of_all_namespaces_is_one_of_each_of_them(cluster):
    submitted("here")
    submitted("there", flags=["-n", "team-a"])
    forgotten(cluster, "here")
    did("list", "-A")
    assert offered("get", "") == []
    assert offered("get", "-n", "team-a", "") == ["there"]
    assert "team-a" in offered("get", "-n", "")


def test_the_pods_of_the_job_on_the_line_are_offered(cluster, operator):
    del cluster
    submitted("bert", "gpt")
    operator.start("bert")
    did("get", "bert", "-o", "name")
    pods = answer("logs", "bert", "-i", "")
    assert list(pods) == ["bert-launcher-x7k2p", "bert-worker-0", "bert-worker-1"]
    assert pods["bert-worker-0"] == "on node-0"
    assert offered("logs", "-i", "") == []
    did("delete", "bert")
    assert offered("logs", "bert", "-i", "") == []


def test_nodes_and_claims_are_offered_once_they_were_shown(cluster):
    status = {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "8"}}
    cluster.add({"kind": "Node", "metadata": {"name": "node-7"}, "status": status})
    did("top", "node")
    assert answer("top", "node", "") == {"node-7": "8 GPUs"}
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "corpus"},
        "spec": {"resources": {"requests": {"storage": "1Ti"}}},
        "status": {"phase": "Bound"},
    }
    cluster.add(claim)
    did("data", "list")
    assert offered("submit", "mpi", "--data", "") == ["corpus:"]


def test_who_calls_functions_leaves_no_names(cluster, tmp_path):
    backend = engine_choice.open_backend(Options(kubeconfig=str(tmp_path / "config")))
    assert backend.jobs(None) == ()
    del cluster
    assert not folder().exists()


# ---------------------------------------------------------------- which cluster


SPELLINGS = (
    (["-n", "team-a"], ["get", ""]),
    (["-nteam-a"], ["get", ""]),
    (["--namespace=team-a"], ["get", ""]),
    (["--namespace", "team-a"], ["get", ""]),
    ([], ["get", "-n=team-a", ""]),
    ([], ["list", "-An", "team-a", "--output", "json", "-n", "team-a", "-l", ""]),
)


@pytest.mark.usefixtures("cluster")
def test_a_flag_means_the_same_wherever_and_however_it_is_written(monkeypatch):
    did(*MPI, "--name=job", "-n", "team-a", "mpirun -n 4 -x kubeconfig")
    for before, words in SPELLINGS[:-1]:
        assert offered(*before, *words) == ["job"], (before, words)
    assert offered("get", "") == []
    assert offered("-n", "team-a", "get", "-n", "other", "") == []
    for variable in ("ARENA_TOPO_NAMESPACE", "ARENA_NAMESPACE"):
        with monkeypatch.context() as patched:
            patched.setenv(variable, "team-a")
            did("list")
            assert offered("get", "") == ["job"]
            assert offered("get", "-n", "other", "") == []


def test_clusters_are_never_mixed_up(tmp_path, monkeypatch, capfd):
    del capfd
    with contextlib.closing(FakeApi()) as one, contextlib.closing(FakeApi()) as two:
        first = kubeconfig(tmp_path / "first", one.url)
        second = kubeconfig(tmp_path / "second", two.url)
        monkeypatch.setenv("KUBECONFIG", first)
        submitted("in-first")
        assert offered("get", "--kubeconfig", second, "") == []
        submitted("in-second", flags=[f"--config={second}"])
        assert offered("get", "--kubeconfig", second, "") == ["in-second"]
        assert offered("get", "") == ["in-first"]
        monkeypatch.chdir(tmp_path)
        did("list", "--kubeconfig", "second")
        assert offered("get", "--kubeconfig", "second", "") == ["in-second"]
        monkeypatch.chdir("/")
        assert offered("get", "--kubeconfig", "second", "") == []
        monkeypatch.setenv("ARENA_TOPO_KUBECONFIG", second)
        assert offered("get", "") == []
        did("list")
        assert offered("get", "") == ["in-second"]
        monkeypatch.delenv("ARENA_TOPO_KUBECONFIG")
        # `kubectl config use-context` writes the file anew.
        kubeconfig(Path(first), two.url)
        assert offered("get", "") == []
        did("list")
        assert offered("get", "") == ["in-second"]
        monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'missing'}:{first}")
        assert offered("get", "") == []
        did("list")
        assert offered("get", "") == ["in-second"]
        Path(tmp_path / "missing").write_text("{}")
        assert offered("get", "") == []


def test_who_asks_as_somebody_else_may_see_another_cluster(cluster):
    del cluster
    submitted("mine")
    assert offered("--as", "bob", "get", "") == []
    submitted("theirs", flags=["--as", "bob", "--as-group", "g", "--as-group", "h"])
    assert offered("--as-group=g", "--as=bob", "--as-group=h", "get", "") == ["theirs"]
    assert offered("--as=bob", "--as-group=h", "get", "") == []
    assert offered("--as=bob", "--as-group=h", "--as-group=g", "get", "") == []
    assert offered("get", "") == ["mine"]


def test_what_settings_say_counts_until_they_change(api, tmp_path, user, capfd):
    del capfd
    config = kubeconfig(tmp_path / "config", api.url)
    user.write_text(
        f'kubeconfig = "{config}"\nnamespace = "team-a"\n[profile.big]\nuser = "alice"\n'
    )
    submitted("bert")
    assert offered("get", "") == ["bert"]
    assert offered("get", "-n", "team-a", "") == ["bert"]
    assert offered("get", "-n", "default", "") == []
    assert offered("--profile", "big", "get", "") == []
    did("--profile", "big", "list")
    assert offered("--profile", "big", "get", "") == ["bert"]
    # The line does not name this kubeconfig, and yet it decides.
    kubeconfig(Path(config), "http://127.0.0.1:1")
    assert offered("get", "") == []
    kubeconfig(Path(config), api.url)
    did("list")
    assert offered("get", "") == ["bert"]
    user.write_text(f'kubeconfig = "{config}"\nnamespace = "other"\n')
    assert offered("get", "") == []


def test_a_namespace_of_a_job_file_is_nobody_elses(cluster, tmp_path):
    del cluster
    did("list")
    job = tmp_path / "job.yaml"
    job.write_text("name: filed\nnamespace: team-a\nimage: x\ncommand: sleep 1\n")
    did("submit", "mpi", "-f", str(job))
    assert offered("get", "") == []
    assert offered("get", "-n", "team-a", "") == ["filed"]


def test_the_flags_that_decide_are_flags_of_the_program():
    assert {
        spelling(name, flag)[2:] for name, flag in flags_of(CommonOptions).items()
    } >= names.FLAGS


def test_pods_of_two_clusters_are_not_mixed_up():
    hosts = ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, {"KUBERNETES_SERVICE_HOST": "10.0.0.2"})
    assert len({names.context_key([], dict(os.environ) | one) for one in hosts}) == len(hosts)


@pytest.mark.parametrize("home", [None, "", "/proc/no/such"])
def test_who_has_no_home_is_offered_nothing_and_told_nothing(home, cluster, monkeypatch, capfd):
    del cluster
    monkeypatch.delenv("XDG_CACHE_HOME")
    if home is None:
        monkeypatch.delenv("HOME")
    else:
        monkeypatch.setenv("HOME", home)
    capfd.readouterr()
    submitted("bert")
    assert "rror" not in capfd.readouterr().err
    assert offered("get", "") == []


# ---------------------------------------------------------------- names that are asked for


@pytest.mark.usefixtures("patient")
def test_where_nothing_is_known_tab_asks_for_names_of_every_kind(cluster, operator):
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
    the_file().unlink()
    assert "\nbert\tRUNNING, 4 GPUs\n" in tab("get", "")
    assert "\nbert-worker-1\ton node-0\n" in tab("logs", "bert", "-i", "")
    assert tab("get", "-n", "").split() == ["words", "keep", "default", "kube-system", "team-a"]
    assert tab("get", "--context", "") == "words keep\ntest\n"
    assert "\ncorpus:" in tab("submit", "mpi", "--data", "")


@pytest.fixture
def counted(cluster):
    """How many lists of jobs were asked for since it was asked last."""
    asked = [0]

    def count():
        before, asked[0] = asked[0], sum("/mpijobs" in one for one in cluster.requests)
        return asked[0] - before

    return count


@pytest.mark.usefixtures("patient")
def test_names_are_asked_for_again_only_when_they_are_old(counted):
    submitted("bert")
    did("list")
    counted()
    assert tab("get", "") == "words keep\nbert\tPENDING, 4 GPUs\n"
    assert not counted()
    aged(50)
    tab("get", "")
    assert not counted()
    aged(50)
    assert tab("get", "") == "words keep\nbert\tPENDING, 4 GPUs\n"
    assert counted()
    tab("get", "")
    assert not counted()


@pytest.mark.usefixtures("patient")
def test_a_time_to_come_is_no_time(counted):
    submitted("bert")
    did("list")
    aged(-10_000)  # somebody has set the clock back since
    counted()
    tab("get", "")
    assert counted()


def test_a_server_that_does_not_answer_is_waited_for_a_second_and_only_once(cluster):
    submitted("bert")
    answers = threading.Event()
    cluster.before("GET .*/mpijobs", answers.wait)
    try:
        # The time of a process that asks nobody is taken off.
        began = time.monotonic()
        tab("")
        alone = time.monotonic() - began
        began = time.monotonic()
        assert tab("get", "") == "words keep\nbert\t4 GPUs\n"
        assert time.monotonic() - began < 10 * alone + 3
        before = len(cluster.requests)
        assert tab("get", "") == "words keep\nbert\t4 GPUs\n"
        assert len(cluster.requests) == before
    finally:
        answers.set()


def test_a_cluster_that_is_gone_leaves_the_names_that_are_known(cluster):
    submitted("bert")
    cluster.close()
    aged(10_000)
    for _ in range(2):
        assert tab("get", "") == "words keep\nbert\t4 GPUs\n"


@pytest.mark.usefixtures("patient")
def test_a_kubeconfig_that_was_written_anew_is_read_again(cluster):
    submitted("bert")
    submitted("gpt", flags=["-n", "team-a"])
    config = Path(os.environ["KUBECONFIG"])
    said = json.loads(config.read_text())
    context = said["contexts"][0]["context"]
    said["contexts"].append({"name": "other", "context": context | {"namespace": "team-a"}})
    config.write_text(json.dumps(said | {"current-context": "other"}))
    assert tab("get", "") == "words keep\ngpt\tPENDING, 4 GPUs\n"
    assert tab("get", "--context", "") == "words keep\ntest\nother\n"
    del cluster


def test_jobs_and_machines_of_this_machine_are_asked_for_without_a_cluster(user, capfd):
    local = ["--backend=local", "--emulate=dgx-1-v100:2"]
    user.write_text('[profile.big]\nuser = "alice"\n')
    did(*local, "submit", "mpi", "--image=local", "--gpus=2", "--name=bert", "sleep 60")
    try:
        for one in folder().iterdir():
            one.unlink()
        assert tab(*local, "get", "").startswith("words keep\nbert\t")
        assert "\nbert-launcher\t" in tab(*local, "logs", "bert", "-i", "")
        assert tab(*local, "get", "-n", "") == "words keep\ndefault\n"
        machines = "dgx-1-v100-0\t8 GPUs\ndgx-1-v100-1\t8 GPUs\n"
        assert tab(*local, "top", "node", "") == f"words keep\n{machines}"
        assert tab(*local, "submit", "mpi", "--priority", "") == "words keep\n"
        assert tab("list", "--profile", "") == "words keep\nbig\n"
    finally:
        did(*local, "delete", "bert")
    assert offered(*local, "get", "") == []
    del capfd


PLUGIN = """#!{python}
import os, time
with open({seen!r}, "w") as file:
    try:
        os.open("/dev/tty", os.O_RDWR)
        file.write("terminal ")
    except OSError:
        pass
    file.write(os.readlink("/proc/self/fd/0") + " " + os.environ.get("DISPLAY", "none"))
    file.write(f" {{os.getpid()}}")
time.sleep(600)
"""


def test_a_plugin_that_waits_for_somebody_has_no_terminal_no_window_and_no_more_time(
    tmp_path, monkeypatch
):
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
    # On a busy machine a second may be over before the plugin has said anything.
    while not (said := seen.read_text() if seen.exists() else ""):
        assert tab("get", "", DISPLAY=":0") == "words keep\n"
        shutil.rmtree(folder())
    place, display, pid = said.split()
    assert (place, display) == ("/dev/null", "none")
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.05)


# ---------------------------------------------------------------- the files


def test_many_contexts_leave_few_files_and_none_has_the_names_of_another(tmp_path):
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    known = {}
    for number in range(1000):
        cache = names.NameCache(f"context {number}", environ)
        assert cache.names("nodes") == {}
        cache.put("nodes", "", {f"node-{number}": ""}, whole=True)
        cache.write()
        known[number] = cache
    assert len(list(folder_of(environ).iterdir())) <= 256
    read = {
        number: names.NameCache(one.key, environ).names("nodes") for number, one in known.items()
    }
    left = {number: list(some) for number, some in read.items() if some}
    assert left == {number: [f"node-{number}"] for number in left}
    assert 999 in left


def test_names_beyond_what_a_file_may_hold_are_left_out(tmp_path):
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    cache = names.NameCache("key", environ)
    for kind in ("nodes", "namespaces", "priorities"):
        cache.put(kind, "", {f"{kind}-{at:0100}": "x" * 80 for at in range(4000)}, whole=True)
        cache.write()
    again = names.NameCache("key", environ)
    assert len(again.names("priorities")) > 1000
    assert sum(one.stat().st_size for one in folder_of(environ).iterdir()) <= names.MAX_CACHE_BYTES


def folder_of(environ):
    return Path(names.folder(environ))


def test_a_cache_of_the_version_before_is_one_without_names(cluster):
    submitted("bert")
    path = the_file()
    path.write_text("arena-topo names 1 1700000000000\nbert\tRUNNING\n")
    assert offered("get", "") == []
    did("list")
    assert offered("get", "") == ["bert"]
    del cluster


def test_many_writers_at_once_tear_nothing(tmp_path):
    script = """
import os, sys
from arena_topo.completion import names
for at in range(100):
    cache = names.NameCache("key", os.environ)
    cache.put("jobs", "default", {f"job-{sys.argv[1]}-{at}": "4 GPUs"}, whole=False)
    cache.write()
"""
    environ = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    writers = [
        subprocess.Popen([sys.executable, "-c", script, str(n)], env=environ) for n in range(4)
    ]
    while any(one.poll() is None for one in writers):
        for one in folder_of(environ).glob("context-*"):
            assert one.read_text().startswith(names.CACHE_HEAD)
    assert {one.returncode for one in writers} == {0}
    assert len(list(folder_of(environ).iterdir())) == 1


# ---------------------------------------------------------------- what may be wrong


BROKEN = {
    "garbage": lambda path: path.write_bytes(os.urandom(5000)),
    "nothing": lambda path: path.write_text(""),
    "no end": lambda path: path.write_text(path.read_text() + "half-a-na\tRUN"),
    "another version": lambda path: path.write_text(path.read_text().replace("names 1", "names 2")),
    "no numbers": lambda path: path.write_text(path.read_text().replace("]\t", "]\tx")),
    "no end of a head": lambda path: path.write_text(path.read_text().replace("]", "")),
    "no namespace": lambda path: path.write_text(
        path.read_text().replace("namespace\t", "namespace\n")
    ),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a link": lambda path: (path.unlink(), path.symlink_to("/etc/passwd")),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "huge": lambda path: path.write_text(path.read_text() + "x" * 3_000_000),
    "long lines": lambda path: path.write_text(f"{names.CACHE_HEAD}\n{'a' * 10**6}\n" * 3),
}


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_file_is_one_without_names_until_it_is_written_anew(what, capfd):
    submitted("bert")
    did("list")
    path = the_file()
    signal.alarm(20)
    BROKEN[what](path)
    began = time.monotonic()
    assert set(offered("get", "")) <= {"bert"}
    assert set(offered("logs", "bert", "-i", "")) <= {"bert-launcher-x7k2p"}
    assert time.monotonic() - began < 5
    capfd.readouterr()
    did("list")
    assert "bert" in capfd.readouterr().out
    if what != "a folder":
        assert offered("get", "") == ["bert"]


@pytest.mark.usefixtures("cluster")
def test_only_the_users_own_files_are_read(tmp_path, capfd):
    submitted("bert")
    assert offered("get", "") == ["bert"]
    folder().chmod(0o755)
    assert offered("get", "") == []
    did("list")  # and nothing is written where others could look
    folder().chmod(0o700)
    assert offered("get", "") == ["bert"]
    real = folder().rename(tmp_path / "elsewhere")
    folder().symlink_to(real)
    assert offered("get", "") == []
    folder().unlink()
    real.rename(folder())
    path = the_file()
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    assert offered("get", "") == []
    did("list")
    assert not path.is_symlink()
    assert offered("get", "") == ["bert"]
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
        assert offered("get", "") == []
        os.chown(folder(), 12345, -1)
        did("list")
        assert offered("get", "") == []
        # What root does in somebody's home is not to be in the way there.
        shutil.rmtree(folder().parent)
        os.chown(folder().parent.parent, 12345, -1)
        did("list")
        assert not folder().parent.exists()
    capfd.readouterr()


@pytest.mark.usefixtures("cluster")
def test_nobody_else_can_read_the_names_and_no_password_is_among_them(monkeypatch):
    for variable in ("PROMETHEUS_ADDRESS", "ARENA_TOPO_PROMETHEUS_ADDRESS", "TOKEN"):
        monkeypatch.setenv(variable, "http://me:hunter2@prometheus")
    submitted("bert")
    assert "hunter2" not in the_file().read_text()
    modes = {stat.S_IMODE(one.stat().st_mode) for one in folder().iterdir()}
    assert modes == {0o600}
    assert stat.S_IMODE(folder().stat().st_mode) == 0o700


@pytest.mark.parametrize("what", ["a file", "full", "read-only"])
def test_where_nothing_can_be_kept_commands_do_their_work_all_the_same(what, cluster, tmp_path):
    del cluster
    environ = dict(os.environ, XDG_CACHE_HOME=str(tmp_path / "cache"))
    limit = None
    if what == "a file":
        (tmp_path / "cache").write_text("")
    elif what == "read-only":
        environ["XDG_CACHE_HOME"] = "/proc/sys"  # so for everybody
    else:

        def limit():
            """Let every write to a file fail, as on a full disk."""
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    def run(*line, **more):
        return program.run(line, env=environ | more, text=True, first=limit)

    done = run(*MPI, "--name=bert", "sleep 1")
    assert done.returncode == 0, done.stderr
    assert "rror" not in done.stderr
    asked = run("get", "", _ARENA_TOPO_COMPLETE="bash")
    assert (asked.returncode, asked.stdout, asked.stderr) == (0, "words keep\n", "")
    left = list((tmp_path / "cache").rglob(".new*")) if what == "full" else []
    assert left == []


@pytest.mark.usefixtures("cluster")
def test_a_name_that_a_shell_would_obey_is_never_offered():
    submitted("bert")
    odd = ["a b", "$(reboot)", "`x`", "a;b", "\x1b[31mred", "a\nb", "a\tb", "-rf", "a/../b"]
    odd += ["\u202egnp", "", "\u0430dmin", "x" * 254]
    kept = dict.fromkeys([*odd, "bert"], "said \x1b[31m\tso\nand \u202e so")
    cache = names.NameCache(names.context_key([], os.environ), os.environ)
    cache.put("jobs", "", kept, whole=True)
    cache.write()
    text = completion.answer("bash", ["get", ""], os.environ)
    assert text == "words keep\nbert\tsaid  [31m so and   so\n"
    # Who can write there writes what he likes.
    path = the_file()
    path.write_text(path.read_text().replace("bert\t", "bert\t\x1b[31m"))
    assert answer("get", "") == {"bert": ""}
    text = path.read_text()
    start = text.index("[jobs")
    path.write_text(
        text[:start]
        + text[start:].partition("\n")[0]
        + "\n"
        + "".join(f"{one}\tx\n" for one in odd)
    )
    assert set(offered("get", "")) <= {"a", "b"}
