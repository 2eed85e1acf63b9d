"""The names that completion offers: those of the cluster that is meant, known a moment ago."""

from __future__ import annotations

import contextlib
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

import pytest
from completing import (  # noqa: F401 - one is for all tests
    LOCAL,
    MPI,
    _ends,
    answer,
    did,
    file_of,
    folder,
    offered,
    submitted,
    until,
)
from fake_api import FakeApi, kubeconfig
from hypothesis import given
from hypothesis import strategies as st

from arena_topo import cli, completion
from arena_topo.cli import settings as settings_files
from arena_topo.cli.options import Globals, environment
from arena_topo.completion import keeping, names, place, refresh
from arena_topo.engines import Options, opening
from arena_topo.engines.kubernetes import kubeconfig as kubeconfigs
from arena_topo.topology import presets

SITE = settings_files.SITE  # before any test has another one
NAMES = ["one", "two", "three"]


@pytest.fixture
def nobody_asks(monkeypatch):
    """No child is started: what is offered is what commands have left."""
    monkeypatch.setattr(sys, "executable", "")


@pytest.fixture
def cluster(api, tmp_path, monkeypatch, capfd):
    """A cluster that KUBECONFIG names."""
    del capfd
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path / "config", api.url))
    return api


def forgotten(api, name):
    """Delete a job as somebody else does, who tells nobody here."""
    api.remove("mpijobs", "default", name)


def arena(*line):
    """Run a command as another process."""
    command = [sys.executable, "-m", "arena_topo", *line]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)


# ---------------------------------------------------------------- what commands leave


@pytest.mark.usefixtures("nobody_asks")
def test_a_job_is_offered_once_it_is_submitted_and_no_longer_once_it_is_deleted(cluster):
    del cluster
    assert offered("get", "") == []
    submitted("bert", "gpt")
    assert answer("get", "") == {"bert": "4 GPUs", "gpt": "4 GPUs"}
    did("delete", "bert")
    assert offered("get", "") == ["gpt"]
    submitted("bert")
    assert set(offered("delete", "gpt", "")) == {"bert"}


@pytest.mark.usefixtures("nobody_asks")
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


@pytest.mark.usefixtures("nobody_asks")
def test_a_list_of_all_namespaces_is_one_of_each_of_them(cluster):
    submitted("here")
    submitted("there", flags=["-n", "team-a"])
    forgotten(cluster, "here")
    did("list", "-A")
    assert offered("get", "") == []
    assert offered("get", "-n", "team-a", "") == ["there"]
    assert "team-a" in offered("get", "-n", "")


@pytest.mark.usefixtures("nobody_asks")
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


@pytest.mark.usefixtures("nobody_asks")
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


@pytest.mark.usefixtures("nobody_asks")
def test_who_calls_functions_leaves_no_names(cluster, tmp_path):
    backend = opening.open_backend(Options(kubeconfig=str(tmp_path / "config")))
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


@pytest.mark.usefixtures("nobody_asks", "cluster")
def test_a_flag_means_the_same_wherever_and_however_it_is_written(monkeypatch):
    did(*MPI, "--name=job", "-n", "team-a", "mpirun -n 4 -x kubeconfig")
    for before, words in SPELLINGS[:-1]:
        assert offered(*before, *words) == ["job"], (before, words)
    assert offered("get", "") == []
    assert offered("-n", "team-a", "get", "-n", "other", "") == []
    for variable in ("ARENA_TOPO_NAMESPACE", "ARENA_NAMESPACE"):
        with monkeypatch.context() as patched:
            patched.setenv(variable, "team-a")
            assert offered("get", "") == ["job"]
            assert offered("get", "-n", "other", "") == []


@pytest.mark.usefixtures("nobody_asks")
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
        assert offered("get", "--kubeconfig", first, "") == ["in-first"]
        monkeypatch.chdir(tmp_path)
        assert offered("get", "--kubeconfig", "second", "") == ["in-second"]
        monkeypatch.setenv("ARENA_TOPO_KUBECONFIG", second)
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


@pytest.mark.usefixtures("nobody_asks")
def test_who_asks_as_somebody_else_may_see_another_cluster(cluster):
    del cluster
    submitted("mine")
    assert offered("--as", "bob", "get", "") == []
    submitted("theirs", flags=["--as", "bob", "--as-group", "g", "--as-group", "h"])
    assert offered("--as-group=g", "--as=bob", "--as-group=h", "get", "") == ["theirs"]
    assert offered("--as=bob", "--as-group=h", "get", "") == []
    assert offered("--as=bob", "--as-group=h", "--as-group=g", "get", "") == []
    assert offered("get", "") == ["mine"]


@pytest.mark.usefixtures("nobody_asks")
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


@pytest.mark.usefixtures("nobody_asks")
def test_a_namespace_of_a_job_file_is_nobody_elses(cluster, tmp_path):
    del cluster
    did("list")
    job = tmp_path / "job.yaml"
    job.write_text("name: filed\nnamespace: team-a\nimage: x\ncommand: sleep 1\n")
    did("submit", "mpi", "-f", str(job))
    assert offered("get", "") == []
    assert offered("get", "-n", "team-a", "") == ["filed"]
    assert "namespace default" in file_of("where").read_text()


@pytest.mark.parametrize("settled", [False, True])
def test_jobs_of_this_machine_are_those_of_its_folders(settled, user, capfd, monkeypatch):
    monkeypatch.setattr(sys, "executable", sys.executable)
    flags = ["--backend=local", "--emulate=dgx-1-v100:2"]
    if settled:
        user.write_text('backend = "local"\nemulate = "dgx-1-v100:2"\n')
        flags = []
    did(*flags, "submit", "mpi", *LOCAL, "--name=bert", "sleep 60")
    try:
        with monkeypatch.context() as patched:
            patched.setattr(sys, "executable", "")
            said = answer(*flags, "get", "")
            assert list(said) == ["bert"]
            assert said["bert"].endswith(", 4 GPUs")
            if not settled:
                assert offered("get", "") == ["bert"]  # nothing else is configured
            until(lambda: offered(*flags, "logs", "bert", "-i", "")[:1] == ["bert-launcher"])
            assert "default" in offered(*flags, "get", "-n", "")
            assert offered(*flags, "get", "-n", "other", "") == []
            did(*flags, "top", "node")
            assert answer(*flags, "top", "node", "") == {
                "dgx-1-v100-0": "8 GPUs",
                "dgx-1-v100-1": "8 GPUs",
            }
    finally:
        did(*flags, "delete", "bert")
    assert offered(*flags, "get", "") == []
    capfd.readouterr()


@pytest.mark.usefixtures("nobody_asks")
def test_machines_that_are_pretended_are_known_before_anybody_looked(capfd):
    for said in ("dgx-1-v100", "dgx-2:3", "pcie-4, dgx-2:1 ,pcie-4:2"):
        at = ["--backend=local", f"--emulate={said}"]
        before = answer(*at, "top", "node", "")
        did(*at, "top", "node")
        assert before == answer(*at, "top", "node", "")
        assert before == {one.name: f"{len(one.gpus)} GPUs" for one in presets.emulated(said)}
    for wrong in ("dgx-1-v100:0", "dgx", "dgx-2,", "dgx-2:x", "dgx-2:", "dgx-2:²", "dgx-2:99999"):
        assert answer("--backend=local", f"--emulate={wrong}", "top", "node", "") == {}
    del capfd


def test_the_fields_are_those_of_the_program():
    fields = {one.replace("-", "_").lstrip("_") for one in place.OURS}
    known = environment(Globals)
    for field in sorted(fields - {"config", "as_group"}):
        name = "as_" if field == "as" else field
        also = known["config"] if field == "kubeconfig" else ()
        assert place.VARIABLES[field] == (*known[name], *also)
    assert set(place.VARIABLES) == fields - {"config", "as_group"}
    assert place.SITE == SITE
    assert refresh.ASKED == cli.ASKED
    assert completion.ASKED == refresh._COMPLETES
    assert str(kubeconfigs.SERVICE_ACCOUNT / "token") == place.IN_CLUSTER


ANY = [None, "x"]


@given(st.data())
def test_the_engine_is_the_one_that_a_command_would_open(tmp_path_factory, data):
    home = tmp_path_factory.getbasetemp() / "engine"
    (home / ".kube").mkdir(parents=True, exist_ok=True)
    config = home / ".kube" / "config"
    config.unlink(missing_ok=True)
    if text := data.draw(st.sampled_from([None, "", "x"]), label="~/.kube/config"):
        config.write_text(text)
    said = {
        field: data.draw(st.sampled_from(["", value]), label=field)
        for field, value in {"context": "c", "cluster": "d", "user": "u", "emulate": "p:2"}.items()
    }
    said["kubeconfig"] = data.draw(st.sampled_from(["", "/no/such"]), label="--kubeconfig")
    said["backend"] = data.draw(st.sampled_from(["auto", "local", "kubernetes"]), label="backend")
    named = data.draw(st.sampled_from([None, "", ":", "/no/such", "/dev/null", str(config)]))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HOME", str(home))
        patched.delenv("KUBECONFIG", raising=False)
        if named is not None:
            patched.setenv("KUBECONFIG", named)
        line = place.Line([f"--{field}={text}" for field, text in said.items()], os.environ)
        options = {field: text or None for field, text in said.items()} | {
            "backend": said["backend"]
        }
        try:
            assert line.engine == opening.engine_of(Options(**options))
        except cli.UsageError:  # KUBECONFIG names nothing that is there
            assert line.engine == "kubernetes"


@pytest.mark.parametrize("host", ["", "10.0.0.1"])
@pytest.mark.parametrize("token", ["", "secret", None])
def test_a_pod_with_an_account_means_its_own_cluster(host, token, tmp_path, monkeypatch):
    monkeypatch.setattr(kubeconfigs, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setattr(place, "IN_CLUSTER", str(tmp_path / "token"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    if token is not None:
        (tmp_path / "token").write_text(token)
    engine = "kubernetes" if host and token else "local"
    assert place.Line([], os.environ).engine == engine
    assert opening.engine_of(Options()) == engine


def test_the_pods_of_two_clusters_are_not_mixed_up():
    hosts = ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, {"KUBERNETES_SERVICE_HOST": "10.0.0.2"})
    assert len({place.Line([], dict(os.environ) | one).key for one in hosts}) == len(hosts)


@pytest.mark.usefixtures("nobody_asks")
@pytest.mark.parametrize("home", [None, "", "/proc/no/such"])
def test_who_has_no_home_is_offered_nothing_and_told_nothing(home, cluster, monkeypatch, capfd):
    del cluster
    monkeypatch.delenv("XDG_CACHE_HOME")
    if home is None:
        monkeypatch.delenv("HOME")
        monkeypatch.setattr("pwd.getpwuid", lambda _: (_ for _ in ()).throw(KeyError()))
    else:
        monkeypatch.setenv("HOME", home)
        monkeypatch.setattr("pwd.getpwuid", lambda _: type("", (), {"pw_dir": "/proc/none"}))
    capfd.readouterr()
    submitted("bert")
    assert "rror" not in capfd.readouterr().err
    assert offered("get", "") == []


# ---------------------------------------------------------------- what was known later counts


EVENTS = ["add", "drop", "appears", "vanishes", "list", "look"]


@given(st.data())
def test_in_whichever_order_it_is_written_the_end_is_what_is_true(data):
    """Commands end in another order than they asked: a slow list may come after a delete."""
    events = data.draw(st.lists(st.tuples(st.sampled_from(EVENTS), st.sampled_from("abc"))))
    events.append(("list", ""))
    truth, past, writes = {}, [], []
    for at, (what, name) in enumerate(events, 1):
        past.append(dict(truth))
        if what in {"add", "appears"}:
            truth[name] = ""
        elif what in {"drop", "vanishes"}:
            truth.pop(name, None)
        # What somebody else does nobody writes down.
        if what in {"add", "drop"}:
            writes.append(({name: truth.get(name)}, at, False))
    for at, (what, name) in enumerate(events, 1):
        if what in {"list", "look"}:
            # It saw the jobs as they were at some moment after it began.
            seen = past[data.draw(st.integers(at, len(events))) - 1]
            found = seen if what == "list" else {one: "" for one in seen if one == name}
            writes.append((found, at, what == "list"))
    as_of, known = 0, {}
    for found, at, whole in data.draw(st.permutations(writes)):
        as_of, known = keeping.merged(as_of, known, found, at, whole=whole)
        as_of, known = names.load(keeping.written(as_of, known))
    assert {one for one, (_, said) in known.items() if said is not None} == set(truth)


def test_a_slow_list_brings_back_no_deleted_job_and_drops_no_new_one(cluster, monkeypatch):
    submitted("old")
    did("list")

    def meanwhile():
        arena("delete", "old")
        arena(*MPI, "--name=new", "sleep 1")

    # The list has been made, and is not answered yet.
    cluster.after("GET .*/mpijobs", meanwhile)
    did("list")
    monkeypatch.setattr(sys, "executable", "")
    assert offered("get", "") == ["new"]
    did("list")
    assert offered("get", "") == ["new"]


def test_a_list_of_before_the_clock_was_set_back_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    later = keeping.now() + 10**7
    for at, found in ((later, {"a": "", "b": ""}), (keeping.now(), {"c": ""})):
        with keeping.Folder(os.environ) as one:
            keeping.update(one, "x-jobs-y", found, at, whole=True)
        as_of, known = names.load(names.read(os.environ, "x-jobs-y"))
    assert set(known) == {"c"}
    assert 0 < as_of <= keeping.now()


def test_many_writers_at_once_lose_nothing_and_tear_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(keeping, "PATIENCE", 60)
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    torn = []

    def write(which):
        for at in range(20):
            with keeping.Folder(environ) as one:
                keeping.update(one, "x-jobs-y", {f"job-{which}-{at}": "4 GPUs"}, keeping.now())
            text = names.read(environ, "x-jobs-y")
            if not text.startswith(names.HEAD) or not text.endswith("\n"):
                torn.append(text)

    writers = [threading.Thread(target=write, args=(which,)) for which in range(8)]
    for one in writers:
        one.start()
    for one in writers:
        one.join()
    _, known = names.load(names.read(environ, "x-jobs-y"))
    assert not torn
    assert len(known) == 8 * 20
    assert {one.name for one in Path(names.folder(environ)).iterdir()} == {"lock", "x-jobs-y"}


def test_a_writer_that_hangs_keeps_a_command_waiting_for_a_moment_only(cluster):
    submitted("one")
    with keeping.Folder(os.environ):
        began = time.monotonic()
        keeping.kept(os.environ, lambda _: pytest.fail("two writers at once"))
        assert time.monotonic() - began < 10
        did("list")
    del cluster


def test_files_that_nobody_uses_go_and_there_are_never_too_many(tmp_path):
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    with keeping.Folder(environ) as one:
        one.write("old", "x")
        one.write("kept", "x")
    at = Path(names.folder(environ))
    month = time.time() - 31 * 24 * 3600
    os.utime(at / "old", (month, month))
    (at / "folder").mkdir()
    os.utime(at / "folder", (month, month))
    with keeping.Folder(environ) as one:
        one.write("new", "x")
    assert {each.name for each in at.iterdir()} == {"kept", "new", "folder", "lock"}
    with keeping.Folder(environ) as one:
        for number in range(keeping.FILES + 50):
            one.write(f"where-{number}", "x")
            os.utime(at / f"where-{number}", (time.time() + number - 1000,) * 2)
    found = {each.name for each in at.iterdir()}
    assert keeping.FILES * 0.8 < len(found) <= keeping.FILES + 2
    assert f"where-{keeping.FILES + 49}" in found
    assert "where-0" not in found


# ---------------------------------------------------------------- what may be wrong


BROKEN = {
    "garbage": lambda path: path.write_bytes(os.urandom(5000)),
    "nothing": lambda path: path.write_text(""),
    "no end": lambda path: path.write_text(path.read_text() + "half-a-na\tRUN"),
    "another version": lambda path: path.write_text(path.read_text().replace("names 1", "names 2")),
    "no numbers": lambda path: path.write_text(f"{names.HEAD} x\nbert\tx\tnever\n"),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a link": lambda path: (path.unlink(), path.symlink_to("/etc/passwd")),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "huge": lambda path: path.write_text(path.read_text() + "x" * 3_000_000),
    "long lines": lambda path: path.write_text(f"{names.HEAD} 1\n{'a' * 10**6}\n" * 3),
}


@pytest.mark.usefixtures("nobody_asks", "cluster")
@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("kind", ["jobs", "where", "instances", "lock"])
def test_a_broken_file_is_one_without_names_until_it_is_written_anew(what, kind, capfd):
    submitted("bert")
    did("list")
    path = folder() / "lock" if kind == "lock" else (file_of(kind))
    signal.alarm(20)
    BROKEN[what](path)
    began = time.monotonic()
    assert set(offered("get", "")) <= {"bert"}
    assert set(offered("logs", "bert", "-i", "")) <= {"bert-launcher-x7k2p"}
    assert time.monotonic() - began < 5
    capfd.readouterr()
    did("list")
    assert "bert" in capfd.readouterr().out
    if what != "a folder" and (kind, what) != ("lock", "a pipe"):
        assert offered("get", "") == ["bert"]


@pytest.mark.usefixtures("nobody_asks", "cluster")
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
    path = file_of("jobs")
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


@pytest.mark.usefixtures("nobody_asks", "cluster")
def test_nobody_else_can_read_the_names():
    submitted("bert")
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
        return subprocess.run(
            [sys.executable, "-m", "arena_topo", *line],
            env=environ | more,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            preexec_fn=limit,
        )

    done = run(*MPI, "--name=bert", "sleep 1")
    assert done.returncode == 0, done.stderr
    assert "rror" not in done.stderr
    asked = run("get", "", _ARENA_TOPO_COMPLETE="bash")
    assert (asked.returncode, asked.stdout, asked.stderr) == (0, "words keep\n", "")
    left = list((tmp_path / "cache").rglob(".new*")) if what == "full" else []
    assert left == []


@pytest.mark.usefixtures("nobody_asks", "cluster")
def test_a_name_that_a_shell_would_obey_is_never_offered():
    submitted("bert")
    odd = ["a b", "$(reboot)", "`x`", "a;b", "\x1b[31mred", "a\nb", "a\tb", "-rf", "a/../b"]
    odd += ["\u202egnp", "", "\u0430dmin", "x" * 254]
    kept = dict.fromkeys([*odd, "bert"], "said \x1b[31m\tso\nand \u202e so")
    with keeping.Folder(os.environ) as one:
        keeping.update(one, file_of("jobs").name, kept, keeping.now(), whole=True)
    text = completion.answer("bash", ["get", ""], dict(os.environ))
    assert text == "words keep\nbert\tsaid  [31m so and   so\n"
    # Who can write there writes what he likes.
    path = file_of("jobs")
    path.write_text("".join([path.read_text(), *(f"{one}\tx\n" for one in odd)]))
    lines = completion.answer("bash", ["get", ""], dict(os.environ)).splitlines()
    assert {one.split("\t")[0] for one in lines[1:]} <= {"bert", "a", "b"}
    path.write_text(f"{names.HEAD} 1\nbert\tsaid \x1b[31m\n")
    assert names.of("jobs", ["get", "--", ""], os.environ) == [("bert", "")]
