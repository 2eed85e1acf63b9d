"""Ctrl-C ends a command that waits for a job, but not the job; what is said then.

The same is said after any other signal, and when `--timeout` is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from arena_topo.backends import Backend, JobStatus, Phase
from arena_topo.cli import stopping
from arena_topo.cli.options import PROGRAM, say
from arena_topo.errors import ArenaError, NotFound

_GLANCE = 0.6
"""Seconds that the last look at a job may take: people expect Ctrl-C to end things at once."""


@contextmanager
def coming_back(command: str) -> Iterator[None]:
    """Let Ctrl-C end a command that only looks, and say with what it goes on."""
    try:
        yield
    except (KeyboardInterrupt, stopping.OutOfTime):
        say(f"Nothing else was ended. Come back: {command}")
        raise


@contextmanager
def detaching(
    backend: Backend, name: str, namespace: str, *, made: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """Let Ctrl-C end the waiting but not the job, and say how to come back to it."""
    try:
        yield
    except (KeyboardInterrupt, stopping.OutOfTime):
        there = made()
        text = _unseen(name, namespace) if there else _doubtful(name, namespace, "no answer")
        with stopping.briefly(_GLANCE):
            text = _left_behind(backend, name, namespace, made=there)
        say(text)
        raise


def _unseen(name: str, namespace: str) -> str:
    """What to say of a job that was created, and that is not in sight."""
    back = f"{PROGRAM} logs -f {name} -n {namespace}"
    return f"The job {name} goes on. Come back: {back}; {_end(name, namespace)}"


def _doubtful(name: str, namespace: str, why: str) -> str:
    """What to say of a job that may have been created or not."""
    look = f"{PROGRAM} get {name} -n {namespace}"
    return f"Whether {name} was created cannot be seen ({why}): {look}"


def _end(name: str, namespace: str) -> str:
    return f"end it: {PROGRAM} delete {name} -n {namespace}"


def _left_behind(backend: Backend, name: str, namespace: str, *, made: bool) -> str:
    """What becomes of a job that nobody looks at any more; `made` says that it was created."""
    end = _end(name, namespace)
    try:
        status = backend.job(name, namespace)
        waits = starter(status, backend)
    except NotFound:
        return f"The job {name} was deleted." if made else "Nothing was created."
    except ArenaError as error:
        if not made:
            return _doubtful(name, namespace, error.message)
        waits = None
    else:
        if not made:
            # Somebody else's of the same name, or ours that was cut short.
            return f"A job {name} is there, maybe not whole; {end}"
    if waits is not None:
        return f"The job {name} waits and holds nothing; {waits}; {end}"
    return _unseen(name, namespace)


def starter(status: JobStatus, backend: Backend) -> str | None:
    """Who starts a job that waits for its GPUs; None for one that is on its way."""
    resume = f"{PROGRAM} resume {status.name} -n {status.namespace}"
    forecast = status.forecast
    if status.phase not in {Phase.PENDING, Phase.QUEUING, Phase.SUSPENDED}:
        return None
    if forecast is None or forecast.state not in {"waiting", "held"}:
        return None
    if status.phase is Phase.QUEUING:
        return "its queue decides when it starts"
    if backend.starts_waiting or backend.queue is None:
        return "it starts by itself once it can"
    if forecast.state == "waiting" and backend.queue.watched():
        return "the controller starts it once it fits"
    return f"{resume} starts it when it fits"
