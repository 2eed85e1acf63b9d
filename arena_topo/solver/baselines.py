"""Baselines: schedulers that only count GPUs, with which a placement is compared.

They respect selectors, taints, cordons, free GPUs, CPU and memory, and ignore links and network.
The solver values their choices.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence

from arena_topo.solver import UNPROVEN, Counts, Placement, Request
from arena_topo.solver.classes import room
from arena_topo.solver.valuation import value_placement
from arena_topo.topology import Cluster, Node, members, natural_key


def first_fit(request: Request, cluster: Cluster) -> Placement | None:
    """Fill nodes one by one in the order of their names, GPUs by index; None if not all fit."""
    loads: dict[int, int] = {}
    remaining = request.workers
    seats = _seats(request, cluster)
    for at, (_node, most) in enumerate(seats):
        loads[at] = min(remaining, most)
        remaining -= loads[at]
        if remaining == 0:
            return _outcome(request, cluster, seats, loads)
    return None


def place_spread(request: Request, cluster: Cluster) -> Placement | None:
    """Give each worker the node with the smallest share of GPUs in use; ties by name, by index.

    So four one-GPU workers on two empty nodes go 2 + 2, as in Alibaba Cloud's TensorFlow example.
    It is the score of kube-scheduler's LeastAllocated strategy.
    """
    loads: dict[int, int] = {}
    seats = _seats(request, cluster)
    queue = [(_in_use(node, 0), at) for at, (node, _most) in enumerate(seats)]
    heapq.heapify(queue)
    for _worker in range(request.workers):
        if not queue:
            return None
        _used, at = heapq.heappop(queue)
        node, most = seats[at]
        loads[at] = loads.get(at, 0) + 1
        if loads[at] < most:
            heapq.heappush(queue, (_in_use(node, loads[at] * request.gpus), at))
    return _outcome(request, cluster, seats, loads)


def counts(request: Request, cluster: Cluster) -> Counts:
    """Count the gangs that fit; a gang uses one GPU model and resource, as in the solver.

    Bandwidth, levels of the network and the number of nodes are ignored.
    """
    now = _rooms(request, cluster)
    return Counts(
        gangs=sum(most // request.workers for most in now.values()),
        largest=max(now.values(), default=0),
        largest_empty=max(_rooms(request, cluster.idle()).values(), default=0),
    )


def _rooms(request: Request, cluster: Cluster) -> Counter[tuple[str, str]]:
    """The workers that fit now, by kind of nodes."""
    rooms: Counter[tuple[str, str]] = Counter()
    for node in cluster.nodes:
        model = "" if request.mix_models else node.machine.model or ""
        rooms[model, node.resource] += room(request, node)
    return rooms


def _seats(request: Request, cluster: Cluster) -> list[tuple[Node, int]]:
    """The nodes that take a worker, by name, and how many; of the resource with most capacity."""
    seats = [(node, most) for node in cluster.nodes if (most := room(request, node))]
    resources: Counter[str] = Counter()
    for node, most in seats:
        resources[node.resource] += most
    # All pods of a job request one resource.
    usual = max(sorted(resources), key=lambda name: resources[name], default="")
    return sorted(
        ((node, most) for node, most in seats if node.resource == usual),
        key=lambda seat: natural_key(seat[0].name),
    )


def _in_use(node: Node, more: int) -> float:
    size = len(node.machine.gpus)
    return (size - node.free_count + more) / size


def _outcome(
    request: Request,
    cluster: Cluster,
    seats: Sequence[tuple[Node, int]],
    loads: Mapping[int, int],
) -> Placement:
    pods = [
        (seats[at][0], gpus)
        for at, workers in loads.items()
        for gpus in _by_index(seats[at][0], workers, request.gpus)
    ]
    return value_placement(pods, request, cluster, proof=UNPROVEN, blind=request.blind)


def _by_index(node: Node, workers: int, gpus: int) -> list[tuple[int, ...]]:
    """The first free GPUs for so many workers; empty if their indexes are unknown."""
    if node.unattributed:
        return [()] * workers
    chosen = members(node.free)[: workers * gpus]
    return [chosen[start : start + gpus] for start in range(0, len(chosen), gpus)]
