"""Measured placements of a pool, from files: CSV, output of nccl-tests, logs with a pattern.

    [PLACEMENT=]FILE      2x4=train.log, 4+4+2=train.log, steps.csv, all-reduce.log

A placement is nodes x GPUs of each, or the GPUs of each node. CSV has the columns `placement` and
`step_ms` or `gbps`; the row of a single GPU gives the step that all others are compared with.
"""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from arena_topo.bandwidth import Estimate
from arena_topo.errors import UsageError
from arena_topo.forecast.forecasting import log_text
from arena_topo.nccl.bandwidth_tables import BadTable, BandwidthTable, plateau_of_table, tables_in
from arena_topo.topology import Machine
from arena_topo.topology.models import MODELS, model_of
from arena_topo.training import Span, Workload
from arena_topo.training.calibration import MeasuredPlacement, check_repeated
from arena_topo.words import listed

MAX_PLACEMENTS = 64
"""The most placements of a calibration: two to eight tell all that one can."""

_PLACEMENT = re.compile(r"(?P<nodes>[1-9]\d{0,2})x(?P<gpus>[1-9]\d?)|[1-9]\d?(?:\+[1-9]\d?)*")
_NCCL = re.compile(r"NCCL version (\d+\.\d+\.\d+)|nccl-library=(\d{5,6})")
_FORM = "[PLACEMENT=]FILE, as in 2x4=train.log or 4+4+2=train.log"


class Measured(NamedTuple):
    """A measurement as it was read: GPUs of each host, and the seconds of a `step`, or GB/s.

    `models` are the known GPU models that it names, none if it does not tell.
    """

    where: str
    hosts: tuple[int, ...]
    value: float
    step: bool
    models: frozenset[str] = frozenset()


def read_measured(words: Sequence[str], pattern: str) -> tuple[list[Measured], set[str]]:
    """All measurements, and the versions of NCCL in the logs; UsageError for what is not one."""
    form = _form_of(pattern)
    measured: list[Measured] = []
    versions: set[str] = set()
    matched = 0
    for word in words:
        placement, _, file = word.partition("=")
        if not file or not _PLACEMENT.fullmatch(placement):
            placement, file = "", word
        text = log_text(file)
        versions |= {own or _dotted(int(number)) for own, number in _NCCL.findall(text)}
        hosts = _hosts(placement, file) if placement else None
        if tables := tables_in(text):
            measured += [_from_table(table, hosts, file) for table in tables]
        elif form is not None and hosts is not None:
            measured.append(_matched(text, form, hosts, file))
            matched += 1
        else:
            rows = [*_rows(text, file)]
            if hosts is not None:
                raise UsageError(
                    f"{file}: a CSV names its placements itself",
                    hint=f"--measured {file}",
                )
            measured += rows
    if form is not None and not matched:
        raise UsageError(
            "--pattern reads nothing: all measurements are CSV or output of nccl-tests",
            hint=f"leave it out, or name a log: --measured {_FORM}",
        )
    if len(measured) > MAX_PLACEMENTS:
        raise UsageError(
            f"{len(measured)} placements are measured; at most {MAX_PLACEMENTS} are read"
        )
    return measured, versions


def _dotted(number: int) -> str:
    """NCCL's version number 22105 as 2.21.5 (NCCL_VERSION in nccl.h)."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _hosts(text: str, where: str) -> tuple[int, ...]:
    match = _PLACEMENT.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"{where}: {text!r} is no placement",
            hint="write nodes x GPUs of each, 2x4, or the GPUs of each node, 4+4+2",
        )
    if match["nodes"]:
        return (int(match["gpus"]),) * int(match["nodes"])
    return tuple(sorted(map(int, match[0].split("+")), reverse=True))


def _form_of(pattern: str) -> re.Pattern[str] | None:
    """The form of the lines of a log with steps; None without a pattern."""
    if not pattern:
        return None
    example = r"one group has the milliseconds: --pattern 'step time: ([0-9.]+) ms'"
    try:
        form = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--pattern is no regular expression: {error}", hint=example) from error
    if form.groups != 1:
        raise UsageError(f"--pattern has {form.groups} groups, and needs one", hint=example)
    return form


def _matched(text: str, form: re.Pattern[str], hosts: tuple[int, ...], file: str) -> Measured:
    """The median of the steps that a pattern finds in a log."""
    steps = [_number(step, f"{file}: the pattern", "ms") for step in form.findall(text)]
    if not steps:
        raise UsageError(f"{file}: no line has the pattern {form.pattern!r}")
    return Measured(file, hosts, statistics.median(steps) / 1e3, step=True)


def _from_table(table: BandwidthTable, hosts: tuple[int, ...] | None, file: str) -> Measured:
    """The plateau of one run of nccl-tests."""
    try:
        gbps, _ = plateau_of_table(table)
    except BadTable as error:
        raise UsageError(f"{file}: {error}") from error
    counted = sorted(Counter(rank.host for rank in table.ranks).values(), reverse=True)
    # In JSON builds without MPI list a single device for any number of devices.
    if sum(counted) > 1 and hosts not in {None, tuple(counted)}:
        took, named = ("+".join(map(str, gpus)) for gpus in (counted, hosts or ()))
        raise UsageError(f"{file}: {took} GPUs took part, not {named}")
    if hosts is None and sum(counted) <= 1:
        raise UsageError(f"{file} does not say which GPUs took part", hint=f"name them: {_FORM}")
    models = frozenset(filter(None, (model_of(rank.product) for rank in table.ranks)))
    return Measured(file, hosts or tuple(counted), gbps, step=False, models=models & MODELS.keys())


def check_models(measured: Sequence[Measured], machine: Machine) -> None:
    """UsageError for a measurement on another GPU model than that of the machine, if known."""
    for row in measured:
        if machine.model and (others := row.models - {machine.model}):
            raise UsageError(
                f"{row.where} was measured on {listed(sorted(others))}, and {machine.name} has"
                f" {machine.model}",
                hint="name the machine of the measurement, or leave out the file",
            )


def _rows(text: str, file: str) -> Iterator[Measured]:
    """The rows of a CSV."""
    rows = csv.DictReader(io.StringIO(text))
    columns = set(rows.fieldnames or ())
    if "placement" not in columns or not columns & {"step_ms", "gbps"}:
        raise UsageError(
            f"{file}: this is no output of nccl-tests, and no CSV with the columns placement and"
            " step_ms or gbps",
            why=f"it begins with {text.partition(chr(10))[0][:60]!r}" if text else "it is empty",
            hint=f"for other logs: --pattern REGEX and --measured {_FORM}",
        )
    for row in rows:
        where = f"{file}, line {rows.line_num}"
        hosts = _hosts(row["placement"] or "", where)
        if not row.get("step_ms") and not row.get("gbps"):
            raise UsageError(f"{where}: there is neither step_ms nor gbps")
        if step := row.get("step_ms"):
            yield Measured(where, hosts, _number(step, where, "step_ms") / 1e3, step=True)
        if gbps := row.get("gbps"):
            if hosts == (1,):
                raise UsageError(f"{where}: a single GPU has no bandwidth", hint="leave gbps empty")
            yield Measured(where, hosts, _number(gbps, where, "gbps"), step=False)


def _number(text: str, where: str, name: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:  # noqa: PLR2004 - also refuses nan and inf
        raise UsageError(f"{where}: {name} is a number above 0, got {text[:40]!r}")
    return number


def placements_of(
    measured: Sequence[Measured],
    workload: Workload | None,
    estimate_of: Callable[[tuple[int, ...]], Estimate],
) -> list[MeasuredPlacement]:
    """The measurements with their computed bandwidths; UsageError for steps of no known training.

    `estimate_of` computes the bandwidth of GPUs of each host.
    """
    steps = [row for row in measured if row.step]
    if steps and workload is None:
        raise UsageError(
            f"{steps[0].where}: a step says nothing of the network without the bytes of its"
            " gradients",
            hint="name the training: --workload NAME, or --gradient-bytes 553MB --step-time 180ms",
        )
    solo = [row for row in steps if row.hosts == (1,)]
    check_repeated([(row.where, row.value) for row in solo])
    if workload is not None and solo:
        step = statistics.median(row.value for row in solo)
        workload = replace(workload, step=Span.exactly(step))
    return [
        MeasuredPlacement(
            where=row.where,
            hosts=row.hosts,
            estimate=estimate_of(row.hosts),
            value=row.value,
            workload=workload if row.step else None,
        )
        for row in measured
        if row.hosts != (1,)
    ]
