"""The Kubernetes engine: an API server with an MPI operator behind it.

Reads are plain JSON in pages, writes are single requests. `observed` and `mpijob` interpret the
objects, `connection` talks to the server.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from arena_topo.clusters import objects, selectors
from arena_topo.engines import Event, JobStatus, Options, Phase, Publication, ignore_message
from arena_topo.engines.attach_request import AttachRequest
from arena_topo.engines.kubernetes.connection import Connection
from arena_topo.engines.kubernetes.job_writer import arena_config_map, deletion, part
from arena_topo.engines.kubernetes.jobs import Jobs, ListSnapshot, WatchedList
from arena_topo.engines.kubernetes.mpijob import (
    ARENA_SELECTOR,
    MPIJOB_GROUP,
    NO_PODS,
    PLURAL,
    event_of,
    events_filter,
    is_arenas,
    is_pod_of,
    job_status,
    pod_status,
)
from arena_topo.engines.kubernetes.shapes import (
    ServicePort,
    identity_only,
    kube_object,
    object_error,
)
from arena_topo.errors import (
    CONFLICT,
    FORBIDDEN,
    AccessDenied,
    ArenaError,
    ClusterError,
    JobNotFound,
    NotFound,
)
from arena_topo.manifests import Plan
from arena_topo.manifests.serialize import kubectl_name
from arena_topo.topology import Cluster, Machine, Node, published

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.facts import JobFacts, Sightings
    from arena_topo.engines.kubernetes.job_watch import WatchedJobs
    from arena_topo.engines.kubernetes.podexec import Done
    from arena_topo.engines.kubernetes.prometheus import Prometheus
    from arena_topo.engines.kubernetes.queue import Queue
    from arena_topo.engines.lines import Following, LogOptions, SourceFilter
    from arena_topo.engines.metrics import GpuSample
    from arena_topo.engines.occupancy import Occupancy
    from arena_topo.engines.volume import Volume
    from arena_topo.job import MPIJob

Object = dict[str, Any]

_FEW = 32
"""The number of jobs up to which their pods are listed by the jobs' names, which are part of the
URL."""

_KNOWN = 30.0
"""Seconds for which the address of a TensorBoard is cached."""

_CONFIG = "arena-config"
_ADMINISTRATORS = "adminUsers"
"""The key of arena's administrators (arena v0.15.5, pkg/apis/config/arenaconfig.go)."""

_VIEWED = (
    'ask for this rule in a ClusterRole: {apiGroups: [""], resources: ["nodes", "pods"],'
    ' verbs: ["list"]}; or for the controller of arena-topo: its ConfigMap'
    f" {published.OWN_NAMESPACE}/{published.VIEW} lists free GPUs for users without this right"
)


def open_kubernetes(options: Options) -> KubernetesBackend:
    """The engine for the cluster of the options and the kubeconfig; sends no request yet."""
    return KubernetesBackend(options)


class KubernetesBackend(Jobs):
    """Jobs as MPIJobs of a cluster."""

    name = "kubernetes"
    binding = None
    pausing = None
    look_every = 2.0
    starts_waiting = False

    def __init__(self, options: Options) -> None:
        self._options = options
        super().__init__(Connection(options), options.fabric)
        self.place = self.api.access.server
        self._seen: tuple[Node, ...] | None = None
        self._prometheus: Prometheus | None = None
        self._tensorboards: dict[str, tuple[float, str]] = {}
        """The time of the lookup of a job's TensorBoard (by the job's uid), and its address."""
        self._owner: str | None = None

    def close(self) -> None:
        """Close the connections to the API server."""
        self.api.close()

    def default_namespace(self) -> str:
        """The namespace of -n, else of the context, else `default`."""
        return self._options.namespace or self.api.access.namespace or "default"

    def owner(self, *, tell: Callable[[str], None] = ignore_message) -> str:
        """The user's name according to the API server, else, with a note, the kubeconfig.

        AccessDenied if the server does not know the user.
        """
        if self._owner is not None:
            return self._owner
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        try:
            answer, _ = self.api.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
        except AccessDenied as error:
            if error.status != FORBIDDEN:
                raise
            answer = {}
        if name := kube_object(answer).status.user_info.username:
            self._owner = name
            return name
        name = self.api.access.user or "unknown"
        tell(f"the API server does not tell who is asking: {name} is the kubeconfig's name for it")
        return name

    def cluster(self) -> Cluster:
        """All nodes with what is free on them now.

        If nodes or pods may not be listed, the view that the controller has published
        (`Cluster.view`); without a view AccessDenied. A note if only MPIJobs, topology ConfigMaps,
        Kueue topologies, or the slices and claims of DRA drivers may not be listed.
        """
        try:
            records, unread = self.sources.objects()
        except AccessDenied as error:
            return self._viewed_instead(error)
        return self.sources.seen(records, unread)

    def _viewed_instead(self, error: AccessDenied) -> Cluster:
        """The view that the controller has published; without it the error, with advice."""
        from arena_topo.clusters import view  # noqa: PLC0415  for the few who need it

        if error.status != FORBIDDEN:
            raise error
        viewed = None
        with contextlib.suppress(AccessDenied):
            viewed = self.api.find(
                f"/api/v1/namespaces/{view.VIEW_NAMESPACE}/configmaps/{view.VIEW_NAME}"
            )
        if viewed is None:
            error.hint = _VIEWED
            raise error
        cluster = view.decode(viewed, now=self.api.now(), source=self.sources.name)
        if self._options.fabric is None:
            return cluster
        unused = f"{self._options.fabric.where} is not used: the controller says what joins nodes"
        return replace(cluster, notes=(*cluster.notes, unused))

    def nodes(self) -> Occupancy:
        """All nodes with the pods on their GPUs, and the cluster as in `cluster`.

        Without pods if the caller may read only the controller's view.
        """
        from arena_topo.engines import occupancy  # noqa: PLC0415  only to look at nodes

        try:
            records, unread = self.sources.objects(status_of=pod_status)
        except AccessDenied as error:
            return occupancy.viewed(self._viewed_instead(error))
        return occupancy.read_occupancy(
            records,
            source=self.sources.name,
            file=self._options.fabric,
            now=self.api.now(),
            notes=tuple(unread),
        )

    @property
    def queue(self) -> Queue:
        """The queue of jobs and their recorded placements."""
        from arena_topo.engines.kubernetes.queue import Queue  # noqa: PLC0415  writers

        return Queue(self)

    def remarks(self, job: MPIJob) -> tuple[str, ...]:
        """Nothing: the manifest contains all settings of a job."""
        del job
        return ()

    def has_node(self, name: str) -> bool:
        """Whether the cluster has a node of this name; AccessDenied without the right to ask."""
        return self.api.find(f"/api/v1/nodes/{part(name)}") is not None

    def machines(self) -> tuple[Node, ...]:
        """The nodes, busy or free, read once; empty if the caller may not list them."""
        from arena_topo.clusters import observed  # noqa: PLC0415  to read the cluster

        if self._seen is None:
            try:
                nodes = self.sources.records(next(iter(self.sources)))
            except AccessDenied:
                nodes = []
            self._seen = observed.cluster(nodes, source="").nodes
        return self._seen

    def apply(self, plan: Plan) -> tuple[str, ...]:
        """Create the MPIJob, then all it owns; if one of those fails, nothing is left.

        AlreadyExists if the job's name is taken. The names are kubectl's: `configmap/NAME`.
        """
        first, *others = plan.objects
        return (kubectl_name(first), *self.own(self.create(plan, first), others))

    def job(self, name: str, namespace: str) -> JobStatus:
        """One job with its pods; NotFound if it does not exist."""
        mpijob = self.mpijob(name, namespace)
        pods = self.pods_of(mpijob)
        return self.completed(job_status(mpijob, pods), pods)

    def completed(self, status: JobStatus, pods: list[Object]) -> JobStatus:
        """A status with what neither the job nor its pods say: the TensorBoard, refused pods."""
        known, tensorboard = self._tensorboards.get(status.uid, (-_KNOWN, ""))
        if time.monotonic() - known >= _KNOWN:
            tensorboard = self._tensorboard(status.name, status.namespace, pods)
            self._tensorboards[status.uid] = time.monotonic(), tensorboard
        if tensorboard:
            status = msgspec.structs.replace(status, tensorboard=tensorboard)
        if status.phase is Phase.PENDING and status.reason == NO_PODS:
            # Only the job's events report a refused pod (quota, admission).
            with contextlib.suppress(AccessDenied):
                warnings = [event for event in self.events(status) if event.kind == "Warning"]
                if warnings:
                    why = f"{warnings[-1].reason}: {warnings[-1].message}"
                    return msgspec.structs.replace(status, reason=why)
        return status

    def facts(self, name: str, namespace: str) -> JobFacts:
        """The facts that explain a job, as far as they may be read; NotFound without the job."""
        from arena_topo.engines.kubernetes import facts  # noqa: PLC0415  only to explain

        mpijob = self.mpijob(name, namespace)
        pods = partial(self.pods_of, mpijob)
        return facts.read_facts(self.api, mpijob, version=self.api_version(), pods=pods)

    def sightings(self, status: JobStatus) -> Sightings:
        """The GPUs of a job's workers according to claims and kubelets."""
        from arena_topo.engines.kubernetes import facts  # noqa: PLC0415  only for placed jobs

        return facts.read_allocations(self.api, status)

    def execute(self, namespace: str, pod: str, command: Sequence[str]) -> Done:
        """Run a command in the main container of a pod; see `podexec.execute` for the errors."""
        from arena_topo.engines.kubernetes import podexec, podlog  # noqa: PLC0415  only to look in

        path = f"/api/v1/namespaces/{part(namespace)}/pods/{part(pod)}"
        container = podlog.main_container(self.api.get(path))
        return podexec.execute(self.api, namespace, pod, command, container=container)

    def attach(
        self,
        job: JobStatus,
        instance: str,
        request: AttachRequest,
        *,
        tell: Callable[[str], None] = ignore_message,
    ) -> int:
        """Run a command in a container of a pod, on this process's streams; its exit code."""
        from arena_topo.engines.kubernetes import podexec  # noqa: PLC0415  its own command

        return podexec.attach_container(self.api, job, instance, request, tell=tell)

    def metrics(
        self,
        namespace: str | None = None,
        *,
        pods: Collection[str] = (),
        tell: Callable[[str], None] = ignore_message,
    ) -> tuple[GpuSample, ...]:
        """The load of the GPUs according to a Prometheus; empty without one, see `tell`."""
        from arena_topo.engines.kubernetes import prometheus  # noqa: PLC0415  only to measure

        if self._prometheus is None:
            self._prometheus = prometheus.Prometheus(self.api, self._options)
        return self._prometheus.gpus(namespace=namespace, pods=pods, tell=tell)

    def volumes(self, namespace: str | None) -> tuple[Volume, ...]:
        """The bound volume claims; AccessDenied names the missing right."""
        from arena_topo.engines.kubernetes import volumes  # noqa: PLC0415  its own command

        return volumes.bound(self.api, namespace)

    def administrators(self, namespace: str) -> frozenset[str]:
        """The names in arena's ConfigMap; empty if it may not be read."""
        path = f"/api/v1/namespaces/{part(namespace)}/configmaps/{_CONFIG}"
        try:
            listed = objects.mapping_at(self.api.get(path), "data").get(_ADMINISTRATORS)
        except (ArenaError, TypeError):
            return frozenset()
        return frozenset(name.strip(" ") for name in str(listed or "").split(",")) - {""}

    def jobs(self, namespace: str | None, selector: str = "") -> tuple[JobStatus, ...]:
        """All jobs of a namespace, or of all (None), newest first, in three requests or fewer."""
        return self.jobs_read(namespace, selector).content

    def jobs_read(
        self, namespace: str | None, selector: str = ""
    ) -> ListSnapshot[tuple[JobStatus, ...]]:
        """What `jobs` returns, with the lists in which changes of it would be seen."""
        version = self.api_version()
        space = f"/namespaces/{part(namespace)}" if namespace else ""
        selected = {"labelSelector": selector} if selector else {}
        path = f"/apis/{MPIJOB_GROUP}/{version}{space}/{PLURAL}"
        listed, revision = self.api.listed(path, None, judged=True, **selected)
        lists = [WatchedList(path, selected, revision)]
        odds = list(map(object_error, listed))
        # One invalid job must not hide the jobs of others.
        mpijobs = [
            identity_only(mpijob) if odd else mpijob
            for mpijob, odd in zip(listed, odds, strict=True)
        ]
        pods: dict[tuple[str, str], dict[str, Object]] = defaultdict(dict)

        names = {mpijob["metadata"]["name"] for mpijob in mpijobs}

        def gather(wanted: str, label: str) -> None:
            if selector and len(names) <= _FEW:
                wanted = selectors.all_selectors(wanted, selectors.any_value(label, names))
            path = f"/api/v1{space}/pods"
            labelled, revision = self.api.listed(path, labelSelector=wanted)
            lists.append(WatchedList(path, {"labelSelector": wanted}, revision))
            for pod in labelled:
                meta = pod["metadata"]
                job = (meta.get("labels") or {}).get(label, "")
                pods[meta.get("namespace", ""), job].setdefault(meta["name"], pod)

        if any(is_arenas(mpijob) for mpijob in mpijobs):
            gather(ARENA_SELECTOR, "release")
        if not all(is_arenas(mpijob) for mpijob in mpijobs):
            for label in version.traits.job_labels:
                gather(label, label)
        statuses = []
        for mpijob, odd in zip(mpijobs, odds, strict=True):
            meta = mpijob["metadata"]
            labelled = pods.get((meta.get("namespace", ""), meta["name"]), {}).values()
            status = job_status(mpijob, [pod for pod in labelled if is_pod_of(pod, mpijob)])
            if odd:
                status = msgspec.structs.replace(
                    status, reason=f"what is written of it makes no sense: {odd}"
                )
            statuses.append(status)
        statuses.sort(key=lambda status: (-status.created, status.namespace, status.name))
        return ListSnapshot(tuple(statuses), tuple(lists))

    def _tensorboard(self, name: str, namespace: str, pods: list[Object]) -> str:
        """The address of the job's TensorBoard; empty without one."""
        space, selector = part(namespace), f"role=tensorboard,release={name}"
        try:
            services = self.api.collect(
                f"/api/v1/namespaces/{space}/services", labelSelector=selector
            )
        except AccessDenied:
            return ""
        for service in map(kube_object, services):
            port = next(iter(service.spec.ports), ServicePort())
            for entry in service.status.load_balancer.ingress:
                if address := entry.ip or entry.hostname:
                    return f"http://{address}:{port.port}"
            if not port.node_port:
                continue
            # A node port answers on every node: that of any pod of the job, else its own.
            hosts = _hosts(pods) or _hosts(
                self.api.collect(f"/api/v1/namespaces/{space}/pods", labelSelector=selector)
            )
            if hosts:
                return f"http://{hosts[0]}:{port.node_port}"
        return ""

    def delete(
        self,
        name: str,
        namespace: str,
        *,
        uid: str | None = None,
        tell: Callable[[str], None] = ignore_message,
    ) -> None:
        """Delete the MPIJob, or the one with this uid, with what it owns; NotFound without it."""
        del tell
        version = self.api_version()
        try:
            self.api.delete(self.job_path(name, namespace), deletion(uid=uid))
        except NotFound as error:
            raise JobNotFound(name, namespace) from error
        except ClusterError as error:
            if uid is None or error.status != CONFLICT:
                raise
            raise JobNotFound(name, namespace) from error
        if version.traits.arenas:
            # Arena itself does not always set the job as the owner.
            path = f"/api/v1/namespaces/{part(namespace)}/configmaps/{part(arena_config_map(name))}"
            with contextlib.suppress(NotFound, AccessDenied):
                labels = self.api.get(path)["metadata"].get("labels") or {}
                if labels.get("createdBy") == "arena":
                    self.api.delete(path, deletion())

    def events(self, job: JobStatus) -> tuple[Event, ...]:
        """The events of the job and its pods, oldest first."""
        uids = {job.uid, *(instance.uid for instance in job.instances)}
        keep = events_filter(job.name, job.created, uids)
        path = f"/api/v1/namespaces/{part(job.namespace)}/events"
        events = map(event_of, self.api.collect(path, keep))
        return tuple(sorted(events, key=lambda event: (event.when, event.source)))

    def publish(self, machine: Machine, *, dry_run: bool = False) -> Publication:
        """Create or replace the ConfigMap of the node that the machine is named after.

        NotFound if the node does not exist; ArenaError if its GPUs differ in number, or are shared.
        """
        from arena_topo.engines.kubernetes import topology_report  # noqa: PLC0415  its own command

        return topology_report.publish(self.api, machine, dry_run=dry_run)

    def follow(
        self, job: JobStatus, options: LogOptions, wanted: SourceFilter = lambda _: True
    ) -> Following:
        """The merged logs of the job's pods that `wanted` accepts, future pods included."""
        reads = self.watching(job.namespace)
        return reads.follow(job, options, wanted, close=reads.close)

    def watching(self, namespace: str) -> WatchedJobs:
        """The jobs of a namespace, each read again only after a change."""
        from arena_topo.engines.kubernetes import job_watch  # noqa: PLC0415  to wait, to read logs

        return job_watch.WatchedJobs(
            self,
            namespace,
            every=self.look_every,
            read_all=partial(self.jobs_read, namespace),
            completed=self.completed,
        )


def _hosts(pods: Iterable[Object]) -> list[str]:
    """The addresses of the nodes of some pods."""
    return [ip for pod in pods if (ip := kube_object(pod).status.host_ip)]
