"""Nodes that a job cannot tell apart, counted once per cluster and asked about once per request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from arena_topo.solver import Reason, Request
from arena_topo.solver.configurations import Table, table
from arena_topo.solver.policy import Damage, damage
from arena_topo.topology import Cluster, GPUSet, Machine, Matrix, Node, count, natural


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClass:
    """Nodes that a job cannot tell apart, in the order of their names.

    `capacity` is the most workers that one of them takes.
    """

    table: Table
    damage: Damage
    free: GPUSet
    hidden: int
    capacity: int
    nodes: tuple[Node, ...]

    def best(self, size: int) -> float:
        """The bandwidth to count on for `size` GPUs of one of these nodes."""
        if self.hidden:
            return self.table.best_hidden(self.free, self.hidden, size)
        return self.table.best(self.free, size)

    def price(self, size: int, bandwidth: float) -> int | None:
        """The damage of taking `size` GPUs at this bandwidth; None if they are too slow."""
        if self.best(size) < bandwidth:
            return None
        if self.hidden:
            return self.damage.counted(count(self.free) - self.hidden, size)
        cheapest = self.damage.cheapest(self.free, size, bandwidth)
        return None if cheapest is None else cheapest[0]


class Index:
    """The nodes of a cluster grouped by what they have free; built once, asked many times."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._tables: dict[tuple[object, ...], Table] = {}
        self._matrices: dict[Matrix, int] = {}
        self._known: dict[int, int] = {}
        groups: dict[tuple[object, ...], list[Node]] = {}
        for node in cluster.nodes:
            key = (
                self._shape(node.machine),
                node.free,
                node.hidden,
                node.resource,
                node.unavailable is None,
                node.shared is None,
            )
            group = groups.get(key)
            if group is None:
                groups[key] = [node]
            else:
                group.append(node)
        for group in groups.values():
            group.sort(key=_by_name)
        self._groups = sorted(groups.values(), key=lambda group: _by_name(group[0]))

    def kinds(self, request: Request) -> Iterator[tuple[NodeClass, ...]]:
        """The classes that one gang may combine: one GPU model, one resource name."""
        found: dict[tuple[str, str], list[NodeClass]] = {}
        for group in self._groups:
            first = group[0]
            kind = ("" if request.mix_models else first.machine.model or "", first.resource)
            for capacity, nodes in _rooms(request, group).items():
                shape = self._table(first.machine)
                found.setdefault(kind, []).append(
                    NodeClass(
                        table=shape,
                        damage=damage(shape),
                        free=first.free,
                        hidden=first.hidden,
                        capacity=capacity,
                        nodes=tuple(nodes),
                    )
                )
        for _, classes in sorted(found.items()):
            yield tuple(classes)

    def _shape(self, machine: Machine) -> tuple[object, ...]:
        # Comparing matrices takes long, and most nodes of a kind share one object.
        matrix = self._known.get(id(machine.links))
        if matrix is None:
            matrix = self._matrices.setdefault(machine.links, len(self._matrices))
            self._known[id(machine.links)] = matrix
        return (
            matrix,
            machine.model,
            machine.nvswitch,
            machine.pcie_generation,
            machine.measured,
        )

    def _table(self, machine: Machine) -> Table:
        shape = self._shape(machine)
        found = self._tables.get(shape)
        if found is None:
            found = self._tables[shape] = table(machine.configuration)
        return found


def _by_name(node: Node) -> tuple[tuple[bool, int, str], ...]:
    return natural(node.name)


def _rooms(request: Request, group: list[Node]) -> dict[int, list[Node]]:
    """The nodes of a group by how many workers they take; those that take none are left out."""
    counted = not (request.excluded or request.cpu or request.memory)
    if counted:
        # What is left decides, and that is the same for all of them.
        most = room(request, group[0])
        return {most: group} if most else {}
    rooms: dict[int, list[Node]] = {}
    for node in group:
        most = room(request, node)
        if most:
            rooms.setdefault(most, []).append(node)
    return rooms


def room(request: Request, node: Node) -> int:
    """How many workers the node takes now, bandwidth aside."""
    if refused(request, node) is not None:
        return 0
    rooms = [node.free_count // request.gpus, request.workers]
    if request.cpu and node.cpu is not None:
        rooms.append(int((node.cpu + 1e-9) // request.cpu))
    if request.memory and node.memory is not None:
        rooms.append(node.memory // request.memory)
    return max(0, min(rooms))


def refused(request: Request, node: Node) -> Reason | None:
    """Why the node takes no worker of this job, however few its GPUs in use are; None if it may."""
    if node.name in request.excluded:
        return request.excluded[node.name]
    model = request.model.casefold() if request.model else None
    hindrances = (
        (not node.machine.gpus, Reason.NO_GPUS),
        (node.shared is not None, Reason.SHARED),
        (model is not None and (node.machine.model or "").casefold() != model, Reason.MODEL),
        (len(node.machine.gpus) < request.gpus, Reason.TOO_SMALL),
        (node.unavailable is not None, Reason.UNAVAILABLE),
    )
    return next((reason for hindered, reason in hindrances if hindered), None)
