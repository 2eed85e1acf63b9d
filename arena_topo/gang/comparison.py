"""What `plan` shows beside a placement: what it is measured against, and what would do better."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from arena_topo.bandwidth import Wire
from arena_topo.engines import Backend
from arena_topo.errors import ArenaError, UsageError
from arena_topo.gang import planning, shape
from arena_topo.gang.planning import (
    built,
    check_preferred,
    mechanisms_in,
    seen,
    set_aside_for_topology,
    version,
)
from arena_topo.job import MPIJob, PodShape
from arena_topo.manifests import Mechanisms, Plan, estimates
from arena_topo.manifests.annotations import parse_map
from arena_topo.manifests.binding import bind
from arena_topo.manifests.forecast import counted_on, valued_as
from arena_topo.manifests.versions import ApiVersion
from arena_topo.solver import (
    Counts,
    Objective,
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
from arena_topo.topology import Cluster, GPUSet, Node, NodeName, count, gpu_set, members, natural

RDMA_DEVICE = "rdma/hca"
"""What --rdma asks for."""

_MOST_TRIED = 8
"""Nodes of a row that are left out one by one; of a large gang more would take seconds."""

_NEAR = 3
"""Nodes of similar names that the error of an unknown one lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What others would give the same gang; None where it does not fit.

    `best_empty` is the best placement on this cluster without any other job; `first_fit` and
    `spread` are what schedulers that do not know topology would do now (solver/baselines.py).
    """

    best_empty: Placement | None
    first_fit: Placement | None
    spread: Placement | None


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

    `on` is a placement to value instead of the best, as `named` reads it. `top` is how
    many placements are listed, the best among them. A job without --gputopology is planned as if
    it had it. UsageError where there is nothing to place on, or of `named`.
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
    assert plan.placement is not None
    return replace(
        found,
        plan=plan,
        request=request,
        comparison=compare(request, cluster, set_aside),
        advice=advised(plan, backend, cluster, lambda: mechanisms_in(backend, namespace)),
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
    comparison, idle = compare(request, cluster, set_aside), cluster.idle()
    free = shape.shaped(job, idle, backend, api=api)
    if free.workers != asked.job.workers:
        # The placement named has pods of another size than the best on an empty cluster.
        empty = Solver(idle).find(planning.request_of(free, cluster, backend, api=api))
        comparison = replace(comparison, best_empty=empty)
    return replace(
        found,
        plan=plan,
        refused=refused,
        request=request,
        comparison=comparison,
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


def advised(
    plan: Plan,
    backend: Backend | None,
    cluster: Cluster,
    mechanisms: Callable[[], Mechanisms | None] = lambda: None,
) -> tuple[str, ...]:
    """What would give the pods of a plan more: another shape of theirs, or the NICs of their nodes.

    `cluster` is as the plan was made on it, so it may be said of a job that holds its GPUs by now;
    `mechanisms` are those of its namespace.
    """
    advice = _other_shape(plan, backend, cluster, mechanisms), _rdma(plan, cluster)
    return tuple(filter(None, advice))


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
    plan: Plan,
    backend: Backend | None,
    cluster: Cluster,
    mechanisms: Callable[[], Mechanisms | None],
) -> str | None:
    """What pods of another shape could use, on whatever nodes, where that is a higher band.

    Fused pods ask for nothing of the cluster, so `shared` is named only where it gives more.
    """
    forecast, binding, job = plan.forecast, plan.binding, plan.job
    if forecast is None or forecast.usable is None or binding is None or not binding.separate:
        return None
    if job.pod_shape is PodShape.FUSED or job.workers == 1:
        return None
    words, least = None, forecast.usable
    for pods in (PodShape.FUSED, PodShape.SHARED):
        if pods is job.pod_shape or not shape.allows(job, pods):
            continue
        try:
            other = shape.shaped(replace(job, pod_shape=pods), cluster, backend, api=plan.api)
            shape.check(other)
            placement = planning.fit(other, cluster, backend, api=plan.api)
            # The best that it could get; only then the cluster is asked what would hold.
            if placement is None or not _reaches(placement, least):
                continue
            held = bind(other, placement, cluster, plan.api, mechanisms())
        except ArenaError:
            # What cannot be planned in another shape is no advice.
            continue
        found = counted_on(valued_as(placement, cluster, held), held)
        if found is None or not _faster(found.point, least):
            continue
        least = found.point
        gives = _words(estimates.text(found), found.point, placement)
        words = f"--pod-shape shared would give {gives}, where the namespace allows hostIPC"
        if pods is PodShape.FUSED:
            words = _said(job, other.workers, gives)
    return words


def _reaches(placement: Placement, least: float) -> bool:
    return placement.bandwidth is not None and _faster(placement.bandwidth.point, least)


def _said(job: MPIJob, pods: int, words: str) -> str:
    many = f"{pods} pod{'s' * (pods != 1)} of {job.workers // pods} workers"
    return f"--pod-shape fused ({many}) would give {words}"


def _seen(backend: Backend | None, cluster: Cluster | None) -> Cluster:
    if cluster is not None:
        return cluster
    if backend is None:
        raise planning.nothing_to_place_on()
    return backend.cluster()


# ---------------------------------------------------------------- placements beside the best


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A placement that a person names, for a job in the shape that it has there.

    `hindrances` say why the job cannot have it now; none where it can.
    """

    job: MPIJob
    request: Request
    placement: Placement
    hindrances: tuple[str, ...]


def named(
    text: str,
    job: MPIJob,
    cluster: Cluster,
    backend: Backend | None = None,
    *,
    api: ApiVersion | None = None,
    best: Placement | None = None,
) -> Named:
    """Read a placement such as `node-a/0,3;node-b/1,2` and value it; in use or not.

    `best` is what it is measured by. UsageError for nodes and GPUs that are not there, or that are
    not what the job asks for.
    """
    workers = _read(text)
    if job.pod_shape is PodShape.FUSED and (best is None or len(best.assignments) != len(workers)):
        _check_fused(workers)
    job = _shaped(job, len(workers), version(backend, api))
    nodes = {node.name: node for node in cluster.nodes}
    for at, name, gpus in workers:
        if name not in nodes:
            raise _unknown(name, nodes)
        _check(at, nodes[NodeName(name)], gpus, job.gpus)
    seats = [(NodeName(name), gpus) for _at, name, gpus in workers]
    for name, many in Counter(name for name, _gpus in seats).items():
        if many * job.gpus > len(nodes[name].machine.gpus):
            most = len(nodes[name].machine.gpus)
            raise _wrong(f"{many} workers of {job.gpus} GPUs on {name}, which has {most} GPUs")
    request = planning.request_of(job, cluster, backend, api=api)
    solver = Solver(cluster)
    placement = solver.value(request, seats)
    used = [nodes[name] for name in placement.nodes]
    if best is not None:
        proof = Proof(optimal=False, bound=best.proof.bound)
        placement = replace(placement, proof=proof)
    if best is not None and best.proof.optimal and _as_good(placement, best):
        placement = replace(placement, proof=best.proof)
    return Named(
        job=job,
        request=request,
        placement=placement,
        hindrances=tuple(_hindrances(solver, request, seats, used)),
    )


def _read(text: str) -> tuple[tuple[int, str, tuple[int, ...]], ...]:
    try:
        return parse_map(text.replace(" ", ""))
    except ValueError as error:
        raise _wrong(str(error)) from None


def _wrong(
    why: str,
    hint: str = 'name the node and the GPUs of each worker: --on "node-a/0,3;node-b/1,2"',
) -> UsageError:
    return UsageError("--on is invalid", why=why, hint=hint)


def _check_fused(pods: Sequence[tuple[int, str, tuple[int, ...]]]) -> None:
    """Refuse several pods of each node, of which --pod-shape fused makes one."""
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


def _shaped(job: MPIJob, pods: int, api: ApiVersion) -> MPIJob:
    """The job in so many pods; UsageError where it has another number of them."""
    if job.pod_shape in {PodShape.FUSED, PodShape.AUTO} and job.workers % pods == 0:
        return shape.chosen(job, job.workers // pods, api)
    if pods != job.workers:
        asked = f"{job.workers} {'are' if job.workers != 1 else 'is'} asked for"
        raise _wrong(f"it names {pods} worker{'s' * (pods != 1)}, and {asked}")
    return job


def _unknown(name: str, nodes: Mapping[NodeName, Node]) -> UsageError:
    near = difflib.get_close_matches(name, nodes, n=_NEAR)
    known = sorted(nodes, key=natural)
    return UsageError(
        f"--on: this cluster has no node {name}",
        why=None if near else f"it has {', '.join(known[:_NEAR])}{', ...' * (len(known) > _NEAR)}",
        hint=f"did you mean {' or '.join(near)}?" if near else "see them all: arena-topo top node",
    )


def _check(at: int, node: Node, gpus: Sequence[int], size: int) -> None:
    """Refuse GPUs that the node has not, or of which a worker needs another number."""
    most = len(node.machine.gpus)
    if odd := [gpu for gpu in gpus if gpu >= most]:
        has = f"GPUs 0 to {most - 1}" if most > 1 else "GPU 0 alone" if most else "no GPUs"
        raise _wrong(f"worker {at}: {node.name} has {has}, not GPU {odd[0]}")
    # Without any the kubelet picks them.
    if gpus and len(gpus) != size:
        raise _wrong(f"worker {at} has {len(gpus)} GPU{'s' * (len(gpus) != 1)}, and --gpus {size}")


def _as_good(one: Placement, best: Placement) -> bool:
    """Whether no part of the order that is proven tells two placements apart."""
    if one.bandwidth is None or best.bandwidth is None:
        return one.tier == best.tier
    return (
        band(one.bandwidth.point) == band(best.bandwidth.point)
        and (one.tier, len(one.nodes)) == (best.tier, len(best.nodes))
        and one.inside is not None
        and best.inside is not None
        and one.inside.point >= best.inside.point
    )


def _hindrances(
    solver: Solver,
    request: Request,
    seats: Sequence[tuple[NodeName, tuple[int, ...]]],
    used: Sequence[Node],
) -> Iterator[str]:
    """Why these GPUs cannot be had now."""
    loads = Counter(name for name, _gpus in seats)
    for node in used:
        chosen = gpu_set(gpu for name, gpus in seats if name == node.name for gpu in gpus)
        taken = GPUSet(chosen & ~node.free)
        reason = solver.hindrance(request, node, loads[node.name])
        if not taken or reason not in {None, Reason.BUSY, Reason.RESOURCES}:
            if reason is not None:
                yield f"{node.name}: {reason.value}"
            continue
        for some, state in (
            (GPUSet(taken & node.healthy), "in use"),
            (GPUSet(taken & ~node.healthy), "broken"),
        ):
            if some:
                many = count(some) > 1
                which = f"GPU{'s' * many} {', '.join(map(str, members(some)))}"
                yield f"{which} of {node.name} {'are' if many else 'is'} {state}"
    models = {node.machine.model for node in used}
    if len(models) > 1 and not request.mix_models:
        yield "the nodes have different GPU models, which a gang mixes with --mix-models alone"


def next_best(
    request: Request, cluster: Cluster, first: Placement, rows: int
) -> tuple[Placement, ...]:
    """The best placement and those after it, at most so many rows, best first.

    Each row is the best that uses no node of the rows above it. Where too little room is left, it
    is the best that leaves out one node more than the row above.
    """
    solver = Solver(cluster)
    found = [first]
    left_out: dict[NodeName, Reason] = dict(request.excluded)
    while len(found) < rows:
        above = found[-1].nodes
        ways = (
            [above] if len(above) == 1 else [above, *((name,) for name in _unlike(above, cluster))]
        )
        best: tuple[Objective, Placement, dict[NodeName, Reason]] | None = None
        for names in ways:
            without = left_out | dict.fromkeys(names, Reason.BUSY)
            asked = replace(request, excluded=without)
            other = solver.best(asked)
            if other is not None and (best is None or other.worth < best[0]):
                best = other.worth, solver.placement(asked, other), without
            if best is not None and names is above:
                break
        if best is None:
            break
        found.append(best[1])
        left_out = best[2]
    return tuple(found)


def _unlike(names: Sequence[NodeName], cluster: Cluster) -> list[NodeName]:
    """One of each kind of these nodes, as leaving out another of its kind gives the same."""
    nodes = {node.name: node for node in cluster.nodes}
    kinds = {
        (nodes[name].machine.configuration, nodes[name].free, nodes[name].domains): name
        for name in reversed(names)
    }
    return list(kinds.values())[:_MOST_TRIED]
