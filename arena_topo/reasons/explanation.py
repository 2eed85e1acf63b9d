"""The explanation of a job: the verdict, the jobs that use its GPUs, its place in the queue.

facts        the objects that explain a job, as far as they may be read (engines.kubernetes)
case         all that is known of the job, and the conditions of its pods and events
live_events  the events that are current
rules        the decision table
explanation  all of it, with the solver's answer for a job that waits for GPUs
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Protocol, runtime_checkable

import msgspec

from arena_topo.clusters.queues import is_suspended
from arena_topo.clusters.records import PodRecord
from arena_topo.clusters.rules import time_limit
from arena_topo.engines import Event, JobStatus, Phase
from arena_topo.engines.backend import Backend, Pausing
from arena_topo.engines.kubernetes.facts import Denied, JobFacts, Object
from arena_topo.engines.kubernetes.mpijob import (
    job_of_pod,
    job_status,
    reports_running,
    seconds,
    started,
)
from arena_topo.engines.kubernetes.queued import QueuedJob, Snapshot, queued
from arena_topo.errors import AccessDenied, ArenaError
from arena_topo.gang import fairness, planning
from arena_topo.gang.request import Site, request_of
from arena_topo.job import MPIJob
from arena_topo.manifests import reserves
from arena_topo.manifests.forecast import check_bandwidth
from arena_topo.manifests.recorded_job import job_of
from arena_topo.queueing.patience import PatientWait, waits_for
from arena_topo.queueing.reservation import QueueHead, left_for
from arena_topo.reasons import launcher_log
from arena_topo.reasons.case import Case, Diagnosis, Fit
from arena_topo.reasons.launcher_log import LauncherLog
from arena_topo.reasons.rules import verdict
from arena_topo.solver import Placement, Refusal, Request, Unplaceable
from arena_topo.solver import Verdict as Fits
from arena_topo.solver.door import Solver, place
from arena_topo.topology import Cluster, count, members


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockingHolder:
    """A job, or a pod of no job that is known, with GPUs of nodes that the waiting job could use.

    `gpus_on` are its GPUs of each of these nodes, empty if that is not known; `gpus` is their sum.
    `since` is Unix seconds; `left` the seconds until its running timeout, None without one.
    `started`: it runs, and not only its placement is recorded. `pod`: it is a pod; if it is
    `terminating`, it had to end at `since`.
    """

    name: str
    namespace: str
    gpus: int
    gpus_on: Mapping[str, int] = field(default_factory=dict)
    since: float | None
    left: float | None = None
    started: bool = True
    pod: bool = False
    terminating: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingGang:
    """A gang that waits for its turn; `since` is Unix seconds."""

    name: str
    namespace: str
    gpus: int
    priority: int
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePosition:
    """The place of a job among the gangs that wait, the first being 1.

    `whole` says whether the jobs of all namespaces are counted, or only those of its own.
    """

    place: int
    of: int
    ahead: tuple[WaitingGang, ...]
    whole: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnReservation:
    """GPUs of a node that are reserved for the job itself; `free` of them are not in use.

    `indexes` are those of the GPUs whose index is known; the others are only counted.
    """

    node: str
    gpus: int
    free: int
    indexes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The explanation of a job at `now` (Unix seconds).

    `refusals` are the reasons of nodes with their number, `holders` the jobs and pods that use the
    GPUs it waits for, the largest first, `unnamed` the number of further GPUs in use, on the nodes
    `unnamed_on`. All are empty for a job that does not wait for GPUs. `reserved` says how many GPUs
    of which nodes it cannot use because they are reserved, and for whom. `log` is the end of the
    launcher's log, of a job that has not succeeded. `starts_by` is when a waiting job starts at the
    latest (Unix seconds), None where no running timeout of other jobs bounds it. `wait` is what a
    patient job waits for, `reserved_by` the gang that comes first and has reserved its GPUs. `own`
    are the GPUs that are reserved for the job itself, as the head of the queue or for its next
    start. `notes` say that the cluster is known by the controller's view alone, and of what age.
    """

    status: JobStatus
    verdict: Diagnosis
    now: float
    refusals: tuple[Refusal, ...] = ()
    holders: tuple[BlockingHolder, ...] = ()
    unnamed: int = 0
    unnamed_on: tuple[str, ...] = ()
    reserved: str | None = None
    turn: QueuePosition | None = None
    nearest: str | None = None
    events: tuple[Event, ...] = ()
    denied: tuple[Denied, ...] = ()
    log: LauncherLog | None = None
    starts_by: float | None = None
    wait: PatientWait | None = None
    reserved_by: str | None = None
    own: tuple[OwnReservation, ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """The verdict on one line, for a prompt."""
        diagnosis = self.verdict
        job = f"{self.status.name}: {self.status.phase}"
        return f"<Explanation {job}, {diagnosis.code}: {diagnosis.what}>"


@runtime_checkable
class _Clusterly(Protocol):
    """An engine whose jobs are objects of a cluster."""

    def facts(self, name: str, namespace: str) -> JobFacts: ...


def explain_job(backend: Backend, name: str, namespace: str, *, now: float) -> Explanation:
    """Say why a job is where it is; NotFound if there is none. `now` is Unix seconds.

    Objects that may not be read are left out, and named in `denied`.
    """
    if isinstance(backend, _Clusterly):
        facts = backend.facts(name, namespace)
    else:
        facts = JobFacts(status=backend.job(name, namespace), mpijob={}, now=now)
    status, denied, look = facts.status, list(facts.denied), _Look()
    if status.waits:
        if backend.pausing is None:
            look = _in_cluster(backend, facts, denied)
        else:
            look = _here(backend, backend.pausing, status, facts.now)

    def watched() -> bool:
        return backend.starts_waiting if backend.queue is None else backend.queue.watched()

    log = _log(backend, status, denied)
    case = Case(
        msgspec.structs.replace(facts, denied=tuple(denied)),
        fit=look.fit,
        watched=watched,
        log=log,
        start=_start(backend, facts, log),
    )
    return Explanation(
        status=status,
        verdict=verdict(case),
        now=facts.now,
        refusals=look.refusals,
        holders=look.holders,
        unnamed=look.unnamed,
        unnamed_on=look.unnamed_on,
        reserved=look.reserved,
        turn=look.turn,
        nearest=look.fit.nearest,
        starts_by=look.starts_by if look.starts_by is not None and case.starts else None,
        events=case.events,
        denied=tuple(denied),
        log=log,
        wait=look.fit.wait if look.fit.wait and case.starts is not False else None,
        reserved_by=look.fit.behind,
        own=look.own,
        notes=look.notes,
    )


@dataclass(slots=True, kw_only=True)
class _Look:
    """The answers of the solver and the queue about a waiting job."""

    fit: Fit = Fit()
    refusals: tuple[Refusal, ...] = ()
    holders: tuple[BlockingHolder, ...] = ()
    unnamed: int = 0
    unnamed_on: tuple[str, ...] = ()
    reserved: str | None = None
    turn: QueuePosition | None = None
    starts_by: float | None = None
    own: tuple[OwnReservation, ...] = ()
    notes: tuple[str, ...] = ()


def _log(backend: Backend, status: JobStatus, denied: list[Denied]) -> LauncherLog | None:
    """The end of the launcher's log, except of a job that succeeded."""
    if status.phase is Phase.SUCCEEDED:
        return None
    try:
        return launcher_log.read_log_end(backend, status)
    except AccessDenied:
        denied.append(Denied(verb="get", resource="pods/log", namespace=status.namespace))
        return None


def _start(backend: Backend, facts: JobFacts, log: LauncherLog | None) -> list[bytes]:
    """The first lines of the launcher's log, of a job whose ranks run or have run on a cluster."""
    lines = [] if log is None else log.text.encode().splitlines()
    succeeded = facts.status.phase is Phase.SUCCEEDED
    if not facts.mpijob or (len(lines) < launcher_log.MAX_TAIL_LINES and not succeeded):
        return lines
    return launcher_log.read_start(backend, facts.status)


def _refused(refused: Unplaceable) -> Fit:
    return Fit(
        verdict=refused.verdict,
        message=refused.message,
        why=refused.why,
        nearest=refused.nearest,
    )


def _waiting(status: JobStatus, priority: int = 0) -> WaitingGang:
    return WaitingGang(
        name=status.name,
        namespace=status.namespace,
        gpus=status.request_gpus,
        priority=priority,
        since=status.created,
    )


def _holder(status: JobStatus, gpus: int) -> BlockingHolder:
    """A job with the GPUs of its placement, or so many if no placement is recorded."""
    forecast = status.forecast
    workers = forecast.workers if forecast is not None and reserves(forecast.state) else ()
    gpus_on: Counter[str] = Counter()
    for _index, node, some in workers:
        gpus_on[node] += len(some) or gpus // len(workers)
    return BlockingHolder(
        name=status.name,
        namespace=status.namespace,
        gpus=gpus_on.total() or gpus,
        gpus_on=gpus_on,
        since=status.created,
    )


def _relevant(
    look: _Look, holders: Iterable[BlockingHolder], request: Request, cluster: Cluster
) -> None:
    """Add the holders on nodes that the job could use, and further GPUs in use there, to a look."""
    usable = {str(node.name): node for node in Solver(cluster).usable(request)}
    mine = []
    for holder in holders:
        here = {node: gpus for node, gpus in holder.gpus_on.items() if node in usable}
        if here:
            mine.append(replace(holder, gpus_on=here, gpus=sum(here.values())))
        elif not holder.gpus_on:
            mine.append(holder)
    rest = {name: node.healthy_count - node.unreserved.free_count for name, node in usable.items()}
    for holder in mine:
        for node, gpus in holder.gpus_on.items():
            rest[node] -= gpus
    unplaced = sum(holder.gpus for holder in mine if not holder.gpus_on)
    look.unnamed = max(0, sum(max(0, gpus) for gpus in rest.values()) - unplaced)
    look.unnamed_on = tuple(node for node, gpus in rest.items() if gpus > 0 and look.unnamed)
    mine.sort(key=lambda holder: (-holder.gpus, holder.since or 0.0, holder.namespace, holder.name))
    look.holders = tuple(mine)


def _own_reservation(
    job: str, cluster: Cluster, head: QueueHead | None
) -> Iterator[OwnReservation]:
    """The GPUs of a cluster that are reserved for a job, node by node."""
    if head is not None and head.gang.key == job:
        cluster = left_for(head, cluster)
    for node in cluster.nodes:
        for entry, free in node.reservations():
            if entry.job == job:
                yield OwnReservation(
                    node=node.name,
                    gpus=count(entry.gpus) + entry.unnamed,
                    free=free,
                    indexes=members(entry.gpus),
                )


# ---------------------------------------------------------------- a cluster


def _in_cluster(backend: Backend, facts: JobFacts, denied: list[Denied]) -> _Look:
    """The answers about a waiting job of a cluster, as far as the cluster may be read."""
    snapshot, cluster = _view(backend, denied)
    mine = queued(facts.mpijob, facts.priorities)
    if mine is not None and snapshot is not None:
        mine = snapshot.job(*mine.key) or mine
    look = _Look(turn=_turn(facts, snapshot, mine, cluster))
    if cluster is None:
        return look
    look.notes = () if cluster.view is None else cluster.notes
    if mine is not None and snapshot is not None:
        cluster = snapshot.cluster(without={mine.key})
    site = Site(backend=backend, namespace=facts.status.namespace)
    left, anew, head, starts = cluster, None, None, None
    if mine is not None and snapshot is not None and backend.queue is not None:
        oldest = planning.head_of_queue(snapshot, backend.queue, site)
        starts = None if oldest is None else oldest.starts
        look.own = tuple(_own_reservation("/".join(mine.key), snapshot.cluster(), oldest))
        left = fairness.left_to(mine, cluster, oldest, snapshot.now)
        head = None if left is cluster else oldest
        anew = None if head else planning.left_anew(mine, cluster, snapshot, backend.queue, site)
    try:
        job = job_of(dict(facts.mpijob))
        request = request_of(job, left, site)
        try:
            placement = planning.best_placement(job, request, left, anew=anew)
        except Unplaceable as refused:
            planning.check_picked(job, left, site, verdict=refused.verdict)
            raise
        if job.min_bandwidth:
            binding = site.bind(job, placement, left)
            check_bandwidth(job, placement, left, binding)
    except Unplaceable as refused:
        if head is not None and snapshot is not None and planning.fit(job, cluster) is not None:
            look.fit = Fit(
                verdict=Fits.PLACEABLE,
                why=planning.describe_reserved(request, left),
                nearest=refused.nearest,
                behind=head.gang.key,
                opening=None if head.starts is None else head.starts - snapshot.now,
            )
            return look
        look.fit, look.refusals = _refused(refused), refused.refusals
        look.reserved = planning.describe_reserved(request, left)
        if refused.refusals:
            _relevant(look, _holders(facts, snapshot), request, left)
        first = look.turn is not None and look.turn.whole and look.turn.place == 1
        if refused.verdict is Fits.NOT_NOW and snapshot is not None and first:
            look.starts_by = starts
        return look
    except ArenaError as error:
        look.fit = Fit(message=error.message)
        return look
    wait = None if snapshot is None else _wait(mine, snapshot, job, request, placement)
    look.fit = Fit(verdict=Fits.PLACEABLE, wait=wait)
    return look


def _wait(
    mine: QueuedJob | None, snapshot: Snapshot, job: MPIJob, request: Request, offer: Placement
) -> PatientWait | None:
    """What a gang that could have this placement waits for while it is patient; else None."""
    if mine is None or mine.suspender is not None:
        return None
    until = mine.waits_since + job.patience
    if snapshot.now >= until:
        return None
    return waits_for(request, offer, Solver(snapshot.emptied()).find(request), until=until)


def _view(backend: Backend, denied: list[Denied]) -> tuple[Snapshot | None, Cluster | None]:
    """The cluster with its queue; else the cluster alone, as the controller publishes it."""
    try:
        if backend.queue is not None:
            snapshot = backend.queue.read()
            return snapshot, snapshot.cluster()
    except ArenaError:
        # Without the right to list nodes, the view that the controller publishes remains.
        pass
    try:
        # The view does not tell which gang it is for: it may be this one.
        return None, backend.cluster().unreserved()
    except AccessDenied as error:
        denied.append(Denied(verb="list", resource=error.resource or "nodes"))
    except ArenaError as error:
        denied.append(Denied(verb="list", resource="nodes", why=error.message))
    return None, None


def _turn(
    facts: JobFacts, snapshot: Snapshot | None, mine: QueuedJob | None, cluster: Cluster | None
) -> QueuePosition | None:
    """The place of the job in the queue, as far as others fit the cluster at all."""
    if mine is None or not mine.waits_for_starter:
        return None
    listed = facts.jobs or ()
    whole = snapshot is not None and snapshot.everything
    known: Iterable[QueuedJob | None] = (
        queued(listed_job, facts.priorities) for listed_job in listed
    )
    if snapshot is not None and whole:
        known = snapshot.jobs
    idle = None if cluster is None else cluster.idle()
    others = (
        job
        for job in known
        if job is not None
        and job.key != mine.key
        and job.waits_for_starter
        and (idle is None or not fairness.never_fits(job, idle))
    )
    line = fairness.order([*others, mine])
    ahead = line[: line.index(mine)]
    return QueuePosition(
        place=len(ahead) + 1,
        of=len(line),
        ahead=tuple(_waiting(job_status(gang.manifest, ()), gang.priority) for gang in ahead),
        # A job of another namespace shows that all namespaces could be listed.
        whole=whole
        or any(listed_job["metadata"].get("namespace") != mine.namespace for listed_job in listed),
    )


def _holders(facts: JobFacts, snapshot: Snapshot | None) -> Iterator[BlockingHolder]:
    """The other jobs with GPUs, and the pods with GPUs of no such job."""
    me = facts.mpijob["metadata"].get("uid")
    others = [job for job in facts.jobs or () if job["metadata"].get("uid") != me]
    pods: dict[tuple[str, str], list[PodRecord]] = defaultdict(list)
    for pod in snapshot.pods() if snapshot is not None else ():
        if pod.node is not None and pod.gpus and not (pod.promised or pod.over):
            pods[pod.namespace, job_of_pod(pod.name)].append(pod)
    for other in others:
        key = other["metadata"].get("namespace", ""), other["metadata"]["name"]
        holder = _planned_or_running(other, pods.get(key, ()), facts.now)
        if holder is not None:
            pods.pop(key, None)
            yield holder
    for pod in chain.from_iterable(pods.values()):
        due = seconds(pod.deleted)
        yield BlockingHolder(
            name=pod.name,
            namespace=pod.namespace,
            gpus=pod.gpus or 0,
            gpus_on={pod.node or "": pod.gpus or 0},
            since=pod.started if due is None else due,
            pod=True,
            terminating=due is not None,
        )


def _planned_or_running(
    mpijob: Object, pods: Iterable[PodRecord], now: float
) -> BlockingHolder | None:
    """A job, whose bound pods with GPUs are given, as a holder of GPUs; None if it has none."""
    status, stopped = job_status(mpijob, ()), is_suspended(mpijob)
    holder = _holder(status, status.request_gpus)
    if not holder.gpus_on:
        bound: Counter[str] = Counter()
        for pod in pods:
            bound[pod.node or ""] += pod.gpus or 0
        holder = replace(holder, gpus_on=bound, gpus=bound.total() or holder.gpus)
    holds = holder.gpus_on or (not stopped and reports_running(mpijob))
    if status.phase.over or "deletionTimestamp" in mpijob["metadata"] or not holds:
        return None
    since, limit = started(mpijob) or status.created, None if stopped else time_limit(mpijob)
    left = None if limit is None else max(0.0, since + limit - now)
    return replace(holder, since=since, left=left, started=not stopped) if holder.gpus else None


# ---------------------------------------------------------------- the local engine


def _here(backend: Backend, engine: Pausing, status: JobStatus, now: float) -> _Look:
    """The answers about a waiting job of an engine that starts jobs by their age."""
    everybody = backend.jobs(None)
    line = sorted(
        (other for other in everybody if other.waits),
        key=lambda status: (status.created, status.name),
    )
    at = next((at for at, other in enumerate(line) if other.uid == status.uid), len(line))
    ahead = tuple(map(_waiting, line[:at]))
    look = _Look(turn=QueuePosition(place=at + 1, of=max(len(line), at + 1), ahead=ahead))
    request, cluster = engine.asked(status.name, status.namespace)
    head = engine.head(status.name, status.namespace)
    look.own = tuple(_own_reservation(f"{status.namespace}/{status.name}", cluster, head))
    try:
        offer = place(request, cluster)
    except Unplaceable as refused:
        behind = next((node.reserved.job for node in cluster.nodes if node.reserved), None)
        if behind is not None and Solver(cluster.unreserved()).find(request) is not None:
            why = planning.describe_reserved(request, cluster)
            starts = None if head is None else head.starts
            look.fit = Fit(
                verdict=Fits.PLACEABLE,
                why=why,
                nearest=refused.nearest,
                behind=behind,
                opening=None if starts is None else starts - now,
            )
            return look
        look.fit, look.refusals = _refused(refused), refused.refusals
        look.reserved = planning.describe_reserved(request, cluster)
        if refused.refusals:
            running = (status for status in everybody if status.phase is Phase.RUNNING)
            holders = (_running_holder(status, now) for status in running if status.allocated_gpus)
            _relevant(look, holders, request, cluster)
        if refused.verdict is Fits.NOT_NOW and not ahead and head is not None:
            look.starts_by = head.starts
    else:
        wait = None
        if status.until is not None and now < status.until:
            machines = Solver(replace(cluster, nodes=tuple(backend.machines())))
            wait = waits_for(request, offer, machines.find(request), until=status.until)
        look.fit = Fit(verdict=Fits.PLACEABLE, wait=wait)
    return look


def _running_holder(status: JobStatus, now: float) -> BlockingHolder:
    """A running job as a holder of GPUs."""
    left = None if status.deadline is None else max(0.0, status.deadline - now)
    return replace(_holder(status, status.allocated_gpus), left=left)
