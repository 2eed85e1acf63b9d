"""The command `prune`: deletes finished jobs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, TextIO

import typer

from arena_topo import layout
from arena_topo.argv import truth
from arena_topo.cli import remembering
from arena_topo.cli.arguments import (
    ActionOutputFlag,
    EverywhereFlag,
    Output,
    names_only,
    option,
)
from arena_topo.cli.opening import engine, namespace_of
from arena_topo.cli.options import PROGRAM, Globals, LogLevel, act_on_each, say, show, spread
from arena_topo.engines import Backend, JobStatus
from arena_topo.errors import ArenaError, NotFound, UsageError
from arena_topo.job import Duration
from arena_topo.jobs import filtering, view
from arena_topo.numbers import whole

_YES = "ARENA_TOPO_YES"
"""Replaces --yes where the command line cannot be changed, as in arena's Python SDK."""


class Age(Duration):
    """A time span in whole seconds as Go writes it, with days before it: `7d`, `1d12h`, `90m`."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a span; ValueError shows the form. A number without a unit is an error, as in Go."""
        days, day, rest = text.rpartition("d")
        try:
            span = Duration.parse(rest) if rest or not day else 0
        except ValueError:
            span = None
        if span is None or (day and whole(days) is None):
            raise ValueError(f"expected a time such as 12h, 7d or 1d12h, got {text!r}")
        return cls(span + (whole(days) or 0) * 86400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which jobs to delete, and whether to ask for confirmation."""

    since: Age | None = option(
        None,
        "Delete jobs that were created at least so long ago, such as 12h or 7d.",
        "DURATION",
        short="-s",
    )
    all_namespaces: EverywhereFlag = False
    dry_run: bool = option(False, "Only show what would be deleted.")
    yes: bool = option(False, "Do not ask for confirmation; needed without a terminal.", short="-y")
    output_format: ActionOutputFlag = Output.WIDE


@spread
def prune(wanted: Wanted, everywhere: Globals) -> None:
    """Delete jobs that have SUCCEEDED or FAILED and are older than --since.

    The age of a job counts from its creation, as the AGE that kubectl shows.

    Examples:
      # What has ended more than a day ago
      prune --since 24h --dry-run
    """
    since, dry_run = wanted.since, wanted.dry_run
    if since is None:
        raise UsageError(
            "--since is needed",
            why="it says how old the jobs are that are deleted",
            hint=f"{PROGRAM} prune --since 24h --dry-run",
        )
    asks = not (wanted.yes or dry_run or _said_yes())
    if asks and not (_terminal(sys.stdin) and _terminal(sys.stderr)):
        raise UsageError(
            "prune needs --yes where it cannot ask for confirmation",
            why="standard input or standard error is not a terminal",
            hint=f"look first, with --dry-run; then add --yes, or set {_YES}=true",
        )
    backend = engine(everywhere)
    namespace = None if wanted.all_namespaces else namespace_of(everywhere, backend)
    now = time.time()
    names = names_only(wanted.output_format, everywhere)
    doomed = stale(backend, namespace, since=since, now=now)
    if not doomed:
        if not names:
            show("No jobs to delete.\n")
        return
    if asks and not _agreed(doomed, now, namespaces=wanted.all_namespaces):
        say("Nothing was deleted.")
        raise typer.Exit(1)

    def remove(job: JobStatus) -> None:
        try:
            if not dry_run:
                backend.delete(job.name, job.namespace, uid=job.uid)
                remembering.gone(backend, job.namespace, job.name)
        except NotFound:
            say(f"{job.name} in namespace {job.namespace} is gone, or is another job by now")
            return
        except ArenaError as error:
            what = f"cannot delete the job {job.name}: {error.message}"
            raise ArenaError(what, why=error.why, hint=error.hint) from error
        line = _line(job, now, dry_run=dry_run, namespaces=wanted.all_namespaces)
        show(f"{view.RESOURCE}/{job.name}\n" if names else line)

    act_on_each(doomed, remove)


def stale(
    backend: Backend, namespace: str | None, *, since: float, now: float
) -> tuple[JobStatus, ...]:
    """The jobs that are over and at least `since` seconds old, oldest first.

    As in arena (v0.15.5, pkg/training/prune.go) the age counts from the creation of a job, not from
    its end. Unlike there, a job that waits is not history.
    """
    jobs = filtering.found(backend, namespace)
    old = [one for one in jobs if one.phase.over and now - one.created >= since]
    return tuple(sorted(old, key=lambda one: (one.created, one.namespace, one.name)))


def _line(one: JobStatus, now: float, *, dry_run: bool, namespaces: bool) -> str:
    """Arena's line, with its trailing space, and additions of ours after it."""
    text = f"Delete {view.TRAINER} {one.name} with Age {layout.duration(now - one.created)} "
    text += f"in namespace {one.namespace} " if namespaces else ""
    return text + ("(dry run)\n" if dry_run else "\n")


def _agreed(jobs: Sequence[JobStatus], now: float, *, namespaces: bool) -> bool:
    """Ask on the terminal whether to delete these jobs; the default is no."""
    lines = (_line(one, now, dry_run=False, namespaces=namespaces).rstrip() for one in jobs)
    say("\n".join(lines), LogLevel.ERROR)
    what = "this job and all that belongs to it"
    if len(jobs) > 1:
        what = f"these {len(jobs)} jobs and all that belongs to them"
    sys.stderr.write(f"Delete {what}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _said_yes() -> bool:
    said = os.environ.get(_YES, "")
    return bool(said) and truth(_YES, said) == "true"
