"""The bandwidth of every set of GPUs of a machine, and of the best and the worst of them.

A value is what `bandwidth.inside` gives for the set, worked out when it is first asked for and
remembered. The best and the worst are found by enumeration: of GPUs that may stand for each other
(the same links to all others) one choice is enough, so that a PCIe tree of 16 GPUs has few.
Machines with equal configurations share one `GPUSets`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from arena_topo.bandwidth import Facts, packing
from arena_topo.topology import (
    GPU,
    Configuration,
    GPUSet,
    LinkKind,
    Machine,
    count,
    gpu_set,
    members,
)

UNLIMITED = math.inf
"""The bandwidth of a single GPU: it has nobody to talk to."""

CHOICES = 13_000
"""Sets that are enumerated at most, some seconds of work: all halves of 16 GPUs of which none may
stand for another. Beyond, the sets of each group of near GPUs must do."""

SMALL = 8
"""GPUs of a machine, or of a set, up to which everything is tried: all sets are listed, shared out
in every way, and packed with groups in every way."""

ORDERED = 4
"""Groups of a set up to which every order of them is tried: all of two or more among 8 GPUs."""

_PAIR = 2


class GPUSets:
    """The bandwidth of GPU sets of one configuration, GB/s; UNLIMITED for a single GPU."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.size = len(configuration.links)
        self.facts = Facts(_machine(configuration))
        self.everything = GPUSet((1 << self.size) - 1)
        kinds = {link for row in configuration.links for link in row if link is not None}
        self.uniform = len(kinds) <= 1 and not configuration.measured
        """Whether a set is worth what its size is worth."""
        self._links = {link: rank for rank, link in enumerate(sorted(kinds), 1)}
        self._values: dict[int, float] = {}
        self._best: dict[tuple[int, int], float] = {}
        self._worst: dict[tuple[int, int], GPUSet] = {}
        self._shared: dict[tuple[GPUSet, int], tuple[tuple[int, ...], ...]] = {}

    def value(self, gpus: GPUSet) -> float:
        """Bus bandwidth of an all-reduce among exactly these GPUs of one host."""
        if self.uniform:
            gpus = GPUSet((1 << count(gpus)) - 1)
        found = self._values.get(gpus)
        if found is None:
            several = count(gpus) >= _PAIR
            found = self.facts.inside(gpus).point if several else UNLIMITED
            self._values[gpus] = found
        return found

    def best(self, free: GPUSet, size: int) -> float:
        """The most bandwidth that any `size` of these GPUs have; 0 if there are not enough."""
        key = (free, size)
        found = self._best.get(key)
        if found is None:
            found = max(map(self.value, self.choices(free, size)), default=0.0)
            self._best[key] = found
        return found

    def worst(self, free: GPUSet, size: int) -> float:
        """The least bandwidth that any `size` of these GPUs have; 0 if there are not enough."""
        return 0.0 if count(free) < size else self.value(self.worst_set(free, size))

    def worst_set(self, free: GPUSet, size: int) -> GPUSet:
        """The slowest `size` of these GPUs, of equal sets the first by index."""
        key = (free, size)
        found = self._worst.get(key)
        if found is None:
            found = self._worst[key] = min(self.choices(free, size), key=self.value)
        return found

    def certain(self, free: GPUSet, size: int) -> bool:
        """Whether `choices` gives all sets that matter, so that the best of them is the best."""
        few = math.comb(count(free), size) <= CHOICES
        return self.uniform or few or many_choices(free, size, self.alike) <= CHOICES

    def choices(self, free: GPUSet, size: int) -> Iterable[GPUSet]:
        """The sets of `size` of these GPUs by index; of sets that are alike the first."""
        if self.uniform:
            inside = members(free)
            return [gpu_set(inside[:size])] if size <= len(inside) else []
        if self.certain(free, size):
            return choices(free, size, self.alike)
        return self.near(free, size)

    @functools.cached_property
    def alike(self) -> tuple[int, ...]:
        """For each GPU the first that may stand for it: the same links to all others."""
        if self.uniform:
            return (0,) * self.size
        first: list[int] = []
        for gpu in range(self.size):
            twin = (one for one in range(gpu) if first[one] == one and self._twins(one, gpu))
            first.append(next(twin, gpu))
        return tuple(first)

    @functools.cached_property
    def parts(self) -> tuple[tuple[float, tuple[GPUSet, ...]], ...]:
        """For each rate of a link, the fastest first, the GPUs that such links hold together."""
        rates = self.facts.rates
        levels = sorted({rate for at, row in enumerate(rates) for rate in row[:at]}, reverse=True)
        every = range(len(rates))
        return tuple(
            (level, tuple(map(gpu_set, packing.components(every, _reaching(rates, level)))))
            for level in levels
        )

    def order(self, gpus: GPUSet) -> tuple[int, ...]:
        """These GPUs along their best ring."""
        return members(gpus) if self.uniform else packing.ring_order(self._nearness, gpus)

    def split(self, gpus: GPUSet, size: int) -> tuple[tuple[int, ...], ...]:
        """Share a set out to workers of `size` GPUs, each group as well linked as possible.

        The slowest group is as fast as can be, then the groups together (beyond 8 GPUs: groups are
        runs of the best ring). Groups, and the GPUs in each, stand so that the slowest link from
        one group to the next, round the circle, is the fastest there can be.
        """
        found = self._shared.get((gpus, size))
        if found is None:
            found = self._shared[gpus, size] = self._share(gpus, size)
        return found

    def _share(self, gpus: GPUSet, size: int) -> tuple[tuple[int, ...], ...]:
        along = self.order(gpus)
        runs = tuple(along[start : start + size] for start in range(0, len(along), size))
        if size == 1 or size == len(along) or self.uniform or len(along) > SMALL:
            return runs
        groups = _partition(self, gpus, size)
        place = {gpu: index for index, gpu in enumerate(along)}
        ordered = sorted(groups, key=lambda group: min(place[gpu] for gpu in members(group)))
        return _circle(self._nearness, [self.order(group) for group in ordered])

    @functools.cached_property
    def _nearness(self) -> list[list[float]]:
        """How near every two GPUs are: NVLinks by their number, then PCIe paths by their kind."""
        ranks, links = self._links, self.configuration.links
        return [[0.0 if link is None else float(ranks[link]) for link in row] for row in links]

    def near(self, free: GPUSet, size: int) -> Iterator[GPUSet]:
        """Of too many sets those of GPUs that hang together, and those measured."""
        for _rate, groups in self.parts:
            for group in groups:
                inside = members(GPUSet(free & group))
                for start in range(len(inside) - size + 1):
                    yield gpu_set(inside[start : start + size])
        for gpus, _value in self.configuration.measured:
            if not gpus & ~free and count(gpus) == size:
                yield gpus

    def _twins(self, one: int, other: int) -> bool:
        links = self.configuration.links
        if any(
            links[one][gpu] != links[other][gpu]
            for gpu in range(self.size)
            if gpu not in (one, other)
        ):
            return False
        both = 1 << one | 1 << other
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
    )


def _reaching(rates: Sequence[Sequence[float]], level: float) -> Callable[[int, int], bool]:
    """Whether the link between two GPUs has at least this rate."""
    return lambda one, other: rates[one][other] >= level


def choices(free: GPUSet, size: int, alike: tuple[int, ...]) -> Iterator[GPUSet]:
    """All sets of `size` of these GPUs by index; of those that only exchange GPUs alike the first.

    `alike` names for each GPU the first that may stand for it.
    """
    inside = members(free)
    kinds = [alike[gpu] for gpu in inside]
    if len(set(kinds)) == len(kinds):
        for bits in map(sum, itertools.combinations([1 << gpu for gpu in inside], size)):
            yield GPUSet(bits)
        return

    def choose(start: int, chosen: int, wanted: int, passed: frozenset[int]) -> Iterator[GPUSet]:
        if not wanted:
            yield GPUSet(chosen)
            return
        for place in range(start, len(inside) - wanted + 1):
            # Whoever was passed over cannot be followed by one that it may stand for.
            if kinds[place] not in passed:
                yield from choose(place + 1, chosen | 1 << inside[place], wanted - 1, passed)
                passed |= {kinds[place]}

    yield from choose(0, 0, size, frozenset())


def many_choices(free: GPUSet, size: int, alike: tuple[int, ...]) -> int:
    """How many sets `choices` gives."""
    ways = [1] + [0] * size
    sizes: dict[int, int] = {}
    for gpu in members(free):
        sizes[alike[gpu]] = sizes.get(alike[gpu], 0) + 1
    for many in sizes.values():
        ways = [sum(ways[max(0, at - many) : at + 1]) for at in range(size + 1)]
    return ways[size]


def _partition(sets: GPUSets, gpus: GPUSet, size: int) -> tuple[GPUSet, ...]:
    """Disjoint groups of `size` that cover a set: largest slowest group, then largest total."""

    @functools.cache
    def slowest(rest: int) -> float:
        if not rest:
            return UNLIMITED
        return max(
            min(sets.value(group), slowest(rest ^ group)) for group in with_lowest(rest, size)
        )

    floor = slowest(gpus)

    @functools.cache
    def fastest(rest: int) -> tuple[float, tuple[GPUSet, ...]] | None:
        if not rest:
            return 0.0, ()
        best: tuple[float, tuple[GPUSet, ...]] | None = None
        for group in with_lowest(rest, size):
            worth = sets.value(group)
            others = fastest(rest ^ group) if worth >= floor else None
            if others is not None and (best is None or worth + others[0] > best[0]):
                best = (worth + others[0], (group, *others[1]))
        return best

    found = fastest(gpus)
    return found[1] if found else ()


def _circle(
    rates: Sequence[Sequence[float]], groups: Sequence[tuple[int, ...]]
) -> tuple[tuple[int, ...], ...]:
    """The groups in the order, each begun and run through the way, that joins neighbours best.

    Best is the fastest slowest link between them. Each group stays the ring that it is. Beyond
    `ORDERED` groups they keep their order.
    """
    first, *others = groups
    best: tuple[float, float] = (-1.0, 0.0)
    found = tuple(groups)
    for rest in itertools.permutations(others) if len(groups) <= ORDERED else [others]:
        for start in _turns(first):
            paths: list[tuple[float, float, tuple[tuple[int, ...], ...]]]
            paths = [(UNLIMITED, 0.0, (start,))]
            for group in rest:
                paths = [
                    max(
                        (
                            (min(slowest, step), total + step, (*path, turned))
                            for slowest, total, path in paths
                            for step in [rates[path[-1][-1]][turned[0]]]
                        ),
                        key=lambda one: one[:2],
                    )
                    for turned in _turns(group)
                ]
            for slowest, total, path in paths:
                step = rates[path[-1][-1]][start[0]]
                worth = (min(slowest, step), total + step)
                if worth > best:
                    best, found = worth, path
    return found


def _turns(ring: tuple[int, ...]) -> list[tuple[int, ...]]:
    """A ring begun at each of its members, in both directions; first as it is."""
    ways = [ring, ring[::-1]] if len(ring) > 1 else [ring]
    return list(dict.fromkeys(way[at:] + way[:at] for way in ways for at in range(len(ring))))


def with_lowest(rest: int, size: int) -> Iterator[GPUSet]:
    """All groups of `size` that hold the lowest GPU of `rest`, in the order of indexes."""
    first, *others = members(GPUSet(rest))
    for chosen in itertools.combinations(others, size - 1):
        yield gpu_set((first, *chosen))


@functools.lru_cache(maxsize=256)
def gpu_sets(configuration: Configuration) -> GPUSets:
    """The sets of a configuration; machines with equal configurations share them."""
    return GPUSets(configuration)


def has_nvlink(configuration: Configuration) -> bool:
    """Whether any two GPUs are joined by NVLink."""
    return any(
        link is not None and link.kind is LinkKind.NVLINK
        for row in configuration.links
        for link in row
    )
