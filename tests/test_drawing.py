"""Drawings of machines and of the network, compared whole with the files in `screens/`."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from cube_mesh import (
    HGX,
    OFF_THE_SWITCH,
    V100,
    WEAK_ON_THE_SWITCH,
    cluster,
    machine,
    matrix,
    node,
)
from hypothesis import given
from hypothesis import strategies as st

from arena_topo.drawing import network
from arena_topo.drawing.machine import MachineState, draw_machine
from arena_topo.topology import (
    GPU,
    NIC,
    Knowledge,
    Link,
    LinkKind,
    Machine,
    Tier,
    behind_nvswitch,
    flat,
    gpu_set,
    presets,
)

SCREENS = Path(__file__).parent / "screens"

PIX, PHB = Link(kind=LinkKind.PIX), Link(kind=LinkKind.PHB)


def screen(name):
    return (SCREENS / name).read_text(encoding="utf-8")


def preset(name):
    return presets.preset_machine(name, name)


def drawn(machine, *, pairs=True, unicode=True, width=100, **state):
    return draw_machine(
        MachineState(machine=machine, **state), pairs=pairs, unicode=unicode, width=width
    )


def gpus_of(text):
    return [int(one) for one in re.findall(r"GPU (\d+)", text)]


# ---------------------------------------------------------------- machines


@pytest.mark.parametrize(
    ("name", "kind", "more"),
    [
        ("drawing-mesh.txt", "dgx-1-v100", {}),
        (
            "drawing-pcie.txt",
            "pcie-8",
            {"chosen": gpu_set((4, 5)), "free": gpu_set((0, 2, 3, 4, 5, 6))},
        ),
        ("drawing-bridges.txt", "pcie-8-a100", {"free": gpu_set((0, 1)), "unattributed": 1}),
        ("drawing-switch.txt", "dgx-2", {"chosen": gpu_set(range(12)), "width": 80}),
        ("drawing-four.txt", "hgx-a100-4", {"unicode": False, "free": gpu_set((1, 3))}),
    ],
)
def test_a_machine_is_drawn(name, kind, more):
    assert drawn(preset(kind), **more) == screen(name)


def test_gpus_that_share_a_switch_stand_together_whatever_their_indexes():
    links = tuple(
        tuple(None if i == j else PIX if i % 2 == j % 2 else PHB for j in range(4))
        for i in range(4)
    )
    text = drawn(machine("odd", "L4", links))
    assert gpus_of(text) == [0, 2, 1, 3]
    assert text.splitlines()[-2:] == [
        "  ╰──── PIX ────╯ ╰──── PIX ────╯",
        "  ╰──── PHB, one host bridge ───╯",
    ]


def test_links_that_form_no_tree_are_a_triangle_in_their_own_words():
    kinds = {(0, 1): PIX, (1, 2): PIX, (0, 2): PHB}
    links = tuple(
        tuple(None if i == j else kinds[min(i, j), max(i, j)] for j in range(3)) for i in range(3)
    )
    lines = drawn(machine("odd", "L4", links), unicode=False).splitlines()
    assert lines[-4:] == [
        "      1  PIX",
        "      2   .   PIX",
        "          0    1",
        "  PIX = one PCIe switch; . = PHB, one host bridge",
    ]


def test_a_switch_is_said_to_join_any_two_gpus_only_where_it_does():
    """A GPU whose NVLinks are down (`nvidia-smi topo -m` says NODE or SYS), and a weaker one."""
    off = drawn(OFF_THE_SWITCH)
    assert "between any two" not in off
    assert "      2  PHB   NV18" in off.splitlines()
    weak = drawn(WEAK_ON_THE_SWITCH).splitlines()
    assert "NVSwitch: NV18 between any two" in weak[4]
    assert weak[4].index("╰") > weak[1].index("┌")
    assert "NV14, 14 NVLinks" in weak[5]


def test_one_numa_node_needs_no_bracket():
    gpus = tuple(GPU(index=index, model="V100", numa=0) for index in range(8))
    assert "NUMA" not in drawn(Machine(name="m", gpus=gpus, links=V100.links))


def test_pairs_inside_the_chosen_set_are_marked_and_no_others():
    text = drawn(V100, chosen=gpu_set((0, 3, 4)))
    assert text.count("[") == 4  # three pairs and the legend
    assert "[NV2]" in text
    assert "[·]" in text


def test_without_any_choice_no_gpu_has_a_state():
    text = drawn(V100)
    assert "chosen" not in text
    assert "free" not in text
    assert "in use" not in text


def test_a_gpu_that_is_broken_is_drawn_so():
    text = drawn(HGX, free=gpu_set((0, 1)), broken=gpu_set((7,)))
    assert text.startswith("hgx-a100: 8 x A100; 2 free, 5 in use, 1 broken\n")


def test_what_is_not_known_of_the_links_is_said():
    unknown = Machine(
        name="m",
        gpus=(GPU(index=0), GPU(index=1)),
        links=flat(2),
        knowledge=Knowledge.UNKNOWN,
    )
    assert drawn(unknown).startswith("m: 2 x GPU (links not known)\n")


def test_each_network_card_names_its_nearest_gpus():
    nics = (
        NIC(name="mlx5_0", attachment=(PIX, PIX, PHB, PHB)),
        NIC(name="mlx5_1", attachment=(PHB, PHB, PHB, PHB)),
    )
    plain = preset("pcie-4")
    with_nics = Machine(name="m", gpus=plain.gpus, links=plain.links, nics=nics)
    assert drawn(with_nics).splitlines()[-1] == (
        "  NICs and their nearest GPUs: mlx5_0 PIX 0,1; mlx5_1 PHB all"
    )


def test_a_machine_without_gpus_is_one_line():
    assert drawn(Machine(name="m", gpus=(), links=())) == "m: no GPUs\n"


def test_a_machine_of_one_gpu_is_one_box():
    lone = Machine(name="m", gpus=(GPU(index=0, model="T4"),), links=((None,),))
    assert drawn(lone, unicode=False) == ("m: 1 x T4\n  +-----+\n  |GPU 0|\n  +-----+\n")


@st.composite
def machines(draw):
    size = draw(st.integers(1, 16))
    words = st.sampled_from(["NV1", "NV2", "NV12", "PIX", "PXB", "PHB", "NODE", "SYS"])
    cells = {(i, j): Link.parse(draw(words)) for i in range(size) for j in range(i + 1, size)}
    links = tuple(
        tuple(None if i == j else cells[min(i, j), max(i, j)] for j in range(size))
        for i in range(size)
    )
    numa = draw(st.lists(st.sampled_from([0, 1, None]), min_size=size, max_size=size))
    return Machine(
        name="m",
        gpus=tuple(GPU(index=at, model="A100", numa=one) for at, one in enumerate(numa)),
        links=links,
        nvswitch=behind_nvswitch("A100", links),
    )


@given(
    machine=machines(),
    chosen=st.integers(0, (1 << 16) - 1),
    free=st.none() | st.integers(0, (1 << 16) - 1),
    width=st.sampled_from([60, 80, 100, 200]),
)
def test_every_machine_is_drawn_with_each_gpu_once_and_within_the_width(
    machine, chosen, free, width
):
    chosen &= machine.everything
    text = drawn(machine, chosen=chosen, free=free, unicode=False, width=width)
    boxes = "".join(line for line in text.splitlines() if "GPU" in line and line[2] in "|:#")
    assert sorted(gpus_of(boxes)) == list(range(len(machine.gpus)))
    assert text.isascii()
    # A triangle of 16 GPUs takes 15 columns of one cell each.
    assert max(map(len, text.splitlines())) <= max(width, 100)
    pairs = chosen.bit_count() * (chosen.bit_count() - 1) // 2
    if "inside the chosen set" in text:
        assert text.count("[") == pairs + 1


# ---------------------------------------------------------------- the network


def racks(spines, leaves, nodes, free=lambda _at: 0b11111111):
    found = []
    for spine in range(spines):
        for leaf in range(leaves):
            for _node in range(nodes):
                at = len(found)
                path = (f"s{spine}", f"s{spine}-r{leaf}")
                found.append(node(f"dgx-{at}", V100, free(at), domains=path))
    tiers = (Tier(name="spine", bandwidth=12.5), Tier(name="leaf", bandwidth=25.0))
    return cluster(*found, tiers=tiers, beyond=6.0)


def test_a_network_is_a_tree_in_which_nodes_that_are_alike_share_a_line():
    world = racks(2, 2, 4, free=lambda at: 0b110110 if at in {1, 2, 9} else 0b11111111)
    assert network.draw_network(world) == screen("drawing-fabric.txt")
    ascii_only = network.draw_network(world, unicode=False)
    assert ascii_only.isascii()
    assert len(ascii_only.splitlines()) == len(screen("drawing-fabric.txt").splitlines())


def test_what_is_too_wide_for_a_narrow_terminal_goes_on_inside_the_tree():
    long = "gpu-rack-07-position-012.training.example.internal"
    path = ("building-2-spine-0", "building-2-spine-0-leaf-3")
    tiers = (Tier(name="spine", bandwidth=12.5), Tier(name="leaf", bandwidth=25.0))
    world = cluster(node(long, V100, domains=path), tiers=tiers, beyond=6.0)
    assert network.draw_network(world, width=60) == (
        "cluster (6 GB/s): 1 node, 8 of 8 GPUs free\n"
        "└─ spine building-2-spine-0 (12.5 GB/s): 1 node, 8 of 8 GPUs\n"
        "     free\n"
        "   └─ leaf building-2-spine-0-leaf-3 (25 GB/s): 1 node, 8 of\n"
        "        8 GPUs free\n"
        "      └─ □□□□□□□□  8 free  8 x V100\n"
        f"           {long}\n"
        "□ free\n"
    )


def test_a_flat_network_is_its_nodes_with_what_ails_them():
    world = cluster(
        node("a", V100, 0b1111),
        node("b", V100, 0b11, unavailable="cordoned"),
        node("c", HGX, unattributed=3),
        node("d", HGX, shared="MIG"),
        node("d2", HGX, 0, dedicated=True, unavailable="NotReady"),
        node("e", machine("cpu", "none", ())),
        node("f", V100, 0b111, allocatable=gpu_set(range(7))),
        guesses={"beyond": "nothing says"},
    )
    assert network.draw_network(world, unicode=False) == (
        "cluster (speed unknown): 6 nodes, 12 of 48 GPUs free\n"
        "|- ....####  4 free  8 x V100  a\n"
        "|- xx######  0 free  8 x V100  b (cordoned)\n"
        "|- ????????  5 of 8 free  8 x A100  c\n"
        "|- xxxxxxxx  0 free  8 x A100  d (MIG)\n"
        "|- ########  0 free  8 x A100  d2 (NotReady; reserved for topology jobs)\n"
        "`- ...####x  3 free  8 x V100  f\n"
        ". free  # in use  ? some of these are in use; it is not reported which"
        "  x cannot be used now\n"
        "Not shown: 1 node without GPUs\n"
    )


@pytest.mark.parametrize(
    ("one", "legend"),
    [
        (node("a", V100), ". free"),
        (node("a", V100, 0), "# in use"),
        (node("a", V100, 1), ". free  # in use"),
        (node("a", V100, unavailable="NotReady"), "x cannot be used now"),
        (node("a", machine("cpu", "none", ())), "1 node, none with GPUs"),
    ],
)
def test_the_legend_of_a_network_holds_only_signs_that_are_drawn(one, legend):
    assert network.draw_network(cluster(one), unicode=False).splitlines()[-1] == legend


def test_levels_whose_speed_nobody_gave_say_so_and_others_do_not():
    world = racks(2, 2, 1)
    spine, leaf = world.tiers
    unknown = replace(world, tiers=(spine, replace(leaf, bandwidth=None)))
    lines = network.draw_network(unknown).splitlines()
    assert "leaf s0-r0 (speed unknown): " in lines[2]
    assert "spine s0 (12.5 GB/s): " in lines[1]
    assert lines[0].startswith("cluster (6 GB/s): ")
    assert "unknown" not in network.draw_network(world)


def test_without_pairs_a_mesh_is_boxes_and_what_its_words_mean():
    text = drawn(V100, pairs=False)
    assert text.splitlines()[-1] == "  NV2 = 2 NVLinks; NV1 = 1 NVLink; SYS = across sockets"
    assert len(text.splitlines()) == len(drawn(V100).splitlines()) - 9


def test_an_opaque_machine_says_how_many_of_the_doubtful_are_free_as_its_network_does():
    opaque = node("a", V100, 0b1111111, unattributed=2)
    assert "; 5 of 7 free, 1 in use\n" in drawn(V100, free=opaque.free, unattributed=2)
    assert "  5 of 7 free  " in network.draw_network(cluster(opaque))


def test_what_is_said_of_doubtful_gpus_keeps_to_a_narrow_screen_below_the_names():
    product = replace(HGX, knowledge=Knowledge.ASSUMED, name="gpu-node-17")
    text = drawn(product, chosen=gpu_set((0,)), free=gpu_set(range(7)), unattributed=2, width=60)
    assert max(map(len, text.splitlines()[1:])) <= 60
    assert "2 of the GPUs marked free? are in use; not known which" in " ".join(text.split())


def test_nodes_in_which_different_numbers_of_gpus_are_hidden_are_not_alike():
    world = cluster(node("a", V100, unattributed=1), node("b", V100, unattributed=2))
    assert [line.split()[2] for line in network.draw_network(world).splitlines()[1:3]] == ["7", "6"]


def test_a_node_that_is_slower_than_what_joins_it_says_so():
    world = cluster(node("a", V100), node("b", V100, network=1.25), node("c", V100))
    assert [
        line.partition("V100  ")[2] for line in network.draw_network(world).splitlines()[1:3]
    ] == [
        "a, c",
        "b (1.25 GB/s to others)",
    ]


def test_names_that_do_not_fit_are_counted():
    world = cluster(*(node(f"a-rather-long-name-{at}", HGX) for at in range(40)))
    (line,) = network.draw_network(world, width=80).splitlines()[1:2]
    assert len(line) <= 80
    shown = line.count("a-rather-long-name-")
    assert line.endswith(f" and {40 - shown} more")


@pytest.mark.parametrize(
    ("world", "said"),
    [
        (racks(3, 10, 4, free=lambda at: at % 256), "Not shown, as too many: nodes"),
        (racks(20, 25, 1), "Not shown, as too many: leaf domains, nodes"),
        (racks(100, 1, 1), "... and 42 more spine domains"),
        (cluster(*(node(f"n{at}", V100, at) for at in range(250))), "more kinds of nodes"),
    ],
)
def test_a_network_too_large_for_a_screen_is_drawn_less_deep(world, said):
    text = network.draw_network(world)
    assert said in text
    assert len(text.splitlines()) <= network.MAX_DRAWN_ROWS + 2


def test_nodes_without_gpus_take_no_place_from_the_network():
    real = racks(1, 2, 2).nodes
    bare = (
        node(f"cpu-{at}", machine("cpu", "none", ()), domains=(f"({at})",) * 2) for at in range(99)
    )
    text = network.draw_network(replace(racks(1, 2, 2), nodes=(*bare, *real)))
    assert text == network.draw_network(racks(1, 2, 2)) + "Not shown: 99 nodes without GPUs\n"


def test_one_gpu_is_not_many():
    world = cluster(node("a", machine("one", "V100", matrix(1, {}))))
    assert network.draw_network(world).startswith(
        "cluster (speed unknown): 1 node, 1 of 1 GPU free\n"
    )


def test_no_gpu_is_called_free_on_a_machine_that_takes_no_jobs():
    text = drawn(V100, free=gpu_set(range(6)), unattributed=2, away="unused")
    assert "; 6 unused, 2 in use\n" in text
    assert "free" not in text


def test_no_nodes_are_no_network():
    assert network.draw_network(cluster()) == "no nodes\n"


def test_two_lanes_of_a_mesh_are_not_taken_for_a_tree():
    """A chain of double links joins all, but its ends are joined less well."""
    chain = machine("chain", "V100", matrix(3, {(0, 1): 2, (1, 2): 2, (0, 2): 1}))
    assert "2   ·   NV2" in drawn(chain)
