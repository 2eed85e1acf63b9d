"""Kubernetes objects -> Occupancy: each node as `top node` shows it, with the pods on its GPUs.

Pure, and read in one pass together with the `Cluster` that the solver sees (`observed`), so that
both tell of the same moment. The classes of nodes are arena's (pkg/topnode); where arena has to
guess (roles, terminating pods, GPUs without an annotation) the objects are believed instead.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum

from arena_topo.clusters import observed
from arena_topo.clusters.objects import Object
from arena_topo.clusters.records import (
    CORE_GIVEN,
    GPU_PREFIXES,
    MEMORY_GIVEN,
    MEMORY_INDEX,
    NOWHERE,
    NodeRecord,
    PodRecord,
    Record,
    Unread,
    read,
)
from arena_topo.clusters.usage import Holder, NodeUsage
from arena_topo.engines.kubernetes.mpijob import pod_status
from arena_topo.manifests import GPU_GROUP, GPU_VISIBLE
from arena_topo.numbers import whole
from arena_topo.topology import Cluster, GPUSet, Knowledge, Node, count, gpu_set, members
from arena_topo.topology.fabric import FabricFile

SHARE_MEMORY = "aliyun.com/gpu-mem"
"""GiB of GPU memory, on nodes whose GPUs ACK shares (pkg/apis/types/const.go)."""

SHARE_CORE = "aliyun.com/gpu-core.percentage"
"""Hundredths of a GPU, there."""

SHARE_COUNT = "aliyun.com/gpu-count"
"""How many GPUs share that memory."""

_ROLE = "node-role.kubernetes.io/"
_ROLE_LABEL = "kubernetes.io/role"

_SLICED = ("nvidia.com/gpu", "nvidia.com/mig-")
"""Resources of a node whose GPUs are cut up (MIG) or handed out several times."""

_NONE = GPUSet(0)


class Mode(Enum):
    """How a node gives out its GPUs: arena's name, word and letter for it."""

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
        """Read a mode as arena does; ValueError carries its text."""
        for one in cls:
            if text in {one.label, one.letter} or text.lower() == one.alias:
                return one
        known = "|".join(f"{one.letter}({one.alias})" for one in cls)
        raise ValueError(f"unknown node type,only supports:[{known}]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a pod asks for and has of shared GPUs: GiB of memory and hundredths of cores, by GPU."""

    memory: int = 0
    core: int = 0
    memory_of: Mapping[str, int] = field(default_factory=dict)
    core_of: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePod:
    """A pod that holds GPUs of a node.

    `gpus` is how many it holds whole; `devices` are their indexes, None where nobody knows them.
    Then `planned` are those that it was meant to get. `visible` are those that it may see. `asks`
    is what it asks for of each GPU resource.
    """

    name: str
    namespace: str
    status: str
    gpus: int
    devices: tuple[int, ...] | None = None
    planned: tuple[int, ...] = ()
    visible: tuple[int, ...] = ()
    asks: Mapping[str, float] = field(default_factory=dict)
    share: Share | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """One node and what holds its GPUs.

    `status` is arena's word: Ready, NotReady or Unknown, with `,SchedulingDisabled` where it is
    cordoned. `role` is empty where it has none. `pods` are None where they may not be seen.
    `planned` are GPUs that are recorded for workers whose pods are not there yet. `capacity` and
    `allocatable` are the GPU resources that the node tells.
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
    def mode(self) -> Mode:
        """How it gives out its GPUs: topology wherever the links between them are known."""
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
        """Of each resource that cut up or shared GPUs offer: how many, and how many are taken."""
        return {
            resource: (most, sum(pod.asks.get(resource, 0) for pod in self.pods or ()))
            for resource, most in sorted(self.capacity.items())
            if resource.startswith(_SLICED) and most
        }

    @property
    def total(self) -> float:
        """How many GPUs it has, working or not."""
        return len(self.node.machine.gpus) or self.capacity.get(SHARE_COUNT, 0.0)

    @property
    def allocated(self) -> float:
        """How many of its GPUs pods hold; parts of shared GPUs to the tenth, as arena counts."""
        if self.mode is Mode.SHARE:
            return self._shared()
        if self.pods is None:
            return max(0, count(self._healthy) - self.node.free_count)
        return sum(pod.gpus for pod in self.pods)

    @property
    def unhealthy(self) -> float:
        """How many of its GPUs cannot be used."""
        if self.mode is Mode.SHARE:
            return self._lost()
        offered = self.allocatable.get(self.node.resource)
        usable = count(self._healthy)
        return max(0.0, self.total - (usable if offered is None else min(usable, offered)))

    @property
    def using(self) -> GPUSet:
        """GPUs that are known to be in use."""
        known = 0
        for pod in self.pods or ():
            known |= gpu_set(pod.devices or ())
        taken = self._healthy & ~self.node.free & ~self.planned
        return GPUSet((known | taken) & self.node.machine.everything)

    def state(self, gpu: int) -> str:
        """Arena's word for a GPU, `using` or `idle`, or one of ours.

        `planned` is recorded for a worker whose pod is not there; `unknown` is a GPU of a node of
        which some are in use without anybody saying which.
        """
        if self.using >> gpu & 1:
            return "using"
        if self.planned >> gpu & 1:
            return "planned"
        return "unknown" if self.node.unattributed and self.node.free >> gpu & 1 else "idle"

    def healthy(self, gpu: int) -> bool:
        """Whether a GPU works, as far as anybody says."""
        return bool(self._healthy >> gpu & 1)

    @property
    def _healthy(self) -> GPUSet:
        told = self.node.allocatable
        # Where none may be used that is told by their number, not by the GPUs.
        return self.node.machine.everything if told is None or not told else told

    def memory_of(self) -> float:
        """GiB of one shared GPU; 0 where it is not known."""
        total = self.total
        return self.capacity.get(SHARE_MEMORY, 0.0) / total if total else 0.0

    def _shared(self) -> float:
        each = self.memory_of()
        if each:
            shares = [pod.share for pod in self.pods or () if pod.share is not None]
            parts = sum(sum(one.memory_of.values()) for one in shares) / each
        else:
            # Slices are of different sizes, and those of one GPU are not told apart.
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
    """All nodes in the order of the cluster, and the cluster as the solver sees it."""

    cluster: Cluster
    nodes: tuple[NodeStatus, ...]


# ---------------------------------------------------------------- reading


def read_occupancy(
    objects: Iterable[Record | Unread | Object],
    *,
    source: str,
    file: FabricFile | None = None,
    now: float | None = None,
    notes: tuple[str, ...] = (),
) -> Occupancy:
    """Read nodes with their pods, and the cluster, from the objects that `observed` reads.

    The parameters are those of `observed.cluster`; `notes` come before its own. Pods have the
    status that their records have. What makes no sense becomes a note of the cluster.
    """
    nodes: dict[str, NodeRecord] = {}
    pods: dict[str, list[PodRecord]] = defaultdict(list)

    def passing() -> Iterator[Record | Unread]:
        for one in objects:
            known = read(one, status_of=pod_status) if isinstance(one, Mapping) else one
            if isinstance(known, NodeRecord):
                # Of two of one name the first counts.
                nodes.setdefault(known.name, known)
            elif isinstance(known, PodRecord) and known.node and (known.asks or known.claims):
                pods[known.node].append(known)
            if known is not None:
                yield known

    found = observed.Reader(source=source, file=file).read(passing(), now=now)
    return Occupancy(
        cluster=replace(found.cluster, notes=(*notes, *found.cluster.notes)),
        nodes=tuple(
            _status(node, nodes[node.name], pods.get(node.name, ()), found)
            for node in found.cluster.nodes
        ),
    )


def _status(
    node: Node, told: NodeRecord, pods: Iterable[PodRecord], found: observed.ClusterReading
) -> NodeStatus:
    use = found.uses.get(node.name, NodeUsage())
    ready = {None: "Unknown", "True": "Ready"}.get(told.ready, "NotReady")
    return NodeStatus(
        name=node.name,
        ip=told.address,
        role=role_of(node.labels),
        status=f"{ready},SchedulingDisabled" if told.unschedulable else ready,
        node=node,
        pods=tuple(_pods(pods, use, found)),
        planned=_planned(node, use),
        capacity=_gpu_resources(told.capacity),
        allocatable=_gpu_resources(told.allocatable),
    )


def viewed(cluster: Cluster, *, pods: bool = False) -> Occupancy:
    """The nodes of a cluster without their pods; `pods` says that no pod runs there."""
    return Occupancy(
        cluster=cluster,
        nodes=tuple(
            NodeStatus(
                name=node.name,
                ip=NOWHERE,
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
    "Unknown": "NotReady",
    "cordoned": "Ready,SchedulingDisabled",
}


def role_of(labels: Mapping[str, str]) -> str:
    """The roles of a node, by name, from its labels; empty where it has none."""
    roles = {key.removeprefix(_ROLE) for key in labels if key.startswith(_ROLE)}
    return ",".join(sorted(filter(None, roles | {labels.get(_ROLE_LABEL, "")})))


def _gpu_resources(offers: Mapping[str, float] | None) -> dict[str, float]:
    return {key: many for key, many in (offers or {}).items() if key.startswith(GPU_PREFIXES)}


def _planned(node: Node, use: NodeUsage) -> GPUSet:
    """The GPUs that only a record of a job holds."""
    records = pods = 0
    for who, gpus in use.known:
        if who.kind == "MPIJob":
            records |= gpus
        else:
            pods |= gpus
    return GPUSet(records & ~pods & node.machine.everything)


def _pods(
    pods: Iterable[PodRecord], use: NodeUsage, found: observed.ClusterReading
) -> Iterator[NodePod]:
    known = dict(use.known)
    for pod in pods:
        claimed = found.claims.given.get(pod.key)
        has = claimed if claimed is not None else known.get(Holder("pod", *pod.key))
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
    """Indexes of GPUs as an annotation lists them; none where it makes no sense."""
    words = str(text).split(",") if text else []
    return tuple(gpu for word in words if (gpu := whole(word.strip())) is not None)


def _share(asks: Mapping[str, float], given: Mapping[str, str]) -> Share | None:
    """What of shared GPUs a pod has, by ACK's annotations; None where it shares none."""
    memory, core = int(asks.get(SHARE_MEMORY, 0)), int(asks.get(SHARE_CORE, 0))
    if not memory and not core:
        return None
    has = _summed(given.get(MEMORY_GIVEN))
    index = given.get(MEMORY_INDEX)
    if not has and index:
        has = {str(index): memory}
    return Share(memory=memory, core=core, memory_of=has, core_of=_summed(given.get(CORE_GIVEN)))


def _summed(text: str | None) -> dict[str, int]:
    """`{container: {gpu: amount}}` summed over the containers; nothing where it makes no sense."""
    found: dict[str, int] = defaultdict(int)
    with suppress(ArithmeticError, AttributeError, RecursionError, TypeError, ValueError):
        for by_gpu in json.loads(text or "{}").values():
            for gpu, part in by_gpu.items():
                found[str(gpu)] += int(part)
    return dict(found)
