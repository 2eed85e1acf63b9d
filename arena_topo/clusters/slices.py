"""ResourceSlices and ResourceClaims -> the GPUs of DRA drivers, and which are allocated.

Any driver counts whose devices have a UUID and are marked as GPUs by the attributes of NVIDIA's
driver (kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin, deviceinfo.go and mig.go), in
every shape of resource.k8s.io since v1beta1.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from arena_topo.clusters.records import DRA, ClaimRecord, DeviceId, Gpu, SliceRecord
from arena_topo.notes import Note, Notes
from arena_topo.topology import (
    GPU,
    MOST_GPUS,
    GPUSet,
    Knowledge,
    Machine,
    NodeGPUs,
    flat,
    gpu_set,
    natural_key,
    presets,
)
from arena_topo.topology.models import model_of

DRA_GROUP = DRA

VERSIONS = ("v1", "v1beta2", "v1beta1")
"""API versions whose slices have one shape, best first; the last nests it under `basic`."""


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of all drivers: the GPUs by node, and for each device its node and its GPU."""

    nodes: Mapping[str, NodeGPUs] = {}
    places: Mapping[DeviceId, tuple[str, GPUSet]] = {}


class _Pool(msgspec.Struct):
    """The devices of one driver on one node."""

    devices: list[Gpu] = []
    complete: bool = True

    @property
    def gpus(self) -> list[Gpu]:
        return [device for device in self.devices if device.whole]

    @property
    def product(self) -> str | None:
        """The product name of all GPUs; None if they differ or have none."""
        products = {gpu.product for gpu in self.gpus}
        return products.pop() if len(products) == 1 else None

    @property
    def shared(self) -> str | None:
        """Why none of the GPUs can be placed by its links; None if they can."""
        gpus = self.gpus
        if any(gpu.shared for gpu in gpus):
            return "GPUs are shared (allowMultipleAllocations)"
        slices = sorted({device.profile or "" for device in self.devices if device.type == "mig"})
        if slices and not gpus:
            return f"MIG slices ({slices[0]})" if slices[0] else "MIG slices"
        return None


def impossible_count(node: str, what: str) -> Note:
    """The note on a node with more GPUs than any machine."""
    most = f"one machine has at most {MOST_GPUS} GPUs; it is taken for none"
    return Note(node, "impossible machine", f"node {node}: {what}, but {most}")


def devices(
    slices: Iterable[SliceRecord],
    counts: Mapping[str, int],
    uuids: Mapping[str, Sequence[str]],
    notes: Notes,
) -> Devices:
    """The GPUs in slices; unused ones are reported in `notes`.

    Only the newest generation of a pool counts, and its GPUs may be used once it is complete, as in
    the scheduler. `counts` are the numbers of GPUs that nodes report, in case slices have fewer;
    `uuids` are the GPUs of nodes by index, as an agent there has seen them.
    """
    pools: dict[tuple[str, str], dict[str, SliceRecord]] = defaultdict(dict)
    for entry in slices:
        pools[entry.driver, entry.pool].setdefault(entry.name, entry)
    pools_of: dict[str, dict[str, _Pool]] = defaultdict(lambda: defaultdict(_Pool))
    for (driver, _), named in pools.items():
        newest = max(entry.generation for entry in named.values())
        live = [entry for entry in named.values() if entry.generation == newest]
        expected = max(entry.slices for entry in live)
        names: set[str] = set()
        for entry in live:
            fresh = [gpu for gpu in entry.gpus if gpu.name not in names]
            names |= {gpu.name for gpu in fresh}
            if entry.node is None or not fresh:
                continue
            pool = pools_of[entry.node][driver]
            if len(live) < expected and pool.complete:
                pool.complete = False
                notes.add(
                    entry.node,
                    "incomplete pool",
                    f"node {entry.node}: {len(live)} of {expected} ResourceSlices of {driver}"
                    " exist; none of its GPUs can be used until all do",
                )
            pool.devices += fresh
    nodes: dict[str, NodeGPUs] = {}
    places: dict[DeviceId, tuple[str, GPUSet]] = {}
    shapes: dict[object, Machine] = {}
    for node, drivers in pools_of.items():
        driver, *others = sorted(drivers, key=lambda name: (-len(drivers[name].gpus), name))
        pool = drivers[driver]
        gpus = pool.gpus
        if others and drivers[others[0]].gpus:
            notes.add(
                node,
                "two drivers",
                f"node {node}: {driver} and {others[0]} both publish GPUs; those of {driver} count",
            )
        if len(gpus) > MOST_GPUS:
            notes.append(impossible_count(node, f"{driver} publishes {len(gpus)} GPUs"))
            continue
        numbered = _numbered(gpus, uuids.get(node, ()))
        # A label still counts a lost GPU.
        counted = counts.get(node, 0) if counts.get(node, 0) <= MOST_GPUS else 0
        size = max(max(numbered) + 1, counted) if numbered else 0
        healthy = gpu_set(index for index, gpu in numbered.items() if not gpu.tainted)
        cliques = {gpu.clique for gpu in gpus}
        nodes[node] = NodeGPUs(
            driver=driver,
            machine=_machine(node, numbered, size, pool.product, shapes),
            healthy=healthy if pool.complete else GPUSet(0),
            clique=cliques.pop() if len(cliques) == 1 else None,
            shared=pool.shared,
            product=pool.product,
        )
        index_of = {(gpu.pool, gpu.name): index for index, gpu in numbered.items()}
        # An allocated part takes its GPU, which is then not free as a whole.
        parents = {gpu.bus: index for index, gpu in numbered.items()}
        parents |= {gpu.uuid: index for index, gpu in numbered.items()}
        parents.pop(None, None)
        for device in pool.devices:
            part_of = parents.get(device.parent, parents.get(device.bus))
            index = index_of[device.pool, device.name] if device.whole else part_of
            used = gpu_set([] if index is None else [index])
            places[driver, device.pool, device.name] = node, used
    return Devices(nodes=nodes, places=places)


def _numbered(gpus: Sequence[Gpu], uuids: Sequence[str]) -> dict[int, Gpu]:
    """The GPUs by their index on the machine, as nvidia-smi counts them.

    Sources, best first: an agent (`uuids`); the attribute `index`, which NVIDIA's driver no longer
    writes; the number in the name. The last is the minor number of the device file, so it leaves a
    gap for a lost GPU; it is not used on machines whose minor numbers do not follow the PCIe
    addresses, by which nvidia-smi counts (CUDA_DEVICE_ORDER=PCI_BUS_ID in NVIDIA's CUDA programming
    guide).
    """
    by_uuid = {uuid: index for index, uuid in enumerate(uuids)}
    for numbers in ([by_uuid.get(gpu.uuid or "") for gpu in gpus], [gpu.index for gpu in gpus]):
        if (known := _by_number(numbers, gpus)) is not None:
            return known
    buses = {gpu.bus for gpu in gpus}
    ordered = None not in buses and len(buses) == len(gpus)
    names = [_NAME.fullmatch(gpu.name) for gpu in gpus]
    by_minor = _by_number([int(name[1]) if name else None for name in names], gpus)
    if by_minor is not None:
        addresses = [gpu.bus or "" for gpu in by_minor.values()]
        if not ordered or addresses == sorted(addresses):
            return by_minor
    return dict(
        enumerate(
            sorted(gpus, key=lambda gpu: (gpu.bus or "" if ordered else "", natural_key(gpu.name)))
        )
    )


_NAME = re.compile(r"gpu-(\d{1,4})")
"""The name of a GPU by NVIDIA's driver, with its minor number (deviceinfo.go, CanonicalName)."""


def _by_number(numbers: Sequence[int | None], gpus: Sequence[Gpu]) -> dict[int, Gpu] | None:
    """The GPUs by these indexes, if all are known, valid and different."""
    known = [number for number in numbers if number is not None and 0 <= number < MOST_GPUS]
    if len(known) != len(numbers) or len(known) != len(set(known)):
        return None
    return dict(sorted(zip(known, gpus, strict=True), key=lambda entry: entry[0]))


def _machine(
    name: str,
    numbered: Mapping[int, Gpu],
    size: int,
    product: str | None,
    shapes: dict[object, Machine],
) -> Machine:
    """The machine of these GPUs among `size`, each with its UUID and NUMA node.

    Nodes are bought by the dozen, so equal ones share one matrix, cached in `shapes`.
    """
    if (product, size) not in shapes:
        known = presets.known_machine(product, size, name) if product else None
        shapes[product, size] = known or Machine(
            name=name, gpus=(), links=flat(size), knowledge=Knowledge.UNKNOWN
        )
    gpus = []
    for index in range(size):
        gpu = numbered.get(index)
        model = model_of((gpu.product if gpu else None) or product)
        gpus.append(
            GPU(
                index=index,
                model=model,
                uuid=gpu.uuid if gpu else None,
                numa=gpu.numa if gpu else None,
            )
        )
    return replace(shapes[product, size], name=name, gpus=tuple(gpus))


# --- claims ---------------------------------------------------------------------------------


class Allocated(msgspec.Struct, kw_only=True):
    """The allocations of claims: GPUs by node, the pods that hold them, and the claims read.

    `foreign` are nodes on which claims of other systems hold GPUs. `given` are the GPUs that pods
    have by their claims, each on its own node.
    """

    gpus: dict[str, GPUSet] = {}
    holders: set[tuple[str, str]] = set()
    read: set[tuple[str, str]] = set()
    foreign: set[str] = set()
    given: dict[tuple[str, str], GPUSet] = {}


def allocated(
    claims: Iterable[ClaimRecord],
    places: Mapping[DeviceId, tuple[str, GPUSet]],
    ours: Collection[tuple[str, str]],
) -> Allocated:
    """The allocations of claims.

    An allocation holds its devices as long as it is recorded, even after its pod is gone: until
    then the scheduler gives them to no other claim. Claims without an allocation hold nothing.
    `ours` are the pods that arena-topo placed.
    """
    allocations = Allocated()
    for claim in claims:
        allocations.read.add(claim.key)
        users = {(claim.namespace, name) for name in claim.users}
        mine = claim.belongs(ours)
        for node, gpus in (places[device] for device in claim.devices if device in places):
            allocations.gpus[node] = GPUSet(allocations.gpus.get(node, 0) | gpus)
            if not mine:
                allocations.foreign.add(node)
            for user in users:
                allocations.given[user] = GPUSet(allocations.given.get(user, 0) | gpus)
            # The claim of a worker has the worker's name.
            allocations.holders |= users | {claim.key}
    return allocations
