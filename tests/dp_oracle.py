"""What the best placement is worth on up to some 30 nodes in a few leaves, by dynamic programming.

Where brute force does not reach. At every bandwidth, the fastest first: by leaf the least price for
so many workers on so many nodes, then every choice of leaves. Prices come as they do in oracle.py;
for spreading they are `Spread.price`. Jobs without a preferred level, nodes without slow NICs.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator

from oracle import Set, Worth, distance_of, free_in_domains, joined, shape, sides, undominated

from arena_topo.solver import Policy, Request
from arena_topo.solver.policy import Spread, proximity
from arena_topo.topology import Cluster, GPUSet, Machine, Node, count

Options = list[tuple[Node, dict[int, list[Set]]]]
"""The nodes of a kind, each with its sets by the number of workers that they hold."""

Table = dict[tuple[int, int], int]
"""By workers held and nodes used: the least price."""

_spreads: dict[int, tuple[Machine, Spread]] = {}


def best_worth(request: Request, on: Cluster) -> Worth | None:
    """The fields of the best worth, in their order; None if there is no placement."""
    free = free_in_domains(on)
    found: list[Worth] = []
    for side in sides(request, on):
        options: Options = []
        for node, most in side:
            by_size = _sets(request, node)
            loads = range(1, min(most, request.workers) + 1)
            options.append((node, {load: by_size.get(load * request.gpus, []) for load in loads}))
        found += _alone(request, on, options, free)
        found += _apart(request, on, options, free)
    return min(found, default=None)


def _sets(request: Request, node: Node) -> dict[int, list[Set]]:
    if request.policy is Policy.PACK:
        return undominated(node)
    if id(node.machine) not in _spreads:
        table, _ = shape(node.machine)
        _spreads[id(node.machine)] = (node.machine, Spread(table, proximity(node.machine)))
    return _spread(_spreads[id(node.machine)][1], node.free, node.hidden)


@functools.cache
def _spread(prices: Spread, free: GPUSet, hidden: int) -> dict[int, list[Set]]:
    found: dict[int, list[Set]] = {}
    known = count(free) - hidden
    if hidden:
        for size in range(1, known + 1):
            speed = prices.sets.worst(free, size)
            found[size] = [(speed, prices.counted(known, size))]
        return found
    chosen = free
    while chosen:
        one = (prices.sets.value(chosen), prices.price(free, chosen))
        found.setdefault(count(chosen), []).append(one)
        chosen = GPUSet((chosen - 1) & free)
    return found


def _alone(
    request: Request, on: Cluster, options: Options, free: Counter[tuple[int, str]]
) -> Iterator[Worth]:
    """What each single node for the whole gang is worth, with each of its sets."""
    for node, by_load in options:
        for speed, price in by_load.get(request.workers, []):
            if speed >= request.min_bandwidth:
                broken = tuple(free[at] for at in reversed(list(enumerate(node.domains))))
                yield 0, -speed, 0, 1, (1,) * len(on.tiers), price, broken


def _apart(
    request: Request, on: Cluster, options: Options, free: Counter[tuple[int, str]]
) -> list[Worth]:
    """What every choice of leaves is worth at the highest bandwidth that several nodes reach."""
    speeds = {speed for _, by_load in options for sets in by_load.values() for speed, _ in sets}
    speeds |= {on.beyond, *(tier.bandwidth for tier in on.tiers)}
    farthest = len(on.tiers) + 1
    if request.required is not None:
        farthest = distance_of(request.required, on)
    for bandwidth in sorted(speeds - {math.inf}, reverse=True):
        found: list[Worth] = []
        for nodes, table in _choices(request, options, bandwidth):
            several = [
                (used, price)
                for (held, used), price in table.items()
                if held == request.workers and used > 1
            ]
            if not several or bandwidth < request.min_bandwidth:
                continue
            distance, network = joined([*nodes, nodes[0]], on)
            if network < bandwidth or distance > farthest:
                continue
            domains = [{node.domains[tier] for node in nodes} for tier in range(len(on.tiers))]
            broken = [sum(free[tier, name] for name in used) for tier, used in enumerate(domains)]
            used, price = min(several)
            counts = tuple(map(len, domains))
            found.append((0, -bandwidth, distance, used, counts, price, tuple(reversed(broken))))
        if found:
            return found
    return []


def _choices(
    request: Request, options: Options, bandwidth: float
) -> Iterator[tuple[list[Node], Table]]:
    """Every choice of leaves, all of them used: a node of each, and what they can hold."""
    tables: dict[tuple[str, ...], tuple[Node, Table]] = {}
    for node, by_load in options:
        one: Table = {(0, 0): 0}
        for load, sets in by_load.items():
            prices = [price for speed, price in sets if speed >= bandwidth]
            if prices:
                one[load, 1] = min(prices)
        first, before = tables.get(node.domains, (node, {(0, 0): 0}))
        tables[node.domains] = first, _both(request, before, one)
    chosen: list[tuple[list[Node], Table]] = [([], {(0, 0): 0})]
    for node, table in tables.values():
        del table[0, 0]
        chosen += [([*nodes, node], _both(request, before, table)) for nodes, before in chosen]
    yield from chosen[1:]


def _both(request: Request, one: Table, other: Table) -> Table:
    """The least prices of two parts together, within the job and its limit of nodes."""
    most = request.max_nodes or request.workers
    found: Table = {}
    for (held, used), price in one.items():
        for (more, others), asked in other.items():
            key = (held + more, used + others)
            if key[0] <= request.workers and key[1] <= most:
                found[key] = min(found.get(key, price + asked), price + asked)
    return found
