"""Bandwidth estimates as text and as JSON: the same on every screen and in every document.

A number is shown as a point and its 80 % range, `5.66 GB/s (3.2 to 10)`, in three digits. An
`Estimate` is the result of `bandwidth`, a `PlacementForecast` its record on a job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from arena_topo.escaping import one_line
from arena_topo.manifests import Guarantee, enforced_by

if TYPE_CHECKING:
    from arena_topo.bandwidth import Estimate
    from arena_topo.manifests import PlacementForecast

_INSIDE = "node"
_BEYOND = "beyond"
"""The `tier` in a record for workers of one node, and for nodes without a known common level."""

_BETWEEN = {"two-hosts", "several-hosts", "tcp"}
"""Regimes of jobs that NCCL treats as several hosts, by the values of `bandwidth.Regime`."""


_AMONG_KNOWN = " without an unknown network"
"""What a proof is relative to if a network of unknown rate between nodes may give more."""

_ASSUMED = " for an assumed network"
"""What a proof is relative to if it rests on the assumed rate of a network."""


def proof_scope(*, rated: bool, guess: bool, regime: str | None) -> str:
    """What the proof of a placement is relative to, as it follows `proven best`; often nothing.

    `rated`: placements over networks of unknown rate were left out. `guess`: the bandwidth is a
    guess; in a `regime` between hosts the guess is the network.
    """
    if rated:
        return _AMONG_KNOWN
    return _ASSUMED if guess and regime in _BETWEEN else ""


def gbps_text(gbps: float) -> str:
    """GB/s in three digits: `5.66`, `479`."""
    return f"{gbps:.0f}" if gbps >= 100 else f"{gbps:.3g}"  # noqa: PLR2004 - three digits


def range_text(low: float, high: float) -> str:
    """A range in GB/s: `3.2 to 10`; `measured` for a measured value, which has no range."""
    return "measured" if low == high else f"{gbps_text(low)} to {gbps_text(high)}"


def bandwidth_text(gbps: float, low: float | None, high: float | None) -> str:
    """A bandwidth and its range: `5.66 GB/s (3.2 to 10)`; the range only if there is one."""
    between = "" if low is None or high is None else range_text(low, high)
    return f"{gbps_text(gbps)} GB/s" + (f" ({between})" if between else "")


def estimate_text(estimate: Estimate, mark: str = "") -> str:
    """An estimate: `5.66 GB/s (3.2 to 10)`, then the mark, who measured it, `a guess`."""
    guess = ", a guess" if estimate.guess else ""
    by = f", {one_line(estimate.measured)}" if estimate.measured else ""
    return bandwidth_text(estimate.point, estimate.low, estimate.high) + mark + by + guess


def recorded_estimate(forecast: PlacementForecast) -> str:
    """The recorded estimate of a job's pods; empty without a bandwidth."""
    if forecast.usable is None:
        return ""
    return bandwidth_text(forecast.usable, forecast.low, forecast.high)


def planned_and_worst(forecast: PlacementForecast) -> str:
    """The recorded estimate of a job's pods; where the kubelet picks, the planned one as well.

    It is `5.66 GB/s (3.2 to 10)`, or `planned 76.8 GB/s, at worst 9.97 GB/s (4.99 to 29.9)`; empty
    without a bandwidth.
    """
    rate = recorded_estimate(forecast)
    if not rate or not forecast.at_worst:
        return rate
    planned = "" if forecast.planned is None else f"planned {gbps_text(forecast.planned)} GB/s, "
    return f"{planned}at worst {rate}"


PICKED = "the kubelet picks the GPUs"
"""Why a bandwidth is the worst."""

SHARED = "if the workers of a node shared one pod"
"""The condition of the bandwidth that the same GPUs would give to one host."""


def estimate_sentence(forecast: PlacementForecast) -> str:
    """The recorded estimate of a job's pods, and its bottleneck or why it is the worst.

    It is `5.66 GB/s (3.2 to 10), limited by TCP between the pods of one node`, or `planned 76.8
    GB/s, at worst 9.97 GB/s (4.99 to 29.9): the kubelet picks the GPUs`; empty without a bandwidth.
    """
    rate = planned_and_worst(forecast) + (" assumed" if forecast.assumed else "")
    rate += f", {one_line(forecast.measured)}" if forecast.measured else ""
    if forecast.at_worst:
        return f"{rate}: {PICKED}"
    return ", ".join(filter(None, (rate, recorded_limit(forecast))))


def in_one_pod(forecast: PlacementForecast) -> str | None:
    """What the same GPUs would give if the workers of a node shared a pod; None if no more."""
    if not forecast.kept_apart or forecast.bus_bandwidth is None:
        return None
    return f"{gbps_text(forecast.bus_bandwidth)} GB/s {SHARED}"


def bottleneck_text(
    regime: str, limited_by: str, *, tier: str | None, nodes: int, at_worst: bool = False
) -> str:
    """The bottleneck of these pods, and where it is.

    `regime` and `limited_by` are values of `bandwidth.Regime` and `bandwidth.Limit`; unknown values
    of a later version are shown unchanged. `tier` joins the `nodes`. `at_worst`: it is that of the
    slowest GPUs that the kubelet may pick.
    """
    part = f"the {one_line(limited_by)}"
    if limited_by == "one host inside":
        return "the links inside each host"
    if regime in _BETWEEN:
        return f"{'TCP' if regime == 'tcp' else part} {_between(tier, nodes)}"
    if regime == "bridged-pairs":
        return f"{part} between the bridged pairs of one node"
    why = ""
    if regime == "nvlink-without-ring":
        why = ", as no ring of NVLinks joins these GPUs"
        if at_worst:
            why = ", if no ring of NVLinks joins the GPUs that the kubelet picks"
    return f"{part} {'inside one node' if nodes == 1 else f'within one {level(str(tier))}'}{why}"


def _between(tier: str | None, nodes: int) -> str:
    if nodes == 1:
        return "between the pods of one node"
    within = "" if tier in {None, _INSIDE, _BEYOND} else f" within one {level(str(tier))}"
    return f"between {nodes} nodes{within}"


def level(tier: str) -> str:
    """A level of the network in a sentence: `rack`, `NVLink domain`."""
    return "NVLink domain" if tier == "nvlink" else one_line(tier)


def recorded_limit(forecast: PlacementForecast) -> str:
    """The bottleneck of a job's pods; empty without one in its record."""
    if forecast.regime is None or forecast.limited_by is None:
        return ""
    limited_by = bottleneck_text(
        forecast.regime,
        forecast.limited_by,
        tier=forecast.tier,
        nodes=len({node for _index, node, _gpus in forecast.workers}),
        at_worst=forecast.at_worst,
    )
    return f"limited by {limited_by}"


# ---------------------------------------------------------------- JSON


def estimate_json(estimate: Estimate, sizes: Iterable[tuple[int, str]] = ()) -> dict[str, Any]:
    """An estimate for JSON: GB/s, and the share of the point that messages of some sizes reach.

    `sizes` are bytes with their names.
    """
    return {
        **_value(estimate.point, estimate.low, estimate.high),
        "assumed": bool(estimate.assumed),
        "assumptions": list(estimate.assumed),
        "regime": str(estimate.regime),
        "limitedBy": str(estimate.limited_by),
        **({"measured": estimate.measured} if estimate.measured else {}),
        "shares": {name: round(estimate.share(size), 3) for size, name in sizes},
    }


def recorded_value(forecast: PlacementForecast | None) -> dict[str, Any] | None:
    """The recorded estimate of a job's pods, for JSON; None without a record."""
    if forecast is None or forecast.usable is None or forecast.regime is None:
        return None
    return {
        **_value(forecast.usable, forecast.low, forecast.high),
        "assumed": forecast.assumed,
        "regime": forecast.regime,
        "limitedBy": forecast.limited_by,
        **({"measured": forecast.measured} if forecast.measured else {}),
    }


def _value(gbps: float, low: float | None, high: float | None) -> dict[str, Any]:
    return {"gbps": rounded(gbps), "low": rounded(low), "high": rounded(high)}


def rounded(gbps: float | None) -> float | None:
    """GB/s for JSON, in four digits: more than the accuracy of the model."""
    return None if gbps is None else float(f"{gbps:.4g}")


_MEANING: Mapping[str, str] = {
    Guarantee.GPUS: "each worker gets these GPUs",
    Guarantee.NODE: "each worker gets its node; the kubelet picks the GPUs",
    Guarantee.ADVISORY: "nothing enforces this plan",
}
"""What each guarantee means for the workers."""

_UNCONFIRMED = {
    "admission": "whether a policy places workers could not be tried",
    "claims": "whether workers get the claims that are meant for them could not be tried",
    "gates": "whether workers may be patched could not be asked",
}
"""The doubt about each binding whose mechanism could not be tested on the cluster."""


def guarantee_sentence(forecast: PlacementForecast) -> str:
    """The guarantee of a placement, its mechanism, and what that means for the workers."""
    binding = str(forecast.binding)
    by = enforced_by(binding)
    if not forecast.confirmed:
        doubt = _UNCONFIRMED.get(binding)
        by += f", unconfirmed: {doubt}" if doubt else ", unconfirmed"
    # A later version may have recorded a guarantee of its own.
    unknown = "this version of arena-topo does not know what that means"
    return f"{forecast.guarantee}, by {by} ({_MEANING.get(str(forecast.guarantee), unknown)})"
