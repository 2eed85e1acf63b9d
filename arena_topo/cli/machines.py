"""The machine or cluster that words of a command line name: a preset, a node, a dump."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arena_topo.cli import remembering, stopping
from arena_topo.cli.opening import engine, network
from arena_topo.cli.options import PROGRAM, Globals, note
from arena_topo.errors import ArenaError, UsageError, near

if TYPE_CHECKING:
    from arena_topo.topology import Cluster, Machine, Node


_GLANCE = 3.0
"""Seconds that looking for a node with the name of a preset may take."""


def cluster_of(state: tuple[str, ...], fabric: str, everywhere: Globals) -> Cluster:
    """The cluster of dumps, or the one that commands go to."""
    from arena_topo.engines import opening  # noqa: PLC0415 - the verbs load what they need

    described = network(fabric, state)
    if state:
        return opening.read_state(state, described)
    backend = engine(everywhere, fabric=described)
    cluster = backend.cluster()
    remembering.nodes(backend, cluster)
    return cluster


def is_node(preset: str, everywhere: Globals) -> bool:
    """Whether the Kubernetes cluster, where one is configured, has a node named like a preset."""
    from arena_topo.engines import opening  # noqa: PLC0415 - the verbs load what they need

    options = everywhere.options()
    if opening.engine_of(options) != "kubernetes":
        return False
    from arena_topo.engines.kubernetes.engine import KubernetesBackend  # noqa: PLC0415 - heavy

    why = f"no answer within {_GLANCE:g} s"
    with stopping.briefly(_GLANCE):
        try:
            return KubernetesBackend(options).has_node(preset)
        except ArenaError as error:
            why = error.message
    note(f"whether the cluster has a node {preset} is not known, the preset is shown: {why}")
    return False


def node_or_preset(name: str, cluster: Cluster) -> Node | Machine:
    """The node of that name, else the preset."""
    from arena_topo.topology import presets  # noqa: PLC0415 - reads the matrices

    for node in cluster.nodes:
        if node.name == name:
            return node
    if name in presets.names():
        return presets.machine(name, name)
    names = [*(str(node.name) for node in cluster.nodes), *presets.names()]
    raise UsageError(
        f"there is no node or preset {name}",
        hint=near(name, names) or f"{PROGRAM} topology show lists the nodes",
    )
