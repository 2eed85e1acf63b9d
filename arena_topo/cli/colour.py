"""Colours for screens that are finished: headers, states and the first words of messages.

Nothing is ever moved: without its colours a screen is what it was before. What a word means is
seen from where it stands, below the header of its column or behind its label, so that no sentence
is coloured for a word that happens to be in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_BOLD, _DIM, _RED, _GREEN, _YELLOW, _CYAN = "1", "2", "31", "32", "33", "36"
"""Of the SGR codes (ECMA-48, 8.3.117) those that every theme of a terminal has a colour for."""

_HEADER = re.compile(
    r"[A-Z][A-Z0-9_]*(?: [A-Z]+)*(?:\([A-Za-z/ ]+\))?(?: Memory\([A-Za-z/]+\))?|GB/s"
)
_DASHES = re.compile(r"-+(?: +-+)*")
_TITLE = re.compile(r"[A-Z][A-Za-z ]*:")
_PHASE = re.compile(r"(?:Status: +|The Job \S+ is |\S+: )(?P<word>[A-Z]{6,})\b")
_MESSAGE = re.compile(r" {0,2}(?P<word>error|warning|note|why|try|Advice|Drift|EMULATED):(?= )")

_STATES = frozenset({"STATUS", "RESULT"})
"""Columns whose words say how something is."""

_MESSAGES = {
    "error": f"{_BOLD};{_RED}",
    "warning": f"{_BOLD};{_YELLOW}",
    "note": _CYAN,
    "Advice": _CYAN,
    "Drift": _YELLOW,
    "EMULATED": _YELLOW,
}

_GOOD = frozenset({"RUNNING", "SUCCEEDED", "Running", "Succeeded", "Completed", "Ready", "ok"})
_WAITS = frozenset(
    {
        *("PENDING", "QUEUING", "SUSPENDED", "UNKNOWN", "Pending", "ContainerCreating"),
        *("PodInitializing", "SchedulingGated", "Terminating", "Unknown", "unknown", "warn"),
    }
)
_BAD = frozenset({"FAILED", "fail"})
_TROUBLE = re.compile(r"Err|BackOff|Killed|Evicted|Invalid|Unexpected|OutOf|Cannot|NotReady|Failed")
"""What is in the reasons that kubectl shows as the STATUS of a pod that cannot run."""


def painted(text: str) -> str:
    """The text with colours; without them it is the text, to the letter."""
    states: tuple[int, ...] = ()
    lines = []
    for line in text.split("\n"):
        header = _cells(line)
        if header:
            states = tuple(at for at, word in header if word in _STATES)
            start = header[0][0]
            lines.append(_tinted(line, [(start, len(line.rstrip()) - start, _BOLD)]))
            continue
        if not line.strip():
            states = ()
        lines.append(_tinted(line, _marks(line, states)))
    return "\n".join(lines)


def tone(word: str) -> str | None:
    """The colour of a state, as the parameters of SGR; None for one that has none."""
    if word in _GOOD:
        return _GREEN
    if word in _BAD or _TROUBLE.search(word):
        return _RED
    waits = word in _WAITS or word.startswith("Init:") or "SchedulingDisabled" in word
    return _YELLOW if waits else None


def _cells(line: str) -> list[tuple[int, str]]:
    """Where the words of a header stand; nothing for a line that is none."""
    cells = [(one.start(), one[0]) for one in re.finditer(r"\S+(?: \S+)*", line)]
    if len(cells) > 1 and all(_HEADER.fullmatch(word) for _at, word in cells):
        return cells
    return []


def _marks(line: str, states: tuple[int, ...]) -> Iterable[tuple[int, int, str]]:
    """(start, length, SGR) of what is coloured in a line, left to right."""
    inner = line.strip()
    at = line.find(inner)
    if _DASHES.fullmatch(inner):
        yield at, len(inner), _DIM
    elif _TITLE.fullmatch(line):
        yield 0, len(line), _BOLD
    elif found := _MESSAGE.match(line):
        start, end = found.span("word")
        yield start, end + 1 - start, _MESSAGES.get(found["word"], _BOLD)
    elif states:
        yield from _in_columns(line, states)
    elif (found := _PHASE.match(line)) and (colour := tone(found["word"])):
        yield found.start("word"), len(found["word"]), colour


def _in_columns(line: str, states: tuple[int, ...]) -> Iterable[tuple[int, int, str]]:
    for start in states:
        word = line[start:].split(" ", 1)[0]
        # A sentence below a table stands in no column.
        alone = start == 0 or line[max(0, start - 2) : start].strip() == ""
        if alone and word and (colour := tone(word)):
            yield start, len(word), colour


def _tinted(line: str, marks: Iterable[tuple[int, int, str]]) -> str:
    done, at = "", 0
    for start, length, sgr in marks:
        end = start + length
        done += f"{line[at:start]}\x1b[{sgr}m{line[start:end]}\x1b[0m"
        at = end
    return done + line[at:]
