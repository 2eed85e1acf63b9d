"""The bandwidths of a pool of machines, and the overlap of a training, from measured placements.

A placement was measured by the step of a training, by the bus bandwidth of nccl-tests, or by both.
Unknown are a share of the computed bandwidth inside one host, GB/s among two hosts, GB/s among
three and more, and f and a of `step_time`. The fit is that of the least squares of the logarithms.
Where many fits are as good, the one nearest to the usual counts: a calibration says no more than
was measured.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from arena_topo.bandwidth import Estimate, Regime
from arena_topo.errors import UsageError
from arena_topo.topology import MeasuredRate
from arena_topo.training.step_time import (
    FITTED_OVERLAP,
    REPEAT,
    Workload,
    all_reduce_time,
    step_time,
)

FEWEST = 2
"""The fewest placements of a calibration."""

CONTRADICTION = 1.25
"""How much two measurements of one placement may differ: six times as much as repeated runs."""

_TWO = 2
_STEP = 1.08
_RATES = tuple(0.01 * _STEP**at for at in range(152))
"""The rates that are tried: 0.01 to 1,200 GB/s, or as shares."""

_FLOORS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
_HIDDEN = tuple(at / 10 for at in range(7))
"""The values of f and a that are tried: the ranges of `FITTED_OVERLAP`, small ones closer."""

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
    without any calibration. `workload` is that of the step.
    """

    where: str
    hosts: tuple[int, ...]
    estimate: Estimate
    workload: Workload | None = None
    seconds: float | None = None
    gbps: float | None = None

    @property
    def kind(self) -> Kind:
        """What it tells of."""
        return (Kind.INSIDE, Kind.TWO, Kind.MORE)[min(len(self.hosts), 3) - 1]

    @property
    def value(self) -> float:
        """The measured number: seconds, else GB/s."""
        number = self.seconds if self.seconds is not None else self.gbps
        assert number is not None, "a measured placement has a number"
        return number

    def rate(self, unit: float, *, each: bool) -> float:
        """GB/s of this placement by the rate of its kind, which is a share inside a host."""
        if self.kind is Kind.INSIDE:
            return unit * self.estimate.point
        return unit * min(self.hosts) if each else unit

    def reduced(self, unit: float, *, each: bool) -> float:
        """The number of its all-reduce at a rate of its kind: seconds, else GB/s."""
        gbps = self.rate(unit, each=each)
        if self.seconds is None or self.workload is None:
            return gbps
        return all_reduce_time(self.workload.gradient_bytes, self.estimate, gbps)

    def predicted(self, reduced: float, floor: float, hidden: float) -> float:
        """The number that would be measured, by that of its all-reduce."""
        if self.seconds is None or self.workload is None:
            return reduced
        return step_time(self.workload.step.value, reduced, floor, hidden)


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
        """The relative errors of the fit, as sizes, smallest first."""
        pairs = zip(self.reached, self.placements, strict=True)
        return sorted(abs(reached / one.value - 1) for reached, one in pairs)


@dataclass(slots=True)
class _Fit:
    """A floor and an overlap, with the loss of each rate by kind."""

    floor: float
    hidden: float
    losses: dict[Kind, list[float]] = field(default_factory=dict)

    @property
    def loss(self) -> float:
        return sum(map(min, self.losses.values()))

    @property
    def unusual(self) -> float:
        """How far it is from the middle of what trainings do."""
        floor, hidden = FITTED_OVERLAP.floor, FITTED_OVERLAP.hidden
        return math.hypot(
            (self.floor - (floor.low + floor.high) / 2) / (floor.high - floor.low),
            (self.hidden - (hidden.low + hidden.high) / 2) / (hidden.high - hidden.low),
        )


def calibrate(placements: Sequence[MeasuredPlacement]) -> Calibration:
    """The calibration of measured placements of one pool; UsageError for what cannot be fitted."""
    _check(placements)
    sizes = {
        kind: {min(one.hosts) for one in placements if one.kind is kind}
        for kind in (Kind.TWO, Kind.MORE)
    }
    shared = _fitted(placements, each=False)
    # Over TCP the GPUs of a node always share its network.
    tcp = any(one.estimate.regime is Regime.TCP for one in placements)
    if tcp or all(len(some) < _TWO for some in sizes.values()):
        return _calibration(placements, shared, each=False, told=tcp)
    own = _fitted(placements, each=True)
    losses = [min(fit.loss for fit in fits) for fits in (shared, own)]
    told = abs(losses[0] - losses[1]) > 2 * _variance(min(losses), len(placements))
    each = losses[1] < losses[0] and told
    return _calibration(placements, own if each else shared, each=each, told=told)


def _check(placements: Sequence[MeasuredPlacement]) -> None:
    if len({one.hosts for one in placements}) < FEWEST:
        raise UsageError(
            f"a calibration needs {FEWEST} placements of several GPUs, and has"
            f" {len({one.hosts for one in placements})}",
            hint="measure one more: on one node, on two, or on three and more",
        )
    for one, other in itertools.combinations(placements, 2):
        same = one.hosts == other.hosts and one.workload == other.workload
        apart = max(one.value, other.value) > CONTRADICTION * min(one.value, other.value)
        if same and apart and (one.seconds is None) == (other.seconds is None):
            raise UsageError(
                f"{one.where} and {other.where} contradict each other",
                why=f"the same placement gave {one.value:.3g} and {other.value:.3g}, and repeated"
                f" runs differ by {100 * (REPEAT - 1):.0f} %",
                hint="leave out the one that something else slowed down",
            )
    rates = {one.hosts: one.gbps for one in placements if one.gbps is not None}
    for one in placements:
        if one.seconds is None or one.workload is None:
            continue
        step, size = one.workload.step.value, one.workload.gradient_bytes
        if one.seconds * CONTRADICTION < step:
            raise UsageError(
                f"{one.where}: a step of {1e3 * one.seconds:.4g} ms on several GPUs is shorter than"
                f" that of {1e3 * step:.4g} ms on one",
                hint="is the batch of each GPU the same?",
            )
        rate = rates.get(one.hosts)
        reduce = all_reduce_time(size, one.estimate, rate) if rate else 0.0
        if one.seconds * CONTRADICTION < reduce:
            raise UsageError(
                f"{one.where}: a step of {1e3 * one.seconds:.4g} ms is shorter than its all-reduce,"
                f" {1e3 * reduce:.4g} ms at the measured {rate:.3g} GB/s",
                hint="are the bytes of the gradients right? mixed precision halves them",
            )


def _variance(loss: float, rows: int) -> float:
    """The variance of a measurement: that of repeated runs, or more where the fit is worse."""
    return max(math.log(REPEAT) ** 2, loss / rows)


def _fitted(placements: Sequence[MeasuredPlacement], *, each: bool) -> list[_Fit]:
    """All fits, one for each floor and overlap; a single one where no step was measured."""
    steps = any(one.seconds is not None for one in placements)
    reduced = {
        kind: [_reduced(placements, kind, unit, each=each) for unit in _RATES]
        for kind in dict.fromkeys(one.kind for one in placements)
    }
    fits = []
    for floor, hidden in itertools.product(_FLOORS, _HIDDEN) if steps else [(0.5, 0.3)]:
        fit = _Fit(floor, hidden)
        for kind, units in reduced.items():
            fit.losses[kind] = [_loss(some, fit) for some in units]
        fits.append(fit)
    return fits


_Reduced = list[tuple[MeasuredPlacement, float]]


def _reduced(
    placements: Sequence[MeasuredPlacement], kind: Kind, unit: float, *, each: bool
) -> _Reduced:
    return [(one, one.reduced(unit, each=each)) for one in placements if one.kind is kind]


def _loss(some: _Reduced, fit: _Fit) -> float:
    return sum(
        math.log(one.predicted(reduced, fit.floor, fit.hidden) / one.value) ** 2
        for one, reduced in some
    )


def _calibration(
    placements: Sequence[MeasuredPlacement], fits: Sequence[_Fit], *, each: bool, told: bool
) -> Calibration:
    best = min(fit.loss for fit in fits)
    slack = 2 * _variance(best, len(placements))
    near = [fit for fit in fits if fit.loss <= best + slack]
    chosen = min(near, key=lambda fit: fit.unusual)
    tried = {
        kind: _rate(placements, chosen, near, slack, kind, each=each) for kind in chosen.losses
    }
    rates = {kind: rate for kind, (rate, computed) in tried.items() if not computed}
    floors, hiddens = [fit.floor for fit in near], [fit.hidden for fit in near]
    steps = len(fits) > 1
    return Calibration(
        placements=tuple(placements),
        rates=rates,
        loose={kind: rate for kind, (rate, computed) in tried.items() if computed},
        each=each if told else None,
        floor=MeasuredRate(chosen.floor, min(floors), max(floors)) if steps else None,
        hidden=MeasuredRate(chosen.hidden, min(hiddens), max(hiddens)) if steps else None,
        reached=tuple(
            one.predicted(
                one.reduced(_unit(one, rates, each=each), each=each), chosen.floor, chosen.hidden
            )
            for one in placements
        ),
    )


def _unit(one: MeasuredPlacement, rates: Mapping[Kind, MeasuredRate], *, each: bool) -> float:
    """The fitted rate of a placement, else the computed one."""
    if one.kind in rates:
        return rates[one.kind].value
    return one.estimate.point / one.rate(1.0, each=each)


def _rate(
    placements: Sequence[MeasuredPlacement],
    chosen: _Fit,
    near: Sequence[_Fit],
    slack: float,
    kind: Kind,
    *,
    each: bool,
) -> tuple[MeasuredRate, bool]:
    """The rate of a kind in the chosen fit, its ends in all that are as good, if it is computed.

    It is where the measurements hardly limit it, and allow what is computed.
    """
    some = [one for one in placements if one.kind is kind]
    ends = [unit for fit in near for unit in _within(fit.losses[kind], slack)]
    own = list(_within(chosen.losses[kind], slack))
    middle = _RATES[min(range(len(_RATES)), key=chosen.losses[kind].__getitem__)]
    fine = [middle * _STEP ** (at / 16) for at in range(-16, 17)]
    value = min(fine, key=lambda unit: _loss(_reduced(placements, kind, unit, each=each), chosen))
    low, high = min(ends) / REPEAT, max(ends) * REPEAT
    computed = statistics.geometric_mean(_unit(one, {}, each=each) for one in some)
    loose = own[-1] > WIDE * own[0] and own[0] <= computed <= own[-1]
    value = computed if loose else value
    if own[-1] == _RATES[-1]:
        # There is no upper end: nothing limits these placements.
        value = max(computed, own[0])
        high = max(value, *(one.estimate.high / one.rate(1.0, each=each) for one in some))
    low, value, high = (float(f"{unit:.4g}") for unit in (min(low, value), value, max(high, value)))
    return MeasuredRate(value, low, high), loose


def _within(losses: Sequence[float], slack: float) -> Iterator[float]:
    least = min(losses)
    return (unit for unit, loss in zip(_RATES, losses, strict=True) if loss <= least + slack)


@dataclass(frozen=True, slots=True, kw_only=True)
class NextMeasurement:
    """The measurement that would tell most: of a kind, whose GB/s are only known to a range."""

    kind: Kind
    low: float
    high: float


def next_measurement(
    calibration: Calibration, computed: Mapping[Kind, Estimate]
) -> NextMeasurement | None:
    """What to measure next with nccl-tests; None where no kind is open.

    It is the kind whose bandwidth is least known. `computed` are the estimates of a placement of
    each kind without any calibration.
    """
    open_kinds = []
    for kind, estimate in computed.items():
        rate = {**calibration.rates, **calibration.loose}.get(kind)
        low, high = (estimate.low, estimate.high) if rate is None else rate[1:]
        if rate is not None and kind is Kind.INSIDE:
            low, high = low * estimate.point, high * estimate.point
        if high > low * CONTRADICTION:
            open_kinds.append(NextMeasurement(kind=kind, low=low, high=high))
    return max(open_kinds, key=lambda one: one.high / one.low, default=None)
