"""place() against every placement there is, valued as a whole by the bandwidth model."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace

import by_brute_force as brute
import pytest
from cube_mesh import OFF_THE_SWITCH, P100, PCIE, V100, cluster, machine, matrix, node, with_nics
from exhaustive import all_but

from arena_topo.bandwidth import Wire
from arena_topo.solver import Reason, Request, Unplaceable, Verdict, place
from arena_topo.solver.classes import Index, room
from arena_topo.solver.gang import best, placement
from arena_topo.topology import (
    NIC,
    Cluster,
    GPUSet,
    Link,
    LinkKind,
    Machine,
    Node,
    Tier,
    flat,
    gpu_set,
    members,
)

SWITCH = machine("switch", "H100", flat(8, Link(kind=LinkKind.NVLINK, lanes=18)))
QUAD = machine("quad", "A100", flat(4, Link(kind=LinkKind.NVLINK, lanes=4)))
CARDS = replace(machine("cards", "T4", matrix(4, {})), pcie_generation=3)
BRIDGED = machine("bridged", "A100", matrix(4, {(0, 1): 12, (2, 3): 12}))
WEAK = machine(
    "weak",
    "H100",
    matrix(4, {pair: 18 if pair[0] else 9 for pair in itertools.combinations(range(4), 2)}),
)


def uneven(of: Machine) -> Machine:
    """A machine of which the NICs do not serve all GPUs alike."""
    size = len(of.gpus)
    near, far = Link(kind=LinkKind.PIX), Link(kind=LinkKind.SYS)
    served = [{0, 1}, {2}, set(range(3, size))]
    return replace(
        of,
        nics=tuple(
            NIC(
                name=f"nic{at}",
                attachment=tuple(near if gpu in some else far for gpu in range(size)),
                speed=25.0,
            )
            for at, some in enumerate(served)
        ),
    )


KINDS = [V100, P100, PCIE, SWITCH, OFF_THE_SWITCH, QUAD, CARDS, BRIDGED, WEAK]
RAILS = [
    *KINDS,
    with_nics(SWITCH, 8, 50.0),
    with_nics(SWITCH, 4, 50.0),
    with_nics(V100, 4, 12.5),
    with_nics(OFF_THE_SWITCH, 8, 25.0),
    with_nics(QUAD, 2, 12.5),
    with_nics(CARDS, 1, 3.125),
    uneven(SWITCH),
    uneven(V100),
    replace(QUAD, measured=((GPUSet(0b0011), 12.0), (GPUSet(0b1111), 300.0))),
]

FEW, MOST = 1_000, 4_000
"""Placements that are tried for one case, in every run and in the exhaustive one."""


def worlds(rng: random.Random) -> Cluster:
    """One to five nodes of one to three kinds, some busy, some opaque, in up to two tiers."""
    kinds = rng.sample(RAILS, rng.randint(1, 3))
    depth = rng.choice([0, 0, 1, 2])
    rates = sorted(rng.choice([1.0, 3.0, 12.5, 50.0, 200.0]) for _ in range(depth + 1))
    names = ("spine", "leaf")[2 - depth :]
    guesses = {name: "" for name in (*names, "beyond") if rng.random() < 0.3}
    nodes: list[Node] = []
    for at in range(rng.randint(1, 5)):
        of = rng.choice(kinds)
        size = len(of.gpus)
        few = rng.sample(range(size), rng.randint(0, min(size, 5)))
        free = GPUSet(sum(1 << gpu for gpu in few))
        hidden = rng.randint(1, len(few)) if few and rng.random() < 0.12 else 0
        domains = tuple(f"{name}{rng.randint(0, 1)}" for name in names)
        if depth == 2:
            domains = (domains[0], domains[0] + domains[1])
        nodes.append(node(f"n{at}", of, free, unattributed=hidden, domains=domains))
    tiers = tuple(
        Tier(name=name, bandwidth=rate) for name, rate in zip(names, rates[1:], strict=True)
    )
    return cluster(*nodes, tiers=tiers, beyond=rates[0], guesses=guesses)


def requests(rng: random.Random, on: Cluster) -> Request:
    """A gang of about as many GPUs as are free, in any shape and with some limits."""
    gpus = rng.choice([1, 1, 1, 2, 2, 3])
    words = ["node", *(tier.name for tier in on.tiers), "beyond"]
    return Request(
        workers=rng.randint(1, 6 // gpus + 1),
        gpus=gpus,
        joined=rng.random() < 0.5,
        wire=rng.choice([Wire.RDMA, Wire.TCP]),
        mix_models=rng.random() < 0.3,
        per_node=rng.choice([None, None, None, 1, 2]),
        max_nodes=rng.choice([None, None, None, 1, 2, 3]),
        min_bandwidth=rng.choice([0.0, 0.0, 0.0, 4.0, 10.0, 60.0]),
        required=rng.choice([None, None, None, rng.choice(words)]),
        preferred=rng.choice([None, None, None, rng.choice(words)]),
    )


def check(seed: int, most: int = MOST) -> bool:
    """Whether a case was tried; AssertionError if the answer is not the best."""
    rng = random.Random(seed)
    on = worlds(rng)
    request = requests(rng, on)
    try:
        expected = brute.best(request, on, most=most)
    except ValueError:
        return False
    if expected is None:
        # What a refusal says is tried in `test_solver_explain.py`.
        assert best(request, Index(on)) is None, seed
        return True
    answer = place(request, on)
    found = brute.answered(request, on, answer)
    assert replace(found, inside=0) == replace(expected, inside=0), (seed, found, expected)
    assert found.inside == pytest.approx(expected.inside), seed
    point = answer.bandwidth.point if answer.bandwidth is not None else float("inf")
    assert point <= answer.proof.bound * (1 + 1e-9), seed
    return True


def test_500_small_clusters_get_the_best_of_all_placements():
    tried = sum(check(seed, FEW) for seed in range(560))
    assert tried >= 500


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", range(1000, 12_000, 500))
def test_10000_small_clusters_get_the_best_of_all_placements(first: int):
    tried = sum(check(seed) for seed in range(first, first + 500))
    assert tried > 450


@pytest.mark.parametrize(("workers", "gpus", "loads"), [(3, 2, [1, 1, 1]), (5, 1, [1, 4])])
def test_slow_pairs_that_were_measured_spread_a_gang_or_gather_it(workers, gpus, loads):
    pairs = replace(QUAD, measured=((GPUSet(0b0011), 12.0), (GPUSet(0b1111), 300.0)))
    nodes = (
        node(f"n{at}", pairs, GPUSet(free)) for at, free in enumerate((0b1111, 0b1101, 0b1001))
    )
    request = Request(workers=workers, gpus=gpus, wire=Wire.RDMA)
    answer = place(request, cluster(*nodes))
    assert sorted(Counter(one.node for one in answer.assignments).values()) == loads
    assert answer.bandwidth is not None
    assert answer.bandwidth.point > 30


def test_a_refusal_does_not_take_two_nodes_of_joined_pods_for_three():
    pairs = replace(QUAD, measured=((GPUSet(0b0011), 12.0), (GPUSet(0b1111), 300.0)))
    nodes = (node(f"n{at}", pairs, GPUSet(free)) for at, free in enumerate((0b1111, 0b1101)))
    request = Request(workers=3, gpus=2, wire=Wire.RDMA, min_bandwidth=20.0)
    on = cluster(*nodes)
    with pytest.raises(Unplaceable) as refused:
        place(request, on)
    assert refused.value.verdict is Verdict.NEVER
    assert refused.value.refusals[0].reason is Reason.BANDWIDTH
    assert "--min-bandwidth 12" in (refused.value.nearest or "")
    assert place(replace(request, min_bandwidth=12.0), on).nodes == ("n0", "n1")


def test_no_placement_gives_more_than_the_bound_of_the_best_where_a_nearer_one_is_in_its_band():
    """Pairs of links on two nodes give a little more than four GPUs without a ring on one."""
    tiers = (Tier(name="rack", bandwidth=12.5),)
    free = {"a": 0b11100101, "b": 0b10011110}
    on = cluster(
        *(node(name, V100, GPUSet(some), domains=("r",)) for name, some in free.items()),
        tiers=tiers,
        beyond=6.0,
    )
    request = Request(workers=4, gpus=1, wire=Wire.RDMA)
    answer = place(request, on)
    assert answer.nodes == ("a",)
    assert answer.proof.optimal
    wide = [(on.nodes[0], 6), (on.nodes[0], 7), (on.nodes[1], 2), (on.nodes[1], 3)]
    pods = [(one, gpu_set((gpu,))) for one, gpu in wide]
    other = brute.value(pods, request, on, joined=True)
    assert answer.bandwidth.point < other.point <= answer.proof.bound


# Laws that name no expected answer


def exchanges(seed: int) -> None:
    """No exchange of a GPU, or of all GPUs of a node, betters an answer; its value is its own."""
    rng = random.Random(seed)
    on = worlds(rng)
    request = requests(rng, on)
    index = Index(on)
    found = best(request, index)
    if found is None:
        return
    answer = placement(request, index, found)
    if answer.bandwidth is not None:
        assert answer.bandwidth.point == pytest.approx(found.bandwidth), seed
    nodes = {one.name: one for one in on.nodes}
    if any(nodes[one.node].unattributed for one in answer.assignments):
        return
    ours = brute.answered(request, on, answer)
    pods = [(nodes[one.node], gpu_set(one.gpus)) for one in answer.assignments]
    taken = {
        name: gpu_set(gpu for one in answer.assignments if one.node == name for gpu in one.gpus)
        for name in nodes
    }
    for at, (own, gpus) in enumerate(pods):
        for gpu in members(gpus):
            for other in members(GPUSet(own.free & ~taken[own.name])):
                changed = [*pods]
                changed[at] = (own, GPUSet(gpus & ~(1 << gpu) | 1 << other))
                better(changed, ours, request, on, seed)
    for name in {one.node for one in answer.assignments}:
        many = [at for at, (own, _) in enumerate(pods) if own.name == name]
        for other in on.nodes:
            free = members(GPUSet(other.free & ~taken[other.name]))
            size = len(many) * request.gpus
            fits = taken[other.name] == 0 and room(request, other) >= len(many)
            alike = request.mix_models or other.machine.model == nodes[name].machine.model
            if fits and alike and not other.unattributed and len(free) >= size:
                changed = [*pods]
                for place, at in enumerate(many):
                    some = free[place * request.gpus : (place + 1) * request.gpus]
                    changed[at] = (other, gpu_set(some))
                better(changed, ours, request, on, seed)


def better(pods: brute.Pods, ours: brute.Key, request: Request, on: Cluster, seed: int) -> None:
    """Fail where other pods are allowed and better."""
    key, point = brute.key(pods, request, on)
    words = ["node", *(tier.name for tier in reversed(on.tiers)), "beyond"]
    if request.required and key.distance > words.index(request.required):
        return
    if point >= request.min_bandwidth and replace(key, inside=round(key.inside, 6)) < replace(
        ours, inside=round(ours.inside, 6)
    ):
        raise AssertionError((seed, key, ours))


@pytest.mark.parametrize("first", all_but(1, range(20_000, 21_000, 200)))
def test_no_exchange_of_a_gpu_or_of_a_node_betters_an_answer(first: int):
    for seed in range(first, first + 200):
        exchanges(seed)


def test_idle_h100_nodes_with_rdma_give_one_gpu_pods_the_highest_band_there_is():
    """Each pod has a NIC of its own wherever it is; of equal bands one node is nearest."""
    of = with_nics(SWITCH, 8, 50.0)
    on = cluster(*(node(f"h{at}", of) for at in range(4)), beyond=400.0)
    request = Request(workers=4, gpus=1, joined=False, wire=Wire.RDMA)
    answer = place(request, on)
    assert answer.bandwidth.point == pytest.approx(0.929 * 50)
    assert len(answer.nodes) == 1
    for loads in ((4,), (2, 2), (1, 1, 2), (1, 1, 1, 1)):
        gpus = itertools.count()
        pods = [
            (on.nodes[at], GPUSet(1 << next(gpus)))
            for at, load in enumerate(loads)
            for _ in range(load)
        ]
        found = brute.value(pods, request, on, joined=False)
        assert brute.band(found.point) <= brute.band(answer.bandwidth.point)


def test_four_one_gpu_pods_on_an_idle_dgx1_get_a_quad():
    answer = place(Request(workers=4, gpus=1, joined=False), cluster(node("a", V100)))
    assert {gpu for one in answer.assignments for gpu in one.gpus} in ({0, 1, 2, 3}, {4, 5, 6, 7})
    assert answer.inside.point == pytest.approx(76.8)
