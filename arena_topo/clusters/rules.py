"""Rules about one object: whether a pod or an MPIJob is over, and what a pod asks for."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from arena_topo.clusters.objects import Object, items, mapping_at
from arena_topo.numbers import quantity
from arena_topo.topology import GPU_RESOURCES

_KIBI = 1024.0

_SHORT = 15
"""Characters up to which a number, with `Ki` too, is certainly below the largest quantity."""

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
"""The field with the required node affinity of a pod."""

EVICTED = "MPIJobEvicted"
"""The reason with which mpi-operator reports a job as failed after the eviction of a worker."""

_LONGEST = (1 << 63) - 1
"""The upper limit of a job's time limit in seconds: the field is an int64."""

OVER = ("Succeeded", "Failed")
"""Phases in which a pod or a job holds no resources."""


def _role(mpijob: Object, name: str) -> Object:
    """The part of an MPIJob for its launcher or its workers, in any of the three versions."""
    spec = mapping_at(mpijob, "spec")
    return (
        mapping_at(mapping_at(spec, "mpiReplicaSpecs"), name) if "mpiReplicaSpecs" in spec else spec
    )


def worker_pod_template(mpijob: Object) -> Object:
    """The pod template of the workers; empty without one."""
    return mapping_at(_role(mpijob, "Worker"), "template")


def worker_replicas(mpijob: Object) -> object:
    """The number of workers in an MPIJob, as written; None without one."""
    return _role(mpijob, "Worker").get("replicas")


def launcher_command(mpijob: Object) -> str:
    """The command of an MPIJob's launcher; empty without one.

    It includes the shell that runs it, if there is one, and has no quotes.
    """
    try:
        template = mapping_at(_role(mpijob, "Launcher"), "template")
        containers = items(mapping_at(template, "spec"), "containers")
    except TypeError:
        return ""
    lists = [containers[0].get(key) for key in ("command", "args")] if containers else []
    return " ".join(str(word) for words in lists if isinstance(words, list) for word in words)


def time_limit(mpijob: Object) -> float | None:
    """The seconds that a job may run after each start; None without a limit."""
    policy = (mpijob.get("spec") or {}).get("runPolicy")
    limit = policy.get("activeDeadlineSeconds") if isinstance(policy, dict) else None
    return float(limit) if isinstance(limit, int) and 0 < limit <= _LONGEST else None


def job_over(mpijob: Object) -> bool:
    """Whether the operator reports that the job has ended, for good.

    mpi-operator reports a job as failed as soon as a worker is evicted, and goes on with it all the
    same: it may be suspended and resumed (pkg/controller/mpi_job_controller.go, `isEvicted`).
    """
    status = mapping_at(mpijob, "status")
    return status.get("launcherStatus") in OVER or any(
        condition.get("type") in OVER
        and condition.get("status") == "True"
        and not (condition.get("reason") == EVICTED and not status.get("completionTime"))
        for condition in items(status, "conditions")
    )


def pod_over(pod: Object) -> bool:
    """Whether a pod has ended, so that it holds no resources."""
    return mapping_at(pod, "status").get("phase") in OVER


def gpu_count(pod_spec: Object) -> int:
    """The GPUs that a pod holds: its limits, under either name of the resource.

    TypeError or ValueError for invalid quantities.
    """
    return round(sum(pod_request(pod_spec, name, limits=True) for name in GPU_RESOURCES))


def pod_request(pod_spec: Object, resource: str, *, limits: bool = False) -> float:
    """A pod's request for a resource, or its limit, by the scheduler's rule for init containers.

    Init containers run one after another before the others start; those with restart policy Always
    keep running (kubernetes, pkg/api/v1/resource: PodRequests). TypeError or ValueError for an
    invalid quantity.
    """

    def of_container(container: Object) -> float:
        resources = mapping_at(container, "resources")
        request = None if limits else mapping_at(resources, "requests").get(resource)
        # The API server sets missing requests to the limits; a hand-written dump may lack them.
        return parse_quantity(
            mapping_at(resources, "limits").get(resource) if request is None else request
        )

    overhead = parse_quantity(mapping_at(pod_spec, "overhead").get(resource))
    pod_level = mapping_at(
        mapping_at(pod_spec, "resources"), "limits" if limits else "requests"
    ).get(resource)
    if pod_level is not None:
        return parse_quantity(pod_level) + overhead
    running = sum(map(of_container, items(pod_spec, "containers")))
    sidecars = peak = 0.0
    for container in items(pod_spec, "initContainers"):
        request = of_container(container)
        peak = max(peak, sidecars + request)
        sidecars += request if container.get("restartPolicy") == "Always" else 0.0
    return max(running + sidecars, peak) + overhead


def parse_quantity(quantity: Any) -> float:
    """The number of a Kubernetes quantity, 0 for None; ValueError for an invalid one."""
    if quantity is None:
        return 0.0
    text = str(quantity)
    # The usual form of GPUs and of memory; the memory differs from node to node, so no cache helps.
    if len(text) <= _SHORT and text.isascii():
        if text.isdigit():
            return float(text)
        if text.endswith("Ki") and text[:-2].isdigit():
            return float(text[:-2]) * _KIBI
    return _parsed(text)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> float:
    return float(quantity(text)[2])
