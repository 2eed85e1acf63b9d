"""Rings through a set of GPUs: how many fit side by side and which, and the best single one.

Exact within the stated effort; only links and lanes come in, no rates of any model.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

from arena_topo.topology import GPUSet, LinkKind, Matrix, members


def lanes(links: Matrix) -> list[list[int]]:
    """NVLink lanes between every two GPUs; 0 where there are none."""
    return [
        [link.lanes if link is not None and link.kind is LinkKind.NVLINK else 0 for link in row]
        for row in links
    ]


def components(gpus: Iterable[int], joined: Callable[[int, int], bool]) -> list[frozenset[int]]:
    """The groups of GPUs that links join, directly or over others, in the order of indexes."""
    left = set(gpus)
    found: list[frozenset[int]] = []
    while left:
        frontier = [min(left)]
        group = set(frontier)
        while frontier:
            gpu = frontier.pop()
            near = {other for other in left - group if joined(gpu, other)}
            group |= near
            frontier += near
        left -= group
        found.append(frozenset(group))
    return found


Edge = tuple[int, int]

Ring = tuple[int, ...]
"""GPUs in the order of a ring, each joined to the next and the last to the first."""

EFFORT = 20_000
"""Steps spent on one way to lay rings for a picture; a DGX-1 takes fewer than 2,000."""


def most_rings(multiplicity: Sequence[Sequence[int]], gpus: GPUSet) -> int:
    """The most NVLink rings through all of a set (3 or more GPUs) that share no lane; exact."""
    return ring_bounds(multiplicity, gpus)[0]


def ring_bounds(
    multiplicity: Sequence[Sequence[int]], gpus: GPUSet, *, effort: int | None = None
) -> tuple[int, int, int]:
    """How many rings that share no lane are found through a set of 3 or more, and how many may be.

    The third number is the steps that it took; past `effort` the search ends, else both numbers
    are the same. Every ring takes two lanes at each GPU and across each cut, which bounds them.
    Rings are first laid greedily over the widest links, then tried in all combinations.
    """
    inside = members(gpus)
    lanes_of = [[multiplicity[one][other] for other in inside] for one in inside]
    size = len(inside)
    degree = [sum(row) for row in lanes_of]
    limit = min(degree) // 2
    if limit == 0:
        return 0, 0, 1
    if len({lanes_of[one][other] for one in range(size) for other in range(one)}) == 1:
        # A full mesh, each link n-fold, falls apart into rings and at most one perfect matching
        # (Walecki in Lucas 1892; n-fold: Bryant, Horsley, Maenhaut, Smith 2011).
        return limit, limit, 1
    budget = Budget(effort)
    most = min(limit, _least_cut(lanes_of) // 2)
    least = 0
    for turn in range(size):
        least = max(least, len(_laid(lanes_of, most, turn, budget)))
        if least == most:
            return least, most, budget.used
    rings = _rings(lanes_of, budget)
    while least < most and not budget.spent:
        if _Packing(lanes_of, rings, budget).holds(most):
            least = most
        elif not budget.spent:
            most -= 1
    return least, most, budget.used


def _take(lanes_of: list[list[int]], ring: Sequence[int]) -> None:
    """Take a lane of each link of a ring."""
    for one, other in itertools.pairwise((*ring, ring[0])):
        lanes_of[one][other] -= 1
        lanes_of[other][one] -= 1


def _edges(ring: Ring) -> list[Edge]:
    return [(min(a, b), max(a, b)) for a, b in itertools.pairwise((*ring, ring[0]))]


class Budget:
    """Steps that a search may take; without a limit it only counts them."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.used = 0

    @property
    def spent(self) -> bool:
        """Whether the search had to stop."""
        return self.limit is not None and self.used >= self.limit

    def step(self) -> bool:
        """Take a step; whether there was one left."""
        if self.spent:
            return False
        self.used += 1
        return True


def _laid(lanes_of: list[list[int]], limit: int, turn: int, budget: Budget) -> list[Ring]:
    """Rings that are laid one after the other, each over the links with most lanes left.

    They start at GPU `turn`, and of equal links the first one after it is taken.
    """
    size = len(lanes_of)
    left = [list(row) for row in lanes_of]
    order = [*range(turn, size), *range(turn)]
    tries = Budget(GREEDY)

    def walk(path: list[int], visited: int) -> bool:
        row = left[path[-1]]
        if len(path) == size:
            return row[turn] > 0
        for gpu in sorted(order, key=row.__getitem__, reverse=True):
            if not row[gpu]:
                return False
            if not visited >> gpu & 1:
                if not (tries.step() and budget.step()):
                    return False
                path.append(gpu)
                if walk(path, visited | 1 << gpu):
                    return True
                path.pop()
        return False

    laid: list[Ring] = []
    while len(laid) < limit and walk(path := [turn], 1 << turn):
        laid.append(tuple(path))
        _take(left, path)
    return laid


GREEDY = 200
"""Steps after which greedy laying gives up; it mostly succeeds at once or not at all."""


class _Packing:
    """Whether so many of some rings fit side by side; exact while there is effort left.

    The GPU with the fewest lanes to spare is looked at: one of its lanes is part of a ring, or is
    one of the few that no ring uses.
    """

    def __init__(
        self, lanes_of: Sequence[Sequence[int]], rings: Sequence[Ring], budget: Budget
    ) -> None:
        self.left = _lanes_by_edge(lanes_of)
        self.budget = budget
        self.chosen: list[Ring] = []
        """The rings that fit, once `holds` has said so."""
        self.at: list[list[Edge]] = [[] for _ in lanes_of]
        for edge in self.left:
            for gpu in edge:
                self.at[gpu].append(edge)
        self.through: dict[Edge, list[tuple[Ring, list[Edge]]]] = {edge: [] for edge in self.left}
        for ring in rings:
            edges = _edges(ring)
            for edge in edges:
                self.through[edge].append((ring, edges))
        self.dead: set[tuple[int, ...]] = set()

    def holds(self, wanted: int) -> bool:
        """Whether so many rings fit into the lanes that are left."""
        if not wanted:
            return True
        state = (wanted, *self.left.values())
        if state in self.dead or not self.budget.step():
            return False
        spare = [sum(self.left[edge] for edge in edges) - 2 * wanted for edges in self.at]
        gpu = min(range(len(spare)), key=spare.__getitem__)
        if spare[gpu] >= 0:
            edge = max(self.at[gpu], key=self.left.__getitem__)
            for ring, edges in self.through[edge]:
                if all(self.left[one] for one in edges) and self._without(edges, wanted - 1):
                    self.chosen.append(ring)
                    return True
            if spare[gpu] and self._without([edge], wanted):
                return True
        if not self.budget.spent:
            self.dead.add(state)
        return False

    def _without(self, edges: Sequence[Edge], wanted: int) -> bool:
        for edge in edges:
            self.left[edge] -= 1
        found = self.holds(wanted)
        for edge in edges:
            self.left[edge] += 1
        return found


def _least_cut(lanes_of: Sequence[Sequence[int]]) -> int:
    """The fewest lanes between two sides of a set (Stoer and Wagner 1997)."""
    weights = [list(row) for row in lanes_of]
    alive = list(range(len(weights)))
    best = min(map(sum, weights))
    while len(alive) > 1:
        pull = dict.fromkeys(alive, 0)
        order: list[int] = []
        while pull:
            nearest = max(pull, key=pull.__getitem__)
            cut = pull.pop(nearest)
            order.append(nearest)
            for other in pull:
                pull[other] += weights[nearest][other]
        best = min(best, cut)
        kept, merged = order[-2], order[-1]
        for other in alive:
            weights[kept][other] += weights[merged][other]
            weights[other][kept] = weights[kept][other]
        weights[kept][kept] = 0
        alive.remove(merged)
    return best


def _lanes_by_edge(lanes_of: Sequence[Sequence[int]]) -> dict[Edge, int]:
    pairs = itertools.combinations(range(len(lanes_of)), 2)
    return {(one, other): lanes_of[one][other] for one, other in pairs if lanes_of[one][other]}


def _rings(lanes_of: Sequence[Sequence[int]], budget: Budget) -> list[Ring]:
    """All rings through all of a set, each once."""
    size = len(lanes_of)
    neighbours = [[other for other in range(size) if row[other]] for row in lanes_of]
    found: list[Ring] = []

    def walk(path: list[int], visited: int) -> None:
        if len(path) == size:
            # A ring and its mirror image are one: keep the one that turns to the lower side first.
            if path[1] < path[-1] and 0 in neighbours[path[-1]]:
                found.append(tuple(path))
            return
        for gpu in neighbours[path[-1]]:
            if not visited >> gpu & 1 and budget.step():
                path.append(gpu)
                walk(path, visited | 1 << gpu)
                path.pop()

    walk([0], 1)
    return found


def ring_order(rates: Sequence[Sequence[float]], gpus: GPUSet) -> tuple[int, ...]:
    """The GPUs of a set in the order of its best single ring, lowest index first.

    Best is the largest slowest link; of equal rings the first in dictionary order, so that
    consecutive ranks are neighbours. A ring that is not found within `ORDERED` steps is passed over
    for a slower one.
    """
    inside = members(gpus)
    if len(inside) <= 3:  # noqa: PLR2004  every order of three is the same ring
        return inside
    levels = sorted(
        {rates[one][other] for one, other in itertools.combinations(inside, 2)}, reverse=True
    )
    if len(levels) == 1:
        return inside
    for level in levels:
        order = _ring_at(rates, inside, level)
        if order is not None:
            return order
    return inside


ORDERED = 100_000
"""Steps spent on one ring; up to 12 GPUs there are fewer."""


def _ring_at(
    rates: Sequence[Sequence[float]], inside: tuple[int, ...], level: float
) -> tuple[int, ...] | None:
    """The first ring in dictionary order whose links all reach `level`; None if there is none."""
    position = {gpu: index for index, gpu in enumerate(inside)}
    adjacent = [
        sum(1 << position[other] for other in inside if other != gpu and rates[gpu][other] >= level)
        for gpu in inside
    ]
    full = (1 << len(inside)) - 1
    if min(one.bit_count() for one in adjacent) < 2:  # noqa: PLR2004  a ring comes and goes
        return None
    dead: set[tuple[int, int]] = set()
    budget = Budget(ORDERED)

    def walk(path: list[int], visited: int) -> bool:
        last = path[-1]
        if visited == full:
            return bool(adjacent[last] & 1)
        if (last, visited) in dead or not budget.step():
            return False
        for index in range(len(inside)):
            if not visited >> index & 1 and adjacent[last] >> index & 1:
                path.append(index)
                if walk(path, visited | 1 << index):
                    return True
                path.pop()
        dead.add((last, visited))
        return False

    path = [0]
    return tuple(inside[index] for index in path) if walk(path, 1) else None
