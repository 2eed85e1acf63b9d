"""Kubernetes objects -> Occupancy: each node as `top node` shows it, with the pods on its GPUs.

Pure. One pass reads the nodes and the `Cluster` of the solver (`observed`), so both show the same
moment. The classes of nodes are arena's (pkg/topnode); arena guesses roles, terminating pods and
GPUs without an annotation, this module takes them from the objects.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum

from arena_topo.clusters import observed
from arena_topo.clusters.records import (
    CORE_GIVEN,
    GPU_PREFIXES,
    MEMORY_GIVEN,
    MEMORY_INDEX,
    NOT_AVAILABLE,
    JobRecord,
    NodeRecord,
    PodRecord,
    Record,
    Unread,
)
from arena_topo.clusters.usage import GpuHolder, NodeUsage
from arena_topo.manifests import GPU_GROUP, GPU_VISIBLE
from arena_topo.numbers import parse_count
from arena_topo.topology import Cluster, GPUSet, Knowledge, Node, count, gpu_set, members
from arena_topo.topology.fabric import FabricFile

SHARE_MEMORY = "aliyun.com/gpu-mem"
"""GiB of GPU memory, on nodes whose GPUs ACK shares (pkg/apis/types/const.go)."""

SHARE_CORE = "aliyun.com/gpu-core.percentage"
"""Hundredths of a GPU, on the same nodes."""

SHARE_COUNT = "aliyun.com/gpu-count"
"""The number of GPUs that share this memory."""

_ROLE = "node-role.kubernetes.io/"
_ROLE_LABEL = "kubernetes.io/role"

_SLICED = ("nvidia.com/gpu", "nvidia.com/mig-")
"""Resources of nodes whose GPUs are partitioned (MIG) or time-sliced."""

_NONE = GPUSet(0)


class Mode(Enum):
    """How a node allocates its GPUs: arena's name, word and letter."""

    NORMAL = ("Normal", "none", "n")
    EXCLUSIVE = ("GPUExclusive", "exclusive", "e")
    TOPOLOGY = ("GPUTopology", "topology", "t")
    SHARE = ("GPUShare", "share", "s")

    def __init__(self, label: str, alias: str, letter: str) -> None:
        self.label = label
        self.alias = alias
        self.letter = letter

    @classmethod
    def parse(cls, text: str) -> Mode:
        """Read a mode as arena does; ValueError with arena's text."""
        for mode in cls:
            if text in {mode.label, mode.letter} or text.lower() == mode.alias:
                return mode
        known = "|".join(f"{mode.letter}({mode.alias})" for mode in cls)
        raise ValueError(f"unknown node type,only supports:[{known}]")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuShare:
    """A pod's request and allocation of shared GPUs: GiB of memory, hundredths of cores, by GPU."""

    memory: int = 0
    core: int = 0
    memory_of: Mapping[str, int] = field(default_factory=dict)
    core_of: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePod:
    """A pod that has GPUs of a node.

    `gpus` is the number of its whole GPUs; `devices` are their indexes, None if unknown. In that
    case `planned` are the indexes of the plan. `visible` are the GPUs that the pod may see. `asks`
    is its request for each GPU resource.
    """

    name: str
    namespace: str
    status: str
    gpus: int
    devices: tuple[int, ...] | None = None
    planned: tuple[int, ...] = ()
    visible: tuple[int, ...] = ()
    asks: Mapping[str, float] = field(default_factory=dict)
    share: GpuShare | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """One node and the pods on its GPUs.

    `status` is arena's word: Ready, NotReady or Unknown, with `,SchedulingDisabled` if the node is
    cordoned. `role` is empty without a role. `pods` is None if the caller may not list them.
    `planned` are GPUs recorded for workers without pods yet. `capacity` and `allocatable` are the
    node's GPU resources. Reserved GPUs of the node are neither in use nor idle.
    """

    name: str
    ip: str
    role: str
    status: str
    node: Node
    pods: tuple[NodePod, ...] | None = ()
    planned: GPUSet = _NONE
    capacity: Mapping[str, float] = field(default_factory=dict)
    allocatable: Mapping[str, float] = field(default_factory=dict)

    @property
    def reserved(self) -> int:
        """The number of GPUs that would be free if no gang waited for them."""
        return self.node.reserved_count

    @property
    def mode(self) -> Mode:
        """How the node allocates its GPUs: topology if the links between them are known."""
        if self.allocatable.get(SHARE_MEMORY, 0) > 0:
            return Mode.SHARE
        if self.node.shared is not None and (self.node.machine.gpus or self.slices):
            return Mode.SHARE
        if not self.node.machine.gpus:
            return Mode.NORMAL
        unknown = self.node.machine.knowledge is Knowledge.UNKNOWN
        return Mode.EXCLUSIVE if unknown else Mode.TOPOLOGY

    @property
    def slices(self) -> dict[str, tuple[float, float]]:
        """The resources of partitioned or time-sliced GPUs: the number of each, and that in use."""
        return {
            resource: (most, sum(pod.asks.get(resource, 0) for pod in self.pods or ()))
            for resource, most in sorted(self.capacity.items())
            if resource.startswith(_SLICED) and most
        }

    @property
    def total(self) -> float:
        """The number of GPUs, healthy or not."""
        return len(self.node.machine.gpus) or self.capacity.get(SHARE_COUNT, 0.0)

    @property
    def allocated(self) -> float:
        """The number of GPUs in use by pods; shared GPUs count to the tenth, as in arena."""
        if self.mode is Mode.SHARE:
            return self._shared()
        if self.pods is None:
            return max(0, self.node.healthy_count - self.node.unreserved.free_count)
        return sum(pod.gpus for pod in self.pods)

    @property
    def unhealthy(self) -> float:
        """The number of unhealthy GPUs."""
        if self.mode is Mode.SHARE:
            return self._lost()
        return float(self.node.unhealthy_count)

    @property
    def using(self) -> GPUSet:
        """The GPUs known to be in use."""
        known = 0
        for pod in self.pods or ():
            known |= gpu_set(pod.devices or ())
        taken = self.node.healthy & ~self.node.unreserved.free & ~self.planned
        return GPUSet((known | taken) & self.node.machine.everything)

    def state(self, gpu: int) -> str:
        """Arena's word for a GPU, `using` or `idle`, or a word of ours.

        `planned`: recorded for a worker without a pod yet. `reserved`: for the head of the queue,
        or for the next start of a gang. `unknown`: some GPUs of the node are in use or reserved,
        and their indexes are not known.
        """
        if self.using >> gpu & 1:
            return "using"
        if self.planned >> gpu & 1:
            return "planned"
        if self.node.reserved_idle >> gpu & 1:
            return "reserved"
        before = self.node.unreserved
        unknown = before.in_use_unknown or self.reserved_unknown
        return "unknown" if unknown and before.free >> gpu & 1 else "idle"

    @property
    def reserved_unknown(self) -> int:
        """The number of reserved GPUs that are not in use and whose indexes are unknown."""
        return max(0, self.node.reserved_count - count(self.node.reserved_idle))

    def healthy(self, gpu: int) -> bool | None:
        """Whether a GPU is healthy; None if it may be a broken one whose index is unknown."""
        if not self.node.healthy >> gpu & 1:
            return False
        return None if self.node.broken else True

    def memory_of(self) -> float:
        """GiB of memory of one shared GPU; 0 if unknown."""
        total = self.total
        return self.capacity.get(SHARE_MEMORY, 0.0) / total if total else 0.0

    def _shared(self) -> float:
        each = self.memory_of()
        if each:
            shares = [pod.share for pod in self.pods or () if pod.share is not None]
            parts = sum(sum(share.memory_of.values()) for share in shares) / each
        else:
            # Slices differ in size, and nothing says which of them are on one GPU.
            most = sum(offered for offered, _ in self.slices.values())
            taken = sum(used for _, used in self.slices.values())
            parts = self.total * taken / most if most else 0.0
        return round(parts, 1)

    def _lost(self) -> float:
        for resource in (SHARE_MEMORY, *self.slices):
            most, now = self.capacity.get(resource, 0.0), self.allocatable.get(resource)
            if most and now is not None:
                return float(int(self.total * (most - now) / most))
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """All nodes in the order of the cluster, and the cluster as the solver sees it.

    `queued`: a job may wait for GPUs, so that some may be reserved.
    """

    cluster: Cluster
    nodes: tuple[NodeStatus, ...]
    queued: bool = False


# ---------------------------------------------------------------- reading


def read_occupancy(
    objects: Iterable[Record | Unread],
    *,
    source: str,
    file: FabricFile | None = None,
    now: float | None = None,
    notes: tuple[str, ...] = (),
) -> Occupancy:
    """Read nodes with their pods, and the cluster, from the objects that `observed` reads.

    The parameters are those of `observed.ClusterReader`; `notes` come before its own. Pods have the
    status of their records. Invalid objects become notes of the cluster.
    """
    nodes: dict[str, NodeRecord] = {}
    pods: dict[str, list[PodRecord]] = defaultdict(list)
    queued = False

    def passing() -> Iterator[Record | Unread]:
        nonlocal queued
        for known in objects:
            if isinstance(known, NodeRecord):
                # The first of two objects with one name counts.
                nodes.setdefault(known.name, known)
            elif isinstance(known, PodRecord) and known.node and (known.asks or known.claims):
                pods[known.node].append(known)
            elif isinstance(known, JobRecord):
                queued = queued or known.waits
            yield known

    cluster_reading = observed.ClusterReader(source=source, file=file).read(passing(), now=now)
    return Occupancy(
        cluster=replace(cluster_reading.cluster, notes=(*notes, *cluster_reading.cluster.notes)),
        nodes=tuple(
            _status(node, nodes[node.name], pods.get(node.name, ()), cluster_reading)
            for node in cluster_reading.cluster.nodes
        ),
        queued=queued,
    )


def _status(
    node: Node,
    node_record: NodeRecord,
    pods: Iterable[PodRecord],
    cluster_reading: observed.ClusterReading,
) -> NodeStatus:
    use = cluster_reading.uses.get(node.name, NodeUsage())
    ready = {None: "Unknown", "True": "Ready"}.get(node_record.ready, "NotReady")
    return NodeStatus(
        name=node.name,
        ip=node_record.address,
        role=role_of(node.labels),
        status=f"{ready},SchedulingDisabled" if node_record.unschedulable else ready,
        node=node,
        pods=tuple(_pods(pods, use, cluster_reading)),
        planned=_planned(node, use),
        capacity=_gpu_resources(node_record.capacity),
        allocatable=_gpu_resources(node_record.allocatable),
    )


def viewed(cluster: Cluster, *, pods: bool = False) -> Occupancy:
    """The nodes of a cluster without their pods; `pods` says that no pods run there."""
    return Occupancy(
        cluster=cluster,
        nodes=tuple(
            NodeStatus(
                name=node.name,
                ip=NOT_AVAILABLE,
                role=role_of(node.labels),
                status=_STATUS.get(node.unavailable or "", "Ready"),
                node=node,
                pods=() if pods else None,
            )
            for node in cluster.nodes
        ),
    )


_STATUS = {
    "NotReady": "NotReady",
    "cordoned": "Ready,SchedulingDisabled",
}


def role_of(labels: Mapping[str, str]) -> str:
    """The sorted roles of a node, from its labels; empty without a role."""
    roles = {key.removeprefix(_ROLE) for key in labels if key.startswith(_ROLE)}
    return ",".join(sorted(filter(None, roles | {labels.get(_ROLE_LABEL, "")})))


def _gpu_resources(offers: Mapping[str, float] | None) -> dict[str, float]:
    return {key: many for key, many in (offers or {}).items() if key.startswith(GPU_PREFIXES)}


def _planned(node: Node, use: NodeUsage) -> GPUSet:
    """The GPUs that only the record of a job reserves."""
    records = pods = 0
    for who, gpus in use.known:
        if who.kind == "MPIJob":
            records |= gpus
        else:
            pods |= gpus
    return GPUSet(records & ~pods & node.machine.everything)


def _pods(
    pods: Iterable[PodRecord], use: NodeUsage, cluster_reading: observed.ClusterReading
) -> Iterator[NodePod]:
    known = dict(use.known)
    for pod in pods:
        claimed = cluster_reading.claims.given.get(pod.key)
        has = claimed if claimed is not None else known.get(GpuHolder("pod", *pod.key))
        gpus = max(pod.gpus or 0, count(claimed or GPUSet(0)))
        share = _share(pod.asks, pod.annotations)
        sliced = any(many and name.startswith(_SLICED) for name, many in pod.asks.items())
        if not gpus and share is None and not sliced:
            continue
        certain = has is not None and count(has) == gpus
        yield NodePod(
            name=pod.name,
            namespace=pod.namespace,
            status=pod.status,
            gpus=gpus,
            devices=members(has) if has is not None and certain else None,
            planned=() if certain else _listed(pod.annotations.get(GPU_GROUP)),
            visible=_listed(pod.annotations.get(GPU_VISIBLE)),
            asks=pod.asks,
            share=share,
        )


def _listed(text: object) -> tuple[int, ...]:
    """The indexes of GPUs in an annotation; words that are no number are skipped."""
    words = str(text).split(",") if text else []
    return tuple(gpu for word in words if (gpu := parse_count(word.strip())) is not None)


def _share(asks: Mapping[str, float], given: Mapping[str, str]) -> GpuShare | None:
    """A pod's part of shared GPUs, from ACK's annotations; None if the pod shares none."""
    memory, core = int(asks.get(SHARE_MEMORY, 0)), int(asks.get(SHARE_CORE, 0))
    if not memory and not core:
        return None
    has = _summed(given.get(MEMORY_GIVEN))
    index = given.get(MEMORY_INDEX)
    if not has and index:
        has = {str(index): memory}
    return GpuShare(memory=memory, core=core, memory_of=has, core_of=_summed(given.get(CORE_GIVEN)))


def _summed(text: str | None) -> dict[str, int]:
    """`{container: {gpu: amount}}` summed over the containers; empty if the text is invalid."""
    sums: dict[str, int] = defaultdict(int)
    with suppress(ArithmeticError, AttributeError, RecursionError, TypeError, ValueError):
        for by_gpu in json.loads(text or "{}").values():
            for gpu, part in by_gpu.items():
                sums[str(gpu)] += int(part)
    return dict(sums)
