"""The verbs: plan, submit, wait, follow. Each is one path of readers, solver, manifests, backend.

Nothing here prints: progress goes to the `tell` that the caller hands in, results are values.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from arena_topo.backends import Backend, Instance, JobStatus, LogOptions, Options
from arena_topo.errors import NotFound, UsageError

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
        shortfall,
    )
    from arena_topo.workflow.submission import Submitted, submit
    from arena_topo.workflow.waiting import wait

__all__ = [
    "LOCAL_IMAGE",
    "NO_TIERS",
    "NoSuchJob",
    "Submitted",
    "borne",
    "check_size",
    "excluded",
    "follow",
    "nothing_to_place_on",
    "nowhere",
    "open_backend",
    "plan",
    "read_fabric",
    "read_state",
    "request_of",
    "shortfall",
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
        "shortfall",
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
    if _engine(options) == "kubernetes":
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
        and _engine(options) == "local"
    )


def _engine(options: Options) -> str:
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


class NoSuchJob(NotFound):
    """The job whose log is wanted is not there."""


def follow(
    backend: Backend,
    name: str,
    namespace: str,
    *,
    instance: str | None,
    options: LogOptions,
    tell: Callable[[str], None] = lambda _: None,
    seen: Callable[[JobStatus], None] = lambda _: None,
) -> Iterator[bytes]:
    """The log of one pod of a job, the launcher's unless another is named.

    With `options.follow` it waits for the pod (`tell` hears why) and ends with it. `seen` hears of
    the job once it was found.
    """
    job = _existing(backend, name, namespace)
    seen(job)
    told = None
    while True:
        chosen = _instance(job, instance, follow=options.follow)
        if chosen is not None and not chosen.pending:
            yield from backend.log(job, chosen.name, options)
            return
        if not options.follow or job.phase.over:
            raise NotFound(
                f"instance {chosen.name if chosen else name} is not running",
                why=job.reason,
                hint=f"wait for it: arena-topo logs -f {name} -n {namespace}",
            )
        waiting = job.reason or "waiting for the pod to start"
        if waiting != told:
            told = waiting
            tell(waiting)
        time.sleep(backend.look_every)
        job = _existing(backend, name, namespace)


def _existing(backend: Backend, name: str, namespace: str) -> JobStatus:
    try:
        return backend.job(name, namespace)
    except NotFound as missing:
        raise NoSuchJob(
            "training job not found,please use 'arena-topo list' to make sure job is existed",
            why=missing.message,
        ) from None


def _instance(job: JobStatus, named: str | None, *, follow: bool) -> Instance | None:
    """The pod whose log is meant; None while there is none yet."""
    if named is not None:
        for one in job.instances:
            if one.name == named:
                return one
        from arena_topo.workflow.attaching import unknown  # noqa: PLC0415  only to suggest one

        raise unknown(named, job)
    if job.chief is not None:
        return job.chief
    if follow and not job.phase.over:
        return None
    if len(job.instances) == 1:
        return job.instances[0]
    if not job.instances:
        raise NotFound(f"not found instances of the job {job.name}", why=job.reason)
    names = ", ".join(one.name for one in job.instances)
    raise UsageError(
        f"There is {len(job.instances)} instances have been found: {names};"
        " please use '-i' or '--instance' to filter."
    )
