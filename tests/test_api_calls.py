"""What calls of the verbs leave behind, how long they wait, and how another thread ends them."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import os
import pkgutil
import sys
import threading
import time
import typing
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
from fake_api import Fault
from worlds import kubernetes_world, living_world, local_world

import arena_topo
from arena_topo import Client, MPIJob, Options, Standing
from arena_topo.engines.kubernetes.engine import KubernetesBackend

HERE = Options(backend="local", emulate="dgx-1-v100:2")
GANG = {"gputopology": True, "gang": True, "workers": 2, "gpus": 4}


def gang(name: str, command: str = "mpirun true", **more) -> MPIJob:
    return MPIJob(**{"name": name, "image": "local", "command": command, **GANG, **more})


@pytest.fixture
def local(tmp_path):
    with local_world(tmp_path) as world:
        yield world


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A cluster that acts by itself, whose jobs run until they are ended, and how to reach it."""
    monkeypatch.setattr(KubernetesBackend, "look_every", 0.05)
    with living_world(tmp_path) as world:
        world.cluster.duration = None
        yield Options(kubeconfig=str(tmp_path / "config"))


@contextmanager
def uncollected():
    """No cycle is let go of meanwhile."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def settles(count, most: int) -> bool:
    """Whether a number comes down to this in a while."""
    end = time.monotonic() + 20
    while count() > most and time.monotonic() < end:
        time.sleep(0.05)
    return count() <= most


# ---------------------------------------------------------------- what calls leave behind


def test_a_log_that_is_left_in_the_middle_leaves_no_thread_and_no_file(local):
    del local
    threads = threading.active_count()
    Client(HERE).submit(gang("talks", "while echo hello; do sleep 0.05; done", gpus=1))
    next(Client(HERE).logs("talks", follow=True))
    assert settles(threading.active_count, threads)
    before = descriptors()
    with uncollected():
        for _ in range(5):
            for line in Client(HERE).logs("talks", follow=True):
                assert line.message == "hello"
                break
        assert settles(threading.active_count, threads)
        assert settles(descriptors, before)


def test_a_call_leaves_no_connection(cluster):
    Client(cluster).submit(gang("demo"))
    Client(cluster).list_jobs()
    with uncollected():
        before = descriptors()
        for _ in range(3):
            Client(cluster).list_jobs()
            Client(cluster).get("demo")
            Client(cluster).plan(gang("other"))
            Client(cluster).top_nodes()
            Client(cluster).cluster()
            Client(cluster).wait("demo", until="placed")
            list(Client(cluster).logs("demo"))
            with pytest.raises(arena_topo.NotFound):
                Client(cluster).why("nope")
        # The server's sides of them, in this process too, are closed a moment later.
        assert settles(descriptors, before)


def children() -> set[str]:
    """What this process has started and not collected, whether it has ended or not."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if parent == str(os.getpid()):
            found.add(stat.parent.name)
    return found


def test_local_jobs_that_have_ended_leave_no_zombies_and_others_children_are_left_alone(local):
    del local
    before = children()
    other = os.posix_spawn("/bin/true", ["true"], {})
    for index in range(3):
        Client(HERE).submit(gang(f"job-{index}", "true", gpus=1))
    Client(HERE).wait([f"job-{index}" for index in range(3)], timeout=60)
    end = time.monotonic() + 60
    # A supervisor ends a moment after its job.
    while len(children() - before) > 1 and time.monotonic() < end:
        Client(HERE).list_jobs()
        time.sleep(0.05)
    assert children() - before == {str(other)}
    assert os.waitpid(other, 0) == (other, 0)


# ---------------------------------------------------------------- how long calls wait


def test_waiting_ends_with_the_shorter_of_its_two_limits(cluster):
    Client(cluster).submit(gang("demo"))
    short = dataclasses.replace(cluster, deadline=0.5)
    for options, timeout in ((short, None), (short, 60.0), (cluster, 0.5)):
        begun = time.monotonic()
        with pytest.raises(arena_topo.TimedOut, match=r"job demo is still \w+ after 0\.5 s"):
            Client(options).wait("demo", timeout=timeout)
        assert time.monotonic() - begun < 20
    with pytest.raises(arena_topo.TimedOut):
        Client(short).submit(gang("other", gpus=1), wait=True)
    with pytest.raises(arena_topo.TimedOut):
        list(Client(short).logs("demo", follow=True))


@pytest.mark.parametrize("which", ["local", "kubernetes"])
def test_waiting_for_no_time_at_all_looks_once(tmp_path, run, which):
    opened = local_world if which == "local" else kubernetes_world("v2beta1")
    with opened(tmp_path) as world:
        options, flags = HERE, ("--backend=local", f"--emulate={HERE.emulate}")
        if which == "kubernetes":
            options = Options(kubeconfig=str(tmp_path / "config"))
            flags = (f"--kubeconfig={options.kubeconfig}",)
        job = world.job("demo", **GANG)
        world.backend.apply(Client(options).plan(job).plan)
        world.start("demo")
        assert Client(options).wait("demo", until="running", timeout=0)[0].status
        with pytest.raises(arena_topo.TimedOut, match="job demo is still RUNNING after 0 s"):
            Client(options).wait("demo", timeout=0)
        code, out, err = run("wait", "demo", "--timeout=0s", "--for=running", *flags)
        assert (code, out) == (0, "mpijob.kubeflow.org/demo running\n"), err
        code, _out, err = run("wait", "demo", "--timeout=0s", *flags)
        assert code == 6
        assert "job demo is still RUNNING after 0 s" in err
        world.finish("demo")


def test_one_look_at_a_slow_server_takes_as_long_as_a_request_may(tmp_path, run):
    with kubernetes_world("v2beta1")(tmp_path) as world:
        options = Options(kubeconfig=str(tmp_path / "config"))
        world.backend.apply(Client(options).plan(world.job("demo", **GANG)).plan)
        world.start("demo")
        flags = ("--timeout=0s", "--for=running", f"--kubeconfig={options.kubeconfig}")
        world.api.faults.append(Fault(match="GET .*/mpijobs/demo", delay=0.4))
        assert run("wait", "demo", *flags)[:2] == (0, "mpijob.kubeflow.org/demo running\n")
        world.api.faults.append(Fault(match="GET .*/mpijobs/demo", silent=True))
        assert run("wait", "demo", *flags, "--request-timeout=500ms")[0] == 6


def test_of_several_jobs_that_are_awaited_each_has_its_ending_in_the_order_of_the_names(local):
    del local
    Client(HERE).submit(gang("long", "sleep 600", gpus=1))
    Client(HERE).submit(gang("bad", "exit 3", gpus=1))
    names = (one for one in ("long", "bad", "long"))
    found = Client(HERE).wait(names, until="succeeded", timeout=60)
    assert [one.name for one in found] == ["long", "bad", "long"]
    assert [one.standing for one in found] == [Standing.OPEN, Standing.LOST, Standing.OPEN]
    assert found[0].status is not None
    assert not found[0].status.phase.over
    with pytest.raises(arena_topo.JobFailed, match="bad"):
        Client(HERE).wait(["long", "bad"], until="succeeded", check=True, timeout=60)


def test_another_thread_ends_the_waiting(local):
    del local
    Client(HERE).submit(gang("long", "sleep 600", gpus=1))
    stop = threading.Event()

    def enough(text: str) -> None:
        if "RUNNING" in text:
            stop.set()

    [end] = Client(HERE, tell=enough).wait("long", stop=stop, timeout=60)
    assert (end.standing, end.status.phase) == (Standing.OPEN, arena_topo.Phase.RUNNING)


def test_another_thread_ends_the_loop_over_a_log_that_says_nothing(local):
    del local
    threads = threading.active_count()
    Client(HERE).submit(gang("long", "echo begun; sleep 600", gpus=1))
    lines = Client(HERE).logs("long", follow=True)
    seen: list[str] = []
    reads = threading.Thread(target=lambda: seen.extend(line.message for line in lines))
    begun = next(lines)
    reads.start()
    time.sleep(0.3)
    lines.close()
    reads.join(30)
    assert not reads.is_alive()
    assert (begun.message, seen) == ("begun", [])
    assert settles(threading.active_count, threads)
    lines.close()
    assert list(lines) == []


# ---------------------------------------------------------------- what is said wrongly


def test_what_a_call_cannot_heed_is_refused(local):
    del local
    for call, said in (
        (lambda: Client(HERE).plan(gang("a"), api_version="v9"), "there is no 'v9'"),
        (lambda: Client(HERE).submit(gang("a"), api_version="v9"), "there is no 'v9'"),
        (lambda: Client(HERE).logs("a", tail=-1), "tail is invalid"),
        (lambda: Client(HERE).logs("a", since=-1), "since is invalid"),
    ):
        with pytest.raises(arena_topo.UsageError, match=said):
            call()


def test_the_time_of_a_submission_is_heeded_without_waiting_for_the_job(tmp_path):
    with living_world(tmp_path) as world:
        world.api.fail("GET", times=999, silent=True)
        options = Options(kubeconfig=str(tmp_path / "config"))
        with pytest.raises(arena_topo.TimedOut):
            Client(options).submit(gang("demo"), timeout=0.5)


def test_phases_are_understood_as_the_command_understands_them(local):
    del local
    Client(HERE).submit(gang("bad", "exit 3", gpus=1))
    Client(HERE).wait("bad", timeout=60)
    for status in ("failed", ["Failed", "running"], arena_topo.Phase.FAILED):
        assert [one.name for one in Client(HERE).list_jobs(status=status)] == ["bad"]


# ---------------------------------------------------------------- names, pictures and types


def test_the_known_machines_are_named():
    assert "dgx-1-v100" in arena_topo.presets()
    assert [arena_topo.machine(name).name for name in arena_topo.presets()] == list(
        arena_topo.presets()
    )


def test_plans_machines_and_networks_are_drawn(local, run):
    del local
    flags = ("--backend=local", f"--emulate={HERE.emulate}")
    drawn = arena_topo.picture(arena_topo.machine("dgx-1-v100"))
    assert drawn == run("topology", "show", "dgx-1-v100", "-o", "svg")[1]
    planned = Client(HERE).plan(gang("a", "true"))
    asked = ("--name=a", "--workers=2", "--gpus=4", "--gang", "--gputopology", "--image=local")
    assert arena_topo.picture(planned) == run("plan", "mpi", *flags, "-o", "svg", *asked, "true")[1]
    assert ET.fromstring(arena_topo.picture(Client(HERE).cluster())).tag.endswith("svg")
    assert [repr(arena_topo.machine("dgx-1-v100")), planned._repr_svg_()] == [
        "<Machine dgx-1-v100, 8 x V100>",
        arena_topo.picture(planned),
    ]
    assert repr(Client(HERE).cluster()) == "<Cluster, 2 nodes, 16 GPUs>"
    assert repr(Client(HERE)) == "<Client of local, the default namespace>"
    nothing = Client(HERE).plan(gang("a", workers=9, gpus=8))
    assert nothing._repr_svg_() is None
    with pytest.raises(arena_topo.Unplaceable):
        arena_topo.picture(Client(HERE).plan(gang("a", workers=9, gpus=8)))
    with pytest.raises(arena_topo.UsageError, match="no placement of a to draw") as refused:
        arena_topo.picture(Client(HERE).plan(gang("a", gpus=0, gputopology=False)))
    assert refused.value.hint == "add --gpus N"
    with pytest.raises(TypeError, match="no picture can be made of a str"):
        arena_topo.picture("a")  # type: ignore[arg-type]


def test_the_picture_of_one_gpu_speaks_of_one(local):
    del local
    planned = Client(HERE).plan(gang("a", workers=1, gpus=1))
    title = ET.fromstring(arena_topo.picture(planned)).find("{http://www.w3.org/2000/svg}title")
    assert title is not None
    assert "dgx-1-v100-0 GPU 0:" in title.text


def of_the_package(hint: object) -> set[type]:
    inner = set().union(*map(of_the_package, typing.get_args(hint)))
    own = isinstance(hint, type) and hint.__module__.startswith("arena_topo")
    return inner | {hint} if own else inner


def test_every_type_that_is_found_inside_a_value_has_a_public_name():
    folders = {"topology", "manifests", "gang", "reasons", "admin", "nodes"}
    for one in pkgutil.walk_packages(arena_topo.__path__, "arena_topo."):
        if one.name.partition(".")[2].partition(".")[0] in folders:
            importlib.import_module(one.name)
    known = {
        name: kind
        for module in list(sys.modules.values())
        if getattr(module, "__name__", "").startswith("arena_topo.")
        for name, kind in vars(module).items()
        if isinstance(kind, type)
    }
    public = {getattr(arena_topo, name) for name in dir(arena_topo) if name[0].isupper()}
    left, seen = [one for one in public if isinstance(one, type)], set()
    while left:
        kind = left.pop()
        value = dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)
        if kind in seen or not value:
            continue
        seen.add(kind)
        # Names that only type checkers import where they stand.
        own = {one.__name__: one for one in public if isinstance(one, type)}
        local = {**known, **own, **vars(sys.modules[kind.__module__])}
        for hint in typing.get_type_hints(kind, localns=local).values():
            assert of_the_package(hint) <= public, f"{kind.__name__}: {of_the_package(hint)}"
            left += of_the_package(hint)
    assert len(seen) > 80
