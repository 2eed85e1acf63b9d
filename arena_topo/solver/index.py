"""The index of a cluster: its nodes by state, and the tree of network domains.

It is built once, used for many requests, and follows the changes of single nodes. Nodes in the same
state (same configuration, same free set) form a group, which has their number in each leaf: the
nearest domain of the network. So a change moves a node between two counters. Groups are ordered by
their first nodes, along the network and then by name: the same nodes give the same answers,
whatever changed before.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar

from arena_topo.bandwidth import Wire
from arena_topo.bandwidth.several_hosts import network_limit
from arena_topo.solver import UNLIMITED, Request
from arena_topo.solver.fragmentation import Proximity, proximity, spreads
from arena_topo.solver.loads import AMONG, Hosts, Loads, Terms, loads_of
from arena_topo.solver.valuation import CLUSTER_LEVEL, limit_of_level, rate_of_level
from arena_topo.topology import GPU, Cluster, Machine, Node, NodeName, natural_key

MOST_STATES = 4_096
"""The states of nodes, beyond twice the number of nodes, that an index remembers."""


_Mark = TypeVar("_Mark")

_state = attrgetter(
    *("free", "unattributed", "allocatable", "broken", "unavailable", "shared"),
    *("driver", "dedicated", "foreign", "resource", "network"),
)
"""What decides the use of a node for jobs, beside its machine and what is reserved."""


class GroupOfNodes:
    """Equal nodes: one of them, and how many there are in each leaf."""

    __slots__ = ("first", "idle", "leaves", "node", "nodes", "takeable")

    def __init__(self, node: Node, like: GroupOfNodes | None = None) -> None:
        self.node = node
        self.leaves: dict[int, int] = {} if like is None else like.leaves.copy()
        self.nodes: int = 0 if like is None else like.nodes
        self.first: tuple[int, int] | None = None
        """The leaf of the first node, and its place there; None if it is not known yet."""
        self.idle: GroupOfNodes | None = None
        """The group of the same nodes without jobs; None if it is not known yet."""
        self.takeable = node.free_count if node.unavailable is None and node.shared is None else 0
        """The GPUs of each node that any job could take."""

    def add(self, leaf: int, nodes: int = 1) -> None:
        """Add so many nodes of a leaf, or remove as many as a negative number says."""
        now = self.leaves.get(leaf, 0) + nodes
        if now:
            self.leaves[leaf] = now
        else:
            del self.leaves[leaf]
        self.nodes += nodes
        self.first = None


GroupOf = Callable[[NodeName], GroupOfNodes]
"""The group of each node."""


class Domain:
    """A domain of the network: a rack, a spine, or the whole cluster.

    `at` is its position among the domains of its level, which are ordered by name. `leaves` are the
    nearest domains in it, by position. `free` counts the GPUs that any job could take.
    """

    __slots__ = ("at", "children", "free", "leaves")

    def __init__(self, at: int, leaves: range, children: Sequence[Domain]) -> None:
        self.at = at
        self.leaves = leaves
        self.children = children
        self.free = 0


class Index:
    """The nodes of a cluster by state and by network domain."""

    def __init__(self, cluster: Cluster) -> None:
        self.fabric = replace(cluster, nodes=())
        """The network of the cluster, without its nodes."""
        self.nodes = {node.name: node for node in cluster.nodes}
        self._cluster: Cluster | None = cluster
        self._assumed: set[Wire] = set()
        """The wires for which the NICs of some machine are of unknown speed."""
        self._measured: set[Wire] = set()
        """The wires over which a calibration of some machine measured jobs of several hosts."""
        self._kinds: dict[tuple[Loads, int], tuple[tuple[GPU, ...], int]] = {}
        self._kind_numbers: dict[tuple[object, ...], int] = {}
        self._proximities: dict[tuple[object, ...], Proximity] = {}
        self._groups: dict[tuple[object, ...], GroupOfNodes] = {}
        self._ordered: Sequence[GroupOfNodes] = []
        self._idle: Sequence[GroupOfNodes] = []
        self._idle_kinds: dict[tuple[object, ...], GroupOfNodes] = {}
        self.now: dict[object, Any] = {}
        """A cache of what is derived from the nodes, until one of them changes."""
        self.idle_now: dict[object, Any] = {}
        """A cache of what is derived from the idle groups, until they change."""
        self.classes: dict[tuple[object, ...], dict[tuple[GroupOfNodes, int | None], Any]] = {}
        """A cache of the classes of groups (`classes.NodeClass`), by what requests ask for."""
        self.changes: list[NodeName] = []
        """The nodes that changed, in the order of time."""
        self.limited: dict[tuple[object, ...], tuple[int, dict[NodeName, int]]] = {}
        """A cache of the nodes that lack CPU or memory (`classes`), after so many changes."""
        self._build()

    @property
    def cluster(self) -> Cluster:
        """The cluster as it is now."""
        if self._cluster is None:
            self._cluster = replace(self.fabric, nodes=tuple(self.nodes.values()))
        return self._cluster

    def _build(self) -> None:
        paths: dict[tuple[str, ...], list[NodeName]] = {}
        for node in self.nodes.values():
            paths.setdefault(node.domains, []).append(node.name)
        ordered = sorted(paths, key=lambda path: [natural_key(name) for name in path])
        self._names = [paths[path] for path in ordered]
        self._named = [False] * len(ordered)
        self.home = {name: leaf for leaf, names in enumerate(self._names) for name in names}
        """The leaf of each node."""
        self.of: dict[NodeName, GroupOfNodes] = {}
        """The group of each node."""
        self._groups = {}
        self._ordered = []
        self.now = {}
        self.changes, self.limited = [], {}
        self._forget_idle()
        free = [0] * len(ordered)
        for name, node in self.nodes.items():
            group, leaf = self._group(node), self.home[name]
            self.of[name] = group
            group.leaves[leaf] = group.leaves.get(leaf, 0) + 1
            group.nodes += 1
            free[leaf] += group.takeable
        self.levels: dict[int, list[Domain]] = {
            level: [] for level in range(CLUSTER_LEVEL, len(self.fabric.tiers))
        }
        self._homes: dict[int, Sequence[int]] = {}
        self.paths: list[tuple[Domain, ...]] = [()] * len(ordered)
        """The domains of each leaf, coarse to near."""
        self.whole = self._domain(ordered, 0, CLUSTER_LEVEL)
        for leaf, gpus in enumerate(free):
            for domain in (self.whole, *self.paths[leaf]):
                domain.free += gpus
        self.width = {
            level: max(
                (sum(len(self._names[leaf]) for leaf in own.leaves) for own in some), default=0
            )
            for level, some in self.levels.items()
        }
        """The nodes of the largest domain of each level."""

    def _domain(self, paths: Sequence[tuple[str, ...]], start: int, level: int) -> Domain:
        """The domain of consecutive leaves, with all domains inside it."""
        children: list[Domain] = []
        own = self.levels[level]
        if level + 1 < len(self.fabric.tiers):
            at = start
            for _, inside in groupby(paths, key=lambda path: path[level + 1]):
                nested = list(inside)
                children.append(self._domain(nested, at, level + 1))
                at += len(nested)
        domain = Domain(len(own), range(start, start + len(paths)), children)
        own.append(domain)
        if level != CLUSTER_LEVEL:
            for leaf in domain.leaves:
                self.paths[leaf] = (domain, *self.paths[leaf])
        return domain

    # Changes

    def put(self, nodes: Iterable[Node]) -> None:
        """Replace the nodes of these names, or add them."""
        changed = {node.name: node for node in nodes}
        known = [self.nodes.get(name) for name in changed]
        self.nodes.update(changed)
        self._cluster = None
        if any(
            before is None or before.domains != node.domains
            for before, node in zip(known, changed.values(), strict=True)
        ):
            self._build()
            return
        for name, node in changed.items():
            self._move(name, self._group(node))

    def remove(self, names: Iterable[NodeName]) -> None:
        """Remove the nodes of these names; KeyError for an unknown name."""
        for name in names:
            del self.nodes[name]
        self._cluster = None
        self._build()

    def _move(self, name: NodeName, group: GroupOfNodes) -> None:
        """Move a node to the group of its new state."""
        before, leaf = self.of[name], self.home[name]
        if len(self.changes) > len(self.nodes):
            self.changes, self.limited = [], {}
        self.changes.append(name)
        # The node itself may matter to a request, even if its state does not.
        self.now.clear()
        if group is before:
            return
        before.add(leaf, -1)
        group.add(leaf)
        self.of[name] = group
        for domain in (self.whole, *self.paths[leaf]):
            domain.free += group.takeable - before.takeable
        self._ordered = []
        if self._idle and self._idle_group(group) is not before.idle:
            self._forget_idle()
        if len(self._groups) > MOST_STATES + 2 * len(self.nodes):
            self._groups = {key: state for key, state in self._groups.items() if state.nodes}
            self.classes.clear()

    # Groups

    @property
    def groups(self) -> Sequence[GroupOfNodes]:
        """The groups of nodes in the same state."""
        if not self._ordered:
            groups = [group for group in self._groups.values() if group.nodes]
            self._ordered = self.ordered(groups, self.of.__getitem__)
        return self._ordered

    @property
    def idle_groups(self) -> Sequence[GroupOfNodes]:
        """The groups of nodes that are the same without jobs, with every node and GPU healthy."""
        if not self._idle:
            for group in self.groups:
                idle = self._idle_group(group)
                for leaf, nodes in group.leaves.items():
                    idle.add(leaf, nodes)
            self._idle = self.ordered(self._idle_kinds.values(), self.idle_of)
        return self._idle

    def idle_of(self, name: NodeName) -> GroupOfNodes:
        """The group of a node without jobs."""
        idle = self.of[name].idle
        assert idle is not None, "all groups have their idle group"
        return idle

    def _idle_group(self, group: GroupOfNodes) -> GroupOfNodes:
        if group.idle is None:
            node = group.node
            key = (
                *(loads_of(node.machine), node.resource, node.network, node.shared is None),
                bool(node.driver) or node.dedicated,
            )
            group.idle = self._idle_kinds.get(key)
            if group.idle is None:
                group.idle = self._idle_kinds[key] = GroupOfNodes(node.idle())
        return group.idle

    def _forget_idle(self) -> None:
        self._idle, self._idle_kinds, self.idle_now = [], {}, {}
        self.classes.clear()
        for group in self._groups.values():
            group.idle = None

    def ordered(self, groups: Iterable[GroupOfNodes], of: GroupOf) -> Sequence[GroupOfNodes]:
        """The groups in the order of their first nodes."""
        some, missing = list(groups), dict[int, set[GroupOfNodes]]()
        for group in some:
            if group.first is None:
                missing.setdefault(min(group.leaves), set()).add(group)
        for leaf, wanted in missing.items():
            for place, name in enumerate(self.names(leaf)):
                if (group := of(name)) in wanted:
                    group.first = leaf, place
                    wanted.remove(group)
                    if not wanted:
                        break
        return sorted(some, key=_first)

    def first(self, group: GroupOfNodes) -> Node:
        """The first node of an ordered group."""
        leaf, place = _first(group)
        return self.nodes[self.names(leaf)[place]]

    def split(
        self, groups: Sequence[GroupOfNodes], of: GroupOf, marks: Mapping[NodeName, _Mark]
    ) -> tuple[dict[tuple[GroupOfNodes, _Mark | None], GroupOfNodes], GroupOf]:
        """Split groups by a mark that some nodes have.

        The result has the parts by group and mark, and the group of each node. The nodes without a
        mark have the mark None.
        """
        parts: dict[tuple[GroupOfNodes, _Mark | None], GroupOfNodes] = {}
        for name, mark in marks.items():
            group, leaf = of(name), self.home[name]
            part = parts.get((group, mark))
            if part is None:
                part = parts[group, mark] = GroupOfNodes(group.node)
            rest = parts.get((group, None))
            if rest is None:
                rest = parts[group, None] = GroupOfNodes(group.node, group)
            part.add(leaf)
            rest.add(leaf, -1)
        for group in groups:
            parts.setdefault((group, None), group)
        left = {key: part for key, part in parts.items() if part.nodes}
        return left, lambda name: parts[of(name), marks.get(name)]

    def homes(self, level: int) -> Sequence[int]:
        """The position of the domain of each leaf among those of a tier."""
        homes = self._homes.get(level)
        if homes is None:
            homes = self._homes[level] = [path[level].at for path in self.paths]
        return homes

    def names(self, leaf: int) -> Sequence[NodeName]:
        """The nodes of a leaf in the order of their names."""
        if not self._named[leaf]:
            self._names[leaf].sort(key=natural_key)
            self._named[leaf] = True
        return self._names[leaf]

    def nodes_in(self, leaves: Iterable[int]) -> Iterable[NodeName]:
        """The nodes of some leaves, in any order."""
        return (name for leaf in leaves for name in self._names[leaf])

    def _group(self, node: Node) -> GroupOfNodes:
        """The group of the nodes in the state of this one."""
        machine = node.machine
        loads, gpus = loads_of(machine), machine.gpus
        known = self._kinds.get((loads, id(gpus)))
        if known is None:
            if len(self._kinds) > MOST_STATES + 2 * len(self.nodes):
                self._kinds.clear()
            kind = loads, tuple([gpu.numa for gpu in gpus])
            number = self._kind_numbers.setdefault(kind, len(self._kind_numbers))
            # GPUs that are remembered exist, so no others get their id.
            known = self._kinds[loads, id(gpus)] = gpus, number
            self._assumed |= {wire for wire in Wire if loads.nics_assumed(wire)}
            self._measured |= {wire for wire in Wire if loads.measured(wire)}
        key = (
            known[1],
            _state(node),
            None
            if node.reserved is None
            else (
                *(node.reserved_for, node.reserved_gpus, node.reserved_unnamed),
                *(node.unreserved.free, node.unreserved.unattributed),
            ),
        )
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = GroupOfNodes(node)
        return group

    def proximity(self, machine: Machine) -> Proximity:
        """The proximity of the GPUs of a machine."""
        key = (loads_of(machine), tuple(gpu.numa for gpu in machine.gpus))
        result = self._proximities.get(key)
        if result is None:
            result = self._proximities[key] = proximity(machine)
        return result

    # The network

    def distance(self, level: int) -> int:
        """The distance of nodes that first meet at this level: 1 for the nearest tier."""
        return len(self.fabric.tiers) - level

    def separates(self, level: int) -> bool:
        """Whether some nodes first meet at this level."""
        nearest = level == len(self.fabric.tiers) - 1
        return nearest or any(len(domain.children) > 1 for domain in self.levels[level])

    def network(self, request: Request, hosts: Hosts, level: int) -> float:
        """GB/s that the network allows to a gang whose nodes first meet at a level.

        UNLIMITED where the values of nodes have that limit (`terms`).
        """
        rate = rate_of_level(self.fabric, level)
        if rate is None:
            rate = limit_of_level(self.fabric, level)
        if hosts not in AMONG or rate == UNLIMITED or self._by_node(request):
            return UNLIMITED
        ranks = request.workers * request.gpus
        return network_limit(rate, among=AMONG[hosts], ranks=ranks, wire=request.wire)

    def terms(self, request: Request, hosts: Hosts, level: int | None = None) -> Terms:
        """The terms of a gang on one node, or on nodes that first meet at a level."""
        network, nearer = rate_of_level(self.fabric, level), math.inf
        if not self._by_node(request):
            # NICs of known speed count up to the rate of any network, which is applied to the gang.
            network = None if network is None else math.inf
        elif network is None and level is not None:
            nearer = limit_of_level(self.fabric, level)
        return Terms(
            hosts=hosts,
            gpus=request.gpus,
            ranks=request.workers * request.gpus,
            joined=request.joined,
            wire=request.wire,
            network=network,
            nearer=nearer,
        )

    def _by_node(self, request: Request) -> bool:
        """Whether the network limits some nodes more than others.

        NICs of unknown speed share it among the pods of their node, and what a calibration measured
        may exceed what is computed for the network.
        """
        return request.wire in self._assumed | self._measured

    def spreads(self, request: Request) -> bool:
        """Whether a gang is placed away from GPUs in use rather than packed."""
        excluded = Counter(self.of[name] for name in request.excluded if name in self.of)
        return spreads(
            request,
            (
                (group.node, group.nodes, group.nodes - excluded[group])
                for group in self._groups.values()
                if group.nodes
            ),
        )


def _first(group: GroupOfNodes) -> tuple[int, int]:
    assert group.first is not None, "groups are ordered before they are used"
    return group.first
