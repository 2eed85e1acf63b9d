"""Why a gang has no place, counted by reason, and the nearest change that would give it one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from arena_topo.solver import Reason, Refusal, Request, Unplaceable, Verdict
from arena_topo.solver.classes import Index, refused, room
from arena_topo.solver.gang import Found, best, certain
from arena_topo.solver.nearest import Instead, made_well, nearest
from arena_topo.topology import Cluster, Node


def emptied(cluster: Cluster) -> Cluster:
    """The cluster as if every job had ended, and every node and GPU were well again."""
    return replace(cluster, nodes=tuple(map(made_well, cluster.nodes)))


def refusal(
    request: Request,
    cluster: Cluster,
    *,
    others: Sequence[Instead] = (),
    notes: tuple[str, ...] = (),
) -> Unplaceable:
    """Why a gang has no place, counted by reason, and what would help.

    `others` are changes of the job that lie outside the request; they are tried with the rest.
    """
    wanted = _wanted(request)
    if not cluster.nodes:
        return Unplaceable(
            f"{wanted} cannot be placed: there are no nodes",
            verdict=Verdict.NEVER,
            refusals=(),
            notes=notes,
        )
    empty = emptied(cluster)
    kept: dict[int, Index] = {}

    def index_of(there: Cluster) -> Index:
        # Building one takes long for a large cluster, and only these two are looked at often.
        index = kept.get(id(there)) or Index(there)
        if there is cluster or there is empty:
            kept[id(there)] = index
        return index

    def found(asked: Request, there: Cluster) -> Found | None:
        return best(asked, index_of(there))

    never = found(request, empty) is None
    if never and request.min_bandwidth:
        # Where not all sets are looked at, one may yet be fast enough.
        never = certain(request, index_of(empty))
    view = empty if never else cluster
    scarce = _scarce(request, index_of(view))
    reasons: dict[Reason, list[Node]] = {}
    for node in view.nodes:
        reasons.setdefault(_reason(request, node) or scarce, []).append(node)
    refusals = tuple(
        Refusal(reason=reason, nodes=len(nodes), example=nodes[0].name)
        for reason, nodes in reasons.items()
    )
    return Unplaceable(
        f"{wanted} can never be placed on this cluster"
        if never
        else f"{wanted} cannot be placed now",
        verdict=Verdict.NEVER if never else Verdict.NOT_NOW,
        refusals=refusals,
        nearest=nearest(
            request,
            view,
            never=never,
            best=found,
            others=others,
            today=cluster,
        ),
        notes=notes,
    )


def _reason(request: Request, node: Node) -> Reason | None:
    """What keeps a node from taking any worker; None if it has room for some."""
    reason = refused(request, node)
    if reason is not None or room(request, node):
        return reason
    return Reason.BUSY if node.free_count < request.gpus else Reason.RESOURCES


def _scarce(request: Request, index: Index) -> Reason:
    """What keeps nodes with room for some workers from taking all, found by trying without it."""
    limits = []
    if request.min_bandwidth:
        limits.append((Reason.BANDWIDTH, replace(request, min_bandwidth=0.0)))
    if request.max_nodes is not None:
        limits.append((Reason.MAX_NODES, replace(request, max_nodes=None)))
    if request.per_node is not None:
        limits.append((Reason.PER_NODE, replace(request, per_node=None)))
    if request.required is not None:
        limits.append((Reason.LEVEL, replace(request, required=None)))
    for reason, without in limits:
        if best(without, index) is not None:
            return reason
    loosest = replace(request, min_bandwidth=0.0, max_nodes=None, per_node=None, required=None)
    if len(limits) > 1 and best(loosest, index) is not None:
        return limits[0][0]
    return Reason.ROOM


def _wanted(request: Request) -> str:
    workers = f"{request.workers} worker{'s' if request.workers != 1 else ''}"
    gpus = f"{request.gpus} GPU{'s' if request.gpus != 1 else ''}"
    return f"{workers} x {gpus}"
