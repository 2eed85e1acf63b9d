"""Ctrl-C ends a command that waits for a job, but not the job; what is said then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from arena_topo.backends import Backend, JobStatus, Phase
from arena_topo.cli.options import PROGRAM, say
from arena_topo.errors import ArenaError, NotFound


@contextmanager
def detaching(
    backend: Backend, name: str, namespace: str, *, made: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """Let Ctrl-C end the waiting but not the job, and say how to come back to it."""
    try:
        yield
    except KeyboardInterrupt:
        say(_left_behind(backend, name, namespace, made=made()))
        raise


def _left_behind(backend: Backend, name: str, namespace: str, *, made: bool) -> str:
    """What becomes of a job that nobody looks at any more; `made` says that it was created."""
    end = f"end it: {PROGRAM} delete {name} -n {namespace}"
    try:
        status = backend.job(name, namespace)
        waits = _waits(status, backend, f"{PROGRAM} resume {name} -n {namespace}")
    except NotFound:
        return f"The job {name} was deleted." if made else "Nothing was created."
    except ArenaError as error:
        if not made:
            look = f"{PROGRAM} get {name} -n {namespace}"
            return f"Whether {name} was created cannot be seen ({error.message}): {look}"
        waits = None
    else:
        if not made:
            # Somebody else's of the same name, or ours that was cut short.
            return f"A job {name} is there, maybe not whole; {end}"
    if waits is not None:
        return f"The job {name} waits and holds nothing; {waits}; {end}"
    return f"The job {name} goes on. Come back: {PROGRAM} logs -f {name} -n {namespace}; {end}"


def _waits(status: JobStatus, backend: Backend, resume: str) -> str | None:
    """Who starts a job that waits for its GPUs; None for one that is on its way."""
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
