"""What `plan` shows: a placement, its machines drawn, and what it is measured against."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from arena_topo.bandwidth import Estimate
from arena_topo.escaping import one_line
from arena_topo.job import MPIJob
from arena_topo.manifests import Forecast
from arena_topo.output import (
    EMULATED,
    align,
    bandwidth_value,
    confirmed,
    drawing,
    fold,
    guarantee,
    number,
    worker_value,
    workers,
)
from arena_topo.solver import Placement
from arena_topo.solver.gang import BEYOND, NODE_TIER
from arena_topo.solver.unaware import Outcome
from arena_topo.topology import (
    UNKNOWN_NETWORK,
    Cluster,
    GPUSet,
    Node,
    NodeName,
    gpu_set,
)
from arena_topo.workflow import shortfall
from arena_topo.workflow.comparison import Comparison, Counted, Proposal

MOST_DRAWINGS = 4
"""Machines drawn; a gang rarely uses more kinds of sets, and more fill the screen."""

_MOST_SHARES = 4
"""Nodes up to which the workers of each are listed."""

_SMALLEST_RING = 2
"""GPUs of which every order is the same ring."""


def text(proposal: Proposal, *, unicode: bool = True, width: int = 100) -> str:
    """A proposed placement for a person; empty where there is none.

    Drawings and lists of names keep to `width` columns; the table of workers is always whole.
    """
    plan, cluster = proposal.plan, proposal.cluster
    if plan is None or plan.forecast is None or plan.placement is None or cluster is None:
        return ""
    blocks = [
        _headline(proposal.job, plan.job, plan.forecast),
        _workers(plan.job, plan.forecast),
        *_machines(plan.placement, cluster, plan.job.gpus, unicode=unicode, width=width),
        _bandwidths(proposal, plan.forecast, plan.placement, cluster, width),
        _holding(proposal, plan.forecast, width),
    ]
    return "\n".join(block for block in blocks if block)


def _headline(asked: MPIJob, runs: MPIJob, forecast: Forecast) -> str:
    nodes = len({node for _index, node, _gpus in forecast.workers})
    where = "on one node" if nodes == 1 else f"on {nodes} nodes"
    each = asked.workers // runs.workers
    pods = f" in {_many(runs.workers, 'pod')} of {each}" if each > 1 else ""
    return f"{asked.name}: {gang(asked)} can be placed now{pods}, {where}\n"


def gang(job: MPIJob) -> str:
    """What a job asks for: `4 workers x 1 GPU`."""
    return f"{_many(job.workers, 'worker')} x {_many(job.gpus, 'GPU')}"


def _many(number: int, word: str) -> str:
    return f"{number} {word}{'s' if number != 1 else ''}"


def _workers(job: MPIJob, forecast: Forecast) -> str:
    lines = workers(forecast, job.name, slots=max(1, job.gpus))
    listed = sum(len(gpus) for _index, _node, gpus in forecast.workers)
    if listed > _SMALLEST_RING:
        lines.append("  GPUs are in the order of the ring, rank after rank.")
    return align(lines)


# ---------------------------------------------------------------- the machines


def _machines(
    placement: Placement, cluster: Cluster, gpus: int, *, unicode: bool, width: int
) -> Iterable[str]:
    """A drawing for each kind of machine and chosen set, the first so many; `gpus` per worker."""
    known = {node.name: node for node in cluster.nodes}
    chosen: dict[NodeName, GPUSet] = {}
    taken: Counter[NodeName] = Counter()
    for one in placement.assignments:
        taken[one.node] += gpus
        chosen[one.node] = GPUSet(chosen.get(one.node, 0) | gpu_set(one.gpus))
    alike: dict[tuple[object, ...], list[NodeName]] = {}
    for name, own in chosen.items():
        alike.setdefault((*_look(known[name]), own, taken[name]), []).append(name)
    groups = list(alike.values())
    for names in groups[:MOST_DRAWINGS]:
        node = known[names[0]]
        healthy = node.machine.everything if node.allocatable is None else node.allocatable
        drawn = drawing.machine(
            replace(node.machine, name=node.name),
            chosen=chosen[node.name],
            free=node.free,
            hidden=node.hidden,
            broken=GPUSet(node.machine.everything & ~healthy),
            unicode=unicode,
            width=width,
        )
        if not chosen[node.name]:
            drawn += f"  the kubelet picks {taken[node.name]} of them for this job\n"
        if len(names) > 1:
            also = "also on: "
            drawn += f"  {also}{drawing.names(names[1:], width - len(also) - 2)}\n"
        yield drawn
    more = groups[MOST_DRAWINGS:]
    if more:
        yield f"{_many(sum(map(len, more)), 'more node')} not drawn: the table names their GPUs\n"


def _look(node: Node) -> tuple[object, ...]:
    """Nodes with one look share a drawing."""
    machine = node.machine
    return (
        machine.links,
        tuple((gpu.model, gpu.numa) for gpu in machine.gpus),
        machine.nics,
        machine.nvswitch,
        machine.knowledge,
        node.free,
        node.hidden,
        node.allocatable,
    )


# ---------------------------------------------------------------- bandwidths


def _bandwidths(
    proposal: Proposal, forecast: Forecast, placement: Placement, cluster: Cluster, width: int
) -> str:
    """Ours against the best of an empty cluster and against schedulers that only count."""
    ours = forecast.usable
    if ours is None or placement.bandwidth is None:
        return "Bus bandwidth: none, as one GPU talks to nobody\n"
    rated = rate_of(replace(placement.bandwidth, point=ours))
    place = f"{meets(placement.tier, cluster)}; {proved(placement)}"
    rows = [(f"  this placement\t{rated}\t{1:5.2f}x", place)]
    comparison = proposal.comparison
    if comparison is not None:
        empty = comparison.best_empty.bandwidth if comparison.best_empty is not None else None
        rated = rate_of(empty)
        ratio = _ratio(empty, ours)
        rows.append((f"  best, were all GPUs free\t{rated}\t{ratio}", ""))
        for name, other in (
            ("first fit by index", comparison.first_fit),
            ("spread, emptiest first", comparison.spread),
        ):
            rate = None if other is None else other.bandwidth
            place = "" if other is None else _loads(other, cluster)
            rated = rate_of(rate)
            rows.append((f"  {name}\t{rated}\t{_ratio(rate, ours)}", place))
    heads = align(f"{head}\t" for head, _place in rows).splitlines()
    said = ["Bus bandwidth of an all-reduce:"]
    said += [
        fold(head + place, width, indent=" " * len(head))
        for head, (_head, place) in zip(heads, rows, strict=True)
    ]
    if forecast.falls_short and proposal.plan is not None:
        why = shortfall(proposal.plan)
        use = f"Of {number(forecast.bus_bandwidth)} GB/s these pods can use {number(ours)}"
        said.append(fold(f"{use}: {why}" if why else use, width))
    return "".join(f"{line.rstrip()}\n" for line in said)


def rate_of(found: Estimate | None) -> str:
    """A bandwidth of a table, and whether it rests on facts that nobody gave."""
    if found is None:
        return "does not fit"
    return f"{number(found.point):>6} GB/s{' assumed' if found.assumed else ''}"


def _ratio(found: Estimate | None, ours: float) -> str:
    return "" if found is None else f"{found.point / ours:5.2f}x"


def _loads(other: Outcome, cluster: Cluster) -> str:
    """Where such a scheduler would put the workers: `2 + 2, between nodes`."""
    loads = list(other.loads.values())
    where = meets(other.tier, cluster)
    if len(loads) == 1:
        return where
    shares = " + ".join(map(str, loads)) if len(loads) <= _MOST_SHARES else f"{len(loads)} nodes"
    return f"{shares}, {where}"


def meets(tier: str, cluster: Cluster) -> str:
    """How near to each other the nodes of a placement are, in words."""
    if tier == NODE_TIER:
        return "inside one node"
    if tier != BEYOND:
        return f"within one {tier}"
    if cluster.tiers:
        return "across the whole network"
    if cluster.beyond == UNKNOWN_NETWORK:
        return "over an unknown network"
    return "over the network"


def proved(placement: Placement) -> str:
    """How good a placement is known to be."""
    proof = placement.proof
    if proof.optimal:
        return "proven best"
    return f"at most {number(proof.bound)} GB/s is possible"


def _holding(proposal: Proposal, forecast: Forecast, width: int) -> str:
    """How firmly the plan holds, and what would do better."""
    lines = []
    if forecast.guarantee is not None:
        lines.append(guarantee(forecast))
    binding = proposal.plan.binding if proposal.plan is not None else None
    if binding is not None and binding.why:
        lines.append(f"Not firmer, because {one_line(binding.why)}")
    lines += [f"Advice: {one_line(one)}" for one in proposal.advice]
    if forecast.emulated:
        lines.append(EMULATED)
    return "".join(f"{fold(line, width)}\n" for line in lines)


# ---------------------------------------------------------------- for programs


def value(proposal: Proposal) -> dict[str, Any]:
    """What `plan -o json` shows; every key is always there, null where nothing is known of it.

    `verdict` is Placeable, NotNow or Never; null for a job that is not placed by topology.
    Bandwidths are GB/s, null for a job of one GPU.
    """
    plan, refused = proposal.plan, proposal.refused
    forecast = plan.forecast if plan is not None else None
    rows = sorted(forecast.workers) if forecast is not None else []
    slots = max(1, (plan.job if plan is not None else proposal.job).gpus)
    return {
        "apiVersion": "arena-topo/v1",
        "kind": "Placement",
        "name": proposal.job.name,
        "namespace": proposal.namespace,
        "verdict": None if proposal.verdict is None else proposal.verdict.value,
        "busBandwidthGBps": number(forecast.bus_bandwidth) if forecast else None,
        "usableGBps": number(forecast.usable) if forecast else None,
        "bandwidth": bandwidth_value(forecast),
        "guarantee": forecast.guarantee if forecast else None,
        "confirmed": confirmed(forecast),
        "binding": forecast.binding if forecast else None,
        "tier": forecast.tier if forecast else None,
        "assumed": forecast.assumed if forecast else None,
        "nodes": list(dict.fromkeys(node for _index, node, _gpus in rows)),
        "podShape": proposal.job.pod_shape.value,
        "workers": [worker_value(*row, slots=slots) for row in rows],
        "proof": _proof_value(plan.placement if plan is not None else None, forecast),
        "refusals": [
            {"reason": one.reason.value, "nodes": one.nodes, "example": one.example}
            for one in (refused.refusals if refused is not None else ())
        ],
        "nearest": refused.nearest if refused is not None else None,
        "comparison": _comparison_value(proposal.comparison),
        "advice": list(proposal.advice),
        "notes": list(proposal.notes),
        "emulated": proposal.cluster is not None and proposal.cluster.emulated,
    }


def _proof_value(placement: Placement | None, forecast: Forecast | None) -> dict[str, Any]:
    if placement is None or forecast is None:
        return {"optimal": None, "bound": None}
    proof = placement.proof
    return {"optimal": forecast.optimal, "bound": _finite(proof.bound)}


def _comparison_value(comparison: Comparison | None) -> dict[str, Any]:
    empty = comparison.best_empty if comparison is not None else None
    first = comparison.first_fit if comparison is not None else None
    spread = comparison.spread if comparison is not None else None
    return {
        "bestEmptyGBps": _point(empty.bandwidth if empty is not None else None),
        "firstFitGBps": _point(first.bandwidth if first is not None else None),
        "spreadGBps": _point(spread.bandwidth if spread is not None else None),
    }


def _point(found: Estimate | None) -> int | float | None:
    return None if found is None else number(found.point)


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
