"""The controller: starts waiting gangs in their turn, and looks after those that run.

Optional, and without a memory that matters: all it knows is written on the jobs, so a second one
may take over at any moment, and stopping it loses nothing. The cluster is watched (`Queue.watch`);
a round is due when something has changed, or when a deadline of the last one has come:

    withdraw   the records of submitters that died before they resumed their job
    place      gangs that their own queue has started, and that wait at their gates
    tend       running gangs: gated workers go where the record says; one that cannot complete is
               rolled back; one that lost a node is placed anew
    start      waiting gangs, the first in the queue first
    publish    what is free, for those who may not read the cluster

What is watched may lag behind. So each act is tested by the server (a patch tests the record that
it replaces, a deletion the revision of its pod), or what it is based on is asked for once more.

What goes wrong with one job is said, and stops nothing else.
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
from arena_topo.engines.kubernetes.queued import MOST_TRIES, QueuedJob, Snapshot, queued, written
from arena_topo.errors import ArenaError, UsageError
from arena_topo.gang import fairness, rollout
from arena_topo.gang.protocol import Starter
from arena_topo.gang.rollout import Fate
from arena_topo.gang.submission import open_starter
from arena_topo.job import MPIJob, NodeLoss
from arena_topo.manifests import PROPOSED, REQUEST, TRIES, patches, pinning
from arena_topo.manifests.annotations import job_of, recorded
from arena_topo.manifests.cause import Cause, CauseCode, because
from arena_topo.notes import Alert

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.lease import Lease
    from arena_topo.engines.kubernetes.queue import Queue

Object = Mapping[str, Any]
Tell = Callable[[str], None]

PERIOD = 2.0
"""Seconds between two rounds, at least, however much happens."""

VIEW_PERIOD = 15.0
"""Seconds between two looks at what is free that are published."""

REASON_PERIOD = 30.0
"""Seconds after which a gang that still waits is looked at anew, and why it waits is said again."""

BALK_PERIOD = 10.0
"""Seconds for which a gang that fits and yet did not start lets the others go first."""

LOST_AFTER = 60.0
"""Seconds that a node of a gang may be cordoned, not ready or gone before the gang moves."""

MOST_STARTS = 10
"""Gangs that one round starts at most: each takes seconds, and the others must be looked after."""

LEASE_PERIOD = DURATION / 3
"""Seconds after which the Lease is renewed, and between two tries, at most, while the API server
does not answer: less than half of what a Lease lasts, so that one failed round does not lose it."""

_SAID_AGAIN = 600.0
"""Seconds after which a warning that still holds is said again."""


def run(
    backend: Backend, *, ack: bool = False, once: bool = False, tell: Tell = lambda _: None
) -> None:
    """Do rounds until SIGTERM, as long as the Lease is ours; UsageError if there is none.

    SIGTERM lets the round end in good order. Ctrl-C ends it where it is, which loses nothing
    either, and releases the Lease too. `once` does a single round, without the Lease.
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
    """What ends a wait: something has changed, or the program is to end."""

    def __init__(self) -> None:
        self.stopped = False
        # Its `put` may be called by a handler of signals.
        self._calls: queues.SimpleQueue[None] = queues.SimpleQueue()

    def changed(self) -> None:
        """Something has changed."""
        self._calls.put(None)

    def stop(self) -> None:
        """The program is to end."""
        self.stopped = True
        self._calls.put(None)

    def wait(self, least: float, most: float) -> bool:
        """Wait for `most` seconds, or for `least` where something has changed; whether it has.

        Not once it was stopped.
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
    """What went wrong, in one line."""
    if isinstance(error, ArenaError):
        text = f"{error.message}{f': {error.why}' if error.why else ''}"
    else:
        text = f"{type(error).__name__}: {error}"
    return " ".join(text.split())


@dataclass(slots=True, kw_only=True)
class Controller:
    """One round after another on one cluster; what it remembers are times, and what saves work."""

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
    _before: tuple[object, ...] | None = None
    _starts: int = 0
    _warned: dict[str, float] = field(default_factory=dict)

    @property
    def due(self) -> float:
        """By `clock`, when there is something to do even if nothing changes until then."""
        return min(self._due, self._published + VIEW_PERIOD)

    def _again(self, seconds: float) -> None:
        """Ask for another round after so much time."""
        self._due = min(self._due, self.clock() + seconds)

    def round(self, leads: Callable[[], bool] = lambda: True, *, changed: bool = True) -> None:
        """Look at everything once, and do what is to be done as long as `leads`.

        That is asked before each job, so that its author may renew what it goes by. Where nothing
        has `changed` since the last round, only what is due by now is done.
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
        """Withdraw what was left behind; whether anything was."""
        found = False
        for job in view.jobs:
            if fairness.abandoned(job, view.now) and leads():
                found |= self._each(job, partial(self._freed, job, view))
        return found

    def _freed(self, job: QueuedJob, view: Snapshot) -> bool:
        return bool(self.starter.withdraw([job], view.now))

    def _each(self, job: QueuedJob, act: Callable[[], bool]) -> bool:
        """Do something about a job; what goes wrong with one must not stop the others."""
        return self._guarded(f"{job.namespace}/{job.name}", act)

    def _guarded(self, what: str, act: Callable[[], bool]) -> bool:
        """Do something; say what goes wrong, in one line, and once as long as it is the same."""
        try:
            return act()
        except Exception as error:  # noqa: BLE001  jobs are anybody's, and may be any nonsense
            self._told_once(Alert(f"{what}: {_told(error)}"))
            self._again(PERIOD)
        return False

    def _told_once(self, line: str) -> None:
        """Say a line, but not the same one again within `_SAID_AGAIN`."""
        now = self.clock()
        self._warned = {key: at for key, at in self._warned.items() if now - at < _SAID_AGAIN}
        if line not in self._warned:
            self._warned[line] = now
            self.tell(line)

    def _forget(self, view: Snapshot) -> None:
        """Drop what is remembered of jobs that are gone or were placed anew."""
        there = {(*job.key, job.record or "") for job in view.jobs}
        self._patience = {key: one for key, one in self._patience.items() if key in there}
        alive = {(*job.key, job.created) for job in view.jobs}
        self._refused = {key: at for key, at in self._refused.items() if key in alive}
        self._balks = {key: at for key, at in self._balks.items() if key in alive}

    def _notice(
        self, view: Snapshot, pods: Mapping[tuple[str, str], Sequence[Object]], now: float
    ) -> None:
        """Remember since when nodes are of no use, and since when workers find none."""
        nodes: dict[str, str | None] = {
            node.name: node.unavailable for node in view.cluster().nodes
        }
        every = [pod for those in pods.values() for pod in those]
        named = {str(one) for pod in every if (one := pod["spec"].get("nodeName"))}
        out = {name: why for name in sorted(named) if (why := nodes.get(name, "gone"))}
        # By itself: a node that was cordoned long ago may have fallen silent only just now.
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
        """See to a job that is resumed; whether anything that others may see was changed."""
        if rollout.gated(seen.pods):
            self._again(PERIOD)
        if job.suspender is not None and (job.suspended or _fresh(job, seen.pods, seen.now)):
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
        """Send workers from their gates to where the record says that the job has now."""
        stored = self.queue.get(*job.key)
        if stored is not None and stored["metadata"]["uid"] == job.manifest["metadata"]["uid"]:
            now = queued(stored, {})
            if now is not None and not now.suspended and now.state == "placed":
                for pod, patch in rollout.worker_places(stored, pods):
                    self.queue.bind(pod, patch)

    def _handed(self, job: QueuedJob, seen: _Seen) -> bool:
        """Place a gang that its queue has started, or forget where it was when it is stopped."""
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
        if not _fresh(job, self.queue.pods(job.manifest), seen.now):
            return False
        outcome = self.starter.admitted(asked, job.manifest)
        if outcome.resumed:
            self._starts += 1
            self.tell(f"{job.namespace}/{job.name}: placed, as its queue has started it")
        else:
            self._refused[*job.key, job.created] = self.clock()
        return outcome.resumed

    def _broken(self, job: QueuedJob, seen: _Seen) -> bool:
        """Take a gang back that cannot complete."""
        pods = [self._dated(pod) for pod in seen.pods]
        since = job.started or job.recorded or 0.0
        stands = rollout.status_of(job.manifest, pods, (), now=seen.now, since=since)
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
        """Why a gang cannot complete, or has not moved for too long; None while it may."""
        since = job.started or job.recorded or 0.0
        stands = rollout.status_of(job.manifest, pods, events, now=now, since=since)
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
        """The pod with the time since which it was seen to find no node.

        Its own says since when it is not scheduled, and that goes back to when it was at its gate,
        or is missing (kubernetes, pkg/api/v1/pod: UpdatePodCondition).
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
        """Move a gang of which a node was lost for a while, or a worker evicted.

        None where nothing was lost; False too where something was, and the gang is to be left as
        it is.
        """
        if self._loss(pods, self._lost_now) is None:
            return None
        policy = job_of(job.manifest).on_node_loss
        if policy is NodeLoss.FAIL:
            # MPI ends the job itself when it loses a rank; nothing brings it back.
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
        """Force-delete the pods of a gang that was rolled back from a node that does not answer.

        The kubelet of that node never confirms the deletion, and while the pods exist the operator
        creates no others of their names. Where the kubelet answers, as on a node that is only
        cordoned, containers end in their grace period, and have their GPUs until then.
        """
        for pod in pods:
            leaves = bool(pod["metadata"].get("deletionTimestamp"))
            # One that failed is kept by `cleanPodPolicy: Running`, and its name with it.
            failed = (pod.get("status") or {}).get("phase") == "Failed" and not is_launcher(pod)
            if failed if not leaves else self._is_silent(pod["spec"].get("nodeName")):
                self._again(PERIOD)
                self.queue.force_delete(pod)

    def _is_silent(self, node: str | None) -> bool:
        """Whether a machine has not answered for long, and does not now."""
        return node in self._silent_now and self.queue.unavailable(str(node)) in _SILENT

    @staticmethod
    def _loss(pods: Sequence[Object], lost: Mapping[str, str]) -> Cause | None:
        """What a gang has lost: a worker that was evicted, or a node of these."""
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
        """Suspend a gang whole; it waits for its turn again."""
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
        """Start waiting gangs in their turn, as many as one round may."""
        before, self._before = self._before, _matters(view)
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
                # starter reads the cluster anew.
                view = replace(view, jobs=tuple(one for one in view.jobs if one.key != job.key))
                quiet, older = False, True
        if older:
            self._before = None
            self._again(PERIOD)

    def _started(self, job: QueuedJob, view: Snapshot, *, older: bool) -> bool:
        """Start a waiting gang if it fits now and no older gang needs the same GPUs.

        `older`: others were started since the view was read. Whether it may be out of date now.
        """
        asked = job_of(job.manifest)
        if (older or self._just_refused(job)) and not self._fits(asked, job, view):
            return False
        if not older:
            found = self.starter.decide(asked, job, view)
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
        """Whether a gang that fits could not be started a moment ago, as where its quota is used.

        The others have their turn meanwhile: a round starts no more than so many.
        """
        at = self._balks.get((*job.key, job.created))
        return at is not None and self.clock() - at < BALK_PERIOD

    def _just_refused(self, job: QueuedJob) -> bool:
        """Whether it was worked out a moment ago why this gang waits."""
        at = self._refused.get((*job.key, job.created))
        return at is not None and self.clock() - at < REASON_PERIOD

    def _fits(self, asked: MPIJob, job: QueuedJob, view: Snapshot) -> bool:
        """Whether a gang can be placed now: what `decide` goes by, without looking for reasons."""
        whole = view.cluster(without={job.key})
        left, _head = fairness.left_for(job, whole, view, self.starter.fit)
        return self.starter.fit(asked, left) is not None

    def _reasoned(self, job: QueuedJob, cause: Cause | None) -> bool:
        """Write down why a gang waits, where that is news."""
        known = recorded(job.manifest)
        if cause is None or (known is not None and known.cause == cause) or job.tries:
            return False
        patch = patches.waiting(job.manifest, pinning.unplaced(job.manifest), cause)
        self.queue.change(job.manifest, patch)
        return False

    # What others read

    def _publish(self, view: Snapshot) -> bool:
        """Publish what is free, where that is due; whether it was."""
        if self.clock() - self._published < VIEW_PERIOD:
            return False
        # Even if it fails: everything else goes on, and it is tried again when it is due again.
        self._published = self.clock()
        self.queue.publish_view(view.cluster(), now=view.now)
        if self.ack:
            self.queue.mirror(self._told_once)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What one round goes by for a job: its pods, read at `now` (the server's time), and all else.

    `quiet`: nothing that matters has changed since the last round.
    """

    pods: Sequence[Object]
    now: float
    view: Snapshot
    quiet: bool


def _fresh(job: QueuedJob, pods: Sequence[Object], now: float) -> bool:
    """Whether the workers at their gates are newer than the record that says where they go.

    A record that was never confirmed, and whose author must be gone by now, says nothing.
    """
    waiting = rollout.gated(pods)
    if job.state != "placed" or job.recorded is None:
        return bool(waiting)
    if PROPOSED in (job.manifest["metadata"].get("annotations") or {}):
        return bool(waiting) and abs(now - job.recorded) > fairness.STALE
    # One that is created again joins the others, wherever they are.
    if any(map(_is_bound, pods)):
        return False
    # Times of creation are whole seconds.
    return bool(waiting) and min(map(rollout.born, waiting)) > job.recorded + 1


def _is_bound(pod: Object) -> bool:
    """Whether a worker is at its node, to stay."""
    leaves = is_launcher(pod) or pod_over(pod) or pod["metadata"].get("deletionTimestamp")
    return bool(pod["spec"].get("nodeName")) and not leaves


def _unscheduled(pod: Object) -> bool:
    """Whether the scheduler finds no node for a pod."""
    found = condition_of(pod, "PodScheduled") or {}
    return (found.get("status"), found.get("reason")) == ("False", "Unschedulable")


def _matters(view: Snapshot) -> tuple[object, ...]:
    """All that decides whether a waiting gang can start, but for what time does to it.

    Time opens no way: a job that may pass the head of the queue is the less likely to end before
    that starts, the later it is itself. What is written on a job of why it waits does not count.
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


_SILENT = frozenset({"NotReady", "Unknown", "gone"})
"""What is said of nodes whose kubelet does not answer (`topology.Node.unavailable`)."""

_EVICTED = frozenset({"Evicted", "NodeLost", "Terminated", "Shutdown", "Preempting"})
"""Reasons of a pod that its kubelet or the control plane ended (kubernetes, pkg/kubelet)."""
