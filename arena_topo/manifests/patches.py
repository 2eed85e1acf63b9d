"""The JSON patches that move a job between waiting, placed, held and running.

Every patch begins with `test` operations on the state that its author has read: whether the job is
suspended, and its record. If the state has changed, the server answers 422 and changes nothing:
optimistic locking, and the only mutual exclusion.

    waiting  suspended, no record: reserves nothing, or, after it was stopped, what waits for it
    placed   suspended with a record, or resumed by one: reserves the GPUs of the record
    held     suspended by a user: reserves nothing, and is resumed by users alone
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from arena_topo.manifests import (
    FORECAST,
    HEAD_RESERVATION,
    INCOMPLETE,
    MAP,
    PROPOSED,
    RECORDED,
    REQUEST,
    RESERVED_ANNOTATION,
    STATE,
    STOPPED,
    TRIES_ANNOTATION,
    WAITS_SINCE,
    Manifest,
    PlacementForecast,
)
from arena_topo.manifests.annotations import annotated, stop_note
from arena_topo.manifests.cause import Cause
from arena_topo.numbers import parse_count

Patch = list[dict[str, Any]]

SUSPEND = "/spec/runPolicy/suspend"
_UID = "/metadata/uid"


# A job that is created


def as_suspended(
    mpijob: Manifest,
    forecast: PlacementForecast,
    *,
    at: str | None,
    request: str,
    incomplete: bool = False,
) -> Manifest:
    """The MPIJob to create: suspended, with its state and, if it has one, its record.

    `mpijob` has no pins. `at` is the server's time (RFC 3339) of the record, None without one.
    `incomplete`: its owned objects are created after it, and nothing may start it before that.
    """
    notes = {REQUEST: request} | ({RECORDED: at} if at is not None else {})
    notes |= {INCOMPLETE: "true"} if incomplete else {}
    return _created(mpijob, forecast, notes, {"suspend": True})


def handed_over(
    gated: Manifest, forecast: PlacementForecast, *, request: str, suspend: bool
) -> Manifest:
    """The MPIJob to create for another queue, which starts it: its workers wait at gates.

    `suspend`: create it suspended, for queues that do not suspend it themselves.
    """
    return _created(gated, forecast, {REQUEST: request}, {"suspend": True} if suspend else {})


def _created(
    mpijob: Manifest,
    forecast: PlacementForecast,
    notes: Mapping[str, str],
    suspension: Mapping[str, bool],
) -> Manifest:
    metadata, spec = mpijob["metadata"], mpijob["spec"]
    policy = {key: value for key, value in spec.get("runPolicy", {}).items() if key != "suspend"}
    marked = mpijob | {
        "metadata": metadata | {"annotations": {**metadata.get("annotations", {}), **notes}},
        "spec": spec | {"runPolicy": {**policy, **suspension}},
    }
    return annotated(marked, forecast)


# A job that is stored


def recording(stored: Mapping[str, Any], forecast: PlacementForecast, *, at: str) -> Patch:
    """Record a placement on a suspended job."""
    return _patch(stored, suspended=True, forecast=forecast, notes={RECORDED: at})


def recording_in_place(stored: Mapping[str, Any], forecast: PlacementForecast, *, at: str) -> Patch:
    """Propose a placement on a job that another system has resumed; it is not in effect yet."""
    return _patch(stored, forecast=forecast, notes={RECORDED: at, PROPOSED: "true"})


def confirming(stored: Mapping[str, Any]) -> Patch:
    """Put a proposed placement into effect."""
    return _patch(stored, notes={PROPOSED: None})


def resuming(stored: Mapping[str, Any], placed: Manifest) -> Patch:
    """Start a job as its record says: template, state and suspension in one step.

    `placed` is the stored job with its workers pinned.
    """
    notes = {INCOMPLETE: None, RESERVED_ANNOTATION: None, HEAD_RESERVATION: None}
    return _patch(stored, suspended=True, to=placed, notes=notes, suspend=False)


def completed(stored: Mapping[str, Any]) -> Patch:
    """Mark a waiting job as complete: all objects that it owns exist."""
    return _patch(stored, notes={INCOMPLETE: None})


def waiting(stored: Mapping[str, Any], unpinned: Manifest, cause: Cause | None) -> Patch:
    """Remove the record of a suspended job, which waits for this cause."""
    return _patch(stored, suspended=True, to=unpinned, forecast=_without("waiting", cause))


def recording_reservation(stored: Mapping[str, Any], note: str) -> Patch:
    """Write what a gang that waits reserves as the head of the queue, as of `reservation_note`."""
    return _patch(stored, suspended=True, notes={HEAD_RESERVATION: note})


def reserving(stored: Mapping[str, Any], places: str | None) -> Patch:
    """Reserve a placement (a map) for the next start of a gang that runs; None: no longer."""
    return _patch(stored, suspended=False, notes={RESERVED_ANNOTATION: places})


def taking_back(
    stored: Mapping[str, Any],
    unpinned: Manifest,
    cause: Cause,
    tries: int,
    *,
    reserved: str | None = None,
    at: str | None = None,
) -> Patch:
    """Roll back a whole gang: suspend it, with the number of tries.

    `reserved` is the map of the GPUs that wait for its next start. `at` is the server's time (RFC
    3339) if its owner does not see it stop, so that it is written on the job.
    """
    forecast = _without("waiting", cause)
    notes = {TRIES_ANNOTATION: str(tries), RESERVED_ANNOTATION: reserved} | _stop(stored, cause, at)
    return _patch(
        stored, suspended=False, to=unpinned, forecast=forecast, notes=notes, suspend=True
    )


def holding(
    stored: Mapping[str, Any],
    unpinned: Manifest,
    cause: Cause | None = None,
    *,
    at: str | None = None,
) -> Patch:
    """Suspend a job until a user resumes it; its GPUs are free for others.

    `at` is as of `taking_back`.
    """
    forecast = _without("held", cause)
    gone = (TRIES_ANNOTATION, RESERVED_ANNOTATION, HEAD_RESERVATION)
    notes = dict.fromkeys(gone) | _stop(stored, cause, at)
    return _patch(stored, to=unpinned, forecast=forecast, notes=notes, suspend=True)


def reviving(stored: Mapping[str, Any]) -> Patch:
    """Remove the failure of a suspended job from its status: the operator goes on with it."""
    status, state = stored["status"], _annotations(stored)[STATE]
    others = [condition for condition in status["conditions"] if condition.get("type") != "Failed"]
    return [
        _test(_UID, stored["metadata"]["uid"]),
        _test(_path(STATE), state),
        _test(SUSPEND, True),
        _test("/status/completionTime", status["completionTime"]),
        _test("/status/conditions", status["conditions"]),
        {"op": "replace", "path": "/status/conditions", "value": others},
        {"op": "remove", "path": "/status/completionTime"},
    ]


def _stop(stored: Mapping[str, Any], cause: Cause | None, at: str | None) -> dict[str, str]:
    return {} if at is None or cause is None else {STOPPED: stop_note(stored, cause, at)}


def releasing(stored: Mapping[str, Any], *, at: str) -> Patch:
    """Let a held job wait for its GPUs again, from the server's time `at` (RFC 3339) on."""
    since = {WAITS_SINCE: at} if _annotations(stored).get(STATE) == "held" else {}
    notes = {TRIES_ANNOTATION: None, **since}
    return _patch(stored, suspended=True, forecast=_without("waiting"), notes=notes)


def clearing(stored: Mapping[str, Any], cause: Cause | None = None) -> Patch:
    """Remove the record of a job that another system starts and stops."""
    return _patch(stored, forecast=_without("waiting", cause))


def forgetting(stored: Mapping[str, Any], notes: Iterable[str]) -> Patch:
    """Remove annotations of a gang that runs: its tries, or what was reserved for it."""
    return _patch(stored, notes=dict.fromkeys(sorted(notes)))


def resuming_unplaced(stored: Mapping[str, Any]) -> Patch:
    """Resume a job that is not placed by arena-topo."""
    return _patch(stored, suspended=True, suspend=False)


def suspending_unplaced(stored: Mapping[str, Any]) -> Patch:
    """Suspend a job that is not placed by arena-topo, without other changes."""
    spec = stored["spec"]
    policy = spec.get("runPolicy")
    # A missing field cannot be tested, but its parent can.
    test = _test("/spec", spec) if policy is None else _test("/spec/runPolicy", policy)
    step = {"op": "add", "path": "/spec/runPolicy", "value": {**(policy or {}), "suspend": True}}
    return [_test(_UID, stored["metadata"]["uid"]), test, step]


def _without(state: str, cause: Cause | None = None) -> PlacementForecast:
    """The forecast of a job without a record."""
    return PlacementForecast(state=state, cause=cause)


def _patch(
    stored: Mapping[str, Any],
    *,
    suspended: bool | None = None,
    to: Manifest | None = None,
    forecast: PlacementForecast | None = None,
    notes: Mapping[str, str | None] | None = None,
    suspend: bool | None = None,
) -> Patch:
    """Tests of the state that was read, and of `suspended`; then the changes.

    The changes are the pod templates of `to`, the record of `forecast`, `notes` to write or (None)
    to remove, and `suspend`.
    """
    current = _annotations(stored)
    # A missing annotation cannot be tested: the state implies whether there is a record.
    steps = [
        _test(_UID, stored["metadata"]["uid"]),
        *(_test(_path(k), current[k]) for k in (STATE, MAP, RECORDED) if k in current),
    ]
    if suspended is not None:
        steps.append(_test(SUSPEND, suspended))
    if to is not None:
        ours, theirs = (mpijob["spec"]["mpiReplicaSpecs"] for mpijob in (to, stored))
        steps += [
            {
                "op": "replace",
                "path": f"/spec/mpiReplicaSpecs/{role}/template",
                "value": ours[role]["template"],
            }
            for role in ("Worker", "Launcher")
            if role in ours and ours[role].get("template") != theirs[role].get("template")
        ]
    changes = dict(notes or {})
    if forecast is not None:
        empty: Manifest = {"metadata": {"annotations": {}}}
        # Parts that the new record lacks are removed.
        removed = dict.fromkeys((MAP, RECORDED, FORECAST, PROPOSED))
        changes = removed | changes | annotated(empty, forecast)["metadata"]["annotations"]
    if not current and any(changes.values()):
        steps.append({"op": "add", "path": "/metadata/annotations", "value": {}})
    for key, value in changes.items():
        if value is not None:
            steps.append({"op": "add", "path": _path(key), "value": value})
        elif key in current:
            steps.append({"op": "remove", "path": _path(key)})
    if suspend is not None:
        steps.append({"op": "add", "path": SUSPEND, "value": suspend})
    return steps


def _test(path: str, value: Any) -> dict[str, Any]:
    return {"op": "test", "path": path, "value": value}


def _annotations(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    return stored["metadata"].get("annotations") or {}


def _path(key: str) -> str:
    return "/metadata/annotations/" + key.replace("~", "~0").replace("/", "~1")


# Comparison of a patch with a stored object


def took_effect(patch: Sequence[Mapping[str, Any]], stored: Mapping[str, Any]) -> bool:
    """Whether a patch took effect: the object has its changes, and the uid that it was made for.

    Additions of the server inside a value, such as defaults, are ignored.
    """
    return all(
        _in_effect(step, stored) for step in patch if step["op"] != "test" or step["path"] == _UID
    )


def _in_effect(step: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    """Whether an object has the value that a step of a patch writes or tests."""
    at: Any = stored
    for key in step["path"].split("/")[1:]:
        if not isinstance(at, Mapping):
            return False
        at = at.get(key.replace("~1", "/").replace("~0", "~"))
    return at is None if step["op"] == "remove" else _contains(at, step["value"])


def _contains(stored: Any, expected: Any) -> bool:
    if isinstance(expected, Mapping) and isinstance(stored, Mapping):
        return all(_contains(stored.get(key), value) for key, value in expected.items())
    if isinstance(expected, list) and isinstance(stored, list):
        return len(expected) == len(stored) and all(map(_contains, stored, expected))
    return bool(stored == expected)


def tries_of(stored: Mapping[str, Any]) -> int:
    """How often the gang was rolled back."""
    return parse_count(_annotations(stored).get(TRIES_ANNOTATION)) or 0
