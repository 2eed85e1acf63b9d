"""The engine, the namespace and the network that the options name; the error of a missing job."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from arena_topo.backends import Backend
from arena_topo.cli.options import PROGRAM, Globals, say
from arena_topo.errors import NotFound, UsageError

if TYPE_CHECKING:
    from arena_topo.topology.fabricfile import FabricFile


def missing(name: str, namespace: str) -> NotFound:
    """The error of a job that is not there."""
    # Programs built on arena look for the first part of this text.
    return NotFound(
        f"Not found training job {name} in namespace {namespace},"
        f"please use '{PROGRAM} submit' to create it."
    )


def network(file: str, state: tuple[str, ...] = ()) -> FabricFile | None:
    """The network as `--fabric` describes it; None without one. `state` are the dumps read too."""
    if not file:
        return None
    if file == "-" and "-" in state:
        raise UsageError("--fabric and --state cannot both be standard input")
    from arena_topo import workflow  # noqa: PLC0415 - the verbs load what they need

    return workflow.read_fabric(file)


def engine(
    everywhere: Globals, *, image: str | None = None, fabric: FabricFile | None = None
) -> Backend:
    """Open the engine that the options ask for, and say so where nobody asked for a local one.

    `fabric` says what joins the nodes of its cluster.
    """
    from arena_topo import workflow  # noqa: PLC0415 - the verbs load what they need

    options = replace(everywhere.options(), fabric=fabric)
    backend = workflow.open_backend(options, image=image)
    if options.backend == "auto" and backend.name == "local":
        say("No Kubernetes cluster is configured: using this machine (--backend local).")
    return backend


def namespace_of(everywhere: Globals, backend: Backend) -> str:
    """The namespace asked for, else the engine's own."""
    return everywhere.namespace or backend.default_namespace()
