"""Whose turn it is: one rule for everybody who starts waiting gangs.

The oldest waiting gang (by priority, then age) keeps back the GPUs of its best placement on the
cluster as if all jobs of arena-topo had ended. Younger ones use only others, except those that must
end before the head could start: then they are in nobody's way (backfilling as in EASY, Lifka 1995,
"The ANL/IBM SP Scheduling System").
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from arena_topo.clusters import quota
from arena_topo.engines.kubernetes.queued import QueuedJob, Snapshot
from arena_topo.errors import ArenaError
from arena_topo.job import MPIJob
from arena_topo.manifests.annotations import job_of, parse_map, recorded
from arena_topo.manifests.cause import QUOTAS
from arena_topo.solver import Placement
from arena_topo.topology import Cluster, GPUSet, NodeName, gpu_set

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.queue import Queue

Fit = Callable[[MPIJob, Cluster], Placement | None]
"""Places a job on a cluster; None where it does not fit, without saying why."""

STALE = 60.0
"""Seconds after which a record on a job that nobody resumed may be withdrawn by others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """What the head of the queue keeps back: its placement, and when it may start at last.

    `until` is when all who hold those GPUs must have ended (Unix seconds), None where nobody knows.
    """

    head: QueuedJob
    job: MPIJob
    placement: Placement
    until: float | None


def order(jobs: Iterable[QueuedJob]) -> list[QueuedJob]:
    """The gangs that wait for their turn, the first one first."""
    return sorted(filter(waits, jobs), key=rank)


def rank(job: QueuedJob) -> tuple[int, float, str, str]:
    """The place of a job in the queue: by priority, then age; names settle what is left."""
    return -job.priority, job.created, job.namespace, job.name


def waits(job: QueuedJob) -> bool:
    """Whether a job waits for a starter of arena-topo."""
    return (
        job.state == "waiting"
        and job.suspended
        and job.suspender is None
        and not (job.stopped or job.incomplete)
    )


def abandoned(job: QueuedJob, now: float) -> bool:
    """Whether the record of a job was left behind by somebody who did not come to resume it."""
    return (
        job.state == "placed"
        and job.suspended
        and job.suspender is None
        # Any tenant may write a time on its job, one to come as well.
        and (job.recorded is None or abs(now - job.recorded) > STALE)
    )


def reservation(
    mine: QueuedJob,
    snapshot: Snapshot,
    fit: Fit,
    *,
    blocked: Callable[[QueuedJob], bool] = lambda _: False,
) -> Reservation | None:
    """What an older gang keeps from this one; None where it is this one's turn.

    One that is `blocked` by something else than GPUs, such as its quota, keeps nothing.
    """
    emptied = None
    for head in order(snapshot.jobs):
        if head.key == mine.key or rank(head) > rank(mine):
            return None
        try:
            job = job_of(head.manifest)
            emptied = emptied or snapshot.emptied()
            placement = fit(job, emptied)
        except ArenaError:
            continue
        # One that does not fit even then waits for others than arena-topo's jobs.
        if placement is not None and not blocked(head):
            until = _freed(placement, snapshot.jobs)
            return Reservation(head=head, job=job, placement=placement, until=until)
    return None


def starts_by(job: MPIJob, snapshot: Snapshot, fit: Fit) -> float | None:
    """When the head of the queue can start at the latest (Unix seconds); None if that is open.

    Then the jobs that hold the GPUs reserved for it must have ended, by their --running-timeout.
    """
    placement = fit(job, snapshot.emptied())
    return None if placement is None else _freed(placement, snapshot.jobs)


def short_of_quota(queue: Queue, job: QueuedJob) -> bool:
    """Whether the quota of its namespace keeps a gang from starting, whatever GPUs are free.

    By its pods, or by what was recorded when it was last tried: claims count in quotas as well, and
    not every quota can be read.
    """
    forecast = recorded(job.manifest)
    if forecast is not None and forecast.cause is not None and forecast.cause.code in QUOTAS:
        return True
    quotas = queue.quotas(job.namespace)
    return bool(quotas) and quota.shortfall(job.manifest, quotas) is not None


def newcomer(job: MPIJob, *, namespace: str, priority: int) -> QueuedJob:
    """A job that does not exist yet, as the last of its priority in the queue."""
    return QueuedJob(
        namespace=namespace,
        name=job.name,
        created=math.inf,
        priority=priority,
        state="waiting",
        record=None,
        recorded=None,
        suspended=True,
        suspender=None,
        tries=0,
        timeout=float(job.running_timeout) or None,
        started=None,
        manifest={},
    )


def left_for(
    mine: QueuedJob,
    cluster: Cluster,
    snapshot: Snapshot,
    fit: Fit,
    *,
    blocked: Callable[[QueuedJob], bool] = lambda _: False,
) -> tuple[Cluster, QueuedJob | None]:
    """The cluster as a job may use it, and the older gang for which the rest is kept, if any is."""
    held = reservation(mine, snapshot, fit, blocked=blocked)
    left = kept_from(mine, cluster, held, now=snapshot.now)
    return left, held.head if held is not None and left is not cluster else None


def kept_from(
    mine: QueuedJob, cluster: Cluster, held: Reservation | None, *, now: float
) -> Cluster:
    """The cluster as a job may use it: without what the head of the queue keeps back."""
    if held is None:
        return cluster
    ends = None if mine.timeout is None else now + mine.timeout
    if ends is not None and held.until is not None and ends <= held.until:
        return cluster
    return without(cluster, held.placement, held.job)


def without(cluster: Cluster, placement: Placement, job: MPIJob) -> Cluster:
    """The cluster after a placement of this job was taken out of what is free."""
    known: dict[NodeName, GPUSet] = {}
    unknown: Counter[NodeName] = Counter()
    workers = Counter(one.node for one in placement.assignments)
    for one in placement.assignments:
        if one.gpus:
            known[one.node] = GPUSet(known.get(one.node, 0) | gpu_set(one.gpus))
        else:
            unknown[one.node] += job.gpus
    cpu = float(job.cpu.amount) if job.cpu else 0.0
    memory = int(job.memory.amount) if job.memory else 0
    return replace(
        cluster,
        nodes=tuple(
            replace(
                node,
                free=GPUSet(node.free & ~known.get(node.name, 0)),
                unattributed=node.unattributed + unknown[node.name],
                cpu=None if node.cpu is None else max(0.0, node.cpu - cpu * workers[node.name]),
                memory=None
                if node.memory is None
                else max(0, node.memory - memory * workers[node.name]),
            )
            if node.name in workers
            else node
            for node in cluster.nodes
        ),
    )


def _freed(placement: Placement, jobs: Iterable[QueuedJob]) -> float | None:
    """When the last of those jobs must have ended that hold GPUs of a placement."""
    wanted: dict[str, GPUSet] = {}
    for one in placement.assignments:
        wanted[one.node] = GPUSet(wanted.get(one.node, 0) | gpu_set(one.gpus))
    ends = []
    for job in jobs:
        if job.record is None or job.suspended:
            continue
        try:
            workers = parse_map(job.record)
        except ValueError:
            return None
        if not any(
            node in wanted and (not gpus or not wanted[node] or wanted[node] & gpu_set(gpus))
            for _, node, gpus in workers
        ):
            continue
        if job.timeout is None or job.started is None:
            return None
        ends.append(job.started + job.timeout)
    return max(ends, default=None)
