"""The step time of a data-parallel training, and the ratio of two placements of one job.

    T = Tc + max(f Tm, Tm - a Tc)

Tc is the step on a single GPU, Tm the all-reduce of its gradients, a the share of Tc that hides
communication, f the share of Tm that nothing hides. Times are seconds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from arena_topo.bandwidth import BETWEEN_HOSTS, Estimate
from arena_topo.topology import Machine

BUCKET = 25 << 20
"""Bytes of gradients that are reduced together: the default of PyTorch's DistributedDataParallel.
Each bucket costs the latency of an all-reduce."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A value of which only a range is known."""

    value: float
    low: float
    high: float

    @classmethod
    def exactly(cls, value: float) -> Span:
        """A value without doubt."""
        return cls(value=value, low=value, high=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """How a training hides communication; both numbers belong to its framework and its model.

    `floor` is f, the least share of the all-reduce that a step waits for; `hidden` is a, the share
    of the single-GPU step that communication runs beside.
    """

    floor: Span
    hidden: Span


FITTED_OVERLAP = Overlap(
    floor=Span(value=0.9, low=0.0, high=1.0), hidden=Span(value=0.2, low=0.0, high=0.6)
)
"""Least squares of the logarithms on the healthy pairs of `tests/training/pairs.tsv` (`python
docs/site/fidelity.py --fit`). The ranges are not fitted: frameworks differ as much (a 0 in DLPerf,
0.15 in ACK's TensorFlow runs, 0.34 to 0.43 in pools of PyTorch)."""


def overlap_in(machines: Iterable[Machine]) -> Overlap:
    """The overlap of trainings: as one calibration of all machines measured it, else the fitted.

    That of a training counts for others as well: in the pools of docs/fidelity.md it halves the
    errors of their steps.
    """
    pools = {machine.pool for machine in machines}
    pool = pools.pop() if len(pools) == 1 else None
    if pool is None or pool.floor is None or pool.hidden is None:
        return FITTED_OVERLAP
    return Overlap(
        floor=Span(**pool.floor._asdict()),
        hidden=Span(**pool.hidden._asdict()),
    )


REPEAT = 1.04
"""How much two runs of one job on one placement differ: the median of 1,212 placements of the
DGX-A100 that Sia measured twice is 4.1 % (its file `placements-dgx-ext` against `-dgx`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A training: bytes of its gradients, and the seconds of its step on a single GPU."""

    name: str
    gradient_bytes: int
    step: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """How many times longer a step takes than that of another placement, and the range.

    `guess`: the network or the machines of one of them are assumed, so that only the order counts.
    """

    value: float
    low: float
    high: float
    guess: bool = False


def all_reduce_time(size: int, estimate: Estimate | None, gbps: float | None = None) -> float:
    """Seconds to reduce `size` bytes of gradients in buckets; 0 for a single GPU.

    `gbps` takes the place of the point of the estimate.
    """
    if estimate is None:
        return 0.0
    moved = 2 * (estimate.ranks - 1) / estimate.ranks * size / 1e9
    buckets = math.ceil(size / BUCKET)
    return buckets * estimate.latency.value + moved / (gbps or estimate.point)


def all_reduce_span(size: int, estimate: Estimate) -> Span:
    """The seconds to reduce gradients, at the point and at the ends of a bandwidth."""
    return Span(
        value=all_reduce_time(size, estimate),
        low=all_reduce_time(size, estimate, estimate.high),
        high=all_reduce_time(size, estimate, estimate.low),
    )


def step_time(step: float, reduce: float, floor: float, hidden: float) -> float:
    """The seconds of a step whose all-reduce takes `reduce`, and which takes `step` on one GPU."""
    return step + max(floor * reduce, reduce - hidden * step)


def ratio(
    workload: Workload,
    other: Estimate | None,
    than: Estimate | None,
    *,
    overlap: Overlap = FITTED_OVERLAP,
) -> Ratio:
    """How many times longer a step takes with the bandwidth `other` than with `than`.

    What is unknown about the job (overlap and single-GPU step) is the same for both placements, and
    so is the rate of a network that both use. The range is that of all of it together, and of two
    runs that are never quite alike.
    """
    size = workload.gradient_bytes

    def of(step: float, first: float, second: float, floor: float, hidden: float) -> float:
        return step_time(step, first, floor, hidden) / step_time(step, second, floor, hidden)

    value = of(
        workload.step.value,
        all_reduce_time(size, other),
        all_reduce_time(size, than),
        overlap.floor.value,
        overlap.hidden.value,
    )
    ends = [
        of(step, first, second, floor, hidden)
        for first, second in _all_reduces(size, other, than)
        for step in {workload.step.low, workload.step.high}
        for floor, hidden in _corners(step, (first, second), overlap)
    ]
    return Ratio(
        value=value,
        low=min(value, *ends) / REPEAT,
        high=max(value, *ends) * REPEAT,
        guess=any(estimate is not None and estimate.guess for estimate in (other, than)),
    )


def _all_reduces(
    size: int, other: Estimate | None, than: Estimate | None
) -> Iterator[tuple[float, float]]:
    """The times of both placements at the ends of their bandwidths."""
    ends = [(first, second) for first in range(2) for second in range(2)]
    if other is not None and than is not None and _cause(other) == _cause(than):
        # One constant, or one network, is too high or too low for both.
        ends = [(0, 0), (1, 1)]
    for first, second in ends:
        yield (
            all_reduce_time(size, other, _end(other, first)),
            all_reduce_time(size, than, _end(than, second)),
        )


def _end(estimate: Estimate | None, end: int) -> float | None:
    return None if estimate is None else (estimate.low, estimate.high)[end]


def _cause(estimate: Estimate) -> str:
    """What the doubt about a bandwidth is of: the network, or the constant of its regime."""
    return "network" if estimate.regime in BETWEEN_HOSTS else estimate.regime


def _corners(
    step: float, reduces: tuple[float, float], overlap: Overlap
) -> Iterator[tuple[float, float]]:
    """The pairs of floor and overlap between which the extremes of a ratio lie.

    Where one of the two forms holds for each placement, a ratio has no maximum or minimum inside:
    so the ends of both ranges suffice, and where the forms of a placement meet on the edges.
    """
    floors = (overlap.floor.low, overlap.floor.high)
    hiddens = (overlap.hidden.low, overlap.hidden.high)
    yield from itertools.product(floors, hiddens)
    for reduce in filter(None, reduces):
        for hidden in hiddens:
            if floors[0] < (floor := 1 - hidden * step / reduce) < floors[1]:
                yield floor, hidden
        for floor in floors:
            if hiddens[0] < (hidden := (1 - floor) * reduce / step) < hiddens[1]:
                yield floor, hidden
