"""What placements mean for a training: a block of `plan`, a line of `submit`, and their JSON."""

from __future__ import annotations

from typing import Any

from arena_topo.escaping import one_line
from arena_topo.layout import align
from arena_topo.training.times import AS_PLANNED, PlacementTime, TrainingTimes
from arena_topo.training.wording import (
    HOW_OFTEN,
    ratio_json,
    ratio_text,
    seconds_text,
    span_json,
    workload_json,
    workload_text,
)

UNNAMED = "Training time: --workload NAME compares the steps of a training on these placements\n"
"""The line of a plan that does not say which training it is for."""


def training_block(times: TrainingTimes) -> str:
    """The times of a plan and of the placements beside it."""
    if times.workload is None:
        return f"Training time: {one_line(times.unknown)}\n"
    cells = [("", "ALL-REDUCE", "STEP")]
    for row in times.rows:
        step = "1.00x" if row.ratio is None else ratio_text(row.ratio)
        cells.append((row.name, f"{_all_reduce(row)}{'*' if row.guess else ''}", step))
    table = align("  " + "\t".join(row) for row in cells).splitlines()
    named = one_line(workload_text(times.workload, times.gpu, times.source))
    sure = any(row.ratio is not None and not row.ratio.guess for row in times.rows)
    lines = [f"Training of {named}", *(row.rstrip() for row in table)]
    return "\n".join([*lines, *([f"  {HOW_OFTEN}"] if sure else []), ""])


def training_line(times: TrainingTimes) -> str:
    """The times of a submitted job in one line, beside its pods spread over nodes."""
    if times.workload is None:
        return f"Training time: {one_line(times.unknown)}"
    ours, *others = times.rows
    beside = "".join(
        f"; {row.name} {_all_reduce(row)}, a step {ratio_text(row.ratio)}"
        for row in others
        if row.ratio is not None
    )
    name = one_line(times.workload.name)
    planned = f" {AS_PLANNED}" if ours.name == AS_PLANNED else ""
    return f"Training of {name}: all-reduce {_all_reduce(ours)}{planned}{beside}"


def _all_reduce(row: PlacementTime) -> str:
    return seconds_text(row.all_reduce.value, guess=row.guess)


def training_json(times: TrainingTimes | None) -> dict[str, Any] | None:
    """The times for JSON: milliseconds, and ratios to the step of the planned placement."""
    if times is None:
        return None
    if times.workload is None:
        return {"unknown": times.unknown, "placements": []}
    return {
        **workload_json(times.workload, times.gpu, times.source),
        "unknown": None,
        "placements": [
            {
                "name": row.name,
                "allReduceMs": span_json(row.all_reduce),
                "guess": row.guess,
                "stepRatio": None if row.ratio is None else ratio_json(row.ratio),
            }
            for row in times.rows
        ],
    }
