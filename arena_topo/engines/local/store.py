"""The state folder of the local engine: one folder per job, one lock for placing.

    $XDG_STATE_HOME/arena-topo/             ~/.local/state/arena-topo where that is not set
      lock                                  locked while GPUs are given out
      changes                               touched whenever GPUs or places in the queue get free
      jobs/NAMESPACE/NAME/
        manifest.json                       the objects of the plan, as a cluster would get them
        submission.json                     the rest of the request (see Submission)
        record                              the state of the job (see JobState)
        events                              what happened, one JSON object a line
        alive                               locked by the supervisor for as long as it lives
        deleted                             locked while a process deletes the job
        room                                reserved space for the record of the job's end
        held                                exists while the job is suspended, or to be suspended
        unwanted                            exists if the supervisor has to delete the job
        over                                has the time of `record` if the job has ended
        pods.json                           the environments of its pods, and what mpirun reads
        pods/POD/RUN-START.log              the output of a pod (see `log_files`)

A job that has ended never changes again, so whoever looks for GPUs does not read its record: there
may be thousands. Where `over` is missing, or `record` was edited since, the record is read.

The folder must belong to the user and be closed to others. The next command that lists jobs removes
the folders that a killed submitter or deleter leaves (jobs/NAMESPACE/.new-*, .gone-*).

Files are replaced atomically: a reader never sees half a file, and a process killed at any point
leaves a complete job or none. A new job may reuse the name of a folder, so files that belong
together are read and written through one open folder. Locks are files locked with flock, so a lock
ends with its process.
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
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from arena_topo.bandwidth import Wire
from arena_topo.engines import Event, Phase
from arena_topo.engines.local.processes import Process
from arena_topo.engines.private import require_file, require_own, require_private
from arena_topo.errors import ArenaError, JobNotFound, UsageError
from arena_topo.files import replace_file
from arena_topo.manifests import STATES, Manifest, PlacementForecast, reserves
from arena_topo.solver import Request
from arena_topo.topology import BEYOND, NODE_TIER

STORE_FORMAT = 1
"""The version of the file `record`; that of a later one is shown and never changed."""

CONTAINER = "mpi"
"""The name of a pod's only container in arena's manifests; here it isolates nothing."""

HELD, UNWANTED = "held", "unwanted"
"""The marks of a job: its supervisor ends it, and then suspends or removes it."""

IMPATIENT = "impatient"
"""The mark of a job that was resumed while it waited: it starts wherever it fits."""

MOST_WORKERS = 1 << 15
"""Workers of a job, at most: each is a process, and Linux has no more of them by default
(proc(5), pid_max)."""

_MOST_GPUS = 1 << 12
"""GPUs of a machine, at most: far more than there are in one."""

_ROOM, _ROOM_OF_POD = 1 << 17, 1 << 12
"""Bytes that a job's records and the first lines of its log take, beside its environment."""

_RESERVED = 1 << 14
"""Bytes that are reserved for the record of a job's end."""

LOCAL_PLACE = "local"
"""`Backend.place` of the local engine."""

POD_LOGS = "pods"
"""The folder of the logs of a job, with a folder for each pod."""

_LARGEST_FILE = 1 << 25
"""Bytes of a file of a job, at most; the largest, of a job of 32,768 workers, have some 10 MiB."""

_LONGEST_NAME = 255
"""Bytes of the name of a file, at most (NAME_MAX, limits.h)."""

_FOLDER = r"[a-z0-9A-Z]([-a-z0-9A-Z_.]*[a-z0-9A-Z])?"
"""The names of jobs, namespaces and pods, since folders are named after them."""

_UNFINISHED = (".new-", ".gone-")
"""The prefixes of folders of jobs that are being written, or removed."""

# Unix seconds; later than the year 9892 there is no date in every time zone.
Moment = Annotated[float, msgspec.Meta(ge=0, lt=250_000_000_000)]
_Seconds = Annotated[float, msgspec.Meta(gt=0)]
ExitCode = Annotated[int, msgspec.Meta(ge=0, le=255)]
_Workers = Annotated[int, msgspec.Meta(ge=0, le=MOST_WORKERS)]
_Gpus = Annotated[int, msgspec.Meta(ge=0, le=_MOST_GPUS)]
_Name = Annotated[str, msgspec.Meta(pattern=rf"^{_FOLDER}\Z")]
# Not empty: supervisors have an empty mark, as they belong to no job.
_Uid = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\\Z")]
# No process can have a variable with a zero byte.
_Text = Annotated[str, msgspec.Meta(pattern=r"^[^\0]*\Z")]


class StoredRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request for a job, which never changes.

    `request` is None for a job whose GPUs are only counted. `emulate` names the machines to
    emulate, None for this machine. `environment` and `folder` are those of the submitter. `host` is
    the machine of the job. `timeout` is its --running-timeout, and `patience` its --patience, in
    seconds; None without one. `remarks` are lines for
    the launcher's log. `digest` is the SHA-256 of the objects. `training` is that of the request.
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
    timeout: _Seconds | None = None
    patience: _Seconds | None = None
    priority: str = ""
    environment: Mapping[_Text, _Text] = msgspec.field(default_factory=dict)
    folder: str = "/"
    remarks: tuple[str, ...] = ()
    digest: str = ""
    training: Mapping[str, Any] | None = None

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
    """The state of a job. Its GPUs are those of `forecast` until `phase` is over."""

    phase: Phase
    forecast: PlacementForecast
    supervisor: Process | None = None
    reason: str | None = None
    finished: Moment | None = None
    exit_code: ExitCode | None = None
    scratch: str | None = None
    pods: Mapping[_Name, PodState] = msgspec.field(default_factory=dict)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it is stored; `later`: its record is of a later version, which alone changes it."""

    folder: Path
    submission: StoredRequest
    state: JobState
    later: bool = False

    @property
    def waiting(self) -> bool:
        """Whether the job is in the queue."""
        return not self.state.phase.over and self.state.forecast.state == "waiting"

    @property
    def holding(self) -> bool:
        """Whether the job has GPUs."""
        return not self.state.phase.over and reserves(self.state.forecast.state)

    @property
    def started(self) -> float | None:
        """When the first pod of a running job started, in Unix seconds; None for other jobs."""
        starts = (pod.started for pod in self.state.pods.values() if pod.started is not None)
        return None if self.state.phase is not Phase.RUNNING else min(starts, default=None)

    @property
    def deadline(self) -> float | None:
        """When a running job has to end, in Unix seconds; None without a running timeout."""
        timeout, begun = self.submission.timeout, self.started
        return None if timeout is None or begun is None else begun + timeout

    @property
    def patient_until(self) -> float:
        """When its patience ends (Unix seconds): when it was created, of a job without any."""
        patience = self.submission.patience or 0.0
        return self.submission.created + (0.0 if self.is_marked(IMPATIENT) else patience)

    @property
    def supervised(self) -> bool:
        """Whether a supervisor lives, even if its process is not visible from here.

        Containers may share a state folder and a host name, but not their processes. True also if
        that cannot be told now: the job of a supervisor that is taken for dead is ended.
        """
        return _has_supervisor(self.folder)

    @property
    def being_deleted(self) -> bool:
        """Whether a process is deleting the job; no longer if that process is killed."""
        return _is_locked(self.folder / "deleted") is True

    def is_marked(self, mark: str) -> bool:
        """Whether the job has a mark."""
        return (self.folder / mark).exists()

    def same(self, other: Job | None) -> bool:
        """Whether both are the same job, and not only jobs of one name."""
        return other is not None and other.submission.uid == self.submission.uid

    def same_run(self, other: Job | None) -> bool:
        """Whether both are the same job, and it has not been resumed in between."""
        return (
            other is not None
            and self.same(other)
            and other.state.supervisor == self.state.supervisor
        )

    def changed(self, **changes: Any) -> JobState:
        """Its state with some changes."""
        return msgspec.structs.replace(self.state, **changes)


def launcher_name(job: str) -> str:
    """The name of a job's launcher pod."""
    return f"{job}-launcher"


def worker_name(job: str, index: int) -> str:
    """The name of one of a job's worker pods."""
    return f"{job}-worker-{index}"


class Broken(ArenaError):
    """A job whose files are truncated by a full disk, or edited."""

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
        return _uid_in(self.folder)

    @property
    def remains(self) -> Job:
        """The job as far as its folder tells: its names, its mark, and about when it began."""
        created = 0.0
        with contextlib.suppress(OSError):  # another process deletes it at this moment
            created = self.folder.stat().st_mtime
        request = StoredRequest(
            uid=self.uid or "",
            name=self.folder.name,
            namespace=self.folder.parent.name,
            created=created,
            host="",
            workers=0,
            gpus=0,
        )
        unknown = JobState(phase=Phase.UNKNOWN, forecast=PlacementForecast(state="held"))
        return Job(folder=self.folder, submission=request, state=unknown)


class JobStore:
    """All local jobs of one user; ArenaError for every failure of the disk."""

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
        """Exclude other processes from placing, adding and removing jobs."""
        with self._writing():
            self._make()
            descriptor = _locked(self.root / "lock")
        try:
            yield
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def starting(self, folder: Path) -> Iterator[int]:
        """Take the liveness lock of a job for its supervisor, which inherits the descriptor.

        So the lock is held from the supervisor's first instant to its last.
        """
        with self._writing():
            descriptor = _locked(folder / "alive")
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def deleting(self, job: Job) -> Iterator[None]:
        """Show that a job is being deleted, for as long as the context lasts."""
        with contextlib.ExitStack() as closing:
            # Another process that deletes the job at the same time has the lock.
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

    def end_patience(self, job: Job) -> None:
        """Have a waiting job start wherever it fits, which its supervisor then sees at once."""
        self.mark(job, IMPATIENT)
        self._notify()

    # ------------------------------------------------------------------ reading

    def job(self, name: str, namespace: str) -> Job:
        """One job; NotFound if there is none, Broken if its files cannot be read."""
        job = self.read(self.folder(name, namespace))
        if job is None:
            raise JobNotFound(name, namespace)
        return job

    def jobs(
        self, namespace: str | None = None, *, unfinished: bool = False
    ) -> tuple[tuple[Job, ...], tuple[Broken, ...]]:
        """All jobs of a namespace or, for None, of all, oldest first; and those that are broken.

        With `unfinished` without the jobs that have ended.
        """
        self._require_private()
        jobs: list[Job] = []
        broken: list[Broken] = []
        for space in [self._space(namespace)] if namespace else _folders(self._jobs):
            require_private(space)
            folders = _folders(space)
            if any(folder.name.startswith(_UNFINISHED) for folder in folders):
                self._sweep(space)
            for folder in folders:
                # Folders with other names are jobs that are being written, or no jobs.
                if re.fullmatch(_FOLDER, folder.name) and not (unfinished and _is_over(folder)):
                    try:
                        jobs += filter(None, [_read(folder, unfinished=unfinished)])
                    except Broken as error:
                        broken.append(error)
        jobs.sort(key=lambda job: (job.submission.created, job.submission.uid))
        return tuple(jobs), tuple(broken)

    def _sweep(self, space: Path) -> None:
        """Remove the unfinished folders of submitters and deleters that were killed.

        They work under the lock: a folder that is unfinished while the lock is free stays so.
        """
        with contextlib.suppress(OSError):
            descriptor = _locked(self.root / "lock", wait=False)
            try:
                for folder in _folders(space):
                    if folder.name.startswith(_UNFINISHED):
                        _erase(folder)
                # The folder of a namespace goes with its last job.
                space.rmdir()
            finally:
                os.close(descriptor)

    def read(self, folder: Path) -> Job | None:
        """The job in a folder; None if there is none; Broken if its files cannot be read."""
        self._require_private()
        require_private(folder.parent)
        return _read(folder)

    def contains(self, job: Job) -> bool:
        """Whether the job still exists; True if the disk does not answer."""
        try:
            with _opened(job.folder) as opened:
                return _uid(opened) == job.submission.uid
        except (FileNotFoundError, NotADirectoryError):
            return False
        except (OSError, ValueError):
            return True

    def is_copy(self, folder: Path, uid: str) -> bool:
        """Whether another folder has this uid and a supervisor, and this folder has none."""
        return not _has_supervisor(folder) and any(
            other != folder and _has_supervisor(other) and _uid_in(other) == uid
            for space in _folders(self._jobs)
            for other in _folders(space)
        )

    def objects(self, job: Job) -> tuple[Manifest, ...]:
        """The objects of a job, the MPIJob first, as a cluster would have them.

        FileNotFoundError if the job was removed; Broken if they cannot be read, or are not those
        that were submitted.
        """
        name = "manifest.json"
        try:
            with _opened(job.folder) as opened:
                data = _content(opened, name)
            unchanged = job.submission.digest == _digest(data)
            objects = tuple(_decoded(data, list[Manifest], name)) if unchanged else ()
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:
            raise Broken(job.folder, error) from error
        if not unchanged:
            raise Broken(job.folder, f"{name}: it was changed after the job was submitted")
        return objects

    def events(self, job: Job) -> tuple[Event, ...]:
        """What happened to a job, oldest first."""
        try:
            with _opened(job.folder) as opened:
                # A launcher that is started again and again has no end of events.
                lines = _content(opened, "events", end=True).splitlines()
        except OSError:
            return ()
        events = []
        for line in lines:
            # A full disk leaves a truncated last line.
            with contextlib.suppress(ValueError):
                event = _decoded(line, Event, "events")
                msgspec.convert(event.when, Moment)
                events.append(event)
        return tuple(events)

    # ------------------------------------------------------------------ writing

    def create(
        self,
        submission: StoredRequest,
        state: JobState,
        objects: Iterable[Manifest],
        start: Callable[[StoredRequest, Path], Process],
    ) -> Job:
        """Add a job, whole or not at all; the caller holds the lock and has looked for the name.

        `start` starts the supervisor, which must wait for the lock, with a folder for its errors.
        The supervisor is in the record before another process can read the job.
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
                (made / POD_LOGS).mkdir(mode=0o700)
                pods = (submission.workers + 1) * _ROOM_OF_POD
                _reserve(made / "room", _ROOM + pods + len(submitted))
                state = msgspec.structs.replace(state, supervisor=start(submission, made))
                replace_file(made / "record", _recorded(state))
                # A folder without a record is the remainder of an unfinished job.
                shutil.rmtree(folder, ignore_errors=True)
                made.rename(folder)
            except BaseException:
                shutil.rmtree(made, ignore_errors=True)
                raise
        return Job(folder=folder, submission=submission, state=state)

    def write(self, job: Job, state: JobState) -> Job:
        """Replace the state of a job; NotFound if it was removed, even if its name is in use."""
        missing = JobNotFound(job.submission.name, job.submission.namespace)
        with self._writing():
            try:
                with _opened(job.folder) as opened:
                    if _uid(opened) != job.submission.uid:
                        raise missing
                    replace_file("record", _recorded(state), folder=opened)
                    if state.phase.over:
                        _mark_over(opened)
            except (FileNotFoundError, NotADirectoryError):
                raise missing from None
            except ValueError as error:
                raise Broken(job.folder, error) from error
        written = msgspec.structs.replace(job, state=state)
        if (job.waiting, job.holding) != (written.waiting, written.holding):
            self._notify()
        return written

    def remove(self, folder: Path) -> None:
        """Remove the folder of a job; JobNotFound if another process has just removed it."""
        with self._writing():
            # Renamed first, so that half a removed job is never read as a job.
            gone = folder.with_name(f".gone-{uuid.uuid4()}")
            try:
                folder.rename(gone)
            except FileNotFoundError:
                raise JobNotFound(folder.name, folder.parent.name) from None
            _erase(gone)
            with contextlib.suppress(OSError):
                folder.parent.rmdir()
        self._notify()

    def _notify(self) -> None:
        """Notify the supervisors of waiting jobs that GPUs or places in the queue are free.

        Never an error: the change itself is recorded, and waiting jobs also look by themselves.
        """
        with contextlib.suppress(OSError):
            self._changes.touch(mode=0o600)
            # Two touches within one tick of the file system's clock would look like one.
            os.utime(self._changes)

    def generation(self) -> int:
        """A number that changes when GPUs or places in the queue become free."""
        try:
            return self._changes.stat().st_mtime_ns
        except OSError:
            return 0

    def add_event(
        self, job: Job, reason: str, message: str, *, kind: str = "Normal", source: str = ""
    ) -> None:
        """Append to the events of a job; never an error, since the job goes on without events."""
        event = Event(
            source=source or f"mpijob/{job.submission.name}",
            kind=kind,
            when=time.time(),
            reason=reason,
            message=message,
        )
        with contextlib.suppress(OSError):
            descriptor = open_to_append(job.folder / "events")
            with os.fdopen(descriptor, "a", encoding="utf-8") as file:
                file.write(json.dumps(msgspec.structs.asdict(event)) + "\n")

    def make_room(self, job: Job) -> bool:
        """Free the space that was reserved for the record of the job's end; False if it is free."""
        with contextlib.suppress(OSError):
            (job.folder / "room").unlink()
            return True
        return False

    def _make(self, *folders: Path) -> None:
        # Environments and logs may contain secrets.
        self.root.parent.mkdir(parents=True, exist_ok=True)
        for folder in (self.root, self._jobs, *folders):
            folder.mkdir(mode=0o700, exist_ok=True)
            require_private(folder)

    def _require_private(self) -> None:
        """ArenaError unless the state folder belongs to this user and is closed to others."""
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
    """Lock a file; the descriptor of the lock, which no other process inherits.

    OSError if the file is another user's, and without `wait` if it is locked.
    """
    with contextlib.ExitStack() as closing:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        closing.callback(os.close, descriptor)
        require_own(descriptor, f"the file {path.name} in it")
        # Not lockf, whose locks belong to a process and do not exclude its own threads.
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        closing.pop_all()
    return descriptor


def _is_locked(path: Path) -> bool | None:
    """Whether a process has locked a file; None if that cannot be told now."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError):
        return False
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False


def _has_supervisor(folder: Path) -> bool:
    return _is_locked(folder / "alive") is not False


def _reserve(path: Path, count: int) -> None:
    """OSError if the disk lacks so many bytes; some stay reserved for the end of the job."""
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
    # No job has a name that long, and a longer one would be an error of the file system.
    return word[:_LONGEST_NAME]


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [
                folder / name for name in sorted(entry.name for entry in entries if entry.is_dir())
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ArenaError(
            f"cannot read the local jobs in {folder}", why=error.strerror or str(error)
        ) from error


def _erase(folder: Path) -> None:
    """Remove a folder as far as possible; of a link only the link."""
    if folder.is_symlink():
        folder.unlink(missing_ok=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """An open folder: it stays the same even if it is renamed or replaced."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(folder, flags)
    except NotADirectoryError:
        if folder.is_symlink():
            raise PermissionError("it is a link, maybe to the folder of another job") from None
        raise
    try:
        require_own(descriptor, "it")
        yield descriptor
    finally:
        os.close(descriptor)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _encoded(value: object) -> bytes:
    # The encoder of msgspec refuses lone surrogates, which stand for bytes of environments that are
    # not UTF-8.
    return json.dumps(msgspec.to_builtins(value)).encode()


def _recorded(state: JobState) -> bytes:
    return _encoded({"format": STORE_FORMAT, "record": state})


class _Marked(msgspec.Struct):
    """The field of `submission.json` that is read even if others are damaged."""

    uid: _Uid


class _Recorded(msgspec.Struct):
    """The file `record`; its record is a `JobState`."""

    format: int
    record: dict[str, Any]


_Kind = TypeVar("_Kind")


def _decoded(data: bytes, kind: type[_Kind], name: str) -> _Kind:
    """Decode a JSON text of the file `name` as the type `kind`.

    ValueError names the file, the place in it and the reason.
    """
    with _naming(name):
        # Not by the decoder of msgspec, for the same reason as in `_encoded`.
        value = json.loads(data, parse_float=_finite, parse_constant=_finite)
        return msgspec.convert(value, kind)


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    try:
        yield
    except RecursionError as error:
        raise ValueError(f"{name}: it is nested too deeply") from error
    except (ValueError, msgspec.ValidationError, ArenaError) as error:
        # A type that checks itself (a request) raises the error of a user's mistake.
        raise ValueError(f"{name}: {error}") from error


def _finite(word: str) -> float:
    number = float(word)
    if not math.isfinite(number):
        raise ValueError(f"{word} is no finite number")
    return number


def open_to_append(file: Path) -> int:
    """Open a file, which may not exist yet, to append to it; OSError if that would block."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
    return os.open(file, flags, 0o600)


def _content(opened: int, name: str, *, end: bool = False) -> bytes:
    """The content of a file of an open folder; with `end` only the end of a file that is too large.

    OSError if it is not a file of this user, or is too large.
    """
    # O_NONBLOCK: a named pipe would block.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, dir_fd=opened), "rb") as file:
        require_file(file.fileno(), name, math.inf if end else _LARGEST_FILE)
        if end:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LARGEST_FILE))
        return file.read(_LARGEST_FILE)


def _load(opened: int, name: str, kind: type[_Kind]) -> _Kind:
    """Decode a JSON file of an open folder; OSError as for `_content`, ValueError if invalid."""
    return _decoded(_content(opened, name), kind, name)


def load(folder: Path, name: str, kind: type[_Kind]) -> _Kind:
    """Decode a JSON file of the folder of a job; OSError or ValueError if it cannot be read."""
    with _opened(folder) as opened:
        return _load(opened, name, kind)


def _uid(opened: int) -> str:
    """The uid of a job, which marks its processes; ValueError for an invalid one."""
    return _load(opened, "submission.json", _Marked).uid


def _uid_in(folder: Path) -> str | None:
    """The uid of the job in a folder; None if not even that can be read."""
    try:
        with _opened(folder) as opened:
            return _uid(opened)
    except (OSError, ValueError):
        return None


def _state(opened: int) -> tuple[JobState, bool]:
    """The state of a job, and whether it is of a later version; ValueError if it is invalid.

    A phase of a later version is UNKNOWN.
    """
    recorded = _decoded(_content(opened, "record"), _Recorded, "record")
    record, later = recorded.record, recorded.format != STORE_FORMAT
    phase = record.get("phase")
    if isinstance(phase, str) and phase not in set(Phase):
        record, later = {**record, "phase": Phase.UNKNOWN}, True
    with _naming(
        "record" if recorded.format == STORE_FORMAT else f"record of format {recorded.format}"
    ):
        state = msgspec.convert(record, JobState)
    return state, later or state.forecast.state not in STATES


def _is_over(folder: Path) -> bool:
    """Whether the job in a folder is known to have ended, without reading its record."""
    try:
        # Strings, since paths would cost more than the calls.
        return os.lstat(f"{folder}/over").st_mtime_ns == os.lstat(f"{folder}/record").st_mtime_ns
    except OSError:
        return False


def _mark_over(opened: int) -> None:
    """Mark the job of an open folder as ended; on a full disk its record will be read again."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        written = os.stat("record", dir_fd=opened).st_mtime_ns
        marker = os.open("over", flags, 0o600, dir_fd=opened)
        try:
            os.utime(marker, ns=(written, written))
        finally:
            os.close(marker)


def _read(folder: Path, *, unfinished: bool = False) -> Job | None:
    """The job in a trusted folder; None if there is none; Broken if it cannot be read.

    None with `unfinished` if it has ended.
    """
    try:
        with _opened(folder) as opened:
            submission = _load(opened, "submission.json", StoredRequest)
            state, later = _state(opened)
            _check(folder, submission, state.forecast)
            if unfinished and state.phase.over:
                # The disk was full when it ended.
                _mark_over(opened)
                return None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise Broken(folder, error) from error
    return Job(folder=folder, submission=submission, state=state, later=later)


def _check(folder: Path, job: StoredRequest, forecast: PlacementForecast) -> None:
    """ValueError for values that have the right type and are still impossible."""
    if (job.name, job.namespace) != (folder.name, folder.parent.name):
        raise ValueError("submission.json: it is the submission of another job")
    request = job.request
    if request is not None and not (
        0 < request.workers <= MOST_WORKERS
        and request.gpus <= _MOST_GPUS
        # Other levels need a network.
        and {request.required, request.preferred} <= {None, NODE_TIER, BEYOND}
    ):
        raise ValueError("submission.json: request is out of range")
    for worker, _, gpus in forecast.workers:
        if not 0 <= worker < job.workers or not all(0 <= gpu < _MOST_GPUS for gpu in gpus):
            raise ValueError("record: forecast.workers is out of range")
