"""The names that a command has read, cached for TAB after its work; never an error.

    begin(everywhere)                       before the first request: `opening.engine` does it
    jobs(backend, namespace, found, whole)  some jobs, or the whole list
    created(backend, namespace, job)        a new job
    gone(backend, namespace, name)          a deleted job
    nodes(backend, cluster)                 all nodes
    claims(backend, found, namespace)       all claims of a namespace
    others(backend, kind, found)            all namespaces or priorities
    own(kind, found)                        all contexts, clusters, users or profiles

The Python API caches no names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from arena_topo.cli import settings
from arena_topo.cli.options import Globals
from arena_topo.completion.names import FLAGS, Cache, gpus, key, stamp
from arena_topo.flag import flags_of, spelling

if TYPE_CHECKING:
    from arena_topo.engines import Backend, JobStatus
    from arena_topo.engines.volume import Volume
    from arena_topo.job import MPIJob
    from arena_topo.topology import Cluster

_FIELDS = {name: spelling(name, flag)[2:] for name, flag in flags_of(Globals).items()}

_PODS = 100
"""The newest jobs of a list, whose pods are cached."""

_SPACES = 10
"""Namespaces that are cached of a list of all, first those that were cached before."""


class _Begun:
    """The running command: the key of its cache, and the files that decide which cluster it uses.

    `default`: its namespace is that of every command line with the same options.
    """

    def __init__(self, everywhere: Globals) -> None:
        layers = (one for one in settings.in_force.get() if one.origin == settings.LINE)
        given = [pair for one in layers for pair in one.given]
        said = [(_FIELDS.get(field, ""), text) for field, text in given]
        self.key = key([pair for pair in said if pair[0] in FLAGS], os.environ)
        named = everywhere.kubeconfig or everywhere.config
        configs = [named] if named else os.environ.get("KUBECONFIG", "").split(os.pathsep)
        paths = [path for path in configs if path] or ["~/.kube/config"]
        # A relative path is part of the key only where the line or a variable has it.
        paths = [path if path[0] == "~" else os.path.abspath(path) for path in paths]  # noqa: PTH100
        self.stamps = {path: stamp(path) for path in (*paths, *settings.places())}
        fields = {field for field, _ in given}
        # A namespace of the line, or of a job file, is not that of other lines.
        self.default = not everywhere.namespace or not fields & {"namespace", "file"}


_begun: _Begun | None = None
"""The command that is running."""


def begin(everywhere: Globals) -> None:
    """Record which cluster the line means, before a file that decides it can change."""
    global _begun  # noqa: PLW0603 - there is one command
    _begun = None
    with suppress(OSError):  # the folder that this process is in may be gone
        _begun = _Begun(everywhere)


def jobs(
    backend: Backend, namespace: str | None, found: Iterable[JobStatus], *, whole: bool
) -> None:
    """Cache the names of jobs and of their pods; `namespace` None: of all namespaces."""

    def write(cache: Cache) -> None:
        spaces: dict[str, list[JobStatus]] = {} if namespace is None else {namespace: []}
        for one in found:
            spaces.setdefault(one.namespace, []).append(one)
        wanted = list(spaces)
        if namespace is None:
            before = [cache.namespace or backend.default_namespace(), *cache.namespaces("jobs")]
            wanted = list(dict.fromkeys([*filter(None, before), *spaces]))[:_SPACES]
        for space in wanted:
            there = spaces.get(space, [])
            standing = {one.name: _standing(one) for one in there}
            cache.put("jobs", space, standing, whole=whole)
            pods = {name: text for one in there[:_PODS] for name, text in _pods(one)}
            names = {one.name for one in there}
            before = [one for one in cache.names("instances", space) if one.split("/")[0] in names]
            cache.put("instances", space, dict.fromkeys(before) | pods, whole=whole)
        cache.put(
            "namespaces", "", {one: "" for one, there in spaces.items() if there}, whole=False
        )

    _keep(backend, write)


def created(backend: Backend, namespace: str, job: MPIJob) -> None:
    """Cache the name of a new job."""
    text = gpus(job.workers * job.gpus) if job.gpus else ""

    def write(cache: Cache) -> None:
        cache.put("jobs", namespace, {job.name: text}, whole=False)
        cache.put("namespaces", "", {namespace: ""}, whole=False)

    _keep(backend, write)


def gone(backend: Backend, namespace: str, name: str) -> None:
    """Remove the name of a deleted job, and those of its pods."""

    def write(cache: Cache) -> None:
        pods = [one for one in cache.names("instances", namespace) if one.startswith(f"{name}/")]
        cache.put("jobs", namespace, {name: None}, whole=False)
        cache.put("instances", namespace, dict.fromkeys(pods), whole=False)

    _keep(backend, write)


def others(
    backend: Backend, kind: str, found: Mapping[str, str], namespace: str | None = None
) -> None:
    """Cache all names of another kind: nodes, claims of a namespace, namespaces, priorities."""
    _keep(backend, lambda cache: cache.put(kind, namespace or "", found, whole=True))


def nodes(backend: Backend, cluster: Cluster) -> None:
    """Cache the names of all nodes."""
    found = {
        str(one.name): gpus(len(one.machine.gpus)) if one.machine.gpus else ""
        for one in cluster.nodes
    }
    others(backend, "nodes", found)


def claims(backend: Backend, found: Iterable[Volume], namespace: str | None) -> None:
    """Cache the names of all claims of a namespace; of all namespaces TAB needs none."""
    if namespace is not None:
        told = {one.name: one.description or one.capacity for one in found}
        others(backend, "claims", told, namespace)


def own(kind: str, found: Iterable[str]) -> None:
    """Cache all names of a kind that is in the user's own files."""
    _keep(None, lambda cache: cache.put(kind, "", dict.fromkeys(found, ""), whole=True))


def _keep(backend: Backend | None, write: Callable[[Cache], None]) -> None:
    """Update the cache, unless the files that decide the cluster have changed meanwhile."""
    begun = _begun
    if begun is None:
        return
    with suppress(Exception):  # names are a convenience
        cache = Cache(begun.key, os.environ)
        if cache.based_on(begun.stamps):
            if backend is not None and begun.default:
                cache.namespace = backend.default_namespace()
            write(cache)
            cache.write()


def _standing(one: JobStatus) -> str:
    """The description of a job: facts that do not change from moment to moment."""
    asked = [gpus(one.request_gpus)] if one.request_gpus else []
    return ", ".join([str(one.phase), *asked])


def _pods(one: JobStatus) -> Iterable[tuple[str, str]]:
    """The pods of a job, the launcher first, each with the node that it is on."""
    pods = sorted(one.instances, key=lambda pod: (not pod.chief, not pod.launcher, pod.worker or 0))
    return [(f"{one.name}/{pod.name}", f"on {pod.node}" if pod.node else "") for pod in pods]
