"""Which pod's log is meant, and the errors where there is none to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arena_topo.engines import Instance, JobStatus, Phase
from arena_topo.engines.backend import Backend
from arena_topo.engines.goals import Start, start_of, start_phrase
from arena_topo.errors import NotFound, UsageError, command
from arena_topo.joblogs.notices import pods_text
from arena_topo.words import listed

if TYPE_CHECKING:
    from arena_topo.engines.archive import Kept


def readable_pod(job: JobStatus, backend: Backend, name: str | None) -> Instance:
    """The pod whose log is read; NotFound if there is none, or it has not started."""
    chosen = select_instance(job, name)
    if chosen is None:
        raise no_pods_error(job, backend)
    if chosen.pending:
        raise not_started_error(job, backend, chosen.name)
    return chosen


def select_instance(job: JobStatus, name: str | None) -> Instance | None:
    """The named pod, else the launcher's last try, else the only pod; None if there is none.

    NotFound for a name that the job does not have, UsageError if the job is over and several pods
    could be meant.
    """
    if name is not None:
        for instance in job.instances:
            if instance.name == name:
                return instance
        from arena_topo.engines.attachment import unknown  # noqa: PLC0415  only to suggest one

        raise unknown(name, job)
    tried = launchers_by_try(job)
    if tried:
        return tried[-1]
    if len(job.instances) > 1 and job.phase.over:
        names = ", ".join(instance.name for instance in job.instances)
        raise UsageError(
            f"job {job.name} has no launcher, and several other pods",
            hint=f"choose a pod with -i: {names}",
        )
    return job.instances[0] if len(job.instances) == 1 and job.phase.over else None


def launchers_by_try(job: JobStatus) -> list[Instance]:
    """The launchers of a job in the order of their tries."""
    return sorted(
        (instance for instance in job.instances if instance.chief or instance.launcher), key=_by_try
    )


def _by_try(instance: Instance) -> tuple[float, float, bool, str]:
    # Creation times are whole seconds: within a second, the pod that is over was the first.
    return instance.created, instance.finished or float("inf"), instance.chief, instance.name


def no_pods_error(job: JobStatus, backend: Backend) -> NotFound:
    """The error for a job without pods, and what to do about it."""
    if job.phase.over:
        return NotFound(
            f"job {job.name} has no pods any more",
            why=job.reason or "they were deleted when it ended, and nothing of their logs was kept",
            hint=f"next time {command('logs -f', job.name, namespace=job.namespace)} keeps them,"
            " and submit --clean-task-policy None leaves the pods",
        )
    return not_started_error(job, backend, job.name)


def not_started_error(job: JobStatus, backend: Backend, pod: str) -> NotFound:
    """The error for a pod that has not started or was not created: why, and what to do."""
    start = start_of(job, backend)
    hint = f"wait for it: {command('logs -f', job.name, namespace=job.namespace)}"
    if start in {Start.RESUME, Start.ANEW}:
        hint = start_phrase(start, job.name, job.namespace)
    state = f"pod {pod} is not running" if job.instances else f"job {job.name} has no pods yet"
    return NotFound(state, why=why_no_logs(job), hint=hint)


def no_log_error(job: JobStatus, pod: Instance, container: str | None) -> NotFound:
    """The error for a pod that runs while the wanted container has no log."""
    if container is not None:
        return NotFound(
            f"pod {pod.name} has no log of a container {container}",
            why="it has no such container, or that has not started",
        )
    return NotFound(
        f"pod {pod.name} has no log yet",
        why=f"its status is {pod.status}",
        hint=f"wait for it: {command('logs -f', job.name, namespace=job.namespace)}",
    )


def why_no_logs(job: JobStatus) -> str | None:
    """Why a job has no logs yet, as a sentence."""
    if job.phase is not Phase.SUSPENDED:
        return job.reason
    return f"the job {suspension_text(job)}"


def suspension_text(job: JobStatus) -> str:
    """What a suspended job does, as a predicate: it `is suspended`, and why."""
    why = job.forecast.reason if job.forecast is not None else None
    return f"is suspended{f': {why}' if why else ''}"


def no_archived_earlier_run_error(kept: Kept) -> NotFound:
    """The error for an archived job without an earlier run."""
    return NotFound(
        f"no earlier run of {kept.name} is kept",
        why="the archive has its first run, or the run before was not followed",
        hint="read the current log: leave out --previous",
    )


def not_archived_error(pod: str | None, container: str | None, kept: Kept) -> NotFound:
    """The error for an archived job without the wanted logs."""
    pods = pods_text(source.pod for source in kept.sources)
    containers = ""
    if container is not None:
        names = dict.fromkeys(source.container for source in kept.sources)
        containers = f", of {listed([f'container {name}' for name in names])}"
    what = f"the log of {pod}" if pod else "these logs"
    if container is not None:
        what = f"container {container} of {pod or kept.name}"
    return NotFound(
        f"nothing is archived of {what}",
        why=f"the pods of {kept.name} are gone; kept are the logs of: {pods}{containers}",
        hint=f"to see them: {command('logs --kept --all', kept.name, namespace=kept.namespace)}",
    )
