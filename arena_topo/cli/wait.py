"""The command that waits for jobs: wait."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

from arena_topo import output
from arena_topo.backends import JobStatus, Phase
from arena_topo.cli.arguments import PANEL, Names
from arena_topo.cli.detaching import coming_back, starter
from arena_topo.cli.opening import engine, missing, namespace_of
from arena_topo.cli.options import PROGRAM, Globals, LogLevel, say, show, spread
from arena_topo.errors import ArenaError, JobFailed
from arena_topo.flag import Flag
from arena_topo.workflow.waiting import Ending, Goal, Standing, UnknownJob


@spread
def wait(
    names: Names,
    everywhere: Globals,
    *,
    goal: Annotated[
        Goal,
        Flag(help="What to wait for; all jobs must reach it.", name="--for", panel=PANEL),
    ] = Goal.FINISHED,
) -> None:
    """Wait until jobs are over, or run, have their nodes, have succeeded, or are gone.

    Ends with 0 when all jobs have reached that, with 1 as soon as one can never reach it, with 6
    when --timeout is over; the jobs go on. Waiting until jobs are finished ends with the code of
    the first launcher that failed. A job that has succeeded counts as one that runs, one that
    failed does not.
    """
    from arena_topo.workflow import waiting  # noqa: PLC0415 - the verbs load what they need

    backend = engine(everywhere)
    namespace = namespace_of(everywhere, backend)
    hinted: set[str] = set()

    def told(status: JobStatus) -> None:
        reason = f": {status.reason}" if status.reason else ""
        say(f"The Job {status.name} is {status.phase}{reason}")
        if goal is Goal.DELETED or status.name in hinted:
            return
        with suppress(ArenaError):
            if (who := starter(status, backend)) is not None:
                hinted.add(status.name)
                say(f"  It holds nothing now; {who}")

    def ended(one: Ending) -> None:
        if one.standing is Standing.REACHED:
            how = one.status.phase.lower() if goal is Goal.FINISHED and one.status else goal
            name = f"{output.RESOURCE}/{one.name}"
            show(f"{name}\n" if everywhere.quiet else f"{name} {how}\n")

    with coming_back(f"{PROGRAM} wait {' '.join(names)} --for {goal} -n {namespace}"):
        try:
            ends = waiting.wait_all(
                backend,
                names,
                namespace,
                goal=goal,
                timeout=everywhere.timeout,
                tell=told,
                ended=ended,
            )
        except UnknownJob as error:
            raise missing(error.name, namespace, backend) from None
    failed = [wrong for one in ends if (wrong := _failure(one, goal, namespace)) is not None]
    for wrong in failed[1:]:
        say(output.complaint(wrong), LogLevel.ERROR)
    if failed:
        raise failed[0]


def _failure(one: Ending, goal: Goal, namespace: str) -> ArenaError | None:
    """What is wrong with how waiting for a job ended; None if nothing is."""
    status = one.status
    if status is None:
        if one.standing is Standing.REACHED:
            return None
        return ArenaError(f"the job {one.name} was deleted while it was waited for")
    if status.phase is Phase.FAILED and goal is not Goal.DELETED:
        if one.standing is Standing.REACHED and goal is not Goal.FINISHED:
            return None
        code = (status.exit_code or 1) if goal is Goal.FINISHED else 1
        return JobFailed(
            f"the job {one.name} failed",
            exit_code=code,
            hint=f"{PROGRAM} logs {one.name} -n {namespace}",
        )
    return None
