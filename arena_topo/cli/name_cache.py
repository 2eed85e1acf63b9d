"""The names that a command has read, cached for TAB after its work; never an error.

The Python API caches no names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from arena_topo.cli import settings
from arena_topo.cli.options import CommonOptions
from arena_topo.completion.names import FLAGS, NameCache, context_key, gpus, stamp
from arena_topo.flag import flags_of, spelling

if TYPE_CHECKING:
    from arena_topo.engines import JobStatus
    from arena_topo.engines.backend import Backend
    from arena_topo.engines.volume import Volume
    from arena_topo.job import MPIJob
    from arena_topo.topology import Cluster

_FIELDS = {name: spelling(name, flag)[2:] for name, flag in flags_of(CommonOptions).items()}

_PODS = 100
"""The newest jobs of a list, whose pods are cached."""

_SPACES = 10
"""Namespaces that are cached of a list of all, first those that were cached before."""


class _CacheTarget:
    """The running command: the key of its cache, and the files that decide which cluster it uses.

    `default`: its namespace is that of every command line with the same options.
    """

    def __init__(self, common: CommonOptions, layers: Iterable[settings.Layer]) -> None:
        given = [pair for layer in layers if layer.origin == settings.LINE for pair in layer.given]
        words = [(_FIELDS.get(field, ""), text) for field, text in given]
        self.key = context_key([pair for pair in words if pair[0] in FLAGS], os.environ)
        named = common.kubeconfig or common.config
        configs = [named] if named else os.environ.get("KUBECONFIG", "").split(os.pathsep)
        paths = [path for path in configs if path] or ["~/.kube/config"]
        # A relative path is part of the key only where the line or a variable has it.
        paths = [path if path[0] == "~" else os.path.abspath(path) for path in paths]  # noqa: PTH100
        self.stamps = {path: stamp(path) for path in (*paths, *settings.settings_paths())}
        fields = {field for field, _ in given}
        # A namespace of the line, or of a job file, is not that of other lines.
        self.default = not common.namespace or not fields & {"namespace", "file"}


class CachedNames:
    """The cache of the cluster that a command line means.

    It is made before the first request: a file that decides the cluster may change meanwhile, and
    then nothing is cached.
    """

    def __init__(self, common: CommonOptions, layers: Iterable[settings.Layer]) -> None:
        self._target: _CacheTarget | None = None
        with suppress(OSError):  # the folder that this process is in may be gone
            self._target = _CacheTarget(common, layers)

    def jobs(
        self, backend: Backend, namespace: str | None, statuses: Iterable[JobStatus], *, whole: bool
    ) -> None:
        """Cache the names of jobs and of their pods; `namespace` None: of all namespaces."""

        def write(cache: NameCache) -> None:
            spaces: dict[str, list[JobStatus]] = {} if namespace is None else {namespace: []}
            for status in statuses:
                spaces.setdefault(status.namespace, []).append(status)
            wanted = list(spaces)
            if namespace is None:
                before = [cache.namespace or backend.default_namespace(), *cache.namespaces("jobs")]
                wanted = list(dict.fromkeys([*filter(None, before), *spaces]))[:_SPACES]
            for space in wanted:
                in_space = spaces.get(space, [])
                standing = {status.name: _standing(status) for status in in_space}
                cache.put("jobs", space, standing, whole=whole)
                pods = {name: text for status in in_space[:_PODS] for name, text in _pods(status)}
                names = {status.name for status in in_space}
                before = [
                    name for name in cache.names("instances", space) if name.split("/")[0] in names
                ]
                cache.put("instances", space, dict.fromkeys(before) | pods, whole=whole)
            cache.put(
                "namespaces",
                "",
                {space: "" for space, statuses in spaces.items() if statuses},
                whole=False,
            )

        self._keep(backend, write)

    def created(self, backend: Backend, namespace: str, job: MPIJob) -> None:
        """Cache the name of a new job."""
        text = gpus(job.workers * job.gpus) if job.gpus else ""

        def write(cache: NameCache) -> None:
            cache.put("jobs", namespace, {job.name: text}, whole=False)
            cache.put("namespaces", "", {namespace: ""}, whole=False)

        self._keep(backend, write)

    def gone(self, backend: Backend, namespace: str, name: str) -> None:
        """Remove the name of a deleted job, and those of its pods."""

        def write(cache: NameCache) -> None:
            pods = [
                pod for pod in cache.names("instances", namespace) if pod.startswith(f"{name}/")
            ]
            cache.put("jobs", namespace, {name: None}, whole=False)
            cache.put("instances", namespace, dict.fromkeys(pods), whole=False)

        self._keep(backend, write)

    def others(
        self,
        backend: Backend,
        kind: str,
        described: Mapping[str, str],
        namespace: str | None = None,
    ) -> None:
        """Cache all names of another kind: nodes, claims of a namespace, namespaces, priorities."""
        self._keep(backend, lambda cache: cache.put(kind, namespace or "", described, whole=True))

    def nodes(self, backend: Backend, cluster: Cluster) -> None:
        """Cache the names of all nodes."""
        described = {
            str(node.name): gpus(len(node.machine.gpus)) if node.machine.gpus else ""
            for node in cluster.nodes
        }
        self.others(backend, "nodes", described)

    def claims(self, backend: Backend, volumes: Iterable[Volume], namespace: str | None) -> None:
        """Cache the names of all claims of a namespace; of all namespaces TAB needs none."""
        if namespace is not None:
            descriptions = {
                volume.name: volume.description or volume.capacity for volume in volumes
            }
            self.others(backend, "claims", descriptions, namespace)

    def own(self, kind: str, names: Iterable[str]) -> None:
        """Cache all names of a kind that is in the user's own files."""
        self._keep(None, lambda cache: cache.put(kind, "", dict.fromkeys(names, ""), whole=True))

    def _keep(self, backend: Backend | None, write: Callable[[NameCache], None]) -> None:
        """Update the cache, unless the files that decide the cluster have changed meanwhile."""
        target = self._target
        if target is None:
            return
        with suppress(Exception):  # names are a convenience
            cache = NameCache(target.key, os.environ)
            if cache.based_on(target.stamps):
                if backend is not None and target.default:
                    cache.namespace = backend.default_namespace()
                write(cache)
                cache.write()


def _standing(status: JobStatus) -> str:
    """The description of a job: facts that do not change from moment to moment."""
    requested = [gpus(status.request_gpus)] if status.request_gpus else []
    return ", ".join([str(status.phase), *requested])


def _pods(status: JobStatus) -> Iterable[tuple[str, str]]:
    """The pods of a job, the launcher first, each with the node that it is on."""
    pods = sorted(
        status.instances, key=lambda pod: (not pod.chief, not pod.launcher, pod.worker or 0)
    )
    return [(f"{status.name}/{pod.name}", f"on {pod.node}" if pod.node else "") for pod in pods]
