"""The command `prune`: deletes finished jobs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Self

import typer

from arena_topo import layout
from arena_topo.cli import confirmation
from arena_topo.cli.arguments import (
    ActionOutputFlag,
    EverywhereFlag,
    Output,
    names_only,
    option,
)
from arena_topo.cli.confirmation import YesFlag
from arena_topo.cli.console import Console, act_on_each
from arena_topo.cli.options import PROGRAM
from arena_topo.cli.parameters import command_from_records
from arena_topo.cli.session import Session
from arena_topo.cli.targets import namespace_of, open_engine
from arena_topo.engines import JobStatus
from arena_topo.engines.backend import Backend
from arena_topo.errors import ArenaError, NotFound, UsageError
from arena_topo.job import Duration
from arena_topo.jobs import job_order, view
from arena_topo.numbers import parse_count


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
        if span is None or (day and parse_count(days) is None):
            raise ValueError(f"expected a time such as 12h, 7d or 1d12h, got {text!r}")
        return cls(span + (parse_count(days) or 0) * 86400)


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneOptions:
    """Which jobs to delete, and whether to ask for confirmation."""

    since: Age | None = option(
        None,
        "Delete jobs that were created at least so long ago, such as 12h or 7d.",
        "DURATION",
        short="-s",
    )
    all_namespaces: EverywhereFlag = False
    dry_run: bool = option(False, "Only show what would be deleted.")
    yes: YesFlag = False
    output_format: ActionOutputFlag = Output.WIDE


@command_from_records
def prune(wanted: PruneOptions, session: Session) -> None:
    """Delete jobs that have SUCCEEDED or FAILED and are older than --since.

    The age of a job counts from its creation, as the AGE that kubectl shows.

    Examples:
      # What has ended more than a day ago
      prune --since 24h --dry-run
    """
    console, since, dry_run = session.console, wanted.since, wanted.dry_run
    if since is None:
        raise UsageError(
            "--since is needed",
            why="it says how old the jobs are that are deleted",
            hint=f"{PROGRAM} prune --since 24h --dry-run",
        )
    asks = not dry_run and confirmation.must_confirm(
        console, "prune", yes=wanted.yes, look="--dry-run"
    )
    backend = open_engine(session)
    namespace = None if wanted.all_namespaces else namespace_of(session, backend)
    now = console.clock()
    names = names_only(wanted.output_format, session.common)
    doomed = stale_jobs(backend, namespace, since=since, now=now)
    if not doomed:
        if not names:
            console.write("No jobs to delete.\n")
        return
    if asks and not _agreed(console, doomed, now, namespaces=wanted.all_namespaces):
        console.info("Nothing was deleted.")
        raise typer.Exit(1)

    def remove(job: JobStatus) -> None:
        try:
            if not dry_run:
                backend.delete(job.name, job.namespace, uid=job.uid, tell=console.warn)
                session.names.gone(backend, job.namespace, job.name)
        except NotFound:
            console.info(
                f"{job.name} in namespace {job.namespace} is gone, or is another job by now"
            )
            return
        except ArenaError as error:
            what = f"cannot delete the job {job.name}: {error.message}"
            raise ArenaError(what, why=error.why, hint=error.hint) from error
        line = _line(job, now, dry_run=dry_run, namespaces=wanted.all_namespaces)
        console.write(f"{view.RESOURCE}/{job.name}\n" if names else line)

    with closing(backend):
        act_on_each(console, doomed, remove)


def stale_jobs(
    backend: Backend, namespace: str | None, *, since: float, now: float
) -> tuple[JobStatus, ...]:
    """The jobs that are over and at least `since` seconds old, oldest first.

    As in arena (v0.15.5, pkg/training/prune.go) the age counts from the creation of a job, not from
    its end. Unlike there, a job that waits is not history.
    """
    jobs = job_order.list_statuses(backend, namespace)
    old = [job for job in jobs if job.phase.over and now - job.created >= since]
    return tuple(sorted(old, key=lambda status: (status.created, status.namespace, status.name)))


def _line(status: JobStatus, now: float, *, dry_run: bool, namespaces: bool) -> str:
    """Arena's line, with its trailing space, and additions of ours after it."""
    text = f"Delete {view.TRAINER} {status.name} with Age {layout.duration(now - status.created)} "
    text += f"in namespace {status.namespace} " if namespaces else ""
    return text + ("(dry run)\n" if dry_run else "\n")


def _agreed(console: Console, jobs: Sequence[JobStatus], now: float, *, namespaces: bool) -> bool:
    """Ask on the terminal whether to delete these jobs."""
    lines = (_line(job, now, dry_run=False, namespaces=namespaces).rstrip() for job in jobs)
    what = "this job and all that belongs to it"
    if len(jobs) > 1:
        what = f"these {len(jobs)} jobs and all that belongs to them"
    return confirmation.confirm(console, "\n".join(lines), f"Delete {what}?")
