"""An existing job of the same name: whether its request is the same, and its replacement.

The request of a job is stored in the ConfigMap that arena keeps of it, as flags and values, and the
texts of its files in ConfigMaps of their own. Placements, and all that servers and operators add,
are not part of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from arena_topo.clusters.rules import worker_replicas
from arena_topo.engines.kubernetes.queued import parse_time, queued
from arena_topo.errors import (
    AccessDenied,
    AlreadyExists,
    ClusterError,
    JobExists,
    NotFound,
    TimedOut,
)
from arena_topo.gang import Watcher, shape
from arena_topo.gang.planning import Decision, render_decision, to_create
from arena_topo.gang.request import Site
from arena_topo.job import MPIJob, PodShape
from arena_topo.manifests import INCOMPLETE, Manifest, Plan

_YOUNG = 10.0
"""Seconds since the last write of a submitter for which it may still be working on its job."""

_LOOK = 0.2
"""Seconds between two polls of a state that changes within seconds."""

_PATIENCE = 300.0
"""Seconds to wait for the end of the pods of a deleted job, unless there is a deadline."""

_SHOWN = 60
"""Characters of a value that an error shows."""

Stored = Sequence[Manifest | None]
"""The stored objects of a plan, in its order; None for each that is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Same:
    """An existing job with exactly this request: its plan and its objects.

    `left`: its submission stopped before its start.
    """

    plan: Plan
    objects: tuple[Manifest, ...]
    left: bool


def identical_job(job: MPIJob, site: Site) -> Same | None:
    """The job of this name, if it was submitted with the same request; None without a job.

    A job that another client may still be creating or starting is polled for some seconds.
    AlreadyExists names the differences, or why they are not known; AccessDenied names the missing
    right.
    """
    end = time.monotonic() + _YOUNG
    while True:
        plan = render_decision(Decision(job=job, decided=False), site)
        stored = site.engine.stored(plan)
        mpijob = stored[0]
        if mpijob is None:
            return None
        if (fused := _as_fused(job, mpijob, site)) is not job:
            plan = render_decision(Decision(job=fused, decided=False), site)
            stored = site.engine.stored(plan)
        why = _unknown(plan, mpijob, stored)
        if why is None and (different := list(_differences(plan, stored))):
            other = f"it is another request: {'; '.join(different)}"
            raise JobExists(job.name, site.namespace, why=other)
        starts, touched = _on_its_way(mpijob)
        queue = site.engine.queue
        # The local engine creates jobs atomically.
        late = queue is None or queue.now() - touched >= _YOUNG or time.monotonic() >= end
        if late or (why is None and not starts):
            break
        time.sleep(_LOOK)
    if why is not None:
        raise JobExists(job.name, site.namespace, why=why)
    return Same(
        plan=plan,
        objects=tuple(manifest for manifest in stored if manifest is not None),
        left=starts,
    )


def _on_its_way(mpijob: Manifest) -> tuple[bool, float]:
    """Whether a gang is suspended before its start; the later of its creation and its record."""
    created = parse_time(mpijob["metadata"].get("creationTimestamp")) or 0.0
    mine = queued(mpijob, {})
    if mine is None or not mine.suspended or mine.suspender is not None:
        return False, created
    return mine.state == "placed" or mine.incomplete, max(created, mine.recorded or 0.0)


def _as_fused(job: MPIJob, mpijob: Manifest, site: Site) -> MPIJob:
    """The request in the shape to which its workers were fused at submission."""
    pods_there = worker_replicas(mpijob)
    if (
        job.pod_shape not in {PodShape.FUSED, PodShape.AUTO}
        or not (isinstance(pods_there, int) and pods_there > 0)
        or job.workers % pods_there
        or (pods_there == job.workers and job.pod_shape is PodShape.FUSED)
    ):
        return job
    return shape.with_pod_shape(job, job.workers // pods_there, site.api)


def _unknown(plan: Plan, mpijob: Manifest, stored: Stored) -> str | None:
    """Why the request of an existing job is not known; None if it is."""
    meta, files = mpijob["metadata"], _config_maps(plan, stored)
    name = _books(plan)
    books = files.pop(name)
    marked = INCOMPLETE in (meta.get("annotations") or {})
    if meta.get("deletionTimestamp"):
        return "it is being deleted"
    if books is None:
        return f"what it was submitted with is not known: there is no ConfigMap {name} of it"
    if "name" not in _flags(books):
        return "what it was submitted with is not known: arena-topo did not submit it"
    if None in files.values() or (marked and None in stored):
        return "its submission stopped halfway"
    return None


def _books(plan: Plan) -> str:
    """The name of the ConfigMap in which arena stores the flags of a job."""
    return f"{plan.job.name}-mpijob"


def _config_maps(plan: Plan, objects: Stored) -> dict[str, Manifest | None]:
    """The ConfigMaps among objects that are in the order of a plan, by name."""
    pairs = zip(plan.objects, objects, strict=True)
    return {ours["metadata"]["name"]: pair for ours, pair in pairs if ours["kind"] == "ConfigMap"}


def _flags(books: Manifest | None) -> Mapping[str, Any]:
    """The flags by name in arena's ConfigMap; empty if its content is invalid."""
    import yaml

    try:
        flags = yaml.safe_load(((books or {}).get("data") or {}).get("values") or "")
    except yaml.YAMLError:
        return {}
    return flags if isinstance(flags, dict) else {}


def _differences(plan: Plan, stored: Stored) -> Iterator[str]:
    """The differences between the requests, a phrase for each flag."""
    theirs, ours = _config_maps(plan, stored), _config_maps(plan, plan.objects)
    stored_flags, here = (_flags(maps.pop(_books(plan))) for maps in (theirs, ours))
    for name in dict.fromkeys([*here, *stored_flags]):
        old, new = (_in_order(flags.get(name)) for flags in (stored_flags, here))
        if old == new:
            continue
        if name == "env":
            # Variables may hold passwords, and more people can read this output than the variables.
            names = {pair.partition("=")[0] for pair in {*(old or ())} ^ {*(new or ())}}
            yield f"--env differs in {', '.join(sorted(names))}"
        else:
            subject = "the command" if name == "command" else f"--{name}"
            yield f"{subject} is {_shown(old)} there, {_shown(new)} here"
    for name, file in ours.items():
        old, new = ((content or {}).get("data") or {} for content in (theirs[name], file))
        for key in sorted({*old, *new}):
            if old.get(key) != new.get(key):
                yield f"--config-file: the text of {key} is another there"


def _in_order(value: Any) -> Any:
    """A value in a canonical order if its order has no meaning, as for variables and labels."""
    return sorted(map(str, value)) or None if isinstance(value, list) else value


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    text = ", ".join(value) if isinstance(value, list) else str(value)
    text = " ".join((text.lower() if isinstance(value, bool) else text).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def make_room(job: MPIJob, site: Site, watcher: Watcher) -> None:
    """Delete the job of this name for a new one, and wait until its pods are gone.

    Before that the new job must be valid, by a dry run on the server, and fit on the cluster once
    others end. TimedOut at the watcher's deadline: then the old job is deleted, and its pods have
    not ended.
    """
    backend, name = site.engine, job.name
    try:
        uid = backend.job(name, site.namespace).uid
    except NotFound:
        return
    plan = render_decision(to_create(job, site), site)
    with suppress(AlreadyExists):
        backend.validate(plan)
    stored = backend.stored(plan)[0]
    with suppress(NotFound):
        backend.delete(name, site.namespace, uid=uid, tell=watcher.tell)
    watcher.tell(f"The training job {name} has been deleted successfully")
    begun = time.monotonic()
    end = begun + _PATIENCE if watcher.end is None else watcher.end
    seen, sentence = "what is left of it was not seen", "it is still there"
    while True:
        unseen = None
        try:
            news = _left(job, site, uid, stored)
        except (ClusterError, TimedOut) as error:
            # One failed request says nothing about the next.
            unseen = error.message
            news = f"what is left of it cannot be seen ({unseen})"
        if news is None:
            return
        seen, now = seen if unseen else news, time.monotonic()
        if now >= end:
            raise TimedOut(
                f"the old job {name} is deleted, but {seen} after {round(now - begun, 1):g} s",
                why=unseen,
                hint="nothing was created; submit it again later",
            )
        if news != sentence:
            sentence = news
            watcher.tell(f"{news}; {name} is submitted once that is gone")
        time.sleep(min(_LOOK, end - now))


def _left(job: MPIJob, site: Site, uid: str, stored: Manifest | None) -> str | None:
    """What remains of a deleted job, as a clause; None if there is nothing to wait for."""
    queue = site.engine.queue
    with suppress(NotFound):
        # If another job has taken the name, waiting for the old pods does not free it.
        exists = site.engine.job(job.name, site.namespace).uid == uid
        return "it is still there" if exists else None
    try:
        pods = queue.pods(stored) if queue is not None and stored is not None else []
    except AccessDenied:
        # Without the right to list pods the new job starts beside the old pods, as after kubectl
        # delete.
        return None
    names = sorted(pod["metadata"]["name"] for pod in pods)
    if len(names) > 1:
        return f"{len(names)} of its pods have not ended, such as {names[0]}"
    return f"its pod {names[0]} has not ended" if names else None
