"""Well-known machines are what their makers publish, and only certain products become one."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arena_topo.errors import UsageError
from arena_topo.topology import Knowledge, LinkKind, presets
from arena_topo.topology.models import MODELS, model_of


def links(machine):
    return Counter(
        str(machine.link(one, other)) for one, other in combinations(range(len(machine.gpus)), 2)
    )


def lanes(machine, many):
    return {
        (one, other)
        for one, other in combinations(range(len(machine.gpus)), 2)
        if machine.link(one, other).kind is LinkKind.NVLINK
        and machine.link(one, other).lanes == many
    }


def graph(machine):
    edges = nx.Graph()
    edges.add_nodes_from(range(len(machine.gpus)))
    for one, other in combinations(range(len(machine.gpus)), 2):
        link = machine.link(one, other)
        if link.kind is LinkKind.NVLINK:
            edges.add_edge(one, other, lanes=link.lanes)
    return edges


def classes_of_connected_sets(machine):
    """How many kinds of NVLink-connected sets of three GPUs and more there are."""
    whole = graph(machine)
    kinds = []
    for size in range(3, len(machine.gpus) + 1):
        for chosen in combinations(range(len(machine.gpus)), size):
            part = whole.subgraph(chosen)
            if nx.is_connected(part) and not any(
                nx.is_isomorphic(
                    part, kind, edge_match=lambda one, other: one["lanes"] == other["lanes"]
                )
                for kind in kinds
                if len(kind) == size and kind.size() == part.size()
            ):
                kinds.append(part)
    return len(kinds)


def test_a_dgx_1_v100_has_its_published_doubles_and_singles():
    machine = presets.preset_machine("dgx-1-v100", "node")
    assert lanes(machine, 2) == {
        (0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7),
    }  # fmt: skip
    assert lanes(machine, 1) == {
        (0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7),
    }  # fmt: skip
    assert links(machine) == {"NV1": 8, "NV2": 8, "SYS": 12}


def test_a_dgx_1_p100_has_sixteen_single_links():
    machine = presets.preset_machine("dgx-1-p100", "node")
    assert lanes(machine, 1) == {
        (0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 5), (2, 3),
        (2, 6), (3, 7), (4, 5), (4, 6), (4, 7), (5, 6), (5, 7), (6, 7),
    }  # fmt: skip
    assert links(machine) == {"NV1": 16, "SYS": 12}


@pytest.mark.parametrize(("preset", "kinds"), [("dgx-1-v100", 46), ("dgx-1-p100", 14)])
def test_the_kinds_of_connected_sets_are_as_many_as_blink_counted(preset, kinds):
    assert classes_of_connected_sets(presets.preset_machine(preset, "node")) == kinds


@pytest.mark.parametrize(
    ("preset", "model", "expected", "nvswitch", "generation"),
    [
        ("dgx-1-p100", "P100", {"NV1": 16, "SYS": 12}, False, 3),
        ("dgx-1-v100", "V100", {"NV1": 8, "NV2": 8, "SYS": 12}, False, 3),
        ("dgx-2", "V100", {"NV6": 120}, True, 3),
        ("dgx-a100", "A100", {"NV12": 28}, True, 4),
        ("hgx-a100-4", "A100", {"NV4": 6}, False, 4),
        ("hgx-a100", "A100", {"NV12": 28}, True, 4),
        ("hgx-a800", "A800", {"NV8": 28}, True, 4),
        ("hgx-h100", "H100", {"NV18": 28}, True, 5),
        ("hgx-h200", "H200", {"NV18": 28}, True, 5),
        ("hgx-h800", "H800", {"NV8": 28}, True, 5),
        ("hgx-h20", "H20", {"NV18": 28}, True, 5),
        ("hgx-b200", "B200", {"NV18": 28}, True, 5),
        ("hgx-b300", "B300", {"NV18": 28}, True, None),
        ("gb200-nvl72", "GB200", {"NV18": 6}, True, None),
        ("gb300-nvl72", "GB300", {"NV18": 6}, True, None),
        ("pcie-4", "T4", {"PIX": 2, "PHB": 4}, False, 3),
        ("pcie-8", "L40S", {"PIX": 4, "PXB": 8, "SYS": 16}, False, 4),
        ("pcie-8-a100", "A100", {"NV12": 4, "NODE": 8, "SYS": 16}, False, 4),
        ("hgx-v100-4", "V100", {"NV2": 6}, False, 3),
        ("hgx-h100-4", "H100", {"NV6": 6}, False, 5),
        ("gh200-4", "GH200", {"NV6": 6}, False, None),
        ("dgx-spark", "GB10", {}, False, 5),
        ("pcie-2-h100-nvl", "H100", {"NV12": 1}, False, 5),
        ("pcie-8-h100-nvl", "H100", {"NV12": 4, "NODE": 8, "SYS": 16}, False, 5),
        ("pcie-8-h200-nvl", "H200", {"NV6": 12, "SYS": 16}, False, 5),
        ("pcie-4-a100", "A100", {"NV12": 2, "NODE": 4}, False, 4),
        ("pcie-8-a40", "A40", {"NV4": 4, "NODE": 8, "SYS": 16}, False, 4),
        ("pcie-4-a6000", "RTX A6000", {"NV4": 2, "NODE": 4}, False, 4),
        ("pcie-8-rtx-pro-6000", "RTX PRO 6000", {"NODE": 12, "SYS": 16}, False, 5),
        ("pcie-8-rtx-5090", "RTX 5090", {"NODE": 12, "SYS": 16}, False, 5),
        ("pcie-8-rtx-4090", "RTX 4090", {"NODE": 12, "SYS": 16}, False, 4),
    ],
)
def test_a_preset_is_the_machine_it_names(preset, model, expected, nvswitch, generation):
    machine = presets.preset_machine(preset, "node-7")
    assert machine.name == "node-7"
    assert machine.model == model
    assert links(machine) == expected
    assert machine.nvswitch is nvswitch
    assert machine.pcie_generation == generation
    assert machine.knowledge is Knowledge.MEASURED


def test_every_preset_is_listed_with_a_summary():
    assert presets.preset_names() == tuple(presets.PRESETS)
    assert all(known.summary for known in presets.PRESETS.values())


@pytest.mark.parametrize("name", presets.INSTANCES)
def test_an_instance_type_is_a_machine_of_a_known_model_with_the_nics_of_its_cloud(name):
    sold, machine = presets.INSTANCES[name], presets.instance_type(name)
    assert machine.model in MODELS
    assert machine.links == presets.preset_machine(sold.preset, "node").links
    assert [nic.speed for nic in machine.nics] == [sold.speed] * sold.nics
    assert machine.nics_assumed == f"instance type {name}"
    assert machine.knowledge is Knowledge.ASSUMED
    assert sold.source


@pytest.mark.parametrize(
    ("product", "model"),
    [
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX PRO 6000"),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "RTX PRO 6000"),
        ("RTX PRO 6000", "RTX PRO 6000"),
        ("NVIDIA RTX 6000D", "RTX 6000D"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA RTX 5000 Ada Generation", "RTX 5000 Ada"),
        ("Quadro RTX 6000", "RTX 6000"),
        ("NVIDIA TITAN RTX", "TITAN RTX"),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX 2080 Ti"),
        ("NVIDIA GeForce RTX 3090 Ti", "RTX 3090 Ti"),
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("NVIDIA GeForce RTX 4090 D", "RTX 4090 D"),
        ("rtx 4090", "RTX 4090"),
        ("NVIDIA RTX A4000", "RTX A4000"),
        ("NVIDIA GB10", "GB10"),
        ("NVIDIA L2", "L2"),
        ("NVIDIA B100", "B100"),
        ("NVIDIA H100 NVL", "H100"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("Tesla V100S-PCIE-32GB", "V100"),
        ("NVIDIA GeForce GTX 1080 Ti", "GTX 1080 Ti"),
        ("", None),
    ],
)
def test_a_product_belongs_to_the_model_that_its_name_begins_with(product, model):
    assert model_of(product) == model


def test_a_dgx_1_v100_knows_its_nics():
    machine = presets.preset_machine("dgx-1-v100", "node")
    near = {
        nic.name: [gpu for gpu, link in enumerate(nic.attachment) if link.kind is LinkKind.PIX]
        for nic in machine.nics
    }
    assert near == {"mlx5_0": [0, 1], "mlx5_1": [2, 3], "mlx5_2": [4, 5], "mlx5_3": [6, 7]}


def test_an_unknown_preset_is_refused_with_the_nearest():
    with pytest.raises(UsageError) as caught:
        presets.preset_machine("DGX1-v100", "node")
    assert str(caught.value) == "unknown preset 'DGX1-v100'"
    assert caught.value.hint == "did you mean dgx-1-v100?"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("dgx1", "dgx-1-p100 or dgx-1-v100"),
        ("DGX2", "dgx-2"),
        ("gb200", "gb200-nvl72"),
        ("pcie8", "pcie-8"),
        ("h100", "hgx-h100"),
        ("hgx-h10", "hgx-h100"),
    ],
)
def test_the_presets_that_begin_like_an_unknown_one_are_the_nearest(typed: str, meant: str):
    with pytest.raises(UsageError) as caught:
        presets.preset_machine(typed, "node")
    assert caught.value.hint == f"did you mean {meant}?"
    assert "hgx-h100" in caught.value.why


@pytest.mark.parametrize(
    ("product", "count", "preset"),
    [
        ("Tesla-P100-SXM2-16GB", 8, "dgx-1-p100"),
        ("Tesla-V100-SXM2-16GB", 8, "dgx-1-v100"),
        ("Tesla V100-SXM2-32GB", 8, "dgx-1-v100"),
        ("Tesla-V100-SXM2-32GB-LS", 8, "dgx-1-v100"),
        ("Tesla-V100-SXM3-32GB", 16, "dgx-2"),
        ("A100-SXM4-40GB", 8, "hgx-a100"),
        ("NVIDIA-A100-SXM4-80GB", 8, "hgx-a100"),
        ("NVIDIA-A100-SXM4-80GB", 4, "hgx-a100-4"),
        ("NVIDIA-H100-80GB-HBM3", 8, "hgx-h100"),
        ("NVIDIA H100 80GB HBM3", 8, "hgx-h100"),
        ("NVIDIA-H200", 8, "hgx-h200"),
        ("NVIDIA-B200", 8, "hgx-b200"),
        ("NVIDIA-H20", 8, "hgx-h20"),
        ("NVIDIA-GB200", 4, "gb200-nvl72"),
        ("NVIDIA-GB10", 1, "dgx-spark"),
        ("NVIDIA-GB300", 4, "gb300-nvl72"),
    ],
)
def test_a_product_of_one_board_is_assumed_to_be_that_board(product, count, preset):
    machine = presets.known_machine(product, count, "node")
    assert machine.knowledge is Knowledge.ASSUMED
    assert machine.name == "node"
    assert machine.links == presets.preset_machine(preset, "node").links
    assert machine.model == presets.PRESETS[preset].model
    assert machine.nics == presets.preset_machine(preset, "node").nics
    assert machine.nics_assumed == f"machines with {count} x {machine.model}"
    assert {gpu.numa for gpu in machine.gpus} == {None}


@pytest.mark.parametrize(
    ("product", "count"),
    [
        ("NVIDIA-A100-PCIE-40GB", 8),
        ("A100-PCIE-40GB", 4),
        ("NVIDIA-A100-80GB-PCIe", 8),
        ("NVIDIA-H100-PCIe", 8),
        ("NVIDIA-H100-NVL", 8),
        ("NVIDIA-H200-NVL", 8),
        ("Tesla-V100-PCIE-16GB", 8),
        ("Tesla-P100-PCIE-16GB", 8),
        ("NVIDIA-L40S", 8),
        ("Tesla-T4", 4),
        ("NVIDIA-GeForce-RTX-4090", 8),
        ("NVIDIA-A800-SXM4-80GB", 8),
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", 8),
        ("NVIDIA-A100-SXM4-80GB-SHARED", 8),
        ("NVIDIA-H100-80GB-HBM3", 7),
        ("NVIDIA-H100-80GB-HBM3", 4),
        ("Tesla-V100-SXM2-16GB", 4),
        ("", 8),
    ],
)
def test_a_product_that_does_not_tell_its_links_matches_nothing(product, count):
    assert presets.known_machine(product, count, "node") is None


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("dgx-1-v100", ["dgx-1-v100-0"]),
        ("dgx-1-v100:2", ["dgx-1-v100-0", "dgx-1-v100-1"]),
        (" dgx-2 : 1 , hgx-h100 ", ["dgx-2-0", "hgx-h100-0"]),
        ("pcie-4:1,dgx-2,pcie-4:2", ["pcie-4-0", "dgx-2-0", "pcie-4-1", "pcie-4-2"]),
    ],
)
def test_an_emulated_cluster_has_the_requested_machines(spec, expected):
    machines = presets.emulated_machines(spec)
    assert [machine.name for machine in machines] == expected
    assert all(
        machine.links == presets.preset_machine(machine.name.rsplit("-", 1)[0], "n").links
        for machine in machines
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "cannot read the machines to emulate from '': a preset is missing"),
        ("dgx-2,", "cannot read the machines to emulate from 'dgx-2,': a preset is missing"),
        (":2", "cannot read the machines to emulate from ':2': a preset is missing"),
        ("dgx-2:", "cannot read the machines to emulate from 'dgx-2:': '' is not a count"),
        ("dgx-2:x", "cannot read the machines to emulate from 'dgx-2:x': 'x' is not a count"),
        ("dgx-2:-1", "cannot read the machines to emulate from 'dgx-2:-1': '-1' is not a count"),
        (
            "dgx-2:0",
            (
                "cannot read the machines to emulate from 'dgx-2:0': "
                "there can be 1 to 100,000 machines, not 0"
            ),
        ),
        (
            "dgx-2:100001",
            (
                "cannot read the machines to emulate from 'dgx-2:100001': "
                "there can be 1 to 100,000 machines, not 100,001"
            ),
        ),
        ("dgx-3:1", "unknown preset 'dgx-3'"),
    ],
)
def test_nonsense_to_emulate_is_a_usage_error_that_lists_the_presets(spec, message):
    with pytest.raises(UsageError) as caught:
        presets.emulated_machines(spec)
    assert str(caught.value) == message
    assert all(name in caught.value.why for name in presets.preset_names())


@given(st.text(max_size=40))
def test_no_text_makes_the_emulation_fall_over(spec):
    try:
        machines = presets.emulated_machines(spec)
    except UsageError:
        machines = ()
    assert all(machine.gpus for machine in machines)
