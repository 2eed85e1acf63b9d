"""What a request is about: the engine, or the cluster of a dump; the error of a missing job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from arena_topo import workflow
from arena_topo.backends import Backend, Options, unheard
from arena_topo.errors import NotFound, UsageError

if TYPE_CHECKING:
    from arena_topo.backends.kubernetes.admin import Administration
    from arena_topo.job import MPIJob
    from arena_topo.topology import Cluster
    from arena_topo.topology.fabricfile import FabricFile


class UnknownJob(NotFound):
    """The job that is asked about is not there; `near` is a hint at the one that may be meant."""

    def __init__(self, name: str, namespace: str, *, near: str | None = None) -> None:
        # Arena's Python SDK looks for the whole of this text, down to the name of the program.
        super().__init__(
            f"Not found training job {name} in namespace {namespace},"
            "please use 'arena submit' to create it.",
            hint=near or "arena-topo list shows the jobs that are there, with -A in all namespaces",
        )
        self.name = name


@contextmanager
def known(name: str, namespace: str) -> Iterator[None]:
    """Say of a job that is not there that it is not, whatever the engine says: UnknownJob."""
    try:
        yield
    except NotFound:
        raise UnknownJob(name, namespace) from None


def engine(
    options: Options,
    *,
    image: str | None = None,
    emulating: str = "--emulate",
    tell: Callable[[str], None] = unheard,
) -> Backend:
    """Open the engine that the options ask for; `tell` hears of a local one that nobody asked for.

    `emulating` is what asked for emulated machines. UsageError as of `workflow.open_backend`.
    """
    backend = workflow.open_backend(options, image=image)
    if options.backend == "auto" and backend.name == "local":
        why = emulating if options.emulate else "No Kubernetes cluster is configured"
        tell(f"{why}: using this machine (--backend local).")
    return backend


def administration(backend: Backend) -> Administration:
    """The cluster that jobs go to; UsageError where that is this machine."""
    from arena_topo.backends.kubernetes import admin  # noqa: PLC0415 - only for administrators
    from arena_topo.backends.kubernetes.engine import KubernetesBackend  # noqa: PLC0415 - heavy

    if not isinstance(backend, KubernetesBackend):
        raise UsageError(
            "this is about a Kubernetes cluster, and none is configured",
            why="the local engine needs nothing installed, and has no nodes but this machine",
            hint="set KUBECONFIG, or name one with --kubeconfig and --context",
        )
    return admin.Administration(backend)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What a job that is not created is planned on: a `cluster` of dumps, or an engine, or none."""

    cluster: Cluster | None
    backend: Backend | None
    namespace: str


def world(
    job: MPIJob,
    options: Options,
    *,
    state: Sequence[str] = (),
    emulating: str = "--emulate",
    tell: Callable[[str], None] = unheard,
) -> World:
    """The cluster of the dumps in these files, if any is given; else the engine, if there is one.

    `emulating` as of `engine`. UsageError where an engine is asked for beside a dump.
    """
    for flag, said in (
        ("--emulate", bool(options.emulate)),
        (f"--backend {options.backend}", options.backend != "auto"),
    ):
        if state and said:
            raise UsageError(
                f"--state and {flag} exclude each other",
                why="a dump is placed on as it is, and no engine is asked",
                hint="leave one of them out",
            )
    cluster = workflow.read_state(state, options.fabric) if state else None
    backend = None
    # Objects can be made without a cluster; only placing needs one.
    if cluster is None and not workflow.nowhere(options, job.image):
        # Nothing runs, so that any image will do on machines that do not exist.
        image = None if options.emulate else job.image
        backend = engine(options, image=image, emulating=emulating, tell=tell)
    namespace = options.namespace or (backend.default_namespace() if backend else "default")
    return World(cluster=cluster, backend=backend, namespace=namespace)


def network(file: str, state: Sequence[str] = ()) -> FabricFile | None:
    """The network as a file describes it; None without one. `state` are the dumps read too."""
    if not file:
        return None
    if file == "-" and "-" in state:
        raise UsageError("--fabric and --state cannot both be standard input")
    return workflow.read_fabric(file)
