"""Nodes as `-o json` prints them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arena_topo.nodes.overview import Overview


def nodes(found: Overview) -> dict[str, Any]:
    """Nodes and their GPUs, in arena's classes."""
    from arena_topo.nodes import top_view  # noqa: PLC0415 - only to look at nodes

    samples = top_view.by_node(found.samples)
    occupancy = found.found
    return top_view.nodes_value(occupancy.nodes, samples, emulated=occupancy.cluster.emulated)
