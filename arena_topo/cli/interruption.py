"""Early ends of a command: a signal, or the deadline of `--timeout`.

Every signal is handled like Ctrl-C: cleanup runs. The exit code is 128 plus the number of the
signal, as in shells (130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP).
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
"""Shells add this to the number of the signal that ended a process."""

_SLACK = 0.5
"""Seconds after the deadline in which a command may still report it by itself."""

_SOON = 0.01
"""Seconds after which an interrupted finalizer has ended."""

_TIDYING = 6.0
"""Seconds after which a cleanup is cut short: more than the grace period of a rollback."""


class Stopped(KeyboardInterrupt):
    """A signal asks the program to end, with this exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class OutOfTime(BaseException):
    """The deadline of the command has passed. Not an Exception, so that no handler swallows it."""


class _BlockTimeout(BaseException):
    """The time limit of a block has passed."""


class Interruption:
    """What ends one command early. Its signals and its alarm are those of the process.

    `untouched` is what to say of an interrupt before the command has begun to change something.
    """

    def __init__(self, *, untouched: str = "") -> None:
        self.untouched = untouched
        self._received = signal.SIGINT
        self._end = math.inf
        """The deadline of the command, by `time.monotonic`."""

    def begin_changes(self) -> None:
        """Note that the command may change something from now on, and reports that itself."""
        self.untouched = ""

    def install_handlers(self, numbers: Iterable[int]) -> None:
        """Handle these signals: the first ends the program with cleanup, a second at once."""
        chosen = tuple(numbers)

        def stop(number: int, _frame: FrameType | None) -> None:
            self._received = signal.Signals(number)
            for signum in chosen:
                signal.signal(signum, end_at_once)
            raise Stopped(_SIGNALLED + number)

        _insist()
        for signum in chosen:
            signal.signal(signum, stop)

    @property
    def code(self) -> int:
        """The exit code of the program that was interrupted."""
        return _SIGNALLED + self._received

    # ------------------------------------------------------------ time

    def set_deadline(self, seconds: float | None) -> None:
        """Set the deadline of the command: OutOfTime is raised shortly after it, wherever it waits.

        A command that observes the deadline itself ends before that, and a cleanup gets some
        seconds (`engines.rollback_time`). Does nothing outside the main thread, where Python
        handles no signals.
        """
        if seconds is not None:
            self._end = time.monotonic() + seconds
            if _first_thread():
                _alarm(seconds + _SLACK, OutOfTime, again=_TIDYING)

    @contextmanager
    def in_time(self) -> Iterator[None]:
        """Turn the TimedOut of a request at the deadline into OutOfTime.

        TimedOut of a slow request before the deadline is unchanged.
        """
        try:
            yield
        except TimedOut:
            if time.monotonic() < self._end:
                raise
            if _first_thread():
                _alarm(_TIDYING, OutOfTime, again=_TIDYING)
            raise OutOfTime from None

    def remove_deadline(self) -> None:
        """Let the command take as long as it needs."""
        self._end = math.inf
        if _first_thread() and signal.getitimer(signal.ITIMER_REAL)[0]:
            signal.setitimer(signal.ITIMER_REAL, 0)


def end_at_once(number: int, _frame: FrameType | None) -> None:
    """End the process at once, without cleanup."""
    os._exit(_SIGNALLED + number)


@contextmanager
def within_seconds(seconds: float) -> Iterator[None]:
    """Leave the block after so many seconds; the command's deadline does not end it earlier."""
    if not _first_thread():
        yield
        return
    before, begun = signal.getsignal(signal.SIGALRM), time.monotonic()
    left, again = _alarm(seconds, _BlockTimeout)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _BlockTimeout:
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


class _ReraiseFromFinalizer:
    """Raises again what a signal raised inside a finalizer.

    Python ends only the finalizer with such an exception, and prints a warning.
    """

    def __init__(self, others: Callable[[sys.UnraisableHookArgs], object]) -> None:
        self._others = others

    def __call__(self, unraisable: sys.UnraisableHookArgs) -> None:
        raised = unraisable.exc_value
        if isinstance(raised, Stopped | OutOfTime | _BlockTimeout) and _first_thread():
            _alarm(_SOON, raised, again=_TIDYING)
        else:
            self._others(unraisable)


def _insist() -> None:
    if not isinstance(sys.unraisablehook, _ReraiseFromFinalizer):
        sys.unraisablehook = _ReraiseFromFinalizer(sys.unraisablehook)


def _first_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
