"""Bandwidth estimates as text and as JSON: the same on every screen and in every document.

A number is shown as a point and its 80 % range, `5.66 GB/s (3.2 to 10)`, in three digits. An
`Estimate` is the result of `bandwidth`, a `Forecast` its record on a job.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from arena_topo.escaping import one_line

if TYPE_CHECKING:
    from arena_topo.bandwidth import Estimate
    from arena_topo.manifests import Forecast

_INSIDE = "node"
_BEYOND = "beyond"
"""The `tier` in a record for workers of one node, and for nodes without a known common level."""

_BETWEEN = {"two-hosts", "several-hosts", "tcp"}
"""Regimes of jobs that NCCL treats as several hosts, by the values of `bandwidth.Regime`."""


def amount(gbps: float) -> str:
    """GB/s in three digits: `5.66`, `479`."""
    return f"{gbps:.0f}" if gbps >= 100 else f"{gbps:.3g}"  # noqa: PLR2004 - three digits


def span(low: float, high: float) -> str:
    """A range in GB/s: `3.2 to 10`; `measured` for a measured value, which has no range."""
    return "measured" if low == high else f"{amount(low)} to {amount(high)}"


def spoken(gbps: float, low: float | None, high: float | None) -> str:
    """A bandwidth and its range: `5.66 GB/s (3.2 to 10)`; the range only if there is one."""
    between = "" if low is None or high is None else span(low, high)
    return f"{amount(gbps)} GB/s" + (f" ({between})" if between else "")


def text(estimate: Estimate) -> str:
    """An estimate: `5.66 GB/s (3.2 to 10)`."""
    return spoken(estimate.point, estimate.low, estimate.high)


def recorded(forecast: Forecast) -> str:
    """The recorded estimate of a job's pods; empty without a bandwidth."""
    if forecast.usable is None:
        return ""
    return spoken(forecast.usable, forecast.low, forecast.high)


def limit(regime: str, limited_by: str, *, tier: str | None, nodes: int) -> str:
    """The bottleneck of these pods, and where it is.

    `regime` and `limited_by` are values of `bandwidth.Regime` and `bandwidth.Limit`; unknown values
    of a later version are shown unchanged. `tier` joins the `nodes`.
    """
    part = f"the {one_line(limited_by)}"
    if limited_by == "one host inside":
        return "the links inside each host"
    if regime in _BETWEEN:
        return f"{'TCP' if regime == 'tcp' else part} {_between(tier, nodes)}"
    if regime == "bridged-pairs":
        return f"{part} between the bridged pairs of one node"
    why = ", as no ring of NVLinks joins these GPUs" if regime == "nvlink-without-ring" else ""
    return f"{part} {'inside one node' if nodes == 1 else f'within one {level(str(tier))}'}{why}"


def _between(tier: str | None, nodes: int) -> str:
    if nodes == 1:
        return "between the pods of one node"
    within = "" if tier in {None, _INSIDE, _BEYOND} else f" within one {level(str(tier))}"
    return f"between {nodes} nodes{within}"


def level(tier: str) -> str:
    """A level of the network in a sentence: `rack`, `NVLink domain`."""
    return "NVLink domain" if tier == "nvlink" else one_line(tier)


def recorded_limit(forecast: Forecast) -> str:
    """The bottleneck of a job's pods, as far as its record names it."""
    nodes = len({node for _index, node, _gpus in forecast.workers})
    if forecast.regime is not None and forecast.limited_by is not None:
        limited_by = limit(forecast.regime, forecast.limited_by, tier=forecast.tier, nodes=nodes)
        return f"limited by {limited_by}"
    if forecast.tier is None:
        return ""
    return "inside one node" if forecast.tier == _INSIDE else _between(forecast.tier, max(2, nodes))


# ---------------------------------------------------------------- JSON


def value(estimate: Estimate, sizes: Iterable[tuple[int, str]] = ()) -> dict[str, Any]:
    """An estimate for JSON: GB/s, and the share of the point that messages of some sizes reach.

    `sizes` are bytes with their names.
    """
    return {
        **_value(estimate.point, estimate.low, estimate.high),
        "assumed": bool(estimate.assumed),
        "assumptions": list(estimate.assumed),
        "regime": str(estimate.regime),
        "limitedBy": str(estimate.limited_by),
        "shares": {name: round(estimate.share(size), 3) for size, name in sizes},
    }


def recorded_value(forecast: Forecast | None) -> dict[str, Any] | None:
    """The recorded estimate of a job's pods, for JSON; None without a record."""
    if forecast is None or forecast.usable is None or forecast.regime is None:
        return None
    return {
        **_value(forecast.usable, forecast.low, forecast.high),
        "assumed": forecast.assumed,
        "regime": forecast.regime,
        "limitedBy": forecast.limited_by,
    }


def _value(gbps: float, low: float | None, high: float | None) -> dict[str, Any]:
    return {"gbps": rounded(gbps), "low": rounded(low), "high": rounded(high)}


def rounded(gbps: float | None) -> float | None:
    """GB/s for JSON, in four digits: more than the accuracy of the model."""
    return None if gbps is None else float(f"{gbps:.4g}")
