"""Pictures: what is drawn, that all of it can be read, and that those of the docs are ours.

`python tests/test_pictures.py` draws those of docs/pictures anew.
"""

import re
import shlex
import subprocess
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from cube_mesh import HGX, V100, cluster, machine, matrix, node
from hypothesis import given
from hypothesis import strategies as st

from arena_topo import escaping
from arena_topo.bandwidth import packing
from arena_topo.drawing import machine_svg, network, sheet
from arena_topo.drawing.machine import MachineState
from arena_topo.engines import machines
from arena_topo.topology import (
    NIC,
    Link,
    LinkKind,
    Tier,
    flat,
    gpu_set,
    presets,
)

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
NAMESPACE = "{http://www.w3.org/2000/svg}"
COMMANDS = {
    line.split(maxsplit=1)[0]: shlex.split(line.split(maxsplit=1)[1])
    for line in (PICTURES / "commands.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
}
SCENES = sorted(COMMANDS)
KINDS = presets.preset_names()
CAPTURES = sorted(
    path
    for path in (ROOT / "tests" / "machines").glob("*.txt")
    if not re.search(r"cut|amd|p2p|table", path.name)
)
HOSTILE = "</text><script>alert(1)</script>&amp;\"'\x1b[31m\u202e\x00\ud800]]>"


def preset(name):
    return presets.preset_machine(name, name)


def picture(machine, notes=(), **state):
    return machine_svg.draw_machine_svg(MachineState(machine=machine, **state), notes=notes)


def gpu_spots(text):
    """Where the name of each GPU is."""
    return {
        int(one.text.split()[1]): (float(one.get("x")) + x, float(one.get("y")) + y)
        for one, x, y in placed(parsed(text))
        if re.fullmatch(r"GPU \d+", one.text or "")
    }


def parsed(text):
    return ET.fromstring(text.encode())


def words(text):
    """All that can be read in a picture."""
    return [one.text or "" for one in parsed(text).iter(f"{NAMESPACE}text")]


def looks(text, tag="path"):
    return [one.get("class") for one in parsed(text).iter(f"{NAMESPACE}{tag}")]


def placed(element, x=0.0, y=0.0):
    """Every shape with what its groups move it by."""
    for one in element:
        dx, dy = x, y
        if moved := re.fullmatch(r"translate\((\S+) (\S+)\)", one.get("transform", "")):
            dx, dy = x + float(moved[1]), y + float(moved[2])
        yield one, dx, dy
        yield from placed(one, dx, dy)


def text_boxes(text):
    """Where every line of text is, as left, top, right, bottom."""
    for one, dx, dy in placed(parsed(text)):
        if one.tag != f"{NAMESPACE}text":
            continue
        look = one.get("class", "").split()
        size = {"big": 24, "head": 17, "small": 12}.get(
            next((name for name in look if name in {"big", "head", "small"}), ""), 13
        )
        wide = sheet.text_width(one.text or "", size)
        left = float(one.get("x")) + dx - (wide / 2 if "middle" in look else 0)
        low = float(one.get("y")) + dy
        yield left, low - 0.75 * size, left + wide, low + 0.2 * size, one.text


# ---------------------------------------------------------------- the pictures of the docs


@pytest.mark.parametrize("name", SCENES)
def test_a_picture_of_the_docs_is_what_its_command_draws(name, arena, monkeypatch):
    monkeypatch.chdir(ROOT)
    code, out, err = arena(*COMMANDS[name])
    assert code == 0, err
    assert out == (PICTURES / name).read_text(encoding="utf-8"), f"draw them anew: {__file__}"


def test_every_picture_of_the_docs_has_a_command():
    assert sorted(path.name for path in PICTURES.glob("*.svg")) == SCENES


@pytest.mark.parametrize("name", SCENES)
def test_a_picture_needs_nothing_else_and_says_in_words_what_it_shows(name):
    text = (PICTURES / name).read_text(encoding="utf-8")
    root = parsed(text)
    assert root.tag == f"{NAMESPACE}svg"
    assert root.get("role") == "img"
    assert [one.tag.removeprefix(NAMESPACE) for one in root][:3] == ["title", "desc", "style"]
    assert all(root.find(f"{NAMESPACE}{tag}").text.strip() for tag in ("title", "desc"))
    tags = {one.tag.removeprefix(NAMESPACE) for one in root.iter()}
    assert tags <= {"svg", "title", "desc", "style", "rect", "path", "text", "g"}
    assert not re.search(r"url\(|@import|@font-face|href|javascript|\bon\w+=", text)
    assert re.findall("font-family:([^;}]*)", text) == ["sans-serif"]


@pytest.mark.parametrize("name", SCENES)
def test_no_two_texts_of_a_picture_overlap_and_all_are_inside(name):
    text = (PICTURES / name).read_text(encoding="utf-8")
    assert_readable(text)


def assert_readable(text):
    left, top, wide, high = map(float, parsed(text).get("viewBox").split())
    boxes = list(text_boxes(text))
    for box in boxes:
        assert left <= box[0] < box[2] <= left + wide, box[4]
        assert top <= box[1] < box[3] <= top + high, box[4]
    for one, other in combinations(boxes, 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        assert apart, (one[4], other[4])


SHOWN = [
    (page.relative_to(ROOT), said, (page.parent / target).resolve())
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    for said, target in re.findall(
        r"!\[([^\]]*)\]\(([^)]*\.svg)\)", page.read_text(encoding="utf-8")
    )
]
NUMBERS = ["two", "three", "four", "five", "six", "seven", "eight"]
RATE = r"[\d.]*\d GB/s"
IN_A_ROW = r"\d+(?:(?:, and |, | and | )\d+)+"


def claims(said):
    """The figures of words: rates in GB/s, sets of GPUs, and how many workers, rings and so on."""
    for number, word in enumerate(NUMBERS, 2):
        said = re.sub(rf"\b{word}\b", str(number), said, flags=re.IGNORECASE)
    said = re.sub(
        r"(\d+)(?:-| to )(\d+)",
        lambda ends: ", ".join(map(str, range(int(ends[1]), int(ends[2]) + 1))),
        said,
    )
    said = re.sub(r"\bone (?=ring|worker)", "1 ", said)
    rows = re.findall(IN_A_ROW, re.sub(RATE, ";", said))
    return (
        set(re.findall(RATE, said)),
        {frozenset(map(int, re.findall(r"\d+", row))) for row in rows},
        set(re.findall(r"\d+ (?:worker|ring)", said)),
    )


def in_use(text):
    """The GPUs that are drawn as in use, each above the words that say so."""
    at = {}
    for one, x, y in placed(parsed(text)):
        if one.tag == f"{NAMESPACE}text" and re.fullmatch(r"GPU \d+|in use", one.text or ""):
            at.setdefault(one.text, []).append((float(one.get("x")) + x, float(one.get("y")) + y))
    return frozenset(
        int(said.split()[1])
        for said, spots in at.items()
        if said != "in use"
        for x, y in spots
        if any(abs(x - left) < 31 and 0 < low - y < 25 for left, low in at.get("in use", ()))
    )


def test_pictures_are_shown_by_the_pages_that_are_read_first():
    shown = {(str(page), picture.name) for page, _said, picture in SHOWN}
    first = {("README.md", "placement.svg"), ("docs/index.md", "placement.svg")}
    assert first < shown
    assert {picture for _page, picture in shown} == set(SCENES)


@pytest.mark.parametrize(
    ("said", "path"),
    [pytest.param(said, path, id=f"{page}-{path.stem}") for page, said, path in SHOWN],
)
def test_words_in_place_of_a_picture_have_the_figures_of_the_picture(said, path):
    text = path.read_text(encoding="utf-8")
    root = parsed(text)
    told = "; ".join(root.find(f"{NAMESPACE}{tag}").text for tag in ("title", "desc"))
    rates, sets, counts = claims(said)
    real_rates, real_sets, real_counts = claims(told)
    assert rates <= real_rates
    assert sets <= {*real_sets, in_use(text)}
    if rates:  # They tell of a placement: it is the first set, and the first rate, of the picture.
        chosen = re.search(RATE, told)[0]
        assert chosen in rates
        assert counts <= real_counts


def test_figures_are_found_in_words_however_they_are_written():
    assert claims("Four workers on GPUs 4-7: two rings, 80 GB/s; 0, 1 and 2 are in use") == (
        {"80 GB/s"},
        {frozenset({4, 5, 6, 7}), frozenset({0, 1, 2})},
        {"4 worker", "2 ring"},
    )
    busy = picture(V100, free=gpu_set((0, 1)))
    assert in_use(busy) == {2, 3, 4, 5, 6, 7}


def test_every_colour_of_light_screens_has_one_for_dark_screens():
    light, media, dark = sheet.STYLE.partition("@media (prefers-color-scheme:dark)")
    assert media
    for name, rules in sheet.COLOURS.items():
        assert f"{name}{{{rules[0]}}}" in light
        assert f"{name}{{{rules[1]}}}" in dark


def _contrast(one, other):
    """The contrast ratio of two colours (WCAG 2.1, relative luminance)."""

    def light(colour):
        parts = (int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4))
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("screen", [0, 1], ids=["light", "dark"])
def test_text_stands_out_from_what_is_behind_it_on_both_screens(screen):
    def fill(name):
        return re.search("fill:#(......)", sheet.COLOURS[name][screen])[1]

    behind = {
        "text": (".paper", ".frame", ".on-frame", ".poor-frame", ".node", ".broken"),
        ".dim": (".paper", ".frame"),
        ".good": (".paper",),
        ".bad": (".paper",),
        ".on-text": (".on", ".poor"),
        ".used-text": (".used",),
    }
    for name, others in behind.items():
        for other in others:
            assert _contrast(fill(name), fill(other)) >= 4, (name, other)


# ---------------------------------------------------------------- machines


@pytest.mark.parametrize("kind", KINDS)
def test_a_machine_shows_every_gpu_once_and_can_be_read(kind):
    of = preset(kind)
    text = picture(of)
    gpus = [one for one in words(text) if re.fullmatch(r"GPU \d+", one)]
    assert sorted(gpus) == sorted(f"GPU {gpu}" for gpu in range(len(of.gpus)))
    assert_readable(text)


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_a_machine_that_somebody_captured_can_be_read(path):
    of = machines.read_description(str(path)).machine
    assert_readable(picture(of, free=of.everything))


def test_a_mesh_has_a_line_as_thick_as_its_lanes_and_a_socket_on_each_side():
    text = picture(V100)
    every = packing.lanes(V100.links)
    lanes = [every[one][other] for one, other in combinations(range(8), 2) if every[one][other]]
    key = [1, 2]
    thick = [float(one) / 2.5 for one in re.findall(r'class="link" stroke-width="(.+?)"', text)]
    assert sorted(thick) == sorted([*lanes, *key])
    spots = gpu_spots(text)
    assert max(spots[gpu][0] for gpu in range(4)) < min(spots[gpu][0] for gpu in range(4, 8))


def test_gpus_of_a_switch_are_in_one_box_with_its_lanes_and_rate():
    assert "NVSwitch: 18 NVLinks each, 371 GB/s" in words(picture(preset("hgx-h100")))


def test_pcie_is_boxes_in_boxes_inside_those_of_its_sockets():
    said = words(picture(preset("pcie-8")))
    assert said.count("PIX, 24 GB/s") == 4
    assert said.count("NUMA 0: PCIe switches (PXB), 24 GB/s") == 1
    assert said[-1] == "across sockets (SYS), 19.9 GB/s"


def test_what_is_only_assumed_or_not_known_is_said():
    assumed = presets.known_machine("Tesla-V100-SXM2-32GB", 8, "n")
    assert "8 x V100 (links assumed from the GPU product)" in words(picture(assumed))


def test_gpus_in_use_free_doubtful_and_broken_look_different():
    text = picture(
        V100,
        free=gpu_set((0, 1)),
        unattributed=1,
        broken=gpu_set((7,)),
        notes=("of them one is used",),
    )
    said = words(text)
    assert [said.count(one) for one in ("free?", "in use", "broken")] == [2, 5, 1]
    assert {"node doubt", "used", "broken"} <= set(looks(text, "rect"))
    assert "of them one is used" in said


def meshes():
    pair = st.integers(0, 3)
    return st.integers(3, 9).flatmap(
        lambda size: st.lists(pair, min_size=size * size, max_size=size * size).map(
            lambda cells: machine(
                "odd",
                "B200",
                matrix(
                    size,
                    {(i, j): cells[i * size + j] for i in range(size) for j in range(i + 1, size)},
                ),
            )
        )
    )


@given(meshes())
def test_no_gpu_stands_on_another_and_any_machine_can_be_drawn(of):
    spots = gpu_spots(picture(of))
    assert sorted(spots) == list(range(len(of.gpus)))
    for one, other in combinations(spots.values(), 2):
        assert abs(one[0] - other[0]) >= 62 or abs(one[1] - other[1]) >= 44


# ---------------------------------------------------------------- placements


def plan(arena, *more, state="docs/pictures/dgx-1.yaml", workers=4, gpus=1):
    gang = ("--name=j", f"--workers={workers}", f"--gpus={gpus}", "--gputopology", "--image=i")
    return arena("plan", "mpi", *gang, f"--state={ROOT / state}", *more, "-o", "svg", "true")


def test_a_placement_shows_ranks_and_ring_beside_the_first_gpus_by_index(arena):
    code, out, _err = plan(arena, "--pod-shape=fused")
    said = words(out)
    assert code == 0
    assert said.count("86.4 GB/s (75.1 to 98.4)") == said.count("16.8 GB/s (14 to 20.3)") == 1
    # Each rank is drawn twice: once where we put it and once where first fit does.
    assert [said.count(f"rank {rank}") for rank in range(4)] == [2] * 4
    # Six pairs of GPUs 4 to 7 have NVLinks, two pairs of the others, whose ring goes over PCIe.
    assert [looks(out).count(one) for one in ("lit", "slow", "slow dashed")] == [6, 2, 2]
    assert said.count("in use") == 4
    assert_readable(out)


def test_where_first_fit_takes_the_same_gpus_it_is_not_drawn_again(arena):
    code, out, _err = plan(arena, "--pod-shape=fused", workers=6)
    assert code == 0
    assert "First fit by index takes the same GPUs." in words(out)
    assert "poor" not in looks(out, "rect")
    assert_readable(out)


def test_a_gang_of_several_nodes_hangs_on_the_level_that_joins_them(arena):
    code, out, _err = plan(
        arena,
        f"--fabric={PICTURES / 'net.yaml'}",
        state="docs/pictures/cluster.yaml",
        workers=3,
        gpus=8,
    )
    said = words(out)
    assert code == 0
    assert "one leaf, 400 GB/s" in said
    assert "one spine, 200 GB/s" in said
    assert "also on: h100-08, h100-09" in said


def test_a_gang_of_more_kinds_of_nodes_than_are_drawn_counts_the_others(arena, tmp_path):
    state = tmp_path / "state.yaml"
    pods = "".join(BUSY.format(at=at, gpus=",".join(map(str, range(at)))) for at in range(1, 7))
    nodes = "".join(NODE.format(at=at) for at in range(1, 7))
    state.write_text(f"apiVersion: v1\nkind: List\nitems:\n{nodes}{pods}", encoding="utf-8")
    code, out, _err = plan(arena, state=state, workers=27)
    assert code == 0
    assert "2 more nodes are not drawn" in words(out)
    assert_readable(out)


NODE = """\
- apiVersion: v1
  kind: Node
  metadata:
    name: n{at}
    labels: {{nvidia.com/gpu.product: Tesla-V100-SXM2-32GB}}
  status:
    capacity: {{nvidia.com/gpu: "8"}}
    allocatable: {{nvidia.com/gpu: "8"}}
    conditions: [{{type: Ready, status: "True"}}]
"""
BUSY = """\
- apiVersion: v1
  kind: Pod
  metadata:
    name: p{at}
    annotations: {{topology.kubernetes.io/gpu-group: "{gpus}"}}
  spec:
    nodeName: n{at}
    containers: [{{name: main, resources: {{limits: {{nvidia.com/gpu: "{at}"}}}}}}]
  status: {{phase: Running}}
"""


def test_a_gang_without_a_place_is_refused_as_ever_and_not_drawn(arena):
    code, out, err = plan(arena, workers=9)
    assert (code, out) == (5, "")
    assert "error:" in err


def test_a_named_placement_is_drawn_though_its_gpus_are_in_use(arena):
    state = f"--state={ROOT / 'tests' / 'dumps' / 'two-dgx-1.json'}"
    argv = ("--workers=1", "--gpus=2", state, "--on=dgx-0/2,3", "-o", "svg")
    code, out, err = arena("plan", "mpi", *argv)
    assert code == 3
    assert out.startswith("<svg")
    assert "GPU 3 of dgx-0 is in use" in err


def test_a_job_without_gpus_has_no_picture(arena):
    job = ("--name=j", "--workers=2", "--image=i")
    state = f"--state={PICTURES / 'dgx-1.yaml'}"
    code, out, err = arena("plan", "mpi", *job, state, "-o", "svg", "true")
    assert (code, out) == (2, "")
    assert "there is no placement of j to draw" in err
    assert "add --gpus N" in err


def test_counting_alone_has_no_picture(arena):
    code, out, err = plan(arena, "--count-only")
    assert (code, out) == (2, "")
    assert "--count-only and --output svg exclude each other" in err


# ---------------------------------------------------------------- the network


def racks(many, nodes=2, **more):
    return cluster(
        *(
            node(
                f"n{at}-{index}", HGX, free=0b1111 << (index % 4), domains=(f"s{at % 3}", f"r{at}")
            )
            for at in range(many)
            for index in range(nodes)
        ),
        tiers=(Tier(name="spine", bandwidth=50), Tier(name="rack", bandwidth=100)),
        beyond=12.5,
        **more,
    )


def test_a_network_is_a_tree_of_domains_with_their_speed_and_free_gpus():
    text = network.draw_network_svg(racks(4))
    said = words(text)
    assert said[0] == "8 nodes, 32 of 64 GPUs free"
    assert {"cluster", "spine s0", "rack r3", "12.5 GB/s; 32 of 64 GPUs free"} <= set(said)
    assert said.count("100 GB/s; 8 of 16 GPUs free") == 4
    assert_readable(text)


def test_a_speed_of_the_network_that_nobody_gave_is_marked_as_assumed():
    world = racks(2)
    spine, rack = world.tiers
    said = words(
        network.draw_network_svg(replace(world, tiers=(spine, replace(rack, bandwidth=None))))
    )
    assert [one.split(";")[0] for one in said if "free" in one and ";" in one] == [
        "12.5 GB/s",
        *("50 GB/s", "speed unknown") * 2,
    ]


def test_nodes_that_are_alike_share_a_row():
    text = network.draw_network_svg(cluster(*(node(f"n{at}", V100) for at in range(3))))
    assert "8 free each: n0, n1, n2, 8 x V100" in words(text)
    assert looks(text, "rect").count("node") == 8 + 1


def test_a_network_too_large_for_a_page_is_drawn_less_deep_and_says_so():
    text = network.draw_network_svg(racks(40))
    said = words(text)
    assert "Not shown, as too many: nodes" in said
    assert "rack r39" in said
    assert not [one for one in said if one.startswith("n1-")]
    flat_one = cluster(
        *(node(f"n{at}", V100, domains=(f"d{at}",)) for at in range(100)),
        tiers=(Tier(name="rack", bandwidth=9),),
    )
    assert "... and 42 more rack domains" in words(network.draw_network_svg(flat_one))


def test_nodes_that_take_no_jobs_and_unknown_gpus_are_marked():
    text = network.draw_network_svg(
        cluster(
            node("a", V100, free=0b1111, unattributed=2),
            node("b", V100, unavailable="cordoned"),
            node("c", V100, network=1.25),
        )
    )
    said = words(text)
    assert "0 free: b, 8 x V100 (cordoned)" in said
    assert "8 free: c, 8 x V100 (1.25 GB/s to others)" in said
    assert "2 of 4 free: a, 8 x V100" in said
    assert "some of these are in use; it is not reported which" in said


def test_an_empty_cluster_is_a_picture_too():
    assert words(network.draw_network_svg(cluster()))[0] == "0 nodes, 0 of 0 GPUs free"


# ---------------------------------------------------------------- names of others


def test_hostile_names_stay_text_and_inside_the_picture():
    nic = NIC(name=HOSTILE, attachment=(Link(kind=LinkKind.PIX),) * 4)
    of = machine(HOSTILE * 3, HOSTILE, flat(4))
    one = picture(type(of)(name=of.name, gpus=of.gpus, links=of.links, nics=(nic,)))
    other = network.draw_network_svg(
        cluster(
            node(HOSTILE, of, domains=(HOSTILE * 5,), unavailable=HOSTILE),
            node("n" * 253, V100, domains=("d" * 300,)),
            tiers=(Tier(name=HOSTILE, bandwidth=5),),
        )
    )
    for text in (one, other):
        tags = {each.tag.removeprefix(NAMESPACE) for each in parsed(text).iter()}
        assert tags <= {"svg", "title", "desc", "style", "rect", "path", "text", "g"}
        assert not set("\x1b\u202e\x00\ud800") & set(text)
        assert_readable(text)


def test_a_name_that_has_no_room_keeps_its_beginning_and_its_end():
    short = sheet.crop_text("a-very-long-name-of-a-node-17", 100)
    assert sheet.text_width(short) <= 100
    assert short.startswith("a-very")
    assert short.endswith("17")
    assert "\u2026" in short


# ---------------------------------------------------------------- the commands


@given(st.text("iWo ", min_size=1, max_size=60), st.floats(1, 400))
def test_a_name_is_cut_to_as_much_as_fits(words, room):
    line = escaping.one_line(words)
    short = sheet.crop_text(words, room)
    if sheet.text_width(line) <= room:
        assert short == line
    else:
        assert "\u2026" in short
        kept = len(short) - 1
        longer = f"{line[: (kept + 2) // 2]}\u2026{line[len(line) - (kept + 1) // 2 :]}"
        assert kept == len(line) - 1 or sheet.text_width(longer) > room


def test_a_name_of_a_million_characters_is_cut_at_once():
    # To try every length of it would take hours.
    assert sheet.crop_text("x" * 1_000_000, 100) == sheet.crop_text("x" * 1000, 100)


def test_nodes_files_and_the_network_are_drawn_by_the_same_flag(arena):
    state = f"--state={PICTURES / 'dgx-1.yaml'}"
    code, out, _err = arena("topology", "show", "dgx-1", state, "-o", "svg")
    assert code == 0
    assert words(out).count("in use") == 2
    assert arena("topology", "show", state, "-o", "svg")[1].startswith("<svg ")
    capture = ROOT / "tests" / "machines" / "a100-pcie-one-bridge.txt"
    drawn = arena("topology", "show", "--from", str(capture), "-o", "svg")[1]
    assert drawn == picture(machines.read_description(str(capture)).machine)


def redraw():
    for name, command in COMMANDS.items():
        with (PICTURES / name).open("wb") as drawn:
            program = [sys.executable, "-m", "arena_topo", *command]
            subprocess.run(program, cwd=ROOT, stdout=drawn, check=True)


if __name__ == "__main__":
    redraw()
