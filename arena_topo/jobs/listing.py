"""The command `list`: lists jobs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from arena_topo import layout
from arena_topo.cli import remembering
from arena_topo.cli.arguments import (
    EverywhereFlag,
    Kind,
    Output,
    TypeFlag,
    names_only,
    option,
    output,
)
from arena_topo.cli.opening import engine, namespace_of
from arena_topo.cli.options import Globals, display, say, show, spread
from arena_topo.drawing import tables
from arena_topo.engines import Backend, JobStatus
from arena_topo.jobs import filtering, view
from arena_topo.jobs.chosen import Chosen
from arena_topo.jobs.filtering import Order

Jobs = tuple[JobStatus, ...]

GONE = "GONE"
"""The mark in a watched list of a job that was deleted or no longer matches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
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


@spread
def list_jobs(wanted: Wanted, chosen: Chosen, everywhere: Globals) -> None:
    """List the jobs, newest first.

    Examples:
      # Jobs of all namespaces that wait or run
      list -A --status PENDING,RUNNING
      # With nodes, bandwidth and run time
      list -o wide
      # My jobs with a label
      list --mine -l team=vision
    """
    backend = engine(everywhere, stays=wanted.watch)
    namespace = None if wanted.all_namespaces else namespace_of(everywhere, backend)
    selector, none = chosen.labels(backend), wanted.kind is Kind.OTHER
    seen: list[JobStatus] = []

    def look() -> Jobs:
        seen[:] = () if none else filtering.found(backend, namespace, selector)
        return filtering.listed(seen, phases=chosen.phases, order=wanted.sort_by)

    if wanted.watch:
        _watch(backend, look, wanted, limit=everywhere.timeout)
        return
    jobs, form = look(), wanted.output_format
    if names_only(form, everywhere):
        show("".join(f"{view.RESOURCE}/{one.name}\n" for one in jobs))
    elif form in {Output.JSON, Output.YAML}:
        values = [view.job_value(one, now=time.time()) for one in jobs]
        show(layout.arenas(values, yaml=form is Output.YAML))
    else:
        display(_screen(jobs, wanted, time.time()))
        if any(one.forecast is not None and one.forecast.emulated for one in jobs):
            say(tables.emulated())
        if not jobs and not wanted.no_headers:
            # The list of a mistyped namespace is empty too.
            what = "No such jobs" if none or chosen.phases or selector else "No jobs"
            where = f"namespace {namespace}; -A shows those of all namespaces"
            say(f"{what} in {where if namespace else 'any namespace'}.")
    remembering.jobs(backend, namespace, seen, whole=not selector and not none)


def _screen(jobs: Jobs, wanted: Wanted, now: float) -> str:
    return view.jobs(
        jobs,
        now=now,
        namespaces=wanted.all_namespaces,
        headers=not wanted.no_headers,
        wide=wanted.wide,
    )


def _watch(
    backend: Backend, look: Callable[[], Jobs], wanted: Wanted, *, limit: float | None
) -> None:
    from arena_topo.cli.watching import watch  # noqa: PLC0415 - only for who stays

    namespaces, least = wanted.all_namespaces, list[int]()

    def changes(before: Jobs | None, jobs: Jobs, now: float) -> str:
        known = {one.uid: filtering.signs(one) for one in before or ()}
        changed = tuple(one for one in jobs if known.get(one.uid) != filtering.signs(one))
        lines = list(view.job_lines(changed, now=now, namespaces=namespaces, wide=wanted.wide))
        there = {one.uid for one in jobs}
        lines += [
            "\t".join((one.namespace, one.name, GONE)[not namespaces :])
            for one in before or ()
            if one.uid not in there
        ]
        # No column becomes narrower than in the lines before.
        least[:] = layout.widths(lines, least)
        return layout.align(lines[before is not None or wanted.no_headers :], least)

    watch(
        look,
        draw=lambda jobs, now, columns: layout.folded(_screen(jobs, wanted, now), columns),
        changes=changes,
        every=backend.look_every,
        limit=limit,
    )
