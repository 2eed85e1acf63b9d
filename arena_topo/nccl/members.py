"""Which lines are of which communicator: ranks as they say who they are, put together at the end.

NCCL tells a communicator's name (commId) since 2.17, and that it begins since 2.18. Before, only
"Init COMPLETE" tells who was speaking: what a thread said since its last one belongs to it.
Pointers are of one process only. Since 2.22 ranks connect at their first collective, from other
threads: such a line belongs to the one communicator of the process in which it can be true.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

from arena_topo.nccl import Communicator, Connection, Rank, Search, Tree
from arena_topo.nccl.formats import Ring, Start, Via

SHORTEST_BUS_ID = 4
"""Digits of a bus id: at least bus 1, that is 1000; an index of a GPU has two."""

MOST_CLAIMS = 8
"""Processes that are named where all say to be one rank."""

MOST_TRIED = 50
"""Communicators that are looked at for a rank of which only order tells where it belongs."""

OLD_LONGEST_RING = 20
"""Ranks of a ring that NCCL before 2.23 prints, without a word on the others (rings.cc)."""

OLD_WIDEST_RANK = 1_000
"""From this size on those versions write one rank over the end of the other."""


class Process(NamedTuple):
    """A process as its lines name it: its host, or whose log it is where they name none."""

    host: str
    pid: int | None
    speaker: str = ""

    def __str__(self) -> str:
        """As NCCL writes it, host:pid."""
        return f"{self.host or self.speaker}:{'?' if self.pid is None else self.pid}"


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """A rank of a communicator while its lines come in; None: not said yet."""

    process: Process
    speaker: str
    order: int
    device: int
    start: Start | None = None
    rank: int | None = None
    bus_id: str | None = None
    nvml: int | None = None
    local: int | None = None
    nodes: int | None = None
    nvls: bool | None = None
    nvls_tree: bool = False
    nvls_channels: int | None = None
    collnet: bool = False
    channels: int | None = None
    rings: dict[int, tuple[int | None, ...]] = field(default_factory=dict)
    steps: set[tuple[int, int, int, int]] = field(default_factory=set)
    trees: dict[Tree, None] = field(default_factory=dict)
    searches: dict[Search, None] = field(default_factory=dict)
    networks: dict[str, None] = field(default_factory=dict)
    connections: dict[tuple[Hashable, ...], Connection] = field(default_factory=dict)
    labels: dict[int, str] = field(default_factory=dict)
    ring_lines: dict[int, str] = field(default_factory=dict)
    denials: dict[str, None] = field(default_factory=dict)

    @property
    def facts(self) -> int:
        """How much is kept of it, connections aside."""
        rings = sum(map(len, self.rings.values())) + len(self.denials)
        return len(self.steps) + len(self.trees) + len(self.searches) + len(self.networks) + rings

    @property
    def size(self) -> int | None:
        """How many ranks its communicator has."""
        return self.start.size if self.start else None

    @property
    def complete(self) -> bool:
        """Whether "Init COMPLETE" was read."""
        return self.start is not None and self.start.complete

    def devices(self) -> tuple[int | None, ...]:
        """What stands in brackets before its lines."""
        return self.device, self.start.device if self.start else None

    def own_labels(self) -> tuple[str, ...]:
        """What other ranks may call its GPU."""
        if self.start is None:
            return ()
        said = (self.start.bus_id, self.start.nvml, self.start.device)
        return tuple(str(one) for one in said if one is not None)

    def may_say(self, via: Via) -> bool:
        """Whether a connection can be one of this rank's."""
        if self.rank is not None and self.rank != via.writer:
            return False
        one = via.connection
        if self.size is not None and max(one.source, one.target) >= self.size:
            return False
        mine = via.target_label if one.target == via.writer else via.source_label
        if one.source == one.target:
            return False
        return mine is None or not self.own_labels() or mine in self.own_labels()

    def identify(self, start: Start) -> None:
        """Take in who the rank says to be; what was said before stays."""
        if self.start is None:
            self.start = start
        else:
            old = self.start
            self.start = replace(
                old,
                name=old.name or start.name,
                bus_id=old.bus_id or start.bus_id,
                device=old.device if old.device is not None else start.device,
                nvml=old.nvml if old.nvml is not None else start.nvml,
                parent=old.parent or start.parent,
                split=old.split or start.split,
                complete=old.complete or start.complete,
            )
        self.rank = start.rank
        self.nodes = self.nodes or start.nodes
        self.local = self.local if start.local is None else start.local

    def list_ring(self, ring: Ring) -> None:
        """Take in a ring, which only rank 0 lists; a second one that differs is a denial."""
        self.rank = 0 if self.rank is None else self.rank
        self.channels = ring.channels if self.channels is None else self.channels
        old = self.rings.setdefault(ring.channel, ring.ranks)
        self.ring_lines.setdefault(ring.channel, ring.said)
        if old != ring.ranks:
            self.denials.setdefault(
                f"rank {self.rank} lists the ring of channel {ring.channel} in two ways"
            )

    def connect(self, via: Via) -> bool:
        """Take in a connection; False where it was there already."""
        one = via.connection
        self.rank = via.writer if self.rank is None else self.rank
        for rank, label in ((one.source, via.source_label), (one.target, via.target_label)):
            if label is not None:
                self.labels.setdefault(rank, label)
        self._call_itself(self.labels.get(via.writer), via)
        key = (one.channel, one.index, one.source, one.target, one.side, one.detail, one.nic)
        old = self.connections.get(key)
        self.connections[key] = one if old is None else replace(old, count=old.count + 1)
        return old is None

    def _call_itself(self, label: str | None, via: Via) -> None:
        """Take in how it calls its own GPU: by bus id up to 2.16, by nvidia-smi's index since.

        Only up to 2.5 it is CUDA's index, and stands in the brackets of the prefix as well.
        """
        if label is None:
            return
        if len(label) >= SHORTEST_BUS_ID:
            self.bus_id = self.bus_id or label
        elif label.isdigit() and (via.connection.index is not None or int(label) != self.device):
            self.nvml = int(label) if self.nvml is None else self.nvml


@dataclass(slots=True, eq=False)
class Group:
    """The members of one communicator."""

    name: str | None
    place: int
    members: list[Member] = field(default_factory=list)
    certain: bool = True
    split: tuple[int, tuple[int, int]] | None = None
    size: int | None = None
    """How many ranks it has, as the first member that knows says."""
    processes: int = 0
    """Tells groups of other processes apart: a sum of their hashes."""
    _ranks: dict[int | None, list[Member]] = field(default_factory=dict)
    _heard: dict[int, set[str]] = field(default_factory=dict)
    """What its members call the GPU of each rank."""
    _spoke: set[Process] = field(default_factory=set)

    def add(self, member: Member) -> None:
        """Take in a rank."""
        self.members.append(member)
        self.size = member.size if self.size is None else self.size
        self._ranks.setdefault(member.rank, []).append(member)
        for rank, label in member.labels.items():
            self._heard.setdefault(rank, set()).add(label)
        if member.process not in self._spoke:
            self._spoke.add(member.process)
            self.processes += hash(member.process)

    def has(self, rank: int | None) -> bool:
        """Whether somebody is that rank of it."""
        return rank in self._ranks

    def may_hold(self, member: Member) -> bool:
        """Whether a rank that does not know its communicator's name can be of this one."""
        if member.size is not None and self.size not in {None, member.size}:
            return False
        highest = max(member.labels, default=member.rank or 0)
        if self.size is not None and highest >= self.size:
            return False
        if self.has(member.rank):
            return False
        mine = member.own_labels()
        heard = self._heard.get(-1 if member.rank is None else member.rank, ())
        if mine and any(label not in mine for label in heard):
            return False
        for rank, label in member.labels.items():
            for other in self._ranks.get(rank, [])[:MOST_TRIED]:
                theirs = other.own_labels()
                if theirs and label not in theirs:
                    return False
        return True

    def called(self) -> dict[int, set[str] | None]:
        """What the GPU of each rank may be called; None where a rank does not say."""
        found: dict[int, set[str] | None] = {}
        for one in self.members:
            if one.rank is not None:
                names = found.setdefault(one.rank, set())
                mine = one.own_labels()
                found[one.rank] = None if names is None or not mine else names | set(mine)
        return found


class _Open:
    """Communicators by the ranks that they lack, so that few are looked at for each rank."""

    def __init__(self) -> None:
        self._groups: list[Group] = []
        self._lacking: dict[int | None, tuple[list[Group], int]] = {}

    def add(self, group: Group) -> None:
        """Take in a communicator."""
        self._groups.append(group)

    def fitting(self, member: Member) -> tuple[list[Group], bool]:
        """Those that a rank can be of, and whether all were looked at."""
        lacking, upto = self._lacking.get(member.rank, ([], 0))
        lacking = [one for one in lacking if not one.has(member.rank)]
        while len(lacking) < MOST_TRIED and upto < len(self._groups):
            if not self._groups[upto].has(member.rank):
                lacking.append(self._groups[upto])
            upto += 1
        self._lacking[member.rank] = (lacking, upto)
        return [one for one in lacking if one.may_hold(member)], upto == len(self._groups)


def grouped(members: Sequence[Member]) -> list[Group]:
    """Put ranks together to communicators: by name, by what they were split from, by order.

    Order is all there is before 2.17. It is certain as long as a rank fits into one communicator
    only, or the same processes made all of those it fits into, one after the other.
    """
    groups: list[Group] = []
    members = sorted(members, key=lambda one: (_nameless(one), one.order))
    named: dict[str, list[Group]] = {}
    over: dict[tuple[str, Process, int | None], int] = {}
    split: dict[tuple[int, tuple[int, int]], Group] = {}
    lost, alone = _Open(), _Open()
    pointers: dict[tuple[Process, str], int] = {}
    for member in members:
        start = member.start
        group = None
        if start and start.name:
            # The same name once more of the same process: it began again, after it was over.
            alike = named.setdefault(start.name, [])
            key = (start.name, member.process, member.rank)
            at = over.get(key, 0)
            over[key] = at + member.complete
            if at == len(alike):
                alike.append(Group(start.name, len(groups)))
                groups.append(alike[at])
                lost.add(alike[at])
            group = alike[at]
        elif start and start.parent and start.split:
            parent = pointers.get((member.process, start.parent))
            if parent is not None:
                group = split.get((parent, start.split))
                # The same colour again, of versions that do not count splits: another one.
                if group is None or (start.split[0] < 0 and not group.may_hold(member)):
                    group = Group(None, len(groups), split=(parent, start.split))
                    split[parent, start.split] = group
                    groups.append(group)
        if group is None:
            group = _by_order(member, groups, lost, alone)
        group.add(member)
        if start:
            pointers[member.process, start.pointer] = group.place
    return groups


def _by_order(member: Member, groups: list[Group], lost: _Open, alone: _Open) -> Group:
    fitting, sure = alone.fitting(member)
    if not fitting and not member.complete:
        named, all_named = lost.fitting(member)
        if len(named) == 1 and all_named:
            # This version prints names; the line with the name of this one is not in the log.
            named[0].certain = False
            return named[0]
    if not fitting:
        fitting = [Group(None, len(groups), certain=sure)]
        groups.extend(fitting)
        alone.add(fitting[0])
    elif len(fitting) > 1 and len({one.processes for one in fitting}) > 1:
        for one in fitting:
            one.certain = False
    return fitting[0]


def communicator(
    group: Group, groups: Sequence[Group], late: Iterable[Connection] = ()
) -> Communicator:
    """What the members of a communicator say, as one; `late` are connections it made later."""
    members = sorted(group.members, key=lambda one: (_number(one.rank), one.order))
    size = group.size
    parent = groups[group.split[0]].name if group.split else None
    trees = {tree for one in members for tree in one.trees}
    rings: dict[int, tuple[int | None, ...]] = {}
    ring_lines: dict[int, str] = {}
    for one in members:
        for channel, ranks in one.rings.items():
            if (whole := _ring(ranks, size)) is not None and channel not in rings:
                rings[channel] = whole
                ring_lines[channel] = one.ring_lines[channel]
    return Communicator(
        name=group.name,
        size=size,
        ranks=tuple(_rank(one) for one in members if one.rank is not None),
        certain=group.certain,
        parent=parent,
        nodes=_first(one.nodes for one in members),
        channels=_first(one.channels for one in members),
        rings=dict(sorted(rings.items())),
        ring_lines=ring_lines,
        steps=tuple(sorted({step for one in members for step in one.steps})),
        trees=tuple(sorted(trees, key=lambda one: (one.channel, one.rank, one.down))),
        searches=tuple(dict.fromkeys(found for one in members for found in one.searches)),
        networks=tuple(dict.fromkeys(name for one in members for name in one.networks)),
        nvls_channels=_first(one.nvls_channels for one in members),
        nvls_trees=_ranks_that(one for one in members if one.nvls_tree),
        collnet=_ranks_that(one for one in members if one.collnet),
        connections=connections(
            (*(one for member in members for one in member.connections.values()), *late)
        ),
    )


def may_join(via: Via, called: Mapping[int, set[str] | None]) -> bool:
    """Whether a connection goes to a GPU that the rank at its other end may have."""
    one = via.connection
    there, label = one.target, via.target_label
    if via.writer == there:
        there, label = one.source, via.source_label
    names = called.get(there)
    return label is None or names is None or label in names


def connections(found: Iterable[Connection]) -> tuple[Connection, ...]:
    """Connections in the order of their ranks and channels."""
    return tuple(
        sorted(
            found,
            key=lambda one: (
                one.source,
                one.target,
                one.channel,
                _number(one.index),
                one.side or "",
                one.detail,
            ),
        )
    )


def contradictions(group: Group) -> tuple[str, ...]:
    """Sentences on what the members of a communicator say differently."""
    found = [denial for one in group.members for denial in one.denials]
    sizes = sorted({one.size for one in group.members if one.size is not None})
    whose = f"communicator {group.name}" if group.name else "a communicator without a name"
    if len(sizes) > 1:
        found.append(f"{whose} has {' or '.join(map(str, sizes))} ranks")
    claims: dict[int, dict[Process, None]] = {}
    for one in group.members:
        if one.rank is not None:
            claims.setdefault(one.rank, {}).setdefault(one.process)
    for rank, processes in sorted(claims.items()):
        if len(processes) > 1:
            told = " and ".join(map(str, islice(processes, MOST_CLAIMS)))
            if len(processes) > MOST_CLAIMS:
                told += f" and {len(processes) - MOST_CLAIMS} more"
            found.append(f"{told} all say to be rank {rank} of {whose}")
    rings: dict[int, set[tuple[int | None, ...]]] = {}
    for one in group.members:
        for channel, ranks in one.rings.items():
            rings.setdefault(channel, set()).add(ranks)
    found.extend(
        f"the ring of channel {channel} of {whose} is listed in {len(ways)} ways"
        for channel, ways in sorted(rings.items())
        if len(ways) > 1
    )
    return tuple(dict.fromkeys(found))


def _rank(one: Member) -> Rank:
    start = one.start
    return Rank(
        rank=_number(one.rank),
        host=one.process.host,
        pid=one.process.pid,
        speaker=one.speaker,
        device=start.device if start and start.device is not None else one.device,
        nvml=start.nvml if start and start.nvml is not None else one.nvml,
        bus_id=(start.bus_id if start else None) or one.bus_id,
        local=one.local,
        complete=one.complete,
        nvls=one.nvls,
        said=start.said if start else "",
    )


def _ring(ranks: tuple[int | None, ...], size: int | None) -> tuple[int | None, ...] | None:
    """A ring as it is known; None where it cannot be one, or one rank is written over another."""
    known = [one for one in ranks if one is not None]
    old = len(known) == len(ranks) == OLD_LONGEST_RING
    if old and (size is None or size > OLD_WIDEST_RANK):
        return None
    strange = len(set(known)) < len(known) or (size is not None and max(known, default=0) >= size)
    if strange or known[:1] != [0]:
        return None
    return tuple(known) if len(known) == size else (*known, None)


def _ranks_that(members: Iterable[Member]) -> tuple[int, ...]:
    return tuple(sorted({one.rank for one in members if one.rank is not None}))


def _first(values: Iterable[int | None]) -> int | None:
    return next((one for one in values if one is not None), None)


def _nameless(member: Member) -> bool:
    """Whether nothing but order tells its communicator: such come last."""
    start = member.start
    return start is None or not (start.name or start.split)


def _number(value: int | None) -> int:
    return -1 if value is None else value
