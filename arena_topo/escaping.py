"""Untrusted text, such as a cluster's, made safe for a terminal: control characters are escaped.

Cells and sentences of screens are `one_line`s, so that none can add lines. All output for people
passes `escaped` at the end. Logs of programs are larger, and have colours and progress bars
(`joblogs.log_text`).
"""

from __future__ import annotations

import re

MAX_MESSAGE_CHARACTERS = 500
"""Characters of a server's message that are shown: some lines of a terminal."""

OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but for tab and line feed, DEL, C1 (ECMA-48)
    "\u202a-\u202e\u2066-\u2069"  # what turns the direction of text (UAX 9, 2.1-2.4)
    "\ud800-\udfff]"  # no character at all: no output takes it
)
"""Characters that a terminal, or a reader, would take for more than text."""


def escaped(text: str) -> str:
    r"""The text with control characters escaped, as `\x1b`.

    Line feeds and tabs stay.
    """
    return OBEYED.sub(as_escape, text)


def escaped_in_quotes(document: str) -> str:
    """JSON, or YAML with such characters in double quotes only, escaped to the same values."""
    return OBEYED.sub(lambda match: f"\\u{ord(match[0]):04x}", document)


def one_line(text: str) -> str:
    """The text on one line, with unprintable characters escaped."""
    flat = " ".join(text.split())
    if flat.isprintable():
        return flat
    return "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in flat
    )


def brief(text: str, most: int = MAX_MESSAGE_CHARACTERS) -> str:
    """The text on one line, truncated to so many characters, with the number of the others."""
    line = one_line(text)
    more = len(line) - most
    return line if more <= 0 else f"{line[:most]}... ({more} more characters)"


def as_escape(match: re.Match[str]) -> str:
    """What was matched as an escape."""
    return repr(match[0])[1:-1]
