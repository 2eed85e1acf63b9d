"""What options and arguments name: the engine, the namespace, the network, machines, jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from arena_topo.cli import interruption
from arena_topo.cli.arguments import JobKind
from arena_topo.cli.name_cache import CachedNames
from arena_topo.cli.options import PROGRAM
from arena_topo.cli.session import Session
from arena_topo.engines import engine_choice
from arena_topo.engines.backend import Backend
from arena_topo.errors import ArenaError, JobNotFound, NotFound, near

if TYPE_CHECKING:
    from arena_topo.topology import Cluster, Machine, Node, PoolRates, Software
    from arena_topo.topology.fabric import FabricFile


_GLANCE = 3.0
"""Seconds for finding jobs with similar names, or a node with the name of a preset."""


def job_not_found(name: str, namespace: str, backend: Backend | None = None) -> JobNotFound:
    """The error of a job that does not exist; with an engine it suggests a similar name."""
    hint = None if backend is None else similar_job_hint(name, namespace, backend)
    return JobNotFound(name, namespace, hint=hint)


@contextmanager
def suggest_similar_job(
    name: str, namespace: str, backend: Backend | None, kind: JobKind | None = None
) -> Iterator[None]:
    """Let the error of a job that does not exist name the one that may be meant.

    A job of another `kind` never exists.
    """
    if kind is JobKind.OTHER:
        hint = None
        if backend is not None:
            with interruption.within_seconds(_GLANCE), suppress(ArenaError):
                backend.job(name, namespace)
                hint = f"{name} exists as an mpijob: leave out --type, or write --type mpijob"
        raise JobNotFound(name, namespace, hint=hint)
    try:
        yield
    except JobNotFound:
        raise job_not_found(name, namespace, backend) from None


def similar_job_hint(name: str, namespace: str, backend: Backend) -> str | None:
    """A hint at the job with the most similar name, where the caller may list jobs."""
    names: list[str] = []
    with interruption.within_seconds(_GLANCE), suppress(ArenaError):
        names = [job.name for job in backend.jobs(namespace)]
    return near(name, names)


def network_of_option(
    file: str,
    state: tuple[str, ...] = (),
    site: Software | None = None,
    pools: tuple[PoolRates, ...] = (),
) -> FabricFile | None:
    """The network of `--fabric` with the facts of the site; None without any.

    `state` are the dumps, which may be stdin.
    """
    return engine_choice.read_network(file, state, site, pools)


def calibrations_of_option(names: Iterable[str], session: Session) -> tuple[PoolRates, ...]:
    """The calibrations of `--calibration`."""
    options = session.common.options()
    return tuple(engine_choice.read_calibration(name, options) for name in names)


def open_engine(
    session: Session,
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
    common = session.common
    options = replace(common.options(), fabric=fabric)
    if stays:
        options = replace(options, deadline=None)
    if repeating and options.deadline == 0:
        # `--timeout 0s` means a single look, limited as any request.
        options = replace(options, deadline=None)
        session.set_deadline(common.request_timeout or None)
    else:
        session.set_deadline(common.timeout)
    session.names = CachedNames(common, session.layers)
    return engine_choice.choose_engine(
        options, image=image, emulating=session.emulating, tell=session.console.info
    )


def namespace_of(session: Session, backend: Backend) -> str:
    """The namespace of the options, else the engine's default."""
    return session.common.namespace or backend.default_namespace()


# ---------------------------------------------------------------- machines that a line names


def cluster_of(session: Session) -> Cluster:
    """The cluster of the engine; GPUs that are reserved for the head of the queue count as free."""
    backend = open_engine(session)
    cluster = backend.cluster()
    session.names.nodes(backend, cluster)
    return cluster


def is_node(preset: str, session: Session) -> bool:
    """Whether a Kubernetes cluster is configured and has a node with the name of a preset."""
    options = session.common.options()
    if engine_choice.engine_of(options) != "kubernetes":
        return False
    from arena_topo.engines.kubernetes.engine import KubernetesBackend  # noqa: PLC0415 - heavy

    why = f"no answer within {_GLANCE:g} s"
    with interruption.within_seconds(_GLANCE):
        try:
            return KubernetesBackend(options).has_node(preset)
        except ArenaError as error:
            why = error.message
    session.console.note(
        f"whether the cluster has a node {preset} is not known, the preset is shown: {why}"
    )
    return False


def node_or_preset(name: str, cluster: Cluster, *, others: Iterable[str] = ()) -> Node | Machine:
    """The node of that name, else the preset; NotFound names the nearest, also of `others`."""
    from arena_topo.topology import presets  # noqa: PLC0415 - reads the matrices

    for node in cluster.nodes:
        if node.name == name:
            return node
    if name in presets.preset_names():
        return presets.preset_machine(name, name)
    names = [*(str(node.name) for node in cluster.nodes), *presets.preset_names(), *others]
    raise NotFound(
        f"there is no node or preset {name}",
        hint=near(name, names)
        or f"nodes: {PROGRAM} topology show; presets: {PROGRAM} topology presets",
    )
