"""How many nodes of each class a gang uses, and how full: the fewest nodes, then the least price.

The choice is exact, and its work does not grow with the size of the gang. Fill nodes from the
largest capacity down until all workers sit: that takes n nodes, and no choice takes fewer, since n
nodes never hold more than the n largest do. What the n largest could hold beyond the workers is the
slack S, smaller than one node's capacity. Let m be the capacity of the n-th node. Every choice of n
nodes differs from filling the n largest by deviations that each give up at least one place:

    a node above m holds less than it could         gives up what it lacks
    a node above m is not used                       gives up what it has above m
    a node at or below m is used, but holds less     gives up what it lacks to m

and together they give up exactly S. So at most S nodes deviate, and a small table over (places
given up, nodes gained or lost) finds the cheapest set of deviations. Nodes at m that are filled are
the cheapest ones not deviating (exchange argument), a prefix of them by price; the few lengths that
the prefix can have are tried in the order of a lower bound. Where some loads are impossible (three
GPUs of a cube mesh close no ring, four do), n nodes may not be enough; then n + 1 are tried.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """`count` alike nodes; `prices` maps each load that one of them can hold to its price.

    `capacity` is the largest of the loads.
    """

    count: int
    prices: Mapping[int, int]
    capacity: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "capacity", max(self.prices))


class Load(NamedTuple):
    """So many nodes of one offer hold so many workers each."""

    offer: int
    workers: int
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The nodes used, their price together, and the loads."""

    nodes: int
    price: int
    loads: tuple[Load, ...]


class Deviation(NamedTuple):
    """One node that is not as the prefix has it: `load` None means that it is not used."""

    lost: int
    gained: int
    price: int
    load: int | None


class Item(NamedTuple):
    """A node that may deviate, and how: at most one of its deviations is taken."""

    offer: int
    inside: bool
    deviations: tuple[Deviation, ...]


class _Taken(NamedTuple):
    """What was taken, newest first, as a linked list: tables share their beginnings."""

    before: _Taken | None
    item: Item
    deviation: Deviation


def select(
    offers: Sequence[Offer], workers: int, *, least: int = 1, most: int | None = None
) -> Selection | None:
    """Choose nodes for all workers: the fewest, then the cheapest; None if they do not fit.

    Of equal choices the one with the earlier offers. `least` and `most` limit the number of nodes.
    """
    total = sum(offer.count for offer in offers)
    order = sorted(range(len(offers)), key=lambda index: -offers[index].capacity)
    fewest = _fewest(offers, order, workers)
    if fewest is None:
        return None
    least = max(least, fewest)
    limit = min(total, workers, workers if most is None else most)
    for nodes in range(least, limit + 1):
        found = _Profile(offers, order, nodes, workers).best()
        if found is not None:
            return found
        # So few do not do where loads have gaps. Whether any number does is soon said.
        if nodes == least and not _reached(offers, workers):
            return None
    return None


def _reached(offers: Sequence[Offer], workers: int) -> bool:
    """Whether any number of nodes holds just so many workers.

    A set of sums is a number whose bits they are.
    """
    sums, mask = 1, (1 << workers + 1) - 1
    for offer in offers:
        for _ in range(min(offer.count, workers)):
            more = sums
            for load in offer.prices:
                more |= sums << load & mask
            if more == sums:
                break
            sums = more
        if sums >> workers & 1:
            return True
    return False


def _fewest(offers: Sequence[Offer], order: Sequence[int], workers: int) -> int | None:
    """How many of the largest nodes it takes; None if all together are too small."""
    nodes, left = 0, workers
    for index in order:
        offer = offers[index]
        needed = -(-left // offer.capacity)
        if needed <= offer.count:
            return nodes + needed
        nodes += offer.count
        left -= offer.count * offer.capacity
    return None


class _Profile:
    """All choices of exactly `nodes` nodes, seen as deviations from filling the largest."""

    def __init__(
        self, offers: Sequence[Offer], order: Sequence[int], nodes: int, workers: int
    ) -> None:
        self.offers = offers
        self.nodes = nodes
        left, held = nodes, 0
        for index in order:
            offer = offers[index]
            taken = min(left, offer.count)
            held += taken * offer.capacity
            left -= taken
            margin = offer.capacity
            if not left:
                break
        self.margin = margin
        self.slack = held - workers
        self.above = [i for i in order if offers[i].capacity > margin]
        # By price, and by the order of the offers where prices are equal.
        self.at = sorted(
            (i for i in order if offers[i].capacity == margin),
            key=lambda i: (offers[i].prices[margin], i),
        )
        self.below = [i for i in order if offers[i].capacity < margin]
        self.base = sum(offers[i].count * offers[i].prices[offers[i].capacity] for i in self.above)
        self.open = nodes - sum(offers[i].count for i in self.above)
        self._deviating: dict[tuple[int, bool], tuple[Deviation, ...]] = {}

    def best(self) -> Selection | None:
        """The cheapest choice of exactly this many nodes; None if there is none."""
        if self.slack < 0:
            return None
        most = sum(self.offers[i].count for i in self.at)
        lengths = range(max(0, self.open - self.slack), min(most, self.open + self.slack) + 1)
        bound = self._bound()
        candidates = sorted(
            (self.base + self._filled(length) + bound[self.open - length], -length)
            for length in lengths
            if self.open - length in bound
        )
        best: tuple[int, int, list[tuple[Item, Deviation]]] | None = None
        for least, negated in candidates:
            length = -negated
            if best is not None and least >= best[0]:
                break
            found = self._deviate(length)
            if found is None:
                continue
            price = self.base + self._filled(length) + found[0]
            if best is None or price < best[0]:
                best = (price, length, found[1])
        if best is None:
            return None
        return Selection(nodes=self.nodes, price=best[0], loads=self._loads(best[1], best[2]))

    def _filled(self, length: int) -> int:
        """The price of filling the cheapest nodes at the margin."""
        price = 0
        for index in self.at:
            taken = min(length, self.offers[index].count)
            price += taken * self.offers[index].prices[self.margin]
            length -= taken
            if not length:
                break
        return price

    def _deviations(self, index: int, *, inside: bool) -> tuple[Deviation, ...]:
        """What one node of an offer can do instead; `inside` if it would be filled otherwise."""
        found = self._deviating.get((index, inside))
        if found is None:
            found = self._deviating[index, inside] = self._deviate_one(index, inside=inside)
        return found

    def _deviate_one(self, index: int, *, inside: bool) -> tuple[Deviation, ...]:
        offer, slack = self.offers[index], self.slack
        if not slack:
            return ()
        full = offer.capacity if inside else self.margin
        paid = offer.prices[offer.capacity] if inside else 0
        found = [
            Deviation(full - load, 0 if inside else 1, price - paid, load)
            for load, price in offer.prices.items()
            if 0 < full - load <= slack
        ]
        spare = full - self.margin
        if inside and 0 < spare <= slack:
            found.append(Deviation(spare, -1, -paid, None))
        return tuple(found)

    def _items(self, length: int) -> Iterator[Item]:
        """The nodes that may deviate when the prefix has this length, as often as they may."""
        for index in self.above:
            yield from self._repeated(index, self.offers[index].count, inside=True)
        for index in self.at:
            filled = min(length, self.offers[index].count)
            length -= filled
            yield from self._repeated(index, filled, inside=True)
            yield from self._repeated(index, self.offers[index].count - filled, inside=False)
        for index in self.below:
            yield from self._repeated(index, self.offers[index].count, inside=False)

    def _repeated(self, index: int, count: int, *, inside: bool) -> Iterator[Item]:
        deviations = self._deviations(index, inside=inside)
        if deviations:
            for _ in range(min(count, self.slack)):
                yield Item(index, inside, deviations)

    def _bound(self) -> dict[int, int]:
        """By nodes gained: the least that any deviations can cost, each used as often as wished."""
        if not self.slack:
            return {0: 0}
        cheapest: dict[tuple[int, int], int] = {}
        for inside, indexes in ((True, self.above), (True, self.at), (False, self.at)):
            for index in indexes:
                self._cheaper(cheapest, index, inside=inside)
        for index in self.below:
            self._cheaper(cheapest, index, inside=False)
        table: list[dict[int, int]] = [{0: 0}]
        for lost in range(1, self.slack + 1):
            row: dict[int, int] = {}
            for (gives, gains), price in cheapest.items():
                for gained, before in table[lost - gives].items() if gives <= lost else ():
                    total = before + price
                    row[gained + gains] = min(row.get(gained + gains, total), total)
            table.append(row)
        return table[self.slack]

    def _cheaper(self, cheapest: dict[tuple[int, int], int], index: int, *, inside: bool) -> None:
        for one in self._deviations(index, inside=inside):
            key = (one.lost, one.gained)
            if key not in cheapest or one.price < cheapest[key]:
                cheapest[key] = one.price

    def _deviate(self, length: int) -> tuple[int, list[tuple[Item, Deviation]]] | None:
        """The cheapest deviations that give up the slack and leave the right number of nodes."""
        wanted = self.open - length
        table: dict[tuple[int, int], tuple[int, _Taken | None]] = {(0, 0): (0, None)}
        for item in self._relevant(length):
            after = dict(table)
            for (lost, gained), (price, chain) in table.items():
                for one in item.deviations:
                    key = (lost + one.lost, gained + one.gained)
                    if key[0] > self.slack:
                        continue
                    total = price + one.price
                    if key not in after or total < after[key][0]:
                        after[key] = (total, _Taken(chain, item, one))
            table = after
        found = table.get((self.slack, wanted))
        if found is None:
            return None
        price, chain = found
        taken = []
        while chain is not None:
            taken.append((chain.item, chain.deviation))
            chain = chain.before
        return price, taken

    def _relevant(self, length: int) -> list[Item]:
        """The nodes worth a look.

        No more than `slack` deviate, so of each kind of deviation the `slack` cheapest nodes are
        enough: any other could be exchanged for one of those.
        """
        items = list(self._items(length))
        kinds: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for position, item in enumerate(items):
            for one in item.deviations:
                kinds[one.lost, one.gained].append((one.price, position))
        keep = {
            position for ranked in kinds.values() for _, position in sorted(ranked)[: self.slack]
        }
        return [items[position] for position in sorted(keep)]

    def _loads(self, length: int, deviations: Sequence[tuple[Item, Deviation]]) -> tuple[Load, ...]:
        held: dict[tuple[int, int], int] = defaultdict(int)
        for index in self.above:
            held[index, self.offers[index].capacity] += self.offers[index].count
        for index in self.at:
            filled = min(length, self.offers[index].count)
            held[index, self.margin] += filled
            length -= filled
        for item, one in deviations:
            if item.inside:
                held[item.offer, self.offers[item.offer].capacity] -= 1
            if one.load is not None:
                held[item.offer, one.load] += 1
        return tuple(
            Load(offer, workers, nodes) for (offer, workers), nodes in sorted(held.items()) if nodes
        )
