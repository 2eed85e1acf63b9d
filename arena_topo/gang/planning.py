"""A job on a cluster, in its queue -> its Decision -> its Plan: objects and caveats.

Nothing here writes. `decide` is the only way from a job to a placement: `plan`, `submit`, `resume`
and the controller all use it. `render_decision` makes the objects, and decides nothing any more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from arena_topo.bandwidth.rates import rate_is_assumed
from arena_topo.engines.backend import Backend
from arena_topo.errors import AccessDenied, ArenaError, ClusterError, TimedOut, command
from arena_topo.gang import fairness, shape
from arena_topo.gang.request import (
    ANY_SITE,
    Site,
    alternatives,
    check_preferred,
    request_of,
)
from arena_topo.job import BindingChoice, ConfigFile, MPIJob, PodShape
from arena_topo.layout import duration
from arena_topo.manifests import Binding, PlacementForecast, Plan, estimates, pins, render
from arena_topo.manifests.binding import double_booked
from arena_topo.manifests.cause import Cause, CauseCode, because, in_words, patience_cause
from arena_topo.manifests.forecast import check_bandwidth, counted_on, forecast_of, valued_as
from arena_topo.manifests.recorded_job import job_of
from arena_topo.manifests.versions import ApiVersion
from arena_topo.queueing import Followers
from arena_topo.queueing.patience import PatientWait, waits_for
from arena_topo.solver import (
    Placement,
    Request,
    Unplaceable,
    Verdict,
)
from arena_topo.solver.door import NodeChoice, Solver, network_is_measured
from arena_topo.topology import Cluster, GPUSet, Knowledge, Node, natural_key, published
from arena_topo.topology.fabric import levels_text
from arena_topo.topology.nics import RDMA_DEVICE
from arena_topo.training.workloads import known_workload
from arena_topo.words import counted, listed, shortened

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.dumped import DumpedQueue
    from arena_topo.engines.kubernetes.queued import QueuedJob, QueueFacts, Snapshot
    from arena_topo.queueing.reservation import QueueHead

NO_NODES = Cluster(nodes=())

SOME_JOB = MPIJob(name="some", image="any", command="true")
"""A job of which nothing is known."""

_MINUTE = 60.0
"""Seconds."""

MAX_NAMED_NODES = 3
"""Nodes that a note names before the rest is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """The queue as a gang sees it at `now` (Unix seconds): what it leaves, and how long to wait.

    `left` is the cluster for the gang without what is reserved for `head`, if that comes first;
    `whole` is the cluster with it. `emptied` is the cluster without jobs of arena-topo; None where
    the jobs are not known. The gang is patient `until` a time; with `ends` a program ends its
    patience, so that it waits in place of a placement.
    """

    left: Cluster
    head: QueueHead | None = None
    whole: Cluster | None = None
    emptied: Callable[[], Cluster] | None = None
    now: float = 0.0
    until: float = -math.inf
    ends: bool = False

    @property
    def opening(self) -> float | None:
        """The seconds until the head starts at the latest; None if that is not known."""
        starts = None if self.head is None else self.head.starts
        return None if starts is None else starts - self.now


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision about a job: a placement with its binding, or the reason why there is none.

    `job` has the pods of its shape, and `request` is that of these pods on `cluster`; None for a
    job that is not placed, or without nodes. `wait` is what a patient gang waits for, or, with a
    placement, what it would have waited for. `decided` is False while another program decides.
    """

    job: MPIJob
    cluster: Cluster = NO_NODES
    request: Request | None = None
    placement: Placement | None = None
    binding: Binding | None = None
    refused: Cause | None = None
    nearest: str | None = None
    wait: PatientWait | None = None
    decided: bool = True

    @property
    def waits(self) -> bool:
        """Whether it is the decision to let a gang wait."""
        known = self.decided or self.refused is not None
        return known and self.job.gputopology and self.placement is None

    @property
    def forecast(self) -> PlacementForecast:
        """The forecast to record with the decision."""
        if self.placement is None or self.binding is None:
            emulated = self.cluster.emulated
            return PlacementForecast(state="waiting", cause=self.refused, emulated=emulated)
        return forecast_of(self.placement, self.cluster, self.binding)


# ---------------------------------------------------------------- the placement of a job


def decide(
    job: MPIJob, site: Site, queue: QueueView, *, gated: bool = False, each: int = 1
) -> Decision:
    """The best placement that a mechanism can enforce and that gives pods the bandwidth asked for.

    A patient gang waits for a better one if that is worth it. `gated`: the workers wait at their
    gates already. `each` is how many workers were fused into each worker of `job`. Unplaceable says
    why there is no placement; other errors as of `Site.bind`.
    """
    cluster = queue.left
    decision = decide_unexplained(job, cluster, site, gated=gated)
    request = decision.request
    if decision.placement is not None or request is None:
        return _with_patience(decision, queue)
    refused = _explained(job, request, cluster, each=each, fusible=partial(_fusible, job, site))
    check_picked(job, cluster, site, verdict=refused.verdict, gated=gated)
    raise refused


def _with_patience(decision: Decision, queue: QueueView) -> Decision:
    """The decision, or to wait for more bandwidth."""
    request, offer = decision.request, decision.placement
    if queue.emptied is None or queue.now >= queue.until or request is None or offer is None:
        return decision
    best = Solver.of(queue.emptied()).find(request)
    wait = waits_for(request, offer, best, until=queue.until)
    if wait is None or not queue.ends:
        return replace(decision, wait=wait)
    cause = patience_cause(wait)
    return replace(decision, placement=None, binding=None, refused=cause, wait=wait)


def decide_or_wait(job: MPIJob, site: Site, queue: QueueView, *, gated: bool = False) -> Decision:
    """The result of `decide`, or to wait, with the reason; Unplaceable (NEVER) if it never fits."""
    try:
        return decide(job, site, queue, gated=gated)
    except Unplaceable as refused:
        nearest = refused.nearest
        if queue.head is not None and queue.whole is not None and fit(job, queue.whole, site):
            turn = because(CauseCode.TURN, job=queue.head.gang.key)
            return decision_to_wait(job, site, queue.left, turn, nearest=nearest)
        if refused.verdict is not Verdict.NOT_NOW:
            raise
        return decision_to_wait(job, site, queue.left, in_words(refused.sentence), nearest=nearest)


def decision_to_wait(
    job: MPIJob, site: Site, cluster: Cluster, refused: Cause | None, *, nearest: str | None = None
) -> Decision:
    """The decision that a job, in the pods of its shape, has no placement for a reason."""
    request = request_of(job, cluster, site) if job.gputopology and cluster.nodes else None
    return Decision(job=job, cluster=cluster, request=request, refused=refused, nearest=nearest)


def check_picked(
    job: MPIJob, cluster: Cluster, site: Site, *, verdict: Verdict, gated: bool = False
) -> None:
    """Refuse a job whose GPUs the kubelet picks, and may pick too slow ones for --min-bandwidth.

    Unplaceable, with the bandwidth of the slowest as the advice.
    """
    best = None
    if job.min_bandwidth:
        # An error of the binding must not hide that the job can never have its bandwidth.
        with suppress(ArenaError):
            best = decide_unexplained(replace(job, min_bandwidth=0.0), cluster, site, gated=gated)
    if best is not None and best.placement is not None and best.binding is not None:
        as_bound = valued_as(best.placement, cluster, best.binding)
        if counted_on(as_bound, best.binding) != as_bound.bandwidth:
            check_bandwidth(job, best.placement, cluster, best.binding, verdict=verdict)


def decide_unexplained(
    job: MPIJob, cluster: Cluster, site: Site, *, gated: bool = False
) -> Decision:
    """The result of `decide`; without a placement or a reason if the solver finds nothing.

    If the kubelet would have to pick GPUs on a node whose GPUs arena-topo allocates, the job is
    placed elsewhere.
    """
    unbound: ArenaError | None = None
    request = request_of(job, cluster, site)
    while (placement := Solver.of(cluster).find(request)) is not None:
        try:
            binding = site.bind(job, placement, cluster, gated=gated)
        except ArenaError as error:
            nodes = (node for node in cluster.nodes if node.name in placement.nodes)
            ours = {node.name for node in nodes if double_booked(node)}
            if not ours:
                raise
            unbound = unbound or error
            left = (
                replace(node, free=GPUSet(0)) if node.name in ours else node
                for node in cluster.nodes
            )
            cluster = replace(cluster, nodes=tuple(left))
        else:
            check_bandwidth(job, placement, cluster, binding)
            return Decision(
                job=job,
                cluster=cluster,
                request=request,
                placement=placement,
                binding=binding,
            )
    if unbound is None:
        return Decision(job=job, cluster=cluster, request=request)
    raise Unplaceable(
        unbound.message,
        verdict=Verdict.NOT_NOW,
        refusals=(),
        why=unbound.why,
        nearest=unbound.hint,
        notes=cluster.notes,
    )


def fit(job: MPIJob, cluster: Cluster, site: Site = ANY_SITE) -> Placement | None:
    """The best placement of a job by the solver, whatever enforces it; None without one."""
    return Solver.of(cluster).find(request_of(job, cluster, site))


def best_placement(
    job: MPIJob, request: Request, cluster: Cluster, *, anew: Cluster | None = None
) -> Placement:
    """The best placement of a request of this job; Unplaceable says why there is none.

    `anew` is the cluster for the same job submitted anew, at the end of the queue, if it differs.
    """
    placement = Solver.of(cluster).find(request)
    if placement is None:
        raise _explained(job, request, cluster, anew=anew)
    return placement


def _explained(
    job: MPIJob,
    request: Request,
    cluster: Cluster,
    *,
    each: int = 1,
    fusible: Callable[[Cluster], bool] = lambda _: True,
    anew: Cluster | None = None,
) -> Unplaceable:
    """Why a request of this job has no placement; `fusible`: whether fused pods would have one."""
    limited = bool(request.min_bandwidth or request.per_node)
    reserved = describe_reserved(request, cluster)
    refused = Solver.of(cluster).explain(
        request,
        # The flags that exclude nodes are known here, not in the solver.
        others=alternatives(job, cluster) if request.excluded else (),
        notes=cluster.notes if reserved is None else (*cluster.notes, reserved),
        each=each,
        fusible=limited and job.workers > 1 and fusible(cluster),
        anew=None if anew is None else Solver.of(anew),
    )
    if refused.hint is None and reserved is not None:
        refused.hint = _look_at_reserving(request, cluster)
    return refused


def _look_at_reserving(request: Request, cluster: Cluster) -> str | None:
    """How to see what a gang waits for that gets the GPUs which this one could use."""
    for node in Solver.of(cluster).withheld(request):
        for entry, idle in node.reservations():
            if idle:
                namespace, _, name = entry.job.partition("/")
                return f"{command('why', name, namespace=namespace)} shows what {name} waits for"
    return None


def _fusible(job: MPIJob, site: Site, cluster: Cluster) -> bool:
    """Whether fused pods of a job without a placement would fit, now or once others have ended."""
    if job.pod_shape is PodShape.FUSED or shape.fixes_ranks(job.command):
        return False
    fused = replace(job, pod_shape=PodShape.FUSED)
    for world in (cluster, cluster.idle()):
        each = shape.best_shape(fused, world, site)
        if each is not None:
            # If the kubelet picks the GPUs of pods, they may get less than --min-bandwidth.
            with suppress(ArenaError):
                merged = shape.merge_workers(fused, each, site.api)
                return decide_unexplained(merged, world, site).placement is not None
            return False
    return False


# ---------------------------------------------------------------- the objects of a job


def plan(
    job: MPIJob,
    backend: Backend | None,
    *,
    namespace: str,
    api: ApiVersion | None = None,
    cluster: Cluster | None = None,
    files: Mapping[ConfigFile, str] | None = None,
) -> Plan:
    """Plan everything about a job without writing anything; Unplaceable if it does not fit.

    `cluster` is the cluster to place on; without it the backend is read. Without both, a job that
    is not placed can still be planned. `files` holds the text of each `--config-file`.
    """
    site = Site(backend=backend, namespace=namespace, version=api, files=files or {})
    if cluster is None:
        cluster = queue_for_new_job(job, site).left if job.gputopology else NO_NODES
    decision = decide_new(job, site, QueueView(left=cluster))
    return render_decision(decision, site)


def decide_new(job: MPIJob, site: Site, queue: QueueView) -> Decision:
    """The decision about a new job, whose pods get their shape; errors as of `decide`."""
    check_new(job)
    if not job.gputopology:
        _check_size(job, site, queue.left)
        return Decision(job=job, cluster=queue.left)
    # By counting alone nothing fits better than separate pods. With these limits larger pods may:
    # the refusal names those that would fit once others have ended.
    later = bool(job.min_bandwidth or job.host_network)
    shaped = as_pods(job, queue.left, site, later=later)
    return decide(shaped, site, queue, each=job.workers // shaped.workers)


def to_create(job: MPIJob, site: Site) -> Decision:
    """The decision about a new job that may wait, for an engine that queues by itself.

    Unplaceable (NEVER) if it cannot fit even when all other jobs have ended.
    """
    if not job.gputopology:
        return decide_new(job, site, QueueView(left=NO_NODES))
    queue = queue_for_new_job(job, site)
    try:
        return decide_new(job, site, QueueView(left=queue.left))
    except Unplaceable as refused:
        if refused.verdict is not Verdict.NOT_NOW:
            raise
        cause, nearest = in_words(refused.sentence), or_backfill(refused.nearest, job, queue, site)
        return decision_to_wait(job, site, queue.left, cause, nearest=nearest)


def check_possible(job: MPIJob, cluster: Cluster, site: Site) -> None:
    """Unplaceable (NEVER) if a cluster can never hold a gang, whatever ends."""
    try:
        best_placement(job, request_of(job, cluster, site), cluster)
    except Unplaceable as refused:
        if refused.verdict is not Verdict.NOT_NOW:
            raise


def check_new(job: MPIJob) -> None:
    """Refuse a new job whose command or workload is wrong on every cluster: an ArenaError."""
    shape.check_ranks(job)
    if job.workload:
        known_workload(job.workload)


def as_pods(job: MPIJob, cluster: Cluster, site: Site, *, later: bool) -> MPIJob:
    """A job to place, in the pods of its shape; InvalidJob for a level with an unknown name."""
    check_preferred(job, cluster)
    return shape.choose_pod_shape(job, cluster, site, later=later)


def queue_for_new_job(job: MPIJob, site: Site) -> QueueView:
    """The queue as a job at a site sees it that is yet to be submitted."""
    backend = site.engine
    queue, pausing = backend.queue, backend.pausing
    if pausing is not None:
        left, now = pausing.left(float(job.running_timeout) or None), time.time()

        def machines() -> Cluster:
            return replace(left, nodes=tuple(backend.machines()))

        reserved = any(node.reserved for node in left.nodes)
        return QueueView(
            left=left,
            head=pausing.head() if reserved else None,
            whole=left.unreserved(),
            emptied=machines,
            now=now,
            until=now + job.patience,
        )
    with suppress(AccessDenied):
        if queue is not None:
            return queue_seen_by_new_job(queue.read(), queue, site, job)
    return QueueView(left=backend.cluster())


def queue_seen_by_new_job(view: Snapshot, queue: QueueFacts, site: Site, job: MPIJob) -> QueueView:
    """The queue of a snapshot as a job at a site sees it that is yet to be submitted."""
    priority = queue.priority(job.priority)
    mine = fairness.newcomer(job, namespace=site.namespace, priority=priority)
    head = head_of_queue(view, queue, site)
    return queue_behind(head, mine, view.cluster(), view, until=view.now + job.patience)


def queue_behind(
    head: QueueHead | None,
    mine: QueuedJob,
    whole: Cluster,
    view: Snapshot,
    *,
    until: float,
    ends: bool = False,
) -> QueueView:
    """The queue as a gang sees it, beside its head; `whole` is the cluster without the gang."""
    left = fairness.left_to(mine, whole, head, view.now)
    return QueueView(
        left=left,
        head=None if left is whole else head,
        whole=whole,
        emptied=view.emptied,
        now=view.now,
        until=until,
        ends=ends,
    )


def queue_in_dumps(queue: DumpedQueue, namespace: str, job: MPIJob = SOME_JOB) -> QueueView:
    """The queue in dumps as a job sees it that is yet to be submitted, as on a living cluster."""
    view = queue_seen_by_new_job(queue.snapshot, queue, Site(namespace=namespace), job)
    doubts = queue.doubts(job.priority)
    return replace(view, left=replace(view.left, notes=(*view.left.notes, *doubts)))


def backfill(job: MPIJob, queue: QueueView, site: Site) -> str | None:
    """Which --running-timeout lets a gang that was refused start before the head of the queue.

    None if none does, or if the gang would not fit without the head either.
    """
    advice = backfill_advice(queue.opening)
    if advice is None or queue.whole is None:
        return None
    shaped = as_pods(job, queue.whole, site, later=False)
    return None if fit(shaped, queue.whole, site) is None else advice


def or_backfill(nearest: str | None, job: MPIJob, queue: QueueView, site: Site) -> str | None:
    """What would let a gang that was refused start now: the nearest change, or a time limit."""
    return "; or ".join(filter(None, (nearest, backfill(job, queue, site)))) or None


def backfill_advice(opening: float | None) -> str | None:
    """Which --running-timeout helps while GPUs are reserved for a gang that starts in so long.

    `opening` is in seconds, None if it is not known.
    """
    if opening is None or opening < _MINUTE:
        return None
    # A job that ends before the other can start delays nobody.
    limit = duration(opening - opening % _MINUTE)
    return f"with a --running-timeout shorter than {limit} it may start first, as backfill"


def describe_reserved(request: Request, cluster: Cluster) -> str | None:
    """The GPUs that this gang could use now if they were not reserved; None without any.

    A clause for each gang that gets them: their number, their nodes, and the gang.
    """
    gpus: dict[str, dict[str, int]] = {}
    heads: set[str] = set()
    for node in Solver.of(cluster).withheld(request):
        for entry, idle in node.reservations():
            if idle:
                of_gang = gpus.setdefault(entry.job, {})
                of_gang[node.name] = of_gang.get(node.name, 0) + idle
                heads |= set() if entry.restart else {entry.job}
    clauses = []
    for job in sorted(gpus, key=lambda job: job not in heads):
        names, number = sorted(gpus[job], key=natural_key), sum(gpus[job].values())
        if len(names) > MAX_NAMED_NODES:
            names[MAX_NAMED_NODES:] = [f"{len(names) - MAX_NAMED_NODES} more"]
        whose = f"{job}, which comes first in the queue"
        clauses.append(
            f"{counted(number, 'GPU')} of {listed(names)} {'is' if number == 1 else 'are'} reserved"
            f" for {whose if job in heads else f'the next start of {job}'}"
        )
    return "; ".join(clauses) or None


def _slowed(request: Request, cluster: Cluster) -> str | None:
    """The reservation without which a gang that fits would get a better place; None without one."""
    reserved = describe_reserved(request, cluster)
    if reserved is None:
        return None
    ours = Solver.of(cluster).best(request)
    best = Solver(cluster.unreserved()).best(request)
    better = ours is None or (best is not None and _grade(best) < _grade(ours))
    return reserved if better else None


def _grade(answer: NodeChoice) -> tuple[float, ...]:
    """The part of an objective that the pods of a job notice: smaller is better."""
    worth = answer.worth
    return worth.reach, worth.assumed, worth.band, worth.distance, worth.nodes


def head_of_queue(
    view: Snapshot,
    queue: QueueFacts,
    site: Site,
    known: dict[tuple[str, str], bool] | None = None,
    followers: Followers | None = None,
) -> QueueHead | None:
    """The head of the queue with its reservation; None if no gang waits that could start.

    `known` remembers, for the gangs of one view, which of them are blocked: that takes a request.
    """
    known = {} if known is None else known

    def blocked(gang: QueuedJob) -> bool:
        if gang.key not in known:
            known[gang.key] = _blocked(gang, view, queue, site)
        return known[gang.key]

    return fairness.find_head(view, site, blocked=blocked, followers=followers)


def left_anew(
    mine: QueuedJob, cluster: Cluster, view: Snapshot, queue: QueueFacts, site: Site
) -> Cluster | None:
    """The cluster for a job submitted anew, behind all that wait now; None if that is the same."""
    others = tuple(job for job in view.jobs if job.key != mine.key)
    head = head_of_queue(replace(view, jobs=others), queue, site)
    left = fairness.left_to(replace(mine, created=math.inf), cluster, head, view.now)
    return None if left is cluster else left


def _blocked(head: QueuedJob, view: Snapshot, queue: QueueFacts, site: Site) -> bool:
    """Whether something other than GPUs prevents the start of a gang.

    That is a quota, or a binding that cannot be used, or that gives its pods less bandwidth than
    the gang requires. It is judged as if its starter may patch pods, which the caller may not know.
    """
    if fairness.short_of_quota(queue, head):
        return True
    job = job_of(head.manifest)
    # Workers that request a number of GPUs can always be bound, one way or another.
    if not (
        job.min_bandwidth
        or job.binding is not BindingChoice.AUTO
        or pins.claims_gpus(head.manifest)
    ):
        return False
    try:
        where = replace(site, namespace=head.namespace, patches=True)
        return decide_unexplained(job, view.emptied(), where).placement is None
    except (ClusterError, TimedOut):
        raise
    except ArenaError:
        return True


def render_decision(decision: Decision, site: Site) -> Plan:
    """The plan of a decision, with all the notes for its submitter.

    A gang without a placement is planned to wait, unless nothing was decided about it.
    """
    job, cluster, request = decision.job, decision.cluster, decision.request
    placement, backend = decision.placement, site.backend
    made = render.build_plan(
        job,
        namespace=site.namespace,
        api=site.api,
        owner=site.owner,
        files=site.files,
        request=request,
        placement=placement,
        cluster=cluster,
        waiting=str(decision.refused or "") if decision.waits else None,
        binding=decision.binding,
        avoids_reserved=not job.gputopology and _reserves_nodes(job, site, cluster),
    )
    remarks = (
        *made.notes,
        *_unsuspended(job, site.api),
        *(backend.remarks(job) if backend else ()),
        *_left_out(job, cluster),
        *shape.shape_remarks(made),
        *(_doubts(placement, cluster) if placement else ()),
        *(_without_rdma(job, placement, cluster) if placement and site.native is None else ()),
        *_may_be_less(job, made.forecast),
        *filter(None, [_slowed(request, cluster) if request is not None else None]),
    )
    return msgspec.structs.replace(made, notes=remarks)


def _reserves_nodes(job: MPIJob, site: Site, cluster: Cluster) -> bool:
    """Whether ACK's label reserves some nodes for topology jobs, which other jobs must avoid."""
    label = published.SCHEDULE_LABEL
    return job.gpus > 0 and any(
        node.labels.get(label) == "topology" for node in _nodes(site, cluster)
    )


def _check_size(job: MPIJob, site: Site, cluster: Cluster) -> None:
    """Refuse a worker that asks for more GPUs than any node has; it would wait forever."""
    if job.gpus < 1:
        return
    # A cluster without GPU nodes may add some when a pod requests them.
    most = max((len(node.machine.gpus) for node in _nodes(site, cluster)), default=0)
    if 0 < most < job.gpus:
        raise Unplaceable(
            f"no node has {job.gpus} GPUs",
            verdict=Verdict.NEVER,
            refusals=(),
            nearest=f"the largest worker that fits on this cluster has {most} GPUs: --gpus {most}",
        )


def _nodes(site: Site, cluster: Cluster) -> tuple[Node, ...]:
    """All nodes as far as they are known."""
    return cluster.nodes or (site.backend.machines() if site.backend else ())


# ---------------------------------------------------------------- caveats


_DOUBTS = {
    Knowledge.ASSUMED: "links assumed from the GPU product and count",
    Knowledge.UNKNOWN: "links not known; every path counts as the slowest",
}


def _doubts(placement: Placement, cluster: Cluster) -> Iterator[str]:
    """The basis of the promised bandwidth, if the machines did not report everything themselves."""
    chosen = set(placement.nodes)
    machines = [node.machine for node in cluster.nodes if node.name in chosen]
    doubts = [
        ([machine.name for machine in machines if machine.knowledge is knowledge], words)
        for knowledge, words in _DOUBTS.items()
    ]
    doubts.append(
        ([machine.name for machine in machines if rate_is_assumed(machine)], "NVLink rate assumed")
    )
    for names, words in doubts:
        if names:
            yield f"{shortened(names, 1)}: {words}"
    guess = cluster.guesses.get(placement.tier)
    # Else the speed of the NICs is known.
    if guess and not (
        network_is_measured(placement, cluster)
        or all(
            machine.nics and None not in {nic.speed for nic in machine.nics} for machine in machines
        )
    ):
        yield guess


def _without_rdma(job: MPIJob, placement: Placement, cluster: Cluster) -> Iterator[str]:
    """The note that chosen nodes have no RDMA device to give to pods that request it."""
    chosen = set(placement.nodes)
    names = [node.name for node in cluster.nodes if node.name in chosen and not node.rdma]
    if job.rdma and names:
        where = f"{names[0]} offers" if len(names) == 1 else f"{shortened(names, 1)} offer"
        yield (
            f"{where} pods no RDMA device: the workers cannot start there while --rdma asks for"
            f" {RDMA_DEVICE}"
        )


def _may_be_less(job: MPIJob, forecast: PlacementForecast | None) -> Iterator[str]:
    """Whether the range of a bandwidth begins below the minimum that was asked for."""
    if forecast is not None and forecast.low is not None and forecast.low < job.min_bandwidth:
        yield (
            f"{estimates.recorded_estimate(forecast)}: the low end of the range is less than"
            f" --min-bandwidth {job.min_bandwidth:g}, which the point is judged by"
        )


def _unsuspended(job: MPIJob, api: ApiVersion) -> Iterator[str]:
    """The note that a queue cannot decide when a job with --queue starts."""
    if job.queue and not api.traits.suspends:
        yield (
            f"--queue is an annotation only, since MPIJob {api} cannot be suspended: an operator"
            " that does not know it starts the job at once"
        )


def _left_out(job: MPIJob, cluster: Cluster) -> Iterator[str]:
    """The note that a preferred level does not exist on this cluster."""
    level = job.topology_preferred
    if level and cluster.nodes and level not in cluster.distances:
        yield (
            f"--topology-preferred {level} is left out: this cluster has no such level; its levels:"
            f" {levels_text(cluster)}"
        )
