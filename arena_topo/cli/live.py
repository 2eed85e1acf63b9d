"""A screen that Rich redraws in place on a terminal.

While it is live it is cropped to the terminal; the last state is printed whole.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, TextIO

from arena_topo.cli.console import Console
from arena_topo.cli.terminal import crop_line, may_use_unicode, window
from arena_topo.escaping import escaped
from arena_topo.layout import render_styles

if TYPE_CHECKING:
    from rich.text import Text

_PER_SECOND = 5
"""Refreshes per second: enough for a spinner and for a resized terminal."""

_TURNS = {True: "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", False: "|/-\\"}
"""The frames of the spinner, with and without Unicode."""


def spinner_frame(*, unicode: bool) -> str:
    """The current frame of the spinner."""
    turns = _TURNS[unicode]
    return turns[int(time.monotonic() * _PER_SECOND) % len(turns)]


@contextmanager
def live(
    console: Console, stream: TextIO, draw: Callable[[int], str], *, stays: bool = False
) -> Iterator[None]:
    """Show `draw(columns)` on a stream of the console, a terminal, until the end of the block.

    With `stays` the last state remains, uncropped; else the screen is cleared.
    """
    from rich import console as rich
    from rich.live import Live
    from rich.text import Text

    over = False

    def drawn() -> Text:
        columns, rows = window(stream)
        text = escaped(draw(columns))
        if not may_use_unicode(stream):
            encoding = stream.encoding or "utf-8"
            plain = render_styles(text, colours=False)
            text = plain.encode(encoding, "backslashreplace").decode(encoding)
        # The last row is left for the next output.
        lines = text.rstrip("\n").split("\n")
        if not (over and stays):
            lines = cut_to_screen(lines, columns, max(2, rows - 1), unicode=may_use_unicode(stream))
        # Wide enough that Rich cuts nothing more; a wide character has two columns.
        screen.size = rich.ConsoleDimensions(
            max([columns, *(2 * len(line) for line in lines)]), rows
        )
        shown = render_styles("\n".join(lines), colours=console.colours(stream))
        return Text.from_ansi(shown, no_wrap=True)

    columns, rows = window(stream)
    # Rich need not look for a size: it reads COLUMNS and LINES, and stumbles over odd ones.
    screen = rich.Console(
        file=stream,
        width=columns,
        height=rows,
        force_terminal=True,
        force_interactive=True,
        force_jupyter=False,
        color_system="standard" if console.colours(stream) else None,
        no_color=False,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    with Live(
        console=screen,
        refresh_per_second=_PER_SECOND,
        transient=not stays,
        # Rich must not redirect a pipe to the terminal.
        redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
        redirect_stderr=sys.stderr is not None and sys.stderr.isatty(),
        vertical_overflow="visible",
        get_renderable=drawn,
    ) as shown:
        streams = console.stdout, console.stderr
        # Rich's stand-ins print above the screen.
        console.stdout, console.stderr = sys.stdout, sys.stderr
        try:
            # An interrupt in the middle of a drawing would have Rich write it twice.
            first = Thread(target=shown.refresh)
            first.start()
            first.join()
            yield
        finally:
            console.stdout, console.stderr = streams
            over = True


def cut_to_screen(lines: list[str], columns: int, rows: int, *, unicode: bool) -> list[str]:
    """The lines that fit, each cut to the width; the last says how many are missing."""
    if len(lines) > rows:
        missing = len(lines) - (rows - 1)
        lines = [*lines[: rows - 1], f"... {missing} more lines"]
    return [crop_line(line, columns, unicode=unicode) for line in lines]
