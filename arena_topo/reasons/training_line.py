"""What the recorded placement of a job means for the training that it names."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from arena_topo.bandwidth import BETWEEN_HOSTS, Estimate, Limit, Regime
from arena_topo.bandwidth.fitted import FITTED
from arena_topo.engines import JobStatus
from arena_topo.errors import ArenaError
from arena_topo.escaping import one_line
from arena_topo.job import DataSize, StepTime
from arena_topo.training import Span, Workload, all_reduce_span, all_reduce_time, ratio
from arena_topo.training.times import AS_PLANNED
from arena_topo.training.wording import ratio_text, seconds_text
from arena_topo.training.workloads import gigabytes, known_workload


class RecordedTraining(NamedTuple):
    """A training, the bytes of its gradients, its all-reduce, and all of it as a sentence."""

    name: str
    gradient_bytes: int
    all_reduce: Span
    text: str


def recorded_training(status: JobStatus) -> RecordedTraining | None:
    """What a job's placement means for its training; None without one, or for one GPU."""
    # Users can edit what is recorded, and later versions know more workloads.
    with suppress(ArithmeticError, ArenaError, KeyError, TypeError, ValueError):
        return _recorded(status)
    return None


def _recorded(status: JobStatus) -> RecordedTraining | None:
    request, forecast = status.training, status.forecast
    if request is None or forecast is None or forecast.usable is None or not forecast.workers:
        return None
    regime = Regime(forecast.regime or "")
    estimate = Estimate(
        point=forecast.usable,
        low=forecast.low or forecast.usable,
        high=forecast.high or forecast.usable,
        regime=regime,
        limited_by=Limit(forecast.limited_by or ""),
        latency=FITTED.latency["network" if regime in BETWEEN_HOSTS else "nvlink"],
        ranks=request["workers"] * request["gpus"],
        guess=forecast.guess,
    )
    name = request.get("workload") or "your own"
    own = request.get("gradientBytes")
    size = DataSize(text=own).bytes if own else known_workload(name).gradient_bytes
    span = all_reduce_span(size, estimate)
    time, worst = seconds_text(span.value, guess=estimate.guess), ""
    if forecast.planned is not None:
        planned = all_reduce_time(size, estimate, forecast.planned)
        worst = " at worst"
        time = f"{seconds_text(planned, guess=estimate.guess)} {AS_PLANNED}, {time}{worst}"
    time += ", a guess" * estimate.guess
    text = f"{one_line(name)}: {gigabytes(size)} of gradients, all-reduce {time}"
    if step := request.get("stepTime"):
        known = Span.exactly(StepTime(text=step).seconds)
        beside = ratio(Workload(name=name, gradient_bytes=size, step=known), estimate, None)
        text += f", a step{worst} {ratio_text(beside)} that of one GPU"
    return RecordedTraining(name, size, span, text)
