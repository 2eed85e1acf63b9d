"""Writes: an MPIJob and its objects, each by a single request, with a rollback on failure."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from arena_topo.engines.kubernetes.connection import Connection
from arena_topo.engines.kubernetes.failures import maybe_written
from arena_topo.engines.kubernetes.mpijob import is_namesakes, is_owned, seconds
from arena_topo.engines.kubernetes.shapes import checked_job
from arena_topo.errors import (
    CONFLICT,
    AccessDenied,
    AlreadyExists,
    ArenaError,
    ClusterError,
    InvalidJob,
    JobExists,
    NotFound,
    UsageError,
)
from arena_topo.manifests import Manifest, Plan
from arena_topo.manifests.annotations import config_maps
from arena_topo.manifests.serialize import kubectl_name
from arena_topo.manifests.versions import ApiVersion, version_of
from arena_topo.names import is_subdomain

Object = dict[str, Any]

_TRIES = 3
"""The most tries to delete a half-made job over a broken connection."""
_LOOKS, _PAUSE = 50, 0.2
"""The number of checks for a claim's deletion, and the seconds between two."""


class Writer:
    """Creates jobs on one API server; `served` names the MPIJob version that it serves."""

    def __init__(self, api: Connection, served: Callable[[], ApiVersion]) -> None:
        self._api = api
        self._served = served
        self._classes: set[str] = set()

    def own(self, job: Object, objects: Sequence[Manifest]) -> tuple[str, ...]:
        """Create a new job's objects; if one fails, the job is deleted with all of them."""
        try:
            return tuple(
                kubectl_name(manifest) for manifest in objects if self._create_owned(manifest, job)
            )
        except BaseException as error:
            # Also on Ctrl-C: half a job must not remain.
            if not self.remove(job):
                _tell_left(error, job)
            raise

    def renew(self, job: Object, objects: Sequence[Manifest]) -> None:
        """Create a job's objects in place of older ones with these names; all or none."""
        made = []
        try:
            for manifest in objects:
                made.append(
                    f"{path_of(manifest, job['metadata']['namespace'])}"
                    f"/{manifest['metadata']['name']}"
                )
                self._renew(manifest, job, made[-1])
        except BaseException:
            # The claims of a gang that does not start would use up the quota of others.
            with self._api.grace():
                for path in made:
                    with contextlib.suppress(ArenaError):
                        left = self._api.get(path)
                        if is_owned(left, job):
                            self._api.delete(path, deletion(uid=left["metadata"]["uid"]))
            raise

    def _renew(self, manifest: Manifest, job: Object, path: str) -> None:
        left = self._api.find(path)
        if left is not None and is_owned(left, job):
            leaves = "deletionTimestamp" in left["metadata"]
            if left.get("spec") == manifest.get("spec") and not leaves:
                return
            self._api.delete(path, deletion(uid=left["metadata"]["uid"]))
            self._gone(path)
        self._create_owned(manifest, job)

    def _gone(self, path: str) -> None:
        """Wait for the deletion of an object: a claim that was in use briefly has a finalizer."""
        for _ in range(_LOOKS):
            if self._api.find(path) is None:
                return
            time.sleep(_PAUSE)

    def validate(self, plan: Plan) -> tuple[str, ...]:
        """Let the server check every object without storing any; the warnings.

        AlreadyExists if the job's name is taken, and nothing else is wrong.
        """
        first, *others = plan.objects
        warnings: list[str] = []
        taken: AlreadyExists | None = None
        try:
            self.create(plan, first, warnings=warnings, dryRun="All")
        except AlreadyExists as error:
            taken = error
        for manifest in others:
            # `own` deletes what an earlier job has left behind.
            with contextlib.suppress(AlreadyExists):
                warnings += self._api.post(
                    path_of(manifest, plan.namespace), manifest, dryRun="All"
                )[1]
        if taken is not None:
            raise taken
        return tuple(warnings)

    def stored(self, plan: Plan) -> tuple[Manifest | None, ...]:
        """The stored objects with the names of a plan's objects, in their order; None if absent.

        None also for an object of an earlier job of this name, or of another owner.
        """
        stored_objects: list[Manifest | None] = []
        for manifest in plan.objects:
            path = f"{path_of(manifest, plan.namespace)}/{part(manifest['metadata']['name'])}"
            existing = self._api.find(path)
            job = stored_objects[0] if stored_objects else existing
            if job is None:
                return (None,) * len(plan.objects)
            mine = existing is job or existing is None or is_owned(existing, job)
            stored_objects.append(existing if mine else None)
        return tuple(stored_objects)

    def remove(self, job: Mapping[str, Any]) -> bool:
        """Delete exactly this job; whether it is deleted. Raises nothing: the caller raises."""
        meta = job["metadata"]
        path = f"{path_of(dict(job), meta['namespace'])}/{meta['name']}"
        with self._api.grace():
            for _ in range(_TRIES):
                try:
                    self._api.delete(path, deletion(uid=meta["uid"]))
                except NotFound:
                    return True
                except ArenaError as error:
                    if isinstance(error, ClusterError) and error.status == CONFLICT:
                        # The name belongs to another job.
                        return True
                    if not maybe_written(error):
                        return False
                else:
                    return True
        return False

    def create(
        self, plan: Plan, first: Manifest, *, warnings: list[str] | None = None, **query: str
    ) -> Object:
        """Create the MPIJob of a plan; the stored object. The server's `warnings` go into the list.

        After a broken connection the request is retried; a job that the first try has created is
        recognised by its labels, annotations and age. AlreadyExists if its name is taken;
        InvalidJob if its priority class does not exist.
        """
        name = plan.job.name
        self._check_priority(plan.job.priority)
        try:
            stored, server_warnings = self._made(path_of(first, plan.namespace), first, query)
        except AlreadyExists as error:
            raise JobExists(name, plan.namespace) from error
        except NotFound as error:
            raise self._unserved(plan, error) from error
        if warnings is not None:
            warnings += server_warnings
        return stored

    def _made(
        self, path: str, first: Manifest, query: dict[str, str]
    ) -> tuple[Object, tuple[str, ...]]:
        """Create an MPIJob; on failure it does not exist, or the error says that it may exist."""
        began, lost = self._api.server_time, list[ClusterError]()
        try:
            made, warnings = self._posted(
                path, first, lambda job: _made_of(job, first, began), lost=lost, **query
            )
            return checked_job(made, tried=bool(query)), warnings
        except BaseException as error:
            # Ctrl-C and the alarm of --timeout come at any moment.
            doubtful = bool(lost) or maybe_written(error) or not isinstance(error, Exception)
            if doubtful and not query and not isinstance(error, AlreadyExists):
                self._withdraw(path, first, began, error)
            raise

    def _withdraw(
        self, path: str, first: Manifest, began: float | None, error: BaseException
    ) -> None:
        """Delete a job that may have been created; on failure the error says that it may exist."""
        try:
            with self._api.grace():
                answer = self._api.find(f"{path}/{first['metadata']['name']}")
            if answer is None:
                return
            existing = checked_job(answer)
        except ArenaError:
            existing = {"metadata": {**first["metadata"], "namespace": path.split("/")[-2]}}
        else:
            if _made_of(existing, first, began) and self.remove(existing):
                return
        _tell_left(error, existing)

    def _check_priority(self, name: str) -> None:
        """Refuse a priority class that does not exist: the operator could not create pods."""
        if not name or name in self._classes:
            return
        path = f"/apis/scheduling.k8s.io/v1/priorityclasses/{part(name)}"
        # Using a priority class requires no right to read it.
        with contextlib.suppress(AccessDenied):
            if self._api.find(path) is None:
                raise InvalidJob(
                    f"the priority {name} doesn't exist. Please check with `kubectl get pc` to get"
                    " a valid priority"
                )
        self._classes.add(name)

    def _unserved(self, plan: Plan, error: NotFound) -> ArenaError:
        """The error for a 404 to a creation: no such namespace, no such version, or no operator."""
        if error.message.startswith("namespaces "):
            return NotFound(
                f"there is no namespace {plan.namespace}",
                why=error.message,
                hint=f"kubectl create namespace {plan.namespace}, or name another with -n",
            )
        served = self._served()
        return ClusterError(
            f"this cluster serves no MPIJob {plan.api}",
            why=error.message,
            hint=f"it serves {served}: use --api-version {served}",
        )

    def _create_owned(self, manifest: Manifest, job: Object) -> bool:
        """Create one object that the job owns; False if arena's own ConfigMap is refused."""
        namespace, owner = job["metadata"]["namespace"], job["metadata"]["name"]
        owned = {
            **manifest,
            "metadata": {
                **manifest["metadata"],
                "ownerReferences": [
                    {
                        "apiVersion": job["apiVersion"],
                        "kind": job["kind"],
                        "name": job["metadata"]["name"],
                        "uid": job["metadata"]["uid"],
                        # No blockOwnerDeletion: without the right to write the finalizers of jobs
                        # it is refused (admission plugin OwnerReferencesPermissionEnforcement).
                        "controller": True,
                    }
                ],
            },
        }
        path = path_of(manifest, namespace)
        is_arenas = manifest["kind"] == "ConfigMap" and manifest["metadata"][
            "name"
        ] == arena_config_map(owner)
        try:
            try:
                self._posted(path, owned, lambda left: is_owned(left, job))
            except AlreadyExists:
                if not self._clear(f"{path}/{manifest['metadata']['name']}", job):
                    raise
                self._posted(path, owned, lambda left: is_owned(left, job))
        except (AlreadyExists, ClusterError) as error:
            # Only arena reads it, and only for its own version.
            if is_arenas and not version_of(job).traits.arenas:
                return False
            if isinstance(error, AlreadyExists):
                kind, name = manifest["kind"].lower(), manifest["metadata"]["name"]
                raise AlreadyExists(
                    f"the {kind} {name} already exists",
                    why="it does not belong to an earlier job of this name",
                    hint=f"kubectl delete {kind} {name} -n {namespace}",
                ) from error
            raise
        return True

    def _posted(
        self,
        path: str,
        sent: Manifest,
        ours: Callable[[Object], bool],
        *,
        lost: list[ClusterError] | None = None,
        **query: str,
    ) -> tuple[Object, tuple[str, ...]]:
        """Create an object; what is stored, and the server's warnings.

        After a broken connection, which is added to `lost`, there is one retry; an object that is
        `ours` by then was created by the first try.
        """
        lost = [] if lost is None else lost
        while True:
            try:
                return self._api.post(path, sent, **query)
            except AlreadyExists:
                existing = self._api.get(f"{path}/{sent['metadata']['name']}") if lost else None
                if existing is None or not ours(existing):
                    raise
                return existing, ()
            except ClusterError as error:
                if lost or not maybe_written(error):
                    raise
                lost.append(error)

    def _clear(self, path: str, job: Object) -> bool:
        """Delete what an earlier job of this name has left; False if it has another owner."""
        left = self._api.find(path)
        if left is None:
            return True
        if not is_namesakes(left, job):
            return False
        with contextlib.suppress(NotFound):
            self._api.delete(path, deletion(uid=left["metadata"]["uid"]))
        return True


def _made_of(existing: Object, sent: Manifest, began: float | None) -> bool:
    """Whether a job is the one just sent; `began` is the server's time before that."""
    meta, created = existing["metadata"], seconds(existing["metadata"].get("creationTimestamp"))
    fresh = began is not None and created is not None and created >= began
    return fresh and all(
        (meta.get(kind) or {}).get(key) == value
        for kind in ("labels", "annotations")
        for key, value in (sent["metadata"].get(kind) or {}).items()
    )


def _tell_left(error: BaseException, job: Object) -> None:
    """Add to an error that a job may exist, half-made."""
    name, space = job["metadata"]["name"], job["metadata"]["namespace"]
    if isinstance(error, ArenaError):
        error.hint = (
            f"a job {name} may be there, half made: see `arena-topo get {name} -n {space}`;"
            f" `arena-topo delete {name} -n {space}` takes it away"
        )


def part(name: str) -> str:
    """A name as a segment of a path; UsageError for an invalid name of an object.

    An empty name or a dot would make another path: deleting a job named "" would delete them all.
    """
    if not is_subdomain(name):
        raise UsageError(
            f"{name!r} is not a name that anything in a cluster can have",
            hint="names consist of lower case letters, digits, '-' and '.'",
        )
    return name


def missing_config_maps(api: Connection, mpijob: Mapping[str, Any]) -> tuple[str, ...]:
    """The ConfigMaps that the pods of a job mount, and that do not exist."""
    path = f"/api/v1/namespaces/{part(mpijob['metadata']['namespace'])}/configmaps"
    names = config_maps(dict(mpijob))
    return tuple(name for name in names if api.find(f"{path}/{part(name)}") is None)


def arena_config_map(name: str) -> str:
    """The name of the ConfigMap in which arena stores its data on a job."""
    return f"{name}-mpijob"


def path_of(manifest: Manifest, namespace: str = "") -> str:
    """The path of a manifest's kind, in its namespace; without one, of the whole cluster.

    The manifest's own namespace takes precedence over `namespace`.
    """
    version, kind = manifest["apiVersion"], manifest["kind"].lower()
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
    root = "apis" if "/" in version else "api"
    space = manifest["metadata"].get("namespace") or namespace
    return f"/{root}/{version}{f'/namespaces/{part(space)}' if space else ''}/{plural}"


def deletion(*, uid: str | None = None, revision: str | None = None) -> dict[str, Any]:
    """A request to delete an object with all it owns; with a uid, only exactly that object.

    With a revision, only if the object has not changed since.
    """
    options: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": "Background",
    }
    conditions = {"uid": uid, "resourceVersion": revision}
    conditions = {key: value for key, value in conditions.items() if value}
    return options | {"preconditions": conditions} if conditions else options
