"""QueuedJob: a gang that waits or is placed; Snapshot: all of them and the free GPUs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from arena_topo.clusters.queues import is_suspended, suspender
from arena_topo.clusters.records import ClaimRecord, JobRecord, PodRecord, Record, Unread
from arena_topo.clusters.rules import job_over, time_limit
from arena_topo.engines.kubernetes.mpijob import failed_at, job_of_pod, started
from arena_topo.engines.kubernetes.shapes import object_error
from arena_topo.manifests import (
    FORMAT_ANNOTATION,
    INCOMPLETE,
    MAP,
    RECORDED,
    RESERVED_ANNOTATION,
    STATE,
    TRIES_ANNOTATION,
    Manifest,
)
from arena_topo.manifests.annotations import last_reservation, unknown_record, waits_since
from arena_topo.numbers import parse_count
from arena_topo.topology import Cluster, published

if TYPE_CHECKING:
    from arena_topo.solver import Seats

Object = Mapping[str, Any]

MOST_TRIES = 3
"""The most failed starts of a gang; after that only a person starts it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """One MPIJob that arena-topo placed or will place, as it was read.

    `state` is `waiting`, `placed` or `held`; `record` its map as stored, None without one;
    `reserved` the map of the GPUs that wait for its next start, after it was stopped. `recorded` is
    the time of the record by the server's clock (Unix seconds). `suspender` is the only one that
    may resume the job, None for arena-topo. `timeout` is the limit of its running time in seconds,
    None without one; `started` the time of its resumption. `tries` counts the failed starts.
    `incomplete`: the submitter has not created all objects of the job. It `waits_since` a time,
    which begins its patience; `last` is what it has reserved as the head of the queue.
    """

    namespace: str
    name: str
    created: float
    priority: int
    state: str
    record: str | None
    recorded: float | None
    suspended: bool
    suspender: str | None
    tries: int
    incomplete: bool = False
    reserved: str | None = None
    timeout: float | None
    started: float | None
    waits_since: float = 0.0
    last: tuple[Seats, float] | None = None
    manifest: Manifest

    @property
    def key(self) -> tuple[str, str]:
        """Its namespace and name."""
        return self.namespace, self.name

    @property
    def since(self) -> float:
        """The time (Unix seconds) of the present start: earlier events are about earlier starts.

        An operator that lags behind has not written the time of the resumption yet.
        """
        return max(self.started or 0.0, self.recorded or 0.0)

    @property
    def stopped(self) -> bool:
        """Whether the job has failed to start so often that only a person starts it again."""
        return self.tries >= MOST_TRIES

    @property
    def waits_for_starter(self) -> bool:
        """Whether the job waits for a starter of arena-topo: neither another's, nor given up."""
        own = self.state == "waiting" and self.suspended and self.suspender is None
        return own and not (self.stopped or self.incomplete)


class Clusters:
    """The cluster of some records, and the clusters without some of them.

    Each is made once: a controller needs one for every job, and most are alike.
    """

    def __init__(
        self,
        records: Iterable[Record | Unread],
        make: Callable[[Iterable[Record | Unread]], Cluster],
    ) -> None:
        self.records = tuple(records)
        self._make = make
        self._made: dict[frozenset[int], Cluster] = {}

    def without(self, positions: Iterable[int]) -> Cluster:
        """The cluster without the records at these positions."""
        omitted = frozenset(positions)
        if omitted not in self._made:
            rest = self.records
            if omitted:
                rest = tuple([entry for at, entry in enumerate(rest) if at not in omitted])
            self._made[omitted] = self._make(rest)
        return self._made[omitted]

    @cached_property
    def recorded(self) -> frozenset[tuple[str, str]]:
        """The jobs with records."""
        return frozenset([entry.key for entry in self.records if type(entry) is JobRecord])

    @cached_property
    def emptied(self) -> Cluster:
        """The cluster as if all jobs of arena-topo had ended."""
        records = self.records
        claims = ClaimRecord in set(map(type, records))
        pods = {pod.key for pod in records if claims and type(pod) is PodRecord and pod.ours}
        # isinstance takes three times as long, since these types have a metaclass.
        return self.without(
            [
                at
                for at, entry in enumerate(records)
                if type(entry) is JobRecord
                or (type(entry) is PodRecord and entry.ours)
                or (type(entry) is ClaimRecord and entry.belongs(pods))
            ]
        )


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """All unfinished jobs of arena-topo, and the objects that decide what is free.

    `failed` are those of its jobs that have failed with their launcher.
    `now` is the server's time (Unix seconds). `clusters` are made of records of the cluster's
    objects; `unread` are notes on lists that could not be read.
    `everything` is False if the jobs of other namespaces could not be listed: then no placement may
    be recorded.
    """

    jobs: tuple[QueuedJob, ...]
    failed: tuple[QueuedJob, ...] = ()
    now: float
    clusters: Clusters
    unread: tuple[str, ...] = ()
    everything: bool = True

    def cluster(self, *, without: Collection[tuple[str, str]] = (), pods: bool = True) -> Cluster:
        """The cluster without the records of the given jobs (namespace, name).

        With `pods` False also without their pods and what these claim.
        """
        if pods and self.clusters.recorded.isdisjoint(without):
            return self.clusters.without(())
        return self.clusters.without(
            at
            for at, entry in enumerate(self.objects)
            if (isinstance(entry, JobRecord) and entry.key in without)
            or (not pods and _is_used_by(entry, without))
        )

    @property
    def objects(self) -> tuple[Record | Unread, ...]:
        """The records of the objects of the cluster."""
        return self.clusters.records

    def pods(self) -> Iterator[PodRecord]:
        """All pods of the cluster that could be read."""
        return (manifest for manifest in self.objects if type(manifest) is PodRecord)

    def emptied(self) -> Cluster:
        """The cluster as if all jobs of arena-topo had ended."""
        return self.clusters.emptied

    def job(self, namespace: str, name: str) -> QueuedJob | None:
        """One of the jobs."""
        return next((job for job in self.jobs if job.key == (namespace, name)), None)


class QueueFacts(Protocol):
    """What the order of a queue follows from beside its jobs."""

    def priority(self, name: str) -> int:
        """The value of a PriorityClass, or without a name of the default; 0 if it is unknown."""

    def quotas(self, namespace: str) -> list[Manifest]:
        """The ResourceQuotas of a namespace; empty if they are unknown."""


def _is_used_by(record: Record | Unread, jobs: Collection[tuple[str, str]]) -> bool:
    """Whether it is a pod of these jobs (namespace, name), or a claim that only such pods use.

    Pods of arena-topo are known by their names.
    """
    if isinstance(record, PodRecord):
        names: tuple[str, ...] = (record.name,)
    elif isinstance(record, ClaimRecord):
        names = record.users
    else:
        return False
    job_keys = {(record.namespace, job_of_pod(name)) for name in names}
    return record.ours and bool(job_keys) and job_keys <= {*jobs}


def queued(mpijob: Object, priorities: Mapping[str, int]) -> QueuedJob | None:
    """An MPIJob as the queue sees it; None if it is finished, being deleted, or not queued.

    None also for a record that this version does not know, which nobody else may change, and for an
    invalid job: its operator creates no pods, and what one tenant writes must not stop others.
    `priorities` are as of `priority_values`; a missing class counts as 0.
    """
    job = _as_queued(mpijob, priorities)
    return None if job is None or job_over(mpijob) else job


def failed(mpijob: Object) -> QueuedJob | None:
    """An MPIJob of the queue that has failed with its launcher, for good; None for any other."""
    job = _as_queued(mpijob, {})
    return None if job is None or failed_at(mpijob) is None else job


def _as_queued(mpijob: Object, priorities: Mapping[str, int]) -> QueuedJob | None:
    meta = mpijob.get("metadata")
    notes = meta.get("annotations") if isinstance(meta, Mapping) else None
    # On a large cluster most jobs may not be arena-topo's.
    if (
        not isinstance(meta, Mapping)
        or not isinstance(notes, Mapping)
        or FORMAT_ANNOTATION not in notes
    ):
        return None
    state = notes.get(STATE)
    pod = _pod_of_workers(mpijob)
    if pod is None or not state or unknown_record(mpijob) is not None:
        return None
    if meta.get("deletionTimestamp"):
        return None
    return QueuedJob(
        started=started(mpijob),
        namespace=str(meta.get("namespace", "")),
        name=str(meta["name"]),
        created=parse_time(meta.get("creationTimestamp")) or 0.0,
        priority=priorities.get(str(pod.get("priorityClassName") or ""), 0),
        state=str(state),
        record=notes.get(MAP) if state == "placed" else None,
        recorded=parse_time(notes.get(RECORDED)),
        suspended=is_suspended(mpijob),
        suspender=suspender(mpijob),
        tries=parse_count(notes.get(TRIES_ANNOTATION)) or 0,
        incomplete=INCOMPLETE in notes,
        reserved=notes.get(RESERVED_ANNOTATION),
        timeout=time_limit(mpijob),
        last=last_reservation(mpijob),
        waits_since=waits_since(mpijob),
        manifest=dict(mpijob),
    )


def priority_values(classes: Iterable[Object]) -> dict[str, int]:
    """The values of PriorityClasses by name; under "" that of pods without a class.

    Of several defaults the lowest counts (kubernetes, plugin/pkg/admission/priority).
    """
    listed = [
        (
            str(priority_class["metadata"]["name"]),
            int(priority_class.get("value") or 0),
            priority_class.get("globalDefault") is True,
        )
        for priority_class in classes
    ]
    return {
        "": min((value for _, value, default in listed if default), default=0),
        **{name: value for name, value, _ in listed},
    }


def _pod_of_workers(mpijob: Object) -> Object | None:
    """The pod template's spec of a job's workers; None if the job is invalid.

    A CRD checks the types of most fields, v1alpha1's of hardly any; no CRD checks optional ones.
    """
    spec = mpijob.get("spec") or {}
    # With both forms at once it is undefined which one counts.
    if object_error(mpijob) is not None or {"template", "mpiReplicaSpecs"} <= spec.keys():
        return None
    roles = spec.get("mpiReplicaSpecs") or {"Worker": spec}
    pods = {
        role: ((roles[role] or {}).get("template") or {}).get("spec") or {}
        for role in ("Launcher", "Worker")
        if role in roles
    }
    return pods.get("Worker") if all(pod.get("containers") for pod in pods.values()) else None


parse_time = published.parse_time


def written(moment: float) -> str:
    """Unix seconds as RFC 3339, to the microsecond."""
    return datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")
