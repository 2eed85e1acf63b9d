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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from msgspec import structs

from arena_topo.solver import (
    UNLIMITED,
    Placement,
    Proof,
    Request,
    band,
    band_edge,
)
from arena_topo.solver.classes import (
    Candidates,
    ModelAndResource,
    NodeGroups,
    groups_for,
    prices_of,
)
from arena_topo.solver.domains import (
    Choice,
    Demand,
    DomainSearch,
    NodeLoad,
    domains_of,
    search_of,
)
from arena_topo.solver.gpu_sets import SMALL
from arena_topo.solver.index import Index
from arena_topo.solver.loads import AMONG, Floor, Hosts, Terms
from arena_topo.solver.parts import PartSearch, preference, searches_of
from arena_topo.solver.valuation import (
    CLUSTER_LEVEL,
    Seat,
    limit_of_level,
    rate_of_level,
    value_placement,
)
from arena_topo.topology import BEYOND, NVLINK, GPUSet, natural_key


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Objective:
    """The lexicographic objective of a choice of nodes: smaller is better, field by field."""

    reach: int
    """Levels further out than the preferred one."""
    assumed: bool
    """Whether the bandwidth rests on an assumed rate of the network or of the NICs.

    A choice without that wins, but for several nodes that are slower than one (`_several_nodes`).
    """
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
    """The cost of fragmentation, then the nearness of the GPUs (`loads.NEARNESS`)."""
    touched: tuple[int, ...]
    """GPUs that were free in the domains used, near to coarse: the fewer, the better the fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChoice:
    """The best choice of nodes for a gang.

    `bandwidth` is GB/s of the pods; `bound` is an upper bound of it over all placements. `level` is
    where the nodes meet; None for a single node.
    """

    worth: Objective
    bandwidth: float
    level: int | None
    choice: Choice = field(compare=False)
    candidates: Candidates = field(compare=False)
    pool: NodeGroups = field(compare=False)
    floor: Floor = field(compare=False)
    bound: float = 0.0
    proven: bool = True
    rated: bool = False
    """Whether a network of unknown rate, which is not considered, may give more than `bound`."""
    sets: Mapping[tuple[int, int], GPUSet | None] | None = field(default=None, compare=False)
    """The GPUs by class and number of workers, if they are parts of NVLink domains."""


def best_choice(request: Request, index: Index) -> NodeChoice | None:
    """The best choice of nodes; None if there is no placement."""
    return Search(request, groups_for(request, index)).best()


class Way(NamedTuple):
    """A way to place a gang: within one domain of a level, with a count of hosts."""

    level: int
    terms: Terms
    demand: Demand
    network: float = UNLIMITED
    """GB/s that the network between the nodes allows."""
    kind: ModelAndResource = ("", "")
    """The kind of the nodes."""
    parts: bool = False
    """Whether the hosts are parts of NVLink domains, which are several nodes each."""


def outermost(request: Request, index: Index) -> Iterator[Way]:
    """The ways with the largest distance that the limits and the minimum bandwidth allow.

    A gang that fits in any nearer way also fits in one of these.
    """
    workers, tiers = request.workers, index.fabric.tiers
    farthest = index.fabric.distances[request.required or BEYOND]
    alone = Way(CLUSTER_LEVEL, index.terms(request, Hosts.NODE), Demand(workers, 1))
    if farthest == 0 or workers == 1 or request.max_nodes == 1:
        yield alone
        return
    coarsest = len(tiers) - farthest
    if not request.min_bandwidth:
        terms = index.terms(request, Hosts.SEVERAL, coarsest)
        yield Way(coarsest, terms, Demand(workers, min(workers, request.max_nodes or workers)))
        return
    yield alone
    # A nearer level of known rate may give more than one of unknown rate further out.
    seen: set[Terms] = set()
    for level in range(coarsest, len(tiers)):
        for way in _meeting(request, index, level):
            if way.terms not in seen and way.network >= request.min_bandwidth:
                seen.add(way.terms)
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


def outermost_of_parts(
    request: Request, index: Index, kinds: Iterable[ModelAndResource]
) -> Iterator[Way]:
    """The ways to place a gang on parts of NVLink domains, each network rate once."""
    farthest = index.fabric.distances[request.required or BEYOND]
    if farthest == 0 or request.workers == 1 or request.max_nodes == 1:
        return
    rates = set()
    for level in range(len(index.fabric.tiers) - farthest, len(index.fabric.tiers)):
        rate = rate_of_level(index.fabric, level), limit_of_level(index.fabric, level)
        if rate not in rates and not _is_nvlink(index, level):
            rates.add(rate)
            for kind in kinds:
                yield from _of_parts(request, index, level, kind)


def _of_parts(request: Request, index: Index, level: int, kind: ModelAndResource) -> Iterator[Way]:
    """The ways to place a gang on parts of several NVLink domains that meet at a level."""
    workers = request.workers
    demand = Demand(workers, min(workers, request.max_nodes or workers))
    for hosts, among in AMONG.items():
        if workers >= among:
            terms = index.terms(request, hosts, level)
            yield Way(level, terms, demand, kind=kind, parts=True)


def _is_nvlink(index: Index, level: int) -> bool:
    """Whether the nodes of a domain of this level are of one NVLink domain."""
    tiers = [tier.name for tier in index.fabric.tiers]
    return NVLINK in tiers and level >= tiers.index(NVLINK)


class Search:
    """The search for the placement of one gang among all kinds of nodes."""

    def __init__(self, request: Request, pool: NodeGroups) -> None:
        self.request = request
        self.pool = pool
        self.index = pool.index
        self.candidates = pool.candidates(request)
        levels = self.index.fabric.distances
        self._farthest = levels[request.required or BEYOND]
        preferred = levels[request.preferred] if request.preferred else self._farthest
        self._nearest = min(preferred, self._farthest)
        self._parts_searches: dict[tuple[object, ...], list[PartSearch]] = {}
        self._single = request.workers == 1 or request.max_nodes == 1 or self._farthest == 0

    def best(self) -> NodeChoice | None:
        """The best choice of nodes; None if there is no placement."""
        for limit in range(self._nearest, self._farthest + 1):
            answer = self._within(limit)
            if answer is not None:
                return answer if self.certain else replace(answer, bound=self._most, proven=False)
        return None

    @property
    def _most(self) -> float:
        """GB/s that no placement exceeds: what NVLink domains, or nodes one by one, have."""
        if not self._enumerated:
            return UNLIMITED
        terms = self.index.terms(self.request, Hosts.DOMAIN)
        loads = range(1, self.request.workers)
        inside = [nodes.best(load, terms) for nodes in self.candidates.classes for load in loads]
        return max([*inside, *self.rates()], default=UNLIMITED)

    @property
    def certain(self) -> bool:
        """Whether nothing relevant was left out so far, so that the best answer is optimal."""
        exact = all(search.exact for some in self._parts_searches.values() for search in some)
        return exact and self._on_the_switch and self._enumerated

    @cached_property
    def _on_the_switch(self) -> bool:
        """Whether no node may be a part of a host, or a host of its own, by its choice of GPUs."""
        ranks = self.request.workers * self.request.gpus
        return self._single or not any(
            self.candidates.off_the_switch(kind, ranks) for kind in self.candidates.kinds
        )

    @cached_property
    def _enumerated(self) -> bool:
        """Whether all relevant sets of GPUs are enumerated."""
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

    def _within(self, limit: int) -> NodeChoice | None:
        """The best choice of nodes with at most this distance."""
        if self._single or limit == 0:
            known = self._single_node
        else:
            known = self._several_nodes(limit, known=True) or self._single_node
            if known is None:
                return self._several_nodes(limit, known=False)
        if known is None:
            return None
        return replace(known, rated=self._enumerated and self._unknown(limit) > known.bound)

    def _unknown(self, limit: int) -> float:
        """GB/s that a placement over assumed NICs or networks may give at most."""
        workers, terms = self.request.workers, self.index.terms(self.request, Hosts.NODE)
        alone = {
            nodes.best(workers, terms)
            for nodes in self.candidates.classes
            if nodes.capacity >= workers and nodes.assumed(terms)
        }
        ways = () if self._single or limit == 0 else self._ways(limit)
        several = (self._most_assumed(way) for way in ways if way.terms.network is None)
        return max([*alone, *several], default=0.0)

    def _most_assumed(self, way: Way) -> float:
        """GB/s of a way that a placement with an assumed node may give at most."""
        if not way.parts:
            return min(self.candidates.most_assumed(way.kind, way.terms), way.network)
        nodes = (nodes for _, nodes in self.candidates.of(way.kind))
        some = any(own.assumed(way.terms) for own in nodes)
        return max(self._speeds(way, known=False), default=0.0) if some else 0.0

    # Feasibility

    def fits(self) -> bool:
        """Whether there is any placement; decided by counting, without a choice of nodes."""
        floor = self.request.min_bandwidth
        for way in outermost(self.request, self.index):
            if any(search.holds(way.level, way.demand) for search in self._searches(way)):
                return True
        ways = self._ways(self._farthest) if floor and not self._single else ()
        parts = (way for way in ways if way.parts)
        return any(
            search.choice(floor, way.demand.most) for way in parts for search in self._parts(way)
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

    def _parts(self, way: Way, *, known: bool = False) -> list[PartSearch]:
        key = (way.kind, way.terms, way.level, known)
        if key not in self._parts_searches:
            self._parts_searches[key] = searches_of(
                self.candidates, way.kind, way.terms, way.level, known=known
            )
        return self._parts_searches[key]

    def _speeds(self, way: Way, *, known: bool) -> set[float]:
        if way.parts:
            return set[float]().union(*(search.rates() for search in self._parts(way, known=known)))
        speeds = self.candidates.speeds(way.kind, way.terms, known)
        return {min(speed, way.network) for speed in speeds}

    # Several nodes

    def _several_nodes(self, limit: int, *, known: bool) -> NodeChoice | None:
        """The best choice of several nodes if it beats every single node, else the single node.

        None if neither exists. With `known`, networks of assumed rate are excluded. If several
        nodes give more than the single node in the same band, their bandwidth is its bound. A
        single node stays the choice if its NICs are assumed too: that the NICs of several nodes are
        known is no reason to leave it unless they are faster.
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
            floor = max(band_edge(step), least)
            for level in dict.fromkeys(way.level for way in ways):
                fast = [way for way in ways if way.level == level and way.network >= floor]
                answer = self._at(fast, floor, known=known)
                if answer is not None:
                    bound = max(speed for speed in speeds if band(speed) == step)
                    return replace(answer, bound=max(bound, answer.bandwidth))
        return None

    def _ways(self, limit: int) -> Iterator[Way]:
        """The ways to place the gang on several nodes, nearest levels first."""
        tiers = [tier.name for tier in self.index.fabric.tiers]
        widest = tiers.index(NVLINK) if NVLINK in tiers else None
        for level in range(len(self.index.fabric.tiers) - 1, CLUSTER_LEVEL - 1, -1):
            if self.index.distance(level) > limit:
                return
            if not self.index.separates(level):
                continue
            ways = list(_meeting(self.request, self.index, level))
            nvlink = _is_nvlink(self.index, level)
            for kind, joined in self._joined.items():
                for way in ways:
                    if (way.terms.hosts is Hosts.DOMAIN) in joined:
                        yield way._replace(kind=kind)
                # An NVLink domain may have nodes whose GPUs do not use it: hosts of their own.
                if True in joined and (not nvlink or (level == widest and False in joined)):
                    yield from _of_parts(self.request, self.index, level, kind)

    @cached_property
    def _joined(self) -> dict[ModelAndResource, set[bool]]:
        """Whether the nodes of each kind are in NVLink domains; some may be, and others not.

        Both holds of a node with GPUs off the switch: with them it is a host of its own.
        """
        ranks = self.request.workers * self.request.gpus
        joined: dict[ModelAndResource, set[bool]] = {kind: set() for kind in self.candidates.kinds}
        for kind, kinds_of_hosts in joined.items():
            kinds_of_hosts.update(nodes.domain for _, nodes in self.candidates.of(kind))
            if self.candidates.off_the_switch(kind, ranks):
                kinds_of_hosts.add(False)
        return joined

    def _at(self, ways: Sequence[Way], floor: float, *, known: bool) -> NodeChoice | None:
        """The best choice at a level with at least `floor` GB/s for the pods."""
        most = self.request.workers
        fewest: list[tuple[Way, int]] = []
        answers: list[NodeChoice] = []
        for way in ways:
            if way.parts:
                answer = self._of_domains(way, floor, most, known=known)
                answers += [] if answer is None else [answer]
                most = min([most, *(answer.worth.nodes for answer in answers)])
                continue
            nodes = self._fewest(way, self._floor(way, floor, 0), most, known=known)
            if nodes is not None:
                most = nodes
                fewest.append((way, nodes))
        answers += [
            self._best(way, floor, most, known=known) for way, nodes in fewest if nodes == most
        ]
        return min(answers, key=lambda answer: answer.worth, default=None)

    def _of_domains(self, way: Way, floor: float, most: int, *, known: bool) -> NodeChoice | None:
        """The best choice of parts of NVLink domains with at least `floor` GB/s."""
        most = min(most, way.demand.most)
        chosen = [
            (choice_of_domains, search)
            for search in self._parts(way, known=known)
            if (choice_of_domains := search.choice(floor, most)) is not None
        ]
        if not chosen:
            return None
        (choice, bandwidth), search = min(chosen, key=lambda own: preference(own[0]))
        answer = self._answer(way.level, choice, self._floor(way, floor, 0, bandwidth), bandwidth)
        worth = replace(answer.worth, band=-band(bandwidth))
        sets = {
            (seat.of, seat.workers): search.gpus(seat.of, seat.workers) for seat in choice.loads
        }
        return replace(answer, worth=worth, bandwidth=bandwidth, sets=sets)

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

    def _best(self, way: Way, bandwidth: float, nodes: int, *, known: bool) -> NodeChoice:
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
    def _single_node(self) -> NodeChoice | None:
        """The best single node."""
        answers = filter(None, map(self._single_node_of, self.candidates.kinds))
        return min(answers, key=lambda answer: answer.worth, default=None)

    def _single_node_of(self, kind: ModelAndResource) -> NodeChoice | None:
        """The best single node of a kind for the whole gang."""
        request, candidates, workers = self.request, self.candidates, self.request.workers
        terms = self.index.terms(request, Hosts.NODE)
        large = [
            (at, nodes)
            for at, nodes in candidates.of(kind)
            if nodes.capacity >= workers
            and (speed := nodes.best(workers, terms)) > 0
            and speed >= request.min_bandwidth
        ]
        # Known NICs come first, however fast assumed ones would be.
        known = [(at, nodes) for at, nodes in large if not nodes.assumed(terms)]
        large = known or large
        if not large:
            return None
        bandwidth = max(nodes.best(workers, terms) for _, nodes in large)
        least = max(band_edge(band(bandwidth)), request.min_bandwidth)
        floor = Floor(terms=terms, bandwidth=least, joined=terms._replace(joined=True))
        inside = max(nodes.most_inside(workers, floor) for _, nodes in large)
        floor = floor._replace(inside=inside)
        costs = prices_of(floor)
        prices = {at: costs[nodes][workers] for at, nodes in large if workers in costs[nodes]}
        least_price = min(prices.values())
        cheapest = {at for at, price in prices.items() if price == least_price}
        leaves = set[int]().union(*(candidates.leaves[at] for at in cheapest))
        used = {leaf: domains_of(self.index, (leaf,)) for leaf in leaves}
        least_touched = min(touched for _, touched in used.values())
        # Nodes of a leaf come in the order of their names.
        seats = {
            leaf: next(
                NodeLoad(node, at, workers)
                for at, node in candidates.members(leaf)
                if at in cheapest
            )
            for leaf, (_, touched) in used.items()
            if touched == least_touched
        }
        leaf = min(seats, key=lambda leaf: natural_key(seats[leaf].node.name))
        domains, touched = used[leaf]
        choice = Choice(1, domains, least_price, touched, (seats[leaf],))
        return replace(self._answer(None, choice, floor, UNLIMITED), bound=bandwidth)

    def _answer(
        self, level: int | None, choice: Choice, floor: Floor, network: float
    ) -> NodeChoice:
        distance = 0 if level is None else self.index.distance(level)
        levels = self.index.fabric.distances
        preferred = levels[self.request.preferred] if self.request.preferred else distance
        loads = dict.fromkeys((seat.of, seat.workers) for seat in choice.loads)
        classes = [(self.candidates.classes[at], workers) for at, workers in loads]
        bandwidth = min([network, *(nodes.reached(workers, floor) for nodes, workers in classes)])
        return NodeChoice(
            worth=Objective(
                reach=max(0, distance - preferred),
                assumed=any(nodes.assumed(floor.terms) for nodes, _ in classes),
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
            pool=self.pool,
            floor=floor,
        )


def placement_of_choice(request: Request, index: Index, answer: NodeChoice) -> Placement:
    """The placement of a choice: workers numbered along the network, GPUs along the rings."""
    shared: dict[tuple[int, int], Sequence[tuple[int, ...]]] = {}
    seats: list[Seat] = []
    planned = _planned_edge(request, index, answer)
    for node, at, workers in answer.choice.loads:
        groups = shared.get((at, workers))
        if groups is None:
            groups = shared[at, workers] = _pods(answer, at, workers, planned)
        seats += [(node, gpus) for gpus in groups]
    proof = Proof(optimal=answer.proven, bound=answer.bound, rated=answer.rated)
    result = value_placement(seats, request, index.fabric, proof=proof)
    if result.bandwidth is None or math.isclose(result.bandwidth.point, answer.bandwidth):
        return result
    if any(answer.candidates.classes[load.of].blind for load in answer.choice.loads):
        proof = _proof_of_plan(request, answer, result)
    else:
        # Some trays of an NVLink domain may be off its switch, and are then hosts of their own.
        proof = structs.replace(proof, optimal=False)
    bound = max(proof.bound, result.bandwidth.point)
    return structs.replace(result, proof=structs.replace(proof, bound=bound))


def _proof_of_plan(request: Request, answer: NodeChoice, result: Placement) -> Proof:
    """The proof of a placement as it is planned, if less of it can be promised."""
    best = Search(structs.replace(request, blind=False), answer.pool).best()
    assert best is not None, "what can be promised can be planned"
    assert result.bandwidth is not None
    assert result.inside is not None

    def key(worth: Objective) -> tuple[object, ...]:
        return worth.reach, worth.assumed, worth.band, worth.distance, worth.nodes

    planned = replace(answer.worth, band=-band(result.bandwidth.point))
    optimal = (
        best.proven
        and key(planned) == key(best.worth)
        and math.isclose(result.inside.point, -best.worth.inside)
    )
    return Proof(optimal=optimal, bound=best.bound, rated=best.rated)


def _planned_edge(request: Request, index: Index, answer: NodeChoice) -> float:
    """The least GB/s of the band that a gang has if the kubelet picks the GPUs that are planned.

    0 if the kubelet picks none: then the promise is the plan.
    """
    classes, terms = answer.candidates.classes, answer.floor.terms
    loads = {(classes[load.of], load.workers) for load in answer.choice.loads}
    if not any(nodes.blind for nodes, _ in loads):
        return 0.0
    network = UNLIMITED
    if answer.level is not None:
        network = index.network(request, terms.hosts, answer.level)
    fastest = min(nodes.fastest(workers, terms) for nodes, workers in loads)
    return band_edge(band(min(network, fastest)))


def _pods(answer: NodeChoice, at: int, workers: int, planned: float) -> Sequence[tuple[int, ...]]:
    """The GPUs of each worker on a node of a class; empty if the kubelet picks them."""
    nodes, floor = answer.candidates.classes[at], answer.floor
    if answer.sets is None:
        return nodes.pods(workers, floor, planned=planned)
    gpus = answer.sets[at, workers]
    return [()] * workers if gpus is None else nodes.loads.pods(gpus, floor.terms)
