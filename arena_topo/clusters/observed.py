"""Kubernetes objects -> Cluster: which GPUs there are, which of them are free, what joins them.

Pure: the same reader serves a live API server (`kubernetes`) and a dump on disk (`dump`). What
cannot be understood becomes a note and counts against what is free, never for it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from arena_topo.clusters import network, slices
from arena_topo.clusters.dump import Damage
from arena_topo.clusters.objects import Object, of
from arena_topo.clusters.projection import PROJECTIONS, project, publishes_topology
from arena_topo.clusters.usage import Use, Witnesses, amount, uses_of
from arena_topo.errors import UnreadableTopology
from arena_topo.manifests import FORMAT
from arena_topo.topology import (
    GPU_RESOURCES,
    MOST_GPUS,
    ORDINARY,
    TAINT,
    Cluster,
    GPUSet,
    Knowledge,
    Machine,
    Node,
    NodeName,
    Taint,
    calibrated,
    configmap,
    count,
    fabric,
    instances,
    natural,
    nodelabels,
    published,
)
from arena_topo.topology.fabricfile import FabricFile

__all__ = ["KUEUE", "Survey", "ago", "cluster", "project", "survey"]

KUEUE = "kueue.x-k8s.io"
"""The API group of the `Topology` that tells of the network."""

_COUNT = "nvidia.com/gpu.count"
"""The label of NVIDIA's GPU feature discovery that counts GPUs."""

_LONGEST_NAME = 63
"""Characters of a name that are shown; DNS labels have no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """A cluster, and what it was made from: who uses which node, and what claims hold."""

    cluster: Cluster
    uses: Mapping[str, Use]
    claims: slices.Claimed


def cluster(
    objects: Iterable[Object | Damage],
    *,
    source: str,
    file: FabricFile | None = None,
    now: float | None = None,
) -> Cluster:
    """Build the cluster that nodes, pods, MPIJobs, ConfigMaps and Kueue topologies describe.

    ResourceSlices and ResourceClaims count as well. Objects come in any order and of any kind,
    those of no use are ignored, and each is reduced as it passes, so an iterator over a large dump
    is never held whole. `source` names the origin for people. `file` says what joins the nodes,
    where it is given, whatever else does. `now` (Unix seconds) is when the objects were read; where
    that is not known, the newest that an agent has published counts as now. Every node has as many
    domains as the cluster has tiers. `notes` of the cluster name whatever is not understood and say
    what becomes of it, each thing by itself.
    """
    return survey(objects, source=source, file=file, now=now).cluster


def survey(
    objects: Iterable[Object | Damage],
    *,
    source: str,
    file: FabricFile | None = None,
    now: float | None = None,
) -> Survey:
    """Build the cluster as `cluster` does, and keep what it was made from."""
    notes: list[str] = []
    found: dict[str, list[Object]] = {kind: [] for kind in PROJECTIONS}
    for at, one in enumerate(objects, start=1):
        if isinstance(one, Damage):
            notes.append(one.text)
            continue
        kind = one.get("kind") if isinstance(one, Mapping) else None
        if not isinstance(kind, str) or kind not in PROJECTIONS:
            continue
        # Other groups have kinds of that name; in a bare list items may not say their group.
        if kind == "Topology" and str(one.get("apiVersion", KUEUE)).partition("/")[0] != KUEUE:
            continue
        try:
            found[kind].append(project(kind, one))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            who = f"{kind} {_name_of(one) or f'without a name (object {at})'}"
            notes.append(f"{who} makes no sense and is ignored: {error}")
    nodes: dict[NodeName, Object] = {}
    for one in found["Node"]:
        name = NodeName(one["metadata"]["name"])
        if name in nodes:
            notes.append(f"node {name} is listed twice; the first one counts")
            continue
        nodes[name] = one
    machines = _Machines(found["ConfigMap"], notes)
    present: dict[str, int] = {name: _present(one) for name, one in nodes.items()}
    devices = slices.inventory(found["ResourceSlice"], present, machines.uuids, notes)
    known = {
        name: machines.of(name, one, present[name], devices.nodes.get(name))
        for name, one in nodes.items()
    }
    cards = _Cards(file)
    known = {
        name: replace(one, machine=cards.of(one.machine, nodes[name]["metadata"]["labels"]))
        for name, one in known.items()
    }
    notes += cards.notes()
    if nodes:
        notes += machines.of_others(nodes)
        notes += machines.stale(now)
    witnesses = Witnesses(
        claims=slices.claimed(found["ResourceClaim"], devices.places, _ours(found["Pod"])),
        served=devices.nodes,
        kubelets=machines.kubelets,
    )
    uses = uses_of(found["Pod"], found["MPIJob"], witnesses, notes)
    joined = network.joining(
        {name: one.machine for name, one in known.items()},
        {name: _where(one["metadata"]["labels"], known[name]) for name, one in nodes.items()},
        rdma={name: nic for name, one in nodes.items() if (nic := _rdma(one["status"]))},
        topologies=found["Topology"],
        file=file,
    )
    notes += joined.notes
    seen = Cluster(
        nodes=calibrated(
            _node(nodes[name], known[name], joined, uses.get(name, Use()), notes)
            for name in sorted(nodes, key=natural)
        ),
        tiers=joined.tiers,
        unused=joined.unused,
        beyond=joined.beyond,
        guesses=joined.guesses,
        notes=tuple(map(_shown, notes)),
        source=source,
    )
    return Survey(cluster=seen, uses=uses, claims=witnesses.claims)


def _ours(pods: Iterable[Object]) -> set[tuple[str, str]]:
    """The pods that arena-topo placed."""
    return {
        (one["metadata"].get("namespace", ""), one["metadata"]["name"])
        for one in pods
        if FORMAT in one["metadata"]["annotations"]
    }


@dataclass(frozen=True, slots=True)
class _Known:
    """A machine and which of its GPUs are healthy; `dra` where a driver serves them."""

    machine: Machine
    healthy: GPUSet
    dra: slices.Published | None = None


def _where(labels: Object, known: _Known) -> Object:
    """The labels that tell of the network, with the NVLink domain that only a driver tells."""
    if known.dra is None or known.dra.clique is None or fabric.CLIQUE in labels:
        return labels
    return {**labels, fabric.CLIQUE: known.dra.clique}


class _Cards:
    """The NICs of each node: as the fabric file says, else its own, else its instance type's.

    Nodes of a kind share them, which spares the solver comparing them.
    """

    def __init__(self, file: FabricFile | None) -> None:
        self._file = file
        self._entries = () if file is None else file.nics
        self._made: dict[object, tuple[Machine, Machine]] = {}
        self._unlike: dict[int, list[str]] = {}
        self._used: set[int] = set()

    def of(self, machine: Machine, labels: Object) -> Machine:
        """The machine of a node that has these labels."""
        at = self._entry(machine, labels)
        instance = instances.of_labels(labels) if at is None else ""
        if not machine.gpus or (at is None and not instance):
            return machine
        # The machine that a key was made from is remembered, so its tuple keeps its identity.
        key = (id(machine.nics), len(machine.gpus), at, instance)
        if key not in self._made:
            made = (
                instances.of_node(machine, instance)
                if at is None
                else self._entries[at].nics.of(machine)
            )
            self._made[key] = machine, made
        made = self._made[key][1]
        return replace(machine, nics=made.nics, nics_assumed=made.nics_assumed)

    def _entry(self, machine: Machine, labels: Object) -> int | None:
        """The entry of the file that is for this node, if it can be."""
        for at, one in enumerate(self._entries):
            if labels.get(one.label) != one.value:
                continue
            self._used.add(at)
            if machine.gpus and max(one.nics.near or (0,)) > machine.everything:
                self._unlike.setdefault(at, []).append(machine.name)
                return None
            return at
        return None

    def notes(self) -> Iterable[str]:
        """What of the file is not used."""
        for at, one in enumerate(self._entries):
            where = f"{self._file.where if self._file else ''}: nics[{at}]"
            if at not in self._used:
                yield f"{where} is not used: no node has the label {one.label}={one.value}"
            elif at in self._unlike:
                first, *others = sorted(self._unlike[at], key=natural)
                more = f" and {len(others)} others" if others else ""
                yield (
                    f"{where}.near names GPUs that node {first}{more} does not have: it is not used"
                    " there"
                )


_INSTEAD = {
    "linkType": "using the labels of node {node}",
    "busBandwidth": "what sets of GPUs of node {node} reach is computed from its links",
    "bandwidth": "it is for display only, and node {node} does without",
    published.NICS: "the NICs of node {node} are not known by it",
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
        self.kubelets: dict[str, published.Allocations] = {}
        self.uuids: dict[str, tuple[str, ...]] = {}
        mine = [one for one in config_maps if publishes_topology(one["metadata"])]
        mine.sort(key=lambda one: published.NAMESPACES.index(one["metadata"]["namespace"]))
        for one in mine:
            meta = one["metadata"]
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
            elif node not in self._config_maps:
                self._config_maps[node] = one
                self._look(node, one)
            elif meta["namespace"] == self._config_maps[node]["metadata"]["namespace"]:
                notes.append(
                    f"{_config_map_name(one)} is the second for node {node}; the first one counts"
                )

    def _look(self, node: str, one: Object) -> None:
        """Remember what only an agent knows of a node, where it has written it."""
        try:
            if published.UUIDS in one["data"]:
                self.uuids[node] = configmap.uuids(one)
        except UnreadableTopology as error:
            self._notes.append(f"{error}; node {node} does without")
        try:
            if published.ALLOCATIONS in one["data"]:
                found = configmap.allocations(one)
                self.kubelets |= {} if found is None else {node: found}
        except UnreadableTopology as error:
            self._notes.append(f"{error}; what pods of node {node} have is taken from themselves")

    def stale(self, now: float | None) -> Iterable[str]:
        """A note for each node whose agent has not looked at it for long (`now`: Unix seconds)."""
        looked = {
            node: at
            for node, one in self._config_maps.items()
            if (at := published.moment(one["data"].get(published.OBSERVED))) is not None
        }
        if now is None:
            now = max(looked.values(), default=0.0)
        for node, at in looked.items():
            if now - at > published.STALE:
                yield (
                    f"node {node} was last looked at {ago(now - at)} ago, as"
                    f" {_config_map_name(self._config_maps[node])} says: is its agent at work?"
                )

    def of_others(self, nodes: Collection[str]) -> Iterable[str]:
        """A note for each ConfigMap of a node that is none of these."""
        for node, one in self._config_maps.items():
            if node not in nodes:
                yield (
                    f"{_config_map_name(one)} is of node {_brief(node, bare=True)}, which is not"
                    " there; it is not used"
                )

    def of(self, name: str, one: Object, present: int, dra: slices.Published | None) -> _Known:
        """The machine of a node that has so many GPUs, as far as it says.

        `dra` is what a DRA driver publishes of it, where one does.
        """
        labels = one["metadata"]["labels"]
        if dra is None:
            return self._said(name, labels, present)
        if not _plugged(one):
            return self._served(name, labels, dra)
        known = self._said(name, labels, present)
        if dra.machine.gpus:
            self._notes.append(
                f"node {name}: a device plugin offers its GPUs, and {dra.driver} publishes them"
                " too; the device plugin's count"
            )
        if len(known.machine.gpus) == len(dra.machine.gpus):
            return replace(known, machine=_merged(known.machine, dra.machine))
        return known

    def _served(self, name: str, labels: Object, dra: slices.Published) -> _Known:
        """A node whose GPUs are claimed: with the links of its ConfigMap, where they are told."""
        known = _Known(dra.machine, dra.healthy, dra)
        config_map = self._config_maps.get(name)
        if config_map is None:
            return known
        size = len(dra.machine.gpus)
        said = self._published(name, config_map, {**_product(dra), **labels}, 0)
        if said is None:
            return known
        told = len(said.machine.gpus)
        if told != size:
            self._notes.append(
                f"{_config_map_name(config_map)} describes {told} GPU{'s' if told != 1 else ''},"
                f" but {dra.driver} publishes {size} of node {name}; what the driver says counts"
            )
            return known
        healthy = GPUSet(dra.healthy & said.healthy)
        if said.machine.knowledge is Knowledge.UNKNOWN:
            return replace(known, healthy=healthy)
        return replace(known, machine=_merged(said.machine, dra.machine), healthy=healthy)

    def _said(self, name: str, labels: Object, offered: int) -> _Known:
        """The machine of a node that offers so many GPUs."""
        config_map = self._config_maps.get(name)
        if config_map is not None:
            known = self._published(name, config_map, labels, offered)
            if known is not None:
                return known
        telling = tuple(sorted(_telling(labels)))
        shared = self._parsed.get((telling, offered))
        if shared is None:
            machine = nodelabels.from_labels(name, labels, offered)
            shared = _Known(machine, machine.everything)
            self._parsed[telling, offered] = shared
        return _renamed(shared, name)

    def _published(
        self, name: str, config_map: Object, labels: Object, offered: int
    ) -> _Known | None:
        product = next((labels[key] for key in nodelabels.PRODUCT_LABELS if key in labels), None)
        told = {**config_map["data"], **config_map["metadata"]["annotations"], "product": product}
        key = frozenset((key, str(value)) for key, value in told.items() if key not in _OF_ONE)
        # Its label is no part of the key, so one that names another node is looked at by itself.
        label = config_map["metadata"]["labels"].get(published.NODE_LABEL)
        known = self._parsed.get(key) if label in {None, "", name} else None
        if known is None:
            try:
                said, complaints = configmap.salvage(config_map, model=product)
            except UnreadableTopology as error:
                self._notes.append(f"{error}; using the labels of node {name}")
                return None
            machine = said.machine
            for lost, complaint in complaints.items():
                self._notes.append(f"{complaint}; {_INSTEAD[lost].format(node=name)}")
            if "linkType" in complaints:
                machine = nodelabels.from_labels(name, labels, len(machine.gpus))
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
        known = _renamed(known, name)
        named = self.uuids.get(name, ())
        if len(named) != told_of:
            return known
        gpus = tuple(
            replace(gpu, uuid=uuid) for gpu, uuid in zip(known.machine.gpus, named, strict=True)
        )
        return replace(known, machine=replace(known.machine, gpus=gpus))


_OF_ONE = frozenset({"nodeName", published.OBSERVED, published.ALLOCATIONS, published.UUIDS})
"""Keys of a ConfigMap that do not describe the machine."""


def _product(dra: slices.Published) -> dict[str, str]:
    return {} if dra.product is None else {nodelabels.PRODUCT_LABELS[0]: dra.product}


def _merged(one: Machine, other: Machine) -> Machine:
    """A machine with what another description of it knows of each GPU."""
    gpus = tuple(
        replace(
            gpu,
            uuid=also.uuid or gpu.uuid,
            model=gpu.model or also.model,
            numa=also.numa if gpu.numa is None else gpu.numa,
        )
        for gpu, also in zip(one.gpus, other.gpus, strict=True)
    )
    return replace(one, gpus=gpus)


def _plugged(one: Object) -> bool:
    """Whether a device plugin offers GPUs of a node now."""
    status = one["status"]
    offers = _offers(status, "allocatable")
    if offers is None:
        offers = _offers(status, "capacity")
    return any(_whole(offers, resource) for resource in GPU_RESOURCES)


def ago(seconds: float) -> str:
    """How long ago that is, in one unit."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


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
    replicas = _whole(labels, nodelabels.REPLICAS_LABEL)
    if replicas > 1:
        # The plugin offers each GPU so many times; the label counts it once.
        return _possible(counted or said // replicas)
    # A device that fell off the bus leaves the capacity, but the label keeps counting it.
    return max(_possible(said), _possible(counted))


def _possible(gpus: int) -> int:
    return gpus if gpus <= MOST_GPUS else 0


def _node(one: Object, known: _Known, joined: network.Network, use: Use, notes: list[str]) -> Node:
    name, labels = one["metadata"]["name"], one["metadata"]["labels"]
    status = one["status"]
    capacity, allocatable = _offers(status, "capacity"), _offers(status, "allocatable")
    dra = known.dra
    resource = _resource(status)
    shared = nodelabels.shared(labels) or (dra.shared if dra is not None else None)
    notes += _odd_offers(name, resource, allocatable, capacity)
    if not shared:
        notes += _impossible(name, resource, allocatable, capacity, labels)
    usable = count(known.healthy)
    if dra is None and (allocatable is not None or capacity is not None):
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
        resource=dra.driver if dra is not None else resource or ORDINARY,
        driver=dra.driver if dra is not None else "",
        dedicated=labels.get(published.SCHEDULE_LABEL) == "topology"
        or (
            TAINT in labels
            and any(taint.key == TAINT and taint.effect == "NoSchedule" for taint in taints)
        ),
        foreign=use.foreign,
        rdma=_rdma(status) or "",
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
        if said and not _is_digit(said.get(key)) and _whole(said, key) > MOST_GPUS:
            yield (
                f"node {name}: {what} {key} is {_brief(said[key])}, but"
                f" {MOST_GPUS} GPUs are the most that one machine has; it is taken for none"
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
