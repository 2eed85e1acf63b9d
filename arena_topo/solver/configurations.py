"""Sets of GPUs as bits; every set of a machine with its bandwidth, worked out once.

Machines with equal configurations share one `Table`. It answers for any set exactly, and so for
the best and the worst of all sets: small choices are gone through, large ones are answered by the
layers of the machine (`layers`), without going through the sets. Where all links are alike
(NVSwitch, flat PCIe, a full mesh) the value depends on the size of the set alone.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence

from arena_topo.bandwidth import packing
from arena_topo.solver import UNLIMITED, cost, layers
from arena_topo.solver.layers import Layer
from arena_topo.topology import Configuration, GPUSet, LinkKind, count, gpu_set, members

FEW = 70
"""Sets that are sooner gone through than asked of the layers: all halves of 8 GPUs."""

CHOICES = 50_000
"""Sets that are gone through at most, where only that gives the exact answer: above all halves of
18 GPUs."""

PARTITIONED = 8
"""GPUs up to which the best way to share a set out is found among all ways."""

ORDERED = 4
"""Groups of a set up to which every order of them is tried: all of two or more among 8 GPUs."""


class Table:
    """The bandwidth of every GPU set of one configuration, in GB/s; computed when first asked.

    Values are exact, or at least certain to be reached: a packing of rings that takes too long
    counts with the rings that were found, and `certified` is False. Then `bound` and
    `bound_hidden` say what `best` and `best_hidden` can be at most.
    """

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.size = len(configuration.links)
        self.measured = dict(configuration.measured)
        kinds = {link for row in configuration.links for link in row if link is not None}
        self.uniform = len(kinds) <= 1 and not self.measured
        """Whether a set is worth what its size is worth."""
        self._rates = [
            [0.0 if link is None else cost.link_rate(link, configuration) for link in row]
            for row in configuration.links
        ]
        # A switch has no lane between two GPUs: one ring uses all lanes of each of them.
        self._lanes = (
            [[0] * self.size] * self.size
            if configuration.nvswitch
            else packing.lanes(configuration.links)
        )
        self._layers: tuple[Layer, ...] | None = None
        self._ceiling: tuple[Layer, ...] | None = None
        self._values: dict[int, float] = {0: UNLIMITED}
        self._shared: dict[tuple[GPUSet, int], tuple[tuple[int, ...], ...]] = {}
        self._best: dict[tuple[int, int], float] = {}
        self._worst: dict[tuple[int, int], float] = {}
        self._hidden: dict[tuple[int, int, int], float] = {}

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The sets known to reach each bandwidth, most first, measured values aside."""
        if self._layers is None:
            self._layers = self._computed(bound=False)
        return self._layers

    @property
    def ceiling(self) -> tuple[Layer, ...]:
        """The sets that may reach each bandwidth, most first, measured values aside."""
        if self._ceiling is None:
            self._ceiling = self._computed(bound=True)
        return self._ceiling

    @functools.cached_property
    def certified(self) -> bool:
        """Whether every value is exact, so that what is best is known to be."""
        if self.uniform:
            return True
        if self.measured and math.comb(self.size, self.size // 2) > CHOICES:
            return False
        return layers.same(self.layers, self.ceiling)

    @functools.cached_property
    def alike(self) -> tuple[int, ...]:
        """For each GPU the first that may stand for it: the same links to all others.

        Exchanging the two changes the value of no set.
        """
        if self.uniform:
            return (0,) * self.size
        first: list[int] = []
        for gpu in range(self.size):
            twin = (one for one in range(gpu) if first[one] == one and self._twins(one, gpu))
            first.append(next(twin, gpu))
        return tuple(first)

    def value(self, gpus: GPUSet) -> float:
        """Bus bandwidth of an all-reduce among exactly these GPUs."""
        if self.uniform:
            gpus = GPUSet((1 << count(gpus)) - 1)
        found = self._values.get(gpus)
        if found is None:
            found = self.measured.get(gpus)
            if found is None:
                found = self._value(gpus)
            self._values[gpus] = found
        return found

    def best(self, free: GPUSet, size: int) -> float:
        """The most bandwidth that any `size` of these GPUs have; 0 if there are not enough."""
        key = (free, size)
        found = self._best.get(key)
        if found is None:
            found = self._best[key] = self._extreme(free, size, best=True)
        return found

    def worst(self, free: GPUSet, size: int) -> float:
        """The least bandwidth that any `size` of these GPUs have: what a blind choice risks."""
        key = (free, size)
        found = self._worst.get(key)
        if found is None:
            found = self._worst[key] = self._extreme(free, size, best=False)
        return found

    def bound(self, free: GPUSet, size: int) -> float:
        """What `best` can be at most; the same where the table is certified."""
        if self.certified or count(free) < size or size < layers.PAIR:
            return self.best(free, size)
        reached = (layer.bandwidth for layer in self.ceiling if layer.fits(free, size))
        return max([self.best(free, size), next(reached, 0.0), *self._measured(free, size)])

    def best_hidden(self, free: GPUSet, hidden: int, size: int) -> float:
        """The bandwidth to count on when `hidden` of these GPUs are in use, nobody says which.

        The worst of all free sets consistent with the count, each used as well as it can be.
        """
        key = (free, hidden, size)
        found = self._hidden.get(key)
        if found is None:
            found = self._hidden[key] = self._least(free, count(free) - hidden, size)
        return found

    def bound_hidden(self, free: GPUSet, hidden: int, size: int) -> float:
        """What `best_hidden` can be at most; the same where the table is certified."""
        left = count(free) - hidden
        if self.certified or left < size or size < layers.PAIR:
            return self.best_hidden(free, hidden, size)
        if self._measured(free, size):
            return self.bound(free, size)
        reached = (one.bandwidth for one in self.ceiling if one.fits_any(free, left, size))
        return next(reached, 0.0)

    def subsets(self, free: GPUSet, size: int) -> Iterator[GPUSet]:
        """The sets of `size` of these GPUs by index; of sets that are alike the first."""
        return choices(free, size, self.alike)

    def order(self, gpus: GPUSet) -> tuple[int, ...]:
        """These GPUs along their best ring."""
        return members(gpus) if self.uniform else packing.ring_order(self._rates, gpus)

    def split(self, gpus: GPUSet, size: int) -> tuple[tuple[int, ...], ...]:
        """Share a set out to workers of `size` GPUs, each group as well linked as possible.

        The slowest group is as fast as can be, then the groups together (beyond 8 GPUs: then the
        first groups found, fast ones first). Groups, and the GPUs in each, stand so that the
        slowest link from one group to the next, round the circle, is the fastest there can be.
        """
        found = self._shared.get((gpus, size))
        if found is None:
            found = self._shared[gpus, size] = self._share(gpus, size)
        return found

    def _share(self, gpus: GPUSet, size: int) -> tuple[tuple[int, ...], ...]:
        along = self.order(gpus)
        if size == 1 or size == len(along) or self.uniform:
            return tuple(along[start : start + size] for start in range(0, len(along), size))
        if len(along) <= PARTITIONED:
            groups = _partition(self, gpus, size)
        else:
            groups = _fair(self, gpus, size)
        if not groups:
            return tuple(along[start : start + size] for start in range(0, len(along), size))
        place = {gpu: index for index, gpu in enumerate(along)}
        ordered = sorted(groups, key=lambda group: min(place[gpu] for gpu in members(group)))
        return _circle(self._rates, [self.order(group) for group in ordered])

    @property
    def built(self) -> bool:
        """Whether what takes long has been worked out."""
        return self._layers is not None and self._ceiling is not None

    @property
    def tabulated(self) -> bool:
        """Whether the layers hold families of sets, and so are worth keeping for the next time."""
        return any(part.family is not None for one in self.layers for part in one.parts)

    def values(self) -> bytes:
        """All that took long to work out, for `restore` of an equal configuration's table."""
        return layers.dump((self.layers, self.ceiling), self.size)

    def restore(self, values: bytes) -> bool:
        """Take over what `values` gave; False, and nothing changes, if it makes no sense."""
        found = layers.load(values, self.size)
        if found is None:
            return False
        self._layers, self._ceiling = found
        return True

    def _computed(self, *, bound: bool) -> tuple[Layer, ...]:
        rate = cost.lane_rate(self.configuration.model)
        return layers.layers(self._rates, self._lanes, rate, bound=bound)

    def _value(self, gpus: GPUSet) -> float:
        size = count(gpus)
        if size < layers.PAIR:  # a single GPU talks to nobody
            return UNLIMITED
        if self.uniform:
            return self._alike(gpus, size)
        return next(layer.bandwidth for layer in self.layers if layer.holds(gpus))

    def _alike(self, gpus: GPUSet, size: int) -> float:
        """The value of so many GPUs where all links are alike."""
        rings = packing.most_rings(self._lanes, gpus) if size > layers.PAIR else 0
        return 2 * rings * cost.lane_rate(self.configuration.model) if rings else self._rates[0][1]

    def _extreme(self, free: GPUSet, size: int, *, best: bool) -> float:
        """The most or the least bandwidth of any `size` of these GPUs; 0 without any."""
        many = math.comb(count(free), size)
        measured = self._measured(free, size)
        if self.uniform or many <= FEW or (measured and many <= CHOICES):
            return (max if best else min)(map(self.value, self.subsets(free, size)), default=0.0)
        if size < layers.PAIR:
            return UNLIMITED
        if not best:
            return min([self._slowest(free, size), *measured])
        return max([self._fastest(free, size, measured=bool(measured)), *measured])

    def _fastest(self, free: GPUSet, size: int, *, measured: bool) -> float:
        """The most bandwidth of any `size` of these GPUs that nobody measured."""
        for layer in self.layers:
            if layer.fits(free, size):
                if not measured:
                    return layer.bandwidth
                # With too many sets to go through, one that was not measured is good enough.
                if any(one not in self.measured for one in layer.examples(free, size)):
                    return layer.bandwidth
        return 0.0

    def _slowest(self, free: GPUSet, size: int) -> float:
        """The least bandwidth of any `size` of these GPUs; measured ones count as computed."""
        rising = reversed(self.layers)
        slowest = next(rising).bandwidth
        for layer in rising:
            if layer.has_slower(free, size):
                break
            slowest = layer.bandwidth
        return slowest

    def _least(self, free: GPUSet, left: int, size: int) -> float:
        if left < size:
            return 0.0
        if size < layers.PAIR:
            return UNLIMITED
        if self.uniform:
            return self.best(free, size)
        measured = self._measured(free, size)
        many = math.comb(count(free), left)
        if many <= FEW or (measured and many <= CHOICES):
            return min(self.best(rest, size) for rest in self.subsets(free, left))
        reached = next(one.bandwidth for one in self.layers if one.fits_any(free, left, size))
        # With too many sets to go through, the slowest one measured may be all that is left.
        return min([reached, *measured])

    def _measured(self, free: GPUSet, size: int) -> list[float]:
        """The measured values of all sets of `size` of these GPUs."""
        return [
            value
            for gpus, value in self.measured.items()
            if not gpus & ~free and count(gpus) == size
        ]

    def _twins(self, one: int, other: int) -> bool:
        links = self.configuration.links
        if any(
            links[one][gpu] != links[other][gpu]
            for gpu in range(self.size)
            if gpu not in (one, other)
        ):
            return False
        both = 1 << one | 1 << other
        return all(
            gpus & both in (0, both) or self.measured.get(GPUSet(gpus ^ both)) == value
            for gpus, value in self.measured.items()
        )


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


def _fair(table: Table, gpus: GPUSet, size: int) -> tuple[GPUSet, ...]:
    """Disjoint groups of `size` that cover a large set: largest slowest group, fast groups first.

    Nothing where that takes more than `CHOICES` steps.
    """
    steps = packing.Budget(CHOICES)
    floors = sorted({layer.bandwidth for layer in table.layers} | {*table.measured.values()})
    fits = {layer.bandwidth: layer.groups(gpus, size) for layer in table.layers}
    for floor in reversed(floors):
        if table.measured or fits[floor] * size == count(gpus):
            found = _groups(table, gpus, size, floor, steps)
            if found is not None or steps.spent:
                return found or ()
    return ()


def _groups(
    table: Table, gpus: GPUSet, size: int, floor: float, steps: packing.Budget
) -> tuple[GPUSet, ...] | None:
    """Disjoint groups of `size` that cover a set, each at least so fast, fast ones first."""
    dead: set[int] = set()

    def fill(rest: int) -> tuple[GPUSet, ...] | None:
        if not rest:
            return ()
        if rest in dead:
            return None
        groups = [
            one for one in with_lowest(rest, size) if steps.step() and table.value(one) >= floor
        ]
        for group in sorted(groups, key=table.value, reverse=True):
            others = fill(rest & ~group)
            if others is not None:
                return group, *others
        dead.add(rest)
        return None

    return fill(gpus)


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
