"""The rollout of a resumed gang: watched until all its workers are placed, else rolled back.

A gang that cannot complete wastes GPUs, so it is suspended as a whole and started again.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from arena_topo.clusters.queues import suspender
from arena_topo.engines.kubernetes.queued import MOST_TRIES, queued
from arena_topo.engines.polling import poll_repeatedly
from arena_topo.errors import AccessDenied, ClusterError, TimedOut, command
from arena_topo.gang import Watcher
from arena_topo.gang.pod_state import (
    Fate,
    GangStatus,
    StallTimer,
    failed_workers,
    pulls_image,
    status_of,
    wanted_workers,
    worker_places,
)
from arena_topo.gang.protocol import Starter, StartOutcome
from arena_topo.job import MPIJob
from arena_topo.manifests import Manifest, patches, pins
from arena_topo.manifests.cause import Cause, CauseCode, because

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.queue import Queue

_SETTLE = 5.0
"""Seconds for which a gang is watched after its last worker was bound: registries refuse images
within a second or two."""

_GONE = 30.0
"""Seconds to wait for the old pods of a gang after a rollback: kubelets grant them 30 s."""

_LOOK, _SELDOM = 0.25, 2.0
"""Seconds between two polls of a gang during its rollout: of its old pods, and, after a while, of
its new ones."""


def wait_until_placed(
    starter: Starter, job: MPIJob, outcome: StartOutcome, watcher: Watcher
) -> StartOutcome:
    """Watch a resumed gang until all its workers have their nodes, or run; else roll it back.

    After a rollback the gang is solved and started again, three tries in all; then it waits with
    the cause.
    """
    queue = starter.queue
    while outcome.resumed:
        stored = outcome.stored
        try:
            trouble = _trouble(starter, job, stored, watcher)
        except (AccessDenied, ClusterError) as unseen:
            note = f"{unseen.message}: no program checks whether all workers start"
            return replace(outcome, notes=(*outcome.notes, note))
        except TimedOut as late:
            raise TimedOut(
                f"whether all workers of {job.name} come together was not seen in time",
                why=late.message,
                hint="the job goes on; see "
                + command("get", job.name, namespace=outcome.stored["metadata"]["namespace"]),
            ) from late
        if trouble is None:
            going = _comes_together(starter, stored)
            return outcome if going else starter.lost_race(job, stored, outcome.decision)
        owner = suspender(stored)
        if owner is not None:
            note = f"{trouble}; {owner} decides whether it goes on"
            return replace(outcome, notes=(*outcome.notes, note))
        tries = patches.tries_of(stored) + 1
        back = roll_back(queue, stored, trouble, tries)
        if back is None:
            return starter.lost_race(job, stored, outcome.decision)
        watcher.tell(f"{trouble}: the gang was rolled back (try {tries} of {MOST_TRIES})")
        wait_for_old_pods(starter, back)
        if tries >= MOST_TRIES:
            refused = replace(outcome.decision, placement=None, binding=None, refused=trouble)
            return replace(outcome, stored=back, decision=refused, resumed=False)
        outcome = starter.start(job, back, None)
    return outcome


def roll_back(queue: Queue, stored: Manifest, cause: Cause, tries: int) -> Manifest | None:
    """Suspend a whole gang, which then waits for its turn; None if the job changed meanwhile."""
    patch = patches.taking_back(stored, pins.without_pins(stored), cause, tries)
    return queue.change(stored, patch)


def wait_for_old_pods(starter: Starter, stored: Manifest) -> None:
    """Delete the failed workers of a suspended gang, and wait until its other pods have ended.

    At most 30 s. A failed worker that the caller may not delete stays.
    """
    with suppress(AccessDenied):
        for pod in failed_workers(starter.queue.pods(stored)):
            starter.queue.force_delete(pod)
    end = time.monotonic() + _GONE
    while time.monotonic() < end and starter.has_old_pods(stored):
        time.sleep(_LOOK)


def _trouble(starter: Starter, job: MPIJob, stored: Manifest, watcher: Watcher) -> Cause | None:
    """Why a gang cannot complete; None if it has, or if the watch is over.

    Meanwhile gated workers are sent to their nodes.
    """
    queue = starter.queue
    since, timer = queue.now(), StallTimer(limit=float(job.gang_timeout))
    bound_at, delay = None, _LOOK / 5

    def look() -> tuple[GangStatus, bool] | None:
        """The state of the gang, and whether it pulls an image; None if its rollout is over."""
        if not _comes_together(starter, stored):
            return None
        pods = queue.pods(stored)
        for pod, patch in worker_places(stored, pods):
            queue.bind(pod, patch)
        unsettled = len(pods) <= wanted_workers(stored) or pulls_image(pods, (), now=queue.now())
        events = queue.events(stored) if unsettled else []
        seen = status_of(stored, pods, events, now=queue.now(), since=since)
        return seen, pulls_image(pods, events, now=queue.now())

    def pause(most: float) -> None:
        nonlocal delay
        time.sleep(min(delay, most))
        delay *= 1.5

    # A short outage is tolerated, as a gang that is left at its gates wastes its GPUs.
    for gang_status in poll_repeatedly(look, every=_SELDOM, pause=pause):
        if gang_status is None:
            return None
        seen, pulling = gang_status
        now = time.monotonic()
        watcher.sees(seen.progress)
        if watcher.late or seen.fate is Fate.STARTED:
            return None
        if seen.broken is not None:
            return seen.broken
        if seen.fate is Fate.BOUND:
            bound_at = bound_at or now
            # If one worker runs, its image could be pulled; the others use the same.
            if not watcher.stay and (seen.running or now - bound_at > _SETTLE):
                return None
        if timer.expired(seen, pulling=pulling, now=now):
            return because(CauseCode.STALLED, limit=str(job.gang_timeout), text=seen.progress)
    raise AssertionError("polling does not end by itself")


def _comes_together(starter: Starter, stored: Manifest) -> bool:
    """Whether the rollout of a job goes on: it is not over, deleted, suspended or recorded anew.

    A job that has ended has no workers either, and must not be rolled back for that.
    """
    current, before = starter.current(stored), queued(stored, {})
    mine = None if current is None else queued(current, {})
    return (
        mine is not None
        and before is not None
        and not mine.suspended
        and (mine.record, mine.recorded) == (before.record, before.recorded)
    )
