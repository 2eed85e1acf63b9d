"""attach: the choice of a pod, and a command in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from arena_topo.engines import Backend, JobStatus, unheard
from arena_topo.errors import NotFound, NotPossible, near


def attach(
    backend: Backend,
    job: JobStatus,
    command: Sequence[str],
    *,
    instance: str | None = None,
    container: str | None = None,
    terminal: bool = False,
    tell: Callable[[str], None] = unheard,
) -> int:
    """Run a command in a pod of a job, by default the launcher's; its exit code.

    An empty command is a shell. NotFound if the pod does not exist, NotPossible if it does not run,
    and the errors of `Backend.attach`.
    """
    chosen = _instance(job, instance)
    return backend.attach(job, chosen, command, container=container, terminal=terminal, tell=tell)


def unknown(named: str, job: JobStatus) -> NotFound:
    """The error, in arena's words, for a missing instance of a job, with the most similar name.

    `named` may leave out the name of the job.
    """
    names = [one.name for one in job.instances]
    whole = f"{job.name}-{named}"
    return NotFound(
        f"invalid instance name {named} in job {job.name},please use"
        f" 'arena-topo get {job.name}' to make sure instance name",
        hint=near(whole if whole in names else named, names),
    )


def _instance(job: JobStatus, named: str | None) -> str:
    names = [one.name for one in job.instances]
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
