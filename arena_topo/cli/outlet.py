"""Standard output for what goes on for long: nothing is held back, and who reads is heeded.

What was handed over is written at once, so that a program that is told to end has nothing left that
somebody would have to read first.
"""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress

from arena_topo.cli.options import OutputLost, put
from arena_topo.cli.terminal import moves

_PATIENCE = 300
"""Milliseconds that a terminal has to take the last words, when a person waits for the prompt."""

_AT_ONCE = 4096
"""Bytes that are written whole or not at all, as good as always (pipe(7), PIPE_BUF)."""

_RESET = b"\x1b[0m"
"""What ends all colours (SGR, ECMA-48, 8.3.117)."""


class Outlet:
    """Where bytes go out: the file of standard output, past Python's buffer."""

    def __init__(self) -> None:
        self._file: int | None = None
        with suppress(AttributeError, OSError, ValueError):  # closed, or no file at all
            sys.stdout.flush()
            self._file = sys.stdout.fileno()
        self._moves = moves(sys.stdout)
        self._shares = self._moves and moves(sys.stderr)
        self._coloured = False
        self.within_line = False
        """Whether the last line that was written is not whole yet."""

    def write(self, data: bytes) -> None:
        """Write all of it; BrokenPipeError if nobody reads, OutputLost if nobody can take it."""
        if not data:
            return
        if self._file is None:
            put(data)
            return
        rest = memoryview(data)
        # Whoever leaves in the middle of it has left a line that is not whole, in any colour; of
        # little there is no middle.
        self.within_line = len(data) > _AT_ONCE or data[-1:] != b"\n"
        self._coloured = self._coloured or b"\x1b" in data
        while rest:
            try:
                rest = rest[os.write(self._file, rest) :]
            except BlockingIOError:  # somebody else made it so: they share the open file
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

    def heed(self) -> None:
        """BrokenPipeError as soon as whoever reads has gone, though there is nothing to write."""
        if self._file is None:
            return
        heed(self._file)

    def break_line(self) -> None:
        """On a terminal end the line that is not whole yet, and its colour.

        Something else comes on stderr, or from whoever has the terminal next.
        """
        if self.within_line and self._moves:
            self.write(_RESET * self._coloured + b"\n" * self._shares)
            self._coloured = False


def heed(file: int, seconds: float = 0.0) -> None:
    """Wait so long; BrokenPipeError as soon as whoever reads a file has gone."""
    gone = select.poll()
    # What nobody asks for is told all the same: POLLERR and POLLHUP (poll(2)).
    gone.register(file, 0)
    if gone.poll(seconds * 1000):
        raise BrokenPipeError("nobody reads standard output")


def free_to_speak() -> bool:
    """Let what is said last go nowhere if nobody takes it: a terminal that is held, a full pipe.

    Whether somebody does.
    """
    with suppress(AttributeError, OSError, ValueError):
        file = sys.stderr.fileno()
        room = select.poll()
        room.register(file, select.POLLOUT)
        if not room.poll(_PATIENCE):
            os.dup2(os.open(os.devnull, os.O_WRONLY), file)
            return False
    return True
