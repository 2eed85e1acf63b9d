"""Log lines: the values and the protocol that engines share, and the parser of `TIME text`."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from arena_topo.errors import TimedOut, UsageError

if TYPE_CHECKING:
    from types import TracebackType

    from arena_topo.errors import ArenaError

MAX_LINE_BYTES = 262_144
"""Bytes of a line; a longer line is truncated, with a mark at its end."""

_MARK = " ... ({:,} more bytes of this line are left out)"
_MARKED = MAX_LINE_BYTES - 80
"""Bytes of a truncated line before its mark: it is not truncated again when it is read back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """The part of a log: `tail` lines (None: all), `since` seconds ago or `since_time` (RFC 3339).

    `previous`: the run of the container before this one. `follow`: the log is read until its pod
    ends. `timestamps`: lines are written with their times. `unfinished`: the beginning of a line
    that is long, or has no end yet, may come as a line (`Line.fed` is False), its rest as another.
    """

    follow: bool = False
    tail: int | None = None
    since: int | None = None
    since_time: str | None = None
    timestamps: bool = False
    container: str | None = None
    previous: bool = False
    unfinished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The source of a log: a run of a container of a pod.

    `run` is the number of restarts before it. `worker` is the worker's index, None for the launcher
    (`chief`) and for other pods.
    """

    pod: str
    uid: str = ""
    container: str = ""
    run: int = 0
    chief: bool = False
    worker: int | None = None


class Line(NamedTuple):
    """A line of a log without its line feed, as the program wrote it.

    `at` is the time of its node's clock in Unix nanoseconds, 0 if unknown; `stamp` is the engine's
    text of it (RFC 3339, any zone). Lines of a source come in their order, each once. `fed` is
    False if no line feed follows (yet). A named tuple, because there may be 100,000 a second: it is
    made in a quarter of a frozen dataclass's time.
    """

    source: Source
    at: int
    stamp: bytes
    text: bytes
    fed: bool = True


class LogTurn(StrEnum):
    """An event of a followed log."""

    JOINED = "joined"
    """The log of a container is open."""
    RESTARTED = "restarted"
    """Its container was restarted: the lines that follow are of the next run."""
    CUT = "cut"
    """Its oldest lines were removed before they were read; `error` says how many bytes."""
    BROKEN = "broken"
    """The connection is lost, or could not be made, and is tried again; `error` says why."""
    RESUMED = "resumed"
    """The connection is restored."""
    ENDED = "ended"
    """The pod is over and its log was read to the end; it may have had none."""
    GONE = "gone"
    """The pod was deleted; `error` says why lines may be missing."""
    REFUSED = "refused"
    """The log can never be read; the other logs can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """An event of a followed log; `error` is the cause of a failure."""

    turn: LogTurn
    source: Source
    error: ArenaError | None = None


class Following(Protocol):
    """The logs of the pods of a job, read at once in bounded memory.

    New pods and restarted containers join. A broken stream is resumed after its last line, without
    a lost or doubled line. A slow reader slows the streams down.
    """

    @property
    def done(self) -> bool:
        """Whether all known pods are over and their logs read; new pods may come."""

    def read(self, wait: float) -> Sequence[Line | Notice]:
        """The lines and events that have come, at once or within `wait` seconds; maybe none.

        ArenaError if no log can be read at all: no permission, no server.
        """

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close all streams."""


SourceFilter = Callable[[Source], bool]
"""The predicate of the wanted logs; called with the present run and container."""


def read_to_end(following: Following, *, within: float = math.inf) -> Iterator[Line]:
    """The lines of logs that are not followed; ArenaError of the first log that cannot be read.

    TimedOut if their ends have not come `within` so many seconds.
    """
    end = time.monotonic() + within
    with following:
        done = False
        while not done:
            if time.monotonic() > end:
                raise TimedOut(f"the logs were not read within {within:g} s")
            items = following.read(0.1)
            # Before the lines are passed on: a slow consumer must not make it read once more.
            done = following.done
            for item in items:
                if isinstance(item, Line):
                    yield item
                elif item.turn is LogTurn.REFUSED and item.error is not None:
                    raise item.error


_NANO = 1_000_000_000

_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")

_FRACTION, _ZONE = 20, 29
"""Where the nanoseconds begin and end in `2026-11-21T07:00:00.000000000Z`."""

_FILES = 65_536

_HEAD = 64
"""Bytes that no time and its blank are longer than."""


def parse_nanoseconds(stamp: bytes) -> int | None:
    """Unix nanoseconds of an RFC 3339 time with any zone and up to nine digits; None if none."""
    match = _STAMP.fullmatch(stamp)
    if match is None:
        return None
    try:
        seconds = datetime.fromisoformat((match[1] + match[3]).decode()).timestamp()
    except (ValueError, OverflowError):
        return None
    return int(seconds) * _NANO + int((match[2] or b"0").ljust(9, b"0"))


def stamped(at: int) -> bytes:
    """Unix nanoseconds as RFC 3339 in UTC with nine digits, as a kubelet writes them."""
    seconds, rest = divmod(at, _NANO)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    # Years before 1000 have no leading zeros otherwise.
    return f"{text:0>19}.{rest:09d}Z".encode()


def since(options: LogOptions, now: float) -> int | None:
    """The time (Unix nanoseconds) from which lines are wanted, None for all; `now`: Unix seconds.

    UsageError if `since_time` is no time.
    """
    seconds = None if options.since is None else now - options.since
    if options.since_time is not None:
        try:
            seconds = datetime.fromisoformat(options.since_time).timestamp()
        except (ValueError, OverflowError):
            text = f"{options.since_time!r} is not a time such as 2026-01-31T12:00:00Z"
            raise UsageError(text) from None
    return None if seconds is None else max(0, int(seconds * _NANO))


Key = tuple[int, int]
"""The position of a line in its log: the latest time so far, and the number of lines since then.

Every reader gives a line the same position, whether it reads from the beginning or from a time on.
"""

LOG_START: Key = (-1, 0)
"""Before the first line."""


def position_after(key: Key, times: Sequence[int]) -> Key:
    """The position of the last of some lines behind a position; `times` are theirs."""
    latest = max(times, default=-1)
    if latest > key[0]:
        return latest, len(times) - times.index(latest)
    return key[0], key[1] + len(times)


def more_files() -> None:
    """Raise the limit of open files, to 65,536 at most: each log takes a file."""
    import resource  # noqa: PLC0415  only to read logs

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wish = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wish:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wish, hard))


class Parser:
    """Cuts `TIME text` into lines: the one format of kubelets, local jobs and the archive.

    TIME is RFC 3339, as `timestamps=true` gives it. A row without a time has an empty `stamp`, and
    the time of the row before (`at` for the first). A text longer than `MAX_LINE_BYTES` is
    truncated, or with `pieces` comes in lines of which all but the last have no line feed.
    """

    def __init__(self, source: Source, *, at: int = 0, pieces: bool = False) -> None:
        self._source, self._pieces = source, pieces
        self._rest = b""
        self._dropped = 0
        """Bytes behind `_rest` in its line that were left out."""
        self._inside = False
        """Whether the beginning of the line was returned already."""
        self._at, self._stamp = at, b""
        # The second and the zone of the last time, its value, and where the text begins: a fast
        # path for lines of the same second, which takes a quarter of the time.
        self._second = self._zone = b"\n"
        self._base = self._text = 0

    def feed(self, data: bytes) -> list[Line]:
        """The lines that these bytes complete."""
        rest = self._rest
        if len(rest) > MAX_LINE_BYTES + _HEAD and not self._pieces:
            end = data.find(b"\n")
            self._dropped += end if end >= 0 else len(data)
            if end < 0:
                return []
            data = data[end:]
        *whole, self._rest = (rest + data if rest else data).split(b"\n")
        lines: list[Line] = []
        source = self._source
        for row in whole:
            if (
                row.startswith(self._second)
                and row.startswith(self._zone, _ZONE)
                and (digits := row[_FRACTION:_ZONE]).isdigit()
                and len(row) <= MAX_LINE_BYTES
                and not self._inside
            ):
                text = self._text
                self._at = at = self._base + int(digits)
                lines.append(Line(source=source, at=at, stamp=row[: text - 1], text=row[text:]))
            else:
                pieces, last = self._split(row)
                lines += [*pieces, self._slow(last)]
        pieces, self._rest = self._split(self._rest)
        return lines + pieces

    def unfinished(self) -> list[Line]:
        """The beginning of a line that has no end yet; its rest comes as another line."""
        lines = self.finish()
        self._inside = self._inside or bool(lines)
        return lines

    def finish(self) -> list[Line]:
        """The last line of the log, if it has no line feed."""
        if not self._rest:
            return []
        line = self._slow(self._rest)._replace(fed=False)
        self._rest = b""
        return [line]

    def _split(self, row: bytes) -> tuple[list[Line], bytes]:
        """The pieces of a row that is too long, and the rest of it."""
        lines: list[Line] = []
        while self._pieces and len(row) > MAX_LINE_BYTES:
            lines.append(self._slow(row[:MAX_LINE_BYTES])._replace(fed=False))
            self._inside, row = True, row[MAX_LINE_BYTES:]
        return lines, row

    def _slow(self, row: bytes) -> Line:
        """The line of any row."""
        text = row
        if not self._inside:
            stamp, _, text = row.partition(b" ")
            at = parse_nanoseconds(stamp)
            if at is None:
                at, stamp, text = self._at, b"", row
            elif len(stamp) > _ZONE and stamp[_FRACTION - 1 : _FRACTION] == b".":
                self._second, self._zone = stamp[:_FRACTION], stamp[_ZONE:] + b" "
                self._base, self._text = at // _NANO * _NANO, len(stamp) + 1
            self._at, self._stamp = at, stamp
        self._inside = False
        if len(text) > MAX_LINE_BYTES:
            more = len(text) - _MARKED + self._dropped
            text = text[:_MARKED] + _MARK.format(more).encode()
            self._dropped = 0
        return Line(source=self._source, at=self._at, stamp=self._stamp, text=text)
