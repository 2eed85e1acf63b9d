"""The objects of an API server as far as they are read: typed fields, and what an odd one lacks.

Pure. An API server keeps to the types; anything else that answers in its place may not. The one
exception are custom resources whose CRD checks little: one tenant's invalid object must not stop
others, so their readers check each (`object_error`) and skip the invalid ones.

The typed form is for reading alone. What is written back is the object as it came, with every
field that is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypedDict, TypeVar

import msgspec

from arena_topo.clusters.objects import fields_of, invalid_object_text
from arena_topo.errors import ArenaError, ClusterError
from arena_topo.escaping import brief


class MaybeWritten(ArenaError):
    """An unreadable answer: a write may have been applied, or not."""


class BadAnswer(MaybeWritten, ClusterError):
    """An answer is truncated or invalid."""


class _Part(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A part of an object: the fields that are read. An absent field is empty, as in Go."""


class _Named(_Part, frozen=True, gc=False):
    name: str = ""


class _Owner(_Named, frozen=True, gc=False):
    kind: str = ""
    uid: str = ""


class _TemplateMeta(_Part, frozen=True, gc=False):
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _Meta(_TemplateMeta, frozen=True, gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    owner_references: list[_Owner] = []
    creation_timestamp: Any = None
    deletion_timestamp: Any = None


class _Running(_Part, frozen=True, gc=False):
    started_at: Any = None


class _Waiting(_Part, frozen=True, gc=False):
    reason: str = ""
    message: str = ""


class Terminated(_Part, frozen=True, gc=False):
    """The end of a container."""

    exit_code: int | None = None
    signal: int = 0
    reason: str = ""
    message: str = ""
    started_at: Any = None
    finished_at: Any = None


class ContainerState(_Part, frozen=True, gc=False):
    """The state of a container: one of the three; `waiting` is empty if it does not wait."""

    running: _Running | None = None
    waiting: _Waiting = _Waiting()
    terminated: Terminated | None = None


class ContainerStatus(_Part, frozen=True, gc=False):
    """What the status of a pod says of a container."""

    name: str = ""
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    restart_count: int = 0
    ready: Any = None
    started: Any = None


class Condition(_Part, frozen=True, gc=False):
    """A condition of an object; all fields are empty if the object has none of its type."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: Any = None


class _Resources(_Part, frozen=True, gc=False):
    limits: dict[str, Any] = {}
    requests: dict[str, Any] = {}


class _Container(_Part, frozen=True, gc=False):
    name: str = ""
    image: str = ""
    env: list[_Named] = []
    resources: _Resources = _Resources()
    restart_policy: Any = None


class _MatchField(_Part, frozen=True, gc=False):
    key: str = ""
    values: list[str] = []


class _NodeTerm(_Part, frozen=True, gc=False):
    match_fields: list[_MatchField] = []


class _NodeTerms(_Part, frozen=True, gc=False):
    node_selector_terms: list[_NodeTerm] = []


class _NodeAffinity(_Part, frozen=True, gc=False):
    required: _NodeTerms = msgspec.field(
        default=_NodeTerms(), name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class _Affinity(_Part, frozen=True, gc=False):
    node_affinity: _NodeAffinity = _NodeAffinity()


class _Volume(_Part, frozen=True, gc=False):
    name: str = ""
    config_map: _Named = _Named()


class _PodClaim(_Part, frozen=True, gc=False):
    name: str = ""
    resource_claim_name: str = ""


class _SchedulingGroup(_Part, frozen=True, gc=False):
    pod_group_name: str = ""


class _PodSpec(_Part, frozen=True, gc=False):
    containers: list[_Container] = []
    init_containers: list[_Container] = []
    ephemeral_containers: list[_Container] = []
    node_name: str = ""
    priority_class_name: str = ""
    restart_policy: str = ""
    affinity: _Affinity = _Affinity()
    scheduling_gates: list[_Named] = []
    scheduling_group: _SchedulingGroup = _SchedulingGroup()
    resource_claims: list[_PodClaim] = []
    volumes: list[_Volume] = []


class _PodTemplate(_Part, frozen=True, gc=False):
    metadata: _TemplateMeta = _TemplateMeta()
    spec: _PodSpec = _PodSpec()


class _Replicas(_Part, frozen=True, gc=False):
    replicas: int = 0
    template: _PodTemplate = _PodTemplate()


class _ReplicaSpecs(msgspec.Struct, frozen=True, gc=False, rename="pascal"):
    launcher: _Replicas = _Replicas()
    worker: _Replicas = _Replicas()


class _Taint(_Part, frozen=True, gc=False):
    key: str = ""
    value: str = ""
    effect: str = ""


class ServicePort(_Part, frozen=True, gc=False):
    """A port of a service; 0 if it has none."""

    name: str = ""
    port: int = 0
    node_port: int = 0


class _ScopeTerm(_Part, frozen=True, gc=False):
    scope_name: str = ""
    operator: str = ""
    values: list[str] = []


class _ScopeSelector(_Part, frozen=True, gc=False):
    match_expressions: list[_ScopeTerm] = []


class _Spec(_PodSpec, frozen=True, gc=False):
    # Of an MPIJob of any version.
    mpi_replica_specs: _ReplicaSpecs = _ReplicaSpecs()
    replicas: int = 0
    template: _PodTemplate = _PodTemplate()
    run_policy: dict[str, Any] = {}
    # Of a volume claim, a node, a service, a DeviceClass.
    access_modes: list[str] = []
    storage_class_name: str = ""
    taints: list[_Taint] = []
    ports: list[ServicePort] = []
    extended_resource_name: str = ""
    # Of a quota.
    scopes: list[str] = []
    scope_selector: _ScopeSelector = _ScopeSelector()


class _Address(_Part, frozen=True, gc=False):
    ip: str = ""
    hostname: str = ""


class _LoadBalancer(_Part, frozen=True, gc=False):
    ingress: list[_Address] = []


class _User(_Part, frozen=True, gc=False):
    username: str = ""


class _ReplicaStatus(_Part, frozen=True, gc=False):
    active: int = 0


class _ReplicaStatuses(msgspec.Struct, frozen=True, gc=False, rename="pascal"):
    worker: _ReplicaStatus = _ReplicaStatus()


class _Status(_Part, frozen=True, gc=False):
    phase: str = ""
    reason: str = ""
    message: str = ""
    host_ip: str = msgspec.field(default="", name="hostIP")
    pod_ip: str = msgspec.field(default="", name="podIP")
    launcher_status: str = ""
    start_time: Any = None
    completion_time: Any = None
    replica_statuses: _ReplicaStatuses = _ReplicaStatuses()
    conditions: list[Condition] = []
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []
    ephemeral_container_statuses: list[ContainerStatus] = []
    # Of a Deployment, a service, a node, a quota.
    ready_replicas: int = 0
    load_balancer: _LoadBalancer = _LoadBalancer()
    capacity: dict[str, Any] = {}
    allocatable: dict[str, Any] = {}
    hard: dict[str, Any] = {}
    used: dict[str, Any] = {}
    # Of reviews.
    user_info: _User = _User()
    allowed: bool = False


class _Version(_Part, frozen=True, gc=False):
    version: str = ""


class KubeObject(_Part, frozen=True, gc=False):
    """The fields that are read of MPIJobs (all three versions), pods and all other kinds.

    One type for all, since items of a list do not name their kind; a field has the same type in all
    kinds.
    """

    api_version: str = ""
    kind: str = ""
    metadata: _Meta = _Meta()
    spec: _Spec = _Spec()
    status: _Status = _Status()
    # Of an event, a PriorityClass.
    involved_object: _Owner = _Owner()
    series: dict[str, Any] = {}
    type: str = ""
    reason: str = ""
    message: str = ""
    value: int = 0
    # Of what a server serves.
    resources: list[_Named] = []
    versions: list[_Version] = []
    preferred_version: _Version = _Version()


_POD_META = (
    *("name", "generateName", "namespace", "uid", "resourceVersion", "generation"),
    *("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"),
    *("labels", "annotations", "ownerReferences", "finalizers"),
)
_PodMeta = TypedDict("_PodMeta", dict.fromkeys(_POD_META, Any), total=False)  # type: ignore[misc]
_POD_KEYS = dict.fromkeys(("apiVersion", "kind", "spec", "status"), Any)
_Pod = TypedDict("_Pod", {**_POD_KEYS, "metadata": _PodMeta}, total=False)  # type: ignore[misc]


_Item = TypeVar("_Item")


class _List(msgspec.Struct, Generic[_Item]):
    kind: str
    items: list[_Item] | None
    """null is Go's empty list."""
    metadata: Any = None


ANY = msgspec.json.Decoder()

LIST = msgspec.json.Decoder(_List[msgspec.Raw])
"""A page of a list, whose objects are left as they came."""

POD = msgspec.json.Decoder(_Pod)
"""A pod without `managedFields`: more than half of what a pod decodes to."""

PODS = msgspec.json.Decoder(_List[_Pod])
"""A page of such pods."""


def kube_object(obj: Any) -> KubeObject:
    """The fields of an object; ValueError and RecursionError as `fields_of`."""
    return fields_of(obj, KubeObject)


# msgspec builds its tables at the first use, which two threads must not begin at once.
kube_object({})


def shape_error(obj: Any) -> str | None:
    """What is wrong with an answer that may lack a name, such as a review; None if nothing is."""
    try:
        kube_object(obj)
    except (ValueError, RecursionError) as error:
        return invalid_object_text(error)
    return None


def object_error(obj: Any) -> str | None:
    """What is wrong with an object: `status.conditions: expected a list, got a text`; else None.

    Only `metadata.name` is required.
    """
    meta = obj.get("metadata") if isinstance(obj, Mapping) else None
    if not isinstance(meta, Mapping) or not meta.get("name"):
        return "it has no name"
    return shape_error(obj)


def checked(obj: dict[str, Any]) -> dict[str, Any]:
    """The same object; BadAnswer if it has no name, or a field of another type."""
    error = object_error(obj)
    if error is not None:
        raise bad_answer(obj, error)
    return obj


def checked_job(obj: dict[str, Any], *, tried: bool = False) -> dict[str, Any]:
    """The same MPIJob as a server stores it; BadAnswer if a field is missing that each has.

    A job that was only `tried`, in a dry run, has no revision.
    """
    meta, spec = checked(obj)["metadata"], obj.get("spec")
    for key in ("namespace", "uid", *(() if tried else ("resourceVersion",))):
        if not meta.get(key):
            raise bad_answer(obj, f"there is no metadata.{key}")
    if spec is None:
        raise bad_answer(obj, "there is no spec")
    return obj


def bad_answer(obj: Any, why: str) -> BadAnswer:
    """The error for an object that makes no sense."""
    meta = obj.get("metadata") if isinstance(obj, Mapping) else None
    name = meta.get("name") if isinstance(meta, dict) else None
    return BadAnswer(
        f"the API server's answer about {brief(str(name or 'an object'), 253)} makes no sense",
        why=why,
        hint="look for a proxy in between, and compare with `kubectl get -o yaml`",
    )


def identity_only(obj: dict[str, Any]) -> dict[str, Any]:
    """An object with only the fields that are valid in every object."""
    fields = ("name", "namespace", "uid", "creationTimestamp")
    meta = obj["metadata"]
    return {"metadata": {key: meta[key] for key in fields if isinstance(meta.get(key), str)}}
