"""The ConfigMap in which ACK's agent or ours describes a node -> Machine.

Data keys: `nodeName`, `devices` with their health, `linkType` and `bandwidth` as ACK has them, and
ours: `busBandwidth`, `nics`, `uuids`, `allocations` (see `published`, which writes them).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from arena_topo.errors import UnreadableTopology
from arena_topo.topology import (
    GPU,
    MOST_GPUS,
    GPUSet,
    Knowledge,
    Machine,
    behind_nvswitch,
    count,
    flat,
    gpu_set,
    published,
)
from arena_topo.topology.document import matrix, nics
from arena_topo.topology.fields import Field
from arena_topo.topology.models import model_of
from arena_topo.topology.published import (
    ALLOCATIONS,
    HEALTHY,
    KNOWLEDGE_ANNOTATION,
    MIRRORED,
    NAMESPACE,
    NICS,
    NODE_LABEL,
    OBSERVED,
    UUIDS,
    Allocations,
    moment,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A node's machine as a ConfigMap tells it, and which of its GPUs are healthy."""

    node: str
    machine: Machine
    healthy: GPUSet


def allocations(config_map: Mapping[str, Any]) -> Allocations | None:
    """What an agent has written of its kubelet; None where it has written nothing.

    UnreadableTopology names the path of what makes no sense.
    """
    return _ConfigMap(config_map).allocations()


def uuids(config_map: Mapping[str, Any]) -> tuple[str, ...]:
    """The UUIDs of a node's GPUs by index, as an agent has written them; none where it has not.

    UnreadableTopology names the path of what makes no sense.
    """
    return _ConfigMap(config_map).uuids()


def read(config_map: Mapping[str, Any], *, model: str | None = None) -> Published:
    """Read ACK's ConfigMap; UnreadableTopology names the path of what makes no sense.

    `model` is the GPUs' model or product name, which the ConfigMap does not tell. Without
    `linkType` the machine is unknown, with the number of its devices.
    """
    return _ConfigMap(config_map).read(model_of(model))


_OPTIONAL = ("bandwidth", "busBandwidth", NICS, "linkType")
"""Keys without which a ConfigMap still says which GPUs there are and which are healthy."""


def salvage(
    config_map: Mapping[str, Any], *, model: str | None = None
) -> tuple[Published, dict[str, UnreadableTopology]]:
    """Read what makes sense of ACK's ConfigMap, and what does not, by key.

    UnreadableTopology if not even its devices make sense.
    """
    data = config_map.get("data")
    left = dict(data) if isinstance(data, Mapping) else {}
    complaints: dict[str, UnreadableTopology] = {}
    while True:
        try:
            return read({**config_map, "data": left}, model=model), complaints
        except UnreadableTopology as error:
            key = next((one for one in _OPTIONAL if f" data.{one}" in (error.where or "")), None)
            if key is None or key not in left:
                raise
            complaints[key] = error
            del left[key]


def updated(document: Mapping[str, Any], machine: Machine, healthy: GPUSet) -> dict[str, Any]:
    """A node's ConfigMap with the links of this machine, and all else in it left as it is.

    GPUs that it calls unhealthy stay so: who publishes links has not looked at their health.
    Bandwidths are kept only while the links are the same; those of the machine count more.
    """
    new = published.config_map(machine, healthy)
    kept = {key: value for key, value in document["data"].items() if key not in _LINKED}
    try:
        known = read(document)
    except UnreadableTopology:
        known = None
    if known is not None and len(known.machine.gpus) == len(machine.gpus):
        same = known.machine.links == machine.links
        if same and machine.measured:
            both = {**dict(known.machine.measured), **dict(machine.measured)}
            machine = replace(machine, measured=tuple(sorted(both.items())))
        new = published.config_map(machine, GPUSet(healthy & known.healthy))
        if same:
            kept = dict(document["data"])
    metadata = document["metadata"]
    for key in ("labels", "annotations"):
        new["metadata"][key] = {**(metadata.get(key) or {}), **new["metadata"][key]}
    # What a person has published is no copy any more that the controller may overwrite.
    new["metadata"]["labels"].pop(MIRRORED, None)
    new["metadata"] |= {key: metadata[key] for key in ("name", "namespace") if key in metadata}
    return {**document, "metadata": {**metadata, **new["metadata"]}} | {
        "apiVersion": new["apiVersion"],
        "kind": new["kind"],
        "data": {**kept, **new["data"]},
    }


_LINKED = frozenset({"linkType", "bandwidth", "busBandwidth", NICS})
"""Keys that mean nothing any more once the links are others."""


class _ConfigMap:
    """One ConfigMap under examination: every complaint names it and the path inside."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        metadata = document.get("metadata")
        self.metadata: Mapping[str, Any] = metadata if isinstance(metadata, Mapping) else {}
        name = f"{self.metadata.get('namespace', NAMESPACE)}/{self.metadata.get('name', '?')}"
        self.name = f"configmap {name}"
        self.data = Field(document.get("data"), "data", self.refuse)
        self.data.mapping()

    def refuse(self, path: str, reason: str) -> NoReturn:
        raise UnreadableTopology(reason, where=f"{self.name} {path}")

    def read(self, model: str | None) -> Published:
        devices = self.devices()
        size = len(devices)
        links, rates = self.json("linkType"), self.json("bandwidth")
        known = links.value not in (None, [])
        found = matrix(links, size) if known else flat(size)
        none = rates.value in (None, [])
        shown = [] if none else [row.items(size) for row in rates.items(size)]
        machine = Machine(
            name=self.node(),
            gpus=tuple(GPU(index=index, model=model) for index in range(size)),
            links=found,
            nics=self.json(NICS).maybe(lambda one: nics(one, size)) or (),
            nvswitch=behind_nvswitch(model, found),
            knowledge=self.knowledge() if known else Knowledge.UNKNOWN,
            measured=self.measured(size),
            bandwidth=tuple(tuple(one.rate(zero=True) for one in row) for row in shown) or None,
        )
        healthy = gpu_set(index for index, health in devices.items() if health == HEALTHY)
        return Published(node=machine.name, machine=machine, healthy=healthy)

    def node(self) -> str:
        label = Field(self.mapping("labels").get(NODE_LABEL), _LABEL, self.refuse)
        names = {one.maybe(Field.text) for one in (label, self.data["nodeName"])} - {None, ""}
        if len(names) > 1:
            written = self.data["nodeName"]
            written.refuse(f"{written.value!r}, but the label {NODE_LABEL} is {label.value!r}")
        if not names:
            self.data["nodeName"].refuse(f"is missing, and so is the label {NODE_LABEL}")
        return str(names.pop())

    def mapping(self, key: str) -> Mapping[str, Any]:
        found = self.metadata.get(key)
        return found if isinstance(found, Mapping) else {}

    def knowledge(self) -> Knowledge:
        written = self.mapping("annotations").get(KNOWLEDGE_ANNOTATION)
        return Knowledge.ASSUMED if written == Knowledge.ASSUMED.value else Knowledge.MEASURED

    def json(self, key: str) -> Field:
        """The JSON under a key; of no value where there is none, or nothing in it."""
        told = self.data[key]
        return told.json() if told.maybe(Field.text) else replace(told, value=None)

    def devices(self) -> Mapping[int, str]:
        told = self.json("devices")
        found = told.entries() if told.value else {}
        if not found:
            told.refuse('is not a mapping such as {"0":"Healthy"}')
        if len(found) > MOST_GPUS:
            told.refuse(f"{len(found)} GPUs; {MOST_GPUS} are the most")
        indexes = {str(index): index for index in range(len(found))}
        for key in found:
            if key not in indexes:
                told.refuse(f"{key!r} is not the index of one of {len(found)} GPUs")
        return {indexes[key]: one.text() for key, one in found.items()}

    def uuids(self) -> tuple[str, ...]:
        told = self.json(UUIDS)
        found = [one.text(bool, "a UUID") for one in told.maybe(Field.items) or ()]
        if len(set(found)) < len(found):
            told.refuse("names a GPU twice")
        return tuple(found)

    def allocations(self) -> Allocations | None:
        told = self.json(ALLOCATIONS)
        if told.value is None:
            return None
        at = moment(self.data[OBSERVED].value)
        if at is None:
            self.data[OBSERVED].refuse("does not say when the allocations were seen")
        given = {
            pod: gpu_set(one.whole(range(MOST_GPUS)) for one in gpus.items())
            for pod, gpus in told.entries().items()
        }
        return Allocations(observed_at=at, gpus=given)

    def measured(self, size: int) -> tuple[tuple[GPUSet, float], ...]:
        table: dict[GPUSet, float] = {}
        for key, one in (self.json("busBandwidth").maybe(Field.entries) or {}).items():
            if not re.fullmatch(r"[0-9]{1,4}(?:\s*,\s*[0-9]{1,4})+", key):
                one.refuse("is not a list of two or more GPUs such as 0,1")
            indexes = [int(index) for index in key.split(",")]
            if max(indexes) >= size:
                one.refuse(f"GPU {max(indexes)} of {size} is out of range")
            gpus = gpu_set(indexes)
            if count(gpus) < len(indexes):
                one.refuse("names a GPU twice")
            if gpus in table:
                one.refuse("is given twice")
            table[gpus] = one.rate()
        return tuple(sorted(table.items()))


_LABEL = f"metadata.labels.{NODE_LABEL}"
