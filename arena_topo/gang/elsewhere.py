"""Placements beside the best: one that a person names, and the next best on other nodes."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from arena_topo.engines import Backend
from arena_topo.errors import UsageError
from arena_topo.gang import planning, shape
from arena_topo.job import MPIJob, PodShape
from arena_topo.manifests.annotations import parse_map
from arena_topo.manifests.versions import ApiVersion
from arena_topo.solver import (
    Objective,
    Placement,
    Proof,
    Reason,
    Request,
    Solver,
    band,
)
from arena_topo.topology import Cluster, GPUSet, Node, NodeName, count, gpu_set, members, natural

_MOST_TRIED = 8
"""Nodes of a row that are left out one by one; of a large gang more would take seconds."""

_NEAR = 3
"""Nodes of similar names that the error of an unknown one lists."""


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
    job = _shaped(job, len(workers), planning.version(backend, api))
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


def _wrong(why: str) -> UsageError:
    return UsageError(
        "--on is invalid",
        why=why,
        hint='name the node and the GPUs of each worker: --on "node-a/0,3;node-b/1,2"',
    )


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
