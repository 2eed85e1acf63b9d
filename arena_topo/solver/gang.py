"""All workers of a gang at once: exact search over classes of nodes, with its proof.

Nodes that look the same to a job (same configuration, same free set, same room) form a class. The
order of preference is lexicographic (`Objective`, docs/how-it-works.md). Bandwidths are compared in
bands, which are few, so they are tried from the fastest down: at each the nearest tier that holds
the gang is looked for, there the fewest nodes, and of these the most that joined pods would get.
One node, two hosts and more hosts are searched apart, as each has values of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from arena_topo.solver.classes import WHOLE, Candidates, Index, NodeClass
from arena_topo.solver.domains import Choice, DomainSearch, NodeLoad, Score, broken
from arena_topo.solver.gpu_sets import SMALL, UNLIMITED
from arena_topo.solver.loads import AMONG, Floor, Hosts, Terms
from arena_topo.solver.request import (
    BEYOND,
    NODE_TIER,
    Assignment,
    Placement,
    Proof,
    Request,
    band,
    distances,
    edge,
)
from arena_topo.solver.valuing import NVLINK, Seat, worth
from arena_topo.topology import Cluster, natural


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Objective:
    """How good a choice of nodes is; the smaller the better, field by field."""

    reach: int
    """Levels further out than the one preferred."""
    assumed: bool
    """Whether it rests on a network of which nobody gave the rate: a known one is never left."""
    band: float
    """Of what the pods get, negated, so that more is better."""
    distance: int
    """0 within a node, then outward through the network."""
    nodes: int
    inside: float
    """GB/s that joined pods would get, negated."""
    domains: tuple[int, ...]
    """Domains used at each tier, coarse to near."""
    damage: int
    broken: tuple[int, ...]
    """GPUs that were free in the domains used, near to coarse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best choice of nodes for a gang.

    `bandwidth` is GB/s that the pods get, of at most `bound` that any placement gives them.
    `level` is where the nodes meet; None for a single node.
    """

    worth: Objective
    bandwidth: float
    level: int | None
    choice: Choice = field(compare=False)
    candidates: Candidates = field(compare=False)
    floor: Floor = field(compare=False)
    bound: float = 0.0
    proven: bool = True


def value(request: Request, cluster: Cluster) -> Objective | None:
    """What the best placement is worth; None if there is none."""
    found = best(request, Index(cluster))
    return None if found is None else found.worth


def best(request: Request, index: Index) -> Found | None:
    """The best choice of nodes; None if there is none."""
    words = distances(index.cluster)
    farthest = words[request.required or BEYOND]
    nearest = min(words[request.preferred], farthest) if request.preferred else farthest
    search = _Search(request, index)
    for limit in range(nearest, farthest + 1):
        found = search.within(limit)
        if found is not None:
            return found if search.certain else replace(found, bound=UNLIMITED, proven=False)
    return None


Kind = tuple[str, str]
"""What one gang may combine: GPU model, resource name."""


class _Way(NamedTuple):
    """One way for a gang to be on several nodes: which, at which level, counted as which hosts."""

    kind: Kind
    level: int
    terms: Terms
    network: float
    """GB/s that the network between them lets through."""


class _Search:
    """The search for one gang among all kinds of nodes."""

    def __init__(self, request: Request, index: Index) -> None:
        self.request = request
        self.index = index
        self.candidates = index.candidates(request)

    @cached_property
    def alone(self) -> Found | None:
        """The best single node."""
        found = [one for one in map(self._alone, self.candidates.kinds) if one is not None]
        return min(found, key=lambda one: one.worth, default=None)

    @cached_property
    def certain(self) -> bool:
        """Whether all sets of GPUs that matter are looked at, so that the best is the best."""
        request = self.request
        large = {
            (one.sets, one.free): min(one.capacity, request.workers)
            for one in self.candidates.classes
            if one.sets.size > SMALL
        }
        return all(
            sets.certain(free, workers * request.gpus)
            for (sets, free), most in large.items()
            for workers in range(1, most + 1)
        )

    def within(self, limit: int) -> Found | None:
        """The best choice of nodes no further apart than this."""
        request = self.request
        if limit == 0 or request.workers == 1 or request.max_nodes == 1:
            return self.alone
        known = self._apart(limit, known=True)
        if known is not None or self.alone is not None:
            return known or self.alone
        return self._apart(limit, known=False)

    # Several nodes

    def _apart(self, limit: int, *, known: bool) -> Found | None:
        """The best choice of several nodes where it beats any single node, else that node.

        None where neither is there. With `known` none that rests on a network of which nobody gave
        the rate. Several nodes may give more than a single node in the same band, whose bound is
        then theirs.
        """
        ways = list(self._ways(limit))
        speeds = {
            way: {
                min(speed, way.network)
                for speed in self.candidates.speeds(way.kind, way.terms, known=known)
            }
            for way in ways
        }
        every = set().union(*speeds.values()) if speeds else set()
        least = self.request.min_bandwidth
        steps = sorted({band(one) for one in every if one > 0 and one >= least}, reverse=True)
        for step in steps:
            if self.alone is not None and -self.alone.worth.band >= step:
                alike = [one for one in every if band(one) == -self.alone.worth.band]
                return replace(self.alone, bound=max([self.alone.bound, *alike]))
            floor = max(edge(step), least)
            for level in dict.fromkeys(way.level for way in ways):
                some = [way for way in ways if way.level == level and way.network >= floor]
                found = self._at(some, floor, known=known)
                if found is not None:
                    bound = max(one for one in every if band(one) == step)
                    return replace(found, bound=max(bound, found.bandwidth))
        return None

    def _ways(self, limit: int) -> Iterator[_Way]:
        """How the gang may be on several nodes, the nearest levels first."""
        tiers = self.index.cluster.tiers
        for level in range(len(tiers) - 1, WHOLE - 1, -1):
            if self.index.distance(level) > limit:
                return
            for kind in self.candidates.kinds:
                classes = [one for _, one in self.candidates.of(kind)]
                if level != WHOLE and tiers[level].name == NVLINK:
                    if any(one.domain for one in classes):
                        yield self._way(kind, level, Hosts.DOMAIN)
                    if all(one.domain for one in classes):
                        continue
                if self.request.joined or self.request.workers == AMONG[Hosts.TWO]:
                    yield self._way(kind, level, Hosts.TWO)
                if self.request.workers > AMONG[Hosts.TWO]:
                    yield self._way(kind, level, Hosts.SEVERAL)

    def _way(self, kind: Kind, level: int, hosts: Hosts) -> _Way:
        index, request = self.index, self.request
        terms = index.terms(request, hosts, level)
        return _Way(kind, level, terms, index.network(request, hosts, level))

    def _at(self, ways: Sequence[_Way], floor: float, *, known: bool) -> Found | None:
        """The best choice at a level whose pods get as much as a floor."""
        request = self.request
        most = request.workers if request.max_nodes is None else request.max_nodes
        found: list[tuple[_Way, int]] = []
        for way in ways:
            search = self._domain_search(way, self._floor(way, floor, 0), most, known=known)
            nodes = None if search is None else search.fewest(way.level)
            if nodes is not None:
                most = nodes
                found.append((way, nodes))
        made = [self._made(way, floor, most, known=known) for way, nodes in found if nodes == most]
        return min(made, key=lambda one: one.worth, default=None)

    def _floor(self, way: _Way, bandwidth: float, nodes: int, inside: float = 0.0) -> Floor:
        hosts = way.terms.hosts
        if hosts is not Hosts.DOMAIN:
            hosts = Hosts.TWO if nodes == AMONG[Hosts.TWO] else Hosts.SEVERAL
        joined = way.terms._replace(hosts=hosts, joined=True)
        return Floor(terms=way.terms, bandwidth=bandwidth, joined=joined, inside=inside)

    def _domain_search(
        self, way: _Way, floor: Floor, most: int, *, known: bool
    ) -> DomainSearch | None:
        """The search for nodes of a way at a floor; None where all together are too few."""
        request, candidates = self.request, self.candidates
        least = 1
        if way.terms.hosts is Hosts.TWO:
            most = min(most, AMONG[Hosts.TWO])
        elif way.terms.hosts is Hosts.SEVERAL and request.joined:
            # Two nodes are two hosts, and may be worth less: each has more of the job's GPUs.
            least = AMONG[Hosts.SEVERAL]
        if least > most:
            return None
        costs = candidates.costs(way.kind, floor, known=known, most=request.workers - 1)
        if costs.total < request.workers:
            return None
        return DomainSearch(
            index=self.index,
            candidates=candidates,
            costs=costs,
            workers=request.workers,
            least=least,
            most=most,
        )

    def _made(self, way: _Way, floor: float, nodes: int, *, known: bool) -> Found:
        """The choice of so many nodes of which joined pods would get most."""
        least = self._floor(way, floor, nodes)
        network = self.index.network(self.request, least.joined.hosts, way.level)
        most = self.request.workers - 1
        found = self.candidates.values(way.kind, least.joined, most)
        values = [0.0, *sorted({min(value, network) for value in found})]
        low, high = 0, len(values)
        while high - low > 1:
            # Mostly there is room enough for the best.
            middle = high - 1 if high == len(values) else (low + high) // 2
            some = self._floor(way, floor, nodes, values[middle])
            search = self._domain_search(way, some, nodes, known=known)
            if search is None or search.fewest(way.level) is None:
                high = middle
            else:
                low = middle
        chosen = self._floor(way, floor, nodes, values[low])
        search = self._domain_search(way, chosen, nodes, known=known)
        choice = None if search is None else search.best(way.level)
        assert choice is not None, "this floor was tried"
        return self._found(way.level, choice, chosen, way.network, values[low])

    # A single node

    def _alone(self, kind: Kind) -> Found | None:
        """The best single node for the whole gang."""
        request, candidates, index = self.request, self.candidates, self.index
        terms = index.terms(request, Hosts.NODE)
        joined = terms._replace(joined=True)
        some = [(at, one) for at, one in candidates.of(kind) if one.capacity >= request.workers]
        bandwidth = max((one.best(request.workers, terms) for _, one in some), default=0.0)
        if bandwidth <= 0 or bandwidth < request.min_bandwidth:
            return None
        least = max(edge(band(bandwidth)), request.min_bandwidth)
        floor = Floor(terms=terms, bandwidth=least, joined=joined)
        inside = max(one.most_inside(request.workers, floor) for _, one in some)
        floor = floor._replace(inside=inside)
        prices = {
            at: price
            for at, one in some
            if (price := one.price(request.workers, floor)) is not None
        }
        cheapest = min(prices.values())
        seats: dict[int, NodeLoad] = {}
        for leaf, at, node in candidates.members(
            at for at, price in prices.items() if price == cheapest
        ):
            # Within a leaf nodes come in the order of their names.
            seats.setdefault(leaf, NodeLoad(node, at, request.workers))
        worths = {leaf: broken(index, (leaf,)) for leaf in seats}
        leaf = min(seats, key=lambda leaf: (worths[leaf][1], natural(seats[leaf].node.name)))
        counts, free = worths[leaf]
        choice = Choice(Score(1, counts, cheapest, free), (seats[leaf],))
        found = self._found(None, choice, floor, UNLIMITED, inside)
        return replace(found, bound=bandwidth)

    def _found(
        self, level: int | None, choice: Choice, floor: Floor, network: float, inside: float
    ) -> Found:
        distance = 0 if level is None else self.index.distance(level)
        words = distances(self.index.cluster)
        preferred = words[self.request.preferred] if self.request.preferred else distance
        loads = dict.fromkeys((seat.of, seat.workers) for seat in choice.seats)
        classes = [(self.candidates.classes[at], workers) for at, workers in loads]
        bandwidth = min([network, *(_reached(one, many, floor) for one, many in classes)])
        return Found(
            worth=Objective(
                reach=max(0, distance - preferred),
                assumed=any(one.loads.assumed(floor.terms) for one, _ in classes),
                band=-band(bandwidth),
                distance=distance,
                nodes=choice.score.nodes,
                inside=-inside,
                domains=choice.score.domains,
                damage=choice.score.damage,
                broken=choice.score.broken,
            ),
            bandwidth=bandwidth,
            level=level,
            choice=choice,
            candidates=self.candidates,
            floor=floor,
        )


def _reached(one: NodeClass, workers: int, floor: Floor) -> float:
    """GB/s that the chosen set of a node allows."""
    cheapest = None if one.hidden else one.cheapest(workers, floor)
    if cheapest is None:
        return one.best(workers, floor.terms)
    return min(one.loads.got(cheapest[1], one.terms(floor.terms)), one.network_limit(floor.terms))


def placement(request: Request, index: Index, found: Found) -> Placement:
    """Spell a choice out: workers numbered along the network, GPUs along the rings."""
    shared: dict[tuple[int, int], Sequence[tuple[int, ...]]] = {}
    seats: list[Seat] = []
    for node, at, workers in found.choice.seats:
        groups = shared.get((at, workers))
        if groups is None:
            groups = shared[at, workers] = found.candidates.classes[at].pods(workers, found.floor)
        seats += [(node, gpus) for gpus in groups]
    value = worth(seats, request.gpus, index.cluster, joined=request.joined, wire=request.wire)
    # Nodes of several NVLink domains are searched one by one, and are worth more together.
    same = value.bandwidth is None or math.isclose(value.bandwidth.point, found.bandwidth)
    return Placement(
        assignments=tuple(
            Assignment(worker=worker, node=node.name, gpus=gpus)
            for worker, (node, gpus) in enumerate(seats)
        ),
        bandwidth=value.bandwidth,
        inside=value.inside,
        worst=value.worst,
        tier=word(index.cluster, found.level),
        proof=Proof(optimal=found.proven and same, bound=found.bound),
        gpus=request.gpus,
        joined=request.joined,
        wire=request.wire,
    )


def word(cluster: Cluster, level: int | None) -> str:
    """The word for a level: `node` for None, the name of a tier, `beyond`."""
    if level is None:
        return NODE_TIER
    return BEYOND if level == WHOLE else cluster.tiers[level].name
