"""Nodes as arena's own examples have them, and what is compared with its screens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kube_objects import group, pod, records_of

from arena_topo.engines import occupancy
from arena_topo.engines.kubernetes.mpijob import pod_status
from arena_topo.engines.metrics import GpuSample
from arena_topo.engines.occupancy import NodeStatus, Occupancy

SCREENS = Path(__file__).parent / "screens"

LINKS = [
    ["N-A", "NV2", "NV1", "NV2"],
    ["NV2", "N-A", "NV2", "NV1"],
    ["NV1", "NV2", "N-A", "NV1"],
    ["NV2", "NV1", "NV1", "N-A"],
]
BANDWIDTHS = [
    [738.42, 96.44, 48.37, 96.19],
    [96.26, 744.05, 96.23, 48.36],
    [48.37, 96.24, 744.76, 48.37],
    [96.23, 48.37, 48.5, 744],
]
"""The matrices of arena's own example of a node (pkg/topnode/gputopology.go)."""


def screen(name: str) -> str:
    return (SCREENS / name).read_text(encoding="utf-8")


def document(name: str) -> Any:
    return json.loads(screen(name))


def addressed(name: str, ip: str, *, gpus: int = 0, resource: str = "nvidia.com/gpu", **more: Any):
    """A node with an address that offers so many GPUs, of which `allocatable` work."""
    works = more.pop("allocatable", gpus)
    offers = {"cpu": "32", "memory": "64Gi"}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": more.pop("labels", {})},
        "spec": more.pop("spec", {}),
        "status": {
            "addresses": [{"type": "InternalIP", "address": ip}],
            "conditions": [{"type": "Ready", "status": more.pop("ready", "True")}],
            "capacity": {**offers, **({resource: str(gpus)} if gpus else {}), **more},
            "allocatable": {**offers, **({resource: str(works)} if gpus else {}), **more},
        },
    }


ACK = {"ack.node.gpu.schedule": "topology"}


def arenas_node(name: str = "node-a", ip: str = "10.0.0.1", **more: Any) -> list[dict[str, Any]]:
    """Arena's example: four V100 whose links and bandwidths ACK publishes."""
    devices = more.pop("devices", dict.fromkeys("0123", "Healthy"))
    data = {
        "nodeName": name,
        "devices": json.dumps(devices),
        "linkType": json.dumps(LINKS),
        "bandwidth": json.dumps(BANDWIDTHS),
    }
    return [
        addressed(name, ip, gpus=4, resource="aliyun.com/gpu", labels=ACK, **more),
        {
            "kind": "ConfigMap",
            "metadata": {
                "name": name,
                "namespace": "kube-system",
                "labels": {**ACK, "nodename": name},
            },
            "data": data,
        },
    ]


def asking(name: str, on: str, gpus: int, resource: str = "aliyun.com/gpu", **more: Any):
    made = pod(name, on=on, gpus=0, **more)
    made["spec"]["containers"][0]["resources"]["limits"] = {resource: str(gpus)}
    return made


def mixed() -> list[dict[str, Any]]:
    """A control plane node, an ordinary GPU node and arena's example, as in arena's own screens."""
    return [
        addressed("m1", "10.0.0.9", labels={"node-role.kubernetes.io/master": ""}),
        addressed("node-b", "10.0.0.2", gpus=4),
        *arenas_node(),
        asking("other-0", "node-b", 2, "nvidia.com/gpu"),
        asking("mpi-dist-worker-0", "node-a", 2, annotations=group("0,3")),
    ]


def seen(*objects: dict[str, Any]) -> Occupancy:
    return occupancy.read_occupancy(records_of(objects, status_of=pod_status), source="test")


def only(*objects: dict[str, Any]) -> NodeStatus:
    [found] = seen(*objects).nodes
    return found


def sharing() -> list[dict[str, Any]]:
    """A node whose GPUs ACK shares by memory and cores, and one with MIG slices."""
    memory = {"aliyun.com/gpu-mem": "60", "aliyun.com/gpu-core.percentage": "400"}
    given = {
        "scheduler.framework.gpushare.allocation": '{"0": {"3": 5}}',
        "gpushare.alibabacloud.com/core-percentage": '{"0": {"3": 30}}',
    }
    part = asking("part", "node-s", 5, "aliyun.com/gpu-mem", annotations=given)
    limits = part["spec"]["containers"][0]["resources"]["limits"]
    limits["aliyun.com/gpu-core.percentage"] = "30"
    slices = {"nvidia.com/mig-1g.5gb": "14"}
    mig = {
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
        "nvidia.com/gpu.count": "2",
        "nvidia.com/mig.strategy": "mixed",
        "nvidia.com/mig-1g.5gb.count": "14",
    }
    return [
        addressed(
            "node-s",
            "10.0.0.5",
            labels={"ack.node.gpu.schedule": "share"},
            **{"aliyun.com/gpu-count": "4", **memory},
        ),
        part,
        addressed("node-t", "10.0.0.6", labels=mig, **slices),
        asking("slice", "node-t", 3, "nvidia.com/mig-1g.5gb"),
    ]


def measured(name: str, *indexes: int, **more: Any) -> list[GpuSample]:
    return [
        GpuSample(
            node=name,
            index=index,
            uuid=f"GPU-{index}",
            duty_cycle=12.5,
            memory_used=1.5 * (1 << 30),
            memory_total=16.0 * (1 << 30),
            **more,
        )
        for index in indexes
    ]
