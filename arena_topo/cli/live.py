"""A text that is shown again and again at the same place of a terminal.

The only home of rich. There is no alternate screen and the cursor is never hidden, so that a
program that is killed or stopped leaves a terminal as usable as it was. While a text is live it is
cut to the terminal; what stays at the end is whole.
"""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from arena_topo.escaping import escaped

if TYPE_CHECKING:
    from rich.console import ConsoleRenderable
    from rich.live import Live

Draw = Callable[[int], str]
"""A whole screen for so many columns, as text without colours."""

_PER_SECOND = 5
"""How often a screen is looked at anew: often enough for what turns, and for a changed size."""

_TURNS = {True: "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", False: "|/-\\"}
"""What turns while something is waited for, with and without Unicode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """A terminal: its `size` (columns, rows) when asked, and what it takes.

    `reflows` says that it breaks lines anew when it becomes narrower; `paint` adds colours.
    """

    stream: TextIO
    size: Callable[[], tuple[int, int]]
    unicode: bool = True
    reflows: bool = True
    paint: Callable[[str], str] | None = None


def turning(*, unicode: bool, now: float | None = None) -> str:
    """One character that is another one a moment later; `now` is in seconds."""
    turns = _TURNS[unicode]
    return turns[int((time.monotonic() if now is None else now) * _PER_SECOND) % len(turns)]


class Screen:
    """What is on a surface: `draw` is asked for it again and again until the screen is closed."""

    def __init__(self, surface: Surface, draw: Draw) -> None:
        self._surface, self._draw = surface, draw
        self._keeps = self._over = False
        self._there: tuple[str, ...] = ()
        self._next: tuple[str, ...] = ()
        self._width = 0

    def keep(self) -> None:
        """Let the last of it stay, whole, when the screen is closed; else nothing does."""
        self._keeps = True

    def below(self) -> None:
        """Leave what is there, and go on below it."""
        self._there = ()

    @property
    def keeps(self) -> bool:
        """Whether the last of it stays."""
        return self._keeps

    def close(self) -> None:
        """Draw once more, and for good."""
        self._over = True

    def renewed(self) -> bool:
        """Draw anew, on paper; whether that is anything new."""
        columns, rows = self._surface.size()
        self._next = self._lines(columns, rows)
        return self._over or self._next != self._there or columns != self._width

    def _lines(self, columns: int, rows: int) -> tuple[str, ...]:
        if self._over and not self._keeps:
            return ("",)
        encoding = self._surface.stream.encoding or "utf-8"
        text = escaped(self._draw(columns)).encode(encoding, "backslashreplace").decode(encoding)
        if self._over:
            return tuple(text.rstrip("\n").split("\n"))
        # The last row is left to whatever is written next.
        return tuple(cut(text, columns, max(2, rows - 1), unicode=self._surface.unicode))

    def text(self) -> str:
        """What was drawn on paper, in colours."""
        text, paint = "\n".join(self._next), self._surface.paint
        return paint(text) if paint else text

    def put(self) -> tuple[int, int]:
        """Take the paper for what is there: the rows it takes the place of, and its widest line."""
        columns, rows = self._surface.size()
        # A terminal breaks lines that were written whole when it becomes narrower.
        high = _rows(self._there, columns) if self._surface.reflows else len(self._there)
        self._there, self._width = self._next, columns
        return min(high, rows), max([columns, *(2 * len(line) for line in self._next)])


@contextmanager
def shown(surface: Surface, draw: Draw) -> Iterator[Screen]:
    """A screen that is drawn until the end of the block; Ctrl-Z and `fg` do no harm to it."""
    screen = Screen(surface, draw)
    frame = _frame(screen, surface)
    with _continued(screen), frame:
        frame.refresh()
        try:
            yield screen
        finally:
            screen.close()


@contextmanager
def _continued(screen: Screen) -> Iterator[None]:
    """After a stop the shell has written below the screen: it is drawn anew there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGCONT, lambda *_: screen.below())
    try:
        yield
    finally:
        signal.signal(signal.SIGCONT, before)


def cut(text: str, columns: int, rows: int, *, unicode: bool) -> list[str]:
    """The lines of a text that fit, each cut to the width; the last says how many are missing."""
    lines = text.rstrip("\n").split("\n")
    if len(lines) > rows:
        missing = len(lines) - (rows - 1)
        lines = [*lines[: rows - 1], f"... {missing} more"]
    return [clipped(line, columns, unicode=unicode) for line in lines]


def clipped(line: str, columns: int, *, unicode: bool) -> str:
    """A line cut to so many columns of a terminal, with an ellipsis where it is."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(line) <= columns:
        return line
    ellipsis = "…" if unicode else "..."
    return set_cell_size(line, max(0, columns - len(ellipsis))) + ellipsis


def _rows(lines: Sequence[str], columns: int) -> int:
    """How many rows lines fill that were written whole and have been broken since."""
    from rich.cells import cell_len

    return sum(max(1, math.ceil(cell_len(line) / columns)) for line in lines)


def _frame(screen: Screen, surface: Surface) -> Live:
    """What of rich repeats the screen: it has the clock, and lets other lines through above."""
    from rich.console import Console, ConsoleDimensions
    from rich.control import Control
    from rich.live import Live
    from rich.segment import ControlType, Segment
    from rich.text import Text

    class Cursored(Console):
        """A console that never hides the cursor."""

        def show_cursor(self, show: bool = True) -> bool:  # noqa: FBT001, FBT002 - theirs
            del show
            return False

    class Back(Control):
        """To the first column of the first of so many rows, with nothing from there on."""

        def __init__(self, rows: int) -> None:
            up = f"\x1b[{rows - 1}A" if rows > 1 else ""
            self.segment = Segment(f"\r{up}\x1b[J", None, [(ControlType.CARRIAGE_RETURN,)])

    class Frame(Live):
        """Rich's, but for where it draws and when."""

        def stop(self) -> None:
            self.transient = not screen.keeps
            super().stop()

        def refresh(self) -> None:
            if screen.renewed():
                super().refresh()

        def process_renderables(
            self, renderables: list[ConsoleRenderable]
        ) -> list[ConsoleRenderable]:
            rows, widest = screen.put()
            # Wide enough that nothing is cut or broken once more.
            self.console.size = ConsoleDimensions(widest, surface.size()[1])
            _theirs, *others = super().process_renderables(renderables)
            return [Back(rows) if rows else Control(), *others]

    # Rich need not look for a size: it reads COLUMNS and LINES, and stumbles over odd ones.
    columns, rows = surface.size()
    console = Cursored(
        file=surface.stream,
        width=columns,
        height=rows,
        force_terminal=True,
        force_interactive=True,
        force_jupyter=False,
        color_system="standard" if surface.paint else None,
        no_color=False,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    return Frame(
        console=console,
        refresh_per_second=_PER_SECOND,
        # What goes into a pipe is no business of the terminal.
        redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
        redirect_stderr=sys.stderr is not None and sys.stderr.isatty(),
        vertical_overflow="visible",
        get_renderable=lambda: Text.from_ansi(screen.text(), no_wrap=True),
    )
