"""Records of Kubernetes objects -> Cluster: the GPUs, which of them are free, and the network.

The same reader serves a live cluster and a dump on disk. An invalid object becomes a note; it may
reduce the free GPUs, but never adds to them.
"""

from __future__ import annotations

import math
import operator
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import msgspec

from arena_topo.clusters import network, slices
from arena_topo.clusters.objects import Object
from arena_topo.clusters.records import (
    ClaimRecord,
    ConfigMapRecord,
    JobRecord,
    NodeRecord,
    PodRecord,
    Record,
    SliceRecord,
    TopologyRecord,
    Unread,
    Workers,
)
from arena_topo.clusters.usage import AllocationSources, NodeUsage, uses_of
from arena_topo.errors import UnreadableTopology
from arena_topo.notes import Note, Notes
from arena_topo.numbers import parse_count
from arena_topo.topology import (
    CORDONED,
    GPU_RESOURCES,
    MOST_GPUS,
    NOT_READY,
    ORDINARY,
    TAINT,
    USUAL,
    Cluster,
    GPUSet,
    Knowledge,
    Machine,
    Node,
    NodeGPUs,
    NodeName,
    PoolRates,
    Software,
    calibrated,
    count,
    documents,
    fabric,
    natural_key,
    nodelabels,
    presets,
    published,
)
from arena_topo.topology.fabric import FabricFile
from arena_topo.words import counted

_COUNT = "nvidia.com/gpu.count"
"""The label of NVIDIA's GPU feature discovery that counts GPUs."""

_Value = TypeVar("_Value")


class ClusterReading(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster with its sources: the use of each node, and the allocations of claims."""

    cluster: Cluster
    uses: Mapping[str, NodeUsage]
    claims: slices.Allocated


def cluster(
    objects: Iterable[Record | Unread],
    *,
    source: str,
    file: FabricFile | None = None,
) -> Cluster:
    """Build the cluster from nodes, pods, MPIJobs, ConfigMaps and Kueue topologies.

    ResourceSlices and ResourceClaims count as well. Objects come in any order. `source` names the
    origin for people. `file` overrides all other sources about the network. Every node has as many
    domains as the cluster has tiers. `notes` of the cluster name each invalid object and its
    consequence.
    """
    return ClusterReader(source=source, file=file).read(objects).cluster


class ClusterReader:
    """A reader for clusters of one origin.

    Machines and the network are cached for the same records of nodes, ConfigMaps, slices and
    topologies; the use of a node for the same records of pods and MPIJobs that concern it.
    """

    def __init__(self, *, source: str, file: FabricFile | None = None) -> None:
        self._source = source
        self._file = file
        self._inventory: _Inventory | None = None

    def read(
        self, objects: Iterable[Record | Unread], *, now: float | None = None
    ) -> ClusterReading:
        """Build the cluster as `cluster` does, with its sources.

        `now` (Unix seconds) is when the objects were read; if that is not known, the newest time of
        an agent counts as now.
        """
        by_type: dict[type[Record | Unread], list[Any]] = defaultdict(list)
        # Objects of a type come in a row.
        for form, run in groupby(objects, type):
            by_type[form] += run
        unread = [item.note for item in by_type.pop(Unread, ())]
        records: dict[str, list[Any]] = defaultdict(list)
        records |= {form.kind: items for form, items in by_type.items()}
        static = [entry for kind in _STATIC for entry in records[kind.kind]]
        if self._inventory is None or not self._inventory.is_of(static):
            self._inventory = _Inventory(static, records, self._file)
        return self._inventory.used(records, unread, source=self._source, now=now)


_STATIC = (NodeRecord, ConfigMapRecord, SliceRecord, TopologyRecord)
"""Records that seldom change."""


_UNUSED = NodeUsage()

_READINGS = 3
"""The readings that are remembered: a controller asks for the cluster as it is, without the jobs of
arena-topo, and without one job."""


class _Reading(NamedTuple):
    """The records of pods and jobs of a reading by their ids, and what they make of each node.

    None of them is odd, so there were no notes.
    """

    records: Mapping[int, PodRecord | JobRecord]
    uses: Mapping[str, NodeUsage]
    nodes: Mapping[str, Node]


class _Inventory:
    """The static part of a cluster: its machines and their network."""

    def __init__(
        self, static: list[Record], records: Mapping[str, list[Any]], file: FabricFile | None
    ) -> None:
        self._static = static
        self._notes = Notes()
        nodes: dict[NodeName, NodeRecord] = {}
        for node in records[NodeRecord.kind]:
            name = NodeName(node.name)
            if name in nodes:
                again = f"node {name} is listed twice; the first one counts"
                self._notes.add(name, "node twice", again)
            else:
                nodes[name] = node
        self._machines = _Machines(records[ConfigMapRecord.kind], self._notes)
        present: dict[str, int] = {name: _present(node) for name, node in nodes.items()}
        self._devices = slices.devices(
            records[SliceRecord.kind], present, self._machines.uuids, self._notes
        )
        cards, software = _Cards(file), _NodeSoftware(file)
        machines = {
            name: software.of(
                cards.of(
                    self._machines.of(node, present[name], self._devices.nodes.get(name)),
                    node.labels,
                ),
                node.labels,
            )
            for name, node in nodes.items()
        }
        self._notes += cards.notes()
        self._notes += software.notes()
        self._joined = network.joining(
            {name: gpus.machine for name, gpus in machines.items()},
            {name: _where(node.labels, machines[name]) for name, node in nodes.items()},
            rdma={name: nic for name, node in nodes.items() if (nic := _rdma(node))},
            topologies={entry.name: entry.levels for entry in records[TopologyRecord.kind]},
            file=file,
        )
        self._notes += self._joined.notes
        self._idle = [
            _Idle(nodes[name], machines[name], self._joined)
            for name in sorted(nodes, key=natural_key)
        ]
        for idle in self._idle:
            if not idle.shared:
                self._notes += _impossible(nodes[idle.name], idle.resource)
        if any(gpus.machine.measured for gpus in machines.values()):
            unused = [idle.used(_UNUSED, Notes()) for idle in self._idle]
            for idle, node in zip(self._idle, calibrated(unused), strict=True):
                idle.measured(node.machine)
        self._readings: deque[_Reading] = deque(maxlen=_READINGS)

    def is_of(self, static: list[Record]) -> bool:
        """Whether it was built from exactly these records."""
        return len(static) == len(self._static) and all(map(operator.is_, static, self._static))

    def used(
        self,
        records: Mapping[str, list[Any]],
        unread: Iterable[Note],
        *,
        source: str,
        now: float | None,
    ) -> ClusterReading:
        """The cluster with its use by pods, jobs and claims."""
        notes = Notes((*unread, *self._notes))
        if self._idle:
            notes += self._machines.stale(now)
        pods, jobs, claims = (records[kind.kind] for kind in (PodRecord, JobRecord, ClaimRecord))
        ours = {pod.key for pod in pods if pod.ours} if claims else set()
        sources = AllocationSources(
            claims=slices.allocated(claims, self._devices.places, ours),
            served=self._devices.nodes,
            kubelets=self._machines.kubelets,
        )
        # Claims may concern any node.
        known = None if claims else self._changed(pods, jobs, sources)
        if known is None:
            uses: Mapping[str, NodeUsage] = uses_of(pods, jobs, sources, notes)
            nodes = tuple(node.used(uses.get(node.name, _UNUSED), notes) for node in self._idle)
        else:
            uses, nodes = known
        cluster = Cluster(
            nodes=nodes,
            tiers=self._joined.tiers,
            unused=self._joined.unused,
            beyond=self._joined.beyond,
            guesses=self._joined.guesses,
            notes=tuple(notes),
            source=source,
        )
        return ClusterReading(cluster=cluster, uses=uses, claims=sources.claims)

    def _changed(
        self, pods: list[PodRecord], jobs: list[JobRecord], sources: AllocationSources
    ) -> tuple[Mapping[str, NodeUsage], tuple[Node, ...]] | None:
        """The use of all nodes, computed anew where it may differ from that of a known reading.

        None if something there is odd, so that there are notes.
        """
        both: list[PodRecord | JobRecord] = [*pods, *jobs]
        records = dict(zip(map(id, both), both, strict=True))
        first = _Reading({}, {}, {})
        near = min(
            reversed(self._readings),
            key=lambda reading: abs(len(reading.records) - len(records)),
            default=first,
        )
        # Records that are remembered exist, so no others get their ids.
        changed = near.records.keys() ^ records.keys()
        news = [near.records.get(at) or records[at] for at in changed]
        if any(record.notes for record in news):
            return None
        idle = self._idle
        if near is not first:
            names = _concerned(news, jobs)
            idle = [node for node in idle if node.name in names]
            jobs = [job for job in jobs if not names.isdisjoint(_nodes_of(job))]
            workers = {f"{job.name}-worker-{index}" for job in jobs for index, *_ in _places(job)}
            pods = [pod for pod in pods if pod.node in names or pod.name in workers]
        notes = Notes()
        fresh = uses_of(pods, jobs, sources, notes)
        uses, nodes = dict(near.uses), dict(near.nodes)
        for node in idle:
            use = uses[node.name] = fresh.get(node.name, _UNUSED)
            nodes[node.name] = node.used(use, notes)
        if notes:
            return None
        self._readings.append(_Reading(records, uses, nodes))
        return uses, tuple(nodes.values())


def _places(job: JobRecord) -> Workers:
    """The workers that a job has, and those that it reserves for."""
    return (*job.workers, *job.reserved)


def _nodes_of(job: JobRecord) -> Iterable[str]:
    return (node for _, node, _ in _places(job))


def _concerned(changed: Iterable[PodRecord | JobRecord], jobs: Iterable[JobRecord]) -> set[str]:
    """The nodes whose use may have changed with these records.

    A pod concerns its own node, and those on which a job has recorded its workers, since it may be
    one of them.
    """
    names: set[str] = set()
    owners: set[tuple[str, str]] = set()
    for record in changed:
        if isinstance(record, JobRecord):
            names.update(_nodes_of(record))
        else:
            owners.add((record.namespace, record.name.rpartition("-worker-")[0]))
            if record.node is not None:
                names.add(record.node)
    for job in jobs:
        if job.key in owners:
            names.update(_nodes_of(job))
    return names


def _where(labels: Object, known: NodeGPUs) -> Object:
    """The labels about the network, with the NVLink domain if only a driver publishes it."""
    if known.clique is None or fabric.CLIQUE in labels:
        return labels
    return {**labels, fabric.CLIQUE: known.clique}


class _Cards:
    """The NICs of each node: from the fabric file, else its own, else its instance type's.

    Nodes of a kind share one object, so the solver need not compare them.
    """

    def __init__(self, file: FabricFile | None) -> None:
        self._where = "" if file is None else file.where
        self._entries = () if file is None else file.nics
        self._made: dict[object, tuple[Machine, Machine]] = {}
        self._unused = dict(enumerate(self._entries))
        self._notes = Notes()

    def of(self, known: NodeGPUs, labels: Object) -> NodeGPUs:
        """The machine of a node with these labels, with its NICs."""
        machine = known.machine
        at = next(
            (at for at, nics in enumerate(self._entries) if labels.get(nics.label) == nics.value),
            None,
        )
        if at is not None:
            self._unused.pop(at, None)
            if machine.gpus and max(self._entries[at].nics.near or (0,)) > machine.everything:
                self._notes.add(
                    machine.name,
                    "NICs near no GPU",
                    f"{self._where}: nics[{at}].near names GPUs that node {machine.name} does not"
                    " have: it is not used there",
                )
                at = None
        instance = presets.instance_type_of_labels(labels) if at is None else ""
        if not machine.gpus or (at is None and not instance):
            return known
        # The machine of a key is remembered too, so that the id of its tuple stays unique.
        key = (id(machine.nics), len(machine.gpus), at, instance)
        if key not in self._made:
            equipped = (
                presets.with_instance_nics(machine, instance)
                if at is None
                else self._entries[at].nics.of(machine)
            )
            self._made[key] = machine, equipped
        equipped = self._made[key][1]
        machine = replace(machine, nics=equipped.nics, nics_assumed=equipped.nics_assumed)
        return replace(known, machine=machine)

    def notes(self) -> Iterable[str]:
        """Notes on unused entries of the file."""
        yield from self._notes
        for at, entry in self._unused.items():
            yield Note(
                f"nics[{at}]",
                "unused NICs",
                f"{self._where}: nics[{at}] is not used: no node has the label"
                f" {entry.label}={entry.value}",
            )


class _NodeSoftware:
    """The software of each node, from the fabric file.

    Nodes of a kind share one object, so the solver need not compare them.
    """

    def __init__(self, file: FabricFile | None) -> None:
        self._where = "" if file is None else file.where
        self._entries = () if file is None else file.software
        self._site = USUAL if file is None else file.site
        self._unused = dict(enumerate(self._entries))
        self._pools = () if file is None else file.pools
        self._lacking = dict.fromkeys(self._pools)
        self._second: set[PoolRates] = set()
        self._made: dict[Software, Software] = {}

    def of(self, known: NodeGPUs, labels: Object) -> NodeGPUs:
        """The machine of a node with these labels, with its software."""
        machine, software = known.machine, known.machine.software
        for at, entry in enumerate(self._entries):
            if not entry.label or labels.get(entry.label) == entry.value:
                self._unused.pop(at, None)
                software = entry.software
                break
        own = [pool for pool in self._pools if pool.fits(machine) and pool.labelled(labels)]
        software = replace(software.beside(self._site), pool=own[0] if own else None)
        self._second.update(own[1:])
        if software.pool is not None:
            self._lacking.pop(software.pool, None)
        instance = presets.INSTANCES.get(presets.instance_type_of_labels(labels))
        plugin = None if instance is None else instance.plugin
        if software == machine.software and plugin is None:
            return known
        software = self._made.setdefault(software, software)
        return replace(known, machine=replace(machine, software=software, nics_plugin=plugin))

    def notes(self) -> Iterable[Note]:
        """Notes on unused entries of the file."""
        for at, entry in self._unused.items():
            label = f"{entry.label}={entry.value}"
            why = f"no node has the label {label}" if entry.label else "entries above match all"
            yield Note(
                f"software[{at}]",
                "unused software",
                f"{self._where}: software[{at}] is not used: {why}",
            )
        for pool in self._lacking:
            label = f" and the label {pool.label}" if pool.label else ""
            why = f"no node has {pool.gpus} x {pool.model or 'GPUs of an unknown model'}{label}"
            if pool in self._second:
                why = "calibrations before it match all such nodes"
            yield Note(
                pool.name,
                "unused calibration",
                f"calibration {pool.name} is not used: {why}",
            )


_INSTEAD = {
    "devices": "using the labels of node {node}",
    "linkType": "using the labels of node {node}",
    "busBandwidth": "what sets of GPUs of node {node} reach is computed from its links",
    "bandwidth": "it is for display only, and node {node} does without",
    published.NICS: "the NICs of node {node} are not known by it",
    published.UUIDS: "node {node} does without",
    published.ALLOCATIONS: "what pods of node {node} have is taken from themselves",
}
"""The consequence of an invalid key in the ConfigMap of a node."""


class _Machines:
    """The machine of each node: from its ConfigMap, else from its labels.

    Nodes of a cluster are bought by the dozen, so equal descriptions are parsed once and share one
    link matrix.
    """

    def __init__(self, config_maps: Iterable[ConfigMapRecord], notes: Notes) -> None:
        self._notes = notes
        self._config_maps: dict[str, ConfigMapRecord] = {}
        self._parsed: dict[object, NodeGPUs] = {}
        self.kubelets: dict[str, published.Allocations] = {}
        self.uuids: dict[str, tuple[str, ...]] = {}
        believed = [entry for entry in config_maps if entry.believed]
        order = published.TRUSTED_NAMESPACES.index
        for entry in sorted(believed, key=lambda entry: order(entry.namespace)):
            node = entry.data.get("nodeName") or entry.labels.get(published.NODE_LABEL)
            if not node:
                lost = f"{entry} does not say which node it is of; it is not used"
                notes.add(entry.path, "no node", lost)
            elif node not in self._config_maps:
                self._config_maps[node] = entry
                self._read_key(node, entry, published.UUIDS, documents.uuids, self.uuids)
                self._read_key(
                    node, entry, published.ALLOCATIONS, documents.allocations, self.kubelets
                )
            elif entry.namespace == self._config_maps[node].namespace:
                second = f"{entry} is the second for node {node}; the first one counts"
                notes.add(entry.path, "second description", second)

    def _read_key(
        self,
        node: str,
        config_map: ConfigMapRecord,
        key: str,
        read: Callable[[Object], _Value | None],
        by_node: dict[str, _Value],
    ) -> None:
        """Read one key that only an agent writes, if it is there."""
        try:
            if key in config_map.data and (value := read(config_map.plain())) is not None:
                by_node[node] = value
        except UnreadableTopology as error:
            self._skip(config_map, key, error, node)

    def _skip(
        self, config_map: ConfigMapRecord, key: str, error: UnreadableTopology, node: str
    ) -> None:
        """Note that a key of a node's ConfigMap is invalid, with the consequence."""
        self._notes.add(config_map.path, key, f"{error}; {_INSTEAD[key].format(node=node)}")

    @cached_property
    def _looked(self) -> Mapping[str, float]:
        """When the agent of each node has looked at it (Unix seconds), as far as that is known."""
        times = {
            node: published.parse_time(config_map.data.get(published.OBSERVED))
            for node, config_map in self._config_maps.items()
        }
        return {node: at for node, at in times.items() if at is not None}

    def stale(self, now: float | None) -> Iterable[Note]:
        """A note for each node whose agent has published nothing for long (`now`: Unix seconds)."""
        looked = self._looked
        if now is None:
            now = max(looked.values(), default=0.0)
        for node, at in looked.items():
            if now - at > published.STALE_REPORT_SECONDS:
                yield Note(
                    node,
                    "stale agent",
                    f"node {node} was last looked at {age_text(now - at)} ago, as"
                    f" {self._config_maps[node]} says; check that its agent runs",
                )

    def of(self, node: NodeRecord, present: int, dra: NodeGPUs | None) -> NodeGPUs:
        """The machine of a node with so many GPUs, as far as it is described.

        `dra` is the description of a DRA driver, if one serves the node.
        """
        name, labels = node.name, node.labels
        if dra is None:
            return self._described(name, labels, present)
        size = len(dra.machine.gpus)
        if any(node.offers.get(resource) for resource in GPU_RESOURCES):
            known = self._described(name, labels, present)
            if size:
                self._notes.add(
                    name,
                    "plugin and driver",
                    f"node {name}: a device plugin offers its GPUs, and {dra.driver} publishes them"
                    " too; the device plugin's count",
                )
            if size != len(known.machine.gpus):
                return known
            return replace(known, machine=_merged(known.machine, dra.machine))
        # The driver's machine, with the links of its ConfigMap if that has some.
        product = {nodelabels.PRODUCT_LABELS[0]: dra.product} if dra.product else {}
        described = self._published(name, {**product, **labels}, 0)
        if described is None:
            return dra
        if (number := len(described.machine.gpus)) != size:
            self._notes.add(
                self._config_maps[name].path,
                "other number than the driver",
                f"{self._config_maps[name]} describes {counted(number, 'GPU')}, but {dra.driver}"
                f" publishes {size} of node {name}; what the driver says counts",
            )
            return dra
        linked = described.machine.knowledge is not Knowledge.UNKNOWN
        return replace(
            dra,
            machine=_merged(described.machine, dra.machine) if linked else dra.machine,
            healthy=GPUSet(dra.healthy & described.healthy),
        )

    def _described(self, name: str, labels: Object, offered: int) -> NodeGPUs:
        """The machine of a node that offers so many GPUs, by its ConfigMap or its labels."""
        known = self._published(name, labels, offered)
        if known is not None:
            return known
        key = (tuple(sorted(_describing(labels))), offered)
        if key not in self._parsed:
            machine = nodelabels.machine_from_labels(name, labels, offered)
            self._parsed[key] = NodeGPUs(machine=machine, healthy=machine.everything)
        return _renamed(self._parsed[key], name)

    def _published(self, name: str, labels: Object, offered: int) -> NodeGPUs | None:
        """The machine in a node's ConfigMap; None without a usable ConfigMap."""
        config_map = self._config_maps.get(name)
        if config_map is None:
            return None
        product = next((labels[key] for key in nodelabels.PRODUCT_LABELS if key in labels), None)
        facts = {**config_map.data, **config_map.annotations, "product": product}
        key = frozenset(fact for fact in facts.items() if fact[0] not in _OF_ONE)
        # The label is not part of the key, so a ConfigMap whose label names another node is parsed
        # by itself.
        label = config_map.labels.get(published.NODE_LABEL)
        known = self._parsed.get(key) if label in {None, "", name} else None
        if known is None:
            complaints: dict[str, UnreadableTopology] = {}
            plain = config_map.plain()
            try:
                known = documents.gpus_from_config_map(plain, model=product, complaints=complaints)
            except UnreadableTopology as error:
                self._skip(config_map, "devices", error, name)
                return None
            for lost, complaint in complaints.items():
                self._skip(config_map, lost, complaint, name)
            if "linkType" in complaints:
                machine = nodelabels.machine_from_labels(name, labels, len(known.machine.gpus))
                known = replace(known, machine=machine)
            if not complaints:
                self._parsed[key] = known
        gpus = known.machine.gpus
        if offered > len(gpus):
            self._notes.add(
                config_map.path,
                "fewer than the node offers",
                f"{config_map} describes {counted(len(gpus), 'GPU')}, but node {name} offers"
                f" {offered}; using its labels",
            )
            return None
        known, named = _renamed(known, name), self.uuids.get(name, ())
        if len(named) != len(gpus):
            return known
        gpus = tuple(replace(gpu, uuid=uuid) for gpu, uuid in zip(gpus, named, strict=True))
        return replace(known, machine=replace(known.machine, gpus=gpus))


_OF_ONE = frozenset({"nodeName", published.OBSERVED, published.ALLOCATIONS, published.UUIDS})
"""Keys of a ConfigMap that do not describe the machine."""


def _merged(machine: Machine, other: Machine) -> Machine:
    """A machine with the facts about each GPU from another description of it."""
    gpus = tuple(
        replace(
            gpu,
            uuid=also.uuid or gpu.uuid,
            model=gpu.model or also.model,
            numa=also.numa if gpu.numa is None else gpu.numa,
        )
        for gpu, also in zip(machine.gpus, other.gpus, strict=True)
    )
    return replace(machine, gpus=gpus)


def _renamed(known: NodeGPUs, name: str) -> NodeGPUs:
    return replace(known, machine=replace(known.machine, name=name))


def age_text(seconds: float) -> str:
    """A time span in one unit."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _describing(labels: Object) -> Iterable[tuple[str, str]]:
    """The labels that describe GPUs, without those that differ from node to node."""
    for key, value in labels.items():
        if key.startswith(("nvidia.com/", "aliyun.")) and "timestamp" not in key:
            yield key, value


def _resource(node: NodeRecord) -> str:
    """The name of a node's GPU resource; empty if it offers no GPUs."""
    for offers in (node.offers, node.capacity or {}):
        for resource in GPU_RESOURCES:
            if resource in offers:
                return resource
    return ""


def _present(node: NodeRecord) -> int:
    """The number of a node's GPUs, as far as known; 0 for more than any machine has."""
    resources = node.offers if node.capacity is None else node.capacity
    reported = int(resources.get(_resource(node), 0))
    labelled, replicas = _counted(node, _COUNT), _counted(node, nodelabels.REPLICAS_LABEL)
    if replicas > 1:
        # The device plugin offers each GPU several times; the label counts it once.
        return _possible(labelled or reported // replicas)
    # The capacity loses a device that fell off the bus; the label still counts it.
    return max(_possible(reported), _possible(labelled))


def _counted(node: NodeRecord, label: str) -> int:
    return parse_count(node.labels.get(label, "")) or 0


def _possible(gpus: int) -> int:
    return gpus if gpus <= MOST_GPUS else 0


class _Idle:
    """The part of a node that does not depend on its use."""

    def __init__(self, node: NodeRecord, known: NodeGPUs, joined: network.Network) -> None:
        labels, limits = node.labels, node.allocatable or {}
        self.name = name = NodeName(node.name)
        self.resource = resource = _resource(node)
        self.shared = shared = nodelabels.why_shared(labels) or known.shared
        usable = count(known.healthy)
        if not known.driver and (node.allocatable is not None or node.capacity is not None):
            offered = int(node.offers.get(resource, 0))
            usable = min(usable, offered if shared else _possible(offered))
        scheduled = labels.get(published.SCHEDULE_LABEL) == "topology"
        reserved = any(own.key == TAINT and own.effect == "NoSchedule" for own in node.taints)
        self._known = known
        self._usable = usable
        self._cpu, self._memory = limits.get("cpu"), limits.get("memory")
        self._node = partial(
            Node,
            name=name,
            machine=known.machine,
            allocatable=known.healthy if usable else GPUSet(0),
            labels=labels,
            taints=node.taints,
            all_cpu=_remaining(self._cpu, 0.0),
            all_memory=_whole(_remaining(self._memory, 0.0)),
            unavailable=_unavailable(node),
            shared=shared,
            resource=known.driver or resource or ORDINARY,
            driver=known.driver,
            dedicated=scheduled or (TAINT in labels and reserved),
            rdma=_rdma(node) or "",
            domains=joined.domains[name],
            network=joined.limits.get(name, math.inf),
        )

    def measured(self, machine: Machine) -> None:
        """Use this machine, with the measurements of equal machines."""
        self._node = partial(self._node, machine=machine)

    def used(self, use: NodeUsage, notes: Notes) -> Node:
        """The node with its use."""
        healthy = self._known.healthy
        free, unattributed = _free(self.name, self._known, use, notes)
        broken = count(healthy) - self._usable if self._usable else 0
        unattributed = min(count(free), unattributed + broken)
        if not self._usable or (unattributed == count(free) and not broken):
            # Then every GPU is in use or broken, and the indexes do not matter.
            free, unattributed = GPUSet(0), 0
        node: Node = self._node(
            free=free,
            unattributed=unattributed,
            broken=broken,
            cpu=_remaining(self._cpu, use.cpu),
            memory=_whole(_remaining(self._memory, use.memory)),
            foreign=use.foreign,
            holders=tuple(use.holdings()),
        )
        for job, reservation in use.reserved.items():
            known = GPUSet(reservation.gpus & node.machine.everything)
            node = node.reserve(
                job,
                known,
                unnamed=reservation.unnamed + count(reservation.gpus) - count(known),
                cpu=reservation.cpu,
                memory=reservation.memory,
                since=reservation.since,
                restart=True,
            )
        return node


def _free(name: str, known: NodeGPUs, use: NodeUsage, notes: Notes) -> tuple[GPUSet, int]:
    """The GPUs without a known holder, and how many of them are in use all the same."""
    free, busy, unattributed = known.healthy, GPUSet(0), use.unattributed
    for holder, gpus in use.known:
        present = GPUSet(gpus & known.machine.everything)
        if present != gpus:
            notes.add(
                str(holder),
                "unknown GPU",
                f"{holder} says it has GPU {(gpus ^ present).bit_length() - 1} of node {name},"
                f" which has {len(known.machine.gpus)}; it counts as a GPU of unknown index",
            )
        # If two holders name one GPU, one of them is wrong, and has another, unattributed GPU.
        unattributed += count(GPUSet(gpus ^ present)) + count(GPUSet(present & busy))
        busy = GPUSet(busy | present)
    return GPUSet(free & ~busy), unattributed


def _impossible(node: NodeRecord, resource: str) -> Iterable[Note]:
    """A note on a node that offers more GPUs than any machine has."""
    number = max(offers.get(resource, 0) for offers in (node.offers, node.capacity or {}))
    if number > MOST_GPUS:
        yield slices.impossible_count(node.name, f"{resource} is {number:.15g}")


def _rdma(node: NodeRecord) -> str | None:
    """The RDMA resource of a node."""
    # A device plugin that is gone leaves its resource at 0.
    return network.rdma_resource(name for name, number in node.offers.items() if number)


def _remaining(offered: float | None, used: float) -> float | None:
    return None if offered is None else max(0.0, round(offered - used, 6))


def _whole(memory: float | None) -> int | None:
    return None if memory is None else int(memory)


def _unavailable(node: NodeRecord) -> str | None:
    if node.ready not in {None, "True"}:
        return NOT_READY
    return CORDONED if node.unschedulable else None
