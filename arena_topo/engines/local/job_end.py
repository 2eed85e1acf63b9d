"""The end of a local job, and what others than its supervisor do for it.

An orphan is a job whose supervisor was killed: the next command that sees it records its end. A job
that is removed leaves its logs to the archive.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from arena_topo.engines import Phase, ignore_message, log_files
from arena_topo.engines.local import logs, processes, scheduler
from arena_topo.engines.local.pods import read_pods
from arena_topo.engines.local.store import (
    HELD,
    LOCAL_PLACE,
    POD_LOGS,
    UNWANTED,
    Job,
    JobState,
    JobStore,
    PodState,
    StoredRequest,
)
from arena_topo.errors import ArenaError, NotFound, command
from arena_topo.manifests import PlacementForecast

if TYPE_CHECKING:
    from arena_topo.engines.archive import Archive


class JobEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a job ended: `phase` is SUCCEEDED, FAILED or SUSPENDED."""

    phase: Phase
    exit_code: int | None = None
    reason: str | None = None

    def changes(self, job: Job, pods: Mapping[str, PodState]) -> dict[str, Any]:
        """The changes that it makes to the state of a job with these pods."""
        end = {"phase": self.phase, "exit_code": self.exit_code, "reason": self.reason}
        if self.phase is Phase.SUSPENDED:
            forecast = PlacementForecast(state="held", emulated=job.state.forecast.emulated)
            return end | {"forecast": forecast, "finished": None, "scratch": None, "pods": {}}
        now = time.time()
        ended = {
            name: pod if pod.finished else msgspec.structs.replace(pod, finished=now)
            for name, pod in pods.items()
        }
        return end | {"finished": now, "pods": ended}


def end_from_outside(job: Job, reason: str) -> JobEnd:
    """The end of a job that did not end by itself: suspended if it is marked so, else failed."""
    if not job.is_marked(HELD):
        return JobEnd(phase=Phase.FAILED, reason=reason)
    name, namespace = job.submission.name, job.submission.namespace
    starts = f"`{command('resume', name, namespace=namespace)}` starts it"
    return JobEnd(phase=Phase.SUSPENDED, reason=starts)


# ---------------------------------------------------------------- orphans


def fail_orphans(store: JobStore, jobs: Iterable[Job]) -> tuple[Job, ...]:
    """The jobs as `fail_orphan` leaves them; the caller holds the lock."""
    return tuple(filter(None, (fail_orphan(store, job) for job in jobs)))


def is_orphaned(job: Job) -> bool:
    """Whether a job of this machine is not over and has no supervisor.

    A record of a later version may say so in a way that is not known here.
    """
    state = job.state
    ended = state.phase.over or state.phase is Phase.SUSPENDED
    if ended or job.later or not scheduler.is_here(job):
        return False
    uid, supervisor = job.submission.uid, state.supervisor
    supervised = supervisor is not None and processes.supervises(supervisor, uid)
    return not supervised and not job.supervised


def end_processes(
    store: JobStore, folder: Path, uid: str, *, grace: float = processes.KILL_GRACE
) -> AbstractSet[int]:
    """End the processes of the job in a folder; the processes that cannot be ended.

    None is ended if the folder is a copy of that of a running job. The caller holds the lock.
    """
    if not processes.processes_of_job(uid) or store.is_copy(folder, uid):
        return frozenset()
    return processes.terminate(lambda: processes.processes_of_job(uid), grace=grace)


def fail_orphan(store: JobStore, job: Job) -> Job | None:
    """The job, an orphan as failed; None if it is removed.

    The caller holds the lock. The processes of an orphan are ended; then it is FAILED, or suspended
    or removed if it is marked so.
    """
    if not is_orphaned(job):
        return job
    # The supervisor may have recorded the end of the job, without the lock, after `job` was read.
    # It is gone now, so the record no longer changes.
    current = store.read(job.folder)
    if current is None or not job.same(current):
        return None
    if not is_orphaned(current):
        return current
    left = end_processes(store, current.folder, current.submission.uid, grace=0.0)
    remove_scratch(store, current)
    if current.is_marked(UNWANTED):
        remove_unwanted(store, current)
        return None
    supervisor = current.state.supervisor
    restarted = supervisor is not None and supervisor.boot != processes.boot_id()
    reason = "the machine was restarted" if restarted else "the process that ran the job was killed"
    if left:
        reason = f"{reason}; {processes.processes_text(left)} of it cannot be ended"
    changes = end_from_outside(current, reason).changes(current, current.state.pods)
    return _recorded(store, current, current.changed(**changes))


def _recorded(store: JobStore, job: Job, state: JobState) -> Job:
    """The job in a state that is recorded, but for a disk that is full in spite of the reserve.

    Then each command that looks at the job finds this state anew, and `delete` makes room.
    """
    while True:
        try:
            return store.write(job, state)
        except NotFound:
            raise
        except ArenaError:
            if not store.make_room(job):
                return msgspec.structs.replace(job, state=state)


# ---------------------------------------------------------------- removal


def remove_job(
    store: JobStore,
    job: Job,
    before: Job,
    archive: Archive | None,
    *,
    tell: Callable[[str], None] = ignore_message,
) -> None:
    """Move the logs of a job without processes into the archive, and remove the job.

    `before` is the job before it was ended to be removed. The caller holds the lock. The job is
    removed also if the archive cannot be written; `tell` hears why.
    """
    try:
        if archive is not None:
            _archive_logs(store, job, before, archive)
    except (ArenaError, OSError, ValueError, LookupError) as error:
        why = (isinstance(error, OSError) and error.strerror) or str(error)
        tell(f"the log of {job.submission.name} is not archived: {why}")
    store.remove(job.folder)


def remove_unwanted(store: JobStore, job: Job) -> None:
    """Remove a job that has deleted itself; the caller holds the lock."""
    from arena_topo.engines.archive import open_archive  # noqa: PLC0415  not to run a job

    archive = None
    # The `delete` has checked the variable, but the job may have changed it for that.
    with contextlib.suppress(ArenaError):
        archive = open_archive(os.environ)
    remove_job(store, job, job, archive)


def _archive_logs(store: JobStore, job: Job, before: Job, archive: Archive) -> None:
    from arena_topo.clusters.rules import launcher_command  # noqa: PLC0415  not to run a job
    from arena_topo.engines.archive import JobHead  # noqa: PLC0415  as above
    from arena_topo.engines.rank_tags import tagging  # noqa: PLC0415  as above

    pods = job.folder / POD_LOGS
    # Only launchers have output.
    launcher = next(logs.sources(job))
    if not log_files.parts(str(pods / launcher.pod)):
        return
    submission, state = before.submission, before.state
    slots, tags = 0, None
    # Not known of a job whose manifest was edited or removed.
    with contextlib.suppress(ArenaError, OSError, ValueError, LookupError):
        manifest = store.objects(job)[0]
        slots, tags = (
            read_pods(manifest, submission.gpus).slots,
            tagging(launcher_command(manifest)),
        )
    head = JobHead(
        place=LOCAL_PLACE,
        namespace=submission.namespace,
        name=submission.name,
        uid=submission.uid,
        created=submission.created,
        phase=state.phase.value,
        exit_code=state.exit_code,
        slots=slots,
        tags=tags,
        deleted=not state.phase.over,
        moved=(launcher,),
    )
    try:
        archive.adopt(head, pods)
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        # Their room is for what the archive says about the job.
        for name in ("room", "events", "pods.json"):
            with contextlib.suppress(OSError):
                (job.folder / name).unlink()
        archive.adopt(head, pods)


def remove_scratch(store: JobStore, job: Job) -> None:
    """Remove the temporary files of a job without processes.

    No other folder is removed, even if the record names it.
    """
    scratch = Path(job.state.scratch or "/")
    if scratch.name != scratch_name(job.submission):
        return
    with contextlib.suppress(OSError, ValueError):
        status = scratch.lstat()
        own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        if own and not store.is_copy(job.folder, job.submission.uid):
            shutil.rmtree(scratch, ignore_errors=True)


def scratch_name(submission: StoredRequest) -> str:
    """The name of the folder of its temporary files."""
    return f"arena-topo-{submission.uid.partition('-')[0]}"
