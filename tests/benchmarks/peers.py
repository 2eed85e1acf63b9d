"""What other schedulers would choose, written from descriptions of what they do.

    best_effort  NVIDIA's device plugin (go-gpuallocator, policy best-effort): of all partitions of
                 the free GPUs into sets of one size the one with the most pair scores; its best set
    max_min      the topology plugin of Alibaba Cloud: the set whose slowest pair is fastest
    ancestor     HiveD (OSDI 2020): the set with the lowest common ancestor in the PCIe tree
    first        the lowest indexes, which is what counting schedulers (Kueue) leave to chance

Each is asked for all GPUs of a node at once, which is kinder to it than asking pod by pod. The
functions that end in `_nodes` say how many workers each node gets.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from arena_topo.bandwidth.one_host import MachineFacts
from arena_topo.topology import Cluster, GPUSet, LinkKind, Machine, Node, gpu_set, members

Chooser = Callable[[Machine, GPUSet, int], GPUSet]
Loads = list[tuple[Node, int]]

SOCKET, SWITCH = 4, 2
"""GPUs on a socket and behind a PCIe switch of the 8-GPU machines compared here; GPUs that share a
socket but no switch meet at the host bridge (go-gpuallocator's fixture of a DGX-1 V100)."""


def score(machine: Machine, one: int, other: int) -> int:
    """NVIDIA's score of a pair: 100 for each NVLink, and the PCIe path: 50, 30 or 10."""
    link = machine.link(one, other)
    lanes = link.lanes if link.kind is LinkKind.NVLINK else 0
    if one // SWITCH == other // SWITCH:
        return 100 * lanes + 50
    return 100 * lanes + (30 if one // SOCKET == other // SOCKET else 10)


def best_effort(machine: Machine, free: GPUSet, size: int) -> GPUSet:
    """The best set of the best partition; the first found of equals.

    Where the size does not divide the free GPUs, one set of the partition is short.
    """
    gpus = members(free)
    if size == 1:
        return gpu_set(gpus[:1])
    scores = {pair: score(machine, *pair) for pair in itertools.combinations(gpus, 2)}

    def total(group: Sequence[int | None]) -> int:
        return sum(scores.get(pair, 0) for pair in itertools.combinations(group, 2))

    padding = -len(gpus) % size
    best: tuple[int, list[tuple[int | None, ...]]] = (-1, [])
    for partition in _partitions((*gpus, *[None] * padding), size, padding):
        whole = sum(map(total, partition))
        if whole > best[0]:
            best = (whole, partition)
    return gpu_set(max((group for group in best[1] if None not in group), key=total))


def _partitions(
    rest: tuple[int | None, ...], size: int, padding: int
) -> Iterator[list[tuple[int | None, ...]]]:
    """All partitions into sets of a size, the padding all in one set."""
    if not rest:
        yield []
        return
    head, *others = range(len(rest))
    for chosen in itertools.combinations(others, size - 1):
        at = {head, *chosen}
        group = tuple(rest[index] for index in sorted(at))
        if group.count(None) not in (0, padding):
            continue
        left = tuple(gpu for index, gpu in enumerate(rest) if index not in at)
        for partition in _partitions(left, size, padding):
            yield [group, *partition]


def max_min(machine: Machine, free: GPUSet, size: int) -> GPUSet:
    """The set whose slowest pair is fastest; the first by index of equals."""
    facts = MachineFacts(machine)

    def slowest(group: tuple[int, ...]) -> float:
        pairs = itertools.combinations(group, 2)
        return min((facts.rates[one][other] for one, other in pairs), default=math.inf)

    return gpu_set(max(itertools.combinations(members(free), size), key=slowest))


def ancestor(machine: Machine, free: GPUSet, size: int) -> GPUSet:
    """The set with the lowest common ancestor: switch, socket, machine; the first of equals."""
    del machine

    def level(group: tuple[int, ...]) -> int:
        if len(group) == 1:
            return 0
        if group[0] // SWITCH == group[-1] // SWITCH:
            return 1
        return 2 if group[0] // SOCKET == group[-1] // SOCKET else 3

    return gpu_set(min(itertools.combinations(members(free), size), key=level))


def first(machine: Machine, free: GPUSet, size: int) -> GPUSet:
    """The lowest indexes."""
    del machine
    return gpu_set(members(free)[:size])


def spread_nodes(on: Cluster, workers: int, gpus: int) -> Loads | None:
    """Kubernetes' default: each pod goes to the node with the largest share of its GPUs free."""
    return _one_by_one(on, workers, gpus, lambda free, all_gpus: free / all_gpus)


def pack_nodes(on: Cluster, workers: int, gpus: int) -> Loads | None:
    """Kubernetes told to pack: each pod goes to the node with the smallest share free."""
    return _one_by_one(on, workers, gpus, lambda free, all_gpus: -free / all_gpus)


def _one_by_one(
    on: Cluster, workers: int, gpus: int, rank: Callable[[int, int], float]
) -> Loads | None:
    free = [node.free_count for node in on.nodes]
    loads = [0] * len(free)
    for _ in range(workers):
        fitting = [at for at, left in enumerate(free) if left >= gpus]
        if not fitting:
            return None
        at = max(fitting, key=lambda at: rank(free[at], len(on.nodes[at].machine.gpus)))
        free[at] -= gpus
        loads[at] += 1
    return [(node, load) for node, load in zip(on.nodes, loads, strict=True) if load]


def ratio_nodes(on: Cluster, workers: int, gpus: int) -> Loads | None:
    """Alibaba's plugin: the node with the highest ratio of GPUs requested to GPUs free.

    A gang that no node holds fills the largest nodes; the rest goes where the ratio is highest.
    """
    rooms = [(node, node.free_count // gpus) for node in on.nodes]
    return _best_fit(rooms, workers, lambda node: node.free_count)


def used_nodes(on: Cluster, workers: int, gpus: int) -> Loads | None:
    """HiveD: one pass over the nodes, those with most GPUs in use first, each filled."""
    loads: Loads = []
    for node in sorted(on.nodes, key=lambda node: node.free_count):
        load = min(workers, node.free_count // gpus)
        if load:
            loads.append((node, load))
            workers -= load
    return None if workers else loads


def fit_nodes(on: Cluster, workers: int, gpus: int) -> Loads | None:
    """Kueue's BestFit: the lowest level with a domain for all pods, the tightest such domain.

    Within it, and where no domain holds all: the largest children first, the last as tight as can
    be, level by level down to the nodes.
    """
    rooms = {node.name: node.free_count // gpus for node in on.nodes}

    def below(nodes: Sequence[Node], tier: int) -> list[tuple[tuple[Node, ...], int]]:
        """The domains of a tier among some nodes, with how many pods fit; nodes at the last."""
        groups: dict[str, list[Node]] = {}
        for node in nodes:
            groups.setdefault((*node.domains, node.name)[tier], []).append(node)
        return [(tuple(some), sum(rooms[one.name] for one in some)) for some in groups.values()]

    hosts = len(on.tiers)
    pods, start = [(on.nodes, workers)], 0
    for tier in range(hosts, -1, -1):
        holding = [one for one in below(on.nodes, tier) if one[1] >= workers]
        if holding:
            pods, start = [(min(holding, key=lambda one: one[1])[0], workers)], tier + 1
            break
    for tier in range(start, hosts + 1):
        shares = []
        for nodes, share in pods:
            chosen = _best_fit(below(nodes, tier), share)
            if chosen is None:
                return None
            shares += chosen
        pods = shares
    return [(nodes[0], share) for nodes, share in pods]


def _best_fit(rooms, pods, size=None):
    """The largest rooms first, the rest where it fits most tightly; None if there is no room."""
    left, chosen = list(rooms), []
    while pods:
        holding = [one for one in left if one[1] >= pods]
        if holding:
            tight = min(holding, key=lambda one: size(one[0]) if size else one[1])
            return [*chosen, (tight[0], pods)]
        most = max(left, key=lambda one: one[1], default=(None, 0))
        if not most[1]:
            return None
        left.remove(most)
        chosen.append(most)
        pods -= most[1]
    return chosen


SETS: dict[str, Chooser] = {
    "NVIDIA best-effort": best_effort,
    "Alibaba max-min pair": max_min,
    "HiveD lowest ancestor": ancestor,
    "first by index": first,
}
"""Who chooses GPUs of one machine, and how."""

GANGS: dict[str, tuple[Callable[[Cluster, int, int], Loads | None], Chooser]] = {
    "Kubernetes + best-effort": (spread_nodes, best_effort),
    "packing + best-effort": (pack_nodes, best_effort),
    "Alibaba ratio, max-min": (ratio_nodes, max_min),
    "HiveD used, ancestor": (used_nodes, ancestor),
    "Kueue BestFit, by index": (fit_nodes, first),
}
"""Who places gangs, and how: nodes first, then GPUs of each."""
