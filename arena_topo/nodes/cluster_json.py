"""The network of a cluster, its nodes and what is free on them, as data."""

from __future__ import annotations

import math
from typing import Any

from arena_topo.drawing.network import free_gpus
from arena_topo.drawing.tables import machine_value
from arena_topo.escaping import one_line
from arena_topo.layout import number
from arena_topo.topology import Cluster, GPUSet, Machine, Node, members, natural_key


def network_json(cluster: Cluster) -> dict[str, Any]:
    """A cluster for JSON: its tiers from coarse to near, and its nodes with their domains.

    Bandwidths are GB/s; null and `assumed` mark those that nobody gave. `domains` has one name for
    each tier; `gpus` and `free` are counts, and no GPU is free on a node that takes no pods.
    `opaque` counts the GPUs in use or unhealthy whose indexes are not known. `reservedGPUs` are
    free but for the gangs that they wait for; `reserved`: only topology jobs get the GPUs of the
    node. `networkGBps` is null for nodes that are no slower than the network
    between them.
    """
    return {
        "apiVersion": "arena-topo/v1",
        "kind": "Fabric",
        "tiers": [
            {
                "name": tier.name,
                "bandwidthGBps": number(tier.bandwidth),
                "assumed": tier.bandwidth is None,
            }
            for tier in cluster.tiers
        ],
        "beyondGBps": number(cluster.beyond),
        "beyondAssumed": cluster.beyond is None,
        "nodes": [
            {
                "name": str(node.name),
                "domains": list(node.domains),
                "model": node.machine.model,
                "gpus": len(node.machine.gpus),
                "free": free_gpus(node),
                "reservedGPUs": node.reserved_count,
                "opaque": node.unreserved.unattributed,
                "unavailable": node.unavailable or node.shared,
                "reserved": node.dedicated,
                "networkGBps": number(node.network) if math.isfinite(node.network) else None,
            }
            for node in sorted(cluster.nodes, key=lambda node: natural_key(node.name))
        ],
        "notes": list(map(str, cluster.notes)),
        "emulated": cluster.emulated,
    }


def node_value(node: Node, cluster: Cluster) -> dict[str, Any]:
    """A node for JSON: its machine, and its free GPUs.

    `free`, `inUse` and `unhealthy` are indexes of GPUs, `unhealthyCount` counts all unhealthy ones,
    and `reservedGPUs` those that are free but for the gangs that they wait for; `opaque` GPUs are
    in use or unhealthy and their indexes are not known. `free` is null with such GPUs, or if it is
    not known which are reserved. As in `network_json`, a node that takes no pods has no free GPUs.
    `busBandwidth` is present if sets of GPUs were measured: GB/s of each set.
    """
    machine = node.machine
    healthy = node.healthy
    free: list[int] | None = [*members(node.free)]
    if node.unavailable or node.shared:
        free = []
    elif node.unattributed:
        free = None
    return {
        **machine_value(machine),
        **({"busBandwidth": _measured(machine)} if machine.measured else {}),
        "free": free,
        "freeCount": free_gpus(node),
        "reservedGPUs": node.reserved_count,
        "inUse": [*members(GPUSet(healthy & ~node.unreserved.free))],
        "opaque": node.unreserved.unattributed,
        "unhealthy": [*members(GPUSet(machine.everything & ~healthy))],
        "unhealthyCount": node.unhealthy_count,
        "unavailable": node.unavailable or node.shared,
        "notes": list(map(str, cluster.notes)),
        "emulated": cluster.emulated,
    }


def measured_text(machine: Machine) -> str:
    """The measured bandwidths of a machine, a line for each set of GPUs; "" without any."""
    if not machine.measured:
        return ""
    shown = [*_measured(machine).items()][:MOST_MEASURED]
    rows = [f"  GPUs {gpus}  {rate} GB/s" for gpus, rate in shown]
    if more := len(machine.measured) - len(rows):
        rows.append(f"  and of {more} more sets: -o json")
    when = f" ({one_line(machine.measured_on)})" if machine.measured_on else ""
    title = f"Measured bus bandwidth{when}, which counts instead of what the links would give:"
    return "".join(f"{line}\n" for line in (title, *rows))


MOST_MEASURED = 16
"""The most measured sets of a machine that are listed; the rest is counted."""


def _measured(machine: Machine) -> dict[str, int | float | None]:
    return {
        ",".join(map(str, members(gpus))): number(rate)
        for gpus, rate in sorted(machine.measured, key=lambda entry: members(entry[0]))
    }
