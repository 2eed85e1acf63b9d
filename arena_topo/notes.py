"""Notes on a cluster for a screen: a few of many similar ones, and the names of the others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator


class Alert(str):
    """A note with the level of a warning."""

    __slots__ = ()


SHOWN = 3
"""The most notes on one fault that are shown in full."""

NAMED = 10
"""The most further names of one fault."""

MOST_FAULTS = 20
"""The most faults that are shown: with their notes some screens of text."""

_WHO = re.compile(
    r"\b(?:node|pod|configmap|topology|MPIJob|Node|Pod|ConfigMap|Topology)"
    r" (without a name \(object \d+\)|(?!without|other)\S*[^\s:;,])"
)
"""The kind and name at the start of a note."""

_VARIES = re.compile(r"'[^']*'|\"[^\"]*\"|-?\d[\d.]*|\([^)]*\)")
"""The parts that differ between notes on one fault: quoted words, numbers, brackets."""


def shortened(notes: Iterable[str]) -> Iterator[str]:
    """The notes; beyond three on the same fault, only the names of the others.

    Two notes are on the same fault if they differ only in names, numbers and quoted words.
    """
    alike: dict[str, list[str]] = {}
    for note in dict.fromkeys(notes):
        alike.setdefault(_fault(note), []).append(note)
    for group in list(alike.values())[:MOST_FAULTS]:
        yield from group[:SHOWN]
        others = list(dict.fromkeys(_about(note) for note in group[SHOWN:]))
        if others:
            names = ", ".join(others[:NAMED])
            left = len(others) - NAMED
            rest = f" and {left} more, which topology show -o json names" if left > 0 else ""
            yield f"... and {len(group) - SHOWN} more like the last: {names}{rest}"
    left = sum(map(len, list(alike.values())[MOST_FAULTS:]))
    if left:
        yield f"... and {left} other notes, which topology show -o json lists"


def _fault(note: str) -> str:
    return _VARIES.sub("#", _WHO.sub("#", note))


def _about(note: str) -> str:
    found = _WHO.search(note)
    return found[1] if found else note
