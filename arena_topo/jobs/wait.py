"""The command `wait`: waits for jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from arena_topo.cli.arguments import PANEL, ActionOutputFlag, Names, Output, names_only
from arena_topo.cli.detaching import coming_back
from arena_topo.cli.opening import engine, missing, namespace_of
from arena_topo.cli.options import PROGRAM, Globals, complain, say, show, spread, warn
from arena_topo.engines import JobStatus, waiting
from arena_topo.engines.waiting import Ending, Goal, Standing, Start
from arena_topo.errors import JobNotFound
from arena_topo.escaping import one_line
from arena_topo.flag import Flag
from arena_topo.jobs import view


@spread
def wait(
    names: Names,
    everywhere: Globals,
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
    backend = engine(everywhere, repeating=True)
    namespace = namespace_of(everywhere, backend)
    brief = names_only(output_format, everywhere)
    watched = _Watched(namespace=namespace, goal=goal, brief=brief)
    left = "The jobs are left as they are."
    if len(names) == 1:
        left = f"The job {names[0]} is left as it is."
    with coming_back(f"{PROGRAM} wait {' '.join(names)} --for {goal} -n {namespace}", left):
        try:
            ends = waiting.wait_all(
                backend,
                names,
                namespace,
                goal=goal,
                timeout=everywhere.timeout,
                hears=waiting.Listener(
                    tell=watched.told,
                    waits=watched.waits,
                    ended=watched.ended,
                    blind=watched.blind,
                ),
            )
        except JobNotFound as error:
            raise missing(error.name, namespace, backend) from None
    failed = [wrong for one in ends if (wrong := waiting.failure(one, goal)) is not None]
    for wrong in failed[1:]:
        complain(wrong)
    if failed:
        raise failed[0]


@dataclass(slots=True, kw_only=True)
class _Watched:
    """Messages about the jobs while they are awaited."""

    namespace: str
    goal: Goal
    brief: bool
    hinted: set[str] = field(default_factory=set)
    sees: bool = True

    def told(self, status: JobStatus) -> None:
        """A job has changed."""
        reason = f": {one_line(status.reason)}" if status.reason else ""
        say(f"The Job {status.name} is {status.phase}{reason}")

    def blind(self, why: str | None) -> None:
        """The server does not answer, and why; None once it answers again."""
        if why is not None and self.sees:
            warn(f"API server not reachable, retrying: {why}")
        self.sees = why is None

    def waits(self, status: JobStatus, start: Start | None) -> None:
        """A job waits without GPUs, and `start` says who starts it; None: it waits no more."""
        name = status.name
        if start is not None and name not in self.hinted:
            self.hinted.add(name)
            say(f"  It waits without GPUs; {waiting.starting(start, name, self.namespace)}")

    def ended(self, one: Ending) -> None:
        """A job has reached the goal, or can no longer reach it."""
        if one.standing is Standing.REACHED:
            finished = one.status if self.goal is Goal.FINISHED else None
            how = finished.phase.lower() if finished else self.goal
            name = f"{view.RESOURCE}/{one.name}"
            show(f"{name}\n" if self.brief else f"{name} {how}\n")
