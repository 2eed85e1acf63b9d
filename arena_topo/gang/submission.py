"""`submit` and its like: gangs are created, started, stopped, and placed again.

What a job needs is decided in `planning`, who gets which GPUs in `starting`, and whether a gang
came together in `gathering`; here are the verbs that people know.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from arena_topo.clusters.queues import suspended, suspender
from arena_topo.clusters.usage import job_over
from arena_topo.engines import Backend, JobStatus, Pausing
from arena_topo.engines.kubernetes.mpijob import is_launcher
from arena_topo.engines.kubernetes.queued import MOST_TRIES, QueuedJob, queued
from arena_topo.engines.waiting import command
from arena_topo.errors import (
    AccessDenied,
    ArenaError,
    InvalidJob,
    NotFound,
    NotPossible,
)
from arena_topo.gang import comparison, fairness, gathering, ordinary, shape
from arena_topo.gang.assembling import Tell, brought_together, left
from arena_topo.gang.gathering import Fate
from arena_topo.gang.planning import built, check_preferred, fit, placed, plan, request_of
from arena_topo.gang.starting import Decision, Outcome, Starter, left_behind
from arena_topo.job import MPIJob
from arena_topo.manifests import INCOMPLETE, STATE, Forecast, Manifest, Plan, patches, pinning
from arena_topo.manifests.annotations import job_of, requested
from arena_topo.manifests.cause import CauseCode, because
from arena_topo.manifests.serialize import object_name
from arena_topo.manifests.versions import ApiVersion
from arena_topo.solver import Placement, Unplaceable, Verdict
from arena_topo.topology import Cluster

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.queue import Queue

Announce = Callable[[Sequence[str]], None]
"""Hears the names of what was created, as soon as it is."""

_AGAIN = 3.0
"""Seconds between two looks whether a gang that waits can be started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """What `submit` did: the plan, the names of what was created, the job as it stands.

    `status` is None where the job was created but cannot be read; `unread` says why. `starter` says
    who starts a job that has to wait, `nearest` what would have let it start now. `notes` are what
    came up on the way, `advice` what would give the pods more.
    """

    plan: Plan
    created: tuple[str, ...]
    status: JobStatus | None
    unread: str | None = None
    starter: str | None = None
    nearest: str | None = None
    notes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """What was created and how it stands, for a prompt."""
        stands = self.status if self.status is not None else self.unread
        return f"<Submitted {', '.join(self.created) or 'nothing new'}: {stands}>"


def submit(
    job: MPIJob,
    backend: Backend,
    *,
    namespace: str,
    api: ApiVersion | None = None,
    stay: bool = False,
    limit: float | None = None,
    announce: Announce = lambda _: None,
    tell: Tell = lambda _: None,
    sees: Tell = lambda _: None,
) -> Submitted:
    """Plan a job and make it real; a gang that does not fit now is created waiting.

    A gang is watched until all its workers have their nodes. With `stay` it is watched until all
    run, for at most `limit` seconds, and one that waits is started as soon as it fits. `tell` hears
    what happens, `sees` at every look what there is still to wait for.
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
        end=None if limit is None else time.monotonic() + limit,
        announce=announce,
        tell=tell,
        sees=sees,
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
            request=request_of(job, cluster, backend, api=api),
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
        advice=comparison.advised(decided, cluster) if cluster is not None else (),
    )


def _seen(backend: Backend, name: str, namespace: str) -> tuple[JobStatus | None, str | None]:
    """The job as it stands; else why it cannot be read."""
    try:
        return backend.job(name, namespace), None
    except ArenaError as error:
        # From here on the job exists, and whoever submitted it must hear that.
        return None, error.message


def existing(
    job: MPIJob, backend: Backend, namespace: str, *, api: ApiVersion | None = None
) -> Submitted:
    """A job that was there already, with the very same request; nothing was created of it."""
    status, unread = _seen(backend, job.name, namespace)
    same = built(job, backend, namespace=namespace, api=api, cluster=None)
    return Submitted(plan=same, created=(), status=status, unread=unread)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Submission:
    """One gang on its way into a cluster."""

    job: MPIJob
    backend: Backend
    queue: Queue
    namespace: str
    api: ApiVersion
    stay: bool
    end: float | None
    announce: Announce
    tell: Tell
    sees: Tell

    def submitted(self) -> Submitted:
        starter = open_starter(self.backend, self.queue)
        try:
            view = self.queue.read()
        except AccessDenied as denied:
            return self._left_waiting(denied)
        if starter.withdraw(view.jobs, view.now):
            view = self.queue.read()
        check_preferred(self.job, view.cluster(), self.backend)
        job = shape.shaped(self.job, view.cluster(), self.backend, api=self.api, later=True)
        priority = self.queue.priority(job.priority)
        mine = fairness.newcomer(job, namespace=self.namespace, priority=priority)
        bare = self._built(job, view.cluster(), None)
        owner = suspender(bare.objects[0])
        if owner is not None:
            return self._handed_over(job, bare, owner)
        trial = patches.suspended(
            pinning.gated(pinning.unplaced(bare.objects[0])),
            Decision(cluster=view.cluster()).forecast,
            at=None,
            request=requested(job),
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
        with left_behind(job.name, self.namespace):
            outcome = self._started(starter, job, stored, decision)
        if outcome.decision is not decision:
            planned = self._built(job, outcome.decision.cluster, outcome.decision)
        return self._told(planned, created, outcome)

    def _started(
        self, starter: Starter, job: MPIJob, stored: Manifest, decision: Decision
    ) -> Outcome:
        """Start a gang that was created, and stay with it as long as this command is to."""
        outcome = (
            starter.start(job, stored, decision)
            if decision.placement is not None
            else Outcome(stored=stored, decision=decision, resumed=False)
        )
        if not outcome.resumed:
            marked_whole(self.queue, outcome.stored)
        until = Fate.STARTED if self.stay else Fate.BOUND
        while True:
            outcome = brought_together(
                starter, job, outcome, until=until, tell=self.tell, sees=self.sees, end=self.end
            )
            if outcome.resumed or not self.stay:
                break
            found = self._awaited(starter, job, outcome)
            if found is None:
                break
            outcome = found
        return outcome

    def _awaited(self, starter: Starter, job: MPIJob, outcome: Outcome) -> Outcome | None:
        """Stay until a gang that waits can be started; None if it is not for this command to do."""
        if patches.tries_of(outcome.stored) >= MOST_TRIES or self.queue.watched():
            return None
        self.tell(f"{job.name} waits: {outcome.decision.refused}; it is started once it fits")
        meta = outcome.stored["metadata"]
        while self.end is None or time.monotonic() < self.end:
            time.sleep(_AGAIN)
            stored = self.queue.get(meta["namespace"], meta["name"])
            mine = None if stored is None else queued(stored, {})
            if stored is None or mine is None or not fairness.waits(mine):
                return None
            view = self.queue.read()
            mine = view.job(*mine.key) or mine
            if starter.decide(job, mine, view).placement is not None:
                started = starter.start(job, stored, None)
                if started.resumed:
                    return started
        return None

    def _completed(self, stored: Manifest, planned: Plan) -> tuple[str, ...]:
        """Create what the job owns; the names of it all."""
        first, *others = planned.objects
        # Claims are made when the placement they speak of stands.
        others = [one for one in others if not one["kind"].startswith("ResourceClaim")]
        created = (object_name(first), *self.queue.own(stored, others))
        self.announce(created)
        return created

    def _built(self, job: MPIJob, cluster: Cluster, decision: Decision | None) -> Plan:
        placement = decision.placement if decision is not None else None
        return built(
            job,
            self.backend,
            namespace=self.namespace,
            api=self.api,
            cluster=cluster,
            request=request_of(job, cluster, self.backend, api=self.api),
            placement=placement,
            binding=decision.binding if decision is not None else None,
            waiting=None
            if placement is not None
            else str(decision.refused or "")
            if decision
            else "",
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
            advice=() if waits else comparison.advised(planned, outcome.decision.cluster),
        )

    def _starter(self, outcome: Outcome) -> str:
        """Who starts a gang that has to wait."""
        name = self.job.name
        if patches.tries_of(outcome.stored) >= MOST_TRIES:
            return f"It is not tried again by itself: arena-topo resume {name}"
        if self.queue.watched():
            return "The controller starts it once it can."
        if self.stay and (self.end is None or time.monotonic() < self.end):
            return "This command starts it once it can."
        return (
            "The job waits and holds no GPUs. No controller runs here; start it once it fits:"
            f" arena-topo resume {name}"
        )

    def _left_waiting(self, denied: AccessDenied) -> Submitted:
        """Leave a gang to the controller, for somebody who may not see the cluster."""
        cluster = self.backend.cluster()
        if not self.queue.watched():
            raise denied
        # Whether it can fit at all can be seen from what the controller publishes.
        check_preferred(self.job, cluster, self.backend)
        job = shape.shaped(self.job, cluster, self.backend, api=self.api, later=True)
        try:
            placed(job, request_of(job, cluster, self.backend, api=self.api), cluster)
        except Unplaceable as refused:
            if refused.verdict is not Verdict.NOT_NOW:
                raise
        decision = Decision(cluster=cluster, refused=because(CauseCode.JOBS_HIDDEN))
        planned = self._built(job, cluster, decision)
        owner = suspender(planned.objects[0])
        if owner is not None:
            return self._handed_over(job, planned, owner)
        starter = open_starter(self.backend, self.queue)
        stored = starter.admit(planned, decision)
        created = self._completed(stored, planned)
        with left_behind(job.name, self.namespace):
            stored = marked_whole(self.queue, stored)
        outcome = Outcome(stored=stored, decision=decision, resumed=False)
        return self._told(planned, created, outcome)

    def _handed_over(self, job: MPIJob, bare: Plan, owner: str) -> Submitted:
        """Create a gang that another queue starts: at its gates, and not placed before that."""
        claims = self.queue.mechanisms(self.namespace).claims
        if claims is False and pinning.claims_gpus(bare.objects[0]):
            raise InvalidJob(
                f"{owner} cannot start {job.name} on nodes whose GPUs are claimed",
                why="its workers would need a claim each, and no policy gives them one",
                hint="ask an administrator for: arena-topo install",
            )
        waits = Forecast(state="waiting", cause=because(CauseCode.OTHER_QUEUE, queue=owner))
        planned = replace(bare, waiting=waits.reason, forecast=waits)
        form = patches.handed_over(
            pinning.gated(pinning.unplaced(bare.objects[0]), effects=("NoSchedule",)),
            waits,
            request=requested(job),
            suspend=job.queue,
        )
        stored = self.queue.create(planned, form)
        created = self._completed(stored, planned)
        watched = self.queue.watched()
        if self.stay and not watched:
            self.tell(f"{owner} decides when {job.name} starts; this command places it then")
            with left_behind(job.name, self.namespace):
                outcome = self._admitted(job)
            if outcome is not None:
                return self._told(
                    self._built(job, outcome.decision.cluster, outcome.decision), created, outcome
                )
        status, unread = _seen(self.backend, job.name, self.namespace)
        places = (
            "the controller places it then."
            if watched
            else f"its workers then wait at their gates until: arena-topo resume {job.name}"
        )
        return Submitted(
            plan=planned,
            created=created,
            status=status,
            unread=unread,
            starter=f"{owner} starts it; {places}",
        )

    def _admitted(self, job: MPIJob) -> Outcome | None:
        """Stay until a gang was started by its queue, and place it; None if that takes too long."""
        starter = open_starter(self.backend, self.queue)
        while self.end is None or time.monotonic() < self.end:
            time.sleep(_AGAIN)
            found = self.queue.get(self.namespace, job.name)
            mine = None if found is None else queued(found, {})
            if found is None or mine is None:
                return None
            if mine.suspended or not gathering.gated(self.queue.pods(found)):
                continue
            outcome = starter.admitted(job_of(found), found)
            if outcome.resumed and outcome.decision.placement is not None:
                until = Fate.STARTED
                return brought_together(
                    starter, job, outcome, until=until, tell=self.tell, sees=self.sees, end=self.end
                )
        return None

    def _unguarded(self, starter: Starter, job: MPIJob, mine: QueuedJob) -> Submitted:
        """Create a gang where no operator can let it wait."""

        def build(decision: Decision) -> Plan:
            if decision.placement is None:
                raise Unplaceable(
                    str(decision.refused or "it does not fit now"),
                    verdict=Verdict.NOT_NOW,
                    refusals=(),
                    nearest=f"{decision.nearest or 'submit again later'} (MPIJob {self.api} cannot"
                    " wait)",
                )
            return self._built(job, decision.cluster, decision)

        planned, outcome = starter.unguarded(job, mine, build)
        claims = [one for one in planned.objects if one["kind"].startswith("ResourceClaim")]
        if claims:
            with left_behind(job.name, self.namespace):
                self.queue.renew(outcome.stored, claims)
        created = self._completed(outcome.stored, planned)
        status, unread = _seen(self.backend, job.name, self.namespace)
        note = (
            f"MPIJob {self.api} of this cluster cannot be suspended: the gang starts at once, and"
            " is not taken back if it cannot complete"
        )
        return Submitted(plan=planned, created=created, status=status, unread=unread, notes=(note,))


def marked_whole(queue: Queue, stored: Manifest) -> Manifest:
    """A job on which it stands that all is there that it owns, so that anybody may start it."""
    if INCOMPLETE not in stored["metadata"]["annotations"]:
        return stored
    return queue.change(stored, patches.completed(stored)) or stored


def open_starter(backend: Backend, queue: Queue) -> Starter:
    """Whoever starts gangs on an engine."""

    def place(job: MPIJob, cluster: Cluster) -> Placement:
        return placed(job, request_of(job, cluster, backend), cluster)

    return Starter(queue=queue, place=place, fit=fit)


def resume(
    backend: Backend,
    name: str,
    namespace: str,
    *,
    stay: bool = False,
    tell: Tell = lambda _: None,
    sees: Tell = lambda _: None,
) -> Outcome:
    """Start a gang that waits or was held, if it fits; finish one that was left half-started.

    A job that arena-topo does not place goes on as it is; a note says so of one that was not held.

    `tell` hears what happens, `sees` at every look what there is still to wait for.
    NotPossible for a job that somebody else suspends, or that is over; Unplaceable if it can never
    fit.
    """
    if backend.pausing is not None:
        held = backend.pausing.resume(name, namespace)
        return ordinary.resumed(backend, name, namespace, held=held, stay=stay, sees=sees)
    queue, stored = _queue_of(backend, name, namespace)
    mine = queued(stored, {})
    if mine is None:
        why = _out_of_queue(backend, stored)
        if why is None:
            held = ordinary.resume(queue, stored)
            return ordinary.resumed(backend, name, namespace, held=held, stay=stay, sees=sees)
        raise NotPossible(
            f"there is nothing to resume about {name}",
            why=why,
            hint=f"{ordinary.delete(stored)}, and submit it again",
        )
    if mine.incomplete:
        if missing := queue.missing(stored):
            raise NotPossible(
                f"{name} was not created completely",
                why=f"whoever submitted it was stopped before its files were there: no"
                f" {' and no '.join(f'configmap {one}' for one in missing)}",
                hint=f"{ordinary.delete(stored)}, and submit it again",
            )
        stored = marked_whole(queue, stored)
    starter = open_starter(backend, queue)
    job = job_of(stored)
    if mine.suspender is not None:
        if mine.suspended:
            raise ordinary.not_ours(stored, mine.suspender, "starts")
        outcome = _begun(stored) if _seated(queue, stored) else starter.admitted(job, stored)
    elif not mine.suspended:
        outcome = _begun(stored)
    else:
        view = queue.read()
        starter.withdraw([one for one in view.jobs if one.key != mine.key], view.now)
        left(starter, stored)
        if starter.haunted(stored):
            return starter.haunting(stored)
        released = queue.change(stored, patches.releasing(stored))
        if released is None:
            released = queue.get(namespace, name)
        if released is None:
            raise NotFound(f"Not found training job {name} in namespace {namespace}")
        outcome = starter.start(job, released, None)
    until = Fate.STARTED if stay else Fate.BOUND
    return brought_together(starter, job, outcome, until=until, tell=tell, sees=sees)


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


def suspend(backend: Backend, name: str, namespace: str) -> None:
    """Stop a job until somebody resumes it: its pods end, its GPUs are free for others.

    NotPossible for one that somebody else suspends, or that is over.
    """
    if backend.pausing is not None:
        backend.pausing.suspend(name, namespace)
        return
    queue, stored = _queue_of(backend, name, namespace)
    owner = suspender(stored)
    if owner is not None:
        raise ordinary.not_ours(stored, owner, "runs")
    for _ in range(10):
        mine = queued(stored, {})
        why = _out_of_queue(backend, stored) if mine is None else None
        if why is not None:
            raise NotPossible(
                f"{name} cannot be suspended",
                why=why,
                hint=f"{ordinary.delete(stored)} removes it",
            )
        if mine.state == "held" if mine is not None else suspended(stored):
            return
        patch = (
            patches.stopping(stored)
            if mine is None
            else patches.holding(stored, pinning.unplaced(stored))
        )
        held = queue.change(stored, patch)
        if held is not None:
            _suspended(held)
            return
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
    stay: bool = False,
    tell: Tell = lambda _: None,
    sees: Tell = lambda _: None,
) -> Outcome:
    """Take a running gang back whole and start it on the best GPUs there are now.

    NotPossible for one that does not run, or whose start is somebody else's to decide.
    """
    if backend.pausing is not None:
        return _replanned(backend, backend.pausing, name, namespace, stay=stay, sees=sees)
    queue, stored = _queue_of(backend, name, namespace)
    mine = queued(stored, {})
    if mine is None or mine.suspender is not None:
        owner = None if mine is None else mine.suspender
        why = f"{owner} decides when it runs" if owner else _out_of_queue(backend, stored)
        verbs = " and ".join(f"arena-topo {verb} {name}" for verb in ("suspend", "resume"))
        raise NotPossible(
            f"{name} cannot be placed anew",
            why=why or "it was not submitted with --gputopology",
            hint=f"{ordinary.delete(stored)}, and submit it again"
            if why
            else f"{verbs} start it again",
        )
    starter = open_starter(backend, queue)
    job = job_of(stored)
    if mine.suspended:
        return resume(backend, name, namespace, stay=stay, tell=tell, sees=sees)
    cause = because(CauseCode.REPLANNED)
    patch = patches.taking_back(stored, pinning.unplaced(stored), cause, mine.tries)
    back = queue.change(stored, patch)
    if back is None:
        raise ArenaError(f"{name} was changed by somebody else meanwhile", hint="try again")
    _suspended(back)
    tell(f"{cause}: the gang was taken back whole")
    left(starter, back)
    outcome = starter.start(job, back, None)
    until = Fate.STARTED if stay else Fate.BOUND
    return brought_together(starter, job, outcome, until=until, tell=tell, sees=sees)


def _replanned(
    backend: Backend, pausing: Pausing, name: str, namespace: str, *, stay: bool, sees: Tell
) -> Outcome:
    """The same on an engine without a queue, which places each job that it resumes anew."""
    phase = backend.job(name, namespace).phase
    if phase.over:
        raise NotPossible(
            f"{name} cannot be placed anew",
            why=f"it has {phase}",
            hint=f"{command('delete', name, namespace=namespace)}, and submit it again",
        )
    pausing.suspend(name, namespace)
    pausing.resume(name, namespace)
    return ordinary.resumed(backend, name, namespace, held=True, stay=stay, sees=sees)


def _suspended(stored: Manifest) -> Manifest:
    """A job that was just suspended; ArenaError if its operator's CRD knows no suspension."""
    if not suspended(stored):
        raise ArenaError(
            f"{stored['metadata']['name']} cannot be suspended, and runs on",
            why="the MPIJob of this cluster's operator knows no suspension",
            hint=f"end it with: {ordinary.delete(stored)}",
        )
    return stored


def tend(backend: Backend, name: str, namespace: str) -> None:
    """Send workers of a running gang that were created again to their places from the gate."""
    queue = backend.queue
    stored = queue.get(namespace, name) if queue is not None else None
    if queue is None or stored is None or queued(stored, {}) is None:
        return
    for pod, patch in gathering.worker_places(stored, queue.pods(stored)):
        queue.bind(pod, patch)


def _out_of_queue(backend: Backend, stored: Manifest) -> str | None:
    """Why a job is not for the queue (`queued` is None) nor ordinary: it is over, or broken."""
    meta = stored["metadata"]
    if meta.get("deletionTimestamp"):
        return "it is being deleted"
    if STATE not in (meta.get("annotations") or {}) and not job_over(stored):
        return None
    phase = backend.job(meta["name"], meta["namespace"]).phase
    return f"it has {phase}" if phase.over else "what is recorded of it cannot be read"


def _queue_of(backend: Backend, name: str, namespace: str) -> tuple[Queue, Manifest]:
    queue = backend.queue
    if queue is None or not queue.api_version().traits.suspends:
        raise NotPossible(
            "jobs of this engine cannot be suspended or resumed",
            why="the local engine knows no queue"
            if queue is None
            else f"MPIJob {queue.api_version()} knows no suspension",
            hint=f"arena-topo delete {name} -n {namespace} ends it; submit it again later",
        )
    stored = queue.get(namespace, name)
    if stored is None:
        raise NotFound(f"Not found training job {name} in namespace {namespace}")
    return queue, stored
