"""A forecast for people and for programs, alone or beside a measured log."""

from __future__ import annotations

from typing import Any

from arena_topo import layout
from arena_topo.forecast.forecasting import SIZES, Against, Forecast
from arena_topo.manifests import estimates
from arena_topo.topology import members

_BAR = 24
"""Columns of the plot at the whole plateau."""

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"))


def value(found: Forecast, beside: Against | None) -> dict[str, Any]:
    """A forecast for JSON: GB/s, shares of the point by message size; null for a single GPU."""
    told: dict[str, Any] = {
        "apiVersion": "arena-topo/v1",
        "kind": "Forecast",
        "machine": found.machine.name,
        "gpusPerNode": len(members(found.gpus)),
        "gpus": list(members(found.gpus)),
        "nodes": found.nodes,
        "hosts": found.hosts,
        "podShape": str(found.pod_shape),
        "algorithm": None if found.algorithm is None else str(found.algorithm),
        "bandwidth": None,
    }
    one = found.estimate
    if one is not None:
        told["bandwidth"] = estimates.value(one, [(size, size_of(size)) for size in SIZES])
    if beside is not None:
        told["against"] = {
            "inside": beside.verdict.inside,
            "rows": [
                {
                    "bytes": point.size,
                    "measuredGBps": layout.number(point.measured),
                    "forecastGBps": estimates.rounded(point.forecast),
                    "low": estimates.rounded(point.low),
                    "high": estimates.rounded(point.high),
                    "inside": point.inside,
                }
                for point in beside.points
            ],
            "causes": [{"why": cause.why, "try": cause.hint} for cause in beside.causes],
        }
    return told


def text(found: Forecast, beside: Against | None, *, unicode: bool) -> str:
    """A forecast for people: the number, what decides it, and a plot over message sizes."""
    gpus = ",".join(map(str, members(found.gpus)))
    where = f"of each of {found.nodes} nodes, {found.ranks} in all" if found.nodes > 1 else ""
    lines = [f"{found.machine.name}: GPUs {gpus} {where}".rstrip()]
    one = found.estimate
    if one is None:
        return "\n".join([*lines, "", "A single GPU has no bandwidth.", ""])
    hosts = f", {found.hosts} hosts for NCCL" if found.hosts > 1 else ""
    lines += [
        "",
        f"  Bandwidth   {estimates.text(one)}",
        f"  Regime      {one.regime}{hosts}",
        f"  Limited by  {one.limited_by}",
    ]
    lines += [f"  Assumed     {note}" for note in one.assumed]
    lines += [f"  Note        {note}" for note in found.notes]
    lines.append("")
    if beside is None:
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
        lines.append(
            layout.align(layout.table(("SIZE", "GB/S", "SHARE", "PLATEAU"), rows)).rstrip()
        )
    else:
        lines += _beside(beside)
    return "\n".join(lines) + "\n"


def _beside(beside: Against) -> list[str]:
    rows = [
        (
            size_of(point.size),
            estimates.amount(point.measured),
            estimates.amount(point.forecast),
            f"{estimates.amount(point.low)}-{estimates.amount(point.high)}",
            _verdict(point.measured, point.low, point.high),
        )
        for point in beside.points
    ]
    header = ("SIZE", "MEASURED", "FORECAST", "RANGE", "")
    lines = [layout.align(layout.table(header, rows)).rstrip(), ""]
    last = beside.verdict
    found = _verdict(last.measured, last.low, last.high)
    reached = estimates.amount(last.measured)
    lines.append(f"At {size_of(last.size)} {reached} GB/s were measured: {found} the range.")
    if beside.causes:
        lines.append("What usually explains it:")
    for cause in beside.causes:
        lines += [f"  {cause.why}", f"    try: {cause.hint}"]
    return lines


def _verdict(measured: float, low: float, high: float) -> str:
    if measured < low:
        return "below"
    return "above" if measured > high else "inside"


def size_of(size: int) -> str:
    """Bytes in words: `25MiB`, `8GiB`, `1000B`."""
    for unit, name in _UNITS:
        if size >= unit and size % unit == 0:
            return f"{size // unit}{name}"
    return f"{size}B"
