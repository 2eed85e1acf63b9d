"""A forecast as a picture: bandwidth over message size with its range, and the measured values."""

from __future__ import annotations

import math
from collections.abc import Sequence

from arena_topo.bandwidth import Estimate
from arena_topo.drawing.sheet import HEAD, SMALL_TEXT, Sheet
from arena_topo.forecast.forecasting import MESSAGE_SIZES, Forecast, LogComparison
from arena_topo.forecast.view import forecast_bottleneck, size_of
from arena_topo.manifests import estimates
from arena_topo.topology import members

_WIDE, _HIGH = 620.0, 260.0
"""Width and height of the plot in pixels."""

_STEPS = 4
"""The number of horizontal lines in the plot."""

_ROOM = 46.0
"""Pixels for the numbers to the left of the plot."""


def forecast_svg(result: Forecast, beside: LogComparison | None) -> str:
    """Draw a forecast as SVG; a single GPU has no curve."""
    sheet = Sheet()
    gpus = ",".join(map(str, members(result.gpus)))
    nodes = result.request.nodes
    where = f" of each of {nodes} nodes" if nodes > 1 else ""
    sheet.text((0, HEAD), result.machine.name, "head", room=_ROOM + _WIDE, size=HEAD)
    sheet.text((0, 40), f"GPUs {gpus}{where}", room=_ROOM + _WIDE)
    estimate = result.estimate
    if estimate is None:
        caption = "A single GPU has no bandwidth."
        sheet.text((0, 62), caption, "dim")
        return sheet.finish(f"Forecast of {result.machine.name}", caption)
    limit = forecast_bottleneck(result, estimate)
    caption = f"{estimates.estimate_text(estimate)}; {estimate.regime}, limited by {limit}"
    sheet.text((0, 62), caption, "dim", room=_ROOM + _WIDE)
    _plot(sheet, estimate, beside)
    return sheet.finish(f"Forecast of {result.machine.name}", caption)


def _plot(sheet: Sheet, estimate: Estimate, beside: LogComparison | None) -> None:
    top = 96.0
    measured = [(point.size, point.measured) for point in beside.points] if beside else []
    most = max([estimate.high, *(rate for _, rate in measured)])
    first, last = MESSAGE_SIZES[0], max([MESSAGE_SIZES[-1], *(size for size, _ in measured)])

    def place(size: int, rate: float) -> tuple[float, float]:
        along = math.log2(size / first) / math.log2(last / first)
        return _ROOM + _WIDE * along, top + _HIGH * (1 - rate / most)

    def curve(rates: Sequence[tuple[int, float]], css: str, thick: float) -> None:
        sheet.line([place(*rate) for rate in rates], css, thick=thick)

    sheet.box((_ROOM, top), (_WIDE, _HIGH), "frame", corner=0)
    for step in range(_STEPS + 1):
        rate = most * step / _STEPS
        at = place(first, rate)[1]
        sheet.line([(_ROOM, at), (_ROOM + _WIDE, at)], "faint", thick=1)
        sheet.text((_ROOM - 6, at + 4), f"{rate:.3g}", "small dim end", size=SMALL_TEXT)
    powers = [size for size in MESSAGE_SIZES if size & (size - 1) == 0]
    for size in powers[::3]:
        along = place(size, 0.0)[0]
        sheet.text((along, top + _HIGH + 18), size_of(size), "small dim middle", size=SMALL_TEXT)
    sheet.text((_ROOM + _WIDE, top + _HIGH + 36), "bytes", "small dim end", size=SMALL_TEXT)
    sheet.text((0, top - 14), "GB/s", "small dim", size=SMALL_TEXT)
    reached = [(size, estimate.at(size)) for size in powers]
    curve([(size, low) for size, (_, low, _) in reached], "link dashed", 1.5)
    curve([(size, high) for size, (_, _, high) in reached], "link dashed", 1.5)
    curve([(size, point) for size, (point, _, _) in reached], "lit", 3)
    names = [("lit", "forecast"), ("link dashed", "its range")]
    if measured:
        curve(measured, "seen", 3)
        names.append(("seen", "measured"))
    along = _ROOM
    for css, name in names:
        sheet.line([(along, top + _HIGH + 32), (along + 24, top + _HIGH + 32)], css, thick=3)
        sheet.text((along + 30, top + _HIGH + 36), name, "small", size=SMALL_TEXT)
        along += 130
