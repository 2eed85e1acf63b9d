"""The best placement of a gang by trying every one: nodes, GPUs, and which worker gets which.

The order of preference is written down here a second time, from its description alone (band, tier,
nodes, inside), and every placement is valued as a whole by `bandwidth.estimate`. Of the code under
test only the room of a node and the rate of a level are used.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from arena_topo.bandwidth import Estimate, Host, Wire, estimate
from arena_topo.solver import Placement, Request
from arena_topo.solver.classes import room
from arena_topo.topology import Cluster, GPUSet, Node, gpu_set, members


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Key:
    """What is exact in an answer; the smaller the better."""

    reach: int
    assumed: bool
    band: float
    distance: int
    nodes: int
    inside: float


def band(value: float) -> float:
    """Bands of 10 %, counted from 1 GB/s."""
    if math.isinf(value):
        return math.inf
    number = math.floor(math.log(value) / math.log(1.1))
    return next(one for one in (number + 1, number, number - 1) if 1.1**one <= value)


def level_of(nodes: Sequence[Node], on: Cluster) -> int:
    """How far apart nodes are: 0 for a single one, 1 for the nearest tier."""
    if len(nodes) == 1:
        return 0
    for at in range(len(on.tiers) - 1, -1, -1):
        if len({node.domains[: at + 1] for node in nodes}) == 1:
            return len(on.tiers) - at
    return len(on.tiers) + 1


def rate_of(distance: int, on: Cluster) -> float | None:
    """GB/s of a level that somebody gave, or else of the next one out."""
    levels = [(tier.name, tier.bandwidth) for tier in reversed(on.tiers)]
    levels.append(("beyond", on.beyond))
    known = (rate for name, rate in levels[distance - 1 :] if not on.guessed(name))
    return next(known, None) if distance else None


def at_most(distance: int, on: Cluster) -> float | None:
    """GB/s of the next nearer level of known rate: networks are not faster further out."""
    known = (rate_of(nearer, on) for nearer in range(distance, 0, -1))
    return next((rate for rate in known if rate is not None), None)


Pods = list[tuple[Node, GPUSet]]


def value(pods: Pods, request: Request, on: Cluster, *, joined: bool) -> Estimate | None:
    """What NCCL reaches among these pods."""
    hosts: list[Host] = []
    together: dict[str, GPUSet] = {}
    of = {node.name: node for node, _ in pods}
    for node, gpus in pods:
        machine = replace(node.machine, name=str(node.name))
        if joined:
            together[node.name] = GPUSet(together.get(node.name, 0) | gpus)
        else:
            hosts.append(Host.of(machine, gpus))
    for name, gpus in together.items():
        hosts.append(Host.of(replace(of[name].machine, name=str(name)), gpus))
    distance = level_of(list(of.values()), on)
    rate, limit = rate_of(distance, on), at_most(distance, on)
    if rate is None and limit is not None:
        # Sockets reach at most 1.6 GB/s of an unknown network, and 0.85 of a known one.
        rate = min(limit, 1.6 / 0.85) if request.wire is Wire.TCP else limit
    return estimate(hosts, wire=request.wire, network=rate)


def key(pods: Pods, request: Request, on: Cluster) -> tuple[Key, float]:
    """The key of a placement, and what its pods get in GB/s."""
    nodes = list({node.name: node for node, _ in pods}.values())
    got = value(pods, request, on, joined=request.joined)
    inside = got if request.joined else value(pods, request, on, joined=True)
    distance = level_of(nodes, on)
    point = math.inf if got is None else got.point
    words = ["node", *(tier.name for tier in reversed(on.tiers)), "beyond"]
    near = words.index(request.preferred) if request.preferred else len(words)
    found = Key(
        reach=max(0, distance - near),
        assumed=distance > 0
        and rate_of(distance, on) is None
        and not all(given(node, request) for node in nodes),
        band=-band(point),
        distance=distance,
        nodes=len(nodes),
        inside=-(math.inf if inside is None else inside.point),
    )
    return found, point


def given(node: Node, request: Request) -> bool:
    """Whether somebody gave the speed of the NICs that pods use."""
    speeds = [nic.speed for nic in node.machine.nics]
    if request.wire is Wire.TCP:
        return any(speeds)
    return bool(speeds) and None not in speeds


def splits(chosen: GPUSet, size: int) -> Iterator[tuple[GPUSet, ...]]:
    """All ways to share a set out to pods."""
    if not chosen:
        yield ()
        return
    first, *others = members(chosen)
    for some in itertools.combinations(others, size - 1):
        group = gpu_set((first, *some))
        for rest in splits(GPUSet(chosen & ~group), size):
            yield (group, *rest)


def sides(request: Request, on: Cluster) -> list[list[tuple[Node, int]]]:
    """The nodes that one gang may combine, and how many workers each takes."""
    found: dict[tuple[str, str], list[tuple[Node, int]]] = {}
    for node in on.nodes:
        most = room(request, node)
        if most:
            model = "" if request.mix_models else node.machine.model or ""
            found.setdefault((model, node.resource), []).append((node, most))
    return list(found.values())


def shares(rooms: Sequence[int], workers: int) -> Iterator[tuple[int, ...]]:
    """Every way to share workers out to nodes with room for so many."""
    if not rooms:
        if not workers:
            yield ()
        return
    for load in range(max(0, workers - sum(rooms[1:])), min(rooms[0], workers) + 1):
        for others in shares(rooms[1:], workers - load):
            yield (load, *others)


def ways(node: Node, workers: int, request: Request) -> list[list[Pods]]:
    """What a node may give to so many workers; of an opaque one all that the kubelet may pick."""
    size = workers * request.gpus
    found: list[Pods] = []
    for some in itertools.combinations(members(node.free), size):
        chosen = gpu_set(some)
        groups = (
            [next(splits(chosen, request.gpus))] if request.joined else splits(chosen, request.gpus)
        )
        found += [[(node, one) for one in group] for group in groups]
    return [found] if node.unattributed else [[one] for one in found]


def best(request: Request, on: Cluster, most: int = 100_000) -> Key | None:
    """The key of the best placement; None if there is none. ValueError for too many to try."""
    found: list[Key] = []
    tried = 0
    for side in sides(request, on):
        for loads in shares([most_of for _, most_of in side], request.workers):
            used = [(node, load) for (node, _), load in zip(side, loads, strict=True) if load]
            if request.max_nodes is not None and len(used) > request.max_nodes:
                continue
            distance = level_of([node for node, _ in used], on)
            words = ["node", *(tier.name for tier in reversed(on.tiers)), "beyond"]
            if request.required and distance > words.index(request.required):
                continue
            for choice in itertools.product(*(ways(node, load, request) for node, load in used)):
                keys = []
                for pods in itertools.product(*choice):
                    tried += 1
                    if tried > most:
                        raise ValueError("too many placements")
                    keys.append(key(list(itertools.chain(*pods)), request, on))
                # Of an opaque node nobody knows which GPUs it will be.
                point = min(one for _, one in keys)
                worst = replace(
                    keys[0][0],
                    band=max(one.band for one, _ in keys),
                    inside=max(one.inside for one, _ in keys),
                )
                if point >= request.min_bandwidth:
                    found.append(worst)
    return min(found, default=None)


def answered(request: Request, on: Cluster, answer: Placement) -> Key:
    """The key of an answer by its own numbers; AssertionError if nobody could hand it out."""
    nodes = {node.name: node for node in on.nodes}
    assert [one.worker for one in answer.assignments] == list(range(request.workers))
    held: dict[str, list[tuple[int, ...]]] = {}
    for one in answer.assignments:
        held.setdefault(one.node, []).append(one.gpus)
    for name, groups in held.items():
        assert len(groups) <= room(request, nodes[name])
        if not nodes[name].unattributed:
            taken = [gpu for group in groups for gpu in group]
            assert len(set(taken)) == len(taken) == len(groups) * request.gpus
            assert not gpu_set(taken) & ~nodes[name].free
    used = [nodes[name] for name in held]
    distance = level_of(used, on)
    words = ["node", *(tier.name for tier in reversed(on.tiers)), "beyond"]
    assert words[distance] == answer.tier
    near = words.index(request.preferred) if request.preferred else len(words)
    point = math.inf if answer.bandwidth is None else answer.bandwidth.point
    return Key(
        reach=max(0, distance - near),
        assumed=distance > 0
        and rate_of(distance, on) is None
        and not all(given(node, request) for node in used),
        band=-band(point),
        distance=distance,
        nodes=len(used),
        inside=-(math.inf if answer.inside is None else answer.inside.point),
    )
