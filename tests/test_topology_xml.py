"""XML of NCCL -> Machine: what is read, what is noted, what is refused and where."""

from __future__ import annotations

import csv
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arena_topo.errors import UnreadableTopology
from arena_topo.topology import Knowledge
from arena_topo.topology.nccl_xml import MAX_XML_CHARACTERS, MAX_XML_DEPTH, parse_xml, read_xml

MACHINES = Path(__file__).parent / "machines"
CAPTURES = Path(__file__).resolve().parents[2] / "shared" / "data" / "xml"

H100 = 'class="0x030200" vendor="0x10de" device="0x2330" link_speed="32.0 GT/s PCIe"'
V100 = 'class="0x030200" vendor="0x10de" device="0x1db1" link_speed="8 GT/s"'
UNNAMED = 'class="0x030200" link_speed="16.0 GT/s PCIe"'
BRIDGE = 'class="0x060400" link_speed="5.0 GT/s PCIe"'


def gpu(bus: str, index: object, *links: str, slot: str = V100, sm: int = 70) -> str:
    """A GPU in its slot; links are `TARGET*COUNT`, the target `switch` being an NVSwitch."""
    lanes = ""
    for target, _, count in (link.partition("*") for link in links):
        kind = "0x068000" if target == "switch" else "0x030200"
        lanes += f'<nvlink target="{target}" count="{count}" tclass="{kind}"/>\n'
    return (
        f'<pci busid="{bus}" {slot}>\n<gpu dev="{index}" sm="{sm}" rank="0">{lanes}</gpu>\n</pci>'
    )


def nic(bus: str, *ports: tuple[str, str]) -> str:
    nets = "".join(
        f'<net name="{name}" dev="{at}" speed="{speed}"/>' for at, (name, speed) in enumerate(ports)
    )
    return f'<pci busid="{bus}" class="0x020700"><nic>{nets}</nic></pci>'


def switch(bus: str, *inside: str) -> str:
    return f'<pci busid="{bus}" {BRIDGE}>\n' + "\n".join(inside) + "\n</pci>"


def cpu(numa: int, *inside: str, more: str = "") -> str:
    return f'<cpu numaid="{numa}" {more}>\n' + "\n".join(inside) + "\n</cpu>"


def system(*inside: str) -> str:
    return '<system version="1">\n' + "\n".join(inside) + "\n</system>\n"


def machine(*inside: str):
    reading = read_xml(system(*inside), name="m")
    assert reading.notes == ()
    return reading.machine


def words(found) -> dict[str, str]:
    size = range(len(found.gpus))
    return {f"{i}-{j}": str(found.link(i, j)) for i, j in combinations(size, 2)}


BUS = [f"0000:{bus:02x}:00.0" for bus in range(0x10, 0x30)]


# ---------------------------------------------------------------- captures


def row(file: Path) -> list[str]:
    """A row of xml-captures.tsv as the reader would write it."""
    try:
        reading = read_xml(file.read_text(encoding="utf-8"), name="m")
    except UnreadableTopology as error:
        return [file.name, *[""] * 8, str(error)]
    found = reading.machine
    every = Counter(words(found).values())
    near = [
        f"{nic.name}:{nic.attachment[0]}" + (f"@{nic.speed:g}" if nic.speed else "")
        for nic in found.nics
    ]
    return [
        file.name,
        f"{len(found.gpus)} x {found.model}",
        "yes" if found.nvswitch else "no",
        str(found.pcie_generation or "?"),
        found.knowledge.value,
        " ".join("X" if link is None else str(link) for link in found.links[0]),
        " ".join(f"{word}:{every[word]}" for word in sorted(every)),
        " ".join("?" if gpu.numa is None else str(gpu.numa) for gpu in found.gpus),
        " ".join(near),
        "; ".join(reading.notes),
    ]


def test_every_captured_file_is_read_or_refused_as_it_should_be():
    if not CAPTURES.is_dir():
        pytest.skip("the collection that xml-captures.tsv describes is not part of the source tree")
    with (MACHINES / "xml-captures.tsv").open(encoding="utf-8", newline="") as table:
        _header, *rows = csv.reader(table, delimiter="\t", quoting=csv.QUOTE_NONE)
    assert [row(file) for file in sorted(CAPTURES.glob("*.xml"))] == rows


# ---------------------------------------------------------------- paths and links


def test_the_pcie_path_follows_from_the_devices_that_two_gpus_share():
    found = machine(
        cpu(
            0,
            switch("a0", gpu(BUS[0], 0), gpu(BUS[1], 1), switch("a1", gpu(BUS[2], 2))),
            gpu(BUS[3], 3),
        ),
        cpu(1, gpu(BUS[4], 4)),
    )
    assert words(found) == {
        "0-1": "PIX",
        "0-2": "PXB",
        "0-3": "NODE",
        "0-4": "SYS",
        "1-2": "PXB",
        "1-3": "NODE",
        "1-4": "SYS",
        "2-3": "NODE",
        "2-4": "SYS",
        "3-4": "SYS",
    }
    assert [one.numa for one in found.gpus] == [0, 0, 0, 0, 1]


def test_switches_of_two_numa_nodes_whose_number_is_not_known_are_far_apart():
    found = machine(cpu(-1, gpu(BUS[0], 0)), cpu(-1, gpu(BUS[1], 1)))
    assert words(found) == {"0-1": "SYS"}
    assert [one.numa for one in found.gpus] == [None, None]


def test_gpus_come_in_the_order_of_their_indexes_not_of_the_file():
    found = machine(cpu(0, gpu(BUS[0], 1)), cpu(1, gpu(BUS[1], 0)))
    assert [one.numa for one in found.gpus] == [1, 0]


def test_nvlinks_between_two_gpus_are_added_up():
    one = gpu("0000:1A:00.0", 0, f"{BUS[1]}*1", f"{BUS[1]}*1", f"{BUS[2]}*1")
    two = gpu(BUS[1], 1, "0000:1a:00.0*2")
    three = gpu(BUS[2], 2, "00000000:1a:00.0*1")
    found = machine(cpu(0, one, two, three))
    assert words(found) == {"0-1": "NV2", "0-2": "NV1", "1-2": "NODE"}
    assert not found.nvswitch
    assert (found.model, found.pcie_generation, found.knowledge) == ("V100", 3, Knowledge.MEASURED)


def test_behind_nvswitches_every_pair_has_the_lanes_of_the_weaker_gpu():
    found = machine(
        cpu(0, gpu(BUS[0], 0, "switch*10", "switch*8", slot=H100)),
        cpu(1, gpu(BUS[1], 1, "switch*18", slot=H100), gpu(BUS[2], 2, "switch*17", slot=H100)),
    )
    assert words(found) == {"0-1": "NV18", "0-2": "NV17", "1-2": "NV17"}
    assert (found.nvswitch, found.model, found.pcie_generation) == (True, "H100", 5)


def test_two_gpus_on_an_nvswitch_are_known_to_be():
    text = [gpu(BUS[index], index, "switch*6") for index in range(2)]
    assert machine(cpu(0, *text)).nvswitch
    direct = gpu(BUS[0], 0, f"{BUS[1]}*6"), gpu(BUS[1], 1, f"{BUS[0]}*6")
    assert not machine(cpu(0, *direct)).nvswitch


def test_of_nvlinks_that_the_two_ends_count_differently_the_fewer_count():
    ends = gpu(BUS[0], 0, f"{BUS[1]}*2"), gpu(BUS[1], 1, f"{BUS[0]}*1")
    reading = read_xml(system(cpu(0, *ends)), name="m")
    assert words(reading.machine) == {"0-1": "NV1"}
    assert reading.notes == (
        "line 8: GPU 1 says 1 NVLinks to GPU 0, which says 2; the fewer count",
    )


@pytest.mark.parametrize("target", [BUS[0], "0000:ff:00.0"])
def test_a_file_of_some_of_the_gpus_is_refused(target):
    text = system(cpu(0, gpu(BUS[0], 0, f"{target}*2"), gpu(BUS[1], 1)))
    with pytest.raises(UnreadableTopology) as caught:
        read_xml(text, name="m")
    assert caught.value.message == (
        f"line 4: the other end of an NVLink, '{target}', is no other GPU of this file"
    )
    assert "on all GPUs of the machine" in caught.value.hint


def test_nvlinks_to_a_cpu_join_no_gpus():
    linked = gpu(BUS[0], 0, "cpu*3").replace('0x030200"/', '0x068001"/')
    found = machine(cpu(0, linked, gpu(BUS[1], 1)))
    assert (words(found), found.knowledge) == ({"0-1": "NODE"}, Knowledge.MEASURED)


# ---------------------------------------------------------------- models, speeds, cards


@pytest.mark.parametrize(
    ("slot", "sm", "links", "model"),
    [
        (H100, 90, (), "H100"),
        ('class="0x030200" vendor="0x10de" device="0x20B5"', 80, (), "A100"),
        ('class="0x030200" vendor="0x8086" device="0x2330"', 90, (), None),
        (UNNAMED, 70, ("switch*6",), "V100"),
        (UNNAMED, 60, ("switch*4",), "P100"),
        (UNNAMED, 70, (), None),
        (UNNAMED, 80, ("switch*12",), None),
        (UNNAMED, 90, ("switch*18",), None),
    ],
)
def test_the_model_is_given_only_if_it_is_certain(slot, sm, links, model):
    assert machine(cpu(0, gpu(BUS[0], 0, *links, slot=slot, sm=sm))).model == model


def test_a_model_that_the_caller_knows_comes_first():
    reading = read_xml(system(cpu(0, gpu(BUS[0], 0))), name="m", model="NVIDIA A100-SXM4-80GB")
    assert reading.machine.model == "A100"


@pytest.mark.parametrize(
    ("speeds", "generation"),
    [
        (("16 GT/s", "16.0 GT/s PCIe"), 4),
        (("64.0 GT/s PCIe", "32.0 GT/s PCIe"), 5),
        (("32 GT/s", ""), None),
        (("32 GT/s", "Unknown"), None),
        (("32 GT/s", "2.5 GT/s PCIe"), None),
    ],
)
def test_the_pcie_generation_is_that_of_the_slowest_gpu_and_never_an_idle_links(speeds, generation):
    gpus = [
        gpu(BUS[index], index, slot=f'class="0x030200" link_speed="{speed}"')
        for index, speed in enumerate(speeds)
    ]
    assert machine(cpu(0, *gpus)).pcie_generation == generation


def test_network_cards_are_attached_as_nvidia_smi_would_say_with_their_speed():
    found = machine(
        cpu(
            0,
            switch("a0", gpu(BUS[0], 0), nic(BUS[8], ("mlx5_0", "200000"), ("mlx5_1", "-1"))),
            switch("a1", gpu(BUS[1], 1)),
            '<nic><net name="eth0" dev="7" speed="10000"/></nic>',
        ),
        cpu(1, gpu(BUS[2], 2)),
    )
    assert [
        (one.name, [str(link) for link in one.attachment], one.speed) for one in found.nics
    ] == [
        ("mlx5_0", ["PIX", "NODE", "SYS"], 25.0),
        ("mlx5_1", ["PIX", "NODE", "SYS"], None),
        ("eth0", ["NODE", "NODE", "SYS"], 1.25),
    ]


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: this is no whole XML: no element found"),
        ("<system></cpu>", "line 1: this is no whole XML: mismatched tag"),
        ("<system/>\n<system/>", "line 2: this is no whole XML: junk after document element"),
        ("<system a='\ud800'/>", "line 1: this is no UTF-8 text"),
        ("\n<graphs/>", "line 2: this is a file of <graphs>, not a topology that NCCL has"),
        (system(), "line 1: no GPU in this file: NCCL adds them itself"),
        (
            system(cpu(0, f'<pci busid="{BUS[0]}" {UNNAMED}/>')),
            "line 1: no GPU in this file: NCCL adds them itself",
        ),
        (system(cpu(0, gpu(BUS[0], 1))), "line 4: GPU '1' of 1 is out of range"),
        (system(cpu(0, gpu(BUS[0], -1))), "line 4: GPU '-1' of 1 is out of range"),
        (
            system(cpu(0, gpu(BUS[0], 0), gpu(BUS[1], 0))),
            "line 7: GPU 0, or its place on the bus, occurs twice",
        ),
        (
            system(cpu(0, gpu(BUS[0], 0), gpu(BUS[0], 1))),
            "line 7: GPU 1, or its place on the bus, occurs twice",
        ),
        (system(cpu(0, gpu("bus", 0))), "line 3: 'bus' is not a PCI address such as"),
        (system('<gpu dev="0"/>'), "line 2: a GPU outside a PCIe slot"),
        (system(cpu(0, gpu(BUS[0], 0, "switch*0"))), "line 4: '0' is not a number of NVLinks"),
        (system(cpu(0, gpu(BUS[0], 0, "switch*-2"))), "line 4: '-2' is not a number of NVLinks"),
        (
            system(cpu(0, *(gpu(f"0000:00:{at % 32:02x}.{at // 32}", at) for at in range(65)))),
            "line 1: 65 GPUs; 64 are the most that one machine has",
        ),
        (
            system(cpu(0, '<pci><gpu dev="0" gcn="gfx90a"><xgmi count="1"/></gpu></pci>')),
            "line 3: this is a machine with AMD GPUs",
        ),
    ],
)
def test_invalid_text_is_refused_with_its_line(text, message):
    with pytest.raises(UnreadableTopology) as caught:
        read_xml(text, name="m")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '<!DOCTYPE a [<!ENTITY b "bb">]>\n<system>&b;</system>',
            "line 1: a document type (a), which NCCL never writes",
        ),
        (
            '<?xml version="1.0"?>\n<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]>\n<a>&x;</a>',
            "line 2: a document type (a), which NCCL never writes",
        ),
        ("<a>" * (MAX_XML_DEPTH + 1), f"line 1: more than {MAX_XML_DEPTH} elements one in another"),
        ("<a>" + " " * MAX_XML_CHARACTERS, "line 1: 1,000,003 characters are too many"),
    ],
    ids=["entity", "external entity", "deep", "large"],
)
def test_xml_that_is_made_to_hurt_is_refused(text, message):
    with pytest.raises(UnreadableTopology) as caught:
        parse_xml(text)
    assert str(caught.value).startswith(message)


WHOLE = system(
    cpu(0, switch("a0", gpu(BUS[0], 0, "switch*6"), nic(BUS[8], ("mlx5_0", "1")))),
    cpu(1, gpu(BUS[1], 1, "switch*6"), gpu(BUS[2], 2, f"{BUS[0]}*1")),
)


@given(st.data())
def test_a_file_that_is_damaged_anywhere_is_read_or_refused_but_never_crashes(data):
    cut = data.draw(st.integers(0, len(WHOLE)))
    text = WHOLE[:cut]
    if data.draw(st.booleans()):
        junk = data.draw(st.text(alphabet='<>/="&;0x1f: gpucdev\x00é', max_size=12))
        text += junk + WHOLE[cut + data.draw(st.integers(0, 12)) :]
    try:
        found = read_xml(text, name="m").machine
    except UnreadableTopology as error:
        where = error.where
    else:
        where = "line"
        assert found.links == tuple(zip(*found.links, strict=True))
    assert where.startswith("line")
