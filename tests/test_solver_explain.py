"""What would give a refused gang its place: each change named fits, and is the smallest."""

import itertools
import random
import re

import pytest
from cube_mesh import HGX, PCIE, V100, cluster, machine, matrix, node, with_nics
from exhaustive import all_but
from replacing import replace

from arena_topo.bandwidth import Wire
from arena_topo.solver import Reason, Request, Verdict
from arena_topo.solver.classes import groups_for
from arena_topo.solver.explain import MOST_CHANGES, explain_refusal
from arena_topo.solver.index import Index
from arena_topo.solver.release import ReleaseOffer, cheapest
from arena_topo.solver.search import NodeChoice, Search, best_choice
from arena_topo.topology import (
    Cluster,
    GPUSet,
    Link,
    LinkKind,
    Tier,
    count,
    flat,
    gpu_set,
    presets,
)

TIERS = (Tier(name="spine", bandwidth=6.0), Tier(name="leaf", bandwidth=12.5))


def value(request: Request, world: Cluster) -> NodeChoice | None:
    return best_choice(request, Index(world))


def said(world, **more):
    request = Request(**more)
    assert value(request, world) is None
    return explain_refusal(request, Index(world)).nearest


def test_fewer_workers_or_the_gpus_of_a_node():
    world = cluster(node("a", V100, 0b110111), node("b", V100, 0b11000000))
    assert said(world, workers=8, gpus=1) == (
        "fits now with --workers 7; or when 1 more GPU of node a is free"
    )


def test_pods_that_are_hosts_of_their_own_can_be_fused_to_get_what_they_ask_for():
    world = cluster(node("a", V100))
    hint = said(world, workers=4, gpus=1, min_bandwidth=50.0, joined=False)
    assert hint == "fits now with --min-bandwidth 5.65, or with --pod-shape fused"
    assert value(Request(workers=1, gpus=4, min_bandwidth=50.0), world) is not None
    # What no shape gives is promised by none.
    assert "fused" not in said(world, workers=4, gpus=1, min_bandwidth=500.0, joined=False)


def test_cpu_that_is_reserved_is_told_from_cpu_in_use_on_nodes_that_are_alike_otherwise():
    """Both have a core left: on one the head of the queue gets eight others, on the other one."""
    some, much = (
        node(name, V100, all_cpu=16.0, cpu=1.0 + reserved).reserve(
            "x/head", gpu_set((0, 1)), cpu=reserved
        )
        for name, reserved in (("a", 1.0), ("b", 8.0))
    )
    refused = explain_refusal(Request(workers=1, gpus=1, cpu=4.0), Index(cluster(some, much)))
    reasons = {(each.reason, each.nodes, each.example) for each in refused.refusals}
    assert reasons == {(Reason.RESOURCES, 1, "a"), (Reason.RESERVED, 1, "b")}


def test_a_node_that_is_named_node_is_not_called_that_twice():
    world = cluster(node("node-3", V100, 0b11))
    assert said(world, workers=4, gpus=1) == (
        "fits now with --workers 2; or when 2 more GPUs of node-3 are free"
    )


def test_two_more_gpus_are_counted():
    world = cluster(node("a", V100, 0b11), node("b", HGX, 0b111111))
    assert said(world, workers=1, gpus=8) == (
        "fits now with --gpus 6; or when 2 more GPUs of node b are free"
    )


def test_a_gang_that_never_fits_gets_no_release():
    world = cluster(node("a", V100, 0b11), node("b", V100))
    assert (
        said(world, workers=17, gpus=1) == "fits with --workers 16 once all other jobs have ended"
    )
    assert said(world, workers=1, gpus=9) == "fits now with --gpus 8"
    assert (
        said(world, workers=9, gpus=2)
        == "fits now with --gpus 1; or with --workers 8 once all other jobs have ended"
    )


def test_a_cordoned_node_has_to_come_back_as_well():
    world = cluster(node("a", V100, unavailable="cordoned"))
    assert said(world, workers=9, gpus=1) == (
        "fits with --workers 8 once all other jobs have ended and all nodes are ready"
    )


def test_where_no_single_change_helps_all_that_are_needed_are_named():
    world = cluster(node("a", V100, cpu=64.0, all_cpu=64.0))
    assert said(world, workers=1, gpus=9, cpu=200.0) == "fits now with --gpus 8 and without --cpu"
    assert said(world, workers=1, gpus=9, model="A100") == (
        "fits now with --gpus 8 and without --gpu-model"
    )


def test_what_would_fit_on_a_cluster_that_is_empty_fits_now():
    assert said(cluster(node("a", V100)), workers=9, gpus=1) == "fits now with --workers 8"


def test_a_size_between_two_that_fit_need_not_fit_itself():
    """Four GPUs of a square close a ring of 38 GB/s, three do not; five are not there."""
    square = machine(
        "square", "V100", matrix(4, dict.fromkeys([(0, 1), (1, 2), (2, 3), (0, 3)], 1))
    )
    world = cluster(node("a", square), node("b", square, 0b1))
    assert said(world, workers=5, gpus=1, min_bandwidth=38) == (
        "fits now with --min-bandwidth 0.8, or with --workers 4"
    )
    smaller = cluster(node("a", square, 0b111))
    assert said(smaller, workers=4, gpus=1, min_bandwidth=15) == (
        "fits now with --workers 2; or when 1 more GPU of node a is free"
    )


def test_the_advised_bandwidth_fits():
    world = cluster(node("a", V100, gpu_set((0, 1, 2, 4, 5))))
    text = said(world, workers=4, gpus=1, min_bandwidth=70)
    assert text.startswith("fits now with --min-bandwidth 43.2")
    assert value(Request(workers=4, gpus=1, min_bandwidth=43.2), world) is not None


def test_a_preferred_level_does_not_hide_the_bandwidth_there_is():
    """Within a node two GPUs on different sockets have 20 GB/s, on two nodes a port of 24."""
    nodes = (node(f"n{at}", PCIE, 0b10001, domains=("r",)) for at in range(2))
    world = cluster(*nodes, tiers=(Tier(name="leaf", bandwidth=50.0),))
    request = {"workers": 2, "gpus": 1, "preferred": "node", "wire": Wire.RDMA}
    assert said(world, min_bandwidth=60, **request) == "fits now with --min-bandwidth 24"


ODD = replace(HGX, measured=((GPUSet(0b1111), 123.456),))


@pytest.mark.parametrize("preset", ["odd", *presets.preset_names()])
def test_a_bandwidth_is_rounded_down_so_that_it_can_be_reached(preset):
    of = ODD if preset == "odd" else presets.preset_machine(preset, "a")
    world = cluster(node("a", of))
    for gpus in range(2, len(of.gpus) + 1):
        most = value(Request(workers=1, gpus=gpus), world).bandwidth
        text = said(world, workers=1, gpus=gpus, min_bandwidth=most + 10)
        advised = float(re.findall(r"--min-bandwidth ([\d.]+)", text)[0])
        assert text.startswith(f"fits now with --min-bandwidth {advised:g}")
        assert value(Request(workers=1, gpus=gpus, min_bandwidth=advised), world) is not None
        assert advised > most - 0.02


def test_other_models_are_named():
    world = cluster(node("a", V100, 0b1), node("b", HGX, 0b1111))
    assert said(world, workers=3, gpus=1, model="v100").startswith(
        "fits now with --gpu-model A100, or with --workers 1"
    )
    assert said(world, workers=5, gpus=1).startswith("fits now with --mix-models")


def test_the_fewest_nodes_that_hold_the_gang_are_named():
    world = cluster(*(node(f"n{at}", HGX, 0b11) for at in range(6)))
    assert said(world, workers=6, gpus=1, max_nodes=2).startswith("fits now with --max-nodes 3")


def test_the_nearest_level_that_holds_the_gang_is_named():
    paths = (("s", "r1"), ("s", "r2"), ("t", "r3"))
    nodes = (node(f"n{at}", HGX, 0b1111, domains=path) for at, path in enumerate(paths))
    world = cluster(*nodes, tiers=TIERS)
    assert said(world, workers=2, gpus=4, required="leaf").startswith(
        "fits now with --topology-required spine, or with --workers 1"
    )
    assert said(world, workers=5, gpus=4, required="spine").startswith(
        "fits with --topology-required beyond, or with --workers 4"
    )


def test_at_most_three_changes_of_the_request_are_named():
    world = cluster(node("a", V100, 0b1111), node("b", V100, 0b1111), node("c", HGX))
    assert said(world, workers=3, gpus=2, max_nodes=1, model="V100") == (
        "fits now with --gpu-model A100, or with --max-nodes 2, or with --workers 2;"
        " or when 2 more GPUs of node a are free"
    )


def test_a_shortage_of_cpu_is_not_reported_as_a_shortage_of_gpus():
    world = cluster(node("a", V100, 0b11, cpu=2.0, all_cpu=64.0))
    assert said(world, workers=4, gpus=1, cpu=1.0) == (
        "fits now with --workers 2; or when a is free of other jobs"
    )


def test_pods_that_others_placed_are_a_job_to_wait_for():
    world = cluster(node("a", V100, dedicated=True, foreign=True))
    assert said(world, workers=1, gpus=4, min_bandwidth=60.0, blind=True) == (
        "fits now with --min-bandwidth 9.97; or when a is free of other jobs"
    )


def test_gpus_that_are_not_healthy_are_not_waited_for():
    world = cluster(node("a", V100, 0b1, allocatable=gpu_set((0, 1, 2))))
    assert said(world, workers=3, gpus=1) == (
        "fits now with --workers 1; or when 2 more GPUs of node a are free"
    )
    assert said(world, workers=4, gpus=1) == (
        "fits now with --workers 1; or when a is free of other jobs and healthy"
    )


def test_where_a_smaller_worker_is_not_enough_fewer_of_them_are_named_as_well():
    world = cluster(node("a", PCIE, 0b111))
    assert said(world, workers=9, gpus=9) == (
        "fits with --gpus 8 and --workers 1 once all other jobs have ended"
    )


@pytest.mark.parametrize(("workers", "gpus"), [(1, 10**9), (10**9, 1), (10**9, 10**9)])
def test_only_sizes_that_the_cluster_has_are_tried(workers, gpus):
    world = cluster(node("a", V100, 0b1), node("b", V100))
    for floor in (0.0, 1.0, 1000.0):
        refused = explain_refusal(
            Request(workers=workers, gpus=gpus, min_bandwidth=floor), Index(world)
        )
        assert refused.verdict is Verdict.NEVER


def test_nodes_that_must_become_free_together_are_named():
    world = cluster(*(node(f"v100-{name}", V100, 0) for name in "abc"))
    assert said(world, workers=3, gpus=8) == (
        "fits when all GPUs of v100-a, v100-b and v100-c are free"
    )
    two = cluster(*world.nodes, node("v100-d", V100))
    assert said(two, workers=3, gpus=8) == (
        "fits now with --workers 1, or with --gpus 2;"
        " or when all GPUs of v100-a and v100-b are free"
    )


def test_of_many_nodes_that_must_become_free_three_are_named():
    world = cluster(*(node(f"n{at}", V100, 0b1) for at in range(12)))
    assert said(world, workers=12, gpus=8).endswith(
        "or when all GPUs of n0, n1, n2 and 9 more are free"
    )


@pytest.mark.parametrize(
    ("unavailable", "well"),
    [("cordoned", "uncordoned"), ("NotReady", "ready")],
)
def test_a_node_that_is_down_is_waited_for(unavailable: str, well: str):
    world = cluster(node("a", V100), node("b", V100, unavailable=unavailable))
    assert said(world, workers=2, gpus=8) == (
        f"fits now with --workers 1, or with --gpus 4; or when b is {well}"
    )


def test_the_release_of_each_node_has_a_fixed_wording():
    world = cluster(
        node("n0", V100, 0b1), node("n1", V100, 0b1), node("n2", V100, unavailable="cordoned")
    )
    assert said(world, workers=3, gpus=8).endswith(
        "when n0, n1 and n2 are free of other jobs and uncordoned"
    )
    ill = node("n3", V100, 0b1, allocatable=gpu_set(range(4)))
    assert said(cluster(*world.nodes, ill), workers=4, gpus=8).endswith(
        "when n0, n1, n2 and 1 more are free of other jobs, uncordoned and healthy"
    )


def test_the_most_cpu_and_memory_that_fit_are_named():
    world = cluster(
        node("a", V100, cpu=96.5, all_cpu=96.5, memory=700 << 30, all_memory=700 << 30),
        node("b", V100, cpu=10.0, all_cpu=10.0, memory=(64 << 30) + 5, all_memory=(64 << 30) + 5),
    )
    assert said(world, workers=1, gpus=8, cpu=200.0) == "fits now with --cpu 96.5"
    assert said(world, workers=2, gpus=4, cpu=50.0) == (
        "fits now with --cpu 48.25, or with --workers 1"
    )
    assert said(world, workers=2, gpus=8, memory=1 << 40) == "fits now with --memory 64Gi"


def test_where_no_single_change_helps_the_smallest_set_of_them_is_named():
    world = cluster(node("n0", HGX), node("n1", HGX))
    assert said(world, workers=1, gpus=8, model="V100", min_bandwidth=500.0) == (
        "fits now without --min-bandwidth and without --gpu-model"
    )


# ---------------------------------------------------------------- against trying everything

QUAD = machine("quad", "V100", matrix(4, {(0, 1): 2, (2, 3): 2, (1, 2): 1, (0, 3): 1}))
SWITCHED = machine("flat", "A100", flat(4, Link(kind=LinkKind.NVLINK, lanes=12)))
PAIR = machine("pair", "A100", flat(2, Link(kind=LinkKind.NVLINK, lanes=12)))


def small_world(rnd):
    tiers = rnd.choice([(), (Tier(name="leaf", bandwidth=25.0),)])
    nodes = []
    for at in range(rnd.randint(1, 3)):
        of = rnd.choice([QUAD, QUAD, SWITCHED, PAIR])
        free = GPUSet(rnd.getrandbits(len(of.gpus)) & rnd.getrandbits(len(of.gpus)))
        hidden = rnd.randint(0, count(free)) if rnd.random() < 0.2 else 0
        domains = (rnd.choice("AB"),) if tiers else ()
        ill = GPUSet(rnd.getrandbits(4)) if rnd.random() < 0.1 else GPUSet(0)
        allocatable = GPUSet(of.everything & ~ill | free) if ill else None
        down = rnd.choice(["cordoned", "NotReady"]) if rnd.random() < 0.1 else None
        more = {"allocatable": allocatable, "unavailable": down, "domains": domains}
        nodes.append(node(f"n{at}", of, free, unattributed=hidden, **more))
    return cluster(*nodes, tiers=tiers, beyond=6.0)


def refused_request(rnd, world):
    levels = [None, None, "node", *(tier.name for tier in world.tiers)]
    while True:
        request = Request(
            workers=rnd.randint(1, 8),
            gpus=rnd.choice([1, 1, 2, 3, 4]),
            min_bandwidth=rnd.choice([0.0, 0.0, 1.0, 5.0, 20.0, 30.0, 40.0]),
            max_nodes=rnd.choice([None, None, 1, 2]),
            mix_models=rnd.random() < 0.3,
            required=rnd.choice(levels),
            joined=rnd.random() < 0.6,
            per_node=rnd.choice([None, None, None, 1]),
            wire=rnd.choice([Wire.TCP, Wire.RDMA]),
        )
        if value(request, world) is None:
            return request


def held(one):
    """The healthy GPUs of a node that are in use, and of which it is known which they are."""
    healthy = one.machine.everything if one.allocatable is None else one.allocatable
    return [gpu for gpu in range(len(one.machine.gpus)) if healthy & ~one.free & 1 << gpu]


def released(world, more):
    """Every world in which so many more GPUs are free."""
    units = [(at, gpu) for at, one in enumerate(world.nodes) for gpu in held(one)]
    for known in range(more + 1):
        for chosen in itertools.combinations(units, known):
            hidden = [range(min(one.unattributed, more - known) + 1) for one in world.nodes]
            for secrets in itertools.product(*hidden):
                if sum(secrets) == more - known:
                    yield freed(world, chosen, secrets)


def freed(world, chosen, secrets):
    nodes = []
    for at, (one, secret) in enumerate(zip(world.nodes, secrets, strict=True)):
        gpus = gpu_set(gpu for place, gpu in chosen if place == at)
        left = one.unattributed - secret
        nodes.append(replace(one, free=GPUSet(one.free | gpus), unattributed=left))
    return replace(world, nodes=tuple(nodes))


PART = re.compile(
    r"(?:GPUs? (?P<named>[\d, and]+)|(?P<many>\d+)(?: more GPUs?)?) of (?:node )?(?P<node>n\d)"
)


def read(text):
    """What a text says must become free: GPUs by node that are named, and how many of any."""
    words = text.rpartition("when ")[2]
    if words.startswith("all GPUs of "):
        return dict.fromkeys(re.findall(r"n\d", words), (None, None))
    return {
        found["node"]: (
            [int(one) for one in re.findall(r"\d+", found["named"])] if found["named"] else None,
            int(found["many"] or 0),
        )
        for found in PART.finditer(words)
    }


def with_said(text, world):
    """Every world in which just that is free which a text names."""
    ways = []
    for one in world.nodes:
        named, many = read(text).get(one.name, ([], 0))
        if named is None and many is None:
            ways.append([(tuple(held(one)), one.unattributed)])
        elif named is None:
            ways.append(
                [
                    (some, many - len(some))
                    for known in range(many + 1)
                    for some in itertools.combinations(held(one), known)
                    if many - known <= one.unattributed
                ]
            )
        else:
            ways.append([(tuple(named), 0)])
    for chosen in itertools.product(*ways):
        units = [(at, gpu) for at, (gpus, _) in enumerate(chosen) for gpu in gpus]
        yield freed(world, units, [secret for _, secret in chosen])


def fitting(request, world, **more):
    return value(replace(request, **more), world) is not None


@pytest.mark.parametrize("first", all_but(1, range(0, 400, 50)))
def test_the_changes_named_are_those_that_trying_everything_finds(first):
    for seed in range(first, first + 50):
        check_changes(seed)


def check_changes(seed):
    rnd = random.Random(seed)
    world = small_world(rnd)
    request = refused_request(rnd, world)
    refused = explain_refusal(request, Index(world))
    never = value(request, world.idle()) is None
    assert (refused.verdict is Verdict.NEVER) == never
    text = refused.nearest or ""
    check_request(request, world.idle() if never else world, text)
    if not never:
        check_release(request, world, text)


def check_request(request, view, text):
    """The numbers named fit, and they are the best of their kind."""
    if " and with" in text or re.search(r"--\S+ \S+ and (--|without)", text):
        # Several changes at once are named only where no single one would do.
        assert not fitting(request, view, min_bandwidth=0.0) or not request.min_bandwidth
        assert not any(fitting(request, view, workers=one) for one in range(2, request.workers))
        return
    said = dict(re.findall(r"--([a-z-]+) ([\w.]+)", text))
    # A single GPU has no bandwidth, which is no help to who asks for some.
    least = 2 if request.min_bandwidth else 1
    sizes = {
        "workers": [
            one
            for one in range(1, request.workers)
            if one * request.gpus >= least and fitting(request, view, workers=one)
        ],
        "gpus": [
            one
            for one in range(1, request.gpus)
            if request.workers * one >= least and fitting(request, view, gpus=one)
        ],
    }
    for flag, fit in sizes.items():
        if flag in said:
            assert int(said[flag]) == max(fit)
        elif text.count("--") < MOST_CHANGES:
            assert not fit or "and --" in text
    if "max-nodes" in said:
        fewest = int(said["max-nodes"])
        assert fitting(request, view, max_nodes=fewest)
        assert not fitting(request, view, max_nodes=fewest - 1)
    if "min-bandwidth" in said:
        rate = float(said["min-bandwidth"])
        assert fitting(request, view, min_bandwidth=rate)
        assert not fitting(request, view, min_bandwidth=rate + 0.02)
    elif request.min_bandwidth:
        found = value(replace(request, min_bandwidth=0.0), view)
        assert found is None or found.bandwidth < 0.01
    if "topology-required" in said:
        assert fitting(request, view, required=said["topology-required"])
    if "--mix-models" in text:
        assert fitting(request, view, mix_models=True)


def check_release(request, world, text):
    """What is named is enough, and no fewer GPUs of any nodes are."""
    release = text.rpartition("when ")[2]
    if "when" not in text or not release.endswith("free") or "jobs" in release:
        everything = freed(
            world,
            [(at, gpu) for at, one in enumerate(world.nodes) for gpu in held(one)],
            [one.unattributed for one in world.nodes],
        )
        assert value(request, everything) is None
        return
    assert any(value(request, then) is not None for then in with_said(text, world)), text
    many = sum(
        len(held(one)) + one.unattributed
        if found == (None, None)
        else len(found[0] or ()) or found[1]
        for one in world.nodes
        if (found := read(text).get(one.name)) is not None
    )
    assert "for example" not in text
    for fewer in range(many):
        for then in released(world, fewer):
            assert value(request, then) is None, (fewer, many)


UNEVEN = replace(SWITCHED, measured=((GPUSet(0b0011), 12.0), (GPUSet(0b1111), 300.0)))
"""Two nodes may be worth less than three: each then gives a pair of GPUs, which are slow."""


@pytest.mark.parametrize("first", all_but(1, range(0, 40, 10)))
def test_what_to_free_is_found_where_two_nodes_are_slower_than_three(first):
    for seed in range(first, first + 10):
        check_uneven(seed)


def check_uneven(seed):
    rnd = random.Random(seed)
    free = [GPUSet(rnd.getrandbits(4) & rnd.getrandbits(4)) for _ in range(3)]
    world = cluster(*(node(f"n{at}", UNEVEN, some) for at, some in enumerate(free)))
    more = {"workers": rnd.choice([3, 4]), "gpus": rnd.choice([1, 2]), "wire": Wire.RDMA}
    request = Request(min_bandwidth=rnd.choice([15.0, 20.0, 30.0]), **more)
    if value(request, world) is None and value(request, world.idle()) is not None:
        check_release(request, world, explain_refusal(request, Index(world)).nearest or "")


TRAY = with_nics(
    machine("tray", "GB200", flat(4, Link(kind=LinkKind.NVLINK, lanes=18))), 4, speed=50.0
)


def test_what_to_free_for_several_nvlink_domains_counts_the_nics_of_a_domain_together():
    """Six trays of two domains: a tray alone sends 186 GB/s, the four of a domain four times it."""
    free = {"a0": 15, "a1": 15, "a2": 3, "a3": 3, "b0": 15, "b1": 7, "b2": 7, "b3": 7}
    nodes = (node(name, TRAY, some, domains=(name[0],)) for name, some in free.items())
    world = cluster(*nodes, tiers=(Tier(name="nvlink", bandwidth=845.0),), beyond=400.0)
    hint = said(world, workers=6, gpus=4, min_bandwidth=250.0, wire=Wire.RDMA)
    assert "when all GPUs of b1, b2 and b3 are free" in hint


@pytest.mark.parametrize("first", all_but(1, range(0, 60, 15)))
def test_what_to_free_for_several_nvlink_domains_is_the_least(first):
    for seed in range(first, first + 15):
        check_domains(seed)


def check_domains(seed):
    rnd = random.Random(seed)
    few = with_nics(TRAY, 4, speed=12.5)
    nodes = []
    for at in range(4):
        of, free = rnd.choice([TRAY, TRAY, few]), GPUSet(rnd.getrandbits(4) | rnd.getrandbits(4))
        nodes.append(node(f"n{at}", of, free, domains=("ab"[at // 2],)))
    tiers = (Tier(name="nvlink", bandwidth=845.0),)
    world = cluster(*nodes, tiers=tiers, beyond=rnd.choice([25.0, 400.0]))
    request = Request(
        workers=rnd.randint(2, 6),
        gpus=rnd.choice([1, 2, 3]),
        joined=rnd.random() < 0.5,
        wire=Wire.RDMA,
        max_nodes=rnd.choice([None, None, 3]),
        min_bandwidth=rnd.choice([20.0, 60.0, 150.0, 300.0]),
    )
    if value(request, world) is None and value(request, world.idle()) is not None:
        check_release(request, world, explain_refusal(request, Index(world)).nearest or "")


@pytest.mark.parametrize("first", all_but(1, range(0, 30, 6)))
def test_what_is_counted_fits_where_a_search_finds_a_place(first):
    """Two levels of network, CPU, nodes that are barred, wider machines: counted and searched."""
    for seed in range(first, first + 6):
        check_counted(seed)


def check_counted(seed):
    rnd = random.Random(seed)
    nodes = []
    for at in range(rnd.randint(1, 9)):
        of = rnd.choice([V100, HGX, PCIE, HGX])
        free = GPUSet(rnd.getrandbits(8) | rnd.getrandbits(8))
        domains = (rnd.choice("st"), rnd.choice("ab"))
        unattributed = 1 if free and rnd.random() < 0.1 else 0
        more = {"unattributed": unattributed, "cpu": rnd.choice([8.0, 64.0])}
        nodes.append(node(f"n{at}", of, free, domains=domains, all_cpu=64.0, **more))
    world = cluster(*nodes, tiers=TIERS, beyond=rnd.choice([3.0, 6.0]))
    index = Index(world)
    barred = {one.name: Reason.TAINT for one in nodes if rnd.random() < 0.1}
    for _ in range(8):
        request = Request(
            workers=rnd.randint(1, 20),
            gpus=rnd.choice([1, 2, 3, 4, 8]),
            cpu=rnd.choice([0.0, 0.0, 6.0]),
            min_bandwidth=rnd.choice([0.0, 1.0, 4.0, 9.0, 12.0, 40.0]),
            max_nodes=rnd.choice([None, None, 1, 2, 4]),
            mix_models=rnd.random() < 0.4,
            required=rnd.choice([None, None, "leaf", "spine", "node"]),
            joined=rnd.random() < 0.6,
            wire=rnd.choice([Wire.TCP, Wire.RDMA]),
            excluded=rnd.choice([{}, barred]),
        )
        found = best_choice(request, index) is not None
        assert Search(request, groups_for(request, index)).fits() == found
        idle = best_choice(request, Index(world.idle())) is not None
        assert Search(request, groups_for(request, index, idle=True)).fits() == idle


@pytest.mark.parametrize("first", all_but(1, range(0, 300, 100)))
def test_the_least_to_free_is_that_of_all_choices(first):
    """Any tables, with gaps and costs in any order: a few nodes, at most so many of them used."""
    for seed in range(first, first + 100):
        check_least(seed)


def check_least(seed):
    rnd = random.Random(seed)
    offers = []
    for at in range(rnd.randint(1, 4)):
        loads = sorted(rnd.sample(range(1, 6), rnd.randint(1, 5)))
        table = {load: rnd.choice([0, 0, 1, 2, 3, 5, 8]) for load in loads}
        offers.append(ReleaseOffer(at, rnd.randint(1, 2), table))
    workers, most = rnd.randint(1, 10), rnd.randint(1, 5)
    each = [{0: 0, **one.table} for one in offers for _ in range(one.many)]
    costs = [
        sum(table[load] for table, load in zip(each, loads, strict=True))
        for loads in itertools.product(*each)
        if sum(loads) == workers and sum(map(bool, loads)) <= most
    ]
    found = cheapest(offers, workers, most)
    assert (found is not None and found.cost) == (min(costs) if costs else False)
    assert found is None or found.proven


def test_of_equal_costs_what_is_freed_is_on_one_node():
    """One GPU of the second node and two of the first, or three of the first."""
    found = cheapest([ReleaseOffer(0, 1, {1: 2, 2: 3}), ReleaseOffer(1, 1, {1: 1})], 2, 2)
    assert found is not None
    assert (found.cost, found.loads) == (3, {(0, 2): 1})


def test_the_fewest_gpus_to_release_may_be_those_of_several_nodes():
    """Two nodes lack a GPU each for one more worker; a node that has none free lacks four."""
    world = cluster(*(node(f"n{at}", HGX, free) for at, free in enumerate((0b111, 0b111, 0))))
    assert said(world, workers=2, gpus=4).endswith(
        "when 1 more GPU of node n0 and 1 of n1 are free"
    )
    assert said(world, workers=3, gpus=4).endswith(
        "when 5 more GPUs of node n0 and 1 of n1 are free"
    )
    many = cluster(*(node(f"n{at}", HGX, 0b111) for at in range(9)))
    assert said(many, workers=6, gpus=4).endswith(
        "when 1 more GPU of node n0, 1 of n1, 1 of n2 and 3 of 3 more nodes are free"
    )
