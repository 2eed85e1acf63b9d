"""`submit` and its like: gangs are created, started, stopped, and placed again.

What a job needs is decided in `planning`, who gets which GPUs in `starting`, and whether a gang
came together in `gathering`; here are the verbs that people know.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from arena_topo import manifests
from arena_topo.backends import Backend, JobStatus
from arena_topo.backends.kubernetes.status import is_launcher
from arena_topo.backends.queue import MOST_TRIES, Queue, QueuedJob, queued, suspender
from arena_topo.errors import (
    AccessDenied,
    ArenaError,
    ClusterError,
    InvalidJob,
    NotFound,
    TimedOut,
)
from arena_topo.job import MPIJob
from arena_topo.manifests import ApiVersion, Manifest, Plan, transition
from arena_topo.manifests.values import INCOMPLETE, STATE
from arena_topo.solver import Placement, Unplaceable, Verdict
from arena_topo.topology import Cluster
from arena_topo.workflow import gathering, shape
from arena_topo.workflow.gathering import Fate
from arena_topo.workflow.planning import built, fit, placed, plan, request_of
from arena_topo.workflow.starting import UNSEEN, Decision, Outcome, Starter

Tell = Callable[[str], None]

Announce = Callable[[Sequence[str]], None]
"""Hears the names of what was created, as soon as it is."""

_SETTLE = 5.0
"""Seconds after its last worker was bound in which a gang is still watched: registries refuse
images within a second or two."""

_GONE = 30.0
"""Seconds to wait for the pods of a gang that was taken back: kubelets give them 30 s to end."""

_PATIENCE = 60.0
"""Seconds that a server may be in trouble before a gang that is gathering is left alone."""

_LOOK = 0.25
"""Seconds between two looks at a gang that is gathering."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """What `submit` did: the plan, the names of what was created, the job as it stands.

    `status` is None where the job was created but cannot be read; `unread` says why. `starter` says
    who starts a job that has to wait, `nearest` what would have let it start now. `notes` are what
    came up on the way.
    """

    plan: Plan
    created: tuple[str, ...]
    status: JobStatus | None
    unread: str | None = None
    starter: str | None = None
    nearest: str | None = None
    notes: tuple[str, ...] = ()


def submit(
    job: MPIJob,
    backend: Backend,
    *,
    namespace: str,
    api: ApiVersion | None = None,
    stay: bool = False,
    announce: Announce = lambda _: None,
    tell: Tell = lambda _: None,
) -> Submitted:
    """Plan a job and make it real; a gang that does not fit now is created waiting.

    With `stay` a gang is watched until all its workers run, else until all have their nodes.
    Unplaceable (NEVER) if it cannot fit whatever ends; AlreadyExists if the name is taken.
    """
    queue = backend.queue if job.gputopology else None
    if queue is None:
        return _applied(job, backend, namespace=namespace, api=api, announce=announce)
    return _Submission(
        job=job,
        backend=backend,
        queue=queue,
        namespace=namespace,
        api=api or backend.api_version(),
        stay=stay,
        announce=announce,
        tell=tell,
    ).submitted()


def _applied(
    job: MPIJob,
    backend: Backend,
    *,
    namespace: str,
    api: ApiVersion | None,
    announce: Announce,
) -> Submitted:
    """Submit to an engine that sees to waiting itself, or a job that is not placed."""
    cluster = backend.cluster() if job.gputopology else None
    nearest = None
    try:
        decided = plan(job, backend, namespace=namespace, api=api, cluster=cluster)
    except Unplaceable as refused:
        if refused.verdict is not Verdict.NOT_NOW or cluster is None:
            raise
        nearest = refused.nearest
        decided = built(
            job,
            backend,
            namespace=namespace,
            api=api,
            cluster=cluster,
            request=request_of(job, cluster, backend),
            waiting=refused.reason,
        )
    created = backend.apply(decided)
    announce(created)
    status, unread = _seen(backend, job.name, namespace)
    return Submitted(
        plan=decided,
        created=created,
        status=status,
        unread=unread,
        starter="It starts by itself once it can." if decided.waiting is not None else None,
        nearest=nearest,
    )


def _seen(backend: Backend, name: str, namespace: str) -> tuple[JobStatus | None, str | None]:
    """The job as it stands; else why it cannot be read."""
    try:
        return backend.job(name, namespace), None
    except ArenaError as error:
        # From here on the job exists, and whoever submitted it must hear that.
        return None, error.message


@dataclass(frozen=True, slots=True, kw_only=True)
class _Submission:
    """One gang on its way into a cluster."""

    job: MPIJob
    backend: Backend
    queue: Queue
    namespace: str
    api: ApiVersion
    stay: bool
    announce: Announce
    tell: Tell

    def submitted(self) -> Submitted:
        starter = open_starter(self.backend, self.queue)
        try:
            view = self.queue.read()
        except AccessDenied as denied:
            return self._left_waiting(denied)
        if starter.withdraw(view.jobs, view.now):
            view = self.queue.read()
        job = shape.fused(self.job, view.cluster(), self.backend, later=True)
        mine = self._newcomer(job)
        bare = self._built(job, view.cluster(), None)
        owner = suspender(bare.objects[0])
        if owner is not None:
            return self._handed_over(job, bare, owner)
        trial = transition.suspended(
            manifests.gated(manifests.unplaced(bare.objects[0])),
            Decision(cluster=view.cluster(), refused="").forecast,
            at=None,
            request=manifests.requested(job),
        )
        lacks = self.queue.lacks(bare, trial)
        if "schedulingGates" in lacks:
            starter = starter.gateless(self.namespace)
        if "suspend" in lacks:
            return self._unguarded(starter, job, mine)
        decision = starter.decide(job, mine, view)
        planned = self._built(job, decision.cluster, decision)
        stored = starter.admit(planned, decision)
        created = self._completed(stored, planned)
        outcome = (
            starter.start(job, stored, decision)
            if decision.placement is not None
            else Outcome(stored=stored, decision=decision, resumed=False)
        )
        if not outcome.resumed and INCOMPLETE in outcome.stored["metadata"]["annotations"]:
            self.queue.change(outcome.stored, transition.completed(outcome.stored))
        outcome = brought_together(
            starter, job, outcome, until=Fate.STARTED if self.stay else Fate.BOUND, tell=self.tell
        )
        if outcome.decision is not decision:
            planned = self._built(job, outcome.decision.cluster, outcome.decision)
        return self._told(planned, created, outcome)

    def _completed(self, stored: Manifest, planned: Plan) -> tuple[str, ...]:
        """Create what the job owns; the names of it all."""
        first, *others = planned.objects
        # Claims are made when the placement they speak of stands.
        others = [one for one in others if not one["kind"].startswith("ResourceClaim")]
        created = (manifests.object_name(first), *self.queue.own(stored, others))
        self.announce(created)
        return created

    def _newcomer(self, job: MPIJob) -> QueuedJob:
        """The job as the last in the queue, before it exists."""
        return QueuedJob(
            namespace=self.namespace,
            name=job.name,
            created=math.inf,
            priority=self.queue.priority(job.priority),
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

    def _built(self, job: MPIJob, cluster: Cluster, decision: Decision | None) -> Plan:
        placement = decision.placement if decision is not None else None
        return built(
            job,
            self.backend,
            namespace=self.namespace,
            api=self.api,
            cluster=cluster,
            request=request_of(job, cluster, self.backend),
            placement=placement,
            binding=decision.binding if decision is not None else None,
            waiting=None if placement is not None else (decision.refused if decision else "") or "",
        )

    def _told(self, planned: Plan, created: tuple[str, ...], outcome: Outcome) -> Submitted:
        status, unread = _seen(self.backend, self.job.name, self.namespace)
        waits = outcome.decision.placement is None
        return Submitted(
            plan=planned,
            created=created,
            status=status,
            unread=unread,
            starter=self._starter(outcome) if waits else None,
            nearest=outcome.decision.nearest,
            notes=outcome.notes,
        )

    def _starter(self, outcome: Outcome) -> str:
        """Who starts a gang that has to wait."""
        name = self.job.name
        if transition.tries_of(outcome.stored) >= MOST_TRIES:
            return f"It is not tried again before you say so: arena-topo resume {name}"
        if self.queue.watched():
            return "The controller starts it once it can."
        return (
            "It waits suspended and holds nothing. Nobody starts it by itself here (no controller):"
            f" arena-topo resume {name} starts it when it fits."
        )

    def _left_waiting(self, denied: AccessDenied) -> Submitted:
        """Leave a gang to the controller, for somebody who may not see the cluster."""
        cluster = self.backend.cluster()
        if not self.queue.watched():
            raise denied
        # Whether it can fit at all can be seen from what the controller publishes.
        try:
            placed(self.job, request_of(self.job, cluster, self.backend), cluster)
        except Unplaceable as refused:
            if refused.verdict is not Verdict.NOT_NOW:
                raise
        decision = Decision(cluster=cluster, refused=UNSEEN)
        planned = self._built(self.job, cluster, decision)
        owner = suspender(planned.objects[0])
        if owner is not None:
            return self._handed_over(self.job, planned, owner)
        starter = open_starter(self.backend, self.queue)
        stored = starter.admit(planned, decision)
        created = self._completed(stored, planned)
        outcome = Outcome(stored=stored, decision=decision, resumed=False)
        return self._told(planned, created, outcome)

    def _handed_over(self, job: MPIJob, bare: Plan, owner: str) -> Submitted:
        """Create a gang that another queue starts: at its gates, and not placed before that."""
        waits = f"{owner} decides when it starts; then it is placed"
        planned = replace(
            bare, waiting=waits, forecast=manifests.Forecast(state="waiting", reason=waits)
        )
        form = transition.handed_over(
            manifests.gated(manifests.unplaced(bare.objects[0]), kept=("NoSchedule",)),
            manifests.Forecast(state="waiting", reason=waits),
            request=manifests.requested(job),
            suspend=job.queue,
        )
        stored = self.queue.create(planned, form)
        created = self._completed(stored, planned)
        status, unread = _seen(self.backend, job.name, self.namespace)
        places = (
            "the controller places it then."
            if self.queue.watched()
            else f"its workers then wait at their gates until: arena-topo resume {job.name}"
        )
        return Submitted(
            plan=planned,
            created=created,
            status=status,
            unread=unread,
            starter=f"{owner} starts it; {places}",
        )

    def _unguarded(self, starter: Starter, job: MPIJob, mine: QueuedJob) -> Submitted:
        """Create a gang where no operator can let it wait."""

        def build(decision: Decision) -> Plan:
            if decision.placement is None:
                raise Unplaceable(
                    decision.refused or "it does not fit now",
                    verdict=Verdict.NOT_NOW,
                    refusals=(),
                    nearest=f"{decision.nearest or 'submit again later'} (MPIJob {self.api} cannot"
                    " wait)",
                )
            return self._built(job, decision.cluster, decision)

        planned, outcome = starter.unguarded(job, mine, build)
        created = self._completed(outcome.stored, planned)
        status, unread = _seen(self.backend, job.name, self.namespace)
        note = (
            f"MPIJob {self.api} of this cluster cannot be suspended: the gang starts at once, and"
            " is not taken back if it cannot complete"
        )
        return Submitted(plan=planned, created=created, status=status, unread=unread, notes=(note,))


def open_starter(backend: Backend, queue: Queue) -> Starter:
    """Whoever starts gangs on an engine."""

    def place(job: MPIJob, cluster: Cluster) -> Placement:
        return placed(job, request_of(job, cluster, backend), cluster)

    return Starter(queue=queue, place=place, fit=fit)


def brought_together(
    starter: Starter, job: MPIJob, outcome: Outcome, *, until: Fate, tell: Tell
) -> Outcome:
    """Watch a resumed gang until all its workers have their nodes, or run; else take it back.

    A gang that is taken back is solved and started again, at most three times in all; then it
    waits with the reason.
    """
    queue = starter.queue
    while outcome.resumed:
        try:
            trouble = _trouble(queue, job, outcome.stored, until=until)
        except (AccessDenied, ClusterError) as blind:
            note = f"{blind.message}: nobody sees whether all workers come together"
            return replace(outcome, notes=(*outcome.notes, note))
        except TimedOut as late:
            raise TimedOut(
                f"whether all workers of {job.name} come together was not seen in time",
                why=late.message,
                hint=f"it goes on: arena-topo get {job.name}",
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
    starter: Starter, job: MPIJob, outcome: Outcome, trouble: str, tell: Tell
) -> Outcome:
    """Suspend a gang that cannot complete, whole, and start it again unless it was tried enough."""
    queue, stored = starter.queue, outcome.stored
    tries = transition.tries_of(stored) + 1
    patch = transition.taking_back(stored, manifests.unplaced(stored), trouble, tries)
    back = queue.change(stored, patch)
    if back is None:
        return starter.elsewhere(stored, outcome.decision)
    tell(f"{trouble}: the gang was taken back whole (try {tries} of {MOST_TRIES})")
    _left(starter, back)
    if tries >= MOST_TRIES:
        refused = replace(outcome.decision, placement=None, binding=None, refused=trouble)
        return replace(outcome, stored=back, decision=refused, resumed=False)
    return starter.start(job, back, None)


def _left(starter: Starter, stored: Manifest) -> None:
    """Wait until the pods of a gang have let go of their GPUs, within reason."""
    end = time.monotonic() + _GONE
    while time.monotonic() < end and starter.haunted(stored):
        time.sleep(_LOOK)


def _trouble(queue: Queue, job: MPIJob, stored: Manifest, *, until: Fate) -> str | None:
    """Why a gang cannot come together; None once it has, or there is no more to wait for.

    Workers at their gates are sent on their way.
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
        warnings = queue.warnings(stored) if len(pods) <= count else []
        seen = gathering.standing(stored, pods, warnings, now=queue.now(), since=since)
        now = time.monotonic()
        if seen.fate is Fate.BROKEN:
            return seen.reason or "it cannot complete"
        if seen.fate is Fate.STARTED:
            return None
        if seen.fate is Fate.BOUND:
            bound_at = bound_at or now
            # Once a worker runs, its image can be had; that of the others is the same.
            if until is Fate.BOUND and (seen.running or now - bound_at > _SETTLE):
                return None
        if patience.lost(seen, pulling=gathering.pulls(pods), now=now):
            limit = str(job.gang_timeout)
            return f"nothing moved for {limit}: {seen.reason}"
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


def resume(
    backend: Backend, name: str, namespace: str, *, stay: bool = False, tell: Tell = lambda _: None
) -> Outcome:
    """Start a gang that waits or was held, if it fits; finish one that was left half-started.

    InvalidJob for a job that somebody else suspends, or that is no gang of arena-topo; Unplaceable
    if it can never fit.
    """
    queue, stored = _queue_of(backend, name, namespace)
    mine = queued(stored, {})
    if mine is None:
        raise InvalidJob(
            f"there is nothing to resume about {name}",
            why="it is over, or was not submitted with --gputopology",
        )
    if mine.incomplete:
        raise InvalidJob(
            f"{name} was not created completely",
            why="whoever submitted it was stopped before its files were there",
            hint=f"arena-topo delete {name}, and submit it again",
        )
    starter = open_starter(backend, queue)
    job = manifests.job_of(stored)
    if mine.suspender is not None:
        if mine.suspended:
            raise InvalidJob(
                f"{mine.suspender} decides when {name} starts",
                why=f"it was submitted to a queue of {mine.suspender}",
                hint=f"ask it why: arena-topo why {name}",
            )
        outcome = _begun(stored) if _seated(queue, stored) else starter.admitted(job, stored)
    elif not mine.suspended:
        outcome = _begun(stored)
    else:
        view = queue.read()
        starter.withdraw([one for one in view.jobs if one.key != mine.key], view.now)
        _left(starter, stored)
        if starter.haunted(stored):
            return starter.haunting(stored)
        released = queue.change(stored, transition.releasing(stored))
        if released is None:
            released = queue.get(namespace, name)
        if released is None:
            raise NotFound(f"Not found training job {name} in namespace {namespace}")
        outcome = starter.start(job, released, None)
    until = Fate.STARTED if stay else Fate.BOUND
    return brought_together(starter, job, outcome, until=until, tell=tell)


def _begun(stored: Manifest) -> Outcome:
    """A job that was resumed before, by its record."""
    return Outcome(stored=stored, decision=Decision(cluster=Cluster(nodes=())), resumed=True)


def _seated(queue: Queue, stored: Manifest) -> bool:
    """Whether some worker has its node already: then the others go where that record says."""
    return any(
        pod["spec"].get("nodeName")
        and not is_launcher(pod)
        and not pod["metadata"].get("deletionTimestamp")
        for pod in queue.pods(stored)
    )


def suspend(backend: Backend, name: str, namespace: str) -> Manifest:
    """Stop a job until somebody resumes it: its pods end, its GPUs are free for others.

    InvalidJob for one that somebody else suspends, or that is over.
    """
    queue, stored = _queue_of(backend, name, namespace)
    owner = suspender(stored)
    if owner is not None:
        raise InvalidJob(
            f"{owner} decides when {name} runs",
            why=f"it was submitted to a queue of {owner}",
        )
    for _ in range(10):
        if queued(stored, {}) is None:
            raise InvalidJob(
                f"{name} cannot be suspended",
                why="it is over, or was not submitted with --gputopology",
                hint=f"end it with: arena-topo delete {name}",
            )
        if stored["metadata"]["annotations"][STATE] == "held":
            return stored
        held = queue.change(stored, transition.holding(stored, manifests.unplaced(stored)))
        if held is not None:
            return held
        found = queue.get(namespace, name)
        if found is None:
            raise NotFound(f"Not found training job {name} in namespace {namespace}")
        stored = found
    raise ArenaError(f"{name} changes faster than it can be suspended", hint="try again")


def replan(
    backend: Backend,
    name: str,
    namespace: str,
    *,
    reason: str = "placed anew on request",
    stay: bool = False,
    tell: Tell = lambda _: None,
) -> Outcome:
    """Take a running gang back whole and start it on the best GPUs there are now.

    InvalidJob for one that does not run, or whose start is somebody else's to decide.
    """
    queue, stored = _queue_of(backend, name, namespace)
    mine = queued(stored, {})
    if mine is None or mine.suspender is not None:
        owner = None if mine is None else mine.suspender
        raise InvalidJob(
            f"{name} cannot be placed anew",
            why=f"{owner} decides when it runs"
            if owner
            else "it is over, or was not submitted with --gputopology",
        )
    starter = open_starter(backend, queue)
    job = manifests.job_of(stored)
    if mine.suspended:
        return resume(backend, name, namespace, stay=stay, tell=tell)
    patch = transition.taking_back(stored, manifests.unplaced(stored), reason, mine.tries)
    back = queue.change(stored, patch)
    if back is None:
        raise ArenaError(f"{name} was changed by somebody else meanwhile", hint="try again")
    tell(f"{reason}: the gang was taken back whole")
    _left(starter, back)
    outcome = starter.start(job, back, None)
    until = Fate.STARTED if stay else Fate.BOUND
    return brought_together(starter, job, outcome, until=until, tell=tell)


def _queue_of(backend: Backend, name: str, namespace: str) -> tuple[Queue, Manifest]:
    queue = backend.queue
    if queue is None or queue.api_version() is ApiVersion.V1ALPHA1:
        raise InvalidJob(
            "jobs of this engine cannot be suspended or resumed",
            why="the local engine starts what waits by itself"
            if queue is None
            else "MPIJob v1alpha1 knows no suspension",
        )
    stored = queue.get(namespace, name)
    if stored is None:
        raise NotFound(f"Not found training job {name} in namespace {namespace}")
    return queue, stored
