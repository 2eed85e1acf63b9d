"""Waiting for jobs: the goals, and when a job has reached a goal or can no longer reach it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum

from arena_topo.engines import JobStatus, Phase
from arena_topo.engines.backend import Backend, JobReads
from arena_topo.engines.polling import poll_repeatedly
from arena_topo.errors import (
    AccessDenied,
    ArenaError,
    JobDeleted,
    JobFailed,
    JobNotFound,
    NotFound,
    TimedOut,
    command,
)
from arena_topo.manifests.cause import CauseCode

_FEW = 3
"""Jobs that are read one by one, at most; more are read with one list of their namespace."""


class Goal(StrEnum):
    """What `wait` waits for."""

    FINISHED = "finished"
    """The job is over, whether it succeeded or failed."""
    SUCCEEDED = "succeeded"
    RUNNING = "running"
    """The job runs with all its workers, or has succeeded already."""
    PLACED = "placed"
    """All workers have their nodes, or their placement is recorded."""
    DELETED = "deleted"


class Standing(StrEnum):
    """How far a job is from a goal."""

    REACHED = "reached"
    OPEN = "open"
    LOST = "lost"
    """The job can no longer reach the goal."""


class Start(StrEnum):
    """What starts a job that waits without GPUs."""

    QUEUE = "its queue decides when it starts"
    ITSELF = "it starts by itself once it can"
    CONTROLLER = "the controller starts it once it fits"
    RESUME = "resume starts it when it fits"
    """No program starts the job before a person does."""
    ANEW = "it cannot start before it is submitted again"
    """It was rolled back because of its image, and no program tries again."""


def start_of(status: JobStatus, backend: Backend) -> Start | None:
    """What starts a job that waits without GPUs; None for a job that starts, runs or is over."""
    if status.phase is Phase.SUSPENDED:
        return Start.RESUME
    forecast = status.forecast if status.phase in {Phase.PENDING, Phase.QUEUING} else None
    if forecast is None or forecast.state not in {"waiting", "held"}:
        return None
    if status.phase is Phase.QUEUING:
        return Start.QUEUE
    if backend.starts_waiting or backend.queue is None:
        return Start.ITSELF
    if forecast.state == "waiting" and backend.queue.watched():
        return Start.CONTROLLER
    cause = forecast.cause
    return Start.ANEW if cause is not None and cause.code == CauseCode.IMAGE else Start.RESUME


def start_phrase(start: Start, name: str, namespace: str) -> str:
    """A phrase on what starts a job, with the command if a person does."""
    if start is Start.ANEW:
        delete = command("delete", name, namespace=namespace)
        return (
            f"{delete}, and submit it with the right --image or --image-pull-secret; resume does"
            " not change them"
        )
    if start is not Start.RESUME:
        return str(start)
    return f"start it once it fits: {command('resume', name, namespace=namespace)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How waiting for a job ended; `status` is None for a job that no longer exists.

    A job that has neither reached nor lost the goal is OPEN, with its status at the last look.
    """

    name: str
    standing: Standing
    status: JobStatus | None


def goal_failure(ending: Ending, goal: Goal) -> ArenaError | None:
    """The error with which waiting for a job ends; None without an error.

    JobFailed has the exit code of the launcher if the goal was the end of the job.
    """
    status = ending.status
    if ending.standing is Standing.OPEN:
        return None
    if status is None:
        if ending.standing is Standing.REACHED:
            return None
        return JobDeleted(f"the job {ending.name} was deleted while it was waited for")
    if status.phase is Phase.FAILED and goal is not Goal.DELETED:
        if ending.standing is Standing.REACHED and goal is not Goal.FINISHED:
            return None
        return job_failed(status, own=goal is Goal.FINISHED)
    return None


def job_failed(status: JobStatus, *, own: bool = True) -> JobFailed:
    """The error for a job that failed; with `own` it has the exit code of the launcher, else 1."""
    code = status.exit_code if own else None
    hint = command("why", status.name, namespace=status.namespace)
    return failed_with(code, status.name, status.reason, hint=hint)


def how_failed(status: JobStatus | None) -> JobFailed | None:
    """The error for a job that may have failed; None if it has not, or is not known."""
    if status is None or status.phase is not Phase.FAILED:
        return None
    return job_failed(status)


def failed_with(
    code: int | None, name: str, why: str | None, *, hint: str | None = None
) -> JobFailed:
    """The error for a job whose launcher ended with a code; the command ends with it as well."""
    ended = f"the launcher ended with exit code {code}"
    if code and why in {None, ended}:
        why = f"{ended}, and so does this command"
    return JobFailed(f"the job {name} failed", exit_code=code or 1, why=why, hint=hint)


def goal_standing(goal: Goal, status: JobStatus | None) -> Standing:
    """How far a job is from a goal; `status` is None for a job that no longer exists.

    A suspended job can be resumed, so it loses no goal. A failed job has lost the goal `running`,
    even if it ran before.
    """
    if status is None:
        return Standing.REACHED if goal is Goal.DELETED else Standing.LOST
    if _has(goal, status):
        return Standing.REACHED
    lost = status.phase.over and goal is not Goal.DELETED
    return Standing.LOST if lost else Standing.OPEN


def _has(goal: Goal, status: JobStatus) -> bool:
    match goal:
        case Goal.FINISHED:
            return status.phase.over
        case Goal.SUCCEEDED:
            return status.phase is Phase.SUCCEEDED
        case Goal.RUNNING:
            whole = not any(instance.pending for instance in status.instances)
            return status.phase is Phase.SUCCEEDED or (status.phase is Phase.RUNNING and whole)
        case Goal.PLACED:
            return status.phase is Phase.SUCCEEDED or _placed(status)
        case Goal.DELETED:
            return False


def _placed(status: JobStatus) -> bool:
    if status.forecast is not None:
        return status.forecast.state == "placed"
    workers = [instance for instance in status.instances if instance.worker is not None]
    return bool(workers) and all(worker.node for worker in workers)


def _nothing(*_event: object) -> None:
    """Ignore a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Callbacks about the jobs of a wait.

    `tell`: the phase or reason of a job has changed. `seen`: a look at a job. `ended`: waiting for
    a job has ended. `waits`: a job waits without GPUs, and what starts it; None as soon as it no
    longer waits. `blind`: why the server does not answer; None as soon as it answers again. `each`
    is called at every look; its errors are ignored.
    """

    tell: Callable[[JobStatus], None] = _nothing
    seen: Callable[[JobStatus], None] = _nothing
    ended: Callable[[Ending], None] = _nothing
    waits: Callable[[JobStatus, Start | None], None] = _nothing
    blind: Callable[[str | None], None] = _nothing
    each: Callable[[], None] = _nothing


DEAF = Listener()


def wait_for_job(
    backend: Backend,
    name: str,
    namespace: str,
    *,
    timeout: float | None = None,
    hears: Listener = DEAF,
) -> JobStatus:
    """Wait until a job is over.

    NotFound if the job does not exist, or is deleted meanwhile. TimedOut after `timeout` seconds;
    the job goes on. A server that does not answer for a while does not end the waiting.
    """
    names, goal = [name], Goal.FINISHED
    (end,) = wait_all(backend, names, namespace, goal=goal, timeout=timeout, hears=hears)
    if end.status is None:
        raise JobNotFound(name, namespace)
    return end.status


def wait_all(
    backend: Backend,
    names: Sequence[str],
    namespace: str,
    *,
    goal: Goal,
    timeout: float | None = None,
    hears: Listener = DEAF,
    stop: threading.Event | None = None,
) -> tuple[Ending, ...]:
    """Wait until all jobs have reached a goal, or a job has lost it; how waiting ended for each.

    Other jobs are OPEN if a job loses the goal, or if `stop` is set; at least one look is made. A
    name given twice counts once. JobNotFound if a job does not exist at the first look, unless the
    goal is its deletion. TimedOut after `timeout` seconds names the remaining jobs, their phases,
    and what to do. A server that does not answer for a while does not end the waiting.
    """
    reads = backend.watching(namespace)
    watch = _Watch(
        names=tuple(dict.fromkeys(names)),
        goal=goal,
        hears=hears,
        backend=backend,
        reads=reads,
        namespace=namespace,
    )
    end = None if timeout is None else time.monotonic() + timeout

    def unseen(why: str | None) -> None:
        in_time()
        # The deadline of all requests together ends just before this deadline: no message.
        if end is None or end - time.monotonic() > backend.look_every:
            hears.blind(why)

    def in_time() -> None:
        if end is not None and time.monotonic() >= end:
            raise watch.late(timeout or 0.0) from None

    def pause(seconds: float) -> None:
        if stop is None:
            time.sleep(seconds)
        elif stop.wait(seconds):
            raise _Stopped

    with reads, suppress(_Stopped):
        for _ in poll_repeatedly(
            watch.look, every=backend.look_every, blind=unseen, end=end, pause=pause
        ):
            with suppress(ArenaError):
                hears.each()
            if watch.settled:
                break
            in_time()
    return tuple(map(watch.ending, watch.names))


class _Stopped(Exception):
    """The event `stop` was set."""


@dataclass(slots=True, kw_only=True)
class _Watch:
    """The state of waiting for some jobs."""

    names: tuple[str, ...]
    goal: Goal
    hears: Listener
    backend: Backend
    reads: JobReads
    namespace: str
    known: dict[str, JobStatus] = field(default_factory=dict)
    starts: dict[str, Start] = field(default_factory=dict)
    ends: dict[str, Ending] = field(default_factory=dict)
    lists: bool = True
    """Whether the caller may list the jobs of the namespace."""

    @property
    def left(self) -> tuple[str, ...]:
        """The jobs that have neither reached the goal nor lost it."""
        return tuple(name for name in self.names if name not in self.ends)

    @property
    def settled(self) -> bool:
        """Whether waiting is over."""
        return not self.left or any(
            ending.standing is Standing.LOST for ending in self.ends.values()
        )

    def ending(self, name: str) -> Ending:
        """How waiting for a job ended, or its last status."""
        still = Ending(name=name, standing=Standing.OPEN, status=self.known.get(name))
        return self.ends.get(name, still)

    def look(self) -> None:
        """Look at every remaining job."""
        left = self.left
        listed: Mapping[str, JobStatus] | None = None
        if len(left) > _FEW and self.lists:
            try:
                listed = {job.name: job for job in self.reads.jobs()}
            except AccessDenied:
                # Without the right to list, each job can still be read.
                self.lists = False
        for name in left:
            status = None if listed is None else listed.get(name)
            with suppress(NotFound):
                status = self.reads.job(name) if listed is None else status
            self._see(name, status)

    def _see(self, name: str, status: JobStatus | None) -> None:
        before = self.known.get(name)
        if before is None and status is None and self.goal is not Goal.DELETED:
            raise JobNotFound(name, self.namespace)
        if before is not None and status is not None and before.uid != status.uid:
            # The job was deleted, and another job has its name.
            status = None
        if status is not None:
            self.known[name] = status
            self.hears.seen(status)
            if before is None or (before.phase, before.reason) != (status.phase, status.reason):
                self.hears.tell(status)
            if before is None or _start_facts(before) != _start_facts(status):
                self._learn(status)
        now = goal_standing(self.goal, status)
        if now is not Standing.OPEN:
            self.ends[name] = Ending(name=name, standing=now, status=status)
            self.hears.ended(self.ends[name])

    def _learn(self, status: JobStatus) -> None:
        """Find out what starts a job, for the callback and the error of a timeout."""
        start = None
        with suppress(ArenaError):
            start = start_of(status, self.backend) if self.goal is not Goal.DELETED else None
        if start is not None:
            self.starts[status.name] = start
            self.hears.waits(status, start)
        elif self.starts.pop(status.name, None) is not None:
            self.hears.waits(status, None)

    def late(self, timeout: float) -> TimedOut:
        """The error of a timeout: the remaining jobs, their phases, and what to do."""
        left, spent, hint = self.left, f"{round(timeout, 1):g}", self._next()
        if len(self.names) == 1:
            last = self.known.get(left[0])
            return TimedOut(
                f"job {left[0]} is {f'still {last.phase}' if last else _UNSEEN} after {spent} s",
                why=last.reason if last else None,
                hint=hint,
            )
        stand = {
            name: f"{status.phase}{f' ({status.reason})' if status.reason else ''}"
            for name, status in self.known.items()
        }
        return TimedOut(
            f"{len(left)} of {len(self.names)} jobs are not {self.goal} after {spent} s",
            why="; ".join(f"{name} is {stand.get(name, _UNSEEN)}" for name in left),
            hint=hint,
        )

    def _next(self) -> str:
        """A hint: what happens to the remaining jobs, and what to do about them."""
        name, *others = self.left
        if others:
            return f"see {command('list', namespace=self.namespace)}"
        look, start = command("get", name, namespace=self.namespace), self.starts.get(name)
        if start is not None:
            hint = start_phrase(start, name, self.namespace)
            return hint if start in {Start.RESUME, Start.ANEW} else f"{hint}: {look}"
        goes_on = name in self.known and self.goal is not Goal.DELETED
        return f"the job goes on; see {look}" if goes_on else f"see {look}"


_UNSEEN = "out of sight"


def _start_facts(status: JobStatus) -> tuple[Phase, str | None]:
    """The fields that decide what starts a job."""
    return status.phase, None if status.forecast is None else status.forecast.state
