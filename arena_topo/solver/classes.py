"""Nodes that a job cannot tell apart, and where in the network they are.

An `Index` is built once per cluster and asked many times. It sorts nodes into classes (same
configuration, same free set) and into the domains of the network; a `Candidates` is what of it one
request may use.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from arena_topo.bandwidth import Wire, network_limit
from arena_topo.solver.fragmentation import Damage, Proximity, damage, proximity, spreading, spreads
from arena_topo.solver.gpu_sets import UNLIMITED, GPUSets
from arena_topo.solver.loads import AMONG, Floor, Hosts, Loads, Terms, loads_of
from arena_topo.solver.request import Reason, Request
from arena_topo.solver.valuing import is_given, nvlink_domain, rate_of_level
from arena_topo.topology import Cluster, GPUSet, Machine, Matrix, Node, count, natural

NEVER = 1 << 200
"""The price of what cannot be had, above all others."""

WHOLE = -1
"""The level of the whole cluster, coarser than any tier."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeClass:
    """Nodes that a job cannot tell apart.

    `capacity` is the most workers of the size in hand that one of them takes; 0 for none.
    `network` is GB/s that one of them can send to others. `domain`: NVLink joins it to others.
    """

    loads: Loads
    damage: Damage
    free: GPUSet
    hidden: int
    kind: tuple[str, str]
    capacity: int = 0
    network: float = UNLIMITED
    domain: bool = False

    @property
    def sets(self) -> GPUSets:
        """The GPU sets of one of these nodes."""
        return self.loads.sets

    def terms(self, terms: Terms) -> Terms:
        """The terms as they are here: NVLink that leaves the machine joins all its pods."""
        if self.domain and terms.hosts is Hosts.NODE and not terms.joined:
            return terms._replace(joined=True)
        return terms

    def best(self, workers: int, terms: Terms) -> float:
        """GB/s that a job can count on as far as so many workers on one node limit it."""
        terms = self.terms(terms)
        size = workers * terms.gpus
        if count(self.free) - self.hidden < size:
            return 0.0
        if terms.hosts is Hosts.DOMAIN and not self.domain:
            return 0.0
        if self.hidden:
            # Nobody knows which of them are free, and the kubelet picks.
            found = self.loads.worst(self.free, size, terms)
        else:
            found = self.loads.best(self.free, size, terms)
        return min(found, self.network_limit(terms))

    def most_inside(self, workers: int, floor: Floor) -> float:
        """GB/s that joined pods get at most of a set with a floor; 0 where none has it."""
        size = workers * floor.terms.gpus
        if self.best(workers, floor.terms) < floor.bandwidth:
            return 0.0
        if self.hidden:
            return self.loads.worst(self.free, size, floor.joined)
        return self.loads.most_inside(
            self.free, size, floor._replace(terms=self.terms(floor.terms))
        )

    def price(self, workers: int, floor: Floor) -> int | None:
        """The damage of so many workers on one node at a floor; None if they are too slow."""
        if self.best(workers, floor.terms) < floor.bandwidth:
            return None
        size = workers * floor.terms.gpus
        if self.hidden:
            if floor.inside and self.loads.worst(self.free, size, floor.joined) < floor.inside:
                return None
            return self.damage.counted(count(self.free) - self.hidden, size)
        cheapest = self.cheapest(workers, floor)
        return None if cheapest is None else cheapest[0]

    def cheapest(self, workers: int, floor: Floor) -> tuple[int, GPUSet] | None:
        """The set for so many workers at a floor that costs least, and its price."""
        size = workers * floor.terms.gpus
        terms = self.terms(floor.terms)
        if terms is not floor.terms:
            floor = floor._replace(terms=terms)
        return self.loads.cheapest(self.damage, self.free, size, floor)

    def pods(self, workers: int, floor: Floor) -> Sequence[tuple[int, ...]]:
        """The GPUs of each of so many workers at a floor; none where the kubelet picks them."""
        if self.hidden:
            return [()] * workers
        cheapest = self.cheapest(workers, floor)
        assert cheapest is not None, "a load that is chosen has GPUs"
        return self.loads.pods(cheapest[1], self.terms(floor.terms))

    def network_limit(self, terms: Terms) -> float:
        """GB/s that its own network allows, where it is slower than what joins the nodes."""
        alone = terms.hosts in {Hosts.NODE, Hosts.DOMAIN} or terms.wire is Wire.TCP
        if alone or math.isinf(self.network):
            return UNLIMITED
        among = AMONG[terms.hosts]
        return network_limit(self.network, among=among, ranks=terms.ranks, wire=terms.wire)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Domain:
    """A part of the network: a rack, a spine, or the whole cluster.

    `level` counts the tiers of the cluster from coarse to near; `WHOLE` stands above them.
    `leaves` are the nearest domains in it, as positions in `Index.leaves`; of one level the
    domains come in the order of their names. `free` counts the GPUs that any job could take, and
    `broken` the same of the domain and those it lies in, near to coarse.
    """

    level: int
    path: tuple[str, ...]
    leaves: range
    free: int
    broken: tuple[int, ...]
    children: tuple[Domain, ...] = ()


class Group(NamedTuple):
    """Nodes that a request cannot tell apart: their number, the first by name, how many."""

    number: int
    node: Node
    many: int


class Groups:
    """The nodes of a cluster in groups that a request cannot tell apart, and where they are.

    With `idle` they are as if every job had ended, and every node and GPU were well. `leaves` has
    the group of each node of a leaf.
    """

    def __init__(self, index: Index, request: Request, *, idle: bool) -> None:
        self.index = index
        kinds = [index.kind(node) if idle else at for at, (node, _) in enumerate(index.alike())]
        barred, cpu, memory = request.excluded, bool(request.cpu), bool(request.memory)
        numbers: dict[tuple[object, ...], int] = {}
        first: list[Node] = []

        def number(at: int, node: Node) -> int:
            left = (node.all_cpu, node.all_memory) if idle else (node.cpu, node.memory)
            rest = (barred.get(node.name), left[0] if cpu else None, left[1] if memory else None)
            found = numbers.setdefault((kinds[at], *rest), len(numbers))
            if found == len(first):
                first.append(node.idle() if idle else node)
            return found

        if tells_apart(request):
            self.leaves: list[Sequence[int]] = [
                list(map(number, classes, nodes)) for classes, nodes in index.leaves
            ]
        else:
            of = [number(at, node) for at, (node, _) in enumerate(index.alike())]
            self.leaves = [list(map(of.__getitem__, classes)) for classes, _ in index.leaves]
        many = Counter(itertools.chain.from_iterable(self.leaves))
        self.groups = [Group(at, node, many[at]) for at, node in enumerate(first)]
        self.models = [node.machine.model for node in first]
        self._spread: dict[int, list[dict[int, int]]] = {}

    def domains(self, depth: int) -> Sequence[Domain]:
        """The domains that nodes share which agree in so many levels of the network."""
        return self.index.levels[depth + WHOLE]

    def spread(self, depth: int) -> list[dict[int, int]]:
        """How many nodes of each group are in which domain of a depth, by its place."""
        found = self._spread.get(depth)
        if found is None and depth:
            found = self._spread[depth] = [{} for _ in self.groups]
            for at, domain in enumerate(self.domains(depth)):
                for group in self._members(domain):
                    found[group][at] = found[group].get(at, 0) + 1
        return [{0: group.many} for group in self.groups] if found is None else found

    def totals(self, values: Sequence[int], depth: int) -> list[int]:
        """For each domain of a depth the sum over its nodes of what their groups have."""
        sums = [0] * len(self.domains(depth))
        for value, places in zip(values, self.spread(depth), strict=True):
            if value:
                for at, many in places.items():
                    sums[at] += value * many
        return sums

    def counts(self, depth: int, at: int) -> Mapping[int, int]:
        """How many nodes of which groups there are in a domain."""
        if not depth:
            return {group.number: group.many for group in self.groups}
        return Counter(self._members(self.domains(depth)[at]))

    def nodes(self, group: Group, domain: Domain) -> Iterator[Node]:
        """The nodes of a group in a domain, in the order of their leaves and names."""
        for leaf in domain.leaves:
            for at, node in zip(self.leaves[leaf], self.index.leaves[leaf][1], strict=True):
                if at == group.number:
                    yield node

    def _members(self, domain: Domain) -> Iterator[int]:
        return itertools.chain.from_iterable(self.leaves[leaf] for leaf in domain.leaves)


Leaf = tuple[Sequence[int], Sequence[Node]]
"""The nodes of a nearest domain in the order of their names, and the class of each."""


class Index:
    """The nodes of a cluster grouped by what they have free and by where they are."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._loads: dict[tuple[object, ...], Loads] = {}
        self._matrices: dict[Matrix, int] = {}
        self._known: dict[int, int] = {}
        self._nics: dict[int, int] = {}
        self._cards: dict[tuple[object, ...], int] = {}
        self._proximities: dict[tuple[object, ...], Proximity] = {}
        self._firsts: list[Node] = []
        paths: dict[tuple[str, ...], tuple[list[int], list[Node]]] = {}
        ids: dict[tuple[object, ...], int] = {}
        for node in sorted(cluster.nodes, key=_by_name):
            key = (
                self._shape(node.machine),
                node.free,
                node.hidden,
                node.resource,
                node.unavailable is None,
                node.shared is None,
                node.network,
                node.allocatable,
            )
            at = ids.get(key)
            if at is None:
                at = ids[key] = len(ids)
                self._firsts.append(node)
            home = paths.get(node.domains)
            if home is None:
                home = paths[node.domains] = ([], [])
            home[0].append(at)
            home[1].append(node)
        ordered = sorted(paths, key=lambda path: [natural(name) for name in path])
        self.leaves: list[Leaf] = [paths[path] for path in ordered]
        self.levels: dict[int, list[Domain]] = {at: [] for at in range(len(cluster.tiers))}
        self._free = [0, *accumulate(sum(map(_takeable, nodes)) for _, nodes in self.leaves)]
        self.whole = self._domain(ordered, 0, WHOLE, ())
        self.paths: list[tuple[Domain, ...]] = [()] * len(self.leaves)
        """The domains that each leaf lies in, coarse to near."""
        for level in range(len(cluster.tiers)):
            for domain in self.levels[level]:
                for leaf in domain.leaves:
                    self.paths[leaf] += (domain,)
        self._counts = Counter(at for members, _ in self.leaves for at in members)
        self._candidates: dict[tuple[object, ...], Candidates] = {}
        self._groups: dict[bool, Groups] = {}

    def alike(self) -> Iterator[tuple[Node, int]]:
        """Of nodes that are alike the first by name, and how many there are."""
        return ((first, self._counts[at]) for at, first in enumerate(self._firsts))

    def distance(self, level: int) -> int:
        """How far apart nodes are that first meet at this level: 1 for the nearest tier."""
        return len(self.cluster.tiers) - level

    def rate(self, level: int, wire: Wire) -> float | None:
        """GB/s between nodes that first meet at this level; None where nobody gave it."""
        return rate_of_level(self.cluster, level, wire)

    def network(self, request: Request, hosts: Hosts, level: int) -> float:
        """GB/s that a gang gets as far as what joins nodes that first meet at a level limits it."""
        rate = self.rate(level, request.wire)
        if rate is None or hosts not in AMONG:
            return UNLIMITED
        ranks = request.workers * request.gpus
        return network_limit(rate, among=AMONG[hosts], ranks=ranks, wire=request.wire)

    def terms(self, request: Request, hosts: Hosts, level: int | None = None) -> Terms:
        """The terms of a gang on one node, or on nodes that first meet at a level."""
        return Terms(
            hosts=hosts,
            gpus=request.gpus,
            ranks=request.workers * request.gpus,
            joined=request.joined,
            wire=request.wire,
            rated=level is not None and self.rate(level, request.wire) is not None,
            given=level is not None and is_given(self.cluster, level),
        )

    def candidates(self, request: Request) -> Candidates:
        """What of the cluster a request may use."""
        spread = spreads(request, self.cluster)
        if spread or tells_apart(request):
            return self._split(request, spread=spread)
        # What is left decides, and that is the same for all nodes of a class.
        key = (request.gpus, request.model, request.mix_models, request.per_node)
        found = self._candidates.get(key)
        if found is None:
            capacities = [room(request, first) for first in self._firsts]
            classes = [
                self._class(request, first, capacity)
                for first, capacity in zip(self._firsts, capacities, strict=True)
            ]
            found = self._candidates[key] = Candidates(classes, self.leaves, self._counts)
        return found

    def groups(self, request: Request, *, idle: bool = False) -> Groups:
        """The nodes in groups that a request and its changes cannot tell apart."""
        if tells_apart(request):
            return Groups(self, request, idle=idle)
        if idle not in self._groups:
            self._groups[idle] = Groups(self, request, idle=idle)
        return self._groups[idle]

    def kind(self, node: Node) -> tuple[object, ...]:
        """What nodes have in common that cannot be told apart once they are idle."""
        return (self.loads(node.machine), node.resource, node.network, node.shared is None)

    def _split(self, request: Request, *, spread: bool) -> Candidates:
        """The candidates where nodes of one class differ, in room or in what is nearby."""
        ids: dict[tuple[int, int, Proximity | None], int] = {}
        classes: list[NodeClass] = []
        leaves: list[Leaf] = []
        for members, nodes in self.leaves:
            own: list[int] = []
            for at, node in zip(members, nodes, strict=True):
                capacity = room(request, node)
                key = (at, capacity, self._proximity(node.machine) if spread else None)
                split = ids.get(key)
                if split is None:
                    split = ids[key] = len(classes)
                    classes.append(self._class(request, self._firsts[at], capacity, key[2]))
                own.append(split)
            leaves.append((own, nodes))
        counts = Counter(at for members, _ in leaves for at in members)
        return Candidates(classes, leaves, counts)

    def class_of(self, node: Node) -> NodeClass:
        """What the GPUs of any node are worth, be it as it is or as it could be."""
        return self._class(Request(workers=1, gpus=1), node, 0)

    def _class(
        self, request: Request, first: Node, capacity: int, near: Proximity | None = None
    ) -> NodeClass:
        loads = self.loads(first.machine)
        model = "" if request.mix_models else first.machine.model or ""
        return NodeClass(
            loads=loads,
            damage=damage(loads.sets) if near is None else spreading(loads.sets, near),
            free=first.free,
            hidden=first.hidden,
            kind=(model, first.resource),
            capacity=capacity,
            network=first.network,
            domain=nvlink_domain(self.cluster, first) is not None,
        )

    def _proximity(self, machine: Machine) -> Proximity:
        # Nodes of a kind share what they are made of; where each has UUIDs of its own, not quite.
        key = (id(machine.gpus), id(machine.links), id(machine.nics))
        found = self._proximities.get(key)
        if found is None:
            numas = tuple(gpu.numa for gpu in machine.gpus)
            alike = (self._shape(machine)[0], numas, tuple(one.attachment for one in machine.nics))
            found = self._proximities.get(alike)
            if found is None:
                found = self._proximities[alike] = proximity(machine)
            self._proximities[key] = found
        return found

    def _domain(
        self, paths: Sequence[tuple[str, ...]], start: int, level: int, above: tuple[int, ...]
    ) -> Domain:
        """The domain of consecutive leaves, with all domains inside it."""
        stop = start + len(paths)
        free = self._free[stop] - self._free[start]
        broken = () if level == WHOLE else (free, *above)
        children: list[Domain] = []
        if level + 1 < len(self.cluster.tiers):
            at = start
            for inside in _runs(paths, level + 1):
                children.append(self._domain(inside, at, level + 1, broken))
                at += len(inside)
        domain = Domain(
            level=level,
            path=paths[0][: level + 1] if paths else (),
            leaves=range(start, stop),
            free=free,
            broken=broken,
            children=tuple(children),
        )
        self.levels.setdefault(level, []).append(domain)
        return domain

    def _shape(self, machine: Machine) -> tuple[object, ...]:
        # Comparing matrices takes long, and most nodes of a kind share one object.
        matrix = self._known.get(id(machine.links))
        if matrix is None:
            matrix = self._matrices.setdefault(machine.links, len(self._matrices))
            self._known[id(machine.links)] = matrix
        return (
            matrix,
            machine.model,
            machine.nvswitch,
            machine.pcie_generation,
            machine.measured,
            self._rails(machine),
        )

    def _rails(self, machine: Machine) -> int:
        # As above; the names of NICs decide nothing.
        found = self._nics.get(id(machine.nics))
        if found is None:
            cards = tuple((nic.attachment, nic.speed) for nic in machine.nics)
            found = self._nics[id(machine.nics)] = self._cards.setdefault(cards, len(self._cards))
        return found

    def loads(self, machine: Machine) -> Loads:
        """What sets of GPUs of a machine are worth."""
        shape = self._shape(machine)
        found = self._loads.get(shape)
        if found is None:
            found = self._loads[shape] = loads_of(machine)
        return found


class Candidates:
    """The classes that a request may use, and the nodes of each leaf by class.

    `costs` are kept, so that asking again for the same bandwidth costs nothing.
    """

    def __init__(
        self, classes: Sequence[NodeClass], leaves: Sequence[Leaf], counts: Mapping[int, int]
    ) -> None:
        self.classes = classes
        self.leaves = leaves
        self.counts = counts
        self.capacity = max((one.capacity for one in classes), default=0)
        self._costs: dict[tuple[object, ...], CostTable] = {}
        self._values: dict[tuple[object, ...], frozenset[float]] = {}
        self._speeds: dict[tuple[object, ...], frozenset[float]] = {}

    @property
    def kinds(self) -> list[tuple[str, str]]:
        """What one gang may combine: one GPU model, one resource name."""
        return sorted({one.kind for one in self.classes if one.capacity})

    def of(self, kind: tuple[str, str]) -> Iterator[tuple[int, NodeClass]]:
        """The classes of a kind that take some worker, with their numbers."""
        for at, one in enumerate(self.classes):
            if one.capacity and one.kind == kind:
                yield at, one

    def speeds(self, kind: tuple[str, str], terms: Terms, *, known: bool) -> frozenset[float]:
        """What the loads of nodes of a kind are worth; with `known` without assumed networks."""
        key = (kind, terms, known)
        found = self._speeds.get(key)
        if found is None:
            found = self._speeds[key] = frozenset(
                one.best(workers, terms)
                for _, one in self.of(kind)
                if not (known and one.loads.assumed(terms))
                for workers in range(1, one.capacity + 1)
            )
        return found

    def values(self, kind: tuple[str, str], terms: Terms, most: int) -> frozenset[float]:
        """What the sets of a kind's machines for at most so many workers are worth."""
        key = (kind, terms, most)
        found = self._values.get(key)
        if found is None:
            loads = {one.loads: one.capacity for _, one in self.of(kind)}
            for _, one in self.of(kind):
                loads[one.loads] = max(loads[one.loads], one.capacity)
            found = self._values[key] = frozenset().union(
                *(
                    some.values(workers * terms.gpus, terms)
                    for some, capacity in loads.items()
                    for workers in range(1, min(capacity, most) + 1)
                )
            )
        return found

    def members(self, wanted: Iterable[int]) -> Iterator[tuple[int, int, Node]]:
        """The nodes of some classes: the leaf of each, its class, itself."""
        chosen = set(wanted)
        for leaf, (classes, nodes) in enumerate(self.leaves):
            if not chosen.isdisjoint(classes):
                for at, node in zip(classes, nodes, strict=True):
                    if at in chosen:
                        yield leaf, at, node

    def costs(self, kind: tuple[str, str], floor: Floor, *, known: bool, most: int) -> CostTable:
        """The prices of a kind at a floor, for at most so many workers of a node."""
        most = min(self.capacity, most)
        key = (kind, floor, known, most)
        found = self._costs.get(key)
        if found is None:
            prices: list[dict[int, int]] = [{} for _ in self.classes]
            for at, one in self.of(kind):
                if not (known and one.loads.assumed(floor.terms)):
                    prices[at] = {
                        workers: price
                        for workers in range(1, min(one.capacity, most) + 1)
                        if (price := one.price(workers, floor)) is not None
                    }
            found = self._costs[key] = CostTable(prices, self.counts)
        return found


Ranked = tuple[list[int], list[int], list[int]]
"""The ranks of the nodes of a domain, in order; what the first of them hold; what that costs."""


class CostTable:
    """What each class asks for each load at one bandwidth; classes ranked for selection.

    Ranks run from the largest load to the smallest, and where that is equal from the lowest price
    for it to the highest. The last rank is for all classes that offer nothing. `rank` is by class;
    by rank are `capacity` (the largest load), `full` (its price) and `rows` (the prices of all
    loads from 0 on, NEVER where a load is impossible; `whole`: none is). `total` is the workers
    that all nodes hold. The rest is what searches have worked out for domains, for the next ones
    (`domains.DomainSearch`).
    """

    def __init__(self, prices: Sequence[Mapping[int, int]], counts: Mapping[int, int]) -> None:
        self.prices = prices
        some = [at for at, one in enumerate(prices) if one]
        largest = {at: max(prices[at]) for at in some}
        some.sort(key=lambda at: (-largest[at], prices[at][largest[at]], at))
        self.rank = [len(some)] * len(prices)
        for place, at in enumerate(some):
            self.rank[at] = place
        loads = range(max(largest.values(), default=0) + 1)
        self.capacity = [*(largest[at] for at in some), 0]
        self.full = [*(prices[at][largest[at]] for at in some), 0]
        self.rows = [[prices[at].get(load, NEVER) for load in loads] for at in some]
        self.whole = all(len(prices[at]) == largest[at] for at in some)
        self.total = sum(counts[at] * most for at, most in largest.items())
        self.ranked: dict[range, Ranked] = {}
        self.ranking: dict[int, list[Ranked]] = {}
        self.largest: dict[int, int] = {}
        self.most_held: dict[int, list[int]] = {}
        self.asked: dict[tuple[int, int, int], list[int]] = {}
        self.covers: dict[tuple[int, int, int, int], list[int]] = {}
        self.excesses: dict[int, list[int]] = {}


def _runs(paths: Sequence[tuple[str, ...]], level: int) -> Iterator[Sequence[tuple[str, ...]]]:
    """Consecutive paths that agree at a level."""
    start = 0
    for stop in range(1, len(paths) + 1):
        if stop == len(paths) or paths[stop][level] != paths[start][level]:
            yield paths[start:stop]
            start = stop


def _by_name(node: Node) -> tuple[list[str | int], str]:
    return natural(node.name)


def _takeable(node: Node) -> int:
    return node.free_count if node.unavailable is None and node.shared is None else 0


def tells_apart(request: Request) -> bool:
    """Whether a request looks at more of a node than its GPUs."""
    return bool(request.excluded or request.cpu or request.memory)


def room(request: Request, node: Node, *, free: int | None = None) -> int:
    """How many workers the node takes now, bandwidth aside; or with so many GPUs free."""
    if refused(request, node) is not None:
        return 0
    found = (node.free_count if free is None else free) // request.gpus
    if request.cpu and node.cpu is not None:
        found = min(found, int((node.cpu + 1e-9) // request.cpu))
    if request.memory and node.memory is not None:
        found = min(found, node.memory // request.memory)
    if request.per_node is not None:
        found = min(found, request.per_node)
    return max(0, found)


def refused(request: Request, node: Node) -> Reason | None:
    """Why the node takes no worker of this job, however few its GPUs in use are; None if it may."""
    gpus, found = len(node.machine.gpus), None
    if node.name in request.excluded:
        found = request.excluded[node.name]
    elif not gpus:
        found = Reason.NO_GPUS
    elif node.shared is not None:
        found = Reason.SHARED
    elif request.model and (node.machine.model or "").casefold() != request.model.casefold():
        found = Reason.MODEL
    elif gpus < request.gpus:
        found = Reason.TOO_SMALL
    elif node.unavailable is not None:
        found = Reason.UNAVAILABLE
    return found
