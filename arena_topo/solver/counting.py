"""Whether a gang fits, by counting: nodes that a request cannot tell apart are one group.

For each group there are the numbers of workers (loads) that one of its nodes takes, with a least
bandwidth those of which some GPUs are worth it. A gang fits where the loads of the nodes of a
domain add up to it. Nothing is chosen or placed, and a changed request is answered in the time that
one pass over the groups takes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from arena_topo.solver.classes import WHOLE, Group, Index, NodeClass, room
from arena_topo.solver.gpu_sets import many_choices
from arena_topo.solver.loads import AMONG, Hosts, Terms
from arena_topo.solver.request import Request
from arena_topo.solver.selection import Offer, select
from arena_topo.solver.valuing import NVLINK

LISTED = 8
"""GPUs of a machine up to which all of its sets are looked at."""

SETS = 100
"""Sets of a larger machine that are looked at for one size, some 10 ms; beyond, those of near GPUs
must do, which may be slower than the best."""


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
        self.where = index.groups(request, idle=idle)
        self.groups: Sequence[Group] = self.where.groups
        self._classes: dict[int, NodeClass] = {}
        self._loads: dict[tuple[object, ...], list[list[Sequence[int]]]] = {}

    def fits(self, request: Request) -> bool:
        """Whether there is any placement."""
        return any(
            held >= request.workers and _hold(self._offers(loads, way, at), request.workers, way)
            for way in self.ways(request)
            for loads in self._by_kind(request, way)
            for at, held in enumerate(self._totals(loads, way))
        )

    def most(self, request: Request) -> int:
        """No more workers than this fit on the terms of so many."""
        found = 0
        for way in self.ways(request):
            for loads in self._by_kind(request, way):
                totals = self._totals(loads, way)
                for at in sorted(range(len(totals)), key=lambda at: -totals[at]):
                    if totals[at] <= found:
                        break
                    found = max(found, _largest(self._offers(loads, way, at), way.most))
        return found

    def _totals(self, loads: Sequence[Sequence[int]], way: Way) -> list[int]:
        return self.where.totals([some[-1] if some else 0 for some in loads], way.depth)

    def _offers(self, loads: Sequence[Sequence[int]], way: Way, at: int) -> Offers:
        offers: Counter[Sequence[int]] = Counter()
        for group, many in self.where.counts(way.depth, at).items():
            if loads[group]:
                offers[loads[group]] += many
        return offers

    def _by_kind(self, request: Request, way: Way) -> list[list[Sequence[int]]]:
        """The loads of each group, for each kind of nodes that one gang may combine."""
        key = (
            *(request.gpus, request.cpu, request.memory, request.model, request.mix_models),
            *(request.per_node, request.min_bandwidth, way.terms, way.terms and request.workers),
        )
        found = self._loads.get(key)
        if found is None:
            loads = [self.loads(group, request, way) for group in self.groups]
            found = self._loads[key] = [
                [some if at in kind else () for at, some in enumerate(loads)]
                for kind in self.kinds(request)
            ]
        return found

    def kinds(self, request: Request) -> list[set[int]]:
        """The groups that one gang may combine."""
        kinds: dict[tuple[str, str], set[int]] = {}
        for group, model in zip(self.groups, self.where.models, strict=True):
            own = "" if request.mix_models else model or ""
            kinds.setdefault((own, group.node.resource), set()).add(group.number)
        return list(kinds.values())

    def loads(self, group: Group, request: Request, way: Way) -> Sequence[int]:
        """The numbers of workers that a node of a group takes, ascending."""
        most, terms = room(request, group.node), way.terms
        if terms is None or not most:
            return range(1, most + 1)
        most = min(most, request.workers - (terms.hosts is not Hosts.NODE))
        one, floor = self.class_of(group), request.min_bandwidth
        return tuple(load for load in range(1, most + 1) if self.speed(one, load, terms) >= floor)

    def speed(self, one: NodeClass, workers: int, terms: Terms) -> float:
        """GB/s that a gang gets as far as so many workers on a node limit it."""
        if few_sets(one, workers * terms.gpus, terms):
            return one.best(workers, terms)
        self.certain = False
        return 0.0 if one.hidden else _near(one, workers * terms.gpus, terms)

    def class_of(self, group: Group) -> NodeClass:
        """What the GPUs of the nodes of a group are worth."""
        found = self._classes.get(group.number)
        if found is None:
            found = self._classes[group.number] = self.index.class_of(group.node)
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
        terms = self.index.terms
        yield Way(0, 1, terms(request, Hosts.NODE))
        if alone:
            return
        if NVLINK in tiers and tiers.index(NVLINK) + 1 >= start:
            yield Way(tiers.index(NVLINK) + 1, most, terms(request, Hosts.DOMAIN))
        for hosts, possible in (
            (Hosts.TWO, request.joined or request.workers == AMONG[Hosts.TWO]),
            (Hosts.SEVERAL, request.workers > AMONG[Hosts.TWO]),
        ):
            for depth in range(start, len(tiers) + 1) if possible else ():
                if self.index.network(request, hosts, depth + WHOLE) >= request.min_bandwidth:
                    few = min(most, AMONG[hosts]) if hosts is Hosts.TWO else most
                    # Two nodes of joined pods are two hosts, which may be worth less.
                    least = AMONG[hosts] if request.joined and hosts is Hosts.SEVERAL else 1
                    if least <= few:
                        yield Way(depth, few, terms(request, hosts, depth + WHOLE), least)
                    break

    def rates(self, request: Request) -> set[float]:
        """What the loads of nodes and the network allow a gang; its bandwidth is one of them."""
        found = {
            self.index.network(request, hosts, depth + WHOLE)
            for hosts in (Hosts.TWO, Hosts.SEVERAL)
            for depth in range(len(self.index.cluster.tiers) + 1)
        }
        rooms = [(group, min(room(request, group.node), request.workers)) for group in self.groups]
        for way in self.ways(replace(request, min_bandwidth=math.ulp(0.0))):
            assert way.terms is not None, "a bandwidth is asked for"
            for group, most in rooms:
                for load in range(1, most + 1):
                    found.add(self.speed(self.class_of(group), load, way.terms))
        return found


def few_sets(one: NodeClass, size: int, terms: Terms) -> bool:
    """Whether all sets of a size can be looked at in a short time."""
    if one.sets.size <= LISTED or one.loads.by_count(one.terms(terms)):
        return True
    return many_choices(one.free, size, one.sets.alike) <= SETS


def _near(one: NodeClass, size: int, terms: Terms) -> float:
    """The most GB/s of sets of near GPUs, where all sets are too many."""
    inside = one.terms(terms)
    found = max((one.loads.got(some, inside) for some in one.sets.near(one.free, size)), default=0)
    return min(found, one.network_limit(inside))


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
