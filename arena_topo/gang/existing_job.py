"""A job of the same name that is there: whether it is the same request; making room for another.

What a job was submitted with is in the ConfigMap that arena keeps of it, as flags and values, and
the texts of its files in theirs. Placements, and whatever servers and operators add, are not part
of that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from arena_topo.engines import Backend
from arena_topo.engines.kubernetes.queued import moment, queued
from arena_topo.errors import AccessDenied, AlreadyExists, ClusterError, NotFound, TimedOut
from arena_topo.gang import planning, shape
from arena_topo.job import MPIJob, PodShape
from arena_topo.manifests import INCOMPLETE, Manifest, Plan
from arena_topo.manifests.versions import ApiVersion
from arena_topo.solver import Unplaceable, Verdict

_YOUNG = 10.0
"""Seconds after the creation of a job in which what it owns may still be on its way."""

_LOOK = 0.2
"""Seconds between two looks at what changes within seconds."""

_PATIENCE = 300.0
"""Seconds to wait for the end of the pods of a job that was deleted, unless a limit is given."""

_SHOWN = 60
"""Characters of a value that a person needs to see."""

Stored = Sequence[Manifest | None]
"""The objects of a plan as they are in the cluster, in its order; None for one that is missing."""


def same(
    job: MPIJob, backend: Backend, *, namespace: str, api: ApiVersion | None = None
) -> tuple[Manifest, ...]:
    """The job of this name and its files, where it was submitted with the very same request.

    Empty if there is none. AlreadyExists says what is different, or why that cannot be told;
    AccessDenied which right that takes.
    """
    plan, stored = _found(job, backend, namespace, api)
    if stored[0] is None:
        return ()
    why = _unknown(plan, stored[0], stored)
    if why is None and (different := list(_differences(plan, stored))):
        why = f"it is another request: {'; '.join(different)}"
    if why is not None:
        # Arena's words, by which its SDK knows that the name is taken.
        raise AlreadyExists(
            f"the job {job.name} is already exist, please delete it first."
            f" use 'arena-topo delete {job.name}'",
            why=why,
            hint="--exists replace deletes it and submits this one in its place",
        )
    return tuple(one for one in stored if one is not None)


def _found(
    job: MPIJob, backend: Backend, namespace: str, api: ApiVersion | None
) -> tuple[Plan, Stored]:
    """What would be created, and what there is of it. A job that is still being made is awaited."""
    end = time.monotonic() + _YOUNG
    while True:
        plan = planning.built(job, backend, namespace=namespace, api=api, cluster=None)
        stored = backend.stored(plan)
        if stored[0] is not None and (fused := _as_fused(job, stored[0], plan.api)) is not job:
            plan = planning.built(fused, backend, namespace=namespace, api=api, cluster=None)
            stored = backend.stored(plan)
        mpijob = stored[0]
        if mpijob is None or _unknown(plan, mpijob, stored) is None:
            return plan, stored
        if _age(mpijob, backend) >= _YOUNG or time.monotonic() >= end:
            return plan, stored
        time.sleep(_LOOK)


def _as_fused(job: MPIJob, mpijob: Manifest, api: ApiVersion) -> MPIJob:
    """The request in the shape that its workers were fused to when it was submitted."""
    if job.pod_shape not in {PodShape.FUSED, PodShape.AUTO}:
        return job
    spec = mpijob.get("spec") or {}
    worker = (spec.get("mpiReplicaSpecs") or {}).get("Worker") or spec
    there = worker.get("replicas")
    if not isinstance(there, int) or there < 1 or job.workers % there:
        return job
    if there == job.workers and job.pod_shape is PodShape.FUSED:
        return job
    return shape.chosen(job, job.workers // there, api)


def _age(mpijob: Manifest, backend: Backend) -> float:
    """Seconds since a job was created, by the server's clock."""
    created, queue = moment(mpijob["metadata"].get("creationTimestamp")), backend.queue
    # The local engine makes jobs whole or not at all.
    return _YOUNG if created is None or queue is None else queue.now() - created


def _unknown(plan: Plan, mpijob: Manifest, stored: Stored) -> str | None:
    """Why it cannot be told what a job was submitted with; None if it can."""
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
        return "whoever submitted it was stopped before it was whole"
    return None


def _books(plan: Plan) -> str:
    """The name of the ConfigMap in which arena keeps the flags of a job."""
    return f"{plan.job.name}-mpijob"


def _config_maps(plan: Plan, objects: Stored) -> dict[str, Manifest | None]:
    """The ConfigMaps among objects that are in the order of a plan, by name."""
    pairs = zip(plan.objects, objects, strict=True)
    return {ours["metadata"]["name"]: one for ours, one in pairs if ours["kind"] == "ConfigMap"}


def _flags(books: Manifest | None) -> Mapping[str, Any]:
    """The flags by name that arena's ConfigMap holds; nothing where it is not ours."""
    import yaml

    try:
        said = yaml.safe_load(((books or {}).get("data") or {}).get("values") or "")
    except yaml.YAMLError:
        return {}
    return said if isinstance(said, dict) else {}


def _differences(plan: Plan, stored: Stored) -> Iterator[str]:
    """What is different about the requests, a phrase for each flag."""
    theirs, ours = _config_maps(plan, stored), _config_maps(plan, plan.objects)
    there, here = (_flags(maps.pop(_books(plan))) for maps in (theirs, ours))
    for name in dict.fromkeys([*here, *there]):
        old, new = (_in_order(flags.get(name)) for flags in (there, here))
        if old == new:
            continue
        if name == "env":
            # Variables hold passwords, and this is read by more people than those.
            names = {pair.partition("=")[0] for pair in {*(old or ())} ^ {*(new or ())}}
            yield f"--env differs in {', '.join(sorted(names))}"
        else:
            subject = "the command" if name == "command" else f"--{name}"
            yield f"{subject} is {_shown(old)} there, {_shown(new)} here"
    for name, file in ours.items():
        old, new = ((one or {}).get("data") or {} for one in (theirs[name], file))
        for key in sorted({*old, *new}):
            if old.get(key) != new.get(key):
                yield f"--config-file: the text of {key} is another there"


def _in_order(value: Any) -> Any:
    """A value whose order says nothing, as that of variables and labels, in one order."""
    return sorted(map(str, value)) or None if isinstance(value, list) else value


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    text = ", ".join(value) if isinstance(value, list) else str(value)
    text = " ".join((text.lower() if isinstance(value, bool) else text).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def left_before_start(name: str, backend: Backend, namespace: str) -> bool:
    """Whether a gang is suspended on its way to its start, and nobody is at work on it any more.

    Whoever is at work on it is given some seconds.
    """
    queue = backend.queue
    end = time.monotonic() + _YOUNG
    while queue is not None:
        stored = queue.get(namespace, name)
        mine = None if stored is None else queued(stored, {})
        if mine is None or not mine.suspended or mine.suspender is not None:
            return False
        if mine.state != "placed" and not mine.incomplete:
            return False
        touched = max(mine.created, mine.recorded or 0.0)
        if queue.now() - touched >= _YOUNG or time.monotonic() >= end:
            return True
        time.sleep(_LOOK)
    return False


def make_room(
    job: MPIJob,
    backend: Backend,
    *,
    namespace: str,
    api: ApiVersion | None = None,
    limit: float | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> None:
    """Delete the job of this name for another, and wait until its pods are gone.

    Nothing is deleted before the new job was found to be valid, as far as the server says without
    creating it, and to fit on the cluster once others end. TimedOut after `limit` seconds: then
    the old job is deleted, and its pods have not ended.
    """
    try:
        uid = backend.job(job.name, namespace).uid
    except NotFound:
        return
    plan = _checked(job, backend, namespace=namespace, api=api)
    stored = backend.stored(plan)[0]
    with suppress(NotFound):
        backend.delete(job.name, namespace, uid=uid)
    tell(f"The training job {job.name} has been deleted successfully")
    begun = time.monotonic()
    end = begun + (_PATIENCE if limit is None else limit)
    last, told = None, "it is still there"
    while True:
        unseen = None
        try:
            last = _left(backend, job.name, namespace, uid, stored)
        except (ClusterError, TimedOut) as error:
            # One answer that does not come says nothing about those after it.
            unseen = error.message
        else:
            if last is None:
                return
        now = time.monotonic()
        if now >= end:
            seen = last or "what is left of it was not seen"
            raise TimedOut(
                f"the old job {job.name} is deleted, but {seen} after {round(now - begun, 1):g} s",
                why=unseen,
                hint="nothing was created; submit it again later",
            )
        news = last if unseen is None else f"what is left of it cannot be seen ({unseen})"
        if news is not None and news != told:
            told = news
            tell(f"{news}; {job.name} is submitted once that is gone")
        time.sleep(min(_LOOK, end - now))


def _checked(job: MPIJob, backend: Backend, *, namespace: str, api: ApiVersion | None) -> Plan:
    """What would be created of a job in the place of another, looked at by the engine."""
    try:
        plan = planning.plan(job, backend, namespace=namespace, api=api)
    except Unplaceable as refused:
        if refused.verdict is not Verdict.NOT_NOW:
            raise
        plan = planning.built(
            job, backend, namespace=namespace, api=api, cluster=None, waiting=refused.reason
        )
    with suppress(AlreadyExists):
        backend.validate(plan)
    return plan


def _left(
    backend: Backend, name: str, namespace: str, uid: str, stored: Manifest | None
) -> str | None:
    """What is still there of a job that was deleted; None if nothing is to be waited for."""
    with suppress(NotFound):
        # Whoever has taken the name since keeps it, however long one waits for the old pods.
        return "it is still there" if backend.job(name, namespace).uid == uid else None
    queue = backend.queue
    if queue is None or stored is None:
        return None
    try:
        pods = sorted(one["metadata"]["name"] for one in queue.pods(stored))
    except AccessDenied:
        # Who may not list pods starts the new job among them, as who deletes by hand does.
        return None
    if not pods:
        return None
    if len(pods) == 1:
        return f"its pod {pods[0]} has not ended"
    return f"{len(pods)} of its pods have not ended, such as {pods[0]}"
