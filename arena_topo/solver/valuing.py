"""What a placement is worth: the hosts as NCCL counts them, and what `bandwidth` says of them.

A pod is a host where each has a hostname of its own (`joined` is False), else a node is. Nodes of
one NVLink domain are one host, whatever their pods. The network between hosts has the rate of the
nearest level that all nodes share, where somebody gave one.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from arena_topo.bandwidth import SOCKETS, Estimate, Host, Wire, estimate
from arena_topo.solver import BEYOND, NODE_TIER, Assignment, Placement, Proof, Request
from arena_topo.solver.loads import AMONG, Hosts, Loads, Terms, loads_of
from arena_topo.topology import Cluster, GPUSet, Machine, Node, NodeName, count, gpu_set
from arena_topo.topology.models import MODELS

NVLINK = "nvlink"
"""The level whose domains NVLink joins."""

Seat = tuple[Node, tuple[int, ...]]
"""The node and the GPUs of one worker; no GPUs where the kubelet picks them."""


def placed(
    seats: Sequence[Seat], request: Request, cluster: Cluster, *, proof: Proof, blind: bool = True
) -> Placement:
    """The placement of the workers of a gang, with what it is worth.

    Without `blind` the slowest GPUs that the kubelet may pick are not valued.
    """
    gpus, joined, wire = request.gpus, request.joined, request.wire
    pods: dict[NodeName, tuple[Node, list[tuple[int, ...]]]] = {}
    for node, some in seats:
        pods.setdefault(node.name, (node, []))[1].append(some)
    used = [node for node, _ in pods.values()]
    network = rate_between(used, cluster, wire)
    kinds = {id(node.machine): loads_of(node.machine) for node in used}

    def of(*, joined: bool, blind: bool = False) -> Estimate | None:
        terms = on(joined=joined)
        hosts, several = _hosts(
            (
                (node, _sets([() for _ in some] if blind else some, node, kinds, terms))
                for node, some in pods.values()
            ),
            cluster,
            joined=joined,
        )
        among = several if len(used) > 1 else None
        return estimate(hosts, among=among, ranks=terms.ranks, wire=wire, network=network)

    def on(*, joined: bool) -> Terms:
        hosts = Hosts.NODE
        if len(used) > 1:
            two = (len(used) if joined else len(seats)) == AMONG[Hosts.TWO]
            hosts = Hosts.TWO if two else Hosts.SEVERAL
        ranks, rated = len(seats) * gpus, network is not None
        return Terms(hosts=hosts, gpus=gpus, ranks=ranks, joined=joined, wire=wire, rated=rated)

    bandwidth, worst = of(joined=joined), None
    if blind:
        alike = all(one.by_count(on(joined=joined)) for one in kinds.values())
        worst = bandwidth if alike else of(joined=joined, blind=True)
    return Placement(
        assignments=tuple(
            Assignment(worker=worker, node=node.name, gpus=chosen)
            for worker, (node, chosen) in enumerate(seats)
        ),
        bandwidth=bandwidth,
        inside=bandwidth if joined else of(joined=True),
        worst=worst,
        tier=word(cluster, shared_level(cluster, used)),
        proof=proof,
        gpus=gpus,
        joined=joined,
        wire=wire,
    )


def word(cluster: Cluster, level: int | None) -> str:
    """The word for a level: `node` for None, the name of a tier, `beyond`."""
    if level is None:
        return NODE_TIER
    return BEYOND if level < 0 else cluster.tiers[level].name


def _hosts(
    pods: Iterable[tuple[Node, Sequence[GPUSet]]], cluster: Cluster, *, joined: bool
) -> tuple[list[Host], int]:
    """The hosts that differ, as NCCL counts them, and how many there are in all.

    Nodes whose machines and pods are alike limit a job alike, so that those of one will do.
    """
    hosts: list[Host] = []
    several = 0
    seen: set[tuple[object, ...]] = set()
    domains: dict[tuple[str, ...], list[tuple[Machine, GPUSet]]] = {}
    for node, sets in pods:
        machine = node.machine
        whole = GPUSet(functools.reduce(operator.or_, sets))
        domain = nvlink_domain(cluster, node)
        if domain and loads_of(machine).sets.facts.in_domain(whole, _MANY):
            domains.setdefault(domain, []).append((_named(node), whole))
            continue
        groups = (whole,) if joined else tuple(sets)
        several += len(groups)
        if (id(machine), groups) not in seen:
            seen.add((id(machine), groups))
            hosts += [Host.of(_named(node), some) for some in groups]
    hosts += [Host(parts=tuple(parts)) for parts in domains.values()]
    return hosts, several + len(domains)


def _named(node: Node) -> Machine:
    """The machine of a node, by its name: machines are told apart by that."""
    machine = node.machine
    return machine if machine.name == node.name else replace(machine, name=str(node.name))


def _sets(
    pods: Sequence[tuple[int, ...]], node: Node, kinds: Mapping[int, Loads], terms: Terms
) -> list[GPUSet]:
    """The GPUs of each pod of a node; where the kubelet picks them, those that are worth least."""
    blind = sum(not some for some in pods)
    worst: Iterator[tuple[int, ...]] = iter(())
    if blind:
        loads, size = kinds[id(node.machine)], blind * terms.gpus
        # A placement may stand for GPUs that its own pods hold by now.
        free = node.free if count(node.free) >= size else node.machine.everything
        worst = iter(loads.pods(loads.worst_set(free, size, terms), terms))
    return [gpu_set(some or next(worst)) for some in pods]


_MANY = 8
"""GPUs of a domain from which its algorithm no longer changes."""


def nvlink_domain(cluster: Cluster, node: Node) -> tuple[str, ...] | None:
    """The domain in which NVLink joins this node to others; None where it leaves no machine."""
    at = next((at for at, tier in enumerate(cluster.tiers) if tier.name == NVLINK), None)
    if at is None or not node.machine.nvswitch:
        return None
    known = MODELS.get(node.machine.model or "")
    return None if known is None or not known.domain else node.domains[: at + 1]


def shared_level(cluster: Cluster, nodes: Sequence[Node]) -> int | None:
    """The nearest level that nodes share: the place of a tier, -1 beyond all, None for one node."""
    if len({node.name for node in nodes}) == 1:
        return None
    return next(
        (
            at
            for at in range(len(cluster.tiers) - 1, -1, -1)
            if len({node.domains[: at + 1] for node in nodes}) == 1
        ),
        -1,
    )


def rate_between(nodes: Iterable[Node], cluster: Cluster, wire: Wire) -> float | None:
    """GB/s of what joins these nodes, as far as somebody gave it; None on a single node.

    Nodes without the RDMA that others offer have no more than their own network.
    """
    some = tuple(nodes)
    level = shared_level(cluster, some)
    if level is None:
        return None
    rates = [rate_of_level(cluster, level, wire)]
    if wire is Wire.RDMA:
        rates += [node.network for node in some if math.isfinite(node.network)]
    return min((rate for rate in rates if rate is not None), default=None)


def rate_of_level(cluster: Cluster, level: int, wire: Wire) -> float | None:
    """GB/s of a tier by its place, or beyond all (-1); None where nobody gave it.

    Networks are not faster further out: a level whose rate nobody gave has at least that of the
    next one out, else at most that of the next nearer one, and then sockets no more than on a
    network of which nothing is known.
    """
    for at in range(level, -2, -1):
        if _given(cluster, at):
            return _rate(cluster, at)
    for at in range(level + 1, len(cluster.tiers)):
        if _given(cluster, at):
            rate = _rate(cluster, at)
            return min(rate, SOCKETS) if wire is Wire.TCP else rate
    return None


def is_given(cluster: Cluster, level: int) -> bool:
    """Whether somebody gave the rate of a level, or of one further out."""
    return any(_given(cluster, at) for at in range(level, -2, -1))


def _given(cluster: Cluster, level: int) -> bool:
    return not cluster.guessed(BEYOND if level < 0 else cluster.tiers[level].name)


def _rate(cluster: Cluster, level: int) -> float:
    return cluster.beyond if level < 0 else cluster.tiers[level].bandwidth
