"""What a cluster publishes of its machines is read strictly, and printed as ACK reads it."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arena_topo.errors import UnreadableTopology
from arena_topo.topology import (
    GPU,
    NIC,
    SYS,
    GPUSet,
    Knowledge,
    Link,
    LinkKind,
    Machine,
    NodeGPUs,
    behind_nvswitch,
    documents,
    gpu_set,
    nodelabels,
    presets,
    published,
)
from arena_topo.topology.documents import FASTEST, SLOWEST

LABELS = Path(__file__).resolve().parents[2] / "shared" / "data" / "k8s"

# Four V100 of a machine in an ACK cluster, as arena's documentation shows them.
#
#   0 === 1
#   | \ / ‖     0=1 0=3 1=2 two NVLinks; 0-2 1-3 2-3 one
#   3 --- 2
LINKS = [
    ["N-A", "NV2", "NV1", "NV2"],
    ["NV2", "N-A", "NV2", "NV1"],
    ["NV1", "NV2", "N-A", "NV1"],
    ["NV2", "NV1", "NV1", "N-A"],
]
BANDWIDTH = [
    [738.42, 96.44, 48.37, 96.19],
    [96.26, 744.05, 96.23, 48.36],
    [48.37, 96.24, 744.76, 48.37],
    [96.23, 48.36, 48.37, 744.76],
]
NODE = "cn-shanghai.192.168.7.186"


def document(**data):
    """The ConfigMap with some keys changed; None takes a key away."""
    texts = {
        "nodeName": NODE,
        "devices": '{"0":"Healthy","1":"Healthy","2":"Unhealthy","3":"Healthy"}',
        "linkType": json.dumps(LINKS),
        "bandwidth": json.dumps(BANDWIDTH),
    } | data
    return {
        "metadata": {
            "name": "gpu-topology-186",
            "namespace": "kube-system",
            "labels": {"ack.node.gpu.schedule": "topology", "nodename": NODE},
        },
        "data": {key: text for key, text in texts.items() if text is not None},
    }


def changed(matrix, i, j, cell):
    rows = [list(row) for row in matrix]
    rows[i][j] = cell
    return json.dumps(rows)


def test_a_config_map_becomes_its_machine():
    read = documents.gpus_from_config_map(document(), model="Tesla-V100-SXM2-16GB")
    assert read.healthy == gpu_set([0, 1, 3])
    machine = read.machine
    assert machine.name == NODE
    assert machine.model == "V100"
    assert [[str(link or "N-A") for link in row] for row in machine.links] == LINKS
    assert machine.bandwidth == tuple(tuple(row) for row in BANDWIDTH)
    assert machine.knowledge is Knowledge.MEASURED
    assert machine.pcie_generation is None
    assert not machine.nvswitch


def test_keys_of_a_later_version_change_nothing():
    later = document(mood='{"good": [7]}')
    later["metadata"]["annotations"] = {"arena-topo.io/knowledge": "guessed"}
    assert documents.gpus_from_config_map(later) == documents.gpus_from_config_map(document())


def test_measured_bandwidths_come_with_it():
    read = documents.gpus_from_config_map(document(busBandwidth='{"0,1,2,3": 82.1, "3, 0": 47}'))
    assert read.machine.measured == ((gpu_set([0, 3]), 47.0), (gpu_set([0, 1, 2, 3]), 82.1))


@pytest.mark.parametrize("nothing", [None, "", "null", "[]"])
def test_without_links_the_machine_is_unknown_but_has_its_gpus(nothing):
    read = documents.gpus_from_config_map(document(linkType=nothing, bandwidth=None))
    assert len(read.machine.gpus) == 4
    assert read.machine.knowledge is Knowledge.UNKNOWN
    assert {link for row in read.machine.links for link in row} == {None, SYS}
    assert read.machine.bandwidth is None


def test_the_label_names_the_node_where_the_data_does_not():
    assert documents.gpus_from_config_map(document(nodeName=None)).machine.name == NODE


NUMBERED = 'data.devices: does not number the GPUs, as in {"0":"Healthy"}'


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"devices": None}, NUMBERED),
        ({"devices": "{}"}, NUMBERED),
        ({"devices": '{"0":"Healthy","two":"Healthy"}'}, NUMBERED),
        ({"devices": '{"0":"Healthy","01":"Healthy"}'}, NUMBERED),
        ({"devices": '{"0":"Healthy","9":"Healthy"}'}, NUMBERED),
        ({"devices": '["Healthy"]'}, "data.devices: expected a mapping, got a list"),
        ({"devices": "{"}, "data.devices: not JSON: "),
        ({"devices": 4}, "data[...]: expected a text, got a whole number"),
        ({"devices": '{"0":true}'}, "data.devices[...]: expected a text, got true or false"),
        ({"devices": '{"0":"Healthy"}'}, "data.linkType: expected a list of length 1, got 4"),
        (
            {"devices": json.dumps({str(index): "Healthy" for index in range(65)})},
            "data.devices: 65 GPUs; 64 are the most",
        ),
        ({"linkType": "NV1"}, "data.linkType: not JSON: "),
        ({"linkType": '"NV1"'}, "data.linkType: expected a list, got a text"),
        ({"linkType": '[["NV1"]]'}, "data.linkType: expected a list of length 4, got 1"),
        (
            {"linkType": json.dumps([*LINKS[:3], LINKS[3][:3]])},
            "data.linkType[3]: expected a list of length 4, got 3",
        ),
        ({"linkType": changed(LINKS, 3, 1, "NV9")}, "data.linkType[3][1]: is NV9, but [1][3] is"),
        (
            {"linkType": changed(LINKS, 3, 1, 7)},
            "data.linkType[3][1]: expected a text, got a whole number",
        ),
        ({"linkType": changed(LINKS, 1, 1, "NV1")}, "data.linkType[1][1]: is NV1, but N-A marks"),
        ({"linkType": changed(LINKS, 0, 1, "N-A")}, "data.linkType[0][1]: is N-A, but N-A marks"),
        (
            {"linkType": '[["N-A","WIRE","SYS","SYS"],["WIRE","N-A","SYS","SYS"],'
                         '["SYS","SYS","N-A","SYS"],["SYS","SYS","SYS","N-A"]]'},
            "data.linkType[0][1]: 'WIRE' is not a link nvidia-smi knows",
        ),
        (
            {"bandwidth": changed(BANDWIDTH, 2, 3, "48")},
            "data.bandwidth[2][3]: expected a number, got a text",
        ),
        ({"bandwidth": changed(BANDWIDTH, 2, 3, -1)}, "data.bandwidth[2][3]: expected a number >="),
        (
            {"bandwidth": changed(BANDWIDTH, 2, 3, 10**400)},
            "data.bandwidth[2][3]: number out of range",
        ),
        ({"bandwidth": changed(BANDWIDTH, 2, 3, float("nan"))}, "data.bandwidth: not JSON: "),
        ({"bandwidth": "[[1]]"}, "data.bandwidth: expected a list of length 4, got 1"),
        ({"busBandwidth": "[1]"}, "data.busBandwidth: expected a mapping, got a list"),
        ({"busBandwidth": '{"0":1}'}, "data.busBandwidth['0']: is not a list of two or more"),
        ({"busBandwidth": '{"0,x":1}'}, "data.busBandwidth['0,x']: is not a list of two or more"),
        ({"busBandwidth": '{"0,4":1}'}, "data.busBandwidth['0,4']: GPU 4 of 4 is out of range"),
        ({"busBandwidth": '{"1,1":1}'}, "data.busBandwidth['1,1']: names a GPU, or a set"),
        ({"busBandwidth": '{"0,1":1,"1,0":2}'}, "data.busBandwidth['1,0']: names a GPU, or a set"),
        ({"busBandwidth": '{"0,1":"x"}'}, "data.busBandwidth[...]: expected a number, got a text"),
        ({"nodeName": "another"}, "data.nodeName: 'another', but the label nodename is"),
    ],
)  # fmt: skip
def test_an_invalid_value_is_refused_with_its_path(data, complaint):
    with pytest.raises(UnreadableTopology) as caught:
        documents.gpus_from_config_map(document(**data))
    assert str(caught.value).startswith(f"configmap kube-system/gpu-topology-186 {complaint}")


def test_a_config_map_without_a_node_name_is_refused():
    nameless = document(nodeName=None)
    del nameless["metadata"]["labels"]
    with pytest.raises(
        UnreadableTopology, match=r"data\.nodeName: is missing, and so is the label"
    ):
        documents.gpus_from_config_map(nameless)
    with pytest.raises(UnreadableTopology, match="data: expected a mapping, got nothing"):
        documents.gpus_from_config_map({"metadata": None})


def test_a_machine_is_published_in_the_words_of_ack():
    machine = presets.preset_machine("hgx-a100-4", "node-1")
    assert published.config_map(machine, gpu_set([0, 1, 3])) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "node-1-gpu-topology",
            "namespace": "kube-system",
            "labels": {"ack.node.gpu.schedule": "topology", "nodename": "node-1"},
            "annotations": {"arena-topo.io/knowledge": "measured"},
        },
        "data": {
            "nodeName": "node-1",
            "devices": '{"0":"Healthy","1":"Healthy","2":"Unhealthy","3":"Healthy"}',
            "linkType": (
                '[["N-A","NV4","NV4","NV4"],["NV4","N-A","NV4","NV4"],'
                '["NV4","NV4","N-A","NV4"],["NV4","NV4","NV4","N-A"]]'
            ),
        },
    }


def test_assumed_nics_are_not_published():
    machine = presets.preset_machine("dgx-1-v100", "node")
    assert "nics" in published.config_map(machine, machine.everything)["data"]
    guessed = replace(machine, knowledge=Knowledge.ASSUMED)
    assert "nics" not in published.config_map(guessed, machine.everything)["data"]


@pytest.mark.parametrize(
    ("nics", "said"),
    [
        ('{"a": 1}', r"data\.nics: expected a list, got a mapping"),
        ("[1]", r"data\.nics\[0\]: expected a mapping, got a whole number"),
        ('[{"name": "a"}]', r"data\.nics\[0\]: object missing required field attachment"),
        (
            '[{"attachment": ["PIX", "PIX", "SYS", "SYS"], "speedGBps": 0}]',
            r"data\.nics\[0\]\.speedGBps: expected a number >= 0\.001",
        ),
        (
            '[{"attachment": ["PIX", "PIX", "SYS", "SYS"], "speedGBps": 1e-320}]',
            r"data\.nics\[0\]\.speedGBps: expected a number >= 0\.001",
        ),
    ],
)
def test_nics_that_make_no_sense_are_refused_and_the_rest_is_used(nics, said):
    machine = presets.preset_machine("hgx-a100-4", "node")
    written = published.config_map(machine, machine.everything)
    written["data"]["nics"] = nics
    with pytest.raises(UnreadableTopology, match=said):
        documents.gpus_from_config_map(written)
    complaints = {}
    found = documents.gpus_from_config_map(written, complaints=complaints)
    assert found.machine.links == machine.links
    assert set(complaints) == {"nics"}


def test_a_published_assumption_stays_an_assumption():
    machine = presets.known_machine("NVIDIA-H100-80GB-HBM3", 8, "node")
    again = documents.gpus_from_config_map(published.config_map(machine, machine.everything))
    assert again.machine.knowledge is Knowledge.ASSUMED


WORDS = st.sampled_from(["SYS", "NODE", "PHB", "PXB", "PIX", "NV1", "NV2", "NV12"])


@st.composite
def machines(draw):
    size = draw(st.integers(1, 8))
    upper = {pair: Link.parse(draw(WORDS)) for pair in combinations(range(size), 2)}
    links = tuple(
        tuple(None if i == j else upper[min(i, j), max(i, j)] for j in range(size))
        for i in range(size)
    )
    rate = st.just(0.0) | st.floats(SLOWEST, FASTEST)
    some = st.floats(SLOWEST, FASTEST)
    sets = st.integers(1, (1 << size) - 1).filter(lambda gpus: gpus.bit_count() > 1)
    measured = draw(st.dictionaries(sets, some, max_size=3)) if size > 1 else {}
    row = st.tuples(*[rate] * size)
    card = st.builds(
        NIC,
        name=st.sampled_from(["mlx5_0", "mlx5_1"]),
        attachment=st.tuples(*[WORDS.map(Link.parse)] * size),
        speed=st.one_of(st.none(), some),
    )
    knowledge = draw(st.sampled_from([Knowledge.MEASURED, Knowledge.ASSUMED]))
    cards = draw(st.lists(card, max_size=2)) if knowledge is Knowledge.MEASURED else []
    return Machine(
        name="node",
        gpus=tuple(GPU(index=index, model="V100") for index in range(size)),
        links=links,
        nics=tuple(cards),
        nvswitch=behind_nvswitch("V100", links),
        knowledge=knowledge,
        measured=tuple(sorted(measured.items())),
        bandwidth=draw(st.one_of(st.none(), st.tuples(*[row] * size))),
    )


@given(machines(), st.integers(0, 255))
def test_a_published_machine_is_read_back_the_same(machine, healthy):
    healthy &= machine.everything
    read = documents.gpus_from_config_map(published.config_map(machine, healthy), model="V100")
    assert read == NodeGPUs(machine=machine, healthy=healthy)


def test_an_unknown_machine_is_published_without_links():
    machine = nodelabels.machine_from_labels("node", {"nvidia.com/gpu.product": "NVIDIA-L40S"}, 4)
    written = published.config_map(machine, machine.everything)
    assert set(written["data"]) == {"nodeName", "devices"}
    assert documents.gpus_from_config_map(written, model="L40S").machine == machine


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(["N-A", "0"])),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.sampled_from("012"), inner)),
)


@given(
    st.dictionaries(
        st.sampled_from(["devices", "linkType", "bandwidth", "busBandwidth", "nics"]), JSON
    )
)
def test_no_config_map_makes_the_reader_fall_over(data):
    texts = {key: json.dumps(value) for key, value in data.items()}
    try:
        size = len(documents.gpus_from_config_map(document(**texts)).machine.gpus)
    except UnreadableTopology:
        size = 1
    assert size > 0


# --- labels ---------------------------------------------------------------------------------

XE9680 = {
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.machine": "PowerEdge-XE9680",
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/mig.capable": "true",
}


def test_a_known_product_and_count_is_assumed_to_be_its_machine():
    machine = nodelabels.machine_from_labels("node", XE9680, 8)
    assert machine.name == "node"
    assert machine.knowledge is Knowledge.ASSUMED
    assert machine.nvswitch
    assert machine.links == presets.preset_machine("hgx-h100", "node").links


def test_ack_names_the_product_in_a_label_of_its_own():
    labels = {"aliyun.accelerator/nvidia_name": "Tesla-V100-SXM2-16GB"}
    machine = nodelabels.machine_from_labels("node", labels, 8)
    assert machine.links == presets.preset_machine("dgx-1-v100", "node").links
    assert machine.knowledge is Knowledge.ASSUMED


@pytest.mark.parametrize(
    ("labels", "count", "model"),
    [
        ({"nvidia.com/gpu.product": "NVIDIA-A100-PCIE-40GB"}, 4, "A100"),
        ({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, 6, "H100"),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-SHARED"}, 8, "A100"),
        (XE9680 | {"nvidia.com/gpu.replicas": "4"}, 8, "H100"),
        ({}, 2, None),
        ({"nvidia.com/gpu.product": ""}, 1, None),
    ],
)
def test_anything_else_is_unknown_with_its_model(labels, count, model):
    machine = nodelabels.machine_from_labels("node", labels, count)
    assert machine.knowledge is Knowledge.UNKNOWN
    assert machine.model == model
    assert len(machine.gpus) == count
    assert {link for row in machine.links for link in row} <= {None, SYS}


def test_a_node_without_gpus_has_an_empty_machine():
    assert nodelabels.machine_from_labels("node", {}, 0).gpus == ()


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ({}, None),
        (XE9680, None),
        (XE9680 | {"nvidia.com/mig.strategy": "single"}, None),
        (XE9680 | {"nvidia.com/mig.config": "all-disabled"}, None),
        (XE9680 | {"nvidia.com/gpu.sharing-strategy": "none"}, None),
        (XE9680 | {"nvidia.com/gpu.replicas": "many"}, None),
        ({"ack.node.gpu.schedule": "topology"}, None),
        ({"gpushare": "false"}, None),
        (
            {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"},
            "MIG slices (NVIDIA-H100-80GB-HBM3-MIG-1g.10gb)",
        ),
        ({"nvidia.com/mig.config": "all-balanced"}, "MIG is configured (all-balanced)"),
        ({"nvidia.com/mig-1g.5gb.count": "4"}, "MIG slices (mig-1g.5gb)"),
        ({"nvidia.com/mig-1g.5gb.count": "0"}, None),
        ({"nvidia.com/gpu.replicas": "4"}, "GPUs are shared (4 replicas of each)"),
        ({"nvidia.com/gpu.sharing-strategy": "mps"}, "GPUs are shared (mps)"),
        ({"nvidia.com/gpu.product": "Tesla-T4-SHARED"}, "GPUs are shared (Tesla-T4-SHARED)"),
        ({"gpushare": "true"}, "GPUs are shared (gpushare)"),
        ({"cgpu": "true"}, "GPUs are shared (cgpu)"),
        ({"ack.node.gpu.schedule": "cgpu"}, "GPUs are shared (ack.node.gpu.schedule=cgpu)"),
        ({"ack.node.gpu.schedule": "share"}, "GPUs are shared (ack.node.gpu.schedule=share)"),
    ],
)
def test_gpus_that_are_cut_up_or_shared_are_known_by_their_labels(labels, reason):
    assert nodelabels.why_shared(labels) == reason


@pytest.mark.parametrize(
    ("capture", "reason"),
    [
        ("node-labels-h100-mig-single.json", None),
        ("node-labels-h100-mig-mixed.json", "MIG is configured (all-balanced)"),
    ],
)
def test_labels_of_real_nodes_are_understood(capture, reason):
    if not LABELS.is_dir():
        pytest.skip("the captured labels are not part of the source tree")
    assert (
        nodelabels.why_shared(json.loads((LABELS / capture).read_text(encoding="utf-8"))) == reason
    )


def test_links_of_a_published_switch_are_recognised_by_the_lanes_of_its_model():
    machine = replace(presets.preset_machine("hgx-h100", "node"), nics=())
    read = documents.gpus_from_config_map(
        published.config_map(machine, machine.everything), model="NVIDIA-H100-80GB-HBM3"
    )
    assert read.machine.nvswitch
    assert read.machine.link(0, 7).kind is LinkKind.NVLINK


@pytest.mark.parametrize("key", ["bandwidth", "busBandwidth", "linkType"])
def test_what_makes_sense_of_a_config_map_survives_what_does_not(key):
    whole = published.config_map(presets.preset_machine("dgx-1-v100", "a"), GPUSet(0b11110111))
    whole["data"][key] = "garbage"
    complaints = {}
    read = documents.gpus_from_config_map(whole, complaints=complaints)
    assert read.healthy == 0b11110111
    assert len(read.machine.gpus) == 8
    assert list(complaints) == [key]
    assert f"data.{key}" in str(complaints[key])
    known = read.machine.knowledge
    assert known is (Knowledge.UNKNOWN if key == "linkType" else Knowledge.MEASURED)


def test_a_config_map_without_sensible_devices_is_not_to_be_saved():
    whole = published.config_map(presets.preset_machine("dgx-1-v100", "a"), GPUSet(255))
    whole["data"]["devices"] = "garbage"
    with pytest.raises(UnreadableTopology, match=r"data\.devices"):
        documents.gpus_from_config_map(whole, complaints={})


def test_a_measured_bandwidth_of_nothing_is_refused():
    whole = published.config_map(presets.preset_machine("dgx-1-v100", "a"), GPUSet(255))
    whole["data"]["busBandwidth"] = '{"0,1": 0}'
    with pytest.raises(UnreadableTopology, match=r"expected a number >= 0\.001"):
        documents.gpus_from_config_map(whole)
