"""Packing of rings in a set of GPUs: how many disjoint ones, which, and the best single ring.

Exact within the stated effort. The input is links and lanes only, without the rates of any model.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from arena_topo.topology import GPUSet, LinkKind, Matrix, members


def lanes(links: Matrix) -> list[list[int]]:
    """NVLink lanes between every two GPUs; 0 without NVLink."""
    return [
        [link.lanes if link is not None and link.kind is LinkKind.NVLINK else 0 for link in row]
        for row in links
    ]


def components(gpus: Iterable[int], joined: Callable[[int, int], bool]) -> list[frozenset[int]]:
    """The connected components of GPUs, in the order of indexes."""
    remaining = set(gpus)
    groups: list[frozenset[int]] = []
    while remaining:
        frontier = [min(remaining)]
        group = set(frontier)
        while frontier:
            gpu = frontier.pop()
            near = {peer for peer in remaining - group if joined(gpu, peer)}
            group |= near
            frontier += near
        remaining -= group
        groups.append(frozenset(group))
    return groups


Ring = tuple[int, ...]
"""GPUs in the order of a ring, each joined to the next and the last to the first."""

EFFORT = 50_000
"""The limit of steps for the rings of one set; a DGX-1 takes fewer than 2,000."""

MAX_RINGS_TRIED = 50_000
"""The limit of rings that are tried in combination; a DGX-1 takes fewer than 10,000."""


def most_rings(multiplicity: Sequence[Sequence[int]], gpus: GPUSet, *, effort: int = EFFORT) -> int:
    """The most NVLink rings through all GPUs of a set (3 or more) that share no lane.

    Branch and bound: rings are added one after the other, in all combinations; every ring takes two
    lanes at each GPU, which bounds the number of further rings. If the work limit is reached, the
    best number so far counts.
    """
    inside = members(gpus)
    unused = [[multiplicity[gpu][peer] for peer in inside] for gpu in inside]
    size = len(inside)
    if len({unused[gpu][peer] for gpu in range(size) for peer in range(gpu)}) == 1:
        # A full mesh, each link n-fold, decomposes into rings and at most one perfect matching
        # (Walecki in Lucas 1892; n-fold: Bryant, Horsley, Maenhaut, Smith 2011).
        return min(map(sum, unused)) // 2
    best, work = 0, MAX_RINGS_TRIED

    def lay(rings: Sequence[Ring], laid: int) -> None:
        nonlocal best, work
        best = max(best, laid)
        work -= len(rings)
        if work < 0 or laid + min(map(sum, unused)) // 2 <= best:
            return
        fitting = [ring for ring in rings if all(unused[gpu][peer] for gpu, peer in _links(ring))]
        for at, ring in enumerate(fitting):
            _take(unused, ring, 1)
            lay(fitting[at:], laid + 1)
            _take(unused, ring, -1)

    lay(list(_rings(unused, iter(range(effort)))), 0)
    return best


def _links(ring: Ring) -> Iterator[tuple[int, int]]:
    """The pairs of neighbours of a ring."""
    return itertools.pairwise((*ring, ring[0]))


def _take(lanes_of: list[list[int]], ring: Ring, lanes: int) -> None:
    """Remove lanes from each link of a ring; a negative number adds them."""
    for gpu, peer in _links(ring):
        lanes_of[gpu][peer] -= lanes
        lanes_of[peer][gpu] -= lanes


def _rings(lanes_of: Sequence[Sequence[int]], steps: Iterator[int]) -> Iterator[Ring]:
    """All Hamiltonian rings of a set, each once, within the limit of steps."""

    def walk(path: Ring) -> Iterator[Ring]:
        row = lanes_of[path[-1]]
        if len(path) == len(lanes_of):
            # A ring and its mirror image are the same: only the one whose second index is smaller
            # than its last counts.
            if path[1] < path[-1] and row[0]:
                yield path
            return
        for gpu, lanes in enumerate(row):
            if lanes and gpu not in path and next(steps, None) is not None:
                yield from walk((*path, gpu))

    return walk((0,))


def ring_order(rates: Sequence[Sequence[float]], gpus: GPUSet) -> tuple[int, ...]:
    """The GPUs of a set in the order of its best single ring, lowest index first.

    Best is the ring whose slowest link is fastest; of equal rings the first in lexicographic order,
    so that consecutive ranks are neighbours. If no ring is found within `ORDERED` steps, slower
    links are allowed.
    """
    inside = members(gpus)
    if len(inside) <= 3:  # noqa: PLR2004  every order of three is the same ring
        return inside
    levels = sorted(
        {rates[gpu][peer] for gpu, peer in itertools.combinations(inside, 2)}, reverse=True
    )
    if len(levels) == 1:
        return inside
    for level in levels:
        near = [[gpu != peer and rates[gpu][peer] >= level for peer in inside] for gpu in inside]
        joined = components(range(len(inside)), lambda gpu, peer: near[gpu][peer])  # noqa: B023
        ring = next(_rings(near, iter(range(ORDERED))), None) if len(joined) == 1 else None
        if ring is not None:
            return tuple(inside[at] for at in ring)
    return inside


ORDERED = 100_000
"""The limit of steps for one ring."""
