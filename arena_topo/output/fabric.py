"""The network of a cluster, and what is free in it, as data."""

from __future__ import annotations

from typing import Any

from arena_topo.output import number
from arena_topo.topology import Cluster, natural


def value(cluster: Cluster) -> dict[str, Any]:
    """A cluster for JSON: its tiers from coarse to near, and its nodes with their domains.

    Bandwidths are GB/s. `domains` has one name for each tier; `gpus` and `free` are counts,
    and no GPU is free on a node that takes no pods.
    """
    return {
        "apiVersion": "arena-topo/v1",
        "kind": "Fabric",
        "tiers": [
            {"name": tier.name, "bandwidthGBps": number(tier.bandwidth)} for tier in cluster.tiers
        ],
        "beyondGBps": number(cluster.beyond),
        "nodes": [
            {
                "name": str(node.name),
                "domains": list(node.domains),
                "model": node.machine.model,
                "gpus": len(node.machine.gpus),
                "free": 0 if node.unavailable or node.shared else node.free_count,
                "unavailable": node.unavailable or node.shared,
            }
            for node in sorted(cluster.nodes, key=lambda one: natural(one.name))
        ],
        "notes": list(cluster.notes),
        "emulated": cluster.emulated,
    }
