"""`logs --nccl`: NCCL's own lines in the logs of a job, or in files, beside the plan."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from arena_topo import layout
from arena_topo.cli.console import Console
from arena_topo.cli.options import PROGRAM
from arena_topo.engines import JobStatus, slots_of
from arena_topo.engines.backend import Backend
from arena_topo.errors import ArenaError, UsageError
from arena_topo.files import STDIN, opened
from arena_topo.joblogs import follow
from arena_topo.joblogs.log_request import End, LogRequest, NoLogYet
from arena_topo.joblogs.notices import LogNote
from arena_topo.nccl import NcclReport, view
from arena_topo.nccl.bandwidth_tables import BandwidthTable, TableReader, measured_on
from arena_topo.nccl.comparison import Planned, measured_sets, recorded_plan
from arena_topo.nccl.findings import NcclComparison, compare_with_plan, ranks_text
from arena_topo.nccl.line_parser import NcclReader

_PIECE = 65_536
"""Bytes of a line in a file that are read at once; NCCL's lines are far shorter."""

_SETTLED = 1.0
"""Seconds without a new line of NCCL after which its connections count as complete. Since 2.22
ranks connect at the first use, after "Init COMPLETE" (src/init.cc, runtimeConn)."""

_PATIENCE = 10.0
"""Seconds without a new line after which the result is shown although one of several communicators
has begun and is incomplete: a hang is shown, not waited for."""


def of_files(console: Console, names: Sequence[str], *, as_json: bool) -> None:
    """Show the lines of NCCL in files, `-` being standard input, without a plan."""
    reader = NcclReader()
    for name in names:
        speaker = Path(name).stem if len(names) > 1 else ""
        try:
            with opened(name) as file:
                while line := file.readline(_PIECE):
                    reader.feed(line.decode(errors="replace"), speaker, ends=line.endswith(b"\n"))
        except OSError as error:
            raise UsageError(
                f"cannot read {'standard input' if name == STDIN else name}",
                why=error.strerror,
                hint="--from takes the path of a file, or -",
            ) from error
    report = reader.report()
    first = "standard input" if names[0] == STDIN else names[0]
    hint = "run it with NCCL_DEBUG=INFO: mpirun -x NCCL_DEBUG=INFO"
    _require_lines(report, first if len(names) == 1 else "these files", hint)
    _show(
        console,
        compare_with_plan(report, None),
        as_json=as_json,
        unplanned="files belong to no job",
    )


class WaitDisplay(Protocol):
    """The display of what the command waits for."""

    def see(self, waiting: NoLogYet | None, /) -> None:
        """The present reason to wait; None: no wait."""

    def now(self, what: str, /) -> None:
        """The present reason to wait, for terminals only."""

    def show(self) -> None:
        """Draw the reason on a terminal, while no other output is written."""

    def hide(self) -> None:
        """Erase the reason from the terminal before other output."""


def show_nccl_of_job(
    console: Console,
    backend: Backend,
    name: str,
    namespace: str,
    request: LogRequest,
    *,
    known: list[JobStatus],
    waits: WaitDisplay,
    as_json: bool,
    table: bool = False,
) -> JobStatus | None:
    """Show NCCL's lines in the logs of a job; the job if it is over, else None.

    `known` gets the job's last status. A followed log is shown as soon as all ranks are connected.
    With `table` the results of nccl-tests are shown instead, at the end of the job.
    """

    def store(status: JobStatus) -> None:
        known[:] = [status]

    def output(note: LogNote) -> None:
        waits.hide()
        # Only problems are shown, not the pods that come and go.
        if note.warns or note.turn is None:
            (console.warn if note.warns else console.event)(note.text)

    all_pods = request.instance is None and request.only is None
    request = replace(request, all_pods=request.all_pods or all_pods, fold=False)
    lines = follow.RequestedLines(
        backend, name, namespace, request, tell=output, seen=store, waits=waits.see
    )
    reader, tests = NcclReader(), TableReader()
    batches: Any = iter(lines)
    progress = _Progress(reader) if request.options.follow and not table else None
    # Streams left before their end are closed here, not by the garbage collector.
    with closing(batches):
        for batch in batches:
            if not batch:
                waits.show()
            for entry in batch:
                line = entry.line
                text = entry.text.decode(errors="replace")
                reader.feed(text, line.source.pod, ends=line.fed)
                tests.feed(text, line.source.pod)
            if progress is not None:
                if progress.connected():
                    break
                waits.now(progress.left)
    waits.hide()
    status = lines.status or (known[0] if known else None)
    report = reader.report()
    if not table:
        # The hint: how to enable NCCL's lines, and, while the job lives, how to wait for them.
        wait = f"; {PROGRAM} logs -f {name} -n {namespace} --nccl waits for it"
        hint = "submit with --nccl-debug"
        living = status is not None and not status.phase.over
        _require_lines(report, f"the logs of {name}", hint + (wait if living else ""))
    planned, unplanned = _plan_of(backend, status)
    comparison = compare_with_plan(report, planned)
    if table:
        when = measured_on(datetime.fromtimestamp(console.clock(), UTC).date(), report.versions)
        _show_table(console, tests.tables(), comparison, when=when, as_json=as_json)
        return None
    _show(console, comparison, as_json=as_json, unplanned=unplanned, job=name, namespace=namespace)
    return lines.status if lines.end is End.JOB else None


def _plan_of(backend: Backend, status: JobStatus | None) -> tuple[Planned | None, str]:
    """The recorded placement of a job, and the reason if there is none."""
    if status is None:
        return None, "the job no longer exists"
    unplanned = "it was not placed by topology (submit with --gputopology)"
    if status.forecast is None:
        return None, unplanned
    cluster = None
    # Without the links of the machines the comparison is smaller.
    with suppress(ArenaError):
        cluster = backend.cluster()
    return recorded_plan(status, slots_of(status.forecast, status), cluster), unplanned


class _Progress:
    """Whether NCCL has connected; polled in pauses without new lines."""

    def __init__(self, reader: NcclReader) -> None:
        self._reader = reader
        self._changed = time.monotonic()
        self._lines = 0
        self._wait = _SETTLED
        self.left = ""
        """What is missing, in a few words; empty before the first line of NCCL."""

    def connected(self) -> bool:
        """Whether all ranks are connected, and no line has come for a while."""
        now = time.monotonic()
        if self._reader.lines != self._lines:
            self._lines, self._changed, self._wait = self._reader.lines, now, _SETTLED
        if not self._lines or now - self._changed < self._wait:
            return False
        report = self._reader.report()
        main = report.largest
        absent = () if main is None else (*main.missing, *main.incomplete)
        self.left = f"waits: NCCL connects {ranks_text(absent) if absent else 'the ranks'}"
        joined = report.unplaced or any(group.connections for group in report.communicators)
        # A communicator of a single rank has no connections.
        if main is None or absent or not (joined or main.size == 1):
            self._wait = float("inf")
            return False
        begun = any(group.incomplete for group in report.communicators if group.size is not None)
        self._wait = _PATIENCE if begun else _SETTLED
        return now - self._changed >= self._wait


def _require_lines(report: NcclReport, where: str, hint: str) -> None:
    if report.silent:
        why = "NCCL tells what it does only with NCCL_DEBUG=INFO, and only once ranks have begun"
        raise ArenaError(f"no line of NCCL in {where}", why=why, hint=hint)


def _show_table(
    console: Console,
    tests: Sequence[BandwidthTable],
    comparison: NcclComparison,
    *,
    when: str,
    as_json: bool,
) -> None:
    planned = comparison.observed.planned
    if planned is None:
        raise ArenaError(
            "it is not known which GPUs were measured",
            why="the job was not placed by topology, or is gone",
            hint="measure it in a job that is submitted with --gputopology",
        )
    result = measured_sets(tests, comparison.observed, planned)
    rates = {",".join(map(str, gpus)): layout.number(rate) for gpus, rate in result.table.items()}
    if as_json:
        value = {
            "node": result.node,
            "busBandwidth": rates,
            "bytes": result.size,
            "measured": when,
        }
        console.write(layout.go_json(value) + "\n")
    else:
        console.write(json.dumps(rates) + "\n")
    console.info(
        f"Measured on node {result.node} with an all-reduce of {result.size:,} bytes. Publish it:"
        f" {PROGRAM} topology publish {result.node} --bus-bandwidth FILE",
        whole=True,
    )


def _show(
    console: Console,
    result: NcclComparison,
    *,
    as_json: bool,
    unplanned: str,
    job: str = "",
    namespace: str = "",
) -> None:
    if as_json:
        console.write(
            layout.go_json(view.comparison_json(result, job=job, namespace=namespace)) + "\n"
        )
    else:
        console.screen(
            view.comparison_text(
                result, width=console.width, unicode=console.unicode(), unplanned=unplanned
            )
        )
