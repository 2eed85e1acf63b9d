"""Submitting where the name may be taken, and staying with a job until it is over."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from arena_topo.backends import Backend, JobStatus, Phase
from arena_topo.errors import AlreadyExists, JobDeleted, JobFailed, NotFound
from arena_topo.job import MPIJob
from arena_topo.manifests import ApiVersion, Manifest


class Exists(StrEnum):
    """What `submit` makes of a job that has the name already."""

    FAIL = "fail"
    OK = "ok"
    """The very same request is as good as submitted; another one is an error."""
    REPLACE = "replace"
    """It is deleted for the new one, whatever it was submitted with."""


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
) -> tuple[Manifest, ...]:
    """Create a job, or find it there; then it is its objects and files that are returned.

    `create` does the former; AlreadyExists if another has the name. What is replaced is awaited for
    at most `limit` seconds, and `tell` hears of it.
    """
    from arena_topo.workflow import again  # noqa: PLC0415 - only where a name may be taken

    if exists is Exists.REPLACE:
        again.cleared(job, backend, namespace=namespace, api=api, limit=limit, tell=tell)
    elif exists is Exists.OK and (there := again.same(job, backend, namespace=namespace, api=api)):
        return there
    try:
        create()
    except AlreadyExists:
        # Somebody may have submitted the same between our look and now.
        there = ()
        if exists is Exists.OK:
            there = again.same(job, backend, namespace=namespace, api=api)
        if not there:
            raise
        return there
    return ()


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
    from arena_topo.workflow import submission, waiting  # noqa: PLC0415 - reads the solver

    try:
        status = waiting.wait(
            backend,
            name,
            namespace,
            timeout=timeout,
            tell=tell,
            seen=seen,
            each=lambda: submission.tend(backend, name, namespace),
        )
    except NotFound:
        raise JobDeleted(f"the job {name} was deleted while it was waited for") from None
    if status.phase is Phase.FAILED:
        raise JobFailed(
            f"the job {name} failed",
            exit_code=status.exit_code or 1,
            hint=waiting.command("logs", name, namespace=namespace),
        )
    return status
