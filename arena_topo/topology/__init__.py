"""Link, GPU, Machine, Node, Cluster: the values that describe a cluster everywhere.

Readers (`nvidia`, `published`, `presets`) make these values from foreign data; the solver and the
screens use only the values. The static part of a server (`Machine`, which never changes while it
runs) is separate from its changing use (`Node`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum, StrEnum
from typing import TYPE_CHECKING, NamedTuple, NewType

from arena_topo.topology.models import LANES_PER_GPU, MOST_LANES

if TYPE_CHECKING:
    import networkx as nx

GPUSet = NewType("GPUSet", int)
"""GPUs of one machine as bits: bit i is GPU i."""

NodeName = NewType("NodeName", str)


class LinkKind(IntEnum):
    """The path between two devices of one machine, worst first; the words of nvidia-smi."""

    SYS = 0
    NODE = 1
    PHB = 2
    PXB = 3
    PIX = 4
    NVLINK = 5


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Link:
    """The link of two devices: its kind, and for NVLink the number of bonded lanes."""

    kind: LinkKind
    lanes: int = 1

    @classmethod
    def parse(cls, word: str) -> Link:
        """Read a cell of nvidia-smi's matrix (`NV2`, `PIX`, `SOC`); ValueError for other texts."""
        bonded = re.fullmatch(r"NV(\d{1,3})", word)
        if bonded and int(bonded[1]) > 0:
            return cls(kind=LinkKind.NVLINK, lanes=int(bonded[1]))
        # SOC is the name in drivers before 2018 for a path over the link between sockets.
        kind = LinkKind.__members__.get("SYS" if word == "SOC" else word)
        if kind is None or kind is LinkKind.NVLINK:
            raise ValueError(
                f"{word!r} is not a link nvidia-smi knows (X, NV#, PIX, PXB, PHB, NODE, SYS)"
            )
        return cls(kind=kind)

    def __str__(self) -> str:
        return f"NV{self.lanes}" if self.kind is LinkKind.NVLINK else self.kind.name


SYS = Link(kind=LinkKind.SYS)

Matrix = tuple[tuple[Link | None, ...], ...]
"""Links between the GPUs of a machine, symmetric; None on the diagonal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GPU:
    """One device: its index on the machine, and its known properties."""

    index: int
    uuid: str | None = None
    model: str | None = None
    numa: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NIC:
    """A network card and its path to each GPU, in order; `speed` in GB/s if known."""

    name: str
    attachment: tuple[Link, ...]
    speed: float | None = None


class Knowledge(Enum):
    """How far the link matrix of a machine can be trusted."""

    MEASURED = "measured"
    """Reported by the machine itself (nvidia-smi, NVML, a published matrix)."""
    ASSUMED = "assumed"
    """Taken from a well-known machine with this GPU model and count."""
    UNKNOWN = "unknown"
    """Nothing is known: every link counts as SYS."""


class Plugin(StrEnum):
    """The network plug-ins of NCCL that a site can name; NONE is NCCL's own transport."""

    NONE = "none"
    EFA = "efa"
    CXI = "cxi"
    TCPX = "tcpx"
    TCPXO = "tcpxo"
    GIB = "gib"
    UCX = "ucx"
    SPCX = "spcx"


class MeasuredRate(NamedTuple):
    """A fitted value between the ends that the measurements allow."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRates:
    """The bandwidths of a pool of equal machines, as its calibration `name` measured them.

    `measured` is the date, and the version of NCCL if it is known. The pool has machines of `gpus`
    GPUs of one `model`. `inside` is a share of the computed bandwidth of one host; `two` and `more`
    are GB/s of bus bandwidth among two hosts, and three and more, over `wire`; with `each` they are
    GB/s for each GPU of a host, as every GPU has a NIC of its own. None was not measured; no job
    was measured on more than `hosts`. `floor` and `hidden` are f and a of `training`, of the
    `workload` that was measured, None without one. `label` is KEY=VALUE of the nodes of the pool,
    "" if all nodes with such machines are of it.
    """

    name: str
    measured: str
    model: str | None
    gpus: int
    wire: str = ""
    inside: MeasuredRate | None = None
    two: MeasuredRate | None = None
    more: MeasuredRate | None = None
    each: bool = False
    hosts: int = 1
    workload: str = ""
    floor: MeasuredRate | None = None
    hidden: MeasuredRate | None = None
    label: str = ""

    def fits(self, machine: Machine) -> bool:
        """Whether a machine has as many GPUs of the same model as those of the pool."""
        return (machine.model, len(machine.gpus)) == (self.model, self.gpus)

    def labelled(self, labels: Mapping[str, object]) -> bool:
        """Whether a node with these labels may be of the pool."""
        key, _, value = self.label.partition("=")
        return not key or labels.get(key) == value

    def __str__(self) -> str:
        return f"measured {self.measured} (calibration {self.name})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """What NCCL may use on a machine, as its site says.

    `p2p` is False where GPUs do not reach each other's memory, over NVLink or PCIe
    (`NCCL_P2P_DISABLE=1`, some virtual machines), `gdr` where NICs do not reach that of GPUs
    (GPUDirect RDMA). `plugin` is NCCL's network plug-in, None if nothing is said. `pool` is the
    calibration of the machine.
    """

    p2p: bool = True
    gdr: bool = True
    plugin: Plugin | None = None
    pool: PoolRates | None = None

    def beside(self, other: Software) -> Software:
        """This software without what `other` lacks; the plug-in of `other` wins if it has one."""
        return Software(
            p2p=self.p2p and other.p2p,
            gdr=self.gdr and other.gdr,
            plugin=other.plugin or self.plugin,
            pool=self.pool,
        )


USUAL = Software()
"""The software of a machine about which the site says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The properties that decide the bandwidth of GPU sets: equal configurations share one table.

    `measured` are measured all-reduce bus bandwidths (GB/s) of some sets; they override the model.
    """

    model: str | None
    links: Matrix
    nvswitch: bool
    pcie_generation: int | None
    measured: tuple[tuple[GPUSet, float], ...] = ()
    software: Software = USUAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One server's GPUs and the links between them; never changes while it runs.

    `pcie_generation` is set only if a preset or the machine reports it, never guessed from the
    model. `nics_assumed` is the source of assumed NICs (`instance type p5.48xlarge`); it is empty
    if the NICs were reported by the machine or given by a person. `nics_plugin` is the network
    plug-in without which NCCL has no RDMA over them, by the instance type. `bandwidth` is a
    published matrix for display (GB/s); the solver does not use it. `measured_on` is the day and
    the version of NCCL of its `measured` sets, "" if nobody recorded them.
    """

    name: str
    gpus: tuple[GPU, ...]
    links: Matrix
    nics: tuple[NIC, ...] = ()
    nics_assumed: str = ""
    nics_plugin: Plugin | None = None
    nvswitch: bool = False
    pcie_generation: int | None = None
    knowledge: Knowledge = Knowledge.MEASURED
    measured: tuple[tuple[GPUSet, float], ...] = ()
    measured_on: str = ""
    bandwidth: tuple[tuple[float, ...], ...] | None = None
    software: Software = USUAL
    model: str | None = field(init=False, compare=False)
    """The GPU model that all GPUs share; None if unknown or mixed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", common_model(self.gpus))

    def __repr__(self) -> str:
        return f"<Machine {self.name}, {len(self.gpus)} x {self.model or 'GPU'}>"

    @property
    def everything(self) -> GPUSet:
        """All GPUs of the machine."""
        return GPUSet((1 << len(self.gpus)) - 1)

    @property
    def pool(self) -> PoolRates | None:
        """The calibration that counts on this machine."""
        pool = self.software.pool
        return pool if pool is not None and pool.fits(self) else None

    def link(self, gpu: int, other: int) -> Link:
        """The link between two different GPUs."""
        link = self.links[gpu][other]
        if link is None:
            raise ValueError(f"GPU {gpu} has no link to itself")
        return link

    def graph(self) -> nx.Graph[str]:
        """The machine as a networkx graph: GPUs and NICs, and the links between them.

        GPUs are `GPU0` and so on, with `kind` "gpu", `index`, and `model`, `uuid`, `numa` if
        known; NICs are `NIC0` and so on, with `kind` "nic", `name`, and `speed` (GB/s) if known.
        Links have `kind` in the words of nvidia-smi, and `lanes`. The graph has `name`, `nvswitch`,
        `knowledge`, and `nics_assumed` if its NICs are.
        """
        import networkx as nx

        graph: nx.Graph[str] = nx.Graph(
            name=self.name, nvswitch=self.nvswitch, knowledge=self.knowledge.value
        )
        if self.nics_assumed:
            graph.graph["nics_assumed"] = self.nics_assumed
        for gpu in self.gpus:
            facts = {"index": gpu.index, "model": gpu.model, "uuid": gpu.uuid, "numa": gpu.numa}
            graph.add_node(f"GPU{gpu.index}", kind="gpu", **_known(facts))
            for other in range(gpu.index):
                link = self.link(gpu.index, other)
                graph.add_edge(
                    f"GPU{other}", f"GPU{gpu.index}", kind=link.kind.name, lanes=link.lanes
                )
        for at, nic in enumerate(self.nics):
            graph.add_node(f"NIC{at}", kind="nic", **_known({"name": nic.name, "speed": nic.speed}))
            for gpu, link in zip(self.gpus, nic.attachment, strict=True):
                graph.add_edge(f"GPU{gpu.index}", f"NIC{at}", kind=link.kind.name, lanes=link.lanes)
        return graph

    @property
    def configuration(self) -> Configuration:
        """The part of the machine that decides bandwidth."""
        return Configuration(
            model=self.model,
            links=self.links,
            nvswitch=self.nvswitch,
            pcie_generation=self.pcie_generation,
            measured=self.measured,
            software=self.software,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGPUs:
    """The GPUs of a node as the node or its DRA driver publishes them.

    GPUs whose index is not published (lost, or not whole) are in the machine, and not `healthy`.
    `driver` is the DRA driver that serves them, if there is one; `shared` says why none of them can
    be placed by its links. `clique` is the NVLink domain of the GPUs, if all have the same.
    """

    machine: Machine
    healthy: GPUSet
    driver: str = ""
    clique: str | None = None
    shared: str | None = None
    product: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """A node's refusal of pods that do not tolerate it."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"

    def __str__(self) -> str:
        value = f"={self.value}" if self.value else ""
        return f"{self.key}{value}:{self.effect}"


ORDINARY = "nvidia.com/gpu"
"""The GPU resource of NVIDIA's device plugin."""

PUBLISHED = "aliyun.com/gpu"
"""The GPU resource of nodes whose topology ACK publishes."""

GPU_RESOURCES = (PUBLISHED, ORDINARY)
"""The names of GPUs in requests; on a node that offers both, the first is requested."""

TAINT = "arena-topo.io/topology"
"""The label and the taint of nodes reserved for placements of arena-topo."""


NOT_READY, CORDONED = "NotReady", "cordoned"
"""Why no pod can start on a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """The part of a node that a gang gets next: the head of the queue, or one that was stopped.

    `job` is that gang (`namespace/name`). `gpus` are its GPUs here, free or still in use, `unnamed`
    the number of those whose indexes are not known; `cpu` and `memory` as of `Node`. `before` is
    the node without this reservation, which may have others. `since` (Unix seconds) is when these
    GPUs were reserved; None if that is not known. `restart`: they wait for the next start of a gang
    that ran, and not for the head of the queue.
    """

    job: str
    gpus: GPUSet
    unnamed: int
    before: Node
    cpu: float = 0.0
    memory: int = 0
    since: float | None = None
    restart: bool = False


class Holding(NamedTuple):
    """The part of a node that a job has: the number of its GPUs, and those whose indexes are known.

    `job` is the job, or a pod without a job (`namespace/name`).
    """

    job: str
    size: int
    gpus: GPUSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine and its current use.

    `free` holds the GPUs that are healthy and not known to be in use. `unattributed` counts those
    of them that are in use by pods whose devices are unknown, or broken: the node still has a
    number of free GPUs, but no single GPU of it is certainly free. `allocatable` holds the GPUs
    that are not known to be broken, in use or not; `broken` of them are, with unknown indexes.
    `cpu` (cores) and `memory` (bytes) are the remainder of `all_cpu` and `all_memory`; None means
    not known, and not limited. `unavailable` says why no pod can start now (`CORDONED`,
    `NOT_READY`), `shared` why its GPUs can never be placed by topology (MIG, time slices).
    `network` is GB/s that the node itself can send to others, if that may be slower than the
    network between nodes. `rdma` is the resource by which pods get its RDMA devices, "" without
    one. `resource` is the resource that a pod requests for its GPUs; `driver` is the DRA driver
    that publishes them, if there is one: then pods claim them and `resource` is its name too, so
    that no gang mixes claimed GPUs with others. `dedicated`: only placements of arena-topo run here
    (labelled and tainted, or an ACK topology node), so devices may be injected. `foreign`: pods
    that arena-topo did not place hold GPUs. `reserved` GPUs are neither free nor in use; it is the
    last reservation, and `reservations` are all. `holders` are the jobs that have GPUs here, as far
    as they are known.
    """

    name: NodeName
    machine: Machine
    free: GPUSet
    unattributed: int = 0
    broken: int = 0
    allocatable: GPUSet | None = None
    cpu: float | None = None
    memory: int | None = None
    all_cpu: float | None = None
    all_memory: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unavailable: str | None = None
    shared: str | None = None
    resource: str = ORDINARY
    driver: str = ""
    dedicated: bool = False
    foreign: bool = False
    domains: tuple[str, ...] = ()
    network: float = float("inf")
    rdma: str = ""
    reserved: Reservation | None = None
    holders: tuple[Holding, ...] = ()

    @property
    def free_count(self) -> int:
        """The number of free GPUs."""
        return max(0, self.free.bit_count() - self.unattributed)

    @property
    def reserved_for(self) -> tuple[str, ...]:
        """The gangs for which idle GPUs, else GPUs in use, are reserved."""
        pairs = list(self.reservations())
        idle = [reservation for reservation, gpus in pairs if gpus]
        counted = idle or [reservation for reservation, _ in pairs]
        return tuple(dict.fromkeys(reservation.job for reservation in counted))

    def reservations(self) -> Iterator[tuple[Reservation, int]]:
        """Its reservations, and how many more GPUs would be free without each."""
        node = self
        while node.reserved is not None:
            before = node.reserved.before
            yield node.reserved, before.free_count - node.free_count
            node = before

    @property
    def reserved_gpus(self) -> GPUSet:
        """The reserved GPUs whose indexes are known, free or still in use."""
        gpus = 0
        for reservation, _ in self.reservations():
            gpus |= reservation.gpus
        return GPUSet(gpus)

    @property
    def reserved_unnamed(self) -> int:
        """The number of the other reserved GPUs."""
        return sum(reservation.unnamed for reservation, _ in self.reservations())

    @property
    def reserved_idle(self) -> GPUSet:
        """The GPUs that would be free if they were not reserved, where it is certain which.

        It is not where pods whose GPUs are unknown use some of those that are reserved.
        """
        gpus = GPUSet(self.unreserved.free & ~self.free)
        return gpus if count(gpus) <= self.reserved_count else GPUSet(0)

    @property
    def reserved_count(self) -> int:
        """The number of GPUs that would be free if they were not reserved."""
        return self.unreserved.free_count - self.free_count

    @property
    def healthy(self) -> GPUSet:
        """The GPUs that are not known to be broken, in use or not."""
        return self.machine.everything if self.allocatable is None else self.allocatable

    @property
    def pins(self) -> bool:
        """Whether pods here can get the very GPUs that were chosen for them.

        They can by claims, or where only arena-topo gives GPUs to pods; else the kubelet picks.
        """
        return bool(self.driver) or (self.dedicated and not self.foreign and not self.unattributed)

    @property
    def unreserved(self) -> Node:
        """The node as it would be if nobody waited."""
        node = self
        while node.reserved is not None:
            node = node.reserved.before
        return node

    def unreserved_by(self, job: str) -> Node:
        """The node without the reservations of one gang."""
        others = [other for other, _ in self.reservations() if other.job != job]
        node = self.unreserved
        for other in reversed(others):
            node = node.reserve(
                other.job,
                other.gpus,
                unnamed=other.unnamed,
                cpu=other.cpu,
                memory=other.memory,
                since=other.since,
                restart=other.restart,
            )
        return node

    def reserve(
        self,
        job: str,
        gpus: GPUSet,
        *,
        unnamed: int = 0,
        cpu: float = 0.0,
        memory: int = 0,
        since: float | None = None,
        restart: bool = False,
    ) -> Node:
        """The node with these GPUs, and some CPU and memory, reserved for a gang."""
        made = Reservation(
            job=job,
            gpus=gpus,
            unnamed=unnamed,
            before=self,
            cpu=cpu,
            memory=memory,
            since=since,
            restart=restart,
        )
        return replace(
            self,
            free=GPUSet(self.free & ~gpus),
            unattributed=self.unattributed + unnamed,
            cpu=None if self.cpu is None else max(0.0, self.cpu - cpu),
            memory=None if self.memory is None else max(0, self.memory - memory),
            reserved=made,
        )

    @property
    def healthy_count(self) -> int:
        """The number of GPUs that work, in use or not."""
        return max(0, count(self.healthy) - self.broken)

    @property
    def unhealthy_count(self) -> int:
        """The number of broken GPUs."""
        return len(self.machine.gpus) - self.healthy_count

    @property
    def in_use_unknown(self) -> int:
        """The number of GPUs in use whose indexes are unknown."""
        return max(0, min(self.unattributed, count(self.free)) - self.broken)

    def idle(self) -> Node:
        """The node without jobs, with all its GPUs healthy and the node available."""
        return replace(
            self,
            free=self.machine.everything,
            unattributed=0,
            broken=0,
            allocatable=None if self.allocatable is None else self.machine.everything,
            cpu=self.all_cpu,
            memory=self.all_memory,
            unavailable=None,
            foreign=False,
            reserved=None,
            holders=(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A level of the network between nodes, and GB/s of a node over it; None if not known."""

    name: str
    bandwidth: float | None = None


NODE_TIER = "node"
"""The word for the distance between GPUs of one node."""

BEYOND = "beyond"
"""The network between nodes that share no level."""

NVLINK = "nvlink"
"""The level whose domains NVLink joins."""

WITHOUT_RDMA = 1.25
"""GB/s of a node without RDMA where others offer it: 10 GbE, below every path inside a node."""


def idle_node(machine: Machine, domains: tuple[str, ...] = ()) -> Node:
    """A node that has this machine for arena-topo alone, with all of its GPUs free."""
    return Node(
        name=NodeName(machine.name),
        machine=machine,
        free=machine.everything,
        allocatable=machine.everything,
        # No other scheduler is known to give out these GPUs.
        dedicated=True,
        domains=domains,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """All nodes, and the network between them.

    `tiers` runs from coarse to near and matches `Node.domains`; `beyond` (GB/s) joins nodes that
    share no tier. A rate that nobody gave is None, and `guesses` says for such a level (a tier or
    `beyond`) what is known instead; they matter to jobs on several nodes. `unused` are levels of a
    fabric file that join no nodes. `notes` are remarks for a person, such as an invalid ConfigMap.
    `emulated`: the GPUs do not exist. `view` is the time (Unix seconds) of the published view; None
    if this was read from the nodes.
    """

    nodes: tuple[Node, ...]
    tiers: tuple[Tier, ...] = ()
    unused: frozenset[str] = frozenset()
    beyond: float | None = None
    notes: tuple[str, ...] = ()
    emulated: bool = False
    source: str = ""
    guesses: Mapping[str, str] = field(default_factory=dict)
    view: float | None = None

    def __repr__(self) -> str:
        gpus = sum(len(node.machine.gpus) for node in self.nodes)
        return f"<Cluster, {len(self.nodes)} nodes, {gpus} GPUs>"

    def unreserved(self) -> Cluster:
        """The cluster as it would be if no gang waited."""
        if all(node.reserved is None for node in self.nodes):
            return self
        return replace(self, nodes=tuple(node.unreserved for node in self.nodes))

    def idle(self) -> Cluster:
        """The cluster without any job, with every node and GPU healthy."""
        return replace(self, nodes=tuple(node.idle() for node in self.nodes))

    def graph(self) -> nx.Graph[str]:
        """The network as a networkx tree of nodes and domains.

        Nodes have their name, `kind` "node", `gpus`, `free`, and `model` if they share one. Domains
        are `TIER/DOMAIN`, with `kind` "domain", `tier` and `name`; the root is `/`, of `kind`
        "root". Domains and the root have `bandwidth` if it is known: GB/s between what they join.
        """
        import networkx as nx

        graph: nx.Graph[str] = nx.Graph()
        graph.add_node("/", kind="root", **_known({"bandwidth": self.beyond}))
        for node in self.nodes:
            above = "/"
            for tier, name in zip(self.tiers, node.domains, strict=True):
                domain = f"{tier.name}/{name}"
                rate = _known({"bandwidth": tier.bandwidth})
                graph.add_node(domain, kind="domain", tier=tier.name, name=name, **rate)
                graph.add_edge(above, domain)
                above = domain
            machine = node.machine
            facts = {"gpus": len(machine.gpus), "free": node.free_count, "model": machine.model}
            graph.add_node(node.name, kind="node", **_known(facts))
            graph.add_edge(above, node.name)
        return graph

    @property
    def distances(self) -> dict[str, int]:
        """The words for the distance between nodes, nearest first, each with its number."""
        levels = [NODE_TIER, *(tier.name for tier in reversed(self.tiers)), BEYOND]
        return {level: distance for distance, level in enumerate(levels)}

    def rate(self, level: str) -> float | None:
        """GB/s of a level, a tier or `beyond`; None if nobody gave it."""
        rates = {tier.name: tier.bandwidth for tier in self.tiers}
        return rates.get(level, self.beyond)


def in_pool(machine: Machine, pools: Iterable[PoolRates]) -> Machine:
    """The machine with the first of these calibrations that fits it."""
    pool = next((pool for pool in pools if pool.fits(machine)), None)
    return replace(machine, software=replace(machine.software, pool=pool))


def calibrated(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """The nodes, each machine with the measurements of all equal machines.

    Machines are equal if their configurations are, but for measured sets. The measurements of a
    machine itself take precedence, else the lowest of the same GPUs of another machine counts.
    """
    members = tuple(nodes)
    if not any(node.machine.measured for node in members):
        return members
    least: dict[Configuration, dict[GPUSet, float]] = {}
    days: dict[Configuration, str] = {}
    measured = {node.machine.model for node in members if node.machine.measured}
    kinds = [
        replace(node.machine.configuration, measured=()) if node.machine.model in measured else None
        for node in members
    ]
    for node, kind in zip(members, kinds, strict=True):
        if kind is not None and node.machine.measured:
            known = least.setdefault(kind, {})
            days.setdefault(kind, node.machine.measured_on)
            for gpus, value in node.machine.measured:
                known[gpus] = min(value, known.get(gpus, value))

    def together(node: Node, kind: Configuration | None) -> Node:
        known = least.get(kind) if kind is not None else None
        if known is None or kind is None:
            return node
        both = tuple(sorted({**known, **dict(node.machine.measured)}.items()))
        if both == node.machine.measured:
            return node
        day = node.machine.measured_on or days[kind]
        return replace(node, machine=replace(node.machine, measured=both, measured_on=day))

    return tuple(together(node, kind) for node, kind in zip(members, kinds, strict=True))


def _known(facts: Mapping[str, object]) -> dict[str, object]:
    """The values that are not None: GraphML cannot express None."""
    return {key: value for key, value in facts.items() if value is not None}


def gpu_set(indexes: Iterable[int]) -> GPUSet:
    """The set of these GPU indexes."""
    bits = 0
    for index in indexes:
        bits |= 1 << index
    return GPUSet(bits)


def members(gpus: GPUSet) -> tuple[int, ...]:
    """The indexes in a set, ascending."""
    return tuple([index for index in range(gpus.bit_length()) if gpus >> index & 1])


def count(gpus: GPUSet) -> int:
    """How many GPUs a set holds."""
    return gpus.bit_count()


def symmetric(size: int, pair: Callable[[int, int], Link]) -> Matrix:
    """The links of `size` GPUs; `pair(i, j)` is called once for each pair, i < j."""
    upper = [[pair(i, j) for j in range(i + 1, size)] for i in range(size)]
    return tuple(
        tuple(None if i == j else upper[min(i, j)][max(i, j) - min(i, j) - 1] for j in range(size))
        for i in range(size)
    )


def flat(size: int, link: Link = SYS) -> Matrix:
    """The links of `size` GPUs that are all the same."""
    return symmetric(size, lambda _i, _j: link)


MOST_GPUS = 64
"""More than any machine has on one PCIe fabric (32 today)."""


def common_model(gpus: Iterable[GPU]) -> str | None:
    """The model that these GPUs share; None if unknown or mixed."""
    models = {gpu.model for gpu in gpus}
    return models.pop() if len(models) == 1 else None


def behind_nvswitch(model: str | None, links: Matrix) -> bool:
    """Whether the GPUs must be behind an NVSwitch.

    nvidia-smi prints `NV18` for every pair behind a switch, so the lanes of a GPU summed over its
    peers exceed the lanes that the GPU has. For an unknown model the limit is the most lanes of any
    model, so that a direct mesh is never taken for a switch.
    """
    limit = LANES_PER_GPU.get(model or "", MOST_LANES)
    return any(
        sum(link.lanes for link in row if link is not None and link.kind is LinkKind.NVLINK) > limit
        for row in links
    )


@functools.lru_cache(maxsize=1 << 14)
def natural_key(name: str) -> tuple[str, str]:
    """A sort key that puts `node-2` before `node-10`."""
    return _NUMBER.sub(_by_length, name), name


_NUMBER = re.compile(r"\d+")


def _by_length(number: re.Match[str]) -> str:
    """A number without leading zeros, after its length: a character below all printable ones."""
    digits = number[0].lstrip("0")
    return chr(len(digits)) + digits
