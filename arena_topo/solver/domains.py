"""The domains of the network for a gang: the fewest nodes, then the fewest domains, and so on.

At a given bandwidth every node has a largest load and a cost for each load; what remains is to
choose the nodes of one domain that hold the gang. The number of nodes is exact, and so is the
choice in each domain that is tried (`selection`). The domains themselves are chosen greedily: of
those with the fewest nodes the domains with the lowest cost of a simple choice, and inside a domain
the fewest domains.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from itertools import accumulate, zip_longest
from typing import NamedTuple

from arena_topo.solver.classes import Candidates, Domain, Index, Kind
from arena_topo.solver.loads import Floor
from arena_topo.solver.memo import remembered
from arena_topo.solver.selection import Offer, select
from arena_topo.topology import Node

TRIES = 5
"""Domains of a level in which nodes are chosen."""

EXCHANGES = 2_000
"""The most exchanges of a domain for a smaller one."""

NEVER = 1 << 200
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

    `prices` are, by class, the possible loads of a node with their costs. Classes are ranked by
    largest load, descending, then by its cost, ascending; the last rank is for all classes without
    any load.
    """

    def __init__(self, candidates: Candidates, prices: Sequence[Mapping[int, int]]) -> None:
        self.index = candidates.index
        self.candidates = candidates
        self.prices = prices
        useful = [at for at, table in enumerate(prices) if table]
        largest = {at: max(prices[at]) for at in useful}
        useful.sort(key=lambda at: (-largest[at], prices[at][largest[at]], at))
        self._rank = [len(useful)] * len(prices)
        for place, at in enumerate(useful):
            self._rank[at] = place
        self._some = useful
        self._capacity = [largest[at] for at in useful]
        self._full = [prices[at][largest[at]] for at in useful]
        self._gapless = all(len(prices[at]) == largest[at] for at in useful)
        self.total = sum(candidates.counts[at] * most for at, most in largest.items())

    # The number of nodes

    def most_workers(self, level: int, nodes: int) -> int:
        """The most workers that so many nodes of one domain of a level hold."""
        if nodes == 1:
            return self._capacity[0] if self._capacity else 0
        most = self._largest(level)
        # Each node takes at least one worker.
        return most if nodes >= most else _of_first(self._most_held(level), nodes)

    def holds(self, level: int, demand: Demand) -> bool:
        """Whether one domain of a level holds the gang."""
        if demand.workers > min(self.total, self.most_workers(level, demand.most)):
            return False
        simple = self._gapless and demand.least == 1
        return simple or self.fewest(level, demand) is not None

    def fewest(self, level: int, demand: Demand) -> int | None:
        """The fewest nodes of one domain of a level that hold the gang; None if over the limit."""
        if demand.least > demand.most or demand.workers > min(self.total, self._largest(level)):
            return None
        fewest = bisect_left(self._most_held(level), demand.workers) + 1
        if self._gapless and fewest >= demand.least:
            return fewest if fewest <= demand.most else None
        # Loads have gaps, or `least` is larger, so it may take more nodes.
        best: int | None = None
        for domain, cumulative in zip(self.index.levels[level], self._held(level), strict=True):
            nodes = max(demand.least, bisect_left(cumulative, demand.workers) + 1)
            if nodes <= min(len(cumulative), demand.most if best is None else best - 1):
                choice = self._chosen(domain.leaves, demand)
                if choice is not None and (best is None or choice.nodes < best):
                    best = choice.nodes
        return best

    @remembered
    def _largest(self, level: int) -> int:
        """The most workers that one domain of a level holds."""
        return max(self.excess(self.index.levels[level], 0), default=0)

    @remembered
    def _most_held(self, level: int) -> list[int]:
        """The most workers on 1, 2, ... nodes of one domain of a level."""
        rows = self._held(level)
        columns = zip_longest(*rows, fillvalue=0)
        return rows[0] if len(rows) == 1 else list(accumulate(map(max, columns), max))

    @remembered
    def _held(self, level: int) -> list[list[int]]:
        """The most workers on 1, 2, ... nodes, for each domain of a level."""
        capacity = self._capacity
        return [
            list(accumulate(map(capacity.__getitem__, self._ranks(domain.leaves))))
            for domain in self.index.levels[level]
        ]

    @remembered
    def _ranks(self, leaves: range) -> list[int]:
        """The ranks of the nodes of a domain, the largest loads first."""
        ranks = sorted(map(self._rank.__getitem__, self._members(leaves)))
        del ranks[bisect_left(ranks, len(self._some)) :]
        return ranks

    def _members(self, leaves: Sequence[int]) -> Iterable[int]:
        """The class of each node of some leaves."""
        if len(leaves) == len(self.candidates.leaves):
            return Counter(self.candidates.counts).elements()
        return (at for leaf in leaves for at in self.candidates.leaves[leaf][0])

    # The domains

    def best(self, level: int, nodes: int, demand: Demand) -> Choice | None:
        """A good choice of so many nodes in one domain of a level, which is the fewest possible."""
        best: Choice | None = None
        for tried, at in enumerate(self._promising(level, nodes, demand.workers)):
            domain = self.index.levels[level][at]
            if tried >= TRIES and best is not None:
                break
            exact = demand._replace(least=nodes, most=nodes)
            choice = self._chosen(self._nested(domain, exact), exact)
            if choice is None and domain.children:
                # Loads have gaps.
                choice = self._chosen(domain.leaves, exact)
            if choice is not None and (best is None or choice[:4] < best[:4]):
                best = choice
        return best

    @remembered
    def _promising(self, level: int, nodes: int, workers: int) -> list[int]:
        """The domains in which so many nodes hold the gang, the most promising first.

        That is the fewest inner domains (a lower bound), then the cost of filling the largest
        nodes, of which the last takes the rest, then the fewest free GPUs.
        """
        domains, cumulative = self.index.levels[level], self._held(level)
        possible = [at for at, row in enumerate(cumulative) if _of_first(row, nodes) >= workers]
        if len(possible) <= TRIES:
            return possible

        def looks(at: int) -> tuple[int, int, int]:
            domain, filled = domains[at], self._ranks(domains[at].leaves)[:nodes]
            inside = max(self.excess(domain.children, 0), default=workers)
            last = self.prices[self._some[filled[-1]]]
            remaining = workers - sum(map(self._capacity.__getitem__, filled[:-1]))
            cost = sum(map(self._full.__getitem__, filled[:-1])) + last.get(remaining, NEVER)
            return -(-workers // max(1, inside)), cost, domain.free

        # If loads have gaps, the most promising domains may not hold the gang.
        return nsmallest(TRIES if self._gapless else len(possible), possible, key=looks)

    def _nested(self, domain: Domain, demand: Demand) -> Sequence[int]:
        """The leaves of the fewest inner domains that hold the gang, chosen level by level."""
        ranks = self._ranks(domain.leaves)
        margin = self._capacity[ranks[min(demand.most, len(ranks)) - 1]]
        pool: Sequence[Domain] = (domain,)
        while pool[0].children:
            children = [child for outer in pool for child in outer.children]
            pool = self._few(children, margin, demand)
        return sorted(leaf for inner in pool for leaf in inner.leaves)

    def _few(self, domains: Sequence[Domain], margin: int, demand: Demand) -> list[Domain]:
        """The fewest of these domains that hold a gang on so many nodes, then small ones: best fit.

        Lemma: the n largest loads sum up to the minimum, over all t, of n t plus the excess of all
        loads over t. So domains hold the gang if their excess is enough at every t (unless loads
        have gaps); `margin` is the load of the last node, and no larger t matters. The domains with
        the largest excess are taken, and each is then exchanged for the smallest that is enough.
        """
        missing = [demand.workers - load * demand.most for load in range(margin + 1)]
        parts = list(zip(*(self.excess(domains, load) for load in range(margin + 1)), strict=True))
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

    def excess(self, domains: Sequence[Domain], load: int) -> list[int]:
        """For each domain, the sum over its nodes of the largest load beyond `load`."""
        sums = self._above(load)
        return [sums[domain.leaves.stop] - sums[domain.leaves.start] for domain in domains]

    @remembered
    def _above(self, load: int) -> list[int]:
        above = [max(0, most - load) for most in (*self._capacity, 0)]
        by_class = list(map(above.__getitem__, self._rank))
        leaves = self.candidates.leaves
        return [0, *accumulate(sum(map(by_class.__getitem__, numbers)) for numbers, _ in leaves)]

    # The nodes

    def _chosen(self, leaves: Sequence[int], demand: Demand) -> Choice | None:
        """The fewest nodes of these leaves that hold the gang, and of these the cheapest."""
        counts = Counter(self._members(leaves))
        ids = [at for at in counts if self.prices[at]]
        offers = [Offer(count=counts[at], prices=self.prices[at]) for at in ids]
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
            classes, nodes = self.candidates.leaves[leaf]
            if loads.keys().isdisjoint(classes):
                continue
            used.append(leaf)
            for at, node in zip(classes, nodes, strict=True):
                if at in loads:
                    seats.append(NodeLoad(node, at, loads[at].pop()))
                    if not loads[at]:
                        del loads[at]
            if not loads:
                break
        domains, touched = domains_of(self.index, used)
        return Choice(len(seats), domains, selection.price, touched, tuple(seats))


def search_of(
    candidates: Candidates, kind: Kind, floor: Floor, *, known: bool, most: int, priced: bool = True
) -> DomainSearch:
    """The search among nodes of a kind at a floor, with at most `most` workers per node.

    With `known`, without nodes on assumed networks. Feasibility needs no costs (`priced`).
    """
    most = min(most, max((nodes.capacity for nodes in candidates.classes), default=0))
    key = (kind, floor, known, most, priced)
    search = candidates.searches.get(key)
    if search is None:
        prices: list[dict[int, int]] = [{} for _ in candidates.classes]
        for at, nodes in candidates.of(kind):
            if known and nodes.loads.assumed(floor.terms):
                continue
            loads = range(1, min(nodes.capacity, most) + 1)
            if priced:
                prices[at] = {
                    load: price for load in loads if (price := nodes.price(load, floor)) is not None
                }
            elif floor.bandwidth:
                fast = (load for load in loads if nodes.best(load, floor.terms) >= floor.bandwidth)
                prices[at] = dict.fromkeys(fast, 0)
            else:
                prices[at] = dict.fromkeys(loads, 0)
        search = candidates.searches[key] = DomainSearch(candidates, prices)
    return search


def _of_first(cumulative: Sequence[int], nodes: int) -> int:
    """The load of the first so many nodes, from the cumulative loads of 1, 2, ... nodes."""
    return cumulative[min(nodes, len(cumulative)) - 1] if cumulative else 0


def domains_of(index: Index, leaves: Iterable[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The domains of these leaves: their number at each tier, and the free GPUs in them."""
    paths = [index.paths[leaf] for leaf in leaves]
    used = [{id(domain): domain for domain in level} for level in zip(*paths, strict=True)]
    free = tuple(sum(domain.free for domain in level.values()) for level in reversed(used))
    return tuple(map(len, used)), free
