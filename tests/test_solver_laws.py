"""Laws that hold for every answer, whatever the cluster; and what peers choose instead."""

from __future__ import annotations

import itertools
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from fractions import Fraction
from pathlib import Path

import pytest
from by_brute_force import sides
from cube_mesh import P100, V100, cluster, machine, matrix, node, on_a_switch, value
from hypothesis import given, settings
from hypothesis import strategies as st
from replacing import replace

from arena_topo.bandwidth import Wire, packing
from arena_topo.solver import Request, Unplaceable
from arena_topo.solver.door import place
from arena_topo.solver.gpu_sets import GPUSets
from arena_topo.topology import (
    ORDINARY,
    PUBLISHED,
    Cluster,
    GPUSet,
    Link,
    LinkKind,
    Machine,
    Node,
    NodeName,
    Tier,
    count,
    flat,
    gpu_set,
    members,
)

sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))

import peers

RING = machine("ring", "V100", matrix(4, {(0, 1): 1, (1, 2): 2, (2, 3): 1, (0, 3): 2}))
"""Four GPUs close a ring of NVLinks, three do not."""
PAIRS = machine("pairs", "V100", matrix(4, {(0, 1): 2, (2, 3): 2}, Link(kind=LinkKind.NODE)))
FLAT = machine("flat", "V100", matrix(3, {}, Link(kind=LinkKind.PHB)))
FULL = machine("full", "V100", flat(4, Link(kind=LinkKind.NVLINK, lanes=2)))
UNEVEN = machine("uneven", "V100", matrix(6, dict.fromkeys(itertools.combinations(range(4), 2), 2)))
"""Four GPUs of six are joined by NVLink: a slow pair does less harm than a fast one."""
OFF, WEAK, WHOLE = on_a_switch(4, 0), on_a_switch(4, 14), on_a_switch(4, 18)
"""Behind an NVSwitch; of one machine a GPU is off it, of one it has fewer links to it."""
OTHER = machine("other", "P100", matrix(4, {(0, 1): 1, (0, 2): 1, (0, 3): 1, (1, 2): 1}))
RATES = (1.25, 6.0, 9.5, 10.0, 12.5, 20.0, 45.0)


def network(dice: random.Random) -> tuple[tuple[Tier, ...], float]:
    """Up to three tiers that never get slower going near, and what is beyond them."""
    beyond, *rates = sorted(dice.choices(RATES, k=1 + dice.choice((0, 1, 2, 2, 3))))
    return tuple(Tier(name=f"t{at}", bandwidth=rate) for at, rate in enumerate(rates)), beyond


def small(dice: random.Random, most: int = 5) -> tuple[Request, Cluster]:
    """A few small nodes in a network, and a job for them that often fits."""
    tiers, beyond = network(dice)
    kinds = dice.choice(
        (
            *((RING,), (UNEVEN,), (RING, UNEVEN), (RING, PAIRS, FLAT, FULL), (UNEVEN, FULL, OTHER)),
            (OFF, WEAK, WHOLE),
        )
    )
    nodes = []
    for at in range(min(most, dice.choice((2, 3, 4, 5, 5)))):
        of = dice.choice(kinds)
        free = of.everything if dice.random() < 0.4 else dice.randrange(1 << len(of.gpus))
        path = [dice.choice("ab")]
        for _ in tiers[1:]:
            path.append(path[-1] + dice.choice("ab"))
        nodes.append(
            node(
                f"n{at}",
                of,
                free,
                unattributed=dice.randint(0, free.bit_count()) if dice.random() < 0.12 else 0,
                cpu=dice.choice((None, None, None, 1.0, 2.0)),
                unavailable="cordoned" if dice.random() < 0.06 else None,
                resource=PUBLISHED if dice.random() < 0.05 else ORDINARY,
                domains=tuple(path[: len(tiers)]),
            )
        )
    return asked(dice, cluster(*nodes, tiers=tiers, beyond=beyond), (1, 1, 1, 2, 2, 3), (1, 2, 3))


def asked(
    dice: random.Random,
    on: Cluster,
    gpus: Sequence[int],
    node_limits: Sequence[int],
    most: int = 99,
) -> tuple[Request, Cluster]:
    """A job for a cluster that is as large as fits, or smaller, or one worker too large."""
    levels = ("node", *(tier.name for tier in on.tiers), "beyond")
    request = Request(
        workers=1,
        gpus=dice.choice(gpus),
        cpu=dice.choice((0.0, 0.0, 0.0, 0.0, 1.0)),
        mix_models=dice.random() < 0.2,
        min_bandwidth=dice.choice((*[0.0] * 8, 5.0, 11.0)),
        max_nodes=dice.choice((*[None] * 4 * len(node_limits), *node_limits)),
        required=dice.choice((*[None] * 16, *levels)),
        preferred=dice.choice((*[None] * 6, *levels)),
        joined=dice.random() < 0.5,
        wire=dice.choice(list(Wire)),
    )
    rooms = (sum(room for _, room in side) for side in sides(request, on))
    fits = min(most, max(rooms, default=1))
    workers = dice.choice((dice.randint(1, fits), dice.randint(fits // 2, fits), fits))
    return replace(request, workers=max(1, workers + (dice.random() < 0.05))), on


def worth(request: Request, on: Cluster) -> tuple | None:
    found = value(request, on)
    return None if found is None else astuple(found)


def free_one_more(dice: random.Random) -> None:
    """A job before and after a GPU became free: it fits if it did, and is no slower."""
    request, on = small(dice)
    request = replace(request, preferred=None)
    before = value(request, on)
    if before is None:
        return
    at = dice.randrange(len(on.nodes))
    one = on.nodes[at]
    freed = (
        replace(one, unattributed=one.unattributed - 1)
        if one.unattributed
        else replace(one, free=GPUSet(one.free | 1 << dice.randrange(len(one.machine.gpus))))
    )
    after = value(request, replace(on, nodes=(*on.nodes[:at], freed, *on.nodes[at + 1 :])))
    assert after is not None
    # What rests on a network of known rate comes first, then the bandwidth. A single node over
    # assumed NICs comes before several nodes of a known network that are no faster.
    instead = after.nodes == 1 < before.nodes
    own = replace(after, assumed=after.assumed and not instead)
    assert astuple(own)[:5] <= astuple(before)[:5]


@given(st.randoms(use_true_random=False))
def test_freeing_a_gpu_anywhere_never_makes_a_job_slower(dice):
    free_one_more(dice)


@pytest.mark.exhaustive
def test_freeing_a_gpu_never_makes_a_job_slower_in_three_thousand_seeded_clusters():
    dice = random.Random(6)
    for _ in range(3000):
        free_one_more(dice)


@settings(max_examples=2 * settings.default.max_examples)
@given(st.randoms(use_true_random=False))
def test_other_names_for_nodes_and_domains_change_nothing_but_names(dice):
    request, on = small(dice)
    numbers = dice.sample(range(100), len(on.nodes))
    renamed = [
        replace(
            one,
            name=NodeName(f"m{number}"),
            domains=tuple("".join("xy"["ab".index(letter)] for letter in name) for name in paths),
        )
        for one, number, paths in zip(
            on.nodes, numbers, (one.domains for one in on.nodes), strict=True
        )
    ]
    dice.shuffle(renamed)
    again = replace(on, nodes=tuple(renamed))
    assert worth(request, again) == worth(request, on)


def test_names_in_the_same_order_give_the_same_places():
    dice = random.Random(5)
    for _ in range(50):
        request, on = small(dice)
        longer = tuple(replace(one, name=NodeName(f"gpu-{one.name}")) for one in on.nodes)
        again = replace(on, nodes=longer)
        try:
            expected = place(request, on)
        except Unplaceable:
            with pytest.raises(Unplaceable):
                place(request, again)
            continue
        answer = place(request, again)
        assert [(one.node, one.gpus) for one in answer.assignments] == [
            (f"gpu-{one.node}", one.gpus) for one in expected.assignments
        ]


def automorphisms(of: Machine) -> Iterator[tuple[int, ...]]:
    """Every relabelling of the GPUs that leaves the link matrix as it is."""

    def extended(image: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        at = len(image)
        if at == len(of.gpus):
            yield image
            return
        for gpu in range(len(of.gpus)):
            if gpu not in image and all(
                of.links[at][one] == of.links[gpu][other] for one, other in enumerate(image)
            ):
                yield from extended((*image, gpu))

    yield from extended(())


def test_a_dgx1_v100_looks_the_same_from_four_sides_and_has_76_kinds_of_free_sets():
    """The 256 free sets fall into 76 orbits."""
    every = list(automorphisms(V100))
    assert len(every) == 4
    orbits = {
        min(gpu_set(image[gpu] for gpu in members(GPUSet(bits))) for image in every)
        for bits in range(256)
    }
    assert len(orbits) == 76


def test_relabelling_gpus_by_a_symmetry_changes_no_value():
    for of in (V100, P100):
        some = list(automorphisms(of))[:6]
        for bits in range(1, 256):
            free = GPUSet(bits)
            images = {gpu_set(image[gpu] for gpu in members(free)) for image in some} - {free}
            for size in range(1, count(free) + 1):
                request = Request(workers=1, gpus=size)
                expected = value(request, cluster(node("a", of, free)))
                for image in images:
                    assert value(request, cluster(node("a", of, image))) == expected


@given(st.randoms(use_true_random=False))
def test_relabelling_the_gpus_of_all_nodes_does_not_change_the_objective(dice):
    request, on = small(dice)
    nodes: list[Node] = []
    for one in on.nodes:
        image = dice.choice(list(automorphisms(one.machine)))
        nodes.append(replace(one, free=gpu_set(image[gpu] for gpu in members(one.free))))
    assert worth(request, replace(on, nodes=tuple(nodes))) == worth(request, on)


# The bound of linear programming


def fractional_rings(lanes: Sequence[Sequence[int]], gpus: Sequence[int]) -> Fraction:
    """The most rings through all these GPUs when rings may be used in part."""
    rings = [
        {tuple(sorted(pair)) for pair in itertools.pairwise((gpus[0], *order, gpus[0]))}
        for order in itertools.permutations(gpus[1:])
        if order[0] < order[-1]
        and lanes[gpus[0]][order[0]]
        and lanes[gpus[0]][order[-1]]
        and all(lanes[one][other] for one, other in itertools.pairwise(order))
    ]
    pairs = sorted(set().union(*rings))
    rows = [[int(pair in ring) for ring in rings] for pair in pairs]
    return largest_sum(rows, [lanes[one][other] for one, other in pairs])


def largest_sum(rows: list[list[int]], limits: list[int]) -> Fraction:
    """The largest sum of numbers from 0 on, of which no row's sum exceeds its limit.

    The simplex method with Bland's rule, which never goes in circles, on whole numbers over one
    denominator (Cormen et al., Introduction to Algorithms, chapter 29; Edmonds 1994).
    """
    size = len(rows)
    table = [
        [*row, *(int(at == own) for own in range(size)), limit]
        for at, (row, limit) in enumerate(zip(rows, limits, strict=True))
    ]
    table.append([*([-1] * len(rows[0] if rows else [])), *([0] * (size + 1))])
    basis = [len(table[-1]) - 1 - size + at for at in range(size)]
    denominator = 1
    while (enters := next((at for at, cost in enumerate(table[-1][:-1]) if cost < 0), -1)) >= 0:
        _, _, leaves = min(
            (Fraction(table[at][-1], table[at][enters]), basis[at], at)
            for at in range(size)
            if table[at][enters] > 0
        )
        basis[leaves], pivot = enters, table[leaves][enters]
        for at, row in enumerate(table):
            if at != leaves:
                factor = row[enters]
                table[at] = [
                    (pivot * one - factor * other) // denominator
                    for one, other in zip(row, table[leaves], strict=True)
                ]
        denominator = pivot
    return Fraction(table[-1][-1], denominator)


def rings(of: Machine, gpus: Sequence[int]) -> tuple[int, Fraction]:
    """The rings packed through these GPUs, and the most that any packing has."""
    lanes = packing.lanes(of.links)
    return packing.most_rings(lanes, gpu_set(gpus)), fractional_rings(lanes, gpus)


def test_every_set_of_a_dgx1_v100_has_as_many_rings_as_its_linear_bound():
    for size in range(3, 9):
        for gpus in itertools.combinations(range(8), size):
            packed, most = rings(V100, gpus)
            assert packed == most


def test_no_set_of_a_dgx1_p100_has_more_rings_than_its_linear_bound():
    """Where the bound is 1.5 rings, whole rings reach 1: 2 sets of 4, 4 of 6 and 8 of 7 GPUs."""
    short: Counter[int] = Counter()
    for size in range(3, 9):
        for gpus in itertools.combinations(range(8), size):
            packed, most = rings(P100, gpus)
            assert packed <= most
            if packed < most:
                assert (packed, most) == (1, 1.5)
                short[size] += 1
    assert short == {4: 2, 6: 4, 7: 8}


@given(
    st.integers(3, 6).flatmap(
        lambda size: st.fixed_dictionaries(
            {pair: st.integers(0, 3) for pair in itertools.combinations(range(size), 2)}
        ).map(lambda lanes: machine("mesh", "Mystery", matrix(size, lanes)))
    )
)
def test_no_set_of_any_mesh_has_more_rings_than_its_linear_bound(mesh):
    for size in range(3, len(mesh.gpus) + 1):
        for gpus in itertools.combinations(range(len(mesh.gpus)), size):
            packed, most = rings(mesh, gpus)
            assert packed <= most


# Peers


@pytest.mark.parametrize("name", peers.SETS)
def test_no_other_choice_of_gpus_is_faster_on_any_free_set_of_a_dgx1_v100(name):
    sets = GPUSets(V100.configuration)
    below = 0
    for bits in range(256):
        for size in range(2, bits.bit_count() + 1):
            chosen = peers.SETS[name](V100, GPUSet(bits), size)
            assert count(chosen) == size
            assert not chosen & ~bits
            request = Request(workers=1, gpus=size)
            ours = place(request, cluster(node("a", V100, bits))).bandwidth.point
            assert sets.value(chosen) <= ours
            below += sets.value(chosen) < ours
    # Of 769 cases; with NVIDIA's own code and with re-implementations of the others.
    print(name, below)
    assert below > 0
