"""The files of a log: one process writes them, any process of the user reads them.

    RUN-START.log       rows `TIME text`, as a kubelet gives them (see `lines.Parser`)

A log is bounded: a file that has reached its size is followed by another one, START being the bytes
of the run's log before it, and the oldest file is removed. Where a file does not end with a line
feed, the next file goes on with that line, behind a time of its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Self

from arena_topo.engines.lines import Line, LogOptions, LogTurn, Notice, Parser, Source, stamped
from arena_topo.engines.private import require_file
from arena_topo.errors import ArenaError, NotFound, UsageError

DEFAULT_LOG_SIZE = 64 << 20
"""The size of a log: somewhat more than a kubelet's 5 files of 10 MiB
(containerLogMaxFiles, containerLogMaxSize; Kubernetes, KubeletConfiguration v1beta1)."""

LIMIT_VARIABLE = "ARENA_TOPO_LOCAL_LOG_LIMIT"
"""The environment variable for another LIMIT, as a Kubernetes quantity; 0 is no limit."""

_SHARE, _SHORTEST, _LONGEST = 8, 1 << 16, 8 << 20
"""A file takes this share of the limit, and from 64 KiB to 8 MiB."""

_CHUNK = 1 << 16
"""Bytes of a read from a pipe or a file."""

_LARGEST = 1 << 25
"""Bytes of a file, at most: one that is full takes a chunk more, of which each byte may be a line.
"""

_QUIET, _PAUSE = 1 << 14, 0.001
"""After a read of fewer bytes the reader of a pipe pauses (seconds), so that single lines are read
together."""

_HEAD = len(stamped(0)) + 1
"""Bytes of a time and its space."""

_UNFINISHED = 0.25
"""Seconds after which an unfinished line is returned, where that is wanted: it may be a progress
bar."""

_BATCH = 2 << 20
"""About the bytes of a log in a `read` of a follow."""


def log_size_limit(environment: Mapping[str, str]) -> int | None:
    """The size limit of a log in bytes, None for no limit; UsageError for an invalid variable."""
    text = environment.get(LIMIT_VARIABLE, "")
    if not text:
        return DEFAULT_LOG_SIZE
    from arena_topo.job import Quantity  # noqa: PLC0415  not to read logs

    try:
        size = int(Quantity.parse(text).amount)
    except ValueError as error:
        raise UsageError(f"{LIMIT_VARIABLE}: {error}", hint="set a size such as 64Mi") from None
    return size or None


# ---------------------------------------------------------------- the files


class LogFile(NamedTuple):
    """A file of a log: its run, and the byte of the run's log at which it begins."""

    run: int
    start: int
    name: str


_NAME = re.compile(r"([0-9]{1,9})-([0-9]{1,18})\.log")


def parts(place: str, folder: int | None = None) -> list[LogFile]:
    """The files of a log in their order; `place` is relative to `folder` (a descriptor)."""
    try:
        opened = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        # The pod never started, or its job was deleted just now.
        return []
    try:
        names = os.listdir(opened)  # noqa: PTH208  of a folder that stays the same one
        matches = map(_NAME.fullmatch, names)
        files = [LogFile(int(match[1]), int(match[2]), match[0]) for match in matches if match]
    finally:
        os.close(opened)
    return sorted(files)


def drop_oldest(place: Path, most: int) -> None:
    """Remove the oldest files of a log, but for the last one, until it has at most `most` bytes."""
    files = [place / part.name for part in parts(str(place))]
    sizes = [file.stat().st_size for file in files]
    total = sum(sizes)
    for file, size in zip(files[:-1], sizes, strict=False):
        if total <= most:
            break
        file.unlink()
        total -= size


def begin_run(place: Path) -> None:
    """Begin the next run of a pod that has run before."""
    if before := parts(str(place)):
        (place / f"{before[-1].run + 1}-0.log").touch(mode=0o600)


def move_runs(place: Path, to: Path) -> None:
    """Move the runs of a log that no process writes any more behind the runs of another log."""
    to.mkdir(mode=0o700, exist_ok=True)
    before = parts(str(to))
    later = before[-1].run + 1 if before else 0
    for part in parts(str(place)):
        (place / part.name).rename(to / f"{later + part.run}-{part.start}.log")


def _rows(data: bytes, at: int, *, inside: bool) -> bytes:
    """A text with a time (Unix nanoseconds) before each line; `inside`: not before the first."""
    stamp = stamped(at) + b" "
    end = len(data) - data.endswith(b"\n")
    rows = data[:end].replace(b"\n", b"\n" + stamp) + data[end:]
    return rows if inside or not data else stamp + rows


class LogWriter:
    """Appends to the last run of a pod within a size limit (bytes); safe to share between threads.

    A full disk is no error: the lost bytes are counted, and a line in the log says how many.
    """

    def __init__(self, place: Path, most: int | None) -> None:
        # Not the folder of the job, which may be gone.
        for folder in (place.parent, place):
            folder.mkdir(mode=0o700, exist_ok=True)
        before = parts(str(place))
        self._place, self._most = place, most
        self._longest = max(_SHORTEST, min(_LONGEST, (most or DEFAULT_LOG_SIZE * _SHARE) // _SHARE))
        self._run, self._start = before[-1][:2] if before else (0, 0)
        self._file = self._opened(self._start)
        self._size = os.fstat(self._file).st_size
        self._missing = 0
        self._inside = False
        self._lock = threading.Lock()

    def write(self, data: bytes) -> None:
        """Append output of the pod."""
        with self._lock:
            if self._missing and self._append(b"\n" * self._inside + self._remark()):
                self._missing = 0
            if self._size >= self._longest:
                # A file ends with a line, unless that is too long.
                end = data.find(b"\n") + 1 if self._inside else 0
                self._add(data[:end])
                data = data[end:]
                self._turn()
            self._add(data)

    def drain(self, pipe: int) -> None:
        """Append the output from a pipe until all its writers have closed it."""
        with contextlib.closing(os.fdopen(pipe, "rb", buffering=0)) as source:
            while data := source.read(_CHUNK):
                self.write(data)
                if len(data) < _QUIET:
                    time.sleep(_PAUSE)
        self.write(b"")
        with self._lock:
            os.close(self._file)
            self._file = -1

    def _add(self, data: bytes) -> None:
        if data and (self._missing or not self._append(data)):
            self._missing += len(data)

    def _append(self, data: bytes) -> bool:
        """Append a text whole, or not at all."""
        left = rows = _rows(data, time.time_ns(), inside=self._inside)
        try:
            if self._file < 0:
                self._file = self._opened(self._start)
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            return False
        self._size += len(rows)
        self._inside = not data.endswith(b"\n")
        return True

    def _remark(self) -> bytes:
        text = f"{self._missing:,} bytes are missing here, since they could not be written"
        return f"arena-topo: {text}\n".encode()

    def _turn(self) -> None:
        """Go on in another file, or in the same file if no other can be created."""
        with contextlib.suppress(OSError):
            if self._most is not None:
                drop_oldest(self._place, self._most - self._longest)
            start = self._start + self._size
            opened = self._opened(start)
            os.close(self._file)
            self._file, self._start, self._size, self._inside = opened, start, 0, False

    def _opened(self, start: int) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.open(self._place / f"{self._run}-{start}.log", flags, 0o600)


# ---------------------------------------------------------------- reading


_BOUND = "only the newest part of a log is kept"
_HINT = f"{LIMIT_VARIABLE} says how much, when a job is submitted"


def given_up(count: int) -> ArenaError:
    """The error for `count` bytes of a log that were removed."""
    return ArenaError(f"{count:,} bytes of this log were dropped", why=_BOUND, hint=_HINT)


def select_files(files: Sequence[LogFile], pod: str, options: LogOptions) -> list[LogFile]:
    """The files of the last run, or of the run before it; NotFound if there is none."""
    wanted = (files[-1].run if files else 0) - options.previous
    run = [part for part in files if part.run == wanted]
    if wanted < 0:
        raise NotFound(
            f"there is no log of an earlier run of {pod}",
            why="it was started only once",
            hint="leave out --previous",
        )
    if options.previous and not run:
        raise NotFound(f"the log of the earlier run of {pod} is gone", why=_BOUND, hint=_HINT)
    return run


class LogReader:
    """Reads the files of a log one after the other, up to the file `last`; to be closed.

    A log without a file is empty, and may begin later. With `folder` (a descriptor) the place is
    in it. An open file can be read to its end even if its job is deleted.
    """

    def __init__(self, place: str, folder: int | None = None) -> None:
        self._place, self._folder = place, folder
        self._file = -1
        self._inside = False
        self.part: LogFile | None = None
        self.last: LogFile | None = None
        self.lost = 0
        """Bytes that were removed between this file and the one that was read before it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def parts(self) -> list[LogFile]:
        """The files of the log, in their order."""
        return parts(self._place, self._folder)

    def open(self, part: LogFile) -> int:
        """Open a file of the log; OSError if it is gone, or no such file."""
        path = f"{self._place}/{part.name}"
        # O_NONBLOCK: a named pipe would block.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        opened = os.open(path, flags, dir_fd=self._folder)
        try:
            require_file(opened, part.name, _LARGEST)
        except OSError:
            os.close(opened)
            raise
        return opened

    def read(self) -> bytes | LogFile | None:
        """The next bytes; the next file, where one begins; None: no more now."""
        if data := self._read():
            return data
        before = self.part
        if before is not None and self.last is not None and before >= self.last:
            return None
        following = next((part for part in self.parts() if before is None or part > before), None)
        if following is None:
            return None
        # A file is complete once there is a next one.
        return self._read() or (following if self.go_to(following) else None)

    def go_to(self, part: LogFile, at: int = 0) -> bool:
        """Go on at a byte of a file; False if that file was removed just now."""
        try:
            opened = self.open(part)
        except FileNotFoundError:
            return False
        expected = 0
        if self.part is not None and self.part.run == part.run:
            expected = self.part.start + os.fstat(self._file).st_size
        goes_on = self._inside and 0 < expected == part.start
        self.__exit__()
        self._file, self.part, self._inside = opened, part, goes_on
        self.lost = max(0, part.start - expected)
        os.lseek(opened, max(at, _HEAD * goes_on), os.SEEK_SET)
        return True

    def begin(self, run: Sequence[LogFile], tail: int | None) -> bool:
        """Go to the last `tail` lines of a run with these files; whether that is its beginning."""
        part, at = (run[0], 0) if tail is None else self._tail(run, tail)
        if not self.go_to(part, at):
            later = next((file for file in self.parts() if file > part), None)
            return later is not None and self.go_to(later)
        return (part, at) == (run[0], 0)

    def _read(self) -> bytes:
        if self.part is None:
            return b""
        data = os.read(self._file, _CHUNK)
        if data:
            self._inside = not data.endswith(b"\n")
        return data

    def _tail(self, run: Sequence[LogFile], lines: int) -> tuple[LogFile, int]:
        """Where the last `lines` lines of a run begin."""
        line_feeds, last = 0, True
        for part in reversed(run):
            try:
                with os.fdopen(self.open(part), "rb") as file:
                    data = file.read()
            except FileNotFoundError:
                break
            upto = len(data)
            if last and lines == 0:
                return part, upto
            upto -= last and data.endswith(b"\n")
            last = last and not data
            while (upto := data.rfind(b"\n", 0, upto)) >= 0:
                line_feeds += 1
                if line_feeds == lines:
                    return part, upto + 1
        return run[0], 0


class LogLines:
    """The lines of a pod's log, from a reader's position on through all its runs."""

    def __init__(
        self, reader: LogReader, source: Source, *, begins: int = 0, pieces: bool = False
    ) -> None:
        """`begins`: the time (Unix nanoseconds) before which lines are not wanted."""
        self._reader, self._begins, self._pieces = reader, begins, pieces
        self.came = 0.0
        """When the last of it was read (`time.monotonic`)."""
        self.behind = False
        """Whether `take` may have left bytes that are there already."""
        self.begin(source)

    def begin(self, source: Source) -> None:
        """Begin a run."""
        self.source, self._parser = source, Parser(source, pieces=self._pieces)

    def finish(self) -> list[Line]:
        """The last line, if it has no line feed, unless a crash has truncated it in its time."""
        lines = self._parser.finish()
        return self._wanted([line for line in lines if line.stamp and line.text])

    def unfinished(self) -> list[Line]:
        """The beginning of an unfinished line that has been silent for a while."""
        quiet = time.monotonic() - self.came >= _UNFINISHED
        return self._wanted(self._parser.unfinished()) if quiet else []

    def _wanted(self, lines: list[Line]) -> list[Line]:
        return [line for line in lines if line.at >= self._begins] if self._begins else lines

    def take(self) -> list[Line | Notice]:
        """The next lines and notices of about `_BATCH` bytes.

        None of them: the bytes are the middle of a line, or older than what is wanted, or there are
        no more now.
        """
        items: list[Line | Notice] = []
        left = _BATCH
        self.behind = True
        while left > 0:
            got = self._reader.read()
            if got is None:
                self.behind = False
                break
            if isinstance(got, bytes):
                left -= len(got)
                items += self._wanted(self._parser.feed(got))
                self.came = time.monotonic()
                continue
            if got.run != self.source.run:
                items += self.finish()
                self.begin(replace(self.source, run=got.run))
                items.append(Notice(turn=LogTurn.RESTARTED, source=self.source))
            if self._reader.lost:
                items += [*self.finish(), self.cut()]
        return items

    def cut(self) -> Notice:
        """The notice of removed bytes."""
        return Notice(turn=LogTurn.CUT, source=self.source, error=given_up(self._reader.lost))


def run_lines(place: Path, source: Source) -> Iterator[Line]:
    """The lines of a run of a log that no process writes any more; OSError if it cannot be read."""
    with LogReader(str(place)) as reader:
        run = [part for part in reader.parts() if part.run == source.run]
        if run and reader.begin(run, None):
            reader.last = run[-1]
            lines = LogLines(reader, source)
            while (some := lines.take()) or lines.behind:
                yield from (item for item in some if isinstance(item, Line))
            yield from lines.finish()
