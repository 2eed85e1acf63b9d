"""The domains of the network for a gang: the fewest nodes, then the fewest domains, and so on.

At a given bandwidth every node has a largest load and a cost for each load; what remains is to
choose the nodes of one domain that hold the gang. The number of nodes is exact, and so is the
choice in each domain that is tried (`selection`). The domains themselves are chosen greedily: of
those with the fewest nodes the domains with the lowest cost of a simple choice, and inside a domain
the fewest domains.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from heapq import heapify, heappop
from typing import NamedTuple

from arena_topo.solver.classes import (
    Candidates,
    ModelAndResource,
    NodeClass,
    Profile,
    Row,
    Rows,
    prices_of,
)
from arena_topo.solver.gpu_sets import SMALL
from arena_topo.solver.index import Domain, Index
from arena_topo.solver.loads import Floor
from arena_topo.solver.memo import remembered
from arena_topo.solver.selection import KnapsackItem, select
from arena_topo.topology import Node

MAX_DOMAINS_TRIED = 5
"""Domains of a level in which nodes are chosen."""

EXCHANGES = 2_000
"""The most exchanges of a domain for a smaller one."""

IMPOSSIBLE_COST = 1 << 400
"""The cost of an impossible choice, above all others."""


class NodeLoad(NamedTuple):
    """One node, its class, and its number of workers."""

    node: Node
    of: int
    workers: int


class Choice(NamedTuple):
    """The nodes of one domain that hold a gang; less is better, compared field by field.

    `domains` counts the domains used at each tier, coarse to near. `touched` sums, near to coarse,
    the GPUs that were free in them: the smaller, the more remains whole elsewhere (best fit).
    """

    nodes: int
    domains: tuple[int, ...]
    cost: int
    touched: tuple[int, ...]
    loads: tuple[NodeLoad, ...]


class Demand(NamedTuple):
    """So many workers in one domain, on `least` to `most` nodes."""

    workers: int
    most: int
    least: int = 1

    def at_most(self, nodes: int) -> Demand:
        """The same demand on at most so many nodes."""
        return self._replace(most=min(self.most, nodes))


class DomainSearch:
    """The search for the nodes of gangs at one bandwidth, in the domains of the network.

    `loads` has the possible loads of a node with the numbers of the classes that have them.
    `prices` has the cost of each load of a class that is possible after all; without it none costs.
    """

    def __init__(
        self,
        candidates: Candidates,
        loads: Iterable[tuple[Sequence[int], Profile]],
        prices: Mapping[NodeClass, Mapping[int, int]] | None,
    ) -> None:
        self.index = candidates.index
        self.candidates = candidates
        self._table = prices
        self._some = [(possible, own) for possible, own in loads if possible]
        self._largest = max((possible[-1] for possible, _ in self._some), default=0)
        self._gapless = all(len(possible) == possible[-1] for possible, _ in self._some)
        self.total = sum(possible[-1] * own.nodes for possible, own in self._some)

    @cached_property
    def _possible(self) -> dict[int, Sequence[int]]:
        """The possible loads of each class that has any."""
        return {at: possible for possible, own in self._some for at in own.classes}

    @cached_property
    def _prices(self) -> dict[int, Mapping[int, int]]:
        """The costs of the loads of each class that has any."""
        if self._table is None:
            return {at: dict.fromkeys(possible, 0) for at, possible in self._possible.items()}
        classes = self.candidates.classes
        prices = {}
        for at, possible in self._possible.items():
            prices[at] = own = self._table[classes[at]]
            if [*own] != [*possible]:
                prices[at] = {load: own[load] for load in possible if load in own}
        return prices

    @cached_property
    def _rows(self) -> Rows:
        capacities = [0] * len(self.candidates.classes)
        for possible, own in self._some:
            for at in own.classes:
                capacities[at] = possible[-1]
        return self.candidates.rows(tuple(capacities))

    # The number of nodes

    def _may_hold(self, level: int, demand: Demand) -> bool:
        """Whether a domain of a level might hold the gang, by what the largest nodes take."""
        nodes = min(demand.most, self.index.width[level])
        return demand.workers <= min(self.total, nodes * self._largest)

    def most_workers(self, level: int, nodes: int) -> int:
        """The most workers that so many nodes of one domain of a level hold."""
        if nodes == 1:
            return self._largest
        most_workers = self._rows.most_workers
        return max((most_workers(row, nodes) for row in self._rows.at(level)[0]), default=0)

    def holds(self, level: int, demand: Demand) -> bool:
        """Whether one domain of a level holds the gang."""
        if not self._may_hold(level, demand):
            return False
        if not self._gapless or demand.least > 1:
            return self.fewest(level, demand) is not None
        return demand.workers <= self.most_workers(level, demand.most)

    def fewest(self, level: int, demand: Demand) -> int | None:
        """The fewest nodes of one domain of a level that hold the gang; None if over the limit."""
        if demand.least > demand.most or not self._may_hold(level, demand):
            return None
        needed = self._rows.needed(level, demand.workers)
        fewest = min((nodes for nodes in needed if nodes is not None), default=None)
        if fewest is None or fewest > demand.most:
            return None
        if self._gapless and fewest >= demand.least:
            return fewest
        # Loads have gaps, or `least` is larger, so it may take more nodes.
        best: int | None = None
        rows, places = self._rows.at(level)
        for domain, place in zip(self.index.levels[level], places, strict=True):
            nodes = needed[place]
            most = demand.most if best is None else best - 1
            if nodes is not None and max(demand.least, nodes) <= min(sum(rows[place]), most):
                choice = self._chosen(domain.leaves, demand)
                if choice is not None and (best is None or choice.nodes < best):
                    best = choice.nodes
        return best

    # The domains

    def best(self, level: int, nodes: int, demand: Demand) -> Choice | None:
        """A good choice of so many nodes in one domain of a level, which is the fewest possible."""
        best: Choice | None = None
        exact = demand._replace(least=nodes, most=nodes)
        for tried, domain in enumerate(self._promising(level, exact)):
            if tried >= MAX_DOMAINS_TRIED and best is not None:
                break
            choice = self._chosen(self._nested(level, domain, exact), exact)
            if choice is None and domain.children:
                # Loads have gaps.
                choice = self._chosen(domain.leaves, exact)
            if choice is not None and (best is None or choice[:4] < best[:4]):
                best = choice
        return best

    def _promising(self, level: int, demand: Demand) -> Iterator[Domain]:
        """The domains in which so many nodes hold the gang, the most promising first.

        That is the fewest inner domains (a lower bound), then the cost of filling the largest
        nodes, of which the last takes the rest, then the fewest free GPUs.
        """
        (_, places), domains = self._rows.at(level), self.index.levels[level]
        needed = self._rows.needed(level, demand.workers)
        holds = [nodes is not None and nodes <= demand.most for nodes in needed]
        possible = [domain for domain, at in zip(domains, places, strict=True) if holds[at]]
        if len(possible) <= MAX_DOMAINS_TRIED:
            yield from possible
            return
        costs = self._costs(level, [domain.at for domain in possible], demand)
        queue = [
            (self._inner(level, domain, demand), costs[domain.at], domain.free, domain.at)
            for domain in possible
        ]
        heapify(queue)
        while queue:
            yield domains[heappop(queue)[-1]]

    def _inner(self, level: int, domain: Domain, demand: Demand) -> int:
        """A lower bound of the inner domains that hold the gang."""
        if not domain.children:
            return demand.workers
        (rows, places), all_nodes = self._rows.at(level + 1), self.index.width[level]
        most = max(
            self._rows.most_workers(rows[places[child.at]], all_nodes) for child in domain.children
        )
        return -(-demand.workers // max(1, most))

    def _costs(self, level: int, domains: Iterable[int], demand: Demand) -> Mapping[int, int]:
        """The costs of filling so many nodes of each domain: the last takes the rest.

        Nodes are filled class by class, in all domains at once, until the last one has enough.
        """
        homes, leaves, costs = self.index.homes(level), self.candidates.leaves, dict[int, int]()
        open_domains = dict.fromkeys(domains, (demand.most, demand.workers, 0))
        for of in self._rank:
            load, prices = self._possible[of][-1], self._prices[of]
            price = prices[load]
            for leaf, number in leaves[of].items():
                at = homes[leaf]
                if at not in open_domains:
                    continue
                left, workers, cost = open_domains[at]
                if number < left:
                    after = left - number, workers - number * load, cost + number * price
                    open_domains[at] = after
                else:
                    rest = prices.get(workers - (left - 1) * load, IMPOSSIBLE_COST)
                    costs[at] = cost + (left - 1) * price + rest
                    del open_domains[at]
            if not open_domains:
                break
        return costs | dict.fromkeys(open_domains, IMPOSSIBLE_COST)

    @cached_property
    def _rank(self) -> list[int]:
        """The order of the classes: the largest capacity first, then the least cost of that."""
        own = [
            (-load, prices[load], at)
            for at, prices in self._prices.items()
            if (load := self._possible[at][-1]) in prices
        ]
        return [at for _, _, at in sorted(own)]

    def _nested(self, level: int, domain: Domain, demand: Demand) -> Sequence[int]:
        """The leaves of the fewest inner domains that hold the gang, chosen level by level."""
        nodes, margin = demand.most, 0
        rows, places = self._rows.at(level)
        for load, number in zip(self._rows.capacities, rows[places[domain.at]], strict=True):
            if nodes > 0 and number:
                margin = load
            nodes -= number
        pool: Sequence[Domain] = (domain,)
        while pool[0].children:
            level += 1
            children = [child for outer in pool for child in outer.children]
            pool = self._few(level, children, margin, demand)
        return sorted(leaf for inner in pool for leaf in inner.leaves)

    def _few(
        self, level: int, domains: Sequence[Domain], margin: int, demand: Demand
    ) -> list[Domain]:
        """The fewest of these domains that hold a gang on so many nodes, then small ones: best fit.

        Lemma: the n largest loads sum up to the minimum, over all t, of n t plus the excess of all
        loads over t. So domains hold the gang if their excess is enough at every t (unless loads
        have gaps); `margin` is the load of the last node, and no larger t matters. The domains with
        the largest excess are taken, and each is then exchanged for the smallest that is enough.
        """
        rows, places = self._rows.at(level)
        missing = [demand.workers - load * demand.most for load in range(margin + 1)]
        parts = [self._excess(rows[places[domain.at]], margin) for domain in domains]
        order = sorted(range(len(parts)), key=lambda at: (-parts[at][margin - 1], domains[at].free))
        spare, size = [-more for more in missing], 0
        while min(spare) < 0 and size < len(order):
            spare = [more + has for more, has in zip(spare, parts[order[size]], strict=True)]
            size += 1
        chosen, spares = order[:size], sorted(order[size:], key=lambda at: domains[at].free)
        for place in reversed(range(size)):
            now = chosen[place]
            for at, candidate in enumerate(spares[: EXCHANGES // size]):
                if domains[candidate].free >= domains[now].free:
                    break
                changes = zip(spare, parts[candidate], parts[now], strict=True)
                margins = [more + gained - lost for more, gained, lost in changes]
                if min(margins) >= 0:
                    spare, chosen[place], spares[at] = margins, candidate, now
                    spares.sort(key=lambda at: domains[at].free)
                    break
        return [domains[at] for at in chosen]

    @remembered
    def _excess(self, row: Row, margin: int) -> list[int]:
        """The sum over these nodes of the largest load beyond 0, 1, ..., `margin`."""
        nodes = list(zip(self._rows.capacities, row, strict=True))
        return [
            sum((load - least) * number for load, number in nodes if load > least)
            for least in range(margin + 1)
        ]

    # The nodes

    def _chosen(self, leaves: Sequence[int], demand: Demand) -> Choice | None:
        """The fewest nodes of these leaves that hold the gang, and of these the cheapest."""
        counts = self.candidates.counts_in(leaves)
        prices = self._prices
        ids = [at for at in counts if prices.get(at)]
        offers = [KnapsackItem(count=counts[at], prices=prices[at]) for at in ids]
        selection = select(offers, demand.workers, least=demand.least, most=demand.most)
        if selection is None:
            return None
        # The first nodes by name get the largest loads.
        loads: dict[int, list[int]] = {}
        for load in sorted(selection.loads, key=lambda load: load.workers):
            loads.setdefault(ids[load.offer], []).extend([load.workers] * load.nodes)
        seats: list[NodeLoad] = []
        used: list[int] = []
        for leaf in leaves:
            if not any(leaf in self.candidates.leaves[at] for at in loads):
                continue
            used.append(leaf)
            for at, node in self.candidates.members(leaf):
                if at in loads:
                    seats.append(NodeLoad(node, at, loads[at].pop()))
                    if not loads[at]:
                        del loads[at]
            if not loads:
                break
        domains, touched = domains_of(self.index, used)
        return Choice(len(seats), domains, selection.price, touched, tuple(seats))


def search_of(
    candidates: Candidates,
    kind: ModelAndResource,
    floor: Floor,
    *,
    known: bool,
    most: int,
    priced: bool = True,
) -> DomainSearch:
    """The search among nodes of a kind at a floor, with at most `most` workers per node.

    With `known`, without nodes on assumed networks. If not `priced`, only whether a gang fits is
    searched for, and all nodes are valued one by one.
    """
    key = (kind, floor, known, most, priced)
    search: DomainSearch | None = candidates.searches.get(key)
    if search is None:
        search = candidates.searches[key] = DomainSearch(
            candidates,
            _loads(candidates, kind, floor, known=known, most=most, priced=priced),
            prices_of(floor) if priced else None,
        )
    return search


def _loads(
    candidates: Candidates,
    kind: ModelAndResource,
    floor: Floor,
    *,
    known: bool,
    most: int,
    priced: bool,
) -> Iterator[tuple[Sequence[int], Profile]]:
    """The loads that reach a floor, with the classes whose nodes can have them."""
    terms, least = floor.terms, floor.bandwidth
    if not priced and not least:
        by_capacity: dict[int, list[int]] = {}
        for at, nodes in candidates.of(kind):
            by_capacity.setdefault(min(nodes.capacity, most), []).append(at)
        for capacity, classes in by_capacity.items():
            yield range(1, capacity + 1), candidates.profile(classes)
        return
    joined = floor.joined == terms

    def doubtful(nodes: NodeClass) -> bool:
        """Whether a set may be missing although the speed of the load is enough."""
        several = floor.inside and not (joined and math.isinf(nodes.network))
        return priced and bool(several or nodes.loads.sets.size > SMALL)

    least = max(least, floor.inside) if joined else least
    for speeds, profile in candidates.profiles(kind, terms, known, not priced).items():
        loads = [load for load, speed in enumerate(speeds[:most], 1) if speed >= least]
        sure = []
        for at in profile.classes:
            nodes = candidates.classes[at]
            if doubtful(nodes):
                some = [load for load in loads if load in prices_of(floor)[nodes]]
                yield some, candidates.profile([at])
            else:
                sure.append(at)
        whole = len(sure) == len(profile.classes)
        yield loads, profile if whole else candidates.profile(sure)


def domains_of(index: Index, leaves: Iterable[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The domains of these leaves: their number at each tier, and the free GPUs in them."""
    paths = [index.paths[leaf] for leaf in leaves]
    used = [{id(domain): domain for domain in level} for level in zip(*paths, strict=True)]
    free = tuple(sum(domain.free for domain in level.values()) for level in reversed(used))
    return tuple(map(len, used)), free
