"""Solver: the entry point of the solver for the packages above."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import ClassVar

from msgspec import structs

from arena_topo.solver import (
    UNPROVEN,
    Counts,
    Instead,
    Placement,
    Reason,
    Request,
    Seats,
    Unplaceable,
    Verdict,
    baselines,
    search,
)
from arena_topo.solver.classes import groups_for, is_withheld, refusal_reason, room
from arena_topo.solver.explain import explain_refusal
from arena_topo.solver.fragmentation import proximity
from arena_topo.solver.gpu_sets import GPUSets, sets_of
from arena_topo.solver.index import Index
from arena_topo.solver.release import Freeing
from arena_topo.solver.search import NodeChoice, Objective, Search
from arena_topo.solver.valuation import network_is_measured, value_placement
from arena_topo.topology import Cluster, GPUSet, Node, NodeName, count, gpu_set, members

__all__ = [
    "Follower",
    "GPUSets",
    "NodeChoice",
    "Objective",
    "Solver",
    "network_is_measured",
    "place",
    "proximity",
    "revalue",
    "sets_of",
]


class Solver:
    """Places gangs on a cluster, values placements and explains refusals.

    The nodes are sorted once, at the first call; caches of one answer serve the next. A solver can
    follow its cluster (`put`, `remove`, `changed`): it then answers as a new solver of the changed
    cluster would. It belongs to one thread, and only its owner may change it.
    """

    _recent: ClassVar[deque[Solver]] = deque(maxlen=2)

    def __init__(self, cluster: Cluster) -> None:
        self.given = cluster
        """The cluster that this solver was made for; its network does not change."""
        self._shared = False

    @classmethod
    def of(cls, cluster: Cluster) -> Solver:
        """The solver of exactly this cluster; the last two are cached, so nobody may change them.

        The parts of a plan use the same cluster, and sorting its nodes takes longer than most
        answers.
        """
        for solver in tuple(cls._recent):
            if solver.given is cluster:
                return solver
        solver = cls(cluster)
        solver._shared = True
        cls._recent.append(solver)
        return solver

    @cached_property
    def index(self) -> Index:
        """The nodes by state, with their domains."""
        return Index(self.given)

    @property
    def cluster(self) -> Cluster:
        """The cluster as it is now."""
        return self.index.cluster if self._indexed else self.given

    @property
    def _nodes(self) -> Iterable[Node]:
        return self.index.nodes.values() if self._indexed else self.given.nodes

    @property
    def _indexed(self) -> bool:
        return "index" in self.__dict__

    # Changes

    def put(self, *nodes: Node) -> None:
        """Replace the nodes of these names; a node of a new name has appeared.

        Answers of `best` are of use until then. RuntimeError for a solver that others use too
        (`Solver.of`).
        """
        self._owned().put(nodes)

    def remove(self, *names: NodeName) -> None:
        """Remove the nodes of these names; KeyError for a name that the cluster does not have."""
        if names:
            self._owned().remove(names)

    @contextmanager
    def changed(self, nodes: Iterable[Node]) -> Iterator[None]:
        """Answer as if these nodes were in these states, until the block ends, however it does."""
        after = {node.name: node for node in nodes}
        index = self._owned()
        before = [index.nodes[name] for name in after if name in index.nodes]
        index.put(after.values())
        try:
            yield
        finally:
            new = after.keys() - {node.name for node in before}
            if new:
                index.remove(new)
            index.put(before)

    def _owned(self) -> Index:
        if self._shared:
            raise RuntimeError("a solver of Solver.of is shared: change a solver of your own")
        return self.index

    # The best placement

    def place(self, request: Request) -> Placement:
        """The best placement of a gang; Unplaceable says why there is none."""
        placement = self.find(request)
        if placement is None:
            raise self.explain(request)
        return placement

    def find(self, request: Request) -> Placement | None:
        """The best placement of a gang; None, without a reason, if there is none."""
        if request.seats:
            hindered = any(self._kept_from_seats(request))
            return None if hindered else self.value(request, request.seats)
        answer = self.best(request)
        return None if answer is None else self.placement(request, answer)

    def fits(self, request: Request) -> bool:
        """Whether a gang has a placement, without choosing it."""
        if request.seats:
            return not any(self._kept_from_seats(request))
        return Search(request, groups_for(request, self.index)).fits()

    def best(self, request: Request) -> NodeChoice | None:
        """The objective of the best placement, and its nodes; None if there is none.

        Compare `worth` of two answers: the smaller is better for the solver.
        """
        return search.best_choice(request, self.index)

    def placement(self, request: Request, answer: NodeChoice) -> Placement:
        """The workers, nodes and GPUs of an answer of `best`."""
        return search.placement_of_choice(request, self.index, answer)

    # Explanations

    def explain(
        self,
        request: Request,
        *,
        others: Sequence[Instead] = (),
        notes: tuple[str, ...] = (),
        each: int = 1,
        fusible: bool = True,
        anew: Solver | None = None,
    ) -> Unplaceable:
        """Why a gang has no place, and the smallest change that would give it one.

        `others` are changes of the job outside the request. `notes` are oddities of the cluster
        that may be the reason. `each` is how many workers of the job each worker of the request
        fuses, `fusible` whether fused pods can be a way out. `anew` has the cluster for a changed
        gang, which is submitted anew, if that is not the same.
        """
        if request.seats:
            return Unplaceable(
                "the workers cannot have the placement of --on now",
                verdict=Verdict.NOT_NOW,
                refusals=(),
                why="; ".join(self._kept_from_seats(request)),
                notes=notes,
            )
        return explain_refusal(
            request,
            self.index,
            others=others,
            notes=notes,
            each=each,
            fusible=fusible,
            anew=None if anew is None else anew.index,
        )

    def to_free(self, request: Request) -> str | None:
        """The smallest release for a gang, as a clause: `when 2 more GPUs of node a are free`."""
        return Freeing(request, groups_for(request, self.index)).clause()

    def hindrance(self, request: Request, node: Node, workers: int) -> Reason | None:
        """Why a node does not take so many workers now; None if it does."""
        reason = refusal_reason(request, node)
        if reason is not None or room(request, node) >= workers:
            return reason
        if is_withheld(request, node):
            return Reason.RESERVED
        return Reason.BUSY if node.free_count < workers * request.gpus else Reason.RESOURCES

    def _kept_from_seats(self, request: Request) -> Iterator[str]:
        """Why a gang cannot be sent to its seats now."""
        yield from self.hindrances(request, request.seats)
        named = {name for name, gpus in request.seats if gpus}
        for node in self._nodes:
            if node.name in named and node.unattributed:
                yield (
                    f"which GPUs of {node.name} are free is not known, so the node alone can be"
                    f" named: {node.name}/"
                )

    def hindrances(self, request: Request, seats: Seats) -> Iterator[str]:
        """Why the workers of a gang cannot have these seats now; a phrase for each cause."""
        nodes = {node.name: node for node in self._nodes}
        used = []
        for name, load in Counter(name for name, _gpus in seats).items():
            node = nodes.get(name)
            if node is None:
                yield f"{name} is no node of this cluster"
                continue
            used.append(node)
            chosen = gpu_set(gpu for seat, gpus in seats if seat == name for gpu in gpus)
            taken = GPUSet(chosen & ~node.free)
            reason = self.hindrance(request, node, load)
            if not taken or reason not in {None, Reason.BUSY, Reason.RESERVED, Reason.RESOURCES}:
                if reason is not None:
                    yield f"{name}: {reason.value}"
                continue
            waited_for = taken & node.reserved_gpus & node.unreserved.free
            for some, state in (
                *_used(node, GPUSet(taken & node.healthy & ~waited_for)),
                *_reserved(node, GPUSet(waited_for)),
                (taken & ~node.healthy, "broken"),
            ):
                if some:
                    many = count(GPUSet(some)) > 1
                    which = f"GPU{'s' * many} {', '.join(map(str, members(GPUSet(some))))}"
                    yield f"{which} of {name} {'are' if many else 'is'} {state}"
        if len({node.machine.model for node in used}) > 1 and not request.mix_models:
            yield "the nodes have different GPU models, which a gang mixes with --mix-models alone"

    def usable(self, request: Request) -> list[Node]:
        """The nodes that a gang may use, once enough of their GPUs are free."""
        return [node for node in self._nodes if refusal_reason(request, node) is None]

    def withheld(self, request: Request) -> list[Node]:
        """The nodes that would take more workers of a gang now if nothing were reserved."""
        return [node for node in self._nodes if is_withheld(request, node)]

    def capable(self, request: Request, answer: NodeChoice) -> Iterator[Node]:
        """The nodes that take a worker of a gang at the bandwidth of an answer of `best`."""
        single = structs.replace(request, workers=1)
        candidates = groups_for(single, self.index).candidates(single)
        terms, bandwidth = answer.floor.terms, answer.floor.bandwidth
        able = {
            at for at, nodes in enumerate(candidates.classes) if nodes.best(1, terms) >= bandwidth
        }
        for leaf in range(len(self.index.paths)):
            yield from (node for at, node in candidates.members(leaf) if at in able)

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
        nodes = {node.name: node for node in self._nodes if node.name in names}
        seats = [(nodes[name], gpus) for name, gpus in pairs]
        return value_placement(seats, request, self.given, proof=UNPROVEN)

    def valued(self, placement: Placement, *, joined: bool) -> Placement:
        """The same placement with its estimates if pods of a node are `joined`, or not."""
        workers = [(assignment.node, assignment.gpus) for assignment in placement.assignments]
        request = Request(
            workers=len(workers), gpus=placement.gpus, joined=joined, wire=placement.wire
        )
        value = self.value(request, workers)
        return structs.replace(value, assignments=placement.assignments, proof=placement.proof)

    def first_fit(self, request: Request) -> Placement | None:
        """The baseline first fit: nodes filled in the order of their names; None if not all fit."""
        return baselines.first_fit(request, self.cluster)

    def spread(self, request: Request) -> Placement | None:
        """The baseline spread: each worker on the least used node; None if not all fit."""
        return baselines.place_spread(request, self.cluster)

    def counts(self, request: Request) -> Counts:
        """How many of these gangs fit by counting."""
        return baselines.counts(request, self.cluster)


class Follower:
    """A solver that follows a cluster from one reading to the next; for one owner, in one thread.

    Readings are cheap to follow if unchanged nodes are the same objects.
    """

    def __init__(self) -> None:
        self._solver: Solver | None = None
        self._cluster: Cluster | None = None

    def at(self, cluster: Cluster) -> Solver:
        """The solver of this reading, until the next is asked for."""
        if cluster is not self._cluster or self._solver is None:
            before = self._cluster
            if self._solver is None or before is None or _network(before) != _network(cluster):
                self._solver = Solver(cluster)
            else:
                known = self._solver.index.nodes
                changed = [node for node in cluster.nodes if known.get(node.name) is not node]
                gone = known.keys() - {node.name for node in cluster.nodes}
                self._solver.remove(*gone)
                self._solver.put(*changed)
            self._cluster = cluster
        return self._solver


def _network(cluster: Cluster) -> tuple[object, ...]:
    """What joins the nodes of a cluster."""
    return cluster.tiers, cluster.unused, cluster.beyond, cluster.guesses


def place(request: Request, cluster: Cluster) -> Placement:
    """The best placement of one gang on a cluster; Unplaceable says why there is none."""
    return Solver(cluster).place(request)


def revalue(placement: Placement, cluster: Cluster, *, joined: bool) -> Placement:
    """The same placement with its estimates if pods of a node are `joined`, or not."""
    return Solver(cluster).valued(placement, joined=joined)


def _used(node: Node, gpus: GPUSet) -> Iterator[tuple[int, str]]:
    """GPUs in use of a node by holder, each with its state in words."""
    rest = gpus
    for holder in node.holders:
        if mine := rest & holder.gpus:
            rest = GPUSet(rest & ~holder.gpus)
            yield mine, f"in use by {holder.job}"
    yield rest, "in use"


def _reserved(node: Node, gpus: GPUSet) -> Iterator[tuple[int, str]]:
    """Reserved GPUs of a node by gang, each with its state in words."""
    rest = gpus
    for reservation, _ in node.reservations():
        if mine := rest & reservation.gpus:
            rest = GPUSet(rest & ~mine)
            yield mine, f"reserved for {reservation.job}"
