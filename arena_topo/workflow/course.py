"""The course of a job whose logs are followed: what happens to it, why it waits, when it ends."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from arena_topo.backends import Backend, Instance, JobStatus, Phase
from arena_topo.backends.logs import Line, Notice, Source, Turn, Wanted
from arena_topo.errors import ArenaError, NotFound
from arena_topo.workflow.looking import looks
from arena_topo.workflow.waiting import Start, command, start_of

if TYPE_CHECKING:
    from types import TracebackType

    from arena_topo.workflow.logs import Asked

GRACE = 0.5
"""Seconds of silence after the end of a job before its logs are taken to be whole."""

LINGER = 5.0
"""The same where pods go on, or a log does not end: kubelets close it within a second or two."""

SILENCE = 3.0
"""Seconds without a word of a pod that runs before people are told that it is not our fault."""

TOGETHER = 10.0
"""Seconds within which the pods of a job join as a matter of course."""

TOLD = 3.0
"""Seconds until it is told that a pod was deleted: the job may have ended, which is no news."""

LONGEST = 15.0
"""Seconds after the end of a job that others than its launcher may still speak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something to know that is no line of a log, in a sentence.

    `turn` and `source` are set where it happened to one pod's log; `error` where that went wrong.
    """

    text: str
    turn: Turn | None = None
    source: Source | None = None
    error: ArenaError | None = None
    warns: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Why no log is there to be read now: `reason` in a sentence, and who starts the job.

    `blind` says why the job cannot be seen just now, where that is so.
    """

    status: JobStatus
    reason: str
    start: Start | None = None
    blind: str | None = None


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
        self._stop = threading.Event()
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
        self._stop.wait(seconds)

    def _deleted(self, *, anew: bool) -> ArenaError:
        name, namespace = self._job.name, self._job.namespace
        text = f"the job {name} was deleted while its log was followed"
        hints = []
        if anew:
            text += ", and created anew"
            hints.append(f"{command('logs -f', name, namespace=namespace)} follows the new one")
        if self._keeps:
            kept = command("logs --kept", name, namespace=namespace)
            hints.append(f"{kept} shows what was kept of {'the old one' if anew else 'it'}")
        return ArenaError(text, hint=", ".join(hints) or None)

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
        self._chiefs: set[str] = set()
        self._open: dict[tuple[str, str], Source] = {}
        self._broken: set[tuple[str, str]] = set()
        self._finished: set[tuple[str, str]] = set()
        self._refused: list[tuple[Source, ArenaError]] = []
        self._active: float | None = None
        self._over: float | None = None
        self._lost: float | None = None
        self._silent: float | None = None
        self._said: tuple[str, Start | None, str | None] | None = None
        self._later: list[tuple[float, Note]] = []

    def came(self, lines: Sequence[Line], now: float) -> None:
        """Lines came at a time, or none."""
        if lines or self._active is None:
            self._active = now

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
        match notice.turn:
            case Turn.JOINED | Turn.RESTARTED:
                self._begun_at = now if self._begun_at is None else self._begun_at
                notes = self._begun(notice, now - self._begun_at)
                self._open[pod] = source
                if source.chief:
                    self._chiefs.add(source.pod)
                self._names.add(source.pod)
                self._broken.discard(pod)
                self._finished.discard(pod)
            case Turn.ENDED | Turn.GONE | Turn.REFUSED:
                self._open.pop(pod, None)
                self._broken.discard(pod)
                self._finished.add(pod)
                self._names.add(source.pod)
                if notice.turn is Turn.REFUSED and notice.error is not None:
                    self._refused.append((source, notice.error))
            case Turn.BROKEN:
                self._broken.add(pod)
            case _:
                pass
        after = _after(notice, many=self._asked.many)
        if after is not None:
            self._later.append((now, after))
        return notes

    def _begun(self, notice: Notice, late: float) -> list[Note]:
        source = notice.source
        if notice.turn is Turn.RESTARTED:
            text = f"{source.pod} was restarted: what follows is of its run {source.run + 1}"
        elif source.pod in self._names:
            text = f"{source.pod} was started anew"
        elif source.chief and self._chiefs - {source.pod}:
            text = f"{source.pod} is the launcher's next try"
        elif late >= TOGETHER and source.pod not in self._first:
            text = f"{source.pod} has joined"
        else:
            return []
        return [Note(text=text, turn=notice.turn, source=source)]

    def told(self, before: float | None = None) -> list[Note]:
        """What is to be told of what happened before a time, or of all."""
        kept, told = [], []
        ends = self._over is not None or self._lost is not None
        for at, note in self._later:
            gone = note.turn is Turn.GONE
            if before is not None and at + (TOLD if gone else 0.0) > before:
                kept.append((at, note))
            elif not (gone and ends):
                # At the end of a job its pods are deleted as a matter of course.
                told.append(note)
        self._later = kept
        return told

    def nothing_but_errors(self) -> None:
        """Raise the first of the errors if there is no log that could be read."""
        if self._refused and len(self._refused) >= len(self._names):
            raise self._refused[0][1]

    def waiting(
        self, status: JobStatus, start: Start | None, blind: str | None, now: float
    ) -> tuple[bool, Waiting | None]:
        """Whether it is news what there is to wait for, and what that is."""
        said = None
        if not self._open and not status.phase.over:
            reason = self._reason(status, now)
            said = None if reason is None else (reason, start, blind)
        if said == self._said:
            return False, None
        self._said = said
        if said is None:
            return True, None
        return True, Waiting(status=status, reason=said[0], start=start, blind=blind)

    def _reason(self, status: JobStatus, now: float) -> str | None:
        """Why there is nothing to read; None as long as that is no wonder."""
        runs = any(
            not one.pending and one.finished is None and self._wanted(source_of(one))
            for one in status.instances
        )
        if not runs:
            self._silent = None
            return status.reason or "its pod has not started"
        # The connection to the log of a silent pod is made with its first byte.
        self._silent = now if self._silent is None else self._silent
        return "it runs, but has written nothing yet" if now - self._silent >= SILENCE else None

    def speaks(self) -> bool:
        """Whether there is a log to read for the first time after waiting for it."""
        begins = bool(self._open) and self._said is not None
        if begins:
            self._said = None
        return begins

    def end(self, status: JobStatus | None, *, lost: bool, done: bool, now: float) -> End | None:
        """What has ended it by a time, if anything has."""
        quiet = now - (self._active or now)
        if self._asked.instance is not None and self._finished and not self._open:
            self.nothing_but_errors()
            return End.POD
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
        if quiet >= GRACE and (self.whole(status, done=done) or self._launcher_is_over(now)):
            return End.JOB
        return End.JOB if quiet >= LINGER and not self._broken else None

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
    return Source(pod=instance.name, uid=instance.uid, chief=instance.chief, worker=instance.worker)


def _after(notice: Notice, *, many: bool) -> Note | None:
    """What is to be told of something that happened, once the lines before it are shown."""
    source, error = notice.source, notice.error
    why = "" if error is None else f": {error.message}"
    match notice.turn:
        case Turn.GONE:
            text = f"{source.pod} was deleted: its log ends here"
        case Turn.REFUSED if many:
            text = f"the log of {source.pod} cannot be read{why}"
        case Turn.BROKEN:
            text = f"the connection to the log of {source.pod} is lost and taken up again{why}"
        case Turn.CUT:
            text = f"the oldest lines of {source.pod} are not shown{why}"
        case _:
            return None
    warns = notice.turn in {Turn.REFUSED, Turn.CUT}
    return Note(text=text, turn=notice.turn, source=source, error=error, warns=warns)


Tell = Callable[[Note], None]
