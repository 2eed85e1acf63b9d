"""The rings themselves that a set of GPUs is worth: what `packing` counts, one by one.

Only pictures need them; the solver needs no more than their number.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from arena_topo.bandwidth.packing import Budget, most_rings
from arena_topo.topology import GPUSet, members

EFFORT = 20_000
"""Steps spent on one way to lay rings; a DGX-1 takes fewer than 2,000."""

Ring = tuple[int, ...]
"""GPUs in the order of a ring, each joined to the next and the last to the first."""


def side_by_side(
    multiplicity: Sequence[Sequence[int]], gpus: GPUSet, first: Ring = ()
) -> tuple[Ring, ...]:
    """As many NVLink rings through all of a set as can be laid without sharing a lane.

    `multiplicity` are the lanes between every two GPUs, the set has 3 or more. Where `first` can be
    one of so many rings it is the first of them. Where the search takes too long there are fewer.
    """
    inside = members(gpus)
    wanted = most_rings(multiplicity, gpus)
    found: tuple[Ring, ...] = ()
    for many in range(wanted, 0, -1):
        for start in ((first,), ()) if first else ((),):
            left = {
                pair: multiplicity[pair[0]][pair[1]] for pair in itertools.combinations(inside, 2)
            }
            if not all(_take(left, ring, 1) for ring in start):
                continue
            laid = _laid(left, inside, many - len(start), Budget(EFFORT))
            if laid is not None:
                return (*start, *laid)
    return found


def _take(left: dict[tuple[int, int], int], ring: Ring, lanes: int) -> bool:
    """Take the lanes of a ring away, or give them back with -1; whether there were enough."""
    enough = True
    for one, other in itertools.pairwise((*ring, ring[0])):
        pair = (min(one, other), max(one, other))
        left[pair] -= lanes
        enough = enough and left[pair] >= 0
    return enough


def _laid(
    left: dict[tuple[int, int], int], inside: tuple[int, ...], many: int, budget: Budget
) -> tuple[Ring, ...] | None:
    """So many more rings in the lanes that are left; None if there are not, or too hard to find."""
    if many == 0:
        return ()
    spare = {
        gpu: sum(lanes for pair, lanes in left.items() if gpu in pair) - 2 * many for gpu in inside
    }
    if min(spare.values()) < 0:
        return None

    def walk(path: list[int]) -> tuple[Ring, ...] | None:
        if not budget.step():
            return None
        near = {
            other: left[min(path[-1], other), max(path[-1], other)]
            for other in inside
            if other != path[-1]
        }
        if len(path) == len(inside):
            if not near[path[0]]:
                return None
            ring = tuple(path)
            _take(left, ring, 1)
            rest = _laid(left, inside, many - 1, budget)
            if rest is None:
                _take(left, ring, -1)
                return None
            return (ring, *rest)
        for gpu in sorted(near, key=lambda one: -near[one]):
            if near[gpu] and gpu not in path:
                found = walk([*path, gpu])
                if found is not None:
                    return found
        return None

    return walk([inside[0]])
