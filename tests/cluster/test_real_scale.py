"""2,000 machines and 8,000 pods: how long commands take, beside kubectl's on the same objects."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import controlplane
import pytest
import real
from clusters import Live

pytestmark = pytest.mark.cluster

NODES, PODS = 2000, 8000
JOBS, WORKERS = 500, 16
CONDITIONS = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
IMAGES = 40
"""A node names some of its images: most of its bytes."""


def node(index: int) -> dict[str, Any]:
    """A machine with eight GPUs."""
    name = f"node-{index}"
    labels = {
        "kubernetes.io/hostname": name,
        "nvidia.com/gpu.product": real.PRODUCT,
        "nvidia.com/gpu.count": "8",
        **{f"feature.node.kubernetes.io/cpu-cpuid.F{number}": "true" for number in range(40)},
    }
    meta = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": node_status()}


def node_status() -> dict[str, Any]:
    """What its kubelet would say of it."""
    offers = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    conditions = [
        {
            "type": kind,
            "status": str(kind == "Ready"),
            "reason": "Simulated",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        for kind in CONDITIONS
    ]
    images = [
        {
            "names": [f"registry.example/team/image-{number}@sha256:{number:064x}"],
            "sizeBytes": 10**9,
        }
        for number in range(IMAGES)
    ]
    status = {"capacity": offers, "allocatable": offers, "conditions": conditions}
    return {**status, "images": images}


def job(index: int) -> dict[str, Any]:
    """A job of somebody else, which is suspended: its pods are written by hand."""
    template = {"spec": {"containers": [{"name": "mpi", "image": "theirs"}]}}
    return {
        "apiVersion": real.JOBS,
        "kind": "MPIJob",
        "metadata": {"name": f"job-{index}"},
        "spec": {
            "runPolicy": {"suspend": True},
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "template": template},
                "Worker": {"replicas": WORKERS, "template": template},
            },
        },
    }


def pod(index: int) -> dict[str, Any]:
    """A pod that is bound and holds a GPU; four are on a machine."""
    owner, worker = divmod(index, WORKERS)
    labels = {
        "training.kubeflow.org/operator-name": "mpi-operator",
        "training.kubeflow.org/job-name": f"other-{owner}",
        "training.kubeflow.org/job-role": "worker",
        "training.kubeflow.org/replica-index": str(worker),
    }
    container = {
        "name": "mpi",
        "image": "theirs",
        "env": [{"name": f"VARIABLE_{number}", "value": "x" * 40} for number in range(30)],
        "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "4", "memory": "16Gi"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"other-{owner}-worker-{worker}", "labels": labels},
        "spec": {"nodeName": f"node-{index % NODES}", "containers": [container]},
    }


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[real.Real]:
    """A control plane of its own, whose machines need no kubelets."""
    home = tmp_path_factory.mktemp("large")
    with controlplane.started(Path(real.PROGRAMS), steady=True) as plane:
        live = Live(str(plane.kubeconfig()), "default")
        filled(live)
        yield real.Real(live, home)


def filled(live: Live) -> None:
    """Create all nodes and pods, from eight threads."""
    own = threading.local()

    def hand() -> Live:
        if not hasattr(own, "live"):
            own.live = Live(live.config, "default")
        return own.live

    def made(path: str, body: Any) -> None:
        answer = hand().call("POST", path, body)
        assert answer.status < 300, answer.said

    def machine(index: int) -> None:
        made("/api/v1/nodes", node(index))

    def running(index: int) -> None:
        made("/api/v1/namespaces/default/pods", pod(index))

    def queued(index: int) -> None:
        made(f"/apis/{real.JOBS}/namespaces/default/mpijobs", job(index))

    with ThreadPoolExecutor(8) as many:
        for make, count in ((machine, NODES), (running, PODS), (queued, JOBS)):
            list(many.map(make, range(count)))


def seconds(call: Callable[[], object]) -> float:
    """How long something takes."""
    began = time.monotonic()
    call()
    return time.monotonic() - began


PLAN = ("plan", "mpi", "--name=big", "--image=fine", "--workers=64", "--gpus=4", "--gputopology")


def test_commands_answer_on_2000_machines_and_print_their_times_beside_those_of_kubectl(
    large: real.Real, capsys: pytest.CaptureFixture[str]
):
    def arena(*words: str) -> float:
        def run() -> None:
            done = large.arena(*words)
            assert done.code == 0, done.err

        return seconds(run)

    def kubectl(*words: str) -> float:
        return seconds(lambda: large.kubectl(*words))

    both = kubectl("get", "nodes,pods", "-A", "-o", "json")
    jobs = kubectl("get", "mpijobs,pods", "-A", "-o", "json")
    found = {
        "kubectl get nodes,pods -A -o json": both,
        "arena-topo plan mpi (64 workers x 4 GPUs)": arena(*PLAN, "mpirun true"),
        "arena-topo top node": arena("top", "node"),
        "kubectl get mpijobs,pods -A -o json": jobs,
        "kubectl get pods -A": kubectl("get", "pods", "-A"),
        "arena-topo list": arena("list"),
        "kubectl get mpijob job-7": kubectl("get", "mpijob", "job-7"),
        "arena-topo get job-7": arena("get", "job-7"),
    }
    with capsys.disabled():
        print(f"\n{NODES:,} nodes, {PODS:,} pods, {JOBS} MPIJobs; seconds:")
        for name, took in found.items():
            print(f"  {took:6.2f}  {name}")
