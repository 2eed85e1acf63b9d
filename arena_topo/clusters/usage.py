"""Pods, claims and recorded placements -> the use of every node: GPUs, CPU, memory.

A pod whose devices are unknown, or whose annotation is invalid, still holds as many GPUs as it
requests. Sources of the devices, most reliable first: the allocation of its claim; the kubelet, as
the node's agent publishes it; the annotations of the pod.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from arena_topo.clusters.objects import Object, items, of
from arena_topo.manifests import GPU_GROUP, GUARANTEE
from arena_topo.notes import Notes
from arena_topo.numbers import quantity
from arena_topo.topology import GPU_RESOURCES, GPUSet, count, gpu_set, published

if TYPE_CHECKING:
    from arena_topo.clusters.records import JobRecord, PodRecord
    from arena_topo.clusters.slices import Allocated

ACK_ALLOCATION = "gputopology.alibabacloud.com/allocation"
"""JSON of the ACK scheduler: `{"allocatedGPUs": {"0": ["0", "3"]}, ...}`, by container index
(koordinator, pkg/scheduler/plugins/ack/gputopology)."""

_ALL = 1 << 20
"""More GPUs than any machine has: the count for a pod whose number of GPUs is unknown."""

_KIBI = 1024.0

_SHORT = 15
"""Characters up to which a number, with `Ki` too, is certainly below the largest quantity."""

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
"""The field with the required node affinity of a pod."""

EVICTED = "MPIJobEvicted"
"""The reason with which mpi-operator reports a job as failed after the eviction of a worker."""

OVER = ("Succeeded", "Failed")
"""Phases in which a pod or a job holds no resources."""


def _role(mpijob: Object, name: str) -> Object:
    """The part of an MPIJob for its launcher or its workers, in any of the three versions."""
    spec = of(mpijob, "spec")
    return of(of(spec, "mpiReplicaSpecs"), name) if "mpiReplicaSpecs" in spec else spec


def worker_template(mpijob: Object) -> Object:
    """The pod template of the workers; empty without one."""
    return of(_role(mpijob, "Worker"), "template")


def worker_replicas(mpijob: Object) -> object:
    """The number of workers in an MPIJob, as written; None without one."""
    return _role(mpijob, "Worker").get("replicas")


def launcher_command(mpijob: Object) -> str:
    """The command of an MPIJob's launcher; empty without one.

    It includes the shell that runs it, if there is one, and has no quotes.
    """
    try:
        template = of(_role(mpijob, "Launcher"), "template")
        containers = items(of(template, "spec"), "containers")
    except TypeError:
        return ""
    lists = [containers[0].get(key) for key in ("command", "args")] if containers else []
    return " ".join(str(word) for words in lists if isinstance(words, list) for word in words)


def job_over(mpijob: Object) -> bool:
    """Whether the operator reports that the job has ended, for good.

    mpi-operator reports a job as failed as soon as a worker is evicted, and goes on with it all the
    same: it may be suspended and resumed (pkg/controller/mpi_job_controller.go, `isEvicted`).
    """
    status = of(mpijob, "status")
    return status.get("launcherStatus") in OVER or any(
        condition.get("type") in OVER
        and condition.get("status") == "True"
        and not (condition.get("reason") == EVICTED and not status.get("completionTime"))
        for condition in items(status, "conditions")
    )


def pod_over(pod: Object) -> bool:
    """Whether a pod has ended, so that it holds no resources."""
    return of(pod, "status").get("phase") in OVER


def gpu_count(pod_spec: Object) -> int:
    """The GPUs that a pod holds: its limits, under either name of the resource.

    TypeError or ValueError for invalid quantities.
    """
    return round(sum(requested(pod_spec, name, limits=True) for name in GPU_RESOURCES))


def requested(pod_spec: Object, resource: str, *, limits: bool = False) -> float:
    """A pod's request for a resource, or its limit, by the scheduler's rule for init containers.

    Init containers run one after another before the others start; those with restart policy Always
    keep running (kubernetes, pkg/api/v1/resource: PodRequests). TypeError or ValueError for an
    invalid quantity.
    """

    def of_container(container: Object) -> float:
        resources = of(container, "resources")
        request = None if limits else of(resources, "requests").get(resource)
        # The API server sets missing requests to the limits; a hand-written dump may lack them.
        return amount(of(resources, "limits").get(resource) if request is None else request)

    overhead = amount(of(pod_spec, "overhead").get(resource))
    pod_level = of(of(pod_spec, "resources"), "limits" if limits else "requests").get(resource)
    if pod_level is not None:
        return amount(pod_level) + overhead
    running = sum(map(of_container, items(pod_spec, "containers")))
    sidecars = peak = 0.0
    for container in items(pod_spec, "initContainers"):
        request = of_container(container)
        peak = max(peak, sidecars + request)
        sidecars += request if container.get("restartPolicy") == "Always" else 0.0
    return max(running + sidecars, peak) + overhead


def amount(quantity: Any) -> float:
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


class Holder(NamedTuple):
    """A holder of GPUs on a node: a pod, the record of an MPIJob, or claims (without a name)."""

    kind: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.name else self.kind


class NodeUsage(msgspec.Struct, kw_only=True):
    """The use of one node by pods and recorded placements, as a running sum.

    `unattributed` counts GPUs in use whose indexes are unknown.
    """

    known: list[tuple[Holder, GPUSet]] = []
    unattributed: int = 0
    cpu: float = 0.0
    memory: float = 0.0
    foreign: bool = False


class AllocationSources(msgspec.Struct, frozen=True, kw_only=True):
    """Sources of device allocations other than pods.

    `claims` are the allocations on nodes of DRA drivers, which are `served`; `kubelets` are the
    allocations that node agents published, by node.
    """

    claims: Allocated
    served: Collection[str]
    kubelets: Mapping[str, published.Allocations]


def uses_of(
    pods: Iterable[PodRecord],
    jobs: Iterable[JobRecord],
    sources: AllocationSources,
    notes: Notes,
) -> dict[str, NodeUsage]:
    """The use of every node by pods, jobs and claims; `notes` gets the invalid parts of them."""
    uses: dict[str, NodeUsage] = defaultdict(NodeUsage)
    claims = sources.claims
    workers: dict[tuple[str, str], PodRecord | None] = dict.fromkeys(claims.holders)
    for name, claimed in claims.gpus.items():
        uses[name].known.append((Holder(f"claims of GPUs of node {name}"), claimed))
        uses[name].foreign |= name in claims.foreign
    for pod in pods:
        notes += pod.notes
        if pod.over or pod.node is not None:
            workers[pod.key] = pod
        if pod.node is not None:
            use = uses[pod.node]
            use.cpu += pod.cpu
            use.memory += pod.memory
            _add_gpus(pod, pod.node, use, sources, notes)
    for job in jobs:
        notes += job.notes
        for index, node, gpus in job.workers:
            key = job.namespace, f"{job.name}-worker-{index}"
            if key in workers and _covers(workers[key], node, gpus, job):
                continue
            if job.exact and gpus:
                reserved = gpu_set(gpus[: job.each])
                uses[node].known.append((Holder("MPIJob", *job.key), reserved))
            else:
                uses[node].unattributed += job.each
    return uses


def _covers(pod: PodRecord | None, node: str, gpus: Iterable[int], job: JobRecord) -> bool:
    """Whether the GPUs of this pod are those of the recorded worker, which must not count twice.

    None is a pod with claimed GPUs. A pod may belong to an earlier placement if it is being
    deleted, if its node is only promised, or if its job is suspended: then the GPUs of the pod and
    those of the record both count as in use.
    """
    on_node = pod is not None and not pod.over and pod.node == node
    ends = pod is not None and pod.deleted is not None
    group = pod.annotations.get(GPU_GROUP) if pod is not None else None
    if on_node and group == ",".join(map(str, sorted(gpus))):
        return True
    # A record without exact GPUs gives its pods no annotation, and it may be an earlier record than
    # this: the list of jobs is as old as the last write, the list of pods is newer.
    if on_node and not job.exact and not ends and not group:
        return True
    if ends or job.suspended:
        return False
    return pod is None or not pod.promised or (on_node and group is None)


def _add_gpus(
    pod: PodRecord, node: str, use: NodeUsage, sources: AllocationSources, notes: Notes
) -> None:
    if node in sources.served:
        unread = next((claim for claim in pod.claims if not _is_read(pod, claim, sources)), None)
        if unread is not None:
            # The devices may be any GPUs.
            use.unattributed += _ALL
            name = f"ResourceClaim {unread}" if unread else "a ResourceClaim"
            notes.add(
                pod.path,
                "unread claim",
                f"{pod} has devices by {name}, which could not be read; every GPU of node {node}"
                " counts as in use",
            )
    if pod.gpus is None:
        use.unattributed += _ALL
        return
    # The scheduler may have made a claim for the extended resource; that claim counts instead.
    if not pod.gpus or (pod.extended is not None and _is_read(pod, pod.extended, sources)):
        return
    # Other schedulers write device ids too, but only pods of ours are restricted to them.
    use.foreign |= not pod.ours
    # If only the node is guaranteed, the ids are those of the plan, not of the kubelet.
    planned = pod.annotations.get(GUARANTEE, "gpus") != "gpus"
    allocated = _by_kubelet(pod, node, sources) if planned or not pod.ours else None
    if allocated is None:
        allocated = GPUSet(0) if planned else _named(pod, node, pod.gpus, notes)
    if allocated:
        use.known.append((Holder("pod", *pod.key), allocated))
    use.unattributed += max(0, pod.gpus - count(allocated))


def _is_read(pod: PodRecord, claim: str, sources: AllocationSources) -> bool:
    return (pod.namespace, claim) in sources.claims.read


def _by_kubelet(pod: PodRecord, node: str, sources: AllocationSources) -> GPUSet | None:
    """The GPUs that the kubelet gave a pod; None if no agent has looked since its start."""
    kubelet = sources.kubelets.get(node)
    # An earlier pod may have had the same name.
    if kubelet is None or pod.started is None or kubelet.observed_at <= pod.started:
        return None
    return kubelet.gpus.get(f"{pod.namespace}/{pod.name}")


def _named(pod: PodRecord, node: str, gpus: int, notes: Notes) -> GPUSet:
    """The GPUs in the annotations of a pod."""
    for key in (GPU_GROUP, ACK_ALLOCATION):
        if key in pod.annotations:
            try:
                return _device_ids(pod.annotations[key])
            except ValueError as error:
                notes.add(
                    pod.path,
                    key,
                    f"{pod}: annotation {key} makes no sense: {error}; it has {gpus} of the GPUs of"
                    f" node {node}, it is not known which",
                )
    return GPUSet(0)


@lru_cache(maxsize=4096)
def _device_ids(text: str) -> GPUSet:
    """Read `0,3`, `[0, 3]` or ACK's allocation; ValueError for anything else.

    Cached: most pods of a cluster have one of few texts.
    """
    wrong = ValueError(f"{text[:80]!r} is no list of GPU ids")
    try:
        parsed = json.loads(f"[{text}]")
    except (ValueError, RecursionError) as error:
        raise wrong from error
    if len(parsed) == 1 and isinstance(parsed[0], dict) and "allocatedGPUs" in parsed[0]:
        by_container = parsed[0]["allocatedGPUs"]
        parsed = list(by_container.values()) if isinstance(by_container, dict) else [by_container]
        if not all(isinstance(ids, list) for ids in parsed):
            raise wrong
    ids = [number for part in parsed for number in (part if isinstance(part, list) else [part])]
    if not text.strip() or not all(re.fullmatch(r"\d{1,3}", str(number)) for number in ids):
        raise wrong
    return gpu_set(map(int, ids))
