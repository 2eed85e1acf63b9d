"""Logs that are followed, saved to a folder: one file for each, whole, byte for byte.

    POD.log                 the log of a pod
    POD.CONTAINER.log       of another of its containers
    POD.RUN.log             of its container after so many restarts
    POD.UID.log             of another pod that got the same name

No file that is there is ever written to. What a name has beyond letters, digits, `-`, `_` and `.`
is written as `%2F`.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import quote

from arena_topo.engines.lines import Line, Source
from arena_topo.errors import ArenaError, UsageError

TOGETHER = 1 << 16
"""Bytes of a log that are held back at most, to be written at once."""

SOON = 0.5
"""Seconds after which lines are written at the latest, if `write` is called."""

_END, _THOUSAND = ".log", 1000

LONGEST_NAME = 200
"""Bytes of a name that stand in a file name, of the 255 that file systems take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What was saved: how many files, lines, bytes; `error` is what could not be, if anything."""

    folder: Path
    files: int
    lines: int
    size: int
    error: ArenaError | None = None

    @property
    def told(self) -> str:
        """The same in a sentence."""
        return (
            f"saved in {self.folder}: logs: {self.files}, lines: {self.lines}, {_sized(self.size)}"
        )


@dataclass(slots=True, kw_only=True)
class _File:
    """One file: what waits to be written to it, and whether it may be."""

    path: Path
    rows: list[bytes] = field(default_factory=list)
    waiting: int = 0
    lines: int = 0
    begun: bool = False
    inside: bool = False
    fed: bool = True
    given_up: bool = False


def _sized(size: int) -> str:
    if size < _THOUSAND:
        return f"{size} byte{'s'[: size != 1]}"
    number, units = size / _THOUSAND, ["kB", "MB", "GB"]
    while round(number, 1) >= _THOUSAND and len(units) > 1:
        number, units = number / _THOUSAND, units[1:]
    return f"{number:.1f} {units[0]}"


class Saving:
    """What saves the lines of logs that are followed to a folder.

    `pods` are those whose logs will come for sure: UsageError, before anything is read, where one
    has a file already, of whichever run or container, or the folder cannot be made. `container` is
    the one that was asked for. With `timestamps` each line starts with its time. Later on the disk
    raises nothing: `tell` hears what cannot be saved, and so does `close`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        pods: Iterable[str] = (),
        container: str | None = None,
        timestamps: bool = False,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._folder, self._container = folder, container
        self._timestamps, self._tell = timestamps, tell
        self._files: dict[Source, _File] = {}
        # Objects are found by identity first: to hash a source takes longer than to save a line.
        self._quick: dict[int, tuple[Source, _File]] = {}
        self._names: dict[str, tuple[str, str]] = {}
        self._lines = self._size = 0
        self._flushed = 0.0
        self._error: ArenaError | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            taken = self._taken(pods)
        except OSError as error:
            raise UsageError(
                f"the logs cannot be saved in {folder}", why=error.strerror or str(error)
            ) from error
        if taken:
            raise UsageError(
                f"{folder / taken[0]} is there already",
                why="no file is written over"
                + (f"; {len(taken)} are there" if len(taken) > 1 else ""),
                hint="give --save another folder",
            )

    def write(self, lines: Sequence[Line]) -> None:
        """Save lines that `Following.read` gave, in its order.

        Call it with nothing too, whenever nothing came: that writes what is held back for a moment.
        """
        for line in lines:
            source = line.source
            known = self._quick.get(id(source))
            file = self._file(source) if known is None else known[1]
            row = line.text + b"\n" if line.ends and line.fed else line.text
            if self._timestamps and not file.inside:
                row = b"%b %b" % (line.stamp, row)
            if not file.fed:
                row = b"\n" + row
            file.fed = line.fed
            file.inside = not line.ends
            file.rows.append(row)
            file.waiting += len(row)
            file.lines += line.ends
            if file.waiting > TOGETHER:
                self._save(file)
        now = time.monotonic()
        if now - self._flushed >= SOON:
            self._flushed = now
            self._flush()

    def close(self) -> Saved:
        """Write what is left; what was saved. More than once does no harm."""
        self._flush()
        return Saved(
            folder=self._folder,
            files=sum(one.begun for one in self._files.values()),
            lines=self._lines,
            size=self._size,
            error=self._error,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _flush(self) -> None:
        for one in self._files.values():
            self._save(one)

    def _save(self, file: _File) -> None:
        rows = file.rows
        if not rows:
            return
        lines = file.lines
        file.rows, file.waiting, file.lines = [], 0, 0
        if not file.given_up:
            try:
                # Opened anew each time, so that hundreds of logs need no hundreds of open files.
                flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
                create = 0 if file.begun else os.O_CREAT | os.O_EXCL
                descriptor = os.open(file.path, flags | create, 0o666)
                file.begun = True
                try:
                    self._append(descriptor, b"".join(rows))
                finally:
                    os.close(descriptor)
                self._lines += lines
            except OSError as error:
                self._give_up(file, error)

    def _append(self, descriptor: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.write(descriptor, view)
            self._size += written
            view = view[written:]

    def _give_up(self, file: _File, error: OSError) -> None:
        file.given_up = True
        if self._error is None:
            self._error = ArenaError(
                f"not all of the log is saved in {file.path}",
                why=error.strerror or str(error),
                hint="make room there, or give --save another folder",
            )
            self._tell(f"{self._error.message}: {self._error.why}")

    def _file(self, source: Source) -> _File:
        file = self._files.get(source)
        if file is None:
            file = _File(path=self._path(source))
            self._files[source] = file
        if len(self._quick) > 10_000:  # noqa: PLR2004  an engine that makes a source for each line
            self._quick.clear()
        self._quick[id(source)] = (source, file)
        return file

    def _path(self, source: Source) -> Path:
        uid, container = self._names.setdefault(source.pod, (source.uid, source.container))
        words = []
        if source.uid != uid:
            words.append(source.uid)
        if source.container != container and not self._container:
            words.append(source.container)
        if source.run:
            words.append(str(source.run))
        path = self._folder / self._name(source.pod, *words)
        taken = {one.path for one in self._files.values()}
        if path in taken or os.path.lexists(path):
            path = self._folder / self._name(source.pod, *words, source.uid or "again")
        return path

    def _taken(self, pods: Iterable[str]) -> list[str]:
        """The files that are there of the logs of these pods, or of such whose names are cut."""
        bases = {self._name(one).removesuffix(_END)[:LONGEST_NAME] for one in pods}
        found = []
        for name in (one.name for one in self._folder.iterdir()):
            words = name.removesuffix(_END)[:LONGEST_NAME].split(".")
            begins = (".".join(words[: upto + 1]) for upto in range(len(words)))
            if name.endswith(_END) and not bases.isdisjoint(begins):
                found.append(name)
        return sorted(found)

    def _name(self, pod: str, *words: str) -> str:
        """The name of a file; no two pods have the same, and none is a path."""
        named = [pod, *([self._container] if self._container else []), *words]
        safe = ".".join(quote(word, safe="") for word in named)
        if safe.startswith("."):
            safe = f"%2E{safe[1:]}"
        if len(safe) > LONGEST_NAME:
            mark = hashlib.sha256(safe.encode()).hexdigest()[:16]
            safe = f"{safe[:LONGEST_NAME]}-{mark}"
        return f"{safe}{_END}"
