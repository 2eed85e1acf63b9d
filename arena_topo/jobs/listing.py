"""The command `list`: lists jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from arena_topo import layout
from arena_topo.cli.arguments import (
    EverywhereFlag,
    JobKind,
    Output,
    TypeFlag,
    names_only,
    option,
    output,
)
from arena_topo.cli.console import Console
from arena_topo.cli.options import PROGRAM
from arena_topo.cli.parameters import command_from_records
from arena_topo.cli.session import Session
from arena_topo.cli.targets import namespace_of, open_engine
from arena_topo.drawing import tables
from arena_topo.engines import JobStatus
from arena_topo.engines.backend import Backend
from arena_topo.jobs import job_order, view
from arena_topo.jobs.job_order import Order
from arena_topo.jobs.job_selection import Chosen

_MANY_ENDED = 1000
"""A list with more jobs that have ended names the command that removes them."""

Jobs = tuple[JobStatus, ...]

GONE_MARK = "GONE"
"""The mark in a watched list of a job that was deleted or no longer matches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    """Which jobs to list, in which order and format."""

    all_namespaces: EverywhereFlag = False
    sort_by: Order = option(
        Order.AGE,
        "The order: age has the newest first, gpus the largest, status those that wait.",
    )
    kind: TypeFlag = None
    watch: bool = option(
        False,
        "Keep showing them; in a pipe, one line for each job that changes.",
        short="-w",
        excludes=("--output json", "--output yaml", "--output name"),
    )
    no_headers: bool = option(False, "Print no header line.")
    output_format: Annotated[
        Output | None,
        output(
            *(Output.WIDE, Output.JSON, Output.YAML, Output.NAME),
            help="How to show them; wide adds run time, workers, nodes, bandwidth and reason.",
        ),
    ] = None

    @property
    def wide(self) -> bool:
        """Whether all columns are shown."""
        return self.output_format is Output.WIDE


@command_from_records
def list_jobs(wanted: ListOptions, chosen: Chosen, session: Session) -> None:
    """List the jobs, newest first.

    Examples:
      # Jobs of all namespaces that wait or run
      list -A --status PENDING,RUNNING
      # With nodes, bandwidth and run time
      list -o wide
      # My jobs with a label
      list --mine -l team=vision
    """
    console = session.console
    backend = open_engine(session, stays=wanted.watch)
    namespace = None if wanted.all_namespaces else namespace_of(session, backend)
    selector, none = chosen.labels(backend), wanted.kind is JobKind.OTHER
    seen: list[JobStatus] = []

    def look() -> Jobs:
        seen[:] = () if none else job_order.list_statuses(backend, namespace, selector)
        return job_order.select_jobs(seen, phases=chosen.phases, order=wanted.sort_by)

    if wanted.watch:
        _watch(console, backend, look, wanted, limit=session.common.timeout)
        return
    jobs, form = look(), wanted.output_format
    if names_only(form, session.common):
        console.write("".join(f"{view.RESOURCE}/{job.name}\n" for job in jobs))
    elif form in {Output.JSON, Output.YAML}:
        values = [view.job_value(job, now=console.clock()) for job in jobs]
        console.write(layout.arena_document(values, yaml=form is Output.YAML))
    else:
        console.screen(_screen(jobs, wanted, console.clock(), console.width))
        if any(job.forecast is not None and job.forecast.emulated for job in jobs):
            console.info(tables.emulated_note())
        if not jobs and not wanted.no_headers:
            # The list of a mistyped namespace is empty too.
            what = "No such jobs" if none or chosen.phases or selector else "No jobs"
            where = f"namespace {namespace}; -A shows those of all namespaces"
            console.info(f"{what} in {where if namespace else 'any namespace'}.")
        ended = sum(job.phase.over for job in jobs)
        if ended > _MANY_ENDED:
            place = "-A" if namespace is None else f"-n {namespace}"
            clean = f"{PROGRAM} prune --since 7d {place}"
            console.info(
                f"{ended:,} of these jobs have ended. Remove those that are a week old: {clean}"
            )
    session.names.jobs(backend, namespace, seen, whole=not selector and not none)


def _screen(jobs: Jobs, wanted: ListOptions, now: float, width: int | None) -> str:
    return view.jobs_table(
        jobs,
        now=now,
        namespaces=wanted.all_namespaces,
        headers=not wanted.no_headers,
        wide=wanted.wide,
        width=width,
    )


def _watch(
    console: Console,
    backend: Backend,
    look: Callable[[], Jobs],
    wanted: ListOptions,
    *,
    limit: float | None,
) -> None:
    from arena_topo.cli.refresh import watch  # noqa: PLC0415 - only for who stays

    namespaces, least = wanted.all_namespaces, list[int]()

    def changes(before: Jobs | None, jobs: Jobs, now: float) -> str:
        known = {status.uid: job_order.signs(status) for status in before or ()}
        changed = tuple(job for job in jobs if known.get(job.uid) != job_order.signs(job))
        lines = list(view.job_lines(changed, now=now, namespaces=namespaces, wide=wanted.wide))
        present = {job.uid for job in jobs}
        lines += [
            "\t".join((status.namespace, status.name, GONE_MARK)[not namespaces :])
            for status in before or ()
            if status.uid not in present
        ]
        # No column becomes narrower than in the lines before.
        least[:] = layout.widths(lines, least)
        return layout.align(lines[before is not None or wanted.no_headers :], least)

    watch(
        console,
        look,
        draw=lambda jobs, now, columns: layout.fold_text(
            _screen(jobs, wanted, now, columns), columns
        ),
        changes=changes,
        every=backend.look_every,
        limit=limit,
    )
