"""All workers of a gang at once: exact search over classes of nodes, with its proof.

Nodes that look the same to a job (same configuration, same free set, same room) form a class. The
order of preference is lexicographic (docs/how-it-works.md): most bandwidth, nearest tier, fewest
nodes, fewest domains at each tier, least damage to what stays free, least room broken into, first
by name. Bandwidths are few, so they are tried from the fastest down: at each the nearest tier that
holds the gang is looked for, and the first answer is the best one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from arena_topo.solver import UNLIMITED, Assignment, Placement, Proof, Request
from arena_topo.solver.classes import WHOLE, Index, Supply
from arena_topo.solver.domains import EFFORT, Choice, Chooser, Seat, broken
from arena_topo.solver.valuing import worth
from arena_topo.topology import Cluster, NodeName, natural

NODE_TIER = "node"
BEYOND = "beyond"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Worth:
    """How good a choice of nodes is; the smaller the better, field by field."""

    reach: int
    """Levels further out than the one preferred."""
    bandwidth: float
    """Negated, so that more is better."""
    distance: int
    """0 within a node, then outward through the network."""
    nodes: int
    domains: tuple[int, ...]
    """Domains used at each tier, coarse to near."""
    damage: int
    broken: tuple[int, ...]
    """GPUs that were free in the domains used, near to coarse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best choice of nodes for a gang."""

    worth: Worth
    level: int | None
    """The level at which the nodes meet; None for a single node."""
    choice: Choice = field(compare=False)
    supply: Supply = field(compare=False)
    bound: float = 0.0
    """GB/s that no placement can exceed."""


def search(request: Request, index: Index) -> Placement:
    """Find the best placement of a gang; Unplaceable says why there is none."""
    found = best(request, index)
    if found is None:
        from arena_topo.solver.refusal import refusal  # noqa: PLC0415 - it searches in its turn

        raise refusal(request, index.cluster)
    return placement(request, index, found)


def value(request: Request, cluster: Cluster) -> Worth | None:
    """What the best placement is worth; None if there is none."""
    found = best(request, Index(cluster))
    return None if found is None else found.worth


def distances(cluster: Cluster) -> dict[str, int]:
    """The words for how far nodes may be apart, nearest first, each with its distance."""
    words = [NODE_TIER, *(tier.name for tier in reversed(cluster.tiers)), BEYOND]
    return {word: distance for distance, word in enumerate(words)}


def best(request: Request, index: Index, *, effort: int = EFFORT) -> Found | None:
    """The best choice of nodes; None if there is none.

    `effort` bounds the steps spent on choosing between domains (`domains.EFFORT`).
    """
    words = distances(index.cluster)
    farthest = words[request.required or BEYOND]
    nearest = min(words[request.preferred], farthest) if request.preferred else farthest
    hunt = _Hunt(request, index, effort)
    for limit in range(nearest, farthest + 1):
        found = hunt.within(limit)
        if found is not None:
            choice = found.choice
            if choice.open is None and not hunt.settled:
                choice = replace(choice, open="damage")
            return replace(found, choice=choice, bound=-found.worth.bandwidth)
    return None


Kind = tuple[str, str]
"""What one gang may combine: GPU model, resource name."""


class _Hunt:
    """The search for one gang among all kinds of nodes, which share the effort."""

    def __init__(self, request: Request, index: Index, effort: int) -> None:
        self.request = request
        self.index = index
        self.effort = effort
        self.supply = index.supply(request)
        self._choosers: dict[tuple[Kind, float], Chooser | None] = {}

    @cached_property
    def settled(self) -> bool:
        """Whether the least damage inside every node is known, not just a good one."""
        request = self.request
        return all(
            one.sets.certain(one.free, workers * request.gpus)
            for one in self.supply.classes
            for workers in range(1, min(one.capacity, request.workers) + 1)
        )

    @cached_property
    def alone(self) -> Found | None:
        """The best single node."""
        found = [one for one in map(self._alone, self.supply.kinds) if one is not None]
        return min(found, key=lambda one: one.worth, default=None)

    def within(self, limit: int) -> Found | None:
        """The best choice of nodes no further apart than this; what is open says so."""
        request, index = self.request, self.index
        if limit == 0 or request.workers == 1 or request.max_nodes == 1:
            return self.alone
        levels = self._levels(limit)
        steps = {kind: self._steps(kind, levels) for kind in self.supply.kinds}
        for bandwidth in sorted(set().union(*steps.values()), reverse=True):
            if self.alone is not None and -self.alone.worth.bandwidth >= bandwidth:
                break
            kinds = [kind for kind, some in steps.items() if bandwidth in some]
            for level in levels:
                if index.bandwidth(level) >= bandwidth:
                    found = list(self._joined(kinds, bandwidth, level))
                    if found:
                        first = min(found, key=lambda one: one.score)
                        first = replace(first, open=_open(first, found))
                        return self._found(bandwidth, level, first)
        return self.alone

    def _joined(self, kinds: Sequence[Kind], bandwidth: float, level: int) -> Iterator[Choice]:
        """The best choice of several nodes of each kind, as far as it may be the best of all."""
        request = self.request
        most = request.workers if request.max_nodes is None else request.max_nodes
        for kind in kinds:
            chooser = self._chooser(kind, bandwidth)
            if chooser is not None:
                chooser.most, chooser.effort = most, self.effort
                choice = chooser.best(level)
                self.effort = chooser.effort
                if choice is not None:
                    most = choice.nodes
                    yield choice

    def _chooser(self, kind: Kind, bandwidth: float) -> Chooser | None:
        """The search among nodes of a kind; None where all together are too small."""
        key = (kind, bandwidth)
        if key not in self._choosers:
            request, supply = self.request, self.supply
            quotes = supply.quotes(request, kind, bandwidth)
            held = sum(
                supply.counts[at] * max(prices) for at, prices in enumerate(quotes.prices) if prices
            )
            self._choosers[key] = None
            if held >= request.workers:
                self._choosers[key] = Chooser(
                    index=self.index,
                    supply=supply,
                    quotes=quotes,
                    workers=request.workers,
                    gpus=request.gpus,
                    most=request.workers,
                )
        return self._choosers[key]

    def _levels(self, limit: int) -> list[int]:
        """The levels no further out than a limit, nearest first."""
        return [
            level
            for level in range(len(self.index.cluster.tiers) - 1, WHOLE - 1, -1)
            if self.index.distance(level) <= limit
        ]

    def _alone(self, kind: Kind) -> Found | None:
        """The best single node for the whole gang."""
        request, supply, index = self.request, self.supply, self.index
        size = request.workers * request.gpus
        speeds = {
            at: one.best(size) for at, one in supply.of(kind) if one.capacity >= request.workers
        }
        bandwidth = max(speeds.values(), default=0.0)
        if not speeds or bandwidth < request.min_bandwidth:
            return None
        prices = {
            at: price
            for at, speed in speeds.items()
            if speed >= bandwidth
            and (price := supply.classes[at].price(size, bandwidth)) is not None
        }
        least = min(prices.values())
        cheapest = [at for at, price in prices.items() if price == least]
        seats: dict[int, Seat] = {}
        for leaf, at, node in supply.members(cheapest):
            # Within a leaf nodes come in the order of their names.
            seats.setdefault(leaf, Seat(node, at, request.workers))
        worths = {leaf: broken(index, (leaf,)) for leaf in seats}
        leaf = min(seats, key=lambda leaf: (worths[leaf][1], natural(seats[leaf].node.name)))
        counts, free = worths[leaf]
        choice = Choice(nodes=1, domains=counts, damage=least, broken=free, seats=(seats[leaf],))
        return self._found(bandwidth, None, choice)

    def _steps(self, kind: Kind, levels: Sequence[int]) -> frozenset[float]:
        """The bandwidths that several nodes of a kind can have."""
        inside = self.supply.speeds(kind, self.request.gpus)
        steps = {min(speed, self.index.bandwidth(level)) for speed in inside for level in levels}
        return frozenset(one for one in steps if one > 0 and one >= self.request.min_bandwidth)

    def _found(self, bandwidth: float, level: int | None, choice: Choice) -> Found:
        distance = 0 if level is None else self.index.distance(level)
        words = distances(self.index.cluster)
        preferred = words[self.request.preferred] if self.request.preferred else distance
        return Found(
            worth=Worth(
                reach=max(0, distance - preferred),
                bandwidth=-bandwidth,
                distance=distance,
                nodes=choice.nodes,
                domains=choice.domains,
                damage=choice.damage,
                broken=choice.broken,
            ),
            level=level,
            choice=choice,
            supply=self.supply,
        )


def _open(first: Choice, found: Sequence[Choice]) -> str | None:
    """What of the best choice may be bettered, by its own kind of node or by another."""
    rivals = [(one.open, one.domains == first.domains) for one in found if one.nodes == first.nodes]
    if any(left == "domains" for left, _ in rivals):
        return "domains"
    return "damage" if ("damage", True) in rivals else None


def placement(request: Request, index: Index, found: Found) -> Placement:
    """Spell a choice out: workers numbered along the network, GPUs along the rings."""
    seats: list[tuple[NodeName, tuple[int, ...]]] = []
    threshold = -found.worth.bandwidth
    for node, at, workers in found.choice.seats:
        one = found.supply.classes[at]
        groups: Sequence[tuple[int, ...]] = [()] * workers
        if not one.hidden:
            cheapest = one.damage.cheapest(one.free, workers * request.gpus, threshold)
            assert cheapest is not None, "a load that is chosen has GPUs"
            groups = one.sets.split(cheapest[1], request.gpus)
        seats += [(node.name, gpus) for gpus in groups]
    value = worth(seats, request.gpus, index.cluster, joined=request.joined, wire=request.wire)
    left = found.choice.open
    return Placement(
        assignments=tuple(
            Assignment(worker=worker, node=node, gpus=gpus)
            for worker, (node, gpus) in enumerate(seats)
        ),
        bandwidth=value.bandwidth,
        inside=value.inside,
        worst=value.worst,
        tier=word(index.cluster, found.level),
        proof=Proof(
            optimal=left is None,
            bound=UNLIMITED if value.bandwidth is None else value.bandwidth.point,
            open=left,
        ),
        gpus=request.gpus,
        joined=request.joined,
        wire=request.wire,
    )


def word(cluster: Cluster, level: int | None) -> str:
    """The word for a level: `node` for None, the name of a tier, `beyond`."""
    if level is None:
        return NODE_TIER
    return BEYOND if level == WHOLE else cluster.tiers[level].name
