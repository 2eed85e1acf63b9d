"""A calibration for people, and how it was made for programs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator

from arena_topo import layout
from arena_topo.escaping import one_line
from arena_topo.manifests.estimates import gbps_text
from arena_topo.topology import MeasuredRate, PoolRates
from arena_topo.training.calibration import (
    Calibration,
    Kind,
    MeasuredPlacement,
    NextMeasurement,
)
from arena_topo.training.wording import seconds_text

POOR = 0.2
"""The error of a fitted row from which the form does not describe it."""


def calibration_text(fit: Calibration, pool: PoolRates, following: NextMeasurement | None) -> str:
    """A calibration for people: rates, how well they fit, what is open, what to measure next."""
    errors = fit.errors
    fitted = f"{100 * statistics.median(errors):.0f} % median error, {100 * errors[-1]:.0f} %"
    fitted += f" at worst, {len(errors)} placements"
    rows = [
        (
            _placement(one),
            _number(one, one.value),
            _number(one, reached),
            f"{100 * (reached / one.value - 1):+.0f} %",
        )
        for one, reached in zip(fit.placements, fit.reached, strict=True)
    ]
    table = layout.align(layout.table(("PLACEMENT", "MEASURED", "FITTED", "ERROR"), rows))
    lines = [
        f"{pool.name}: {pool.gpus} x {pool.model or 'GPU'} per node, {pool}",
        "",
        *(f"  {label:22}{text}" for label, text in _facts(fit)),
        f"  {'Fit':22}{fitted}",
        *(f"  {'Not told':22}{text}" for text in _open(fit)),
        f"  {'Measure next':22}{_next(fit, following)}",
        "",
        table.rstrip(),
    ]
    return "\n".join([*map(one_line, lines[:1]), *lines[1:], ""])


def _facts(fit: Calibration) -> Iterator[tuple[str, str]]:
    for kind, rate in fit.rates.items():
        label = kind.value.capitalize()
        if kind is Kind.INSIDE:
            yield label, f"{rate.value:.2f} of what is computed ({_ends(rate, 2)})"
        else:
            each = " for each GPU of a node" if fit.each else ""
            ends = f"{gbps_text(rate.low)} to {gbps_text(rate.high)}"
            yield label, f"{gbps_text(rate.value)} GB/s{each} ({ends})"
    if fit.floor is not None and fit.hidden is not None:
        yield (
            "Overlap",
            (
                f"a step waits for at least {fit.floor.value:.1f} of its all-reduce"
                f" ({_ends(fit.floor, 1)}), and hides {fit.hidden.value:.1f} of its computing"
                f" ({_ends(fit.hidden, 1)})"
            ),
        )


def _ends(rate: MeasuredRate, digits: int) -> str:
    return f"{rate.low:.{digits}f} to {rate.high:.{digits}f}"


def _open(fit: Calibration) -> Iterator[str]:
    """What the measurements do not tell."""
    for kind in fit.loose:
        yield f"the bandwidth {_where(kind)}: it hardly limits what was measured, so it is computed"
    missing = [_where(kind) for kind in Kind if kind not in fit.rates and kind not in fit.loose]
    if missing:
        yield f"the bandwidth {' and '.join(missing)}: nothing was measured there"
    if fit.each is None:
        yield "whether the GPUs of a node share its NICs: taken as shared"
    steps = fit.floor is not None and fit.hidden is not None
    if steps and fit.floor.high - fit.floor.low >= 0.5:  # type: ignore[union-attr]  # noqa: PLR2004
        yield "a slow network from little overlap: steps alone fit both, nccl-tests would tell"
    if fit.errors[-1] > POOR:
        worst = max(
            zip(fit.placements, fit.reached, strict=True),
            key=lambda pair: abs(pair[1] / pair[0].value - 1),
        )[0]
        yield f"why {worst.where} ({_placement(worst)}) differs: the others do not explain it"


def _where(kind: Kind) -> str:
    return kind.value if kind is Kind.INSIDE else f"among {kind.value}"


def _next(fit: Calibration, following: NextMeasurement | None) -> str:
    """The measurement that tells most of what is open."""
    if following is None and fit.each is None:
        return "all_reduce_perf on nodes with one GPU each: it tells if GPUs share NICs"
    if following is None:
        return "nothing is open; a second run of each placement shows how much they differ"
    between = f"{gbps_text(following.low)} to {gbps_text(following.high)} GB/s"
    return f"all_reduce_perf {_on(following.kind)}, now known as {between}"


def _on(kind: Kind) -> str:
    return {Kind.INSIDE: "on one node", Kind.TWO: "on two nodes", Kind.MORE: "on three nodes"}[kind]


def _placement(one: MeasuredPlacement) -> str:
    if len(set(one.hosts)) == 1:
        return f"{len(one.hosts)}x{one.hosts[0]}"
    return "+".join(map(str, one.hosts))


def _number(one: MeasuredPlacement, value: float) -> str:
    return f"{gbps_text(value)} GB/s" if one.seconds is None else seconds_text(value)


def fit_json(fit: Calibration, following: NextMeasurement | None) -> str:
    """How a calibration was made, as JSON: measured and fitted numbers, and what is open."""
    value = {
        "placements": [
            {
                "placement": _placement(one),
                "from": one.where,
                "unit": "GB/s" if one.seconds is None else "s",
                "measured": float(f"{one.value:.4g}"),
                "fitted": float(f"{reached:.4g}"),
            }
            for one, reached in zip(fit.placements, fit.reached, strict=True)
        ],
        "notTold": list(_open(fit)),
        "measureNext": _next(fit, following),
    }
    return json.dumps(value, separators=(",", ":"))
