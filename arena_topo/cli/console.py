"""The console of a command: its standard streams, its level of messages, colours and clock.

Messages for people go to stderr, the answer of the command to stdout.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, TextIO, TypeVar

import typer

from arena_topo.cli import terminal
from arena_topo.cli.interruption import Interruption
from arena_topo.errors import ArenaError
from arena_topo.escaping import escaped, one_line
from arena_topo.layout import error_text, fold_text, note_line, render_styles
from arena_topo.notes import Alert, grouped

if TYPE_CHECKING:
    import logging

Item = TypeVar("Item")


class LogLevel(StrEnum):
    """The least level of messages on stderr; `debug` shows tracebacks."""

    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"

    @classmethod
    def parse(cls, text: str) -> LogLevel:
        """Read a level; ValueError carries arena's text."""
        if text not in set(cls):
            raise ValueError("unknown loglevel,only support:[info,debug,error,warn]")
        return cls(text)


_GRAVITY = tuple(LogLevel)


class Colour(StrEnum):
    """Whether output is coloured; `auto` depends on the environment and the terminal."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class OutputLost(ArenaError):
    """The command has done its work, but its output cannot be written."""


class Console:
    """The streams of one command line, and how it writes to them.

    A stream that the caller has closed (`>&-`) is None. `clock` tells the time in Unix seconds.
    """

    def __init__(self, interruption: Interruption | None = None) -> None:
        """The console of this process's streams, at the level `info`."""
        self.stdin, self.stdout, self.stderr = sys.stdin, sys.stdout, sys.stderr
        self.interruption = interruption or Interruption()
        self.clock = time.time
        self.colour = Colour.AUTO
        self._level = LogLevel.INFO
        self._requests: logging.Handler | None = None

    # ------------------------------------------------------------ what the streams can show

    @property
    def width(self) -> int | None:
        """The columns at which text on stdout is wrapped; None where it is no terminal."""
        return terminal.wrap_columns(self.stdout)

    @property
    def drawing_width(self) -> int:
        """The columns of drawings on stdout: at least 60; 100 where it is no terminal."""
        return terminal.drawing_columns(self.stdout)

    def unicode(self, *, plain: bool = False) -> bool:
        """Whether drawings on stdout may use Unicode; never with `plain`, which is --ascii."""
        return not plain and terminal.may_use_unicode(self.stdout)

    def colours(self, stream: TextIO | None) -> bool:
        """Whether output to a stream of the console is coloured."""
        return terminal.colours(stream, self.colour)

    @property
    def shows_progress(self) -> bool:
        """Whether progress is redrawn in place: stderr is a terminal, and shows messages."""
        return self.shows(LogLevel.INFO) and terminal.can_redraw(self.stderr)

    # ------------------------------------------------------------ messages

    def set_level(self, level: LogLevel, *, quiet: bool = False) -> None:
        """Set the least level of messages; `quiet` raises it to warnings.

        With `debug` the requests to the API server are messages too.
        """
        self._level = max(level, LogLevel.WARN, key=_GRAVITY.index) if quiet else level
        if self._requests is None and level is LogLevel.DEBUG:
            self._requests = _handler_of_requests(self)

    def close(self) -> None:
        """Stop printing requests."""
        if self._requests is not None:
            self._requests.close()
            self._requests = None

    def shows(self, level: LogLevel) -> bool:
        """Whether messages of this level are printed."""
        return _GRAVITY.index(level) >= _GRAVITY.index(self._level)

    def info(self, text: str, level: LogLevel = LogLevel.INFO, *, whole: bool = False) -> None:
        """Print a message of one or more lines.

        Control characters are escaped. Lines wider than the terminal are wrapped, unless `whole`.
        """
        if not self.shows(level) or self.stderr is None:
            return
        columns = None if whole else terminal.wrap_columns(self.stderr)
        try:
            shown = render_styles(
                fold_text(escaped(text), columns), colours=self.colours(self.stderr)
            )
            self.stderr.write(shown + "\n")
            self.stderr.flush()
        except OSError:  # the reader of stderr has gone
            forget_output(self.stderr)

    def warn(self, text: str) -> None:
        """Print a warning on one line."""
        self.info(note_line(text, alert=True), LogLevel.WARN)

    def note(self, text: str) -> None:
        """Print a note on one line."""
        self.info(note_line(text))

    def notes(self, notes: Iterable[str]) -> None:
        """Print notes about the cluster; many on one fault are shortened."""
        for sentence in grouped(notes):
            self.note(sentence)

    def event(self, text: str) -> None:
        """Print what has happened, on one line, with everything escaped; an Alert is a warning."""
        if isinstance(text, Alert):
            self.warn(text)
        else:
            self.info(one_line(text))

    def error(self, error: ArenaError) -> None:
        """Print an error: what, why, and what to try."""
        columns = terminal.wrap_columns(self.stderr)
        self.info(error_text(error, columns), LogLevel.ERROR, whole=True)

    def after_echo(self, text: str) -> None:
        """Print a message from the first column, where the terminal has echoed `^C`."""
        if self.stderr is not None and terminal.can_redraw(self.stderr):
            self.stderr.write("\r")
        self.info(text)

    # ------------------------------------------------------------ the answer

    def screen(self, text: str, *, whole: bool = False) -> None:
        """Write a screen for people to stdout, in colours where stdout has them.

        Lines wider than the terminal are wrapped, unless `whole`.
        """
        shown = fold_text(escaped(text), None if whole else self.width)
        self._write_text(render_styles(shown, colours=self.colours(self.stdout)))

    def write(self, text: str) -> None:
        """Write text to stdout; OutputLost if it cannot be written.

        Control characters are escaped; documents have escaped them in their own way.
        """
        self._write_text(escaped(text))

    def _write_text(self, text: str) -> None:
        encoding = self.stdout.encoding if self.stdout else None
        self.write_bytes(text.encode(encoding or "utf-8", "backslashreplace"))

    def write_bytes(self, data: bytes) -> None:
        """Write bytes to stdout unchanged; OutputLost if they cannot be written."""
        if self.stdout is None:
            raise OutputLost("cannot write the output", why="standard output is closed")
        try:
            self.stdout.flush()
            self.stdout.buffer.write(data)
            self.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            forget_output(self.stdout)
            raise OutputLost("cannot write the output", why=error.strerror) from error


def _handler_of_requests(console: Console) -> logging.Handler:
    """Print what the package logs about requests; the handler that does."""
    import logging  # noqa: PLC0415 - only for debugging

    from arena_topo.engines import REQUESTS  # noqa: PLC0415 - as above

    class RequestPrinter(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            console.info(f"debug: {one_line(record.getMessage())}", LogLevel.DEBUG)

        def close(self) -> None:
            logger.removeHandler(self)
            super().close()

    logger, handler = logging.getLogger(REQUESTS), RequestPrinter()
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    return handler


def act_on_each(console: Console, items: Iterable[Item], act: Callable[[Item], None]) -> None:
    """Act on every item, even after an error with another; the first error gives the exit code."""
    code = 0
    for item in items:
        try:
            act(item)
        except ArenaError as error:
            console.error(error)
            code = code or error.exit_code
    if code:
        raise typer.Exit(code)


def forget_output(stream: TextIO | None) -> None:
    """Discard what is still buffered for a stream.

    Python would else try to write it at exit, fail, and end with a code of its own, 120.
    """
    if stream is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
