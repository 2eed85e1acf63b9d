"""Fairness: one queue order and one backfill rule for every starter of waiting gangs.

The oldest waiting gang (by priority, then age) is the head of the queue. It reserves the GPUs of
its best placement on the cluster without all jobs of arena-topo. Younger gangs get only other GPUs,
except gangs that must end before the head could start: these do not delay it (EASY backfilling,
Lifka 1995, "The ANL/IBM SP Scheduling System").
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from arena_topo.clusters import quota
from arena_topo.engines.kubernetes.queued import QueuedJob, Snapshot
from arena_topo.errors import ArenaError
from arena_topo.gang.request import needs
from arena_topo.job import MPIJob
from arena_topo.manifests.annotations import parse_map, recorded
from arena_topo.manifests.cause import QUOTAS
from arena_topo.manifests.requests import job_of
from arena_topo.solver import Placement
from arena_topo.topology import Cluster, GPUSet, Node, gpu_set

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.queue import Queue

Fit = Callable[[MPIJob, Cluster], Placement | None]
"""A function that places a job on a cluster; None, without a reason, if it does not fit."""

STALE = 60.0
"""Seconds after which the record of a job that was not resumed may be withdrawn by others."""


def order(jobs: Iterable[QueuedJob]) -> list[QueuedJob]:
    """The waiting gangs in the order of the queue."""
    return sorted(filter(waits, jobs), key=rank)


def rank(job: QueuedJob) -> tuple[int, float, str, str]:
    """The sort key of a job in the queue: priority, then age, then name."""
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
    """Whether the starter that recorded a placement on a job has not come back to resume it."""
    return (
        job.state == "placed"
        and job.suspended
        and job.suspender is None
        # A tenant may write any time on its own job, also a future one.
        and (job.recorded is None or abs(now - job.recorded) > STALE)
    )


def left_for(
    mine: QueuedJob,
    cluster: Cluster,
    snapshot: Snapshot,
    fit: Fit,
    *,
    blocked: Callable[[QueuedJob], bool] = lambda _: False,
) -> tuple[Cluster, QueuedJob | None]:
    """The cluster without the GPUs reserved for an older gang, and that gang, if there is one.

    A gang that is `blocked` by something other than GPUs, such as its quota, reserves nothing.
    """
    emptied = None
    for head in order(snapshot.jobs):
        if head.key == mine.key or rank(head) > rank(mine):
            break
        try:
            job = job_of(head.manifest)
            emptied = emptied or snapshot.emptied()
            placement = fit(job, emptied)
        except ArenaError:
            continue
        # A gang that does not fit even then waits for something other than jobs of arena-topo.
        if placement is None or blocked(head):
            continue
        starts = _freed(placement, snapshot.jobs)
        ends = None if mine.timeout is None else snapshot.now + mine.timeout
        if starts is not None and ends is not None and ends <= starts:
            break
        return without(cluster, placement, job), head
    return cluster, None


def starts_by(job: MPIJob, snapshot: Snapshot, fit: Fit) -> float | None:
    """The latest start of the head of the queue (Unix seconds); None if that is not known.

    By then the jobs on its reserved GPUs must have ended, by their --running-timeout.
    """
    placement = fit(job, snapshot.emptied())
    return None if placement is None else _freed(placement, snapshot.jobs)


def short_of_quota(queue: Queue, job: QueuedJob) -> bool:
    """Whether a quota of its namespace prevents the start of a gang, whatever GPUs are free.

    The quotas are compared with its pods, and the cause of its last try counts too: claims count in
    quotas as well, and the caller cannot read every quota.
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


def without(cluster: Cluster, placement: Placement, job: MPIJob) -> Cluster:
    """The cluster without the GPUs, CPU and memory of a placement of this job."""
    cpu, memory = needs(job)
    taken: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for one in placement.assignments:
        taken[one.node].append(one.gpus)

    def less(node: Node) -> Node:
        sets = taken[node.name]
        return replace(
            node,
            free=GPUSet(node.free & ~gpu_set(gpu for gpus in sets for gpu in gpus)),
            unattributed=node.unattributed + job.gpus * sum(not gpus for gpus in sets),
            cpu=None if node.cpu is None else max(0.0, node.cpu - cpu * len(sets)),
            memory=None if node.memory is None else max(0, node.memory - memory * len(sets)),
        )

    nodes = (less(node) if node.name in taken else node for node in cluster.nodes)
    return replace(cluster, nodes=tuple(nodes))


def _freed(placement: Placement, jobs: Iterable[QueuedJob]) -> float | None:
    """The time by which all jobs on the GPUs of a placement must have ended; None if not known."""
    wanted: dict[str, set[int]] = defaultdict(set)
    for one in placement.assignments:
        wanted[one.node].update(one.gpus)
    ends = []
    for job in jobs:
        if job.record is None or job.suspended:
            continue
        try:
            workers = parse_map(job.record)
        except ValueError:
            return None
        if any(
            # A record without indexes may be on any GPUs of its node.
            node in wanted and not (gpus and wanted[node] and wanted[node].isdisjoint(gpus))
            for _, node, gpus in workers
        ):
            if job.timeout is None or job.started is None:
                return None
            ends.append(job.started + job.timeout)
    return max(ends, default=None)
