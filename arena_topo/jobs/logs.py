"""The command `logs`: the log of a job's launcher, of another pod, or of all pods at once."""

from __future__ import annotations

import re
import shlex
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Self

from arena_topo.cli import interruption
from arena_topo.cli.arguments import JobKind, Name, Output, TypeFlag, option, output
from arena_topo.cli.console import Console
from arena_topo.cli.interrupt_message import job_goes_on
from arena_topo.cli.options import PROGRAM
from arena_topo.cli.parameters import command_from_records
from arena_topo.cli.session import Session
from arena_topo.cli.stdout import UnbufferedStdout, writable
from arena_topo.cli.targets import job_not_found, namespace_of, open_engine, similar_job_hint
from arena_topo.cli.terminal import can_redraw
from arena_topo.engines import JobStatus
from arena_topo.engines.backend import Backend
from arena_topo.engines.goals import how_failed, start_phrase
from arena_topo.engines.lines import LogOptions
from arena_topo.errors import ArenaError, JobNotFound, NotFound, UsageError
from arena_topo.escaping import one_line
from arena_topo.flag import flag, words_of
from arena_topo.joblogs import follow, ranks
from arena_topo.joblogs.log_request import End, LogRequest, NoLogYet
from arena_topo.joblogs.notices import LogNote
from arena_topo.joblogs.ranks import Entry
from arena_topo.joblogs.ranks_on_launcher import HOSTFILE_HINT, RanksOnLauncher
from arena_topo.joblogs.view import Raw, Records, Text
from arena_topo.jobs.wait_progress import WaitLine

MANY = "Many pods at once"
SEARCH = "Searching"
KEPT = "Archive"
NCCL = "What NCCL did"

_QUIET = 1.0
"""Seconds without a line after which a terminal shows the reason to wait again."""


class Expression(str):
    """A regular expression of Python's `re`."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an expression; ValueError says what is wrong."""
        try:
            _compiled(text)
        except re.error as error:
            at = "" if error.pos is None else f" at character {error.pos + 1}"
            raise ValueError(f"{error.msg}{at} of {text!r}") from None
        except (RecursionError, OverflowError):
            raise ValueError(f"{text[:20]!r}... is too large") from None
        return cls(text)


def _compiled(text: str) -> re.Pattern[str]:
    with warnings.catch_warnings():
        # Python warns of text that a later version may parse differently.
        warnings.simplefilter("ignore")
        return re.compile(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsOptions:
    """The flags of `logs`: arena's, those of several pods, and how lines are shown."""

    follow: bool = option(
        False,
        "Wait for the pods, and go on until the job ends, with the launcher's exit code;"
        " with -i until that pod ends.",
        short="-f",
    )
    instance: str = option(
        "",
        "Pod to read; else the launcher.",
        "POD",
        short="-i",
        excludes=("--all", "--only"),
        completes="instances",
    )
    container: str = option("", "Container to read.", "NAME", short="-c", completes="containers")
    previous: bool = option(
        False,
        "Read the previous log: before the container restarted, or of the previous launcher.",
        short="-p",
        excludes=("--follow",),
    )
    since: str = option("", "Only what is newer than this, such as 1h30m.", "DURATION")
    since_time: str = option("", "Only what is newer than this moment.", "RFC3339")
    tail: int = option(
        -1, "Only so many of the last lines of each pod; 0 shows none, -1 all.", short="-t"
    )
    timestamps: bool = option(False, "Start each line with its time.")
    output_format: Annotated[
        Output,
        output(
            *(Output.TEXT, Output.RAW, Output.JSON),
            help="How to show it: text is safe to look at, raw is what the programs wrote, byte for"
            " byte, json has one object a line.",
        ),
    ] = Output.TEXT
    kind: TypeFlag = None
    everyone: bool = flag(
        False,
        "Read all pods of the job at once; each line says which rank or pod wrote it.",
        panel=MANY,
        name="--all",
    )
    only: tuple[str, ...] = flag(
        (),
        "As --all, but only these: rank:0-3,7, worker:2 or launcher; repeat for more.",
        "WHO",
        panel=MANY,
        choices=("launcher", "rank:0", "worker:0"),
    )
    fold: bool = flag(
        True,
        "Fold equal lines of many ranks into one, with their number (default true).",
        panel=MANY,
    )
    include: tuple[Expression, ...] = flag(
        (), "Only lines that match this, or another --include.", "REGEX", panel=SEARCH
    )
    exclude: tuple[Expression, ...] = flag(
        (), "Leave out lines that match this; repeat for more.", "REGEX", panel=SEARCH
    )
    highlight: tuple[Expression, ...] = flag(
        (),
        "Mark what matches this; repeat for more.",
        "REGEX",
        panel=SEARCH,
        excludes=("--output json", "--output raw"),
    )
    save: str = flag(
        "",
        "Also write each log that is read into a file in this folder.",
        "DIR",
        panel=KEPT,
        completes="folders",
    )
    keep: bool = flag(
        True, "Archive what is followed, for when the pods are gone (default true).", panel=KEPT
    )
    kept: bool = flag(
        False,
        "Read the archive of the job, without asking a cluster.",
        panel=KEPT,
        excludes=("--follow",),
    )
    nccl: bool = flag(
        False,
        "Show what NCCL did: its rings and how ranks reach each other.",
        panel=NCCL,
        excludes=("--output raw", "--highlight", "--save"),
    )
    files: tuple[str, ...] = flag(
        (),
        "With --nccl, read this file and not a job; - is stdin; repeat for more.",
        "FILE",
        panel=NCCL,
        name="--from",
        needs=("--nccl",),
        excludes=(
            *("JOB", "--follow", "--instance", "--container", "--previous", "--kept"),
            *("--since", "--since-time", "--tail", "--timestamps", "--type"),
            *("--all", "--only", "--include", "--exclude", "--bus-bandwidth"),
        ),
        completes="files",
    )
    bus_bandwidth: bool = flag(
        False,
        "With --nccl, print the measured bandwidths of GPUs as a table.",
        panel=NCCL,
        needs=("--nccl",),
    )

    @property
    def as_json(self) -> bool:
        """Whether the output is JSON."""
        return self.output_format is Output.JSON

    @property
    def _of_lines(self) -> bool:
        """Whether the output needs whole lines."""
        raw = self.output_format is Output.RAW
        rows = self.everyone or self.only or self.save or self.nccl or (self.timestamps and not raw)
        return bool(self.as_json or rows or self.include or self.exclude or self.highlight)

    def options(self) -> LogOptions:
        """The part of each log."""
        return LogOptions(
            follow=self.follow,
            tail=self.tail if self.tail >= 0 else None,
            since=_since(self.since) if self.since else None,
            since_time=_moment(self.since_time) if self.since_time else None,
            timestamps=self.timestamps,
            container=self.container or None,
            previous=self.previous,
            unfinished=not self._of_lines,
        )

    def asked(self) -> LogRequest:
        """The request for `joblogs.follow`."""
        text = self.output_format is Output.TEXT
        return LogRequest(
            instance=self.instance or None,
            all_pods=self.everyone,
            only=ranks.parse_only(self.only) if self.only else None,
            include=tuple(map(_compiled, self.include)),
            exclude=tuple(map(_compiled, self.exclude)),
            fold=self.fold and text,
            tags=self.as_json,
            to_archive=self.keep,
            from_archive=self.kept,
            save=self.save or None,
            options=self.options(),
        )


@command_from_records
def logs(name: Name, wanted: LogsOptions, session: Session) -> None:
    """Show the log of a job's launcher, of another of its pods, or of all of them at once.

    Examples:
      # Follow the log of the launcher
      logs -f bert
      # All ranks in the order of time
      logs bert --all
      # What NCCL chose, beside the plan
      logs bert --nccl
    """
    show_logs(name, wanted, session)


def show_logs(name: str, wanted: LogsOptions, session: Session) -> None:
    """Run `logs`; JobFailed if the followed job failed."""
    if wanted.files:
        from arena_topo.nccl import command as nccl  # noqa: PLC0415 - only for what NCCL did

        nccl.of_files(session.console, wanted.files, as_json=wanted.as_json)
        return
    asked = wanted.asked()
    backend = open_engine(session, repeating=wanted.follow)
    namespace = namespace_of(session, backend)
    if wanted.kind is JobKind.OTHER:
        raise job_not_found(name, namespace)
    console = session.console
    shown = _Shown(console, name, namespace, wanted, many=asked.several_pods)
    back = shlex.join([PROGRAM, "logs", *words_of(wanted), name, "-n", namespace])
    with job_goes_on(
        console, backend, name, namespace, exists=lambda: bool(shown.known), back=back
    ):
        try:
            with console.interruption.in_time():
                failure = (shown.nccl if wanted.nccl else shown.lines)(backend, asked)
        except (KeyboardInterrupt, interruption.OutOfTime):
            shown.interrupted()
            raise
        except NotFound as error:
            if isinstance(error, JobNotFound) or (not shown.known and error.hint is None):
                error.hint = similar_job_hint(name, namespace, backend) or error.hint
            raise
    if failure is not None:
        raise failure


class _Shown:
    """The output of `logs`: lines on stdout, notes on stderr."""

    def __init__(
        self, console: Console, name: str, namespace: str, wanted: LogsOptions, *, many: bool
    ) -> None:
        self._console = console
        self._name, self._namespace = name, namespace
        self._wanted = wanted
        self._outlet = UnbufferedStdout(console)
        self._writer = _writer(
            name, namespace, wanted, many=many, colours=console.colours(console.stdout)
        )
        self._waits = _Waits(console, name, namespace)
        self._notes: list[LogNote] = []
        self._begun = False
        """Whether a line was shown."""
        self._search: RanksOnLauncher | None = None
        self.known: list[JobStatus] = []

    def lines(self, backend: Backend, asked: LogRequest) -> ArenaError | None:
        """Show the lines; the error of a followed job that failed, or of `--save`."""
        lines = follow.RequestedLines(
            backend,
            self._name,
            self._namespace,
            asked,
            tell=self._notes.append,
            seen=self._seen,
            waits=self._waits.see,
        )
        try:
            for batch in lines:
                self._tell()
                if batch:
                    self._begun = True
                    self._waits.hide()
                    self._outlet.write(self._writer.lines(batch))
                    self._look(batch)
                else:
                    self._outlet.check_reader()
                    if not self._outlet.within_line:
                        self._waits.show()
        except ArenaError:
            # Lines and notes from before the error come first.
            self._end()
            raise
        finally:
            self._waits.hide()
        self._end()
        if lines.end is End.READ and not (asked.only or asked.include or asked.exclude):
            self._remark()
        return lines.failure or lines.unsaved

    def interrupted(self) -> None:
        """End an unfinished line, so that the last advice is on a line of its own."""
        if writable(self._console.stderr):
            self._outlet.break_line()

    def nccl(self, backend: Backend, asked: LogRequest) -> ArenaError | None:
        """Show what NCCL did; the error of a followed job that failed."""
        from arena_topo.nccl import command as nccl  # noqa: PLC0415 - only for what NCCL did

        try:
            status = nccl.show_nccl_of_job(
                self._console,
                backend,
                self._name,
                self._namespace,
                asked,
                known=self.known,
                waits=self._waits,
                as_json=self._wanted.as_json,
                table=self._wanted.bus_bandwidth,
            )
        finally:
            self._waits.hide()
        return how_failed(status)

    def _seen(self, status: JobStatus) -> None:
        self.known[:] = [status]

    def _look(self, batch: Sequence[Entry]) -> None:
        """Note once that no rank runs on a worker, where the launcher's lines prove it."""
        if self._search is None and self.known:
            self._search = RanksOnLauncher(self.known[-1])
        if self._search is None or self._search.sentence is not None:
            return
        launcher = (entry.line.text for entry in batch if entry.speakers[0].source.chief)
        if any(map(self._search.see, launcher)):
            text = f"{self._search.sentence}: {HOSTFILE_HINT}"
            self._notes.append(LogNote(text=text, warns=True))

    def _remark(self) -> None:
        """Note on a terminal that a log is empty."""
        if self._begun or not can_redraw(self._console.stdout) or not self.known:
            return
        name, namespace = self._name, self._namespace
        if self.known[-1].phase.over:
            self._console.note(f"{name} has written nothing")
        else:
            waits = f"{PROGRAM} logs -f {name} -n {namespace}"
            self._console.note(f"{name} has written nothing yet; wait for it: {waits}")

    def _end(self) -> None:
        self._waits.hide()
        self._outlet.write(self._writer.end())
        self._tell()
        self._outlet.break_line()

    def _tell(self) -> None:
        """Print the new notes."""
        notes, self._notes[:] = tuple(self._notes), ()
        if not notes:
            return
        self._waits.hide()
        self._outlet.break_line()
        for sentence in notes:
            if sentence.warns:
                self._console.warn(sentence.text)
            else:
                self._console.note(sentence.text)


class _Waits(WaitLine):
    """The reason to wait: live on a terminal, elsewhere a line for each change."""

    def __init__(self, console: Console, name: str, namespace: str) -> None:
        super().__init__(console, name, "")
        self._namespace = namespace
        self._printed_reason, self._hidden = "", 0.0
        self._idle = True
        """Whether there is no reason to wait."""

    def see(self, waiting: NoLogYet | None) -> None:
        """Set the reason to wait; None: there is none."""
        self._idle = waiting is None
        if waiting is None:
            self.hide()  # which shows it once more
            self.what = ""
            return
        what = one_line(waiting.what)
        if waiting.start is not None:
            what += f"; {start_phrase(waiting.start, self.name, self._namespace)}"
        if what == self.what:
            return
        self._begin(what)
        if not self.console.shows_progress and what != self._printed_reason:
            self._printed_reason = what
            self.console.info(f"{self.name} {what}")

    def now(self, what: str) -> None:
        """Set a text for a terminal while there is no reason to wait."""
        if self._idle and self.console.shows_progress:
            self._begin(what)

    def _begin(self, what: str) -> None:
        self.begun = self.begun if self.what else time.monotonic()
        self.what = what

    def show(self) -> None:
        """Show it on a terminal, unless lines came just now."""
        if self.what and time.monotonic() - self._hidden > _QUIET:
            super().show()

    def hide(self) -> None:
        """Remove it from the terminal before other output."""
        super().hide()
        self._hidden = time.monotonic()


# ---------------------------------------------------------------- how


def _writer(
    name: str, namespace: str, wanted: LogsOptions, *, many: bool, colours: bool
) -> Text | Records | Raw:
    if wanted.as_json:
        return Records(job=name, namespace=namespace)
    if wanted.output_format is Output.RAW:
        return Raw(timestamps=wanted.timestamps)
    return Text(
        prefixes=many,
        timestamps=wanted.timestamps,
        colours=colours,
        highlight=tuple(map(_compiled, wanted.highlight)),
    )


def _since(text: str) -> int:
    """Seconds of arena's `--since`: whole numbers of h, m and s, summed."""
    if re.fullmatch(r"([0-9]{1,18}[hms])+", text) is None:
        raise UsageError(
            "--since is invalid",
            why=f"expected whole hours, minutes and seconds such as 90s or 1h30m, got {text!r}",
        )
    sizes = {"h": 3600, "m": 60, "s": 1}
    return sum(int(number) * sizes[unit] for number, unit in re.findall(r"([0-9]+)([hms])", text))


def _moment(text: str) -> str:
    try:
        aware = datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        aware = False
    if not aware:
        raise UsageError(
            "--since-time is invalid",
            why=f"expected a time such as 2026-01-31T08:00:00Z, got {text!r}",
        )
    return text
