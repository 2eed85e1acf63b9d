"""What the GPUs that a job takes on one node are worth to it: by set, and the best of all sets.

The bandwidth of a job is the least of what each of its nodes and the network allow
(`bandwidth.limit`), so that each node can be asked on its own. What a node allows depends on the
job as a whole through few numbers, its `Terms`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

from arena_topo.bandwidth import Host, Wire, limit, nearest_nics, usual_nics
from arena_topo.solver.fragmentation import Damage
from arena_topo.solver.gpu_sets import SMALL, GPUSets, choices, gpu_sets, with_lowest
from arena_topo.topology import NIC, Configuration, GPUSet, Machine, count, gpu_set, members


class Hosts(StrEnum):
    """How NCCL counts the hosts of a job, as far as it decides the traffic."""

    NODE = "one node holds the whole job"
    TWO = "two hosts"
    SEVERAL = "three hosts or more"
    DOMAIN = "one NVLink domain over several nodes"


AMONG = {Hosts.TWO: 2, Hosts.SEVERAL: 3}


class Terms(NamedTuple):
    """What of a job decides what a node is worth to it.

    Workers of `gpus` GPUs each, `ranks` GPUs in all; workers of a node are `joined` to one host, or
    are hosts of their own. `rated`: the network has a rate, so that assumed NICs do not count;
    `given`: somebody gave that very rate.
    """

    hosts: Hosts
    gpus: int
    ranks: int
    joined: bool
    wire: Wire
    rated: bool = False
    given: bool = False


class Floor(NamedTuple):
    """GB/s that GPUs of a node must be worth to the pods of a job, and to joined pods."""

    terms: Terms
    bandwidth: float
    joined: Terms
    inside: float = 0.0


MOST_SPLITS = 120
"""Ways to share a set out to pods that are compared: all of 8 GPUs to pairs."""


class Loads:
    """The worth of GPU sets of machines of one kind to jobs; worked out once for each terms."""

    def __init__(self, machine: Machine, sets: GPUSets) -> None:
        self.machine = usual_nics(machine)
        self.sets = sets
        self._cards = [nearest_nics(self.machine, gpu) for gpu in range(sets.size)]
        self.known = all(
            self.machine.nics[card].speed is not None for own in self._cards for card in own
        ) and bool(machine.nics)
        """Whether somebody gave the speed of the NICs."""
        several = {card for own in self._cards for card in own}
        self._own = sum(map(len, self._cards)) == len(several) and (
            len({len(own) for own in self._cards}) <= 1
        )
        self._even = self._own or len(set(self._cards)) <= 1
        self._alike = self._twins()
        self._got: dict[tuple[Terms, int], float] = {}
        self._best: dict[tuple[Terms, int, int], float] = {}
        self._worst: dict[tuple[Terms, int, int], GPUSet] = {}
        self._ranked: dict[tuple[Terms, int], list[tuple[float, GPUSet]]] = {}
        self._values: dict[tuple[Terms, int], frozenset[float]] = {}
        self._insides: dict[tuple[GPUSet, int, Floor], float] = {}
        self._cheapest: dict[tuple[object, ...], tuple[int, GPUSet] | None] = {}
        self._pods: dict[tuple[Terms, int], tuple[tuple[int, ...], ...]] = {}

    def assumed(self, terms: Terms) -> bool:
        """Whether what joins a node to others rests on a rate that nobody gave."""
        if terms.hosts in {Hosts.NODE, Hosts.DOMAIN} or terms.given:
            return False
        if terms.wire is Wire.TCP:
            return not any(nic.speed for nic in self.machine.nics)
        return not self.known

    def got(self, chosen: GPUSet, terms: Terms) -> float:
        """GB/s that a job gets as far as these GPUs of a node limit it."""
        chosen = self._canonical(chosen, terms)
        key = (terms, chosen)
        found = self._got.get(key)
        if found is None:
            found = self._got[key] = self._worth(chosen, terms)[0]
        return found

    def pods(self, chosen: GPUSet, terms: Terms) -> tuple[tuple[int, ...], ...]:
        """The GPUs of each worker, as the job gets most of them."""
        key = (terms, chosen)
        found = self._pods.get(key)
        if found is None:
            found = self._pods[key] = self._worth(chosen, terms)[1]
        return found

    def best(self, free: GPUSet, size: int, terms: Terms) -> float:
        """The most that any `size` of these GPUs are worth; 0 if there are not enough."""
        free = self._canonical(free, terms)
        key = (terms, free, size)
        found = self._best.get(key)
        if found is None:
            found = self._best[key] = self._most(free, size, terms)
        return found

    def worst_set(self, free: GPUSet, size: int, terms: Terms) -> GPUSet:
        """The `size` of these GPUs that are worth least."""
        key = (terms, free, size)
        found = self._worst.get(key)
        if found is None:
            every = self.choices(free, size, terms)
            found = self._worst[key] = min(every, key=lambda one: self.got(one, terms))
        return found

    def worst(self, free: GPUSet, size: int, terms: Terms) -> float:
        """The least that any `size` of these GPUs are worth; 0 if there are not enough."""
        return self.got(self.worst_set(free, size, terms), terms) if count(free) >= size else 0.0

    def choices(self, free: GPUSet, size: int, *terms: Terms) -> Iterable[GPUSet]:
        """The sets of `size` of these GPUs by index; of sets alike under all terms the first."""
        if all(map(self.by_count, terms)):
            inside = members(free)
            return [gpu_set(inside[:size])] if size <= len(inside) else []
        if not any(map(self._matters, terms)) or not self.sets.certain(free, size):
            return self.sets.choices(free, size)
        return choices(free, size, self._alike)

    def values(self, size: int, terms: Terms) -> frozenset[float]:
        """What the sets of `size` GPUs of such a machine are worth."""
        key = (terms, size)
        found = self._values.get(key)
        if found is None:
            every = self.choices(self.sets.everything, size, terms)
            found = self._values[key] = frozenset(self.got(one, terms) for one in every)
        return found

    def most_inside(self, free: GPUSet, size: int, floor: Floor) -> float:
        """The most that joined pods get of these sets with a floor; 0 where none has it."""
        key = (free, size, floor)
        found = self._insides.get(key)
        if found is None:
            some = self.choices(free, size, floor.terms, floor.joined)
            fast = (one for one in some if self.got(one, floor.terms) >= floor.bandwidth)
            found = max((self.got(one, floor.joined) for one in fast), default=0.0)
            self._insides[key] = found
        return found

    def cheapest(
        self, damage: Damage, free: GPUSet, size: int, floor: Floor
    ) -> tuple[int, GPUSet] | None:
        """The set of `size` of these GPUs with a floor that costs least, and its price.

        Of equal sets the first by index; None if none is worth so much.
        """
        key = (damage, free, size, floor)
        if key not in self._cheapest:
            least: tuple[int, GPUSet] | None = None
            for one in self._priced(damage, free, size, floor):
                if self.got(one, floor.terms) < floor.bandwidth:
                    continue
                if floor.inside and self.got(one, floor.joined) < floor.inside:
                    continue
                price = damage.price(free, one)
                if least is None or price < least[0]:
                    least = (price, one)
            self._cheapest[key] = least
        return self._cheapest[key]

    def _priced(self, damage: Damage, free: GPUSet, size: int, floor: Floor) -> Iterable[GPUSet]:
        if damage.alike == self.sets.alike or not self.sets.certain(free, size):
            return self.choices(free, size, floor.terms, floor.joined)
        # Neighbours count as well as links.
        kinds = list(zip(damage.alike, self._alike, strict=True))
        return choices(free, size, tuple(map(kinds.index, kinds)))

    # What a set is worth

    def _worth(self, chosen: GPUSet, terms: Terms) -> tuple[float, tuple[tuple[int, ...], ...]]:
        workers = count(chosen) // terms.gpus
        split = self.sets.split(chosen, terms.gpus)
        if terms.hosts is Hosts.DOMAIN:
            return self.sets.facts.in_domain(chosen, terms.ranks), split
        if terms.hosts is Hosts.NODE and (terms.joined or workers == 1):
            return self.sets.value(chosen), split
        if terms.joined:
            return self._limit((chosen,), terms), split
        first = self._limit(map(gpu_set, split), terms)
        if self._even or terms.wire is Wire.TCP or terms.gpus == 1 or workers == 1:
            return first, split
        best, found = first, split
        for groups in itertools.islice(_splits(chosen, terms.gpus), MOST_SPLITS):
            value = self._limit(groups, terms)
            if value > best:
                best, found = value, tuple(self.sets.order(one) for one in groups)
        return best, found

    def _limit(self, groups: Iterable[GPUSet], terms: Terms) -> float:
        hosts = [Host.of(self.machine, one) for one in groups]
        whole = terms.hosts is Hosts.NODE
        return limit(
            hosts,
            among=None if whole else AMONG[terms.hosts],
            ranks=terms.ranks,
            wire=terms.wire,
            network=math.inf if terms.rated else None,
        )

    # Which sets have to be looked at

    def _matters(self, terms: Terms) -> bool:
        """Whether it matters which NICs are near the GPUs of a set."""
        if terms.wire is Wire.TCP or terms.hosts is Hosts.DOMAIN:
            return False
        return not (terms.hosts is Hosts.NODE and terms.joined)

    def by_count(self, terms: Terms) -> bool:
        """Whether a set is worth what its size is worth."""
        return self.sets.uniform and (self._even or not self._matters(terms))

    def _canonical(self, chosen: GPUSet, terms: Terms) -> GPUSet:
        return GPUSet((1 << count(chosen)) - 1) if self.by_count(terms) else chosen

    def _most(self, free: GPUSet, size: int, terms: Terms) -> float:
        if count(free) < size:
            return 0.0
        if self.by_count(terms) or self.sets.size > SMALL:
            return max(self.got(one, terms) for one in self.choices(free, size, terms))
        return next(value for value, one in self._list(size, terms) if not one & ~free)

    def _list(self, size: int, terms: Terms) -> list[tuple[float, GPUSet]]:
        """All sets of a size, the best first."""
        found = self._ranked.get((terms, size))
        if found is None:
            every = choices(self.sets.everything, size, tuple(range(self.sets.size)))
            found = [(self.got(one, terms), one) for one in every]
            found.sort(key=lambda one: -one[0])
            self._ranked[terms, size] = found
        return found

    def _twins(self) -> tuple[int, ...]:
        """GPUs that may stand for each other: the same links, and the same NICs or each its own."""
        first: list[int] = []
        for gpu, kind in enumerate(self.sets.alike):
            twins = (
                one
                for one in range(gpu)
                if first[one] == one
                and self.sets.alike[one] == kind
                and (self._own or self._cards[one] == self._cards[gpu])
            )
            first.append(next(twins, gpu))
        return tuple(first)


@functools.lru_cache(maxsize=256)
def _loads_of(configuration: Configuration, nics: tuple[NIC, ...]) -> Loads:
    sets = gpu_sets(configuration)
    return Loads(replace(sets.facts.machine, nics=nics), sets)


def loads_of(machine: Machine) -> Loads:
    """The worth of the GPU sets of a machine; machines alike but for names share it."""
    nics = tuple(replace(nic, name=str(at)) for at, nic in enumerate(machine.nics))
    return _loads_of(machine.configuration, nics)


def _splits(chosen: GPUSet, size: int) -> Iterator[tuple[GPUSet, ...]]:
    """All ways to share a set out to groups of a size."""
    if not chosen:
        yield ()
        return
    for group in with_lowest(chosen, size):
        for others in _splits(GPUSet(chosen & ~group), size):
            yield (group, *others)
