"""Notes on a cluster for a screen: of many alike a few, and the names of the others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator


class Alert(str):
    """A note of something that is wrong: said also to who wants to hear of warnings alone."""

    __slots__ = ()


SHOWN = 3
"""Notes on one fault that are shown whole."""

NAMED = 10
"""Further things with the same fault that are named."""

MOST_FAULTS = 20
"""Faults that are shown: with their notes some screens of text."""

_WHO = re.compile(
    r"\b(?:node|pod|configmap|topology|MPIJob|Node|Pod|ConfigMap|Topology)"
    r" (without a name \(object \d+\)|(?!without|other)\S*[^\s:;,])"
)
"""A kind of thing and its name, as notes begin with them."""

_VARIES = re.compile(r"'[^']*'|\"[^\"]*\"|-?\d[\d.]*|\([^)]*\)")
"""What differs between notes on one fault: quoted words, numbers, what stands in brackets."""


def shortened(notes: Iterable[str]) -> Iterator[str]:
    """The notes, and instead of the fourth on the same fault and those after it their names.

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
