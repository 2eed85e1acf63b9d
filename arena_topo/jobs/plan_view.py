"""The text and JSON of `plan`: a placement, drawings of its machines, and its baselines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from arena_topo import words
from arena_topo.bandwidth import Estimate, Limit, nearest_nics
from arena_topo.drawing import machine, network
from arena_topo.drawing.machine import State
from arena_topo.drawing.tables import emulated
from arena_topo.escaping import one_line
from arena_topo.gang.comparison import Comparison, Counted, Proposal
from arena_topo.job import MPIJob
from arena_topo.jobs.view import confirmed, guarantee, worker_value, workers
from arena_topo.layout import NOTHING, align, number
from arena_topo.manifests import Forecast, Plan, estimates
from arena_topo.manifests.annotations import placement_map
from arena_topo.manifests.forecast import counted_on, valued_as
from arena_topo.solver import BEYOND, NODE_TIER, Placement
from arena_topo.topology import (
    Cluster,
    GPUSet,
    NodeName,
    gpu_set,
)

MOST_DRAWINGS = 4
"""The most machines drawn; a gang rarely uses more kinds of sets, and more would fill the
screen."""

_MOST_SHARES = 3
"""The most nodes for which the workers of each are listed."""

SHARES = ((25 << 20, "25MiB"),)
"""Message sizes in bytes for which JSON has the share of the bandwidth: PyTorch's gradient
bucket."""

_SMALLEST_RING = 2
"""The smallest ring in which the order of GPUs does not matter."""


def text(proposal: Proposal, *, unicode: bool = True, width: int = 100) -> str:
    """A proposed placement for a person; empty without one.

    Drawings and lists of names have at most `width` columns.
    """
    plan, cluster, valued = proposal.plan, proposal.cluster, worth(proposal)
    if plan is None or plan.forecast is None or valued is None or cluster is None:
        return ""
    blocks = [
        _headline(proposal, plan.job, plan.forecast),
        _workers(plan.job, plan.forecast, rings=not proposal.named),
        *_machines(taken(plan.forecast, plan.job.gpus), cluster, unicode=unicode, width=width),
        _bandwidths(proposal, valued, cluster),
        _rows(proposal, cluster),
        _holding(proposal, plan, plan.forecast),
    ]
    return "\n".join(block for block in blocks if block)


def _headline(proposal: Proposal, runs: MPIJob, forecast: Forecast) -> str:
    asked = proposal.job
    nodes = len({node for _index, node, _gpus in forecast.workers})
    where = "on one node" if nodes == 1 else f"on {nodes} nodes"
    how = "" if asked.gputopology else " with --gputopology"
    can = "as named by --on" if proposal.named else f"can be placed now{how}"
    return f"{asked.name}: {gang(asked)} {can}{in_pods(asked, runs)}, {where}\n"


def in_pods(asked: MPIJob, runs: MPIJob) -> str:
    """The number of pods, if each has several workers: ` in 1 pod of 4`."""
    each = asked.workers // runs.workers
    return f" in {words.counted(runs.workers, 'pod')} of {each}" if each > 1 else ""


def gang(job: MPIJob) -> str:
    """The request of a job: `4 workers x 1 GPU`."""
    return f"{words.counted(job.workers, 'worker')} x {words.counted(job.gpus, 'GPU')}"


def _workers(job: MPIJob, forecast: Forecast, *, rings: bool) -> str:
    """The table of workers; with `rings` the GPUs are in the order of the solver's ring."""
    lines = workers(forecast, job.name, slots=max(1, job.gpus))
    listed = sum(len(gpus) for _index, _node, gpus in forecast.workers)
    # If several workers of a node have several GPUs each, NCCL lays its ring through all of them.
    several = [node for _index, node, gpus in forecast.workers if len(gpus) > 1]
    along = len(several) == len(set(several))
    if rings and along and listed > _SMALLEST_RING:
        lines.append("  GPUs are in the order of the ring, rank after rank.")
    return align(lines)


# ---------------------------------------------------------------- the machines


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A job's part of one node: GPUs with their ranks, and the number that the kubelet picks."""

    ranks: Mapping[int, int] = field(default_factory=dict)
    kubelet: int = 0

    @property
    def gpus(self) -> GPUSet:
        """The GPUs that are known."""
        return gpu_set(self.ranks)


def taken(forecast: Forecast, gpus: int) -> dict[NodeName, Taken]:
    """The part of each node that the workers of a plan take; `gpus` per worker."""
    nodes: dict[NodeName, Taken] = {}
    for index, node, own in sorted(forecast.workers):
        before = nodes.get(NodeName(node), Taken())
        ranks = {gpu: index * gpus + at for at, gpu in enumerate(own)}
        kubelet = before.kubelet + (0 if own else gpus)
        nodes[NodeName(node)] = Taken(ranks={**before.ranks, **ranks}, kubelet=kubelet)
    return nodes


Kind = tuple[State, Taken, list[NodeName]]
"""A machine, a job's part of it, and the nodes with the same drawing."""


def kinds(nodes: Mapping[NodeName, Taken], cluster: Cluster) -> list[Kind]:
    """The machines of a placement; equal drawings appear once."""
    known = {node.name: node for node in cluster.nodes}
    found: dict[object, Kind] = {}
    for name, own in nodes.items():
        state = State.of(known[name], own.gpus)
        gpus = tuple(replace(gpu, uuid=None) for gpu in state.machine.gpus)
        look = replace(state, machine=replace(state.machine, name="", gpus=gpus))
        found.setdefault((look, own.kubelet), (state, own, []))[2].append(name)
    return list(found.values())


def _machines(
    nodes: Mapping[NodeName, Taken], cluster: Cluster, *, unicode: bool, width: int
) -> Iterable[str]:
    """A drawing for each kind of machine and chosen set, up to the limit."""
    found = kinds(nodes, cluster)
    for state, own, same in found[:MOST_DRAWINGS]:
        drawn = machine.draw(state, unicode=unicode, width=width)
        if own.kubelet:
            drawn += f"  the kubelet picks {own.kubelet} of them for this job\n"
        if len(same) > 1:
            drawn += f"  also on: {network.names(same[1:], width - 11)}\n"
        yield drawn
    more = sum(len(same) for _state, _own, same in found[MOST_DRAWINGS:])
    if more:
        yield f"{words.counted(more, 'more node')} not drawn: the table names their GPUs\n"


# ---------------------------------------------------------------- bandwidths


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """A placement valued for its pods as bound; `ours` is the bandwidth they can count on."""

    placement: Placement
    ours: Estimate | None
    proof: str


def worth(proposal: Proposal) -> Worth | None:
    """The value of a proposal's placement for its pods; None without a placement."""
    plan = proposal.plan
    if plan is None or plan.placement is None or plan.binding is None:
        return None
    found = valued_as(plan.placement, proposal.cluster, plan.binding)
    # The proof holds only for the pods of the search.
    proof = proved(found) if found is plan.placement else ""
    return Worth(placement=found, ours=counted_on(found, plan.binding), proof=proof)


def _bandwidths(proposal: Proposal, found: Worth, cluster: Cluster) -> str:
    """The bandwidth of the pods, its limit, and the bandwidth of other placements."""
    placement, ours = found.placement, found.ours
    if ours is None or placement.bandwidth is None:
        return "Bus bandwidth: none, as one GPU has no peer\n"
    proof = found.proof and f", {found.proof}"
    lines = ["Bus bandwidth of an all-reduce:"]
    facts = _facts(placement, ours, cluster, proof)
    lines += [f"  {label:<12}{text}" for label, text in facts]
    comparison = proposal.comparison
    if comparison is None:
        return "".join(f"{line}\n" for line in lines)
    with_it = proposal.job.gputopology or proposal.named
    this = "as planned" if ours != placement.bandwidth else "this placement"
    rows: list[tuple[str, Placement | None]] = [
        (this if with_it else "with --gputopology", placement),
        *([("best, free GPUs", proposal.best)] if proposal.named else []),
        ("best, all GPUs free", comparison.best_empty),
        ("first fit by index" if with_it else "without: first fit", comparison.first_fit),
        ("spread over nodes" if with_it else "without: spread", comparison.spread),
    ]
    lines += ["", *_compared(rows, placement.bandwidth.point, cluster)]
    # The next best placements, which are listed below, use the same mark.
    shown = [*(one for _name, one in rows if one is not None), *proposal.rows]
    rates = [ours, *(one.bandwidth for one in shown if one.bandwidth is not None)]
    assumed = dict.fromkeys(note for rate in rates for note in rate.assumed)
    if assumed:
        lines.append(f"  * assumed: {'; '.join(assumed)}")
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _facts(
    placement: Placement, ours: Estimate, cluster: Cluster, proof: str
) -> Iterator[tuple[str, str]]:
    """The facts about a bandwidth, with the labels that `forecast` uses."""
    planned, inside = placement.bandwidth, placement.inside
    assert planned is not None
    settled = ours == planned
    held = proof if settled else " at worst: the kubelet picks the GPUs"
    yield "Bandwidth", f"{estimates.text(ours)}{_doubt(ours)}{held}"
    yield "Limited by", limited(placement, ours, cluster)
    if not settled:
        yield "As planned", f"{estimates.text(planned)}{_doubt(planned)}{proof}"
    if inside is not None and inside.point > planned.point:
        joined = f"{estimates.text(inside)}{_doubt(inside)}"
        yield "Joined", f"{joined}, if the workers of a node shared one pod"


def _doubt(found: Estimate) -> str:
    """The mark of a bandwidth that is based on assumptions."""
    return "*" if found.assumed else ""


def limited(one: Placement, found: Estimate, cluster: Cluster) -> str:
    """The limit of a placement's bandwidth, with the NICs of the pods if they are the limit."""
    nodes = len(one.nodes)
    cause = estimates.limit(str(found.regime), str(found.limited_by), tier=one.tier, nodes=nodes)
    if found.limited_by is not Limit.NICS:
        return cause
    cards = _cards(one, cluster)
    return f"{cause}: {cards}" if cards else cause


def _cards(placement: Placement, cluster: Cluster) -> str:
    """The NICs of the GPUs on the slowest node: `4 of 50 GB/s a node`; empty if unknown."""
    machines = {node.name: node.machine for node in cluster.nodes}
    chosen: dict[NodeName, set[int]] = {}
    for one in placement.assignments:
        machine = machines[one.node]
        for gpu in one.gpus or range(len(machine.gpus)):
            chosen.setdefault(one.node, set()).update(nearest_nics(machine, gpu))
    used = [[machines[name].nics[card].speed for card in cards] for name, cards in chosen.items()]
    told = [[speed for speed in speeds if speed is not None] for speeds in used]
    if not all(told) or list(map(len, told)) != list(map(len, used)):
        return ""
    least = min(told, key=sum)
    return f"{len(least)} of {estimates.amount(least[0])} GB/s a node"


def _compared(
    rows: Sequence[tuple[str, Placement | None]], ours: float, cluster: Cluster
) -> list[str]:
    """A table of placements of the same pods: bandwidth, range, ratio and place."""
    cells = [("", *_SPEED, "", "")]
    for name, one in rows:
        rate = None if one is None else one.bandwidth
        if one is None or rate is None:
            cells.append((name, "", "", "", "does not fit"))
        else:
            ratio = f"{rate.point / ours:.2f}x"
            cells.append((name, *_speed(rate), ratio, _place(one, cluster)))
    return _aligned(cells)


_SPEED = (f"{'GB/s':>5} ", "RANGE")


def _speed(found: Estimate | None) -> tuple[str, str]:
    """A bandwidth with its mark of doubt, and its range."""
    if found is None:
        return f"{NOTHING:>5} ", ""
    gbps = f"{estimates.amount(found.point):>5}{_doubt(found) or ' '}"
    return gbps, estimates.span(found.low, found.high)


def _aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    return [line.rstrip() for line in align("  " + "\t".join(row) for row in cells).splitlines()]


def _place(one: Placement, cluster: Cluster) -> str:
    """The place of the workers: `2 + 2, unknown network`; GPUs of several models are marked."""
    loads = list(one.loads.values())
    chosen = {*one.loads}
    models = {node.machine.model for node in cluster.nodes if node.name in chosen} - {None}
    where = meets(one.tier, cluster) + (", mixes GPU models" if len(models) > 1 else "")
    if len(loads) == 1:
        return where
    shares = " + ".join(map(str, loads)) if len(loads) <= _MOST_SHARES else f"{len(loads)} nodes"
    return f"{shares}, {where}"


def meets(tier: str, cluster: Cluster) -> str:
    """The nearest common level of the nodes of a placement: `one node`, `one rack`."""
    if tier == NODE_TIER:
        return "one node"
    if tier != BEYOND:
        return f"one {estimates.level(tier)}"
    if cluster.tiers:
        return "whole network"
    return "unknown network" if cluster.guessed(tier) else "one network"


def _rows(proposal: Proposal, cluster: Cluster) -> str:
    """The best placement and the next best ones, a row for each."""
    if not proposal.rows:
        return ""
    cells = [("", *_SPEED, "NODES")]
    for row, one in enumerate(proposal.rows, 1):
        rate, least = one.bandwidth, _counted(proposal, one)
        said = f"{'; '.join(_seats(one))}: {meets(one.tier, cluster)}"
        if least is not None and least != rate:
            said += f", {estimates.amount(least.point)} at worst"
        cells.append((f"{row:>3}", *_speed(rate), said))
    lines = [f"The best {words.counted(len(proposal.rows), 'placement')} on different nodes:"]
    lines += _aligned(cells)
    return "".join(f"{line}\n" for line in lines)


def _counted(proposal: Proposal, row: Placement) -> Estimate | None:
    """The bandwidth that the pods can count on in one of several placements, with one binding."""
    binding = proposal.plan.binding if proposal.plan is not None else None
    return row.bandwidth if binding is None else counted_on(row, binding)


def _seats(placement: Placement) -> Iterator[str]:
    """The GPUs of each node: `dgx-0/0,1,5,4`; N/A if the kubelet picks them."""
    gpus: dict[NodeName, list[int]] = {}
    for one in placement.assignments:
        gpus.setdefault(one.node, []).extend(one.gpus)
    for name, some in gpus.items():
        yield f"{name}/{','.join(map(str, some)) or NOTHING}"


def proved(placement: Placement) -> str:
    """The proof of a placement, in words."""
    proof = placement.proof
    if proof.optimal:
        return "proven best"
    most = estimates.amount(proof.bound)
    if placement.bandwidth is not None and estimates.amount(placement.bandwidth.point) == most:
        # A placement that a person named may need more nodes than necessary.
        return "no more is possible"
    return f"at most {most} GB/s is possible"


def _holding(proposal: Proposal, plan: Plan, forecast: Forecast) -> str:
    """The guarantee of the plan, and what would improve it."""
    lines = []
    if forecast.guarantee is not None:
        lines.append(guarantee(forecast))
    if plan.binding is not None and plan.binding.why:
        lines.append(f"Why not a stronger guarantee: {one_line(plan.binding.why)}")
    if plan.hcas:
        names = ", ".join(plan.hcas)
        lines.append(f"NICs for NCCL: {names}, those nearest to the GPUs (NCCL_IB_HCA)")
    lines += [f"Advice: {one_line(one)}" for one in proposal.advice]
    if forecast.emulated:
        lines.append(emulated())
    return "".join(f"{line}\n" for line in lines)


# ---------------------------------------------------------------- for programs


def value(proposal: Proposal) -> dict[str, Any]:
    """The JSON of `plan`; every key is always present, null if unknown.

    `verdict` is Placeable, NotNow or Never; null for a job without GPUs. `map` is the placement in
    the form of `--on`. Bandwidths are GB/s, null for a job of one GPU.
    """
    plan, refused, valued = proposal.plan, proposal.refused, worth(proposal)
    forecast = plan.forecast if plan is not None else None
    rows = sorted(forecast.workers) if forecast is not None else []
    slots = max(1, (plan.job if plan is not None else proposal.job).gpus)
    return {
        "apiVersion": "arena-topo/v1",
        "kind": "Placement",
        "name": proposal.job.name,
        "namespace": proposal.namespace,
        "gputopology": proposal.job.gputopology,
        "verdict": None if proposal.verdict is None else proposal.verdict.value,
        "busBandwidthGBps": number(forecast.bus_bandwidth) if forecast else None,
        "usableGBps": number(forecast.usable) if forecast else None,
        "bandwidth": estimates.value(valued.ours, SHARES) if valued and valued.ours else None,
        "guarantee": forecast.guarantee if forecast else None,
        "confirmed": confirmed(forecast),
        "binding": forecast.binding if forecast else None,
        "tier": forecast.tier if forecast else None,
        "assumed": forecast.assumed if forecast else None,
        "nodes": list(dict.fromkeys(node for _index, node, _gpus in rows)),
        "podShape": (plan or proposal).job.pod_shape.value,
        "askedPodShape": proposal.job.pod_shape.value,
        "workers": [worker_value(*row, slots=slots) for row in rows],
        "map": placement_map(plan.placement) if plan and plan.placement else None,
        "ncclHca": list(plan.hcas) if plan else [],
        "proof": {
            "optimal": forecast.optimal if forecast else None,
            "bound": _finite(plan.placement.proof.bound) if plan and plan.placement else None,
        },
        "refusals": [
            {"reason": one.reason.value, "nodes": one.nodes, "example": one.example}
            for one in (refused.refusals if refused is not None else ())
        ],
        "nearest": refused.nearest if refused is not None else None,
        "comparison": _comparison_value(proposal),
        "top": [_row_value(proposal, one) for one in proposal.rows],
        "advice": list(proposal.advice),
        "notes": list(map(str, proposal.notes)),
        "emulated": proposal.cluster is not None and proposal.cluster.emulated,
    }


def _row_value(proposal: Proposal, placement: Placement) -> dict[str, Any]:
    """One of several placements; `map` is in the form of `--on`."""
    rate = _counted(proposal, placement)
    return {
        "nodes": list(placement.nodes),
        "map": placement_map(placement),
        "tier": placement.tier,
        "bandwidth": None if rate is None else estimates.value(rate, SHARES),
        "plannedGBps": _point(placement),
    }


def _comparison_value(proposal: Proposal) -> dict[str, Any]:
    others = proposal.comparison or Comparison(best_empty=None, first_fit=None, spread=None)
    return {
        "bestNowGBps": _point(proposal.best),
        "bestEmptyGBps": _point(others.best_empty),
        "firstFitGBps": _point(others.first_fit),
        "spreadGBps": _point(others.spread),
    }


def _point(one: Placement | None) -> int | float | None:
    return None if one is None or one.bandwidth is None else number(one.bandwidth.point)


def _finite(value: float | None) -> int | float | None:
    return None if value is None or math.isinf(value) else number(value)


# ---------------------------------------------------------------- by numbers alone


def counted(counted: Counted, job: MPIJob) -> str:
    """How many gangs fit by numbers alone, for a person."""
    counts = counted.counts
    return (
        f"{job.name}: by the number of free GPUs, {counts.gangs} such"
        f" gang{'s fit' if counts.gangs != 1 else ' fits'} now ({gang(job)})\n"
        f"  largest gang that fits now:             --workers {counts.largest}\n"
        f"  largest if the cluster were empty:      --workers {counts.largest_empty}\n"
        "  Only numbers were compared: bandwidth and levels were not looked at.\n"
    )


def counted_value(counted: Counted, job: MPIJob, *, namespace: str) -> dict[str, Any]:
    """How many gangs fit by numbers alone, for JSON."""
    return {
        "apiVersion": "arena-topo/v1",
        "kind": "Count",
        "name": job.name,
        "namespace": namespace,
        "verdict": counted.verdict.value,
        "gangs": counted.counts.gangs,
        "largestWorkers": counted.counts.largest,
        "largestWorkersEmpty": counted.counts.largest_empty,
    }
