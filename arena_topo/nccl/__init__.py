"""What NCCL says it did: its INFO and WARN lines in, a `Report` out; nothing in it is guessed.

`nccl.reading.Reader` reads the lines, `nccl.measured` the tables of nccl-tests. What no line says
is None or empty here. A transport is not a speed, and `P2P` is not NVLink: NCCL names the way that
data takes between two GPUs, and only its graph search (`Search`) names the links it counted on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Family(StrEnum):
    """The transports of NCCL (src/transport.cc), best first."""

    P2P = "P2P"
    SHM = "SHM"
    NET = "NET"


class Side(StrEnum):
    """Which end of a network connection said it; P2P and SHM are told by the sender alone."""

    SEND = "send"
    RECEIVE = "receive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """One `via` line: over which transport a channel of a rank goes to a rank.

    `kind` is the way without its numbers: "P2P/CUMEM", "P2P/IPC", "P2P/direct pointer",
    "P2P/indirect", "P2P/MNNVL", "SHM", "NET/IB", "NET/Socket", "NET/AWS Libfabric". `detail` is
    all that follows `via`. `nic` is the index of the network device on the host of the rank
    that speaks (`side`), `proxy` the rank that sends for it (PXN), `gdr` whether GPU Direct RDMA is
    used; None where the line does not say. `index` is 0 for rings and trees, 1 for send/receive;
    old versions do not tell it. `count` lines said the same, `said` is the first of them.
    """

    channel: int
    source: int
    target: int
    family: Family
    kind: str
    detail: str
    index: int | None = None
    side: Side | None = None
    nic: int | None = None
    proxy: int | None = None
    gdr: bool | None = None
    count: int = 1
    said: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """A rank of a communicator, as one process said it; `speaker` is who the reader was told.

    `bus_id` is NCCL's number in hexadecimal (8a000), `pci` the same as others write it. `device`
    is the CUDA index in the process, `nvml` that of nvidia-smi. `host` is "" where the lines have
    no host. `complete`: "Init COMPLETE" was read. `nvls`: NVLink SHARP multicast is available.
    `said` is the line by which it told its number of ranks; empty where none did.
    """

    rank: int
    host: str
    pid: int | None
    speaker: str = ""
    device: int | None = None
    nvml: int | None = None
    bus_id: str | None = None
    local: int | None = None
    complete: bool = False
    nvls: bool | None = None
    said: str = field(default="", compare=False)

    @property
    def pci(self) -> str | None:
        """The PCI address, 0000:8a:00.0 for 8a000 (busIdToInt64 in NCCL's src/misc/utils.cc)."""
        if self.bus_id is None:
            return None
        number = int(self.bus_id, 16)
        domain, bus = number >> 20, number >> 12 & 0xFF
        return f"{domain:04x}:{bus:02x}:{number >> 4 & 0xFF:02x}.{number & 0xF:x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Where a rank is in a tree of a channel: its parent (None: the root) and its children."""

    channel: int
    rank: int
    up: int | None
    down: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What NCCL's graph search settled on (`Pattern` lines, NCCL_DEBUG_SUBSYS=GRAPH).

    `pattern` is ring, tree and so on; `inside` and `between` the worst links it counted on within a
    machine and to the network (NVL, PIX, PHB, SYS ...). Its bandwidths are NCCL's table of such
    links, in GB/s: never measured. `said` is the line.
    """

    pattern: str
    channels: int
    inside: str
    between: str
    inside_bandwidth: float
    between_bandwidth: float
    said: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicator:
    """A communicator: the ranks that speak of it, and how they are joined.

    `name` is NCCL's own hash of it (commId), None where no line prints one; ranks are then put
    together by process and order, and `certain` is False where that leaves a choice, or where a
    rank is here only because it fits nowhere else. Ranks that begin again under a name that was
    over make another communicator of that name.
    `size` is nranks. `rings` are the rings by channel as rank 0 lists them: None at the end where
    more ranks follow, or may follow (NCCL cuts long ones); `steps` what each rank says of itself:
    (channel, previous, rank, next). `ring_lines` are the lines that list the rings.
    """

    name: str | None
    size: int | None
    ranks: tuple[Rank, ...]
    certain: bool = True
    parent: str | None = None
    nodes: int | None = None
    channels: int | None = None
    rings: Mapping[int, tuple[int | None, ...]] = field(default_factory=dict)
    ring_lines: Mapping[int, str] = field(default_factory=dict, compare=False)
    steps: tuple[tuple[int, int, int, int], ...] = ()
    trees: tuple[Tree, ...] = ()
    searches: tuple[Search, ...] = ()
    networks: tuple[str, ...] = ()
    nvls_channels: int | None = None
    nvls_trees: tuple[int, ...] = ()
    """The ranks that said "Connected NVLS tree"."""
    collnet: tuple[int, ...] = ()
    """The ranks that said to send or receive "via COLLNET": the switches add up for them."""
    connections: tuple[Connection, ...] = ()

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks of which no line was read that tells who they are."""
        said = {rank.rank for rank in self.ranks}
        return tuple(rank for rank in range(self.size or 0) if rank not in said)

    @property
    def incomplete(self) -> tuple[int, ...]:
        """Ranks that began and of which no "Init COMPLETE" was read."""
        done = {rank.rank for rank in self.ranks if rank.complete}
        return tuple(sorted({rank.rank for rank in self.ranks} - done))

    def matrix(self) -> dict[tuple[int, int], tuple[str, ...]]:
        """Every kind of transport by (source, target), most used first; pairs never said: absent.

        NCCL joins the neighbours of its rings and trees only: a pair that is absent was not needed,
        or its line was not read.
        """
        counted: dict[tuple[int, int], dict[str, set[tuple[int, int | None]]]] = {}
        for one in self.connections:
            kinds = counted.setdefault((one.source, one.target), {})
            kinds.setdefault(one.kind, set()).add((one.channel, one.index))
        return {
            pair: tuple(sorted(kinds, key=lambda kind: (-len(kinds[kind]), kind)))
            for pair, kinds in sorted(counted.items())
        }

    def of(self, rank: int) -> Rank | None:
        """Who said to be this rank; None where nobody or more than one did."""
        found = [one for one in self.ranks if one.rank == rank]
        return found[0] if len(found) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A network device that NCCL may use on a host: its index in `via NET/.../INDEX`.

    `name` is mlx5_0, eth0 or, for several joined into one, mlx5_0+mlx5_1. `layer` is IB or RoCE,
    `gdr` whether the driver can do GPU Direct RDMA with it; None where not said.
    """

    network: str
    index: int
    name: str
    port: int | None = None
    layer: str | None = None
    address: str | None = None
    gdr: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What NCCL chose and found on a host, as its processes said (they may differ: all are kept).

    A host that only a rank names has nothing but its name.
    `bootstrap` are (interface, address) of the rendezvous, `networks` the networks in use (IB,
    Socket, AWS Libfabric), `no_ib` that "No device found" was said, `plugins` the lines of network
    plugins, each once. `said` are the lines that name an interface first, by its name, `no_ib_said`
    the one of no device.
    """

    name: str
    bootstrap: tuple[tuple[str, str], ...] = ()
    networks: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()
    no_ib: bool = False
    plugins: tuple[str, ...] = ()
    said: Mapping[str, str] = field(default_factory=dict, compare=False)
    no_ib_said: str = field(default="", compare=False)

    def device(self, network: str, index: int) -> Device | None:
        """The device behind `via NET/NETWORK/INDEX`; None where no line named it, or two differ.

        The plugins of HPC-X call themselves IBext, IBext_v8 and so on, and list devices as IB.
        """
        network = "IB" if network.startswith("IBext") else network
        found = [one for one in self.devices if (one.network, one.index) == (network, index)]
        return found[0] if len(found) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A variable that NCCL took from the environment, the hosts that said so, and how."""

    name: str
    value: str
    hosts: tuple[str, ...]
    said: str = field(default="", compare=False)


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
    PEER = "peer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """A WARN line, or an INFO line that says something is off; the same of many is told once.

    `where` is NCCL's source line, `cause` None where it is not known, `hosts` who said it, and
    `count` how often. `warning` is False for INFO lines. `follows` is what the same process had
    complained of before, where this one only tells that something failed in it. `ranks` are those
    of its writers where that is certain, in the largest communicator that each is of.
    """

    text: str
    cause: Cause | None
    where: str | None
    hosts: tuple[str, ...]
    count: int
    warning: bool = True
    follows: str | None = None
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Loose:
    """A connection of which no line tells the communicator.

    `host` and `pid` are of the process that speaks. `candidates` are the places in
    `Report.communicators` of those it may belong to: none where the log does not have it.
    """

    connection: Connection
    host: str
    pid: int | None
    candidates: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was read.

    `lines` lines were NCCL's, `torn` of them cut or mixed up with others and not used. `versions`
    are NCCL's ("2.18.3+cuda12.2"), `drivers` CUDA's driver versions as NCCL prints them (12020).
    `contradictions` are sentences on what two lines say differently; `dropped` counts what was over
    the bound on memory.
    """

    versions: tuple[str, ...] = ()
    drivers: tuple[int, ...] = ()
    communicators: tuple[Communicator, ...] = ()
    hosts: tuple[Host, ...] = ()
    settings: tuple[Setting, ...] = ()
    complaints: tuple[Complaint, ...] = ()
    loose: tuple[Loose, ...] = ()
    contradictions: tuple[str, ...] = ()
    lines: int = 0
    torn: int = 0
    dropped: int = 0

    @property
    def silent(self) -> bool:
        """Whether nothing of NCCL was read at all: most likely NCCL_DEBUG=INFO was not set."""
        return not self.lines and not self.versions
