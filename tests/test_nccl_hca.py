"""`--nccl-hca`: NCCL uses the NICs nearest to the GPUs of the job, where the names are sure."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from test_nccl_debug import SHELLS

from arena_topo import cli
from arena_topo.topology import published
from arena_topo.topology.nvidia import parse_topo

CAPTURE = """\
        GPU0  GPU1  GPU2  GPU3  mlx5_0  mlx5_1  mlx5_2
GPU0     X    NV2   SYS   SYS   PIX     SYS     SYS
GPU1    NV2    X    SYS   SYS   PIX     SYS     SYS
GPU2    SYS   SYS    X    NV2   SYS     PIX     SYS
GPU3    SYS   SYS   NV2    X    SYS     PIX     SYS
mlx5_0  PIX   PIX   SYS   SYS    X      SYS     SYS
mlx5_1  SYS   SYS   PIX   PIX   SYS      X      SYS
mlx5_2  SYS   SYS   SYS   SYS   SYS     SYS      X
"""
"""Four GPUs, a NIC beside each two of them, and one that is near to none."""

WHOLE = ("--workers=2", "--gpus=4", "--rdma")
OURS = {
    "labels": {"arena-topo.io/topology": "true"},
    "taints": [{"key": "arena-topo.io/topology", "effect": "NoSchedule"}],
}
"""What makes a node one on which arena-topo shows GPUs of its choice to containers."""


def node(name: str, capture: str = CAPTURE, *, meta: Any = None, **more: str) -> list[Any]:
    """A node with four GPUs and what was published of it."""
    offers = {"cpu": "96", "memory": "1Ti", "nvidia.com/gpu": "4", "rdma/hca": "63", **more}
    meta = meta or {}
    machine = parse_topo(capture, name=name, model="V100")
    return [
        {
            "kind": "Node",
            "metadata": {"name": name, "labels": meta.get("labels", {})},
            "spec": {"taints": meta.get("taints", [])},
            "status": {"capacity": offers, "allocatable": offers},
        },
        published.config_map(machine, machine.everything),
    ]


@pytest.fixture
def arena(capfd, tmp_path: Path):
    """Run a command line on a cluster; (exit code, stdout, stderr)."""

    def run(items: list[Any], *words: str) -> tuple[int, str, str]:
        state = tmp_path / "state.json"
        state.write_text(json.dumps({"kind": "List", "items": items}), encoding="utf-8")
        capfd.readouterr()
        code = cli.run([*words[:2], f"--state={state}", "--gputopology", "--nccl-hca", *words[2:]])
        return code, *capfd.readouterr()

    return run


@pytest.fixture
def told(arena):
    """The NICs that a plan has NCCL use, and the note on it."""

    def run(items: list[Any], *words: str) -> tuple[list[str], str]:
        code, out, _err = arena(items, "plan", "mpi", *words, "-o", "json")
        assert code == 0
        said = json.loads(out)
        notes = [one for one in said["notes"] if one.startswith("--nccl-hca: ")]
        return said["ncclHca"], "".join(notes).removeprefix("--nccl-hca: NCCL_IB_HCA is not set: ")

    return run


TWO = [*node("a"), *node("b")]


def worker(objects: dict[str, Any]) -> dict[str, Any]:
    (job,) = (one for one in objects["items"] if one["kind"] == "MPIJob")
    return job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]


def submitted(arena, *words: str) -> dict[str, Any]:
    """The worker template that `submit` would create on whole nodes."""
    line = ("--name=j", "--image=i", *WHOLE, "--dry-run=client", "-o=json", *words)
    code, out, _err = arena(TWO, "submit", "mpi", *line)
    assert code == 0
    return worker(json.loads(out))


def hca(template: dict[str, Any]) -> list[Any]:
    (container,) = template["spec"]["containers"]
    return [one for one in container["env"] if one["name"] == "NCCL_IB_HCA"]


# ---------------------------------------------------------------- where the names are certain


def test_the_workers_read_the_nics_nearest_to_their_gpus_by_whole_name(arena):
    template = submitted(arena, "mpirun train")
    path = "metadata.annotations['arena-topo.io/nccl-hca']"
    assert hca(template) == [
        {"name": "NCCL_IB_HCA", "valueFrom": {"fieldRef": {"fieldPath": path}}}
    ]
    assert template["metadata"]["annotations"]["arena-topo.io/nccl-hca"] == "=mlx5_0,mlx5_1"


def test_the_plan_says_which(arena, told):
    _code, out, err = arena(TWO, "plan", "mpi", *WHOLE)
    line = "NICs for NCCL: mlx5_0, mlx5_1, those nearest to the GPUs (NCCL_IB_HCA)\n"
    assert out.endswith(line)
    assert "--nccl-hca" not in err
    assert told(TWO, *WHOLE) == (["mlx5_0", "mlx5_1"], "")
    assert told(TWO, "--nccl-hca=false", *WHOLE) == ([], "")


def test_nics_of_gpus_that_the_job_has_not_are_left_out(told):
    ours = [*node("a", meta=OURS), *node("b", meta=OURS)]
    names, why = told(ours, "--workers=2", "--gpus=2", "--max-nodes=2", "--hostNetwork")
    assert (names, why) == (["mlx5_0"], "")


# ---------------------------------------------------------------- where they are not


OTHER = CAPTURE.replace("mlx5_1", "mlx5_9")
NO_NICS = "\n".join(line[:31] for line in CAPTURE.splitlines()[:5])
NAMELESS = CAPTURE.replace("mlx5_", "NIC")
REFUSED: dict[str, tuple[list[Any], tuple[str, ...], str]] = {
    "no-nic-in-the-pods": (
        TWO,
        ("--workers=2", "--gpus=4"),
        "the pods are given no NIC: add --rdma, --device rdma/NAME=1 or --hostNetwork",
    ),
    "nics-one-by-one": (
        [*node("a", **{"nvidia.com/hostdev": "4"}), *node("b", **{"nvidia.com/hostdev": "4"})],
        ("--workers=2", "--gpus=4", "--device=nvidia.com/hostdev=1"),
        "which of its NICs a node gives to each pod as nvidia.com/hostdev is not known before",
    ),
    "the-kubelet-picks": (
        TWO,
        ("--workers=4", "--gpus=2", "--rdma"),
        "the workers may get other GPUs than planned (guarantee node)",
    ),
    "one-host": (TWO, ("--workers=1", "--gpus=4", "--rdma"), "all GPUs are in one host"),
    "other-names": (
        [*node("a"), *node("b", OTHER)],
        WHOLE,
        "the NICs nearest to the GPUs are not called the same on all nodes, and all workers share",
    ),
    "no-hcas": (
        [*node("a", NAMELESS), *node("b", NAMELESS)],
        WHOLE,
        "NIC0 of node a is no name of an HCA, such as mlx5_0",
    ),
    "no-nics": (
        [*node("a", NO_NICS), *node("b", NO_NICS)],
        WHOLE,
        "the NICs of node a are not known",
    ),
    "env": (TWO, (*WHOLE, "--env=NCCL_IB_HCA=mlx5_7"), "the job sets it itself"),
    "command": (
        TWO,
        (*WHOLE, "--name=j", "--image=i", "mpirun -x NCCL_IB_HCA=mlx5_7 train"),
        "the job sets it itself",
    ),
}


@pytest.mark.parametrize(("items", "words", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_nothing_is_named_where_it_is_not_certain_and_the_plan_says_why(
    told, items: list[Any], words: tuple[str, ...], why: str
):
    names, said = told(items, *words)
    assert names == []
    assert said.startswith(why)


def test_assumed_nics_are_not_named(told):
    offers = {"cpu": "96", "memory": "1Ti", "nvidia.com/gpu": "8", "rdma/hca": "8"}
    board = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"}
    items = [
        {
            "kind": "Node",
            "metadata": {"name": name, "labels": board},
            "status": {"capacity": offers, "allocatable": offers},
        }
        for name in "ab"
    ]
    names, why = told(items, "--workers=2", "--gpus=8", "--rdma")
    assert (names, why) == ([], "the NICs of node a are only assumed: machines with 8 x H100")


def test_what_the_user_sets_is_what_the_workers_have(arena):
    template = submitted(arena, "--env=NCCL_IB_HCA=mlx5_7", "mpirun train")
    assert hca(template) == [{"name": "NCCL_IB_HCA", "value": "mlx5_7"}]
    assert "arena-topo.io/nccl-hca" not in template["metadata"]["annotations"]


def test_it_needs_a_placement(capfd):
    given = ("--name=a", "--image=i", "--gpus=1", "--nccl-hca", "--dry-run", "true")
    assert cli.run(["submit", "mpi", *given]) == 2
    assert "--nccl-hca needs --gputopology" in capfd.readouterr().err


# ---------------------------------------------------------------- ranks that sshd starts


def started(template: dict[str, Any], shell: list[str], folder: Path, **has: Any) -> list[str]:
    """What the workers' sshd is started with; `hca` is the variable, `knows` if it has SetEnv."""
    (container,) = template["spec"]["containers"]
    _sh, option, script = container["command"]
    sshd = folder / "sshd"
    refuse = "" if has.get("knows", True) else 'case "$*" in *SetEnv*) exit 255 ;; esac\n'
    sshd.write_text(
        f'#!/bin/sh\n{refuse}case "$1" in -t) exit 0 ;; esac\nprintf "%s\\n" "$@"\n',
        encoding="utf-8",
    )
    sshd.chmod(0o755)
    script = script.replace("/usr/sbin/sshd", str(sshd))
    env = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    done = subprocess.run(
        [*shell, option, script.replace("/etc/nccl.conf", str(folder / "nccl.conf"))],
        env={"PATH": os.environ["PATH"], **env, **has.get("env", {})},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


NAMED = {"env": {"NCCL_IB_HCA": "=mlx5_0,mlx5_1"}}


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_ranks_hear_of_the_nics_whatever_sshd_knows(arena, shell: list[str], tmp_path: Path):
    template = submitted(arena, "mpirun train")
    said = started(template, shell, tmp_path, **NAMED)
    assert said == ["-De", "-o", "SetEnv=NCCL_IB_HCA==mlx5_0,mlx5_1"]
    assert not (tmp_path / "nccl.conf").exists()
    assert started(template, shell, tmp_path, knows=False, **NAMED) == ["-De"]
    assert (tmp_path / "nccl.conf").read_text() == "\nNCCL_IB_HCA==mlx5_0,mlx5_1\n"


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_without_names_sshd_runs_as_it_would_without_the_flag(
    arena, shell: list[str], tmp_path: Path
):
    template = submitted(arena, "mpirun train")
    assert started(template, shell, tmp_path) == ["-De"]
    assert not (tmp_path / "nccl.conf").exists()


def test_ranks_hear_of_the_nics_beside_the_wish_for_lines(arena, tmp_path: Path):
    template = submitted(arena, "--nccl-debug", "mpirun train")
    *_, said = started(template, ["sh"], tmp_path, **NAMED)
    assert said.startswith("SetEnv=NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=")
    assert said.endswith(" NCCL_IB_HCA==mlx5_0,mlx5_1")
    *_, said = started(template, ["sh"], tmp_path)
    assert "NCCL_IB_HCA" not in said
