"""The contract of every engine: one suite, one world per engine.

A world can do to an engine what users and machines do: plan jobs, let them start, print and end.
Another engine joins by adding its world to WORLDS.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest
from fake_api import FakeApi, kubeconfig
from fake_operator import FakeOperator

from arena_topo import manifests, solver
from arena_topo.backends import Backend, LogOptions, Options, Phase
from arena_topo.backends.kubernetes import engine as kubernetes
from arena_topo.backends.local import engine as local
from arena_topo.errors import AlreadyExists, NotFound
from arena_topo.job import MPIJob
from arena_topo.manifests import ApiVersion, Plan
from arena_topo.solver import Request
from arena_topo.topology import count, presets, published


class World(Protocol):
    """An engine with two DGX-1 V100 machines, and hands on what runs there."""

    backend: Backend

    def plan(self, job: MPIJob, **more: Any) -> Plan:
        """What `submit` would apply for a job."""

    def start(self, name: str) -> None:
        """Return once the job runs."""

    def say(self, name: str, line: str) -> None:
        """Let the launcher print a line."""

    def finish(self, name: str, code: int = 0) -> None:
        """Let the launcher end with a code; return once the engine knows."""

    def job(self, name: str, **more: Any) -> MPIJob:
        """A job that runs until it is told to finish."""


class KubernetesWorld:
    """The Kubernetes engine over a fake API server, whose operator is the test."""

    def __init__(self, api: FakeApi, backend: Backend) -> None:
        self.api = api
        self.backend = backend
        self.operator = FakeOperator(api)
        for index in range(2):
            name = f"node-{index}"
            offers = {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8"}
            status = {"capacity": offers, "allocatable": offers}
            api.add({"kind": "Node", "metadata": {"name": name}, "status": status})
            machine = presets.machine("dgx-1-v100", name)
            api.add(published.config_map(machine, machine.everything))

    def job(self, name: str, **more: Any) -> MPIJob:
        return MPIJob(**{"name": name, "command": "mpirun true", "image": "local", **more})

    def plan(self, job: MPIJob, **more: Any) -> Plan:
        self.api.now = self.api.clock() + 1
        return manifests.plan(
            job,
            namespace=self.backend.default_namespace(),
            api=self.backend.api_version(),
            owner=self.backend.owner(),
            files={},
            **more,
        )

    def start(self, name: str) -> None:
        self.operator.start(name)

    def say(self, name: str, line: str) -> None:
        self.operator.say(name, line)

    def finish(self, name: str, code: int = 0) -> None:
        self.operator.finish(name, code)


def kubernetes_world(version: str) -> Callable[[Path], AbstractContextManager[World]]:
    @contextmanager
    def opened(folder: Path) -> Iterator[World]:
        api = FakeApi()
        api.versions = [version]
        try:
            config = kubeconfig(folder / "config", api.url, user={"username": "alice"})
            yield KubernetesWorld(api, kubernetes.open_backend(Options(kubeconfig=config)))
        finally:
            api.close()

    return opened


class LocalWorld:
    """The local engine on two emulated machines; its launchers do what a pipe tells them."""

    def __init__(self, folder: Path, backend: Backend) -> None:
        self.backend = backend
        self._folder = folder

    def job(self, name: str, **more: Any) -> MPIJob:
        pipe = self._folder / name
        os.mkfifo(pipe)
        # Held open for writing too, so that the pipe does not end with each word.
        command = (
            f"exec 3<>{pipe}; while read -r verb rest <&3; do case $verb in"
            ' say) echo "$rest";; end) exit $rest;; esac; done'
        )
        return MPIJob(**{"name": name, "command": command, "image": "local", **more})

    def plan(self, job: MPIJob, **more: Any) -> Plan:
        return manifests.plan(
            job,
            namespace=self.backend.default_namespace(),
            api=self.backend.api_version(),
            owner=self.backend.owner(),
            files={},
            **more,
        )

    def start(self, name: str) -> None:
        self._until(name, lambda phase: phase is Phase.RUNNING)

    def say(self, name: str, line: str) -> None:
        self._tell(name, f"say {line}")

    def finish(self, name: str, code: int = 0) -> None:
        self._tell(name, f"end {code}")
        self._until(name, lambda phase: phase.over)

    def _tell(self, name: str, words: str) -> None:
        with (self._folder / name).open("w") as pipe:
            pipe.write(words + "\n")

    def _until(self, name: str, reached: Callable[[Phase], bool]) -> None:
        deadline = time.monotonic() + 30
        while not reached(self.backend.job(name, "default").phase):
            assert time.monotonic() < deadline, self.backend.job(name, "default")
            time.sleep(0.02)


@contextmanager
def local_world(folder: Path) -> Iterator[World]:
    backend = local.open_backend(Options(backend="local", emulate="dgx-1-v100:2"))
    try:
        yield LocalWorld(folder, backend)
    finally:
        for job in backend.jobs(None):
            backend.delete(job.name, job.namespace)


WORLDS: dict[str, Callable[[Path], AbstractContextManager[World]]] = {
    f"kubernetes-{version}": kubernetes_world(version) for version in ("v2beta1", "v1", "v1alpha1")
} | {"local": local_world}


@pytest.fixture(params=list(WORLDS))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with WORLDS[request.param](tmp_path) as opened:
        yield opened


@pytest.fixture
def backend(world: World) -> Backend:
    return world.backend


def submitted(world: World, name: str = "demo", **more: Any) -> Plan:
    plan = world.plan(world.job(name, **more))
    world.backend.apply(plan)
    return plan


def placed(world: World, name: str, workers: int, gpus: int) -> Plan:
    cluster = world.backend.cluster()
    request = Request(workers=workers, gpus=gpus)
    return world.plan(
        world.job(name, workers=workers, gpus=gpus, gputopology=True, gang=True),
        request=request,
        placement=solver.place(request, cluster),
        cluster=cluster,
    )


def free(backend: Backend) -> int:
    return sum(one.free_count for one in backend.cluster().nodes)


def test_an_engine_knows_who_where_and_which_version(backend: Backend):
    assert backend.name
    assert backend.owner()
    assert backend.default_namespace() == "default"
    assert backend.api_version() in ApiVersion


def test_an_empty_cluster_is_all_free(backend: Backend):
    cluster = backend.cluster()
    assert [count(one.free) for one in cluster.nodes] == [8, 8]
    assert all(one.free == one.allocatable for one in cluster.nodes)
    assert cluster.source


def test_a_job_that_was_applied_is_there(world: World, backend: Backend):
    plan = world.plan(world.job("demo", workers=2, gpus=1))
    created = backend.apply(plan)
    assert created[0] == "mpijob.kubeflow.org/demo"
    status = backend.job("demo", "default")
    assert (status.name, status.namespace, status.request_gpus) == ("demo", "default", 2)
    assert not status.phase.over
    assert status.uid
    assert [one.name for one in backend.jobs("default")] == ["demo"]


def test_a_name_that_is_taken_is_refused_and_the_job_stays(world: World, backend: Backend):
    plan = submitted(world)
    uid = backend.job("demo", "default").uid
    with pytest.raises(AlreadyExists) as caught:
        backend.apply(plan)
    assert caught.value.message == (
        "the job demo is already exist, please delete it first. use 'arena-topo delete demo'"
    )
    assert backend.job("demo", "default").uid == uid


def test_a_running_job_has_a_launcher_and_its_workers(world: World, backend: Backend):
    submitted(world, workers=2, gpus=3)
    world.start("demo")
    status = backend.job("demo", "default")
    assert status.phase is Phase.RUNNING
    assert status.chief is not None
    assert [one.worker for one in status.instances] == [None, 0, 1]
    assert [one.gpus for one in status.instances] == [0, 3, 3]
    assert [one.name for one in status.instances[1:]] == ["demo-worker-0", "demo-worker-1"]
    assert all(one.status == "Running" and not one.pending for one in status.instances)
    assert (status.request_gpus, status.allocated_gpus) == (6, 6)
    assert (status.finished, status.exit_code) == (None, None)
    assert free(backend) == 10


def test_a_job_that_ends_well_succeeds_and_frees_its_gpus(world: World, backend: Backend):
    submitted(world, gpus=2)
    world.start("demo")
    world.finish("demo")
    status = backend.job("demo", "default")
    assert (status.phase, status.exit_code, status.reason) == (Phase.SUCCEEDED, 0, None)
    assert status.finished is not None
    assert status.finished >= status.created
    assert status.allocated_gpus == 0
    assert free(backend) == 16


def test_a_job_that_ends_badly_fails_with_its_code_and_a_reason(world: World, backend: Backend):
    submitted(world)
    world.start("demo")
    world.finish("demo", 7)
    status = backend.job("demo", "default")
    assert (status.phase, status.exit_code) == (Phase.FAILED, 7)
    assert "7" in (status.reason or "")
    assert status.finished is not None


def test_a_job_that_does_not_exist_is_said_in_arenas_words(backend: Backend):
    with pytest.raises(NotFound) as caught:
        backend.job("nope", "default")
    assert caught.value.message == (
        "Not found training job nope in namespace default,"
        "please use 'arena-topo submit' to create it."
    )
    with pytest.raises(NotFound) as caught:
        backend.delete("nope", "default")
    assert caught.value.message == "Not found training job nope in namespace default"


def test_delete_takes_everything_and_frees_the_name(world: World, backend: Backend):
    plan = submitted(world, gpus=4)
    world.start("demo")
    backend.delete("demo", "default")
    with pytest.raises(NotFound):
        backend.job("demo", "default")
    assert backend.jobs(None) == ()
    assert free(backend) == 16
    backend.apply(plan)
    assert backend.job("demo", "default").name == "demo"


def test_jobs_are_listed_newest_first(world: World, backend: Backend):
    for name in ("first", "second", "third"):
        submitted(world, name)
    assert [one.name for one in backend.jobs(None)] == ["third", "second", "first"]
    assert backend.jobs("kube-system") == ()


def test_listed_jobs_are_the_same_as_those_asked_for(world: World, backend: Backend):
    submitted(world, workers=2, gpus=1)
    world.start("demo")
    (listed,) = backend.jobs("default")
    assert listed == backend.job("demo", "default")


def test_a_placement_is_recorded_and_holds_its_gpus_before_and_while_it_runs(
    world: World, backend: Backend
):
    plan = placed(world, "demo", workers=4, gpus=1)
    assert plan.placement is not None
    chosen = dict.fromkeys(plan.placement.nodes, 0)
    for one in plan.placement.assignments:
        chosen[one.node] |= sum(1 << gpu for gpu in one.gpus)
    backend.apply(plan)
    assert free(backend) == 12
    world.start("demo")
    status = backend.job("demo", "default")
    assert status.forecast is not None
    assert status.forecast.bus_bandwidth == 80.0
    assert [one[1] for one in status.forecast.workers] == [
        one.node for one in plan.placement.assignments
    ]
    assert free(backend) == 12
    # The next gang gets what is left, never what is promised.
    other = placed(world, "other", workers=4, gpus=1)
    assert other.placement is not None
    for one in other.placement.assignments:
        assert not chosen.get(one.node, 0) & sum(1 << gpu for gpu in one.gpus)


def test_a_log_is_what_the_launcher_printed(world: World, backend: Backend):
    submitted(world)
    world.start("demo")
    for number in range(3):
        world.say("demo", f"line {number}")
    world.finish("demo")
    status = backend.job("demo", "default")
    assert status.chief is not None

    def log(**options: Any) -> list[bytes]:
        pieces = backend.log(status, status.chief.name, LogOptions(**options))
        return b"".join(pieces).splitlines()

    assert log()[-3:] == [b"line 0", b"line 1", b"line 2"]
    assert log(tail=1) == [b"line 2"]
    assert log(follow=True)[-3:] == [b"line 0", b"line 1", b"line 2"]


def test_a_followed_log_ends_with_its_pod(world: World, backend: Backend):
    submitted(world)
    world.start("demo")
    world.say("demo", "before")
    status = backend.job("demo", "default")
    assert status.chief is not None
    pieces = backend.log(status, status.chief.name, LogOptions(follow=True))
    seen = b""
    while b"before" not in seen:
        seen += next(pieces)
    world.say("demo", "after")
    ender = threading.Thread(target=world.finish, args=("demo",))
    ender.start()
    seen += b"".join(pieces)
    ender.join()
    assert seen.count(b"before") == seen.count(b"after") == 1


def test_the_log_of_a_pod_that_does_not_exist_is_not_found(world: World, backend: Backend):
    submitted(world)
    status = backend.job("demo", "default")
    for follow in (False, True):
        with pytest.raises(NotFound):
            list(backend.log(status, "demo-worker-99", LogOptions(follow=follow)))


def test_events_are_in_order(world: World, backend: Backend):
    submitted(world)
    world.start("demo")
    events = backend.events(backend.job("demo", "default"))
    assert list(events) == sorted(events, key=lambda one: one.when)
