"""place() against every placement there is, valued as a whole by the bandwidth model."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import by_brute_force as brute
import pytest
from cube_mesh import OFF_THE_SWITCH, P100, PCIE, V100, cluster, machine, matrix, node, with_nics
from exhaustive import all_but
from replacing import replace

from arena_topo.bandwidth import Host, Wire
from arena_topo.bandwidth.several_hosts import estimate
from arena_topo.solver import Reason, Request, Unplaceable, Verdict
from arena_topo.solver.classes import room
from arena_topo.solver.door import Solver, place
from arena_topo.solver.fragmentation import packing_cost
from arena_topo.solver.gpu_sets import gpu_sets
from arena_topo.solver.index import Index
from arena_topo.solver.search import best_choice, placement_of_choice
from arena_topo.topology import (
    NIC,
    Cluster,
    GPUSet,
    Link,
    LinkKind,
    Machine,
    MeasuredRate,
    Node,
    Plugin,
    PoolRates,
    Software,
    Tier,
    flat,
    gpu_set,
    members,
    symmetric,
)

SWITCH = machine("switch", "H100", flat(8, Link(kind=LinkKind.NVLINK, lanes=18)))
QUAD = machine("quad", "A100", flat(4, Link(kind=LinkKind.NVLINK, lanes=4)))
QUAD_H100 = machine("h100", "H100", flat(4, Link(kind=LinkKind.NVLINK, lanes=18)))
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
    replace(with_nics(SWITCH, 8, 50.0), software=Software(gdr=False)),
    replace(with_nics(QUAD, 2, 12.5), software=Software(plugin=Plugin.CXI)),
    replace(PCIE, software=Software(p2p=False)),
]

TRAY = machine("tray", "GB200", flat(4, Link(kind=LinkKind.NVLINK, lanes=18)))
TRAYS = [
    TRAY,
    with_nics(TRAY, 4, 50.0),
    with_nics(TRAY, 2, 50.0),
    with_nics(TRAY, 1, 12.5),
    uneven(TRAY),
]
"""Trays of an NVLink domain."""

FEW, MOST = 1_000, 4_000
"""Placements that are tried for one case, in every run and in the exhaustive one."""


def worlds(rng: random.Random) -> Cluster:
    """One to five nodes of one to three kinds, some busy, some opaque, in up to two tiers."""
    kinds = rng.sample(RAILS, rng.randint(1, 3))
    depth = rng.choice([0, 0, 1, 2])
    rates = sorted(rng.choice([1.0, 3.0, 12.5, 50.0, 200.0]) for _ in range(depth + 1))
    names = ("spine", "leaf")[2 - depth :]
    if depth and rng.random() < 0.4:
        kinds, names = rng.sample(TRAYS, rng.randint(1, 2)), (*names[:-1], "nvlink")
        kinds += rng.sample(RAILS, rng.choice([0, 0, 1]))
    given = [rate if rng.random() < 0.7 else None for rate in rates]
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
        if "nvlink" in names and of.model != TRAY.model:
            domains = (*domains[:-1], f"(n{at})")
        more: dict[str, object] = {}
        if rng.random() < 0.1:
            more["network"] = rng.choice([1.25, 25.0])
        if rng.random() < 0.3:
            more |= {"dedicated": True, "foreign": rng.random() < 0.3}
        elif rng.random() < 0.1:
            more["driver"] = "gpu.example.com"
        nodes.append(node(f"n{at}", of, free, unattributed=hidden, domains=domains, **more))
    tiers = tuple(
        Tier(name=name, bandwidth=rate) for name, rate in zip(names, given[1:], strict=True)
    )
    return cluster(*nodes, tiers=tiers, beyond=given[0])


def calibrated_worlds(rng: random.Random) -> Cluster:
    """The same; some nodes are of pools with measured bandwidths between their hosts.

    More of the nodes have a network of their own than in other worlds.
    """
    on = worlds(rng)
    rates = [0.5, 1.0, 3.0, 8.0, 20.0, 60.0]
    pools: dict[tuple[str | None, int], list[PoolRates | None]] = {}
    nodes: list[Node] = []
    for own in on.nodes:
        kind = (own.machine.model, len(own.machine.gpus))
        if kind not in pools:
            two, more = (rng.choice([None, *rates]) for _ in range(2))
            pool = PoolRates(
                name=f"pool-{len(pools)}",
                measured="2026-05-31, NCCL 2.21.5",
                model=kind[0],
                gpus=kind[1],
                wire=rng.choice(list(Wire)),
                two=None if two is None else MeasuredRate(two, 0.9 * two, 1.1 * two),
                more=None if more is None else MeasuredRate(more, 0.9 * more, 1.1 * more),
                each=rng.random() < 0.3,
                hosts=3,
            )
            pools[kind] = rng.choice([[pool], [pool, None]])
        software = replace(own.machine.software, pool=rng.choice(pools[kind]))
        machine = replace(own.machine, software=software)
        network = rng.choice([1.25, 5.0, 25.0]) if rng.random() < 0.3 else own.network
        nodes.append(replace(own, machine=machine, network=network))
    return replace(on, nodes=tuple(nodes))


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
        blind=rng.random() < 0.4,
    )


def check(seed: int, most: int = MOST, of: Callable[[random.Random], Cluster] = worlds) -> bool:
    """Whether a case was tried; AssertionError if the answer is not the best."""
    rng = random.Random(seed)
    on = of(rng)
    request = requests(rng, on)
    try:
        keys = list(brute.every(request, on, most))
    except ValueError:
        return False
    expected = brute.preferred(keys)
    if expected is None:
        assert best_choice(request, Index(on)) is None, seed
        # What a refusal says takes longer to check than the rest; see `test_solver_explain.py`.
        if most == MOST or not seed % 8:
            advised(Solver(on).explain(request), request, on, seed, most)
        return True
    answer = place(request, on)
    found = brute.answered(request, on, answer)
    assert replace(found, inside=0) == replace(expected, inside=0), (seed, found, expected)
    # Separate pods beside NVLink domains: what they would have as one host is not compared.
    outside = {node.machine.model for node in on.nodes} - {TRAY.model}
    beside = (
        request.mix_models
        and not request.joined
        and "nvlink" in {tier.name for tier in on.tiers}
        and outside
    )
    if answer.proof.optimal or not beside:
        assert found.inside == pytest.approx(expected.inside), seed
    assert -found.inside <= -expected.inside * (1 + 1e-9), seed
    point = answer.bandwidth.point if answer.bandwidth is not None else float("inf")
    assert point <= answer.proof.bound * (1 + 1e-9), seed
    if answer.proof.optimal and not answer.proof.rated:
        fastest = min(one.band for one in keys if one.reach <= expected.reach)
        assert brute.band(answer.proof.bound * (1 + 1e-9)) >= -fastest, seed
    if answer.proof.optimal and brute.band(point) > -expected.band:
        planned = brute.best(replace(request, blind=False), on)
        assert planned is not None
        assert -brute.band(point) == planned.band, seed
    workers = [(one.node, one.gpus) for one in answer.assignments]
    assert Solver(on).value(request, workers).bandwidth == answer.bandwidth, seed
    return True


def advised(
    refused: Unplaceable, request: Request, on: Cluster, seed: int, most: int = MOST
) -> None:
    """Fail where a refusal says "never" of what fits later, or advises what does not fit."""
    empty = on.idle()
    never = refused.verdict is Verdict.NEVER
    with suppress(ValueError):
        # Where the kubelet picks, a node with fewer free GPUs may promise more than an empty one.
        planned = replace(request, blind=False)
        assert (next(brute.every(planned, empty, most // 10), None) is None) is never, seed
    world = empty if never and "once all other jobs have ended" in (refused.nearest or "") else on
    for flag, number in re.findall(r"with --([a-z-]+) ([\d.]+)(?=,|;|$)", refused.nearest or ""):
        change = {flag.replace("-", "_"): float(number) if "." in number else int(number)}
        assert best_choice(replace(request, **change), Index(world)) is not None, (
            seed,
            refused.nearest,
        )


@pytest.mark.parametrize("of", [*RAILS, *TRAYS], ids=lambda of: of.name)
def test_gpus_that_may_change_places_are_valued_once(of):
    """What the brute force values instead of hosts is worth the same, whichever hosts they are."""
    rng = random.Random(1)
    other = replace(of, name="other")
    for _ in range(20):
        gpus = rng.sample(range(len(of.gpus)), rng.randint(2, len(of.gpus)))
        at = rng.randint(1, len(gpus) - 1)
        hosts = [gpu_set(gpus[:at]), gpu_set(gpus[at:])]
        pods = [(node("a", of), some) for some in hosts] + [(node("b", other), hosts[0])]
        request = Request(workers=3, gpus=1, wire=rng.choice(list(Wire)), joined=False)
        on = cluster(beyond=rng.choice([None, 3.0, 30.0]))
        network = brute.rate_of(1, on)
        whole = estimate(
            [Host.of(replace(own.machine, name=str(own.name)), some) for own, some in pods],
            wire=request.wire,
            network=network,
        )
        found = brute.value(pods, request, on, joined=False)
        for end in ("point", "low", "high"):
            assert getattr(found, end) == pytest.approx(getattr(whole, end))


def test_500_small_clusters_get_the_best_of_all_placements():
    tried = sum(check(seed, FEW) for seed in range(560))
    assert tried >= 500


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", range(1000, 12_000, 500))
def test_10000_small_clusters_get_the_best_of_all_placements(first: int):
    tried = sum(check(seed) for seed in range(first, first + 500))
    assert tried > 450


@pytest.mark.parametrize("first", all_but(1, range(0, 3_000, 200)))
def test_small_clusters_with_calibrated_pools_get_the_best_of_all_placements(first: int):
    """Also if some nodes of a gang are of a pool, and others are not."""
    cases = range(first, first + 200)
    assert sum(check(seed, FEW, calibrated_worlds) for seed in cases) > 180


def test_pods_beside_nvlink_domains_that_would_be_slower_as_one_host_are_not_called_proven():
    """Three nodes in each answer, equally fast for separate pods; joined, one of them is slower."""
    rng = random.Random(156_775)
    on = worlds(rng)
    request = requests(rng, on)
    answer, best = place(request, on), brute.best(request, on)
    assert len(answer.nodes) == best.nodes
    assert brute.band(answer.bandwidth.point) == -best.band
    assert answer.proof.optimal is (answer.inside.point == pytest.approx(-best.inside))


def test_the_slow_network_of_a_calibrated_node_limits_no_other_node():
    """It carries 46.9 GB/s of the 60 that were measured, and 43.6 where only the rate is known."""
    rail = with_nics(SWITCH, 8, 50.0)
    rate = MeasuredRate(60.0, 55.0, 65.0)
    pool = PoolRates(
        name="pool", measured="2026-05-31", model=rail.model, gpus=8, wire="rdma", two=rate, hosts=2
    )
    calibrated = replace(rail, software=replace(rail.software, pool=pool))
    slow = node("slow", calibrated, calibrated.everything, network=25.0)
    on = cluster(slow, node("plain", rail, rail.everything), beyond=400.0)
    request = Request(workers=2, gpus=8, wire=Wire.RDMA, min_bandwidth=45.0)
    answer = place(request, on)
    assert answer.bandwidth is not None
    assert answer.bandwidth.point == pytest.approx(46.875)
    assert answer.proof.bound == pytest.approx(46.875)


def test_of_nodes_in_one_band_those_with_the_faster_network_are_taken():
    assert check(8661)


def test_a_node_that_pins_takes_gpus_as_fast_as_those_planned_where_the_kubelet_picks():
    assert check(20261, FEW)


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


def test_a_slow_node_of_one_nvlink_domain_limits_the_parts_in_others_too():
    """So the other domain has to send from both of its nodes."""
    tray = with_nics(TRAY, 4, 25.0)
    free = {"a0": 0b0001, "a1": 0b1000, "b0": 0b1100, "b1": 0b0110}
    nodes = (
        node(
            name,
            tray,
            GPUSet(gpus),
            domains=(name[0],),
            **({"network": 1.25} if name == "b1" else {}),
        )
        for name, gpus in free.items()
    )
    on = cluster(*nodes, tiers=(Tier(name="nvlink", bandwidth=None),), beyond=200.0)
    request = Request(workers=5, gpus=1, wire=Wire.RDMA)
    answer = place(request, on)
    assert answer.bandwidth is not None
    assert answer.bandwidth.point == pytest.approx(answer.proof.bound)
    assert answer.proof.optimal
    assert answer.nodes == ("a0", "a1", "b0", "b1")
    expected = brute.best(request, on)
    assert replace(brute.answered(request, on, answer), inside=0) == replace(expected, inside=0)


def off_the_switch() -> Machine:
    """A tray whose first GPU does not reach the others over NVLink."""
    lanes = {(one, other): 18 for one in range(1, 4) for other in range(one + 1, 4)}
    return machine("tray", "GB200", matrix(4, lanes, otherwise=Link(kind=LinkKind.SYS)))


@pytest.mark.parametrize(
    "of", [replace(TRAY, software=Software(p2p=False)), off_the_switch()], ids=["no P2P", "a GPU"]
)
def test_trays_that_nvlink_does_not_join_take_a_gang_over_their_nics(of):
    tray = with_nics(of, 4, 25.0)
    nodes = (node(name, tray, domains=("rack",)) for name in ("a", "b"))
    on = cluster(*nodes, tiers=(Tier(name="nvlink"),), beyond=200.0)
    answer = place(Request(workers=8, gpus=1, wire=Wire.RDMA), on)
    assert answer.nodes == ("a", "b")
    assert answer.bandwidth is not None
    assert answer.bandwidth.point < 100


def test_a_tray_off_the_switch_takes_a_gang_with_a_tray_of_another_domain():
    off, tray = with_nics(off_the_switch(), 4, 25.0), with_nics(TRAY, 4, 25.0)
    nodes = (node("a", off, domains=("ra",)), node("b", tray, domains=("rb",)))
    on = cluster(*nodes, tiers=(Tier(name="nvlink"),), beyond=200.0)
    answer = place(Request(workers=8, gpus=1, wire=Wire.RDMA), on)
    assert answer.nodes == ("a", "b")
    assert answer.bandwidth.point <= answer.proof.bound


def test_a_busy_tray_does_not_lower_the_bound_of_other_nodes():
    other = with_nics(SWITCH, 4, 50.0)
    nodes = [node(f"n{at}", other, domains=(f"(n{at})",)) for at in range(2)]
    tray = node("t", TRAY, GPUSet(0), domains=("rack",))
    on = cluster(*nodes, tray, tiers=(Tier(name="nvlink"),), beyond=50.0)
    answer = place(Request(workers=2, gpus=8, wire=Wire.RDMA), on)
    assert answer.proof.optimal
    assert answer.proof.bound == pytest.approx(answer.bandwidth.point)


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
    tiers = (Tier(name="rack", bandwidth=12.3),)
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


def test_pods_share_the_given_network_of_a_node_of_unknown_nics_and_spread_for_it():
    on = cluster(
        *(node(f"n{at}", V100, domains=("l",)) for at in range(4)),
        tiers=(Tier(name="leaf", bandwidth=12.5),),
    )
    request = Request(workers=32, gpus=1, joined=False, wire=Wire.RDMA)
    answer = place(request, on)
    assert answer.bandwidth.point == pytest.approx(0.931 * 12.5 / 8)
    assert not answer.bandwidth.guess
    assert answer.proof.optimal
    assert not answer.proof.rated
    assert set(place(replace(request, workers=16), on).loads.values()) == {4}


@pytest.mark.parametrize(("speed", "left_out"), [(None, True), (12.5, False)])
def test_a_proof_says_that_it_leaves_out_networks_of_unknown_rate(speed, left_out):
    """Three pods of a node share its one NIC; on two nodes each would have more of one."""
    on = cluster(*(node(f"n{at}", with_nics(CARDS, 1, speed)) for at in range(3)))
    request = Request(workers=3, gpus=1, joined=False, wire=Wire.RDMA)
    answer = place(request, on)
    assert answer.proof.rated is left_out
    assert (len(answer.nodes) == 1) is left_out
    apart = brute.value([(own, GPUSet(1)) for own in on.nodes], request, on, joined=False)
    assert (apart.point > answer.proof.bound) is left_out
    assert not place(replace(request, max_nodes=1), on).proof.rated


def test_a_proof_leaves_out_unknown_nics_that_are_as_fast_as_those_of_one_known_node():
    """The known node needs a second one: a slow known one, or one whose NICs nobody knows."""
    speeds = {"fast": 12.5, "slow": 3.0, "unknown": None}
    on = cluster(*(node(name, with_nics(V100, 8, speed)) for name, speed in speeds.items()))
    request = Request(workers=2, gpus=8, wire=Wire.RDMA)
    answer = place(request, on)
    assert set(answer.nodes) == {"fast", "slow"}
    assert answer.proof.rated
    known = [own for own in on.nodes if own.name != "unknown"]
    assert not place(request, replace(on, nodes=tuple(known))).proof.rated


def test_a_gang_of_several_models_is_valued_and_proven_over_nvlink_domains_and_other_nodes():
    """Two trays of a domain are one host, of all their NICs; an H100 node is the second."""
    tray, other = with_nics(TRAY, 4, 50.0), with_nics(QUAD_H100, 4, 50.0)
    kinds = {"t0": tray, "t1": tray, "h": other}
    domains = {"t0": "d", "t1": "d", "h": "(h)"}
    tiers = (Tier(name="leaf", bandwidth=25.0), Tier(name="nvlink", bandwidth=845.0))
    on = cluster(
        *(node(name, of, domains=("l", domains[name])) for name, of in kinds.items()),
        tiers=tiers,
        beyond=10.0,
    )
    request = Request(workers=3, gpus=4, wire=Wire.RDMA, mix_models=True)
    answer = place(request, on)
    assert answer.proof.optimal
    assert answer.proof.bound == answer.bandwidth.point
    pods = [(one, one.free) for one in on.nodes]
    assert answer.bandwidth == brute.value(pods, request, on, joined=True)
    assert place(replace(request, min_bandwidth=answer.bandwidth.point), on).nodes == answer.nodes


def test_a_node_of_known_nics_comes_before_one_of_assumed_nics_that_might_be_faster():
    """Three pods, each with a NIC: 3.1 GB/s that somebody gave, or 12.5 that nobody did."""
    slow, unknown = with_nics(CARDS, 4, 3.125), with_nics(CARDS, 4, None)
    request = Request(workers=3, gpus=1, joined=False, wire=Wire.RDMA)
    answer = place(request, cluster(node("a", unknown), node("b", slow)))
    assert answer.nodes == ("b",)
    assert answer.proof.rated
    wanted = replace(request, min_bandwidth=10.0)
    assert place(wanted, cluster(node("a", unknown), node("b", slow))).nodes == ("a",)


@pytest.mark.parametrize(("rate", "nodes"), [(3.0, 1), (12.5, 1), (50.0, 2)])
def test_a_known_network_takes_a_gang_from_a_node_of_assumed_nics_only_if_it_is_faster(rate, nodes):
    unknown, known = with_nics(CARDS, 4, None), with_nics(CARDS, 4, rate)
    on = cluster(node("a", unknown), *(node(name, known, gpu_set((0, 1))) for name in "bc"))
    request = Request(workers=3, gpus=1, joined=False, wire=Wire.RDMA)
    assert len(place(request, on).nodes) == nodes


@pytest.mark.parametrize(("rate", "nodes"), [(3.0, 3), (12.5, 3), (50.0, 1)])
def test_pods_of_one_node_of_unknown_nics_send_the_given_rate_of_the_network_in_all(rate, nodes):
    """As on several nodes: three pods of a node get a third of it each, up to their PCIe ports."""
    on = cluster(*(node(f"n{at}", with_nics(CARDS, 4, None)) for at in range(3)), beyond=rate)
    request = Request(workers=3, gpus=1, joined=False, wire=Wire.RDMA)
    answer = place(request, on)
    assert len(answer.nodes) == nodes
    for own in (answer, place(replace(request, max_nodes=1), on)):
        sent = min(0.931 * rate * len(own.nodes) / 3, 12.0)
        assert own.bandwidth.point == pytest.approx(sent)
        assert not own.bandwidth.guess
        assert not own.proof.rated


@pytest.mark.parametrize("software", [Software(gdr=False), Software(plugin=Plugin.CXI)])
def test_equal_machines_with_other_software_are_valued_apart(software):
    fast = with_nics(SWITCH, 8, 50.0)
    slow = replace(fast, software=software)
    machines = {"a": slow, "b": slow, "c": fast, "d": fast}
    on = cluster(*(node(name, of) for name, of in machines.items()))
    answer = place(Request(workers=2, gpus=8, wire=Wire.RDMA), on)
    assert answer.nodes == ("c", "d")
    assert answer.bandwidth.point == pytest.approx(answer.proof.bound)


@pytest.mark.parametrize("seed", range(40))
def test_no_equally_fast_gpus_of_the_node_are_nearer_each_other(seed):
    rng = random.Random(seed)
    kinds = [LinkKind.PIX, LinkKind.PXB, LinkKind.PHB, LinkKind.NODE, LinkKind.SYS]
    tree = [rng.choice(kinds[2:4]), rng.choice(kinds[:3])]
    of = machine(
        "tree",
        "A100",
        symmetric(
            8,
            lambda i, j: Link(
                kind=LinkKind.SYS if i // 4 != j // 4 else tree[0] if i // 2 != j // 2 else tree[1]
            ),
        ),
    )
    free = gpu_set(rng.sample(range(8), rng.randint(3, 7)))
    request = Request(workers=1, gpus=rng.randint(2, 3))
    on = cluster(node("a", of, free))
    answer = place(request, on)
    chosen = answer.assignments[0].gpus
    for other in itertools.combinations(members(free), request.gpus):
        value = Solver(on).value(request, [("a", other)]).bandwidth
        if value.point >= answer.bandwidth.point:
            pods = [[(on.nodes[0], gpu_set(some))] for some in (chosen, other)]
            ours, others = (brute.nearness(one, request) for one in pods)
            assert ours <= others, seed


def box(rng: random.Random, name: str) -> Machine:
    """Six PCIe cards on two sockets, with two or three NICs on any paths."""
    kinds = [LinkKind.PIX, LinkKind.PXB, LinkKind.PHB, LinkKind.NODE, LinkKind.SYS]
    far, near = rng.choice(kinds[2:4]), rng.choice(kinds[:3])
    own = machine(
        name,
        "A100",
        symmetric(
            6,
            lambda i, j: Link(
                kind=LinkKind.SYS if i // 3 != j // 3 else far if 2 in {i % 3, j % 3} else near
            ),
        ),
    )
    nics = tuple(
        NIC(
            name=f"nic{at}",
            attachment=tuple(Link(kind=rng.choice(kinds)) for _ in range(6)),
            speed=25.0,
        )
        for at in range(rng.randint(2, 3))
    )
    return replace(own, nics=nics)


@pytest.mark.parametrize("first", all_but(1, range(0, 400, 20)))
def test_no_equally_fast_gpus_of_several_nodes_are_nearer_each_other_and_their_nics(first):
    """On each node of an answer, and on nodes that break as little instead of one of them."""
    tried = sum(nearest(seed) for seed in range(first, first + 20))
    assert tried > 4


def nearest(seed: int) -> bool:
    """Whether an answer is on several nodes; AssertionError if GPUs that are as good are nearer."""
    rng = random.Random(seed)
    boxes = [box(rng, name) for name in "ab"]
    nodes = [
        node(f"n{at}", rng.choice(boxes), gpu_set(rng.sample(range(6), rng.randint(2, 4))))
        for at in range(rng.randint(2, 4))
    ]
    on = cluster(*nodes, beyond=rng.choice([None, 12.5]))
    joined = rng.random() < 0.5
    request = Request(
        workers=rng.randint(3, 5),
        gpus=rng.choice([1, 2]) if joined else 1,
        joined=joined,
        wire=rng.choice([Wire.RDMA, Wire.TCP]),
    )
    try:
        answer = place(request, on)
    except Unplaceable:
        return False
    names = {one.name: one for one in nodes}
    pods = [(names[one.node], gpu_set(one.gpus)) for one in answer.assignments]
    if len(answer.nodes) == 1:
        return False
    ours = brute.key(pods, request, on)

    def instead(own: Node, other: Node) -> list[tuple[tuple[int, ...], int]]:
        """Nearness with other GPUs instead of those of a node, and the least that they break."""
        rest = [pod for pod in pods if pod[0] is not own]
        cost = packing_cost(gpu_sets(other.machine.configuration))
        found = []
        for [changed] in brute.ways(other, len(pods) - len(rest), request):
            key = brute.key([*rest, *changed], request, on)
            if replace(key, inside=round(key.inside, 6)) <= replace(
                ours, inside=round(ours.inside, 6)
            ):
                union = GPUSet(sum(gpus for _, gpus in changed))
                near = brute.nearness([*rest, *changed], request)
                found.append((near, cost.cost(other.free, union)))
        return found

    here = brute.nearness(pods, request)
    for own in {one.name: one for one, _ in pods}.values():
        on_it = instead(own, own)
        assert here <= min(on_it)[0], seed
        least = min(cost for _, cost in on_it)
        for other in nodes:
            found = [] if other.name in answer.nodes else instead(own, other)
            if found and min(cost for _, cost in found) == least:
                assert here <= min(found)[0], seed
    return True


# Laws that name no expected answer


def farther(seed: int) -> bool:
    """Whether a case was tried; AssertionError if the same pods are faster farther apart."""
    rng = random.Random(seed)
    on = worlds(rng)
    request = requests(rng, on)
    workers: list[tuple[str, tuple[int, ...]]] = []
    for own in on.nodes:
        gpus = rng.sample(range(len(own.machine.gpus)), len(own.machine.gpus))
        pods = zip(*[iter(gpus)] * request.gpus, strict=False)
        workers += [
            (own.name, tuple(sorted(pod))) for pod in itertools.islice(pods, rng.choice(LOADS))
        ]
    tiers = [at for at, tier in enumerate(on.tiers) if tier.name != "nvlink"]
    if len({name for name, _ in workers}) < 2 or not tiers:
        return False
    same = on.nodes[0].domains[: rng.choice(tiers) + 1]
    near = [replace(own, domains=(*same, *own.domains[len(same) :])) for own in on.nodes]
    apart = Solver(on).value(request, workers).bandwidth
    together = Solver(replace(on, nodes=tuple(near))).value(request, workers).bandwidth
    for end in ("point", "low", "high"):
        assert getattr(apart, end) <= getattr(together, end) * (1 + 1e-9), (seed, end)
    return True


LOADS = (0, 1, 2, 3, 4)
"""Pods of a node, whether its GPUs are free or not."""


@pytest.mark.parametrize("first", all_but(1, range(0, 20_000, 1_000)))
def test_no_network_is_faster_than_a_nearer_one_of_known_rate(first: int):
    """Not where pods of a node share NICs of unknown speed either."""
    tried = sum(farther(seed) for seed in range(first, first + 1_000))
    assert tried > 200


def exchanges(seed: int) -> None:
    """No exchange of a GPU, or of all GPUs of a node, betters an answer; its value is its own."""
    rng = random.Random(seed)
    on = worlds(rng)
    # Of GPUs that the kubelet picks, none can be exchanged.
    request = replace(requests(rng, on), blind=False)
    index = Index(on)
    found = best_choice(request, index)
    if found is None:
        return
    answer = placement_of_choice(request, index, found)
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
    key = brute.key(pods, request, on)
    words = ["node", *(tier.name for tier in reversed(on.tiers)), "beyond"]
    if request.required and key.distance > words.index(request.required):
        return
    fast = brute.fast([[[pod]] for pod in pods], request, on)
    if fast and replace(key, inside=round(key.inside, 6)) < replace(
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
    assert answer.bandwidth.point == pytest.approx(0.931 * 50)
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
    assert answer.inside.point == pytest.approx(86.4)


def test_a_tray_whose_gpus_do_not_reach_each_other_joins_the_others_as_hosts_of_its_own():
    """Its four pods, and the other tray as one host, are all there is for eight workers."""
    alone = replace(TRAY, software=Software(p2p=False))
    on = cluster(
        node("a", TRAY, domains=("rack",)),
        node("b", alone, domains=("rack",)),
        tiers=(Tier(name="nvlink", bandwidth=50.0),),
        beyond=12.5,
    )
    for joined in (True, False):
        found = Solver(on).find(Request(workers=8, gpus=1, joined=joined, wire=Wire.RDMA))
        assert found is not None
        assert found.nodes == ("a", "b")
        assert found.tier == "nvlink"
