"""attach: the choice of a pod, and a command in it."""

from __future__ import annotations

from collections.abc import Callable

from arena_topo.engines import JobStatus, ignore_message
from arena_topo.engines.attach_request import AttachRequest
from arena_topo.engines.backend import Backend
from arena_topo.errors import NotFound, NotPossible, command, near


def attach_to_job(
    backend: Backend,
    job: JobStatus,
    request: AttachRequest,
    *,
    tell: Callable[[str], None] = ignore_message,
) -> int:
    """Run a command in a pod of a job; its exit code.

    NotFound if the pod does not exist, NotPossible if it does not run,
    and the errors of `Backend.attach`.
    """
    return backend.attach(job, _instance(job, request.instance), request, tell=tell)


def unknown(named: str, job: JobStatus) -> NotFound:
    """The error for a missing pod of a job, with the most similar name.

    `named` may leave out the name of the job.
    """
    names = [instance.name for instance in job.instances]
    whole = f"{job.name}-{named}"
    pods = f"{command('get', job.name, namespace=job.namespace)} lists its pods"
    return NotFound(
        f"job {job.name} has no pod {named}",
        why=None if names else job.reason,
        hint=near(whole if whole in names else named, names) or pods,
    )


def _instance(job: JobStatus, named: str | None) -> str:
    names = [instance.name for instance in job.instances]
    if not names:
        raise NotPossible(
            f"cannot attach to job {job.name}: it has no pods",
            why=job.reason,
            hint=command("why", job.name, namespace=job.namespace),
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
        f"job {job.name} has no launcher now",
        why=job.reason,
        hint=f"choose another pod with -i: {', '.join(names)}",
    )
