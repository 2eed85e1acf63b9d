"""The NICs of a machine, from every source that may tell them, as the commands show them."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_topology_nvidia import FakeNVML

from arena_topo.drawing import tables
from arena_topo.engines.local import scheduler
from arena_topo.topology import presets, published

H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"}
INSTANCE = "node.kubernetes.io/instance-type"
OWN = """\
        GPU0  GPU1  mlx5_0  mlx5_1
GPU0     X    NV2   PIX     SYS
GPU1    NV2    X    SYS     PIX
mlx5_0  PIX   SYS    X      SYS
mlx5_1  SYS   PIX   SYS      X
"""
TWO = ["mlx5_0", "mlx5_1"]


def node(name: str, gpus: int = 8, **labels: str) -> dict[str, Any]:
    offers = {"cpu": "96", "memory": "1Ti", "nvidia.com/gpu": str(gpus)}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": offers, "allocatable": offers},
    }


@pytest.fixture
def told(arena, tmp_path):
    """The node `name` as JSON, out of a cluster of these objects; and what was said beside it."""

    def show(name: str, *objects: dict[str, Any], fabric: Any = None) -> tuple[Any, str]:
        state = tmp_path / "state.json"
        state.write_text(json.dumps({"kind": "List", "items": objects}))
        words = ["topology", "show", name, "--state", str(state), "-o", "json"]
        if fabric is not None:
            (tmp_path / "net.yaml").write_text(yaml.safe_dump(fabric))
            words += ["--fabric", str(tmp_path / "net.yaml")]
        code, out, err = arena(*words)
        return (json.loads(out) if code == 0 else None), err

    return show


def speeds(machine: Any) -> list[Any]:
    return [nic["speedGBps"] for nic in machine["nics"]]


def near(machine: Any) -> list[list[int]]:
    """The GPUs that are near each NIC."""
    return [
        [gpu for gpu, link in enumerate(nic["attachment"]) if link != "SYS"]
        for nic in machine["nics"]
    ]


def of_capture(name: str, arena, tmp_path: Path, *more: str) -> dict[str, Any]:
    """The ConfigMap that `topology publish` makes of a capture of nvidia-smi."""
    (tmp_path / "topo.txt").write_text(OWN)
    words = ["topology", "publish", name, "--from", str(tmp_path / "topo.txt")]
    code, out, _err = arena(*words, "--dry-run=client", "-o", "json", *more)
    assert code == 0
    return json.loads(out)


# ---------------------------------------------------------------- a published ConfigMap


def test_nics_of_a_capture_are_published_and_read_again(arena, told, tmp_path):
    written = of_capture("a", arena, tmp_path)
    assert [one["name"] for one in json.loads(written["data"]["nics"])] == TWO
    machine, err = told("a", node("a", 2), written)
    assert err == ""
    assert [one["name"] for one in machine["nics"]] == TWO
    assert (near(machine), machine["nicsAssumed"]) == ([[0], [1]], None)


def test_plan_shows_the_nics_that_were_published(arena, tmp_path):
    state = tmp_path / "state.json"
    items = [node("a", 2), of_capture("a", arena, tmp_path)]
    state.write_text(json.dumps({"kind": "List", "items": items}))
    words = ["--name=j", "--image=i", "--gpus=2", "--workers=1", "--gputopology", "train"]
    code, out, _err = arena("plan", "mpi", "--state", str(state), *words)
    assert code == 0
    assert "NICs and their nearest GPUs: mlx5_0 PIX 0; mlx5_1 PIX 1" in out


def test_nics_that_make_no_sense_leave_the_links_of_their_node(arena, told, tmp_path):
    written = of_capture("a", arena, tmp_path)
    written["data"]["nics"] = '[{"attachment": ["PIX"]}]'
    machine, err = told("a", node("a", 2), written)
    assert machine["links"] == [["X", "NV2"], ["NV2", "X"]]
    assert machine["nics"] == []
    assert "data.nics[0].attachment: expected a list of length 2, got 1" in err
    assert "the NICs of node a are not known by it" in err


def test_nics_that_are_only_assumed_are_not_published(arena):
    for preset in ("hgx-h100", "dgx-1-v100"):
        words = ["topology", "publish", "a", "--preset", preset, "--dry-run=client", "-o", "json"]
        code, out, _err = arena(*words)
        assert (code, "nics" in json.loads(out)["data"]) == (0, False)


# ---------------------------------------------------------------- catalogues


def test_a_node_of_an_instance_type_is_assumed_to_have_its_nics(told):
    machine, _err = told("a", node("a", **H100, **{INSTANCE: "a3-megagpu-8g"}))
    assert speeds(machine) == [25.0] * 8
    assert near(machine) == [[gpu] for gpu in range(8)]
    assert machine["nicsAssumed"] == "instance type a3-megagpu-8g"


def test_nodes_of_an_instance_type_have_its_plugin_between_them(arena, tmp_path):
    """TCPX has no rows between hosts, so the range alone is wider."""
    nodes = [node(name, **H100, **{INSTANCE: "a3-highgpu-8g"}) for name in "ab"]
    state = tmp_path / "state.json"
    state.write_text(json.dumps({"kind": "List", "items": nodes}))
    words = ["plan", "mpi", "--workers=2", "--gpus=8", "--rdma", "--gputopology", "-o=json"]
    estimates = []
    for plugin in (), ("--plugin=none",):
        code, out, err = arena(*words, *plugin, "--state", str(state))
        assert code == 0, err
        estimates.append(json.loads(out)["bandwidth"])
    ours, plain = estimates
    assert ours["gbps"] == plain["gbps"]
    assert ours["low"] == pytest.approx(0.45 * plain["low"], rel=0.01)
    assert ours["high"] == plain["high"]


def test_an_instance_type_of_another_size_says_nothing_of_a_node(told):
    machine, _err = told("a", node("a", 4, **{INSTANCE: "a3-megagpu-8g"}))
    assert machine["nics"] == []


def test_a_well_known_board_is_assumed_to_have_the_nics_of_its_machine(told):
    machine, _err = told("a", node("a", **H100))
    assert speeds(machine) == [None] * 8
    assert machine["nicsAssumed"] == "machines with 8 x H100"


def test_what_a_machine_says_itself_beats_its_instance_type(told):
    own = presets.preset_machine("hgx-h100", "a")
    cards = presets.preset_machine("dgx-1-v100", "a").nics
    document = tables.machine_value(own)
    document["nics"] = tables.machine_value(presets.preset_machine("dgx-1-v100", "a"))["nics"]
    written = published.config_map(own, own.everything)
    written["data"]["nics"] = json.dumps(document["nics"])
    machine, _err = told("a", node("a", **H100, **{INSTANCE: "p5.48xlarge"}), written)
    assert [one["name"] for one in machine["nics"]] == [one.name for one in cards]
    assert (speeds(machine), machine["nicsAssumed"]) == ([None] * 4, None)


def test_as_many_nics_as_the_instance_type_has_get_its_speed_and_stay_where_they_are(told):
    own = presets.preset_machine("hgx-h100", "a")
    written = published.config_map(own, own.everything)
    cards = [
        {"name": f"rdma{at}", "attachment": ["SYS"] * (7 - at) + ["PIX"] + ["SYS"] * at}
        for at in range(8)
    ]
    written["data"]["nics"] = json.dumps(cards)
    machine, _err = told("a", node("a", **H100, **{INSTANCE: "a3-megagpu-8g"}), written)
    assert speeds(machine) == [25.0] * 8
    assert near(machine) == [[7 - at] for at in range(8)]
    assert machine["nicsAssumed"] is None


def test_assumed_nics_are_one_line_and_no_columns(arena, tmp_path):
    state = tmp_path / "state.json"
    state.write_text(json.dumps(node("a", **H100, **{INSTANCE: "p5.48xlarge"})))
    code, out, _err = arena("topology", "show", "a", "--state", str(state))
    assert code == 0
    assert "NIC0" not in out
    assert "NICs: 32 of 12.5 GB/s (assumed: instance type p5.48xlarge)" in out


# ---------------------------------------------------------------- the fabric file

POOL = {"example.com/pool": "training"}


def entry(**more: Any) -> dict[str, Any]:
    return {"label": "example.com/pool", "value": "training", "nics": "8x400G", **more}


def test_a_fabric_file_says_the_nics_of_labelled_nodes_and_of_no_others(told):
    cluster = [node("a", **H100, **POOL), node("b", **H100, **{"example.com/pool": "other"})]
    machine, err = told("a", *cluster, fabric={"nics": [entry()]})
    assert (speeds(machine), machine["nicsAssumed"], err) == ([50.0] * 8, None, "")
    other, _err = told("b", *cluster, fabric={"nics": [entry()]})
    assert other["nicsAssumed"] == "machines with 8 x H100"


def test_a_fabric_file_says_which_gpus_are_near_each_nic(told):
    file = {"nics": [entry(nics="2x25GB", near=[[0, 1, 2, 3], [4, 5, 6, 7]])]}
    machine, _err = told("a", node("a", **H100, **POOL), fabric=file)
    assert (speeds(machine), near(machine)) == ([25.0] * 2, [[0, 1, 2, 3], [4, 5, 6, 7]])


def test_a_fabric_file_beats_the_instance_type_and_the_machine_itself(arena, told, tmp_path):
    assumed = node("a", **H100, **POOL, **{INSTANCE: "p5.48xlarge"})
    machine, _err = told("a", assumed, fabric={"nics": [entry()]})
    assert speeds(machine) == [50.0] * 8
    own = of_capture("a", arena, tmp_path)
    machine, _err = told("a", node("a", 2, **POOL), own, fabric={"nics": [entry(nics="4x100G")]})
    assert speeds(machine) == [12.5] * 4
    # With as many NICs as the machine tells only their speed is news.
    machine, _err = told("a", node("a", 2, **POOL), own, fabric={"nics": [entry(nics="2x100G")]})
    assert [one["name"] for one in machine["nics"]] == TWO
    assert speeds(machine) == [12.5] * 2


def test_of_two_entries_for_a_node_the_first_counts(told):
    file = {"nics": [entry(nics="1x100G"), entry(nics="2x100G")]}
    machine, _err = told("a", node("a", **H100, **POOL), fabric=file)
    assert speeds(machine) == [12.5]


def test_levels_come_from_labels_where_the_file_has_nics_alone(arena, tmp_path):
    leaf = "network.topology.nvidia.com/leaf"
    items = [node(f"n{at}", **H100, **POOL, **{leaf: f"leaf-{at // 2}"}) for at in range(4)]
    (tmp_path / "state.json").write_text(json.dumps({"kind": "List", "items": items}))
    (tmp_path / "net.yaml").write_text(yaml.safe_dump({"nics": [entry()]}))
    where = ["--state", str(tmp_path / "state.json"), "--fabric", str(tmp_path / "net.yaml")]
    code, out, _err = arena("topology", "show", *where, "-o", "json")
    assert (code, [tier["name"] for tier in json.loads(out)["tiers"]]) == (0, ["leaf"])


def test_nics_of_a_fabric_file_that_match_no_node_get_a_note(told):
    file = {"nics": [entry(value="none"), entry(nics="1x100G", near=[[9]])]}
    machine, err = told("a", node("a", **H100, **POOL), fabric=file)
    assert "nics[0] is not used: no node has the label example.com/pool=none" in err
    assert "nics[1].near names GPUs that node a does not have: it is not used there" in err
    assert machine["nicsAssumed"] == "machines with 8 x H100"


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ("8x400G", "nics: expected a list, got a text"),
        (["8x400G"], "nics[0]: expected a mapping, got a text"),
        ([entry(speed=4)], "nics[0]: object contains unknown field speed"),
        ([{"value": "a", "nics": "8x400G"}], "nics[0]: object missing required field label"),
        ([entry(value=None)], "nics[0].value: expected a text, got nothing"),
        ([entry(value=True)], "nics[0].value: expected a text, got true or false"),
        ([entry(nics=8)], "nics[0].nics: expected a text, got a whole number"),
        ([entry(nics="8x400")], "nics[0].nics: a number alone is no unit of speed"),
        ([entry(nics="0x400G")], "nics[0].nics: 0 NICs: a machine has 1 to 256"),
        ([entry(near=[[0]])], "nics[0].near: expected a list of length 8, got 1"),
        ([entry(nics="1x8G", near=[0])], "nics[0].near[0]: expected a list, got a whole number"),
        (
            [entry(nics="1x8G", near=[[64]])],
            "nics[0].near[0][0]: expected a whole number <= 63",
        ),
        ([entry(nics="1x8G", near="all")], "nics[0].near: expected a list, got a text"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_with_its_place(told, entries, problem):
    machine, err = told("a", node("a", **H100, **POOL), fabric={"nics": entries})
    assert machine is None
    where = rf"net\.yaml: line [1-9]\d*: {re.escape(problem)}"
    assert re.search(f"{where}$", err.splitlines()[0])


def test_a_speed_beyond_all_levels_needs_levels(told):
    file = {"nics": [entry()], "beyondGBps": 3}
    _machine, err = told("a", node("a", **H100, **POOL), fabric=file)
    assert err.splitlines()[0].endswith("net.yaml: levels: is missing")


# ---------------------------------------------------------------- what NCCL may use there


def planned(arena, tmp_path, fabric: Any, *nodes: dict[str, Any]) -> tuple[Any, str]:
    """The plan of four workers with two GPUs each, which share one host, as JSON."""
    (tmp_path / "state.json").write_text(json.dumps({"kind": "List", "items": nodes}))
    (tmp_path / "net.yaml").write_text(yaml.safe_dump(fabric))
    code, out, err = arena(
        *("plan", "mpi", "--workers", "4", "--gpus", "2", "--gputopology", "--pod-shape", "fused"),
        *("--state", str(tmp_path / "state.json"), "--fabric", str(tmp_path / "net.yaml")),
        *("-o", "json"),
    )
    return (json.loads(out) if code == 0 else None), err


def test_a_plan_uses_what_the_fabric_file_says_of_the_software(arena, tmp_path):
    pool = node("a", **H100, **POOL)
    plan, err = planned(arena, tmp_path, {"software": [{"p2p": False}]}, pool)
    assert plan["bandwidth"]["regime"] == "host-staged"
    assert "not used" not in err
    entries = [{"label": "example.com/pool", "value": "training", "p2p": True}, {"p2p": False}]
    for name, other in ("ab", "ba"):
        nodes = node(name, **H100, **POOL), node(other, **H100)
        plan, _err = planned(arena, tmp_path, {"software": entries}, *nodes)
        assert plan["bandwidth"]["regime"] == "nvls"
        assert plan["nodes"] == [name]


def test_software_of_a_fabric_file_that_matches_no_node_gets_a_note(told):
    file = {"software": [{"label": "example.com/pool", "value": "none", "gdr": False}]}
    _machine, err = told("a", node("a", **H100, **POOL), fabric=file)
    assert "software[0] is not used: no node has the label example.com/pool=none" in err


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ([{"p2p": 0}], "software[0].p2p: expected true or false, got a whole number"),
        ([{"label": "example.com/pool", "gdr": False}], "software[0].value: is missing"),
        ([{"value": "training", "gdr": False}], "software[0].label: is missing"),
        ([{"plug-in": "efa"}], "software[0]: object contains unknown field plug-in"),
        (
            [{"plugin": "rxm"}],
            "software[0].plugin: 'rxm' is none of none, efa, cxi, tcpx, tcpxo, gib, ucx, spcx",
        ),
    ],
)
def test_a_mistake_about_software_is_one_line_with_its_place(told, entries, problem):
    machine, err = told("a", node("a", **H100, **POOL), fabric={"software": entries})
    assert machine is None
    where = rf"net\.yaml: line [1-9]\d*: {re.escape(problem)}"
    assert re.search(f"{where}$", err.splitlines()[0])


# ---------------------------------------------------------------- this machine

SMI = """#!/bin/sh
case "$1" in
  --query-gpu=index,uuid,name) printf '0, GPU-aa, Tesla V100\\n1, GPU-bb, Tesla V100\\n';;
  topo) cat <<'EOT'
{matrix}EOT
  ;;
  *) exit 1;;
esac
"""


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A machine with nvidia-smi and two RDMA devices, of which one has a cable."""
    folder = tmp_path / "bin"
    folder.mkdir()
    tool = folder / "nvidia-smi"
    tool.write_text(SMI.format(matrix=OWN))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    devices = tmp_path / "infiniband"
    for name, state, rate in (
        ("mlx5_0", "4: ACTIVE", "200 Gb/sec (4X HDR)"),
        ("mlx5_1", "1: DOWN", "10 Gb/sec (4X SDR)"),
    ):
        port = devices / name / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
        (port / "rate").write_text(f"{rate}\n")
    monkeypatch.setattr(scheduler, "INFINIBAND", devices)


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("nvml", [False, True])
def test_discover_shows_the_nics_and_the_speed_of_their_ports(arena, monkeypatch, nvml):
    if nvml:
        fake = FakeNVML(gpus=2, lanes=[[1, 1], [0, 0]])
        fake.nvmlInit = fake.nvmlShutdown = lambda: None
        monkeypatch.setitem(sys.modules, "pynvml", fake)
    code, out, _err = arena("topology", "discover", "-o", "json")
    machine = json.loads(out)
    assert code == 0
    assert [one["name"] for one in machine["nics"]] == TWO
    assert (speeds(machine), near(machine)) == ([25.0, None], [[0], [1]])
    assert machine["links"] == [["X", "NV2"], ["NV2", "X"]]
