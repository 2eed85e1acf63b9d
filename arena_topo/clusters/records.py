"""Kubernetes objects -> records: the few hundred bytes of each that are read, checked once.

An object comes as JSON that nobody has decoded, from pages and dumps, or as plain values. Its types
are checked as it is decoded; one that does not fit is `Unread`, with the place that is wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import msgspec

from arena_topo.clusters.objects import Object, items, misfit, of
from arena_topo.clusters.queues import suspended, suspender
from arena_topo.clusters.usage import (
    ACK_ALLOCATION,
    OVER,
    REQUIRED,
    Requests,
    amount,
    gpu_count,
    job_over,
    worker_replicas,
    worker_template,
)
from arena_topo.escaping import brief
from arena_topo.manifests import (
    FORECAST,
    FORMAT,
    GATE,
    GPU_GROUP,
    GPU_VISIBLE,
    GUARANTEE,
    MAP,
    STATE,
)
from arena_topo.manifests.annotations import asked, parse_map
from arena_topo.names import is_subdomain
from arena_topo.topology import Taint, published
from arena_topo.topology.nics import is_rdma

KUEUE = "kueue.x-k8s.io"
"""The API group of the `Topology` that tells of the network."""

MEMORY_GIVEN = "scheduler.framework.gpushare.allocation"
CORE_GIVEN = "gpushare.alibabacloud.com/core-percentage"
MEMORY_INDEX = "ALIYUN_COM_GPU_MEM_IDX"
"""Annotations by which ACK says what a pod has of which GPU; JSON by container, and an index."""

GPU_PREFIXES = ("nvidia.com/", "aliyun.com/")

NOWHERE = "N/A"

Device = tuple[str, str, str]
"""What names a device in a cluster: its driver, its pool, its name there."""

_ANNOTATIONS = frozenset(
    {
        *(GPU_GROUP, GPU_VISIBLE, ACK_ALLOCATION, GUARANTEE, FORMAT),
        *(MEMORY_GIVEN, CORE_GIVEN, MEMORY_INDEX),
    }
)
"""Those of pods that are read."""

_BARRING = frozenset({"NoSchedule", "NoExecute"})
"""Effects of device taints by which the scheduler does not allocate the device."""

_TEXTS = frozenset(
    {
        *("type", "uuid", "productName", "profile", "pcieRoot", "nvlinkClique", "parentUUID"),
        # The second until release 25.12 of NVIDIA's driver.
        *("pciBusID", "pcieBusID"),
    }
)
_NUMBERS = frozenset({"index", "numaNode"})
"""Attributes of devices that are read, as NVIDIA's driver calls them."""

_STANDARD = "resource.kubernetes.io"
"""The domain of attributes that all drivers share (k8s.io/dynamic-resource-allocation,
deviceattribute)."""


# ---------------------------------------------------------------- what is read


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One object of a cluster."""

    kind: ClassVar[str]

    name: str
    namespace: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Its namespace and name."""
        return self.namespace, self.name


class NodeRecord(Record, frozen=True, kw_only=True, gc=False):
    """A node.

    `ready` is the status of its condition of that name, None where it has none. `allocatable` and
    `capacity` are what it tells of what is read: CPU, memory, GPUs and RDMA.
    """

    kind: ClassVar[str] = "Node"

    labels: dict[str, str]
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: str | None = None
    allocatable: dict[str, float] | None = None
    capacity: dict[str, float] | None = None
    address: str = NOWHERE
    notes: tuple[str, ...] = ()

    @property
    def offers(self) -> dict[str, float]:
        """What of it pods may have."""
        return (self.capacity or {}) if self.allocatable is None else self.allocatable


class PodRecord(Record, frozen=True, kw_only=True, gc=False):
    """A pod: where it is, and what it takes there.

    `node` is also where one of ours will be that is only `promised` it. `gpus` is how many it asks
    for; None where that is no number, which `notes` tell. `claims` are its ResourceClaims, the
    empty name one that nobody can tell; `extended` is the claim that the scheduler made of what it
    asks for. `started` (Unix seconds) is when its kubelet took it, `deleted` (RFC 3339)
    when it was told to end. `asks` is the sum of its limits
    of each GPU resource. `status` is kubectl's word for it, where whoever reads it wants to know.
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
        return f"pod {self.namespace}/{self.name}"

    @property
    def ours(self) -> bool:
        """Whether arena-topo placed it."""
        return FORMAT in self.annotations


class JobRecord(Record, frozen=True, kw_only=True, gc=False):
    """An MPIJob, and the placement recorded on it, as far as that counts.

    `workers` have each an index, a node and GPUs, and hold at most `each` GPUs. Unless they are
    `exact`, the kubelet chooses which.
    """

    kind: ClassVar[str] = "MPIJob"

    workers: tuple[tuple[int, str, tuple[int, ...]], ...] = ()
    each: int = 0
    exact: bool = True
    suspended: bool = False
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"MPIJob {self.namespace}/{self.name}"


class ConfigMapRecord(Record, frozen=True, kw_only=True, gc=False):
    """A ConfigMap; of one that says nothing of a machine, or may not, `data` is left out."""

    kind: ClassVar[str] = "ConfigMap"

    labels: dict[str, str]
    annotations: dict[str, str]
    data: dict[str, str]
    believed: bool

    def __str__(self) -> str:
        return f"configmap {self.namespace}/{self.name}"

    def plain(self) -> Object:
        """The object again, as the readers of `topology` take it."""
        meta = {"name": self.name, "namespace": self.namespace}
        return {
            "metadata": {**meta, "labels": self.labels, "annotations": self.annotations},
            "data": self.data,
        }


class TopologyRecord(Record, frozen=True, kw_only=True, gc=False):
    """A Kueue topology; `network` says what is wrong with its spec."""

    kind: ClassVar[str] = "Topology"

    spec: Any = None

    def plain(self) -> Object:
        """The object again, as the readers of `topology` take it."""
        return {"metadata": {"name": self.name}, "spec": self.spec}


class Gpu(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A whole GPU, or a part of one, as a slice tells it."""

    name: str
    pool: str
    tainted: bool
    shared: bool
    type: str | None = None
    uuid: str | None = None
    product: str | None = None
    profile: str | None = None
    bus: str | None = None
    root: str | None = None
    clique: str | None = None
    parent: str | None = None
    index: int | None = None
    numa: int | None = None

    @property
    def whole(self) -> bool:
        """Whether it is a GPU that a pod may have for itself."""
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
    """A ResourceClaim: its devices, but for those that it only looks at, and the pods it is for.

    `ours` says that it belongs to an MPIJob, or that arena-topo made it; see `belongs`.
    """

    kind: ClassVar[str] = "ResourceClaim"

    ours: bool
    users: tuple[str, ...]
    devices: tuple[Device, ...]

    def belongs(self, pods: Collection[tuple[str, str]]) -> bool:
        """Whether it is of a job of arena-topo, which placed these pods (namespace, name).

        It is a job's own, or only such pods are to use it.
        """
        users = [(self.namespace, name) for name in self.users]
        return self.ours or (bool(users) and all(user in pods for user in users))


class Unread(msgspec.Struct, frozen=True, kw_only=True):
    """An object that does not fit its type: what is wrong with it, and where.

    `at` is its position among the objects that were read, from 1; 0 where that is not known.
    """

    kind: ClassVar[str] = ""

    expected: str
    name: str
    why: str
    at: int = 0

    def __str__(self) -> str:
        place = f" (object {self.at})" if self.at else ""
        return f"{self.expected} {self.name or f'without a name{place}'} is ignored: {self.why}"


# ---------------------------------------------------------------- reading


StatusOf = Callable[[Object], str]
"""kubectl's word for the status of a pod."""


def record(
    kind: str,
    one: Object | msgspec.Raw | _Foreign,
    *,
    at: int = 0,
    status_of: StatusOf | None = None,
) -> Record | Unread:
    """The record of an object of one of these `KINDS`; KeyError for another.

    `status_of` is asked about pods that may hold GPUs.
    """
    form, make = KINDS[kind]
    try:
        if isinstance(one, msgspec.Raw):
            found = make(_DECODERS[kind].decode(one))
        elif isinstance(one, _Foreign):
            found = make(one)
        else:
            found = make(msgspec.convert(one, form))
    except RecursionError:
        return Unread(expected=kind, name=_name(one), why="it is nested too deeply", at=at)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return Unread(expected=kind, name=_name(one), why=misfit(error), at=at)
    if status_of is None or not isinstance(found, PodRecord) or isinstance(one, _Foreign):
        return found
    return _with_status(found, one, status_of) if found.asks or found.claims else found


def read(one: Object, *, at: int = 0, status_of: StatusOf | None = None) -> Record | Unread | None:
    """The record of an object that says its kind itself; None where nobody reads that kind."""
    kind = known_kind(one.get("kind"), one.get("apiVersion"))
    return None if kind is None else record(kind, one, at=at, status_of=status_of)


def known_kind(kind: object, version: object) -> str | None:
    """The kind, if it is read; other groups have kinds of these names as well."""
    if not isinstance(kind, str) or kind not in KINDS:
        return None
    # In a bare list items may not say their group.
    group = KUEUE if version is None else str(version).partition("/")[0]
    return None if kind == "Topology" and group != KUEUE else kind


_Item = TypeVar("_Item")


class _Page(msgspec.Struct, Generic[_Item]):
    kind: str
    items: list[_Item] | None
    metadata: dict[str, Any] | None = None


_RAW_PAGE = msgspec.json.Decoder(_Page[msgspec.Raw])

PageReader = Callable[[bytes], Mapping[str, Any] | None]
"""Makes records of a page of a list: its `items`, beside its `metadata`; None for what is none."""


def pages(kind: str, *, status_of: StatusOf | None = None) -> PageReader:
    """What makes records of the pages of a list of one of these `KINDS`."""

    def read_page(data: bytes) -> Mapping[str, Any] | None:
        found: _Page[Any]
        try:
            found = _PAGES[kind].decode(data) if status_of is None else _RAW_PAGE.decode(data)
        except (ValueError, RecursionError):
            # One that does not fit must not hide the others.
            try:
                found = _RAW_PAGE.decode(data)
            except (ValueError, RecursionError):
                return None
        if not found.kind.endswith("List"):
            return None
        items = [record(kind, one, status_of=status_of) for one in found.items or ()]
        return {"items": items, "metadata": found.metadata}

    return read_page


class _Named(msgspec.Struct):
    metadata: Any = None


def _name(one: Object | msgspec.Raw | _Foreign) -> str:
    """The name of an object that may be no object at all, on one line; empty where it has none."""
    meta: Any = None
    if isinstance(one, Mapping):
        meta = one.get("metadata")
    elif isinstance(one, _Foreign):
        meta = {"name": getattr(getattr(one, "metadata", None), "name", None)}
    else:
        with suppress(TypeError, ValueError, RecursionError):
            meta = msgspec.json.decode(one, type=_Named).metadata
    name = meta.get("name") if isinstance(meta, Mapping) else None
    return brief(name if isinstance(name, str) else repr(name), 63) if name is not None else ""


def _with_status(found: PodRecord, one: Object | msgspec.Raw, status_of: StatusOf) -> PodRecord:
    try:
        status = status_of(one if isinstance(one, Mapping) else msgspec.json.decode(one))
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        status = "Unknown"
    return msgspec.structs.replace(found, status=status)


# ---------------------------------------------------------------- as a server gives them out


class _Foreign(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A part of an object: what is read of it, null as good as absent."""


class _Meta(_Foreign, frozen=True, gc=False):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    namespace: str | None = None
    annotations: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class _Labelled(_Meta, frozen=True, gc=False):
    labels: dict[str, str] | None = None


class _Reference(_Foreign, frozen=True, gc=False):
    kind: str | None = None
    name: str | None = None


class _Owned(_Meta, frozen=True, gc=False):
    owner_references: list[_Reference] | None = None


class _Taint(_Foreign, frozen=True, gc=False):
    key: str | None = None
    value: str | None = None
    effect: str | None = None


class _Condition(_Foreign, frozen=True, gc=False):
    type: str | None = None
    status: str | None = None


class _Address(_Foreign, frozen=True, gc=False):
    address: str | None = None


class _NodeSpec(_Foreign, frozen=True, gc=False):
    unschedulable: bool | None = None
    taints: list[_Taint] | None = None


class _NodeStatus(_Foreign, frozen=True, gc=False):
    allocatable: dict[str, Any] | None = None
    capacity: dict[str, Any] | None = None
    conditions: list[_Condition] | None = None
    addresses: list[_Address] | None = None


class _Node(_Foreign, frozen=True, gc=False):
    metadata: _Labelled
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None


def _node(one: _Node) -> NodeRecord:
    meta, spec, status = one.metadata, one.spec or _NodeSpec(), one.status or _NodeStatus()
    if not is_subdomain(meta.name):
        raise ValueError("no node can be called so")
    ready = [told.status or "Unknown" for told in status.conditions or () if told.type == "Ready"]
    addresses = status.addresses or ()
    notes: list[str] = []
    allocatable = _quantities(status.allocatable, f"node {meta.name}: allocatable", notes)
    # Where a node tells what may be used, what it has besides is of no matter.
    heard = notes if allocatable is None else []
    capacity = _quantities(status.capacity, f"node {meta.name}: capacity", heard)
    return NodeRecord(
        name=meta.name,
        labels=meta.labels or {},
        taints=tuple(
            Taint(key=told.key or "", value=told.value or "", effect=told.effect or "NoSchedule")
            for told in spec.taints or ()
        ),
        unschedulable=spec.unschedulable is True,
        ready=ready[0] if ready else None,
        allocatable=allocatable,
        capacity=capacity,
        address=(addresses[0].address if addresses else None) or NOWHERE,
        notes=tuple(notes),
    )


@cache
def _is_read(resource: str) -> bool:
    return resource in _LIMITED or resource.startswith(GPU_PREFIXES) or is_rdma(resource)


_LIMITED = frozenset({"cpu", "memory"})


def _quantities(
    offers: dict[str, Any] | None, what: str, notes: list[str]
) -> dict[str, float] | None:
    """What a node offers of what is read; `notes` gets what of that is no quantity."""
    if offers is None:
        return None
    found = {}
    for resource, said in offers.items():
        if _is_read(resource):
            try:
                found[resource] = amount(said)
            except ValueError:
                outcome = "unlimited" if resource in _LIMITED else "none"
                notes.append(
                    f"{what} {resource} is {brief(repr(said), 63)}, not a quantity; it is taken for"
                    f" {outcome}"
                )
    return found


class _Resources(_Foreign, frozen=True, gc=False):
    limits: dict[str, Any] | None = None
    requests: dict[str, Any] | None = None

    def both(self) -> tuple[Object, Object]:
        return self.limits or {}, self.requests or {}


class _Container(_Foreign, frozen=True, gc=False):
    resources: _Resources | None = None
    restart_policy: str | None = None


class _Claimed(_Foreign, frozen=True, gc=False):
    name: str | None = None
    resource_claim_name: str | None = None


class _PodSpec(_Foreign, frozen=True, gc=False):
    node_name: str | None = None
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    overhead: dict[str, Any] | None = None
    resources: _Resources | None = None
    resource_claims: list[_Claimed] | None = None
    scheduling_gates: list[_Reference] | None = None
    affinity: dict[str, Any] | None = None

    def requests(self) -> Requests:
        none = _Resources()
        return Requests(
            running=[(one.resources or none).both() for one in self.containers or ()],
            starting=[
                (*(one.resources or none).both(), one.restart_policy == "Always")
                for one in self.init_containers or ()
            ],
            whole=(self.resources or none).both(),
            overhead=self.overhead or {},
        )


class _PodStatus(_Foreign, frozen=True, gc=False):
    phase: str | None = None
    start_time: str | None = None
    resource_claim_statuses: list[_Claimed] | None = None
    extended_resource_claim_status: _Claimed | None = None


class _Pod(_Foreign, frozen=True, gc=False):
    metadata: _Meta
    spec: _PodSpec | None = None
    status: _PodStatus | None = None


def _pod(one: _Pod) -> PodRecord:
    meta, spec, status = one.metadata, one.spec or _PodSpec(), one.status or _PodStatus()
    told = meta.annotations or {}
    notes = {key: told[key] for key in _ANNOTATIONS if key in told} if told else {}
    namespace = meta.namespace or ""
    over = status.phase in OVER
    requests = _NO_REQUESTS if over else spec.requests()
    node = None if over else spec.node_name
    if node is None and not over and FORMAT in notes:
        node = _promised(spec, requests)
    if node is None:
        return PodRecord(
            name=meta.name,
            namespace=namespace,
            over=over,
            deleted=meta.deletion_timestamp,
            annotations=notes,
        )
    bound = bool(spec.node_name)
    wrong: list[str] = []

    def counted(count: Callable[[], float], outcome: str) -> float | None:
        try:
            return count()
        except ValueError as error:
            who = f"pod {namespace}/{meta.name}"
            wrong.append(f"{who} asks for resources that make no sense: {error}; {outcome}")
            return None

    gpus = counted(requests.gpus, f"every GPU of node {node} counts as in use")
    cpu = counted(lambda: requests.of("cpu"), f"its CPU on node {node} is not counted")
    memory = counted(lambda: requests.of("memory"), f"its memory on node {node} is not counted")
    extended = status.extended_resource_claim_status
    return PodRecord(
        name=meta.name,
        namespace=namespace,
        node=node,
        promised=not bound,
        deleted=meta.deletion_timestamp,
        annotations=notes,
        gpus=None if gpus is None else int(gpus),
        cpu=cpu or 0.0,
        memory=memory or 0.0,
        claims=tuple(_claims(spec, status)) if bound and spec.resource_claims else (),
        extended=None if extended is None else extended.resource_claim_name or "",
        # Without a start no kubelet has given it anything.
        started=published.moment(status.start_time),
        asks=_gpu_limits(requests) if bound and gpus is not None else {},
        notes=tuple(wrong),
    )


_NO_REQUESTS = Requests(running=(), starting=(), whole=({}, {}), overhead={})


def _claims(spec: _PodSpec, status: _PodStatus) -> Iterator[str]:
    told = {one.name: one for one in status.resource_claim_statuses or ()}
    for one in spec.resource_claims or ():
        said = told.get(one.name)
        # A template may make no claim, which the status tells by a name that is missing.
        if said is None or said.resource_claim_name:
            yield (said or one).resource_claim_name or ""


def _gpu_limits(requests: Requests) -> dict[str, float]:
    asks: dict[str, float] = defaultdict(float)
    for limits, _ in requests.running:
        for resource, quantity in limits.items():
            if resource.startswith(GPU_PREFIXES):
                with suppress(ValueError):
                    asks[resource] += amount(quantity)
    return dict(asks) if asks else _NOTHING


_NOTHING: dict[str, float] = {}


def _promised(spec: _PodSpec, requests: Requests) -> str | None:
    """The one node that a worker of ours will get as soon as a scheduler looks at it.

    Nobody can take that back any more: neither the end of its job nor that of its record keeps the
    scheduler from it, until the operator has deleted the pod. None for one that waits at our gate,
    which no scheduler looks at before it has its place. None for one that may go to several nodes
    (the workers of a template share their terms): it will be on one of them only, and counted on
    each it would keep GPUs from others that nobody gets. None for one without GPUs to be counted as
    well: two pods never get one claim's, whatever becomes of them.
    """
    if spec.affinity is None or any(one.name == GATE for one in spec.scheduling_gates or ()):
        return None
    required = of(of(spec.affinity, "nodeAffinity"), REQUIRED)
    # A term without anything matches no node.
    terms = [one for one in items(required, "nodeSelectorTerms") if one]
    nodes = {_only_node(items(term, "matchFields")) for term in terms}
    found = nodes.pop() if len(nodes) == 1 else None
    if found is None:
        return None
    try:
        return found if requests.gpus() else None
    except ValueError:
        # Whatever it asks for: whoever counts it says so.
        return found


def _only_node(fields: list[Object]) -> str | None:
    """The node that a node selector term is about; None if it is not about exactly one."""
    names = [one.get("values") for one in fields if one.get("key") == "metadata.name"]
    operators = {one.get("operator") for one in fields}
    if len(names) != 1 or operators != {"In"} or not isinstance(names[0], list):
        return None
    return str(names[0][0]) if len(names[0]) == 1 else None


def _job(one: dict[str, Any]) -> JobRecord:
    meta = msgspec.convert(one.get("metadata"), _Meta)
    bare = JobRecord(name=meta.name, namespace=meta.namespace or "", suspended=suspended(one))
    notes = meta.annotations or {}
    # What its own queue has suspended holds nothing, whatever is still written on it.
    idle = bare.suspended and suspender(one) is not None
    placed = notes.get(STATE) == "placed" and MAP in notes and not idle
    if not placed or meta.deletion_timestamp is not None or job_over(one):
        return bare
    try:
        workers = parse_map(notes[MAP])
        replicas, each = _asked_for(one)
    except (TypeError, ValueError) as error:
        wrong = f"{bare}: its recorded placement makes no sense: {error}; only its pods are counted"
        return msgspec.structs.replace(bare, notes=(wrong,))
    wrongs = []
    if replicas is not None and len(workers) > replicas:
        wrongs.append(
            f"{bare}: its recorded placement is of {len(workers)} workers, but it has {replicas};"
            " the others do not count"
        )
        workers = workers[:replicas]
    greedy = next(((index, gpus) for index, _, gpus in workers if len(gpus) > each), None)
    if greedy is not None:
        wrongs.append(
            f"{bare}: its recorded placement gives worker {greedy[0]} {len(greedy[1])} GPUs, but it"
            f" asks for {each}; the others do not count"
        )
    return msgspec.structs.replace(
        bare,
        workers=tuple(workers),
        each=each,
        exact=_guarantee(one, notes) == "gpus",
        notes=tuple(wrongs),
    )


def _asked_for(job: Object) -> tuple[int | None, int]:
    """How many workers a job has, where it says so, and how many GPUs each of their pods asks for.

    Pods that claim their GPUs have no limits to say so; there it is what the job asked the solver
    for, which several workers in one pod share.
    """
    spec = of(worker_template(job), "spec")
    if not items(spec, "containers"):
        # Its operator makes no pods of it, and nobody withdraws its record (`queue.queued`).
        raise ValueError("its workers have no containers")
    workers, each = worker_replicas(job), gpu_count(spec)
    if not isinstance(workers, int) or workers < 0:
        workers = None
    if (workers is None or not each) and (said := asked(job)):
        wanted = _number(said.get("workers", 1))
        workers = wanted if workers is None else workers
        if workers and not each:
            each = -(-wanted * _number(said.get("gpus", 0)) // workers)
    return workers, each


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no number of workers or GPUs")
    return value


def _guarantee(job: Object, notes: Mapping[str, str]) -> str:
    """What is guaranteed of a recorded placement; a job that has not started says it itself."""
    said = of(of(worker_template(job), "metadata"), "annotations").get(GUARANTEE)
    if said is None:
        with suppress(KeyError, ValueError, AttributeError, RecursionError):
            said = msgspec.json.decode(notes[FORECAST]).get("guarantee")
    return said if isinstance(said, str) else "gpus"


class _ConfigMap(_Foreign, frozen=True, gc=False):
    metadata: _Labelled
    data: dict[str, str] | None = None


def _config_map(one: _ConfigMap) -> ConfigMapRecord:
    meta = one.metadata
    labels, notes = meta.labels or {}, meta.annotations or {}
    believed = (
        meta.namespace in published.NAMESPACES
        and labels.get(published.SCHEDULE_LABEL) == "topology"
    )
    knowledge = published.KNOWLEDGE_ANNOTATION
    return ConfigMapRecord(
        name=meta.name,
        namespace=meta.namespace or "",
        labels=labels,
        annotations={knowledge: notes[knowledge]} if knowledge in notes else {},
        data=(one.data or {}) if believed else {},
        believed=believed,
    )


class _Topology(_Foreign, frozen=True, gc=False):
    metadata: _Meta
    spec: Any = None


def _topology(one: _Topology) -> TopologyRecord:
    return TopologyRecord(name=one.metadata.name, spec=one.spec)


class _Device(_Foreign, frozen=True, gc=False):
    name: str | None = None
    attributes: dict[str, Any] | None = None
    taints: list[_Taint] | None = None
    allow_multiple_allocations: bool | None = None
    basic: _Device | None = None


class _Pool(_Foreign, frozen=True, gc=False):
    name: str | None = None
    generation: int | None = None
    resource_slice_count: int | None = None


class _SliceSpec(_Foreign, frozen=True, gc=False):
    driver: str | None = None
    node_name: str | None = None
    pool: _Pool | None = None
    devices: list[_Device] | None = None


class _Slice(_Foreign, frozen=True, gc=False):
    metadata: _Meta
    spec: _SliceSpec | None = None


def _slice(one: _Slice) -> SliceRecord:
    spec = one.spec or _SliceSpec()
    pool = spec.pool or _Pool()
    told = (_gpu(device, spec.driver or "", pool.name or "") for device in spec.devices or ())
    return SliceRecord(
        name=one.metadata.name,
        driver=spec.driver or "",
        node=spec.node_name,
        pool=pool.name or "",
        generation=pool.generation or 0,
        slices=1 if pool.resource_slice_count is None else pool.resource_slice_count,
        gpus=tuple(gpu for gpu in told if gpu is not None),
    )


def _gpu(device: _Device, driver: str, pool: str) -> Gpu | None:
    """A device as far as it is read; None if it is no GPU and no part of one."""
    # v1beta1 nests what is of a device one level deeper.
    inside = device.basic or device
    found: dict[str, Any] = {}
    for name, value in (inside.attributes or {}).items():
        domain, slash, bare = name.rpartition("/")
        if slash and domain not in {driver, _STANDARD}:
            continue
        said = _attribute(bare, value)
        if said is not None:
            found[bare] = said
    is_gpu = found.keys() & {"uuid", "parentUUID"} and found.keys() & {"productName", "type"}
    if device.name is None or not is_gpu:
        return None
    return Gpu(
        name=device.name,
        pool=pool,
        tainted=any(one.effect in _BARRING for one in inside.taints or ()),
        shared=bool(inside.allow_multiple_allocations),
        type=found.get("type"),
        uuid=found.get("uuid"),
        product=found.get("productName"),
        profile=found.get("profile"),
        bus=found.get("pciBusID") or found.get("pcieBusID"),
        root=found.get("pcieRoot"),
        clique=found.get("nvlinkClique"),
        parent=found.get("parentUUID"),
        index=found.get("index"),
        numa=found.get("numaNode"),
    )


def _attribute(name: str, value: object) -> str | int | None:
    """The value of an attribute, the first of a list (KEP-5491); None if it is not read."""
    kind = "string" if name in _TEXTS else "int" if name in _NUMBERS else None
    if kind is None or not isinstance(value, Mapping):
        return None
    said, several = value.get(kind), value.get(f"{kind}s")
    if said is None and isinstance(several, list) and several:
        said = several[0]
    if kind == "int":
        return said if isinstance(said, int) and not isinstance(said, bool) else None
    return said if isinstance(said, str) and said else None


class _Result(_Foreign, frozen=True, gc=False):
    driver: str | None = None
    pool: str | None = None
    device: str | None = None
    admin_access: bool | None = None


class _Devices(_Foreign, frozen=True, gc=False):
    results: list[_Result] | None = None


class _Allocation(_Foreign, frozen=True, gc=False):
    devices: _Devices | None = None


class _User(_Foreign, frozen=True, gc=False):
    resource: str | None = None
    name: str | None = None


class _ClaimStatus(_Foreign, frozen=True, gc=False):
    allocation: _Allocation | None = None
    reserved_for: list[_User] | None = None


class _Claim(_Foreign, frozen=True, gc=False):
    metadata: _Owned
    status: _ClaimStatus | None = None


def _claim(one: _Claim) -> ClaimRecord:
    meta, status = one.metadata, one.status or _ClaimStatus()
    owners = meta.owner_references or ()
    allocation = status.allocation or _Allocation()
    users = [user.name for user in status.reserved_for or () if user.resource == "pods"]
    users += [owner.name for owner in owners if owner.kind == "Pod"]
    return ClaimRecord(
        name=meta.name,
        namespace=meta.namespace or "",
        ours=FORMAT in (meta.annotations or {}) or any(one.kind == "MPIJob" for one in owners),
        users=tuple(name for name in users if name is not None),
        # Monitoring may look at devices that others hold.
        devices=tuple(
            (result.driver or "", result.pool or "", result.device or "")
            for result in (allocation.devices or _Devices()).results or ()
            if not result.admin_access
        ),
    )


KINDS: Mapping[str, tuple[Any, Callable[[Any], Record]]] = {
    "Node": (_Node, _node),
    "Pod": (_Pod, _pod),
    "MPIJob": (dict[str, Any], _job),
    "ConfigMap": (_ConfigMap, _config_map),
    "Topology": (_Topology, _topology),
    "ResourceSlice": (_Slice, _slice),
    "ResourceClaim": (_Claim, _claim),
}
"""The kinds that are read: what is decoded of each, and what makes a record of it."""

_DECODERS = {kind: msgspec.json.Decoder(form) for kind, (form, _) in KINDS.items()}
_PAGES: Mapping[str, msgspec.json.Decoder[_Page[Any]]] = {
    # msgspec takes a generic type that is made at run time, which mypy does not know.
    kind: msgspec.json.Decoder(_Page[form])  # type: ignore[valid-type]
    for kind, (form, _) in KINDS.items()
}
