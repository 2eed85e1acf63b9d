"""What a stream can show: its width, characters and colours, and whether it can be redrawn."""

from __future__ import annotations

import os
import re
from typing import TextIO

_NARROW = 60
"""Columns that drawings need."""

_MOST_COLUMNS = 0xFFFF
"""Columns that a terminal can have: `struct winsize` counts them in 16 bits (ioctl_tty(2))."""

_USUAL = 100
"""Columns of drawings where the output is no terminal."""


def colours(stream: TextIO | None, choice: str = "auto") -> bool:
    """Whether output to a stream is coloured: by the choice always or never, else by convention.

    NO_COLOR (no-color.org) wins over CLICOLOR=0 and TERM=dumb (bixense.com/clicolors), these over
    FORCE_COLOR (force-color.org) and CLICOLOR_FORCE, and these over being a terminal.
    """
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("CLICOLOR") == "0" or os.environ.get("TERM") == "dumb":
        return False
    for variable in ("FORCE_COLOR", "CLICOLOR_FORCE"):
        if setting := os.environ.get(variable):
            return setting != "0"
    return can_redraw(stream)


def crop_line(line: str, columns: int, *, unicode: bool) -> str:
    """A line cropped to so many columns of a terminal, with an ellipsis."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(line) <= columns:
        return line
    ellipsis = "…" if unicode else "..."
    return set_cell_size(line, max(0, columns - len(ellipsis))) + ellipsis


def can_redraw(stream: TextIO | None) -> bool:
    """Whether output can be redrawn in place: on a terminal that is not dumb."""
    return _is_terminal(stream) and os.environ.get("TERM", "dumb") not in {"", "dumb", "unknown"}


def may_use_unicode(stream: TextIO | None) -> bool:
    """Whether drawings may use Unicode: the locale and the stream allow it."""
    encoding = (stream.encoding if stream else None) or "utf-8"
    return not _plain_locale() and encoding.lower().startswith("utf")


def _plain_locale() -> bool:
    """Whether the locale is C or POSIX, in which Python writes UTF-8 all the same."""
    character = os.environ.get("LC_CTYPE", "")
    if character == "C.UTF-8":
        # Python itself puts this where the locale is C (PEP 538).
        character = ""
    lc_all = os.environ.get("LC_ALL") or character or os.environ.get("LANG", "")
    return lc_all in {"C", "POSIX"}


def drawing_columns(stream: TextIO | None) -> int:
    """Columns for drawings on a stream: at least 60; 100 where it is no terminal."""
    wide = wrap_columns(stream)
    return _USUAL if wide is None else max(_NARROW, wide)


def wrap_columns(stream: TextIO | None) -> int | None:
    """The columns at which sentences are wrapped: COLUMNS, else the terminal's; None elsewhere.

    A COLUMNS that is no number from 1 to 65535, the most that a terminal can have, is ignored.
    """
    if stream is None or not _is_terminal(stream):
        return None
    match = re.fullmatch(r"0*([1-9][0-9]{0,4})", os.environ.get("COLUMNS", ""))
    wide = int(match[1]) if match else 0
    return wide if 0 < wide <= _MOST_COLUMNS else window(stream)[0]


def window(stream: TextIO) -> tuple[int, int]:
    """Columns and rows of a terminal now; 80 and 24 for one that does not say."""
    try:
        columns, rows = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        columns, rows = 0, 0
    return columns or 80, rows or 24


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        # Before Rich 15 the stand-in for a stream that Rich redirects is never a terminal.
        return stream is not None and bool(getattr(stream, "rich_proxied_file", stream).isatty())
    except ValueError:  # it is closed
        return False
