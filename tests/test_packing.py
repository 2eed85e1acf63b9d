"""Rings through sets of GPUs: published censuses, and all packings of small machines tried."""

from __future__ import annotations

import itertools
from collections import Counter

import networkx as nx
import pytest
from cube_mesh import P100, P100_LANES, V100, V100_LANES, matrix
from hypothesis import given
from hypothesis import strategies as st

from arena_topo.bandwidth import packing
from arena_topo.topology import GPUSet, Link, LinkKind, gpu_set, members


def sets(size: int, most: int = 8):
    return [gpu_set(chosen) for chosen in itertools.combinations(range(most), size)]


def ring_census(lanes_of: list[list[int]], size: int) -> dict[int, int]:
    if size == 2:
        return dict(Counter(lanes_of[a][b] for a, b in itertools.combinations(range(8), 2)))
    return dict(Counter(packing.most_rings(lanes_of, one) for one in sets(size)))


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
    assert ring_census(packing.lanes(V100.links), size) == V100_CENSUS[size]


@pytest.mark.parametrize("size", range(2, 9))
def test_the_ring_census_of_a_dgx1_p100_is_the_published_one(size):
    assert ring_census(packing.lanes(P100.links), size) == P100_CENSUS[size]


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
    table = packing.lanes(matrix(size, lanes_of, Link(kind=LinkKind.SYS)))
    assert packing.most_rings(table, gpu_set(range(size))) == every_packing(lanes_of, size)


@given(lanes_of_small_machines)
def test_ring_packing_never_exceeds_two_lanes_per_gpu_and_ring(small):
    size, lanes_of = small
    table = packing.lanes(matrix(size, lanes_of, Link(kind=LinkKind.SYS)))
    for bits in range(7, 1 << size):
        one = members(GPUSet(bits))
        if len(one) >= 3:
            lanes_each = [sum(table[gpu][other] for other in one) for gpu in one]
            assert packing.most_rings(table, gpu_set(one)) <= min(lanes_each) // 2


@pytest.mark.parametrize("lanes_each", [1, 2, 3])
@pytest.mark.parametrize("size", [3, 4, 5])
def test_a_full_mesh_packs_as_many_rings_as_trying_everything_finds(size, lanes_each):
    """Walecki's construction and its multiples, which are taken from the books for any size."""
    alike = [[0 if a == b else lanes_each for b in range(size)] for a in range(size)]
    pairs = dict.fromkeys(itertools.combinations(range(size), 2), lanes_each)
    assert packing.most_rings(alike, gpu_set(range(size))) == every_packing(pairs, size)


AWKWARD = [
    "013333 101131 310111 311011 331101 311110",
    "021211 200131 100311 213032 131301 111210",
]
"""Lanes of six GPUs, a row each, through which three rings run that laying greedily misses."""


def rows(text: str) -> list[list[int]]:
    return [[int(digit) for digit in row] for row in text.split()]


@pytest.mark.parametrize("text", AWKWARD)
def test_rings_that_greedy_laying_misses_are_found(text):
    table = rows(text)
    pairs = {(a, b): table[a][b] for a, b in itertools.combinations(range(6), 2)}
    assert packing.most_rings(table, GPUSet(63)) == every_packing(pairs, 6) == 3


@given(lanes_of_small_machines, st.integers(0, 60))
def test_a_search_for_rings_that_is_cut_short_finds_no_more_than_there_are(small, effort):
    size, lanes_of = small
    table = [
        [lanes_of.get((min(a, b), max(a, b)), 0) if a != b else 0 for b in range(size)]
        for a in range(size)
    ]
    found = packing.most_rings(table, gpu_set(range(size)), effort=effort)
    assert found <= every_packing(lanes_of, size)
