"""place() against every placement there is, valued as a whole by the bandwidth model."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import by_brute_force as brute
import pytest
from cube_mesh import OFF_THE_SWITCH, P100, PCIE, V100, cluster, machine, matrix, node
from exhaustive import all_but

from arena_topo.bandwidth import Wire
from arena_topo.solver import Request, Unplaceable, place
from arena_topo.topology import NIC, Cluster, GPUSet, Link, LinkKind, Machine, Node, Tier, flat
from arena_topo.topology.instances import with_nics

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

MOST = 4_000
"""Placements that are tried for one case."""


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
        nodes.append(node(f"n{at}", of, free, hidden=hidden, domains=domains))
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


def check(seed: int) -> bool:
    """Whether a case was tried; AssertionError if the answer is not the best."""
    rng = random.Random(seed)
    on = worlds(rng)
    request = requests(rng, on)
    try:
        expected = brute.best(request, on, most=MOST)
    except ValueError:
        return False
    try:
        answer = place(request, on)
    except Unplaceable:
        assert expected is None, (seed, expected)
        return True
    assert expected is not None, seed
    found = brute.answered(request, on, answer)
    assert replace(found, inside=0) == replace(expected, inside=0), (seed, found, expected)
    assert found.inside == pytest.approx(expected.inside), seed
    point = answer.bandwidth.point if answer.bandwidth is not None else float("inf")
    assert point <= answer.proof.bound * (1 + 1e-9), seed
    return True


def test_500_small_clusters_get_the_best_of_all_placements():
    tried = sum(check(seed) for seed in range(560))
    assert tried >= 500


@pytest.mark.exhaustive
def test_10000_small_clusters_get_the_best_of_all_placements():
    tried = sum(check(seed) for seed in all_but(range(1000, 12_000)))
    assert tried
