"""Sets of GPUs as bits; every set of a machine with its bandwidth, worked out once.

Machines with equal configurations share one `Table`, which works out the value of a set when it is
first asked for. Every set can be asked for, which is what makes later answers exact: all 255 of an
8-GPU machine take a few milliseconds. Where all links are alike (NVSwitch, flat PCIe, a full mesh)
the value depends on the size of the set alone.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

from arena_topo.solver import UNLIMITED, cost
from arena_topo.topology import Configuration, GPUSet, LinkKind, count, gpu_set, members

EXHAUSTIVE = 16
"""GPUs up to which rings are tabulated for all sets of a machine at once (2^16 entries)."""


class Table:
    """The bandwidth of every GPU set of one configuration, in GB/s; computed when first asked."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.size = len(configuration.links)
        self.measured = dict(configuration.measured)
        kinds = {link for row in configuration.links for link in row if link is not None}
        self.switched = configuration.nvswitch and has_nvlink(configuration)
        self.uniform = (self.switched or len(kinds) <= 1) and not self.measured
        """Whether a set is worth what its size is worth."""
        self._rates = [
            [0.0 if link is None else cost.link_rate(link, configuration) for link in row]
            for row in configuration.links
        ]
        self._lanes = cost.lanes(configuration.links)
        self._values: dict[int, float] = {0: UNLIMITED}
        self._best: dict[tuple[int, int], float] = {}
        self._worst: dict[tuple[int, int], float] = {}
        self._hidden: dict[tuple[int, int, int], float] = {}
        self._slowest: dict[int, float] | None = None

    def value(self, gpus: GPUSet) -> float:
        """Bus bandwidth of an all-reduce among exactly these GPUs."""
        if self.uniform:
            gpus = GPUSet((1 << count(gpus)) - 1)
        found = self._values.get(gpus)
        if found is None:
            found = self.measured.get(gpus)
            if found is None:
                found = self._computed(gpus)
            self._values[gpus] = found
        return found

    def best(self, free: GPUSet, size: int) -> float:
        """The most bandwidth that any `size` of these GPUs have; 0 if there are not enough."""
        key = (free, size)
        found = self._best.get(key)
        if found is None:
            found = self._best[key] = max(map(self.value, self.subsets(free, size)), default=0.0)
        return found

    def worst(self, free: GPUSet, size: int) -> float:
        """The least bandwidth that any `size` of these GPUs have: what a blind choice risks."""
        key = (free, size)
        found = self._worst.get(key)
        if found is None:
            found = self._worst[key] = min(map(self.value, self.subsets(free, size)), default=0.0)
        return found

    def best_hidden(self, free: GPUSet, hidden: int, size: int) -> float:
        """The bandwidth to count on when `hidden` of these GPUs are in use, nobody says which.

        The worst of all free sets consistent with the count, each used as well as it can be.
        """
        key = (free, hidden, size)
        found = self._hidden.get(key)
        if found is None:
            rest = self.subsets(free, count(free) - hidden)
            found = min((self.best(left, size) for left in rest), default=0.0)
            self._hidden[key] = found
        return found

    def subsets(self, free: GPUSet, size: int) -> Iterator[GPUSet]:
        """All sets of `size` of these GPUs by index; one of them where all are worth the same."""
        if self.uniform:
            if 0 <= size <= count(free):
                yield gpu_set(members(free)[:size])
            return
        for chosen in itertools.combinations(members(free), size):
            yield gpu_set(chosen)

    def order(self, gpus: GPUSet) -> tuple[int, ...]:
        """These GPUs along their best ring."""
        return members(gpus) if self.uniform else cost.ring_order(self._rates, gpus)

    def split(self, gpus: GPUSet, size: int) -> tuple[tuple[int, ...], ...]:
        """Share a set out to workers of `size` GPUs, each group as well linked as possible.

        The slowest group is as fast as can be, then the groups together; groups come along the
        best ring of the set, so that neighbouring workers are neighbours on it.
        """
        along = self.order(gpus)
        if size == 1 or size == len(along) or self.uniform:
            return tuple(along[start : start + size] for start in range(0, len(along), size))
        groups = _partition(self, gpus, size)
        place = {gpu: index for index, gpu in enumerate(along)}
        ordered = sorted(groups, key=lambda group: min(place[gpu] for gpu in members(group)))
        return tuple(self.order(group) for group in ordered)

    def _computed(self, gpus: GPUSet) -> float:
        size = count(gpus)
        if size < 2:  # noqa: PLR2004  a single GPU talks to nobody
            return UNLIMITED
        if self.switched:
            return cost.switched(self.configuration, size)
        if size == 2:  # noqa: PLR2004  a pair is its link
            one, other = members(gpus)
            return self._rates[one][other]
        rings = cost.most_rings(self._lanes, gpus)
        if rings:
            return 2 * rings * cost.lane_rate(self.configuration.model)
        return self._slowest_link(gpus)

    def _slowest_link(self, gpus: GPUSet) -> float:
        """The slowest link of the best single ring, over NVLink and PCIe alike."""
        if self.size > EXHAUSTIVE:
            inside = members(gpus)
            rates = [[self._rates[one][other] for other in inside] for one in inside]
            return _bottlenecks(rates)[(1 << len(inside)) - 1]
        if self._slowest is None:
            self._slowest = _bottlenecks(self._rates)
        return self._slowest[gpus]


def _bottlenecks(rates: list[list[float]]) -> dict[int, float]:
    """For every set of two or more: the slowest link of its best ring.

    One sweep per distinct rate, fastest first: the first at which the set closes a ring is it.
    """
    size = len(rates)
    levels = sorted({rates[i][j] for i in range(size) for j in range(i)}, reverse=True)
    found: dict[int, float] = {}
    for level in levels[:-1]:
        adjacent = [
            sum(1 << j for j in range(size) if j != i and rates[i][j] >= level) for i in range(size)
        ]
        closed = cost.closed_rings(adjacent)
        for group in itertools.compress(range(len(closed)), closed):
            found.setdefault(group, level)
    # At the slowest rate every set closes a ring.
    return _Default(found, levels[-1])


class _Default(dict[int, float]):
    """A dictionary in which what is missing has one value."""

    def __init__(self, known: dict[int, float], otherwise: float) -> None:
        super().__init__(known)
        self.otherwise = otherwise

    def __missing__(self, key: int) -> float:
        return self.otherwise


def _partition(table: Table, gpus: GPUSet, size: int) -> tuple[GPUSet, ...]:
    """Disjoint groups of `size` that cover a set: largest slowest group, then largest total."""

    @functools.cache
    def slowest(rest: int) -> float:
        if not rest:
            return UNLIMITED
        return max(
            min(table.value(group), slowest(rest ^ group)) for group in with_lowest(rest, size)
        )

    floor = slowest(gpus)

    @functools.cache
    def fastest(rest: int) -> tuple[float, tuple[GPUSet, ...]] | None:
        if not rest:
            return 0.0, ()
        best: tuple[float, tuple[GPUSet, ...]] | None = None
        for group in with_lowest(rest, size):
            worth = table.value(group)
            others = fastest(rest ^ group) if worth >= floor else None
            if others is not None and (best is None or worth + others[0] > best[0]):
                best = (worth + others[0], (group, *others[1]))
        return best

    found = fastest(gpus)
    return found[1] if found else ()


def with_lowest(rest: int, size: int) -> Iterator[GPUSet]:
    """All groups of `size` that hold the lowest GPU of `rest`, in the order of indexes."""
    first, *others = members(GPUSet(rest))
    for chosen in itertools.combinations(others, size - 1):
        yield gpu_set((first, *chosen))


@functools.lru_cache(maxsize=256)
def table(configuration: Configuration) -> Table:
    """The table of a configuration; machines with equal configurations share it."""
    return Table(configuration)


def has_nvlink(configuration: Configuration) -> bool:
    """Whether any two GPUs are joined by NVLink."""
    return any(
        link is not None and link.kind is LinkKind.NVLINK
        for row in configuration.links
        for link in row
    )
