"""What `plan` proposes, as a picture: the machines with the GPUs chosen and the rings they give.

Beside it stand the first GPUs by index, where a scheduler that only counts would take others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from arena_topo.bandwidth import BETWEEN_HOSTS, Estimate
from arena_topo.drawing.figure import Choice, draw, draw_key, heading, key, reason, rings, states
from arena_topo.drawing.sheet import BIG, HEAD, SMALL, Layer, Sheet, width, wrapped
from arena_topo.drawing.tables import EMULATED
from arena_topo.drawing.text import names
from arena_topo.errors import UsageError
from arena_topo.gang.comparison import Proposal
from arena_topo.jobs.plan_view import MOST_DRAWINGS, gang, in_pods, limited, meets, proved
from arena_topo.jobs.view import guarantee
from arena_topo.layout import number
from arena_topo.manifests import estimates
from arena_topo.manifests.forecast import counted_on, valued_as
from arena_topo.solver import NODE_TIER, Placement
from arena_topo.solver.baselines import Outcome, by_index
from arena_topo.solver.gpu_sets import gpu_sets
from arena_topo.topology import Cluster, GPUSet, Node, NodeName, gpu_set, members

WIDEST = 1120.0
"""Pixels up to which two choices stand side by side: what a page or a slide shows at full size."""

_LEAST = 470.0
_APART = 36.0
_NAMES = 46
"""Characters of names in one line below a machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """One machine of a choice; `kubelet` is how many GPUs are taken without saying which."""

    node: Node
    choice: Choice
    kubelet: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One choice: who makes it, what it is worth and why, and its machines."""

    who: str
    gbps: str
    why: str
    poor: bool
    tier: str
    places: tuple[_Place, ...]


def drawn(proposal: Proposal) -> str:
    """Draw a proposal; what refused it, or UsageError, where there is no placement to draw."""
    if proposal.refused is not None and proposal.plan is None:
        raise proposal.refused
    picture = placement(proposal)
    if not picture:
        raise UsageError(
            f"there is no placement of {proposal.job.name} to draw",
            why="it asks for no GPUs",
            hint="add --gpus N",
        )
    return picture


def placement(proposal: Proposal) -> str:
    """Draw a proposal as SVG; empty where nothing is placed."""
    plan, cluster = proposal.plan, proposal.cluster
    if plan is None or plan.placement is None or plan.forecast is None or cluster is None:
        return ""
    ours, first = _ours(proposal, cluster), _first_fit(proposal, cluster)
    sides = [ours]
    if first is not None and _taken(first) != _taken(ours):
        sides.append(first)
    sheet = Sheet()
    title = f"{proposal.job.name}: {gang(proposal.job)}{in_pods(proposal.job, plan.job)}"
    said = max(len(_said(side)) for side in sides)
    panels = [_panel(side, cluster, said) for side in sides]
    sizes = [(right - left, low - top) for left, top, right, low in (one.edges for one in panels)]
    beside = sum(wide for wide, _high in sizes) + _APART <= WIDEST
    room = sum(wide for wide, _ in sizes) + _APART * (len(sizes) - 1) if beside else 0
    room = max(room, *(wide for wide, _high in sizes), _LEAST)
    sheet.text((0, 14), title, "head", room=room, size=HEAD)
    x, y, low = 0.0, 36.0, 0.0
    for panel in panels:
        wide, high = sheet.inset(panel, (x, y))
        low = max(low, y + high)
        x, y = (x + wide + _APART, y) if beside else (0.0, low + 30)
    y = low + 26
    lines = [item for side in sides for place in side.places for item in key(place.node.machine)]
    if lines:
        y = draw_key(sheet, list(dict.fromkeys(lines)), (0, y), room) + 4
    for note in _notes(proposal, same=len(sides) == 1 and first is not None):
        for line in wrapped(note, room, SMALL):
            sheet.text((0, y + 10), line, "small dim", size=SMALL)
            y += 17
    told = "; ".join(f"{side.who}: {_listed(side)}, {side.gbps}, {side.why}" for side in sides)
    return sheet.finish(f"{title} on {_listed(ours)}: {ours.gbps}", told)


def _taken(side: _Side) -> dict[str, tuple[int, int]]:
    return {str(one.node.name): (one.choice.gpus, one.kubelet) for one in side.places}


def _listed(side: _Side) -> str:
    """The machines of a choice and their GPUs, the first few."""
    said = [
        f"{one.node.name} GPU{'s' if len(one.choice.order) > 1 else ''} "
        + ", ".join(map(str, one.choice.order))
        if one.choice.gpus
        else f"{one.node.name}, {one.kubelet} GPU{'s' if one.kubelet > 1 else ''}"
        for one in side.places[:MOST_DRAWINGS]
    ]
    more = len(side.places) - len(said)
    return "; ".join([*said, *([f"{more} more nodes"] if more else [])])


# ---------------------------------------------------------------- the two choices


def _ours(proposal: Proposal, cluster: Cluster) -> _Side:
    plan = proposal.plan
    assert plan is not None
    assert plan.placement is not None
    assert plan.forecast is not None
    slots = max(1, plan.job.gpus)
    ranks: dict[str, dict[int, int]] = {}
    hidden: dict[str, int] = {}
    for index, node, gpus in sorted(plan.forecast.workers):
        own = ranks.setdefault(node, {})
        own |= {gpu: index * slots + at for at, gpu in enumerate(gpus)}
        hidden[node] = hidden.get(node, 0) + (0 if gpus else slots)
    known = {str(node.name): node for node in cluster.nodes}
    places = tuple(
        _Place(
            node=known[name],
            choice=Choice(gpus=gpu_set(own), ranks=own),
            kubelet=hidden[name],
        )
        for name, own in ranks.items()
    )
    placement = _valued(proposal, cluster)
    return _Side(
        who="arena-topo",
        gbps=_gbps(placement.bandwidth),
        why=f"{_why(places, placement, cluster)}; {proved(placement)}",
        poor=False,
        tier=placement.tier,
        places=places,
    )


def _valued(proposal: Proposal, cluster: Cluster) -> Placement:
    """The placement with what its pods get of the GPUs drawn."""
    plan = proposal.plan
    assert plan is not None
    assert plan.placement is not None
    return (
        plan.placement if plan.binding is None else valued_as(plan.placement, cluster, plan.binding)
    )


def _gbps(found: Estimate | None) -> str:
    if found is None:
        return "one GPU"
    return estimates.text(found) + (" assumed" if found.assumed else "")


def _first_fit(proposal: Proposal, cluster: Cluster) -> _Side | None:
    """What the first free GPUs by index give; None if not all fit."""
    found = proposal.comparison.first_fit if proposal.comparison is not None else None
    plan, request = proposal.plan, proposal.request
    if found is None or request is None or plan is None or plan.forecast is None:
        return None
    ours, theirs = _valued(proposal, cluster).bandwidth, found.bandwidth
    gbps = None if theirs is None else theirs.point
    poor = ours is not None and gbps is not None and gbps < ours.point
    known: Mapping[NodeName, Node] = {node.name: node for node in cluster.nodes}
    places, rank = [], 0
    for name, workers in found.loads.items():
        node, size = known[name], workers * request.gpus
        if node.opaque:
            choice = Choice(gpus=GPUSet(0), poor=poor)
            places.append(_Place(node=node, choice=choice, kubelet=size))
        else:
            gpus = by_index(node, size)
            ranks = {gpu: rank + at for at, gpu in enumerate(members(gpus))}
            worth = gpu_sets(node.machine.configuration).value(gpus)
            slow = poor and gbps is not None and worth <= gbps
            choice = Choice(gpus=gpus, ranks=ranks, poor=poor, slow=slow)
            places.append(_Place(node=node, choice=choice))
        rank += size
    return _Side(
        who="first fit by index",
        gbps=_gbps(theirs),
        why=_why(places, found, cluster),
        poor=poor,
        tier=found.tier,
        places=tuple(places),
    )


def _why(places: Sequence[_Place], one: Placement | Outcome, cluster: Cluster) -> str:
    """What holds an all-reduce up: the links in one of the machines, else what joins the pods."""
    found = one.bandwidth
    if found is None:
        return "one GPU talks to nobody"
    if found.regime not in BETWEEN_HOSTS:
        for place in places:
            if not place.choice.gpus:
                continue
            ways = rings(place.node.machine, place.choice.gpus, place.choice.order)
            if ways.gbps <= found.point:
                return reason(place.node.machine, ways)
        if one.tier == NODE_TIER:
            return "the kubelet picks the GPUs; this is what the worst of them give"
    return f"limited by {limited(one, found, cluster)}"


def _notes(proposal: Proposal, *, same: bool) -> list[str]:
    plan, comparison = proposal.plan, proposal.comparison
    assert plan is not None
    assert plan.forecast is not None
    notes = []
    if same:
        notes.append("First fit by index takes the same GPUs.")
    elif comparison is not None and comparison.first_fit is None:
        notes.append("First fit by index finds no room for all workers.")
    placement = _valued(proposal, proposal.cluster) if proposal.cluster is not None else None
    ours = placement.bandwidth if placement is not None else None
    if comparison is not None and ours is not None and placement is not None:
        empty, spread = (
            "does not fit" if one is None else _gbps(one.bandwidth)
            for one in (comparison.best_empty, comparison.spread)
        )
        notes.append(
            f"Bus bandwidth of an all-reduce of these pods. Were all GPUs free: {empty};"
            f" spread over nodes: {spread}."
        )
        counted = ours if plan.binding is None else counted_on(placement, plan.binding)
        if counted is not None and counted != ours:
            notes.append(f"The kubelet picks the GPUs: {estimates.text(counted)} at worst.")
        inside = placement.inside
        if inside is not None and inside.point > ours.point:
            notes.append(
                f"Were the pods of a node one host for NCCL, these GPUs would reach"
                f" {estimates.text(inside)}."
            )
    if plan.forecast.guarantee is not None:
        notes.append(f"{guarantee(plan.forecast)}.")
    if plan.forecast.emulated:
        notes.append(f"{EMULATED}.")
    return notes


# ---------------------------------------------------------------- one of them


def _said(side: _Side) -> list[str]:
    return wrapped(f"{side.who}: {side.why}", _LEAST)


def _panel(side: _Side, cluster: Cluster, lines: int) -> Sheet:
    """A choice: how fast it is, why (in so many lines), its machines and what joins them."""
    alike: dict[tuple[object, ...], list[_Place]] = {}
    for place in side.places:
        node = place.node
        same = (
            node.machine.configuration,
            node.machine.gpus,
            node.free,
            node.hidden,
            node.allocatable,
            place.choice.gpus,
            place.kubelet,
        )
        alike.setdefault(same, []).append(place)
    groups = list(alike.values())
    cells = [_cell(group) for group in groups[:MOST_DRAWINGS]]
    sizes = [(right - left, low - top) for left, top, right, low in (one.edges for one in cells)]
    sheet = Sheet()
    several = len(side.places) > 1
    row = several and sum(wide + _APART for wide, _high in sizes) - _APART <= WIDEST
    room = max(
        sum(wide + _APART for wide, _ in sizes) - _APART if row else 0,
        *(wide for wide, _high in sizes),
        _LEAST,
    )
    sheet.text((0, 20), side.gbps, f"big {'bad' if side.poor else 'good'}", room=room, size=BIG)
    y = 44.0
    for at, line in enumerate(_said(side)):
        sheet.text((0, y + 18 * at), line)
    y += 18 * lines
    look = "bar-slow" if side.poor else "bar-on"
    held = side.poor and not any(place.choice.slow for place in side.places)
    wire = "slow" if held else "weak" if side.poor else "ring0"
    network = _network(side.tier, cluster)
    if row:
        x, low = 0.0, y + max(high for _wide, high in sizes) + 26
        for cell, (wide, high) in zip(cells, sizes, strict=True):
            sheet.inset(cell, (x, y))
            sheet.line(((x + wide / 2, y + high + 6), (x + wide / 2, low)), wire, thick=3.5)
            x += wide + _APART
        sheet.box((0, low), (room, 24), look, layer=Layer.NODE, round_=6)
        sheet.text((room / 2, low + 16.5), network, "small middle", room=room - 12, size=SMALL)
        y = low + 24
    else:
        middles = []
        for cell, (_wide, high) in zip(cells, sizes, strict=True):
            sheet.inset(cell, (38 if several else 0, y))
            middles.append(y + high / 2)
            y += high + 26
        if several:
            for middle in middles:
                sheet.line(((14, middle), (34, middle)), wire, thick=3.5)
            sheet.box((0, middles[0] - 40), (14, middles[-1] - middles[0] + 80), look, round_=6)
            sheet.text((0, y), f"Joined by {network}", "small", room=room, size=SMALL)
    more = sum(map(len, groups[MOST_DRAWINGS:]))
    if more:
        sheet.text((0, y + 20), f"{more} more nodes are not drawn", "small dim", size=SMALL)
    return sheet


def _network(tier: str, cluster: Cluster) -> str:
    """What joins the nodes of a choice, and how fast it is, where somebody said so."""
    rates = {one.name: one.bandwidth for one in cluster.tiers}
    joined = meets(tier, cluster)
    if cluster.guessed(tier):
        return joined
    return f"{joined}, {number(rates.get(tier, cluster.beyond))} GB/s"


def _cell(group: Sequence[_Place]) -> Sheet:
    """A machine, and the names of those that look the same."""
    place = group[0]
    node, machine = place.node, place.node.machine
    healthy = machine.everything if node.allocatable is None else node.allocatable
    said = states(
        machine,
        choice=place.choice,
        free=node.free,
        hidden=node.hidden,
        broken=GPUSet(machine.everything & ~healthy),
    )
    drawn = draw(machine, said, place.choice, cards=False)
    sheet = Sheet()
    left, _top, right, _low = drawn.edges
    room = max(right - left, _LEAST)
    name = str(node.name)
    what = heading(machine)
    sheet.text((0, 12), name, "strong", room=room * 0.6)
    used = min(width(name) * 1.08, room * 0.6) + 10
    if used + width(what) <= room:
        sheet.text((used, 12), what, "dim")
        y = 28.0
    else:
        y = 12.0
        for line in wrapped(what, room):
            y += 18
            sheet.text((0, y), line, "dim")
        y += 16
    _wide, high = sheet.inset(drawn, (0, y))
    y += high
    below = []
    if place.kubelet:
        below.append(f"the kubelet picks {place.kubelet} of them for this job")
    if node.hidden:
        are = "is" if node.hidden == 1 else "are"
        below.append(f"{node.hidden} of those marked free? {are} in use, nobody says which")
    if len(group) > 1:
        below.append(f"also on: {names([str(one.node.name) for one in group[1:]], _NAMES)}")
    for sentence in below:
        for line in wrapped(sentence, room, SMALL):
            y += 18
            sheet.text((0, y), line, "small dim", size=SMALL)
    return sheet
