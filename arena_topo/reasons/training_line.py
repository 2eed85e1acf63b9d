"""What the recorded placement of a job means for the training that it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from arena_topo.bandwidth import BETWEEN_HOSTS, Estimate, Limit, Regime
from arena_topo.bandwidth.fitted import FITTED
from arena_topo.engines import JobStatus
from arena_topo.errors import InvalidJob, InvalidValue, UsageError
from arena_topo.escaping import one_line
from arena_topo.job import DataSize, StepTime
from arena_topo.training import Ratio, Span, Workload, all_reduce_span, ratio
from arena_topo.training.wording import ratio_json, ratio_text, seconds_text, span_json
from arena_topo.training.workloads import gigabytes, known_workload


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTraining:
    """The all-reduce of a job on its placement; the ratio to a step on one GPU if that is given."""

    name: str
    gradient_bytes: int
    all_reduce: Span
    guess: bool
    ratio: Ratio | None

    def __str__(self) -> str:
        time = seconds_text(self.all_reduce.value, guess=self.guess)
        text = f"{one_line(self.name)}: {gigabytes(self.gradient_bytes)} of gradients,"
        text += f" all-reduce {time}" + (", a guess" if self.guess else "")
        return (
            text
            if self.ratio is None
            else f"{text}, a step {ratio_text(self.ratio)} that of one GPU"
        )

    def value(self) -> dict[str, Any]:
        """It for JSON, in milliseconds."""
        return {
            "workload": self.name,
            "gradientBytes": self.gradient_bytes,
            "allReduceMs": span_json(self.all_reduce),
            "guess": self.guess,
            "stepRatio": None if self.ratio is None else ratio_json(self.ratio),
        }


def recorded_training(status: JobStatus) -> RecordedTraining | None:
    """What a job's placement means for its training; None without one, or for one GPU."""
    asked, forecast = status.training, status.forecast
    if asked is None or forecast is None or forecast.usable is None or not forecast.workers:
        return None
    try:
        workload, own = _workload(asked)
        regime = Regime(forecast.regime or "")
        ranks = int(asked["workers"]) * int(asked["gpus"])
        estimate = Estimate(
            point=forecast.usable,
            low=forecast.low or forecast.usable,
            high=forecast.high or forecast.usable,
            regime=regime,
            limited_by=Limit(forecast.limited_by or ""),
            latency=FITTED.latency["network" if regime in BETWEEN_HOSTS else "nvlink"],
            ranks=ranks,
            guess=forecast.guess,
        )
        span = all_reduce_span(workload.gradient_bytes, estimate)
    except (ArithmeticError, InvalidJob, InvalidValue, KeyError, TypeError, UsageError, ValueError):
        # Users can edit what is recorded, and later versions know more workloads.
        return None
    return RecordedTraining(
        name=workload.name,
        gradient_bytes=workload.gradient_bytes,
        all_reduce=span,
        guess=forecast.guess,
        ratio=ratio(workload, estimate, None) if own else None,
    )


def _workload(asked: Mapping[str, Any]) -> tuple[Workload, bool]:
    """The recorded training, and whether its step was given with it."""
    name, size, step = asked.get("workload"), asked.get("gradientBytes"), asked.get("stepTime")
    seconds = StepTime(text=str(step)).seconds if step else 1.0
    own = DataSize(text=str(size)).bytes if size else known_workload(str(name)).gradient_bytes
    batch = f", batch {int(asked['batch'])}" if asked.get("batch") else ""
    words = f"{name}{batch}" if name else "your own"
    return Workload(name=words, gradient_bytes=own, step=Span.exactly(seconds)), bool(step)
