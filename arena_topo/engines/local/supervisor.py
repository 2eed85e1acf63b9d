"""The process that runs one local job: `python -m arena_topo.engines.local.supervisor FOLDER`.

It waits for the job's turn, starts its pods, keeps the record true and outlives whoever submitted
the job. Pods write to their log files themselves: no reader, and no death of this process, can
block them or lose a line. What it adds is the time at which each part of a log was written.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from arena_topo.engines import DEADLINE, Event, Phase
from arena_topo.engines.local import logfile, mpirun, processes, seating
from arena_topo.engines.local.ledger import Entry, Ledger, PodRecord, Record, Submission
from arena_topo.errors import ArenaError, NotFound, UsageError
from arena_topo.job import WORKING_DIR
from arena_topo.manifests import Forecast, Manifest
from arena_topo.manifests.cause import in_words
from arena_topo.solver import Unplaceable

_TICK = 0.5
"""Seconds between looks at the folder while the job runs."""

STOPPED = "stopped"
"""Why a job failed whose supervisor was told to end; most often it is being deleted."""

_QUICKEST, _SLOWEST = 0.05, 0.5
"""Seconds between looks at the queue, from just after a change to long after."""

_FULL_LOOK = 5.0
"""Seconds until the queue is worked through although nobody announced a change: who holds GPUs may
have been killed. The second in the queue waits twice as long, and so on: who looks first announces
what he finds."""

_LAST_LOOK = 60.0
"""Seconds after which also the last in a long queue works through it."""

_LONGEST_PAUSE = 10.0
"""Seconds between two starts of a failing launcher, at most."""

_NOT_STARTED = 127

_SIGNALLED = 128
"""What shells add to the number of the signal that ended a process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """What a manifest says about the pods, whichever version it is written in."""

    launcher: Sequence[str]
    launcher_environment: Mapping[str, str]
    worker_environment: Mapping[str, str]
    folder: str
    slots: int
    retries: int
    seconds: float = math.inf
    """How long the job may run."""


def read_pods(manifest: Manifest, gpus: int) -> Pods:
    """Read an MPIJob of v2beta1, v1 or v1alpha1; ArenaError names what is missing."""
    spec = manifest["spec"]
    replicas = spec.get("mpiReplicaSpecs")
    try:
        if replicas is None:
            launcher = worker = spec["template"]["spec"]["containers"][0]
        else:
            launcher = replicas["Launcher"]["template"]["spec"]["containers"][0]
            worker = replicas["Worker"]["template"]["spec"]["containers"][0]
        command = [*launcher["command"], *launcher.get("args", ())]
    except (KeyError, IndexError) as error:
        raise ArenaError(f"the MPIJob has no {error.args[0]}") from error
    policy = spec.get("runPolicy", spec)
    return Pods(
        launcher=command,
        launcher_environment=_environment(launcher),
        worker_environment=_environment(worker),
        folder=launcher.get("workingDir", WORKING_DIR),
        slots=spec.get("slotsPerWorker") or max(1, gpus),
        retries=policy.get("backoffLimit") or 0,
        seconds=policy.get("activeDeadlineSeconds") or math.inf,
    )


def _environment(container: Manifest) -> dict[str, str]:
    # Variables without a value of their own come from the cluster, which there is none of here.
    return {one["name"]: one["value"] for one in container.get("env") or () if "value" in one}


def launcher_name(job: str) -> str:
    """The name of a job's launcher pod."""
    return f"{job}-launcher"


def worker_name(job: str, index: int) -> str:
    """The name of one of a job's worker pods."""
    return f"{job}-worker-{index}"


SHIMS = "arena-topo-bin"
"""The folder of the commands that stand in for mpirun, first on the PATH of a launcher."""

_FOREIGN_LAUNCHES = ("SLURM_", "PMI_", "PMIX_", "LSB_", "PBS_", "HYDI_", "OMPI_COMM_WORLD_")
"""Variables of the scheduler or mpirun that the submitter itself runs under: with them, `mpirun`
would start ranks there instead of in the workers."""


def pod_environment(
    submission: Submission,
    own: Mapping[str, str],
    *,
    pod: str,
    devices: str,
    scratch: Path,
    interfaces: Collection[str],
) -> dict[str, str]:
    """The environment of one pod: the submitter's in place of an image's, then the manifest's."""
    base = {
        name: value
        for name, value in submission.environment.items()
        if not name.startswith(_FOREIGN_LAUNCHES) and name != processes.KEEPER_MARK
    }
    stated = {
        name: value for name, value in own.items() if not mpirun.foreign(name, value, interfaces)
    }
    both = base | stated
    return {
        **{name: value for name, value in both.items() if not mpirun.ROUTES.fullmatch(name)},
        "HOSTNAME": pod,
        "TMPDIR": str(scratch),
        "CUDA_VISIBLE_DEVICES": devices,
        "NVIDIA_VISIBLE_DEVICES": devices or "void",
        processes.JOB_MARK: submission.uid,
        processes.POD_MARK: pod,
    }


class _Stopped(Exception):
    """The job was deleted or suspended, or the machine is going down."""


class _OutOfTime(Exception):
    """The job has run for as long as it may."""


class Supervisor:
    """Runs one job from the queue to its end."""

    def __init__(self, ledger: Ledger, entry: Entry, umask: int) -> None:
        self._ledger = ledger
        self._umask = umask
        self._entry = entry
        self._bell = _Bell()
        self._running: dict[int, str] = {}
        self._pods = dict(entry.record.pods)
        self._logs: dict[str, logfile.Keeper] = {}
        self._job = entry.submission
        self._limit = _limit()
        self._deadline = math.inf
        self._held_open = -1
        self._place = 1
        """In the queue, as it was at the last look."""

    def run(self) -> None:
        """Bring the job to its end, and write down how it ended."""
        outcome = self._over(None, "the process that ran the job broke down")
        try:
            self._wait_for_turn()
            outcome = self._run()
        except _Stopped:
            held = self._ledger.is_held(self._entry)
            outcome = _held(self._entry.record) if held else self._over(None, STOPPED)
        except _OutOfTime as over:
            self._note(DEADLINE, str(over), kind="Warning")
            outcome = self._over(None, f"{DEADLINE}: {over}")
        except (ArenaError, OSError) as error:
            # The log says it too: that is where a person looks first.
            self._tell_log(str(error))
            outcome = self._over(_NOT_STARTED, str(error))
        finally:
            # Also where this program itself is at fault: nothing is left running.
            self._end_all()
            if self._ledger.is_given_up(self._entry):
                with self._ledger.lock():
                    if self._ledger.holds(self._entry):
                        self._ledger.remove(self._entry)
            else:
                self._finish(outcome)

    # ------------------------------------------------------------------ the queue

    def _wait_for_turn(self) -> None:
        seen, looked, pause = -1, 0.0, _QUICKEST
        while self._entry.waiting:
            now = time.monotonic()
            changes = self._ledger.changes()
            if changes != seen or now - looked >= min(_FULL_LOOK * self._place, _LAST_LOOK):
                pause = _QUICKEST if changes != seen else pause
                seen, looked = changes, now
                try:
                    if self._take_turn():
                        return
                except ArenaError as error:
                    # Another job's files, or the GPUs, cannot be read now: that may pass.
                    with contextlib.suppress(ArenaError):
                        self._wait_because(str(error))
            self._bell.wait(pause)
            self._check_folder()
            pause = min(_SLOWEST, pause * 1.3)

    def _take_turn(self) -> bool:
        """Take GPUs if it is this job's turn; otherwise write down why not."""
        with self._ledger.lock():
            entries = living(self._ledger, self._ledger.entries())
            mine = (self._job.created, self._job.uid)
            ahead = [one for one in entries if (one.submission.created, one.submission.uid) < mine]
            self._place = 1 + sum(one.waiting for one in ahead)
            try:
                forecast = seating.seat(self._entry, entries, seating.machines)
            except Unplaceable as refused:
                self._wait_because(refused.reason)
                return False
            self._write(forecast=forecast, reason=None)
        self._note("Placed", where(forecast))
        return True

    def _wait_because(self, reason: str) -> None:
        if reason != self._entry.record.reason:
            waiting = replace(self._entry.record.forecast, cause=in_words(reason))
            self._write(forecast=waiting, reason=reason, announce=False)

    # ------------------------------------------------------------------ the pods

    def _run(self) -> dict[str, Any]:
        pods = read_pods(self._ledger.manifest(self._entry), self._job.gpus)
        scratch = Path(_temporary(self._job)) / _scratch_name(self._job)
        # Written down before it exists: whoever ends a job without its supervisor removes it.
        self._write(scratch=str(scratch), announce=False)
        scratch.mkdir(mode=0o700)
        folder = self._job.folder if pods.folder == WORKING_DIR else pods.folder
        if not Path(folder).is_dir():
            raise ArenaError(f"the folder to start in, {folder}, is not there")
        for remark in (*self._job.remarks, *_dropped(pods)):
            self._tell_log(remark)
        self._prepare(pods, scratch, folder)
        self._guard()
        for index in range(self._job.workers):
            # A shell that becomes `sleep`: the cheapest process there is to stand for a worker.
            self._start(
                worker_name(self._job.name, index),
                ["/bin/sh", "-c", "exec sleep 2147483647"],
                folder,
            )
        self._note("Started", f"{self._job.workers} workers wait for mpirun")
        self._deadline = time.monotonic() + pods.seconds
        launcher = launcher_name(self._job.name)
        for attempt in range(pods.retries + 1):
            if attempt:
                logfile.begin_run(self._entry.folder / "pods" / launcher)
            code = self._launch(launcher, pods.launcher, folder)
            if code == 0:
                self._note("Completed", "the launcher ended with exit code 0")
                return self._over(0, None)
            failed = f"the launcher ended with exit code {code}"
            self._note("Failed", failed, kind="Warning", source=f"pod/{launcher}")
            if attempt < pods.retries:
                self._write(reason=f"{failed}; starting it again", announce=False)
                self._pause(min(_LONGEST_PAUSE, 0.25 * 2**attempt))
        return self._over(code, failed)

    def _guard(self) -> None:
        """Have a child end the job's processes as soon as this process is killed.

        It waits for the end of a pipe that this process alone holds open. It is told from the pods
        by the mark of supervisors.
        """
        supervisor = self._entry.record.supervisor
        heard, self._held_open = os.pipe()
        if supervisor is None or os.fork():
            os.close(heard)
            return
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            # Also the lock by which others see that the supervisor lives.
            _close_inherited(but=heard)
            os.read(heard, 1)
            # Files are closed a moment before a process is gone.
            while processes.alive(supervisor):
                time.sleep(_QUICKEST)
            with self._ledger.lock():
                current(self._ledger, self._entry)
        finally:
            os._exit(0)

    def _prepare(self, pods: Pods, scratch: Path, folder: str) -> None:
        """Write what the pods, `mpirun` and the agent read: environments, hosts, the shims."""
        job, interfaces = self._job, mpirun.interfaces()
        cluster = seating.machines(job.emulate)
        control = self._entry.folder
        if not _is_plain(str(control)):
            control = scratch
        shims = control / SHIMS
        shims.mkdir(mode=0o700, exist_ok=True)
        slots = {worker_name(job.name, index): pods.slots for index in range(job.workers)}
        hosts = control / "arena-topo-hostfile"
        hosts.write_text("".join(f"{name} slots={n}\n" for name, n in slots.items()))
        hydra_hosts = control / "hydra-hostfile"
        hydra_hosts.write_text("".join(f"{name}:{n}\n" for name, n in slots.items()))
        agent = _shim(shims / "agent", "agent", self._entry.folder)
        for name in mpirun.LAUNCHERS:
            _shim(shims / name, "run", self._entry.folder, name)
        for index, node, gpus in self._entry.record.forecast.workers:
            pod = worker_name(job.name, index)
            self._write_environment(
                pod,
                pod_environment(
                    job,
                    {**pods.worker_environment, "K_MPI_JOB_ROLE": "worker"},
                    pod=pod,
                    devices=seating.visible(cluster, node, gpus),
                    scratch=_made(scratch / str(index)),
                    interfaces=interfaces,
                ),
            )
        launcher = pod_environment(
            job,
            {**pods.launcher_environment, "K_MPI_JOB_ROLE": "launcher"},
            pod=launcher_name(job.name),
            # As on a cluster, the GPUs belong to the workers alone.
            devices="",
            scratch=_made(scratch / "launcher"),
            interfaces=interfaces,
        )
        private = {name: launcher[name] for name in mpirun.PRIVATE if name in launcher}
        launcher |= _launching(hosts, hydra_hosts, agent)
        launcher["PATH"] = f"{shims}{os.pathsep}{launcher.get('PATH') or os.defpath}"
        self._write_environment(launcher_name(job.name), launcher)
        (self._entry.folder / "pods.json").write_text(
            json.dumps(
                {
                    "slots": slots,
                    "launcher": private,
                    "bin": str(shims),
                    "folder": folder,
                }
            )
        )

    def _write_environment(self, pod: str, environment: Mapping[str, str]) -> None:
        folder = self._entry.folder / "pods" / pod
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        (folder / "env").write_text(json.dumps(environment))

    def _start(self, pod: str, command: Sequence[str], folder: str) -> None:
        place = self._entry.folder / "pods" / pod
        environment = json.loads((place / "env").read_bytes())
        self._keeper(pod).reserve()
        with (place / "log").open("ab") as log:
            try:
                started = subprocess.Popen(
                    command,
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    process_group=0,
                    umask=self._umask,
                )
            except OSError as error:
                raise ArenaError(f"cannot run {command[0]}: {error.strerror}") from error
        # Collected by `_reap` with all other children, not by the object.
        started.returncode = 0
        self._running[started.pid] = pod
        self._pods[pod] = PodRecord(started=time.time())

    def _launch(self, pod: str, command: Sequence[str], folder: str) -> int:
        """Run the launcher to its end, with all that it has left behind; its exit code."""
        self._start(pod, command, folder)
        self._write(phase=Phase.RUNNING, reason=None, pods=dict(self._pods), announce=False)
        self._note("Started", shlex.join(command), source=f"pod/{pod}")
        looked, pause = time.monotonic(), logfile.FRESH
        while pod in self._running.values():
            self._bell.wait(pause)
            self._check_time()
            if time.monotonic() - looked >= _TICK:
                looked = time.monotonic()
                self._check_folder()
            self._reap()
            pause = logfile.FRESH if self._sample() else min(logfile.QUIET, pause * 1.3)
        # Ranks outlive an mpirun that was killed; the workers' own processes stay.
        stays = set(self._running)
        self._end(lambda: self._processes() - stays)
        self._sample()
        code = self._pods[pod].exit_code
        return _NOT_STARTED if code is None else code

    def _reap(self) -> None:
        """Collect the children that have ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            pod = self._running.pop(pid, None)
            if pod is None:
                continue
            code = os.waitstatus_to_exitcode(status)
            code = code if code >= 0 else _SIGNALLED - code
            self._pods[pod] = replace(self._pods[pod], finished=time.time(), exit_code=code)

    def _end_all(self) -> None:
        """End every process of the job."""
        left = self._end(self._processes)
        if left:
            self._note("Left", f"{processes.listed(left)} cannot be ended", kind="Warning")
        self._sample()
        remove_scratch(self._entry)

    def _processes(self) -> AbstractSet[int]:
        """Every process of the job, also those that hide their mark."""
        return processes.of_job(self._job.uid) | processes.descendants(os.getpid())

    def _end(self, find: Callable[[], AbstractSet[int]]) -> AbstractSet[int]:
        return processes.end(find, reap=self._reap)

    # ------------------------------------------------------------------ the record

    def _over(self, code: int | None, reason: str | None) -> dict[str, Any]:
        phase = Phase.SUCCEEDED if code == 0 else Phase.FAILED
        return {"phase": phase, "exit_code": code, "reason": reason}

    def _finish(self, outcome: Mapping[str, Any]) -> None:
        """Write the end down, however long the disk refuses to take it."""
        now = time.time()
        pods = {
            name: pod if pod.finished else replace(pod, finished=now)
            for name, pod in self._pods.items()
        }
        while True:
            try:
                self._write(**{"pods": pods, "finished": now, **outcome})
            except _Stopped:
                return
            except ArenaError:
                self._ledger.make_room(self._entry)
                try:
                    self._bell.wait(_SLOWEST)
                except _Stopped:
                    # Whoever deletes or suspends the job does not wait for room on the disk.
                    return
            else:
                return

    def _write(self, *, announce: bool = True, **changes: Any) -> None:
        record = replace(self._entry.record, **changes)
        try:
            self._entry = self._ledger.write(self._entry, record, announce=announce)
        except NotFound:
            raise _Stopped from None

    def _note(
        self, reason: str, message: str, *, kind: str = "Normal", source: str | None = None
    ) -> None:
        self._ledger.note(
            self._entry,
            Event(
                source=source or f"mpijob/{self._job.name}",
                kind=kind,
                when=time.time(),
                reason=reason,
                message=message,
            ),
        )

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._bell.wait(left)
            self._reap()
            self._check_time()

    def _check_time(self) -> None:
        if time.monotonic() >= self._deadline:
            raise _OutOfTime("the job ran for longer than its --running-timeout allows")

    def _check_folder(self) -> None:
        ledger, entry = self._ledger, self._entry
        if not ledger.holds(entry) or ledger.is_held(entry) or ledger.is_given_up(entry):
            raise _Stopped

    def _sample(self) -> bool:
        """Note how long each log is now, and keep it within its limit; False if none grew."""
        grew = False
        for pod in {launcher_name(self._job.name), *self._pods}:
            keeper = self._keeper(pod)
            grew = keeper.look() or grew
            if complaint := keeper.bound():
                self._note("LogGrows", complaint, kind="Warning", source=f"pod/{pod}")
        return grew

    def _keeper(self, pod: str) -> logfile.Keeper:
        keeper = self._logs.get(pod)
        if keeper is None:
            place = self._entry.folder / "pods" / pod
            keeper = self._logs[pod] = logfile.Keeper(place, self._limit)
        return keeper

    def _tell_log(self, message: str) -> None:
        place = self._entry.folder / "pods" / launcher_name(self._job.name)
        with contextlib.suppress(OSError):
            # Not `parents`: the folder of a job that was removed must not come back.
            for folder in (place.parent, place):
                folder.mkdir(mode=0o700, exist_ok=True)
            with (place / "log").open("a") as log:
                log.write(f"arena-topo: {message}\n")


class _Bell:
    """Sleeps that end early when a child ends; SIGTERM raises `_Stopped` out of them."""

    def __init__(self) -> None:
        self._stopped = False
        self._heard, ring = os.pipe()
        for end in (self._heard, ring):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._stop)
        # The end of the submitter's terminal or session is none of this job's business. Heard and
        # not ignored, since the pods would inherit that: to ignore is what survives an exec.
        for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda *_: None)

    def _stop(self, *_: object) -> None:
        self._stopped = True

    def wait(self, seconds: float) -> None:
        """Sleep, but no longer than until the next signal."""
        if not self._stopped and select.select([self._heard], [], [], seconds)[0]:
            os.read(self._heard, 512)
        if self._stopped:
            raise _Stopped


def where(forecast: Forecast) -> str:
    """A placement in a few words, such as `dgx-1-v100-0: 0,1,2,3`."""
    nodes: dict[str, list[int]] = {}
    for _, node, gpus in forecast.workers:
        nodes.setdefault(node, []).extend(gpus)
    return "; ".join(
        f"{node}: {','.join(map(str, gpus)) or 'no GPUs'}" for node, gpus in nodes.items()
    )


def living(ledger: Ledger, entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """The jobs as they stand, those whose supervisor was killed written down as failed.

    The caller holds the lock. Jobs of other machines are left as they are.
    """
    known = (current(ledger, entry) for entry in entries)
    return tuple(entry for entry in known if entry is not None)


def current(ledger: Ledger, entry: Entry) -> Entry | None:
    """The job now, written down as failed if its supervisor was killed; None if it was removed.

    The caller holds the lock.
    """
    if not dead(ledger, entry):
        return entry
    # A supervisor writes the end of its job without the lock, perhaps after `entry` was read. It is
    # gone now, so the record no longer changes.
    found = ledger.read(entry.folder)
    if found is None or found.submission.uid != entry.submission.uid:
        return None
    return _bury(ledger, found) if dead(ledger, found) else found


def dead(ledger: Ledger, entry: Entry) -> bool:
    """Whether a job is not over but has nobody left to bring it to its end."""
    settled = entry.record.phase.over or entry.record.phase is Phase.SUSPENDED
    if settled or not seating.is_here(entry):
        return False
    supervisor = entry.record.supervisor
    return not (supervisor and processes.alive(supervisor)) and not ledger.kept(entry)


def _bury(ledger: Ledger, entry: Entry) -> Entry | None:
    """End what is left of a job whose supervisor is gone.

    It has failed, if it is not held; None if it was to be removed.
    """
    left = processes.end(lambda: processes.of_job(entry.submission.uid), grace=0.0)
    for pod in entry.record.pods:
        # What was written since its last look has its time too.
        logfile.Keeper(entry.folder / "pods" / pod, None).look()
    remove_scratch(entry)
    if ledger.is_given_up(entry):
        ledger.remove(entry)
        return None
    if ledger.is_held(entry):
        return ledger.write(entry, replace(entry.record, **_held(entry.record)))
    supervisor = entry.record.supervisor
    restarted = supervisor is not None and supervisor.boot != processes.boot()
    reason = "the machine was restarted" if restarted else "the process that ran the job was killed"
    if left:
        reason = f"{reason}; {processes.listed(left)} of it cannot be ended"
    now = time.time()
    return ledger.write(
        entry,
        replace(
            entry.record,
            phase=Phase.FAILED,
            reason=reason,
            finished=now,
            supervisor=None,
            pods={
                name: pod if pod.finished else replace(pod, finished=now)
                for name, pod in entry.record.pods.items()
            },
        ),
    )


def _limit() -> int | None:
    try:
        return logfile.limit(os.environ)
    except UsageError:
        # Whoever submitted the job was told; who resumed it had perhaps another environment.
        return logfile.LIMIT


def _held(record: Record) -> dict[str, Any]:
    """What changes in the record of a job that is held: nothing of it is left but what it asks."""
    return {
        "phase": Phase.SUSPENDED,
        "forecast": Forecast(state="held", emulated=record.forecast.emulated),
        "reason": "`arena-topo resume` starts it",
        "finished": None,
        "exit_code": None,
        "scratch": None,
        "pods": {},
    }


def remove_scratch(entry: Entry) -> None:
    """Remove the temporary files of a job that nothing runs of any more.

    Never another folder, whatever the record says.
    """
    scratch = Path(entry.record.scratch or "/")
    if scratch.name != _scratch_name(entry.submission):
        return
    with contextlib.suppress(OSError, ValueError):
        status = scratch.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            shutil.rmtree(scratch, ignore_errors=True)


def _scratch_name(submission: Submission) -> str:
    return f"arena-topo-{submission.uid.partition('-')[0]}"


def _dropped(pods: Pods) -> Iterator[str]:
    """What is said of variables of the job that cannot hold on this machine."""
    here = mpirun.interfaces()
    stated = {**pods.launcher_environment, **pods.worker_environment}
    absent = [
        f"{name}={value}" for name, value in stated.items() if mpirun.foreign(name, value, here)
    ]
    if absent:
        yield mpirun.no_interface(absent)


def _launching(hosts: Path, hydra_hosts: Path, agent: Path) -> dict[str, str]:
    """Tell every MPI, also one called by its path, which workers there are and how to reach them.

    Binding is off: each worker would bind its first rank to the first core of the one machine.
    """
    root = ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT")
    return {
        **{f"{name}{suffix}": "1" for name in root for suffix in ("", "_CONFIRM")},
        "OMPI_MCA_orte_default_hostfile": str(hosts),
        "OMPI_MCA_plm": "rsh",
        # Also where the machine has no other interface. A name from elsewhere would stop the job.
        "OMPI_MCA_btl_tcp_if_include": "lo",
        "OMPI_MCA_oob_tcp_if_include": "lo",
        # Daemons crash now and then that map the topology near their stacks (seen with 4.1.8).
        "OMPI_MCA_rtc_hwloc_vmhole": "none",
        # Ranks that wait would take the processors from those that have work.
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
    """A command that starts what stands in for mpirun and ssh in a job."""
    path.write_text(mpirun.script(verb, folder, *words))
    path.chmod(0o700)
    return path


def _made(folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    return folder


def _temporary(submission: Submission) -> str:
    """Where scratch goes: short, since sockets in it may have no more than 107 characters."""
    # Those of a job that submits another one end before it.
    inside = processes.JOB_MARK in submission.environment
    named = "" if inside else submission.environment.get("TMPDIR", "")
    longest = 48
    usable = len(named) <= longest and _is_plain(named) and os.access(named, os.W_OK)
    return named if usable else "/tmp"  # noqa: S108  a private folder is made in it


def _is_plain(path: str) -> bool:
    """Whether a path is one word for a shell, and one folder of a PATH.

    MPICH gives the path of the agent to a shell, Open MPI splits it at blanks and colons.
    """
    return shlex.quote(path) == path and os.pathsep not in path


def _adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so that none gets away.

    PR_SET_CHILD_SUBREAPER of prctl(2); where it is refused, the mark in the environment remains.
    """
    import ctypes  # noqa: PLC0415  slow to import, and only supervisors need it

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def _close_inherited(but: int = -1) -> None:
    """Let go of the files of another process: a pipe or a lock would never be released."""
    for descriptor in list(_descriptors()):
        if descriptor > sys.stderr.fileno() and descriptor != but:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _descriptors() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208  names are numbers


def main() -> None:
    """Run the job whose folder is named on the command line."""
    _close_inherited()
    os.chdir("/")
    # What this process writes is private; what the job writes follows the submitter's own wish.
    umask = os.umask(0o077)
    folder = Path(sys.argv[1])
    ledger = Ledger(folder.parent.parent.parent)
    # The submitter holds the lock until the job is there, with this process in its record. If the
    # submitter was killed, there is none, or another job has come to this name.
    with ledger.lock():
        entry = ledger.read(folder)
        if entry is None or entry.record.supervisor != processes.process(os.getpid()):
            return
        ledger.keep(entry)
    _adopt_orphans()
    Supervisor(ledger, entry, umask).run()


if __name__ == "__main__":
    main()
