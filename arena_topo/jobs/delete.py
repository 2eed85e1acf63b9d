"""The command `delete`."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from arena_topo.cli import confirmation
from arena_topo.cli.arguments import (
    PANEL,
    ActionOutputFlag,
    JobKind,
    Output,
    PerhapsNames,
    TypeFlag,
    names_only,
)
from arena_topo.cli.confirmation import YesFlag
from arena_topo.cli.console import act_on_each
from arena_topo.cli.options import PROGRAM
from arena_topo.cli.parameters import command_from_records
from arena_topo.cli.session import Session
from arena_topo.cli.targets import namespace_of, open_engine, suggest_similar_job
from arena_topo.engines.backend import Backend
from arena_topo.errors import NotFound, UsageError
from arena_topo.flag import Flag
from arena_topo.jobs import job_order, view
from arena_topo.jobs.job_selection import Chosen
from arena_topo.words import counted


@command_from_records
def delete(
    names: PerhapsNames,
    chosen: Chosen,
    session: Session,
    *,
    every: Annotated[
        bool,
        Flag(
            help="Delete all jobs of the namespace.", name="--all", panel=PANEL, excludes=("JOB",)
        ),
    ] = False,
    kind: TypeFlag = None,
    ignore_not_found: Annotated[
        bool, Flag(help="Ignore jobs that do not exist.", panel=PANEL)
    ] = False,
    yes: YesFlag = False,
    output_format: ActionOutputFlag = Output.WIDE,
) -> None:
    """Delete jobs and all that belongs to them.

    It asks before it deletes jobs that are chosen and not named.

    Examples:
      # Two jobs by name
      delete bert eval
      # All jobs that wait, whoever submitted them
      delete --status PENDING
      # My jobs with a label
      delete --mine -l team=vision
    """
    console = session.console
    if not names and not every and chosen == Chosen():
        raise UsageError(
            "no job is named",
            hint=f"{PROGRAM} delete JOB..., or choose jobs with --all, --status, -l or --mine",
        )
    asks = not names and confirmation.must_confirm(
        console, "delete", yes=yes, look=f"{PROGRAM} list"
    )
    brief = names_only(output_format, session.common)
    backend = open_engine(session)
    namespace = namespace_of(session, backend)
    jobs: dict[str, str | None] = dict.fromkeys(names)
    if not names:
        jobs = {} if kind is JobKind.OTHER else _selected(chosen, backend, namespace)
        # A selected job that another request has deleted meanwhile is no error.
        ignore_not_found = True
        if not jobs:
            console.info(f"No such jobs in namespace {namespace}.")
        elif asks and not confirmation.confirm(
            console,
            "\n".join(jobs),
            f"Delete {counted(len(jobs), 'job')} of namespace {namespace}, and all that belongs to"
            f" {'it' if len(jobs) == 1 else 'them'}?",
        ):
            console.info("Nothing was deleted.")
            raise typer.Exit(1)

    def remove(job: tuple[str, str | None]) -> None:
        name, uid = job
        console.interruption.begin_changes()
        try:
            with suggest_similar_job(name, namespace, None if ignore_not_found else backend, kind):
                backend.delete(name, namespace, uid=uid, tell=console.warn)
        except NotFound:
            if ignore_not_found:
                return
            raise
        if brief:
            console.write(f"{view.RESOURCE}/{name}\n")
        else:
            console.info(f"The training job {name} has been deleted successfully")
        session.names.gone(backend, namespace, name)

    with closing(backend):
        act_on_each(console, jobs.items(), remove)


def _selected(chosen: Chosen, backend: Backend, namespace: str) -> dict[str, str | None]:
    """The selected jobs by name, each with its uid, so that no newer job of that name is deleted.

    The uid is None for a damaged object without one.
    """
    every = job_order.list_statuses(backend, namespace, chosen.labels(backend))
    jobs = job_order.select_jobs(every, phases=chosen.phases)
    return {job.name: job.uid or None for job in jobs}
