"""Following the logs of all pods of a job of this machine: many files, looked at by one thread.

Lines come as the supervisor notes them (see `logfile`), so that a line has the same time for
whoever reads it, and whenever: that is what logs are merged by, and told apart from what was kept.
"""

from __future__ import annotations

import math
import os
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Self

from arena_topo.engines import Phase
from arena_topo.engines.lines import LONGEST, Line, LogOptions, Notice, Source, Turn, Wanted
from arena_topo.engines.local.attaching import CONTAINER
from arena_topo.engines.local.logfile import QUIET, LogFile, given_up, stamp
from arena_topo.engines.local.supervisor import STOPPED, launcher_name, worker_name
from arena_topo.errors import ArenaError, NotFound

if TYPE_CHECKING:
    from types import TracebackType

    from arena_topo.engines.local.ledger import Entry

_STEP = 0.05
"""Seconds between two looks at files."""

_LOOK = 0.25
"""Seconds between two looks at the job."""

_UNTIMED = 2 * QUIET + 0.5
"""Seconds until lines are read that the supervisor has not noted, where no more are to come."""

_UNFINISHED = 0.25
"""Seconds after which a line that does not end is shown as far as it goes: it may be a question, or
a progress bar."""

_CHUNK = LONGEST
"""Bytes that are read of a file at once: so only what a read begins or ends with is too long."""

_BATCH = 2 << 20
"""Bytes that one `read` takes of all files together, about."""

_ENTRIES = 4096
"""Times of a log that are held at once."""

_Batch = list[tuple[float, list[Line | Notice]]]
"""Lines and notices with the time by which they are put in order."""


class LocalFollowing:
    """The logs of the pods of one local job; see `engines.lines.Following`.

    `look` finds the job as it stands, None where it is gone; its folder is `entry.folder`. With
    `every` all runs of each pod are read, not only the last one and those to come.
    """

    def __init__(
        self,
        entry: Entry,
        look: Callable[[], Entry | None],
        options: LogOptions,
        wanted: Wanted,
        *,
        every: bool = False,
    ) -> None:
        self._look = look
        self._looked = -math.inf
        job = entry.submission
        # The folder's name may pass on to another job.
        self._folder: int | None = _folder(entry)
        self._pods = [
            _Pod(
                Source(
                    pod=launcher_name(job.name) if index is None else worker_name(job.name, index),
                    uid=f"{job.uid}-{name}",
                    container=CONTAINER,
                    chief=index is None,
                    worker=index,
                ),
                self._folder,
                options,
                wanted,
                every=every,
            )
            for index, name in (
                (index, launcher_name(job.name) if index is None else worker_name(job.name, index))
                for index in (None, *range(job.workers))
            )
        ]
        self._budget = max(_CHUNK, _BATCH // len(self._pods))
        self._stopped = math.inf
        self._said: _Batch = []
        try:
            self._update(entry, first=True)
            for pod in self._pods:
                if pod.there:
                    pod.join(self._said, time.monotonic())
        except BaseException:
            self.__exit__(None, None, None)
            raise

    @property
    def done(self) -> bool:
        """Whether every pod there was last seen is over and all was read; more may come."""
        return all(pod.over or not pod.there for pod in self._pods)

    def read(self, wait: float) -> Sequence[Line | Notice]:
        """What has come: at once if there is any, else within `wait` seconds; maybe nothing.

        Ordered by time as far as it was noted by now. ArenaError where the job cannot be read.
        """
        until = time.monotonic() + wait
        while True:
            came = self._collect()
            left = until - time.monotonic()
            if came or left <= 0 or self._folder is None:
                return came
            time.sleep(min(_STEP, left))

    def _collect(self) -> list[Line | Notice]:
        if self._folder is None:
            return []
        now = time.monotonic()
        full = bool(self._said)
        if now - self._looked >= _LOOK:
            full = True
            # Looked at before the files: what was written before the end is then read too.
            self._update(self._look())
        pods = [pod for pod in self._pods if pod.ready(full=full)]
        horizon = min((pod.horizon(self._budget) for pod in pods), default=math.inf)
        batch, self._said = self._said, []
        for pod in pods:
            pod.take(batch, horizon, self._budget, now)
        batch.sort(key=itemgetter(0))
        return [one for _, some in batch for one in some]

    def _update(self, entry: Entry | None, *, first: bool = False) -> None:
        self._looked = now = time.monotonic()
        if entry is not None and entry.record.phase.over and entry.record.reason == STOPPED:
            # Most often it is being deleted, which is another end.
            self._stopped = min(self._stopped, now)
            if now - self._stopped < 2 * _LOOK:
                return
        for pod in self._pods:
            pod.seen(entry, first=first)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close all files."""
        for pod in self._pods:
            pod.file.close()
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None


def settled(entry: Entry) -> Entry:
    """A job whose processes are ended, as one that is over: its logs are read to their end."""
    return replace(entry, record=replace(entry.record, phase=Phase.FAILED, reason=None))


def everything(entry: Entry) -> Iterator[Line | Notice]:
    """All lines of all runs of all pods of a job whose processes are ended.

    A notice (`Turn.CUT`) comes before those of a log whose beginning was given up.
    """
    over = settled(entry)
    with LocalFollowing(over, lambda: over, LogOptions(), lambda _: True, every=True) as following:
        while not following.done:
            for one in following.read(0.0):
                if isinstance(one, Line) or one.turn is Turn.CUT:
                    yield one


def _folder(entry: Entry) -> int:
    job = entry.submission
    try:
        return os.open(entry.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFound(f"Not found training job {job.name} in namespace {job.namespace}") from None
    except OSError as error:
        raise ArenaError(
            f"cannot read the logs of {job.name}", why=error.strerror or str(error)
        ) from error


class _Pod:
    """One pod that is followed: how far its log is read, and what is told of it."""

    def __init__(
        self, source: Source, folder: int, options: LogOptions, wanted: Wanted, *, every: bool
    ) -> None:
        self.file = LogFile(f"pods/{source.pod}", folder)
        self.there = self.over = False
        """Whether it has started, or never will; whether it is over and all was read."""
        self._source = source
        self._options = options
        self._wanted = wanted
        self._every = every
        self._shown = False
        self._joined = False
        self._ending: Turn | None = None
        self._early = False
        self._deadline = math.inf
        self._runs: deque[int] = deque()
        self._at = self._index = 0
        self._end: int | None = None
        self._entries: deque[tuple[float, float, int]] = deque()
        """Times not yet read up to: one that never goes back, the time itself, the bytes."""
        self._more = False
        self._latest = 0.0
        self._moment = 0.0
        self._rest = b""
        self._open = False
        self._since = math.inf

    def seen(self, entry: Entry | None, *, first: bool) -> None:
        """Learn from a look at the job whether the pod is there, and whether it is over."""
        record = None if entry is None else entry.record
        found = None if record is None else record.pods.get(self._source.pod)
        if record is None or record.phase is Phase.SUSPENDED:
            self._ending = Turn.GONE
            return
        over = record.phase.over
        if found is None and not over:
            # A job that was suspended waits for its turn again.
            self._ending = Turn.GONE if self._joined else None
            return
        self.there = True
        self._early |= first
        again = self._ending is Turn.GONE
        # A launcher that failed may start again as long as the job is not over.
        ended = over or (not self._source.chief and found is not None and bool(found.finished))
        self._ending = Turn.ENDED if ended else None
        if self._end is None and (again or not ended):
            self.over = False

    def ready(self, *, full: bool) -> bool:
        """Whether there may be anything to read."""
        if not self.there or self.over:
            return False
        if not self._joined:
            return True
        return full or self.file.is_open or self._ending is not None

    def join(self, batch: _Batch, now: float) -> None:
        """Begin to read: at the place the options say where the pod was there from the first."""
        self._joined = True
        options = self._options
        try:
            runs = self.file.runs()
            run, begin, end = self.file.run(previous=options.previous)
            size = self.file.size()
            if self._every:
                begin = self.file.kept_from()
                run = max(0, bisect_right(runs, begin) - 1)
        except (ArenaError, OSError) as error:
            self._refuse(batch, error)
            return
        self._source = _of_run(self._source, run)
        self._runs = deque(() if options.previous else runs[run + 1 :])
        self._shown = self._wanted(self._source)
        if not self._every and (options.previous or not options.follow):
            self._end = size if end is None else end
            self._deadline = now + _UNTIMED
        self._at = begin
        if self._early:
            self._at = self.file.start(options, begin, size if end is None else end)
        if self._shown:
            batch.append((-math.inf, [Notice(turn=Turn.JOINED, source=self._source)]))
            if self._at == begin > runs[run]:
                batch.append((-math.inf, [self._cut(begin - runs[run])]))
        self._index = self.file.covering(self._at + 1)

    def _refuse(self, batch: _Batch, error: Exception) -> None:
        self.over = True
        if not isinstance(error, ArenaError):
            error = ArenaError(f"cannot read the log of {self._source.pod}", why=str(error))
        if self._wanted(self._source):
            notice = Notice(turn=Turn.REFUSED, source=self._source, error=error)
            batch.append((-math.inf, [notice]))

    def _cut(self, count: int) -> Notice:
        return Notice(turn=Turn.CUT, source=self._source, error=given_up(count))

    def horizon(self, budget: int) -> float:
        """Up to which time a share of what is there can be read."""
        if self._joined:
            self._load()
        if not self._entries or self._entries[-1][2] - self._at <= budget:
            return self._entries[-1][0] if self._more else math.inf
        return next(key for key, _, size in self._entries if size - self._at > budget)

    def _load(self) -> None:
        if len(self._entries) > _ENTRIES or (self._end is not None and self._at >= self._end):
            return
        found = self.file.entries(self._index, _ENTRIES)
        self._index += len(found)
        self._more = len(found) == _ENTRIES
        for moment, size in found:
            if size > self._at:
                # Clocks are set back at times; lines of one log never change places.
                self._latest = max(self._latest, moment)
                self._entries.append((self._latest, moment, size))

    def take(self, batch: _Batch, horizon: float, budget: int, now: float) -> None:
        """Read lines up to a time, and say what happened to the pod."""
        try:
            if not self._joined:
                self.join(batch, now)
            if self.over:
                return
            self._load()
            self._know_the_end(now)
            left = budget
            while self._entries and left > 0 and self._entries[0][0] <= horizon:
                left -= self._step(batch, left)
        except OSError as error:
            self._refuse(batch, error)
            return
        if self._end is not None and self._at >= self._end:
            self._finish(batch)
            self.over = True
        elif not self._entries and self._ending is not None and self._at >= self.file.size():
            self._finish(batch)
            self.over = True
            self._tell(batch, self._ending)
        elif not self._entries and now - self._since >= _UNFINISHED and self._rest:
            self._say(batch, self._rest, ends=False)
            self._rest, self._since = b"", math.inf

    def _know_the_end(self, now: float) -> None:
        """Take what nobody has noted the time of, once nobody will."""
        if self._entries or (self._ending is None and now < self._deadline):
            return
        size = self.file.size() if self._end is None else self._end
        if size > self._at:
            moment = self.file.written()
            self._latest = max(self._latest, moment)
            self._entries.append((self._latest, moment, size))

    def _step(self, batch: _Batch, most: int) -> int:
        """Read once; the number of bytes that this has passed."""
        key, self._moment, size = self._entries[0]
        at, upto = self._at, size if self._end is None else min(size, self._end)
        if not self._runs:
            self._runs.extend(one for one in self.file.runs()[self._source.run + 1 :])
        if self._runs and self._end is None:
            if self._runs[0] <= at:
                self._next_run(batch, key)
                return 0
            upto = min(upto, self._runs[0])
        if not self._shown:
            self._at = upto
            self._drop()
            return 0
        data = self.file.read(at, min(_CHUNK, most, upto - at))
        kept = self.file.kept_from()
        if kept > at:
            # Given up before it was read, or while it was.
            self._finish(batch, key)
            batch.append((key, [self._cut(kept - at)]))
            self._at = kept
        elif data:
            self._at += len(data)
            batch.append((key, self._lines(data)))
        else:
            # Somebody has cut the file off.
            self._at = upto
        self._drop()
        return self._at - at

    def _drop(self) -> None:
        """Forget the times that have been read up to."""
        while self._entries and self._entries[0][2] <= self._at:
            self._entries.popleft()
        if self._end is not None and self._at >= self._end:
            self._entries.clear()

    def _next_run(self, batch: _Batch, key: float) -> None:
        self._finish(batch, key)
        self._runs.popleft()
        self._source = _of_run(self._source, self._source.run + 1)
        self._shown = self._wanted(self._source)
        self._tell(batch, Turn.RESTARTED, key)

    def _lines(self, data: bytes) -> list[Line | Notice]:
        at, said = stamp(self._moment)
        source = self._source
        parts = (self._rest + data).split(b"\n")
        if len(parts) > 1 or not self._rest:
            self._since = time.monotonic()
        self._rest = parts.pop()
        if len(self._rest) > LONGEST or (parts and len(parts[0]) > LONGEST):
            return self._pieces(parts, at, said)
        if parts:
            self._open = False
        return [Line(source=source, at=at, stamp=said, text=text) for text in parts]

    def _pieces(self, parts: list[bytes], at: int, said: bytes) -> list[Line | Notice]:
        """The same for lines of which some are too long to be held."""
        source, lines = self._source, list[Line | Notice]()
        for text in parts:
            while len(text) > LONGEST:
                piece, text = text[:LONGEST], text[LONGEST:]  # noqa: PLW2901  cut off bit by bit
                lines.append(Line(source=source, at=at, stamp=said, text=piece, ends=False))
            lines.append(Line(source=source, at=at, stamp=said, text=text))
            self._open = False
        while len(self._rest) > LONGEST:
            piece, self._rest = self._rest[:LONGEST], self._rest[LONGEST:]
            lines.append(Line(source=source, at=at, stamp=said, text=piece, ends=False))
            self._open = True
        return lines

    def _say(self, batch: _Batch, text: bytes, *, ends: bool, key: float = math.inf) -> None:
        at, said = stamp(self._moment)
        line = Line(source=self._source, at=at, stamp=said, text=text, ends=ends, fed=not ends)
        batch.append((key, [line]))
        self._open = not ends

    def _finish(self, batch: _Batch, key: float = math.inf) -> None:
        """End the last line, if it did not end by itself."""
        if self._shown and (self._rest or self._open):
            self._say(batch, self._rest, ends=True, key=key)
        self._rest, self._open, self._since = b"", False, math.inf

    def _tell(self, batch: _Batch, turn: Turn, key: float = math.inf) -> None:
        if self._shown:
            batch.append((key, [Notice(turn=turn, source=self._source)]))


def _of_run(source: Source, run: int) -> Source:
    return Source(
        pod=source.pod,
        uid=source.uid,
        container=source.container,
        run=run,
        chief=source.chief,
        worker=source.worker,
    )
