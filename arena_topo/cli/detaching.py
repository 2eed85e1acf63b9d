"""Ctrl-C ends a command that waits for a job, but not the job; what is said then.

The same is said after any other signal, and when `--timeout` is over.
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
"""Seconds that the last look at a job may take: people expect Ctrl-C to end things at once."""


@contextmanager
def coming_back(command: str, left: str) -> Iterator[None]:
    """Let Ctrl-C end a command that only looks; say what is `left`, and with what it goes on."""
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
    """Let Ctrl-C end the waiting but not the job, and say how to come back to it.

    `there` says whether it is known by then that there is such a job, `creates` that the command
    makes it, `back` what to type to go on (else: follow the log).
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
            # Somebody else's of the same name, or ours that was cut short.
            say(f"A job {name} exists, maybe incomplete; delete it: {end}")
        raise


def _over_echo() -> None:
    """Begin at the first column: a terminal has written `^C` there, which no width counts."""
    if moves(sys.stderr):
        sys.stderr.write("\r")
