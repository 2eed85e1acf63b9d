"""The exact choice in a domain of domains: tables combined from leaf to top.

A table says for every number of nodes used, and every few places given up, the least that it costs.
Places given up are counted against filling the largest nodes, as in `selection`: all choices of
the fewest nodes give up the same few, which keeps tables small. A domain that is entered costs one
in the digit of its level, damage and room broken into stand in the digits below, so that one
integer orders the choices. What cannot become better than a good guess is left out.

An example: 5 workers fill machines of 2, in racks a (two machines) and b (three, one of them with
room for 1 only). Three machines are the fewest, their loads of 2 leave one place: the slack is 1,
the margin 2. The table of a has 0, 1 and 2 nodes with nothing given up, and 1 and 2 nodes with one
place given up (a machine with 1 worker). Row 1 at 3 nodes of both together holds the answer: the
cheapest of 2 + 1 and 1 + 2 nodes where one of the two racks gives up the place.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from arena_topo.solver.classes import Domain
from arena_topo.solver.selection import exactly

if TYPE_CHECKING:
    from arena_topo.solver.domains import Choice, Chooser, Profile

_Chain = tuple[int, int, int] | tuple["_Chain | None", "_Chain | None"] | None
"""The leaves used, as a tree that tables share: a leaf says which it is, how many of its nodes, and
how many places it gives up."""

_Row = dict[int, tuple[int, _Chain]]
"""By nodes used: the least cost, and how."""

_Rows = list[_Row]
"""By places given up."""


class _Spent(Exception):
    """The effort is used up."""


def settle(chooser: Chooser, domain: Domain, least: Choice) -> Choice:
    """The best choice in a domain of domains.

    `least` is the best choice if domains did not count. Where the effort does not suffice, a good
    choice that says what of it is open.
    """
    profile = chooser.filled(domain, least.nodes)
    guess = _guess(chooser, domain, least, profile)
    try:
        return _Tables(chooser, domain, profile, guess).best()
    except _Spent:
        chooser.effort = 0
        counts = (1,) * (domain.level + 1) + chooser.fewest_domains(domain, profile)
        return replace(guess, open="damage" if guess.domains == counts else "domains")


def _guess(chooser: Chooser, domain: Domain, least: Choice, profile: Profile) -> Choice:
    """A good choice: level by level the largest domains, the last of them as small as may be.

    Domains hold a gang where they cover it at every load (`Chooser.fewest_domains`), as far as
    loads have no gaps.
    """
    pool: Sequence[Domain] = (domain,)
    while pool[0].children:
        level = [child for one in pool for child in one.children]
        level.sort(key=lambda one: (-chooser.excess(one, profile.margin - 1), one.free))
        wanted = [chooser.workers - load * profile.nodes for load in range(profile.margin + 1)]
        held = [
            [0, *accumulate(chooser.excess(one, load) for one in level)]
            for load in range(len(wanted))
        ]
        many = max(1, *(bisect_left(held[load], least) for load, least in enumerate(wanted)))
        missing = [least - held[load][many - 1] for load, least in enumerate(wanted)]
        last = next(
            (
                one
                for one in sorted(level[many:], key=lambda one: one.free)
                if one.free < level[many - 1].free
                and all(chooser.excess(one, load) >= less for load, less in enumerate(missing))
            ),
            level[many - 1],
        )
        pool = [*level[: many - 1], last]
    leaves = sorted(leaf for one in pool for leaf in one.leaves)
    found = chooser.select(leaves, profile.nodes)
    return least if found is None or least.score < found.score else found


class _Tables:
    """The tables of one domain of domains."""

    def __init__(self, chooser: Chooser, domain: Domain, profile: Profile, guess: Choice) -> None:
        self.chooser = chooser
        self.domain = domain
        self.profile = profile
        self._options: dict[int, list[tuple[int, int, int]]] = {}
        index, depth = chooser.index, len(chooser.index.cluster.tiers)
        most = max(max(one.values(), default=0) for one in chooser.quotes.prices)
        # The digits of a cost, from the last to the first.
        self._room_unit: dict[int, int] = {}
        self._entry_unit: dict[int, int] = {}
        unit = 1
        for level in range(domain.level + 1, depth):
            self._room_unit[level] = unit
            unit *= index.whole.free + 1
        self._damage_unit = unit
        unit *= profile.nodes * most + 1
        for level in range(depth - 1, domain.level, -1):
            self._entry_unit[level] = unit
            unit *= len(index.leaves) + 1
        self._limit = self._damage_unit * guess.damage + sum(
            self._entry_unit[level] * guess.domains[level]
            + self._room_unit[level] * guess.broken[depth - 1 - level]
            for level in self._room_unit
        )

    def best(self) -> Choice:
        """The best choice; _Spent past the effort."""
        # The guess is among them, so there is one.
        found = self._combined(self.domain)[self.profile.slack][self.profile.nodes]
        parts = []
        for leaf, used, lost in _leaves(found[1]):
            ids, offers = self.chooser.offers((leaf,))
            workers = self._above(leaf) + used * self.profile.margin - lost
            chosen = exactly(offers, used, workers)
            assert chosen is not None, "the table says that they fit"
            parts.append(((leaf,), ids, chosen))
        return self.chooser.seated(parts)

    def _combined(self, domain: Domain) -> _Rows:
        """The table of a domain; of the topmost only what may become the answer."""
        if not domain.children:
            return self._leaf(domain)
        top = domain is self.domain
        tables = sorted(map(self._combined, domain.children), key=_most, reverse=True)
        slack, nodes = self.profile.slack, self.profile.nodes
        sizes = [0, *accumulate(map(_most, tables))]
        rows: _Rows = [{0: (0, None)}, *({} for _ in range(slack))]
        for at, table in enumerate(tables, 1):
            self._spend(sum(map(len, rows)) * sum(map(len, table)))
            after: _Rows = [{} for _ in range(slack + 1)]
            for lost, row in enumerate(rows):
                for more in range(slack - lost + 1):
                    _join(row, table[more], after[lost + more], nodes)
            rows = [self._promising(row, sizes, at) for row in after] if top else after
        if not top:
            self._charge(rows, domain)
        return rows

    def _promising(self, row: _Row, sizes: Sequence[int], at: int) -> _Row:
        """Of a row what the tables from `at` on can complete without exceeding the guess."""
        entry = self._entry_unit[self.domain.level + 1]
        kept = {}
        for used, known in row.items():
            wanted = sizes[at] + self.profile.nodes - used
            if wanted <= sizes[-1]:
                need = bisect_left(sizes, wanted, at) - at
                if known[0] + need * entry <= self._limit:
                    kept[used] = known
        return kept

    def _charge(self, rows: _Rows, domain: Domain) -> None:
        """Add what entering a domain costs."""
        cost = self._entry_unit[domain.level] + self._room_unit[domain.level] * domain.free
        for row in rows:
            for used, (paid, chain) in row.items():
                if used:
                    row[used] = (paid + cost, chain)

    def _leaf(self, domain: Domain) -> _Rows:
        """The table of a leaf: every number of its nodes, every few places given up."""
        (leaf,) = domain.leaves
        slack = self.profile.slack
        if not slack:
            return self._filled(domain, leaf)
        rows: list[dict[int, int]] = [{0: 0}, *({} for _ in range(slack))]
        for options in map(self._ways, self.chooser.supply.leaves[leaf][0]):
            if len(options) == 1 and not any(options[0]):
                continue
            self._spend(sum(map(len, rows)) * len(options))
            after: list[dict[int, int]] = [{} for _ in range(slack + 1)]
            for lost, row in enumerate(rows):
                for more, one, price in options:
                    if lost + more > slack:
                        continue
                    into = after[lost + more]
                    for used, paid in row.items():
                        total = paid + price
                        if total < into.get(used + one, total + 1):
                            into[used + one] = total
            rows = after
        table: _Rows = [
            {used: (paid, (leaf, used, lost) if used else None) for used, paid in row.items()}
            for lost, row in enumerate(rows)
        ]
        self._charge(table, domain)
        return table

    def _filled(self, domain: Domain, leaf: int) -> _Rows:
        """The table of a leaf where no place is given up: the cheapest nodes, one by one."""
        margin, prices = self.profile.margin, self.chooser.quotes.prices
        forced, paid, choice = 0, 0, []
        for at in self.chooser.supply.leaves[leaf][0]:
            if prices[at]:
                full = max(prices[at])
                if full > margin:
                    forced += 1
                    paid += prices[at][full]
                elif full == margin:
                    choice.append(prices[at][full])
        costs = accumulate(sorted(choice), initial=paid)
        row: _Row = {
            used: (cost * self._damage_unit, (leaf, used, 0) if used else None)
            for used, cost in enumerate(costs, forced)
        }
        self._spend(len(row))
        self._charge([row], domain)
        return [row]

    def _ways(self, at: int) -> list[tuple[int, int, int]]:
        """What one node of a class can do: places given up, nodes used, cost."""
        found = self._options.get(at)
        if found is None:
            slack, margin = self.profile.slack, self.profile.margin
            prices = self.chooser.quotes.prices[at]
            full = max(prices, default=0)
            ways = [(max(0, full - margin), 0, 0)]
            ways += [
                (max(full, margin) - load, 1, price * self._damage_unit)
                for load, price in prices.items()
            ]
            found = self._options[at] = [one for one in ways if one[0] <= slack]
        return found

    def _above(self, leaf: int) -> int:
        """What the largest loads of a leaf have above the margin."""
        return sum(
            max(0, max(self.chooser.quotes.prices[at], default=0) - self.profile.margin)
            for at in self.chooser.supply.leaves[leaf][0]
        )

    def _spend(self, steps: int) -> None:
        self.chooser.effort -= steps
        if self.chooser.effort < 0:
            raise _Spent


def _most(rows: _Rows) -> int:
    """The most nodes that a table uses."""
    return max((max(row) for row in rows if row), default=0)


def _leaves(chain: _Chain) -> Iterator[tuple[int, int, int]]:
    """The leaves of a chain, in order."""
    waiting = [chain]
    while waiting:
        one = waiting.pop()
        if one is None:
            continue
        if len(one) == 2:  # noqa: PLR2004 - two chains; a leaf has three numbers
            waiting += (one[1], one[0])
        else:
            yield one


def _join(row: _Row, other: Mapping[int, tuple[int, _Chain]], into: _Row, nodes: int) -> None:
    """Every sum of two rows, the cheapest for each number of nodes.

    Of equal ones the one that uses most of the first row, so that ties go to the first domains.
    """
    for used in sorted(row, reverse=True):
        paid, chain = row[used]
        for more, (price, tail) in other.items():
            both = used + more
            if both <= nodes:
                total = paid + price
                known = into.get(both)
                if known is None or total < known[0]:
                    into[both] = (total, (chain, tail) if chain and tail else chain or tail)
