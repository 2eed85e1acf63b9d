"""What a placement is worth: which GPUs are one host, over what wire, at which rate."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from cube_mesh import HGX, V100, cluster, node, with_nics

from arena_topo.bandwidth import Estimate, Host, Limit, Regime, Wire
from arena_topo.bandwidth.one_host import inside
from arena_topo.bandwidth.several_hosts import estimate
from arena_topo.forecast import ForecastRequest
from arena_topo.forecast.forecasting import forecast
from arena_topo.job import PodShape
from arena_topo.solver import Placement, Request, Unplaceable
from arena_topo.solver.door import Solver, place, revalue
from arena_topo.topology import Cluster, GPUSet, Machine, NodeName, Tier, gpu_set, presets

H100 = with_nics(presets.preset_machine("hgx-h100", "h"), 8, 50.0)
BARE = presets.preset_machine("hgx-h100", "h")


def placed(world: Cluster, workers: int, gpus: int, **more: object) -> Placement:
    return place(Request(workers=workers, gpus=gpus, **more), world)


def got(world: Cluster, workers: int, gpus: int, **more: object) -> Estimate:
    found = placed(world, workers, gpus, **more).bandwidth
    assert found is not None
    return found


ONE = cluster(node("a", H100))


def test_separate_pods_of_one_node_are_hosts_of_their_own():
    apart = placed(ONE, 4, 1, joined=False)
    assert apart.bandwidth == estimate(
        [Host.of(replace(H100, name="a"), GPUSet(1 << gpu)) for gpu in range(4)], wire=Wire.TCP
    )
    assert apart.inside == inside(Host.of(replace(H100, name="a"), GPUSet(0b1111)))
    assert apart.inside.point > 50 * apart.bandwidth.point


def test_joined_pods_of_a_node_are_one_host():
    together = placed(ONE, 4, 1)
    assert together.bandwidth == together.inside
    assert together.bandwidth.regime is Regime.SWITCH


def test_pods_with_nics_use_them_even_on_one_node():
    found = got(ONE, 4, 1, joined=False, wire=Wire.RDMA)
    assert (found.regime, found.limited_by) == (Regime.HOSTS, Limit.NICS)
    assert found.point == pytest.approx(0.931 * 50)


@pytest.mark.parametrize("preset", ["dgx-2", "dgx-a100", "hgx-h100"])
@pytest.mark.parametrize("nics", [2, 4, 8])
def test_the_best_of_random_gpus_is_the_best_of_all_their_sets(preset: str, nics: int):
    dice = random.Random(nics)
    machine = replace(with_nics(presets.preset_machine(preset, "a"), nics, 25.0), name="a")
    gpus = range(len(machine.gpus))
    for _ in range(6):
        free = dice.sample(gpus, 6)
        every = (
            estimate([Host.of(machine, GPUSet(1 << gpu)) for gpu in some], wire=Wire.RDMA)
            for some in itertools.combinations(free, 3)
        )
        best = max(one.point for one in every if one is not None)
        world = cluster(node("a", machine, free=gpu_set(free)))
        assert got(world, 3, 1, joined=False, wire=Wire.RDMA).point == best


def test_a_known_network_rate_bounds_known_nics_and_replaces_assumed_nics():
    def two(of: Machine, beyond: float) -> Estimate:
        world = cluster(node("a", of), node("b", of), beyond=beyond)
        return got(world, 2, 8, wire=Wire.RDMA)

    assert two(H100, 100.0).point == pytest.approx(0.931 * 100 * 2 * 15 / 16)
    assert two(H100, 100.0).limited_by is Limit.NETWORK
    assert two(H100, 1e4) == two(H100, 1e5)
    assert two(H100, 1e4).limited_by in {Limit.NICS, Limit.HOST}
    assert two(BARE, 10.0).point == two(H100, 10.0).point
    unknown = got(cluster(node("a", BARE), node("b", BARE)), 2, 8, wire=Wire.RDMA)
    assert any("NICs of 50" in one for one in unknown.assumed)


@pytest.mark.parametrize("rate", [1.24, 1.25, 1.26])
def test_every_rate_that_somebody_gave_counts_as_given(rate: float):
    world = cluster(
        *(node(f"v{at}", V100, domains=(f"r{at // 2}",)) for at in range(4)),
        tiers=(Tier(name="leaf", bandwidth=50.0),),
        beyond=rate,
    )
    found = got(world, 3, 8, wire=Wire.RDMA)
    assert found.point == pytest.approx(0.931 * rate)
    assert not found.assumed
    with pytest.raises(Unplaceable):
        place(Request(workers=3, gpus=8, wire=Wire.RDMA, min_bandwidth=40.0), world)


@pytest.mark.parametrize("rate", [400.0, 20.0])
def test_a_level_of_unknown_rate_outside_a_known_one_is_unknown_and_no_faster(rate: float):
    nodes = [node(f"v{at}", V100, domains=(f"r{at // 2}",)) for at in range(3)]
    leaf = (Tier(name="leaf", bandwidth=rate),)
    unknown = got(cluster(*nodes), 3, 8, wire=Wire.RDMA)
    found = got(cluster(*nodes, tiers=leaf), 3, 8, wire=Wire.RDMA)
    assert found.point == pytest.approx(min(unknown.point, 0.931 * rate))
    assert found.low <= unknown.low
    assert found.high == pytest.approx(min(unknown.high, rate))
    assert found.assumed == unknown.assumed
    assert found.guess
    sockets = got(cluster(*nodes, tiers=leaf), 3, 8)
    assert sockets == got(cluster(*nodes), 3, 8)


@pytest.mark.parametrize(("wire", "rate"), [(Wire.RDMA, 12.5), (Wire.TCP, 12.5)])
def test_pods_of_a_node_share_what_an_unknown_network_has_at_most(wire: Wire, rate: float):
    nodes = [node(f"v{at}", BARE, domains=(f"r{at // 2}",)) for at in range(4)]
    world = cluster(*nodes, tiers=(Tier(name="leaf", bandwidth=rate),))

    def reached(*names: str) -> Estimate:
        workers = [(name, (gpu,)) for name in names for gpu in range(4)]
        request = Request(workers=8, gpus=1, joined=False, wire=wire)
        found = Solver(world).value(request, workers).bandwidth
        assert found is not None
        return found

    near, far = reached("v0", "v1"), reached("v0", "v2")
    assert (far.point, far.low) == (near.point, near.low)
    assert far.high <= near.high
    assert far.assumed
    assert far.guess
    assert not near.guess


def test_a_slower_node_makes_no_job_faster():
    known, unknown = with_nics(V100, 4, 12.5), with_nics(V100, 1, None)
    slow = node("n3", known, network=25.0)
    partner = node("n0", unknown)
    fast = cluster(partner, node("n2", known))
    with_slow = got(cluster(partner, slow), 2, 8, wire=Wire.RDMA)
    assert with_slow.point <= got(fast, 2, 8, wire=Wire.RDMA).point
    assert with_slow.high <= got(fast, 2, 8, wire=Wire.RDMA).high


def test_sockets_get_a_share_of_a_known_rate_and_little_of_an_unknown_one():
    pair = (node("a", BARE), node("b", BARE))
    known = got(cluster(*pair, beyond=5.0), 2, 8)
    assert (known.low, known.high, known.assumed) == (pytest.approx(0.85), 4.25, ())
    unknown = got(cluster(*pair), 2, 8)
    assert (unknown.low, unknown.high) == (1.2, 6.0)
    assert unknown.assumed == ("an unknown network: TCP",)


def test_the_nearest_level_that_all_nodes_share_is_what_joins_them():
    tiers = (Tier(name="spine", bandwidth=6.0), Tier(name="leaf", bandwidth=12.5))
    world = cluster(
        *(node(name, BARE, domains=("s", leaf)) for name, leaf in (("a", "x"), ("b", "y"))),
        tiers=tiers,
    )
    found = placed(world, 2, 8, wire=Wire.RDMA)
    assert found.tier == "spine"
    assert found.bandwidth.point == pytest.approx(0.931 * 6 * 2 * 15 / 16)


GB200 = presets.preset_machine("gb200-nvl72", "g")


def test_nodes_of_one_nvlink_domain_are_one_host_for_any_pods():
    tiers = (Tier(name="nvlink", bandwidth=722.0),)
    world = cluster(*(node(f"g{at}", GB200, domains=("d",)) for at in range(4)), tiers=tiers)
    for joined in (False, True):
        found = got(world, 4, 4, joined=joined)
        assert found.regime is Regime.NVLS
        assert found == inside(
            Host(parts=tuple((replace(GB200, name=f"g{at}"), GPUSet(15)) for at in range(4)))
        )
    mesh = cluster(*(node(f"v{at}", V100, domains=("d",)) for at in range(2)), tiers=tiers)
    assert got(mesh, 2, 8).regime is Regime.TCP


def test_an_opaque_node_is_worth_its_slowest_gpus():
    found = placed(cluster(node("a", V100, unattributed=4)), 4, 1)
    assert [one.gpus for one in found.assignments] == [()] * 4
    slowest = min(
        inside(Host.of(V100, GPUSet(bits))).point for bits in range(256) if bits.bit_count() == 4
    )
    assert found.bandwidth.point == found.worst.point == slowest


def test_the_kubelet_may_pick_the_slowest_free_gpus():
    found = placed(cluster(node("a", V100)), 4, 1)
    assert found.bandwidth.point == pytest.approx(86.4)
    assert found.worst.point < 15


def test_a_placement_can_be_valued_for_other_pods():
    apart = placed(ONE, 4, 2, joined=False)
    assert revalue(apart, ONE, joined=True).bandwidth == apart.inside
    assert revalue(apart, ONE, joined=False) == apart


def test_one_gpu_has_no_bandwidth():
    lone = placed(ONE, 1, 1)
    assert (lone.bandwidth, lone.inside, lone.worst) == (None, None, None)


HOSTS = [
    pytest.param(of, nodes, wire, shape, id=f"{name}-{nodes}-{wire}-{shape}")
    for name, of in (("nics", H100), ("bare", BARE), ("a100", HGX))
    for nodes in (1, 2, 3)
    for wire in Wire
    for shape in (PodShape.SEPARATE, PodShape.SHARED)
    # For pods of one node a forecast takes TCP where it does not know the NICs.
    if wire is Wire.TCP or of is H100 or (nodes, shape) != (1, PodShape.SEPARATE)
]


@pytest.mark.parametrize(("of", "nodes", "wire", "shape"), HOSTS)
def test_a_plan_and_a_forecast_agree_on_the_same_hosts(
    of: Machine, nodes: int, wire: Wire, shape: PodShape
):
    world = cluster(*(node(f"h-{at}", of) for at in range(nodes)))
    planned = placed(world, 8 * nodes, 1, joined=shape is PodShape.SHARED, wire=wire)
    chosen = [one.gpus for one in planned.assignments if one.node == planned.nodes[0]]
    told = forecast(
        replace(of, name="h"),
        ForecastRequest(
            chosen=",".join(str(gpu) for some in chosen for gpu in some),
            nodes=nodes,
            pod_shape=shape,
            tcp=wire is Wire.TCP,
        ),
    )
    assert gpu_set(gpu for some in chosen for gpu in some) == told.gpus
    assert planned.bandwidth == told.estimate


def test_a_solver_values_its_own_answer_as_it_gave_it_and_explains_what_it_refuses():
    on = cluster(node("a", V100), node("b", V100, 0b1111))
    solver = Solver(on)
    answer = solver.place(Request(workers=3, gpus=4))
    workers = [(one.node, one.gpus) for one in answer.assignments]
    found = solver.value(Request(workers=3, gpus=4), workers)
    assert (found.bandwidth, found.inside, found.worst) == (
        answer.bandwidth,
        answer.inside,
        answer.worst,
    )
    too_large = Request(workers=4, gpus=4)
    assert solver.find(too_large) is None
    with pytest.raises(Unplaceable) as refused:
        solver.place(too_large)
    assert refused.value.refusals == solver.explain(too_large).refusals
    with pytest.raises(KeyError):
        solver.value(Request(workers=1, gpus=1), [(NodeName("c"), (0,))])
