"""attach: the choice of a pod, and a command in it."""

from __future__ import annotations

from collections.abc import Callable

from arena_topo.engines import JobStatus, unheard
from arena_topo.engines.attach_request import AttachRequest
from arena_topo.engines.backend import Backend
from arena_topo.errors import NotFound, NotPossible, near


def attach_to_job(
    backend: Backend,
    job: JobStatus,
    request: AttachRequest,
    *,
    tell: Callable[[str], None] = unheard,
) -> int:
    """Run a command in a pod of a job; its exit code.

    NotFound if the pod does not exist, NotPossible if it does not run,
    and the errors of `Backend.attach`.
    """
    return backend.attach(job, _instance(job, request.instance), request, tell=tell)


def unknown(named: str, job: JobStatus) -> NotFound:
    """The error, in arena's words, for a missing instance of a job, with the most similar name.

    `named` may leave out the name of the job.
    """
    names = [instance.name for instance in job.instances]
    whole = f"{job.name}-{named}"
    return NotFound(
        f"invalid instance name {named} in job {job.name},please use"
        f" 'arena-topo get {job.name} -n {job.namespace}' to make sure instance name",
        hint=near(whole if whole in names else named, names),
    )


def _instance(job: JobStatus, named: str | None) -> str:
    names = [instance.name for instance in job.instances]
    if not names:
        raise NotPossible(
            f"can not attach the training job {job.name}, because it has no instances",
            why=job.reason,
            hint=f"arena-topo why {job.name} -n {job.namespace}",
        )
    if named is not None:
        if named in names:
            return named
        raise unknown(named, job)
    if job.chief is not None:
        return job.chief.name
    if len(names) == 1:
        return names[0]
    raise NotPossible(
        f"the training job {job.name} has no launcher now",
        why=job.reason,
        hint=f"name another instance with -i: {', '.join(names)}",
    )
