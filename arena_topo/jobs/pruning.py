"""Jobs that ended long enough ago to be cleared away, and clearing them away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from arena_topo.engines import Backend, JobStatus
from arena_topo.errors import ArenaError, NotFound
from arena_topo.jobs.filtering import found


def stale(
    backend: Backend, namespace: str | None, *, since: float, now: float
) -> tuple[JobStatus, ...]:
    """The jobs that are over and at least `since` seconds old, oldest first.

    As in arena (v0.15.5, pkg/training/prune.go) the age counts from the creation of a job, not from
    its end. Unlike there, a job that waits is not history.
    """
    old = [
        one for one in found(backend, namespace) if one.phase.over and now - one.created >= since
    ]
    return tuple(sorted(old, key=lambda one: (one.created, one.namespace, one.name)))


def deleted(
    backend: Backend, jobs: Iterable[JobStatus]
) -> Iterator[tuple[JobStatus, ArenaError | None]]:
    """Delete each of these very jobs when it is asked for, and say what stood against it, if so.

    NotFound means that the job is gone, or that another has its name by now, which is left alone.
    """
    for one in jobs:
        try:
            backend.delete(one.name, one.namespace, uid=one.uid)
        except ArenaError as error:
            yield one, error
        else:
            yield one, None


def gone(error: ArenaError | None) -> bool:
    """Whether there was nothing left to delete."""
    return isinstance(error, NotFound)
