"""The state folder of the local engine: one folder per job, one lock for placing.

    $XDG_STATE_HOME/arena-topo/             ~/.local/state/arena-topo where that is not set
      lock                                  locked while GPUs are given out
      changes                               touched whenever GPUs or places in the queue get free
      jobs/NAMESPACE/NAME/
        manifest.json                       the objects of the plan, as a cluster would get them
        submission.json                     what the supervisor must know besides (see Submission)
        record                              the state of the job (see JobState)
        events                              what happened, one JSON object a line
        alive                               locked by the supervisor for as long as it lives
        deleted                             locked by whoever deletes the job
        room                                space for the record of the job's end on a full disk
        held                                there while the job is suspended, or is to be
        unwanted                            there if the job deletes itself: its supervisor does it
        pods.json                           the environments of its pods, and what mpirun reads
        pods/POD/RUN-START.log              what a pod said (see logs)

The folder must be the user's own and closed to others. What a killed submitter or deleter leaves
in it (jobs/NAMESPACE/.new-*, .gone-*) is removed by who lists jobs next.

Files are replaced atomically, so that a reader never sees half a file, and a process killed at any
point leaves a job that others understand, or none. A folder's name may pass on to another job, so
what belongs together is read and written through one open folder. A lock is a file that is locked
with flock: it ends with its process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from arena_topo.bandwidth import Wire
from arena_topo.engines import Event, Phase
from arena_topo.engines.local.processes import Process
from arena_topo.engines.private import require_private
from arena_topo.errors import ArenaError, NotFound, UsageError
from arena_topo.files import replace_file
from arena_topo.manifests import Forecast, Guarantee, Manifest
from arena_topo.solver import BEYOND, NODE_TIER, Request

FORMAT = 1
"""The version of the files; a reader refuses those of a later one."""

CONTAINER = "mpi"
"""What arena's manifests call the one container of a pod; here it has no walls."""

HELD, UNWANTED = "held", "unwanted"
"""The marks of a job: to be suspended, and to be removed by its supervisor, once it is ended."""

MOST_WORKERS = 1 << 15
"""Workers of a job, at most: each is a process, and Linux has no more of them by default
(proc(5), pid_max)."""

_MOST_GPUS = 1 << 12
"""GPUs of a machine, at most: far more than there are in one."""

_ROOM, _ROOM_OF_POD = 1 << 17, 1 << 12
"""Bytes that a job's records and the first lines of its log take, beside its environment."""

_RESERVED = 1 << 14
"""Bytes that are reserved for the record of a job's end."""

_LONGEST_NAME = 255
"""Bytes of the name of a file, at most (NAME_MAX, limits.h)."""

_FOLDER = r"[a-z0-9A-Z]([-a-z0-9A-Z_.]*[a-z0-9A-Z])?"
"""What jobs, namespaces and pods may be called, since folders are named after them."""

_UNFINISHED = (".new-", ".gone-")
"""How the folders begin of jobs that are being written, and being removed."""

# Unix seconds; later than the year 9892 there is no date in every time zone.
Moment = Annotated[float, msgspec.Meta(ge=0, lt=250_000_000_000)]
ExitCode = Annotated[int, msgspec.Meta(ge=0, le=255)]
_Workers = Annotated[int, msgspec.Meta(ge=0, le=MOST_WORKERS)]
_Gpus = Annotated[int, msgspec.Meta(ge=0, le=_MOST_GPUS)]
_Name = Annotated[str, msgspec.Meta(pattern=rf"^{_FOLDER}\Z")]
# Every supervisor carries an empty uid as the mark of its job, since it is of none.
_Uid = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\\Z")]
# No process can have a variable with a zero byte.
_Text = Annotated[str, msgspec.Meta(pattern=r"^[^\0]*\Z")]


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for, which never changes.

    `request` is None for a job whose GPUs are only counted. `emulate` names the machines to
    pretend, None for this machine. `environment` and `folder` are those of whoever submitted the
    job. `host` is the machine it runs on. `remarks` are lines for the launcher's log. `digest` is
    the SHA-256 of the objects, empty in what a version before wrote.
    """

    uid: _Uid
    name: str
    namespace: str
    created: Moment
    host: str
    workers: _Workers
    gpus: _Gpus
    emulate: str | None = None
    request: Request | None = None
    priority: str = ""
    environment: Mapping[_Text, _Text] = msgspec.field(default_factory=dict)
    folder: str = "/"
    remarks: tuple[str, ...] = ()
    digest: str = ""

    @property
    def counted(self) -> Request:
        """The request by numbers alone, of a job whose GPUs are only counted."""
        return Request(
            workers=max(1, self.workers), gpus=max(1, self.gpus), mix_models=True, wire=Wire.RDMA
        )


class PodState(msgspec.Struct, frozen=True, kw_only=True):
    """When a pod's process started and ended (Unix seconds), and with what exit code."""

    started: Moment | None = None
    finished: Moment | None = None
    exit_code: ExitCode | None = None


class JobState(msgspec.Struct, frozen=True, kw_only=True):
    """What a job has come to. `forecast` holds its GPUs while `phase` is not over."""

    phase: Phase
    forecast: Forecast
    supervisor: Process | None = None
    reason: str | None = None
    finished: Moment | None = None
    exit_code: ExitCode | None = None
    scratch: str | None = None
    pods: Mapping[_Name, PodState] = msgspec.field(default_factory=dict)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job as it is written down."""

    folder: Path
    submission: Submission
    state: JobState

    @property
    def waiting(self) -> bool:
        """Whether the job is in the queue."""
        return not self.state.phase.over and self.state.forecast.state == "waiting"

    @property
    def holding(self) -> bool:
        """Whether the job has GPUs."""
        return not self.state.phase.over and self.state.forecast.state == "placed"

    @property
    def supervised(self) -> bool:
        """Whether a supervisor lives, even one whose process cannot be seen from here.

        Containers may share a state folder and a host name, but not their processes.
        """
        return _is_locked(self.folder / "alive")

    @property
    def being_deleted(self) -> bool:
        """Whether somebody deletes the job; it is there again if its deleter is killed."""
        return _is_locked(self.folder / "deleted")

    def is_marked(self, mark: str) -> bool:
        """Whether the job has a mark."""
        return (self.folder / mark).exists()

    def same(self, other: Job | None) -> bool:
        """Whether another is this very job, and not one that has its name by now."""
        return other is not None and other.submission.uid == self.submission.uid

    def changed(self, **changes: Any) -> JobState:
        """Its state with some changes."""
        return msgspec.structs.replace(self.state, **changes)


def launcher_name(job: str) -> str:
    """The name of a job's launcher pod."""
    return f"{job}-launcher"


def worker_name(job: str, index: int) -> str:
    """The name of one of a job's worker pods."""
    return f"{job}-worker-{index}"


def not_found(name: str, namespace: str) -> NotFound:
    """The error of a job that is not there."""
    return NotFound(f"Not found training job {name} in namespace {namespace}")


class Broken(ArenaError):
    """A job whose folder makes no sense: cut off by a full disk, edited, or of another version."""

    def __init__(self, folder: Path, why: object) -> None:
        name, namespace = folder.name, folder.parent.name
        super().__init__(
            f"the local job {name} in namespace {namespace} cannot be read",
            why=f"its folder {folder} cannot be read: {why}",
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


class JobStore:
    """All local jobs of one user; every method that may fail for the disk raises ArenaError."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._jobs = root / "jobs"
        self._changes = root / "changes"

    def folder(self, name: str, namespace: str) -> Path:
        """The folder of a job; UsageError where the names cannot be names of folders."""
        return self._space(namespace) / _folder_name(name, "job name")

    def _space(self, namespace: str) -> Path:
        return self._jobs / _folder_name(namespace, "namespace")

    # ------------------------------------------------------------------ locks and marks

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep every other process from giving out GPUs, adding jobs or removing them."""
        with self._writing():
            self._make()
            descriptor = _locked(self.root / "lock")
        try:
            yield
        finally:
            os.close(descriptor)

    def supervise(self, job: Job) -> int:
        """Take the lock that shows, for as long as this process lives, that a job is supervised.

        The descriptor that holds it.
        """
        with self._writing():
            return _locked(job.folder / "alive")

    @contextlib.contextmanager
    def deleting(self, job: Job) -> Iterator[None]:
        """Show for as long as it takes that a job is being deleted."""
        with contextlib.ExitStack() as closing:
            # Who deletes it at the same time shows it as well.
            with contextlib.suppress(OSError):
                closing.callback(os.close, _locked(job.folder / "deleted", wait=False))
            yield

    def mark(self, job: Job, mark: str, *, on: bool = True) -> None:
        """Put a mark on a job, or take it off."""
        with self._writing():
            if on:
                (job.folder / mark).touch(mode=0o600)
            else:
                (job.folder / mark).unlink(missing_ok=True)

    # ------------------------------------------------------------------ reading

    def job(self, name: str, namespace: str) -> Job:
        """One job; NotFound if there is none, Broken if it makes no sense."""
        found = self.read(self.folder(name, namespace))
        if found is None:
            raise not_found(name, namespace)
        return found

    def jobs(self, namespace: str | None = None) -> tuple[tuple[Job, ...], tuple[Broken, ...]]:
        """All jobs of a namespace or, for None, of all, oldest first; and those that are broken."""
        self._require_private()
        found: list[Job] = []
        broken: list[Broken] = []
        for space in [self._space(namespace)] if namespace else _folders(self._jobs):
            require_private(space)
            folders = _folders(space)
            if any(one.name.startswith(_UNFINISHED) for one in folders):
                self._sweep(space)
            for folder in folders:
                # Folders with other names are jobs still being written, or none of this program's.
                if re.fullmatch(_FOLDER, folder.name):
                    try:
                        found += filter(None, [_read(folder)])
                    except Broken as error:
                        broken.append(error)
        found.sort(key=lambda one: (one.submission.created, one.submission.uid))
        return tuple(found), tuple(broken)

    def _sweep(self, space: Path) -> None:
        """Remove what submitters and deleters left that were killed at their work.

        They work while they hold the lock: what is unfinished while nobody has it stays so.
        """
        with contextlib.suppress(OSError):
            descriptor = _locked(self.root / "lock", wait=False)
            try:
                for one in _folders(space):
                    if one.name.startswith(_UNFINISHED):
                        shutil.rmtree(one, ignore_errors=True)
                # The folder of a namespace goes with its last job.
                space.rmdir()
            finally:
                os.close(descriptor)

    def read(self, folder: Path) -> Job | None:
        """The job in a folder; None if there is none; Broken if it makes no sense."""
        self._require_private()
        require_private(folder.parent)
        return _read(folder)

    def contains(self, job: Job) -> bool:
        """Whether the job is still there; True where the disk does not say."""
        try:
            with _opened(job.folder) as opened:
                return _uid(opened) == job.submission.uid
        except (FileNotFoundError, NotADirectoryError):
            return False
        except (OSError, ValueError):
            return True

    def objects(self, job: Job) -> tuple[Manifest, ...]:
        """The objects of a job, the MPIJob first, as a cluster would have them.

        OSError where they are not there, Broken where they are not those that were submitted.
        """
        data = (job.folder / "manifest.json").read_bytes()
        if job.submission.digest not in {"", _digest(data)}:
            raise Broken(job.folder, "manifest.json: it was changed after the job was submitted")
        return tuple(decoded(data, list[Manifest], "manifest.json"))

    def events(self, job: Job) -> tuple[Event, ...]:
        """What happened to a job, oldest first."""
        try:
            lines = (job.folder / "events").read_bytes().splitlines()
        except OSError:
            return ()
        found = []
        for line in lines:
            # A full disk leaves a last line that is cut off.
            with contextlib.suppress(ValueError):
                event = decoded(line, Event, "events")
                msgspec.convert(event.when, Moment)
                found.append(event)
        return tuple(found)

    # ------------------------------------------------------------------ writing

    def create(
        self,
        submission: Submission,
        state: JobState,
        objects: Iterable[Manifest],
        start: Callable[[Submission, Path], Process],
    ) -> Job:
        """Add a job, whole or not at all; the caller holds the lock and has looked for the name.

        `start` starts the supervisor, which must wait for the lock, and may write its diary into
        the folder it is given. It is in the record before anybody can read that there is a job.
        """
        folder = self.folder(submission.name, submission.namespace)
        manifest = json.dumps(list(objects)).encode()
        submission = msgspec.structs.replace(submission, digest=_digest(manifest))
        submitted = _encoded(submission)
        with self._writing():
            self._make(folder.parent)
            made = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
            try:
                replace_file(made / "manifest.json", manifest)
                replace_file(made / "submission.json", submitted)
                pods = (submission.workers + 1) * _ROOM_OF_POD
                _reserve(made / "room", _ROOM + pods + len(submitted))
                state = msgspec.structs.replace(state, supervisor=start(submission, made))
                replace_file(made / "record", _recorded(state))
                # Remains of a job that was never finished being made have no record: no job.
                shutil.rmtree(folder, ignore_errors=True)
                made.rename(folder)
            except BaseException:
                shutil.rmtree(made, ignore_errors=True)
                raise
        return Job(folder=folder, submission=submission, state=state)

    def write(self, job: Job, state: JobState) -> Job:
        """Replace the state of a job; NotFound if it was removed, even if its name is in use."""
        missing = not_found(job.submission.name, job.submission.namespace)
        with self._writing():
            try:
                with _opened(job.folder) as opened:
                    if _uid(opened) != job.submission.uid:
                        raise missing
                    replace_file("record", _recorded(state), folder=opened)
            except (FileNotFoundError, NotADirectoryError):
                raise missing from None
            except ValueError as error:
                raise Broken(job.folder, error) from error
        written = msgspec.structs.replace(job, state=state)
        if (job.waiting, job.holding) != (written.waiting, written.holding):
            self._notify()
        return written

    def remove(self, folder: Path) -> None:
        """Remove the folder of a job, whatever is in it."""
        with self._writing():
            # Renamed first: half a removed job must never be read as a job.
            gone = folder.with_name(f".gone-{uuid.uuid4()}")
            folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
            with contextlib.suppress(OSError):
                folder.parent.rmdir()
        self._notify()

    def _notify(self) -> None:
        """Tell everyone who waits for GPUs that some are free, or a place in the queue.

        Never an error, since what has changed is already written: who waits looks from time to
        time anyway.
        """
        with contextlib.suppress(OSError):
            self._changes.touch(mode=0o600)
            # Two touches within one tick of the file system's clock would look like one.
            os.utime(self._changes)

    def generation(self) -> int:
        """A number that is another one once GPUs or places in the queue have become free."""
        try:
            return self._changes.stat().st_mtime_ns
        except OSError:
            return 0

    def add_event(
        self, job: Job, reason: str, message: str, *, kind: str = "Normal", source: str = ""
    ) -> None:
        """Write down something that happened; never an error, since the work comes first."""
        event = Event(
            source=source or f"mpijob/{job.submission.name}",
            kind=kind,
            when=time.time(),
            reason=reason,
            message=message,
        )
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with contextlib.suppress(OSError):
            descriptor = os.open(job.folder / "events", flags, 0o600)
            with os.fdopen(descriptor, "a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(event)) + "\n")

    def make_room(self, job: Job) -> None:
        """Give back the room that was reserved for the record of the job's end."""
        with contextlib.suppress(OSError):
            (job.folder / "room").unlink()

    def _make(self, *folders: Path) -> None:
        # Environments and logs may hold secrets: nobody else gets to read any of it.
        self.root.parent.mkdir(parents=True, exist_ok=True)
        for one in (self.root, self._jobs, *folders):
            one.mkdir(mode=0o700, exist_ok=True)
            require_private(one)

    def _require_private(self) -> None:
        """Make sure that nobody else can change or read what is in the state folder."""
        require_private(self.root)
        require_private(self._jobs)

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


def _locked(path: Path, *, wait: bool = True) -> int:
    """Lock a file; the descriptor that holds the lock, to be passed on to nobody.

    OSError where it is another user's, and without `wait` where it is locked.
    """
    with contextlib.ExitStack() as closing:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        closing.callback(os.close, descriptor)
        _require_own(descriptor, f"the file {path.name} in it")
        # Not lockf: its locks are the process's, so threads would not keep each other out.
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        closing.pop_all()
    return descriptor


def _require_own(descriptor: int, what: str) -> None:
    if os.fstat(descriptor).st_uid != os.geteuid():
        raise PermissionError(f"{what} belongs to another user")


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb+") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno == errno.EWOULDBLOCK
    return False


def _reserve(path: Path, count: int) -> None:
    """OSError if the disk has not so many bytes; some stay reserved, for the end of the job."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, count)
        os.ftruncate(descriptor, _RESERVED)
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL}:
            raise
    finally:
        os.close(descriptor)


def _folder_name(word: str, what: str) -> str:
    if re.fullmatch(_FOLDER, word) is None:
        raise UsageError(f"{word!r} is not a {what}")
    # There is no job with a name that long, and no folder may have one longer.
    return word[:_LONGEST_NAME]


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(one for one in folder.iterdir() if one.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ArenaError(
            f"cannot read the local jobs in {folder}", why=error.strerror or str(error)
        ) from error


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """A folder that stays the same one while it is renamed or replaced by another."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _require_own(descriptor, "it")
        yield descriptor
    finally:
        os.close(descriptor)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _encoded(value: object) -> bytes:
    # The encoder of msgspec refuses lone surrogates, which stand for the bytes of environments
    # that are no UTF-8.
    return json.dumps(msgspec.to_builtins(value)).encode()


def _recorded(state: JobState) -> bytes:
    return _encoded({"format": FORMAT, "record": state})


class _Marked(msgspec.Struct):
    """What is always read of `submission.json`."""

    uid: _Uid


class _Version(msgspec.Struct):
    """What is read of `record` before all else: whether the rest of it is understood."""

    format: int


class _Recorded(msgspec.Struct):
    """The file `record`, in the version of this program."""

    record: JobState


_Kind = TypeVar("_Kind")


def decoded(data: bytes, kind: type[_Kind], name: str) -> _Kind:
    """What a JSON text of the file `name` says, as the type `kind`.

    ValueError names the file, the place in it and the reason.
    """
    try:
        # Not by the decoder of msgspec, for the same reason as in `_encoded`.
        value = json.loads(data, parse_float=_finite, parse_constant=_finite)
        return msgspec.convert(value, kind)
    except RecursionError as error:
        raise ValueError(f"{name}: it is nested too deeply") from error
    except (ValueError, msgspec.ValidationError, ArenaError) as error:
        # What types check of themselves, such as a request, they refuse as any user's mistake.
        raise ValueError(f"{name}: {error}") from error


def _finite(word: str) -> float:
    found = float(word)
    if not math.isfinite(found):
        raise ValueError(f"{word} is no finite number")
    return found


def _load(opened: int, name: str, kind: type[_Kind]) -> _Kind:
    """What a JSON file of an open folder says; OSError where it is no file of this user's."""
    # Without waiting, should a pipe be there.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, dir_fd=opened), "rb") as file:
        _require_own(file.fileno(), name)
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise PermissionError(f"{name} is not a file")
        return decoded(file.read(), kind, name)


def _uid(opened: int) -> str:
    """The mark of a job's processes; ValueError for what cannot be one."""
    return _load(opened, "submission.json", _Marked).uid


def _state(opened: int) -> JobState:
    """The state of a job; ValueError for what is none, or of another version."""
    if _load(opened, "record", _Version).format != FORMAT:
        raise ValueError("another version of arena-topo wrote it")
    return _load(opened, "record", _Recorded).record


def _read(folder: Path) -> Job | None:
    """The job in a folder that is trusted; None if there is none; Broken if it makes no sense."""
    try:
        with _opened(folder) as opened:
            submission = _load(opened, "submission.json", Submission)
            state = _state(opened)
        _check(folder, submission, state.forecast)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise Broken(folder, error) from error
    return Job(folder=folder, submission=submission, state=state)


def _check(folder: Path, job: Submission, forecast: Forecast) -> None:
    """Refuse what cannot be so although everything has the right type, with a ValueError."""
    if (job.name, job.namespace) != (folder.name, folder.parent.name):
        raise ValueError("submission.json: it is the submission of another job")
    request = job.request
    if request is not None and not (
        0 < request.workers <= MOST_WORKERS
        and request.gpus <= _MOST_GPUS
        # There is no network that a level could be of.
        and {request.required, request.preferred} <= {None, NODE_TIER, BEYOND}
    ):
        raise ValueError("submission.json: request is out of range")
    if forecast.guarantee not in {None, *Guarantee}:
        raise ValueError("record: forecast.guarantee is unknown")
    for worker, _, gpus in forecast.workers:
        if not 0 <= worker < job.workers or not all(0 <= gpu < _MOST_GPUS for gpu in gpus):
            raise ValueError("record: forecast.workers is out of range")
