"""The facts in NCCL's INFO and WARN lines, as a `NcclReport`; nothing in it is guessed.

`nccl.line_parser.NcclReader` reads the lines, `nccl.bandwidth_tables` the tables of nccl-tests. A
fact without a line is None or empty here. A transport is not a speed, and `P2P` is not NVLink: NCCL
names the transport between two GPUs, and only its graph search (`Search`) names the links that it
assumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class RankConnection:
    """One `via` line: the transport of a channel from one rank to another.

    `kind` is the transport without its numbers: "P2P/CUMEM", "P2P/IPC", "P2P/direct pointer",
    "P2P/indirect", "P2P/MNNVL", "SHM", "NET/IB", "NET/Socket", "NET/AWS Libfabric". `side` is the
    end of a network connection that logs it, "send" or "receive" (only senders log P2P and SHM),
    `gdr` whether GPU Direct RDMA is used there; None if the line does not say. `index` is 0 for
    rings and trees, 1 for send/receive; old versions do not log it.
    """

    channel: int
    source: int
    target: int
    kind: str
    index: int | None = None
    side: str | None = None
    gdr: bool | None = None
    line: str = field(default="", compare=False)

    @property
    def writer(self) -> int:
        """The rank that wrote the line."""
        return self.target if self.side == "receive" else self.source

    @property
    def other(self) -> int:
        """The rank at the other end."""
        return self.source if self.side == "receive" else self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """A rank of a communicator according to one process; `speaker` is the pod of its log.

    `bus_id` is NCCL's number in hexadecimal (8a000), `pci` the same in the usual form. `device` is
    the CUDA index in the process, `nvml` that of nvidia-smi. `host` is "" if the lines have no
    host. `complete`: "Init COMPLETE" was read. `line` is the line that identifies the rank; ""
    without one.
    """

    rank: int
    host: str
    pid: int | None
    speaker: str = ""
    device: int | None = None
    nvml: int | None = None
    bus_id: str | None = None
    complete: bool = False
    line: str = field(default="", compare=False)

    @property
    def pci(self) -> str | None:
        """The PCI address, 0000:8a:00.0 for 8a000 (busIdToInt64 in NCCL's src/misc/utils.cc)."""
        if self.bus_id is None:
            return None
        number = int(self.bus_id, 16)
        domain, bus = number >> 20, number >> 12 & 0xFF
        return f"{domain:04x}:{bus:02x}:{number >> 4 & 0xFF:02x}.{number & 0xF:x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSearch:
    """The rings of NCCL's graph search (`Pattern` lines, NCCL_DEBUG_SUBSYS=GRAPH).

    `inside` and `between` are the worst links that it assumed within a machine and to the network
    (NVL, PIX, PHB, SYS ...).
    """

    channels: int
    inside: str
    between: str
    line: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicator:
    """A communicator: the ranks that mention it, and the connections between them.

    `name` is NCCL's own hash of it (commId), None if no line prints one. `certain` is False if only
    the order of the lines groups its ranks. `size` is nranks. `rings` are the rings by channel as
    rank 0 lists them, with None at the end if more ranks follow, or may follow (NCCL truncates long
    rings); `ring_lines` are the lines that list them. `connections` include those of smaller
    communicators of the same processes, if no line tells them apart.
    """

    name: str | None
    size: int | None
    ranks: tuple[Rank, ...]
    certain: bool = True
    channels: int | None = None
    rings: Mapping[int, tuple[int | None, ...]] = field(default_factory=dict)
    ring_lines: Mapping[int, str] = field(default_factory=dict, compare=False)
    searches: tuple[GraphSearch, ...] = ()
    connections: tuple[RankConnection, ...] = ()

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that no line identifies."""
        identified = {rank.rank for rank in self.ranks}
        return tuple(rank for rank in range(self.size or 0) if rank not in identified)

    @property
    def incomplete(self) -> tuple[int, ...]:
        """Ranks with a first line but without "Init COMPLETE"."""
        return tuple(rank.rank for rank in self.ranks if not rank.complete)

    def matrix(self) -> dict[tuple[int, int], tuple[str, ...]]:
        """The kinds of transport by (source, target), most used first; other pairs are absent.

        NCCL connects only the neighbours of its rings and trees: an absent pair needed no
        connection, or its line was not read.
        """
        channels = {(link.source, link.target, link.kind, link.channel, link.index): link
                    for link in self.connections}  # fmt: skip
        counted: dict[tuple[int, int], Counter[str]] = {}
        for link in channels.values():
            counted.setdefault((link.source, link.target), Counter())[link.kind] += 1
        return {
            pair: tuple(sorted(kinds, key=lambda kind: (-kinds[kind], kind)))
            for pair, kinds in sorted(counted.items())
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclHost:
    """NCCL's choices and findings on a host, by its processes (they may differ: all count).

    Each field maps names to the first line with that name: `bootstrap` the interfaces of the
    rendezvous, `networks` the networks in use (IB, Socket, AWS Libfabric), `sockets` the interfaces
    of TCP, `cards` the ports of InfiniBand and RoCE (mlx5_0:1), `no_ib` that there is no such card.
    """

    name: str
    bootstrap: Mapping[str, str] = field(default_factory=dict)
    networks: Mapping[str, str] = field(default_factory=dict)
    sockets: Mapping[str, str] = field(default_factory=dict)
    cards: Mapping[str, str] = field(default_factory=dict)
    no_ib: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A variable that NCCL took from the environment, the hosts that printed it, and the line."""

    name: str
    value: str
    hosts: tuple[str, ...]
    line: str = field(default="", compare=False)


class ComplaintCause(StrEnum):
    """The classes of complaints with a known cause (`nccl.complaints` has the advice)."""

    SHM_FULL = "shm-full"
    SHM_GONE = "shm-gone"
    P2P_OFF = "p2p-off"
    P2P_BROKEN = "p2p-broken"
    NVLINK_OFF = "nvlink-off"
    REFUSED = "refused"
    TIMED_OUT = "timed-out"
    CLOSED = "closed"
    NO_INTERFACE = "no-interface"
    NO_TRANSPORT = "no-transport"
    IB_COMPLETION = "ib-completion"
    IB_SETUP = "ib-setup"
    IB_MEMORY = "ib-memory"
    SAME_GPU = "same-gpu"
    VERSIONS = "versions"
    CUDA = "cuda"
    NVLS = "nvls"
    GDR_OFF = "gdr-off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """A WARN line, or an INFO line that reports trouble; equal lines of many ranks are one.

    `where` is NCCL's source line, `cause` None if unknown, `hosts` the hosts of the writers, and
    `count` the number of lines. `warning` is False for INFO lines. `ranks` are those of the writers
    if that is certain, in the largest communicator of each.
    """

    text: str
    cause: ComplaintCause | None
    where: str | None
    hosts: tuple[str, ...]
    ranks: tuple[int, ...]
    count: int
    warning: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclReport:
    """The result of reading.

    Of NCCL's `lines`, `torn` were truncated or mixed up with others, and not used. `versions` are
    NCCL's ("2.18.3+cuda12.2"). `unplaced` counts connections of an unknown communicator, `dropped`
    the facts beyond the limit of memory.
    """

    versions: tuple[str, ...] = ()
    communicators: tuple[Communicator, ...] = ()
    hosts: tuple[NcclHost, ...] = ()
    settings: tuple[Setting, ...] = ()
    complaints: tuple[Complaint, ...] = ()
    unplaced: int = 0
    lines: int = 0
    torn: int = 0
    dropped: int = 0

    @property
    def silent(self) -> bool:
        """Whether no line of NCCL was read: most likely NCCL_DEBUG=INFO was not set."""
        return not self.lines and not self.versions

    @property
    def largest(self) -> Communicator | None:
        """The communicator with the most ranks; None if no line names a rank."""
        return max(
            self.communicators, key=lambda own: (own.size or 0, len(own.connections)), default=None
        )
