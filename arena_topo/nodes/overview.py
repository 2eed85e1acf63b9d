"""The nodes that `top node` shows, from an engine or from dumps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from arena_topo.clusters import dump
from arena_topo.engines import Backend, occupancy, unheard
from arena_topo.engines.kubernetes.mpijob import pod_status
from arena_topo.engines.occupancy import Mode, NodeStatus, Occupancy
from arena_topo.errors import NotFound, UsageError, near
from arena_topo.topology.fabric import FabricFile

if TYPE_CHECKING:
    from arena_topo.engines.metrics import GpuSample


NOT_FOUND = "failed to display nodes's informations: not found nodes"
"""Arena's text if no node is left to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Nodes at one look, and the measurements of their GPUs."""

    occupancy: Occupancy
    samples: tuple[GpuSample, ...] = ()


def look(
    source: Backend | Sequence[str],
    names: Collection[str] = (),
    *,
    mode: Mode | None = None,
    alone: bool = False,
    fabric: FabricFile | None = None,
    metrics: bool = False,
    tell: Callable[[str], None] = unheard,
) -> Overview:
    """Look at the nodes of an engine, or of dumps, with these names and this mode.

    With `alone` the cluster has only the named nodes, and `mode` is ignored. `fabric` is the
    network between the nodes of dumps. `metrics` asks an engine for the load of the GPUs; `tell`
    gets the reason if it is unknown. NotFound as in `chosen`.
    """
    state = read(source, fabric) if isinstance(source, Sequence) else source.nodes()
    state = only(state, names) if alone else replace(state, nodes=chosen(state, names, mode))
    samples: tuple[GpuSample, ...] = ()
    if metrics and not isinstance(source, Sequence):
        samples = source.metrics(tell=tell)
    return Overview(occupancy=state, samples=samples)


def read(paths: Sequence[str], fabric: FabricFile | None = None) -> Occupancy:
    """The nodes in dumps of `kubectl get ... -o json`; `-` is standard input.

    `fabric` is the network between them; it overrides their labels. UsageError without nodes.
    """
    source = ", ".join(paths)
    state = occupancy.read_occupancy(
        dump.read(paths, status_of=pod_status), source=source, file=fabric
    )
    if not state.nodes:
        raise UsageError(
            f"{source}: the dump holds no nodes",
            why="; ".join(state.cluster.notes[:3]) or None,
            hint="make one with: kubectl get nodes,pods,mpijobs -A -o json > state.json",
        )
    return state


def chosen(
    state: Occupancy, names: Collection[str] = (), mode: Mode | None = None
) -> tuple[NodeStatus, ...]:
    """The nodes with these names, or all, of one mode if it is given.

    NotFound, with arena's text, if a name is unknown or no node is left.
    """
    known = {node.name for node in state.nodes}
    unknown = [name for name in dict.fromkeys(names) if name not in known]
    if unknown:
        hint = near(unknown[0], sorted(known)) or "arena-topo top node shows them all"
        raise NotFound(NOT_FOUND, why=f"there is no node {', '.join(unknown)}", hint=hint)
    named = [node for node in state.nodes if not names or node.name in names]
    nodes = tuple(node for node in named if mode is None or node.mode is mode)
    if not nodes:
        modes = sorted({node.mode.alias for node in named})
        reason = f"no node has mode {mode.alias}; there is {', '.join(modes)}" if mode else ""
        raise NotFound(NOT_FOUND, why=reason if named and reason else "the cluster has no nodes")
    return nodes


def only(state: Occupancy, names: Collection[str]) -> Occupancy:
    """Only the nodes with these names, or all without names; NotFound as in `chosen`."""
    nodes = chosen(state, names) if state.nodes or names else ()
    mine = tuple(status.node for status in nodes)
    return replace(state, nodes=nodes, cluster=replace(state.cluster, nodes=mine))
