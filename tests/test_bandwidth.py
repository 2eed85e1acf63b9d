"""The bandwidth model: laws that physics sets, cases that were measured, and how far it holds."""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from replacing import replace

from arena_topo.bandwidth import Algorithm, Estimate, Host, Limit, NotModelled, Regime, Wire
from arena_topo.bandwidth.several_hosts import estimate
from arena_topo.topology import GPUSet, Knowledge, Link, LinkKind, Machine, gpu_set, presets
from arena_topo.topology.nics import NICs, parse_nics
from arena_topo.topology.presets import INSTANCES, instance_type

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs" / "site"))

import fidelity  # noqa: E402


def first(count: int) -> GPUSet:
    return GPUSet((1 << count) - 1)


SEVERAL = [
    name for name in presets.preset_names() if len(presets.preset_machine(name, "node").gpus) > 1
]
"""The presets of machines with several GPUs."""


def nodes(preset: str, count: int, gpus: int, *, nics: int = 8, speed: float = 50.0) -> list[Host]:
    """Hosts of a preset, each with its first GPUs and NICs of its own."""
    return [
        Host.of(
            NICs(number=nics, speed=speed).of(presets.preset_machine(preset, f"node-{node}")),
            first(gpus),
        )
        for node in range(count)
    ]


def one(preset: str, gpus: GPUSet) -> Estimate:
    found = estimate([Host.of(presets.preset_machine(preset, "node"), gpus)])
    assert found is not None
    return found


def point(hosts: list[Host], **options: object) -> float:
    found = estimate(hosts, **options)
    assert found is not None
    return found.point


# ---------------------------------------------------------------- what was measured


@pytest.mark.parametrize(
    ("gpus", "measured"), [(4, 363.3), (5, 414.2), (6, 435.6), (7, 460.0), (8, 473.1)]
)
def test_an_h200_board_is_within_five_percent_by_number_of_gpus(gpus, measured):
    assert one("hgx-h200", first(gpus)).point == pytest.approx(measured, rel=0.05)


def test_the_quad_of_a_dgx_1_p100_runs_over_all_its_links():
    assert 48 <= one("dgx-1-p100", first(4)).point <= 54


def test_two_bridged_pairs_share_their_pcie_ports_both_ways():
    found = fidelity._OTHERS["nc96"]("node")
    four = estimate([Host.of(found, first(4))])
    assert four is not None
    assert four.regime is Regime.ISLANDS
    assert 28 <= four.point <= 41
    # A pair and a single card: the single card's port carries both directions of one ring.
    three = estimate([Host.of(presets.preset_machine("pcie-8-a100", "node"), first(3))])
    assert three is not None
    assert three.point == pytest.approx(20, rel=0.05)


@pytest.mark.parametrize(("gpus", "measured"), [(1, 48), (2, 148), (4, 328), (8, 472)])
def test_two_dgx_h100_follow_the_nics_of_the_chosen_gpus(gpus, measured):
    assert point(nodes("hgx-h100", 2, gpus)) == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize(("gpus", "measured"), [(1, 48), (8, 380)])
def test_four_dgx_h100_follow_the_nics_of_the_chosen_gpus(gpus, measured):
    assert point(nodes("hgx-h100", 4, gpus)) == pytest.approx(measured, rel=0.1)


def test_an_nvlink_domain_over_several_nodes_is_a_host_of_its_own():
    trays = [
        (presets.preset_machine("gb200-nvl72", f"tray-{tray}"), first(4)) for tray in range(18)
    ]
    eight, many = (estimate([Host(parts=tuple(trays[:some]))], algorithm=None) for some in (2, 18))
    assert eight is not None
    assert many is not None
    assert eight.regime is Regime.NVLS
    # 8 GPUs of one rack measured 892, 72 measured 835.
    assert eight.point == many.point == pytest.approx(850, rel=0.06)


def test_pods_of_one_node_over_tcp_are_not_below_what_a_published_run_refutes():
    node = presets.preset_machine("dgx-1-v100", "node")
    pods = [Host.of(node, gpu_set([gpu])) for gpu in range(4)]
    found = estimate(pods, wire=Wire.TCP)
    assert found is not None
    assert found.low >= 3.2
    # Where nobody says how pods of one node talk, they do it over TCP.
    bare = replace(node, nics=())
    assert estimate([Host.of(bare, gpu_set([gpu])) for gpu in range(4)]) == found


def test_sockets_get_a_share_of_one_nic_and_never_more_than_any_row():
    def over(speed):
        found = estimate(nodes("hgx-h100", 3, 8, speed=speed), wire=Wire.TCP)
        assert found is not None
        assert found.high <= found.low * 5 * (1 + 1e-9)
        return found

    assert over(1.25).high == pytest.approx(0.85 * 1.25)
    assert over(12.5).low < 10 <= over(12.5).high
    assert over(50.0) == over(100.0)
    points = [over(speed).point for speed in (0.5, 1.25, 3.125, 12.5, 50.0)]
    assert points == sorted(points)
    pods = nodes("hgx-h100", 2, 1, speed=3.125)
    more = [*pods, *(Host.of(host.parts[0][0], gpu_set([1])) for host in pods)]
    assert point(more, wire=Wire.TCP) < point(pods, wire=Wire.TCP)


def test_pods_of_one_node_with_rdma_talk_over_their_nics():
    node = NICs(number=8, speed=50.0).of(presets.preset_machine("hgx-h100", "node"))
    pods = [Host.of(node, gpu_set([gpu])) for gpu in range(4)]
    assert 45 <= point(pods, wire=Wire.RDMA) <= 50


def test_eight_pods_on_two_nodes_are_eight_hosts_and_not_two():
    shared = nodes("hgx-h100", 2, 4)
    pods = [Host.of(host.parts[0][0], gpu_set([gpu])) for host in shared for gpu in range(4)]
    assert point(pods) < 50
    assert point(shared) > 300


def test_pods_that_share_a_nic_share_its_bandwidth():
    node = NICs(number=4, speed=50.0).of(presets.preset_machine("hgx-h100", "node"))
    other = replace(node, name="other")
    apart = [Host.of(node, gpu_set([0])), Host.of(other, gpu_set([0]))]
    crowded = [*apart, Host.of(node, gpu_set([1]))]
    assert point(crowded) == pytest.approx(point(apart) / 2, rel=0.01)


# ---------------------------------------------------------------- what decides


@pytest.mark.parametrize(("wire", "alone"), [(Wire.RDMA, 11.64), (Wire.TCP, 4.47)])
def test_pods_share_the_network_of_a_node_whose_nics_are_not_known(wire, alone):
    """The rate that somebody gave is what the node sends in all, so it is no guess."""

    def pods(on_the_first: int) -> Estimate:
        first_node, second = (presets.preset_machine("dgx-1-v100", name) for name in "ab")
        hosts = [Host.of(first_node, gpu_set((gpu,))) for gpu in range(on_the_first)]
        found = estimate([*hosts, Host.of(second, first(1))], wire=wire, network=12.5)
        assert found is not None
        assert not found.guess
        return found

    assert pods(1).point == pytest.approx(alone, abs=0.01)
    assert pods(2).point == pytest.approx(alone / 2, rel=0.1)
    assert pods(8).point < alone / 4
    if wire is Wire.RDMA:
        assert pods(8).point == pytest.approx(alone / 8, rel=0.01)
        # The NICs may be faster than the network, of which the ring takes only one way.
        assert pods(8).high == pytest.approx(6.25)
        assert "NICs of a node that send 12.5 GB/s in all" in pods(8).assumed


def test_pods_with_known_nics_do_not_share_the_network_which_their_ring_leaves_once():
    node = NICs(number=8, speed=50.0).of(presets.preset_machine("hgx-h100", "a"))
    other = replace(node, name="b")
    hosts = [Host.of(node, gpu_set((gpu,))) for gpu in range(8)]
    hosts += [Host.of(other, gpu_set((gpu,))) for gpu in range(8)]
    assert point(hosts, network=100.0) == point(hosts, network=400.0)
    assert point(hosts, network=25.0) == pytest.approx(0.931 * 25)


def test_a_fast_network_makes_no_gpu_faster_than_its_pcie_port():
    hosts = [Host.of(presets.preset_machine("dgx-1-v100", name), first(1)) for name in "abc"]
    assert point(hosts, wire=Wire.RDMA, network=400.0) == pytest.approx(12.0)


def test_one_gpu_off_the_fabric_makes_the_sets_with_it_slow_and_no_others():
    whole = presets.preset_machine("hgx-h100", "node")
    links = [list(row) for row in whole.links]
    for gpu in range(7):
        links[gpu][7] = links[7][gpu] = Link(kind=LinkKind.SYS)
    broken = replace(whole, links=tuple(map(tuple, links)))
    without = estimate([Host.of(broken, first(7))])
    within = estimate([Host.of(broken, gpu_set([0, 1, 7]))])
    assert without is not None
    assert within is not None
    assert without.point == one("hgx-h100", first(7)).point
    assert within.regime is Regime.PCIE
    assert within.point < without.point / 5


def test_a_set_with_links_that_are_down_has_those_that_are_up():
    whole = presets.preset_machine("hgx-h100", "node")
    links = [list(row) for row in whole.links]
    for gpu in range(7):
        links[gpu][7] = links[7][gpu] = Link(kind=LinkKind.NVLINK, lanes=9)
    half = replace(whole, links=tuple(map(tuple, links)))
    found = estimate([Host.of(half, first(8))])
    assert found is not None
    assert found.point == pytest.approx(one("hgx-h100", first(8)).point / 2)


def test_a_forced_ring_behind_a_switch_has_ring_bandwidth():
    board = Host.of(presets.preset_machine("hgx-h100", "node"), first(8))
    ring = estimate([board], algorithm=Algorithm.RING)
    assert ring is not None
    assert ring.regime is Regime.SWITCH


def test_cards_without_p2p_go_through_host_memory_with_a_wide_range():
    gpus = presets.preset_machine("pcie-8", "node").gpus
    board = replace(
        presets.preset_machine("pcie-8", "node"),
        gpus=tuple(replace(gpu, model="RTX 4090") for gpu in gpus),
    )
    found = estimate([Host.of(board, first(8))])
    assert found is not None
    assert found.regime is Regime.STAGED
    assert found.limited_by is Limit.MEMORY
    # The best servers that anybody showed fill their ports, small containers have 2.
    assert found.low <= 2
    assert found.high >= 24
    assert 5 <= found.point <= 12


def test_cards_without_p2p_are_faster_in_two_sockets_than_beside_each_other():
    board = fidelity._OTHERS["pcie8-node-sys-gen5"]("node")
    beside, apart = (estimate([Host.of(board, gpu_set(some))]) for some in ([0, 1], [0, 4]))
    assert beside is not None
    assert apart is not None
    assert apart.regime is Regime.STAGED
    assert 1.4 <= apart.point / beside.point <= 1.8


def test_a_ring_of_pcie_cards_with_a_nic_each_goes_around_the_sockets():
    def two(nics):
        boards = [fidelity._OTHERS["pcie8-sys-gen5"](f"node-{node}") for node in range(2)]
        return [Host.of(NICs(number=nics, speed=50.0).of(board), first(8)) for board in boards]

    alone = point(two(8)[:1])
    # 48 and 50 were measured where one host reaches some 40.
    assert point(two(8)) > 1.1 * alone
    assert point(two(8), wire=Wire.TCP) < alone
    assert point(two(4)) <= alone


@pytest.mark.parametrize("kind", [LinkKind.PHB, LinkKind.NODE, LinkKind.SYS])
def test_a_nic_far_from_its_gpu_widens_the_range_downwards_alone(kind):
    def two(path):
        board = replace(
            NICs(number=1, speed=50.0).of(presets.preset_machine("pcie-8", "a")), name="a"
        )
        nic = replace(board.nics[0], attachment=(Link(kind=path),) * 8)
        board = replace(board, nics=(nic,))
        found = estimate([Host.of(board, first(1)), Host.of(replace(board, name="b"), first(1))])
        assert found is not None
        return found

    near, far = two(LinkKind.PIX), two(kind)
    assert (far.point, far.high) == (near.point, near.high)
    assert far.low < near.low / 2


@pytest.mark.parametrize(("preset", "least"), [("dgx-1-v100", 0.4), ("hgx-h200", 1.2)])
def test_an_unknown_network_is_as_fast_as_machines_of_that_age_have(preset, least):
    boards = [replace(presets.preset_machine(preset, name), nics=()) for name in "ab"]
    found = estimate([Host.of(board, first(8)) for board in boards])
    assert found is not None
    assert found.low == least
    assert found.high <= 5 * least * (1 + 1e-9)
    assert found.assumed
    # The older machine decides.
    old = replace(presets.preset_machine("dgx-1-v100", "old"), nics=())
    mixed = estimate([Host.of(boards[0], first(8)), Host.of(old, first(8))])
    assert mixed is not None
    assert mixed.low == 0.4


@pytest.mark.parametrize(
    ("preset", "gpus", "measured"),
    [("dgx-1-v100", 8, 135.5), ("dgx-1-v100", 8, 130), ("dgx-2", 8, 122), ("hgx-a100-4", 4, 205)],
)
def test_what_people_post_of_one_machine_is_in_the_range(preset, gpus, measured):
    found = one(preset, first(gpus))
    assert found.low <= measured <= found.high
    assert found.point == pytest.approx(measured, rel=0.1)


def test_two_a100_hosts_reach_what_a_ring_over_fast_nics_does():
    def two(speed):
        found = estimate(nodes("hgx-a100", 2, 8, speed=speed))
        assert found is not None
        return found

    # Five of six readings of 8 x 200G are 187 to 190, one is 238.
    assert two(25.0).point == pytest.approx(188.5, rel=0.02)
    assert two(25.0).high >= 238
    # Slow NICs are worth a tree, which sends each byte once.
    assert two(6.25).point > 1.8 * point(nodes("hgx-a100", 3, 8, speed=6.25))


def test_two_racks_are_not_one_nvlink_domain():
    def racks(number, trays):
        hosts = []
        for rack in range(number):
            boards = [
                presets.preset_machine("gb300-nvl72", f"{rack}-{tray}") for tray in range(trays)
            ]
            hosts.append(Host(parts=tuple((board, first(4)) for board in boards)))
        found = estimate(hosts, wire=Wire.RDMA)
        assert found is not None
        return found

    # 930 within a rack, 738 on two.
    single, two, many = racks(1, 16), racks(2, 16), racks(5, 16)
    assert single.low <= 930 <= single.high
    assert 0.85 <= two.point / single.point <= 0.95
    assert two.low <= 738 <= two.high
    assert many.low < 0.6 * two.low


def test_a_ring_through_several_hosts_leaves_each_once():
    # A GPU's NVLinks carry 7 of its 8 channels, so the host lets 8/7 of its own ring through.
    ring = estimate(
        [Host.of(presets.preset_machine("hgx-h800", "node"), first(8))], algorithm=Algorithm.RING
    )
    found = estimate(nodes("hgx-h800", 3, 8))
    assert ring is not None
    assert found is not None
    assert found.point == pytest.approx(ring.point * 8 / 7)
    assert found.limited_by is Limit.HOST


def test_a_port_for_management_is_not_used_where_rails_are_faster():
    hosts = nodes("hgx-h100", 3, 8)
    with_port = []
    for host in hosts:
        board = host.parts[0][0]
        port = replace(
            board.nics[0], name="eth0", speed=3.125, attachment=(Link(kind=LinkKind.PIX),) * 8
        )
        with_port.append(Host.of(replace(board, nics=(*board.nics, port)), first(8)))
    assert point(with_port) == point(hosts)


def test_a_single_gpu_has_no_bandwidth():
    assert estimate([Host.of(presets.preset_machine("hgx-h100", "node"), first(1))]) is None


def test_an_unknown_network_is_slower_than_any_host_inside_and_is_marked():
    for preset in SEVERAL:
        board = replace(presets.preset_machine(preset, "node"), nics=())
        alone = estimate([Host.of(board, first(len(board.gpus)))])
        other = replace(board, name="other")
        apart = estimate([Host.of(board, first(1)), Host.of(other, first(1))])
        assert alone is not None
        assert apart is not None
        assert apart.point < alone.point, preset
        # Cards without P2P go through the memory of the host, whose speed is not known either.
        assert apart.high < alone.low or alone.regime is Regime.STAGED, preset
        assert apart.assumed


def test_nothing_is_invented_where_no_row_was_measured():
    board = Host.of(presets.preset_machine("hgx-h100", "node"), first(8))
    with pytest.raises(NotModelled):
        estimate([board], algorithm=Algorithm.TREE)
    with pytest.raises(NotModelled):
        estimate(nodes("hgx-h100", 3, 8), algorithm=Algorithm.NVLS)
    with pytest.raises(NotModelled):
        estimate(
            [Host.of(presets.preset_machine("hgx-a100", "node"), first(8))],
            algorithm=Algorithm.NVLS,
        )


def test_assumptions_are_listed():
    guessed = replace(presets.preset_machine("hgx-h100", "node"), knowledge=Knowledge.ASSUMED)
    found = estimate([Host.of(guessed, first(8))])
    assert found is not None
    assert found.assumed == ("links between GPUs, by model and count",)


def test_unknown_nics_widen_the_range_downwards():
    named = estimate(nodes("hgx-h100", 4, 8))
    board = NICs(number=8, speed=None).of(presets.preset_machine("hgx-h100", "node"))
    guessed = estimate([Host.of(replace(board, name=f"{node}"), first(8)) for node in range(4)])
    assert named is not None
    assert guessed is not None
    assert guessed.point == named.point
    assert guessed.low == pytest.approx(named.low / 4)
    assert guessed.assumed
    assert not named.assumed


# ---------------------------------------------------------------- laws

boards = st.sampled_from([name for name in SEVERAL if "pcie" not in name])


@given(
    boards,
    st.integers(1, 5),
    st.integers(1, 8),
    st.tuples(
        st.sampled_from([1, 2, 4, 8, 16, 32]), st.sampled_from([3.125, 12.5, 25.0, 50.0, 100.0])
    ),
    st.sampled_from([None, Algorithm.RING]),
)
@example("dgx-1-v100", 2, 1, (4, 3.125), None)  # as many NICs as the machine has, near its GPUs
@settings(max_examples=2 * settings.default.max_examples)
def test_no_forecast_is_above_the_nics_or_above_one_host(preset, many, gpus, cards, algorithm):
    gpus = min(gpus, len(presets.preset_machine(preset, "x").gpus))
    nics, speed = cards
    hosts = nodes(preset, many, gpus, nics=nics, speed=speed)
    ranks = many * gpus
    found = estimate(hosts, algorithm=algorithm)
    if ranks == 1:
        assert found is None
        return
    assert found is not None
    assert 0 < found.low <= found.point <= found.high
    if many > 1:
        board = hosts[0].parts[0][0]
        near = {
            card
            for gpu in range(gpus)
            for card, nic in enumerate(board.nics)
            if nic.attachment[gpu].kind == max(one.attachment[gpu].kind for one in board.nics)
        }
        line = len(near) * speed
        assert found.high <= line * (2 * (ranks - 1) / ranks if many == 2 else 1) * (1 + 1e-9)
    if gpus > 1:
        inside = estimate(hosts[:1])
        assert inside is not None
        assert found.point <= inside.point * (1 + 1e-9)


@given(boards, st.integers(2, 6), st.integers(1, 8), st.sampled_from([1, 2, 4, 8, 16]))
def test_more_or_faster_nics_and_fewer_hosts_never_lower_the_point(preset, many, gpus, nics):
    gpus = min(gpus, len(presets.preset_machine(preset, "x").gpus))
    before = point(nodes(preset, many, gpus, nics=nics, speed=25.0))
    assert point(nodes(preset, many, gpus, nics=nics, speed=50.0)) >= before
    assert point(nodes(preset, many, gpus, nics=2 * nics, speed=25.0)) >= before
    if (many - 1) * gpus > 1:
        fewer = point(nodes(preset, many - 1, gpus, nics=nics, speed=25.0))
        # Two hosts of one GPU carry 2(n-1)/n = 1 times their NICs, as three do.
        assert fewer >= before * (1 - 1e-9)


@given(st.sampled_from(SEVERAL), st.data())
def test_names_and_the_order_of_gpus_do_not_matter(preset, data):
    board = presets.preset_machine(preset, "node")
    size = len(board.gpus)
    chosen = data.draw(st.sets(st.integers(0, size - 1), min_size=2))
    order = data.draw(st.permutations(range(size)))
    back = {old: new for new, old in enumerate(order)}
    turned = Machine(
        name="other",
        gpus=board.gpus,
        links=tuple(tuple(board.links[a][b] for b in order) for a in order),
        nvswitch=board.nvswitch,
        pcie_generation=board.pcie_generation,
    )
    same = estimate([Host.of(turned, gpu_set(back[gpu] for gpu in chosen))])
    found = estimate([Host.of(board, gpu_set(chosen))])
    assert found is not None
    assert same is not None
    assert same.point == pytest.approx(found.point)


@given(st.integers(1, 60), boards)
def test_larger_messages_reach_more_of_the_plateau(power, preset):
    found = one(preset, first(2))
    share = found.share(1 << power)
    assert 0 < share <= 1
    assert found.share(1 << (power + 1)) >= share
    reached, low, high = found.at(1 << power)
    assert low <= reached <= high
    assert reached == pytest.approx(share * found.point)


# ---------------------------------------------------------------- NICs


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("8x400G", (8, 50.0)),
        ("8x50GB", (8, 50.0)),
        ("4x100Gb/s", (4, 12.5)),
        ("1x12.5GB/s", (1, 12.5)),
    ],
)
def test_nics_are_read_in_bits_and_bytes(text, told):
    found = parse_nics(text)
    assert (found.number, found.speed) == told


@pytest.mark.parametrize("text", ["0x400G", "8x0G", "8x400", "8x400T", "400G", "", "x", "999x1G"])
def test_nics_that_make_no_sense_are_refused(text):
    with pytest.raises(ValueError, match=r"."):
        parse_nics(text)


def test_every_instance_type_is_a_preset_with_nics():
    for name, told in INSTANCES.items():
        found = instance_type(name)
        assert found is not None
        assert len(found.nics) == told.nics
        assert all(nic.speed == told.speed for nic in found.nics)
        assert {nic.attachment.count(Link(kind=LinkKind.PXB)) > 0 for nic in found.nics} == {True}
    assert instance_type("t2.micro") is None


# ---------------------------------------------------------------- how far it holds


@pytest.fixture(scope="module")
def healthy():
    """The healthy rows, each forecast without its source."""
    return [one for one in fidelity.tried(fidelity.rows()[0]) if one.row.healthy]


def test_the_constants_are_those_that_the_rows_give():
    fitted = fidelity.fit(fidelity.rows()[0])
    for key in fidelity._SIMPLE:
        assert getattr(fitted, key) == getattr(fidelity.FITTED, key), key
    assert dict(fitted.nvls) == dict(fidelity.FITTED.nvls)
    assert dict(fitted.latency) == dict(fidelity.FITTED.latency)


@pytest.mark.parametrize(
    ("kind", "median", "most", "width"),
    [("tuned", 0.03, 0.15, 1.2), ("posted", 0.06, 0.25, 1.6)],
)
def test_rows_left_out_of_the_fit_are_forecast_within_the_bars(healthy, kind, median, most, width):
    rows = [one for one in fidelity.counted(healthy) if one.row.kind == kind]
    assert len(rows) >= 30
    assert fidelity.quantile(fidelity.absolute(rows), 0.5) <= median
    assert fidelity.quantile(fidelity.absolute(rows), 0.9) <= most
    assert fidelity.spearman(rows) >= 0.97
    assert sum(one.inside for one in rows) >= 0.8 * len(rows)
    assert fidelity.width(rows) <= width


def test_no_class_of_rows_is_forecast_too_high_or_too_low(healthy):
    errors = defaultdict(list)
    for one in fidelity.counted(healthy):
        errors[one.row.case].append(one.error)
    judged = {case: some for case, some in errors.items() if len(some) >= 5}
    assert len(judged) >= 6
    for case, some in judged.items():
        assert abs(statistics.median(some)) <= 0.05, case


def test_pairs_of_a_source_are_ordered_as_measured(healthy):
    order = fidelity.order(healthy)
    pairs = order.right + order.wrong + order.ties
    assert order.wrong <= 0.02 * pairs
    assert order.ties <= 0.05 * pairs


def test_the_page_says_what_the_model_gives():
    assert (ROOT / "docs/fidelity.md").read_text() == fidelity.page(), "docs/site/fidelity.py"
