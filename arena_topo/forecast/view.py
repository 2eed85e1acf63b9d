"""A forecast for people and for programs, alone or beside a measured log."""

from __future__ import annotations

from typing import Any

from arena_topo import layout
from arena_topo.bandwidth import Estimate
from arena_topo.forecast.forecasting import SIZES, Against, Forecast
from arena_topo.manifests import estimates
from arena_topo.topology import members

_BAR = 24
"""Columns of the bar for the full plateau."""

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"))


def value(result: Forecast, beside: Against | None) -> dict[str, Any]:
    """A forecast for JSON: GB/s, shares of the point by message size; null for a single GPU."""
    estimate, request = result.estimate, result.request
    sizes = [(size, size_of(size)) for size in SIZES]
    document: dict[str, Any] = {
        "apiVersion": "arena-topo/v1",
        "kind": "Forecast",
        "machine": result.machine.name,
        "gpusPerNode": len(members(result.gpus)),
        "gpus": list(members(result.gpus)),
        "nodes": request.nodes,
        "hosts": result.hosts,
        "podShape": str(request.pod_shape),
        "algorithm": None if request.algorithm is None else str(request.algorithm),
        "bandwidth": None if estimate is None else estimates.value(estimate, sizes),
    }
    if beside is not None:
        document["against"] = {
            "inside": beside.points[-1].verdict == "inside",
            "rows": [
                {
                    "bytes": point.size,
                    "measuredGBps": layout.number(point.measured),
                    "forecastGBps": estimates.rounded(point.forecast),
                    "low": estimates.rounded(point.low),
                    "high": estimates.rounded(point.high),
                    "inside": point.verdict == "inside",
                }
                for point in beside.points
            ],
            "causes": [{"why": cause.why, "try": cause.hint} for cause in beside.causes],
        }
    return document


def text(result: Forecast, beside: Against | None, *, unicode: bool) -> str:
    """A forecast for people: the number, its limit, and a plot over message sizes."""
    gpus, nodes = ",".join(map(str, members(result.gpus))), result.request.nodes
    where = f" of each of {nodes} nodes, {result.ranks} in all" if nodes > 1 else ""
    lines = [f"{result.machine.name}: GPUs {gpus}{where}", ""]
    estimate = result.estimate
    if estimate is None:
        return "\n".join([*lines, "A single GPU has no bandwidth.", ""])
    hosts = f", {result.hosts} hosts for NCCL" if result.hosts > 1 else ""
    lines += [
        f"  Bandwidth   {estimates.text(estimate)}",
        f"  Regime      {estimate.regime}{hosts}",
        f"  Limited by  {limit(result, estimate)}",
        *(f"  Assumed     {note}" for note in estimate.assumed),
        *(f"  Note        {note}" for note in result.notes),
        "",
    ]
    shown = _plot(estimate, unicode) if beside is None else _beside(beside)
    return "\n".join([*lines, *shown, ""])


def limit(result: Forecast, estimate: Estimate) -> str:
    """The bottleneck in the words of a plan: `the NVLinks inside one node`."""
    tier = "nvlink" if result.hosts == 1 else None
    regime, limited_by = str(estimate.regime), str(estimate.limited_by)
    return estimates.limit(regime, limited_by, tier=tier, nodes=result.request.nodes)


def _plot(estimate: Estimate, unicode: bool) -> list[str]:  # noqa: FBT001
    full = "\u2588" if unicode else "#"
    rows = [
        (
            size_of(size),
            estimates.amount(estimate.at(size)[0]),
            f"{100 * estimate.share(size):.0f}%",
            full * round(_BAR * estimate.share(size)) or "-",
        )
        for size in SIZES
    ]
    return [layout.align(layout.table(("SIZE", "GB/s", "SHARE", "PLATEAU"), rows)).rstrip()]


def _beside(beside: Against) -> list[str]:
    amount = estimates.amount
    rows = [
        (
            size_of(point.size),
            amount(point.measured),
            amount(point.forecast),
            f"{amount(point.low)}-{amount(point.high)}",
            point.verdict,
        )
        for point in beside.points
    ]
    last = beside.points[-1]
    reached = amount(last.measured)
    lines = [
        layout.align(layout.table(("SIZE", "MEASURED", "FORECAST", "RANGE", ""), rows)).rstrip(),
        "",
        f"At {size_of(last.size)} {reached} GB/s were measured: {last.verdict} the range.",
    ]
    if beside.causes:
        lines.append("What usually explains it:")
    for cause in beside.causes:
        lines += [f"  {cause.why}", f"    try: {cause.hint}"]
    return lines


def size_of(size: int) -> str:
    """Bytes in words: `25MiB`, `8GiB`, `1000B`."""
    for unit, name in _UNITS:
        if size >= unit and size % unit == 0:
            return f"{size // unit}{name}"
    return f"{size}B"
