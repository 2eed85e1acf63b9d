"""The forecast of a placement under its binding: the bandwidth of its pods, and its record."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from arena_topo.bandwidth import Estimate
from arena_topo.job import MPIJob
from arena_topo.manifests import Binding, Guarantee, PlacementForecast, estimates
from arena_topo.manifests.annotations import parse_map, placement_map
from arena_topo.solver import (
    Placement,
    Reason,
    Refusal,
    Request,
    Unplaceable,
    Verdict,
    band,
    in_cents,
)
from arena_topo.solver.door import Solver, revalue
from arena_topo.topology import Cluster, NodeName


def valued_as(placement: Placement, cluster: Cluster | None, binding: Binding) -> Placement:
    """The placement with estimates for its pods, which some bindings make separate hosts."""
    shared = len(placement.nodes) < len(placement.assignments)
    if shared and binding.separate is placement.joined and cluster is not None:
        return revalue(placement, cluster, joined=not binding.separate)
    return placement


def counted_on(placement: Placement, binding: Binding) -> Estimate | None:
    """The guaranteed estimate: if the kubelet picks the GPUs, it may pick the slowest."""
    return placement.bandwidth if binding.guarantee is Guarantee.GPUS else placement.worst


def forecast_of(
    placement: Placement, cluster: Cluster | None, binding: Binding
) -> PlacementForecast:
    """The forecast of a placement: the bandwidth of these pods, and of joined ones."""
    workers = parse_map(placement_map(placement))
    searched, placement = placement, valued_as(placement, cluster, binding)
    usable, inside = counted_on(placement, binding), placement.inside
    # A proof holds for the pods of the search, and for the planned GPUs.
    same, proof = placement is searched, placement.proof
    estimated: dict[str, Any] = {}
    if usable is not None and placement.bandwidth is not None:
        slower = usable.point < placement.bandwidth.point
        estimated = {
            "usable": _short(usable.point),
            "planned": _short(placement.bandwidth.point) if slower else None,
            "low": _short(usable.low),
            "high": _short(usable.high),
            "regime": str(usable.regime),
            "limited_by": str(usable.limited_by),
            "assumed": bool(usable.assumed),
            "guess": usable.guess,
            "measured": usable.measured,
        }
    forecast = PlacementForecast(
        state="placed",
        workers=workers,
        bus_bandwidth=None if inside is None else _short(inside.point),
        tier=placement.tier,
        binding=binding.name,
        guarantee=binding.guarantee.value,
        confirmed=binding.confirmed,
        optimal=proof.optimal and same and usable == placement.bandwidth,
        bound=_short(proof.bound) if same and math.isfinite(proof.bound) else None,
        rated=proof.rated and same,
        emulated=cluster is not None and cluster.emulated,
        **estimated,
    )
    return structs.replace(forecast, optimal=False) if forecast.at_worst else forecast


def check_bandwidth(
    job: MPIJob,
    placement: Placement,
    cluster: Cluster,
    binding: Binding,
    *,
    verdict: Verdict = Verdict.NOT_NOW,
) -> None:
    """Refuse a placement whose pods get less than --min-bandwidth under their binding.

    Unplaceable, by default NOT_NOW: the GPUs among which the kubelet picks change with the use by
    other jobs.
    """
    forecast = forecast_of(placement, cluster, binding)
    if forecast.usable is None or forecast.usable >= job.min_bandwidth:
        return
    cause = estimates.recorded_limit(forecast)
    rate = estimates.recorded_estimate(forecast)
    as_bound = valued_as(placement, cluster, binding)
    if counted_on(as_bound, binding) != as_bound.bandwidth and as_bound.worst is not None:
        cause = f"the kubelet picks the GPUs, at worst {estimates.estimate_text(as_bound.worst)}"
    raise Unplaceable(
        f"the pods of {job.name} could use {rate} now, less than --min-bandwidth"
        f" {job.min_bandwidth:g}",
        verdict=verdict,
        refusals=(
            Refusal(
                reason=Reason.BANDWIDTH, nodes=len(placement.nodes), example=placement.nodes[0]
            ),
        ),
        why="; ".join(filter(None, [cause, binding.why])),
        nearest=f"fits now with --min-bandwidth {in_cents(forecast.usable):g}",
        notes=cluster.notes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The forecasts of a job before and after it is stopped and placed anew.

    `before` is None for a job without a placement, `after` where only a controller can see all
    jobs, and decides. `compelled` is why the job cannot stay where it is, as a phrase; empty if it
    can.
    """

    before: PlacementForecast | None
    after: PlacementForecast | None
    compelled: str = ""

    @property
    def pays(self) -> bool:
        """Whether the job has nothing to lose, cannot stay, or gets a higher band of bandwidth."""
        if self.before is None or self.compelled:
            return True
        if self.after is None or self.after.usable is None or self.before.usable is None:
            return False
        return band(self.after.usable) > band(self.before.usable)


def where_it_is(
    recorded: PlacementForecast, request: Request, cluster: Cluster, binding: Binding
) -> tuple[PlacementForecast, str]:
    """The forecast of a running job on the cluster as it is now, and why it could not start there.

    The second is empty if it could. `recorded` is the forecast of its start, `cluster` has its own
    GPUs free, and `binding` is that of a new placement, whose pods would be of the same shape.
    """
    if recorded.guarantee not in set(Guarantee):
        return recorded, ""
    known, solver = recorded.guarantee == Guarantee.GPUS, Solver.of(cluster)
    # Where the kubelet has picked the GPUs, those in the record may belong to others by now.
    seats = tuple(
        (NodeName(node), gpus if known else ()) for _, node, gpus in sorted(recorded.workers)
    )
    if hindrances := "; ".join(solver.hindrances(request, seats)):
        return recorded, hindrances
    bound = structs.replace(
        binding,
        name=str(recorded.binding),
        guarantee=Guarantee(recorded.guarantee),
        confirmed=recorded.confirmed,
    )
    forecast = forecast_of(solver.value(request, seats), cluster, bound)
    return structs.replace(forecast, workers=recorded.workers), ""


def _short(gbps: float) -> float:
    """GB/s in six digits, far more than the accuracy of the model."""
    return float(f"{gbps:.6g}")
