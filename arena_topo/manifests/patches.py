"""The JSON patches by which a job moves between waiting, placed, held and running.

Every patch begins with `test` operations on what its author believes: whether the job is suspended,
and what is recorded on it. Where that is no longer so the server answers 422 and nothing happens;
that is all the mutual exclusion there is.

    waiting  suspended, no record: holds nothing
    placed   suspended with a record, or resumed by one: holds the GPUs of the record
    held     suspended by a person: holds nothing, and nobody but that person starts it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from arena_topo.manifests import (
    FORECAST,
    FORMAT,
    INCOMPLETE,
    MAP,
    PROPOSED,
    RECORDED,
    REQUEST,
    STATE,
    TRIES,
    Forecast,
    Manifest,
)
from arena_topo.manifests.annotations import annotated
from arena_topo.manifests.cause import Cause
from arena_topo.numbers import whole

Patch = list[dict[str, Any]]

SUSPEND = "/spec/runPolicy/suspend"
_UID = "/metadata/uid"
_TEMPLATES = ("Worker", "Launcher")


def suspended(
    mpijob: Manifest, forecast: Forecast, *, at: str | None, request: str, incomplete: bool = False
) -> Manifest:
    """The MPIJob as it is created: not running, with its state and, where it has one, its record.

    `mpijob` carries no pin. `at` is the server's time (RFC 3339) of a record, None without one.
    `incomplete`: what it owns is created after it, and nobody else must start it before that.
    """
    notes = {REQUEST: request} | ({RECORDED: at} if at is not None else {})
    if incomplete:
        notes[INCOMPLETE] = "true"
    metadata = mpijob["metadata"]
    marked = mpijob | {
        "metadata": metadata | {"annotations": metadata.get("annotations", {}) | notes}
    }
    spec = marked["spec"]
    policy = spec.get("runPolicy", {}) | {"suspend": True}
    return annotated(marked | {"spec": spec | {"runPolicy": policy}}, forecast)


def handed_over(gated: Manifest, forecast: Forecast, *, request: str, suspend: bool) -> Manifest:
    """The MPIJob as it is created for another queue: at its gates; that queue starts it.

    `suspend`: it is created suspended, for queues that do not see to that themselves.
    """
    metadata, spec = gated["metadata"], gated["spec"]
    marked = gated | {
        "metadata": metadata | {"annotations": metadata.get("annotations", {}) | {REQUEST: request}}
    }
    policy = {key: value for key, value in spec.get("runPolicy", {}).items() if key != "suspend"}
    if suspend:
        policy["suspend"] = True
    return annotated(marked | {"spec": spec | {"runPolicy": policy}}, forecast)


def recording(stored: Mapping[str, Any], forecast: Forecast, *, at: str) -> Patch:
    """Write another placement on a job that is still suspended, or the first one."""
    return [*_unchanged(stored, suspend=True), *_written(stored, forecast, at=at)]


def recording_in_place(stored: Mapping[str, Any], forecast: Forecast, *, at: str) -> Patch:
    """Propose a placement on a job that somebody else has resumed; nobody goes by it yet."""
    return [
        *_unchanged(stored, suspend=None),
        *_written(stored, forecast, at=at),
        _noted(PROPOSED, "true"),
    ]


def confirming(stored: Mapping[str, Any], anew: Forecast | None = None) -> Patch:
    """Let the workers of a job go where its record says; `anew` as of `resuming`."""
    if anew is None:
        return [*_unchanged(stored, suspend=None), _removed(PROPOSED)]
    return [*_unchanged(stored, suspend=None), *_corrected(stored, anew)]


def resuming(stored: Mapping[str, Any], placed: Manifest, anew: Forecast | None = None) -> Patch:
    """Start a job as its record says: template, state and suspension in one step.

    `placed` is the stored job with its workers pinned. `anew` is what the record says from then on,
    of as many GPUs of the same nodes: less than before.
    """
    return [
        *_unchanged(stored, suspend=True),
        *_templates(stored, placed),
        *(_corrected(stored, anew) if anew is not None else ()),
        *([_removed(INCOMPLETE)] if INCOMPLETE in _annotations(stored) else []),
        {"op": "replace", "path": SUSPEND, "value": False},
    ]


def completed(stored: Mapping[str, Any]) -> Patch:
    """Say that everything is there that a waiting job owns."""
    return [*_unchanged(stored, suspend=None), _removed(INCOMPLETE)]


def waiting(
    stored: Mapping[str, Any],
    unpinned: Manifest,
    cause: Cause | None,
) -> Patch:
    """Take the record off a job that is suspended; it waits for the cause given."""
    forecast = Forecast(state="waiting", cause=cause)
    return [
        *_unchanged(stored, suspend=True),
        *_templates(stored, unpinned),
        *_written(stored, forecast, at=None),
    ]


def taking_back(
    stored: Mapping[str, Any],
    unpinned: Manifest,
    cause: Cause,
    tries: int,
) -> Patch:
    """Suspend a gang that cannot complete, whole; it waits, having tried so often."""
    forecast = Forecast(state="waiting", cause=cause)
    return [
        *_unchanged(stored, suspend=False),
        *_templates(stored, unpinned),
        *_written(stored, forecast, at=None),
        _noted(TRIES, str(tries)),
        {"op": "replace", "path": SUSPEND, "value": True},
    ]


def holding(stored: Mapping[str, Any], unpinned: Manifest, cause: Cause | None = None) -> Patch:
    """Suspend a job until a person resumes it; its GPUs are free for others."""
    return [
        *_unchanged(stored, suspend=None),
        *_templates(stored, unpinned),
        *_written(stored, Forecast(state="held", cause=cause), at=None),
        *([_removed(TRIES)] if TRIES in _annotations(stored) else []),
        {"op": "add", "path": SUSPEND, "value": True},
    ]


def stopping(stored: Mapping[str, Any]) -> Patch:
    """Suspend a job that is not placed by arena-topo, as it is."""
    spec = stored["spec"]
    policy = spec.get("runPolicy")
    if policy is None:
        # What is not there cannot be tested, but what it would be in can.
        test: dict[str, Any] = {"op": "test", "path": "/spec", "value": spec}
        step: dict[str, Any] = {"op": "add", "path": "/spec/runPolicy", "value": {"suspend": True}}
    else:
        named = "suspend" in policy
        path, value = (SUSPEND, False) if named else ("/spec/runPolicy", policy)
        test = {"op": "test", "path": path, "value": value}
        step = {"op": "add", "path": SUSPEND, "value": True}
    return [*_same(stored), test, step]


def going(stored: Mapping[str, Any]) -> Patch:
    """Let a job go on that is not placed by arena-topo."""
    test = {"op": "test", "path": SUSPEND, "value": True}
    return [*_same(stored), test, {"op": "replace", "path": SUSPEND, "value": False}]


def releasing(stored: Mapping[str, Any]) -> Patch:
    """Let a job that was held wait for its GPUs again."""
    return [
        *_unchanged(stored, suspend=True),
        *_written(stored, Forecast(state="waiting"), at=None),
        *([_removed(TRIES)] if TRIES in _annotations(stored) else []),
    ]


def took_effect(patch: Sequence[Mapping[str, Any]], found: Mapping[str, Any]) -> bool:
    """Whether an object is as a patch leaves it, and still the one that the patch was for.

    What the server adds inside a value, such as defaults, does not count.
    """
    return all(
        _holds(step, found) for step in patch if step["op"] != "test" or step["path"] == _UID
    )


def _holds(step: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether what a step of a patch writes, or tests, stands in an object."""
    at: Any = found
    for key in step["path"].split("/")[1:]:
        if not isinstance(at, Mapping):
            return False
        at = at.get(key.replace("~1", "/").replace("~0", "~"))
    return at is None if step["op"] == "remove" else _contains(at, step["value"])


def _contains(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        return all(_contains(found.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list) and isinstance(found, list):
        return len(wanted) == len(found) and all(map(_contains, found, wanted))
    return bool(found == wanted)


def settled(stored: Mapping[str, Any]) -> Patch:
    """Forget the tries of a gang that runs: the next trouble is another one."""
    return [
        *_same(stored),
        {"op": "test", "path": _path(TRIES), "value": _annotations(stored)[TRIES]},
        _removed(TRIES),
    ]


def clearing(stored: Mapping[str, Any], cause: Cause | None = None) -> Patch:
    """Take the record off a job that somebody else starts and stops."""
    return [
        *_unchanged(stored, suspend=None),
        *_written(stored, Forecast(state="waiting", cause=cause), at=None),
    ]


def _same(stored: Mapping[str, Any]) -> Patch:
    """The test that it is this very job."""
    return [{"op": "test", "path": _UID, "value": stored["metadata"]["uid"]}]


def _annotations(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    return stored["metadata"].get("annotations") or {}


def _path(key: str) -> str:
    return "/metadata/annotations/" + key.replace("~", "~0").replace("/", "~1")


def _noted(key: str, value: str) -> dict[str, Any]:
    return {"op": "add", "path": _path(key), "value": value}


def _removed(key: str) -> dict[str, Any]:
    return {"op": "remove", "path": _path(key)}


def _unchanged(stored: Mapping[str, Any], *, suspend: bool | None) -> Iterator[dict[str, Any]]:
    """The tests that the job is what its reader saw: object, record and suspension."""
    yield from _same(stored)
    notes = _annotations(stored)
    for key in (STATE, MAP, RECORDED):
        # A path that is not there cannot be tested: the state tells whether there is a record.
        if key in notes:
            yield {"op": "test", "path": _path(key), "value": notes[key]}
    if suspend is not None:
        yield {"op": "test", "path": SUSPEND, "value": suspend}


def _written(
    stored: Mapping[str, Any], forecast: Forecast, *, at: str | None
) -> Iterator[dict[str, Any]]:
    """The annotations that say how a job stands; what they no longer say goes."""
    empty: Manifest = {"metadata": {"annotations": {}}}
    notes = annotated(empty, forecast)["metadata"]["annotations"]
    if at is not None:
        notes[RECORDED] = at
    stale = [key for key in (MAP, RECORDED, FORECAST, PROPOSED) if key not in notes]
    if not stored["metadata"].get("annotations"):
        yield {"op": "add", "path": "/metadata/annotations", "value": {}}
    for key, value in notes.items():
        yield _noted(key, value)
    for key in stale:
        if key in _annotations(stored):
            yield _removed(key)


def _corrected(stored: Mapping[str, Any], forecast: Forecast) -> Iterator[dict[str, Any]]:
    """A record that says less from now on, and was written when it was."""
    return _written(stored, forecast, at=_annotations(stored).get(RECORDED))


def _templates(stored: Mapping[str, Any], wanted: Manifest) -> Iterator[dict[str, Any]]:
    """The pod templates that differ from what is stored."""
    ours, theirs = wanted["spec"]["mpiReplicaSpecs"], stored["spec"]["mpiReplicaSpecs"]
    for role in _TEMPLATES:
        if role in ours and ours[role].get("template") != theirs[role].get("template"):
            yield {
                "op": "replace",
                "path": f"/spec/mpiReplicaSpecs/{role}/template",
                "value": ours[role]["template"],
            }


def tries_of(stored: Mapping[str, Any]) -> int:
    """How often the gang was taken back already."""
    return whole(_annotations(stored).get(TRIES)) or 0


def is_ours(stored: Mapping[str, Any]) -> bool:
    """Whether a job was placed, or is to be placed, by arena-topo."""
    notes = _annotations(stored)
    return FORMAT in notes and notes.get(STATE) in {"waiting", "placed", "held"}
