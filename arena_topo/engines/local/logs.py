"""The logs of the pods of a job of this machine, read while it runs and until it is deleted.

A pod writes into a pipe. A thread of the supervisor stamps each line with the time and appends it
to the files of the log (`log_files`).
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Self

from arena_topo.engines import Phase
from arena_topo.engines.lines import (
    Line,
    LogOptions,
    LogTurn,
    Notice,
    Source,
    SourceFilter,
    since,
)
from arena_topo.engines.local.store import CONTAINER, POD_LOGS, Job, launcher_name, worker_name
from arena_topo.engines.log_files import LogLines, LogReader, select_files
from arena_topo.errors import ArenaError, JobNotFound

_PIPE = 1 << 18
"""The size of a pipe in bytes: all pipes of a user may have 64 MiB (pipe(7))."""

_STEP = 0.05
"""Seconds between two reads of the files in a follow."""

_LOOK = 0.25
"""Seconds between two reads of the job's record in a follow."""


def pipe() -> tuple[int, int]:
    """The ends of a pipe for the output of a pod: to be drained, and the pod's."""
    readable, writable = os.pipe()
    # Refused beyond the user's limit of all pipes.
    with contextlib.suppress(OSError):
        fcntl.fcntl(readable, fcntl.F_SETPIPE_SZ, _PIPE)
    return readable, writable


def sources(stored: Job) -> Iterator[Source]:
    """The sources of a job's logs, the launcher's first."""
    job = stored.submission
    for index in (None, *range(job.workers)):
        name = launcher_name(job.name) if index is None else worker_name(job.name, index)
        uid = f"{job.uid}-{name}"
        yield Source(pod=name, uid=uid, container=CONTAINER, chief=index is None, worker=index)


# ---------------------------------------------------------------- following


class LocalFollowing:
    """The logs of the pods of a local job; see `engines.lines.Following`.

    `look` reads the job's record, None if it was deleted. Lines of several pods come in no order:
    only launchers write much.
    """

    def __init__(
        self,
        job: Job,
        look: Callable[[], Job | None],
        options: LogOptions,
        wanted: SourceFilter,
    ) -> None:
        begins = since(options, time.time()) or 0
        self._bounded = options.previous or not options.follow
        self._look, self._looked = look, -math.inf
        try:
            # Another job may get the name of the folder. This one is read even where `delete` has
            # moved it into the archive.
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            self._folder = os.open(job.folder / POD_LOGS, flags)
        except OSError as error:
            raise JobNotFound(job.submission.name, job.submission.namespace) from error
        self._closing = contextlib.ExitStack()
        self._closing.callback(os.close, self._folder)
        readers = ((LogReader(source.pod, self._folder), source) for source in sources(job))
        self._pods = [
            _Pod(self._closing.enter_context(reader), source, options, begins)
            for reader, source in readers
            if wanted(source)
        ]
        self._update(job, first=True)
        self._queued = [item for pod in self._pods if pod.started for item in pod.join()]

    @property
    def done(self) -> bool:
        """Whether all known pods are over and their logs read; new pods may come."""
        return all(pod.over or not pod.started for pod in self._pods)

    def read(self, wait: float) -> Sequence[Line | Notice]:
        """The lines and notices that have come, at once or within `wait` seconds; maybe none.

        ArenaError if the job cannot be read.
        """
        until = time.monotonic() + wait
        while True:
            came, self._queued = self._queued, []
            if look := time.monotonic() - self._looked >= _LOOK:
                # Before the files, so that all lines from before the end are read.
                self._update(self._look())
            for pod in self._pods:
                came += pod.read(look=look)
            left = until - time.monotonic()
            if came or left <= 0 or (self._bounded and self.done):
                return came
            if not any(pod.behind for pod in self._pods):
                time.sleep(min(_STEP, left))

    def _update(self, job: Job | None, *, first: bool = False) -> None:
        self._looked = time.monotonic()
        for pod in self._pods:
            pod.seen(job, first=first)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_wrong: object) -> None:
        """Close all files."""
        self._closing.close()
        self._pods = []


class _Pod:
    """A followed pod: the position in its log, and its notices."""

    def __init__(self, reader: LogReader, source: Source, options: LogOptions, begins: int) -> None:
        self.started = self.over = False
        """Whether it has started, or never will; whether it is over and its log read."""
        self._reader, self._options = reader, options
        self._lines = LogLines(reader, source, begins=begins, pieces=options.unfinished)
        self._bounded = options.previous or not options.follow
        self._joined = self._early = False
        self._ending: LogTurn | None = None

    @property
    def behind(self) -> bool:
        """Whether there may be bytes in its log that were not read yet."""
        return not self.over and self._lines.behind

    def seen(self, job: Job | None, *, first: bool) -> None:
        """Take over from the job's record whether the pod has started, and whether it is over."""
        source, state = self._lines.source, None if job is None else job.state
        if state is None or (state.phase is Phase.SUSPENDED and not self._bounded):
            self._ending = LogTurn.GONE
            return
        pod_state = state.pods.get(source.pod)
        over = state.phase.over or state.phase is Phase.SUSPENDED
        if pod_state is None and not over:
            # A suspended job is in the queue again.
            self._ending = LogTurn.GONE if self._joined else None
            return
        self.started = True
        self._early |= first
        again = self._ending is LogTurn.GONE
        # A launcher that failed may start again as long as the job is not over.
        ended = over or (not source.chief and pod_state is not None and bool(pod_state.finished))
        self._ending = LogTurn.ENDED if ended else None
        if not self._bounded and (again or not ended):
            self.over = False

    def join(self) -> list[Line | Notice]:
        """Begin to read; `tail` applies only to a pod that existed when the follow began."""
        self._joined = True
        options, source = self._options, self._lines.source
        try:
            run = select_files(self._reader.parts(), source.pod, options)
            tail = options.tail if self._early else None
            whole = bool(run) and self._reader.begin(run, tail)
        except (ArenaError, OSError) as error:
            return self._refused(error)
        if run:
            self._lines.begin(replace(source, run=run[0].run))
            self._reader.last = run[-1] if self._bounded else None
        items: list[Line | Notice] = [Notice(turn=LogTurn.JOINED, source=self._lines.source)]
        if whole and self._reader.lost:
            items.append(self._lines.cut())
        return items

    def read(self, *, look: bool) -> list[Line | Notice]:
        """The new lines and notices; with `look` also of a log that had no file before."""
        if not self.started or self.over:
            return []
        items = [] if self._joined else self.join()
        if self.over or (self._reader.part is None and not look and not items):
            return items
        try:
            came = self._lines.take()
        except OSError as error:
            return [*items, *self._refused(error)]
        if not (came or self.behind) and (self._bounded or self._ending is not None):
            self.over = True
            came += self._lines.finish()
            if self._ending is not None and not self._bounded:
                came.append(Notice(turn=self._ending, source=self._lines.source))
        elif not came and self._options.unfinished:
            came += self._lines.unfinished()
        return items + came

    def _refused(self, error: ArenaError | OSError) -> list[Line | Notice]:
        self.over = True
        source = self._lines.source
        if not isinstance(error, ArenaError):
            error = ArenaError(f"cannot read the log of {source.pod}", why=str(error))
        return [Notice(turn=LogTurn.REFUSED, source=source, error=error)]
