"""Link, GPU, Machine, Node, Cluster: the one graph that everything else agrees on.

Readers (`nvidia`, `published`, `presets`) turn what machines say into these values; the solver and
the screens only ever see them. What a server *is* (`Machine`, which never changes while it runs)
is kept apart from what may be used of it *now* (`Node`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, NewType

from arena_topo.topology.models import LANES_PER_GPU, MOST_LANES

if TYPE_CHECKING:
    import networkx as nx

GPUSet = NewType("GPUSet", int)
"""GPUs of one machine as bits: bit i is GPU i."""

NodeName = NewType("NodeName", str)


class LinkKind(IntEnum):
    """How two devices of one machine reach each other, worst first; the words of nvidia-smi."""

    SYS = 0
    NODE = 1
    PHB = 2
    PXB = 3
    PIX = 4
    NVLINK = 5


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Link:
    """What joins two devices: its kind, and for NVLink how many lanes are bonded."""

    kind: LinkKind
    lanes: int = 1

    @classmethod
    def parse(cls, word: str) -> Link:
        """Read one cell of nvidia-smi's matrix (`NV2`, `PIX`, `SOC`); ValueError if it is none."""
        bonded = re.fullmatch(r"NV(\d{1,3})", word)
        if bonded and int(bonded[1]) > 0:
            return cls(kind=LinkKind.NVLINK, lanes=int(bonded[1]))
        # SOC is what drivers before 2018 called a path over the link between sockets.
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
    """One device: its index on the machine, and what is known of it."""

    index: int
    uuid: str | None = None
    model: str | None = None
    numa: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NIC:
    """A network card and how each GPU, in order, reaches it; `speed` in GB/s where known."""

    name: str
    attachment: tuple[Link, ...]
    speed: float | None = None


class Knowledge(Enum):
    """How far the link matrix of a machine can be trusted."""

    MEASURED = "measured"
    """The machine itself said so (nvidia-smi, NVML, a published matrix)."""
    ASSUMED = "assumed"
    """Its GPU model and count match a well-known machine."""
    UNKNOWN = "unknown"
    """Nothing is known: every link counts as SYS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What decides the bandwidth of GPU sets: machines with equal configurations share one table.

    `measured` are all-reduce bus bandwidths (GB/s) that somebody measured for some sets; they
    override what the model computes.
    """

    model: str | None
    links: Matrix
    nvswitch: bool
    pcie_generation: int | None
    measured: tuple[tuple[GPUSet, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One server's GPUs and the links between them; never changes while it runs.

    `pcie_generation` is set only where a preset or the machine says so, not guessed from the model.
    `nics_assumed` says what the NICs are assumed from (`instance type p5.48xlarge`) where neither
    the machine nor a person told them.
    `bandwidth` is a matrix that somebody published for display (GB/s); the solver does not use it.
    """

    name: str
    gpus: tuple[GPU, ...]
    links: Matrix
    nics: tuple[NIC, ...] = ()
    nics_assumed: str = ""
    nvswitch: bool = False
    pcie_generation: int | None = None
    knowledge: Knowledge = Knowledge.MEASURED
    measured: tuple[tuple[GPUSet, float], ...] = ()
    bandwidth: tuple[tuple[float, ...], ...] | None = None

    def __repr__(self) -> str:
        return f"<Machine {self.name}, {len(self.gpus)} x {self.model or 'GPU'}>"

    @property
    def model(self) -> str | None:
        """The GPU model that all GPUs share; None if unknown or mixed."""
        return common_model(self.gpus)

    @property
    def everything(self) -> GPUSet:
        """All GPUs of the machine."""
        return GPUSet((1 << len(self.gpus)) - 1)

    def link(self, one: int, other: int) -> Link:
        """The link between two different GPUs."""
        found = self.links[one][other]
        if found is None:
            raise ValueError(f"GPU {one} has no link to itself")
        return found

    def graph(self) -> nx.Graph[str]:
        """The machine as a networkx graph: GPUs and NICs, and the links between them.

        GPUs are `GPU0` and so on, with `kind` "gpu", `index`, and `model`, `uuid`, `numa` where
        known; NICs are `NIC0` and so on, with `kind` "nic", `name`, and `speed` (GB/s) where known.
        Links have `kind` in the words of nvidia-smi, and `lanes`. The graph has `name`, `nvswitch`,
        `knowledge`, and `nics_assumed` where its NICs are.
        """
        import networkx as nx

        graph: nx.Graph[str] = nx.Graph(
            name=self.name, nvswitch=self.nvswitch, knowledge=self.knowledge.value
        )
        if self.nics_assumed:
            graph.graph["nics_assumed"] = self.nics_assumed
        for gpu in self.gpus:
            told = {"index": gpu.index, "model": gpu.model, "uuid": gpu.uuid, "numa": gpu.numa}
            graph.add_node(f"GPU{gpu.index}", kind="gpu", **_known(told))
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
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGPUs:
    """The GPUs of a node as it, or its DRA driver, publishes them.

    GPUs whose number nobody publishes (lost, or not whole) are in the machine, and not `healthy`.
    `driver` is the DRA driver that serves them, if one does; `shared` says why none of them can be
    placed by its links. `clique` is the NVLink domain that they are in, where all say the same.
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
"""What a GPU is called in requests; a node that offers both is asked for the first."""

TAINT = "arena-topo.io/topology"
"""The label and the taint of nodes that only placements of arena-topo use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What may be used of one machine now.

    `free` holds the GPUs that are healthy and not known to be in use. `unattributed` says how many
    of those are in use all the same, by pods that do not say which devices they have: a node with
    unattributed GPUs is counted, but never treated as known to be free.
    `allocatable` holds the healthy GPUs, whoever uses them. `cpu` (cores) and `memory` (bytes)
    are what is left of `all_cpu` and `all_memory`; None means not known, and not limited.
    `unavailable` says why no pod can start now (cordoned, not ready), `shared` why its GPUs can
    never be placed by topology (MIG, time slices).
    `network` is GB/s that the node itself can send to others, where it may be slower than what
    joins them. `rdma` is the resource by which pods get its RDMA devices, "" where it offers none.
    `resource` is what a pod asks for to get its GPUs; `driver` is the DRA driver that publishes
    them, where one does: then pods claim them and `resource` is its name too, so that no gang
    mixes claimed GPUs with others.
    `dedicated`: only placements of arena-topo run here (labelled and tainted, or an ACK topology
    node), so devices may be injected. `foreign`: pods that arena-topo did not place hold GPUs.
    """

    name: NodeName
    machine: Machine
    free: GPUSet
    unattributed: int = 0
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

    @property
    def free_count(self) -> int:
        """How many GPUs are free."""
        return max(0, count(self.free) - self.unattributed)

    @property
    def healthy(self) -> GPUSet:
        """The GPUs that work, whoever uses them."""
        return self.machine.everything if self.allocatable is None else self.allocatable

    def idle(self) -> Node:
        """The node without jobs, it and all its GPUs well."""
        return replace(
            self,
            free=self.machine.everything,
            unattributed=0,
            cpu=self.all_cpu,
            memory=self.all_memory,
            unavailable=None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A level of the network between nodes, and its all-reduce bandwidth in GB/s."""

    name: str
    bandwidth: float


BEYOND = "beyond"
"""What joins nodes that share no level of the network."""

UNKNOWN_NETWORK = 1.25
"""GB/s between nodes where nothing is known: 10 GbE, below every path inside a node, so that an
unknown network never draws a job apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """All nodes, and the network between them.

    `tiers` runs from coarse to near and matches `Node.domains`; `beyond` (GB/s) joins nodes that
    share no tier. `unused` are levels that a person named and that join no nodes. `notes` are
    things worth telling a person, such as a ConfigMap that made no sense. `guesses` say what the
    bandwidth of a tier (or of `beyond`) rests on where nobody gave it; they matter to jobs on
    several nodes. `emulated`: the GPUs do not exist. `view` is when (Unix seconds) somebody else
    looked at it for us; None where this was read from the nodes.
    """

    nodes: tuple[Node, ...]
    tiers: tuple[Tier, ...] = ()
    unused: frozenset[str] = frozenset()
    beyond: float = UNKNOWN_NETWORK
    notes: tuple[str, ...] = ()
    emulated: bool = False
    source: str = ""
    guesses: Mapping[str, str] = field(default_factory=dict)
    view: float | None = None

    def __repr__(self) -> str:
        gpus = sum(len(node.machine.gpus) for node in self.nodes)
        return f"<Cluster, {len(self.nodes)} nodes, {gpus} GPUs>"

    def idle(self) -> Cluster:
        """The cluster as if every job had ended, and every node and GPU were well."""
        return replace(self, nodes=tuple(node.idle() for node in self.nodes))

    def graph(self) -> nx.Graph[str]:
        """The network as a networkx tree: nodes, the domains that join them, and what joins those.

        Nodes have their name, `kind` "node", `gpus`, `free`, and `model` where they share one.
        Domains are `TIER/DOMAIN`, with `kind` "domain", `tier` and `name`; the root is `/`, of
        `kind` "root". All but nodes have `bandwidth`: GB/s of an all-reduce between what they join.
        """
        import networkx as nx

        graph: nx.Graph[str] = nx.Graph()
        graph.add_node("/", kind="root", bandwidth=self.beyond)
        for node in self.nodes:
            above = "/"
            for tier, name in zip(self.tiers, node.domains, strict=True):
                domain = f"{tier.name}/{name}"
                graph.add_node(
                    domain, kind="domain", tier=tier.name, name=name, bandwidth=tier.bandwidth
                )
                graph.add_edge(above, domain)
                above = domain
            told = {"gpus": len(node.machine.gpus), "free": node.free_count}
            graph.add_node(node.name, kind="node", **told, **_known({"model": node.machine.model}))
            graph.add_edge(above, node.name)
        return graph

    def guessed(self, level: str) -> bool:
        """Whether nobody gave the bandwidth of a level: of a tier, or of `beyond`."""
        unknown = level == BEYOND and self.beyond == UNKNOWN_NETWORK
        return unknown or level in self.guesses

    def assumed(self, bandwidth: float, level: str) -> bool:
        """Whether a gang whose nodes meet at this level has its bandwidth from a guess.

        `level` is a tier, `beyond`, or `node`, where no network limits the gang.
        """
        rates = {tier.name: tier.bandwidth for tier in self.tiers} | {BEYOND: self.beyond}
        return level in rates and self.guessed(level) and bandwidth >= rates[level]


def calibrated(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """The nodes, each machine with what was measured of all machines like it.

    Alike are machines of one configuration but for measured sets. What was measured of a machine
    itself counts first, else the least that was measured of the same GPUs of another.
    """
    some = tuple(nodes)
    if not any(node.machine.measured for node in some):
        return some
    least: dict[Configuration, dict[GPUSet, float]] = {}
    measured = {node.machine.model for node in some if node.machine.measured}
    kinds = [
        replace(node.machine.configuration, measured=()) if node.machine.model in measured else None
        for node in some
    ]
    for node, kind in zip(some, kinds, strict=True):
        if kind is not None and node.machine.measured:
            known = least.setdefault(kind, {})
            for gpus, value in node.machine.measured:
                known[gpus] = min(value, known.get(gpus, value))

    def together(node: Node, kind: Configuration | None) -> Node:
        known = least.get(kind) if kind is not None else None
        if known is None:
            return node
        both = tuple(sorted({**known, **dict(node.machine.measured)}.items()))
        if both == node.machine.measured:
            return node
        return replace(node, machine=replace(node.machine, measured=both))

    return tuple(together(node, kind) for node, kind in zip(some, kinds, strict=True))


def _known(told: Mapping[str, object]) -> dict[str, object]:
    """What is not None: GraphML has no word for that."""
    return {key: value for key, value in told.items() if value is not None}


def gpu_set(indexes: Iterable[int]) -> GPUSet:
    """The set of these GPU indexes."""
    bits = 0
    for index in indexes:
        bits |= 1 << index
    return GPUSet(bits)


def members(gpus: GPUSet) -> tuple[int, ...]:
    """The indexes in a set, ascending."""
    return tuple(_bits(gpus))


def _bits(gpus: int) -> Iterator[int]:
    while gpus:
        low = gpus & -gpus
        yield low.bit_length() - 1
        gpus ^= low


def count(gpus: GPUSet) -> int:
    """How many GPUs a set holds."""
    return gpus.bit_count()


def symmetric(size: int, pair: Callable[[int, int], Link]) -> Matrix:
    """The links of `size` GPUs, `pair(i, j)` being asked once for each pair, i < j."""
    upper = [[pair(i, j) for j in range(i + 1, size)] for i in range(size)]
    return tuple(
        tuple(None if i == j else upper[min(i, j)][max(i, j) - min(i, j) - 1] for j in range(size))
        for i in range(size)
    )


def flat(size: int, link: Link = SYS) -> Matrix:
    """The links of `size` GPUs where all are the same."""
    return symmetric(size, lambda _i, _j: link)


MOST_GPUS = 64
"""More than any machine has on one PCIe fabric (32 today)."""


def common_model(gpus: Iterable[GPU]) -> str | None:
    """The model that these GPUs share; None if unknown or mixed."""
    models = {gpu.model for gpu in gpus}
    return models.pop() if len(models) == 1 else None


def behind_nvswitch(model: str | None, links: Matrix) -> bool:
    """Whether the GPUs must hang on an NVSwitch.

    nvidia-smi prints `NV18` for every pair behind a switch, so the lanes of a GPU summed over its
    peers exceed the lanes that the GPU has. For an unknown model the most lanes of any model is
    the limit, so that a direct mesh is never taken for a switch.
    """
    limit = LANES_PER_GPU.get(model or "", MOST_LANES)
    return any(
        sum(link.lanes for link in row if link is not None and link.kind is LinkKind.NVLINK) > limit
        for row in links
    )


@functools.lru_cache(maxsize=1 << 14)
def natural(name: str) -> tuple[tuple[str | tuple[int, str], ...], str]:
    """A sort key by which `node-2` comes before `node-10`."""
    # Texts and numbers alternate, so keys never compare one with the other; a number without its
    # zeros in front is compared by its length first, however long it is.
    parts: list[str | tuple[int, str]] = [*re.split(r"(\d+)", name)]
    for at in range(1, len(parts), 2):
        digits = str(parts[at]).lstrip("0")
        parts[at] = len(digits), digits
    return tuple(parts), name
