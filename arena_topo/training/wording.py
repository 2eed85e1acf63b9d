"""Times and ratios as text and as JSON: the same on every screen and in every document."""

from __future__ import annotations

import math
from typing import Any

from arena_topo.training.step_time import Ratio, Span, Workload
from arena_topo.training.workloads import gigabytes

HOW_OFTEN = (
    "such ranges held for 80 % of 84 published pairs of known networks"
    " (documentation: How true the forecasts are)"
)
"""How often such a range held, each source left out; a test compares it with the pairs."""

_TIE = math.log(1.01)
"""Ratios nearer to 1 than this have no order."""

_CLEAR = 10
"""From this ratio on digits after the point say nothing."""


def seconds_text(seconds: float, *, guess: bool = False) -> str:
    """A time in three digits: `147 ms`, `1.04 s`; in whole numbers if it is a guess."""
    if guess:
        return f"{seconds:.0f} s" if seconds >= 1 else f"{1e3 * seconds:.0f} ms"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def ratio_text(ratio: Ratio) -> str:
    """How long a step takes beside another: `1.18x (0.96 to 1.7)`.

    With a guessed network it is the order and whole numbers: `longer, a guess: 2 to 11x`.
    """
    if not ratio.guess:
        return f"{_times(ratio.value)}x ({_times(ratio.low)} to {_times(ratio.high)})"
    longer = ratio.value > 1
    ends = (ratio.low, ratio.high) if longer else (1 / ratio.high, 1 / ratio.low)
    least, most = (max(1, round(end)) for end in ends)
    if abs(math.log(ratio.value)) < _TIE or most == 1:
        return "as long, a guess"
    span = f"{least} to {most}" if least < most else f"{most}"
    return f"{'longer' if longer else 'shorter'}, a guess: {span}x"


def _times(value: float) -> str:
    return f"{value:.0f}" if value >= _CLEAR else f"{value:.2f}"


def workload_text(workload: Workload, gpu: str, source: str) -> str:
    """A training: `vgg16, batch 64: 553 MB of gradients, 258 ms a step on one V100 (ACK)`."""
    size, step = gigabytes(workload.gradient_bytes), seconds_text(workload.step.value)
    return f"{workload.name}: {size} of gradients, {step} a step on one {gpu or 'GPU'} ({source})"


def workload_json(workload: Workload, gpu: str, source: str) -> dict[str, Any]:
    """A training for JSON: bytes, and milliseconds."""
    return {
        "workload": workload.name,
        "gradientBytes": workload.gradient_bytes,
        "gpu": gpu or None,
        "singleGpuStepMs": span_json(workload.step),
        "source": source,
    }


def span_json(span: Span) -> dict[str, float]:
    """A time for JSON, in milliseconds of four digits."""
    ends = {"value": span.value, "low": span.low, "high": span.high}
    return {name: float(f"{1e3 * seconds:.4g}") for name, seconds in ends.items()}


def ratio_json(ratio: Ratio) -> dict[str, Any]:
    """A ratio for JSON; without a point and whole-numbered where it is a guess."""
    digits = 0 if ratio.guess else 3
    return {
        "value": None if ratio.guess else round(ratio.value, digits),
        "low": round(ratio.low, digits),
        "high": round(ratio.high, digits),
        "guess": ratio.guess,
        "order": "same" if abs(math.log(ratio.value)) < _TIE else _order(ratio.value),
    }


def _order(value: float) -> str:
    return "longer" if value > 1 else "shorter"
