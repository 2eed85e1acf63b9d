"""Loads: the value of the GPUs that a job takes on one node, by set, and the best over all sets.

The bandwidth of a job is the minimum over its nodes and the network (`bandwidth.estimate`), so each
node can be valued on its own. The value depends on the job as a whole through few numbers, its
`Terms`.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

from arena_topo.bandwidth import Host, Regime, Wire, packing
from arena_topo.bandwidth.nics import nearest_nics, usual_nics
from arena_topo.bandwidth.several_hosts import estimate, measured_between
from arena_topo.solver.fragmentation import PACKING, PackingCost
from arena_topo.solver.gpu_sets import SMALL, GPUSets, choices, firsts, gpu_sets, splits
from arena_topo.solver.memo import remembered
from arena_topo.topology import (
    NIC,
    Configuration,
    GPUSet,
    Link,
    LinkKind,
    Machine,
    count,
    gpu_set,
    members,
)


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
    are hosts of their own. `network`, `nearer` and `limit` are GB/s as in `bandwidth.estimate` and
    its hosts, as far as they limit some nodes more than others; for a network of known rate that
    limits all alike, `network` is infinite.
    """

    hosts: Hosts
    gpus: int
    ranks: int
    joined: bool
    wire: Wire
    network: float | None = None
    nearer: float = math.inf
    limit: float = math.inf


class Floor(NamedTuple):
    """The minimum value in GB/s of a node's GPUs for the pods of a job, and for joined pods."""

    terms: Terms
    bandwidth: float
    joined: Terms
    inside: float = 0.0


DIGIT = 1 << 32
"""More crossings and steps than all nodes of a gang have: the base of the digits of nearness."""

NEARNESS = DIGIT**4
"""More than the nearness of any gang: the unit of its cost of fragmentation."""

MOST_KNOWN = 4_096
"""The most machines with links of their own whose values are found without a comparison."""

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
        self.alike = sets.uniform and self._even
        """Whether all sets of a size are worth the same to any job."""
        self._steps = tuple(
            max((_STEPS[self.machine.nics[nic].attachment[gpu].kind] for nic in own), default=0)
            for gpu, own in enumerate(nics)
        )
        """How far the NICs of each GPU are."""
        self._homes = _homes(self.machine, nics) if sets.uniform and len(speeds) <= 1 else ()
        self._alike = firsts(
            sets.size,
            lambda gpu, peer: (
                sets.alike[gpu] == sets.alike[peer] and (apart or nics[gpu] == nics[peer])
            ),
        )

    def assumed(self, terms: Terms) -> bool:
        """Whether what joins the hosts of a job rests on a rate that was not given.

        Pods of one node with a hostname each use its NICs too.
        """
        if terms.hosts is Hosts.NODE:
            several = not terms.joined and terms.ranks > terms.gpus
            rated = terms.network is not None or terms.wire is Wire.TCP
            return several and not rated and self.nics_assumed(terms.wire)
        if terms.hosts is Hosts.DOMAIN or terms.network is not None:
            return False
        if measured_between((self.machine,), AMONG[terms.hosts], terms.wire):
            return False
        return self.nics_assumed(terms.wire)

    def nics_assumed(self, wire: Wire) -> bool:
        """Whether nobody gave the speed of the NICs that pods use over a wire."""
        if wire is Wire.TCP:
            return not any(nic.speed for nic in self.machine.nics)
        return not self._known

    def measured(self, wire: Wire) -> bool:
        """Whether a calibration of the machine measured jobs of several hosts over a wire."""
        return any(measured_between((self.machine,), hosts, wire) for hosts in AMONG.values())

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
    def speeds(
        self,
        free: GPUSet,
        most: int,
        terms: Terms,
        picked: bool,  # noqa: FBT001
    ) -> tuple[float, ...]:
        """The value of 1, 2, ... workers on these GPUs; with `picked`, as the kubelet picks."""
        value = self.worst if picked else self.best
        return tuple([value(free, load * terms.gpus, terms) for load in range(1, most + 1)])

    @remembered
    def worst_set(self, free: GPUSet, size: int, terms: Terms) -> GPUSet:
        """The set of `size` of these GPUs with the minimum value, as the kubelet may split it."""
        return min(
            self.choices(free, size, terms), key=lambda gpus: self._slowest_split(gpus, terms)[0]
        )

    def worst(self, free: GPUSet, size: int, terms: Terms) -> float:
        """The minimum value of any `size` of these GPUs; 0 if there are not enough."""
        if count(free) < size:
            return 0.0
        return self._slowest_split(self.worst_set(free, size, terms), terms)[0]

    def worst_pods(self, free: GPUSet, size: int, terms: Terms) -> tuple[tuple[int, ...], ...]:
        """The GPUs of each worker, if the kubelet picks the slowest of these GPUs for each."""
        return self._slowest_split(self.worst_set(free, size, terms), terms)[1]

    @remembered
    def _slowest_split(
        self, chosen: GPUSet, terms: Terms
    ) -> tuple[float, tuple[tuple[int, ...], ...]]:
        """GB/s of a set whose pods the kubelet gives their GPUs, and the GPUs of each worker."""
        worst, pods = self.rate(chosen, terms), self.pods(chosen, terms)
        apart = terms.hosts is not Hosts.DOMAIN and not terms.joined
        if apart and len(pods) > 1 and terms.gpus > 1 and not self.by_count(terms):
            for groups in itertools.islice(splits(chosen, terms.gpus), MOST_SPLITS):
                value = self._limit(groups, terms)
                if value < worst:
                    worst, pods = value, tuple(self.sets.order(group) for group in groups)
        return worst, pods

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
        """The nearest set of `size` of these GPUs with a floor, and the price of the node.

        The price is the least cost of fragmentation of any set, then the least nearness: so no node
        is preferred for a nearer set that breaks more. On the node the set avoids GPUs in use if
        the job is spread; then it is near, then it breaks little, then the first by index counts.
        None if no set reaches the floor.
        """
        steps = self._steps if _counts_nics(floor.terms) else ()
        if cost.alike == self.sets.alike and len(set(steps)) <= 1:
            sets = self.choices(free, size, floor.terms, floor.joined)
        else:
            # The cost depends on neighbours and on the way to the NICs, beside the links.
            kinds = list(zip(cost.alike, self._alike, self._steps, strict=True))
            sets = self.sets.choices(free, size, tuple(map(kinds.index, kinds)))
        fast = [
            ((own := cost.cost(free, gpus)) // PACKING, self.nearness(gpus, floor.terms), own, gpus)
            for gpus in sets
            if self.rate(gpus, floor.terms) >= floor.bandwidth
            and (not floor.inside or self.rate(gpus, floor.joined) >= floor.inside)
        ]
        if not fast:
            return None
        _, nearness, _, nearest = min(fast, key=operator.itemgetter(0, 1, 2))
        return min(own for _, _, own, _ in fast) * NEARNESS + nearness, nearest

    def prices(
        self, cost: PackingCost, free: GPUSet, workers: tuple[int, ...], floor: Floor
    ) -> dict[int, int]:
        """The price of each of these numbers of workers that a set of GPUs with a floor holds."""
        sets = (
            (load, self.cheapest(cost, free, load * floor.terms.gpus, floor)) for load in workers
        )
        return {load: nearest[0] for load, nearest in sets if nearest is not None}

    @remembered
    def nearness(self, chosen: GPUSet, terms: Terms) -> int:
        """How near these GPUs are to each other and to their NICs: smaller is nearer.

        Digits, high to low: crossings of sockets, from one host bridge to another, and through one,
        then steps to NICs. Only what the job uses counts: no PCIe below an NVSwitch or a ring of
        NVLinks, nor where GPUs do not reach each other directly, and no NICs on a single host.
        """
        if terms.hosts is Hosts.DOMAIN:
            return 0
        groups = [chosen] if terms.joined else map(gpu_set, self.pods(chosen, terms))
        crossings = [0, 0, 0]
        for group in groups if not self.sets.uniform else ():
            if count(group) > 1 and self.sets.facts.inside(group).regime in _OVER_PCIE:
                own = members(group)
                for digit, kind in enumerate((LinkKind.SYS, LinkKind.NODE, LinkKind.PHB)):
                    crossings[digit] += len(packing.components(own, self._beyond(kind))) - 1
        steps = sum(self._steps[gpu] for gpu in members(chosen)) if _counts_nics(terms) else 0
        return functools.reduce(lambda high, low: high * DIGIT + low, (*crossings, steps))

    def _beyond(self, kind: LinkKind) -> Callable[[int, int], bool]:
        links = self.machine.links
        return lambda gpu, peer: (link := links[gpu][peer]) is not None and link.kind > kind

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
            [Host.of(self.machine, group, limit=terms.limit) for group in groups],
            among=AMONG.get(terms.hosts),
            ranks=terms.ranks,
            wire=terms.wire,
            network=terms.network,
            nearer=terms.nearer,
        )
        assert value is not None, "a job of several hosts has several GPUs"
        return value.point

    @remembered
    def _ranked(self, size: int, terms: Terms) -> list[tuple[float, GPUSet]]:
        """All sets of a size, the best first."""
        sets = choices(self.sets.everything, size, tuple(range(self.sets.size)))
        return sorted(((self.rate(gpus, terms), gpus) for gpus in sets), key=lambda gpus: -gpus[0])


_OVER_PCIE = frozenset({Regime.PCIE, Regime.ISLANDS, Regime.NO_RING})
"""The regimes of a host in which GPUs reach each other over PCIe."""

_STEPS = {
    kind: steps
    for steps, kind in enumerate(
        (LinkKind.PIX, LinkKind.PXB, LinkKind.PHB, LinkKind.NODE, LinkKind.SYS)
    )
} | {LinkKind.NVLINK: 0}
"""The steps on the way from a GPU to a NIC, by its path."""


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
    # Comparing matrices is slow, and the machines of a kind usually share theirs.
    key = (
        *(id(machine.links), id(machine.nics), id(machine.measured), id(machine.software)),
        *(machine.model, machine.nvswitch, machine.pcie_generation),
    )
    known = _KNOWN.get(key)
    if known is None:
        if len(_KNOWN) >= MOST_KNOWN:
            _KNOWN.clear()
        nics = tuple((nic.attachment, nic.speed) for nic in machine.nics)
        known = _KNOWN[key] = machine, _loads_of(machine.configuration, nics)
    return known[1]


_KNOWN: dict[tuple[object, ...], tuple[Machine, Loads]] = {}
"""The values of machines by the identity of their parts, which the machine keeps alive."""
