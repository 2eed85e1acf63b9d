"""What is left behind, and who is in the way: packing, spreading, and when which."""

from __future__ import annotations

import itertools

import pytest
from cube_mesh import HGX, PCIE, V100, V100_LANES, cluster, machine, matrix, node
from hypothesis import given
from hypothesis import strategies as st
from replacing import replace

from arena_topo.bandwidth import Wire
from arena_topo.solver import Policy, Reason, Request
from arena_topo.solver.door import place
from arena_topo.solver.fragmentation import (
    CROWD,
    PACKING,
    PackingCost,
    packing_cost,
    proximity,
    spreading_cost,
)
from arena_topo.solver.gpu_sets import GPUSets, gpu_sets
from arena_topo.solver.index import Index
from arena_topo.solver.loads import NEARNESS, Floor, Hosts, Loads, Terms
from arena_topo.topology import (
    GPU,
    NIC,
    SYS,
    Cluster,
    GPUSet,
    Link,
    LinkKind,
    Machine,
    NodeName,
    count,
    flat,
    gpu_set,
    members,
    presets,
    symmetric,
)

DGX1 = presets.preset_machine("dgx-1-v100", "dgx-1")
TWO_MESHES = machine(
    "two cube meshes",
    "V100",
    matrix(
        16,
        V100_LANES | {(one + 8, other + 8): lanes for (one, other), lanes in V100_LANES.items()},
        Link(kind=LinkKind.SYS),
    ),
)
SWITCH, SOCKET, FAR = 2, 1, 0


def prices(of: Machine):
    return spreading_cost(gpu_sets(of.configuration), proximity(of))


def cheapest(
    price: PackingCost, free: GPUSet, size: int, bandwidth: float
) -> tuple[int, GPUSet] | None:
    """The GPUs of one node that a gang is given at a bandwidth, and the cost of the node."""
    terms = Terms(hosts=Hosts.NODE, gpus=1, ranks=size, joined=True, wire=Wire.TCP)
    floor = Floor(terms=terms, bandwidth=bandwidth, joined=terms)
    found = Loads(price.sets.facts.machine, price.sets).cheapest(price, free, size, floor)
    return None if found is None else (found[0] // NEARNESS, found[1])


# ---------------------------------------------------------------- damage of large machines


def test_of_two_meshes_the_broken_one_gives_the_single_gpu():
    price = packing_cost(gpu_sets(TWO_MESHES.configuration))
    broken = gpu_set(range(1, 16))
    found = cheapest(price, broken, 1, 0.0)
    assert found is not None
    assert found[1] & 0xFF == found[1]


def test_of_two_meshes_eight_workers_take_one_whole():
    price = packing_cost(gpu_sets(TWO_MESHES.configuration))
    found = cheapest(price, TWO_MESHES.everything, 8, 115.0)
    assert found is not None
    assert found[1] == GPUSet(0xFF)


def test_the_potential_of_two_meshes_is_what_each_of_them_keeps_where_only_one_is_free():
    large, small = (
        packing_cost(gpu_sets(TWO_MESHES.configuration)),
        packing_cost(gpu_sets(V100.configuration)),
    )
    for quad in ((0, 1, 2, 3), (4, 5, 6, 7)):
        assert large.potential(gpu_set(quad)) == small.potential(gpu_set(quad))
    assert (
        large.potential(GPUSet(0xFF))
        == large.potential(GPUSet(0xFF00))
        == small.potential(GPUSet(0xFF))
    )


@given(st.integers(0, 0xFFFF), st.integers(0, 15))
def test_the_potential_of_a_large_machine_never_falls_when_a_gpu_becomes_free(free, gpu):
    price = packing_cost(gpu_sets(TWO_MESHES.configuration))
    assert price.potential(GPUSet(free)) <= price.potential(GPUSet(free | 1 << gpu))


@given(st.integers(1, 0xFFF), st.integers(1, 5), st.sampled_from([0.0, 9.0, 35.0, 70.0]))
def test_the_cheapest_set_of_a_large_machine_is_the_cheapest_of_all(free, size, bandwidth):
    shape = gpu_sets(TWO_MESHES.configuration)
    price = PackingCost(shape)
    costs = [
        (price.potential(GPUSet(free)) - price.potential(GPUSet(free & ~gpu_set(one))), one)
        for one in itertools.combinations(members(GPUSet(free)), size)
        if shape.value(gpu_set(one)) >= bandwidth
    ]
    found = cheapest(price, GPUSet(free), size, bandwidth)
    assert (found is None) == (not costs)
    if found is not None:
        # Which of the sets it is, nearness decides before the cost of this one.
        assert found[0] == min(costs)[0]
        assert members(found[1]) in {one for _, one in costs}


def test_where_sets_are_too_many_a_set_that_is_fast_enough_is_found_all_the_same():
    links = tuple(
        tuple(
            None
            if a == b
            else Link(kind=LinkKind.PHB if (a * b * (a + b) + a + b) % 29 % 3 else LinkKind.SYS)
            for b in range(28)
        )
        for a in range(28)
    )
    shape = GPUSets(machine("knot", "L40S", links).configuration)
    price, whole = PackingCost(shape), GPUSet((1 << 28) - 1)
    for size in (4, 8, 12):
        best = shape.best(whole, size)
        found = cheapest(price, whole, size, best)
        assert found is not None
        assert count(found[1]) == size
        assert shape.value(found[1]) >= best
        assert found[0] <= price.cost(whole, found[1])
    assert not shape.certain(whole, 12)
    assert shape.certain(whole, 2)


# ---------------------------------------------------------------- how near GPUs are


def test_cards_behind_one_bridge_share_a_switch_and_those_of_one_host_bridge_a_socket():
    near = proximity(PCIE)
    assert [near[0][other] for other in range(8)] == [
        SWITCH, SWITCH, SOCKET, SOCKET, FAR, FAR, FAR, FAR,
    ]  # fmt: skip


def test_the_cards_of_a_dgx1_tell_which_gpus_share_a_switch_below_nvlink():
    near = proximity(DGX1)
    assert [near[0][other] for other in range(8)] == [
        SWITCH, SWITCH, SOCKET, SOCKET, FAR, FAR, FAR, FAR,
    ]  # fmt: skip


def test_below_nvlink_only_the_numa_node_is_known():
    assert proximity(V100)[0][1:] == (FAR,) * 7
    gpus = tuple(GPU(index=at, model="V100", numa=at // 4) for at in range(8))
    assert proximity(replace(V100, gpus=gpus))[0] == (SWITCH, *[SOCKET] * 3, *[FAR] * 4)


def test_gpus_near_the_same_third_are_near_each_other():
    bridged = matrix(4, {(0, 1): 4}, Link(kind=LinkKind.PXB))
    assert proximity(machine("m", "A100", bridged))[0][1] == SWITCH


def test_a_card_across_sockets_is_no_evidence_of_proximity():
    nic = NIC(name="nic", attachment=(Link(kind=LinkKind.SYS),) * 8)
    assert proximity(replace(V100, nics=(nic,))) == proximity(V100)


# ---------------------------------------------------------------- prices of spreading


def test_a_single_gpu_avoids_the_busy_switch_then_the_busy_socket():
    free = gpu_set(range(1, 8))
    price = prices(PCIE)
    assert cheapest(price, free, 1, 0.0) == (price.cost(free, gpu_set((4,))), gpu_set((4,)))
    # The second socket is in use too, on both of its switches.
    free = gpu_set((1, 2, 3, 5, 7))
    found = cheapest(price, free, 1, 0.0)
    assert found is not None
    assert members(found[1]) == (2,)


def test_where_packing_fills_the_broken_pair_spreading_opens_another():
    free = gpu_set(range(1, 8))
    packed = cheapest(packing_cost(gpu_sets(PCIE.configuration)), free, 1, 0.0)
    assert packed is not None
    assert members(packed[1]) == (1,)


def test_behind_an_nvswitch_spreading_looks_at_the_switches_below_it():
    gpus = tuple(GPU(index=at, model="A100", numa=at // 4) for at in range(8))
    price = prices(replace(HGX, gpus=gpus))
    free = gpu_set((1, 2, 3, 4, 5, 6, 7))
    found = cheapest(price, free, 2, 0.0)
    assert found is not None
    assert members(found[1]) == (4, 5)


def test_no_room_left_behind_makes_up_for_a_busy_neighbour_and_no_socket_for_a_switch():
    price = prices(PCIE)
    free = gpu_set((1, 2, 3, 4, 5, 6, 7))
    switch, socket = price.cost(free, gpu_set((1,))), price.cost(free, gpu_set((2,)))
    machine_only = price.cost(free, gpu_set((4,)))
    assert switch > socket > machine_only
    assert price.potential(GPUSet(255)) < PACKING
    assert switch // PACKING == (1 * CROWD + 1) * CROWD + 1
    assert socket // PACKING == (0 * CROWD + 1) * CROWD + 1
    assert machine_only // PACKING == 1


def test_of_equally_quiet_sets_the_one_that_leaves_most_behind_is_cheapest():
    price = prices(PCIE)
    found = cheapest(price, GPUSet(255), 2, 0.0)
    packed = cheapest(packing_cost(gpu_sets(PCIE.configuration)), GPUSet(255), 2, 0.0)
    assert found == packed


def test_spreading_never_takes_a_slower_set():
    """Off the busy sockets there is no double link left."""
    price = prices(DGX1)
    free = gpu_set((0, 3, 4, 5, 6))
    best = gpu_sets(DGX1.configuration).best(free, 2)
    quiet, fast = cheapest(price, free, 2, 0.0), cheapest(price, free, 2, best)
    assert quiet is not None
    assert fast is not None
    assert gpu_sets(DGX1.configuration).value(fast[1]) == best
    assert gpu_sets(DGX1.configuration).value(quiet[1]) < best


@given(st.integers(1, 255), st.integers(1, 4), st.sampled_from([0.0, 9.0, 35.0]))
def test_the_cheapest_set_of_spreading_is_the_cheapest_of_all(free, size, bandwidth):
    for of in (DGX1, PCIE, HGX):
        shape, price = gpu_sets(of.configuration), prices(of)
        busy = [gpu for gpu in range(8) if not free >> gpu & 1]
        near = proximity(of)

        def crowd(chosen: tuple[int, ...], level: int, near=near, busy=busy) -> int:
            return sum(any(near[gpu][other] >= level for gpu in chosen) for other in busy)

        costs = [
            (
                crowd(one, SWITCH),
                crowd(one, SOCKET),
                crowd(one, FAR),
                price.potential(GPUSet(free)) - price.potential(GPUSet(free & ~gpu_set(one))),
                one,
            )
            for one in itertools.combinations(members(GPUSet(free)), size)
            if shape.value(gpu_set(one)) >= bandwidth
        ]
        found = cheapest(price, GPUSet(free), size, bandwidth)
        assert (found is None) == (not costs)
        if found is not None:
            chosen = members(found[1])
            crowds = tuple(crowd(chosen, level) for level in (SWITCH, SOCKET, FAR))
            assert crowds == min(costs)[:3]


def test_gpus_in_use_with_unknown_indexes_count_as_nearest_neighbours():
    price = prices(PCIE)
    assert price.counted(6, 2) // PACKING == (2 * CROWD + 2) * CROWD + 2
    assert price.counted(6, 2) % PACKING == packing_cost(gpu_sets(PCIE.configuration)).counted(6, 2)
    assert price.counted(8, 2) < PACKING


# ---------------------------------------------------------------- when to spread


def half_used(busy: int, **more: object) -> Cluster:
    """Two machines of eight GPUs; so many are in use."""
    first, second = min(busy, 8), max(0, busy - 8)
    return cluster(
        node("a", PCIE, 0xFF << first & 0xFF, **more), node("b", PCIE, 0xFF << second & 0xFF)
    )


SMALL = Request(workers=2, gpus=2, policy=Policy.ADAPTIVE)


def spreads(request: Request, on: Cluster) -> bool:
    return Index(on).spreads(request)


@pytest.mark.parametrize(
    ("busy", "above", "expected"),
    [
        (0, 0.5, True),
        (7, 0.5, True),
        (8, 0.5, False),
        (16, 0.5, False),
        (3, 0.25, True),
        (4, 0.25, False),
        (0, 0.0, False),
        (15, 1.0, True),
    ],
)
def test_adaptive_spreads_below_the_threshold_and_packs_from_it_on(busy, above, expected):
    request = replace(SMALL, pack_above=above)
    assert spreads(request, half_used(busy)) is expected


def test_a_threshold_means_what_it_says_in_decimals():
    """As a binary fraction 0.1 is a little more than a tenth."""
    ten = machine("ten", "L40S", flat(10))
    request = replace(SMALL, pack_above=0.1)
    assert not spreads(request, cluster(node("a", ten, 0b1111111110)))
    assert spreads(request, cluster(node("a", ten)))


@pytest.mark.parametrize("busy", [0, 8, 16])
def test_pack_and_spread_are_independent_of_the_load(busy):
    assert not spreads(replace(SMALL, policy=Policy.PACK), half_used(busy))
    assert spreads(replace(SMALL, policy=Policy.SPREAD), half_used(busy))


@pytest.mark.parametrize(("workers", "expected"), [(8, True), (9, False)])
def test_adaptive_packs_what_no_machine_can_hold(workers, expected):
    request = Request(workers=workers, gpus=1, policy=Policy.ADAPTIVE)
    assert spreads(request, half_used(0)) is expected


def test_adaptive_looks_only_at_machines_that_the_job_may_use():
    request = Request(workers=8, gpus=1, policy=Policy.ADAPTIVE)
    on = half_used(0)
    names = {one.name: Reason.TAINT for one in on.nodes}
    assert not spreads(replace(request, excluded=names), on)
    assert not spreads(replace(request, model="V100"), on)
    assert spreads(replace(request, model="l40s"), on)


def test_hidden_gpus_are_in_use_and_nodes_out_of_service_do_not_count():
    assert not spreads(SMALL, half_used(0, unattributed=8))
    assert spreads(SMALL, half_used(0, unattributed=7))
    # Of the eight GPUs that are left none is in use.
    assert spreads(SMALL, half_used(8, unavailable="cordoned"))
    idle = node("c", PCIE, unavailable="cordoned")
    shared = node("d", PCIE, shared="MIG")
    on = half_used(8)
    assert not spreads(SMALL, replace(on, nodes=(*on.nodes, idle, shared)))


def test_gpus_that_are_not_healthy_are_neither_free_nor_in_use():
    sick = node("a", PCIE, 0b1111, allocatable=GPUSet(0b1111))
    assert spreads(SMALL, cluster(sick))
    assert not spreads(replace(SMALL, workers=3), cluster(sick))


def test_an_empty_cluster_has_nothing_to_spread_over():
    assert not spreads(SMALL, cluster())


# ---------------------------------------------------------------- through place()


def used(request: Request, on: Cluster) -> dict[str, set[int]]:
    chosen: dict[str, set[int]] = {}
    for one in place(request, on).assignments:
        chosen.setdefault(one.node, set()).update(one.gpus)
    return chosen


BUSY_SWITCH = cluster(node("a", PCIE, gpu_set(range(1, 8))), node("b", PCIE))
ONE = Request(workers=1, gpus=1)


def test_packing_fills_a_broken_pair_and_spreading_takes_the_idle_machine():
    assert used(ONE, BUSY_SWITCH) == {"a": {1}}
    assert used(replace(ONE, policy=Policy.SPREAD), BUSY_SWITCH) == {"b": {0}}


def test_adaptive_spreads_on_a_quiet_cluster_and_packs_on_a_busy_one():
    quiet, busy = BUSY_SWITCH, replace(ONE, policy=Policy.ADAPTIVE, pack_above=1 / 16)
    assert used(replace(ONE, policy=Policy.ADAPTIVE), quiet) == {"b": {0}}
    assert used(busy, quiet) == {"a": {1}}


def test_spreading_within_a_machine_crosses_to_the_idle_socket():
    alone = cluster(node("a", PCIE, gpu_set(range(1, 8))))
    assert used(replace(ONE, policy=Policy.SPREAD), alone) == {"a": {4}}


def test_spreading_gives_up_no_bandwidth():
    """Machine b is idle, but only a has a switch pair left; a pair of b's is as fast: b wins."""
    pair = Request(workers=2, gpus=1, policy=Policy.SPREAD)
    slower = node("b", PCIE, gpu_set((0, 2, 4, 6)))
    on = cluster(node("a", PCIE, gpu_set((2, 3))), slower)
    assert used(pair, on) == {"a": {2, 3}}
    assert place(pair, on).bandwidth.point == gpu_sets(PCIE.configuration).value(GPUSet(0b11))


def test_a_gang_on_several_machines_adds_its_neighbours_up():
    sixteen = Request(workers=3, gpus=4, policy=Policy.SPREAD)
    on = cluster(
        node("a", PCIE, gpu_set(range(1, 8))),
        node("b", PCIE, gpu_set(range(4, 8))),
        node("c", PCIE),
        node("d", PCIE),
    )
    assert place(sixteen, on).nodes == ("c", "d")
    assert NodeName("a") not in place(sixteen, on).nodes


# Nearness


def sockets(*, within: LinkKind = LinkKind.NODE, model: str = "A100") -> Machine:
    """Eight GPUs on two sockets, without NVLink."""
    halves = symmetric(8, lambda i, j: SYS if i // 4 != j // 4 else Link(kind=within))
    return machine("sockets", model, halves)


BRIDGES = machine(
    "bridges",
    "A100",
    symmetric(5, lambda i, j: Link(kind=LinkKind.PHB) if (i, j) in {(1, 2), (3, 4)} else SYS),
)
BESIDE = replace(
    sockets(),
    nics=(
        NIC(
            name="mlx5_0",
            attachment=tuple(
                Link(kind=LinkKind.PIX if at > 3 else LinkKind.SYS) for at in range(8)
            ),
            speed=12.5,
        ),
    ),
)
"""Its one NIC is beside the last four GPUs."""


@pytest.mark.parametrize(
    ("of", "free", "gpus", "chosen"),
    [
        (sockets(), 0b11111000, 2, {4, 5}),
        (sockets(within=LinkKind.PHB), 0b11111000, 3, {4, 5, 6}),
        (BRIDGES, 0b11111, 2, {1, 2}),
        # Where GPUs never reach each other directly, or over an NVSwitch, no path counts.
        (sockets(model="RTX 4090"), 0b11111000, 2, {3, 4}),
        (replace(HGX, nics=BESIDE.nics), 0b11111000, 2, {3, 4}),
    ],
)
def test_of_equally_fast_gpus_those_are_chosen_that_are_near_each_other(of, free, gpus, chosen):
    answer = place(Request(workers=1, gpus=gpus), cluster(node("a", of, free)))
    assert set(answer.assignments[0].gpus) == chosen


def test_of_equally_fast_gpus_those_are_chosen_that_are_near_their_nics():
    on = cluster(node("a", BESIDE), node("b", BESIDE), beyond=50.0)
    request = Request(workers=2, gpus=4, wire=Wire.RDMA, per_node=1)
    assert [one.gpus for one in place(request, on).assignments] == [(4, 5, 6, 7)] * 2
    # Sockets do not use the NIC beside a GPU.
    sockets_only = place(replace(request, wire=Wire.TCP), on)
    assert sockets_only.assignments[0].gpus == (0, 1, 2, 3)


def test_near_gpus_never_open_a_whole_node():
    """The broken node has two free GPUs on two sockets, the whole one has pairs of a socket."""
    on = cluster(node("a", sockets()), node("b", sockets(), 0b10001))
    assert place(Request(workers=1, gpus=2), on).nodes == ("b",)
