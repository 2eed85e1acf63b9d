"""The lists that decide what is free: their paths, and the assumption if one may not be read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from arena_topo.engines.kubernetes.connection import Connection
from arena_topo.engines.kubernetes.mpijob import MPIJOB_GROUP, PLURAL
from arena_topo.engines.kubernetes.shapes import KubeObject, kube_object
from arena_topo.errors import AccessDenied, ArenaError, ClusterError, NotFound
from arena_topo.manifests.versions import ApiVersion
from arena_topo.topology import Cluster, published

if TYPE_CHECKING:
    from arena_topo.clusters import observed
    from arena_topo.clusters.records import Record, SliceRecord, StatusOf, Unread
    from arena_topo.topology.fabric import FabricFile

Object = dict[str, Any]
_Answer = TypeVar("_Answer")


_RELEASES = "https://github.com/kubeflow/mpi-operator/releases"


class NoOperator(ClusterError):
    """The cluster serves no MPIJobs, or none of a version in `ApiVersion`."""

    @classmethod
    def of(cls, api: Connection) -> NoOperator:
        """The error of a cluster that serves no version in `ApiVersion`."""
        group = kube_object(api.find(f"/apis/{MPIJOB_GROUP}") or {})
        versions = [version.version for version in group.versions]
        # Other kinds of the group may have other versions.
        unknown = [version for version in versions if api.serves(MPIJOB_GROUP, version, PLURAL)]
        if not unknown:
            return cls(
                "the MPI operator is not installed: this cluster serves no MPIJob",
                hint=f"an administrator installs a release of it: {_RELEASES}",
            )
        return cls(
            f"this cluster serves MPIJob only as {', '.join(unknown)}",
            why=f"arena-topo knows {', '.join(ApiVersion)}",
            hint=f"an administrator installs an operator of these versions: {_RELEASES}",
        )


UNREAD = (AccessDenied, NoOperator, NotFound)
"""The errors of a list without which the others can still be used."""


class ObjectList(msgspec.Struct, frozen=True, kw_only=True):
    """One list of objects of a kind.

    `paths` are evaluated when the list is read: the first that is served counts. With `grouped`
    none needs to be served. `instead` is the assumption if the list may not be read; None: the list
    is required.
    """

    kind: str
    paths: Callable[[], Sequence[str]]
    selector: str = ""
    grouped: bool = False
    instead: str | None = None

    @property
    def query(self) -> dict[str, str]:
        """The query of the request, beside its path."""
        return {"labelSelector": self.selector} if self.selector else {}


def first_served(source: ObjectList, ask: Callable[..., _Answer]) -> tuple[str, _Answer] | None:
    """The first path of a list that is served, and what `ask` returns for it.

    None if none is served; NotFound if a list that every cluster has is missing.
    """
    missing: NotFound | None = None
    for path in source.paths():
        try:
            return path, ask(path, **source.query)
        except NotFound as error:
            missing = error
    if missing is not None and not source.grouped:
        raise missing
    return None


Answers = list[tuple[ObjectList, list[Any] | ArenaError]]
"""The result of each list, or the error of reading it."""


class Sources:
    """The lists of one cluster, and the clusters that they describe.

    `served` names the MPIJob version, or raises `NoOperator`; levels of the network in `file`
    replace those of the cluster.
    """

    def __init__(
        self, api: Connection, served: Callable[[], ApiVersion], *, file: FabricFile | None
    ) -> None:
        self._api = api
        self._served = served
        self._file = file
        self._dra: list[str] = []

    @property
    def name(self) -> str:
        """The name of the cluster in messages."""
        return self._api.access.context or self._api.access.server

    def __iter__(self) -> Iterator[ObjectList]:
        """The lists in the order in which they are read.

        Claims come after pods, so that the claim of every pod in the list is seen as well.
        """
        yield ObjectList(kind="Node", paths=lambda: ("/api/v1/nodes",))
        yield ObjectList(kind="Pod", paths=lambda: ("/api/v1/pods",))
        for namespace in published.TRUSTED_NAMESPACES:
            yield ObjectList(
                kind="ConfigMap",
                paths=partial(tuple, [f"/api/v1/namespaces/{namespace}/configmaps"]),
                selector=f"{published.SCHEDULE_LABEL}=topology",
                instead="the links of GPUs are taken from node labels",
            )
        if self._file is None or self._file.levels is None:
            yield ObjectList(
                kind="Topology",
                paths=self._topologies,
                grouped=True,
                instead="the network is taken from node labels",
            )
        yield ObjectList(
            kind="ResourceSlice",
            paths=lambda: self._of_drivers("resourceslices"),
            grouped=True,
            instead="GPUs that only a DRA driver publishes are not seen",
        )
        yield ObjectList(
            kind="MPIJob",
            paths=lambda: (f"/apis/{MPIJOB_GROUP}/{self._served()}/{PLURAL}",),
            instead="GPUs planned for jobs that have not started count as free",
        )
        yield ObjectList(
            kind="ResourceClaim",
            paths=lambda: self._of_drivers("resourceclaims"),
            grouped=True,
            instead="GPUs of nodes with pods that claim devices count as in use",
        )

    def read(self, source: ObjectList, keep: Callable[[Object], Any], **query: str) -> list[Any]:
        """All objects of a list, each reduced by `keep` as soon as its page arrives."""
        served_list = first_served(
            source, partial(self._api.collect, keep=keep, judged=True, **query)
        )
        return served_list[1] if served_list else []

    def records(
        self, source: ObjectList, status_of: StatusOf | None = None
    ) -> list[Record | Unread]:
        """The records of all objects of a list, made as their pages arrive."""
        from arena_topo.clusters.records import page_reader  # noqa: PLC0415  to read the cluster

        page = page_reader(source.kind, status_of=status_of)
        served_list = first_served(source, partial(self._api.records, page=page))
        return served_list[1] if served_list else []

    def answers(
        self,
        readers: Mapping[str, Callable[[ObjectList], list[Any]]],
        status_of: StatusOf | None = None,
    ) -> Answers:
        """The result of each list, or its error; `readers` replace the readers of some kinds."""
        answers: Answers = []
        for source in self:
            if source.kind == "ResourceClaim" and not _any_devices(answers):
                continue
            try:
                if source.kind in readers:
                    answers.append((source, readers[source.kind](source)))
                else:
                    answers.append((source, self.records(source, status_of)))
            except UNREAD as error:
                if source.instead is None:
                    raise
                answers.append((source, error))
        return answers

    def objects(self, status_of: StatusOf | None = None) -> tuple[list[Record | Unread], list[str]]:
        """The objects that decide what is free, and a note for each list that may not be read.

        `status_of` is called for pods that may have GPUs.
        """
        return joined(self.answers({}, status_of))

    def reader(self) -> observed.ClusterReader:
        """The reader that makes clusters of records."""
        from arena_topo.clusters import observed  # noqa: PLC0415  to read the cluster

        return observed.ClusterReader(source=self.name, file=self._file)

    def seen(
        self,
        record: Iterable[Record | Unread],
        unread: Iterable[str],
        reader: observed.ClusterReader | None = None,
    ) -> Cluster:
        """The cluster that these records describe."""
        cluster = (reader or self.reader()).read(record, now=self._api.now()).cluster
        return replace(cluster, notes=(*unread, *cluster.notes))

    def _topologies(self) -> list[str]:
        """The paths of Kueue's topologies, by version; one request finds that Kueue is missing."""
        from arena_topo.clusters.records import KUEUE_GROUP  # noqa: PLC0415  to read the cluster

        group = self._group(KUEUE_GROUP)
        # Before Kueue 0.14 the preferred version of the group had no topologies yet.
        served = (group.preferred_version, *group.versions)
        versions = dict.fromkeys(version.version for version in served if version.version)
        return [f"/apis/{KUEUE_GROUP}/{version}/topologies" for version in versions]

    def _of_drivers(self, plural: str) -> list[str]:
        """The paths of DRA drivers' objects, by version; one request finds a missing API."""
        from arena_topo.clusters import slices  # noqa: PLC0415  to read the cluster

        if not self._dra:
            served = {version.version for version in self._group(slices.DRA_GROUP).versions}
            self._dra = [version for version in slices.VERSIONS if version in served]
        return [f"/apis/{slices.DRA_GROUP}/{version}/{plural}" for version in self._dra]

    def _group(self, name: str) -> KubeObject:
        return kube_object(self._api.find(f"/apis/{name}") or {})


def published_slices(api: Connection, node: str) -> list[SliceRecord]:
    """The ResourceSlices of a node; empty if they are not served."""
    from arena_topo.clusters import slices  # noqa: PLC0415  to read the cluster
    from arena_topo.clusters.records import SliceRecord, page_reader  # noqa: PLC0415  the same

    for version in slices.VERSIONS:
        path = f"/apis/{slices.DRA_GROUP}/{version}/resourceslices"
        with contextlib.suppress(NotFound):
            records = api.records(
                path, page_reader("ResourceSlice"), fieldSelector=f"spec.nodeName={node}"
            )
            return [
                slice_record for slice_record in records if isinstance(slice_record, SliceRecord)
            ]
    return []


def joined(answers: Answers) -> tuple[list[Any], list[str]]:
    """All objects, and a note for each denied list that no other list replaces."""
    # Most DRA drivers publish no GPUs; their slices and claims do not matter.
    devices = _any_devices(answers)
    items: list[Any] = []
    denied: dict[str | None, ArenaError] = {}
    reported: set[str | None] = set()
    for source, answer in answers:
        if isinstance(answer, ArenaError):
            if devices or source.kind != "ResourceClaim":
                denied[source.instead] = answer
        elif answer and (devices or source.kind not in {"ResourceSlice", "ResourceClaim"}):
            items += answer
            reported.add(source.instead)
    missing = ((instead, error) for instead, error in denied.items() if instead not in reported)
    return items, [f"{error.message}: {instead}" for instead, error in missing]


def _any_devices(answers: Answers) -> bool:
    """Whether a DRA driver publishes devices."""
    return any(
        getattr(obj, "gpus", True)
        for source, answer in answers
        if source.kind == "ResourceSlice" and not isinstance(answer, ArenaError)
        for obj in answer
    )
