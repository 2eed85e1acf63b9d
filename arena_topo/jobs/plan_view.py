"""What `plan` shows: a placement, its machines drawn, and what it is measured against."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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
"""Machines drawn; a gang rarely uses more kinds of sets, and more fill the screen."""

_MOST_SHARES = 3
"""Nodes up to which the workers of each are listed."""

SHARES = ((25 << 20, "25MiB"),)
"""Bytes of messages of which JSON has the share of the bandwidth: PyTorch's bucket of gradients."""

_SMALLEST_RING = 2
"""GPUs of which every order is the same ring."""


def text(proposal: Proposal, *, unicode: bool = True, width: int = 100) -> str:
    """A proposed placement for a person; empty where there is none.

    Drawings and lists of names keep to `width` columns.
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
    """In how many pods the workers run, where each has several: ` in 1 pod of 4`."""
    each = asked.workers // runs.workers
    return f" in {_many(runs.workers, 'pod')} of {each}" if each > 1 else ""


def gang(job: MPIJob) -> str:
    """What a job asks for: `4 workers x 1 GPU`."""
    return f"{_many(job.workers, 'worker')} x {_many(job.gpus, 'GPU')}"


def _many(number: int, word: str) -> str:
    return f"{number} {word}{'s' if number != 1 else ''}"


def _workers(job: MPIJob, forecast: Forecast, *, rings: bool) -> str:
    """The table of workers; `rings` where the GPUs are in the order that the solver gave them."""
    lines = workers(forecast, job.name, slots=max(1, job.gpus))
    listed = sum(len(gpus) for _index, _node, gpus in forecast.workers)
    # Where workers of a node have several GPUs each, NCCL lays the ring through them.
    several = [node for _index, node, gpus in forecast.workers if len(gpus) > 1]
    along = len(several) == len(set(several))
    if rings and along and listed > _SMALLEST_RING:
        lines.append("  GPUs are in the order of the ring, rank after rank.")
    return align(lines)


# ---------------------------------------------------------------- the machines


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a job takes of one node: GPUs with their ranks, and how many the kubelet picks."""

    ranks: Mapping[int, int] = field(default_factory=dict)
    kubelet: int = 0

    @property
    def gpus(self) -> GPUSet:
        """The GPUs that are known."""
        return gpu_set(self.ranks)


def taken(forecast: Forecast, gpus: int) -> dict[NodeName, Taken]:
    """What the workers of a plan take of each node; `gpus` per worker."""
    nodes: dict[NodeName, Taken] = {}
    for index, node, own in sorted(forecast.workers):
        before = nodes.get(NodeName(node), Taken())
        ranks = {gpu: index * gpus + at for at, gpu in enumerate(own)}
        kubelet = before.kubelet + (0 if own else gpus)
        nodes[NodeName(node)] = Taken(ranks={**before.ranks, **ranks}, kubelet=kubelet)
    return nodes


Kind = tuple[State, Taken, list[NodeName]]
"""A machine, what is taken of it, and the nodes that look the same."""


def kinds(nodes: Mapping[NodeName, Taken], cluster: Cluster) -> list[Kind]:
    """The machines of a choice; those that would be drawn the same come once."""
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
    """A drawing for each kind of machine and chosen set, the first so many."""
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
        yield f"{_many(more, 'more node')} not drawn: the table names their GPUs\n"


# ---------------------------------------------------------------- bandwidths


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """A placement with what its pods get as they are bound; `ours` is what they can count on."""

    placement: Placement
    ours: Estimate | None
    proof: str


def worth(proposal: Proposal) -> Worth | None:
    """What the placement of a proposal gives its pods; None where nothing is placed."""
    plan = proposal.plan
    if plan is None or plan.placement is None or plan.binding is None:
        return None
    found = valued_as(plan.placement, proposal.cluster, plan.binding)
    # What is proven is proven of the pods that were searched for.
    proof = proved(found) if found is plan.placement else ""
    return Worth(placement=found, ours=counted_on(found, plan.binding), proof=proof)


def _bandwidths(proposal: Proposal, found: Worth, cluster: Cluster) -> str:
    """What the pods get and what limits it, and what other choices would give them."""
    placement, ours = found.placement, found.ours
    if ours is None or placement.bandwidth is None:
        return "Bus bandwidth: none, as one GPU has no peer\n"
    proof = found.proof and f", {found.proof}"
    lines = ["Bus bandwidth of an all-reduce:"]
    facts = _facts(placement, ours, cluster, proof)
    lines += [f"  {label:<12}{words}" for label, words in facts]
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
    # The next best, which are listed below, have the same mark.
    shown = [*(one for _name, one in rows if one is not None), *proposal.rows]
    rates = [ours, *(one.bandwidth for one in shown if one.bandwidth is not None)]
    assumed = dict.fromkeys(note for rate in rates for note in rate.assumed)
    if assumed:
        lines.append(f"  * assumed: {'; '.join(assumed)}")
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _facts(
    placement: Placement, ours: Estimate, cluster: Cluster, proof: str
) -> Iterator[tuple[str, str]]:
    """What is known of a bandwidth, under the labels that `forecast` gives it."""
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
    """The mark of a bandwidth that rests on facts which nobody gave."""
    return "*" if found.assumed else ""


def limited(one: Placement, found: Estimate, cluster: Cluster) -> str:
    """What limits the bandwidth of a choice, with the NICs that the pods use where these do."""
    nodes = len(one.nodes)
    words = estimates.limit(str(found.regime), str(found.limited_by), tier=one.tier, nodes=nodes)
    if found.limited_by is not Limit.NICS:
        return words
    cards = _cards(one, cluster)
    return f"{words}: {cards}" if cards else words


def _cards(placement: Placement, cluster: Cluster) -> str:
    """The NICs that the GPUs use where they are slowest: `4 of 50 GB/s a node`; empty if unsaid."""
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
    """What choices give the same pods, and where they put them."""
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
    """Where a choice puts the workers: `2 + 2, unknown network`."""
    loads = list(one.loads.values())
    where = meets(one.tier, cluster)
    if len(loads) == 1:
        return where
    shares = " + ".join(map(str, loads)) if len(loads) <= _MOST_SHARES else f"{len(loads)} nodes"
    return f"{shares}, {where}"


def meets(tier: str, cluster: Cluster) -> str:
    """How near to each other the nodes of a placement are: `one node`, `one rack`."""
    if tier == NODE_TIER:
        return "one node"
    if tier != BEYOND:
        return f"one {estimates.level(tier)}"
    if cluster.tiers:
        return "whole network"
    return "unknown network" if cluster.guessed(tier) else "one network"


def _rows(proposal: Proposal, cluster: Cluster) -> str:
    """The best placement and the next best, a row each."""
    if not proposal.rows:
        return ""
    cells = [("", *_SPEED, "NODES")]
    for row, one in enumerate(proposal.rows, 1):
        rate, least = one.bandwidth, _counted(proposal, one)
        said = f"{'; '.join(_seats(one))}: {meets(one.tier, cluster)}"
        if least is not None and least != rate:
            said += f", {estimates.amount(least.point)} at worst"
        cells.append((f"{row:>3}", *_speed(rate), said))
    lines = [f"The best {len(proposal.rows)} on different nodes:"]
    lines += _aligned(cells)
    return "".join(f"{line}\n" for line in lines)


def _counted(proposal: Proposal, row: Placement) -> Estimate | None:
    """What the pods can count on in one of several placements, bound as the best is."""
    binding = proposal.plan.binding if proposal.plan is not None else None
    return row.bandwidth if binding is None else counted_on(row, binding)


def _seats(placement: Placement) -> Iterator[str]:
    """The GPUs of each node: `dgx-0/0,1,5,4`; with an N where the kubelet picks as many."""
    gpus: dict[NodeName, list[int]] = {}
    for one in placement.assignments:
        gpus.setdefault(one.node, []).extend(one.gpus)
    for name, some in gpus.items():
        yield f"{name}/{','.join(map(str, some)) or NOTHING}"


def proved(placement: Placement) -> str:
    """How good a placement is known to be."""
    proof = placement.proof
    if proof.optimal:
        return "proven best"
    most = estimates.amount(proof.bound)
    if placement.bandwidth is not None and estimates.amount(placement.bandwidth.point) == most:
        # A placement that a person named may be on more nodes than this takes.
        return "no more is possible"
    return f"at most {most} GB/s is possible"


def _holding(proposal: Proposal, plan: Plan, forecast: Forecast) -> str:
    """How firmly the plan holds, and what would do better."""
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
    """What `plan -o json` shows; every key is always there, null where nothing is known of it.

    `verdict` is Placeable, NotNow or Never; null for a job without GPUs. `map` is the answer
    as `--on` takes it. Bandwidths are GB/s, null for a job of one GPU.
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
        "notes": list(proposal.notes),
        "emulated": proposal.cluster is not None and proposal.cluster.emulated,
    }


def _row_value(proposal: Proposal, placement: Placement) -> dict[str, Any]:
    """One of several placements; `map` is as `--on` takes it."""
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
    """How often a gang fits by numbers alone, for a person."""
    counts = counted.counts
    return (
        f"{job.name}: by the number of free GPUs, {counts.gangs} such"
        f" gang{'s fit' if counts.gangs != 1 else ' fits'} now ({gang(job)})\n"
        f"  largest gang that fits now:             --workers {counts.largest}\n"
        f"  largest if the cluster were empty:      --workers {counts.largest_empty}\n"
        "  Only numbers were compared: bandwidth and levels were not looked at.\n"
    )


def counted_value(counted: Counted, job: MPIJob, *, namespace: str) -> dict[str, Any]:
    """How often a gang fits by numbers alone, for programs."""
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
