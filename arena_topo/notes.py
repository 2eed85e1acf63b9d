"""Notes on a cluster: sentences with fields, and few lines on a screen for many notes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Self

from arena_topo.escaping import one_line
from arena_topo.words import shortened


class Alert(str):
    """A note with the level of a warning."""

    __slots__ = ()


class Note(str):
    """A sentence about an object of the cluster, on one line.

    `subject` is the object's name. `fault` is equal for notes that differ only in names and values.
    """

    __slots__ = ("fault", "subject")

    fault: str
    subject: str

    def __new__(cls, subject: str, fault: str, text: str) -> Self:
        """A note with this text, whose control characters are escaped."""
        made = super().__new__(cls, one_line(text))
        made.subject, made.fault = subject, fault
        return made

    def __reduce__(self) -> tuple[object, ...]:
        # Errors with notes pass between processes.
        return Note, (self.subject, self.fault, str(self))


class Notes(list[str]):
    """The notes on a cluster that is being read."""

    def add(self, subject: str, fault: str, text: str) -> None:
        """Add a note; the parameters are those of `Note`."""
        self.append(Note(subject, fault, text))


MAX_SHOWN_NOTES = 3
"""The most notes on one fault that are shown in full."""

NAMED = 10
"""The most further names of one fault."""


def grouped(notes: Iterable[str]) -> Iterator[str]:
    """The notes by their faults; beyond three on the same fault, only the names of the others.

    A note without fields is alone with its fault.
    """
    faults: dict[str, list[str]] = {}
    for note in dict.fromkeys(notes):
        faults.setdefault(note.fault if isinstance(note, Note) else note, []).append(note)
    for alike in faults.values():
        yield from alike[:MAX_SHOWN_NOTES]
        others = list(
            dict.fromkeys(
                note.subject for note in alike[MAX_SHOWN_NOTES:] if isinstance(note, Note)
            )
        )
        if others:
            where = ", which topology show -o json names" if len(others) > NAMED else ""
            names = shortened(others, NAMED) + where
            yield f"... and {len(alike) - MAX_SHOWN_NOTES} more like the last: {names}"
