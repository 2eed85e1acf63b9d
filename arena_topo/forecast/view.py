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


def value(found: Forecast, beside: Against | None) -> dict[str, Any]:
    """A forecast for JSON: GB/s, shares of the point by message size; null for a single GPU."""
    one, asked = found.estimate, found.asked
    sizes = [(size, size_of(size)) for size in SIZES]
    said: dict[str, Any] = {
        "apiVersion": "arena-topo/v1",
        "kind": "Forecast",
        "machine": found.machine.name,
        "gpusPerNode": len(members(found.gpus)),
        "gpus": list(members(found.gpus)),
        "nodes": asked.nodes,
        "hosts": found.hosts,
        "podShape": str(asked.pod_shape),
        "algorithm": None if asked.algorithm is None else str(asked.algorithm),
        "bandwidth": None if one is None else estimates.value(one, sizes),
    }
    if beside is not None:
        said["against"] = {
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
    return said


def text(found: Forecast, beside: Against | None, *, unicode: bool) -> str:
    """A forecast for people: the number, its limit, and a plot over message sizes."""
    gpus, nodes = ",".join(map(str, members(found.gpus))), found.asked.nodes
    where = f" of each of {nodes} nodes, {found.ranks} in all" if nodes > 1 else ""
    lines = [f"{found.machine.name}: GPUs {gpus}{where}", ""]
    one = found.estimate
    if one is None:
        return "\n".join([*lines, "A single GPU has no bandwidth.", ""])
    hosts = f", {found.hosts} hosts for NCCL" if found.hosts > 1 else ""
    lines += [
        f"  Bandwidth   {estimates.text(one)}",
        f"  Regime      {one.regime}{hosts}",
        f"  Limited by  {limit(found, one)}",
        *(f"  Assumed     {note}" for note in one.assumed),
        *(f"  Note        {note}" for note in found.notes),
        "",
    ]
    return "\n".join([*lines, *(_plot(one, unicode) if beside is None else _beside(beside)), ""])


def limit(found: Forecast, one: Estimate) -> str:
    """The bottleneck in the words of a plan: `the NVLinks inside one node`."""
    nodes = found.asked.nodes
    tier = "nvlink" if found.hosts == 1 else None
    return estimates.limit(str(one.regime), str(one.limited_by), tier=tier, nodes=nodes)


def _plot(one: Estimate, unicode: bool) -> list[str]:  # noqa: FBT001
    full = "\u2588" if unicode else "#"
    rows = [
        (
            size_of(size),
            estimates.amount(one.at(size)[0]),
            f"{100 * one.share(size):.0f}%",
            full * round(_BAR * one.share(size)) or "-",
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
