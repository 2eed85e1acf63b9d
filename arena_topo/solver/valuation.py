"""The value of a placement: its hosts as NCCL counts them, and the estimate of `bandwidth`.

A pod is a host if each has a hostname of its own (`joined` is False), else a node is. Nodes of one
NVLink domain are one host for any pods. The network between hosts has the rate of the nearest level
that all nodes share, if that is known; else `bandwidth` assumes one, for which the known rates of
nearer levels and of the nodes themselves are limits.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from arena_topo.bandwidth import Estimate, Host, Wire
from arena_topo.bandwidth.several_hosts import estimate, measured_between
from arena_topo.solver import Assignment, Placement, Proof, Request
from arena_topo.solver.loads import AMONG, Hosts, Loads, Terms, loads_of
from arena_topo.topology import (
    BEYOND,
    NODE_TIER,
    NVLINK,
    Cluster,
    GPUSet,
    Machine,
    Node,
    NodeName,
    count,
    gpu_set,
)
from arena_topo.topology.models import MODELS

CLUSTER_LEVEL = -1
"""The level of the whole cluster, coarser than any tier: nodes that share no tier meet there.

Other levels are the indexes of tiers, and nodes are one level nearer than the nearest tier.
"""

Seat = tuple[Node, tuple[int, ...]]
"""The node and the GPUs of one worker; no GPUs if the kubelet picks them."""


def value_placement(
    seats: Sequence[Seat], request: Request, cluster: Cluster, *, proof: Proof, blind: bool = True
) -> Placement:
    """The placement of the workers of a gang, with its estimates.

    Without `blind` there is no estimate for the slowest GPUs that the kubelet may pick.
    """
    gpus, joined, wire = request.gpus, request.joined, request.wire
    pods: dict[NodeName, tuple[Node, list[tuple[int, ...]]]] = {}
    for node, devices in seats:
        pods.setdefault(node.name, (node, []))[1].append(devices)
    used = [node for node, _ in pods.values()]
    level = shared_level(cluster, used)
    network, nearer = rate_of_level(cluster, level), math.inf
    limits = {node.name: math.inf for node in used}
    if level is not None:
        nearer = limit_of_level(cluster, level)
        if wire is Wire.RDMA:
            limits = {node.name: node.network for node in used}
    kinds = {id(node.machine): loads_of(node.machine) for node in used}

    def of(*, joined: bool, blind: bool = False) -> Estimate | None:
        terms = terms_of(joined=joined)
        hosts, several = _hosts(
            (
                (node, sets_of(node, [() for _ in devices] if blind else devices, terms))
                for node, devices in pods.values()
            ),
            cluster,
            kinds,
            limits,
            joined=joined,
        )
        among = several if len(used) > 1 else None
        return estimate(
            hosts,
            among=among,
            ranks=terms.ranks,
            wire=wire,
            network=network,
            nearer=nearer,
        )

    def sets_of(node: Node, devices: Sequence[tuple[int, ...]], terms: Terms) -> list[GPUSet]:
        return _sets(devices, node, kinds, terms._replace(limit=limits[node.name]))

    def terms_of(*, joined: bool) -> Terms:
        hosts = Hosts.NODE
        if len(used) > 1:
            two = (len(used) if joined else len(seats)) == AMONG[Hosts.TWO]
            hosts = Hosts.TWO if two else Hosts.SEVERAL
        ranks = len(seats) * gpus
        return Terms(
            hosts=hosts,
            gpus=gpus,
            ranks=ranks,
            joined=joined,
            wire=wire,
            network=network,
            nearer=nearer,
        )

    bandwidth, worst = of(joined=joined), None
    if blind:
        by_count = all(loads.by_count(terms_of(joined=joined)) for loads in kinds.values())
        worst = bandwidth if by_count else of(joined=joined, blind=True)
    return Placement(
        assignments=tuple(
            Assignment(worker=worker, node=node.name, gpus=chosen)
            for worker, (node, chosen) in enumerate(seats)
        ),
        bandwidth=bandwidth,
        inside=bandwidth if joined else of(joined=True),
        worst=worst,
        tier=level_name(cluster, level),
        proof=proof,
        gpus=gpus,
        joined=joined,
        wire=wire,
    )


def level_name(cluster: Cluster, level: int | None) -> str:
    """The word for a level: `node` for None, the name of a tier, `beyond`."""
    if level is None:
        return NODE_TIER
    return BEYOND if level == CLUSTER_LEVEL else cluster.tiers[level].name


def _hosts(
    pods: Iterable[tuple[Node, Sequence[GPUSet]]],
    cluster: Cluster,
    kinds: Mapping[int, Loads],
    limits: Mapping[NodeName, float],
    *,
    joined: bool,
) -> tuple[list[Host], int]:
    """The distinct hosts, as NCCL counts them, and the number of all hosts.

    Nodes with equal machines, equal pods and equal limits of their networks limit a job alike, so
    one of each kind is enough. The slowest of all these networks limits each NVLink domain.
    """
    hosts: list[Host] = []
    several = 0
    seen: set[tuple[object, ...]] = set()
    domains: dict[tuple[str, ...], list[tuple[Machine, GPUSet]]] = {}
    for node, sets in pods:
        loads = kinds[id(node.machine)]
        union = GPUSet(functools.reduce(operator.or_, sets))
        domain = nvlink_domain(cluster, node)
        if domain and loads.sets.facts.in_domain(union, _MANY):
            domains.setdefault(domain, []).append((_named(node), union))
            continue
        groups = (union,) if joined else tuple(sets)
        several += len(groups)
        kind = loads, node.machine.knowledge, limits[node.name], groups
        if kind not in seen:
            seen.add(kind)
            limit = limits[node.name]
            hosts += [Host.of(_named(node), group, limit=limit) for group in groups]
    least = min(limits.values())
    hosts += [Host(parts=tuple(parts), limit=least) for parts in domains.values()]
    return hosts, several + len(domains)


def _named(node: Node) -> Machine:
    """The machine of a node, named after the node: hosts compare machines by name."""
    machine = node.machine
    return machine if machine.name == node.name else replace(machine, name=str(node.name))


def _sets(
    pods: Sequence[tuple[int, ...]], node: Node, kinds: Mapping[int, Loads], terms: Terms
) -> list[GPUSet]:
    """The GPUs of each pod of a node; the worst ones for pods whose GPUs the kubelet picks."""
    blind = sum(not pod for pod in pods)
    worst: Iterator[tuple[int, ...]] = iter(())
    if blind:
        loads, size = kinds[id(node.machine)], blind * terms.gpus
        # The pods of the placement itself may hold GPUs of this node already.
        free = node.free if count(node.free) >= size else node.machine.everything
        worst = iter(loads.worst_pods(free, size, terms))
    return [gpu_set(pod or next(worst)) for pod in pods]


_MANY = 8
"""GPUs of an NVLink domain from which NCCL's algorithm no longer changes."""


def nvlink_domain(cluster: Cluster, node: Node) -> tuple[str, ...] | None:
    """The NVLink domain of a node with other nodes; None if its NVLink ends at the machine."""
    at = next((at for at, tier in enumerate(cluster.tiers) if tier.name == NVLINK), None)
    if at is None or not node.machine.nvswitch or not node.machine.software.p2p:
        return None
    known = MODELS.get(node.machine.model or "")
    return None if known is None or not known.domain else node.domains[: at + 1]


def network_is_measured(placement: Placement, cluster: Cluster) -> bool:
    """Whether a calibration measured the network between the hosts of a placement."""
    nodes = {node.name: node for node in cluster.nodes}
    hosts = {
        nvlink_domain(cluster, nodes[seat.node]) or (seat.node if placement.joined else seat.worker)
        for seat in placement.assignments
    }
    machines = [nodes[name].machine for name in placement.nodes]
    return measured_between(machines, len(hosts), placement.wire)


def shared_level(cluster: Cluster, nodes: Sequence[Node]) -> int | None:
    """The nearest common level of nodes; None for one node."""
    if len({node.name for node in nodes}) == 1:
        return None
    return next(
        (
            at
            for at in reversed(range(len(cluster.tiers)))
            if len({node.domains[: at + 1] for node in nodes}) == 1
        ),
        CLUSTER_LEVEL,
    )


def rate_of_level(cluster: Cluster, level: int | None) -> float | None:
    """GB/s of a level, which a node sends there in all; None if it is not known.

    Networks are not faster further out, so the rate of the next known level further out is a lower
    bound, and is taken for that of a level without one. On a single node (None) the NICs carry the
    traffic between pods, as much as to the nearest other nodes.
    """
    if level is None:
        names = [tier.name for tier in cluster.tiers]
        level = (names.index(NVLINK) if NVLINK in names else len(names)) - 1
    return next((rate for rate in _rates(cluster)[level + 1 :: -1] if rate is not None), None)


def limit_of_level(cluster: Cluster, level: int) -> float:
    """The most GB/s of a level: the known rate of the next nearer one, infinite without one."""
    known = (rate for rate in _rates(cluster)[level + 1 :] if rate is not None)
    return next(known, math.inf)


def _rates(cluster: Cluster) -> list[float | None]:
    """GB/s of all levels, from `beyond` inward."""
    return [cluster.beyond, *(tier.bandwidth for tier in cluster.tiers)]
