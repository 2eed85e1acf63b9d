"""The course of a job whose logs are followed: what happens to it, why it waits, when it ends."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from arena_topo.engines import Backend, Instance, JobStatus, Phase
from arena_topo.engines.lines import Line, Notice, Source, Turn, Wanted
from arena_topo.engines.looking import looks
from arena_topo.engines.waiting import Start, command, start_of
from arena_topo.errors import ArenaError, JobDeleted, NotFound
from arena_topo.joblogs import choosing, telling
from arena_topo.joblogs.telling import Note
from arena_topo.joblogs.unread import Lacking, Unread, owed

if TYPE_CHECKING:
    from types import TracebackType

    from arena_topo.joblogs.following import Asked

GRACE = 0.5
"""Seconds of silence after the end of a job before its logs are taken to be whole."""

LINGER = 5.0
"""The same where pods go on, or a log does not end: kubelets close it within a second or two."""

SILENCE = 3.0
"""Seconds without a word of a pod that runs before people are told that it is not our fault."""

TOGETHER = 10.0
"""Seconds within which the pods of a job join as a matter of course."""

LONGEST = 15.0
"""Seconds after the end of a job that others than its launcher may still speak, and that the log of
the launcher may take to come."""

PATIENCE = 60.0
"""Seconds after the end of a job that a connection that is lost may take to come back."""

KNOWN = 2.0
"""Seconds after the log of a pod has ended that it may take to learn how the pod ended."""

SIGHT = 5.0
"""Seconds that a job may be out of sight before people are told."""

SILENT = "it runs, but has written nothing yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Why no log is there to be read now: `reason` in a sentence, and who starts the job.

    `blind` says why the job cannot be seen just now, where that is so.
    """

    status: JobStatus
    reason: str
    start: Start | None = None
    blind: str | None = None

    @property
    def what(self) -> str:
        """What the job does, in words that go behind its name."""
        if self.reason == SILENT:
            return "runs, but has written nothing yet"
        if self.status.phase is Phase.SUSPENDED:
            return self.reason.removeprefix("the job ")
        return f"waits: {self.reason}"


class End(StrEnum):
    """What ended the showing of a log."""

    READ = "read"
    """All that there was is shown; nothing was followed."""
    JOB = "job"
    """The job is over."""
    POD = "pod"
    """The pod that was asked for is over."""
    LOST = "lost"
    """The job was deleted, or cannot be seen any more."""
    KEPT = "kept"
    """What was kept of it is shown; there are no pods any more."""


class Looker:
    """Looks at a job every now and then, in a thread of its own: a server may take its time."""

    def __init__(self, backend: Backend, job: JobStatus, *, keeps: bool) -> None:
        """With `keeps` what is read of its logs is kept."""
        self._backend, self._job, self._keeps = backend, job, keeps
        self._stop, self._wake = threading.Event(), threading.Event()
        self._news: deque[JobStatus] = deque(maxlen=64)
        self._held: tuple[Phase, str | None] | None = None
        self.start: Start | None = None
        """Who starts the job, while it waits and holds nothing."""
        self.blind: str | None = None
        """Why it is not seen just now."""
        self.lost: ArenaError | None = None
        """Why it will not be seen any more."""

    def __enter__(self) -> Self:
        # Nobody waits for its end: it may be in the middle of a request.
        threading.Thread(target=self._run, name="looker", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._wake.set()

    def hurry(self) -> None:
        """Look again at once: something has ended."""
        self._wake.set()

    def news(self) -> Iterator[JobStatus]:
        """What was seen since the last time, oldest first."""
        while self._news:
            yield self._news.popleft()

    def _run(self) -> None:
        try:
            for status in looks(
                self._look,
                every=self._backend.look_every,
                blind=self._unseen,
                pause=self._pause,
            ):
                if self._stop.is_set() or status is None:
                    return
                self._learn(status)
                self._news.append(status)
        except ArenaError as error:
            self.lost = error

    def _look(self) -> JobStatus | None:
        if self._stop.is_set():
            return None
        job = self._job
        try:
            status = self._backend.job(job.name, job.namespace)
        except NotFound:
            self.lost = self._deleted(anew=False)
            return None
        if status.uid != job.uid:
            self.lost = self._deleted(anew=True)
            return None
        return status

    def _pause(self, seconds: float) -> None:
        self._wake.wait(seconds)
        self._wake.clear()

    def _deleted(self, *, anew: bool) -> JobDeleted:
        name, namespace = self._job.name, self._job.namespace
        text = f"the job {name} was deleted while its log was followed"
        hints = []
        if anew:
            text += ", and created anew"
            hints.append(f"{command('logs -f', name, namespace=namespace)} follows the new one")
        if self._keeps:
            kept = command("logs --kept", name, namespace=namespace)
            hints.append(f"{kept} shows what was kept of {'the old one' if anew else 'it'}")
        return JobDeleted(text, hint=", ".join(hints) or None)

    def _unseen(self, why: str | None) -> None:
        self.blind = why

    def _learn(self, status: JobStatus) -> None:
        held = status.phase, None if status.forecast is None else status.forecast.state
        if held != self._held:
            self.start = None
            with suppress(ArenaError):
                self.start = start_of(status, self._backend)
            self._held = held


class Course:
    """What is known of the logs that are read, and of the job behind them."""

    def __init__(self, job: JobStatus, asked: Asked, wanted: Wanted) -> None:
        self._asked, self._wanted = asked, wanted
        self._first = frozenset(one.name for one in job.instances)
        self._begun_at: float | None = None
        self._names: set[str] = set()
        self.tries: list[tuple[str, str]] = []
        """The launchers that were tried, in that order: names and uids, as far as is known."""
        self._failures: dict[tuple[str, str], str] = {}
        """How launchers have ended badly."""
        self._told_of: set[tuple[str, str]] = set()
        self._asked_of: tuple[str, str] | None = None
        """The launcher of which is still to be told how it ended, as the next is there."""
        self._spoke = self._speaks = False
        """Whether there were lines ever, and at the last time."""
        self._suspended = False
        self.ends = 0
        """How many logs have come to their end so far."""
        self._ended_at: float | None = None
        self._unseen: float | None = None
        self._unseen_told = False
        self._open: dict[tuple[str, str], Source] = {}
        self._unread = Unread(many=asked.many)
        self._finished: set[tuple[str, str]] = set()
        self._refused: list[tuple[Source, ArenaError]] = []
        self._active: float | None = None
        self._over: float | None = None
        self._lost: float | None = None
        self._silent: float | None = None
        self._said: tuple[str, Start | None, str | None] | None = None
        self._later = telling.Later()
        self._learn_tries(job)
        self._told_of.update((one.name, one.uid) for one in job.instances if one.failure)

    def begins(self, job: JobStatus) -> Iterator[Note]:
        """What is to be told before the first line."""
        tried = [one for one in choosing.launchers(job) if self._wanted(source_of(one))]
        if self._asked.many and len(tried) > 1:
            pods = (one.name + (f" ({one.failure})" if one.failure else "") for one in tried)
            yield Note(text=f"the launcher was tried {len(tried)} times: {', '.join(pods)}")

    def saw(self, status: JobStatus, now: float) -> None:
        """This is how the job stands; what became of its pods is told by `told`."""
        self._learn_tries(status)
        for one in status.instances:
            pod = one.name, one.uid
            if one.failure is None or pod in self._told_of or not self._wanted(source_of(one)):
                continue
            self._told_of.add(pod)
            if pod == self._asked_of:
                text = f"{one.name}, the launcher's try before, {one.failure}"
                self._later.add(now, Note(text=text, source=source_of(one)))
            elif _of_itself(one, status):
                text, alike = f"{one.name} {one.failure}", f"{{}} pods: {one.failure}"
                self._later.add(now, Note(text=text, source=source_of(one), alike=alike))

    def _learn_tries(self, status: JobStatus) -> None:
        for one in choosing.launchers(status):
            pod = one.name, one.uid
            if pod not in self.tries:
                self.tries.append(pod)
            if one.failure:
                self._failures[pod] = one.failure

    def sight(self, blind: str | None, now: float) -> Iterator[Note]:
        """What is to be told of a job that is out of sight, and why, or in sight again (None)."""
        if blind is None:
            if self._unseen_told:
                yield Note(text="the job is in sight again")
            self._unseen, self._unseen_told = None, False
            return
        self._unseen = now if self._unseen is None else self._unseen
        if now - self._unseen >= SIGHT and not self._unseen_told:
            self._unseen_told = True
            text = f"how the job stands cannot be seen just now: {blind}"
            yield Note(text=text, warns=True)

    def came(self, lines: Sequence[Line], now: float) -> None:
        """Lines came at a time, or none."""
        if lines or self._active is None:
            self._active = now
        self._speaks = bool(lines)
        self._spoke = self._spoke or self._speaks
        self._unread.came(lines)

    def stood(self, seconds: float) -> None:
        """For so long nothing was asked for: a pager, say, kept what is there waiting."""
        if self._active is not None:
            self._active += seconds
        if self._over is not None:
            self._over += seconds
        if self._lost is not None:
            self._lost += seconds

    def notice(self, notice: Notice, now: float) -> list[Note]:
        """Something happened to a log; what is to be told of it before what follows."""
        self._active = now
        source = notice.source
        pod = source.pod, source.uid
        notes: list[Note] = []
        news, joined = self._unread.notice(notice, now), pod in self._open
        match notice.turn:
            case Turn.JOINED | Turn.RESTARTED:
                self._begun_at = now if self._begun_at is None else self._begun_at
                begun = self._begun(notice, now - self._begun_at)
                if begun is not None and begun.alike:
                    self._later.add(now, begun)
                elif begun is not None:
                    notes.append(begun)
                self._open[pod] = source
                self._names.add(source.pod)
                self._finished.discard(pod)
            case Turn.ENDED | Turn.GONE | Turn.REFUSED:
                self._open.pop(pod, None)
                self._finished.add(pod)
                self._names.add(source.pod)
                self.ends += 1
                self._ended_at = now
                if notice.turn is Turn.REFUSED and notice.error is not None:
                    self._refused.append((source, notice.error))
            case _:
                pass
        after = telling.after(notice, many=self._asked.many, joined=joined)
        if after is not None and news:
            self._later.add(now, after)
        return notes

    def _begun(self, notice: Notice, late: float) -> Note | None:
        source, alike = notice.source, ""
        pod = source.pod, source.uid
        if source.chief and pod not in self.tries:
            self.tries.append(pod)
        if notice.turn is Turn.RESTARTED:
            return telling.restarted(source)
        if source.pod in self._names:
            text = f"{source.pod} was started anew"
        elif source.chief and pod != self.tries[0] and source.pod not in self._first:
            text = f"{source.pod} is the launcher's next try{self._before(pod)}"
        elif late >= TOGETHER and source.pod not in self._first:
            text, alike = f"{source.pod} has joined", "{} pods have joined"
        else:
            return None
        return Note(text=text, turn=notice.turn, source=source, alike=alike)

    def _before(self, pod: tuple[str, str]) -> str:
        """How the launcher before another one ended, if that is known by now."""
        before = self.tries[self.tries.index(pod) - 1]
        failure = self._failures.get(before)
        if failure is None:
            self._asked_of = before
            return ""
        return f": {before[0]} {failure}"

    def told(self, before: float | None = None) -> list[Note]:
        """What is to be told of what happened before a time, or of all."""
        return self._later.take(before, ends=self._over is not None or self._lost is not None)

    def nothing_but_errors(self) -> None:
        """Raise the first of the errors if there is no log that could be read."""
        if self._refused and len(self._refused) >= len(self._names):
            raise self._refused[0][1]

    def waiting(
        self, status: JobStatus, start: Start | None, blind: str | None, now: float
    ) -> tuple[bool, Waiting | None]:
        """Whether it is news what there is to wait for, and what that is."""
        said = None
        if not status.phase.over and not (self._open and self._spoke):
            reason = self._reason(status, now)
            # Who starts it may have been learnt before how it stands now is heeded.
            start = None if reason == SILENT else start
            said = None if reason is None else (reason, start, blind)
        self._suspended = status.phase is Phase.SUSPENDED
        if said == self._said:
            return False, None
        self._said = said
        if said is None:
            return True, None
        return True, Waiting(status=status, reason=said[0], start=start, blind=blind)

    def _reason(self, status: JobStatus, now: float) -> str | None:
        """Why there is nothing to read; None as long as that is no wonder."""
        pods = [one for one in status.instances if self._wanted(source_of(one))]
        runs = bool(self._open) or not all(one.pending or one.finished is not None for one in pods)
        if status.phase is Phase.SUSPENDED or not runs:
            self._silent = None
            early = not self._spoke and (not pods or any(one.pending for one in pods))
            return choosing.reason(status) or ("its pod has not started" if early else None)
        if self._spoke:
            return None
        broken = next(iter(self._unread.broken.values()), None)
        if broken is not None:
            why = f" ({broken.error.why})" if broken.error.why else ""
            return f"its log cannot be read yet: {broken.error.message}{why}"
        # The connection to the log of a silent pod is made with its first byte.
        self._silent = now if self._silent is None else self._silent
        return SILENT if now - self._silent >= SILENCE else None

    def speaks(self) -> bool:
        """Whether there is a log to read for the first time after waiting for it."""
        if self._said is None:
            return False
        lines = self._suspended or self._said[0] == SILENT
        begins = self._speaks if lines else bool(self._open)
        if begins:
            self._said = None
        return begins

    def end(self, status: JobStatus | None, *, lost: bool, done: bool, now: float) -> End | None:
        """What has ended it by a time, if anything has."""
        quiet = now - (self._active or now)
        if self._asked.instance is not None and self._finished and not self._open:
            self.nothing_but_errors()
            late = self._ended_at is not None and now - self._ended_at >= KNOWN
            return End.POD if late or lost or self._pod_is_over(status) else None
        if lost:
            self._lost = self._lost or now
            if (done and quiet >= GRACE) or quiet >= LINGER or now - self._lost >= LONGEST:
                return End.LOST
            return None
        if status is None or not status.phase.over:
            self._over = None
            if not self._open and not self._asked.many and status is not None:
                self.nothing_but_errors()
            return None
        self._over = self._over or now
        waits = any(one.chief or not self._asked.many for one in self._owing(status))
        over = self._launcher_is_over(now) and not waits
        if quiet >= GRACE and (over or self.whole(status, done=done)):
            return End.JOB
        patience = LINGER + LONGEST if waits else LINGER
        return End.JOB if quiet >= (PATIENCE if self._unread.broken else patience) else None

    def _owing(self, status: JobStatus | None) -> list[Source]:
        """The logs that must come to their end now."""
        if status is None:
            return []
        pods = [one for one in status.instances if self._wanted(source_of(one))]
        return [source_of(one) for one in owed(status, pods, self._finished)]

    def lacking(self, status: JobStatus | None, *, done: bool) -> list[Lacking]:
        """The logs that could not be read to their end, if this is the end of it."""
        return self._unread.lacking(() if done else self._owing(status))

    def _pod_is_over(self, status: JobStatus | None) -> bool:
        """Whether it is known how the pod ended whose log has."""
        pods = () if status is None else status.instances
        mine = [one for one in pods if self._wanted(source_of(one))]
        return all(one.finished is not None or one.failure is not None for one in mine)

    def _launcher_is_over(self, now: float) -> bool:
        """Whether only others go on, and have had their time."""
        others = all(not one.chief for one in self._open.values())
        return others and self._over is not None and now - self._over >= LINGER

    def whole(self, status: JobStatus, *, done: bool) -> bool:
        """Whether all logs of a job that is over were read: none was passed over that is new.

        `done` is said of the pods that the engine has seen, which may be fewer.
        """
        return done and all(
            one.name in self._names for one in status.instances if self._wanted(source_of(one))
        )


def source_of(instance: Instance) -> Source:
    """Whose log that of a pod is."""
    return Source(
        pod=instance.name,
        uid=instance.uid,
        chief=instance.chief or instance.launcher,
        worker=instance.worker,
    )


def _of_itself(one: Instance, status: JobStatus) -> bool:
    """Whether a pod that failed is news: not the launcher, and not since its job has ended."""
    if one.chief or one.launcher or status.phase in {Phase.SUCCEEDED, Phase.SUSPENDED}:
        return False
    chief = status.chief
    end = status.finished if chief is None or chief.finished is None else chief.finished
    return not status.phase.over or one.finished is None or (end is not None and one.finished < end)
