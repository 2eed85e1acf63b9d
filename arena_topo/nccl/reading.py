"""Lines of logs in, what NCCL says in them out.

    host:pid:tid [dev] NCCL INFO text                     since 2.0 (src/debug.cc)
    host:pid:tid [dev] file.cc:123 NCCL WARN text         a line feed before it
    host:pid:tid [dev] file.cc:123 (function) NCCL WARN   since 2.30
    host:pid:tid [dev] int f(a, b):12 NCCL WARN text      plugins of AWS: __PRETTY_FUNCTION__

Tags and time stamps may stand before them. Each line is read for itself; one that is cut, or mixed
with another, is counted and not used: half a number is another number.

NCCL tells a communicator's name (commId) since 2.17, and that it begins since 2.18. Before, only
"Init COMPLETE" tells who was speaking: what a thread said since its last one belongs to it. Since
2.22 ranks connect at their first collective, from other threads: such a line belongs to the one
communicator of the process in which it can be true.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from arena_topo.nccl import (
    Communicator,
    Complaint,
    Connection,
    Device,
    Host,
    Rank,
    Report,
    Search,
    Setting,
)
from arena_topo.nccl.causes import advice_on, reports_trouble

MOST_FACTS = 400_000
"""Connections, rings, settings and what else is kept: 1,024 ranks with 32 channels say a third of
it. More are counted."""

MOST_RANKS = 50_000
"""Ranks of communicators that are kept, some 2 kB each: 1,024 ranks in 48 communicators."""

MOST_OF_PROCESS = 256
"""Ranks of one process that are kept: eight GPUs in 32 communicators."""

MOST_COMPLAINTS = 300
"""Complaints that differ in more than their numbers; a broken job has a dozen."""

LONGEST_LINE = 400
"""Characters of a line that are kept for people to find it by."""

LONGEST_PREFIX = 1_200
"""Characters before "NCCL INFO" that are looked at: 255 of a host, numbers, and the declaration of
a function of C++ with its types."""

HIGHEST_RANK = 1_000_000
"""More than any job has; a larger number is two numbers glued together."""

OLD_LONGEST_RING = 20
"""Ranks of a ring that NCCL before 2.23 prints, without a word on the others (rings.cc)."""

_WORD = re.compile(r"NCCL (INFO|WARN) ")
_WRITER = re.compile(
    r"(?:(?<![^\s:\]|])(?P<host>[\w.<>-]{1,255}):(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) |(?<!\d ))"
    r"\[(?P<device>-?\d{1,4})\] "
)
"""Text right before a host may be a part of its name, or have replaced one."""

_WHERE = re.compile(r"(\S.*:\d{1,6}) (?:\([^ ]{1,100}\) )?")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+[\w.-]*\+cuda\d+\.\d+)")

_VIA = re.compile(
    r"(?:Channel|Ring) (\d+)(?:/(\d+))? : (\d+)(?:\[([0-9a-f]+)\])? -> (\d+)(?:\[([0-9a-f]+)\])?"
    r"(?: \[(send|receive)\])? via (.+)"
)
_P2P = re.compile(
    r"P2P/(?:(IPC|CUMEM|MNNVL|direct pointer|common device)|(indirect)/\d+\[[0-9a-f]+\])"
    r"(?:/read)?(?:/CE)?"
)
_SHM = re.compile(r"SHM(?:/(?:direct|CE)){1,2}|direct shared memory")
_NET = re.compile(r"NET/([^/]+)/\d+(?:\(\d+\))?(/GDRDMA)?(?:\(PCI\))?(?:/Shared)?")
_LISTED = re.compile(r"Channel (\d{2,})/(\d{2,}) ?:((?: +\d+)+) *(?:\.\.\.)?")
_PATTERN = re.compile(
    r"Pattern (\d+), crossNic \d+, nChannels (\d+), (?:bw|speed) [\d.]+/[\d.]+, "
    r"type (\w+)/(\w+), sameChannels \d+"
)
_START = re.compile(
    r"(?:\[Rank \d+\] )?(?:\w+ )?comm 0x[0-9a-f]+ rank (\d+) nranks (\d+) cudaDev (?P<cuda>-?\d+)"
    r"(?: nvmlDev (?P<nvml>-?\d+))?(?: busId (?P<bus>[0-9a-f]+))?"
    r"(?: parent 0x[0-9a-f]+)?(?: (?:splitCount|childCount) \d+)?(?: color -?\d+ key -?\d+)?"
    r"(?: localSize \d+ used \d+ bytes)?(?: commId (?P<name>0x[0-9a-f]+))? ?"
    r"- Init (?P<state>START|COMPLETE)"
)
_NODES = re.compile(r"comm 0x[0-9a-f]+ rank (\d+) nRanks (\d+) nNodes \d+ localRanks \d+ .*")
_OF_RANK = re.compile(
    r"(?:\[Rank \d+\] )?(?:ncclComm\w+ )?comm 0x[0-9a-f]+ rank \d+ (?:nranks |nRanks \d+ nNodes )"
)
_OVER = re.compile(r" - (?:Destroy|Abort|Revoke)\b")
_SETTING = re.compile(r"((?:NCCL|RCCL)_\w+) set (?:by environment )?to (.*)")
_CHANNELS = re.compile(r"(\d{1,6}) coll channels,")
_DRIVER = re.compile(r"cudaDriverVersion (\d{1,9})")
_NUMBERS = re.compile(r"0x[0-9a-f]+|/dev/shm/\S+|\d+[0-9a-f.:]*|nccl-\S+")

_BOOTSTRAP = re.compile(r"Bootstrap ?: Using (.+)")
_INTERFACE = re.compile(r"(?:\[(\d{1,4})\])?([^\s:\[\]]+):(\S+?)<\d+>")
_SOCKETS = re.compile(r"NET/Socket ?: Using (\[.+)")
_CARDS = re.compile(r"NET/IB\w* ?: Using (\[.+)")
_CARD = re.compile(
    r"\[(\d{1,4})\]"
    r"(?:=\{(?P<joined>[^}]+)\}|(?P<name>[^\s:\[\]]+):(?P<port>\d{1,4})(?::\d*)*/(?P<layer>\w+)\S*)"
)
_JOINED = re.compile(r"\[\d+\] ([^\s:]+):\d+/\w+")
_MADE = re.compile(r"NET/IB ?: Made virtual device \[(\d{1,4})\] name=(\S+) ")
_NETWORK = re.compile(r"Using network (\S.*)|Assigned NET plugin (\S.*) to comm")
_PLUGIN = re.compile(
    r"NET/Plugin|NET/OFI (?:Using|Initializing|Selected|Running|Configuring|Setting)"
    r"|Initialized NET plugin|Plugin name set by env"
)

_OF_HOSTS = ("NET/", "Bootstrap", "Using network ", "Assigned NET ", "Initialized ")

_PATTERNS = {
    "1": "balanced tree",
    "2": "split tree",
    "3": "tree",
    "4": "ring",
    "5": "nvls",
    "6": "collnet direct",
}
"""NCCL_TOPO_PATTERN_* of src/include/graph.h."""


class _Torn(Exception):
    """The line begins like one that is known, and does not go on like it."""


class _Process(NamedTuple):
    """A process as its lines name it: its host, or whose log it is where they name none."""

    host: str
    pid: int | None
    speaker: str


class _Thread(NamedTuple):
    process: _Process
    tid: int | None
    device: int


@dataclass(frozen=True, slots=True)
class _Message:
    """A line of NCCL and who wrote it."""

    thread: _Thread
    text: str
    warning: bool
    where: str | None

    @property
    def host(self) -> str:
        return self.thread.process.host or self.thread.process.speaker


@dataclass(frozen=True, slots=True)
class _Via:
    """A connection, the rank that speaks, the other, and what the line calls the other's GPU."""

    connection: Connection
    writer: int
    other: int
    label: str | None


@dataclass(slots=True, eq=False)
class _Member:
    """A rank of a communicator while its lines come in; None: not said yet."""

    process: _Process
    device: int
    order: int
    rank: int | None = None
    size: int | None = None
    name: str | None = None
    cuda: int | None = None
    nvml: int | None = None
    bus_id: str | None = None
    complete: bool = False
    line: str = ""
    channels: int | None = None
    rings: dict[int, tuple[tuple[int | None, ...], str]] = field(default_factory=dict)
    searches: dict[Search, None] = field(default_factory=dict)
    connections: dict[Connection, None] = field(default_factory=dict)

    def identify(self, rank: int, size: int, start: Mapping[str, str | None], line: str) -> None:
        """Take in which rank it is; what was said before stays."""
        self.rank, self.size = rank, size
        self.line = self.line or line[:LONGEST_LINE]
        self.name = self.name or start.get("name")
        self.bus_id = self.bus_id or start.get("bus")
        if (cuda := start.get("cuda")) is not None:
            self.cuda = int(cuda)
        if (nvml := start.get("nvml")) is not None:
            self.nvml = int(nvml)
        self.complete = self.complete or start.get("state") == "COMPLETE"

    @property
    def devices(self) -> tuple[int | None, ...]:
        """What stands in brackets before its lines."""
        return self.device, self.cuda

    def may_be(self, rank: int, size: int, name: str | None) -> bool:
        """Whether a line that names a rank, and maybe its communicator, can be of this one."""
        return (
            self.rank in {None, rank}
            and self.size in {None, size}
            and (None in {self.name, name} or self.name == name)
        )

    def may_say(self, via: _Via) -> bool:
        """Whether a connection can be one of this rank's."""
        highest = HIGHEST_RANK if self.size is None else self.size - 1
        return self.rank in {None, via.writer} and max(via.writer, via.other) <= highest

    def may_be_called(self, label: str | None) -> bool:
        """Whether another rank may call its GPU so: by bus id or index."""
        names = {str(one) for one in (self.bus_id, self.nvml, self.cuda) if one is not None}
        return label is None or not names or label in names

    def seen(self) -> Rank:
        assert self.rank is not None
        return Rank(
            rank=self.rank,
            host=self.process.host,
            pid=self.process.pid,
            speaker=self.process.speaker,
            device=self.device if self.cuda is None else self.cuda,
            nvml=self.nvml,
            bus_id=self.bus_id,
            complete=self.complete,
            line=self.line,
        )


@dataclass(slots=True)
class _Host:
    """A host while its lines come in."""

    bootstrap: dict[tuple[str, str], None] = field(default_factory=dict)
    networks: dict[str, None] = field(default_factory=dict)
    devices: dict[tuple[str, int, str], Device] = field(default_factory=dict)
    plugins: dict[str, None] = field(default_factory=dict)
    lines: dict[str, str] = field(default_factory=dict)
    no_ib: str = ""

    def read(self, text: str) -> None:
        if text.startswith("NET/IB") and text.endswith("No device found."):
            self.no_ib = self.no_ib or text[:LONGEST_LINE]
        elif found := _NETWORK.fullmatch(text):
            self.networks.setdefault(found[1] or found[2])
        elif found := _BOOTSTRAP.fullmatch(text):
            for _, interface, address in _INTERFACE.findall(found[1]):
                self.bootstrap.setdefault((interface, address))
                self.lines.setdefault(interface, text[:LONGEST_LINE])
        elif _PLUGIN.match(text):
            self.plugins.setdefault(text[:LONGEST_LINE])
        for one in _devices(text):
            self.devices.setdefault((one.network, one.index, one.name), one)
            if one.network == "Socket":
                self.lines.setdefault(one.name, text[:LONGEST_LINE])

    @property
    def facts(self) -> int:
        return len(self.bootstrap) + len(self.networks) + len(self.devices) + len(self.plugins)

    def seen(self, name: str) -> Host:
        return Host(
            name=name,
            bootstrap=tuple(self.bootstrap),
            networks=tuple(self.networks),
            devices=tuple(self.devices[key] for key in sorted(self.devices)),
            plugins=tuple(self.plugins),
            no_ib=self.no_ib,
            lines=dict(self.lines),
        )


@dataclass(slots=True)
class _Told:
    """A setting or a complaint while it comes in: its first line, and who said it."""

    text: str
    warning: bool
    where: str | None
    hosts: dict[str, None] = field(default_factory=dict)
    writers: dict[tuple[_Process, int], None] = field(default_factory=dict)
    count: int = 0


class Reader:
    """Reads lines one by one, in the order of each log; logs may take turns.

    Memory is bounded by what the lines say, not by how many there are.
    """

    def __init__(self) -> None:
        self._members: dict[_Process, list[_Member]] = {}
        self._open: dict[_Thread, _Member] = {}
        self._late: dict[tuple[_Process, int, _Via], None] = {}
        self._hosts: dict[str, _Host] = {}
        self._settings: dict[tuple[str, str], _Told] = {}
        self._complaints: dict[tuple[str, str], _Told] = {}
        self._versions: dict[str, None] = {}
        self._drivers: dict[int, None] = {}
        self._facts = 0
        self._ranks = 0
        self._torn = 0
        self._dropped = 0
        self.lines = 0
        """Lines of NCCL so far."""

    def feed(self, line: str, speaker: str = "", *, ends: bool = True) -> None:
        """Read a line of the log of `speaker` (a pod), its line feed and tags on it or not.

        `ends` is False where the line is cut.
        """
        if "NCCL" not in line:
            return
        if (found := _VERSION.search(line)) and self._room():
            self._facts += found[1] not in self._versions
            self._versions.setdefault(found[1])
        try:
            if (message := _message(line, speaker, ends=ends)) is None:
                return
            self._read(message)
        except (_Torn, ValueError):
            # No number of NCCL is too long for Python to read (sys.get_int_max_str_digits).
            self._torn += 1
        self.lines += 1

    def feed_all(self, lines: Iterable[str], speaker: str = "") -> None:
        """Read every line of a log."""
        for line in lines:
            self.feed(line, speaker)

    # ------------------------------------------------------------ lines in

    def _room(self) -> bool:
        """Whether another fact can be kept; what cannot is counted."""
        if self._facts < MOST_FACTS:
            return True
        self._dropped += 1
        return False

    def _read(self, message: _Message) -> None:
        text, thread = message.text, message.thread
        if message.warning:
            self._complain(message)
        elif " via " in text and text.startswith(("Channel ", "Ring ")):
            self._connect(_via(text), thread)
        elif text.startswith(("Channel ", "Pattern ")):
            self._list(text, thread)
        elif _OF_RANK.match(text):
            if not _OVER.search(text):
                self._start(text, thread)
        else:
            self._read_other(message)

    def _read_other(self, message: _Message) -> None:
        """Read a line that is not on how ranks are joined."""
        text = message.text
        if text.startswith(_OF_HOSTS):
            self._find(message)
        elif found := _CHANNELS.match(text):
            if (member := self._open.get(message.thread)) and member.channels is None:
                member.channels = int(found[1])
        elif found := _SETTING.fullmatch(text):
            self._tell(self._settings, (found[1], found[2].removesuffix(".").strip()), message)
        elif (found := _DRIVER.fullmatch(text)) and self._room():
            self._facts += int(found[1]) not in self._drivers
            self._drivers.setdefault(int(found[1]))
        if reports_trouble(text):
            self._complain(message)

    def _start(self, text: str, thread: _Thread) -> None:
        """Read whose thread this is from here on, or was up to here."""
        found = _START.match(text) or _NODES.fullmatch(text)
        if found is None:
            raise _Torn
        rank, size = int(found[1]), int(found[2])
        if not rank < size <= HIGHEST_RANK:
            raise _Torn
        start = found.groupdict()
        name = start.get("name")
        opened = self._open.get(thread)
        others = self._members.get(thread.process, ())
        known = (one for one in (opened, *others) if one and one.may_be(rank, size, name))
        # What a thread said before may be of a rank that no line has named yet.
        member = next((one for one in known if one is opened or one.size is not None), None)
        member = member or self._member(thread)
        self._open.pop(thread, None)
        if member is not None:
            member.identify(rank, size, start, text)
            if not member.complete:
                self._open[thread] = member

    def _member(self, thread: _Thread) -> _Member | None:
        """Take in one more rank; None where there is no room for it."""
        of_process = self._members.get(thread.process, [])
        if self._ranks >= MOST_RANKS or len(of_process) >= MOST_OF_PROCESS:
            self._dropped += 1
            return None
        member = _Member(process=thread.process, device=thread.device, order=self._ranks)
        self._ranks += 1
        of_process.append(member)
        self._members[thread.process] = of_process
        return member

    def _opened(self, thread: _Thread) -> _Member | None:
        """The rank that a thread speaks of; None where there is no room for one more."""
        member = self._open.get(thread)
        if member is None and (member := self._member(thread)) is not None:
            self._open[thread] = member
        return member

    def _connect(self, via: _Via, thread: _Thread) -> None:
        if not self._room():
            return
        member = self._open.get(thread)
        if member is None:
            process, device = thread.process, thread.device
            if any(device in one.devices for one in self._members.get(process, ())):
                # The rank is complete: it connects for one of its communicators.
                self._facts += (process, device, via) not in self._late
                self._late.setdefault((process, device, via))
                return
            member = self._opened(thread)
        if member is None:
            return
        if not member.may_say(via):
            raise _Torn
        member.rank = via.writer
        self._facts += via.connection not in member.connections
        member.connections.setdefault(via.connection)

    def _list(self, text: str, thread: _Thread) -> None:
        """Read a ring, which only rank 0 lists, or what the graph search settled on."""
        ring, search = _LISTED.fullmatch(text), _PATTERN.fullmatch(text)
        if not (ring or search):
            raise _Torn
        if not self._room() or (member := self._opened(thread)) is None:
            return
        if search:
            self._facts += 1
            member.searches.setdefault(
                Search(
                    pattern=_PATTERNS.get(search[1], search[1]),
                    channels=int(search[2]),
                    inside=search[3],
                    between=search[4],
                    line=text[:LONGEST_LINE],
                )
            )
        elif ring:
            ranks: tuple[int | None, ...] = tuple(map(int, ring[3].split()))
            if text.endswith(".") or len(ranks) == OLD_LONGEST_RING:
                # What follows was cut off, maybe in the middle of the last number.
                ranks = (*ranks[:-1], None)
            member.rank = 0 if member.rank is None else member.rank
            member.channels = int(ring[2]) if member.channels is None else member.channels
            self._facts += len(ranks)
            member.rings.setdefault(int(ring[1]), (ranks, text[:LONGEST_LINE]))

    def _find(self, message: _Message) -> None:
        """Read what a host has and uses."""
        if not self._room():
            return
        host = self._hosts.setdefault(message.host, _Host())
        before = host.facts
        host.read(message.text)
        self._facts += host.facts - before + (not before)

    def _complain(self, message: _Message) -> None:
        key = (str(message.warning), _NUMBERS.sub("#", message.text[:LONGEST_LINE]))
        if key in self._complaints or len(self._complaints) < MOST_COMPLAINTS:
            self._tell(self._complaints, key, message)
        else:
            self._dropped += 1

    def _tell(
        self, known: dict[tuple[str, str], _Told], key: tuple[str, str], message: _Message
    ) -> None:
        """Count a setting or a complaint, as far as there is room."""
        told = known.get(key)
        writer = (message.thread.process, message.thread.device)
        if told is None or writer not in told.writers:
            if not self._room():
                return
            self._facts += 2
            told = told or _Told(message.text[:LONGEST_LINE], message.warning, message.where)
            known[key] = told
            told.writers.setdefault(writer)
            told.hosts.setdefault(message.host)
        told.count += 1

    # ------------------------------------------------------------ what they say together

    def report(self) -> Report:
        """All that was read so far; more may be fed."""
        groups = _grouped(one for them in self._members.values() for one in them)
        late, unplaced = self._place_late(groups)
        ranks = {one.process.host for group in groups for one in group.ranks.values()} - {""}
        return Report(
            versions=tuple(self._versions),
            drivers=tuple(sorted(self._drivers)),
            communicators=tuple(
                group.communicator(late.get(at, ())) for at, group in enumerate(groups)
            ),
            hosts=tuple(
                self._hosts.get(name, _Host()).seen(name) for name in sorted(ranks | {*self._hosts})
            ),
            settings=tuple(
                Setting(name=name, value=value, hosts=tuple(sorted(told.hosts)), line=told.text)
                for (name, value), told in sorted(self._settings.items())
            ),
            complaints=tuple(
                Complaint(
                    text=told.text,
                    cause=advice.cause if (advice := advice_on(told.text)) else None,
                    where=told.where,
                    hosts=tuple(sorted(told.hosts)),
                    ranks=self._ranks_of(told.writers),
                    count=told.count,
                    warning=told.warning,
                )
                for told in self._complaints.values()
            ),
            unplaced=unplaced,
            lines=self.lines,
            torn=self._torn,
            dropped=self._dropped,
        )

    def _place_late(self, groups: Sequence[_Group]) -> tuple[dict[int, list[Connection]], int]:
        """Find the communicators of connections that were made after the start of a rank.

        Of several that a line may be of, and that have the same processes at both of its ends, it
        is the largest. The others are counted.
        """
        place = {id(one): at for at, group in enumerate(groups) for one in group.ranks.values()}
        late: dict[int, list[Connection]] = {}
        unplaced = 0
        for process, device, via in self._late:
            fitting: dict[int, tuple[_Process, int | None] | None] = {}
            for one in self._members.get(process, ()):
                if one.rank != via.writer or device not in one.devices or not one.may_say(via):
                    continue
                other = groups[place[id(one)]].ranks.get(via.other)
                if other is None or other.may_be_called(via.label):
                    fitting[place[id(one)]] = (other.process, other.cuda) if other else None
            ends = set(fitting.values())
            if len(fitting) == 1 or (len(ends) == 1 and None not in ends):
                largest = max(fitting, key=lambda at: (groups[at].size or 0, -at))
                late.setdefault(largest, []).append(via.connection)
            else:
                unplaced += 1
        return late, unplaced

    def _ranks_of(self, writers: Iterable[tuple[_Process, int]]) -> tuple[int, ...]:
        """Which ranks wrote, as far as their processes and devices leave no choice."""
        found: set[int] = set()
        for process, device in writers:
            known = [
                (one.size or 0, one.rank)
                for one in self._members.get(process, ())
                if one.rank is not None and device in one.devices
            ]
            most = max((size for size, _ in known), default=0)
            ranks = {rank for size, rank in known if size == most}
            found |= ranks if len(ranks) == 1 else set()
        return tuple(sorted(found))


@dataclass(slots=True)
class _Group:
    """The ranks of one communicator."""

    name: str | None
    size: int | None
    ranks: dict[int, _Member] = field(default_factory=dict)
    certain: bool = True

    def take(self, strays: _Group) -> None:
        """Take in the ranks that this one lacks."""
        for rank in [one for one in strays.ranks if one < (self.size or 0)]:
            if rank not in self.ranks:
                self.ranks[rank] = strays.ranks.pop(rank)
                self.certain = False

    def communicator(self, late: Iterable[Connection]) -> Communicator:
        """What its members say, as one; `late` are connections they made later."""
        members = [self.ranks[rank] for rank in sorted(self.ranks)]
        rings = {
            channel: (whole, line)
            for one in reversed(members)
            for channel, (ranks, line) in one.rings.items()
            if (whole := _ring(ranks, self.size)) is not None
        }
        connections = {*late, *(one for member in members for one in member.connections)}
        return Communicator(
            name=self.name,
            size=self.size,
            ranks=tuple(one.seen() for one in members),
            certain=self.certain,
            channels=next((one.channels for one in members if one.channels), None),
            rings={channel: rings[channel][0] for channel in sorted(rings)},
            ring_lines={channel: line for channel, (_, line) in rings.items()},
            searches=tuple(dict.fromkeys(one for each in members for one in each.searches)),
            connections=tuple(sorted(connections, key=_order)),
        )


def _grouped(members: Iterable[_Member]) -> list[_Group]:
    """Put ranks together to communicators: by name, else by size.

    Where a rank of a name, or size, is there twice, one of them is of another communicator; which
    ranks of those without a name belong together is not certain then. A rank of which no line tells
    the name (or the size) is of the only communicator that has one, if that lacks it.
    """
    groups: dict[tuple[str | None, int | None, int], _Group] = {}
    seen: Counter[tuple[str | None, int | None, int]] = Counter()
    told = (one for one in members if one.rank is not None)
    for one in sorted(told, key=lambda one: (one.name is None, one.size is None, one.order)):
        assert one.rank is not None
        key = (one.name, one.size)
        turn = seen[*key, one.rank]
        seen[*key, one.rank] += 1
        groups.setdefault((*key, turn), _Group(*key)).ranks[one.rank] = one
    for (name, size, _turn), group in groups.items():
        group.certain = name is not None or (name, size, 1) not in groups
    known = [group for group in groups.values() if group.name is not None]
    known = known or [group for group in groups.values() if group.size is not None]
    if len(known) == 1:
        for group in groups.values():
            if group is not known[0] and group.size in {None, known[0].size}:
                known[0].take(group)
    return [group for group in groups.values() if group.ranks]


def _ring(ranks: tuple[int | None, ...], size: int | None) -> tuple[int | None, ...] | None:
    """A ring as it is known; None where it cannot be one."""
    known = [one for one in ranks if one is not None]
    strange = len(set(known)) < len(known) or (size is not None and max(known, default=0) >= size)
    if strange or known[:1] != [0]:
        return None
    return tuple(known) if len(known) == size else (*known, None)


def _order(one: Connection) -> tuple[int, int, int, int, str, str]:
    index = -1 if one.index is None else one.index
    return one.source, one.target, one.channel, index, one.side or "", one.kind


# ---------------------------------------------------------------- one line


def _message(line: str, speaker: str, *, ends: bool) -> _Message | None:
    """The line of NCCL in a line of a log, if it is one.

    _Torn where it is cut, or mixed up with another. A warning is told whoever wrote it: where that
    cannot be told, it has no host.
    """
    if "\x1b" in line:
        line = _ESCAPES.sub("", line)
    words = list(_WORD.finditer(line))
    if not words:
        return None
    word = words[0]
    warning = word[1] == "WARN"
    writer, where = _written(line[max(0, word.start() - LONGEST_PREFIX) : word.start()])
    if len(words) > 1 or not ends:
        raise _Torn
    if writer is None and not warning:
        return None
    known = writer.groupdict() if writer is not None else {}
    host = known.get("host") or ""
    process = _Process(host, int(known["pid"]) if host else None, "" if host else speaker)
    return _Message(
        thread=_Thread(process, int(known["tid"]) if host else None, int(known.get("device", -1))),
        text=line[word.end() :].strip(),
        warning=warning,
        where=where,
    )


def _written(before: str) -> tuple[re.Match[str] | None, str | None]:
    """Who writes what follows, and the source line that is named for it."""
    writers = list(_WRITER.finditer(before))
    for writer in reversed([one for one in writers if one["host"]] or writers):
        where = before[writer.end() :]
        if not where:
            return writer, None
        if found := _WHERE.fullmatch(where):
            return writer, found[1]
    return None, None


def _via(text: str) -> _Via:
    found = _VIA.fullmatch(text)
    if found is None:
        raise _Torn
    channel, index, source, source_label, target, target_label, side, detail = found.groups()
    p2p, net = _P2P.fullmatch(detail), _NET.fullmatch(detail)
    if p2p:
        kind = f"P2P/{p2p[1] or p2p[2]}"
    elif net:
        kind = f"NET/{net[1]}"
    elif _SHM.fullmatch(detail):
        kind = "SHM"
    else:
        raise _Torn
    if (net is None) != (side is None) or max(int(source), int(target)) > HIGHEST_RANK:
        raise _Torn
    if source == target:
        raise _Torn
    receives = side == "receive"
    return _Via(
        connection=Connection(
            channel=int(channel),
            index=None if index is None else int(index),
            source=int(source),
            target=int(target),
            kind=sys.intern(kind),
            side=side,
            gdr=None if net is None else net[2] is not None,
            line=text[:LONGEST_LINE],
        ),
        writer=int(target if receives else source),
        other=int(source if receives else target),
        label=source_label if receives else target_label,
    )


def _devices(text: str) -> Iterator[Device]:
    """The network devices that a line lists."""
    if found := _SOCKETS.fullmatch(text):
        for index, name, _address in _INTERFACE.findall(found[1]):
            if index:
                yield Device(network="Socket", index=int(index), name=name)
    elif found := _CARDS.fullmatch(text):
        for card in _CARD.finditer(found[1].partition("; OOB")[0]):
            joined = card["joined"]
            yield Device(
                network="IB",
                index=int(card[1]),
                name="+".join(_JOINED.findall(joined)) if joined else card["name"],
                port=None if joined else int(card["port"]),
                layer=None if joined else card["layer"],
            )
    elif found := _MADE.match(text):
        yield Device(network="IB", index=int(found[1]), name=found[2])
