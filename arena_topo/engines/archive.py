"""What was followed of jobs' logs, kept for when their pods are gone.

    $XDG_STATE_HOME/arena-topo/logs/        ~/.local/state/arena-topo/logs where that is not set
      NAME.NAMESPACE-JOB-UID/               one job; JOB and UID are hashes, since names may be odd
        job.json                            its names as they are, and how it ended
        writing                             locked while lines are added
        POD-HASH.log                        one run of one container

A log is a plain file of rows `TIME text`, as a kubelet gives them (see `lines.Parser`). Other rows
begin with `# `: the first says whose log it is; `# gap` that lines may be missing here; `# cut`
that there was no room for those before; `# no line feed` that the next row has none; `# end` that
all of the log was read; `# goes on`, of the version before, that the next row is a piece of a line.
What follows the last line feed was torn by a crash, and is no row.

Lines are known by their place in the log: the latest time so far, and how many lines there are from
that time on. So a second follow, and one at the same time, add only what is newer than all that is
there. What is older is left out: nothing is ever put between rows.

Only the user may read any of it. An error of the disk never stops a follow: `tell` hears it once,
and no more is kept. The archive tidies itself when it is written to: jobs go that nothing was added
to for `AGE` seconds, then the oldest ones beyond `JOBS` and beyond the bytes it may have, and last
the oldest lines of the job that is being written. A job that was written to, or followed, in the
last `IN_USE` seconds stays.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import heapq
import json
import os
import re
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import msgspec

from arena_topo.engines.lines import (
    NOWHERE,
    Key,
    Line,
    LogOptions,
    Notice,
    Parser,
    Source,
    Turn,
    Wanted,
    after,
    moment,
    more_files,
    since,
    stamped,
)
from arena_topo.engines.private import require_private, state_folder
from arena_topo.engines.tagging import Tagging, tagging
from arena_topo.errors import ArenaError, UsageError
from arena_topo.files import replace_file

if TYPE_CHECKING:
    from arena_topo.engines import JobStatus

SWITCH = "ARENA_TOPO_LOG_ARCHIVE"
"""The variable that turns the archive off (`0`, `off`), or gives its size (`500M`, `4Gi`)."""

MOST = 1 << 30
"""Bytes of the whole archive: a tenth of the smallest usual quota of a home folder (10 GB)."""

LARGEST = 64 << 20
"""Bytes of one log: some hundred thousand lines, and of many a job all the launcher ever said."""

AGE = 30 * 86_400
"""Seconds that a job is kept after its last line: a month, as people ask for last week's run."""

BATCH = 1000
"""Lines that are written at once."""

FORMAT = 2
"""The version of the files; what another one has written is named and left out."""

SOON = 0.5
"""Seconds after which lines are written at the latest, if `write` is called."""

CHUNK = 1 << 16
"""Bytes that are read or written at once."""

_JOB = "job.json"

_GAP, _END, _CUT = b"# gap", b"# end", b"# cut"

_UNFED = b"# no line feed"

_LATEST = 1e11
"""Unix seconds; later ones no clock says."""

_MOST = (1 << 31) - 1
"""The largest number of restarts, workers, slots or exit code that is believed."""

IN_USE, _TOUCH = 300.0, 60.0
"""Seconds since its last change for which a job counts as followed, and between two such changes
where its pods are silent."""


class JobHead(msgspec.Struct, frozen=True, kw_only=True):
    """`job.json`: whose logs they are, and how the job was last seen.

    `phase` is arena's word, `created` Unix seconds; `slots` the ranks of each worker, 0 where that
    is not known, `tags` what its command says of them. `deleted` says that the job was not over
    when it was deleted.
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
    format: int = FORMAT

    @property
    def tagging(self) -> Tagging | None:
        """The tags that the job's command asks for, as far as they are known here."""
        return next((one for one in Tagging if one == self.tags), None)


class Kept(JobHead, frozen=True, kw_only=True):
    """What is kept of the logs of one job.

    `first` and `last` are when its first and last line were written (Unix nanoseconds, 0: not
    known, or no lines), `sources` all logs there are, `lacking` those of which lines may be
    missing. `complete` says that the job was over and all of each log was read. `size` is in bytes.
    """

    folder: Path
    first: int
    last: int
    sources: tuple[Source, ...]
    lacking: tuple[Source, ...]
    complete: bool
    size: int


class Keeping:
    """What keeps the lines of a job that is followed; made by `Archive.keeping`.

    It never raises for the disk: `tell` hears it once, and no more is kept. Several at once of the
    same job are fine: lines that two of them read are there once.
    """

    def __init__(
        self, archive: Archive, folder: Path | None, about: JobHead, *, whole: bool
    ) -> None:
        self._archive, self._about, self._whole = archive, about, whole
        self._folder = folder or Path(os.devnull)
        self._off = folder is None
        self._started = time.time_ns()
        self._writers: dict[Source, _Writer] = {}
        self._cut: set[Source] = set()
        self._flushed = self._touched = 0.0
        if self._off:
            return
        with self._trying():
            archive.tidy()
            _make(self._folder)
            if (old := self._head()) is not None:
                slots, tags = about.slots or old.slots, about.tags or old.tags
                self._about = msgspec.structs.replace(about, slots=slots, tags=tags)
            self._write_head()

    def write(self, items: Sequence[Line | Notice]) -> None:
        """Keep what `Following.read` gave, in its order.

        Call it with nothing too, whenever nothing came: that writes what waits for others.
        """
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

    def _take(self, source: Source, items: Sequence[Line | Notice]) -> None:
        turns = {one.turn for one in items if isinstance(one, Notice)}
        if Turn.CUT in turns:
            self._cut.add(source)
        if lines := [one for one in items if isinstance(one, Line)]:
            whole = (self._whole or lines[0].at >= self._started) and source not in self._cut
            if self._writer(source).take(lines, whole=whole) > CHUNK:
                self._flush(self._writer(source))
        if Turn.ENDED in turns:
            self._flush(self._writer(source), end=True)

    def close(self, job: JobStatus | None = None, *, deleted: bool = False) -> None:
        """Write what is left; `job` is how it was last seen. More than once does no harm."""
        if self._off:
            return
        with self._trying():
            self._flush(*self._writers.values())
            there = self._head()
            # Who deletes it knows best: others see it end just then.
            if job is not None and (deleted or there is None or not there.deleted):
                seen = {**_seen(job), "deleted": deleted}
                self._about = msgspec.structs.replace(self._about, **seen)
                self._write_head()
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

    def _write_head(self) -> None:
        data = json.dumps(msgspec.structs.asdict(self._about)).encode()
        replace_file(self._folder / _JOB, data)

    def _head(self) -> JobHead | None:
        """What is there of the job; None for nothing, or what is about to be written anew."""
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
            for one in writers:
                one.flush(end=end)
            sizes = self._writers.values()
            while sum(one.size for one in sizes) > self._archive.most:
                if not max(sizes, key=lambda one: one.size).trim():
                    break


class _Writer:
    """Adds the lines of one log to its file; all but `take` with the lock that is for writing."""

    def __init__(self, path: Path, source: Source, *, most: int) -> None:
        self._path, self._source, self._most = path, source, most
        self._lines: list[Line] = []
        self._waiting = 0
        self._whole = False
        self._key: Key | None = None
        """The place of the last line that was taken from those that wait."""
        self.size = 0
        """Bytes of the whole rows of the file, as it was last seen."""
        self._there, self._ended, self._inode = NOWHERE, False, 0
        """The place of its last line, and whether all of the log is there."""

    def take(self, lines: Sequence[Line], *, whole: bool) -> int:
        """Take lines to write; how many bytes wait now.

        `whole` says that the very first of them is the first of the log.
        """
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
        """Learn what is in the file by now, which another process may have added to, or cut."""
        with contextlib.ExitStack() as closing:
            try:
                file = closing.enter_context(self._path.open("rb", buffering=0))
                inode = os.fstat(file.fileno()).st_ino
            except FileNotFoundError:
                inode = 0
            if inode != self._inode:
                self._inode, self.size, self._there, self._ended = inode, 0, NOWHERE, False
            if not inode:
                return
            offset = file.seek(self.size)

            def read() -> bytes:
                nonlocal offset
                data = file.read(CHUNK)
                # What a crash has torn is behind the rows, and is read again.
                end = data.rfind(b"\n")
                self.size = offset + end + 1 if end >= 0 else self.size
                offset += len(data)
                return data

            for one in _rows(read, self._source):
                if isinstance(one, Line):
                    self._there = after(self._there, (one.at,))
                self._ended = one == _END

    def _rows(self, lines: Sequence[Line]) -> bytes:
        """The rows of the lines that are newer than all in the file."""
        begun, key, known = self._key is not None, self._key or NOWHERE, self._there
        self._key = after(key, [line.at for line in lines])
        start = 0
        for line in lines if key != known else ():
            key = after(key, (line.at,))
            if key > known:
                break
            start += 1
        if start == len(lines):
            return b""
        first = known == NOWHERE
        lacks = (begun or not self._whole) if first else (not begun and not start)
        self._there = self._key
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
        return b"# %b\n" % json.dumps({"format": FORMAT, **asdict(self._source)}).encode()

    def trim(self) -> int:
        """Remove the oldest quarter of the file; how many bytes."""
        # Another process may have added to it, or replaced it, since.
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
    """The lines of a log from where it is read on, and the marks between them."""
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
    """What a look through the file of one log tells, as in `Kept`."""

    source: Source
    first: int
    last: int
    lacks: bool
    ended: bool


def _described(path: Path) -> _Described | None:
    """What is in the file of a log; None of one without a whole row. Damaged, OSError."""
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
    begun, over = (moment(one.partition(b" ")[0]) or 0 for one in (first, last))
    return _Described(source=source, first=begun, last=over, lacks=lacks, ended=ended)


class Archive:
    """The logs that are kept for one user.

    `root` is None where there is no place for it. `most` is in bytes; with 0 nothing is added, and
    what is there is still read. `tell` hears, once, why nothing can be kept.
    """

    def __init__(
        self,
        root: Path | None,
        *,
        most: int = MOST,
        tell: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.root, self.most, self.largest = root, most, min(LARGEST, most)
        self._tell, self._clock = tell, clock
        self._told = False
        self._damaged: set[Path] = set()

    def keeping(
        self, place: str, job: JobStatus, *, slots: int = 0, whole: bool = False
    ) -> Keeping:
        """Keep the lines of a job of an engine (`Backend.place`) from now on.

        `slots` are the ranks of each of its workers, 0 for not known. `whole` says that its logs
        are read from their beginning: no `tail`, no `since`.
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

    def adopt(
        self, place: str, job: JobStatus, lines: Iterable[Line | Notice], *, slots: int = 0
    ) -> None:
        """Keep all the lines of a job, as it was when it was deleted, each log to its end.

        A notice (`Turn.CUT`) says that a log's beginning is not there.
        """
        sources: dict[Source, None] = {}
        with self.keeping(place, job, slots=slots, whole=True) as keeping:
            rest = iter(lines)
            while batch := list(islice(rest, BATCH)):
                keeping.write(batch)
                sources |= dict.fromkeys(one.source for one in batch if isinstance(one, Line))
            keeping.write([Notice(turn=Turn.ENDED, source=one) for one in sources])
            keeping.close(job, deleted=not job.phase.over)

    def kept(self, place: str, namespace: str, name: str) -> tuple[Kept, ...]:
        """What is kept of all jobs of a name, the newest first; nothing if nothing can be read.

        `tell` hears, once, of each file that makes no sense, which is left out.
        """
        if self.root is None:
            return ()
        wanted = _folder(place, namespace, name, "").rpartition("-")[0]
        found = []
        with contextlib.suppress(OSError):
            for folder in self.root.iterdir():
                if folder.name.rpartition("-")[0] == wanted:
                    with self._skipping(folder):
                        found.append(self._read(folder))
        there = [one for one in found if one is not None and one.sources]
        return tuple(sorted(there, key=lambda one: (one.created, one.last), reverse=True))

    @contextlib.contextmanager
    def _skipping(self, path: Path) -> Iterator[None]:
        """Leave out what cannot be read in a folder or a file, and tell once which that is."""
        try:
            yield
        except (OSError, Damaged) as error:
            if path not in self._damaged:
                self._damaged.add(path)
                why = (isinstance(error, OSError) and error.strerror) or str(error)
                self._tell(f"{path} is left out: {why}")

    def _read(self, folder: Path) -> Kept | None:
        """What a folder holds; None where it has not begun."""
        try:
            about = _decoded((folder / _JOB).read_bytes(), JobHead)
        except FileNotFoundError:
            return None
        logs: list[_Described] = []
        damaged = False
        for path in sorted(folder.glob("*.log")):
            with self._skipping(path):
                log = _described(path)
                logs += [] if log is None else [log]
                # Its lines were never written down.
                damaged = damaged or log is None
            damaged = damaged or path in self._damaged
        lacking = tuple(log.source for log in logs if log.lacks)
        over = about.deleted or about.phase in {"SUCCEEDED", "FAILED"}
        return Kept(
            **msgspec.structs.asdict(about),
            folder=folder,
            first=min((log.first for log in logs if log.first), default=0),
            last=max((log.last for log in logs), default=0),
            sources=tuple(one.source for one in sorted(logs, key=_place)),
            lacking=lacking,
            complete=over and not lacking and not damaged and all(log.ended for log in logs),
            size=_measured(folder)[1],
        )

    def lines(
        self,
        kept: Kept,
        options: LogOptions = LogOptions(),  # noqa: B008  frozen
        wanted: Wanted = lambda _: True,
    ) -> Iterator[Line]:
        """The lines that are kept of the logs that are wanted, merged by their times.

        Those of one log stay in their order. Of `options` `tail` (of each container, all its runs
        together), `since`, `since_time`, `container` and `previous` (the run before the last one of
        each container, and of launchers that were tried one after the other) count. ArenaError
        where they cannot be read.
        """
        sources = [
            one
            for one in kept.sources
            if options.container in {None, one.container} and wanted(one)
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
        """Remove jobs that are too old, and the oldest jobs beyond the size of the archive."""
        if self.root is None:
            return
        _make(self.root)
        folders = (folder for folder in self.root.iterdir() if folder.is_dir())
        jobs = sorted((*_measured(folder), folder) for folder in folders)
        total = sum(size for _, size, _ in jobs)
        now = self._clock()
        for changed, size, folder in jobs:
            if (changed < now - AGE or total > self.most) and changed < now - IN_USE:
                # Another process may remove it as well.
                shutil.rmtree(folder, ignore_errors=True)
                total -= size

    def complain(self, why: str) -> None:
        """Tell, once, that nothing more is kept."""
        if not self._told:
            self._told = True
            where = "" if self.root is None else f" in {self.root}"
            self._tell(f"the log is not kept{where}: {why} (to keep none: {SWITCH}=off)")


def open_archive(
    environment: Mapping[str, str], *, tell: Callable[[str], None] = lambda _: None
) -> Archive:
    """The archive of this user; UsageError where `SWITCH` makes no sense.

    Where its folder is not the user's own, `tell` hears why it is neither read nor written.
    """
    most = _most(environment.get(SWITCH, ""))
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
        return MOST
    if word in {"off", "no", "false", "0"}:
        return 0
    size = re.fullmatch(r"([0-9]{1,9})([kmgt])i?b?", word)
    if size is None:
        raise UsageError(
            f"{SWITCH} is {text!r}",
            why="expected off, or how large the archive of logs may be",
            hint=f"{SWITCH}=500M, {SWITCH}=4G or {SWITCH}=off",
        )
    return int(size[1]) << {"k": 10, "m": 20, "g": 30, "t": 40}[size[2]]


def _place(log: _Described) -> tuple[object, ...]:
    """Where a log stands among those of a job: launchers as they were tried, workers by index."""
    one = log.source
    worker = -1 if one.worker is None else one.worker
    first = log.first if one.chief else 0
    return (not one.chief, worker, first, one.pod, one.container, one.run, one.uid)


def _runs(sources: Sequence[Source], *, tries: bool) -> list[list[Source]]:
    """The runs of each container, in their order; with `tries` of all launchers as of one."""
    runs: dict[tuple[str, ...], list[Source]] = {}
    for one in sorted(sources, key=lambda one: 0 if tries else one.run):
        pod = () if tries and one.chief else (one.pod, one.uid)
        runs.setdefault((*pod, one.container), []).append(one)
    return list(runs.values())


def _part(folder: Path, runs: Sequence[Source], tail: int | None, begins: int) -> Iterator[Line]:
    """The lines of a container after a moment, and of these so many of the last."""
    lines = chain.from_iterable(_lines(folder / f"{_log(run)}.log", run) for run in runs)
    chosen = (line for line in lines if line.at >= begins) if begins else lines
    return chosen if tail is None else iter(deque(chosen, tail))


def _lines(path: Path, source: Source) -> Iterator[Line]:
    with path.open("rb", buffering=0) as file:
        for one in _rows(partial(file.read, CHUNK), source):
            if isinstance(one, Line):
                yield one


def _seen(job: JobStatus) -> dict[str, Any]:
    return {"phase": job.phase.value, "exit_code": job.exit_code}


def _folder(place: str, namespace: str, name: str, uid: str) -> str:
    job = _hash(place, namespace, name)
    # Logs of another version stay in folders of their own.
    return f"{_readable(name)}.{_readable(namespace)}-{job}-{_hash(str(FORMAT), uid)}"


def _log(source: Source) -> str:
    return f"{_readable(source.pod)}-" + _hash(
        source.pod, source.uid, source.container, str(source.run)
    )


def _readable(name: str) -> str:
    """As much of a name as any file system takes, for people who look."""
    return re.sub(r"[^a-z0-9-]", "_", name[:60].lower())


def _hash(*words: str) -> str:
    text = json.dumps(words).encode()
    return hashlib.sha256(text).hexdigest()[:16]


def _measured(folder: Path) -> tuple[float, int]:
    """When a folder was last written to, and the bytes that its files take on the disk."""
    changed, size = 0.0, 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                changed = max(changed, status.st_mtime)
                size += max(status.st_size, status.st_blocks * 512)
    return changed, size


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that processes wait for; none where the file system has none."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _make(folder: Path) -> None:
    # Logs may hold secrets: nobody else gets to read any of them.
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


class Damaged(Exception):
    """A file of the archive makes no sense; the text says why."""


class _Version(msgspec.Struct):
    format: int = 0


Head = TypeVar("Head", JobHead, Source)


def _decoded(data: bytes, kind: type[Head]) -> Head:
    """What JSON says; Damaged where it makes no sense."""
    try:
        # Names are whatever a server says, lone surrogates too, which msgspec's own reader refuses.
        value = json.loads(data)
        version = msgspec.convert(value, _Version).format
        if 0 < version != FORMAT:
            raise Damaged(
                f"another version of arena-topo wrote it (format {version}, not {FORMAT});"
                " its logs are plain text"
            )
        found = msgspec.convert(value, kind)
    except (msgspec.ValidationError, ValueError, ArithmeticError, RecursionError) as error:
        raise Damaged(str(error)) from error
    if isinstance(found, Source) and not 0 <= max(found.run, found.worker or 0) <= _MOST:
        raise Damaged("its first row names no run of a container")
    return found
