"""The archive of the logs of jobs whose pods may be gone.

    $XDG_STATE_HOME/arena-topo/logs/        ~/.local/state/arena-topo/logs where that is not set
      NAME.NAMESPACE-JOB-UID/               a job; JOB and UID are hashes, for names of any text
        job.json                            its names, and how it ended
        writing                             the lock for adding lines
        POD-HASH.log                        a run of a container that was followed
        pods/POD/RUN-START.log              the log of a pod of a local job, moved here when the job
                                            was deleted (see `log_files`)

The log of a followed run is a plain file of rows `TIME text`, as a kubelet gives them (see
`lines.Parser`). Other rows begin with `# `: the first names the source of the log; `# gap`: lines
may be missing here; `# cut`: the lines before were removed for lack of room; `# no line feed`: the
next row has none; `# end`: the log was read to its end. Bytes behind the last line feed were
truncated by a crash.

A line is identified by its position: the latest time so far, and the number of lines since that
time. So a second follow, even a concurrent one, appends only lines that are newer than the last
line of the file. Older lines are dropped: nothing is inserted between rows.

Only the user may read the archive. An error of the disk does not stop a follow: `tell` hears it
once, and nothing more is archived. Each follow, once a minute, and each `delete` and `prune` of
local jobs, at its end, remove the jobs that nothing was added to for `AGE` seconds, then the oldest
jobs beyond the size of the archive, but no job that was written to or followed in the last `IN_USE`
seconds. A followed job that is larger than the archive loses its oldest lines.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import heapq
import io
import json
import math
import os
import re
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import msgspec

from arena_topo.engines.lines import (
    LOG_START,
    Key,
    Line,
    LogOptions,
    LogTurn,
    Notice,
    Parser,
    Source,
    SourceFilter,
    more_files,
    parse_nanoseconds,
    position_after,
    since,
    stamped,
)
from arena_topo.engines.log_files import LogReader, drop_oldest, move_runs, run_lines
from arena_topo.engines.private import require_private, state_folder
from arena_topo.engines.rank_tags import Tagging, tagging
from arena_topo.errors import ArenaError, UsageError
from arena_topo.files import replace_file

if TYPE_CHECKING:
    from arena_topo.engines import JobStatus

ARCHIVE_VARIABLE = "ARENA_TOPO_LOG_ARCHIVE"
"""The variable that turns the archive off (`0`, `off`), or gives its size (`500M`, `4Gi`)."""

MAX_ARCHIVE_BYTES = 1 << 30
"""Bytes of the whole archive: a tenth of the smallest usual quota of a home folder (10 GB)."""

MAX_LOG_FILE_BYTES = 64 << 20
"""Bytes of a log: some hundred thousand lines, for many jobs the whole log of the launcher."""

AGE = 30 * 86_400
"""Seconds of retention after a job's last line: a month."""

ARCHIVE_FORMAT = 1
"""The version of the files; those of another version are read as far as they say the same."""

SOON = 0.5
"""Seconds after which `write` writes the lines that wait."""

CHUNK = 1 << 16
"""Bytes of a read or a write."""

_JOB, _PODS = "job.json", "pods"

_POD = re.compile(r"[a-zA-Z0-9][-a-zA-Z0-9_.]{0,254}")

_GAP, _END, _CUT = b"# gap", b"# end", b"# cut"

_UNFED = b"# no line feed"

_LATEST = 1e11
"""The latest valid time in Unix seconds."""

_MOST = (1 << 31) - 1
"""The largest valid number of restarts, workers and slots, and exit code."""

IN_USE, _TOUCH = 300.0, 60.0
"""Seconds after a change for which a job counts as followed, and between two touches of a followed
job, each of which tidies the archive."""


class JobHead(msgspec.Struct, frozen=True, kw_only=True):
    """`job.json`: the job, and its last known state.

    `phase` is arena's word, `created` Unix seconds; `slots` are the ranks of each worker, 0 if
    unknown; `tags` is the kind of tags that its command asks for. `deleted`: the job was deleted
    before it was over. `moved` are the logs that were moved here, by their first runs.
    """

    place: str
    namespace: str
    name: str
    uid: str
    created: Annotated[float, msgspec.Meta(ge=0, le=_LATEST)]
    phase: str
    exit_code: Annotated[int, msgspec.Meta(ge=-_MOST, le=_MOST)] | None
    slots: Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
    tags: str | None = None
    deleted: bool = False
    moved: tuple[Source, ...] = ()
    format: int = ARCHIVE_FORMAT

    @property
    def tagging(self) -> Tagging | None:
        """The kind of tags that the job's command asks for, if known."""
        return next((tagging for tagging in Tagging if tagging == self.tags), None)


class Kept(JobHead, frozen=True, kw_only=True):
    """The archived logs of a job.

    `first` and `last` are the times of the first and the last line (Unix nanoseconds, 0: unknown,
    or no lines), `sources` all archived logs, `lacking` the logs of which lines may be missing.
    `complete`: the job was over and each log was read to its end.
    """

    folder: Path
    first: int
    last: int
    sources: tuple[Source, ...]
    lacking: tuple[Source, ...]
    complete: bool


class Keeping:
    """Archives the lines of a followed job; made by `Archive.keeping`.

    An error of the disk is not raised: `tell` hears it once, and nothing more is archived.
    Concurrent follows of the same job archive each line once.
    """

    def __init__(
        self, archive: Archive, folder: Path | None, about: JobHead, *, whole: bool
    ) -> None:
        self._archive, self._about, self._whole = archive, about, whole
        self._folder = folder or Path(os.devnull)
        self._off = folder is None
        self._started = time.time_ns()
        self._writers: dict[Source, _Writer] = {}
        self._flushed = self._touched = 0.0
        if self._off:
            return
        with self._trying():
            archive.tidy()
            _make(self._folder)
            if (old := self._head()) is not None:
                slots, tags = about.slots or old.slots, about.tags or old.tags
                self._about = msgspec.structs.replace(about, slots=slots, tags=tags)
            _write_head(self._folder, self._about)

    def write(self, items: Sequence[Line | Notice]) -> None:
        """Archive the result of a `Following.read`; an empty one writes the lines that wait."""
        if self._off:
            return
        with self._trying():
            for source, some in groupby(items, key=attrgetter("source")):
                self._take(source, list(some))
            now = time.monotonic()
            if now - self._flushed >= SOON:
                self._flushed = now
                self._flush(*self._writers.values())
            if now - self._touched >= _TOUCH:
                self._touched = now
                os.utime(self._folder / _JOB)
                self._archive.tidy()

    def _take(self, source: Source, items: Sequence[Line | Notice]) -> None:
        turns = {item.turn for item in items if isinstance(item, Notice)}
        if lines := [item for item in items if isinstance(item, Line)]:
            whole = self._whole or lines[0].at >= self._started
            if self._writer(source).take(lines, whole=whole) > CHUNK:
                self._flush(self._writer(source))
        if LogTurn.ENDED in turns:
            self._flush(self._writer(source), end=True)

    def close(self, job: JobStatus | None = None) -> None:
        """Write the lines that wait, and the last known state of the job. Idempotent."""
        if self._off:
            return
        with self._trying():
            self._flush(*self._writers.values())
            if job is not None:
                self._about = msgspec.structs.replace(self._about, **_seen(job))
                _write_head(self._folder, self._about)
        self._off = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_wrong: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _trying(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._off = True
            self._archive.complain(error.strerror or str(error))

    def _head(self) -> JobHead | None:
        """The archived head of the job; None if missing or damaged, to be written anew."""
        with contextlib.suppress(Damaged, FileNotFoundError):
            return _decoded((self._folder / _JOB).read_bytes(), JobHead)
        return None

    def _writer(self, source: Source) -> _Writer:
        writer = self._writers.get(source)
        if writer is None:
            path = self._folder / f"{_log(source)}.log"
            writer = self._writers[source] = _Writer(path, source, most=self._archive.largest)
        return writer

    def _flush(self, *writers: _Writer, end: bool = False) -> None:
        with _locked(self._folder / "writing"):
            for writer in writers:
                writer.flush(end=end)
            sizes = self._writers.values()
            while sum(writer.size for writer in sizes) > self._archive.most:
                if not max(sizes, key=lambda writer: writer.size).trim():
                    break


class _Writer:
    """Appends the lines of a log to its file; all methods but `take` need the lock."""

    def __init__(self, path: Path, source: Source, *, most: int) -> None:
        self._path, self._source, self._most = path, source, most
        self._lines: list[Line] = []
        self._waiting = 0
        self._whole = False
        self._key: Key | None = None
        """The position of the last line that was written or dropped."""
        self.size = 0
        """Bytes of the complete rows of the file, when it was last read."""
        self._file_position, self._ended, self._inode = LOG_START, False, 0
        """The position of the file's last line, and whether the log was read to its end."""

    def take(self, lines: Sequence[Line], *, whole: bool) -> int:
        """Add lines; the bytes that wait. `whole`: the first lines begin the log."""
        if self._key is None and not self._lines:
            self._whole = whole
        self._lines += lines
        self._waiting += sum([len(line.text) + 40 for line in lines])
        return self._waiting

    def flush(self, *, end: bool = False) -> None:
        """Write the lines that wait; `end`: they are the last of the log."""
        lines, self._lines, self._waiting = self._lines, [], 0
        if not (lines or end):
            return
        self._catch_up()
        data = self._rows(lines) if lines else b""
        if end and (data or not self._ended):
            data += _END + b"\n"
        if data:
            self._append(data)
            self._ended = end
        while self.size > self._most and self.trim():
            pass

    def _catch_up(self) -> None:
        """Read what other processes have appended to the file, or all of a replaced file."""
        with contextlib.ExitStack() as closing:
            try:
                file = closing.enter_context(self._path.open("rb", buffering=0))
                inode = os.fstat(file.fileno()).st_ino
            except FileNotFoundError:
                inode = 0
            if inode != self._inode:
                self._inode, self.size, self._file_position, self._ended = (
                    inode,
                    0,
                    LOG_START,
                    False,
                )
            if not inode:
                return
            offset = file.seek(self.size)

            def read() -> bytes:
                nonlocal offset
                data = file.read(CHUNK)
                # An incomplete row at the end is read again.
                end = data.rfind(b"\n")
                self.size = offset + end + 1 if end >= 0 else self.size
                offset += len(data)
                return data

            for row in _rows(read, self._source):
                if isinstance(row, Line):
                    self._file_position = position_after(self._file_position, (row.at,))
                self._ended = row == _END

    def _rows(self, lines: Sequence[Line]) -> bytes:
        """The rows of the lines that are newer than the last line of the file."""
        begun, key, known = self._key is not None, self._key or LOG_START, self._file_position
        self._key = position_after(key, [line.at for line in lines])
        start = 0
        for line in lines if key != known else ():
            key = position_after(key, (line.at,))
            if key > known:
                break
            start += 1
        if start == len(lines):
            return b""
        first = known == LOG_START
        lacks = (begun or not self._whole) if first else (not begun and not start)
        self._file_position = self._key
        rows = [_GAP + b"\n"] if lacks else []
        for line in lines[start:]:
            rows += () if line.fed else (_UNFED, b"\n")
            rows += (line.stamp or stamped(line.at), b" ", line.text.replace(b"\n", b" "), b"\n")
        return b"".join(rows)

    def _append(self, data: bytes) -> None:
        data = data if self.size else self._header() + data
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        with os.fdopen(os.open(self._path, flags, 0o600), "wb", buffering=0) as file:
            file.truncate(self.size)
            file.seek(self.size)
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            self._inode = os.fstat(file.fileno()).st_ino
        self.size += len(data)

    def _header(self) -> bytes:
        return b"# %b\n" % json.dumps({"format": ARCHIVE_FORMAT, **asdict(self._source)}).encode()

    def trim(self) -> int:
        """Remove the oldest quarter of the file; the number of bytes."""
        # Another process may have appended to it, or replaced it.
        self._catch_up()
        if not self.size:
            return 0
        with self._path.open("rb") as old:
            old.seek(self.size // 4)
            old.readline()
            rest = iter(partial(old.read, CHUNK), b"")
            replace_file(self._path, chain([self._header() + _CUT + b"\n"], rest))
        status, before = self._path.stat(), self.size
        self._inode, self.size = status.st_ino, status.st_size
        return max(0, before - self.size)


def _rows(read: Callable[[], bytes], source: Source) -> Iterator[Line | bytes]:
    """The lines of a file, and the marks between them."""
    parser, mark = Parser(source), b""
    while data := read():
        for line in parser.feed(data):
            if line.stamp:
                yield line if mark != _UNFED else line._replace(fed=False)
                mark = b""
            else:
                mark = line.text
                yield mark


@dataclass(frozen=True, slots=True, kw_only=True)
class _Described:
    """The description of a log's file, as in `Kept`."""

    source: Source
    first: int
    last: int
    lacks: bool
    ended: bool


def _described(path: Path) -> _Described | None:
    """The description of a log's file; None of an empty file. Damaged, OSError."""
    first = last = b""
    lacks = ended = False
    with path.open("rb") as file:
        head = file.readline()
        if not head.endswith(b"\n"):
            return None
        source = _decoded(head.removeprefix(b"# "), Source)
        if _log(source) != path.stem:
            raise Damaged("its first row is of another log")
        for row in file:
            if row.startswith(b"# "):
                lacks = lacks or row[:-1] in {_GAP, _CUT}
                ended = row[:-1] == _END
            elif row.endswith(b"\n"):
                first, last, ended = first or row, row, False
    return _Described(source=source, first=_time(first), last=_time(last), lacks=lacks, ended=ended)


def _moved(folder: Path, first_run: Source) -> list[_Described]:
    """The descriptions of the runs of a log that was moved here. OSError."""
    described = []
    with LogReader(str(folder / _PODS / first_run.pod)) as reader:
        for run, parts in groupby(reader.parts(), key=attrgetter("run")):
            files = list(parts)
            begun = over = 0
            for part in files:
                with os.fdopen(reader.open(part), "rb") as file:
                    data = file.read()
                begun = begun or next(filter(None, map(_time, io.BytesIO(data))), 0)
                over = next(filter(None, map(_time, _from_the_end(data))), over)
            source = replace(first_run, run=run)
            lacks = files[0].start > 0
            described.append(
                _Described(source=source, first=begun, last=over, lacks=lacks, ended=True)
            )
    return described


def _from_the_end(data: bytes) -> Iterator[bytes]:
    """The rows of a text, the last row first."""
    end = len(data)
    while end:
        start = data.rfind(b"\n", 0, end - 1) + 1
        yield data[start:end]
        end = start


def _time(row: bytes) -> int:
    """The time of a row; 0 of a row that a crash has truncated in its time."""
    stamp, _, text = row.partition(b" ")
    return (parse_nanoseconds(stamp) or 0) if text else 0


class Archive:
    """The archived logs of a user.

    `root` is None if there is no folder for it. `most` is the size in bytes; with 0 nothing is
    added, but archived logs can be read. `tell` hears, once, why nothing can be archived.
    """

    def __init__(
        self,
        root: Path | None,
        *,
        most: int = MAX_ARCHIVE_BYTES,
        tell: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.root, self.most, self.largest = root, most, min(MAX_LOG_FILE_BYTES, most)
        self._tell, self._clock = tell, clock
        self._warned = False
        self._damaged: set[Path] = set()

    def keeping(
        self, place: str, job: JobStatus, *, slots: int = 0, whole: bool = False
    ) -> Keeping:
        """Archive the lines of a job of an engine (`Backend.place`) from now on.

        `slots` are the ranks of each of its workers, 0 if unknown. `whole`: its logs are read from
        their beginning (no `tail`, no `since`).
        """
        about = JobHead(
            place=place,
            namespace=job.namespace,
            name=job.name,
            uid=job.uid,
            created=job.created,
            slots=slots,
            tags=tagging(job.command),
            **_seen(job),
        )
        folder = None
        if self.most <= 0:
            pass
        elif self.root is None:
            self.complain("there is no place for it: neither XDG_STATE_HOME nor HOME is set")
        else:
            folder = self.root / _folder(place, job.namespace, job.name, job.uid)
        return Keeping(self, folder, about, whole=whole)

    def adopt(self, head: JobHead, pods: Path) -> None:
        """Move the logs of a deleted job (`head.moved`) here, with the folder that has them.

        So a full disk loses none of them, unless the archive is on another file system. Runs that
        were moved here before stay, as earlier runs. OSError if the logs cannot be moved; then
        nothing of them is here.
        """
        if self.root is None or self.most <= 0:
            return
        folder = self.root / _folder(head.place, head.namespace, head.name, head.uid)
        copy = folder / f".{_PODS}-{os.urandom(8).hex()}"
        new = not folder.exists()
        try:
            _make(folder)
            _write_head(folder, head)
            try:
                _move_logs(pods, folder / _PODS, head.moved)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                _copy_logs(pods, copy, head.moved)
                _move_logs(copy, folder / _PODS, head.moved)
        except BaseException:
            if new and not (folder / _PODS).exists():
                shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            shutil.rmtree(copy, ignore_errors=True)
        # What was copied is not moved here again, if the job is not removed after all.
        shutil.rmtree(pods, ignore_errors=True)
        for source in head.moved:
            # The archive is tidied in any case.
            with contextlib.suppress(OSError):
                drop_oldest(folder / _PODS / source.pod, self.largest)

    def kept(self, place: str, namespace: str, name: str) -> tuple[Kept, ...]:
        """The archived jobs of a name, the newest first; none if the archive cannot be read.

        `tell` hears, once, of each damaged file, which is left out.
        """
        if self.root is None:
            return ()
        wanted = _folder(place, namespace, name, "").rpartition("-")[0]
        kept_jobs = []
        with contextlib.suppress(OSError):
            for folder in self.root.iterdir():
                if folder.name.rpartition("-")[0] == wanted:
                    with self._skipping(folder):
                        kept_jobs.append(self._read(folder))
        archived = [kept for kept in kept_jobs if kept is not None and kept.sources]
        return tuple(sorted(archived, key=lambda kept: (kept.created, kept.last), reverse=True))

    @contextlib.contextmanager
    def _skipping(self, path: Path) -> Iterator[None]:
        """Leave out a folder or file that cannot be read, and tell so once."""
        try:
            yield
        except (OSError, Damaged) as error:
            if path not in self._damaged:
                self._damaged.add(path)
                why = (isinstance(error, OSError) and error.strerror) or str(error)
                self._tell(f"{path} is left out: {why}")

    def _read(self, folder: Path) -> Kept | None:
        """The archived job in a folder; None if it has no head."""
        try:
            about = _decoded((folder / _JOB).read_bytes(), JobHead)
        except FileNotFoundError:
            return None
        logs: list[_Described] = []
        damaged = False
        for source in about.moved:
            with self._skipping(folder / _PODS / source.pod):
                logs += _moved(folder, source)
        for path in sorted(folder.glob("*.log")):
            with self._skipping(path):
                log = _described(path)
                logs += [] if log is None else [log]
                # A crash came before its first row.
                damaged = damaged or log is None
            damaged = damaged or path in self._damaged
        lacking = tuple(log.source for log in logs if log.lacks)
        over = about.deleted or about.phase in {"SUCCEEDED", "FAILED"}
        return Kept(
            **msgspec.structs.asdict(about),
            folder=folder,
            first=min((log.first for log in logs if log.first), default=0),
            last=max((log.last for log in logs), default=0),
            sources=tuple(log.source for log in sorted(logs, key=_place)),
            lacking=lacking,
            complete=over and not lacking and not damaged and all(log.ended for log in logs),
        )

    def lines(
        self,
        kept: Kept,
        options: LogOptions = LogOptions(),  # noqa: B008  frozen
        wanted: SourceFilter = lambda _: True,
    ) -> Iterator[Line]:
        """The archived lines of the wanted logs, merged by time, each log in its order.

        `tail` counts the lines of all runs of a container; `previous` is the run before the last
        run of a container, and the launcher's try before the last. `follow` and `unfinished` are
        ignored. ArenaError if the lines cannot be read.
        """
        sources = [
            source
            for source in kept.sources
            if options.container in {None, source.container} and wanted(source)
        ]
        begins = since(options, self._clock()) or 0
        runs = _runs(sources, tries=options.previous)
        if options.previous:
            runs = [several[-2:-1] for several in runs]
        more_files()
        try:
            logs = [_part(kept.folder, some, options.tail, begins) for some in runs]
            yield from heapq.merge(*logs, key=lambda line: line.at)
        except OSError as error:
            raise ArenaError(
                f"the archived logs of {kept.name} cannot be read",
                why=f"{kept.folder}: {error.strerror or error}",
            ) from error

    def tidy(self) -> None:
        """Remove jobs that are too old, and the oldest jobs beyond the size of the archive.

        An archive that is off stays as it is.
        """
        if self.root is None or self.most <= 0:
            return
        _make(self.root)
        folders = (folder for folder in self.root.iterdir() if folder.is_dir())
        jobs = sorted((*_measured(folder), folder) for folder in folders)
        total = sum(size for _, size, _ in jobs)
        now = self._clock()
        for changed, size, folder in jobs:
            unused = changed < now - IN_USE and (changed < now - AGE or total > self.most)
            # Another process may have added to it since, or remove it at the same time.
            if unused and _measured(folder)[0] < now - IN_USE:
                shutil.rmtree(folder, ignore_errors=True)
                total -= size

    def complain(self, why: str) -> None:
        """Tell, once, that nothing more is archived."""
        if not self._warned:
            self._warned = True
            where = "" if self.root is None else f" in {self.root}"
            self._tell(f"the log is not kept{where}: {why} (to keep none: {ARCHIVE_VARIABLE}=off)")


def open_archive(
    environment: Mapping[str, str], *, tell: Callable[[str], None] = lambda _: None
) -> Archive:
    """The archive of the user; UsageError if `ARCHIVE_VARIABLE` is invalid.

    If another user owns its folder, it is neither read nor written, and `tell` hears why.
    """
    most = _most(environment.get(ARCHIVE_VARIABLE, ""))
    root: Path | None = None
    with contextlib.suppress(ArenaError):
        root = state_folder(environment) / "logs"
    if root is not None:
        try:
            require_private(root.parent)
            require_private(root)
        except ArenaError as error:
            tell(f"logs are neither kept nor read back: {error.message}, since {error.why}")
            return Archive(None, most=0)
    return Archive(root, most=most, tell=tell)


def _most(text: str) -> int:
    word = text.strip().lower()
    if word in {"", "on", "yes", "true", "1"}:
        return MAX_ARCHIVE_BYTES
    if word in {"off", "no", "false", "0"}:
        return 0
    size = re.fullmatch(r"([0-9]{1,9})([kmgt])i?b?", word)
    if size is None:
        raise UsageError(
            f"{ARCHIVE_VARIABLE} is {text!r}",
            why="expected off, or how large the archive of logs may be",
            hint=f"{ARCHIVE_VARIABLE}=500M, {ARCHIVE_VARIABLE}=4G or {ARCHIVE_VARIABLE}=off",
        )
    return int(size[1]) << {"k": 10, "m": 20, "g": 30, "t": 40}[size[2]]


def _place(log: _Described) -> tuple[object, ...]:
    """The sort key of a job's logs: launchers in the order of their tries, workers by index."""
    source = log.source
    worker = -1 if source.worker is None else source.worker
    first = log.first if source.chief else 0
    return (not source.chief, worker, first, source.pod, source.container, source.run, source.uid)


def _runs(sources: Sequence[Source], *, tries: bool) -> list[list[Source]]:
    """The runs of each container in their order; `tries`: all launchers count as a container."""
    runs: dict[tuple[str, ...], list[Source]] = {}
    for source in sorted(sources, key=lambda source: 0 if tries else source.run):
        pod = () if tries and source.chief else (source.pod, source.uid)
        runs.setdefault((*pod, source.container), []).append(source)
    return list(runs.values())


def _part(folder: Path, runs: Sequence[Source], tail: int | None, begins: int) -> Iterator[Line]:
    """The lines of a container from a time on, and of these the last `tail` lines."""
    lines = chain.from_iterable(_lines(folder, run) for run in runs)
    chosen = (line for line in lines if line.at >= begins) if begins else lines
    return chosen if tail is None else iter(deque(chosen, tail))


def _lines(folder: Path, source: Source) -> Iterator[Line]:
    if (moved := folder / _PODS / source.pod).is_dir():
        yield from run_lines(moved, source)
        return
    with (folder / f"{_log(source)}.log").open("rb", buffering=0) as file:
        for row in _rows(partial(file.read, CHUNK), source):
            if isinstance(row, Line):
                yield row


def _seen(job: JobStatus) -> dict[str, Any]:
    return {"phase": job.phase.value, "exit_code": job.exit_code}


def _folder(place: str, namespace: str, name: str, uid: str) -> str:
    job = _hash(place, namespace, name)
    # No version writes into the folders of another.
    return f"{_readable(name)}.{_readable(namespace)}-{job}-{_hash(str(ARCHIVE_FORMAT), uid)}"


def _log(source: Source) -> str:
    return f"{_readable(source.pod)}-" + _hash(
        source.pod, source.uid, source.container, str(source.run)
    )


def _readable(name: str) -> str:
    """The part of a name that any file system takes."""
    return re.sub(r"[^a-z0-9-]", "_", name[:60].lower())


def _hash(*words: str) -> str:
    text = json.dumps(words).encode()
    return hashlib.sha256(text).hexdigest()[:16]


def _measured(folder: Path) -> tuple[float, int]:
    """The time of a folder's last change, and the bytes of its files on the disk.

    A folder that cannot be read now counts as changed just now: maybe another process changes it.
    """
    try:
        return _measured_files(folder)
    except OSError:
        return math.inf, 0


def _measured_files(folder: str | Path) -> tuple[float, int]:
    changed, size = 0.0, 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                size += _measured_files(entry.path)[1]
            status = entry.stat(follow_symlinks=False)
            changed = max(changed, status.st_mtime)
            size += max(status.st_size, status.st_blocks * 512)
    # Another process has made an empty folder to add a job.
    return changed or Path(folder).stat().st_mtime, size


def _move_logs(pods: Path, to: Path, moved: Sequence[Source]) -> None:
    """Rename a folder of logs; where there are logs already, move the runs behind their runs."""
    try:
        pods.rename(to)
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise
        for source in moved:
            move_runs(pods / source.pod, to / source.pod)


def _copy_logs(pods: Path, to: Path, moved: Sequence[Source]) -> None:
    for source in moved:
        (to / source.pod).mkdir(mode=0o700, parents=True)
        with LogReader(str(pods / source.pod)) as reader:
            for part in reader.parts():
                with os.fdopen(reader.open(part), "rb") as file:
                    replace_file(to / source.pod / part.name, iter(partial(file.read, CHUNK), b""))


def _write_head(folder: Path, head: JobHead) -> None:
    replace_file(folder / _JOB, json.dumps(msgspec.to_builtins(head)).encode())


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock between processes, if the file system supports it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _make(folder: Path) -> None:
    # Logs may contain secrets.
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


class Damaged(Exception):
    """A file of the archive is damaged; the text says why."""


Head = TypeVar("Head", JobHead, Source)


def _decoded(data: bytes, kind: type[Head]) -> Head:
    """The value of a JSON text; Damaged if it is invalid."""
    try:
        # A name may contain lone surrogates, which msgspec's decoder refuses.
        decoded = msgspec.convert(json.loads(data), kind)
    except (msgspec.ValidationError, ValueError, ArithmeticError, RecursionError) as error:
        raise Damaged(str(error)) from error
    sources = (decoded,) if isinstance(decoded, Source) else decoded.moved
    if not all(0 <= max(source.run, source.worker or 0) <= _MOST for source in sources):
        raise Damaged("it names no run of a container")
    if isinstance(decoded, JobHead) and not all(_POD.fullmatch(source.pod) for source in sources):
        raise Damaged("it names a pod that no folder can be named after")
    return decoded
