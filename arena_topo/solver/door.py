"""Solver: all answers about one cluster, for whoever asks from outside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property

from arena_topo.bandwidth import Wire
from arena_topo.solver import gang
from arena_topo.solver.classes import Index, refused
from arena_topo.solver.explain import explain
from arena_topo.solver.gang import Found, Objective
from arena_topo.solver.request import Instead, Placement, Request, Unplaceable
from arena_topo.solver.valuing import Worth, seated, worth
from arena_topo.topology import Cluster, Node, NodeName

__all__ = ["Objective", "Solver", "place", "valued"]


class Solver:
    """Places gangs on a cluster, values placements and explains refusals.

    The nodes are sorted once, at the first question; what one answer took serves the next.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @cached_property
    def index(self) -> Index:
        """The nodes in groups that a job cannot tell apart."""
        return Index(self.cluster)

    def place(self, request: Request) -> Placement:
        """The best placement of a gang; Unplaceable says why there is none."""
        found = self.find(request)
        if found is None:
            raise self.explain(request)
        return found

    def find(self, request: Request) -> Placement | None:
        """The best placement of a gang; None, without looking for reasons, where there is none."""
        found = self.best(request)
        return None if found is None else gang.placement(request, self.index, found)

    def best(self, request: Request) -> Found | None:
        """What the best placement is worth, and its nodes; None where there is none.

        `worth` of two answers says which the solver prefers.
        """
        return gang.best(request, self.index)

    def explain(
        self,
        request: Request,
        *,
        others: Sequence[Instead] = (),
        notes: tuple[str, ...] = (),
        each: int = 1,
        fusible: bool = True,
    ) -> Unplaceable:
        """Why a gang has no place, and the nearest change that would give it one.

        `others` are changes of the job that lie outside the request. `notes` are oddities of the
        cluster that may be behind it. `each` is how many workers of the job one of the request
        stands for, `fusible` whether fused pods would be a way out at all.
        """
        return explain(request, self.index, others=others, notes=notes, each=each, fusible=fusible)

    def usable(self, request: Request) -> list[Node]:
        """The nodes that a gang may use, once enough of their GPUs are free."""
        return [node for node in self.cluster.nodes if refused(request, node) is None]

    def value(
        self,
        workers: Iterable[tuple[NodeName, tuple[int, ...]]],
        *,
        gpus: int,
        joined: bool,
        wire: Wire,
    ) -> Worth:
        """What workers of `gpus` GPUs each get on these nodes and GPUs.

        A worker without GPUs gets those that the kubelet picks: the slowest there are. KeyError for
        a node that the cluster has not.
        """
        return worth(seated(workers, self.cluster), gpus, self.cluster, joined=joined, wire=wire)

    def valued(self, placement: Placement, *, joined: bool) -> Placement:
        """The same placement with what it is worth where pods of a node are `joined`, or not."""
        found = self.value(
            [(one.node, one.gpus) for one in placement.assignments],
            gpus=placement.gpus,
            joined=joined,
            wire=placement.wire,
        )
        return replace(
            placement,
            bandwidth=found.bandwidth,
            inside=found.inside,
            worst=found.worst,
            joined=joined,
        )


def place(request: Request, cluster: Cluster) -> Placement:
    """The best placement of one gang on a cluster; Unplaceable says why there is none."""
    return Solver(cluster).place(request)


def valued(placement: Placement, cluster: Cluster, *, joined: bool) -> Placement:
    """The same placement with what it is worth where pods of a node are `joined`, or not."""
    return Solver(cluster).valued(placement, joined=joined)
