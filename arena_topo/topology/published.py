"""What a cluster says of its machines (ACK ConfigMaps, node labels) <-> Machine.

Two sources, the best first:

    ConfigMap   ACK's GPU topology, one per node: devices with their health, links, bandwidths
    labels      the GPU product and count, which match a well-known machine or tell the model only

A third thing that labels say is that GPUs are cut up or shared; then links mean nothing.

Our agent writes more keys into the ConfigMap of its node: its NICs, when it looked, the UUIDs of
the GPUs, and which of them the kubelet has given to whom.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NoReturn

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
    behind_nvswitch,
    count,
    flat,
    gpu_set,
    members,
)
from arena_topo.topology.models import model_of

NAMESPACE = "kube-system"
"""Where ACK publishes."""

OWN_NAMESPACE = "arena-topo-system"
"""Where our agents publish."""

VIEW = "cluster-view"
"""The ConfigMap there in which the controller tells what is free."""

NAMESPACES = (OWN_NAMESPACE, NAMESPACE)
"""Where ConfigMaps of topology are believed, best first. Elsewhere anybody may write them, and
could steer other people's jobs."""

OBSERVED = "observedAt"
"""Data key: when the agent last looked at the node (RFC 3339)."""

ALLOCATIONS = "allocations"
"""Data key: JSON of the GPUs that the kubelet has given to pods, `{"NAMESPACE/POD": [0, 3]}`."""

NICS = "nics"
"""Data key: JSON list of the NICs, as `topology show -o json` has them."""

UUIDS = "uuids"
"""Data key: JSON list of the UUIDs of the GPUs, by index."""

STALE = 900.0
"""Seconds after which an agent that has not looked again is taken to be gone."""

SCHEDULE_LABEL = "ack.node.gpu.schedule"
NODE_LABEL = "nodename"

MIRRORED = "arena-topo.io/mirrored"
"""Label of what the controller has copied for ACK's tools, and may change or delete."""

KNOWLEDGE_ANNOTATION = "arena-topo.io/knowledge"
"""Ours: ACK's format cannot say that a matrix is only assumed."""

HEALTHY = "Healthy"
"""The one word that ACK's readers take for health."""

SELF = "N-A"
"""What ACK writes on the diagonal."""

_SELVES = frozenset({SELF, "N/A", "X"})

Refuse = Callable[[str, str], NoReturn]
"""Hears the path of what makes no sense, and why; raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A node's machine as a ConfigMap tells it, and which of its GPUs are healthy."""

    node: str
    machine: Machine
    healthy: GPUSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocations:
    """The GPUs that a node's kubelet had given to pods (`NAMESPACE/POD`), and when (Unix s)."""

    observed_at: float
    gpus: Mapping[str, GPUSet]


def moment(text: object) -> float | None:
    """A time of Kubernetes (RFC 3339) as Unix seconds; None if it is none."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found.timestamp() if found.tzinfo is not None else None


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


def from_config_map(config_map: Mapping[str, Any], *, model: str | None = None) -> Published:
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
            return from_config_map({**config_map, "data": left}, model=model), complaints
        except UnreadableTopology as error:
            key = next((one for one in _OPTIONAL if f" data.{one}" in (error.where or "")), None)
            if key is None or key not in left:
                raise
            complaints[key] = error
            del left[key]


def object_name(node: str) -> str:
    """What we call the ConfigMap of a node; readers go by its labels."""
    return f"{node}-gpu-topology"


def config_map(
    machine: Machine,
    healthy: GPUSet,
    *,
    namespace: str = NAMESPACE,
    observed_at: float | None = None,
    allocations: Mapping[str, GPUSet] | None = None,
) -> dict[str, Any]:
    """The ConfigMap that `from_config_map` and ACK's readers take for this machine.

    Its format has no room for UUIDs, NUMA nodes and the PCIe generation. NICs that the machine has
    told, `observed_at` (Unix seconds) and `allocations` (`NAMESPACE/POD` -> GPUs) are what only our
    own readers know.
    """
    size = len(machine.gpus)
    data = {
        "nodeName": machine.name,
        "devices": _json(
            {str(i): HEALTHY if healthy >> i & 1 else "Unhealthy" for i in range(size)}
        ),
    }
    if machine.knowledge is not Knowledge.UNKNOWN:
        data["linkType"] = _json(
            [[SELF if link is None else str(link) for link in row] for row in machine.links]
        )
    if machine.bandwidth is not None:
        data["bandwidth"] = _json(machine.bandwidth)
    if machine.measured:
        data["busBandwidth"] = _json(
            {",".join(map(str, members(gpus))): value for gpus, value in machine.measured}
        )
    if machine.nics and not machine.nics_assumed and machine.knowledge is Knowledge.MEASURED:
        data[NICS] = _json([_nic_value(one) for one in machine.nics])
    if observed_at is not None:
        looked = datetime.fromtimestamp(observed_at, UTC).isoformat(timespec="milliseconds")
        data[OBSERVED] = looked.replace("+00:00", "Z")
    if allocations is not None:
        data[ALLOCATIONS] = _json({pod: members(gpus) for pod, gpus in allocations.items()})
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": object_name(machine.name),
            "namespace": namespace,
            "labels": {SCHEDULE_LABEL: "topology", NODE_LABEL: machine.name},
            "annotations": {KNOWLEDGE_ANNOTATION: machine.knowledge.value},
        },
        "data": data,
    }


def updated(document: Mapping[str, Any], machine: Machine, healthy: GPUSet) -> dict[str, Any]:
    """A node's ConfigMap with the links of this machine, and all else in it left as it is.

    GPUs that it calls unhealthy stay so: who publishes links has not looked at their health.
    Bandwidths are kept only while the links are the same; those of the machine count more.
    """
    new = config_map(machine, healthy)
    kept = {key: value for key, value in document["data"].items() if key not in _LINKED}
    try:
        known = from_config_map(document)
    except UnreadableTopology:
        known = None
    if known is not None and len(known.machine.gpus) == len(machine.gpus):
        same = known.machine.links == machine.links
        if same and machine.measured:
            both = {**dict(known.machine.measured), **dict(machine.measured)}
            machine = replace(machine, measured=tuple(sorted(both.items())))
        new = config_map(machine, GPUSet(healthy & known.healthy))
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


def _nic_value(nic: NIC) -> dict[str, Any]:
    return {
        "name": nic.name,
        "attachment": [str(link) for link in nic.attachment],
        "speedGBps": nic.speed,
    }


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


class _ConfigMap:
    """One ConfigMap under examination: every complaint names it and the path inside."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        metadata = document.get("metadata")
        self.metadata: Mapping[str, Any] = metadata if isinstance(metadata, Mapping) else {}
        data = document.get("data")
        name = f"{self.metadata.get('namespace', NAMESPACE)}/{self.metadata.get('name', '?')}"
        self.name = f"configmap {name}"
        if not isinstance(data, Mapping):
            self.refuse("data", "is missing")
        self.data: Mapping[str, Any] = data

    def refuse(self, path: str, reason: str) -> NoReturn:
        raise UnreadableTopology(reason, where=f"{self.name} {path}")

    def read(self, model: str | None) -> Published:
        node = self.node()
        devices = self.devices()
        size = len(devices)
        links = self.links(size)
        knowledge = self.knowledge() if links else Knowledge.UNKNOWN
        matrix = links or flat(size)
        machine = Machine(
            name=node,
            gpus=tuple(GPU(index=index, model=model) for index in range(size)),
            links=matrix,
            nics=self.nics(size),
            nvswitch=behind_nvswitch(model, matrix),
            knowledge=knowledge,
            measured=self.measured(size),
            bandwidth=self.bandwidth(size),
        )
        healthy = gpu_set(index for index, health in devices.items() if health == HEALTHY)
        return Published(node=node, machine=machine, healthy=healthy)

    def node(self) -> str:
        labels = self.mapping("labels")
        label, written = labels.get(NODE_LABEL), self.data.get("nodeName")
        if not isinstance(label, str | None):
            self.refuse(f"metadata.labels.{NODE_LABEL}", "is no text")
        if not isinstance(written, str | None):
            self.refuse("data.nodeName", "is no text")
        names = {name for name in (label, written) if name}
        if len(names) > 1:
            self.refuse("data.nodeName", f"{written!r}, but the label {NODE_LABEL} is {label!r}")
        if not names:
            self.refuse("data.nodeName", f"is missing, and so is the label {NODE_LABEL}")
        return str(names.pop())

    def mapping(self, key: str) -> Mapping[str, Any]:
        found = self.metadata.get(key)
        return found if isinstance(found, Mapping) else {}

    def knowledge(self) -> Knowledge:
        written = self.mapping("annotations").get(KNOWLEDGE_ANNOTATION)
        return Knowledge.ASSUMED if written == Knowledge.ASSUMED.value else Knowledge.MEASURED

    def load(self, key: str) -> Any:
        """The JSON under a key; None where there is none, or nothing in it."""
        text = self.data.get(key)
        path = f"data.{key}"
        if text is None:
            return None
        if not isinstance(text, str):
            self.refuse(path, "is not a string")
        try:
            return json.loads(text, parse_constant=_no_number) if text.strip() else None
        except (ValueError, RecursionError) as error:
            self.refuse(path, f"is not JSON: {error}")

    def devices(self) -> Mapping[int, str]:
        found = self.load("devices")
        if not isinstance(found, dict) or not found:
            self.refuse("data.devices", 'is not an object such as {"0":"Healthy"}')
        if len(found) > MOST_GPUS:
            self.refuse("data.devices", f"{len(found)} GPUs; {MOST_GPUS} are the most")
        devices = {}
        for key, health in found.items():
            if not re.fullmatch(r"0|[1-9][0-9]{0,3}", key):
                self.refuse("data.devices", f"{key!r} is not the index of a GPU")
            if int(key) >= len(found):
                self.refuse("data.devices", f"GPU {key} of {len(found)} is out of range")
            if not isinstance(health, str):
                self.refuse(f"data.devices.{key}", f"{health!r} is not a word of health")
            devices[int(key)] = health
        return devices

    def uuids(self) -> tuple[str, ...]:
        found = self.load(UUIDS)
        if found is None:
            return ()
        if not isinstance(found, list) or not all(isinstance(one, str) and one for one in found):
            self.refuse(f"data.{UUIDS}", "is not a list of UUIDs")
        if len(set(found)) < len(found):
            self.refuse(f"data.{UUIDS}", "names a GPU twice")
        return tuple(found)

    def allocations(self) -> Allocations | None:
        found = self.load(ALLOCATIONS)
        at = moment(self.data.get(OBSERVED))
        if found is None:
            return None
        if not isinstance(found, dict):
            self.refuse(f"data.{ALLOCATIONS}", 'is not an object such as {"default/job": [0, 3]}')
        if at is None:
            self.refuse(f"data.{OBSERVED}", "does not say when the allocations were seen")
        given = {}
        for pod, indexes in found.items():
            if not isinstance(indexes, list) or not all(
                type(index) is int and 0 <= index < MOST_GPUS for index in indexes
            ):
                self.refuse(f"data.{ALLOCATIONS}[{pod!r}]", "is not a list of GPUs such as [0, 3]")
            given[pod] = gpu_set(indexes)
        return Allocations(observed_at=at, gpus=given)

    def links(self, size: int) -> Matrix | None:
        found = self.load("linkType")
        if found is None or found == []:
            return None
        return matrix(found, size, "data.linkType", self.refuse)

    def bandwidth(self, size: int) -> tuple[tuple[float, ...], ...] | None:
        found = self.load("bandwidth")
        if found is None or found == []:
            return None
        rows = _square(found, size, "data.bandwidth", self.refuse)
        return tuple(
            tuple(self.number(f"data.bandwidth[{i}][{j}]", cell) for j, cell in enumerate(row))
            for i, row in enumerate(rows)
        )

    def number(self, path: str, cell: object) -> float:
        """A number of GB/s: finite and not negative."""
        if isinstance(cell, bool) or not isinstance(cell, int | float):
            self.refuse(path, f"{cell!r} is not a number of GB/s")
        try:
            value = float(cell)
        except OverflowError:
            value = math.inf
        if not math.isfinite(value) or value < 0:
            self.refuse(path, f"{cell!r} is not a number of GB/s")
        return value

    def nics(self, size: int) -> tuple[NIC, ...]:
        found = self.load(NICS)
        if found is None:
            return ()
        if not isinstance(found, list):
            self.refuse(f"data.{NICS}", "is not a list")
        return tuple(
            nic(one, index, size, f"data.{NICS}[{index}]", self.refuse)
            for index, one in enumerate(found)
        )

    def measured(self, size: int) -> tuple[tuple[GPUSet, float], ...]:
        found = self.load("busBandwidth")
        if found is None:
            return ()
        if not isinstance(found, dict):
            self.refuse("data.busBandwidth", 'is not an object such as {"0,1": 82.1}')
        table: dict[GPUSet, float] = {}
        for key, cell in found.items():
            path = f"data.busBandwidth[{key!r}]"
            if not re.fullmatch(r"[0-9]{1,4}(?:\s*,\s*[0-9]{1,4})+", key):
                self.refuse(path, "is not a list of two or more GPUs such as 0,1")
            indexes = [int(index) for index in key.split(",")]
            if max(indexes) >= size:
                self.refuse(path, f"GPU {max(indexes)} of {size} is out of range")
            gpus = gpu_set(indexes)
            if count(gpus) < len(indexes):
                self.refuse(path, "names a GPU twice")
            if gpus in table:
                self.refuse(path, "is given twice")
            table[gpus] = self.number(path, cell)
            if not table[gpus]:
                self.refuse(path, "is 0 GB/s, and an all-reduce takes some")
        return tuple(sorted(table.items()))


def nic(one: Any, index: int, size: int, path: str, refuse: Refuse) -> NIC:
    """Read a NIC with its links to `size` GPUs; `refuse` hears the path of what makes no sense."""
    if not isinstance(one, Mapping):
        refuse(path, "is not an object")
    words = one.get("attachment")
    if not isinstance(words, list) or len(words) != size:
        refuse(f"{path}.attachment", f"is not a list of {size} links, one for each GPU")
    speed = one.get("speedGBps")
    if isinstance(speed, bool) or not isinstance(speed, int | float | None):
        refuse(f"{path}.speedGBps", f"{speed!r} is not a number of GB/s")
    if speed is not None and not (0 < speed < math.inf):
        refuse(f"{path}.speedGBps", f"{speed!r} is not a number of GB/s")
    name = one.get("name")
    if not isinstance(name, str | None):
        refuse(f"{path}.name", f"{name!r} is not a text")
    return NIC(
        name=name or f"NIC{index}",
        attachment=tuple(
            link(word, f"{path}.attachment[{gpu}]", refuse) for gpu, word in enumerate(words)
        ),
        speed=None if speed is None else float(speed),
    )


def matrix(found: Any, size: int, path: str, refuse: Refuse) -> Matrix:
    """Read a matrix of links in words; `refuse` hears the path of what makes no sense."""
    rows = _square(found, size, path, refuse)
    for i, row in enumerate(rows):
        for j, word in enumerate(row):
            here = f"{path}[{i}][{j}]"
            if not isinstance(word, str):
                refuse(here, f"{word!r} is not a link")
            if (word in _SELVES) != (i == j):
                refuse(here, f"is {word}, but {SELF} marks a GPU and itself")
    links = tuple(
        tuple(
            None if i == j else link(word, f"{path}[{i}][{j}]", refuse)
            for j, word in enumerate(row)
        )
        for i, row in enumerate(rows)
    )
    for i, row in enumerate(rows):
        for j, word in enumerate(row[:i]):
            if word != rows[j][i]:
                refuse(f"{path}[{i}][{j}]", f"is {word}, but [{j}][{i}] is {rows[j][i]}")
    return links


def link(word: Any, path: str, refuse: Refuse) -> Link:
    """Read one link in words; `refuse` hears the path if it is none."""
    try:
        return Link.parse(str(word))
    except ValueError as error:
        refuse(path, str(error))


def _square(found: Any, size: int, path: str, refuse: Refuse) -> list[list[Any]]:
    """A matrix with a row and a column for each device."""
    if not isinstance(found, list):
        refuse(path, "is not a list of rows")
    for i, row in enumerate(found):
        if not isinstance(row, list):
            refuse(f"{path}[{i}]", "is not a row")
        if len(row) != len(found):
            refuse(f"{path}[{i}]", f"has {_many(len(row), 'cell')}, not {len(found)}")
    if len(found) != size:
        refuse(path, f"has {_many(len(found), 'row')} for {_many(size, 'device')}")
    return found


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number")


# --- labels ---------------------------------------------------------------------------------

PRODUCT_LABELS = ("nvidia.com/gpu.product", "aliyun.accelerator/nvidia_name")
"""Set by NVIDIA's GPU feature discovery, and by ACK."""

REPLICAS_LABEL = "nvidia.com/gpu.replicas"
"""How many times the device plugin offers each GPU (GPU feature discovery)."""

_SHARED_SCHEDULES = frozenset({"share", "cgpu", "core_mem"})
"""Values of ACK's schedule label by which GPUs are cut up by memory or compute."""

_MIG_COUNT = re.compile(r"nvidia\.com/mig-[^/]+\.count")


def from_labels(name: str, labels: Mapping[str, str], count: int) -> Machine:
    """The machine of a node that says only its GPU product and count.

    A well-known board is marked assumed; anything else is unknown: its model, every link SYS.
    GPUs that are cut up or shared are never a well-known board.
    """
    product = next((labels[label] for label in PRODUCT_LABELS if labels.get(label)), None)
    if product and shared(labels) is None:
        from arena_topo.topology import presets  # noqa: PLC0415 - only for unpublished ones

        found = presets.match(product, count, name)
        if found is not None:
            return found
    model = model_of(re.sub(r"-(?:MIG-.*|SHARED)$", "", product) if product else None)
    return Machine(
        name=name,
        gpus=tuple(GPU(index=index, model=model) for index in range(count)),
        links=flat(count),
        knowledge=Knowledge.UNKNOWN,
    )


def shared(labels: Mapping[str, str]) -> str | None:
    """Why a node's GPUs are not whole (MIG, time slices, gpushare), or None if they are."""
    return next(_reasons(labels), None)


def _reasons(labels: Mapping[str, str]) -> Iterator[str]:
    product = labels.get("nvidia.com/gpu.product", "")
    if "-MIG-" in product:
        yield f"MIG slices ({product})"
    config = labels.get("nvidia.com/mig.config", "")
    if config not in {"", "all-disabled"}:
        yield f"MIG is configured ({config})"
    for label in sorted(labels):
        if _MIG_COUNT.fullmatch(label) and _int(labels[label]) > 0:
            yield f"MIG slices ({label.removeprefix('nvidia.com/').removesuffix('.count')})"
    strategy = labels.get("nvidia.com/gpu.sharing-strategy", "")
    if strategy not in {"", "none"}:
        yield f"GPUs are shared ({strategy})"
    if product.endswith("-SHARED"):
        yield f"GPUs are shared ({product})"
    replicas = _int(labels.get(REPLICAS_LABEL, ""))
    if replicas > 1:
        yield f"GPUs are shared ({replicas} replicas of each)"
    for label in ("gpushare", "cgpu"):
        if labels.get(label) == "true":
            yield f"GPUs are shared ({label})"
    schedule = labels.get(SCHEDULE_LABEL, "")
    if schedule in _SHARED_SCHEDULES:
        yield f"GPUs are shared ({SCHEDULE_LABEL}={schedule})"


def _int(text: str) -> int:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0
