"""The commands `suspend`, `resume` and `replan`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arena_topo import layout
from arena_topo.cli import confirmation
from arena_topo.cli.arguments import (
    PANEL,
    ActionOutputFlag,
    Name,
    Names,
    Output,
    names_only,
    option,
    seats,
)
from arena_topo.cli.confirmation import YesFlag
from arena_topo.cli.console import Console, act_on_each
from arena_topo.cli.interrupt_message import job_goes_on
from arena_topo.cli.options import PROGRAM
from arena_topo.cli.parameters import command_from_records
from arena_topo.cli.session import Session
from arena_topo.cli.targets import namespace_of, open_engine, suggest_similar_job
from arena_topo.errors import NoGain, NotNow
from arena_topo.flag import Flag
from arena_topo.gang import Watcher
from arena_topo.jobs import view
from arena_topo.jobs.wait_progress import WaitProgress

if TYPE_CHECKING:
    from arena_topo.engines.backend import Backend
    from arena_topo.gang.protocol import StartOutcome


_WaitFlag = Annotated[
    bool,
    Flag(help="Wait until all workers run, not only until they have nodes.", panel=PANEL),
]


@command_from_records
def suspend_jobs(
    names: Names, session: Session, *, output_format: ActionOutputFlag = Output.WIDE
) -> None:
    """Stop jobs until they are resumed; their GPUs are free for others meanwhile.

    A job that is resumed starts from its beginning, or from a checkpoint that its program loads.

    Examples:
      # Free the GPUs of a job
      suspend bert
    """
    from arena_topo.gang.suspend import may_have_pods, suspend_job  # noqa: PLC0415 - only here

    console, brief = session.console, names_only(output_format, session.common)

    def stop(backend: Backend, name: str, namespace: str) -> None:
        frees = may_have_pods(backend, name, namespace)
        if not suspend_job(backend, name, namespace):
            console.info(f"{name} is suspended already")
            if brief:
                console.write(_changed(name, "", brief=True))
            return
        console.write(_changed(name, "suspended", brief=brief))
        again = f"{PROGRAM} resume {name} -n {namespace}"
        then = "Its GPUs are free once its pods have ended. " if frees else ""
        console.info(f"{then}Start it again: {again}")

    _each(names, session, stop)


@command_from_records
def resume_jobs(
    names: Names,
    session: Session,
    *,
    wait: _WaitFlag = False,
    output_format: ActionOutputFlag = Output.WIDE,
) -> None:
    """Start waiting, suspended or interrupted jobs, in order; they get a new placement.

    Examples:
      # Start a waiting job now, if it fits
      resume bert
    """
    from arena_topo.gang.resume import all_instances_run, resume_job  # noqa: PLC0415 - as above

    console, brief = session.console, names_only(output_format, session.common)

    def start(backend: Backend, name: str, namespace: str) -> None:
        if all_instances_run(backend, name, namespace):
            console.info(f"{name} runs already")
            if brief:
                console.write(_changed(name, "", brief=True))
        else:
            done = _changed(name, "resumed", brief=brief)
            _start(console, resume_job, backend, name, namespace, wait=wait, done=done, brief=brief)

    _each(names, session, start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moving:
    """Where `replan` moves a job, and whether it asks."""

    avoid: tuple[str, ...] = option(
        (), "Use another node than this one; repeat for more.", "NODE", completes="nodes"
    )
    on: Annotated[
        str, seats("Use this placement: the node and the GPUs of each worker, all of them free.")
    ] = ""
    force: bool = option(False, "Restart the job even where that gives no more bandwidth.")
    dry_run: bool = option(
        False, "Only show where the job would go, and its bandwidth.", excludes=("--wait",)
    )
    yes: YesFlag = False


@command_from_records
def replan_job(name: Name, moving: Moving, session: Session, *, wait: _WaitFlag = False) -> None:
    """Stop a running job and start it again on the best GPUs available now.

    The job starts from its beginning, or from a checkpoint that its program loads. Where its new
    GPUs would not give clearly more bandwidth it goes on, unless --avoid, --on or --force is given.
    A job that has to wait after all then gets any GPUs: --avoid and --on count for this start.
    That a job goes on for this reason is no failure: the exit code is 0.

    Examples:
      # What would the job gain?
      replan bert --dry-run
      # Move it off a node
      replan bert --avoid node-3
    """
    from arena_topo.gang.replan import check_gain, foresee_replan, replan_job  # noqa: PLC0415 - as above

    console = session.console
    wish: dict[str, Any] = {"avoid": moving.avoid, "on": moving.on}

    def look(backend: Backend, name: str, namespace: str) -> None:
        code = 0
        try:
            with job_goes_on(console, backend, name, namespace, exists=lambda: False):
                foreseen = foresee_replan(backend, name, namespace, **wish)
            console.screen(view.move(foreseen, name))
            if not moving.force:
                check_gain(foreseen, name, constrained=any(wish.values()))
        except (NotNow, NoGain) as error:
            # That the job would stay is the answer, and no error.
            console.screen(layout.refusal(error, console.width) + "\n")
            code = error.exit_code
        console.info("Nothing was changed.")
        raise typer.Exit(code)

    def move(backend: Backend, name: str, namespace: str) -> None:
        try:
            restart(backend, name, namespace)
        except NoGain as stays:
            console.info(layout.refusal(stays, console.width))
            if session.common.quiet:
                console.write(_changed(name, "", brief=True))

    def restart(backend: Backend, name: str, namespace: str) -> None:
        done = _changed(name, "replanned", brief=session.common.quiet)
        if moving.dry_run:
            look(backend, name, namespace)
        if not moving.yes:
            with job_goes_on(console, backend, name, namespace, exists=lambda: False):
                foreseen = foresee_replan(backend, name, namespace, **wish)
            facts = view.move(foreseen, name)
            # Who has nothing to lose is not asked.
            asks = foreseen.before is not None
            asks = asks and confirmation.must_confirm(
                console, "replan", yes=moving.yes, look="--dry-run"
            )
            if not moving.force:
                check_gain(foreseen, name, constrained=any(wish.values()))
            question = f"Stop {name}, and start it again from its beginning?"
            if asks and not confirmation.confirm(console, facts.rstrip("\n"), question):
                console.info("Nothing was changed.")
                raise typer.Exit(1)
        start = partial(replan_job, force=moving.force, **wish)
        _start(
            console,
            start,
            backend,
            name,
            namespace,
            wait=wait,
            done=done,
            brief=session.common.quiet,
        )

    _each((name,), session, move)


def _each(names: Sequence[str], session: Session, act: Callable[[Backend, str, str], None]) -> None:
    """Act on every job, also after an error with another; the first error is the exit code."""
    backend = open_engine(session)
    namespace = namespace_of(session, backend)

    def act_on(name: str) -> None:
        with suggest_similar_job(name, namespace, backend):
            act(backend, name, namespace)

    act_on_each(session.console, dict.fromkeys(names), act_on)


def _changed(name: str, how: str, *, brief: bool) -> str:
    return f"{view.RESOURCE}/{name}{'' if brief else f' {how}'}\n"


def _start(
    console: Console,
    start: Callable[[Backend, str, str, Watcher], StartOutcome],
    backend: Backend,
    name: str,
    namespace: str,
    *,
    wait: bool,
    done: str,
    brief: bool,
) -> None:
    """Start a job and show its placement; NotNow if it has to wait."""
    from arena_topo.engines import goals  # noqa: PLC0415 - the verbs load what they need
    from arena_topo.gang.resume import check_started  # noqa: PLC0415 - as above

    stays = WaitProgress(console, name, "is starting")
    with job_goes_on(console, backend, name, namespace, exists=lambda: stays.heard), stays:
        stays.show()
        outcome = start(backend, name, namespace, stays.watcher(stay=wait))
    check_started(outcome, backend, name, namespace)
    if not outcome.changed:
        console.info(f"{name} was not suspended")
        if brief:
            console.write(done)
        return
    console.write(done)
    status = backend.job(name, namespace)
    if status.forecast is not None and status.forecast.workers:
        slots = max(1, status.request_gpus // len(status.forecast.workers))
        table = view.placement_rows(status.forecast, name, slots=slots)
        console.info(table.rstrip("\n"))
    elif status.waits and (trouble := view.why_not_running(status)) is not None:
        console.info(trouble)
        console.info(f"  {goals.Start.ITSELF.capitalize()}.")
    console.notes(outcome.notes)
