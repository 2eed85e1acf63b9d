"""`top node --frag`: gangs that still fit at full speed, and which GPUs are fragmented.

Only GPUs and the links between them count: taints, selectors, quotas, CPU and memory differ from
job to job. If the GPUs in use on a node are not known, only sets that are certainly free count. On
the screen, nodes in the same state share a line.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from arena_topo import layout
from arena_topo.bandwidth import Wire, rate_is_assumed
from arena_topo.manifests import estimates
from arena_topo.solver import UNLIMITED, Answer, GPUSets, Request, Solver, distances, sets_of
from arena_topo.topology import Cluster, GPUSet, Node, members, natural
from arena_topo.words import counted

PAIR = 2
"""The smallest number of GPUs that has a bandwidth."""

SIZES = (2, 4, 8, 16)
"""Sizes of the sets that are examined in each machine, up to its number of GPUs."""


LINES = 12
"""The most lines of nodes on the screen; together with the gangs of a thousand nodes one screen."""

_NAMES = 2
"""The most names in a line of nodes."""

_SET_NAMES = {2: "PAIRS", 4: "QUADS", 8: "EIGHTS", 16: "SIXTEENS"}

_LEGEND = """\
SHAPE: pods x GPUs; GB/s: full speed (with RDMA, where nodes report their NICs)
WHOLE, EMPTY: gangs that fit at full speed at once, now and on the empty cluster
COUNTED: gangs that fit by numbers of free GPUs alone
BEST NOW: what one gang of any shape gets
PAIRS, QUADS, EIGHTS: sets of GPUs of one node at full speed, free / taken apart
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """How many gangs of `size` GPUs fit, in the shape that needs the fewest nodes.

    The shape is `workers` x `gpus`: one node if it is large enough, else nodes with the largest
    power of two of GPUs that a machine has. `full` is GB/s of the gang on the empty cluster, None
    for a single GPU. The number of gangs that fit at once at that speed is `whole` now and
    `whole_empty` on the empty cluster; `counted` fit now by numbers of GPUs alone, at any speed.
    `best` is GB/s of all-reduce bus bandwidth of one gang of this size now, in any shape, on
    `nodes` nodes that meet at level `tier`; all three are None if no gang fits.
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


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Sets:
    """Disjoint sets of `size` GPUs of one node at the full speed of its machine.

    Of the `most` that the empty machine has, `whole` are free. `broken` are neither free nor
    entirely in use: one of their GPUs is in use or unhealthy, and another is not.
    """

    size: int
    whole: int
    broken: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Nodes in the same state: `free` of `gpus` GPUs each, the same sets, and their names.

    `stranded` of these GPUs are free, but no other free GPU has a link to them as fast as their
    best one. `opaque`: the indexes of the free GPUs are not known. `unavailable` says why no job
    can start there.
    """

    names: tuple[str, ...]
    gpus: int
    free: int
    sets: tuple[Sets, ...]
    stranded: int
    opaque: bool
    unavailable: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The nodes that one gang may combine: one GPU model (None: unknown), one resource.

    `free` of `total` GPUs can be allocated now; `away` are free on nodes where no job can start.
    `missing` is the smallest gang for which the free GPUs would be enough, but not at full speed,
    and `release` says what others would have to free for it. `assumed`: the rate of an NVLink of
    these GPUs is a guess.
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
        """The GPUs of the largest gang that fits at full speed; 0 if no gang does."""
        return max((gang.size for gang in self.gangs if gang.whole), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragmentation:
    """The fragmentation of a cluster by kind of node, the largest kind first.

    `shared` GPUs are partitioned or shared, on `shared_nodes` nodes: no gang gets them.
    """

    kinds: tuple[Kind, ...]
    shared: int = 0
    shared_nodes: int = 0


def look(cluster: Cluster) -> Fragmentation:
    """Compare the gangs that fit now with those that fit on the empty cluster."""
    kinds: dict[tuple[str | None, str], list[Node]] = defaultdict(list)
    shared = [node for node in cluster.nodes if node.shared is not None]
    for node in cluster.nodes:
        if node.shared is None and node.machine.gpus:
            kinds[node.machine.model, node.resource].append(node)
    rows = [_kind(replace(cluster, nodes=tuple(nodes))) for nodes in kinds.values()]
    return Fragmentation(
        kinds=tuple(sorted(rows, key=lambda kind: (-kind.total, kind.model or "", kind.resource))),
        shared=sum(len(node.machine.gpus) for node in shared),
        shared_nodes=len(shared),
    )


def _kind(cluster: Cluster) -> Kind:
    """The state of the nodes of a cluster that one gang may combine."""
    nodes = cluster.nodes
    rails = all(node.machine.nics for node in nodes)
    levels = (*(tier.name for tier in cluster.tiers), "beyond")
    wire = Wire.TCP if not rails and all(map(cluster.guessed, levels)) else Wire.RDMA
    now, empty = Solver(cluster), Solver(cluster.idle())
    total = sum(len(node.machine.gpus) for node in nodes)
    free = sum(node.free_count for node in nodes if node.unavailable is None)
    gangs = tuple(_gang(1 << power, now, empty, wire) for power in range(total.bit_length()))
    missing, release = None, None
    for gang in gangs:
        if gang.size > free or not gang.whole_empty or gang.whole:
            continue
        request = Request(
            workers=gang.workers, gpus=gang.gpus, wire=wire, min_bandwidth=gang.full or 0.0
        )
        # If GPUs are only counted, fewer gangs are certain than a single placement would suggest.
        if now.best(request) is None:
            missing, release = gang, now.to_free(request)
            break
    return Kind(
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
    )


def _gang(size: int, now: Solver, empty: Solver, wire: Wire) -> Gang:
    nodes = now.cluster.nodes
    rooms = [node.free_count for node in nodes if node.unavailable is None]
    most = max(len(node.machine.gpus) for node in nodes)
    gpus = min(size, 1 << (most.bit_length() - 1))
    request = Request(workers=size // gpus, gpus=gpus, wire=wire)
    compact = empty.best(request)
    pieces = Request(workers=size, gpus=1, wire=wire)
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
        best=None if best is None or size < PAIR else best.bandwidth,
        nodes=None if best is None else best.worth.nodes,
        tier=None if best is None else list(distances(now.cluster))[best.worth.distance],
    )


def _whole(solver: Solver, request: Request, like: Answer) -> int:
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
        key = (sets, node.free, node.unattributed, node.unavailable)
        if key not in groups:
            groups[key] = _described(sets, node)
        members_of[groups[key]].append(node.name)
    for group, names in members_of.items():
        yield replace(group, names=tuple(sorted(names, key=natural)))


def _described(sets: GPUSets, node: Node) -> NodeGroup:
    """The state of a node, without its name."""
    everything, counts = sets.everything, []
    for size in SIZES:
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
    )


def _free(sets: GPUSets, node: Node) -> GPUSet:
    """The free GPUs of a node; with opaque GPUs on a uniform machine any set of that size."""
    certain = node.unattributed and sets.uniform
    return GPUSet((1 << node.free_count) - 1) if certain else node.free


def _disjoint(node: Node, size: int, speed: float) -> int:
    """The number of disjoint sets of `size` free GPUs of a node with certainly so many GB/s."""
    sets = sets_of(node.machine)
    if size < PAIR:
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


def screen(result: Fragmentation) -> str:
    """The screen of a cluster, kind by kind."""
    blocks = [_block(kind, alone=len(result.kinds) == 1) for kind in result.kinds]
    blocks.append(_LEGEND if blocks else "No node has GPUs that a gang could get.\n")
    if result.shared_nodes:
        share, cut = ("shares", "cuts") if result.shared_nodes == 1 else ("share", "cut")
        blocks.append(
            f"{counted(result.shared_nodes, 'more node')} {share} GPUs or {cut} them up: no gang"
            " gets those.\n"
        )
    return "\n".join(blocks)


def verdict(kind: Kind) -> str:
    """The largest gang that fits a kind at full speed, in a sentence."""
    free = f"{kind.free} of {counted(kind.total, 'GPU')} {_are(kind.free)} free"
    missing = kind.missing
    if not kind.free:
        return f"no GPU is free, of {kind.total}"
    if missing is None:
        if kind.largest <= 1:
            return free
        return f"{free}, and gangs of up to {kind.largest} get full speed"
    speed = "" if missing.full is None else f" ({estimates.amount(missing.full)} GB/s)"
    sentence = f"{free}, but no gang of {missing.size} gets full speed{speed}"
    return f"{sentence}; one fits {kind.release}" if kind.release else sentence


def _block(kind: Kind, *, alone: bool) -> str:
    named = kind.model is not None or not alone
    model = f"{kind.model or f'unknown model, {kind.resource}'}: " if named else ""
    lines = [f"{model}{verdict(kind)}."]
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
    gangs = layout.align(layout.tabulated(_GANG, kind.gangs))
    return "\n".join([*lines, "", gangs, _nodes(kind)])


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _best(gang: Gang) -> str:
    if gang.nodes is None:
        return "-"
    where = counted(gang.nodes, "node")
    return where if gang.best is None else f"{estimates.amount(gang.best)} GB/s on {where}"


_GANG: tuple[layout.Column[Gang], ...] = (
    ("GANG", lambda gang: str(gang.size)),
    ("SHAPE", lambda gang: f"{gang.workers} x {gang.gpus}"),
    ("GB/s", lambda gang: "-" if gang.full is None else estimates.amount(gang.full)),
    ("WHOLE", lambda gang: str(gang.whole)),
    ("EMPTY", lambda gang: str(gang.whole_empty)),
    ("COUNTED", lambda gang: str(gang.counted)),
    ("BEST NOW", _best),
)


def _nodes(kind: Kind) -> str:
    sizes = sorted({entry.size for group in kind.groups for entry in group.sets})

    def row(nodes: int, free: str, sets: Iterable[Sets], *more: str) -> list[str]:
        cells = {entry.size: f"{entry.whole}/{entry.broken}" for entry in sets}
        return [str(nodes), free, *(cells.get(size, "-") for size in sizes), *more]

    header = ["NODES", "FREE", *(_SET_NAMES[size] for size in sizes), "STRANDED", "WHICH"]
    ordered = sorted(kind.groups, key=_fault)
    rows = [
        row(
            len(group.names),
            f"{group.free}/{group.gpus}{'?' if group.opaque else ''}",
            group.sets,
            str(group.stranded),
            _which(group),
        )
        for group in ordered[:LINES]
    ]
    nodes, total = 0, 0
    for group in kind.working:
        nodes, total = nodes + len(group.names), total + group.gpus * len(group.names)
    which = "all" if kind.working == kind.groups else "all that take jobs"
    rows.append(row(nodes, f"{kind.free}/{total}", kind.sets, str(kind.stranded), which))
    lines = layout.table(header, rows)
    hidden = ordered[LINES:]
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
    return (not partly, -broken * len(group.names), -group.free, natural(group.names[0]))


def _which(group: NodeGroup) -> str:
    names = ", ".join(group.names[:_NAMES]) + (", ..." if len(group.names) > _NAMES else "")
    return f"{names} ({group.unavailable})" if group.unavailable else names


# ---------------------------------------------------------------- for programs


def value(result: Fragmentation, *, emulated: bool = False) -> dict[str, Any]:
    """The value for JSON, kind `FragmentationReport` of our API.

    `kinds` are the nodes that one gang may combine, by `model` and `resource`, with the numbers of
    GPUs `totalGPUs`, `freeGPUs`, `unavailableGPUs` (idle on nodes where no job can start) and
    `strandedGPUs`, the `largestWholeGang`, and in a sentence the `verdict`. With `assumedSpeed` the
    rate of their NVLinks is a guess. `gangs`: by `size` the compact shape `workers` x
    `gpusPerWorker`, its `fullGBps` on the empty cluster, how many fit at once at that speed
    (`whole`, and `wholeEmpty` on the empty cluster), by numbers alone (`counted`), and what one
    gang of any shape gets now: `bestGBps` on `bestNodes` nodes within `bestTier`; null if no gang
    fits, or for a single GPU. `sets` and those of `nodes`: disjoint sets by `size`, `whole`,
    `broken`, and `most` of the empty machines. `nodes` are grouped by state: `names`, `gpus` and
    `free` of each, `stranded`, `opaque` (the indexes of the free GPUs are not known) and
    `unavailable`. `sharedGPUs` on `sharedNodes` are partitioned or shared.
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
    "nodes": "bestNodes",
    "tier": "bestTier",
}


def _gang_value(gang: Gang) -> dict[str, Any]:
    speeds = {"full": layout.number(gang.full), "best": layout.number(gang.best)}
    return {_KEYS.get(name, name): value for name, value in (asdict(gang) | speeds).items()}


def _kind_value(kind: Kind) -> dict[str, Any]:
    return {
        "model": kind.model,
        "resource": kind.resource,
        "totalGPUs": kind.total,
        "freeGPUs": kind.free,
        "unavailableGPUs": kind.away,
        "strandedGPUs": kind.stranded,
        "largestWholeGang": kind.largest,
        "verdict": verdict(kind),
        "assumedSpeed": kind.assumed,
        "gangs": [_gang_value(gang) for gang in kind.gangs],
        "sets": [asdict(entry) for entry in kind.sets],
        "nodes": [asdict(group) for group in sorted(kind.groups, key=_fault)],
    }
