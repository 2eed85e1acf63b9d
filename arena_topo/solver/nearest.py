"""The nearest changes that would give a refused gang its place: of the request, or of the cluster.

Every change named was tried and fits; a number named is the best one of its kind. Where the work
limit keeps the best from being known, the change is not named at all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from arena_topo.solver import Request
from arena_topo.solver.classes import refused, room
from arena_topo.solver.configurations import table
from arena_topo.solver.gang import BEYOND, NODE_TIER, Worth
from arena_topo.topology import Cluster, GPUSet, Node, count, gpu_set, members, natural

Best = Callable[[Request, Cluster], Worth | None]
"""What the best placement of a request is worth; None if there is none."""

MOST_CHANGES = 3
"""Changes named at once, the smallest first."""

WORK = 200_000
"""Nodes looked at, over all searches, for the GPUs whose release would help."""


def nearest(request: Request, cluster: Cluster, *, never: bool, best: Best) -> str | None:
    """Say what would make a gang fit that does not; None where no single change would.

    With `never`, `cluster` is the emptied one and only the request can change. `best` is asked
    often about the same cluster, so the caller may keep an index of it.
    """
    changes: list[str] = []
    for change in _flags(request, cluster, best):
        changes.append(change)
        if len(changes) == MOST_CHANGES:
            break
    when = "on this cluster" if never else "now"
    text = f"fits {when} with {', or with '.join(changes)}" if changes else ""
    release = None if never else _release(request, cluster, best)
    if release is not None:
        text = f"{text}; or when {release}" if text else f"fits when {release}"
    return text or _largest(request, cluster, when)


# ---------------------------------------------------------------- changes of the request


def _flags(request: Request, cluster: Cluster, best: Best) -> Iterator[str]:
    """The flags that would do it, the gentlest change of the job first."""
    for flags in (_speed, _hardware, _distance, _size):
        yield from flags(request, cluster, best)


def _speed(request: Request, cluster: Cluster, best: Best) -> Iterator[str]:
    if request.min_bandwidth:
        # A preferred level would come before the bandwidth.
        found = best(replace(request, min_bandwidth=0.0, preferred=None), cluster)
        if found is not None:
            # Rounded down: what is asked for must be there.
            yield f"--min-bandwidth {math.floor(round(-found.bandwidth * 100, 6)) / 100:g}"


def _hardware(request: Request, cluster: Cluster, best: Best) -> Iterator[str]:
    if not request.mix_models and best(replace(request, mix_models=True), cluster) is not None:
        yield "--mix-models"
    if request.model is None:
        return
    own = request.model.casefold()
    models = {node.machine.model for node in cluster.nodes if node.machine.model}
    others = sorted(one for one in models if one.casefold() != own)
    for model in others:
        if best(replace(request, model=model), cluster) is not None:
            yield f"--gpu-model {model}"
            return


def _distance(request: Request, cluster: Cluster, best: Best) -> Iterator[str]:
    if request.max_nodes is not None:
        found = best(replace(request, max_nodes=None), cluster)
        if found is not None:
            yield f"--max-nodes {_fewest(request, cluster, best, found.nodes)}"
    if request.required is None:
        return
    for level in _beyond(request.required, cluster):
        if best(replace(request, required=level), cluster) is not None:
            yield f"--topology-required {level}"
            return


def _size(request: Request, cluster: Cluster, best: Best) -> Iterator[str]:
    workers = _most_workers(request, cluster, best)
    if workers:
        yield f"--workers {workers}"
    for gpus in range(request.gpus - 1, 0, -1):
        if best(replace(request, gpus=gpus), cluster) is not None:
            yield f"--gpus {gpus}"
            return


def _fewest(request: Request, cluster: Cluster, best: Best, enough: int) -> int:
    """The fewest nodes that hold the gang; the fastest placement may take more."""
    low, high = request.max_nodes or 1, enough
    while high - low > 1:
        middle = (low + high) // 2
        if best(replace(request, max_nodes=middle), cluster) is None:
            low = middle
        else:
            high = middle
    return high


def _beyond(level: str, cluster: Cluster) -> Iterable[str]:
    """The levels further out than one, nearest first."""
    levels = [NODE_TIER, *(tier.name for tier in reversed(cluster.tiers)), BEYOND]
    return levels[levels.index(level) + 1 :]


def _most_workers(request: Request, cluster: Cluster, best: Best) -> int:
    """The largest smaller gang that fits; 0 if there is none.

    Gangs of a size between two that fit need not fit themselves (with a least bandwidth, four GPUs
    of a cube mesh may close a ring that three do not), so sizes are tried one by one, from what
    the nodes could hold at most.
    """
    limits = _Limits(request, cluster)
    # A single GPU has no bandwidth, which is no help to who asks for some.
    least = 2 if request.min_bandwidth and request.gpus == 1 else 1
    for workers in range(min(request.workers - 1, limits.most()), least - 1, -1):
        if best(replace(request, workers=workers), cluster) is not None:
            return workers
    return 0


def _largest(request: Request, cluster: Cluster, when: str) -> str | None:
    """The largest worker that any node takes, where the gang needs more than one change."""
    gpus = max(
        (
            node.free_count
            for node in cluster.nodes
            if refused(replace(request, gpus=1), node) is None
        ),
        default=0,
    )
    if 0 < gpus < request.gpus:
        return f"the largest worker that fits {when} has {gpus} GPUs: --gpus {gpus}"
    return None


# ---------------------------------------------------------------- how many workers at most


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Nodes that one gang may combine, as the most workers that each takes, most first."""

    loads: tuple[int, ...]
    most_nodes: int
    total: int
    """Workers of all the nodes that a gang may use at once."""

    @classmethod
    def of(cls, loads: Iterable[int], most_nodes: int) -> _Group:
        """The group of nodes with these loads, in any order."""
        ordered = tuple(sorted(loads, reverse=True))
        return cls(loads=ordered, most_nodes=most_nodes, total=sum(ordered[:most_nodes]))

    def without(self, load: int) -> int:
        """The total with one place kept for a node that has this load now."""
        if len(self.loads) <= self.most_nodes:
            return self.total - load
        edge = self.loads[self.most_nodes - 1]
        return self.total - max(load, edge)


class _Limits:
    """Upper bounds on the workers that fit, exact where no least bandwidth is asked for."""

    def __init__(self, request: Request, cluster: Cluster) -> None:
        self.request = request
        self.cluster = cluster
        self.depth = self._depth()
        self.loads = {node.name: self.load(node) for node in cluster.nodes}
        gathered: dict[tuple[object, ...], list[int]] = {}
        for node in cluster.nodes:
            gathered.setdefault(self.home(node), []).append(self.loads[node.name])
        most = len(cluster.nodes) if request.max_nodes is None else request.max_nodes
        self.groups = {home: _Group.of(loads, most) for home, loads in gathered.items()}

    def most(self) -> int:
        """No more workers than this fit."""
        return max((group.total for group in self.groups.values()), default=0)

    def load(self, node: Node, *, more: int = 0) -> int:
        """The most workers of a node if `more` of its GPUs were free, whichever they are."""
        request = self.request
        if more:
            size = min(len(node.machine.gpus), node.free_count + more)
            node = replace(node, free=gpu_set(range(size)), hidden=0)
        most = room(request, node)
        if not request.min_bandwidth:
            return most
        shape = table(node.machine.configuration)
        for workers in range(most, 0, -1):
            size = workers * request.gpus
            if more:
                found = shape.best(node.machine.everything, size)
            else:
                found = shape.best_hidden(node.free, node.hidden, size)
            if found >= request.min_bandwidth:
                return workers
        return 0

    def needed(self, node: Node) -> int | None:
        """A lower bound on the GPUs to release on a node; None where the machine has not so many.

        It counts GPUs only, which is cheap enough for every node of a large cluster.
        """
        gone = self.groups[self.home(node)].without(self.loads[node.name])
        workers = self.request.workers - gone
        more = max(1, workers * self.request.gpus - node.free_count)
        return more if more <= _held(node) else None

    def allow(self, node: Node, more: int) -> bool:
        """Whether the gang may fit once `more` GPUs of a node are released."""
        gone = self.groups[self.home(node)].without(self.loads[node.name])
        return gone + self.load(node, more=more) >= self.request.workers

    def home(self, node: Node) -> tuple[object, ...]:
        """What a gang must have in common: model, resource, and the domain it may not leave."""
        model = "" if self.request.mix_models else node.machine.model or ""
        domain = (node.name,) if self.depth is None else node.domains[: self.depth]
        return (model, node.resource, *domain)

    def _depth(self) -> int | None:
        """How many levels of the network all nodes must share; None for a single node."""
        request, tiers = self.request, self.cluster.tiers
        if request.required == NODE_TIER or request.max_nodes == 1:
            return None
        rates = [self.cluster.beyond, *(tier.bandwidth for tier in tiers)]
        words = [BEYOND, *(tier.name for tier in tiers)]
        start = words.index(request.required) if request.required is not None else 0
        return next(
            (at for at in range(start, len(words)) if rates[at] >= request.min_bandwidth), None
        )


# ---------------------------------------------------------------- GPUs that others hold


def _release(request: Request, cluster: Cluster, best: Best) -> str | None:
    """The fewest GPUs of one node whose release would do it, in words."""
    limits = _Limits(request, cluster)
    wanted: dict[int, list[Node]] = {}
    for node in cluster.nodes:
        needed = limits.needed(node) if refused(request, node) is None else None
        if needed is not None:
            wanted.setdefault(needed, []).append(node)
    work = WORK
    most = max((len(node.machine.gpus) for node in cluster.nodes), default=0)
    for more in range(1, most + 1):
        nodes = [node for needed in sorted(wanted) if needed <= more for node in wanted[needed]]
        for node in _first_of_each(nodes):
            if not limits.allow(node, more):
                continue
            if not request.min_bandwidth:
                # The bounds are exact then.
                return _words(more, node)
            for freed in _freed(node, more):
                work -= len(cluster.nodes)
                if work < 0:
                    return None
                nodes_then = (freed if one is node else one for one in cluster.nodes)
                if best(request, replace(cluster, nodes=tuple(nodes_then))) is not None:
                    return _words(more, node)
    return None


def _first_of_each(nodes: Iterable[Node]) -> Iterator[Node]:
    """Of nodes that a job cannot tell apart the first by name."""
    kinds = set()
    for node in sorted(nodes, key=lambda node: natural(node.name)):
        kind = (
            # Nodes of a kind share their matrix, and comparing matrices takes long.
            id(node.machine.links),
            node.machine.model,
            node.resource,
            node.free,
            node.hidden,
            node.allocatable,
            node.cpu,
            node.memory,
            node.domains,
        )
        if kind not in kinds:
            kinds.add(kind)
            yield node


def _held(node: Node) -> int:
    """How many healthy GPUs others hold."""
    healthy = node.machine.everything if node.allocatable is None else node.allocatable
    return count(GPUSet(healthy | node.free)) - node.free_count


def _freed(node: Node, more: int) -> Iterator[Node]:
    """The node with `more` GPUs released, in every way that may matter."""
    machine = node.machine
    healthy = machine.everything if node.allocatable is None else node.allocatable
    known = members(GPUSet(healthy & ~node.free))
    alike = table(machine.configuration).uniform
    for secret in range(min(node.hidden, more), -1, -1):
        for chosen in itertools.combinations(known, more - secret):
            yield replace(
                node, free=GPUSet(node.free | gpu_set(chosen)), hidden=node.hidden - secret
            )
            if alike:
                break


def _words(more: int, node: Node) -> str:
    gpus = "1 more GPU" if more == 1 else f"{more} more GPUs"
    return f"{gpus} of node {node.name} {'is' if more == 1 else 'are'} free"
