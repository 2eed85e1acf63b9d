"""Cluster <-> the ConfigMap `cluster-view`, for those who may not list nodes and pods.

What the solver and the screens need of a cluster, and no name of a person or a job. Nodes are
alike, so everything is kept by column: what all have once, what many have by number.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NoReturn

from arena_topo.clusters import network
from arena_topo.clusters.observed import ago
from arena_topo.errors import ArenaError, UnreadableTopology
from arena_topo.topology import (
    GPU,
    NIC,
    Cluster,
    GPUSet,
    Knowledge,
    Link,
    Machine,
    Matrix,
    Node,
    NodeName,
    Taint,
    Tier,
    published,
)
from arena_topo.topology.fabricfile import FabricFile

NAME = published.VIEW
NAMESPACE = published.OWN_NAMESPACE

_FORMAT = "v1"
_PLAIN, _PACKED = "cluster", "cluster.gz"
"""Keys of the view: as JSON text under `data`, or compressed under `binaryData`."""

LARGEST_PLAIN = 700_000
"""Bytes of JSON above which the view is compressed, and labels go that single out one node."""

LARGEST = 1_000_000
"""Bytes of a view: a ConfigMap holds 1 MiB in all (kubernetes, MaxSecretSize)."""

_LARGEST_TEXT = 256 << 20
"""Bytes of JSON that are unpacked at most; 100,000 nodes take some 30 MB."""

_WHERE = f"configmap {NAMESPACE}/{NAME}"

_HOSTNAME = "kubernetes.io/hostname"

_NODE: dict[str, Callable[[Node], Any]] = {
    "free": lambda node: node.free,
    "hidden": lambda node: node.hidden,
    "allocatable": lambda node: node.allocatable,
    "cpu": lambda node: node.cpu,
    "memory": lambda node: node.memory,
    "all_cpu": lambda node: node.all_cpu,
    "all_memory": lambda node: node.all_memory,
    "unavailable": lambda node: node.unavailable,
    "shared": lambda node: node.shared,
    "resource": lambda node: node.resource,
    "driver": lambda node: node.driver,
    "dedicated": lambda node: node.dedicated,
    "foreign": lambda node: node.foreign,
    "taints": lambda node: tuple((one.key, one.value, one.effect) for one in node.taints),
    "network": lambda node: None if math.isinf(node.network) else node.network,
}
"""What of a node is kept as it is; its labels, machine and domains are columns of their own."""

_NUMBER, _COUNT, _WORD = (int, float, type(None)), (int, type(None)), (str, type(None))
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("free", "hidden", "machine"), (int,)),
    **dict.fromkeys(("allocatable", "memory", "all_memory"), _COUNT),
    **dict.fromkeys(("cpu", "all_cpu", "network"), _NUMBER),
    **dict.fromkeys(("unavailable", "shared"), _WORD),
    **dict.fromkeys(("resource", "driver"), (str,)),
    **dict.fromkeys(("dedicated", "foreign"), (bool,)),
    "taints": (list,),
}
"""What is in each column."""


def encode(cluster: Cluster, *, observed_at: float) -> dict[str, Any]:
    """The `data`, and where it is large the `binaryData`, of the ConfigMap.

    `observed_at` (Unix seconds) is when the cluster was read. Notes are left out, as they name
    pods, and so are UUIDs. ArenaError if it does not fit in a ConfigMap at all.
    """
    document = _document(cluster)
    looked = datetime.fromtimestamp(observed_at, UTC).isoformat(timespec="milliseconds")
    data = {"format": _FORMAT, published.OBSERVED: looked.replace("+00:00", "Z")}
    text = _text(document)
    if len(text) <= LARGEST_PLAIN:
        return {"data": {**data, _PLAIN: text.decode()}}
    labels = document["labels"]
    for key in [key for key, column in labels.items() if "each" in column]:
        _omit(document, key)
    packed = _packed(document)
    while len(packed) > LARGEST:
        if not labels:
            raise ArenaError(
                f"a view of {len(cluster.nodes)} nodes does not fit in a ConfigMap",
                why=f"it takes {len(packed)} bytes, and {LARGEST} is the most",
            )
        _omit(document, max(labels, key=lambda key: len(gzip.compress(_text(labels[key]), 1))))
        packed = _packed(document)
    return {"data": data, "binaryData": {_PACKED: base64.b64encode(packed).decode()}}


def decode(config_map: Mapping[str, Any], *, now: float, source: str = "") -> Cluster:
    """The cluster in the ConfigMap, with its age at `now` (Unix seconds) as a note.

    UnreadableTopology if it makes no sense, or was written by another version.
    """
    data = config_map.get("data")
    if not isinstance(data, Mapping):
        _refuse("data", "is missing")
    if data.get("format") != _FORMAT:
        _refuse("data.format", f"{data.get('format')!r} is not {_FORMAT}, which this version reads")
    at = published.moment(data.get(published.OBSERVED))
    if at is None:
        _refuse(f"data.{published.OBSERVED}", "does not say when it was")
    path = f"data.{_PLAIN}" if _PLAIN in data else f"binaryData.{_PACKED}"
    try:
        document = json.loads(
            data[_PLAIN] if _PLAIN in data else _unpacked(config_map["binaryData"][_PACKED])
        )
        found = _cluster(document)
        omitted = [str(key) for key in document["omitted"]]
    except (
        *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
        *(OSError, EOFError, zlib.error, binascii.Error),
    ) as error:
        _refuse(path, f"makes no sense: {type(error).__name__} {error}")
    note = f"the cluster is shown as it was {ago(max(0.0, now - at))} ago ({_WHERE})"
    if now - at > published.STALE:
        note += ": is the controller at work?"
    notes = [note]
    if omitted:
        first = ", ".join(omitted[:3]) + (", ..." if omitted[3:] else "")
        notes.append(f"{_WHERE} leaves out {len(omitted)} labels of nodes: {first}")
    return replace(found, notes=tuple(notes), source=source, view=at)


def rejoined(cluster: Cluster, file: FabricFile) -> Cluster:
    """The same nodes, joined as a fabric file says.

    Who offers RDMA is not in a view, so no level is taken to have it.
    """
    joined = network.joining(
        {node.name: node.machine for node in cluster.nodes},
        {node.name: node.labels for node in cluster.nodes},
        rdma={},
        file=file,
    )
    return replace(
        cluster,
        nodes=tuple(
            replace(
                node,
                domains=joined.domains[node.name],
                network=joined.limits.get(node.name, math.inf),
            )
            for node in cluster.nodes
        ),
        tiers=joined.tiers,
        unused=joined.unused,
        beyond=joined.beyond,
        guesses=joined.guesses,
        notes=(*cluster.notes, *joined.notes),
    )


def _refuse(path: str, reason: str) -> NoReturn:
    raise UnreadableTopology(reason, where=f"{_WHERE} {path}")


def _text(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _packed(document: object) -> bytes:
    return gzip.compress(_text(document), mtime=0)


def _unpacked(text: str) -> bytes:
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 16)
    found = unpack.decompress(base64.b64decode(text, validate=True), _LARGEST_TEXT)
    if not unpack.eof:
        raise ValueError("it is cut off, or too large")
    return found


def _omit(document: dict[str, Any], key: str) -> None:
    del document["labels"][key]
    document["omitted"].append(key)


# --- writing --------------------------------------------------------------------------------


def _document(cluster: Cluster) -> dict[str, Any]:
    nodes = cluster.nodes
    kinds: dict[object, int] = {}
    machines: dict[Machine, int] = {}
    of = []
    for node in nodes:
        kind = _kind(node.machine)
        if kind not in kinds:
            kinds[kind] = machines.setdefault(_bare(node.machine), len(machines))
        of.append(kinds[kind])
    return {
        "nodes": [node.name for node in nodes],
        "machines": [_machine(one) for one in machines],
        "machine": _column(of),
        **{name: _column([read(node) for node in nodes]) for name, read in _NODE.items()},
        "labels": {
            key: _label(key, nodes)
            for key in sorted({key for node in nodes for key in node.labels})
        },
        "tiers": [[tier.name, tier.bandwidth] for tier in cluster.tiers],
        "domains": [
            _column([node.domains[at] for node in nodes]) for at in range(len(cluster.tiers))
        ],
        "beyond": cluster.beyond,
        "guesses": dict(cluster.guesses),
        "emulated": cluster.emulated,
        "omitted": [],
    }


def _kind(machine: Machine) -> object:
    """What makes machines equal; those of one kind share their matrices, as readers make them."""
    return (
        *(id(machine.links), id(machine.nics), id(machine.measured), id(machine.bandwidth)),
        *(machine.nvswitch, machine.pcie_generation, machine.knowledge, machine.nics_assumed),
        tuple((gpu.model, gpu.numa) for gpu in machine.gpus),
    )


def _bare(machine: Machine) -> Machine:
    """A machine without what is its own alone."""
    return replace(machine, name="", gpus=tuple(replace(gpu, uuid=None) for gpu in machine.gpus))


def _machine(machine: Machine) -> dict[str, Any]:
    return {
        "gpus": [[gpu.model, gpu.numa] for gpu in machine.gpus],
        "links": [[None if one is None else str(one) for one in row] for row in machine.links],
        "nics": [
            [one.name, [str(link) for link in one.attachment], one.speed] for one in machine.nics
        ],
        "nicsAssumed": machine.nics_assumed,
        "nvswitch": machine.nvswitch,
        "pcieGeneration": machine.pcie_generation,
        "knowledge": machine.knowledge.value,
        "busBandwidth": machine.measured,
        "bandwidth": machine.bandwidth,
    }


def _label(key: str, nodes: Sequence[Node]) -> dict[str, Any]:
    if key == _HOSTNAME and all(node.labels.get(key) == node.name for node in nodes):
        return {"name": True}
    return _column([node.labels.get(key) for node in nodes])


def _column(values: Sequence[Any]) -> dict[str, Any]:
    """One value for each node, each written once where several nodes have it."""
    distinct = {value: at for at, value in enumerate(dict.fromkeys(values))}
    if len(distinct) == 1:
        return {"all": values[0]}
    if 2 * len(distinct) > len(values):
        return {"each": list(values)}
    return {"of": list(distinct), "at": [distinct[value] for value in values]}


# --- reading --------------------------------------------------------------------------------


def _cluster(document: Mapping[str, Any]) -> Cluster:
    names = document["nodes"]
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise TypeError("nodes are no names")
    size = len(names)
    machines = [_read_machine(one) for one in document["machines"]]
    columns = {name: _values(document[name], size, types) for name, types in _TYPES.items()}
    labels = {
        key: names if "name" in column else _values(column, size, _WORD)
        for key, column in document["labels"].items()
    }
    domains = [_values(column, size, (str,)) for column in document["domains"]]
    if len(domains) != len(document["tiers"]):
        raise ValueError("there are not as many domains as tiers")
    taints = _once(lambda told: tuple(Taint(key=k, value=v, effect=e) for k, v, e in told))
    paths = list(zip(*domains, strict=True)) if domains else [()] * size
    nodes = []
    for at, name in enumerate(names):
        told = {key: column[at] for key, column in columns.items()}
        machine, limit = machines[told.pop("machine")], told.pop("network")
        for gpus in (told["free"], told["allocatable"] or 0):
            if not 0 <= gpus <= machine.everything:
                raise ValueError(f"node {name} has no GPUs {gpus:#x}")
        nodes.append(
            Node(
                name=NodeName(name),
                machine=replace(machine, name=name),
                labels={
                    key: column[at] for key, column in labels.items() if column[at] is not None
                },
                taints=taints(told.pop("taints")),
                domains=paths[at],
                network=math.inf if limit is None else float(limit),
                **told,
            )
        )
    return Cluster(
        nodes=tuple(nodes),
        tiers=tuple(map(_tier, document["tiers"])),
        beyond=float(document["beyond"]),
        guesses={str(key): str(value) for key, value in document["guesses"].items()},
        emulated=bool(document["emulated"]),
    )


def _tier(told: Sequence[Any]) -> Tier:
    name, rate = told
    if not isinstance(told, list) or not isinstance(name, str):
        raise TypeError("a tier is no name and bandwidth")
    return Tier(name=name, bandwidth=float(rate))


def _read_machine(told: Mapping[str, Any]) -> Machine:
    bandwidth = told["bandwidth"]
    return Machine(
        name="",
        gpus=tuple(
            GPU(index=index, model=model, numa=numa)
            for index, (model, numa) in enumerate(told["gpus"])
        ),
        links=_links(told["links"]),
        nics=tuple(
            NIC(name=name, attachment=tuple(map(Link.parse, attachment)), speed=speed)
            for name, attachment, speed in told["nics"]
        ),
        # The versions before did not tell, and knew of no assumed ones.
        nics_assumed=str(told.get("nicsAssumed", "")),
        nvswitch=told["nvswitch"],
        pcie_generation=told["pcieGeneration"],
        knowledge=Knowledge(told["knowledge"]),
        measured=tuple((GPUSet(gpus), float(rate)) for gpus, rate in told["busBandwidth"]),
        bandwidth=None if bandwidth is None else tuple(map(tuple, bandwidth)),
    )


def _links(rows: Iterable[Iterable[str | None]]) -> Matrix:
    word = _once(Link.parse)
    return tuple(tuple(None if one is None else word(one) for one in row) for row in rows)


def _values(column: Mapping[str, Any], size: int, types: tuple[type, ...]) -> Sequence[Any]:
    """The value of each node; TypeError or ValueError if not every node has one of these types."""
    distinct: Sequence[Any] = [column["all"]] if "all" in column else column.get("of", ())
    at: Sequence[int] = [0] * size if "all" in column else column.get("at", ())
    if "each" in column:
        distinct, at = column["each"], range(size)
    if not all(isinstance(one, types) for one in distinct):
        raise TypeError(f"a column of {types[0].__name__} has other values")
    if len(at) != size:
        raise ValueError(f"a column has {len(at)} values for {size} nodes")
    return [distinct[one] for one in at]


def _once(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same function, which reads equal values once."""
    known: dict[str, Any] = {}

    def cached(value: Any) -> Any:
        key = value if isinstance(value, str) else json.dumps(value)
        if key not in known:
            known[key] = read(value)
        return known[key]

    return cached
