"""Whether a screen is the one that a page shows, whatever time it is and wherever it was run."""

from __future__ import annotations

import difflib
import re

from pages import ANY_LINES

_DURATION = (
    r"\d+(?:\.\d+)?(?:(?:ns|us|µs|m|h|d|w|y)\b"
    r"| ?(?:ms|s|min|sec|(?:millisecond|second|minute|hour|day|week)s?)\b)"
)

_CHANGING: tuple[tuple[str, str], ...] = (
    # Names first, as parts of them can look like durations: launcher-0004d.
    (r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", "UID"),
    (r"(-launcher)-[a-z0-9]{5}\b", r"\1-XXXXX"),
    # Times: RFC 3339, with a space, HTTP's; then dates and clocks alone.
    (
        r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z\b|[+-]\d\d:?\d\d\b| UTC\b)?",
        "TIME",
    ),
    (r"\b\d{4}-\d\d-\d\d\b", "DATE"),
    (r"\b\d\d:\d\d:\d\d(?:[.,]\d+)?Z?\b", "CLOCK"),
    # Durations: 3s, 1m30s, 2.5 seconds, 0.2 ms, under a second.
    (rf"\b{_DURATION}(?:,? ?{_DURATION})*", "DURATION"),
    (r"\b\d+(?:\.\d+)?(?:[dhm]\d+(?:\.\d+)?)+[hms]\b", "DURATION"),
    # Rates that were measured. GB/s is what links carry, and stays: it is the same every time.
    (r"\b\d+(?:\.\d+)? (?:it|steps?|rounds?|samples?|images?|tokens?)/s\b", "RATE"),
    (r"127\.0\.0\.1:\d+", "127.0.0.1:PORT"),
    (r"\b(pid|process) \d+\b", r"\1 PID"),
    # bash counts lines where there is no prompt.
    (r"^bash: line \d+: ", "bash: "),
    # How wide a table is follows from what stands in it.
    (r"([-─━═_])\1{2,}", r"\1\1\1"),
    (r"\s+", " "),
)
_PATTERNS = [(re.compile(pattern), to) for pattern, to in _CHANGING]

_MEASURED = re.compile(r"(?:Iter #\d+:|Total: \d+ rounds).* GB/s")
"""Lines of `arena_topo.examples.allreduce` that say how fast this machine was."""
_GBPS = re.compile(r"\b\d+(?:\.\d+)? GB/s")

_RANK = re.compile(r"(?:\S+ +)?rank \d+/\d+ on ")
"""Lines of the same program of which each is written by another process, in any order."""


def normal(line: str, changes: list[str]) -> str:
    """A line without what may differ."""
    for pattern in changes:
        line = re.sub(pattern, "CHANGES", line)
    if _MEASURED.search(line):
        line = _GBPS.sub("RATE", line)
    for known, to in _PATTERNS:
        line = known.sub(to, line)
    return line.strip()


def in_order(lines: list[str]) -> list[str]:
    """The lines with those sorted that processes write in any order."""
    ordered: list[str] = []
    start = 0
    for number in range(len(lines) + 1):
        if number < len(lines) and _RANK.match(lines[number].strip()):
            continue
        ordered += sorted(lines[start:number])
        ordered += lines[number : number + 1]
        start = number + 1
    return ordered


def same(shown: list[str], seen: list[str], changes: list[str]) -> bool:
    """Whether a page shows what was seen."""
    pattern = [line if _any(line) else normal(line, changes) for line in in_order(shown)]
    text = [normal(line, changes) for line in in_order(seen)]
    # The ends of `text` that the lines of `pattern` so far can have reached.
    ends = {0}
    for line in pattern:
        if _any(line):
            ends = set(range(min(ends), len(text) + 1))
        else:
            ends = {end + 1 for end in ends if end < len(text) and text[end] == line}
        if not ends:
            return False
    return len(text) in ends


def _any(line: str) -> bool:
    return line.strip() == ANY_LINES


def merged(
    shown: list[str], seen: list[str], changes: list[str], *, keep: bool = False
) -> list[str]:
    """What the page should show: what was seen, without what it left out before.

    With `keep`, lines that differ only in what may differ stay as they are in the page.
    """
    if same(shown, seen, changes):
        return shown
    shown, seen = in_order(shown), in_order(seen)
    old = [
        f"\0{number}" if _any(line) else normal(line, changes) for number, line in enumerate(shown)
    ]
    new = [normal(line, changes) for line in seen]
    at: dict[int, int] = {}
    for start, other, size in difflib.SequenceMatcher(
        None, old, new, autojunk=False
    ).get_matching_blocks():
        at.update({start + step: other + step for step in range(size)})
    result = list(seen)
    for number, other in at.items() if keep else ():
        result[other] = shown[number]
    gone: set[int] = set()
    marks: dict[int, str] = {}
    for number, line in enumerate(shown):
        if not _any(line):
            continue
        before = next((near for near in range(number - 1, -1, -1) if near in at), None)
        after = next((near for near in range(number + 1, len(shown)) if near in at), None)
        if before is None and number > 0 and after is None and number < len(shown) - 1:
            continue  # nothing of what was around it is left
        start = number if before is None else at[before] + number - before
        end = number + 1 + (len(seen) - len(shown) if after is None else at[after] - after)
        if 0 <= start <= end <= len(seen):
            gone.update(range(start, end))
            marks[start] = line
    lines: list[str] = []
    for number in range(len(result) + 1):
        if number in marks:
            lines.append(marks[number])
        if number < len(result) and number not in gone:
            lines.append(result[number])
    return lines


def difference(shown: list[str], seen: list[str], changes: list[str]) -> str:
    """A unified diff from what the page shows to what it should show."""
    wanted = merged(shown, seen, changes, keep=True)
    lines = difflib.unified_diff(shown, wanted, "the page", "what is seen", lineterm="", n=2)
    return "\n".join(line for line in lines if not line.startswith("@@"))
