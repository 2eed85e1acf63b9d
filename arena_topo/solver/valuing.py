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

from arena_topo.bandwidth import Estimate, Host, Wire, estimate
from arena_topo.solver.gpu_sets import gpu_sets
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

Seat = tuple[NodeName, tuple[int, ...]]
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
    nodes = {node.name: node for node in cluster.nodes}
    chosen = _chosen(seats, gpus, nodes)
    network = rate_between({name: nodes[name] for name, _ in seats}.values(), cluster, wire)
    loads = Counter(name for name, _ in seats)
    kubelet = [pod for name, many in loads.items() for pod in _worst(nodes[name], many, gpus)]

    def of(pods: Sequence[tuple[NodeName, GPUSet]], *, joined: bool) -> Estimate | None:
        hosts = hosts_of([(nodes[name], some) for name, some in pods], cluster, joined=joined)
        return estimate(hosts, wire=wire, network=network)

    bandwidth = of(chosen, joined=joined)
    return Worth(
        bandwidth=bandwidth,
        inside=bandwidth if joined else of(chosen, joined=True),
        worst=of(kubelet, joined=joined),
    )


def hosts_of(pods: Sequence[tuple[Node, GPUSet]], cluster: Cluster, *, joined: bool) -> list[Host]:
    """The hosts of some pods as NCCL counts them; `joined` pods of a node are one host."""
    machines: dict[NodeName, Machine] = {}
    parts: dict[tuple[object, ...], dict[NodeName, GPUSet]] = {}
    for at, (node, gpus) in enumerate(pods):
        if node.name not in machines:
            same = node.machine.name == node.name
            machines[node.name] = (
                node.machine if same else replace(node.machine, name=str(node.name))
            )
        domain = nvlink_domain(cluster, node)
        key = ("domain", domain) if domain else ("node", node.name) if joined else ("pod", at)
        held = parts.setdefault(key, {})
        held[node.name] = GPUSet(held.get(node.name, 0) | gpus)
    return [
        Host(parts=tuple((machines[name], some) for name, some in held.items()))
        for held in parts.values()
    ]


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
    """GB/s of what joins these nodes, where somebody gave it; None on a single node.

    Nodes without the RDMA that others offer have no more than their own network.
    """
    some = tuple(nodes)
    level = shared_level(cluster, some)
    if level is None:
        return None
    rates = [rate_of_level(cluster, level)]
    if wire is Wire.RDMA:
        rates += [node.network for node in some if math.isfinite(node.network)]
    return min((rate for rate in rates if rate is not None), default=None)


def rate_of_level(cluster: Cluster, level: int) -> float | None:
    """GB/s of a tier by its place, or beyond all (-1); None where nobody gave it."""
    if level < 0:
        return None if cluster.guessed("beyond") else cluster.beyond
    tier = cluster.tiers[level]
    return None if cluster.guessed(tier.name) else tier.bandwidth


def _chosen(
    seats: Sequence[Seat], gpus: int, nodes: Mapping[NodeName, Node]
) -> list[tuple[NodeName, GPUSet]]:
    """The GPUs of each worker; where nobody knows which are free, the slowest."""
    blind: dict[NodeName, int] = {}
    for name, some in seats:
        if not some:
            blind[name] = blind.get(name, 0) + 1
    picked = {name: iter(_worst(nodes[name], many, gpus)) for name, many in blind.items()}
    return [(name, gpu_set(some) if some else next(picked[name])[1]) for name, some in seats]


def _worst(node: Node, workers: int, gpus: int) -> list[tuple[NodeName, GPUSet]]:
    """The slowest GPUs that so many workers of a node may get."""
    sets = gpu_sets(node.machine.configuration)
    size = workers * gpus
    # A placement may stand for GPUs that its own pods hold by now.
    free = node.free if count(node.free) >= size else sets.everything
    found = sets.split(sets.worst_set(free, size), gpus)
    return [(node.name, gpu_set(some)) for some in found]
