"""What NVIDIA tools say becomes the right machine, or is refused with the line and the reason."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arena_topo.errors import UnreadableTopology
from arena_topo.topology import (
    GPU,
    NIC,
    SYS,
    Link,
    LinkKind,
    Machine,
    behind_nvswitch,
    flat,
    nvidia,
)
from arena_topo.topology.nvidia import parse_topo

MACHINES = Path(__file__).parent / "machines"
CAPTURES = Path(__file__).resolve().parents[2] / "shared" / "data" / "topo"


def write_topo(machine: Machine) -> str:
    """Print the matrix as `nvidia-smi topo -m` does, so that `parse_topo` reads the same machine.

    UUIDs, the PCIe generation and measured bandwidths have no place in it, nor has a switch that
    the lanes do not betray. Rows of NICs are left out: how NICs reach each other is not known.
    """
    nics = [f"NIC{index}" for index in range(len(machine.nics))]
    gpus = [f"GPU{gpu.index}" for gpu in machine.gpus]
    header = ["", *gpus, *nics, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]
    rows = ["\t".join(header)]
    for gpu, links in zip(machine.gpus, machine.links, strict=True):
        cells = [" X " if link is None else str(link) for link in links]
        cells += [str(nic.attachment[gpu.index]) for nic in machine.nics]
        numa = "N/A" if gpu.numa is None else str(gpu.numa)
        # The empty cells are the CPU affinity, and the tab that nvidia-smi puts after a NUMA node.
        rows.append("\t".join([f"GPU{gpu.index}", *cells, "", numa, "", "N/A"]))
    if nics:
        rows += ["", "NIC Legend:", ""]
        rows += [f"  {nic}: {known.name}" for nic, known in zip(nics, machine.nics, strict=True)]
    return "\n".join(rows) + "\n"


def text_of(name):
    return (MACHINES / name).read_bytes().decode()


def words(machine):
    return {
        f"{i}-{j}": str(machine.link(i, j)) for i, j in combinations(range(len(machine.gpus)), 2)
    }


def numa(machine):
    return [gpu.numa for gpu in machine.gpus]


def refusal(text):
    with pytest.raises(UnreadableTopology) as caught:
        parse_topo(text)
    return str(caught.value)


# --- captured machines ----------------------------------------------------------------------

DGX_1_V100 = {
    "0-1": "NV1", "0-2": "NV1", "0-3": "NV2", "0-4": "NV2", "1-2": "NV2", "1-3": "NV1",
    "1-5": "NV2", "2-3": "NV2", "2-6": "NV1", "3-7": "NV1", "4-5": "NV1", "4-6": "NV1",
    "4-7": "NV2", "5-6": "NV2", "5-7": "NV1", "6-7": "NV2",
}  # fmt: skip


def test_a_dgx_1_has_its_published_links_whatever_the_order_of_its_nics():
    machine = parse_topo(text_of("dgx-1-v100-tabs.txt"), name="dgx", model="V100")
    found = words(machine)
    assert {pair: link for pair, link in found.items() if link != "SYS"} == DGX_1_V100
    assert Counter(found.values()) == {"NV1": 8, "NV2": 8, "SYS": 12}
    assert [(nic.name, str(nic.attachment[0])) for nic in machine.nics] == [
        ("mlx5_0", "PIX"),
        ("mlx5_2", "SYS"),
        ("mlx5_1", "PHB"),
        ("mlx5_3", "SYS"),
    ]
    assert machine.name == "dgx"
    assert machine.model == "V100"
    assert not machine.nvswitch


def test_a_permuted_mesh_in_mixed_white_space_is_read_in_its_own_order():
    machine = parse_topo(text_of("v100-mixed-blanks.txt"))
    doubles = {pair for pair, link in words(machine).items() if link == "NV2"}
    assert doubles == {"0-2", "0-7", "1-3", "1-6", "2-3", "4-5", "4-6", "5-7"}
    assert numa(machine) == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [nic.name for nic in machine.nics] == ["mlx5_0", "mlx5_1"]
    assert [str(link) for link in machine.nics[1].attachment[4:]] == ["NODE", "NODE", "PIX", "PIX"]


def test_a_legend_names_the_nics_and_a_lone_cpu_is_no_numa_node():
    machine = parse_topo(text_of("hgx-h100-6nic-cgroup.txt"))
    assert [nic.name for nic in machine.nics] == [f"mlx5_{index}" for index in range(6)]
    assert numa(machine) == [0, 0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("capture", "links", "nodes", "nics"),
    [
        ("one-gpu-4nic-misaligned.txt", {}, [1], 4),
        ("one-p4-numa-na.txt", {}, [None], 0),
        ("two-gpus-ansi.txt", {"NV18": 1}, [0, 0], 0),
        ("a100-pcie-one-bridge.txt", {"NV12": 1, "NODE": 1, "SYS": 4}, [0, 0, 1, 1], 2),
        ("titanx-4.txt", {"PHB": 2, "SYS": 4}, [0, 0, 1, 1], 2),
        ("pcie-8-numa-column.txt", {"NODE": 12, "SYS": 16}, [0, 0, 0, 0, 1, 1, 1, 1], 0),
    ],
)
def test_odd_layouts_are_read_for_what_they_say(capture, links, nodes, nics):
    machine = parse_topo(text_of(capture))
    assert Counter(words(machine).values()) == links
    assert numa(machine) == nodes
    assert len(machine.nics) == nics


@pytest.mark.parametrize(
    ("capture", "message"),
    [
        (
            "dgx-1-v100-2017-cut.txt",
            "line 7: the matrix ends before the row of GPU5: 'GPU4 NV2 SOC SOC SOC X NV1 NV1 NV2",
        ),
        (
            "hgx-b200-glued-cut.txt",
            "line 7: the row of GPU4 is cut or wrapped: 6 of 20 cells: 'GPU4 NV18 NV18 NV18 NV18 X",
        ),
        (
            "a100-pcie-bridged-pairs-cut.txt",
            "line 12: the row of NIC0 is cut or wrapped: 1 of 9 cells: 'NIC0 NODE'",
        ),
        ("two-gpus-p2p.txt", "line 3: GPU0-GPU1: 'GNS' is not a link nvidia-smi knows"),
        ("amd-2.txt", "line 3: GPU0-GPU0: '0' is not a link nvidia-smi knows"),
        ("mthreads-8-table.txt", "line 1: no header (GPU0 GPU1 ...) here or below"),
        ("a100-4-table.txt", "line 1: no header (GPU0 GPU1 ...) here or below"),
        (
            "two-gpus-wrapped-and-p2p.txt",
            "line 12: a second matrix, and a file describes one machine: 'GPU0 GPU1'",
        ),
    ],
)
def test_what_is_cut_or_foreign_is_refused_with_its_line_and_the_command_to_run(capture, message):
    with pytest.raises(UnreadableTopology) as caught:
        parse_topo(text_of(capture))
    assert str(caught.value).startswith(message)
    assert caught.value.hint == "on the machine itself, run: nvidia-smi topo -m > FILE"


def test_rows_of_nics_that_are_missing_lose_nothing():
    machine = parse_topo(text_of("hgx-h100-9nic-cut.txt"), model="NVIDIA H100 80GB HBM3")
    assert machine.nvswitch
    assert machine.model == "H100"
    near = [
        next(nic.name for nic in machine.nics if nic.attachment[gpu].kind is LinkKind.PIX)
        for gpu in range(8)
    ]
    assert near == ["NIC8", "NIC7", "NIC6", "NIC5", "NIC4", "NIC3", "NIC2", "NIC1"]


def summary(name, text):
    """A row of captures.tsv as the reader would write it."""
    row = dict.fromkeys(COLUMNS, "") | {"file": name}
    try:
        machine = parse_topo(text)
    except UnreadableTopology as refused:
        return row | {"refused": str(refused).rsplit(": '", 1)[0]}
    links = sorted(Counter(words(machine).values()).items())
    return row | {
        "gpus": str(len(machine.gpus)),
        "nvswitch": "yes" if machine.nvswitch else "no",
        "links of GPU0": " ".join("X" if link is None else str(link) for link in machine.links[0]),
        "all links": " ".join(f"{word}:{many}" for word, many in links),
        "NUMA": " ".join("?" if node is None else str(node) for node in numa(machine)),
        "NICs as GPU0 sees them": " ".join(f"{n.name}:{n.attachment[0]}" for n in machine.nics),
    }


COLUMNS = (
    "file",
    "gpus",
    "nvswitch",
    "links of GPU0",
    "all links",
    "NUMA",
    "NICs as GPU0 sees them",
    "refused",
)


def test_every_capture_of_the_wide_collection_is_read_right_or_refused():
    if not CAPTURES.is_dir():
        pytest.skip("the collection that captures.tsv describes is not part of the source tree")
    with (MACHINES / "captures.tsv").open(encoding="utf-8", newline="") as table:
        expected = list(csv.DictReader(table, delimiter="\t", quoting=csv.QUOTE_NONE))
    found = [
        summary(path.name, path.read_bytes().decode()) for path in sorted(CAPTURES.glob("*.txt"))
    ]
    assert len(found) == 73
    assert found == expected


# --- what goes wrong on the way --------------------------------------------------------------

GOOD = """\
        GPU0    GPU1    GPU2    mlx5_0  CPU Affinity    NUMA Affinity
GPU0     X      NV2     SYS     PIX     0-9     0
GPU1    NV2      X      SYS     PHB     0-9     0
GPU2    SYS     SYS      X      SYS     10-19   1
mlx5_0  PIX     PHB     SYS      X
"""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("GPU1    NV2 ", "GPU1    NV1 "),
            "line 3: GPU1-GPU0 is NV1, but GPU0-GPU1 on line 2 is NV2",
        ),
        (
            ("mlx5_0  PIX ", "mlx5_0  PXB "),
            "line 5: mlx5_0-GPU0 is PXB, but GPU0-mlx5_0 on line 2 is PIX",
        ),
        (("X      NV2", "X      FOO"), "line 2: GPU0-GPU1: 'FOO' is not a link nvidia-smi knows"),
        (("X      NV2", "X      NV0"), "line 2: GPU0-GPU1: 'NV0' is not a link nvidia-smi knows"),
        (("X      NV2", "X       X "), "line 2: GPU0-GPU1 is X, but X marks a device and itself"),
        (("NV2      X ", "NV2     SYS"), "line 3: GPU1-GPU1 is SYS, but X marks a device"),
        (("GPU1    GPU2", "GPU1    GPU3"), "line 1: GPU2 has no column, GPU3 has one"),
        (("GPU0    GPU1", "GPU00   GPU1"), "line 1: GPU0 has no column, "),
        (("GPU1    GPU2", "GPU1    GPU1"), "line 1: a device has two columns"),
        (("GPU2    SYS", "GPU1    SYS"), "line 4: the matrix ends before the row of GPU2: 'GPU1"),
        (("GPU2    SYS", "GPU3    SYS"), "line 4: GPU3 has a row, but no column"),
        (("GPU2    SYS", "G?U2    SYS"), "line 4: the matrix ends before the row of GPU2: 'G?U2"),
        (
            ("    SYS     PIX     0-9     0", ""),
            "line 2: the row of GPU0 is cut or wrapped: 2 of 4 cells",
        ),
        (("GPU0    GPU1    GPU2", "a       b       c   "), "line 1: no header (GPU0 GPU1 ...)"),
        (("GPU2    mlx5_0", "GPU2mlx5_0"), "line 1: GPU2mlx5_0 is two devices, as a blank is"),
        (("mlx5_0  PIX", "mlx5_1  PIX"), "line 5: mlx5_1 has a row, but no column"),
    ],
)
def test_a_wrong_matrix_is_refused_with_the_line_and_the_cells(change, message):
    assert change[0] in GOOD
    assert refusal(GOOD.replace(*change, 1)).startswith(message)


def test_a_header_that_is_glued_together_is_refused_however_the_rows_go_on():
    """Else the rows have a cell more than the header, which slides into the affinities."""
    glued = write_topo(nineteen()).replace("NIC11\tNIC12", "NIC11NIC12", 1)
    assert refusal(glued).startswith("line 1: NIC11NIC12 is two devices, as a blank is missing")


def nineteen() -> Machine:
    """Six GPUs and 13 NICs, as `nvidia-smi` counts them."""
    near = Link(kind=LinkKind.PIX)
    nics = tuple(NIC(name=f"NIC{at}", attachment=(near,) * 6) for at in range(13))
    gpus = tuple(GPU(index=at, numa=0) for at in range(6))
    return Machine(name="a", gpus=gpus, links=flat(6), nics=nics)


def test_the_unchanged_matrix_is_read():
    assert words(parse_topo(GOOD)) == {"0-1": "NV2", "0-2": "SYS", "1-2": "SYS"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: no header (GPU0 GPU1 ...)"),
        ("\n \n\t\n", "line 1: no header (GPU0 GPU1 ...)"),
        ("\nNo devices were found\n", "line 2: no header (GPU0 GPU1 ...)"),
        ("bash: nvidia-smi: command not found", "line 1: no header (GPU0 GPU1 ...)"),
        ("GPU0\tGPU1\nhello\n", "line 2: the matrix ends before the row of GPU0: 'hello'"),
        ("x" * 1_000_001, "line 1: 1,000,001 characters are too many"),
        ("\t".join(f"GPU{i}" for i in range(65)), "line 1: 65 GPUs; 64 are the most"),
        ("GPU0 GPU1\n" * 50_000, "line 2: the row of GPU0 is cut or wrapped"),
        ("GPU0\n" * 100_000, "line 2: the row of GPU0 is cut or wrapped"),
    ],
)
def test_what_is_no_matrix_is_refused_at_once(text, message):
    assert refusal(text).startswith(message)


def test_two_machines_in_one_paste_are_refused():
    other = GOOD.replace("NV2", "NV4")
    assert refusal(GOOD + "\n" + other).startswith("line 7: a second matrix, and a file describes")


@pytest.mark.parametrize(
    "dress",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\n".join("    " + line for line in text.splitlines()),
        lambda text: "\n".join(" ".join(line.split()) for line in text.splitlines()),
        lambda text: "\n\n".join(text.splitlines()),
        lambda text: "user@host:~$ nvidia-smi topo -m\n" + text + "user@host:~$ \n",
        lambda text: f"```\n{text}```\n",
        lambda text: "\x1b[4m" + text.replace("\n", "\x1b[0m\n", 1),
        lambda text: "\x1b]0;host\x07\x1b[4m" + text.replace("\n", "\x1b(B\x1b[m\n", 1),
        lambda text: "\ufeff" + text,
        lambda text: text + "\nmlx5_0 port 1 ==> ib0 (Up)\n",
        lambda text: text.replace("mlx5_0  CPU", "mlx5_0CPU"),
    ],
)
def test_the_way_a_matrix_was_pasted_does_not_change_it(dress):
    assert parse_topo(dress(GOOD)) == parse_topo(GOOD)


def test_names_of_nics_may_be_any_that_linux_gives():
    for name in ("hsn0", "ibp26s0", "mlx5_bond_0", "rocep12s0f1", "bnxt_re0", "efa_0"):
        assert [nic.name for nic in parse_topo(GOOD.replace("mlx5_0", name)).nics] == [name]


def test_columns_may_come_in_any_order():
    text = "NIC0 GPU1 GPU0\nGPU1 SYS X NV2\nNIC0 X SYS PIX\nGPU0 PIX NV2 X\n"
    machine = parse_topo(text)
    assert words(machine) == {"0-1": "NV2"}
    assert [str(link) for link in machine.nics[0].attachment] == ["PIX", "SYS"]


def test_a_row_that_is_cut_before_the_end_of_the_text_is_refused():
    text = "GPU0 NIC0 NIC1\nGPU0 X PIX SYS\nNIC0 PIX X\nNIC1 SYS PHB X\n"
    assert refusal(text).startswith("line 3: the row of NIC0 is cut or wrapped: 2 of 3 cells")
    text = "GPU0 GPU1 NIC0\nGPU0 X NV2\nGPU1 NV2 X SYS\n"
    assert refusal(text).startswith("line 2: the row of GPU0 is cut or wrapped: 2 of 3 cells")


@pytest.mark.parametrize(
    ("rest", "node"),
    [
        ("0-9     1               N/A", 1),
        ("0-9,20-29       1               N/A", 1),
        ("1       1               N/A", 1),
        ("\t\t1\t\tN/A", 1),
        ("        1               N/A", None),
        ("1                       N/A", None),
        ("0-9     0-1             N/A", None),
        ("0-9     N/A             N/A", None),
        ("                        N/A", None),
        ("", None),
        ("1 N/A", None),
    ],
)
def test_a_numa_node_differs_from_a_cpu_by_its_column(rest, node):
    header = "        GPU0    CPU Affinity    NUMA Affinity   GPU NUMA ID\n"
    assert numa(parse_topo(f"{header}GPU0     X      {rest}\n")) == [node]


# --- laws -----------------------------------------------------------------------------------

PATHS = [Link(kind=kind) for kind in LinkKind if kind is not LinkKind.NVLINK]
LINKS = st.sampled_from(
    PATHS + [Link(kind=LinkKind.NVLINK, lanes=lanes) for lanes in (1, 2, 4, 12, 18)]
)
ATTACHMENTS = st.sampled_from(PATHS)  # no NIC hangs on NVLink
MODELS = st.sampled_from([None, "P100", "V100", "A100", "H100", "B200", "L40S"])


@st.composite
def machines(draw, most_nics=4):
    size = draw(st.integers(1, 12))
    model = draw(MODELS)
    upper = {pair: draw(LINKS) for pair in combinations(range(size), 2)}
    links = tuple(
        tuple(None if i == j else upper[min(i, j), max(i, j)] for j in range(size))
        for i in range(size)
    )
    near = st.one_of(st.none(), st.integers(0, 15))
    names = draw(
        st.lists(
            st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True), max_size=most_nics, unique=True
        )
    )
    return Machine(
        name=draw(st.sampled_from(["node-0", "n"])),
        gpus=tuple(GPU(index=i, model=model, numa=draw(near)) for i in range(size)),
        links=links,
        nics=tuple(
            NIC(name=name, attachment=tuple(draw(ATTACHMENTS) for _ in range(size)))
            for name in names
        ),
        nvswitch=behind_nvswitch(model, links),
    )


@given(machines())
def test_a_parse_of_a_print_is_the_same_machine(machine):
    assert parse_topo(write_topo(machine), name=machine.name, model=machine.model) == machine


@given(machines(), st.data())
def test_a_cut_text_never_gives_other_links(machine, data):
    text = write_topo(machine)
    cut = text[: data.draw(st.integers(0, len(text)))]
    try:
        read = parse_topo(cut)
    except UnreadableTopology:
        return
    assert read.links == machine.links
    assert {nic.attachment for nic in read.nics} <= {nic.attachment for nic in machine.nics}


@given(machines(), st.integers(24, 120), st.booleans())
def test_a_wrapped_text_never_gives_other_links(machine, width, stripped):
    pieces = [
        line[start : start + width].rstrip() if stripped else line[start : start + width]
        for line in write_topo(machine).expandtabs().splitlines()
        for start in range(0, max(1, len(line)), width)
    ]
    try:
        read = parse_topo("\n".join(pieces))
    except UnreadableTopology:
        return
    assert read.links == machine.links


@given(machines(most_nics=0), LINKS, st.data())
def test_one_changed_cell_is_always_refused(machine, link, data):
    size = len(machine.gpus)
    one, other = data.draw(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)))
    if machine.links[one][other] in {None, link}:
        return
    lines = write_topo(machine).split("\n")
    cells = lines[1 + one].split("\t")
    cells[1 + other] = str(link)
    lines[1 + one] = "\t".join(cells)
    assert f"GPU{max(one, other)}-GPU{min(one, other)} is" in refusal("\n".join(lines))


NOISE = st.text(alphabet="GPUNIC0129XVSYODE -:|\t\n\x1b[m", max_size=200)


@given(st.one_of(st.text(max_size=200), NOISE, NOISE.map(lambda noise: GOOD[:150] + noise)))
def test_no_text_makes_the_reader_fall_over(text):
    try:
        machine = parse_topo(text)
    except UnreadableTopology as refused:
        where, gpus = refused.where, None
    else:
        where, gpus = None, machine.gpus
    assert bool(gpus) != bool(where and where.startswith("line "))


# --- NVML -----------------------------------------------------------------------------------


class FakeNVML:
    """The functions of pynvml over a machine described as data: a GPU is its index."""

    class NVMLError(Exception):
        """What pynvml raises."""

    def __init__(self, *, gpus, product="Tesla V100-SXM2-16GB", lanes=(), levels=50, **more):
        self.gpus, self.product, self.levels = gpus, product, levels
        self.lanes = [list(row) for row in lanes] or [[] for _ in range(gpus)]
        self.numa = more.get("numa", [0] * gpus)
        self.generation = more.get("generation", 3)
        self.lost = more.get("lost")

    def nvmlDeviceGetCount(self):  # noqa: N802 (the foreign name, as all below)
        return self.gpus

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        if index == self.lost:
            raise self.NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetUUID(self, gpu):  # noqa: N802
        return f"GPU-{gpu}".encode()

    def nvmlDeviceGetName(self, gpu):  # noqa: N802, ARG002
        return self.product

    def nvmlDeviceGetMemoryAffinity(self, gpu, words, scope):  # noqa: N802
        assert scope == 0
        return [1 << self.numa[gpu]] + [0] * (words - 1)

    def nvmlDeviceGetPciInfo(self, gpu):  # noqa: N802
        return SimpleNamespace(domain=0, bus=0x10 + gpu, device=0)

    def nvmlDeviceGetNvLinkState(self, gpu, lane):  # noqa: N802
        if lane >= len(self.lanes[gpu]):
            raise self.NVMLError("Not Supported")
        return 0 if self.lanes[gpu][lane] is None else 1

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu, lane):  # noqa: N802
        return 2 if self.lanes[gpu][lane] == "switch" else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu, lane):  # noqa: N802
        return self.nvmlDeviceGetPciInfo(self.lanes[gpu][lane])

    def nvmlDeviceGetTopologyCommonAncestor(self, one, other):  # noqa: N802, ARG002
        return self.levels

    def nvmlDeviceGetMaxPcieLinkGeneration(self, gpu):  # noqa: N802, ARG002
        return self.generation


def test_nvml_counts_the_lanes_between_each_pair():
    mesh = FakeNVML(gpus=3, lanes=[[1, 1, 2], [0, 0], [0, None]], levels=40, numa=[0, 0, 3])
    machine = nvidia.machine_from_nvml(mesh, "here")
    assert words(machine) == {"0-1": "NV2", "0-2": "NV1", "1-2": "NODE"}
    assert numa(machine) == [0, 0, 3]
    assert [gpu.uuid for gpu in machine.gpus] == ["GPU-0", "GPU-1", "GPU-2"]
    assert (machine.name, machine.model, machine.pcie_generation) == ("here", "V100", 3)
    assert not machine.nvswitch


def test_a_lane_that_is_up_at_one_end_only_does_not_count():
    machine = nvidia.machine_from_nvml(FakeNVML(gpus=2, lanes=[[1, 1], [0, None]]), "here")
    assert words(machine) == {"0-1": "NV1"}


def test_behind_a_switch_every_pair_has_the_lanes_of_the_weaker_gpu():
    lanes = [["switch"] * 18, ["switch"] * 18, ["switch"] * 17 + [None]]
    switched = FakeNVML(gpus=3, lanes=lanes, product="NVIDIA H100 80GB HBM3", generation=5)
    machine = nvidia.machine_from_nvml(switched, "here")
    assert words(machine) == {"0-1": "NV18", "0-2": "NV17", "1-2": "NV17"}
    assert machine.nvswitch
    assert machine.pcie_generation == 5


def test_two_gpus_are_behind_a_switch_if_nvml_says_so():
    lanes = [["switch"] * 6, ["switch"] * 6]
    assert nvidia.machine_from_nvml(FakeNVML(gpus=2, lanes=lanes), "here").nvswitch
    assert not nvidia.machine_from_nvml(FakeNVML(gpus=2, lanes=[[1] * 6, [0] * 6]), "here").nvswitch


@pytest.mark.parametrize(
    ("level", "word"),
    [(0, "PIX"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS"), (99, "SYS")],
)
def test_without_nvlink_the_path_follows_from_the_common_ancestor(level, word):
    machine = nvidia.machine_from_nvml(FakeNVML(gpus=2, levels=level), "here")
    assert words(machine) == {"0-1": word}


def test_what_an_old_driver_does_not_know_stays_unknown():
    class OldNVML:
        NVMLError = FakeNVML.NVMLError

        def nvmlDeviceGetCount(self):  # noqa: N802
            return 2

        def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
            return index

    machine = nvidia.machine_from_nvml(OldNVML(), "here")
    assert machine.links == ((None, SYS), (SYS, None))
    assert machine.gpus == (GPU(index=0), GPU(index=1))
    assert machine.pcie_generation is None


def test_a_lost_gpu_is_named():
    with pytest.raises(UnreadableTopology, match="NVML: the driver does not hand out GPU 1"):
        nvidia.machine_from_nvml(FakeNVML(gpus=2, lost=1), "here")


def test_what_nvml_says_can_be_printed_and_read_again():
    machine = nvidia.machine_from_nvml(FakeNVML(gpus=3, lanes=[[1, 1, 2], [0, 0], [0]]), "here")
    bare = tuple(replace(gpu, uuid=None) for gpu in machine.gpus)
    again = parse_topo(write_topo(machine), name="here", model="V100")
    assert again == replace(machine, gpus=bare, pcie_generation=None)
