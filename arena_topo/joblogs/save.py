"""Logs that are read, saved to a new folder: one file for each, whole, byte for byte.

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
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from urllib.parse import quote

from arena_topo.engines.lines import Line, Source
from arena_topo.errors import ArenaError, UsageError

LONGEST_NAME = 200
"""Bytes of a name that stand in a file name, of the 255 that file systems take."""

_END, _THOUSAND = ".log", 1000


@dataclass(slots=True)
class _File:
    """One file; `fed` says whether its last line ends with a line feed."""

    path: Path
    begun: bool = False
    fed: bool = True
    given_up: bool = False


class Saving:
    """What saves the lines of logs to a folder.

    UsageError, before anything is read, where there is something in the folder already, or it
    cannot be made. `container` is the one that was asked for. With `timestamps` each line starts
    with its time. Later on the disk raises nothing: `tell` hears what cannot be saved first, and
    `error` has it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        container: str | None = None,
        timestamps: bool = False,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._folder, self._container = folder, container
        self._timestamps, self._tell = timestamps, tell
        self._files: dict[Source, _File] = {}
        self._firsts: dict[str, Source] = {}
        self._lines = self._size = 0
        self.error: ArenaError | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            taken = next(folder.iterdir(), None)
        except OSError as error:
            raise UsageError(
                f"the logs cannot be saved in {folder}", why=error.strerror or str(error)
            ) from error
        if taken is not None:
            raise UsageError(
                f"{folder} is not empty",
                why=f"{taken.name} is there, and no file is written over",
                hint="give --save a new folder",
            )

    def write(self, lines: Sequence[Line]) -> None:
        """Save lines that `Following.read` gave, in its order: one append for each log."""
        rows: dict[Source, list[bytes]] = {}
        counts: Counter[Source] = Counter()
        for source, some in groupby(lines, key=attrgetter("source")):
            file = self._files.get(source) or self._begin(source)
            kept = rows.setdefault(source, [])
            for line in some:
                row = line.text + b"\n" if line.fed else line.text
                if self._timestamps:
                    row = b"%b %b" % (line.stamp, row)
                kept.append(row if file.fed else b"\n" + row)
                file.fed = line.fed
                counts[source] += 1
        for source, kept in rows.items():
            if self._append(self._files[source], b"".join(kept)):
                self._lines += counts[source]

    @property
    def told(self) -> str:
        """What was saved, in a sentence."""
        files = sum(one.begun for one in self._files.values())
        return f"saved in {self._folder}: logs: {files}, lines: {self._lines}, {sized(self._size)}"

    def _append(self, file: _File, data: bytes) -> bool:
        """Whether all of it could be written."""
        if file.given_up:
            return False
        try:
            # Opened anew each time, so that hundreds of logs need no hundreds of open files.
            create = 0 if file.begun else os.O_CREAT | os.O_EXCL
            descriptor = os.open(
                file.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | create, 0o666
            )
            file.begun = True
            try:
                view = memoryview(data)
                while view:
                    written = os.write(descriptor, view)
                    self._size += written
                    view = view[written:]
            finally:
                os.close(descriptor)
        except OSError as error:
            file.given_up = True
            if self.error is None:
                self.error = ArenaError(
                    f"not all of the log is saved in {file.path}",
                    why=error.strerror or str(error),
                    hint="make room there, or give --save another folder",
                )
                self._tell(f"{self.error.message}: {self.error.why}")
        return not file.given_up

    def _begin(self, source: Source) -> _File:
        first = self._firsts.setdefault(source.pod, source)
        words = [source.uid] if source.uid != first.uid else []
        if source.container != first.container and not self._container:
            words.append(source.container)
        words += [str(source.run)] if source.run else []
        path = self._folder / self._name(source.pod, *words)
        if any(one.path == path for one in self._files.values()):
            path = self._folder / self._name(source.pod, *words, source.uid or "again")
        return self._files.setdefault(source, _File(path))

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


def sized(size: int) -> str:
    """Bytes as people write them: `1.5 kB`."""
    if size < _THOUSAND:
        return f"{size} byte{'s'[: size != 1]}"
    number, units = size / _THOUSAND, ["kB", "MB", "GB"]
    while round(number, 1) >= _THOUSAND and len(units) > 1:
        number, units = number / _THOUSAND, units[1:]
    return f"{number:.1f} {units[0]}"
