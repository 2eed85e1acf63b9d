"""What was followed of jobs' logs, kept for when their pods are gone.

    $XDG_STATE_HOME/arena-topo/logs/        ~/.local/state/arena-topo/logs where that is not set
      lock                                  held while what is too old or too much is removed
      NAME.NAMESPACE-JOB-UID/               one job; JOB and UID are hashes, since names may be odd
        job.json                            its names as they are, and how it ended
        writing                             locked by the process that may go on with a stretch
        used                                locked by all that read or write here
        LOG.json                            whose log it is, and whether all of it was read
        LOG.FIRST-WRITER.PART.log           its lines (see `stretches`)

Only the user may read any of it. Nothing here is ever in the way of following a log: where lines
cannot be kept, `tell` hears that once. The archive tidies itself when it is written to: jobs go
that nothing was added to for `AGE` seconds, then the oldest ones beyond `JOBS` and beyond the bytes
it may have, and last the oldest lines of the job that is being written.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import heapq
import json
import os
import re
import secrets
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import msgspec

from arena_topo.engines import stretches
from arena_topo.engines.lines import Line, LogOptions, Notice, Source, Wanted
from arena_topo.engines.private import require_private
from arena_topo.engines.tagging import Tagging, tagging
from arena_topo.errors import ArenaError, UsageError

if TYPE_CHECKING:
    from types import TracebackType

    from arena_topo.engines import JobStatus

SWITCH = "ARENA_TOPO_LOG_ARCHIVE"
"""The variable that turns the archive off (`0`, `off`), or gives its size (`500M`, `4Gi`)."""

MOST = 1 << 30
"""Bytes of the whole archive: a tenth of the smallest usual quota of a home folder (10 GB)."""

LARGEST = 64 << 20
"""Bytes of one log: some hundred thousand lines, and of many a job all the launcher ever said."""

AGE = 30 * 86_400
"""Seconds that a job is kept after its last line: a month, as people ask for last week's run."""

JOBS = 1000
"""Jobs that are kept: a sweep of many short ones must not use up the files of a quota."""

FORMAT = 1
"""The version of the files; what a later one has written is not read."""

SOON = 0.5
"""Seconds after which lines are written at the latest, if `write` is called."""

_JOB = "job.json"

_LATEST = 1e11
"""Unix seconds; later ones no clock says."""

_MOST = (1 << 31) - 1
"""The largest number of restarts, workers, slots or exit code that is believed."""

LEFTOVER = 3600.0
"""Seconds without a change after which nobody is taken to write where locks do not work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is kept of the logs of one job.

    `first` and `last` are when its first and last line were written (Unix nanoseconds, 0: not
    known, or no lines), `sources` all logs there are, `gaps` where lines may be missing. `complete`
    says that the job was over and all of each log was read. `phase` (arena's word) and `exit_code`
    are how the job was last seen; `created` is Unix seconds; `slots` the ranks of each worker, 0
    where that is not known, `tags` what its command says of them. `deleted` says that the job was
    not over when it was deleted. `size` is in bytes.
    """

    folder: Path
    place: str
    namespace: str
    name: str
    uid: str
    created: float
    phase: str
    exit_code: int | None
    slots: int
    tags: Tagging | None = None
    deleted: bool = False
    first: int
    last: int
    sources: tuple[Source, ...]
    gaps: tuple[stretches.Gap, ...]
    complete: bool
    size: int


class Keeping:
    """What keeps the lines of a job that is followed; made by `Archive.keeping`.

    It never raises for the disk: `tell` hears it once, and no more is kept. Several at once of the
    same job are fine: lines that two of them read are there once for whoever reads.
    """

    def __init__(
        self, archive: Archive, folder: Path | None, about: dict[str, Any], *, whole: bool
    ) -> None:
        self._archive, self._about, self._whole = archive, about, whole
        self._folder = folder or Path(os.devnull)
        self._off = folder is None
        self._started = time.time_ns()
        self._sole = False
        self._pens: dict[Source, stretches.Pen] = {}
        # Objects are found by identity first: to hash a source takes longer than to write a line.
        self._quick: dict[int, tuple[Source, stretches.Pen]] = {}
        self._ended: set[Source] = set()
        self._cut: set[Source] = set()
        self._there: dict[str, list[stretches.Stretch]] = {}
        self._locks: list[int] = []
        self._flushed = 0.0
        self._since_tidy = 0
        if not self._off:
            with self._trying():
                self._open()

    def write(self, lines: Sequence[Line]) -> None:
        """Keep lines that `Following.read` gave, in its order.

        Call it with nothing too, whenever nothing came: that writes what is held back for a moment.
        """
        if self._off:
            return
        with self._trying():
            start, count = 0, len(lines)
            while start < count:
                source = lines[start].source
                end = start + 1
                while end < count and lines[end].source is source:
                    end += 1
                batch = lines[start:end]
                known = self._quick.get(id(source))
                pen = self._pen(source) if known is None else known[1]
                whole = self._whole or batch[0].at >= self._started
                whole = whole and source not in self._cut
                self._wrote(pen.put(batch, whole=whole))
                start = end
            now = time.monotonic()
            if now - self._flushed >= SOON:
                self._flushed = now
                self._flush()

    def ended(self, source: Source) -> None:
        """Remember that all of a log was read: `Following` says that it `ENDED`."""
        if self._off or source in self._ended:
            return
        with self._trying():
            pen = self._pen(source)
            self._ended.add(source)
            self._wrote(pen.flush())
            self._note(source)

    def cut(self, source: Source) -> None:
        """Remember that a log does not begin with its first line: `Following` says it is `CUT`."""
        self._cut.add(source)

    def close(self, job: JobStatus | None = None, *, deleted: bool = False) -> None:
        """Write what is left; `job` is how it was last seen. More than once does no harm."""
        if not self._off:
            with self._trying():
                self._flush()
                there = _sound_head(self._folder / _JOB, JobHead)
                # Who deletes it knows best: others see it end just then.
                if job is not None and (deleted or there is None or not there.deleted):
                    self._about = {**self._about, **_seen(job), "deleted": deleted}
                    _replace(self._folder / _JOB, self._about)
                self._unlock()
                with contextlib.suppress(OSError):
                    self._condense()
        self._off = True
        self._unlock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def _trying(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._off = True
            self._unlock()
            self._archive.complain(error.strerror or str(error))

    def _open(self) -> None:
        self._archive.tidy()
        for _ in range(3):
            _make(self._folder)
            writing = _locked(self._folder / "writing", fcntl.LOCK_EX)
            used = _locked(self._folder / "used", fcntl.LOCK_EX) if writing is not None else None
            if used is not None:
                os.close(used)
            self._sole = used is not None
            mine = _locked(self._folder / "used", fcntl.LOCK_SH, wait=True)
            self._locks = [one for one in (writing, mine) if one is not None]
            if mine is None or _same(mine, self._folder / "used"):
                break
            # Somebody has removed the folder as too old in this very moment.
            self._unlock()
        old = _sound_head(self._folder / _JOB, JobHead)
        if old is not None:
            self._about["slots"] = self._about["slots"] or old.slots
            self._about["tags"] = self._about["tags"] or old.tags
        _replace(self._folder / _JOB, self._about)
        if self._sole:
            self._there = stretches.found(self._folder)

    def _unlock(self) -> None:
        while self._locks:
            os.close(self._locks.pop())

    def _pen(self, source: Source) -> stretches.Pen:
        pen = self._pens.get(source)
        if pen is None:
            log = _log(source)
            earlier = self._there.get(log, ())
            pen = stretches.Pen(
                self._folder,
                log,
                earlier,
                part=self._archive.part,
                most=self._archive.largest,
            )
            if not (self._folder / f"{log}.json").exists():
                self._note(source)
            self._pens[source] = pen
        if len(self._quick) > 10_000:  # noqa: PLR2004  an engine that makes a source for each line
            self._quick.clear()
        self._quick[id(source)] = (source, pen)
        return pen

    def _note(self, source: Source) -> None:
        value = {"format": FORMAT, **asdict(source), "ended": source in self._ended}
        _replace(self._folder / f"{_log(source)}.json", value)

    def _flush(self) -> None:
        for pen in self._pens.values():
            self._wrote(pen.flush())

    def _wrote(self, size: int) -> None:
        self._since_tidy += size
        if self._since_tidy > self._archive.most // 32:
            self._since_tidy = 0
            excess = self._archive.tidy()
            while excess > 0:
                dropped = max(self._pens.values(), key=lambda one: one.size).drop()
                if not dropped:
                    break
                excess -= dropped

    def _condense(self) -> None:
        """Remove stretches all of whose lines others have, if nobody else is here."""
        logs = {_log(source) for source in self._pens}
        for name in ("writing", "used"):
            alone = _locked(self._folder / name, fcntl.LOCK_EX)
            if alone is None:
                return
            self._locks.append(alone)
        for log, known in stretches.found(self._folder).items():
            for one in stretches.covered(known) if log in logs else ():
                for path in one.paths:
                    path.unlink(missing_ok=True)


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
        self.root, self.most = root, most
        self.largest = min(LARGEST, most)
        self.part = max(1 << 14, min(stretches.PART, most // 64))
        self._tell = tell
        self._told = False
        self._damaged: set[Path] = set()
        self._clock = clock

    def keeping(
        self, place: str, job: JobStatus, *, slots: int = 0, whole: bool = False
    ) -> Keeping:
        """Keep the lines of a job of an engine (`Backend.place`) from now on.

        `slots` are the ranks of each of its workers, 0 for not known. `whole` says that its logs
        are read from their beginning: no `tail`, no `since`.
        """
        about = {
            "format": FORMAT,
            "place": place,
            "namespace": job.namespace,
            "name": job.name,
            "uid": job.uid,
            "created": job.created,
            "slots": slots,
            "tags": tagging(job.command),
            **_seen(job),
        }
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
        with self.keeping(place, job, slots=slots, whole=True) as keeping:
            batch: list[Line] = []
            sources: dict[Source, None] = {}
            for line in lines:
                if isinstance(line, Notice):
                    keeping.cut(line.source)
                    continue
                if not batch or line.source is not batch[-1].source:
                    sources[line.source] = None
                batch.append(line)
                if len(batch) == 1000:  # noqa: PLR2004  so that memory is bounded
                    keeping.write(batch)
                    batch = []
            keeping.write(batch)
            for source in sources:
                keeping.ended(source)
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
                        found.append(self._described(folder))
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
                self._tell(f"{path} makes no sense and is left out: {why}")

    def _described(self, folder: Path) -> Kept | None:
        """What a folder holds; None where it is of another version, or has not begun."""
        about = _head(folder / _JOB, JobHead)
        if about is None:
            return None
        there = stretches.found(folder)
        sources: list[Source] = []
        gaps: list[stretches.Gap] = []
        firsts, lasts, ended = [], [], True
        for path in sorted(folder.glob("*.json")):
            log = None
            with self._skipping(path):
                log = None if path.name == _JOB else _head(path, LogHead)
            if log is None:
                ended = ended and path not in self._damaged
                continue
            ended = log.ended and ended
            known = there.get(path.name.removesuffix(".json"), ())
            sources.append(log.source)
            gaps += stretches.gaps(known, log.source)
            firsts += [begins for begins, _ in map(stretches.first, known) if begins]
            lasts += [at for at in map(stretches.last, known) if at]
        over = about.deleted or about.phase in {"SUCCEEDED", "FAILED"}
        return Kept(
            folder=folder,
            place=about.place,
            namespace=about.namespace,
            name=about.name,
            uid=about.uid,
            created=about.created,
            phase=about.phase,
            exit_code=about.exit_code,
            slots=about.slots,
            tags=next((one for one in Tagging if one == about.tags), None),
            deleted=about.deleted,
            first=min(firsts, default=0),
            last=max(lasts, default=0),
            sources=tuple(sorted(sources, key=_place)),
            gaps=tuple(gaps),
            complete=ended and not gaps and over,
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
        after = self._after(options)
        try:
            lock = _locked(kept.folder / "used", fcntl.LOCK_SH, wait=True)
            try:
                there = stretches.found(kept.folder)
                if options.previous:
                    sources = _previous(sources, there)
                logs = [
                    _part([(there.get(_log(one), ()), one) for one in runs], options.tail, after)
                    for runs in _containers(sources)
                ]
                yield from heapq.merge(*logs, key=lambda line: line.at)
            finally:
                if lock is not None:
                    os.close(lock)
        except OSError as error:
            raise ArenaError(
                f"what was kept of the logs of {kept.name} cannot be read",
                why=f"{kept.folder}: {error.strerror or error}",
            ) from error

    def _after(self, options: LogOptions) -> int:
        """The moment before which lines are not wanted, in nanoseconds."""
        if options.since_time is not None:
            return int(datetime.fromisoformat(options.since_time).timestamp() * 1e9)
        if options.since is not None:
            return int((self._clock() - options.since) * 1e9)
        return 0

    def tidy(self) -> int:
        """Remove what is too old, and too much; how many bytes there still are too many."""
        if self.root is None:
            return 0
        _make(self.root)
        lock = _locked(self.root / "lock", fcntl.LOCK_EX)
        if lock is None:
            return 0
        try:
            return self._tidy(self.root)
        finally:
            os.close(lock)

    def _tidy(self, root: Path) -> int:
        jobs = []
        for folder in root.iterdir():
            if folder.name.startswith(".gone-"):
                shutil.rmtree(folder, ignore_errors=True)
            elif folder.is_dir():
                jobs.append((*_measured(folder), folder))
        jobs.sort()
        total, count = sum(size for _, size, _ in jobs), len(jobs)
        oldest = self._clock() - AGE
        for changed, size, folder in jobs:
            needless = changed < oldest or total > self.most or count > JOBS
            if needless and _unused(folder, self._clock() - changed):
                gone = root / f".gone-{secrets.token_hex(8)}"
                with contextlib.suppress(OSError):
                    folder.rename(gone)
                    shutil.rmtree(gone, ignore_errors=True)
                    total -= size
                    count -= 1
        return total - self.most

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
    root, most = _root(environment), _most(environment.get(SWITCH, ""))
    if root is not None:
        try:
            require_private(root.parent)
            require_private(root)
        except ArenaError as error:
            tell(f"logs are neither kept nor read back: {error.message}, since {error.why}")
            return Archive(None, most=0)
    return Archive(root, most=most, tell=tell)


def _root(environment: Mapping[str, str]) -> Path | None:
    named = environment.get("XDG_STATE_HOME", "")
    # The XDG specification says to ignore relative paths.
    if named.startswith("/"):
        return Path(named) / "arena-topo" / "logs"
    if environment.get("HOME") == "":
        return None
    try:
        home = Path("~").expanduser()
    except RuntimeError:
        return None
    return home / ".local/state/arena-topo/logs" if home.is_absolute() else None


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


def _place(source: Source) -> tuple[object, ...]:
    """Where a log stands among those of a job: the launcher first, workers by their index."""
    worker = -1 if source.worker is None else source.worker
    return (not source.chief, worker, source.pod, source.container, source.run, source.uid)


def _containers(sources: Sequence[Source]) -> list[list[Source]]:
    """The runs of each container, in their order."""
    runs: dict[tuple[str, str, str], list[Source]] = {}
    for one in sorted(sources, key=lambda one: one.run):
        runs.setdefault((one.pod, one.uid, one.container), []).append(one)
    return list(runs.values())


def _previous(
    sources: Sequence[Source], there: Mapping[str, Sequence[stretches.Stretch]]
) -> list[Source]:
    """The run before the last one of each container; launchers tried in turn count as one."""
    found = []
    tries: dict[str, list[tuple[int, list[Source]]]] = {}
    for runs in _containers(sources):
        if runs[0].chief:
            begun = [stretches.first(one)[0] for run in runs for one in there.get(_log(run), ())]
            first = min((at for at in begun if at), default=0)
            tries.setdefault(runs[0].container, []).append((first, runs))
        else:
            found += runs[-2:-1]
    for some in tries.values():
        ordered = [run for _, runs in sorted(some, key=lambda one: one[0]) for run in runs]
        found += ordered[-2:-1]
    return found


def _part(
    runs: Sequence[tuple[Sequence[stretches.Stretch], Source]], tail: int | None, after: int
) -> Iterator[Line]:
    """The lines of a container after a moment, and of these so many of the last."""
    logs = (stretches.joined(known, source, backwards=tail) for known, source in runs)
    lines: Iterator[Line] = chain.from_iterable(logs)
    if after:
        lines = (line for line in lines if line.at >= after)
    return lines if tail is None else last(lines, tail)


def last(lines: Iterable[Line], count: int) -> Iterator[Line]:
    """The last lines, pieces of one counted as one."""
    if not count:
        return
    held: deque[Line] = deque()
    ends = 0
    for line in lines:
        held.append(line)
        ends += line.ends
        while ends > count:
            ends -= held.popleft().ends
    if held and ends == count and not held[-1].ends:
        # What comes last has no end yet, and counts as well.
        while not held.popleft().ends:
            pass
    yield from held


def _seen(job: JobStatus) -> dict[str, Any]:
    return {"phase": job.phase.value, "exit_code": job.exit_code}


def _folder(place: str, namespace: str, name: str, uid: str) -> str:
    job = _hash(place, namespace, name)
    return f"{_readable(name)}.{_readable(namespace)}-{job}-{_hash(uid)}"


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


def _unused(folder: Path, unchanged: float) -> bool:
    """Whether no process reads or writes a folder that was not changed for so many seconds."""
    try:
        descriptor = os.open(folder / "used", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return unchanged > LEFTOVER
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno != errno.EWOULDBLOCK and unchanged > LEFTOVER
    finally:
        os.close(descriptor)
    return True


def _locked(path: Path, kind: int, *, wait: bool = False) -> int | None:
    """A lock on a file, to be closed; None where another has it, or the file system has none."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def _make(folder: Path) -> None:
    # Logs may hold secrets: nobody else gets to read any of them.
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


class Damaged(Exception):
    """A file of the archive makes no sense; the text says why."""


class JobHead(msgspec.Struct, frozen=True, kw_only=True):
    """`job.json`: whose logs they are, and how the job was last seen."""

    format: int
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


class LogHead(msgspec.Struct, frozen=True, kw_only=True):
    """`LOG.json`: whose log it is, and whether all of it was read."""

    format: int
    pod: str
    uid: str
    container: str
    run: Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
    chief: bool
    worker: Annotated[int, msgspec.Meta(ge=0, le=_MOST)] | None
    ended: bool

    @property
    def source(self) -> Source:
        """Whose log it is."""
        return Source(
            pod=self.pod,
            uid=self.uid,
            container=self.container,
            run=self.run,
            chief=self.chief,
            worker=self.worker,
        )


class _Version(msgspec.Struct):
    format: int = 0


Head = TypeVar("Head", JobHead, LogHead)


def _head(path: Path, kind: type[Head]) -> Head | None:
    """What a JSON file says; None where there is none, or another version has written it.

    Damaged where it makes no sense, OSError where it cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        # Names are whatever a server says, lone surrogates too, which msgspec's own reader refuses.
        value = json.loads(data)
        if msgspec.convert(value, _Version).format != FORMAT:
            return None
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, ValueError, ArithmeticError, RecursionError) as error:
        raise Damaged(str(error)) from error


def _sound_head(path: Path, kind: type[Head]) -> Head | None:
    """The same, and None for one that makes no sense: it is about to be written anew."""
    try:
        return _head(path, kind)
    except Damaged:
        return None


def _replace(path: Path, value: Mapping[str, Any]) -> None:
    """Write a file so that a reader sees the old text or the new, never a part."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(value, file)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
