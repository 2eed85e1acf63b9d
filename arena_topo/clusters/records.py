"""Kubernetes objects -> records: the few hundred bytes of each that are read, checked once.

An object comes as raw JSON, from pages and dumps, or as plain values. Decoding checks its types; an
object that does not fit becomes an `Unread`, with the path of the error.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import msgspec

from arena_topo.clusters.objects import (
    Object,
    fields_of,
    items,
    mapping_at,
    null_error,
    without_nulls,
)
from arena_topo.clusters.queues import is_suspended, suspender
from arena_topo.clusters.rules import (
    OVER,
    REQUIRED,
    gpu_count,
    job_over,
    parse_quantity,
    pod_request,
    time_limit,
    worker_pod_template,
    worker_replicas,
)
from arena_topo.escaping import brief
from arena_topo.manifests import (
    FORECAST,
    FORMAT_ANNOTATION,
    GATE,
    GPU_GROUP,
    GPU_VISIBLE,
    GUARANTEE,
    MAP,
    RESERVED_ANNOTATION,
    STATE,
    reserves,
)
from arena_topo.manifests.annotations import last_stop, parse_map, recorded_request
from arena_topo.names import is_subdomain
from arena_topo.notes import Note
from arena_topo.topology import Taint, published
from arena_topo.topology.decoding import decoding_error
from arena_topo.topology.fabric import Level, levels_of
from arena_topo.topology.nics import is_rdma

KUEUE_GROUP = "kueue.x-k8s.io"
"""The API group of the `Topology` that describes the network."""

DRA = "resource.k8s.io"
"""The API group of ResourceSlices and ResourceClaims."""

MEMORY_GIVEN = "scheduler.framework.gpushare.allocation"
CORE_GIVEN = "gpushare.alibabacloud.com/core-percentage"
MEMORY_INDEX = "ALIYUN_COM_GPU_MEM_IDX"
"""ACK's annotations about a pod's share of a GPU: JSON by container, and an index."""

ACK_ALLOCATION = "gputopology.alibabacloud.com/allocation"
"""JSON of the ACK scheduler: `{"allocatedGPUs": {"0": ["0", "3"]}, ...}`, by container index
(koordinator, pkg/scheduler/plugins/ack/gputopology)."""

GPU_PREFIXES = ("nvidia.com/", "aliyun.com/")

NOT_AVAILABLE = "N/A"

DeviceId = tuple[str, str, str]
"""The identity of a device in a cluster: its driver, its pool, its name in the pool."""

Workers = tuple[tuple[int, str, tuple[int, ...]], ...]
"""Places of workers: index, node, GPUs."""

_ANNOTATIONS = frozenset(
    {
        *(GPU_GROUP, GPU_VISIBLE, ACK_ALLOCATION, GUARANTEE, FORMAT_ANNOTATION),
        *(MEMORY_GIVEN, CORE_GIVEN, MEMORY_INDEX),
    }
)
"""The annotations of pods that are read."""

_BARRING = frozenset({"NoSchedule", "NoExecute"})
"""Effects of a device taint that exclude the device from allocation by the scheduler."""

_STANDARD = "resource.kubernetes.io"
"""The domain of attributes that all drivers share (k8s.io/dynamic-resource-allocation,
deviceattribute)."""

_GROUPS = {
    "MPIJob": "kubeflow.org",
    "Topology": KUEUE_GROUP,
    "ResourceSlice": DRA,
    "ResourceClaim": DRA,
}
"""The API group of each kind outside the core group; Longhorn, for one, has a `Node` too."""


# ---------------------------------------------------------------- the records


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One object of a cluster."""

    kind: ClassVar[str]

    name: str
    namespace: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """The namespace and the name."""
        return self.namespace, self.name

    @property
    def path(self) -> str:
        """The namespace and the name as a text."""
        return f"{self.namespace}/{self.name}"


class NodeRecord(Record, frozen=True, kw_only=True, gc=False):
    """A node.

    `ready` is the status of its condition Ready, None without one. `allocatable` and `capacity` are
    the quantities of the resources that are read: CPU, memory, GPUs and RDMA. `evicting` are its
    NoExecute taints, each with the time since which it holds (Unix seconds), if that is known.
    """

    kind: ClassVar[str] = "Node"

    labels: dict[str, str]
    taints: tuple[Taint, ...] = ()
    evicting: tuple[tuple[Taint, float | None], ...] = ()
    unschedulable: bool = False
    ready: str | None = None
    allocatable: dict[str, float] | None = None
    capacity: dict[str, float] | None = None
    address: str = NOT_AVAILABLE

    @property
    def offers(self) -> dict[str, float]:
        """The resources that pods may have."""
        return (self.capacity or {}) if self.allocatable is None else self.allocatable


class PodRecord(Record, frozen=True, kw_only=True, gc=False):
    """A pod: its node, and what it uses there.

    `node` is also the node that one of our pods is only `promised`. `gpus` is how many GPUs it
    requests; None for an invalid quantity, which `notes` report. `claims` are the names of its
    ResourceClaims, an empty name for an unknown one; `extended` is the claim that the scheduler
    made for its extended resource. `started` (Unix seconds) is when its kubelet accepted it,
    `deleted` (RFC 3339) when its deletion was requested. `asks` is the sum of its limits of each
    GPU resource. `status` is kubectl's word for its status, if the reader asked for it.
    """

    kind: ClassVar[str] = "Pod"

    node: str | None = None
    promised: bool = False
    over: bool = False
    deleted: str | None = None
    annotations: dict[str, str]
    gpus: int | None = 0
    cpu: float = 0.0
    memory: float = 0.0
    claims: tuple[str, ...] = ()
    extended: str | None = None
    started: float | None = None
    asks: dict[str, float] = {}
    status: str = ""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"pod {self.path}"

    @property
    def ours(self) -> bool:
        """Whether arena-topo placed it."""
        return FORMAT_ANNOTATION in self.annotations


class JobRecord(Record, frozen=True, kw_only=True, gc=False):
    """An MPIJob, and the placement recorded on it, as far as it counts.

    `workers` are tuples of index, node and GPUs; a worker holds at most `each` GPUs. Unless the
    GPUs are `exact`, the kubelet picks them. `reserved` are those that wait for its next start,
    beyond the GPUs of `workers`, each with `cpu` (cores) and `memory` (bytes), `since` (Unix
    seconds) its stop; None if that is not known. `waits`: it is in the queue of arena-topo, without
    a placement. `timeout` is the limit of its running time in seconds.
    """

    kind: ClassVar[str] = "MPIJob"

    workers: Workers = ()
    reserved: Workers = ()
    since: float | None = None
    cpu: float = 0.0
    memory: int = 0
    each: int = 0
    exact: bool = True
    suspended: bool = False
    waits: bool = False
    timeout: float | None = None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"MPIJob {self.path}"


class ConfigMapRecord(Record, frozen=True, kw_only=True, gc=False):
    """A ConfigMap; `data` is empty if it does not describe a machine, or is not trusted."""

    kind: ClassVar[str] = "ConfigMap"

    labels: dict[str, str]
    annotations: dict[str, str]
    data: dict[str, str]
    believed: bool

    def __str__(self) -> str:
        return f"configmap {self.path}"

    def plain(self) -> Object:
        """The object in the form that the readers of `topology` take."""
        meta = {"name": self.name, "namespace": self.namespace}
        return {
            "metadata": {**meta, "labels": self.labels, "annotations": self.annotations},
            "data": self.data,
        }


class TopologyRecord(Record, frozen=True, kw_only=True, gc=False):
    """A Kueue topology: its levels, coarse to near."""

    kind: ClassVar[str] = "Topology"

    levels: tuple[Level, ...]


class Gpu(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A whole GPU, or a part of one, as a ResourceSlice describes it."""

    name: str
    pool: str
    tainted: bool
    shared: bool
    type: str | None = None
    uuid: str | None = None
    product: str | None = None
    profile: str | None = None
    bus: str | None = None
    clique: str | None = None
    parent: str | None = None
    index: int | None = None
    numa: int | None = None

    @property
    def whole(self) -> bool:
        """Whether a pod can have it as a whole GPU."""
        return self.uuid is not None and self.type in {None, "gpu"}


class SliceRecord(Record, frozen=True, kw_only=True, gc=False):
    """A ResourceSlice: the GPUs in it, one of `slices` of a generation of its pool."""

    kind: ClassVar[str] = "ResourceSlice"

    driver: str
    node: str | None
    pool: str
    generation: int
    slices: int
    gpus: tuple[Gpu, ...]


class ClaimRecord(Record, frozen=True, kw_only=True, gc=False):
    """A ResourceClaim: its devices, without those of admin access, and the pods that use it.

    `ours`: it belongs to an MPIJob, or arena-topo created it; see `belongs`.
    """

    kind: ClassVar[str] = "ResourceClaim"

    ours: bool
    users: tuple[str, ...]
    devices: tuple[DeviceId, ...]

    def belongs(self, pods: Collection[tuple[str, str]]) -> bool:
        """Whether the claim is of a job of arena-topo, which placed these pods (namespace, name).

        That is the claim of a job, or a claim that only pods of jobs use.
        """
        users = [(self.namespace, name) for name in self.users]
        return self.ours or (bool(users) and all(user in pods for user in users))


class Unread(msgspec.Struct, frozen=True, kw_only=True):
    """An object that does not fit its type: the reason, and the path of the invalid value."""

    kind: ClassVar[str] = ""

    expected: str
    name: str
    path: str
    reason: str

    @property
    def note(self) -> Note:
        """The note that this object does not count."""
        return self.noted(f"{self.expected} {self.name or 'without a name'} is ignored: {self.why}")

    @property
    def why(self) -> str:
        """The path and the reason in one text."""
        return ": ".join(filter(None, (self.path, self.reason)))

    def noted(self, text: str) -> Note:
        """A note of this text about the object and its fault."""
        # All entries of a list are one fault.
        fault = self.path.partition("[")[0] or self.reason
        return Note(self.name or "without a name", f"{self.expected} {fault}", text)


# ---------------------------------------------------------------- decoding


StatusOf = Callable[[Object], str]
"""kubectl's word for the status of a pod."""


def read_record(
    kind: str,
    item: Object | msgspec.Raw | _Foreign,
    *,
    status_of: StatusOf | None = None,
) -> Record | Unread:
    """The record of an object of one of `RECORD_KINDS`; KeyError for another kind.

    An invalid pod on a node becomes the record of a pod that may hold every GPU there. `status_of`
    is called for pods that may hold GPUs.
    """
    _, make = RECORD_KINDS[kind]
    data: Any = item
    try:
        if isinstance(item, Mapping):
            data = msgspec.Raw(msgspec.json.encode(item))
        made = make(_decoded(kind, data) if isinstance(data, msgspec.Raw) else data)
    except RecursionError:
        return Unread(expected=kind, name=_name(data), path="", reason="it is nested too deeply")
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        path, reason = decoding_error(error)
        unread = Unread(expected=kind, name=_name(data), path=path, reason=reason)
        return unread if kind != "Pod" else _invalid_pod(data, unread)
    if status_of is None or not isinstance(made, PodRecord) or not (made.asks or made.claims):
        return made
    try:
        status = status_of(msgspec.json.decode(data))
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        status = "Unknown"
    return msgspec.structs.replace(made, status=status)


def _decoded(kind: str, data: msgspec.Raw) -> Any:
    """The fields of an object; as in Go a field that is null is absent."""
    try:
        return _DECODERS[kind].decode(data)
    except msgspec.ValidationError as first:
        plain = without_nulls(msgspec.json.decode(data))
        try:
            return _DECODERS[kind].decode(msgspec.json.encode(plain))
        except msgspec.ValidationError as second:
            raise null_error(first, second) from None


def known_kind(kind: object, version: object) -> str | None:
    """The kind if it is read; other API groups have kinds of the same names."""
    if not isinstance(kind, str) or kind not in RECORD_KINDS:
        return None
    # Items of a bare list may lack their version. That of the core group is `v1` alone.
    known = version is None or str(version).rpartition("/")[0] == _GROUPS.get(kind, "")
    return kind if known else None


_Item = TypeVar("_Item")


class _Page(msgspec.Struct, Generic[_Item]):
    kind: str
    items: list[_Item] | None
    metadata: dict[str, Any] | None = None


PageReader = Callable[[bytes], Mapping[str, Any] | None]
"""A function from a page of a list to its records (`items`) and `metadata`; None if it is no
list."""


def page_reader(kind: str, *, status_of: StatusOf | None = None) -> PageReader:
    """The page reader for lists of one of `RECORD_KINDS`."""
    # Whole pages are decoded at once; if that fails, item by item, so that one invalid object does
    # not hide the others.
    forms = [msgspec.Raw] if status_of or kind == "MPIJob" else [RECORD_KINDS[kind][0], msgspec.Raw]
    decoders = [msgspec.json.Decoder(_Page[form]) for form in forms]  # type: ignore[valid-type]

    def read_page(data: bytes) -> Mapping[str, Any] | None:
        for decoder in decoders:
            with suppress(ValueError, RecursionError):
                page = decoder.decode(data)
                if not page.kind.endswith("List"):
                    return None
                items = [read_record(kind, item, status_of=status_of) for item in page.items or ()]
                return {"items": items, "metadata": page.metadata}
        return None

    return read_page


def _invalid_pod(raw: msgspec.Raw | _Foreign, unread: Unread) -> PodRecord | Unread:
    """The record of a pod that does not fit its type, if its node is known and it is not over."""
    try:
        pod = msgspec.json.decode(raw if isinstance(raw, msgspec.Raw) else msgspec.json.encode(raw))
        node = mapping_at(pod, "spec").get("nodeName")
    except (AttributeError, RecursionError, TypeError, ValueError):
        return unread
    with suppress(TypeError):
        if mapping_at(pod, "status").get("phase") in OVER:
            return unread
    if not isinstance(node, str) or not node:
        return unread
    note = unread.noted(
        f"Pod {unread.name or 'without a name'} cannot be read: {unread.why};"
        f" every GPU of node {brief(node, 63)} counts as in use"
    )
    return PodRecord(name=unread.name, node=node, gpus=None, annotations={}, notes=(note,))


class _Named(msgspec.Struct):
    metadata: dict[str, Any] = {}


_NAMED = msgspec.json.Decoder(_Named)


def _name(item: msgspec.Raw | _Foreign | Object) -> str:
    """The name of an object, which may be no object at all, on one line; empty without a name."""
    name = getattr(getattr(item, "metadata", None), "name", None)
    if isinstance(item, msgspec.Raw):
        with suppress(ValueError, RecursionError):
            name = _NAMED.decode(item).metadata.get("name")
    return "" if name is None else brief(name if isinstance(name, str) else repr(name), 63)


# ---------------------------------------------------------------- objects as the server sends them


class _Foreign(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A part of an object: the fields that are read; see `fields_of`."""


class _Owner(_Foreign, frozen=True, gc=False):
    kind: str = ""
    name: str = ""


class _Meta(_Foreign, frozen=True, gc=False):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    namespace: str = ""
    annotations: dict[str, str] = {}
    deletion_timestamp: str | None = None


class _FullMeta(_Meta, frozen=True, gc=False):
    labels: dict[str, str] = {}
    owner_references: list[_Owner] = []


class _Taint(_Foreign, frozen=True, gc=False):
    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class _NodeSpec(_Foreign, frozen=True, gc=False):
    unschedulable: bool = False
    taints: list[_Taint] = []


class _Condition(_Foreign, frozen=True, gc=False):
    type: str = ""
    status: str = ""


class _Address(_Foreign, frozen=True, gc=False):
    address: str = ""


class _NodeStatus(_Foreign, frozen=True, gc=False):
    allocatable: dict[str, Any] | None = None
    capacity: dict[str, Any] | None = None
    conditions: list[_Condition] = []
    addresses: list[_Address] = []


class _Node(_Foreign, frozen=True, gc=False):
    metadata: _FullMeta
    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()


def _node(node: _Node) -> NodeRecord:
    meta, spec, status = node.metadata, node.spec, node.status
    if not is_subdomain(meta.name):
        raise ValueError("no node can be called so")
    ready = [entry.status for entry in status.conditions if entry.type == "Ready"]
    taints = [
        (
            Taint(key=taint.key, value=taint.value, effect=taint.effect or "NoSchedule"),
            published.parse_time(taint.time_added),
        )
        for taint in spec.taints
    ]
    return NodeRecord(
        name=meta.name,
        labels=meta.labels,
        taints=tuple(taint for taint, _ in taints),
        evicting=tuple((taint, at) for taint, at in taints if taint.effect == "NoExecute"),
        unschedulable=spec.unschedulable,
        ready=(ready[0] or "Unknown") if ready else None,
        allocatable=_quantities(status.allocatable),
        capacity=_quantities(status.capacity),
        address=(status.addresses and status.addresses[0].address) or NOT_AVAILABLE,
    )


@cache
def _is_read(resource: str) -> bool:
    return resource in {"cpu", "memory"} or resource.startswith(GPU_PREFIXES) or is_rdma(resource)


def _quantities(offers: dict[str, Any] | None) -> dict[str, float] | None:
    """The quantities of the resources that are read; ValueError for an invalid quantity."""
    if offers is None:
        return None
    return {name: parse_quantity(quantity) for name, quantity in offers.items() if _is_read(name)}


_NULL = msgspec.Raw(b"null")


class _Container(_Foreign, frozen=True, gc=False):
    resources: msgspec.Raw = _NULL
    restart_policy: str | None = None


class _PodClaim(_Foreign, frozen=True, gc=False):
    """A claim of a pod, in its spec or its status."""

    name: str = ""
    resource_claim_name: str = ""


class _Gate(_Foreign, frozen=True, gc=False):
    name: str = ""


class _PodSpec(_Foreign, frozen=True, gc=False):
    node_name: str = ""
    containers: list[_Container] = []
    init_containers: list[_Container] = []
    overhead: msgspec.Raw = _NULL
    resources: msgspec.Raw = _NULL
    resource_claims: list[_PodClaim] = []
    scheduling_gates: list[_Gate] = []
    affinity: dict[str, Any] = {}

    def requests(self) -> _Requests:
        """The resources that the pod requests."""
        # Cached: hundreds of pods have the same requests.
        return _requests_in(
            msgspec.json.encode(
                {
                    "containers": self.containers,
                    "initContainers": self.init_containers,
                    "overhead": self.overhead,
                    "resources": self.resources,
                }
            )
        )


class _PodStatus(_Foreign, frozen=True, gc=False):
    phase: str = ""
    start_time: str | None = None
    resource_claim_statuses: list[_PodClaim] = []
    extended_resource_claim_status: _PodClaim | None = None


class _Pod(_Foreign, frozen=True, gc=False):
    metadata: _Meta
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


def _pod(pod: _Pod) -> PodRecord:
    meta, spec, status, written = pod.metadata, pod.spec, pod.status, pod.metadata.annotations
    notes = {key: written[key] for key in _ANNOTATIONS if key in written} if written else {}
    namespace = meta.namespace
    over = status.phase in OVER
    node = None if over else spec.node_name or None
    if node is None and not over and FORMAT_ANNOTATION in notes:
        node = _promised(spec)
    if node is None:
        return PodRecord(
            name=meta.name,
            namespace=namespace,
            over=over,
            deleted=meta.deletion_timestamp,
            annotations=notes,
        )
    bound, requests = bool(spec.node_name), spec.requests()
    extended = status.extended_resource_claim_status
    return PodRecord(
        name=meta.name,
        namespace=namespace,
        node=node,
        promised=not bound,
        deleted=meta.deletion_timestamp,
        annotations=notes,
        gpus=requests.gpus,
        cpu=requests.cpu,
        memory=requests.memory,
        claims=tuple(_claims(spec, status)) if bound and spec.resource_claims else (),
        extended=None if extended is None else extended.resource_claim_name,
        # A pod without a start time has no devices from a kubelet.
        started=published.parse_time(status.start_time),
        asks=requests.limits if bound else {},
        notes=tuple(
            Note(
                f"{namespace}/{meta.name}",
                outcome,
                f"pod {namespace}/{meta.name} asks for resources that make no sense: {error};"
                f" {outcome.format(node=node)}",
            )
            for error, outcome in requests.wrong
        ),
    )


class _Requests(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of a pod; `wrong` are errors, each with its consequence."""

    gpus: int | None
    cpu: float
    memory: float
    limits: dict[str, float]
    wrong: tuple[tuple[str, str], ...]


@lru_cache(maxsize=4096)
def _requests_in(spec: bytes) -> _Requests:
    """The requests in the JSON of a pod's spec."""
    pod, wrong = msgspec.json.decode(spec), list[tuple[str, str]]()

    def counted(count: Callable[[], float], outcome: str) -> float | None:
        try:
            return count()
        except ValueError as error:
            wrong.append((str(error), outcome))
            return None

    gpus = counted(lambda: gpu_count(pod), "every GPU of node {node} counts as in use")
    cpu = counted(lambda: pod_request(pod, "cpu"), "its CPU on node {node} is not counted")
    memory = counted(lambda: pod_request(pod, "memory"), "its memory on node {node} is not counted")
    limits: dict[str, float] = defaultdict(float)
    for container in items(pod, "containers") if gpus is not None else ():
        for resource, quantity in mapping_at(mapping_at(container, "resources"), "limits").items():
            if resource.startswith(GPU_PREFIXES):
                with suppress(ValueError):
                    limits[resource] += parse_quantity(quantity)
    return _Requests(
        gpus=None if gpus is None else int(gpus),
        cpu=cpu or 0.0,
        memory=memory or 0.0,
        limits=dict(limits),
        wrong=tuple(wrong),
    )


def _claims(spec: _PodSpec, status: _PodStatus) -> Iterator[str]:
    statuses = {claim.name: claim for claim in status.resource_claim_statuses}
    for claim in spec.resource_claims:
        status_entry = statuses.get(claim.name)
        # A template may create no claim; then the entry in the status has no name.
        if status_entry is None or status_entry.resource_claim_name:
            yield (status_entry or claim).resource_claim_name


def _promised(spec: _PodSpec) -> str | None:
    """The node to which a scheduler will bind an unscheduled worker of ours; None if not certain.

    Only the deletion of the pod prevents the binding, not the end of its job or of its record. A
    pod at our gate has no such node, as no scheduler considers it. Nor has a pod with several
    possible nodes (workers of one template share their terms): counted on each of them, it would
    block GPUs that it never gets. Nor has a pod without countable GPUs, since two pods never share
    the devices of a claim.
    """
    if not spec.affinity or any(gate.name == GATE for gate in spec.scheduling_gates):
        return None
    required = mapping_at(mapping_at(spec.affinity, "nodeAffinity"), REQUIRED)
    # An empty term matches no node.
    terms = [term for term in items(required, "nodeSelectorTerms") if term]
    nodes = {_only_node(items(term, "matchFields")) for term in terms}
    # Invalid quantities count too; the caller reports them.
    return nodes.pop() if len(nodes) == 1 and spec.requests().gpus != 0 else None


def _only_node(fields: list[Object]) -> str | None:
    """The node of a node selector term; None if it does not name exactly one."""
    names = [field.get("values") for field in fields if field.get("key") == "metadata.name"]
    operators = {field.get("operator") for field in fields}
    if len(names) != 1 or operators != {"In"} or not isinstance(names[0], list):
        return None
    return str(names[0][0]) if len(names[0]) == 1 else None


def _job(mpijob: dict[str, Any]) -> JobRecord:
    meta = fields_of(mpijob.get("metadata"), _Meta)
    notes, suspended = meta.annotations, is_suspended(mpijob)
    # A job that its queue has suspended holds no GPUs, even if its annotations record some.
    idle = suspended and suspender(mpijob) is not None
    state = notes.get(STATE, "")
    bare = JobRecord(
        name=meta.name,
        namespace=meta.namespace,
        suspended=suspended,
        waits=suspended and not idle and state == "waiting",
        timeout=time_limit(mpijob),
    )
    placed = reserves(state) and MAP in notes and not idle
    has_reserved = RESERVED_ANNOTATION in notes and state not in {"", "held"} and not idle
    if not (placed or has_reserved) or meta.deletion_timestamp is not None or job_over(mpijob):
        return bare
    try:
        workers = parse_map(notes[MAP]) if placed else ()
        reserved = parse_map(notes[RESERVED_ANNOTATION]) if has_reserved else ()
        replicas, each = _size_of(mpijob)
        spec = mapping_at(worker_pod_template(mpijob), "spec") if reserved else {}
        cpu, memory = (pod_request(spec, resource) for resource in ("cpu", "memory"))
    except (TypeError, ValueError) as error:
        wrong = f"{bare}: its recorded placement makes no sense: {error}; only its pods are counted"
        return msgspec.structs.replace(
            bare, notes=(Note(bare.path, "unreadable placement", wrong),)
        )
    count = max(len(workers), len(reserved)) if replicas is None else replicas
    greedy = max(len(workers), len(reserved)) > count or any(
        len(gpus) > each for _, _, gpus in (*workers, *reserved)
    )
    more = f"{bare}: its recorded placement is of more than it asks for; the rest does not count"
    return msgspec.structs.replace(
        bare,
        workers=tuple(workers[:count]),
        reserved=_beyond(workers[:count], reserved[:count]),
        since=None if (stop := last_stop(mpijob)) is None else stop.at,
        cpu=cpu,
        memory=math.ceil(memory),
        each=each,
        exact=_guarantee(mpijob, notes) == "gpus",
        notes=(Note(bare.path, "larger placement", more),) if greedy else (),
    )


def _beyond(workers: Workers, reserved: Workers) -> Workers:
    """The reserved places that are not among those of the workers."""
    known = {(node, gpu) for _, node, gpus in workers for gpu in gpus}
    unnamed = {(index, node) for index, node, gpus in workers if not gpus}
    return tuple(
        (index, node, others)
        for index, node, gpus in reserved
        if (others := tuple(gpu for gpu in gpus if (node, gpu) not in known))
        or (not gpus and (index, node) not in unnamed)
    )


def _size_of(job: Object) -> tuple[int | None, int]:
    """The number of workers (None if unknown), and the GPUs that each of their pods requests.

    Pods with claims have no limits that tell the number; then it follows from the request to the
    solver, divided among the pods.
    """
    spec = mapping_at(worker_pod_template(job), "spec")
    if not items(spec, "containers"):
        # The operator makes no pods of it, and its record is never withdrawn (`queue.queued`).
        raise ValueError("its workers have no containers")
    workers, each = worker_replicas(job), gpu_count(spec)
    if not isinstance(workers, int) or workers < 0:
        workers = None
    if (workers is None or not each) and (request := recorded_request(job)):
        requested_workers = _number(request.get("workers", 1))
        workers = requested_workers if workers is None else workers
        if workers and not each:
            each = -(-requested_workers * _number(request.get("gpus", 0)) // workers)
    return workers, each


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no number of workers or GPUs")
    return value


def _guarantee(job: Object, notes: Mapping[str, str]) -> str:
    """The guarantee of a recorded placement; before the start it is in the job's forecast."""
    guarantee = mapping_at(mapping_at(worker_pod_template(job), "metadata"), "annotations").get(
        GUARANTEE
    )
    if guarantee is None:
        with suppress(KeyError, ValueError, AttributeError, RecursionError):
            guarantee = msgspec.json.decode(notes[FORECAST]).get("guarantee")
    return guarantee if isinstance(guarantee, str) else "gpus"


class _ConfigMap(_Foreign, frozen=True, gc=False):
    metadata: _FullMeta
    data: dict[str, str] = {}


def _config_map(config_map: _ConfigMap) -> ConfigMapRecord:
    meta = config_map.metadata
    labels, notes = meta.labels, meta.annotations
    believed = (
        meta.namespace in published.TRUSTED_NAMESPACES
        and labels.get(published.SCHEDULE_LABEL) == "topology"
    )
    knowledge = published.KNOWLEDGE_ANNOTATION
    return ConfigMapRecord(
        name=meta.name,
        namespace=meta.namespace,
        labels=labels,
        annotations={knowledge: notes[knowledge]} if knowledge in notes else {},
        data=config_map.data if believed else {},
        believed=believed,
    )


class _Level(_Foreign, frozen=True, gc=False):
    node_label: str


class _Levels(_Foreign, frozen=True, gc=False):
    levels: Annotated[list[_Level], msgspec.Meta(min_length=1)]


class _Topology(_Foreign, frozen=True, gc=False):
    """The Topology of Kueue; v1alpha1, v1beta1 and v1beta2 agree on all fields that are read."""

    metadata: _Meta
    spec: _Levels


def _topology(topology: _Topology) -> TopologyRecord:
    levels = levels_of([level.node_label for level in topology.spec.levels])
    return TopologyRecord(name=topology.metadata.name, levels=levels)


class _Attribute(_Foreign, frozen=True, gc=False, rename={"text": "string", "number": "int"}):
    text: str | None = None
    number: int | None = None


class _Device(_Foreign, frozen=True, gc=False):
    name: str = ""
    attributes: dict[str, _Attribute] = {}
    taints: list[_Taint] = []
    allow_multiple_allocations: bool = False
    basic: _Device | None = None


class _Pool(_Foreign, frozen=True, gc=False):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 1


class _SliceSpec(_Foreign, frozen=True, gc=False):
    driver: str = ""
    node_name: str = ""
    pool: _Pool = _Pool()
    devices: list[_Device] = []


class _Slice(_Foreign, frozen=True, gc=False):
    metadata: _Meta
    spec: _SliceSpec = _SliceSpec()


def _slice(resource_slice: _Slice) -> SliceRecord:
    spec, pool = resource_slice.spec, resource_slice.spec.pool
    gpus = (_gpu(device, spec.driver, pool.name) for device in spec.devices)
    return SliceRecord(
        name=resource_slice.metadata.name,
        driver=spec.driver,
        node=spec.node_name or None,
        pool=pool.name,
        generation=pool.generation,
        slices=pool.resource_slice_count,
        gpus=tuple(gpu for gpu in gpus if gpu is not None),
    )


def _gpu(device: _Device, driver: str, pool: str) -> Gpu | None:
    """The GPU or part of a GPU that a device is; None for other devices."""
    # v1beta1 nests the fields of a device one level deeper.
    inside = device.basic or device
    texts, numbers = dict[str, str](), dict[str, int]()
    for name, value in inside.attributes.items():
        domain, _, bare = name.rpartition("/")
        if domain in {"", driver, _STANDARD}:
            texts |= {bare: value.text} if value.text else {}
            numbers |= {} if value.number is None else {bare: value.number}
    is_gpu = texts.keys() & {"uuid", "parentUUID"} and texts.keys() & {"productName", "type"}
    if not device.name or not is_gpu:
        return None
    return Gpu(
        name=device.name,
        pool=pool,
        tainted=any(taint.effect in _BARRING for taint in inside.taints),
        shared=inside.allow_multiple_allocations,
        type=texts.get("type"),
        uuid=texts.get("uuid"),
        product=texts.get("productName"),
        profile=texts.get("profile"),
        # The second name was used until release 25.12 of NVIDIA's driver.
        bus=texts.get("pciBusID") or texts.get("pcieBusID"),
        clique=texts.get("nvlinkClique"),
        parent=texts.get("parentUUID"),
        index=numbers.get("index"),
        numa=numbers.get("numaNode"),
    )


class _Result(_Foreign, frozen=True, gc=False):
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool = False


class _Devices(_Foreign, frozen=True, gc=False):
    results: list[_Result] = []


class _Allocation(_Foreign, frozen=True, gc=False):
    devices: _Devices = _Devices()


class _ClaimUser(_Foreign, frozen=True, gc=False):
    resource: str = ""
    name: str = ""


class _ClaimStatus(_Foreign, frozen=True, gc=False):
    allocation: _Allocation = _Allocation()
    reserved_for: list[_ClaimUser] = []


class _Claim(_Foreign, frozen=True, gc=False):
    metadata: _FullMeta
    status: _ClaimStatus = _ClaimStatus()


def _claim(claim: _Claim) -> ClaimRecord:
    meta, owners = claim.metadata, claim.metadata.owner_references
    users = [user.name for user in claim.status.reserved_for if user.resource == "pods"]
    users += [owner.name for owner in owners if owner.kind == "Pod"]
    return ClaimRecord(
        name=meta.name,
        namespace=meta.namespace,
        ours=FORMAT_ANNOTATION in meta.annotations
        or any(owner.kind == "MPIJob" for owner in owners),
        users=tuple(filter(None, users)),
        # Admin access (monitoring) allocates no device.
        devices=tuple(
            (result.driver, result.pool, result.device)
            for result in claim.status.allocation.devices.results
            if not result.admin_access
        ),
    )


RECORD_KINDS: Mapping[str, tuple[Any, Callable[[Any], Record]]] = {
    "Node": (_Node, _node),
    "Pod": (_Pod, _pod),
    "MPIJob": (dict[str, Any], _job),
    "ConfigMap": (_ConfigMap, _config_map),
    "Topology": (_Topology, _topology),
    "ResourceSlice": (_Slice, _slice),
    "ResourceClaim": (_Claim, _claim),
}
"""The kinds that are read: the decoded type, and the function that makes the record."""

_DECODERS = {kind: msgspec.json.Decoder(form) for kind, (form, _) in RECORD_KINDS.items()}
