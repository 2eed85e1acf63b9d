"""Why a gang has no place, counted by reason, and the nearest change that would give it one."""

from __future__ import annotations

from dataclasses import replace

from arena_topo.solver import Reason, Refusal, Request, Unplaceable, Verdict
from arena_topo.solver.classes import Index, refused, room
from arena_topo.solver.configurations import table
from arena_topo.solver.gang import Worth, best
from arena_topo.solver.nearest import nearest
from arena_topo.topology import Cluster, Node


def emptied(cluster: Cluster) -> Cluster:
    """The cluster as if every job had ended, and every node and GPU were well again."""
    return replace(
        cluster,
        nodes=tuple(
            replace(
                node,
                free=node.machine.everything,
                hidden=0,
                cpu=node.all_cpu,
                memory=node.all_memory,
                unavailable=None,
            )
            for node in cluster.nodes
        ),
    )


def refusal(request: Request, cluster: Cluster) -> Unplaceable:
    """Why a gang has no place, counted by reason, and what would help."""
    empty = emptied(cluster)
    never = best(request, Index(empty)) is None
    view = empty if never else cluster
    reasons: dict[Reason, list[Node]] = {}
    for node in view.nodes:
        reasons.setdefault(_reason(request, node), []).append(node)
    refusals = tuple(
        Refusal(reason=reason, nodes=len(nodes), example=nodes[0].name)
        for reason, nodes in reasons.items()
    )
    if not cluster.nodes:
        return Unplaceable(
            f"{_wanted(request)} cannot be placed: there are no nodes",
            verdict=Verdict.NEVER,
            refusals=(),
        )
    wanted = _wanted(request)
    verdict = Verdict.NEVER if never else Verdict.NOT_NOW
    message = (
        f"{wanted} can never be placed on this cluster"
        if never
        else f"{wanted} cannot be placed now"
    )
    return Unplaceable(
        message, verdict=verdict, refusals=refusals, nearest=_nearest(request, view, never=never)
    )


def _reason(request: Request, node: Node) -> Reason:
    """What keeps a node from taking the gang, alone or with others."""
    reason = refused(request, node)
    if reason is not None:
        return reason
    if room(request, node) == 0:
        return Reason.BUSY if node.free_count < request.gpus else Reason.RESOURCES
    shape = table(node.machine.configuration)
    if shape.best_hidden(node.free, node.hidden, request.gpus) < request.min_bandwidth:
        return Reason.BANDWIDTH
    return Reason.ROOM


def _wanted(request: Request) -> str:
    workers = f"{request.workers} worker{'s' if request.workers != 1 else ''}"
    gpus = f"{request.gpus} GPU{'s' if request.gpus != 1 else ''}"
    return f"{workers} x {gpus}"


def _nearest(request: Request, view: Cluster, *, never: bool) -> str | None:
    """The nearest request that would fit, or the nearest change of the cluster."""
    kept = Index(view)

    def worth(asked: Request, cluster: Cluster) -> Worth | None:
        found = best(asked, kept if cluster is view else Index(cluster))
        return None if found is None else found.worth

    return nearest(request, view, never=never, best=worth)
