"""The command that deletes jobs: delete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from arena_topo import layout
from arena_topo.cli import remembering
from arena_topo.cli.arguments import PANEL, Kind, PerhapsNames, Told, ToldFlag, TypeFlag
from arena_topo.cli.opening import engine, missing, namespace_of
from arena_topo.cli.options import PROGRAM, Globals, LogLevel, say, show, spread
from arena_topo.clusters.selectors import LabelSelector
from arena_topo.engines import Backend
from arena_topo.errors import ArenaError, NotFound, UsageError
from arena_topo.flag import Flag
from arena_topo.jobs import filtering, view
from arena_topo.jobs.filtering import Phases


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which jobs of the namespace are deleted, where none is named; all that is said must hold."""

    every: Annotated[
        bool, Flag(help="Delete all jobs of the namespace.", name="--all", panel=PANEL)
    ] = False
    status: Annotated[
        tuple[Phases, ...],
        Flag(
            help="Delete the jobs with one of these states, such as PENDING,FAILED.",
            panel=PANEL,
            metavar="STATUS[,STATUS]",
        ),
    ] = ()
    selector: Annotated[
        LabelSelector | None,
        Flag(
            help="Delete the jobs with these labels, such as team=vision.",
            short="-l",
            panel=PANEL,
            metavar="LABELS",
        ),
    ] = None
    mine: Annotated[
        bool, Flag(help="Delete the jobs that you submitted, and no others.", panel=PANEL)
    ] = False


@spread
def delete(
    names: PerhapsNames,
    selection: Selection,
    everywhere: Globals,
    *,
    kind: TypeFlag = None,
    ignore_not_found: Annotated[
        bool, Flag(help="Jobs that do not exist are no error.", panel=PANEL)
    ] = False,
    output_format: ToldFlag = Told.WIDE,
) -> None:
    """Delete jobs and all that belongs to them."""
    _check(names, selection)
    names_only = output_format is Told.NAME or everywhere.quiet
    backend = engine(everywhere)
    namespace = namespace_of(everywhere, backend)
    chosen: dict[str, str | None] = dict.fromkeys(names)
    if not names:
        chosen = {} if kind is Kind.OTHER else _chosen(selection, backend, namespace)
        # A job that was chosen and is gone by now is as it was to be.
        ignore_not_found = True
        if not chosen:
            say(f"No such jobs in namespace {namespace}.")
    code = 0
    for name, uid in chosen.items():
        try:
            if kind is Kind.OTHER:
                raise missing(name, namespace)
            backend.delete(name, namespace, uid=uid)
        except NotFound:
            if not ignore_not_found:
                say(layout.complaint(missing(name, namespace, backend)), LogLevel.ERROR)
                code = code or 1
        except ArenaError as error:
            # The other jobs are deleted all the same; the first failure decides the exit code.
            say(layout.complaint(error), LogLevel.ERROR)
            code = code or error.exit_code
        else:
            if names_only:
                show(f"{view.RESOURCE}/{name}\n")
            else:
                say(f"The training job {name} has been deleted successfully")
            remembering.gone(backend, namespace, name)
    if code:
        raise typer.Exit(code)


def _check(names: Sequence[str], selection: Selection) -> None:
    """Refuse, with UsageError, a line that chooses no jobs, or chooses them twice."""
    if names and selection != Selection():
        raise UsageError(
            "names of jobs exclude --all, --status, --selector and --mine",
            hint="leave out the names, or these flags",
        )
    if not names and selection == Selection():
        raise UsageError(
            "no job is named",
            hint=f"{PROGRAM} delete JOB..., or choose jobs with --all, --status, -l or --mine",
        )


def _chosen(selection: Selection, backend: Backend, namespace: str) -> dict[str, str | None]:
    """The jobs by name, with the uid of each: another that takes the name was not chosen.

    None for one that is damaged, and does not say its uid any more.
    """
    labels = filtering.selection(backend, str(selection.selector or ""), mine=selection.mine)
    phases = {phase for some in selection.status for phase in some}
    jobs = filtering.listed(filtering.found(backend, namespace, labels), phases=phases)
    return {one.name: one.uid or None for one in jobs}
