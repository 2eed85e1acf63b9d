"""ResourceSlices and ResourceClaims -> the GPUs that DRA drivers publish, and which are allocated.

Any driver counts whose devices have a UUID and say that they are GPUs, in the words of NVIDIA's
(kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin, deviceinfo.go and mig.go), in every
shape of resource.k8s.io since v1beta1.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from arena_topo.clusters.records import ClaimRecord, Device, Gpu, SliceRecord
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
    presets,
)
from arena_topo.topology.models import model_of

GROUP = "resource.k8s.io"

VERSIONS = ("v1", "v1beta2", "v1beta1")
"""Those of the group that have slices of one shape, best first; the last nests it under `basic`."""


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
class Devices:
    """What all drivers publish: by node, and where each device is, with the GPU that it takes."""

    nodes: Mapping[str, Published] = field(default_factory=dict)
    places: Mapping[Device, tuple[str, GPUSet]] = field(default_factory=dict)


@dataclass(slots=True)
class _Pool:
    """The devices that one driver publishes of one node."""

    gpus: list[Gpu] = field(default_factory=list)
    parts: list[Gpu] = field(default_factory=list)
    complete: bool = True

    def add(self, devices: Iterable[Gpu]) -> None:
        for one in devices:
            (self.gpus if one.whole else self.parts).append(one)


def devices(
    slices: Iterable[SliceRecord],
    counts: Mapping[str, int],
    uuids: Mapping[str, Sequence[str]],
    notes: list[str],
) -> Devices:
    """The GPUs in slices; `notes` get what of them is not used.

    Of a pool the newest generation counts, and its GPUs may be used once it is complete, as the
    scheduler has it. `counts` are the GPUs that nodes say they have, in case slices tell fewer;
    `uuids` are the GPUs of nodes by index, as an agent there has seen them.
    """
    pools: dict[tuple[str, str], dict[str, SliceRecord]] = defaultdict(dict)
    for one in slices:
        pools[one.driver, one.pool].setdefault(one.name, one)
    found: dict[str, dict[str, _Pool]] = defaultdict(lambda: defaultdict(_Pool))
    unattached: dict[str, int] = defaultdict(int)
    for (driver, _), named in pools.items():
        newest = max(one.generation for one in named.values())
        live = [one for one in named.values() if one.generation == newest]
        wanted = max(one.slices for one in live)
        seen: set[str] = set()
        for one in live:
            fresh = [gpu for gpu in one.gpus if gpu.name not in seen]
            seen |= {gpu.name for gpu in fresh}
            if one.node is None:
                unattached[driver] += sum(gpu.whole for gpu in fresh)
                continue
            if not fresh:
                continue
            if len(live) < wanted and found[one.node][driver].complete:
                found[one.node][driver].complete = False
                notes.append(
                    f"node {one.node}: {len(live)} of {wanted} ResourceSlices of {driver} are"
                    " there; none of its GPUs can be used until all are"
                )
            found[one.node][driver].add(fresh)
    for driver, many in sorted(unattached.items()):
        if many:
            notes.append(
                f"{many} GPU{'s' if many != 1 else ''} of {driver} belong to no single node; they"
                " are not used"
            )
    return _devices(found, counts, uuids, notes)


def _devices(
    found: Mapping[str, Mapping[str, _Pool]],
    counts: Mapping[str, int],
    uuids: Mapping[str, Sequence[str]],
    notes: list[str],
) -> Devices:
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
    return Devices(nodes=nodes, places=places)


def _size(numbered: Mapping[int, Gpu], counted: int) -> int:
    """How many GPUs a machine has: one that is lost is still counted by a label."""
    if not numbered:
        return 0
    return max(max(numbered) + 1, counted if counted <= MOST_GPUS else 0)


def _places(
    node: str, driver: str, pool: _Pool, numbered: Mapping[int, Gpu]
) -> Iterator[tuple[Device, tuple[str, GPUSet]]]:
    taken: dict[str, int] = {}
    for index, one in numbered.items():
        yield (driver, one.pool, one.name), (node, gpu_set([index]))
        taken |= {key: index for key in (one.uuid, one.bus) if key}
    for one in pool.parts:
        # A part that is allocated takes its GPU, whose whole is then no more to be had.
        whole = taken.get(one.parent or "", taken.get(one.bus or ""))
        yield (driver, one.pool, one.name), (node, gpu_set([] if whole is None else [whole]))


def _published(
    driver: str, machine: Machine, pool: _Pool, numbered: Mapping[int, Gpu]
) -> Published:
    cliques = {one.clique for one in pool.gpus}
    healthy = gpu_set(index for index, one in numbered.items() if not one.tainted)
    return Published(
        driver=driver,
        machine=machine,
        healthy=healthy if pool.complete else GPUSet(0),
        clique=cliques.pop() if len(cliques) == 1 else None,
        shared=_shared(pool),
        product=_product(pool.gpus),
    )


def _product(gpus: Iterable[Gpu]) -> str | None:
    """What all GPUs are called; None if they differ or are not called anything."""
    products = {one.product for one in gpus}
    return products.pop() if len(products) == 1 else None


def _shared(pool: _Pool) -> str | None:
    """Why none of the GPUs can be placed by its links; None if they can."""
    if any(one.shared for one in pool.gpus):
        return "GPUs are shared (allowMultipleAllocations)"
    slices = sorted({one.profile or "" for one in pool.parts if one.type == "mig"})
    if slices and not pool.gpus:
        return f"MIG slices ({slices[0]})" if slices[0] else "MIG slices"
    return None


def _numbered(gpus: Sequence[Gpu], uuids: Sequence[str]) -> dict[int, Gpu]:
    """The GPUs by their number on the machine, as nvidia-smi counts them.

    That is what an agent has seen (`uuids`); else their attribute `index`, which NVIDIA's driver
    has dropped; else the number in their name, which is the minor number of the device file and so
    leaves a gap for a GPU that is lost; but not on machines whose minor numbers run against the
    PCIe addresses, by which nvidia-smi counts (CUDA_DEVICE_ORDER=PCI_BUS_ID in NVIDIA's CUDA
    programming guide).
    """
    by_uuid = {uuid: index for index, uuid in enumerate(uuids)}
    for numbers in ([by_uuid.get(one.uuid or "") for one in gpus], [one.index for one in gpus]):
        if (known := _by_number(numbers, gpus)) is not None:
            return known
    told = {one.bus for one in gpus}
    ordered = None not in told and len(told) == len(gpus)
    names = [_NAME.fullmatch(one.name) for one in gpus]
    by_minor = _by_number([int(name[1]) if name else None for name in names], gpus)
    if by_minor is not None:
        addresses = [one.bus or "" for one in by_minor.values()]
        if not ordered or addresses == sorted(addresses):
            return by_minor
    return dict(
        enumerate(
            sorted(gpus, key=lambda one: (one.bus or "" if ordered else "", natural(one.name)))
        )
    )


_NAME = re.compile(r"gpu-(\d{1,4})")
"""How NVIDIA's driver calls a GPU, by its minor number (deviceinfo.go, CanonicalName)."""


def _by_number(numbers: Sequence[int | None], gpus: Sequence[Gpu]) -> dict[int, Gpu] | None:
    """The GPUs by these numbers, if all are there, possible and different."""
    known = [one for one in numbers if one is not None and 0 <= one < MOST_GPUS]
    if len(known) != len(numbers) or len(known) != len(set(known)):
        return None
    return dict(sorted(zip(known, gpus, strict=True), key=lambda one: one[0]))


class _Shapes:
    """The links of machines: nodes are bought by the dozen, so equal ones share one matrix."""

    def __init__(self) -> None:
        self._known: dict[object, Machine] = {}

    def machine(self, name: str, numbered: Mapping[int, Gpu], size: int) -> Machine:
        """The machine of these GPUs among `size`, each with its UUID and NUMA node."""
        key = (
            size,
            tuple((index, one.product, one.root, one.numa) for index, one in numbered.items()),
        )
        shape = self._known.get(key)
        if shape is None:
            shape = self._known[key] = _shape(name, numbered, size)
        gpus = tuple(
            replace(gpu, uuid=numbered[gpu.index].uuid) if gpu.index in numbered else gpu
            for gpu in shape.gpus
        )
        return replace(shape, name=name, gpus=gpus)


def _shape(name: str, numbered: Mapping[int, Gpu], size: int) -> Machine:
    product = _product(numbered.values())
    known = presets.match(product, size, name) if product else None

    def gpu(index: int) -> GPU:
        one = numbered.get(index)
        if one is None:
            return GPU(index=index, model=model_of(product))
        return GPU(
            index=index,
            model=model_of(one.product or product),
            numa=one.numa,
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


def _links(numbered: Mapping[int, Gpu], size: int) -> Matrix:
    """The slowest that links can be by the PCIe root and the NUMA node of each GPU.

    One root complex is one host bridge (PHB), one NUMA node is NODE; NVLinks are not published.
    """
    rows = [list(row) for row in flat(size)]
    numas = {index: one.numa for index, one in numbered.items()}
    roots = {index: one.root for index, one in numbered.items()}
    for places, kind in ((numas, LinkKind.NODE), (roots, LinkKind.PHB)):
        groups: dict[object, list[int]] = defaultdict(list)
        for index, place in places.items():
            if place is not None:
                groups[place].append(index)
        for group in groups.values():
            for i in group:
                for j in group:
                    if i != j:
                        rows[i][j] = Link(kind=kind)
    return tuple(map(tuple, rows))


# --- claims ---------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Allocated:
    """What claims hold: GPUs by node, the pods that hold them, and the claims that were read.

    `foreign` are nodes on which somebody else's claims hold GPUs. `given` are the GPUs that pods
    have by their claims, each on its own node.
    """

    gpus: dict[str, GPUSet] = field(default_factory=dict)
    holders: set[tuple[str, str]] = field(default_factory=set)
    read: set[tuple[str, str]] = field(default_factory=set)
    foreign: set[str] = field(default_factory=set)
    given: dict[tuple[str, str], GPUSet] = field(default_factory=dict)


def allocated(
    claims: Iterable[ClaimRecord],
    places: Mapping[Device, tuple[str, GPUSet]],
    ours: Collection[tuple[str, str]],
) -> Allocated:
    """What the allocations of claims hold.

    An allocation holds its devices as long as it is written there, whether or not its pod is still
    there: the scheduler gives them to nobody else. Claims that want devices and have none yet hold
    nothing. `ours` are the pods that arena-topo placed.
    """
    found = Allocated()
    for claim in claims:
        found.read.add(claim.key)
        users = {(claim.namespace, name) for name in claim.users}
        mine = claim.belongs(ours)
        for node, gpus in (places[one] for one in claim.devices if one in places):
            found.gpus[node] = GPUSet(found.gpus.get(node, 0) | gpus)
            if not mine:
                found.foreign.add(node)
            for user in users:
                found.given[user] = GPUSet(found.given.get(user, 0) | gpus)
            # A worker's own claim has its name.
            found.holders |= users | {claim.key}
    return found
