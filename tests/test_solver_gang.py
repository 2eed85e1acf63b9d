"""place(): exact against brute force, the order of preference case by case, refusals as values."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from cube_mesh import HGX, P100, PCIE, V100, V100_LANES, cluster, machine, matrix, node
from hypothesis import given
from hypothesis import strategies as st

from arena_topo.solver import Placement, Reason, Request, Unplaceable, Verdict, place
from arena_topo.solver.classes import room
from arena_topo.solver.configurations import table
from arena_topo.solver.gang import Worth, value
from arena_topo.solver.policy import Damage
from arena_topo.topology import Cluster, GPUSet, Link, LinkKind, Node, NodeName, count, gpu_set


def where(request: Request, on: Cluster) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.node, one.gpus) for one in place(request, on).assignments]


def used(request: Request, on: Cluster) -> dict[str, set[int]]:
    chosen: dict[str, set[int]] = {}
    for name, gpus in where(request, on):
        chosen.setdefault(name, set()).update(gpus)
    return chosen


TWO_DGX1 = cluster(node("a", V100), node("b", V100))
FOUR = Request(workers=4, gpus=1)


def test_four_workers_on_an_empty_dgx1_get_a_quad_of_80_gb_per_second():
    answer = place(FOUR, TWO_DGX1)
    assert used(FOUR, TWO_DGX1) == {"a": {0, 1, 2, 3}}
    assert (answer.bandwidth, answer.tier, answer.proof.optimal) == (80, "node", True)


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
    assert answer.bandwidth == 120


def test_of_five_free_gpus_the_four_that_close_a_ring_are_chosen():
    """NVIDIA's best-effort policy picks {0,1,2,4}, whose ring must cross PCIe (9 GB/s)."""
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
    shape = table(V100.configuration)
    damage = Damage(shape)
    quad = damage.keeps(gpu_set((0, 1, 2, 3)))
    without = [one for one in map(GPUSet, range(255)) if shape.best(one, 4) < 40]
    assert max(map(count, without)) > 4
    assert all(damage.keeps(one) < quad for one in without)
    whole = damage.keeps(GPUSet(255))
    most = max(damage.keeps(GPUSet(255 & ~(1 << gpu))) for gpu in range(8))
    assert whole > 2 * most


def test_six_free_and_two_free_are_not_eight():
    """volcano-sh/volcano#5751."""
    islands = cluster(node("a", V100, 0b111111), node("b", V100, 0b11))
    with pytest.raises(Unplaceable) as refused:
        place(Request(workers=1, gpus=8), islands)
    assert refused.value.verdict is Verdict.NOT_NOW
    assert refused.value.exit_code == 3


def test_three_gpus_without_a_ring_still_fit_and_say_what_they_are_worth():
    free = gpu_set((0, 3, 4))
    answer = place(Request(workers=3, gpus=1), cluster(node("a", V100, free)))
    assert answer.bandwidth == 9


def test_a_gang_across_machines_has_the_bandwidth_of_the_network():
    answer = place(Request(workers=12, gpus=1), TWO_DGX1)
    assert (answer.bandwidth, answer.tier) == (1.25, "beyond")
    assert len(answer.nodes) == 2


def test_a_gang_does_not_mix_gpu_models():
    mixed = cluster(node("p", P100), node("v", V100))
    with pytest.raises(Unplaceable) as refused:
        place(Request(workers=12, gpus=1), mixed)
    assert refused.value.nearest == "fits on this cluster with --mix-models"
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
    assert place(Request(workers=1, gpus=1), TWO_DGX1).bandwidth == math.inf


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


def test_equal_machines_are_one_kind_however_their_matrices_came_about():
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
    opaque = cluster(node("a", V100, hidden=4))
    answer = place(FOUR, opaque)
    assert answer.bandwidth == 9
    assert [one.gpus for one in answer.assignments] == [()] * 4


def test_an_opaque_node_behind_a_switch_loses_nothing():
    assert place(FOUR, cluster(node("a", HGX, hidden=4))).bandwidth == 240


def test_a_placement_says_what_a_blind_choice_of_devices_would_risk():
    assert place(FOUR, TWO_DGX1).worst == 9


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"unavailable": "cordoned"}, Reason.UNAVAILABLE),
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
    assert refused.value.nearest == "fits on this cluster with --workers 16"
    assert refused.value.why == "2 nodes (a, ...): room for some of the workers, not for all"


def test_what_would_fit_now_is_named():
    with pytest.raises(Unplaceable) as refused:
        place(Request(workers=6, gpus=1), cluster(node("a", V100, 0b1111)))
    assert refused.value.nearest == "fits now with --workers 4"


def test_a_bandwidth_that_no_free_set_reaches_is_refused_with_the_one_that_is_there():
    free = gpu_set((0, 1, 2, 4))
    with pytest.raises(Unplaceable) as refused:
        place(Request(workers=4, gpus=1, min_bandwidth=40), cluster(node("a", V100, free)))
    assert refused.value.verdict is Verdict.NOT_NOW
    assert refused.value.nearest == "fits now with --min-bandwidth 9"


def test_nodes_that_are_too_slow_for_one_worker_are_counted_as_such():
    with pytest.raises(Unplaceable) as refused:
        place(Request(workers=1, gpus=2, min_bandwidth=50), TWO_DGX1)
    assert [(one.reason, one.nodes) for one in refused.value.refusals] == [(Reason.BANDWIDTH, 2)]


def test_a_limit_of_nodes_is_kept():
    with pytest.raises(Unplaceable):
        place(
            Request(workers=4, gpus=1, max_nodes=1),
            cluster(node("a", V100, 0b11), node("b", V100, 0b11)),
        )


# Brute force. Small machines, so that every set of GPUs on every node can be tried.

SMALL = [
    machine("ring", "V100", matrix(4, {(0, 1): 1, (1, 2): 2, (2, 3): 1, (0, 3): 2})),
    machine("pairs", "V100", matrix(4, {(0, 1): 2, (2, 3): 2}, Link(kind=LinkKind.NODE))),
    machine("flat", "V100", matrix(3, {}, Link(kind=LinkKind.PHB))),
    machine("other", "P100", matrix(4, {(0, 1): 1, (0, 2): 1, (0, 3): 1, (1, 2): 1})),
]


def brute_force(request: Request, on: Cluster) -> Worth | None:
    """The best of all choices of GPU sets on all nodes, by the letter of the objective."""
    best: Worth | None = None
    for kind in {one.machine.model for one in on.nodes}:
        nodes = [one for one in on.nodes if one.machine.model == kind]
        options = []
        for one in nodes:
            shape = table(one.machine.configuration)
            damage = Damage(shape)
            before = damage.keeps(one.free)
            most = room(request, one)
            sets = [(0, math.inf, 0)]
            for workers in range(1, most + 1):
                size = workers * request.gpus
                for bits in range(1, 1 << len(one.machine.gpus)):
                    if bits & ~one.free or count(GPUSet(bits)) != size:
                        continue
                    left = GPUSet(one.free & ~bits)
                    sets.append((workers, shape.value(GPUSet(bits)), before - damage.keeps(left)))
            options.append(sets)
        for choice in itertools.product(*options):
            if sum(workers for workers, _, _ in choice) != request.workers:
                continue
            taken = [one for one in choice if one[0]]
            bandwidth = min(speed for _, speed, _ in taken)
            distance = 0 if len(taken) == 1 else 1
            if distance:
                bandwidth = min(bandwidth, on.beyond)
            if bandwidth < request.min_bandwidth:
                continue
            if request.max_nodes is not None and len(taken) > request.max_nodes:
                continue
            worth = Worth(
                bandwidth=-bandwidth,
                distance=distance,
                nodes=len(taken),
                damage=sum(lost for _, _, lost in taken),
            )
            if best is None or worth < best:
                best = worth
    return best


@st.composite
def small_clusters(draw: st.DrawFn) -> Cluster:
    nodes: list[Node] = []
    for index in range(draw(st.integers(1, 4))):
        of = draw(st.sampled_from(SMALL))
        free = draw(st.integers(0, (1 << len(of.gpus)) - 1))
        cpu = draw(st.sampled_from([None, 1.0, 2.0]))
        nodes.append(node(f"n{index}", of, free, cpu=cpu))
    return cluster(*nodes, beyond=draw(st.sampled_from([1.25, 10.0, 30.0, 50.0])))


requests = st.builds(
    Request,
    workers=st.integers(1, 7),
    gpus=st.integers(1, 3),
    cpu=st.sampled_from([0.0, 1.0]),
    min_bandwidth=st.sampled_from([0.0, 0.0, 10.0, 25.0]),
    max_nodes=st.sampled_from([None, None, 1, 2]),
)


def measured(answer: Placement, on: Cluster) -> tuple[float, int]:
    """The bandwidth and the damage of the very GPUs that were handed out."""
    speeds = [math.inf if len(answer.nodes) == 1 else on.beyond]
    lost = 0
    for name in answer.nodes:
        (of,) = (one for one in on.nodes if one.name == name)
        shape = table(of.machine.configuration)
        held = gpu_set(gpu for one in answer.assignments if one.node == name for gpu in one.gpus)
        damage = Damage(shape)
        speeds.append(shape.value(held))
        lost += damage.keeps(of.free) - damage.keeps(GPUSet(of.free & ~held))
    return min(speeds), lost


def check(request: Request, on: Cluster) -> None:
    expected = brute_force(request, on)
    assert value(request, on) == expected
    if expected is None:
        with pytest.raises(Unplaceable):
            place(request, on)
        return
    answer = place(request, on)
    assert answer.bandwidth == -expected.bandwidth
    assert len(answer.nodes) == expected.nodes
    assert measured(answer, on) == (-expected.bandwidth, expected.damage)
    assert [one.worker for one in answer.assignments] == list(range(request.workers))
    for name in answer.nodes:
        gpus = [gpu for one in answer.assignments if one.node == name for gpu in one.gpus]
        (of,) = (one for one in on.nodes if one.name == name)
        assert len(set(gpus)) == len(gpus)
        assert gpu_set(gpus) & ~of.free == 0
    assert all(len(one.gpus) == request.gpus for one in answer.assignments)


@given(requests, small_clusters())
def test_the_answer_equals_brute_force(request, on):
    check(request, on)


def test_the_answer_equals_brute_force_on_a_thousand_seeded_clusters():
    dice = random.Random(20261121)
    for _ in range(1000):
        nodes = []
        for index in range(dice.randint(1, 3)):
            of = dice.choice(SMALL)
            free = dice.randrange(1 << len(of.gpus))
            nodes.append(node(f"n{index}", of, free, cpu=dice.choice([None, 1.0, 3.0])))
        check(
            Request(
                workers=dice.randint(1, 6),
                gpus=dice.randint(1, 3),
                cpu=dice.choice([0.0, 1.0]),
                min_bandwidth=dice.choice([0.0, 0.0, 10.0]),
                max_nodes=dice.choice([None, 2]),
            ),
            cluster(*nodes, beyond=dice.choice([1.25, 10.0, 50.0])),
        )


@given(requests, small_clusters(), st.integers(0, 3), st.integers(0, 3))
def test_freeing_a_gpu_never_lowers_the_bandwidth(request, on, which, gpu):
    nodes = list(on.nodes)
    one = nodes[which % len(nodes)]
    freed = GPUSet(one.free | 1 << gpu % len(one.machine.gpus))
    nodes[which % len(nodes)] = node(one.name, one.machine, freed, cpu=one.cpu)
    before, after = value(request, on), value(request, cluster(*nodes, beyond=on.beyond))
    if before is not None:
        assert after is not None
        assert after.bandwidth <= before.bandwidth


@given(requests, small_clusters(), st.randoms(use_true_random=False))
def test_the_order_of_the_nodes_changes_nothing(request, on, dice):
    shuffled = list(on.nodes)
    dice.shuffle(shuffled)
    again = cluster(*shuffled, beyond=on.beyond)
    try:
        expected = place(request, on)
    except Unplaceable:
        with pytest.raises(Unplaceable):
            place(request, again)
    else:
        assert place(request, again) == expected


def test_a_machine_full_of_pcie_cards_is_filled_switch_by_switch():
    free = gpu_set((0, 2, 3, 6))
    assert used(Request(workers=1, gpus=2), cluster(node("a", PCIE, free))) == {"a": {2, 3}}
