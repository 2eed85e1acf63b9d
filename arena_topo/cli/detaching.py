"""Ctrl-C ends a command that waits for a job, but not the job; what is said then.

The same is said after any other signal, and when `--timeout` is over.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from arena_topo import layout
from arena_topo.cli import stopping
from arena_topo.cli.options import PROGRAM, say
from arena_topo.cli.terminal import moves, wrapped
from arena_topo.engines import Backend, JobStatus, Phase
from arena_topo.errors import ArenaError, NotFound
from arena_topo.escaping import one_line

_GLANCE = 0.6
"""Seconds that the last look at a job may take: people expect Ctrl-C to end things at once."""

_GLUE = "\N{NO-BREAK SPACE}"
"""What holds the words of a command together while the text around it is wrapped."""


def advise(text: str, *commands: str, indent: str = "  ") -> None:
    """Say a text, wrapped on a terminal; the commands in it stay whole, for people to copy."""
    for command in commands:
        text = text.replace(command, command.replace(" ", _GLUE))
    folded = layout.fold(text, wrapped(sys.stderr), indent=indent)
    say(folded.replace(_GLUE, " "), whole=True)


@contextmanager
def coming_back(
    command: str, left: Callable[[], str] = lambda: "Nothing else was ended."
) -> Iterator[None]:
    """Let Ctrl-C end a command that only looks, and say with what it goes on.

    `left` says what becomes of what was looked at.
    """
    try:
        yield
    except (KeyboardInterrupt, stopping.OutOfTime):
        _over_echo()
        advise(f"{left()} Come back: {command}", command.partition(";")[0])
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
        job = _Left(
            name=name,
            namespace=namespace,
            back=back,
            there=there(),
            creates=creates,
        )
        said = job.blind("no answer")
        with stopping.briefly(_GLANCE):
            said = job.seen(backend)
        _over_echo()
        advise(*said)
        raise


def _over_echo() -> None:
    """Begin at the first column: a terminal has written `^C` there, which no width counts."""
    if moves(sys.stderr):
        sys.stderr.write("\r")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Left:
    """A job that nobody looks at any more; its texts come with the commands in them."""

    name: str
    namespace: str
    back: str | None
    there: bool
    creates: bool

    def blind(self, why: str) -> tuple[str, ...]:
        """What to say of it where it is not in sight."""
        if self.there:
            return self._on_its_way()
        look = self._command("get")
        is_there = "was created" if self.creates else "is there"
        return f"Whether {self.name} {is_there} cannot be seen ({one_line(why)}): {look}", look

    def seen(self, backend: Backend) -> tuple[str, ...]:
        """What becomes of it, as far as that can be seen."""
        doubtful = self.creates and not self.there
        end = self._command("delete")
        try:
            status = backend.job(self.name, self.namespace)
            waits = None if doubtful else _waits(backend, status)
        except NotFound:
            return (self._gone(),)
        except ArenaError as error:
            return self.blind(error.message)
        if doubtful:
            # Somebody else's of the same name, or ours that was cut short.
            return f"A job {self.name} is there, maybe not whole; end it: {end}", end
        if waits is None:
            return self._on_its_way()
        back = f" Come back: {self.back};" if self.back else ""
        does = "is suspended" if status.phase is Phase.SUSPENDED else "waits without GPUs"
        said = f"The job {self.name} {does}; {waits}{'.' if back else ';'}{back}"
        resume = self._command("resume")
        return f"{said} end it: {end}", resume, self.back or end, end

    def _gone(self) -> str:
        if self.there:
            return f"The job {self.name} was deleted."
        if self.creates:
            return "Nothing was created."
        return f"There is no job {self.name} in namespace {self.namespace}."

    def _on_its_way(self) -> tuple[str, ...]:
        back, end = self.back or self._command("logs -f"), self._command("delete")
        return f"The job {self.name} goes on. Come back: {back}; end it: {end}", back, end

    def _command(self, verb: str) -> str:
        return f"{PROGRAM} {verb} {self.name} -n {self.namespace}"


def _waits(backend: Backend, status: JobStatus) -> str | None:
    """Who starts a job that waits for its GPUs; None for one that is on its way."""
    from arena_topo.engines import waiting  # noqa: PLC0415 - only for who is left

    start = waiting.start_of(status, backend)
    return None if start is None else waiting.starting(start, status.name, status.namespace)
