"""The backend of this machine: what is asked of local jobs, and answered."""

from __future__ import annotations

import getpass
import os
import signal
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from arena_topo.clusters.selectors import LabelSelector
from arena_topo.engines import Event, Instance, JobStatus, Options, Phase, Publication, unheard
from arena_topo.engines.lines import LogOptions, Source, Wanted
from arena_topo.engines.local import logfile, mpirun, processes, seating, supervisor
from arena_topo.engines.local.ledger import (
    MOST_WORKERS,
    Broken,
    Entry,
    Ledger,
    Record,
    Submission,
    not_found,
    state_folder,
)
from arena_topo.engines.local.supervisor import launcher_name, worker_name
from arena_topo.errors import (
    AlreadyExists,
    ArenaError,
    InvalidJob,
    NotFound,
    NotPossible,
    UsageError,
)
from arena_topo.job import MPIJob
from arena_topo.manifests import Forecast, Manifest, Mechanisms, Plan
from arena_topo.manifests.cause import in_words
from arena_topo.manifests.versions import BEST, ApiVersion
from arena_topo.solver import Placement, Request, Unplaceable, Verdict
from arena_topo.topology import Cluster, GPUSet, Machine, gpu_set

if TYPE_CHECKING:
    from arena_topo.engines.local.following import LocalFollowing
    from arena_topo.engines.metrics import GpuSample
    from arena_topo.engines.occupancy import Occupancy
    from arena_topo.engines.volume import Volume

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
    "service_account",
    "mpi_implementation",
)
"""What a job may ask of its containers, of which there are none here."""

_UNTIMED = ("ttl_after_finished",)
"""What an operator does once a job has been over for some time."""

_PATIENCE = 2 * (processes.GRACE + processes.INSIST) + 4
"""Seconds a supervisor gets to end its job before `delete` does it itself: it may have to end a
launcher first and then the rest."""


_supervisors: set[int] = set()
"""The supervisors that this process has started and not waited for, by their process ids."""

_reaping = threading.Lock()


def open_backend(options: Options) -> LocalBackend:
    """Open the engine on this machine; ArenaError where it cannot work."""
    if not (processes.PROC / "self/stat").exists():
        raise ArenaError(
            "the local engine needs Linux",
            why="it keeps track of its processes through /proc",
            hint="use --backend kubernetes",
        )
    return LocalBackend(options, os.environ)


def _broken(error: Broken) -> JobStatus:
    created = 0.0
    with suppress(OSError):  # somebody deletes it at this moment
        created = error.folder.stat().st_mtime
    return JobStatus(
        uid=error.uid or "",
        name=error.folder.name,
        namespace=error.folder.parent.name,
        phase=Phase.UNKNOWN,
        created=created,
        reason=f"{error.why}; remove it: {error.hint}",
    )


def _taken(name: str) -> AlreadyExists:
    return AlreadyExists(
        f"the job {name} is already exist, please delete it first. use 'arena-topo delete {name}'"
    )


class LocalBackend:
    """Jobs on this machine, for one user."""

    name = "local"
    place = "local"
    look_every = 0.25
    starts_waiting = True
    binding = seating.HOLDS
    queue = None

    def __init__(self, options: Options, environment: Mapping[str, str]) -> None:
        self._options = options
        self._environment = environment
        self._ledger = Ledger(state_folder(environment))

    def close(self) -> None:
        """Nothing: there are no connections."""

    def volumes(self, namespace: str | None) -> tuple[Volume, ...]:
        """None: jobs see the folders of the machine."""
        del namespace
        return ()

    def administrators(self, namespace: str) -> frozenset[str]:
        """Nobody."""
        del namespace
        return frozenset()

    def remarks(self, job: MPIJob) -> tuple[str, ...]:
        """What of a job is not used on this machine."""
        unused, untimed = (
            [
                f"--{name.replace('_', '-')}"
                for name in names
                if getattr(job, name) != MPIJob.__dataclass_fields__[name].default
            ]
            for names in (_ONLY_ON_CLUSTERS, _UNTIMED)
        )
        if job.image != OWN_SOFTWARE:
            unused.insert(0, f"the image {job.image}")
        return tuple(
            f"not used on this machine, where {why}: {', '.join(names)}"
            for why, names in (
                ("there are no containers", unused),
                ("no operator keeps the time of a job", untimed),
            )
            if names
        )

    def default_namespace(self) -> str:
        """The namespace of jobs when the user names none."""
        return self._options.namespace or "default"

    def owner(self, *, tell: Callable[[str], None] = unheard) -> str:
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
        free = seating.machines(self._emulate())
        known = seating.less(free, seating.held(self._entries(None)))
        notes = tuple(f"{one.message}; its GPUs count as free" for one in self._ledger.broken())
        return replace(known, notes=(*known.notes, *notes))

    def nodes(self) -> Occupancy:
        """The machines, and which pods have which of their GPUs; of those to start, planned."""
        from arena_topo.engines.occupancy import NodePod, viewed  # noqa: PLC0415  only to look here

        pods: dict[str, list[NodePod]] = defaultdict(list)
        planned: dict[str, int] = defaultdict(int)
        for job in self.jobs(None):
            forecast = job.forecast
            # What runs on another machine of the same home holds nothing here.
            elsewhere = job.phase is Phase.UNKNOWN
            if forecast is None or forecast.state != "placed" or job.phase.over or elsewhere:
                continue
            running = {one.worker: one for one in job.instances if one.holds_gpus}
            for worker, node, gpus in forecast.workers:
                one = running.get(worker)
                if one is None:
                    planned[node] |= gpu_set(gpus)
                    continue
                devices = tuple(sorted(gpus))
                pods[node].append(
                    NodePod(
                        name=one.name,
                        namespace=job.namespace,
                        status=one.status,
                        gpus=len(gpus),
                        devices=devices,
                        visible=devices,
                    )
                )
        plain = viewed(self.cluster(), pods=True)
        return replace(
            plain,
            nodes=tuple(
                replace(
                    node,
                    ip=ADDRESS,
                    pods=tuple(sorted(pods[node.name], key=lambda pod: (pod.namespace, pod.name))),
                    planned=GPUSet(planned[node.name]),
                    capacity={node.node.resource: float(len(node.node.machine.gpus))},
                    allocatable={node.node.resource: float(len(node.node.machine.gpus))},
                )
                for node in plain.nodes
            ),
        )

    def mechanisms(self, namespace: str) -> Mechanisms:
        """Nothing: the engine itself makes placements hold."""
        del namespace
        return Mechanisms()

    def keeps_nodes(self) -> bool:
        """No: the engine gives each GPU to one job at a time."""
        return False

    def most_gpus(self) -> int | None:
        """The most GPUs that one of the machines has."""
        return max(len(node.machine.gpus) for node in seating.machines(self._emulate()).nodes)

    def _emulate(self) -> str | None:
        return seating.emulation(self._options.emulate, self._environment)

    # ------------------------------------------------------------------ writing

    def apply(self, plan: Plan) -> tuple[str, ...]:
        """Start the job, or queue it; AlreadyExists if its name is taken.

        When this returns, the job no longer needs the process that submitted it. InvalidJob if
        somebody else shall decide when it starts.
        """
        self._check(plan.job)
        name, namespace = plan.job.name, plan.namespace
        folder = self._ledger.folder(name, namespace)
        submission = self._submission(plan)
        with self._ledger.lock():
            if self._ledger.read(folder) is not None:
                raise _taken(name)
            entries = supervisor.living(self._ledger, self._ledger.entries())
            entry = self._ledger.create(
                submission,
                self._first_record(folder, submission, entries, plan.placement),
                plan.objects,
                lambda made: _spawn(folder, made, submission.uid, self._environment),
            )
            # Before the lock is let go, and with it the supervisor, which goes on with the story.
            self._note_beginning(entry)
        return (f"mpijob.kubeflow.org/{name}",)

    def validate(self, plan: Plan) -> tuple[str, ...]:
        """Check that the job can run here and its name is free, without creating anything."""
        self._check(plan.job)
        folder = self._ledger.folder(plan.job.name, plan.namespace)
        if self._ledger.read(folder) is not None:
            raise _taken(plan.job.name)
        return ()

    def _check(self, job: MPIJob) -> None:
        _check_size(job)
        logfile.limit(self._environment)
        words = next(mpirun.launches(job.command), None)
        # What a command does before it calls mpirun may change which that is.
        if words is None or not job.command.lstrip().startswith(words[0]):
            return
        path = {one.key: one.value for one in job.env}.get("PATH", search_path(self._environment))
        found = mpirun.find(words[0], path)
        why: str | None = "there is no MPI on this machine"
        if found is not None:
            why = mpirun.complaint(words[1:], found, mpirun.flavour(found))
        if why is not None:
            raise UsageError(f"{words[0]} cannot run this command", why=why, hint=mpirun.INSTALL)

    def stored(self, plan: Plan) -> tuple[Manifest | None, ...]:
        """What was submitted under the names of a plan's objects, in their order; None: nothing."""
        found = self._ledger.manifests(plan.job.name, plan.namespace)
        there = {(one["kind"], one["metadata"]["name"]): one for one in found}
        return tuple(there.get((one["kind"], one["metadata"]["name"])) for one in plan.objects)

    def _submission(self, plan: Plan) -> Submission:
        try:
            here = os.getcwd()  # noqa: PTH109  Path.cwd() is the same
        except FileNotFoundError:
            raise UsageError(
                "the current folder is gone, and jobs start in it", hint="cd to another folder"
            ) from None
        return Submission(
            uid=str(uuid.uuid4()),
            name=plan.job.name,
            namespace=plan.namespace,
            created=time.time(),
            host=seating.host(),
            workers=plan.job.workers,
            gpus=plan.job.gpus,
            emulate=self._emulate(),
            request=plan.request,
            priority=plan.job.priority,
            environment={**self._environment, "PATH": search_path(self._environment)},
            folder=here,
            remarks=self.remarks(plan.job),
        )

    @staticmethod
    def _first_record(
        folder: Path, submission: Submission, entries: tuple[Entry, ...], wish: Placement | None
    ) -> Record:
        """Give the job its GPUs at once if it is its turn."""
        queued = Record(phase=Phase.PENDING, forecast=Forecast(state="waiting"))
        entry = Entry(folder=folder, submission=submission, record=queued)
        try:
            forecast = seating.seat(entry, (*entries, entry), seating.machines, wish=wish)
        except Unplaceable as refused:
            if refused.verdict is Verdict.NEVER:
                raise
            emulated = submission.emulate is not None
            waiting = Forecast(
                state="waiting",
                binding=seating.BINDING,
                emulated=emulated,
                cause=in_words(refused.reason),
            )
            return replace(queued, forecast=waiting, reason=refused.reason)
        return replace(queued, forecast=forecast, reason="starting")

    def _begin_again(self, entry: Entry, others: tuple[Entry, ...]) -> Record:
        job, folder = entry.submission, entry.folder
        record = self._first_record(folder, job, others, None)
        return replace(record, supervisor=_spawn(folder, folder, job.uid, self._environment))

    @property
    def pausing(self) -> LocalBackend:
        """How jobs are suspended and resumed."""
        return self

    def suspend(self, name: str, namespace: str) -> None:
        """End a job's processes, and hold it; nothing happens to one that is held already."""
        with self._ledger.lock():
            entry = self._current(name, namespace)
            _check_pausable(entry, f"{name} cannot be suspended", f"{_deletion(entry)} removes it")
            if entry.record.phase is Phase.SUSPENDED:
                return
            self._ledger.hold(entry)
        left = _stop(entry)
        after = self._alive(self._ledger.entry(name, namespace))
        if after is None or after.submission.uid != entry.submission.uid:
            raise not_found(name, namespace)
        # It may have come to its end by itself at this very moment.
        _check_pausable(after, f"{name} cannot be suspended", f"{_deletion(after)} removes it")
        self._note(after, "Suspended", "its processes were ended, and its GPUs are free")
        if left:
            raise _unending(f"the job {name} is suspended", left)

    def resume(self, name: str, namespace: str) -> bool:
        """Let a job that is held wait for its turn again, or start; False if it was not held."""
        with self._ledger.lock():
            entry = self._current(name, namespace)
            again = f"{_deletion(entry)}, and submit it again"
            _check_pausable(entry, f"there is nothing to resume about {name}", again)
            if entry.record.phase is not Phase.SUSPENDED:
                return False
            entries = supervisor.living(self._ledger, self._ledger.entries())
            others = (one for one in entries if one.submission.uid != entry.submission.uid)
            # As on a cluster, its pods are new ones; what the last ones wrote is their last run.
            for pod in logfile.pods(entry.folder):
                (pod / "env").unlink(missing_ok=True)
                logfile.begin_run(pod)
            self._ledger.let_go(entry)
            entry = self._ledger.write(entry, self._begin_again(entry, tuple(others)))
            self._note(entry, "Resumed", "it starts again from its beginning")
        return True

    def _current(self, name: str, namespace: str) -> Entry:
        """The job as it stands; the caller holds the lock."""
        found = supervisor.current(self._ledger, self._ledger.entry(name, namespace))
        if found is None:
            raise not_found(name, namespace)
        return found

    def _note(self, entry: Entry, reason: str, message: str) -> None:
        source = f"mpijob/{entry.submission.name}"
        event = Event(
            source=source, kind="Normal", when=time.time(), reason=reason, message=message
        )
        self._ledger.note(entry, event)

    def _note_beginning(self, entry: Entry) -> None:
        forecast = entry.record.forecast
        if forecast.state == "placed":
            self._note(entry, "Placed", supervisor.where(forecast))
        else:
            self._note(entry, "Queued", entry.record.reason or "")

    def delete(self, name: str, namespace: str, *, uid: str | None = None) -> None:
        """End all processes of a job and remove its files; NotFound if there is none.

        ArenaError names processes that cannot be ended; the job is removed all the same.
        """
        try:
            entry = self._ledger.entry(name, namespace)
        except Broken as error:
            known = error.uid
            if uid is not None and uid != known:
                raise not_found(name, namespace) from None
            if known is not None:
                processes.end(lambda: processes.of_job(known))
            with self._ledger.lock():
                self._ledger.discard(error.folder)
            return
        if uid is not None and uid != entry.submission.uid:
            raise not_found(name, namespace)
        ours = seating.is_here(entry)
        before = self._status(self._alive(entry) or entry)
        if self._environment.get(processes.JOB_MARK) == entry.submission.uid:
            # This very process ends with the job, so the supervisor has to remove it.
            self._remember(entry, before)
            self._ledger.give_up(entry)
            return
        with self._ledger.deleting(entry):
            left = _stop(entry) if ours else frozenset()
            self._remember(entry, before)
            with self._ledger.lock():
                found = self._ledger.read(entry.folder)
                # Somebody else may have removed it meanwhile, and even made another.
                if found is not None and found.submission.uid == entry.submission.uid:
                    if ours:
                        # Its supervisor does this too, but it may have been killed.
                        supervisor.remove_scratch(found)
                    self._ledger.remove(found)
        if left:
            raise _unending(f"the job {name} is deleted", left)

    def _remember(self, entry: Entry, before: JobStatus) -> None:
        """Keep what a job said for after its end; it is deleted all the same where that fails."""
        if not any((pod / "log").exists() for pod in logfile.pods(entry.folder)):
            return
        from arena_topo.engines import archive as kept  # noqa: PLC0415  only here, and for logs
        from arena_topo.engines.local import following  # noqa: PLC0415  only here, and for logs

        with suppress(ArenaError, OSError, ValueError, LookupError):
            archive = kept.open_archive(self._environment)
            found = self._ledger.read(entry.folder)
            if archive.most == 0 or found is None or found.submission.uid != entry.submission.uid:
                return
            job = found.submission
            slots = supervisor.read_pods(self._ledger.manifest(found), job.gpus).slots
            lines = following.everything(found)
            archive.adopt(self.place, before, lines, slots=slots)

    # ------------------------------------------------------------------ reading

    def job(self, name: str, namespace: str) -> JobStatus:
        """One job; NotFound if there is none."""
        _reap()
        try:
            alive = self._alive(self._ledger.entry(name, namespace))
            if alive is None:
                raise not_found(name, namespace)
        except NotFound as missing:
            raise NotFound(f"{missing.message},please use 'arena submit' to create it.") from None
        except Broken as error:
            return _broken(error)
        return self._status(alive)

    def request(self, name: str, namespace: str) -> Request | None:
        """What a job asked of the solver; None where its GPUs are only counted."""
        return self._ledger.entry(name, namespace).submission.request

    def jobs(self, namespace: str | None, selector: str = "") -> tuple[JobStatus, ...]:
        """All jobs of a namespace, or of all namespaces (None), newest first."""
        entries = reversed(self._entries(namespace))
        if selector:
            wanted = LabelSelector.parse(selector)
            return tuple(self._status(one) for one in entries if wanted.matches(self._labels(one)))
        found = [self._status(entry) for entry in entries]
        return (*found, *map(_broken, self._ledger.broken(namespace)))

    def _command(self, entry: Entry) -> str:
        from arena_topo.clusters.usage import launcher_command  # noqa: PLC0415  not to submit

        try:
            return launcher_command(self._ledger.manifest(entry))
        except (OSError, Broken):  # somebody deletes it at this moment
            return ""

    def _labels(self, entry: Entry) -> Mapping[str, str]:
        try:
            found: Mapping[str, str] = self._ledger.manifest(entry)["metadata"].get("labels") or {}
        except (OSError, Broken):  # somebody deletes it at this moment
            return {}
        return found

    def events(self, job: JobStatus) -> tuple[Event, ...]:
        """What happened to the job and its pods, oldest first."""
        return self._ledger.events(self._ledger.entry(job.name, job.namespace))

    def log(self, job: JobStatus, instance: str, options: LogOptions) -> Iterator[bytes]:
        """The log of one pod as it is now, in pieces: of its last run, or of the one before."""
        _check_container(options.container, instance)
        entry = self._ledger.entry(job.name, job.namespace)
        if instance not in {one.name for one in (*job.instances, *job.stopped)}:
            raise NotFound(
                f"invalid instance name {instance} in job {job.name},please use"
                f" 'arena-topo get {job.name}' to make sure instance name"
            )
        with closing(logfile.LogFile(str(entry.folder / "pods" / instance))) as log:
            yield from _plain(log, options)

    def follow(
        self, job: JobStatus, options: LogOptions, wanted: Wanted = lambda _: True
    ) -> LocalFollowing:
        """The logs of the job's pods that are wanted, in one; see `Backend.follow`."""
        from arena_topo.engines.local import following  # noqa: PLC0415  only here, and to delete
        from arena_topo.engines.local.following import LocalFollowing  # noqa: PLC0415  the same

        pods = (one for one in (*job.instances, *job.stopped) if wanted(_source(one)))
        first = next((one.name for one in pods), launcher_name(job.name))
        _check_container(options.container, first)
        entry = self._ledger.entry(job.name, job.namespace)
        if entry.submission.uid != job.uid:
            raise not_found(job.name, job.namespace)

        def look() -> Entry | None:
            found = self._ledger.read(entry.folder)
            if found is None or found.submission.uid != job.uid:
                return None
            return self._alive(found)

        found = look() or entry
        if found.record.phase is Phase.SUSPENDED and not options.follow:
            # What is there is read, and nothing is waited for.
            return LocalFollowing(following.settled(found), lambda: None, options, wanted)
        return LocalFollowing(found, look, options, wanted)

    def attach(
        self,
        job: JobStatus,
        instance: str,
        command: Sequence[str],
        *,
        container: str | None = None,
        terminal: bool = False,
        tell: Callable[[str], None] = unheard,
    ) -> int:
        """Run a command as a pod would, on this process's streams; its exit code."""
        from arena_topo.engines.local import attaching  # noqa: PLC0415  its own command

        entry = self._ledger.entry(job.name, job.namespace)
        return attaching.attach(
            entry, instance, command, container=container, terminal=terminal, tell=tell
        )

    def metrics(
        self,
        namespace: str | None = None,
        *,
        pods: Collection[str] = (),
        tell: Callable[[str], None] = unheard,
    ) -> tuple[GpuSample, ...]:
        """What this machine's GPUs do now; nothing is known of emulated ones."""
        if self._emulate() is not None:
            return ()
        from arena_topo.engines.local import measuring  # noqa: PLC0415  only to measure

        found = measuring.gpus(self.jobs(None), tell=tell)
        return tuple(
            one
            for one in found
            if (namespace is None or one.namespace in {"", namespace})
            and (not pods or one.pod in pods)
        )

    def publish(self, machine: Machine, *, dry_run: bool = False) -> Publication:
        """Refuse: this machine is asked anew each time, so there is nothing to write down."""
        del dry_run
        raise UsageError(
            f"there is no cluster to publish {machine.name} in",
            why="the local engine asks this machine itself",
            hint="set KUBECONFIG, or print the object with --dry-run -o yaml",
        )

    def _entries(self, namespace: str | None) -> tuple[Entry, ...]:
        _reap()
        found = (self._alive(entry) for entry in self._ledger.entries(namespace))
        return tuple(entry for entry in found if entry is not None)

    def _alive(self, entry: Entry) -> Entry | None:
        """The job, written down as failed if its supervisor was killed; None if it is gone now.

        One that is over because somebody deletes it is gone.
        """
        found: Entry | None = entry
        if supervisor.dead(self._ledger, entry):
            with self._ledger.lock():
                found = supervisor.current(self._ledger, entry)
        over = found is not None and found.record.phase.over
        return None if found is not None and over and self._ledger.is_deleted(found) else found

    def _status(self, entry: Entry) -> JobStatus:
        entry = replace(entry, record=replace(entry.record, forecast=seating.present(entry)))
        job, record = entry.submission, entry.record
        phase, reason = record.phase, record.reason
        if not phase.over and not seating.is_here(entry):
            phase = Phase.UNKNOWN
            reason = f"it runs on {job.host}, which cannot be looked into from here"
        elif phase in {Phase.PENDING, Phase.RUNNING} and self._ledger.is_full():
            root = self._ledger.root
            reason = f"the disk of {root} is full, so nothing of the job can be written down"
        return JobStatus(
            uid=job.uid,
            name=job.name,
            namespace=job.namespace,
            phase=phase,
            created=job.created,
            finished=record.finished,
            instances=tuple(_instances(entry)),
            stopped=tuple(_stopped(entry)),
            priority=job.priority or "N/A",
            request_gpus=job.workers * job.gpus,
            allocated_gpus=job.workers * job.gpus if phase is Phase.RUNNING else 0,
            forecast=record.forecast,
            reason=reason,
            exit_code=record.exit_code,
            command=self._command(entry),
        )


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


def _check_pausable(entry: Entry, cannot: str, over: str) -> None:
    """NotPossible for a job that is over, and what to do then, or for another machine's."""
    job, phase = entry.submission, entry.record.phase
    if phase.over:
        raise NotPossible(cannot, why=f"it has {phase}", hint=over)
    if not seating.is_here(entry):
        raise NotPossible(cannot, why=f"it runs on {job.host}", hint=f"say the same on {job.host}")


def _deletion(entry: Entry) -> str:
    return f"arena-topo delete {entry.submission.name} -n {entry.submission.namespace}"


def _source(one: Instance) -> Source:
    return Source(pod=one.name, uid=one.uid, chief=one.chief, worker=one.worker)


def _check_container(container: str | None, instance: str) -> None:
    from arena_topo.engines.local import attaching  # noqa: PLC0415  its own command

    if container not in {None, attaching.CONTAINER}:
        raise attaching.no_container(container, instance)


def _plain(log: logfile.LogFile, options: LogOptions) -> Iterator[bytes]:
    run, begin, end = log.run(previous=options.previous)
    upto = log.size() if end is None else end
    start = log.start(options, begin, upto)
    # Where not even the options leave its beginning out, it is said that it was given up.
    start = log.runs()[run] if start == begin else start
    yield from (log.stamped if options.timestamps else log.pieces)(start, upto)


def _instances(entry: Entry) -> Iterator[Instance]:
    """The pods of a job; they stay listed after its end, with the GPUs that they had."""
    job = entry.submission
    if entry.record.phase is Phase.SUSPENDED:
        return
    nodes = {index: node for index, node, _ in entry.record.forecast.workers}
    # Its processes were ended from outside, and came to no end of their own.
    cut = entry.record.phase is Phase.FAILED and entry.record.exit_code is None
    for index in (None, *range(job.workers)):
        name = launcher_name(job.name) if index is None else worker_name(job.name, index)
        pod = entry.record.pods.get(name)
        pending = pod is None and not entry.record.phase.over
        if pending:
            status = "Pending"
        elif pod is None or (pod.finished and (cut or (index is None and pod.exit_code != 0))):
            status = "Error"
        else:
            status = "Completed" if pod.finished else "Running"
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
            node=nodes.get(0 if index is None else index),
            node_ip=ADDRESS if nodes else None,
            ip=ADDRESS if pod else "",
            holds_gpus=index is not None and job.gpus > 0 and status == "Running",
            uid=f"{job.uid}-{name}",
            failure=f"ended with exit code {pod.exit_code}" if pod and pod.exit_code else None,
        )


def _stopped(entry: Entry) -> Iterator[Instance]:
    """The pods of a suspended job that have written logs."""
    job = entry.submission
    if entry.record.phase is not Phase.SUSPENDED:
        return
    for index in (None, *range(job.workers)):
        name = launcher_name(job.name) if index is None else worker_name(job.name, index)
        if (entry.folder / "pods" / name / "log").exists():
            yield Instance(
                name=name,
                status="Terminated",
                created=job.created,
                chief=index is None,
                worker=index,
                gpus=0 if index is None else job.gpus,
                uid=f"{job.uid}-{name}",
            )


def _unending(done: str, left: AbstractSet[int]) -> ArenaError:
    return ArenaError(
        f"{done}, but {processes.listed(left)} of it cannot be ended",
        why="they run as another user, or wait in the kernel for a device or file server",
        hint="its GPUs count as free; look with ps -p PID -o user,stat,wchan,args",
    )


def _stop(entry: Entry) -> AbstractSet[int]:
    """End a job's supervisor and processes, gently if possible; what cannot be ended."""
    keeper = entry.record.supervisor
    if keeper is not None and processes.alive(keeper):

        def still() -> set[int]:
            return {keeper.pid} if processes.alive(keeper) else set()

        # It ends its pods itself, then itself.
        processes.end(still, grace=_PATIENCE)
    _reap()
    return processes.end(lambda: processes.of_job(entry.submission.uid))


def _spawn(
    folder: Path, diary: Path, uid: str, environment: Mapping[str, str]
) -> processes.Process:
    """Start a supervisor that outlives this process and its terminal.

    `folder` is where its job will be; what it has to complain of goes into the folder `diary`.
    """
    _reap()
    package = Path(__file__).resolve().parents[3]
    path = os.pathsep.join(filter(None, [str(package), environment.get("PYTHONPATH")]))
    # A supervisor is no part of the job that it was perhaps submitted from.
    marks = {processes.JOB_MARK: "", processes.POD_MARK: "", processes.KEEPER_MARK: uid}
    log = str(diary / "supervisor.log")
    command = [sys.executable, "-P", "-m", "arena_topo.engines.local.supervisor", str(folder)]
    try:
        pid = os.posix_spawn(
            sys.executable,
            command,
            {**environment, **marks, "PYTHONPATH": path},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            ],
            setsid=True,
            setsigmask=(),
            # nohup and shells' `&` ignore signals, which pods would inherit.
            setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
        )
    except OSError as error:
        raise ArenaError(
            "cannot start the process that runs the job", why=error.strerror or str(error)
        ) from error
    found = processes.process(pid)
    _supervisors.add(pid)
    if found is None:
        raise ArenaError("the process that runs the job ended at once")
    return found


def _reap() -> None:
    """Let go of the supervisors that have ended, where this process goes on for long after them.

    Nothing else that this process has started is waited for.
    """
    # Who finds another thread at it need not do it too.
    if not _supervisors or not _reaping.acquire(blocking=False):
        return
    try:
        for pid in tuple(_supervisors):
            try:
                ended = os.waitpid(pid, os.WNOHANG)[0] == pid
            except ChildProcessError:
                # The program around waits for its children itself, or this is a fork of it.
                ended = True
            if ended:
                _supervisors.discard(pid)
    finally:
        _reaping.release()


def search_path(environment: Mapping[str, str]) -> str:
    """The PATH of jobs: the user's, and the folder of the Python that runs arena-topo.

    That folder comes first where it was meant to be used (a virtual environment called by its
    path), else last: an arena-topo of its own (pipx) must not hide the user's python.
    """
    own = Path(sys.executable).parent
    started = Path(sys.argv[0] or ".").absolute()
    meant = started.name == "__main__.py" or started.parent == own
    path = os.pathsep.join(
        # A job that submits another one has an mpirun that knows its own workers only.
        folder
        for folder in (environment.get("PATH") or os.defpath).split(os.pathsep)
        if Path(folder).name != supervisor.SHIMS
    )
    return os.pathsep.join([str(own), path] if meant else [path, str(own)])
