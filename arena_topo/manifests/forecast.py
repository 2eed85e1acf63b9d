"""The forecast of a placement under its binding: the bandwidth of its pods, and its record."""

from __future__ import annotations

import math
from typing import Any

from arena_topo.bandwidth import Estimate
from arena_topo.manifests import Binding, Forecast, Guarantee
from arena_topo.manifests.annotations import parse_map, placement_map
from arena_topo.solver import Placement, valued
from arena_topo.topology import Cluster


def valued_as(placement: Placement, cluster: Cluster | None, binding: Binding) -> Placement:
    """The placement with estimates for its pods, which some bindings make separate hosts."""
    shared = len(placement.nodes) < len(placement.assignments)
    if shared and binding.separate is placement.joined and cluster is not None:
        return valued(placement, cluster, joined=not binding.separate)
    return placement


def counted_on(placement: Placement, binding: Binding) -> Estimate | None:
    """The guaranteed estimate: if the kubelet picks the GPUs, it may pick the slowest."""
    return placement.bandwidth if binding.guarantee is Guarantee.GPUS else placement.worst


def forecast_of(placement: Placement, cluster: Cluster | None, binding: Binding) -> Forecast:
    """The forecast of a placement: the bandwidth of these pods, and of joined ones."""
    searched, placement = placement, valued_as(placement, cluster, binding)
    usable, inside = counted_on(placement, binding), placement.inside
    # A proof holds for the pods of the search, and for the planned GPUs.
    same, proof = placement is searched, placement.proof
    estimated: dict[str, Any] = {}
    if usable is not None:
        estimated = {
            "usable": _short(usable.point),
            "low": _short(usable.low),
            "high": _short(usable.high),
            "regime": str(usable.regime),
            "limited_by": str(usable.limited_by),
            "assumed": bool(usable.assumed),
        }
    return Forecast(
        state="placed",
        workers=parse_map(placement_map(placement)),
        bus_bandwidth=None if inside is None else _short(inside.point),
        tier=placement.tier,
        binding=binding.name,
        guarantee=binding.guarantee.value,
        confirmed=binding.confirmed,
        optimal=proof.optimal and same and usable == placement.bandwidth,
        bound=_short(proof.bound) if same and math.isfinite(proof.bound) else None,
        emulated=cluster is not None and cluster.emulated,
        **estimated,
    )


def _short(gbps: float) -> float:
    """GB/s in six digits, far more than the accuracy of the model."""
    return float(f"{gbps:.6g}")
