"""The best placement of a gang by trying every one: nodes, GPUs, and which worker gets which.

The order of preference is written down here a second time, from its description alone (band, tier,
nodes, inside), and every placement is valued as a whole by `bandwidth.estimate`. Of the code under
test only the room of a node and the rate of a level are used.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from replacing import replace

from arena_topo.bandwidth import Estimate, Host, Wire
from arena_topo.bandwidth.nics import usual_nics
from arena_topo.bandwidth.several_hosts import estimate
from arena_topo.solver import Placement, Request
from arena_topo.solver.classes import room
from arena_topo.topology import Cluster, GPUSet, LinkKind, Machine, Node, gpu_set, members


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
    """GB/s of a level that somebody gave, or else of the next one out.

    The NICs of a single node send as much between its pods as to the nearest nodes over a network.
    """
    tiers = list(reversed(on.tiers))
    levels = [*(tier.bandwidth for tier in tiers), on.beyond]
    within = sum(tier.name == "nvlink" for tier in tiers)
    known = (rate for rate in levels[distance - 1 if distance else within :] if rate is not None)
    return next(known, None)


def nearer_than(distance: int, on: Cluster) -> float:
    """GB/s of the slowest level that is nearer, as far as their rates are known."""
    nearer = [tier.bandwidth for tier in reversed(on.tiers)][: max(0, distance - 1)]
    return min((rate for rate in nearer if rate is not None), default=math.inf)


def limit_of(node: Node, nodes: Sequence[Node], request: Request, on: Cluster) -> float:
    """GB/s of the network that a node has of its own; of the slowest one for NVLink domains."""
    if len(nodes) == 1 or request.wire is not Wire.RDMA:
        return math.inf
    return min(own.network for own in nodes) if domain_of(node, on) else node.network


def domain_of(node: Node, on: Cluster) -> tuple[str, ...]:
    """The NVLink domain of a tray; empty for other machines. All of its GPUs are on the switch."""
    names = [tier.name for tier in on.tiers]
    leaves = node.machine.nvswitch and node.machine.model == "GB200" and "nvlink" in names
    return node.domains[: names.index("nvlink") + 1] if leaves else ()


Pods = list[tuple[Node, GPUSet]]

Used = tuple[tuple[str, ...], int, float, tuple[GPUSet, ...]]
"""Of a node in use: its NVLink domain, its machine's number, its limit, the GPUs of each host."""

_machines: dict[int, Machine] = {}


def value(pods: Pods, request: Request, on: Cluster, *, joined: bool) -> Estimate | None:
    """What NCCL reaches among these pods."""
    of: dict[str, tuple[Node, list[GPUSet]]] = {}
    for node, gpus in pods:
        of.setdefault(node.name, (node, []))[1].append(gpus)
    used: list[Used] = []
    nodes = [node for node, _ in of.values()]
    for node, sets in of.values():
        domain = domain_of(node, on)
        together = [GPUSet(functools.reduce(operator.or_, sets))]
        _machines[id(node.machine)] = node.machine
        hosts = together if joined or domain else sets
        alike = first_like(id(node.machine), frozenset(hosts))
        used.append((domain, id(node.machine), limit_of(node, nodes, request, on), alike))
    distance = level_of(nodes, on)
    network, nearer = rate_of(distance, on), nearer_than(distance, on)
    return reached(tuple(sorted(used)), request.wire, network, nearer)


@functools.lru_cache(maxsize=1 << 17)
def first_like(number: int, hosts: frozenset[GPUSet]) -> tuple[GPUSet, ...]:
    """The hosts with the first of equal GPUs instead of these: one estimate for all of them."""
    groups = equal_gpus(number)
    unused = [iter(group) for group in groups]
    counts = sorted([sum(gpus >> gpu & 1 for gpu in group) for group in groups] for gpus in hosts)
    return tuple(
        gpu_set(
            gpu
            for left, many in zip(unused, own, strict=True)
            for gpu in itertools.islice(left, many)
        )
        for own in counts
    )


@functools.cache
def equal_gpus(number: int) -> list[list[int]]:
    """GPUs of a machine in groups: to exchange two of a group changes no link, NIC or measure."""
    machine = usual_nics(_machines[number])
    groups: list[list[int]] = []
    for gpu in range(len(machine.gpus)):
        group = next((own for own in groups if exchangeable(machine, own[0], gpu)), None)
        if group is None:
            groups.append([gpu])
        else:
            group.append(gpu)
    return groups


def exchangeable(machine: Machine, one: int, other: int) -> bool:
    """Whether the machine is the same if two of its GPUs change places."""
    places = list(range(len(machine.gpus)))
    places[one], places[other] = other, one

    def facts(order: Sequence[int]) -> tuple[object, ...]:
        nics = Counter(
            (nic.speed, tuple(nic.attachment[gpu] for gpu in order)) for nic in machine.nics
        )
        links = [[machine.links[gpu][peer] for peer in order] for gpu in order]
        measured = {
            gpu_set(order.index(gpu) for gpu in members(gpus)): value
            for gpus, value in machine.measured
        }
        return [machine.gpus[gpu].model for gpu in order], links, nics, measured

    return facts(places) == facts(range(len(machine.gpus)))


@functools.lru_cache(maxsize=1 << 17)
def reached(
    used: tuple[Used, ...], wire: Wire, network: float | None, nearer: float
) -> Estimate | None:
    """What NCCL reaches on these nodes; the names of equal ones are all that differs."""
    hosts: list[Host] = []
    domains: dict[tuple[str, ...], list[tuple[Machine, GPUSet]]] = {}
    least = min(limit for _, _, limit, _ in used)
    for at, (domain, number, limit, sets) in enumerate(used):
        machine = named(number, at)
        if domain:
            domains.setdefault(domain, []).append((machine, sets[0]))
        else:
            hosts += [Host.of(machine, gpus, limit=limit) for gpus in sets]
    hosts += [Host(parts=tuple(parts), limit=least) for parts in domains.values()]
    return estimate(hosts, wire=wire, network=network, nearer=nearer)


@functools.cache
def named(number: int, at: int) -> Machine:
    """A machine under a name of its own: hosts tell machines apart by name."""
    return replace(_machines[number], name=f"n{at}")


def one_domain(nodes: Sequence[Node], on: Cluster) -> bool:
    """Whether NVLink joins all nodes, so that no network counts."""
    domains = {domain_of(node, on) for node in nodes}
    return len(domains) == 1 and () not in domains


def key(pods: Pods, request: Request, on: Cluster) -> Key:
    """The key of a placement."""
    nodes = list({node.name: node for node, _ in pods}.values())
    got = value(pods, request, on, joined=request.joined)
    inside = got if request.joined else value(pods, request, on, joined=True)
    distance = level_of(nodes, on)
    point = math.inf if got is None else got.point
    words = ["node", *(tier.name for tier in reversed(on.tiers)), "beyond"]
    near = words.index(request.preferred) if request.preferred else len(words)
    return Key(
        reach=max(0, distance - near),
        assumed=assumed(nodes, Counter(node.name for node, _ in pods), request, on),
        band=-band(point),
        distance=distance,
        nodes=len(nodes),
        inside=-(math.inf if inside is None else inside.point),
    )


def assumed(nodes: Sequence[Node], pods: Mapping[str, int], request: Request, on: Cluster) -> bool:
    """Whether the hosts of a job meet over NICs, or a network, that nobody gave the speed of.

    `pods` has the number of each node's. What a calibration measured is given.
    """
    distance = level_of(nodes, on)
    if distance:
        rated = rate_of(distance, on) is not None
        known = rated or one_domain(nodes, on)
        hosts = {domain_of(node, on) or node.name: 1 for node in nodes}
        if not request.joined:
            alone = (node for node in nodes if not domain_of(node, on))
            hosts |= {node.name: pods[node.name] for node in alone}
        rate = "two" if sum(hosts.values()) == 2 else "more"
        return not known and not all(
            given(node, request)
            or (
                (pool := node.machine.pool) is not None
                and pool.wire == request.wire
                and getattr(pool, rate) is not None
            )
            for node in nodes
        )
    over_nics = request.wire is Wire.RDMA and not request.joined and request.workers > 1
    over_nics = over_nics and rate_of(0, on) is None
    return over_nics and not domain_of(nodes[0], on) and not given(nodes[0], request)


def nearness(pods: Pods, request: Request) -> tuple[int, ...]:
    """Crossings of sockets, between host bridges, of host bridges; then steps to NICs. Fewer win.

    Only for GPUs without NVLink that reach each other directly, and for several nodes.
    """
    groups: dict[tuple[str, int], tuple[Machine, GPUSet]] = {}
    for at, (node, gpus) in enumerate(pods):
        host = (node.name, 0 if request.joined else at)
        groups[host] = (node.machine, GPUSet(groups.get(host, (None, 0))[1] | gpus))
    crossed, steps = [0, 0, 0], 0
    paths = (LinkKind.PIX, LinkKind.PXB, LinkKind.PHB, LinkKind.NODE, LinkKind.SYS)
    for machine, gpus in groups.values():
        for at, kind in enumerate((LinkKind.SYS, LinkKind.NODE, LinkKind.PHB)):
            crossed[at] += islands(machine, gpus, kind) - 1
        if request.wire is Wire.RDMA:
            fastest = max(nic.speed for nic in machine.nics)
            steps += sum(
                min(
                    paths.index(nic.attachment[gpu].kind)
                    for nic in machine.nics
                    if nic.speed == fastest
                )
                for gpu in members(gpus)
            )
    return (*crossed, steps)


def islands(machine: Machine, gpus: GPUSet, kind: LinkKind) -> int:
    """The groups of these GPUs that no path of a kind, or a farther one, divides."""
    apart = [{gpu} for gpu in members(gpus)]
    for one, other in itertools.combinations(members(gpus), 2):
        if machine.link(one, other).kind > kind:
            joined = [group for group in apart if group & {one, other}]
            apart = [group for group in apart if group not in joined]
            apart.append(set().union(*joined))
    return len(apart)


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


def picked(node: Node, request: Request) -> bool:
    """Whether the kubelet picks the GPUs of a job on a node."""
    pins = node.driver or (node.dedicated and not node.foreign)
    return node.unattributed > 0 or (request.blind and not pins)


def ways(node: Node, workers: int, request: Request) -> list[list[Pods]]:
    """What a node may give to so many workers: where the kubelet picks, all that it may pick."""
    size = workers * request.gpus
    found: list[Pods] = []
    for some in itertools.combinations(members(node.free), size):
        chosen = gpu_set(some)
        groups = (
            [next(splits(chosen, request.gpus))] if request.joined else splits(chosen, request.gpus)
        )
        found += [[(node, one) for one in group] for group in groups]
    return [found] if picked(node, request) else [[one] for one in found]


def different(node: Node, workers: int, request: Request) -> list[list[Pods]]:
    """The `ways` of a node; one of those that are worth the same whatever other nodes give."""
    _machines[id(node.machine)] = node.machine

    def hosts(pods: Pods) -> tuple[object, ...]:
        sets = [gpus for _, gpus in pods]
        together = GPUSet(functools.reduce(operator.or_, sets))
        likes = [frozenset({together}), *([] if request.joined else [frozenset(sets)])]
        return tuple(first_like(id(node.machine), like) for like in likes)

    every_pods = itertools.chain(*ways(node, workers, request))
    found = list({hosts(pods): pods for pods in every_pods}.values())
    return [found] if picked(node, request) else [[one] for one in found]


def how_many(node: Node, workers: int, request: Request) -> int:
    """The number of sets of GPUs that a node may give to so many workers, and of their pods."""
    size = workers * request.gpus
    sets = math.comb(len(members(node.free)), size)
    if request.joined:
        return sets
    one = math.factorial(request.gpus) ** workers * math.factorial(workers)
    return sets * math.factorial(size) // one


Loads = Sequence[tuple[Node, int]]
"""The nodes of a gang, each with its number of workers."""


def fast(choice: Sequence[list[Pods]], request: Request, on: Cluster) -> bool:
    """Whether all that the nodes of a gang may give is as fast as asked for."""
    if not request.min_bandwidth:
        return True
    values = (
        value(list(itertools.chain(*pods)), request, on, joined=request.joined)
        for pods in itertools.product(*choice)
    )
    return all(got is None or got.point >= request.min_bandwidth for got in values)


def promised(choice: Sequence[list[Pods]], request: Request, on: Cluster) -> Key:
    """The worst of what the nodes of a gang may give."""
    keys = [key(list(itertools.chain(*pods)), request, on) for pods in itertools.product(*choice)]
    return replace(
        keys[0],
        band=max(one.band for one in keys),
        inside=max(one.inside for one in keys),
    )


def planned_band(used: Loads, request: Request, on: Cluster) -> float:
    """The negated best band of all GPUs that these nodes may give to so many workers each."""
    known = replace(request, blind=False)
    choices = itertools.product(*(different(node, load, known) for node, load in used))
    return min(promised(choice, known, on).band for choice in choices)


def best(request: Request, on: Cluster, most: int = 100_000) -> Key | None:
    """The key of the best placement; None if there is none. ValueError for too many to try."""
    return preferred(list(every(request, on, most)))


def every(request: Request, on: Cluster, most: int) -> Iterator[Key]:
    """The keys of all placements. ValueError for too many to try."""
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
            tried += math.prod(how_many(node, load, request) for node, load in used)
            if tried > most:
                raise ValueError("too many placements")
            choices = (different(node, load, request) for node, load in used)
            for choice in itertools.product(*choices):
                if fast(choice, request, on):
                    yield promised(choice, request, on)


def preferred(found: Sequence[Key]) -> Key | None:
    """The best of these keys.

    One node comes before another if its NICs are known and the other's are not. Several nodes of
    known NICs take a gang from a node of assumed NICs only if they are faster, and over an assumed
    network never.
    """
    known = any(not one.assumed for one in found if one.nodes == 1)
    left = [one for one in found if not (known and one.assumed and one.nodes == 1)]
    return min(
        left, key=lambda one: replace(one, assumed=one.assumed and one.nodes > 1), default=None
    )


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
    if any(picked(node, request) and not node.unattributed for node in used):
        loads = [(node, len(held[node.name])) for node in used]
        if not any(node.unattributed for node in used):
            assert -band(point) == planned_band(loads, request, on)
        # On nodes that pin, the GPUs of the answer count; elsewhere those that may be picked.
        choice = [
            different(node, load, request)[0]
            if picked(node, request)
            else [[(node, gpu_set(group)) for group in held[node.name]]]
            for node, load in loads
        ]
        return promised(choice, request, on)
    return Key(
        reach=max(0, distance - near),
        assumed=assumed(used, {name: len(groups) for name, groups in held.items()}, request, on),
        band=-band(point),
        distance=distance,
        nodes=len(used),
        inside=-(math.inf if answer.inside is None else answer.inside.point),
    )
