"""Unbuffered standard output for commands that run long; they end when its reader goes.

Bytes are written at once, so that a program that is asked to end has nothing left to flush.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress
from typing import Any

from arena_topo.cli.console import Console, OutputLost
from arena_topo.cli.terminal import can_redraw

_PATIENCE = 300
"""Milliseconds for a stopped terminal to accept the last message before the prompt returns."""

_AT_ONCE = 4096
"""Bytes that a pipe writes whole or not at all (pipe(7), PIPE_BUF)."""

_RESET = b"\x1b[0m"
"""What ends all colours (SGR, ECMA-48, 8.3.117)."""


class UnbufferedStdout:
    """The file of standard output, past Python's buffer."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._file: int | None = None
        with suppress(AttributeError, OSError, ValueError):  # closed, or no file at all
            console.stdout.flush()
            self._file = console.stdout.fileno()
        self._moves = can_redraw(console.stdout)
        self._shares = self._moves and can_redraw(console.stderr)
        self._coloured = False
        self.within_line = False
        """Whether the last line has no line feed yet."""

    def write(self, data: bytes) -> None:
        """Write all bytes; BrokenPipeError if the reader has gone, OutputLost on other errors."""
        if not data:
            return
        if self._file is None:
            self._console.write_bytes(data)
            return
        rest = memoryview(data)
        # An interrupted write may leave a partial line, in any colour; a small one is atomic.
        self.within_line = len(data) > _AT_ONCE or data[-1:] != b"\n"
        self._coloured = self._coloured or b"\x1b" in data
        while rest:
            try:
                rest = rest[os.write(self._file, rest) :]
            except BlockingIOError:  # another process of the same open file made it non-blocking
                room = select.poll()
                room.register(self._file, select.POLLOUT)
                room.poll()
            except BrokenPipeError:
                raise
            except OSError as error:
                raise OutputLost("cannot write the output", why=error.strerror) from error
        self.within_line = data[-1:] != b"\n"
        if self._coloured:
            end = data.rfind(b"\n") + 1
            self._coloured = b"\x1b" in data[end:] or (not end and self.within_line)

    def check_reader(self) -> None:
        """Raise BrokenPipeError if the reader has gone, even with nothing to write."""
        if self._file is None:
            return
        wait_while_read(self._file)

    def break_line(self) -> None:
        """On a terminal end a partial line and its colour, before other output follows it."""
        if self.within_line and self._moves:
            self.write(_RESET * self._coloured + b"\n" * self._shares)
            self._coloured = False


def wait_while_read(file: int, seconds: float = 0.0) -> None:
    """Wait so long; BrokenPipeError as soon as the reader of a file has gone."""
    gone = select.poll()
    # POLLERR and POLLHUP are reported without being requested (poll(2)).
    gone.register(file, 0)
    if gone.poll(seconds * 1000):
        raise BrokenPipeError("no program reads standard output")


def writable(stream: Any) -> bool:
    """Whether a stream accepts a message; if not (a stopped terminal, a full pipe), discard it."""
    with suppress(AttributeError, OSError, ValueError):
        file = stream.fileno()
        room = select.poll()
        room.register(file, select.POLLOUT)
        if not room.poll(_PATIENCE):
            os.dup2(os.open(os.devnull, os.O_WRONLY), file)
            return False
    return True
