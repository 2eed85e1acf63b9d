"""Small objects as they travel to a Kubernetes API server, and how tests send them."""

from __future__ import annotations

from typing import Any

from clusters import Live
from fake_api import FakeApi
from fake_operators import condition

GATE = "arena-topo.io/placement"


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def pod(name: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "none"}
    body = {"containers": [container], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body}


def gated(name: str, **spec: Any) -> dict[str, Any]:
    return pod(name, schedulingGates=[{"name": GATE}, {"name": "x.io/own"}], **spec)


def on(*nodes: str) -> dict[str, Any]:
    """A required node affinity with one term for each node."""
    terms = [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        for node in nodes
    ]
    required = {"nodeSelectorTerms": terms}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def mpijob(name: str, *, suspend: bool = True, **worker: Any) -> dict[str, Any]:
    container = {"name": "mpi", "image": "none", "command": ["true"]}
    worker_spec = {"containers": [container], **worker}
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": name},
        "spec": {
            "runPolicy": {"suspend": suspend, "cleanPodPolicy": "All"},
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "template": {"spec": {"containers": [container]}}},
                "Worker": {"replicas": 2, "template": {"spec": worker_spec}},
            },
        },
    }


def made(live: Live, body: dict[str, Any], *, group: str = "v1") -> dict[str, Any]:
    plural = {"ConfigMap": "configmaps", "Pod": "pods", "MPIJob": "mpijobs", "Lease": "leases"}
    answer = live.call("POST", live.path(plural[body["kind"]], group=group), body)
    assert answer.status == 201, answer.said
    return answer.body


def names(body: dict[str, Any]) -> list[str]:
    return [one["metadata"]["name"] for one in body["items"]]


def waits(api: FakeApi, pod: str) -> str:
    """Why a pod is not scheduled."""
    one = api.find("Pod", pod) or {}
    found = condition(one["status"], "PodScheduled") or {}
    assert (found["status"], found["reason"]) == ("False", "Unschedulable")
    return str(found["message"])
