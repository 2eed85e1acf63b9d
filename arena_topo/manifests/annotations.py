"""Annotations of a job, written and read: its placement and the forecast of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from arena_topo.escaping import one_line
from arena_topo.layout import duration
from arena_topo.manifests import (
    FORECAST,
    FORMAT_ANNOTATION,
    HEAD_RESERVATION,
    MAP,
    REQUEST,
    STATE,
    STATES,
    STOPPED,
    WAITS_SINCE,
    Guarantee,
    Manifest,
    PlacementForecast,
)
from arena_topo.manifests.cause import Cause, decode_cause, encode_cause
from arena_topo.names import is_subdomain
from arena_topo.topology import NodeName, published
from arena_topo.words import ordinal

if TYPE_CHECKING:
    from arena_topo.solver import Placement, Seats

_RECORDED = {
    "busBandwidthGBps": ("bus_bandwidth", float),
    "usableGBps": ("usable", float),
    "plannedGBps": ("planned", float),
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
    "knownNetworks": ("rated", bool),
    "guess": ("guess", bool),
    "emulated": ("emulated", bool),
    "assumed": ("assumed", bool),
    "measured": ("measured", str),
}
"""The keys of the recorded forecast, with the field and the type of each."""

_MOST = 1 << 53
"""Larger bandwidths, and infinities, are invalid."""


def annotated(mpijob: Manifest, forecast: PlacementForecast) -> Manifest:
    """A copy of the MPIJob with the forecast as annotations, for `recorded_placement`."""
    usual = PlacementForecast(state=forecast.state)
    record = {
        key: getattr(forecast, name)
        for key, (name, _) in _RECORDED.items()
        if getattr(forecast, name) != getattr(usual, name)
    } | (encode_cause(forecast.cause) if forecast.cause is not None else {})
    notes = {FORMAT_ANNOTATION: "v1", STATE: forecast.state}
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


def reserving_map(forecast: PlacementForecast) -> str:
    """The GPUs of a recorded placement in one line, to reserve them.

    Where the kubelet picks the GPUs, only their number counts, and none is named.
    """
    exact = forecast.guarantee == Guarantee.GPUS
    return _map_text((node, gpus if exact else ()) for _, node, gpus in forecast.workers)


def _map_text(workers: Iterable[tuple[str, tuple[int, ...]]]) -> str:
    return ";".join(f"{node}/{','.join(map(str, gpus))}" for node, gpus in workers)


def reservation_note(seats: Seats, since: str) -> str:
    """The annotation of the head of the queue, for `last_reservation`; `since` is RFC 3339."""
    return f"{since} {_map_text(seats)}"


def waits_since(mpijob: Mapping[str, Any]) -> float:
    """Since when a stored gang waits (Unix seconds), which begins its patience.

    That is when it was created, or released after a suspension.
    """
    meta = mpijob["metadata"]
    begun = (meta.get("annotations") or {}).get(WAITS_SINCE) or meta.get("creationTimestamp")
    return published.parse_time(begun) or 0.0


def last_reservation(mpijob: Mapping[str, Any]) -> tuple[Seats, float] | None:
    """What a gang has reserved as the head of the queue, and since when; None without a valid one.

    Unix seconds.
    """
    notes = (mpijob.get("metadata") or {}).get("annotations") or {}
    time, _, places = str(notes.get(HEAD_RESERVATION) or "").partition(" ")
    since = published.parse_time(time)
    try:
        seats = tuple((NodeName(node), gpus) for _, node, gpus in parse_map(places))
    except ValueError:
        return None
    return None if since is None else (seats, since)


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


def recorded_placement(mpijob: Manifest) -> PlacementForecast | None:
    """The recorded placement of a job in the cluster, of any format; None without a valid record.

    Never raises: users can edit annotations, and an invalid one must not hide the job. The valid
    parts are returned.
    """
    metadata = mpijob.get("metadata")
    notes = metadata.get("annotations") if isinstance(metadata, dict) else None
    if not isinstance(notes, dict):
        return None
    state = notes.get(STATE)
    if FORMAT_ANNOTATION not in notes or not state or not isinstance(state, str):
        return None
    try:
        workers = parse_map(notes.get(MAP) or "")
    except (ValueError, TypeError, AttributeError):
        workers = ()
    record = json_object(notes.get(FORECAST))
    fields: dict[str, Any] = {"cause": decode_cause(record)}
    for key, (name, kind) in _RECORDED.items():
        value: Any = record.get(key)
        if kind is float and type(value) in {int, float} and abs(value) < _MOST:
            fields[name] = float(value)
        elif kind is not float and type(value) is kind:
            fields[name] = value
    return PlacementForecast(state=state, workers=workers, **fields)


def unknown_record(mpijob: Mapping[str, Any]) -> str | None:
    """The format or state of a job's record that this version does not know; None without one.

    Such a record is shown, its GPUs count, and only the version that wrote it changes the job.
    """
    notes = (mpijob.get("metadata") or {}).get("annotations") or {}
    for name, known in ((FORMAT_ANNOTATION, {"v1"}), (STATE, STATES)):
        if FORMAT_ANNOTATION in notes and notes.get(name) and str(notes[name]) not in known:
            field = name.rpartition("/")[2]
            return f"its record has the {field} {notes[name]!r}, which this version does not know"
    return None


class LastStop(msgspec.Struct, frozen=True, kw_only=True):
    """The last time that the controller stopped a gang: when (Unix seconds), why, how often so far.

    Stops by people do not count.
    """

    at: float
    cause: Cause
    times: int

    def sentence(self, now: float, *, runs: bool) -> str:
        """Both in one line, with the age of the stop at `now`, and the start that followed."""
        start = f"{ordinal(self.times + 1)} start"
        after = start if runs else f"its {start} is to come"
        return f"{duration(max(0.0, now - self.at))} ago: {one_line(str(self.cause))}; {after}"


def stop_note(mpijob: Mapping[str, Any], cause: Cause, at: str) -> str:
    """The annotation of a gang that the controller stops at a time (RFC 3339), for `last_stop`."""
    before = last_stop(mpijob)
    times = 1 if before is None else before.times + 1
    record = {"at": at, "times": times, **encode_cause(cause)}
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False)


def last_stop(mpijob: Mapping[str, Any]) -> LastStop | None:
    """The last stop of a gang by the controller; None without a valid record."""
    notes = (mpijob.get("metadata") or {}).get("annotations") or {}
    record = json_object(notes.get(STOPPED))
    at, times, cause = (
        published.parse_time(record.get("at")),
        record.get("times"),
        decode_cause(record),
    )
    if at is None or cause is None or type(times) is not int or times < 1:
        return None
    return LastStop(at=at, cause=cause, times=times)


def recorded_request(mpijob: Mapping[str, Any]) -> dict[str, Any]:
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
