"""What a job asked of the solver, written on it for whoever starts it later, and read back.

What the worker template says itself (replicas, CPU, memory, node selector, tolerations, priority)
is read from there: queues such as Kueue write their decisions into it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from arena_topo.errors import InvalidJob
from arena_topo.job import KeyValue, MPIJob, Quantity, Toleration
from arena_topo.manifests import REQUEST, Manifest
from arena_topo.manifests.versions import version_of
from arena_topo.topology import GPU_RESOURCES

_KEYS = {
    "model": "gpu_model",
    "mixModels": "mix_models",
    "minBandwidthGBps": "min_bandwidth",
    "maxNodes": "max_nodes",
    "required": "topology_required",
    "preferred": "topology_preferred",
    "policy": "policy",
    "packAbove": "pack_above",
    "binding": "binding",
    "podShape": "pod_shape",
    "gangTimeout": "gang_timeout",
    "onNodeLoss": "on_node_loss",
}
"""The keys of the annotation, and the field of each."""


def requested(job: MPIJob) -> str:
    """The annotation for a job: its size, and what of its placement flags is no default."""
    said: dict[str, Any] = {"workers": job.workers, "gpus": job.gpus}
    for key, name in _KEYS.items():
        value = getattr(job, name)
        if value != MPIJob.__dataclass_fields__[name].default:
            said[key] = value if isinstance(value, bool | int | float) else str(value)
    return json.dumps(said, separators=(",", ":"), ensure_ascii=False)


def asked(mpijob: Mapping[str, Any]) -> dict[str, Any]:
    """The annotation of an MPIJob as a mapping; empty where there is none that makes sense."""
    notes = (mpijob.get("metadata") or {}).get("annotations") or {}
    try:
        said = json.loads(notes.get(REQUEST) or "{}")
    except (ValueError, TypeError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def job_of(mpijob: Manifest) -> MPIJob:
    """The job that an MPIJob of any version stands for, as far as placing it needs to know.

    InvalidJob names what of it makes no sense; annotations can be edited by anyone.
    """
    try:
        return _job_of(mpijob)
    except InvalidJob as error:
        why = f"{error.message}: {error.why}" if error.why else error.message
    except (ArithmeticError, LookupError, AttributeError, TypeError, ValueError) as error:
        why = str(error)
    meta = mpijob.get("metadata")
    name = meta.get("name") if isinstance(meta, Mapping) else None
    raise InvalidJob(f"MPIJob {name} makes no sense as a job", why=why)


def _job_of(mpijob: Manifest) -> MPIJob:
    name = str(mpijob["metadata"]["name"])
    said = asked(mpijob)
    spec = mpijob.get("spec") or {}
    replicas = spec.get("mpiReplicaSpecs") or {}
    worker = replicas.get("Worker") or spec
    pod = (worker.get("template") or {}).get("spec") or {}
    container: Manifest = next(iter(pod.get("containers") or ()), {})
    limits = (container.get("resources") or {}).get("limits") or {}
    policy = spec.get("runPolicy") or {}
    labels = ((worker.get("template") or {}).get("metadata") or {}).get("labels") or {}
    fields: dict[str, Any] = {
        "name": name,
        "command": _command(replicas, container),
        "image": str(container.get("image") or "unknown"),
        "workers": _whole(worker.get("replicas", said.get("workers", 1))),
        "gpus": _gpus(said, limits),
        "cpu": _quantity(limits.get("cpu")),
        "memory": _quantity(limits.get("memory")),
        "gputopology": True,
        "gang": "pod-group.scheduling.sigs.k8s.io/name" in labels,
        "priority": str(pod.get("priorityClassName") or ""),
        "selector": tuple(
            KeyValue(key=str(key), value=str(value))
            for key, value in (pod.get("nodeSelector") or {}).items()
        ),
        "toleration": tuple(map(_toleration, pod.get("tolerations") or ())),
        # Without sshd the network of the node has no say in where workers go.
        "host_network": version_of(mpijob).traits.sshd and pod.get("hostNetwork") is True,
        "running_timeout": _whole(policy.get("activeDeadlineSeconds") or 0),
    }
    fields |= {field: said[key] for key, field in _KEYS.items() if key in said}
    return MPIJob(**fields)


def _command(replicas: Manifest, container: Manifest) -> str:
    launcher = ((replicas.get("Launcher") or {}).get("template") or {}).get("spec") or {}
    first: Manifest = next(iter(launcher.get("containers") or ()), container)
    words = first.get("command") or first.get("args") or ["unknown"]
    return (str(words[-1]).strip() and str(words[-1])) or "unknown"


def _gpus(said: Mapping[str, Any], limits: Mapping[str, Any]) -> int:
    for name in GPU_RESOURCES:
        if name in limits:
            return _whole(limits[name])
    return _whole(said.get("gpus", 0))


def _whole(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return 0


def _quantity(text: Any) -> Quantity | None:
    return None if text is None else Quantity.parse(str(text))


def _toleration(one: Mapping[str, Any]) -> Toleration:
    return Toleration(
        key=str(one.get("key") or ""),
        value=str(one.get("value") or ""),
        effect=str(one.get("effect") or ""),
        operator=str(one.get("operator") or "Equal"),
    )
