"""Lists, plurals and the extras of the package in sentences."""

from __future__ import annotations

TYPE_CHECKING = False
"""As in `typing`, which takes as long to import as all the rest of a completion."""

if TYPE_CHECKING:
    from collections.abc import Sequence


def listed(parts: Sequence[str], last: str = "and") -> str:
    """Some words as a list: `a`, `a and b`, `a, b and c`."""
    return f" {last} ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def counted(number: int, word: str) -> str:
    """A number with its word: `1 node`, `2 nodes`."""
    return f"{number} {word}{'s' if number != 1 else ''}"


def portion(number: int, total: int, word: str, *, noun: str, many: str) -> str:
    """A part of some things and what it does: `1 of 3 pods is starting`, `0 of 1 worker exists`."""
    does = noun if 1 in {number, total} else many
    return f"{number} of {counted(total, word)} {does}"


def with_extra(extra: str) -> str:
    """The package with an extra, as hints name it; the page has the lines that install it."""
    return f"arena-topo with its extra {extra!r} (docs/installation.md)"


def ordinal(number: int) -> str:
    """A number as a place in a row: `1st`, `2nd`, `11th`."""
    teens = number % 100 in range(11, 14)
    return f"{number}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def shortened(words: Sequence[str], most: int, more: str = "more") -> str:
    """The first words of a list, and the number of the others: `a, b and 3 more`."""
    rest = f" and {len(words) - most} {more}" if len(words) > most else ""
    return ", ".join(words[:most]) + rest


def shortened_clauses(clauses: Sequence[str], most: int) -> str:
    """The first clauses of a list, and the number of the others: `a; b; and 3 more`."""
    rest = [f"and {len(clauses) - most} more"] if len(clauses) > most else []
    return "; ".join([*clauses[:most], *rest])


def shortened_cell(names: Sequence[str], most: int) -> str:
    """The first names in the cell of a table, and the number of the others: `a,b,+3`."""
    rest = [f"+{len(names) - most}"] if len(names) > most else []
    return ",".join([*names[:most], *rest])
