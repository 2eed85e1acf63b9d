"""A knapsack: the nodes of each class and their loads, with the fewest nodes, then the least price.

The choice is exact, and its work does not grow with the size of the gang. Fill nodes from the
largest capacity down, the cheapest first among equal capacities, until all workers are placed: that
takes n nodes, and no choice takes fewer, since n nodes never hold more than the n largest do. The
slack S is the number of free places that remain; it is smaller than the capacity of one node. Let m
be the capacity of the n-th node. Every choice of n nodes differs from this one by deviations that
give up places:

    a filled node holds less            gives up the difference
    a filled node is not used           gives up its capacity minus m
    another node is used instead        gives up m minus its load

and together they give up exactly S. Exchanges of nodes of capacity m give up nothing; there are no
more of them than other deviations make room for, as the cheapest are filled first. So at most 2 S
nodes deviate, and a small table over (places given up, nodes gained or lost) finds the cheapest set
of deviations. If some loads are impossible (three GPUs of a cube mesh close no ring, four do), n
nodes may not be enough; then n + 1 are tried, and so on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class KnapsackItem:
    """`count` equal nodes; `prices` maps each possible load of one of them to its price.

    `capacity` is the largest of the loads.
    """

    count: int
    prices: Mapping[int, int]
    capacity: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "capacity", max(self.prices))


class Load(NamedTuple):
    """A number of nodes of one offer, each with the same number of workers."""

    offer: int
    workers: int
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The number of nodes, their total price, and the loads."""

    nodes: int
    price: int
    loads: tuple[Load, ...]


class _Deviation(NamedTuple):
    """A change of one node of an offer from load `before` to `after`; load 0 is an unused node."""

    lost: int
    gained: int
    price: int
    offer: int
    before: int
    after: int


class _Taken(NamedTuple):
    """The deviations taken, newest first, as a linked list: tables share their tails."""

    rest: _Taken | None
    deviation: _Deviation


def select(
    offers: Sequence[KnapsackItem], workers: int, *, least: int = 1, most: int | None = None
) -> Selection | None:
    """Choose nodes for all workers: the fewest, then the cheapest; None if they do not fit.

    Of equal choices, the one with the earlier offers wins. `least` and `most` limit the number of
    nodes.
    """
    order = sorted(
        range(len(offers)),
        key=lambda at: (-offers[at].capacity, offers[at].prices[offers[at].capacity], at),
    )
    nodes, remaining = 0, workers
    for at in order:
        used = min(offers[at].count, -(-max(0, remaining) // offers[at].capacity))
        nodes, remaining = nodes + used, remaining - used * offers[at].capacity
    if remaining > 0:
        return None
    fewest = max(least, nodes)
    limit = min(sum(offer.count for offer in offers), workers, workers if most is None else most)
    for nodes in range(fewest, limit + 1):
        selection = _cheapest(offers, order, nodes, workers)
        if selection is not None:
            return selection
        # This number is not enough if loads have gaps. Whether any number is, a subset sum decides
        # quickly.
        if nodes == fewest and not _reached(offers, workers):
            return None
    return None


def _reached(offers: Sequence[KnapsackItem], workers: int) -> bool:
    """Whether any number of nodes holds exactly so many workers.

    A subset sum: bit i of `sums` is set if i workers are possible.
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


def _cheapest(
    offers: Sequence[KnapsackItem], order: Sequence[int], nodes: int, workers: int
) -> Selection | None:
    """The cheapest choice of exactly so many nodes; None if none exists."""
    filled: dict[int, int] = {}
    remaining = nodes
    for at in order:
        filled[at] = min(remaining, offers[at].count)
        remaining -= filled[at]
        if not remaining:
            break
    margin = offers[at].capacity
    full = {at: offers[at].capacity for at in filled}
    slack = sum(used * full[at] for at, used in filled.items()) - workers
    if slack < 0:
        return None
    price = sum(used * offers[at].prices[full[at]] for at, used in filled.items())
    loads = Counter({(at, full[at]): used for at, used in filled.items()})
    if slack:
        result = _deviating(_items(offers, order, filled, margin, slack), slack)
        if result is None:
            return None
        price += result[0]
        taken = result[1]
        while taken is not None:
            deviation = taken.deviation
            loads[deviation.offer, deviation.before] -= 1
            loads[deviation.offer, deviation.after] += 1
            taken = taken.rest
    used = [(at, load, many) for (at, load), many in sorted(loads.items()) if load and many]
    return Selection(nodes=nodes, price=price, loads=tuple(Load(*load) for load in used))


def _items(
    offers: Sequence[KnapsackItem],
    order: Sequence[int],
    filled: Mapping[int, int],
    margin: int,
    slack: int,
) -> list[tuple[_Deviation, ...]]:
    """The nodes that may deviate, each with all its deviations.

    At most 2 `slack` nodes deviate, so of each kind of deviation the cheapest 2 `slack` nodes are
    enough: any other could be exchanged for one of those.
    """
    most = 2 * slack
    items: list[tuple[_Deviation, ...]] = []
    for at in order:
        used = filled.get(at, 0)
        for many, full in ((used, offers[at].capacity), (offers[at].count - used, 0)):
            deviations = tuple(_deviations(offers[at], at, full, margin, slack)) if many else ()
            items += [deviations] * min(many, most) if deviations else []
    kinds: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for place, item in enumerate(items):
        for deviation in item:
            kinds[deviation.lost, deviation.gained].append((deviation.price, place))
    useful = {place for ranked in kinds.values() for _, place in sorted(ranked)[:most]}
    return [items[place] for place in sorted(useful)]


def _deviations(
    offer: KnapsackItem, at: int, full: int, margin: int, slack: int
) -> Iterator[_Deviation]:
    """The other loads of a node that holds `full` workers, or is not used (0)."""
    paid = offer.prices[full] if full else 0
    for load, price in offer.prices.items():
        lost = (full or margin) - load
        if load != full and 0 <= lost <= slack:
            yield _Deviation(lost, int(not full), price - paid, at, full, load)
    if full and full - margin <= slack:
        yield _Deviation(full - margin, -1, -paid, at, full, 0)


def _deviating(
    items: Sequence[tuple[_Deviation, ...]], slack: int
) -> tuple[int, _Taken | None] | None:
    """The cheapest deviations that give up exactly the slack and keep the number of nodes."""
    table: dict[tuple[int, int], tuple[int, _Taken | None]] = {(0, 0): (0, None)}
    for item in items:
        after = dict(table)
        for (lost, gained), (price, taken) in table.items():
            for deviation in item:
                key = (lost + deviation.lost, gained + deviation.gained)
                total = price + deviation.price
                if (
                    key[0] <= slack
                    and abs(key[1]) <= slack
                    and (key not in after or total < after[key][0])
                ):
                    after[key] = (total, _Taken(taken, deviation))
        table = after
    return table.get((slack, 0))
