"""Readers of traces as they are published; the columns tell which one it is.

A row that is no job with GPUs and a duration is left out and counted. Times are numbers of seconds
or dates; a date without a zone counts as UTC.
"""

from __future__ import annotations

import csv
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import chain, islice
from typing import IO, Any, NamedTuple

import msgspec

from arena_topo.errors import UsageError, near
from arena_topo.files import STDIN, encoding, opened
from arena_topo.simulate.cases import (
    Trace,
    TraceJob,
)
from arena_topo.words import counted

MAX_TRACE_JOBS = 2_000_000
"""The most jobs of a trace, in memory at some 250 bytes each."""

MAX_LOG = 1 << 30
"""The most bytes of a job log of Philly: JSON is decoded as a whole, and takes as much memory."""

MAX_DURATION = 10 * 365 * 86400.0
"""The longest duration of a job that is believed, in seconds."""

MAX_JOB_GPUS = 1_000_000
"""The most GPUs of a job that are believed."""

Row = Mapping[str, str]


class RowLeftOut(Exception):
    """A row that is no job to replay; its text is the reason."""


class CsvLayout(NamedTuple):
    """A layout of CSV: the columns that it must have, and those that it may have."""

    required: tuple[str, ...]
    optional: tuple[str, ...]
    job: Callable[[Row], TraceJob]
    separator: str = ","


# Values of a row


def _number(row: Row, column: str) -> float:
    text = row[column].strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise RowLeftOut(f"{column} is no number" if text else f"{column} is missing")
    return value


def _whole(row: Row, column: str, least: int = 0) -> int:
    value = _number(row, column)
    if value != int(value) or value < least:
        raise RowLeftOut(f"{column} is not a whole number of at least {least}")
    return int(value)


def _moment(row: Row, column: str) -> float:
    """A number of seconds, or a date as Unix seconds."""
    text = row[column].strip()
    if _DATE.match(text) is None:
        return _number(row, column)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise RowLeftOut(f"{column} is no date") from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def _gpus(number: int) -> int:
    if number == 0:
        raise RowLeftOut("no GPUs")
    if number > MAX_JOB_GPUS:
        raise RowLeftOut(f"more than {MAX_JOB_GPUS:,} GPUs")
    return number


def _duration(seconds: float) -> float:
    if seconds <= 0:
        raise RowLeftOut("no duration" if seconds == 0 else "a negative duration")
    if seconds > MAX_DURATION:
        raise RowLeftOut("a duration of more than ten years")
    return seconds


# Layouts


def _own(row: Row) -> TraceJob:
    gpus = _gpus(_whole(row, "gpus"))
    each = _whole(row, "gpus_per_worker", 1) if row.get("gpus_per_worker") else 1
    if gpus % each:
        raise RowLeftOut("gpus is no multiple of gpus_per_worker")
    limit = _number(row, "running_timeout_s") if row.get("running_timeout_s") else None
    return TraceJob(
        name=row["job_id"],
        submitted=_moment(row, "submit_s"),
        duration=_duration(_number(row, "duration_s")),
        gpus=gpus,
        each=each,
        workload=row.get("workload", "").strip().lower(),
        priority=int(_number(row, "priority")) if row.get("priority") else 0,
        timeout=limit if limit is None or limit > 0 else None,
    )


def _tiresias(row: Row) -> TraceJob:
    return TraceJob(
        name=row["job_id"],
        submitted=_moment(row, "submit_time"),
        duration=_duration(_number(row, "duration")),
        gpus=_gpus(_whole(row, "num_gpu")),
        workload=row.get("model_name", "").strip().lower(),
    )


def _helios(row: Row) -> TraceJob:
    gpus = _gpus(_whole(row, "gpu_num"))
    return TraceJob(
        name=row["job_id"],
        submitted=_moment(row, "submit_time"),
        duration=_duration(_number(row, "duration")),
        gpus=gpus,
    )


def _openb(row: Row) -> TraceJob:
    gpus = _gpus(_whole(row, "num_gpu"))
    if _number(row, "gpu_milli") < _WHOLE_GPU:
        raise RowLeftOut("a part of a GPU")
    begun, ended = _moment(row, "creation_time"), _moment(row, "deletion_time")
    if row.get("scheduled_time"):
        begun = _moment(row, "scheduled_time")
    return TraceJob(
        name=row["name"],
        submitted=_moment(row, "creation_time"),
        duration=_duration(ended - begun),
        gpus=gpus,
        each=gpus,
    )


_WHOLE_GPU = 1000
"""Thousandths of a GPU."""


def _slurm(row: Row) -> TraceJob:
    if "." in row["JobID"]:
        raise RowLeftOut("a step of a job")
    gpus = _GRES.search(row["AllocTRES"])
    return TraceJob(
        name=row["JobID"],
        gpus=_gpus(int(gpus[1]) if gpus else 0),
        submitted=_moment(row, "Submit"),
        duration=_duration(_span(row["Elapsed"])),
    )


_GRES = re.compile(r"(?:^|,)gres/gpu=([0-9]{1,9})(?:,|$)")
_ELAPSED = re.compile(r"(?:([0-9]{1,6})-)?(?:([0-9]{1,6}):)?([0-9]{1,2}):([0-9]{1,2})")


def _span(text: str) -> float:
    match = _ELAPSED.fullmatch(text.strip())
    if match is None:
        raise RowLeftOut("Elapsed is no time span")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24.0 + hours) * 60 + minutes) * 60 + seconds


LAYOUTS: Mapping[str, CsvLayout] = {
    "arena-topo": CsvLayout(
        ("job_id", "submit_s", "duration_s", "gpus"),
        ("gpus_per_worker", "workload", "vc", "priority", "running_timeout_s"),
        _own,
    ),
    "Helios": CsvLayout(("job_id", "submit_time", "duration", "gpu_num"), (), _helios),
    "Tiresias": CsvLayout(
        ("job_id", "submit_time", "duration", "num_gpu"), ("model_name", "iterations"), _tiresias
    ),
    "openb": CsvLayout(
        ("name", "num_gpu", "gpu_milli", "creation_time", "deletion_time"),
        ("scheduled_time",),
        _openb,
    ),
    "Slurm": CsvLayout(("JobID", "Submit", "Elapsed", "AllocTRES"), (), _slurm, "|"),
}
"""The layouts of CSV. Acme's files are laid out as Helios'."""

COLUMNS_HINT = (
    "the columns of a trace are job_id,submit_s,duration_s,gpus; those of Helios, Acme, Tiresias,"
    " openb and of sacct -P are read as well, and the job log of Philly"
)


# Philly's job log


class _Detail(msgspec.Struct):
    gpus: list[str] = []


class _Attempt(msgspec.Struct):
    start_time: str | None = None
    end_time: str | None = None
    detail: list[_Detail] = []


class _PhillyJob(msgspec.Struct):
    jobid: str
    submitted_time: str | None = None
    attempts: list[_Attempt] = []


def _philly(job: _PhillyJob) -> TraceJob:
    """A job of Philly: the GPUs of its last attempt, and the time of all its attempts."""
    spans = []
    for attempt in job.attempts:
        times = {"start": attempt.start_time or "", "end": attempt.end_time or ""}
        if times["start"] not in {"", "None"} and times["end"] not in {"", "None"}:
            spans.append(_moment(times, "end") - _moment(times, "start"))
    if not spans:
        raise RowLeftOut("no attempt that has ended")
    return TraceJob(
        name=job.jobid,
        submitted=_moment({"submitted_time": job.submitted_time or ""}, "submitted_time"),
        duration=_duration(sum(spans)),
        gpus=_gpus(sum(len(detail.gpus) for detail in job.attempts[-1].detail)),
    )


# Reading


def read_trace(path: str) -> Trace:
    """The trace in a file, `-` being standard input; UsageError if it has no job to replay."""
    name = "standard input" if path == STDIN else path
    try:
        with opened(path) as file:
            return parse_trace(file, name)
    except OSError as error:
        raise UsageError(f"cannot read the trace {name}", why=error.strerror) from error


def parse_trace(file: IO[bytes], name: str) -> Trace:
    """The trace in bytes; UsageError, with `name`, if it has no job to replay."""
    first = file.readline(MAX_LINE)
    if first.lstrip()[:1] in {b"[", b"{"}:
        chunks = iter(lambda: file.read(MAX_LINE), b"")
        data = b"".join(chain([first], islice(chunks, MAX_LOG // MAX_LINE)))
        if file.read(1):
            raise UsageError(
                f"{name}: the job log has more than {MAX_LOG >> 30} GiB",
                why="JSON is decoded as a whole, in memory",
                hint=f"write it as CSV, which is read line by line: {COLUMNS_HINT}",
            )
        return _of_json(data, name)
    rest = iter(lambda: file.readline(MAX_LINE), b"")
    lines = _decoded(chain([first], rest), encoding(first), name)
    heading = next((line for line in lines if line.strip()), None)
    if heading is None:
        raise UsageError(f"{name}: the trace is empty", hint=COLUMNS_HINT)
    separator = "|" if "|" in heading else ","
    columns = [column.strip() for column in next(csv.reader([heading], delimiter=separator))]
    layout = layout_of(columns, name)
    needs = LAYOUTS[layout]
    width = len(columns)

    def rows() -> Iterator[Callable[[], TraceJob]]:
        for cells in csv.reader(lines, delimiter=separator):
            if not cells:
                continue
            if len(cells) < width - (separator == "|"):
                yield _refused
                continue
            row = dict(zip(columns, cells, strict=False))
            yield partial(needs.job, row)

    try:
        return _collected(rows(), name, layout, shaped="gpus_per_worker" in columns)
    except csv.Error as error:
        raise UsageError(f"{name}: this is no CSV", why=str(error), hint=COLUMNS_HINT) from error


MAX_LINE = 1 << 20
"""The longest line of a trace in bytes."""


def _refused() -> TraceJob:
    raise RowLeftOut("too few cells")


def _decoded(lines: Iterable[bytes], code: str, name: str) -> Iterator[str]:
    if code != "utf-8-sig":
        raise UsageError(f"{name}: the trace is not in UTF-8", hint="convert it with iconv")
    for number, line in enumerate(lines, 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            text = line.decode("utf-8", "replace")
        if "\0" in text:
            raise UsageError(f"{name}: line {number} is no text", hint=COLUMNS_HINT)
        yield text


def layout_of(columns: Sequence[str], name: str) -> str:
    """The layout with these columns; UsageError names the missing ones of the nearest layout."""
    known = {layout: set(needs.required) - {*columns} for layout, needs in LAYOUTS.items()}
    layout = min(known, key=lambda each: len(known[each]) / len(LAYOUTS[each].required))
    missing = [column for column in LAYOUTS[layout].required if column in known[layout]]
    if not missing:
        return layout
    alike = [
        f"{column} (is it {meant!r}?)" if (meant := _meant(column, columns)) else column
        for column in missing
    ]
    raise UsageError(
        f"{name}: the columns are those of no trace that is known",
        why=f"as a trace of {layout} it lacks {', '.join(alike)}; it has"
        f" {', '.join(columns[:_SHOWN])}{', ...' * (len(columns) > _SHOWN)}",
        hint=COLUMNS_HINT,
    )


_SHOWN = 12
"""The columns of an unknown trace that are shown."""


def _meant(column: str, columns: Sequence[str]) -> str | None:
    hint = near(column, columns)
    return next((each for each in columns if hint == f"did you mean {each}?"), None)


def _of_json(data: bytes, name: str) -> Trace:
    try:
        jobs = msgspec.json.decode(data, type=list[_PhillyJob])
    except msgspec.MsgspecError as error:
        raise UsageError(
            f"{name}: this JSON is no job log of Philly", why=str(error), hint=COLUMNS_HINT
        ) from error
    rows: Any = ((lambda job=job: _philly(job)) for job in jobs)
    return _collected(rows, name, "Philly")


def _collected(
    rows: Iterable[Callable[[], TraceJob]], name: str, layout: str, *, shaped: bool = False
) -> Trace:
    jobs: list[TraceJob] = []
    names: set[str] = set()
    left_out: Counter[str] = Counter()
    last, disordered = -math.inf, 0
    for read in rows:
        try:
            job = read()
        except RowLeftOut as reason:
            left_out[str(reason)] += 1
            continue
        if job.name in names:
            left_out["a job of the same id"] += 1
            continue
        names.add(job.name)
        disordered += job.submitted < last
        last = max(last, job.submitted)
        jobs.append(job)
        if len(jobs) > MAX_TRACE_JOBS:
            raise UsageError(
                f"{name}: the trace has more than {MAX_TRACE_JOBS:,} jobs",
                why="all jobs are kept in memory, to be sorted by their submission",
                hint="give a part of it: head -n 1000000",
            )
    if not jobs:
        reasons = "; ".join(f"{many} x {reason}" for reason, many in left_out.most_common())
        raise UsageError(
            f"{name}: the trace has no job to replay",
            why=f"left out: {reasons}" if reasons else None,
            hint=COLUMNS_HINT,
        )
    jobs.sort(key=lambda job: job.submitted)
    start = jobs[0].submitted
    return Trace(
        jobs=tuple(job._replace(submitted=job.submitted - start) for job in jobs),
        layout=layout,
        left_out=dict(left_out.most_common()),
        shaped=shaped or layout == "openb",
        disordered=disordered,
    )


def trace_text(trace: Trace) -> str:
    """What was read of a trace and what was left out, in one sentence."""
    text = f"{counted(len(trace.jobs), 'job')} of a trace of {trace.layout}"
    if trace.left_out:
        reasons = [f"{many} ({reason})" for reason, many in trace.left_out.items()]
        more = [f"and {len(reasons) - MOST_CAUSES} more reasons"] * (len(reasons) > MOST_CAUSES)
        text += f"; left out: {', '.join([*reasons[:MOST_CAUSES], *more])}"
    if trace.disordered:
        text += f"; {counted(trace.disordered, 'row')} out of order, sorted"
    return text


MOST_CAUSES = 5
"""The reasons for rows that were left out that a sentence names."""


# Generated traces

MIX: tuple[tuple[float, tuple[int, ...]], ...] = (
    (0.682, (1,)),
    (0.132, (2, 4)),
    (0.153, (8,)),
    (0.033, (16, 32)),
)
"""Shares of jobs by number of GPUs: 1, 2-4, 5-8 and more of Philly (Jeon et al., ATC 2019)."""

MEDIAN_DURATION, MEAN_DURATION = 874.0, 18_006.0
"""Seconds that the jobs of Philly run (summary by the authors of Acme, NSDI 2024)."""

LONGEST = 3 * 86400.0
"""Seconds at which a generated duration is cut: a mean over some thousand jobs is else that of the
few longest."""

MOST_GENERATED = 1_000_000
"""The most jobs of a generated trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """A trace to generate: so many jobs, submitted at random at a constant rate."""

    jobs: int

    @classmethod
    def parse(cls, text: str) -> Poisson:
        """Read `poisson:JOBS`; UsageError shows the form."""
        match = re.fullmatch(r"poisson:([0-9]{1,9})", text.strip())
        if match is None or not 0 < int(match[1]) <= MOST_GENERATED:
            raise UsageError(
                f"--generate {text}: expected poisson:JOBS with 1 to {MOST_GENERATED:,} jobs",
                hint="poisson:2000 generates 2,000 jobs",
            )
        return cls(jobs=int(match[1]))

    def trace(self, seed: int, largest: int) -> Trace:
        """The trace of a seed with jobs of at most `largest` GPUs, submitted at one per second.

        A load stretches the times.
        """
        rng = random.Random(f"trace {seed}")  # noqa: S311 - nothing is secret here
        sizes = [(share, [size for size in sizes if size <= largest]) for share, sizes in MIX]
        sizes = [(share, some) for share, some in sizes if some]
        spread = math.sqrt(2 * math.log(MEAN_DURATION / MEDIAN_DURATION))
        at, jobs = 0.0, []
        shares, classes = [share for share, _ in sizes], [some for _, some in sizes]
        for number in range(self.jobs):
            at += rng.expovariate(1.0) if number else 0.0
            gpus = rng.choice(rng.choices(classes, shares)[0])
            duration = min(LONGEST, rng.lognormvariate(math.log(MEDIAN_DURATION), spread))
            jobs.append(TraceJob(str(number), at, max(1.0, duration), gpus))
        return Trace(jobs=tuple(jobs), layout="jobs drawn at random")
