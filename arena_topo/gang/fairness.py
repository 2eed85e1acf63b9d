"""Fairness: the gangs of a cluster in one queue, for every starter.

Here the jobs of a snapshot become values of `queueing`, which has the rule: who waits, what runs,
and what is reserved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

from arena_topo.clusters import quota
from arena_topo.engines.kubernetes.queued import QueuedJob, QueueFacts, Snapshot
from arena_topo.errors import ArenaError
from arena_topo.gang.request import ANY_SITE, Site, request_of
from arena_topo.job import MPIJob
from arena_topo.manifests.annotations import parse_map, recorded_placement
from arena_topo.manifests.cause import QUOTAS
from arena_topo.manifests.recorded_job import job_of
from arena_topo.queueing import (
    Followers,
    Rank,
    Running,
    Situation,
    Waiting,
    gpus_by_node,
    queue_rank,
)
from arena_topo.queueing.reservation import QueueHead, head_of, left_for
from arena_topo.solver.door import Solver
from arena_topo.topology import Cluster, GPUSet, NodeName

STALE_RECORD_SECONDS = 60.0
"""Seconds after which the record of a job that was not resumed may be withdrawn by others."""


def order(jobs: Iterable[QueuedJob]) -> list[QueuedJob]:
    """The waiting gangs in the order of the queue."""
    return sorted((job for job in jobs if job.waits_for_starter), key=rank)


def rank(job: QueuedJob) -> Rank:
    """The place of a job in the queue, without a look at its request."""
    return queue_rank(job.priority, job.created, job.key)


def is_abandoned(job: QueuedJob, now: float) -> bool:
    """Whether the starter that recorded a placement on a job has not come back to resume it."""
    return (
        job.state == "placed"
        and job.suspended
        and job.suspender is None
        # A tenant may write any time on its own job, also a future one.
        and (job.recorded is None or abs(now - job.recorded) > STALE_RECORD_SECONDS)
    )


def situation(snapshot: Snapshot, followers: Followers | None = None) -> Situation:
    """The cluster of a snapshot and the jobs that run on it, for the rule of the queue."""
    running = (
        Running(key="/".join(job.key), started=job.started, timeout=job.timeout)
        for job in snapshot.jobs
        if job.record is not None or job.reserved is not None
    )
    return Situation(
        cluster=snapshot.cluster(),
        emptied=snapshot.emptied(),
        running=tuple(running),
        now=snapshot.now,
        followers=followers or Followers(),
    )


def find_head(
    snapshot: Snapshot,
    site: Site = ANY_SITE,
    *,
    blocked: Callable[[QueuedJob], bool],
    followers: Followers | None = None,
) -> QueueHead | None:
    """The head of the queue with its reservation; None if no gang waits that could start."""
    jobs = {"/".join(job.key): job for job in order(snapshot.jobs)}
    if not jobs:
        return None
    seen = situation(snapshot, followers)

    def gangs() -> Iterator[Waiting]:
        for job in jobs.values():
            # A gang whose request makes no sense is ahead of nobody.
            with suppress(ArenaError):
                asked = job_of(job.manifest)
                yield Waiting(
                    key="/".join(job.key),
                    request=request_of(asked, seen.cluster, site),
                    until=job.waits_since + asked.patience,
                    priority=job.priority,
                    since=job.created,
                    timeout=job.timeout,
                    last=job.last,
                )

    return head_of(gangs(), seen, blocked=lambda gang: blocked(jobs[gang.key]))


def left_to(mine: QueuedJob, cluster: Cluster, head: QueueHead | None, now: float) -> Cluster:
    """The cluster without the GPUs that are reserved for the head and closed to a gang.

    What waits for this gang, since it was stopped on these GPUs, is its own whoever comes first.
    """
    own: Mapping[NodeName, tuple[GPUSet, int]] = {}
    with suppress(ValueError, ArenaError):
        if mine.reserved:
            gpus_each = job_of(mine.manifest).gpus
            seats = tuple((NodeName(node), gpus) for _, node, gpus in parse_map(mine.reserved))
            own = gpus_by_node(seats, gpus_each)
    if head is None or not head.delayed_by(rank(mine), mine.timeout, now):
        return cluster
    return left_for(head, cluster, own)


def never_fits(job: QueuedJob, idle: Cluster) -> bool:
    """Whether a gang does not fit the idle cluster; then it reserves nothing, and is ahead of none.

    Neither is one whose request makes no sense.
    """
    try:
        return Solver.of(idle).find(request_of(job_of(job.manifest), idle)) is None
    except ArenaError:
        return True


def short_of_quota(queue: QueueFacts, job: QueuedJob) -> bool:
    """Whether a quota of its namespace prevents the start of a gang, whatever GPUs are free.

    The quotas are compared with its pods, and the cause of its last try counts too: claims count in
    quotas as well, and the caller cannot read every quota.
    """
    forecast = recorded_placement(job.manifest)
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
