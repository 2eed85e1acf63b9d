"""Whether a gang fits, by counting: nodes that a request cannot tell apart are one group.

For each group there are the numbers of workers (loads) that one of its nodes takes, with a least
bandwidth those of which some GPUs are worth it. A gang fits where the loads of the nodes of a
domain add up to it. Nothing is chosen or placed, and a changed request is answered in the time that
one pass over the groups takes.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from arena_topo.bandwidth import network_limit
from arena_topo.solver.classes import WHOLE, Index, NodeClass, room
from arena_topo.solver.gpu_sets import UNLIMITED, many_choices
from arena_topo.solver.loads import AMONG, Hosts, Terms
from arena_topo.solver.request import Request
from arena_topo.solver.selection import Offer, select
from arena_topo.solver.valuing import NVLINK
from arena_topo.topology import GPUSet, Node, NodeName

LISTED = 8
"""GPUs of a machine up to which all of its sets are looked at."""

SETS = 100
"""Sets of a larger machine that are looked at for one size, some 10 ms; beyond, those of near GPUs
must do, which may be slower than the best."""


class Group(NamedTuple):
    """Nodes that a request cannot tell apart: their number, the first by name, how many."""

    number: int
    node: Node
    many: int


class Domain(NamedTuple):
    """A domain of the network: the group of each node; for the whole cluster each group once.

    `many` says then how many nodes a group has.
    """

    path: tuple[str, ...]
    groups: Sequence[int]
    many: Sequence[int] | None = None

    def total(self, values: Sequence[int]) -> int:
        """The sum over all nodes of what their groups have."""
        if self.many is None:
            return sum(map(values.__getitem__, self.groups))
        return sum(map(operator.mul, values, self.many))

    def counts(self) -> Mapping[int, int]:
        """How many nodes of which groups there are."""
        return Counter(self.groups) if self.many is None else dict(enumerate(self.many))


class Way(NamedTuple):
    """One way for a gang to be on nodes: within one domain at a depth, on so many nodes.

    `terms` say what GPUs are worth there; None where no bandwidth is asked for.
    """

    depth: int
    most: int
    terms: Terms | None
    least: int = 1


Offers = Mapping[Sequence[int], int]
"""How many nodes take which loads."""


class View:
    """The nodes of a cluster in groups, as a request and its changes see them.

    With `idle` as if every job had ended, and every node and GPU were well. `certain`: all sets of
    GPUs that matter were looked at, so that what did not fit does not fit.
    """

    def __init__(self, index: Index, request: Request, *, idle: bool = False) -> None:
        self.index = index
        self.idle = idle
        self.certain = True
        self.excluded = request.excluded
        self._resources = bool(request.cpu), bool(request.memory)
        self._of_class: list[int] = []
        self._leaves: list[Sequence[int]] = []
        self._domains: dict[int, list[Domain]] = {}
        self._classes: dict[NodeName, NodeClass] = {}
        self._speeds: dict[tuple[NodeName, Terms, int], float] = {}
        self._homes: dict[tuple[object, ...], list[tuple[int, list[Sequence[int]], Domain]]] = {}
        self.groups = list(self._grouped())

    def _grouped(self) -> Iterator[Group]:
        numbers: dict[tuple[object, ...], int] = {}
        first: list[Node] = []
        many: list[int] = []

        def number(at: int, node: Node, nodes: int) -> int:
            found = numbers.setdefault(self._key(at, node), len(numbers))
            if found == len(first):
                first.append(node)
                many.append(0)
            many[found] += nodes
            return found

        if self.excluded or any(self._resources):
            self._leaves = [
                [number(at, node, 1) for at, node in zip(classes, nodes, strict=True)]
                for classes, nodes in self.index.leaves
            ]
        else:
            self._of_class = [
                number(at, node, nodes) for at, (node, nodes) in enumerate(self.index.alike())
            ]
        for at, node in enumerate(first):
            yield Group(at, node.idle() if self.idle else node, many[at])

    def _key(self, at: int, node: Node) -> tuple[object, ...]:
        cpu, memory = self._resources
        barred = self.excluded.get(node.name) if self.excluded else None
        if self.idle:
            loads = self.index.loads(node.machine)
            rest = (node.all_cpu if cpu else None, node.all_memory if memory else None)
            return (barred, loads, node.resource, node.network, node.shared is None, *rest)
        return (barred, at, node.cpu if cpu else None, node.memory if memory else None)

    def _groups_of(self, leaf: int) -> Sequence[int]:
        """The group of each node of a leaf."""
        if self._leaves:
            return self._leaves[leaf]
        return [self._of_class[at] for at in self.index.leaves[leaf][0]]

    def domains(self, depth: int) -> list[Domain]:
        """The domains that nodes share which agree in so many levels of the network."""
        if not depth:
            many = [group.many for group in self.groups]
            return [Domain((), range(len(many)), many)]
        found = self._domains.get(depth)
        if found is None:
            groups: dict[tuple[str, ...], list[int]] = {}
            for leaf, (_, nodes) in enumerate(self.index.leaves):
                groups.setdefault(nodes[0].domains[:depth], []).extend(self._groups_of(leaf))
            found = self._domains[depth] = [Domain(path, some) for path, some in groups.items()]
        return found

    def members(self, group: Group, domain: Domain) -> Iterator[Node]:
        """The nodes of a group in a domain, in the order of their leaves and names."""
        depth = len(domain.path)
        for leaf, (_, nodes) in enumerate(self.index.leaves):
            if nodes[0].domains[:depth] == domain.path:
                for at, node in zip(self._groups_of(leaf), nodes, strict=True):
                    if at == group.number:
                        yield node

    def fits(self, request: Request) -> bool:
        """Whether there is any placement."""
        return any(
            most >= request.workers and _hold(_offers(loads, domain), request.workers, way)
            for way in self.ways(request)
            for most, loads, domain in self.homes(request, way)
        )

    def most(self, request: Request) -> int:
        """No more workers than this fit on the terms of so many."""
        found = 0
        for way in self.ways(request):
            homes = self.homes(request, way)
            for most, loads, domain in sorted(homes, key=lambda home: -home[0]):
                if most <= found:
                    break
                found = max(found, _largest(_offers(loads, domain), way.most))
        return found

    def homes(self, request: Request, way: Way) -> list[tuple[int, list[Sequence[int]], Domain]]:
        """Where a gang may be: at most how many workers, the loads of each group, the domain."""
        key = (
            *(request.gpus, request.cpu, request.memory, request.model, request.mix_models),
            *(request.per_node, request.min_bandwidth, way, way.terms and request.workers),
        )
        found = self._homes.get(key)
        if found is None:
            loads = [self.loads(group, request, way) for group in self.groups]
            found = self._homes[key] = []
            for kind in self.kinds(request):
                own = [some if at in kind else () for at, some in enumerate(loads)]
                tops = [some[-1] if some else 0 for some in own]
                found += [(domain.total(tops), own, domain) for domain in self.domains(way.depth)]
        return found

    def kinds(self, request: Request) -> list[set[int]]:
        """The groups that one gang may combine."""
        kinds: dict[tuple[str, str], set[int]] = {}
        for group in self.groups:
            model = "" if request.mix_models else group.node.machine.model or ""
            kinds.setdefault((model, group.node.resource), set()).add(group.number)
        return list(kinds.values())

    def loads(self, group: Group, request: Request, way: Way) -> Sequence[int]:
        """The numbers of workers that a node of a group takes, ascending."""
        most, terms = room(request, group.node), way.terms
        if terms is None:
            return range(1, most + 1)
        most = min(most, request.workers - (terms.hosts is not Hosts.NODE))
        floor = request.min_bandwidth
        return tuple(
            load for load in range(1, most + 1) if self.speed(group.node, load, terms) >= floor
        )

    def speed(self, node: Node, workers: int, terms: Terms) -> float:
        """GB/s that a gang gets as far as so many workers on a node limit it."""
        key = (node.name, terms, workers)
        found = self._speeds.get(key)
        if found is None:
            one = self.class_of(node)
            if few_sets(one, one.free, workers * terms.gpus, terms):
                found = one.best(workers, terms)
            else:
                self.certain = False
                found = 0.0 if one.hidden else _near(one, workers * terms.gpus, terms)
            self._speeds[key] = found
        return found

    def class_of(self, node: Node) -> NodeClass:
        """What the GPUs of a node are worth."""
        found = self._classes.get(node.name)
        if found is None:
            found = self._classes[node.name] = self.index.class_of(node)
        return found

    def ways(self, request: Request) -> Iterator[Way]:
        """How a gang may be on nodes; with a least bandwidth as far apart as that allows."""
        tiers = [tier.name for tier in self.index.cluster.tiers]
        alone = request.required == "node" or request.max_nodes == 1 or request.workers == 1
        start = tiers.index(request.required) + 1 if request.required in tiers else 0
        most = request.workers if request.max_nodes is None else request.max_nodes
        if not request.min_bandwidth:
            yield Way(0, 1, None) if alone else Way(start, most, None)
            return
        yield Way(0, 1, _terms(request, Hosts.NODE, rated=False))
        if alone:
            return
        if NVLINK in tiers and tiers.index(NVLINK) + 1 >= start:
            yield Way(tiers.index(NVLINK) + 1, most, _terms(request, Hosts.DOMAIN, rated=False))
        for hosts, possible in (
            (Hosts.TWO, request.joined or request.workers == AMONG[Hosts.TWO]),
            (Hosts.SEVERAL, request.workers > AMONG[Hosts.TWO]),
        ):
            for depth in range(start, len(tiers) + 1) if possible else ():
                network, rated = self.network(request, hosts, depth)
                if network >= request.min_bandwidth:
                    few = min(most, AMONG[hosts]) if hosts is Hosts.TWO else most
                    # Two nodes of joined pods are two hosts, which may be worth less.
                    least = AMONG[hosts] if request.joined and hosts is Hosts.SEVERAL else 1
                    if least <= few:
                        yield Way(depth, few, _terms(request, hosts, rated=rated), least)
                    break

    def network(self, request: Request, hosts: Hosts, depth: int) -> tuple[float, bool]:
        """GB/s between nodes that share so many levels, and whether somebody gave a rate."""
        rate = self.index.rate(depth + WHOLE, request.wire)
        if rate is None:
            return UNLIMITED, False
        ranks = request.workers * request.gpus
        return network_limit(rate, among=AMONG[hosts], ranks=ranks, wire=request.wire), True

    def rates(self, request: Request) -> set[float]:
        """What the loads of nodes and the network allow a gang; its bandwidth is one of them."""
        found: set[float] = set()
        for hosts in (Hosts.TWO, Hosts.SEVERAL):
            for depth in range(len(self.index.cluster.tiers) + 1):
                found.add(self.network(request, hosts, depth)[0])
        for way in self.ways(replace(request, min_bandwidth=math.ulp(0.0))):
            for group in self.groups:
                for load in range(1, min(room(request, group.node), request.workers) + 1):
                    assert way.terms is not None, "a bandwidth is asked for"
                    found.add(self.speed(group.node, load, way.terms))
        return found


def few_sets(one: NodeClass, free: GPUSet, size: int, terms: Terms) -> bool:
    """Whether all sets of a size can be looked at in a short time."""
    if one.sets.size <= LISTED or one.loads.by_count(one.terms(terms)):
        return True
    return many_choices(free, size, one.sets.alike) <= SETS


def _near(one: NodeClass, size: int, terms: Terms) -> float:
    """The most GB/s of sets of near GPUs, where all sets are too many."""
    inside = one.terms(terms)
    found = max((one.loads.got(some, inside) for some in one.sets.near(one.free, size)), default=0)
    return min(found, one.network_limit(inside))


def _terms(request: Request, hosts: Hosts, *, rated: bool) -> Terms:
    return Terms(
        hosts=hosts,
        gpus=request.gpus,
        ranks=request.workers * request.gpus,
        joined=request.joined,
        wire=request.wire,
        rated=rated,
    )


def _offers(loads: Sequence[Sequence[int]], domain: Domain) -> Offers:
    offers: Counter[Sequence[int]] = Counter()
    for at, many in domain.counts().items():
        if loads[at]:
            offers[loads[at]] += many
    return offers


def _largest(offers: Offers, most: int) -> int:
    """How many workers the largest nodes take."""
    held, left = 0, most
    for loads in sorted(offers, key=lambda loads: -loads[-1]):
        held += loads[-1] * min(left, offers[loads])
        left -= min(left, offers[loads])
    return held


def _hold(offers: Offers, workers: int, way: Way) -> bool:
    """Whether so many nodes as a way allows take all workers."""
    if _largest(offers, way.most) < workers or way.least > min(workers, sum(offers.values())):
        return False
    if all(loads[-1] == len(loads) for loads in offers):
        return True
    # Some loads are impossible: three GPUs of a cube mesh close no ring, four do.
    alike = [Offer(count=many, prices=dict.fromkeys(loads, 0)) for loads, many in offers.items()]
    return select(alike, workers, least=way.least, most=way.most) is not None
