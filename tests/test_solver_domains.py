"""Several domains at once: what decides between them, and loads with gaps."""

from __future__ import annotations

import random
import sys
from collections import Counter

import pytest
from cube_mesh import HGX, V100, cluster, machine, matrix, node, value
from replacing import replace

from arena_topo.bandwidth import Wire
from arena_topo.solver import Policy, Request, Unplaceable
from arena_topo.solver.classes import groups_for, room
from arena_topo.solver.door import place
from arena_topo.solver.index import Index
from arena_topo.topology import (
    GPU,
    NIC,
    Cluster,
    Link,
    LinkKind,
    Machine,
    Node,
    Tier,
    flat,
)

SYS = Link(kind=LinkKind.SYS)


def ring(size: int, name: str) -> Machine:
    lanes = {(min(at, (at + 1) % size), max(at, (at + 1) % size)): 1 for at in range(size)}
    return machine(name, "V100", matrix(size, lanes, SYS))


QUAD = machine("quad", "V100", matrix(4, {(0, 1): 1, (1, 2): 2, (2, 3): 1, (0, 3): 2}))
RING6, RING8 = ring(6, "ring-6"), ring(8, "ring-8")
"""Six, or eight, GPUs close a ring of NVLinks, two have one, nothing between does."""
HALVES = machine(
    "halves", "V100", matrix(6, {(one, other): 1 for one in range(3) for other in (3, 4, 5)}, SYS)
)
"""Rings alternate between two halves: only even numbers of GPUs close one."""
ONE = machine("one", "V100", matrix(1, {}))
TWO = machine("two", "V100", matrix(2, {(0, 1): 1}))
FULL = machine("full", "V100", flat(4, Link(kind=LinkKind.NVLINK, lanes=2)))
DGX2 = machine("dgx-2", "V100", flat(16, Link(kind=LinkKind.NVLINK, lanes=6)))


def tiers(*rates: float) -> tuple[Tier, ...]:
    return tuple(Tier(name=f"t{at}", bandwidth=rate) for at, rate in enumerate(rates))


def names(request: Request, on: Cluster) -> tuple[str, ...]:
    return place(request, on).nodes


# Loads with gaps


GAPS = cluster(*(node(f"n{at}", RING6) for at in range(3)), beyond=40.0)
"""At NVLink's speed each node holds 1, 2 or 6 GPUs of a job, at PCIe's any number."""


@pytest.mark.parametrize(("limit", "rings"), [(None, 3), (4, 3), (3, 3), (2, 2)])
def test_nine_workers_on_rings_of_six_take_three_nodes_or_give_up_the_ring(limit, rings):
    answer = place(Request(workers=9, gpus=1, max_nodes=limit, wire=Wire.RDMA), GAPS)
    assert len(answer.nodes) == rings
    # With three nodes the PCIe port of the ninth GPU is the limit, and not a host without a ring.
    assert (answer.bandwidth.point == pytest.approx(12.0)) is (rings == 3)


def test_a_gang_that_gaps_keep_from_the_nodes_it_may_use_does_not_fit():
    with pytest.raises(Unplaceable):
        place(Request(workers=9, gpus=1, max_nodes=2, min_bandwidth=20.0, wire=Wire.RDMA), GAPS)


class TooMuchWork(AssertionError):
    """More calls than a search that gives up at once can need."""


def frugal_value(request: Request, on: Cluster, calls: int) -> int:
    """The nodes of the best choice; TooMuchWork after so many calls, counted twice each."""
    left = 2 * calls

    def count_one(*_: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise TooMuchWork

    before = sys.getprofile()
    sys.setprofile(count_one)
    try:
        found = value(request, on)
    finally:
        sys.setprofile(before)
    assert found is not None
    return found.nodes


@pytest.mark.parametrize(
    ("nodes", "pairs", "workers"),
    [
        (8000, 1, 8001),
        (8000, 1, 16003),
        (400, 2, 803),
        pytest.param(8000, 1, 102, marks=pytest.mark.exhaustive),
        pytest.param(8000, 1, 2002, marks=pytest.mark.exhaustive),
        pytest.param(8000, 1, 16002, marks=pytest.mark.exhaustive),
        pytest.param(400, 2, 802, marks=pytest.mark.exhaustive),
    ],
)
def test_loads_that_never_sum_up_are_given_up_without_trying_every_number_of_nodes(
    nodes, pairs, workers
):
    """As fast as it can be a DGX-1 holds four pairs or none; the DGX-2 one or two, never three.

    Work is counted, not timed: some 20 calls for each node of 8000; trying every number of nodes
    takes more than ten million.
    """
    many = [node(f"n{at}", V100) for at in range(nodes)]
    on = cluster(*many, node("x", DGX2, (1 << 2 * pairs) - 1), beyond=200.0)
    request = Request(workers=workers, gpus=2, wire=Wire.RDMA)
    assert frugal_value(request, on, calls=150 * nodes + 800_000) >= workers // 4


# What decides between domains


def rack(name: str, many: int, of: Machine, free: int | None = None, **more: object) -> list[Node]:
    """So many equal nodes in the leaf whose path is spelled `spine/leaf`."""
    path = tuple(name.split("/"))
    return [node(f"{path[-1]}-{at}", of, free, domains=path, **more) for at in range(many)]


def test_two_spines_with_twelve_leaves_beat_three_spines_with_three():
    nodes = [
        one for spine in "ab" for at in range(6) for one in rack(f"{spine}/{spine}{at}", 1, HGX)
    ]
    nodes += [one for spine in "cde" for one in rack(f"{spine}/{spine}0", 4, HGX)]
    on = cluster(*nodes, tiers=tiers(12.5, 12.5), beyond=6.0)
    found = value(Request(workers=12, gpus=8), on)
    assert found is not None
    assert found.domains == (2, 12)


def test_two_leaves_of_untouched_machines_beat_four_leaves_of_broken_ones():
    """However much harm it does, a gang enters as few leaves as it can."""
    nodes = [one for leaf in "ab" for one in rack(leaf, 2, V100, cpu=1.0)]
    nodes += [one for leaf in "cdef" for one in rack(leaf, 1, V100, 0b1)]
    on = cluster(*nodes, tiers=tiers(12.5), beyond=6.0)
    assert names(Request(workers=4, gpus=1, cpu=1.0), on) == ("a-0", "a-1", "b-0", "b-1")


def test_a_machine_with_more_room_than_the_others_is_left_alone_where_they_suffice():
    """Eight workers on four machines: four pairs in rack b, whose fifth machine is whole.

    Filling the largest first would take three GPUs of that one, and rack a would look better.
    """
    nodes = [
        *rack("a", 4, V100, 0b1111, cpu=2.0),
        *rack("b", 1, V100, cpu=3.0),
        *(replace(one, name=f"c-{at}") for at, one in enumerate(rack("b", 4, V100, 0b1001))),
    ]
    on = cluster(*nodes, tiers=tiers(12.5), beyond=6.0)
    request = Request(workers=8, gpus=1, cpu=1.0)
    assert names(request, on) == ("c-0", "c-1", "c-2", "c-3")


def test_of_equal_leaves_the_first_are_filled_by_name():
    nodes = [node(f"n{at}", HGX, domains=(f"l{at // 4}",)) for at in range(12)]
    on = cluster(*nodes, tiers=tiers(12.5), beyond=6.0)
    assert names(Request(workers=5, gpus=8), on) == ("n0", "n1", "n2", "n3", "n4")


# What a node has room for


@pytest.mark.parametrize(
    ("cpu", "each", "workers"), [(0.3, 0.1, 3), (0.1 + 0.2, 0.1, 3), (0.7, 0.1, 7), (0.29, 0.1, 2)]
)
def test_tenths_of_a_cpu_are_counted_as_written(cpu, each, workers):
    one = node("a", HGX, cpu=cpu)
    assert room(Request(workers=1, gpus=1, cpu=each), one) == workers


def test_three_workers_of_a_tenth_of_a_cpu_fit_on_three_tenths():
    on = cluster(node("a", HGX, cpu=0.3), node("b", HGX, cpu=0.2), beyond=6.0)
    assert names(Request(workers=3, gpus=1, cpu=0.1), on) == ("a",)


GIB = 1 << 30


def test_memory_bounds_the_workers_of_a_node_to_the_byte():
    on = cluster(node("a", HGX, memory=6 * GIB - 1), node("b", HGX, memory=6 * GIB), beyond=6.0)
    request = Request(workers=3, gpus=1, memory=2 * GIB)
    assert names(request, on) == ("b",)
    held = Counter(one.node for one in place(replace(request, workers=5), on).assignments)
    assert held == {"a": 2, "b": 3}
    with pytest.raises(Unplaceable):
        place(replace(request, workers=6), on)


# Thousands of nodes


def test_nodes_whose_gpus_have_names_of_their_own_are_spread_like_nodes_that_share_them():
    """Every node of a cluster reports its own UUIDs, links and NICs."""
    dice = random.Random(8)
    kinds = [wired(0), wired(1)]
    shared = [
        node(f"n{at}", dice.choice(kinds), dice.randrange(1, 256), domains=(f"l{at // 16}",))
        for at in range(2000)
    ]
    own = [replace(one, machine=apart(one.machine, one.name)) for one in shared]
    request = Request(workers=50, gpus=1, policy=Policy.SPREAD)
    answers, classes = [], []
    for nodes in (shared, own):
        on = cluster(*nodes, tiers=tiers(25.0), beyond=12.5)
        answers.append(place(request, on))
        classes.append(len(groups_for(request, Index(on)).candidates(request).classes))
    assert answers[0] == answers[1]
    assert classes[0] == classes[1] < 2 * 256


def wired(first: int) -> Machine:
    """Pairs of GPUs share a switch with a NIC, from this GPU on."""
    kinds = [[LinkKind.SYS] * 8 for _ in range(4)]
    for gpu in range(8):
        kinds[gpu // 2][(gpu + first) % 8] = LinkKind.PIX
    nics = tuple(
        NIC(name=f"mlx5_{at}", attachment=tuple(Link(kind=kind) for kind in row))
        for at, row in enumerate(kinds)
    )
    return replace(HGX, nics=nics)


def socketed(*numas: int) -> Machine:
    """GPUs on these NUMA nodes."""
    gpus = zip(HGX.gpus, numas, strict=True)
    return replace(HGX, gpus=tuple(replace(gpu, numa=numa) for gpu, numa in gpus))


@pytest.mark.parametrize(
    ("near", "far", "free"),
    [
        (wired(1), wired(0), 0b11),
        (socketed(0, 1, 0, 1, 0, 1, 0, 1), socketed(0, 0, 0, 0, 1, 1, 1, 1), 0b1111),
    ],
    ids=["switches", "sockets"],
)
def test_machines_that_differ_only_in_proximity_are_distinct(near, far, free):
    """All free GPUs are taken of either; of `far` none is near a GPU in use."""
    on = cluster(node("a", near, free), node("b", far, free), beyond=6.0)
    request = Request(workers=1, gpus=free.bit_count(), policy=Policy.SPREAD)
    assert names(request, on) == ("b",)


def apart(of: Machine, name: str) -> Machine:
    """The same machine as another document would have it: nothing of it is shared."""
    return replace(
        of,
        gpus=tuple(
            GPU(index=gpu.index, model=gpu.model, uuid=f"{name}-{gpu.index}") for gpu in of.gpus
        ),
        links=tuple(row for row in of.links),
        nics=tuple(replace(nic) for nic in of.nics),
    )
