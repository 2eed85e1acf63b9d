"""The protocol that allocates GPUs to a gang: optimistic concurrency, so no two gangs get the same.

    record    write the placement on the job, which is suspended
    look      list all jobs at exactly the revision of that write, then the pods
    yield     if an older record or a pod conflicts: solve again, record again, look again
    resume    one patch that tests the record and starts the job by it

Of two conflicting records, the author of the later always sees the earlier, and the author of the
earlier never sees the later, so exactly one of them yields, without a clock or a lock. A starter
that stops between two of these requests leaves a suspended job, which others may take over.
"""

from __future__ import annotations

import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from arena_topo.clusters import quota
from arena_topo.clusters.queues import is_suspended
from arena_topo.clusters.rules import pod_over
from arena_topo.engines.kubernetes.queued import QueuedJob, Snapshot, queued, written
from arena_topo.errors import (
    AccessDenied,
    AlreadyExists,
    ArenaError,
    ClusterError,
    JobDeleted,
    command,
)
from arena_topo.gang import fairness, planning
from arena_topo.gang.loss import is_loss
from arena_topo.gang.planning import Decision
from arena_topo.gang.pod_state import has_ended
from arena_topo.gang.request import Site, request_of
from arena_topo.job import MPIJob
from arena_topo.manifests import STATE, Binding, Guarantee, Manifest, Plan, patches, pins
from arena_topo.manifests.annotations import (
    last_stop,
    recorded_request,
    reservation_note,
    reserving_map,
)
from arena_topo.manifests.binding import double_booked, leaves_choice, taint_effects
from arena_topo.manifests.cause import Cause, CauseCode, because, in_words
from arena_topo.manifests.claims import claims_of
from arena_topo.manifests.hcas import chosen_hcas
from arena_topo.manifests.recorded_job import job_of
from arena_topo.manifests.requests import request_annotation
from arena_topo.solver import UNCONSTRAINED, Constraint, Placement, Request, Unplaceable
from arena_topo.solver.door import Solver
from arena_topo.topology import Cluster, GPUSet, Node, NodeName, gpu_set

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.queue import Queue
    from arena_topo.queueing.reservation import QueueHead

_ROUNDS = 100
"""How often a starter yields before it gives up: in every round, others got the GPUs."""

GONE, INVALID = 410, 422
"""HTTP codes: the server no longer has this revision; the object violates a rule."""

KEEP_SECONDS = 60.0
"""The least seconds between two stored reservations of one head of the queue."""

_PAUSE = 0.05
"""The longest pause in seconds before the first retry of a starter that yielded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOutcome:
    """The result of a start: the job as it is stored, and the last decision.

    `resumed`: the job runs, started by this starter or by another. Otherwise it waits, and
    `decision.refused` is the reason. `changed`: False if the job had to be neither started nor
    resumed.
    """

    stored: Manifest
    decision: Decision
    resumed: bool
    changed: bool = True
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """A starter of gangs (`submit`, `resume` or the controller) on one queue.

    `site` is the site of their jobs; its namespace is not used for a job. `constraint` is for the
    one job that is started, and not for those ahead of it in the queue. `patient`: it ends the
    patience of gangs in time, so that they may wait for a better placement.
    """

    queue: Queue
    site: Site
    patient: bool = False
    constraint: Constraint = UNCONSTRAINED
    pause: Callable[[float], None] = time.sleep

    def fit(self, job: MPIJob, cluster: Cluster) -> Placement | None:
        """The best placement of a job; None, without a reason, if it does not fit."""
        return planning.fit(job, cluster, self.site)

    def _stamp(self) -> str:
        """The time of a record: the server's clock, in whole seconds, with a random fraction.

        The fraction tells a record that was withdrawn and written again within one second from the
        first, which its author has checked.
        """
        return written(math.floor(self.queue.now()) + random.random())  # noqa: S311  no secret

    def decide(
        self, job: MPIJob, mine: QueuedJob, snapshot: Snapshot, *, pods: bool = True
    ) -> Decision:
        """The best placement of a job on the GPUs that are not reserved for an older waiting gang.

        `pods`: GPUs of the job's own pods are not free. Unplaceable (NEVER) if the job cannot fit
        even when all other jobs have ended.
        """
        head = planning.head_of_queue(snapshot, self.queue, self.site)
        return self.decide_behind(head, job, mine, snapshot, pods=pods)

    def decide_behind(
        self,
        head: QueueHead | None,
        job: MPIJob,
        mine: QueuedJob,
        snapshot: Snapshot,
        *,
        pods: bool = True,
    ) -> Decision:
        """The result of `decide` beside a head of the queue that is known."""
        whole, gated = snapshot.cluster(without={mine.key}, pods=pods), mine.suspender is not None
        site = replace(self.site, namespace=mine.namespace, constraint=self.constraint)
        if not snapshot.everything:
            return planning.decision_to_wait(job, site, whole, because(CauseCode.JOBS_HIDDEN))
        until = (mine.waits_since if mine.manifest else snapshot.now) + job.patience
        # Nobody but its own queue decides when another's gang starts.
        if gated or self.constraint != UNCONSTRAINED:
            until = -math.inf
        seen = planning.queue_behind(head, mine, whole, snapshot, until=until, ends=self.patient)
        return planning.decide_or_wait(job, site, seen, gated=gated)

    # Starting a gang

    def admit(self, plan: Plan, decision: Decision) -> Manifest:
        """Create a job by its decision: suspended, with its placement recorded or waiting."""
        at = self._stamp() if decision.placement is not None else None
        form = patches.as_suspended(
            pins.without_pins(plan.objects[0]),
            decision.forecast,
            at=at,
            request=request_annotation(plan.job),
            incomplete=any(map(_matters, plan.objects[1:])),
        )
        return self.queue.create(plan, form)

    def start(self, job: MPIJob, stored: Manifest, decision: Decision | None) -> StartOutcome:
        """Start a suspended job, or leave it waiting with the reason.

        `decision` is the decision in its record, None for a job that was not created just now: that
        is solved again, and waits while pods of its last run exist. An operator that sees the job
        resumed before it has seen it suspended would leave these pods where they are.
        """
        if not is_suspended(stored):
            return self.lost_race(job, stored)
        if decision is None and self.has_old_pods(stored):
            return StartOutcome(
                stored=stored,
                decision=Decision(job=job, refused=because(CauseCode.OLD_PODS)),
                resumed=False,
            )
        return self._brought(job, stored, decision, gated=False)

    def directed(self, job: MPIJob, held: Manifest) -> StartOutcome:
        """Start a held job, which no other starter touches, under the constraint of this one.

        If it cannot have such a placement, it waits in the queue as any other, without constraint.
        """
        view, mine = self.queue.read(), queued(held, {})
        if mine is None or mine.state != "held":
            return self.lost_race(job, held)
        decision = Decision(job=job, refused=because(CauseCode.OLD_PODS))
        if not self.has_old_pods(held):
            decision = self.decide(job, view.job(*mine.key) or mine, view)
        stored = self.queue.change(held, self._record(held, decision, gated=False))
        if stored is None:
            return self.lost_race(job, held)
        if decision.placement is None:
            return StartOutcome(stored=stored, decision=decision, resumed=False)
        return self._brought(job, stored, decision, gated=False)

    def admitted(self, job: MPIJob, stored: Manifest) -> StartOutcome:
        """Record a placement for a gang that its queue has started, and that waits at its gates.

        The placement uses the nodes that the queue chose, anew at each start.
        """
        return self._brought(job, stored, None, gated=True)

    def _brought(
        self, job: MPIJob, stored: Manifest, decision: Decision | None, *, gated: bool
    ) -> StartOutcome:
        """Record, look, yield, and start a job by its record; `gated`: its queue has resumed it."""
        again = command("resume", job.name, namespace=_key(stored)[0])
        for _ in self.rounds(job.name, f"it waits, suspended: {again}"):
            changed: Manifest | None = stored
            if decision is None:
                view, mine = self.queue.read(), queued(stored, {})
                if mine is None or mine.suspended is gated or (mine.state == "held" and not gated):
                    return self.lost_race(job, stored)
                head = planning.head_of_queue(view, self.queue, self.site)
                try:
                    decision = self.decide_behind(head, job, view.job(*mine.key) or mine, view)
                except Unplaceable as never:
                    # `get` and `list` show what is recorded.
                    refused = Decision(job=job, refused=in_words(never.sentence))
                    self.queue.change(stored, self._record(stored, refused, gated=gated))
                    raise
                changed = self.queue.change(stored, self._record(stored, decision, gated=gated))
                if changed is not None and decision.placement is None and head is not None:
                    self.keep_reservation(head, view)
            if changed is not None:
                stored = changed
                if decision.placement is None:
                    return StartOutcome(stored=stored, decision=decision, resumed=False)
                if not self.is_valid(job, stored, decision):
                    decision = None
                    continue
                done = self._started(stored, decision, gated=gated)
                if done is not None:
                    return done
            now = self._still_ours(stored)
            if now is None:
                return self.lost_race(job, stored)
            stored, decision = now, None
        raise AssertionError("the last round raises")

    def reserve(self, job: MPIJob, stored: Manifest) -> Manifest | None:
        """Reserve the next placement of a gang that runs, before it is stopped; None without one.

        Its own GPUs count as free, and its pods as ended in the quotas of its namespace.
        """
        view, mine = self.queue.read(), queued(stored, {})
        if mine is None:
            return None
        try:
            at_once = replace(self, patient=False)
            decision = at_once.decide(job, view.job(*mine.key) or mine, view, pods=False)
        except Unplaceable:
            return None
        ending = [pod for pod in self.queue.pods(stored) if not pod_over(pod)]
        if decision.placement is None or self.shortfall(stored, decision, ending) is not None:
            return None
        places = reserving_map(decision.forecast)
        changed = self.queue.change(stored, patches.reserving(stored, places))
        if changed is None or self.is_valid(job, changed, decision, pods=False):
            return changed
        self.queue.change(changed, patches.reserving(changed, None))
        return None

    def keep_reservation(self, head: QueueHead, view: Snapshot) -> bool:
        """Store what the head of the queue reserves on its job, so that all starters keep it.

        At most once a minute, by the time in what is stored; whether that was done. The caller may
        lack the right to do so.
        """
        job = view.job(*head.gang.key.split("/"))
        last = head.gang.last
        recent = last is not None and abs(view.now - last[1]) < KEEP_SECONDS
        if job is None or not head.changed or recent:
            return False
        note = reservation_note(head.seats, written(head.since))
        with suppress(ArenaError):
            return (
                self.queue.change(job.manifest, patches.recording_reservation(job.manifest, note))
                is not None
            )
        return False

    def rounds(self, name: str, hint: str) -> Iterator[None]:
        """The tries of a starter, with a pause before each but the first; then ClusterError.

        The pauses are random: starters that yielded at the same time would conflict again.
        """
        yield
        for attempt in range(1, _ROUNDS):
            self.pause(random.uniform(0, _PAUSE * min(attempt, 20)))  # noqa: S311  no secret
            yield
        raise ClusterError(
            f"the GPUs for {name} were taken {_ROUNDS} times in a row",
            why="others submit faster than this program can look",
            hint=hint,
        )

    def _record(self, stored: Manifest, decision: Decision, *, gated: bool) -> patches.Patch:
        """The patch that records a decision."""
        if decision.placement is None:
            return self._waiting(stored, decision.refused, gated=gated)
        record = patches.recording_in_place if gated else patches.recording
        return record(stored, decision.forecast, at=self._stamp())

    @staticmethod
    def _waiting(stored: Manifest, cause: Cause | None, *, gated: bool) -> patches.Patch:
        """The patch that removes the record of a job."""
        if gated:
            return patches.clearing(stored, cause)
        return patches.waiting(stored, pins.without_pins(stored), cause)

    def has_old_pods(self, stored: Manifest) -> bool:
        """Whether pods of a job's last run exist, or have left a failure of its launcher.

        False if the caller may not list them.
        """
        try:
            return not all(
                map(has_ended, self.queue.pods(stored))
            ) or not self.clear_launcher_failures(stored)
        except AccessDenied:
            return False

    def clear_launcher_failures(self, stored: Manifest) -> bool:
        """Delete the Job of a lost gang's launcher if it counts a failure; whether it counts none.

        The gang is suspended. A start waits for True: the operator has to see first that the Job is
        gone.
        """
        stopped = last_stop(stored)
        if stopped is None or not is_loss(stopped.cause):
            return True
        # Without these rights a gang starts again as long as it has retries.
        with suppress(AccessDenied):
            launcher = self.queue.failed_launcher(stored)
            if launcher is not None:
                self.queue.delete_launcher(launcher)
                return False
        return True

    def is_valid(
        self, job: MPIJob, stored: Manifest, decision: Decision, *, pods: bool = True
    ) -> bool:
        """Whether a recorded decision conflicts with no older record, and is not outdated.

        It compares all jobs at the revision of the write. False if the server no longer has this
        revision, which it keeps for minutes: then the record is written again. False too if the
        caller may no longer list the jobs of others: a starter that cannot see them must not start
        a job. `pods`: pods of the job itself count.
        """
        try:
            seen = self.queue.read_at(stored)
        except ClusterError as error:
            if error.status == GONE:
                return False
            raise
        if not seen.everything or queued(stored, {}) is None:
            return False
        cluster = seen.cluster(without={_key(stored)}, pods=pods)
        request = request_of(job, cluster, self.site)
        return _fits(request, decision, cluster) and not _outdated(decision, cluster)

    def _still_ours(self, stored: Manifest) -> Manifest | None:
        """The current job; None if it is gone, or if another starter has just recorded on it.

        Then the other starter finishes it: two that took turns at one job would never finish.
        """
        current = self.current(stored)
        mine, before = None if current is None else queued(current, {}), queued(stored, {})
        theirs = (
            mine is not None
            and before is not None
            and mine.state == "placed"
            and mine.recorded != before.recorded
            and not fairness.is_abandoned(mine, self.queue.now())
        )
        return None if theirs else current

    def current(self, stored: Manifest) -> Manifest | None:
        """The current job; None if it is gone or another job has its name."""
        stored_now = self.queue.get(*_key(stored))
        same = stored_now is not None and stored_now["metadata"]["uid"] == stored["metadata"]["uid"]
        return stored_now if same else None

    def _started(self, stored: Manifest, decision: Decision, *, gated: bool) -> StartOutcome | None:
        """Start a job by its record; None if the record was replaced or removed meanwhile.

        A job that a quota or a policy refuses waits: a retry would be refused too.
        """
        placed, claims = _with_claims(stored, decision)
        # Pods at their gates count in quotas already.
        short = None if gated else self.shortfall(stored, decision)
        try:
            if short is None and claims:
                self.queue.renew(stored, claims)
        except (ClusterError, AlreadyExists) as error:
            short = quota.quota_cause(error.sentence)
        try:
            if short is None:
                resuming = patches.resuming(stored, placed)
                patch = patches.confirming(stored) if gated else resuming
                changed = self.queue.change(stored, patch)
                done = StartOutcome(stored=changed or stored, decision=decision, resumed=True)
                return None if changed is None else done
        except ClusterError as error:
            if error.status != INVALID:
                raise
            short = in_words(error.message)
        back = self.queue.change(stored, self._waiting(stored, short, gated=gated))
        refused = replace(decision, placement=None, binding=None, refused=short)
        return None if back is None else StartOutcome(stored=back, decision=refused, resumed=False)

    def shortfall(
        self, stored: Manifest, decision: Decision, ending: Iterable[Manifest] = ()
    ) -> Cause | None:
        """The shortage in the quotas of a job's namespace for a placement; None without one.

        `ending` are the pods of the job that end before it starts.
        """
        placed, claims = _with_claims(stored, decision)
        claimed = self.queue.claims(stored) if claims else ()
        quotas = self.queue.quotas(stored["metadata"]["namespace"])
        return quota.shortfall(placed, quotas, claims=claims, held=claimed, ending=ending)

    # Other starters

    def lost_race(
        self, job: MPIJob, stored: Manifest, decision: Decision | None = None
    ) -> StartOutcome:
        """The result after another client changed or started the job; JobDeleted if it is gone."""
        current = self.current(stored)
        if current is None:
            name = stored["metadata"]["name"]
            raise JobDeleted(f"the job {name} was deleted while it was being started")
        decision = decision or Decision(job=job, decided=False)
        if not is_suspended(current):
            return StartOutcome(stored=current, decision=decision, resumed=True)
        state = str((current["metadata"].get("annotations") or {}).get(STATE))
        cause = because(CauseCode.ANOTHER_STARTER, state=state)
        refused = replace(decision, placement=None, refused=cause)
        return StartOutcome(stored=current, decision=refused, resumed=False)

    def withdraw(self, jobs: Sequence[QueuedJob], now: float) -> tuple[QueuedJob, ...]:
        """Withdraw the records of abandoned starts; returns the jobs whose GPUs were freed.

        A record that the caller may not patch stays in effect.
        """
        freed = []
        for job in jobs:
            if not fairness.is_abandoned(job, now):
                continue
            try:
                bare = pins.without_pins(job.manifest)
                if bare is job.manifest:
                    patch = patches.waiting(job.manifest, bare, because(CauseCode.NOT_RESUMED))
                else:
                    # Only resumed jobs are pinned, so another system has suspended this one.
                    cause = because(CauseCode.SUSPENDED_BY_OTHERS)
                    patch = patches.holding(job.manifest, bare, cause)
                if self.queue.change(job.manifest, patch) is not None:
                    freed.append(job)
            except ArenaError:
                continue
        return tuple(freed)


@contextmanager
def left_behind(name: str, namespace: str) -> Iterator[None]:
    """Add the name of the created job, and how to go on with it, to any error in the block."""
    try:
        yield
    except JobDeleted:
        raise
    except ArenaError as error:
        if f" {name}" not in (error.hint or ""):
            resume, delete = (
                command(verb, name, namespace=namespace) for verb in ("resume", "delete")
            )
            left = f"the job was created: {resume} starts it if it waits, {delete} ends it"
            error.hint = f"{left}; {error.hint}" if error.hint else left
        raise


def _with_claims(stored: Manifest, decision: Decision) -> tuple[Manifest, Sequence[Manifest]]:
    """A stored job with its workers pinned by a decision, and the claims of its workers."""
    placement, binding, cluster = decision.placement, decision.binding, decision.cluster
    assert placement is not None
    assert binding is not None
    placed = pin_workers(stored, placement, binding, cluster)
    return placed, claims_of(placed, placement, binding, cluster)


def pin_workers(
    stored: Manifest, placement: Placement, binding: Binding, cluster: Cluster
) -> Manifest:
    """A stored job with its workers pinned."""
    return pins.with_pins(
        pins.without_pins(stored),
        placement,
        binding,
        effects=taint_effects(placement, cluster),
        hcas=_hcas(stored, placement, binding, cluster),
    )


def _hcas(
    stored: Manifest, placement: Placement, binding: Binding, cluster: Cluster
) -> tuple[str, ...]:
    """The NICs for NCCL in a stored job, if it has asked for names (--nccl-hca)."""
    if not recorded_request(stored).get("ncclHca"):
        return ()
    return chosen_hcas(job_of(stored), placement, cluster, binding).names


def _matters(owned: Manifest) -> bool:
    """Whether pods need an object to run; not arena's ConfigMap, and claims are created later."""
    books = owned["kind"] == "ConfigMap" and owned["metadata"]["name"].endswith("-mpijob")
    return not books and not owned["kind"].startswith("ResourceClaim")


def _key(stored: Manifest) -> tuple[str, str]:
    return stored["metadata"]["namespace"], stored["metadata"]["name"]


def _fits(request: Request, decision: Decision, cluster: Cluster) -> bool:
    """Whether the GPUs of a decision are still free, and in no record of another job."""
    assert decision.placement is not None
    assert decision.binding is not None
    solver, nodes = Solver.of(cluster), {node.name: node for node in cluster.nodes}
    workers: dict[NodeName, list[tuple[int, ...]]] = defaultdict(list)
    for assignment in decision.placement.assignments:
        workers[assignment.node].append(assignment.gpus)
    return all(
        name in nodes
        and solver.hindrance(request, nodes[name], len(sets)) is None
        and _lets_have(nodes[name], gpu_set(gpu for each in sets for gpu in each), decision.binding)
        for name, sets in workers.items()
    )


def _outdated(decision: Decision, cluster: Cluster) -> bool:
    """Whether a decision that fits promises more of its GPUs than is still known.

    That can happen only where GPUs are counted: devices that are allocated by index fit or do not.
    """
    assert decision.placement is not None
    assert decision.binding is not None
    if decision.binding.guarantee is Guarantee.GPUS:
        return False
    named = {assignment.node for assignment in decision.placement.assignments if assignment.gpus}
    before = {node.name: node.free_count for node in decision.cluster.nodes}
    chosen = set(decision.placement.nodes)
    return any(
        node.name in chosen
        and node.unattributed
        and (node.name in named or node.free_count < before.get(node.name, 0))
        for node in cluster.nodes
    )


def _lets_have(node: Node, gpus: GPUSet, binding: Binding) -> bool:
    """Whether exactly these GPUs of a node are free, as far as a binding relies on that."""
    if gpus & ~node.free:
        return False
    # We inject devices only if no unattributed GPUs can be among them, and the kubelet picks
    # devices only if we injected none.
    if binding.inject and gpus and node.unattributed:
        return False
    return not (leaves_choice(binding) and double_booked(node))
