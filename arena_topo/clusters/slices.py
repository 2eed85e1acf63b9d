"""ResourceSlices and ResourceClaims -> the GPUs that DRA drivers publish, and which are allocated.

Pure, as `observed` is. Any driver counts whose devices have a UUID and say that they are GPUs, in
the words of NVIDIA's (kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin, deviceinfo.go
and mig.go), in every shape of resource.k8s.io since v1beta1.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from arena_topo.clusters.objects import Object, items, of, only, texts
from arena_topo.manifests import FORMAT
from arena_topo.topology import (
    GPU,
    MOST_GPUS,
    SYS,
    GPUSet,
    Knowledge,
    Link,
    LinkKind,
    Machine,
    Matrix,
    flat,
    gpu_set,
    natural,
)
from arena_topo.topology.models import model_of

Device = tuple[str, str, str]
"""What names a device in a cluster: its driver, its pool, its name there."""

GROUP = "resource.k8s.io"

VERSIONS = ("v1", "v1beta2", "v1beta1")
"""Those of the group that have slices of one shape, best first; the last nests it under `basic`."""

_TEXTS = {
    "type": "string",
    "uuid": "string",
    "productName": "string",
    "profile": "string",
    "pciBusID": "string",
    # Until release 25.12 of NVIDIA's driver.
    "pcieBusID": "string",
    "pcieRoot": "string",
    "nvlinkClique": "string",
    "parentUUID": "string",
}
_NUMBERS = {"index": "int", "numaNode": "int"}
_STANDARD = "resource.kubernetes.io"
"""The domain of attributes that all drivers share (k8s.io/dynamic-resource-allocation,
deviceattribute)."""

_COUNTED = ("generation", "resourceSliceCount")

_BARRING = frozenset({"NoSchedule", "NoExecute"})
"""Effects of device taints by which the scheduler does not allocate the device."""


def project_slice(one: Object) -> dict[str, Any]:
    """Keep of a ResourceSlice what says which GPUs there are, in the shape of v1."""
    meta, spec = of(one, "metadata"), of(one, "spec")
    driver, pool = texts(spec, ("driver",)).get("driver", ""), of(spec, "pool")
    return {
        "metadata": texts(meta, ("name",)),
        "spec": {
            **texts(spec, ("driver", "nodeName")),
            "pool": {
                **texts(pool, ("name",)),
                **{
                    key: int(pool[key])
                    for key in ("generation", "resourceSliceCount")
                    if key in pool
                },
            },
            "devices": [
                small for device in items(spec, "devices") if (small := _project(device, driver))
            ],
        },
    }


def _project(device: Object, driver: str) -> dict[str, Any] | None:
    """A device as far as it is read; None if it is no GPU and no part of one."""
    told = of(device, "basic") or device
    attributes: dict[str, Any] = {}
    for name, value in of(told, "attributes").items():
        domain, slash, bare = name.rpartition("/")
        kind = _TEXTS.get(bare) or _NUMBERS.get(bare)
        if kind is None or (slash and domain not in {driver, _STANDARD}):
            continue
        said = _value(value, kind)
        if said is not None:
            attributes[bare] = {kind: said}
    if "uuid" not in attributes and "parentUUID" not in attributes:
        return None
    if "productName" not in attributes and "type" not in attributes:
        return None
    taints = [
        texts(taint, ("key", "effect"))
        for taint in items(told, "taints")
        if taint.get("effect") in _BARRING
    ]
    return {
        **texts(device, ("name",)),
        "attributes": attributes,
        **({"taints": taints} if taints else {}),
        **({"allowMultipleAllocations": True} if told.get("allowMultipleAllocations") else {}),
    }


def _value(value: object, kind: str) -> str | int | None:
    """The value of an attribute, the first of a list (KEP-5491); None if it is of another kind."""
    if not isinstance(value, Mapping):
        return None
    said = value.get(kind)
    several = value.get(f"{kind}s")
    if said is None and isinstance(several, list) and several:
        said = several[0]
    if kind == "int":
        return said if isinstance(said, int) and not isinstance(said, bool) else None
    return said if isinstance(said, str) and said else None


def project_claim(one: Object) -> dict[str, Any]:
    """Keep of a ResourceClaim what says who has which devices."""
    meta, status = of(one, "metadata"), of(one, "status")
    allocated = items(of(of(status, "allocation"), "devices"), "results")
    return {
        "metadata": {
            **texts(meta, ("name", "namespace")),
            "annotations": only(of(meta, "annotations"), (FORMAT,)),
            "ownerReferences": [
                texts(owner, ("kind", "name")) for owner in items(meta, "ownerReferences")
            ],
        },
        "status": {
            "allocation": {
                "devices": {
                    "results": [
                        {
                            **texts(result, ("driver", "pool", "device")),
                            **({"adminAccess": True} if result.get("adminAccess") is True else {}),
                        }
                        for result in allocated
                    ]
                }
            },
            "reservedFor": [
                texts(user, ("resource", "name")) for user in items(status, "reservedFor")
            ],
        },
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The GPUs that one driver publishes of a node.

    GPUs whose number nobody publishes (lost, or not whole) are in the machine, and not `healthy`.
    `shared` says why none of them can be placed by its links. `clique` is the NVLink domain that
    they are in, where all say the same.
    """

    driver: str
    machine: Machine
    healthy: GPUSet
    clique: str | None = None
    shared: str | None = None
    product: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What all drivers publish: by node, and where each device is, with the GPU that it takes."""

    nodes: Mapping[str, Published] = field(default_factory=dict)
    places: Mapping[Device, tuple[str, GPUSet]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Gpu:
    """A whole GPU, or a part of one, as a slice tells it."""

    name: str
    pool: str
    attributes: Object
    barred: bool
    shared: bool

    def text(self, key: str) -> str | None:
        value = self.attributes.get(key)
        return None if value is None else value["string"]

    def number(self, key: str) -> int | None:
        value = self.attributes.get(key)
        return None if value is None else value["int"]

    @property
    def whole(self) -> bool:
        return "uuid" in self.attributes and self.text("type") in {None, "gpu"}

    @property
    def bus(self) -> str | None:
        return self.text("pciBusID") or self.text("pcieBusID")


@dataclass(slots=True)
class _Pool:
    """The devices that one driver publishes of one node."""

    gpus: list[_Gpu] = field(default_factory=list)
    parts: list[_Gpu] = field(default_factory=list)
    complete: bool = True

    def add(self, devices: Iterable[_Gpu]) -> None:
        for one in devices:
            (self.gpus if one.whole else self.parts).append(one)


def inventory(
    slices: Iterable[Object],
    counts: Mapping[str, int],
    uuids: Mapping[str, Sequence[str]],
    notes: list[str],
) -> Inventory:
    """The GPUs in slices that `project_slice` made; `notes` get what of them is not used.

    Of a pool the newest generation counts, and its GPUs may be used once it is complete, as the
    scheduler has it. `counts` are the GPUs that nodes say they have, in case slices tell fewer;
    `uuids` are the GPUs of nodes by index, as an agent there has seen them.
    """
    pools: dict[tuple[str, str], dict[str, Object]] = defaultdict(dict)
    for one in slices:
        spec = one["spec"]
        key = spec.get("driver", ""), spec["pool"].get("name", "")
        pools[key].setdefault(one["metadata"]["name"], spec)
    found: dict[str, dict[str, _Pool]] = defaultdict(lambda: defaultdict(_Pool))
    adrift: dict[str, int] = defaultdict(int)
    for (driver, pool), named in pools.items():
        newest = max(spec["pool"].get("generation", 0) for spec in named.values())
        live = [one for one in named.values() if one["pool"].get("generation", 0) == newest]
        wanted = max(one["pool"].get("resourceSliceCount", 1) for one in live)
        devices: dict[str, _Gpu] = {}
        for spec in live:
            fresh = [one for one in _devices(spec, pool) if one.name not in devices]
            devices |= {one.name: one for one in fresh}
            node = spec.get("nodeName")
            if node is None:
                adrift[driver] += sum(one.whole for one in fresh)
                continue
            if not fresh:
                continue
            if len(live) < wanted and found[node][driver].complete:
                found[node][driver].complete = False
                notes.append(
                    f"node {node}: {len(live)} of {wanted} ResourceSlices of {driver} are there;"
                    " none of its GPUs can be used until all are"
                )
            found[node][driver].add(fresh)
    for driver, many in sorted(adrift.items()):
        if many:
            notes.append(
                f"{many} GPU{'s' if many != 1 else ''} of {driver} belong to no single node; they"
                " are not used"
            )
    return _inventory(found, counts, uuids, notes)


def _devices(spec: Object, pool: str) -> Iterator[_Gpu]:
    for one in spec["devices"]:
        if "name" in one:
            yield _Gpu(
                name=one["name"],
                pool=pool,
                attributes=one["attributes"],
                barred="taints" in one,
                shared="allowMultipleAllocations" in one,
            )


def _inventory(
    found: Mapping[str, Mapping[str, _Pool]],
    counts: Mapping[str, int],
    uuids: Mapping[str, Sequence[str]],
    notes: list[str],
) -> Inventory:
    nodes: dict[str, Published] = {}
    places: dict[Device, tuple[str, GPUSet]] = {}
    shapes = _Shapes()
    for node, drivers in found.items():
        driver, *others = sorted(drivers, key=lambda one: (-len(drivers[one].gpus), one))
        pool = drivers[driver]
        if others and drivers[others[0]].gpus:
            notes.append(
                f"node {node}: {driver} and {others[0]} both publish GPUs; those of {driver} count"
            )
        if len(pool.gpus) > MOST_GPUS:
            notes.append(
                f"node {node}: {driver} publishes {len(pool.gpus)} GPUs, but {MOST_GPUS} are"
                " the most that one machine has; it is taken for none"
            )
            continue
        numbered = _numbered(pool.gpus, uuids.get(node, ()))
        size = _size(numbered, counts.get(node, 0))
        machine = shapes.machine(node, numbered, size)
        nodes[node] = _published(driver, machine, pool, numbered)
        places.update(_places(node, driver, pool, numbered))
    return Inventory(nodes=nodes, places=places)


def _size(numbered: Mapping[int, _Gpu], counted: int) -> int:
    """How many GPUs a machine has: one that is lost is still counted by a label."""
    if not numbered:
        return 0
    return max(max(numbered) + 1, counted if counted <= MOST_GPUS else 0)


def _places(
    node: str, driver: str, pool: _Pool, numbered: Mapping[int, _Gpu]
) -> Iterator[tuple[Device, tuple[str, GPUSet]]]:
    taken: dict[str, int] = {}
    for index, one in numbered.items():
        yield (driver, one.pool, one.name), (node, gpu_set([index]))
        taken |= {key: index for key in (one.text("uuid"), one.bus) if key}
    for one in pool.parts:
        # A part that is allocated takes its GPU, whose whole is then no more to be had.
        whole = taken.get(one.text("parentUUID") or "", taken.get(one.bus or ""))
        yield (driver, one.pool, one.name), (node, gpu_set([] if whole is None else [whole]))


def _published(
    driver: str, machine: Machine, pool: _Pool, numbered: Mapping[int, _Gpu]
) -> Published:
    cliques = {one.text("nvlinkClique") for one in pool.gpus}
    healthy = gpu_set(index for index, one in numbered.items() if not one.barred)
    return Published(
        driver=driver,
        machine=machine,
        healthy=healthy if pool.complete else GPUSet(0),
        clique=cliques.pop() if len(cliques) == 1 else None,
        shared=_shared(pool),
        product=_product(pool.gpus),
    )


def _product(gpus: Iterable[_Gpu]) -> str | None:
    """What all GPUs are called; None if they differ or are not called anything."""
    products = {one.text("productName") for one in gpus}
    return products.pop() if len(products) == 1 else None


def _shared(pool: _Pool) -> str | None:
    """Why none of the GPUs can be placed by its links; None if they can."""
    if any(one.shared for one in pool.gpus):
        return "GPUs are shared (allowMultipleAllocations)"
    slices = sorted({one.text("profile") or "" for one in pool.parts if one.text("type") == "mig"})
    if slices and not pool.gpus:
        return f"MIG slices ({slices[0]})" if slices[0] else "MIG slices"
    return None


def _numbered(gpus: Sequence[_Gpu], uuids: Sequence[str]) -> dict[int, _Gpu]:
    """The GPUs by their number on the machine, as nvidia-smi counts them.

    That is what an agent has seen (`uuids`); else their attribute `index`, which NVIDIA's driver
    has dropped; else the number in their name, which is the minor number of the device file and so
    leaves a gap for a GPU that is lost; but not on machines whose minor numbers run against the
    PCIe addresses, by which nvidia-smi counts (CUDA_DEVICE_ORDER=PCI_BUS_ID in NVIDIA's CUDA
    programming guide).
    """
    by_uuid = {uuid: index for index, uuid in enumerate(uuids)}
    seen = _distinct([by_uuid.get(one.text("uuid") or "") for one in gpus])
    if seen is not None:
        return dict(sorted(zip(seen, gpus, strict=True), key=lambda one: one[0]))
    stated = _distinct([one.number("index") for one in gpus])
    if stated is not None:
        return dict(sorted(zip(stated, gpus, strict=True), key=lambda one: one[0]))
    buses = [one.bus for one in gpus]
    known = None not in buses and len(set(buses)) == len(buses)
    minors = _distinct(
        [
            int(name[1]) if (name := re.fullmatch(r"gpu-(\d{1,4})", one.name)) else None
            for one in gpus
        ]
    )
    if minors is not None:
        by_minor = sorted(zip(minors, gpus, strict=True), key=lambda one: one[0])
        addresses = [one.bus or "" for _, one in by_minor]
        if not known or addresses == sorted(addresses):
            return dict(by_minor)
    ordered = sorted(gpus, key=lambda one: (one.bus or "" if known else "", natural(one.name)))
    return dict(enumerate(ordered))


_NAME = re.compile(r"gpu-(\d{1,4})")
"""How NVIDIA's driver calls a GPU, by its minor number (deviceinfo.go, CanonicalName)."""


def _distinct(numbers: Sequence[int | None]) -> list[int] | None:
    """The numbers, if all are there, possible and different."""
    known = [one for one in numbers if one is not None and 0 <= one < MOST_GPUS]
    return known if len(known) == len(numbers) == len(set(known)) else None


class _Shapes:
    """The links of machines: nodes are bought by the dozen, so equal ones share one matrix."""

    def __init__(self) -> None:
        self._known: dict[object, Machine] = {}

    def machine(self, name: str, numbered: Mapping[int, _Gpu], size: int) -> Machine:
        """The machine of these GPUs among `size`, each with its UUID and NUMA node."""
        key = (
            size,
            tuple(
                (index, one.text("productName"), one.text("pcieRoot"), one.number("numaNode"))
                for index, one in numbered.items()
            ),
        )
        shape = self._known.get(key)
        if shape is None:
            shape = self._known[key] = _shape(name, numbered, size)
        gpus = tuple(
            replace(gpu, uuid=numbered[gpu.index].text("uuid")) if gpu.index in numbered else gpu
            for gpu in shape.gpus
        )
        return replace(shape, name=name, gpus=gpus)


def _shape(name: str, numbered: Mapping[int, _Gpu], size: int) -> Machine:
    from arena_topo.topology import presets  # noqa: PLC0415 - only for nodes without a matrix

    product = _product(numbered.values())
    known = presets.match(product, size, name) if product else None

    def gpu(index: int) -> GPU:
        one = numbered.get(index)
        if one is None:
            return GPU(index=index, model=model_of(product))
        return GPU(
            index=index,
            model=model_of(one.text("productName") or product),
            numa=one.number("numaNode"),
        )

    gpus = tuple(map(gpu, range(size)))
    if known is not None:
        return replace(known, gpus=gpus)
    links = _links(numbered, size)
    assumed = any(link not in {None, SYS} for row in links for link in row)
    return Machine(
        name=name,
        gpus=gpus,
        links=links,
        knowledge=Knowledge.ASSUMED if assumed else Knowledge.UNKNOWN,
    )


def _links(numbered: Mapping[int, _Gpu], size: int) -> Matrix:
    """The slowest that links can be by the PCIe root and the NUMA node of each GPU.

    One root complex is one host bridge (PHB), one NUMA node is NODE; NVLinks are not published.
    """
    rows = [list(row) for row in flat(size)]
    for key, kind in (("numaNode", LinkKind.NODE), ("pcieRoot", LinkKind.PHB)):
        groups: dict[object, list[int]] = defaultdict(list)
        for index, one in numbered.items():
            where = one.attributes.get(key)
            if where is not None:
                groups[next(iter(where.values()))].append(index)
        for group in groups.values():
            for i in group:
                for j in group:
                    if i != j:
                        rows[i][j] = Link(kind=kind)
    return tuple(map(tuple, rows))


# --- claims ---------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Claimed:
    """What claims hold: GPUs by node, the pods that hold them, and the claims that were read.

    `foreign` are nodes on which somebody else's claims hold GPUs. `given` are the GPUs that pods
    have by their claims, each on its own node.
    """

    gpus: dict[str, GPUSet] = field(default_factory=dict)
    holders: set[tuple[str, str]] = field(default_factory=set)
    read: set[tuple[str, str]] = field(default_factory=set)
    foreign: set[str] = field(default_factory=set)
    given: dict[tuple[str, str], GPUSet] = field(default_factory=dict)


def is_ours(claim: Object, pods: Collection[tuple[str, str]]) -> bool:
    """Whether a claim that `project_claim` made is of a job of arena-topo.

    It belongs to the MPIJob, or only pods that arena-topo placed (namespace, name) are to use it.
    """
    meta = claim["metadata"]
    if FORMAT in meta["annotations"] or any(
        owner.get("kind") == "MPIJob" for owner in meta["ownerReferences"]
    ):
        return True
    users = {(meta.get("namespace", ""), name) for name in _users(claim)}
    return bool(users) and all(user in pods for user in users)


def claimed(
    claims: Iterable[Object],
    places: Mapping[Device, tuple[str, GPUSet]],
    ours: Collection[tuple[str, str]],
) -> Claimed:
    """What the allocations of claims that `project_claim` made hold.

    An allocation holds its devices as long as it is written there, whether or not its pod is still
    there: the scheduler gives them to nobody else. Claims that want devices and have none yet hold
    nothing. `ours` are the pods that arena-topo placed.
    """
    found = Claimed()
    for claim in claims:
        meta = claim["metadata"]
        namespace = meta.get("namespace", "")
        found.read.add((namespace, meta["name"]))
        users = {(namespace, name) for name in _users(claim)}
        mine = is_ours(claim, ours)
        for result in claim["status"]["allocation"]["devices"]["results"]:
            place = places.get(
                (result.get("driver", ""), result.get("pool", ""), result.get("device", ""))
            )
            # Monitoring may look at devices that others hold.
            if place is None or result.get("adminAccess"):
                continue
            node, gpus = place
            found.gpus[node] = GPUSet(found.gpus.get(node, 0) | gpus)
            if not mine:
                found.foreign.add(node)
            for user in users:
                found.given[user] = GPUSet(found.given.get(user, 0) | gpus)
            # A worker's own claim has its name.
            found.holders |= users | {(namespace, meta["name"])}
    return found


def _users(claim: Object) -> Iterator[str]:
    """The pods that a claim is for."""
    for user in claim["status"]["reservedFor"]:
        if user.get("resource") == "pods" and "name" in user:
            yield user["name"]
    for owner in claim["metadata"]["ownerReferences"]:
        if owner.get("kind") == "Pod" and "name" in owner:
            yield owner["name"]
