"""A resumed gang is watched until all its workers came together; else it is taken back whole.

What the pods say is `gathering`'s to judge; here is the looking, and what follows from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from arena_topo.clusters.queues import suspender
from arena_topo.engines.kubernetes.queued import MOST_TRIES, queued
from arena_topo.errors import AccessDenied, ClusterError, TimedOut
from arena_topo.gang import gathering
from arena_topo.gang.gathering import Fate
from arena_topo.gang.starting import Outcome, Starter
from arena_topo.job import MPIJob
from arena_topo.manifests import Manifest, patches, pinning
from arena_topo.manifests.cause import Cause, CauseCode, because

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.queue import Queue

Tell = Callable[[str], None]

_SETTLE = 5.0
"""Seconds after its last worker was bound in which a gang is still watched: registries refuse
images within a second or two."""

_GONE = 30.0
"""Seconds to wait for the pods of a gang that was taken back: kubelets give them 30 s to end."""

_PATIENCE = 60.0
"""Seconds that a server may be in trouble before a gang that is gathering is left alone."""

_LOOK = 0.25
"""Seconds between two looks at a gang that is gathering."""


def brought_together(
    starter: Starter,
    job: MPIJob,
    outcome: Outcome,
    *,
    until: Fate,
    tell: Tell,
    sees: Tell = lambda _: None,
    end: float | None = None,
) -> Outcome:
    """Watch a resumed gang until all its workers have their nodes, or run; else take it back.

    A gang that is taken back is solved and started again, at most three times in all; then it
    waits with the reason. `sees` hears at every look what there is still to wait for.
    """
    queue = starter.queue
    while outcome.resumed:
        try:
            trouble = _trouble(queue, job, outcome.stored, until=until, sees=sees, end=end)
        except (AccessDenied, ClusterError) as blind:
            note = f"{blind.message}: nobody sees whether all workers come together"
            return replace(outcome, notes=(*outcome.notes, note))
        except TimedOut as late:
            raise TimedOut(
                f"whether all workers of {job.name} come together was not seen in time",
                why=late.message,
                hint=f"the job goes on; see arena-topo get {job.name}",
            ) from late
        if trouble is None:
            return (
                outcome
                if _gathers(queue, outcome.stored)
                else starter.elsewhere(outcome.stored, outcome.decision)
            )
        owner = suspender(outcome.stored)
        if owner is not None:
            note = f"{trouble}; {owner} decides whether it goes on"
            return replace(outcome, notes=(*outcome.notes, note))
        outcome = taken_back(starter, job, outcome, trouble, tell)
    return outcome


def taken_back(
    starter: Starter, job: MPIJob, outcome: Outcome, trouble: Cause, tell: Tell
) -> Outcome:
    """Suspend a gang that cannot complete, whole, and start it again unless it was tried enough."""
    queue, stored = starter.queue, outcome.stored
    tries = patches.tries_of(stored) + 1
    patch = patches.taking_back(stored, pinning.unplaced(stored), trouble, tries)
    back = queue.change(stored, patch)
    if back is None:
        return starter.elsewhere(stored, outcome.decision)
    tell(f"{trouble}: the gang was taken back whole (try {tries} of {MOST_TRIES})")
    left(starter, back)
    if tries >= MOST_TRIES:
        refused = replace(outcome.decision, placement=None, binding=None, refused=trouble)
        return replace(outcome, stored=back, decision=refused, resumed=False)
    return starter.start(job, back, None)


def left(starter: Starter, stored: Manifest) -> None:
    """Wait until the pods of a gang have let go of their GPUs, within reason."""
    end = time.monotonic() + _GONE
    while time.monotonic() < end and starter.haunted(stored):
        time.sleep(_LOOK)


def _trouble(
    queue: Queue,
    job: MPIJob,
    stored: Manifest,
    *,
    until: Fate,
    sees: Tell,
    end: float | None = None,
) -> Cause | None:
    """Why a gang cannot come together; None once it has, or there is no more to wait for.

    Workers at their gates are sent on their way. `end` is when nobody looks any longer.
    """
    since, patience = queue.now(), gathering.Patience(limit=float(job.gang_timeout))
    bound_at, delay, answered = None, _LOOK / 5, time.monotonic()
    while True:
        try:
            if not _gathers(queue, stored):
                return None
            pods = queue.pods(stored)
        except ClusterError as error:
            # A gang left alone at its gates would hold GPUs for nothing.
            if isinstance(error, AccessDenied) or time.monotonic() - answered > _PATIENCE:
                raise
            time.sleep(_LOOK)
            continue
        answered = time.monotonic()
        for pod, patch in gathering.worker_places(stored, pods):
            queue.bind(pod, patch)
        count = int(stored["spec"]["mpiReplicaSpecs"]["Worker"].get("replicas", 1))
        unsettled = len(pods) <= count or gathering.pulls(pods, (), now=queue.now())
        events = queue.events(stored) if unsettled else []
        seen = gathering.standing(stored, pods, events, now=queue.now(), since=since)
        now = time.monotonic()
        sees(seen.progress)
        if end is not None and now > end:
            return None
        if seen.broken is not None:
            return seen.broken
        if seen.fate is Fate.STARTED:
            return None
        if seen.fate is Fate.BOUND:
            bound_at = bound_at or now
            # Once a worker runs, its image can be had; that of the others is the same.
            if until is Fate.BOUND and (seen.running or now - bound_at > _SETTLE):
                return None
        if patience.lost(seen, pulling=gathering.pulls(pods, events, now=queue.now()), now=now):
            return because(CauseCode.STALLED, limit=str(job.gang_timeout), text=seen.progress)
        time.sleep(delay)
        delay = min(2.0, delay * 1.5)


def _gathers(queue: Queue, stored: Manifest) -> bool:
    """Whether a job is still on its way as it was resumed: not over, gone, or stopped by others.

    The workers of a job that has ended are gone as well, and it must not be taken back for that.
    """
    meta = stored["metadata"]
    found = queue.get(meta["namespace"], meta["name"])
    if found is None or found["metadata"]["uid"] != meta["uid"]:
        return False
    mine, before = queued(found, {}), queued(stored, {})
    return (
        mine is not None
        and before is not None
        and not mine.suspended
        and (mine.record, mine.recorded) == (before.record, before.recorded)
    )
