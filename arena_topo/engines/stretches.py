"""The files that lines of a log are kept in: stretches without a gap, each in parts.

    LOG.FIRST-WRITER.PART.log       of the log LOG, of a stretch that begins at FIRST (nanoseconds)

A part starts with a line of its own, `# FORMAT WHOLE TOP SINCE`: whether the stretch begins where
the log does, and what `Mark` says of the parts before it. Each line that follows is `AT STAMP FLAG
TEXT`: when it was written (nanoseconds), the same as the engine says it, F or P for a line that
ends here or goes on in the next, E for one that ends with the log and has no line feed, and its
bytes. Whatever comes after the last line feed was cut off by a crash, and is none.

Whoever reads a log twice reads the same lines with the same times, so times tell which are there:
a line is known up to the latest time of a stretch, and of those from then on so many as there are.
That needs no line of a log to be in the order of its times.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from arena_topo.engines.lines import Line, Source

FORMAT = 1
"""The version of the files."""

PART = 1 << 20
"""Bytes of a part. The oldest part goes when there is no room, and the last is read to go on."""

CHUNK = 1 << 16
"""Bytes that are read or written at once; a log has no file open in between."""

_DIGITS = 19
"""Digits of a time or a count that is believed: nanoseconds until the year 2286."""

ALIKE = 1000
"""Lines of one moment that are compared where two stretches meet in the middle of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """How far a log was read: its latest time, and how many lines there are from that one on."""

    top: int = 0
    since: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Lines of a log that follow each other, in the parts that are there, oldest first."""

    folder: Path
    log: str
    name: str
    parts: tuple[int, ...]

    def path(self, part: int) -> Path:
        """The file of a part."""
        return self.folder / f"{self.log}.{self.name}.{part:06d}.log"

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files of all parts."""
        return tuple(self.path(part) for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """From where to where a stretch goes.

    `texts` are the first lines of its first moment, `group` those since its latest moment, of both
    at most `ALIKE`. `whole` says that the log began so.
    """

    stretch: Stretch
    first: int
    texts: tuple[bytes, ...]
    whole: bool
    mark: Mark
    group: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Lines of a log that may be missing: after and before which moment (nanoseconds).

    `after` is 0 where it is its beginning that may be missing.
    """

    source: Source
    after: int
    before: int


class Known:
    """Which lines of a log that is read again are known: all up to a mark."""

    def __init__(self, mark: Mark) -> None:
        self._top = mark.top
        self._left = mark.since
        self._reached = False

    def has(self, at: int) -> bool:
        """Whether the next line is known; once one is not, none is."""
        if not self._reached:
            if at < self._top:
                return True
            self._reached = True
        if self._left <= 0 or at > self._top:
            self._left = 0
            self._top = -1
            return False
        self._left -= 1
        return True


def found(folder: Path) -> dict[str, list[Stretch]]:
    """All stretches in a folder by the name of their log; OSError where it cannot be read."""
    parts: dict[tuple[str, str], list[int]] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            words = entry.name.split(".")
            if len(words) == len(("log", "name", "part", "log")) and words[3] == "log":
                with contextlib.suppress(ValueError):
                    parts.setdefault((words[0], words[1]), []).append(int(words[2]))
    logs: dict[str, list[Stretch]] = {}
    for (log, name), numbers in sorted(parts.items()):
        one = Stretch(folder=folder, log=log, name=name, parts=tuple(sorted(numbers)))
        logs.setdefault(log, []).append(one)
    return logs


def lines(stretch: Stretch, source: Source, *, backwards: int | None = None) -> Iterator[Line]:
    """The lines of a stretch; with `backwards` at least so many of its last ones.

    A part that somebody has removed meanwhile has none.
    """
    parts = stretch.parts
    if backwards is not None:
        counted = 0
        for index in range(len(parts) - 1, -1, -1):
            counted += sum(line.ends for line in _lines(stretch.path(parts[index]), source))
            if counted > backwards:
                parts = parts[index:]
                break
    for part in parts:
        yield from _lines(stretch.path(part), source)


def _lines(path: Path, source: Source) -> Iterator[Line]:
    for rows in _rows(path):
        for row in rows:
            line = _line(row, source)
            if line is not None:
                yield line


def last(stretch: Stretch) -> int:
    """When the last line of a stretch was written; 0 for none."""
    for path in reversed(stretch.paths):
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            # The longest piece of a line fits into one chunk, and its head into another.
            file.seek(max(0, size - 3 * CHUNK))
            for row in reversed(file.read().rpartition(b"\n")[0].split(b"\n")):
                at = _at(row)
                if at is not None:
                    return at
    return 0


def first(stretch: Stretch) -> tuple[int, bool]:
    """When the first line of a stretch was written, 0 for none; whether its log began so."""
    for number, path in zip(stretch.parts, stretch.paths, strict=True):
        whole, mark = _head(path)
        for rows in _rows(path):
            for row in rows:
                at = _at(row)
                if at is not None:
                    return max(mark.top, at), whole and number == 0
    return 0, False


def span(stretch: Stretch) -> Span | None:
    """From where to where a stretch goes; None for one without lines."""
    begins, whole = first(stretch)
    texts: list[bytes] = []
    seen = 0
    for line in lines(stretch, Source(pod="")):
        seen = max(seen, line.at)
        if seen > begins or len(texts) == ALIKE:
            break
        texts.append(line.text)
    if not texts:
        return None
    mark, group = _end(stretch)
    return Span(
        stretch=stretch,
        first=begins,
        texts=tuple(texts),
        whole=whole,
        mark=mark,
        group=group,
    )


def _end(stretch: Stretch) -> tuple[Mark, tuple[bytes, ...]]:
    """How far a stretch goes; only its last part with lines is read, and what it says of others."""
    for path in reversed(stretch.paths):
        _, mark = _head(path)
        top, since, any_there = mark.top, mark.since, False
        group: deque[bytes] = deque(maxlen=ALIKE)
        for line in _lines(path, Source(pod="")):
            any_there = True
            if line.at > top:
                top, since = line.at, 0
                group.clear()
            since += 1
            group.append(line.text)
        if any_there or mark.since:
            return Mark(top=top, since=since), tuple(group)
    return Mark(), ()


def spans(stretches: Iterable[Stretch]) -> list[Span]:
    """Those with lines, earliest first; of two that begin at the same moment the one with more."""
    known = [one for one in map(span, stretches) if one is not None]
    return sorted(known, key=lambda one: (one.first, not one.whole, -len(one.texts)))


def joined(
    stretches: Sequence[Stretch], source: Source, *, backwards: int | None = None
) -> Iterator[Line]:
    """The lines of all stretches of a log, each once, in the order of the log.

    With `backwards` at least so many of the last ones.
    """
    if len(stretches) == 1:
        yield from lines(stretches[0], source, backwards=backwards)
        return
    reached: tuple[Mark, tuple[bytes, ...]] | None = None
    for one in spans(stretches):
        known, reached = _meeting(reached, one)
        if known is None:
            yield from lines(one.stretch, source)
            continue
        for line in lines(one.stretch, source):
            if not known.has(line.at):
                yield line


def gaps(stretches: Sequence[Stretch], source: Source) -> list[Gap]:
    """Where lines may be missing between the stretches of a log, and before the first."""
    lacking = []
    reached: tuple[Mark, tuple[bytes, ...]] | None = None
    ordered = spans(stretches) if len(stretches) > 1 else stretches
    for one in ordered:
        begins, whole = (one.first, one.whole) if isinstance(one, Span) else first(one)
        if reached is None and not whole and begins:
            lacking.append(Gap(source=source, after=0, before=begins))
        if isinstance(one, Span):
            if reached is not None and begins > reached[0].top:
                lacking.append(Gap(source=source, after=reached[0].top, before=begins))
            _, reached = _meeting(reached, one)
    return lacking


def _meeting(
    reached: tuple[Mark, tuple[bytes, ...]] | None, one: Span
) -> tuple[Known | None, tuple[Mark, tuple[bytes, ...]]]:
    """What of a stretch is known from those before it (None: nothing), and how far all go now."""
    if reached is None or one.first > reached[0].top:
        return None, (one.mark, one.group)
    mark, group = reached
    if one.first < mark.top:
        known = mark
        kept = 0
    else:
        # It begins in the moment that the others end with: there, equal lines are the same.
        for offset in range(len(group) + 1):
            kept = min(len(group) - offset, len(one.texts))
            if group[offset : offset + kept] == one.texts[:kept]:
                break
        known = Mark(top=mark.top, since=kept)
    if one.mark.top > mark.top:
        return Known(known), (one.mark, one.group)
    if one.mark.top < mark.top:
        return Known(known), reached
    if one.first < mark.top:
        further = one.mark.since > mark.since
        return Known(known), ((one.mark, one.group) if further else reached)
    # Those to come begin no earlier, so that only the lines of this moment count for them.
    return Known(known), (mark, (*group, *one.group[kept:])[-ALIKE:])


class Pen:
    """What writes down the lines of one log: those that are new, at the end of a stretch.

    `stretches` are those of earlier times, which may be gone on with. `part` and `most` are the
    bytes of one part and of the whole log, about. Every method raises OSError where the disk does
    not take it.
    """

    def __init__(
        self,
        folder: Path,
        log: str,
        stretches: Sequence[Stretch],
        *,
        part: int = PART,
        most: int = 1 << 62,
    ) -> None:
        self._folder, self._log, self._limit, self._most = folder, log, part, most
        self._earlier = list(stretches)
        self._old = deque(_sized(stretches))
        self._own: deque[tuple[Path, int]] = deque()
        self.size = sum(size for _, size in self._old)
        self._stretch: Stretch | None = None
        self._known: Known | None = None
        self._whole = False
        self._rows: list[bytes] = []
        self._waiting = 0
        # How far the lines go that were taken; numbers, for speed.
        self._top = self._since = 0
        self._written = Mark()
        self._room = 0

    def put(self, batch: Sequence[Line], *, whole: bool) -> int:
        """Take lines to write; how many bytes were written, since some wait for others.

        `whole` says that the very first of them is the first of the log.
        """
        if self._stretch is None:
            self._begin(batch[0], whole=whole)
        top, since, rows, waiting = self._top, self._since, self._rows, 0
        written = 0
        for line in batch:
            at = line.at
            if self._known is not None:
                if self._known.has(at):
                    continue
                self._known = None
            if at > top:
                top = at
                since = 1
            else:
                since += 1
            flag = (b"F " if line.fed else b"E ") if line.ends else b"P "
            row = b"%d %b %b%b\n" % (at, line.stamp, flag, line.text)
            waiting += len(row)
            rows.append(row)
            if waiting > CHUNK:
                self._top, self._since = top, since
                written += self.flush()
                rows, waiting = self._rows, 0
        self._top, self._since = top, since
        self._waiting += waiting
        return written + (self.flush() if self._waiting > CHUNK else 0)

    def flush(self) -> int:
        """Write what waits, and drop what is too much; how many bytes were written."""
        if not self._rows:
            return 0
        data = b"".join(self._rows)
        if data.count(b"\n") != len(self._rows):
            data = b"".join(row[:-1].replace(b"\n", b" ") + b"\n" for row in self._rows)
        self._rows, self._waiting = [], 0
        if len(data) > self._room:
            self._turn()
        path, size = self._own.pop()
        _append(path, data)
        self._own.append((path, size + len(data)))
        self._room -= len(data)
        self.size += len(data)
        self._written = Mark(top=self._top, since=self._since)
        while self.size > self._most and self.drop():
            pass
        return len(data)

    def drop(self) -> int:
        """Remove the oldest part, if there is another; how many bytes that were."""
        files = self._old
        if len(self._own) > 1 and (not files or self._own[0][0].name < files[0][0].name):
            files = self._own
        if not files:
            return 0
        path, size = files.popleft()
        path.unlink(missing_ok=True)
        self.size -= size
        return size

    def _begin(self, line: Line, *, whole: bool) -> None:
        for one in reversed(spans(self._earlier)):
            within = one.first < line.at < one.mark.top
            first = line.at == one.first and line.text == one.texts[0]
            final = line.at == one.mark.top and line.text == one.group[0]
            # What there was no room for is not written again.
            dropped = line.at <= one.first and one.stretch.parts[0] > 0
            if within or first or dropped or (final and len(one.group) == one.mark.since):
                self._go_on(one)
                return
        name = f"{line.at:020d}-{secrets.token_hex(4)}"
        self._stretch = Stretch(folder=self._folder, log=self._log, name=name, parts=())
        self._whole = whole

    def _go_on(self, one: Span) -> None:
        self._known = Known(one.mark)
        self._top, self._since = one.mark.top, one.mark.since
        self._written = one.mark
        self._stretch = one.stretch
        self._whole = one.whole
        path = one.stretch.paths[-1]
        with path.open("rb+") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size - 3 * CHUNK)
            file.seek(start)
            cut = start + file.read().rfind(b"\n") + 1
            file.truncate(cut)
        # Where a crash has left no whole line, not even the first, another part is begun.
        self._room = self._limit - cut if cut else 0
        mine = set(one.stretch.paths)
        self._own = deque(known for known in self._old if known[0] in mine)
        self._old = deque(known for known in self._old if known[0] not in mine)
        self._own[-1] = (path, cut)

    def _turn(self) -> None:
        """Begin another part."""
        assert self._stretch is not None
        parts = self._stretch.parts
        self._stretch = replace(self._stretch, parts=(*parts, parts[-1] + 1 if parts else 0))
        path = self._stretch.paths[-1]
        mark = self._written
        head = b"# %d %d %d %d\n" % (FORMAT, self._whole, mark.top, mark.since)
        _append(path, head, os.O_CREAT | os.O_EXCL)
        self._own.append((path, len(head)))
        self.size += len(head)
        self._room = self._limit - len(head)


def _sized(stretches: Iterable[Stretch]) -> Iterator[tuple[Path, int]]:
    for one in stretches:
        for path in one.paths:
            with contextlib.suppress(FileNotFoundError):
                yield path, path.stat().st_size


def covered(stretches: Sequence[Stretch]) -> list[Stretch]:
    """The stretches all of whose lines others have too."""
    needless = []
    furthest: Span | None = None
    for one in spans(stretches) if len(stretches) > 1 else ():
        if furthest is None or one.mark.top > furthest.mark.top:
            furthest = one
        elif one.mark.top < furthest.mark.top or (
            one.first < one.mark.top and one.mark.since <= furthest.mark.since
        ):
            needless.append(one.stretch)
        elif one.mark.since > furthest.mark.since:
            furthest = one
    return needless


def _append(path: Path, data: bytes, flags: int = 0) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | flags, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
    finally:
        os.close(descriptor)


def _chunks(path: Path) -> Iterator[bytes]:
    """The bytes of a file, which is not kept open between two chunks."""
    offset = 0
    while True:
        try:
            with path.open("rb", buffering=0) as file:
                file.seek(offset)
                chunk = file.read(CHUNK)
        except FileNotFoundError:
            return
        if not chunk:
            return
        offset += len(chunk)
        yield chunk


def _rows(path: Path) -> Iterator[list[bytes]]:
    """The lines of a file that have their line feed, many at a time."""
    rest: list[bytes] = []
    for chunk in _chunks(path):
        rows = chunk.split(b"\n")
        if len(rows) == 1:
            rest.append(chunk)
            continue
        rows[0] = b"".join(rest) + rows[0]
        rest = [rows.pop()]
        yield rows


def _head(path: Path) -> tuple[bool, Mark]:
    for chunk in _chunks(path):
        words = chunk.split(b"\n", 1)[0].split(b" ")
        try:
            _, _, whole, top, since = words
            if max(len(top), len(since)) > _DIGITS:
                break
            return bool(int(whole)), Mark(top=int(top), since=int(since))
        except ValueError:
            break
    return False, Mark()


def _at(row: bytes) -> int | None:
    """When the line of a row was written; None for a row that says no time."""
    head = row.split(b" ", 1)[0]
    return int(head) if head.isdigit() and len(head) <= _DIGITS else None


def _line(row: bytes, source: Source) -> Line | None:
    """A line as it was; None for a row that is none."""
    try:
        at, stamp, flag, text = row.split(b" ", 3)
        if len(at) > _DIGITS:
            return None
        ends, fed = flag != b"P", flag != b"E"
        return Line(source=source, at=int(at), stamp=stamp, text=text, ends=ends, fed=fed)
    except ValueError:
        return None
