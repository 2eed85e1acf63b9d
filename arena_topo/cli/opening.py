"""What the options name: the engine, the namespace, the network, machines; a missing job."""

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
from arena_topo.errors import ArenaError, NotFound, UsageError, near

if TYPE_CHECKING:
    from arena_topo.topology import Cluster, Machine, Node
    from arena_topo.topology.fabric import FabricFile


_GLANCE = 3.0
"""Seconds that looking for jobs of similar names, or for a node named like a preset, may take."""


def missing(name: str, namespace: str, backend: Backend | None = None) -> NotFound:
    """The error of a job that is not there; with its engine, it suggests one that is."""
    hint = None if backend is None else alike(name, namespace, backend)
    return opening.UnknownJob(name, namespace, near=hint)


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
    except NotFound:
        raise missing(name, namespace, backend) from None


def alike(name: str, namespace: str, backend: Backend) -> str | None:
    """A hint at the job whose name is most like this one, where the jobs may be listed."""
    names: list[str] = []
    with stopping.briefly(_GLANCE), suppress(ArenaError):
        names = [one.name for one in backend.jobs(namespace)]
    # Of names that were generated, people remember the beginning.
    begun = next((one for one in names if one.startswith(f"{name}-")), None)
    return near(name, names) or (begun and f"did you mean {begun}?")


def network(file: str, state: tuple[str, ...] = ()) -> FabricFile | None:
    """The network as `--fabric` describes it; None without one. `state` are the dumps read too."""
    return opening.network(file, state)


def engine(
    everywhere: Globals,
    *,
    image: str | None = None,
    fabric: FabricFile | None = None,
    repeating: bool = False,
    stays: bool = False,
) -> Backend:
    """Open the engine that the options ask for, and say so where nobody asked for a local one.

    `fabric` says what joins the nodes of its cluster; who is `repeating` looks again by itself
    where a request is not answered, and says so. Who `stays` looks for as long as --timeout allows,
    each time with the patience of one request.
    """
    options = replace(everywhere.options(), fabric=fabric, repeating=repeating)
    if stays:
        options = replace(options, deadline=None)
    if repeating and options.deadline == 0:
        # `--timeout 0s` means one look, which takes as long as any request may.
        options = replace(options, deadline=None)
        stopping.limit(everywhere.request_timeout or None)
    else:
        stopping.limit(everywhere.timeout)
    remembering.begin(everywhere)
    return opening.engine(options, image=image, emulating=emulating(), tell=say)


def emulating() -> str:
    """What said which machines to emulate: the flag, a variable, or a file of settings."""
    origin = _origin("emulate")
    if origin == LINE:
        return "--emulate"
    return origin if origin in os.environ else f"emulate in {origin}"


def _origin(name: str) -> str:
    said = (one.origin for one in in_force.get() for known, _ in one.given if known == name)
    return next(said, LINE)


def namespace_of(everywhere: Globals, backend: Backend) -> str:
    """The namespace asked for, else the engine's own."""
    return everywhere.namespace or backend.default_namespace()


# ---------------------------------------------------------------- machines that a line names


def cluster_of(state: tuple[str, ...], fabric: str, everywhere: Globals) -> Cluster:
    """The cluster of dumps, or the one that commands go to."""
    described = network(fabric, state)
    if state:
        return opening.read_state(state, described)
    backend = engine(everywhere, fabric=described)
    cluster = backend.cluster()
    remembering.nodes(backend, cluster)
    return cluster


def is_node(preset: str, everywhere: Globals) -> bool:
    """Whether the Kubernetes cluster, where one is configured, has a node named like a preset."""
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
