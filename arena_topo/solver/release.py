"""The smallest release: the fewest GPUs, else nodes, that others must free so that a gang fits.

GPUs are counted by what other jobs lose: a gang of which one worker ends ends whole. It is a
knapsack: each node has a table of the cost of each load, and the gang takes the cheapest loads. If
each further worker of a node costs no less than the one before (a convex table), the greedy choice
is optimal; the bound of the fractional knapsack proves it. Other small gangs are solved by dynamic
programming. Without a proof the answer is an example.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from arena_topo.solver import Request
from arena_topo.solver.classes import (
    ModelAndResource,
    NodeClass,
    NodeGroups,
    class_of,
    model_and_resource,
    refusal_reason,
    room,
)
from arena_topo.solver.domains import NodeLoad
from arena_topo.solver.gpu_sets import SMALL, choices
from arena_topo.solver.index import Domain
from arena_topo.solver.loads import Hosts, Terms
from arena_topo.solver.parts import searches_of
from arena_topo.solver.search import Way, outermost, outermost_of_parts
from arena_topo.topology import CORDONED, MOST_GPUS, GPUSet, Node, count, members, natural_key
from arena_topo.words import counted, listed

MAX_MESSAGE_NODES = 3
"""The most nodes that a message names."""

DOMAINS = 16
"""Domains of the network for which the knapsack is solved, the most promising first."""

MAX_STEPS = 60_000
"""The limit of steps of dynamic programming, some 30 ms."""

MAX_NODES_SEARCHED = 1_000
"""The most nodes whose jobs are looked at, some 20 ms; of more, each GPU counts alone."""

IMPOSSIBLE_RELEASE = 1 << 60
"""The cost of an impossible choice, above all others."""

ReleaseCosts = Mapping[int, int]
"""For each load (number of workers) of a node, the cost of the release; 0 if none is needed."""


class ReleaseOffer(NamedTuple):
    """A group of equal nodes: its number, how many nodes, and the cost table of each."""

    group: int
    many: int
    table: ReleaseCosts


class Release(NamedTuple):
    """The smallest release for a whole gang; `proven` unless a smaller one is possible.

    `loads` maps (group, workers) to the number of such nodes.
    """

    cost: int
    proven: bool
    loads: Mapping[tuple[int, int], int]
    way: Way | None = None
    domain: Domain | None = None
    tables: Sequence[ReleaseCosts] = ()
    seats: Sequence[NodeLoad] | None = None
    """The very nodes, if it matters which of equal ones (in which NVLink domains) they are."""


class Freeing:
    """The smallest release for a gang: the fewest GPUs, else the fewest nodes."""

    def __init__(self, request: Request, pool: NodeGroups) -> None:
        self.request = request
        self.index = pool.index
        self._sizes: Counter[str] = Counter()
        nodes = self.index.nodes.values()
        # Which GPUs of a node give a bandwidth is not a matter of their number.
        if len(nodes) <= MAX_NODES_SEARCHED and not request.min_bandwidth:
            for node in nodes:
                self._sizes.update({holder.job: holder.size for holder in node.holders})
            pool = pool.split(self._holdings)
        self.pool = pool
        self._kinds = [model_and_resource(node, mixed=request.mix_models) for node in pool.nodes]
        self._certain = True
        self._fast: dict[tuple[object, ...], list[GPUSet]] = {}

    def clause(self) -> str | None:
        """The release as it follows "fits": `when 2 more GPUs of node a are free`.

        None if GPUs are reserved that the gang could use: what is freed is for another gang first.
        """
        nodes = self.index.cluster.nodes
        if any(node.reserved and refusal_reason(self.request, node) is None for node in nodes):
            return None
        for costs, shown, clause in (
            (self._losses, self._gpus, self._released),
            (self._emptied, self._emptied, self._recovered),
        ):
            release = self._least(costs)
            # If the release is empty, the gang does not fit for another reason.
            if release is not None and release.cost and release.way is not None:
                way = release.way
                if release.seats is None:
                    tables = [shown(node, way) for node in self.pool.nodes]
                    release = release._replace(tables=tables)
                return f"{'when' if release.proven else 'for example when'} {clause(release)}"
        return None

    def _least(self, costs: Callable[[Node, Way], ReleaseCosts]) -> Release | None:
        """The smallest release over all distances and domains; None if no release is enough."""
        best: Release | None = None
        proven = True
        for way in outermost(self.request, self.index):
            tables = [costs(node, way) for node in self.pool.nodes]
            solved = 0
            for bound, at, kind in self._domains(way, tables):
                if best is not None and bound >= best.cost:
                    break
                domain = self.index.levels[way.level][at]
                offers = [
                    ReleaseOffer(group, nodes, tables[group])
                    for group, nodes in self.pool.counts_in(domain).items()
                    if tables[group] and self._kinds[group] == kind
                ]
                if best is not None and _bound(offers, way.demand.workers) >= best.cost:
                    continue
                if solved == DOMAINS:
                    proven = False
                    break
                solved += 1
                release = cheapest(offers, *way.demand)
                if release is not None:
                    proven = proven and release.proven
                    if best is None or release.cost < best.cost:
                        best = release._replace(way=way, domain=domain, tables=tables)
        if self.request.min_bandwidth:
            for release in self._of_parts(costs):
                proven = proven and release.proven
                if best is None or release.cost < best.cost:
                    best = release
        if best is None:
            return None
        return best._replace(proven=(proven and self._certain) or best.cost == 1)

    def _of_parts(self, costs: Callable[[Node, Way], ReleaseCosts]) -> Iterator[Release]:
        """The smallest releases for parts of the gang in several NVLink domains."""
        request, nodes = self.request, self.pool.nodes
        states = [self._class(node.idle()) for node in nodes]
        kinds = sorted({state.kind for state in states if state.domain})
        candidates = self.pool.as_candidates(states)
        for way in outermost_of_parts(request, self.index, kinds):
            tables = list(map(self._of_part(costs, way), nodes, states))
            counted = all(state.loads.by_count(way.terms) for state in states)
            for search in searches_of(
                candidates, way.kind, way.terms, way.level, known=False, costs=tables
            ):
                chosen = search.choice(request.min_bandwidth, way.demand.most)
                if chosen is not None:
                    choice, _ = chosen
                    loads = Counter((seat.of, seat.workers) for seat in choice.loads)
                    yield Release(
                        choice.cost,
                        search.exact and counted,
                        loads,
                        way,
                        None,
                        tables,
                        choice.loads,
                    )

    def _of_part(
        self, costs: Callable[[Node, Way], ReleaseCosts], way: Way
    ) -> Callable[[Node, NodeClass], ReleaseCosts]:
        """The costs of the loads of a node that is, or is in, a part of the gang."""

        def table(node: Node, state: NodeClass) -> ReleaseCosts:
            if refusal_reason(self.request, node) is not None and costs != self._emptied:
                return {}
            inside = way._replace(terms=_of_node(way, state))
            own = costs(node, inside)
            if state.loads.by_count(way.terms):
                return own
            # Its NICs are near some of the GPUs: all of them have the best.
            whole = 1 if costs == self._emptied else _in_use(node)
            usable = node.reserved is None and not node.unhealthy_count
            return dict.fromkeys(own, whole) if usable else {}

        return table

    def _domains(
        self, way: Way, tables: Sequence[ReleaseCosts]
    ) -> list[tuple[int, int, ModelAndResource]]:
        """The domains that may hold a gang, each with a lower bound of the cost there.

        It is a Lagrangian bound: `price`, the highest cost per worker of any node, times the
        workers, minus the largest gain (`price * load` minus the cost) of each node.
        """
        level, most = way.level, [max(table, default=0) for table in tables]
        price = max((t[load] / load for t, load in zip(tables, most, strict=True) if t), default=0)
        gains = [max((price * load - t[load] for load in t), default=0) for t in tables]
        bounds: list[tuple[int, int, ModelAndResource]] = []
        for kind in dict.fromkeys(self._kinds):
            own = [other == kind for other in self._kinds]
            loads = self.pool.sums([load * of for load, of in zip(most, own, strict=True)], level)
            saved = self.pool.sums([gain * of for gain, of in zip(gains, own, strict=True)], level)
            bounds += [
                (max(1, math.ceil(price * way.demand.workers - gained - 1e-9)), at, kind)
                for at, (workers, gained) in enumerate(zip(loads, saved, strict=True))
                if workers >= way.demand.workers
            ]
        return sorted(bounds)

    def _holdings(self, node: Node) -> tuple[tuple[int, int], ...]:
        """The GPUs of each job on a node, and on all nodes; a key of nodes with equal losses."""
        return tuple(sorted((holder.size, self._sizes[holder.job]) for holder in node.holders))

    def _losses(self, node: Node, way: Way) -> ReleaseCosts:
        """The cost by load: the GPUs that other jobs lose as a whole, then those to be freed."""
        table = self._gpus(node, way)
        if not self._sizes:
            return table
        losses = _losses(self._holdings(node), _in_use(node))
        return {load: losses[gpus] * MOST_GPUS + gpus for load, gpus in table.items()}

    def _gpus(self, node: Node, way: Way) -> ReleaseCosts:
        """The number of GPUs that a node must free, by load."""
        request = self.request
        most = min(room(request, node, free=_within_reach(node)), request.workers)
        if not request.min_bandwidth:
            free = node.free_count
            return {load: max(0, load * request.gpus - free) for load in range(1, most + 1)}
        most -= most == request.workers and way.terms.hosts is not Hosts.NODE
        table: dict[int, int] = {}
        now, node_class = room(request, node), self._class(node)
        if self._only_in_parts(node_class, way.terms):
            return table
        for load in range(1, most + 1):
            if load <= now and node_class.best(load, way.terms) >= request.min_bandwidth:
                table[load] = 0
            elif (chosen := self._chosen(node, load, way.terms)) is not None:
                table[load] = len(chosen)
        return table

    def _chosen(self, node: Node, load: int, terms: Terms) -> tuple[int | None, ...] | None:
        """The fewest GPUs whose release gives a load its bandwidth.

        None if no release of this node does; an entry of None in the result is any GPU.
        """
        size, floor = load * self.request.gpus, self.request.min_bandwidth
        any_more = max(0, size - node.free_count)
        if 0 < any_more < node.unattributed:
            least = self._class(replace(node, unattributed=node.unattributed - any_more))
            if least.best(load, terms) >= floor:
                return (None,) * any_more
        if node.reserved_unnamed:
            # Which GPUs others may free is not known.
            return None
        free = GPUSet((node.healthy | node.free) & ~node.reserved_gpus)
        healthy = self._class(replace(node, free=free, unattributed=node.broken))
        if healthy.best(load, terms) < floor:
            return None
        if node.broken or healthy.loads.by_count(healthy.terms(terms)):
            return (None,) * any_more
        fast = self._fast_sets(healthy, size, healthy.terms(terms))
        chosen = min(fast, key=lambda gpus: (count(GPUSet(gpus & ~node.free)), members(gpus)))
        return (*members(GPUSet(chosen & ~node.free)), *(None,) * node.unattributed)

    def _only_in_parts(self, nodes: NodeClass, terms: Terms) -> bool:
        """Whether such nodes are valued together, and not one by one as well."""
        return nodes.parts_of_a_host(terms) and nodes.kind not in self._off_the_switch

    @cached_property
    def _off_the_switch(self) -> set[ModelAndResource]:
        """The kinds with nodes of NVLink domains that have GPUs off the switch."""
        ranks = self.request.workers * self.request.gpus
        states = (self._class(node.idle()) for node in self.pool.nodes)
        return {state.kind for state in states if state.off_the_switch(ranks)}

    def _class(self, node: Node) -> NodeClass:
        mixed, blind = self.request.mix_models, self.request.blind
        capacity = room(self.request, node)
        return class_of(self.index, node, capacity=capacity, mixed=mixed, blind=blind)

    def _fast_sets(self, node_class: NodeClass, size: int, terms: Terms) -> list[GPUSet]:
        """The sets of a size that have the bandwidth; only some of them on large machines."""
        key = (node_class.loads, node_class.free, size, terms)
        if key not in self._fast:
            gpu_sets = node_class.loads.choices(node_class.free, size, terms)
            if node_class.loads.sets.size <= SMALL:
                gpu_sets = choices(node_class.free, size, range(SMALL))
            else:
                self._certain = False
            floor = self.request.min_bandwidth
            value = node_class.loads.rate
            self._fast[key] = [gpus for gpus in gpu_sets if value(gpus, terms) >= floor]
        return self._fast[key]

    def _emptied(self, node: Node, way: Way) -> ReleaseCosts:
        """The loads of a node: cost 1 if it must be idle and healthy for that, else 0."""
        most = self.request.workers
        most -= bool(self.request.min_bandwidth) and way.terms.hosts is not Hosts.NODE
        table: dict[int, int] = {}
        states = [(1, node.idle()), (0, node)][node.reserved is not None :]
        for cost, state in states:
            node_class = self._class(state)
            if self.request.min_bandwidth and self._only_in_parts(node_class, way.terms):
                continue
            for load in range(1, min(most, room(self.request, state)) + 1):
                if node_class.best(load, way.terms) >= self.request.min_bandwidth:
                    table[load] = cost
        return table

    # Words

    def _named(self, release: Release) -> Iterator[tuple[Node, int, int]]:
        """The nodes with a release, highest cost first, then by name; with the load of each."""
        nodes = self.pool.nodes
        if release.seats is not None:
            costs = [
                (release.tables[at].get(load, 0), node, load) for node, at, load in release.seats
            ]
            costs.sort(key=lambda pick: (-pick[0], natural_key(pick[1].name)))
            yield from ((node, load, cost) for cost, node, load in costs if cost)
            return
        assert release.domain is not None, "a release has a domain"
        picks = sorted(
            (-cost, natural_key(nodes[group].name), group, load, times)
            for (group, load), times in release.loads.items()
            if (cost := release.tables[group].get(load, 0))
        )
        domain = release.domain
        candidates = {group: self.pool.members(group, domain) for _, _, group, _, _ in picks}
        for cost, _, group, load, times in picks:
            for node in itertools.islice(candidates[group], times):
                yield node, load, -cost

    def _released(self, release: Release) -> str:
        """The GPUs to free on each node as a clause, most of them first."""
        named = list(self._named(release))
        shown, more = named[:MAX_MESSAGE_NODES], named[MAX_MESSAGE_NODES:]
        if len(named) > 1 and all(cost == _in_use(node) for node, _, cost in named):
            return f"all GPUs of {_names([node.name for node, _, _ in named])} are free"
        parts = [self._some(*pick, release, first=not at) for at, pick in enumerate(shown)]
        if more:
            gpus = sum(cost for _, _, cost in more)
            parts.append(f"{gpus} of {counted(len(more), 'more node')}")
        return f"{listed(parts)} {'is' if sum(cost for *_, cost in named) == 1 else 'are'} free"

    def _some(self, node: Node, load: int, cost: int, release: Release, *, first: bool) -> str:
        """The GPUs to free on one node, by index if the index matters."""
        where = node.name if not first or node.name.startswith("node") else f"node {node.name}"
        chosen: tuple[int | None, ...] | None = None
        if self.request.min_bandwidth and release.way is not None:
            terms = _of_node(release.way, class_of(self.index, node))
            chosen = self._chosen(node, load, terms)
        named = [str(gpu) for gpu in chosen or () if gpu is not None]
        if len(named) == cost < _in_use(node):
            return f"GPU{'s' * (len(named) > 1)} {listed(named)} of {where}"
        if own := _unreserved(node):
            which = f"GPUs {listed([str(gpu) for gpu in own])}"
            if len(own) > 1:
                return f"{which if len(own) == cost else f'{cost} of the {which}'} of {where}"
            return f"GPU {own[0]} of {where}"
        return f"{counted(cost, 'more GPU') if first else cost} of {where}"

    def _recovered(self, release: Release) -> str:
        """The recovery of nodes as a clause: `a and b are free of other jobs and uncordoned`."""
        nodes = [node for node, _, _ in self._named(release)]
        states = listed([*dict.fromkeys(itertools.chain.from_iterable(map(_recovery, nodes)))])
        names = _names(sorted((node.name for node in nodes), key=natural_key))
        return f"{names} {'is' if len(nodes) == 1 else 'are'} {states}"


def _of_node(way: Way, node_class: NodeClass) -> Terms:
    """The terms that decide which loads a node can have.

    In a part of the gang, NVLink must join them; the NICs count together.
    """
    part = way.parts and node_class.domain
    return way.terms._replace(hosts=Hosts.DOMAIN) if part else way.terms


def _in_use(node: Node) -> int:
    """The GPUs of a node that are not free."""
    return len(node.machine.gpus) - node.free_count


@lru_cache(maxsize=4096)
def _losses(holdings: tuple[tuple[int, int], ...], in_use: int) -> list[int]:
    """The fewest GPUs that jobs lose in all, by the number of GPUs of a node that become free.

    `holdings` are the GPUs of each job on the node, and on all nodes. GPUs in use by others count
    one by one.
    """
    others = max(0, in_use - sum(here for here, _ in holdings))
    least = [0] + [IMPOSSIBLE_RELEASE] * in_use
    for here, size in (*holdings, *[(1, 1)] * others):
        for freed in range(in_use, 0, -1):
            least[freed] = min(least[freed], least[max(0, freed - here)] + size)
    return least


def _unreserved(node: Node) -> tuple[int, ...]:
    """The GPUs in use of a node that others may free for a gang, if not all of them are.

    Empty if no GPU in use is reserved, or if it is not known which GPUs are in use.
    """
    if node.reserved is None or node.unattributed:
        return ()
    in_use, reserved = node.healthy & ~node.unreserved.free, node.reserved_gpus
    return members(GPUSet(in_use & ~reserved)) if in_use & reserved else ()


def _recovery(node: Node) -> tuple[str, ...]:
    """The states that a node must reach to be usable."""
    if node.unavailable is not None:
        return ("uncordoned",) if node.unavailable == CORDONED else ("ready",)
    used = node.foreign or node.free_count < node.healthy_count
    used = used or (node.cpu, node.memory) != (node.all_cpu, node.all_memory)
    states = {"free of other jobs": used, "healthy": node.unhealthy_count > 0}
    return tuple(state for state, needed in states.items() if needed)


def _within_reach(node: Node) -> int:
    """The number of GPUs that a node can have free for a gang, once others have ended."""
    return node.healthy_count - count(node.reserved_gpus) - node.reserved_unnamed


def _names(names: Sequence[str]) -> str:
    shown, more = names[:MAX_MESSAGE_NODES], len(names) - MAX_MESSAGE_NODES
    return listed([*shown, f"{more} more"] if more > 0 else shown)


# ---------------------------------------------------------------- the knapsack


class _Step(NamedTuple):
    """An edge of the convex hull: from load `start` to `stop` at a price per worker."""

    price: float
    new: bool
    """Whether the node has no worker before: at equal prices, fewer nodes are named."""
    of: int
    start: int
    stop: int


def _steps(table: ReleaseCosts, of: int) -> Iterator[_Step]:
    """The lower convex hull of a table, from the node's load without a release."""
    start, paid = _now(table), 0
    while loads := [load for load in table if load > start]:
        price, stop = min(((table[load] - paid) / (load - start), -load) for load in loads)
        yield _Step(price, not start, of, start, -stop)
        start, paid = -stop, table[-stop]


def _now(table: ReleaseCosts) -> int:
    return max((load for load in table if not table[load]), default=0)


def _bound(offers: Sequence[ReleaseOffer], workers: int) -> int:
    """A lower bound of the cost: the fractional knapsack over the cheapest steps."""
    missing = workers - sum(offer.many * _now(offer.table) for offer in offers)
    steps = sorted(step for at, offer in enumerate(offers) for step in _steps(offer.table, at))
    least = 0.0
    for step in steps:
        if missing <= 0:
            break
        taken = min(missing, offers[step.of].many * (step.stop - step.start))
        least, missing = least + step.price * taken, missing - taken
    return math.ceil(least - 1e-9)


def cheapest(
    offers: Sequence[ReleaseOffer], workers: int, most: int, least: int = 1
) -> Release | None:
    """The smallest release so that between `least` and `most` nodes hold all workers."""
    release = _greedy(offers, workers)
    if release is not None and not least <= sum(release.loads.values()) <= most:
        release = None
    if release is not None and release.proven:
        return release
    return _programmed(offers, workers, least, most) or release


def _greedy(offers: Sequence[ReleaseOffer], workers: int) -> Release | None:
    """Greedy choice: the cheapest steps until all workers have a place, or a single node."""
    now = Counter({(at, _now(offer.table)): offer.many for at, offer in enumerate(offers)})
    missing = workers - sum(load * nodes for (_, load), nodes in now.items())
    if missing < 0:
        # The workers have places, but not on this combination of loads.
        return None
    loads, remaining = Counter(now), missing
    for step in sorted(step for at, offer in enumerate(offers) for step in _steps(offer.table, at)):
        gain, nodes = step.stop - step.start, loads[step.of, step.start]
        whole = min(nodes, remaining // gain)
        part = remaining - whole * gain if whole < nodes else 0
        loads[step.of, step.start] -= whole + bool(part)
        loads[step.of, step.stop] += whole
        loads[step.of, step.start + part] += bool(part)
        remaining -= whole * gain + part
    taken = [(offers[at], load, nodes) for (at, load), nodes in loads.items() if load and nodes]
    cost = IMPOSSIBLE_RELEASE
    if not remaining and all(load in offer.table for offer, load, _ in taken):
        cost = sum(offer.table[load] * nodes for offer, load, nodes in taken)
    # At equal cost a single node: a person has fewer jobs to wait for.
    singles = (
        (offers[at].table.get(load + missing, IMPOSSIBLE_RELEASE), at, load) for at, load in now
    )
    least, at, load = min(singles, default=(IMPOSSIBLE_RELEASE, 0, 0))
    if min(least, cost) == IMPOSSIBLE_RELEASE:
        return None
    if least <= cost:
        cost, loads = least, now
        loads[at, load] -= 1
        loads[at, load + missing] += 1
    by_group = {
        (offers[at].group, load): nodes for (at, load), nodes in loads.items() if load and nodes
    }
    return Release(cost, cost <= _bound(offers, workers), by_group)


def _programmed(
    offers: Sequence[ReleaseOffer], workers: int, least: int, most: int
) -> Release | None:
    """The optimum by dynamic programming over nodes; None if it takes too long or none exists."""
    nodes = min(most, workers)
    # The number of nodes matters only up to `least`, unless `most` limits it.
    counts = nodes if most < workers else min(least, nodes)
    chosen: Counter[int] = Counter()
    for load in sorted({load for offer in offers for load in offer.table}):
        # For each load the cheapest nodes, as many as may be used: one of them is always available.
        remaining = nodes
        useful = [at for at, offer in enumerate(offers) if load in offer.table]
        for at in sorted(useful, key=lambda at: offers[at].table[load]):
            chosen[at] = max(chosen[at], min(remaining, offers[at].many))
            remaining -= min(remaining, offers[at].many)
    work = sum(times * len(offers[at].table) for at, times in chosen.items()) * workers
    if work * counts > MAX_STEPS:
        return None
    # At equal cost the fewest nodes with a release.
    reached: dict[tuple[int, int], tuple[int, int, tuple[Any, ...]]] = {(0, 0): (0, 0, ())}
    for at in chosen.elements():
        for (used, placed), (cost, named, chain) in list(reached.items()):
            for load, more in offers[at].table.items():
                state = (min(used + 1, counts) if most >= workers else used + 1, placed + load)
                if state[1] > workers or state[0] > nodes:
                    continue
                price = (cost + more, named + bool(more))
                if state not in reached or price < reached[state][:2]:
                    reached[state] = (*price, ((offers[at].group, load), chain))
    ends = [reached[state] for state in reached if state[0] >= least and state[1] == workers]
    if not ends:
        return None
    cost, _, chain = min(ends, key=lambda end: end[:2])
    loads: Counter[tuple[int, int]] = Counter()
    while chain:
        loads[chain[0]] += 1
        chain = chain[1]
    return Release(cost, True, loads)
