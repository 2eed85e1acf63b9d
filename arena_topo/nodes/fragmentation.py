"""What the free GPUs are good for: gangs that still fit at full speed, and what is in their way.

Only GPUs and the links between them count here: taints, selectors, quotas, CPU and memory are left
out, since they differ from job to job. A node of which nobody can say which GPUs are in use counts
with what is certain whichever they are.
"""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from arena_topo.bandwidth import Wire, rate_is_assumed
from arena_topo.solver import UNLIMITED, Request, distances
from arena_topo.solver.classes import WHOLE, Index, NodeClass
from arena_topo.solver.gang import Found, best
from arena_topo.solver.gpu_sets import GPUSets, choices, has_nvlink, with_lowest
from arena_topo.solver.valuing import is_given
from arena_topo.topology import Cluster, GPUSet, Node, count, gpu_set, members, natural

PAIR = 2
"""GPUs that have a bandwidth; a single one talks to nobody."""

PACKED = 8
"""GPUs of a machine up to which disjoint sets are found among all ways to choose them. In larger
ones as many count as fit into the GPUs that fast enough links hold together."""

SIZES = (2, 4, 8, 16)
"""Sets of GPUs that are looked at in each machine, as far as it is so large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """What becomes of gangs of `size` GPUs, in the shape that needs the fewest nodes.

    That is `workers` x `gpus`: one node as long as it is large enough, then as many nodes as it
    takes, with the largest power of two of GPUs that a machine holds. `full` is GB/s that such a
    gang has on the empty cluster, None for a single GPU. So many of them fit at once at that speed:
    `whole` now and `whole_empty` on the empty cluster; `counted` fit now by numbers alone, at any
    speed. `best` is GB/s of all-reduce bus bandwidth that one gang of so many GPUs could have now
    in any shape, on `nodes` nodes that meet at level `tier`; all three are None if there is none.
    """

    size: int
    workers: int
    gpus: int
    full: float | None
    whole: int
    whole_empty: int
    counted: int
    best: float | None = None
    nodes: int | None = None
    tier: str | None = None

    @property
    def fits(self) -> bool:
        """Whether so many GPUs are free at all, wherever they are."""
        return self.nodes is not None


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Sets:
    """Disjoint sets of `size` GPUs of one node at the full speed of its machine.

    Of the `most` that the empty machine has, `whole` are free and `broken` are neither free nor in
    use as a whole: one of their GPUs is in use, or out of order, and another is not.
    """

    size: int
    whole: int
    broken: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """Nodes that are equally well off: `free` of `gpus` GPUs each, the same sets, all by names.

    `stranded` GPUs of each are free, but no other free GPU is joined to them as fast as their best
    neighbour. `opaque`: which GPUs are free is not known, so these are the worst numbers. `lacking`
    is how many more GPUs of one such node must become free until it takes a worker of
    `Kind.missing` at full speed; None if its healthy GPUs never do, or no gang is missing.
    `unavailable` says why no job can start there.
    """

    names: tuple[str, ...]
    gpus: int
    free: int
    sets: tuple[Sets, ...]
    stranded: int
    opaque: bool
    unavailable: str | None
    lacking: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The nodes that one gang may combine: one GPU model (None: unknown), one resource.

    `free` GPUs can be taken now, of `total`; `away` are free on nodes where no job can start.
    `assumed`: what an NVLink of these GPUs carries is a guess.
    """

    model: str | None
    resource: str
    total: int
    free: int
    away: int
    gangs: tuple[Gang, ...]
    alike: tuple[Alike, ...]
    assumed: bool = False

    @property
    def working(self) -> tuple[Alike, ...]:
        """The nodes on which jobs can start."""
        return tuple(one for one in self.alike if one.unavailable is None)

    @property
    def sets(self) -> tuple[Sets, ...]:
        """The sets of all working nodes together, by size."""
        found: dict[int, list[int]] = {}
        for one in self.working:
            for some in one.sets:
                sums = found.setdefault(some.size, [0, 0, 0])
                for at, number in enumerate((some.whole, some.broken, some.most)):
                    sums[at] += number * len(one.names)
        return tuple(
            Sets(size=size, whole=whole, broken=broken, most=most)
            for size, (whole, broken, most) in sorted(found.items())
        )

    @property
    def stranded(self) -> int:
        """The stranded GPUs of all working nodes together."""
        return sum(one.stranded * len(one.names) for one in self.working)

    @property
    def largest(self) -> int:
        """The GPUs of the largest gang that fits at full speed; 0 if there is none."""
        return max((one.size for one in self.gangs if one.whole), default=0)

    @property
    def missing(self) -> Gang | None:
        """The smallest gang that the free GPUs would be enough for, but not at full speed."""
        return _missing(self.gangs, self.free)

    @property
    def nearest(self) -> tuple[Alike, ...]:
        """The nodes that lack the fewest GPUs for the missing gang, best first."""
        short = [one for one in self.working if one.lacking]
        return tuple(sorted(short, key=lambda one: (one.lacking, natural(one.names[0]))))


def _missing(gangs: Sequence[Gang], free: int) -> Gang | None:
    short = (one for one in gangs if one.size <= free and not one.whole)
    return next((one for one in short if one.whole_empty), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragmentation:
    """What the free GPUs of a cluster are good for, by kind of node, the largest kind first.

    `shared` are GPUs that are cut up or shared, and `shared_nodes` their nodes: no gang gets them.
    """

    kinds: tuple[Kind, ...]
    shared: int = 0
    shared_nodes: int = 0


def look(cluster: Cluster) -> Fragmentation:
    """Work out what the free GPUs are good for now, and on the cluster without any job."""
    kinds: dict[tuple[str | None, str], list[Node]] = defaultdict(list)
    shared: list[Node] = []
    for node in cluster.nodes:
        if node.shared is not None:
            shared.append(node)
        elif node.machine.gpus:
            kinds[node.machine.model, node.resource].append(node)
    found = [
        _Kind(replace(cluster, nodes=tuple(nodes))).told(model, resource)
        for (model, resource), nodes in kinds.items()
    ]
    return Fragmentation(
        kinds=tuple(sorted(found, key=lambda one: (-one.total, one.model or "", one.resource))),
        shared=sum(len(node.machine.gpus) for node in shared),
        shared_nodes=len(shared),
    )


class _Kind:
    """The nodes of one kind, as they are and as they would be without jobs."""

    def __init__(self, cluster: Cluster) -> None:
        self.now, self.empty = Index(cluster), Index(cluster.idle())
        self._nodes = cluster.nodes
        rails = all(node.machine.nics for node in cluster.nodes)
        given = any(is_given(cluster, at) for at in range(-1, len(cluster.tiers)))
        self._wire = Wire.RDMA if rails or given else Wire.TCP
        self._rooms = Counter(map(_usable, cluster.nodes))
        self._free = sum(room * many for room, many in self._rooms.items())
        self._most = max(len(node.machine.gpus) for node in cluster.nodes)

    def told(self, model: str | None, resource: str) -> Kind:
        """All about these nodes."""
        total = sum(len(node.machine.gpus) for node in self._nodes)
        gangs = tuple(self._gang(1 << power) for power in range(total.bit_length()))
        return Kind(
            model=model,
            resource=resource,
            total=total,
            free=self._free,
            away=sum(node.free_count for node in self._nodes) - self._free,
            gangs=gangs,
            alike=tuple(self._alike(_missing(gangs, self._free))),
            assumed=rate_is_assumed(model)
            and any(has_nvlink(one.sets.configuration) for one, _node in _members(self.now)),
        )

    def _gang(self, size: int) -> Gang:
        gpus = min(size, 1 << (self._most.bit_length() - 1))
        workers = size // gpus
        compact = best(Request(workers=workers, gpus=gpus, wire=self._wire), self.empty)
        full = 0.0 if compact is None else compact.bandwidth
        fits = compact is not None
        pieces = Request(workers=size, gpus=1, wire=self._wire)
        now = best(pieces, self.now) if size <= self._free else None
        return Gang(
            size=size,
            workers=workers,
            gpus=gpus,
            full=full if fits and full != UNLIMITED else None,
            whole=0 if compact is None else _whole(self.now, workers, gpus, compact),
            whole_empty=0 if compact is None else _whole(self.empty, workers, gpus, compact),
            counted=sum(room // gpus * many for room, many in self._rooms.items()) // workers,
            best=None if now is None or size < PAIR else now.bandwidth,
            nodes=None if now is None else now.worth.nodes,
            tier=None if now is None else list(distances(self.now.cluster))[now.worth.distance],
        )

    def _alike(self, missing: Gang | None) -> Iterator[Alike]:
        """The nodes, those that are equally well off together, the largest and freest first."""
        told: dict[tuple[object, ...], list[str]] = defaultdict(list)
        shown: dict[tuple[object, ...], Alike] = {}
        known: dict[tuple[object, ...], Alike] = {}
        for one, node in _members(self.now):
            # A class is one object, and its nodes differ only in what no job asks for.
            like = (id(one), node.unavailable, node.allocatable)
            found = known.get(like)
            if found is None:
                found = known[like] = _described(one, node, missing)
            key: tuple[object, ...] = (
                *(found.gpus, found.free, found.sets, found.stranded, found.opaque),
                *(found.unavailable, found.lacking),
            )
            shown.setdefault(key, found)
            told[key].append(node.name)
        for key, names in told.items():
            yield replace(shown[key], names=tuple(sorted(names, key=natural)))


def _members(index: Index) -> Iterator[tuple[NodeClass, Node]]:
    """All nodes, each with its class."""
    candidates = index.candidates(Request(workers=1, gpus=1))
    for classes, nodes in candidates.leaves:
        for at, node in zip(classes, nodes, strict=True):
            yield candidates.classes[at], node


def _usable(node: Node) -> int:
    """The free GPUs of a node on which jobs can start."""
    return node.free_count if node.unavailable is None else 0


def _whole(index: Index, workers: int, gpus: int, like: Found) -> int:
    """How many gangs fit at once as fast as one, each worker but a lone one on its own node."""
    candidates = index.candidates(Request(workers=1, gpus=1))
    if workers == 1:
        # On nodes where no job can start there is room for none.
        return sum(
            certain(one.sets, one.free, one.hidden, gpus, like.bandwidth) * candidates.counts[at]
            for at, one in enumerate(candidates.classes)
            if one.capacity
        )
    able = {
        at
        for at, one in enumerate(candidates.classes)
        if one.capacity and one.best(1, like.floor.terms) >= like.floor.bandwidth
    }
    # No machine holds two such workers, and as near as the one found is near enough.
    level = WHOLE if like.level is None else like.level
    domains = Counter(node.domains[: level + 1] for _, _, node in candidates.members(able))
    return sum(many // workers for many in domains.values())


def _described(one: NodeClass, node: Node, missing: Gang | None) -> Alike:
    """How well off a node is, and those like it."""
    sets = one.sets
    whole = sets.everything
    found = []
    for size in SIZES:
        if size > sets.size:
            break
        full = sets.best(whole, size)
        most = disjoint(sets, whole, size, full)
        free = certain(sets, one.free, one.hidden, size, full)
        if one.hidden and sets.uniform:
            used = (sets.size - node.free_count) // size
        else:
            used = disjoint(sets, GPUSet(whole & ~one.free), size, full)
        found.append(Sets(size=size, whole=free, broken=max(0, most - free - used), most=most))
    return Alike(
        names=(),
        gpus=sets.size,
        free=node.free_count,
        sets=tuple(found),
        stranded=_stranded(sets, one.free, one.hidden),
        opaque=one.hidden > 0,
        unavailable=node.unavailable,
        lacking=None if missing is None else _lacking(one, _healthy(node), missing),
    )


# ---------------------------------------------------------------- sets of one machine


@functools.lru_cache(maxsize=1 << 16)
def certain(sets: GPUSets, free: GPUSet, hidden: int, size: int, speed: float) -> int:
    """How many disjoint sets of `size` free GPUs have so many GB/s, whichever are hidden.

    `hidden` of the free GPUs are in use, nobody says which. Exact for machines of up to 8 GPUs, for
    those whose links are all alike, and wherever nothing is hidden (as `disjoint` is); else at
    least so many.
    """
    left = max(0, count(free) - hidden)
    if not hidden or size < PAIR or sets.uniform or left < size:
        some = free if not hidden else GPUSet((1 << left) - 1)
        return disjoint(sets, some, size, speed)
    if sets.size <= PACKED:
        return min(disjoint(sets, one, size, speed) for one in choices(free, left, sets.alike))
    return left // size if sets.worst(free, size) >= speed else 0


@functools.lru_cache(maxsize=1 << 16)
def disjoint(sets: GPUSets, gpus: GPUSet, size: int, speed: float) -> int:
    """How many disjoint sets of `size` of these GPUs have so many GB/s at once.

    Exact, but for machines of more than 8 GPUs with measured values, which do not count there.
    """
    if size < PAIR:
        return count(gpus)
    if sets.uniform:
        fast = sets.best(sets.everything, size) >= speed
        return count(gpus) // size if fast else 0
    if sets.size <= PACKED:
        return _packed(sets, gpus, size, speed)
    if sets.best(gpus, size) < speed:
        return 0
    fit = 1
    for _rate, groups in sets.parts:
        large = [group for group in groups if count(group) >= size]
        if any(sets.value(gpu_set(members(group)[:size])) >= speed for group in large):
            fit = max(fit, sum(count(GPUSet(group & gpus)) // size for group in groups))
    return fit


@functools.lru_cache(maxsize=1 << 16)
def _packed(sets: GPUSets, gpus: int, size: int, speed: float) -> int:
    if gpus.bit_count() < size:
        return 0
    found = _packed(sets, gpus & (gpus - 1), size, speed)
    for group in with_lowest(gpus, size):
        if found == gpus.bit_count() // size:
            break
        if sets.value(group) >= speed:
            found = max(found, 1 + _packed(sets, gpus ^ group, size, speed))
    return found


def _stranded(sets: GPUSets, free: GPUSet, hidden: int) -> int:
    """Free GPUs without a free neighbour as fast as their best; the most where some are hidden."""
    left = max(0, count(free) - hidden)
    if sets.uniform:
        return 1 if left == 1 and sets.size > 1 else 0
    if not hidden:
        return _alone(sets, free)
    if sets.size <= PACKED:
        return max((_alone(sets, one) for one in choices(free, left, sets.alike)), default=0)
    full = sets.best(sets.everything, PAIR)
    return left - PAIR * certain(sets, free, hidden, PAIR, full)


@functools.lru_cache(maxsize=1 << 16)
def _alone(sets: GPUSets, free: GPUSet) -> int:
    everything = range(sets.size)
    inside = members(free)
    found = 0
    for gpu in inside:
        speeds = {
            other: sets.value(GPUSet(1 << gpu | 1 << other)) for other in everything if other != gpu
        }
        best_of_all = max(speeds.values(), default=0.0)
        found += max((speeds[other] for other in inside if other != gpu), default=0.0) < best_of_all
    return found


FEW = 5_000
"""Sets that are gone through to see what a node lacks; beyond, numbers alone must do."""


def _healthy(node: Node) -> GPUSet:
    """The GPUs of a node that work, whoever uses them."""
    every = node.machine.everything
    return every if node.allocatable is None else GPUSet(every & (node.allocatable | node.free))


def _lacking(one: NodeClass, healthy: GPUSet, gang: Gang) -> int | None:
    """How many GPUs must become free until a node takes a worker of a gang at its full speed.

    None if even all its `healthy` GPUs together do not.
    """
    sets, speed = one.sets, gang.full or UNLIMITED
    if count(healthy) < gang.gpus or sets.best(healthy, gang.gpus) < speed:
        return None
    if certain(sets, one.free, one.hidden, gang.gpus, speed):
        return 0
    short = gang.gpus - max(0, count(one.free) - one.hidden)
    if sets.uniform or math.comb(sets.size, gang.gpus) > FEW:
        return max(1, short)
    nearest = min(
        (
            count(GPUSet(some & ~one.free))
            for some in _fast(sets, gang.gpus, speed)
            if not some & ~healthy
        ),
        default=short,
    )
    return max(1, min(gang.gpus, nearest + one.hidden))


@functools.lru_cache(maxsize=64)
def _fast(sets: GPUSets, size: int, speed: float) -> tuple[GPUSet, ...]:
    """All sets of `size` GPUs of a machine that have so many GB/s."""
    whole = sets.everything
    every = choices(whole, size, tuple(range(sets.size)))
    return tuple(one for one in every if sets.value(one) >= speed)
