"""Cluster <-> the ConfigMap `cluster-view`, for users who may not list nodes and pods.

It has what the solver and the screens need of a cluster, and no name of a person or a job: JSON of
its nodes, in gzip, which compresses what nodes have in common.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import math
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NoReturn

import msgspec

from arena_topo.clusters.objects import invalid_object_text
from arena_topo.clusters.observed import age_text
from arena_topo.errors import ArenaError, UnreadableTopology
from arena_topo.numbers import parse_count
from arena_topo.topology import Cluster, GPUSet, Machine, Node, Tier, published

VIEW_NAME = published.VIEW
VIEW_NAMESPACE = published.OWN_NAMESPACE

_FORMAT = "v1"
_KEY = "cluster.gz"
"""Key of the view under `binaryData`."""

MAX_VIEW_BYTES = 1_000_000
"""Bytes of a view: a ConfigMap holds 1 MiB in all (kubernetes, MaxSecretSize)."""

_LARGEST_TEXT = 256 << 20
"""The limit of unpacked JSON in bytes; 100,000 nodes take some 15 MB."""

_WHERE = f"configmap {VIEW_NAMESPACE}/{VIEW_NAME}"

_HOSTNAME = "kubernetes.io/hostname"

_FAST = -1.0
"""The value of an unlimited network rate, as JSON has no infinity."""


SOMEBODY = "another gang"
"""The gang for which GPUs are reserved, as a view tells it."""


class _Reserved(msgspec.Struct, omit_defaults=True):
    """A reservation of a node, without its gang."""

    gpus: GPUSet = GPUSet(0)
    unnamed: int = 0
    cpu: float = 0.0
    memory: int = 0
    since: float | None = None
    restart: bool = False


class _View(msgspec.Struct):
    """The content of a view; nodes refer to their machine in `machines` by its number.

    Nodes are without their reservations, which are in `reserved` by name, the last first. `omitted`
    are labels of
    nodes that are left out.
    """

    machines: list[Machine]
    nodes: list[Node]
    tiers: tuple[Tier, ...]
    beyond: float | None
    guesses: dict[str, str]
    emulated: bool
    omitted: list[str]
    reserved: dict[str, list[_Reserved]]


def encode(cluster: Cluster, *, observed_at: float) -> dict[str, Any]:
    """The `data` and the `binaryData` of the ConfigMap.

    `observed_at` (Unix seconds) is when the cluster was read. Notes are left out, as they name
    pods, and so are UUIDs and the names of jobs: reserved GPUs are told without their gang. If the
    view is too large, labels that differ from node to node, such as serial numbers, are left out,
    and the view says so. ArenaError if it does not fit in a ConfigMap even then.
    """
    looked = datetime.fromtimestamp(observed_at, UTC).isoformat(timespec="milliseconds")
    packed = _packed(cluster, frozenset())
    if len(packed) > MAX_VIEW_BYTES:
        packed = _packed(cluster, _single(cluster))
    if len(packed) > MAX_VIEW_BYTES:
        raise ArenaError(
            f"a view of {len(cluster.nodes)} nodes does not fit in a ConfigMap",
            why=f"it takes {len(packed)} bytes, and {MAX_VIEW_BYTES} is the most",
        )
    return {
        "data": {"format": _FORMAT, published.OBSERVED: looked.replace("+00:00", "Z")},
        "binaryData": {_KEY: base64.b64encode(packed).decode()},
    }


def decode(config_map: Mapping[str, Any], *, now: float, source: str = "") -> Cluster:
    """The cluster in the ConfigMap, with its age at `now` (Unix seconds) as a note.

    UnreadableTopology if it is invalid. Of another version that is read which this version knows.
    """
    data = config_map.get("data")
    if not isinstance(data, Mapping):
        _refuse("data", "is missing")
    another = data.get("format") != _FORMAT
    version = f"it has the format {data.get('format')!r}, and this version knows {_FORMAT}"
    at = published.parse_time(data.get(published.OBSERVED))
    if at is None:
        _refuse(f"data.{published.OBSERVED}", "does not say when it was")
    try:
        view = msgspec.json.decode(_unpacked(config_map["binaryData"][_KEY]), type=_View)
        nodes = tuple(_nodes(view))
    except (KeyError, TypeError):
        _refuse(f"binaryData.{_KEY}", "is missing")
    except (OSError, EOFError, RecursionError, zlib.error, binascii.Error, ValueError) as error:
        why = invalid_object_text(error)
        _refuse(f"binaryData.{_KEY}", f"{why}; {version}" if another else why)
    note = f"the cluster is shown as it was {age_text(max(0.0, now - at))} ago ({_WHERE})"
    if now - at > published.STALE_REPORT_SECONDS:
        note += "; check that the controller runs"
    notes = [note, *([f"{_WHERE}: {version}"] if another else [])]
    if view.omitted:
        first = ", ".join(view.omitted[:3]) + (", ..." if view.omitted[3:] else "")
        notes.append(f"{_WHERE} leaves out {len(view.omitted)} labels of nodes: {first}")
    return Cluster(
        nodes=nodes,
        tiers=view.tiers,
        beyond=view.beyond,
        guesses=view.guesses,
        emulated=view.emulated,
        notes=tuple(notes),
        source=source,
        view=at,
    )


def _refuse(path: str, reason: str) -> NoReturn:
    raise UnreadableTopology(reason, where=f"{_WHERE} {path}")


def _unpacked(text: str) -> bytes:
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 16)
    text_bytes = unpack.decompress(base64.b64decode(text, validate=True), _LARGEST_TEXT)
    if not unpack.eof:
        raise ValueError("it is cut off, or too large")
    return text_bytes


def _single(cluster: Cluster) -> frozenset[str]:
    """The labels with fewer than two nodes per value on average, such as serial numbers."""
    values = Counter(key for _, key in {(v, k) for n in cluster.nodes for k, v in n.labels.items()})
    nodes = Counter(key for node in cluster.nodes for key in node.labels)
    single = {key for key, number in values.items() if number > 1 and 2 * number > nodes[key]}
    return frozenset(single - {_HOSTNAME})


def _packed(cluster: Cluster, omitted: frozenset[str]) -> bytes:
    numbers: dict[object, Machine] = {}
    machines: dict[Machine, str] = {}
    nodes = []
    for node in cluster.unreserved().nodes:
        shape = _shape(node.machine)
        if shape not in numbers:
            number = machines.setdefault(_bare(node.machine), str(len(machines)))
            numbers[shape] = Machine(name=number, gpus=(), links=())
        nodes.append(
            replace(
                node,
                machine=numbers[shape],
                labels={key: node.labels[key] for key in node.labels if key not in omitted},
                network=_FAST if math.isinf(node.network) else node.network,
                # They are names of jobs, which not everybody may know.
                holders=(),
            )
        )
    view = _View(
        machines=list(machines),
        nodes=nodes,
        tiers=cluster.tiers,
        beyond=cluster.beyond,
        guesses=dict(cluster.guesses),
        emulated=cluster.emulated,
        omitted=sorted(omitted),
        reserved={node.name: _reserved(node) for node in cluster.nodes if node.reserved},
    )
    # The default of zlib: the highest level takes more than twice the time for a tenth less.
    return gzip.compress(msgspec.json.encode(view), compresslevel=6, mtime=0)


def _reserved(node: Node) -> list[_Reserved]:
    return [
        msgspec.convert(reservation, _Reserved, from_attributes=True)
        for reservation, _ in node.reservations()
    ]


def _shape(machine: Machine) -> object:
    """The identity of a kind of machine; readers let machines of one kind share matrices."""
    return (
        *(id(machine.links), id(machine.nics), id(machine.measured), id(machine.bandwidth)),
        *(machine.nvswitch, machine.pcie_generation, machine.knowledge, machine.nics_assumed),
        *(machine.software, machine.nics_plugin),
        tuple((gpu.model, gpu.numa) for gpu in machine.gpus),
    )


def _bare(machine: Machine) -> Machine:
    """A machine without its individual parts."""
    return replace(machine, name="", gpus=tuple(replace(gpu, uuid=None) for gpu in machine.gpus))


def _nodes(view: _View) -> Iterator[Node]:
    for machine in view.machines:
        size = len(machine.gpus)
        rows = (*machine.links, *(nic.attachment for nic in machine.nics))
        indexes = [gpu.index for gpu in machine.gpus]
        if indexes != [*range(size)] or len(machine.links) != size or {*map(len, rows)} - {size}:
            raise ValueError("a machine has more or fewer links than GPUs")
    for node in view.nodes:
        number = parse_count(node.machine.name)
        if number is None or number >= len(view.machines):
            raise ValueError(f"node {node.name} has a machine that the view does not describe")
        if len(node.domains) != len(view.tiers):
            raise ValueError("there are not as many domains as tiers")
        machine = view.machines[number]
        for gpus in (node.free, node.allocatable or 0):
            if not 0 <= gpus <= machine.everything:
                raise ValueError(f"node {node.name} has no GPUs {gpus:#x}")
        if node.broken < 0:
            raise ValueError(f"node {node.name} has {node.broken} broken GPUs")
        read = replace(
            node,
            machine=replace(machine, name=node.name),
            network=math.inf if node.network == _FAST else node.network,
            holders=(),
            reserved=None,
        )
        for reservation in reversed(view.reserved.get(node.name, ())):
            if not 0 <= reservation.gpus <= machine.everything:
                raise ValueError(f"node {node.name} has no GPUs {reservation.gpus:#x} to reserve")
            read = _with(read, reservation)
        yield read


def _with(node: Node, reservation: _Reserved) -> Node:
    """A node with its reservation; ValueError for amounts below zero."""
    if min(reservation.unnamed, reservation.cpu, reservation.memory) < 0:
        raise ValueError(f"node {node.name} has less than nothing reserved")
    return node.reserve(SOMEBODY, **msgspec.structs.asdict(reservation))
