"""What options and arguments name: the engine, the namespace, the network, machines, jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from arena_topo.cli import remembering, stopping
from arena_topo.cli.arguments import Kind
from arena_topo.cli.options import PROGRAM, Globals, note, say
from arena_topo.cli.settings import LINE, in_force
from arena_topo.engines import Backend, opening
from arena_topo.errors import ArenaError, JobNotFound, UsageError, near

if TYPE_CHECKING:
    from arena_topo.topology import Cluster, Machine, Node
    from arena_topo.topology.fabric import FabricFile


_GLANCE = 3.0
"""Seconds for finding jobs with similar names, or a node with the name of a preset."""


def missing(name: str, namespace: str, backend: Backend | None = None) -> JobNotFound:
    """The error of a job that does not exist; with an engine it suggests a similar name."""
    hint = None if backend is None else alike(name, namespace, backend)
    return JobNotFound(name, namespace, hint=hint)


@contextmanager
def suggesting(
    name: str, namespace: str, backend: Backend | None, kind: Kind | None = None
) -> Iterator[None]:
    """Let the error of a job that does not exist name the one that may be meant.

    A job of another `kind` never exists.
    """
    if kind is Kind.OTHER:
        raise missing(name, namespace)
    try:
        yield
    except JobNotFound:
        raise missing(name, namespace, backend) from None


def alike(name: str, namespace: str, backend: Backend) -> str | None:
    """A hint at the job with the most similar name, where the caller may list jobs."""
    names: list[str] = []
    with stopping.briefly(_GLANCE), suppress(ArenaError):
        names = [one.name for one in backend.jobs(namespace)]
    return near(name, names)


def network(file: str, state: tuple[str, ...] = ()) -> FabricFile | None:
    """The network of `--fabric`; None without one. `state` are the dumps, which may be stdin."""
    return opening.network(file, state)


def engine(
    everywhere: Globals,
    *,
    image: str | None = None,
    fabric: FabricFile | None = None,
    repeating: bool = False,
    stays: bool = False,
) -> Backend:
    """Open the engine of the options; a note says so where the local one is only the default.

    `fabric` says what joins the nodes of its cluster. A command that is `repeating` looks once
    where `--timeout` is 0 s. A command that `stays` looks for as long as `--timeout` allows, each
    time with the patience of one request.
    """
    options = replace(everywhere.options(), fabric=fabric)
    if stays:
        options = replace(options, deadline=None)
    if repeating and options.deadline == 0:
        # `--timeout 0s` means a single look, limited as any request.
        options = replace(options, deadline=None)
        stopping.limit(everywhere.request_timeout or None)
    else:
        stopping.limit(everywhere.timeout)
    remembering.begin(everywhere)
    return opening.engine(options, image=image, emulating=emulating(), tell=say)


def emulating() -> str:
    """The source of the machines to emulate: the flag, a variable, or a settings file."""
    origin = _origin("emulate")
    if origin == LINE:
        return "--emulate"
    return origin if origin in os.environ else f"emulate in {origin}"


def _origin(name: str) -> str:
    said = (one.origin for one in in_force.get() for known, _ in one.given if known == name)
    return next(said, LINE)


def namespace_of(everywhere: Globals, backend: Backend) -> str:
    """The namespace of the options, else the engine's default."""
    return everywhere.namespace or backend.default_namespace()


# ---------------------------------------------------------------- machines that a line names


def cluster_of(state: tuple[str, ...], fabric: str, everywhere: Globals) -> Cluster:
    """The cluster of the dumps in `state`; without any that of the engine."""
    described = network(fabric, state)
    if state:
        return opening.read_state(state, described)
    backend = engine(everywhere, fabric=described)
    cluster = backend.cluster()
    remembering.nodes(backend, cluster)
    return cluster


def is_node(preset: str, everywhere: Globals) -> bool:
    """Whether a Kubernetes cluster is configured and has a node with the name of a preset."""
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
        hint=near(name, names)
        or f"nodes: {PROGRAM} topology show; presets: {PROGRAM} topology presets",
    )
