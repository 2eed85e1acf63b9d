"""Where a gang goes: the solver's policies, and schedulers that only count GPUs."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

from arena_topo.simulate import ReplayPolicy
from arena_topo.solver import Placement, Policy, Request, Seats
from arena_topo.solver.door import Solver
from arena_topo.topology import Node, members, natural_key


def policy_of_solver(policy: ReplayPolicy) -> Policy | None:
    """The policy of the solver; None for a scheduler that counts."""
    return Policy(policy.value) if policy.value in Policy._value2member_map_ else None


def choose_placement(
    policy: ReplayPolicy, request: Request, solver: Solver, rng: random.Random
) -> Placement | None:
    """The placement that a policy gives a gang now; None if it gives none."""
    if policy is ReplayPolicy.FIRST_FIT:
        return solver.first_fit(request)
    if policy_of_solver(policy) is not None:
        return solver.find(request)
    chosen = _random if policy is ReplayPolicy.RANDOM else _best_fit
    by_kind = defaultdict[tuple[str, str], list[tuple[Node, int]]](list)
    for node in solver.usable(request):
        if most := node.free_count // request.gpus:
            by_kind[node.machine.model or "", node.resource].append((node, most))
    for kind in sorted(by_kind):
        nodes = sorted(by_kind[kind], key=lambda pair: natural_key(pair[0].name))
        if sum(most for _, most in nodes) >= request.workers:
            return solver.value(request, chosen(nodes, request, rng))
    return None


def _random(nodes: Sequence[tuple[Node, int]], request: Request, rng: random.Random) -> Seats:
    """Each worker on a node chosen by chance among those with room, on any of its GPUs."""
    left = {node.name: rng.sample(members(node.free), len(members(node.free))) for node, _ in nodes}
    places = [node.name for node, most in nodes for _ in range(most)]
    chosen = sorted(rng.sample(places, request.workers), key=natural_key)
    counted = {node.name for node, _ in nodes if node.unattributed}
    return tuple(
        (name, () if name in counted else tuple(left[name].pop() for _ in range(request.gpus)))
        for name in chosen
    )


def _best_fit(nodes: Sequence[tuple[Node, int]], request: Request, _rng: random.Random) -> Seats:
    """The fullest node that holds all; else the nearest domain that does, its emptiest nodes first.

    So does Kueue's topology-aware scheduling (BestFit). GPUs of a node go by index.
    """
    pool = list(nodes)
    for depth in range(len(nodes[0][0].domains), 0, -1):
        if any(most >= request.workers for _, most in pool):
            break
        domains = defaultdict[tuple[str, ...], list[tuple[Node, int]]](list)
        for node, most in nodes:
            domains[node.domains[:depth]].append((node, most))
        rooms = [
            (sum(most for _, most in some), natural_key(path[-1]), path)
            for path, some in domains.items()
        ]
        holding = [room for room in rooms if room[0] >= request.workers]
        if holding:
            pool = domains[min(holding)[2]]
            break
    seats, left = [], request.workers
    pool.sort(key=lambda pair: (-pair[1], natural_key(pair[0].name)))
    while left:
        fitting = [pair for pair in pool if pair[1] >= left]
        node, most = min(fitting, key=lambda pair: pair[1]) if fitting else pool[0]
        pool.remove((node, most))
        number = min(left, most)
        left -= number
        gpus, each = members(node.free), request.gpus
        seats += [
            (node.name, () if node.unattributed else gpus[at * each : (at + 1) * each])
            for at in range(number)
        ]
    return tuple(seats)
