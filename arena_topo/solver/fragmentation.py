"""The choice among equally good placements: packing (best fit) or spreading.

The potential of a free set counts the whole machines, quads and pairs of full bandwidth in it. The
cost of a placement is the potential that it takes away: a 1-GPU job goes to a broken pair, and a
pair where no quad is lost. That is packing.

Spreading first counts the neighbours: jobs slow each other down on a shared PCIe switch or socket.
It avoids busy switches, then busy sockets, then busy machines, and then packs. Both costs are
integers that add up over the nodes of a gang, so the search for the minimum is the same. Neither
counts before bandwidth, distance and nodes are equal.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable

from arena_topo.solver import Policy, Request
from arena_topo.solver.gpu_sets import GRAIN, SMALL, GPUSets, firsts
from arena_topo.solver.memo import remembered
from arena_topo.topology import GPUSet, LinkKind, Machine, Node, count, gpu_set, members

GROUP_SIZES = (1, 2, 4, 8, 16)
"""The job sizes of the potential; nearly all jobs have one of these sizes (Philly trace)."""

WEIGHT = 64
"""The weight of a group relative to a group of half its size. It is more than the number of such
groups in a machine, so no number of pairs outweighs a lost quad."""

CROWD = 1 << 32
"""More GPUs than all nodes of a gang have: the base of one digit of interference."""

PACKING = 1 << 64
"""More than the cost of packing a gang: the base of the digits of interference."""


class PackingCost:
    """The fragmentation cost of taking GPUs of one configuration."""

    def __init__(self, sets: GPUSets) -> None:
        self.sets = sets
        self.alike = sets.alike
        """For each GPU, the first GPU with which it can be exchanged in a set at equal cost."""
        self._weights = {
            size: WEIGHT ** (size.bit_length() - 1) for size in GROUP_SIZES if size <= sets.size
        }

    @remembered
    def potential(self, free: GPUSet) -> int:
        """The groups that a free set still contains, weighted by size and bandwidth."""
        if self.sets.uniform:
            return self._by_count(count(free))
        groups = self.sets.packed if self.sets.size <= SMALL else self._in_parts
        potential = GRAIN * count(free)
        for size, weight in self._weights.items():
            potential += weight * groups(free, size) if size > 1 else 0
        return potential

    def cost(self, free: GPUSet, chosen: GPUSet) -> int:
        """The cost of taking these of the free GPUs."""
        return self.potential(free) - self.potential(GPUSet(free & ~chosen))

    def counted(self, free: int, size: int) -> int:
        """The cost of taking `size` of `free` GPUs with unknown indexes."""
        return self._by_count(free) - self._by_count(free - size)

    def _by_count(self, free: int) -> int:
        """The potential of so many GPUs if any of them are as good as the best."""
        return sum(weight * GRAIN * (free // size) for size, weight in self._weights.items())

    def _in_parts(self, free: int, size: int) -> int:
        """The potential of groups of a size, counted per link rate in the parts it connects."""
        return sum(
            share * (count(GPUSet(free & part)) // size)
            for share, parts in self._shares
            for part in parts
        )

    @functools.cached_property
    def _shares(self) -> list[tuple[int, tuple[GPUSet, ...]]]:
        """By link rate: the value of a group at this rate beyond one at the next slower rate."""
        levels = self.sets.parts
        worths = [round(GRAIN * rate / levels[0][0]) for rate, _ in levels]
        return [
            (high - low, parts)
            for high, low, (_, parts) in zip(worths, [*worths[1:], 0], levels, strict=True)
        ]


Proximity = tuple[tuple[int, ...], ...]
"""The proximity of the GPUs of a machine over PCIe; see `SWITCH`, `SOCKET` and `MACHINE`."""

SWITCH, SOCKET, MACHINE = 2, 1, 0
"""Two GPUs share a PCIe switch, or a socket, or only the machine, as far as known."""


class SpreadingCost(PackingCost):
    """The interference cost: jobs avoid the switches, sockets and machines of GPUs in use.

    The cost of a set is a number of four digits, high to low: the GPUs in use that share a PCIe
    switch with a GPU of the set, those that share a socket, those that share the machine, and the
    cost of packing. Every GPU of the machine that is not free is in use; if their indexes are
    unknown, all count as near. Costs of the nodes of a gang add up digit by digit.

    Two language models that shared a PCIe switch lost 19 % each, ResNet-50 lost nothing (Xiao et
    al., Gandiva, OSDI 2018).
    """

    def __init__(self, sets: GPUSets, proximity: Proximity) -> None:
        super().__init__(sets)
        self.alike = firsts(
            sets.size,
            lambda gpu, peer: (
                sets.alike[gpu] == sets.alike[peer]
                and all(
                    proximity[gpu][third] == proximity[peer][third]
                    for third in range(sets.size)
                    if third not in (gpu, peer)
                )
            ),
        )
        self._reach = [
            [gpu_set(gpu for gpu, near in enumerate(row) if near >= level) for row in proximity]
            for level in (SWITCH, SOCKET)
        ]

    def cost(self, free: GPUSet, chosen: GPUSet) -> int:
        """The cost of taking these of the free GPUs."""
        busy = self.sets.everything & ~free
        switch, socket = (
            functools.reduce(operator.or_, map(reach.__getitem__, members(chosen)), 0)
            for reach in self._reach
        )
        crowd = _crowded((switch & busy).bit_count(), (socket & busy).bit_count(), busy.bit_count())
        return crowd + super().cost(free, chosen)

    def counted(self, free: int, size: int) -> int:
        """The cost of taking `size` of `free` GPUs with unknown indexes."""
        busy = self.sets.size - free
        return _crowded(busy, busy, busy) + super().counted(free, size)


def _crowded(switch: int, socket: int, machine: int) -> int:
    return ((switch * CROWD + socket) * CROWD + machine) * PACKING


@functools.lru_cache(maxsize=256)
def packing_cost(sets: GPUSets) -> PackingCost:
    """The packing costs for machines of a configuration, cached."""
    return PackingCost(sets)


@functools.lru_cache(maxsize=256)
def spreading_cost(sets: GPUSets, proximity: Proximity) -> SpreadingCost:
    """The spreading costs for machines of a configuration, cached."""
    return SpreadingCost(sets, proximity)


def proximity(machine: Machine) -> Proximity:
    """The proximity of the GPUs of a machine over PCIe.

    PIX and PXB are a PCIe switch, PHB and NODE a socket. NVLink hides the PCIe path below it; then
    a NIC or a GPU near to both decides, or their NUMA node. Without any evidence only the machine
    is shared.
    """
    gpus = range(len(machine.gpus))

    def direct(gpu: int, peer: int) -> int:
        if gpu == peer:
            return SWITCH
        numa = machine.gpus[gpu].numa
        same = numa is not None and numa == machine.gpus[peer].numa
        return max(_LEVELS.get(machine.link(gpu, peer).kind, MACHINE), SOCKET if same else MACHINE)

    def near(nic: tuple[LinkKind, ...]) -> list[int]:
        return [_LEVELS.get(kind, MACHINE) for kind in nic] + [MACHINE] * (len(gpus) - len(nic))

    thirds = [[direct(gpu, peer) for peer in gpus] for gpu in gpus]
    thirds += [near(tuple(link.kind for link in nic.attachment)) for nic in machine.nics]
    return tuple(
        tuple(max(min(third[gpu], third[peer]) for third in thirds) for peer in gpus)
        for gpu in gpus
    )


_LEVELS = {
    LinkKind.PIX: SWITCH,
    LinkKind.PXB: SWITCH,
    LinkKind.PHB: SOCKET,
    LinkKind.NODE: SOCKET,
}


def spreads(request: Request, states: Iterable[tuple[Node, int, int]]) -> bool:
    """Whether a job is placed away from GPUs in use rather than packed.

    `adaptive` spreads jobs that fit on one machine while less than `pack_above` of the cluster's
    GPUs are in use: at low load interference costs most, at high load fragmentation (the
    load-dependent placement of Xiao). The GPUs that count are healthy, on nodes that take pods and
    do not share GPUs; those that are not free are in use. `states` has a node of each state, the
    number of such nodes, and of those that the request does not exclude.
    """
    if request.policy is not Policy.ADAPTIVE:
        return request.policy is Policy.SPREAD
    usable = [state for state in states if state[0].unavailable is None and state[0].shared is None]
    size = request.workers * request.gpus
    if not any(
        left and node.healthy_count >= size and _has_model(request, node)
        for node, _, left in usable
    ):
        return False
    healthy = sum(nodes * node.healthy_count for node, nodes, _ in usable)
    free = sum(nodes * min(node.free_count, node.healthy_count) for node, nodes, _ in usable)
    # Rounded as written: 0.7 of ten GPUs are seven, not slightly more.
    return round(healthy - free - request.pack_above * healthy, 6) < 0


def _has_model(request: Request, node: Node) -> bool:
    model = request.model.casefold() if request.model else None
    return model in {None, (node.machine.model or "").casefold()}
