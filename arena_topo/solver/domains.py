"""Which domains of the network a gang uses: the fewest nodes, then the fewest domains, and so on.

At a given bandwidth every node has a largest load and a price for each load (`CostTable`); what is
left to choose is which nodes of one domain hold the gang. Of the domains of a level the best is
found by branch and bound: domains that need the fewest nodes first, of these those whose lower
bound (domains inside it, damage) is least, until the next bound is no better than the best choice.
The number of nodes is exact; which of equally few nodes, in a domain of domains, is found greedily.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import accumulate, zip_longest
from typing import NamedTuple

from arena_topo.solver.classes import NEVER, Candidates, CostTable, Domain, Index, Ranked
from arena_topo.solver.selection import Offer, Selection, exactly, select
from arena_topo.topology import Node

TRIES = 8
"""Domains of domains in which nodes are chosen; those with the best bounds."""

EXCHANGES = 2_000
"""Exchanges of a domain for a smaller one that are tried."""

FEW = 3
"""Nodes up to which all ways to share the workers out are looked at for a bound."""


class NodeLoad(NamedTuple):
    """One node, its class, and how many workers it takes."""

    node: Node
    of: int
    workers: int


class Score(NamedTuple):
    """What a choice is worth, or at best can be; less is better, the first difference decides.

    `domains` counts the domains used at each tier, coarse to near. `broken` sums, near to coarse,
    what was free in them: the smaller, the more room stays whole elsewhere.
    """

    nodes: int
    domains: tuple[int, ...] = ()
    damage: int = 0
    broken: tuple[int, ...] = ()


class Choice(NamedTuple):
    """The nodes of one domain that hold a gang, and what that is worth."""

    score: Score
    seats: tuple[NodeLoad, ...]


class Profile(NamedTuple):
    """Filling the largest nodes: how many it takes, what they ask, and what is left over.

    `margin` is the load of the last of them and `last` its price; `slack` are the places left.
    """

    nodes: int
    margin: int
    slack: int
    price: int
    last: int


@dataclass(slots=True, kw_only=True)
class DomainSearch:
    """The search for the nodes of one gang at one bandwidth, from `least` to `most` of them."""

    index: Index
    candidates: Candidates
    costs: CostTable
    workers: int
    least: int = 1
    most: int

    def best(self, level: int) -> Choice | None:
        """The best choice within one domain of a level; None if none holds the gang."""
        if self.workers > self._largest(level):
            return None
        domains = self.index.levels[level]
        by_nodes: dict[int, list[int]] = {}
        for order, (_, held, _) in enumerate(self._ranking(level)):
            nodes = max(self.least, bisect_left(held, self.workers) + 1)
            if nodes <= len(held):
                by_nodes.setdefault(nodes, []).append(order)
        best: tuple[Score, int, Choice] | None = None
        tries = TRIES
        for nodes in range(min(by_nodes, default=self.most + 1), self.most + 1):
            for bound in sorted(self._bounds(level, nodes, by_nodes.get(nodes, []))):
                least, order = bound
                if least.nodes > nodes:
                    if nodes < len(self._ranking(level)[order][1]):
                        by_nodes.setdefault(nodes + 1, []).append(order)
                    continue
                tries -= bool(domains[order].children)
                if best is not None and (best[:2] < bound or (tries < 0 and best[0][0] <= nodes)):
                    break
                choice = self._chosen(domains[order])
                if choice is not None and (best is None or (choice.score, order) < best[:2]):
                    best = (choice.score, order, choice)
            if best is not None and best[0].nodes <= nodes:
                break
        return None if best is None or best[0].nodes > self.most else best[2]

    def _chosen(self, domain: Domain) -> Choice | None:
        """The best choice in a domain; of a domain of domains a good one."""
        choice = self.select(domain.leaves)
        return self._nested(domain, choice) if choice and domain.children else choice

    def fewest(self, level: int) -> int | None:
        """The fewest nodes of one domain of a level that hold the gang; None if too many do."""
        if self.workers > self._largest(level):
            return None
        least = bisect_left(self._most_held(level), self.workers) + 1
        if self.costs.whole and least >= self.least:
            return least if least <= self.most else None
        # Loads have gaps, or so few nodes are not asked for, so that it may take more.
        found: int | None = None
        for domain, (_, held, _) in zip(
            self.index.levels[level], self._ranking(level), strict=True
        ):
            nodes = max(self.least, bisect_left(held, self.workers) + 1)
            if nodes > min(len(held), self.most if found is None else found - 1):
                continue
            choice = self.select(domain.leaves)
            if choice is not None and (found is None or choice.score.nodes < found):
                found = choice.score.nodes
        return found

    def _nested(self, domain: Domain, least: Choice) -> Choice:
        """A good choice in a domain of domains: level by level the fewest, and then small ones.

        `least` is the best choice if domains did not count. Domains hold a gang where they cover it
        at every load (`fewest_domains`), as far as loads have no gaps.
        """
        profile = self.filled(domain, least.score.nodes)
        wanted = [self.workers - load * profile.nodes for load in range(profile.margin + 1)]
        pool: Sequence[Domain] = (domain,)
        while pool[0].children:
            pool = self._few([child for one in pool for child in one.children], wanted)
        leaves = sorted(leaf for one in pool for leaf in one.leaves)
        found = self.select(leaves, profile.nodes)
        return least if found is None or least.score < found.score else found

    def _few(self, level: Sequence[Domain], wanted: Sequence[int]) -> list[Domain]:
        """The fewest of these domains that cover what is wanted at each load, and then small ones.

        The largest are taken, and each is then exchanged for the smallest one that will do.
        """
        excess = [self.excess(level, load) for load in range(len(wanted))]
        parts = list(zip(*excess, strict=True))
        order = sorted(range(len(level)), key=lambda at: (-parts[at][-2], level[at].free))
        sums = [list(accumulate(one[at] for at in order)) for one in excess]
        many = max(bisect_left(held, most) for held, most in zip(sums, wanted, strict=True)) + 1
        many = min(many, len(order))
        slack = [held[many - 1] - most for held, most in zip(sums, wanted, strict=True)]
        chosen = order[:many]
        spare = sorted(order[many:], key=lambda at: level[at].free)
        tries = EXCHANGES
        for place in range(many - 1, -1, -1):
            now = chosen[place]
            for other_place, other in enumerate(spare):
                if level[other].free >= level[now].free or tries <= 0:
                    break
                tries -= 1
                left = [
                    more + gained - lost
                    for more, gained, lost in zip(slack, parts[other], parts[now], strict=True)
                ]
                if min(left) >= 0:
                    slack, chosen[place] = left, other
                    del spare[other_place]
                    insort(spare, now, key=lambda at: level[at].free)
                    break
        return [level[at] for at in chosen]

    # Bounds

    def _largest(self, level: int) -> int:
        """The most workers that one domain of a level holds."""
        found = self.costs.largest.get(level)
        if found is None:
            found = max(self.excess(self.index.levels[level], 0), default=0)
            self.costs.largest[level] = found
        return found

    def _ranking(self, level: int) -> list[Ranked]:
        """The nodes of each domain of a level, the largest first."""
        found = self.costs.ranking.get(level)
        if found is None:
            found = [self._ranked(domain) for domain in self.index.levels[level]]
            self.costs.ranking[level] = found
        return found

    def _ranked(self, domain: Domain) -> Ranked:
        found = self.costs.ranked.get(domain.leaves)
        if found is None:
            ranks = sorted(map(self.costs.rank.__getitem__, self._members(domain.leaves)))
            del ranks[bisect_left(ranks, len(self.costs.rows)) :]
            held = list(accumulate(map(self.costs.capacity.__getitem__, ranks)))
            paid = list(accumulate(map(self.costs.full.__getitem__, ranks)))
            found = self.costs.ranked[domain.leaves] = (ranks, held, paid)
        return found

    def _most_held(self, level: int) -> list[int]:
        """The most workers that so many nodes of one domain of a level hold: 1 node, 2, ..."""
        found = self.costs.most_held.get(level)
        if found is None:
            every = [held for _, held, _ in self._ranking(level)]
            columns = zip_longest(*every, fillvalue=0)
            largest = every[0] if len(every) == 1 else list(accumulate(map(max, columns), max))
            found = self.costs.most_held[level] = largest
        return found

    def _members(self, leaves: Sequence[int]) -> Iterable[int]:
        """The class of each node of some leaves."""
        if len(leaves) == 1:
            return self.candidates.leaves[leaves[0]][0]
        if len(leaves) == len(self.candidates.leaves):
            return Counter(self.candidates.counts).elements()
        return (at for leaf in leaves for at in self.candidates.leaves[leaf][0])

    def filled(self, domain: Domain, nodes: int) -> Profile:
        """The largest nodes of a domain at their largest loads."""
        ranks, held, paid = self._ranked(domain)
        last = ranks[nodes - 1]
        return Profile(
            nodes=nodes,
            margin=self.costs.capacity[last],
            slack=held[nodes - 1] - self.workers,
            price=paid[nodes - 1],
            last=self.costs.full[last],
        )

    def _bounds(self, level: int, nodes: int, orders: Sequence[int]) -> Iterator[tuple[Score, int]]:
        """No choice of so many nodes in these domains is worth less than this."""
        domains, counts = self.index.levels[level], (1,) * (level + 1)
        for order, least in zip(orders, self._cheapest(level, nodes, orders), strict=True):
            domain = domains[order]
            if least >= NEVER:
                # Loads have gaps, and so few nodes cannot meet the number of workers.
                yield Score(nodes + 1), order
            elif domain.children:
                inner = self.fewest_domains(domain, self.filled(domain, nodes))
                yield (
                    Score(nodes, (*counts, *inner), least, (0,) * len(inner) + domain.broken),
                    order,
                )
            else:
                yield Score(nodes, counts, least, domain.broken), order

    def _cheapest(self, level: int, nodes: int, orders: Sequence[int]) -> Iterable[int]:
        """By domain a bound on the damage, by the cheapest nodes that it has for each load.

        A node may be taken for several loads.
        """
        if nodes <= FEW:
            return self._shared_out(level, nodes, orders)
        domains = self.index.levels[level]
        return [self._paid_off(domains[order], nodes) for order in orders]

    def _shared_out(self, level: int, nodes: int, orders: Sequence[int]) -> list[int]:
        """The bounds of few nodes, by all ways to share the workers out among them."""
        bounds: list[list[int]] = []
        for share in _shares(self.workers, nodes, len(self.costs.rows[0]) - 1):
            first, *others = (self._asked(level, load, many) for load, many in share)
            for other in others:
                first = list(map(operator.add, first, other))
            bounds.append(first)
        least = bounds[0] if len(bounds) == 1 else list(map(min, *bounds))
        return [least[order] for order in orders]

    def _asked(self, level: int, load: int, many: int) -> list[int]:
        """By domain what so many nodes ask for a load, the cheapest of the domain."""
        found = self.costs.asked.get((level, load, many))
        if found is None:
            prices = [row[load] for row in self.costs.rows]
            found = self.costs.asked[level, load, many] = []
            for ranks, _, _ in self._ranking(level):
                cheapest = sorted(map(prices.__getitem__, ranks))[:many]
                found.append(sum(cheapest) if len(cheapest) == many else NEVER)
        return found

    def _paid_off(self, domain: Domain, nodes: int) -> int:
        """The bound of many nodes, by Lagrange.

        A node costs its price less that of the last node filled; places given up are paid for by
        the cheapest ways that its nodes have, however many nodes that leaves.
        """
        profile = self.filled(domain, nodes)
        slack, margin, last = profile.slack, profile.margin, profile.last
        if not slack:
            return profile.price
        ranks = self._ranked(domain)[0]
        capacity, full, rows = self.costs.capacity, self.costs.full, self.costs.rows
        ways: list[list[int]] = [[] for _ in range(slack + 1)]

        def give_up(rank: int, many: int, most: int, paid: int) -> None:
            row = rows[rank]
            for lost in range(1, min(slack, most - 1) + 1):
                if row[most - lost] < NEVER:
                    ways[lost] += [row[most - lost] - paid] * min(many, slack // lost)

        for rank, many in Counter(ranks[:nodes]).items():
            give_up(rank, many, capacity[rank], full[rank])
            spare = capacity[rank] - margin
            if 0 < spare <= slack:
                ways[spare] += [last - full[rank]] * min(many, slack // spare)
        for rank, many in Counter(ranks[nodes:]).items():
            give_up(rank, many, margin, last)
        paid = [0] + [NEVER] * slack
        for lost, prices in enumerate(ways[1:], 1):
            sums = [0, *accumulate(nsmallest(slack // lost, prices))]
            paid = [
                min(
                    paid[given - lost * many] + sums[many]
                    for many in range(min(given // lost, len(sums) - 1) + 1)
                )
                for given in range(slack + 1)
            ]
        return profile.price + paid[slack] if paid[slack] < NEVER >> 1 else NEVER

    def fewest_domains(self, domain: Domain, profile: Profile) -> tuple[int, ...]:
        """A bound on the domains used at each level inside a domain.

        The n largest loads of some nodes sum up to the least of n t + (what exceeds t) over all
        t, so domains that hold the gang cover it at every t; so many are needed at least.
        """
        loads = {profile.margin, profile.margin - 1}
        return tuple(
            max(
                2 if self.workers > self._held(level[0].level, profile.nodes) else 1,
                *(self.covering(level, profile, load) for load in loads),
            )
            for level in inner_levels(domain)
        )

    def _held(self, level: int, nodes: int) -> int:
        """The most workers that so many nodes of one domain of a level hold."""
        held = self._most_held(level)
        return held[min(nodes, len(held)) - 1] if held else 0

    def covering(self, domains: Sequence[Domain], profile: Profile, load: int) -> int:
        """How many of the largest domains cover a gang above a load; too many if all do not."""
        wanted = self.workers - load * profile.nodes
        if wanted <= 0:
            return 1
        key = (domains[0].level, domains[0].leaves.start, domains[-1].leaves.stop, load)
        sums = self.costs.covers.get(key)
        if sums is None:
            parts = sorted(self.excess(domains, load), reverse=True)
            sums = self.costs.covers[key] = list(accumulate(parts))
        return bisect_left(sums, wanted) + 1

    def excess(self, domains: Sequence[Domain], load: int) -> list[int]:
        """What the largest loads of the nodes of each domain have above a load."""
        found = self.costs.excesses.get(load)
        if found is None:
            capacity = self.costs.capacity
            above = [max(0, capacity[rank] - load) for rank in self.costs.rank]
            leaves = [sum(map(above.__getitem__, ids)) for ids, _ in self.candidates.leaves]
            found = self.costs.excesses[load] = [0, *accumulate(leaves)]
        return [found[one.leaves.stop] - found[one.leaves.start] for one in domains]

    # Exact

    def offers(self, leaves: Sequence[int]) -> tuple[list[int], list[Offer]]:
        """The classes in some leaves by their first node, and what they offer."""
        counts = Counter(self._members(leaves))
        prices = self.costs.prices
        ids = [at for at in counts if prices[at]]
        return ids, [Offer(count=counts[at], prices=prices[at]) for at in ids]

    def select(self, leaves: Sequence[int], nodes: int | None = None) -> Choice | None:
        """The fewest nodes of these leaves, or just so many, at the least damage."""
        ids, offers = self.offers(leaves)
        found = (
            select(offers, self.workers, least=self.least, most=self.most)
            if nodes is None
            else exactly(offers, nodes, self.workers)
        )
        return None if found is None else self.seated(leaves, ids, found)

    def seated(self, leaves: Sequence[int], ids: Sequence[int], found: Selection) -> Choice:
        """A choice of numbers as a choice of nodes: the fullest loads get the first names."""
        wanted: dict[int, list[int]] = {}
        for load in sorted(found.loads, key=lambda one: one.workers):
            wanted.setdefault(ids[load.offer], []).extend([load.workers] * load.nodes)
        seats: list[NodeLoad] = []
        used: list[int] = []
        for leaf in leaves:
            here, nodes = self.candidates.leaves[leaf]
            if wanted.keys().isdisjoint(here):
                continue
            used.append(leaf)
            for at, node in zip(here, nodes, strict=True):
                if at in wanted:
                    seats.append(NodeLoad(node, at, wanted[at].pop()))
                    if not wanted[at]:
                        del wanted[at]
            if not wanted:
                break
        counts, free = broken(self.index, used)
        return Choice(Score(len(seats), counts, found.price, free), tuple(seats))


def _shares(workers: int, nodes: int, most: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """All ways to share workers out to so many nodes: how many nodes hold which load."""
    if nodes == 0:
        if workers == 0:
            yield ()
        return
    for load in range(min(most, workers), 0, -1):
        if load * nodes < workers:
            return
        for many in range(1, nodes + 1):
            for rest in _shares(workers - load * many, nodes - many, load - 1):
                yield ((load, many), *rest)


def inner_levels(domain: Domain) -> Iterator[Sequence[Domain]]:
    """The domains inside a domain, level by level, coarse to near."""
    level: Sequence[Domain] = domain.children
    while level:
        yield level
        level = [child for one in level for child in one.children]


def broken(index: Index, leaves: Iterable[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of the domains that hold these leaves: how many at each tier, and what is free in them."""
    paths = [index.paths[leaf] for leaf in leaves]
    used = [{id(one): one for one in level} for level in zip(*paths, strict=True)]
    free = tuple(sum(one.free for one in level.values()) for level in reversed(used))
    return tuple(map(len, used)), free
