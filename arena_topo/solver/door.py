"""Solver: the entry point of the solver for the packages above."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

from arena_topo.solver import (
    UNPROVEN,
    Counts,
    Instead,
    Placement,
    Reason,
    Request,
    Unplaceable,
    baselines,
    gang,
)
from arena_topo.solver.classes import Index, refused, room
from arena_topo.solver.explain import explain
from arena_topo.solver.freeing import Freeing
from arena_topo.solver.gang import Answer, Objective
from arena_topo.solver.valuing import placed
from arena_topo.topology import Cluster, Node, NodeName

__all__ = ["Answer", "Objective", "Solver", "place", "valued"]


class Solver:
    """Places gangs on a cluster, values placements and explains refusals.

    The nodes are sorted once, at the first call; caches of one answer serve the next.
    """

    _recent: ClassVar[deque[Solver]] = deque(maxlen=2)

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @classmethod
    def of(cls, cluster: Cluster) -> Solver:
        """The solver of exactly this cluster; the last two are cached.

        The parts of a plan use the same cluster, and sorting its nodes takes longer than most
        answers.
        """
        for solver in tuple(cls._recent):
            if solver.cluster is cluster:
                return solver
        solver = cls(cluster)
        cls._recent.append(solver)
        return solver

    @cached_property
    def index(self) -> Index:
        """The nodes in equivalence classes, with their domains."""
        return Index(self.cluster)

    # The best placement

    def place(self, request: Request) -> Placement:
        """The best placement of a gang; Unplaceable says why there is none."""
        placement = self.find(request)
        if placement is None:
            raise self.explain(request)
        return placement

    def find(self, request: Request) -> Placement | None:
        """The best placement of a gang; None, without a reason, if there is none."""
        answer = self.best(request)
        return None if answer is None else self.placement(request, answer)

    def best(self, request: Request) -> Answer | None:
        """The objective of the best placement, and its nodes; None if there is none.

        Compare `worth` of two answers: the smaller is better for the solver.
        """
        return gang.best(request, self.index)

    def placement(self, request: Request, answer: Answer) -> Placement:
        """The workers, nodes and GPUs of an answer of `best`."""
        return gang.placement(request, self.index, answer)

    # Explanations

    def explain(
        self,
        request: Request,
        *,
        others: Sequence[Instead] = (),
        notes: tuple[str, ...] = (),
        each: int = 1,
        fusible: bool = True,
    ) -> Unplaceable:
        """Why a gang has no place, and the smallest change that would give it one.

        `others` are changes of the job outside the request. `notes` are oddities of the cluster
        that may be the reason. `each` is how many workers of the job each worker of the request
        fuses, `fusible` whether fused pods can be a way out.
        """
        return explain(request, self.index, others=others, notes=notes, each=each, fusible=fusible)

    def to_free(self, request: Request) -> str | None:
        """The smallest release for a gang, as a clause: `when 2 more GPUs of node a are free`."""
        return Freeing(request, self.index.pool(request)).clause()

    def hindrance(self, request: Request, node: Node, workers: int) -> Reason | None:
        """Why a node does not take so many workers now; None if it does."""
        reason = refused(request, node)
        if reason is not None or room(request, node) >= workers:
            return reason
        return Reason.BUSY if node.free_count < workers * request.gpus else Reason.RESOURCES

    def usable(self, request: Request) -> list[Node]:
        """The nodes that a gang may use, once enough of their GPUs are free."""
        return [node for node in self.cluster.nodes if refused(request, node) is None]

    def capable(self, request: Request, answer: Answer) -> Iterator[Node]:
        """The nodes that take a worker of a gang at the bandwidth of an answer of `best`."""
        candidates = self.index.candidates(replace(request, workers=1))
        terms, bandwidth = answer.floor.terms, answer.floor.bandwidth
        able = (
            at
            for at, node_class in enumerate(candidates.classes)
            if node_class.capacity and node_class.best(1, terms) >= bandwidth
        )
        return (node for _, _, node in candidates.members(able))

    # Other placements

    def value(
        self, request: Request, workers: Iterable[tuple[NodeName, tuple[int, ...]]]
    ) -> Placement:
        """The placement of workers on these nodes and GPUs, with its estimates; not proven.

        A worker without GPUs gets the GPUs that the kubelet picks: the slowest count. KeyError for
        a node that the cluster does not have.
        """
        pairs = list(workers)
        names = {name for name, _ in pairs}
        nodes = {node.name: node for node in self.cluster.nodes if node.name in names}
        seats = [(nodes[name], gpus) for name, gpus in pairs]
        return placed(seats, request, self.cluster, proof=UNPROVEN)

    def valued(self, placement: Placement, *, joined: bool) -> Placement:
        """The same placement with its estimates if pods of a node are `joined`, or not."""
        workers = [(assignment.node, assignment.gpus) for assignment in placement.assignments]
        request = Request(
            workers=len(workers), gpus=placement.gpus, joined=joined, wire=placement.wire
        )
        value = self.value(request, workers)
        return replace(value, assignments=placement.assignments, proof=placement.proof)

    def first_fit(self, request: Request) -> Placement | None:
        """The baseline first fit: nodes filled in the order of their names; None if not all fit."""
        return baselines.first_fit(request, self.cluster)

    def spread(self, request: Request) -> Placement | None:
        """The baseline spread: each worker on the least used node; None if not all fit."""
        return baselines.spread(request, self.cluster)

    def counts(self, request: Request) -> Counts:
        """How many of these gangs fit by counting."""
        return baselines.counts(request, self.cluster)


def place(request: Request, cluster: Cluster) -> Placement:
    """The best placement of one gang on a cluster; Unplaceable says why there is none."""
    return Solver(cluster).place(request)


def valued(placement: Placement, cluster: Cluster, *, joined: bool) -> Placement:
    """The same placement with its estimates if pods of a node are `joined`, or not."""
    return Solver(cluster).valued(placement, joined=joined)
