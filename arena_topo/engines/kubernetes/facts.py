"""All that explains one job of a cluster, read as far as the caller may read it.

The MPIJob itself must be readable. Whatever else is not is named in `Facts.denied`, and the rest
is read all the same. Only what can matter is asked for: a job that runs needs no queue, one that
has ended no quota. `look` reads what claims and kubelets say of the GPUs of its workers; what may
not be read is left out there: whoever compares it with a plan finds fewer differences, never wrong
ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from arena_topo.clusters.queues import suspended, suspender
from arena_topo.engines import JobStatus, Phase
from arena_topo.engines.kubernetes.mpijob import (
    GROUP,
    PLURAL,
    is_about,
    job_status,
    pinned_nodes,
    seconds,
    subject,
)
from arena_topo.engines.kubernetes.shapes import oddity
from arena_topo.errors import AccessDenied, ArenaError, NotFound, UnreadableTopology
from arena_topo.escaping import brief
from arena_topo.manifests import INCOMPLETE, STATE
from arena_topo.manifests.volumes import config_maps
from arena_topo.topology import GPUSet, configmap, members, published

if TYPE_CHECKING:
    from arena_topo.clusters.records import ClaimRecord, Device
    from arena_topo.engines.kubernetes.connection import Connection, Keep

Object = Mapping[str, Any]
_Read = TypeVar("_Read")

KUEUE = "kueue.x-k8s.io"
JOB_UID = "kueue.x-k8s.io/job-uid"
"""Label of a Kueue Workload: the uid of the job that it stands for."""

OPERATORS = ("mpi-operator", "training-operator")
"""Names of the Deployments that run MPIJobs, as their projects' manifests call them."""

PATIENCE = 60.0
"""Seconds in which a live operator has written something on a new job; it needs about one."""

MOST_NODES = 32
"""Nodes that are looked at one by one; a job on more of them is judged by these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied:
    """What could not be read; `why` is None where only the right is missing.

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
        """The rule to ask for, as it stands in a Role or ClusterRole."""
        return (
            f'{{apiGroups: ["{self.group}"], resources: ["{self.resource}"],'
            f' verbs: ["{self.verb}"]}}'
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that explains a job, as it was at `now` (Unix seconds, the server's clock).

    None means that it was not read, or could not be; an empty tuple that there is nothing.
    `jobs` are all MPIJobs that may be listed, in any state. `priorities` maps priority classes to
    their values, `operators` the Deployments of MPI operators to their ready pods. `nodes` holds
    the nodes that matter, None for one that does not exist.
    `missing` are the ConfigMaps that its pods mount and that are not there, looked for only where
    whoever submitted the job has not said that all of them are.
    """

    status: JobStatus
    mpijob: Object
    now: float
    pods: tuple[Object, ...] = ()
    events: tuple[Object, ...] = ()
    quotas: tuple[Object, ...] | None = None
    workload: Object | None = None
    jobs: tuple[Object, ...] | None = None
    priorities: Mapping[str, int] = field(default_factory=dict)
    operators: Mapping[str, int] | None = None
    nodes: Mapping[str, Object | None] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    denied: tuple[Denied, ...] = ()


def read(
    api: Connection, mpijob: Object, *, version: str, pods: Callable[[], Iterable[Object]]
) -> Facts:
    """Read what explains a job; `pods` lists the job's own. Nothing but Ctrl-C stops it."""
    return _Reader(api, mpijob, version).read(pods)


class _Reader:
    """One look at the world around a job; what may not be seen is noted and left out."""

    def __init__(self, api: Connection, mpijob: Object, version: str) -> None:
        self._api = api
        self._mpijob = mpijob
        self._version = version
        meta = mpijob["metadata"]
        self._name = str(meta["name"])
        self._namespace = str(meta.get("namespace") or "default")
        self._denied: list[Denied] = []

    def read(self, pods: Callable[[], Iterable[Object]]) -> Facts:
        mine = tuple(self._may("list", "pods", lambda: list(pods())) or ())
        status = job_status(self._mpijob, mine)
        found = _Found(self._mpijob, mine, status, self._api.now())
        return Facts(
            status=status,
            mpijob=self._mpijob,
            now=found.now,
            pods=mine,
            events=self._events(mine),
            quotas=self._quotas() if not status.phase.over else None,
            workload=self._workload() if found.queued else None,
            jobs=self._jobs() if found.waiting else None,
            priorities=self._priorities() if found.waiting else {},
            operators=self._operators() if found.ignored else None,
            nodes={name: self._node(name) for name in found.doubtful[:MOST_NODES]},
            missing=tuple(self._missing()) if found.incomplete else (),
            denied=tuple(dict.fromkeys(self._denied)),
        )

    def _may(
        self,
        verb: str,
        resource: str,
        look: Callable[[], _Read],
        *,
        group: str = "",
        everywhere: bool = False,
    ) -> _Read | None:
        """What a look returns; None where it is not allowed, or fails."""
        why = None
        try:
            return look()
        except AccessDenied:
            pass
        except NotFound:
            # The cluster has no such kind of thing.
            return None
        except ArenaError as error:
            why = error.message
        self._denied.append(
            Denied(
                verb=verb,
                resource=resource,
                group=group,
                namespace="" if everywhere else self._namespace,
                why=why,
            )
        )
        return None

    def _listed(
        self,
        resource: str,
        path: str,
        keep: Keep | None = None,
        *,
        group: str = "",
        everywhere: bool = False,
        **query: Any,
    ) -> tuple[Object, ...] | None:
        """A list; None where it is not allowed, or fails."""
        look = partial(self._api.collect, path, keep, **query)
        found = self._may("list", resource, look, group=group, everywhere=everywhere)
        return None if found is None else tuple(found)

    def _events(self, pods: Iterable[Object]) -> tuple[Object, ...]:
        meta = self._mpijob["metadata"]
        uids = {str(one["metadata"].get("uid") or "") for one in (self._mpijob, *pods)}
        created = seconds(meta.get("creationTimestamp")) or 0.0

        def keep(one: dict[str, Any]) -> dict[str, Any] | None:
            if is_about(one, name=self._name, created=created, uids=uids):
                return one
            return one if subject(one).get("kind") == "ResourceQuota" else None

        return self._listed("events", f"/api/v1/namespaces/{self._namespace}/events", keep) or ()

    def _quotas(self) -> tuple[Object, ...] | None:
        path = f"/api/v1/namespaces/{self._namespace}/resourcequotas"
        return self._listed("resourcequotas", path)

    def _workload(self) -> Object | None:
        """Kueue's stand-in for the job: the newest, if there is one."""
        try:
            group = self._api.get(f"/apis/{KUEUE}")
        except ArenaError:
            return None
        version = (group.get("preferredVersion") or {}).get("version") or "v1beta2"
        path = f"/apis/{KUEUE}/{version}/namespaces/{self._namespace}/workloads"
        selector = f"{JOB_UID}={self._mpijob['metadata'].get('uid')}"
        found = self._listed("workloads", path, group=KUEUE, labelSelector=selector)
        return max(
            found or (),
            key=lambda one: str(one["metadata"].get("creationTimestamp")),
            default=None,
        )

    def _jobs(self) -> tuple[Object, ...] | None:
        """All MPIJobs, else those of the job's own namespace."""
        root = f"/apis/{GROUP}/{self._version}"
        own = f"{root}/namespaces/{self._namespace}/{PLURAL}"
        for path, everywhere in ((f"{root}/{PLURAL}", True), (own, False)):
            found = self._listed(
                PLURAL, path, self._sensible, group=GROUP, everywhere=everywhere, judged=True
            )
            if found is not None:
                return found
        return None

    def _sensible(self, one: dict[str, Any]) -> dict[str, Any] | None:
        """An MPIJob of anybody; None, and said so, where it makes no sense."""
        odd = oddity(one)
        if odd is None:
            return one
        why = f"MPIJob {brief(str(one['metadata'].get('name')), 253)} makes no sense: {odd}"
        self._denied.append(Denied(verb="read", resource="mpijobs", group=GROUP, why=why))
        return None

    def _priorities(self) -> dict[str, int]:
        group = "scheduling.k8s.io"
        path = f"/apis/{group}/v1/priorityclasses"
        found = self._listed("priorityclasses", path, group=group, everywhere=True)
        return {str(one["metadata"]["name"]): int(one.get("value") or 0) for one in found or ()}

    def _operators(self) -> dict[str, int] | None:
        def keep(one: dict[str, Any]) -> dict[str, Any] | None:
            return one if one["metadata"].get("name") in OPERATORS else None

        path = "/apis/apps/v1/deployments"
        found = self._listed("deployments", path, keep, group="apps", everywhere=True)
        if found is None:
            return None
        return {
            f"{one['metadata'].get('namespace')}/{one['metadata']['name']}": int(
                (one.get("status") or {}).get("readyReplicas") or 0
            )
            for one in found
        }

    def _node(self, name: str) -> Object | None:
        try:
            return self._api.get(f"/api/v1/nodes/{name}")
        except NotFound:
            return None
        except AccessDenied:
            self._denied.append(Denied(verb="get", resource="nodes"))
        except ArenaError as error:
            self._denied.append(Denied(verb="get", resource="nodes", why=error.message))
        # Not known is not gone.
        return {}

    def _missing(self) -> Iterator[str]:
        root = f"/api/v1/namespaces/{self._namespace}/configmaps"
        for name in config_maps(dict(self._mpijob)):
            if self._may("get", "configmaps", partial(self._lacks, f"{root}/{name}")):
                yield name

    def _lacks(self, path: str) -> bool:
        try:
            self._api.get(path)
        except NotFound:
            return True
        return False


class _Found:
    """What the job and its pods alone tell about what else to look at."""

    def __init__(
        self, mpijob: Object, pods: tuple[Object, ...], status: JobStatus, now: float
    ) -> None:
        meta = mpijob["metadata"]
        notes = meta.get("annotations") or {}
        stopped = suspended(mpijob)
        alive = not status.phase.over
        self.now = now
        self.queued = alive and (stopped or suspender(mpijob) is not None)
        stuck = status.phase is Phase.PENDING
        self.waiting = alive and (notes.get(STATE) in {"waiting", "placed"} and stuck)
        self.incomplete = alive and stopped and INCOMPLETE in notes
        created = seconds(meta.get("creationTimestamp")) or 0.0
        self.ignored = alive and not stopped and not pods and self.now - created > PATIENCE
        self.doubtful = _doubtful(pods) if alive or status.phase is Phase.FAILED else []


def _doubtful(pods: Iterable[Object]) -> list[str]:
    """The nodes whose state may explain why a pod does not run there, or not for long.

    Those of pods that are not ready come first.
    """
    names: dict[str, None] = {}
    for pod in sorted(pods, key=lambda one: _ready(one.get("status") or {})):
        spec, status = pod.get("spec") or {}, pod.get("status") or {}
        if status.get("phase") == "Succeeded":
            continue
        bound = spec.get("nodeName")
        names |= dict.fromkeys([str(bound)] if bound else pinned_nodes(pod))
    return list(names)


def _ready(status: Object) -> bool:
    return any(
        one.get("type") == "Ready" and one.get("status") == "True"
        for one in status.get("conditions") or ()
    )


# Which GPUs its workers were given


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """GPUs (indexes) of a node that somebody has, `who` being `NAMESPACE/POD`."""

    who: str
    node: str
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sightings:
    """What was found: GPUs by claim, for pods of the job, and by kubelet, for all pods.

    `kubelets` names what the kubelets of the job's nodes have given out, as their agents saw it at
    `observed_at` (Unix seconds, by node).
    """

    claims: tuple[Given, ...] = ()
    kubelets: tuple[Given, ...] = ()
    observed_at: Mapping[str, float] = field(default_factory=dict)


def look(api: Connection, status: JobStatus) -> Sightings:
    """What claims and kubelets say of the nodes that a job was planned on."""
    forecast = status.forecast
    if forecast is None or not forecast.workers:
        return Sightings()
    nodes = list(dict.fromkeys(node for _, node, _ in forecast.workers))[:MOST_NODES]
    claims: tuple[Given, ...] = ()
    if forecast.binding == "claims":
        with contextlib.suppress(ArenaError):
            claims = tuple(_claims(api, status, nodes))
    kubelets, times = _kubelets(api, nodes)
    return Sightings(claims=claims, kubelets=tuple(kubelets), observed_at=times)


def _claims(api: Connection, status: JobStatus, nodes: Iterable[str]) -> Iterable[Given]:
    from arena_topo.clusters import slices  # noqa: PLC0415  only of jobs that claim their GPUs
    from arena_topo.clusters.records import (  # noqa: PLC0415  the same
        ClaimRecord,
        SliceRecord,
        pages,
    )

    for version in slices.VERSIONS:
        root = f"/apis/{slices.GROUP}/{version}"
        path = f"{root}/namespaces/{status.namespace}/resourceclaims"
        try:
            claims = api.records(path, pages("ResourceClaim"))
        except NotFound:
            continue
        told = [
            one
            for node in nodes
            for one in api.records(
                f"{root}/resourceslices",
                pages("ResourceSlice"),
                fieldSelector=f"spec.nodeName={node}",
            )
            if isinstance(one, SliceRecord)
        ]
        places = slices.devices(told, {}, {}, []).places
        return _given([one for one in claims if isinstance(one, ClaimRecord)], places, status)
    return ()


def _given(
    claims: Iterable[ClaimRecord], places: Mapping[Device, tuple[str, GPUSet]], status: JobStatus
) -> list[Given]:
    pods = {one.name for one in status.instances}
    found: list[Given] = []
    for claim in claims:
        gpus: dict[str, set[int]] = {}
        for node, indexes in (places[one] for one in claim.devices if one in places):
            gpus.setdefault(node, set()).update(members(indexes))
        found += [
            Given(who=f"{status.namespace}/{user}", node=node, gpus=tuple(sorted(held)))
            for user in dict.fromkeys(claim.users)
            if user in pods
            for node, held in gpus.items()
        ]
    return found


def _kubelets(api: Connection, nodes: Iterable[str]) -> tuple[list[Given], dict[str, float]]:
    """What agents have written of the kubelets of these nodes."""
    wanted = list(nodes)
    found: list[Given] = []
    times: dict[str, float] = {}
    path = f"/api/v1/namespaces/{published.OWN_NAMESPACE}/configmaps"
    selector = f"{published.NODE_LABEL} in ({','.join(wanted)})"
    try:
        maps = api.collect(path, labelSelector=selector)
    except ArenaError:
        return [], {}
    for one in maps:
        node = str((one["metadata"].get("labels") or {}).get(published.NODE_LABEL))
        try:
            held = configmap.allocations(one)
        except UnreadableTopology:
            continue
        if held is None or node not in wanted:
            continue
        times[node] = held.observed_at
        found += [
            Given(who=who, node=node, gpus=tuple(members(gpus))) for who, gpus in held.gpus.items()
        ]
    return found, times
