"""The local engine: jobs as processes of this machine."""

from __future__ import annotations

import getpass
import os
import site
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from arena_topo.clusters.selectors import LabelSelector
from arena_topo.engines import (
    Event,
    Instance,
    JobStatus,
    Options,
    Phase,
    Publication,
    ignore_message,
    log_files,
)
from arena_topo.engines.attach_request import AttachRequest
from arena_topo.engines.lines import LogOptions, SourceFilter
from arena_topo.engines.local import job_end, logs, mpirun, processes, scheduler
from arena_topo.engines.local.store import (
    CONTAINER,
    HELD,
    LOCAL_PLACE,
    MOST_WORKERS,
    POD_LOGS,
    UNWANTED,
    Broken,
    Job,
    JobState,
    JobStore,
    StoredRequest,
    launcher_name,
    open_to_append,
    worker_name,
)
from arena_topo.engines.polling import RereadJobs
from arena_topo.engines.private import state_folder
from arena_topo.errors import (
    ArenaError,
    InvalidJob,
    JobExists,
    JobNotFound,
    NotFound,
    NotPossible,
    UsageError,
    command,
)
from arena_topo.manifests import Manifest, Mechanisms, PlacementForecast, Plan
from arena_topo.manifests.cause import CauseCode
from arena_topo.manifests.requests import request_annotation, training_request
from arena_topo.manifests.versions import BEST, ApiVersion
from arena_topo.notes import Note
from arena_topo.solver import UNCONSTRAINED, Constraint, Request, Unplaceable, Verdict
from arena_topo.topology import Cluster, Machine, Node

if TYPE_CHECKING:
    from arena_topo.engines.archive import Archive
    from arena_topo.engines.metrics import GpuSample
    from arena_topo.engines.occupancy import NodePod, NodeStatus, Occupancy
    from arena_topo.engines.volume import Volume
    from arena_topo.job import MPIJob
    from arena_topo.manifests.forecast import Move
    from arena_topo.queueing.reservation import QueueHead

ADDRESS = "127.0.0.1"

OWN_SOFTWARE = "local"
"""The image that means what is installed on this machine."""

_ONLY_ON_CLUSTERS = (
    "data",
    "data_dir",
    "config_file",
    "sync_mode",
    "tensorboard",
    "rdma",
    "device",
    "cpu",
    "memory",
    "launcher_cpu",
    "launcher_memory",
    "share_memory",
    "priority",
    "service_account",
    "mpi_implementation",
    "ttl_after_finished",
)
"""The flags about what only clusters have: containers, their operator, classes of priority."""

_PATIENCE = 2 * (processes.KILL_GRACE + processes.INSIST) + 4
"""Seconds that a supervisor gets to end its job before `delete` ends the processes itself: the
supervisor may have to end a launcher first and then the rest."""

_STEP = 0.05
"""Seconds between two looks at a supervisor that ends."""

_supervisors: set[int] = set()
"""The process IDs of supervisors that this process has started and not yet collected."""


def open_local(options: Options) -> LocalBackend:
    """Open the engine on this machine; where there is no /proc, it plans and runs nothing."""
    return LocalBackend(options, os.environ)


def _broken(error: Broken) -> JobStatus:
    job = error.remains
    return JobStatus(
        uid=job.submission.uid,
        name=job.submission.name,
        namespace=job.submission.namespace,
        phase=job.state.phase,
        created=job.submission.created,
        reason=f"{error.why}; remove it: {error.hint}",
    )


class LocalBackend:
    """Jobs on this machine, for one user."""

    name = "local"
    place = LOCAL_PLACE
    look_every = 0.25
    starts_waiting = True
    binding = scheduler.LOCAL_BINDING
    queue = None

    def __init__(self, options: Options, environment: Mapping[str, str]) -> None:
        self._options = options
        self._environment = environment
        self._store = JobStore(state_folder(environment))
        self._archive: Archive | None = None

    def close(self) -> None:
        """Remove what is beyond the limits of the archive, if jobs were deleted."""
        archive, self._archive = self._archive, None
        if archive is not None:
            with suppress(OSError):
                archive.tidy()

    def volumes(self, namespace: str | None) -> tuple[Volume, ...]:
        """None: jobs see the folders of the machine."""
        del namespace
        return ()

    def administrators(self, namespace: str) -> frozenset[str]:
        """Nobody."""
        del namespace
        return frozenset()

    def remarks(self, job: MPIJob) -> tuple[str, ...]:
        """The flags of a job that have no effect on this machine."""
        unused = [
            f"--{name.replace('_', '-')}"
            for name in _ONLY_ON_CLUSTERS
            if getattr(job, name) != type(job).__dataclass_fields__[name].default
        ]
        if job.image != OWN_SOFTWARE:
            unused.insert(0, f"the image {job.image}")
        if not unused:
            return ()
        why = "where jobs are plain processes"
        return (f"not used on this machine, {why}: {', '.join(unused)}",)

    def default_namespace(self) -> str:
        """The namespace of jobs when the user names none."""
        return self._options.namespace or "default"

    def owner(self, *, tell: Callable[[str], None] = ignore_message) -> str:
        """The name of the user that jobs are submitted for."""
        del tell
        try:
            return getpass.getuser()
        except (OSError, KeyError):
            # A container may run as a user that has no name.
            return str(os.getuid())

    def api_version(self) -> ApiVersion:
        """The MPIJob version to write: all are understood, so the best."""
        return BEST

    def cluster(self) -> Cluster:
        """This machine, or the emulated ones, with what is free on them now."""
        return self._cluster(self._emulate)

    def _cluster(self, emulate: str | None) -> Cluster:
        jobs, broken = self._jobs(None, unfinished=True)
        known = scheduler.in_use(scheduler.local_machines(emulate), jobs)
        notes = (
            Note(broken.folder.name, "broken job", f"{broken.message}; its GPUs count as free")
            for broken in broken
        )
        return replace(known, notes=(*known.notes, *notes))

    def nodes(self) -> Occupancy:
        """The machines, and which workers have which of their GPUs."""
        from arena_topo.engines.occupancy import NodePod, viewed  # noqa: PLC0415  only to look here

        pods: dict[str, list[NodePod]] = defaultdict(list)
        for job in map(self._status, self._jobs(None, unfinished=True)[0]):
            # A job that runs on another machine of the same home has no GPUs of this one.
            if job.phase.over or job.phase is Phase.UNKNOWN or job.forecast is None:
                continue
            workers = {instance.worker: instance for instance in job.instances}
            for worker, node, gpus in job.forecast.workers:
                instance, devices = workers.get(worker), tuple(sorted(gpus))
                # A damaged record may place the workers of a suspended job, which has no pods.
                if instance is None or not devices:
                    continue
                pods[node].append(
                    NodePod(
                        name=instance.name,
                        namespace=job.namespace,
                        status=instance.status,
                        gpus=len(gpus),
                        devices=devices,
                        visible=devices,
                    )
                )
        known = viewed(self.cluster(), pods=True)
        return replace(
            known, nodes=tuple(_with_pods(node, pods[node.name]) for node in known.nodes)
        )

    def mechanisms(self, namespace: str) -> Mechanisms:
        """Nothing: the engine itself makes placements hold."""
        del namespace
        return Mechanisms()

    def machines(self) -> tuple[Node, ...]:
        """This machine, or those that are emulated."""
        return scheduler.local_machines(self._emulate).nodes

    @cached_property
    def _emulate(self) -> str | None:
        """The machines to emulate, or None: one answer for all of a command."""
        return scheduler.emulation(self._options.emulate, self._environment)

    # ------------------------------------------------------------------ writing

    def apply(self, plan: Plan) -> tuple[str, ...]:
        """Start the job, or queue it; AlreadyExists if its name is taken.

        When this returns, the job no longer needs the process that submitted it. InvalidJob for a
        job of kube-queue, NotPossible where no job can run.
        """
        self.validate(plan)
        submission = self._submission(plan)
        with self._store.lock():
            self._require_free(plan)
            state = self._first_state(submission)
            job = self._store.create(submission, state, plan.objects, self._start)
            # Under the lock, for which the supervisor waits: its events come after this.
            placed = job.state.forecast.state == "placed"
            sentence = scheduler.placement_text(job.state.forecast) if placed else job.state.reason
            self._store.add_event(job, "Placed" if placed else "Queued", sentence or "")
        return (f"mpijob.kubeflow.org/{plan.job.name}",)

    def validate(self, plan: Plan) -> tuple[str, ...]:
        """Check that the job can run here and its name is free, without creating anything.

        NotPossible where no job can run, since there is no /proc.
        """
        if not processes.processes_visible():
            raise NotPossible(
                "the local engine runs jobs on Linux only",
                why="it finds their processes through /proc",
                hint="use a cluster: --backend kubernetes; `plan` and --dry-run work here",
            )
        self._check(plan.job)
        self._require_free(plan)
        return ()

    def _require_free(self, plan: Plan) -> None:
        if self._store.read(self._store.folder(plan.job.name, plan.namespace)) is not None:
            raise JobExists(plan.job.name, plan.namespace)

    def _check(self, job: MPIJob) -> None:
        _check_size(job)
        log_files.log_size_limit(self._environment)
        words = next(mpirun.launches(job.command), None)
        # What a command does before it calls mpirun may change which that is.
        if words is None or not job.command.lstrip().startswith(words[0]):
            return
        path = {variable.key: variable.value for variable in job.env}.get(
            "PATH", search_path(self._environment)
        )
        program = mpirun.find_program(words[0], path)
        why: str | None = "there is no MPI on this machine"
        if program is not None:
            why = mpirun.misuse_text(words[1:], program, mpirun.flavour(program))
        if why is not None:
            raise UsageError(f"{words[0]} cannot run this command", why=why, hint=mpirun.INSTALL)

    def stored(self, plan: Plan) -> tuple[Manifest | None, ...]:
        """What was submitted under the names of the objects of a plan; None: nothing."""
        job = self._store.read(self._store.folder(plan.job.name, plan.namespace))
        manifests: tuple[Manifest, ...] = ()
        if job is not None:
            with suppress(FileNotFoundError):  # another process deletes it at this moment
                manifests = self._store.objects(job)
        by_name = {
            (manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in manifests
        }
        return tuple(
            by_name.get((manifest["kind"], manifest["metadata"]["name"]))
            for manifest in plan.objects
        )

    def _submission(self, plan: Plan) -> StoredRequest:
        try:
            here = os.getcwd()  # noqa: PTH109  Path.cwd() is the same
        except FileNotFoundError:
            raise UsageError(
                "the current folder is gone, and jobs start in it", hint="cd to another folder"
            ) from None
        return StoredRequest(
            uid=str(uuid.uuid4()),
            name=plan.job.name,
            namespace=plan.namespace,
            created=time.time(),
            host=scheduler.host(),
            workers=plan.job.workers,
            gpus=plan.job.gpus,
            emulate=self._emulate,
            request=plan.request,
            timeout=float(plan.job.running_timeout) or None,
            patience=float(plan.job.patience) or None,
            priority=plan.job.priority,
            environment={**self._environment, "PATH": search_path(self._environment)},
            folder=here,
            remarks=self.remarks(plan.job),
            training=training_request(request_annotation(plan.job)),
        )

    def _first_state(self, submission: StoredRequest) -> JobState:
        """Give the job its GPUs at once if it is its turn; the caller holds the lock."""
        jobs = job_end.fail_orphans(self._store, self._store.jobs(unfinished=True)[0])
        folder = self._store.folder(submission.name, submission.namespace)
        waiting = JobState(phase=Phase.PENDING, forecast=PlacementForecast(state="waiting"))
        job = Job(folder=folder, submission=submission, state=waiting)
        others = [other for other in jobs if not other.same(job)]
        try:
            forecast, reason = scheduler.schedule(job, (*others, job)), "starting"
        except Unplaceable as refused:
            if refused.verdict is Verdict.NEVER:
                raise
            reason = refused.sentence
            forecast = PlacementForecast(
                state="waiting",
                binding=scheduler.BINDING,
                emulated=submission.emulate is not None,
                cause=scheduler.cause_of(refused),
            )
        return job.changed(forecast=forecast, reason=reason)

    def _start(self, submission: StoredRequest, diary: Path) -> processes.Process:
        """Start a supervisor that outlives this process and its terminal.

        Its errors go into a file in the folder `diary`. Its standard input is its liveness lock.
        """
        _reap()
        folder = self._store.folder(submission.name, submission.namespace)
        package = Path(__file__).resolve().parents[3]
        sites = (*site.getsitepackages(), site.getusersitepackages())
        # Python looks into its own folders of packages after its standard library. On PYTHONPATH
        # they would come first, and a backport in them would replace a module of Python.
        own = "" if package in {Path(site).resolve() for site in sites} else str(package)
        path = os.pathsep.join(filter(None, [own, self._environment.get("PYTHONPATH")]))
        # The supervisor of a job that another job submits is no process of the other job.
        marks = {
            processes.JOB_MARK: "",
            processes.POD_MARK: "",
            processes.KEEPER_MARK: submission.uid,
        }
        command = [sys.executable, "-P", "-m", "arena_topo.engines.local.supervisor", str(folder)]
        try:
            with (
                os.fdopen(open_to_append(diary / "supervisor.log"), "ab") as log,
                self._store.starting(diary) as lock,
            ):
                started = subprocess.Popen(
                    command,
                    env={**self._environment, **marks, "PYTHONPATH": path},
                    stdin=lock,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            raise ArenaError(
                "cannot start the process that runs the job", why=error.strerror or str(error)
            ) from error
        # `_reap` collects it, and not the object, which would complain at the end of this process.
        started.returncode = 0
        _supervisors.add(started.pid)
        process = processes.process(started.pid)
        if process is None:
            raise ArenaError("the process that runs the job ended at once")
        return process

    @property
    def pausing(self) -> LocalBackend:
        """How jobs are suspended and resumed."""
        return self

    def foresee(self, name: str, namespace: str, constraint: Constraint) -> Move:
        """Where a job would go after a suspension; Unplaceable if it would not start at once.

        NotFound, or NotPossible for a job of another machine, or one without GPUs to choose.
        """
        log_files.log_size_limit(self._environment)
        job, cannot = self._store.job(name, namespace), f"{name} cannot be replanned"
        _check_pausable(job, cannot, f"{_deletion(job)}, and submit it again")
        if constraint != UNCONSTRAINED and not job.submission.gpus:
            raise NotPossible(cannot, why="it asks for no GPUs, so it can be nowhere else")
        return scheduler.foresee_locally(job, self._store.jobs(unfinished=True)[0], constraint)

    def suspend(self, name: str, namespace: str) -> bool:
        """End a job's processes until it is resumed; False if it was suspended already."""
        with self._store.lock():
            job = self._current(name, namespace)
            _check_pausable(job, f"{name} cannot be suspended", f"{_deletion(job)} removes it")
            if job.state.phase is Phase.SUSPENDED:
                return False
            self._store.mark(job, HELD)
        left = self._stop(job)
        with self._store.lock():
            after = self._current(name, namespace)
            if not job.same(after):
                raise JobNotFound(name, namespace)
            # The job may have ended by itself in the meantime, or been resumed.
            _check_pausable(after, f"{name} cannot be suspended", f"{_deletion(after)} removes it")
            if job.same_run(after):
                done = "its processes were ended, and its GPUs are free"
                self._store.add_event(after, "Suspended", done)
        if left:
            raise _unending(f"the job {name} is suspended", left)
        return True

    def resume(self, name: str, namespace: str, constraint: Constraint = UNCONSTRAINED) -> bool:
        """Queue or start a suspended job again, or start one that waits for better GPUs.

        False if the job was neither.
        """
        log_files.log_size_limit(self._environment)
        with self._store.lock():
            job = self._current(name, namespace)
            again = f"{_deletion(job)}, and submit it again"
            _check_pausable(job, f"{name} cannot be resumed", again)
            if job.state.phase is not Phase.SUSPENDED:
                return self._end_patience(job)
            state = self._first_state(scheduler.with_constraint(job, constraint).submission)
            # As on a cluster the pods are new: the log so far becomes the log of the run before.
            log_files.begin_run(job.folder / POD_LOGS / launcher_name(name))
            self._store.mark(job, HELD, on=False)
            process = self._start(job.submission, job.folder)
            job = self._store.write(job, structs.replace(state, supervisor=process))
            self._store.add_event(job, "Resumed", "it starts again from its beginning")
        return True

    def _end_patience(self, job: Job) -> bool:
        """Have a patient job start wherever it fits now; False if it waits for another reason.

        The caller holds the lock.
        """
        if not job.waiting or time.time() >= job.patient_until:
            return False
        anywhere = structs.replace(job, submission=structs.replace(job.submission, patience=None))
        jobs = self._store.jobs(unfinished=True)[0]
        try:
            scheduler.schedule(anywhere, [anywhere if job.same(each) else each for each in jobs])
        except Unplaceable:
            return False
        self._store.end_patience(job)
        return True

    def _current(self, name: str, namespace: str) -> Job:
        """The job, failed if it is an orphan; NotFound also if another process deletes it.

        The caller holds the lock.
        """
        job = job_end.fail_orphan(self._store, self._store.job(name, namespace))
        if job is None or job.being_deleted:
            raise JobNotFound(name, namespace)
        return job

    def delete(
        self,
        name: str,
        namespace: str,
        *,
        uid: str | None = None,
        tell: Callable[[str], None] = ignore_message,
    ) -> None:
        """End all processes of a job and remove its files; NotFound if there is none.

        ArenaError names processes that cannot be ended; the job is removed all the same. `tell`
        hears why its log could not be archived. UsageError, and nothing is done, if the setting of
        the archive is invalid.
        """
        from arena_topo.engines.archive import open_archive  # noqa: PLC0415  only to delete

        self._archive = archive = open_archive(self._environment, tell=tell)
        try:
            job = self._store.job(name, namespace)
        except Broken:
            if self._delete_broken(name, namespace, uid, archive, tell):
                return
            # Its supervisor has written its record anew, or another process has removed the job.
            job = self._store.job(name, namespace)
        if uid is not None and uid != job.submission.uid:
            raise JobNotFound(name, namespace)
        ours = scheduler.is_here(job)
        before = self._settled(job) or job
        if self._environment.get(processes.JOB_MARK) == job.submission.uid:
            # This process ends with the job, so the supervisor has to remove the folder.
            self._store.mark(job, UNWANTED)
            return
        with ExitStack() as closing:
            with self._store.lock():
                current = self._store.read(job.folder)
                if current is None or not job.same(current):
                    return
                # From here on no other process resumes it, so this is its last run.
                job = current
                closing.enter_context(self._store.deleting(job))
            left = self._stop(job) if ours else frozenset()
            with self._store.lock():
                current = self._store.read(job.folder)
                # Another process may have removed the job, and even submitted a new one.
                if current is not None and job.same(current):
                    if ours:
                        # Its supervisor does this too, but it may have been killed.
                        job_end.remove_scratch(self._store, current)
                    job_end.remove_job(self._store, current, before, archive, tell=tell)
        if left:
            raise _unending(f"the job {name} is deleted", left)

    def _delete_broken(
        self,
        name: str,
        namespace: str,
        uid: str | None,
        archive: Archive,
        tell: Callable[[str], None],
    ) -> bool:
        """Remove the folder of a job that cannot be read, and end the processes of the job.

        Whether that was done: by now it may be readable, or removed. NotFound for another `uid`.
        """
        folder = self._store.folder(name, namespace)
        with self._store.lock():
            try:
                self._store.read(folder)
            except Broken as error:
                if uid is not None and uid != error.uid:
                    raise JobNotFound(name, namespace) from error
                if error.uid is not None:
                    job_end.end_processes(self._store, folder, error.uid)
                job = error.remains
                # Behind a link is maybe the log of another job.
                own = None if folder.is_symlink() else archive
                job_end.remove_job(self._store, job, job, own, tell=tell)
                return True
        return False

    def _stop(self, job: Job) -> AbstractSet[int]:
        """End the present run of a job, and no later one; the processes that cannot be ended."""
        run, uid = job.state.supervisor, job.submission.uid

        def signalled() -> AbstractSet[int]:
            # The supervisor that the record of a copied folder names belongs to another job.
            ours = run is not None and job.supervised and processes.supervises(run, uid)
            return {run.pid} if run is not None and ours else frozenset()

        # On SIGTERM the supervisor ends its pods, then itself.
        processes.terminate(signalled, grace=_PATIENCE)
        with self._store.lock():
            if not job.same_run(self._store.read(job.folder)):
                return frozenset()
            left = job_end.end_processes(self._store, job.folder, uid)
            if job.supervised:
                # No signal reaches a supervisor in another container, but it sees this mark.
                with suppress(ArenaError):
                    self._store.mark(job, HELD)
        late = time.monotonic() + _PATIENCE
        while job.supervised and time.monotonic() < late:
            if not job.same_run(self._store.read(job.folder)):
                break
            time.sleep(_STEP)
        return left

    # ------------------------------------------------------------------ reading

    def job(self, name: str, namespace: str) -> JobStatus:
        """One job; NotFound if there is none."""
        _reap()
        try:
            job = self._settled(self._store.job(name, namespace))
            if job is None:
                raise JobNotFound(name, namespace)
        except Broken as error:
            return _broken(error)
        return self._status(job)

    def asked(self, name: str, namespace: str) -> tuple[Request, Cluster]:
        """What a job asks of the solver, and what is left for it of the machines it asked for."""
        job = self._store.job(name, namespace)
        submission = job.submission
        return submission.request or submission.counted, self._left(submission.emulate, job)

    def left(self, timeout: float | None = None) -> Cluster:
        """The machines with what is left for a new job, which may run for `timeout` seconds."""
        return self._left(self._emulate, None, timeout)

    def _left(self, emulate: str | None, job: Job | None, timeout: float | None = None) -> Cluster:
        jobs = self._jobs(None, unfinished=True)[0]
        now = self._cluster(emulate)
        return scheduler.machines_left(now, jobs, emulate=emulate, before=job, timeout=timeout)

    def head(self, name: str = "", namespace: str = "") -> QueueHead | None:
        """The head of the queue on the machines of a job, else of a new job; None without one."""
        jobs, _broken = self._jobs(None, unfinished=True)
        if not name:
            return scheduler.local_head(jobs, emulate=self._emulate)
        folder = self._store.folder(name, namespace)
        # It may have been deleted since the caller saw it.
        mine = next((job for job in jobs if job.folder == folder), None)
        if mine is None:
            return None
        return scheduler.local_head(jobs, emulate=mine.submission.emulate)

    def jobs(self, namespace: str | None, selector: str = "") -> tuple[JobStatus, ...]:
        """All jobs of a namespace, or of all namespaces (None), newest first."""
        jobs, broken = self._jobs(namespace)
        if selector:
            labels = LabelSelector.parse(selector)
            jobs = tuple(job for job in jobs if labels.matches(self._labels(job)))
            broken = ()
        return (*map(self._status, reversed(jobs)), *map(_broken, broken))

    def _labels(self, job: Job) -> Mapping[str, str]:
        return self._mpijob(job).get("metadata", {}).get("labels") or {}

    def _mpijob(self, job: Job) -> Manifest:
        """The MPIJob as it was submitted; empty if another process deletes it at this moment."""
        with suppress(OSError, Broken):
            return self._store.objects(job)[0]
        return {}

    def events(self, job: JobStatus) -> tuple[Event, ...]:
        """What happened to the job and its pods, oldest first."""
        return self._store.events(self._store.job(job.name, job.namespace))

    def watching(self, namespace: str) -> RereadJobs:
        """The jobs of a namespace, read anew each time: that is only a file."""
        return RereadJobs(self, namespace)

    def follow(
        self, job: JobStatus, options: LogOptions, wanted: SourceFilter = lambda _: True
    ) -> logs.LocalFollowing:
        """The logs of the wanted pods of a job as one stream; see `Backend.follow`."""
        seen = self._store.job(job.name, job.namespace)
        if seen.submission.uid != job.uid:
            raise JobNotFound(job.name, job.namespace)
        pods = (source.pod for source in logs.sources(seen) if wanted(source))
        _check_container(options.container, next(pods, launcher_name(job.name)))

        if self._store.contains(seen):
            # A `delete` that was killed may have moved it away.
            with suppress(OSError):
                (seen.folder / POD_LOGS).mkdir(mode=0o700, exist_ok=True)

        def look() -> Job | None:
            job = self._store.read(seen.folder)
            return self._settled(job) if job is not None and seen.same(job) else None

        return logs.LocalFollowing(look() or seen, look, options, wanted)

    def attach(
        self,
        job: JobStatus,
        instance: str,
        request: AttachRequest,
        *,
        tell: Callable[[str], None] = ignore_message,
    ) -> int:
        """Run a command as a pod would, on this process's streams; its exit code."""
        from arena_topo.engines.local import pod_command  # noqa: PLC0415  its own command

        _check_container(request.container, instance)
        stored = self._store.job(job.name, job.namespace)
        return pod_command.attach_process(stored, instance, request, tell=tell)

    def metrics(
        self,
        namespace: str | None = None,
        *,
        pods: Collection[str] = (),
        tell: Callable[[str], None] = ignore_message,
    ) -> tuple[GpuSample, ...]:
        """None: nvidia-smi shows what the GPUs of this machine do."""
        del namespace, pods
        if self._emulate is None:
            tell("nvidia-smi shows what the GPUs of this machine do")
        return ()

    def publish(self, machine: Machine, *, dry_run: bool = False) -> Publication:
        """Refuse: this machine is read anew each time, so nothing is published."""
        del dry_run
        raise UsageError(
            f"there is no cluster to publish {machine.name} in",
            why="the local engine asks this machine itself",
            hint="set KUBECONFIG, or print the object with --dry-run -o yaml",
        )

    def _jobs(
        self, namespace: str | None, *, unfinished: bool = False
    ) -> tuple[tuple[Job, ...], tuple[Broken, ...]]:
        _reap()
        jobs, broken = self._store.jobs(namespace, unfinished=unfinished)
        return tuple(filter(None, map(self._settled, jobs))), broken

    def _settled(self, job: Job) -> Job | None:
        """The job, failed if its supervisor was killed; None if it is gone."""
        current: Job | None = job
        if job_end.is_orphaned(job):
            with self._store.lock():
                current = job_end.fail_orphan(self._store, job)
        return None if current is None or _is_gone(current) else current

    def _status(self, job: Job) -> JobStatus:
        from arena_topo.clusters.rules import launcher_command  # noqa: PLC0415  not to submit

        forecast = scheduler.current_placement(job)
        job = structs.replace(job, state=job.changed(forecast=forecast))
        submission, state = job.submission, job.state
        phase, reason = state.phase, state.reason or (_LATER if job.later else None)
        if not phase.over and not scheduler.is_here(job):
            phase = Phase.UNKNOWN
            reason = f"it runs on {submission.host}, which cannot be looked into from here"
        pods = tuple(_instances(job))
        suspended = state.phase is Phase.SUSPENDED
        begun = (job.folder / "pods.json").exists()
        cause = forecast.cause if job.waiting and phase is Phase.PENDING else None
        patient = cause is not None and cause.code == CauseCode.PATIENCE
        return JobStatus(
            uid=submission.uid,
            name=submission.name,
            namespace=submission.namespace,
            phase=phase,
            created=submission.created,
            finished=state.finished,
            deadline=job.deadline,
            instances=() if suspended else pods,
            stopped=pods if suspended and begun else (),
            priority=submission.priority or "N/A",
            replicas=submission.workers,
            request_gpus=submission.workers * submission.gpus,
            allocated_gpus=submission.workers * submission.gpus if phase is Phase.RUNNING else 0,
            forecast=forecast,
            reason=reason,
            exit_code=state.exit_code,
            command=launcher_command(self._mpijob(job)),
            training=submission.training,
            until=job.patient_until if patient else None,
        )


def _with_pods(known: NodeStatus, pods: Iterable[NodePod]) -> NodeStatus:
    gpus = {known.node.resource: float(len(known.node.machine.gpus))}
    by_name = sorted(pods, key=lambda pod: (pod.namespace, pod.name))
    return replace(known, ip=ADDRESS, pods=tuple(by_name), capacity=gpus, allocatable=gpus)


def _check_size(job: MPIJob) -> None:
    if job.workers > MOST_WORKERS:
        raise InvalidJob(
            f"a job of {job.workers} workers does not run on one machine",
            why=f"each worker is a process, and {MOST_WORKERS} of one job are the most",
            hint="use --backend kubernetes, or fewer workers",
        )
    if job.queue:
        raise InvalidJob(
            "--queue is for clusters",
            why="it leaves the start of the job to kube-queue, which does not run on this machine",
            hint="leave --queue out: a job that does not fit waits for its turn by itself",
            flag="--queue",
        )


def _is_gone(job: Job) -> bool:
    """Whether a job counts as removed: it is over because it is being deleted."""
    return job.state.phase.over and job.being_deleted


_LATER = "a later version of arena-topo has recorded it"


def _check_pausable(job: Job, cannot: str, over: str) -> None:
    """NotPossible for a job that is over (hint `over`), of another machine or a later version."""
    host, phase = job.submission.host, job.state.phase
    if job.later:
        raise NotPossible(cannot, why=_LATER, hint=f"that version can; {_deletion(job)} removes it")
    if phase.over:
        raise NotPossible(cannot, why=f"it has {phase}", hint=over)
    if not scheduler.is_here(job):
        raise NotPossible(cannot, why=f"it runs on {host}", hint=f"run it on {host}")


def _deletion(job: Job) -> str:
    return command("delete", job.submission.name, namespace=job.submission.namespace)


def _check_container(container: str | None, instance: str) -> None:
    if container not in {None, CONTAINER}:
        raise NotFound(
            f"container {container} is not valid for instance {instance}",
            hint=f"there is one, {CONTAINER}, which is this machine itself",
        )


def _instances(stored: Job) -> Iterator[Instance]:
    """The pods of a job; they stay listed after its end, with their GPUs."""
    job, state = stored.submission, stored.state
    nodes = {index: node for index, node, _ in state.forecast.workers}
    # Its processes were killed from outside.
    cut = state.phase is Phase.FAILED and state.exit_code is None
    for index in (None, *range(job.workers)):
        name = launcher_name(job.name) if index is None else worker_name(job.name, index)
        pod = state.pods.get(name)
        pending = pod is None and not state.phase.over
        if state.phase is Phase.SUSPENDED:
            status, pending = "Terminated", False
        elif pending:
            status = "Pending"
        elif pod is None or (pod.finished and (cut or (index is None and pod.exit_code != 0))):
            status = "Error"
        else:
            status = "Completed" if pod.finished else "Running"
        # A worker that is ended with its job, by SIGTERM, is no failure.
        failed = status == "Error" and pod is not None and bool(pod.exit_code)
        yield Instance(
            name=name,
            status=status,
            created=job.created,
            started=pod.started if pod else None,
            finished=pod.finished if pod else None,
            pending=pending,
            chief=index is None,
            worker=index,
            gpus=0 if index is None else job.gpus,
            node=nodes.get(index or 0),
            node_ip=ADDRESS if nodes else None,
            ip=ADDRESS if pod else "",
            holds_gpus=index is not None and job.gpus > 0 and status == "Running",
            uid=f"{job.uid}-{name}",
            failure=f"ended with exit code {pod.exit_code}" if failed and pod else None,
        )


def _unending(done: str, left: AbstractSet[int]) -> ArenaError:
    return ArenaError(
        f"{done}, but {processes.processes_text(left)} of it cannot be ended",
        why="they run as another user, or wait in the kernel for a device or file server",
        hint="its GPUs count as free; look with ps -p PID -o user,stat,wchan,args",
    )


def _reap() -> None:
    """Collect the supervisors that have ended, and no other child of this process."""
    for pid in tuple(_supervisors):
        # The calling program may collect its children itself, or this process is a fork.
        with suppress(ChildProcessError):
            if not os.waitpid(pid, os.WNOHANG)[0]:
                continue
        _supervisors.discard(pid)


def search_path(environment: Mapping[str, str]) -> str:
    """The PATH of jobs: the user's, and the folder of the Python that runs arena-topo.

    That folder comes first if arena-topo was called by its path there (a virtual environment), else
    last: the environment of an installation by pipx must not hide the user's python.
    """
    own = Path(sys.executable).parent
    started = Path(sys.argv[0] or ".").absolute()
    meant = started.name == "__main__.py" or started.parent == own
    path = os.pathsep.join(
        # The stand-ins of a job that submits another job know only its own workers.
        folder
        for folder in (environment.get("PATH") or os.defpath).split(os.pathsep)
        if Path(folder).name != mpirun.SHIMS
    )
    return os.pathsep.join([str(own), path] if meant else [path, str(own)])
