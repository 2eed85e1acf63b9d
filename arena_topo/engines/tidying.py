"""Time to tidy up: what is half made is taken back even when the time of a command is over."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_SLACK = 0.5
"""Seconds after tidying up in which a command can still say how it ended."""


@contextmanager
def undisturbed(seconds: float) -> Iterator[None]:
    """Put off the alarm of this process (SIGALRM) that would ring within so many seconds.

    It rings when they are over: nothing holds a command for longer. After the block it rings when
    it would have rung without it, or soon if that has passed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    begun = time.monotonic()
    left, again = signal.setitimer(signal.ITIMER_REAL, seconds)
    if not 0 < left < seconds:
        signal.setitimer(signal.ITIMER_REAL, left, again)
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, seconds, again)
    try:
        yield
    finally:
        spent = time.monotonic() - begun
        if spent < seconds:
            signal.setitimer(signal.ITIMER_REAL, max(_SLACK, left - spent), again)
