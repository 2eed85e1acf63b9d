"""Rings through a set of GPUs: how many fit side by side and which, and the best single one.

Exact within the stated effort; only links and lanes come in, no rates of any model.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

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


Ring = tuple[int, ...]
"""GPUs in the order of a ring, each joined to the next and the last to the first."""

EFFORT = 50_000
"""Steps spent on finding the rings of one set; those of a DGX-1 take fewer than 2,000."""

WORK = 50_000
"""Rings that are looked at while rings are laid side by side; for a DGX-1 fewer than 10,000."""


def most_rings(multiplicity: Sequence[Sequence[int]], gpus: GPUSet, *, effort: int = EFFORT) -> int:
    """The most NVLink rings through all of a set (3 or more GPUs) that share no lane.

    Branch and bound: rings are laid one after the other, in all combinations; every ring takes two
    lanes at each GPU, which bounds how many more there can be. Where that takes too long, as many
    count as were laid.
    """
    inside = members(gpus)
    left = [[multiplicity[one][other] for other in inside] for one in inside]
    size = len(inside)
    if len({left[one][other] for one in range(size) for other in range(one)}) == 1:
        # A full mesh, each link n-fold, falls apart into rings and at most one perfect matching
        # (Walecki in Lucas 1892; n-fold: Bryant, Horsley, Maenhaut, Smith 2011).
        return min(map(sum, left)) // 2
    best, work = 0, WORK

    def lay(rings: Sequence[Ring], laid: int) -> None:
        nonlocal best, work
        best = max(best, laid)
        work -= len(rings)
        if work < 0 or laid + min(map(sum, left)) // 2 <= best:
            return
        fitting = [ring for ring in rings if all(left[one][other] for one, other in _links(ring))]
        for at, ring in enumerate(fitting):
            _take(left, ring, 1)
            lay(fitting[at:], laid + 1)
            _take(left, ring, -1)

    lay(list(_rings(left, iter(range(effort)))), 0)
    return best


def _links(ring: Ring) -> Iterator[tuple[int, int]]:
    """The pairs of neighbours of a ring."""
    return itertools.pairwise((*ring, ring[0]))


def _take(lanes_of: list[list[int]], ring: Ring, lanes: int) -> None:
    """Take lanes of each link of a ring."""
    for one, other in _links(ring):
        lanes_of[one][other] -= lanes
        lanes_of[other][one] -= lanes


def _rings(lanes_of: Sequence[Sequence[int]], steps: Iterator[int]) -> Iterator[Ring]:
    """All rings through all of a set, each once, while there are steps left."""

    def walk(path: Ring) -> Iterator[Ring]:
        row = lanes_of[path[-1]]
        if len(path) == len(lanes_of):
            # A ring and its mirror image are one: the one that turns to the lower side first.
            if path[1] < path[-1] and row[0]:
                yield path
            return
        for gpu, lanes in enumerate(row):
            if lanes and gpu not in path and next(steps, None) is not None:
                yield from walk((*path, gpu))

    return walk((0,))


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
        near = [[one != other and rates[one][other] >= level for other in inside] for one in inside]
        joined = components(range(len(inside)), lambda one, other: near[one][other])  # noqa: B023
        ring = next(_rings(near, iter(range(ORDERED))), None) if len(joined) == 1 else None
        if ring is not None:
            return tuple(inside[at] for at in ring)
    return inside


ORDERED = 100_000
"""Steps spent on one ring."""
