"""Whole numbers: read from labels, annotations, logs and flags; counted in sentences."""

from __future__ import annotations

from collections.abc import Sequence

MOST_DIGITS = 18
"""More digits than any count, time or size needs; Python refuses to read more than 4,300."""


def whole(text: object) -> int | None:
    """The number that ASCII digits write; None for any other text and for more than 18 digits."""
    said = str(text)
    plain = said.isascii() and said.isdigit() and len(said) <= MOST_DIGITS
    return int(said) if plain else None


def counted(number: int, word: str) -> str:
    """A number with its word: `1 node`, `2 nodes`."""
    return f"{number} {word}{'s' * (number != 1)}"


def shortened(words: Sequence[str], most: int) -> str:
    """The first of some words, and how many more there are: `a, b and 3 more`."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more
