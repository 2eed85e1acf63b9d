"""What is wrong with a run, whatever it was asked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .sandbox import Outcome

CODES = frozenset({0, 1, 2, 3, 4, 5, 6, 130})
"""The exit codes of `docs/conventions.md`, without those of other signals and of jobs."""

MEMORY = 512 << 20
"""Bytes that one input may take: an answer may have 128 MiB, of which there are copies for a
moment while it is put together."""

_STYLES = re.compile(r"\x1b\[(?:0|1|2|31|32|33|34|35|36|1;3[1-6])m")
"""Those that the program uses itself."""
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_CARRIAGE = re.compile("\r")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong with a run; `kind` is the column of the table where it counts."""

    kind: str
    what: str
    detail: str = ""


TRACEBACK, EXIT, HANG, OTHER = "tracebacks", "odd exits", "hangs", "other"


def of(outcome: Outcome, *, log: bool = False) -> Iterator[Finding]:
    """What is wrong with a run; `log` where it shows the output of a job."""
    said = outcome.err.decode("utf-8", "replace")
    if outcome.ended is not None:
        yield Finding(kind=HANG, what=f"no end @ {outcome.ended.at}", detail=outcome.ended.trace)
        return
    if outcome.crash is not None:
        what = f"{outcome.crash.kind} @ {outcome.crash.at}"
        yield Finding(kind=TRACEBACK, what=what, detail=outcome.crash.trace)
    elif b"made a mistake" in outcome.err:
        yield Finding(kind=TRACEBACK, what="a mistake without a report", detail=said)
    elif outcome.code not in CODES:
        yield Finding(kind=EXIT, what=f"exit code {outcome.code}", detail=said)
    elif outcome.code and not (outcome.out.strip() or outcome.err.strip()):
        yield Finding(kind=EXIT, what=f"exit code {outcome.code} and not a word")
    if outcome.grown > MEMORY:
        what = f"more than {MEMORY >> 20} MiB of memory"
        yield Finding(kind=OTHER, what=what, detail=f"{outcome.grown >> 20} MiB")
    for name, data in (("stdout", outcome.out), ("stderr", outcome.err)):
        yield from _unclean(name, data, log=log and name == "stdout")


def _unclean(name: str, data: bytes, *, log: bool) -> Iterator[Finding]:
    try:
        text = _STYLES.sub("", data.decode("utf-8"))
    except UnicodeDecodeError as error:
        yield Finding(kind=OTHER, what=f"{name} is not UTF-8", detail=f"{error}\n{data[:2000]!r}")
        return
    found = _CONTROL.search(text) or (None if log else _CARRIAGE.search(text))
    if found is not None:
        around = text[max(0, found.start() - 200) : found.end() + 200]
        what = f"U+{ord(found[0]):04X} on {name}"
        yield Finding(kind=OTHER, what=what, detail=ascii(around))
