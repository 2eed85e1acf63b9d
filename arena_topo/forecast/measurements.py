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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from arena_topo.bandwidth import Estimate
from arena_topo.errors import UsageError
from arena_topo.files import STDIN, opened
from arena_topo.nccl.bandwidth_tables import BandwidthTable, Unfit, plateau_of_table, tables_in
from arena_topo.training import Span, Workload
from arena_topo.training.calibration import MeasuredPlacement

MAX_BYTES = 50_000_000
"""The size limit of a file in bytes."""

MAX_PLACEMENTS = 64
"""The most placements of a calibration: two to eight tell all that one can."""

MAX_HOSTS = 1_000

_PLACEMENT = re.compile(r"(?P<nodes>[1-9]\d{0,3})x(?P<gpus>[1-9]\d?)|[1-9]\d?(?:\+[1-9]\d?)*")
_NCCL = re.compile(r"NCCL version (\d+\.\d+\.\d+)|nccl-library=(\d{5,6})")
_FORM = "[PLACEMENT=]FILE, as in 2x4=train.log or 4+4+2=train.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A measurement as it was read: GPUs of each host, and the seconds of a step, or GB/s."""

    where: str
    hosts: tuple[int, ...]
    seconds: float | None = None
    gbps: float | None = None


def read_measured(words: tuple[str, ...], pattern: str) -> tuple[list[Measured], set[str]]:
    """All measurements, and the versions of NCCL in the logs; UsageError for what is not one."""
    found: list[Measured] = []
    versions: set[str] = set()
    for word in words:
        placement, equals, file = word.partition("=")
        if not equals or not _PLACEMENT.fullmatch(placement):
            placement, file = "", word
        shown = "standard input" if file == STDIN else file
        text = _text(file, shown)
        versions |= {own or _dotted(int(number)) for own, number in _NCCL.findall(text)}
        hosts = _hosts(placement, shown) if placement else None
        if pattern and hosts is not None and not tables_in(text):
            found.append(_matched(text, pattern, hosts, shown))
        elif tables := tables_in(text):
            found += [_from_table(table, hosts, shown) for table in tables]
        else:
            found += _rows(text, shown)
    if len(found) > MAX_PLACEMENTS:
        raise UsageError(f"{len(found)} placements are measured; at most {MAX_PLACEMENTS} are read")
    return found, versions


def _dotted(number: int) -> str:
    """NCCL's version number 22105 as 2.21.5 (NCCL_VERSION in nccl.h)."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _text(file: str, shown: str) -> str:
    try:
        with opened(file) as source:
            data = source.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"cannot read {shown}", why=error.strerror, hint=f"--measured {_FORM}"
        ) from error
    if len(data) > MAX_BYTES:
        raise UsageError(f"{shown} has more than {MAX_BYTES // 1_000_000} MB")
    return data.decode(errors="replace")


def _hosts(text: str, where: str) -> tuple[int, ...]:
    match = _PLACEMENT.fullmatch(text.strip())
    if match is None or int(match["nodes"] or 1) > MAX_HOSTS:
        raise UsageError(
            f"{where}: {text!r} is no placement",
            hint="write nodes x GPUs of each, 2x4, or the GPUs of each node, 4+4+2",
        )
    if match["nodes"]:
        return (int(match["gpus"]),) * int(match["nodes"])
    return tuple(sorted(map(int, match[0].split("+")), reverse=True))


def _matched(text: str, pattern: str, hosts: tuple[int, ...], shown: str) -> Measured:
    """The median of the steps that a pattern finds in a log."""
    try:
        form = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--pattern is no regular expression: {error}") from error
    if form.groups != 1:
        raise UsageError(
            f"--pattern has {form.groups} groups, and needs one: the milliseconds of a step",
            hint=r"--pattern 'step time: ([0-9.]+) ms'",
        )
    steps = [_number(step, f"{shown}: the pattern", "ms") for step in form.findall(text)]
    if not steps:
        raise UsageError(f"{shown}: no line has the pattern {pattern!r}")
    return Measured(where=shown, hosts=hosts, seconds=statistics.median(steps) / 1e3)


def _from_table(table: BandwidthTable, hosts: tuple[int, ...] | None, shown: str) -> Measured:
    """The plateau of one run of nccl-tests."""
    try:
        gbps, _size = plateau_of_table(table)
    except Unfit as error:
        raise UsageError(f"{shown}: {error}") from error
    ranks = table.ranks
    counted = tuple(sorted(Counter(rank.host for rank in ranks).values(), reverse=True))
    if hosts is not None and len(ranks) > 1 and counted != hosts:
        took, said = ("+".join(map(str, some)) for some in (counted, hosts))
        raise UsageError(f"{shown}: {took} GPUs took part, not {said}")
    if hosts is None and len(ranks) <= 1:
        raise UsageError(
            f"{shown}: it does not say which GPUs took part", hint=f"name them: {_FORM}"
        )
    return Measured(where=shown, hosts=hosts or counted, gbps=gbps)


def _rows(text: str, shown: str) -> Iterator[Measured]:
    """The rows of a CSV."""
    rows = csv.DictReader(io.StringIO(text))
    columns = set(rows.fieldnames or ())
    if "placement" not in columns or not columns & {"step_ms", "gbps"}:
        raise UsageError(
            f"{shown}: this is no output of nccl-tests, and no CSV with the columns placement and"
            " step_ms or gbps",
            why=f"its first line is {text.splitlines()[0][:60]!r}"
            if text.strip()
            else "it is empty",
            hint=f"for other logs: --pattern REGEX and --measured {_FORM}",
        )
    for row in rows:
        where = f"{shown}, line {rows.line_num}"
        hosts = _hosts(row["placement"] or "", where)
        step, gbps = row.get("step_ms") or "", row.get("gbps") or ""
        if not step and not gbps:
            raise UsageError(f"{where}: there is neither step_ms nor gbps")
        if step:
            yield Measured(where=where, hosts=hosts, seconds=_number(step, where, "step_ms") / 1e3)
        if gbps and sum(hosts) > 1:
            yield Measured(where=where, hosts=hosts, gbps=_number(gbps, where, "gbps"))


def _number(text: str, where: str, name: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:  # noqa: PLR2004 - also refuses nan and inf
        raise UsageError(f"{where}: {name} is a number above 0, got {text[:40]!r}")
    return number


def placements_of(
    found: list[Measured], workload: Workload | None, estimate_of: Callable[..., Estimate]
) -> list[MeasuredPlacement]:
    """The measurements beside their computed bandwidths; UsageError for steps of nothing known.

    `estimate_of` computes the bandwidth of GPUs of each host.
    """
    solo = [one for one in found if sum(one.hosts) == 1]
    steps = [one for one in found if one.seconds is not None and sum(one.hosts) > 1]
    if steps and workload is None:
        raise UsageError(
            f"{steps[0].where}: a step says nothing of the network without the bytes of its"
            " gradients",
            hint="name the training: --workload NAME, or --gradient-bytes 553MB --step-time 180ms",
        )
    if workload is not None and solo:
        own = statistics.median(one.seconds for one in solo if one.seconds is not None)
        workload = replace(workload, step=Span.exactly(own))
    return [
        MeasuredPlacement(
            where=one.where,
            hosts=one.hosts,
            estimate=estimate_of(one.hosts),
            workload=workload if one.seconds is not None else None,
            seconds=one.seconds,
            gbps=one.gbps,
        )
        for one in found
        if sum(one.hosts) > 1
    ]
