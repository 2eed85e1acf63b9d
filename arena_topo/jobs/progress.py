"""The progress of a job: as a sentence, as a line for each change, as a small screen."""

from __future__ import annotations

from arena_topo.engines import JobStatus, state_of
from arena_topo.escaping import one_line
from arena_topo.jobs.view import (
    MAX_WORKER_ROWS,
    age_of,
    in_order,
    job_duration,
    place_of,
    why_not_running,
)
from arena_topo.layout import align, clock, duration, fold, state, table
from arena_topo.words import portion


def running(status: JobStatus) -> tuple[int, int, int]:
    """The number of a job's pods that run, of those that have completed, and of all."""
    states = [instance.status for instance in status.instances]
    return (
        states.count("Running"),
        states.count("Completed") + states.count("Succeeded"),
        len(states),
    )


def _completed(pods: int) -> str:
    return f", {pods} {'has' if pods == 1 else 'have'} completed" if pods else ""


def progress_line(status: JobStatus, *, now: float) -> str:
    """A job in a line: the time, its phase, how many of its pods run, and why it waits."""
    words = [clock(now), str(state(status.phase.value))]
    if status.phase.over:
        words.append(f"after {duration(job_duration(status, now))}")
    elif status.instances:
        run, completed, pods = running(status)
        words.append(f"{run} of {pods} pods run{_completed(completed)}")
    if status.reason and why_not_running(status) is not None:
        words.append(one_line(status.reason))
    return "  ".join(words)


def phase_sentence(status: JobStatus) -> str:
    """The phase of a job and its reason, in a sentence."""
    return f"The Job {state_of(status)}"


def progress_screen(status: JobStatus, *, now: float, width: int | None = None) -> str:
    """The status of a job in a sentence, and its pods; of many only those that do not run."""
    run, completed, pods = running(status)
    line = f"{status.name} is {state(status.phase.value)}, {duration(job_duration(status, now))}"
    # The pods of a job that is over have ended, each in its own way, which its row says.
    if pods and not status.phase.over:
        line += f", {portion(run, pods, 'pod', noun='runs', many='run')}{_completed(completed)}"
    if status.reason and why_not_running(status) is not None:
        line += f": {one_line(status.reason)}"
    shown = [
        instance
        for instance in in_order(status.instances)
        if pods <= MAX_WORKER_ROWS or instance.status != "Running"
    ]
    rows = [
        (
            instance.name,
            state(instance.status),
            duration(age_of(instance, now)),
            place_of(instance, instance.node),
        )
        for instance in shown
    ]
    block = table(("NAME", "STATUS", "AGE", "NODE"), rows, indent="  ") if rows else []
    return align([fold(line, width, indent="    "), *block])
