"""A forecast for people and for programs, alone or beside a measured log."""

from __future__ import annotations

from typing import Any

from arena_topo import layout
from arena_topo.bandwidth import Estimate
from arena_topo.forecast.forecasting import MESSAGE_SIZES, Forecast, LogComparison
from arena_topo.manifests import estimates
from arena_topo.topology import Plugin, Software, members
from arena_topo.training import (
    Ratio,
    Workload,
    all_reduce_span,
    all_reduce_time,
    overlap_in,
    ratio,
)
from arena_topo.training.wording import (
    ratio_json,
    ratio_text,
    seconds_text,
    span_json,
    workload_json,
    workload_text,
)

_BAR = 24
"""Columns of the bar for the full plateau."""

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"))


def forecast_json(result: Forecast, beside: LogComparison | None) -> dict[str, Any]:
    """A forecast for JSON: GB/s, shares of the point by message size; null for a single GPU."""
    estimate, request = result.estimate, result.request
    software = result.machine.software
    sizes = [(size, size_of(size)) for size in MESSAGE_SIZES]
    document: dict[str, Any] = {
        "apiVersion": "arena-topo/v1",
        "kind": "Forecast",
        "machine": result.machine.name,
        "gpusPerNode": len(members(result.gpus)),
        "gpus": list(members(result.gpus)),
        "nodes": request.nodes,
        "hosts": result.hosts,
        "site": {
            "p2p": software.p2p,
            "gdr": software.gdr,
            "plugin": None if software.plugin is None else str(software.plugin),
        },
        "podShape": str(request.pod_shape),
        "algorithm": None if request.algorithm is None else str(request.algorithm),
        "bandwidth": None if estimate is None else estimates.estimate_json(estimate, sizes),
    }
    if result.workload is not None and estimate is not None:
        workload, source = result.workload
        document["training"] = {
            **workload_json(workload, result.machine.model or "", source),
            "allReduceMs": span_json(all_reduce_span(workload.gradient_bytes, estimate)),
            "stepRatio": ratio_json(_ratio(result, workload, estimate)),
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


def forecast_text(result: Forecast, beside: LogComparison | None, *, unicode: bool) -> str:
    """A forecast for people: the number, its limit, and a plot over message sizes."""
    gpus, nodes = ",".join(map(str, members(result.gpus))), result.request.nodes
    where = f" of each of {nodes} nodes, {result.ranks} in all" if nodes > 1 else ""
    lines = [f"{result.machine.name}: GPUs {gpus}{where}", ""]
    estimate = result.estimate
    if estimate is None:
        return "\n".join([*lines, "A single GPU has no bandwidth.", ""])
    hosts = f", {result.hosts} hosts for NCCL" if result.hosts > 1 else ""
    lines += [
        f"  Bandwidth   {estimates.estimate_text(estimate)}",
        f"  Regime      {estimate.regime}{hosts}",
        f"  Limited by  {forecast_bottleneck(result, estimate)}",
        *(f"  Site        {facts}" for facts in [_site(result.machine.software)] if facts),
        *_training(result, estimate),
        *(f"  Assumed     {note}" for note in estimate.assumed),
        *(f"  Note        {note}" for note in result.notes),
        "",
    ]
    shown = _plot(estimate, unicode) if beside is None else _beside(beside)
    return "\n".join([*lines, *shown, ""])


def _training(result: Forecast, estimate: Estimate) -> list[str]:
    """The lines of the training of the request: its step beside that of a single GPU."""
    if result.workload is None:
        return []
    workload, source = result.workload
    time = all_reduce_time(workload.gradient_bytes, estimate)
    slower, reducing = (
        ratio_text(_ratio(result, workload, estimate)),
        seconds_text(time, guess=estimate.guess),
    )
    named = workload_text(workload, result.machine.model or "", source)
    return [
        f"  Training    {named}",
        f"  Step        {slower} beside one GPU, all-reduce {reducing}",
    ]


def _ratio(result: Forecast, workload: Workload, estimate: Estimate) -> Ratio:
    """How many times longer a step takes than on one GPU."""
    return ratio(workload, estimate, None, overlap=overlap_in([result.machine]))


def _site(software: Software) -> str:
    """What the site says of its software, as far as it is not the usual."""
    facts = [
        *(() if software.p2p else ("no P2P",)),
        *(() if software.gdr else ("no GPUDirect RDMA",)),
        *((f"plug-in {software.plugin}",) if software.plugin not in {None, Plugin.NONE} else ()),
    ]
    return "; ".join(facts)


def forecast_bottleneck(result: Forecast, estimate: Estimate) -> str:
    """The bottleneck in the words of a plan: `the NVLinks inside one node`."""
    tier = "nvlink" if result.hosts == 1 else None
    regime, limited_by = str(estimate.regime), str(estimate.limited_by)
    return estimates.bottleneck_text(regime, limited_by, tier=tier, nodes=result.request.nodes)


def _plot(estimate: Estimate, unicode: bool) -> list[str]:  # noqa: FBT001
    full = "\u2588" if unicode else "#"
    rows = [
        (
            size_of(size),
            estimates.gbps_text(estimate.at(size)[0]),
            f"{100 * estimate.share(size):.0f}%",
            full * round(_BAR * estimate.share(size)) or "-",
        )
        for size in MESSAGE_SIZES
    ]
    return [layout.align(layout.table(("SIZE", "GB/s", "SHARE", "PLATEAU"), rows)).rstrip()]


def _beside(beside: LogComparison) -> list[str]:
    amount = estimates.gbps_text
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
