"""How a command ends before its time: by a signal, or because `--timeout` is over.

What a signal interrupts tidies up as after Ctrl-C, whichever signal it was. The exit code is 128
and the number of the signal, as shells have it (130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP).
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

from arena_topo.errors import TimedOut

_SIGNALLED = 128
"""What shells add to the number of the signal that ended a process."""

_SLACK = 0.5
"""Seconds that a command has beyond `--timeout` to say by itself that it is over."""

_SOON = 0.01
"""Seconds after which a finalizer that was interrupted is over."""

_TIDYING = 6.0
"""Seconds after which a command ends that is still tidying up: more than the grace for that."""


class Stopped(KeyboardInterrupt):
    """A signal asks the program to end, with this exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class OutOfTime(BaseException):
    """The time of the whole command is over. No error of its own: nothing may pass over it."""


class _Enough(BaseException):
    """The time of one block is over."""


_received: signal.Signals | None = None
_end = math.inf
"""When the time of the whole command is over, as `time.monotonic` has it."""


def heed(numbers: Iterable[int]) -> None:
    """Let the first of these signals end the program in good order, a second one at once."""
    chosen = tuple(numbers)

    def stop(number: int, _frame: FrameType | None) -> None:
        global _received  # noqa: PLW0603 - signals are the process's
        _received = signal.Signals(number)
        for one in chosen:
            signal.signal(one, at_once)
        raise Stopped(_SIGNALLED + number)

    _insist()
    for one in chosen:
        signal.signal(one, stop)


def at_once(number: int, _frame: FrameType | None) -> None:
    """End the program without another word."""
    os._exit(_SIGNALLED + number)


def code() -> int:
    """The exit code of a program that was interrupted."""
    return _SIGNALLED + (_received or signal.SIGINT)


# ---------------------------------------------------------------- time


def limit(seconds: float | None) -> None:
    """Let OutOfTime end the command soon after so many seconds, whatever it waits for then.

    Who keeps to its time by itself is never met by it, and who tidies up then has a moment for it
    (`engines.tidying`). Nothing happens in other threads than the first, where Python lets nobody
    heed signals.
    """
    global _end  # noqa: PLW0603 - there is one command
    if seconds is not None:
        _end = time.monotonic() + seconds
        if _first_thread():
            _alarm(seconds + _SLACK, OutOfTime, again=_TIDYING)


@contextmanager
def in_time() -> Iterator[None]:
    """Let the end of the time be OutOfTime also where a request to a server notices it first.

    Other requests that take too long are TimedOut as ever.
    """
    try:
        yield
    except TimedOut:
        if time.monotonic() < _end:
            raise
        if _first_thread():
            _alarm(_TIDYING, OutOfTime, again=_TIDYING)
        raise OutOfTime from None


def unlimited() -> None:
    """Take the limit back."""
    global _end  # noqa: PLW0603 - there is one command
    _end = math.inf
    if _first_thread() and signal.getitimer(signal.ITIMER_REAL)[0]:
        signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def briefly(seconds: float) -> Iterator[None]:
    """Leave the block after so many seconds, wherever it is; the limit stands still meanwhile."""
    if not _first_thread():
        yield
        return
    before, begun = signal.getsignal(signal.SIGALRM), time.monotonic()
    left, again = _alarm(seconds, _Enough)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _Enough:
        pass
    finally:
        signal.signal(signal.SIGALRM, before)
        if left:
            spent = time.monotonic() - begun
            signal.setitimer(signal.ITIMER_REAL, max(0.001, left - spent), again)


def _alarm(
    seconds: float, kind: type[BaseException] | BaseException, *, again: float = 0.0
) -> tuple[float, float]:
    def ring(_number: int, _frame: FrameType | None) -> None:
        raise kind

    _insist()
    before = signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(0.001, seconds), again)
    return before


class _Insistence:
    """Raises an end of the program again that came while Python ran a finalizer.

    What is raised there ends the finalizer alone, with a complaint on stderr.
    """

    def __init__(self, others: Callable[[sys.UnraisableHookArgs], object]) -> None:
        self._others = others

    def __call__(self, unraisable: sys.UnraisableHookArgs) -> None:
        raised = unraisable.exc_value
        if isinstance(raised, Stopped | OutOfTime | _Enough) and _first_thread():
            _alarm(_SOON, raised, again=_TIDYING)
        else:
            self._others(unraisable)


def _insist() -> None:
    if not isinstance(sys.unraisablehook, _Insistence):
        sys.unraisablehook = _Insistence(sys.unraisablehook)


def _first_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
