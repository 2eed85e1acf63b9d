"""The command `wait`: waits for jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from arena_topo.cli.arguments import PANEL, ActionOutputFlag, Names, Output, names_only
from arena_topo.cli.console import Console
from arena_topo.cli.interrupt_message import say_how_to_return
from arena_topo.cli.options import PROGRAM
from arena_topo.cli.parameters import command_from_records
from arena_topo.cli.refresh import warn_unreachable
from arena_topo.cli.session import Session
from arena_topo.cli.targets import job_not_found, namespace_of, open_engine
from arena_topo.engines import JobStatus, goals
from arena_topo.engines.goals import Ending, Goal, Standing, Start
from arena_topo.errors import JobNotFound
from arena_topo.flag import Flag
from arena_topo.jobs import progress, view


@command_from_records
def wait(
    names: Names,
    session: Session,
    *,
    goal: Annotated[
        Goal,
        Flag(help="What to wait for; all jobs must reach it.", name="--for", panel=PANEL),
    ] = Goal.FINISHED,
    output_format: ActionOutputFlag = Output.WIDE,
) -> None:
    """Wait until jobs are over, or run, have their nodes, have succeeded, or are gone.

    Ends with 0 when all jobs have reached that, with 1 as soon as one can never reach it, with 6
    when --timeout is over; the jobs go on. Waiting until jobs are finished ends with the code of
    the first launcher that failed. Jobs that have succeeded count as running; jobs that have failed
    do not.

    Examples:
      # Until both jobs have ended
      wait bert eval
      # At most ten minutes until it runs
      wait bert --for running --timeout 10m
    """
    backend = open_engine(session, repeating=True)
    namespace, console = namespace_of(session, backend), session.console
    brief = names_only(output_format, session.common)
    watched = _Watched(console=console, namespace=namespace, goal=goal, brief=brief)
    left = "The jobs are left as they are."
    if len(names) == 1:
        left = f"The job {names[0]} is left as it is."
    with say_how_to_return(
        console, f"{PROGRAM} wait {' '.join(names)} --for {goal} -n {namespace}", left
    ):
        try:
            ends = goals.wait_all(
                backend,
                names,
                namespace,
                goal=goal,
                timeout=session.common.timeout,
                hears=goals.Listener(
                    tell=watched.changed,
                    waits=watched.waits,
                    ended=watched.ended,
                    blind=watched.blind,
                ),
            )
        except JobNotFound as error:
            raise job_not_found(error.name, namespace, backend) from None
    failed = [wrong for ending in ends if (wrong := goals.goal_failure(ending, goal)) is not None]
    for wrong in failed[1:]:
        console.error(wrong)
    if failed:
        raise failed[0]


@dataclass(slots=True, kw_only=True)
class _Watched:
    """Messages about the jobs while they are awaited."""

    console: Console
    namespace: str
    goal: Goal
    brief: bool
    hinted: set[str] = field(default_factory=set)
    sees: bool = True

    def changed(self, status: JobStatus) -> None:
        """A job has changed; how it ended is printed once, as the result or as the error."""
        if goals.goal_standing(self.goal, status) is Standing.OPEN or not status.phase.over:
            self.console.info(progress.phase_sentence(status))

    def blind(self, why: str | None) -> None:
        """The server does not answer, and why; None once it answers again."""
        if why is not None and self.sees:
            warn_unreachable(self.console, why)
        self.sees = why is None

    def waits(self, status: JobStatus, start: Start | None) -> None:
        """A job waits without GPUs, and `start` says who starts it; None: it waits no more."""
        name = status.name
        if start is not None and name not in self.hinted:
            self.hinted.add(name)
            self.console.info(
                f"  It waits without GPUs; {goals.start_phrase(start, name, self.namespace)}"
            )

    def ended(self, ending: Ending) -> None:
        """A job has reached the goal, or can no longer reach it."""
        if ending.standing is Standing.REACHED:
            finished = ending.status if self.goal is Goal.FINISHED else None
            how = finished.phase.lower() if finished else self.goal
            name = f"{view.RESOURCE}/{ending.name}"
            self.console.write(f"{name}\n" if self.brief else f"{name} {how}\n")
