"""The cluster of a simulation: known machines, joined by a network that somebody chose."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from arena_topo.bandwidth import Wire
from arena_topo.errors import UsageError
from arena_topo.topology import Cluster, PoolRates, Tier, idle_node, in_pool, presets

LEAF_NODES = 8
"""Nodes below one leaf switch of an emulated network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedNetwork:
    """The network between emulated nodes: GB/s of a node within a leaf, and beyond."""

    leaf: float
    beyond: float
    text: str


NETWORKS = {
    Wire.RDMA: EmulatedNetwork(
        leaf=40.0,
        beyond=20.0,
        text=f"RDMA, 40 GB/s per node within leaves of {LEAF_NODES} nodes, 20 GB/s beyond",
    ),
    Wire.TCP: EmulatedNetwork(leaf=1.25, beyond=1.25, text="TCP, 1.25 GB/s per node (10 GbE)"),
}
"""The emulated networks: InfiniBand with four cards of 100 Gb/s per node and half as much between
leaves, and 10 GbE; both are our choice."""


def machine_counts(text: str) -> str:
    """The machines of `COUNTxPRESET,...` (also PRESET:COUNT), as `presets.numbers` reads them.

    UsageError for a count of 0.
    """
    parts = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]+)x(.+)", part)
        if match and not int(match[1]):
            raise UsageError(
                f"cannot read the machines of {text!r}: a count is 0",
                hint="write COUNTxPRESET, for instance 64xdgx-1-v100 or 8xdgx-1-v100,4xhgx-h100",
                flag="--nodes",
            )
        parts.append(f"{match[2].strip()}:{match[1]}" if match else part)
    return ",".join(parts)


def emulated_cluster(text: str, wire: Wire, pools: Sequence[PoolRates] = ()) -> Cluster:
    """The cluster of `64xdgx-1-v100,...` on the network of a transport.

    The first of the calibrations that fits a machine counts. UsageError explains an invalid text.
    """
    network = NETWORKS[wire]
    named = presets.emulated_machines(machine_counts(text))
    machines = [in_pool(machine, pools) for machine in named]
    return Cluster(
        nodes=tuple(
            idle_node(machine, (f"leaf-{at // LEAF_NODES}",)) for at, machine in enumerate(machines)
        ),
        tiers=(Tier(name="leaf", bandwidth=network.leaf),),
        beyond=network.beyond,
        emulated=True,
        source=text,
    )
