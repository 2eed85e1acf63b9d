"""The command `logs`: the log of a job's launcher, of another pod, or of all pods at once."""

from __future__ import annotations

import re
import shlex
import sys
import time
import warnings
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Self

from arena_topo.cli import stopping
from arena_topo.cli.arguments import Kind, Name, Output, TypeFlag, option, output
from arena_topo.cli.detaching import detaching
from arena_topo.cli.opening import alike, engine, missing, namespace_of
from arena_topo.cli.options import PROGRAM, Globals, note, say, spread, warn
from arena_topo.cli.outlet import Outlet, free_to_speak
from arena_topo.cli.terminal import colours, moves
from arena_topo.engines import Backend, JobStatus
from arena_topo.engines.lines import LogOptions
from arena_topo.engines.waiting import how_failed, starting
from arena_topo.errors import ArenaError, JobNotFound, NotFound, UsageError
from arena_topo.escaping import one_line
from arena_topo.flag import flag, words_of
from arena_topo.joblogs import follow, ranks
from arena_topo.joblogs.follow import Asked, Waiting
from arena_topo.joblogs.notices import Note
from arena_topo.joblogs.view import Raw, Records, Text
from arena_topo.jobs.staying import WaitLine, lives

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
class Wanted:
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
        "Read the run before the container's last restart, or the launcher's try before.",
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

    def asked(self) -> Asked:
        """The request for `joblogs.follow`."""
        text = self.output_format is Output.TEXT
        return follow.Asked(
            instance=self.instance or None,
            everyone=self.everyone,
            only=ranks.only(self.only) if self.only else None,
            include=tuple(map(_compiled, self.include)),
            exclude=tuple(map(_compiled, self.exclude)),
            fold=self.fold and text,
            tags=self.as_json,
            keep=self.keep,
            kept=self.kept,
            save=self.save or None,
            options=self.options(),
        )


@spread
def logs(name: Name, wanted: Wanted, everywhere: Globals) -> None:
    """Show the log of a job's launcher, of another of its pods, or of all of them at once.

    Examples:
      # Follow the log of the launcher
      logs -f bert
      # All ranks in the order of time
      logs bert --all
      # What NCCL chose, beside the plan
      logs bert --nccl
    """
    show_logs(name, wanted, everywhere)


def show_logs(name: str, wanted: Wanted, everywhere: Globals) -> None:
    """Run `logs`; JobFailed if the followed job failed."""
    if wanted.files:
        from arena_topo.nccl import command as nccl  # noqa: PLC0415 - only for what NCCL did

        nccl.of_files(wanted.files, as_json=wanted.as_json)
        return
    asked = wanted.asked()
    backend = engine(everywhere, repeating=wanted.follow)
    namespace = namespace_of(everywhere, backend)
    if wanted.kind is Kind.OTHER:
        raise missing(name, namespace)
    shown = _Shown(name, namespace, wanted, many=asked.many)
    back = shlex.join([PROGRAM, "logs", *words_of(wanted), name, "-n", namespace])
    with detaching(backend, name, namespace, there=lambda: bool(shown.known), back=back):
        try:
            with stopping.in_time():
                failure = (shown.nccl if wanted.nccl else shown.lines)(backend, asked)
        except (KeyboardInterrupt, stopping.OutOfTime):
            shown.interrupted()
            raise
        except NotFound as error:
            if isinstance(error, JobNotFound) or (not shown.known and error.hint is None):
                error.hint = alike(name, namespace, backend) or error.hint
            raise
    if failure is not None:
        raise failure


class _Shown:
    """The output of `logs`: lines on stdout, notes on stderr."""

    def __init__(self, name: str, namespace: str, wanted: Wanted, *, many: bool) -> None:
        self._name, self._namespace = name, namespace
        self._wanted = wanted
        self._outlet = Outlet()
        self._writer = _writer(name, namespace, wanted, many=many)
        self._waits = _Waits(name, namespace)
        self._notes: list[Note] = []
        self._begun = False
        """Whether a line was shown."""
        self.known: list[JobStatus] = []

    def lines(self, backend: Backend, asked: Asked) -> ArenaError | None:
        """Show the lines; the error of a followed job that failed, or of `--save`."""
        lines = follow.Shown(
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
                else:
                    self._outlet.heed()
                    if not self._outlet.within_line:
                        self._waits.show()
        except ArenaError:
            # Lines and notes from before the error come first.
            self._end()
            raise
        finally:
            self._waits.hide()
        self._end()
        if lines.end is follow.End.READ and not (asked.only or asked.include or asked.exclude):
            self._remark()
        return lines.failure or lines.unsaved

    def interrupted(self) -> None:
        """End an unfinished line, so that the last advice is on a line of its own."""
        if free_to_speak():
            self._outlet.break_line()

    def nccl(self, backend: Backend, asked: Asked) -> ArenaError | None:
        """Show what NCCL did; the error of a followed job that failed."""
        from arena_topo.nccl import command as nccl  # noqa: PLC0415 - only for what NCCL did

        try:
            status = nccl.of_job(
                backend,
                self._name,
                self._namespace,
                asked,
                self.known,
                waits=self._waits,
                as_json=self._wanted.as_json,
                table=self._wanted.bus_bandwidth,
            )
        finally:
            self._waits.hide()
        return how_failed(status)

    def _seen(self, status: JobStatus) -> None:
        self.known[:] = [status]

    def _remark(self) -> None:
        """Note on a terminal that a log is empty."""
        if self._begun or not moves(sys.stdout) or not self.known:
            return
        name, namespace = self._name, self._namespace
        if self.known[-1].phase.over:
            note(f"{name} has written nothing")
        else:
            waits = f"{PROGRAM} logs -f {name} -n {namespace}"
            note(f"{name} has written nothing yet; wait for it: {waits}")

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
        for one in notes:
            if one.warns:
                warn(one.text)
            else:
                note(one.text)


class _Waits(WaitLine):
    """The reason to wait: live on a terminal, elsewhere a line for each change."""

    def __init__(self, name: str, namespace: str) -> None:
        super().__init__(name, "")
        self._namespace = namespace
        self._said, self._hidden = "", 0.0
        self._idle = True
        """Whether there is no reason to wait."""

    def see(self, waiting: Waiting | None) -> None:
        """Set the reason to wait; None: there is none."""
        self._idle = waiting is None
        if waiting is None:
            self.hide()  # which shows it once more
            self.what = ""
            return
        what = one_line(waiting.what)
        if waiting.start is not None:
            what += f"; {starting(waiting.start, self.name, self._namespace)}"
        if what == self.what:
            return
        self._begin(what)
        if not lives() and what != self._said:
            self._said = what
            say(f"{self.name} {what}")

    def now(self, what: str) -> None:
        """Set a text for a terminal while there is no reason to wait."""
        if self._idle and lives():
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


def _writer(name: str, namespace: str, wanted: Wanted, *, many: bool) -> Text | Records | Raw:
    if wanted.as_json:
        return Records(job=name, namespace=namespace)
    if wanted.output_format is Output.RAW:
        return Raw(timestamps=wanted.timestamps)
    return Text(
        prefixes=many,
        timestamps=wanted.timestamps,
        colours=colours(sys.stdout),
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
