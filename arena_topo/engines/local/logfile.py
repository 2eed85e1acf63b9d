"""The log of one pod of this machine: files that its processes and its supervisor write.

    log         what the pod's processes wrote, the runs of the pod one after the other
    times       when it grew: TIMES entries, by the supervisor
    runs        the byte at which each run after the first begins: RUNS entries
    kept-from   the byte at which the log begins by now, where its oldest part was given up

The processes write into the file themselves, so no reader can block them or lose a line. A file
never shrinks: what is given up becomes a hole in it, so that bytes keep their places for whoever
reads or writes. `kept-from` is written before the hole is made, so who looks there after reading
knows whether what it read was still there.

How fine times are: a line was written between the entry before its own and its own. While a log
grows that is FRESH seconds, after a pause up to QUIET.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from arena_topo.engines.lines import LogOptions
from arena_topo.engines.local.decoding import is_moment
from arena_topo.errors import ArenaError, NotFound, UsageError
from arena_topo.job import Quantity

TIMES = struct.Struct("<dQ")
"""One entry of a log's times: Unix seconds, and the bytes written by then."""

RUNS = struct.Struct("<Q")
"""One entry of a log's runs: the byte at which the next one begins."""

FRESH, QUIET = 0.1, 0.25
"""Seconds between two looks of the supervisor at logs that grow, and at most."""

LIMIT = 64 << 20
"""Bytes that are kept of a log: somewhat more than a kubelet's 5 files of 10 MiB
(containerLogMaxFiles, containerLogMaxSize; Kubernetes, KubeletConfiguration v1beta1)."""

LIMIT_VARIABLE = "ARENA_TOPO_LOCAL_LOG_LIMIT"
"""The environment variable with another LIMIT, as a Kubernetes quantity; 0 keeps everything."""

_TIMES_SHARE = 4
"""The times of a log may take this part of what it may: they grow with each line of slow logs."""

_CHUNK = 1 << 18

_BLOCK = 4096
"""Holes begin and end at blocks of the file system, most often of this size."""

_RESERVED = 32
"""Bytes that no place in a log is longer than, in decimal digits."""

_PUNCH, _KEEP_SIZE = 2, 1
"""FALLOC_FL_PUNCH_HOLE and FALLOC_FL_KEEP_SIZE of fallocate(2); linux/falloc.h."""


def limit(environment: Mapping[str, str]) -> int | None:
    """The bytes that are kept of a log, None for all; UsageError where the variable makes none."""
    text = environment.get(LIMIT_VARIABLE, "")
    if not text:
        return LIMIT
    try:
        found = int(Quantity.parse(text).amount)
    except ValueError as error:
        raise UsageError(
            f"{LIMIT_VARIABLE}: {error}", hint="say how much of a log to keep, such as 64Mi"
        ) from None
    return found or None


def stamp(moment: float) -> tuple[int, bytes]:
    """A time in Unix nanoseconds and in RFC 3339, both cut to milliseconds."""
    milliseconds = int(moment * 1000)
    seconds, rest = divmod(milliseconds, 1000)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return milliseconds * 1_000_000, f"{text}.{rest:03d}Z".encode()


def pods(folder: Path) -> tuple[Path, ...]:
    """Where the logs of the pods of a job are, by the name of the pod."""
    try:
        return tuple(sorted((folder / "pods").iterdir()))
    except OSError:
        return ()


def begin_run(place: Path) -> None:
    """Begin the next run of a pod, where there was one: what comes is no more of the last."""
    try:
        size = (place / "log").stat().st_size
    except FileNotFoundError:
        return
    with (place / "runs").open("ab") as runs:
        runs.write(RUNS.pack(size))


class Keeper:
    """What a supervisor does for one log: it notes when it grew, and keeps it within its limit."""

    def __init__(self, place: Path, most: int | None) -> None:
        self._log, self._times = str(place / "log"), str(place / "times")
        self._note = str(place / "kept-from")
        self._most = most
        self._kept = _number(self._note)
        self._count = self._first = 0
        self._size = self._noted = 0
        """How long the log was at the last look, and by the last entry of its times."""
        with contextlib.suppress(OSError):
            self._resume()

    def _resume(self) -> None:
        """Go on where an earlier supervisor of the job ended."""
        with open(self._times, "rb") as times:  # noqa: PTH123  paths are texts here: looks are many
            # A full disk may have left half an entry, which the next one is written over.
            self._count = os.fstat(times.fileno()).st_size // TIMES.size
            if self._count:
                times.seek((self._count - 1) * TIMES.size)
                self._size = self._noted = TIMES.unpack(times.read(TIMES.size))[1]
            self._first = _covering(times.fileno(), self._count, self._kept + 1)

    def reserve(self) -> None:
        """Take the room that cutting the log will need, before it can fill the disk."""
        if self._most is not None:
            with contextlib.suppress(OSError):
                _reserve(self._note)

    def look(self) -> bool:
        """Note how long the log is now; False if it did not grow."""
        try:
            size = os.stat(self._log).st_size  # noqa: PTH116  a Path costs more than the call
        except OSError:
            return False
        if size <= self._noted:
            return False
        grew, self._size = size > self._size, size
        try:
            descriptor = os.open(self._times, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                entry = TIMES.pack(time.time(), size)
                os.pwrite(descriptor, entry, self._count * TIMES.size)
            finally:
                os.close(descriptor)
        except OSError:
            # A full disk: the log is kept within its limit all the same, by its size alone.
            return grew
        self._count += 1
        self._noted = size
        return True

    def bound(self) -> str | None:
        """Free the oldest part of a log that is too long; a sentence where that cannot be done."""
        if self._most is None:
            return None
        entries = self._most // _TIMES_SHARE // TIMES.size
        long = self._size - self._kept > self._most
        if not long and self._count - self._first <= max(entries, 1):
            return None
        try:
            self._cut(self._most, entries)
        except OSError as error:
            if error.errno not in {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}:
                return None
            self._most = None
            return (
                "its log grows on: the file system cannot free a part of a file"
                f" ({os.strerror(error.errno)})"
            )
        return None

    def _cut(self, most: int, entries: int) -> None:
        """Keep about three quarters of what may be kept, so that this is not to be done at once."""
        with contextlib.ExitStack() as opened:
            log = opened.enter_context(open(self._log, "r+b")).fileno()  # noqa: PTH123
            times = -1
            if self._count:
                times = opened.enter_context(open(self._times, "r+b")).fileno()  # noqa: PTH123
            least = self._size - most * 3 // 4
            if self._count > entries:
                oldest = max(self._first, self._count - 1 - entries * 3 // 4)
                least = max(least, TIMES.unpack(os.pread(times, 16, oldest * 16))[1])
            begin = _next_line(log, least, self._size)
            _replace(self._note, str(begin))
            first = _covering(times, self._count, begin + 1)
            try:
                _punch(log, self._kept, begin)
                _punch(times, self._first * TIMES.size, first * TIMES.size)
            except OSError:
                if self._kept:
                    _replace(self._note, str(self._kept))
                else:
                    os.unlink(self._note)  # noqa: PTH108  a text, as all paths here
                raise
        self.reserve()
        self._kept, self._first = begin, first


class LogFile:
    """One pod's log, to be read. A log that is not there is empty, and may come to be.

    With `folder` (a file descriptor) the place is relative to it.
    """

    def __init__(self, place: str, folder: int | None = None) -> None:
        self._place = place
        self._folder = folder
        self._files: dict[str, int] = {}

    def close(self) -> None:
        """Let go of the files."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    @property
    def is_open(self) -> bool:
        """Whether there was anything to read."""
        return "times" in self._files

    def size(self) -> int:
        """How many bytes were ever written."""
        return self._length("log")

    def written(self) -> float:
        """When it was last written to; Unix seconds."""
        descriptor = self._opened("log")
        return time.time() if descriptor is None else os.fstat(descriptor).st_mtime

    def read(self, at: int, most: int) -> bytes:
        """Bytes from a place on, none at the end."""
        descriptor = self._opened("log")
        return b"" if descriptor is None else os.pread(descriptor, most, at)

    def kept_from(self) -> int:
        """The byte at which the log begins by now."""
        return _number(f"{self._place}/kept-from", self._folder)

    def runs(self) -> tuple[int, ...]:
        """The byte at which each run begins, that of the first being 0."""
        data = _content(f"{self._place}/runs", self._folder)
        whole = len(data) - len(data) % RUNS.size
        size = self.size()
        return (0, *(min(at, size) for (at,) in RUNS.iter_unpack(data[:whole])))

    def entries(self, first: int, most: int) -> list[tuple[float, int]]:
        """Some of the times, from one on: Unix seconds, and the bytes written by then."""
        descriptor = self._opened("times")
        # Both are read on when the job is deleted, if they are open by then.
        if descriptor is None or self._opened("log") is None or self._count() <= first:
            return []
        data = os.pread(descriptor, most * TIMES.size, first * TIMES.size)
        found = TIMES.iter_unpack(data[: len(data) - len(data) % TIMES.size])
        length = self.size()
        # A log is as long as its times say, or longer; times that no clock can show are no times.
        return [(when if is_moment(when) else 0.0, min(size, length)) for when, size in found]

    def covering(self, byte: int) -> int:
        """The first of the times by which so many bytes were written."""
        descriptor = self._opened("times")
        return 0 if descriptor is None else _covering(descriptor, self._count(), byte)

    def run(self, *, previous: bool) -> tuple[int, int, int | None]:
        """The run that is read: its number, its first byte and the byte after its last.

        None for the end of one that may still be written to. NotFound if there is none before.
        """
        runs = self.runs()
        number = len(runs) - 1
        if not previous:
            return number, max(runs[number], self.kept_from()), None
        name = self._place.rpartition("/")[2]
        if number == 0:
            raise NotFound(
                f"there is no log of an earlier run of {name}",
                why="it was started only once",
                hint="leave out --previous",
            )
        end = runs[number]
        begin = max(runs[number - 1], self.kept_from())
        if begin > end:
            raise NotFound(
                f"the log of the earlier run of {name} is gone",
                why="only the newest part of a log is kept",
                hint=f"{LIMIT_VARIABLE} says how much, when a job is submitted",
            )
        return number - 1, begin, end

    def start(self, options: LogOptions, begin: int, end: int) -> int:
        """The byte between two at which to begin to read; always the beginning of a line."""
        starts = [begin]
        if options.tail is not None and options.tail >= 0:
            starts.append(self._tail(options.tail, begin, end))
        if options.since is not None:
            starts.append(self._since(time.time() - options.since, begin, end))
        if options.since_time is not None:
            starts.append(self._since(_moment(options.since_time), begin, end))
        return max(starts)

    def _tail(self, lines: int, begin: int, end: int) -> int:
        """Where the last `lines` lines begin."""
        at, found, last = end, 0, True
        if lines == 0:
            return end
        while at > begin:
            step = min(_CHUNK, at - begin)
            at -= step
            data = self.read(at, step)
            upto = len(data)
            if last and data.endswith(b"\n"):
                upto -= 1
            last = False
            while (upto := data.rfind(b"\n", 0, upto)) >= 0:
                found += 1
                if found == lines:
                    return at + upto + 1
        return begin

    def _since(self, when: float, begin: int, end: int) -> int:
        """Where the first line that was written after a time begins."""
        at = min(self._before(when), end)
        # A line begun before and ended after was written after.
        while at > begin:
            step = min(_CHUNK, at - begin)
            newline = self.read(at - step, step).rfind(b"\n")
            if newline >= 0:
                return at - step + newline + 1
            at -= step
        return begin

    def _before(self, when: float) -> int:
        """How many bytes there were at a time; clocks may have been set back meanwhile."""
        first = self._count()
        while first > 0:
            step = min(4096, first)
            first -= step
            for moment, size in reversed(self.entries(first, step)):
                if moment < when:
                    return size
        return 0

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        """What is between two bytes; a line of our own says how much of it was given up."""
        at, last = start, b"\n"
        while at < end and (data := self.read(at, min(_CHUNK, end - at))):
            kept = self.kept_from()
            if kept > at:
                # It was given up before it was read, or while it was.
                yield _remark(kept - at, after=last)
                at, last = kept, b"\n"
                continue
            at, last = at + len(data), data
            yield data

    def stamped(self, start: int, end: int) -> Iterator[bytes]:
        """The lines between two bytes, each behind the time by which it was there."""
        index = self.covering(start + 1)
        upto, prefix, rest, at = 0, b"", b"", start
        later: list[tuple[float, int]] = []
        while at < end:
            while upto <= at:
                if not later:
                    later = self.entries(index, 4096)[::-1] or [(self.written(), end)]
                    index += len(later)
                moment, upto = later.pop()
                prefix = stamp(moment)[1] + b" "
            data = self.read(at, min(_CHUNK, upto - at, end - at))
            kept = self.kept_from()
            if kept > at:
                at, rest = kept, rest + _remark(kept - at, after=rest or b"\n")
                continue
            if not data:
                break
            at += len(data)
            *lines, rest = (rest + data).split(b"\n")
            yield b"".join(prefix + line + b"\n" for line in lines)
        if rest:
            yield prefix + rest

    def _count(self) -> int:
        return self._length("times") // TIMES.size

    def _length(self, name: str) -> int:
        descriptor = self._opened(name)
        return 0 if descriptor is None else os.fstat(descriptor).st_size

    def _opened(self, name: str) -> int | None:
        """One of the files, which stays open: it can be read on when its name is gone."""
        found = self._files.get(name)
        if found is None:
            try:
                flags = os.O_RDONLY | os.O_CLOEXEC
                found = os.open(f"{self._place}/{name}", flags, dir_fd=self._folder)
            except (FileNotFoundError, NotADirectoryError):
                # The pod never started, or its job was deleted just now.
                return None
            self._files[name] = found
        return found


def given_up(count: int) -> ArenaError:
    """What is said of the oldest part of a log that is no more; `count` bytes of it."""
    return ArenaError(
        f"{count:,} bytes of this log were given up",
        why="only the newest part of a log is kept",
        hint=f"{LIMIT_VARIABLE} says how much, when a job is submitted",
    )


def _remark(count: int, *, after: bytes) -> bytes:
    line_feed = b"" if after.endswith(b"\n") else b"\n"
    return line_feed + f"arena-topo: {given_up(count).message}\n".encode()


def _moment(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise UsageError(f"{text!r} is not a time such as 2026-01-31T12:00:00Z") from None


def _covering(times: int, count: int, byte: int) -> int:
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        data = os.pread(times, TIMES.size, middle * TIMES.size)
        # Entries of the part that was given up are holes, so zeros: the least there is.
        if len(data) == TIMES.size and TIMES.unpack(data)[1] < byte:
            low = middle + 1
        else:
            high = middle
    return low


def _next_line(log: int, least: int, size: int) -> int:
    """Where the first line from a byte on begins; at that byte where none begins any more."""
    at = least - 1
    while at < size and (data := os.pread(log, _CHUNK, at)):
        newline = data.find(b"\n")
        if newline >= 0:
            return at + newline + 1
        at += len(data)
    return least


def _punch(descriptor: int, begin: int, end: int) -> None:
    """Free the whole blocks of a part of a file, which then reads as zeros."""
    import ctypes  # noqa: PLC0415  slow to import, and few logs ever grow so long

    first, last = begin // _BLOCK * _BLOCK, end // _BLOCK * _BLOCK
    if last <= first:
        return
    call = ctypes.CDLL(None, use_errno=True).fallocate
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if call(descriptor, _PUNCH | _KEEP_SIZE, first, last - first) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _number(path: str, folder: int | None = None) -> int:
    try:
        found = int(_content(path, folder) or b"0")
    except ValueError:
        return 0
    return found if 0 <= found <= sys.maxsize else 0


def _content(path: str, folder: int | None) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    try:
        return os.read(descriptor, 1 << 20)
    finally:
        os.close(descriptor)


def _reserve(path: str) -> None:
    """Take the room that `_replace` will need, for when the disk is full."""
    with open(f"{path}.new", "ab") as file:  # noqa: PTH123  a text, as all paths here
        if file.tell() == 0:
            file.write(b" " * _RESERVED)


def _replace(path: str, text: str) -> None:
    temporary = f"{path}.new"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Into the room that is reserved: a file that is cut off first would need new room.
        os.pwrite(descriptor, text.encode("ascii"), 0)
        os.ftruncate(descriptor, len(text))
    finally:
        os.close(descriptor)
    os.replace(temporary, path)  # noqa: PTH105
