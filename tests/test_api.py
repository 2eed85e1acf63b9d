"""The package as a library: what the commands print, without anything that a program would mind."""

from __future__ import annotations

import ast
import json
import os
import pydoc
import re
import signal
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path

import pytest
from replacing import replace
from worlds import kubernetes_world, living_world, local_world

import arena_topo
from arena_topo import Client, JobStatus, MPIJob, Options, Phase, Verdict, errors, values
from arena_topo.engines.kubernetes.engine import KubernetesBackend

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "python.md"
HERE = Options(backend="local", emulate="dgx-1-v100:2")
GANG = {"gputopology": True, "gang": True, "workers": 2, "gpus": 4}


def gang(name: str, command: str = "mpirun true", **more) -> MPIJob:
    return MPIJob(**{"name": name, "image": "local", "command": command, **GANG, **more})


@pytest.fixture
def local(tmp_path):
    """The local engine; nothing of it is left behind."""
    with local_world(tmp_path) as world:
        yield world


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A cluster that acts by itself, and how to reach it."""
    monkeypatch.setattr(KubernetesBackend, "look_every", 0.05)
    with living_world(tmp_path) as world:
        yield world, Options(kubeconfig=str(tmp_path / "config"))


# ---------------------------------------------------------------- names


def test_what_the_package_has_is_what_is_listed_for_type_checkers():
    listed = {
        alias.asname: (one.module, alias.name)
        for one in ast.parse(Path(values.__file__).read_text()).body
        if isinstance(one, ast.ImportFrom)
        for alias in one.names
        if alias.asname[0] != "_"
    }
    public = {name for name in dir(arena_topo) if name[0] != "_" and hasattr(values, name)}
    assert set(listed) == public - {"SeenDevice"}
    for name, (module, inside) in listed.items():
        assert getattr(arena_topo, name) is getattr(import_module(module), inside), name
    for wrong in ("submti", "Submti", "layuot"):
        with pytest.raises(AttributeError, match=f"no attribute '{wrong}'"):
            getattr(arena_topo, wrong)


def test_help_shows_every_type():
    types = [one for name, one in vars(values).items() if name[0] != "_" and isinstance(one, type)]
    assert JobStatus in types
    for one in types:
        assert f"class {one.__name__}" in pydoc.plain(pydoc.render_doc(one))


def test_every_error_that_a_caller_may_catch_is_exported():
    kinds = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.ArenaError)
    }
    assert kinds | {"Unplaceable", "NotNow"} <= set(dir(arena_topo))


def test_importing_the_package_loads_nothing_else():
    script = (
        "import sys; before = set(sys.modules)\n"
        "import arena_topo; print(sorted(set(sys.modules) - before))\n"
        "arena_topo.Client; print('arena_topo.client' in sys.modules, 'typer' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert done.stdout.splitlines() == ["['arena_topo']", "True False"]


# ---------------------------------------------------------------- the page


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_examples_of_the_page_print_what_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "state.json").write_text(blocks("json")[0])
    names: dict[str, object] = {}
    assert len(blocks("python")) > 5
    for block in blocks("python"):
        exec(compile(block, str(PAGE), "exec"), names)
        shown = capsys.readouterr()
        said = [line[3:] for line in block.splitlines() if line.startswith("#> ")]
        assert (shown.out.splitlines(), shown.err) == (said, ""), block
    assert Client(HERE).list_jobs() == ()


WRONG = """
here.submit("demo")
here.get("demo").statsu
here.wait("a").name
arena_topo.submti
MPIJob(name="a", command="b", gpu=1)
here.wait("a", until="ended")
arena_topo.json_value(here.get("demo"))[0]
arena_topo.json_value(here.get("demo"), 3)
here.plan(MPIJob(name="a", command="b"), api_version="v9")
"""

RIGHT = """
from collections.abc import Iterable
from arena_topo.values import Diagnosis
def names_of(names: Iterable[str]) -> list[str]:
    return [str(arena_topo.json_value(end.status)["name"]) for end in here.wait(names)]
verdict: Diagnosis = here.why("demo").verdict
heard: arena_topo.Tell = print
kind: type[arena_topo.Diagnosis] = Diagnosis
"""


def test_type_checkers_accept_the_examples_of_the_page_and_find_mistakes_in_others(tmp_path):
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text("\n".join([*blocks("python"), RIGHT]))
    wrong.write_text(
        f"import arena_topo\nfrom arena_topo import Client, MPIJob\nhere = Client()\n{WRONG}"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", right, wrong],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    found = re.findall(r"(right|wrong)\.py:(\d+): error", done.stdout)
    mistakes = [str(5 + index) for index in range(len(WRONG.strip().splitlines()))]
    assert found == [("wrong", line) for line in mistakes], done.stdout + done.stderr


# ---------------------------------------------------------------- the values of the commands


def ageless(value):
    """A value without what grows with each second."""
    if isinstance(value, dict):
        return {
            key: None if key in {"duration", "age", "since"} else ageless(one)
            for key, one in value.items()
        }
    return [ageless(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("which", ["local", "kubernetes"])
def test_values_are_what_the_commands_print_as_json(tmp_path, run, which):
    opened = local_world if which == "local" else kubernetes_world("v2beta1")
    with opened(tmp_path) as world:
        if which == "local":
            flags, options = ("--backend=local", f"--emulate={HERE.emulate}"), HERE
        else:
            flags = (f"--kubeconfig={tmp_path / 'config'}",)
            options = Options(kubeconfig=str(tmp_path / "config"))
        job = world.job("demo", **GANG)
        world.backend.apply(Client(options).plan(job).plan)
        world.start("demo")
        world.say("demo", "hello")
        while not (lines := list(Client(options).logs("demo"))):
            time.sleep(0.02)
        asked = ("--workers=2", "--gpus=4", "--gang", "--gputopology", "--image=local", "true")
        other = gang("other", "true")

        def shown(found: object) -> object:
            several = isinstance(found, tuple)
            return (
                [arena_topo.json_value(one) for one in found]
                if several
                else arena_topo.json_value(found)
            )

        for found, words in (
            (Client(options).get("demo"), ("get", "demo")),
            (Client(options).get("demo", explain=True), ("get", "demo", "--explain")),
            (Client(options).list_jobs(), ("list",)),
            (Client(options).plan(other), ("plan", "mpi", "--name=other", *asked)),
            (Client(options).why("demo"), ("why", "demo")),
            (Client(options).top_nodes(), ("top", "node")),
            (Client(options).top_jobs(), ("top", "job")),
            (Client(options).cluster(), ("topology", "show")),
            (arena_topo.machine("dgx-1-v100"), ("topology", "show", "dgx-1-v100")),
            (lines[0], ("logs", "demo")),
        ):
            where = len(words) if words[0] != "plan" else 3
            code, out, err = run(*words[:where], *flags, "-o", "json", *words[where:])
            assert code == 0, err
            assert ageless(shown(found)) == ageless(json.loads(out)), words
        if which != "local":
            found = Client(options).check()
            assert shown(found) == json.loads(run("check", *flags, "-o", "json")[1])
        world.finish("demo")
    with pytest.raises(TypeError, match="no command prints a str"):
        arena_topo.json_value("demo")


# ---------------------------------------------------------------- verbs


def test_a_gang_is_submitted_awaited_and_started_again_on_a_cluster(cluster):
    world, options = cluster
    world.cluster.duration = None
    heard: list[str] = []
    done = Client(options, tell=heard.append).submit(gang("demo"))
    assert "mpijob.kubeflow.org/demo" in done.created
    (end,) = Client(options).wait(["demo"], until="running", timeout=30)
    assert end.standing is arena_topo.Standing.REACHED
    Client(options).suspend("demo")
    assert Client(options).get("demo").status.phase is Phase.SUSPENDED
    assert Client(options).resume("demo").forecast.state == "placed"
    again = Client(options).submit(gang("demo"), exists="ok")
    assert again.plan.waiting is None
    assert again.created == ()
    assert again.status.name == "demo"
    assert Client(options).replan("demo", force=True).forecast.state == "placed"
    with pytest.raises(arena_topo.AlreadyExists, match="job demo already exists") as taken:
        Client(options).submit(gang("demo", gpus=2), exists="ok")
    assert "--gpus" in taken.value.why
    made = Client(options, tell=heard.append).submit(gang("demo", gpus=2), exists="replace")
    assert made.status.request_gpus == 4
    assert "The training job demo has been deleted successfully" in heard
    Client(options).delete("demo")
    assert Client(options).wait("demo", until="deleted")[0].status is None


def test_a_job_that_is_awaited_by_its_submitter_ends_with_its_last_status_or_its_failure(local):
    heard: list[str] = []
    good = Client(HERE, tell=heard.append).submit(gang("good"), wait=True, timeout=60)
    assert good.status.phase is Phase.SUCCEEDED
    assert heard[-1] == "good is SUCCEEDED"
    with pytest.raises(arena_topo.JobFailed, match="the job bad failed") as failed:
        Client(HERE).submit(gang("bad", "exit 7"), wait=True)
    assert failed.value.exit_code == 7
    assert Client(HERE).wait("bad")[0].status.exit_code == 7
    with pytest.raises(arena_topo.JobFailed):
        Client(HERE).wait(["good", "bad"], check=True)
    lines = Client(HERE).logs("bad", follow=True)
    assert list(lines) == []
    assert lines.failure.exit_code == 7
    del local


def test_there_is_a_difference_between_not_now_and_never(local):
    Client(HERE).submit(gang("hold", "sleep 600", gpus=8))
    planned = Client(HERE).plan(gang("next"))
    assert (planned.verdict, planned.plan) == (Verdict.NOT_NOW, None)
    assert planned.refused.exit_code == 3
    waits = Client(HERE).submit(gang("next"))
    assert (waits.status.phase, waits.status.forecast.state) == (Phase.PENDING, "waiting")
    told = "<JobStatus default/next PENDING, 8 GPUs, 2 workers x 4 GPUs cannot be placed now: "
    assert repr(waits.status).startswith(told)
    assert repr(planned) == "<Proposal next: NotNow, 2 workers x 4 GPUs cannot be placed now>"
    explained = Client(HERE).why("next")
    assert repr(explained) == (
        "<Explanation next: PENDING, WaitingForGPUs: 2 workers x 4 GPUs cannot be placed now>"
    )
    assert explained._repr_html_().startswith("<pre>next: PENDING, WaitingForGPUs\n")
    shown = replace(waits.status, name="<b>")._repr_html_()
    assert shown.startswith("<pre>Name:        &lt;b&gt;\nStatus:      PENDING\n")
    assert "<b>" not in shown
    assert Client(HERE).get("next")._repr_html_().startswith("<pre>Name:        next\n")
    with pytest.raises(arena_topo.TimedOut, match="next is still PENDING"):
        Client(HERE).wait("next", timeout=0.1)
    with pytest.raises(arena_topo.Unplaceable) as never:
        Client(HERE).submit(gang("vast", workers=3, gpus=8))
    assert never.value.verdict is Verdict.NEVER
    with pytest.raises(arena_topo.NotFound):
        Client(HERE).get("vast")
    del local


def test_a_job_that_does_not_exist_is_the_same_error_of_every_verb(local):
    del local
    text = "no job nope in namespace team"
    team = Client(replace(HERE, namespace="team"))
    for verb in (team.get, team.why, team.wait, team.delete, team.suspend, team.resume):
        with pytest.raises(arena_topo.NotFound, match=text):
            verb("nope")
    with pytest.raises(arena_topo.NotFound, match=text):
        next(Client(replace(HERE, namespace="team")).logs("nope"))
    Client(HERE).delete("nope", ignore_not_found=True)


def test_a_word_that_means_nothing_is_an_error_that_lists_those_that_do(local):
    del local
    for call, said in (
        (lambda: Client(HERE).wait("a", until="ended"), "finished, succeeded"),
        (lambda: Client(HERE).list_jobs(status=["DONE"]), "PENDING, RUNNING"),
        (lambda: Client(HERE).list_jobs(sort_by="size"), "age, name"),
        (lambda: Client(HERE).list_jobs(selector="a in"), "expected labels"),
        (lambda: Client(HERE).submit(gang("a"), exists="maybe"), "fail, ok, replace"),
    ):
        with pytest.raises(arena_topo.UsageError) as wrong:
            call()
        assert said in wrong.value.why


def test_jobs_are_listed_by_phase_namespace_and_order(local):
    for name, namespace, gpus in (("small", "a", 1), ("large", "b", 4)):
        Client(replace(HERE, namespace=namespace)).submit(gang(name, gpus=gpus), wait=True)
    found = Client(HERE).list_jobs(all_namespaces=True, sort_by="gpus")
    assert [one.name for one in found] == ["large", "small"]
    assert [one.name for one in Client(replace(HERE, namespace="a")).list_jobs()] == ["small"]
    assert Client(HERE).list_jobs(all_namespaces=True, status="RUNNING") == ()
    del local


def test_no_settings_file_and_no_variable_for_a_flag_is_read(local, user, monkeypatch):
    del local
    user.write_text('[defaults]\nnamespace = "settings"\n')
    monkeypatch.setenv("ARENA_TOPO_NAMESPACE", "variable")
    monkeypatch.setenv("ARENA_TOPO_GPUS", "8")
    done = Client(HERE).submit(gang("demo", gpus=1))
    assert (done.status.namespace, done.plan.job.gpus) == ("default", 1)


# ---------------------------------------------------------------- what a program would mind

QUIET = """
import gc, logging, os, signal, sys, threading, warnings
import arena_topo
from arena_topo import Client, JobStatus, MPIJob, Options

def state():
    mask = os.umask(0o22)
    os.umask(mask)
    return (
        {one: signal.getsignal(one) for one in signal.valid_signals()},
        signal.getitimer(signal.ITIMER_REAL), gc.get_threshold(), gc.isenabled(),
        logging.root.handlers[:], logging.getLogger("arena_topo.requests").handlers[:],
        warnings.filters[:],
        dict(os.environ), os.getcwd(), mask, sys.argv, sys.excepthook, threading.excepthook,
        sys.getswitchinterval(), sys.getrecursionlimit(),
    )

def refuse(*_): raise AssertionError("a handler was set")
before = state()
signal.signal = refuse
here = Client(Options(%s))
job = MPIJob(name="demo", image="local", command="echo hello", gputopology=True, gang=True, gpus=1)
here.plan(job)
here.submit(job)
if here.options.backend == "local":
    for line in here.logs("demo", follow=True):
        assert line.message == "hello"
    here.wait("demo", timeout=60)
arena_topo.json_value(here.get("demo", events=True, explain=True))
here.list_jobs()
here.top_nodes(metrics=True)
here.top_jobs()
here.cluster()
here.why("demo")
try:
    here.get("nope")
except arena_topo.NotFound:
    pass
here.delete("demo")
after = state()
assert before == after, [pair for pair in zip(before, after) if pair[0] != pair[1]]
assert "arena_topo.cli" not in sys.modules and "typer" not in sys.modules
assert [one.name for one in threading.enumerate() if not one.daemon] == ["MainThread"]
"""


@pytest.mark.parametrize("which", ["local", "cluster"])
def test_a_program_that_calls_the_verbs_finds_itself_unchanged(tmp_path, which):
    if which == "local":
        done = quietly(QUIET % "backend='local', emulate='dgx-1-v100:2'", tmp_path)
    else:
        with living_world(tmp_path):
            config = str(tmp_path / "config")
            done = quietly(QUIET % f"kubeconfig={config!r}", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def quietly(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        timeout=100,
    )


def test_two_clusters_are_asked_at_once_from_threads(tmp_path, local):
    del local
    (tmp_path / "other").mkdir()
    with living_world(tmp_path / "other"):
        remote = Options(kubeconfig=str(tmp_path / "other" / "config"))
        found: dict[str, list[str]] = {}
        wrong: list[BaseException] = []
        start = threading.Barrier(4)

        def work(name: str, options: Options) -> None:
            try:
                start.wait(30)
                Client(options).submit(gang(name, gpus=1))
                Client(options).wait(name, until="placed", timeout=60)
                seen = Client(options).get(name)
                found[name] = sorted({str(node) for _, node, _ in seen.status.forecast.workers})
            except BaseException as error:  # noqa: BLE001 - the test tells of it
                wrong.append(error)

        threads = [
            threading.Thread(target=work, args=(f"job-{index}", (HERE, remote)[index % 2]))
            for index in range(4)
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join(100)
        assert wrong == []
    local_nodes = {node for index in (0, 2) for node in found[f"job-{index}"]}
    remote_nodes = {node for index in (1, 3) for node in found[f"job-{index}"]}
    assert all(one.startswith("dgx-1-v100-") for one in local_nodes)
    assert all(one.startswith("node-") for one in remote_nodes)


INTERRUPTED = """
import threading
from arena_topo import Client, JobStatus, MPIJob, Options
here = Client(Options(backend="local", emulate="dgx-1-v100:2"))
job = MPIJob(name="long", image="local", command="echo begun; sleep 600", gpus=1, gputopology=True)
here.submit(job)
try:
    %s
except KeyboardInterrupt as stopped:
    assert type(stopped) is KeyboardInterrupt
    print(here.get("long").status.phase, flush=True)
here.delete("long")
print([one.name for one in threading.enumerate()], flush=True)
"""
FOLLOWS = """with here.logs("long", follow=True) as lines:
        for line in lines:
            print(line.message, flush=True)"""
WAITS = """here.wait("long", until="running")
    print("begun", flush=True)
    here.wait("long")"""


@pytest.mark.parametrize("doing", [FOLLOWS, WAITS], ids=["follows", "waits"])
def test_a_keyboard_interrupt_passes_through_and_the_job_goes_on(tmp_path, doing):
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED % doing],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=os.environ,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "begun\n"
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=60)
    assert (out, err) == ("RUNNING\n['MainThread']\n", "")
