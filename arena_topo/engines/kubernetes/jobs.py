"""The MPIJobs of a cluster: their version, paths and pods, and what binds their placements."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec

from arena_topo.engines.kubernetes.connection import Connection
from arena_topo.engines.kubernetes.job_writer import Writer, part
from arena_topo.engines.kubernetes.mpijob import MPIJOB_GROUP, PLURAL, is_pod_of, pod_selectors
from arena_topo.engines.kubernetes.shapes import checked_job
from arena_topo.engines.kubernetes.sources import NoOperator, Sources
from arena_topo.errors import JobNotFound
from arena_topo.manifests import Mechanisms
from arena_topo.manifests.versions import ApiVersion

if TYPE_CHECKING:
    from arena_topo.topology.fabric import FabricFile

Object = dict[str, Any]
_Content = TypeVar("_Content")

PROBED = 60.0
"""Seconds for which the mechanisms of a namespace are cached: meanwhile administrators may install
a policy, or grant a right."""


class WatchedList(NamedTuple):
    """A list with the revision at which it was read.

    `single`: a single object was read, and `revision` is that of its last change. A server forgets
    such a revision, so that no watch can begin there.
    """

    path: str
    query: Mapping[str, str]
    revision: str
    single: bool = False


class ListSnapshot(NamedTuple, Generic[_Content]):
    """What was read from some lists; it counts for `lasts` seconds even without a change."""

    content: _Content
    lists: tuple[WatchedList, ...]
    lasts: float = math.inf


class Jobs(Writer):
    """The jobs of one cluster, for its engine and its queue; `file` describes its network."""

    def __init__(self, api: Connection, file: FabricFile | None) -> None:
        super().__init__(api, self.api_version)
        self.api = api
        self.sources = Sources(api, self.api_version, file=file)
        self._version: ApiVersion | None = None
        self._mechanisms: dict[str, tuple[float, Mechanisms]] = {}

    def api_version(self) -> ApiVersion:
        """The best MPIJob version that is served; ClusterError if none is served."""
        if self._version is None:
            served = (
                version for version in ApiVersion if self.api.serves(MPIJOB_GROUP, version, PLURAL)
            )
            self._version = next(served, None)
        if self._version is None:
            raise NoOperator.of(self.api)
        return self._version

    def mechanisms(self, namespace: str) -> Mechanisms:
        """The mechanisms that bind placements in a namespace, found by trying them, and cached."""
        from arena_topo.engines.kubernetes import binding_probe  # noqa: PLC0415 - for submitters only

        known = self._mechanisms.get(namespace)
        if known is not None and time.monotonic() - known[0] < PROBED:
            return known[1]
        mechanisms = binding_probe.mechanisms(self.api, namespace)
        with contextlib.suppress(NoOperator):
            mechanisms = msgspec.structs.replace(
                mechanisms, suspends=self.api_version().traits.suspends
            )
        self._mechanisms[namespace] = time.monotonic(), mechanisms
        return mechanisms

    def job_path(self, name: str, namespace: str) -> str:
        """The path of a job of this cluster."""
        root = f"/apis/{MPIJOB_GROUP}/{self.api_version()}"
        return f"{root}/namespaces/{part(namespace)}/{PLURAL}/{part(name)}"

    def mpijob(self, name: str, namespace: str) -> Object:
        """The MPIJob itself; NotFound if it does not exist, ClusterError if it is invalid."""
        mpijob = self.api.find(self.job_path(name, namespace))
        if mpijob is None:
            raise JobNotFound(name, namespace)
        return checked_job(mpijob)

    def pods_of(self, mpijob: Object) -> list[Object]:
        """The pods of a job, without TensorBoards and earlier namesakes.

        They come from the first selector of the job that finds any.
        """
        return self.pods_listed(mpijob)[0]

    def pods_listed(self, mpijob: Object) -> tuple[list[Object], str]:
        """What `pods_of` returns, and a revision of their list from before any later change."""

        def keep(pod: Object) -> Object | None:
            return pod if is_pod_of(pod, mpijob) else None

        path = f"/api/v1/namespaces/{part(mpijob['metadata']['namespace'])}/pods"
        first = ""
        for selector in pod_selectors(mpijob, self.api_version()):
            pods, revision = self.api.listed(path, keep, labelSelector=selector)
            first = first or revision
            if pods:
                return pods, first
        return [], first
