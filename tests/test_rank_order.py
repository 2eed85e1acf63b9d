"""Ranks follow the placement: consecutive ones are neighbours in the network and on the ring."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pytest
from cube_mesh import HGX, P100, PCIE, V100, cluster, matrix, node
from cube_mesh import machine as named
from hypothesis import assume, given
from hypothesis import strategies as st
from replacing import replace

from arena_topo.bandwidth.one_host import MachineFacts
from arena_topo.engines import JobStatus, Phase
from arena_topo.gang.planning import plan
from arena_topo.job import MPIJob, PodShape
from arena_topo.jobs import view
from arena_topo.manifests import PlacementForecast
from arena_topo.manifests.annotations import parse_map
from arena_topo.solver import Placement, Request, Unplaceable
from arena_topo.solver.door import place
from arena_topo.solver.gpu_sets import gpu_sets
from arena_topo.topology import Cluster, GPUSet, Machine, Tier, count

TIERS = (
    Tier(name="zone", bandwidth=3.0),
    Tier(name="spine", bandwidth=6.0),
    Tier(name="leaf", bandwidth=12.5),
)


@st.composite
def worlds(draw: st.DrawFn) -> Cluster:
    """Nodes whose names say nothing of where they are, in a network of three tiers."""
    places = draw(
        st.lists(
            st.tuples(*(st.sampled_from("ab") for _ in TIERS)),
            min_size=2,
            max_size=12,
            unique=False,
        )
    )
    names = draw(st.permutations(range(len(places))))
    nodes = [
        node(
            f"n{name}",
            draw(st.sampled_from([V100, HGX])),
            draw(st.integers(1, 255)),
            domains=tuple("".join(place[: at + 1]) for at in range(len(TIERS))),
        )
        for name, place in zip(names, places, strict=True)
    ]
    return cluster(*nodes, tiers=TIERS, beyond=1.0)


def placed(world: Cluster, workers: int, gpus: int) -> Placement:
    try:
        return place(Request(workers=workers, gpus=gpus, mix_models=True), world)
    except Unplaceable:
        assume(False)
        raise


@given(worlds(), st.integers(2, 12), st.sampled_from([1, 2, 4]))
def test_the_ring_of_ranks_crosses_each_boundary_once_per_direction(
    world: Cluster, workers: int, gpus: int
):
    """Every node and every domain has its ranks in one run: the ring enters and leaves it once."""
    placement = placed(world, workers, gpus)
    assert [one.worker for one in placement.assignments] == list(range(workers))
    where = {one.name: (*one.domains, one.name) for one in world.nodes}
    for depth in range(len(TIERS) + 1):
        visited = [
            domain
            for domain, _run in groupby(
                where[one.node][: depth + 1] for one in placement.assignments
            )
        ]
        assert len(visited) == len(set(visited)), (depth, visited)


def joints(machine: Machine, groups: Sequence[tuple[int, ...]]) -> float:
    """GB/s of the slowest link from the last GPU of a worker to the first of the next, all round.

    Workers of a single GPU make one ring; there that is the slowest link of the ring.
    """
    following = (*groups[1:], groups[0])
    rates = MachineFacts(machine).rates
    return min(rates[one[-1]][other[0]] for one, other in zip(groups, following, strict=True))


LOPSIDED = replace(
    named(
        "lopsided",
        "V100",
        matrix(
            8,
            {
                (one, other): (0, 0, 1, 2, 3)[(3 * one * one + other + one * other) % 5]
                for one, other in itertools.combinations(range(8), 2)
            },
        ),
    ),
    nvswitch=False,
)
"""A machine without any symmetry, so that every order of its GPUs is worth something else."""


@pytest.mark.parametrize("machine", [V100, P100, PCIE, LOPSIDED], ids=lambda one: one.name)
def test_ranks_of_a_node_follow_the_best_ring_through_their_gpus(machine: Machine):
    """No other order of the GPUs of a node joins them better."""
    table = gpu_sets(machine.configuration)
    for gpus in map(GPUSet, range(1, 256)):
        if 1 < count(gpus) <= 5:
            first, *others = groups = table.split(gpus, 1)
            orders = ((first, *rest) for rest in itertools.permutations(others))
            assert joints(machine, groups) == max(joints(machine, order) for order in orders)


@pytest.mark.parametrize("pod_shape", [PodShape.SEPARATE, PodShape.FUSED])
def test_the_map_lists_workers_in_the_order_of_their_ranks(pod_shape: PodShape):
    """The operator writes the hostfile in the order of the workers' numbers."""
    tiers = (Tier(name="leaf", bandwidth=12.5),)
    # The names run across the racks.
    nodes = [node(f"n{at}", V100, 0b1111, domains=(f"r{at % 2}",)) for at in range(4)]
    job = MPIJob(
        name="demo",
        command="mpirun true",
        image="i",
        workers=16,
        gpus=1,
        gputopology=True,
        pod_shape=pod_shape,
    )
    made = plan(job, None, namespace="n", cluster=cluster(*nodes, tiers=tiers, beyond=3.0)).objects[
        0
    ]
    workers = parse_map(made["metadata"]["annotations"]["arena-topo.io/placement"])
    visited = [name for name, _run in groupby(name for _index, name, _gpus in workers)]
    assert visited in (["n0", "n2", "n1", "n3"], ["n1", "n3", "n0", "n2"])


# ---------------------------------------------------------------- shown


def status(workers: str, **more: Any) -> JobStatus:
    facts: dict[str, Any] = {
        "uid": "u",
        "name": "demo",
        "namespace": "default",
        "phase": Phase.SUCCEEDED,
        "created": 0.0,
        "finished": 60.0,
        "request_gpus": 8,
        "forecast": PlacementForecast(state="placed", workers=parse_map(workers)),
    }
    return JobStatus(**(facts | more))


def table(job: JobStatus) -> list[str]:
    lines = view.job_text(job, now=60.0).splitlines()
    start = lines.index("Placement:")
    return [line.rstrip() for line in lines[start + 1 :]]


def test_ranks_nodes_and_gpus_are_shown_after_the_pods_are_gone():
    """Two ranks for each worker of two GPUs; nothing but the job's own record is left."""
    done = status("n0/0,3;n0/1,2;n7/4,5;n7/6,7")
    assert not done.instances
    assert table(done) == [
        "  RANKS  NODE  GPUS  WORKER",
        "  -----  ----  ----  ------",
        "  0-1    n0    0,3   demo-worker-0",
        "  2-3    n0    1,2   demo-worker-1",
        "  4-5    n7    4,5   demo-worker-2",
        "  6-7    n7    6,7   demo-worker-3",
    ]


def test_a_fused_pod_is_shown_with_all_its_ranks():
    assert table(status("n0/0,3,2,1;n7/4,5,6,7"))[2:] == [
        "  0-3    n0    0,3,2,1  demo-worker-0",
        "  4-7    n7    4,5,6,7  demo-worker-1",
    ]


def test_workers_that_claim_their_gpus_have_their_ranks_all_the_same():
    """No container asks for a GPU then."""
    job = status("n0/0,3;n7/1,2", request_gpus=0)
    assert [line.split()[0] for line in table(job)[2:]] == ["0-1", "2-3"]
    assert view.placement_value(job.forecast, slots=2)["workers"][1] == {
        "index": 1,
        "node": "n7",
        "gpus": [1, 2],
        "ranks": [2, 3],
    }


def test_where_the_kubelet_picks_the_gpus_the_ranks_come_from_the_request():
    job = status("n0/;n7/", request_gpus=8)
    assert [line.split()[:3] for line in table(job)[2:]] == [
        ["0-3", "n0", "N/A"],
        ["4-7", "n7", "N/A"],
    ]
    ranks = [one["ranks"] for one in view.job_value(job, now=0.0)["placement"]["workers"]]
    assert ranks == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_ranks_of_many_workers_share_a_row_for_each_node():
    many = ";".join(f"n{at // 8}/{at % 8}" for at in range(24))
    assert table(status(many, request_gpus=24))[2:] == [
        "  0-7    n0    0,1,2,3,4,5,6,7  demo-worker-0..7",
        "  8-15   n1    0,1,2,3,4,5,6,7  demo-worker-8..15",
        "  16-23  n2    0,1,2,3,4,5,6,7  demo-worker-16..23",
    ]


def test_what_a_plan_promises_is_what_the_job_shows_afterwards():
    world = cluster(node("a", V100), node("b", V100))
    job = MPIJob(
        name="demo", command="c", image="i", workers=4, gpus=4, gputopology=True, gang=True
    )
    made = plan(job, None, namespace="default", cluster=world)
    later = status("a/0", forecast=made.forecast, request_gpus=16, phase=Phase.FAILED)
    shown = view.placement_rows(made.forecast, "demo", slots=4).splitlines()[1:6]
    assert table(replace(later, instances=()))[:5] == [line.rstrip() for line in shown]
