"""Equivalence classes of the nodes for a job.

`NodeGroups` are the groups of nodes of an `Index` that are the same to one request and its changes,
and `Candidates` are the classes that one request may use.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

from msgspec import structs

from arena_topo.bandwidth import Wire
from arena_topo.solver import UNLIMITED, Reason, Request, band, band_edge
from arena_topo.solver.fragmentation import PackingCost, packing_cost, spreading_cost
from arena_topo.solver.index import Domain, GroupOf, GroupOfNodes, Index
from arena_topo.solver.loads import AMONG, DIGIT, NEARNESS, Floor, Hosts, Loads, Terms, loads_of
from arena_topo.solver.memo import remembered
from arena_topo.solver.valuation import nvlink_domain
from arena_topo.topology import CORDONED, GPUSet, Node, NodeName, count

MOST_CLASSES = 1 << 13
"""The most classes of nodes that searches share, on whatever cluster."""

MOST_VALUE_TABLES = 128
"""The most tables of their values, by what a request asks for."""

MOST_LIMITED = 8
"""The requests for which an index remembers which nodes lack CPU or memory."""

MOST_SHAPES = 64
"""The sizes and limits of requests for which an index remembers the classes of nodes."""

_Value = TypeVar("_Value")

ModelAndResource = tuple[str, str]
"""The key of nodes that one gang may combine: GPU model, resource name."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NodeClass:
    """Nodes that are the same to a job.

    `unattributed` of the `free` GPUs are in use, with unknown indexes. `capacity` is the most
    workers of the request that one of the nodes takes; 0 for none. `network` is GB/s that one of
    them can send to others. `domain`: it is in an NVLink domain with others. If the class is
    `blind`, the nodes do not pin the GPUs that are planned for a job. If it is so or has
    unattributed GPUs, those of a job are `picked` by the kubelet, and the worst set counts.
    """

    loads: Loads
    cost: PackingCost
    free: GPUSet
    unattributed: int
    kind: ModelAndResource
    capacity: int = 0
    network: float = UNLIMITED
    domain: bool = False
    blind: bool = False
    picked: bool = False

    def terms(self, terms: Terms) -> Terms:
        """The terms on this class: with the limit of its network, or of an NVLink domain.

        NVLink that leaves the machine joins all its pods.
        """
        if self.domain and terms.hosts is Hosts.NODE and not terms.joined:
            return terms._replace(joined=True)
        if self.network < terms.limit and terms.hosts in AMONG and terms.wire is Wire.RDMA:
            return terms._replace(limit=self.network)
        return terms

    def assumed(self, terms: Terms) -> bool:
        """Whether what joins the hosts of a job rests on a rate that was not given."""
        return self.loads.assumed(self.terms(terms))

    def off_the_switch(self, ranks: int) -> bool:
        """Whether some free GPUs are not joined to the NVLink domain of the node."""
        usable = self.domain and self.free
        return bool(usable) and not self.loads.sets.facts.in_domain(self.free, ranks)

    def parts_of_a_host(self, terms: Terms) -> bool:
        """Whether such nodes are valued together (`parts`), not one by one."""
        return self.domain and terms.hosts in AMONG

    def best(self, workers: int, terms: Terms) -> float:
        """GB/s that a job can count on, as limited by so many workers on one node."""
        terms = self.terms(terms)
        size = workers * terms.gpus
        if count(self.free) - self.unattributed < size:
            return 0.0
        if terms.hosts is Hosts.DOMAIN and not self.domain:
            return 0.0
        return (self.loads.worst if self.picked else self.loads.best)(self.free, size, terms)

    def speeds(self, terms: Terms) -> tuple[float, ...]:
        """GB/s that a job can count on with 1, 2, ... workers on one node, as many as it takes."""
        most = min(self.capacity, terms.ranks // terms.gpus)
        if terms.hosts is Hosts.DOMAIN and not self.domain:
            return (0.0,) * most
        return self.loads.speeds(self.free, most, self.terms(terms), self.picked)

    def most_inside(self, workers: int, floor: Floor) -> float:
        """The most GB/s of joined pods on a set with a floor; 0 if no set has it."""
        size = workers * floor.terms.gpus
        if self.best(workers, floor.terms) < floor.bandwidth:
            return 0.0
        floor = self._floor(floor)
        if self.picked:
            return self.loads.worst(self.free, size, floor.joined)
        return self.loads.most_inside(self.free, size, floor)

    def prices(self, floor: Floor) -> Mapping[int, int]:
        """The cost of each number of workers that reaches a floor: of all if on a single node.

        Where the kubelet picks, no nearness counts, and GPUs are only counted, as nobody knows
        which ones remain; at equal cost the node with the faster planned set is preferred.
        """
        terms = floor.terms
        whole = terms.ranks // terms.gpus
        if terms.hosts is Hosts.NODE:
            loads: tuple[int, ...] = (whole,) if self.best(whole, terms) >= floor.bandwidth else ()
        else:
            speeds = enumerate(self.speeds(terms), 1)
            loads = tuple([load for load, speed in speeds if speed >= floor.bandwidth])
        if not self.picked:
            return self.loads.prices(self.cost, self.free, loads, self._floor(floor))
        free, gpus = count(self.free) - self.unattributed, terms.gpus
        joined = self._floor(floor).joined
        return {
            load: NEARNESS * self.cost.counted(free, load * gpus)
            + (self._shortfall(load, floor) if self.blind else 0)
            for load in loads
            if not floor.inside or self.loads.worst(self.free, load * gpus, joined) >= floor.inside
        }

    def cheapest(self, workers: int, floor: Floor) -> tuple[int, GPUSet] | None:
        """The nearest set for so many workers at a floor, and the price of the node."""
        size = workers * floor.terms.gpus
        return self.loads.cheapest(self.cost, self.free, size, self._floor(floor))

    def reached(self, workers: int, floor: Floor) -> float:
        """GB/s that the cheapest set of a node allows."""
        cheapest = None if self.picked else self.cheapest(workers, floor)
        if cheapest is None:
            return self.best(workers, floor.terms)
        return self.loads.rate(cheapest[1], self.terms(floor.terms))

    def pods(
        self, workers: int, floor: Floor, *, planned: float = 0.0
    ) -> Sequence[tuple[int, ...]]:
        """The GPUs of each of so many workers at a floor; empty if it is not known which are free.

        Where free GPUs are known and the kubelet picks, they are the fastest ones; elsewhere they
        have `planned` GB/s as well if they can.
        """
        if self.unattributed:
            return [()] * workers
        if self.blind:
            cheapest = self.cheapest(workers, self._planned(workers, floor))
        else:
            faster = floor._replace(bandwidth=max(floor.bandwidth, planned))
            cheapest = self.cheapest(workers, faster) or self.cheapest(workers, floor)
        assert cheapest is not None, "a load that is chosen has GPUs"
        return self.loads.pods(cheapest[1], self.terms(floor.terms))

    def fastest(self, workers: int, terms: Terms) -> float:
        """GB/s of the fastest GPUs for so many workers, whether they can be promised or not."""
        if self.unattributed:
            return self.best(workers, terms)
        terms = self.terms(terms)
        return self.loads.best(self.free, workers * terms.gpus, terms)

    def _planned(self, workers: int, floor: Floor) -> Floor:
        """The floor of the fastest sets of this class, whether they can be promised or not."""
        floor, size = self._floor(floor), workers * floor.terms.gpus
        fastest = self.loads.best(self.free, size, floor.terms)
        floor = floor._replace(bandwidth=band_edge(band(fastest)), inside=0.0)
        return floor._replace(inside=self.loads.most_inside(self.free, size, floor))

    def _shortfall(self, workers: int, floor: Floor) -> int:
        """Bands from the planned set to the best one of the machine, for pods, then if joined."""
        floor, size = self._floor(floor), workers * floor.terms.gpus
        everything = self.loads.sets.everything
        if self.unattributed:
            rate = self.loads.worst(self.free, size, floor.terms)
            inside = self.loads.worst(self.free, size, floor.joined)
        else:
            planned = self._planned(workers, floor)
            rate, inside = planned.bandwidth, planned.inside
        most = (self.loads.best(everything, size, terms) for terms in (floor.terms, floor.joined))
        gaps = [
            int(band(best) - band(value)) if value > 0 and math.isfinite(best) else 0
            for best, value in zip(most, (rate, inside), strict=True)
        ]
        return gaps[0] * DIGIT + gaps[1]

    def _floor(self, floor: Floor) -> Floor:
        terms, joined = self.terms(floor.terms), self.terms(floor.joined)
        if terms is floor.terms and joined is floor.joined:
            return floor
        return floor._replace(terms=terms, joined=joined)


class Table(dict[NodeClass, _Value]):
    """Values by class, each computed when it is asked for."""

    def __init__(self, value: Callable[[NodeClass], _Value]) -> None:
        self._value = value

    def __missing__(self, nodes: NodeClass) -> _Value:
        value = self[nodes] = self._value(nodes)
        return value


@lru_cache(maxsize=MOST_VALUE_TABLES)
def speeds_of(terms: Terms) -> Mapping[NodeClass, tuple[float, ...]]:
    """`NodeClass.speeds` of all classes."""
    return Table(lambda nodes: nodes.speeds(terms))


@lru_cache(maxsize=MOST_VALUE_TABLES)
def assumed_of(terms: Terms) -> Mapping[NodeClass, bool]:
    """`NodeClass.assumed` of all classes."""
    return Table(lambda nodes: nodes.assumed(terms))


@lru_cache(maxsize=MOST_VALUE_TABLES)
def prices_of(floor: Floor) -> Mapping[NodeClass, Mapping[int, int]]:
    """`NodeClass.prices` of all classes."""
    return Table(lambda nodes: nodes.prices(floor))


_shared_class = lru_cache(maxsize=MOST_CLASSES)(NodeClass)


def class_of(
    index: Index,
    node: Node,
    *,
    capacity: int = 0,
    mixed: bool = False,
    blind: bool = False,
    spread: bool = False,
) -> NodeClass:
    """The class of a node, in its present state or in a hypothetical one."""
    loads = loads_of(node.machine)
    sets = loads.sets
    # Where all sets of a size are worth the same, it does not matter who picks.
    blind = blind and not node.pins and not loads.alike
    return _shared_class(
        loads=loads,
        cost=spreading_cost(sets, index.proximity(node.machine)) if spread else packing_cost(sets),
        free=node.free,
        unattributed=node.unattributed,
        kind=model_and_resource(node, mixed=mixed),
        capacity=capacity,
        network=node.network,
        domain=nvlink_domain(index.fabric, node) is not None,
        blind=blind,
        picked=blind or node.unattributed > 0,
    )


def groups_for(request: Request, index: Index, *, idle: bool = False) -> NodeGroups:
    """The nodes in groups that are the same to a request and its changes.

    With `idle` all jobs have ended, and every node and GPU is healthy.
    """
    spread = index.spreads(request)
    if request.excluded or request.cpu or request.memory:
        return NodeGroups(request, index, idle=idle, spread=spread)
    cache = index.idle_now if idle else index.now
    if spread not in cache:
        cache[spread] = NodeGroups(request, index, idle=idle, spread=spread)
    groups: NodeGroups = cache[spread]
    return groups


class NodeGroups:
    """The nodes of a cluster in groups that are the same to a request and its changes.

    Groups have numbers: `nodes` has the first node of each, `counts` the number of its nodes.
    """

    def __init__(
        self,
        request: Request,
        index: Index,
        *,
        idle: bool,
        spread: bool,
        key: Callable[[Node], object] | None = None,
    ) -> None:
        self.index = index
        self.idle = idle
        self.excluded = request.excluded
        self._request = request
        self._spread = spread
        self._key = key
        self._states = index.idle_groups if idle else index.groups
        self._state_of: GroupOf = index.idle_of if idle else index.of.__getitem__
        self._candidates: dict[tuple[object, ...], Candidates] = {}

    def candidates(self, request: Request) -> Candidates:
        """The candidates for a request that differs from the pool's only in size and limits."""
        key = (
            *(request.gpus, request.cpu, request.memory),
            *(request.model, request.mix_models, request.per_node, request.blind),
        )
        candidates = self._candidates.get(key)
        if candidates is None:
            candidates = self._candidates[key] = self._sorted(request)
        return candidates

    def _sorted(self, request: Request) -> Candidates:
        """The classes of the nodes with room, by free GPUs and capacity (with CPU and memory)."""
        cache = self.index.classes
        if len(cache) > MOST_SHAPES:
            cache.clear()
        shape = (request.gpus, request.model, request.mix_models, request.per_node, request.blind)
        known = cache.setdefault((*shape, self._spread), {})
        unlimited = structs.replace(request, excluded={}, cpu=0.0, memory=0)

        def of(group: GroupOfNodes, capacity: int | None = None) -> NodeClass:
            nodes = known.get((group, capacity))
            if nodes is None:
                nodes = known[group, capacity] = class_of(
                    self.index,
                    group.node,
                    capacity=room(unlimited, group.node) if capacity is None else capacity,
                    mixed=request.mix_models,
                    blind=request.blind,
                    spread=self._spread,
                )
            return nodes

        classes = [(of(group), group) for group in self._states]
        group_of = self._state_of
        capacities = {group: nodes.capacity for nodes, group in classes}
        fewer = self._fewer(request, shape, capacities)
        if fewer:
            parts, group_of = self.index.split(self._states, group_of, fewer)
            place = {group: at for at, group in enumerate(self._states)}
            marked = sorted(parts, key=lambda part: (place[part[0]], part[1] or 0))
            classes = [(of(*key), parts[key]) for key in marked]
        return Candidates(
            self.index,
            [nodes for nodes, _ in classes if nodes.capacity],
            [group for nodes, group in classes if nodes.capacity],
            group_of,
        )

    def _fewer(
        self, request: Request, shape: tuple[object, ...], capacities: Mapping[GroupOfNodes, int]
    ) -> dict[NodeName, int]:
        """The nodes that take fewer workers than others of their group, and how many."""
        index, cpu, memory = self.index, request.cpu, request.memory
        excluded = dict.fromkeys((name for name in request.excluded if name in index.of), 0)
        if not cpu and not memory:
            return excluded
        limited = index.limited
        if len(limited) >= MOST_LIMITED:
            limited.clear()
        key = (*shape, cpu, memory, self.idle)
        seen, fewer = limited.get(key) or (0, {})
        of, idle = self._state_of, self.idle
        for name in index.changes[seen:] if key in limited else index.nodes:
            most = capacities[of(name)]
            if most:
                node = index.nodes[name]
                least = _with_resources(request, most, *_resources(node, idle=idle))
                if least < most:
                    fewer[name] = least
                    continue
            fewer.pop(name, None)
        limited[key] = len(index.changes), fewer
        return fewer | excluded

    @cached_property
    def _parts(self) -> tuple[Sequence[GroupOfNodes], GroupOf]:
        """The groups in their order, and the group of each node."""
        request, nodes = self._request, self.index.nodes
        marked: Iterable[NodeName] = (name for name in request.excluded if name in nodes)
        if request.cpu or request.memory or self._key:
            marked = nodes
        marks: dict[NodeName, object] = {}
        for name in marked:
            node = nodes[name]
            marks[name] = (
                request.excluded.get(name),
                self._limits(node),
                None if self.idle else self._limits(node.unreserved),
                self._key(node) if self._key else None,
            )
        if not marks:
            return self._states, self._state_of
        parts, of = self.index.split(self._states, self._state_of, marks)
        return self.index.ordered(parts.values(), of), of

    def _limits(self, node: Node) -> tuple[float | None, int | None]:
        """The CPU and memory of a node, as far as the request asks for them."""
        cpu, memory = _resources(node, idle=self.idle)
        return cpu if self._request.cpu else None, memory if self._request.memory else None

    def split(self, key: Callable[[Node], object]) -> NodeGroups:
        """The same nodes in smaller groups, whose nodes have the same key too."""
        return NodeGroups(self._request, self.index, idle=self.idle, spread=self._spread, key=key)

    def as_candidates(self, classes: Sequence[NodeClass]) -> Candidates:
        """The candidates if each group is a class."""
        groups, of = self._parts
        return Candidates(self.index, classes, groups, of)

    @cached_property
    def nodes(self) -> Sequence[Node]:
        """The first node of each group."""
        first = (self.index.first(group) for group in self._parts[0])
        return [node.idle() if self.idle else node for node in first]

    @cached_property
    def counts(self) -> Sequence[int]:
        """The number of nodes of each group."""
        return [group.nodes for group in self._parts[0]]

    @cached_property
    def models(self) -> frozenset[str]:
        """The known GPU models."""
        return frozenset(node.machine.model for node in self.nodes if node.machine.model)

    def sums(self, values: Sequence[float], level: int) -> list[float]:
        """For each domain of a level, the sum of its nodes' values; `values` are by group."""
        by_leaf = [0.0] * len(self.index.paths)
        for value, group in zip(values, self._parts[0], strict=True):
            for leaf, nodes in group.leaves.items() if value else ():
                by_leaf[leaf] += value * nodes
        sums = [0.0, *accumulate(by_leaf)]
        domains = self.index.levels[level]
        return [sums[domain.leaves.stop] - sums[domain.leaves.start] for domain in domains]

    def counts_in(self, domain: Domain) -> Mapping[int, int]:
        """The number of nodes of each group in a domain."""
        if domain is self.index.whole:
            return dict(enumerate(self.counts))
        groups, of = self._parts
        own = Counter(map(of, self.index.nodes_in(domain.leaves)))
        return {at: own[group] for at, group in enumerate(groups) if group in own}

    def members(self, group: int, domain: Domain) -> Iterator[Node]:
        """The nodes of a group in a domain, in the order of their leaves and names."""
        groups, of = self._parts
        for leaf in domain.leaves:
            if leaf in groups[group].leaves:
                for name in self.index.names(leaf):
                    if of(name) is groups[group]:
                        yield self.index.nodes[name]


Row = tuple[int, ...]
"""The number of nodes of a domain by their capacity, the largest first."""


class Rows:
    """The nodes of each domain by the most workers that they take: their capacity.

    `capacities` are the different ones, the largest first.
    """

    def __init__(
        self,
        index: Index,
        leaves: Sequence[Mapping[int, int]],
        counts: Sequence[int],
        capacity: Sequence[int],
    ) -> None:
        self.index = index
        self.capacities = sorted({*capacity} - {0}, reverse=True)
        self._leaves = leaves
        self._capacity = capacity
        whole = Counter[int]()
        for most, nodes in zip(capacity, counts, strict=True):
            whole[most] += nodes
        self.whole = tuple(map(whole.__getitem__, self.capacities))
        """The row of the whole cluster."""

    @cached_property
    def _by_leaf(self) -> list[list[int]]:
        """For each capacity, the number of its nodes by leaf."""
        of = {most: [0] * len(self.index.paths) for most in (*self.capacities, 0)}
        for most, leaves in zip(self._capacity, self._leaves, strict=True):
            numbers = of[most]
            for leaf, nodes in leaves.items() if most else ():
                numbers[leaf] += nodes
        return [of[most] for most in self.capacities]

    @remembered
    def at(self, level: int) -> tuple[list[Row], list[int]]:
        """The different rows of the domains of a level, and the place there of each domain's."""
        domains = self.index.levels[level]
        if len(domains) == 1:
            return [self.whole], [0]
        if len(domains) == len(self.index.paths):
            rows = list(zip(*self._by_leaf, strict=True))
        else:
            sums = [list(accumulate(numbers, initial=0)) for numbers in self._by_leaf]
            rows = [
                tuple([line[domain.leaves.stop] - line[domain.leaves.start] for line in sums])
                for domain in domains
            ]
        places: dict[Row, int] = {}
        of = [places.setdefault(row, len(places)) for row in rows]
        return list(places), of

    def most_workers(self, row: Row, nodes: int) -> int:
        """The most workers on so many of these nodes."""
        workers = 0
        for load, number in zip(self.capacities, row, strict=True):
            if number >= nodes:
                return workers + load * nodes
            workers += load * number
            nodes -= number
        return workers

    @remembered
    def needed(self, level: int, workers: int) -> list[int | None]:
        """For each different row, the fewest nodes for so many workers; None if there are not."""
        return [self._needed(row, workers) for row in self.at(level)[0]]

    def _needed(self, row: Row, workers: int) -> int | None:
        nodes = 0
        for load, number in zip(self.capacities, row, strict=True):
            if load * number >= workers:
                return nodes - (-workers // load)
            workers -= load * number
            nodes += number
        return None


class Profile(NamedTuple):
    """Classes by number whose nodes can have the same loads; `nodes` in all."""

    classes: list[int]
    nodes: int


class Candidates:
    """The classes that a request may use, and the number of nodes of each by leaf."""

    def __init__(
        self,
        index: Index,
        classes: Sequence[NodeClass],
        groups: Sequence[GroupOfNodes],
        of: GroupOf,
    ) -> None:
        self.index = index
        self.classes = classes
        self.leaves = [group.leaves for group in groups]
        self.counts = [group.nodes for group in groups]
        self._of = of
        self._numbers = {group: at for at, group in enumerate(groups)}
        self.searches: dict[tuple[object, ...], Any] = {}
        """Cache of searches at a bandwidth (`domains.search_of`), for the next request."""

    @cached_property
    def kinds(self) -> list[ModelAndResource]:
        """The kinds that have capacity: a gang combines nodes of one kind only."""
        return sorted({nodes.kind for nodes in self.classes if nodes.capacity})

    @remembered
    def of(self, kind: ModelAndResource) -> list[tuple[int, NodeClass]]:
        """The classes of a kind with capacity, with their numbers."""
        classes = enumerate(self.classes)
        return [(at, nodes) for at, nodes in classes if nodes.capacity and nodes.kind == kind]

    @remembered
    def off_the_switch(self, kind: ModelAndResource, ranks: int) -> bool:
        """Whether nodes of NVLink domains have free GPUs that are not joined to their domain.

        By its choice of GPUs such a node is a part of a host, or a host of its own. So all nodes of
        the kind are valued one by one as well.
        """
        return any(nodes.off_the_switch(ranks) for _, nodes in self.of(kind))

    def one_by_one(self, kind: ModelAndResource, terms: Terms) -> list[tuple[int, NodeClass]]:
        """The classes of a kind whose nodes are valued one by one under these terms."""
        own = self.of(kind)
        if terms.hosts not in AMONG or self.off_the_switch(kind, terms.ranks):
            return own
        return [(at, nodes) for at, nodes in own if not nodes.domain]

    @remembered
    def rows(self, capacities: tuple[int, ...]) -> Rows:
        """The nodes of each domain by capacity, which is given for each class."""
        return Rows(self.index, self.leaves, self.counts, capacities)

    @remembered
    def profiles(
        self,
        kind: ModelAndResource,
        terms: Terms,
        known: bool,  # noqa: FBT001
        every: bool = False,  # noqa: FBT001, FBT002
    ) -> dict[tuple[float, ...], Profile]:
        """The classes whose nodes are valued one by one, by the GB/s of their loads.

        With `known`, without assumed networks; with `every`, as if all were valued one by one.
        """
        profiles: dict[tuple[float, ...], list[int]] = {}
        speeds, assumed = speeds_of(terms), assumed_of(terms)
        for at, nodes in self.of(kind) if every else self.one_by_one(kind, terms):
            if not (known and assumed[nodes]):
                profiles.setdefault(speeds[nodes], []).append(at)
        return {speeds: self.profile(classes) for speeds, classes in profiles.items()}

    def profile(self, classes: list[int]) -> Profile:
        """Some classes, and the number of their nodes."""
        return Profile(classes, sum(map(self.counts.__getitem__, classes)))

    @remembered
    def speeds(
        self,
        kind: ModelAndResource,
        terms: Terms,
        known: bool,  # noqa: FBT001
    ) -> frozenset[float]:
        """The values of all loads; with `known`, without assumed networks."""
        return frozenset().union(*self.profiles(kind, terms, known))

    @remembered
    def most_assumed(self, kind: ModelAndResource, terms: Terms) -> float:
        """The most GB/s of a load of a node that is valued on its own over an assumed network."""
        nodes = [own for _, own in self.one_by_one(kind, terms) if own.assumed(terms)]
        return max((speed for own in nodes for speed in own.speeds(terms)), default=0.0)

    @remembered
    def values(self, kind: ModelAndResource, terms: Terms, most: int) -> frozenset[float]:
        """The values of all GPU sets for at most `most` workers on nodes of a kind."""
        capacities: dict[tuple[Loads, Terms], int] = {}
        for _, nodes in self.of(kind):
            own = nodes.loads, nodes.terms(terms)
            capacities[own] = max(capacities.get(own, 0), nodes.capacity)
        return frozenset[float]().union(
            *(
                loads.values(workers * terms.gpus, own)
                for (loads, own), capacity in capacities.items()
                for workers in range(1, min(capacity, most) + 1)
            )
        )

    def counts_in(self, leaves: Sequence[int]) -> dict[int, int]:
        """The number of nodes of each class in some leaves, by class number in its order."""
        if len(leaves) == len(self.index.paths):
            return dict(enumerate(self.counts))
        own = Counter(map(self._of, self.index.nodes_in(leaves)))
        numbers = self._numbers
        return dict(sorted((numbers[group], own[group]) for group in own if group in numbers))

    def members(self, leaf: int) -> Iterator[tuple[int, Node]]:
        """The nodes of a leaf in the order of their names, each with its class."""
        for name in self.index.names(leaf):
            at = self._numbers.get(self._of(name))
            if at is not None:
                yield at, self.index.nodes[name]


def model_and_resource(node: Node, *, mixed: bool) -> ModelAndResource:
    """The key of nodes that one gang may combine: GPU model (any if `mixed`) and resource."""
    return "" if mixed else node.machine.model or "", node.resource


def room(request: Request, node: Node, *, free: int | None = None) -> int:
    """The number of workers that fit on the node now, or with `free` GPUs; bandwidth aside."""
    if refusal_reason(request, node) is not None:
        return 0
    workers = (node.free_count if free is None else free) // request.gpus
    if request.per_node is not None:
        workers = min(workers, request.per_node)
    return max(0, _with_resources(request, workers, node.cpu, node.memory))


def _with_resources(request: Request, most: int, cpu: float | None, memory: int | None) -> int:
    """The workers, at most so many, that this CPU and memory is enough for."""
    if request.cpu and cpu is not None:
        most = min(most, int((cpu + 1e-9) // request.cpu))
    if request.memory and memory is not None:
        most = min(most, memory // request.memory)
    return most


def _resources(node: Node, *, idle: bool) -> tuple[float | None, int | None]:
    """The free CPU and memory of a node, or all of it."""
    return (node.all_cpu, node.all_memory) if idle else (node.cpu, node.memory)


def is_withheld(request: Request, node: Node) -> bool:
    """Whether the node would take more workers now if no GPUs of it were reserved."""
    return node.reserved is not None and room(request, node.unreserved) > room(request, node)


def refusal_reason(request: Request, node: Node) -> Reason | None:
    """Why the node takes no worker of this job even with all GPUs free; None if it may take one."""
    gpus, reason = len(node.machine.gpus), None
    if node.name in request.excluded:
        reason = request.excluded[node.name]
    elif not gpus:
        reason = Reason.NO_GPUS
    elif node.shared is not None:
        reason = Reason.SHARED
    elif request.model and (node.machine.model or "").casefold() != request.model.casefold():
        reason = Reason.MODEL
    elif gpus < request.gpus:
        reason = Reason.TOO_SMALL
    elif node.unavailable is not None:
        reason = Reason.CORDONED if node.unavailable == CORDONED else Reason.NOT_READY
    return reason
