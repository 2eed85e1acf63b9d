"""`logs --save`: the logs that are read, written to a new folder, a file for each, byte for byte.

    POD.log                 the log of a pod
    POD.CONTAINER.log       the log of another container of the pod
    POD.RUN.log             the log of the container after RUN restarts
    POD.UID.log             the log of another pod of the same name

An existing file is never written to. Other characters of a name than letters, digits, `-`, `_` and
`.` are percent-encoded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from urllib.parse import quote

from arena_topo.engines.lines import Line, Notice, Source
from arena_topo.errors import ArenaError, UsageError


@dataclass(slots=True)
class _File:
    """One file; `fed` says whether its last line ends with a line feed."""

    path: Path
    created: bool = False
    fed: bool = True


class Saving:
    """Writes the lines of logs to the files of a folder.

    UsageError, before anything is read, if the folder is not empty or cannot be created.
    `container` is the container that was asked for. With `timestamps` each line starts with its
    time. The first error of the disk ends the saving: `tell` hears it, and it is in `error`.
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
                why=f"{taken.name} exists, and no file is overwritten",
                hint="give --save a new folder",
            )

    def write(self, items: Sequence[Line | Notice]) -> None:
        """Save the lines of what `Following.read` gave, in its order."""
        for source, some in groupby(items, key=attrgetter("source")):
            file = self._files.get(source) or self._begin(source)
            lines = [item for item in some if isinstance(item, Line)]
            rows: list[bytes] = []
            for line in lines:
                rows += () if file.fed else (b"\n",)
                rows += (line.stamp, b" ") if self._timestamps else ()
                rows += (line.text, b"\n") if line.fed else (line.text,)
                file.fed = line.fed
            if rows and self.error is None:
                self._append(file, b"".join(rows), len(lines))

    @property
    def summary(self) -> str:
        """What was saved, in a sentence."""
        files = sum(file.created for file in self._files.values())
        size = f"{self._size:,} byte{'s'[: self._size != 1]}"
        return f"saved in {self._folder}: logs: {files}, lines: {self._lines}, {size}"

    def _append(self, file: _File, data: bytes, lines: int) -> None:
        try:
            # Opened for each write: hundreds of logs would need hundreds of open files.
            create = 0 if file.created else os.O_CREAT | os.O_EXCL
            flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | create
            with os.fdopen(os.open(file.path, flags, 0o666), "wb", buffering=0) as opened:
                file.created = True
                view = memoryview(data)
                while view:
                    written = opened.write(view)
                    self._size += written
                    view = view[written:]
            self._lines += lines
        except OSError as error:
            self.error = ArenaError(
                f"not all of the log is saved in {file.path}",
                why=error.strerror or str(error),
                hint="make room there, or give --save another folder",
            )
            self._tell(self.error.sentence)

    def _begin(self, source: Source) -> _File:
        first = self._firsts.setdefault(source.pod, source)
        words = [source.pod, *([self._container] if self._container else [])]
        words += [source.uid] if source.uid != first.uid else []
        words += [source.container] if source.container != first.container else []
        words += [str(source.run)] if source.run else []
        # A name is no path, and the file is not hidden.
        name = ".".join(quote(word, safe="") for word in words)
        name = f"%2E{name[1:]}" if name.startswith(".") else name
        return self._files.setdefault(source, _File(self._folder / f"{name}.log"))
