"""The contract of every engine about its nodes: what `top node` is made of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from worlds import WORLDS, World

from arena_topo.engines.backend import Backend
from arena_topo.engines.occupancy import Mode, NodeStatus
from arena_topo.manifests import Plan
from arena_topo.solver import Request
from arena_topo.solver.door import place
from arena_topo.topology import count


@pytest.fixture(params=list(WORLDS))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with WORLDS[request.param](tmp_path) as opened:
        yield opened


def placed(world: World, name: str, workers: int, gpus: int) -> Plan:
    cluster = world.backend.cluster()
    request = Request(workers=workers, gpus=gpus)
    plan = world.plan(
        world.job(name, workers=workers, gpus=gpus, gputopology=True, gang=True),
        request=request,
        placement=place(request, cluster),
        cluster=cluster,
    )
    world.backend.apply(plan)
    return plan


def nodes(backend: Backend) -> dict[str, NodeStatus]:
    return {one.name: one for one in backend.nodes().nodes}


def test_nodes_are_those_of_the_cluster_in_its_order(world: World):
    found = world.backend.nodes()
    assert [one.name for one in found.nodes] == [one.name for one in world.backend.cluster().nodes]
    assert tuple(one.node for one in found.nodes) == found.cluster.nodes


def test_empty_machines_are_ready_idle_and_of_known_links(world: World):
    for one in nodes(world.backend).values():
        assert (one.status.partition(",")[0], one.mode) in {
            ("Ready", Mode.TOPOLOGY),
            # A fake server's nodes say nothing of their health.
            ("Unknown", Mode.TOPOLOGY),
        }
        assert (one.total, one.allocated, one.unhealthy, one.pods) == (8, 0, 0, ())
        assert {one.state(gpu) for gpu in range(8)} == {"idle"}


def test_the_pods_of_a_running_job_hold_its_gpus(world: World):
    placed(world, "demo", 2, 2)
    world.start("demo")
    found = [one for one in nodes(world.backend).values() if one.pods]
    pods = [pod for one in found for pod in one.pods or ()]
    assert sorted(pod.name for pod in pods) == ["demo-worker-0", "demo-worker-1"]
    assert {(pod.namespace, pod.gpus) for pod in pods} == {("default", 2)}
    assert sum(one.allocated for one in found) == 4
    free = sum(one.node.free_count for one in nodes(world.backend).values())
    assert free == 16 - 4


def test_a_job_that_is_over_holds_nothing(world: World):
    placed(world, "demo", 1, 4)
    world.start("demo")
    world.finish("demo")
    for one in nodes(world.backend).values():
        assert (one.allocated, count(one.node.free)) == (0, 8)
        assert {one.state(gpu) for gpu in range(8)} == {"idle"}


def test_what_is_told_of_nodes_names_their_resource(world: World):
    told: dict[str, Any] = {
        name: (one.capacity.get(one.node.resource), one.allocatable.get(one.node.resource))
        for name, one in nodes(world.backend).items()
    }
    assert set(told.values()) == {(8.0, 8.0)}
