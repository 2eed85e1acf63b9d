"""The controller: starts waiting gangs in their turn, and looks after those that run.

Optional, and without essential state: all it knows is stored on the jobs, so a second controller
may take over at any moment, and stopping it loses nothing. The cluster is watched (`Queue.watch`);
a round is due after a change, or at a deadline that the last round has set:

    withdraw   the records of submitters that died before they resumed their job
    place      gangs that their own queue has started, and that are gated
    tend       running gangs: gated workers get the nodes of their record; a gang that cannot
               complete is rolled back, and one that was ended from outside; one that lost a node
               and runs on is moved if it can start again
    revive     gangs that have failed because a worker was ended from outside
    start      waiting gangs, in the order of the queue
    publish    what is free, for users who may not read the cluster

The watched state may lag behind. So the server tests each act (a patch tests the record that it
replaces, a deletion the revision of its pod), or the state is read again before the act.

An error with one job is reported, and does not stop the others.
"""

from __future__ import annotations

import gc
import math
import os
import queue as queues
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from arena_topo.clusters import quota
from arena_topo.clusters.records import NodeRecord
from arena_topo.engines import heartbeat
from arena_topo.engines.backend import Backend
from arena_topo.engines.kubernetes.lease import DURATION, NoNamespace
from arena_topo.engines.kubernetes.mpijob import NOT_REVIVED, condition_of, failed_at
from arena_topo.engines.kubernetes.queued import (
    MOST_TRIES,
    QueuedJob,
    Snapshot,
    failed,
    queued,
    written,
)
from arena_topo.errors import ArenaError, InvalidJob, UsageError
from arena_topo.gang import fairness, loss, pod_state
from arena_topo.gang.planning import SOME_JOB, Decision, head_of_queue
from arena_topo.gang.pod_state import Fate
from arena_topo.gang.protocol import Starter
from arena_topo.gang.request import request_of
from arena_topo.gang.stored_job import open_starter
from arena_topo.job import MPIJob, NodeLoss
from arena_topo.manifests import (
    REQUEST,
    RESERVED_ANNOTATION,
    TRIES_ANNOTATION,
    Manifest,
    patches,
    pins,
)
from arena_topo.manifests.annotations import (
    last_stop,
    recorded_placement,
    reserving_map,
    waits_since,
)
from arena_topo.manifests.cause import Cause, CauseCode, because, in_words
from arena_topo.manifests.recorded_job import job_of
from arena_topo.notes import Alert
from arena_topo.queueing import Followers
from arena_topo.queueing.patience import waits_for
from arena_topo.queueing.reservation import left_for
from arena_topo.solver import Unplaceable
from arena_topo.solver.door import Follower, Solver
from arena_topo.topology import Cluster, natural_key

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.lease import Lease
    from arena_topo.engines.kubernetes.queue import Queue
    from arena_topo.queueing.reservation import QueueHead

Object = Mapping[str, Any]
Tell = Callable[[str], None]

PERIOD = 2.0
"""The least seconds between two rounds, however many changes there are."""

VIEW_PERIOD = 15.0
"""Seconds between two publications of what is free."""

REASON_PERIOD = 30.0
"""Seconds until a gang that still waits is tried again, and its reason is updated."""

BALK_PERIOD = 10.0
"""Backoff in seconds of a gang that fits and yet did not start; others go first meanwhile."""

SILENT_AFTER = 60.0
"""Seconds without an answer of a node after which the pods of suspended gangs are removed there."""

MOST_REASONS = 60
"""The most reasons a minute that are worked out and written: with more gangs each waits longer for
its next."""

MOST_STARTS = 10
"""The most gangs that one round starts: each takes seconds, and the running gangs need
attention."""

LEASE_PERIOD = DURATION / 3
"""Seconds between two renewals of the Lease, and the most between two tries while the API server
does not answer: less than half of the Lease's duration, so one failed round does not lose it."""

REVIVAL = 90.0
"""Seconds after its failure for which a job may be revived: later its owner has seen it fail."""

SKEW = 5.0
"""Seconds by which the clocks of the control plane may differ."""

_REPEAT_AFTER = 600.0
"""Seconds until a warning that still holds is repeated."""


def run_controller(
    backend: Backend, *, ack: bool = False, once: bool = False, tell: Tell = lambda _: None
) -> None:
    """Do rounds until SIGTERM, while holding the Lease; UsageError on the local engine.

    NoNamespace if the namespace of the Lease does not exist at the start. If it vanishes later, the
    controller says so once and waits until it is back.
    SIGTERM lets the round end in good order. Ctrl-C interrupts it, which loses nothing either, and
    releases the Lease too. `once` does a single round, without the Lease.
    """
    queue = backend.queue
    if queue is None:
        raise UsageError(
            "the local engine needs no controller",
            why="it starts what waits by itself",
            hint="name a cluster with --backend kubernetes",
        )
    controller = Controller(
        queue=queue,
        starter=open_starter(backend, queue, patient=True),
        ack=ack,
        tell=tell,
    )
    if once:
        controller.round()
        return
    wake = Wake()

    def ended(_number: int, _frame: FrameType | None) -> None:
        wake.stop()

    signal.signal(signal.SIGTERM, ended)
    identity = f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4()}"
    lease = queue.lease(identity)
    try:
        _rounds(controller, lease, wake, tell)
    finally:
        queue.unwatch()
        lease.release()


class Wake:
    """The wake-up of the loop: after a change, or at the end of the program."""

    def __init__(self) -> None:
        self.stopped = False
        # SimpleQueue: a signal handler may call its `put`.
        self._calls: queues.SimpleQueue[None] = queues.SimpleQueue()

    def changed(self) -> None:
        """Report a change."""
        self._calls.put(None)

    def stop(self) -> None:
        """End the program."""
        self.stopped = True
        self._calls.put(None)

    def wait(self, least: float, most: float) -> bool:
        """Wait for `most` seconds, or for `least` after a change; whether there was one.

        Returns at once after `stop`.
        """
        begun, changed = time.monotonic(), False
        while not self.stopped:
            left = begun + (least if changed else most) - time.monotonic()
            try:
                self._calls.get(timeout=max(0.0, left), block=left > 0)
            except queues.Empty:
                return changed
            changed = True
        return changed


def _rounds(controller: Controller, lease: Lease, wake: Wake, tell: Tell) -> None:
    clock = controller.clock
    led, watched, delay, renewed = False, False, PERIOD, -math.inf
    installed, missed = False, False

    def leads() -> bool:
        nonlocal led, renewed, installed, missed
        heartbeat.beat()
        if wake.stopped:
            return False
        if led and clock() - renewed < LEASE_PERIOD:
            return True
        before, led = led, lease.held()
        renewed, installed, missed = clock(), True, False
        if led != before:
            tell("this controller is at work" if led else "another controller is at work")
        return led

    changed = True
    while not wake.stopped:
        rest = PERIOD
        try:
            if leads():
                first = not watched
                if first:
                    controller.queue.watch(wake.changed)
                    watched = True
                controller.round(leads, changed=changed)
                changed = False
                if first:
                    # Most of what is read first stays, and looking for cycles there would take
                    # 0.1 s every few rounds on a cluster of 8,000 pods.
                    gc.freeze()
                rest = max(PERIOD, min(controller.due, renewed + LEASE_PERIOD) - clock())
            delay = PERIOD
        except Exception as error:
            absent = isinstance(error, NoNamespace)
            if absent and not installed:
                raise
            if not (absent and missed):
                tell(Alert(_error_line(error)))
            missed = absent
            changed, rest = True, min(LEASE_PERIOD, delay * 2)
            delay = rest
        changed |= wake.wait(PERIOD, rest)


def _error_line(error: Exception) -> str:
    """The error in one line."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, ArenaError):
        text = error.sentence
    return " ".join(text.split())


@dataclass(slots=True, kw_only=True)
class Controller:
    """One round after another on one cluster; its state are times and caches."""

    queue: Queue
    starter: Starter
    ack: bool = False
    tell: Tell = lambda _: None
    clock: Callable[[], float] = time.monotonic
    _patience: dict[tuple[str, str, str], pod_state.StallTimer] = field(default_factory=dict)
    _nodes: Mapping[str, NodeRecord] = field(default_factory=dict)
    _troubled: dict[str, float] = field(default_factory=dict)
    _missed: dict[str, float] = field(default_factory=dict)
    _silent_now: frozenset[str] = frozenset()
    _ran: dict[tuple[str, str, float | None], dict[str, tuple[str, str]]] = field(
        default_factory=dict
    )
    _unscheduled: dict[str, float] = field(default_factory=dict)
    _published: float = -math.inf
    _due: float = -math.inf
    _refused: dict[tuple[str, str, float], float] = field(default_factory=dict)
    _balks: dict[tuple[str, str, float], float] = field(default_factory=dict)
    _uncleared: dict[tuple[str, str, float], float] = field(default_factory=dict)
    _quotas: dict[str, list[Manifest]] = field(default_factory=dict)
    _blocked: dict[tuple[str, str], bool] = field(default_factory=dict)
    _head: _Head | None = None
    _followers: Followers = field(default_factory=Followers)
    _beside: Follower = field(default_factory=Follower)
    _fit: dict[tuple[object, ...], bool] = field(default_factory=dict)
    _asked: dict[tuple[str, str], _Asked] = field(default_factory=dict)
    _reasons: list[float] = field(default_factory=list)
    _waiting: int = 0
    _gangs: dict[tuple[str, str], _Pods] = field(default_factory=dict)
    _calm: dict[tuple[str, str], tuple[QueuedJob, _Pods | None]] = field(default_factory=dict)
    _mattering: tuple[Snapshot | None, tuple[object, ...], Mapping[int, tuple[object, object]]] = (
        *(None, (), {}),
    )
    _before: tuple[object, ...] | None = None
    _changed_at: float = -math.inf
    _starts: int = 0
    _left: set[tuple[str, str, float | None]] = field(default_factory=set)
    _warned: dict[str, float] = field(default_factory=dict)

    @property
    def due(self) -> float:
        """The time of `clock` at which a round is due even without a change."""
        return min(self._due, self._published + VIEW_PERIOD)

    def _again(self, seconds: float) -> None:
        """Request another round after so many seconds."""
        self._due = min(self._due, self.clock() + seconds)

    def round(self, leads: Callable[[], bool] = lambda: True, *, changed: bool = True) -> None:
        """Look at everything once, and act as long as `leads` returns True.

        `leads` is called before each job, so that it can renew the Lease. If nothing has `changed`
        since the last round, only acts that are due by now are done.
        """
        view = self.queue.read()
        self._blocked.clear()
        self._guarded("the published view", lambda: self._publish(view))
        if not changed and self.clock() < self._due:
            return
        self._due = -math.inf
        if self._withdrawn(view, leads):
            view = self.queue.read()
        ended = [job for job in view.failed if job.suspended or self._fresh(job, view.now)]
        pods = self.queue.gangs(job.manifest for job in (*view.jobs, *ended))
        now = self.queue.now()
        self._due = math.inf
        self._quotas.clear()
        self._forget(view)
        self._notice(view, pods, now)
        self._starts = 0
        quiet = self._matters(view) == self._before
        touched = False
        for job in view.jobs:
            if not leads():
                self._again(0)
                return
            if not self._settled(job):
                seen = _Seen(pods=pods.get(job.key, []), now=now, view=view, quiet=quiet)
                touched |= self._each_settling(job, partial(self._tended, job, seen))
        for job in ended:
            if not leads():
                self._again(0)
                return
            touched |= self._each(job, partial(self._revived, job, pods.get(job.key, [])))
        if touched:
            view = self.queue.read()
        self._start(view, pods, leads)

    def _withdrawn(self, view: Snapshot, leads: Callable[[], bool]) -> bool:
        """Withdraw the records of dead submitters; whether there were any."""
        withdrawn_any = False
        for job in view.jobs:
            if fairness.is_abandoned(job, view.now) and leads():
                withdrawn_any |= self._each(job, partial(self._freed, job, view))
        return withdrawn_any

    def _freed(self, job: QueuedJob, view: Snapshot) -> bool:
        return bool(self.starter.withdraw([job], view.now))

    def _each(self, job: QueuedJob, act: Callable[[], bool]) -> bool:
        """Do something about a job; an error must not stop the others."""
        return self._guarded(f"{job.namespace}/{job.name}", act)

    def _each_settling(self, job: QueuedJob, act: Callable[[], bool]) -> bool:
        """Look after a job, and remember whether it needs that again even if nothing changes."""
        due, self._due = self._due, math.inf
        touched = self._each(job, act)
        if not touched and self._due == math.inf:
            self._calm[job.key] = job, self._gangs.get(job.key)
        else:
            self._calm.pop(job.key, None)
        self._due = min(due, self._due)
        return touched

    def _settled(self, job: QueuedJob) -> bool:
        """Whether a job needed nothing when it was looked at last, and all is as it was then."""
        known, gang = self._calm.get(job.key), self._gangs.get(job.key)
        return (
            known is not None
            and known[0] is job
            and known[1] is gang
            and (gang is None or self._troubled.keys().isdisjoint(gang.nodes))
        )

    def _guarded(self, what: str, act: Callable[[], bool]) -> bool:
        """Do something; report an error in one line, once as long as it is the same."""
        try:
            return act()
        except Exception as error:  # noqa: BLE001  jobs are anybody's, and may be any nonsense
            self._tell_once(Alert(f"{what}: {_error_line(error)}"))
            self._again(PERIOD)
        return False

    def _tell_once(self, line: str) -> None:
        """Print a line, but not the same one again within `_REPEAT_AFTER`."""
        now = self.clock()
        self._warned = {key: at for key, at in self._warned.items() if now - at < _REPEAT_AFTER}
        if line not in self._warned:
            self._warned[line] = now
            self.tell(line)

    def _forget(self, view: Snapshot) -> None:
        """Drop the state about jobs that are gone or were placed anew."""
        existing = {(*job.key, job.record or "") for job in view.jobs}
        self._patience = {
            key: stall_timer for key, stall_timer in self._patience.items() if key in existing
        }
        alive = {(*job.key, job.created) for job in view.jobs}
        self._refused = {key: at for key, at in self._refused.items() if key in alive}
        self._balks = {key: at for key, at in self._balks.items() if key in alive}
        self._uncleared = {key: at for key, at in self._uncleared.items() if key in alive}
        waiting = {job.key for job in view.jobs if job.suspended}
        self._calm = {job.key: self._calm[job.key] for job in view.jobs if job.key in self._calm}
        self._asked = {key: asked for key, asked in self._asked.items() if key in waiting}
        running = {(*job.key, job.recorded) for job in view.jobs if not job.suspended}
        self._ran = {key: ran for key, ran in self._ran.items() if key in running}
        self._left &= {(*job.key, job.recorded) for job in view.failed}

    def _notice(
        self, view: Snapshot, pods: Mapping[tuple[str, str], Sequence[Object]], now: float
    ) -> None:
        """Update the times since which nodes are unusable and workers unschedulable."""
        self._nodes = {
            manifest.name: manifest for manifest in view.objects if type(manifest) is NodeRecord
        }
        gangs, self._gangs = self._gangs, {}
        for key, mine in pods.items():
            known = gangs.get(key)
            self._gangs[key] = known if known is not None and known.pods == mine else _Pods.of(mine)
        named = {name for gang in self._gangs.values() for name in gang.nodes}
        troubled = {name for name in named if loss.troubled(self._nodes.get(name))}
        self._troubled = {name: self._troubled.get(name, now) for name in sorted(troubled)}
        at = self.clock()
        silent = sorted(name for name in troubled if not loss.ready(self._nodes.get(name)))
        self._missed = {name: self._missed.get(name, at) for name in silent}
        due = {name: since + SILENT_AFTER for name, since in self._missed.items()}
        self._silent_now = frozenset(name for name in silent if at >= due[name])
        for name in due.keys() - self._silent_now:
            self._again(due[name] - at)
        self._unscheduled = {
            uid: self._unscheduled.get(uid, now)
            for gang in self._gangs.values()
            for uid in gang.unscheduled
        }

    # Gangs that run, or that another queue starts

    def _tended(self, job: QueuedJob, seen: _Seen) -> bool:
        """Look after a resumed job; whether anything that others may see was changed."""
        if pod_state.gated_workers(seen.pods):
            self._again(PERIOD)
        if job.suspender is not None and (
            job.suspended or pod_state.awaits_placement(job, seen.pods, seen.now)
        ):
            return self._handed(job, seen)
        if job.suspended:
            if job.state == "placed":
                # The submitter that recorded the placement may die before it resumes the job.
                self._again(fairness.STALE_RECORD_SECONDS + 1)
            self._force_delete(seen.pods)
            over = all(map(pod_state.has_ended, seen.pods))
            if over and not self.starter.clear_launcher_failures(job.manifest):
                self._again(PERIOD)
            return False
        if job.state != "placed":
            return False
        if pod_state.worker_places(job.manifest, seen.pods):
            self._bound(job, seen.pods)
        if job.suspender is not None:
            return False
        moved = self._lost(job, seen)
        return self._broken(job, seen) if moved is None else moved

    def _bound(self, job: QueuedJob, pods: Sequence[Object]) -> None:
        """Send gated workers to the nodes that the job's present record names."""
        stored = self.starter.current(job.manifest)
        if stored is not None:
            for pod, patch in pod_state.worker_places(stored, pods):
                self.queue.bind(pod, patch)

    def _handed(self, job: QueuedJob, seen: _Seen) -> bool:
        """Place a gang that its queue has started, or clear its record when the queue stops it."""
        if job.suspended:
            if job.record is None and job.state == "waiting":
                return False
            return self.queue.change(job.manifest, patches.clearing(job.manifest)) is not None
        asked = job_of(job.manifest)
        self._again(PERIOD)
        if self._starts >= MOST_STARTS:
            return False
        if self._just_refused(job) and (seen.quiet or not self._fits(job, seen.view)):
            return False
        if not pod_state.awaits_placement(job, self.queue.pods(job.manifest), seen.now):
            return False
        outcome = self.starter.admitted(asked, job.manifest)
        if outcome.resumed:
            self._starts += 1
            self._report(outcome.stored, "Placed", "placed, as its queue has started it")
        else:
            self._refuse(job, REASON_PERIOD)
        return outcome.resumed

    def _broken(self, job: QueuedJob, seen: _Seen) -> bool:
        """Roll back a gang that cannot complete; whether that was done."""
        pods = [self._dated(pod) for pod in seen.pods]
        status = pod_state.status_of(job.manifest, pods, (), now=seen.now, since=job.since)
        if status.fate is Fate.STARTED:
            settled = {RESERVED_ANNOTATION}
            if not loss.evicted_lately(last_stop(job.manifest), seen.now):
                settled.add(TRIES_ANNOTATION)
            if settled & (job.manifest["metadata"].get("annotations") or {}).keys():
                self.queue.change(job.manifest, patches.forgetting(job.manifest, settled))
            return False
        self._again(PERIOD)
        events = self.queue.events(job.manifest)
        trouble = self._trouble(job, pods, events, seen.now)
        if trouble is not None:
            fresh = [self._dated(pod) for pod in self.queue.pods(job.manifest)]
            trouble = self._trouble(job, fresh, events, seen.now)
        return trouble is not None and self._back(job, trouble)

    def _trouble(
        self, job: QueuedJob, pods: Sequence[Object], events: Sequence[Object], now: float
    ) -> Cause | None:
        """Why a gang cannot complete, or has stalled for too long; None while it may complete."""
        status = pod_state.status_of(job.manifest, pods, events, now=now, since=job.since)
        if status.broken is not None:
            return status.broken
        limit = float(job_of(job.manifest).gang_timeout)
        patience = self._patience.setdefault(
            (*job.key, job.record or ""), pod_state.StallTimer(limit=limit)
        )
        pulling = pod_state.pulls_image(pods, events, now=now)
        if patience.expired(status, pulling=pulling, now=self.clock()):
            return because(CauseCode.STALLED, limit=f"{limit:g} s", text=status.progress)
        return None

    def _dated(self, pod: Object) -> Object:
        """The pod with the time since which the scheduler finds no node for it.

        The pod's own condition dates from the time of its gate, or has no time (kubernetes,
        pkg/api/v1/pod: UpdatePodCondition).
        """
        at = self._unscheduled.get(str(pod["metadata"].get("uid")))
        if at is None:
            return pod
        status = pod["status"]
        conditions = [
            {**condition, "lastTransitionTime": written(at)}
            if condition.get("type") == "PodScheduled"
            else condition
            for condition in status["conditions"]
        ]
        return {**pod, "status": {**status, "conditions": conditions}}

    def _lost(self, job: QueuedJob, seen: _Seen) -> bool | None:
        """Take back a gang that was ended from outside, or move it off a node that is lost.

        None if that was not done: it may be stuck for another reason. False if it ends by itself.
        """
        ran = self._ran.setdefault((*job.key, job.recorded), {})
        ended = loss.ended_workers(seen.pods, ran)
        places = loss.nodes_of(seen.pods) & self._troubled.keys()
        if not ended and not self._lost_nodes(seen.pods, places, self._nodes.get, seen.now):
            ran |= loss.workers_that_ran(seen.pods)
            return None
        policy = job_of(job.manifest).on_node_loss
        if policy is NodeLoss.FAIL:
            # MPI ends the job itself when it loses a rank; nothing can bring it back.
            return False if ended else None
        if not ended and seen.quiet and self._just_refused(job):
            self._again(REASON_PERIOD)
            return None
        self._again(PERIOD)
        confirmed = self._loss(job, ran, seen.now)
        if confirmed is None:
            return None
        job, cause, over = confirmed
        if policy is NodeLoss.HOLD:
            return self._hold(job, cause)
        return self._taken_back(job, cause) if over else self._moved(job, cause) or None

    def _taken_back(self, job: QueuedJob, cause: Cause) -> bool:
        """Take back a gang of which a worker has ended, so that MPI has ended too.

        A kubelet that evicts a worker again shows a fault of the gang, which is tried in vain.
        """
        last, now = last_stop(job.manifest), self.queue.now()
        repeated = loss.evicted_by_kubelet(cause) and loss.evicted_lately(last, now)
        forecast, reserved = recorded_placement(job.manifest), None
        if forecast is not None and job.tries + repeated < MOST_TRIES:
            reserved = reserving_map(forecast)
        return self._back(job, cause, counts=repeated, reserved=reserved)

    def _moved(self, job: QueuedJob, cause: Cause) -> bool:
        """Take back a gang whose workers all run, if it can start again: else it loses for nothing.

        Its next GPUs are reserved before it stops.
        """
        reserving = self.starter.reserve(job_of(job.manifest), job.manifest)
        if reserving is None:
            self._refuse(job, REASON_PERIOD)
            return False
        reserved = reserving["metadata"]["annotations"][RESERVED_ANNOTATION]
        return self._back(replace(job, manifest=reserving), cause, counts=False, reserved=reserved)

    def _loss(
        self, job: QueuedJob, ran: Mapping[str, tuple[str, str]], now: float
    ) -> tuple[QueuedJob, Cause, bool] | None:
        """The job as it is now, why it is lost, and whether a worker has ended; None if it is not.

        The cache may lag behind, so that all of it is read again.
        """
        # The pods before the job: the end of the job may be the reason why pods are gone.
        pods = self.queue.pods(job.manifest)
        stored = self.starter.current(job.manifest)
        mine = None if stored is None else queued(stored, {})
        if mine is None or mine.suspended or loss.has_succeeded(pods):
            return None
        if (mine.record, mine.recorded) != (job.record, job.recorded):
            return None
        ended = loss.ended_workers(pods, ran)
        places = (loss.nodes_of(pods) & self._troubled.keys()) | {
            end.node for end in ended.values()
        }
        nodes = {name: self.queue.node(name) for name in sorted(places, key=natural_key)}
        # An end shows that the pods no longer tolerate what is the matter with their node.
        lost = self._lost_nodes(pods, places, nodes.get, math.inf if ended else now)
        cordoned = [name for name, node in nodes.items() if node and node.unschedulable]
        cause = loss.cause_of_loss(ended, lost, cordoned)
        return None if cause is None else (mine, cause, bool(ended))

    @staticmethod
    def _fresh(job: QueuedJob, now: float) -> bool:
        """Whether a job has failed a moment ago."""
        at = failed_at(job.manifest)
        return at is not None and now - at <= REVIVAL

    def _revived(self, job: QueuedJob, pods: Sequence[Object]) -> bool:
        """Take back a gang that failed because a worker was ended from outside.

        MPI ends as soon as a worker does, so that the operator may have called the job failed
        before it could be suspended. The failure is removed once the job is suspended: then it is
        the controller's to start, and not the operator's.
        """
        if job.suspended:
            return self._cleared(job)
        policy, key = job_of(job.manifest).on_node_loss, (*job.key, job.recorded)
        if job.state != "placed" or job.suspender is not None or key in self._left:
            return False
        confirmed = self._loss_of_failed(job, pods)
        if confirmed is None:
            return False
        fresh, cause = confirmed
        if left := self._unrevived(policy):
            self._left.add(key)
            self._report(job.manifest, NOT_REVIVED, f"failed: {cause}; {left}")
            return False
        act = self._hold if policy is NodeLoss.HOLD else self._taken_back
        if not act(fresh, cause):
            return False
        # At once, so that what is reserved for the gang counts.
        stored = self.starter.current(job.manifest)
        stopped = None if stored is None else failed(stored)
        self._again(PERIOD)
        if stopped is not None:
            self._cleared(stopped)
        return True

    def _unrevived(self, policy: NodeLoss) -> str:
        """Why a gang that was lost stays failed; empty if it starts again."""
        if policy is NodeLoss.FAIL:
            return "by --on-node-loss fail it is not started again"
        lacks = " and ".join(self.queue.unrevivable())
        return lacks and f"the controller may not {lacks} to start it again: use --retry 1"

    def _loss_of_failed(
        self, job: QueuedJob, pods: Sequence[Object]
    ) -> tuple[QueuedJob, Cause] | None:
        """A failed gang as it is now, and why it was lost; None if it was not, or has changed."""
        at = failed_at(job.manifest)
        if at is None or job.recorded is None:
            return None
        every = [*pods, *self.queue.departed(job.manifest)]
        ended = loss.disrupted_workers(every, since=job.recorded, until=at + SKEW)
        places = {end.node for end in ended.values()}
        # MPI may notice before the control plane does that a node no longer answers.
        used, now = loss.nodes_of(loss.placed_since(every, job.recorded)), self.queue.now()
        places |= {
            name for name in used if not loss.answered(self._nodes.get(name), at + SKEW, now=now)
        }
        nodes = {name: self.queue.node(name) for name in sorted(places, key=natural_key)}
        lost = self._lost_nodes(every, places, nodes.get, math.inf)
        cordoned = [name for name, node in nodes.items() if node and node.unschedulable]
        cause = loss.cause_of_loss(ended, lost, cordoned)
        stored = None if cause is None else self.starter.current(job.manifest)
        fresh = None if stored is None else failed(stored)
        if cause is None or fresh is None or fresh.suspended:
            return None
        same = (fresh.record, fresh.recorded, failed_at(fresh.manifest))
        return (fresh, cause) if same == (job.record, job.recorded, at) else None

    def _cleared(self, job: QueuedJob) -> bool:
        """Remove the failure of a gang that was taken back.

        The operator may repeat it, if it has seen the launcher's end and not yet its deletion; by
        then the gang may have its next placement, which is withdrawn like any that is abandoned.
        """
        forecast = recorded_placement(job.manifest)
        cause = None if forecast is None else forecast.cause
        stopped = last_stop(job.manifest)
        held = job.state == "held" and stopped is not None and cause == stopped.cause
        at = failed_at(job.manifest)
        repeated = at is not None and job.state == "placed" and at <= (job.recorded or 0.0)
        if stopped is None or not (held or repeated or job.state == "waiting"):
            return False
        self._again(PERIOD)
        return self.queue.revive(job.manifest)

    def _lost_nodes(
        self,
        pods: Sequence[Object],
        names: Iterable[str],
        node_of: Callable[[str], NodeRecord | None],
        now: float,
    ) -> dict[str, str]:
        """Those of these nodes that a gang with such pods has lost, and how."""
        tolerations = loss.tolerations_of(pods)
        lost = {}
        for name in sorted(names, key=natural_key):
            since = self._troubled.get(name, min(now, self.queue.now()))
            losing = loss.losing(node_of(name), tolerations, since=since)
            if losing is not None and losing[0] <= now:
                lost[name] = losing[1]
            elif losing is not None:
                self._again(losing[0] - now)
        return lost

    def _hold(self, job: QueuedJob, cause: Cause) -> bool:
        """Suspend a whole gang until a person resumes it."""
        bare, at = pins.without_pins(job.manifest), written(self.queue.now())
        if (
            self.queue.change(job.manifest, patches.holding(job.manifest, bare, cause, at=at))
            is None
        ):
            return False
        self._report(job.manifest, "Held", f"held: {cause}")
        return True

    def _report(self, mpijob: Object, reason: str, text: str) -> None:
        """Print an act, and tell the owner of the job by an event; the job itself says it too."""
        meta = mpijob["metadata"]
        self.tell(f"{meta['namespace']}/{meta['name']}: {text}")
        try:
            self.queue.report(mpijob, reason, text)
        except ArenaError as error:
            self._tell_once(Alert(f"no events about jobs: {_error_line(error)}"))

    def _force_delete(self, pods: Sequence[Object]) -> None:
        """Force-delete the failed workers of a suspended gang, and its pods on a silent node.

        The kubelet of that node never confirms the deletion, and while the pods exist the operator
        creates no others of their names. If the kubelet answers, containers end within their grace
        period, and use their GPUs until then.
        """
        silent = [
            pod
            for pod in pods
            if pod["metadata"].get("deletionTimestamp")
            and self._is_silent(pod["spec"].get("nodeName"))
        ]
        for pod in (*pod_state.failed_workers(pods), *silent):
            self._again(PERIOD)
            self.queue.force_delete(pod)

    def _is_silent(self, node: str | None) -> bool:
        """Whether a node has not answered for long, and does not answer now."""
        return node in self._silent_now and not loss.ready(self.queue.node(str(node)))

    def _back(
        self, job: QueuedJob, cause: Cause, *, counts: bool = True, reserved: str | None = None
    ) -> bool:
        """Suspend a whole gang, which then waits for its turn again; these GPUs wait for it."""
        tries = job.tries + counts
        bare = pins.without_pins(job.manifest)
        at = written(self.queue.now())
        patch = patches.taking_back(job.manifest, bare, cause, tries, reserved=reserved, at=at)
        if self.queue.change(job.manifest, patch) is None:
            return False
        again = "" if tries < MOST_TRIES else "; it is not tried again until it is resumed"
        self._report(job.manifest, "RolledBack", f"rolled back: {cause}{again}")
        return True

    # Gangs that wait

    def _start(
        self,
        view: Snapshot,
        pods: Mapping[tuple[str, str], Sequence[Object]],
        leads: Callable[[], bool],
    ) -> None:
        """Start waiting gangs in their turn, up to the limit of a round."""
        before, self._before = self._before, self._matters(view)
        quiet, older = self._before == before, False
        if not quiet:
            self._changed_at = self.clock()
        elif self._head is not None and self.clock() >= self._head.until:
            self._head = None
        head = None if quiet else self._head_of(view)
        if head is not None:
            self._guarded("the reservation", lambda: self.starter.keep_reservation(head, view))
        waiting = fairness.order(view.jobs)
        self._waiting = len(waiting)
        for job in waiting:
            if self._starts >= MOST_STARTS or not leads():
                self._before = None
                self._again(PERIOD)
                break
            self._again(REASON_PERIOD)
            if not all(map(pod_state.has_ended, pods.get(job.key, ()))):
                continue  # The pods of its last run have not ended yet.
            if self._balked(job) or (quiet and self._just_refused(job)):
                continue
            if self._each(job, partial(self._started, job, view, older=older)):
                # The other gangs are compared with the GPUs that were free before. Fewer are free
                # now: a gang that does not fit there does not fit, and for one that fits the
                # starter reads the cluster again.
                view = replace(
                    view, jobs=tuple(other for other in view.jobs if other.key != job.key)
                )
                quiet, older = False, True
        if older:
            self._before = None
            self._again(PERIOD)

    def _started(self, job: QueuedJob, view: Snapshot, *, older: bool) -> bool:
        """Start a waiting gang if it fits now and no older gang needs the same GPUs.

        `older`: others were started since the view was read. True if the view may be out of date
        now.
        """
        asked = self._as_asked(job).job
        fits = False
        # Of a request that makes no sense here, the decision says why.
        with suppress(InvalidJob):
            fits = self._fits(job, view)
        if not fits and (older or self._just_refused(job) or self._reasons_due()):
            return False
        if not older:
            try:
                head = self._head_of(view)
                decision = self.starter.decide_behind(head, asked, job, view)
            except (InvalidJob, Unplaceable) as never:
                # The cluster is not the one that the gang was submitted to.
                self._tell_once(Alert(f"{job.namespace}/{job.name}: {_error_line(never)}"))
                decision = Decision(job=asked, refused=in_words(_error_line(never)))
            if decision.placement is None:
                most = self._unseen() if fits else math.inf
                if decision.wait is not None:
                    most = min(most, decision.wait.until - view.now)
                self._refuse(job, most)
                return self._reasoned(job, decision.refused)
        if (short := quota.shortfall(job.manifest, self._quotas_of(job.namespace))) is not None:
            self._refuse(job, self._unseen())
            return self._reasoned(job, short)
        if not self.starter.clear_launcher_failures(job.manifest):
            self._again(PERIOD)
            since = self._uncleared.setdefault((*job.key, job.created), self.clock())
            late = self.clock() - since > BALK_PERIOD
            return self._reasoned(job, because(CauseCode.OLD_PODS)) if late else False
        self._uncleared.pop((*job.key, job.created), None)
        self._starts += 1
        # What starts takes of the quota.
        self._quotas.pop(job.namespace, None)
        outcome = self.starter.start(asked, job.manifest, None)
        if outcome.resumed:
            self._report(outcome.stored, "Started", "started")
        else:
            self._balks[*job.key, job.created] = self.clock()
            self._again(BALK_PERIOD)
        return True

    def _quotas_of(self, namespace: str) -> list[Manifest]:
        """The quotas of a namespace, read at most once between two starts in a round."""
        if namespace not in self._quotas:
            self._quotas[namespace] = self.queue.quotas(namespace)
        return self._quotas[namespace]

    def _unseen(self) -> float:
        """The seconds until a gang that fits and is kept by something unseen is looked at again.

        The usage of a quota and the binding are not watched, and follow other changes within
        seconds: so the longer ago the last change was, the more seldom.
        """
        return min(max(PERIOD, self.clock() - self._changed_at), REASON_PERIOD)

    def _matters(self, view: Snapshot) -> tuple[object, ...]:
        """All that decides whether a waiting gang can start, apart from the time.

        Time alone opens no way: the later a job starts that may pass the head of the queue, the
        less likely it is to end before the head starts. The recorded reasons of waiting do not
        count.
        """
        if self._mattering[0] is not view:
            known = self._mattering[2]
            jobs = {id(job): known.get(id(job)) or (job, _matters(job)) for job in view.jobs}
            self._mattering = view, (view.objects, [matter for _, matter in jobs.values()]), jobs
        return self._mattering[1]

    def _balked(self, job: QueuedJob) -> bool:
        """Whether a gang that fits failed to start a moment ago, for example by its quota.

        Other gangs have their turn meanwhile, since a round starts only a limited number.
        """
        at = self._balks.get((*job.key, job.created), -math.inf)
        left = at + BALK_PERIOD - self.clock()
        if left > 0:
            self._again(left)
        return left > 0

    def _refuse(self, job: QueuedJob, most: float = math.inf) -> None:
        """Leave a gang alone that cannot start, at most for so many seconds, until things change.

        If all reasons of a minute went to the first gangs of a long queue, the others had none.
        """
        period = min(max(REASON_PERIOD, self._waiting * 60 / MOST_REASONS), max(0.0, most))
        self._refused[*job.key, job.created] = self.clock() + period
        self._again(period)

    def _just_refused(self, job: QueuedJob) -> bool:
        """Whether the reason why this gang waits was computed a moment ago."""
        return self.clock() < self._refused.get((*job.key, job.created), -math.inf)

    def _reasons_due(self) -> bool:
        """Whether all reasons of this minute were worked out; else this is the next."""
        now = self.clock()
        self._reasons = [at for at in self._reasons if now - at < 60]  # noqa: PLR2004  seconds
        if len(self._reasons) >= MOST_REASONS:
            return True
        self._reasons.append(now)
        return False

    def _as_asked(self, job: QueuedJob) -> _Asked:
        """What a waiting gang asks for, read once."""
        known = self._asked.get(job.key)
        if known is None or known.manifest is not job.manifest:
            known = self._asked[job.key] = _Asked.of(job.manifest)
        return known

    def _fits(self, job: QueuedJob, view: Snapshot) -> bool:
        """Whether a gang would start now: the test of `decide`, without the reasons.

        Gangs that ask for the same and see the same GPUs need one search.
        """
        head, asked = self._head_of(view), self._as_asked(job)
        whole = view.cluster()
        if job.key in view.clusters.recorded or job.suspender is not None or job.reserved:
            left = fairness.left_to(job, view.cluster(without={job.key}), head, view.now)
            return self.starter.fit(asked.job, left) is not None
        behind = head is not None and head.delayed_by(fairness.rank(job), job.timeout, view.now)
        patient = view.now < asked.until
        if patient:
            self._again(asked.until - view.now)
        key = asked.shape, behind, patient
        if key not in self._fit:
            left = self._beside_head(view) if behind else whole
            solver = (self._beside if behind else self._followers.present).at(left)
            self._fit[key] = self._would_start(asked.job, left, solver, view, patient=patient)
        return self._fit[key]

    def _would_start(
        self, asked: MPIJob, left: Cluster, solver: Solver, view: Snapshot, *, patient: bool
    ) -> bool:
        """Whether a gang fits what is left for it, and would not wait for more bandwidth."""
        site = self.starter.site
        request = request_of(asked, left, site)
        fits = solver.fits(request)
        if not (fits and patient):
            return fits
        offer, emptied = solver.find(request), view.emptied()
        request = request_of(asked, emptied, site)
        best = self._followers.emptied.at(emptied).find(request)
        return offer is not None and waits_for(request, offer, best, until=math.inf) is None

    def _head_of(self, view: Snapshot) -> QueueHead | None:
        """The head of the queue of a view, which is computed once.

        It counts for later views as well, until something relevant changes or its time is over.
        """
        head = self._head
        if head is not None and head.view is not view:
            same = self._matters(view) == self._matters(head.view)
            head = self._head = head._replace(view=view) if same else None
        if head is None:
            whole, site = view.cluster(), self.starter.site
            first = head_of_queue(view, self.queue, site, self._blocked, self._followers)
            left, seconds = whole, self._unseen()
            if first is not None:
                left = left_for(first, whole)
                patience = first.gang.until - view.now
                seconds = min(seconds, patience) if patience > 0 else seconds
            self._head = head = _Head(view, first, left, self.clock() + seconds)
            self._fit.clear()
        return head.first

    def _beside_head(self, view: Snapshot) -> Cluster:
        """What the head of the queue leaves for others."""
        self._head_of(view)
        assert self._head is not None
        return self._head.left

    def _reasoned(self, job: QueuedJob, cause: Cause | None) -> bool:
        """Record why a gang waits, if the reason is new."""
        known = recorded_placement(job.manifest)
        if cause is None or (known is not None and known.cause == cause) or job.tries:
            return False
        patch = patches.waiting(job.manifest, pins.without_pins(job.manifest), cause)
        self.queue.change(job.manifest, patch)
        return False

    # What others read

    def _publish(self, view: Snapshot) -> bool:
        """Publish what is free as the `cluster-view`, if that is due; whether it was."""
        if self.clock() - self._published < VIEW_PERIOD:
            return False
        # Set before the attempt: after a failure the next try is at the next due time.
        self._published = self.clock()
        mine = fairness.newcomer(SOME_JOB, namespace="", priority=self.queue.priority(""))
        left = fairness.left_to(mine, view.cluster(), self._head_of(view), view.now)
        self.queue.publish_view(left, now=view.now)
        if self.ack:
            self.queue.mirror(self._tell_once)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The basis of a round for one job: its pods, read at `now` (the server's time), and the view.

    `quiet`: nothing relevant has changed since the last round.
    """

    pods: Sequence[Object]
    now: float
    view: Snapshot
    quiet: bool


class _Head(NamedTuple):
    """The first gang of the queue of a view, and what it leaves for others.

    It is valid for later views too, while they are the same in all that decides on starts. It
    expires at `until` (of the controller's clock): by then the quota, which is not watched, may
    have changed, or the patience of the gang has ended.
    """

    view: Snapshot
    first: QueueHead | None
    left: Cluster
    until: float


class _Pods(NamedTuple):
    """The pods of a gang, their nodes, and those for which the scheduler finds no node."""

    pods: Sequence[Object]
    nodes: frozenset[str]
    unscheduled: tuple[str, ...]

    @classmethod
    def of(cls, pods: Sequence[Object]) -> _Pods:
        """The pods with what the controller notices of them."""
        nodes = (pod["spec"].get("nodeName") for pod in pods)
        uids = (str(pod["metadata"].get("uid")) for pod in pods if _unscheduled(pod))
        return cls(pods, frozenset(map(str, filter(None, nodes))), tuple(filter(None, uids)))


def _unscheduled(pod: Object) -> bool:
    """Whether the scheduler finds no node for a pod."""
    condition = condition_of(pod, "PodScheduled") or {}
    return (condition.get("status"), condition.get("reason")) == ("False", "Unschedulable")


def _matters(job: QueuedJob) -> tuple[object, ...]:
    """All of a job that decides whether a waiting gang can start."""
    meta = job.manifest["metadata"]
    request = (meta.get("annotations") or {}).get(REQUEST)
    return replace(job, manifest={}, last=None), meta.get("generation"), request


class _Asked(NamedTuple):
    """What a waiting gang asks for: the job, the end of its patience, and all but its names."""

    manifest: Manifest
    job: MPIJob
    until: float
    shape: tuple[object, ...]

    @classmethod
    def of(cls, manifest: Manifest) -> _Asked:
        """What a stored gang asks for; InvalidJob as of `job_of`."""
        job = job_of(manifest)
        until = waits_since(manifest) + job.patience
        return cls(manifest, job, until, tuple([str(getattr(job, name)) for name in _SHAPE]))


_SHAPE = MPIJob.__dataclass_fields__.keys() - {"name", "command", "image"}
"""The fields of a job that may decide where it fits."""
