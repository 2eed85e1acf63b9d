"""The state folder of the local engine: one folder per job, one lock for placing.

    $XDG_STATE_HOME/arena-topo/             ~/.local/state/arena-topo where that is not set
      lock                                  held while GPUs are given out
      changes                               touched whenever GPUs or places in the queue get free
      jobs/NAMESPACE/NAME/
        manifest.json                       the objects of the plan, as a cluster would get them
        submission.json                     what the supervisor must know besides (see Submission)
        record                              where the job stands (see Record)
        events                              what happened, one JSON object a line
        alive                               locked by the supervisor for as long as it lives
        room                                space for the record of the job's end on a full disk
        deleted                             locked by whoever deletes the job
        held                                there while the job is suspended, or is to be
        unwanted                            there if the job deletes itself: its supervisor does it
        pods/POD/env                        its environment
        pods/POD/{log,times,runs,kept-from} output, and when it was written (see logfile)

The folder must be the user's own and closed to others. What a killed submitter or deleter leaves
in it (jobs/NAMESPACE/.new-*, .gone-*) is removed by who lists jobs next.

Records and everything else are replaced as wholes, so that a reader never sees half a file, and a
process killed at any point leaves a job that others understand, or none. A folder's name may pass
on to another job, so what belongs together is read and written through one open folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from arena_topo.engines import Event, Phase
from arena_topo.engines.local import decoding, shape
from arena_topo.engines.local.decoding import is_moment
from arena_topo.engines.local.processes import Process
from arena_topo.engines.private import require_private
from arena_topo.errors import ArenaError, NotFound, UsageError
from arena_topo.manifests import Forecast, Guarantee, Manifest
from arena_topo.solver import BEYOND, NODE_TIER, Request

FORMAT = 1
"""The version of the files; a reader refuses those of a later one."""

_ROOM, _ROOM_OF_POD = 1 << 16, 1 << 14
"""Bytes that a job's records and the first lines of its logs take, beside its environments."""

_FULL = 1 << 14
"""Bytes without which a record may not be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What was asked for, which never changes.

    `request` is None for a job whose GPUs are only counted. `emulate` names the machines to
    pretend, None for this machine. `environment` and `folder` are those of whoever submitted the
    job. `host` is the machine it runs on. `remarks` are lines for the launcher's log.
    """

    uid: str
    name: str
    namespace: str
    created: float
    host: str
    workers: int
    gpus: int
    emulate: str | None = None
    request: Request | None = None
    priority: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str = "/"
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRecord:
    """When a pod's process started and ended (Unix seconds), and with what exit code."""

    started: float | None = None
    finished: float | None = None
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Where a job stands. `forecast` holds its GPUs while `phase` is not over."""

    phase: Phase
    forecast: Forecast
    supervisor: Process | None = None
    reason: str | None = None
    finished: float | None = None
    exit_code: int | None = None
    scratch: str | None = None
    pods: Mapping[str, PodRecord] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One job as it is written down."""

    folder: Path
    submission: Submission
    record: Record

    @property
    def waiting(self) -> bool:
        """Whether the job is in the queue."""
        return not self.record.phase.over and self.record.forecast.state == "waiting"

    @property
    def holding(self) -> bool:
        """Whether the job has GPUs."""
        return not self.record.phase.over and self.record.forecast.state == "placed"


MOST_WORKERS = 1 << 15
"""Workers of a job, at most: each is a process, and Linux has no more of them by default
(proc(5), pid_max)."""

_MOST_GPUS = 1 << 12
"""GPUs of a machine, at most: far more than there are in one."""

_LAST_EXIT_CODE = 255

_LEVELS = {None, NODE_TIER, BEYOND}
"""What a job may ask of the network where there is none."""

_FOLDER = re.compile(r"[a-z0-9A-Z]([-a-z0-9A-Z_.]*[a-z0-9A-Z])?")
"""What jobs, namespaces and pods may be called, since folders are named after them."""

_UNFINISHED = (".new-", ".gone-")
"""How the folders begin of jobs that are being written, and being removed."""

_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def state_folder(environment: Mapping[str, str]) -> Path:
    """Where the state lives; ArenaError where the user has no home."""
    named = environment.get("XDG_STATE_HOME", "")
    base = Path()
    # The XDG specification says to ignore relative paths.
    if named.startswith("/"):
        base = Path(named)
    elif environment.get("HOME") != "":
        with contextlib.suppress(RuntimeError):
            base = Path("~/.local/state").expanduser()
    if base.is_absolute():
        return base / "arena-topo"
    raise ArenaError(
        "there is no place to keep local jobs",
        why="neither XDG_STATE_HOME nor HOME is set, and the user has no home folder",
        hint="set XDG_STATE_HOME to a folder that you may write to",
    )


class Broken(ArenaError):
    """A job whose folder makes no sense: cut off by a full disk, edited, or of another version."""

    def __init__(self, folder: Path, why: str) -> None:
        name, namespace = folder.name, folder.parent.name
        super().__init__(
            f"the local job {name} in namespace {namespace} cannot be read",
            why=why,
            hint=f"arena-topo delete {name} -n {namespace}",
        )
        self.folder = folder

    @property
    def uid(self) -> str | None:
        """The mark of its processes, if that at least can be read."""
        try:
            with _opened(self.folder) as opened:
                return _uid(opened)
        except (OSError, ValueError):
            return None


def _folder_name(word: str, what: str) -> str:
    if _FOLDER.fullmatch(word) is None:
        raise UsageError(f"{word!r} is not a {what}")
    return word


class Ledger:
    """All local jobs of one user; every method that may fail for the disk raises ArenaError."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.jobs = root / "jobs"
        self._changes = root / "changes"

    def folder(self, name: str, namespace: str) -> Path:
        """The folder of a job; UsageError where the names cannot be names of folders."""
        return self._space(namespace) / _folder_name(name, "job name")

    def _space(self, namespace: str) -> Path:
        """The folder of a namespace; UsageError as for `folder`."""
        return self.jobs / _folder_name(namespace, "namespace")

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep every other process from giving out GPUs, adding jobs or removing them."""
        with self._writing():
            self._make()
            descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with self._writing():
                if os.fstat(descriptor).st_uid != os.geteuid():
                    raise PermissionError("the file lock in it belongs to another user")
                # Not lockf: its locks are the process's, so threads would not keep each other out.
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def keep(self, entry: Entry) -> int:
        """Show for as long as this process lives that the job has a supervisor.

        The file descriptor that is returned must stay open, and be passed on to nobody.
        """
        with self._writing():
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(entry.folder / "alive", flags, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        return descriptor

    def kept(self, entry: Entry) -> bool:
        """Whether a supervisor lives, even one whose process cannot be seen from here.

        Containers may share a state folder and a host name, but not their processes.
        """
        return _is_locked(entry.folder / "alive")

    @contextlib.contextmanager
    def deleting(self, entry: Entry) -> Iterator[None]:
        """Show for as long as it takes that a job is being deleted.

        Shown by a lock, which ends with its process: a job whose deleter was killed is there again.
        """
        descriptor = -1
        with contextlib.suppress(OSError):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(entry.folder / "deleted", flags, 0o600)
            # Who deletes it at the same time shows it as well.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            yield
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def is_deleted(self, entry: Entry) -> bool:
        """Whether a job is being deleted."""
        return _is_locked(entry.folder / "deleted")

    def hold(self, entry: Entry) -> None:
        """Mark a job to be held once it is ended; the caller holds the lock and has seen it."""
        with self._writing():
            (entry.folder / "held").touch(mode=0o600)

    def let_go(self, entry: Entry) -> None:
        """Take the mark of `hold` off again."""
        with self._writing():
            (entry.folder / "held").unlink(missing_ok=True)

    def is_held(self, entry: Entry) -> bool:
        """Whether a job is to be held once it is ended."""
        return (entry.folder / "held").exists()

    def give_up(self, entry: Entry) -> None:
        """Mark a job to be removed by its supervisor once its processes have ended."""
        with self._writing():
            (entry.folder / "unwanted").touch(mode=0o600)

    def is_given_up(self, entry: Entry) -> bool:
        """Whether a job is to be removed once its processes have ended."""
        return (entry.folder / "unwanted").exists()

    def holds(self, entry: Entry) -> bool:
        """Whether the job is still there; True where the disk does not say."""
        try:
            with _opened(entry.folder) as opened:
                return _uid(opened) == entry.submission.uid
        except (FileNotFoundError, NotADirectoryError):
            return False
        except (OSError, ValueError):
            return True

    def entry(self, name: str, namespace: str) -> Entry:
        """One job; NotFound if there is none."""
        found = self.read(self.folder(name, namespace))
        if found is None:
            raise not_found(name, namespace)
        return found

    def entries(self, namespace: str | None = None) -> tuple[Entry, ...]:
        """All jobs of a namespace or, for None, of all, oldest first; without broken ones."""
        found = []
        for folder in self._jobs(namespace):
            with contextlib.suppress(Broken):
                entry = _read(folder)
                if entry is not None:
                    found.append(entry)
        return tuple(sorted(found, key=lambda one: (one.submission.created, one.submission.uid)))

    def broken(self, namespace: str | None = None) -> tuple[Broken, ...]:
        """The jobs of a namespace or, for None, of all, that cannot be read."""
        found = []
        for folder in self._jobs(namespace):
            try:
                _read(folder)
            except Broken as error:
                found.append(error)
        return tuple(found)

    def _jobs(self, namespace: str | None) -> Iterator[Path]:
        self._require_private()
        for space in [self._space(namespace)] if namespace else _folders(self.jobs):
            require_private(space)
            folders = _folders(space)
            if any(one.name.startswith(_UNFINISHED) for one in folders):
                self._sweep(space)
            # Folders with other names are jobs still being written, or none of this program's.
            yield from (one for one in folders if _FOLDER.fullmatch(one.name))

    def _sweep(self, space: Path) -> None:
        """Remove what submitters and deleters left that were killed at their work.

        They work while they hold the lock: what is unfinished while nobody has it stays so.
        """
        with contextlib.suppress(OSError):
            descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for one in _folders(space):
                    if one.name.startswith(_UNFINISHED):
                        shutil.rmtree(one, ignore_errors=True)
                # The folder of a namespace goes with its last job.
                space.rmdir()
            finally:
                os.close(descriptor)

    def read(self, folder: Path) -> Entry | None:
        """The job in a folder; None if there is none; Broken if it makes no sense."""
        self._require_private()
        require_private(folder.parent)
        return _read(folder)

    def manifests(self, name: str, namespace: str) -> tuple[Manifest, ...]:
        """The objects of a job, as a cluster would have them; none if there is no such job."""
        folder = self.folder(name, namespace)
        if self.read(folder) is None:
            return ()
        try:
            return _manifests(folder)
        except (FileNotFoundError, NotADirectoryError):
            return ()

    def create(
        self,
        submission: Submission,
        record: Record,
        objects: Iterable[Manifest],
        start: Callable[[Path], Process],
    ) -> Entry:
        """Add a job, whole or not at all; the caller holds the lock and has looked for the name.

        `start` starts the supervisor, which must wait for the lock, and may write its diary into
        the folder it is given. It is in the record before anybody can read that there is a job.
        """
        folder = self.folder(submission.name, submission.namespace)
        with self._writing():
            self._make(folder.parent)
            made = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
            try:
                _written(made / "manifest.json", json.dumps(list(objects)))
                _written(made / "submission.json", _submitted(submission))
                _take_room(made, submission)
                record = replace(record, supervisor=start(made))
                _written(made / "record", _dumped(record))
                # Remains of a job that was never finished being made have no record: no job.
                shutil.rmtree(folder, ignore_errors=True)
                made.rename(folder)
            except BaseException:
                shutil.rmtree(made, ignore_errors=True)
                raise
        # Not announced: whoever waits gains nothing by one more job.
        return Entry(folder=folder, submission=submission, record=record)

    def write(self, entry: Entry, record: Record, *, announce: bool = True) -> Entry:
        """Replace the record of a job; `announce` tells the others who wait.

        NotFound if the job was removed, also where another has its name now.
        """
        missing = not_found(entry.submission.name, entry.submission.namespace)
        with self._writing():
            try:
                with _opened(entry.folder) as opened:
                    if _uid(opened) != entry.submission.uid:
                        raise missing
                    _replace(opened, "record", _dumped(record))
            except (FileNotFoundError, NotADirectoryError):
                raise missing from None
            except ValueError as error:
                raise _unreadable(entry.folder, error) from error
        if announce:
            self.announce()
        return replace(entry, record=record)

    def remove(self, entry: Entry) -> None:
        """Remove a job and all its files."""
        self.discard(entry.folder)

    def discard(self, folder: Path) -> None:
        """Remove the folder of a job, whatever is in it."""
        with self._writing():
            # Renamed first: half a removed job must never be read as a job.
            gone = folder.with_name(f".gone-{uuid.uuid4()}")
            folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
            with contextlib.suppress(OSError):
                folder.parent.rmdir()
        self.announce()

    def announce(self) -> None:
        """Tell everyone who waits for GPUs that something has changed.

        Never an error, since what has changed is already written: who waits looks from time to
        time anyway.
        """
        with contextlib.suppress(OSError):
            self._changes.touch(mode=0o600)
            # Two touches within one tick of the file system's clock would look like one.
            os.utime(self._changes, ns=(time.time_ns(), time.time_ns()))

    def changes(self) -> int:
        """A number that is another one after every `announce`."""
        try:
            return self._changes.stat().st_mtime_ns
        except OSError:
            return 0

    def make_room(self, entry: Entry) -> None:
        """Give back the room that was kept for the record of the job's end."""
        with contextlib.suppress(OSError):
            (entry.folder / "room").unlink()

    def is_full(self) -> bool:
        """Whether the disk has no room left to write down what happens to jobs."""
        try:
            disk = os.statvfs(self.root)
        except OSError:
            return False
        # Some blocks may be kept for root alone; file systems without a size have no blocks.
        free = disk.f_bfree if os.geteuid() == 0 else disk.f_bavail
        return disk.f_blocks > 0 and free * disk.f_frsize < _FULL

    def note(self, entry: Entry, event: Event) -> None:
        """Write down something that happened; never an error, since the work comes first."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with contextlib.suppress(OSError):
            descriptor = os.open(entry.folder / "events", flags, 0o600)
            with os.fdopen(descriptor, "a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(event)) + "\n")

    def events(self, entry: Entry) -> tuple[Event, ...]:
        """What happened to a job, oldest first."""
        try:
            lines = (entry.folder / "events").read_bytes().splitlines()
        except OSError:
            return ()
        found = []
        for line in lines:
            # A full disk leaves a last line that is cut off.
            with contextlib.suppress(ValueError):
                event = decoding.decoded(line, Event, "events")
                if is_moment(event.when):
                    found.append(event)
        return tuple(found)

    def manifest(self, entry: Entry) -> Manifest:
        """The MPIJob as it was submitted; OSError where it is not there, Broken if it is none."""
        return _manifests(entry.folder)[0]

    def _make(self, *folders: Path) -> None:
        # Environments and logs may hold secrets: nobody else gets to read any of it.
        self.root.parent.mkdir(parents=True, exist_ok=True)
        for one in (self.root, self.jobs, *folders):
            one.mkdir(mode=0o700, exist_ok=True)
            require_private(one)

    def _require_private(self) -> None:
        """Make sure that nobody else can change or read what is in the state folder."""
        require_private(self.root)
        require_private(self.jobs)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ArenaError(
                f"cannot keep local jobs in {self.root}",
                why=error.strerror or str(error),
                hint="make room there, or set XDG_STATE_HOME to a folder that you may write to",
            ) from error


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno == errno.EWOULDBLOCK
    finally:
        os.close(descriptor)
    return False


def _take_room(folder: Path, submission: Submission) -> None:
    """OSError if the disk has no room for what a job's supervisor is about to write.

    Some of it is kept, for the record of the job's end.
    """
    environment = len(json.dumps(dict(submission.environment)))
    descriptor = os.open(folder / "room", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        count = _ROOM + (submission.workers + 1) * (_ROOM_OF_POD + environment)
        os.posix_fallocate(descriptor, 0, count)
        os.ftruncate(descriptor, _FULL)
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL}:
            raise
    finally:
        os.close(descriptor)


def not_found(name: str, namespace: str) -> NotFound:
    """The error of a job that is not there."""
    return NotFound(f"Not found training job {name} in namespace {namespace}")


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(one for one in folder.iterdir() if one.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return []
        raise ArenaError(
            f"cannot read the local jobs in {folder}", why=error.strerror or str(error)
        ) from error


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """A folder that stays the same one while it is renamed or replaced by another."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        # No folder has a name that no folder can have.
        if error.errno == errno.ENAMETOOLONG:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from error
        raise
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError("it belongs to another user")
        yield descriptor
    finally:
        os.close(descriptor)


def _written(path: Path, text: str) -> None:
    with _opened(path.parent) as opened:
        _replace(opened, path.name, text)


def _replace(opened: int, name: str, text: str) -> None:
    """Write a file of a folder so that a reader sees the old text or the new, never a part."""
    temporary = f".{name}-{uuid.uuid4().hex}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600, dir_fd=opened)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, name, src_dir_fd=opened, dst_dir_fd=opened)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=opened)
        raise


def _submitted(submission: Submission) -> str:
    return json.dumps(asdict(submission), default=lambda reason: reason.value)


def _dumped(record: Record) -> str:
    return json.dumps({"format": FORMAT, "record": asdict(record)})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Marked:
    """What is always read of `submission.json`."""

    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """What is read of `record` before all else: whether the rest of it is understood."""

    format: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    """The file `record`, in the version of this program."""

    record: Record


def _uid(opened: int) -> str:
    """The mark of a job's processes; ValueError for what cannot be one."""
    found = decoding.read(opened, "submission.json", _Marked).uid
    # Every supervisor carries an empty mark, since it is of no job.
    if _UID.fullmatch(found) is None:
        raise ValueError("submission.json: uid is no UUID")
    return found


def _read(folder: Path) -> Entry | None:
    """The job in a folder that is trusted; None if there is none; Broken if it makes no sense."""
    try:
        with _opened(folder) as opened:
            submission = decoding.read(opened, "submission.json", Submission)
            recorded = decoding.read(opened, "record", dict[str, Any])
        if decoding.converted(recorded, _Version, "record").format == FORMAT:
            record = decoding.converted(recorded, _Recorded, "record").record
            entry = Entry(folder=folder, submission=submission, record=record)
            _check(entry)
            return entry
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise _unreadable(folder, error) from error
    raise Broken(folder, f"{folder} was written by another version of arena-topo")


def _manifests(folder: Path) -> tuple[Manifest, ...]:
    """The objects of a job; OSError where they are not there, Broken where they are none."""
    try:
        with _opened(folder) as opened:
            found = decoding.read(opened, "manifest.json", list[Manifest])
        _require_objects(found)
    except ValueError as error:
        raise _unreadable(folder, error) from error
    return tuple(found)


def _require_objects(found: list[Manifest]) -> None:
    if not found:
        raise ValueError("manifest.json: there is no MPIJob in it")
    decoding.converted(found, list[shape.Object], "manifest.json")
    decoding.converted(found[0], shape.MPIJob, "manifest.json")


def _unreadable(folder: Path, error: Exception) -> Broken:
    return Broken(folder, f"its folder {folder} cannot be read: {error}")


def _check(entry: Entry) -> None:
    """Refuse a job in whose files something cannot be so, with a ValueError."""
    for complaint in _complaints(entry):
        raise ValueError(complaint)


def _complaints(entry: Entry) -> Iterator[str]:
    """What cannot be so in the files of a job, although everything has the right type."""
    job = entry.submission
    if _UID.fullmatch(job.uid) is None:
        yield "submission.json: uid is no UUID"
    if (job.name, job.namespace) != (entry.folder.name, entry.folder.parent.name):
        yield "submission.json: it is the submission of another job"
    if not is_moment(job.created):
        yield "submission.json: created is no time"
    if any("\0" in word for pair in job.environment.items() for word in pair):
        yield "submission.json: environment has a zero byte"
    sizes: list[tuple[int, int]] = [(job.workers, job.gpus)]
    if job.request is not None:
        sizes.append((job.request.workers, job.request.gpus))
    for workers, gpus in sizes:
        if not 0 <= workers <= MOST_WORKERS or not 0 <= gpus <= _MOST_GPUS:
            yield "submission.json: workers or gpus is out of range"
    if job.request is not None and not {job.request.required, job.request.preferred} <= _LEVELS:
        yield "submission.json: request names a level of a network that one machine does not have"
    yield from _odd_record(entry.record, job.workers)


def _odd_record(record: Record, workers: int) -> Iterator[str]:
    pods = record.pods.values()
    moments = [record.finished, *(when for pod in pods for when in (pod.started, pod.finished))]
    if not all(when is None or is_moment(when) for when in moments):
        yield "record: a time is out of range"
    codes = [record.exit_code, *(pod.exit_code for pod in pods)]
    if not all(code is None or 0 <= code <= _LAST_EXIT_CODE for code in codes):
        yield "record: an exit code is out of range"
    if not all(map(_FOLDER.fullmatch, record.pods)):
        yield "record: pods has a name that is none of a folder"
    if record.forecast.guarantee not in {None, *Guarantee}:
        yield "record: forecast.guarantee is unknown"
    for worker, _, gpus in record.forecast.workers:
        if worker not in range(workers) or not all(0 <= gpu < _MOST_GPUS for gpu in gpus):
            yield "record: forecast.workers is out of range"
