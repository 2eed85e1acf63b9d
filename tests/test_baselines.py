"""What schedulers that only count GPUs would do: first fit, spreading, and counting alone."""

import math

import pytest
from cube_mesh import HGX, PCIE, V100, cluster, node
from hypothesis import given
from hypothesis import strategies as st

from arena_topo.bandwidth import Regime, Wire
from arena_topo.solver import Reason, Request, Unplaceable, baselines
from arena_topo.solver.door import place
from arena_topo.topology import GPUSet, Tier, gpu_set

TIERS = (Tier(name="spine", bandwidth=6.0), Tier(name="leaf", bandwidth=12.5))


def loads(outcome):
    return dict(outcome.loads)


def first_fit(world, **more):
    return baselines.first_fit(Request(**more), world)


def spread(world, **more):
    return baselines.place_spread(Request(**more), world)


# ---------------------------------------------------------------- first fit


def test_first_fit_takes_the_first_gpus_by_index_whatever_joins_them():
    """{0, 1, 2, 4} has no ring over NVLink; {0, 1, 4, 5} has one of 38 GB/s."""
    world = cluster(node("a", V100, gpu_set((0, 1, 2, 4, 5))))
    assert place(Request(workers=4, gpus=1), world).bandwidth.regime is Regime.MESH
    assert first_fit(world, workers=4, gpus=1).bandwidth.regime is Regime.NO_RING


def test_first_fit_takes_the_lowest_indexes():
    world = cluster(node("a", V100, gpu_set((0, 1, 2, 3, 4))))
    assert first_fit(world, workers=4, gpus=1).bandwidth.point == pytest.approx(86.4)
    others = cluster(node("a", V100, gpu_set((3, 4, 5, 6, 7))))
    assert first_fit(others, workers=4, gpus=1).bandwidth.point < 20


def test_first_fit_fills_nodes_in_the_order_of_their_names():
    world = cluster(node("n10", HGX), node("n2", HGX, 0b111), node("n9", HGX, 0b11))
    found = first_fit(world, workers=6, gpus=1)
    assert list(found.loads.items()) == [("n2", 3), ("n9", 2), ("n10", 1)]
    assert (found.bandwidth.regime, found.tier) == (Regime.TCP, "beyond")


def test_first_fit_stops_where_the_gang_is_complete():
    found = first_fit(cluster(node("a", HGX), node("b", HGX)), workers=2, gpus=4)
    assert (loads(found), found.tier, found.bandwidth.regime) == ({"a": 2}, "node", Regime.SWITCH)


def test_a_worker_is_never_split():
    found = first_fit(cluster(node("a", HGX, 0b111), node("b", HGX, 0b1111)), workers=2, gpus=2)
    assert loads(found) == {"a": 1, "b": 1}


# ---------------------------------------------------------------- spreading


def test_four_workers_on_two_empty_nodes_are_spread_two_and_two():
    """As ordinary scheduling does in Alibaba Cloud's TensorFlow example."""
    found = spread(cluster(node("a", V100), node("b", V100)), workers=4, gpus=1)
    assert (loads(found), found.bandwidth.regime) == ({"a": 2, "b": 2}, Regime.TCP)


def test_a_slow_nic_slows_what_is_spread_over_it_and_nothing_inside_its_node():
    world = cluster(node("a", HGX, network=0.5), node("b", HGX), beyond=10.0)
    rdma = {"gpus": 8, "wire": Wire.RDMA}
    assert spread(world, workers=2, **rdma).bandwidth.point < 1
    assert spread(world, workers=1, **rdma).bandwidth.point > 200
    racked = cluster(
        node("a", HGX, network=0.5, domains=("s", "l")),
        node("b", HGX, domains=("s", "l")),
        tiers=TIERS,
    )
    found = spread(racked, workers=2, **rdma)
    assert (found.bandwidth.point < 1, found.tier) == (True, "leaf")


def test_spreading_starts_where_the_smallest_share_is_in_use():
    world = cluster(node("a", V100, 0b1111), node("b", V100), node("c", V100, 0b111111))
    assert loads(spread(world, workers=3, gpus=1)) == {"b": 3}
    assert loads(spread(world, workers=6, gpus=1)) == {"b": 4, "c": 2}


def test_spreading_goes_on_where_there_is_room_left():
    world = cluster(node("a", V100, 0b1), node("b", V100, 0b11))
    assert loads(spread(world, workers=3, gpus=1)) == {"b": 2, "a": 1}


# ---------------------------------------------------------------- both


@pytest.mark.parametrize("scheduler", [baselines.first_fit, baselines.place_spread])
class TestBoth:
    """What holds of both schedulers."""

    def test_a_baseline_places_nothing_if_not_all_workers_fit(self, scheduler):
        world = cluster(node("a", V100, 0b111), node("b", V100, 0b1))
        assert scheduler(Request(workers=5, gpus=1), world) is None
        assert scheduler(Request(workers=2, gpus=2), world) is None
        assert scheduler(Request(workers=1, gpus=1), cluster()) is None

    def test_selectors_cordons_cpu_and_memory_are_known_to_every_scheduler(self, scheduler):
        world = cluster(
            node("a", V100, unavailable="cordoned"),
            node("b", V100),
            node("c", V100, cpu=4.0),
            node("d", V100, memory=8),
            node("e", V100),
        )
        request = Request(workers=3, gpus=1, cpu=4.0, memory=8, excluded={"b": Reason.SELECTOR})
        found = scheduler(Request(workers=3, gpus=1, excluded={"b": Reason.SELECTOR}), world)
        assert not {"a", "b"} & found.loads.keys()
        found = scheduler(request, world)
        assert found.loads.get("c", 0) <= 1
        assert found.loads.get("d", 0) <= 1

    def test_the_nearest_level_that_all_nodes_share_joins_them(self, scheduler):
        def world(*paths):
            return cluster(
                *(node(f"n{at}", HGX, 0b1, domains=path) for at, path in enumerate(paths)),
                tiers=TIERS,
                beyond=3.0,
            )

        request = Request(workers=2, gpus=1, wire=Wire.RDMA)
        near = scheduler(request, world(("s", "r1"), ("s", "r1")))
        far = scheduler(request, world(("s", "r1"), ("s", "r2")))
        apart = scheduler(request, world(("s", "r1"), ("t", "r3")))
        assert [(one.tier, one.bandwidth.point) for one in (near, far, apart)] == [
            ("leaf", pytest.approx(0.931 * 12.5)),
            ("spine", pytest.approx(0.931 * 6)),
            ("beyond", pytest.approx(0.931 * 3)),
        ]

    def test_all_workers_request_the_resource_with_most_gpus(self, scheduler):
        world = cluster(
            node("a", V100, resource="aliyun.com/gpu"), node("b", V100), node("c", V100)
        )
        assert loads(scheduler(Request(workers=16, gpus=1), world)) == {"b": 8, "c": 8}
        assert scheduler(Request(workers=17, gpus=1), world) is None

    def test_models_are_mixed_by_who_does_not_know_them(self, scheduler):
        world = cluster(node("a", V100, 0b1111), node("b", PCIE, 0b1111))
        assert loads(scheduler(Request(workers=8, gpus=1), world)) == {"a": 4, "b": 4}

    def test_on_opaque_nodes_the_worst_free_set_counts(self, scheduler):
        world = cluster(node("a", V100, 0b10011, unattributed=1))
        assert scheduler(Request(workers=2, gpus=1), world).bandwidth.regime is Regime.PCIE

    def test_one_gpu_has_no_bandwidth(self, scheduler):
        found = scheduler(Request(workers=1, gpus=1), cluster(node("a", V100)))
        assert (found.bandwidth, found.tier) == (None, "node")


@given(
    frees=st.lists(st.tuples(st.sampled_from([V100, HGX]), st.integers(0, 255)), max_size=4),
    workers=st.integers(1, 6),
    gpus=st.integers(1, 3),
)
def test_none_of_them_ever_beats_the_solver(frees, workers, gpus):
    world = cluster(*(node(f"n{at}", of, GPUSet(free)) for at, (of, free) in enumerate(frees)))
    request = Request(workers=workers, gpus=gpus, mix_models=True)
    others = [
        one
        for one in (baselines.first_fit(request, world), baselines.place_spread(request, world))
        if one is not None
    ]
    assert all(sum(one.loads.values()) == workers for one in others)
    try:
        found = place(request, world)
    except Unplaceable:
        assert not others
    else:
        for one in others:
            ours, theirs = (
                math.inf if it is None else it.point for it in (found.bandwidth, one.bandwidth)
            )
            # Bandwidths within 10 % are alike, and what is known comes before what is assumed.
            assert theirs <= ours * 1.1 or (found.tier == "node" and one.tier != "node")


# ---------------------------------------------------------------- counting


def test_gangs_are_counted_within_one_model_and_one_resource():
    world = cluster(node("a", V100), node("b", V100, 0b111), node("c", HGX, 0b11111))
    assert baselines.counts(Request(workers=3, gpus=1), world) == baselines.Counts(
        gangs=3 + 1, largest=11, largest_empty=16
    )
    mixed = baselines.counts(Request(workers=3, gpus=1, mix_models=True), world)
    assert (mixed.gangs, mixed.largest, mixed.largest_empty) == (5, 16, 24)


def test_gpus_left_over_on_several_nodes_make_no_worker():
    """Six free and two free are not eight (volcano 5751)."""
    world = cluster(node("a", V100, 0b111111), node("b", V100, 0b11))
    assert baselines.counts(Request(workers=1, gpus=8), world) == baselines.Counts(
        gangs=0, largest=0, largest_empty=2
    )


def test_an_empty_cluster_counts_nothing():
    assert baselines.counts(Request(workers=1, gpus=1), cluster()) == baselines.Counts(
        gangs=0, largest=0, largest_empty=0
    )
