"""The last message of a command that waits for a job and is interrupted; the job goes on.

It is the same after Ctrl-C, after any other signal, and when the deadline of `--timeout` passes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from arena_topo.cli import stopping
from arena_topo.cli.options import PROGRAM, say
from arena_topo.cli.terminal import moves
from arena_topo.engines import Backend, JobStatus, Phase
from arena_topo.errors import ArenaError, NotFound
from arena_topo.escaping import one_line

_GLANCE = 0.6
"""Seconds for the last look at a job: Ctrl-C should end a command at once."""


@contextmanager
def coming_back(command: str, left: str) -> Iterator[None]:
    """After an interrupt of a command that only watches say what is `left`, and how to return."""
    try:
        yield
    except (KeyboardInterrupt, stopping.OutOfTime):
        _over_echo()
        say(f"{left} Come back: {command}")
        raise


@contextmanager
def detaching(
    backend: Backend,
    name: str,
    namespace: str,
    *,
    there: Callable[[], bool],
    creates: bool = False,
    back: str | None = None,
) -> Iterator[None]:
    """After an interrupt say how to return to the job, which goes on, and how to delete it.

    `there` returns whether the job is known to exist by then; `creates`: the command creates it;
    `back` is the command to return with (else the one that follows the log).
    """
    try:
        yield
    except (KeyboardInterrupt, stopping.OutOfTime):
        known = there()
        seen: JobStatus | ArenaError = ArenaError("no answer")
        with stopping.briefly(_GLANCE):
            try:
                seen = backend.job(name, namespace)
            except ArenaError as error:
                seen = error
        look, follow, end = (
            f"{PROGRAM} {verb} {name} -n {namespace}" for verb in ("get", "logs -f", "delete")
        )
        _over_echo()
        if isinstance(seen, NotFound):
            gone = f"There is no job {name} in namespace {namespace}."
            gone = "Nothing was created." if creates else gone
            say(f"The job {name} was deleted." if known else gone)
        elif known or (not creates and isinstance(seen, JobStatus)):
            suspended = isinstance(seen, JobStatus) and seen.phase is Phase.SUSPENDED
            does = "is suspended" if suspended else "goes on"
            back = back or follow
            say(f"The job {name} {does}. Come back: {back}; delete it: {end}")
        elif isinstance(seen, ArenaError):
            is_there = "was created" if creates else "is there"
            why = one_line(seen.message)
            say(f"Whether {name} {is_there} cannot be seen ({why}): {look}")
        else:
            # Another user's job of the same name, or an incomplete one of ours.
            say(f"A job {name} exists, maybe incomplete; delete it: {end}")
        raise


def _over_echo() -> None:
    """Return to the first column: the terminal has echoed `^C` there."""
    if moves(sys.stderr):
        sys.stderr.write("\r")
