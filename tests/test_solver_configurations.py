"""What sets of GPUs are worth: published censuses, hand-made machines, and laws."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace

import networkx as nx
import pytest
from cube_mesh import (
    HGX,
    OFF_THE_SWITCH,
    P100,
    P100_LANES,
    PCIE,
    V100,
    V100_LANES,
    WEAK_ON_THE_SWITCH,
    machine,
    matrix,
)
from hypothesis import given
from hypothesis import strategies as st

from arena_topo.bandwidth import packing
from arena_topo.solver import cost, families
from arena_topo.solver.configurations import CHOICES, Table, choices, many_choices
from arena_topo.topology import (
    Configuration,
    GPUSet,
    Link,
    LinkKind,
    Machine,
    count,
    flat,
    gpu_set,
    members,
)


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


def test_a_gpu_off_the_switch_slows_the_sets_with_it_and_no_others():
    """Its row says PIX, PHB and SYS; the links of the others are up."""
    shape = Table(OFF_THE_SWITCH.configuration)
    values = {chosen: shape.value(gpu_set(chosen)) for chosen in ((0, 1), (0, 4), (1, 2), (1, 4))}
    assert values == {(0, 1): 12, (0, 4): 9, (1, 2): 370.8, (1, 4): 370.8}
    for size in range(2, 8):
        assert shape.best(GPUSet(255), size) == 370.8
        assert shape.worst(GPUSet(255), size) in {9, 11}
    assert shape.value(GPUSet(255)) == 11


def test_a_gpu_with_fewer_links_to_the_switch_is_worth_those():
    shape = Table(WEAK_ON_THE_SWITCH.configuration)
    for size in range(2, 9):
        with_it = {shape.value(one) for one in sets(size) if one & 1}
        assert with_it == {14 * 20.6}
        assert {shape.value(one) for one in sets(size) if not one & 1} <= {370.8}


@given(st.data())
def test_behind_a_switch_a_set_is_worth_the_slowest_link_of_its_best_ring(data):
    """Compared with all rings of all sets, on switches of which any links may be down."""
    size = data.draw(st.integers(3, 6))
    up = [data.draw(st.sampled_from((18, 18, 18, 14, 0))) for _ in range(size)]
    lanes = {
        (one, other): min(up[one], up[other])
        for one, other in itertools.combinations(range(size), 2)
    }
    of = replace(machine("odd", "H100", matrix(size, lanes)), nvswitch=True)
    shape = Table(of.configuration)
    rates = {
        pair: cost.link_rate(of.link(*pair), of.configuration)
        for pair in itertools.permutations(range(size), 2)
    }
    values: dict[int, list[float]] = {}
    for many in range(2, size + 1):
        for chosen in itertools.combinations(range(size), many):
            rings = (
                [*itertools.pairwise((*order, order[0]))]
                for order in itertools.permutations(chosen)
            )
            expected = max(min(rates[pair] for pair in ring) for ring in rings)
            assert shape.value(gpu_set(chosen)) == expected
            if min(up[gpu] for gpu in chosen):
                assert expected == min(up[gpu] for gpu in chosen) * 20.6
            values.setdefault(many, []).append(expected)
    for many, found in values.items():
        assert shape.best(of.everything, many) == max(found)
        assert shape.worst(of.everything, many) == min(found)


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
    if packing.most_rings(packing.lanes(links), everything) == 0 and not one.nvswitch:
        best = max(
            min(rates[a][b] for a, b in itertools.pairwise((0, *order, 0)))
            for order in itertools.permutations(range(1, size))
        )
        assert shape.value(everything) == best


# ---------------------------------------------------------------- families of sets


graphs = st.integers(2, 7).flatmap(
    lambda size: st.sets(st.sampled_from([*itertools.combinations(range(size), 2)])).map(
        lambda edges: (size, edges)
    )
)


def closes_a_ring(edges: set[tuple[int, int]], inside: tuple[int, ...]) -> bool:
    """Whether a ring runs through exactly these vertices, by trying all orders."""
    return len(inside) > 1 and any(
        all(
            tuple(sorted(edge)) in edges
            for edge in itertools.pairwise((inside[0], *order, inside[0]))
        )
        for order in itertools.permutations(inside[1:])
    )


@given(graphs)
def test_the_family_of_rings_is_what_trying_all_orders_finds(graph):
    size, edges = graph
    adjacent = tuple(
        sum(1 << other for other in range(size) if tuple(sorted((one, other))) in edges)
        for one in range(size)
    )
    expected = {bits for bits in range(1 << size) if closes_a_ring(edges, members(GPUSet(bits)))}
    assert set(families.listed(families.rings(adjacent))) == expected


sized_families = st.integers(1, 6).flatmap(
    lambda size: st.sets(st.integers(0, (1 << size) - 1)).map(lambda some: (size, some))
)


@given(sized_families)
def test_the_upward_closure_holds_every_set_that_contains_one_of_the_family(one):
    size, some = one
    closed = set(families.listed(families.upward(size, sum(1 << bits for bits in some))))
    assert closed == {
        bits for bits in range(1 << size) if any(inside & ~bits == 0 for inside in some)
    }


@given(sized_families, st.integers(1, 3))
def test_packed_families_count_the_disjoint_sets_that_fit(one, chosen):
    size, some = one
    groups = [bits for bits in some if bits.bit_count() == chosen]

    def most(free: int) -> int:
        inside = [bits for bits in groups if bits & ~free == 0]
        return max((1 + most(free & ~bits) for bits in inside), default=0)

    packed = families.packed(size, sum(1 << bits for bits in some), chosen)
    for free in range(1 << size):
        assert sum(family >> free & 1 for family in packed) == most(free)


@given(sized_families, st.integers(0, 4))
def test_saturated_families_have_enough_lanes_at_every_gpu(one, least):
    size, some = one
    lanes_of = [
        [(7 * a * b + a + b + len(some)) % 3 if a != b else 0 for b in range(size)]
        for a in range(size)
    ]
    family = families.saturated(lanes_of, least)
    assert set(families.listed(family)) == {
        bits
        for bits in range(1 << size)
        if all(
            sum(lanes_of[a][b] for b in members(GPUSet(bits))) >= least
            for a in members(GPUSet(bits))
        )
    }


# ---------------------------------------------------------------- all sets at once


words = st.sampled_from(["SYS", "NODE", "PHB", "PIX", "NV1", "NV2"]).map(Link.parse)
small_machines = st.integers(2, 6).flatmap(
    lambda size: st.tuples(
        st.just(size),
        st.fixed_dictionaries(dict.fromkeys(itertools.combinations(range(size), 2), words)),
        st.sampled_from([None, 5]),
        st.dictionaries(
            st.integers(3, (1 << size) - 1).filter(lambda bits: bits.bit_count() > 1),
            st.sampled_from([1.0, 9.0, 33.0, 200.0]),
            max_size=3,
        ),
    )
)


def configured(small) -> Configuration:
    size, links, generation, measured = small
    return Configuration(
        model="V100",
        links=tuple(
            tuple(None if a == b else links[min(a, b), max(a, b)] for b in range(size))
            for a in range(size)
        ),
        nvswitch=False,
        pcie_generation=generation,
        measured=tuple((GPUSet(bits), value) for bits, value in measured.items()),
    )


def worth(of: Configuration, gpus: GPUSet) -> float:
    """V(S) as the documentation defines it, by trying all rings."""
    measured = dict(of.measured)
    if gpus in measured:
        return measured[gpus]
    inside = members(gpus)
    rates = [[0.0 if one is None else cost.link_rate(one, of) for one in row] for row in of.links]
    if len(inside) < 3:
        return math.inf if len(inside) < 2 else rates[inside[0]][inside[1]]
    place = {gpu: at for at, gpu in enumerate(inside)}
    lanes_of = packing.lanes(of.links)
    among = {(place[a], place[b]): lanes_of[a][b] for a, b in itertools.combinations(inside, 2)}
    rings = (
        packing.most_rings(lanes_of, gpus) if len(inside) > 5 else every_packing(among, len(inside))
    )
    if rings:
        return 2 * rings * cost.lane_rate(of.model)
    return max(
        min(rates[a][b] for a, b in itertools.pairwise((inside[0], *order, inside[0])))
        for order in itertools.permutations(inside[1:])
    )


@given(small_machines)
def test_every_set_is_worth_what_trying_all_rings_gives(small):
    of = configured(small)
    shape = Table(of)
    for bits in range(1, 1 << shape.size):
        assert shape.value(GPUSet(bits)) == worth(of, GPUSet(bits))
    assert shape.certified


@given(small_machines)
def test_layers_answer_for_the_best_and_the_worst_sets_what_going_through_them_gives(small):
    size, links, generation, _ = small
    shape = Table(configured((size, links, generation, {})))
    values = {bits: shape.value(GPUSet(bits)) for bits in range(1 << size)}
    for free in range(1 << size):
        inside = [bits for bits in values if bits & ~free == 0]
        for many in range(2, free.bit_count() + 1):
            some = [values[bits] for bits in inside if bits.bit_count() == many]
            rests = {
                left: min(
                    max(
                        values[bits]
                        for bits in inside
                        if bits.bit_count() == many and not bits & ~rest
                    )
                    for rest in inside
                    if rest.bit_count() == left
                )
                for left in range(many, free.bit_count() + 1)
            }
            for layer in shape.layers:
                assert layer.fits(free, many) == (max(some) >= layer.bandwidth)
                assert layer.has_slower(free, many) == (min(some) < layer.bandwidth)
                for left, least in rests.items():
                    assert layer.fits_any(free, left, many) == (least >= layer.bandwidth)


def two_sockets(name: str, model: str, size: int, lanes_of: dict[tuple[int, int], int]) -> Machine:
    return machine(name, model, matrix(size, lanes_of, Link(kind=LinkKind.SYS)))


TWO_MESHES = two_sockets(
    "two cube meshes",
    "V100",
    16,
    V100_LANES | {(one + 8, other + 8): lanes for (one, other), lanes in V100_LANES.items()},
)
PAIRS = machine("pairs", "A100", matrix(16, {(one, one + 1): 12 for one in range(0, 16, 2)}))
QUADS = two_sockets(
    "quads",
    "A100",
    16,
    {
        (one + first, other + first): 4
        for first in (0, 4, 8, 12)
        for one, other in itertools.combinations(range(4), 2)
    },
)
TORUS = two_sockets(
    "torus",
    "P100",
    16,
    {
        (min(one, other), max(one, other)): 1
        for one in range(16)
        for other in (one // 4 * 4 + (one + 1) % 4, (one + 4) % 16)
    },
)


def box(size: int, *levels: tuple[int, LinkKind]) -> Machine:
    """A PCIe tree: GPUs of the same group of so many are joined by the first kind that fits."""

    def link(one: int, other: int) -> Link | None:
        if one == other:
            return None
        kinds = (kind for many, kind in levels if one // many == other // many)
        return Link(kind=next(kinds, LinkKind.SYS))

    return machine(
        "box", "L40S", tuple(tuple(link(a, b) for b in range(size)) for a in range(size))
    )


TREE = box(20, (4, LinkKind.PIX), (8, LinkKind.PHB))


def test_two_meshes_in_one_machine_are_worth_what_each_is_and_little_together():
    shape, mesh = Table(TWO_MESHES.configuration), Table(V100.configuration)
    for bits in range(1, 256):
        assert shape.value(GPUSet(bits)) == mesh.value(GPUSet(bits))
        assert shape.value(GPUSet(bits << 8)) == mesh.value(GPUSet(bits))
        assert shape.value(GPUSet(bits | 256)) == 9
    assert shape.certified


@pytest.mark.parametrize("of", [TWO_MESHES, PAIRS, QUADS, TORUS, TREE], ids=lambda of: of.name)
def test_large_machines_answer_what_going_through_their_sets_gives(of):
    shape = Table(of.configuration)
    for free in (GPUSet(0xFFFF & ~0x1111), GPUSet(0x7FFF & ~0x4102), GPUSet(0x0FFC)):
        for many in (2, 3, 4, 5, 8):
            values = [
                shape.value(gpu_set(one)) for one in itertools.combinations(members(free), many)
            ]
            assert shape.best(free, many) == max(values)
            assert shape.worst(free, many) == min(values)
    free, hidden = GPUSet(0x0F3C), 3
    rests = [gpu_set(one) for one in itertools.combinations(members(free), count(free) - hidden)]
    for many in (2, 3, 4):
        assert shape.best_hidden(free, hidden, many) == min(
            shape.best(rest, many) for rest in rests
        )


@pytest.mark.parametrize(("many", "best"), [(2, 12), (4, 12), (5, 11), (8, 11), (9, 9), (20, 9)])
def test_a_pcie_tree_of_20_gpus_needs_no_table(many, best):
    shape = Table(TREE.configuration)
    whole = TREE.everything
    assert shape.best(whole, many) == best
    assert shape.bound(whole, many) == best
    assert not shape.tabulated


def test_a_torus_of_16_gpus_has_two_rings_through_all_and_one_through_a_square():
    shape = Table(TORUS.configuration)
    assert shape.value(TORUS.everything) == 2 * 2 * 18
    assert shape.value(gpu_set((0, 1, 4, 5))) == 2 * 18
    assert shape.value(gpu_set((0, 1, 4, 6))) == 9


def tangle(size: int) -> Machine:
    """A mesh without any order: too many rings to try all of their combinations."""
    lanes_of = {
        (one, other): (one * one + 3 * other + one * other) % 7 % 3
        for one, other in itertools.combinations(range(size), 2)
    }
    links = Link(kind=LinkKind.SYS)
    made = machine("tangle", None, matrix(size, lanes_of, links))
    return Machine(name="tangle", gpus=made.gpus, links=made.links, nvswitch=False)


def test_a_packing_that_takes_too_long_shows_its_bound():
    of = tangle(16)
    shape = Table(of.configuration)
    assert not shape.certified
    whole = of.everything
    gaps = []
    for many in range(2, 17):
        best, bound = shape.best(whole, many), shape.bound(whole, many)
        assert best <= bound <= 2 * 20 * (max(map(sum, packing.lanes(of.links))) // 2)
        assert shape.best_hidden(whole, 16 - many, many) <= shape.bound_hidden(
            whole, 16 - many, many
        )
        gaps.append(bound - best)
    assert any(
        shape.bound_hidden(whole, 16 - many, many) > shape.best_hidden(whole, 16 - many, many)
        for many in range(2, 17)
    ) or any(gaps)


def test_more_than_20_gpus_without_order_are_bounded_not_searched():
    kinds = [LinkKind.PIX, LinkKind.PHB, LinkKind.NODE, LinkKind.SYS]
    links = tuple(
        tuple(None if a == b else Link(kind=kinds[(a * b + a + b) % 4]) for b in range(32))
        for a in range(32)
    )
    shape = Table(machine("knot", "L40S", links).configuration)
    whole = GPUSet((1 << 32) - 1)
    assert not shape.certified
    assert shape.best(whole, 2) == shape.bound(whole, 2) == 12
    assert 9 <= shape.best(whole, 16) < shape.bound(whole, 16)
    assert shape.value(whole) == 9
    assert sorted(shape.order(whole)) == list(range(32))
    assert sorted(itertools.chain(*shape.split(whole, 4))) == list(range(32))


def measured(of: Machine, values: dict[GPUSet, float]) -> Table:
    return Table(
        Configuration(
            model=of.model,
            links=of.links,
            nvswitch=of.nvswitch,
            pcie_generation=of.pcie_generation,
            measured=tuple(values.items()),
        )
    )


@pytest.mark.parametrize("of", [TWO_MESHES, PAIRS, TORUS], ids=lambda of: of.name)
def test_measured_sets_of_large_machines_are_exact_too(of):
    slow, fast = gpu_set(range(8)), gpu_set((0, 2, 5, 9))
    shape = measured(of, {slow: 3.0, fast: 500.0, gpu_set((0, 1)): 1.0})
    free = GPUSet(0x0FFF)
    for many in (2, 4, 8):
        values = [shape.value(gpu_set(one)) for one in itertools.combinations(members(free), many)]
        assert shape.best(free, many) == max(values)
        assert shape.worst(free, many) == min(values)
    assert shape.worst(free, 8) == 3
    assert shape.best(free, 4) == 500
    free = gpu_set((0, 1, 2, 5, 9))
    rests = [gpu_set(one) for one in itertools.combinations(members(free), 4)]
    assert shape.best_hidden(free, 1, 2) == min(shape.best(rest, 2) for rest in rests)


def test_a_measured_value_behind_a_switch_leaves_the_other_sets_alike():
    shape = measured(HGX, {gpu_set((0, 1)): 100.0})
    assert shape.value(gpu_set((0, 1))) == 100
    assert {shape.value(one) for one in sets(2)[1:]} == {240}
    assert shape.value(GPUSet(255)) == 240


def test_choices_are_few_also_where_gpus_that_are_alike_do_not_stand_together():
    alike = (0, 1, 2, 3) * 3
    found = [*choices(GPUSet((1 << 12) - 1), 6, alike)]
    assert len(found) == many_choices(GPUSet((1 << 12) - 1), 6, alike)
    kinds = [tuple(sorted(alike[gpu] for gpu in members(one))) for one in found]
    assert len(set(kinds)) == len(kinds)


@pytest.mark.parametrize("free", [0xFFFF, 0xEEEE, 0x0F37])
@pytest.mark.parametrize("of", [TWO_MESHES, PAIRS, QUADS, TREE], ids=lambda of: of.name)
def test_choices_leave_out_only_sets_that_exchange_gpus_alike(of, free):
    shape = Table(of.configuration)

    def kind(chosen: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(shape.alike[gpu] for gpu in chosen))

    firsts: dict[tuple[int, ...], tuple[int, ...]] = {}
    for chosen in itertools.combinations(members(GPUSet(free)), 4):
        firsts.setdefault(kind(chosen), chosen)
    listed = [*choices(GPUSet(free), 4, shape.alike)]
    assert [members(one) for one in listed] == [*firsts.values()]
    assert many_choices(GPUSet(free), 4, shape.alike) == len(listed)


@given(small_machines)
def test_exchanging_gpus_that_are_alike_changes_no_value(small):
    shape = Table(configured(small))
    for one, other in itertools.combinations(range(shape.size), 2):
        if shape.alike[one] != shape.alike[other]:
            continue
        for bits in range(1 << shape.size):
            if bits >> one & 1 and not bits >> other & 1:
                exchanged = bits ^ (1 << one | 1 << other)
                assert shape.value(GPUSet(bits)) == shape.value(GPUSet(exchanged))


@pytest.mark.parametrize(("size", "slowest"), [(2, 40), (4, 80), (8, 120)])
def test_sixteen_gpus_are_shared_out_along_their_meshes(size, slowest):
    shape = Table(TWO_MESHES.configuration)
    groups = shape.split(TWO_MESHES.everything, size)
    assert sorted(itertools.chain(*groups)) == list(range(16))
    assert {len(group) for group in groups} == {size}
    assert {shape.value(gpu_set(group)) for group in groups} == {slowest}


@pytest.mark.parametrize("lanes_each", [1, 2, 3])
@pytest.mark.parametrize("size", [3, 4, 5])
def test_a_full_mesh_packs_as_many_rings_as_trying_everything_finds(size, lanes_each):
    """Walecki's construction and its multiples, which are taken from the books for any size."""
    alike = [[0 if a == b else lanes_each for b in range(size)] for a in range(size)]
    pairs = dict.fromkeys(itertools.combinations(range(size), 2), lanes_each)
    assert packing.most_rings(alike, gpu_set(range(size))) == every_packing(pairs, size)


def test_a_full_mesh_of_16_gpus_is_worth_its_lanes_at_every_size():
    links = flat(16, Link(kind=LinkKind.NVLINK, lanes=1))
    shape = Table(machine("mesh", None, links).configuration)
    assert [shape.best(GPUSet(0xFFFF), many) for many in (2, 3, 8, 15, 16)] == [
        20,
        2 * 20 * 1,
        2 * 20 * 3,
        2 * 20 * 7,
        2 * 20 * 7,
    ]


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


@pytest.mark.parametrize("text", AWKWARD)
def test_however_early_a_search_is_cut_short_it_rules_out_nothing_that_there_is(text):
    table = rows(text)
    for effort in range(1000):
        least, most, _ = packing.ring_bounds(table, GPUSet(63), effort=effort)
        assert least <= 3 <= most


def test_rings_are_bounded_by_the_lanes_across_every_cut():
    """Four lanes at each GPU, but two between the triangles: one ring, known without a search."""
    lanes_of = dict.fromkeys([(0, 1), (0, 2), (1, 2), (3, 4), (3, 5), (4, 5)], 2)
    links = matrix(6, lanes_of | {(0, 3): 1, (1, 4): 1}, Link(kind=LinkKind.SYS))
    least, most, steps = packing.ring_bounds(packing.lanes(links), GPUSet(63))
    assert (least, most) == (1, 1)
    assert steps < 100
    shape = Table(machine("triangles", "V100", links).configuration)
    assert shape.value(GPUSet(63)) == 40
    assert shape.certified


def test_an_nvlink_ring_counts_even_where_pcie_alone_is_faster():
    """Five GPUs along a ring of single lanes, all others gen5 PIX: 48 GB/s, NVLink 2 x 20."""
    lanes_of = dict.fromkeys([(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)], 1)
    links = matrix(5, lanes_of, Link(kind=LinkKind.PIX))
    shape = Table(Configuration(model="V100", links=links, nvswitch=False, pcie_generation=5))
    assert shape.value(gpu_set((0, 2))) == 48
    assert shape.value(GPUSet(31)) == 40


@given(lanes_of_small_machines, st.integers(0, 60))
def test_a_search_for_rings_that_is_cut_short_brackets_the_truth(small, effort):
    size, lanes_of = small
    table = [
        [lanes_of.get((min(a, b), max(a, b)), 0) if a != b else 0 for b in range(size)]
        for a in range(size)
    ]
    least, most, _ = packing.ring_bounds(table, gpu_set(range(size)), effort=effort)
    assert least <= every_packing(lanes_of, size) <= most


@given(small_machines)
def test_values_restored_from_bytes_are_the_ones_that_were_worked_out(small):
    of = configured(small)
    first, again = Table(of), Table(of)
    values = first.values()
    assert again.restore(values)
    for bits in range(1, 1 << first.size):
        assert again.value(GPUSet(bits)) == first.value(GPUSet(bits))
    assert again.certified == first.certified


def test_bytes_that_make_no_sense_are_not_restored():
    shape = Table(TWO_MESHES.configuration)
    values = shape.values()
    other = Table(TWO_MESHES.configuration)
    assert not any(other.restore(values[:end]) for end in range(len(values)))
    assert not other.restore(values + b"\0")
    assert not other.restore(Table(V100.configuration).values())
    assert not other.built


def test_the_sets_gone_through_stay_few_whatever_the_machine():
    assert math.comb(18, 9) <= CHOICES < math.comb(20, 10)
    assert many_choices(TREE.everything, 10, Table(TREE.configuration).alike) < 1000
