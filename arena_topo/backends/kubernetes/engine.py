"""The Kubernetes engine: an API server with an MPI operator behind it.

Reads are plain JSON in pages, writes are single requests; what the objects mean is `observed`'s
and `status`'s to say, how the server is reached is `connection`'s.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from arena_topo.backends import (
    Event,
    JobStatus,
    LogOptions,
    Options,
    Phase,
    Publication,
    observed,
)
from arena_topo.backends.kubernetes import publishing
from arena_topo.backends.kubernetes.connection import FORBIDDEN, Connection
from arena_topo.backends.kubernetes.podlog import follow, log_query
from arena_topo.backends.kubernetes.status import NO_PODS, job_status, seconds
from arena_topo.errors import (
    AccessDenied,
    AlreadyExists,
    ArenaError,
    ClusterError,
    NotFound,
    UsageError,
)
from arena_topo.job import MPIJob
from arena_topo.manifests import ApiVersion, Manifest, Plan, object_name
from arena_topo.topology import Cluster, Machine, published

Object = dict[str, Any]

GROUP = "kubeflow.org"
PLURAL = "mpijobs"

ARENA_SELECTOR = "app=mpijob"
"""Label of everything that arena's chart creates."""

NAME_LABELS = {
    ApiVersion.V2BETA1: ("training.kubeflow.org/job-name",),
    ApiVersion.V1: ("training.kubeflow.org/job-name", "mpi-job-name"),
    ApiVersion.V1ALPHA1: ("mpi_job_name",),
}
"""Where each version's operators write a pod's job."""

_NO_CRD = "the MPI operator is not installed: this cluster serves no MPIJob"
_INSTALL = (
    "an administrator installs a release of it: https://github.com/kubeflow/mpi-operator/releases"
)
_READER = (
    "ask for a ClusterRole with: "
    '{apiGroups: [""], resources: ["nodes", "pods"], verbs: ["list"]}, '
    '{apiGroups: ["kubeflow.org"], resources: ["mpijobs"], verbs: ["list"]}'
)


class _NoOperator(ClusterError):
    """The cluster has no MPIJobs at all."""


def open_backend(options: Options) -> KubernetesBackend:
    """The engine for the cluster that the options and the kubeconfig name; talks to nobody yet."""
    return KubernetesBackend(options)


class KubernetesBackend:
    """Jobs as MPIJobs of a cluster."""

    name = "kubernetes"
    binding = None
    look_every = 2.0
    starts_waiting = False

    def __init__(self, options: Options) -> None:
        self._options = options
        self._api = Connection(options)
        self._version: ApiVersion | None = None

    def default_namespace(self) -> str:
        """The namespace of -n, else of the context, else `default`."""
        return self._options.namespace or self._api.access.namespace or "default"

    def owner(self) -> str:
        """The user as the API server sees it, else as the kubeconfig calls it."""
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        with contextlib.suppress(ArenaError):
            answer, _ = self._api.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
            name = ((answer.get("status") or {}).get("userInfo") or {}).get("username")
            if name:
                return str(name)
        return self._api.access.user or "unknown"

    def api_version(self) -> ApiVersion:
        """The best MPIJob version that is served; ClusterError if there is none."""
        if self._version is None:
            self._version = self._discovered()
        return self._version

    def _discovered(self) -> ApiVersion:
        for version in ApiVersion:
            with contextlib.suppress(NotFound):
                served = self._api.get(f"/apis/{GROUP}/{version}")
                if any(one.get("name") == PLURAL for one in served.get("resources") or ()):
                    return version
        raise _NoOperator(_NO_CRD, hint=_INSTALL)

    def cluster(self) -> Cluster:
        """All nodes with what is free on them now.

        AccessDenied if nodes or pods may not be listed; a note where only MPIJobs, topology
        ConfigMaps or Kueue topologies may not.
        """
        try:
            found = [
                *self._listed("Node", "/api/v1/nodes"),
                *self._listed("Pod", "/api/v1/pods"),
            ]
        except AccessDenied as error:
            raise AccessDenied(
                error.message,
                status=error.status,
                why=error.why,
                hint=_READER if error.status == FORBIDDEN else error.hint,
            ) from error
        unread = []
        optional: tuple[tuple[Callable[[], list[Object]], str], ...] = (
            (self._links, "the links of GPUs are taken from node labels"),
            (self._fabrics, "the network is taken from node labels"),
            (self._records, "GPUs planned for jobs that have not started count as free"),
        )
        for read, instead in optional:
            try:
                found += read()
            except (AccessDenied, _NoOperator, NotFound) as error:
                unread.append(f"{error.message}: {instead}")
        seen = observed.cluster(
            found,
            source=self._api.access.context or self._api.access.server,
            file=self._options.fabric,
        )
        return replace(seen, notes=(*unread, *seen.notes))

    def remarks(self, job: MPIJob) -> tuple[str, ...]:
        """Nothing: all of a job is in its manifest."""
        del job
        return ()

    def most_gpus(self) -> int | None:
        """The most GPUs that any node has; None if there are none, or nodes may not be listed."""
        try:
            seen = observed.cluster(self._listed("Node", "/api/v1/nodes"), source="")
        except AccessDenied:
            return None
        # A cluster without GPU nodes may add some once a pod asks for them.
        return max((len(node.machine.gpus) for node in seen.nodes), default=0) or None

    def _links(self) -> list[Object]:
        return self._listed(
            "ConfigMap",
            f"/api/v1/namespaces/{published.NAMESPACE}/configmaps",
            labelSelector=f"{published.SCHEDULE_LABEL}=topology",
        )

    def _fabrics(self) -> list[Object]:
        """The Kueue topologies, where they count; without Kueue that takes one request."""
        if self._options.fabric is not None:
            return []
        try:
            group = self._api.get(f"/apis/{observed.KUEUE}")
        except NotFound:
            return []
        served = [group.get("preferredVersion") or {}, *(group.get("versions") or ())]
        # Before Kueue 0.14 the preferred version of the group had no topologies yet.
        for version in dict.fromkeys(one.get("version") for one in served):
            with contextlib.suppress(NotFound):
                return self._listed("Topology", f"/apis/{observed.KUEUE}/{version}/topologies")
        return []

    def _records(self) -> list[Object]:
        return self._listed("MPIJob", f"/apis/{GROUP}/{self.api_version()}/{PLURAL}")

    def _listed(self, kind: str, path: str, **query: str) -> list[Object]:
        """All objects of a kind, each reduced to what `observed` reads as its page arrives."""

        def keep(one: Object) -> Object:
            try:
                return observed.project(kind, one)
            except (AttributeError, KeyError, TypeError, ValueError):
                # `observed.cluster` says what is wrong with it.
                return {**one, "kind": kind}

        return self._api.collect(path, keep, **query)

    def apply(self, plan: Plan) -> tuple[str, ...]:
        """Create the MPIJob, then all it owns; if one of those fails, nothing is left.

        AlreadyExists if the job's name is taken. The names are kubectl's: `configmap/NAME`.
        """
        first, *others = plan.objects
        job, _ = self._create_job(plan)
        created = [object_name(first)]
        try:
            created += [object_name(one) for one in others if self._create_owned(one, job, plan)]
        except BaseException:
            # Whatever stopped it, Ctrl-C included: half a job must not stay behind.
            self._undo(plan.namespace, job, first)
            raise
        return tuple(created)

    def validate(self, plan: Plan) -> tuple[str, ...]:
        """Let the server check every object without storing any; its warnings.

        AlreadyExists if the job's name is taken.
        """
        _, warnings = self._create_job(plan, dryRun="All")
        for one in plan.objects[1:]:
            # What an earlier job has left behind, `apply` clears away.
            with contextlib.suppress(AlreadyExists):
                warnings += self._api.post(_path(one, plan.namespace), one, dryRun="All")[1]
        return warnings

    def _create_job(self, plan: Plan, **query: str) -> tuple[Object, tuple[str, ...]]:
        first, name = plan.objects[0], plan.job.name
        try:
            return self._api.post(_path(first, plan.namespace), first, **query)
        except AlreadyExists as error:
            raise AlreadyExists(
                f"the job {name} is already exist, please delete it first."
                f" use 'arena-topo delete {name}'"
            ) from error
        except NotFound as error:
            raise self._unserved(plan, error) from error

    def _unserved(self, plan: Plan, error: NotFound) -> ArenaError:
        """What a 404 to a creation means: no such namespace, no such version, or no operator."""
        if error.message.startswith("namespaces "):
            return NotFound(
                f"there is no namespace {plan.namespace}",
                why=error.message,
                hint=f"kubectl create namespace {plan.namespace}, or name another with -n",
            )
        served = self.api_version()
        return ClusterError(
            f"this cluster serves no MPIJob {plan.api}",
            why=error.message,
            hint=f"it serves {served}: use --api-version {served}",
        )

    def _create_owned(self, one: Manifest, job: Object, plan: Plan) -> bool:
        """Create one object that the job owns; False if arena's own bookkeeping is refused."""
        owned = {
            **one,
            "metadata": {
                **one["metadata"],
                "ownerReferences": [
                    {
                        "apiVersion": job["apiVersion"],
                        "kind": job["kind"],
                        "name": job["metadata"]["name"],
                        "uid": job["metadata"]["uid"],
                        "controller": True,
                        "blockOwnerDeletion": True,
                    }
                ],
            },
        }
        path = _path(one, plan.namespace)
        is_arenas = one["kind"] == "ConfigMap" and one["metadata"]["name"] == _arenas(plan.job.name)
        try:
            try:
                self._api.post(path, owned)
            except AlreadyExists:
                if not self._clear(f"{path}/{one['metadata']['name']}", job):
                    raise
                self._api.post(path, owned)
        except (AlreadyExists, ClusterError) as error:
            # Only arena reads it, and only of v1alpha1.
            if is_arenas and plan.api is not ApiVersion.V1ALPHA1:
                return False
            if isinstance(error, AlreadyExists):
                kind, name = one["kind"].lower(), one["metadata"]["name"]
                raise AlreadyExists(
                    f"the job {kind} {name} is already exist, please delete it first",
                    why="it does not belong to an earlier job of this name",
                    hint=f"kubectl delete {kind} {name} -n {plan.namespace}",
                ) from error
            raise
        return True

    def _clear(self, path: str, job: Object) -> bool:
        """Delete what an earlier job of this name has left; False if it is somebody else's."""
        try:
            left = self._api.get(path)
        except NotFound:
            return True
        owners = left["metadata"].get("ownerReferences") or []
        if not any(
            one.get("kind") == job["kind"]
            and one.get("name") == job["metadata"]["name"]
            and one.get("uid") != job["metadata"]["uid"]
            for one in owners
        ):
            return False
        with contextlib.suppress(NotFound):
            self._api.delete(path, _deletion(uid=left["metadata"]["uid"]))
        return True

    def _undo(self, namespace: str, job: Object, manifest: Manifest) -> None:
        path = f"{_path(manifest, namespace)}/{job['metadata']['name']}"
        # The first error is the one to tell.
        with contextlib.suppress(ArenaError):
            self._api.delete(path, _deletion(uid=job["metadata"]["uid"]))

    def job(self, name: str, namespace: str) -> JobStatus:
        """One job with its pods; NotFound if there is none."""
        version = self.api_version()
        try:
            mpijob = self._api.get(self._job_path(name, namespace))
        except NotFound as error:
            raise NotFound(
                f"Not found training job {name} in namespace {namespace},"
                "please use 'arena-topo submit' to create it."
            ) from error
        pods = self._pods_of(mpijob, version, namespace)
        status = self._status(
            mpijob,
            pods,
            tensorboard=self._tensorboard(name, namespace, pods),
            ended=self._ended(namespace, version).get((namespace, name)),
        )
        if status.phase is Phase.PENDING and status.reason == NO_PODS:
            # A refused pod (quota, admission) is told in the job's events and nowhere else.
            warnings = [one for one in self._quiet_events(status) if one.kind == "Warning"]
            if warnings:
                return replace(status, reason=f"{warnings[-1].reason}: {warnings[-1].message}")
        return status

    def jobs(self, namespace: str | None) -> tuple[JobStatus, ...]:
        """All jobs of a namespace, or of all (None), newest first, in three requests or fewer."""
        version = self.api_version()
        space = f"/namespaces/{_part(namespace)}" if namespace else ""
        mpijobs = self._api.collect(f"/apis/{GROUP}/{version}{space}/{PLURAL}")
        pods: dict[tuple[str, str], dict[str, Object]] = defaultdict(dict)

        def gather(selector: str, label: str) -> None:
            for pod in self._api.collect(f"/api/v1{space}/pods", labelSelector=selector):
                meta = pod["metadata"]
                job = (meta.get("labels") or {}).get(label, "")
                pods[meta.get("namespace", ""), job].setdefault(meta["name"], pod)

        if any(_is_arenas(one) for one in mpijobs):
            gather(ARENA_SELECTOR, "release")
        if not all(_is_arenas(one) for one in mpijobs):
            for label in NAME_LABELS[version]:
                gather(label, label)
        ended = self._ended(namespace, version)
        found = []
        for mpijob in mpijobs:
            meta = mpijob["metadata"]
            key = (meta.get("namespace", ""), meta["name"])
            mine = list(pods.get(key, {}).values())
            found.append(self._status(mpijob, mine, ended=ended.get(key)))
        return tuple(sorted(found, key=lambda one: (-one.created, one.namespace, one.name)))

    @staticmethod
    def _status(
        mpijob: Object, pods: list[Object], *, tensorboard: str = "", ended: float | None = None
    ) -> JobStatus:
        mine = [pod for pod in pods if _belongs(pod, mpijob)]
        return job_status(mpijob, mine, tensorboard=tensorboard, ended=ended)

    def _pods_of(self, mpijob: Object, version: ApiVersion, namespace: str) -> list[Object]:
        name = mpijob["metadata"]["name"]
        path = f"/api/v1/namespaces/{_part(namespace)}/pods"
        if _is_arenas(mpijob):
            selector = f"release={name},{ARENA_SELECTOR}"
            return self._api.collect(path, labelSelector=selector)
        for label in NAME_LABELS[version]:
            if found := self._api.collect(path, labelSelector=f"{label}={name}"):
                return found
        return []

    def _ended(self, namespace: str | None, version: ApiVersion) -> dict[tuple[str, str], float]:
        """When launchers were done, by job, for the operator that does not say so itself."""
        if version is not ApiVersion.V1ALPHA1:
            return {}
        space = f"/namespaces/{_part(namespace)}" if namespace else ""
        label = NAME_LABELS[version][0]
        try:
            jobs = self._api.collect(f"/apis/batch/v1{space}/jobs", labelSelector=label)
        except AccessDenied:
            return {}
        ended = {}
        for one in jobs:
            meta = one["metadata"]
            at = seconds((one.get("status") or {}).get("completionTime"))
            if at is not None:
                ended[meta.get("namespace", ""), meta["labels"][label]] = at
        return ended

    def _tensorboard(self, name: str, namespace: str, pods: list[Object]) -> str:
        """Where the job's TensorBoard answers, or nothing."""
        try:
            services = self._api.collect(
                f"/api/v1/namespaces/{_part(namespace)}/services",
                labelSelector=f"role=tensorboard,release={name}",
            )
        except AccessDenied:
            return ""
        for service in services:
            port: Object = next(iter((service.get("spec") or {}).get("ports") or ()), {})
            balancer = (service.get("status") or {}).get("loadBalancer") or {}
            for entry in balancer.get("ingress") or ():
                if address := entry.get("ip") or entry.get("hostname"):
                    return f"http://{address}:{port.get('port')}"
            # A NodePort answers on every node, so that of any pod of the job will do.
            hosts = [ip for pod in pods if (ip := (pod.get("status") or {}).get("hostIP"))]
            if port.get("nodePort") and hosts:
                return f"http://{hosts[0]}:{port['nodePort']}"
        return ""

    def delete(self, name: str, namespace: str) -> None:
        """Delete the MPIJob; what it owns follows. NotFound if there is none."""
        version = self.api_version()
        try:
            self._api.delete(self._job_path(name, namespace), _deletion())
        except NotFound as error:
            raise NotFound(f"Not found training job {name} in namespace {namespace}") from error
        if version is ApiVersion.V1ALPHA1:
            # Arena itself does not always make the job its owner.
            path = f"/api/v1/namespaces/{_part(namespace)}/configmaps/{_part(_arenas(name))}"
            with contextlib.suppress(NotFound, AccessDenied):
                labels = self._api.get(path)["metadata"].get("labels") or {}
                if labels.get("createdBy") == "arena":
                    self._api.delete(path, _deletion())

    def events(self, job: JobStatus) -> tuple[Event, ...]:
        """What happened to the job and its pods, oldest first."""
        objects = {job.uid, *(one.uid for one in job.instances)}
        workload = re.compile(rf"{re.escape(job.name)}-(worker|launcher|mpijob-launcher)(-\w+)?")

        def keep(one: Object) -> Object | None:
            about = one.get("involvedObject") or {}
            # Pods that are gone have no uid to go by, but belong to the time of this job.
            gone = (
                about.get("kind") in {"Pod", "Job", "StatefulSet"}
                and workload.fullmatch(str(about.get("name")))
                and _when(one) >= job.created
            )
            return one if about.get("uid") in objects or gone else None

        path = f"/api/v1/namespaces/{_part(job.namespace)}/events"
        found = [
            Event(
                source=f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}",
                kind=one.get("type") or "Normal",
                when=_when(one),
                reason=one.get("reason") or "",
                message=one.get("message") or "",
            )
            for one in self._api.collect(path, keep)
            for about in (one.get("involvedObject") or {},)
        ]
        return tuple(sorted(found, key=lambda one: (one.when, one.source)))

    def publish(self, machine: Machine, *, dry_run: bool = False) -> Publication:
        """Create or replace the ConfigMap of the node that the machine is named after.

        NotFound if there is no such node; ArenaError if its GPUs are others, or not whole.
        """
        return publishing.publish(self._api, machine, dry_run=dry_run)

    def _quiet_events(self, job: JobStatus) -> tuple[Event, ...]:
        try:
            return self.events(job)
        except AccessDenied:
            return ()

    def log(self, job: JobStatus, instance: str, options: LogOptions) -> Iterator[bytes]:
        """The log of one pod in pieces; with `follow` until the pod ends.

        A followed log survives broken connections: it goes on after the last line seen. Without
        `container` it is the main one's, or the init container's that runs now.
        """
        path = f"/api/v1/namespaces/{_part(job.namespace)}/pods/{_part(instance)}"
        if options.follow:
            yield from follow(self._api, path, options)
        else:
            yield from self._api.stream(f"{path}/log", **log_query(options, self._api.get(path)))

    def _job_path(self, name: str, namespace: str) -> str:
        return (
            f"/apis/{GROUP}/{self.api_version()}/namespaces/{_part(namespace)}"
            f"/{PLURAL}/{_part(name)}"
        )


def _part(name: str) -> str:
    """A name as one part of a path; UsageError for what no object can be called.

    An empty name or a dot would make another path of it: deleting a job named "" deletes them all.
    """
    if re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", name) is None:
        raise UsageError(
            f"{name!r} is not a name that anything in a cluster can have",
            hint="names consist of lower case letters, digits, '-' and '.'",
        )
    return name


def _arenas(name: str) -> str:
    """The ConfigMap in which arena keeps a job's books."""
    return f"{name}-mpijob"


def _is_arenas(mpijob: Object) -> bool:
    """Whether a job carries the labels by which arena finds its pods."""
    labels = mpijob["metadata"].get("labels") or {}
    return labels.get("app") == "mpijob" and labels.get("release") == mpijob["metadata"]["name"]


def _belongs(pod: Object, mpijob: Object) -> bool:
    """Whether a pod that a selector found is the job's: no TensorBoard, no earlier namesake's."""
    meta, job = pod["metadata"], mpijob["metadata"]
    if (meta.get("labels") or {}).get("role") == "tensorboard":
        return False
    owners = [one for one in meta.get("ownerReferences") or () if one.get("kind") == "MPIJob"]
    if owners:
        return any(one.get("uid") == job.get("uid") for one in owners)
    return (seconds(meta.get("creationTimestamp")) or 0.0) >= (
        seconds(job.get("creationTimestamp")) or 0.0
    )


def _path(manifest: Manifest, namespace: str) -> str:
    """Where objects of a manifest's kind are created."""
    version, kind = manifest["apiVersion"], manifest["kind"].lower()
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
    root = "apis" if "/" in version else "api"
    space = manifest["metadata"].get("namespace") or namespace
    return f"/{root}/{version}/namespaces/{_part(space)}/{plural}"


def _deletion(*, uid: str | None = None) -> dict[str, Any]:
    """A request to delete an object with all it owns; with a uid, only that very object."""
    options: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": "Background",
    }
    return options | {"preconditions": {"uid": uid}} if uid else options


def _when(event: Object) -> float:
    series = event.get("series") or {}
    for text in (
        event.get("lastTimestamp"),
        series.get("lastObservedTime"),
        event.get("eventTime"),
        event["metadata"].get("creationTimestamp"),
    ):
        if (at := seconds(text)) is not None:
            return at
    return 0.0
