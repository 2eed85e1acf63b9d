"""The bandwidths of a pool of machines, and the overlap of a training, from measured placements.

A placement was measured by the step of a training, or by the bus bandwidth of nccl-tests. Unknown
are a share of the computed bandwidth inside one host, GB/s among two hosts, GB/s among three and
more, and f and a of `step_time`. The fit is that of the least squares of the logarithms. Where many
fits are as good, the one nearest to the usual counts: a calibration says no more than was measured.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from arena_topo.bandwidth import Estimate, Regime
from arena_topo.errors import UsageError
from arena_topo.topology import MeasuredRate
from arena_topo.training.step_time import REPEAT, Workload, all_reduce_time, step_time

CONTRADICTION = 1.25
"""How much two measurements of one placement may differ: six times as much as repeated runs."""

_STEP = 1.02
_RATES = tuple(0.01 * _STEP**at for at in range(592))
"""The rates that are tried: 0.01 to 1,200 GB/s, or as shares. A step is half of what repeated runs
differ by: with one of 8 % the rate behind three exact measurements was between two steps, neither
of which fitted well enough."""

_FLOORS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
_HIDDEN = tuple(at / 10 for at in range(7))
"""The values of f and a that are tried: the ranges of `FITTED_OVERLAP`, small ones closer."""

_USUAL = (0.5, 0.3)
"""The middle of both ranges, which counts where nothing tells more."""

WIDE = 1.5
"""The ratio of the ends of a rate from which it was not really measured."""


class Kind(StrEnum):
    """What a measured placement tells of: NCCL takes two hosts and more hosts in different ways."""

    INSIDE = "inside one host"
    TWO = "two hosts"
    MORE = "three and more hosts"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPlacement:
    """A measured job: the GPUs of each host, and the seconds of its step or its GB/s.

    `where` names the measurement in a sentence. `estimate` is the bandwidth that is computed
    without any calibration. `workload` is that of the step, None for GB/s.
    """

    where: str
    hosts: tuple[int, ...]
    estimate: Estimate
    value: float
    workload: Workload | None = None

    @property
    def kind(self) -> Kind:
        """What it tells of."""
        return (Kind.INSIDE, Kind.TWO, Kind.MORE)[min(len(self.hosts), 3) - 1]

    def per_rate(self, *, each: bool) -> float:
        """GB/s of this placement by one unit of the rate of its kind."""
        if self.kind is Kind.INSIDE:
            return self.estimate.point
        return min(self.hosts) if each else 1.0

    def reduced(self, gbps: float) -> float:
        """The number of its all-reduce: seconds for a training, else GB/s."""
        if self.workload is None:
            return gbps
        return all_reduce_time(self.workload.gradient_bytes, self.estimate, gbps)

    def predicted(self, reduced: float, overlap: tuple[float, float]) -> float:
        """The number that would be measured, by that of its all-reduce."""
        if self.workload is None:
            return reduced
        return step_time(self.workload.step.value, reduced, *overlap)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A fit of measured placements.

    `rates` are those of the measured kinds, for each GPU of a host if `each`; `each` is None where
    the measurements do not tell. `loose` are rates that hardly limit what was measured: there the
    computed bandwidths count. `floor` and `hidden` are None without a step. `reached` are the
    numbers of the fit, in the order of `placements`.
    """

    placements: tuple[MeasuredPlacement, ...]
    rates: Mapping[Kind, MeasuredRate]
    loose: Mapping[Kind, MeasuredRate]
    each: bool | None
    floor: MeasuredRate | None
    hidden: MeasuredRate | None
    reached: tuple[float, ...]

    @property
    def errors(self) -> list[float]:
        """The relative errors of the fit, in the order of the placements."""
        pairs = zip(self.reached, self.placements, strict=True)
        return [reached / row.value - 1 for reached, row in pairs]


class _Fit(NamedTuple):
    """A floor and an overlap, with the loss of each rate by kind."""

    overlap: tuple[float, float]
    losses: dict[Kind, list[float]]

    @property
    def loss(self) -> float:
        return sum(map(min, self.losses.values()))


def calibrate(placements: Sequence[MeasuredPlacement]) -> Calibration:
    """The calibration of measured placements of one pool; UsageError for what cannot be fitted."""
    _check(placements)
    shared = _fits(placements, each=False)
    sizes = {(row.kind, min(row.hosts)) for row in placements if row.kind is not Kind.INSIDE}
    # Over TCP the GPUs of a node always share its network.
    tcp = any(row.estimate.regime is Regime.TCP for row in placements)
    if tcp or len(sizes) == len({kind for kind, _ in sizes}):
        return _calibration(placements, shared, each=False, decided=tcp)
    own = _fits(placements, each=True)
    losses = [min(fit.loss for fit in fits) for fits in (shared, own)]
    decided = abs(losses[0] - losses[1]) > _slack(min(losses), len(placements))
    each = decided and losses[1] < losses[0]
    return _calibration(placements, own if each else shared, each=each, decided=decided)


def _check(placements: Sequence[MeasuredPlacement]) -> None:
    different = len({row.hosts for row in placements})
    if different < 2:  # noqa: PLR2004 - one placement says nothing of another
        raise UsageError(
            f"a calibration needs 2 placements of several GPUs, and has {different}",
            hint=f"measure {2 - different} more: on one node, on two, or on three and more",
        )
    alike: dict[object, list[tuple[str, float]]] = defaultdict(list)
    for row in placements:
        alike[row.hosts, row.workload].append((row.where, row.value))
    for same in alike.values():
        check_repeated(same)
    rates = {row.hosts: row.value for row in placements if row.workload is None}
    for row in placements:
        if row.workload is None:
            continue
        measured = (
            f"{row.where}: a step of {1e3 * row.value:.4g} ms on several GPUs is shorter than"
        )
        step = row.workload.step.value
        if row.value * CONTRADICTION < step:
            raise UsageError(
                f"{measured} that of {1e3 * step:.4g} ms on one",
                hint="measure both with the same batch on each GPU",
            )
        reduce = row.reduced(rates[row.hosts]) if row.hosts in rates else 0.0
        if row.value * CONTRADICTION < reduce:
            raise UsageError(
                f"{measured} its all-reduce, {1e3 * reduce:.4g} ms at the measured"
                f" {rates[row.hosts]:.3g} GB/s",
                hint="check the bytes of the gradients: mixed precision halves them",
            )


def check_repeated(same: Sequence[tuple[str, float]]) -> None:
    """UsageError for measurements of one placement, each with its name, that contradict."""
    for (first, value), (second, other) in itertools.combinations(same, 2):
        if max(value, other) > CONTRADICTION * min(value, other):
            raise UsageError(
                f"{first} and {second} contradict each other",
                why=f"the same placement gave {value:.3g} and {other:.3g}, and repeated"
                f" runs differ by {100 * (REPEAT - 1):.0f} %",
                hint="leave out the one that something else slowed down",
            )


def _slack(loss: float, rows: int) -> float:
    """How much worse a fit may be and still as good: two variances of a measurement.

    The variance is that of repeated runs, or more where the fit is worse.
    """
    return 2 * max(math.log(REPEAT) ** 2, loss / rows)


_Reduced = list[tuple[MeasuredPlacement, float]]


def _reduced(some: Sequence[MeasuredPlacement], rate: float, *, each: bool) -> _Reduced:
    return [(row, row.reduced(rate * row.per_rate(each=each))) for row in some]


def _loss(some: _Reduced, overlap: tuple[float, float]) -> float:
    return sum(math.log(row.predicted(reduced, overlap) / row.value) ** 2 for row, reduced in some)


def _fits(placements: Sequence[MeasuredPlacement], *, each: bool) -> list[_Fit]:
    """All fits, one for each floor and overlap; a single one where no step was measured."""
    steps = any(row.workload for row in placements)
    tried = {
        kind: [_reduced(_of(kind, placements), rate, each=each) for rate in _RATES]
        for kind in dict.fromkeys(row.kind for row in placements)
    }
    return [
        _Fit(overlap, {kind: [_loss(some, overlap) for some in own] for kind, own in tried.items()})
        for overlap in (itertools.product(_FLOORS, _HIDDEN) if steps else [_USUAL])
    ]


def _of(kind: Kind, placements: Sequence[MeasuredPlacement]) -> list[MeasuredPlacement]:
    return [row for row in placements if row.kind is kind]


def _calibration(
    placements: Sequence[MeasuredPlacement], fits: Sequence[_Fit], *, each: bool, decided: bool
) -> Calibration:
    best = min(fit.loss for fit in fits)
    slack = _slack(best, len(placements))
    near = [fit for fit in fits if fit.loss <= best + slack]
    chosen = min(near, key=lambda fit: math.dist(fit.overlap, _USUAL))
    rates: dict[Kind, MeasuredRate] = {}
    loose: dict[Kind, MeasuredRate] = {}
    for kind in chosen.losses:
        own = _of(kind, placements)
        rate, computed = _rate(own, kind, chosen, near, slack, each=each)
        (loose if computed else rates)[kind] = rate
    ends = [
        MeasuredRate(value, min(some), max(some)) if len(fits) > 1 else None
        for value, some in zip(
            chosen.overlap, zip(*(fit.overlap for fit in near), strict=True), strict=True
        )
    ]

    def reached(row: MeasuredPlacement) -> float:
        rate = rates.get(row.kind)
        gbps = row.estimate.point if rate is None else rate.value * row.per_rate(each=each)
        return row.predicted(row.reduced(gbps), chosen.overlap)

    return Calibration(
        placements=tuple(placements),
        rates=rates,
        loose=loose,
        each=each if decided else None,
        floor=ends[0],
        hidden=ends[1],
        reached=tuple(map(reached, placements)),
    )


def _rate(
    own: Sequence[MeasuredPlacement],
    kind: Kind,
    chosen: _Fit,
    near: Sequence[_Fit],
    slack: float,
    *,
    each: bool,
) -> tuple[MeasuredRate, bool]:
    """The rate of a kind in the chosen fit, its ends in all that are as good, if it is computed.

    It is where the measurements hardly limit it, and allow what is computed.
    """
    ends = [rate for fit in near for rate in _within(fit.losses[kind], slack)]
    within = list(_within(chosen.losses[kind], slack))
    middle = _RATES[min(range(len(_RATES)), key=chosen.losses[kind].__getitem__)]
    value = min(
        (middle * _STEP ** (at / 16) for at in range(-16, 17)),
        key=lambda rate: _loss(_reduced(own, rate, each=each), chosen.overlap),
    )
    low, high = min(ends) / REPEAT, max(ends) * REPEAT
    computed = statistics.geometric_mean(
        row.estimate.point / row.per_rate(each=each) for row in own
    )
    loose = within[-1] > WIDE * within[0] and within[0] <= computed <= within[-1]
    if within[-1] == _RATES[-1]:
        # There is no upper end: nothing limits these placements.
        value = max(computed, within[0])
        high = max(value, *(row.estimate.high / row.per_rate(each=each) for row in own))
    ordered = (value, min(low, value), max(high, value))
    return MeasuredRate(*(float(f"{rate:.4g}") for rate in ordered)), loose


def _within(losses: Sequence[float], slack: float) -> Iterator[float]:
    least = min(losses)
    return (rate for rate, loss in zip(_RATES, losses, strict=True) if loss <= least + slack)


def next_measurement(
    calibration: Calibration, computed: Mapping[Kind, Estimate]
) -> tuple[Kind, float, float] | None:
    """The kind to measure next with nccl-tests, and its GB/s so far; None where none is open.

    It is the kind whose bandwidth is least known. `computed` are the estimates of a placement of
    each kind without any calibration.
    """
    known = {**calibration.rates, **calibration.loose}
    unknown = []
    for kind, estimate in computed.items():
        _, low, high = known.get(kind, (0.0, estimate.low, estimate.high))
        unit = estimate.point if kind is Kind.INSIDE and kind in known else 1.0
        if high > low * CONTRADICTION:
            unknown.append((kind, low * unit, high * unit))
    return max(unknown, key=lambda ends: ends[2] / ends[1], default=None)
