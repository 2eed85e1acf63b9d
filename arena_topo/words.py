"""Lists and plurals in sentences."""

from __future__ import annotations

TYPE_CHECKING = False
"""As in `typing`, which takes as long to import as all the rest of a completion."""

if TYPE_CHECKING:
    from collections.abc import Sequence


def listed(parts: Sequence[str]) -> str:
    """Some words as a list: `a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def counted(number: int, word: str) -> str:
    """A number with its word: `1 node`, `2 nodes`."""
    return f"{number} {word}{'s' if number != 1 else ''}"


def shortened(words: Sequence[str], most: int) -> str:
    """The first of some words, and how many more there are: `a, b and 3 more`."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more
