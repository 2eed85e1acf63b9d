"""Polling that survives a server that does not answer for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from arena_topo.errors import ClusterError, TimedOut, temporary

MAX_UNANSWERED = 60.0
"""Seconds without an answer of the server after which polling ends."""

Clock = Callable[[], float]

_Answer = TypeVar("_Answer")


def looks(
    look: Callable[[], _Answer],
    *,
    every: float,
    blind: Callable[[str | None], None] = lambda _: None,
    clock: Clock = time.monotonic,
    end: float | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[_Answer]:
    """Poll: yield the result of each look, every `every` seconds, without an end.

    A server that does not answer for a while does not end the polling: `blind` is called with the
    reason, and with None as soon as the server answers again. ClusterError or TimedOut after
    `MAX_UNANSWERED` seconds, or if the deadline of the command leaves no time for another request.
    No pause lasts beyond `end`, a time of `clock`; `pause` sleeps for some seconds.
    """
    seen, sees = clock(), True
    while True:
        try:
            answer = look()
        except (ClusterError, TimedOut) as error:
            # A caller with an end of its own raises a better error.
            over = end is None and isinstance(error, TimedOut) and error.final
            if over or not temporary(error) or clock() - seen > MAX_UNANSWERED:
                raise
            blind(error.message)
            sees = False
        else:
            if not sees:
                blind(None)
            seen, sees = clock(), True
            yield answer
        pause(every if end is None else min(every, max(0.0, end - clock())))
