"""The picture of `plan`: the machines, the chosen GPUs and the links between them.

Beside it are the first GPUs by index, if a scheduler that only counts would take others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from arena_topo.drawing.machine import MachineState
from arena_topo.drawing.machine_svg import LEAST, PlacedRanks, draw_legend, machine_figure
from arena_topo.drawing.network import fitting_names
from arena_topo.drawing.sheet import Sheet, frame_sheet, lines, stack
from arena_topo.drawing.tables import EMULATED
from arena_topo.errors import UsageError
from arena_topo.jobs.plan_view import (
    MOST_DRAWINGS,
    Taken,
    Valuation,
    common_level,
    distinct_machines,
    in_pods,
    limit_text,
    proof_text,
    request_text,
    usage_by_node,
    valuation_of,
)
from arena_topo.jobs.proposal import Proposal
from arena_topo.jobs.training_view import training_line
from arena_topo.jobs.view import guarantee_line
from arena_topo.layout import number
from arena_topo.manifests import PlacementForecast, estimates
from arena_topo.solver import Placement
from arena_topo.topology import NODE_TIER, Cluster, GPUSet, NodeName, members

_WIDEST = 1120.0
"""The most pixels of two placements side by side: the full size of a page or a slide."""

_APART = 36.0
_NAMES = 46
"""The most characters of names in one line below a machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One placement: its author, its value, and its part of each node."""

    who: str
    placement: Placement
    nodes: Mapping[NodeName, Taken]
    poor: bool = False
    proof: str = ""

    @property
    def gpus(self) -> dict[NodeName, tuple[int, int]]:
        """The GPUs of each node, without ranks."""
        return {name: (own.gpus, own.kubelet) for name, own in self.nodes.items()}

    @property
    def gbps(self) -> str:
        """The bandwidth in words."""
        estimate = self.placement.bandwidth
        if estimate is None:
            return "one GPU"
        return estimates.estimate_text(estimate) + (
            " assumed" if estimate.assumed and not estimate.guess else ""
        )

    def why(self, cluster: Cluster) -> str:
        """The limit of its bandwidth, and its proof."""
        estimate = self.placement.bandwidth
        limit = (
            "no links needed" if estimate is None else limit_text(self.placement, estimate, cluster)
        )
        return f"{self.who}: limited by {limit}{self.proof}"


def draw_plan(proposal: Proposal) -> str:
    """Draw a proposal; raises its refusal, or UsageError, if there is no placement to draw."""
    plan, cluster, valued = proposal.plan, proposal.cluster, valuation_of(proposal)
    if proposal.refused is not None and plan is None:
        raise proposal.refused
    if plan is None or plan.forecast is None or valued is None or cluster is None:
        raise UsageError(
            f"there is no placement of {proposal.job.name} to draw",
            why="it asks for no GPUs",
            hint="add --gpus N",
        )
    ours = _Side(
        who="arena-topo",
        placement=valued.placement,
        nodes=usage_by_node(plan.forecast, plan.job.gpus),
        proof=f"; {proof_text(valued.placement)}",
    )
    first = _first_fit(proposal, valued.placement, cluster)
    same = first is not None and first.gpus == ours.gpus
    sides = [ours] if first is None or same else [ours, first]
    title = f"{proposal.job.name}: {request_text(proposal.job)}{in_pods(proposal.job, plan.job)}"
    panels = _panels(sides, cluster)
    across = sum(panel.size[0] + _APART for panel in panels) - _APART <= _WIDEST
    both = stack(panels, gap=_APART, across=across)
    room = max(LEAST, both.size[0])
    machines = {
        node.machine.configuration: node.machine
        for node in cluster.nodes
        if any(node.name in side.nodes for side in sides)
    }
    notes = [*_notes(proposal, plan.forecast, valued), *_compared(proposal, same=same)]
    sheet = stack(
        [
            lines([(title, "head")], room),
            both,
            *(draw_legend(machine, room) for machine in machines.values()),
            lines([(note, "small dim") for note in notes], room),
        ],
        gap=16,
    )
    text = "; ".join(f"{_listed(side)}, {side.gbps}, {side.why(cluster)}" for side in sides)
    return sheet.finish(f"{title} on {_listed(ours)}: {ours.gbps}", text)


def _listed(side: _Side) -> str:
    """The first few nodes of a placement and their GPUs."""
    phrases = []
    for name, own in side.nodes.items():
        gpus = sorted(own.ranks, key=own.ranks.__getitem__)
        several = "s" if len(gpus or range(own.kubelet)) > 1 else ""
        known = f"{name} GPU{several} {', '.join(map(str, gpus))}"
        phrases.append(known if own.gpus else f"{name}, {own.kubelet} GPU{several}")
    more = len(phrases) - MOST_DRAWINGS
    return "; ".join([*phrases[:MOST_DRAWINGS], *([f"{more} more nodes"] if more > 0 else [])])


def _first_fit(proposal: Proposal, ours: Placement, cluster: Cluster) -> _Side | None:
    """The placement on the first free GPUs by index; None if not all workers fit."""
    comparison = proposal.comparison
    placement = None if comparison is None else comparison.first_fit
    if comparison is None or placement is None:
        return None
    theirs, best = comparison.counted(placement), ours.bandwidth
    known = {node.name: node for node in cluster.nodes}
    nodes, rank = {}, 0
    for name, workers in placement.loads.items():
        node, size = known[name], workers * placement.gpus
        gpus = () if node.unattributed else members(node.free)[:size]
        ranks = {gpu: rank + at for at, gpu in enumerate(gpus)}
        nodes[name] = Taken(ranks=ranks, kubelet=0 if gpus else size)
        rank += size
    return _Side(
        who="first fit by index",
        placement=placement,
        nodes=nodes,
        poor=theirs is not None and best is not None and theirs.point < best.point,
    )


def _compared(proposal: Proposal, *, same: bool) -> Iterator[str]:
    """Sentences that compare the placement with others."""
    comparison = proposal.comparison
    if comparison is None:
        return
    if same:
        yield "First fit by index takes the same GPUs."
    elif comparison.first_fit is None:
        yield "First fit by index finds no room for all workers."
    empty, spread = (
        "does not fit"
        if (rate := comparison.counted(placement)) is None
        else estimates.estimate_text(rate)
        for placement in (comparison.best_empty, comparison.spread)
    )
    yield f"With all GPUs free: {empty}; spread over nodes: {spread}."


def _notes(proposal: Proposal, forecast: PlacementForecast, valued: Valuation) -> Iterator[str]:
    """The guarantee of the placement, and its value in other conditions."""
    ours, inside = valued.placement.bandwidth, valued.placement.inside
    if valued.ours is not None and valued.at_worst:
        yield f"{estimates.estimate_text(valued.ours)} at worst: {estimates.PICKED}."
    if ours is not None and inside is not None and inside.point > ours.point:
        yield f"{estimates.estimate_text(inside)} {estimates.SHARED}."
    if proposal.training is not None:
        yield f"{training_line(proposal.training)}."
    if forecast.guarantee is not None:
        yield f"{guarantee_line(forecast)}."
    if proposal.cluster is not None and proposal.cluster.emulated:
        yield f"{EMULATED}."


# ---------------------------------------------------------------- a placement


def _panels(sides: Sequence[_Side], cluster: Cluster) -> list[Sheet]:
    """A panel for each placement: its bandwidth, the limit, and its machines in a box."""
    worlds = [_nodes(side, cluster) for side in sides]
    heads = [
        lines(
            [(side.gbps, f"big {'bad' if side.poor else 'good'}"), (side.why(cluster), "")],
            max(LEAST, world.size[0]),
        )
        for side, world in zip(sides, worlds, strict=True)
    ]
    # Machines begin at the same height.
    deepest = max(head.size[1] for head in heads)
    for head in heads:
        head.reserve(deepest)
    return [stack(parts) for parts in zip(heads, worlds, strict=True)]


def _nodes(side: _Side, cluster: Cluster) -> Sheet:
    groups = distinct_machines(side.nodes, cluster)
    cells = [_machine(side, *group) for group in groups[:MOST_DRAWINGS]]
    more = sum(len(nodes) for _state, _own, nodes in groups[MOST_DRAWINGS:])
    if more:
        cells.append(lines([(f"{more} more nodes are not drawn", "small dim")], LEAST))
    drawn = stack(cells)
    tier = side.placement.tier
    if len(side.nodes) == 1 or tier == NODE_TIER:
        return drawn
    network, rate = common_level(side.placement, cluster), cluster.rate(tier)
    if rate is not None:
        network += f", {number(rate)} GB/s"
    return frame_sheet(drawn, network, "poor-frame" if side.poor else "on-frame")


def _machine(side: _Side, state: MachineState, own: Taken, nodes: Sequence[str]) -> Sheet:
    """A machine, and the names of the nodes with the same drawing."""
    free = replace(state, chosen=GPUSet(0), free=None)
    drawn = machine_figure(state, PlacedRanks(of=own.ranks, poor=side.poor))
    below = []
    if own.kubelet:
        below.append(f"the kubelet picks {own.kubelet} of them for this job")
    if state.doubt:
        below.append(state.doubt)
    if len(nodes) > 1:
        below.append(f"also on: {fitting_names(nodes[1:], _NAMES)}")
    room = max(drawn.size[0], LEAST - 40)
    head = lines([(f"{state.machine.name}: {free.what}", "")], room)
    return stack([head, drawn, lines([(caption, "small dim") for caption in below], room)], gap=8)
