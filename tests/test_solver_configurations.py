"""What sets of GPUs are worth: published censuses, hand-made machines, and laws."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import networkx as nx
import pytest
from cube_mesh import HGX, P100, P100_LANES, PCIE, V100, V100_LANES, machine, matrix
from hypothesis import given
from hypothesis import strategies as st

from arena_topo.solver import cost
from arena_topo.solver.configurations import Table
from arena_topo.topology import GPUSet, Link, LinkKind, flat, gpu_set, members


def sets(size: int, most: int = 8):
    return [gpu_set(chosen) for chosen in itertools.combinations(range(most), size)]


def ring_census(lanes_of: list[list[int]], size: int) -> dict[int, int]:
    if size == 2:
        return dict(Counter(lanes_of[a][b] for a, b in itertools.combinations(range(8), 2)))
    return dict(Counter(cost.most_rings(lanes_of, one) for one in sets(size)))


V100_CENSUS = {
    2: {2: 8, 1: 8, 0: 12},
    3: {1: 8, 0: 48},
    4: {2: 2, 1: 6, 0: 62},
    5: {1: 24, 0: 32},
    6: {2: 4, 1: 24},
    7: {2: 8},
    8: {3: 1},
}
# Where the fractional packing is 1.5 rings, one whole ring fits beside nothing else.
P100_CENSUS = {
    2: {1: 16, 0: 12},
    3: {1: 8, 0: 48},
    4: {1: 8, 0: 62},
    5: {1: 24, 0: 32},
    6: {1: 28},
    7: {1: 8},
    8: {2: 1},
}


@pytest.mark.parametrize("size", range(2, 9))
def test_the_ring_census_of_a_dgx1_v100_is_the_published_one(size):
    assert ring_census(cost.lanes(V100.links), size) == V100_CENSUS[size]


@pytest.mark.parametrize("size", range(2, 9))
def test_the_ring_census_of_a_dgx1_p100_is_the_published_one(size):
    assert ring_census(cost.lanes(P100.links), size) == P100_CENSUS[size]


@pytest.mark.parametrize(("lanes_of", "expected"), [(V100_LANES, 46), (P100_LANES, 14)])
def test_a_dgx1_has_as_many_connected_nvlink_shapes_as_blink_counted(lanes_of, expected):
    """46 (V100) and 14 (P100) shapes of 3 to 8 GPUs: Wang et al., Blink, MLSys 2020."""
    shapes: list[nx.Graph] = []
    for size in range(3, 9):
        for chosen in itertools.combinations(range(8), size):
            graph = nx.Graph()
            graph.add_nodes_from(chosen)
            for (one, other), lanes in lanes_of.items():
                if one in chosen and other in chosen:
                    graph.add_edge(one, other, lanes=lanes)
            if nx.is_connected(graph) and not any(
                len(known) == size
                and nx.is_isomorphic(known, graph, edge_match=lambda a, b: a["lanes"] == b["lanes"])
                for known in shapes
            ):
                shapes.append(graph)
    assert len(shapes) == expected


@pytest.mark.parametrize(
    ("gpus", "bandwidth"),
    [
        ((0,), math.inf),
        ((0, 3), 40),
        ((0, 1), 20),
        ((0, 6), 9),
        ((0, 5), 9),
        ((0, 1, 2), 40),
        ((0, 3, 4), 9),
        ((0, 1, 2, 3), 80),
        ((4, 5, 6, 7), 80),
        ((0, 3, 4, 7), 40),
        ((0, 1, 2, 4), 9),
        ((0, 1, 4, 5), 40),
        (tuple(range(8)), 120),
    ],
)
def test_bandwidth_of_gpu_sets_of_a_dgx1_v100(gpus, bandwidth):
    assert Table(V100.configuration).value(gpu_set(gpus)) == bandwidth


@pytest.mark.parametrize(("size", "bandwidth"), [(1, math.inf), (2, 240), (5, 240), (8, 240)])
def test_behind_an_nvswitch_only_the_number_of_gpus_counts(size, bandwidth):
    shape = Table(HGX.configuration)
    assert shape.uniform
    assert {shape.value(one) for one in sets(size)} == {bandwidth}


@pytest.mark.parametrize(
    ("gpus", "bandwidth"), [((0, 1), 12), ((0, 2), 11), ((0, 4), 9), ((0, 1, 2, 3), 11)]
)
def test_without_nvlink_the_slowest_link_of_the_best_ring_counts(gpus, bandwidth):
    assert Table(PCIE.configuration).value(gpu_set(gpus)) == bandwidth


def test_a_full_mesh_without_a_switch_packs_as_many_rings_as_its_lanes_allow():
    mesh = machine("a100-4", "A100", flat(4, Link(kind=LinkKind.NVLINK, lanes=4)))
    shape = Table(mesh.configuration)
    assert not mesh.nvswitch
    assert [shape.value(gpu_set(range(size))) for size in (2, 3, 4)] == [80, 160, 240]


def test_a_known_pcie_generation_doubles_the_paths_and_nothing_else():
    doubled = Table(
        V100.configuration.__class__(
            model="V100", links=V100.links, nvswitch=False, pcie_generation=4
        )
    )
    assert doubled.value(gpu_set((0, 6))) == 18
    assert doubled.value(gpu_set((0, 3))) == 40


def test_a_measured_bandwidth_overrides_the_computed_one():
    quad = gpu_set((0, 1, 2, 3))
    shape = Table(
        V100.configuration.__class__(
            model="V100",
            links=V100.links,
            nvswitch=False,
            pcie_generation=None,
            measured=((quad, 71.5),),
        )
    )
    assert shape.value(quad) == 71.5
    assert shape.value(gpu_set((4, 5, 6, 7))) == 80


def test_an_unknown_model_counts_lanes_at_the_assumed_rate():
    unknown = machine("unknown", "Mystery", V100.links)
    assert cost.rate_is_assumed("Mystery")
    assert Table(unknown.configuration).value(gpu_set((0, 3))) == 40


def test_hidden_gpus_make_a_node_worth_its_worst_free_set():
    shape = Table(V100.configuration)
    everything = GPUSet(255)
    # Four of eight are free, nobody says which: no four GPUs without a ring may be left out.
    assert shape.best_hidden(everything, 4, 4) == 9
    # One hidden GPU leaves seven: every seven still hold a quad of two rings or of one.
    assert shape.best_hidden(everything, 1, 4) == 80


def test_the_best_ring_puts_neighbours_side_by_side():
    shape = Table(V100.configuration)
    assert shape.order(gpu_set((0, 1, 4, 5))) == (0, 1, 5, 4)


def test_workers_of_two_gpus_get_the_double_links():
    shape = Table(V100.configuration)
    groups = shape.split(gpu_set(range(8)), 2)
    assert sorted(members(gpu_set(group)) for group in groups) == [(0, 3), (1, 2), (4, 7), (5, 6)]


lanes_of_small_machines = st.integers(3, 6).flatmap(
    lambda size: st.fixed_dictionaries(
        {pair: st.integers(0, 3) for pair in itertools.combinations(range(size), 2)}
    ).map(lambda lanes: (size, lanes))
)


def every_packing(lanes_of: dict[tuple[int, int], int], size: int) -> int:
    """Most edge-disjoint rings by trying all of them in all orders; slow and obvious."""
    rings = []
    for order in itertools.permutations(range(1, size)):
        if order[0] < order[-1]:
            path = (0, *order, 0)
            rings.append([tuple(sorted(edge)) for edge in itertools.pairwise(path)])

    def most(left: dict[tuple[int, int], int]) -> int:
        return max(
            (
                1 + most(left | {edge: left[edge] - 1 for edge in ring})
                for ring in rings
                if all(left[edge] > 0 for edge in ring)
            ),
            default=0,
        )

    return most(lanes_of)


@given(
    st.integers(3, 5).flatmap(
        lambda size: st.fixed_dictionaries(
            {pair: st.integers(0, 2) for pair in itertools.combinations(range(size), 2)}
        ).map(lambda lanes: (size, lanes))
    )
)
def test_ring_packing_equals_trying_everything(small):
    size, lanes_of = small
    table = cost.lanes(matrix(size, lanes_of, Link(kind=LinkKind.SYS)))
    assert cost.most_rings(table, gpu_set(range(size))) == every_packing(lanes_of, size)


@given(lanes_of_small_machines)
def test_ring_packing_never_exceeds_two_lanes_per_gpu_and_ring(small):
    size, lanes_of = small
    table = cost.lanes(matrix(size, lanes_of, Link(kind=LinkKind.SYS)))
    for bits in range(7, 1 << size):
        one = members(GPUSet(bits))
        if len(one) >= 3:
            lanes_each = [sum(table[gpu][other] for other in one) for gpu in one]
            assert cost.most_rings(table, gpu_set(one)) <= min(lanes_each) // 2


@given(lanes_of_small_machines, st.randoms(use_true_random=False))
def test_relabelling_gpus_relabels_the_values(small, random):
    size, lanes_of = small
    relabelled = list(range(size))
    random.shuffle(relabelled)
    moved = {
        tuple(sorted((relabelled[a], relabelled[b]))): lanes for (a, b), lanes in lanes_of.items()
    }
    links = Link(kind=LinkKind.SYS)
    before = Table(machine("m", "V100", matrix(size, lanes_of, links)).configuration)
    after = Table(machine("m", "V100", matrix(size, moved, links)).configuration)
    for bits in range(1, 1 << size):
        image = gpu_set(relabelled[gpu] for gpu in members(GPUSet(bits)))
        assert before.value(GPUSet(bits)) == after.value(image)


@given(lanes_of_small_machines)
def test_the_slowest_link_of_the_best_ring_equals_trying_every_ring(small):
    size, lanes_of = small
    links = matrix(size, lanes_of, Link(kind=LinkKind.NODE))
    one = machine("m", "V100", links)
    shape = Table(one.configuration)
    rates = [
        [0 if link is None else cost.link_rate(link, one.configuration) for link in row]
        for row in links
    ]
    everything = gpu_set(range(size))
    if cost.most_rings(cost.lanes(links), everything) == 0 and not one.nvswitch:
        best = max(
            min(rates[a][b] for a, b in itertools.pairwise((0, *order, 0)))
            for order in itertools.permutations(range(1, size))
        )
        assert shape.value(everything) == best
