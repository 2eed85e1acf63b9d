"""All workers of a gang at once: exact search over classes of nodes, with its proof.

Nodes that look the same to a job (same configuration, same free set, same room) form a class; only
how many nodes of a class are used, and how full, needs to be decided. The order of preference is
lexicographic (docs/how-it-works.md): most bandwidth, nearest tier, fewest nodes, least damage to
what stays free, first by name. Every step is exhaustive, so the answer is exact and says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from arena_topo.solver import (
    UNLIMITED,
    Assignment,
    Placement,
    Proof,
    Reason,
    Refusal,
    Request,
    Unplaceable,
    Verdict,
)
from arena_topo.solver.classes import Index, NodeClass, refused, room
from arena_topo.solver.configurations import table
from arena_topo.solver.selection import Offer, select
from arena_topo.topology import Cluster, Node, natural

NODE_TIER = "node"
BEYOND = "beyond"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Worth:
    """How good a choice of nodes is; the smaller the better, field by field."""

    bandwidth: float
    """Negated, so that more is better."""
    distance: int
    """0 within a node, then outward through the network."""
    nodes: int
    damage: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which nodes of a class take how many workers, and what that is worth."""

    worth: Worth
    tier: str
    loads: tuple[tuple[Node, NodeClass, int], ...] = field(compare=False)


def search(request: Request, index: Index) -> Placement:
    """Find the best placement of a gang; Unplaceable says why there is none."""
    choice = _best(request, index)
    if choice is None:
        raise refusal(request, index.cluster)
    return _placement(request, index.cluster, choice)


def value(request: Request, cluster: Cluster) -> Worth | None:
    """What the best placement is worth; None if there is none."""
    choice = _best(request, Index(cluster))
    return None if choice is None else choice.worth


def _best(request: Request, index: Index) -> Choice | None:
    choices = (
        choice
        for kind in index.kinds(request)
        for choice in (_alone(request, kind), _together(request, index.cluster, kind))
        if choice is not None
    )
    return min(choices, key=lambda choice: choice.worth, default=None)


def _alone(request: Request, classes: Sequence[NodeClass]) -> Choice | None:
    """The best single node for the whole gang."""
    size = request.workers * request.gpus
    fitting = [one for one in classes if one.capacity >= request.workers]
    bandwidth = max((one.best(size) for one in fitting), default=0.0)
    if not fitting or bandwidth < request.min_bandwidth:
        return None
    return min(
        (
            Choice(
                worth=Worth(bandwidth=-bandwidth, distance=0, nodes=1, damage=price),
                tier=NODE_TIER,
                loads=((one.nodes[0], one, request.workers),),
            )
            for one in fitting
            if (price := one.price(size, bandwidth)) is not None
        ),
        key=lambda choice: (choice.worth, natural(choice.loads[0][0].name)),
    )


def _together(request: Request, cluster: Cluster, classes: Sequence[NodeClass]) -> Choice | None:
    """The best choice of several nodes, joined by the network."""
    if request.workers == 1 or request.max_nodes == 1:
        return None
    network = cluster.beyond
    if network < request.min_bandwidth:
        return None
    for bandwidth in _levels(request, classes, network):
        found = _fewest(request, classes, bandwidth)
        if found is not None:
            nodes, damage, loads = found
            if request.max_nodes is not None and nodes > request.max_nodes:
                continue
            return Choice(
                worth=Worth(bandwidth=-bandwidth, distance=1, nodes=nodes, damage=damage),
                tier=BEYOND,
                loads=loads,
            )
    return None


def _levels(request: Request, classes: Sequence[NodeClass], network: float) -> tuple[float, ...]:
    """The bandwidths that a placement on several nodes can have, most first."""
    inside = {
        one.best(workers * request.gpus)
        for one in classes
        for workers in range(1, one.capacity + 1)
    }
    levels = {min(bandwidth, network) for bandwidth in inside} if inside else set()
    return tuple(
        sorted((one for one in levels if one >= request.min_bandwidth and one > 0), reverse=True)
    )


def _fewest(
    request: Request, classes: Sequence[NodeClass], bandwidth: float
) -> tuple[int, int, tuple[tuple[Node, NodeClass, int], ...]] | None:
    """The fewest nodes, then the least damage, that hold all workers at this bandwidth."""
    usable, offers = [], []
    for one in classes:
        prices = {
            workers: price
            for workers in range(1, one.capacity + 1)
            if (price := one.price(workers * request.gpus, bandwidth)) is not None
        }
        if prices:
            usable.append(one)
            offers.append(Offer(count=len(one.nodes), prices=prices))
    found = select(offers, request.workers)
    if found is None:
        return None
    loads: list[tuple[Node, NodeClass, int]] = []
    used: Counter[int] = Counter()
    # The fullest loads of a class get its first names.
    for load in sorted(found.loads, key=lambda load: -load.workers):
        one, start = usable[load.offer], used[load.offer]
        loads += [(node, one, load.workers) for node in one.nodes[start : start + load.nodes]]
        used[load.offer] += load.nodes
    return found.nodes, found.price, tuple(loads)


def _placement(request: Request, cluster: Cluster, choice: Choice) -> Placement:
    """Spell a choice out: workers numbered along the nodes, GPUs along the rings."""
    assignments: list[Assignment] = []
    inside, worst = UNLIMITED, UNLIMITED
    network = UNLIMITED if choice.tier == NODE_TIER else cluster.beyond
    threshold = -choice.worth.bandwidth
    for node, one, workers in sorted(choice.loads, key=lambda load: natural(load[0].name)):
        size = workers * request.gpus
        groups: Sequence[tuple[int, ...]] = [()] * workers
        if one.hidden:
            inside = min(inside, one.best(size))
        else:
            cheapest = one.damage.cheapest(one.free, size, threshold)
            if cheapest is not None:
                inside = min(inside, one.table.value(cheapest[1]))
                groups = one.table.split(cheapest[1], request.gpus)
        worst = min(worst, one.table.worst(one.free, size))
        for gpus in groups:
            assignments.append(Assignment(worker=len(assignments), node=node.name, gpus=gpus))
    bandwidth = min(inside, network)
    return Placement(
        assignments=tuple(assignments),
        bandwidth=bandwidth,
        worst=min(worst, network),
        tier=choice.tier,
        proof=Proof(optimal=True, bound=bandwidth),
    )


def emptied(cluster: Cluster) -> Cluster:
    """The cluster as if every job had ended, and every node and GPU were well again."""
    return replace(
        cluster,
        nodes=tuple(
            replace(
                node,
                free=node.machine.everything,
                hidden=0,
                cpu=node.all_cpu,
                memory=node.all_memory,
                unavailable=None,
            )
            for node in cluster.nodes
        ),
    )


def refusal(request: Request, cluster: Cluster) -> Unplaceable:
    """Why a gang has no place, counted by reason, and what would help."""
    empty = emptied(cluster)
    never = _best(request, Index(empty)) is None
    view = empty if never else cluster
    reasons: dict[Reason, list[Node]] = {}
    for node in view.nodes:
        reasons.setdefault(_reason(request, node), []).append(node)
    refusals = tuple(
        Refusal(reason=reason, nodes=len(nodes), example=nodes[0].name)
        for reason, nodes in reasons.items()
    )
    if not cluster.nodes:
        return Unplaceable(
            f"{_wanted(request)} cannot be placed: there are no nodes",
            verdict=Verdict.NEVER,
            refusals=(),
        )
    wanted = _wanted(request)
    verdict = Verdict.NEVER if never else Verdict.NOT_NOW
    message = (
        f"{wanted} can never be placed on this cluster"
        if never
        else f"{wanted} cannot be placed now"
    )
    return Unplaceable(
        message, verdict=verdict, refusals=refusals, nearest=_nearest(request, view, never=never)
    )


def _reason(request: Request, node: Node) -> Reason:
    """What keeps a node from taking the gang, alone or with others."""
    reason = refused(request, node)
    if reason is not None:
        return reason
    if room(request, node) == 0:
        return Reason.BUSY if node.free_count < request.gpus else Reason.RESOURCES
    shape = table(node.machine.configuration)
    if shape.best_hidden(node.free, node.hidden, request.gpus) < request.min_bandwidth:
        return Reason.BANDWIDTH
    return Reason.ROOM


def _wanted(request: Request) -> str:
    workers = f"{request.workers} worker{'s' if request.workers != 1 else ''}"
    gpus = f"{request.gpus} GPU{'s' if request.gpus != 1 else ''}"
    return f"{workers} x {gpus}"


def _nearest(request: Request, view: Cluster, *, never: bool) -> str | None:
    """The nearest request that would fit, or the nearest change of the cluster."""
    largest = max(
        (
            len(node.machine.gpus) if never else node.free_count
            for node in view.nodes
            if refused(replace(request, gpus=1), node) is None
        ),
        default=0,
    )
    when = "on this cluster" if never else "now"
    index = Index(view)
    if largest == 0:
        return None
    if largest < request.gpus:
        return f"the largest worker that fits {when} has {largest} GPUs: --gpus {largest}"
    if request.min_bandwidth:
        relaxed = _best(replace(request, min_bandwidth=0.0), index)
        if relaxed is not None:
            return f"fits {when} with --min-bandwidth {-relaxed.worth.bandwidth:g}"
    if not request.mix_models and _best(replace(request, mix_models=True), index) is not None:
        return f"fits {when} with --mix-models"
    if request.max_nodes is not None:
        relaxed = _best(replace(request, max_nodes=None), index)
        if relaxed is not None:
            return f"fits {when} with --max-nodes {relaxed.worth.nodes}"
    fits, too_many = 0, request.workers
    while too_many - fits > 1:
        workers = (fits + too_many) // 2
        if _best(replace(request, workers=workers), index) is None:
            too_many = workers
        else:
            fits = workers
    return f"fits {when} with --workers {fits}" if fits else None
