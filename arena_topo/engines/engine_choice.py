"""The source of a request: an engine, or the cluster in a dump."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from arena_topo.engines import Options, ignore_message
from arena_topo.engines.backend import Backend
from arena_topo.errors import FORBIDDEN, AccessDenied, UsageError
from arena_topo.files import STDIN
from arena_topo.names import is_subdomain

if TYPE_CHECKING:
    from arena_topo.clusters.records import StatusOf
    from arena_topo.engines.kubernetes.admin import Administration
    from arena_topo.engines.kubernetes.dumped import DumpedQueue
    from arena_topo.job import MPIJob
    from arena_topo.topology import Cluster, PoolRates, Software
    from arena_topo.topology.fabric import FabricFile


def choose_engine(
    options: Options,
    *,
    image: str | None = None,
    emulating: str = "--emulate",
    tell: Callable[[str], None] = ignore_message,
) -> Backend:
    """Open the engine of the options; `tell` gets a note if `auto` chose the local engine.

    `emulating` names the setting that asked for emulated machines. UsageError as in `open_backend`.
    """
    backend = open_backend(options, image=image, emulating=emulating)
    if options.backend == "auto" and backend.name == "local":
        why = emulating if options.emulate else "No Kubernetes cluster is configured"
        tell(f"{why}: using this machine (--backend local).")
    return backend


def administration(backend: Backend) -> Administration:
    """The administration of the cluster; UsageError on the local engine."""
    from arena_topo.engines.kubernetes import admin  # noqa: PLC0415 - only for administrators
    from arena_topo.engines.kubernetes.engine import KubernetesBackend  # noqa: PLC0415 - heavy

    if not isinstance(backend, KubernetesBackend):
        raise UsageError(
            "this command needs a Kubernetes cluster, and the local engine is in use",
            why="no cluster is configured, or emulated machines or --backend local were asked for",
            hint="set KUBECONFIG, or name a cluster with --kubeconfig and --context; and give"
            " neither ARENA_TOPO_EMULATE, --emulate nor --backend local",
        )
    return admin.Administration(backend)


class World(msgspec.Struct, frozen=True, kw_only=True):
    """The world for which a job is planned: the `queue` in dumps, or an engine, or neither."""

    queue: DumpedQueue | None
    backend: Backend | None
    namespace: str


def world(
    job: MPIJob,
    options: Options,
    *,
    state: Sequence[str] = (),
    emulating: str = "--emulate",
    tell: Callable[[str], None] = ignore_message,
) -> World:
    """The queue in the dumps, if any are given, else the engine, if there is one.

    `emulating` as in `engine`. With dumps no engine is asked.
    """
    queue = read_queue(state, options.fabric) if state else None
    backend = None
    # Manifests need no cluster; only placement does.
    if queue is None and not nowhere(options, job.image):
        # Nothing runs, so any image is fine on emulated machines.
        image = None if options.emulate else job.image
        backend = choose_engine(options, image=image, emulating=emulating, tell=tell)
    namespace = options.namespace or (backend.default_namespace() if backend else "default")
    return World(queue=queue, backend=backend, namespace=namespace)


SITE_FLAGS = "--no-p2p, --no-gdr, --plugin or --calibration"
"""The flags of facts about the machines of a site."""


def read_network(
    file: str,
    state: Sequence[str] = (),
    site: Software | None = None,
    pools: tuple[PoolRates, ...] = (),
) -> FabricFile | None:
    """The network in a file, and what else is known of the site; None without any.

    `state` are the dumps of the same command, `pools` calibrations.
    """
    if file == "-" and "-" in state:
        raise UsageError("--fabric and --state cannot both be standard input")
    described = read_fabric(file) if file else None
    if site is None and not pools:
        return described
    from arena_topo.topology import USUAL  # noqa: PLC0415  only where it is needed
    from arena_topo.topology.fabric import FabricFile  # noqa: PLC0415  the same

    known = described or FabricFile(where=SITE_FLAGS, levels=None)
    return replace(known, site=site or USUAL, pools=pools)


LOCAL_IMAGE = "local"
"""The image name that means "whatever is installed on this machine"."""


def open_backend(
    options: Options, *, image: str | None = None, emulating: str = "--emulate"
) -> Backend:
    """Open the engine of the options; `auto` is Kubernetes if it is configured, else local.

    A job whose image is not `local` never runs locally by accident: UsageError with both ways out.
    UsageError also for machines to emulate that do not exist. `emulating` names the setting that
    asked for them.
    """
    if options.backend not in {"auto", "kubernetes", "local"}:
        raise UsageError(
            f"unknown backend {options.backend!r}", hint="use auto, kubernetes or local"
        )
    if engine_of(options) == "kubernetes":
        from arena_topo.engines.kubernetes import engine as kubernetes  # noqa: PLC0415  heavy

        return kubernetes.open_kubernetes(options)
    if options.backend == "auto" and image not in {None, "", LOCAL_IMAGE}:
        raise _outside_its_image(image, emulating if options.emulate else "")
    if options.fabric is not None:
        named, why = "--fabric", "have no labels that could say where in a network they are"
        if options.fabric.where == SITE_FLAGS:
            named, why = SITE_FLAGS, "are taken as they are"
        raise UsageError(
            f"{named} is not for the local engine",
            why=f"its machines {why}",
            hint="give --state FILE, or a cluster with --backend kubernetes",
        )
    from arena_topo.engines.local import engine as local  # noqa: PLC0415  heavy

    if options.emulate:
        from arena_topo.topology import presets  # noqa: PLC0415  only for emulated machines

        # A command that needs no machines should not accept a name that the next one refuses.
        presets.preset_counts(options.emulate)
    return local.open_local(options)


def _outside_its_image(image: str | None, emulating: str) -> UsageError:
    """The error of a job that `auto` would run on this machine, outside its image."""
    if emulating:
        return UsageError(
            f"image {image} cannot run on this machine, and no cluster is meant by {emulating}",
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
    """The engine of the options, `kubernetes` or `local`; UsageError as in `kubeconfig`."""
    if options.backend != "auto":
        return options.backend
    if options.emulate:
        # Emulated machines belong to the local engine.
        return "local"
    from arena_topo.engines.kubernetes import kubeconfig  # noqa: PLC0415  only for `auto`

    if options.kubeconfig or options.context or kubeconfig.configured(options):
        return "kubernetes"
    return "local"


def read_state(paths: Sequence[str], fabric: FabricFile | None = None) -> Cluster:
    """The cluster in dumps, as of `read_queue`, without what is reserved for the first gang."""
    return read_queue(paths, fabric).snapshot.cluster()


def read_queue(
    paths: Sequence[str],
    fabric: FabricFile | None = None,
    *,
    status_of: StatusOf | None = None,
) -> DumpedQueue:
    """The cluster and its queue in dumps of `kubectl get ... -o json`; `-` is standard input.

    `fabric` is the network between the nodes; it overrides their labels. `status_of` is as of
    `clusters.records.read_record`. UsageError if the dumps have no node.
    """
    from arena_topo.engines.kubernetes.dumped import DumpedQueue  # noqa: PLC0415  only for dumps

    queue = DumpedQueue(paths, fabric, status_of=status_of)
    cluster = queue.snapshot.cluster()
    if not cluster.nodes:
        raise UsageError(
            f"{', '.join(paths)}: the dump holds no nodes",
            why="; ".join(cluster.notes[:3]) or None,
            hint="make one with: kubectl get nodes,pods,mpijobs -A -o json > state.json",
        )
    return queue


def read_fabric(path: str) -> FabricFile:
    """The network that a file describes; `-` is standard input.

    UsageError names the file, and the line and the path of the invalid part.
    """
    return _checked_fabric(path)[1]


def read_fabric_text(path: str) -> str:
    """The text of a fabric file, comments included; UsageError as in `read_fabric`."""
    return _checked_fabric(path)[0]


def _checked_fabric(path: str) -> tuple[str, FabricFile]:
    from arena_topo.clusters import dump  # noqa: PLC0415  YAML, only for files
    from arena_topo.topology import fabric  # noqa: PLC0415  only for files

    name, text = dump.read_small(path)
    data, lines = dump.parse_small(name, text)
    return text, fabric.parse_fabric(data, where=name, lines=lines)


def read_calibration(name: str, options: Options) -> PoolRates:
    """The calibration in a file (`-`: standard input), else of that name in the cluster.

    UsageError if there is none, or if what has the name is no calibration.
    """
    from arena_topo.clusters import dump  # noqa: PLC0415  YAML, only for files
    from arena_topo.topology import calibrations  # noqa: PLC0415  only where it is asked for

    hint = "make one: arena-topo calibrate MACHINE --measured FILE -o yaml"
    try:
        # Path would raise for an impossible file name.
        if name == STDIN or os.path.isfile(name):  # noqa: PTH113 - see above
            return calibrations.pool_in(dump.read_document(name)[0])
        if engine_of(options) != "kubernetes" or not is_subdomain(name):
            raise UsageError(f"--calibration {name}: there is no such file", hint=hint)
        from arena_topo.engines.kubernetes.connection import Connection  # noqa: PLC0415  heavy
        from arena_topo.topology import published  # noqa: PLC0415  as above

        where = f"/api/v1/namespaces/{published.ACK_NAMESPACE}/configmaps/{name}"
        with privileged(f"read calibration {name} in namespace {published.ACK_NAMESPACE}"):
            stored = Connection(options).find(where)
        if stored is None:
            raise UsageError(
                f"--calibration {name}: there is no such file, and no ConfigMap of that name in"
                f" namespace {published.ACK_NAMESPACE}",
                hint=hint,
            )
        return calibrations.pool_in(stored)
    except calibrations.NoCalibration as error:
        raise UsageError(f"--calibration {name}: this is no calibration: {error}", hint=hint) from (
            error
        )


@contextmanager
def privileged(what: str) -> Iterator[None]:
    """Name the action that the caller may not do; the API server names only the request."""
    try:
        yield
    except AccessDenied as error:
        if error.status != FORBIDDEN:
            raise
        raise AccessDenied(
            f"no permission to {what}",
            status=error.status,
            why=error.why or error.message,
            hint=error.hint,
        ) from error
