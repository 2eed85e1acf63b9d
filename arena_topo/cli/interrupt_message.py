"""The last message of a command that waits for a job and is interrupted; the job goes on.

It is the same after Ctrl-C, after any other signal, and when the deadline of `--timeout` passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from arena_topo.cli import interruption
from arena_topo.cli.console import Console
from arena_topo.cli.options import PROGRAM
from arena_topo.engines import JobStatus, Phase
from arena_topo.engines.backend import Backend
from arena_topo.errors import ArenaError, NotFound
from arena_topo.escaping import one_line

_GLANCE = 0.6
"""Seconds for the last look at a job: Ctrl-C should end a command at once."""


@contextmanager
def say_how_to_return(console: Console, command: str, left: str) -> Iterator[None]:
    """If a command that only watches is interrupted, print what is `left` and how to return."""
    try:
        yield
    except (KeyboardInterrupt, interruption.OutOfTime):
        console.after_echo(f"{left} Come back: {command}")
        raise


@contextmanager
def job_goes_on(
    console: Console,
    backend: Backend,
    name: str,
    namespace: str,
    *,
    exists: Callable[[], bool],
    creates: bool = False,
    back: str | None = None,
) -> Iterator[None]:
    """If the command is interrupted, print how to return to the job, which goes on, or delete it.

    `exists` returns whether the job is known to exist by then; `creates`: the command creates it;
    `back` is the command to return with (else the one that follows the log).
    """
    console.interruption.begin_changes()
    try:
        yield
    except (KeyboardInterrupt, interruption.OutOfTime):
        console.after_echo(
            _farewell(backend, name, namespace, known=exists(), creates=creates, back=back)
        )
        raise


def _farewell(
    backend: Backend, name: str, namespace: str, *, known: bool, creates: bool, back: str | None
) -> str:
    """What to say of a job that a command leaves."""
    seen: JobStatus | ArenaError = ArenaError("no answer")
    with interruption.within_seconds(_GLANCE):
        try:
            seen = backend.job(name, namespace)
        except ArenaError as error:
            seen = error
    look, follow, end = (
        f"{PROGRAM} {verb} {name} -n {namespace}" for verb in ("get", "logs -f", "delete")
    )
    if isinstance(seen, NotFound):
        gone = f"There is no job {name} in namespace {namespace}."
        gone = "Nothing was created." if creates else gone
        return f"The job {name} was deleted." if known else gone
    if known or (not creates and isinstance(seen, JobStatus)):
        suspended = isinstance(seen, JobStatus) and seen.phase is Phase.SUSPENDED
        does = "is suspended" if suspended else "goes on"
        return f"The job {name} {does}. Come back: {back or follow}; delete it: {end}"
    if isinstance(seen, ArenaError):
        event = "was created" if creates else "exists"
        why = one_line(seen.message)
        return f"Could not check whether job {name} {event} ({why}); check with: {look}"
    # Another user's job of the same name, or an incomplete one of ours.
    return f"A job {name} exists, maybe incomplete; delete it: {end}"
