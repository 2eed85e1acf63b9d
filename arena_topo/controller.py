"""The controller: starts waiting gangs in their turn, and looks after those that run.

Optional, and without a memory that matters: all it knows stands on the jobs, so a second one may
take over at any moment, and stopping it loses nothing. One round, every few seconds:

    withdraw   the records of submitters that died before they resumed their job
    place      gangs that their own queue has started, and that wait at their gates
    tend       running gangs: gated workers go where the record says; one that cannot complete is
               taken back whole; one that lost a node is placed anew
    start      waiting gangs, the first in the queue first
    publish    what is free, for those who may not read the cluster
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from arena_topo import manifests
from arena_topo.backends import Backend
from arena_topo.backends.kubernetes.status import is_launcher
from arena_topo.backends.queue import MOST_TRIES, Queue, QueuedJob, Snapshot
from arena_topo.errors import ArenaError, UsageError
from arena_topo.job import MPIJob, NodeLoss
from arena_topo.manifests import transition
from arena_topo.manifests.values import REQUEST
from arena_topo.workflow import fairness, gathering, heartbeat
from arena_topo.workflow.gathering import Fate
from arena_topo.workflow.starting import Starter, over
from arena_topo.workflow.submission import open_starter

if TYPE_CHECKING:
    from arena_topo.backends.kubernetes.upkeep import Lease, Upkeep

Object = Mapping[str, Any]
Tell = Callable[[str], None]

PERIOD = 2.0
"""Seconds between two rounds."""

VIEW_PERIOD = 15.0
"""Seconds between two looks at what is free that are published."""

REASON_PERIOD = 30.0
"""Seconds after which a gang that still waits is looked at anew, and why it waits is said again."""

LOST_AFTER = 60.0
"""Seconds that a node of a gang may be cordoned, not ready or gone before the gang moves."""

_LONGEST_WAIT = 60.0
"""Seconds between two tries, at most, while the API server does not answer."""


def run(
    backend: Backend, *, ack: bool = False, once: bool = False, tell: Tell = lambda _: None
) -> None:
    """Do rounds until SIGTERM or SIGINT, as long as the Lease is ours; UsageError if there is none.

    `once` does a single round, whoever has the Lease.
    """
    upkeep, queue = backend.upkeep, backend.queue
    if upkeep is None or queue is None:
        raise UsageError(
            "the local engine needs no controller",
            why="it starts what waits by itself",
            hint="name a cluster with --backend kubernetes",
        )
    controller = Controller(
        queue=queue, upkeep=upkeep, starter=open_starter(backend, queue), ack=ack, tell=tell
    )
    if once:
        controller.round()
        return
    stop = threading.Event()

    def ended(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ended)
    identity = f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4()}"
    lease = upkeep.lease(identity)
    try:
        _rounds(controller, lease, stop, tell)
    finally:
        lease.release()


def _rounds(controller: Controller, lease: Lease, stop: threading.Event, tell: Tell) -> None:
    leads, delay = False, PERIOD
    while not stop.is_set():
        heartbeat.beat()
        try:
            led, leads = leads, lease.held()
            if leads != led:
                tell("this controller is at work" if leads else "another controller is at work")
            if leads:
                controller.round()
            delay = PERIOD
        except ArenaError as error:
            tell(f"warning: {error.message}{f': {error.why}' if error.why else ''}")
            delay = min(_LONGEST_WAIT, delay * 2)
        stop.wait(delay)


@dataclass(slots=True, kw_only=True)
class Controller:
    """One round after another on one cluster; what it remembers are times, and what saves work."""

    queue: Queue
    upkeep: Upkeep
    starter: Starter
    ack: bool = False
    tell: Tell = lambda _: None
    clock: Callable[[], float] = time.monotonic
    _patience: dict[tuple[str, str, str], gathering.Patience] = field(default_factory=dict)
    _missed: dict[str, float] = field(default_factory=dict)
    _published: float | None = None
    _refused: dict[tuple[str, str, float], float] = field(default_factory=dict)
    _before: tuple[object, ...] | None = None

    def round(self) -> None:
        """Look at everything once, and do what is to be done."""
        view = self.queue.read()
        if self.starter.withdraw(view.jobs, view.now):
            view = self.queue.read()
        pods = self.upkeep.pods()
        self._forget(view)
        touched = False
        for job in view.jobs:
            touched |= self._each(job, partial(self._tended, job, pods.get(job.key, []), view))
        if touched:
            view = self.queue.read()
        now = _matters(view)
        quiet = now == self._before
        self._before = now
        for job in fairness.order(view.jobs):
            if not all(map(over, pods.get(job.key, ()))):
                continue  # The pods of its last run have not ended yet.
            if quiet and self._just_refused(job):
                continue
            if self._each(job, partial(self._started, job, view)):
                view, quiet, self._before = self.queue.read(), False, None
        self._publish(view)

    def _each(self, job: QueuedJob, act: Callable[[], bool]) -> bool:
        """Do something about a job; what goes wrong with one must not stop the others."""
        try:
            return act()
        except ArenaError as error:
            why = f": {error.why}" if error.why else ""
            self.tell(f"warning: {job.namespace}/{job.name}: {error.message}{why}")
            return False

    def _forget(self, view: Snapshot) -> None:
        """Drop what is remembered of jobs that are gone or were placed anew."""
        there = {(*job.key, job.record or "") for job in view.jobs}
        self._patience = {key: one for key, one in self._patience.items() if key in there}
        alive = {(*job.key, job.created) for job in view.jobs}
        self._refused = {key: at for key, at in self._refused.items() if key in alive}

    # Gangs that run, or that another queue starts

    def _tended(self, job: QueuedJob, pods: Sequence[Object], view: Snapshot) -> bool:
        """See to a job that is resumed; whether anything that others may see was changed."""
        if job.suspender is not None and (job.suspended or self._fresh(job, pods)):
            return self._handed(job)
        if job.suspended:
            self._bury(pods, view)
            return False
        if job.state != "placed":
            return False
        for pod, patch in gathering.worker_places(job.manifest, pods):
            self.queue.bind(pod, patch)
        if job.suspender is not None:
            return False
        return self._lost(job, pods, view) or self._broken(job, pods)

    @staticmethod
    def _fresh(job: QueuedJob, pods: Sequence[Object]) -> bool:
        """Whether the workers at their gates are newer than the record that says where they go."""
        waiting = gathering.gated(pods)
        if job.state != "placed" or job.recorded is None:
            return bool(waiting)
        born = [gathering.born(pod) for pod in waiting]
        # Times of creation are whole seconds.
        return bool(born) and min(born) > job.recorded + 1

    def _handed(self, job: QueuedJob) -> bool:
        """Place a gang that its queue has started, or forget where it was when it is stopped."""
        if job.suspended:
            if job.record is None and job.state == "waiting":
                return False
            return self.queue.change(job.manifest, transition.clearing(job.manifest)) is not None
        outcome = self.starter.admitted(manifests.job_of(job.manifest), job.manifest)
        if outcome.resumed:
            self.tell(f"{job.namespace}/{job.name}: placed, as its queue has started it")
        return outcome.resumed

    def _broken(self, job: QueuedJob, pods: Sequence[Object]) -> bool:
        """Take a gang back that cannot complete."""
        wanted = int(job.manifest["spec"]["mpiReplicaSpecs"]["Worker"].get("replicas", 1))
        workers = sum(not is_launcher(pod) for pod in pods)
        warnings = self.queue.warnings(job.manifest) if workers < wanted else []
        since = job.started or job.recorded or 0.0
        seen = gathering.standing(job.manifest, pods, warnings, now=self.queue.now(), since=since)
        if seen.fate is Fate.STARTED:
            return False
        if seen.fate is Fate.BROKEN:
            return self._back(job, seen.reason or "it cannot complete")
        key = (*job.key, job.record or "")
        limit = float(manifests.job_of(job.manifest).gang_timeout)
        patience = self._patience.setdefault(key, gathering.Patience(limit=limit))
        if patience.lost(seen, pulling=gathering.pulls(pods), now=self.clock()):
            return self._back(job, f"nothing moved for {limit:g} s: {seen.reason}")
        return False

    def _lost(self, job: QueuedJob, pods: Sequence[Object], view: Snapshot) -> bool:
        """Move a gang of which a node was lost for a while, or a worker evicted."""
        trouble = self._loss(pods, view)
        if trouble is None:
            return False
        match manifests.job_of(job.manifest).on_node_loss:
            case NodeLoss.REPLAN:
                return self._back(job, trouble, counts=False)
            case NodeLoss.HOLD:
                held = transition.holding(job.manifest, manifests.unplaced(job.manifest), trouble)
                done = self.queue.change(job.manifest, held) is not None
                if done:
                    self.tell(f"{job.namespace}/{job.name}: held: {trouble}")
                return done
            case NodeLoss.FAIL:
                # MPI ends the job itself when it loses a rank; nothing brings it back.
                return False

    def _bury(self, pods: Sequence[Object], view: Snapshot) -> None:
        """Let go of pods of a gang that was taken back from a machine that does not answer.

        Nobody else would: its kubelet never says that they have ended, and as long as they are
        there the operator makes no others of their names.
        """
        for pod in pods:
            leaves = bool(pod["metadata"].get("deletionTimestamp"))
            # One that failed is kept by `cleanPodPolicy: Running`, and its name with it.
            failed = (pod.get("status") or {}).get("phase") == "Failed" and not is_launcher(pod)
            if (leaves and self._lost_nodes([pod], view)) or (failed and not leaves):
                self.upkeep.bury(pod)

    def _loss(self, pods: Sequence[Object], view: Snapshot) -> str | None:
        workers = [pod for pod in pods if not is_launcher(pod)]
        for pod in workers:
            status = pod.get("status") or {}
            if status.get("phase") == "Failed" and status.get("reason") in _EVICTED:
                return f"{pod['metadata']['name']} was evicted: {status.get('message') or '?'}"
        for name, why in self._lost_nodes(workers, view).items():
            return f"node {name} is {why}"
        return None

    def _lost_nodes(self, pods: Sequence[Object], view: Snapshot) -> dict[str, str]:
        """The nodes of these pods that have been of no use for a while, and why."""
        nodes: dict[str, str | None] = {
            node.name: node.unavailable for node in view.cluster().nodes
        }
        lost = {}
        for name in sorted({str(one) for pod in pods if (one := pod["spec"].get("nodeName"))}):
            why = nodes.get(name, "gone")
            if why is None:
                self._missed.pop(name, None)
            elif self.clock() - self._missed.setdefault(name, self.clock()) >= LOST_AFTER:
                lost[name] = why
        return lost

    def _back(self, job: QueuedJob, reason: str, *, counts: bool = True) -> bool:
        """Suspend a gang whole; it waits for its turn again."""
        tries = job.tries + counts
        patch = transition.taking_back(
            job.manifest, manifests.unplaced(job.manifest), reason, tries
        )
        if self.queue.change(job.manifest, patch) is None:
            return False
        again = "" if tries < MOST_TRIES else "; it is not tried again before somebody resumes it"
        self.tell(f"{job.namespace}/{job.name}: taken back whole: {reason}{again}")
        return True

    # Gangs that wait

    def _started(self, job: QueuedJob, view: Snapshot) -> bool:
        """Start a waiting gang if it fits now and nobody older needs the same GPUs."""
        asked = manifests.job_of(job.manifest)
        if self._just_refused(job) and not self._fits(asked, job, view):
            return False
        found = self.starter.decide(asked, job, view)
        if found.placement is None:
            self._refused[*job.key, job.created] = self.clock()
            return self._reasoned(job, found.refused)
        outcome = self.starter.start(asked, job.manifest, None)
        if outcome.resumed:
            self.tell(f"{job.namespace}/{job.name}: started")
        return True

    def _just_refused(self, job: QueuedJob) -> bool:
        """Whether it was worked out a moment ago why this gang waits."""
        at = self._refused.get((*job.key, job.created))
        return at is not None and self.clock() - at < REASON_PERIOD

    def _fits(self, asked: MPIJob, job: QueuedJob, view: Snapshot) -> bool:
        """Whether a gang can be placed now: what `decide` goes by, without looking for reasons."""
        held = fairness.reservation(job, view, self.starter.fit)
        whole = view.cluster(without={job.key})
        left = fairness.kept_from(job, whole, held, now=view.now)
        return self.starter.fit(asked, left) is not None

    def _reasoned(self, job: QueuedJob, reason: str | None) -> bool:
        """Write down why a gang waits, where that is news."""
        known = manifests.recorded(job.manifest)
        if reason is None or (known is not None and known.reason == reason) or job.tries:
            return False
        patch = transition.waiting(job.manifest, manifests.unplaced(job.manifest), reason)
        self.queue.change(job.manifest, patch)
        return False

    # What others read

    def _publish(self, view: Snapshot) -> None:
        if self._published is not None and self.clock() - self._published < VIEW_PERIOD:
            return
        self.upkeep.publish_view(view.cluster(), now=view.now)
        if self.ack:
            self.upkeep.mirror()
        self._published = self.clock()


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


_EVICTED = frozenset({"Evicted", "NodeLost", "Terminated", "Shutdown", "Preempting"})
"""Reasons of a pod that its kubelet or the control plane ended (kubernetes, pkg/kubelet)."""
