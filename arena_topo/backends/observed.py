"""Kubernetes objects -> Cluster: which GPUs there are, which of them are free, what joins them.

Pure: the same reader serves a live API server (`kubernetes`) and a dump on disk (`dump`). What
cannot be understood becomes a note and counts against what is free, never for it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from arena_topo import manifests
from arena_topo.backends import network
from arena_topo.backends.dump import Damage
from arena_topo.backends.usage import (
    ACK_ALLOCATION,
    GPU_RESOURCES,
    OVER,
    Object,
    Use,
    amount,
    items,
    of,
    uses_of,
    worker_template,
)
from arena_topo.errors import UnreadableTopology
from arena_topo.manifests.values import FORMAT, GPU_GROUP, GPU_VISIBLE, GUARANTEE, MAP, STATE
from arena_topo.topology import (
    ORDINARY,
    TAINT,
    Cluster,
    GPUSet,
    Machine,
    Node,
    NodeName,
    Taint,
    count,
    natural,
    nvidia,
    published,
)
from arena_topo.topology.fabricfile import FabricFile

KUEUE = "kueue.x-k8s.io"
"""The API group of the `Topology` that tells of the network."""

_COUNT = "nvidia.com/gpu.count"
"""The label of NVIDIA's GPU feature discovery that counts GPUs."""

_LONGEST_NAME = 63
"""Characters of a name that are shown; DNS labels have no more."""

_POD_ANNOTATIONS = (GPU_GROUP, GPU_VISIBLE, ACK_ALLOCATION, GUARANTEE, FORMAT)
_JOB_ANNOTATIONS = (MAP, STATE)


def cluster(
    objects: Iterable[Object | Damage], *, source: str, file: FabricFile | None = None
) -> Cluster:
    """Build the cluster that nodes, pods, MPIJobs, ConfigMaps and Kueue topologies describe.

    Objects come in any order and of any kind, those of no use are ignored, and each is reduced as
    it passes, so an iterator over a large dump is never held whole. `source` names the origin for
    people. `file` says what joins the nodes, where it is given, whatever else does. Every node has
    as many domains as the cluster has tiers. `notes` of the cluster name whatever is not understood
    and say what becomes of it, each thing by itself.
    """
    notes: list[str] = []
    found: dict[str, list[Object]] = {kind: [] for kind in _PROJECTIONS}
    for at, one in enumerate(objects, start=1):
        if isinstance(one, Damage):
            notes.append(one.text)
            continue
        kind = one.get("kind") if isinstance(one, Mapping) else None
        if not isinstance(kind, str) or kind not in _PROJECTIONS:
            continue
        # Other groups have kinds of that name; in a bare list items may not say their group.
        if kind == "Topology" and str(one.get("apiVersion", KUEUE)).partition("/")[0] != KUEUE:
            continue
        try:
            found[kind].append(project(kind, one))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            who = f"{kind} {_name_of(one) or f'without a name (object {at})'}"
            notes.append(f"{who} makes no sense and is ignored: {error}")
    machines = _Machines(found["ConfigMap"], notes)
    uses = uses_of(found["Pod"], found["MPIJob"], notes)
    nodes: dict[NodeName, Object] = {}
    for one in found["Node"]:
        name = NodeName(one["metadata"]["name"])
        if name in nodes:
            notes.append(f"node {name} is listed twice; the first one counts")
            continue
        nodes[name] = one
    known = {
        name: machines.of(name, one["metadata"]["labels"], _present(one))
        for name, one in nodes.items()
    }
    if nodes:
        notes += machines.of_others(nodes)
    joined = network.joining(
        {name: one.machine for name, one in known.items()},
        {name: one["metadata"]["labels"] for name, one in nodes.items()},
        rdma={name: nic for name, one in nodes.items() if (nic := _rdma(one["status"]))},
        topologies=found["Topology"],
        file=file,
    )
    notes += joined.notes
    return Cluster(
        nodes=tuple(
            _node(nodes[name], known[name], joined, uses.get(name, Use()), notes)
            for name in sorted(nodes, key=natural)
        ),
        tiers=joined.tiers,
        beyond=joined.beyond,
        guesses=joined.guesses,
        notes=tuple(map(_shown, notes)),
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
    return {str(key): str(value) for key, value in of(meta, "labels").items()}


def _project_node(one: Object) -> dict[str, Any]:
    meta, spec, status = of(one, "metadata"), of(one, "spec"), of(one, "status")
    return {
        "metadata": {"name": meta.get("name"), "labels": _labels(meta)},
        "spec": {
            "unschedulable": spec.get("unschedulable"),
            "taints": [
                _texts(taint, ("key", "value", "effect")) for taint in items(spec, "taints")
            ],
        },
        "status": {
            **{
                side: dict(of(status, side))
                for side in ("allocatable", "capacity")
                if status.get(side) is not None
            },
            "conditions": [
                _texts(condition, ("type", "status"))
                for condition in items(status, "conditions")
                if condition.get("type") == "Ready"
            ],
        },
    }


def _project_pod(one: Object) -> dict[str, Any]:
    meta, spec = of(one, "metadata"), of(one, "spec")
    small: dict[str, Any] = {
        "metadata": {
            **_texts(meta, ("name", "namespace")),
            "annotations": _only(of(meta, "annotations"), _POD_ANNOTATIONS),
        },
        "spec": _texts(spec, ("nodeName",)),
        "status": _texts(of(one, "status"), ("phase",)),
    }
    if "nodeName" in small["spec"] and small["status"].get("phase") not in OVER:
        small["spec"] |= _only(spec, ("overhead", "resources")) | _containers(spec)
    return small


def _containers(spec: Object) -> dict[str, Any]:
    return {
        key: [_only(one, ("resources", "restartPolicy")) for one in items(spec, key)]
        for key in ("containers", "initContainers")
        if spec.get(key)
    }


def _project_mpijob(one: Object) -> dict[str, Any]:
    meta, status = of(one, "metadata"), of(one, "status")
    template = worker_template(one)
    return {
        "metadata": {
            **_texts(meta, ("name", "namespace", "deletionTimestamp")),
            "annotations": _only(of(meta, "annotations"), _JOB_ANNOTATIONS),
        },
        "spec": {
            "template": {
                "metadata": {
                    "annotations": _only(of(of(template, "metadata"), "annotations"), (GUARANTEE,))
                },
                "spec": _containers(of(template, "spec")),
            }
        },
        "status": {
            **_texts(status, ("launcherStatus",)),
            "conditions": [
                _texts(condition, ("type", "status")) for condition in items(status, "conditions")
            ],
        },
    }


def _project_config_map(one: Object) -> dict[str, Any]:
    meta = of(one, "metadata")
    return {
        "metadata": {
            **_texts(meta, ("name", "namespace")),
            "labels": _labels(meta),
            "annotations": _only(of(meta, "annotations"), (published.KNOWLEDGE_ANNOTATION,)),
        },
        "data": dict(of(one, "data")) if _publishes_topology(meta) else {},
    }


def _project_topology(one: Object) -> dict[str, Any]:
    return {
        "metadata": _texts(of(one, "metadata"), ("name",)),
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


@dataclass(frozen=True, slots=True)
class _Known:
    """A machine and which of its GPUs are healthy."""

    machine: Machine
    healthy: GPUSet


_INSTEAD = {
    "linkType": "using the labels of node {node}",
    "busBandwidth": "what sets of GPUs of node {node} reach is computed from its links",
    "bandwidth": "it is for display only, and node {node} does without",
}
"""What becomes of a node whose ConfigMap makes sense but for this key."""


class _Machines:
    """The machine of each node: from its ConfigMap, else from its labels.

    Nodes of a cluster are bought by the dozen, so equal descriptions are parsed once and share
    their link matrix.
    """

    def __init__(self, config_maps: Iterable[Object], notes: list[str]) -> None:
        self._notes = notes
        self._config_maps: dict[str, Object] = {}
        self._parsed: dict[object, _Known] = {}
        for one in config_maps:
            meta = one["metadata"]
            if not _publishes_topology(meta):
                continue
            node = one["data"].get("nodeName") or meta["labels"].get(published.NODE_LABEL)
            if not node:
                notes.append(
                    f"{_config_map_name(one)} does not say which node it is of; it is not used"
                )
            elif not isinstance(node, str):
                notes.append(
                    f"{_config_map_name(one)} data.nodeName: {_brief(node)} is not the name of a"
                    " node; it is not used"
                )
            elif node in self._config_maps:
                notes.append(
                    f"{_config_map_name(one)} is the second for node {node}; the first one counts"
                )
            else:
                self._config_maps[node] = one

    def of_others(self, nodes: Collection[str]) -> Iterable[str]:
        """A note for each ConfigMap of a node that is none of these."""
        for node, one in self._config_maps.items():
            if node not in nodes:
                yield (
                    f"{_config_map_name(one)} is of node {_brief(node, bare=True)}, which is not"
                    " there; it is not used"
                )

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
        # Its label is no part of the key, so one that names another node is looked at by itself.
        label = config_map["metadata"]["labels"].get(published.NODE_LABEL)
        known = self._parsed.get(key) if label in {None, "", name} else None
        if known is None:
            try:
                said, complaints = published.salvage(config_map, model=product)
            except UnreadableTopology as error:
                self._notes.append(f"{error}; using the labels of node {name}")
                return None
            machine = said.machine
            for lost, complaint in complaints.items():
                self._notes.append(f"{complaint}; {_INSTEAD[lost].format(node=name)}")
            if "linkType" in complaints:
                machine = published.from_labels(name, labels, len(machine.gpus))
            known = _Known(machine, said.healthy)
            if not complaints:
                self._parsed[key] = known
        told_of = len(known.machine.gpus)
        plural = "s" if told_of != 1 else ""
        if offered > told_of:
            self._notes.append(
                f"{_config_map_name(config_map)} describes {told_of} GPU{plural}, but"
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
    """How many GPUs a node has, as far as it says; 0 where no machine has so many."""
    status, labels = one["status"], one["metadata"]["labels"]
    offers = _offers(status, "capacity") or _offers(status, "allocatable")
    said = _whole(offers, _resource(status))
    counted = _whole(labels, _COUNT)
    replicas = _whole(labels, published.REPLICAS_LABEL)
    if replicas > 1:
        # The plugin offers each GPU so many times; the label counts it once.
        return _possible(counted or said // replicas)
    # A device that fell off the bus leaves the capacity, but the label keeps counting it.
    return max(_possible(said), _possible(counted))


def _possible(gpus: int) -> int:
    return gpus if gpus <= nvidia.MOST_GPUS else 0


def _node(one: Object, known: _Known, joined: network.Network, use: Use, notes: list[str]) -> Node:
    name, labels = one["metadata"]["name"], one["metadata"]["labels"]
    status = one["status"]
    capacity, allocatable = _offers(status, "capacity"), _offers(status, "allocatable")
    resource = _resource(status)
    shared = published.shared(labels)
    notes += _odd_offers(name, resource, allocatable, capacity)
    if not shared:
        notes += _impossible(name, resource, allocatable, capacity, labels)
    usable = count(known.healthy)
    if allocatable is not None or capacity is not None:
        offered = _whole(allocatable if allocatable is not None else capacity, resource)
        usable = min(usable, offered if shared else _possible(offered))
    free, hidden = _free(name, known, use, notes)
    hidden += count(known.healthy) - usable
    if hidden >= count(free):
        # Every GPU is in use, whoever has which: nothing is left to be in doubt about.
        free, hidden = GPUSet(0), 0
    taints = tuple(_taints(one["spec"]["taints"]))
    all_cpu, all_memory = _offered(allocatable, "cpu"), _offered(allocatable, "memory")
    return Node(
        name=NodeName(name),
        machine=known.machine,
        free=free,
        hidden=hidden,
        allocatable=known.healthy if usable else GPUSet(0),
        cpu=None if all_cpu is None else _left(all_cpu, use.cpu),
        memory=None if all_memory is None else int(_left(all_memory, use.memory)),
        labels=labels,
        taints=taints,
        all_cpu=None if all_cpu is None else _left(all_cpu),
        all_memory=None if all_memory is None else int(_left(all_memory)),
        unavailable=_unavailable(one),
        shared=shared,
        resource=resource or ORDINARY,
        dedicated=labels.get(published.SCHEDULE_LABEL) == "topology"
        or (
            TAINT in labels
            and any(taint.key == TAINT and taint.effect == "NoSchedule" for taint in taints)
        ),
        foreign=use.foreign,
        domains=joined.domains[NodeName(name)],
        network=joined.limits.get(NodeName(name), math.inf),
    )


def _free(name: str, known: _Known, use: Use, notes: list[str]) -> tuple[GPUSet, int]:
    """The GPUs nobody is known to have, and how many of them somebody has all the same."""
    free, busy, hidden = known.healthy, GPUSet(0), use.hidden
    for who, gpus in use.known:
        there = GPUSet(gpus & known.machine.everything)
        if there != gpus:
            notes.append(
                f"{who} says it has GPU {(gpus ^ there).bit_length() - 1} of node {name},"
                f" which has {len(known.machine.gpus)}; it counts as one that nobody names",
            )
        # Two that name one GPU cannot both be right: one of them has another that nobody names.
        hidden += count(GPUSet(gpus ^ there)) + count(GPUSet(there & busy))
        busy = GPUSet(busy | there)
    return GPUSet(free & ~busy), hidden


def _offers(status: Object, side: str) -> Object | None:
    """What a node offers, or None if it does not say."""
    return of(status, side) if side in status else None


def _odd_offers(
    name: str, resource: str, allocatable: Object | None, capacity: Object | None
) -> Iterable[str]:
    """What a node offers in words that are no quantity, and what becomes of it."""
    side, offers = ("capacity", capacity) if allocatable is None else ("allocatable", allocatable)
    for key, outcome in _IF_ODD[side]:
        said = (offers or {}).get(key)
        if said is None or _is_digit(said):
            continue
        try:
            amount(said)
        except ValueError:
            other = key in GPU_RESOURCES and resource not in {key, ""}
            instead = f"its {resource} count" if other else outcome
            yield f"node {name}: {side} {key} is {_brief(said)}, not a quantity; {instead}"


def _is_digit(said: object) -> bool:
    """Whether this is how nearly every node counts its GPUs: nothing else need be looked at."""
    return type(said) is str and len(said) == 1 and "0" <= said <= "9"


def _impossible(
    name: str,
    resource: str,
    allocatable: Object | None,
    capacity: Object | None,
    labels: Object,
) -> Iterable[str]:
    """What a node says that is more GPUs than any machine has, and what becomes of it."""
    for what, said, key in (
        ("allocatable", allocatable, resource),
        ("capacity", capacity, resource),
        ("label", labels, _COUNT),
    ):
        if said and not _is_digit(said.get(key)) and _whole(said, key) > nvidia.MOST_GPUS:
            yield (
                f"node {name}: {what} {key} is {_brief(said[key])}, but"
                f" {nvidia.MOST_GPUS} GPUs are the most that one machine has; it is taken for none"
            )
            return


_IF_ODD_GPUS = tuple((resource, "none of its GPUs can be used") for resource in GPU_RESOURCES)
_IF_ODD = {
    "capacity": _IF_ODD_GPUS,
    "allocatable": (
        *_IF_ODD_GPUS,
        *((resource, "it is taken for unlimited") for resource in ("cpu", "memory")),
    ),
}
"""What a node may offer in words that are no quantity, and what becomes of it."""


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
        return int(amount((offers or {}).get(resource)))
    except ValueError:
        return 0


def _offered(allocatable: Object | None, resource: str) -> float | None:
    if allocatable is None or resource not in allocatable:
        return None
    try:
        return amount(allocatable[resource])
    except ValueError:
        return None


def _left(offered: float, used: float = 0.0) -> float:
    return max(0.0, round(offered - used, 6))


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
        and of(meta, "labels").get(published.SCHEDULE_LABEL) == "topology"
    )


def _config_map_name(one: Object) -> str:
    return f"configmap {one['metadata'].get('namespace', '')}/{one['metadata']['name']}"


def _name_of(one: Object) -> str:
    meta = one.get("metadata")
    return _brief(meta.get("name"), bare=True) if isinstance(meta, Mapping) else ""


def _brief(value: object, *, bare: bool = False) -> str:
    """A foreign value on one line, cut where it is long; `bare` is a text as it is."""
    text = value if bare and isinstance(value, str) else repr(value) if value is not None else ""
    return text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}..."


def _shown(note: str) -> str:
    """The note without anything that a terminal would obey."""
    if note.isprintable():
        return note
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in note)
