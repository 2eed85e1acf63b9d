"""Which of the equally good placements: what is left behind, and who is in the way.

`keeps` is the potential of a free set: how many whole machines, quads and pairs of full bandwidth
it still holds. A placement damages what it takes away from that, so a 1-GPU job goes where a pair
is already broken, and a pair is taken where no quad is lost. That is packing.

Spreading asks first who else is near: jobs slow each other down on a shared PCIe switch or socket.
It keeps away from busy switches, then from busy sockets, then from busy machines, and looks at the
damage after that. Both are prices: integers that add up over the nodes of a gang, so the search for
the lowest price is the same. Neither is asked before bandwidth, distance and nodes are settled.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from decimal import Decimal

from arena_topo.solver.gpu_sets import SMALL, GPUSets, with_lowest
from arena_topo.solver.request import Policy, Request
from arena_topo.topology import Cluster, GPUSet, LinkKind, Machine, Node, count, gpu_set, members

GROUP_SIZES = (1, 2, 4, 8, 16)
"""The sizes of jobs that are kept in mind; nearly all jobs ask for one of these (Philly trace)."""

WEIGHT = 64
"""How much more a group counts than one of half its size: more than a machine can hold of those,
so that no number of pairs makes up for a lost quad."""

GRAIN = 1000
"""Parts in which bandwidth relative to the best is counted, so that damage is an exact integer."""

CROWD = 1 << 32
"""More GPUs than all nodes of a gang have: one digit of interference."""

ROOM = 1 << 64
"""More than the damage of a gang: what interference counts in."""


class Damage:
    """What taking GPUs of one configuration costs later jobs, in integers; less is better."""

    def __init__(self, sets: GPUSets) -> None:
        self.sets = sets
        self.alike = sets.alike
        self._sizes = tuple(size for size in GROUP_SIZES if size <= sets.size)
        self._weights: dict[int, int] = {
            size: WEIGHT ** (size.bit_length() - 1) for size in self._sizes
        }
        self._keeps: dict[int, int] = {}
        self._packing: Callable[[int, int], int] = functools.cache(self._packed)

    @functools.cached_property
    def _full(self) -> dict[int, float]:
        return {
            size: self.sets.best(self.sets.everything, size) for size in self._sizes if size > 1
        }

    def keeps(self, free: GPUSet) -> int:
        """The potential of a free set."""
        found = self._keeps.get(free)
        if found is None:
            found = self._keeps[free] = self._potential(free)
        return found

    def price(self, free: GPUSet, chosen: GPUSet) -> int:
        """What taking these of the free GPUs costs."""
        return self.keeps(free) - self.keeps(GPUSet(free & ~chosen))

    def counted(self, free: int, size: int) -> int:
        """The price of taking `size` of `free` GPUs where nobody knows which they are."""
        return self._by_count(free) - self._by_count(free - size)

    def _potential(self, free: GPUSet) -> int:
        if self.sets.uniform:
            return self._by_count(count(free))
        if self.sets.size <= SMALL:
            singles = GRAIN * count(free)
            return singles + sum(
                self._weights[size] * self._packing(free, size) for size in self._sizes if size > 1
            )
        potential = GRAIN * count(free)
        if self._islands:
            for size in self._sizes[1:]:
                groups = sum(self._packing(free & part, size) for part in self._islands)
                potential += self._weights[size] * max(
                    groups, self._apart[size] * (count(free) // size)
                )
            return potential
        for size in self._sizes[1:]:
            for share, parts in self._shares:
                groups = sum(count(GPUSet(free & part)) // size for part in parts)
                potential += self._weights[size] * share * groups
        return potential

    @functools.cached_property
    def _islands(self) -> tuple[GPUSet, ...]:
        """The parts that only the slowest links join, where groups can be packed in each."""
        levels = self.sets.parts
        parts = levels[-2][1] if len(levels) > 1 else ()
        return parts if parts and max(map(count, parts)) <= SMALL else ()

    @functools.cached_property
    def _apart(self) -> dict[int, int]:
        """What a group over several parts is worth, beside the best of its size."""
        slowest = self.sets.parts[-1][0]
        return {size: round(GRAIN * slowest / full) for size, full in self._full.items()}

    @functools.cached_property
    def _shares(self) -> list[tuple[int, tuple[GPUSet, ...]]]:
        """By rate of a link: what a group over it is worth more than one over the next slower."""
        levels = self.sets.parts
        worths = [round(GRAIN * rate / levels[0][0]) for rate, _ in levels]
        return [
            (high - low, parts)
            for high, low, (_, parts) in zip(worths, [*worths[1:], 0], levels, strict=True)
        ]

    def _by_count(self, left: int) -> int:
        """The potential of so many GPUs of which any are as good as the best."""
        return sum(weight * GRAIN * (left // size) for size, weight in self._weights.items())

    def _packed(self, free: int, size: int) -> int:
        if free.bit_count() < size:
            return 0
        packings = [self._packing(free & (free - 1), size)]
        for group in with_lowest(free, size):
            worth = round(GRAIN * self.sets.value(group) / self._full[size])
            packings.append(worth + self._packing(free ^ group, size))
        return max(packings)


Proximity = tuple[tuple[int, ...], ...]
"""How near the GPUs of a machine are on its PCIe side; see `SWITCH`, `SOCKET` and `MACHINE`."""

SWITCH, SOCKET, MACHINE = 2, 1, 0
"""Two GPUs share a PCIe switch, or a socket, or no more than the machine as far as is known."""


class Spread(Damage):
    """Prices that keep a job away from GPUs in use: off their switches, sockets, machines.

    The price of a set is a number of four digits, high to low: how many GPUs in use share a PCIe
    switch with a GPU of the set, how many a socket, how many the machine, and the damage. In use is
    every GPU of the machine that is not free; GPUs in use that nobody can name are anywhere, so
    they count as the worst. Prices of the nodes of a gang add up digit by digit.

    Two language models that shared a PCIe switch lost 19 % each, ResNet-50 lost nothing (Xiao et
    al., Gandiva, OSDI 2018).
    """

    def __init__(self, sets: GPUSets, proximity: Proximity) -> None:
        super().__init__(sets)
        self._damage = damage(sets)
        self.alike = _refined(sets.alike, proximity)
        self._whole = (1 << sets.size) - 1
        self._reach = [
            [gpu_set(other for other, near in enumerate(row) if near >= level) for row in proximity]
            for level in (SWITCH, SOCKET)
        ]

    def keeps(self, free: GPUSet) -> int:
        """The potential of a free set, the same as for packing."""
        return self._damage.keeps(free)

    def price(self, free: GPUSet, chosen: GPUSet) -> int:
        """What taking these of the free GPUs costs."""
        busy = self._whole & ~free
        crowds = []
        for reach in self._reach:
            near = 0
            for gpu in members(chosen):
                near |= reach[gpu]
            crowds.append((near & busy).bit_count())
        switch, socket = crowds
        return _crowded(switch, socket, busy.bit_count()) + super().price(free, chosen)

    def counted(self, free: int, size: int) -> int:
        """The price of taking `size` of `free` GPUs where nobody knows which they are."""
        busy = self.sets.size - free
        return _crowded(busy, busy, busy) + super().counted(free, size)


def _crowded(switch: int, socket: int, machine: int) -> int:
    return ((switch * CROWD + socket) * CROWD + machine) * ROOM


def _refined(alike: Sequence[int], proximity: Proximity) -> tuple[int, ...]:
    """Of GPUs that may stand for each other those that also have the same neighbours."""
    first: list[int] = []
    for gpu, kind in enumerate(alike):
        twins = (
            one
            for one in range(gpu)
            if first[one] == one
            and alike[one] == kind
            and all(
                proximity[one][other] == proximity[gpu][other]
                for other in range(len(alike))
                if other not in (one, gpu)
            )
        )
        first.append(next(twins, gpu))
    return tuple(first)


@functools.lru_cache(maxsize=256)
def damage(sets: GPUSets) -> Damage:
    """The damages of a configuration, worked out once."""
    return Damage(sets)


@functools.lru_cache(maxsize=256)
def spreading(sets: GPUSets, proximity: Proximity) -> Spread:
    """The prices of spreading over machines of a configuration, worked out once."""
    return Spread(sets, proximity)


def proximity(machine: Machine) -> Proximity:
    """How near the GPUs of a machine are on its PCIe side.

    PIX and PXB are a PCIe switch, PHB and NODE a socket. NVLink hides the PCIe path below it; then
    a NIC or a GPU that both are near to tells, or their NUMA node. What nothing tells counts as
    sharing the machine only.
    """
    size = len(machine.gpus)
    points = [*range(size), *range(size, size + len(machine.nics))]
    near = [[MACHINE] * len(points) for _ in points]

    def told(one: int, other: int, kind: LinkKind) -> None:
        level = _LEVELS.get(kind, MACHINE)
        near[one][other] = near[other][one] = max(level, near[one][other])

    for one in range(size):
        for other in range(one):
            told(one, other, machine.link(one, other).kind)
            numa = machine.gpus[one].numa
            if numa is not None and numa == machine.gpus[other].numa:
                told(one, other, LinkKind.NODE)
        for place, nic in enumerate(machine.nics, start=size):
            if one < len(nic.attachment):
                told(one, place, nic.attachment[one].kind)
    for between in points:
        for one in points:
            through = near[one][between]
            if through:
                for other, reached in enumerate(near[between]):
                    near[one][other] = max(near[one][other], min(through, reached))
    return tuple(
        tuple(SWITCH if one == other else near[one][other] for other in range(size))
        for one in range(size)
    )


_LEVELS = {
    LinkKind.PIX: SWITCH,
    LinkKind.PXB: SWITCH,
    LinkKind.PHB: SOCKET,
    LinkKind.NODE: SOCKET,
}


def spreads(request: Request, cluster: Cluster) -> bool:
    """Whether a job is placed away from GPUs in use rather than packed.

    `adaptive` spreads jobs that some machine could hold whole, while less than `pack_above` of the
    cluster's GPUs are in use: at low load neighbours are what costs, at high load the room that
    large jobs no longer find (the load-dependent placement of Xiao). In use are the healthy GPUs,
    of nodes that take pods and do not share GPUs, that are not free.
    """
    if request.policy is not Policy.ADAPTIVE:
        return request.policy is Policy.SPREAD
    usable = [one for one in cluster.nodes if one.unavailable is None and one.shared is None]
    size = request.workers * request.gpus
    if not any(_healthy(one) >= size for one in usable if _may_use(request, one)):
        return False
    healthy = sum(map(_healthy, usable))
    busy = healthy - sum(min(one.free_count, _healthy(one)) for one in usable)
    # As written: 0.7 of ten GPUs are seven, not a little more.
    limit = Decimal(repr(request.pack_above)) if math.isfinite(request.pack_above) else Decimal(1)
    return Decimal(busy) < limit * healthy


def _healthy(node: Node) -> int:
    return len(node.machine.gpus) if node.allocatable is None else count(node.allocatable)


def _may_use(request: Request, node: Node) -> bool:
    model = request.model.casefold() if request.model else None
    return node.name not in request.excluded and model in (
        None,
        (node.machine.model or "").casefold(),
    )
