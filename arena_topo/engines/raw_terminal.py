"""The terminal and the standard streams of this process while a remote command uses them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import stat
import sys
import termios
import tty
from collections.abc import Iterator
from typing import Any

from arena_topo.errors import ArenaError

STDIN_FD, STDOUT, STDERR = 0, 1, 2


def is_terminal() -> bool:
    """Whether stdin and stdout are a terminal."""
    return (
        _open(sys.__stdin__) and _open(sys.__stdout__) and all(map(os.isatty, (STDIN_FD, STDOUT)))
    )


def offers_input(*, shell: bool) -> bool:
    """Whether stdin is passed on to a command without a terminal.

    The null device is not. A terminal is only for a shell: a pager may be reading from it.
    """
    if not _open(sys.__stdin__):
        return False
    if os.isatty(STDIN_FD):
        return shell
    stdin = os.fstat(STDIN_FD)
    return not (
        stat.S_ISCHR(stdin.st_mode) and stdin.st_rdev == os.stat(os.devnull).st_rdev  # noqa: PTH116
    )


def _open(stream: Any) -> bool:
    # The descriptor of a closed stream may belong to another file by now.
    return stream is not None


def write(descriptor: int, data: bytes) -> None:
    """Write all data to stdout or stderr; BrokenPipeError, or ArenaError if that fails."""
    if not _open(sys.__stdout__ if descriptor == STDOUT else sys.__stderr__):
        if descriptor == STDERR:
            return
        raise ArenaError("cannot write the output", why="standard output is closed")
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            select.select([], [descriptor], [])
        except BrokenPipeError:
            raise
        except OSError as error:
            raise ArenaError("cannot write the output", why=error.strerror) from error


def terminal_size() -> tuple[int, int]:
    """Columns and rows of the terminal."""
    terminal = os.get_terminal_size(STDOUT)
    return terminal.columns, terminal.lines


@contextlib.contextmanager
def restore_terminal() -> Iterator[None]:
    """Restore the state of the terminal at the end, even if the command was killed."""
    if not _open(sys.__stdin__) or not os.isatty(STDIN_FD):
        yield
        return
    before = termios.tcgetattr(STDIN_FD)
    group = -1
    with contextlib.suppress(OSError):
        group = os.tcgetpgrp(STDIN_FD)
    try:
        yield
    finally:
        # A killed shell may have left this process in the background, where this would stop it.
        ignored = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        with contextlib.suppress(OSError, termios.error):
            if group == os.getpgrp():
                os.tcsetpgrp(STDIN_FD, group)
            termios.tcsetattr(STDIN_FD, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTTOU, ignored)


@contextlib.contextmanager
def raw() -> Iterator[int]:
    """Raw mode; yields a descriptor that becomes readable when the size has changed.

    The terminal is restored at the end, and raw again after the process was stopped and continued.
    Only for the main thread.
    """
    heard, ring = os.pipe()
    for end in (heard, ring):
        os.set_blocking(end, False)

    def resumed(_number: int, _frame: object) -> None:
        with contextlib.suppress(termios.error):
            tty.setraw(STDIN_FD, termios.TCSANOW)

    def resized(_number: int, _frame: object) -> None:
        """Nothing: a signal without a handler causes no wake-up."""

    before: dict[int, Any] = {}
    previous = signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
    try:
        with restore_terminal():
            for heeded, handler in ((signal.SIGCONT, resumed), (signal.SIGWINCH, resized)):
                before[heeded] = signal.signal(heeded, handler)
            tty.setraw(STDIN_FD, termios.TCSADRAIN)
            yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(previous)
        os.close(heard)
        os.close(ring)
