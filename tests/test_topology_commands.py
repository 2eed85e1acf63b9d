"""`topology show`, `discover` and `publish`, from the command line to the API server."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_api import FakeApi, kubeconfig

from arena_topo import cli, layout
from arena_topo.drawing import network, tables
from arena_topo.drawing.machine import MachineState, draw_machine
from arena_topo.engines import engine_choice, machines
from arena_topo.engines.local import scheduler
from arena_topo.errors import UnreadableTopology
from arena_topo.topology import (
    Knowledge,
    Node,
    NodeName,
    documents,
    gpu_set,
    presets,
    published,
)

HERE = Path(__file__).parent
QUAD = HERE / "machines" / "nccl-quad.xml"


@pytest.fixture
def arena(capfd):
    """Run a command line; (exit code, stdout, stderr)."""

    def run(*argv):
        capfd.readouterr()
        code = cli.run(("topology", *argv))
        return code, *capfd.readouterr()

    return run


@pytest.fixture
def api(tmp_path, monkeypatch):
    """A cluster with one node of four GPUs, which is where commands go by themselves."""
    fake = FakeApi()
    config = kubeconfig(tmp_path / "config", fake.url, user={"username": "alice"})
    monkeypatch.setenv("KUBECONFIG", config)
    fake.add(node("node-1", 4))
    yield fake
    fake.close()


def node(name: str, gpus: int, **labels: str) -> dict[str, Any]:
    offers = {"cpu": "64", "memory": "256Gi", "nvidia.com/gpu": str(gpus)}
    ready = [{"type": "Ready", "status": "True"}]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": offers, "allocatable": offers, "conditions": ready},
    }


def screen(name: str) -> str:
    return (HERE / "screens" / name).read_text(encoding="utf-8")


def written(api: FakeApi, name: str = "node-1-gpu-topology") -> dict[str, Any]:
    found = api.find("ConfigMap", name, "kube-system")
    assert found is not None
    return found


def quad(name: str = "node-1"):
    return machines.publishing(name, source=str(QUAD)).machine


def shown(**how: Any) -> str:
    """What is shown of the quad: its matrix, and its boxes without the same links once more."""
    drawn = draw_machine(
        MachineState(machine=machines.read_description(str(QUAD)).machine), pairs=False, **how
    )
    return f"{screen('matrix-nccl.txt')}\n{drawn}"


# ---------------------------------------------------------------- a machine from a file


def test_a_file_of_nccl_is_shown_as_matrix_and_drawing(arena):
    assert arena("show", "--from", str(QUAD)) == (0, shown(), "")


def test_what_is_printed_as_json_can_be_read_back_whole(arena, tmp_path):
    code, out, _err = arena("show", "--from", str(QUAD), "-o", "json")
    assert (code, out) == (0, screen("machine-nccl.json"))
    again = tmp_path / "printed.json"
    again.write_text(out, encoding="utf-8")
    assert arena("show", "--from", str(again), "-o", "json") == (0, out, "")
    assert arena("show", "--from", str(again)) == (0, shown(), "")
    assert (
        machines.read_description(str(again)).machine
        == machines.read_description(str(QUAD)).machine
    )


@pytest.mark.parametrize("preset", presets.preset_names())
def test_every_preset_survives_its_own_json(preset):
    machine = presets.preset_machine(preset, "here")
    value = json.loads(layout.go_json(tables.machine_value(machine)))
    assert documents.machine_from_document(value, name="elsewhere") == machine


def test_yaml_holds_the_same_as_json(arena):
    _code, as_json, _err = arena("show", "--from", str(QUAD), "-o", "json")
    _code, as_yaml, _err = arena("show", "--from", str(QUAD), "-o", "yaml")
    assert yaml.safe_load(as_yaml) == json.loads(as_json)


def test_a_drawing_is_ascii_where_that_is_asked_for(arena):
    _code, out, _err = arena("show", "--from", str(QUAD), "--ascii")
    assert out == shown(unicode=False)
    assert out != shown()


def test_a_published_config_map_is_a_file_like_others(arena, tmp_path):
    file = tmp_path / "published.json"
    file.write_text(json.dumps(published.config_map(quad(), quad().everything)))
    code, out, _err = arena("show", "--from", str(file), "-o", "json")
    assert (code, json.loads(out)["links"][0]) == (0, ["X", "NV2", "NV1", "NV1"])


def test_xml_comes_from_a_pipe_as_well(arena, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(QUAD.read_text(encoding="utf-8")))
    code, out, _err = arena("show", "--from", "-")
    assert (code, out) == (0, shown().replace("nccl-quad:", "stdin:"))


def test_unused_parts_of_a_file_get_a_note(arena, tmp_path):
    file = tmp_path / "uneven.xml"
    text = QUAD.read_text(encoding="utf-8")
    file.write_text(text.replace('count="', 'count="1', 1))
    code, _out, err = arena("show", "--from", str(file))
    assert code == 0
    assert "NVLinks to GPU 0, which says" in err.splitlines()[0]


GOOD = {"gpus": [{"index": 0}, {"index": 1}], "links": [["X", "NV2"], ["NV2", "X"]]}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"gpus": []}, "gpus: expected a list of length >= 1"),
        ({"gpus": [{}] * 65}, "gpus: expected a list of length <= 64"),
        ({"gpus": {}}, "gpus: expected a list, got a mapping"),
        ({"gpus": [{}, 7]}, "gpus[1]: expected a mapping, got a whole number"),
        ({"gpus": [{"index": 1}, {}]}, "gpus[0].index: is 1, not 0"),
        ({"gpus": [{}, {"index": -1}]}, "gpus[1].index: is -1, not 1"),
        ({"gpus": [{}, {"index": [1]}]}, "gpus[1].index: expected a whole number, got a list"),
        ({"gpus": [{}, {"numa": 1.5}]}, "gpus[1].numa: expected a whole number, got a number"),
        ({"gpus": [{}, {"uuid": 3}]}, "gpus[1].uuid: expected a text, got a whole number"),
        ({"gpus": [{}]}, "links: expected a list of length 1, got 2"),
        ({"links": None}, "links: expected a list, got nothing"),
        ({"links": [["X", "NV2"], ["NV2"]]}, "links[1]: expected a list of length 2, got 1"),
        ({"links": [["X", 40], [40, "X"]]}, "links[0][1]: expected a text, got a whole number"),
        ({"links": [["X", "NV0"], ["NV0", "X"]]}, "links[0][1]: 'NV0' is not a link"),
        ({"links": [["X", "NV2"], ["NV1", "X"]]}, "links[1][0]: is NV1, but [0][1] is NV2"),
        (
            {"nics": [{"attachment": ["PIX"]}]},
            "nics[0].attachment: expected a list of length 2, got 1",
        ),
        ({"nics": [{"attachment": ["PIX", "X"]}]}, "nics[0].attachment[1]: 'X' is not a link"),
        (
            {"nics": [{"attachment": ["PIX", "PIX"], "speedGBps": -1}]},
            "nics[0].speedGBps: expected a number >= 0.001",
        ),
        ({"nvswitch": "yes"}, "nvswitch: expected true or false, got a text"),
        ({"pcieGeneration": 9}, "pcieGeneration: expected a whole number <= 7"),
        ({"knowledge": "sure"}, "knowledge: invalid enum value 'sure'"),
        ({"name": ["a"]}, "name: expected a text, got a list"),
    ],
)
def test_json_that_describes_no_machine_is_refused_with_its_path(change, complaint):
    with pytest.raises(UnreadableTopology) as caught:
        documents.machine_from_document({**GOOD, **change}, name="m")
    assert str(caught.value).startswith(complaint)


def test_json_may_leave_out_all_but_gpus_and_links():
    bare = documents.machine_from_document(GOOD, name="m")
    assert (bare.name, bare.nvswitch, bare.nics, bare.knowledge) == (
        "m",
        False,
        (),
        Knowledge.MEASURED,
    )
    assert documents.machine_from_document({**GOOD, "nvswitch": True}, name="m").nvswitch


def test_json_of_a_later_version_is_read_without_what_it_says_more():
    later = {**GOOD, "apiVersion": "arena-topo/v2", "mood": 7, "gpus": [{"mood": "good"}, {}]}
    assert documents.machine_from_document(later, name="m") == documents.machine_from_document(
        GOOD, name="m"
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "FILE, line 1: no header (GPU0 GPU1 ...)"),
        (b"<system>\n <cpu", "FILE, line 2: this is no whole XML: unclosed token"),
        (b"{\n,", "FILE, line 2: this JSON is not complete: Expecting property name"),
        (b'{"gpus": NaN}', "FILE: this is not the JSON of a machine: NaN is not a number"),
        (b'{"a":' * 100_000, "FILE: this is not the JSON of a machine: "),
        (b'{"kind": "List"}', "FILE: this is a List, not a machine as `topology show"),
        (b'{"gpus": [{}]}', "FILE, the document: object missing required field links"),
        (
            b'{"kind": "ConfigMap"}',
            "FILE, configmap kube-system/? data: expected a mapping, got nothing",
        ),
        (b"<system>\xff</system>", "cannot read FILE"),
        (b"x" * (machines.MAX_MACHINE_BYTES + 1), "cannot read FILE"),
    ],
    ids=["empty", "cut XML", "JSON", "NaN", "deep", "List", "cut", "ConfigMap", "UTF-8", "large"],
)
def test_a_file_that_is_no_machine_is_named_with_its_line(arena, tmp_path, content, said):
    file = tmp_path / "some.file"
    file.write_bytes(content)
    ended, out, err = arena("show", "--from", str(file))
    assert (ended, out) == (2, "")
    assert err.startswith(f"error: {said.replace('FILE', str(file))}")
    assert "\n  try:  " in err


def test_a_file_from_windows_powershell_is_read(arena, tmp_path):
    file = tmp_path / "nccl-quad.xml"
    file.write_text(QUAD.read_text(encoding="utf-8"), encoding="utf-16")
    assert arena("show", "--from", str(file)) == (0, shown(), "")


@pytest.mark.parametrize("flag", ["--state", "--fabric", "--from"])
@pytest.mark.parametrize("content", [None, b"", b"\x00\xff", b"{", b"[[[", b"no such thing"])
def test_an_unreadable_file_gives_the_same_error_for_every_flag(
    arena, dump, tmp_path, flag, content
):
    file = tmp_path / "odd"
    if content is not None:
        file.write_bytes(content)
    more = ("--state", dump) if flag == "--fabric" else ()
    code, out, err = arena("show", flag, str(file), *more)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert str(file) in err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("node-1",), "--from and PRESET|NODE exclude each other"),
        (("--state", "dump.json"), "--from and --state exclude each other"),
        (("--fabric", "fabric.yaml"), "--from and --fabric exclude each other"),
    ],
)
def test_a_file_stands_alone(arena, more, said):
    code, _out, err = arena("show", "--from", str(QUAD), *more)
    assert code == 2
    assert err.splitlines() == [
        f"error: {said}",
        "  try:  leave one of them out",
    ]


# ---------------------------------------------------------------- nodes and the network


@pytest.fixture
def dump(tmp_path):
    """Four nodes in two racks; GPU 1 of node-1 is in use, node-4 is closed."""
    leaf = "network.topology.nvidia.com/leaf"
    nodes = [
        node(f"node-{at}", 4, **{leaf: f"rack-{(at + 1) // 2}", "nvidia.com/gpu.product": "A10"})
        for at in (1, 2, 3, 4)
    ]
    nodes[3]["spec"] = {"unschedulable": True}
    busy = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "theirs",
            "namespace": "default",
            "annotations": {"topology.kubernetes.io/gpu-group": "1"},
        },
        "spec": {
            "nodeName": "node-1",
            "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        },
        "status": {"phase": "Running"},
    }
    links = published.config_map(quad("node-1"), quad("node-1").everything)
    file = tmp_path / "dump.json"
    file.write_text(json.dumps({"kind": "List", "items": [*nodes, busy, links]}))
    return str(file)


def test_without_a_machine_the_network_is_drawn_with_what_is_free(arena, dump):
    code, out, _err = arena("show", "--state", dump)
    cluster = engine_choice.read_state((dump,))
    assert (code, out) == (0, network.draw_network(cluster))
    assert "node-4 (cordoned)" in out
    plain = arena("show", "--state", dump, "--ascii")[1]
    assert plain == network.draw_network(cluster, unicode=False)


def test_the_network_as_json_is_what_was_drawn(arena, dump):
    code, out, _err = arena("show", "--state", dump, "-o", "json")
    assert (code, out) == (0, screen("fabric.json"))
    assert yaml.safe_load(arena("show", "--state", dump, "-o", "yaml")[1]) == json.loads(out)


def test_a_fabric_file_says_what_joins_the_nodes(arena, dump, tmp_path):
    file = tmp_path / "fabric.yaml"
    levels = [{"name": "rack", "label": "network.topology.nvidia.com/leaf", "bandwidthGBps": 40}]
    file.write_text(yaml.safe_dump({"levels": levels, "beyondGBps": 5}))
    _code, out, _err = arena("show", "--state", dump, "--fabric", str(file), "-o", "json")
    found = json.loads(out)
    rack = {"name": "rack", "bandwidthGBps": 40, "assumed": False}
    assert (found["tiers"], found["beyondGBps"], found["beyondAssumed"]) == ([rack], 5, False)


def test_a_node_is_drawn_with_the_gpus_that_are_free_and_those_in_use(arena, dump):
    code, out, _err = arena("show", "node-1", "--state", dump)
    machine = engine_choice.read_state((dump,)).nodes[0].machine
    matrix, _, legend = out.partition("NIC Legend:\n  NIC0: mlx5_0\n\n")
    assert matrix.splitlines()[0].split() == ["GPU0", "GPU1", "GPU2", "GPU3", "NIC0", "NUMA"]
    assert (code, legend) == (
        0,
        draw_machine(MachineState(machine=machine, free=gpu_set([0, 2, 3])), pairs=False),
    )


def test_a_node_as_json_says_which_of_its_gpus_are_free(arena, dump):
    _code, out, _err = arena("show", "node-1", "--state", dump, "-o", "json")
    found = json.loads(out)
    assert found["links"][0] == ["X", "NV2", "NV1", "NV1"]
    assert {key: found[key] for key in list(found)[-10:]} == {
        "free": [0, 2, 3],
        "freeCount": 3,
        "reservedGPUs": 0,
        "inUse": [1],
        "opaque": 0,
        "unhealthy": [],
        "unhealthyCount": 0,
        "unavailable": None,
        "notes": [],
        "emulated": False,
    }
    closed = json.loads(arena("show", "node-4", "--state", dump, "-o", "json")[1])
    assert (closed["free"], closed["freeCount"], closed["unavailable"]) == ([], 0, "cordoned")


def test_of_an_opaque_node_only_the_number_of_free_gpus_is_known(arena, dump):
    text = Path(dump).read_text(encoding="utf-8")
    Path(dump).write_text(text.replace("topology.kubernetes.io/gpu-group", "x"), encoding="utf-8")
    found = json.loads(arena("show", "node-1", "--state", dump, "-o", "json")[1])
    assert (found["free"], found["freeCount"], found["inUse"], found["opaque"]) == (None, 3, [], 1)
    nodes = json.loads(arena("show", "--state", dump, "-o", "json")[1])["nodes"]
    assert [(one["free"], one["opaque"]) for one in nodes[:2]] == [(3, 1), (4, 0)]


def test_reserved_gpus_without_indexes_are_told_from_those_in_use():
    machine = presets.preset_machine("dgx-1-v100", "a")
    used = Node(name=NodeName("a"), machine=machine, free=machine.everything, unattributed=3)
    kept = used.reserve("team/head", gpu_set(()), unnamed=5)
    state = MachineState.of(kept)
    assert state.what == "8 x V100; 0 of 8 free, 5 reserved"
    assert state.doubt == (
        "8 of the GPUs marked free? are not free: 3 in use, 5 reserved; not known which"
    )


def test_what_is_printed_of_a_node_can_be_read_back(arena, dump, tmp_path):
    file = tmp_path / "node.json"
    file.write_text(arena("show", "node-1", "--state", dump, "-o", "json")[1], encoding="utf-8")
    code, out, _err = arena("show", "--from", str(file))
    assert (code, "node-1: 4 x A10\n" in out) == (0, True)


def test_a_node_that_takes_no_jobs_says_so(arena, dump):
    _code, out, _err = arena("show", "node-4", "--state", dump)
    assert out.endswith("  No job can start here now: cordoned\n")


def test_a_node_without_rdma_shows_its_assumed_network_rate(arena, dump):
    world = json.loads(Path(dump).read_text(encoding="utf-8"))
    for one in world["items"][:3]:
        one["status"]["allocatable"] = {**one["status"]["allocatable"], "rdma/ib": "1"}
    Path(dump).write_text(json.dumps(world), encoding="utf-8")
    nodes = json.loads(arena("show", "--state", dump, "-o", "json")[1])["nodes"]
    assert [one["networkGBps"] for one in nodes] == [None, None, None, 1.25]
    assert "node-4 (cordoned; 1.25 GB/s to others)" in arena("show", "--state", dump)[1]


def relabelled(dump, **labels):
    world = json.loads(Path(dump).read_text(encoding="utf-8"))
    world["items"][2]["metadata"]["labels"] |= {f"nvidia.com/{key}": labels[key] for key in labels}
    Path(dump).write_text(json.dumps(world), encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "labels", "word"),
    [
        ("node-3", {"mig.config": "all-balanced"}, "shared"),
        ("node-3", {"gpu.replicas": "4", "gpu.count": "4"}, "shared"),
        ("node-4", {}, "unused"),
    ],
)
def test_no_gpu_is_called_free_on_a_node_that_takes_no_jobs(arena, dump, name, labels, word):
    relabelled(dump, **labels)
    _code, out, _err = arena("show", name, "--state", dump)
    assert f"{name}: 4 x A10; 4 {word}" in out
    assert "free" not in out


def test_a_node_without_gpus_is_a_sentence_and_no_part_of_the_network(arena, dump):
    whole = arena("show", "--state", dump)[1]
    world = json.loads(Path(dump).read_text(encoding="utf-8"))
    world["items"].append(node("cpu-1", 0))
    Path(dump).write_text(json.dumps(world), encoding="utf-8")
    assert arena("show", "cpu-1", "--state", dump)[:2] == (0, "node cpu-1 has no GPUs\n")
    assert arena("show", "--state", dump)[1] == whole + "Not shown: 1 node without GPUs\n"


def test_a_preset_is_shown_beside_a_dump_unless_a_node_has_its_name(arena, dump):
    alone = arena("show", "hgx-h100")
    assert alone[0] == 0
    assert arena("show", "hgx-h100", "--state", dump) == alone
    text = Path(dump).read_text(encoding="utf-8")
    Path(dump).write_text(text.replace('"node-2"', '"hgx-h100"'), encoding="utf-8")
    assert "hgx-h100: 4 x A10" in arena("show", "hgx-h100", "--state", dump)[1]


def test_all_notes_are_in_the_json_and_the_screen_names_what_it_leaves_out(arena, dump):
    world = json.loads(Path(dump).read_text(encoding="utf-8"))
    world["items"] += [world["items"][at] for at in (0, 1, 2, 3, 0)]
    Path(dump).write_text(json.dumps(world), encoding="utf-8")
    _code, out, err = arena("show", "--state", dump, "-o", "json")
    twice = "node node-{} is listed twice; the first one counts"
    assert json.loads(out)["notes"] == [twice.format(at) for at in (1, 2, 3, 4, 1)]
    shown = [f"note: {twice.format(at)}" for at in (1, 2, 3)]
    assert err.splitlines() == [*shown, "note: ... and 1 more like the last: node-4"]


def test_presets_are_machines_in_json(arena):
    code, out, _err = arena("presets", "-o", "json")
    found = json.loads(out)
    assert (code, found["kind"]) == (0, "PresetList")
    assert [one["name"] for one in found["items"]] == [*presets.preset_names()]
    (dgx,) = (one for one in found["items"] if one["name"] == "dgx-1-v100")
    assert documents.machine_from_document(dgx, name="x") == presets.preset_machine(
        "dgx-1-v100", "dgx-1-v100"
    )
    assert yaml.safe_load(arena("presets", "-o", "yaml")[1]) == found


def test_on_a_narrow_terminal_network_cards_are_listed_below_the_gpus(arena, monkeypatch):
    wide = arena("show", "dgx-1-v100")[1]
    assert "NIC0" in wide.splitlines()[0]
    monkeypatch.setattr("arena_topo.cli.terminal.drawing_columns", lambda _stream: 80)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    narrow = arena("show", "dgx-1-v100")[1]
    assert "NIC0" not in narrow.splitlines()[0]
    assert "NICs and their nearest GPUs: " in narrow


def test_cards_that_are_called_as_their_columns_need_no_legend(arena, tmp_path):
    file = tmp_path / "m.json"
    card = {"attachment": ["PIX", "SYS"]}
    file.write_text(json.dumps({**GOOD, "nics": [card]}), encoding="utf-8")
    assert "NIC Legend:" not in arena("show", "--from", str(file))[1]
    file.write_text(json.dumps({**GOOD, "nics": [{**card, "name": "mlx5_0"}]}), encoding="utf-8")
    assert "NIC Legend:\n  NIC0: mlx5_0\n" in arena("show", "--from", str(file))[1]


def test_emulated_gpus_are_marked_on_every_screen(arena):
    cluster = ("--backend", "local", "--emulate", "dgx-1-v100:2")
    for words in (("show",), ("show", "dgx-1-v100-0")):
        _code, out, err = arena(*words, *cluster)
        assert out.endswith(f"{tables.EMULATED}\n")
        assert "EMULATED" not in err


def test_a_node_that_does_not_exist_has_the_exit_code_of_top_node(arena):
    code, out, err = arena("show", "zzz", "--backend=local", "--emulate=dgx-1-v100")
    assert (code, out) == (1, "")
    assert err.startswith("error: there is no node or preset zzz\n")


def test_unknown_words_are_answered_with_the_usage(arena):
    assert arena("show", "a", "b") == (
        2,
        "",
        "error: too many words: b\n  try:  arena-topo topology show [OPTIONS] [PRESET|NODE]\n",
    )


def test_gpus_that_are_not_healthy_are_drawn_as_broken(arena, api):
    arena("publish", "node-1", "--from", str(QUAD))
    written(api)["data"]["devices"] = '{"0":"Healthy","1":"Healthy","2":"Unhealthy","3":"Healthy"}'
    _code, out, _err = arena("show", "node-1")
    assert "node-1: 4 x GPU; 3 free, 1 broken\n" in out


def test_the_cluster_itself_is_drawn_where_no_dump_is_given(arena, api):
    api.add(node("node-2", 4))
    code, out, _err = arena("show")
    assert (code, out.splitlines()[0]) == (
        0,
        "cluster (speed unknown): 2 nodes, 8 of 8 GPUs free",
    )


def test_a_node_with_the_name_of_a_preset_is_shown_and_the_preset_with_the_local_engine(arena, api):
    api.add(node("dgx-2", 8))
    code, out, err = arena("show", "dgx-2")
    assert (code, "dgx-2: 8 x GPU; 8 free" in out) == (0, True)
    assert (
        "note: dgx-2 is a node here; with --backend local the preset of that name is shown\n"
    ) in err
    code, out, err = arena("show", "dgx-2", "--backend", "local")
    assert (code, "dgx-2: 16 x V100" in out, err) == (0, True, "")


def test_a_preset_that_no_node_is_called_by_is_shown_beside_a_cluster(arena, api):
    code, out, err = arena("show", "dgx-2")
    assert (code, "dgx-2: 16 x V100" in out, err) == (0, True, "")
    assert [one for one in api.requests if "pods" in str(one)] == []


def test_a_preset_is_shown_if_nodes_may_not_be_read(arena, api):
    api.deny("get nodes")
    code, out, err = arena("show", "dgx-2")
    assert (code, "dgx-2: 16 x V100" in out) == (0, True)
    assert err.startswith("note: whether the cluster has a node dgx-2 is not known, the preset is")


# ---------------------------------------------------------------- this machine


SMI = """#!/bin/sh
case "$1" in
  --query-gpu=index,uuid,name)
    echo "0, GPU-aa, Tesla V100-SXM2-16GB"
    echo "1, GPU-bb, NVIDIA A100-SXM4-40GB";;
  topo)
    printf '\\tGPU0\\tGPU1\\tmlx5_0\\tCPU Affinity\\tNUMA Affinity\\n'
    printf 'GPU0\\t X \\tNV2\\tPIX\\t0-7\\t0\\nGPU1\\tNV2\\t X \\tSYS\\t8-15\\t1\\n'
    printf 'mlx5_0\\tPIX\\tSYS\\t X \\n';;
  *) exit 1;;
esac
"""


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Puts a program called nvidia-smi on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    scheduler.this_machine.cache_clear()

    def install(script: str) -> None:
        file = folder / "nvidia-smi"
        file.write_text(script)
        file.chmod(0o755)

    yield install
    scheduler.this_machine.cache_clear()


def test_this_machine_is_what_nvidia_smi_says(arena, tool):
    tool(SMI)
    code, out, err = arena("discover", "-o", "json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["name"] == scheduler.host()
    assert found["gpus"] == [
        {"index": 0, "uuid": "GPU-aa", "model": "V100", "numa": 0},
        {"index": 1, "uuid": "GPU-bb", "model": "A100", "numa": 1},
    ]
    assert found["links"] == [["X", "NV2"], ["NV2", "X"]]
    assert found["nics"] == [{"name": "mlx5_0", "attachment": ["PIX", "SYS"], "speedGBps": None}]
    assert "GPU 1" in arena("discover")[1]
    assert yaml.safe_load(arena("discover", "-o", "yaml")[1]) == found


def test_discovery_without_gpus_names_the_sources_and_the_missing_packages(arena, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    code, out, err = arena("discover")
    assert (code, out) == (1, "")
    first, why, hint = err.splitlines()
    assert first == "error: this machine has no GPUs that NVML or nvidia-smi can list"
    assert why.endswith("; nvidia-smi is not on the PATH")
    assert "arena-topo with its extra 'gpu' (docs/installation.md)" in hint


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (
            "#!/bin/sh\necho 'NVIDIA-SMI has failed' >&2\nexit 9",
            "nvidia-smi: NVIDIA-SMI has failed",
        ),
        ("#!/bin/sh\nexit 3", "nvidia-smi: it ended with 3"),
        ("#!/bin/sh\necho 'No devices were found'", "nvidia-smi lists no GPUs"),
        ("no program", "nvidia-smi: [Errno 8] Exec format error: 'nvidia-smi'"),
    ],
)
def test_an_nvidia_smi_that_fails_is_quoted(arena, tool, script, why):
    tool(script)
    code, _out, err = arena("discover")
    assert code == 1
    assert err.splitlines()[1].endswith(f"; {why}")


# ---------------------------------------------------------------- publishing


def test_a_file_is_published_for_a_node_once_and_then_unchanged(arena, api):
    publish = ("publish", "node-1", "--from", str(QUAD))
    assert arena(*publish) == (0, "configmap/node-1-gpu-topology created\n", "")
    found = written(api)
    assert {key: found[key] for key in ("kind", "data")} == {
        key: published.config_map(quad(), quad().everything)[key] for key in ("kind", "data")
    }
    assert found["metadata"]["labels"] == {
        "ack.node.gpu.schedule": "topology",
        "nodename": "node-1",
    }
    before = dict(found)
    assert arena(*publish) == (0, "configmap/node-1-gpu-topology unchanged\n", "")
    assert written(api) == before
    assert not [line for line in api.requests if line.startswith("PUT")]


def test_what_was_published_is_what_submitters_read(arena, api):
    arena("publish", "node-1", "--from", str(QUAD))
    _code, out, _err = arena("show", "node-1", "-o", "json")
    found = json.loads(out)
    assert found["links"][0] == ["X", "NV2", "NV1", "NV1"]
    assert found["knowledge"] == "measured"
    assert api.find("ConfigMap", "node-1-gpu-topology", "kube-system")


def test_a_preset_is_published_as_an_assumption(arena, api):
    code, out, _err = arena("publish", "node-1", "--preset", "hgx-a100-4")
    assert (code, out) == (0, "configmap/node-1-gpu-topology created\n")
    assert documents.gpus_from_config_map(written(api)).machine.knowledge is Knowledge.ASSUMED


def test_this_machine_is_published_under_the_name_of_its_node(arena, api, tool, monkeypatch):
    tool(SMI)
    api.add(node("worker-7", 2))
    monkeypatch.setenv("NODE_NAME", "worker-7")
    assert arena("publish")[:2] == (0, "configmap/worker-7-gpu-topology created\n")
    assert json.loads(written(api, "worker-7-gpu-topology")["data"]["linkType"]) == [
        ["N-A", "NV2"],
        ["NV2", "N-A"],
    ]


def test_publishing_other_links_leaves_health_and_foreign_keys_alone(arena, api):
    arena("publish", "node-1", "--preset", "hgx-a100-4")
    found = written(api)
    found["metadata"]["labels"]["team"] = "ml"
    found["data"] |= {
        "devices": '{"0":"Healthy","1":"Unhealthy","2":"Healthy","3":"Healthy"}',
        "busBandwidth": '{"0,1":42}',
        "note": "theirs",
    }
    code, out, _err = arena("publish", "node-1", "--from", str(QUAD))
    assert (code, out) == (0, "configmap/node-1-gpu-topology configured\n")
    data, metadata = written(api)["data"], written(api)["metadata"]
    assert data["devices"] == '{"0":"Healthy","1":"Unhealthy","2":"Healthy","3":"Healthy"}'
    assert (data["note"], metadata["labels"]["team"]) == ("theirs", "ml")
    # What was measured over other links says nothing of these.
    assert "busBandwidth" not in data
    assert metadata["annotations"] == {"arena-topo.io/knowledge": "measured"}


def test_measured_bandwidths_stay_while_the_links_do(arena, api):
    arena("publish", "node-1", "--from", str(QUAD))
    written(api)["data"]["busBandwidth"] = '{"0,1":42}'
    written(api)["metadata"]["annotations"] = {}
    assert arena("publish", "node-1", "--from", str(QUAD))[1].endswith(" configured\n")
    assert written(api)["data"]["busBandwidth"] == '{"0,1":42}'


def test_what_was_measured_on_a_node_is_shown_with_it(arena, api):
    arena("publish", "node-1", "--from", str(QUAD))
    assert "Measured" not in arena("show", "node-1")[1]
    assert "busBandwidth" not in json.loads(arena("show", "node-1", "-o", "json")[1])
    written(api)["data"]["busBandwidth"] = '{"0,1,2":30.5,"0,1":42}'
    assert arena("show", "node-1")[1].endswith(
        "Measured bus bandwidth, which counts instead of what the links would give:\n"
        "  GPUs 0,1  42 GB/s\n"
        "  GPUs 0,1,2  30.5 GB/s\n"
    )
    code, out, _err = arena("show", "node-1", "-o", "json")
    assert (code, json.loads(out)["busBandwidth"]) == (0, {"0,1": 42, "0,1,2": 30.5})


def test_an_invalid_config_map_is_replaced(arena, api):
    arena("publish", "node-1", "--from", str(QUAD))
    whole = dict(written(api)["data"])
    written(api)["data"] |= {"devices": "{", "bandwidth": "[[-1]]"}
    assert arena("publish", "node-1", "--from", str(QUAD))[0] == 0
    assert written(api)["data"] == whole


def test_the_config_map_of_acks_own_agent_is_updated(arena, api):
    theirs = published.config_map(presets.preset_machine("hgx-a100-4", "node-1"), quad().everything)
    theirs["metadata"]["name"] = "gpu-topology-186"
    api.add(theirs)
    assert arena("publish", "node-1", "--from", str(QUAD))[1] == (
        "configmap/gpu-topology-186 configured\n"
    )
    assert len(api.all("ConfigMap")) == 1


def test_a_config_map_without_its_labels_gets_them_back(arena, api):
    arena("publish", "node-1", "--from", str(QUAD))
    del written(api)["metadata"]["labels"]
    assert arena("publish", "node-1", "--from", str(QUAD))[1].endswith(" configured\n")
    assert written(api)["metadata"]["labels"]["nodename"] == "node-1"


def test_concurrent_writers_lose_no_data(arena, api):
    arena("publish", "node-1", "--preset", "hgx-a100-4")

    def change() -> None:
        with api.lock:
            written(api)["data"]["note"] = "theirs"
            api.touch(written(api)["metadata"])

    api.before("PUT", change)
    code, out, _err = arena("publish", "node-1", "--from", str(QUAD))
    assert (code, out) == (0, "configmap/node-1-gpu-topology configured\n")
    assert written(api)["data"]["note"] == "theirs"
    assert len([line for line in api.requests if line.startswith("PUT")]) == 2


def test_a_dry_run_prints_the_object_without_a_request(arena, monkeypatch):
    monkeypatch.setenv("NODE_NAME", "node-1")
    wanted = published.config_map(quad(), quad().everything)
    code, out, err = arena("publish", "--from", str(QUAD), "--dry-run", "-o", "yaml")
    assert (code, err) == (0, "Nothing was written.\n")
    assert out == screen("publish.yaml")
    assert yaml.safe_load(out) == wanted
    _code, out, _err = arena("publish", "--from", str(QUAD), "--dry-run=client", "-o", "json")
    assert json.loads(out) == wanted
    _code, out, _err = arena("publish", "--from", str(QUAD), "--dry-run", "-o", "name")
    assert out == "configmap/node-1-gpu-topology\n"


def test_a_servers_dry_run_checks_all_and_stores_nothing(arena, api):
    code, out, err = arena("publish", "node-1", "--from", str(QUAD), "--dry-run=server")
    assert (code, yaml.safe_load(out)["data"]["nodeName"]) == (0, "node-1")
    assert err == ("configmap/node-1-gpu-topology created (server dry run: nothing was written)\n")
    assert not api.all("ConfigMap")
    assert [line for line in api.requests if "dryRun=All" in line]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("node-9", "--from", "QUAD"), 1, "error: there is no node node-9 in this cluster\n"),
        (
            ("node-1", "--preset", "hgx-h100"),
            1,
            "error: node node-1 has 4 GPUs, not 8\n  why:  its capacity says so: nvidia.com/gpu\n",
        ),
        (("node-0", "--from", "QUAD"), 1, "error: node node-0 has 0 GPUs, not 4\n"),
        (
            ("node-mig", "--from", "QUAD"),
            1,
            "error: the GPUs of node node-mig are not whole: MIG is configured (all-1g.10gb)\n",
        ),
        (("--from", "QUAD"), 2, "error: the name of the node is missing\n"),
        (("--preset", "hgx-h100"), 2, "error: the name of the node is missing\n"),
        (("node-1", "--from", "QUAD", "--preset", "x"), 2, "error: --from and --preset exclude"),
        (("node-1", "--preset", "hgx-h1000"), 2, "error: unknown preset 'hgx-h1000'\n"),
        (("Node_1", "--from", "QUAD"), 2, "error: 'Node_1' is not a name that a node can have\n"),
    ],
)
def test_what_would_be_wrong_is_not_published(arena, api, words, code, said):
    api.add(node("node-0", 0))
    api.add(node("node-mig", 4, **{"nvidia.com/mig.config": "all-1g.10gb"}))
    words = [str(QUAD) if word == "QUAD" else word for word in words]
    ended, out, err = arena("publish", *words)
    assert (ended, out) == (code, "")
    assert err.startswith(said)
    assert not api.all("ConfigMap")


@pytest.mark.parametrize(
    ("forbidden", "rule"),
    [
        ("get nodes", '{apiGroups: [""], resources: ["nodes"], verbs: ["get"]}'),
        ("list configmaps .*", '{apiGroups: [""], resources: ["configmaps"], verbs: ["list"]}'),
        ("create configmaps .*", '{apiGroups: [""], resources: ["configmaps"], verbs: ["create"]}'),
        ("update configmaps .*", '{apiGroups: [""], resources: ["configmaps"], verbs: ["update"]}'),
    ],
)
def test_a_user_who_may_not_publish_gets_the_missing_rule(arena, api, forbidden, rule):
    if forbidden.startswith("update"):
        arena("publish", "node-1", "--preset", "hgx-a100-4")
    api.deny(forbidden)
    code, out, err = arena("publish", "node-1", "--from", str(QUAD))
    assert (code, out) == (4, "")
    assert rule in err.splitlines()[2]


def test_the_local_engine_publishes_nothing(arena):
    code, out, err = arena("publish", "here", "--from", str(QUAD), "--backend", "local")
    assert (code, out) == (2, "")
    assert err.splitlines()[0] == "error: there is no cluster to publish here in"
