"""The verb `submit`: a job is planned and created, and a gang is started or has to wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from arena_topo.clusters.queues import is_suspended, suspender
from arena_topo.engines import JobStatus, goals
from arena_topo.engines.backend import Backend
from arena_topo.engines.kubernetes.queued import MOST_TRIES, QueuedJob, Snapshot, queued
from arena_topo.engines.polling import poll_repeatedly
from arena_topo.errors import (
    AccessDenied,
    AlreadyExists,
    ArenaError,
    ClusterError,
    InvalidJob,
    command,
)
from arena_topo.gang import UNWATCHED, Exists, Watcher, existing_job, fairness, pod_state
from arena_topo.gang.advice import advice_on_plan
from arena_topo.gang.config_files import read_config_files
from arena_topo.gang.existing_job import Same
from arena_topo.gang.planning import (
    Decision,
    as_pods,
    check_new,
    check_possible,
    decision_to_wait,
    head_of_queue,
    or_backfill,
    queue_seen_by_new_job,
    render_decision,
    to_create,
)
from arena_topo.gang.protocol import Starter, StartOutcome, left_behind
from arena_topo.gang.request import Site
from arena_topo.gang.resume import resume_job
from arena_topo.gang.rollout import wait_until_placed
from arena_topo.gang.stored_job import delete_command, marked_whole
from arena_topo.gang.training import when_spread
from arena_topo.job import MPIJob
from arena_topo.manifests import Manifest, PlacementForecast, Plan, patches, pins
from arena_topo.manifests.cause import CauseCode, because
from arena_topo.manifests.recorded_job import job_of
from arena_topo.manifests.requests import request_annotation
from arena_topo.manifests.serialize import kubectl_name
from arena_topo.manifests.versions import ApiVersion
from arena_topo.queueing.patience import PatientWait
from arena_topo.solver import Unplaceable, Verdict
from arena_topo.topology import Cluster
from arena_topo.training.times import TrainingTimes

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.job_watch import ReadOnChange
    from arena_topo.engines.kubernetes.queue import Queue

Announce = Callable[[Sequence[str]], None]
"""A callback with the names of the created objects, called as soon as they exist."""

_AGAIN, _SELDOM = 3.0, 10.0
"""The least seconds between two checks of whether a waiting gang can start, and the most where the
cluster is watched and does not change: patience ends, and records become void, with time alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The result of `submit`: the plan, the names of the created objects, the status of the job.

    `status` is None if the job was created but cannot be read; `unread` is the reason. `existing`
    are the objects of an existing job with the same request: nothing was created; `resumed`: that
    job was started now. `starter` says what will start a waiting job, `nearest` which change would
    have let it start now. `notes` are remarks on the submission, `advice` names what would give the
    pods more bandwidth, `training` is what the placement means for the training that the job names.
    `wait` is what a patient gang waits for, or would have waited for.
    """

    plan: Plan
    created: tuple[str, ...]
    status: JobStatus | None
    unread: str | None = None
    existing: tuple[Manifest, ...] = ()
    resumed: bool = False
    starter: str | None = None
    nearest: str | None = None
    notes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    training: TrainingTimes | None = None
    wait: PatientWait | None = None

    def __repr__(self) -> str:
        """The created objects and the status of the job, for a prompt."""
        state = self.status if self.status is not None else self.unread
        return f"<Submitted {', '.join(self.created) or 'nothing new'}: {state}>"


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
    watcher: Watcher = UNWATCHED,
    announce: Announce = lambda _: None,
) -> Submitted:
    """Plan a job and create it; a gang that does not fit now is created waiting.

    A gang is watched until all its workers have their nodes. A watcher with `stay` waits until all
    workers run, and starts a waiting gang as soon as it fits. `exists` decides about an existing
    job of this name. Unplaceable (NEVER) if the gang cannot fit whichever jobs end; AlreadyExists
    if the name is taken.
    """
    files = read_config_files(job)
    site = Site(backend=backend, namespace=namespace, version=api, files=files)
    if exists is Exists.REPLACE:
        existing_job.make_room(job, site, watcher)
    elif exists is Exists.OK and (same := existing_job.identical_job(job, site)) is not None:
        return _gone_on(same, site, watcher)
    queue = backend.queue if job.gputopology else None
    try:
        if queue is None:
            return _applied(job, site, announce)
        return _Submission(
            job=job,
            queue=queue,
            starter=Starter(queue=queue, site=site, patient=watcher.stay or queue.watched()),
            watcher=watcher,
            announce=announce,
        ).submitted()
    except AlreadyExists:
        # Another client may have submitted the same job since the check.
        late = existing_job.identical_job(job, site) if exists is Exists.OK else None
        if late is None:
            raise
        return _gone_on(late, site, watcher)


def _gone_on(same: Same, site: Site, watcher: Watcher) -> Submitted:
    """The existing job, started now if its submission was interrupted before its start."""
    name, resumed = same.plan.job.name, False
    if same.left:
        watcher.tell(f"{name} was left before its start; it is started now")
        with left_behind(name, site.namespace):
            outcome = resume_job(site.engine, name, site.namespace, replace(watcher, stay=False))
        resumed = outcome.resumed
        if not resumed:
            watcher.tell(f"{name} has to wait: {outcome.decision.refused}")
    return _submitted(site, same.plan, (), existing=same.objects, resumed=resumed)


def _applied(job: MPIJob, site: Site, announce: Announce) -> Submitted:
    """Submit to an engine that queues by itself, or submit a job that is not placed."""
    decision = to_create(job, site)
    plan, cluster = render_decision(decision, site), decision.cluster
    created = site.engine.apply(plan)
    announce(created)
    done = _submitted(
        site,
        plan,
        created,
        nearest=decision.nearest,
        advice=advice_on_plan(plan, cluster, site),
        training=when_spread(plan, cluster),
    )
    waits = plan.waiting is not None or (done.status is not None and done.status.waits)
    return replace(done, starter=f"{goals.Start.ITSELF.capitalize()}." if waits else None)


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
        check_new(self.job)
        job = as_pods(self.job, cluster, site, later=True)
        bare = render_decision(decision_to_wait(job, site, cluster, None), site)
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
            if decision.placement is None and decision.wait is None:
                seen = queue_seen_by_new_job(view, self.queue, site, self.job)
                nearest = or_backfill(decision.nearest, self.job, seen, site)
                decision = replace(decision, nearest=nearest)
        planned = render_decision(decision, site)
        stored = starter.admit(planned, decision)
        created = self._completed(stored, planned)
        with left_behind(job.name, site.namespace):
            outcome = self._started(starter, job, stored, decision)
        if outcome.decision is not decision:
            planned = render_decision(outcome.decision, site)
        return self._result(starter, planned, created, outcome)

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
        check_possible(job, cluster, self.site)
        return decision_to_wait(job, self.site, cluster, because(CauseCode.JOBS_HIDDEN))

    def _lacks(self, bare: Plan) -> tuple[str, ...]:
        """The fields of a gated, suspended job that the CRD of the operator drops."""
        trial = patches.as_suspended(
            pins.with_gates(pins.without_pins(bare.objects[0])),
            PlacementForecast(state="waiting"),
            at=None,
            request=request_annotation(bare.job),
        )
        return self.queue.lacks(bare, trial)

    def _started(
        self, starter: Starter, job: MPIJob, stored: Manifest, decision: Decision
    ) -> StartOutcome:
        """Start a created gang, and watch it as long as the watcher asks."""
        outcome = StartOutcome(stored=stored, decision=decision, resumed=False)
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
            outcome = self._awaited(partial(self._again, starter, job, outcome), outcome)
            if not outcome.resumed:
                return outcome

    def _starts(self, outcome: StartOutcome) -> bool:
        """Whether this command starts the gang, which waits."""
        given_up = patches.tries_of(outcome.stored) >= MOST_TRIES
        return self.watcher.stay and not given_up and not self.queue.watched()

    def _again(self, starter: Starter, job: MPIJob, waiting: StartOutcome) -> StartOutcome | None:
        """Start a waiting gang if it fits now; None if it waits further.

        `waiting` again if a user has suspended it. JobDeleted if it is gone.
        """
        stored = starter.current(waiting.stored)
        if stored is None or not is_suspended(stored):
            return starter.lost_race(job, waiting.stored)
        stored = marked_whole(self.queue, stored)
        mine = queued(stored, {})
        if mine is None or mine.state == "held" or mine.stopped or mine.suspender is not None:
            return waiting
        view = self.queue.read()
        mine = view.job(*mine.key) or mine
        # A record is that of another starter, or of an earlier try that was interrupted.
        starter.withdraw([mine], view.now)
        if not mine.waits_for_starter:
            return None
        head = head_of_queue(view, self.queue, self.site)
        if head is not None:
            starter.keep_reservation(head, view)
        if starter.decide_behind(head, job, mine, view).placement is None:
            return None
        started = starter.start(job, stored, None)
        return started if started.resumed else None

    def _awaited(
        self, look: Callable[[], StartOutcome | None], otherwise: StartOutcome
    ) -> StartOutcome:
        """The result of `_polled`, which looks after each change of the cluster."""
        changed = threading.Event()

        def pause(most: float) -> None:
            time.sleep(min(_AGAIN, most))
            changed.wait(min(max(0.0, most - _AGAIN), self.watcher.left))
            changed.clear()

        try:
            self.queue.watch(changed.set, list_every=_AGAIN)
        except ArenaError:
            # No thread is left: each look lists the cluster.
            return self._polled(look, otherwise)
        try:
            return self._polled(look, otherwise, every=_SELDOM, pause=pause)
        finally:
            self.queue.unwatch()

    def _polled(
        self,
        look: Callable[[], StartOutcome | None],
        otherwise: StartOutcome,
        *,
        every: float = _AGAIN,
        pause: Callable[[float], None] = time.sleep,
    ) -> StartOutcome:
        """The first outcome that a look has; `otherwise` at the deadline.

        A server that does not answer for a while does not end the polling.
        """
        for outcome in poll_repeatedly(look, every=every, pause=pause):
            if outcome is not None or self.watcher.late:
                return outcome or otherwise
        raise AssertionError("polling does not end by itself")

    def _completed(self, stored: Manifest, planned: Plan) -> tuple[str, ...]:
        """Create the objects that the job owns; returns the names of all created objects."""
        first, *others = planned.objects
        # Claims are created when their placement is final.
        others = [
            manifest for manifest in others if not manifest["kind"].startswith("ResourceClaim")
        ]
        created = (kubectl_name(first), *self.queue.own(stored, others))
        self.announce(created)
        return created

    def _result(
        self, starter: Starter, planned: Plan, created: tuple[str, ...], outcome: StartOutcome
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
            wait=decision.wait,
            advice=advice_on_plan(planned, decision.cluster, site) if is_placed else (),
            training=when_spread(planned, decision.cluster),
        )

    def _starter(self, outcome: StartOutcome) -> str:
        """What starts a gang that has to wait, as a sentence."""
        again = command("resume", self.job.name, namespace=self.site.namespace)
        if patches.tries_of(outcome.stored) >= MOST_TRIES:
            return f"It is not tried again until you run: {again}"
        if self.queue.watched():
            return "The controller starts it once it can."
        return (
            "The job waits and uses no GPUs. No controller runs here; start it once it fits:"
            f" {again}"
        )

    def _handed_over(self, job: MPIJob, bare: Plan, owner: str) -> Submitted:
        """Create a gang for another queue, which starts it: at its gates, and placed after that."""
        claims = self.queue.mechanisms(self.site.namespace).claims
        if claims is False and pins.claims_gpus(bare.objects[0]):
            raise InvalidJob(
                f"{owner} cannot start {job.name} on nodes whose GPUs are claimed",
                why="its workers would need a claim each, and no policy gives them one",
                hint="ask an administrator for: arena-topo install",
            )
        waits = PlacementForecast(
            state="waiting", cause=because(CauseCode.OTHER_QUEUE, queue=owner)
        )
        planned = msgspec.structs.replace(bare, waiting=waits.reason, forecast=waits)
        form = patches.handed_over(
            pins.with_gates(pins.without_pins(bare.objects[0]), effects=("NoSchedule",)),
            waits,
            request=request_annotation(job),
            suspend=job.queue,
        )
        stored = self.queue.create(planned, form)
        created = self._completed(stored, planned)
        watched = self.queue.watched()
        if self.watcher.stay and not watched:
            self.watcher.tell(
                f"{owner} decides when {job.name} starts; this command places it then"
            )
            undecided = Decision(job=job, decided=False)
            queued_only = StartOutcome(stored=stored, decision=undecided, resumed=False)
            with left_behind(job.name, self.site.namespace):
                with closing(self.queue.gang_reads(stored)) as gang:
                    look = partial(self._admitted, job, queued_only, gang)
                    outcome = self._polled(look, queued_only)
                outcome = wait_until_placed(self.starter, job, outcome, self.watcher)
            if outcome.resumed:
                # Its queue has chosen the nodes, so the decision is about the job as it is stored.
                planned = render_decision(replace(outcome.decision, job=job), self.site)
                return self._result(self.starter, planned, created, outcome)
        again = command("resume", job.name, namespace=self.site.namespace)
        places = f"its workers then wait at their gates until you run: {again}"
        if watched:
            places = "the controller places it then."
        return _submitted(self.site, planned, created, starter=f"{owner} starts it; {places}")

    def _admitted(
        self,
        job: MPIJob,
        waiting: StartOutcome,
        gang: ReadOnChange[tuple[Manifest | None, list[Manifest]]],
    ) -> StartOutcome | None:
        """Place a gang if its queue has started it; None if the queue has not.

        `waiting` again if the gang is over. JobDeleted if it is gone.
        """
        (stored, pods), _ = gang.current()
        if stored is None:
            return self.starter.lost_race(job, waiting.stored)
        mine = queued(stored, {})
        if mine is None:
            return waiting
        pods = [] if mine.suspended else pods
        if any(map(pod_state.has_node, pods)):
            return self.starter.lost_race(job, stored)
        if not pod_state.gated_workers(pods):
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
            planned = render_decision(decision, site)
            stored = queue.create(planned, planned.objects[0])
            with left_behind(job.name, site.namespace):
                # Pods of this job may exist already.
                if starter.is_valid(job, stored, decision, pods=False):
                    break
            queue.remove(stored)
            left = starter.current(stored)
            if left is not None and "deletionTimestamp" not in left["metadata"]:
                raise ClusterError(
                    f"{job.name} runs on GPUs that another gang has, and could not be deleted",
                    hint=f"delete it at once: {delete_command(stored)}",
                )
        with left_behind(job.name, site.namespace):
            claims = [
                manifest
                for manifest in planned.objects
                if manifest["kind"].startswith("ResourceClaim")
            ]
            if claims:
                queue.renew(stored, claims)
        created = self._completed(stored, planned)
        note = (
            f"MPIJob {site.api} of this cluster cannot be suspended: the gang starts at once, and"
            " is not taken back if it cannot complete"
        )
        return _submitted(site, planned, created, notes=(note,))
