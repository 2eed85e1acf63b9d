"""The two DGX-1 machines as numbers, for tests of the solver.

NVLinks as NVIDIA publishes them (DGX-1 system architecture white paper; go-gpuallocator's
fixtures): V100 pairs have one or two lanes, P100 pairs one.
"""

from __future__ import annotations

from dataclasses import replace

from arena_topo.bandwidth import Estimate, Limit, Regime
from arena_topo.bandwidth.fitted import FITTED
from arena_topo.solver import Request
from arena_topo.solver.index import Index
from arena_topo.solver.search import Objective, best_choice
from arena_topo.topology import (
    GPU,
    Cluster,
    GPUSet,
    Link,
    LinkKind,
    Machine,
    Matrix,
    Node,
    NodeName,
    behind_nvswitch,
    flat,
)
from arena_topo.topology.nics import NICs

V100_DOUBLE = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)]
V100_SINGLE = [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)]
P100_SINGLE = [*V100_DOUBLE, (0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)]


def matrix(size: int, lanes: dict[tuple[int, int], int], otherwise: Link | None = None) -> Matrix:
    """A link matrix: NVLink where lanes are given, PCIe of a two-socket server elsewhere."""

    def link(one: int, other: int) -> Link | None:
        low, high = min(one, other), max(one, other)
        if one == other:
            return None
        if lanes.get((low, high)):
            return Link(kind=LinkKind.NVLINK, lanes=lanes[low, high])
        if otherwise is not None:
            return otherwise
        if low // 4 != high // 4:
            return Link(kind=LinkKind.SYS)
        return Link(kind=LinkKind.PIX if low // 2 == high // 2 else LinkKind.PHB)

    return tuple(tuple(link(i, j) for j in range(size)) for i in range(size))


def machine(name: str, model: str, links: Matrix) -> Machine:
    return Machine(
        name=name,
        gpus=tuple(GPU(index=index, model=model) for index in range(len(links))),
        links=links,
        nvswitch=behind_nvswitch(model, links),
    )


V100_LANES = dict.fromkeys(V100_DOUBLE, 2) | dict.fromkeys(V100_SINGLE, 1)
P100_LANES = dict.fromkeys(P100_SINGLE, 1)
V100 = machine("dgx-1-v100", "V100", matrix(8, V100_LANES))
P100 = machine("dgx-1-p100", "P100", matrix(8, P100_LANES))
HGX = machine("hgx-a100", "A100", flat(8, Link(kind=LinkKind.NVLINK, lanes=12)))


def on_a_switch(size: int, first: int) -> Machine:
    """An H100 machine behind an NVSwitch, of whose GPU 0 only so many NVLinks are up."""
    lanes = {
        (one, other): 18 if one else first for one in range(size) for other in range(one + 1, size)
    }
    name = f"hgx-{size}-{first}"
    return machine(name, "H100", matrix(size, lanes))


OFF_THE_SWITCH = on_a_switch(8, 0)
WEAK_ON_THE_SWITCH = on_a_switch(8, 14)
PCIE = machine("pcie", "L40S", matrix(8, {}))


def node(name: str, of: Machine, free: int | None = None, **more: object) -> Node:
    everything = of.everything if free is None else GPUSet(free)
    return Node(name=NodeName(name), machine=of, free=everything, **more)


def cluster(*nodes: Node, **more: object) -> Cluster:
    return Cluster(nodes=nodes, **more)


def value(request: Request, world: Cluster) -> Objective | None:
    """The objective of the best placement; None if there is no placement."""
    answer = best_choice(request, Index(world))
    return None if answer is None else answer.worth


def nvlink(point: float) -> Estimate:
    """A bandwidth over NVLinks inside one host."""
    return Estimate(
        point=point,
        low=0.9 * point,
        high=1.1 * point,
        regime=Regime.MESH,
        limited_by=Limit.NVLINK,
        latency=FITTED.latency["nvlink"],
        ranks=4,
    )


def sockets(*, assumed: tuple[str, ...] = ("an unknown network: TCP",)) -> Estimate:
    """A bandwidth over TCP, of a network of which nobody knows anything unless `assumed` is ()."""
    return Estimate(
        point=0.8,
        low=0.4,
        high=1.6,
        regime=Regime.TCP,
        limited_by=Limit.NETWORK,
        latency=FITTED.latency["network"],
        ranks=4,
        assumed=assumed,
    )


def with_nics(of: Machine, number: int, speed: float | None) -> Machine:
    """The machine with so many NICs of so many GB/s, shared out evenly."""
    return NICs(number=number, speed=speed).of(replace(of, nics=()))
