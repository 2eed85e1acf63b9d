"""Polling that survives a server that does not answer for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from arena_topo.errors import ClusterError, TimedOut

PATIENCE = 60.0
"""Seconds without an answer of the server after which polling ends."""

OVERLOADED, SERVER_ERROR = 429, 500
"""HTTP codes of a server that refuses requests for now, and, from there on, of its own errors (RFC
6585, 4; RFC 9110, 15.6)."""

Clock = Callable[[], float]

Found = TypeVar("Found")


def looks(
    look: Callable[[], Found],
    *,
    every: float,
    blind: Callable[[str | None], None] = lambda _: None,
    clock: Clock = time.monotonic,
    end: float | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[Found]:
    """Poll: yield the result of each look, every `every` seconds, without an end.

    A server that does not answer for a while does not end the polling: `blind` is called with the
    reason, and with None as soon as the server answers again. ClusterError or TimedOut after
    `PATIENCE` seconds, or if the deadline of the command leaves no time for another request. No
    pause lasts beyond `end`, a time of `clock`; `pause` sleeps for some seconds.
    """
    seen, sees = clock(), True
    while True:
        try:
            found = look()
        except (ClusterError, TimedOut) as error:
            # A caller with an end of its own raises a better error.
            over = end is None and isinstance(error, TimedOut) and error.final
            if over or not _passing(error) or clock() - seen > PATIENCE:
                raise
            blind(error.message)
            sees = False
        else:
            if not sees:
                blind(None)
            seen, sees = clock(), True
            yield found
        pause(every if end is None else min(every, max(0.0, end - clock())))


def _passing(error: ClusterError | TimedOut) -> bool:
    """Whether an error may be temporary: no answer, an error of the server, or its overload."""
    if isinstance(error, TimedOut) or error.status is None:
        return True
    return error.status == OVERLOADED or error.status >= SERVER_ERROR
