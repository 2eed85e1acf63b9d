"""Lines of logs in, what NCCL says in them out.

Lines of many ranks, communicators and jobs may come mixed, tagged, stamped, glued together, cut, or
not at all: each is read for itself, and one that is not whole is not used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from arena_topo.nccl import Complaint, Connection, Loose, Report, Search, Setting, Tree
from arena_topo.nccl.causes import cause_of, follows, is_off
from arena_topo.nccl.formats import LONGEST_SAID, Event, Ring, Start, Torn, Via, events
from arena_topo.nccl.hosts import Findings, about_hosts
from arena_topo.nccl.lines import Message, is_fragment, messages, version_in
from arena_topo.nccl.members import (
    Member,
    Process,
    communicator,
    connections,
    contradictions,
    grouped,
    may_join,
)

MOST_KEPT = 400_000
"""Facts that are kept: connections, trees, rings, and what else ranks and hosts say. 1,024 ranks
with 32 channels say a third of it. More are counted."""

MOST_MEMBERS = 50_000
"""Ranks of communicators that are kept, some 2 kB each: 1,024 ranks in 48 communicators."""

MOST_OF_PROCESS = 256
"""Ranks of one process that are kept: eight GPUs in 32 communicators."""

LONGEST_VALUE = 4_000
"""Characters of a setting up to which it is kept: half of one would be another."""

MOST_COMPLAINTS = 300
"""Complaints that differ in more than their numbers; a broken job has a dozen."""

MOST_NAMES = 20_000
"""Hosts, settings and versions that are kept, each; a log has few."""

_SETTING = re.compile(r"((?:NCCL|RCCL)_\w+) set (?:by environment )?to (.*)")
_NVLS = re.compile(r"NVLS multicast support is (not )?available on dev \d+(?: .*)?")
_CHANNELS = re.compile(
    r"(\d+) coll channels,(?: \d+ collnet channels,)?(?: (\d+) nvls channels,)? "
)
_DRIVER = re.compile(r"cudaDriverVersion (\d{1,9})")
_GONE = re.compile(r"comm (0x[0-9a-f]+) rank \d+ .*(?:Destroy|Abort) COMPLETE")
_NUMBERS = re.compile(r"0x[0-9a-f]+|/dev/shm/\S+|\d+[0-9a-f.:]*|nccl-\S+")


@dataclass(slots=True)
class _Complaining:
    text: str
    where: str | None
    warning: bool
    follows: str | None
    hosts: dict[str, None] = field(default_factory=dict)
    writers: dict[tuple[Process, int], None] = field(default_factory=dict)
    count: int = 0


@dataclass(slots=True)
class _Set:
    said: str
    hosts: dict[str, None] = field(default_factory=dict)


_Thread = tuple[Process, int | None, int]


class Reader:
    """Reads lines one by one, in the order of each log; logs may take turns.

    Memory is bounded by what the lines say, not by how many there are.
    """

    def __init__(self) -> None:
        self._members: list[Member] = []
        self._pointers: dict[tuple[Process, str], Member] = {}
        self._of: dict[Process, list[Member]] = {}
        self._open: dict[_Thread, Member] = {}
        self._loose: dict[tuple[Process, int, Via], int] = {}
        self._hosts: dict[str, Findings] = {}
        self._known: dict[int, set[str]] = {}
        self._writers: set[str] = set()
        self._settings: dict[tuple[str, str], _Set] = {}
        self._complaints: dict[tuple[bool, str], _Complaining] = {}
        self._failed: dict[Process, str] = {}
        self._versions: dict[str, None] = {}
        self._drivers: dict[int, None] = {}
        self._kept = 0
        self._lines = 0
        self._torn = 0
        self._dropped = 0

    def feed(self, line: str, speaker: str = "", *, ends: bool = True) -> None:
        """Read a line of the log of `speaker` (a pod), its line feed and tags on it or not.

        `ends` is False where the line is cut: what may be half a number is not used.
        """
        if "NCCL" not in line:
            self._count_fragment(line)
            return
        if (
            "NCCL version " in line
            and (version := version_in(line))
            and len(self._versions) < MOST_NAMES
        ):
            self._versions.setdefault(version)
        before = self._lines
        for message in messages(line, self._known, ends=ends):
            self._lines += 1
            if message is None:
                self._torn += 1
                continue
            if message.pid is not None:
                self._know(message.host, message.pid)
            try:
                self._read(message, speaker)
            except (Torn, ValueError):
                # No number of NCCL is too long for Python to read (sys.get_int_max_str_digits).
                self._torn += 1
        if self._lines == before:
            self._count_fragment(line)

    def _count_fragment(self, line: str) -> None:
        """Count what is left of a line of NCCL that lost the words it is known by."""
        if self._writers and is_fragment(line, self._writers):
            self._lines += 1
            self._torn += 1

    def feed_all(self, lines: Iterable[str], speaker: str = "") -> None:
        """Read every line of a log."""
        for line in lines:
            self.feed(line, speaker)

    def report(self) -> Report:
        """All that was read so far; more may be fed."""
        groups = grouped(self._members)
        place = {id(one): at for at, group in enumerate(groups) for one in group.members}
        loose: list[Loose] = []
        settled: dict[int, list[Connection]] = {}
        called = [group.called() for group in groups] if self._loose else []
        for (process, device, via), number in self._loose.items():
            connection = _counted(via.connection, number)
            spoken = {place[id(one)] for one in self._candidates(process, device, via)}
            candidates = sorted(at for at in spoken if may_join(via, called[at]))
            if len(candidates) == 1:
                # Late lines are told from those of other communicators by how they call both GPUs.
                settled.setdefault(candidates[0], []).append(connection)
                continue
            loose.append(
                Loose(
                    connection=connection,
                    host=process.host,
                    pid=process.pid,
                    candidates=tuple(candidates),
                )
            )
        order = {one: at for at, one in enumerate(connections(one.connection for one in loose))}
        loose.sort(key=lambda one: (one.host, one.pid or 0, order[one.connection]))
        communicators = tuple(
            communicator(group, groups, settled.get(at, ())) for at, group in enumerate(groups)
        )
        names = {rank.host for each in communicators for rank in each.ranks if rank.host}
        names |= {name for name, host in self._hosts.items() if host.said}
        return Report(
            versions=tuple(self._versions),
            drivers=tuple(sorted(self._drivers)),
            communicators=communicators,
            hosts=tuple((self._hosts.get(name) or Findings(name)).told() for name in sorted(names)),
            settings=tuple(
                Setting(name=name, value=value, hosts=tuple(sorted(one.hosts)), said=one.said)
                for (name, value), one in sorted(
                    self._settings.items(), key=lambda setting: setting[0]
                )
            ),
            complaints=tuple(
                Complaint(
                    text=one.text,
                    cause=cause_of(one.text),
                    where=one.where,
                    hosts=tuple(sorted(one.hosts)),
                    count=one.count,
                    warning=one.warning,
                    follows=one.follows,
                    ranks=self._ranks_of(one.writers),
                )
                for one in self._complaints.values()
            ),
            loose=tuple(loose),
            contradictions=tuple(text for group in groups for text in contradictions(group)),
            lines=self._lines,
            torn=self._torn,
            dropped=self._dropped,
        )

    def _ranks_of(self, writers: Iterable[tuple[Process, int]]) -> tuple[int, ...]:
        """Which ranks wrote, as far as their processes and devices leave no choice."""
        found = set()
        for process, device in writers:
            spoken = [
                (one.start.size if one.start is not None else 0, one.rank)
                for one in self._of.get(process, ())
                if one.rank is not None and device in one.devices()
            ]
            most = max((size for size, _ in spoken), default=0)
            ranks = {rank for size, rank in spoken if size == most}
            found |= ranks if len(ranks) == 1 else set()
        return tuple(sorted(found))

    def _know(self, host: str, pid: int) -> None:
        """Remember which hosts have a process of this id."""
        if len(self._writers) < MOST_NAMES:
            self._writers.add(host)
        if pid not in self._known:
            if len(self._known) >= MOST_NAMES:
                return
            self._known[pid] = set()
        names = self._known[pid]
        if host not in names and self._kept < MOST_KEPT:
            names.add(host)
            self._kept += 1

    def _room(self) -> bool:
        """Whether more can be kept; where not, it is counted."""
        if self._kept < MOST_KEPT:
            return True
        self._dropped += 1
        return False

    def _read(self, message: Message, speaker: str) -> None:
        host = message.host or speaker
        process = Process(message.host, message.pid, "" if message.host else speaker)
        if message.warning:
            self._complain(message, host, process)
            return
        text = message.text
        thread = (process, message.tid, message.device)
        told = False
        for event in events(text, whole=message.whole):
            self._take(event, thread, speaker)
            told = True
        if not told:
            self._read_other(message, host, thread, speaker)

    def _read_other(self, message: Message, host: str, thread: _Thread, speaker: str) -> None:
        """Read a line that is not on how ranks are joined."""
        text = message.text
        if about_hosts(text):
            self._find(message, host, thread)
        if " set " in text and text.startswith(("NCCL_", "RCCL_")):
            self._set(message, host)
        elif found := _NVLS.fullmatch(text):
            if (opened := self._opened(thread, speaker)) is not None:
                opened.nvls = found[1] is None
        elif (found := _CHANNELS.match(text)) and thread in self._open:
            member = self._open[thread]
            member.channels = int(found[1]) if member.channels is None else member.channels
            member.nvls_channels = int(found[2]) if found[2] else None
        elif text == "Connected NVLS tree":
            if thread in self._open:
                self._open[thread].nvls_tree = True
        elif message.whole and (found := _DRIVER.fullmatch(text)):
            if len(self._drivers) < MOST_NAMES:
                self._drivers.setdefault(int(found[1]))
        elif found := _GONE.fullmatch(text):
            self._pointers.pop((thread[0], found[1]), None)
        if is_off(text):
            self._complain(message, host, thread[0])

    def _take(self, event: Event, thread: _Thread, speaker: str) -> None:
        if isinstance(event, Via):
            self._connect(event, thread, speaker)
            return
        if isinstance(event, Start):
            self._start(event, thread, speaker)
            return
        member = self._opened(thread, speaker)
        if member is None or not self._room():
            return
        before = member.facts
        if isinstance(event, Ring):
            member.list_ring(event)
        elif isinstance(event, Tree):
            member.rank = event.rank if member.rank is None else member.rank
            member.trees.setdefault(event)
        elif isinstance(event, Search):
            member.searches.setdefault(event)
        elif isinstance(event, tuple):
            member.rank = event[2] if member.rank is None else member.rank
            member.steps.add(event)
        else:
            member.collnet = True
        self._kept += member.facts - before

    def _start(self, start: Start, thread: _Thread, speaker: str) -> None:
        """Whose thread this is from here on, or was up to here."""
        process = thread[0]
        known = self._pointers.get((process, start.pointer))
        opened = self._open.get(thread)
        if known is not None and not _same(known, start):
            known = None
        if known is not None and opened is not None and opened is not known and known.complete:
            # The same address once more, after the lines of another start: it was used again.
            known = None
        if known is None and opened is not None and opened.start is None:
            known = opened if opened.rank in {None, start.rank} else None
        if known is None:
            known = self._member(thread, speaker)
        if known is None:
            self._open.pop(thread, None)
            return
        known.identify(start)
        self._pointers[process, start.pointer] = known
        if start.complete:
            self._open.pop(thread, None)
        elif thread in self._open or len(self._open) < MOST_MEMBERS:
            self._open[thread] = known

    def _connect(self, via: Via, thread: _Thread, speaker: str) -> None:
        if not self._room():
            return
        process, _, device = thread
        member = self._open.get(thread)
        candidates: tuple[Member, ...] = ()
        if member is None:
            candidates = self._candidates(process, device, via)
            if len(candidates) == 1:
                (member,) = candidates
            elif not any(one.device == device for one in self._of.get(process, ())):
                member = self._opened(thread, speaker)
                if member is None:
                    return
        if member is None:
            key = (process, device, via)
            if key not in self._loose:
                self._loose[key] = 0
                self._kept += max(1, len(candidates))
            self._loose[key] += 1
        elif member.may_say(via):
            self._kept += member.connect(via)
        else:
            raise Torn

    def _candidates(self, process: Process, device: int, via: Via) -> tuple[Member, ...]:
        """Of which ranks of a process a connection may be, that it made after its start."""
        return tuple(
            one
            for one in self._of.get(process, ())
            if device in one.devices() and one.rank is not None and one.may_say(via)
        )

    def _opened(self, thread: _Thread, speaker: str) -> Member | None:
        """The rank that a thread speaks of; None where there is no room for one more."""
        member = self._open.get(thread)
        if member is None and (member := self._member(thread, speaker)) is not None:
            self._open[thread] = member
        return member

    def _member(self, thread: _Thread, speaker: str) -> Member | None:
        process, _, device = thread
        of_process = self._of.get(process, [])
        if len(self._members) >= MOST_MEMBERS or len(of_process) >= MOST_OF_PROCESS:
            self._dropped += 1
            return None
        member = Member(process=process, speaker=speaker, order=len(self._members), device=device)
        self._members.append(member)
        self._of.setdefault(process, of_process).append(member)
        return member

    def _find(self, message: Message, host: str, thread: _Thread) -> None:
        if host not in self._hosts:
            if len(self._hosts) >= MOST_NAMES:
                self._dropped += 1
                return
            self._hosts[host] = Findings(host)
        if not self._room():
            return
        findings = self._hosts[host]
        before = findings.facts
        network = findings.read(message.text, whole=message.whole)
        self._kept += findings.facts - before
        if network is not None and thread in self._open:
            member = self._open[thread]
            self._kept += network not in member.networks
            member.networks.setdefault(network)

    def _set(self, message: Message, host: str) -> None:
        found = _SETTING.fullmatch(message.text)
        if found is None or not message.whole:
            return
        key = (found[1], found[2].removesuffix(".").strip())
        one = self._settings.get(key)
        if one is None:
            if len(self._settings) >= MOST_NAMES or len(message.text) > LONGEST_VALUE:
                self._dropped += 1
                return
            one = self._settings[key] = _Set(message.text[:LONGEST_SAID])
        if host not in one.hosts and self._room():
            one.hosts.setdefault(host)
            self._kept += 1

    def _complain(self, message: Message, host: str, process: Process) -> None:
        text = message.text[:LONGEST_SAID]
        later = follows(text)
        before = self._failed.get(process) if message.warning and later else None
        key = (message.warning, _NUMBERS.sub("#", text))
        if key not in self._complaints:
            if len(self._complaints) >= MOST_COMPLAINTS:
                self._dropped += 1
                return
            self._complaints[key] = _Complaining(text, message.where, message.warning, before)
        one = self._complaints[key]
        told = message.warning and not later and process.pid is not None
        if told and (process in self._failed or len(self._failed) < MOST_NAMES):
            self._failed[process] = one.text
        one.follows = one.follows or before
        if host not in one.hosts and self._room():
            one.hosts.setdefault(host)
            self._kept += 1
        writer = (process, message.device)
        if writer not in one.writers and self._kept < MOST_KEPT:
            one.writers.setdefault(writer)
            self._kept += 1
        one.count += 1


def _same(member: Member, start: Start) -> bool:
    """Whether a line with the pointer of a rank is of that rank, and not of a later one."""
    old = member.start
    if old is None:
        return True
    names = {old.name, start.name} - {None}
    return (old.rank, old.size) == (start.rank, start.size) and len(names) <= 1


def _counted(connection: Connection, number: int) -> Connection:
    return replace(connection, count=number)
