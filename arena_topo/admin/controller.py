"""The controller: starts waiting gangs in their turn, and looks after those that run.

Optional, and without essential state: all it knows is stored on the jobs, so a second controller
may take over at any moment, and stopping it loses nothing. The cluster is watched (`Queue.watch`);
a round is due after a change, or at a deadline that the last round has set:

    withdraw   the records of submitters that died before they resumed their job
    place      gangs that their own queue has started, and that are gated
    tend       running gangs: gated workers get the nodes of their record; a gang that cannot
               complete is rolled back; one that lost a node is placed anew
    start      waiting gangs, in the order of the queue
    publish    what is free, for users who may not read the cluster

The watched state may lag behind. So the server tests each act (a patch tests the record that it
replaces, a deletion the revision of its pod), or the state is read again before the act.

An error with one job is reported, and does not stop the others.
"""

from __future__ import annotations

import math
import os
import queue as queues
import signal
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from arena_topo.clusters.usage import pod_over
from arena_topo.engines import Backend, heartbeat
from arena_topo.engines.kubernetes.lease import DURATION
from arena_topo.engines.kubernetes.mpijob import condition_of, is_launcher
from arena_topo.engines.kubernetes.queued import MOST_TRIES, QueuedJob, Snapshot, written
from arena_topo.errors import ArenaError, InvalidJob, UsageError
from arena_topo.gang import fairness, rollout
from arena_topo.gang.planning import Decision, share
from arena_topo.gang.protocol import Starter
from arena_topo.gang.rollout import Fate
from arena_topo.gang.submission import open_starter
from arena_topo.job import MPIJob, NodeLoss
from arena_topo.manifests import REQUEST, TRIES, patches, pinning
from arena_topo.manifests.annotations import recorded
from arena_topo.manifests.cause import Cause, CauseCode, because, in_words
from arena_topo.manifests.requests import job_of
from arena_topo.notes import Alert
from arena_topo.solver import Unplaceable

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.lease import Lease
    from arena_topo.engines.kubernetes.queue import Queue

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

LOST_AFTER = 60.0
"""Seconds that a node of a gang may be cordoned, not ready or gone before the gang moves."""

MOST_STARTS = 10
"""The most gangs that one round starts: each takes seconds, and the running gangs need
attention."""

LEASE_PERIOD = DURATION / 3
"""Seconds between two renewals of the Lease, and the most between two tries while the API server
does not answer: less than half of the Lease's duration, so one failed round does not lose it."""

_SAID_AGAIN = 600.0
"""Seconds until a warning that still holds is repeated."""


def run(
    backend: Backend, *, ack: bool = False, once: bool = False, tell: Tell = lambda _: None
) -> None:
    """Do rounds until SIGTERM, while holding the Lease; UsageError on the local engine.

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
        starter=open_starter(backend, queue),
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

    def leads() -> bool:
        nonlocal led, renewed
        heartbeat.beat()
        if wake.stopped:
            return False
        if led and clock() - renewed < LEASE_PERIOD:
            return True
        before, led = led, lease.held()
        renewed = clock()
        if led != before:
            tell("this controller is at work" if led else "another controller is at work")
        return led

    changed = True
    while not wake.stopped:
        rest = PERIOD
        try:
            if leads():
                if not watched:
                    controller.queue.watch(wake.changed)
                    watched = True
                controller.round(leads, changed=changed)
                changed = False
                rest = max(PERIOD, min(controller.due, renewed + LEASE_PERIOD) - clock())
            delay = PERIOD
        except Exception as error:  # noqa: BLE001  nobody starts gangs without it
            tell(Alert(_told(error)))
            changed, rest = True, min(LEASE_PERIOD, delay * 2)
            delay = rest
        changed |= wake.wait(PERIOD, rest)


def _told(error: Exception) -> str:
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
    _patience: dict[tuple[str, str, str], rollout.StallTimer] = field(default_factory=dict)
    _missed: dict[tuple[str, bool], float] = field(default_factory=dict)
    _lost_now: dict[str, str] = field(default_factory=dict)
    _silent_now: frozenset[str] = frozenset()
    _unscheduled: dict[str, float] = field(default_factory=dict)
    _published: float = -math.inf
    _due: float = -math.inf
    _refused: dict[tuple[str, str, float], float] = field(default_factory=dict)
    _balks: dict[tuple[str, str, float], float] = field(default_factory=dict)
    _blocked: dict[tuple[str, str], bool] = field(default_factory=dict)
    _before: tuple[object, ...] | None = None
    _starts: int = 0
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
        self._guarded("the published view", lambda: self._publish(view))
        if not changed and self.clock() < self._due:
            return
        self._due = -math.inf
        if self._withdrawn(view, leads):
            view = self.queue.read()
        pods = self.queue.gangs(job.manifest for job in view.jobs)
        now = self.queue.now()
        self._due = math.inf
        self._forget(view)
        self._notice(view, pods, now)
        self._starts = 0
        quiet = _matters(view) == self._before
        touched = False
        for job in view.jobs:
            if not leads():
                self._again(0)
                return
            seen = _Seen(pods=pods.get(job.key, []), now=now, view=view, quiet=quiet)
            touched |= self._each(job, partial(self._tended, job, seen))
        if touched:
            view = self.queue.read()
        self._start(view, pods, leads)

    def _withdrawn(self, view: Snapshot, leads: Callable[[], bool]) -> bool:
        """Withdraw the records of dead submitters; whether there were any."""
        found = False
        for job in view.jobs:
            if fairness.abandoned(job, view.now) and leads():
                found |= self._each(job, partial(self._freed, job, view))
        return found

    def _freed(self, job: QueuedJob, view: Snapshot) -> bool:
        return bool(self.starter.withdraw([job], view.now))

    def _each(self, job: QueuedJob, act: Callable[[], bool]) -> bool:
        """Do something about a job; an error must not stop the others."""
        return self._guarded(f"{job.namespace}/{job.name}", act)

    def _guarded(self, what: str, act: Callable[[], bool]) -> bool:
        """Do something; report an error in one line, once as long as it is the same."""
        try:
            return act()
        except Exception as error:  # noqa: BLE001  jobs are anybody's, and may be any nonsense
            self._told_once(Alert(f"{what}: {_told(error)}"))
            self._again(PERIOD)
        return False

    def _told_once(self, line: str) -> None:
        """Print a line, but not the same one again within `_SAID_AGAIN`."""
        now = self.clock()
        self._warned = {key: at for key, at in self._warned.items() if now - at < _SAID_AGAIN}
        if line not in self._warned:
            self._warned[line] = now
            self.tell(line)

    def _forget(self, view: Snapshot) -> None:
        """Drop the state about jobs that are gone or were placed anew."""
        there = {(*job.key, job.record or "") for job in view.jobs}
        self._patience = {key: one for key, one in self._patience.items() if key in there}
        alive = {(*job.key, job.created) for job in view.jobs}
        self._refused = {key: at for key, at in self._refused.items() if key in alive}
        self._balks = {key: at for key, at in self._balks.items() if key in alive}

    def _notice(
        self, view: Snapshot, pods: Mapping[tuple[str, str], Sequence[Object]], now: float
    ) -> None:
        """Update the times since which nodes are unusable and workers unschedulable."""
        nodes: dict[str, str | None] = {
            node.name: node.unavailable for node in view.cluster().nodes
        }
        every = [pod for those in pods.values() for pod in those]
        named = {str(one) for pod in every if (one := pod["spec"].get("nodeName"))}
        out = {name: why for name in sorted(named) if (why := nodes.get(name, "gone"))}
        # A separate time: a node that was cordoned long ago may have stopped answering just now.
        silent = {name for name, why in out.items() if why in _SILENT}
        at = self.clock()
        keys = [(name, False) for name in out] + [(name, True) for name in silent]
        self._missed = {key: self._missed.get(key, at) for key in keys}
        lost = {key for key, since in self._missed.items() if at - since >= LOST_AFTER}
        self._lost_now = {name: why for name, why in out.items() if (name, False) in lost}
        self._silent_now = frozenset(name for name in silent if (name, True) in lost)
        for key in self._missed.keys() - lost:
            self._again(self._missed[key] + LOST_AFTER - at)
        self._unscheduled = {
            uid: self._unscheduled.get(uid, now)
            for pod in every
            if _unscheduled(pod) and (uid := str(pod["metadata"].get("uid")))
        }

    # Gangs that run, or that another queue starts

    def _tended(self, job: QueuedJob, seen: _Seen) -> bool:
        """Look after a resumed job; whether anything that others may see was changed."""
        if rollout.gated(seen.pods):
            self._again(PERIOD)
        if job.suspender is not None and (
            job.suspended or rollout.awaits_placement(job, seen.pods, seen.now)
        ):
            return self._handed(job, seen)
        if job.suspended:
            if job.state == "placed":
                # The submitter that recorded the placement may die before it resumes the job.
                self._again(fairness.STALE + 1)
            self._force_delete(seen.pods)
            return False
        if job.state != "placed":
            return False
        if rollout.worker_places(job.manifest, seen.pods):
            self._bound(job, seen.pods)
        if job.suspender is not None:
            return False
        moved = self._lost(job, seen.pods)
        return self._broken(job, seen) if moved is None else moved

    def _bound(self, job: QueuedJob, pods: Sequence[Object]) -> None:
        """Send gated workers to the nodes that the job's present record names."""
        stored = self.starter.current(job.manifest)
        if stored is not None:
            for pod, patch in rollout.worker_places(stored, pods):
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
        if self._just_refused(job) and (seen.quiet or not self._fits(asked, job, seen.view)):
            return False
        if not rollout.awaits_placement(job, self.queue.pods(job.manifest), seen.now):
            return False
        outcome = self.starter.admitted(asked, job.manifest)
        if outcome.resumed:
            self._starts += 1
            self.tell(f"{job.namespace}/{job.name}: placed, as its queue has started it")
        else:
            self._refused[*job.key, job.created] = self.clock()
        return outcome.resumed

    def _broken(self, job: QueuedJob, seen: _Seen) -> bool:
        """Roll back a gang that cannot complete; whether that was done."""
        pods = [self._dated(pod) for pod in seen.pods]
        stands = rollout.status_of(job.manifest, pods, (), now=seen.now, since=job.since)
        if stands.fate is Fate.STARTED:
            if TRIES in (job.manifest["metadata"].get("annotations") or {}):
                self.queue.change(job.manifest, patches.settled(job.manifest))
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
        stands = rollout.status_of(job.manifest, pods, events, now=now, since=job.since)
        if stands.broken is not None:
            return stands.broken
        limit = float(job_of(job.manifest).gang_timeout)
        patience = self._patience.setdefault(
            (*job.key, job.record or ""), rollout.StallTimer(limit=limit)
        )
        pulling = rollout.pulls(pods, events, now=now)
        if patience.expired(stands, pulling=pulling, now=self.clock()):
            return because(CauseCode.STALLED, limit=f"{limit:g} s", text=stands.progress)
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
            {**one, "lastTransitionTime": written(at)} if one.get("type") == "PodScheduled" else one
            for one in status["conditions"]
        ]
        return {**pod, "status": {**status, "conditions": conditions}}

    def _lost(self, job: QueuedJob, pods: Sequence[Object]) -> bool | None:
        """Move a gang of which a node has been lost for a while, or a worker was evicted.

        None if nothing was lost; False also if something was lost and the gang is left as it is.
        """
        if self._loss(pods, self._lost_now) is None:
            return None
        policy = job_of(job.manifest).on_node_loss
        if policy is NodeLoss.FAIL:
            # MPI ends the job itself when it loses a rank; nothing can bring it back.
            return False
        self._again(PERIOD)
        fresh = self.queue.pods(job.manifest)
        there = {str(pod["spec"].get("nodeName") or "") for pod in fresh}
        lost = {
            name: why
            for name in sorted(there & self._lost_now.keys())
            if (why := self.queue.unavailable(name)) is not None
        }
        trouble = self._loss(fresh, lost)
        if trouble is None:
            return None
        if policy is NodeLoss.REPLAN:
            return self._back(job, trouble, counts=False)
        held = patches.holding(job.manifest, pinning.unplaced(job.manifest), trouble)
        done = self.queue.change(job.manifest, held) is not None
        if done:
            self.tell(f"{job.namespace}/{job.name}: held: {trouble}")
        return done

    def _force_delete(self, pods: Sequence[Object]) -> None:
        """Force-delete the failed workers of a suspended gang, and its pods on a silent node.

        The kubelet of that node never confirms the deletion, and while the pods exist the operator
        creates no others of their names. If the kubelet answers, as on a node that is only
        cordoned, containers end within their grace period, and use their GPUs until then.
        """
        silent = [
            pod
            for pod in pods
            if pod["metadata"].get("deletionTimestamp")
            and self._is_silent(pod["spec"].get("nodeName"))
        ]
        for pod in (*rollout.failed_workers(pods), *silent):
            self._again(PERIOD)
            self.queue.force_delete(pod)

    def _is_silent(self, node: str | None) -> bool:
        """Whether a node has not answered for long, and does not answer now."""
        return node in self._silent_now and self.queue.unavailable(str(node)) in _SILENT

    @staticmethod
    def _loss(pods: Sequence[Object], lost: Mapping[str, str]) -> Cause | None:
        """The loss of a gang: an evicted worker, or one of these nodes; None without a loss."""
        workers = [pod for pod in pods if not is_launcher(pod)]
        for pod in workers:
            status = pod.get("status") or {}
            if status.get("phase") == "Failed" and status.get("reason") in _EVICTED:
                name, text = pod["metadata"]["name"], str(status.get("message") or "?")
                return because(CauseCode.EVICTED, pod=name, text=text)
        names = {str(pod["spec"].get("nodeName") or "") for pod in workers}
        for name in sorted(names & lost.keys()):
            return because(CauseCode.NODE_LOST, node=name, state=lost[name])
        return None

    def _back(self, job: QueuedJob, cause: Cause, *, counts: bool = True) -> bool:
        """Suspend a whole gang, which then waits for its turn again."""
        tries = job.tries + counts
        patch = patches.taking_back(job.manifest, pinning.unplaced(job.manifest), cause, tries)
        if self.queue.change(job.manifest, patch) is None:
            return False
        again = "" if tries < MOST_TRIES else "; it is not tried again until it is resumed"
        self.tell(f"{job.namespace}/{job.name}: rolled back: {cause}{again}")
        return True

    # Gangs that wait

    def _start(
        self,
        view: Snapshot,
        pods: Mapping[tuple[str, str], Sequence[Object]],
        leads: Callable[[], bool],
    ) -> None:
        """Start waiting gangs in their turn, up to the limit of a round."""
        before, self._before = self._before, _matters(view)
        self._blocked.clear()
        quiet, older = self._before == before, False
        for job in fairness.order(view.jobs):
            if self._starts >= MOST_STARTS or not leads():
                self._before = None
                self._again(PERIOD)
                break
            self._again(REASON_PERIOD)
            if not all(map(pod_over, pods.get(job.key, ()))):
                continue  # The pods of its last run have not ended yet.
            if self._balked(job) or (quiet and self._just_refused(job)):
                continue
            if self._each(job, partial(self._started, job, view, older=older)):
                # The other gangs are compared with the GPUs that were free before. Fewer are free
                # now: a gang that does not fit there does not fit, and for one that fits the
                # starter reads the cluster again.
                view = replace(view, jobs=tuple(one for one in view.jobs if one.key != job.key))
                quiet, older = False, True
        if older:
            self._before = None
            self._again(PERIOD)

    def _started(self, job: QueuedJob, view: Snapshot, *, older: bool) -> bool:
        """Start a waiting gang if it fits now and no older gang needs the same GPUs.

        `older`: others were started since the view was read. True if the view may be out of date
        now.
        """
        asked = job_of(job.manifest)
        if (older or self._just_refused(job)) and not self._fits(asked, job, view):
            return False
        if not older:
            try:
                found = self.starter.decide(asked, job, view)
            except (InvalidJob, Unplaceable) as never:
                # The cluster is not the one that the gang was submitted to.
                self._told_once(Alert(f"{job.namespace}/{job.name}: {_told(never)}"))
                found = Decision(refused=in_words(_told(never)))
            if found.placement is None:
                self._refused[*job.key, job.created] = self.clock()
                return self._reasoned(job, found.refused)
        self._starts += 1
        outcome = self.starter.start(asked, job.manifest, None)
        if outcome.resumed:
            self.tell(f"{job.namespace}/{job.name}: started")
        else:
            self._balks[*job.key, job.created] = self.clock()
            self._again(BALK_PERIOD)
        return True

    def _balked(self, job: QueuedJob) -> bool:
        """Whether a gang that fits failed to start a moment ago, for example by its quota.

        Other gangs have their turn meanwhile, since a round starts only a limited number.
        """
        at = self._balks.get((*job.key, job.created))
        return at is not None and self.clock() - at < BALK_PERIOD

    def _just_refused(self, job: QueuedJob) -> bool:
        """Whether the reason why this gang waits was computed a moment ago."""
        at = self._refused.get((*job.key, job.created))
        return at is not None and self.clock() - at < REASON_PERIOD

    def _fits(self, asked: MPIJob, job: QueuedJob, view: Snapshot) -> bool:
        """Whether a gang can be placed now: the test of `decide`, without the reasons."""
        whole = view.cluster(without={job.key})
        site = self.starter.site
        left, _head = share(job, whole, view, self.queue, site, known=self._blocked)
        return self.starter.fit(asked, left) is not None

    def _reasoned(self, job: QueuedJob, cause: Cause | None) -> bool:
        """Record why a gang waits, if the reason is new."""
        known = recorded(job.manifest)
        if cause is None or (known is not None and known.cause == cause) or job.tries:
            return False
        patch = patches.waiting(job.manifest, pinning.unplaced(job.manifest), cause)
        self.queue.change(job.manifest, patch)
        return False

    # What others read

    def _publish(self, view: Snapshot) -> bool:
        """Publish what is free, if that is due; whether it was."""
        if self.clock() - self._published < VIEW_PERIOD:
            return False
        # Set before the attempt: after a failure the next try is at the next due time.
        self._published = self.clock()
        self.queue.publish_view(view.cluster(), now=view.now)
        if self.ack:
            self.queue.mirror(self._told_once)
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


def _unscheduled(pod: Object) -> bool:
    """Whether the scheduler finds no node for a pod."""
    found = condition_of(pod, "PodScheduled") or {}
    return (found.get("status"), found.get("reason")) == ("False", "Unschedulable")


def _matters(view: Snapshot) -> tuple[object, ...]:
    """All that decides whether a waiting gang can start, apart from the time.

    Time alone opens no way: the later a job starts that may pass the head of the queue, the less
    likely it is to end before the head starts. The recorded reasons of waiting do not count.
    """
    jobs = tuple(
        (
            replace(job, manifest={}),
            job.manifest["metadata"].get("generation"),
            (job.manifest["metadata"].get("annotations") or {}).get(REQUEST),
        )
        for job in view.jobs
    )
    return view.objects, jobs


_SILENT = frozenset({"NotReady", "gone"})
"""States of nodes whose kubelet does not answer (`topology.Node.unavailable`)."""

_EVICTED = frozenset({"Evicted", "NodeLost", "Terminated", "Shutdown", "Preempting"})
"""Reasons of a pod that its kubelet or the control plane ended (kubernetes, pkg/kubelet)."""
