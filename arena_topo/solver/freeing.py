"""What others would have to free so that a gang fits: the fewest GPUs, else the fewest nodes.

Each node has a table: what must be freed on it for how many workers. The least for the whole gang
is a knapsack. Where each worker more costs no less than the one before, taking the cheapest steps
is the least, which a bound by fractions of steps proves; otherwise dynamic programming finds it for
small gangs. Where neither holds, or a machine has too many sets to look at, "for example" says so.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from arena_topo.solver.classes import Domain, Kind, NodeClass, Pool, room
from arena_topo.solver.gang import Way, outermost
from arena_topo.solver.gpu_sets import SMALL, choices
from arena_topo.solver.loads import Hosts, Terms
from arena_topo.solver.request import Request
from arena_topo.topology import GPUSet, Node, count, members, natural

MOST_NAMES = 3
"""Nodes named of those that would have to become free together."""

DOMAINS = 16
"""Domains that are searched, those first that need least by their bound."""

WORK = 60_000
"""Steps of dynamic programming, some 30 ms."""

Table = Mapping[int, int]
"""For each number of workers that a node may take, what must be freed for it; 0 for nothing."""


class Offer(NamedTuple):
    """Alike nodes: their group, how many there are, and what must be freed of one of them."""

    group: int
    many: int
    table: Table


class _Pick(NamedTuple):
    """So many nodes of a group take so many workers each, for which so much must be freed."""

    group: int
    load: int
    cost: int
    times: int


class Release(NamedTuple):
    """The least to free for a whole gang; `proven` unless there may be less."""

    cost: int
    proven: bool
    picks: tuple[_Pick, ...] = ()
    way: Way | None = None
    domain: Domain | None = None


class Freeing:
    """What others would have to free for a gang: the fewest GPUs, else the fewest nodes."""

    def __init__(self, request: Request, pool: Pool) -> None:
        self.request = request
        self.pool = pool
        self.index = pool.index
        mixed = request.mix_models
        self._classes = [self.index.node_class(node, mixed=mixed) for node in pool.nodes]
        self._certain = True
        self._fast: dict[tuple[object, ...], list[GPUSet]] = {}

    def words(self) -> str | None:
        """What to free, as it follows "fits": `when 2 more GPUs of node a are free`."""
        for costs, words in ((self._gpus, self._released), (self._emptied, self._recovered)):
            found = self._least(costs)
            # Where nothing has to be freed, something else is in the way.
            if found is not None and found.cost:
                return f"{'when' if found.proven else 'for example when'} {words(found)}"
        return None

    def _least(self, costs: Callable[[int, Way], Table]) -> Release | None:
        """The least to free, however far apart and in whichever domain; None if nothing will do."""
        best: Release | None = None
        proven = True
        kinds = [one.kind for one in self._classes]
        for way in outermost(self.request, self.index):
            every = [costs(group, way) for group in range(len(kinds))]
            bounds = (
                (bound, at, kind)
                for kind in dict.fromkeys(kinds)
                for bound, at in self._bounds(way, _of_kind(every, kinds, kind))
            )
            domains = self.index.levels[way.level]
            for tried, (bound, at, kind) in enumerate(heapq.nsmallest(DOMAINS + 1, bounds)):
                if best is not None and bound >= best.cost:
                    break
                if tried == DOMAINS:
                    proven = False
                    break
                offers = [
                    Offer(group, many, every[group])
                    for group, many in self.pool.counts_in(domains[at]).items()
                    if every[group] and kinds[group] == kind
                ]
                found = cheapest(offers, *way.demand)
                if found is None:
                    continue
                proven = proven and found.proven
                if best is None or found.cost < best.cost:
                    best = found._replace(way=way, domain=domains[at])
        if best is None:
            return None
        return best._replace(proven=(proven and self._certain) or best.cost == 1)

    def _bounds(self, way: Way, tables: Sequence[Table]) -> Iterator[tuple[int, int]]:
        """The domains that may hold a gang, each after the least that must be freed there.

        That is what fractions of nodes would cost. A further worker of a node costs no less than
        the first.
        """
        held = [max(table, default=0) for table in tables]
        ready = [*map(_now, tables)]
        prices = [next((step.price for step in _steps(table, 0)), 0.0) for table in tables]
        # What each further worker of a node costs at least.
        each = [
            (price,) * (most - now) for price, most, now in zip(prices, held, ready, strict=True)
        ]
        domains, workers = self.index.levels[way.level], way.demand.workers
        sums = zip(self.pool.sums(held, way.level), self.pool.sums(ready, way.level), strict=True)
        some = [(at, workers - now) for at, (most, now) in enumerate(sums) if most >= workers]
        for at, missing in some:
            least = 0.0
            if len(some) > 1 and missing > 0:
                groups = self.pool.groups_in(domains[at])
                costs = sorted(itertools.chain.from_iterable(map(each.__getitem__, groups)))
                least = sum(costs[:missing])
            yield max(1, math.ceil(least - 1e-9)), at

    def _gpus(self, group: int, way: Way) -> Table:
        """How many GPUs of a node must become free, by load."""
        node, one = self.pool.nodes[group], self._classes[group]
        most = min(room(self.request, node, free=count(_healthy(node))), self.request.workers)
        if not self.request.min_bandwidth:
            gpus = self.request.gpus
            return {load: max(0, load * gpus - node.free_count) for load in range(1, most + 1)}
        most -= most == self.request.workers and way.terms.hosts is not Hosts.NODE
        table: dict[int, int] = {}
        now = room(self.request, node)
        for load in range(1, most + 1):
            if load <= now and one.best(load, way.terms) >= self.request.min_bandwidth:
                table[load] = 0
            elif (chosen := self._chosen(node, load, way.terms)) is not None:
                table[load] = len(chosen)
        return table

    def _chosen(self, node: Node, load: int, terms: Terms) -> tuple[int | None, ...] | None:
        """The fewest GPUs whose release gives a load its bandwidth; None for one of any."""
        size, floor = load * self.request.gpus, self.request.min_bandwidth
        any_more = max(0, size - node.free_count)
        if 0 < any_more < node.unattributed:
            least = self.index.node_class(replace(node, unattributed=node.unattributed - any_more))
            if least.best(load, terms) >= floor:
                return (None,) * any_more
        whole = self.index.node_class(replace(node, free=_healthy(node), unattributed=0))
        if whole.best(load, terms) < floor:
            return None
        if whole.loads.by_count(whole.terms(terms)):
            return (None,) * any_more
        fast = self._fast_sets(whole, size, whole.terms(terms))
        chosen = min(fast, key=lambda one: (count(GPUSet(one & ~node.free)), members(one)))
        return (*members(GPUSet(chosen & ~node.free)), *(None,) * node.unattributed)

    def _fast_sets(self, one: NodeClass, size: int, terms: Terms) -> list[GPUSet]:
        """The sets of a size that have the bandwidth; of large machines some of them."""
        key = (one.loads, one.free, size, terms)
        if key not in self._fast:
            every = one.loads.choices(one.free, size, terms)
            if one.loads.sets.size <= SMALL:
                every = choices(one.free, size, range(SMALL))
            else:
                self._certain = False
            floor = self.request.min_bandwidth
            self._fast[key] = [some for some in every if one.loads.got(some, terms) >= floor]
        return self._fast[key]

    def _emptied(self, group: int, way: Way) -> Table:
        """Which loads a node takes once it has no other jobs and is well, by whether it must."""
        node, most = self.pool.nodes[group], self.request.workers
        most -= bool(self.request.min_bandwidth) and way.terms.hosts is not Hosts.NODE
        table: dict[int, int] = {}
        for cost, state in ((1, node.idle()), (0, node)):
            one = self.index.node_class(state)
            for load in range(1, min(most, room(self.request, state)) + 1):
                if one.best(load, way.terms) >= self.request.min_bandwidth:
                    table[load] = cost
        return table

    # In words

    def _named(self, found: Release) -> Iterator[tuple[Node, _Pick]]:
        """The nodes of which something must become free, by cost and name."""
        nodes = self.pool.nodes
        picks = sorted(
            (pick for pick in found.picks if pick.cost),
            key=lambda pick: (-pick.cost, natural(nodes[pick.group].name)),
        )
        assert found.domain is not None, "what was found is somewhere"
        passed: Counter[int] = Counter()
        for pick in picks:
            start = passed[pick.group]
            passed[pick.group] += pick.times
            some = self.pool.members(pick.group, found.domain)
            for node in itertools.islice(some, start, start + pick.times):
                yield node, pick

    def _released(self, found: Release) -> str:
        """How many more GPUs of which nodes are free; most of a node first."""
        picks = [pick for pick in found.picks if pick.cost]
        many = sum(pick.times for pick in picks)
        shown = list(itertools.islice(self._named(found), MOST_NAMES))
        nodes = self.pool.nodes
        if many > 1 and all(pick.cost == _in_use(nodes[pick.group]) for pick in picks):
            return f"all GPUs of {_names([node.name for node, _ in shown], many)} are free"
        parts = [
            self._some(node, pick, found, first=not at) for at, (node, pick) in enumerate(shown)
        ]
        if many > len(shown):
            rest = found.cost - sum(pick.cost for _, pick in shown)
            parts.append(f"{rest} of {counted(many - len(shown), 'more node')}")
        return f"{_listed(parts)} {'is' if found.cost == 1 else 'are'} free"

    def _some(self, node: Node, pick: _Pick, found: Release, *, first: bool) -> str:
        """The GPUs of a node to free, by index where it matters which."""
        where = node.name if not first or node.name.startswith("node") else f"node {node.name}"
        chosen: tuple[int | None, ...] | None = None
        if self.request.min_bandwidth and found.way is not None:
            chosen = self._chosen(node, pick.load, found.way.terms)
        named = [str(one) for one in chosen or () if one is not None]
        if len(named) == pick.cost < _in_use(node):
            return f"GPU{'s' * (len(named) > 1)} {_listed(named)} of {where}"
        return f"{counted(pick.cost, 'more GPU') if first else pick.cost} of {where}"

    def _recovered(self, found: Release) -> str:
        """What must become of nodes: `a and b are free of other jobs and uncordoned`."""
        nodes = [node for node, _ in self._named(found)]
        names = sorted((node.name for node in nodes), key=natural)
        states = _listed([*dict.fromkeys(itertools.chain.from_iterable(map(_recovery, nodes)))])
        listed = _names(names[:MOST_NAMES], len(names))
        return f"{listed} {'is' if len(names) == 1 else 'are'} {states}"


def _of_kind(tables: Sequence[Table], kinds: Sequence[Kind], kind: Kind) -> list[Table]:
    return [table if own == kind else {} for table, own in zip(tables, kinds, strict=True)]


def _in_use(node: Node) -> int:
    """The GPUs of a node that are not free."""
    return len(node.machine.gpus) - node.free_count


def _recovery(node: Node) -> tuple[str, ...]:
    """What a node lacks until it is well."""
    if node.unavailable is not None:
        return ("uncordoned",) if node.unavailable == "cordoned" else ("ready",)
    well = _healthy(node) == node.machine.everything
    return ("free of other jobs",) if well else ("free of other jobs", "healthy")


def _healthy(node: Node) -> GPUSet:
    """The GPUs of a node that work, whoever uses them."""
    return GPUSet(node.healthy | node.free)


def _names(shown: Sequence[str], many: int) -> str:
    return _listed([*shown, f"{many - len(shown)} more"] if many > len(shown) else shown)


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def counted(number: int, word: str) -> str:
    """A number with its word: `1 node`, `2 nodes`."""
    return f"{number} {word}{'s' if number != 1 else ''}"


# ---------------------------------------------------------------- the knapsack


class _Step(NamedTuple):
    """A cheapest way to more workers on a node: cost of each, up to this load, from which load."""

    price: float
    of: int
    start: int
    stop: int


def _steps(table: Table, of: int) -> Iterator[_Step]:
    """The lower convex hull of a table, from what a node takes now."""
    start, paid = _now(table), 0
    loads = [load for load in table if load > start]
    while loads:
        price, stop = min(((table[load] - paid) / (load - start), -load) for load in loads)
        yield _Step(price, of, start, -stop)
        start, paid = -stop, table[-stop]
        loads = [load for load in loads if load > start]


def _now(table: Table) -> int:
    return max((load for load in table if not table[load]), default=0)


def cheapest(offers: Sequence[Offer], workers: int, most: int, least: int = 1) -> Release | None:
    """The least to free so that so many nodes, from `least` to `most`, take all workers."""
    found = _greedy(offers, workers)
    if (
        found is not None
        and found.proven
        and least <= sum(one.times for one in found.picks) <= most
    ):
        return found
    exact = _programmed(offers, workers, least, most)
    if exact is not None or least > 1:
        return exact
    # Of the nodes that take most now, as many as may be used: enough, if not the least.
    ordered = sorted(offers, key=lambda one: (-_now(one.table), -max(one.table)))
    found = _greedy(_first_nodes(ordered, most), workers)
    return None if found is None else found._replace(proven=False)


def _first_nodes(offers: Sequence[Offer], most: int) -> Iterator[Offer]:
    """The first so many nodes."""
    for one in offers:
        if most > 0:
            yield one._replace(many=min(most, one.many))
            most -= one.many


def _greedy(offers: Iterable[Offer], workers: int) -> Release | None:
    """Take the cheapest steps of all nodes until all workers have a place.

    That is the least where it is no more than the steps cost as fractions.
    """
    every = list(offers)
    now = [_now(one.table) for one in every]
    missing = workers - sum(one.many * load for one, load in zip(every, now, strict=True))
    if missing < 0:
        # They have places, but not in these numbers.
        return None
    wanted, least = missing, 0.0
    taken = [[(load, one.many)] for one, load in zip(every, now, strict=True)]
    steps = (step for at, one in enumerate(every) for step in _steps(one.table, at))
    # Of steps of one price those of nodes that take workers already: fewer nodes to talk about.
    for step in sorted(steps, key=lambda step: (step.price, not step.start, step.of)):
        many, gain = every[step.of].many, step.stop - step.start
        more = min(wanted, many * gain)
        if not more:
            continue
        times, rest = divmod(more, gain)
        least, wanted = least + step.price * more, wanted - more
        taken[step.of] = [
            *((step.stop, times), (step.start + rest, int(rest > 0))),
            (step.start, many - times - int(rest > 0)),
        ]
    bound = math.ceil(least - 1e-9)
    picks = _picks(every, taken)
    possible = not wanted and all(pick.cost >= 0 for pick in picks)
    cost = sum(pick.cost * pick.times for pick in picks) if possible else bound
    for at, one in enumerate(every):
        # A single node reads better than several.
        if one.table.get(now[at] + missing, cost + 1) <= cost:
            taken = [[(load, other.many)] for other, load in zip(every, now, strict=True)]
            taken[at] = [(now[at], one.many - 1), (now[at] + missing, 1)]
            cost = one.table[now[at] + missing]
            return Release(cost, cost <= bound, _picks(every, taken))
    return Release(cost, cost <= bound, picks) if possible else None


def _picks(
    offers: Sequence[Offer], taken: Sequence[Sequence[tuple[int, int]]]
) -> tuple[_Pick, ...]:
    """The loads of the nodes, of cost -1 where a load is impossible."""
    return tuple(
        _Pick(one.group, load, one.table.get(load, -1), times)
        for one, some in zip(offers, taken, strict=True)
        for load, times in some
        if load and times
    )


def _programmed(offers: Sequence[Offer], workers: int, least: int, most: int) -> Release | None:
    """The least by dynamic programming over nodes; None where that takes too long or none does."""
    nodes = min(most, workers)
    # Beyond `least` it does not matter how many there are, but for the most.
    counted = nodes if most < workers else min(least, nodes)
    chosen: Counter[int] = Counter()
    for load in sorted({load for one in offers for load in one.table}):
        # Of as many nodes as may be used, the cheapest for a load, one is free for it.
        left = nodes
        asked = [at for at, one in enumerate(offers) if load in one.table]
        for at in sorted(asked, key=lambda at: offers[at].table[load]):
            chosen[at] = max(chosen[at], min(left, offers[at].many))
            left -= min(left, offers[at].many)
            if not left:
                break
    work = sum(chosen[at] * len(offers[at].table) for at in chosen) * workers
    if work * counted > WORK:
        return None
    reached: dict[tuple[int, int], tuple[int, tuple[Any, ...]]] = {(0, 0): (0, ())}
    for at in chosen.elements():
        for (used, held), (cost, chain) in list(reached.items()):
            for load, more in offers[at].table.items():
                state = (min(used + 1, counted) if most >= workers else used + 1, held + load)
                if state[1] > workers or state[0] > nodes:
                    continue
                if state not in reached or cost + more < reached[state][0]:
                    reached[state] = (cost + more, ((at, load), chain))
    ends = [reached[state] for state in reached if state[0] >= least and state[1] == workers]
    if not ends:
        return None
    cost, chain = min(ends, key=lambda end: end[0])
    loads: Counter[tuple[int, int]] = Counter()
    while chain:
        loads[chain[0]] += 1
        chain = chain[1]
    picks = [
        _Pick(offers[at].group, load, offers[at].table[load], times)
        for (at, load), times in loads.items()
    ]
    return Release(cost, True, tuple(picks))
