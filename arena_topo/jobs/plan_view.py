"""The text and JSON of `plan`: a placement, drawings of its machines, and its baselines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from arena_topo import words
from arena_topo.bandwidth import Estimate, Limit
from arena_topo.bandwidth.nics import nearest_nics
from arena_topo.drawing import machine, network
from arena_topo.drawing.machine import MachineState
from arena_topo.drawing.tables import emulated_note
from arena_topo.escaping import one_line
from arena_topo.job import MPIJob
from arena_topo.jobs.proposal import Counted, Proposal, SchedulerComparison
from arena_topo.jobs.training_view import UNNAMED, training_block, training_json
from arena_topo.jobs.view import confirmed, guarantee_line, planned_mark, worker_value, workers
from arena_topo.layout import NOTHING, align, clock, number
from arena_topo.manifests import PlacementForecast, Plan, estimates
from arena_topo.manifests.annotations import placement_map
from arena_topo.manifests.forecast import counted_on, valued_as
from arena_topo.solver import Placement
from arena_topo.solver.door import network_is_measured
from arena_topo.topology import (
    BEYOND,
    NODE_TIER,
    Cluster,
    GPUSet,
    NodeName,
    gpu_set,
)
from arena_topo.training.times import own_name

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


def plan_text(proposal: Proposal, *, unicode: bool = True, width: int = 100) -> str:
    """A proposed placement for a person; empty without one.

    Drawings and lists of names have at most `width` columns.
    """
    plan, cluster, valued = proposal.plan, proposal.cluster, valuation_of(proposal)
    if plan is None or plan.forecast is None or valued is None or cluster is None:
        return ""
    times = proposal.training
    blocks = [
        _headline(proposal, plan.job, plan.forecast),
        _workers(plan.job, plan.forecast, rings=not proposal.named),
        *_machines(
            usage_by_node(plan.forecast, plan.job.gpus), cluster, unicode=unicode, width=width
        ),
        _bandwidths(proposal, valued, cluster) + ("" if times or not valued.ours else UNNAMED),
        "" if times is None else training_block(times),
        _rows(proposal, cluster),
        _patience(proposal),
        _holding(proposal, plan, plan.forecast),
    ]
    return "\n".join(block for block in blocks if block)


def _headline(proposal: Proposal, runs: MPIJob, forecast: PlacementForecast) -> str:
    asked = proposal.job
    nodes = len({node for _index, node, _gpus in forecast.workers})
    where = "on one node" if nodes == 1 else f"on {nodes} nodes"
    how = "" if proposal.gputopology else " with --gputopology"
    can = "as named by --on" if proposal.named else f"can be placed now{how}"
    hindered = f"Not now: {proposal.refused.why}\n" if proposal.refused is not None else ""
    return f"{asked.name}: {request_text(asked)} {can}{in_pods(asked, runs)}, {where}\n{hindered}"


def _patience(proposal: Proposal) -> str:
    """What the job would wait for in place of this placement, and until when; empty if nothing."""
    if proposal.wait is None:
        return ""
    who = {
        True: "It",
        False: "No controller runs here; with --wait it",
        None: "Where a controller runs, or with --wait, it",
    }[proposal.ends]
    until = clock(proposal.wait.until)
    return f"{who} would wait until {until} for {proposal.wait}; --patience 0 starts now\n"


def in_pods(asked: MPIJob, runs: MPIJob) -> str:
    """The number of pods, if each has several workers: ` in 1 pod of 4`."""
    each = asked.workers // runs.workers
    return f" in {words.counted(runs.workers, 'pod')} of {each}" if each > 1 else ""


def request_text(job: MPIJob) -> str:
    """The request of a job: `4 workers x 1 GPU`."""
    return f"{words.counted(job.workers, 'worker')} x {words.counted(job.gpus, 'GPU')}"


def _workers(job: MPIJob, forecast: PlacementForecast, *, rings: bool) -> str:
    """The table of workers; with `rings` the GPUs are in the order of the solver's ring."""
    mark = planned_mark(forecast)
    lines = workers(forecast, job.name, slots=max(1, job.gpus), mark=mark)
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


def usage_by_node(forecast: PlacementForecast, gpus: int) -> dict[NodeName, Taken]:
    """The part of each node that the workers of a plan take; `gpus` per worker."""
    nodes: dict[NodeName, Taken] = {}
    for index, node, own in sorted(forecast.workers):
        before = nodes.get(NodeName(node), Taken())
        ranks = {gpu: index * gpus + at for at, gpu in enumerate(own)}
        kubelet = before.kubelet + (0 if own else gpus)
        nodes[NodeName(node)] = Taken(ranks={**before.ranks, **ranks}, kubelet=kubelet)
    return nodes


DrawnMachine = tuple[MachineState, Taken, list[NodeName]]
"""A machine, a job's part of it, and the nodes with the same drawing."""


def distinct_machines(nodes: Mapping[NodeName, Taken], cluster: Cluster) -> list[DrawnMachine]:
    """The machines of a placement; equal drawings appear once."""
    known = {node.name: node for node in cluster.nodes}
    machines_by_look: dict[object, DrawnMachine] = {}
    for name, own in nodes.items():
        state = MachineState.of(known[name], own.gpus)
        gpus = tuple(replace(gpu, uuid=None) for gpu in state.machine.gpus)
        look = replace(state, machine=replace(state.machine, name="", gpus=gpus))
        machines_by_look.setdefault((look, own.kubelet), (state, own, []))[2].append(name)
    return list(machines_by_look.values())


def _machines(
    nodes: Mapping[NodeName, Taken], cluster: Cluster, *, unicode: bool, width: int
) -> Iterable[str]:
    """A drawing for each kind of machine and chosen set, up to the limit."""
    drawn_machines = distinct_machines(nodes, cluster)
    for state, own, same in drawn_machines[:MOST_DRAWINGS]:
        drawn = machine.draw_machine(state, unicode=unicode, width=width)
        if own.kubelet:
            drawn += f"  the kubelet picks {own.kubelet} of them for this job\n"
        if len(same) > 1:
            drawn += f"  also on: {network.fitting_names(same[1:], width - 11)}\n"
        yield drawn
    more = sum(len(same) for _state, _own, same in drawn_machines[MOST_DRAWINGS:])
    if more:
        yield f"{words.counted(more, 'more node')} not drawn: the table names their GPUs\n"


# ---------------------------------------------------------------- bandwidths


@dataclass(frozen=True, slots=True, kw_only=True)
class Valuation:
    """A placement valued for its pods as bound; `ours` is the bandwidth they can count on.

    `at_worst`: that is the bandwidth of the slowest GPUs that the kubelet may pick.
    """

    placement: Placement
    ours: Estimate | None
    proof: str
    at_worst: bool


def valuation_of(proposal: Proposal) -> Valuation | None:
    """The value of a proposal's placement for its pods; None without a placement."""
    plan = proposal.plan
    if plan is None or plan.placement is None or plan.binding is None:
        return None
    placement = valued_as(plan.placement, proposal.cluster, plan.binding)
    # The proof holds only for the pods of the search, and for GPUs that are free.
    proof = proof_text(placement) if placement is plan.placement else ""
    if proposal.refused is not None:
        proof = "but not now"
    return Valuation(
        placement=placement,
        ours=counted_on(placement, plan.binding),
        proof=proof,
        at_worst=plan.forecast is not None and plan.forecast.at_worst,
    )


def _bandwidths(proposal: Proposal, worth: Valuation, cluster: Cluster) -> str:
    """The bandwidth of the pods, its limit, and the bandwidth of other placements."""
    placement, ours = worth.placement, worth.ours
    if ours is None or placement.bandwidth is None:
        return "Bus bandwidth: none, as one GPU has no peer\n"
    proof = worth.proof and f", {worth.proof}"
    lines = ["Bus bandwidth of an all-reduce:"]
    facts = _facts(worth, ours, cluster, proof)
    lines += [f"  {label:<12}{text}" for label, text in facts]
    if proposal.comparison is None:
        return "".join(f"{line}\n" for line in lines)
    own = own_name(at_worst=ours != placement.bandwidth, asked=proposal.asked)
    own += ", at worst" if proposal.comparison.at_worst else ""
    rows = [(own, placement, placement.bandwidth), *proposal.others]
    lines += ["", *_compared(rows, placement.bandwidth.point, cluster)]
    # The next best placements, which are listed below, use the same mark.
    rates = [ours, *(rate for *_, rate in rows), *(row.bandwidth for row in proposal.rows)]
    assumed = dict.fromkeys(note for rate in rates if rate is not None for note in rate.assumed)
    if assumed:
        lines.append(f"  * assumed: {'; '.join(assumed)}")
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _facts(
    valued: Valuation, ours: Estimate, cluster: Cluster, proof: str
) -> Iterator[tuple[str, str]]:
    """The facts about a bandwidth, with the labels that `forecast` uses."""
    placement = valued.placement
    as_planned, inside = placement.bandwidth, placement.inside
    assert as_planned is not None
    condition = f" at worst: {estimates.PICKED}" if valued.at_worst else proof
    yield "Bandwidth", f"{estimates.estimate_text(ours, _doubt(ours))}{condition}"
    yield "Limited by", limit_text(placement, ours, cluster, at_worst=valued.at_worst)
    if ours != as_planned:
        yield "As planned", f"{estimates.estimate_text(as_planned, _doubt(as_planned))}{proof}"
    if inside is not None and inside.point > as_planned.point:
        joined = estimates.estimate_text(inside, _doubt(inside))
        yield "Shared pod", f"{joined}, {estimates.SHARED}"


def _doubt(estimate: Estimate) -> str:
    """The mark of a bandwidth that is based on assumptions."""
    return "*" if estimate.assumed else ""


def limit_text(
    placement: Placement, estimate: Estimate, cluster: Cluster, *, at_worst: bool = False
) -> str:
    """The limit of a placement's bandwidth, with the NICs of the pods if they are the limit."""
    regime, part, nodes = str(estimate.regime), str(estimate.limited_by), len(placement.nodes)
    cause = estimates.bottleneck_text(
        regime, part, tier=placement.tier, nodes=nodes, at_worst=at_worst
    )
    if estimate.limited_by is not Limit.NICS:
        return cause
    cards = _cards(placement, cluster)
    return f"{cause}: {cards}" if cards else cause


def _cards(placement: Placement, cluster: Cluster) -> str:
    """The NICs of the GPUs on the slowest node: `4 of 50 GB/s a node`; empty if unknown."""
    machines = {node.name: node.machine for node in cluster.nodes}
    chosen: dict[NodeName, set[int]] = {}
    for assignment in placement.assignments:
        machine = machines[assignment.node]
        for gpu in assignment.gpus or range(len(machine.gpus)):
            chosen.setdefault(assignment.node, set()).update(nearest_nics(machine, gpu))
    used = [[machines[name].nics[card].speed for card in cards] for name, cards in chosen.items()]
    known_speeds = [[speed for speed in speeds if speed is not None] for speeds in used]
    if not all(known_speeds) or list(map(len, known_speeds)) != list(map(len, used)):
        return ""
    least = min(known_speeds, key=sum)
    return f"{len(least)} of {estimates.gbps_text(least[0])} GB/s a node"


def _compared(
    rows: Sequence[tuple[str, Placement | None, Estimate | None]], ours: float, cluster: Cluster
) -> list[str]:
    """A table of placements of the same pods: bandwidth, range, ratio and place."""
    cells = [("", *_SPEED, "", "")]
    for name, placement, rate in rows:
        if placement is None or rate is None:
            cells.append((name, "", "", "", "does not fit"))
        else:
            ratio = f"{rate.point / ours:.2f}x"
            cells.append((name, *_speed(rate), ratio, _place(placement, cluster)))
    return _aligned(cells)


_SPEED = (f"{'GB/s':>5} ", "RANGE")


def _speed(estimate: Estimate | None) -> tuple[str, str]:
    """A bandwidth with its mark of doubt, and its range."""
    if estimate is None:
        return f"{NOTHING:>5} ", ""
    gbps = f"{estimates.gbps_text(estimate.point):>5}{_doubt(estimate) or ' '}"
    return gbps, estimates.range_text(estimate.low, estimate.high)


def _aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    return [line.rstrip() for line in align("  " + "\t".join(row) for row in cells).splitlines()]


def _place(placement: Placement, cluster: Cluster) -> str:
    """The place of the workers: `2 + 2, unknown network`; GPUs of several models are marked."""
    loads = list(placement.loads.values())
    chosen = {*placement.loads}
    models = {node.machine.model for node in cluster.nodes if node.name in chosen} - {None}
    where = common_level(placement, cluster) + (
        ", GPUs of several models" if len(models) > 1 else ""
    )
    if len(loads) == 1:
        return where
    shares = " + ".join(map(str, loads)) if len(loads) <= _MOST_SHARES else f"{len(loads)} nodes"
    return f"{shares}, {where}"


def common_level(placement: Placement, cluster: Cluster) -> str:
    """The nearest common level of the nodes of a placement: `one node`, `one rack`."""
    tier = placement.tier
    if tier == NODE_TIER:
        return "one node"
    if tier != BEYOND:
        return f"one {estimates.level(tier)}"
    if cluster.tiers:
        return "across the whole network"
    known = cluster.beyond is not None or network_is_measured(placement, cluster)
    return "one network" if known else "unknown network"


def _rows(proposal: Proposal, cluster: Cluster) -> str:
    """The best placement and the next best ones, a row for each."""
    if not proposal.rows:
        return ""
    cells = [("", *_SPEED, "NODES")]
    for row, placement in enumerate(proposal.rows, 1):
        rate, least = placement.bandwidth, _counted(proposal, placement)
        sentence = f"{'; '.join(_seats(placement))}: {common_level(placement, cluster)}"
        if least is not None and least != rate:
            sentence += f", {estimates.gbps_text(least.point)} at worst"
        cells.append((f"{row:>3}", *_speed(rate), sentence))
    several = len(proposal.rows) > 1
    title = f"The best {len(proposal.rows)} placements on different nodes"
    lines = [f"{title if several else 'The best placement'}:", *_aligned(cells)]
    return "".join(f"{line}\n" for line in lines)


def _counted(proposal: Proposal, row: Placement) -> Estimate | None:
    """The bandwidth that the pods can count on in one of several placements, with one binding."""
    binding = proposal.plan.binding if proposal.plan is not None else None
    return row.bandwidth if binding is None else counted_on(row, binding)


def _seats(placement: Placement) -> Iterator[str]:
    """The GPUs of each node: `dgx-0/0,1,5,4`; N/A if the kubelet picks them."""
    gpus: dict[NodeName, list[int]] = {}
    for assignment in placement.assignments:
        gpus.setdefault(assignment.node, []).extend(assignment.gpus)
    for name, some in gpus.items():
        yield f"{name}/{','.join(map(str, some)) or NOTHING}"


def proof_text(placement: Placement) -> str:
    """The proof of a placement, in words."""
    proof = placement.proof
    rate = placement.bandwidth
    among = estimates.proof_scope(
        rated=proof.rated,
        guess=rate is not None and rate.guess,
        regime=None if rate is None else str(rate.regime),
    )
    if proof.optimal:
        return f"proven best{among}"
    if math.isinf(proof.bound):
        return "not compared with others, as nothing fits now"
    most = estimates.gbps_text(proof.bound)
    if placement.bandwidth is not None and estimates.gbps_text(placement.bandwidth.point) == most:
        # A placement that a person named may need more nodes than necessary.
        return f"no more is possible{among}"
    return f"at most {most} GB/s is possible{among}"


def _holding(proposal: Proposal, plan: Plan, forecast: PlacementForecast) -> str:
    """The guarantee of the plan, and what would improve it."""
    lines = []
    if forecast.guarantee is not None:
        lines.append(guarantee_line(forecast))
    if plan.binding is not None and plan.binding.why:
        lines.append(f"Why not a stronger guarantee: {one_line(plan.binding.why)}")
    if plan.hcas:
        names = ", ".join(plan.hcas)
        lines.append(f"NICs for NCCL: {names}, those nearest to the GPUs (NCCL_IB_HCA)")
    lines += [f"Advice: {one_line(hint)}" for hint in proposal.advice]
    if forecast.emulated:
        lines.append(emulated_note())
    return "".join(f"{line}\n" for line in lines)


# ---------------------------------------------------------------- for programs


def plan_json(proposal: Proposal) -> dict[str, Any]:
    """The JSON of `plan`; every key is always present, null if unknown.

    `verdict` is Placeable, NotNow or Never; null for a job without GPUs. `map` is the placement in
    the form of `--on`. Bandwidths are GB/s, null for a job of one GPU. `reservedFor` are the gangs
    for which GPUs of the nodes of a refusal are reserved, the head of the queue before others, and
    `reservedBy` is the first for which GPUs are reserved that this job could use.
    """
    plan, refused, valued = proposal.plan, proposal.refused, valuation_of(proposal)
    forecast = plan.forecast if plan is not None else None
    rows = sorted(forecast.workers) if forecast is not None else []
    slots = max(1, (plan.job if plan is not None else proposal.job).gpus)
    return {
        "apiVersion": "arena-topo/v1",
        "kind": "Placement",
        "name": proposal.job.name,
        "namespace": proposal.namespace,
        "gputopology": proposal.gputopology,
        "verdict": None if proposal.verdict is None else proposal.verdict.value,
        "busBandwidthGBps": number(forecast.bus_bandwidth) if forecast else None,
        "usableGBps": number(forecast.usable) if forecast else None,
        "plannedGBps": number(forecast.as_planned) if forecast else None,
        "atWorst": forecast.at_worst if forecast else None,
        "bandwidth": estimates.estimate_json(valued.ours, SHARES)
        if valued and valued.ours
        else None,
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
            "knownNetworks": forecast.rated if forecast else None,
        },
        "refusals": [
            {
                "reason": refusal.reason.value,
                "nodes": refusal.nodes,
                "example": refusal.example,
                "reservedFor": list(refusal.jobs),
            }
            for refusal in (refused.refusals if refused is not None else ())
        ],
        "nearest": refused.nearest if refused is not None else None,
        "waitsFor": proposal.wait.value if proposal.wait else None,
        "until": int(proposal.wait.until) if proposal.wait else None,
        "reservedBy": proposal.reserved_by,
        "comparison": _comparison_value(proposal),
        "training": training_json(proposal.training),
        "top": [_row_value(proposal, row) for row in proposal.rows],
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
        "bandwidth": None if rate is None else estimates.estimate_json(rate, SHARES),
        "plannedGBps": _point(placement),
    }


def _comparison_value(proposal: Proposal) -> dict[str, Any]:
    others = proposal.comparison or SchedulerComparison(
        best_empty=None, first_fit=None, spread=None
    )
    return {
        "bestNowGBps": _point(proposal.best),
        "bestEmptyGBps": _gbps(others.counted(others.best_empty)),
        "firstFitGBps": _gbps(others.counted(others.first_fit)),
        "spreadGBps": _gbps(others.counted(others.spread)),
    }


def _point(placement: Placement | None) -> int | float | None:
    return None if placement is None else _gbps(placement.bandwidth)


def _gbps(rate: Estimate | None) -> int | float | None:
    return None if rate is None else number(rate.point)


def _finite(value: float | None) -> int | float | None:
    return None if value is None or math.isinf(value) else number(value)


# ---------------------------------------------------------------- by numbers alone


def gangs_by_count(counted: Counted, job: MPIJob) -> str:
    """How many gangs fit by numbers alone, for a person."""
    counts = counted.counts
    return (
        f"{job.name}: by the number of free GPUs, {counts.gangs} such"
        f" gang{'s fit' if counts.gangs != 1 else ' fits'} now ({request_text(job)})\n"
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
