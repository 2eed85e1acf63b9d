"""What `plan` shows beside a placement: baselines, and changes that would give more bandwidth."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from arena_topo.bandwidth import Estimate, Wire
from arena_topo.engines import Backend
from arena_topo.errors import ArenaError, UsageError
from arena_topo.gang import planning, shape
from arena_topo.gang.planning import Decision, built, seen
from arena_topo.gang.request import Site, check_preferred, request_of, set_aside_for_topology
from arena_topo.job import MPIJob, PodShape
from arena_topo.manifests import Plan, estimates
from arena_topo.manifests.annotations import parse_map
from arena_topo.manifests.forecast import counted_on, valued_as
from arena_topo.manifests.versions import ApiVersion
from arena_topo.solver import (
    Counts,
    Placement,
    Proof,
    Reason,
    Request,
    Solver,
    Unplaceable,
    Verdict,
    band,
    once_empty,
    valued,
)
from arena_topo.topology import Cluster, GPUSet, Node, NodeName, count, gpu_set, members

RDMA_DEVICE = "rdma/hca"
"""The flag that requests RDMA devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What other schedulers would give the same gang; each value is None if the gang does not fit.

    `best_empty` is the best placement on this cluster without any other job; `first_fit` and
    `spread` are the baselines: schedulers without topology, on the cluster as it is now
    (solver/baselines.py).
    """

    best_empty: Placement | None
    first_fit: Placement | None
    spread: Placement | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A plan, or the reason why there is none, with the data to judge it.

    `job` is the job as it was asked. Without --gputopology `plan` is what it would get with that
    flag, and `comparison` what it gets. If the caller named a placement (`named`), `best` is the
    best that fits now; a named placement that is not free now is planned and `refused`. `rows` are
    the best placement and the next best, if they were requested. `request` and `comparison` have
    the pods of the planned shape; they are None for a job without GPUs.
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
        """Notes on the cluster for a person."""
        if self.plan is not None:
            return self.plan.notes
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
    on: str = "",
    top: int = 1,
) -> Proposal:
    """Plan a job as `planning.plan` does, and compare; a refusal is part of the result here.

    `on` is a placement such as `node-a/0,3;node-b/1,2`, to be valued instead of the best one,
    whether its GPUs are in use or not. `top` is how many placements are listed, the best among
    them. A job without --gputopology is planned as if it had it. UsageError if there is nothing to
    place on, or if `on` names nodes or GPUs that do not exist or do not match the job.
    """
    site = Site(backend=backend, namespace=namespace, version=api)
    if not (job.gputopology or job.gpus):
        ordinary = planning.planned(job, site, cluster)
        return Proposal(job=job, namespace=namespace, cluster=cluster, plan=ordinary)
    asked, job = job, replace(job, gputopology=True)
    cluster = cluster or seen(job, site)
    plan: Plan | None = None
    refused: Unplaceable | None = None
    best: Placement | None = None
    rows: tuple[Placement, ...] = ()
    advice: tuple[str, ...] = ()
    try:
        plan = planning.planned(job, site, cluster)
    except Unplaceable as error:
        refused = error
    if on:
        best = None if plan is None else _valued(plan, cluster)
        plan, refused = _named(on, job, cluster, site, best)
    elif plan is not None:
        rows = next_best(_as_bound(plan), cluster, _valued(plan, cluster), top) if top > 1 else ()
        advice = advised(plan, cluster, site)
    if plan is not None:
        request = _as_bound(plan)
    else:
        request = request_of(shape.shaped(job, cluster, site, later=True), cluster, site)
    # An engine that binds by itself allocates GPUs to all jobs in the same way.
    apart = not asked.gputopology and site.native is None
    compared = compare(request, cluster, set_aside_for_topology(job, cluster) if apart else {})
    free = shape.shaped(job, cluster.idle(), site) if on else job
    if on and plan is not None and free.workers != plan.job.workers:
        # The named placement may have pods of another size than the best on an empty cluster.
        empty = planning.fit(free, cluster.idle(), site)
        compared = replace(compared, best_empty=empty)
    return Proposal(
        job=asked,
        namespace=namespace,
        cluster=cluster,
        request=request,
        plan=plan,
        refused=refused,
        comparison=compared,
        advice=advice,
        named=bool(on),
        best=best,
        rows=rows,
    )


def _valued(plan: Plan, cluster: Cluster) -> Placement:
    """The placement of a plan with the bandwidth of its pods under their binding."""
    assert plan.placement is not None
    assert plan.binding is not None
    return valued_as(plan.placement, cluster, plan.binding)


def _as_bound(plan: Plan) -> Request:
    """The request of a plan under its binding, which may keep its pods apart."""
    assert plan.request is not None
    assert plan.binding is not None
    return replace(plan.request, joined=not plan.binding.separate)


def count_only(job: MPIJob, backend: Backend | None, cluster: Cluster | None = None) -> Counted:
    """Count how often a gang fits by numbers alone, without a choice of GPUs.

    Limits of bandwidth, nodes and levels are ignored.
    """
    site = Site(backend=backend)
    cluster = cluster or site.engine.cluster()
    check_preferred(job, cluster)
    found = Solver.of(cluster).counts(request_of(job, cluster, site))
    if found.gangs:
        return Counted(counts=found)
    never = found.largest_empty < job.workers
    most = found.largest_empty if never else found.largest
    when = "on this cluster" if never else "now"
    fits = f"with --workers {most} {once_empty(cluster)}" if never else f"now with --workers {most}"
    return Counted(
        counts=found,
        refused=Unplaceable(
            f"{job.workers} x {job.gpus} GPUs are not there {when}, even by numbers alone",
            verdict=Verdict.NEVER if never else Verdict.NOT_NOW,
            refusals=(),
            nearest=f"fits {fits}" if most else None,
            notes=cluster.notes,
        ),
    )


def compare(
    request: Request, cluster: Cluster, set_aside: Mapping[NodeName, Reason] | None = None
) -> Comparison:
    """The best placement on the empty cluster, and the baselines on the cluster as it is now.

    The baselines ignore --min-bandwidth, as they do not know bandwidths. `set_aside` are the nodes
    that a job without --gputopology may not use, for a job of that kind.
    """
    excluded = set_aside or request.excluded
    counted, now = replace(request, min_bandwidth=0.0, excluded=excluded), Solver.of(cluster)
    return Comparison(
        best_empty=Solver(cluster.idle()).find(request),
        first_fit=now.first_fit(counted),
        spread=now.spread(counted),
    )


# ---------------------------------------------------------------- changes that would give more


def advised(plan: Plan, cluster: Cluster, site: Site) -> tuple[str, ...]:
    """Changes that would give the pods of a plan more: another shape, or the NICs of their nodes.

    `cluster` is the cluster on which the plan was made, so it also holds for a job that has its
    GPUs by now.
    """
    placement, binding, forecast = plan.placement, plan.binding, plan.forecast
    if placement is None or binding is None or forecast is None or forecast.usable is None:
        return ()
    shapes = _other_shape(plan.job, cluster, site, forecast.usable) if binding.separate else None
    chosen = set(placement.nodes)
    nodes = [node for node in cluster.nodes if node.name in chosen]
    nics = None
    if placement.wire is not Wire.RDMA and all(node.rdma or _has_nics(node) for node in nodes):
        other = valued(replace(placement, wire=Wire.RDMA), cluster, joined=not binding.separate)
        found = counted_on(other, binding)
        if found is not None and band(found.point) > band(forecast.usable):
            nics = _with_nics(nodes, found, placement)
    return tuple(filter(None, (shapes, nics)))


def _has_nics(node: Node) -> bool:
    """Whether the NICs of a node are known, and not assumed from its model."""
    return bool(node.machine.nics) and not node.machine.nics_assumed


def _with_nics(nodes: Sequence[Node], found: Estimate, placement: Placement) -> str:
    """The bandwidth of pods with the NICs of their nodes, which they do not get now."""
    words = f"would give these pods {estimates.text(found)}"
    before = placement.bandwidth.assumed if placement.bandwidth is not None else ()
    if more := [note for note in found.assumed if note not in before]:
        words += f", assumed: {'; '.join(more)}"
    offered = {node.rdma for node in nodes}
    if offered == {RDMA_DEVICE}:
        return f"--rdma {words}"
    if len(offered) == 1 and "" not in offered:
        return f"--device {offered.pop()}=1 {words}"
    return f"these nodes offer pods no common RDMA device; their NICs {words}"


def _other_shape(job: MPIJob, cluster: Cluster, site: Site, least: float) -> str | None:
    """The bandwidth of pods of another shape, on any nodes, if that is in a higher band.

    Fused pods need no support from the cluster, so `shared` is named only if it gives more.
    """
    words = None
    tried = {PodShape.FUSED, PodShape.SHARED} - {job.pod_shape}
    if shape.fixes_ranks(job.command):
        tried.discard(PodShape.FUSED)
    if job.pod_shape is PodShape.FUSED or job.workers == 1:
        return None
    for pods in sorted(tried):
        try:
            other = planning.as_pods(replace(job, pod_shape=pods), cluster, site, later=False)
            found = planning.find(other, cluster, site)
        except ArenaError:
            # A shape that cannot be planned is not advice.
            continue
        if found is None or found.placement is None or found.binding is None:
            continue
        placement, binding = found.placement, found.binding
        counted = counted_on(valued_as(placement, cluster, binding), binding)
        if counted is None or band(counted.point) <= band(least):
            continue
        least, gives = counted.point, estimates.text(counted)
        planned = placement.bandwidth
        if planned is not None and planned.point > least:
            gives += f" at worst, {estimates.amount(planned.point)} as planned"
        words = f"--pod-shape shared would give {gives}, where the namespace allows hostIPC"
        if pods is PodShape.FUSED:
            size = (
                f"{other.workers} pod{'s' * (other.workers != 1)} of {job.workers // other.workers}"
            )
            words = f"--pod-shape fused ({size} workers) would give {gives}"
    return words


# ---------------------------------------------------------------- placements beside the best


def _named(
    text: str, job: MPIJob, cluster: Cluster, site: Site, best: Placement | None
) -> tuple[Plan, Unplaceable | None]:
    """The plan of a placement that the caller names, and why it is not free now, if so."""
    try:
        workers = parse_map(text.replace(" ", ""))
    except ValueError as error:
        raise _wrong(str(error)) from None
    pods, nodes = len(workers), {node.name: node for node in cluster.nodes}
    if job.pod_shape is PodShape.FUSED and (best is None or len(best.assignments) != pods):
        _check_fused(workers)
    if job.pod_shape in {PodShape.FUSED, PodShape.AUTO} and job.workers % pods == 0:
        job = shape.chosen(job, job.workers // pods, site.api)
    elif pods != job.workers:
        asked = f"{job.workers} {'are' if job.workers != 1 else 'is'} asked for"
        raise _wrong(f"it names {pods} worker{'s' * (pods != 1)}, and {asked}")
    for at, name, gpus in workers:
        if name not in nodes:
            raise UsageError(
                f"--on: this cluster has no node {name}", hint="see them all: arena-topo top node"
            )
        _check(at, nodes[NodeName(name)], gpus, job.gpus)
    seats = [(NodeName(name), gpus) for _at, name, gpus in workers]
    for name, many in Counter(name for name, _gpus in seats).items():
        most = len(nodes[name].machine.gpus)
        if many * job.gpus > most:
            raise _wrong(f"{many} workers of {job.gpus} GPUs on {name}, which has {most} GPUs")
    request = request_of(job, cluster, site)
    placement = Solver.of(cluster).value(request, seats)
    if best is not None:
        alike = placement.assignments == best.assignments
        proof = best.proof if alike else Proof(optimal=False, bound=best.proof.bound)
        placement = replace(placement, proof=proof)
    binding = site.bind(job, placement, cluster)
    plan = built(job, site, Decision(cluster=cluster, placement=placement, binding=binding))
    hindrances = "; ".join(
        _hindrances(cluster, request, seats, [nodes[one] for one in placement.nodes])
    )
    if not hindrances:
        return plan, None
    return plan, Unplaceable(
        f"{job.name} cannot have this placement now",
        verdict=Verdict.NOT_NOW,
        refusals=(),
        why=hindrances,
        nearest="without --on it gets the best GPUs that are free" if best else None,
    )


def _wrong(
    why: str,
    hint: str = 'name the node and the GPUs of each worker: --on "node-a/0,3;node-b/1,2"',
) -> UsageError:
    return UsageError("--on is invalid", why=why, hint=hint)


def _check_fused(pods: Sequence[tuple[int, str, tuple[int, ...]]]) -> None:
    """Refuse several pods on one node: --pod-shape fused makes one pod of them."""
    by_node: dict[str, list[tuple[int, ...]]] = {}
    for _at, node, gpus in pods:
        by_node.setdefault(node, []).append(gpus)
    each = math.gcd(*map(len, by_node.values()))
    if each > 1:
        fused = [
            f"{node}/{','.join(map(str, chain(*some[at : at + each])))}"
            for node, some in by_node.items()
            for at in range(0, len(some), each)
        ]
        why = f"--pod-shape fused makes one pod of each {each} that it names on a node"
        raise _wrong(why, f'write --on "{";".join(fused)}"')


def _check(at: int, node: Node, gpus: Sequence[int], size: int) -> None:
    """Refuse GPUs that the node does not have, and a wrong number of them."""
    most = len(node.machine.gpus)
    if odd := [gpu for gpu in gpus if gpu >= most]:
        has = f"GPUs 0 to {most - 1}" if most > 1 else "GPU 0 alone" if most else "no GPUs"
        raise _wrong(f"worker {at}: {node.name} has {has}, not GPU {odd[0]}")
    # Without indexes the kubelet picks the GPUs.
    if gpus and len(gpus) != size:
        raise _wrong(f"worker {at} has {len(gpus)} GPU{'s' * (len(gpus) != 1)}, and --gpus {size}")


def _hindrances(
    cluster: Cluster,
    request: Request,
    seats: Sequence[tuple[NodeName, tuple[int, ...]]],
    used: Sequence[Node],
) -> Iterator[str]:
    """Why these GPUs are not free now, or not usable."""
    solver = Solver.of(cluster)
    loads = Counter(name for name, _gpus in seats)
    for node in used:
        chosen = gpu_set(gpu for name, gpus in seats if name == node.name for gpu in gpus)
        taken = GPUSet(chosen & ~node.free)
        reason = solver.hindrance(request, node, loads[node.name])
        if not taken or reason not in {None, Reason.BUSY, Reason.RESOURCES}:
            if reason is not None:
                yield f"{node.name}: {reason.value}"
            continue
        for some, state in ((taken & node.healthy, "in use"), (taken & ~node.healthy, "broken")):
            if some:
                many = count(GPUSet(some)) > 1
                which = f"GPU{'s' * many} {', '.join(map(str, members(GPUSet(some))))}"
                yield f"{which} of {node.name} {'are' if many else 'is'} {state}"
    models = {node.machine.model for node in used}
    if len(models) > 1 and not request.mix_models:
        yield "the nodes have different GPU models, which a gang mixes with --mix-models alone"


def next_best(
    request: Request, cluster: Cluster, first: Placement, rows: int
) -> tuple[Placement, ...]:
    """The best placement and alternatives, at most `top` rows, best first.

    Each row is the best that uses no node of the rows above it.
    """
    solver, found = Solver.of(cluster), [first]
    while len(found) < rows:
        used = dict.fromkeys((name for one in found for name in one.nodes), Reason.BUSY)
        other = solver.find(replace(request, excluded={**request.excluded, **used}))
        if other is None:
            break
        found.append(other)
    return tuple(found)
