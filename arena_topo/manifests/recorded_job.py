"""The job that a stored MPIJob stands for, as far as its placement needs it.

Replicas, CPU, memory, node selector, tolerations and priority are read from the worker template,
into which queues such as Kueue write their decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arena_topo.errors import InvalidJob
from arena_topo.job import MPIJob, Toleration
from arena_topo.manifests import Manifest
from arena_topo.manifests.annotations import recorded_request
from arena_topo.manifests.requests import REQUEST_KEYS
from arena_topo.manifests.versions import version_of
from arena_topo.topology import GPU_RESOURCES
from arena_topo.topology.nics import is_rdma


def job_of(mpijob: Manifest) -> MPIJob:
    """The job of an MPIJob of any version, as far as its placement needs it.

    InvalidJob names the invalid part; users can edit annotations.
    """
    try:
        return _job_of(mpijob)
    except InvalidJob as error:
        why = error.sentence
    except (ArithmeticError, LookupError, AttributeError, TypeError, ValueError) as error:
        why = str(error)
    meta = mpijob.get("metadata")
    name = meta.get("name") if isinstance(meta, Mapping) else None
    raise InvalidJob(f"MPIJob {name} makes no sense as a job", why=why)


def _job_of(mpijob: Manifest) -> MPIJob:
    request, version = recorded_request(mpijob), version_of(mpijob)
    spec = mpijob.get("spec") or {}
    roles = spec.get("mpiReplicaSpecs") or {}
    worker = roles.get("Worker") or spec
    template, launcher = (
        role.get("template") or {} for role in (worker, roles.get("Launcher") or worker)
    )
    labels, pod = (template.get("metadata") or {}).get("labels") or {}, template.get("spec") or {}
    container, first = map(_container, (pod, launcher.get("spec") or {}))
    limits = (container.get("resources") or {}).get("limits") or {}
    gpus = next((limits[name] for name in GPU_RESOURCES if name in limits), request.get("gpus", 0))
    command = first.get("command") or first.get("args") or ()
    fields: dict[str, Any] = {
        "name": str(mpijob["metadata"]["name"]),
        "command": str(command[-1]) if command and str(command[-1]).strip() else "unknown",
        "image": str(container.get("image") or "unknown"),
        "workers": worker.get("replicas", request.get("workers", 1)),
        "gpus": int(gpus),
        "cpu": limits.get("cpu"),
        "memory": limits.get("memory"),
        "gputopology": True,
        "gang": "pod-group.scheduling.sigs.k8s.io/name" in labels,
        "priority": str(pod.get("priorityClassName") or ""),
        # The bandwidth of a placement depends on the NICs of the workers.
        "device": {name: amount for name, amount in limits.items() if is_rdma(name)},
        "selector": pod.get("nodeSelector") or {},
        "toleration": tuple(
            Toleration(**{key: str(toleration[key]) for key in _TOLERATION if toleration.get(key)})
            for toleration in pod.get("tolerations") or ()
        ),
        # Without sshd workers on the network of one node do not conflict.
        "host_network": version.traits.sshd and pod.get("hostNetwork") is True,
        "running_timeout": (spec.get("runPolicy") or {}).get("activeDeadlineSeconds") or 0,
    }
    fields |= {field: request[key] for key, field in REQUEST_KEYS.items() if key in request}
    return MPIJob(**fields)


_TOLERATION = ("key", "operator", "value", "effect")


def _container(pod: Manifest) -> Manifest:
    first: Manifest = next(iter(pod.get("containers") or ()), {})
    return first
