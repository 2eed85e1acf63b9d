"""What `plan` answers: a plan or a refusal, beside what other schedulers would give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from msgspec import structs

from arena_topo.bandwidth import Estimate
from arena_topo.clusters.queues import suspender
from arena_topo.engines.backend import Backend
from arena_topo.gang import planning, shape
from arena_topo.gang.advice import advice_on_plan
from arena_topo.gang.config_files import read_config_files
from arena_topo.gang.named_placement import check_fused, read_placement, seats_of
from arena_topo.gang.planning import Decision, QueueView, queue_for_new_job, render_decision
from arena_topo.gang.request import Site, check_preferred, request_of, set_aside_for_topology
from arena_topo.gang.training import SPREAD, ComparedPlacement, training_times
from arena_topo.job import MPIJob, PodShape
from arena_topo.manifests import Plan
from arena_topo.manifests.forecast import valued_as
from arena_topo.manifests.versions import ApiVersion
from arena_topo.queueing.patience import PatientWait
from arena_topo.solver import Counts, Placement, Reason, Request, Unplaceable, Verdict, once_empty
from arena_topo.solver.door import Solver
from arena_topo.topology import Cluster, NodeName
from arena_topo.training.times import TrainingTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerComparison:
    """What other schedulers would give the same gang; each value is None if the gang does not fit.

    `best_empty` is the best placement on this cluster without any other job; `first_fit` and
    `spread` are the baselines: schedulers without topology, on the cluster as it is now
    (solver/baselines.py). `blind`: the kubelet picks the GPUs, and those of the gang itself are not
    known, so that all count at their worst.
    """

    best_empty: Placement | None
    first_fit: Placement | None
    spread: Placement | None
    blind: bool = False

    def counted(self, placement: Placement | None) -> Estimate | None:
        """The bandwidth of one of these placements that compares with that of the gang."""
        if placement is None:
            return None
        return placement.worst if self.blind else placement.bandwidth

    @property
    def at_worst(self) -> bool:
        """Whether these bandwidths are less than those of the GPUs that would be planned."""
        others = (self.best_empty, self.first_fit, self.spread)
        return any(self.counted(other) != other.bandwidth for other in others if other is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A plan, or the reason why there is none, with the data to judge it.

    `job` is the job as it was asked. Without --gputopology, or where another flag only `implied`
    it, `plan` is what it would get with that flag, and `comparison` what it gets. If the caller
    named a placement (`named`), `best` is the best that fits now; a named placement that is not
    free now is planned and `refused`. `rows` are the best placement and the next best, if they were
    requested. `wait` is what a patient job would wait for, where a program `ends` its patience; a
    dump does not say (None). `request` and `comparison` have the pods of the planned shape; they
    are None for a job without GPUs.
    """

    job: MPIJob
    namespace: str
    implied: bool = False
    cluster: Cluster | None = None
    request: Request | None = None
    plan: Plan | None = None
    refused: Unplaceable | None = None
    comparison: SchedulerComparison | None = None
    advice: tuple[str, ...] = ()
    named: bool = False
    best: Placement | None = None
    rows: tuple[Placement, ...] = ()
    wait: PatientWait | None = None
    ends: bool | None = False

    @property
    def reserved_by(self) -> str | None:
        """The gang for which GPUs are reserved that this one could use; None without one.

        Of several it is the head of the queue.
        """
        if self.cluster is None or self.request is None:
            return None
        withheld = Solver.of(self.cluster).withheld(self.request)
        reservations = [entry for node in withheld for entry in node.reservations()]
        first = min(reservations, key=lambda entry: (not entry[1], entry[0].restart), default=None)
        return None if first is None else first[0].job

    def __repr__(self) -> str:
        """The answer on one line, for a prompt."""
        words = [f"{self.job.name}: {self.verdict.value if self.verdict else 'no GPUs'}"]
        words += [self.refused.message] if self.refused is not None else []
        placement = self.plan.placement if self.plan is not None else None
        if placement is not None:
            words.append(f"{self.job.workers} workers on {', '.join(placement.nodes)}")
            if placement.bandwidth is not None:
                words.append(f"{placement.bandwidth.point:.3g} GB/s")
        return f"<Proposal {', '.join(words)}>"

    @property
    def verdict(self) -> Verdict | None:
        """Whether the gang fits; None for a job without GPUs."""
        if self.refused is not None:
            return self.refused.verdict
        return None if self.request is None else Verdict.PLACEABLE

    @property
    def training(self) -> TrainingTimes | None:
        """What this placement and those beside it mean for the training that the job names."""
        if self.plan is None or self.cluster is None:
            return None
        return training_times(self.job, self.plan, self.cluster, self.others, asked=self.asked)

    @property
    def gputopology(self) -> bool:
        """Whether the caller asked for --gputopology itself."""
        return self.job.gputopology and not self.implied

    @property
    def asked(self) -> bool:
        """Whether the caller asked for a placement, with --gputopology or by naming one."""
        return self.gputopology or self.named

    @property
    def others(self) -> Iterator[ComparedPlacement]:
        """The placements beside that of the plan."""
        if self.named:
            yield "best, free GPUs", self.best, None if self.best is None else self.best.bandwidth
        if (compared := self.comparison) is not None:
            first, spread = "first fit by index", SPREAD
            if not self.asked:
                first, spread = "without: first fit", "without: spread"
            for name, other in (
                ("best, all GPUs free", compared.best_empty),
                (first, compared.first_fit),
                (spread, compared.spread),
            ):
                at_worst = ", at worst" if compared.at_worst else ""
                yield f"{name}{at_worst}", other, compared.counted(other)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the cluster for a person."""
        if self.plan is not None:
            return self.plan.notes
        if self.refused is not None:
            return self.refused.notes
        return self.cluster.notes if self.cluster is not None else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """How often a gang fits by counting; `refused` is the reason if it does not."""

    counts: Counts
    refused: Unplaceable | None = None

    @property
    def verdict(self) -> Verdict:
        """Whether the gang fits by counting."""
        return Verdict.PLACEABLE if self.refused is None else self.refused.verdict


def propose(
    job: MPIJob,
    backend: Backend | None,
    *,
    namespace: str,
    api: ApiVersion | None = None,
    cluster: Cluster | None = None,
    queue: QueueView | None = None,
    on: str = "",
    top: int = 1,
    implied: bool = False,
) -> Proposal:
    """Plan a job as `planning.plan` does, and compare; a refusal is part of the result here.

    `on` is a placement such as `node-a/0,3;node-b/1,2`, to be valued instead of the best one,
    whether its GPUs are in use or not. It is placed on `cluster`, or as the `queue` in a dump
    leaves it, else as the engine does. `top` is how many placements are listed, the best among
    them. A job without --gputopology is planned as if it had it; `implied` says that the job has it
    only because another flag needs it. UsageError if there is nothing to
    place on, or if `on` names nodes or GPUs that do not exist or do not match the job.
    """
    files = read_config_files(job)
    site = Site(backend=backend, namespace=namespace, version=api, files=files)
    if not (job.gputopology or job.gpus):
        cluster = queue.left if queue is not None else cluster
        queue = QueueView(left=cluster or planning.NO_NODES)
        ordinary = render_decision(planning.decide_new(job, site, queue), site)
        return Proposal(job=job, namespace=namespace, cluster=cluster, plan=ordinary)
    asked, job = job, replace(job, gputopology=True)
    if queue is None:
        queue = QueueView(left=cluster) if cluster else queue_for_new_job(job, site)
    cluster = queue.left
    if on or not asked.gputopology:
        # A job with a placement of its own, or outside the queue, is not patient.
        queue = replace(queue, emptied=None)
    plan: Plan | None = None
    refused: Unplaceable | None = None
    best: Placement | None = None
    rows: tuple[Placement, ...] = ()
    advice: tuple[str, ...] = ()
    wait: PatientWait | None = None
    try:
        decision = planning.decide_new(job, site, queue)
        plan, wait = render_decision(decision, site), decision.wait
    except Unplaceable as error:
        refused = error
        helps = None if on else planning.backfill(job, queue, site)
        if helps is not None:
            advice, error.hint = (helps,), "; or ".join(filter(None, (error.nearest, helps)))
    if on:
        best = None if plan is None else _valued(plan, cluster)
        plan, refused = _named(on, job, cluster, site, best)
    elif plan is not None:
        # Nobody but its own queue decides when a job of another queue starts.
        wait = wait if suspender(plan.objects[0]) is None else None
        rows = next_best(_as_bound(plan), cluster, _valued(plan, cluster), top) if top > 1 else ()
        advice = advice_on_plan(plan, cluster, site)
    if plan is not None:
        request = _as_bound(plan)
    else:
        request = request_of(shape.choose_pod_shape(job, cluster, site, later=True), cluster, site)
    # An engine that binds by itself allocates GPUs to all jobs in the same way.
    apart = (implied or not asked.gputopology) and site.native is None
    # A job without --gputopology is not in the queue: it may get reserved GPUs too.
    others = cluster.unreserved() if apart else cluster
    compared = compare_schedulers(
        request,
        others,
        set_aside_for_topology(job, cluster) if apart else {},
        # Nor has it what the flags choose that need --gputopology, such as other pods.
        plain=request_of(job.without_choices(), cluster, site) if apart else None,
        blind=request.blind and plan is not None and not _has_gpus(plan),
    )
    free = shape.choose_pod_shape(job, cluster.idle(), site) if on else job
    if on and plan is not None and free.workers != plan.job.workers:
        # The named placement may have pods of another size than the best on an empty cluster.
        idle = cluster.idle()
        empty = structs.replace(request_of(free, idle, site), blind=False)
        compared = replace(compared, best_empty=Solver(idle).find(empty))
    return Proposal(
        job=asked,
        namespace=namespace,
        implied=implied,
        cluster=cluster,
        request=request,
        plan=plan,
        refused=refused,
        comparison=compared,
        advice=advice,
        named=bool(on),
        best=best,
        rows=rows,
        wait=wait,
        ends=wait is not None and (None if backend is None else ends_patience(backend)),
    )


def ends_patience(backend: Backend) -> bool:
    """Whether a program starts waiting jobs, and so ends their patience."""
    return backend.starts_waiting if backend.queue is None else backend.queue.watched()


def _valued(plan: Plan, cluster: Cluster) -> Placement:
    """The placement of a plan with the bandwidth of its pods under their binding."""
    assert plan.placement is not None
    assert plan.binding is not None
    return valued_as(plan.placement, cluster, plan.binding)


def _has_gpus(plan: Plan) -> bool:
    """Whether the GPUs of a plan are named, also where the kubelet may pick others."""
    return plan.placement is not None and all(seat.gpus for seat in plan.placement.assignments)


def _as_bound(plan: Plan) -> Request:
    """The request of a plan under its binding, which may keep its pods apart."""
    assert plan.request is not None
    assert plan.binding is not None
    return structs.replace(plan.request, joined=not plan.binding.separate)


def count_only(job: MPIJob, backend: Backend | None, cluster: Cluster | None = None) -> Counted:
    """Count how often a gang fits by numbers alone, without a choice of GPUs.

    Limits of bandwidth, nodes and levels are ignored.
    """
    site = Site(backend=backend)
    cluster = cluster or site.engine.cluster()
    check_preferred(job, cluster)
    counts = Solver.of(cluster).counts(request_of(job, cluster, site))
    if counts.gangs:
        return Counted(counts=counts)
    never = counts.largest_empty < job.workers
    most = counts.largest_empty if never else counts.largest
    gang = f"{job.workers} x {job.gpus} GPUs"
    refused = f"this cluster has no {gang}" if never else f"no {gang} are free now"
    fits = (
        f"with --workers {most} {once_empty(cluster.nodes)}"
        if never
        else f"now with --workers {most}"
    )
    return Counted(
        counts=counts,
        refused=Unplaceable(
            f"{refused}, even by numbers alone",
            verdict=Verdict.NEVER if never else Verdict.NOT_NOW,
            refusals=(),
            nearest=f"fits {fits}" if most else None,
            notes=cluster.notes,
        ),
    )


def compare_schedulers(
    request: Request,
    cluster: Cluster,
    set_aside: Mapping[NodeName, Reason] | None = None,
    *,
    plain: Request | None = None,
    blind: bool = False,
) -> SchedulerComparison:
    """The best placement on the empty cluster, and the baselines on the cluster as it is now.

    The baselines ignore --min-bandwidth, as they do not know bandwidths. They place `plain`,
    if the job would be another for them. `set_aside` are the nodes that a job without --gputopology
    may not use, for a job of that kind. `blind` is as in the result.
    """
    compared, now = plain or request, Solver.of(cluster)
    request = structs.replace(request, blind=blind)
    excluded = set_aside or compared.excluded
    counted = structs.replace(compared, min_bandwidth=0.0, excluded=excluded, blind=blind)
    return SchedulerComparison(
        best_empty=Solver(cluster.idle()).find(request),
        first_fit=now.first_fit(counted),
        spread=now.spread(counted),
        blind=blind,
    )


# ---------------------------------------------------------------- placements beside the best


def _named(
    text: str, job: MPIJob, cluster: Cluster, site: Site, best: Placement | None
) -> tuple[Plan, Unplaceable | None]:
    """The plan of a placement that the caller names, and why it is not free now, if so."""
    workers = read_placement(text)
    pods = len(workers)
    if job.pod_shape is PodShape.FUSED and (best is None or len(best.assignments) != pods):
        check_fused(workers)
    if job.pod_shape in {PodShape.FUSED, PodShape.AUTO} and job.workers % pods == 0:
        job = shape.with_pod_shape(job, job.workers // pods, site.api)
    seats = seats_of(workers, cluster, pods=job.workers, gpus=job.gpus)
    request = request_of(job, cluster, site)
    placement = Solver.of(cluster).value(request, seats)
    hindrances = "; ".join(Solver.of(cluster).hindrances(request, seats))
    # What is best among free GPUs does not limit GPUs that are in use.
    if best is not None and not hindrances:
        alike = placement.assignments == best.assignments
        proof = best.proof if alike else structs.replace(best.proof, optimal=False)
        placement = structs.replace(placement, proof=proof)
    binding = site.bind(job, placement, cluster)
    decision = Decision(
        job=job, cluster=cluster, request=request, placement=placement, binding=binding
    )
    plan = render_decision(decision, site)
    if not hindrances:
        return plan, None
    return plan, Unplaceable(
        f"{job.name} cannot have this placement now",
        verdict=Verdict.NOT_NOW,
        refusals=(),
        why=hindrances,
        nearest="without --on it gets the best GPUs that are free" if best else None,
    )


def next_best(
    request: Request, cluster: Cluster, first: Placement, rows: int
) -> tuple[Placement, ...]:
    """The best placement and alternatives, at most `top` rows, best first.

    Each row is the best that uses no node of the rows above it.
    """
    solver, placements = Solver.of(cluster), [first]
    while len(placements) < rows:
        used = dict.fromkeys(
            (name for placement in placements for name in placement.nodes), Reason.BUSY
        )
        other = solver.find(structs.replace(request, excluded={**request.excluded, **used}))
        if other is None:
            break
        placements.append(other)
    return tuple(placements)
