"""The commands `top node` and `top job`: a command line in; exact stdout and exit code out."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import program
import pytest
import yaml
from arena_nodes import asking, document, mixed, screen, seen
from fake_api import FakeApi, kubeconfig
from fake_terminal import Running
from kube_objects import H100, group, node, pod
from worlds import KubernetesWorld

from arena_topo import cli
from arena_topo.cli import refresh
from arena_topo.cli.console import Console
from arena_topo.clusters import view
from arena_topo.clusters.records import MEMORY_GIVEN
from arena_topo.engines import Options
from arena_topo.engines.kubernetes import engine
from arena_topo.topology import presets, published


@pytest.fixture
def dump(tmp_path: Path) -> str:
    path = tmp_path / "state.json"
    path.write_text(json.dumps({"kind": "List", "items": mixed()}))
    return str(path)


def run(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capfd.readouterr()
    code = cli.run(words)
    return code, *capfd.readouterr()


def test_a_dump_can_be_looked_at(dump: str, capfd: pytest.CaptureFixture[str]):
    assert run(capfd, "top", "node", f"--state={dump}") == (0, screen("top-node-mixed.txt"), "")


def test_documents_of_a_dump(dump: str, capfd: pytest.CaptureFixture[str]):
    code, out, _ = run(capfd, "top", "node", f"--state={dump}", "-d", "-o=json")
    assert code == 0
    assert out == screen("top-node.json")
    code, out, _ = run(capfd, "top", "node", f"--state={dump}", "-o", "yaml")
    assert yaml.safe_load(out) == document("top-node.json")


@pytest.mark.parametrize("odd", [b'"\xff"', b"1" + b"0" * 5000], ids=["text", "number"])
def test_invalid_unread_fields_of_a_pod_do_not_hide_its_gpus(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], odd: bytes
):
    node = {
        "kind": "Node",
        "metadata": {"name": "n"},
        "status": {"allocatable": {"nvidia.com/gpu": "8"}},
    }
    asks = {"resources": {"limits": {"nvidia.com/gpu": 3}}}
    pod = {
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "team"},
        "spec": {"nodeName": "n", "containers": [asks]},
        "odd": "ODD",
    }
    path = tmp_path / "state.json"
    path.write_bytes(json.dumps([node, pod]).encode().replace(b'"ODD"', odd))
    code, out, _ = run(capfd, "top", "node", f"--state={path}", "-d")
    assert code == 0
    assert "  Allocated GPUs: 3\n" in out


@pytest.fixture
def broken_gpus(tmp_path: Path) -> str:
    """A dump of a node of 8 GPUs of which the device plugin offers 6, and which nobody uses."""
    short = node("h100-0", labels={"nvidia.com/gpu.product": H100})
    short["status"]["allocatable"] = {**short["status"]["allocatable"], "nvidia.com/gpu": "6"}
    path = tmp_path / "broken.json"
    path.write_text(json.dumps([short]))
    return str(path)


def states(out: str) -> list[list[str]]:
    """STATUS and HEALTHY of each GPU of a node."""
    table = out.partition("HEALTHY\n")[2].splitlines()
    return [line.split()[1:] for line in table if line.startswith("  GPU")]


def test_broken_gpus_whose_indexes_nobody_knows_are_unhealthy_and_not_in_use(
    broken_gpus: str, capfd: pytest.CaptureFixture[str]
):
    _, out, _ = run(capfd, "top", "node", "-d", f"--state={broken_gpus}")
    assert states(out) == [["idle", "unknown"]] * 8
    assert "  2 GPUs are unhealthy; it is not reported which.\n" in out
    assert "in use" not in out
    assert ("  Allocated GPUs: 0\n" in out, "  Unhealthy GPUs: 2\n" in out) == (True, True)
    _, out, _ = run(capfd, "top", "node", f"--state={broken_gpus}", "-o=json")
    [value] = json.loads(out)["gpuTopologyNodes"]
    assert {one["healthy"] for one in value["devices"]} == {None}
    assert (value["hiddenGPUs"], value["unhealthyGPUs"]) == (0, 2)


def test_of_a_full_node_with_a_broken_gpu_no_gpu_is_called_healthy(
    broken_gpus: str, capfd: pytest.CaptureFixture[str]
):
    objects = [*json.loads(Path(broken_gpus).read_text()), pod("all", on="h100-0", gpus=6)]
    Path(broken_gpus).write_text(json.dumps(objects))
    _, out, _ = run(capfd, "top", "node", "-d", f"--state={broken_gpus}")
    assert states(out) == [["unknown", "unknown"]] * 8
    assert "  6 of the unknown GPUs are in use; it is not reported which.\n" in out
    assert "  2 GPUs are unhealthy; it is not reported which.\n" in out


def test_a_node_whose_device_plugin_offers_no_gpu_has_unhealthy_gpus_alone(
    broken_gpus: str, capfd: pytest.CaptureFixture[str]
):
    [gone] = json.loads(Path(broken_gpus).read_text())
    gone["status"]["allocatable"]["nvidia.com/gpu"] = "0"
    Path(broken_gpus).write_text(json.dumps([gone]))
    _, out, _ = run(capfd, "top", "node", "-d", f"--state={broken_gpus}")
    assert states(out) == [["idle", "false"]] * 8


@pytest.mark.parametrize(
    "case",
    [
        (0, 8, "too few healthy GPUs", "or when h100-0 is healthy"),
        (3, 8, "too few healthy GPUs", "or when h100-0 is free of other jobs and healthy"),
        (3, 5, "not enough free GPUs", "or when 2 more GPUs of node h100-0 are free"),
    ],
)
def test_broken_gpus_are_not_waited_for(
    case: tuple[int, int, str, str], broken_gpus: str, capfd: pytest.CaptureFixture[str]
):
    busy, gpus, why, advice = case
    objects = [*json.loads(Path(broken_gpus).read_text()), pod("other", on="h100-0", gpus=busy)]
    Path(broken_gpus).write_text(json.dumps(objects))
    words = (f"--gpus={gpus}", "--workers=1", "--gang", "--gputopology")
    code, _, err = run(capfd, "plan", "mpi", f"--state={broken_gpus}", *words)
    assert code == 3
    assert f"  why:  1 node (h100-0): {why}\n" in err
    assert err.splitlines()[-1].endswith(advice)


def test_fragmentation_promises_what_plan_says_of_the_same_gangs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    # The NICs of such a machine are assumed from its product: nobody has reported them.
    path = tmp_path / "idle.json"
    product = {"nvidia.com/gpu.product": "Tesla-V100-SXM2-32GB"}
    path.write_text(json.dumps([node(name, labels=product) for name in ("a", "b")]))
    _, out, _ = run(capfd, "top", "node", "--frag", f"--state={path}", "-o=json")
    [kind] = json.loads(out)["kinds"]
    assert [gang["size"] for gang in kind["gangs"]] == [1, 2, 4, 8, 16]

    def planned(workers: int, gpus: int) -> dict[str, Any]:
        words = (f"--workers={workers}", f"--gpus={gpus}", "--gputopology", "-o=json")
        _, out, _ = run(capfd, "plan", "mpi", f"--state={path}", *words)
        return dict(json.loads(out))

    for gang in kind["gangs"][1:]:
        compact = planned(gang["workers"], gang["gpusPerWorker"])
        speed = pytest.approx(compact["busBandwidthGBps"], rel=0.01)
        assert (gang["fullGBps"], gang["bestGBps"]) == (speed, speed)
        assert gang["usableGBps"] == pytest.approx(compact["usableGBps"], rel=0.01)
    _, out, _ = run(capfd, "top", "node", "--frag", f"--state={path}")
    assert "9.97 GB/s on 1 node, 86.4 planned\n" in out
    assert "full speed over TCP, as in plan" in out


def test_modes_and_names_choose_nodes(dump: str, capfd: pytest.CaptureFixture[str]):
    _, out, _ = run(capfd, "top", "node", f"--state={dump}", "-m=t", "-o", "json")
    value = json.loads(out)
    assert [one["name"] for one in value["gpuTopologyNodes"]] == ["node-a"]
    assert value["normalNodes"] == value["gpuExclusiveNodes"] == []
    _, out, _ = run(capfd, "top", "node", "m1", "node-b", f"--state={dump}")
    assert [line.split()[0] for line in out.splitlines()] == ["NAME", "m1", "node-b"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("nod-a",), 1, ("not found nodes", "no node nod-a", "did you mean node-a?")),
        (("-m", "share"), 1, ("not found nodes", "there is exclusive, none, topology")),
        (("-m", "x"), 2, ("unknown node type,only supports:[n(none)|e(exclusive)",)),
        (("--frag", "-d"), 2, ("--frag and --details exclude each other",)),
        (("--refresh",), 2, ("--state and --refresh exclude each other",)),
        (("--metric",), 2, ("--state and --metric exclude each other",)),
        (("-o", "name"), 2, ("--output is invalid",)),
    ],
)
def test_what_cannot_be_shown_is_refused(
    words: tuple[str, ...],
    code: int,
    said: tuple[str, ...],
    dump: str,
    capfd: pytest.CaptureFixture[str],
):
    found, out, err = run(capfd, "top", "node", f"--state={dump}", *words)
    assert (found, out) == (code, "")
    assert all(one in err for one in said), err


def test_fragmentation_of_a_dump_by_kind(dump: str, capfd: pytest.CaptureFixture[str]):
    code, out, _ = run(capfd, "top", "node", "--frag", f"--state={dump}")
    assert (code, out) == (0, screen("top-node-frag.txt"))
    _, out, _ = run(capfd, "top", "node", "--frag", "node-a", f"--state={dump}", "-o", "json")
    [kind] = json.loads(out)["kinds"]
    assert (kind["totalGPUs"], kind["freeGPUs"]) == (4, 2)


LOCAL = ("--backend", "local", "--emulate", "dgx-1-v100:2")


def test_emulated_machines_are_marked_everywhere(capfd: pytest.CaptureFixture[str]):
    for more in ((), ("-d",), ("--frag",)):
        code, out, err = run(capfd, *LOCAL, "top", "node", *more)
        assert code == 0
        # What programs read of arena's tables holds nothing else.
        own = more == ("--frag",)
        assert ("EMULATED" in out, "EMULATED" in err) == (own, not own)
    _, out, err = run(capfd, *LOCAL, "top", "node", "-o", "json")
    assert err == ""
    assert all(one["emulated"] for one in json.loads(out)["gpuTopologyNodes"])
    _, out, _ = run(capfd, *LOCAL, "top", "node", "--frag", "-o", "json")
    assert json.loads(out)["emulated"]


def test_without_jobs_the_table_of_jobs_is_a_header_and_a_total(capfd: pytest.CaptureFixture[str]):
    code, out, _ = run(capfd, *LOCAL, "top", "job")
    assert code == 0
    assert out.endswith("\n\nTotal Allocated/Requested GPUs of Training Jobs: 0/0\n")
    assert run(capfd, *LOCAL, "top", "job", "-o", "json")[1] == "[]"


def test_a_missing_job_is_reported_in_arenas_words(capfd: pytest.CaptureFixture[str]):
    code, _, err = run(capfd, *LOCAL, "top", "job", "nope")
    assert code == 1
    assert "Not found training job nope in namespace default" in err


def test_refreshing_jobs_needs_the_name_of_one(capfd: pytest.CaptureFixture[str]):
    code, _, err = run(capfd, *LOCAL, "top", "job", "-r")
    assert code == 2
    assert "--refresh needs JOB" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-i", "demo-worker-0"), "--instance needs JOB"),
        (("demo", "-A"), "--all-namespaces and JOB exclude each other"),
        (("demo", "-A", "-n", "zzz"), "--all-namespaces and JOB exclude each other"),
    ],
)
def test_flags_that_would_mean_nothing_to_top_job_are_refused(
    words: tuple[str, ...], said: str, capfd: pytest.CaptureFixture[str]
):
    code, out, err = run(capfd, *LOCAL, "top", "job", *words)
    assert (code, out) == (2, "")
    assert said in err


def test_a_job_whose_name_is_mistyped_is_guessed(
    api: FakeApi, configured: tuple[str, ...], capfd: pytest.CaptureFixture[str]
):
    world = KubernetesWorld(api, engine.open_kubernetes(Options(kubeconfig=configured[1])))
    world.backend.apply(world.plan(world.job("resnet", workers=1, gpus=1, gputopology=False)))
    code, _, err = run(capfd, *configured, "top", "job", "resnit")
    assert code == 1
    assert "did you mean resnet?" in err


def test_a_refreshed_screen_in_a_pipe_is_repeated_with_arenas_line_of_time(tmp_path: Path):
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    pipe = {"stdout": subprocess.PIPE, "text": True}
    with program.start([*LOCAL, "top", "node", "-r"], env=environment, **pipe) as process:
        assert process.stdout is not None
        lines = []
        while len([one for one in lines if one.startswith("-" * 25 + " 20")]) < 2:
            lines.append(process.stdout.readline())
            assert lines[-1], "it ended"
        process.send_signal(2)
        assert process.wait(timeout=20) in {0, 130}
    # What there is to say once is said before, elsewhere.
    half = len(lines) // 2
    assert lines[: half - 1] == lines[half:-1]
    assert lines[-1].endswith(" " + "-" * 37 + "\n")


def test_refreshing_ends_when_its_time_is_over(capfd: pytest.CaptureFixture[str]):
    code, out, err = run(capfd, *LOCAL, "top", "node", "-r", "--timeout", "1s", "-o", "json")
    assert code == 6
    assert "--timeout" in err
    assert json.loads(out.splitlines()[0])["gpuTopologyNodes"]


@pytest.mark.parametrize("words", [("node",), ("job", "demo")])
def test_refreshing_ends_in_time_without_an_answer(
    words: tuple[str, ...],
    api: FakeApi,
    configured: tuple[str, ...],
    capfd: pytest.CaptureFixture[str],
):
    api.fail(".", silent=True, times=99)
    code, out, err = run(capfd, *configured, "top", *words, "-r", "--timeout", "1s")
    assert (code, out) == (6, "")
    assert "--timeout is over" in err


def test_the_changing_parts_of_a_node_fit_a_terminal_of_24_rows(tmp_path: Path):
    environment = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path), "TERM": "xterm"}
    words = ["--backend=local", "--emulate=dgx-1-v100:1", "top", "node", "-d", "-r"]
    shown = Running(words, environment, columns=100, rows=24)
    text = shown.until("Unhealthy GPUs: 0")
    shown.during(0.5)
    shown.program.sendintr()
    assert shown.end() == 130
    assert text.count("Name: ") == 1
    assert text.count("GPU7   idle") == 1
    assert "more" not in text
    assert "LinkTypeMatrix:" not in text


def test_a_note_is_shown_once_while_refreshing(capfd: pytest.CaptureFixture[str]):
    heard = refresh.print_once(Console())
    heard("nothing is measured")
    heard("nothing is measured")
    assert capfd.readouterr().err == "note: nothing is measured\n"


# ---------------------------------------------------------------- a cluster


@pytest.fixture
def configured(api: FakeApi, tmp_path: Path) -> tuple[str, ...]:
    for one in mixed():
        api.add(one)
    return "--kubeconfig", kubeconfig(tmp_path / "config", api.url, user={"username": "alice"})


def test_a_cluster_and_its_dump_look_the_same(
    configured: tuple[str, ...], capfd: pytest.CaptureFixture[str]
):
    code, out, err = run(capfd, *configured, "top", "node")
    assert (code, out, err) == (0, screen("top-node-mixed.txt"), "")
    assert run(capfd, *configured, "top", "node", "-o", "json")[1] == screen("top-node.json")


def test_a_user_who_may_not_read_nodes_gets_the_missing_right(
    api: FakeApi, configured: tuple[str, ...], capfd: pytest.CaptureFixture[str]
):
    api.deny("list nodes")
    code, out, err = run(capfd, *configured, "top", "node")
    assert (code, out) == (4, "")
    rule = '{apiGroups: [""], resources: ["nodes", "pods"], verbs: ["list"]}'
    assert f"ask for this rule in a ClusterRole: {rule}; or for the controller" in err


def test_a_user_who_may_not_read_nodes_gets_the_view_of_the_controller(
    api: FakeApi, configured: tuple[str, ...], capfd: pytest.CaptureFixture[str]
):
    machine = presets.preset_machine("dgx-1-v100", "node-x")
    objects = [
        node("node-x"),
        published.config_map(machine, machine.everything),
        pod("p", on="node-x", gpus=3),
    ]
    encoded = view.encode(seen(*objects).cluster, observed_at=time.time() - 60)
    name, namespace = view.VIEW_NAME, view.VIEW_NAMESPACE
    api.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    api.add({"kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, **encoded})
    api.deny("list nodes")
    code, out, err = run(capfd, *configured, "top", "node")
    assert code == 0
    assert out.splitlines()[1].split() == ["node-x", "N/A", "<none>", "Ready", "8", "3"]
    assert "the cluster is shown as it was" in err
    code, out, _ = run(capfd, *configured, "top", "node", "-o", "json")
    [found] = json.loads(out)["gpuTopologyNodes"]
    assert (found["allocatedGPUs"], found["instances"]) == (3, [])
    assert run(capfd, *configured, "top", "node", "--frag")[0] == 0


@pytest.mark.parametrize(
    "device",
    ["x,y", "\u00b2", "9" * 5000, '{"allocatedGPUs": {"0": 5}}', '{"allocatedGPUs": {"0": null}}'],
    ids=["words", "power", "digits", "number", "null"],
)
def test_a_device_without_a_number_is_a_note_and_no_traceback(
    device: str, api: FakeApi, configured: tuple[str, ...], capfd: pytest.CaptureFixture[str]
):
    api.add(asking("odd", "node-a", 1, annotations=group(device)))
    code, out, err = run(capfd, *configured, "top", "node", "-d", "node-a")
    assert code == 0
    assert "odd" in out
    assert "makes no sense" in err


@pytest.mark.parametrize("said", ['{"0": {"0": 1e999}}', "[" * 100_000], ids=["endless", "deep"])
def test_an_invalid_gpu_share_does_not_break_the_screen(
    said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    node = {
        "kind": "Node",
        "metadata": {"name": "n"},
        "status": {"allocatable": {"aliyun.com/gpu-mem": "32", "aliyun.com/gpu-count": "2"}},
    }
    asks = {"resources": {"limits": {"aliyun.com/gpu-mem": 4}}}
    pod = {
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "team", "annotations": {MEMORY_GIVEN: said}},
        "spec": {"nodeName": "n", "containers": [asks]},
    }
    dump = tmp_path / "state.json"
    dump.write_text(json.dumps([node, pod]))
    assert run(capfd, "top", "node", "-d", "--state", str(dump))[0] == 0
