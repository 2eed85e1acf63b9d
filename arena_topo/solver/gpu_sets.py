"""The bandwidth of every set of GPUs of a machine.

A value is `bandwidth.inside` of the set, computed at first use. The best of some sets is found by
enumeration up to symmetry: of GPUs with equal links to all others one choice is enough, so a PCIe
tree of 16 GPUs has few sets. Machines with equal configurations share one `GPUSets`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from arena_topo.bandwidth import packing
from arena_topo.bandwidth.one_host import MachineFacts
from arena_topo.solver import UNLIMITED
from arena_topo.solver.memo import remembered
from arena_topo.topology import GPU, Configuration, GPUSet, Machine, count, gpu_set, members

CHOICES = 13_000
"""The most sets that are enumerated, some seconds of work: all halves of 16 GPUs without
symmetry."""

SAMPLE = 200
"""The size of the sample if there are more sets; no machine on sale has so many."""

SMALL = 8
"""The most GPUs of a machine, or of a set, for which all ways of splitting it or packing groups are
tried."""

GRAIN = 1000
"""The resolution of relative bandwidths as integers, so that their sums are exact."""

_PAIR = 2


class GPUSets:
    """The bandwidth of GPU sets of one configuration, GB/s; UNLIMITED for a single GPU."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.size = len(configuration.links)
        self.facts = MachineFacts(_machine(configuration))
        self.everything = GPUSet((1 << self.size) - 1)
        kinds = {link for row in configuration.links for link in row if link is not None}
        self.uniform = len(kinds) <= 1 and not configuration.measured
        """Whether the value of a set depends on its size only."""
        self._ranks = {link: rank for rank, link in enumerate(sorted(kinds), 1)}
        self._values: dict[int, float] = {}

    def value(self, gpus: GPUSet) -> float:
        """Bus bandwidth of an all-reduce among exactly these GPUs of one host."""
        if self.uniform:
            gpus = GPUSet((1 << count(gpus)) - 1)
        value = self._values.get(gpus)
        if value is None:
            several = count(gpus) >= _PAIR
            value = self.facts.inside(gpus).point if several else UNLIMITED
            self._values[gpus] = value
        return value

    @remembered
    def best(self, free: GPUSet, size: int) -> float:
        """The maximum bandwidth of any `size` of these GPUs; 0 if there are not enough."""
        return max(map(self.value, self.choices(free, size)), default=0.0)

    def choices(
        self, free: GPUSet, size: int, alike: Sequence[int] | None = None
    ) -> Iterable[GPUSet]:
        """The sets of `size` of these GPUs by index; of equivalent sets the first.

        `alike` has for each GPU the first equivalent one, by default by its links.
        """
        sets = choices(free, size, self.alike if alike is None else alike)
        return sets if self.certain(free, size) else itertools.islice(sets, SAMPLE)

    @remembered
    def certain(self, free: GPUSet, size: int) -> bool:
        """Whether `choices` enumerates all relevant sets, so that the best of them is optimal."""
        if self.uniform or math.comb(count(free), size) <= CHOICES:
            return True
        sets = choices(free, size, self.alike)
        return sum(1 for _ in itertools.islice(sets, CHOICES + 1)) <= CHOICES

    @functools.cached_property
    def alike(self) -> tuple[int, ...]:
        """For each GPU the first equivalent one: with the same links to all others."""
        return (0,) * self.size if self.uniform else firsts(self.size, self._twins)

    @functools.cached_property
    def parts(self) -> tuple[tuple[float, tuple[GPUSet, ...]], ...]:
        """For each link rate, fastest first, the groups of GPUs that such links connect."""
        rates = self.facts.rates
        levels = sorted({rate for at, row in enumerate(rates) for rate in row[:at]}, reverse=True)
        gpus = range(len(rates))
        return tuple(
            (level, tuple(map(gpu_set, packing.components(gpus, _reaching(rates, level)))))
            for level in levels
        )

    @remembered
    def disjoint(self, gpus: GPUSet, size: int, speed: float) -> int:
        """How many disjoint sets of `size` of these GPUs have at least so many GB/s.

        In machines of more than 8 GPUs: how many fit into the groups that fast enough links
        connect.
        """
        if size < _PAIR:
            return count(gpus)
        if self.uniform:
            return count(gpus) // size if self.best(self.everything, size) >= speed else 0
        if self.size <= SMALL:
            return self.packed(gpus, size, speed) // GRAIN
        if self.best(gpus, size) < speed:
            return 0
        most = 1
        for _rate, groups in self.parts:
            # The first and the last are the farthest apart.
            large = [members(group) for group in groups if count(group) >= size]
            chosen = (gpu_set((*group[: size - 1], group[-1])) for group in large)
            if any(value >= speed for value in map(self.value, chosen)):
                most = max(most, sum(count(GPUSet(group & gpus)) // size for group in groups))
        return most

    @remembered
    def packed(self, gpus: int, size: int, speed: float | None = None) -> int:
        """The maximum value of disjoint groups of a size, by trying all of them.

        The fastest groups have the value GRAIN each, others in proportion to their bandwidth. With
        a `speed` all groups that reach it have the value GRAIN, and others 0.
        """
        most = gpus.bit_count() // size * GRAIN
        if not most:
            return 0
        full = self.best(self.everything, size)
        best: int = self.packed(gpus & (gpus - 1), size, speed)
        for group in with_lowest(gpus, size):
            if best == most:
                break
            value = self.value(group)
            worth = round(GRAIN * value / full) if speed is None else GRAIN * (value >= speed)
            best = max(best, worth + self.packed(gpus ^ group, size, speed))
        return best

    def order(self, gpus: GPUSet) -> tuple[int, ...]:
        """These GPUs along their best ring."""
        return members(gpus) if self.uniform else packing.ring_order(self._nearness, gpus)

    @remembered
    def split(self, gpus: GPUSet, size: int) -> tuple[tuple[int, ...], ...]:
        """Split a set into workers of `size` GPUs: maximize the bandwidth of the slowest group.

        Beyond 8 GPUs groups are runs of the best ring. Each group is in the order of its own ring.
        """
        along = self.order(gpus)
        if size in {1, len(along)} or self.uniform or len(along) > SMALL:
            return tuple(along[start : start + size] for start in range(0, len(along), size))

        def speed(groups: tuple[GPUSet, ...]) -> tuple[float, float]:
            values = [self.value(group) for group in groups]
            return min(values), sum(values)

        groups = max(splits(gpus, size), key=speed)
        rings = sorted(map(self.order, groups), key=lambda ring: min(map(along.index, ring)))
        return tuple(rings)

    @functools.cached_property
    def _nearness(self) -> list[list[float]]:
        """The nearness of every two GPUs: the number of NVLinks, then the kind of PCIe path."""
        ranks, links = self._ranks, self.configuration.links
        return [[0.0 if link is None else float(ranks[link]) for link in row] for row in links]

    def _twins(self, first: int, second: int) -> bool:
        links = self.configuration.links
        if any(
            links[first][gpu] != links[second][gpu]
            for gpu in range(self.size)
            if gpu not in (first, second)
        ):
            return False
        both = 1 << first | 1 << second
        measured = dict(self.configuration.measured)
        return all(
            gpus & both in (0, both) or measured.get(GPUSet(gpus ^ both)) == value
            for gpus, value in measured.items()
        )


def _machine(configuration: Configuration) -> Machine:
    """A machine of this configuration."""
    return Machine(
        name="",
        gpus=tuple(
            GPU(index=index, model=configuration.model) for index in range(len(configuration.links))
        ),
        links=configuration.links,
        nvswitch=configuration.nvswitch,
        pcie_generation=configuration.pcie_generation,
        measured=configuration.measured,
        software=configuration.software,
    )


def _reaching(rates: Sequence[Sequence[float]], level: float) -> Callable[[int, int], bool]:
    """Whether the link between two GPUs has at least this rate."""
    return lambda gpu, peer: rates[gpu][peer] >= level


def firsts(size: int, twins: Callable[[int, int], bool]) -> tuple[int, ...]:
    """For each GPU the first equivalent one, by an equivalence relation of GPUs."""
    first: list[int] = []
    for gpu in range(size):
        same = (other for other in range(gpu) if first[other] == other and twins(other, gpu))
        first.append(next(same, gpu))
    return tuple(first)


def choices(free: GPUSet, size: int, alike: Sequence[int]) -> Iterator[GPUSet]:
    """All sets of `size` of these GPUs by index; of equivalent sets the first.

    `alike` has for each GPU the first equivalent one.
    """
    inside = members(free)
    kinds = [alike[gpu] for gpu in inside]
    if len(set(kinds)) == len(kinds):
        for bits in map(sum, itertools.combinations([1 << gpu for gpu in inside], size)):
            yield GPUSet(bits)
        return

    def choose(start: int, chosen: int, missing: int, passed: frozenset[int]) -> Iterator[GPUSet]:
        if not missing:
            yield GPUSet(chosen)
            return
        for place in range(start, len(inside) - missing + 1):
            # A skipped GPU cannot be followed by an equivalent one.
            if kinds[place] not in passed:
                yield from choose(place + 1, chosen | 1 << inside[place], missing - 1, passed)
                passed |= {kinds[place]}

    yield from choose(0, 0, size, frozenset())


def splits(gpus: GPUSet, size: int) -> Iterator[tuple[GPUSet, ...]]:
    """All ways of splitting a set into groups of a size."""
    if not gpus:
        yield ()
        return
    for group in with_lowest(gpus, size):
        for rest in splits(GPUSet(gpus & ~group), size):
            yield (group, *rest)


def with_lowest(gpus: int, size: int) -> Iterator[GPUSet]:
    """All groups of `size` that contain the lowest GPU of `rest`, in the order of indexes."""
    first, *higher = members(GPUSet(gpus))
    for chosen in itertools.combinations(higher, size - 1):
        yield gpu_set((first, *chosen))


@functools.lru_cache(maxsize=256)
def gpu_sets(configuration: Configuration) -> GPUSets:
    """The sets of a configuration; machines with equal configurations share them."""
    return GPUSets(configuration)


def sets_of(machine: Machine) -> GPUSets:
    """The values of the GPU sets of a machine."""
    return gpu_sets(machine.configuration)
