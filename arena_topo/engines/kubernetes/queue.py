"""The queue of a cluster: MPIJobs that wait suspended, with their placements recorded on them.

There is no lock. The writer of a placement lists the MPIJobs of all namespaces at exactly the
revision of that write. Of two conflicting writes the later sees the earlier, never the other way
round, so exactly one of the two writers yields (`gang.protocol`).
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from arena_topo.clusters.queues import is_suspended, suspender
from arena_topo.clusters.records import NodeRecord, Record, Unread, read_record
from arena_topo.clusters.rules import job_over
from arena_topo.engines.kubernetes import lease
from arena_topo.engines.kubernetes.binding_probe import allowed
from arena_topo.engines.kubernetes.failures import maybe_written
from arena_topo.engines.kubernetes.job_writer import (
    Writer,
    deletion,
    missing_config_maps,
    part,
)
from arena_topo.engines.kubernetes.jobs import Jobs
from arena_topo.engines.kubernetes.lease import Lease
from arena_topo.engines.kubernetes.mpijob import (
    controller_of,
    counts_failure,
    event_time,
    events_filter,
    is_owned,
    is_pod_of,
    launcher_stopped,
    report_of,
)
from arena_topo.engines.kubernetes.queued import (
    Clusters,
    QueuedJob,
    Snapshot,
    failed,
    parse_time,
    priority_values,
    queued,
    written,
)
from arena_topo.engines.kubernetes.shapes import bad_answer, checked_job, object_error
from arena_topo.engines.kubernetes.sources import UNREAD, Answers, ObjectList, joined
from arena_topo.engines.kubernetes.watch_cache import ClusterCache
from arena_topo.engines.write_conflict import unless_overtaken
from arena_topo.errors import (
    CONFLICT,
    INVALID,
    SERVER_ERROR,
    AccessDenied,
    ArenaError,
    ClusterError,
    NotFound,
    TimedOut,
    command,
)
from arena_topo.manifests import (
    FORMAT_ANNOTATION,
    RESERVED_ANNOTATION,
    STATE,
    Manifest,
    Mechanisms,
    Plan,
    patches,
    pins,
    reserves,
)
from arena_topo.manifests.versions import JOB_LABEL, ApiVersion
from arena_topo.topology import Cluster

if TYPE_CHECKING:
    from arena_topo.clusters.observed import ClusterReader
    from arena_topo.engines.kubernetes.job_watch import ReadOnChange

Object = dict[str, Any]

_STORM = 30.0
"""Seconds for which a patch is retried that conflicts with the writes of others."""

_TRIES = 5
"""The most tries of a patch whose result is unknown."""

_TEST_FAILED = "the server rejected our request due to an error in our request"
"""The server's message for a JSON patch with a failed test, and for nothing else (apimachinery,
errors.NewGenericServerResponse for 422)."""

REVIVING = (("patch", "mpijobs/status", "kubeflow.org"), ("delete", "jobs", "batch"))
"""The rights by which a failed job is revived: verb, resource, group."""

_LIFE = 60.0
"""Seconds without a renewal after which a Lease has expired."""


class Queue(Writer):
    """The requests of the protocol, over one connection.

    `read` and `gangs` read the cluster each time, or, after `watch`, a cache.
    """

    def __init__(self, jobs: Jobs) -> None:
        super().__init__(jobs.api, jobs.api_version)
        self._jobs = jobs
        self._priorities: dict[str, int] | None = None
        self._cache: ClusterCache | None = None
        self._last: tuple[int, Snapshot] | None = None
        self._owned: dict[int, tuple[Object, Mapping[str, Any]]] = {}
        """The pods of gangs by their ids, each with its job."""
        self._reader: ClusterReader | None = None
        self._known: tuple[Mapping[str, int], Mapping[int, _ReadJob]] | None = None
        # The controller of an object never changes.
        self._controller = lru_cache(maxsize=4096)(self._controller_of)
        self._mirrored: list[list[Object] | ArenaError] | None = None

    def now(self) -> float:
        """The server's time (Unix seconds)."""
        return self._api.now()

    def api_version(self) -> ApiVersion:
        """The MPIJob version that is served."""
        return self._jobs.api_version()

    def watch(self, changed: Callable[[], None], *, list_every: float | None = None) -> None:
        """Read from a cache from now on; its threads call `changed` after each change.

        What may be listed but not watched is listed every `list_every` seconds, else every minute;
        with `list_every` also where no watch lasts.
        ArenaError where no thread can be started; then nothing is cached.
        """
        if self._cache is None:
            self._cache = ClusterCache(
                self._api,
                (*self._jobs.sources, _PRIORITIES),
                _reduction,
                changed,
                list_every=list_every,
            )

    def unwatch(self) -> None:
        """Stop the threads of the cache."""
        if self._cache is not None:
            self._cache.stop()
            self._cache = self._last = None

    @property
    def revisions(self) -> list[tuple[str, str]]:
        """The path of each list of the cache, and its last known revision."""
        return [] if self._cache is None else self._cache.revisions()

    def read(self) -> Snapshot:
        """Everything as it is now, or, with a cache, as it was a moment ago."""
        if self._cache is None:
            return self._snapshot({})
        version = self._cache.version
        if self._last is None or self._last[0] != version:
            self._last = version, self._remembered(self._cache)
        return replace(self._last[1], now=self.now())

    def read_at(self, stored: Mapping[str, Any]) -> Snapshot:
        """The jobs at exactly the revision of this object's last write; all else as it is now."""
        revision = stored["metadata"]["resourceVersion"]
        return self._snapshot({"resourceVersion": revision, "resourceVersionMatch": "Exact"})

    def _snapshot(self, query: Mapping[str, str]) -> Snapshot:
        """Everything from lists that are read now; `query` is for the list of MPIJobs."""
        sources = self._jobs.sources
        return self._snapshot_of(
            sources.answers({"MPIJob": lambda source: sources.read(source, _whole_job, **query)})
        )

    def _remembered(self, cache: ClusterCache) -> Snapshot:
        """Everything from the cache; ClusterError if that may be out of date."""
        answers: Answers = []
        self._priorities = {}
        for source, answer in cache.answers():
            if isinstance(answer, ArenaError):
                if source.instead is None or not isinstance(answer, UNREAD):
                    raise answer
                answers.append((source, answer))
            elif source is _PRIORITIES:
                self._priorities = priority_values(answer)
            else:
                pods = source.kind == "Pod"
                answers.append((source, [small for small, _ in answer] if pods else answer))
        return self._snapshot_of(answers)

    def _snapshot_of(self, answers: Answers) -> Snapshot:
        """The snapshot of all lists."""
        jobs: list[_ReadJob] | None = None
        collected: Answers = []
        for source, answer in answers:
            if source.kind == "MPIJob" and not isinstance(answer, ArenaError):
                jobs = self._as_read(answer)
                # Priorities matter only to gangs that wait, and to those that come after them.
                if self._priorities is None and any(job.waits for job in jobs):
                    self._values()
                    jobs = self._as_read(answer)
                records = [job.record for job in jobs if job.record is not None]
                collected.append((source, records))
            else:
                collected.append((source, answer))
        objects, unread = joined(collected)
        return Snapshot(
            jobs=tuple([job.queued for job in jobs or () if job.queued is not None]),
            failed=tuple([job.failed for job in jobs or () if job.failed is not None]),
            now=self.now(),
            clusters=self._clusters_of(tuple(objects), tuple(unread)),
            unread=tuple(unread),
            everything=jobs is not None,
        )

    def _clusters_of(
        self, objects: tuple[Record | Unread, ...], unread: tuple[str, ...]
    ) -> Clusters:
        """The clusters of these objects: those of the last snapshot if it had the same."""
        last = None if self._last is None else self._last[1]
        if last is not None and (last.unread, last.objects) == (unread, objects):
            return last.clusters
        reader = self._reader = self._reader or self._jobs.sources.reader()
        return Clusters(objects, lambda some: self._jobs.sources.seen(some, unread, reader))

    def _as_read(self, jobs: Iterable[Object | Record | Unread]) -> list[_ReadJob]:
        """The jobs as the queue sees them, each worked out once for the same object."""
        priorities, known = self._priorities or {}, self._known
        if known is None or known[0] != priorities:
            known = priorities, {}
        read = [known[1].get(id(job)) or _ReadJob.of(job, priorities) for job in jobs]
        self._known = priorities, {id(job.given): job for job in read}
        return read

    def gangs(self, jobs: Iterable[Mapping[str, Any]]) -> Mapping[tuple[str, str], list[Object]]:
        """The pods that these MPIJobs control, by namespace and name of the job.

        A pod that only has the name of a job in its labels is not among them. From the cache a pod
        has its metadata and status, and of its spec only the node's name and the tolerations,
        unless it is gated.
        """
        known = {(job["metadata"]["namespace"], job["metadata"]["name"]): job for job in jobs}
        # Jobs that are remembered exist, so no others get their ids.
        pods_by_job: dict[int, list[Object]] = {id(job): [] for job in known.values()}
        denied = False

        def controller_uid(namespace: str, owner: Mapping[str, Any]) -> str | None:
            nonlocal denied
            if denied or owner["kind"] != "Job":
                return None
            try:
                return self._controller(namespace, str(owner.get("name")), str(owner.get("uid")))
            except AccessDenied:
                # The right may be granted at any time, so the next round tries again.
                denied = True
                return None

        before, self._owned = self._owned, {}
        for pod in self._gang_pods():
            owned = before.get(id(pod))
            mine = None if owned is None else pods_by_job.get(id(owned[1]))
            if owned is None or mine is None:
                meta = pod["metadata"]
                space = meta["namespace"]
                job = known.get((space, (meta.get("labels") or {}).get(JOB_LABEL, "")))
                if job is None or not is_pod_of(pod, job, partial(controller_uid, space)):
                    continue
                owned, mine = (pod, job), pods_by_job[id(job)]
            self._owned[id(pod)] = owned
            mine.append(pod)
        return {key: mine for key, job in known.items() if (mine := pods_by_job[id(job)])}

    def _controller_of(self, namespace: str, name: str, uid: str) -> str | None:
        """The uid of the controller of a batch Job; None without one."""
        job = self._api.find(_job_path(namespace, name))
        if job is None or job["metadata"].get("uid") != uid:
            return None
        return (controller_of(job) or {}).get("uid")

    def _gang_pods(self) -> list[Object]:
        """All pods with the label of a job."""
        if self._cache is None:
            return self._api.collect("/api/v1/pods", None, labelSelector=JOB_LABEL)
        for source, answer in self._cache.answers():
            if source.kind == "Pod":
                if isinstance(answer, ArenaError):
                    raise answer
                return [pod for _, pod in answer if pod is not None]
        return []

    def departed(self, stored: Mapping[str, Any]) -> list[Object]:
        """The pods of a job that were deleted a moment ago, as they were seen last, if watched."""
        if self._cache is None:
            return []
        pods = (pod for _, pod in self._cache.departed("Pod"))
        return [pod for pod in pods if pod is not None and is_owned(pod, stored)]

    def unrevivable(self) -> list[str]:
        """The rights that the caller lacks to revive failed jobs, such as `delete jobs`."""
        return [
            f"{verb} {resource}"
            for verb, resource, group in REVIVING
            if not allowed(self._api, verb, resource, group=group)
        ]

    def revive(self, stored: Mapping[str, Any]) -> bool:
        """Remove the failure of a suspended job from its status, so that it can start again.

        False if the job has changed since it was read, or its launcher is not deleted yet.
        """
        launcher = self.failed_launcher(stored)
        if launcher is not None and not self.delete_launcher(launcher):
            return False
        return self.change(stored, patches.reviving(stored), sub="/status") is not None

    def failed_launcher(self, stored: Mapping[str, Any]) -> Object | None:
        """The Job of a job's launcher if it counts a failure, be it of an earlier start.

        If it counts more than its backoff limit, the operator concludes that the MPIJob has failed.
        """
        meta = stored["metadata"]
        launcher = self._api.find(_job_path(meta["namespace"], f"{meta['name']}-launcher"))
        if launcher is None or (controller_of(launcher) or {}).get("uid") != meta["uid"]:
            return None
        return launcher if counts_failure(launcher) else None

    def delete_launcher(self, launcher: Object) -> bool:
        """Delete the Job of a suspended job's launcher; whether it is gone.

        The operator makes another, which counts no failures. A Job that may run is left: who has
        resumed the job meanwhile needs it, and the operator has yet to suspend it otherwise.
        """
        meta = launcher["metadata"]
        path = _job_path(meta["namespace"], meta["name"])
        if launcher_stopped(launcher) and "deletionTimestamp" not in meta:
            with unless_overtaken():
                revision = meta["resourceVersion"]
                self._api.delete(path, deletion(uid=meta["uid"], revision=revision))
        return self._api.find(path) is None

    def node(self, name: str) -> NodeRecord | None:
        """A node as it is now; None if it does not exist."""
        answer = self._api.find(f"/api/v1/nodes/{part(name)}")
        node = None if answer is None else read_record("Node", answer)
        return node if isinstance(node, NodeRecord) else None

    def force_delete(self, pod: Mapping[str, Any]) -> None:
        """Delete at once a terminating pod on a machine that does not answer.

        Not if the pod has changed since it was read: its kubelet may answer again.
        """
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{part(meta['namespace'])}/pods/{part(meta['name'])}"
        exactly = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
        with unless_overtaken():
            self._api.delete(
                path, {**deletion(), "preconditions": exactly, "gracePeriodSeconds": 0}
            )
            if meta.get("finalizers"):
                # The Job of a launcher lets go of it only once it has failed, which its kubelet
                # would report.
                failed = {"metadata": {"uid": meta["uid"]}, "status": {"phase": "Failed"}}
                self._api.patch(f"{path}/status", failed, "merge")

    def lease(self, identity: str) -> Lease:
        """The Lease of the controller of this identity, with the rights that it lacks."""
        lacks = []
        with contextlib.suppress(ArenaError):
            lacks = [] if allowed(self._api, "create", "events") else ["create events"]
            lacks += self.unrevivable()
        return Lease(self._api, identity, lacks=lacks)

    def publish_view(self, cluster: Cluster, *, now: float) -> None:
        """Publish what is free at `now` (Unix seconds), for users who may not read the cluster."""
        from arena_topo.clusters import view  # noqa: PLC0415  only the controller

        path = f"/api/v1/namespaces/{view.VIEW_NAMESPACE}/configmaps"
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": view.VIEW_NAME, "namespace": view.VIEW_NAMESPACE},
            **view.encode(cluster, observed_at=now),
        }
        try:
            self._api.put(f"{path}/{view.VIEW_NAME}", body)
        except NotFound:
            self._api.post(path, body)

    def mirror(self, tell: Callable[[str], None] = lambda _: None) -> None:
        """Copy the agents' reports into ACK's namespace, if they have changed."""
        from arena_topo.engines.kubernetes import topology_report  # noqa: PLC0415  only the controller

        seen = None
        if self._cache is not None:
            answers = self._cache.answers()
            seen = [answer for source, answer in answers if source.kind == "ConfigMap"]
        if seen is None or seen != self._mirrored:
            topology_report.mirror(self._api, tell)
            self._mirrored = seen

    def _values(self) -> dict[str, int]:
        """The value of each PriorityClass; empty if they may not be listed."""
        if self._priorities is None:
            try:
                listed = self._jobs.sources.read(_PRIORITIES, _value)
            except (AccessDenied, NotFound):
                listed = []
            self._priorities = priority_values(listed)
        return self._priorities

    def priority(self, name: str) -> int:
        """The value of a PriorityClass, or without a name of the default, as of the last `read`.

        0 if the class does not exist or may not be read, or if no gang waited.
        """
        return (self._priorities or {}).get(name, 0)

    def lacks(self, plan: Plan, mpijob: Manifest) -> tuple[str, ...]:
        """The fields of a suspended MPIJob that the operator's CRD drops, by a dry run.

        AlreadyExists if the name is taken.
        """
        if not self.api_version().traits.suspends:
            return ("suspend", "schedulingGates")
        seen = self.create(plan, mpijob, dryRun="All")
        if queued(seen, {}) is None:
            raise bad_answer(seen, "its workers are not as they were sent")
        return (*(() if is_suspended(seen) else ("suspend",)), *pins.dropped_pins(mpijob, seen))

    def claims(self, stored: Manifest) -> list[Manifest]:
        """The ResourceClaims that a job owns; empty if they may not be listed."""
        meta = stored["metadata"]

        def keep(obj: Object) -> Object | None:
            return obj if is_owned(obj, stored) else None

        path = f"/apis/resource.k8s.io/v1/namespaces/{part(meta['namespace'])}/resourceclaims"
        return self._api.permitted(path, keep)

    def change(
        self, stored: Mapping[str, Any], patch: Sequence[Mapping[str, Any]], *, sub: str = ""
    ) -> Manifest | None:
        """Apply a JSON patch to a job; None if one of its tests failed, or the job is deleted.

        `sub` is the subresource to patch: `/status`.
        The patch tests what it changes, so it is retried if the server fails or breaks off.
        """
        meta = stored["metadata"]
        path = self._jobs.job_path(meta["name"], meta["namespace"]) + sub
        end = time.monotonic() + _STORM
        doubts = 0
        for attempt in itertools.count():
            try:
                return checked_job(self._api.patch(path, patch))
            except NotFound:
                return None
            except ClusterError as error:
                # Policies and validation answer 422 as well; a retry would not help against them.
                if error.status == INVALID and _TEST_FAILED in error.message:
                    return self._applied(stored, patch) if doubts else None
                doubts += maybe_written(error)
                if doubts == _TRIES or not (maybe_written(error) or error.status == CONFLICT):
                    raise
                # Others wrote to the job at the same time; the tests decide whether that matters.
                if error.status == CONFLICT and time.monotonic() > end:
                    raise ClusterError(
                        f"others wrote to the job {meta['name']} all the time",
                        status=CONFLICT,
                        why=error.message,
                        hint="the job exists: "
                        + command("get", meta["name"], namespace=meta["namespace"])
                        + ", or resume it later",
                    ) from error
            longest = min(2.0, 0.1 * 2**attempt)
            time.sleep(random.uniform(0, longest))  # noqa: S311  no secret
        raise AssertionError("the last attempt returns or raises")

    def _applied(
        self, stored: Mapping[str, Any], patch: Sequence[Mapping[str, Any]]
    ) -> Manifest | None:
        """The job after a patch without an answer; None if the patch was not applied."""
        stored_now = self.get(stored["metadata"]["namespace"], stored["metadata"]["name"])
        return (
            stored_now
            if stored_now is not None and patches.took_effect(patch, stored_now)
            else None
        )

    def missing(self, stored: Mapping[str, Any]) -> tuple[str, ...]:
        """The ConfigMaps that the pods of a job mount, and that do not exist."""
        return missing_config_maps(self._api, stored)

    def get(self, namespace: str, name: str) -> Manifest | None:
        """One MPIJob; None if it does not exist."""
        mpijob = self._api.find(self._jobs.job_path(name, namespace))
        return None if mpijob is None else checked_job(mpijob)

    def pods(self, stored: Mapping[str, Any]) -> list[Manifest]:
        """The pods of a job."""
        return self._jobs.pods_of(dict(stored))

    def gang_reads(
        self, stored: Mapping[str, Any], *, lasts: float = math.inf
    ) -> ReadOnChange[tuple[Manifest | None, list[Manifest]]]:
        """A job, None once it is gone, and its pods: repeated reads, to be closed.

        A reading counts for `lasts` seconds at most, even if no watch reports a change.
        """
        from arena_topo.engines.kubernetes import job_watch  # noqa: PLC0415 - for rollouts only

        return job_watch.gang_reads(self._jobs, dict(stored), lasts=lasts)

    def bind(self, pod: Mapping[str, Any], patch: Mapping[str, Any]) -> bool:
        """Patch a gated pod with its node and devices; False if it was deleted or changed."""
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{part(meta['namespace'])}/pods/{part(meta['name'])}"
        # Exactly this pod: a later one may have the same name.
        exact = {**patch, "metadata": {**patch.get("metadata", {}), "uid": meta["uid"]}}
        try:
            self._api.patch(path, exact, "strategic")
        except (NotFound, TimedOut):
            return False
        except ClusterError as error:
            # The next round tries again. The patch removes a gate of exactly this pod, so it cannot
            # be applied twice or to another pod.
            if error.status in {None, CONFLICT, INVALID} or error.status >= SERVER_ERROR:
                return False
            raise
        return True

    def events(self, stored: Mapping[str, Any]) -> list[Manifest]:
        """The events about a job and its pods, oldest first; empty if they may not be read."""
        meta = stored["metadata"]
        created = parse_time(meta.get("creationTimestamp")) or 0.0
        keep = events_filter(str(meta["name"]), created, {str(meta["uid"])})
        path = f"/api/v1/namespaces/{part(meta['namespace'])}/events"
        return sorted(self._api.permitted(path, keep), key=event_time)

    def report(self, stored: Mapping[str, Any], reason: str, message: str) -> None:
        """Create an event about a job, for its owner."""
        # As client-go names events: by the object, and what no other event of it has.
        name = f"{stored['metadata']['name']}.{random.getrandbits(64):016x}"
        event = report_of(
            stored,
            name=name,
            at=written(math.floor(self.now())),
            source=lease.LEASE_NAME,
            reason=reason,
            message=message,
        )
        self._api.post(f"/api/v1/namespaces/{part(stored['metadata']['namespace'])}/events", event)

    def quotas(self, namespace: str) -> list[Manifest]:
        """The ResourceQuotas of a namespace; empty if they may not be read."""
        return self._api.permitted(f"/api/v1/namespaces/{part(namespace)}/resourcequotas")

    def mechanisms(self, namespace: str) -> Mechanisms:
        """The mechanisms that bind placements in a namespace."""
        return self._jobs.mechanisms(namespace)

    def watched(self) -> bool:
        """Whether a controller is active: its Lease is renewed."""
        spec: Object = {}
        with contextlib.suppress(ArenaError):
            spec = (self._api.find(lease.LEASES_PATH) or {}).get("spec") or {}
        at = parse_time(spec.get("renewTime"))
        # A controller that was stopped in good order has released its Lease.
        return bool(spec.get("holderIdentity")) and at is not None and self.now() - at < _LIFE


def _job_path(namespace: str, name: str) -> str:
    """The path of a batch Job."""
    return f"/apis/batch/v1/namespaces/{part(namespace)}/jobs/{part(name)}"


class _ReadJob(NamedTuple):
    """An object of the list of MPIJobs, and what it is: a record, a gang of the queue."""

    given: Object | Record | Unread
    record: Record | Unread | None
    queued: QueuedJob | None = None
    failed: QueuedJob | None = None

    @classmethod
    def of(cls, job: Object | Record | Unread, priorities: Mapping[str, int]) -> _ReadJob:
        """The object as it is; it has a record if it reserves GPUs before its pods exist."""
        if not isinstance(job, dict):
            return cls(job, job)
        # Jobs that another queue has suspended reserve nothing, whatever their annotations say, and
        # most waiting jobs reserve nothing either: without them all of these share one cluster.
        reserving = _reserves(job) and (suspender(job) is None or not is_suspended(job))
        return cls(
            job,
            read_record("MPIJob", job) if reserving else None,
            queued(job, priorities),
            failed(job) if job_over(job) else None,
        )

    @property
    def waits(self) -> bool:
        """Whether it is a gang that waits."""
        return self.queued is not None and self.queued.state == "waiting"


def _whole_job(obj: Object) -> Object | Record | Unread | None:
    """An MPIJob without its unused fields; None if arena-topo has not touched it.

    An invalid MPIJob of one tenant must not stop others: it is reduced to its record.
    """
    if object_error(obj) is not None:
        return read_record("MPIJob", obj)
    touched = FORMAT_ANNOTATION in (obj["metadata"].get("annotations") or ())
    return _bare(obj) if touched or _is_placed(obj) else None


def _gang_pod(obj: Object) -> tuple[Record | Unread, Object | None]:
    """The record of a pod, and, if it may belong to a gang, the pod as the controller needs it."""
    small, labels = read_record("Pod", obj), obj["metadata"].get("labels")
    if JOB_LABEL not in (labels or ()) or object_error(obj) is not None:
        return small, None
    pod, spec = _bare(obj), obj.get("spec") or {}
    read = {key: spec.get(key) for key in ("nodeName", "tolerations")}
    pod["spec"] = spec if spec.get("schedulingGates") else read
    return small, pod


def _bare(obj: Object) -> Object:
    """An object without its managed fields."""
    meta = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    return {**obj, "metadata": meta}


def _value(obj: Object) -> Object:
    named = {"metadata": {"name": obj["metadata"]["name"]}}
    return named | {key: obj.get(key) for key in ("value", "globalDefault")}


def _reduction(kind: str) -> Callable[[Object], Any]:
    """The reduction of the objects of a kind for the cache; None drops an object."""
    own = {"Pod": _gang_pod, "MPIJob": _whole_job, "PriorityClass": _value}
    return own.get(kind) or partial(read_record, kind)


_PRIORITIES = ObjectList(
    kind="PriorityClass",
    paths=lambda: ("/apis/scheduling.k8s.io/v1/priorityclasses",),
    instead="all jobs have the same priority",
)
"""The values of the priority classes, by name."""


def _is_placed(mpijob: Object) -> bool:
    """Whether a placement is recorded on a job."""
    notes = mpijob["metadata"].get("annotations") or {}
    return reserves(str(notes.get(STATE) or ""))


def _reserves(mpijob: Object) -> bool:
    """Whether a job may reserve GPUs."""
    notes = mpijob["metadata"].get("annotations") or ()
    return _is_placed(mpijob) or RESERVED_ANNOTATION in notes
