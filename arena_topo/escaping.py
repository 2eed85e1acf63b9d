"""Text of others, such as a cluster's, so that a terminal shows it and does not obey it.

What is laid out is made of `one_line`s: no cell or sentence can add lines of its own. Whatever goes
to a person passes `escaped` at the very end.
"""

from __future__ import annotations

import re

MOST = 500
"""Characters of a server's message that are shown: some lines of a terminal."""

_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but for tab and line feed, DEL, C1 (ECMA-48)
    "\u202a-\u202e\u2066-\u2069"  # what turns the direction of text (UAX 9, 2.1-2.4)
    "\ud800-\udfff]"  # no character at all: no output takes it
)


def escaped(text: str) -> str:
    r"""The text with `\x1b` and the like in the place of what a terminal would obey.

    Line feeds and tabs stay.
    """
    return _OBEYED.sub(_visible, text)


def escaped_in_quotes(document: str) -> str:
    """JSON, or YAML in whose double quotes such characters stand, for the very same values."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def one_line(text: str) -> str:
    """The text on one line, with nothing in it that a terminal would obey or not show."""
    flat = " ".join(text.split())
    if flat.isprintable():
        return flat
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in flat)


def brief(text: str, most: int = MOST) -> str:
    """The text on one line; of a long one the first so many characters, and how many follow."""
    line = one_line(text)
    more = len(line) - most
    return line if more <= 0 else f"{line[:most]}... ({more} more characters)"


def _visible(found: re.Match[str]) -> str:
    return repr(found[0])[1:-1]
