"""`top node --frag`: gangs that still fit at full speed, and which GPUs are fragmented.

Only GPUs and the links between them count: taints, selectors, quotas, CPU and memory differ from
job to job. Reserved GPUs are neither free nor in use. If the GPUs in use on a node are not known,
only sets that are certainly free count. On the screen, nodes in the same state share a line.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from msgspec import structs

from arena_topo import layout
from arena_topo.bandwidth import Wire
from arena_topo.bandwidth.rates import rate_is_assumed
from arena_topo.engines.backend import Backend
from arena_topo.gang.request import Site, request_of
from arena_topo.job import MPIJob, PodShape
from arena_topo.manifests import estimates
from arena_topo.manifests.binding import is_certain
from arena_topo.solver import UNLIMITED, Request, band
from arena_topo.solver.door import GPUSets, NodeChoice, Solver, sets_of
from arena_topo.topology import Cluster, GPUSet, Node, NodeName, gpu_set, members, natural_key
from arena_topo.words import counted, listed

SMALLEST_SET = 2
"""The smallest number of GPUs that has a bandwidth."""

SET_SIZES = (2, 4, 8, 16)
"""Sizes of the sets that are examined in each machine, up to its number of GPUs."""


MAX_SCREEN_LINES = 12
"""The most lines of nodes on the screen; together with the gangs of a thousand nodes one screen."""

_NAMES = 2
"""The most names in a line of nodes."""

_SET_NAMES = {2: "PAIRS", 4: "QUADS", 8: "EIGHTS", 16: "SIXTEENS"}

_LEGEND = """\
SHAPE: pods x GPUs; GB/s: full speed {network}
WHOLE, EMPTY: gangs of this SHAPE at full speed, now and on the empty cluster
COUNTED: gangs of this SHAPE that fit by numbers of free GPUs alone
BEST NOW: what one gang of any shape gets, whatever GPUs the kubelet picks
PAIRS, QUADS, EIGHTS: sets of GPUs of one node at full speed, free / {partly}
"""


_NETWORKS = {
    False: "over TCP, as in plan",
    True: "with RDMA, as in plan --rdma",
    None: "with RDMA where all nodes offer it (plan --rdma), else over TCP",
}
"""What the bandwidths between nodes rest on, by whether the nodes offer RDMA; None: some do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """How many gangs of `size` GPUs fit, in the shape that needs the fewest nodes.

    The shape is `workers` x `gpus`: one node if it is large enough, else nodes with the largest
    power of two of GPUs that a machine has. `full` is GB/s of the gang on the empty cluster, None
    for a single GPU. The number of gangs of this shape that fit at once at that speed is `whole`
    now and `whole_empty` on the empty cluster; `counted` fit now by numbers of GPUs alone, at any
    speed.
    `best` is GB/s of all-reduce bus bandwidth of one gang of this size now, in any shape, as
    planned, on `nodes` nodes that meet at level `tier`; `usable` is what it gets in any case, if
    the kubelet picks GPUs. All four are None if no gang fits.
    """

    size: int
    workers: int
    gpus: int
    full: float | None
    whole: int
    whole_empty: int
    counted: int
    best: float | None = None
    usable: float | None = None
    nodes: int | None = None
    tier: str | None = None

    @property
    def gets_full_speed(self) -> bool:
        """Whether a gang of this size gets its full speed now, in this shape or in another."""
        if self.whole or self.full is None or self.usable is None:
            return self.whole > 0
        return band(self.usable) >= band(self.full)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Sets:
    """Disjoint sets of `size` GPUs of one node at the full speed of its machine.

    Of the `most` that the empty machine has, `whole` are free. `broken` are neither free nor
    entirely taken: one of their GPUs is in use, reserved or unhealthy, and another is not.
    """

    size: int
    whole: int
    broken: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Nodes in the same state: `free` of `gpus` GPUs each, the same sets, and their names.

    `reserved` more would be free if no gang waited for them. `stranded` of these GPUs are free, but
    no other free GPU has a link to them as fast as their best one. `opaque`: the indexes of the
    free GPUs are not known. `unavailable` says why no job can start there.
    """

    names: tuple[str, ...]
    gpus: int
    free: int
    sets: tuple[Sets, ...]
    stranded: int
    opaque: bool
    unavailable: str | None
    reserved: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinableNodes:
    """The nodes that one gang may combine: one GPU model (None: unknown), one resource.

    `free` of `total` GPUs can be allocated now; `away` are free on nodes where no job can start,
    and `reserved` are kept for the gangs `reserved_for`.
    `missing` is the smallest gang for which the free GPUs would be enough, but not at full speed,
    and `release` says what others would have to free for it. `assumed`: the rate of an NVLink of
    these GPUs is a guess. `rdma`: the bandwidths count on RDMA between nodes.
    """

    model: str | None
    resource: str
    total: int
    free: int
    away: int
    gangs: tuple[Gang, ...]
    groups: tuple[NodeGroup, ...]
    missing: Gang | None = None
    release: str | None = None
    assumed: bool = False
    rdma: bool = False
    reserved: int = 0
    reserved_for: tuple[str, ...] = ()

    @property
    def working(self) -> tuple[NodeGroup, ...]:
        """The nodes on which jobs can start."""
        return tuple(group for group in self.groups if group.unavailable is None)

    @property
    def sets(self) -> tuple[Sets, ...]:
        """The sets of all working nodes together, by size."""
        totals: dict[int, Counter[str]] = defaultdict(Counter)
        for group in self.working:
            for sets in group.sets:
                for field in ("whole", "broken", "most"):
                    totals[sets.size][field] += getattr(sets, field) * len(group.names)
        return tuple(Sets(size=size, **sums) for size, sums in sorted(totals.items()))

    @property
    def stranded(self) -> int:
        """The stranded GPUs of all working nodes together."""
        return sum(group.stranded * len(group.names) for group in self.working)

    @property
    def largest(self) -> int:
        """The GPUs of the largest gang that gets full speed in any shape; 0 if no gang does."""
        return max((gang.size for gang in self.gangs if gang.gets_full_speed), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragmentation:
    """The fragmentation of a cluster by kind of node, the largest kind first.

    `shared` GPUs are partitioned or shared, on `shared_nodes` nodes: no gang gets them.
    """

    kinds: tuple[CombinableNodes, ...]
    shared: int = 0
    shared_nodes: int = 0


def measure_fragmentation(cluster: Cluster, backend: Backend | None = None) -> Fragmentation:
    """Compare the gangs that fit now with those that fit on the empty cluster.

    Bandwidths are those of plans on this engine; without one, of plans on a dump.
    """
    site = Site(backend=backend)
    kinds: dict[tuple[str | None, str], list[Node]] = defaultdict(list)
    shared = [node for node in cluster.nodes if node.shared is not None]
    for node in cluster.nodes:
        if node.shared is None and node.machine.gpus:
            kinds[node.machine.model, node.resource].append(node)
    rows = [_kind(replace(cluster, nodes=tuple(nodes)), site) for nodes in kinds.values()]
    return Fragmentation(
        kinds=tuple(sorted(rows, key=lambda kind: (-kind.total, kind.model or "", kind.resource))),
        shared=sum(len(node.machine.gpus) for node in shared),
        shared_nodes=len(shared),
    )


def _kind(cluster: Cluster, site: Site) -> CombinableNodes:
    """The state of the nodes of a cluster that one gang may combine."""
    nodes = cluster.nodes
    rdma = all(node.rdma for node in nodes)

    def asked(workers: int, gpus: int, *, joined: bool = False) -> Request:
        shape = PodShape.SHARED if joined else PodShape.SEPARATE
        job = MPIJob.sketch(
            gputopology=True, workers=workers, gpus=gpus, rdma=rdma, pod_shape=shape
        )
        # Only GPUs count, and the network; `_usable` says what can be promised.
        return structs.replace(request_of(job, cluster, site), excluded={}, blind=False)

    now, empty = Solver(cluster), Solver(cluster.idle())
    total = sum(len(node.machine.gpus) for node in nodes)
    free = sum(node.free_count for node in nodes if node.unavailable is None)
    certain = site.native is not None
    gangs = tuple(
        _gang(1 << power, now, empty, asked, certain=certain) for power in range(total.bit_length())
    )
    missing, release = None, None
    for gang in gangs:
        if gang.size > free or not gang.whole_empty or gang.gets_full_speed:
            continue
        request = structs.replace(asked(gang.workers, gang.gpus), min_bandwidth=gang.full or 0.0)
        # If GPUs are only counted, fewer gangs are certain than a single placement would suggest.
        if now.best(request) is None:
            missing, release = gang, now.to_free(request)
            break
    return CombinableNodes(
        model=nodes[0].machine.model,
        resource=nodes[0].resource,
        total=total,
        free=free,
        away=sum(node.free_count for node in nodes) - free,
        gangs=gangs,
        groups=tuple(_grouped(nodes)),
        missing=missing,
        release=release,
        assumed=any(rate_is_assumed(node.machine) for node in nodes),
        rdma=asked(1, 1).wire is Wire.RDMA,
        reserved=sum(node.reserved_count for node in nodes),
        reserved_for=_reserving(nodes),
    )


def _reserving(nodes: Iterable[Node]) -> tuple[str, ...]:
    """The gangs for which idle GPUs of nodes are reserved."""
    reservations = (pair for node in nodes for pair in node.reservations())
    return tuple(dict.fromkeys(reservation.job for reservation, idle in reservations if idle))


class _Asked(Protocol):
    """The request of a gang, as `plan` makes it; `joined`: the pods of a node are one host."""

    def __call__(self, workers: int, gpus: int, *, joined: bool = False) -> Request: ...


def _gang(size: int, now: Solver, empty: Solver, asked: _Asked, *, certain: bool) -> Gang:
    nodes = now.cluster.nodes
    rooms = [node.free_count for node in nodes if node.unavailable is None]
    most = max(len(node.machine.gpus) for node in nodes)
    gpus = min(size, 1 << (most.bit_length() - 1))
    request = asked(size // gpus, gpus)
    compact = empty.best(request)
    pieces = asked(size, 1, joined=True)
    best = now.best(pieces) if size <= sum(rooms) else None
    full = None if compact is None or compact.bandwidth == UNLIMITED else compact.bandwidth
    return Gang(
        size=size,
        workers=request.workers,
        gpus=gpus,
        full=full,
        whole=0 if compact is None else _whole(now, request, compact),
        whole_empty=0 if compact is None else _whole(empty, request, compact),
        counted=sum(room // gpus for room in rooms) // request.workers,
        best=None if best is None or size < SMALLEST_SET else best.bandwidth,
        usable=None
        if best is None or size < SMALLEST_SET
        else _usable(now, pieces, best, certain=certain),
        nodes=None if best is None else best.worth.nodes,
        tier=None if best is None else list(now.cluster.distances)[best.worth.distance],
    )


def _usable(solver: Solver, request: Request, best: NodeChoice, *, certain: bool) -> float:
    """GB/s of an answer in any case: of its GPUs if they are certain, else of the slowest."""
    placement = solver.placement(request, best)
    chosen: dict[NodeName, int] = defaultdict(int)
    for assignment in placement.assignments:
        chosen[assignment.node] |= gpu_set(assignment.gpus)
    nodes = (node for node in solver.cluster.nodes if node.name in chosen)
    certain = certain or all(is_certain(node, GPUSet(chosen[node.name])) for node in nodes)
    estimate = placement.bandwidth if certain else placement.worst
    return best.bandwidth if estimate is None else estimate.point


def _whole(solver: Solver, request: Request, like: NodeChoice) -> int:
    """The number of gangs that fit at once as fast as `like`, several workers on separate nodes."""
    if request.workers == 1:
        return sum(
            _disjoint(node, request.gpus, like.bandwidth)
            for node in solver.cluster.nodes
            if node.unavailable is None
        )
    # No machine has room for two of these workers; gangs may be as far apart as `like`.
    depth = 0 if like.level is None else like.level + 1
    domains = Counter(node.domains[:depth] for node in solver.capable(request, like))
    return sum(nodes // request.workers for nodes in domains.values())


def _grouped(nodes: Sequence[Node]) -> Iterator[NodeGroup]:
    """The nodes, grouped by state."""
    members_of: dict[NodeGroup, list[str]] = defaultdict(list)
    groups: dict[tuple[object, ...], NodeGroup] = {}
    for node in nodes:
        sets = sets_of(node.machine)
        key = (sets, node.free, node.unattributed, node.unavailable, node.reserved_count)
        if key not in groups:
            groups[key] = _described(sets, node)
        members_of[groups[key]].append(node.name)
    for group, names in members_of.items():
        yield replace(group, names=tuple(sorted(names, key=natural_key)))


def _described(sets: GPUSets, node: Node) -> NodeGroup:
    """The state of a node, without its name."""
    everything, counts = sets.everything, []
    for size in SET_SIZES:
        if size > sets.size:
            break
        full = sets.best(everything, size)
        most, whole = sets.disjoint(everything, size, full), _disjoint(node, size, full)
        used = sets.disjoint(GPUSet(everything & ~_free(sets, node)), size, full)
        counts.append(Sets(size=size, whole=whole, broken=max(0, most - whole - used), most=most))
    return NodeGroup(
        names=(),
        gpus=sets.size,
        free=node.free_count,
        sets=tuple(counts),
        stranded=_stranded(sets, node),
        opaque=node.unattributed > 0,
        unavailable=node.unavailable,
        reserved=node.reserved_count,
    )


def _free(sets: GPUSets, node: Node) -> GPUSet:
    """The free GPUs of a node; with opaque GPUs on a uniform machine any set of that size."""
    certain = node.unattributed and sets.uniform
    return GPUSet((1 << node.free_count) - 1) if certain else node.free


def _disjoint(node: Node, size: int, speed: float) -> int:
    """The number of disjoint sets of `size` free GPUs of a node with certainly so many GB/s."""
    sets = sets_of(node.machine)
    if size < SMALLEST_SET:
        return node.free_count
    # If the GPUs differ, no set is certain to be free.
    hidden = node.unattributed and not sets.uniform
    return 0 if hidden else sets.disjoint(_free(sets, node), size, speed)


def _stranded(sets: GPUSets, node: Node) -> int:
    """The number of free GPUs without a free neighbour as fast as their best; 0 if unknown."""
    if node.unattributed and not sets.uniform:
        return 0
    inside, everything = members(_free(sets, node)), members(sets.everything)

    def fastest(gpu: int, peers: Sequence[int]) -> float:
        speeds = (sets.value(GPUSet(1 << gpu | 1 << peer)) for peer in peers if peer != gpu)
        return max(speeds, default=0.0)

    return sum(fastest(gpu, inside) < fastest(gpu, everything) for gpu in inside)


# ---------------------------------------------------------------- on a screen


def fragmentation_screen(result: Fragmentation) -> str:
    """The screen of a cluster, kind by kind."""
    blocks = [_block(kind, alone=len(result.kinds) == 1) for kind in result.kinds]
    rdma = {kind.rdma for kind in result.kinds}
    network = _NETWORKS[None if len(rdma) > 1 else True in rdma]
    reserved = any(kind.reserved for kind in result.kinds)
    partly = "partly in use or reserved" if reserved else "partly in use"
    legend = _LEGEND.format(network=network, partly=partly)
    blocks.append(legend if blocks else "No node has GPUs that a gang could get.\n")
    if result.shared_nodes:
        share, cut = ("shares", "cuts") if result.shared_nodes == 1 else ("share", "cut")
        blocks.append(
            f"{counted(result.shared_nodes, 'more node')} {share} GPUs or {cut} them up: no gang"
            " gets those.\n"
        )
    return "\n".join(blocks)


def largest_gang_text(kind: CombinableNodes) -> str:
    """The largest gang that fits a kind at full speed, in a sentence."""
    free = f"{kind.free} of {counted(kind.total, 'GPU')} {_are(kind.free)} free"
    missing = kind.missing
    if kind.reserved:
        gangs = listed(kind.reserved_for)
        free += f", and {kind.reserved} {_are(kind.reserved)} reserved for {gangs}"
    if not kind.free:
        return free if kind.reserved else f"no GPU is free, of {kind.total}"
    if missing is None:
        if kind.largest <= 1:
            return free
        return f"{free}, and gangs of up to {kind.largest} get full speed"
    speed = "" if missing.full is None else f" ({estimates.gbps_text(missing.full)} GB/s)"
    sentence = f"{free}, but no gang of {missing.size} gets full speed{speed}"
    return f"{sentence}; one fits {kind.release}" if kind.release else sentence


def _block(kind: CombinableNodes, *, alone: bool) -> str:
    named = kind.model is not None or not alone
    model = f"{kind.model or f'unknown model, {kind.resource}'}: " if named else ""
    lines = [f"{model}{largest_gang_text(kind)}."]
    if stranded := kind.stranded:
        lines.append(
            f"{counted(stranded, 'GPU')} {_are(stranded)} stranded: free, but the neighbours that"
            f" {'it is' if stranded == 1 else 'they are'} joined to best are not."
        )
    if kind.away:
        idle = f"{counted(kind.away, 'more GPU')} {_are(kind.away)} idle on nodes"
        lines.append(f"{idle} where no job can start.")
    if kind.assumed:
        lines.append("The speed of these NVLinks is assumed.")
    gangs = layout.align(layout.column_table(_GANG, kind.gangs))
    return "\n".join([*lines, "", gangs, _nodes(kind)])


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _best(gang: Gang) -> str:
    if gang.nodes is None:
        return "-"
    where = counted(gang.nodes, "node")
    if gang.best is None or gang.usable is None:
        return where
    text = f"{estimates.gbps_text(gang.usable)} GB/s on {where}"
    slow = band(gang.usable) < band(gang.best)
    return f"{text}, {estimates.gbps_text(gang.best)} planned" if slow else text


_GANG: tuple[layout.Column[Gang], ...] = (
    ("GANG", lambda gang: str(gang.size)),
    ("SHAPE", lambda gang: f"{gang.workers} x {gang.gpus}"),
    ("GB/s", lambda gang: "-" if gang.full is None else estimates.gbps_text(gang.full)),
    ("WHOLE", lambda gang: str(gang.whole)),
    ("EMPTY", lambda gang: str(gang.whole_empty)),
    ("COUNTED", lambda gang: str(gang.counted)),
    ("BEST NOW", _best),
)


def _nodes(kind: CombinableNodes) -> str:
    sizes = sorted({entry.size for group in kind.groups for entry in group.sets})

    def row(nodes: int, free: str, reserved: int, sets: Iterable[Sets], *more: str) -> list[str]:
        cells = {entry.size: f"{entry.whole}/{entry.broken}" for entry in sets}
        states = [free, *([str(reserved)] if kind.reserved else [])]
        return [str(nodes), *states, *(cells.get(size, "-") for size in sizes), *more]

    column = ["RESERVED"] if kind.reserved else []
    names = (_SET_NAMES[size] for size in sizes)
    header = ["NODES", "FREE", *column, *names, "STRANDED", "WHICH"]
    ordered = sorted(kind.groups, key=_fault)
    rows = [
        row(
            len(group.names),
            f"{group.free}/{group.gpus}{'?' if group.opaque else ''}",
            group.reserved,
            group.sets,
            str(group.stranded),
            _which(group),
        )
        for group in ordered[:MAX_SCREEN_LINES]
    ]
    nodes, total, reserved = 0, 0, 0
    for group in kind.working:
        many = len(group.names)
        nodes, total = nodes + many, total + group.gpus * many
        reserved += group.reserved * many
    which = "all" if kind.working == kind.groups else "all that take jobs"
    free = f"{kind.free}/{total}"
    rows.append(row(nodes, free, reserved, kind.sets, str(kind.stranded), which))
    lines = layout.table(header, rows)
    hidden = ordered[MAX_SCREEN_LINES:]
    if hidden:
        nodes = sum(len(group.names) for group in hidden)
        lines.insert(-1, f"... {counted(nodes, 'more node')} of {counted(len(hidden), 'sort')}")
    if any(group.opaque for group in ordered):
        lines.append("? which GPUs are free there is not reported; only what is certain counts")
    return layout.align(lines)


def _fault(group: NodeGroup) -> tuple[object, ...]:
    """The sort key: partly free nodes first, of these the ones with most broken sets."""
    partly = 0 < group.free < group.gpus
    broken = sum(entry.broken * entry.size for entry in group.sets) + group.stranded
    return (not partly, -broken * len(group.names), -group.free, natural_key(group.names[0]))


def _which(group: NodeGroup) -> str:
    names = ", ".join(group.names[:_NAMES]) + (", ..." if len(group.names) > _NAMES else "")
    return f"{names} ({group.unavailable})" if group.unavailable else names


# ---------------------------------------------------------------- for programs


def fragmentation_json(result: Fragmentation, *, emulated: bool = False) -> dict[str, Any]:
    """The value for JSON, kind `FragmentationReport` of our API.

    `kinds` are the nodes that one gang may combine, by `model` and `resource`, with the numbers of
    GPUs `totalGPUs`, `freeGPUs`, `unavailableGPUs` (idle on nodes where no job can start),
    `reservedGPUs` (free, but for the gangs `reservedFor`) and `strandedGPUs`, the
    `largestWholeGang`, and in a sentence the `verdict`. With `assumedSpeed` the rate of their
    NVLinks is a guess. `gangs`: by `size` the compact shape `workers` x `gpusPerWorker`, its
    `fullGBps` on the empty cluster, how many of this shape fit at once at that speed (`whole`, and
    `wholeEmpty` on the empty cluster), by numbers alone (`counted`), and what one gang of any shape
    gets now:
    `bestGBps` as planned, `usableGBps` whatever GPUs the kubelet picks, on `bestNodes` nodes within
    `bestTier`; null if no gang fits, or for a single GPU. `sets` and those of
    `nodes`: disjoint sets by `size`, `whole`, `broken`, and `most` of the empty machines. `nodes`
    are grouped by state: `names`, `gpus`, `free` and `reserved` of each, `stranded`, `opaque` (the
    indexes of the free GPUs are not known) and `unavailable`. `sharedGPUs` on `sharedNodes` are
    partitioned or shared.
    """
    return {
        "apiVersion": "arena-topo/v1",
        "kind": "FragmentationReport",
        "kinds": [_kind_value(kind) for kind in result.kinds],
        "sharedGPUs": result.shared,
        "sharedNodes": result.shared_nodes,
        "emulated": emulated,
    }


_KEYS = {
    "gpus": "gpusPerWorker",
    "full": "fullGBps",
    "whole_empty": "wholeEmpty",
    "best": "bestGBps",
    "usable": "usableGBps",
    "nodes": "bestNodes",
    "tier": "bestTier",
}


def _gang_value(gang: Gang) -> dict[str, Any]:
    speeds = {name: layout.number(getattr(gang, name)) for name in ("full", "best", "usable")}
    return {_KEYS.get(name, name): value for name, value in (asdict(gang) | speeds).items()}


def _kind_value(kind: CombinableNodes) -> dict[str, Any]:
    return {
        "model": kind.model,
        "resource": kind.resource,
        "totalGPUs": kind.total,
        "freeGPUs": kind.free,
        "unavailableGPUs": kind.away,
        "reservedGPUs": kind.reserved,
        "reservedFor": list(kind.reserved_for),
        "strandedGPUs": kind.stranded,
        "largestWholeGang": kind.largest,
        "verdict": largest_gang_text(kind),
        "assumedSpeed": kind.assumed,
        "rdma": kind.rdma,
        "gangs": [_gang_value(gang) for gang in kind.gangs],
        "sets": [asdict(entry) for entry in kind.sets],
        "nodes": [asdict(group) for group in sorted(kind.groups, key=_fault)],
    }
