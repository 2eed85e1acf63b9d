"""Kubernetes objects as small as they can be, and the cluster that they make."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from arena_topo.clusters import observed
from arena_topo.clusters.records import Record, StatusOf, Unread, known_kind, read_record
from arena_topo.topology import Cluster, Node, gpu_set, presets, published

H100 = "NVIDIA H100 80GB HBM3"


def node(name: str = "node-a", *, gpus: int = 8, **more: Any) -> dict[str, Any]:
    offers = {"cpu": "32", "memory": "64Gi", "nvidia.com/gpu": str(gpus)}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": more.pop("labels", {})},
        "spec": more.pop("spec", {}),
        "status": {"capacity": offers, "allocatable": offers, **more},
    }


def pod(name: str, *, on: str | None = "node-a", gpus: int = 1, **more: Any) -> dict[str, Any]:
    container = {
        "name": "main",
        "resources": {
            "limits": {"nvidia.com/gpu": str(gpus)} if gpus else {},
            "requests": more.pop("requests", {}),
        },
    }
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": more.pop("annotations", None),
            **more.pop("metadata", {}),
        },
        "spec": {
            **({"nodeName": on} if on else {}),
            "containers": [container],
            **more.pop("spec", {}),
        },
        "status": {"phase": more.pop("phase", "Running"), **more.pop("status", {})},
    }


def group(ids: str) -> dict[str, str]:
    return {"topology.kubernetes.io/gpu-group": ids}


def job(name: str, placement: str, **more: Any) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": str(more.pop("gpus", 2))}
    return {
        "kind": "MPIJob",
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": {
                "arena-topo.io/format": "v1",
                "arena-topo.io/state": more.pop("state", "placed"),
                "arena-topo.io/placement": placement,
                **more.pop("annotations", {}),
            },
            **more.pop("metadata", {}),
        },
        "spec": {
            "mpiReplicaSpecs": {
                "Worker": {
                    **more.pop("worker", {}),
                    "template": {
                        "metadata": {"annotations": more.pop("template", {})},
                        "spec": {"containers": [{"resources": {"limits": limits}}]},
                    },
                }
            }
        },
        "status": more.pop("status", {}),
    }


def config_map(name: str = "node-a", *, healthy: int | None = None) -> dict[str, Any]:
    machine = presets.preset_machine("dgx-1-v100", name)
    return published.config_map(machine, gpu_set(range(8)) if healthy is None else healthy)


def record_of(item: Any, *, status_of: StatusOf | None = None) -> Record | Unread | None:
    """The record of an object; None of a kind that is not read."""
    kind = known_kind(item.get("kind"), item.get("apiVersion"))
    return None if kind is None else read_record(kind, item, status_of=status_of)


def records_of(
    objects: Iterable[Any], *, status_of: StatusOf | None = None
) -> list[Record | Unread]:
    found = (record_of(item, status_of=status_of) for item in objects)
    return [record for record in found if record is not None]


def seen(*objects: dict[str, Any]) -> Cluster:
    return observed.cluster(records_of(objects), source="test")


def only(*objects: dict[str, Any]) -> Node:
    (found,) = seen(*objects).nodes
    return found


def uuid(node: str, index: int) -> str:
    return f"GPU-{node}-{index}"


def device(node: str, number: int, /, **attributes: Any) -> dict[str, Any]:
    """One GPU as NVIDIA's driver publishes it; an attribute that is None is left out."""
    told = {
        "type": "gpu",
        "uuid": uuid(node, number),
        "productName": H100,
        "resource.kubernetes.io/pciBusID": f"0000:{number + 1:02x}:00.0",
        **attributes,
    }
    return {
        "name": f"gpu-{number}",
        "attributes": {
            key: {"int" if isinstance(value, int) else "string": value}
            for key, value in told.items()
            if value is not None
        },
    }


def resource_slice(
    node: str | None = "node-a", *, devices: list[dict[str, Any]] | None = None, **more: Any
) -> dict[str, Any]:
    """A whole pool of one node in one slice, eight GPUs unless said otherwise."""
    name = more.pop("name", f"{node}-slice")
    pool = {"name": node or "far", "generation": 1, "resourceSliceCount": 1, **more.pop("pool", {})}
    if devices is None:
        devices = [device(node or "far", index) for index in range(8)]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": "gpu.nvidia.com",
            **({"nodeName": node} if node else {}),
            "pool": pool,
            "devices": devices,
            **more,
        },
    }


def v1beta1(one: dict[str, Any]) -> dict[str, Any]:
    """The same slice as that version has it: what is of a device is one level deeper."""
    devices = [
        {"name": told["name"], "basic": {key: told[key] for key in told if key != "name"}}
        for told in one["spec"]["devices"]
    ]
    return one | {
        "apiVersion": "resource.k8s.io/v1beta1",
        "spec": one["spec"] | {"devices": devices},
    }


def claim(name: str, *devices: str, node: str = "node-a", **more: Any) -> dict[str, Any]:
    """A claim to which these devices of a node's pool are allocated; none is a claim that waits."""
    results = [
        {"request": "gpu", "driver": "gpu.nvidia.com", "pool": node, "device": one}
        for one in devices
    ]
    status: dict[str, Any] = {"allocation": {"devices": {"results": results}}} if results else {}
    users = more.pop("users", ())
    if users:
        status["reservedFor"] = [{"resource": "pods", "name": user} for user in users]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default", **more},
        "spec": {},
        "status": status,
    }


def bare(name: str = "node-a", **more: Any) -> dict[str, Any]:
    """A node without a device plugin."""
    offers = {"cpu": "32", "memory": "64Gi"}
    return node(name, **{"capacity": offers, "allocatable": offers, **more})
