"""Readers of descriptions of a machine -> Machine: JSON of `topology show`, ConfigMaps of nodes.

    {"name": ..., "gpus": [{"index", "uuid", "model", "numa"}], "nics": [{"name", "attachment",
     "speedGBps"}], "nicsAssumed": ..., "links": [["X", "NV2"], ...], "nvswitch": ...,
     "pcieGeneration": ..., "knowledge": ...}

Only `gpus` and `links` are required. A ConfigMap has `nodeName`, `devices` with their health,
`linkType` and `bandwidth` in ACK's format, and our keys `busBandwidth`, `nics`, `uuids`,
`allocations` (`published` writes them).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec

from arena_topo.errors import UnreadableTopology
from arena_topo.topology import (
    GPU,
    MOST_GPUS,
    NIC,
    GPUSet,
    Knowledge,
    Link,
    Machine,
    Matrix,
    NodeGPUs,
    behind_nvswitch,
    common_model,
    count,
    flat,
    gpu_set,
    published,
)
from arena_topo.topology.decoding import Refuse, check_length, decode_or_refuse
from arena_topo.topology.models import model_of
from arena_topo.topology.published import (
    ACK_NAMESPACE,
    ALLOCATIONS,
    HEALTHY,
    KNOWLEDGE_ANNOTATION,
    MEASURED_ON,
    MIRRORED,
    NICS,
    NODE_LABEL,
    OBSERVED,
    SELF,
    UUIDS,
    Allocations,
    parse_time,
)

_Element = TypeVar("_Element")

SLOWEST, FASTEST = 0.001, 1e6
"""The range of all links and networks in GB/s; products of such rates neither underflow nor
overflow."""

Rate = Annotated[float, msgspec.Meta(ge=SLOWEST, le=FASTEST)]

_SELVES = frozenset({SELF, "N/A", "X"})


class _GPU(msgspec.Struct):
    index: int | None = None
    uuid: str | None = None
    model: str | None = None
    # Linux numbers at most 1,024 NUMA nodes.
    numa: Annotated[int, msgspec.Meta(ge=0, lt=1024)] | None = None


class Card(msgspec.Struct):
    """A NIC in a document, its links in the words of nvidia-smi."""

    attachment: list[str]
    name: str | None = None
    speed: Rate | None = msgspec.field(default=None, name="speedGBps")


class _Machine(msgspec.Struct, rename="camel"):
    gpus: Annotated[list[_GPU], msgspec.Meta(min_length=1, max_length=MOST_GPUS)]
    links: list[list[str]]
    name: str | None = None
    nics: list[Card] | None = None
    nics_assumed: str | None = None
    nvswitch: bool | None = None
    pcie_generation: Annotated[int, msgspec.Meta(ge=1, le=7)] | None = None
    knowledge: Knowledge | None = None


def machine_from_document(
    document: Mapping[str, Any], *, name: str, model: str | None = None
) -> Machine:
    """The machine of a JSON document; UnreadableTopology names the path of an invalid value.

    `name` is the machine's name if it has none, `model` the GPUs' model if they have none.
    """
    parsed = decode_or_refuse(lambda: msgspec.convert(document, _Machine), _refuse)
    for at, gpu in enumerate(parsed.gpus):
        if gpu.index not in {None, at}:
            _refuse(f"gpus[{at}].index", f"is {gpu.index}, not {at}")
    gpus = tuple(
        GPU(index=at, uuid=gpu.uuid or None, model=model_of(gpu.model or model), numa=gpu.numa)
        for at, gpu in enumerate(parsed.gpus)
    )
    links = parse_matrix(parsed.links, len(gpus), _refuse, "links")
    switched = behind_nvswitch(common_model(gpus), links)
    return Machine(
        name=parsed.name or name,
        gpus=gpus,
        links=links,
        nics=read_nics(parsed.nics or (), len(gpus), _refuse, "nics"),
        nics_assumed=parsed.nics_assumed or "",
        nvswitch=switched if parsed.nvswitch is None else parsed.nvswitch,
        pcie_generation=parsed.pcie_generation,
        knowledge=parsed.knowledge or Knowledge.MEASURED,
    )


def parse_matrix(rows: Sequence[Sequence[str]], size: int, refuse: Refuse, path: str) -> Matrix:
    """The links of `size` GPUs; each row has the words of nvidia-smi."""
    check_square(rows, size, refuse, path)
    links: list[tuple[Link | None, ...]] = []
    for i, row in enumerate(rows):
        for j, word in enumerate(row):
            if (word in _SELVES) != (i == j):
                refuse(f"{path}[{i}][{j}]", f"is {word}, but {SELF} marks a GPU and itself")
            if j < i and word != rows[j][i]:
                refuse(f"{path}[{i}][{j}]", f"is {word}, but [{j}][{i}] is {rows[j][i]}")
        links.append(
            tuple(
                None if i == j else link(word, refuse, f"{path}[{i}][{j}]")
                for j, word in enumerate(row)
            )
        )
    return tuple(links)


def check_square(rows: Sequence[Sequence[Any]], size: int, refuse: Refuse, path: str) -> None:
    """Refuse a matrix without a row and a column for each of `size` GPUs."""
    check_length(rows, size, refuse, path)
    for i, row in enumerate(rows):
        check_length(row, size, refuse, f"{path}[{i}]")


def read_nics(cards: Sequence[Card], size: int, refuse: Refuse, path: str) -> tuple[NIC, ...]:
    """The NICs of a machine with `size` GPUs."""
    parsed = []
    for at, card in enumerate(cards):
        place = f"{path}[{at}].attachment"
        check_length(card.attachment, size, refuse, place)
        links = (link(word, refuse, f"{place}[{gpu}]") for gpu, word in enumerate(card.attachment))
        parsed.append(NIC(name=card.name or f"NIC{at}", attachment=tuple(links), speed=card.speed))
    return tuple(parsed)


def parse_measured(
    table: object, size: int, refuse: Refuse, path: str = ""
) -> tuple[tuple[GPUSet, float], ...]:
    """The measured bandwidths of sets of GPUs; `table` has GB/s by lists such as `0,1`."""
    bandwidths: dict[GPUSet, float] = {}
    rates = decode_or_refuse(lambda: msgspec.convert(table, dict[str, Rate]), refuse, path)
    for key, rate in rates.items():
        place = f"{path}[{key!r}]"
        if not re.fullmatch(r"[0-9]{1,4}(?:\s*,\s*[0-9]{1,4})+", key):
            refuse(place, "is not a list of two or more GPUs such as 0,1")
        indexes = [int(index) for index in key.split(",")]
        if max(indexes) >= size:
            refuse(place, f"GPU {max(indexes)} of {size} is out of range")
        gpus = gpu_set(indexes)
        if count(gpus) < len(indexes) or gpus in bandwidths:
            refuse(place, "names a GPU, or a set of GPUs, twice")
        bandwidths[gpus] = rate
    return tuple(sorted(bandwidths.items()))


def link(word: str, refuse: Refuse, path: str) -> Link:
    """One link, as a word of nvidia-smi."""
    try:
        return Link.parse(word)
    except ValueError as error:
        refuse(path, str(error))


def _refuse(path: str, reason: str) -> NoReturn:
    raise UnreadableTopology(reason, where=path or "the document")


# ConfigMaps


def gpus_from_config_map(
    config_map: Mapping[str, Any],
    *,
    model: str | None = None,
    complaints: dict[str, UnreadableTopology] | None = None,
) -> NodeGPUs:
    """Read ACK's ConfigMap; UnreadableTopology names the path of an invalid value.

    `model` is the GPUs' model or product name, which is not in the ConfigMap. Without `linkType`
    the machine is unknown, with the number of its devices. With `complaints`, invalid keys are
    skipped and collected there; an invalid node or invalid devices still raise.
    """
    source, model = _ConfigMap(config_map), model_of(model)
    devices, name = source.devices(), source.node()
    size = len(devices)

    def part(key: str, read: Callable[[int], _Element], otherwise: _Element) -> _Element:
        try:
            return read(size)
        except UnreadableTopology as error:
            if complaints is None:
                raise
            complaints[key] = error
            return otherwise

    known = part("linkType", source.links, None)
    links = known or flat(size)
    machine = Machine(
        name=name,
        gpus=tuple(GPU(index=index, model=model) for index in range(size)),
        links=links,
        nics=part(NICS, source.nics, ()),
        nvswitch=behind_nvswitch(model, links),
        knowledge=source.knowledge() if known else Knowledge.UNKNOWN,
        measured=part("busBandwidth", source.measured, ()),
        measured_on=str(source.data.get(MEASURED_ON) or "")[:MAX_WHEN],
        bandwidth=part("bandwidth", source.bandwidth, None),
    )
    healthy = gpu_set(int(index) for index, health in devices.items() if health == HEALTHY)
    return NodeGPUs(machine=machine, healthy=healthy)


def uuids(config_map: Mapping[str, Any]) -> tuple[str, ...]:
    """The UUIDs of a node's GPUs by index, written by an agent; empty without them.

    UnreadableTopology names the path of an invalid value.
    """
    source = _ConfigMap(config_map)
    listed = source.json(UUIDS, list[str]) or []
    if len(set(listed)) < len(listed) or "" in listed:
        source.refuse(f"data.{UUIDS}", "does not name each GPU once")
    return tuple(listed)


_GPUs = list[Annotated[int, msgspec.Meta(ge=0, lt=MOST_GPUS)]]


def allocations(config_map: Mapping[str, Any]) -> Allocations | None:
    """The allocations of a node's kubelet, written by an agent; None without them.

    UnreadableTopology names the path of an invalid value.
    """
    source = _ConfigMap(config_map)
    pods = source.json(ALLOCATIONS, dict[str, _GPUs])
    if pods is None:
        return None
    at = parse_time(source.data.get(OBSERVED))
    if at is None:
        source.refuse(f"data.{OBSERVED}", "does not say when the allocations were seen")
    return Allocations(observed_at=at, gpus={pod: gpu_set(gpus) for pod, gpus in pods.items()})


def update_config_map(
    document: Mapping[str, Any], machine: Machine, healthy: GPUSet
) -> dict[str, Any]:
    """A node's ConfigMap with the links of this machine; all other keys are unchanged.

    GPUs that the ConfigMap reports as unhealthy stay so: the caller has not checked their health.
    Measured bandwidths stay only if the links are the same; those of the machine take precedence.
    """
    new = published.config_map(machine, healthy)
    data = {key: value for key, value in document["data"].items() if key not in _LINKED}
    try:
        known = gpus_from_config_map(document)
    except UnreadableTopology:
        known = None
    if known is not None and len(known.machine.gpus) == len(machine.gpus):
        same = known.machine.links == machine.links
        if same and machine.measured:
            both = {**dict(known.machine.measured), **dict(machine.measured)}
            machine = replace(machine, measured=tuple(sorted(both.items())))
        new = published.config_map(machine, GPUSet(healthy & known.healthy))
        if same:
            data = dict(document["data"])
        if machine.measured and not machine.measured_on:
            # The day of the table before is not that of this one.
            data.pop(MEASURED_ON, None)
    metadata = document["metadata"]
    for key in ("labels", "annotations"):
        new["metadata"][key] = {**(metadata.get(key) or {}), **new["metadata"][key]}
    # A ConfigMap that a person has published is no copy, so the controller must not overwrite it.
    new["metadata"]["labels"].pop(MIRRORED, None)
    new["metadata"] |= {key: metadata[key] for key in ("name", "namespace") if key in metadata}
    return {**document, "metadata": {**metadata, **new["metadata"]}} | {
        "apiVersion": new["apiVersion"],
        "kind": new["kind"],
        "data": {**data, **new["data"]},
    }


_LINKED = frozenset({"linkType", "bandwidth", "busBandwidth", MEASURED_ON, NICS})
"""Keys that become invalid when the links change."""


class _ConfigMap:
    """A ConfigMap that is being read; every error names it and the path inside."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        metadata = document.get("metadata")
        self.metadata: Mapping[str, Any] = metadata if isinstance(metadata, Mapping) else {}
        name = f"{self.metadata.get('namespace', ACK_NAMESPACE)}/{self.metadata.get('name', '?')}"
        self.name = f"configmap {name}"
        data = document.get("data")
        self.data = decode_or_refuse(
            lambda: msgspec.convert(data, dict[str, str]), self.refuse, "data"
        )

    def refuse(self, path: str, reason: str) -> NoReturn:
        raise UnreadableTopology(reason, where=f"{self.name} {path}")

    def json(self, key: str, kind: type[_Element]) -> _Element | None:
        """The JSON under a key; None if it is missing or empty."""
        text = self.data.get(key, "").strip()
        empty = text in {"", "null", "[]", "{}"}
        if empty:
            return None
        return decode_or_refuse(
            lambda: msgspec.json.decode(text, type=kind), self.refuse, f"data.{key}"
        )

    def node(self) -> str:
        label, written = self.mapping("labels").get(NODE_LABEL), self.data.get("nodeName")
        names = {name for name in (label, written) if name and isinstance(name, str)}
        if len(names) > 1:
            self.refuse("data.nodeName", f"{written!r}, but the label {NODE_LABEL} is {label!r}")
        if not names:
            self.refuse("data.nodeName", f"is missing, and so is the label {NODE_LABEL}")
        return names.pop()

    def mapping(self, key: str) -> Mapping[str, Any]:
        value = self.metadata.get(key)
        return value if isinstance(value, Mapping) else {}

    def knowledge(self) -> Knowledge:
        written = self.mapping("annotations").get(KNOWLEDGE_ANNOTATION)
        return Knowledge.ASSUMED if written == Knowledge.ASSUMED.value else Knowledge.MEASURED

    def devices(self) -> dict[str, str]:
        health = self.json("devices", dict[str, str]) or {}
        if not health or health.keys() != set(map(str, range(len(health)))):
            self.refuse("data.devices", 'does not number the GPUs, as in {"0":"Healthy"}')
        if len(health) > MOST_GPUS:
            self.refuse("data.devices", f"{len(health)} GPUs; {MOST_GPUS} are the most")
        return health

    def links(self, size: int) -> Matrix | None:
        rows = self.json("linkType", list[list[str]])
        return None if rows is None else parse_matrix(rows, size, self.refuse, "data.linkType")

    def nics(self, size: int) -> tuple[NIC, ...]:
        return read_nics(self.json(NICS, list[Card]) or (), size, self.refuse, f"data.{NICS}")

    def bandwidth(self, size: int) -> tuple[tuple[float, ...], ...] | None:
        rows = self.json("bandwidth", list[list[_Shown]])
        if rows is None:
            return None
        check_square(rows, size, self.refuse, "data.bandwidth")
        return tuple(map(tuple, rows))

    def measured(self, size: int) -> tuple[tuple[GPUSet, float], ...]:
        table = self.json("busBandwidth", dict[str, Any]) or {}
        return parse_measured(table, size, self.refuse, "data.busBandwidth")


MAX_WHEN = 80
"""The most characters that say when something was measured."""

_Shown = Annotated[float, msgspec.Meta(ge=0, le=FASTEST)]
