"""Looking at something again and again, for as long as somebody wants to see it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from arena_topo.errors import ClusterError, TimedOut

PATIENCE = 60.0
"""Seconds that something may be out of sight, its server not answering, before looking ends."""

SERVER_ERROR = 500
"""HTTP codes from here on are the server's fault, not the caller's (RFC 9110, 15.6)."""

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
    """What is seen at each look, `every` so many seconds; it ends with whoever asks.

    A server that does not answer for a while does not end the looking: `blind` hears why nothing
    is seen, and None once something is again. ClusterError or TimedOut if that takes too long, or
    if there is no time for any other request.
    No pause goes on beyond `end`, which is a time of the clock; `pause` waits so many seconds.
    """
    seen, sees = clock(), True
    while True:
        try:
            found = look()
        except (ClusterError, TimedOut) as error:
            # Who has an end of its own says better what it waited for.
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
    """Whether asking again may help: no answer, or a server in trouble."""
    return isinstance(error, TimedOut) or error.status is None or error.status >= SERVER_ERROR
