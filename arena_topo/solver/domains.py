"""Which domains of the network a gang uses: the fewest nodes, then the fewest domains, and so on.

At a given bandwidth every node has a largest load and a price for each load (`Quotes`); what is
left to choose is which nodes of one domain hold the gang. Of the domains of a level the best is
found best-first: each is judged by bounds that grow tighter (how many nodes at least; how many
domains inside it and how much damage at least; a choice of nodes), always the most promising one
next, until a choice stands first. The number of nodes is exact; which of equally few nodes, in a
domain of domains, is found greedily.
"""

from __future__ import annotations

import heapq
import operator
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from arena_topo.solver.classes import NEVER, Domain, Index, Quotes, Supply
from arena_topo.solver.selection import Offer, Selection, exactly, select
from arena_topo.topology import Node

EXCHANGES = 2_000
"""Exchanges of a domain for a smaller one that are tried."""

FEW = 3
"""Nodes up to which all ways to share the workers out are looked at for a bound."""


class Seat(NamedTuple):
    """One node, its class, and how many workers it takes."""

    node: Node
    of: int
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The nodes of one domain that hold a gang, and what that is worth; less is better.

    `domains` counts the domains used at each tier, coarse to near. `broken` sums, near to coarse,
    what was free in them: the smaller, the more room stays whole elsewhere.
    """

    nodes: int
    domains: tuple[int, ...]
    damage: int
    broken: tuple[int, ...]
    seats: tuple[Seat, ...] = field(compare=False)

    @property
    def score(self) -> Score:
        """What orders choices."""
        return Score(self.nodes, self.domains, self.damage, self.broken)


class Profile(NamedTuple):
    """Filling the largest nodes: how many it takes, what they ask, and what is left over.

    `margin` is the load of the last of them and `last` its price; `slack` are the places left.
    """

    nodes: int
    margin: int
    slack: int
    price: int
    last: int


class Score(NamedTuple):
    """What a choice is worth, or at best can be; less is better, the first difference decides."""

    nodes: int
    domains: tuple[int, ...] = ()
    damage: int = 0
    broken: tuple[int, ...] = ()


_Waiting = tuple[Score, int, int, "Choice | None"]
"""A domain in the queue: its bound, its place among its like, how far it is judged, its choice."""

_COUNTED, _BOUNDED, _POOLED, _SETTLED = range(4)


@dataclass(slots=True, kw_only=True)
class Chooser:
    """The search for the nodes of one gang at one bandwidth; `most` nodes at most."""

    index: Index
    supply: Supply
    quotes: Quotes
    workers: int
    gpus: int
    most: int
    _shares: dict[int, tuple[tuple[tuple[int, int], ...], ...]] = field(default_factory=dict)

    def best(self, level: int) -> Choice | None:
        """The best choice within one domain of a level; None if none holds the gang."""
        domains = self.index.levels[level]
        waiting: list[_Waiting] = []
        for order, domain in enumerate(domains):
            if domain.free >= self.workers * self.gpus:
                nodes = self._fewest(self._ranks(domain))
                if nodes is not None and nodes <= self.most:
                    waiting.append((Score(nodes), order, _COUNTED, None))
        heapq.heapify(waiting)
        while waiting:
            first = heapq.heappop(waiting)
            _, order, stage, choice = first
            if stage == _SETTLED:
                return choice
            judged = self._judged(domains[order], stage, choice)
            if judged is None or judged[0].nodes > self.most:
                continue
            bound, stage, choice = judged
            heapq.heappush(waiting, (bound, order, stage, choice))
        return None

    def _judged(
        self, domain: Domain, stage: int, choice: Choice | None
    ) -> tuple[Score, int, Choice | None] | None:
        """The next, tighter bound of a domain; None if it does not hold the gang."""
        if stage == _COUNTED:
            return self._bound(domain), _BOUNDED, None
        if stage == _BOUNDED:
            choice = self.select(domain.leaves)
            if choice is None or not domain.children:
                return None if choice is None else (choice.score, _SETTLED, choice)
            # Without regard to the domains inside, which may be more than that.
            inner = self.fewest_domains(domain, self.filled(domain, choice.nodes))
            counts = (*choice.domains[: domain.level + 1], *inner)
            least = (0,) * len(inner) + domain.broken
            return Score(choice.nodes, counts, choice.damage, least), _POOLED, choice
        assert choice is not None, "what is pooled has a choice"
        found = self._nested(domain, choice)
        return found.score, _SETTLED, found

    def fewest(self, level: int) -> int | None:
        """The fewest nodes of one domain of a level that hold the gang; None if too many do."""
        least: int | None = None
        for domain in self.index.levels[level]:
            if domain.free < self.workers * self.gpus:
                continue
            nodes = self._fewest(self._ranks(domain))
            if nodes is None or nodes > self.most or (least is not None and nodes >= least):
                continue
            if not self.quotes.whole:
                # Loads have gaps, so that it may take more.
                choice = self.select(domain.leaves)
                nodes = None if choice is None else choice.nodes
            if nodes is not None and (least is None or nodes < least):
                least = nodes
        return least

    def _nested(self, domain: Domain, least: Choice) -> Choice:
        """A good choice in a domain of domains: level by level the fewest, and then small ones.

        `least` is the best choice if domains did not count. Domains hold a gang where they cover it
        at every load (`fewest_domains`), as far as loads have no gaps.
        """
        profile = self.filled(domain, least.nodes)
        wanted = [self.workers - load * profile.nodes for load in range(profile.margin + 1)]
        pool: Sequence[Domain] = (domain,)
        while pool[0].children:
            pool = self._few([child for one in pool for child in one.children], wanted)
        leaves = sorted(leaf for one in pool for leaf in one.leaves)
        found = self.select(leaves, profile.nodes)
        return least if found is None or least.score < found.score else found

    def _few(self, level: list[Domain], wanted: Sequence[int]) -> list[Domain]:
        """The fewest of these domains that cover what is wanted at each load, and then small ones.

        The largest are taken, and each is then exchanged for the smallest one that will do.
        """
        loads = range(len(wanted))
        level.sort(key=lambda one: (-self.excess(one, len(wanted) - 2), one.free))
        held = [[0, *accumulate(self.excess(one, load) for one in level)] for load in loads]
        many = max(1, *(bisect_left(held[load], wanted[load]) for load in loads))
        chosen, spare = level[:many], sorted(level[many:], key=lambda one: one.free)
        slack = [held[load][min(many, len(level))] - wanted[load] for load in loads]
        tries = EXCHANGES
        for at in range(len(chosen) - 1, -1, -1):
            for place, other in enumerate(spare):
                if other.free >= chosen[at].free or tries <= 0:
                    break
                tries -= 1
                lost = [self.excess(chosen[at], load) - self.excess(other, load) for load in loads]
                if all(less <= more for less, more in zip(lost, slack, strict=True)):
                    slack = [more - less for less, more in zip(lost, slack, strict=True)]
                    chosen[at], spare[place] = other, chosen[at]
                    spare.sort(key=lambda one: one.free)
                    break
        return chosen

    # Bounds

    def _ranks(self, domain: Domain) -> list[int]:
        """The classes of all nodes of a domain by rank, the largest first."""
        found = self.quotes.ranked.get(domain.leaves)
        if found is None:
            rank = self.quotes.rank.__getitem__
            found = sorted(map(rank, self._members(domain.leaves)))
            self.quotes.ranked[domain.leaves] = found
        return found

    def _members(self, leaves: Sequence[int]) -> Iterable[int]:
        """The class of each node of some leaves."""
        if len(leaves) == 1:
            return self.supply.leaves[leaves[0]][0]
        if len(leaves) == len(self.supply.leaves):
            return Counter(self.supply.counts).elements()
        return (at for leaf in leaves for at in self.supply.leaves[leaf][0])

    def _fewest(self, ranks: Sequence[int]) -> int | None:
        """How many nodes it takes by their largest loads; None if all together are too small."""
        left, capacity = self.workers, self.quotes.capacity
        for nodes, rank in enumerate(ranks, 1):
            left -= capacity[rank]
            if left <= 0:
                return nodes
        return None

    def filled(self, domain: Domain, nodes: int) -> Profile:
        """The largest nodes of a domain at their largest loads."""
        ranks = self._ranks(domain)[:nodes]
        capacity, full = self.quotes.capacity, self.quotes.full
        return Profile(
            nodes=nodes,
            margin=capacity[ranks[-1]],
            slack=sum([capacity[rank] for rank in ranks]) - self.workers,
            price=sum([full[rank] for rank in ranks]),
            last=full[ranks[-1]],
        )

    def _bound(self, domain: Domain) -> Score:
        """No choice in the domain is worth less than this."""
        ranks = self._ranks(domain)
        nodes = self._fewest(ranks)
        assert nodes is not None, "domains that hold too few are not asked"
        profile = self.filled(domain, nodes)
        if not profile.slack:
            least = profile.price
        elif nodes <= FEW:
            least = self._shared_out(domain, nodes)
        else:
            least = self._paid_off(ranks, profile)
        if least >= NEVER:
            # Loads have gaps, and so few nodes cannot meet the number of workers.
            return Score(nodes + 1)
        counts = (1,) * (domain.level + 1)
        inner = self.fewest_domains(domain, profile) if domain.children else ()
        return Score(nodes, (*counts, *inner), least, (0,) * len(inner) + domain.broken)

    def _shared_out(self, domain: Domain, nodes: int) -> int:
        """A bound on the damage of few nodes, by all ways to share the workers out among them.

        Each load goes to the nodes that ask least for it; a node may be taken for several loads.
        """
        columns = self.quotes.columns.get(domain.leaves)
        if columns is None:
            rows = self.quotes.rows
            usable = [rows[rank] for rank in self._ranks(domain) if rank < len(rows)]
            columns = tuple(sorted(column)[:FEW] for column in zip(*usable, strict=True))
            self.quotes.columns[domain.leaves] = columns
        shares = self._shares.get(nodes)
        if shares is None:
            most = len(columns) - 1
            shares = self._shares[nodes] = tuple(_shares(self.workers, nodes, most))
        least = NEVER
        for share in shares:
            total = 0
            for load, many in share:
                column = columns[load]
                if len(column) < many:
                    break
                total += column[0] if many == 1 else sum(column[:many])
            else:
                least = min(least, total)
        return least

    def _paid_off(self, ranks: Sequence[int], profile: Profile) -> int:
        """A bound on the damage of many nodes, by Lagrange.

        A node costs its price less that of the last node filled; places given up are paid for by
        the cheapest ways there are, each taken as often as wished.
        """
        slack, margin, last = profile.slack, profile.margin, profile.last
        cheapest = [NEVER] * (slack + 1)
        capacity, full, rows = self.quotes.capacity, self.quotes.full, self.quotes.rows

        def cheaper(rank: int, most: int, paid: int) -> None:
            row = rows[rank]
            for lost in range(1, min(slack, most - 1) + 1):
                load = most - lost
                if load < len(row) and row[load] - paid < cheapest[lost]:
                    cheapest[lost] = row[load] - paid

        for rank in dict.fromkeys(ranks[: profile.nodes]):
            cheaper(rank, capacity[rank], full[rank])
            spare = capacity[rank] - margin
            if 0 < spare <= slack:
                cheapest[spare] = min(cheapest[spare], last - full[rank])
        for rank in dict.fromkeys(ranks[profile.nodes : bisect_left(ranks, len(rows))]):
            cheaper(rank, margin, last)
        paid = [0] + [NEVER] * slack
        for lost in range(1, slack + 1):
            paid[lost] = min(map(operator.add, paid[:lost], cheapest[lost:0:-1]))
        return profile.price + paid[slack] if paid[slack] < NEVER >> 1 else NEVER

    def fewest_domains(self, domain: Domain, profile: Profile) -> tuple[int, ...]:
        """A bound on the domains used at each level inside a domain.

        The n largest loads of some nodes sum up to the least of n t + (what exceeds t) over all
        t, so domains that hold the gang cover it at every t; so many are needed at least.
        """
        return tuple(
            max(
                self.covering(level, profile, load) for load in {profile.margin, profile.margin - 1}
            )
            for level in inner_levels(domain)
        )

    def covering(self, domains: Sequence[Domain], profile: Profile, load: int) -> int:
        """How many of the largest domains cover a gang above a load; too many if all do not."""
        wanted = self.workers - load * profile.nodes
        parts = sorted((self.excess(one, load) for one in domains), reverse=True)
        return bisect_left(list(accumulate(parts)), wanted) + 1 if wanted > 0 else 1

    def excess(self, domain: Domain, load: int) -> int:
        """What the largest loads of a domain's nodes have above a load."""
        found = self.quotes.excesses.get(load)
        if found is None:
            capacity = self.quotes.capacity
            above = [max(0, capacity[rank] - load) for rank in self.quotes.rank]
            leaves = [sum(map(above.__getitem__, ids)) for ids, _ in self.supply.leaves]
            found = self.quotes.excesses[load] = [0, *accumulate(leaves)]
        return found[domain.leaves.stop] - found[domain.leaves.start]

    # Exact

    def offers(self, leaves: Sequence[int]) -> tuple[list[int], list[Offer]]:
        """The classes in some leaves by their first node, and what they offer."""
        counts = Counter(self._members(leaves))
        prices = self.quotes.prices
        ids = [at for at in counts if prices[at]]
        return ids, [Offer(count=counts[at], prices=prices[at]) for at in ids]

    def select(self, leaves: Sequence[int], nodes: int | None = None) -> Choice | None:
        """The fewest nodes of these leaves, or just so many, at the least damage."""
        ids, offers = self.offers(leaves)
        found = (
            select(offers, self.workers, most=self.most)
            if nodes is None
            else exactly(offers, nodes, self.workers)
        )
        return None if found is None else self.seated(((leaves, ids, found),))

    def seated(self, parts: Iterable[tuple[Sequence[int], Sequence[int], Selection]]) -> Choice:
        """Choices of numbers as a choice of nodes: the fullest loads get the first names."""
        seats: list[Seat] = []
        used: list[int] = []
        damage = 0
        for leaves, ids, found in parts:
            wanted: dict[int, list[int]] = {}
            for load in sorted(found.loads, key=lambda one: one.workers):
                wanted.setdefault(ids[load.offer], []).extend([load.workers] * load.nodes)
            damage += found.price
            for leaf in leaves:
                here, nodes = self.supply.leaves[leaf]
                if wanted.keys().isdisjoint(here):
                    continue
                used.append(leaf)
                for at, node in zip(here, nodes, strict=True):
                    if at in wanted:
                        seats.append(Seat(node, at, wanted[at].pop()))
                        if not wanted[at]:
                            del wanted[at]
        counts, free = broken(self.index, used)
        return Choice(
            nodes=len(seats), domains=counts, damage=damage, broken=free, seats=tuple(seats)
        )


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
    depth = len(index.cluster.tiers)
    used: list[dict[tuple[str, ...], int]] = [{} for _ in range(depth)]
    for leaf in leaves:
        domain = index.whole
        for level in range(depth):
            at = bisect_left(domain.children, leaf, key=lambda child: child.leaves.stop - 1)
            domain = domain.children[at]
            used[level][domain.path] = domain.free
    return tuple(map(len, used)), tuple(sum(one.values()) for one in reversed(used))
