"""Several domains at once: what decides between them, what a search cut short admits to.

Random clusters of up to 7 leaves against dynamic programming (dp_oracle.py); around them small
clusters made by hand, each for one comparison that random ones seldom turn on.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from dataclasses import astuple, replace

import pytest
from cube_mesh import HGX, PCIE, V100, V100_LANES, cluster, machine, matrix, node
from dp_oracle import best_worth
from exhaustive import all_but
from oracle import brute_force, sides

from arena_topo.solver import Policy, Request, Unplaceable, place
from arena_topo.solver.classes import Index, room
from arena_topo.solver.gang import best, value
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


def some_leaves(seed: int) -> tuple[Request, Cluster]:
    """Up to 7 leaves of up to 6 nodes, and a job for them."""
    dice = random.Random(seed)
    depth = dice.choice((1, 2, 2, 3))
    rates = [0.5] + [0.6] * depth
    if dice.random() < 0.7:
        rates = sorted(dice.choices((45.0, 80.0, 200.0, 12.5, 9.5), k=1 + depth))
    names = tiers(*rates[1:])
    kinds = dice.choice(
        (
            *((RING8,), (V100,), (RING6,), (HALVES,), (QUAD, RING6)),
            *((ONE, TWO), (FULL,), (PCIE,), (HALVES, TWO), (RING8, V100)),
        )
    )
    spines, each = dice.choice((2, 3)), dice.choice((1, 2, 3))
    shapes = []
    for _ in range(dice.choice((1, 2, 3, 6))):
        of = dice.choice(kinds)
        everything = dice.random() < 0.4
        shapes.append((of, of.everything if everything else dice.randrange(1 << len(of.gpus))))
    most = dice.choice((2, 4, 6))
    nodes: list[Node] = []
    for leaf in range(min(7, spines * each)):
        spine = leaf % spines
        path = (f"a{spine // 2}", f"b{spine}", f"c{leaf}")[3 - depth :]
        for _ in range(dice.randint(1, most)):
            of, free = dice.choice(shapes)
            cpu = dice.choice((None, None, 2.0, 4.0))
            hidden = int(free.bit_count() > 1 and dice.random() < 0.04)
            name = f"n{len(nodes)}"
            nodes.append(node(name, of, free, domains=path, cpu=cpu, hidden=hidden))
    on = cluster(*nodes, tiers=names, beyond=rates[0])
    request = Request(
        workers=1,
        gpus=dice.choice((1, 1, 2, 2, 3)),
        cpu=dice.choice((0, 0, 1.0)),
        mix_models=dice.random() < 0.2,
        min_bandwidth=dice.choice((0, 0, 0, 11.0, 40.0, 80.0)),
        max_nodes=dice.choice((None, None, None, None, 4, 8, 12)),
        policy=dice.choice((Policy.PACK, Policy.PACK, Policy.SPREAD)),
        required=dice.choice((*[None] * 8, *(tier.name for tier in names))),
    )
    fits = max((sum(most for _, most in side) for side in sides(request, on)), default=1)
    sizes = ((1, fits), (1, min(fits, 12)), (max(1, fits // 2), fits))
    workers = dice.choice([dice.randint(*size) for size in sizes])
    return replace(request, workers=max(1, min(30, workers))), on


def admits(request: Request, index: Index, expected: tuple, effort: int) -> str | None:
    """What a search cut short says is open; what comes before that must be the best there is."""
    found = best(request, index, effort=effort)
    assert found is not None
    reached = astuple(found.worth)
    known = {"domains": 4, "damage": 5, None: 7}[found.choice.open]
    assert reached[:known] == expected[:known], (effort, found.choice.open)
    assert reached >= expected
    return found.choice.open


def names(request: Request, on: Cluster) -> tuple[str, ...]:
    return place(request, on).nodes


# Against dynamic programming


@pytest.mark.parametrize("batch", all_but(1, range(4)))
def test_the_answer_is_the_best_and_one_cut_short_says_so_on_four_times_250_clusters(batch):
    dice = random.Random(batch)
    left: Counter[str | None] = Counter()
    for _ in range(250):
        request, on = some_leaves(dice.getrandbits(60))
        expected = best_worth(request, on)
        found = value(request, on)
        assert (None if found is None else astuple(found)) == expected
        if expected is not None and expected[3] > 1:
            index = Index(on)
            for effort in (0, dice.randrange(100), dice.randrange(1000)):
                left[admits(request, index, expected, effort)] += 1
    assert left[None] > 100
    assert left["domains"] > 20
    assert left["damage"] > 5


def test_dynamic_programming_and_trying_everything_agree():
    dice = random.Random(5)
    placed = 0
    for _ in range(600):
        request, on = some_leaves(dice.getrandbits(60))
        if len(on.nodes) <= 5 and request.policy is Policy.PACK:
            expected = brute_force(request, on)
            assert best_worth(request, on) == expected
            placed += expected is not None and expected[3] > 1
    assert placed > 20


@pytest.mark.parametrize("seed", [90600502598512817, 709610641912719305])
def test_what_an_earlier_domain_left_open_stays_open_where_a_later_one_wins(seed):
    """The search of one spine is cut short; another, whose answer is exact, looks better."""
    request, on = some_leaves(seed)
    expected = best_worth(request, on)
    assert expected is not None
    index = Index(on)
    left = Counter(admits(request, index, expected, effort) for effort in range(0, 1500, 3))
    assert left["domains"] > 100


# Loads with gaps


def test_a_domain_whose_loads_have_gaps_may_need_just_one_node_more():
    """A leaf that two nodes seem to cover needs three, as many as the leaf that looks worse."""
    request, on = some_leaves(1052027083076532665)
    expected = best_worth(request, on)
    found = value(request, on)
    assert found is not None
    assert astuple(found) == expected


GAPS = cluster(*(node(f"n{at}", RING6) for at in range(3)), beyond=20.0)
"""At 20 GB/s each node holds 1, 2 or 6 GPUs of a job, at PCIe speed any number."""


@pytest.mark.parametrize(
    ("limit", "bandwidth", "nodes"), [(None, 20.0, 3), (4, 20.0, 3), (3, 20.0, 3), (2, 9.0, 2)]
)
def test_nine_workers_on_rings_of_six_take_three_nodes_or_give_up_the_ring(limit, bandwidth, nodes):
    found = value(Request(workers=9, gpus=1, max_nodes=limit), GAPS)
    assert found is not None
    assert (-found.bandwidth, found.nodes) == (bandwidth, nodes)


def test_a_gang_that_gaps_keep_from_the_nodes_it_may_use_does_not_fit():
    with pytest.raises(Unplaceable):
        place(Request(workers=9, gpus=1, max_nodes=2, min_bandwidth=20.0), GAPS)


class TooMuchWork(AssertionError):
    """More calls than a search that gives up at once can need."""


def frugal_value(request: Request, on: Cluster, calls: int) -> float:
    """The best bandwidth; TooMuchWork after so many calls of functions, counted twice each."""
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
    return -found.bandwidth


@pytest.mark.parametrize(
    ("nodes", "pairs", "workers", "bandwidth"),
    [
        (8000, 1, 8001, 120.0),
        (8000, 1, 102, 80.0),
        (8000, 1, 2002, 80.0),
        (8000, 1, 16002, 80.0),
        (8000, 1, 16003, 80.0),
        (400, 2, 802, 120.0),
        (400, 2, 803, 80.0),
    ],
)
def test_loads_that_never_sum_up_are_given_up_without_trying_every_number_of_nodes(
    nodes, pairs, workers, bandwidth
):
    """At 120 GB/s a DGX-1 holds four pairs or none; the DGX-2 holds one or two, never three.

    Work is counted, not timed: some 20 calls for each node of 8000; trying every number of nodes
    takes more than ten million.
    """
    many = [node(f"n{at}", V100) for at in range(nodes)]
    on = cluster(*many, node("x", DGX2, (1 << 2 * pairs) - 1), beyond=200.0)
    request = Request(workers=workers, gpus=2)
    assert frugal_value(request, on, calls=60 * nodes + 100_000) == bandwidth


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


def test_less_room_broken_into_in_leaves_comes_before_less_of_it_in_spines():
    """Leaves of 2 in spines with much else free (4 and 20), or leaves of 3 in bare ones (6 and 6).

    What else is free there has no CPUs left, so that neither spine holds the gang alone.
    """
    nodes = []
    for spine in "ab":
        nodes += rack(f"{spine}/{spine}0", 2, ONE)
        nodes += rack(f"{spine}/{spine}1", 1, HGX, cpu=0.0)
    for spine in "cd":
        nodes += rack(f"{spine}/{spine}0", 3, ONE)
    on = cluster(*nodes, tiers=tiers(12.5, 12.5), beyond=6.0)
    request = Request(workers=4, gpus=1, cpu=1.0)
    found = value(request, on)
    assert found is not None
    assert found.broken == (4, 20)
    assert names(request, on) == ("a0-0", "a0-1", "b0-0", "b0-1")


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


# What a search cut short leaves open


def every_effort(request: Request, on: Cluster, most: int) -> list[str | None]:
    """What is open after every number of steps."""
    expected = best_worth(request, on)
    assert expected is not None
    index = Index(on)
    return [admits(request, index, expected, effort) for effort in range(most)]


def test_a_domain_not_looked_at_for_lack_of_effort_leaves_the_number_of_domains_open():
    """Spine a seems to need two leaves and needs three; b, which is searched later, needs two.

    Both pairs of a must be filled for the fewest nodes, and they are in leaves of their own. At
    just so many steps the search of a is complete and nothing is left for b.
    """
    nodes = [
        *rack("a/a0", 1, TWO),
        *rack("a/a1", 1, TWO),
        *rack("a/a2", 4, TWO, 0b1),
    ]
    for leaf in ("b0", "b1"):
        nodes += rack(f"b/{leaf}", 1, V100, cpu=2.0)
        nodes += [replace(one, name=f"{leaf}-1") for one in rack(f"b/{leaf}", 1, V100, cpu=1.0)]
    on = cluster(*nodes, tiers=tiers(12.5, 12.5), beyond=6.0)
    request = Request(workers=6, gpus=1, cpu=1.0)
    left = every_effort(request, on, 200)
    assert left[0] == "domains"
    assert left[-1] is None
    found = value(request, on)
    assert found is not None
    assert found.domains == (1, 2)


PAIR, LOOSE = 0b1001, 0b11001
"""Free GPUs of a DGX-1: two with a double NVLink, and the same with a third that has none."""


def near_best(name: str, of: Machine) -> list[Node]:
    """Two leaves hold four workers at the price of a pair; without regard to leaves it is none."""
    return [
        *rack(f"{name}0", 2, of, LOOSE, cpu=1.0),
        *rack(f"{name}1", 1, of, LOOSE, cpu=1.0),
        *(replace(one, name=f"{one.name}p") for one in rack(f"{name}1", 1, of, PAIR, cpu=1.0)),
        *rack(f"{name}2", 1, of, LOOSE, cpu=1.0),
    ]


def hidden_best(name: str, of: Machine) -> list[Node]:
    """The last two of eight leaves hold four workers at no price, which is found by searching.

    The leaves looked at first have less free, but a GPU taken there breaks a pair.
    """
    free = (LOOSE, LOOSE, PAIR, PAIR, PAIR, PAIR, LOOSE, LOOSE)
    return [
        one
        for at, some in enumerate(free)
        for one in rack(f"{name}{at}", 1 if at < 2 else 2, of, some, cpu=1.0)
    ]


FOUR = Request(workers=4, gpus=1, cpu=1.0)


def test_damage_left_open_in_one_spine_is_open_where_another_wins():
    nodes = [*near_best("a/a", V100), *hidden_best("b/b", V100)]
    on = cluster(*nodes, tiers=tiers(12.5, 12.5), beyond=6.0)
    assert names(FOUR, on) == ("b6-0", "b6-1", "b7-0", "b7-1")
    left = every_effort(FOUR, on, 300)
    assert "damage" in left
    assert left[-1] is None


def test_damage_left_open_for_one_gpu_model_is_open_where_another_wins():
    one, other = (
        machine(f"m-{name}", name, matrix(8, V100_LANES)) for name in ("V100-A", "V100-B")
    )
    nodes = [*near_best("a", one), *hidden_best("b", other)]
    on = cluster(*nodes, tiers=tiers(12.5), beyond=6.0)
    assert names(FOUR, on) == ("b6-0", "b6-1", "b7-0", "b7-1")
    left = every_effort(FOUR, on, 300)
    assert "damage" in left
    assert left[-1] is None


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
        classes.append(len(Index(on).supply(request).classes))
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
def test_machines_that_differ_in_nothing_but_what_is_near_are_told_apart(near, far, free):
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
