"""The rollout of a resumed gang: watched until all its workers are placed, else rolled back.

A gang that cannot complete wastes GPUs, so it is suspended as a whole and started again.
"""

from __future__ import annotations

import math
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
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
    from arena_topo.engines.kubernetes.job_watch import ReadOnChange
    from arena_topo.engines.kubernetes.queue import Queue

_SETTLE = 5.0
"""Seconds for which a gang is watched after its last worker was bound: registries refuse images
within a second or two."""

_GONE = 30.0
"""Seconds to wait for the old pods of a gang after a rollback: kubelets grant them 30 s."""

_LOOK, _SELDOM = 0.25, 2.0
"""Seconds between two looks at a gang during its rollout: at its old pods, and, after a while, at
its new ones, which are read again only after a change by then."""

_REREAD = 5.0
"""Seconds after which a slow rollout is read again without a change: nobody watches events, and a
proxy may hold back those of a watch."""


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
            going = _goes_on(starter.current(stored), stored)
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
    timer, bound_at = StallTimer(limit=float(job.gang_timeout)), None
    with closing(queue.gang_reads(stored, lasts=_REREAD)) as gang:
        rollout = _Rollout(queue=queue, stored=stored, gang=gang, since=queue.now())
        # A short outage is tolerated, as a gang that is left at its gates wastes its GPUs.
        for gang_status in poll_repeatedly(rollout.look, every=_SELDOM, pause=rollout.pause):
            if gang_status is None:
                return None
            seen, pulling = gang_status
            now = time.monotonic()
            watcher.sees(seen.progress)
            if watcher.late or seen.fate is Fate.STARTED:
                return None
            if seen.fate is Fate.BOUND:
                bound_at = bound_at or now
                # If one worker runs, its image could be pulled; the others use the same.
                if not watcher.stay and (seen.running or now - bound_at > _SETTLE):
                    return None
            cause = seen.broken
            if timer.expired(seen, pulling=pulling, now=now) and cause is None:
                limit = str(job.gang_timeout)
                cause = because(CauseCode.STALLED, limit=limit, text=seen.progress)
            # A proxy may have held back the event of a worker that has started meanwhile.
            if cause is not None and rollout.reads_anew:
                return cause
            rollout.doubtful = cause is not None
    raise AssertionError("polling does not end by itself")


@dataclass(slots=True, kw_only=True)
class _Rollout:
    """The looks at a gang that starts, at growing intervals; `since` is its start (Unix seconds).

    After a while the gang is read again only after a change. A short rollout opens no watch.
    """

    queue: Queue
    stored: Manifest
    gang: ReadOnChange[tuple[Manifest | None, list[Manifest]]]
    since: float
    delay: float = field(default_factory=lambda: _LOOK / 5)
    events: list[Manifest] = field(default_factory=list)
    events_read: float = -math.inf
    """When the events were read (`time.monotonic`)."""
    doubtful: bool = False
    """Whether the last look says that the gang cannot complete."""

    @property
    def reads_anew(self) -> bool:
        """Whether a look reads the gang even without a change."""
        return self.doubtful or self.delay < _SELDOM

    def look(self) -> tuple[GangStatus, bool] | None:
        """The state of the gang, and whether it pulls an image; None if its rollout is over."""
        slow, queue, stored = not self.reads_anew, self.queue, self.stored
        (current, pods), _ = self.gang.current(fresh=not slow, watch=slow)
        if not _goes_on(current, stored):
            return None
        for pod, patch in worker_places(stored, pods):
            queue.bind(pod, patch)
        if len(pods) > wanted_workers(stored) and not pulls_image(pods, (), now=queue.now()):
            self.events, self.events_read = [], -math.inf
        elif not slow or time.monotonic() - self.events_read >= _REREAD:
            self.events, self.events_read = queue.events(stored), time.monotonic()
        seen = status_of(stored, pods, self.events, now=queue.now(), since=self.since)
        return seen, pulls_image(pods, self.events, now=queue.now())

    def pause(self, most: float) -> None:
        """Wait for the next look."""
        time.sleep(min(_LOOK if self.doubtful else self.delay, most))
        self.delay *= 1.5


def _goes_on(current: Manifest | None, stored: Manifest) -> bool:
    """Whether the rollout of a job goes on: it is not over, deleted, suspended or recorded anew.

    A job that has ended has no workers either, and must not be rolled back for that.
    """
    before = queued(stored, {})
    mine = None if current is None else queued(current, {})
    return (
        mine is not None
        and before is not None
        and not mine.suspended
        and (mine.record, mine.recorded) == (before.record, before.recorded)
    )
