"""Submitting where the name may be taken, and staying with a job until it is over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from arena_topo.engines import Backend, JobStatus, Phase
from arena_topo.errors import AlreadyExists, JobDeleted, NotFound
from arena_topo.job import MPIJob
from arena_topo.manifests import Manifest
from arena_topo.manifests.versions import ApiVersion


class Exists(StrEnum):
    """What `submit` makes of a job that has the name already."""

    FAIL = "fail"
    OK = "ok"
    """The very same request is as good as submitted; another one is an error."""
    REPLACE = "replace"
    """It is deleted for the new one, whatever it was submitted with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class There:
    """A job that was there already: its objects and files; `resumed` if it was started now."""

    objects: tuple[Manifest, ...]
    resumed: bool = False


def unless_there(
    job: MPIJob,
    backend: Backend,
    create: Callable[[], None],
    *,
    namespace: str,
    exists: Exists,
    api: ApiVersion | None = None,
    limit: float | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> There | None:
    """Create a job, and return None; or return the very same one that is there, started if needed.

    `create` does the former; AlreadyExists if another has the name. What is replaced is awaited for
    at most `limit` seconds, and `tell` hears of it.
    """
    from arena_topo.gang import existing_job  # noqa: PLC0415 - only where a name may be taken

    if exists is Exists.REPLACE:
        existing_job.make_room(job, backend, namespace=namespace, api=api, limit=limit, tell=tell)
    elif exists is Exists.OK and (
        found := existing_job.same(job, backend, namespace=namespace, api=api)
    ):
        return _gone_on(found, job.name, backend, namespace, tell)
    try:
        create()
    except AlreadyExists:
        # Somebody may have submitted the same between our look and now.
        found = ()
        if exists is Exists.OK:
            found = existing_job.same(job, backend, namespace=namespace, api=api)
        if not found:
            raise
        return _gone_on(found, job.name, backend, namespace, tell)
    return None


def _gone_on(
    found: tuple[Manifest, ...],
    name: str,
    backend: Backend,
    namespace: str,
    tell: Callable[[str], None],
) -> There:
    """The same job that is there, started where whoever submitted it was stopped before that."""
    from arena_topo.gang import existing_job, protocol, submission  # noqa: PLC0415 - heavy

    if not existing_job.left_before_start(name, backend, namespace):
        return There(objects=found)
    tell(f"{name} was left before its start; it is started now")
    with protocol.left_behind(name, namespace):
        outcome = submission.resume(backend, name, namespace, tell=tell)
    if not outcome.resumed:
        tell(f"{name} has to wait: {outcome.decision.refused}")
    return There(objects=found, resumed=outcome.resumed)


def to_the_end(
    backend: Backend,
    name: str,
    namespace: str,
    *,
    timeout: float | None = None,
    tell: Callable[[JobStatus], None] = lambda _: None,
    seen: Callable[[JobStatus], None] = lambda _: None,
) -> JobStatus:
    """Stay with a job until it is over, and send its workers to their places meanwhile.

    `tell` hears of every change of phase or reason, `seen` of each look. JobFailed, with the
    launcher's exit code, if it fails; JobDeleted if it is deleted; TimedOut after `timeout`
    seconds, and it goes on.
    """
    from arena_topo.engines import waiting  # noqa: PLC0415 - reads the solver
    from arena_topo.gang import submission  # noqa: PLC0415 - reads the solver

    try:
        status = waiting.wait(
            backend,
            name,
            namespace,
            timeout=timeout,
            hears=waiting.Listener(
                tell=tell, seen=seen, each=lambda: submission.tend(backend, name, namespace)
            ),
        )
    except NotFound:
        raise JobDeleted(f"the job {name} was deleted while it was waited for") from None
    if status.phase is Phase.FAILED:
        raise waiting.job_failed(status)
    return status
