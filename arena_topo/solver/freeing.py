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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from arena_topo.solver.classes import Domain, Group, room
from arena_topo.solver.counting import LISTED, View, Way
from arena_topo.solver.gpu_sets import choices
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

Tables = Sequence[tuple[Group, Table]]
Costs = Callable[[Group, Way], Table]


class _Pick(NamedTuple):
    """So many nodes of a group take so many workers each, for which so much must be freed."""

    group: Group
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

    def __init__(self, request: Request, view: View, idle: View) -> None:
        self.request = request
        self.view = view
        self.idle = idle
        self._certain = True
        self._fast: dict[tuple[object, ...], list[GPUSet]] = {}

    def words(self) -> str | None:
        """What to free, as it follows "fits": `when 2 more GPUs of node a are free`."""
        found = self._least(self._gpus)
        if found is not None:
            return f"{_when(found)} {self._released(found)}"
        found = self._least(self._nodes)
        return None if found is None else f"{_when(found)} {self._recovered(found)}"

    def _least(self, costs: Costs) -> Release | None:
        """The least to free, over all ways and domains; None where nothing is enough."""
        best: Release | None = None
        proven = True
        workers, kinds = self.request.workers, self.view.kinds(self.request)
        for way in self.view.ways(self.request):
            every = [costs(group, way) for group in self.view.groups]
            own = [
                [table if at in kind else {} for at, table in enumerate(every)] for kind in kinds
            ]
            bounds = (
                (bound, at, kind)
                for kind, tables in enumerate(own)
                for bound, at in self._bounds(way, tables)
            )
            for tried, (bound, at, kind) in enumerate(heapq.nsmallest(DOMAINS + 1, bounds)):
                if best is not None and bound >= best.cost:
                    break
                if tried == DOMAINS:
                    proven = False
                    break
                some = [
                    (self.view.groups[of]._replace(many=many), own[kind][of])
                    for of, many in self.view.where.counts(way.depth, at).items()
                    if own[kind][of]
                ]
                found = cheapest(some, workers, way.most, least=way.least)
                if found is None:
                    continue
                proven = proven and found.proven
                if best is None or found.cost < best.cost:
                    domain = self.view.where.domains(way.depth)[at]
                    best = found._replace(way=way, domain=domain)
        if best is None:
            return None
        return best._replace(proven=(proven and self._certain) or best.cost == 1)

    def _bounds(self, way: Way, tables: Sequence[Table]) -> Iterator[tuple[int, int]]:
        """The domains that may hold a gang, each after the least that must be freed there."""
        where, workers = self.view.where, self.request.workers
        held = where.totals([max(table, default=0) for table in tables], way.depth)
        missing = [workers - now for now in where.totals(list(map(_now, tables)), way.depth)]
        least = [0.0] * len(missing)
        spread = where.spread(way.depth)
        # Further workers of a node cost no less than the first.
        firsts = sorted(step for at, one in enumerate(tables) for step in [*_steps(one, at)][:1])
        for step in firsts:
            gain = max(tables[step.of]) - step.start
            for at, many in spread[step.of].items():
                if missing[at] > 0:
                    taken = min(missing[at], gain * many)
                    least[at] += step.price * taken
                    missing[at] -= taken
        for at, most in enumerate(held):
            if most >= workers:
                yield max(1, math.ceil(least[at] - 1e-9)), at

    def _gpus(self, group: Group, way: Way) -> Table:
        """How many GPUs of a node must become free, by load."""
        request, node = self.request, group.node
        most = min(room(request, node, free=count(_healthy(node))), request.workers)
        if way.terms is None:
            return {
                load: max(0, load * request.gpus - node.free_count) for load in range(1, most + 1)
            }
        table: dict[int, int] = {}
        most = min(most, request.workers - (way.terms.hosts is not Hosts.NODE))
        now = set(self.view.loads(group, request, way))
        for load in range(1, most + 1):
            if load in now:
                table[load] = 0
            elif (chosen := self._chosen(node, load, way.terms)) is not None:
                table[load] = len(chosen)
        return table

    def _chosen(self, node: Node, load: int, terms: Terms) -> tuple[int | None, ...] | None:
        """The fewest GPUs whose release gives a load its bandwidth; None for one of any."""
        size, floor = load * self.request.gpus, self.request.min_bandwidth
        any_more = max(0, size - node.free_count)
        if 0 < any_more < node.hidden:
            least = self.view.index.class_of(replace(node, hidden=node.hidden - any_more))
            if least.best(load, terms) >= floor:
                return (None,) * any_more
        whole = self.view.index.class_of(replace(node, free=_healthy(node), hidden=0))
        if self.view.speed(whole, load, terms) < floor:
            return None
        terms = whole.terms(terms)
        if whole.loads.by_count(terms):
            return (None,) * any_more
        key = (whole.loads, whole.free, size, terms)
        fast = self._fast.get(key)
        if fast is None:
            listed = whole.sets.size <= LISTED
            self._certain = self._certain and listed
            every = (
                choices(whole.free, size, tuple(range(whole.sets.size)))
                if listed
                else whole.sets.near(whole.free, size)
            )
            fast = [one for one in every if whole.loads.got(one, terms) >= floor]
            self._fast[key] = fast
        if not fast:
            return None
        chosen = min(fast, key=lambda one: (count(GPUSet(one & ~node.free)), members(one)))
        return (*members(GPUSet(chosen & ~node.free)), *(None,) * node.hidden)

    def _nodes(self, group: Group, way: Way) -> Table:
        """Which loads a node takes once it has no other jobs and is well, by whether it must."""
        well = group._replace(node=group.node.idle())
        now = set(self.view.loads(group, self.request, way))
        some = now.union(self.idle.loads(well, self.request, way))
        return {load: int(load not in now) for load in sorted(some) if load <= self.request.workers}

    # In words

    def _named(self, found: Release) -> Iterator[tuple[Node, _Pick]]:
        """The nodes of which something must become free, by cost and name."""
        picks = sorted(
            (pick for pick in found.picks if pick.cost),
            key=lambda pick: (-pick.cost, natural(pick.group.node.name)),
        )
        passed: Counter[int] = Counter()
        assert found.domain is not None, "what was found is somewhere"
        for pick in picks:
            nodes = self.view.where.nodes(pick.group, found.domain)
            start = passed[pick.group.number]
            passed[pick.group.number] += pick.times
            for node in itertools.islice(nodes, start, start + pick.times):
                yield node, pick

    def _released(self, found: Release) -> str:
        """How many more GPUs of which nodes are free; most of a node first."""
        picks = [pick for pick in found.picks if pick.cost]
        many = sum(pick.times for pick in picks)
        shown = list(itertools.islice(self._named(found), MOST_NAMES))
        every = all(
            pick.cost == len(pick.group.node.machine.gpus) - pick.group.node.free_count
            for pick in picks
        )
        if every and many > 1:
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
        assert found.way is not None, "what was found has its way"
        where = node.name if not first or node.name.startswith("node") else f"node {node.name}"
        terms = found.way.terms
        chosen = (None,) if terms is None else self._chosen(node, pick.load, terms) or (None,)
        named = [str(one) for one in chosen if one is not None]
        held = len(node.machine.gpus) - node.free_count
        if named and len(named) == pick.cost and pick.cost < held:
            return f"GPU{'s' * (len(named) > 1)} {_listed(named)} of {where}"
        return f"{counted(pick.cost, 'more GPU') if first else pick.cost} of {where}"

    def _recovered(self, found: Release) -> str:
        """What must become of nodes: `a and b are free of other jobs, and c is uncordoned`."""
        some: dict[str, list[str]] = {}
        for node, _ in self._named(found):
            some.setdefault(_recovery(node), []).append(node.name)
        parts = []
        for well in sorted(some, key=_ORDER.index):
            names = sorted(some[well], key=natural)
            listed = _names(names[:MOST_NAMES], len(names))
            are = "is" if len(names) == 1 else "are"
            parts.append(
                f"all GPUs of {listed} are {well}" if well == _HEALTHY else f"{listed} {are} {well}"
            )
        return ", and ".join(parts)


_FREE, _HEALTHY = "free of other jobs", "free and healthy"
_ORDER = (_FREE, _HEALTHY, "uncordoned", "ready")


def _recovery(node: Node) -> str:
    """What a node lacks until it is well."""
    if node.unavailable is not None:
        return "uncordoned" if node.unavailable == "cordoned" else "ready"
    return _FREE if _healthy(node) == node.machine.everything else _HEALTHY


def _healthy(node: Node) -> GPUSet:
    """The GPUs of a node that work, whoever uses them."""
    healthy = node.machine.everything if node.allocatable is None else node.allocatable
    return GPUSet(healthy | node.free)


def _when(found: Release) -> str:
    return "when" if found.proven else "for example when"


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


def cheapest(tables: Tables, workers: int, most: int, *, least: int = 1) -> Release | None:
    """The least to free so that so many nodes, from `least` to `most`, take all workers."""
    largest = max(max(table) for _, table in tables)
    limited = most < min(workers, sum(group.many for group, _ in tables))
    ordered = sorted(tables, key=lambda one: _row(one[1], largest)) if limited else tables
    rows = [_row(table, largest) for _, table in ordered] if limited else []
    # Where each node is as good as the next at every load, the first are the best.
    best_first = all(
        one <= other
        for row, later in itertools.pairwise(rows)
        for one, other in zip(row, later, strict=True)
    )
    found = _greedy(_first_nodes(ordered, most), workers) if limited else _greedy(tables, workers)
    if found is not None and sum(pick.times for pick in found.picks) < least:
        found = None
    if found is not None and found.proven and best_first:
        return found
    exact = _programmed(tables, workers, least, most)
    return exact or (None if found is None else found._replace(proven=False))


def _row(table: Table, largest: int) -> list[float]:
    return [table.get(load, math.inf) for load in range(1, largest + 1)]


def _first_nodes(tables: Tables, most: int) -> list[tuple[Group, Table]]:
    """The first so many nodes."""
    some: list[tuple[Group, Table]] = []
    for group, table in tables:
        if most > 0:
            some.append((group._replace(many=min(most, group.many)), table))
            most -= group.many
    return some


def _greedy(tables: Tables, workers: int) -> Release | None:
    """Take the cheapest steps of all nodes until all workers have a place.

    That is the least where it is no more than the steps cost as fractions.
    """
    now = [_now(table) for _, table in tables]
    missing = workers - sum(group.many * load for (group, _), load in zip(tables, now, strict=True))
    if missing < 0:
        # They have places, but not in these numbers.
        return None
    wanted, least = missing, 0.0
    taken = [[(load, group.many)] for (group, _), load in zip(tables, now, strict=True)]
    for step in sorted(step for at, (_, table) in enumerate(tables) for step in _steps(table, at)):
        if wanted <= 0:
            break
        many, gain = tables[step.of][0].many, step.stop - step.start
        more = min(wanted, many * gain)
        times, rest = divmod(more, gain)
        least, wanted = least + step.price * more, wanted - more
        partly = int(rest > 0)
        taken[step.of] = [
            *((step.stop, times), (step.start + rest, partly)),
            (step.start, many - times - partly),
        ]
    bound = math.ceil(least - 1e-9)
    picks = _picks(tables, taken)
    cost = sum(pick.cost * pick.times for pick in picks)
    impossible = wanted > 0 or any(pick.cost < 0 for pick in picks)
    for at, (group, table) in enumerate(tables):
        # A single node reads better than several.
        alone = table.get(now[at] + missing, math.inf)
        if alone <= (bound if impossible else cost):
            taken = [[(load, one.many)] for (one, _), load in zip(tables, now, strict=True)]
            taken[at] = [(now[at], group.many - 1), (now[at] + missing, 1)]
            return Release(int(alone), alone <= bound, _picks(tables, taken))
    return None if impossible else Release(cost, cost <= bound, picks)


def _picks(tables: Tables, taken: Sequence[Sequence[tuple[int, int]]]) -> tuple[_Pick, ...]:
    """The loads of the nodes, of cost -1 where a load is impossible."""
    return tuple(
        _Pick(group, load, table.get(load, -1), times)
        for (group, table), some in zip(tables, taken, strict=True)
        for load, times in some
        if load and times
    )


def _programmed(tables: Tables, workers: int, least: int, most: int) -> Release | None:
    """The least by dynamic programming over nodes; None where that takes too long or none does."""
    nodes = min(most, workers)
    # Beyond `least` it does not matter how many there are, but for the most.
    counted = nodes if most < workers else min(least, nodes)
    chosen: Counter[int] = Counter()
    for load in sorted({load for _, table in tables for load in table}):
        # Of as many nodes as may be used, the cheapest for a load, one is free for it.
        left = nodes
        asked = [at for at, (_, table) in enumerate(tables) if load in table]
        for at in sorted(asked, key=lambda at: tables[at][1][load]):
            some = min(left, tables[at][0].many)
            chosen[at] = max(chosen[at], some)
            left -= some
            if not left:
                break
    work = sum(chosen[at] * len(tables[at][1]) for at in chosen) * workers
    if work * counted > WORK:
        return None
    reached: dict[tuple[int, int], tuple[int, tuple[Any, ...]]] = {(0, 0): (0, ())}
    for at in chosen.elements():
        for (used, held), (cost, chain) in list(reached.items()):
            for load, more in tables[at][1].items():
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
        _Pick(tables[at][0], load, tables[at][1][load], times)
        for (at, load), times in loads.items()
    ]
    return Release(cost, True, tuple(picks))
