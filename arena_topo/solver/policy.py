"""Which of the equally good placements: what is left behind for the jobs to come.

`keeps` is the potential of a free set: how many whole machines, quads and pairs of full bandwidth
it still holds. A placement damages what it takes away from that, so a 1-GPU job goes where a pair
is already broken, and a pair is taken where no quad is lost.
"""

from __future__ import annotations

import functools

from arena_topo.solver.configurations import Table, with_lowest
from arena_topo.topology import GPUSet, count

GROUP_SIZES = (1, 2, 4, 8, 16)
"""The sizes of jobs that are kept in mind; nearly all jobs ask for one of these (Philly trace)."""

WEIGHT = 64
"""How much more a group counts than one of half its size: more than a machine can hold of those,
so that no number of pairs makes up for a lost quad."""

GRAIN = 1000
"""Parts in which bandwidth relative to the best is counted, so that damage is an exact integer."""

PACKED = 8
"""GPUs up to which groups of any size are packed exactly; larger irregular machines pack pairs and
count the rest."""


class Damage:
    """What taking GPUs of one configuration costs later jobs, in integers; less is better."""

    def __init__(self, table: Table) -> None:
        self.table = table
        whole = GPUSet((1 << table.size) - 1)
        self._sizes = tuple(size for size in GROUP_SIZES if size <= table.size)
        self._full = {size: table.best(whole, size) for size in self._sizes if size > 1}
        self._keeps: dict[int, int] = {}
        self._cheapest: dict[tuple[int, int, float], tuple[int, int, GPUSet] | None] = {}
        self._packing = functools.cache(self._packed)

    def keeps(self, free: GPUSet) -> int:
        """The potential of a free set."""
        found = self._keeps.get(free)
        if found is None:
            found = sum(
                WEIGHT ** (size.bit_length() - 1) * self._groups(free, size) for size in self._sizes
            )
            self._keeps[free] = found
        return found

    def cheapest(self, free: GPUSet, size: int, bandwidth: float) -> tuple[int, GPUSet] | None:
        """The set of `size` free GPUs with at least this bandwidth that costs least.

        Its damage and itself; of equal sets the first by index; None if no set is fast enough.
        """
        key = (free, size, bandwidth)
        if key not in self._cheapest:
            before = self.keeps(free)
            self._cheapest[key] = min(
                (
                    (before - self.keeps(GPUSet(free & ~chosen)), rank, chosen)
                    for rank, chosen in enumerate(self.table.subsets(free, size))
                    if self.table.value(chosen) >= bandwidth
                ),
                default=None,
            )
        found = self._cheapest[key]
        return None if found is None else (found[0], found[-1])

    def counted(self, free: int, size: int) -> int:
        """The damage of taking `size` of `free` GPUs where nobody knows which they are."""

        def keeps(left: int) -> int:
            return sum(
                WEIGHT ** (group.bit_length() - 1) * GRAIN * (left // group)
                for group in self._sizes
            )

        return keeps(free) - keeps(free - size)

    def _groups(self, free: GPUSet, size: int) -> int:
        """How many disjoint groups of a size fit, each worth its share of the best, in GRAINs."""
        if size == 1 or self.table.uniform:
            return GRAIN * (count(free) // size)
        if self.table.size > PACKED and size > 2:  # noqa: PLR2004  pairs stay exact
            return GRAIN * (count(free) // size)
        return self._packing(free, size)

    def _packed(self, free: int, size: int) -> int:
        if free.bit_count() < size:
            return 0
        packings = [self._packing(free & (free - 1), size)]
        for group in with_lowest(free, size):
            worth = round(GRAIN * self.table.value(group) / self._full[size])
            packings.append(worth + self._packing(free ^ group, size))
        return max(packings)


@functools.lru_cache(maxsize=256)
def damage(table: Table) -> Damage:
    """The damages of a table, worked out once."""
    return Damage(table)
