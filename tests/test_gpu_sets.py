"""What sets of GPUs are worth, the best and the worst of them, and how workers share them out."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from cube_mesh import (
    HGX,
    OFF_THE_SWITCH,
    P100,
    PCIE,
    V100,
    V100_LANES,
    WEAK_ON_THE_SWITCH,
    machine,
    matrix,
    on_a_switch,
)
from hypothesis import given
from hypothesis import strategies as st

from arena_topo.bandwidth import Host, Limit
from arena_topo.bandwidth.one_host import inside
from arena_topo.solver.gpu_sets import CHOICES, GPUSets, choices
from arena_topo.topology import (
    GPUSet,
    Link,
    LinkKind,
    Machine,
    behind_nvswitch,
    gpu_set,
    members,
    presets,
)


def sets_of(of: Machine) -> GPUSets:
    return GPUSets(of.configuration)


def every(free: GPUSet, size: int) -> list[GPUSet]:
    return [gpu_set(chosen) for chosen in itertools.combinations(members(free), size)]


def agrees(of: Machine, sizes: range | None = None) -> None:
    """Every set has the value that `bandwidth` gives it on a host of its own."""
    found = sets_of(of)
    for size in sizes or range(2, len(of.gpus) + 1):
        for chosen in every(of.everything, size):
            assert found.value(chosen) == inside(Host.of(of, chosen)).point


@pytest.mark.parametrize("name", presets.preset_names())
def test_every_set_of_a_preset_is_worth_what_the_model_says(name: str):
    of = presets.preset_machine(name, name)
    agrees(of, range(2, 9) if len(of.gpus) <= 8 else range(2, 3))


@pytest.mark.parametrize(
    "of", [P100, V100, HGX, PCIE, OFF_THE_SWITCH, WEAK_ON_THE_SWITCH, on_a_switch(4, 3)]
)
def test_every_set_of_a_machine_is_worth_what_the_model_says(of: Machine):
    agrees(of)


LINKS = st.sampled_from(
    [
        Link(kind=LinkKind.SYS),
        Link(kind=LinkKind.NODE),
        Link(kind=LinkKind.PIX),
        Link(kind=LinkKind.NVLINK, lanes=1),
        Link(kind=LinkKind.NVLINK, lanes=2),
        Link(kind=LinkKind.NVLINK, lanes=18),
    ]
)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Small machines with any links, some with measured sets."""
    size = draw(st.integers(2, 6))
    pairs = {pair: draw(LINKS) for pair in itertools.combinations(range(size), 2)}
    links = tuple(
        tuple(None if a == b else pairs[min(a, b), max(a, b)] for b in range(size))
        for a in range(size)
    )
    model = draw(st.sampled_from(["V100", "H100", "T4", "RTX 4090", "Mystery"]))
    measured = draw(
        st.dictionaries(
            st.integers(3, (1 << size) - 1).filter(lambda bits: bits.bit_count() > 1),
            st.floats(1, 500),
            max_size=2,
        )
    )
    of = machine("odd", model, links)
    return replace(
        of,
        nvswitch=behind_nvswitch(model, links),
        measured=tuple((GPUSet(bits), rate) for bits, rate in measured.items()),
    )


@given(machines())
def test_every_set_of_any_machine_is_worth_what_the_model_says(of: Machine):
    agrees(of)


@given(machines(), st.integers(0, 63))
def test_the_best_is_that_of_all_sets(of: Machine, bits: int):
    found, free = sets_of(of), GPUSet(bits & of.everything)
    for size in range(1, len(members(free)) + 1):
        values = [found.value(chosen) for chosen in every(free, size)]
        assert found.best(free, size) == max(values)
    assert found.best(free, len(members(free)) + 1) == 0


@given(machines())
def test_exchanging_equivalent_gpus_changes_no_value(of: Machine):
    found = sets_of(of)
    for one, other in itertools.combinations(range(found.size), 2):
        if found.alike[one] == found.alike[other]:
            both = 1 << one | 1 << other
            for bits in range(1, 1 << found.size):
                if bits & both not in (0, both):
                    assert found.value(GPUSet(bits)) == found.value(GPUSet(bits ^ both))


def tree(size: int) -> Machine:
    """PCIe switches of four GPUs, two of them to a socket."""

    def link(one: int, other: int) -> Link | None:
        if one == other:
            return None
        if one // 8 != other // 8:
            return Link(kind=LinkKind.SYS)
        return Link(kind=LinkKind.PIX if one // 4 == other // 4 else LinkKind.PHB)

    links = tuple(tuple(link(a, b) for b in range(size)) for a in range(size))
    return machine(f"tree-{size}", "L40S", links)


PAIRS = machine("pairs", "A100", matrix(16, {(one, one + 1): 12 for one in range(0, 16, 2)}))
TWO_MESHES = machine(
    "two meshes",
    "V100",
    matrix(
        16,
        V100_LANES | {(one + 8, other + 8): lanes for (one, other), lanes in V100_LANES.items()},
        Link(kind=LinkKind.SYS),
    ),
)


@pytest.mark.parametrize("of", [tree(16), PAIRS], ids=lambda of: of.name)
def test_sixteen_gpus_have_the_best_of_all_their_sets(of: Machine):
    found = sets_of(of)
    for free, sizes in (
        (of.everything, (2, 3)),
        (GPUSet(0x7FFF & ~0x4102), (2,)),
        (GPUSet(0x0FFC), (2, 3, 4)),
    ):
        for size in sizes:
            values = {inside(Host.of(of, chosen)).point for chosen in every(free, size)}
            assert found.best(free, size) == max(values)
            assert found.certain(free, size)


def test_two_meshes_in_one_machine_are_worth_what_each_is_and_little_together():
    found, mesh = sets_of(TWO_MESHES), sets_of(V100)
    for bits in (0b1111, 0b110011, 0b11111111):
        assert found.value(GPUSet(bits << 8)) == mesh.value(GPUSet(bits))
        assert found.value(GPUSet(bits | 1 << 12)) < mesh.value(GPUSet(0b11)) or bits == 0b1111


@pytest.mark.parametrize("size", [2, 4, 8])
def test_sixteen_gpus_are_shared_out_whole(size: int):
    groups = sets_of(TWO_MESHES).split(TWO_MESHES.everything, size)
    assert sorted(itertools.chain(*groups)) == list(range(16))
    assert {len(group) for group in groups} == {size}


def test_too_many_sets_are_not_enumerated_but_marked_uncertain():
    kinds = [LinkKind.PIX, LinkKind.PHB, LinkKind.NODE, LinkKind.SYS]
    links = tuple(
        tuple(None if a == b else Link(kind=kinds[(a * b + a + b) % 7 % 4]) for b in range(32))
        for a in range(32)
    )
    knot = machine("knot", "L40S", links)
    found = sets_of(knot)
    assert not found.certain(knot.everything, 16)
    assert found.best(knot.everything, 16) > 0
    assert sorted(found.order(knot.everything)) == list(range(32))
    assert sorted(itertools.chain(*found.split(knot.everything, 4))) == list(range(32))


def test_a_gpu_off_the_switch_slows_the_sets_with_it_and_no_others():
    """Its row says PIX, PHB and SYS; the links of the others are up."""
    found = sets_of(OFF_THE_SWITCH)
    up = OFF_THE_SWITCH.everything & ~1
    for size in range(2, 8):
        assert found.best(OFF_THE_SWITCH.everything, size) == found.best(GPUSet(up), size) > 300
        assert found.value(GPUSet((1 << size) - 1)) < 50
    assert found.value(OFF_THE_SWITCH.everything) < 50


def test_a_gpu_with_fewer_links_to_the_switch_is_worth_those():
    found = sets_of(WEAK_ON_THE_SWITCH)
    for chosen in every(WEAK_ON_THE_SWITCH.everything, 4):
        weak = bool(chosen & 1)
        assert (found.value(chosen) < found.value(GPUSet(0b11110))) is weak


def test_a_measured_value_replaces_the_computed_value():
    quad = gpu_set((0, 1, 2, 3))
    found = sets_of(replace(V100, measured=((quad, 71.5),)))
    assert found.value(quad) == 71.5
    assert found.facts.inside(quad).limited_by is Limit.NVLINK


def test_sets_equivalent_to_a_measured_set_have_at_most_its_value():
    quad, twin = gpu_set((0, 1, 2, 3)), gpu_set((4, 5, 6, 7))
    other = gpu_set((0, 1, 4, 5))
    found = sets_of(replace(V100, measured=((quad, 61.5),)))
    assert found.value(twin) == pytest.approx(61.5)
    assert found.value(other) == sets_of(V100).value(other)
    # The range of the model remains, in proportion.
    before, after = sets_of(V100).facts.inside(twin), found.facts.inside(twin)
    assert after.low / after.point == pytest.approx(before.low / before.point)
    both = sets_of(replace(V100, measured=((quad, 61.5), (twin, 78.9))))
    assert (both.value(quad), both.value(twin)) == (61.5, 78.9)


def test_the_lowest_of_equivalent_measured_sets_is_the_value_of_the_others():
    pairs = {gpu_set((0, 3)): 44.0, gpu_set((1, 2)): 36.0}
    found = sets_of(replace(V100, measured=tuple(pairs.items())))
    assert found.value(gpu_set((5, 6))) == pytest.approx(36.0)
    assert found.value(gpu_set((0, 1))) == sets_of(V100).value(gpu_set((0, 1)))


def test_a_single_gpu_has_no_bandwidth():
    assert sets_of(V100).value(GPUSet(1)) == math.inf


def test_the_best_ring_puts_neighbours_side_by_side():
    assert sets_of(V100).order(gpu_set((0, 1, 4, 5))) == (0, 1, 5, 4)


def test_workers_of_two_gpus_get_the_double_links():
    groups = sets_of(V100).split(gpu_set(range(8)), 2)
    assert sorted(members(gpu_set(group)) for group in groups) == [(0, 3), (1, 2), (4, 7), (5, 6)]


def test_choices_are_few_even_if_equivalent_gpus_are_not_adjacent():
    alike = (0, 1, 2, 3) * 3
    whole = GPUSet((1 << 12) - 1)
    found = [*choices(whole, 6, alike)]
    assert {
        tuple(sorted(alike[gpu] for gpu in one)) for one in itertools.combinations(range(12), 6)
    } == {tuple(sorted(alike[gpu] for gpu in members(one))) for one in found}
    kinds = [tuple(sorted(alike[gpu] for gpu in members(one))) for one in found]
    assert len(set(kinds)) == len(kinds)


def test_the_sets_enumerated_stay_few_whatever_the_machine():
    assert math.comb(16, 8) <= CHOICES < math.comb(18, 9)
    large = tree(20)
    assert sum(1 for _ in sets_of(large).choices(large.everything, 10)) < 1000
