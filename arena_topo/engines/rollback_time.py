"""Time for a rollback: half-made objects are deleted even after the deadline of a command."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_SLACK = 0.5
"""Seconds after the rollback in which a command can still print its result."""


@contextmanager
def delay_alarm(seconds: float) -> Iterator[None]:
    """Delay an alarm of this process (SIGALRM) that is due within so many seconds.

    It rings when they are over, so a command is delayed by no more than that. After the block the
    alarm rings at its original time, or soon if that has passed.
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
