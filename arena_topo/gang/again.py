"""Submitting under a name that is taken: whether it is the same request; taking its place.

What a job was submitted with stands in the ConfigMap that arena keeps of it, as flags and values,
and the texts of its files in theirs. Placements, and whatever servers and operators add, are not
part of that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from arena_topo.engines import Backend
from arena_topo.engines.kubernetes.queued import moment, queued
from arena_topo.errors import (
    AccessDenied,
    AlreadyExists,
    ClusterError,
    NotFound,
    TimedOut,
)
from arena_topo.gang import planning, shape
from arena_topo.job import BY_KEY, MPIJob, PodShape
from arena_topo.manifests import INCOMPLETE, Manifest, Plan
from arena_topo.manifests.versions import ApiVersion
from arena_topo.solver import Unplaceable, Verdict

Tell = Callable[[str], None]

_YOUNG = 10.0
"""Seconds after the creation of a job in which what it owns may still be on its way."""

_LOOK = 0.2
"""Seconds between two looks at what changes within seconds."""

_PATIENCE = 300.0
"""Seconds to wait for the end of the pods of a job that was deleted, where nobody says how long."""

_SHOWN = 60
"""Characters of a value that a person needs to see."""


def same(
    job: MPIJob, backend: Backend, *, namespace: str, api: ApiVersion | None = None
) -> tuple[Manifest, ...]:
    """The job of this name and its files, where it was submitted with the very same request.

    Empty if there is none. AlreadyExists says what is different, or why that cannot be told;
    AccessDenied which right that takes.
    """
    found = _found(job, backend, namespace, api)
    if found is None:
        return ()
    if unknown := found.unknown():
        raise _taken(job.name, unknown)
    if different := tuple(found.differences()):
        raise _taken(job.name, f"it is another request: {'; '.join(different)}")
    return tuple(one for one in found.stored if one is not None)


def _taken(name: str, why: str) -> AlreadyExists:
    # Arena's words, by which its SDK knows that the name is taken.
    return AlreadyExists(
        f"the job {name} is already exist, please delete it first. use 'arena-topo delete {name}'",
        why=why,
        hint="--exists replace deletes it and submits this one in its place",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A job that is there, and what would be created; both sides of each object."""

    plan: Plan
    stored: tuple[Manifest | None, ...]

    def unknown(self) -> str | None:
        """Why it cannot be told what the job was submitted with; None if it can."""
        mpijob, theirs = self.stored[0], self._books(self.stored)
        assert mpijob is not None
        meta = mpijob["metadata"]
        if meta.get("deletionTimestamp"):
            return "it is being deleted"
        if theirs is None:
            books = f"{self.plan.job.name}-mpijob"
            return f"what it was submitted with is not known: there is no ConfigMap {books} of it"
        if "name" not in _flags(theirs):
            return "what it was submitted with is not known: arena-topo did not submit it"
        marked = INCOMPLETE in (meta.get("annotations") or {})
        if None in self._files(self.stored) or (marked and None in self.stored):
            return "whoever submitted it was stopped before it was whole"
        return None

    def differences(self) -> Iterator[str]:
        """What is different about the requests, a phrase for each flag."""
        there, here = self._books(self.stored), self._books(self.plan.objects)
        assert there is not None
        assert here is not None
        yield from _differences(_flags(there), _flags(here))
        for theirs, ours in zip(
            self._files(self.stored), self._files(self.plan.objects), strict=True
        ):
            if theirs is None or ours is None:
                continue
            texts, mine = theirs.get("data") or {}, ours.get("data") or {}
            for name in sorted({*texts, *mine}):
                if texts.get(name) != mine.get(name):
                    yield f"--config-file: the text of {name} is another there"

    def _books(self, objects: Sequence[Manifest | None]) -> Manifest | None:
        return next(iter(self._config_maps(objects, books=True)))

    def _files(self, objects: Sequence[Manifest | None]) -> list[Manifest | None]:
        return self._config_maps(objects, books=False)

    def _config_maps(
        self, objects: Sequence[Manifest | None], *, books: bool
    ) -> list[Manifest | None]:
        name = f"{self.plan.job.name}-mpijob"
        return [
            one
            for one, ours in zip(objects, self.plan.objects, strict=True)
            if ours["kind"] == "ConfigMap" and (ours["metadata"]["name"] == name) is books
        ]


def _found(job: MPIJob, backend: Backend, namespace: str, api: ApiVersion | None) -> _Found | None:
    """The job of this name as it is; None if there is none. What is still being made is awaited."""
    end = time.monotonic() + _YOUNG
    while True:
        plan = planning.built(job, backend, namespace=namespace, api=api, cluster=None)
        found = _Found(plan=plan, stored=backend.stored(plan))
        mpijob = found.stored[0]
        if mpijob is None:
            return None
        fused = _as_fused(job, mpijob, plan.api)
        if fused is not job:
            plan = planning.built(fused, backend, namespace=namespace, api=api, cluster=None)
            found = _Found(plan=plan, stored=backend.stored(plan))
            if found.stored[0] is None:
                return None
        young = _age(mpijob, backend) < _YOUNG and time.monotonic() < end
        if not young or found.unknown() is None:
            return found
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
    created = moment(mpijob["metadata"].get("creationTimestamp"))
    queue = backend.queue
    # The local engine makes jobs whole or not at all.
    return _YOUNG if created is None or queue is None else queue.now() - created


def _flags(books: Manifest) -> Mapping[str, Any]:
    """The flags by name that arena's ConfigMap holds; nothing where it is not ours."""
    import yaml

    try:
        said = yaml.safe_load((books.get("data") or {}).get("values") or "")
    except yaml.YAMLError:
        return {}
    return said if isinstance(said, dict) else {}


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys([*here, *there]):
        theirs, ours = there.get(name), here.get(name)
        if name in BY_KEY:
            yield from _by_key(name, _pairs(theirs), _pairs(ours))
        elif isinstance(theirs, list) or isinstance(ours, list):
            yield from _by_value(name, theirs or [], ours or [])
        elif theirs != ours:
            subject = f"--{name}" if name != "command" else "the command"
            yield f"{subject} is {_shown(theirs)} there, {_shown(ours)} here"


def _pairs(said: Any) -> dict[str, str]:
    return dict(str(one).partition("=")[::2] for one in said or ())


def _by_key(name: str, theirs: Mapping[str, str], ours: Mapping[str, str]) -> Iterator[str]:
    for key in sorted({*theirs, *ours}):
        if theirs.get(key) == ours.get(key):
            continue
        if name == "env" and key in theirs and key in ours:
            # Variables hold passwords, and this is read by more people than those.
            yield f"--env {key} has another value there"
        else:
            there, here = _shown(theirs.get(key)), _shown(ours.get(key))
            if name == "env":
                there, here = ("set" if key in one else "not set" for one in (theirs, ours))
            yield f"--{name} {key} is {there} there, {here} here"


def _by_value(name: str, theirs: Sequence[Any], ours: Sequence[Any]) -> Iterator[str]:
    for one in theirs:
        if one not in ours:
            yield f"--{name} {_shown(one)} is only there"
    for one in ours:
        if one not in theirs:
            yield f"--{name} {_shown(one)} is only here"


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    text = " ".join(text.split())
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


# ---------------------------------------------------------------- taking its place


def cleared(
    job: MPIJob,
    backend: Backend,
    *,
    namespace: str,
    api: ApiVersion | None = None,
    limit: float | None = None,
    tell: Tell = lambda _: None,
) -> bool:
    """Delete the job of this name for another, and wait until its pods are gone; False: no such.

    Nothing is deleted before the new job was found to be valid, as far as the server says without
    creating it, and to fit on the cluster once others end. TimedOut after `limit` seconds: then
    the old job is deleted, and its pods have not ended.
    """
    try:
        status = backend.job(job.name, namespace)
    except NotFound:
        return False
    plan = checked(job, backend, namespace=namespace, api=api)
    stored = backend.stored(plan)[0]
    with suppress(NotFound):
        backend.delete(job.name, namespace, uid=status.uid)
    tell(f"The training job {job.name} has been deleted successfully")
    patience = _PATIENCE if limit is None else limit
    begun = time.monotonic()
    end = begun + patience
    seen: str | None = None
    blind: str | None = None
    told: str | None = "it is still there"
    while True:
        try:
            left = _left(backend, job.name, namespace, status.uid, stored)
        except (ClusterError, TimedOut) as error:
            # One answer that does not come says nothing about those after it. The time of all
            # requests together ends just before `end`; that is no news of what was seen.
            if seen is None or end - time.monotonic() > _LOOK:
                blind = error.message
        else:
            if left is None:
                return True
            seen, blind = left, None
        now = time.monotonic()
        if now >= end:
            last = seen or "what is left of it was not seen"
            raise TimedOut(
                f"the old job {job.name} is deleted, but {last} after {round(now - begun, 1):g} s",
                why=blind,
                hint="nothing was created; submit it again later",
            )
        news = seen if blind is None else f"what is left of it cannot be seen ({blind})"
        if news != told and end - now > _LOOK:
            told = news
            tell(f"{news}; {job.name} is submitted once that is gone")
        time.sleep(min(_LOOK, end - now))


def checked(
    job: MPIJob, backend: Backend, *, namespace: str, api: ApiVersion | None = None
) -> Plan:
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
