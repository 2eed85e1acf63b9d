"""Why a job is where it is: the verdict, who holds what it waits for, its place in the queue.

facts        what may be read of the world around a job (engines.kubernetes)
case         all that is known of it, in the words of whichever engine has it
live_events  which events still hold
rules        the decision table
explanation  all of it put together, with the solver's answer for a job that waits for GPUs
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from arena_topo.clusters.queues import suspended
from arena_topo.clusters.usage import gpu_count, job_over, worker_template
from arena_topo.engines import Backend, Event, JobStatus, Phase
from arena_topo.engines.kubernetes.facts import Denied, Facts, Object
from arena_topo.engines.kubernetes.mpijob import job_of_pod, runs, seconds, started, time_limit
from arena_topo.engines.kubernetes.queued import QueuedJob, Snapshot, queued
from arena_topo.errors import AccessDenied, ArenaError
from arena_topo.gang import fairness, planning
from arena_topo.gang.rollout import gated
from arena_topo.job import MPIJob
from arena_topo.manifests import MAP, STATE
from arena_topo.manifests.annotations import job_of, parse_map
from arena_topo.manifests.binding import bind
from arena_topo.reasons import launcher_log
from arena_topo.reasons.case import Case, Diagnosis, Fit
from arena_topo.reasons.launcher_log import LauncherLog
from arena_topo.reasons.rules import cordoned, lost, verdict
from arena_topo.solver import Placement, Refusal, Request, Solver, Unplaceable, place
from arena_topo.solver import Verdict as Fits
from arena_topo.topology import Cluster, count

if TYPE_CHECKING:
    from arena_topo.job import MPIJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A job that holds GPUs of nodes that the waiting one could use, or a pod that still does.

    `nodes` is empty where nobody recorded them. `since` is Unix seconds; `left` how many seconds
    its running timeout leaves it, None where it has none. `started`: it runs, and does not only
    have its placement recorded. `terminating`: it is a pod, which was to end at `since`.
    """

    name: str
    namespace: str
    gpus: int
    nodes: tuple[str, ...] = ()
    since: float
    left: float | None = None
    started: bool = True
    terminating: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A gang that waits for its turn; `since` is Unix seconds."""

    name: str
    namespace: str
    gpus: int
    priority: int
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The place of a job among the gangs that wait, the first being 1.

    `whole` says whether the jobs of all namespaces are counted, or only those of its own.
    """

    place: int
    of: int
    ahead: tuple[Waiting, ...]
    whole: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """All that can be said of why a job is where it is, as of `now` (Unix seconds).

    `refusals` count the nodes by what refuses the job, `holders` are the jobs that hold what it
    waits for, the largest first, `unnamed` how many more of those GPUs others hold. All are empty
    for a job that does not wait for GPUs. `log` is the end of the launcher's log, of a job that
    has not succeeded. `starts_by` is when a waiting job starts at the latest (Unix seconds), None
    where no limit of others says so.
    """

    status: JobStatus
    verdict: Diagnosis
    now: float
    refusals: tuple[Refusal, ...] = ()
    holders: tuple[Holder, ...] = ()
    unnamed: int = 0
    turn: Turn | None = None
    nearest: str | None = None
    events: tuple[Event, ...] = ()
    denied: tuple[Denied, ...] = ()
    log: LauncherLog | None = None
    starts_by: float | None = None

    def __repr__(self) -> str:
        """The verdict on one line, for a prompt."""
        said = self.verdict
        return f"<Explanation {self.status.name}: {self.status.phase}, {said.code}: {said.what}>"

    def _repr_html_(self) -> str:
        """The verdict as a table, for a notebook."""
        said = self.verdict
        rows = {
            "job": self.status.name,
            "status": str(self.status.phase),
            "verdict": said.what,
            "why": said.why,
            "try": said.hint,
        }
        cells = (
            f"<tr><th>{name}</th><td>{escape(text)}</td></tr>"
            for name, text in rows.items()
            if text
        )
        return f"<table>{''.join(cells)}</table>"


@runtime_checkable
class _Clusterly(Protocol):
    """An engine whose jobs are objects that can be looked at."""

    def facts(self, name: str, namespace: str) -> Facts: ...


@runtime_checkable
class _Locally(Protocol):
    """An engine that keeps what its jobs asked of the solver."""

    def request(self, name: str, namespace: str) -> Request | None: ...


def explain(backend: Backend, name: str, namespace: str, *, now: float) -> Explanation:
    """Say why a job is where it is; NotFound if there is none. `now` is Unix seconds.

    Whatever may not be read is left out, and named in `denied`.
    """
    if isinstance(backend, _Clusterly):
        return _of_cluster(backend, backend.facts(name, namespace))
    return _of_engine(backend, backend.job(name, namespace), now)


# ---------------------------------------------------------------- a cluster


@dataclass(slots=True)
class _Look:
    """What the solver and the queue say of a waiting job."""

    fit: Fit | None = None
    refusals: tuple[Refusal, ...] = ()
    holders: tuple[Holder, ...] = ()
    unnamed: int = 0
    turn: Turn | None = None
    starts_by: float | None = None


def _of_cluster(backend: Backend, facts: Facts) -> Explanation:
    status, denied = facts.status, list(facts.denied)
    state = (facts.mpijob["metadata"].get("annotations") or {}).get(STATE)
    waits = status.phase is Phase.PENDING and state == "waiting"
    troubled = (lost(facts.pods, facts.nodes) or cordoned(facts.pods, facts.nodes)) and (
        state == "placed" and not status.phase.over
    )
    look = _looked(backend, facts, denied) if waits else _Look()
    log = _log(backend, status, denied)
    starts = None
    if waits or troubled or gated(facts.pods):
        starts = backend.queue is not None and backend.queue.watched()
    case = Case(
        status=status,
        facts=replace(facts, denied=tuple(denied)),
        now=facts.now,
        fit=look.fit,
        starts=starts,
        log=log,
    )
    return Explanation(
        status=status,
        verdict=verdict(case),
        now=facts.now,
        refusals=look.refusals,
        holders=look.holders,
        unnamed=look.unnamed,
        turn=look.turn,
        nearest=look.fit.nearest if look.fit is not None else None,
        starts_by=look.starts_by if starts else None,
        events=case.events,
        denied=tuple(denied),
        log=log,
    )


def _log(backend: Backend, status: JobStatus, denied: list[Denied]) -> LauncherLog | None:
    """The end of the launcher's log, where it may say more than the pods do."""
    if status.phase is Phase.SUCCEEDED:
        return None
    try:
        return launcher_log.read(backend, status)
    except AccessDenied:
        denied.append(Denied(verb="get", resource="pods/log", namespace=status.namespace))
        return None


def _looked(backend: Backend, facts: Facts, denied: list[Denied]) -> _Look:
    """Ask the solver and the queue about a waiting job, as far as they may be read."""
    snapshot, cluster = _view(backend, denied)
    look = _Look(fit=Fit(), turn=_turn(facts, snapshot))
    if cluster is None:
        return look
    try:
        job = job_of(dict(facts.mpijob))
        request = planning.request_of(job, cluster, backend)
        placement = planning.placed(job, request, cluster)
        _check_bandwidth(job, placement, cluster, backend, facts)
    except Unplaceable as refused:
        look.fit, look.refusals = _refused(refused), refused.refusals
        if refused.refusals:
            look.holders, look.unnamed = _held_by(facts, snapshot, request, cluster)
        first = look.turn is not None and look.turn.whole and look.turn.place == 1
        if refused.verdict is Fits.NOT_NOW and snapshot is not None and first:
            look.starts_by = fairness.starts_by(job, snapshot, planning.fit)
    except ArenaError as error:
        look.fit = Fit(message=error.message)
    else:
        look.fit = Fit(verdict=Fits.PLACEABLE, behind=_behind(job, facts, snapshot, cluster))
    return look


def _check_bandwidth(
    job: MPIJob, placement: Placement, cluster: Cluster, backend: Backend, facts: Facts
) -> None:
    """Refuse, with Unplaceable, what a starter would refuse for --min-bandwidth."""
    if job.min_bandwidth:
        mechanisms = backend.mechanisms(facts.status.namespace)
        binding = bind(job, placement, cluster, backend.api_version(), mechanisms)
        planning.check_bandwidth(job, placement, cluster, binding)


def _refused(refused: Unplaceable) -> Fit:
    return Fit(
        verdict=refused.verdict,
        message=refused.message,
        why=refused.why,
        nearest=refused.nearest,
    )


def _view(backend: Backend, denied: list[Denied]) -> tuple[Snapshot | None, Cluster | None]:
    """The cluster with all that waits; else the cluster alone, as anybody may see it."""
    try:
        if backend.queue is not None:
            snapshot = backend.queue.read()
            return snapshot, snapshot.cluster()
    except ArenaError:
        # Whoever may not list nodes may still read what the controller publishes.
        pass
    try:
        return None, backend.cluster()
    except AccessDenied as error:
        denied.append(Denied(verb="list", resource=error.resource or "nodes"))
    except ArenaError as error:
        denied.append(Denied(verb="list", resource="nodes", why=error.message))
    return None, None


def _behind(job: MPIJob, facts: Facts, snapshot: Snapshot | None, cluster: Cluster) -> str | None:
    """The older gang for which the GPUs are kept that this job could take."""
    mine = _mine(facts, snapshot)
    if snapshot is None or mine is None:
        return None
    left, head = fairness.left_for(mine, cluster, snapshot, planning.fit)
    if head is None or planning.fit(job, left) is not None:
        return None
    return f"{head.namespace}/{head.name}"


def _mine(facts: Facts, snapshot: Snapshot | None) -> QueuedJob | None:
    found = queued(facts.mpijob, facts.priorities)
    if found is None or snapshot is None:
        return found
    return snapshot.job(*found.key) or found


def _turn(facts: Facts, snapshot: Snapshot | None) -> Turn | None:
    """Where the job stands among those that wait."""
    mine = _mine(facts, snapshot)
    if mine is None or not fairness.waits(mine):
        return None
    whole = snapshot is not None and snapshot.everything
    if snapshot is not None and whole:
        jobs = list(snapshot.jobs)
    else:
        known = (queued(one, facts.priorities) for one in facts.jobs or ())
        jobs = [one for one in known if one is not None]
    others = [one for one in jobs if one.key != mine.key]
    line = fairness.order([*others, mine])
    here = facts.status.namespace
    namespaces = (one["metadata"].get("namespace") != here for one in facts.jobs or ())
    at = line.index(mine)
    return Turn(
        place=at + 1,
        of=len(line),
        ahead=tuple(map(_waiting, line[:at])),
        # Of another namespace: then more than one could be listed.
        whole=whole or any(namespaces),
    )


def _waiting(one: QueuedJob) -> Waiting:
    return Waiting(
        name=one.name,
        namespace=one.namespace,
        gpus=_asked(one.manifest),
        priority=one.priority,
        since=one.created,
    )


def _asked(mpijob: Object) -> int:
    """The GPUs that a job asks for."""
    try:
        job = job_of(dict(mpijob))
    except (ArenaError, KeyError, TypeError, ValueError):
        return 0
    return job.workers * job.gpus


def _held_by(
    facts: Facts, snapshot: Snapshot | None, request: Request, cluster: Cluster
) -> tuple[tuple[Holder, ...], int]:
    """Who holds GPUs of nodes that the job could use, and how many more are in use there."""
    me = facts.mpijob["metadata"].get("uid")
    found = [
        holder
        for one in facts.jobs or ()
        if one["metadata"].get("uid") != me and (holder := _holder(one, facts.now)) is not None
    ]
    jobs = {(one.namespace, one.name) for one in found}
    pods = _terminating(snapshot) if snapshot is not None else ()
    found += [one for one in pods if (one.namespace, job_of_pod(one.name)) not in jobs]
    return _relevant(found, request, cluster)


def _terminating(snapshot: Snapshot) -> Iterator[Holder]:
    """The pods that hold GPUs until they have ended, as they were told to."""
    for one in snapshot.pods():
        due = seconds(one.deleted)
        if one.node is not None and not one.promised and one.gpus and due is not None:
            yield Holder(
                name=one.name,
                namespace=one.namespace,
                gpus=one.gpus,
                nodes=(one.node,),
                since=due,
                terminating=True,
            )


def _relevant(
    holders: Sequence[Holder], request: Request, cluster: Cluster
) -> tuple[tuple[Holder, ...], int]:
    usable = {str(node.name): node for node in Solver(cluster).usable(request)}
    kept = [one for one in holders if not one.nodes or usable.keys() & set(one.nodes)]
    busy = 0
    for node in usable.values():
        everything = node.machine.everything if node.allocatable is None else node.allocatable
        busy += max(0, count(everything) - node.free_count)
    unnamed = busy - sum(one.gpus for one in kept)
    kept.sort(key=lambda one: (-one.gpus, one.since, one.namespace, one.name))
    return tuple(kept), max(0, unnamed)


def _holder(mpijob: Object, now: float) -> Holder | None:
    """A job as somebody who holds GPUs; None if it holds none."""
    meta = mpijob["metadata"]
    if job_over(mpijob) or "deletionTimestamp" in meta:
        return None
    notes = meta.get("annotations") or {}
    stopped = suspended(mpijob)
    planned = notes.get(STATE) == "placed" and MAP in notes
    if not planned and (stopped or not runs(mpijob)):
        return None
    workers: tuple[tuple[int, str, tuple[int, ...]], ...] = ()
    if planned:
        try:
            workers = parse_map(str(notes[MAP]))
        except ValueError:
            workers = ()
    gpus = sum(len(one[2]) for one in workers) or _asked(mpijob) or _counted(mpijob)
    created = seconds(meta.get("creationTimestamp")) or now
    since = started(mpijob) or created
    limit = None if stopped else time_limit(mpijob)
    return (
        Holder(
            name=str(meta["name"]),
            namespace=str(meta.get("namespace") or ""),
            gpus=gpus,
            nodes=tuple(dict.fromkeys(node for _, node, _ in workers)),
            since=since,
            left=None if limit is None else max(0.0, since + limit - now),
            started=not stopped,
        )
        if gpus
        else None
    )


def _counted(mpijob: Object) -> int:
    """The GPUs of a job by its template alone."""
    try:
        return gpu_count(worker_template(mpijob).get("spec") or {})
    except (TypeError, ValueError):
        return 0


# ---------------------------------------------------------------- an engine without objects


def _of_engine(backend: Backend, status: JobStatus, now: float) -> Explanation:
    forecast = status.forecast
    waits = status.phase is Phase.PENDING and forecast is not None and forecast.state == "waiting"
    if not waits:
        case = Case(status=status, now=now, log=_log(backend, status, []))
        return Explanation(status=status, verdict=verdict(case), now=now, log=case.log)
    everybody = backend.jobs(None)
    line = sorted(filter(_in_line, everybody), key=lambda one: (one.created, one.name))
    at = next((at for at, one in enumerate(line) if one.uid == status.uid), len(line))
    ahead = tuple(map(_waiter, line[:at]))
    request = _request(backend, status)
    cluster = backend.cluster()
    refusals: tuple[Refusal, ...] = ()
    try:
        place(request, cluster)
    except Unplaceable as refused:
        fit, refusals = _refused(refused), refused.refusals
    else:
        behind = f"{ahead[0].namespace}/{ahead[0].name}" if ahead else None
        fit = Fit(verdict=Fits.PLACEABLE, behind=behind)
    case = Case(status=status, now=now, fit=fit, starts=backend.starts_waiting)
    running = [one for one in everybody if one.phase is Phase.RUNNING and one.allocated_gpus]
    holders, unnamed = _relevant(list(map(_runner, running)), request, cluster)
    return Explanation(
        status=status,
        verdict=verdict(case),
        now=now,
        refusals=refusals,
        holders=holders if refusals else (),
        unnamed=unnamed if refusals else 0,
        turn=Turn(place=at + 1, of=max(len(line), at + 1), ahead=ahead),
        nearest=fit.nearest,
    )


def _in_line(one: JobStatus) -> bool:
    forecast = one.forecast
    return one.phase is Phase.PENDING and forecast is not None and forecast.state == "waiting"


def _waiter(one: JobStatus) -> Waiting:
    return Waiting(
        name=one.name,
        namespace=one.namespace,
        gpus=one.request_gpus,
        priority=0,
        since=one.created,
    )


def _runner(one: JobStatus) -> Holder:
    workers = one.forecast.workers if one.forecast is not None else ()
    return Holder(
        name=one.name,
        namespace=one.namespace,
        gpus=one.allocated_gpus,
        nodes=tuple(dict.fromkeys(node for _, node, _ in workers)),
        since=one.created,
    )


def _request(backend: Backend, status: JobStatus) -> Request:
    """What a job asked of the solver; as many GPUs as it has, where its own words are not kept."""
    asked = None
    if isinstance(backend, _Locally):
        asked = backend.request(status.name, status.namespace)
    if asked is not None:
        return asked
    workers = [one for one in status.instances if one.worker is not None]
    gpus = max((one.gpus for one in workers), default=1)
    return Request(workers=max(1, len(workers)), gpus=max(1, gpus), mix_models=True)
