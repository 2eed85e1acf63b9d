"""Where the kubelet picks the GPUs, nodes count with the bandwidth that they can promise."""

from __future__ import annotations

import pytest
from cube_mesh import HGX, V100, cluster, node
from replacing import replace

from arena_topo.solver import Placement, Request, Unplaceable, Verdict
from arena_topo.solver.door import place, revalue
from arena_topo.topology import Cluster

QUAD = Request(workers=1, gpus=4, blind=True)
"""A pod on half a machine, as most are on Kubernetes."""

TWO_QUADS = 0b11111111
WITHOUT_RING = 0b00110110
"""Four GPUs of a DGX-1 V100 that no ring of NVLinks joins."""


def chosen(request: Request, on: Cluster) -> tuple[str, set[int]]:
    (worker,) = place(request, on).assignments
    return worker.node, set(worker.gpus)


def test_a_quad_that_nobody_can_promise_opens_no_empty_node():
    on = cluster(node("empty", V100), node("half", V100, TWO_QUADS, unattributed=4))
    assert chosen(QUAD, on) == ("half", set())
    assert chosen(replace(QUAD, blind=False), on) == ("empty", {0, 1, 2, 3})


def test_a_node_with_exactly_the_gpus_asked_for_promises_them():
    """The kubelet has no choice there."""
    on = cluster(node("empty", V100), node("half", V100, 0b11110000))
    answer = place(QUAD, on)
    assert chosen(QUAD, on) == ("half", {4, 5, 6, 7})
    assert answer.worst == answer.bandwidth
    assert answer.bandwidth.point == pytest.approx(86.4)
    assert answer.proof.optimal


def test_a_node_with_exactly_four_slow_gpus_is_as_good_as_any():
    on = cluster(node("empty", V100), node("slow", V100, WITHOUT_RING))
    assert chosen(QUAD, on)[0] == "slow"


@pytest.mark.parametrize(
    "pins", [{"dedicated": True}, {"driver": "gpu.nvidia.com"}], ids=["reserved", "claims"]
)
def test_a_node_that_pins_gpus_is_preferred_to_one_that_does_not(pins):
    on = cluster(node("a", V100, 0b01111111), node("b", V100, **pins))
    assert chosen(QUAD, on) == ("b", {0, 1, 2, 3})


def test_a_reserved_node_with_foreign_pods_does_not_pin_gpus():
    on = cluster(node("a", V100, 0b01111111), node("b", V100, dedicated=True, foreign=True))
    assert chosen(QUAD, on)[0] == "a"


def test_the_planned_gpus_of_the_chosen_node_are_its_fastest():
    answer = place(QUAD, cluster(node("a", V100, 0b11011111)))
    assert set(answer.assignments[0].gpus) == {0, 1, 2, 3}
    assert (answer.bandwidth.point, answer.worst.point) == (
        pytest.approx(86.4),
        pytest.approx(9.97),
    )
    assert answer.proof.optimal


def test_of_equally_full_nodes_the_one_with_the_faster_planned_gpus_is_chosen():
    """Both may give a pair without NVLink; of b's pairs one has two lanes."""
    pair = Request(workers=1, gpus=2, blind=True)
    on = cluster(node("a", V100, 0b01000011), node("b", V100, 0b00010011))
    assert chosen(pair, on) == ("b", {0, 4})


def test_a_planned_set_is_not_called_the_best_while_a_faster_one_is_free_elsewhere():
    on = cluster(node("a", V100, 0b00110111), node("b", V100))
    answer = place(QUAD, on)
    assert answer.nodes == ("a",)
    faster = valued_on("b", on)
    assert answer.bandwidth.point < faster.bandwidth.point
    assert (answer.proof.optimal, answer.proof.bound) == (False, faster.bandwidth.point)


def valued_on(name: str, on: Cluster) -> Placement:
    (only,) = (one for one in on.nodes if one.name == name)
    return revalue(place(QUAD, cluster(only)), on, joined=True)


def test_a_minimum_is_judged_by_what_is_promised_and_never_by_the_empty_cluster():
    """Once others use half of a node, it may promise what no empty node can."""
    asked = replace(QUAD, min_bandwidth=30.0)
    empty, half = node("empty", V100), node("half", V100, 0b11110000)
    with pytest.raises(Unplaceable) as refused:
        place(asked, cluster(empty))
    assert refused.value.verdict is Verdict.NOT_NOW
    assert "--min-bandwidth 9.97" in str(refused.value.nearest)
    assert chosen(asked, cluster(empty, half)) == ("half", {4, 5, 6, 7})


def test_behind_a_switch_it_does_not_matter_who_picks():
    on = cluster(node("a", HGX), node("b", HGX, 0b00111111))
    for workers, gpus in ((1, 4), (4, 1), (2, 4), (3, 2)):
        asked = Request(workers=workers, gpus=gpus, joined=False)
        assert place(replace(asked, blind=True), on) == place(asked, on)
