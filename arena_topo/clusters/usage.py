"""Pods, claims and recorded placements -> the use of every node: GPUs, CPU, memory.

A pod whose devices are unknown, or whose annotation is invalid, still holds as many GPUs as it
requests. Sources of the devices, most reliable first: the allocation of its claim; the kubelet, as
the node's agent publishes it; the annotations of the pod.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from arena_topo.clusters.records import ACK_ALLOCATION, JobRecord, PodRecord
from arena_topo.manifests import GPU_GROUP, GUARANTEE
from arena_topo.notes import Notes
from arena_topo.topology import GPUSet, Holding, count, gpu_set, published

if TYPE_CHECKING:
    from arena_topo.clusters.slices import Allocated

_ALL = 1 << 20
"""More GPUs than any machine has: the count for a pod whose number of GPUs is unknown."""


class GpuHolder(NamedTuple):
    """A holder of GPUs on a node: a pod, the record of an MPIJob, or claims (without a name)."""

    kind: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.name else self.kind


class RestartReservation(msgspec.Struct, frozen=True, kw_only=True):
    """What waits on a node for the next start of a gang: GPUs, cores, and bytes of memory.

    `unnamed` is the number of its GPUs whose indexes are not known, `since` (Unix seconds) the stop
    of the gang.
    """

    gpus: GPUSet = GPUSet(0)
    unnamed: int = 0
    cpu: float = 0.0
    memory: int = 0
    since: float | None = None


class NodeUsage(msgspec.Struct, kw_only=True):
    """The use of one node by pods and recorded placements, as a running sum.

    `unattributed` counts GPUs in use whose indexes are unknown. `jobs` has the number of GPUs of
    each job, and of each pod without a job, by namespace and name; `named` are those of them whose
    indexes are known. `reserved` is what waits for the next start of each gang; it is not in use.
    """

    known: list[tuple[GpuHolder, GPUSet]] = []
    jobs: Counter[str] = msgspec.field(default_factory=Counter)
    named: dict[str, GPUSet] = {}
    reserved: dict[str, RestartReservation] = {}
    unattributed: int = 0
    cpu: float = 0.0
    memory: float = 0.0
    foreign: bool = False

    def hold(self, job: str, size: int, holder: GpuHolder, gpus: GPUSet) -> None:
        """Add so many GPUs of a job, `gpus` among them as their holder names them."""
        self.jobs[job] += size
        if gpus:
            self.known.append((holder, gpus))
            self.named[job] = GPUSet(self.named.get(job, 0) | gpus)
        self.unattributed += max(0, size - count(gpus))

    def reserve(self, job: str, worker: RestartReservation) -> None:
        """Reserve what a worker needs for the next start of a gang."""
        before = self.reserved.get(job, RestartReservation(since=worker.since))
        self.reserved[job] = RestartReservation(
            gpus=GPUSet(before.gpus | worker.gpus),
            unnamed=before.unnamed + worker.unnamed,
            cpu=before.cpu + worker.cpu,
            memory=before.memory + worker.memory,
            since=before.since,
        )

    def holdings(self) -> Iterator[Holding]:
        """The GPUs of each job here."""
        for job, size in self.jobs.items():
            yield Holding(job=job, size=size, gpus=self.named.get(job, GPUSet(0)))


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
        uses[name].known.append((GpuHolder(f"claims of GPUs of node {name}"), claimed))
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
        present = [(place, False) for place in job.workers]
        for (index, node, gpus), reserved in [*present, *((place, True) for place in job.reserved)]:
            key, later = (job.namespace, f"{job.name}-worker-{index}"), reserved or job.suspended
            if key in workers and _covers(workers[key], node, gpus, job, later=later):
                continue
            exact = gpu_set(gpus[: job.each]) if job.exact else GPUSet(0)
            if reserved:
                size = min(len(gpus) or job.each, job.each)
                # A pod of this worker that is still on the node uses its CPU and memory.
                ending = workers.get(key)
                counted = ending is not None and ending.node == node and not ending.over
                worker = RestartReservation(
                    gpus=exact,
                    unnamed=max(0, size - count(exact)),
                    cpu=0.0 if counted else job.cpu,
                    memory=0 if counted else job.memory,
                    since=job.since,
                )
                uses[node].reserve("/".join(job.key), worker)
            else:
                uses[node].hold("/".join(job.key), job.each, GpuHolder("MPIJob", *job.key), exact)
    return uses


def _covers(
    pod: PodRecord | None, node: str, gpus: Iterable[int], job: JobRecord, *, later: bool
) -> bool:
    """Whether the GPUs of this pod are those of the recorded worker, which must not count twice.

    None is a pod with claimed GPUs. A pod may belong to an earlier placement if it is being
    deleted, if its node is only promised, or if the recorded worker starts `later`: then the GPUs
    of the pod and those of the record both count as in use.
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
    if ends or later:
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
    owner = pod.name.rpartition("-worker-")[0] or pod.name
    # Other schedulers write device ids too, but only pods of ours are restricted to them.
    use.foreign |= not pod.ours
    # If only the node is guaranteed, the ids are those of the plan, not of the kubelet.
    planned = pod.annotations.get(GUARANTEE, "gpus") != "gpus"
    allocated = _by_kubelet(pod, node, sources) if planned or not pod.ours else None
    if allocated is None:
        allocated = GPUSet(0) if planned else _named(pod, node, pod.gpus, notes)
    use.hold(f"{pod.namespace}/{owner}", pod.gpus, GpuHolder("pod", *pod.key), allocated)


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
