"""What the free GPUs are good for: against everything tried by hand on small clusters."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from by_brute_force import level_of
from cube_mesh import HGX, PCIE, V100, cluster, machine, matrix, node
from hypothesis import example, given
from hypothesis import strategies as st

from arena_topo.job import MPIJob
from arena_topo.jobs.proposal import propose
from arena_topo.layout import fold_text
from arena_topo.nodes import fragmentation
from arena_topo.nodes import fragmentation as screen
from arena_topo.nodes.fragmentation import CombinableNodes, Gang, NodeGroup, measure_fragmentation
from arena_topo.solver import Request
from arena_topo.solver.door import Solver
from arena_topo.solver.gpu_sets import GPUSets, gpu_sets
from arena_topo.solver.index import Index
from arena_topo.solver.search import best_choice
from arena_topo.topology import (
    Cluster,
    GPUSet,
    Link,
    LinkKind,
    Machine,
    Node,
    Tier,
    count,
    flat,
    gpu_set,
    members,
    presets,
)

HERE = Path(__file__).parent

FOUR = machine("four", "V100", matrix(4, {(0, 1): 2, (2, 3): 2, (0, 2): 1, (1, 3): 1}))
BRIDGED = machine("bridged", "A6000", matrix(3, {(0, 1): 4}))
MESH = machine("mesh", "V100", flat(4, Link(kind=LinkKind.NVLINK, lanes=2)))
SWITCH = machine("switch", "A100", flat(4, Link(kind=LinkKind.NVLINK, lanes=12)))
SINGLE = machine("single", "V100", flat(1))
MACHINES = (FOUR, BRIDGED, MESH, SWITCH, SINGLE, machine("tree", "V100", matrix(4, {})))


@st.composite
def meshes(draw: st.DrawFn, most: int = 6) -> Machine:
    size = draw(st.integers(1, most))
    pairs = list(itertools.combinations(range(size), 2))
    lanes = draw(st.fixed_dictionaries({pair: st.integers(0, 2) for pair in pairs}))
    return machine("m", "V100", matrix(size, lanes))


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Up to five nodes of up to four GPUs in two tiers, some opaque, some out of order."""
    nodes = []
    for index in range(draw(st.integers(1, 5))):
        of = draw(st.sampled_from(MACHINES))
        free = draw(st.integers(0, of.everything))
        hidden = draw(st.integers(0, max(0, count(GPUSet(free)) - 1)) | st.just(0))
        well = free | draw(st.integers(0, of.everything))
        spine = draw(st.sampled_from("ab"))
        leaf = f"{spine}{draw(st.sampled_from('12'))}"
        nodes.append(
            node(
                f"n{index}",
                of,
                free,
                unattributed=hidden,
                allocatable=draw(st.sampled_from([None, GPUSet(well)])),
                unavailable=draw(st.sampled_from([None, None, None, "cordoned", "NotReady"])),
                domains=(spine, leaf),
                network=draw(st.sampled_from([float("inf"), float("inf"), 6.0])),
            )
        )
    tiers = (Tier(name="spine", bandwidth=5.0), Tier(name="leaf", bandwidth=12.5))
    return cluster(*nodes, tiers=tiers, beyond=1.25)


# ---------------------------------------------------------------- the same by trying everything


def packed(of: GPUSets, free: GPUSet, size: int, speed: float) -> int:
    """The most disjoint sets, by choosing any set and going on with the rest."""
    return max(
        (
            1 + packed(of, GPUSet(free & ~chosen), size, speed)
            for chosen in map(gpu_set, itertools.combinations(members(free), size))
            if of.value(chosen) >= speed
        ),
        default=0,
    )


def consistent(free: GPUSet, hidden: int) -> list[GPUSet]:
    """The sets that may be free."""
    left = count(free) - hidden
    return [gpu_set(some) for some in itertools.combinations(members(free), left)]


def sure(one: Node, size: int, speed: float) -> int:
    """The sets that are certain; of an opaque node none where it matters which GPUs are free."""
    of = gpu_sets(one.machine.configuration)
    if one.unattributed and size > 1 and not of.uniform:
        return 0
    return min(packed(of, free, size, speed) for free in consistent(one.free, one.unattributed))


def gangs(of: Cluster, gang: Gang) -> int:
    """The most gangs at once in the compact shape, at least as fast as `full`."""
    speed = gang.full if gang.full is not None else 0.0
    nodes = [one for one in of.nodes if one.unavailable is None]
    if gang.workers == 1:
        return sum(sure(one, gang.gpus, speed) for one in nodes)
    able = frozenset(at for at, one in enumerate(nodes) if one.free_count >= gang.gpus)
    compact = best_choice(Request(workers=gang.workers, gpus=gang.gpus), Index(of.idle()))
    assert compact is not None

    @functools.cache
    def fast(some: tuple[int, ...]) -> bool:
        alone = Index(replace(of, nodes=tuple(nodes[at] for at in some)))
        request = Request(workers=gang.workers, gpus=gang.gpus, per_node=1)
        found = best_choice(request, alone)
        return found is not None and found.bandwidth >= speed

    def most(left: frozenset[int]) -> int:
        return max(
            (
                1 + most(left - set(some))
                for some in itertools.combinations(sorted(left), gang.workers)
                if level_of([nodes[at] for at in some], of) <= compact.worth.distance and fast(some)
            ),
            default=0,
        )

    return most(able)


def kinds(of: Cluster) -> dict[tuple[str | None, str], Cluster]:
    found: dict[tuple[str | None, str], list[Node]] = {}
    for one in of.nodes:
        found.setdefault((one.machine.model, one.resource), []).append(one)
    return {key: replace(of, nodes=tuple(some)) for key, some in found.items()}


@given(clusters())
def test_gangs_are_those_that_fit_when_everything_is_tried(world: Cluster):
    apart = kinds(world)
    report = measure_fragmentation(world)
    assert {(one.model, one.resource) for one in report.kinds} == set(apart)
    for kind in report.kinds:
        mine = apart[kind.model, kind.resource]
        assert kind.total == sum(len(one.machine.gpus) for one in mine.nodes)
        for gang in kind.gangs:
            assert gang.size == gang.workers * gang.gpus
            request = Request(workers=gang.workers, gpus=gang.gpus)
            full = best_choice(request, Index(mine.idle()))
            assert (gang.whole_empty > 0) == (full is not None)
            if full is not None:
                assert gang.full == (None if gang.size == 1 else full.bandwidth)
                assert gang.whole == gangs(mine, gang)
                assert gang.whole_empty == gangs(mine.idle(), gang)
            pieces = best_choice(Request(workers=gang.size, gpus=1), Index(mine))
            assert (gang.nodes is None) == (pieces is None)
            if pieces is not None:
                assert gang.best == (None if gang.size == 1 else pieces.bandwidth)
                assert gang.nodes == pieces.worth.nodes


@given(meshes(), st.data())
def test_disjoint_sets_are_as_many_as_there_are(of: Machine, data: st.DataObject):
    shape = gpu_sets(of.configuration)
    free = GPUSet(data.draw(st.integers(0, of.everything)))
    size = data.draw(st.integers(2, max(2, len(of.gpus))))
    speed = data.draw(st.sampled_from([9.0, 12.0, 20.0, 40.0, 80.0, 500.0]))
    assert shape.disjoint(free, size, speed) == packed(shape, free, size, speed)


TREE = machine("tree of twelve", "L40S", matrix(12, {}))


@given(st.integers(0, TREE.everything))
@example(TREE.everything)
@example(0b10111)
def test_the_pairs_of_a_large_machine_are_as_many_as_there_are(bits: int):
    shape = gpu_sets(TREE.configuration)
    speed = shape.best(TREE.everything, 2)
    assert shape.disjoint(GPUSet(bits), 2, speed) == packed(shape, GPUSet(bits), 2, speed)


@given(clusters())
def test_every_node_is_listed_once_with_its_state(world: Cluster):
    by_name = {one.name: one for one in world.nodes}
    told = []
    for kind in measure_fragmentation(world).kinds:
        for alike in kind.groups:
            for name in alike.names:
                told.append(name)
                one = by_name[name]
                assert (alike.gpus, alike.free) == (len(one.machine.gpus), one.free_count)
                assert (alike.opaque, alike.unavailable) == (one.unattributed > 0, one.unavailable)
                assert alike.stranded == stranded(one)
                for sets in alike.sets:
                    assert_sets(sets, one)
    assert sorted(told) == sorted(by_name)


@given(clusters())
def test_numbers_of_gpus_add_up(world: Cluster):
    kinds = measure_fragmentation(world).kinds
    free = sum(one.free_count for one in world.nodes if one.unavailable is None)
    idle = sum(one.free_count for one in world.nodes if one.unavailable is not None)
    assert sum(one.free for one in kinds) == free
    assert sum(one.away for one in kinds) == idle
    for kind in kinds:
        working = [one for one in kind.groups if one.unavailable is None]
        assert kind.stranded == sum(one.stranded * len(one.names) for one in working)
        for sets in kind.sets:
            mine = [(some, len(one.names)) for one in working for some in one.sets]
            of_size = [(some, many) for some, many in mine if some.size == sets.size]
            assert sets.whole == sum(some.whole * many for some, many in of_size)
            assert sets.broken == sum(some.broken * many for some, many in of_size)


def assert_sets(sets: fragmentation.Sets, one: Node) -> None:
    of = gpu_sets(one.machine.configuration)
    whole = one.machine.everything
    full = of.best(whole, sets.size)
    assert sets.most == packed(of, whole, sets.size, full)
    assert sets.whole == sure(one, sets.size, full)
    assert 0 <= sets.broken <= sets.most - sets.whole
    if not one.unattributed:
        used = packed(of, GPUSet(whole & ~one.free), sets.size, full)
        assert sets.broken == max(0, sets.most - sets.whole - used)


def stranded(one: Node) -> int:
    of = gpu_sets(one.machine.configuration)
    if one.unattributed and not of.uniform:
        return 0
    gpus = range(len(one.machine.gpus))

    def fastest(gpu: int, others: Any) -> float:
        return max((of.value(gpu_set((gpu, other))) for other in others if other != gpu), default=0)

    return max(
        sum(fastest(gpu, members(free)) < fastest(gpu, gpus) for gpu in members(free))
        for free in consistent(one.free, one.unattributed)
    )


@given(clusters(), st.data())
def test_a_gpu_that_becomes_free_never_makes_it_worse(world: Cluster, data: st.DataObject):
    at = data.draw(st.integers(0, len(world.nodes) - 1))
    one = world.nodes[at]
    busy = members(GPUSet(one.machine.everything & ~one.free))
    if not busy or one.unattributed:
        return
    more = replace(one, free=GPUSet(one.free | 1 << data.draw(st.sampled_from(busy))))
    better = replace(world, nodes=(*world.nodes[:at], more, *world.nodes[at + 1 :]))
    for now, then in zip(
        measure_fragmentation(world).kinds, measure_fragmentation(better).kinds, strict=True
    ):
        for before, after in zip(now.gangs, then.gangs, strict=True):
            assert after.whole >= before.whole
            assert after.counted >= before.counted
            # A network of known rate comes before a faster one whose rate is assumed.
            if after.tier == before.tier:
                assert (after.best or 0) >= (before.best or 0)
            assert after.whole_empty == before.whole_empty


# ---------------------------------------------------------------- what a person is told


def only(*nodes: Node, **more: Any) -> CombinableNodes:
    [kind] = measure_fragmentation(cluster(*nodes, **more)).kinds
    return kind


def gang(kind: CombinableNodes, size: int) -> Gang:
    return next(one for one in kind.gangs if one.size == size)


def alike(kind: CombinableNodes, name: str) -> NodeGroup:
    return next(one for one in kind.groups if name in one.names)


def test_twenty_free_gpus_without_a_gang_of_eight_name_the_nodes_that_come_nearest():
    kind = only(
        node("node-7", V100, 0b01111111),
        node("node-8", V100, 0b00111111),
        node("node-9", V100, 0b11111110),
    )
    assert kind.free == 20
    assert screen.largest_gang_text(kind) == (
        "20 of 24 GPUs are free, but no gang of 8 gets full speed (130 GB/s);"
        " one fits when 1 more GPU of node-7 is free"
    )


def test_the_page_about_observing_shows_what_is_shown():
    page = (HERE.parent / "docs" / "observing.md").read_text(encoding="utf-8")
    frees = {"node-7": 0b01111111, "node-8": 0b00111111, "node-9": 0b11111110}
    text = screen.fragmentation_screen(
        measure_fragmentation(cluster(*(node(name, V100, bits) for name, bits in frees.items())))
    )
    assert f"$ arena-topo top node --frag\n{text.partition('SHAPE: ')[0].rstrip()}\n" in page


def test_a_single_gpu_of_each_nvlink_pair_is_stranded():
    kind = only(node("n", machine("bridges", "A6000", matrix(4, {(0, 1): 4, (2, 3): 4})), 0b0101))
    assert kind.stranded == 2
    assert next((one.size, one.whole, one.broken) for one in kind.sets) == (2, 0, 2)


def test_a_gpu_that_never_had_a_bridge_is_not_stranded():
    kind = only(node("n", BRIDGED, 0b111))
    assert kind.stranded == 0
    assert only(node("n", BRIDGED, 0b110)).stranded == 1


def test_behind_an_nvswitch_any_two_gpus_are_a_pair():
    kind = only(node("n", HGX, 0b10000001))
    assert kind.stranded == 0
    assert gang(kind, 2).whole == 1
    assert gang(kind, 2).full == pytest.approx(0.96 * 240)


def test_a_job_across_two_quads_breaks_both():
    together = alike(only(node("n", V100, 0b11110000)), "n")
    across = alike(only(node("n", V100, 0b11001100)), "n")
    quads = [next(some for some in one.sets if some.size == 4) for one in (together, across)]
    assert [(some.whole, some.broken) for some in quads] == [(1, 0), (0, 2)]


def test_gpus_of_a_cordoned_node_are_idle_but_not_free():
    kind = only(node("a", V100), node("b", V100, unavailable="cordoned"))
    assert (kind.free, kind.away) == (8, 8)
    assert gang(kind, 8).whole == 1
    assert gang(kind, 8).whole_empty == 2
    assert [(one.size, one.whole) for one in kind.sets] == [(2, 4), (4, 2), (8, 1)]
    text = screen.fragmentation_screen(
        measure_fragmentation(cluster(node("a", V100), node("b", V100, unavailable="cordoned")))
    )
    assert "8 more GPUs are idle on nodes where no job can start." in text
    assert "b (cordoned)" in text
    assert "\n1      8/8   4/0    2/0    1/0     0         all that take jobs\n" in text


def test_a_speed_that_is_assumed_is_called_so():
    unknown = machine("m", None, V100.links)
    assert only(node("n", unknown)).assumed
    assert not only(node("n", V100)).assumed
    assert not only(node("n", machine("tree", None, matrix(4, {})))).assumed


def test_shared_gpus_are_counted_but_hold_no_gangs():
    report = measure_fragmentation(cluster(node("a", V100), node("b", V100, shared="MIG slices")))
    assert (report.shared, report.shared_nodes) == (8, 1)
    assert [one.total for one in report.kinds] == [8]
    assert (
        "1 more node shares GPUs or cuts them up: no gang gets those."
        in screen.fragmentation_screen(report)
    )


def test_gpu_models_are_looked_at_apart_the_largest_first():
    report = measure_fragmentation(cluster(node("a", V100), node("b", HGX), node("c", HGX)))
    assert [(one.model, one.total) for one in report.kinds] == [("A100", 16), ("V100", 8)]


def test_gangs_of_several_nodes_keep_within_what_is_as_near_as_on_the_empty_cluster():
    tiers = (Tier(name="leaf", bandwidth=25.0),)
    racks = [
        node(
            f"n{index}",
            V100,
            None if index in (0, 2) else 0,
            domains=(f"r{index // 2}",),
            rdma="rdma/hca",
        )
        for index in range(4)
    ]
    kind = only(*racks, tiers=tiers, beyond=2.0)
    sixteen = gang(kind, 16)
    twice = 2 * 15 / 16 * 0.931
    full = pytest.approx(25 * twice)
    assert (sixteen.workers, sixteen.gpus, sixteen.full) == (2, 8, full)
    # Two whole machines are free, but in two racks.
    assert (sixteen.whole, sixteen.whole_empty, sixteen.counted) == (0, 2, 1)
    assert (sixteen.nodes, sixteen.tier) == (2, "beyond")
    assert sixteen.best == pytest.approx(2 * twice)


def test_nothing_has_to_be_freed_for_a_gang_that_is_only_farther_apart_and_as_fast():
    racks = [
        node(f"n{index}", V100, None if index in (0, 2) else 0, domains=(f"r{index // 2}",))
        for index in range(4)
    ]
    kind = only(*racks, tiers=(Tier(name="leaf", bandwidth=25.0),), beyond=25.0)
    assert (gang(kind, 16).whole, gang(kind, 16).best) == (0, pytest.approx(gang(kind, 16).full))
    assert (kind.missing, kind.release) == (None, None)


def test_a_gang_that_is_as_fast_on_more_nodes_gets_full_speed_over_tcp():
    """WHOLE counts whole machines, and over TCP the network is the limit in any shape."""
    report = measure_fragmentation(
        cluster(*(node(f"n{index}", V100, 0b00001111) for index in range(4)))
    )
    (kind,) = report.kinds
    sixteen = gang(kind, 16)
    assert (sixteen.whole, sixteen.whole_empty, sixteen.usable) == (0, 2, sixteen.full)
    assert (kind.missing.size, kind.largest) == (8, 16)
    crowded = only(node("a", V100), *(node(f"n{index}", V100, 0b00001111) for index in range(2)))
    assert gang(crowded, 16).whole == 0
    assert screen.largest_gang_text(crowded) == (
        "16 of 24 GPUs are free, and gangs of up to 16 get full speed"
    )
    text = screen.fragmentation_screen(report)
    assert "\nWHOLE, EMPTY: gangs of this SHAPE at full speed, now" in text


def test_a_node_with_a_slow_card_is_excluded_from_gangs_of_several_nodes():
    tiers = (Tier(name="leaf", bandwidth=25.0),)
    slow = [
        node(f"n{at}", V100, domains=("r",), network=2.0 if at < 2 else 9e9, rdma="rdma/hca")
        for at in range(5)
    ]
    sixteen = gang(only(*slow, tiers=tiers), 16)
    assert sixteen.full == pytest.approx(25 * 2 * 15 / 16 * 0.931)
    assert sixteen.whole == 1
    assert sixteen.counted == 2


@pytest.mark.parametrize("device", ["", "rdma/hca"])
def test_between_nodes_that_report_nics_the_bandwidth_is_that_of_plan(device):
    """Pods get no RDMA from NICs that no device plugin offers."""
    dgx = replace(presets.preset_machine("dgx-a100", "dgx"), nics_assumed="")
    both = cluster(node("a", dgx, rdma=device), node("b", dgx, rdma=device))
    job = MPIJob.sketch(workers=2, gpus=8, gputopology=True, rdma=bool(device))
    planned = propose(job, None, namespace="default", cluster=both).plan.placement.bandwidth.point
    report = measure_fragmentation(both)
    (kind,) = report.kinds
    best = gang(kind, 16)
    assert (best.full, best.best, best.usable) == (planned,) * 3
    network = "with RDMA, as in plan --rdma" if device else "over TCP, as in plan"
    assert f"GB/s: full speed {network}\n" in screen.fragmentation_screen(report)


def test_what_to_free_is_what_a_refusal_names():
    nodes = (node("d", HGX, 0b00000111), node("e", HGX, 0b11111000))
    kind = only(*nodes)
    assert kind.release == "when 3 more GPUs of node e are free"
    refused = Solver(cluster(*nodes)).explain(Request(workers=1, gpus=8))
    assert refused.nearest.endswith(kind.release)
    # The best quad of b has a GPU out of order: another one is waited for.
    quad = only(
        node("b", V100, 0b00000111, allocatable=GPUSet(0b11110111)), node("c", V100, 0b00000001)
    )
    assert quad.missing == gang(quad, 4)
    assert quad.release == "when GPUs 1, 2 and 3 of node c are free"


def test_each_node_where_no_job_can_start_says_its_own_reason():
    text = screen.fragmentation_screen(
        measure_fragmentation(
            cluster(
                node("a", V100),
                node("b", V100, unavailable="cordoned"),
                node("c", V100, unavailable="NotReady"),
            )
        )
    )
    assert "b (cordoned)" in text
    assert "c (NotReady)" in text


def test_a_gang_that_fits_on_gpus_that_are_only_counted_does_not_lack_anything():
    # Any two of GPUs 4 to 7 of a DGX-1 are joined; three of them are free, nobody says which.
    counted = node(
        "a", presets.preset_machine("dgx-1-p100", "a"), gpu_set(range(4, 8)), unattributed=1
    )
    (kind,) = measure_fragmentation(cluster(counted)).kinds
    assert [(one.size, one.whole, one.best) for one in kind.gangs[:2]][1] == (
        2,
        0,
        kind.gangs[1].full,
    )
    assert kind.missing is None
    assert kind.release is None


def test_gpus_with_unknown_indexes_count_at_their_worst():
    known = only(node("n", V100, 0b00001111))
    doubtful = only(node("n", V100, 0b11111111, unattributed=4))
    assert gang(known, 4).whole == 1
    assert (gang(doubtful, 4).whole, gang(doubtful, 4).counted) == (0, 1)
    assert alike(doubtful, "n").opaque


def test_a_cluster_that_is_full_or_empty_says_so():
    assert screen.largest_gang_text(only(node("n", V100, 0))) == "no GPU is free, of 8"
    assert screen.largest_gang_text(only(node("n", V100))) == (
        "8 of 8 GPUs are free, and gangs of up to 8 get full speed"
    )


def test_a_cluster_without_gpus_has_a_sentence():
    assert measure_fragmentation(cluster()).kinds == ()
    assert (
        screen.fragmentation_screen(measure_fragmentation(cluster()))
        == "No node has GPUs that a gang could get.\n"
    )


def broken_thousand() -> Cluster:
    """1,000 machines with all sorts of free sets."""
    return cluster(
        *(
            node(f"node-{index}", PCIE if index % 10 == 0 else V100, (index * 37) % 256)
            for index in range(1000)
        )
    )


def test_a_thousand_nodes_of_many_sorts_fit_on_a_screen():
    text = fold_text(screen.fragmentation_screen(measure_fragmentation(broken_thousand())), 80)
    assert text == (HERE / "screens" / "top-node-frag-1000.txt").read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= 80


def test_the_document_of_a_report_is_whole():
    report = measure_fragmentation(
        cluster(node("a", V100, 0b01111111), node("b", V100, 0b11110000))
    )
    value = screen.fragmentation_json(report, emulated=True)
    assert value["kind"] == "FragmentationReport"
    [kind] = value["kinds"]
    assert kind["verdict"] == screen.largest_gang_text(report.kinds[0])
    assert kind["gangs"][2] == {
        "size": 4,
        "workers": 1,
        "gpusPerWorker": 4,
        "fullGBps": 86.4,
        "whole": 2,
        "wholeEmpty": 4,
        "counted": 2,
        "bestGBps": 86.4,
        "usableGBps": 9.97,
        "bestNodes": 1,
        "bestTier": "node",
    }
    assert [one["names"] for one in kind["nodes"]] == [("a",), ("b",)]
    assert kind["sets"][0] == {"size": 2, "whole": 5, "broken": 1, "most": 8}


@pytest.mark.parametrize("size", [2, 4, 8])
def test_gangs_by_number_are_never_fewer_than_gangs_at_full_speed(size: int):
    for bits in range(256):
        one = gang(only(node("n", V100, bits)), size)
        assert one.whole <= one.counted
