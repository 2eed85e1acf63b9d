"""What a placement is worth: the hosts as NCCL counts them, and what `bandwidth` says of them.

A pod is a host where each has a hostname of its own (`joined` is False), else a node is. Nodes of
one NVLink domain are one host, whatever their pods. The network between hosts has the rate of the
nearest level that all nodes share, where somebody gave one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from arena_topo.bandwidth import SOCKETS, Estimate, Host, Wire, estimate
from arena_topo.solver.loads import AMONG, Hosts, Terms, loads_of
from arena_topo.topology import (
    Cluster,
    GPUSet,
    Machine,
    Node,
    NodeName,
    count,
    gpu_set,
)
from arena_topo.topology.models import MODELS

NVLINK = "nvlink"
"""The level whose domains NVLink joins."""

Seat = tuple[Node, tuple[int, ...]]
"""The node and the GPUs of one worker; no GPUs where the kubelet picks them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """GB/s of a placement, None for a single GPU.

    `bandwidth` is what the pods get, `inside` what the same GPUs give where all pods of a node are
    one host, `worst` what the pods get of the slowest GPUs that the kubelet may pick on these
    nodes.
    """

    bandwidth: Estimate | None
    inside: Estimate | None
    worst: Estimate | None


def worth(seats: Sequence[Seat], gpus: int, cluster: Cluster, *, joined: bool, wire: Wire) -> Worth:
    """Value a placement of workers with `gpus` GPUs each."""
    used = {node.name: node for node, _ in seats}
    network = rate_between(used.values(), cluster, wire)

    def on(*, joined: bool) -> Terms:
        rated = network is not None
        return terms_of(len(seats), len(used), gpus, joined=joined, wire=wire, rated=rated)

    # Machines are told apart by their names.
    machines = {
        name: node.machine if node.machine.name == name else replace(node.machine, name=str(name))
        for name, node in used.items()
    }

    def of(*, joined: bool, blind: bool = False) -> Estimate | None:
        terms = on(joined=joined)
        pods = _pods([(node, ()) for node, _ in seats] if blind else seats, terms)
        hosts = hosts_of(pods, machines, cluster, joined=joined)
        return estimate(hosts, wire=wire, network=network)

    bandwidth = of(joined=joined)
    kinds = {id(node.machine): node.machine for node in used.values()}
    alike = all(loads_of(one).by_count(on(joined=joined)) for one in kinds.values())
    return Worth(
        bandwidth=bandwidth,
        inside=bandwidth if joined else of(joined=True),
        worst=bandwidth if alike else of(joined=joined, blind=True),
    )


def seated(workers: Iterable[tuple[NodeName, tuple[int, ...]]], cluster: Cluster) -> list[Seat]:
    """Workers with the nodes that they name."""
    some = list(workers)
    names = {name for name, _ in some}
    nodes = {node.name: node for node in cluster.nodes if node.name in names}
    return [(nodes[name], gpus) for name, gpus in some]


def terms_of(
    workers: int, nodes: int, gpus: int, *, joined: bool, wire: Wire, rated: bool
) -> Terms:
    """The terms of a job on so many nodes."""
    hosts = Hosts.NODE
    if nodes > 1:
        two = (nodes if joined else workers) == AMONG[Hosts.TWO]
        hosts = Hosts.TWO if two else Hosts.SEVERAL
    ranks = workers * gpus
    return Terms(hosts=hosts, gpus=gpus, ranks=ranks, joined=joined, wire=wire, rated=rated)


def hosts_of(
    pods: Sequence[tuple[Node, GPUSet]],
    machines: Mapping[NodeName, Machine],
    cluster: Cluster,
    *,
    joined: bool,
) -> list[Host]:
    """The hosts of some pods as NCCL counts them; `joined` pods of a node are one host."""
    domains = _domains(pods, cluster)
    parts: dict[tuple[object, ...], dict[NodeName, GPUSet]] = {}
    for at, (node, gpus) in enumerate(pods):
        domain = domains.get(node.name)
        key = ("domain", domain) if domain else ("node", node.name) if joined else ("pod", at)
        held = parts.setdefault(key, {})
        held[node.name] = GPUSet(held.get(node.name, 0) | gpus)
    return [
        Host(parts=tuple((machines[name], some) for name, some in held.items()))
        for held in parts.values()
    ]


def _domains(
    pods: Sequence[tuple[Node, GPUSet]], cluster: Cluster
) -> dict[NodeName, tuple[str, ...]]:
    """The NVLink domain of each node whose GPUs in use are all on its fabric."""
    if not any(tier.name == NVLINK for tier in cluster.tiers):
        return {}
    chosen: dict[NodeName, GPUSet] = {}
    for node, gpus in pods:
        chosen[node.name] = GPUSet(chosen.get(node.name, 0) | gpus)
    found: dict[NodeName, tuple[str, ...]] = {}
    for node in {node.name: node for node, _ in pods}.values():
        domain = nvlink_domain(cluster, node)
        if domain and loads_of(node.machine).sets.facts.in_domain(chosen[node.name], _MANY):
            found[node.name] = domain
    return found


_MANY = 8
"""GPUs of a domain from which its algorithm no longer changes."""


def nvlink_domain(cluster: Cluster, node: Node) -> tuple[str, ...] | None:
    """The domain in which NVLink joins this node to others; None where it leaves no machine."""
    at = next((at for at, tier in enumerate(cluster.tiers) if tier.name == NVLINK), None)
    known = MODELS.get(node.machine.model or "")
    if at is None or not node.machine.nvswitch or known is None or not known.domain:
        return None
    return node.domains[: at + 1]


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
    return not cluster.guessed("beyond" if level < 0 else cluster.tiers[level].name)


def _rate(cluster: Cluster, level: int) -> float:
    return cluster.beyond if level < 0 else cluster.tiers[level].bandwidth


def _pods(seats: Sequence[Seat], terms: Terms) -> list[tuple[Node, GPUSet]]:
    """The GPUs of each worker; where the kubelet picks them, those that are worth least."""
    blind = Counter(node.name for node, some in seats if not some)
    nodes = {node.name: node for node, _ in seats}
    picked = {name: iter(_worst(nodes[name], many, terms)) for name, many in blind.items()}
    return [(node, gpu_set(some or next(picked[node.name]))) for node, some in seats]


def _worst(node: Node, workers: int, terms: Terms) -> tuple[tuple[int, ...], ...]:
    """The GPUs that are worth least of those that so many workers of a node may get."""
    loads = loads_of(node.machine)
    size = workers * terms.gpus
    # A placement may stand for GPUs that its own pods hold by now.
    free = node.free if count(node.free) >= size else node.machine.everything
    return loads.pods(loads.worst_set(free, size, terms), terms)
