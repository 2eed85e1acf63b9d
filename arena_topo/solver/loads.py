"""Loads: the value of the GPUs that a job takes on one node, by set, and the best over all sets.

The bandwidth of a job is the minimum over its nodes and the network (`bandwidth.estimate`), so each
node can be valued on its own. The value depends on the job as a whole through few numbers, its
`Terms`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

from arena_topo.bandwidth import Host, Wire, estimate, nearest_nics, usual_nics
from arena_topo.solver.fragmentation import PackingCost
from arena_topo.solver.gpu_sets import SMALL, GPUSets, choices, firsts, gpu_sets, splits
from arena_topo.solver.memo import remembered
from arena_topo.topology import NIC, Configuration, GPUSet, Link, Machine, count, gpu_set


class Hosts(StrEnum):
    """The hosts of a job as NCCL counts them, as far as they decide the traffic."""

    NODE = "one node holds the whole job"
    TWO = "two hosts"
    SEVERAL = "three hosts or more"
    DOMAIN = "one NVLink domain over several nodes"


AMONG = {Hosts.TWO: 2, Hosts.SEVERAL: 3}


class Terms(NamedTuple):
    """The parameters of a job that decide the value of a node.

    Workers of `gpus` GPUs each, `ranks` GPUs in all; workers of a node are `joined` to one host, or
    are hosts of their own. `rated`: the network has a rate, so assumed NICs do not count; `given`:
    that rate was given, not derived.
    """

    hosts: Hosts
    gpus: int
    ranks: int
    joined: bool
    wire: Wire
    rated: bool = False
    given: bool = False


class Floor(NamedTuple):
    """The minimum value in GB/s of a node's GPUs for the pods of a job, and for joined pods."""

    terms: Terms
    bandwidth: float
    joined: Terms
    inside: float = 0.0


MOST_SPLITS = 120
"""The most ways of splitting a set into pods that are compared: all of 8 GPUs into pairs."""


class Loads:
    """The values of GPU sets of machines of one kind, cached by terms."""

    def __init__(self, machine: Machine, sets: GPUSets) -> None:
        self.machine = usual_nics(machine)
        self.sets = sets
        nics = [nearest_nics(self.machine, gpu) for gpu in range(sets.size)]
        speeds = {self.machine.nics[nic].speed for own in nics for nic in own}
        self._known = bool(machine.nics) and None not in speeds
        several = {nic for own in nics for nic in own}
        apart = sum(map(len, nics)) == len(several) and len({len(own) for own in nics}) <= 1
        self._even = apart or len(set(nics)) <= 1
        """Whether all GPUs have equally many NICs, all sharing them or each with its own."""
        self._homes = _homes(self.machine, nics) if sets.uniform and len(speeds) <= 1 else ()
        self._alike = firsts(
            sets.size,
            lambda gpu, peer: (
                sets.alike[gpu] == sets.alike[peer] and (apart or nics[gpu] == nics[peer])
            ),
        )

    def assumed(self, terms: Terms) -> bool:
        """Whether the network of a node rests on a rate that was not given."""
        if terms.hosts in {Hosts.NODE, Hosts.DOMAIN} or terms.given:
            return False
        if terms.wire is Wire.TCP:
            return not any(nic.speed for nic in self.machine.nics)
        return not self._known

    def rate(self, chosen: GPUSet, terms: Terms) -> float:
        """GB/s that these GPUs of a node allow to a job."""
        if self.by_count(terms):
            chosen = GPUSet((1 << count(chosen)) - 1)
        elif self._homes:
            # Only the numbers of GPUs that share NICs matter: a canonical set with the same
            # numbers.
            shares = sorted(count(GPUSet(chosen & gpu_set(home))) for home in self._homes)
            pairs = zip(self._homes, reversed(shares), strict=True)
            chosen = gpu_set(gpu for home, share in pairs for gpu in home[:share])
        return self._cached_value(chosen, terms)

    @remembered
    def _cached_value(self, chosen: GPUSet, terms: Terms) -> float:
        return self._worth(chosen, terms)[0]

    @remembered
    def pods(self, chosen: GPUSet, terms: Terms) -> tuple[tuple[int, ...], ...]:
        """The GPUs of each worker, in the split with the most bandwidth."""
        return self._worth(chosen, terms)[1]

    @remembered
    def best(self, free: GPUSet, size: int, terms: Terms) -> float:
        """The maximum value of any `size` of these GPUs; 0 if there are not enough."""
        if count(free) < size:
            return 0.0
        if self.by_count(terms) or self.sets.size > SMALL:
            return max(self.rate(gpus, terms) for gpus in self.choices(free, size, terms))
        return next(value for value, gpus in self._ranked(size, terms) if not gpus & ~free)

    @remembered
    def worst_set(self, free: GPUSet, size: int, terms: Terms) -> GPUSet:
        """The set of `size` of these GPUs with the minimum value."""
        return min(self.choices(free, size, terms), key=lambda gpus: self.rate(gpus, terms))

    def worst(self, free: GPUSet, size: int, terms: Terms) -> float:
        """The minimum value of any `size` of these GPUs; 0 if there are not enough."""
        return self.rate(self.worst_set(free, size, terms), terms) if count(free) >= size else 0.0

    def choices(self, free: GPUSet, size: int, *terms: Terms) -> Iterable[GPUSet]:
        """The sets of `size` of these GPUs by index; of sets equivalent under `terms` the first."""
        if all(map(self.by_count, terms)):
            alike: tuple[int, ...] = (0,) * self.sets.size
        else:
            alike = self._alike if any(map(_counts_nics, terms)) else self.sets.alike
        return self.sets.choices(free, size, alike)

    @remembered
    def values(self, size: int, terms: Terms) -> frozenset[float]:
        """The values of all sets of `size` GPUs of this machine."""
        sets = self.choices(self.sets.everything, size, terms)
        return frozenset(self.rate(gpus, terms) for gpus in sets)

    @remembered
    def most_inside(self, free: GPUSet, size: int, floor: Floor) -> float:
        """The most GB/s of joined pods on these sets with a floor; 0 if no set reaches it."""
        sets = self.choices(free, size, floor.terms, floor.joined)
        fast = (gpus for gpus in sets if self.rate(gpus, floor.terms) >= floor.bandwidth)
        return max((self.rate(gpus, floor.joined) for gpus in fast), default=0.0)

    @remembered
    def cheapest(
        self, cost: PackingCost, free: GPUSet, size: int, floor: Floor
    ) -> tuple[int, GPUSet] | None:
        """The cheapest set of `size` of these GPUs with a floor, and its cost.

        Of equal sets the first by index; None if no set reaches the floor.
        """
        if cost.alike == self.sets.alike:
            sets = self.choices(free, size, floor.terms, floor.joined)
        else:
            # The cost depends on neighbours, beside the links.
            kinds = list(zip(cost.alike, self._alike, strict=True))
            sets = self.sets.choices(free, size, tuple(map(kinds.index, kinds)))
        fast = (
            (cost.cost(free, gpus), at, gpus)
            for at, gpus in enumerate(sets)
            if self.rate(gpus, floor.terms) >= floor.bandwidth
            and (not floor.inside or self.rate(gpus, floor.joined) >= floor.inside)
        )
        least = min(fast, default=None)
        return None if least is None else (least[0], least[2])

    def by_count(self, terms: Terms) -> bool:
        """Whether the value of a set depends on its size only."""
        return self.sets.uniform and (self._even or not _counts_nics(terms))

    def _worth(self, chosen: GPUSet, terms: Terms) -> tuple[float, tuple[tuple[int, ...], ...]]:
        """GB/s of a set, and the GPUs of each worker."""
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
        best, pods = first, split
        for groups in itertools.islice(splits(chosen, terms.gpus), MOST_SPLITS):
            value = self._limit(groups, terms)
            if value > best:
                best, pods = value, tuple(self.sets.order(group) for group in groups)
        return best, pods

    def _limit(self, groups: Iterable[GPUSet], terms: Terms) -> float:
        value = estimate(
            [Host.of(self.machine, group) for group in groups],
            among=AMONG.get(terms.hosts),
            ranks=terms.ranks,
            wire=terms.wire,
            network=math.inf if terms.rated else None,
        )
        assert value is not None, "a job of several hosts has several GPUs"
        return value.point

    @remembered
    def _ranked(self, size: int, terms: Terms) -> list[tuple[float, GPUSet]]:
        """All sets of a size, the best first."""
        sets = choices(self.sets.everything, size, tuple(range(self.sets.size)))
        return sorted(((self.rate(gpus, terms), gpus) for gpus in sets), key=lambda gpus: -gpus[0])


def _homes(machine: Machine, nics: Sequence[tuple[int, ...]]) -> Sequence[tuple[int, ...]]:
    """The groups of GPUs that share their nearest NICs; empty unless all groups are alike."""
    homes: dict[tuple[int, ...], list[int]] = {}
    for gpu, own in enumerate(nics):
        homes.setdefault(own, []).append(gpu)
    apart = sum(map(len, homes)) == len({nic for own in homes for nic in own})
    paths = {
        tuple(machine.nics[nic].attachment[gpu] for nic in own)
        for own, gpus in homes.items()
        for gpu in gpus
    }
    alike = len(paths) == 1 and len(set(map(len, homes.values()))) == 1
    return tuple(map(tuple, homes.values())) if apart and alike else ()


def _counts_nics(terms: Terms) -> bool:
    """Whether it matters which NICs are near the GPUs of a set."""
    if terms.wire is Wire.TCP or terms.hosts is Hosts.DOMAIN:
        return False
    return not (terms.hosts is Hosts.NODE and terms.joined)


@functools.lru_cache(maxsize=256)
def _loads_of(
    configuration: Configuration, nics: tuple[tuple[tuple[Link, ...], float | None], ...]
) -> Loads:
    sets = gpu_sets(configuration)
    own = tuple(
        NIC(name=str(at), attachment=attachment, speed=speed)
        for at, (attachment, speed) in enumerate(nics)
    )
    return Loads(replace(sets.facts.machine, nics=own), sets)


def loads_of(machine: Machine) -> Loads:
    """The values of the GPU sets of a machine; machines that are equal but for names share them."""
    nics = tuple((nic.attachment, nic.speed) for nic in machine.nics)
    return _loads_of(machine.configuration, nics)
