"""Kubernetes objects -> Occupancy: each node as `top node` shows it, with the pods on its GPUs.

Pure, and read in one pass together with the `Cluster` that the solver sees (`observed`), so that
both tell of the same moment. The classes of nodes are arena's (pkg/topnode); where arena has to
guess (roles, terminating pods, GPUs without an annotation) the objects are believed instead.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from arena_topo.clusters import observed
from arena_topo.clusters.dump import Damage
from arena_topo.clusters.objects import Object, items, of
from arena_topo.clusters.usage import Use, amount, gpu_count, pod_over
from arena_topo.engines.kubernetes.mpijob import pod_status
from arena_topo.manifests import GPU_GROUP, GPU_VISIBLE
from arena_topo.numbers import whole
from arena_topo.topology import Cluster, GPUSet, Knowledge, Node, count, gpu_set, members
from arena_topo.topology.fabricfile import FabricFile

SHARE_MEMORY = "aliyun.com/gpu-mem"
"""GiB of GPU memory, on nodes whose GPUs ACK shares (pkg/apis/types/const.go)."""

SHARE_CORE = "aliyun.com/gpu-core.percentage"
"""Hundredths of a GPU, there."""

SHARE_COUNT = "aliyun.com/gpu-count"
"""How many GPUs share that memory."""

_ROLE = "node-role.kubernetes.io/"
_ROLE_LABEL = "kubernetes.io/role"

_GPU_PREFIXES = ("nvidia.com/", "aliyun.com/")

_MEMORY_GIVEN = "scheduler.framework.gpushare.allocation"
_CORE_GIVEN = "gpushare.alibabacloud.com/core-percentage"
_MEMORY_INDEX = "ALIYUN_COM_GPU_MEM_IDX"
"""Annotations by which ACK says what a pod has of which GPU; JSON by container, and an index."""

_SLICED = ("nvidia.com/gpu", "nvidia.com/mig-")
"""Resources of a node whose GPUs are cut up (MIG) or handed out several times."""

NOWHERE = "N/A"

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
        """GPUs that somebody is known to have."""
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
        return "unknown" if self.node.hidden and self.node.free >> gpu & 1 else "idle"

    def healthy(self, gpu: int) -> bool:
        """Whether a GPU works, as far as anybody says."""
        return bool(self._healthy >> gpu & 1)

    @property
    def _healthy(self) -> GPUSet:
        told = self.node.allocatable
        # Where none may be used that is told by their number, not by the GPUs.
        return self.node.machine.everything if told is None or not told else told

    def memory_of(self) -> float:
        """GiB of one shared GPU; 0 where nobody tells."""
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


# ---------------------------------------------------------------- what is kept of objects


def project(kind: str, one: Object) -> dict[str, Any]:
    """Keep of an object what `survey` reads; what it raises is as of `observed.project`."""
    small = observed.project(kind, one)
    if kind in _SHOWN:
        shown = _SHOWN[kind](one)
        if shown:
            small["shown"] = _Shown(shown)
    return small


class _Shown(dict[str, Any]):
    """What `project` has added; nothing that came with an object is taken for it."""


def _node_shown(one: Object) -> dict[str, Any]:
    status = of(one, "status")
    addresses = items(status, "addresses")
    return {"ip": str(addresses[0].get("address") or NOWHERE) if addresses else NOWHERE}


def _pod_shown(one: Object) -> dict[str, Any]:
    """Of a pod that holds GPUs: its status and what it asks for; nothing of any other."""
    spec = of(one, "spec")
    if pod_over(one) or "nodeName" not in spec:
        return {}
    asks: dict[str, float] = defaultdict(float)
    for container in items(spec, "containers"):
        for resource, quantity in of(of(container, "resources"), "limits").items():
            if resource.startswith(_GPU_PREFIXES):
                asks[resource] += amount(quantity)
    if not asks and not spec.get("resourceClaims"):
        return {}
    annotations = of(of(one, "metadata"), "annotations")
    given = {key: annotations[key] for key in _GIVEN if key in annotations}
    return {"status": pod_status(one), "asks": dict(asks), "given": given}


_GIVEN = (_MEMORY_GIVEN, _CORE_GIVEN, _MEMORY_INDEX, GPU_GROUP, GPU_VISIBLE)
_SHOWN: Mapping[str, Callable[[Object], dict[str, Any]]] = {
    "Node": _node_shown,
    "Pod": _pod_shown,
}


# ---------------------------------------------------------------- reading


def survey(
    objects: Iterable[Object | Damage],
    *,
    source: str,
    file: FabricFile | None = None,
    now: float | None = None,
    notes: tuple[str, ...] = (),
) -> Occupancy:
    """Read nodes with their pods, and the cluster, from the objects that `observed` reads.

    The parameters are those of `observed.cluster`; `notes` come before its own. Objects may be
    whole, or what `project` keeps of them. What makes no sense becomes a note of the cluster.
    """
    seen = _Seen()
    found = observed.survey(seen.passing(objects), source=source, file=file, now=now)
    cluster = replace(found.cluster, notes=(*notes, *found.cluster.notes))
    nodes = []
    for node in cluster.nodes:
        shown = seen.nodes.get(node.name, {})
        use = found.uses.get(node.name, Use())
        nodes.append(
            NodeStatus(
                name=node.name,
                ip=shown.get("ip", NOWHERE),
                role=role_of(node.labels),
                status=shown.get("status", "Unknown"),
                node=node,
                pods=tuple(_pods(seen.pods.get(node.name, ()), use, found)),
                planned=_planned(node, use),
                capacity=shown.get("capacity", {}),
                allocatable=shown.get("allocatable", {}),
            )
        )
    return Occupancy(cluster=cluster, nodes=tuple(nodes))


def viewed(cluster: Cluster, *, pods: bool = False) -> Occupancy:
    """The nodes of a cluster of which only this is known; with `pods` that none runs there."""
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


class _Seen:
    """What is remembered of the objects that pass."""

    def __init__(self) -> None:
        self.nodes: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, list[tuple[Object, dict[str, Any]]]] = defaultdict(list)

    def passing(self, objects: Iterable[Object | Damage]) -> Iterator[Object | Damage]:
        """The same objects, reduced, for whoever reads them after this."""
        for one in objects:
            small = one
            if isinstance(one, Mapping):
                # `observed` says what is wrong with it.
                with suppress(AttributeError, KeyError, TypeError, ValueError):
                    small = self._noted(one)
            yield small

    def _noted(self, one: Object) -> Object:
        kind = str(one.get("kind"))
        if kind not in _SHOWN:
            return one
        small = one if isinstance(one.get("shown"), _Shown) else project(kind, one)
        meta, shown = small["metadata"], small.get("shown")
        if kind == "Node":
            # Of two of one name the first counts.
            self.nodes.setdefault(meta["name"], {**(shown or {}), **_told(small)})
        elif shown:
            self.pods[small["spec"]["nodeName"]].append((small, shown))
        return small


def _told(node: Object) -> dict[str, Any]:
    """The status and the GPU resources of a node that `project` made."""
    ready = [one.get("status") for one in node["status"]["conditions"]]
    words = ["Ready" if ready[0] == "True" else "NotReady"] if ready else ["Unknown"]
    if node["spec"]["unschedulable"]:
        words.append("SchedulingDisabled")
    return {
        "status": ",".join(words),
        **{
            side: dict(_resources(of(node["status"], side))) for side in ("capacity", "allocatable")
        },
    }


def _resources(offers: Object) -> Iterator[tuple[str, float]]:
    for resource, quantity in offers.items():
        if resource.startswith(_GPU_PREFIXES):
            with suppress(ValueError):
                yield resource, amount(quantity)


def _planned(node: Node, use: Use) -> GPUSet:
    """The GPUs that only a record of a job holds."""
    records = pods = 0
    for who, gpus in use.known:
        if who.startswith("MPIJob "):
            records |= gpus
        else:
            pods |= gpus
    return GPUSet(records & ~pods & node.machine.everything)


def _pods(
    pods: Iterable[tuple[Object, dict[str, Any]]], use: Use, found: observed.Survey
) -> Iterator[NodePod]:
    known = dict(use.known)
    for pod, shown in pods:
        meta, given = pod["metadata"], shown["given"]
        key = (meta.get("namespace", ""), meta["name"])
        claimed = found.claims.given.get(key)
        try:
            gpus = gpu_count(pod["spec"])
        except (TypeError, ValueError):
            gpus = 0
        has = claimed if claimed is not None else known.get(f"pod {key[0]}/{key[1]}")
        gpus = max(gpus, count(claimed or GPUSet(0)))
        share = _share(shown["asks"], given)
        sliced = any(many and name.startswith(_SLICED) for name, many in shown["asks"].items())
        if not gpus and share is None and not sliced:
            continue
        certain = has is not None and count(has) == gpus
        yield NodePod(
            name=key[1],
            namespace=key[0],
            status=shown["status"],
            gpus=gpus,
            devices=members(has) if has is not None and certain else None,
            planned=() if certain else _listed(given.get(GPU_GROUP)),
            visible=_listed(given.get(GPU_VISIBLE)),
            asks=shown["asks"],
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
    has = _summed(given.get(_MEMORY_GIVEN))
    index = given.get(_MEMORY_INDEX)
    if not has and index:
        has = {str(index): memory}
    return Share(memory=memory, core=core, memory_of=has, core_of=_summed(given.get(_CORE_GIVEN)))


def _summed(text: str | None) -> dict[str, int]:
    """`{container: {gpu: amount}}` summed over the containers; nothing where it makes no sense."""
    found: dict[str, int] = defaultdict(int)
    with suppress(AttributeError, TypeError, ValueError):
        for by_gpu in json.loads(text or "{}").values():
            for gpu, part in by_gpu.items():
                found[str(gpu)] += int(part)
    return dict(found)
