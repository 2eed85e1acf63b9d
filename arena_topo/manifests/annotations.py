"""Annotations of a job, written and read: its placement and the forecast of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from arena_topo.manifests import (
    FORECAST,
    FORMAT,
    MAP,
    REQUEST,
    STATE,
    Forecast,
    Manifest,
)
from arena_topo.manifests.cause import decoded, encoded
from arena_topo.names import is_subdomain

if TYPE_CHECKING:
    from arena_topo.solver import Placement

_STATES = {"waiting", "placed", "held"}

_RECORDED = {
    "busBandwidthGBps": ("bus_bandwidth", float),
    "usableGBps": ("usable", float),
    "lowGBps": ("low", float),
    "highGBps": ("high", float),
    "regime": ("regime", str),
    "limitedBy": ("limited_by", str),
    "tier": ("tier", str),
    "binding": ("binding", str),
    "guarantee": ("guarantee", str),
    "confirmed": ("confirmed", bool),
    "optimal": ("optimal", bool),
    "boundGBps": ("bound", float),
    "emulated": ("emulated", bool),
    "assumed": ("assumed", bool),
}
"""The keys of the recorded forecast, with the field and the type of each."""

_MOST = 1 << 53
"""Larger bandwidths, and infinities, are invalid."""


def annotated(mpijob: Manifest, forecast: Forecast) -> Manifest:
    """A copy of the MPIJob with the forecast as annotations, for `recorded`."""
    usual = Forecast(state=forecast.state)
    record = {
        key: getattr(forecast, name)
        for key, (name, _) in _RECORDED.items()
        if getattr(forecast, name) != getattr(usual, name)
    } | (encoded(forecast.cause) if forecast.cause is not None else {})
    notes = {FORMAT: "v1", STATE: forecast.state}
    if forecast.workers:
        notes[MAP] = _map_text((node, gpus) for _, node, gpus in forecast.workers)
    notes[FORECAST] = json.dumps(record, separators=(",", ":"), ensure_ascii=False)
    metadata = mpijob["metadata"]
    annotations = metadata.get("annotations", {}) | notes
    return mpijob | {"metadata": metadata | {"annotations": annotations}}


def placement_map(placement: Placement) -> str:
    """The placement in one line, worker after worker: `node-a/0,3;node-a/1,2`.

    The list of GPUs is empty if the kubelet picks them. ValueError if the workers of the
    placement are not 0, 1, 2, ... or the line could not be read back.
    """
    ordered = sorted(placement.assignments, key=lambda assignment: assignment.worker)
    if [assignment.worker for assignment in ordered] != list(range(len(ordered))):
        raise ValueError("the workers of a placement are numbered 0, 1, 2, ...")
    text = _map_text((assignment.node, assignment.gpus) for assignment in ordered)
    parse_map(text)
    return text


def _map_text(workers: Iterable[tuple[str, tuple[int, ...]]]) -> str:
    return ";".join(f"{node}/{','.join(map(str, gpus))}" for node, gpus in workers)


_SHOWN = 300
"""Characters of an invalid entry that an error shows."""

_GPUS = re.compile(r"((0|[1-9][0-9]{0,3})(,(0|[1-9][0-9]{0,3}))*)?")


def parse_map(text: str) -> tuple[tuple[int, str, tuple[int, ...]], ...]:
    """Read `placement_map` back as (worker, node, GPU indexes); ValueError names the error."""
    workers = []
    taken: set[tuple[str, int]] = set()
    for index, entry in enumerate(text.split(";")):
        node, slash, listed = entry.partition("/")
        if not (slash and is_subdomain(node) and _GPUS.fullmatch(listed)):
            raise ValueError(f"worker {index}: expected NODE/GPU,GPU,..., got {entry[:_SHOWN]!r}")
        gpus = tuple(int(gpu) for gpu in listed.split(",") if gpu)
        for gpu in gpus:
            if (node, gpu) in taken:
                raise ValueError(f"worker {index}: GPU {gpu} of {node} is taken twice")
            taken.add((node, gpu))
        workers.append((index, node, gpus))
    return tuple(workers)


def json_object(text: Any) -> dict[str, Any]:
    """The JSON object in an annotation; empty for an invalid one, as users can edit it."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, TypeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def recorded(mpijob: Manifest) -> Forecast | None:
    """The recorded placement of a job in the cluster; None without a valid record.

    Never raises: users can edit annotations, and an invalid one must not hide the job. The valid
    parts are returned.
    """
    metadata = mpijob.get("metadata")
    notes = metadata.get("annotations") if isinstance(metadata, dict) else None
    if not isinstance(notes, dict):
        return None
    if notes.get(FORMAT) != "v1" or notes.get(STATE) not in _STATES:
        return None
    try:
        workers = parse_map(notes.get(MAP) or "")
    except (ValueError, TypeError, AttributeError):
        workers = ()
    record = json_object(notes.get(FORECAST))
    fields: dict[str, Any] = {"cause": decoded(record)}
    for key, (name, kind) in _RECORDED.items():
        value: Any = record.get(key)
        if kind is float and type(value) in {int, float} and abs(value) < _MOST:
            fields[name] = float(value)
        elif kind is not float and type(value) is kind:
            fields[name] = value
    return Forecast(state=notes[STATE], workers=workers, **fields)


def asked(mpijob: Mapping[str, Any]) -> dict[str, Any]:
    """The request in the annotation of an MPIJob; empty without a valid one."""
    notes = (mpijob.get("metadata") or {}).get("annotations") or {}
    return json_object(notes.get(REQUEST))


def config_maps(mpijob: Manifest) -> tuple[str, ...]:
    """The ConfigMaps that the pods of a stored MPIJob mount, and cannot start without."""
    spec = mpijob.get("spec") or {}
    roles = (spec.get("mpiReplicaSpecs") or {"Worker": spec}).values()
    pods = [(role.get("template") or {}).get("spec") or {} for role in roles]
    mounted = [volume.get("configMap") or {} for pod in pods for volume in pod.get("volumes") or ()]
    return tuple(
        dict.fromkeys(own["name"] for own in mounted if "name" in own and not own.get("optional"))
    )
