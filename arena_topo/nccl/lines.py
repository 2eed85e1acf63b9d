"""Which parts of a text are lines of NCCL, whoever's tags and stamps stand before them.

    host:pid:tid [dev] NCCL INFO text                     since 2.0 (src/debug.cc)
    host:pid:tid [dev] file.cc:123 NCCL WARN text         a line feed before it
    host:pid:tid [dev] file.cc:123 (function) NCCL WARN   since 2.30
    host:pid:tid [dev] int f(a, b):12 NCCL WARN text      plugins of AWS: __PRETTY_FUNCTION__
    [2025-03-01 12:00:00] host:pid:tid [dev] ...          NCCL_DEBUG_TIMESTAMP_LEVELS, since 2.26

Two ranks that write at once may leave two lines in one, or one in the middle of the other.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

LONGEST_PREFIX = 1_200
"""Characters before "NCCL INFO" that are looked at: 255 of a host, numbers, and the declaration of
a function of C++ with its types."""

LONGEST_NAME = 255
"""Characters of the name of a host."""

_WORD = re.compile(r"NCCL (INFO|WARN) ")
_PREFIX = re.compile(
    r"(?:(?P<host>[\w.<>-]{1,255}):(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) )?"
    r"\[(?P<device>-?\d{1,4})\] "
    r"(?:(?P<where>[\w./+-]{1,200}:\d{1,6}) (?:\([\w:~<>]{1,100}\) )?)?$"
)
_WRITER = re.compile(
    r"(?:(?P<host>[\w.<>-]{1,255}):(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) )?\[(?P<device>-?\d{1,4})\] "
)
_WHERE = re.compile(r"(\S.*:\d{1,6}) (?:\([^ ]{1,100}\) )?")
"""What stands between the writer of a warning and its text, if it is no file: a function."""
_TAIL = re.compile(
    r":\d{1,10}:\d{1,10}(?P<more> (?:\[(?:-?\d{1,4}(?:\] ?(?P<word>[A-Z ]{0,8}))?)?)?)?$"
)
"""The end of a line that ends in its prefix, after the host."""
LONGEST_TAIL = 60
"""Characters that such an end has at most, and some."""
_NAME = re.compile(r"[\w.<>-]{1,255}$")
_HEADLESS = re.compile(r"(?<!\w)CCL (?:INFO|WARN) ")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+[\w.-]*\+cuda\d+\.\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A line of NCCL: who wrote it, and its text.

    `host` is "" and `pid`, `tid` None where somebody took them out. `whole` is False where the text
    may have lost its end: it is followed at once by another line.
    """

    host: str
    pid: int | None
    tid: int | None
    device: int
    warning: bool
    where: str | None
    text: str
    whole: bool = True


@dataclass(frozen=True, slots=True)
class _Found:
    """A "NCCL INFO" or "NCCL WARN"; `match` is its writer, None where that cannot be told."""

    begin: int
    end: int
    warning: bool
    match: re.Match[str] | None
    where: str | None = None


def version_in(line: str) -> str | None:
    """The version NCCL tells of itself ("2.18.3+cuda12.2"), with or without a prefix."""
    found = _VERSION.search(line)
    return found[1] if found else None


def is_fragment(line: str, writers: Collection[str]) -> bool:
    """Whether a line without a whole prefix is a piece of a line of NCCL.

    That is one that begins within the words of a prefix, or ends within the prefix of one of the
    hosts that wrote before: "12:30:45" looks like a host and two numbers as well.
    """
    if _HEADLESS.search(line):
        return True
    line = line.rstrip()
    begin = max(0, len(line) - LONGEST_TAIL)
    found = _TAIL.search(line[begin:])
    if found is None:
        return False
    word = found["word"] or ""
    if not any(full.startswith(word) for full in ("NCCL INFO", "NCCL WARN")):
        return False
    at = begin + found.start()
    name = _NAME.search(line, max(0, at - LONGEST_NAME), at)
    return name is not None and name[0] in writers


def messages(
    line: str, known: Mapping[int, Collection[str]], *, ends: bool = True
) -> Iterator[Message | None]:
    """Every line of NCCL in a line of a log; None for each that cannot be told from its neighbour.

    The text of a warning is whole whoever wrote it: where that cannot be told, it has no host.

    `known` are the hosts of each process id met so far: they tell where a name begins that is glued
    to the text before it. `ends` is False where more of the line is to come, or was lost.
    """
    if "\x1b" in line:
        line = _ESCAPES.sub("", line)
    found = tuple(_prefixes(line))
    hosts = tuple(_host(one, line, known) for one in found)
    for place, one in enumerate(found):
        host, _ = hosts[place]
        text, whole = line[one.end :], ends
        if place + 1 < len(found):
            stop = found[place + 1].begin
            _, glued = hosts[place + 1]
            text = line[one.end : stop] + glued
            known_next = found[place + 1].match is not None
            whole = known_next and not glued and line[stop - 1].isspace()
        match = one.match
        if match is None or (host is None and not one.warning):
            yield None
            continue
        sure = bool(host)
        yield Message(
            host=host or "",
            pid=int(match["pid"]) if sure else None,
            tid=int(match["tid"]) if sure else None,
            device=int(match["device"]),
            warning=one.warning,
            where=one.where,
            text=text.strip(),
            whole=whole,
        )


def _prefixes(line: str) -> Iterator[_Found]:
    done = 0
    for word in _WORD.finditer(line):
        warning = word[1] == "WARN"
        begin = max(done, word.start() - LONGEST_PREFIX)
        before = line[begin : word.start()]
        match, where = _PREFIX.search(before), None
        if match is not None:
            where = match["where"]
        elif warning:
            match, where = _declared(before)
        if match is None and not warning:
            continue
        done = word.end()
        at = word.start() if match is None else begin + match.start()
        yield _Found(at, done, warning, match, where)


def _declared(before: str) -> tuple[re.Match[str] | None, str | None]:
    """Who writes a warning that names no file but a function, and that."""
    writers = list(_WRITER.finditer(before))
    for one in sorted(writers, key=lambda one: (one["host"] is not None, one.start()))[::-1]:
        if found := _WHERE.fullmatch(before, one.end()):
            return one, found[1]
    return None, None


def _host(one: _Found, line: str, known: Mapping[int, Collection[str]]) -> tuple[str | None, str]:
    """The host of a prefix, and what of it is the end of the text before; None: not to be told."""
    host: str = (one.match["host"] or "") if one.match is not None else ""
    if one.match is None or not host:
        return "", ""
    names = known.get(int(one.match["pid"]), ())
    if host in names:
        return host, ""
    tail = next((host[at:] for at in range(len(host)) if host[at:] in names), None)
    if tail is not None:
        return tail, host.removesuffix(tail)
    before = line[one.begin - 1] if one.begin else " "
    return (host, "") if before.isspace() or before in ":]|" else (None, "")
