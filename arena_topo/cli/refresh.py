"""`--watch` and `--refresh`: a screen redrawn on a terminal, else lines or documents in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Annotated, Any, TypeVar

from arena_topo.cli.arguments import PANEL, Output
from arena_topo.cli.console import Console
from arena_topo.cli.live import live
from arena_topo.cli.stdout import wait_while_read
from arena_topo.cli.terminal import can_redraw
from arena_topo.errors import TimedOut
from arena_topo.flag import Flag
from arena_topo.layout import clock, duration, fold_text, note_line, stream_document

_Read = TypeVar("_Read")

_OUT_OF_SIGHT = 5.0
"""Seconds without an answer after which a screen shows its age."""


def watch(
    console: Console,
    look: Callable[[], _Read],
    *,
    draw: Callable[[_Read, float, int | None], str] | None,
    changes: Callable[[_Read | None, _Read, float], str],
    over: Callable[[_Read], bool] = lambda _: False,
    every: float,
    limit: float | None = None,
) -> _Read:
    """Poll `every` so many seconds until `over`, and show each result on stdout.

    A terminal shows one screen, `draw(result, now, columns)`, redrawn in place; the last one stays.
    Elsewhere, and without `draw`, the text of `changes(before, result, now)` is written, unless it
    is empty. `now` is Unix seconds. TimedOut after `limit` seconds, BrokenPipeError as soon as the
    reader of stdout has gone.
    """
    from arena_topo.engines.polling import poll_repeatedly  # noqa: PLC0415 - only for who stays

    end, freshness = None if limit is None else time.monotonic() + limit, Freshness()
    seen: list[_Read] = []

    def screen(columns: int) -> str:
        assert draw is not None
        text = draw(seen[-1], console.clock(), columns)
        # Above the rest, since a screen that is too tall loses its end.
        return "\n".join(filter(None, [freshness.stale_note(), text.rstrip("\n")])) + "\n"

    def blind(why: str | None) -> None:
        if why is not None and freshness.lost is None and not lives:
            warn_unreachable(console, why)
        freshness.blind(why)
        in_time()

    def in_time() -> None:
        if end is not None and time.monotonic() >= end:
            raise TimedOut(f"timed out after {limit:g} s", hint="allow more with --timeout")

    lives = draw is not None and can_redraw(console.stdout)
    # An error of the first look is printed without a screen.
    first = [look()] if lives else []
    seen += first
    pause = time.sleep if lives else partial(_sleep_while_read, console.stdout)

    def again() -> _Read:
        return first.pop() if first else look()

    with live(console, console.stdout, screen, stays=True) if lives else nullcontext():
        for state in poll_repeatedly(again, every=every, blind=blind, end=end, pause=pause):
            before = seen[-1] if seen else None
            if not lives and (text := changes(before, state, console.clock())):
                # A document is not folded or coloured.
                console.write(text) if draw is None else console.screen(text, whole=True)
            seen[:] = [state]
            freshness.mark_answered()
            if over(state):
                break
            in_time()
    return seen[0]


def _sleep_while_read(stream: Any, seconds: float) -> None:
    """Sleep; BrokenPipeError as soon as the reader of a pipe has gone."""
    try:
        file = stream.fileno()
    except (AttributeError, OSError, ValueError):  # closed, or no file at all
        time.sleep(seconds)
        return
    wait_while_read(file, seconds)


def warn_unreachable(console: Console, why: str) -> None:
    """Warn once that a server does not answer, and is asked again."""
    console.warn(f"API server not reachable, retrying: {why}")


class Freshness:
    """Whether the screen is up to date."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self.lost: str | None = None

    def mark_answered(self) -> None:
        """The server has just answered."""
        self._at = time.monotonic()

    def blind(self, why: str | None) -> None:
        """The server does not answer, and why; None once it answers again."""
        self.lost = why

    def stale_note(self) -> str:
        """The age of the screen where it is stale, else empty."""
        old = time.monotonic() - self._at
        if old < _OUT_OF_SIGHT:
            return ""
        why = self.lost or "no answer yet"
        return note_line(f"last update {duration(old)} ago: {why}", alert=True)


# ---------------------------------------------------------------- --refresh

REFRESH_SECONDS = 2.0
"""Seconds between two looks with --refresh (arena's)."""


RefreshFlag = Annotated[
    bool,
    Flag(help="Refresh every two seconds.", short="-r", panel=PANEL, needs=("JOB",)),
]


def redraw_screen(
    console: Console,
    first: Any,
    look: Callable[[], Any],
    screen: Callable[[Any, int | None], str],
    value: Callable[[Any], Any],
    *,
    output_format: Output,
    limit: float | None,
) -> None:
    """Show a result every two seconds: redrawn on a terminal, else one after another."""
    waiting = [first]

    def again() -> Any:
        return waiting.pop() if waiting else look()

    def text(_before: Any, seen: Any, now: float) -> str:
        if output_format is not Output.WIDE:
            return stream_document(value(seen), yaml=output_format is Output.YAML)
        return f"{screen(seen, None)}{'-' * 25} {clock(now)} {'-' * 37}\n"

    def draw(seen: Any, _now: float, width: int | None) -> str:
        return fold_text(screen(seen, width), width)

    watch(
        console,
        again,
        draw=draw if output_format is Output.WIDE else None,
        changes=text,
        every=REFRESH_SECONDS,
        limit=limit,
    )


def print_once(console: Console) -> Callable[[str], None]:
    """A printer of notes that prints each text once."""
    printed: set[str] = set()

    def heard(text: str) -> None:
        if text not in printed:
            printed.add(text)
            console.note(text)

    return heard
