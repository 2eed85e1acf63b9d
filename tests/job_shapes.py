"""MPIJobs, pods and events in the shapes that operators, schedulers and kubelets give them.

Texts are those of Kubernetes 1.36, mpi-operator and Kueue 0.14. The job is `demo` in namespace
`team-a`: four workers of two GPUs each, created at seven o'clock.
"""

from __future__ import annotations

import json
from typing import Any

from fake_api import rfc3339

from arena_topo.manifests.cause import encode_cause

T0 = 1795244400.0  # 2026-11-21 07:00:00 UTC
NOW = T0 + 600
UID = "0b5d6e2c-demo"

Object = dict[str, Any]


def at(seconds: float) -> str:
    """So many seconds after the job was created."""
    return rfc3339(T0 + seconds)


def condition(kind: str, status: str = "True", **more: str) -> Object:
    return {"type": kind, "status": status, **more}


def mpijob(
    *conditions: Object,
    notes: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    policy: Object | None = None,
    name: str = "demo",
    **meta: Any,
) -> Object:
    """A v2beta1 job; `policy` is its runPolicy."""
    limits = {"nvidia.com/gpu": "2"}
    worker = {"spec": {"containers": [{"name": "mpi", "resources": {"limits": limits}}]}}
    launcher = {"spec": {"containers": [{"name": "mpi", "command": ["sh", "-c", "mpirun true"]}]}}
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {
            "name": name,
            "namespace": "team-a",
            "uid": UID if name == "demo" else f"uid-{name}",
            "creationTimestamp": at(0),
            "labels": labels or {},
            "annotations": notes or {},
            **meta,
        },
        "spec": {
            "runPolicy": policy or {},
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "template": launcher},
                "Worker": {"replicas": 4, "template": worker},
            },
        },
        "status": {"conditions": list(conditions)},
    }


CREATED = condition("Created", reason="MPIJobCreated", message="MPIJob team-a/demo is created.")
RUNNING = condition("Running", reason="MPIJobRunning", message="MPIJob team-a/demo is running.")
SUSPENDED = condition("Suspended", reason="MPIJobSuspended", message="MPIJob suspended")


def ours(state: str, **more: Any) -> dict[str, str]:
    """The annotations of a job of ours; `reason`, `map`, `tries` and `recorded` as they stand.

    `cause` takes the place of `reason`, which is a sentence without a code.
    """
    forecast = {key: more[key] for key in ("reason", "binding", "guarantee") if key in more}
    if "cause" in more:
        forecast |= encode_cause(more["cause"])
    notes = {
        "arena-topo.io/format": "v1",
        "arena-topo.io/state": state,
        "arena-topo.io/forecast": json.dumps(forecast),
        "arena-topo.io/request": json.dumps({"workers": 4, "gpus": 2}),
    }
    for key, name in (("map", "placement"), ("tries", "tries"), ("recorded", "recorded")):
        if key in more:
            notes[f"arena-topo.io/{name}"] = str(more[key])
    return notes


def worker(index: int, phase: str = "Pending", **more: Any) -> Object:
    """A worker pod as mpi-operator makes it."""
    return pod(f"demo-worker-{index}", phase, **more)


def launcher(phase: str = "Running", **more: Any) -> Object:
    return pod("demo-launcher-x7k2p", phase, **more)


def pod(
    name: str,
    phase: str,
    *,
    node: str | None = None,
    gates: tuple[str, ...] = (),
    notes: dict[str, str] | None = None,
    spec: Object | None = None,
    meta: Object | None = None,
    **status: Any,
) -> Object:
    role = "launcher" if "launcher" in name else "worker"
    gpus = {} if role == "launcher" else {"limits": {"nvidia.com/gpu": "2"}}
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team-a",
            "uid": f"uid-{name}",
            "creationTimestamp": at(1),
            "labels": {
                "training.kubeflow.org/operator-name": "mpi-operator",
                "training.kubeflow.org/job-name": "demo",
                "training.kubeflow.org/job-role": role,
            },
            "annotations": notes or {},
            "ownerReferences": [{"kind": "MPIJob", "name": "demo", "uid": UID, "controller": True}],
            **(meta or {}),
        },
        "spec": {
            "containers": [{"name": "mpi", "image": "registry/img:1", "resources": gpus}],
            **({"nodeName": node} if node else {}),
            **({"schedulingGates": [{"name": gate} for gate in gates]} if gates else {}),
            **(spec or {}),
        },
        "status": {"phase": phase, **status},
    }


def runs(*, ready: bool = True, since: float = 5) -> Object:
    """The status of a pod whose container runs."""
    return {
        "conditions": [
            condition("PodScheduled"),
            condition("Ready", "True" if ready else "False"),
        ],
        "containerStatuses": [
            {"name": "mpi", "ready": ready, "state": {"running": {"startedAt": at(since)}}}
        ],
    }


def waits(reason: str, message: str = "") -> Object:
    """The status of a pod whose container waits on its node."""
    waiting = {"reason": reason, **({"message": message} if message else {})}
    return {
        "conditions": [condition("PodScheduled"), condition("Ready", "False")],
        "containerStatuses": [{"name": "mpi", "ready": False, "state": {"waiting": waiting}}],
    }


def ended(code: int, *, finished: float = 60, **more: Any) -> Object:
    """The status of a pod whose container ended."""
    state = {
        "exitCode": code,
        "reason": "Completed" if code == 0 else "Error",
        "startedAt": at(5),
        "finishedAt": at(finished),
        **more,
    }
    return {"containerStatuses": [{"name": "mpi", "ready": False, "state": {"terminated": state}}]}


def unscheduled(message: str, reason: str = "Unschedulable") -> Object:
    return {"conditions": [condition("PodScheduled", "False", reason=reason, message=message)]}


GATED = unscheduled(
    "Scheduling is blocked due to non-empty scheduling gates", reason="SchedulingGated"
)


def pinned(*nodes: str) -> Object:
    """The affinity that binds a pod to nodes by name."""
    terms = [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        for node in nodes
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": required}}


def event(
    about: str, reason: str, message: str, *, kind: str = "Warning", when: float = 500, **more: Any
) -> Object:
    """An event about `Kind/name`."""
    what, _, name = about.partition("/")
    uid = UID if what == "MPIJob" else f"uid-{name}"
    return {
        "kind": "Event",
        "metadata": {"name": f"{name}.{reason.lower()}", "namespace": "team-a"},
        "involvedObject": {"kind": what, "name": name, "namespace": "team-a", "uid": uid, **more},
        "type": kind,
        "reason": reason,
        "message": message,
        "lastTimestamp": at(when),
    }


def node(name: str, *, ready: str = "True", cordoned: bool = False, gpus: int = 8) -> Object:
    offers = {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": str(gpus)}
    return {
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "nvidia.com/gpu.product": "Tesla-V100-SXM2-32GB",
                "nvidia.com/gpu.count": "8",
            },
        },
        "spec": {"unschedulable": True} if cordoned else {},
        "status": {
            "capacity": offers,
            "allocatable": offers,
            "conditions": [
                condition(
                    "Ready",
                    ready,
                    reason="NodeStatusUnknown" if ready == "Unknown" else "KubeletReady",
                    message="Kubelet stopped posting node status." if ready == "Unknown" else "ok",
                )
            ],
        },
    }
