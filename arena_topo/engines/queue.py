"""Queue: where gangs wait and placements are recorded; Snapshot: all jobs and what is free.

Pure values, and the few requests that the protocol of `gang.starting` is made of. Each method
of `Queue` is one request, or a few reads, so that the protocol can be stopped between any two.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from arena_topo.clusters.objects import items, of
from arena_topo.clusters.queues import suspended, suspender
from arena_topo.clusters.usage import job_over
from arena_topo.engines.kubernetes.mpijob import job_of_pod, started, time_limit
from arena_topo.manifests import (
    FORMAT,
    INCOMPLETE,
    MAP,
    RECORDED,
    STATE,
    TRIES,
    Manifest,
    Mechanisms,
    Plan,
)
from arena_topo.manifests.versions import ApiVersion
from arena_topo.numbers import whole
from arena_topo.topology import Cluster, published

if TYPE_CHECKING:
    from arena_topo.clusters.records import ClaimRecord, JobRecord, PodRecord, Record, Unread

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
    `see` makes a Cluster of records. `everything` is False where the jobs of other namespaces could
    not be listed: then no placement may be recorded.
    """

    jobs: tuple[QueuedJob, ...]
    now: float
    objects: tuple[Record | Unread, ...]
    see: Callable[[Iterable[Record | Unread]], Cluster]
    everything: bool = True

    def cluster(self, *, without: Collection[tuple[str, str]] = (), pods: bool = True) -> Cluster:
        """What is free, the records of the jobs named (namespace, name) not counted.

        Nor, unless `pods`, their pods.
        """
        return self.see(
            one
            for one in self.objects
            if not (_is_job(one) and one.key in without)
            and (pods or _job_of_pod(one) not in without)
        )

    def pods(self) -> Iterator[PodRecord]:
        """All pods of the cluster that could be read."""
        return filter(_is_pod, self.objects)

    def emptied(self) -> Cluster:
        """What would be free if all jobs of arena-topo had ended."""
        pods = {one.key for one in self.pods() if one.ours}
        return self.see(one for one in self.objects if not _is_ours(one, pods))

    def job(self, namespace: str, name: str) -> QueuedJob | None:
        """One of the jobs."""
        return next((one for one in self.jobs if one.key == (namespace, name)), None)


def _job_of_pod(one: Record | Unread) -> tuple[str, str] | None:
    """The job (namespace, name) that a pod which arena-topo placed belongs to, by its name."""
    return (one.namespace, job_of_pod(one.name)) if _is_pod(one) and one.ours else None


def _is_ours(one: Record | Unread, pods: Collection[tuple[str, str]]) -> bool:
    if _is_claim(one):
        return one.belongs(pods)
    return _is_job(one) or (_is_pod(one) and one.ours)


# Whoever only looks at jobs does not load what decodes records.


def _is_pod(one: Record | Unread) -> TypeGuard[PodRecord]:
    return one.kind == "Pod"


def _is_job(one: Record | Unread) -> TypeGuard[JobRecord]:
    return one.kind == "MPIJob"


def _is_claim(one: Record | Unread) -> TypeGuard[ClaimRecord]:
    return one.kind == "ResourceClaim"


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
    try:
        meta, spec = of(mpijob, "metadata"), of(mpijob, "spec")
        if not _are_texts(meta) or not isinstance(meta.get("name"), str):
            return None
        of(spec, "runPolicy")
        items(of(mpijob, "status"), "conditions")
        if "mpiReplicaSpecs" not in spec:
            return _pod_of(spec)
        roles = of(spec, "mpiReplicaSpecs")
        # The other form beside it: which of them counts would be anybody's guess.
        if "template" in spec or ("Launcher" in roles and _pod_of(of(roles, "Launcher")) is None):
            return None
        return _pod_of(of(roles, "Worker"))
    except TypeError:
        return None


def _pod_of(role: Object) -> Object | None:
    replicas = role.get("replicas")
    if replicas is not None and (isinstance(replicas, bool) or not isinstance(replicas, int)):
        return None
    template = of(role, "template")
    pod = of(template, "spec")
    for one in items(pod, "containers"):
        of(of(one, "resources"), "limits")
        items(one, "env")
    return pod if _are_texts(of(template, "metadata")) and pod.get("containers") else None


def _are_texts(meta: Object) -> bool:
    return all(
        isinstance(one, str) for key in ("annotations", "labels") for one in of(meta, key).values()
    )


moment = published.moment


def written(moment: float) -> str:
    """Unix seconds as RFC 3339, to the microsecond."""
    return datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")


class Queue(Protocol):
    """What an API server does for the protocol. Objects are as the server stores them."""

    def read(self) -> Snapshot:
        """Everything as it is now."""

    def read_at(self, stored: Object) -> Snapshot:
        """The jobs at exactly the revision of this object's last write; all else as it is now."""

    def now(self) -> float:
        """The server's time (Unix seconds), as of its last answer."""

    def lacks(self, plan: Plan, mpijob: Manifest) -> tuple[str, ...]:
        """What of a suspended MPIJob the operator's CRD does not keep: what a dry run says.

        AlreadyExists if the name is taken.
        """

    def create(self, plan: Plan, mpijob: Manifest) -> Manifest:
        """Create the MPIJob of a plan in the form given; AlreadyExists if its name is taken."""

    def own(self, stored: Manifest, objects: Sequence[Manifest]) -> tuple[str, ...]:
        """Create what a new job owns; if one fails, the job goes with all that was created."""

    def renew(self, stored: Manifest, objects: Sequence[Manifest]) -> None:
        """Create what a job owns, in place of what it had under these names; all or none."""

    def claims(self, stored: Manifest) -> list[Manifest]:
        """The ResourceClaims that a job owns by now; none where they may not be listed."""

    def change(self, stored: Object, patch: Sequence[Mapping[str, Any]]) -> Manifest | None:
        """Apply a JSON patch to a job; None if one of its tests failed, or the job is gone."""

    def get(self, namespace: str, name: str) -> Manifest | None:
        """One MPIJob; None if there is none."""

    def missing(self, stored: Object) -> tuple[str, ...]:
        """The ConfigMaps that the pods of a job mount, and that are not there."""

    def remove(self, stored: Object) -> None:
        """Delete this very job, if it is still there."""

    def pods(self, stored: Object) -> list[Manifest]:
        """The pods of a job."""

    def bind(self, pod: Object, patch: Mapping[str, Any]) -> bool:
        """Patch a gated pod with its place; False if it is gone or was changed meanwhile."""

    def events(self, stored: Object) -> list[Manifest]:
        """The events about a job and its pods, oldest first; none where they may not be read."""

    def quotas(self, namespace: str) -> list[Manifest]:
        """The ResourceQuotas of a namespace; none where they may not be read."""

    def mechanisms(self, namespace: str) -> Mechanisms:
        """What makes placements hold in a namespace."""

    def api_version(self) -> ApiVersion:
        """The MPIJob version that is served."""

    def priority(self, name: str) -> int:
        """What a PriorityClass is worth; 0 where none of that name may be read."""

    def watched(self) -> bool:
        """Whether a controller is at work that starts jobs by itself."""
