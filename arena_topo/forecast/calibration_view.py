"""A calibration for people, and how it was made for programs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from arena_topo import layout
from arena_topo.escaping import one_line
from arena_topo.manifests.estimates import gbps_text, range_text
from arena_topo.topology import MeasuredRate, PoolRates
from arena_topo.training.calibration import WIDE, Calibration, Kind, MeasuredPlacement
from arena_topo.training.wording import seconds_text

POOR = 0.2
"""The error of a fitted row from which the form does not describe it."""

Next = tuple[Kind, float, float] | None
"""The kind to measure next, and its GB/s so far."""


def calibration_text(fit: Calibration, pool: PoolRates, following: Next) -> str:
    """A calibration for people: rates, how well they fit, what is open, what to measure next."""
    sizes = sorted(map(abs, fit.errors))
    good = f"{100 * statistics.median(sizes):.0f} % median error, {100 * sizes[-1]:.0f} % at worst"
    facts = [
        *_facts(fit),
        ("Fit", f"{good}, {len(sizes)} placements"),
        *(("Not told", text) for text in _open(fit)),
        ("Measure next", _next(fit, following)),
    ]
    rows = [
        (_placement(row), _number(row, row.value), _number(row, reached), _error(error))
        for row, reached, error in zip(fit.placements, fit.reached, fit.errors, strict=True)
    ]
    table = layout.table(("PLACEMENT", "MEASURED", "FITTED", "ERROR"), rows)
    head = f"{pool.name}: {pool.gpus} x {pool.model or 'GPU'} per node, {pool}"
    lines = [one_line(head), "", *(f"  {label:22}{one_line(text)}" for label, text in facts), ""]
    return "\n".join([*lines, layout.align(table).rstrip(), ""])


def _facts(fit: Calibration) -> Iterator[tuple[str, str]]:
    for kind, rate in fit.rates.items():
        each = " for each GPU of a node" if fit.each else ""
        unit = " of what is computed" if kind is Kind.INSIDE else f" GB/s{each}"
        ends = range_text(rate.low, rate.high)
        yield kind.value.capitalize(), f"{gbps_text(rate.value)}{unit} ({ends})"
    if fit.floor is not None and fit.hidden is not None:
        floor, hidden = _share(fit.floor), _share(fit.hidden)
        yield "Overlap", f"waits for {floor} of an all-reduce, hides {hidden} of a step"


def _share(rate: MeasuredRate) -> str:
    return f"{rate.value:g} ({rate.low:g} to {rate.high:g})"


def _open(fit: Calibration) -> Iterator[str]:
    """What the measurements do not tell."""
    for kind in fit.loose:
        yield f"the bandwidth {_where(kind)}, which hardly limits these: it is computed"
    missing = [_where(kind) for kind in Kind if kind not in fit.rates and kind not in fit.loose]
    if missing:
        yield f"the bandwidth {' and '.join(missing)}: nothing was measured there"
    if fit.each is None:
        yield "whether the GPUs of a node share its NICs: taken as shared"
    if fit.floor is not None and fit.floor.high > WIDE * fit.floor.low:
        yield "a slow network from little overlap: steps fit both, nccl-tests tells"
    error, row = max((abs(error), row.where) for error, row in _pairs(fit))
    if error > POOR:
        yield f"why {row} differs: the other measurements do not explain it"


def _pairs(fit: Calibration) -> Iterator[tuple[float, MeasuredPlacement]]:
    return zip(fit.errors, fit.placements, strict=True)


def _where(kind: Kind) -> str:
    return kind.value if kind is Kind.INSIDE else f"among {kind.value}"


def _next(fit: Calibration, following: Next) -> str:
    """The measurement that tells most of what is open."""
    if following is not None:
        kind, low, high = following
        return f"all_reduce_perf {_where(kind)}, now known as {range_text(low, high)} GB/s"
    if fit.each is None:
        return "all_reduce_perf on nodes with one GPU each: it tells if GPUs share NICs"
    return "nothing is open; a second run of each placement shows how much they differ"


def _placement(row: MeasuredPlacement) -> str:
    if len(set(row.hosts)) == 1:
        return f"{len(row.hosts)}x{row.hosts[0]}"
    return "+".join(map(str, row.hosts))


def _number(row: MeasuredPlacement, value: float) -> str:
    return f"{gbps_text(value)} GB/s" if row.workload is None else seconds_text(value)


def _error(share: float) -> str:
    """An error in per cent, with a sign unless it rounds to nothing."""
    rounded = round(100 * share)
    return f"{rounded:+d} %" if rounded else "0 %"


def fit_json(fit: Calibration, following: Next) -> dict[str, object]:
    """How a calibration was made, as JSON: what was measured, how well it fits, what is open."""
    rows = [[_placement(row), _number(row, row.value), _error(error)] for error, row in _pairs(fit)]
    return {"placements": rows, "notTold": [*_open(fit)], "measureNext": _next(fit, following)}
