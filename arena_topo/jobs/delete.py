"""The command `delete`."""

from __future__ import annotations

from typing import Annotated

from arena_topo.cli import remembering
from arena_topo.cli.arguments import (
    PANEL,
    ActionOutputFlag,
    Kind,
    Output,
    PerhapsNames,
    TypeFlag,
    names_only,
)
from arena_topo.cli.opening import engine, namespace_of, suggesting
from arena_topo.cli.options import PROGRAM, Globals, act_on_each, say, show, spread
from arena_topo.engines import Backend
from arena_topo.errors import NotFound, UsageError
from arena_topo.flag import Flag
from arena_topo.jobs import filtering, view
from arena_topo.jobs.chosen import Chosen


@spread
def delete(
    names: PerhapsNames,
    chosen: Chosen,
    everywhere: Globals,
    *,
    every: Annotated[
        bool,
        Flag(
            help="Delete all jobs of the namespace.", name="--all", panel=PANEL, excludes=("JOB",)
        ),
    ] = False,
    kind: TypeFlag = None,
    ignore_not_found: Annotated[
        bool, Flag(help="Jobs that do not exist are no error.", panel=PANEL)
    ] = False,
    output_format: ActionOutputFlag = Output.WIDE,
) -> None:
    """Delete jobs and all that belongs to them.

    Examples:
      # Two jobs by name
      delete bert eval
      # All jobs that wait
      delete --status PENDING
      # My jobs with a label
      delete --mine -l team=vision
    """
    if not names and not every and chosen == Chosen():
        raise UsageError(
            "no job is named",
            hint=f"{PROGRAM} delete JOB..., or choose jobs with --all, --status, -l or --mine",
        )
    brief = names_only(output_format, everywhere)
    backend = engine(everywhere)
    namespace = namespace_of(everywhere, backend)
    jobs: dict[str, str | None] = dict.fromkeys(names)
    if not names:
        jobs = {} if kind is Kind.OTHER else _found(chosen, backend, namespace)
        # A selected job that another request has deleted meanwhile is no error.
        ignore_not_found = True
        if not jobs:
            say(f"No such jobs in namespace {namespace}.")

    def remove(job: tuple[str, str | None]) -> None:
        name, uid = job
        try:
            with suggesting(name, namespace, None if ignore_not_found else backend, kind):
                backend.delete(name, namespace, uid=uid)
        except NotFound:
            if ignore_not_found:
                return
            raise
        if brief:
            show(f"{view.RESOURCE}/{name}\n")
        else:
            say(f"The training job {name} has been deleted successfully")
        remembering.gone(backend, namespace, name)

    act_on_each(jobs.items(), remove)


def _found(chosen: Chosen, backend: Backend, namespace: str) -> dict[str, str | None]:
    """The selected jobs by name, each with its uid, so that no newer job of that name is deleted.

    The uid is None for a damaged object without one.
    """
    every = filtering.found(backend, namespace, chosen.labels(backend))
    jobs = filtering.listed(every, phases=chosen.phases)
    return {one.name: one.uid or None for one in jobs}
