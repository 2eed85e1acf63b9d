"""The explanation of a job: the verdict, the jobs that use its GPUs, its place in the queue.

facts        the objects that explain a job, as far as they may be read (engines.kubernetes)
case         all that is known of the job, and the conditions of its pods and events
live_events  the events that are current
rules        the decision table
explanation  all of it, with the solver's answer for a job that waits for GPUs
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from html import escape
from typing import Protocol, runtime_checkable

import msgspec

from arena_topo.clusters.queues import suspended
from arena_topo.engines import Backend, Event, JobStatus, Pausing, Phase
from arena_topo.engines.kubernetes.facts import Denied, Facts, Object
from arena_topo.engines.kubernetes.mpijob import (
    job_of_pod,
    job_status,
    runs,
    seconds,
    started,
    time_limit,
)
from arena_topo.engines.kubernetes.queued import QueuedJob, Snapshot, queued
from arena_topo.errors import AccessDenied, ArenaError
from arena_topo.gang import fairness, planning
from arena_topo.gang.request import Site, request_of
from arena_topo.manifests.requests import job_of
from arena_topo.reasons import launcher_log, view
from arena_topo.reasons.case import Case, Diagnosis, Fit
from arena_topo.reasons.launcher_log import LauncherLog
from arena_topo.reasons.rules import verdict
from arena_topo.solver import Refusal, Request, Solver, Unplaceable, place
from arena_topo.solver import Verdict as Fits
from arena_topo.topology import Cluster, count


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A job with GPUs of nodes that the waiting job could use, or a terminating pod with them.

    `nodes` is empty if no placement is recorded. `since` is Unix seconds; `left` the seconds until
    its running timeout, None without one. `started`: it runs, and not only its placement is
    recorded. `terminating`: it is a pod, which had to end at `since`.
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
    """The explanation of a job at `now` (Unix seconds).

    `refusals` are the reasons of nodes with their number, `holders` the jobs that use the GPUs it
    waits for, the largest first, `unnamed` the number of further GPUs in use. All are empty for a
    job that does not wait for GPUs. `log` is the end of the launcher's log, of a job that has not
    succeeded. `starts_by` is when a waiting job starts at the latest (Unix seconds), None where no
    running timeout of other jobs bounds it.
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
        """The same as on a screen, for a notebook."""
        return f"<pre>{escape(view.text(self))}</pre>"


@runtime_checkable
class _Clusterly(Protocol):
    """An engine whose jobs are objects of a cluster."""

    def facts(self, name: str, namespace: str) -> Facts: ...


def explain(backend: Backend, name: str, namespace: str, *, now: float) -> Explanation:
    """Say why a job is where it is; NotFound if there is none. `now` is Unix seconds.

    Objects that may not be read are left out, and named in `denied`.
    """
    if isinstance(backend, _Clusterly):
        facts = backend.facts(name, namespace)
    else:
        facts = Facts(status=backend.job(name, namespace), mpijob={}, now=now)
    status, denied, look = facts.status, list(facts.denied), _Look()
    if _waits(status):
        if backend.pausing is None:
            look = _in_cluster(backend, facts, denied)
        else:
            look = _here(backend, backend.pausing, status)

    def watched() -> bool:
        return backend.starts_waiting if backend.queue is None else backend.queue.watched()

    log = _log(backend, status, denied)
    case = Case(
        msgspec.structs.replace(facts, denied=tuple(denied)), fit=look.fit, watched=watched, log=log
    )
    return Explanation(
        status=status,
        verdict=verdict(case),
        now=facts.now,
        refusals=look.refusals,
        holders=look.holders,
        unnamed=look.unnamed,
        turn=look.turn,
        nearest=look.fit.nearest,
        starts_by=look.starts_by if look.starts_by is not None and case.starts else None,
        events=case.events,
        denied=tuple(denied),
        log=log,
    )


@dataclass(slots=True, kw_only=True)
class _Look:
    """The answers of the solver and the queue about a waiting job."""

    fit: Fit = Fit()
    refusals: tuple[Refusal, ...] = ()
    holders: tuple[Holder, ...] = ()
    unnamed: int = 0
    turn: Turn | None = None
    starts_by: float | None = None


def _waits(status: JobStatus) -> bool:
    forecast = status.forecast
    pending = status.phase is Phase.PENDING
    return pending and forecast is not None and forecast.state == "waiting"


def _log(backend: Backend, status: JobStatus, denied: list[Denied]) -> LauncherLog | None:
    """The end of the launcher's log, except of a job that succeeded."""
    if status.phase is Phase.SUCCEEDED:
        return None
    try:
        return launcher_log.read(backend, status)
    except AccessDenied:
        denied.append(Denied(verb="get", resource="pods/log", namespace=status.namespace))
        return None


def _refused(refused: Unplaceable) -> Fit:
    return Fit(
        verdict=refused.verdict,
        message=refused.message,
        why=refused.why,
        nearest=refused.nearest,
    )


def _waiting(status: JobStatus, priority: int = 0) -> Waiting:
    return Waiting(
        name=status.name,
        namespace=status.namespace,
        gpus=status.request_gpus,
        priority=priority,
        since=status.created,
    )


def _holder(status: JobStatus, gpus: int) -> Holder:
    """A job with the GPUs of its placement, or so many if no placement is recorded."""
    forecast = status.forecast
    workers = forecast.workers if forecast is not None and forecast.state == "placed" else ()
    return Holder(
        name=status.name,
        namespace=status.namespace,
        gpus=sum(len(some) for _index, _node, some in workers) or gpus,
        nodes=tuple(dict.fromkeys(node for _index, node, _gpus in workers)),
        since=status.created,
    )


def _relevant(
    holders: Iterable[Holder], request: Request, cluster: Cluster
) -> tuple[tuple[Holder, ...], int]:
    """The holders on nodes that the job could use, and the number of further GPUs in use there."""
    usable = {str(node.name): node for node in Solver(cluster).usable(request)}
    mine = [one for one in holders if not one.nodes or usable.keys() & set(one.nodes)]
    busy = 0
    for node in usable.values():
        everything = node.machine.everything if node.allocatable is None else node.allocatable
        busy += max(0, count(everything) - node.free_count)
    mine.sort(key=lambda one: (-one.gpus, one.since, one.namespace, one.name))
    return tuple(mine), max(0, busy - sum(one.gpus for one in mine))


# ---------------------------------------------------------------- a cluster


def _in_cluster(backend: Backend, facts: Facts, denied: list[Denied]) -> _Look:
    """The answers about a waiting job of a cluster, as far as the cluster may be read."""
    snapshot, cluster = _view(backend, denied)
    mine = queued(facts.mpijob, facts.priorities)
    if mine is not None and snapshot is not None:
        mine = snapshot.job(*mine.key) or mine
    look = _Look(turn=_turn(facts, snapshot, mine))
    if cluster is None:
        return look
    try:
        job = job_of(dict(facts.mpijob))
        site = Site(backend=backend, namespace=facts.status.namespace)
        request = request_of(job, cluster, site)
        placement = planning.placed(job, request, cluster)
        if job.min_bandwidth:
            binding = site.bind(job, placement, cluster)
            planning.check_bandwidth(job, placement, cluster, binding)
    except Unplaceable as refused:
        look.fit, look.refusals = _refused(refused), refused.refusals
        if refused.refusals:
            holders = _holders(facts, snapshot)
            look.holders, look.unnamed = _relevant(holders, request, cluster)
        first = look.turn is not None and look.turn.whole and look.turn.place == 1
        if refused.verdict is Fits.NOT_NOW and snapshot is not None and first:
            look.starts_by = fairness.starts_by(job, snapshot, planning.fit)
        return look
    except ArenaError as error:
        look.fit = Fit(message=error.message)
        return look
    behind = None
    if mine is not None and snapshot is not None and backend.queue is not None:
        left, head = planning.share(mine, cluster, snapshot, backend.queue, site)
        # The older gang for which the GPUs are reserved that this job could take.
        if head is not None and planning.fit(job, left) is None:
            behind = f"{head.namespace}/{head.name}"
    look.fit = Fit(verdict=Fits.PLACEABLE, behind=behind)
    return look


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
        return None, backend.cluster()
    except AccessDenied as error:
        denied.append(Denied(verb="list", resource=error.resource or "nodes"))
    except ArenaError as error:
        denied.append(Denied(verb="list", resource="nodes", why=error.message))
    return None, None


def _turn(facts: Facts, snapshot: Snapshot | None, mine: QueuedJob | None) -> Turn | None:
    """The place of the job in the queue."""
    if mine is None or not fairness.waits(mine):
        return None
    listed = facts.jobs or ()
    whole = snapshot is not None and snapshot.everything
    known: Iterable[QueuedJob | None] = (queued(one, facts.priorities) for one in listed)
    if snapshot is not None and whole:
        known = snapshot.jobs
    others = (one for one in known if one is not None and one.key != mine.key)
    line = fairness.order([*others, mine])
    ahead = line[: line.index(mine)]
    return Turn(
        place=len(ahead) + 1,
        of=len(line),
        ahead=tuple(_waiting(job_status(one.manifest, ()), one.priority) for one in ahead),
        # A job of another namespace shows that all namespaces could be listed.
        whole=whole or any(one["metadata"].get("namespace") != mine.namespace for one in listed),
    )


def _holders(facts: Facts, snapshot: Snapshot | None) -> Iterator[Holder]:
    """The other jobs with GPUs, and the terminating pods with GPUs."""
    me, named = facts.mpijob["metadata"].get("uid"), set()
    for one in facts.jobs or ():
        if one["metadata"].get("uid") != me and (holder := _planned_or_running(one, facts.now)):
            named.add((holder.namespace, holder.name))
            yield holder
    for pod in snapshot.pods() if snapshot is not None else ():
        due = seconds(pod.deleted)
        if pod.node is None or pod.promised or not pod.gpus or due is None:
            continue
        if (pod.namespace, job_of_pod(pod.name)) not in named:
            yield Holder(
                name=pod.name,
                namespace=pod.namespace,
                gpus=pod.gpus,
                nodes=(pod.node,),
                since=due,
                terminating=True,
            )


def _planned_or_running(mpijob: Object, now: float) -> Holder | None:
    """A job as a holder of GPUs; None if it has none."""
    status, stopped = job_status(mpijob, ()), suspended(mpijob)
    found = _holder(status, status.request_gpus)
    holds = found.nodes or (not stopped and runs(mpijob))
    if status.phase.over or "deletionTimestamp" in mpijob["metadata"] or not holds:
        return None
    since, limit = started(mpijob) or status.created, None if stopped else time_limit(mpijob)
    left = None if limit is None else max(0.0, since + limit - now)
    return replace(found, since=since, left=left, started=not stopped) if found.gpus else None


# ---------------------------------------------------------------- the local engine


def _here(backend: Backend, engine: Pausing, status: JobStatus) -> _Look:
    """The answers about a waiting job of an engine that starts jobs by their age."""
    everybody = backend.jobs(None)
    line = sorted(filter(_waits, everybody), key=lambda one: (one.created, one.name))
    at = next((at for at, one in enumerate(line) if one.uid == status.uid), len(line))
    ahead = tuple(map(_waiting, line[:at]))
    look = _Look(turn=Turn(place=at + 1, of=max(len(line), at + 1), ahead=ahead))
    request, cluster = engine.asked(status.name, status.namespace)
    try:
        place(request, cluster)
    except Unplaceable as refused:
        look.fit, look.refusals = _refused(refused), refused.refusals
        if refused.refusals:
            running = (one for one in everybody if one.phase is Phase.RUNNING)
            holders = (_holder(one, one.allocated_gpus) for one in running if one.allocated_gpus)
            look.holders, look.unnamed = _relevant(holders, request, cluster)
    else:
        behind = f"{ahead[0].namespace}/{ahead[0].name}" if ahead else None
        look.fit = Fit(verdict=Fits.PLACEABLE, behind=behind)
    return look
