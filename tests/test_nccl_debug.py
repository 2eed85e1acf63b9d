"""`--nccl-debug`: NCCL is asked to speak, and ranks hear of it however they are started."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from arena_topo.job import EnvVar, MPIJob, PodShape
from arena_topo.manifests.render import build_plan
from arena_topo.manifests.versions import ApiVersion

SUBSYSTEMS = "INIT,BOOTSTRAP,ENV,GRAPH,NET"
SHELLS = [
    words
    for words in (["sh"], ["dash"], ["bash", "--posix"], ["busybox", "sh"])
    if shutil.which(words[0])
]


def worker(api: ApiVersion = ApiVersion.V2BETA1, **said: Any) -> dict[str, Any]:
    """The container of the workers of a job that asks for NCCL's lines."""
    usual: dict[str, Any] = {"command": "mpirun python train.py", "gpus": 1, "workers": 2}
    job = MPIJob(name="demo", image="horovod:0.20", nccl_debug=True, **(usual | said))
    made = build_plan(job, namespace="team-a", api=api, owner="USER", files={})
    spec = made.objects[0]["spec"]
    template = spec["mpiReplicaSpecs"]["Worker"]["template"] if "template" not in spec else None
    (container,) = (template or spec["template"])["spec"]["containers"]
    return container


def environment(container: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container["env"] if "value" in one}


def started(shell: list[str], folder: Path, *, knows: bool, **said: Any) -> list[str]:
    """What the worker's sshd is started with; `knows`: it is new enough for SetEnv."""
    container = worker(**said)
    _sh, option, script = container["command"]
    sshd = folder / "sshd"
    refuse = "" if knows else 'case "$*" in *SetEnv*) exit 255 ;; esac\n'
    sshd.write_text(
        f'#!/bin/sh\n{refuse}case "$1" in -t) exit 0 ;; esac\nprintf "%s\\n" "$@"\n',
        encoding="utf-8",
    )
    sshd.chmod(0o755)
    assert script.count("/usr/sbin/sshd") >= 1
    script = script.replace("/usr/sbin/sshd", str(sshd))
    done = subprocess.run(
        [*shell, option, script.replace("/etc/nccl.conf", str(folder / "nccl.conf"))],
        env={"PATH": os.environ["PATH"], **environment(container)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_sshd_hands_the_wish_on_to_the_ranks_that_it_starts(shell: list[str], tmp_path: Path):
    assert started(shell, tmp_path, knows=True) == [
        "-De",
        "-o",
        f"SetEnv=NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS={SUBSYSTEMS}",
    ]
    assert not (tmp_path / "nccl.conf").exists()


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_what_the_user_asks_of_nccl_is_what_ranks_are_told(shell: list[str], tmp_path: Path):
    asked = (EnvVar(key="NCCL_DEBUG", value="TRACE"), EnvVar(key="NCCL_DEBUG_SUBSYS", value="ALL"))
    *_, said = started(shell, tmp_path, knows=True, env=asked)
    assert said == "SetEnv=NCCL_DEBUG=TRACE NCCL_DEBUG_SUBSYS=ALL"


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_an_sshd_without_setenv_runs_and_ranks_find_the_wish_in_nccls_own_file(
    shell: list[str], tmp_path: Path
):
    """NCCL takes the first of two lines about one thing, so what the image says stands first."""
    (tmp_path / "nccl.conf").write_text("NCCL_IB_HCA=mlx5_0", encoding="utf-8")
    assert started(shell, tmp_path, knows=False) == ["-De"]
    assert (tmp_path / "nccl.conf").read_text(encoding="utf-8") == (
        f"NCCL_IB_HCA=mlx5_0\nNCCL_DEBUG=INFO\nNCCL_DEBUG_SUBSYS={SUBSYSTEMS}\n"
    )


def test_workers_that_share_tell_their_ranks_both_things(tmp_path: Path):
    *_, said = started(["sh"], tmp_path, knows=True, gputopology=True, pod_shape=PodShape.SHARED)
    assert said.startswith("SetEnv=NCCL_HOSTID=")
    assert said.endswith(f" NCCL_CUMEM_ENABLE=0 NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS={SUBSYSTEMS}")


@pytest.mark.parametrize("api", [ApiVersion.V1, ApiVersion.V1ALPHA1])
def test_ranks_that_are_started_by_kubectl_have_it_from_their_container(api: ApiVersion):
    container = worker(api)
    assert environment(container)["NCCL_DEBUG"] == "INFO"
    assert environment(container)["NCCL_DEBUG_SUBSYS"] == SUBSYSTEMS
    assert "sshd" not in str(container)
