"""Which of the equally good placements: what is left for later jobs, and who is nearby.

The potential of a free set is how many whole machines, quads and pairs of full bandwidth it still
holds. The cost of a placement is what it takes away from that, so a 1-GPU job goes where a pair is
broken already, and a pair is taken where no quad is lost. That is packing.

Spreading asks first who else is near: jobs slow each other down on a shared PCIe switch or socket.
It keeps away from busy switches, then from busy sockets, then from busy machines, and then packs.
Both costs are integers that add up over the nodes of a gang, so the search for the least is the
same. Neither counts before bandwidth, distance and nodes are settled.
"""

from __future__ import annotations

import functools
import operator

from arena_topo.solver import Policy, Request
from arena_topo.solver.gpu_sets import GRAIN, SMALL, GPUSets, firsts
from arena_topo.solver.memo import remembered
from arena_topo.topology import Cluster, GPUSet, LinkKind, Machine, Node, count, gpu_set, members

GROUP_SIZES = (1, 2, 4, 8, 16)
"""The sizes of jobs that are kept in mind; nearly all jobs ask for one of these (Philly trace)."""

WEIGHT = 64
"""How much more a group counts than one of half its size: more than a machine can hold of those,
so that no number of pairs makes up for a lost quad."""

CROWD = 1 << 32
"""More GPUs than all nodes of a gang have: one digit of interference."""

PACKING = 1 << 64
"""More than the cost of packing a gang: what interference counts in."""


class PackingCost:
    """What taking GPUs of one configuration costs later jobs."""

    def __init__(self, sets: GPUSets) -> None:
        self.sets = sets
        self.alike = sets.alike
        """For each GPU the first that may stand for it in a set without changing its cost."""
        self._weights = {
            size: WEIGHT ** (size.bit_length() - 1) for size in GROUP_SIZES if size <= sets.size
        }

    @remembered
    def potential(self, free: GPUSet) -> int:
        """The groups that a free set still holds, each by its size and bandwidth."""
        if self.sets.uniform:
            return self._by_count(count(free))
        groups = self.sets.packed if self.sets.size <= SMALL else self._in_parts
        found = GRAIN * count(free)
        for size, weight in self._weights.items():
            found += weight * groups(free, size) if size > 1 else 0
        return found

    def cost(self, free: GPUSet, chosen: GPUSet) -> int:
        """What taking these of the free GPUs costs."""
        return self.potential(free) - self.potential(GPUSet(free & ~chosen))

    def counted(self, free: int, size: int) -> int:
        """The cost of taking `size` of `free` GPUs of which it is not known which they are."""
        return self._by_count(free) - self._by_count(free - size)

    def _by_count(self, free: int) -> int:
        """The potential of so many GPUs of which any are as good as the best."""
        return sum(weight * GRAIN * (free // size) for size, weight in self._weights.items())

    def _in_parts(self, free: int, size: int) -> int:
        """What groups of a size are worth by numbers, rate by rate, in what such links join."""
        return sum(
            share * (count(GPUSet(free & part)) // size)
            for share, parts in self._shares
            for part in parts
        )

    @functools.cached_property
    def _shares(self) -> list[tuple[int, tuple[GPUSet, ...]]]:
        """By rate of a link: what a group over it is worth more than one over the next slower."""
        levels = self.sets.parts
        worths = [round(GRAIN * rate / levels[0][0]) for rate, _ in levels]
        return [
            (high - low, parts)
            for high, low, (_, parts) in zip(worths, [*worths[1:], 0], levels, strict=True)
        ]


Proximity = tuple[tuple[int, ...], ...]
"""How near the GPUs of a machine are on its PCIe side; see `SWITCH`, `SOCKET` and `MACHINE`."""

SWITCH, SOCKET, MACHINE = 2, 1, 0
"""Two GPUs share a PCIe switch, or a socket, or no more than the machine as far as is known."""


class SpreadingCost(PackingCost):
    """Costs that keep a job away from GPUs in use: off their switches, sockets, machines.

    The cost of a set is a number of four digits, high to low: how many GPUs in use share a PCIe
    switch with a GPU of the set, how many a socket, how many the machine, and the cost of packing.
    In use is every GPU of the machine that is not free; where it is not known which they are, all
    count as near. Costs of the nodes of a gang add up digit by digit.

    Two language models that shared a PCIe switch lost 19 % each, ResNet-50 lost nothing (Xiao et
    al., Gandiva, OSDI 2018).
    """

    def __init__(self, sets: GPUSets, proximity: Proximity) -> None:
        super().__init__(sets)
        self.alike = firsts(
            sets.size,
            lambda one, other: (
                sets.alike[one] == sets.alike[other]
                and all(
                    proximity[one][third] == proximity[other][third]
                    for third in range(sets.size)
                    if third not in (one, other)
                )
            ),
        )
        self._reach = [
            [gpu_set(other for other, near in enumerate(row) if near >= level) for row in proximity]
            for level in (SWITCH, SOCKET)
        ]

    def cost(self, free: GPUSet, chosen: GPUSet) -> int:
        """What taking these of the free GPUs costs."""
        busy = self.sets.everything & ~free
        switch, socket = (
            functools.reduce(operator.or_, map(reach.__getitem__, members(chosen)), 0)
            for reach in self._reach
        )
        crowd = _crowded((switch & busy).bit_count(), (socket & busy).bit_count(), busy.bit_count())
        return crowd + super().cost(free, chosen)

    def counted(self, free: int, size: int) -> int:
        """The cost of taking `size` of `free` GPUs of which it is not known which they are."""
        busy = self.sets.size - free
        return _crowded(busy, busy, busy) + super().counted(free, size)


def _crowded(switch: int, socket: int, machine: int) -> int:
    return ((switch * CROWD + socket) * CROWD + machine) * PACKING


@functools.lru_cache(maxsize=256)
def packing_cost(sets: GPUSets) -> PackingCost:
    """The costs of packing machines of a configuration, worked out once."""
    return PackingCost(sets)


@functools.lru_cache(maxsize=256)
def spreading_cost(sets: GPUSets, proximity: Proximity) -> SpreadingCost:
    """The costs of spreading over machines of a configuration, worked out once."""
    return SpreadingCost(sets, proximity)


def proximity(machine: Machine) -> Proximity:
    """How near the GPUs of a machine are on its PCIe side.

    PIX and PXB are a PCIe switch, PHB and NODE a socket. NVLink hides the PCIe path below it; then
    a NIC or a GPU that both are near to tells, or their NUMA node. What nothing tells counts as
    sharing the machine only.
    """
    gpus = range(len(machine.gpus))

    def direct(one: int, other: int) -> int:
        if one == other:
            return SWITCH
        numa = machine.gpus[one].numa
        same = numa is not None and numa == machine.gpus[other].numa
        return max(_LEVELS.get(machine.link(one, other).kind, MACHINE), SOCKET if same else MACHINE)

    def near(nic: tuple[LinkKind, ...]) -> list[int]:
        return [_LEVELS.get(kind, MACHINE) for kind in nic] + [MACHINE] * (len(gpus) - len(nic))

    thirds = [[direct(one, other) for other in gpus] for one in gpus]
    thirds += [near(tuple(link.kind for link in nic.attachment)) for nic in machine.nics]
    return tuple(
        tuple(max(min(third[one], third[other]) for third in thirds) for other in gpus)
        for one in gpus
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
    if not any(count(one.healthy) >= size for one in usable if _may_use(request, one)):
        return False
    healthy = sum(count(one.healthy) for one in usable)
    busy = healthy - sum(min(one.free_count, count(one.healthy)) for one in usable)
    # As written: 0.7 of ten GPUs are seven, not a little more.
    return round(busy - request.pack_above * healthy, 6) < 0


def _may_use(request: Request, node: Node) -> bool:
    model = request.model.casefold() if request.model else None
    own = (node.machine.model or "").casefold()
    return node.name not in request.excluded and model in {None, own}
