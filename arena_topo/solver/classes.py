"""Equivalence classes of the nodes for a job, and the tree of network domains.

An `Index` is built once per cluster and used for many requests: it sorts nodes into classes (same
configuration, same free set) and into the domains of the network. A `Pool` has the groups of nodes
that are the same to one request and its changes, and `Candidates` are the classes that one request
may use.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, groupby
from typing import TYPE_CHECKING

from arena_topo.bandwidth import Wire, network_limit
from arena_topo.solver import Reason, Request
from arena_topo.solver.fragmentation import (
    PackingCost,
    Proximity,
    packing_cost,
    proximity,
    spreading_cost,
    spreads,
)
from arena_topo.solver.gpu_sets import UNLIMITED
from arena_topo.solver.loads import AMONG, Floor, Hosts, Loads, Terms, loads_of
from arena_topo.solver.memo import remembered
from arena_topo.solver.valuing import is_given, nvlink_domain, rate_of_level
from arena_topo.topology import Cluster, GPUSet, Machine, Node, count, natural

if TYPE_CHECKING:
    from arena_topo.solver.domains import DomainSearch

WHOLE = -1
"""The level of the whole cluster, coarser than any tier."""

Kind = tuple[str, str]
"""The key of nodes that one gang may combine: GPU model, resource name."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeClass:
    """Nodes that are the same to a job.

    `unattributed` of the `free` GPUs are in use, with unknown indexes. `capacity` is the most
    workers of the request that one of the nodes takes; 0 for none. `network` is GB/s that one of
    them can send to others. `domain`: it is in an NVLink domain with others.
    """

    loads: Loads
    cost: PackingCost
    free: GPUSet
    unattributed: int
    kind: Kind
    capacity: int = 0
    network: float = UNLIMITED
    domain: bool = False

    def terms(self, terms: Terms) -> Terms:
        """The terms on this class: NVLink that leaves the machine joins all its pods."""
        if self.domain and terms.hosts is Hosts.NODE and not terms.joined:
            return terms._replace(joined=True)
        return terms

    def best(self, workers: int, terms: Terms) -> float:
        """GB/s that a job can count on, as limited by so many workers on one node."""
        terms = self.terms(terms)
        size = workers * terms.gpus
        if count(self.free) - self.unattributed < size:
            return 0.0
        if terms.hosts is Hosts.DOMAIN and not self.domain:
            return 0.0
        # The kubelet picks among unattributed GPUs, so the worst set counts.
        value = (self.loads.worst if self.unattributed else self.loads.best)(self.free, size, terms)
        return min(value, self.network_limit(terms))

    def most_inside(self, workers: int, floor: Floor) -> float:
        """The most GB/s of joined pods on a set with a floor; 0 if no set has it."""
        size = workers * floor.terms.gpus
        if self.best(workers, floor.terms) < floor.bandwidth:
            return 0.0
        if self.unattributed:
            return self.loads.worst(self.free, size, floor.joined)
        return self.loads.most_inside(self.free, size, self._floor(floor))

    def price(self, workers: int, floor: Floor) -> int | None:
        """The cost of so many workers on one node at a floor; None if they are too slow."""
        if self.best(workers, floor.terms) < floor.bandwidth:
            return None
        if self.unattributed:
            size = workers * floor.terms.gpus
            if floor.inside and self.loads.worst(self.free, size, floor.joined) < floor.inside:
                return None
            return self.cost.counted(count(self.free) - self.unattributed, size)
        cheapest = self.cheapest(workers, floor)
        return None if cheapest is None else cheapest[0]

    def cheapest(self, workers: int, floor: Floor) -> tuple[int, GPUSet] | None:
        """The cheapest set for so many workers at a floor, and its cost."""
        size = workers * floor.terms.gpus
        return self.loads.cheapest(self.cost, self.free, size, self._floor(floor))

    def reached(self, workers: int, floor: Floor) -> float:
        """GB/s that the cheapest set of a node allows."""
        cheapest = None if self.unattributed else self.cheapest(workers, floor)
        if cheapest is None:
            return self.best(workers, floor.terms)
        value = self.loads.rate(cheapest[1], self.terms(floor.terms))
        return min(value, self.network_limit(floor.terms))

    def pods(self, workers: int, floor: Floor) -> Sequence[tuple[int, ...]]:
        """The GPUs of each of so many workers at a floor; empty if the kubelet picks them."""
        if self.unattributed:
            return [()] * workers
        cheapest = self.cheapest(workers, floor)
        assert cheapest is not None, "a load that is chosen has GPUs"
        return self.loads.pods(cheapest[1], self.terms(floor.terms))

    def network_limit(self, terms: Terms) -> float:
        """GB/s that the node's own network allows; UNLIMITED if it is not the slower part."""
        alone = terms.hosts in {Hosts.NODE, Hosts.DOMAIN} or terms.wire is Wire.TCP
        if alone or math.isinf(self.network):
            return UNLIMITED
        among = AMONG[terms.hosts]
        return network_limit(self.network, among=among, ranks=terms.ranks, wire=terms.wire)

    def _floor(self, floor: Floor) -> Floor:
        terms = self.terms(floor.terms)
        return floor if terms is floor.terms else floor._replace(terms=terms)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Domain:
    """A domain of the network: a rack, a spine, or the whole cluster.

    `level` is the index of its tier, from coarse to near; `WHOLE` is above them. `leaves` are the
    nearest domains in it, as positions in `Index.leaves`; the domains of one level are ordered by
    name. `free` counts the GPUs that any job could take.
    """

    level: int
    leaves: range
    free: int
    children: tuple[Domain, ...] = ()


Leaf = tuple[Sequence[int], Sequence[Node]]
"""The nodes of a nearest domain in the order of their names, and the class of each."""


class Index:
    """The nodes of a cluster by free GPUs and by network domain."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._loads: dict[tuple[object, ...], Loads] = {}
        self._proximities: dict[tuple[object, ...], Proximity] = {}
        self._pools: dict[bool, Pool] = {}
        self.firsts: list[Node] = []
        paths: dict[tuple[str, ...], tuple[list[int], list[Node]]] = {}
        ids: dict[tuple[object, ...], int] = {}
        for node in sorted(cluster.nodes, key=lambda node: (natural(node.name), node.name)):
            key = (
                self.loads(node.machine),
                node.free,
                node.unattributed,
                node.resource,
                node.unavailable is None,
                node.shared is None,
                node.network,
                node.allocatable,
            )
            at = ids.setdefault(key, len(ids))
            if at == len(self.firsts):
                self.firsts.append(node)
            home = paths.setdefault(node.domains, ([], []))
            home[0].append(at)
            home[1].append(node)
        ordered = sorted(paths, key=lambda path: [natural(name) for name in path])
        self.leaves: list[Leaf] = [paths[path] for path in ordered]
        self.levels: dict[int, list[Domain]] = {at: [] for at in range(len(cluster.tiers))}
        self._free = [0, *accumulate(sum(map(_takeable, nodes)) for _, nodes in self.leaves)]
        self.whole = self._domain(ordered, 0, WHOLE)
        self.paths: list[tuple[Domain, ...]] = [()] * len(self.leaves)
        """The domains of each leaf, coarse to near."""
        for level in range(len(cluster.tiers)):
            for domain in self.levels[level]:
                for leaf in domain.leaves:
                    self.paths[leaf] += (domain,)

    def _domain(self, paths: Sequence[tuple[str, ...]], start: int, level: int) -> Domain:
        """The domain of consecutive leaves, with all domains inside it."""
        children: list[Domain] = []
        if level + 1 < len(self.cluster.tiers):
            at = start
            for _, inside in groupby(paths, key=lambda path: path[level + 1]):
                nested = list(inside)
                children.append(self._domain(nested, at, level + 1))
                at += len(nested)
        stop = start + len(paths)
        domain = Domain(
            level=level,
            leaves=range(start, stop),
            free=self._free[stop] - self._free[start],
            children=tuple(children),
        )
        self.levels.setdefault(level, []).append(domain)
        return domain

    def loads(self, machine: Machine) -> Loads:
        """The values of the GPU sets of a machine."""
        # Comparing matrices is slow, and most nodes of a kind share one object.
        key = (
            *(id(machine.links), id(machine.nics), machine.model),
            *(machine.nvswitch, machine.pcie_generation, machine.measured),
        )
        loads = self._loads.get(key)
        if loads is None:
            loads = self._loads[key] = loads_of(machine)
        return loads

    def proximity(self, machine: Machine) -> Proximity:
        """The proximity of the GPUs of a machine."""
        key = (self.loads(machine), tuple(gpu.numa for gpu in machine.gpus))
        result = self._proximities.get(key)
        if result is None:
            result = self._proximities[key] = proximity(machine)
        return result

    def distance(self, level: int) -> int:
        """The distance of nodes that first meet at this level: 1 for the nearest tier."""
        return len(self.cluster.tiers) - level

    def network(self, request: Request, hosts: Hosts, level: int) -> float:
        """GB/s that the network allows to a gang whose nodes first meet at a level."""
        rate = rate_of_level(self.cluster, level, request.wire)
        if rate is None or hosts not in AMONG:
            return UNLIMITED
        ranks = request.workers * request.gpus
        return network_limit(rate, among=AMONG[hosts], ranks=ranks, wire=request.wire)

    def terms(self, request: Request, hosts: Hosts, level: int | None = None) -> Terms:
        """The terms of a gang on one node, or on nodes that first meet at a level."""
        apart = level is not None
        return Terms(
            hosts=hosts,
            gpus=request.gpus,
            ranks=request.workers * request.gpus,
            joined=request.joined,
            wire=request.wire,
            rated=apart and rate_of_level(self.cluster, level or 0, request.wire) is not None,
            given=apart and is_given(self.cluster, level or 0),
        )

    def pool(self, request: Request, *, idle: bool = False) -> Pool:
        """The nodes in groups that are the same to a request and its changes."""
        spread = spreads(request, self.cluster)
        if spread or request.excluded or request.cpu or request.memory:
            return Pool(self, request, idle=idle, spread=spread)
        if idle not in self._pools:
            self._pools[idle] = Pool(self, request, idle=idle, spread=False)
        return self._pools[idle]

    def candidates(self, request: Request) -> Candidates:
        """The part of the cluster that a request may use."""
        return self.pool(request).candidates(request)

    def node_class(
        self,
        node: Node,
        *,
        capacity: int = 0,
        mixed: bool = False,
        near: Proximity | None = None,
    ) -> NodeClass:
        """The class of a node, in its present state or in a hypothetical one."""
        loads = self.loads(node.machine)
        sets = loads.sets
        return NodeClass(
            loads=loads,
            cost=packing_cost(sets) if near is None else spreading_cost(sets, near),
            free=node.free,
            unattributed=node.unattributed,
            kind=kind_of(node, mixed=mixed),
            capacity=capacity,
            network=node.network,
            domain=nvlink_domain(self.cluster, node) is not None,
        )


class Pool:
    """The nodes of a cluster in groups that are the same to a request and its changes.

    Groups have numbers: `nodes` has the first node of each by name, `leaves` the groups of the
    nodes of each leaf, `counts` the number of nodes of each group. With `idle` all jobs have ended,
    and every node and GPU is healthy.
    """

    def __init__(self, index: Index, request: Request, *, idle: bool, spread: bool) -> None:
        self.index = index
        self.idle = idle
        self.excluded = request.excluded
        self.nodes: list[Node] = []
        self._near: list[Proximity | None] = []
        self._like: list[object] = []
        kinds = [_idle_kind(index, node) if idle else at for at, node in enumerate(index.firsts)]
        numbers: dict[tuple[object, ...], int] = {}

        def number(at: int, node: Node) -> int:
            state = node.idle() if idle else node
            near = index.proximity(node.machine) if spread else None
            limits = (
                request.excluded.get(node.name),
                state.cpu if request.cpu else None,
                state.memory if request.memory else None,
            )
            group = numbers.setdefault((kinds[at], near, *limits), len(numbers))
            if group == len(self.nodes):
                self.nodes.append(state)
                self._near.append(near)
                self._like.append((kinds[at], near))
            return group

        if spread or request.excluded or request.cpu or request.memory:
            self.leaves: list[Leaf] = [
                (list(map(number, classes, nodes)), nodes) for classes, nodes in index.leaves
            ]
        else:
            of = [number(at, node) for at, node in enumerate(index.firsts)]
            self.leaves = _renumbered(index.leaves, of)
        self.counts = Counter(chain.from_iterable(groups for groups, _ in self.leaves))
        self._candidates: dict[tuple[object, ...], Candidates] = {}

    def candidates(self, request: Request) -> Candidates:
        """The candidates for a request that differs from the pool's only in size and limits."""
        key = (
            *(request.gpus, request.cpu, request.memory),
            *(request.model, request.mix_models, request.per_node),
        )
        candidates = self._candidates.get(key)
        if candidates is None:
            candidates = self._candidates[key] = self._sorted(request)
        return candidates

    def _sorted(self, request: Request) -> Candidates:
        """The groups merged into classes by free GPUs and capacity (with CPU and memory)."""
        ids: dict[tuple[object, int], int] = {}
        classes: list[NodeClass] = []
        of: list[int] = []
        for node, like, near in zip(self.nodes, self._like, self._near, strict=True):
            capacity = room(request, node)
            at = ids.setdefault((like, capacity), len(classes))
            if at == len(classes):
                mixed = request.mix_models
                node_class = self.index.node_class(node, capacity=capacity, mixed=mixed, near=near)
                classes.append(node_class)
            of.append(at)
        if len(classes) == len(self.nodes):
            return Candidates(self.index, classes, self.leaves, self.counts)
        leaves = _renumbered(self.leaves, of)
        counts = Counter(chain.from_iterable(numbers for numbers, _ in leaves))
        return Candidates(self.index, classes, leaves, counts)

    @cached_property
    def models(self) -> frozenset[str]:
        """The known GPU models."""
        return frozenset(node.machine.model for node in self.nodes if node.machine.model)

    def sums(self, values: Sequence[float], level: int) -> list[float]:
        """For each domain of a level, the sum of its nodes' values; `values` are by group."""
        by_leaf = (sum(map(values.__getitem__, groups)) for groups, _ in self.leaves)
        sums = [0.0, *accumulate(by_leaf)]
        domains = self.index.levels[level]
        return [sums[domain.leaves.stop] - sums[domain.leaves.start] for domain in domains]

    def counts_in(self, domain: Domain) -> Mapping[int, int]:
        """The number of nodes of each group in a domain."""
        return self.counts if domain.level == WHOLE else Counter(self.groups_in(domain))

    def groups_in(self, domain: Domain) -> Iterator[int]:
        """The group of each node of a domain."""
        return chain.from_iterable(self.leaves[leaf][0] for leaf in domain.leaves)

    def members(self, group: int, domain: Domain) -> Iterator[Node]:
        """The nodes of a group in a domain, in the order of their leaves and names."""
        for leaf in domain.leaves:
            for at, node in zip(*self.leaves[leaf], strict=True):
                if at == group:
                    yield node


class Candidates:
    """The classes that a request may use, and the nodes of each leaf by class."""

    def __init__(
        self,
        index: Index,
        classes: Sequence[NodeClass],
        leaves: Sequence[Leaf],
        counts: Mapping[int, int],
    ) -> None:
        self.index = index
        self.classes = classes
        self.leaves = leaves
        self.counts = counts
        self.searches: dict[tuple[object, ...], DomainSearch] = {}
        """Cache of searches at a bandwidth (`domains.search_of`), for the next request."""

    @cached_property
    def kinds(self) -> list[Kind]:
        """The kinds that have capacity: a gang combines nodes of one kind only."""
        return sorted({nodes.kind for nodes in self.classes if nodes.capacity})

    def of(self, kind: Kind) -> Iterator[tuple[int, NodeClass]]:
        """The classes of a kind with capacity, with their numbers."""
        for at, nodes in enumerate(self.classes):
            if nodes.capacity and nodes.kind == kind:
                yield at, nodes

    @remembered
    def speeds(self, kind: Kind, terms: Terms, most: int, known: bool) -> frozenset[float]:  # noqa: FBT001
        """The values of all loads up to `most` workers; with `known`, without assumed networks."""
        return frozenset(
            nodes.best(workers, terms)
            for _, nodes in self.of(kind)
            if not (known and nodes.loads.assumed(terms))
            for workers in range(1, min(nodes.capacity, most) + 1)
        )

    @remembered
    def values(self, kind: Kind, terms: Terms, most: int) -> frozenset[float]:
        """The values of all GPU sets for at most `most` workers on machines of a kind."""
        capacities: dict[Loads, int] = {}
        for _, nodes in self.of(kind):
            capacities[nodes.loads] = max(capacities.get(nodes.loads, 0), nodes.capacity)
        return frozenset().union(
            *(
                loads.values(workers * terms.gpus, terms)
                for loads, capacity in capacities.items()
                for workers in range(1, min(capacity, most) + 1)
            )
        )

    def members(self, numbers: Iterable[int]) -> Iterator[tuple[int, int, Node]]:
        """The nodes of some classes, as (leaf, class, node)."""
        chosen = set(numbers)
        for leaf, (classes, nodes) in enumerate(self.leaves):
            if not chosen.isdisjoint(classes):
                for at, node in zip(classes, nodes, strict=True):
                    if at in chosen:
                        yield leaf, at, node


def _renumbered(leaves: Iterable[Leaf], of: Sequence[int]) -> list[Leaf]:
    return [(list(map(of.__getitem__, numbers)), nodes) for numbers, nodes in leaves]


def _idle_kind(index: Index, node: Node) -> tuple[object, ...]:
    """The key of nodes that are the same once they are idle."""
    return (index.loads(node.machine), node.resource, node.network, node.shared is None)


def _takeable(node: Node) -> int:
    return node.free_count if node.unavailable is None and node.shared is None else 0


def kind_of(node: Node, *, mixed: bool) -> Kind:
    """The key of nodes that one gang may combine: GPU model (any if `mixed`) and resource."""
    return "" if mixed else node.machine.model or "", node.resource


def room(request: Request, node: Node, *, free: int | None = None) -> int:
    """The number of workers that fit on the node now, or with `free` GPUs; bandwidth aside."""
    if refused(request, node) is not None:
        return 0
    workers = (node.free_count if free is None else free) // request.gpus
    if request.cpu and node.cpu is not None:
        workers = min(workers, int((node.cpu + 1e-9) // request.cpu))
    if request.memory and node.memory is not None:
        workers = min(workers, node.memory // request.memory)
    if request.per_node is not None:
        workers = min(workers, request.per_node)
    return max(0, workers)


def refused(request: Request, node: Node) -> Reason | None:
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
        reason = Reason.UNAVAILABLE
    return reason
