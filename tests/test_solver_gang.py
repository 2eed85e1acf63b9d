"""place(): the order of preference case by case, refusals as values."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from cube_mesh import HGX, P100, PCIE, V100, V100_LANES, cluster, machine, matrix, node, with_nics
from hypothesis import given
from hypothesis import strategies as st
from replacing import replace

from arena_topo.bandwidth import Regime, Wire
from arena_topo.errors import InvalidJob
from arena_topo.solver import Reason, Request, Unplaceable, Verdict
from arena_topo.solver.door import Solver, place
from arena_topo.solver.fragmentation import PackingCost
from arena_topo.solver.gpu_sets import gpu_sets
from arena_topo.topology import (
    Cluster,
    GPUSet,
    Link,
    LinkKind,
    Machine,
    NodeName,
    Tier,
    count,
    flat,
    gpu_set,
    natural_key,
)


def where(request: Request, on: Cluster) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.node, one.gpus) for one in place(request, on).assignments]


def used(request: Request, on: Cluster) -> dict[str, set[int]]:
    chosen: dict[str, set[int]] = {}
    for name, gpus in where(request, on):
        chosen.setdefault(name, set()).update(gpus)
    return chosen


TWO_DGX1 = cluster(node("a", V100), node("b", V100))
FOUR = Request(workers=4, gpus=1)


def test_four_workers_on_an_empty_dgx1_get_a_quad_of_86_gb_per_second():
    answer = place(FOUR, TWO_DGX1)
    assert used(FOUR, TWO_DGX1) == {"a": {0, 1, 2, 3}}
    assert (answer.bandwidth.point, answer.tier) == (pytest.approx(86.4), "node")
    assert answer.proof.optimal


def test_the_second_gang_gets_the_other_quad_of_the_same_machine():
    half = cluster(node("a", V100, 0b11110000), node("b", V100))
    assert used(FOUR, half) == {"a": {4, 5, 6, 7}}


def test_a_gang_that_fits_one_machine_is_not_spread():
    busy = cluster(node("a", V100, 0b0011), node("b", V100, 0b11111111))
    assert used(Request(workers=4, gpus=2), busy) == {"b": set(range(8))}


def test_four_nodes_with_two_free_gpus_lose_to_one_empty_machine():
    """HiveD's most-used-first rule puts one worker on each of the four nodes."""
    nodes = [node(f"used-{index}", V100, 0b1001) for index in range(4)]
    answer = place(Request(workers=4, gpus=2), cluster(*nodes, node("empty", V100)))
    assert answer.nodes == ("empty",)
    assert answer.bandwidth.point == pytest.approx(1.08 * 120)


def test_of_five_free_gpus_the_four_that_close_a_ring_are_chosen():
    """NVIDIA's best-effort policy picks {0,1,2,4}, which close no ring over direct NVLinks."""
    free = gpu_set((0, 1, 2, 4, 5))
    answer = used(FOUR, cluster(node("a", V100, free)))
    assert answer == {"a": {0, 1, 4, 5}}


def test_two_gpus_get_the_double_link_even_where_pair_scores_add_up_higher_elsewhere():
    """NVIDIA's best-effort policy picks {0,1} (one lane) for the sake of {2,6}."""
    free = gpu_set((0, 1, 2, 6))
    assert used(Request(workers=1, gpus=2), cluster(node("a", V100, free))) == {"a": {1, 2}}


def test_a_single_gpu_goes_where_a_pair_is_already_broken():
    """NVIDIA/k8s-device-plugin#1193: one-GPU pods strand NVLink pairs."""
    free = gpu_set((0, 3, 5))
    assert used(Request(workers=1, gpus=1), cluster(node("a", V100, free))) == {"a": {5}}


def test_a_single_gpu_goes_to_the_machine_that_is_already_broken():
    busy = cluster(node("empty", V100), node("used", V100, gpu_set((1, 4, 6, 7))))
    assert used(Request(workers=1, gpus=1), busy) == {"used": {1}}


def test_no_number_of_pairs_makes_up_for_a_quad_and_no_quads_for_a_whole_machine():
    shape = gpu_sets(V100.configuration)
    cost = PackingCost(shape)
    quad = cost.potential(gpu_set((0, 1, 2, 3)))
    without = [one for one in map(GPUSet, range(255)) if shape.best(one, 4) < 40]
    assert max(map(count, without)) > 4
    assert all(cost.potential(one) < quad for one in without)
    whole = cost.potential(GPUSet(255))
    most = max(cost.potential(GPUSet(255 & ~(1 << gpu))) for gpu in range(8))
    assert whole > 2 * most


def test_six_free_and_two_free_are_not_eight():
    """volcano-sh/volcano#5751."""
    islands = cluster(node("a", V100, 0b111111), node("b", V100, 0b11))
    with pytest.raises(Unplaceable) as refused:
        place(Request(workers=1, gpus=8), islands)
    assert refused.value.verdict is Verdict.NOT_NOW
    assert refused.value.exit_code == 3


def test_three_gpus_without_a_ring_fit_with_an_estimate():
    free = gpu_set((0, 3, 4))
    answer = place(Request(workers=3, gpus=1), cluster(node("a", V100, free)))
    assert answer.bandwidth.regime is Regime.NO_RING


def test_a_gang_across_machines_has_the_bandwidth_of_the_network():
    answer = place(Request(workers=12, gpus=1), TWO_DGX1)
    assert (answer.bandwidth.regime, answer.tier) == (Regime.TCP, "beyond")
    assert len(answer.nodes) == 2


def test_a_gang_does_not_mix_gpu_models():
    mixed = cluster(node("p", P100), node("v", V100))
    with pytest.raises(Unplaceable) as refused:
        place(Request(workers=12, gpus=1), mixed)
    assert refused.value.nearest == "fits now with --mix-models, or with --workers 8"
    answer = place(Request(workers=12, gpus=1, mix_models=True), mixed)
    assert set(answer.nodes) == {"p", "v"}


def test_a_gang_can_ask_for_a_gpu_model():
    mixed = cluster(node("p", P100), node("v", V100))
    assert place(Request(workers=1, gpus=1, model="p100"), mixed).nodes == ("p",)


def test_a_gang_does_not_mix_resource_names():
    split = cluster(node("a", V100, 0b1), node("b", V100, 0b1, resource="aliyun.com/gpu"))
    with pytest.raises(Unplaceable):
        place(Request(workers=2, gpus=1), split)


def test_one_gpu_has_no_bandwidth_to_speak_of():
    assert place(Request(workers=1, gpus=1), TWO_DGX1).bandwidth is None


def test_workers_are_numbered_along_the_best_ring():
    free = gpu_set((0, 1, 4, 5))
    assert where(FOUR, cluster(node("a", V100, free))) == [
        ("a", (0,)),
        ("a", (1,)),
        ("a", (5,)),
        ("a", (4,)),
    ]


def test_nodes_come_in_natural_order():
    nodes = cluster(node("node-10", HGX), node("node-2", HGX))
    assert place(Request(workers=2, gpus=8), nodes).nodes == ("node-2", "node-10")


def test_equal_machines_are_one_kind_for_any_source_of_their_matrices():
    again = machine("dgx-1-v100", "V100", matrix(8, V100_LANES))
    assert again.links is not V100.links
    answer = place(Request(workers=1, gpus=8), cluster(node("gpu-aa", V100), node("gpu-b", again)))
    assert answer.nodes == ("gpu-aa",)
    answer = place(
        Request(workers=1, gpus=8), cluster(node("rack10-a", V100), node("rack9-bcd", again))
    )
    assert answer.nodes == ("rack9-bcd",)


def test_cpu_and_memory_bound_the_workers_of_a_node():
    tight = cluster(
        node("a", V100, cpu=4.0, memory=64 << 30), node("b", V100, cpu=64.0, memory=64 << 30)
    )
    wants = Request(workers=4, gpus=1, cpu=2.0, memory=8 << 30)
    assert place(wants, tight).nodes == ("b",)


def test_an_opaque_node_is_counted_but_its_devices_are_not_named():
    opaque = cluster(node("a", V100, unattributed=4))
    answer = place(FOUR, opaque)
    assert answer.bandwidth.point < 15
    assert [one.gpus for one in answer.assignments] == [()] * 4


def test_an_opaque_node_behind_a_switch_loses_nothing():
    answer = place(FOUR, cluster(node("a", HGX, unattributed=4)))
    assert answer.bandwidth == place(FOUR, cluster(node("a", HGX))).bandwidth


def test_a_placement_says_what_a_blind_choice_of_devices_would_risk():
    answer = place(FOUR, TWO_DGX1)
    assert answer.worst.point < 15 < answer.bandwidth.point


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"unavailable": "cordoned"}, Reason.CORDONED),
        ({"unavailable": "NotReady"}, Reason.NOT_READY),
        ({"free": 0}, Reason.BUSY),
        ({"cpu": 0.5}, Reason.RESOURCES),
    ],
)
def test_a_refusal_counts_nodes_by_what_refuses_the_job(more, reason):
    request = Request(workers=4, gpus=1, cpu=1.0)
    with pytest.raises(Unplaceable) as refused:
        place(request, cluster(node("a", V100, **more), node("b", V100, **more)))
    assert [(one.reason, one.nodes, one.example) for one in refused.value.refusals] == [
        (reason, 2, "a")
    ]
    assert refused.value.verdict is Verdict.NOT_NOW


def test_mig_and_shared_gpus_never_become_placeable():
    with pytest.raises(Unplaceable) as refused:
        place(Request(workers=1, gpus=1), cluster(node("a", V100, shared="MIG")))
    assert [one.reason for one in refused.value.refusals] == [Reason.SHARED]
    assert refused.value.verdict is Verdict.NEVER


@pytest.mark.parametrize(
    ("more", "verdict"),
    [({"all_cpu": 8.0}, Verdict.NEVER), ({"all_cpu": 64.0}, Verdict.NOT_NOW)],
)
def test_more_cpu_than_a_node_has_in_all_never_fits(more, verdict):
    with pytest.raises(Unplaceable) as refused:
        place(Request(workers=1, gpus=1, cpu=16.0), cluster(node("a", V100, cpu=4.0, **more)))
    assert refused.value.verdict is verdict
    assert refused.value.why == "1 node (a): not enough free CPU or memory"


def test_excluded_nodes_are_refused_for_their_reason():
    request = Request(workers=1, gpus=1, excluded={NodeName("a"): Reason.TAINT})
    with pytest.raises(Unplaceable) as refused:
        place(request, cluster(node("a", V100)))
    assert [one.reason for one in refused.value.refusals] == [Reason.TAINT]
    assert refused.value.verdict is Verdict.NEVER


def test_more_gpus_than_any_machine_has_never_fit_and_the_largest_is_named():
    with pytest.raises(Unplaceable) as refused:
        place(Request(workers=1, gpus=9), TWO_DGX1)
    assert refused.value.exit_code == 5
    assert "--gpus 8" in (refused.value.nearest or "")


def test_more_workers_than_the_cluster_has_gpus_never_fit_and_the_most_are_named():
    with pytest.raises(Unplaceable) as refused:
        place(Request(workers=17, gpus=1), TWO_DGX1)
    assert refused.value.verdict is Verdict.NEVER
    assert refused.value.nearest == "fits now with --workers 16"
    assert refused.value.why == "2 nodes (a, ...): room for some workers, and nowhere for the rest"


def test_what_would_fit_now_is_named():
    with pytest.raises(Unplaceable) as refused:
        place(Request(workers=6, gpus=1), cluster(node("a", V100, 0b1111)))
    assert refused.value.nearest == (
        "fits now with --workers 4; or when 2 more GPUs of node a are free"
    )


def test_a_bandwidth_that_no_free_set_reaches_is_refused_with_the_one_that_is_there():
    free = gpu_set((0, 1, 2, 4))
    with pytest.raises(Unplaceable) as refused:
        place(Request(workers=4, gpus=1, min_bandwidth=38), cluster(node("a", V100, free)))
    assert refused.value.verdict is Verdict.NOT_NOW
    assert refused.value.nearest == (
        "fits now with --min-bandwidth 9.97, or with --workers 3; or when GPU 3 of node a is free"
    )


def test_nodes_too_slow_for_one_worker_are_counted_as_too_slow():
    with pytest.raises(Unplaceable) as refused:
        place(Request(workers=1, gpus=2, min_bandwidth=50), TWO_DGX1)
    assert [(one.reason, one.nodes) for one in refused.value.refusals] == [(Reason.BANDWIDTH, 2)]


@pytest.mark.parametrize("size", [{"workers": 0, "gpus": 1}, {"workers": 1, "gpus": 0}])
def test_a_gang_without_workers_is_refused(size):
    with pytest.raises(InvalidJob, match="a gang needs at least one"):
        Request(**size)
    with pytest.raises(InvalidJob):
        Request(**{name: -number for name, number in size.items()})


def test_names_of_more_digits_than_python_reads_at_once_are_in_order():
    names = ["rack-" + "9" * 5000, "rack-1" + "0" * 5000, "rack-10", "rack-9"]
    assert sorted(names, key=natural_key) == [names[3], names[2], names[0], names[1]]
    world = cluster(*(node(name, HGX) for name in names))
    assert place(Request(workers=1, gpus=1), world).nodes == ("rack-9",)


def test_the_limit_of_nodes_is_respected():
    with pytest.raises(Unplaceable):
        place(
            Request(workers=4, gpus=1, max_nodes=1),
            cluster(node("a", V100, 0b11), node("b", V100, 0b11)),
        )


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ({"min_bandwidth": 100}, Reason.BANDWIDTH),
        ({"max_nodes": 1}, Reason.MAX_NODES),
        ({"required": "node"}, Reason.LEVEL),
        ({"required": "node", "min_bandwidth": 100}, Reason.BANDWIDTH),
        ({}, Reason.ROOM),
    ],
)
def test_what_the_nodes_with_room_lack_is_found_by_trying_without_it(limit, reason):
    """A gang over two nodes fits but for its limit; without one it is too large."""
    workers = 12 if limit else 17
    with pytest.raises(Unplaceable) as refused:
        place(Request(workers=workers, gpus=1, **limit), TWO_DGX1)
    assert [(one.reason, one.nodes) for one in refused.value.refusals] == [(reason, 2)]


# The network between nodes


def racks(*sizes: int, tiers: tuple[Tier, ...] | None = None, **more: object) -> Cluster:
    """Racks of whole machines: `racks(8, 5, 4)`."""
    nodes = [
        node(f"r{rack}-{index}", HGX, domains=(f"rack-{rack}",))
        for rack, size in enumerate(sizes)
        for index in range(size)
    ]
    return cluster(*nodes, tiers=tiers or (Tier(name="leaf", bandwidth=12.5),), **more)


def in_racks(request: Request, on: Cluster) -> dict[str, int]:
    names = {one.name: one.domains[-1] for one in on.nodes}
    return dict(Counter(names[name] for name in place(request, on).nodes))


@pytest.mark.parametrize(
    ("sizes", "workers", "expected"),
    [
        ((8, 5, 4), 9, {"rack-1": 5, "rack-2": 4}),
        ((10, 6, 6), 12, {"rack-1": 6, "rack-2": 6}),
        ((9, 7, 6, 3), 13, {"rack-1": 7, "rack-2": 6}),
        ((8, 5, 4), 4, {"rack-2": 4}),
        ((8, 5, 4), 8, {"rack-0": 8}),
    ],
)
def test_the_largest_rack_stays_whole_where_smaller_ones_do(sizes, workers, expected):
    """Kueue's BestFit gives 8+1, 10+2 and 9+4."""
    assert in_racks(Request(workers=workers, gpus=8), racks(*sizes)) == expected


def test_a_gang_stays_in_one_rack_where_that_is_nearer():
    answer = place(Request(workers=4, gpus=8), racks(3, 4, 3))
    assert answer.tier == "leaf"
    assert set(answer.nodes) == {f"r1-{index}" for index in range(4)}


def test_a_gang_that_leaves_its_rack_has_the_bandwidth_beyond():
    answer = place(Request(workers=9, gpus=8, wire=Wire.RDMA), racks(8, 5, 4, beyond=2.0))
    assert (answer.tier, answer.bandwidth.point) == ("beyond", pytest.approx(0.931 * 2))
    assert answer.proof.optimal


def test_fewer_nodes_come_before_fewer_racks():
    nodes = [
        *(node(f"half-{index}", HGX, 0b1111, domains=("a",)) for index in range(4)),
        node("whole-1", HGX, domains=("b",)),
        node("whole-2", HGX, domains=("c",)),
    ]
    on = cluster(*nodes, tiers=(Tier(name="leaf", bandwidth=1.25),))
    request = Request(workers=4, gpus=4)
    assert place(request, on).nodes == tuple(f"half-{index}" for index in range(4))
    assert place(replace(request, max_nodes=2), on).nodes == ("whole-1", "whole-2")


def test_a_network_faster_than_pcie_draws_a_gang_apart_and_a_slow_one_does_not():
    """Two GPUs on PCIe reach some 20 GB/s across sockets, less than RDMA between machines."""
    nodes = [node(name, PCIE, gpu_set((0, 4)), domains=("a",)) for name in ("n1", "n2")]
    fast = cluster(*nodes, tiers=(Tier(name="leaf", bandwidth=25.0),))
    slow = cluster(*nodes, tiers=(Tier(name="leaf", bandwidth=1.25),))
    request = Request(workers=2, gpus=1, wire=Wire.RDMA)
    assert place(request, fast).nodes == ("n1", "n2")
    assert place(request, slow).nodes == ("n1",)


def test_trays_on_one_nvlink_switch_are_one_domain_at_nvlink_speed():
    """GB200 NVL72: four GPUs a tray, NVLink between trays, Ethernet between racks."""
    tray = machine("gb200", "GB200", flat(4, Link(kind=LinkKind.NVLINK, lanes=18)))
    nodes = [
        node(f"rack{rack}-tray{index}", tray, domains=(f"clique-{rack}",))
        for rack in range(2)
        for index in range(18)
    ]
    on = cluster(*nodes, tiers=(Tier(name="nvlink", bandwidth=721.8),), beyond=50.0)
    answer = place(Request(workers=18, gpus=4), on)
    assert (answer.tier, answer.bandwidth.regime) == ("nvlink", Regime.NVLS)
    assert place(Request(workers=19, gpus=4), on).bandwidth.regime is Regime.TCP


@pytest.mark.parametrize(("racks", "workers"), [(2, 24), (3, 40)])
def test_a_gang_over_several_nvlink_domains_is_searched_and_proven_as_it_is(racks, workers):
    """Each rack sends over the NICs of all its trays: some 3,000 GB/s, and not 200."""
    tray = with_nics(
        machine("gb200", "GB200", flat(4, Link(kind=LinkKind.NVLINK, lanes=18))), 4, 50.0
    )
    nodes = [
        node(f"rack{rack}-tray{index}", tray, domains=(f"clique-{rack}",))
        for rack in range(racks)
        for index in range(18)
    ]
    on = cluster(*nodes, tiers=(Tier(name="nvlink", bandwidth=721.8),), beyond=200.0)
    request = Request(workers=workers, gpus=4, wire=Wire.RDMA, joined=False)
    answer = place(request, on)
    assert answer.bandwidth.point > 700
    assert answer.bandwidth.point <= answer.proof.bound
    assert answer.proof.optimal
    assert place(replace(request, min_bandwidth=250.0), on).bandwidth == answer.bandwidth
    with pytest.raises(Unplaceable) as refused:
        place(replace(request, min_bandwidth=5000.0), on)
    advised = float(re.findall(r"--min-bandwidth ([\d.]+)", refused.value.nearest)[0])
    assert place(replace(request, min_bandwidth=advised), on).bandwidth.point >= 700


@pytest.mark.parametrize("level", ["node", "leaf"])
def test_a_required_level_is_never_left(level):
    request = Request(workers=6, gpus=8, required=level)
    with pytest.raises(Unplaceable):
        place(request, racks(4, 4))
    assert place(replace(request, required="beyond"), racks(4, 4)).tier == "beyond"


def test_a_preferred_level_wins_over_bandwidth():
    """Across the racks two GPUs would meet at 37 GB/s; in one machine they have 20."""
    pairs = [node(f"n{index}", PCIE, gpu_set((0, 4)), domains=(f"r{index}",)) for index in range(2)]
    on = cluster(*pairs, tiers=(Tier(name="leaf", bandwidth=40.0),), beyond=40.0)
    request = Request(workers=2, gpus=1, wire=Wire.RDMA)
    assert place(request, on).tier == "beyond"
    assert place(replace(request, preferred="leaf"), on).tier == "node"
    assert place(replace(request, preferred="node"), on).bandwidth.regime is Regime.PCIE


def test_an_impossible_preferred_level_is_relaxed_one_level_at_a_time():
    answer = place(Request(workers=6, gpus=8, preferred="node"), racks(7, 4))
    assert answer.tier == "leaf"
    answer = place(Request(workers=10, gpus=8, preferred="leaf"), racks(7, 4))
    assert answer.tier == "beyond"


def test_consecutive_workers_stay_in_a_rack_so_that_the_ring_leaves_each_once():
    nodes = [node(f"n{index}", HGX, domains=(f"rack-{index % 2}",)) for index in range(6)]
    on = cluster(*nodes, tiers=(Tier(name="leaf", bandwidth=12.5),))
    assert place(Request(workers=6, gpus=8), on).nodes == ("n0", "n2", "n4", "n1", "n3", "n5")


@given(st.randoms(use_true_random=False))
def test_the_order_of_the_nodes_changes_nothing(dice):
    nodes = [
        node(f"n{index}", dice.choice([V100, HGX]), dice.randrange(1, 256), domains=(domain,))
        for index, domain in enumerate("aabbcc")
    ]
    tiers = (Tier(name="leaf", bandwidth=12.5),)
    request = Request(workers=dice.randint(1, 12), gpus=dice.randint(1, 3))
    answers = set()
    for _ in range(2):
        try:
            answers.add(place(request, cluster(*nodes, tiers=tiers)))
        except Unplaceable as refused:
            answers.add(refused.message)
        dice.shuffle(nodes)
    assert len(answers) == 1


def test_a_machine_full_of_pcie_cards_is_filled_switch_by_switch():
    free = gpu_set((0, 2, 3, 6))
    assert used(Request(workers=1, gpus=2), cluster(node("a", PCIE, free))) == {"a": {2, 3}}


def knot() -> Machine:
    """32 PCIe cards in no order, whose sets are too many to try them all."""
    kinds = [LinkKind.PIX, LinkKind.PHB, LinkKind.NODE, LinkKind.SYS]
    links = tuple(
        tuple(None if a == b else Link(kind=kinds[(a * b + a + b) % 7 % 4]) for b in range(32))
        for a in range(32)
    )
    return machine("knot", "L40S", links)


def test_where_a_machine_has_too_many_sets_the_answer_is_not_called_proven():
    answer = place(Request(workers=16, gpus=1), cluster(node("a", knot())))
    assert not answer.proof.optimal
    assert place(Request(workers=2, gpus=1), cluster(node("a", knot()))).proof.optimal


def test_a_cached_solver_belongs_to_exactly_one_cluster():
    first, busy = cluster(node("a", V100)), cluster(node("a", V100, gpu_set((0,))))
    request = Request(workers=1, gpus=2)
    for _ in range(2):
        assert Solver.of(first).find(request) is not None
        assert Solver.of(busy).find(request) is None
    assert Solver.of(first) is Solver.of(first)
    # Equal clusters are no reason to compare thousands of nodes.
    assert Solver.of(replace(first)) is not Solver.of(first)
