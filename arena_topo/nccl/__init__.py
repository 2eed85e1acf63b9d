"""What NCCL says it did: its INFO and WARN lines in, a `Report` out; nothing in it is guessed.

`nccl.reading.Reader` reads the lines, `nccl.measured` the tables of nccl-tests. What no line says
is None or empty here. A transport is not a speed, and `P2P` is not NVLink: NCCL names the way that
data takes between two GPUs, and only its graph search (`Search`) names the links it counted on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """One `via` line: over which transport a channel of a rank goes to a rank.

    `kind` is the way without its numbers: "P2P/CUMEM", "P2P/IPC", "P2P/direct pointer",
    "P2P/indirect", "P2P/MNNVL", "SHM", "NET/IB", "NET/Socket", "NET/AWS Libfabric". `side` is the
    end of a network connection that logs it, "send" or "receive" (only senders log P2P and SHM),
    `gdr` whether GPU Direct RDMA is used there; None where the line does not say. `index` is 0 for
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
        """The rank that says it."""
        return self.target if self.side == "receive" else self.source

    @property
    def other(self) -> int:
        """The rank at its other end."""
        return self.source if self.side == "receive" else self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """A rank of a communicator, as one process said it; `speaker` is whose log it was in.

    `bus_id` is NCCL's number in hexadecimal (8a000), `pci` the same as others write it. `device`
    is the CUDA index in the process, `nvml` that of nvidia-smi. `host` is "" where the lines have
    no host. `complete`: "Init COMPLETE" was read. `line` tells which rank it is; "" where none did.
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
class Search:
    """The rings that NCCL's graph search settled on (`Pattern` lines, NCCL_DEBUG_SUBSYS=GRAPH).

    `inside` and `between` are the worst links it counted on within a machine and to the network
    (NVL, PIX, PHB, SYS ...).
    """

    channels: int
    inside: str
    between: str
    line: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicator:
    """A communicator: the ranks that speak of it, and how they are joined.

    `name` is NCCL's own hash of it (commId), None where no line prints one. `certain` is False
    where only the order of lines puts its ranks together. `size` is nranks. `rings` are the rings
    by channel as rank 0 lists them: None at the end where more ranks follow, or may follow (NCCL
    cuts long ones); `ring_lines` the lines that list them. `connections` are also those of smaller
    communicators that join the same processes, where no line tells them apart.
    """

    name: str | None
    size: int | None
    ranks: tuple[Rank, ...]
    certain: bool = True
    channels: int | None = None
    rings: Mapping[int, tuple[int | None, ...]] = field(default_factory=dict)
    ring_lines: Mapping[int, str] = field(default_factory=dict, compare=False)
    searches: tuple[Search, ...] = ()
    connections: tuple[Connection, ...] = ()

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks of which no line was read that tells who they are."""
        heard = {rank.rank for rank in self.ranks}
        return tuple(rank for rank in range(self.size or 0) if rank not in heard)

    @property
    def incomplete(self) -> tuple[int, ...]:
        """Ranks that began and of which no "Init COMPLETE" was read."""
        return tuple(one.rank for one in self.ranks if not one.complete)

    def matrix(self) -> dict[tuple[int, int], tuple[str, ...]]:
        """Every kind of transport by (source, target), most used first; pairs never said: absent.

        NCCL joins the neighbours of its rings and trees only: a pair that is absent was not needed,
        or its line was not read.
        """
        channels = {(one.source, one.target, one.kind, one.channel, one.index): one
                    for one in self.connections}  # fmt: skip
        counted: dict[tuple[int, int], Counter[str]] = {}
        for one in channels.values():
            counted.setdefault((one.source, one.target), Counter())[one.kind] += 1
        return {
            pair: tuple(sorted(kinds, key=lambda kind: (-kinds[kind], kind)))
            for pair, kinds in sorted(counted.items())
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What NCCL chose and found on a host, as its processes said (they may differ: all count).

    Each maps names to the first line that says them: `bootstrap` the interfaces of the rendezvous,
    `networks` what is in use (IB, Socket, AWS Libfabric), `sockets` the interfaces of TCP, `cards`
    the ports of InfiniBand and RoCE (mlx5_0:1), `no_ib` that there is no such card.
    """

    name: str
    bootstrap: Mapping[str, str] = field(default_factory=dict)
    networks: Mapping[str, str] = field(default_factory=dict)
    sockets: Mapping[str, str] = field(default_factory=dict)
    cards: Mapping[str, str] = field(default_factory=dict)
    no_ib: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A variable that NCCL took from the environment, the hosts that said so, and the line."""

    name: str
    value: str
    hosts: tuple[str, ...]
    line: str = field(default="", compare=False)


class Cause(StrEnum):
    """The classes of complaints whose cause is known (`nccl.causes` says what to try)."""

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

    `where` is NCCL's source line, `cause` None where it is not known, `hosts` who said it, and
    `count` how often. `warning` is False for INFO lines. `ranks` are those of its writers where
    that is certain, in the largest communicator that each is of.
    """

    text: str
    cause: Cause | None
    where: str | None
    hosts: tuple[str, ...]
    ranks: tuple[int, ...]
    count: int
    warning: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was read.

    `lines` lines were NCCL's, `torn` of them cut or mixed up with others and not used. `versions`
    are NCCL's ("2.18.3+cuda12.2").
    `unplaced` counts connections of which no line tells the communicator, `dropped` what was over
    the bound on memory.
    """

    versions: tuple[str, ...] = ()
    communicators: tuple[Communicator, ...] = ()
    hosts: tuple[Host, ...] = ()
    settings: tuple[Setting, ...] = ()
    complaints: tuple[Complaint, ...] = ()
    unplaced: int = 0
    lines: int = 0
    torn: int = 0
    dropped: int = 0

    @property
    def silent(self) -> bool:
        """Whether nothing of NCCL was read at all: most likely NCCL_DEBUG=INFO was not set."""
        return not self.lines and not self.versions

    @property
    def largest(self) -> Communicator | None:
        """The communicator of most ranks; None where no line tells of a rank."""
        return max(
            self.communicators, key=lambda one: (one.size or 0, len(one.connections)), default=None
        )
