"""Lines of logs in, the facts of NCCL's lines out.

    host:pid:tid [dev] NCCL INFO text                     since 2.0 (src/debug.cc)
    host:pid:tid [dev] file.cc:123 NCCL WARN text         a line feed before it
    host:pid:tid [dev] file.cc:123 (function) NCCL WARN   since 2.30
    host:pid:tid [dev] int f(a, b):12 NCCL WARN text      plugins of AWS: __PRETTY_FUNCTION__

Tags and time stamps may come before them. Each line is parsed alone. Truncated and interleaved
lines are counted but not used: half a number is another number.

NCCL prints a communicator's name (commId) since 2.17, and its begin since 2.18. Before, only
"Init COMPLETE" identifies the rank: all lines of its thread since the last "Init COMPLETE" are
its own. Since 2.22 ranks connect at their first collective, from other threads: the line of a
connection then belongs to the only communicator of the process that fits it.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from arena_topo.nccl import (
    Communicator,
    Complaint,
    GraphSearch,
    NcclHost,
    NcclReport,
    Rank,
    RankConnection,
    Setting,
)
from arena_topo.nccl.complaints import advice_on, reports_trouble
from arena_topo.numbers import MOST_DIGITS

MOST_FACTS = 400_000
"""The most facts that are stored: 1,024 ranks with 32 channels have a third of it. More are
counted."""

MOST_OF_PROCESS = 256
"""The most ranks of one process that are stored: eight GPUs in 32 communicators."""

MOST_COMPLAINTS = 300
"""The most complaints that differ in more than their numbers; a broken job has a dozen."""

LONGEST_LINE = 400
"""Characters of a line that are stored, to find it in the log."""

LONGEST_PREFIX = 1_200
"""The longest prefix before "NCCL INFO" in characters: 255 of a host, numbers, and the declaration
of a function of C++ with its types."""

HIGHEST_RANK = 1_000_000
"""More than the ranks of any job; a larger number is two numbers glued together."""

OLD_LONGEST_RING = 20
"""Ranks of a ring that NCCL before 2.23 prints; it truncates longer rings silently (rings.cc)."""

_RANK_COST = 8
"""The cost of a rank in facts: some 2 kB of memory."""

_WORD = re.compile(r"NCCL (INFO|WARN) ")
_WRITER = re.compile(
    r"(?:(?<![^\s:\]|])(?P<host>[\w.<>-]{1,255}):(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) |(?<!\d ))"
    r"\[(?P<device>-?\d{1,4})\] "
)
"""Text directly before a host may be a part of its name, or may have overwritten a part."""


def _pattern(text: str) -> re.Pattern[str]:
    """A pattern whose numbers are limited in digits, as those that Python converts are."""
    return re.compile(text.replace(r"\d+", rf"\d{{1,{MOST_DIGITS}}}"))


_WHERE = re.compile(r"(\S.*:\d{1,6}) (?:\([^ ]{1,100}\) )?")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+[\w.-]*\+cuda\d+\.\d+)")

_VIA = _pattern(
    r"(?:Channel|Ring) (\d+)(?:/(\d+))? : (\d+)(?:\[([0-9a-f]+)\])? -> (\d+)(?:\[([0-9a-f]+)\])?"
    r"(?: \[(send|receive)\])? via (?:(?P<p2p>P2P)/(?:(?P<way>IPC|CUMEM|MNNVL|direct pointer"
    r"|common device)|(?P<relay>indirect)/\d+\[[0-9a-f]+\])(?:/read)?(?:/CE)?"
    r"|(?P<shm>SHM)(?:/(?:direct|CE)){1,2}|direct shared memory"
    r"|NET/(?P<net>[^/]+)/\d+(?:\(\d+\))?(?P<gdr>/GDRDMA)?(?:\(PCI\))?(?:/Shared)?)"
)
_RING = _pattern(r"Channel (\d{2,9})/(\d{2,9}) ?:((?: +\d+)+) *(?:\.\.\.)?")
_SEARCH = _pattern(
    r"Pattern (\d+), crossNic \d+, nChannels (\d+), (?:bw|speed) [\d.]+/[\d.]+, "
    r"type (\w+)/(\w+), sameChannels \d+"
)
_OF_RANK = re.compile(
    r"(?:\[Rank \d+\] )?(?:ncclComm\w+ )?comm 0x[0-9a-f]+ rank \d+ (?:nranks |nRanks \d+ nNodes )"
)
_OVER = re.compile(r" - (?:Destroy|Abort|Revoke)\b")
_START = _pattern(
    r"(?:\[Rank \d+\] )?(?:\w+ )?comm 0x[0-9a-f]+ rank (?P<rank>\d+) n[rR]anks (?P<size>\d+) (?:"
    r"nNodes \d+ localRanks \d+ .*"
    r"|cudaDev (?P<cuda>-?\d+)(?: nvmlDev (?P<nvml>-?\d+))?(?: busId (?P<bus>[0-9a-f]+))?"
    r"(?: parent 0x[0-9a-f]+)?(?: (?:splitCount|childCount) \d+)?(?: color -?\d+ key -?\d+)?"
    r"(?: localSize \d+ used \d+ bytes)?(?: commId (?P<name>0x[0-9a-f]+))? ?"
    r"- Init (?:START|(?P<complete>COMPLETE)).*)"
)
_SETTING = re.compile(r"((?:NCCL|RCCL)_\w+) set (?:by environment )?to (.*)")
_CHANNELS = re.compile(r"(\d{1,6}) coll channels,")
_NUMBERS = re.compile(r"0x[0-9a-f]+|/dev/shm/\S+|\d+[0-9a-f.:]*|nccl-\S+")

_OF_HOSTS = tuple(
    (fact, re.compile(line), re.compile(name))
    for fact, line, name in (
        ("no_ib", r"NET/IB.*(No device found\.)", r".+"),
        ("networks", r"Using network (\S.*)", r".+"),
        ("networks", r"Assigned NET plugin (\S.*) to comm", r".+"),
        ("bootstrap", r"Bootstrap ?: Using (.+)", r"([^\s:\[\]]+):\S+?<\d+>"),
        ("sockets", r"NET/Socket ?: Using (\[.+)", r"\[\d{1,4}\]([^\s:\[\]]+):\S+?<\d+>"),
        ("cards", r"NET/IB\w* ?: Using (\[.+?)(?:; OOB.*)?", r"([^\s:\[\]]+:\d{1,4})(?::\d*)*/\w+"),
    )
)
"""The facts about a host: the fact, the pattern of its line, and that of each name in it."""

_RING_PATTERN = "4"
"""NCCL_TOPO_PATTERN_RING of src/include/graph.h."""


K = TypeVar("K")
V = TypeVar("V")


class _Torn(Exception):
    """The line begins like a known one, and continues differently."""


class _Process(NamedTuple):
    """A process by its lines: its host, or the speaker of the log if they name no host."""

    host: str
    pid: int | None
    speaker: str


class _Thread(NamedTuple):
    process: _Process
    tid: int | None
    device: int


class _Message(NamedTuple):
    """A line of NCCL and its writer."""

    thread: _Thread
    text: str
    warning: bool
    where: str | None

    @property
    def line(self) -> str:
        return self.text[:LONGEST_LINE]

    @property
    def host(self) -> str:
        return self.thread.process.host or self.thread.process.speaker


@dataclass(slots=True, eq=False)
class _Member:
    """A rank of a communicator while its lines are read; `facts` are by name."""

    process: _Process
    device: int
    order: int
    line: str = ""
    facts: dict[str, str] = field(default_factory=dict)
    rings: dict[int, tuple[tuple[int | None, ...], str]] = field(default_factory=dict)
    searches: dict[GraphSearch, None] = field(default_factory=dict)
    connections: dict[RankConnection, None] = field(default_factory=dict)

    def number(self, name: str) -> int | None:
        return int(self.facts[name]) if name in self.facts else None

    @property
    def devices(self) -> tuple[int | None, ...]:
        """The numbers in brackets that may begin its lines."""
        return self.device, self.number("cuda")

    def may_be(self, facts: dict[str, str]) -> bool:
        """Whether a line that names a rank, and maybe its communicator, can be about this one."""
        known = [self.facts.get(name, facts[name]) for name in facts if name in _IDENTITY]
        return known == [facts[name] for name in facts if name in _IDENTITY]

    def may_own(self, via: RankConnection) -> bool:
        """Whether a connection can be one of this rank's."""
        highest = int(self.facts.get("size", HIGHEST_RANK + 1)) - 1
        return self.number("rank") in {None, via.writer} and max(via.writer, via.other) <= highest

    def may_be_called(self, label: str | None) -> bool:
        """Whether another rank's line may call this rank's GPU so: by bus id or index."""
        names = {self.facts[name] for name in ("bus", "nvml", "cuda") if name in self.facts}
        return label is None or not names or label in names

    def as_rank(self) -> Rank:
        cuda = self.number("cuda")
        return Rank(
            rank=int(self.facts["rank"]),
            host=self.process.host,
            pid=self.process.pid,
            speaker=self.process.speaker,
            device=self.device if cuda is None else cuda,
            nvml=self.number("nvml"),
            bus_id=self.facts.get("bus"),
            complete="complete" in self.facts,
            line=self.line,
        )


_IDENTITY = {"rank", "size", "name"}
"""The facts that identify a rank."""


@dataclass(slots=True)
class _Tally:
    """A setting or a complaint while lines are read: its first line, and its writers' hosts."""

    first: _Message
    writers: dict[tuple[_Process, int], str] = field(default_factory=dict)
    count: int = 0

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.writers.values())))


class NcclReader:
    """Reads lines one by one, in the order of each log; lines of several logs may alternate.

    Memory is bounded by the number of facts, not of lines.
    """

    def __init__(self) -> None:
        self._members: dict[_Process, list[_Member]] = {}
        self._open: dict[_Thread, _Member] = {}
        self._late: dict[tuple[_Process, int, RankConnection, str | None], None] = {}
        self._hosts: dict[tuple[str, str, str], str] = {}
        """The first line of each name, by host and fact."""
        self._settings: dict[tuple[str, str], _Tally] = {}
        self._complaints: dict[tuple[bool, str], _Tally] = {}
        self._versions: dict[str, None] = {}
        self._facts = 0
        self._ranks = 0
        self._torn = 0
        self._dropped = 0
        self.lines = 0
        """The number of NCCL's lines so far."""

    def feed(self, line: str, speaker: str = "", *, ends: bool = True) -> None:
        """Read a line of the log of `speaker` (a pod), with or without its line feed and tags.

        `ends` is False for a truncated line.
        """
        if "NCCL" not in line:
            return
        if match := _VERSION.search(line):
            self._add(self._versions, match[1], None)
        try:
            if (message := _message(line, speaker, ends=ends)) is None:
                return
            self._read(message)
        except (_Torn, ValueError):
            # ValueError: no number of NCCL is too long for Python (sys.get_int_max_str_digits).
            self._torn += 1
        self.lines += 1

    def feed_all(self, lines: Iterable[str], speaker: str = "") -> None:
        """Read every line of a log."""
        for line in lines:
            self.feed(line, speaker)

    # ------------------------------------------------------------ lines in

    def _room(self, cost: int = 1) -> bool:
        """Reserve room for so many facts; False if there is no room."""
        if self._facts >= MOST_FACTS:
            self._dropped += 1
            return False
        self._facts += cost
        return True

    def _add(self, known: dict[K, V], key: K, value: V) -> V | None:
        """The first value of a key; None if there was no room for it."""
        if key not in known and self._room():
            known[key] = value
        return known.get(key)

    def _read(self, message: _Message) -> None:
        text = message.text
        if message.warning:
            self._complain(message)
        elif " via " in text and text.startswith(("Channel ", "Ring ")):
            self._connect(message)
        elif text.startswith("Channel "):
            self._list_ring(message)
        elif text.startswith("Pattern "):
            self._list_search(message)
        elif _OF_RANK.match(text):
            if not _OVER.search(text):
                self._start(message)
        else:
            self._read_other(message)

    def _read_other(self, message: _Message) -> None:
        """Read a line about anything but connections of ranks."""
        text = message.text
        for fact, form, each in _OF_HOSTS:
            if match := form.fullmatch(text):
                for name in each.findall(match[1]):
                    self._add(self._hosts, (message.host, fact, name), message.line)
        if match := _CHANNELS.match(text):
            if member := self._open.get(message.thread):
                member.facts.setdefault("channels", match[1])
        elif match := _SETTING.fullmatch(text):
            self._count(self._settings, (match[1], match[2].removesuffix(".").strip()), message)
        if reports_trouble(text):
            self._complain(message)

    def _start(self, message: _Message) -> None:
        """Read a line that identifies the rank of this thread, from here on or up to here."""
        thread = message.thread
        facts = {
            name: value
            for name, value in _matched(_START, message).groupdict().items()
            if value is not None
        }
        if not int(facts["rank"]) < int(facts["size"]) <= HIGHEST_RANK:
            raise _Torn
        opened = self._open.pop(thread, None)
        identified = (own for own in self._members.get(thread.process, ()) if "size" in own.facts)
        # Earlier lines of the thread may belong to a rank that no line has identified yet.
        known = (own for own in (opened, *identified) if own is not None and own.may_be(facts))
        if (member := next(known, None) or self._member(thread)) is None:
            return
        member.facts = facts | member.facts
        member.line = member.line or message.line
        if "complete" not in member.facts:
            self._open[thread] = member

    def _member(self, thread: _Thread) -> _Member | None:
        """Add a rank; None if there is no room for it."""
        of_process = self._members.setdefault(thread.process, [])
        if len(of_process) >= MOST_OF_PROCESS:
            self._dropped += 1
            return None
        if not self._room(_RANK_COST):
            return None
        member = _Member(process=thread.process, device=thread.device, order=self._ranks)
        self._ranks += 1
        of_process.append(member)
        return member

    def _opened(self, thread: _Thread) -> _Member | None:
        """The present rank of a thread; None if there is no room for a new one."""
        member = self._open.get(thread)
        if member is None and (member := self._member(thread)) is not None:
            self._open[thread] = member
        return member

    def _connect(self, message: _Message) -> None:
        via, label = _via(message)
        process, _tid, device = thread = message.thread
        known = self._members.get(process, ())
        if thread not in self._open and any(device in rank.devices for rank in known):
            # The rank is complete, so this connection belongs to one of its communicators.
            self._add(self._late, (process, device, via, label), None)
        elif member := self._opened(thread):
            if not member.may_own(via):
                raise _Torn
            member.facts.setdefault("rank", str(via.writer))
            self._add(member.connections, via, None)

    def _list_ring(self, message: _Message) -> None:
        """Read a ring of NCCL; only rank 0 lists rings."""
        match = _matched(_RING, message)
        ranks: tuple[int | None, ...] = tuple(map(int, match[3].split()))
        if message.text.endswith(".") or len(ranks) == OLD_LONGEST_RING:
            # The rest is truncated, maybe in the middle of the last number.
            ranks = (*ranks[:-1], None)
        if member := self._opened(message.thread):
            member.facts = {"rank": "0", "channels": str(int(match[2])), **member.facts}
            channel = int(match[1])
            if channel not in member.rings and self._room(len(ranks)):
                member.rings[channel] = ranks, message.line

    def _list_search(self, message: _Message) -> None:
        """Read the rings of the graph search."""
        pattern, channels, inside, between = _matched(_SEARCH, message).groups()
        search = GraphSearch(
            channels=int(channels), inside=inside, between=between, line=message.line
        )
        if (member := self._opened(message.thread)) and pattern == _RING_PATTERN:
            self._add(member.searches, search, None)

    def _complain(self, message: _Message) -> None:
        key = message.warning, _NUMBERS.sub("#", message.line)
        if key in self._complaints or len(self._complaints) < MOST_COMPLAINTS:
            self._count(self._complaints, key, message)
        else:
            self._dropped += 1

    def _count(self, known: dict[K, _Tally], key: K, message: _Message) -> None:
        """Count a setting or a complaint, as far as there is room."""
        if (tally := self._add(known, key, _Tally(message))) is not None:
            self._add(tally.writers, (message.thread.process, message.thread.device), message.host)
            tally.count += 1

    # ------------------------------------------------------------ what they say together

    def report(self) -> NcclReport:
        """The facts that were read so far; more lines may follow."""
        groups = _grouped(member for members in self._members.values() for member in members)
        late, unplaced = self._place_late(groups)
        ranks = {rank.process.host for group in groups for rank in group.ranks.values()} - {""}
        hosts: dict[str, dict[str, dict[str, str]]] = {name: {} for name in ranks}
        for (host, fact, name), line in self._hosts.items():
            hosts.setdefault(host, {}).setdefault(fact, {})[name] = line
        return NcclReport(
            versions=tuple(self._versions),
            communicators=tuple(
                group.communicator(late.get(at, ())) for at, group in enumerate(groups)
            ),
            hosts=tuple(NcclHost(name=name, **hosts[name]) for name in sorted(hosts)),
            settings=tuple(
                Setting(name=name, value=value, hosts=tally.hosts, line=tally.first.line)
                for name, value in sorted(self._settings)
                for tally in [self._settings[name, value]]
            ),
            complaints=tuple(
                Complaint(
                    text=tally.first.line,
                    cause=advice.cause if (advice := advice_on(tally.first.line)) else None,
                    where=tally.first.where,
                    hosts=tally.hosts,
                    ranks=self._ranks_of(tally.writers),
                    count=tally.count,
                    warning=tally.first.warning,
                )
                for tally in self._complaints.values()
            ),
            unplaced=unplaced,
            lines=self.lines,
            torn=self._torn,
            dropped=self._dropped,
        )

    def _place_late(self, groups: list[_Group]) -> tuple[dict[int, list[RankConnection]], int]:
        """Find the communicators of connections that were made after the start of a rank.

        If a line fits several communicators with the same processes at both of its ends, the
        largest is chosen. Connections without a choice are counted.
        """
        place = {id(rank): at for at, group in enumerate(groups) for rank in group.ranks.values()}
        late: dict[int, list[RankConnection]] = {}
        unplaced = 0
        for process, device, via, label in self._late:
            fitting: dict[int, tuple[_Process, int | None] | None] = {}
            for own in self._members.get(process, ()):
                if own.number("rank") == via.writer and device in own.devices and own.may_own(via):
                    peer = groups[place[id(own)]].ranks.get(via.other)
                    if peer is None or peer.may_be_called(label):
                        end = (peer.process, peer.number("cuda")) if peer else None
                        fitting[place[id(own)]] = end
            ends = set(fitting.values())
            if len(fitting) == 1 or (len(ends) == 1 and None not in ends):
                largest = max(fitting, key=lambda at: (groups[at].size or 0, -at))
                late.setdefault(largest, []).append(via)
            else:
                unplaced += 1
        return late, unplaced

    def _ranks_of(self, writers: Iterable[tuple[_Process, int]]) -> tuple[int, ...]:
        """The ranks of some writers, as far as their processes and devices identify them."""
        certain: set[int] = set()
        for process, device in writers:
            known = [
                (member.number("size") or 0, rank)
                for member in self._members.get(process, ())
                if (rank := member.number("rank")) is not None and device in member.devices
            ]
            most = max((size for size, _ in known), default=0)
            ranks = {rank for size, rank in known if size == most}
            certain |= ranks if len(ranks) == 1 else set()
        return tuple(sorted(certain))


@dataclass(slots=True)
class _Group:
    """The ranks of one communicator."""

    name: str | None
    size: int | None
    ranks: dict[int, _Member] = field(default_factory=dict)
    certain: bool = True

    def absorb(self, strays: _Group) -> None:
        """Move ranks that this communicator lacks from another group."""
        for rank in [rank for rank in strays.ranks if rank < (self.size or 0)]:
            if rank not in self.ranks:
                self.ranks[rank] = strays.ranks.pop(rank)
                self.certain = False

    def communicator(self, late: Iterable[RankConnection]) -> Communicator:
        """The communicator of all members; `late` are the connections that they made later."""
        members = [self.ranks[rank] for rank in sorted(self.ranks)]
        # Only rank 0 lists rings.
        listed = sorted(self.ranks[0].rings.items()) if 0 in self.ranks else ()
        rings = {
            channel: (complete, line)
            for channel, (ranks, line) in listed
            if (complete := _ring(ranks, self.size)) is not None
        }
        connections = set(late).union(*(member.connections for member in members))
        return Communicator(
            name=self.name,
            size=self.size,
            ranks=tuple(member.as_rank() for member in members),
            certain=self.certain,
            channels=next(filter(None, (member.number("channels") for member in members)), None),
            rings={channel: ring for channel, (ring, _) in rings.items()},
            ring_lines={channel: line for channel, (_, line) in rings.items()},
            searches=tuple({search: None for member in members for search in member.searches}),
            connections=tuple(sorted(connections, key=_order)),
        )


def _grouped(members: Iterable[_Member]) -> list[_Group]:
    """Group ranks into communicators: by name, else by size.

    If a rank of one name, or size, appears twice, one of the two belongs to another communicator;
    without a name it is then uncertain which ranks belong together. A rank without a name (or size)
    belongs to the only communicator that has one, if that lacks this rank.
    """
    groups: dict[tuple[str | None, int | None, int], _Group] = {}
    turns: Counter[tuple[str | None, int | None, int]] = Counter()
    rows = [
        (member.facts.get("name"), member.number("size"), member.order, rank, member)
        for member in members
        if (rank := member.number("rank")) is not None
    ]
    rows.sort(key=lambda row: (row[0] is None, row[1] is None, row[2]))
    for name, size, _order, rank, member in rows:
        turn = turns[name, size, rank]
        turns[name, size, rank] += 1
        groups.setdefault((name, size, turn), _Group(name, size)).ranks[rank] = member
    for (name, size, _turn), group in groups.items():
        group.certain = name is not None or (name, size, 1) not in groups
    known = [group for group in groups.values() if group.name is not None]
    known = known or [group for group in groups.values() if group.size is not None]
    if len(known) == 1:
        for group in groups.values():
            if group is not known[0] and group.size in {None, known[0].size}:
                known[0].absorb(group)
    return [group for group in groups.values() if group.ranks]


def _ring(ranks: tuple[int | None, ...], size: int | None) -> tuple[int | None, ...] | None:
    """A ring as far as it is known; None for an impossible one."""
    known = [rank for rank in ranks if rank is not None]
    strange = len(set(known)) < len(known) or (size is not None and max(known, default=0) >= size)
    if strange or known[:1] != [0]:
        return None
    return tuple(known) if len(known) == size else (*known, None)


def _order(link: RankConnection) -> tuple[int, int, int, int, str, str]:
    index = -1 if link.index is None else link.index
    return link.source, link.target, link.channel, index, link.side or "", link.kind


# ---------------------------------------------------------------- one line


def _message(line: str, speaker: str, *, ends: bool) -> _Message | None:
    """The line of NCCL in a line of a log; None for other lines.

    _Torn if it is truncated, or mixed up with another. A warning counts even if its writer is not
    known; it has no host then.
    """
    if "\x1b" in line:
        line = _ESCAPES.sub("", line)
    starts = list(_WORD.finditer(line))
    if not starts:
        return None
    start = starts[0]
    warning = start[1] == "WARN"
    writer, where = _written(line[max(0, start.start() - LONGEST_PREFIX) : start.start()])
    if len(starts) > 1 or not ends:
        raise _Torn
    if writer is None and not warning:
        return None
    known = writer.groupdict() if writer is not None else {}
    host = known.get("host") or ""
    process = _Process(host, int(known["pid"]) if host else None, "" if host else speaker)
    return _Message(
        thread=_Thread(process, int(known["tid"]) if host else None, int(known.get("device", -1))),
        text=line[start.end() :].strip(),
        warning=warning,
        where=where,
    )


def _written(before: str) -> tuple[re.Match[str] | None, str | None]:
    """The writer in the text before a message, and the source line named there."""
    writers = list(_WRITER.finditer(before))
    for writer in reversed([writer for writer in writers if writer["host"]] or writers):
        where = before[writer.end() :]
        if not where:
            return writer, None
        if match := _WHERE.fullmatch(where):
            return writer, match[1]
    return None, None


def _matched(pattern: re.Pattern[str], message: _Message) -> re.Match[str]:
    if (match := pattern.fullmatch(message.text)) is None:
        raise _Torn
    return match


def _via(message: _Message) -> tuple[RankConnection, str | None]:
    """A connection, and the line's name for the GPU of the other rank."""
    match = _matched(_VIA, message)
    channel, index, source, source_label, target, target_label, side = match.groups()[:7]
    net = match["net"]
    kind = (
        f"NET/{net}" if net else f"P2P/{match['way'] or match['relay']}" if match["p2p"] else "SHM"
    )
    if (net is None) != (side is None) or max(int(source), int(target)) > HIGHEST_RANK:
        raise _Torn
    if source == target:
        raise _Torn
    via = RankConnection(
        channel=int(channel),
        index=None if index is None else int(index),
        source=int(source),
        target=int(target),
        kind=sys.intern(kind),
        side=side,
        gdr=None if net is None else match["gdr"] is not None,
        line=message.line,
    )
    return via, source_label if side == "receive" else target_label
