"""The contract of every engine: one suite, one world per engine.

Another engine joins by adding its world to `worlds.WORLDS`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from log_bytes import log_of
from worlds import WORLDS, World

from arena_topo.engines import Phase
from arena_topo.engines.backend import Backend
from arena_topo.engines.lines import LogOptions
from arena_topo.errors import JobExists, JobNotFound, NotFound
from arena_topo.manifests import Plan
from arena_topo.manifests.versions import ApiVersion
from arena_topo.solver import Request
from arena_topo.solver.door import place
from arena_topo.topology import count


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
        placement=place(request, cluster),
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


def test_the_largest_node_is_known_however_busy_it_is(world: World, backend: Backend):
    most = [len(one.machine.gpus) for one in backend.machines()]
    assert max(most) == 8
    backend.apply(placed(world, "demo", 4, 2))
    assert [len(one.machine.gpus) for one in backend.machines()] == most


def test_checking_a_plan_creates_nothing_and_knows_taken_names(world: World, backend: Backend):
    plan = world.plan(world.job("demo"))
    assert backend.validate(plan) == ()
    with pytest.raises(NotFound):
        backend.job("demo", "default")
    backend.apply(plan)
    with pytest.raises(JobExists, match="job demo already exists"):
        backend.validate(plan)


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
    with pytest.raises(JobExists) as caught:
        backend.apply(plan)
    assert caught.value.message == "job demo already exists"
    assert caught.value.arena == "the job demo is already exist, please delete it first."
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
    assert {one.failure for one in status.instances} == {None}
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


def test_a_job_that_does_not_exist_is_an_error_that_has_arenas_text_beside_its_own(
    backend: Backend,
):
    for verb in (backend.job, backend.delete):
        with pytest.raises(JobNotFound) as caught:
            verb("nope", "default")
        assert caught.value.message == "no job nope in namespace default"
        assert caught.value.arena == (
            "Not found training job nope in namespace default,"
            "please use 'arena submit' to create it."
        )


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
    assert plan.placement.inside is not None
    assert status.forecast.bus_bandwidth == pytest.approx(plan.placement.inside.point)
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
        return log_of(backend, status, status.chief.name, LogOptions(**options)).splitlines()

    assert log()[-3:] == [b"line 0", b"line 1", b"line 2"]
    assert log(tail=1) == [b"line 2"]


def test_events_are_in_order(world: World, backend: Backend):
    submitted(world)
    world.start("demo")
    events = backend.events(backend.job("demo", "default"))
    assert list(events) == sorted(events, key=lambda one: one.when)
