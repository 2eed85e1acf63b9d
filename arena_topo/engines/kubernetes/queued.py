"""QueuedJob: a gang that waits or is placed; Snapshot: all of them and the free GPUs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from arena_topo.clusters.queues import suspended, suspender
from arena_topo.clusters.records import ClaimRecord, JobRecord, PodRecord, Record, Unread
from arena_topo.clusters.usage import job_over
from arena_topo.engines.kubernetes.mpijob import job_of_pod, started, time_limit
from arena_topo.engines.kubernetes.shapes import oddity
from arena_topo.manifests import FORMAT, INCOMPLETE, MAP, RECORDED, STATE, TRIES, Manifest
from arena_topo.numbers import whole
from arena_topo.topology import Cluster, published

Object = Mapping[str, Any]

MOST_TRIES = 3
"""The most failed starts of a gang; after that only a person starts it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """One MPIJob that arena-topo placed or will place, as it was read.

    `state` is `waiting`, `placed` or `held`; `record` its map as stored, None without one;
    `recorded` the time of the record by the server's clock (Unix seconds). `suspender` is the only
    one that may resume the job, None for arena-topo. `timeout` is the limit of its running time in
    seconds, None without one; `started` the time of its resumption. `tries` counts the failed
    starts. `incomplete`: the submitter has not created all objects of the job.
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
    timeout: float | None
    started: float | None
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All unfinished jobs of arena-topo, and the objects that decide what is free.

    `now` is the server's time (Unix seconds). `objects` are records of the cluster's objects, and
    `see` makes a Cluster of records; `unread` are notes on lists that could not be read.
    `everything` is False if the jobs of other namespaces could not be listed: then no placement may
    be recorded.
    """

    jobs: tuple[QueuedJob, ...]
    now: float
    objects: tuple[Record | Unread, ...]
    see: Callable[[Iterable[Record | Unread]], Cluster]
    unread: tuple[str, ...] = ()
    everything: bool = True

    def cluster(self, *, without: Collection[tuple[str, str]] = (), pods: bool = True) -> Cluster:
        """The cluster without the records of the given jobs (namespace, name).

        With `pods` False also without their pods and what these claim.
        """
        return self.see(
            one
            for one in self.objects
            if not (isinstance(one, JobRecord) and one.key in without)
            and (pods or not _is_used_by(one, without))
        )

    def pods(self) -> Iterator[PodRecord]:
        """All pods of the cluster that could be read."""
        return (one for one in self.objects if isinstance(one, PodRecord))

    def emptied(self) -> Cluster:
        """The cluster as if all jobs of arena-topo had ended."""
        pods = {one.key for one in self.pods() if one.ours}
        return self.see(one for one in self.objects if not _is_ours(one, pods))

    def job(self, namespace: str, name: str) -> QueuedJob | None:
        """One of the jobs."""
        return next((one for one in self.jobs if one.key == (namespace, name)), None)


def _is_used_by(one: Record | Unread, jobs: Collection[tuple[str, str]]) -> bool:
    """Whether it is a pod of these jobs (namespace, name), or a claim that only such pods use.

    Pods of arena-topo are known by their names.
    """
    if isinstance(one, PodRecord):
        names: tuple[str, ...] = (one.name,)
    elif isinstance(one, ClaimRecord):
        names = one.users
    else:
        return False
    found = {(one.namespace, job_of_pod(name)) for name in names}
    return one.ours and bool(found) and found <= {*jobs}


def _is_ours(one: Record | Unread, pods: Collection[tuple[str, str]]) -> bool:
    if isinstance(one, ClaimRecord):
        return one.belongs(pods)
    return isinstance(one, JobRecord) or (isinstance(one, PodRecord) and one.ours)


def queued(mpijob: Object, priorities: Mapping[str, int]) -> QueuedJob | None:
    """An MPIJob as the queue sees it; None if it is finished, being deleted, or not queued.

    None also for an invalid job: its operator creates no pods, and what one tenant writes must not
    stop others. `priorities` are as of `priority_values`; a missing class counts as 0.
    """
    meta = mpijob.get("metadata")
    notes = meta.get("annotations") if isinstance(meta, Mapping) else None
    # On a large cluster most jobs may not be arena-topo's.
    if not isinstance(meta, Mapping) or not isinstance(notes, Mapping) or FORMAT not in notes:
        return None
    state = notes.get(STATE)
    pod = _pod_of_workers(mpijob)
    if pod is None or state not in ("waiting", "placed", "held"):
        return None
    if meta.get("deletionTimestamp") or job_over(mpijob):
        return None
    return QueuedJob(
        namespace=str(meta.get("namespace", "")),
        name=str(meta["name"]),
        created=moment(meta.get("creationTimestamp")) or 0.0,
        priority=priorities.get(str(pod.get("priorityClassName") or ""), 0),
        state=str(state),
        record=notes.get(MAP) if state == "placed" else None,
        recorded=moment(notes.get(RECORDED)),
        suspended=suspended(mpijob),
        suspender=suspender(mpijob),
        tries=whole(notes.get(TRIES)) or 0,
        incomplete=INCOMPLETE in notes,
        timeout=time_limit(mpijob),
        started=started(mpijob),
        manifest=dict(mpijob),
    )


def priority_values(classes: Iterable[Object]) -> dict[str, int]:
    """The values of PriorityClasses by name; under "" that of pods without a class.

    Of several defaults the lowest counts (kubernetes, plugin/pkg/admission/priority).
    """
    listed = [
        (str(one["metadata"]["name"]), int(one.get("value") or 0), one.get("globalDefault") is True)
        for one in classes
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
    if oddity(mpijob) is not None or {"template", "mpiReplicaSpecs"} <= spec.keys():
        return None
    roles = spec.get("mpiReplicaSpecs") or {"Worker": spec}
    pods = {
        role: ((roles[role] or {}).get("template") or {}).get("spec") or {}
        for role in ("Launcher", "Worker")
        if role in roles
    }
    return pods.get("Worker") if all(pod.get("containers") for pod in pods.values()) else None


moment = published.moment


def written(moment: float) -> str:
    """Unix seconds as RFC 3339, to the microsecond."""
    return datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")
