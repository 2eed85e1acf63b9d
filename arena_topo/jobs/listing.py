"""The command that lists jobs: list."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from arena_topo import layout
from arena_topo.cli import remembering, stopping
from arena_topo.cli.arguments import PANEL, EverywhereFlag, Kind, Output, TypeFlag, output
from arena_topo.cli.opening import engine, namespace_of
from arena_topo.cli.options import Globals, display, say, show, spread
from arena_topo.cli.terminal import cropped
from arena_topo.drawing import tables
from arena_topo.engines import Backend, JobStatus
from arena_topo.flag import Flag
from arena_topo.jobs import filtering, view
from arena_topo.jobs.chosen import Chosen
from arena_topo.jobs.filtering import Order

Jobs = tuple[JobStatus, ...]

GONE = "GONE"
"""What a watched list says of a job that was deleted, or is no longer as was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Whether jobs of all namespaces are listed, and in which order."""

    all_namespaces: EverywhereFlag = False
    sort_by: Annotated[
        Order,
        Flag(
            help="The order: age has the newest first, gpus the largest, status those that wait.",
            panel=PANEL,
        ),
    ] = Order.AGE


@spread
def list_jobs(
    wanted: Wanted,
    chosen: Chosen,
    everywhere: Globals,
    *,
    kind: TypeFlag = None,
    watch: Annotated[
        bool,
        Flag(
            help="Keep showing them; in a pipe, one line for each job that changes.",
            short="-w",
            panel=PANEL,
            excludes=("--output json", "--output yaml", "--output name"),
        ),
    ] = False,
    no_headers: Annotated[bool, Flag(help="Print no header line.", panel=PANEL)] = (False),
    output_format: Annotated[
        Output | None,
        output(
            *(Output.WIDE, Output.JSON, Output.YAML, Output.NAME),
            help="How to show them; wide adds run time, workers, nodes, bandwidth and reason.",
        ),
    ] = None,
) -> None:
    """List the jobs, newest first."""
    # What is watched is looked at for as long as --timeout allows, each time with patience.
    backend = engine(replace(everywhere, timeout=None) if watch else everywhere)
    stopping.limit(everywhere.timeout)
    namespace = None if wanted.all_namespaces else namespace_of(everywhere, backend)
    selector, phases = chosen.labels(backend), chosen.phases

    seen: list[JobStatus] = []

    def look() -> Jobs:
        if kind is Kind.OTHER:
            return ()
        found = filtering.found(backend, namespace, selector)
        seen[:] = found
        return filtering.listed(found, phases=phases, order=wanted.sort_by)

    namespaces, headers = wanted.all_namespaces, not no_headers
    if watch:
        _watch(
            backend,
            look,
            namespaces=namespaces,
            headers=headers,
            wide=output_format is Output.WIDE,
            limit=everywhere.timeout,
        )
        return
    jobs = look()
    table = output_format in {None, Output.WIDE}
    if output_format is Output.NAME or (everywhere.quiet and table):
        show("".join(f"{view.RESOURCE}/{one.name}\n" for one in jobs))
    elif table:
        screen = view.jobs(
            jobs,
            now=time.time(),
            namespaces=namespaces,
            headers=headers,
            wide=output_format is Output.WIDE,
        )
        # Who asks for more columns wants them all.
        display(cropped(screen) if output_format is None else screen)
        if any(one.forecast is not None and one.forecast.emulated for one in jobs):
            say(tables.EMULATED)
        if headers and not jobs:
            say(_none(namespace, narrowed=bool(kind is Kind.OTHER or phases or selector)))
    else:
        values = [view.job_value(one, now=time.time()) for one in jobs]
        if output_format is Output.JSON:
            show(layout.to_json(values))
        else:
            show(layout.to_yaml([layout.for_yaml(one) for one in values]))
    remembering.jobs(backend, namespace, seen, whole=not selector and kind is not Kind.OTHER)


def _none(namespace: str | None, *, narrowed: bool) -> str:
    """What to say of an empty list, which that of a mistyped namespace is as well."""
    what = "No such jobs" if narrowed else "No jobs"
    if namespace is None:
        return f"{what} in any namespace."
    return f"{what} in namespace {namespace}; -A shows those of all namespaces."


def _watch(
    backend: Backend,
    look: Callable[[], Jobs],
    *,
    namespaces: bool,
    headers: bool,
    wide: bool,
    limit: float | None,
) -> None:
    from arena_topo.cli.watching import watch  # noqa: PLC0415 - only for who stays

    least: tuple[int, ...] = ()

    def beneath(lines: Sequence[str]) -> str:
        """The lines under those before: no column becomes narrower."""
        nonlocal least
        least = layout.widths(lines, least)
        return layout.align(lines, least)

    def changes(before: Jobs | None, jobs: Jobs, now: float) -> str:
        if before is None:
            lines = view.job_lines(jobs, now=now, namespaces=namespaces, wide=wide)
            return beneath(lines[not headers :])
        known = {one.uid: filtering.signs(one) for one in before}
        changed = tuple(one for one in jobs if known.get(one.uid) != filtering.signs(one))
        there = {one.uid for one in jobs}
        gone = (one for one in before if one.uid not in there)
        ends = [(one.namespace, one.name, GONE)[not namespaces :] for one in gone]
        lines = view.job_lines(changed, now=now, namespaces=namespaces, wide=wide)[1:]
        return beneath([*lines, *("\t".join(one) for one in ends)])

    watch(
        look,
        draw=lambda jobs, now, _columns: view.jobs(
            jobs, now=now, namespaces=namespaces, headers=headers, wide=wide
        ),
        changes=changes,
        every=backend.look_every,
        limit=limit,
    )
