"""What only the controller does to a cluster: the Lease, the view for everybody, all workers."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from arena_topo.clusters import view
from arena_topo.engines.kubernetes.connection import CONFLICT, Connection
from arena_topo.engines.kubernetes.mpijob import belongs, controller_of
from arena_topo.engines.kubernetes.queue import LEASE, SYSTEM
from arena_topo.engines.kubernetes.writing import deletion, part
from arena_topo.engines.queue import written
from arena_topo.errors import AccessDenied, AlreadyExists, ArenaError, ClusterError, NotFound
from arena_topo.manifests.versions import JOB_LABEL
from arena_topo.topology import Cluster, published

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.engine import KubernetesBackend

Object = dict[str, Any]

LEASE_DURATION = 15.0
"""Seconds after which a Lease that nobody renewed is free (client-go, leaderelection defaults)."""


class Lease:
    """Which of several controllers is at work.

    Whether another one still renews its Lease is judged by how long this one has seen no change,
    so that clocks need not agree (client-go, tools/leaderelection).
    """

    def __init__(
        self, api: Connection, identity: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._identity = identity
        self._clock = clock
        self._seen: tuple[str, float] | None = None
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases"

    def held(self) -> bool:
        """Take or renew the Lease; False while another one has it."""
        try:
            found = self._api.get(f"{self._path}/{LEASE}")
        except NotFound:
            return self._created()
        spec = found.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        revision = found["metadata"]["resourceVersion"]
        if self._seen is None or self._seen[0] != revision:
            self._seen = revision, self._clock()
        theirs = holder not in {"", self._identity}
        if theirs and self._clock() - self._seen[1] < LEASE_DURATION:
            return False
        moves = spec.get("leaseTransitions") or 0
        found["spec"] = self._spec(moves + (holder != self._identity)) | {
            "acquireTime": spec.get("acquireTime") if holder == self._identity else self._now()
        }
        return self._put(found)

    def release(self) -> None:
        """Give the Lease back, so that the next one need not wait."""
        with contextlib.suppress(ArenaError):
            found = self._api.get(f"{self._path}/{LEASE}")
            if (found.get("spec") or {}).get("holderIdentity") == self._identity:
                found["spec"]["holderIdentity"] = ""
                self._put(found)

    def _created(self) -> bool:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": LEASE, "namespace": SYSTEM},
            "spec": self._spec(0) | {"acquireTime": self._now()},
        }
        try:
            self._api.post(self._path, body)
        except AlreadyExists:
            return False
        return True

    def _put(self, body: Object) -> bool:
        try:
            stored = self._api.put(f"{self._path}/{LEASE}", body)
        except ClusterError as error:
            if error.status == CONFLICT:
                return False
            raise
        self._seen = stored["metadata"]["resourceVersion"], self._clock()
        return True

    def _spec(self, moves: int) -> Object:
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(LEASE_DURATION),
            "renewTime": self._now(),
            "leaseTransitions": moves,
        }

    def _now(self) -> str:
        # A MicroTime has six digits of a second, always.
        at = self._api.server_time or time.time()
        text = written(at)
        return text if "." in text else text.replace("Z", ".000000Z")


class _Launchers:
    """Who controls the batch Jobs that own launchers, by their uids; each is asked for once.

    `before` are those that were known already: who controls an object never changes.
    """

    def __init__(
        self, api: Connection, before: Mapping[str, str | None], tell: Callable[[str], None]
    ) -> None:
        self._api = api
        self._before = before
        self._tell = tell
        self._denied = False
        self.controllers: dict[str, str | None] = {}

    def controller_uid(self, namespace: str, owner: Mapping[str, Any]) -> str | None:
        """The uid of the controller of a workload; None where there is none, or nobody may look."""
        uid = str(owner.get("uid"))
        if uid in self._before:
            self.controllers[uid] = self._before[uid]
        if uid in self.controllers or self._denied or owner.get("kind") != "Job":
            return self.controllers.get(uid)
        path = f"/apis/batch/v1/namespaces/{part(namespace)}/jobs/{part(str(owner['name']))}"
        try:
            job = self._api.get(path)
        except NotFound:
            return None
        except AccessDenied as denied:
            self._denied = True
            self._tell(
                f"warning: {denied.message}: launchers that are left on machines which do not"
                " answer stay there; `arena-topo install` prints the role that lets the controller"
                " look"
            )
            return None
        controller = controller_of(job) if job["metadata"].get("uid") == uid else None
        self.controllers[uid] = None if controller is None else str(controller["uid"])
        return self.controllers[uid]


class Upkeep:
    """The reads and writes of a controller beyond those of the queue."""

    def __init__(self, engine: KubernetesBackend) -> None:
        self._api = engine.api
        self._launchers: Mapping[str, str | None] = {}

    def lease(self, identity: str) -> Lease:
        """The Lease of the controller of this identity."""
        return Lease(self._api, identity)

    def pods(
        self, jobs: Iterable[Mapping[str, Any]], tell: Callable[[str], None] = lambda _: None
    ) -> Mapping[tuple[str, str], list[Object]]:
        """The pods that these MPIJobs control, by namespace and name of the job.

        A pod that only carries the name of a job in its labels is not among them.
        """
        known = {(one["metadata"]["namespace"], one["metadata"]["name"]): one for one in jobs}
        found: dict[tuple[str, str], list[Object]] = defaultdict(list)
        launchers = _Launchers(self._api, self._launchers, tell)
        for pod in self._api.collect("/api/v1/pods", None, labelSelector=JOB_LABEL):
            meta = pod["metadata"]
            key = meta["namespace"], (meta.get("labels") or {}).get(JOB_LABEL, "")
            controller_uid = partial(launchers.controller_uid, meta["namespace"])
            if key in known and belongs(pod, known[key], controller_uid):
                found[key].append(pod)
        self._launchers = launchers.controllers
        return found

    def bury(self, pod: Mapping[str, Any]) -> None:
        """Take a pod off the books that is to end on a machine that does not answer."""
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{part(meta['namespace'])}/pods/{part(meta['name'])}"
        with contextlib.suppress(NotFound):
            self._api.delete(path, {**deletion(uid=meta["uid"]), "gracePeriodSeconds": 0})

    def publish_view(self, cluster: Cluster, *, now: float) -> None:
        """Let those who may not read the cluster see what is free, as of `now` (Unix seconds)."""
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": view.NAME, "namespace": view.NAMESPACE},
            **view.encode(cluster, observed_at=now),
        }
        self._write(body)

    def mirror(self, tell: Callable[[str], None] = lambda _: None) -> int:
        """Copy what agents have published to where ACK's tools look; how many there are.

        What was copied for nodes that are gone is deleted. ConfigMaps that somebody else has made
        there, as with `topology publish`, are left as they are, and `tell` hears of each.
        """
        source = f"/api/v1/namespaces/{published.OWN_NAMESPACE}/configmaps"
        target = f"/api/v1/namespaces/{published.NAMESPACE}/configmaps"
        selector = f"{published.SCHEDULE_LABEL}=topology"
        wanted = {}
        for one in self._api.collect(source, None, labelSelector=selector):
            meta = one["metadata"]
            wanted[meta["name"]] = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {
                    "name": meta["name"],
                    "namespace": published.NAMESPACE,
                    "labels": {**(meta.get("labels") or {}), published.MIRRORED: "true"},
                    "annotations": meta.get("annotations") or {},
                },
                "data": one.get("data") or {},
            }
        listed = self._api.collect(target, None, labelSelector=selector)
        there = {one["metadata"]["name"]: one for one in listed}
        copies = {name: one for name, one in there.items() if _is_copy(one)}
        for name, body in wanted.items():
            if name in copies:
                self._renew_copy(target, copies[name], body)
            elif name in there or not self._create_copy(target, body):
                tell(
                    f"note: ConfigMap {published.NAMESPACE}/{name} is left as it is: somebody else"
                    " has made it"
                )
        for name in copies.keys() - wanted.keys():
            meta = copies[name]["metadata"]
            exactly = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
            with _unless_overtaken():
                self._api.delete(f"{target}/{part(name)}", {"preconditions": exactly})
        return len(wanted)

    def _create_copy(self, target: str, body: Object) -> bool:
        """Create a copy; False where there is something else of its name."""
        try:
            self._api.post(target, body)
        except AlreadyExists:
            return False
        return True

    def _renew_copy(self, target: str, copy: Object, body: Object) -> None:
        """Make a copy say what it is to say, unless it was changed since it was read."""
        if _same(copy, body):
            return
        meta = {**body["metadata"], "resourceVersion": copy["metadata"]["resourceVersion"]}
        with _unless_overtaken():
            self._api.put(f"{target}/{part(meta['name'])}", {**body, "metadata": meta})

    def _write(self, body: Object) -> None:
        """Create an object, or make it what it should be."""
        meta = body["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/configmaps"
        try:
            found = self._api.get(f"{path}/{meta['name']}")
        except NotFound:
            with contextlib.suppress(AlreadyExists):
                self._api.post(path, body)
            return
        if not _same(found, body):
            fresh = {
                **body,
                "metadata": {**meta, "resourceVersion": found["metadata"]["resourceVersion"]},
            }
            with contextlib.suppress(NotFound):
                self._api.put(f"{path}/{meta['name']}", fresh)


@contextlib.contextmanager
def _unless_overtaken() -> Iterator[None]:
    """Let a write be refused because the object is gone, or was changed since it was read."""
    try:
        yield
    except NotFound:
        pass
    except ClusterError as error:
        if error.status != CONFLICT:
            raise


def _is_copy(config_map: Object) -> bool:
    """Whether a ConfigMap was made by `mirror`."""
    return (config_map["metadata"].get("labels") or {}).get(published.MIRRORED) == "true"


def _same(found: Object, body: Object) -> bool:
    """Whether a ConfigMap says already what it is to say."""
    return all((found.get(key) or {}) == (body.get(key) or {}) for key in ("data", "binaryData"))
