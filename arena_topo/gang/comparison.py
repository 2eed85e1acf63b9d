"""What `plan` shows beside a placement: what it is measured against, and what would do better."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from arena_topo.bandwidth import Wire
from arena_topo.engines import Backend
from arena_topo.errors import ArenaError
from arena_topo.gang import planning, shape
from arena_topo.gang.elsewhere import named, next_best
from arena_topo.gang.planning import built, check_preferred, seen, set_aside_for_topology
from arena_topo.job import MPIJob, PodShape
from arena_topo.manifests import Plan, estimates
from arena_topo.manifests.forecast import counted_on, valued_as
from arena_topo.manifests.versions import ApiVersion
from arena_topo.solver import (
    Baseline,
    Counts,
    Placement,
    Reason,
    Request,
    Solver,
    Unplaceable,
    Verdict,
    band,
    once_empty,
    valued,
)
from arena_topo.topology import Cluster, Node, NodeName

RDMA_DEVICE = "rdma/hca"
"""What --rdma asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What others would give the same gang; None where it does not fit.

    `best_empty` is the best placement on this cluster without any other job; `first_fit` and
    `spread` are what schedulers that do not know topology would do now (solver/baselines.py).
    """

    best_empty: Placement | None
    first_fit: Baseline | None
    spread: Baseline | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A plan, or why there is none, with all that a person needs to judge it.

    `job` is as it was asked; without --gputopology `plan` is what it would get with it, and the
    `comparison` what it gets. Where a person named the placement (`named`), `best` is the best that
    fits now; a placement that cannot be had now is planned and `refused`. `rows` are the best
    placement and the next best, where they were asked for. `request` and `comparison` are of the
    pods in the shape that was planned; they are None for a job without GPUs.
    """

    job: MPIJob
    namespace: str
    cluster: Cluster | None = None
    request: Request | None = None
    plan: Plan | None = None
    refused: Unplaceable | None = None
    comparison: Comparison | None = None
    advice: tuple[str, ...] = ()
    named: bool = False
    best: Placement | None = None
    rows: tuple[Placement, ...] = ()

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
    def notes(self) -> tuple[str, ...]:
        """What a person should know of the cluster."""
        if self.plan is not None:
            return self.plan.notes
        return self.cluster.notes if self.cluster is not None else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """How often a gang fits by numbers alone; `refused` says that it does not."""

    counts: Counts
    refused: Unplaceable | None = None

    @property
    def verdict(self) -> Verdict:
        """Whether the gang fits by numbers."""
        return Verdict.PLACEABLE if self.refused is None else self.refused.verdict


def propose(
    job: MPIJob,
    backend: Backend | None,
    *,
    namespace: str,
    api: ApiVersion | None = None,
    cluster: Cluster | None = None,
    on: str = "",
    top: int = 1,
) -> Proposal:
    """Plan a job as `planning.plan` does, and compare; a refusal is part of the answer here.

    `on` is a placement to value instead of the best, as `elsewhere.named` reads it. `top` is how
    many placements are listed, the best among them. A job without --gputopology is planned as if
    it had it. UsageError where there is nothing to place on, or of `elsewhere.named`.
    """
    if not (job.gputopology or job.gpus):
        plan = planning.plan(job, backend, namespace=namespace, api=api, cluster=cluster)
        return Proposal(job=job, namespace=namespace, cluster=cluster, plan=plan)
    asked, job = job, replace(job, gputopology=True)
    if cluster is None and backend is not None:
        cluster = seen(job, backend, namespace)
    cluster = _seen(backend, cluster)
    found = Proposal(job=asked, namespace=namespace, cluster=cluster)
    set_aside = (
        {} if asked.gputopology or _native(backend) else set_aside_for_topology(job, cluster)
    )
    try:
        plan = planning.plan(job, backend, namespace=namespace, api=api, cluster=cluster)
    except Unplaceable as refused:
        if on:
            return _named(found, on, job, backend, api=api, best=None, set_aside=set_aside)
        shaped = shape.shaped(job, cluster, backend, api=api, later=True)
        request = planning.request_of(shaped, cluster, backend, api=api)
        seen_as = compare(request, cluster, set_aside)
        return replace(found, refused=refused, request=request, comparison=seen_as)
    if on:
        return _named(found, on, job, backend, api=api, best=plan, set_aside=set_aside)
    request = _as_bound(plan)
    advice = (
        _other_shape(plan, job, backend, namespace=namespace, cluster=cluster),
        _rdma(plan, cluster),
    )
    assert plan.placement is not None
    return replace(
        found,
        plan=plan,
        request=request,
        comparison=compare(request, cluster, set_aside),
        advice=tuple(filter(None, advice)),
        rows=next_best(request, cluster, _valued(plan, cluster), top) if top > 1 else (),
    )


def _named(
    found: Proposal,
    on: str,
    job: MPIJob,
    backend: Backend | None,
    *,
    api: ApiVersion | None,
    best: Plan | None,
    set_aside: Mapping[NodeName, Reason],
) -> Proposal:
    """A proposal of the placement that a person names, beside the best plan, if there is one."""
    cluster = _seen(backend, found.cluster)
    top = None if best is None else best.placement
    asked = named(on, job, cluster, backend, api=api, best=top)
    plan = built(
        asked.job,
        backend,
        namespace=found.namespace,
        api=api,
        cluster=cluster,
        request=asked.request,
        placement=asked.placement,
    )
    refused = None
    if asked.hindrances:
        refused = Unplaceable(
            f"{job.name} cannot have this placement now",
            verdict=Verdict.NOT_NOW,
            refusals=(),
            why="; ".join(asked.hindrances),
            nearest="without --on it gets the best GPUs that are free" if best else None,
        )
    request = _as_bound(plan)
    return replace(
        found,
        plan=plan,
        refused=refused,
        request=request,
        comparison=compare(request, cluster, set_aside),
        named=True,
        best=None if best is None else _valued(best, cluster),
    )


def _valued(plan: Plan, cluster: Cluster) -> Placement:
    """The placement of a plan with what its pods get as they are bound."""
    assert plan.placement is not None
    if plan.binding is None:
        return plan.placement
    return valued_as(plan.placement, cluster, plan.binding)


def _native(backend: Backend | None) -> bool:
    """Whether an engine itself gives GPUs to jobs, to all alike."""
    return backend is not None and backend.binding is not None


def _as_bound(plan: Plan) -> Request:
    """What the pods of a plan ask of the solver, which their binding may keep apart."""
    assert plan.request is not None
    if plan.binding is None:
        return plan.request
    return replace(plan.request, joined=not plan.binding.separate)


def count_only(job: MPIJob, backend: Backend | None, cluster: Cluster | None = None) -> Counted:
    """Count how often a gang fits by numbers alone, choosing nothing.

    Numbers say nothing of bandwidth, nodes and levels; limits of these are not looked at.
    """
    cluster = _seen(backend, cluster)
    check_preferred(job, cluster, backend)
    found = Solver(cluster).counts(planning.request_of(job, cluster, backend))
    if found.gangs:
        return Counted(counts=found)
    never = found.largest_empty < job.workers
    most = found.largest_empty if never else found.largest
    when = "on this cluster" if never else "now"
    change = (
        f"with --workers {most} {once_empty(cluster)}" if never else f"now with --workers {most}"
    )
    return Counted(
        counts=found,
        refused=Unplaceable(
            f"{job.workers} x {job.gpus} GPUs are not there {when}, even by numbers alone",
            verdict=Verdict.NEVER if never else Verdict.NOT_NOW,
            refusals=(),
            nearest=f"fits {change}" if most else None,
            notes=cluster.notes,
        ),
    )


def compare(
    request: Request, cluster: Cluster, set_aside: Mapping[NodeName, Reason] | None = None
) -> Comparison:
    """What the empty cluster would allow, and what schedulers that only count would do now.

    Who only counts GPUs knows no bandwidth to keep to. `set_aside` are the nodes that a job without
    --gputopology may not use, where the job is of this kind.
    """
    excluded = set_aside or request.excluded
    counted, now = replace(request, min_bandwidth=0.0, excluded=excluded), Solver(cluster)
    return Comparison(
        best_empty=Solver(cluster.idle()).find(request),
        first_fit=now.first_fit(counted),
        spread=now.spread(counted),
    )


def advised(plan: Plan, cluster: Cluster) -> tuple[str, ...]:
    """What would give the pods of a plan more, on the very nodes of the plan.

    Unlike the advice of `propose` it places nothing anew, as the job may hold its GPUs by now.
    """
    return tuple(filter(None, (_fused_there(plan, cluster), _rdma(plan, cluster))))


def _fused_there(plan: Plan, cluster: Cluster) -> str | None:
    """What fused pods would get of these GPUs; None where it is no more.

    They can be fused where each node has as many workers as the others.
    """
    placement, binding, forecast = plan.placement, plan.binding, plan.forecast
    if placement is None or binding is None or forecast is None or forecast.usable is None:
        return None
    loads = set(Counter(one.node for one in placement.assignments).values())
    if not binding.separate or plan.job.pod_shape is PodShape.FUSED or len(loads) > 1:
        return None
    if not shape.allows(plan.job, PodShape.FUSED):
        return None
    [together] = loads
    joined = valued(placement, cluster, joined=True)
    found = counted_on(joined, binding)
    if together == 1 or found is None or not _faster(found.point, forecast.usable):
        return None
    words = _words(estimates.text(found), found.point, joined)
    return _said(plan.job, len(placement.assignments) // together, words)


def _faster(found: float, than: float) -> bool:
    """Whether a bandwidth is worth a word: in a higher band of the solver."""
    return band(found) > band(than)


def _words(text: str, counted: float, placement: Placement | None) -> str:
    """What pods can count on, and what the GPUs planned would give where that is more."""
    planned = placement.bandwidth if placement is not None else None
    if planned is None or planned.point <= counted:
        return text
    return f"{text} at worst, {estimates.amount(planned.point)} as planned"


def _rdma(plan: Plan, cluster: Cluster) -> str | None:
    """What the pods of a plan would get over the NICs of their nodes, which nobody gives them.

    None where they have them, where the nodes tell of no NIC, and where it is no more.
    """
    placement, binding, forecast = plan.placement, plan.binding, plan.forecast
    if placement is None or binding is None or forecast is None or forecast.usable is None:
        return None
    chosen = set(placement.nodes)
    nodes = [node for node in cluster.nodes if node.name in chosen]
    if placement.wire is Wire.RDMA or not all(node.rdma or _told(node) for node in nodes):
        return None
    other = valued(replace(placement, wire=Wire.RDMA), cluster, joined=not binding.separate)
    found = counted_on(other, binding)
    if found is None or not _faster(found.point, forecast.usable):
        return None
    words = f"would give these pods {estimates.text(found)}"
    before = placement.bandwidth.assumed if placement.bandwidth is not None else ()
    if more := [note for note in found.assumed if note not in before]:
        words += f", assumed: {'; '.join(more)}"
    offered = {node.rdma for node in nodes}
    if offered == {RDMA_DEVICE}:
        return f"--rdma {words}"
    if len(offered) == 1 and "" not in offered:
        return f"--device {offered.pop()}=1 {words}"
    return f"the NICs of these nodes {words}; no resource gives them to pods of all these nodes"


def _told(node: Node) -> bool:
    """Whether a node is known to have NICs, and not only taken for a machine that has some."""
    return bool(node.machine.nics) and not node.machine.nics_assumed


def _other_shape(
    plan: Plan, job: MPIJob, backend: Backend | None, *, namespace: str, cluster: Cluster
) -> str | None:
    """What pods of another shape could use, on whatever nodes, where that is a higher band.

    Fused pods ask for nothing of the cluster, so `shared` is named only where it gives more.
    """
    forecast, binding = plan.forecast, plan.binding
    if forecast is None or forecast.usable is None or binding is None or not binding.separate:
        return None
    if job.pod_shape in {PodShape.FUSED, PodShape.AUTO} or job.workers == 1:
        return None
    words, least = None, forecast.usable
    for pods in (PodShape.FUSED, PodShape.SHARED):
        if pods is job.pod_shape or not shape.allows(job, pods):
            continue
        asked = replace(job, pod_shape=pods)
        if pods is PodShape.SHARED and not _reaches(asked, backend, plan.api, cluster, least):
            continue
        try:
            other = planning.plan(
                asked, backend, namespace=namespace, api=plan.api, cluster=cluster
            )
        except ArenaError:
            # What cannot be planned in another shape is no advice.
            continue
        found = other.forecast
        if found is None or found.usable is None or not _faster(found.usable, least):
            continue
        least = found.usable
        gives = _words(estimates.recorded(found), found.usable, other.placement)
        words = (
            _said(job, other.job.workers, gives)
            if pods is PodShape.FUSED
            else f"--pod-shape shared would give {gives}, where the namespace allows hostIPC"
        )
    return words


def _reaches(
    job: MPIJob, backend: Backend | None, api: ApiVersion, cluster: Cluster, than: float
) -> bool:
    """Whether pods that share could be faster at all; that costs no question to the cluster."""
    try:
        request = planning.request_of(job, cluster, backend, api=api)
    except ArenaError:
        return False
    found = Solver(cluster).best(request)
    return found is not None and _faster(found.bandwidth, than)


def _said(job: MPIJob, pods: int, words: str) -> str:
    many = f"{pods} pod{'s' * (pods != 1)} of {job.workers // pods} workers"
    return f"--pod-shape fused ({many}) would give {words}"


def _seen(backend: Backend | None, cluster: Cluster | None) -> Cluster:
    if cluster is not None:
        return cluster
    if backend is None:
        raise planning.nothing_to_place_on()
    return backend.cluster()
