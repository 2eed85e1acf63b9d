"""The placement of a whole gang: exact search over classes of nodes, with a proof of optimality.

Nodes that are the same to a job (same configuration, same free set, same capacity) form a class.
The order of preference is lexicographic (`Objective`, docs/how-it-works.md). Bandwidths are
compared in bands, which are few, so they are tried from the fastest down: at each band the search
finds the nearest tier that holds the gang, there the fewest nodes, and of these the choice with the
most bandwidth for joined pods. One node, two hosts and more hosts are searched separately, as each
has values of its own.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from arena_topo.solver import (
    BEYOND,
    Placement,
    Proof,
    Request,
    band,
    distances,
    edge,
)
from arena_topo.solver.classes import WHOLE, Candidates, Index, Kind, Pool
from arena_topo.solver.domains import (
    Choice,
    Demand,
    DomainSearch,
    NodeLoad,
    domains_of,
    search_of,
)
from arena_topo.solver.gpu_sets import SMALL, UNLIMITED
from arena_topo.solver.loads import AMONG, Floor, Hosts, Terms
from arena_topo.solver.valuing import NVLINK, Seat, placed
from arena_topo.topology import natural


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Objective:
    """The lexicographic objective of a choice of nodes: smaller is better, field by field."""

    reach: int
    """Levels further out than the preferred one."""
    assumed: bool
    """Whether the bandwidth rests on an assumed rate of the network: a choice without that wins."""
    band: float
    """The negated band of the pods' bandwidth: more bandwidth is smaller."""
    distance: int
    """The level where the nodes meet: 0 within a node, then outward through the network."""
    nodes: int
    inside: float
    """The negated bandwidth (GB/s) of joined pods."""
    domains: tuple[int, ...]
    """The number of domains used at each tier, coarse to near."""
    cost: int
    """The cost of fragmentation."""
    touched: tuple[int, ...]
    """GPUs that were free in the domains used, near to coarse: the fewer, the better the fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The best choice of nodes for a gang.

    `bandwidth` is GB/s of the pods; `bound` is an upper bound of it over all placements. `level` is
    where the nodes meet; None for a single node.
    """

    worth: Objective
    bandwidth: float
    level: int | None
    choice: Choice = field(compare=False)
    candidates: Candidates = field(compare=False)
    floor: Floor = field(compare=False)
    bound: float = 0.0
    proven: bool = True


def best(request: Request, index: Index) -> Answer | None:
    """The best choice of nodes; None if there is no placement."""
    return Search(request, index.pool(request)).best()


class Way(NamedTuple):
    """A way to place a gang: within one domain of a level, with a count of hosts."""

    level: int
    terms: Terms
    demand: Demand
    network: float = UNLIMITED
    """GB/s that the network between the nodes allows."""
    kind: Kind = ("", "")
    """The kind of the nodes."""


def outermost(request: Request, index: Index) -> Iterator[Way]:
    """The ways with the largest distance that the limits and the minimum bandwidth allow.

    A gang that fits in any nearer way also fits in one of these.
    """
    workers, tiers = request.workers, index.cluster.tiers
    farthest = distances(index.cluster)[request.required or BEYOND]
    alone = Way(WHOLE, index.terms(request, Hosts.NODE), Demand(workers, 1))
    if farthest == 0 or workers == 1 or request.max_nodes == 1:
        yield alone
        return
    coarsest = len(tiers) - farthest
    if not request.min_bandwidth:
        terms = index.terms(request, Hosts.SEVERAL, coarsest)
        yield Way(coarsest, terms, Demand(workers, min(workers, request.max_nodes or workers)))
        return
    yield alone
    seen: set[Hosts] = set()
    for level in range(coarsest, len(tiers)):
        for way in _meeting(request, index, level):
            if way.terms.hosts not in seen and way.network >= request.min_bandwidth:
                seen.add(way.terms.hosts)
                yield way


def _meeting(request: Request, index: Index, level: int) -> Iterator[Way]:
    """The ways to place a gang on several nodes that meet at a level, by count of hosts."""
    workers, two = request.workers, AMONG[Hosts.TWO]
    most = min(workers, request.max_nodes or workers)
    # Two nodes of joined pods are two hosts, and may be worse: each has more of the GPUs.
    several = Demand(workers, most, AMONG[Hosts.SEVERAL] if request.joined else 1)
    for hosts, possible, demand in (
        (Hosts.DOMAIN, _is_nvlink(index, level), Demand(workers, most)),
        (Hosts.TWO, request.joined or workers == two, Demand(workers, min(most, two))),
        (Hosts.SEVERAL, workers > two, several),
    ):
        if possible:
            network = index.network(request, hosts, level)
            yield Way(level, index.terms(request, hosts, level), demand, network)


def _is_nvlink(index: Index, level: int) -> bool:
    return level != WHOLE and index.cluster.tiers[level].name == NVLINK


class Search:
    """The search for the placement of one gang among all kinds of nodes."""

    def __init__(self, request: Request, pool: Pool) -> None:
        self.request = request
        self.index = pool.index
        self.candidates = pool.candidates(request)
        levels = distances(self.index.cluster)
        self._farthest = levels[request.required or BEYOND]
        preferred = levels[request.preferred] if request.preferred else self._farthest
        self._nearest = min(preferred, self._farthest)
        self._single = request.workers == 1 or request.max_nodes == 1 or self._farthest == 0

    def best(self) -> Answer | None:
        """The best choice of nodes; None if there is no placement."""
        for limit in range(self._nearest, self._farthest + 1):
            answer = self._within(limit)
            if answer is not None:
                return answer if self.certain else replace(answer, bound=UNLIMITED, proven=False)
        return None

    @cached_property
    def certain(self) -> bool:
        """Whether all relevant sets of GPUs are enumerated, so that the best of them is optimal."""
        request = self.request
        large = {
            (nodes.loads.sets, nodes.free): min(nodes.capacity, request.workers)
            for nodes in self.candidates.classes
            if nodes.loads.sets.size > SMALL
        }
        return all(
            sets.certain(free, workers * request.gpus)
            for (sets, free), most in large.items()
            for workers in range(1, most + 1)
        )

    def _within(self, limit: int) -> Answer | None:
        """The best choice of nodes with at most this distance."""
        if self._single or limit == 0:
            return self._single_node
        known = self._several_nodes(limit, known=True)
        if known is not None or self._single_node is not None:
            return known or self._single_node
        return self._several_nodes(limit, known=False)

    # Feasibility

    def fits(self) -> bool:
        """Whether there is any placement; decided by counting, without a choice of nodes."""
        return any(
            search.holds(way.level, way.demand)
            for way in outermost(self.request, self.index)
            for search in self._searches(way)
        )

    def most_workers(self) -> int:
        """An upper bound of the workers that fit under the terms of the requested number."""
        bounds = (
            search.most_workers(way.level, way.demand.most)
            for way in outermost(self.request, self.index)
            for search in self._searches(way)
        )
        return max(bounds, default=0)

    def _searches(self, way: Way) -> Iterator[DomainSearch]:
        """The searches of all kinds of nodes for loads with enough bandwidth, without costs."""
        floor = Floor(way.terms, self.request.min_bandwidth, way.terms)
        most = self.request.workers - (way.demand.most > 1 and bool(floor.bandwidth))
        for kind in self.candidates.kinds:
            yield search_of(self.candidates, kind, floor, known=False, most=most, priced=False)

    def rates(self) -> set[float]:
        """The bandwidths that loads and networks allow; that of the gang is one of them."""
        terms = self.index.terms(self.request, Hosts.NODE)
        alone = {
            nodes.best(self.request.workers, terms)
            for nodes in self.candidates.classes
            if nodes.capacity >= self.request.workers
        }
        ways = [] if self._single else list(self._ways(self._farthest))
        return alone.union(*(self._speeds(way, known=False) for way in ways))

    def _speeds(self, way: Way, *, known: bool) -> set[float]:
        speeds = self.candidates.speeds(way.kind, way.terms, self.request.workers, known)
        return {min(speed, way.network) for speed in speeds}

    # Several nodes

    def _several_nodes(self, limit: int, *, known: bool) -> Answer | None:
        """The best choice of several nodes if it beats every single node, else the single node.

        None if neither exists. With `known`, networks of assumed rate are excluded. If several
        nodes give more than the single node in the same band, their bandwidth is its bound.
        """
        ways = list(self._ways(limit))
        speeds = set[float]().union(*(self._speeds(way, known=known) for way in ways))
        least = self.request.min_bandwidth
        steps = sorted({band(speed) for speed in speeds if speed and speed >= least}, reverse=True)
        single = self._single_node
        for step in steps:
            if single is not None and -single.worth.band >= step:
                same_band = [speed for speed in speeds if band(speed) == -single.worth.band]
                return replace(single, bound=max([single.bound, *same_band]))
            floor = max(edge(step), least)
            for level in dict.fromkeys(way.level for way in ways):
                fast = [way for way in ways if way.level == level and way.network >= floor]
                answer = self._at(fast, floor, known=known)
                if answer is not None:
                    bound = max(speed for speed in speeds if band(speed) == step)
                    return replace(answer, bound=max(bound, answer.bandwidth))
        return None

    def _ways(self, limit: int) -> Iterator[Way]:
        """The ways to place the gang on several nodes, nearest levels first."""
        for level in range(len(self.index.cluster.tiers) - 1, WHOLE - 1, -1):
            if self.index.distance(level) > limit:
                return
            ways = list(_meeting(self.request, self.index, level))
            for kind in self.candidates.kinds:
                joined = {nodes.domain for _, nodes in self.candidates.of(kind)}
                for way in ways:
                    inside = way.terms.hosts is Hosts.DOMAIN
                    if inside in joined or not _is_nvlink(self.index, level):
                        yield way._replace(kind=kind)

    def _at(self, ways: Sequence[Way], floor: float, *, known: bool) -> Answer | None:
        """The best choice at a level with at least `floor` GB/s for the pods."""
        most = self.request.workers
        fewest: list[tuple[Way, int]] = []
        for way in ways:
            nodes = self._fewest(way, self._floor(way, floor, 0), most, known=known)
            if nodes is not None:
                most = nodes
                fewest.append((way, nodes))
        answers = [
            self._best(way, floor, most, known=known) for way, nodes in fewest if nodes == most
        ]
        return min(answers, key=lambda answer: answer.worth, default=None)

    def _fewest(self, way: Way, floor: Floor, most: int, *, known: bool) -> int | None:
        """The fewest nodes of a way that hold the gang at a floor; None if more than `most`."""
        return self._search(way, floor, known=known).fewest(way.level, way.demand.at_most(most))

    def _search(self, way: Way, floor: Floor, *, known: bool) -> DomainSearch:
        most = self.request.workers - 1
        return search_of(self.candidates, way.kind, floor, known=known, most=most)

    def _floor(self, way: Way, bandwidth: float, nodes: int, inside: float = 0.0) -> Floor:
        hosts = way.terms.hosts
        if hosts is not Hosts.DOMAIN:
            hosts = Hosts.TWO if nodes == AMONG[Hosts.TWO] else Hosts.SEVERAL
        joined = way.terms._replace(hosts=hosts, joined=True)
        return Floor(terms=way.terms, bandwidth=bandwidth, joined=joined, inside=inside)

    def _best(self, way: Way, bandwidth: float, nodes: int, *, known: bool) -> Answer:
        """The choice of so many nodes with the most bandwidth for joined pods."""
        joined = self._floor(way, bandwidth, nodes).joined
        network = self.index.network(self.request, joined.hosts, way.level)
        inside = self.candidates.values(way.kind, joined, self.request.workers - 1)
        values = [0.0, *sorted({min(value, network) for value in inside})]

        def too_much(at: int) -> bool:
            floor = self._floor(way, bandwidth, nodes, values[at])
            return self._fewest(way, floor, nodes, known=known) is None

        # Usually the largest value is feasible; else binary search.
        most = len(values) - 1
        if too_much(most):
            most = bisect_left(range(most), 1, key=too_much) - 1
        floor = self._floor(way, bandwidth, nodes, values[most])
        search = self._search(way, floor, known=known)
        choice = search.best(way.level, nodes, way.demand)
        assert choice is not None, "this floor was tried"
        return self._answer(way.level, choice, floor, way.network)

    # A single node

    @cached_property
    def _single_node(self) -> Answer | None:
        """The best single node."""
        answers = filter(None, map(self._single_node_of, self.candidates.kinds))
        return min(answers, key=lambda answer: answer.worth, default=None)

    def _single_node_of(self, kind: Kind) -> Answer | None:
        """The best single node of a kind for the whole gang."""
        request, candidates, workers = self.request, self.candidates, self.request.workers
        terms = self.index.terms(request, Hosts.NODE)
        large = [(at, nodes) for at, nodes in candidates.of(kind) if nodes.capacity >= workers]
        bandwidth = max((nodes.best(workers, terms) for _, nodes in large), default=0.0)
        if bandwidth <= 0 or bandwidth < request.min_bandwidth:
            return None
        least = max(edge(band(bandwidth)), request.min_bandwidth)
        floor = Floor(terms=terms, bandwidth=least, joined=terms._replace(joined=True))
        inside = max(nodes.most_inside(workers, floor) for _, nodes in large)
        floor = floor._replace(inside=inside)
        prices = {at: nodes.price(workers, floor) for at, nodes in large}
        least_price = min(price for price in prices.values() if price is not None)
        seats: dict[int, NodeLoad] = {}
        for leaf, at, node in candidates.members(
            at for at, price in prices.items() if price == least_price
        ):
            # Nodes of a leaf come in the order of their names.
            seats.setdefault(leaf, NodeLoad(node, at, workers))
        used = {leaf: domains_of(self.index, (leaf,)) for leaf in seats}
        leaf = min(seats, key=lambda leaf: (used[leaf][1], natural(seats[leaf].node.name)))
        domains, touched = used[leaf]
        choice = Choice(1, domains, least_price, touched, (seats[leaf],))
        return replace(self._answer(None, choice, floor, UNLIMITED), bound=bandwidth)

    def _answer(self, level: int | None, choice: Choice, floor: Floor, network: float) -> Answer:
        distance = 0 if level is None else self.index.distance(level)
        levels = distances(self.index.cluster)
        preferred = levels[self.request.preferred] if self.request.preferred else distance
        loads = dict.fromkeys((seat.of, seat.workers) for seat in choice.loads)
        classes = [(self.candidates.classes[at], workers) for at, workers in loads]
        bandwidth = min([network, *(nodes.reached(workers, floor) for nodes, workers in classes)])
        return Answer(
            worth=Objective(
                reach=max(0, distance - preferred),
                assumed=any(nodes.loads.assumed(floor.terms) for nodes, _ in classes),
                band=-band(bandwidth),
                distance=distance,
                nodes=choice.nodes,
                inside=-floor.inside,
                domains=choice.domains,
                cost=choice.cost,
                touched=choice.touched,
            ),
            bandwidth=bandwidth,
            level=level,
            choice=choice,
            candidates=self.candidates,
            floor=floor,
        )


def placement(request: Request, index: Index, answer: Answer) -> Placement:
    """The placement of a choice: workers numbered along the network, GPUs along the rings."""
    shared: dict[tuple[int, int], Sequence[tuple[int, ...]]] = {}
    seats: list[Seat] = []
    for node, at, workers in answer.choice.loads:
        groups = shared.get((at, workers))
        if groups is None:
            groups = shared[at, workers] = answer.candidates.classes[at].pods(workers, answer.floor)
        seats += [(node, gpus) for gpus in groups]
    proof = Proof(optimal=answer.proven, bound=answer.bound)
    result = placed(seats, request, index.cluster, proof=proof)
    # The search treats nodes of several NVLink domains one by one; together they have more
    # bandwidth.
    if result.bandwidth is None or math.isclose(result.bandwidth.point, answer.bandwidth):
        return result
    return replace(result, proof=replace(proof, optimal=False))
