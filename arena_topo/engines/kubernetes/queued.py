"""QueuedJob: a gang that waits or is placed; Snapshot: all of them, and what is free. Pure."""

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
"""How often a gang that could not complete is tried before somebody must ask for it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """One MPIJob that arena-topo placed or is to place, as it was read.

    `state` is `waiting`, `placed` or `held`; `record` its map as written, None without one;
    `recorded` when that was, by the server's clock (Unix seconds). `suspender` names who alone may
    resume it, None where that is arena-topo. `timeout` is how many seconds it may run, None without
    a limit; `started` when it was resumed. `tries` counts the starts that could not complete.
    `incomplete`: whoever submitted it has not created all that it owns.
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
    def stopped(self) -> bool:
        """Whether it was tried so often that only a person starts it again."""
        return self.tries >= MOST_TRIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All jobs of arena-topo that are not over, and everything that says what is free.

    `now` is the server's time (Unix seconds). `objects` are records of the cluster's objects, and
    `see` makes a Cluster of records; `unread` says what could not be listed. `everything` is False
    where the jobs of other namespaces could not be: then no placement may be recorded.
    """

    jobs: tuple[QueuedJob, ...]
    now: float
    objects: tuple[Record | Unread, ...]
    see: Callable[[Iterable[Record | Unread]], Cluster]
    unread: tuple[str, ...] = ()
    everything: bool = True

    def cluster(self, *, without: Collection[tuple[str, str]] = (), pods: bool = True) -> Cluster:
        """What is free, the records of the jobs named (namespace, name) not counted.

        Nor, unless `pods`, their pods.
        """
        return self.see(
            one
            for one in self.objects
            if not (isinstance(one, JobRecord) and one.key in without)
            and (pods or _job_of_pod(one) not in without)
        )

    def pods(self) -> Iterator[PodRecord]:
        """All pods of the cluster that could be read."""
        return (one for one in self.objects if isinstance(one, PodRecord))

    def emptied(self) -> Cluster:
        """What would be free if all jobs of arena-topo had ended."""
        pods = {one.key for one in self.pods() if one.ours}
        return self.see(one for one in self.objects if not _is_ours(one, pods))

    def job(self, namespace: str, name: str) -> QueuedJob | None:
        """One of the jobs."""
        return next((one for one in self.jobs if one.key == (namespace, name)), None)


def _job_of_pod(one: Record | Unread) -> tuple[str, str] | None:
    """The job (namespace, name) that a pod which arena-topo placed belongs to, by its name."""
    if isinstance(one, PodRecord) and one.ours:
        return one.namespace, job_of_pod(one.name)
    return None


def _is_ours(one: Record | Unread, pods: Collection[tuple[str, str]]) -> bool:
    if isinstance(one, ClaimRecord):
        return one.belongs(pods)
    return isinstance(one, JobRecord) or (isinstance(one, PodRecord) and one.ours)


def queued(mpijob: Object, priorities: Mapping[str, int]) -> QueuedJob | None:
    """An MPIJob as the queue sees it; None for one that is over, going, or not for the queue.

    Nor is one for it that makes no sense as a job: its operator makes no pods of it, and what one
    tenant writes must stop nobody else. `priorities` are the values of PriorityClasses, by name;
    one that is missing counts as 0.
    """
    meta = mpijob.get("metadata")
    notes = meta.get("annotations") if isinstance(meta, Mapping) else None
    # Most jobs of a large cluster may be of others.
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
        priority=priorities.get(str(pod.get("priorityClassName")), 0),
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


def _pod_of_workers(mpijob: Object) -> Object | None:
    """The pod that the workers of a job are made like; None if the job makes no sense as one.

    A CRD checks the types of most that is written, and v1alpha1's of next to nothing; what may be
    left out, none checks.
    """
    spec = mpijob.get("spec") or {}
    # Of two forms beside each other it would be anybody's guess which counts.
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
