"""The verbs of a gang: `submit`, `suspend`, `resume`, `replan`, and waiting for its end.

`planning` decides what a job needs, `protocol` which gang gets which GPUs, and `rollout` whether
all workers of a gang started. Jobs that arena-topo does not place have no record and no place in
the queue: only their `runPolicy.suspend` counts, which the operators of MPIJob v1 and v2beta1 obey.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from arena_topo.clusters.queues import KUBE_QUEUE_NAME, KUEUE, suspended, suspender
from arena_topo.clusters.usage import job_over, pod_over
from arena_topo.engines import Backend, JobStatus, Phase, waiting
from arena_topo.engines.kubernetes.queued import MOST_TRIES, QueuedJob, Snapshot, queued
from arena_topo.engines.looking import looks
from arena_topo.engines.waiting import command
from arena_topo.errors import (
    AccessDenied,
    AlreadyExists,
    ArenaError,
    ClusterError,
    InvalidJob,
    JobDeleted,
    JobNotFound,
    NotFound,
    NotNow,
    NotPossible,
)
from arena_topo.gang import Exists, Watcher, comparison, existing_job, fairness, rollout
from arena_topo.gang.existing_job import Same
from arena_topo.gang.planning import Decision, as_pods, built, placed, to_create
from arena_topo.gang.protocol import Outcome, Starter, left_behind
from arena_topo.gang.request import Site, request_of
from arena_topo.gang.rollout import wait_for_old_pods, wait_until_placed
from arena_topo.job import MPIJob
from arena_topo.manifests import INCOMPLETE, STATE, Forecast, Manifest, Plan, patches, pinning
from arena_topo.manifests.cause import CauseCode, because
from arena_topo.manifests.requests import job_of, requested
from arena_topo.manifests.serialize import object_name
from arena_topo.manifests.versions import ApiVersion
from arena_topo.solver import Unplaceable, Verdict
from arena_topo.topology import Cluster

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.queue import Queue

Announce = Callable[[Sequence[str]], None]
"""A callback with the names of the created objects, called as soon as they exist."""

_AGAIN = 3.0
"""Seconds between two checks of whether a waiting gang can start."""

_TRIES = 10
"""How often a patch is retried on a job that others change at the same time."""

_UNHEARD = Watcher()


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The result of `submit`: the plan, the names of the created objects, the status of the job.

    `status` is None if the job was created but cannot be read; `unread` is the reason. `found` are
    the objects of an existing job with the same request: nothing was created; `resumed`: that job
    was started now. `starter` says what will start a waiting job, `nearest` which change would have
    let it start now. `notes` are remarks on the submission, `advice` names what would give the pods
    more bandwidth.
    """

    plan: Plan
    created: tuple[str, ...]
    status: JobStatus | None
    unread: str | None = None
    found: tuple[Manifest, ...] = ()
    resumed: bool = False
    starter: str | None = None
    nearest: str | None = None
    notes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """The created objects and the status of the job, for a prompt."""
        stands = self.status if self.status is not None else self.unread
        return f"<Submitted {', '.join(self.created) or 'nothing new'}: {stands}>"


def _submitted(site: Site, plan: Plan, created: tuple[str, ...], **more: Any) -> Submitted:
    """The result with the status of the job, or the reason why the status cannot be read."""
    status, unread = None, None
    try:
        status = site.engine.job(plan.job.name, plan.namespace)
    except ArenaError as error:
        # The job exists now, and the submitter must get that result in any case.
        unread = error.message
    return Submitted(plan=plan, created=created, status=status, unread=unread, **more)


def submit(
    job: MPIJob,
    backend: Backend,
    *,
    namespace: str,
    api: ApiVersion | None = None,
    exists: Exists = Exists.FAIL,
    watcher: Watcher = _UNHEARD,
    announce: Announce = lambda _: None,
) -> Submitted:
    """Plan a job and create it; a gang that does not fit now is created waiting.

    A gang is watched until all its workers have their nodes. A watcher with `stay` waits until all
    workers run, and starts a waiting gang as soon as it fits. `exists` decides about an existing
    job of this name. Unplaceable (NEVER) if the gang cannot fit whichever jobs end; AlreadyExists
    if the name is taken.
    """
    site = Site(backend=backend, namespace=namespace, version=api)
    if exists is Exists.REPLACE:
        existing_job.make_room(job, site, watcher)
    elif exists is Exists.OK and (found := existing_job.same(job, site)) is not None:
        return _gone_on(found, site, watcher)
    queue = backend.queue if job.gputopology else None
    try:
        if queue is None:
            return _applied(job, site, announce)
        return _Submission(
            job=job,
            queue=queue,
            starter=Starter(queue=queue, site=site),
            watcher=watcher,
            announce=announce,
        ).submitted()
    except AlreadyExists:
        # Another client may have submitted the same job since the check.
        late = existing_job.same(job, site) if exists is Exists.OK else None
        if late is None:
            raise
        return _gone_on(late, site, watcher)


def _gone_on(same: Same, site: Site, watcher: Watcher) -> Submitted:
    """The existing job, started now if its submission was interrupted before its start."""
    name, resumed = same.plan.job.name, False
    if same.left:
        watcher.tell(f"{name} was left before its start; it is started now")
        with left_behind(name, site.namespace):
            outcome = resume(site.engine, name, site.namespace, replace(watcher, stay=False))
        resumed = outcome.resumed
        if not resumed:
            watcher.tell(f"{name} has to wait: {outcome.decision.refused}")
    return _submitted(site, same.plan, (), found=same.objects, resumed=resumed)


def _applied(job: MPIJob, site: Site, announce: Announce) -> Submitted:
    """Submit to an engine that queues by itself, or submit a job that is not placed."""
    plan, cluster, nearest = to_create(job, site)
    created = site.engine.apply(plan)
    announce(created)
    starter = "It starts by itself once it can." if plan.waiting is not None else None
    advice = comparison.advised(plan, cluster, site)
    return _submitted(site, plan, created, starter=starter, nearest=nearest, advice=advice)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Submission:
    """The submission of one gang to a cluster."""

    job: MPIJob
    queue: Queue
    starter: Starter
    watcher: Watcher
    announce: Announce

    @property
    def site(self) -> Site:
        return self.starter.site

    def submitted(self) -> Submitted:
        starter, site = self.starter, self.site
        view, cluster = self._seen()
        job = as_pods(self.job, cluster, site, later=True)
        bare = built(job, site, Decision(cluster=cluster))
        owner = suspender(bare.objects[0])
        if owner is not None:
            return self._handed_over(job, bare, owner)
        if view is None:
            decision = self._unseen(job, cluster)
        else:
            priority = self.queue.priority(job.priority)
            mine = fairness.newcomer(job, namespace=site.namespace, priority=priority)
            lacks = self._lacks(bare)
            if "schedulingGates" in lacks:
                starter = replace(starter, site=replace(site, gates=False))
            if "suspend" in lacks:
                return self._unsuspendable(starter, job, mine)
            decision = starter.decide(job, mine, view)
        planned = built(job, site, decision)
        stored = starter.admit(planned, decision)
        created = self._completed(stored, planned)
        with left_behind(job.name, site.namespace):
            outcome = self._started(starter, job, stored, decision)
        if outcome.decision is not decision:
            planned = built(job, site, outcome.decision)
        return self._told(starter, planned, created, outcome)

    def _seen(self) -> tuple[Snapshot | None, Cluster]:
        """All jobs and the cluster; None and the published view if the caller may not list jobs.

        In the second case the controller starts the gang; AccessDenied if there is no controller.
        """
        try:
            view = self.queue.read()
        except AccessDenied:
            cluster = self.site.engine.cluster()
            if not self.queue.watched():
                raise
            return None, cluster
        if self.starter.withdraw(view.jobs, view.now):
            view = self.queue.read()
        return view, view.cluster()

    def _unseen(self, job: MPIJob, cluster: Cluster) -> Decision:
        """The decision to wait for the controller; Unplaceable if the gang never fits its view."""
        _check_possible(job, cluster, self.site)
        return Decision(cluster=cluster, refused=because(CauseCode.JOBS_HIDDEN))

    def _lacks(self, bare: Plan) -> tuple[str, ...]:
        """The fields of a gated, suspended job that the CRD of the operator drops."""
        trial = patches.suspended(
            pinning.gated(pinning.unplaced(bare.objects[0])),
            Forecast(state="waiting"),
            at=None,
            request=requested(bare.job),
        )
        return self.queue.lacks(bare, trial)

    def _started(
        self, starter: Starter, job: MPIJob, stored: Manifest, decision: Decision
    ) -> Outcome:
        """Start a created gang, and watch it as long as the watcher asks."""
        outcome = Outcome(stored=stored, decision=decision, resumed=False)
        if decision.placement is not None:
            outcome = starter.start(job, stored, decision)
        if not outcome.resumed:
            marked_whole(self.queue, outcome.stored)
        while True:
            outcome = wait_until_placed(starter, job, outcome, self.watcher)
            if outcome.resumed or not self._starts(outcome):
                return outcome
            self.watcher.tell(
                f"{job.name} waits: {outcome.decision.refused}; it is started once it fits"
            )
            outcome = self._polled(partial(self._again, starter, job, outcome), outcome)
            if not outcome.resumed:
                return outcome

    def _starts(self, outcome: Outcome) -> bool:
        """Whether this command starts the gang, which waits."""
        given_up = patches.tries_of(outcome.stored) >= MOST_TRIES
        return self.watcher.stay and not given_up and not self.queue.watched()

    def _again(self, starter: Starter, job: MPIJob, waiting: Outcome) -> Outcome | None:
        """Start a waiting gang if it fits now; None if it waits further.

        `waiting` again if a user has suspended it. JobDeleted if it is gone.
        """
        stored = starter.current(waiting.stored)
        if stored is None or not suspended(stored):
            return starter.lost_race(waiting.stored)
        stored = marked_whole(self.queue, stored)
        mine = queued(stored, {})
        if mine is None or mine.state == "held" or mine.stopped or mine.suspender is not None:
            return waiting
        view = self.queue.read()
        mine = view.job(*mine.key) or mine
        # A record is that of another starter, or of an earlier try that was interrupted.
        starter.withdraw([mine], view.now)
        if not fairness.waits(mine) or starter.decide(job, mine, view).placement is None:
            return None
        started = starter.start(job, stored, None)
        return started if started.resumed else None

    def _polled(self, look: Callable[[], Outcome | None], otherwise: Outcome) -> Outcome:
        """The first outcome that a look has; `otherwise` at the deadline.

        A server that does not answer for a while does not end the polling.
        """
        for found in looks(look, every=_AGAIN):
            if found is not None or self.watcher.late:
                return found or otherwise
        raise AssertionError("polling does not end by itself")

    def _completed(self, stored: Manifest, planned: Plan) -> tuple[str, ...]:
        """Create the objects that the job owns; returns the names of all created objects."""
        first, *others = planned.objects
        # Claims are created when their placement is final.
        others = [one for one in others if not one["kind"].startswith("ResourceClaim")]
        created = (object_name(first), *self.queue.own(stored, others))
        self.announce(created)
        return created

    def _told(
        self, starter: Starter, planned: Plan, created: tuple[str, ...], outcome: Outcome
    ) -> Submitted:
        """The result of the submission, with the plan of the last decision."""
        decision, site = outcome.decision, starter.site
        is_placed = decision.placement is not None
        return _submitted(
            site,
            planned,
            created,
            starter=None if outcome.resumed else self._starter(outcome),
            nearest=decision.nearest,
            notes=outcome.notes,
            advice=comparison.advised(planned, decision.cluster, site) if is_placed else (),
        )

    def _starter(self, outcome: Outcome) -> str:
        """What starts a gang that has to wait, as a sentence."""
        if patches.tries_of(outcome.stored) >= MOST_TRIES:
            return f"It is not tried again until you run: arena-topo resume {self.job.name}"
        if self.queue.watched():
            return "The controller starts it once it can."
        return (
            "The job waits and uses no GPUs. No controller runs here; start it once it fits:"
            f" arena-topo resume {self.job.name}"
        )

    def _handed_over(self, job: MPIJob, bare: Plan, owner: str) -> Submitted:
        """Create a gang for another queue, which starts it: at its gates, and placed after that."""
        claims = self.queue.mechanisms(self.site.namespace).claims
        if claims is False and pinning.claims_gpus(bare.objects[0]):
            raise InvalidJob(
                f"{owner} cannot start {job.name} on nodes whose GPUs are claimed",
                why="its workers would need a claim each, and no policy gives them one",
                hint="ask an administrator for: arena-topo install",
            )
        waits = Forecast(state="waiting", cause=because(CauseCode.OTHER_QUEUE, queue=owner))
        planned = msgspec.structs.replace(bare, waiting=waits.reason, forecast=waits)
        form = patches.handed_over(
            pinning.gated(pinning.unplaced(bare.objects[0]), effects=("NoSchedule",)),
            waits,
            request=requested(job),
            suspend=job.queue,
        )
        stored = self.queue.create(planned, form)
        created = self._completed(stored, planned)
        watched = self.queue.watched()
        if self.watcher.stay and not watched:
            self.watcher.tell(
                f"{owner} decides when {job.name} starts; this command places it then"
            )
            queued_only = Outcome(stored=stored, resumed=False)
            with left_behind(job.name, self.site.namespace):
                outcome = self._polled(partial(self._admitted, queued_only), queued_only)
                outcome = wait_until_placed(self.starter, job, outcome, self.watcher)
            if outcome.resumed:
                planned = built(job, self.site, outcome.decision)
                return self._told(self.starter, planned, created, outcome)
        places = f"its workers then wait at their gates until you run: arena-topo resume {job.name}"
        if watched:
            places = "the controller places it then."
        return _submitted(self.site, planned, created, starter=f"{owner} starts it; {places}")

    def _admitted(self, waiting: Outcome) -> Outcome | None:
        """Place a gang if its queue has started it; None if the queue has not.

        `waiting` again if the gang is over. JobDeleted if it is gone.
        """
        stored = self.starter.current(waiting.stored)
        if stored is None:
            return self.starter.lost_race(waiting.stored)
        mine = queued(stored, {})
        if mine is None:
            return waiting
        pods = [] if mine.suspended else self.queue.pods(stored)
        if any(map(rollout.has_node, pods)):
            return self.starter.lost_race(stored)
        if not rollout.gated(pods):
            return None
        placed = self.starter.admitted(job_of(stored), stored)
        return placed if placed.resumed and placed.decision.placement is not None else None

    def _unsuspendable(self, starter: Starter, job: MPIJob, mine: QueuedJob) -> Submitted:
        """Create a gang whose operator cannot suspend: it runs before other jobs can be checked.

        No better protocol is possible there: the later of two conflicting gangs is deleted and
        tried again.
        """
        queue, site = self.queue, starter.site
        for _ in starter.rounds(job.name, "submit it again later: this operator lets no job wait"):
            decision = starter.decide(job, mine, queue.read())
            if decision.placement is None:
                raise Unplaceable(
                    str(decision.refused),
                    verdict=Verdict.NOT_NOW,
                    refusals=(),
                    nearest=f"{decision.nearest or 'submit again later'} (MPIJob {site.api} cannot"
                    " wait)",
                )
            planned = built(job, site, decision)
            stored = queue.create(planned, planned.objects[0])
            with left_behind(job.name, site.namespace):
                # Pods of this job may exist already.
                if starter.stands(job, stored, decision, pods=False):
                    break
            queue.remove(stored)
            left = starter.current(stored)
            if left is not None and "deletionTimestamp" not in left["metadata"]:
                raise ClusterError(
                    f"{job.name} runs on GPUs that another gang has, and could not be deleted",
                    hint=f"delete it at once: {_delete(stored)}",
                )
        with left_behind(job.name, site.namespace):
            claims = [one for one in planned.objects if one["kind"].startswith("ResourceClaim")]
            if claims:
                queue.renew(stored, claims)
        created = self._completed(stored, planned)
        note = (
            f"MPIJob {site.api} of this cluster cannot be suspended: the gang starts at once, and"
            " is not taken back if it cannot complete"
        )
        return _submitted(site, planned, created, notes=(note,))


def _check_possible(job: MPIJob, cluster: Cluster, site: Site) -> None:
    """Unplaceable (NEVER) if a cluster can never hold a gang, whatever ends."""
    try:
        placed(job, request_of(job, cluster, site), cluster)
    except Unplaceable as refused:
        if refused.verdict is not Verdict.NOT_NOW:
            raise


def marked_whole(queue: Queue, stored: Manifest) -> Manifest:
    """The job without its mark INCOMPLETE: it is complete, so any starter may start it."""
    if INCOMPLETE not in stored["metadata"]["annotations"]:
        return stored
    return queue.change(stored, patches.completed(stored)) or stored


def open_starter(backend: Backend, queue: Queue) -> Starter:
    """The starter of gangs on an engine."""
    return Starter(queue=queue, site=Site(backend=backend))


def to_the_end(
    backend: Backend,
    name: str,
    namespace: str,
    *,
    timeout: float | None = None,
    hears: waiting.Listener,
) -> JobStatus:
    """Wait until a job is over; meanwhile send its recreated workers to their nodes.

    A gang that another queue starts is placed anew each time that the queue has started it.

    JobFailed, with the launcher's exit code, if it fails; JobDeleted if it is deleted; TimedOut
    after `timeout` seconds, and the job goes on.
    """

    def tend() -> None:
        """Send recreated workers to their nodes; place a gang that its queue has started again."""
        queue = backend.queue
        stored = queue.get(namespace, name) if queue is not None else None
        mine = None if stored is None else queued(stored, {})
        if queue is None or stored is None or mine is None or mine.suspended:
            return
        pods = queue.pods(stored)
        if mine.suspender is not None and rollout.awaits_placement(mine, pods, queue.now()):
            stored = open_starter(backend, queue).admitted(job_of(stored), stored).stored
        for pod, patch in rollout.worker_places(stored, pods):
            queue.bind(pod, patch)

    try:
        status = waiting.wait(
            backend, name, namespace, timeout=timeout, hears=replace(hears, each=tend)
        )
    except NotFound:
        raise JobDeleted(f"the job {name} was deleted while it was waited for") from None
    if status.phase is Phase.FAILED:
        raise waiting.job_failed(status)
    return status


# ---------------------------------------------------------------- suspend, resume, replan


def runs(backend: Backend, name: str, namespace: str) -> bool:
    """Whether all instances of a job run; if some are pending, resuming may help."""
    try:
        status = backend.job(name, namespace)
    except AccessDenied:
        # The right to resume does not include the right to list pods.
        return False
    return status.phase is Phase.RUNNING and not any(one.pending for one in status.instances)


def check(outcome: Outcome, name: str, namespace: str) -> None:
    """Raise NotNow, with the reason and the nearest change, if the job has to wait."""
    if not outcome.resumed:
        raise NotNow(
            f"{name} has to wait",
            why=str(outcome.decision.refused),
            hint=outcome.decision.nearest or f"arena-topo why {name} -n {namespace}",
        )


def resume(backend: Backend, name: str, namespace: str, watcher: Watcher = _UNHEARD) -> Outcome:
    """Start a gang that waits or was suspended, if it fits; finish an interrupted start.

    A job that arena-topo does not place is resumed as it is, with a note if it was not suspended.
    NotPossible for a job that another system suspends, or that is over; Unplaceable if it can never
    fit.
    """
    if backend.pausing is not None:
        held = backend.pausing.resume(name, namespace)
        return _goes_on(backend, name, namespace, watcher, held=held)
    queue, stored = _queue_of(backend, name, namespace)
    mine = queued(stored, {})
    if mine is None:
        why = _out_of_queue(backend, stored)
        if why is not None:
            raise _anew(stored, f"{name} cannot be resumed", why)
        held = _changed(queue, stored, _let_go, "resumed") is not None
        return _goes_on(backend, name, namespace, watcher, held=held)
    if mine.incomplete:
        if missing := queue.missing(stored):
            lacks = " and no ".join(f"configmap {one}" for one in missing)
            why = f"its submission stopped before its files were created: no {lacks}"
            raise _anew(stored, f"{name} was not created completely", why)
        stored = marked_whole(queue, stored)
    starter, job = open_starter(backend, queue), job_of(stored)
    outcome = Outcome(stored=stored, resumed=True)
    if mine.suspender is not None:
        if mine.suspended:
            raise _not_ours(stored, mine.suspender, "starts")
        # If a worker has its node already, the others follow the same record.
        if not any(map(rollout.has_node, queue.pods(stored))):
            outcome = starter.admitted(job, stored)
    elif mine.suspended:
        view = queue.read()
        starter.withdraw([one for one in view.jobs if one.key != mine.key], view.now)
        wait_for_old_pods(starter, stored)
        released = queue.change(stored, patches.releasing(stored)) or _read(queue, name, namespace)
        outcome = starter.start(job, released, None)
    return wait_until_placed(starter, job, outcome, watcher)


def _read(queue: Queue, name: str, namespace: str) -> Manifest:
    found = queue.get(namespace, name)
    if found is None:
        raise JobNotFound(name, namespace)
    return found


def _changed(
    queue: Queue,
    stored: Manifest,
    patch_of: Callable[[Manifest], patches.Patch | None],
    verb: str,
) -> Manifest | None:
    """Patch a job, with a retry on each conflict; None if no patch is needed.

    `patch_of` returns the patch for the job as it was read, None if the job needs no change.
    ArenaError after `_TRIES` conflicts.
    """
    name, namespace = stored["metadata"]["name"], stored["metadata"]["namespace"]
    for _ in range(_TRIES):
        patch = patch_of(stored)
        if patch is None:
            return None
        changed = queue.change(stored, patch)
        if changed is not None:
            return changed
        stored = _read(queue, name, namespace)
    raise ArenaError(f"{name} changes faster than it can be {verb}", hint="try again")


def _let_go(stored: Manifest) -> patches.Patch | None:
    """The patch that resumes an ordinary job; NotPossible if a queue decides about that."""
    if not suspended(stored):
        return None
    owner = suspender(stored)
    if owner is not None:
        raise _not_ours(stored, owner, "starts")
    return patches.going(stored)


def _goes_on(
    backend: Backend, name: str, namespace: str, watcher: Watcher, *, held: bool
) -> Outcome:
    """The result of resuming a job; `held`: it was suspended before.

    A watcher with `stay` waits until all workers run, or never will.
    """
    if watcher.stay:

        def seen(status: JobStatus) -> None:
            watcher.sees(status.reason or f"{name} is {status.phase}")

        hears = waiting.Listener(seen=seen)
        waiting.wait_all(backend, [name], namespace, goal=waiting.Goal.RUNNING, hears=hears)
    notes = () if held else (f"{name} was not suspended",)
    return Outcome(stored={}, resumed=True, notes=notes)


def suspend(backend: Backend, name: str, namespace: str) -> bool:
    """Suspend a job until it is resumed: its pods end, and its GPUs are free for others.

    False if it was suspended already. NotPossible for a job that is over, or whose suspend field
    belongs to another controller.
    """
    if backend.pausing is not None:
        return backend.pausing.suspend(name, namespace)
    queue, stored = _queue_of(backend, name, namespace)
    owner = suspender(stored)
    if owner is not None:
        raise _not_ours(stored, owner, "runs")

    def hold(stored: Manifest) -> patches.Patch | None:
        mine = queued(stored, {})
        if mine is not None:
            unpinned = pinning.unplaced(stored)
            return None if mine.state == "held" else patches.holding(stored, unpinned)
        why = _out_of_queue(backend, stored)
        if why is not None:
            hint = f"{_delete(stored)} removes it"
            raise NotPossible(f"{name} cannot be suspended", why=why, hint=hint)
        return None if suspended(stored) else patches.stopping(stored)

    held = _changed(queue, stored, hold, "suspended")
    if held is not None:
        _check_suspended(held)
    return held is not None


def replan(backend: Backend, name: str, namespace: str, watcher: Watcher = _UNHEARD) -> Outcome:
    """Roll back a running gang as a whole, and start it on the best GPUs that are free now.

    NotPossible for a job that is over or not placed, or whose start another system decides. NotNow,
    or Unplaceable (NEVER), if it has no other placement now: then it runs on.
    """
    if backend.pausing is not None:
        # An engine without a queue chooses a new placement at each resume.
        phase = backend.job(name, namespace).phase
        if phase.over:
            raise NotPossible(
                f"{name} cannot be placed anew",
                why=f"it has {phase}",
                hint=f"{command('delete', name, namespace=namespace)}, and submit it again",
            )
        with _runs_on(name, namespace):
            backend.pausing.check_restart(name, namespace)
        backend.pausing.suspend(name, namespace)
        return replace(resume(backend, name, namespace, watcher), notes=())
    queue, stored = _queue_of(backend, name, namespace)
    mine = queued(stored, {})
    if mine is None or mine.suspender is not None:
        owner = None if mine is None else mine.suspender
        why = f"{owner} decides when it runs" if owner else _out_of_queue(backend, stored)
        if why is not None:
            raise _anew(stored, f"{name} cannot be placed anew", why)
        verbs = " and ".join(f"arena-topo {verb} {name}" for verb in ("suspend", "resume"))
        raise NotPossible(
            f"{name} cannot be placed anew",
            why="it was not submitted with --gputopology",
            hint=f"{verbs} start it again",
        )
    if mine.suspended:
        return resume(backend, name, namespace, watcher)
    starter, cause = open_starter(backend, queue), because(CauseCode.REPLANNED)
    job = job_of(stored)
    with _runs_on(name, namespace):
        _check_restart(starter, job, stored, mine)
    back = rollout.roll_back(queue, stored, cause, mine.tries)
    if back is None:
        raise ArenaError(f"{name} was changed by another program meanwhile", hint="try again")
    _check_suspended(back)
    watcher.tell(f"{cause}: the gang was rolled back")
    wait_for_old_pods(starter, back)
    return wait_until_placed(starter, job, starter.start(job, back, None), watcher)


def _check_restart(starter: Starter, job: MPIJob, stored: Manifest, mine: QueuedJob) -> None:
    """Unplaceable if a running gang could not start again once it is stopped.

    Its own GPUs count as free, and its pods as ended in the quotas of its namespace. A controller
    places a gang whose submitter may not see all jobs: then only what can never fit is refused.
    """
    view = starter.queue.read()
    if not view.everything and starter.queue.watched():
        _check_possible(job, view.cluster(), starter.site)
        return
    decision = starter.decide(job, view.job(*mine.key) or mine, view, pods=False)
    short = decision.refused
    if decision.placement is not None:
        # Without the right to list the pods, the quotas cannot be compared with the new ones.
        with suppress(AccessDenied):
            ending = [pod for pod in starter.queue.pods(stored) if not pod_over(pod)]
            short = starter.shortfall(stored, decision, ending)
    if short is not None:
        raise Unplaceable(
            str(short), verdict=Verdict.NOT_NOW, refusals=(), nearest=decision.nearest
        )


@contextmanager
def _runs_on(name: str, namespace: str) -> Iterator[None]:
    """Say of a refusal in the block that the job runs on: NotNow, or Unplaceable (NEVER)."""
    stays = f"{name} cannot be placed anew, and runs on"
    try:
        yield
    except Unplaceable as refused:
        if refused.verdict is Verdict.NEVER:
            raise Unplaceable(
                stays,
                verdict=refused.verdict,
                refusals=refused.refusals,
                nearest=refused.nearest,
                notes=refused.notes,
                why=refused.sentence,
            ) from refused
        stop = command("suspend", name, namespace=namespace)
        hint = refused.nearest or f"{stop} frees its GPUs until it is resumed"
        raise NotNow(stays, why=refused.sentence, hint=hint) from refused


def _check_suspended(stored: Manifest) -> None:
    """ArenaError if the CRD dropped the suspension of a job that was suspended just now."""
    if not suspended(stored):
        raise ArenaError(
            f"{stored['metadata']['name']} cannot be suspended, and runs on",
            why="the MPIJob of this cluster's operator knows no suspension",
            hint=f"end it with: {_delete(stored)}",
        )


def _out_of_queue(backend: Backend, stored: Manifest) -> str | None:
    """Why a job is not queued and not ordinary (it is over, or invalid); None for ordinary jobs."""
    meta = stored["metadata"]
    if meta.get("deletionTimestamp"):
        return "it is being deleted"
    if STATE not in (meta.get("annotations") or {}) and not job_over(stored):
        return None
    phase = backend.job(meta["name"], meta["namespace"]).phase
    return f"it has {phase}" if phase.over else "what is recorded of it cannot be read"


def _queue_of(backend: Backend, name: str, namespace: str) -> tuple[Queue, Manifest]:
    """The queue of an engine that does not suspend jobs itself, and a job in it."""
    queue = backend.queue
    if queue is None or not queue.api_version().traits.suspends:
        raise NotPossible(
            "jobs of this engine cannot be suspended or resumed",
            why=f"MPIJob {backend.api_version()} knows no suspension",
            hint=f"arena-topo delete {name} -n {namespace} ends it; submit it again later",
        )
    return queue, _read(queue, name, namespace)


def _not_ours(stored: Manifest, owner: str, does: str) -> NotPossible:
    """The error for a job that only its queue suspends and resumes; `does` completes its text."""
    name = stored["metadata"]["name"]
    hints = {
        KUEUE: "stop and start its Workload: kubectl kueue stop workload, resume workload;"
        f" arena-topo why {name} says why it waits",
        KUBE_QUEUE_NAME: f"arena-topo why {name} says why it waits; if this cluster has no"
        f" kube-queue nobody ever starts it: {_delete(stored)}, and submit it without --queue",
    }
    return NotPossible(
        f"{owner} decides when {name} {does}",
        why=f"it was submitted to a queue of {owner}",
        hint=hints.get(owner, f"ask it why: arena-topo why {name}"),
    )


def _anew(stored: Manifest, what: str, why: str) -> NotPossible:
    """The error for a job that can only be deleted and submitted again."""
    return NotPossible(what, why=why, hint=f"{_delete(stored)}, and submit it again")


def _delete(stored: Manifest) -> str:
    """The command that ends a job."""
    meta = stored["metadata"]
    return command("delete", meta["name"], namespace=meta["namespace"])
