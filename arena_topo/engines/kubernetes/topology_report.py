"""The links of a node -> the ConfigMap from which ACK's readers and ours take them.

publish   once, by a person, into ACK's namespace; does not report health. Measured bandwidths go
          into the ConfigMap that readers prefer, and an agent leaves them there
Reports   repeatedly, by the agent of a node, into our own namespace: links, health, allocations
mirror    by the controller, copies the agents' reports into ACK's namespace
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from arena_topo.clusters import observed
from arena_topo.clusters.records import read_record
from arena_topo.engines import Options, Publication
from arena_topo.engines.kubernetes.connection import Connection
from arena_topo.engines.kubernetes.job_writer import part
from arena_topo.engines.write_conflict import attempts, unless_overtaken
from arena_topo.errors import AlreadyExists, ArenaError, ClusterError, NotFound, UsageError
from arena_topo.names import is_subdomain
from arena_topo.topology import GPUSet, Machine, documents, published

Object = dict[str, Any]

_OWN, _ACK = (
    f"/api/v1/namespaces/{namespace}/configmaps"
    for namespace in (published.OWN_NAMESPACE, published.ACK_NAMESPACE)
)
"""The ConfigMaps of our own namespace, and of ACK's."""

_ATTEMPTS = 3
"""Other writers, such as ACK's own agent, may write the same object between our read and write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReport:
    """An agent's report on its node; `allocations` (`NAMESPACE/POD` -> GPUs), None if unknown."""

    machine: Machine
    healthy: GPUSet
    allocations: Mapping[str, GPUSet] | None = None


class Reports:
    """The ConfigMap of one node in our own namespace, for the node's agent.

    A write that conflicts with another is repeated on the new state. Additions of others to the
    object remain, except NICs and measured bandwidths if the links have changed.
    """

    def __init__(self, api: Connection, node: str) -> None:
        self._api, self._node = api, node
        self._name = published.config_map_name(node)
        self._stored: Object | None = None

    @property
    def server_time(self) -> float | None:
        """The server's time in its last answer (Unix seconds); None before any answer."""
        return self._api.server_time

    def read(self) -> Object | None:
        """The stored ConfigMap; None if it does not exist."""
        self._stored = _whole(self._api.find(f"{_OWN}/{self._name}"))
        return self._stored

    def write(self, report: AgentReport, observed_at: float) -> None:
        """Store a report that was made at that time (Unix seconds).

        ClusterError if another writer keeps changing the same object.
        """
        for existing in _attempts(f"{published.OWN_NAMESPACE}/{self._name}"):
            if existing:
                self.read()
            with unless_overtaken(AlreadyExists):
                self._stored = self._write(report, observed_at)
                return

    def _write(self, report: AgentReport, observed_at: float) -> Object:
        new = published.config_map(
            report.machine,
            report.healthy,
            namespace=published.OWN_NAMESPACE,
            observed_at=observed_at,
            allocations=report.allocations,
        )
        uuids = [gpu.uuid for gpu in report.machine.gpus]
        if all(uuids):
            new["data"][published.UUIDS] = json.dumps(uuids, separators=(",", ":"))
        if self._stored is not None:
            return self._api.put(f"{_OWN}/{self._name}", _over(self._stored, new))
        try:
            return self._api.post(_OWN, new)[0]
        except NotFound as error:
            raise ClusterError(
                f"there is no namespace {published.OWN_NAMESPACE} in this cluster",
                why=error.message,
                hint="arena-topo install prints it, with all that an agent needs",
            ) from error


def open_reports(options: Options, node: str) -> Reports:
    """The reports of a node's agent, for the cluster of the options; sends no request yet."""
    return Reports(Connection(options), node)


_OURS = frozenset(
    {"linkType", "bandwidth", published.OBSERVED, published.ALLOCATIONS, published.UUIDS, "devices"}
)
"""Data keys of the agent's report; those that a new report lacks are removed."""


def _over(stored: Object, new: Object) -> Object:
    """The stored object with all new values, and the additions of others."""
    data, metadata = stored.get("data") or {}, stored["metadata"]
    gone = set(_OURS)
    if data.get("linkType") != new["data"].get("linkType"):
        gone |= {"busBandwidth", published.MEASURED_ON, published.NICS}
    others = {key: value for key, value in data.items() if key not in gone}
    joined = {
        key: {**(metadata.get(key) or {}), **new["metadata"][key]}
        for key in ("labels", "annotations")
    }
    return {**new, "metadata": {**metadata, **joined}, "data": {**others, **new["data"]}}


def publish(api: Connection, machine: Machine, *, dry_run: bool) -> Publication:
    """Create or replace the ConfigMap of the node that the machine is named after.

    NotFound if the node does not exist; ArenaError if its GPUs differ in number, or are shared.
    """
    _check(api, machine)
    query = {"dryRun": "All"} if dry_run else {}
    for _ in _attempts(f"the topology of node {machine.name}"):
        with unless_overtaken(AlreadyExists):
            return _write(api, machine, query)
    raise AssertionError("the last attempt returns or raises")


def _attempts(what: str) -> Iterator[int]:
    return attempts(
        _ATTEMPTS,
        f"{what} is being written by another program",
        hint="check that no other agent runs for this node",
    )


def _write(api: Connection, machine: Machine, query: dict[str, str]) -> Publication:
    # Readers prefer the ConfigMap of the node's agent, so measured bandwidths belong there.
    name = published.config_map_name(machine.name)
    published_now = _whole(api.find(f"{_OWN}/{name}")) if machine.measured else None
    published_now = published_now or _existing(api, machine.name)
    if published_now is None:
        manifest = published.config_map(machine, machine.everything)
        api.post(_ACK, manifest, **query)
        return Publication(manifest=manifest, outcome="created")
    manifest = documents.update_config_map(published_now, machine, machine.everything)
    if manifest == published_now:
        return Publication(manifest=manifest, outcome="unchanged")
    space = manifest["metadata"].get("namespace", published.ACK_NAMESPACE)
    path = f"/api/v1/namespaces/{space}/configmaps/{manifest['metadata']['name']}"
    api.put(path, manifest, **query)
    return Publication(manifest=manifest, outcome="configured")


def _check(api: Connection, machine: Machine) -> None:
    """Refuse what no reader could use: the links of another machine, or those of shared GPUs."""
    name = machine.name
    if not is_subdomain(name):
        raise UsageError(f"{name!r} is not a name that a node can have")
    node = api.find(f"/api/v1/nodes/{name}")
    if node is None:
        raise NotFound(
            f"there is no node {name} in this cluster",
            hint="kubectl get nodes lists them; name one: arena-topo topology publish NODE",
        )
    nodes = observed.cluster([read_record("Node", node)], source="").nodes
    has = len(nodes[0].machine.gpus) if nodes else 0
    if has != len(machine.gpus):
        raise ArenaError(
            f"node {name} has {has} GPUs, not {len(machine.gpus)}",
            why="its capacity says so: " + (nodes[0].resource if has else "no GPU resource in it"),
            hint="check that it is this machine, that its device plugin runs, and that"
            " no GPU has fallen off the bus",
        )
    if nodes[0].shared is not None:
        raise ArenaError(
            f"the GPUs of node {name} are not whole: {nodes[0].shared}",
            why="workers get GPUs by their links only where each has whole GPUs",
        )


def _whole(config_map: Object | None) -> Object | None:
    """A ConfigMap with its version and kind, which the items of a list lack."""
    if config_map is None:
        return None
    return {
        **config_map,
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "data": config_map.get("data") or {},
    }


def _existing(api: Connection, node: str) -> Object | None:
    """The ConfigMap that readers find for the node, else one with our name; None without either."""
    selector = f"{published.SCHEDULE_LABEL}=topology,{published.NODE_LABEL}={node}"
    config_maps = api.collect(_ACK, labelSelector=selector)
    return _whole(
        config_maps[0] if config_maps else api.find(f"{_ACK}/{published.config_map_name(node)}")
    )


def mirror(api: Connection, tell: Callable[[str], None] = lambda _: None) -> int:
    """Copy the agents' reports into ACK's namespace; the number of reports.

    Copies for nodes without a report are deleted. ConfigMaps that others have created there, as by
    `topology publish`, are left as they are; `tell` gets a note on each.
    """
    selector = f"{published.SCHEDULE_LABEL}=topology"
    wanted: dict[str, Object] = {}
    for config_map in api.collect(_OWN, labelSelector=selector):
        meta = config_map["metadata"]
        wanted[meta["name"]] = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": meta["name"],
                "namespace": published.ACK_NAMESPACE,
                "labels": {**(meta.get("labels") or {}), published.MIRRORED: "true"},
                "annotations": meta.get("annotations") or {},
            },
            "data": config_map.get("data") or {},
        }
    listed = api.collect(_ACK, labelSelector=selector)
    existing = {config_map["metadata"]["name"]: config_map for config_map in listed}
    copies = {name: config_map for name, config_map in existing.items() if _is_copy(config_map)}
    for name in [map_name for map_name in wanted if map_name not in copies]:
        taken = name in existing
        if not taken:
            try:
                api.post(_ACK, wanted[name])
            except AlreadyExists:
                taken = True
        if taken:
            tell(
                f"note: ConfigMap {published.ACK_NAMESPACE}/{name} is left unchanged: another"
                " program made it"
            )
    for name, copy in copies.items():
        meta, new = copy["metadata"], wanted.get(name)
        # Only if it has not changed since it was read.
        with unless_overtaken():
            if new is None:
                exactly = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
                api.delete(f"{_ACK}/{part(name)}", {"preconditions": exactly})
            elif (copy.get("data") or {}) != new["data"] or copy.get("binaryData"):
                renewed = {**new["metadata"], "resourceVersion": meta["resourceVersion"]}
                api.put(f"{_ACK}/{part(name)}", {**new, "metadata": renewed})
    return len(wanted)


def _is_copy(config_map: Object) -> bool:
    """Whether a ConfigMap was made by `mirror`."""
    return (config_map["metadata"].get("labels") or {}).get(published.MIRRORED) == "true"
