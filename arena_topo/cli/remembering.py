"""What a command has learned of names, kept for completion: after its work, and never an error.

    begin(everywhere)                       before anything is asked: `opening.engine` does it
    meant(everywhere)                       which cluster files say that it is
    jobs(backend, namespace, found, whole)  jobs at one look, perhaps all that there are
    created(backend, namespace, job)        one more
    gone(backend, namespace, name)          one less
    nodes(backend, cluster)                 all nodes
    claims(backend, found, namespace)       all claims of a namespace
    others(backend, kind, found)            all namespaces or priorities
    own(kind, found)                        all contexts, clusters, users or profiles

Jobs of this machine need none of it: completion looks into their folders. Nothing is kept for who
calls Python functions instead of commands.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from arena_topo.cli.settings import LINE, in_force
from arena_topo.completion import keeping, names, place
from arena_topo.engines import opening

if TYPE_CHECKING:
    from arena_topo.cli.options import Globals
    from arena_topo.engines import Backend, JobStatus
    from arena_topo.engines.kubernetes.connection import Access
    from arena_topo.engines.volume import Volume
    from arena_topo.job import MPIJob
    from arena_topo.topology import Cluster

_FIELDS = {flag[2:].replace("-", "_"): flag for flag in place.OURS} | {"as_": "--as"}
"""The fields of Globals that decide which jobs are meant, and their flags."""

_PODS = 100
"""Jobs of a list, the newest, whose pods are kept."""

_SPACES = 10
"""Namespaces that a list of all of them is kept for, first those that somebody asked for."""


class _Begun:
    """A command that began at `at` (ms): its line, and which files beside the line's count.

    Its `default` namespace is that of everybody who writes the same line.
    """

    __slots__ = ("also", "at", "default", "line")

    def __init__(self, everywhere: Globals) -> None:
        said = [pair for one in in_force.get() if one.origin == LINE for pair in one.given]
        words = [f"{_FIELDS[field]}={text}" for field, text in said if field in _FIELDS]
        self.line = place.Line(words, os.environ)
        self.at = keeping.now()
        named = everywhere.kubeconfig or everywhere.config
        paths = place.kubeconfigs(named, os.environ) if named else ()
        self.also = {path: place.stamp(path) for path in paths if path not in self.line.paths}
        # A namespace of a job file is nobody's who writes no such file.
        self.default = not everywhere.namespace or not any(field == "file" for field, _ in said)


_begun: _Begun | None = None
"""The command that is running."""


def begin(everywhere: Globals) -> None:
    """Keep in mind what the line means, before any file of it can change."""
    global _begun  # noqa: PLW0603 - there is one command
    _begun = _Begun(everywhere)


def meant(everywhere: Globals) -> None:
    """Keep which cluster files say that the line means, whether that answers or not.

    Its names may be known from before the files were written anew. UsageError where they name none.
    """
    options, begun = everywhere.options(), _begun
    if begun is None or opening.engine_of(options) != "kubernetes":
        return
    from arena_topo.engines.kubernetes import connection  # noqa: PLC0415 - commands go on anyway

    access = connection.written(options)
    asked = begun.line.namespace or not begun.default
    namespace = "" if asked else options.namespace or access.namespace or "default"
    keeping.kept(
        os.environ,
        lambda folder: keeping.locate(
            folder,
            begun.line,
            engine="kubernetes",
            cluster=cluster_of(access),
            namespace=namespace,
            also=begun.also,
        ),
    )


def jobs(
    backend: Backend, namespace: str | None, found: Iterable[JobStatus], *, whole: bool
) -> None:
    """Keep the names of jobs, and of their pods; None: of all namespaces."""
    spaces: dict[str, list[JobStatus]] = {} if namespace is None else {namespace: []}

    def write(folder: keeping.Folder, cluster: str, at: int) -> None:
        for one in found:
            spaces.setdefault(one.namespace, []).append(one)
        start = f"{cluster}-jobs-"
        if namespace is not None:
            wanted = [namespace]
        else:
            listed = [one.removeprefix(start) for one in folder.names() if one.startswith(start)]
            first = backend.default_namespace()
            wanted = list(dict.fromkeys([first, *listed, *spaces]))[:_SPACES]
        for space in wanted:
            there = spaces.get(space, ())
            told: dict[str, str | None] = {one.name: _standing(one) for one in there}
            keeping.update(folder, f"{start}{space}", told, at, whole=whole)
            pods: dict[str, str | None] = {one.name: _pods(one) for one in there[:_PODS]}
            keeping.update(folder, f"{cluster}-instances-{space}", pods, at, whole=whole)
        _add_spaces(folder, cluster, [space for space, there in spaces.items() if there])

    _keep(backend, write, of_jobs=True)


def created(backend: Backend, namespace: str, job: MPIJob) -> None:
    """Keep the name of a job that is there from now on."""
    told = names.gpus(job.workers * job.gpus) if job.gpus else ""
    _one(backend, namespace, job.name, told)


def gone(backend: Backend, namespace: str, name: str) -> None:
    """Keep in mind that a job is there no longer."""
    _one(backend, namespace, name, None)


def _one(backend: Backend, namespace: str, name: str, told: str | None) -> None:
    at = keeping.now()

    def write(folder: keeping.Folder, cluster: str, _begun: int) -> None:
        keeping.update(folder, f"{cluster}-jobs-{namespace}", {name: told}, at)
        instances = f"{cluster}-instances-{namespace}"
        if told is None and folder.has(instances):
            keeping.update(folder, instances, {name: None}, at)
        if told is not None:
            _add_spaces(folder, cluster, [namespace])

    _keep(backend, write, of_jobs=True)


def _add_spaces(folder: keeping.Folder, cluster: str, spaces: Iterable[str]) -> None:
    name = f"{cluster}-namespaces"
    _, known = names.load(folder.read(name))
    new: dict[str, str | None] = dict.fromkeys((one for one in spaces if one not in known), "")
    if new:
        keeping.update(folder, name, new, keeping.now())


def others(
    backend: Backend, kind: str, found: Mapping[str, str], namespace: str | None = None
) -> None:
    """Keep all names of another kind: nodes, claims of a namespace, namespaces, priorities."""

    def write(folder: keeping.Folder, cluster: str, at: int) -> None:
        name = f"{cluster}-{kind}" + ("" if namespace is None else f"-{namespace}")
        keeping.update(folder, name, found, at, whole=True)

    _keep(backend, write)


def nodes(backend: Backend, cluster: Cluster) -> None:
    """Keep the names of all nodes."""
    found = {
        str(one.name): names.gpus(len(one.machine.gpus)) if one.machine.gpus else ""
        for one in cluster.nodes
    }
    others(backend, "nodes", found)


def claims(backend: Backend, found: Iterable[Volume], namespace: str | None) -> None:
    """Keep the names of all claims of a namespace; None: of all, and nobody asks for those."""
    if namespace is not None:
        told = {one.name: one.description or one.capacity for one in found}
        others(backend, "claims", told, namespace)


def own(kind: str, found: Iterable[str]) -> None:
    """Keep all names of a kind that stands in files of the user's."""
    if _begun is None:
        return
    at, key = _begun.at, _begun.line.files
    told: dict[str, str | None] = dict.fromkeys(found, "")
    name = f"{place.digest(key)}-{kind}"
    keeping.kept(
        os.environ,
        lambda folder: keeping.update(folder, name, told, at, whole=True, key=key),
    )


def _keep(
    backend: Backend,
    write: Callable[[keeping.Folder, str, int], None],
    *,
    of_jobs: bool = False,
) -> None:
    """Write down which cluster the line means, and what was found there since it was asked.

    Of the jobs of this machine nothing is: all of them are known without.
    """
    begun = _begun
    if begun is None:
        return
    line, local = begun.line, backend.name == "local"
    if local and of_jobs and line.engine and line.default:
        return

    def act(folder: keeping.Folder) -> None:
        access = getattr(getattr(backend, "api", None), "access", None)
        cluster = names.local(line) if local else cluster_of(access)
        asked = line.namespace or not begun.default
        keeping.locate(
            folder,
            line,
            engine=backend.name,
            cluster=cluster,
            namespace="" if asked else backend.default_namespace(),
            also=begun.also,
        )
        if not (local and of_jobs):
            write(folder, cluster, begun.at)

    keeping.kept(os.environ, act)


def cluster_of(access: Access | None) -> str:
    """What stands for a cluster: where it is, and who asks, who may see another one there."""
    fields = ("server", "server_name", "cluster", "identity", "user", "groups")
    return place.digest(repr([getattr(access, field, "") for field in fields]))


def _standing(one: JobStatus) -> str:
    """What is said of a job: nothing that is untrue a moment later."""
    gpus = [names.gpus(one.request_gpus)] if one.request_gpus else []
    return ", ".join([str(one.phase), *gpus])


def _pods(one: JobStatus) -> str:
    """The pods of a job, the launcher first, each with the node that it is on."""
    pods = sorted(one.instances, key=lambda pod: (not pod.chief, not pod.launcher, pod.worker or 0))
    return ";".join(f"{pod.name}={f'on {pod.node}' if pod.node else ''}" for pod in pods)
