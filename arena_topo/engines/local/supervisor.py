"""The process that runs one local job: `python -m arena_topo.engines.local.supervisor FOLDER`.

It waits for the job's turn, starts its pods, updates the record, and outlives the process that
submitted the job. A thread of it writes the log from a pipe with the output of the launcher.
Workers have no output: their only process sleeps, and ranks write through the launcher's mpirun.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import msgspec

from arena_topo.engines import DEADLINE, Phase, log_files
from arena_topo.engines.local import logs, mpirun, processes, scheduler
from arena_topo.engines.local.job_end import (
    JobEnd,
    end_from_outside,
    fail_orphan,
    fail_orphans,
    remove_scratch,
    remove_unwanted,
    scratch_name,
)
from arena_topo.engines.local.pods import Pods, read_pods
from arena_topo.engines.local.store import (
    HELD,
    POD_LOGS,
    UNWANTED,
    Job,
    JobStore,
    PodState,
    StoredRequest,
    launcher_name,
    worker_name,
)
from arena_topo.errors import ArenaError, NotFound
from arena_topo.job import WORKING_DIR
from arena_topo.manifests.cause import Cause, in_words
from arena_topo.solver import Unplaceable
from arena_topo.words import counted

_TICK = 0.25
"""Seconds between looks at the job's folder, and at the queue while the job waits."""

_FULL_LOOK = 30.0
"""Seconds between two looks at the queue without a notification, at most: a job with GPUs may have
been killed together with its guard."""

_LONGEST_PAUSE = 10.0
"""Seconds between two starts of a failing launcher, at most."""

_LAST_WORDS = 5.0
"""Seconds to wait for the end of a log while a process that cannot be ended may still write."""

_NOT_STARTED = 127


_FOREIGN_LAUNCHES = ("SLURM_", "PMI_", "PMIX_", "LSB_", "PBS_", "HYDI_", "OMPI_COMM_WORLD_")
"""Variables of a scheduler or mpirun that the submitter runs under: with them, `mpirun` would start
ranks there instead of in the workers."""


class _Stopped(Exception):
    """The job was deleted or suspended, or the machine is going down."""


class _OutOfTime(Exception):
    """The job has run for as long as it may."""


class Supervisor:
    """Runs one job from the queue to its end."""

    def __init__(self, store: JobStore, job: Job, umask: int, lock: int) -> None:
        self._store = store
        self._job = job
        self._umask = umask
        self._lock = lock
        self._submission = job.submission
        self._launcher = launcher_name(self._submission.name)
        self._signals = _SignalWaiter()
        self._running: dict[int, str] = {}
        self._pods: dict[str, PodState] = {}
        self._environments: dict[str, dict[str, str]] = {}
        self._log: log_files.LogWriter | None = None
        self._drain: threading.Thread | None = None
        self._deadline = math.inf

    def run(self) -> None:
        """Run the job to its end, and record how it ended."""
        end = JobEnd(phase=Phase.FAILED, reason="the process that ran the job broke down")
        try:
            end = self._run()
        finally:
            # After an error of this program as well, no process is left running.
            if left := self._end(self._processes):
                what = f"{processes.processes_text(left)} cannot be ended"
                self._store.add_event(self._job, "Left", what, kind="Warning")
            remove_scratch(self._store, self._job)
            self._record(end)

    def _run(self) -> JobEnd:
        """Run the job until it ends by itself, or has to; how it ended."""
        try:
            self._wait_for_turn()
            return self._run_pods()
        except _Stopped:
            return end_from_outside(self._job, "stopped")
        except _OutOfTime:
            over = "the job ran for longer than its --running-timeout allows"
            self._store.add_event(self._job, DEADLINE, over, kind="Warning")
            return JobEnd(phase=Phase.FAILED, reason=f"{DEADLINE}: {over}")
        except (ArenaError, OSError) as error:
            reason = error.sentence if isinstance(error, ArenaError) else str(error)
            # In the log as well, where a person looks first.
            self._log_message(reason)
            return JobEnd(phase=Phase.FAILED, exit_code=_NOT_STARTED, reason=reason)

    # ------------------------------------------------------------------ the queue

    def _wait_for_turn(self) -> None:
        seen, due = -1, 0.0
        while self._job.waiting:
            generation = self._store.generation()
            if generation != seen or time.monotonic() >= due:
                seen = generation
                try:
                    if self._take_turn():
                        return
                except ArenaError as error:
                    # Another job's files, or the GPUs, cannot be read now; that may be temporary.
                    with contextlib.suppress(ArenaError):
                        self._wait_because(str(error))
                patient = self._job.patient_until - time.time()
                due = time.monotonic() + (min(patient, _FULL_LOOK) if patient > 0 else _FULL_LOOK)
            self._wait(_TICK)

    def _take_turn(self) -> bool:
        """Take GPUs if it is this job's turn; otherwise record the reason."""
        # Not under the lock: a driver may take half a minute to list no GPUs.
        scheduler.local_machines(self._submission.emulate)
        with self._store.lock():
            jobs = fail_orphans(self._store, self._store.jobs(unfinished=True)[0])
            try:
                forecast = scheduler.schedule(self._job, jobs)
            except Unplaceable as refused:
                self._wait_because(refused.sentence, scheduler.cause_of(refused))
                return False
            self._write(forecast=forecast, reason=None)
        self._store.add_event(self._job, "Placed", scheduler.placement_text(forecast))
        return True

    def _wait_because(self, reason: str, cause: Cause | None = None) -> None:
        if reason != self._job.state.reason:
            cause = cause or in_words(reason)
            waiting = msgspec.structs.replace(self._job.state.forecast, cause=cause)
            self._write(forecast=waiting, reason=reason)

    # ------------------------------------------------------------------ the pods

    def _run_pods(self) -> JobEnd:
        """Start the pods, and the launcher again while it fails and may; how the job ended."""
        pods = read_pods(self._store.objects(self._job)[0], self._submission.gpus)
        scratch = Path(_temporary(self._submission)) / scratch_name(self._submission)
        # Recorded before it is made: a process that ends the job without its supervisor removes it.
        self._write(scratch=str(scratch))
        scratch.mkdir(mode=0o700)
        folder = self._submission.folder if pods.folder in {None, WORKING_DIR} else pods.folder
        if not Path(folder).is_dir():
            raise ArenaError(f"the folder to start in, {folder}, does not exist")
        for remark in self._submission.remarks:
            self._log_message(remark)
        here = mpirun.interfaces()
        variables = {**pods.launcher_environment, **pods.worker_environment}.items()
        if absent := [
            f"{key}={text}" for key, text in variables if mpirun.foreign(key, text, here)
        ]:
            self._log_message(mpirun.no_interface(absent))
        self._prepare(pods, scratch, folder)
        self._guard()
        for index in range(self._submission.workers):
            # A shell that becomes `sleep`: the cheapest process there is to stand for a worker.
            sleep = ["/bin/sh", "-c", "exec sleep 2147483647"]
            self._start(
                worker_name(self._submission.name, index), sleep, folder, subprocess.DEVNULL
            )
        workers = counted(self._submission.workers, "worker")
        self._store.add_event(self._job, "Started", f"{workers} ready for mpirun")
        self._deadline = time.monotonic() + pods.seconds
        source = f"pod/{self._launcher}"
        for attempt in range(pods.retries + 1):
            code = self._launch(pods.launcher, folder)
            if code == 0:
                self._store.add_event(self._job, "Completed", "the launcher ended with exit code 0")
                return JobEnd(phase=Phase.SUCCEEDED, exit_code=0)
            failed = f"the launcher ended with exit code {code}"
            self._store.add_event(self._job, "Failed", failed, kind="Warning", source=source)
            if attempt < pods.retries:
                self._note(reason=f"{failed}; starting it again")
                again = time.monotonic() + min(_LONGEST_PAUSE, 0.25 * 2**attempt)
                while time.monotonic() < again:
                    self._wait(again - time.monotonic())
                with contextlib.suppress(OSError):
                    log_files.begin_run(self._job.folder / POD_LOGS / self._launcher)
                self._log = None
        return JobEnd(phase=Phase.FAILED, exit_code=code, reason=failed)

    def _guard(self) -> None:
        """Fork a guard, which ends the job's processes as soon as this process is killed.

        Like a supervisor it has no mark of the job in its environment.
        """
        supervisor = os.getpid()
        if os.fork():
            return
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            # The guard inherits the lock, which has to end with the supervisor.
            os.close(self._lock)
            # The parent changes once the supervisor is gone.
            while os.getppid() == supervisor:
                time.sleep(_TICK)
            with self._store.lock():
                fail_orphan(self._store, self._job)
        finally:
            os._exit(0)

    def _prepare(self, pods: Pods, scratch: Path, folder: str) -> None:
        """Write the files for pods, `mpirun` and the agent: environments, hosts, stand-ins."""
        job, control = self._submission, self._job.folder
        cluster = scheduler.local_machines(job.emulate)
        if not _is_plain(str(control)):
            control = scratch
        shims = control / mpirun.SHIMS
        shims.mkdir(mode=0o700, exist_ok=True)
        workers = [worker_name(job.name, index) for index in range(job.workers)]
        hosts, hydra_hosts = control / "arena-topo-hostfile", control / "hydra-hostfile"
        hosts.write_text("".join(f"{name} slots={pods.slots}\n" for name in workers))
        hydra_hosts.write_text("".join(f"{name}:{pods.slots}\n" for name in workers))
        agent = _shim(shims / "agent", "agent", self._job.folder)
        for name in mpirun.LAUNCHERS:
            _shim(shims / name, "run", self._job.folder, name)
        # As on a cluster, the GPUs belong to the workers alone.
        devices = {
            workers[index]: scheduler.visible_devices(cluster, node, gpus)
            for index, node, gpus in scheduler.current_placement(self._job).workers
        }
        for number, pod in enumerate([self._launcher, *devices]):
            # Short, since sockets in it may have no more than 107 characters.
            private = scratch / str(number)
            private.mkdir(mode=0o700)
            self._environments[pod] = self._pod_environment(pods, pod, devices.get(pod), private)
        launcher = self._environments[self._launcher]
        stated = {name: launcher[name] for name in mpirun.PRIVATE if name in launcher}
        launcher |= _launching(hosts, hydra_hosts, agent)
        launcher["PATH"] = f"{shims}{os.pathsep}{launcher.get('PATH') or os.defpath}"
        # Common variables are written once: they may be long, and may be secrets.
        common = set.intersection(
            *(set(environment.items()) for environment in self._environments.values())
        )
        about = {
            "slots": dict.fromkeys(workers, pods.slots),
            "launcher": stated,
            "bin": str(shims),
            "folder": folder,
            "common": dict(common),
            "own": {
                pod: dict(environment.items() - common)
                for pod, environment in self._environments.items()
            },
        }
        (self._job.folder / "pods.json").write_text(json.dumps(about))

    def _pod_environment(
        self, pods: Pods, pod: str, devices: str | None, scratch: Path
    ) -> dict[str, str]:
        """The submitter's environment in place of an image's, then the manifest's.

        The launcher has no `devices`.
        """
        launches = devices is None
        here = mpirun.interfaces()
        foreign = (*_FOREIGN_LAUNCHES, processes.KEEPER_MARK)
        given = self._submission.environment.items()
        stated = pods.launcher_environment if launches else pods.worker_environment
        both = {name: text for name, text in given if not name.startswith(foreign)} | {
            name: text for name, text in stated.items() if not mpirun.foreign(name, text, here)
        }
        return {
            **{name: text for name, text in both.items() if not mpirun.ROUTES.fullmatch(name)},
            "K_MPI_JOB_ROLE": "launcher" if launches else "worker",
            "HOSTNAME": pod,
            "TMPDIR": str(scratch),
            "CUDA_VISIBLE_DEVICES": devices or "",
            "NVIDIA_VISIBLE_DEVICES": devices or "void",
            processes.JOB_MARK: self._submission.uid,
            processes.POD_MARK: pod,
        }

    def _start(self, pod: str, command: Sequence[str], folder: str, output: int) -> None:
        state = PodState(started=time.time())
        try:
            started = subprocess.Popen(
                command,
                cwd=folder,
                env=self._environments[pod],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
                umask=self._umask,
            )
        except OSError as error:
            raise ArenaError(f"cannot run {command[0]}: {error.strerror}") from error
        # `_reap` collects it with all other children, not the object.
        started.returncode = 0
        self._running[started.pid] = pod
        self._pods[pod] = state

    def _launch(self, command: Sequence[str], folder: str) -> int:
        """Run the launcher to its end, and end the processes that it leaves; its exit code."""
        readable, writable = logs.pipe()
        self._drain = threading.Thread(target=self._writer().drain, args=(readable,), daemon=True)
        self._drain.start()
        try:
            self._start(self._launcher, command, folder, writable)
        finally:
            os.close(writable)
        # A new job stops at a full disk, and a job that ran goes on.
        record = self._write if self._job.state.phase is Phase.PENDING else self._note
        record(phase=Phase.RUNNING, reason=None, pods=dict(self._pods))
        source = f"pod/{self._launcher}"
        self._store.add_event(self._job, "Started", shlex.join(command), source=source)
        while self._launcher in self._running.values():
            self._wait(_TICK)
        # Ranks outlive an mpirun that was killed. The processes of the workers stay.
        stays = set(self._running)
        self._end(lambda: self._processes() - stays)
        code = self._pods[self._launcher].exit_code
        return _NOT_STARTED if code is None else code

    def _wait(self, seconds: float) -> None:
        """Sleep until a signal or a tick; `_Stopped` or `_OutOfTime` if the job has to end."""
        self._signals.wait(max(0.0, min(seconds, _TICK)))
        self._reap()
        if time.monotonic() >= self._deadline:
            raise _OutOfTime
        marked = self._job.is_marked(HELD) or self._job.is_marked(UNWANTED)
        if marked or not self._store.contains(self._job):
            raise _Stopped

    def _writer(self) -> log_files.LogWriter:
        if self._log is None:
            # The command that started this process has checked the variable.
            most = log_files.log_size_limit(os.environ)
            self._log = log_files.LogWriter(self._job.folder / POD_LOGS / self._launcher, most)
        return self._log

    def _log_message(self, message: str) -> None:
        with contextlib.suppress(OSError):
            self._writer().write(f"arena-topo: {message}\n".encode(errors="surrogateescape"))

    def _reap(self) -> None:
        """Collect the children that have ended."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pod = self._running.pop(ended[0], None)
                if pod is not None:
                    code = processes.shell_exit_code(os.waitstatus_to_exitcode(ended[1]))
                    self._pods[pod] = msgspec.structs.replace(
                        self._pods[pod], finished=time.time(), exit_code=code
                    )

    def _processes(self) -> AbstractSet[int]:
        """Every process of the job, including those that have cleared their environment."""
        return processes.processes_of_job(self._submission.uid) | processes.descendants(os.getpid())

    def _end(self, find: Callable[[], AbstractSet[int]]) -> AbstractSet[int]:
        """End processes, and wait until their output is written."""
        left = processes.terminate(find, reap=self._reap)
        if self._drain is not None:
            # A process that cannot be ended may have the pipe open.
            self._drain.join(_LAST_WORDS)
        return left

    # ------------------------------------------------------------------ the record

    def _record(self, end: JobEnd) -> None:
        """Record the end of the job, retrying while the disk is full; remove an unwanted job."""
        # Looked for only now: the last act of a job may be to delete itself.
        if self._job.is_marked(UNWANTED):
            with self._store.lock():
                if self._store.contains(self._job):
                    remove_unwanted(self._store, self._job)
            return
        changes = end.changes(self._job, self._pods)
        # `delete` and `suspend` do not wait for room on the disk.
        with contextlib.suppress(_Stopped):
            while True:
                try:
                    self._write(**changes)
                except ArenaError:
                    if not self._store.make_room(self._job):
                        self._signals.wait(_TICK)
                    elif self._log is not None:
                        # The remark about output that the full disk did not take.
                        self._log.write(b"")
                else:
                    return

    def _note(self, **changes: Any) -> None:
        """Record how far the job is, unless the disk is full: its end is recorded in any case."""
        with contextlib.suppress(ArenaError):
            self._write(**changes)

    def _write(self, **changes: Any) -> None:
        try:
            self._job = self._store.write(self._job, self._job.changed(**changes))
        except NotFound:
            raise _Stopped from None


class _SignalWaiter:
    """Sleeps that end early when a child ends; SIGTERM raises `_Stopped` out of them."""

    def __init__(self) -> None:
        self._stopped = False
        self._wakeup, ring = os.pipe()
        for end in (self._wakeup, ring):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._stop)
        # The end of the submitter's terminal or session does not end the job. A handler, and not
        # SIG_IGN, which the pods would inherit.
        for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda *_: None)

    def _stop(self, *_: object) -> None:
        self._stopped = True

    def wait(self, seconds: float) -> None:
        """Sleep, but no longer than until the next signal."""
        if not self._stopped and select.select([self._wakeup], [], [], seconds)[0]:
            os.read(self._wakeup, 512)
        if self._stopped:
            raise _Stopped


def _launching(hosts: Path, hydra_hosts: Path, agent: Path) -> dict[str, str]:
    """Variables that tell every MPI, also one called by its path, its workers and the agent.

    Binding is off: each worker would bind its first rank to the first core of the one machine.
    """
    root = ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT")
    return {
        **{f"{name}{suffix}": "1" for name in root for suffix in ("", "_CONFIRM")},
        "OMPI_MCA_orte_default_hostfile": str(hosts),
        "OMPI_MCA_plm": "rsh",
        # It exists on every machine; the name of another interface might not, and stop the job.
        "OMPI_MCA_btl_tcp_if_include": "lo",
        "OMPI_MCA_oob_tcp_if_include": "lo",
        # Daemons crash now and then that map the topology near their stacks (seen with 4.1.8).
        "OMPI_MCA_rtc_hwloc_vmhole": "none",
        # Ranks that wait would take the processors from ranks that compute.
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMPI_MCA_plm_rsh_agent": str(agent),
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "PRTE_MCA_prte_default_hostfile": str(hosts),
        "PRTE_MCA_plm": "ssh",
        "PRTE_MCA_plm_ssh_agent": str(agent),
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "HYDRA_HOST_FILE": str(hydra_hosts),
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": str(agent),
        "I_MPI_HYDRA_HOST_FILE": str(hydra_hosts),
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": str(agent),
    }


def _shim(path: Path, verb: str, folder: Path, *words: str) -> Path:
    """A script that starts a stand-in for mpirun or ssh in a job."""
    path.write_text(mpirun.script(verb, folder, *words))
    path.chmod(0o700)
    return path


def _temporary(submission: StoredRequest) -> str:
    """The parent of the scratch folder: short, as paths of sockets have at most 107 characters."""
    # The scratch folder of a job that submits another job may be removed before the other ends.
    inside = processes.JOB_MARK in submission.environment
    named = "" if inside else submission.environment.get("TMPDIR", "")
    longest = 48
    # A relative path would be another folder in each folder that a program of the job is in.
    plain = named.startswith("/") and _is_plain(named)
    usable = plain and len(named) <= longest and os.access(named, os.W_OK)
    return named if usable else "/tmp"  # noqa: S108  a private folder is made in it


def _is_plain(path: str) -> bool:
    """Whether a path is one word for a shell, and one folder of a PATH.

    MPICH gives the path of the agent to a shell, Open MPI splits it at blanks and colons.
    """
    return shlex.quote(path) == path and os.pathsep not in path


def _adopt_orphans() -> None:
    """Become the parent of orphaned descendants, so that none is lost.

    PR_SET_CHILD_SUBREAPER of prctl(2); if it is refused, the mark in the environment remains.
    """
    import ctypes  # noqa: PLC0415  slow to import, and only supervisors need it

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def _inherited_lock() -> int:
    """The liveness lock, which standard input is; no child of this process inherits it."""
    lock = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.close(nothing)
    return lock


def main() -> None:
    """Run the job whose folder is named on the command line."""
    # nohup and shells' `&` ignore signals, which pods would inherit.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Python itself ignores the last two, and resets them in its children.
    left = {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}
    for number in signal.valid_signals() - left:
        signal.signal(number, signal.SIG_DFL)
    os.chdir("/")
    # Files of this process are private; files of the job follow the umask of the submitter.
    umask = os.umask(0o077)
    lock = _inherited_lock()
    folder = Path(sys.argv[1])
    store = JobStore(folder.parent.parent.parent)
    # The submitter has the lock until the job is recorded, with this process as its supervisor.
    # If the submitter was killed, there is no job, or another job of this name.
    with store.lock():
        job = store.read(folder)
        if job is None or job.state.supervisor != processes.process(os.getpid()):
            return
    _adopt_orphans()
    Supervisor(store, job, umask, lock).run()


if __name__ == "__main__":
    main()
