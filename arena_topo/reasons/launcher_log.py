"""The end of a launcher's log: which rank ended the job, and the last lines of the program.

Reports are recognised as Open MPI 4 and 5 (help-prun.txt, help-mpi-api.txt), MPICH and Intel MPI
(hydra, pmip_cb.c) and torchrun (torch/distributed/elastic/multiprocessing/errors) write them.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from arena_topo.engines import Phase, slots_of
from arena_topo.engines.lines import LogOptions, read_to_end
from arena_topo.errors import AccessDenied, ArenaError

if TYPE_CHECKING:
    from arena_topo.engines import JobStatus
    from arena_topo.engines.backend import Backend

MAX_TAIL_LINES = 40
"""Lines that are read: the report of an MPI has up to 15, a short traceback as many."""

MAX_SHOWN_LINES = 10
"""Lines of the program that are shown."""

START = 4000
"""Lines from the beginning in which ranks are sought: with NCCL_DEBUG=INFO a rank writes some 100
before it is ready."""

MAX_TAIL_BYTES = 256 * 1024
"""Bytes that are read: a progress bar may be one line of any length."""


class FailedRank(msgspec.Struct, frozen=True, kw_only=True):
    """The first rank that failed, as its MPI reports it.

    `host` is the name of its worker for the launcher. At most one of `signal` (the number) and
    `exit_code` is known; `aborted`: the rank called MPI_Abort with that code.
    """

    rank: int | None = None
    host: str | None = None
    signal: int | None = None
    exit_code: int | None = None
    aborted: bool = False


class LauncherLog(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a launcher's log; `written` is the time of its last line, Unix seconds."""

    pod: str
    text: str
    written: float | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        """The last lines of the program, without blank lines and the report of its MPI."""
        lines = list(_of_program(self.text))
        # A rule at the end is the beginning of a truncated report.
        while lines and _RULE.fullmatch(lines[-1]):
            lines.pop()
        return tuple(lines[-MAX_SHOWN_LINES:])


_GLANCE = 1.0
"""Seconds for the log of a job that runs: it adds little, and its kubelet may not answer."""


def _patience(status: JobStatus) -> float:
    return _GLANCE if status.phase is Phase.RUNNING else math.inf


def read_start(backend: Backend, status: JobStatus) -> list[bytes]:
    """The first lines of the launcher's log; empty without a log, or if it may not be read."""
    chief = status.chief
    if chief is None or chief.pending:
        return []
    lines: list[bytes] = []
    size = 0
    options = LogOptions(unfinished=True)
    with suppress(ArenaError):
        of_launcher = backend.follow(status, options, lambda source: source.pod == chief.name)
        for line in read_to_end(of_launcher, within=_patience(status)):
            lines.append(line.text)
            size += len(line.text)
            if len(lines) == START or size > MAX_TAIL_BYTES:
                break
    return lines


def read_log_end(backend: Backend, status: JobStatus) -> LauncherLog | None:
    """The end of the launcher's log; None without a log, or if a running job's log is slow to come.

    AccessDenied if it may not be read.
    """
    chief = status.chief
    if chief is None or chief.pending:
        return None
    options = LogOptions(tail=MAX_TAIL_LINES, unfinished=True)
    data, written = bytearray(), 0
    try:
        of_launcher = backend.follow(status, options, lambda source: source.pod == chief.name)
        for line in read_to_end(of_launcher, within=_patience(status)):
            written = line.at or written
            data += line.text + b"\n" * line.fed
            del data[:-MAX_TAIL_BYTES]
    except AccessDenied:
        raise
    except ArenaError:
        # A container that never started has no log.
        return None
    # Of a progress bar only what is shown last.
    rows = data.decode("utf-8", "replace").split("\n")
    text = "\n".join(row.rstrip("\r").rpartition("\r")[2] for row in rows)
    return LauncherLog(pod=chief.name, text=text, written=written / 1e9 if written else None)


_ABORTS = (
    re.compile(
        r"MPI_ABORT was invoked on rank (?P<rank>\d{1,10})[^=]{0,200}?"
        r"[Ee]rror ?code:?\s+(?P<code>-?\d{1,10})\b"
    ),
    re.compile(r"Abort\((?P<code>-?\d{1,10})\) on node \d+ \(rank (?P<rank>\d{1,10}) in comm"),
)
_ENDS = (
    re.compile(
        r"process\s+rank\s+(?P<rank>\d{1,10})\s+with\s+PID\s+\d+\s+on\s+node\s+(?P<host>\S{1,253})"
        r"\s+exited\s+on\s+signal\s+(?P<signal>\d{1,10})\b"
    ),
    re.compile(
        r"RANK (?P<rank>\d{1,10}) PID \d+ RUNNING AT (?P<host>\S{1,253})\s+=\s+"
        r"KILLED BY SIGNAL: (?P<signal>\d{1,10})\b"
    ),
    # torchrun runs below mpirun, and its report has more about the rank.
    re.compile(
        r"host\s+: (?P<host>\S{1,253})\s+rank\s+: (?P<rank>\d{1,10}) \(local_rank: \d+\)"
        r"\s+exitcode\s+: (?P<code>-?\d{1,10})\b"
    ),
    re.compile(r"Process name:\s+\[\S*,(?P<rank>\d{1,10})\]\s+Exit code:\s+(?P<code>-?\d{1,10})\b"),
    re.compile(
        r"PID \d+ RUNNING AT (?P<host>\S{1,253})\s+=\s+EXIT (?:CODE|STATUS): (?P<code>\d{1,10})\b"
        r"(?:[^\0]{0,2000}?EXIT STRING: .*\(signal (?P<signal>\d{1,10})\))?"
    ),
)

_SHELL_SIGNAL = 128
"""What a shell adds to the number of the signal that killed its child (POSIX, 2.8.2)."""


def failed_rank(text: str) -> FailedRank | None:
    """The first rank that failed, from the end of a log; None without a report."""
    for pattern in (*_ABORTS, *_ENDS):
        if match := pattern.search(text):
            parts = match.groupdict()
            code, number = parts.get("code"), parts.get("signal")
            aborted = pattern in _ABORTS
            if number is None and code is not None and not aborted:
                number = _signal(int(code))
            return FailedRank(
                rank=int(parts["rank"]) if "rank" in parts else None,
                host=parts.get("host"),
                signal=None if number is None else int(number),
                exit_code=int(code) if code is not None and number is None else None,
                aborted=aborted,
            )
    return None


def _signal(code: int) -> int | None:
    """The signal behind an exit code: -N (Python) or 128 + N (shells)."""
    number = -code if code < 0 else code - _SHELL_SIGNAL
    return number if number in set(signal.Signals) else None


def sentence(failed_rank: FailedRank, status: JobStatus) -> str:
    """Which rank ended how, and where: `rank 3 (demo-worker-1 on node a) was ended by signal 9`."""
    slots = max((instance.gpus for instance in status.instances), default=0) or 1
    if status.forecast is not None and status.forecast.workers:
        slots = slots_of(status.forecast, status)
    worker = None if failed_rank.rank is None else failed_rank.rank // slots
    if failed_rank.host is not None:
        # A rank file or mapping may place a rank on another worker than its number suggests.
        named = [
            instance.worker
            for instance in status.instances
            if instance.name == failed_rank.host.split(".")[0]
        ]
        worker = named[0] if named else None
    rank = worker if failed_rank.rank is None and slots == 1 else failed_rank.rank
    who = "a rank" if rank is None else f"rank {rank}"
    pods = {
        instance.worker: instance for instance in status.instances if instance.worker is not None
    }
    pod = None if worker is None else pods.get(worker)
    where = failed_rank.host if pod is None else pod.name + (f" on {pod.node}" if pod.node else "")
    return f"{who}{f' ({where})' if where else ''} {_how(failed_rank)}"


def _how(failed_rank: FailedRank) -> str:
    if failed_rank.aborted:
        return f"called MPI_Abort with code {failed_rank.exit_code}"
    if failed_rank.signal is None:
        return f"ended with exit code {failed_rank.exit_code}"
    with suppress(ValueError):
        return (
            f"was ended by signal {failed_rank.signal} ({signal.Signals(failed_rank.signal).name})"
        )
    return f"was ended by signal {failed_rank.signal}"


_RULE = re.compile(r"[-=*]{20,}\s*")
_REPORT = re.compile(
    r"BAD TERMINATION|MPI_ABORT|exited|terminated|ORTE|PRTE|Open MPI|PID .* RUNNING AT"
)
"""Words of an MPI's report between two rules."""

_NOISE = re.compile(
    r"\[proxy:|\[mpiexec@|= |Abort\(|YOUR APPLICATION TERMINATED|Please see the FAQ page"
    r"|This typically refers to a problem|Primary job  terminated normally"
    r"|a non-zero exit code\. Per user-direction"
    r"|\[[^\]\s]+\](?:\[\[\d+,\d+\],\d+\]\[| \d+ more process| PMIX ERROR: )"
)
"""The beginnings of an MPI's lines about the end of ranks, outside of its rules."""


def _of_program(text: str) -> Iterator[str]:
    lines = text.splitlines()
    rules = [at for at, line in enumerate(lines) if _RULE.fullmatch(line)]
    inside: set[int] = set()
    # Not every other rule begins a report: a rule may be truncated, or begin in mid-line.
    for first, last in pairwise(rules):
        if first not in inside and _REPORT.search("\n".join(lines[first + 1 : last])):
            inside |= set(range(first, last + 1))
    for at, line in enumerate(lines):
        if at not in inside and line.strip() and not _NOISE.match(line):
            yield line.rstrip()
