"""How many nodes of each class a gang uses, and how full: the fewest nodes, then the least price.

The choice is exact, and its work does not grow with the size of the gang. Fill nodes from the
largest capacity down, the cheapest first where capacities are equal, until all workers sit: that
takes n nodes, and no choice takes fewer, since n nodes never hold more than the n largest do. What
these could hold beyond the workers is the slack S, smaller than one node's capacity. Let m be the
capacity of the n-th node. Every choice of n nodes differs by deviations that give up places:

    a filled node holds less            gives up what it lacks
    a filled node is not used           gives up what it has above m
    another node is used instead        gives up what it lacks to m

and together they give up exactly S. Nodes of capacity m that come and go give up nothing; no more
of them do than other deviations make room for, as the cheapest are filled to begin with. So at most
2 S nodes deviate, and a small table over (places given up, nodes gained or lost) finds the cheapest
set of deviations. Where some loads are impossible (three GPUs of a cube mesh close no
ring, four do), n nodes may not be enough; then n + 1 are tried.
"""

from __future__ import annotations

from collections import Counter, defaultdict
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


class _Deviation(NamedTuple):
    """What one node of an offer does instead of `before`; a load of 0 means that it is not used."""

    lost: int
    gained: int
    price: int
    offer: int
    before: int
    after: int


class _Taken(NamedTuple):
    """What was taken, newest first, as a linked list: tables share their beginnings."""

    rest: _Taken | None
    deviation: _Deviation


def select(
    offers: Sequence[Offer], workers: int, *, least: int = 1, most: int | None = None
) -> Selection | None:
    """Choose nodes for all workers: the fewest, then the cheapest; None if they do not fit.

    Of equal choices the one with the earlier offers. `least` and `most` limit the number of nodes.
    """
    order = sorted(
        range(len(offers)),
        key=lambda at: (-offers[at].capacity, offers[at].prices[offers[at].capacity], at),
    )
    nodes, left = 0, workers
    for at in order:
        taken = min(offers[at].count, -(-max(0, left) // offers[at].capacity))
        nodes, left = nodes + taken, left - taken * offers[at].capacity
    if left > 0:
        return None
    fewest = max(least, nodes)
    limit = min(sum(offer.count for offer in offers), workers, workers if most is None else most)
    for nodes in range(fewest, limit + 1):
        found = _cheapest(offers, order, nodes, workers)
        if found is not None:
            return found
        # So few do not do where loads have gaps. Whether any number does is soon said.
        if nodes == fewest and not _reached(offers, workers):
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


def _cheapest(
    offers: Sequence[Offer], order: Sequence[int], nodes: int, workers: int
) -> Selection | None:
    """The cheapest choice of exactly so many nodes; None if there is none."""
    filled: dict[int, int] = {}
    left = nodes
    for at in order:
        filled[at] = min(left, offers[at].count)
        left -= filled[at]
        if not left:
            break
    margin = offers[at].capacity
    slack = sum(many * offers[one].capacity for one, many in filled.items()) - workers
    if slack < 0:
        return None
    price = sum(many * offers[one].prices[offers[one].capacity] for one, many in filled.items())
    loads = Counter({(one, offers[one].capacity): many for one, many in filled.items()})
    if slack:
        found = _deviating(_items(offers, order, filled, margin, slack), slack)
        if found is None:
            return None
        price += found[0]
        taken = found[1]
        while taken is not None:
            one = taken.deviation
            loads[one.offer, one.before] -= 1
            loads[one.offer, one.after] += 1
            taken = taken.rest
    some = [(at, load, many) for (at, load), many in sorted(loads.items()) if load and many]
    return Selection(nodes=nodes, price=price, loads=tuple(Load(*one) for one in some))


def _items(
    offers: Sequence[Offer],
    order: Sequence[int],
    filled: Mapping[int, int],
    margin: int,
    slack: int,
) -> list[tuple[_Deviation, ...]]:
    """The nodes that may deviate, with all that each can do instead.

    No more than 2 `slack` do, so of each kind of deviation as many of the cheapest nodes are
    enough: any other could be exchanged for one of those.
    """
    most = 2 * slack
    items: list[tuple[_Deviation, ...]] = []
    for at in order:
        used = filled.get(at, 0)
        for many, full in ((used, offers[at].capacity), (offers[at].count - used, 0)):
            found = tuple(_deviations(offers[at], at, full, margin, slack)) if many else ()
            items += [found] * min(many, most) if found else []
    kinds: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for place, item in enumerate(items):
        for one in item:
            kinds[one.lost, one.gained].append((one.price, place))
    useful = {place for ranked in kinds.values() for _, place in sorted(ranked)[:most]}
    return [items[place] for place in sorted(useful)]


def _deviations(offer: Offer, at: int, full: int, margin: int, slack: int) -> Iterator[_Deviation]:
    """What a node can do instead of holding `full` workers, or none."""
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
    """The cheapest deviations that give up the slack and leave the number of nodes as it is."""
    table: dict[tuple[int, int], tuple[int, _Taken | None]] = {(0, 0): (0, None)}
    for item in items:
        after = dict(table)
        for (lost, gained), (price, taken) in table.items():
            for one in item:
                key = (lost + one.lost, gained + one.gained)
                total = price + one.price
                if (
                    key[0] <= slack
                    and abs(key[1]) <= slack
                    and (key not in after or total < after[key][0])
                ):
                    after[key] = (total, _Taken(taken, one))
        table = after
    return table.get((slack, 0))
