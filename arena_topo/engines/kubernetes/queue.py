"""The queue of a cluster: MPIJobs that wait suspended, with their placements recorded on them.

Nothing is locked. Whoever records a placement lists the MPIJobs of all namespaces at exactly the
revision of that write; of two conflicting writes the later sees the earlier, never the other way
round, so exactly one of their authors yields (`gang.starting`).
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from arena_topo.clusters.queues import suspended, suspender
from arena_topo.clusters.records import Record, Unread, record
from arena_topo.engines.kubernetes.connection import CONFLICT, INVALID
from arena_topo.engines.kubernetes.failures import Unreadable, unsure
from arena_topo.engines.kubernetes.mpijob import is_about, is_owned, when
from arena_topo.engines.kubernetes.shapes import nonsense, oddity, stored_job
from arena_topo.engines.kubernetes.writing import GROUP, PLURAL, part
from arena_topo.engines.queue import Snapshot, moment, queued
from arena_topo.errors import AccessDenied, ArenaError, ClusterError, NotFound, TimedOut
from arena_topo.manifests import STATE, Manifest, Mechanisms, Plan, install, patches, pinning
from arena_topo.manifests.versions import ApiVersion
from arena_topo.manifests.volumes import config_maps
from arena_topo.topology import Cluster, published

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.engine import KubernetesBackend

Object = dict[str, Any]

SYSTEM = published.OWN_NAMESPACE
"""The namespace of the controller and of what it publishes."""

LEASE = install.CONTROLLER
"""The Lease that the controller at work renews."""

SERVER_ERROR = 500
"""HTTP codes from here on are the server's fault (RFC 9110, 15.6)."""

_STORM = 30.0
"""Seconds for which a patch is sent again that found no gap between the writes of others."""

_TRIES = 5
"""How often a patch is sent of which nobody knows whether it was taken."""

_TEST_FAILED = "the server rejected our request due to an error in our request"
"""What a server says of a JSON patch whose test failed, and of nothing else (apimachinery,
errors.NewGenericServerResponse for 422)."""

_LIFE = 60.0
"""Seconds after which a Lease or a view that nobody renewed says that nobody is at work."""


class KubernetesQueue:
    """The requests of the protocol, over one connection."""

    def __init__(self, engine: KubernetesBackend) -> None:
        self._engine = engine
        self._api = engine.api
        self._priorities: dict[str, int] | None = None

    def now(self) -> float:
        """The server's time (Unix seconds), as of its last answer."""
        return self._api.server_time or time.time()

    def api_version(self) -> ApiVersion:
        """The MPIJob version that is served."""
        return self._engine.api_version()

    def read(self) -> Snapshot:
        """Everything as it is now."""
        return self._snapshot({})

    def read_at(self, stored: Mapping[str, Any]) -> Snapshot:
        """The jobs at exactly the revision of this object's last write; all else as it is now."""
        revision = stored["metadata"]["resourceVersion"]
        return self._snapshot({"resourceVersion": revision, "resourceVersionMatch": "Exact"})

    def _snapshot(self, query: Mapping[str, str]) -> Snapshot:
        jobs: list[Object] = []
        listed = False

        def records() -> list[Record | Unread]:
            nonlocal listed
            path = f"/apis/{GROUP}/{self.api_version()}/{PLURAL}"
            small: list[Record | Unread] = []
            for one in self._api.collect(path, None, judged=True, **query):
                if oddity(one) is not None:
                    # What one tenant writes must stop nobody: the notes of the cluster name it.
                    small.append(record("MPIJob", one))
                    continue
                jobs.append(one)
                # What its queue has suspended holds nothing, whatever is still written on it, and
                # what waits neither: left out, looks for each of those that wait are one look.
                if _is_placed(one) and (suspender(one) is None or not suspended(one)):
                    small.append(record("MPIJob", one))
            listed = True
            return small

        found, unread = self._engine.objects(records)
        ours = [one for one in jobs if queued(one, {}) is not None]
        priorities = self._values() if any(map(_priority, ours)) else {}
        known = (queued(one, priorities) for one in ours)
        return Snapshot(
            jobs=tuple(one for one in known if one is not None),
            now=self.now(),
            objects=tuple(found),
            see=self._looks(unread),
            everything=listed,
        )

    def _looks(self, unread: list[str]) -> Callable[[Iterable[Record | Unread]], Cluster]:
        """Makes clusters of objects of one snapshot; of the same objects only once.

        A controller looks for every job, and most looks are alike.
        """
        known: dict[tuple[int, ...], tuple[Cluster, tuple[Record | Unread, ...]]] = {}

        def see(objects: Iterable[Record | Unread]) -> Cluster:
            chosen = tuple(objects)
            key = tuple(map(id, chosen))
            if key not in known:
                # With the objects themselves, so that no other may ever have their ids.
                known[key] = self._engine.seen(chosen, unread), chosen
            return known[key][0]

        return see

    def _values(self) -> dict[str, int]:
        """What each PriorityClass is worth; nothing where they may not be listed."""
        if self._priorities is None:
            self._priorities = {}
            try:
                for one in self._api.collect("/apis/scheduling.k8s.io/v1/priorityclasses"):
                    self._priorities[one["metadata"]["name"]] = int(one.get("value") or 0)
            except (AccessDenied, NotFound):
                pass
        return self._priorities

    def priority(self, name: str) -> int:
        """What a PriorityClass is worth; 0 where none of that name may be read."""
        return self._values().get(name, 0) if name else 0

    def lacks(self, plan: Plan, mpijob: Manifest) -> tuple[str, ...]:
        """What of a suspended MPIJob the operator's CRD does not keep: what a dry run says.

        AlreadyExists if the name is taken.
        """
        if not self.api_version().traits.suspends:
            return ("suspend", "schedulingGates")
        seen, _ = self._engine.writer.create_job(plan, mpijob, dryRun="All")
        if queued(seen, {}) is None:
            raise nonsense(seen, "its workers are not as they were sent")
        return (*(() if suspended(seen) else ("suspend",)), *pinning.dropped(mpijob, seen))

    def create(self, plan: Plan, mpijob: Manifest) -> Manifest:
        """Create the MPIJob of a plan in the form given; AlreadyExists if its name is taken."""
        stored, _ = self._engine.writer.create_job(plan, mpijob)
        return stored

    def own(self, stored: Manifest, objects: Sequence[Manifest]) -> tuple[str, ...]:
        """Create what a new job owns; if one fails, the job goes with all that was created."""
        return self._engine.writer.own(stored, objects)

    def renew(self, stored: Manifest, objects: Sequence[Manifest]) -> None:
        """Create what a job owns, in place of what it had under these names; all or none."""
        self._engine.writer.renew(stored, objects)

    def claims(self, stored: Manifest) -> list[Manifest]:
        """The ResourceClaims that a job owns by now; none where they may not be listed."""
        meta = stored["metadata"]

        def keep(one: Object) -> Object | None:
            return one if is_owned(one, stored) else None

        path = f"/apis/resource.k8s.io/v1/namespaces/{part(meta['namespace'])}/resourceclaims"
        try:
            return self._api.collect(path, keep)
        except (AccessDenied, NotFound):
            return []

    def change(
        self, stored: Mapping[str, Any], patch: Sequence[Mapping[str, Any]]
    ) -> Manifest | None:
        """Apply a JSON patch to a job; None if one of its tests failed, or the job is gone.

        It tests what it changes, so it is sent again where the server fails or breaks off.
        """
        meta = stored["metadata"]
        end = time.monotonic() + _STORM
        doubts = 0
        for attempt in itertools.count():
            try:
                answer = self._api.patch(self._path(meta["namespace"], meta["name"]), patch)
                return stored_job(answer, Unreadable)
            except NotFound:
                return None
            except ClusterError as error:
                # Policies and validation answer 422 as well, and asking again would not help.
                if error.status == INVALID and _TEST_FAILED in error.message:
                    return self._applied(stored, patch) if doubts else None
                doubts += unsure(error)
                if doubts == _TRIES or not (unsure(error) or error.status == CONFLICT):
                    raise
                # Others wrote to the job all the while: the tests say whether that matters.
                if error.status == CONFLICT and time.monotonic() > end:
                    raise ClusterError(
                        f"others wrote to the job {meta['name']} all the time",
                        status=CONFLICT,
                        why=error.message,
                        hint=f"it is there: arena-topo get {meta['name']}, or resume it later",
                    ) from error
            longest = min(2.0, 0.1 * 2**attempt)
            time.sleep(random.uniform(0, longest))  # noqa: S311  no secret
        raise AssertionError("the last attempt returns or raises")

    def _applied(
        self, stored: Mapping[str, Any], patch: Sequence[Mapping[str, Any]]
    ) -> Manifest | None:
        """The job as a patch left it whose answer was lost; None if the patch was not taken."""
        found = self.get(stored["metadata"]["namespace"], stored["metadata"]["name"])
        return found if found is not None and patches.took_effect(patch, found) else None

    def missing(self, stored: Mapping[str, Any]) -> tuple[str, ...]:
        """The ConfigMaps that the pods of a job mount, and that are not there."""
        space = part(stored["metadata"]["namespace"])
        found = []
        for name in config_maps(dict(stored)):
            try:
                self._api.get(f"/api/v1/namespaces/{space}/configmaps/{part(name)}")
            except NotFound:
                found.append(name)
        return tuple(found)

    def get(self, namespace: str, name: str) -> Manifest | None:
        """One MPIJob; None if there is none."""
        try:
            return stored_job(self._api.get(self._path(namespace, name)))
        except NotFound:
            return None

    def remove(self, stored: Mapping[str, Any]) -> None:
        """Delete this very job, if it is still there."""
        self._engine.writer.remove(dict(stored))

    def pods(self, stored: Mapping[str, Any]) -> list[Manifest]:
        """The pods of a job."""
        return self._engine.pods_of(
            dict(stored), self.api_version(), stored["metadata"]["namespace"]
        )

    def bind(self, pod: Mapping[str, Any], patch: Mapping[str, Any]) -> bool:
        """Patch a gated pod with its place; False if it is gone or was changed meanwhile."""
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{part(meta['namespace'])}/pods/{part(meta['name'])}"
        # The very pod that was looked at: one of that name may have come after it.
        exact = {**patch, "metadata": {**patch.get("metadata", {}), "uid": meta["uid"]}}
        try:
            self._api.patch(path, exact, "strategic")
        except (NotFound, TimedOut):
            return False
        except ClusterError as error:
            # It is looked at again in a moment: the patch takes a gate off this very pod, so it
            # can neither be done twice nor to another.
            if error.status in {None, CONFLICT, INVALID} or error.status >= SERVER_ERROR:
                return False
            raise
        return True

    def events(self, stored: Mapping[str, Any]) -> list[Manifest]:
        """The events about a job and its pods, oldest first; none where they may not be read."""
        meta = stored["metadata"]
        name, uids = str(meta["name"]), {str(meta["uid"])}
        created = moment(meta.get("creationTimestamp")) or 0.0

        def keep(one: Object) -> Object | None:
            return one if is_about(one, name=name, created=created, uids=uids) else None

        path = f"/api/v1/namespaces/{part(meta['namespace'])}/events"
        try:
            found = self._api.collect(path, keep)
        except AccessDenied:
            return []
        return sorted(found, key=when)

    def quotas(self, namespace: str) -> list[Manifest]:
        """The ResourceQuotas of a namespace; none where they may not be read."""
        try:
            return self._api.collect(f"/api/v1/namespaces/{part(namespace)}/resourcequotas")
        except (AccessDenied, NotFound):
            return []

    def mechanisms(self, namespace: str) -> Mechanisms:
        """What makes placements hold in a namespace."""
        return self._engine.mechanisms(namespace)

    def watched(self) -> bool:
        """Whether a controller is at work: its Lease is renewed; else, by the view it publishes."""
        try:
            lease = self._api.get(
                f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{LEASE}"
            )
        except ArenaError:
            return self._is_fresh(self._viewed())
        spec = lease.get("spec") or {}
        # One that was stopped in good order has given its Lease back.
        return bool(spec.get("holderIdentity")) and self._is_fresh(spec.get("renewTime"))

    def _viewed(self) -> str | None:
        path = f"/api/v1/namespaces/{SYSTEM}/configmaps/{published.VIEW}"
        try:
            return (self._api.get(path).get("data") or {}).get("observedAt")
        except ArenaError:
            return None

    def _is_fresh(self, said: str | None) -> bool:
        at = moment(said)
        return at is not None and self.now() - at < _LIFE

    def _path(self, namespace: str, name: str) -> str:
        return self._engine.job_path(name, namespace)


def _is_placed(mpijob: Object) -> bool:
    """Whether a placement is recorded on a job."""
    return ((mpijob.get("metadata") or {}).get("annotations") or {}).get(STATE) == "placed"


def _priority(mpijob: Object) -> bool:
    """Whether the pods of a job have a priority class."""
    spec = (mpijob.get("spec") or {}).get("mpiReplicaSpecs") or {}
    pod = ((spec.get("Worker") or {}).get("template") or {}).get("spec") or {}
    return bool(pod.get("priorityClassName"))
