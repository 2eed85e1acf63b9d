"""The verbs: plan, submit, wait, and more in modules of their own.

Each is one path of readers, solver, manifests, backend.

Nothing here prints: progress goes to the `tell` that the caller hands in, results are values.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from arena_topo.backends import Backend, Options
from arena_topo.errors import UsageError

if TYPE_CHECKING:
    from arena_topo.topology import Cluster
    from arena_topo.topology.fabricfile import FabricFile
    from arena_topo.workflow.planning import (
        NO_TIERS,
        borne,
        check_size,
        excluded,
        nothing_to_place_on,
        plan,
        request_of,
    )
    from arena_topo.workflow.submission import Submitted, submit
    from arena_topo.workflow.waiting import wait

__all__ = [
    "LOCAL_IMAGE",
    "NO_TIERS",
    "Submitted",
    "borne",
    "check_size",
    "excluded",
    "nothing_to_place_on",
    "nowhere",
    "open_backend",
    "plan",
    "read_fabric",
    "read_state",
    "request_of",
    "submit",
    "wait",
]

_ROOMS = {
    "planning": (
        "NO_TIERS",
        "borne",
        "check_size",
        "excluded",
        "nothing_to_place_on",
        "plan",
        "request_of",
    ),
    "submission": ("Submitted", "submit"),
    "waiting": ("wait",),
}
"""What comes from modules that not everybody needs; most of them load the solver."""


def __getattr__(name: str) -> Any:
    for module, names in _ROOMS.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


LOCAL_IMAGE = "local"
"""The image name that means "whatever is installed on this machine"."""


def open_backend(options: Options, *, image: str | None = None) -> Backend:
    """Open the engine asked for; `auto` is Kubernetes where it is configured, else local.

    A job whose image is not `local` never runs locally by accident: UsageError with both ways out.
    """
    if options.backend not in {"auto", "kubernetes", "local"}:
        raise UsageError(
            f"unknown backend {options.backend!r}", hint="use auto, kubernetes or local"
        )
    if engine_of(options) == "kubernetes":
        from arena_topo.backends.kubernetes import engine as kubernetes  # noqa: PLC0415  heavy

        return kubernetes.open_backend(options)
    if options.backend == "auto" and image not in {None, "", LOCAL_IMAGE}:
        raise _outside_its_image(image, emulated=bool(options.emulate))
    if options.fabric is not None:
        raise UsageError(
            "--fabric is not for the local engine",
            why="its machines have no labels that could say where in a network they are",
            hint="give --state FILE, or a cluster with --backend kubernetes",
        )
    from arena_topo.backends.local import engine as local  # noqa: PLC0415  heavy

    return local.open_backend(options)


def _outside_its_image(image: str | None, *, emulated: bool) -> UsageError:
    """The error of a job that would run on this machine without its image, and nobody said so."""
    if emulated:
        return UsageError(
            f"image {image} cannot run on this machine, and no cluster is meant by --emulate",
            hint="run the command outside its image with --backend local, or plan it",
        )
    return UsageError(
        f"no Kubernetes cluster is configured, and image {image} cannot run on this machine",
        why="no --kubeconfig, KUBECONFIG, ~/.kube/config or in-cluster account was found",
        hint="set KUBECONFIG, or run the command outside its image with --backend local; to try"
        " it without a cluster or GPUs: --image local --emulate dgx-1-v100:2",
    )


def nowhere(options: Options, image: str) -> bool:
    """Whether `auto` finds no engine that a job of this image could run on."""
    return (
        options.backend == "auto"
        and not options.emulate
        and image not in {"", LOCAL_IMAGE}
        and engine_of(options) == "local"
    )


def engine_of(options: Options) -> str:
    """Which engine is asked for, `kubernetes` or `local`; UsageError as of `kubeconfig`."""
    if options.backend != "auto":
        return options.backend
    if options.emulate:
        # Who asks for machines that do not exist does not mean those of a cluster.
        return "local"
    from arena_topo.backends.kubernetes import kubeconfig  # noqa: PLC0415  only for `auto`

    if options.kubeconfig or options.context or kubeconfig.configured(options):
        return "kubernetes"
    return "local"


def read_state(paths: Sequence[str], fabric: FabricFile | None = None) -> Cluster:
    """The cluster that dumps of `kubectl get ... -o json` describe; `-` is standard input.

    `fabric` says what joins the nodes, where it is given, whatever their labels say. UsageError if
    there is no node in them.
    """
    from arena_topo.backends import dump, observed  # noqa: PLC0415  YAML, only for dumps

    source = ", ".join(paths)
    found = observed.cluster(dump.read(paths), source=source, file=fabric)
    if not found.nodes:
        raise UsageError(
            f"{source}: the dump holds no nodes",
            why="; ".join(found.notes[:3]) or None,
            hint="make one with: kubectl get nodes,pods,mpijobs -A -o json > state.json",
        )
    return found


def read_fabric(path: str) -> FabricFile:
    """The network that a file describes; `-` is standard input.

    UsageError names the file and the place in it that makes no sense.
    """
    from arena_topo.backends import dump  # noqa: PLC0415  YAML, only for files
    from arena_topo.topology import fabricfile  # noqa: PLC0415  only for files

    data, name = dump.document(path)
    return fabricfile.read(data, where=name)
