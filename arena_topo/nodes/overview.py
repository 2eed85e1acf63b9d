"""The nodes that `top node` shows, from an engine or from dumps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from arena_topo.engines import ignore_message, occupancy
from arena_topo.engines.backend import Backend
from arena_topo.engines.kubernetes.mpijob import pod_status
from arena_topo.engines.occupancy import Mode, NodeStatus, Occupancy
from arena_topo.errors import NotFound, near
from arena_topo.topology.fabric import FabricFile

if TYPE_CHECKING:
    from arena_topo.engines.metrics import GpuSample
    from arena_topo.topology import Cluster


NO_NODES_TEXT = "failed to display nodes's informations: not found nodes"
"""Arena's text if no node is left to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Nodes at one look, and the measurements of their GPUs."""

    occupancy: Occupancy
    samples: tuple[GpuSample, ...] = ()


def read_overview(
    source: Backend | Sequence[str],
    names: Collection[str] = (),
    *,
    mode: Mode | None = None,
    alone: bool = False,
    fabric: FabricFile | None = None,
    metrics: bool = False,
    tell: Callable[[str], None] = ignore_message,
) -> Overview:
    """Look at the nodes of an engine, or of dumps, with these names and this mode.

    With `alone` the cluster has only the named nodes, and `mode` is ignored. `fabric` is the
    network between the nodes of dumps. `metrics` asks an engine for the load of the GPUs; `tell`
    gets the reason if it is unknown. NotFound as in `select_nodes`.
    """
    state = (
        read_nodes(source, fabric)
        if isinstance(source, Sequence)
        else with_reserved(source.nodes(), source)
    )
    state = (
        nodes_by_name(state, names)
        if alone
        else replace(state, nodes=select_nodes(state, names, mode))
    )
    samples: tuple[GpuSample, ...] = ()
    if metrics and not isinstance(source, Sequence):
        samples = source.metrics(tell=tell)
    return Overview(occupancy=state, samples=samples)


def with_reserved(state: Occupancy, backend: Backend) -> Occupancy:
    """The nodes and the cluster with the GPUs that are reserved for the gang which comes first."""
    if backend.pausing is not None:
        left = backend.pausing.left()
    elif state.queued:
        from arena_topo.gang import planning  # noqa: PLC0415 - the solver, only where jobs wait
        from arena_topo.gang.request import Site  # noqa: PLC0415 - as above

        left = planning.queue_for_new_job(planning.SOME_JOB, Site(backend=backend)).left
    else:
        return state
    return _reserved_as(left, state)


def _reserved_as(left: Cluster, state: Occupancy) -> Occupancy:
    """The nodes and the cluster with the reservations of another reading of the cluster."""
    reserved = {node.name: node for node in left.nodes if node.reserved is not None}
    nodes = (
        replace(node, node=reserved[node.node.name]) if node.node.name in reserved else node
        for node in state.nodes
    )
    cluster = tuple(reserved.get(node.name, node) for node in state.cluster.nodes)
    return replace(state, nodes=tuple(nodes), cluster=replace(state.cluster, nodes=cluster))


def read_nodes(paths: Sequence[str], fabric: FabricFile | None = None) -> Occupancy:
    """The nodes in dumps of `kubectl get ... -o json`, with what is reserved; `-`: standard input.

    `fabric` is the network between them; it overrides their labels. UsageError without nodes.
    """
    from arena_topo.engines import engine_choice  # noqa: PLC0415 - only for dumps

    queue = engine_choice.read_queue(paths, fabric, status_of=pod_status)
    state = occupancy.read_occupancy(queue.records, source=queue.source, file=fabric)
    if not queue.waiting:
        return state
    from arena_topo.gang import planning  # noqa: PLC0415 - the solver, only where jobs wait

    left = planning.queue_in_dumps(queue, "default").left
    return _reserved_as(left, replace(state, cluster=replace(state.cluster, notes=left.notes)))


def select_nodes(
    state: Occupancy, names: Collection[str] = (), mode: Mode | None = None
) -> tuple[NodeStatus, ...]:
    """The nodes with these names, or all, of one mode if it is given.

    NotFound, with arena's text, if a name is unknown or no node is left.
    """
    known = {node.name for node in state.nodes}
    unknown = [name for name in dict.fromkeys(names) if name not in known]
    if unknown:
        hint = near(unknown[0], sorted(known)) or "arena-topo top node shows them all"
        raise NotFound(NO_NODES_TEXT, why=f"there is no node {', '.join(unknown)}", hint=hint)
    named = [node for node in state.nodes if not names or node.name in names]
    nodes = tuple(node for node in named if mode is None or node.mode is mode)
    if not nodes:
        modes = sorted({node.mode.alias for node in named})
        reason = f"no node has mode {mode.alias}; there is {', '.join(modes)}" if mode else ""
        raise NotFound(
            NO_NODES_TEXT, why=reason if named and reason else "the cluster has no nodes"
        )
    return nodes


def nodes_by_name(state: Occupancy, names: Collection[str]) -> Occupancy:
    """Only the nodes with these names, or all without names; NotFound as in `select_nodes`."""
    nodes = select_nodes(state, names) if state.nodes or names else ()
    mine = {status.node.name for status in nodes}
    cluster = tuple(node for node in state.cluster.nodes if node.name in mine)
    return replace(state, nodes=nodes, cluster=replace(state.cluster, nodes=cluster))
