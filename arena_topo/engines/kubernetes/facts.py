"""The facts that explain one job of a cluster, as far as the caller may read them.

The MPIJob itself must be readable. Other objects that may not be read are listed in
`JobFacts.denied`, and reading goes on. Only relevant objects are requested: a running job needs no
queue, a finished job no quota. `look` reads which GPUs the workers have according to claims and
kubelets, and leaves out what may not be read: a comparison with a plan then finds fewer
differences, never wrong ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from arena_topo.clusters.queues import is_suspended, suspender
from arena_topo.engines import JobStatus, Phase
from arena_topo.engines.kubernetes.failures import API_PATH
from arena_topo.engines.kubernetes.job_writer import missing_config_maps
from arena_topo.engines.kubernetes.mpijob import (
    MPIJOB_GROUP,
    PLURAL,
    condition,
    events_filter,
    job_status,
    object_of_event,
    pinned_nodes,
    seconds,
)
from arena_topo.engines.kubernetes.queued import priority_values
from arena_topo.engines.kubernetes.shapes import kube_object, object_error
from arena_topo.engines.kubernetes.sources import published_slices
from arena_topo.errors import AccessDenied, ArenaError, NotFound, UnreadableTopology
from arena_topo.escaping import brief
from arena_topo.manifests import INCOMPLETE, STATE
from arena_topo.names import is_subdomain
from arena_topo.notes import Notes
from arena_topo.topology import GPUSet, documents, members, published

if TYPE_CHECKING:
    from arena_topo.clusters.records import ClaimRecord, DeviceId
    from arena_topo.engines.kubernetes.connection import Connection, Keep

Object = Mapping[str, Any]
_Read = TypeVar("_Read")

KUEUE_GROUP = "kueue.x-k8s.io"
JOB_UID = "kueue.x-k8s.io/job-uid"
"""Label of a Kueue Workload: the uid of its job."""

OPERATORS = ("mpi-operator", "training-operator")
"""Names of the Deployments that run MPIJobs, as their projects' manifests call them."""

OPERATOR_GRACE = 60.0
"""Seconds within which a live operator writes a status on a new job; it needs about one."""

MAX_NODES_READ = 32
"""The most nodes that are read one by one; a job on more nodes is judged by these."""


class Denied(msgspec.Struct, frozen=True, kw_only=True):
    """A read that failed; `why` is None if only the right is missing.

    An empty `namespace` means the whole cluster.
    """

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""
    why: str | None = None

    def __str__(self) -> str:
        where = f" in namespace {self.namespace}" if self.namespace else ""
        if self.why is not None:
            return f"cannot {self.verb} {self.resource}{where}: {self.why}"
        return f"not allowed to {self.verb} {self.resource}{where}"

    @property
    def rule(self) -> str:
        """The missing rule, as in a Role or ClusterRole."""
        return (
            f'{{apiGroups: ["{self.group}"], resources: ["{self.resource}"],'
            f' verbs: ["{self.verb}"]}}'
        )


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that explain a job, as of `now` (Unix seconds, the server's clock).

    None means not read or not readable; an empty tuple means that nothing exists. `jobs` are all
    MPIJobs that may be listed, in any state. `priorities` maps priority classes to their values,
    `operators` the Deployments of MPI operators to their ready pods. `nodes` has the relevant
    nodes, None for a node that does not exist. `missing` are the ConfigMaps that the job's pods
    mount and that do not exist; they are checked only if the submitter has not marked the job as
    complete.
    """

    status: JobStatus
    mpijob: Object
    now: float
    pods: tuple[Object, ...] = ()
    events: tuple[Object, ...] = ()
    quotas: tuple[Object, ...] | None = None
    workload: Object | None = None
    jobs: tuple[Object, ...] | None = None
    priorities: Mapping[str, int] = msgspec.field(default_factory=dict)
    operators: Mapping[str, int] | None = None
    nodes: Mapping[str, Object | None] = msgspec.field(default_factory=dict)
    missing: tuple[str, ...] = ()
    denied: tuple[Denied, ...] = ()


def read_facts(
    api: Connection, mpijob: Object, *, version: str, pods: Callable[[], Iterable[Object]]
) -> JobFacts:
    """Read the facts about a job; `pods` lists its pods. A failed request does not stop it."""
    meta = mpijob["metadata"]
    looks = _Looks(api, str(meta.get("namespace") or "default"))
    mine = tuple(looks.may(f"{looks.space}/pods", pods) or ())
    status, now = job_status(mpijob, mine), api.now()
    notes = meta.get("annotations") or {}
    alive, stopped = not status.phase.over, is_suspended(mpijob)
    created = seconds(meta.get("creationTimestamp")) or 0.0
    waiting = alive and status.phase is Phase.PENDING and notes.get(STATE) in {"waiting", "placed"}
    ignored = alive and not stopped and not mine and now - created > OPERATOR_GRACE
    doubtful = _doubtful(mine) if alive or status.phase is Phase.FAILED else []
    return JobFacts(
        status=status,
        mpijob=mpijob,
        now=now,
        pods=mine,
        events=_events(looks, mpijob, mine, created),
        quotas=looks.listed(f"{looks.space}/resourcequotas") if alive else None,
        workload=_workload(looks, meta) if alive and (stopped or suspender(mpijob)) else None,
        jobs=_jobs(looks, version) if waiting else None,
        priorities=_priorities(looks) if waiting else {},
        operators=_operators(looks) if ignored else None,
        nodes={name: looks.node(name) for name in doubtful[:MAX_NODES_READ]},
        missing=_missing(looks, mpijob) if alive and stopped and INCOMPLETE in notes else (),
        denied=tuple(dict.fromkeys(looks.denied)),
    )


class _Looks:
    """The requests around a job; forbidden and failed ones are noted and left out."""

    def __init__(self, api: Connection, namespace: str) -> None:
        self.api = api
        self.denied: list[Denied] = []
        self.namespace = namespace
        self.space = f"/api/v1/namespaces/{namespace}"

    def may(self, path: str, look: Callable[[], _Read], *, verb: str = "list") -> _Read | None:
        """The result of a request for a path; None if it is forbidden or fails."""
        why = None
        try:
            return look()
        except AccessDenied:
            pass
        except NotFound:
            # The cluster does not serve this kind.
            return None
        except ArenaError as error:
            why = error.message
        target = API_PATH.fullmatch(path)
        if target is None:
            raise ValueError(f"{path} names no kind of objects")
        resource, group, namespace = (
            target[key] or "" for key in ("resource", "group", "namespace")
        )
        self.denied.append(
            Denied(verb=verb, resource=resource, group=group, namespace=namespace, why=why)
        )
        return None

    def listed(
        self, path: str, keep: Keep | None = None, **query: Any
    ) -> tuple[Object, ...] | None:
        """A list; None if it is forbidden or fails."""
        objects = self.may(path, partial(self.api.collect, path, keep, **query))
        return None if objects is None else tuple(objects)

    def node(self, name: str) -> Object | None:
        """A node; None if it does not exist, an empty object if it may not be read."""
        if not is_subdomain(name):  # a tenant's text, which would make another path
            return None
        known, path = len(self.denied), f"/api/v1/nodes/{name}"
        node = self.may(path, partial(self.api.get, path), verb="get")
        return node if len(self.denied) == known else {}


def _events(
    looks: _Looks, mpijob: Object, pods: Iterable[Object], created: float
) -> tuple[Object, ...]:
    uids = {str(pod["metadata"].get("uid") or "") for pod in (mpijob, *pods)}
    mine = events_filter(str(mpijob["metadata"]["name"]), created, uids)

    def keep(event: dict[str, Any]) -> dict[str, Any] | None:
        return event if object_of_event(event).get("kind") == "ResourceQuota" else mine(event)

    return looks.listed(f"{looks.space}/events", keep) or ()


def _workload(looks: _Looks, meta: Object) -> Object | None:
    """Kueue's Workload of the job, the newest if there are several; None without one."""
    try:
        group = looks.api.get(f"/apis/{KUEUE_GROUP}")
    except ArenaError:
        return None
    version = kube_object(group).preferred_version.version or "v1beta2"
    path = f"/apis/{KUEUE_GROUP}/{version}/namespaces/{looks.namespace}/workloads"
    workloads = looks.listed(path, labelSelector=f"{JOB_UID}={meta.get('uid')}") or ()
    return max(
        workloads,
        key=lambda workload: str(workload["metadata"].get("creationTimestamp")),
        default=None,
    )


def _jobs(looks: _Looks, version: str) -> tuple[Object, ...] | None:
    """All MPIJobs, else those of the job's own namespace."""

    def keep(mpijob: dict[str, Any]) -> dict[str, Any] | None:
        odd = object_error(mpijob)
        if odd is None:
            return mpijob
        why = f"MPIJob {brief(str(mpijob['metadata'].get('name')), 253)} makes no sense: {odd}"
        looks.denied.append(Denied(verb="read", resource="mpijobs", group=MPIJOB_GROUP, why=why))
        return None

    root = f"/apis/{MPIJOB_GROUP}/{version}"
    mpijobs = looks.listed(f"{root}/{PLURAL}", keep, judged=True)
    if mpijobs is None:
        mpijobs = looks.listed(f"{root}/namespaces/{looks.namespace}/{PLURAL}", keep, judged=True)
    return mpijobs


def _priorities(looks: _Looks) -> dict[str, int]:
    classes = looks.listed("/apis/scheduling.k8s.io/v1/priorityclasses")
    return priority_values(classes or ())


def _operators(looks: _Looks) -> dict[str, int] | None:
    def keep(deployment: dict[str, Any]) -> dict[str, Any] | None:
        return deployment if deployment["metadata"].get("name") in OPERATORS else None

    deployments = looks.listed("/apis/apps/v1/deployments", keep)
    if deployments is None:
        return None
    return {
        f"{deployment.metadata.namespace}/{deployment.metadata.name}": (
            deployment.status.ready_replicas
        )
        for deployment in map(kube_object, deployments)
    }


def _missing(looks: _Looks, mpijob: Object) -> tuple[str, ...]:
    path = f"{looks.space}/configmaps"
    return looks.may(path, lambda: missing_config_maps(looks.api, mpijob), verb="get") or ()


def _doubtful(pods: Iterable[Object]) -> list[str]:
    """The nodes whose state may explain why a pod does not run there, or is about to end.

    Nodes of pods that are not ready come first.
    """
    names: dict[str, None] = {}
    for pod in sorted(pods, key=lambda pod: condition(pod, "Ready") == "True"):
        fields = kube_object(pod)
        if fields.status.phase != "Succeeded":
            bound = fields.spec.node_name
            names |= dict.fromkeys([bound] if bound else pinned_nodes(pod))
    return list(names)


# Which GPUs its workers were given


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs (indexes) of a node that a pod has (`who`: `NAMESPACE/POD`)."""

    who: str
    node: str
    gpus: tuple[int, ...]


class Sightings(msgspec.Struct, frozen=True, kw_only=True):
    """Observed allocations: GPUs by claim, for pods of the job, and by kubelet, for all pods.

    `kubelets` are the allocations of the kubelets of the job's nodes, as their agents reported them
    at `observed_at` (Unix seconds, by node).
    """

    claims: tuple[Given, ...] = ()
    kubelets: tuple[Given, ...] = ()
    observed_at: Mapping[str, float] = msgspec.field(default_factory=dict)


def read_allocations(api: Connection, status: JobStatus) -> Sightings:
    """The allocations by claims and kubelets on the nodes of a job's plan."""
    forecast = status.forecast
    if forecast is None or not forecast.workers:
        return Sightings()
    nodes = list(dict.fromkeys(node for _, node, _ in forecast.workers))[:MAX_NODES_READ]
    claims: tuple[Given, ...] = ()
    if forecast.binding == "claims":
        with contextlib.suppress(ArenaError):
            claims = tuple(_claims(api, status, nodes))
    kubelets, times = _kubelets(api, nodes)
    return Sightings(claims=claims, kubelets=tuple(kubelets), observed_at=times)


def _claims(api: Connection, status: JobStatus, nodes: Iterable[str]) -> Iterable[Given]:
    from arena_topo.clusters import slices  # noqa: PLC0415  only of jobs that claim their GPUs
    from arena_topo.clusters.records import ClaimRecord, page_reader  # noqa: PLC0415  the same

    for version in slices.VERSIONS:
        path = f"/apis/{slices.DRA_GROUP}/{version}/namespaces/{status.namespace}/resourceclaims"
        with contextlib.suppress(NotFound):
            claims = api.records(path, page_reader("ResourceClaim"))
            slice_records = [
                slice_record for node in nodes for slice_record in published_slices(api, node)
            ]
            places = slices.devices(slice_records, {}, {}, Notes()).places
            return _given(
                [claim for claim in claims if isinstance(claim, ClaimRecord)], places, status
            )
    return ()


def _given(
    claims: Iterable[ClaimRecord], places: Mapping[DeviceId, tuple[str, GPUSet]], status: JobStatus
) -> list[Given]:
    pods = {instance.name for instance in status.instances}
    givens: list[Given] = []
    for claim in claims:
        gpus: dict[str, set[int]] = {}
        for node, indexes in (places[device] for device in claim.devices if device in places):
            gpus.setdefault(node, set()).update(members(indexes))
        givens += [
            Given(who=f"{status.namespace}/{user}", node=node, gpus=tuple(sorted(indexes)))
            for user in dict.fromkeys(claim.users)
            if user in pods
            for node, indexes in gpus.items()
        ]
    return givens


def _kubelets(api: Connection, nodes: Iterable[str]) -> tuple[list[Given], dict[str, float]]:
    """The kubelets' allocations on these nodes, from the reports of the agents."""
    wanted = list(nodes)
    givens: list[Given] = []
    times: dict[str, float] = {}
    path = f"/api/v1/namespaces/{published.OWN_NAMESPACE}/configmaps"
    selector = f"{published.NODE_LABEL} in ({','.join(wanted)})"
    try:
        maps = api.collect(path, labelSelector=selector)
    except ArenaError:
        return [], {}
    for config_map in maps:
        node = kube_object(config_map).metadata.labels.get(published.NODE_LABEL, "")
        try:
            allocations = documents.allocations(config_map)
        except UnreadableTopology:
            continue
        if allocations is None or node not in wanted:
            continue
        times[node] = allocations.observed_at
        givens += [
            Given(who=who, node=node, gpus=tuple(members(gpus)))
            for who, gpus in allocations.gpus.items()
        ]
    return givens, times
