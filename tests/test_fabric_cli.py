"""`--fabric` and network labels from the command line: what is placed, said and refused."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_api import FakeApi, kubeconfig
from fake_cluster import FakeCluster

Run = Callable[..., tuple[int, str, str]]

FABRIC = """\
levels:
  - name: row
    label: example.com/row
    bandwidthGBps: 50
  - name: rack
    label: example.com/rack
    bandwidthGBps: 200
beyondGBps: 3.1
"""


def node(name: str, **labels: str) -> dict[str, Any]:
    offers = {"cpu": "96", "memory": "1Ti", "nvidia.com/gpu": "8"}
    product = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": {**product, **labels}},
        "status": {"capacity": offers, "allocatable": offers},
    }


def nodes() -> list[dict[str, Any]]:
    """Two rows of four racks of two nodes; those of one rack are not next to each other."""
    return [
        node(
            f"gpu-{at}",
            **{"example.com/row": f"row-{at % 8 // 4}", "example.com/rack": f"rack-{at % 8}"},
        )
        for at in range(16)
    ]


@pytest.fixture
def state(tmp_path: Path) -> str:
    path = tmp_path / "state.json"
    path.write_text(json.dumps({"kind": "List", "items": nodes()}))
    return str(path)


@pytest.fixture
def net(tmp_path: Path) -> str:
    path = tmp_path / "net.yaml"
    path.write_text(FABRIC)
    return str(path)


def gang(workers: int) -> tuple[str, ...]:
    size = (f"--workers={workers}", "--gpus=8")
    return ("--name=demo", *size, "--gang", "--gputopology", "--image=pytorch")


def planned(arena: Run, workers: int, *more: str) -> tuple[dict[str, Any], str]:
    code, out, err = arena("plan", "mpi", *gang(workers), *more, "-o", "json", "c")
    assert code == 0, err
    return json.loads(out), err


def test_a_plan_stays_in_one_rack_of_the_fabric_file(arena: Run, state: str, net: str):
    known = ("--rdma", "--state", state, "--fabric", net)
    plan, err = planned(arena, 2, *known)
    assert plan["nodes"] == ["gpu-0", "gpu-8"]
    assert plan["tier"] == "rack"
    assert "--fabric" not in err
    assert "rack" not in err
    for workers, tier, rate in ((4, "row", 50), (16, "beyond", 3.1)):
        plan, _err = planned(arena, workers, *known)
        assert (plan["tier"], plan["bandwidth"]["limitedBy"]) == (tier, "network")
        assert plan["usableGBps"] == pytest.approx(0.931 * rate, abs=0.01)


def test_a_gang_over_an_unknown_network_gets_a_note_without_a_fabric_file(arena: Run, state: str):
    plan, err = planned(arena, 2, "--state", state)
    assert (plan["tier"], plan["usableGBps"]) == ("beyond", 2.68)
    assert (
        "note: the speed of the network between nodes is not known; --fabric FILE gives it\n"
    ) in err


def test_a_gang_inside_one_node_gets_no_note_about_the_network(arena: Run, state: str):
    plan, err = planned(arena, 1, "--state", state)
    assert plan["tier"] == "node"
    assert "network" not in err


def test_levels_of_a_fabric_file_can_be_required(arena: Run, state: str, net: str):
    plan, _err = planned(arena, 4, "--state", state, "--fabric", net, "--topology-required=row")
    assert plan["tier"] == "row"
    code, _out, err = arena(
        *("plan", "mpi", *gang(4), "--state", state, "--fabric", net),
        *("--topology-required=rack", "c"),
    )
    assert code == 5
    assert "no domain of the level asked for holds all workers" in err
    assert "fits now with --topology-required row, or with --workers 2" in err


def test_a_note_says_that_a_preferred_level_joins_no_nodes(arena: Run, state: str, tmp_path: Path):
    path = tmp_path / "more.yaml"
    path.write_text(FABRIC.replace("levels:\n", "levels:\n  - {name: hall, label: site/hall}\n"))
    line = ("--state", state, "--fabric", str(path))
    plan, err = planned(arena, 2, *line, "--topology-preferred=hall")
    assert plan["nodes"] == ["gpu-0", "gpu-8"]
    assert "--topology-preferred hall is left out: this cluster has no such level" in err
    code, _out, err = arena("plan", "mpi", *gang(2), *line, "--topology-preferred=hell", "c")
    assert code == 2
    assert "did you mean hall?" in err


def test_a_fabric_file_may_come_from_standard_input(
    arena: Run, state: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(FABRIC.encode())))
    plan, _err = planned(arena, 2, "--state", state, "--fabric", "-")
    assert plan["tier"] == "rack"


def test_a_dry_run_places_by_the_fabric_file(arena: Run, state: str, net: str):
    code, out, err = arena(
        *("submit", "mpi", *gang(2), "--dry-run=client"),
        *("--state", state, "--fabric", net, "c"),
    )
    assert code == 0, err
    assert "gpu-0" in out
    assert "gpu-8" in out


RATE = "bandwidthGBps"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the file: expected a mapping, got nothing"),
        ("levels: [", "line 2, column 1: not YAML: "),
        (
            FABRIC.replace("200", "-1"),
            f"line 7: levels[1].{RATE}: expected a number >= 0.001",
        ),
        (f"{FABRIC}beyondGBps: 2\n", "line 9: beyondGBps is given twice"),
        (
            f"{FABRIC}software:\n  - gdr: false\n    plugin: efax\n",
            "line 11: software[0].plugin: 'efax' is none of none, efa, cxi",
        ),
        (f"{FABRIC}software:\n  - label: a/b\n", "line 10: software[0].value: is missing"),
        (
            FABRIC.replace("200", "20"),
            f"line 4: levels[0].{RATE}: 50 GB/s is more than the 20 GB/s of levels[1]",
        ),
        (
            FABRIC.replace("3.1", "60"),
            f"line 8: beyondGBps: 60 GB/s is more than the 50 GB/s of levels[0].{RATE}",
        ),
    ],
)
@pytest.mark.parametrize("verb", [("plan", "mpi"), ("submit", "mpi", "--dry-run")])
def test_a_bad_fabric_file_is_named_with_the_place_in_it(
    arena: Run, tmp_path: Path, verb: tuple[str, ...], text: str, problem: str
):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    code, out, err = arena(*verb, *gang(2), "--fabric", str(path), "c")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {path}: {problem}")
    assert "\n  try:  " in err


def test_a_fabric_file_that_is_wrong_is_answered_with_what_is_expected(arena: Run, tmp_path: Path):
    path = tmp_path / "bad.yaml"
    path.write_text("levels: 5\n")
    code, _out, err = arena("plan", "mpi", *gang(2), "--fabric", str(path), "c")
    assert (code, err.splitlines()) == (
        2,
        [
            f"error: {path}: line 1: levels: expected a list, got a whole number",
            (
                "  why:  levels run from coarse to near; each has a name, the key of a node label,"
                " maybe GB/s"
            ),
            "  try:  levels: [{name: rack, label: example.com/rack, bandwidthGBps: 50}]",
        ],
    )


def test_a_missing_fabric_file_is_named(arena: Run, state: str):
    code, _out, err = arena(
        "plan", "mpi", *gang(2), "--state", state, "--fabric", "/nowhere.yaml", "c"
    )
    assert code == 2
    assert err == "error: /nowhere.yaml: cannot be read: No such file or directory\n"


def test_a_level_that_no_node_has_is_a_note_and_the_others_count(
    arena: Run, state: str, tmp_path: Path
):
    path = tmp_path / "net.yaml"
    path.write_text(FABRIC.replace("example.com/row", "example.com/hall"))
    plan, err = planned(arena, 2, "--state", state, "--fabric", str(path))
    assert plan["tier"] == "rack"
    assert (
        f"note: {path}: no node has the label example.com/hall: the level row is not used\n" in err
    )


def test_only_one_of_dump_and_fabric_file_can_be_standard_input(arena: Run):
    code, _out, err = arena("plan", "mpi", *gang(2), "--state", "-", "--fabric", "-", "c")
    assert code == 2
    assert err == "error: --fabric and --state cannot both be standard input\n"


@pytest.mark.parametrize("verb", ["plan", "submit"])
def test_the_local_engine_refuses_a_fabric_file(arena: Run, net: str, verb: str):
    code, _out, err = arena(
        verb, "mpi", *gang(2), "--backend=local", "--emulate=dgx-1-v100:2", "--fabric", net, "c"
    )
    assert code == 2
    assert err.startswith("error: --fabric is not for the local engine\n")


@pytest.mark.parametrize("more", ["", "software: [{plugin: tcpx}]"])
def test_a_profile_says_what_holds_on_all_nodes_of_a_site(
    arena: Run, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str
):
    """Beside a fabric file, too: no P2P by the profile, and its plug-in instead of the file's."""
    settings, file = tmp_path / "config.toml", tmp_path / "net.yaml"
    settings.write_text('[profile.lab.submit]\nno-p2p = true\nplugin = "efa"\n')
    file.write_text(more)
    monkeypatch.setenv("ARENA_TOPO_SETTINGS", str(settings))
    beside = ("--state", state, *(("--fabric", str(file)) if more else ()))
    usual, _err = planned(arena, 1, *beside)
    there, _err = planned(arena, 1, *beside, "--profile", "lab")
    assert usual["bandwidth"]["regime"] in {"nvls", "nvswitch-ring"}
    assert there["bandwidth"]["regime"] == "host-staged"
    flags, _err = planned(arena, 1, *beside, "--no-p2p", "--plugin", "efa")
    assert flags["bandwidth"] == there["bandwidth"]


def test_the_local_engine_leaves_out_the_network_of_a_settings_file(
    arena: Run, state: str, net: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    settings = tmp_path / "config.toml"
    settings.write_text(f'[submit]\nfabric = "{net}"\nno-gdr = true\n')
    monkeypatch.setenv("ARENA_TOPO_SETTINGS", str(settings))
    _plan, err = planned(arena, 1, "--backend=local", "--emulate=dgx-1-v100")
    told = f"note: the network in {settings} [submit] is left out: it is not for the local engine\n"
    assert told in err
    assert planned(arena, 2, "--state", state)[0]["tier"] == "rack"


@pytest.mark.parametrize("setting", ['fabric = "/nowhere/net.yaml"', 'calibration = ["lab"]'])
def test_the_local_engine_does_not_even_read_the_network_of_a_settings_file(
    arena: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
):
    """What it names is perhaps on another machine, or in a cluster."""
    settings = tmp_path / "config.toml"
    settings.write_text(f"[submit]\n{setting}\n")
    monkeypatch.setenv("ARENA_TOPO_SETTINGS", str(settings))
    local = ("--backend=local", "--emulate=dgx-1-v100")
    _plan, err = planned(arena, 1, *local)
    assert f"note: the network in {settings} [submit] is left out" in err
    code, _out, err = arena("plan", "mpi", *gang(1), *local, "--no-gdr", "c")
    assert code == 2
    assert "\nerror: --no-p2p, --no-gdr, --plugin or --calibration is not for the local" in err


def test_the_local_engine_refuses_facts_of_a_site(arena: Run):
    code, _out, err = arena(
        "plan", "mpi", *gang(2), "--backend=local", "--emulate=dgx-1-v100:2", "--no-gdr", "c"
    )
    assert code == 2
    assert err.startswith(
        "error: --no-p2p, --no-gdr, --plugin or --calibration is not for the local engine\n"
    )


def test_a_live_cluster_is_placed_on_by_the_fabric_file(arena: Run, net: str, tmp_path: Path):
    api = FakeApi()
    try:
        for one in nodes():
            api.add(one)
        config = kubeconfig(tmp_path / "config", api.url)
        plan, _err = planned(arena, 2, "--kubeconfig", config, "--fabric", net)
        assert (plan["nodes"], plan["tier"]) == (["gpu-0", "gpu-8"], "rack")
        with FakeCluster(api).running():
            code, _out, err = arena(
                "submit", "mpi", *gang(2), "--kubeconfig", config, "--fabric", net, "c"
            )
        assert code == 0
        assert "limited by TCP between 2 nodes within one rack" in err
    finally:
        api.close()


def test_a_file_without_levels_leaves_them_to_the_topology_of_a_live_cluster(
    arena: Run, tmp_path: Path
):
    api = FakeApi()
    api.kueue, api.topologies = ["v1beta1"], ["v1beta1"]
    levels = [{"nodeLabel": "example.com/row"}, {"nodeLabel": "example.com/rack"}]
    try:
        for one in nodes():
            api.add(one)
        api.add(
            {
                "apiVersion": "kueue.x-k8s.io/v1beta1",
                "kind": "Topology",
                "metadata": {"name": "default"},
                "spec": {"levels": levels},
            }
        )
        cluster = ("--kubeconfig", kubeconfig(tmp_path / "config", api.url), "-o", "json")
        file = tmp_path / "site.yaml"
        file.write_text("software: [{gdr: false}]")
        for more in ((), ("--fabric", str(file))):
            code, out, err = arena("topology", "show", *cluster, *more)
            assert code == 0, err
            assert [one["name"] for one in json.loads(out)["tiers"]] == ["row", "rack"]
    finally:
        api.close()


def test_topology_show_draws_the_levels_of_the_fabric_file(arena: Run, state: str, net: str):
    code, out, err = arena("topology", "show", "--state", state, "--fabric", net, "-o", "json")
    assert code == 0, err
    shown = json.loads(out)
    assert [one["name"] for one in shown["tiers"]] == ["row", "rack"]
    assert shown["beyondGBps"] == 3.1
