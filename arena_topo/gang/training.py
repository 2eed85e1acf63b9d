"""What placements of a job mean for its training: the times of all-reduces, and their ratios."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from arena_topo.bandwidth import Estimate
from arena_topo.errors import UsageError
from arena_topo.job import MPIJob
from arena_topo.manifests import Plan
from arena_topo.manifests.forecast import counted_on, valued_as
from arena_topo.solver import Placement
from arena_topo.solver.door import Solver
from arena_topo.topology import Cluster
from arena_topo.training import all_reduce_span, overlap_in, ratio, workload_on
from arena_topo.training.times import PlacementTime, TrainingTimes, own_name

SPREAD = "spread over nodes"
"""The name of the placement of a scheduler that spreads pods."""


ComparedPlacement = tuple[str, Placement | None, Estimate | None]
"""A placement by its name on screens, and the bandwidth that compares with that of a plan."""


def asks_training(job: MPIJob) -> bool:
    """Whether a job says which training it is."""
    return bool(job.workload or job.gradient_bytes)


def training_times(
    job: MPIJob,
    plan: Plan,
    cluster: Cluster,
    others: Iterable[ComparedPlacement],
    *,
    asked: bool = True,
) -> TrainingTimes | None:
    """The times of a plan and of other placements; None without a training or a bandwidth.

    Where the kubelet picks the GPUs, the placement as planned is compared with those of others, and
    what the job can count on has a row of its own. Placements on GPUs of another model are left
    out: their steps are not the same on one GPU. `asked` as in `own_name`.
    """
    placement, binding = plan.placement, plan.binding
    if not asks_training(job) or placement is None or binding is None:
        return None
    placement = valued_as(placement, cluster, binding)
    ours, planned = counted_on(placement, binding), placement.bandwidth
    gpus = _models(placement, cluster)
    if ours is None or planned is None:
        return None
    gpu = min(gpus) if len(gpus) == 1 else None
    size, step = job.gradient_bytes, job.step_time
    try:
        workload, source = workload_on(
            gpu,
            name=job.workload,
            batch=job.batch,
            gradient_bytes=None if size is None else size.bytes,
            step=None if step is None else step.seconds,
        )
    except UsageError as error:
        return TrainingTimes(unknown="; ".join(filter(None, (error.message, error.hint))))
    machines = (node.machine for node in cluster.nodes if node.name in placement.nodes)
    overlap = overlap_in(machines)
    rates = [(own_name(at_worst=ours != planned, asked=asked), planned)]
    rates += [("at worst", ours)] if ours != planned else []
    rates += [
        (name, rate)
        for name, other, rate in others
        if other is not None and rate is not None and _models(other, cluster) == gpus
    ]
    rows = tuple(
        PlacementTime(
            name=name,
            all_reduce=all_reduce_span(workload.gradient_bytes, rate),
            guess=rate.guess,
            ratio=None if at == 0 else ratio(workload, rate, planned, overlap=overlap),
        )
        for at, (name, rate) in enumerate(rates)
    )
    return TrainingTimes(workload=workload, gpu=gpu or "", source=source, rows=rows)


def when_spread(plan: Plan, cluster: Cluster) -> TrainingTimes | None:
    """The times of a submitted plan, and of the same gang spread over nodes."""
    if plan.request is None or plan.binding is None or not asks_training(plan.job):
        return None
    joined = not plan.binding.separate
    spread = Solver.of(cluster).spread(
        structs.replace(plan.request, joined=joined, min_bandwidth=0.0)
    )
    rate = None if spread is None else spread.bandwidth
    return training_times(plan.job, plan, cluster, [(SPREAD, spread, rate)])


def _models(placement: Placement, cluster: Cluster) -> set[str]:
    nodes = set(placement.nodes)
    return {node.machine.model or "" for node in cluster.nodes if node.name in nodes}
