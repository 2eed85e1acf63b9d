"""The worlds in which the pages of the documentation run, and what can happen in them.

local    no cluster is configured: the emulated machines of the local engine
cluster  four DGX-1 V100 whose topology agents have published, an MPI operator, the admission
         policies of `arena-topo install`
stock    the same machines and the MPI operator; nothing of arena-topo is installed
ack      the same machines as ACK labels them and publishes their topology; node-3 is ordinary
dra      the same machines, whose GPUs a DRA driver publishes
kueue    like cluster, in two racks that a Topology names, with Kueue: it admits what a page says
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from fake_api import FakeApi
from fake_cluster import FakeCluster
from fake_dra import device_class, resource_slice
from fake_resources import RESOURCES, rfc3339

from arena_topo.topology import presets, published

PRESET = "dgx-1-v100"
PRODUCT = "Tesla-V100-SXM2-32GB"
"""As NVIDIA's feature discovery labels these machines."""
RACK = "example.com/rack"
NODES = tuple(f"node-{index}" for index in range(4))
WORLDS = ("local", "cluster", "stock", "ack", "dra", "kueue")


class World:
    """Where a page runs; `env` is what its shell needs to know of it."""

    def __init__(self, cluster: FakeCluster | None = None) -> None:
        self.cluster = cluster
        self.env: dict[str, str] = {}

    def settle(self) -> None:
        """Wait until nothing changes any more: what is seen next is the same every time."""
        if self.cluster is not None:
            self.cluster.settle()

    def happens(self, words: list[str]) -> None:
        """Let something happen: the names are those of the methods of FakeCluster and Kueue.

        cordon NODE, uncordon NODE, lose NODE, restore NODE, evict POD, finish JOB CODE,
        image NAME missing|denied|SECONDS, pod NAME NODE GPUS, remove POD, quota GPUS, policies,
        admit JOB [LABEL=VALUE], kueue-evict JOB, say POD TEXT...
        """
        cluster = self.cluster
        if cluster is None:
            raise ValueError("nothing can be made to happen in the world `local`")
        if not (_to_machines(cluster, words) or _to_jobs(cluster, words)):
            raise ValueError(f"not one of:{(World.happens.__doc__ or '').split(':', 1)[1]}")


def _to_machines(cluster: FakeCluster, words: list[str]) -> bool:
    """Let something happen to a machine; False where these words say nothing of machines."""
    match words:
        case ["cordon", node]:
            cluster.cordon(node)
        case ["uncordon", node]:
            cluster.cordon(node, on=False)
        case ["lose", node]:
            cluster.lose(node)
        case ["restore", node]:
            cluster.restore(node)
        case ["evict", pod]:
            cluster.evict(pod)
        case ["image", name, fate]:
            cluster.images[name] = float(fate) if fate.isdigit() else fate
        case ["pod", name, node, gpus]:
            cluster.pod(name, node, int(gpus))
        case ["remove", pod]:
            with cluster.api.lock:
                cluster.api.remove(RESOURCES["pods"], "default", pod)
        case _:
            return False
    return True


def _to_jobs(cluster: FakeCluster, words: list[str]) -> bool:
    """Let something happen to jobs; False where these words say nothing of jobs."""
    match words:
        case ["finish", job, code]:
            cluster.finish(job, int(code))
        case ["quota", gpus]:
            with cluster.api.lock:
                if cluster.api.find("ResourceQuota", "gpu-quota", "default") is not None:
                    cluster.api.remove(RESOURCES["resourcequotas"], "default", "gpu-quota")
                cluster.quota(gpus=gpus)
        case ["policies"]:
            for thing in map(json.loads, _policies()):
                cluster.api.add(thing)
        case ["admit", job, *flavor] if cluster.kueue:
            chosen = {key: value for key, _, value in (one.partition("=") for one in flavor)}
            cluster.kueue.admit(job, selector=chosen)
        case ["kueue-evict", job] if cluster.kueue:
            cluster.kueue.evict(job)
        case ["say", pod, *text]:
            with cluster.api.lock:
                names = [one["metadata"]["name"] for one in cluster.api.all("Pod")]
            found = next(name for name in names if name.startswith(pod))
            cluster.api.write(found, " ".join(text), at=rfc3339(cluster.api.clock()))
        case _:
            return False
    return True


@contextmanager
def opened(name: str, home: Path) -> Iterator[World]:
    """A world, alive, whose kubeconfig is where kubectl would look for it."""
    if name == "local":
        yield World()
        return
    api = FakeApi()
    try:
        cluster = FakeCluster(api, kueue=name == "kueue")
        for node in NODES:
            _machine(cluster, node, name)
            with api.edit("Node", node) as thing:
                address = f"10.0.0.{NODES.index(node) + 1}"
                thing["status"]["addresses"] = [{"type": "InternalIP", "address": address}]
        api.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "mpi-operator"}})
        api.add(_operator())
        if name == "dra":
            api.add(device_class())
        if cluster.kueue is not None:
            api.topologies = [cluster.kueue.version]
            api.add(_topology(cluster.kueue.version))
        if name in {"cluster", "kueue"}:
            for thing in map(json.loads, _policies()):
                api.add(thing)
        config = home / ".kube" / "config"
        config.parent.mkdir()
        config.write_text(json.dumps(_kubeconfig(api.url)), encoding="utf-8")
        with cluster.running():
            yield World(cluster)
    finally:
        api.close()


def _machine(cluster: FakeCluster, node: str, world: str) -> None:
    api, machine = cluster.api, presets.preset_machine(PRESET, node)
    labels = {"nvidia.com/gpu.product": PRODUCT, "nvidia.com/gpu.count": str(len(machine.gpus))}
    if world == "kueue":
        labels[RACK] = f"rack-{NODES.index(node) // 2}"
    if world == "ack" and node == NODES[-1]:
        labels = {"aliyun.accelerator/nvidia_name": PRODUCT}
        cluster.node(node, len(machine.gpus), labels=labels)
    elif world == "ack":
        labels = {"aliyun.accelerator/nvidia_name": PRODUCT, published.SCHEDULE_LABEL: "topology"}
        cluster.node(node, 0, labels=labels, **{"aliyun.com/gpu": str(len(machine.gpus))})
        api.add(published.config_map(machine, machine.everything))
    elif world == "dra":
        cluster.node(node, 0, labels=labels)
        uuids = [f"GPU-{node}-{index}" for index in range(len(machine.gpus))]
        api.add(resource_slice(node, uuids, product=PRODUCT.replace("-", " ", 1)))
    else:
        cluster.node(node, len(machine.gpus), labels=labels)
        if world != "stock":
            api.add(published.config_map(machine, machine.everything))


def _operator() -> dict[str, Any]:
    container = {"name": "mpi-operator", "image": "mpioperator/mpi-operator:0.8.2"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "mpi-operator", "namespace": "mpi-operator"},
        "spec": {"template": {"spec": {"containers": [container]}}},
        "status": {"availableReplicas": 1, "readyReplicas": 1},
    }


def _topology(version: str) -> dict[str, Any]:
    levels = [{"nodeLabel": RACK}, {"nodeLabel": "kubernetes.io/hostname"}]
    return {
        "apiVersion": f"kueue.x-k8s.io/{version}",
        "kind": "Topology",
        "metadata": {"name": "racks"},
        "spec": {"levels": levels},
    }


@functools.cache
def _policies() -> tuple[str, ...]:
    """The admission policies that `arena-topo install` prints, and the namespace of its agents."""
    with tempfile.TemporaryDirectory() as home:
        line = [sys.executable, "-m", "arena_topo", "install"]
        image = "registry.example/arena-topo@sha256:" + "0" * 64
        asked = subprocess.run(
            [*line, "--image", image],
            env={"HOME": home, "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=True,
        )
    things: list[dict[str, Any]] = [one for one in yaml.safe_load_all(asked.stdout) if one]
    return tuple(
        json.dumps(one)
        for one in things
        if "AdmissionPolicy" in one["kind"] or one["kind"] == "Namespace"
    )


def _kubeconfig(url: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "training",
        "contexts": [{"name": "training", "context": {"cluster": "training", "user": "you"}}],
        "clusters": [{"name": "training", "cluster": {"server": url}}],
        "users": [{"name": "you", "user": {}}],
    }
