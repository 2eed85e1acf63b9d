"""Kubernetes objects -> Cluster: which GPUs there are, which of them are free, what joins them.

Pure: the same reader serves a live API server (`kubernetes`) and a dump on disk (`dump`). What
cannot be understood becomes a note and counts against what is free, never for it.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from arena_topo import manifests
from arena_topo.backends import network
from arena_topo.errors import UnreadableTopology
from arena_topo.job import Quantity
from arena_topo.manifests.values import FORMAT, GPU_GROUP, GPU_VISIBLE, GUARANTEE, MAP, STATE
from arena_topo.topology import (
    ORDINARY,
    PUBLISHED,
    TAINT,
    Cluster,
    GPUSet,
    Machine,
    Node,
    NodeName,
    Taint,
    count,
    gpu_set,
    natural,
    published,
)
from arena_topo.topology.fabricfile import FabricFile

Object = Mapping[str, Any]

GPU_RESOURCES = (PUBLISHED, ORDINARY)
"""What a GPU is called in requests; a node that offers both is asked for the first."""

ACK_ALLOCATION = "gputopology.alibabacloud.com/allocation"
"""JSON of the ACK scheduler: `{"allocatedGPUs": {"0": ["0", "3"]}, ...}`, by container index
(koordinator, pkg/scheduler/plugins/ack/gputopology)."""

KUEUE = "kueue.x-k8s.io"
"""The API group of the `Topology` that tells of the network."""

_POD_ANNOTATIONS = (GPU_GROUP, GPU_VISIBLE, ACK_ALLOCATION, GUARANTEE, FORMAT)
_JOB_ANNOTATIONS = (MAP, STATE)
_OVER = ("Succeeded", "Failed")
_NOTES_OF_A_KIND = 3


def cluster(objects: Iterable[Object], *, source: str, file: FabricFile | None = None) -> Cluster:
    """Build the cluster that nodes, pods, MPIJobs, ConfigMaps and Kueue topologies describe.

    Objects come in any order and of any kind, those of no use are ignored, and each is reduced as
    it passes, so an iterator over a large dump is never held whole. `source` names the origin for
    people. `file` says what joins the nodes, where it is given, whatever else does. Every node has
    as many domains as the cluster has tiers.
    """
    notes = _Notes()
    found: dict[str, list[Object]] = {kind: [] for kind in _PROJECTIONS}
    for one in objects:
        kind = one.get("kind") if isinstance(one, Mapping) else None
        if not isinstance(kind, str) or kind not in _PROJECTIONS:
            continue
        # Other groups have kinds of that name; in a bare list items may not say their group.
        if kind == "Topology" and str(one.get("apiVersion", KUEUE)).partition("/")[0] != KUEUE:
            continue
        try:
            found[kind].append(project(kind, one))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            notes.add("object", f"{kind} {_name_of(one)} makes no sense and is ignored: {error}")
    machines = _Machines(found["ConfigMap"], notes)
    uses = _uses(found["Pod"], found["MPIJob"], notes)
    nodes: dict[NodeName, Object] = {}
    for one in found["Node"]:
        name = NodeName(one["metadata"]["name"])
        if name in nodes:
            notes.add("twice", f"node {name} is listed twice; the first one counts")
            continue
        nodes[name] = one
    known = {
        name: machines.of(name, one["metadata"]["labels"], _present(one))
        for name, one in nodes.items()
    }
    joined = network.joining(
        {name: one.machine for name, one in known.items()},
        {name: one["metadata"]["labels"] for name, one in nodes.items()},
        rdma={name: nic for name, one in nodes.items() if (nic := _rdma(one["status"]))},
        topologies=found["Topology"],
        file=file,
    )
    for note in joined.notes:
        notes.add("network", note)
    return Cluster(
        nodes=tuple(
            _node(nodes[name], known[name], joined.domains[name], uses.get(name, _Use()), notes)
            for name in sorted(nodes, key=natural)
        ),
        tiers=joined.tiers,
        beyond=joined.beyond,
        guesses=joined.guesses,
        notes=notes.all(),
        source=source,
    )


def project(kind: str, one: Object) -> dict[str, Any]:
    """Keep of an object of these kinds only what `cluster` reads, in the same shape.

    A pod of 6.7 kB becomes some 400 bytes, which is what makes clusters of 10,000 nodes fit in
    memory. KeyError for another kind; TypeError or ValueError for an object without a name.
    """
    small = _PROJECTIONS[kind](one)
    name = small["metadata"].get("name")
    if not isinstance(name, str) or not name:
        raise ValueError("it has no name")
    if kind == "Node" and not manifests.is_node_name(name):
        raise ValueError("no node can be called so")
    return {"kind": kind, **small}


def _of(one: Object, key: str) -> Object:
    """The mapping under a key; an absent or null one is empty, another type is a TypeError."""
    value = one.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"{key} is no mapping")
    return value


def _items(one: Object, key: str) -> list[Object]:
    value = one.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise TypeError(f"{key} is no list of mappings")
    return value


def _only(one: Object, keys: Iterable[str]) -> dict[str, Any]:
    return {key: one[key] for key in keys if one.get(key) is not None}


def _texts(one: Object, keys: Iterable[str]) -> dict[str, Any]:
    """These keys, as far as they are there; TypeError if one is no text."""
    found = _only(one, keys)
    for key, value in found.items():
        if not isinstance(value, str):
            raise TypeError(f"{key} is no text")
    return found


def _labels(meta: Object) -> dict[str, str]:
    return {str(key): str(value) for key, value in _of(meta, "labels").items()}


def _project_node(one: Object) -> dict[str, Any]:
    meta, spec, status = _of(one, "metadata"), _of(one, "spec"), _of(one, "status")
    return {
        "metadata": {"name": meta.get("name"), "labels": _labels(meta)},
        "spec": {
            "unschedulable": spec.get("unschedulable"),
            "taints": [
                _texts(taint, ("key", "value", "effect")) for taint in _items(spec, "taints")
            ],
        },
        "status": {
            **{
                side: dict(_of(status, side))
                for side in ("allocatable", "capacity")
                if status.get(side) is not None
            },
            "conditions": [
                _texts(condition, ("type", "status"))
                for condition in _items(status, "conditions")
                if condition.get("type") == "Ready"
            ],
        },
    }


def _project_pod(one: Object) -> dict[str, Any]:
    meta, spec = _of(one, "metadata"), _of(one, "spec")
    small: dict[str, Any] = {
        "metadata": {
            **_texts(meta, ("name", "namespace")),
            "annotations": _only(_of(meta, "annotations"), _POD_ANNOTATIONS),
        },
        "spec": _texts(spec, ("nodeName",)),
        "status": _texts(_of(one, "status"), ("phase",)),
    }
    if "nodeName" in small["spec"] and small["status"].get("phase") not in _OVER:
        small["spec"] |= _only(spec, ("overhead", "resources")) | _containers(spec)
    return small


def _containers(spec: Object) -> dict[str, Any]:
    return {
        key: [_only(one, ("resources", "restartPolicy")) for one in _items(spec, key)]
        for key in ("containers", "initContainers")
        if spec.get(key)
    }


def _project_mpijob(one: Object) -> dict[str, Any]:
    meta, status = _of(one, "metadata"), _of(one, "status")
    template = worker_template(one)
    return {
        "metadata": {
            **_texts(meta, ("name", "namespace", "deletionTimestamp")),
            "annotations": _only(_of(meta, "annotations"), _JOB_ANNOTATIONS),
        },
        "spec": {
            "template": {
                "metadata": {
                    "annotations": _only(
                        _of(_of(template, "metadata"), "annotations"), (GUARANTEE,)
                    )
                },
                "spec": _containers(_of(template, "spec")),
            }
        },
        "status": {
            **_texts(status, ("launcherStatus",)),
            "conditions": [
                _texts(condition, ("type", "status")) for condition in _items(status, "conditions")
            ],
        },
    }


def _project_config_map(one: Object) -> dict[str, Any]:
    meta = _of(one, "metadata")
    return {
        "metadata": {
            **_texts(meta, ("name", "namespace")),
            "labels": _labels(meta),
            "annotations": _only(_of(meta, "annotations"), (published.KNOWLEDGE_ANNOTATION,)),
        },
        "data": dict(_of(one, "data")) if _publishes_topology(meta) else {},
    }


def _project_topology(one: Object) -> dict[str, Any]:
    return {
        "metadata": _texts(_of(one, "metadata"), ("name",)),
        # `network` says what is wrong with it.
        "spec": one.get("spec"),
    }


_PROJECTIONS = {
    "Node": _project_node,
    "Pod": _project_pod,
    "MPIJob": _project_mpijob,
    "ConfigMap": _project_config_map,
    "Topology": _project_topology,
}


def worker_template(mpijob: Object) -> Object:
    """The pod template of the workers, in any of the three versions; empty where there is none."""
    spec = _of(mpijob, "spec")
    if "mpiReplicaSpecs" in spec:
        spec = _of(_of(spec, "mpiReplicaSpecs"), "Worker")
    return _of(spec, "template")


def job_over(mpijob: Object) -> bool:
    """Whether the operator says that the job has ended."""
    status = _of(mpijob, "status")
    return status.get("launcherStatus") in _OVER or any(
        condition.get("type") in _OVER and condition.get("status") == "True"
        for condition in _items(status, "conditions")
    )


def gpu_count(pod_spec: Object) -> int:
    """The GPUs that a pod holds: its limits, under either name of the resource.

    ValueError for a quantity that is none.
    """
    return round(sum(_demand(pod_spec, "limits", name) for name in GPU_RESOURCES))


def _demand(spec: Object, side: str, resource: str) -> float:
    """What a pod takes of a resource, by the scheduler's rule for init containers.

    Init containers run one after another before the others start; those that restart always
    (sidecars) stay (kubernetes, pkg/api/v1/resource: PodRequests).
    """
    whole = _of(_of(spec, "resources"), side).get(resource)
    overhead = _amount(_of(spec, "overhead").get(resource))
    if whole is not None:
        return _amount(whole) + overhead
    running = sum(_asked(one, side, resource) for one in _items(spec, "containers"))
    sidecars = peak = 0.0
    for one in _items(spec, "initContainers"):
        asked = _asked(one, side, resource)
        if one.get("restartPolicy") == "Always":
            sidecars += asked
            peak = max(peak, sidecars)
        else:
            peak = max(peak, sidecars + asked)
    return max(running + sidecars, peak) + overhead


def _asked(container: Object, side: str, resource: str) -> float:
    resources = _of(container, "resources")
    asked = _of(resources, side).get(resource)
    if asked is None and side == "requests":
        # The API server fills in requests from limits; a hand-written dump may not.
        asked = _of(resources, "limits").get(resource)
    return _amount(asked)


def _amount(quantity: Any) -> float:
    return 0.0 if quantity is None else _parsed(str(quantity))


@lru_cache(maxsize=4096)
def _parsed(text: str) -> float:
    return float(Quantity.parse(text).amount)


@dataclass(slots=True, kw_only=True)
class _Use:
    """What pods and recorded placements take of one node, while it is being added up."""

    known: list[tuple[str, GPUSet]] = field(default_factory=list)
    hidden: int = 0
    cpu: float = 0.0
    memory: float = 0.0
    foreign: bool = False


def _uses(pods: Iterable[Object], jobs: Iterable[Object], notes: _Notes) -> dict[str, _Use]:
    uses: dict[str, _Use] = defaultdict(_Use)
    settled: set[tuple[str, str]] = set()
    for pod in pods:
        meta, spec = pod["metadata"], pod["spec"]
        over = pod["status"].get("phase") in _OVER
        if over or "nodeName" in spec:
            settled.add((meta.get("namespace", ""), meta["name"]))
        if over or "nodeName" not in spec:
            continue
        use = uses[spec["nodeName"]]
        for add in (_add_gpus, _add_cpu, _add_memory):
            try:
                add(pod, use, notes)
            except (TypeError, ValueError) as error:
                notes.add("pod", f"{_who(pod)} asks for resources that make no sense: {error}")
    for job in jobs:
        _add_record(job, uses, settled, notes)
    return uses


def _add_cpu(pod: Object, use: _Use, _notes: _Notes) -> None:
    use.cpu += _demand(pod["spec"], "requests", "cpu")


def _add_memory(pod: Object, use: _Use, _notes: _Notes) -> None:
    use.memory += _demand(pod["spec"], "requests", "memory")


def _add_gpus(pod: Object, use: _Use, notes: _Notes) -> None:
    spec, annotations = pod["spec"], pod["metadata"]["annotations"]
    gpus = gpu_count(spec)
    if not gpus:
        return
    # Other schedulers write device ids as well; only ours keep to the devices they were given.
    use.foreign |= FORMAT not in annotations
    # Where only the node is guaranteed, the ids are the plan's, not what the kubelet gave.
    if annotations.get(GUARANTEE, "gpus") != "gpus":
        use.hidden += gpus
        return
    ids: frozenset[int] = frozenset()
    for key in (GPU_GROUP, ACK_ALLOCATION):
        if key in annotations:
            try:
                ids = _device_ids(str(annotations[key]))
                break
            except ValueError as error:
                notes.add("ids", f"{_who(pod)}: annotation {key} makes no sense: {error}")
    if ids:
        use.known.append((_who(pod), gpu_set(ids)))
    use.hidden += max(0, gpus - len(ids))


def _device_ids(text: str) -> frozenset[int]:
    """Read `0,3`, `[0, 3]` or ACK's allocation; ValueError if it is none of them."""
    if re.fullmatch(r"\s*\d{1,3}\s*(,\s*\d{1,3}\s*)*", text):
        return frozenset(int(word) for word in text.split(","))
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{text[:80]!r} is no list of GPU ids") from error
    if isinstance(value, dict):
        by_container = value.get("allocatedGPUs")
        if isinstance(by_container, dict):
            value = [one for ids in by_container.values() for one in ids]
    if not isinstance(value, list) or not all(re.fullmatch(r"\d{1,3}", str(one)) for one in value):
        raise ValueError(f"{text[:80]!r} is no list of GPU ids")
    return frozenset(int(one) for one in value)


def _add_record(
    job: Object, uses: dict[str, _Use], settled: set[tuple[str, str]], notes: _Notes
) -> None:
    """Count the placement recorded on a job for those workers whose pods hold nothing yet."""
    meta = job["metadata"]
    annotations = meta["annotations"]
    if (
        annotations.get(STATE) != "placed"
        or MAP not in annotations
        or "deletionTimestamp" in meta
        or job_over(job)
    ):
        return
    who = f"MPIJob {meta.get('namespace', '')}/{meta['name']}"
    template = job["spec"]["template"]
    guarantee = template["metadata"]["annotations"].get(GUARANTEE, "gpus")
    try:
        workers = manifests.parse_map(str(annotations[MAP]))
        each = gpu_count(template["spec"])
    except (TypeError, ValueError) as error:
        notes.add("record", f"{who}: its recorded placement makes no sense: {error}")
        return
    for index, node, gpus in workers:
        if (meta.get("namespace", ""), f"{meta['name']}-worker-{index}") in settled:
            continue
        if gpus and guarantee == "gpus":
            uses[node].known.append((who, gpu_set(gpus)))
        else:
            uses[node].hidden += each


@dataclass(frozen=True, slots=True)
class _Known:
    """A machine and which of its GPUs are healthy."""

    machine: Machine
    healthy: GPUSet


class _Machines:
    """The machine of each node: from its ConfigMap, else from its labels.

    Nodes of a cluster are bought by the dozen, so equal descriptions are parsed once and share
    their link matrix.
    """

    def __init__(self, config_maps: Iterable[Object], notes: _Notes) -> None:
        self._notes = notes
        self._config_maps: dict[str, Object] = {}
        self._parsed: dict[object, _Known] = {}
        for one in config_maps:
            meta = one["metadata"]
            if not _publishes_topology(meta):
                continue
            node = one["data"].get("nodeName") or meta["labels"].get(published.NODE_LABEL)
            if not node:
                notes.add("topology", f"{_config_map_name(one)} does not say which node it is of")
            elif node in self._config_maps:
                notes.add("topology", f"{_config_map_name(one)} is the second for node {node}")
            else:
                self._config_maps[node] = one

    def of(self, name: str, labels: Object, offered: int) -> _Known:
        """The machine of a node that offers so many GPUs."""
        config_map = self._config_maps.get(name)
        if config_map is not None:
            known = self._published(name, config_map, labels, offered)
            if known is not None:
                return known
        telling = tuple(sorted(_telling(labels)))
        shared = self._parsed.get((telling, offered))
        if shared is None:
            machine = published.from_labels(name, labels, offered)
            shared = _Known(machine, machine.everything)
            self._parsed[telling, offered] = shared
        return _renamed(shared, name)

    def _published(
        self, name: str, config_map: Object, labels: Object, offered: int
    ) -> _Known | None:
        product = next((labels[key] for key in published.PRODUCT_LABELS if key in labels), None)
        told = {**config_map["data"], **config_map["metadata"]["annotations"], "product": product}
        key = frozenset((key, str(value)) for key, value in told.items() if key != "nodeName")
        known = self._parsed.get(key)
        if known is None:
            try:
                said, complaints = published.salvage(config_map, model=product)
            except UnreadableTopology as error:
                self._notes.add("topology", f"{error}; using the labels of node {name}")
                return None
            machine = said.machine
            for lost, complaint in complaints.items():
                instead = f"; using the labels of node {name}" if lost == "linkType" else ""
                self._notes.add("topology", f"{complaint}{instead}")
            if "linkType" in complaints:
                machine = published.from_labels(name, labels, len(machine.gpus))
            known = _Known(machine, said.healthy)
            if not complaints:
                self._parsed[key] = known
        if offered > len(known.machine.gpus):
            self._notes.add(
                "topology",
                f"{_config_map_name(config_map)} describes {len(known.machine.gpus)} GPUs, but"
                f" node {name} offers {offered}; using its labels",
            )
            return None
        return _renamed(known, name)


def _renamed(known: _Known, name: str) -> _Known:
    if known.machine.name == name:
        return known
    return replace(known, machine=replace(known.machine, name=name))


def _telling(labels: Object) -> Iterable[tuple[str, str]]:
    """The labels that describe GPUs, without those that differ from node to node."""
    for key, value in labels.items():
        if key.startswith(("nvidia.com/", "aliyun.")) and "timestamp" not in key:
            yield key, str(value)


def _resource(status: Object) -> str:
    """What a node calls its GPUs; empty where it offers none."""
    capacity, allocatable = _offers(status, "capacity"), _offers(status, "allocatable")
    found = next((key for key in GPU_RESOURCES if (allocatable or capacity or {}).get(key)), "")
    return found or next((key for key in GPU_RESOURCES if (capacity or {}).get(key)), "")


def _present(one: Object) -> int:
    """How many GPUs a node has, as far as it says."""
    status, labels = one["status"], one["metadata"]["labels"]
    offers = _offers(status, "capacity") or _offers(status, "allocatable")
    # A device that fell off the bus leaves the capacity, but the label keeps counting it.
    return max(_whole(offers, _resource(status)), _whole(labels, "nvidia.com/gpu.count"))


def _node(one: Object, known: _Known, domains: tuple[str, ...], use: _Use, notes: _Notes) -> Node:
    name, labels = one["metadata"]["name"], one["metadata"]["labels"]
    status = one["status"]
    capacity, allocatable = _offers(status, "capacity"), _offers(status, "allocatable")
    resource = _resource(status)
    usable = count(known.healthy)
    if allocatable is not None or capacity is not None:
        usable = min(usable, _whole(allocatable if allocatable is not None else capacity, resource))
    free, hidden = _free(name, known, use, notes)
    hidden += count(known.healthy) - usable
    if hidden >= count(free):
        # Every GPU is in use, whoever has which: nothing is left to be in doubt about.
        free, hidden = GPUSet(0), 0
    taints = tuple(_taints(one["spec"]["taints"]))
    return Node(
        name=NodeName(name),
        machine=known.machine,
        free=free,
        hidden=hidden,
        allocatable=known.healthy if usable else GPUSet(0),
        cpu=_left(allocatable, "cpu", use.cpu),
        memory=None if (left := _left(allocatable, "memory", use.memory)) is None else int(left),
        labels=labels,
        taints=taints,
        all_cpu=_left(allocatable, "cpu", 0.0),
        all_memory=None if (whole := _left(allocatable, "memory", 0.0)) is None else int(whole),
        unavailable=_unavailable(one),
        shared=published.shared(labels),
        resource=resource or ORDINARY,
        dedicated=labels.get(published.SCHEDULE_LABEL) == "topology"
        or (
            TAINT in labels
            and any(taint.key == TAINT and taint.effect == "NoSchedule" for taint in taints)
        ),
        foreign=use.foreign,
        domains=domains,
    )


def _free(name: str, known: _Known, use: _Use, notes: _Notes) -> tuple[GPUSet, int]:
    """The GPUs nobody is known to have, and how many of them somebody has all the same."""
    free, busy, hidden = known.healthy, GPUSet(0), use.hidden
    for who, gpus in use.known:
        there = GPUSet(gpus & known.machine.everything)
        if there != gpus:
            notes.add(
                "ids",
                f"{who} says it has GPU {(gpus ^ there).bit_length() - 1} of node {name},"
                f" which has {len(known.machine.gpus)}",
            )
        # Two that name one GPU cannot both be right: one of them has another that nobody names.
        hidden += count(GPUSet(gpus ^ there)) + count(GPUSet(there & busy))
        busy = GPUSet(busy | there)
    return GPUSet(free & ~busy), hidden


def _offers(status: Object, side: str) -> Object | None:
    """What a node offers, or None if it does not say."""
    return _of(status, side) if side in status else None


def _rdma(status: Object) -> str | None:
    """The resource by which a node offers RDMA."""
    offers = _offers(status, "allocatable") or _offers(status, "capacity") or {}
    found = network.rdma_resource(offers)
    # A device that is not there any more is listed with 0.
    if found is None or _whole(offers, found):
        return found
    return network.rdma_resource(name for name in offers if _whole(offers, name))


def _whole(offers: Object | None, resource: str) -> int:
    try:
        return int(_amount((offers or {}).get(resource)))
    except ValueError:
        return 0


def _left(allocatable: Object | None, resource: str, used: float) -> float | None:
    if allocatable is None or resource not in allocatable:
        return None
    try:
        return max(0.0, round(_amount(allocatable[resource]) - used, 6))
    except ValueError:
        return None


def _taints(taints: Iterable[Object]) -> Iterable[Taint]:
    for one in taints:
        yield Taint(
            key=str(one.get("key", "")),
            value=str(one.get("value", "")),
            effect=str(one.get("effect", "NoSchedule")),
        )


def _unavailable(node: Object) -> str | None:
    ready = next((one.get("status") for one in node["status"]["conditions"]), "True")
    if ready != "True":
        return "NotReady" if ready == "False" else "Unknown"
    return "cordoned" if node["spec"]["unschedulable"] else None


def _publishes_topology(meta: Object) -> bool:
    # Elsewhere anybody may write ConfigMaps, and could steer other people's jobs.
    return (
        meta.get("namespace") == published.NAMESPACE
        and _of(meta, "labels").get(published.SCHEDULE_LABEL) == "topology"
    )


def _config_map_name(one: Object) -> str:
    return f"configmap {one['metadata'].get('namespace', '')}/{one['metadata']['name']}"


def _who(pod: Object) -> str:
    return f"pod {pod['metadata'].get('namespace', '')}/{pod['metadata']['name']}"


def _name_of(one: Object) -> str:
    meta = one.get("metadata")
    return (
        str(meta.get("name", "without a name")) if isinstance(meta, Mapping) else "without a name"
    )


class _Notes:
    """Things worth telling a person; of many alike, a few and how many more."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = defaultdict(list)
        self._more: dict[str, int] = defaultdict(int)

    def add(self, topic: str, text: str) -> None:
        if len(self._texts[topic]) < _NOTES_OF_A_KIND:
            self._texts[topic].append(text)
        else:
            self._more[topic] += 1

    def all(self) -> tuple[str, ...]:
        found: list[str] = []
        for topic, texts in self._texts.items():
            found += texts
            if self._more[topic]:
                found.append(f"... and {self._more[topic]} more like the last")
        return tuple(found)
