"""What the terminal can show: how wide it is, and which characters it takes."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TextIO


def draws(*, plain: bool) -> bool:
    """Whether drawings may use Unicode: nobody asked for ASCII, and locale and output take it."""
    encoding = (sys.stdout.encoding if sys.stdout else None) or "utf-8"
    return not plain and not _plain_locale() and encoding.lower().startswith("utf")


def _plain_locale() -> bool:
    """Whether the locale is said to be C or POSIX; Python writes UTF-8 there all the same."""
    character = os.environ.get("LC_CTYPE", "")
    if character == "C.UTF-8":
        # Python itself puts this where the locale is C (PEP 538).
        character = ""
    said = os.environ.get("LC_ALL") or character or os.environ.get("LANG", "")
    return said in {"C", "POSIX"}


def columns() -> int:
    """Columns of the terminal, at least 60; 100 where the output is no terminal."""
    if sys.stdout is None or not sys.stdout.isatty():
        return 100
    return max(60, shutil.get_terminal_size().columns)


def wrapped(stream: TextIO | None) -> int | None:
    """Columns to wrap sentences at: those of a terminal; None where the output is none."""
    return columns() if stream is not None and stream.isatty() else None
