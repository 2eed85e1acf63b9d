"""Which nodes are near which: network tiers from labels, a Kueue `Topology` or a fabric file.

    from_labels    what topograph, the GPU operator and the clouds write on nodes
    from_topology  the levels that a Kueue `Topology` lists
    from_file      the levels, and their bandwidths, that a person wrote down

Each gives a tree: every node has a path of domains, coarse to near. Where labels contradict each
other or are missing the tree is still one, and a note says what was made of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from arena_topo.errors import UnreadableTopology
from arena_topo.names import is_key, is_word
from arena_topo.topology import UNKNOWN_NETWORK, NodeName, Tier
from arena_topo.topology.fabricfile import BEYOND, RESERVED, FabricFile, Level
from arena_topo.topology.fields import FASTEST, SLOWEST, Field

Labels = Mapping[NodeName, Mapping[str, str]]
"""The labels of each node."""

Rates = Mapping[NodeName, float | None]
"""GB/s for each node, None where not known."""

CLIQUE = "nvidia.com/gpu.clique"
PRODUCT = "nvidia.com/gpu.product"
GKE_SUBBLOCK = "cloud.google.com/gce-topology-subblock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The network between nodes as a tree.

    `tiers` run from coarse to near and never get slower on the way; `beyond` (GB/s) joins nodes
    that share none. `domains` has one entry per tier for every node; within a tier, equal entries
    mean one domain. `assumed` names the tiers (and `beyond`) whose bandwidth is a default, not a
    number that somebody gave. `limits` are GB/s of the nodes whose own network is slower than those
    defaults. `notes` say in words what was missing or contradictory.
    """

    tiers: tuple[Tier, ...]
    beyond: float
    domains: Mapping[NodeName, tuple[str, ...]]
    assumed: frozenset[str]
    notes: tuple[str, ...]
    limits: Mapping[NodeName, float] = field(default_factory=dict)

    def joining(self, nodes: Iterable[NodeName]) -> Tier:
        """The nearest tier that all these nodes (two or more) share; `beyond` where none is."""
        found = Tier(name=BEYOND, bandwidth=self.beyond)
        for tier, *entries in zip(self.tiers, *(self.domains[node] for node in nodes), strict=True):
            if len(set(entries)) > 1:
                break
            found = tier
        return found


# Label families, best first: what looked at the fabric itself before what a cloud tells of it.

_Family = Mapping[str, tuple[str, ...]]
"""Levels from coarse to near, and the labels that each has had, the current one first."""

_TOPOGRAPH = "fabric.topograph.run/tier-"
_NVIDIA = "network.topology.nvidia.com/"
_EKS = "topology.k8s.aws/network-node-layer-"
_OCI = "oci.oraclecloud.com/"

# topograph sets no limit to its tiers; no network built has eight switches in a row.
_DEPTH = 8
# `core` is topograph's word for the third switch from the node.
_SWITCHES = ("leaf", "spine", "core", *(f"tier-{at}" for at in range(3, _DEPTH)))


def _switch_family(*nearest_first: str | tuple[str, ...]) -> _Family:
    labels = [(one,) if isinstance(one, str) else one for one in nearest_first]
    return dict(reversed([*zip(_SWITCHES, labels, strict=False)]))


_NETWORKS: tuple[_Family, ...] = (
    # NVIDIA/topograph v1, docs/reference/node-labels.md: tier 0 is closest to the node.
    _switch_family(*(f"{_TOPOGRAPH}{tier}" for tier in range(_DEPTH))),
    # The same, shortly before v1 (CHANGELOG.md).
    _switch_family(*(f"{_NVIDIA}tier-{tier}" for tier in range(_DEPTH))),
    # topograph before that: leaf, spine, core; in v0.1 block, spine, datacenter
    # (docs/engines/k8s.md of both).
    _switch_family(
        (f"{_NVIDIA}leaf", f"{_NVIDIA}block"),
        f"{_NVIDIA}spine",
        (f"{_NVIDIA}core", f"{_NVIDIA}datacenter"),
    ),
    # cloud.google.com/ai-hypercomputer/docs/workloads/schedule-gke-workloads-tas
    _switch_family(GKE_SUBBLOCK, "cloud.google.com/gce-topology-block"),
    # GoogleCloudPlatform/container-engine-accelerators, gpudirect-tcpxo/topology-scheduler,
    # label-nodes-daemon.py: the parts of physical_host, before GKE had labels of its own.
    _switch_family("topology.gke.io/rack", "topology.gke.io/cluster"),
    # docs.aws.amazon.com/eks/latest/userguide/ml-workload-topology.html: layer 1 is the top, and
    # only some instance types have a layer 4 below the third. It counts where all nodes have it.
    _switch_family(*(f"{_EKS}{layer}" for layer in (4, 3, 2, 1))),
    _switch_family(*(f"{_EKS}{layer}" for layer in (3, 2, 1))),
    # oracle-quickstart/oci-hpc-oke, docs/using-rdma-network-locality-when-running-workloads-on-
    # oke.md: local block, network block and HPC island are latency bands 0, 1 and 2.
    _switch_family(
        f"{_OCI}rdma.local_block_id", f"{_OCI}rdma.network_block_id", f"{_OCI}rdma.hpc_island_id"
    ),
    # What OKE writes where there is no RDMA topology (topograph, docs/reference/node-labels.md,
    # "Without Topograph").
    _switch_family(f"{_OCI}host.rack_id", f"{_OCI}host.network_block_id"),
    # Alibaba Cloud, ACK Lingjun clusters, "network topology-aware scheduling": a point of delivery
    # has several access switches (ASW), the first ones from a node.
    _switch_family("alibabacloud.com/asw-id", "alibabacloud.com/point-of-delivery"),
)

_PLACES: _Family = {
    # kubernetes.io/docs/reference/labels-annotations-taints, and what they were called before 1.17.
    "region": ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"),
    "zone": ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"),
}

_NVLINKS: tuple[str, ...] = (
    # NVIDIA/k8s-device-plugin, internal/lm/fabric.go: <cluster UUID>.<clique>, the GPUs that do
    # reach each other over NVLink; all others name what could be cut into cliques.
    CLIQUE,
    # topograph, docs/reference/node-labels.md. The sub-domain below it is a rack of the same
    # NVLink, no faster than the whole.
    "accelerator.topograph.run/domain",
    f"{_NVIDIA}accelerator",
    # SageMaker HyperPod on EKS: the UltraServer, an NVL72.
    "topology.k8s.aws/ultraserver-id",
    # oracle-quickstart/oci-hpc-oke, oci-hpc-oke-utils: on GB200 and GB300 only.
    f"{_OCI}host.gpu_memory_fabric_id",
)

_WORDS: Mapping[str, str] = {
    **{
        label: word
        for family in reversed(_NETWORKS)
        for word, labels in family.items()
        for label in labels
    },
    **{label: word for word, labels in _PLACES.items() for label in labels},
    **dict.fromkeys(_NVLINKS, "nvlink"),
}
"""The word for each label that is known."""

WORDS = frozenset({"node", "beyond", *_WORDS.values()})
"""Every word for a level that some cluster has by itself; --fabric may name others."""

_MACHINES = (
    "kubernetes.io/hostname",
    "cloud.google.com/gce-topology-host",
    "topology.gke.io/host",
    f"{_OCI}rdma.host_id",
)
"""Labels that name the machine itself, and so no level between machines."""

_UNREGISTERED = "00000000-0000-0000-0000-000000000000."
"""How the clique begins on a machine that belongs to no NVLink cluster (go-nvlib,
IsFabricAttached): not a cluster that all such machines share."""


def from_labels(
    labels: Labels, *, rdma: Rates | None = None, nvlink: Rates | None = None
) -> Fabric:
    """The fabric that the labels of these nodes tell; give the nodes that have GPUs, no others.

    One family of switch labels is used, the one that places most nodes, the best of equals; zone
    and region go above it, the NVLink domain below. `rdma` is what the RDMA NICs of each node
    reach together, GB/s; `nvlink` what a GPU of each node reaches over NVLink in other nodes, GB/s,
    where its model has such links (NVL72). A node that `nvlink` leaves out has none, whatever its
    labels say.
    """
    rows = _Rows(labels)
    levels = {**_stated(rows, _PLACES), **_switches(rows), **_nvlinks(rows, nvlink)}
    return _assemble(rows, levels, rate=_Rate(rows, rdma, nvlink))


def from_topology(
    topology: Mapping[str, Any],
    labels: Labels,
    *,
    rdma: Rates | None = None,
    nvlink: Rates | None = None,
) -> Fabric:
    """The fabric that a Kueue `Topology` describes; UnreadableTopology names what is wrong in it.

    v1alpha1, v1beta1 and v1beta2 agree on all that is read. A level is called by the word for its
    label where that is known, else by the end of the label; `kubernetes.io/hostname` is the node
    itself. Where no level is the NVLink domain and the speed of NVLink is known, it goes below all.
    `rdma` and `nvlink` as in `from_labels`.
    """
    rows = _Rows(labels)
    rate = _Rate(rows, rdma, nvlink)
    levels = listed(topology)
    below: dict[Level, _Column] = {}
    if all(level.name != "nvlink" for level in levels):
        found = _nvlinks(rows, nvlink)
        below = {level: one for level, one in found.items() if rate.reach(one) is not None}
    return _described(levels, rows, rate=rate, below=below)


def listed(topology: Mapping[str, Any]) -> tuple[Level, ...]:
    """The levels of a Kueue `Topology`, coarse to near, without the node itself.

    UnreadableTopology names what is wrong in it.
    """
    metadata = topology.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None

    def refuse(path: str, reason: str) -> NoReturn:
        raise UnreadableTopology(f"{path} {reason}", where=f"topology {name or '?'}")

    told = Field(topology, "", refuse)["spec"]["levels"]
    labels: list[str] = []
    for one in told.items():
        label = one["nodeLabel"].text(is_key, "the key of a node label")
        if label in labels:
            one["nodeLabel"].refuse(f"repeats {label}")
        labels.append(label)
    if not labels:
        told.refuse("has no entries")
    levels: list[Level] = []
    for label in labels:
        word = _WORDS.get(label, label.rpartition("/")[2])
        if word in RESERVED or any(level.name == word for level in levels):
            word = label
        if label not in _MACHINES:
            levels.append(Level(name=word, label=label))
    return tuple(levels)


def from_file(
    file: FabricFile, labels: Labels, *, rdma: Rates | None = None, nvlink: Rates | None = None
) -> Fabric:
    """The fabric that a file describes.

    Bandwidths left out are defaults within what the others allow. `rdma` and `nvlink` as in
    `from_labels`.
    """
    rows = _Rows(labels)
    rate = _Rate(rows, rdma, nvlink)
    return _described(file.levels or (), rows, rate=rate, beyond=file.beyond)


# Labels as columns: one list per label is several times faster than one object per node.

_Column = list[str | None]

_Value = str | tuple[int] | tuple[int, str]
"""A domain before it has its final name: what a label says; the row of a node that is alone; or
the domain, by level and label, whose nodes are silent together."""

_Path = tuple[_Value, ...]
"""A domain, after those that hold it."""


class _Rows:
    """The nodes in the order of their names, and what each of them says."""

    def __init__(self, labels: Labels) -> None:
        self.nodes = sorted(labels)
        self._labels = [labels[node] for node in self.nodes]
        # Few of the labels that are known are in use: one pass finds the others.
        self._absent = set(_WORDS)
        for one in self._labels:
            if not one.keys().isdisjoint(self._absent):
                self._absent -= one.keys()

    def column(self, *keys: str) -> _Column | None:
        """What every node says under the first of these labels that it has; None if none does."""
        column: _Column | None = None
        for key in keys:
            if key in self._absent:
                continue
            # Dumps come from anywhere: what the API would not let in counts as nothing.
            said: Sequence[object] = [labels.get(key) for labels in self._labels]
            texts = [one if isinstance(one, str) and is_word(one) else None for one in said]
            if key == CLIQUE:
                texts = [None if one and one.startswith(_UNREGISTERED) else one for one in texts]
            column = [a or b for a, b in zip(column, texts, strict=True)] if column else texts
        return column if column is not None and any(column) else None


def _stated(rows: _Rows, family: _Family) -> dict[Level, _Column]:
    """The levels of a family that some node states."""
    return {
        Level(name=word, label=labels[0]): column
        for word, labels in family.items()
        if (column := rows.column(*labels)) is not None
    }


def _switches(rows: _Rows) -> dict[Level, _Column]:
    """The family that places most nodes at its nearest level, then at any; the best of equals."""
    best: dict[Level, _Column] = {}
    most = (0, 0)
    for family in _NETWORKS:
        found = _stated(rows, family)
        nearest = found.get(Level(name="leaf", label=family["leaf"][0]), [])
        placed = sum(map(any, zip(*found.values(), strict=True)))
        if (count := (len(nearest) - nearest.count(None), placed)) > most:
            best, most = found, count
        if most[0] == len(rows.nodes):
            break
    return best


def _nvlinks(rows: _Rows, nvlink: Rates | None) -> dict[Level, _Column]:
    """The NVLink domains by the best label that some node has.

    topograph takes the capacity block for the accelerator domain of every AWS node (provider aws),
    so what a node says whose GPUs have no NVLink to others is left out.
    """
    blocks = rows.column(GKE_SUBBLOCK) or [None] * len(rows.nodes)
    for label in _NVLINKS:
        column = rows.column(label) or []
        if nvlink is not None:
            column = [
                one if node in nvlink else None
                for one, node in zip(column, rows.nodes, strict=False)
            ]
        # topograph takes the sub-block for the accelerator domain of every GKE node (provider
        # gcp), NVLink or not; there only the clique can be believed.
        if any(one and one != block for one, block in zip(column, blocks, strict=False)):
            return {Level(name="nvlink", label=label): column}
    return {}


# The tree


def _described(
    levels: Sequence[Level],
    rows: _Rows,
    *,
    rate: _Rate,
    beyond: float | None = None,
    below: Mapping[Level, _Column] | None = None,
) -> Fabric:
    """The fabric of levels that somebody listed; one that serves no purpose is mentioned.

    Such a level keeps its place until the bandwidths of its neighbours are known. `below` are
    levels nearer than those listed.
    """
    silent: _Column = [None] * len(rows.nodes)
    columns = {level: rows.column(level.label) or silent for level in levels}
    fabric = _assemble(rows, {**columns, **(below or {})}, rate=rate, beyond=beyond)
    used = {tier.name for tier in fabric.tiers}
    unused = [
        f"{'no node has' if column is silent else 'no two nodes share'} the label {level.label}: "
        f"the level {level.name} is not used"
        for level, column in columns.items()
        if level.name not in used and len(rows.nodes) > 1
    ]
    return replace(fabric, notes=(*unused, *fabric.notes))


def _assemble(
    rows: _Rows,
    levels: Mapping[Level, _Column],
    *,
    rate: _Rate,
    beyond: float | None = None,
) -> Fabric:
    tiers, edge, assumed = rate.tiers(levels, beyond)
    told = {
        tier: (level, column)
        for tier, (level, column) in zip(tiers, levels.items(), strict=True)
        if any(column)
    }
    tree = _Tree(rows, list(told.values()))
    used = tuple(told)[: tree.depth]
    guessed = assumed & {BEYOND, *(tier.name for tier in used)}
    given = beyond is not None or any(level.bandwidth is not None for level in levels)
    return Fabric(
        tiers=used,
        beyond=edge,
        domains=tree.domains,
        assumed=guessed,
        notes=tuple(tree.notes),
        limits={} if given else rate.limits(used, tree.domains, guessed),
    )


class _Tree:
    """Columns of labels made into domains, and what to say of them.

    A domain is its whole path: leaf 1 of spine a is not leaf 1 of spine b. No two of a level have
    one name, as labels have no `(` and no `/`. `depth` counts the levels down to where every node
    is alone.
    """

    def __init__(self, rows: _Rows, told: Sequence[tuple[Level, _Column]]) -> None:
        self._rows = rows
        self._words = [level.name for level, _ in told]
        self.notes: list[str] = []
        columns = [
            [(row,) if one is None else one for row, one in enumerate(column)]
            for column in _filled([column for _, column in told])
        ]
        said = list(zip(*columns, strict=True)) if columns else [()] * len(rows.nodes)
        # Nodes of one nearest domain all say the same: from here on one of them stands for all.
        stands: dict[_Path, NodeName] = {}
        for path, node in zip(said, rows.nodes, strict=True):
            stands.setdefault(path, node)
        titles: dict[_Path, str] = {}
        self.depth = 0
        for at, (level, column) in enumerate(told):
            first: dict[_Path, NodeName] = {}
            for path, node in stands.items():
                first.setdefault(path[: at + 1], node)
            if len(first) == len(rows.nodes):
                break
            homes: dict[_Value, list[_Path]] = {}
            for domain in first:
                homes.setdefault(domain[-1], []).append(domain)
            self._mention_torn(at, homes, first)
            self._mention_gaps(level, column, columns[at])
            for value, domains in homes.items():
                for domain in domains:
                    above = f"{titles[domain[:-1]]}/" if domains[1:] else ""
                    titles[domain] = above + self._title(value)
            self.depth = at + 1
        depths = range(1, self.depth + 1)
        named = {path: tuple(titles[path[:depth]] for depth in depths) for path in stands}
        self.domains = dict(zip(rows.nodes, map(named.__getitem__, said), strict=True))

    def _title(self, value: _Value) -> str:
        if isinstance(value, str):
            return value
        at, *silent = value
        return f"({self._words[at]} {silent[0]})" if silent else f"({self._rows.nodes[at]})"

    def _mention_torn(
        self, at: int, homes: Mapping[_Value, Sequence[_Path]], first: Mapping[_Path, NodeName]
    ) -> None:
        """Domains of one name under parents of several; parents torn themselves do not count."""
        torn: dict[str, dict[str, _Path]] = {}
        for value, domains in homes.items():
            if isinstance(value, str) and domains[1:]:
                stated = {one[-2]: one for one in domains if isinstance(one[-2], str)}
                if len(stated) > 1:
                    torn[value] = stated
        if torn:
            name, *others = sorted(torn)
            both = " and ".join(
                f"{above} ({first[domain]})" for above, domain in sorted(torn[name].items())[:2]
            )
            more = f", like {_named(others)}" if others else ""
            self.notes.append(
                f"{self._words[at]} {name} is under {self._words[at - 1]} {both}{more}:"
                " each counts by itself"
            )

    def _mention_gaps(self, level: Level, column: _Column, values: Sequence[_Value]) -> None:
        if None not in column:
            return
        silent = [row for row, said in enumerate(column) if said is None]
        if level.name == "nvlink":
            # Most machines have no NVLink to other nodes; those of a kind that has should say so.
            products = self._rows.column(PRODUCT) or [None] * len(column)
            joined = {product for product, said in zip(products, column, strict=True) if said}
            silent = [row for row in silent if products[row] in joined]
        for kind, outcome in (
            (tuple, "near no other node there"),
            (str, "taken from the nodes beside"),
        ):
            rows = [row for row in silent if isinstance(values[row], kind)]
            if rows:
                names = [self._rows.nodes[row] for row in rows]
                who = (
                    f"{len(rows)} nodes ({_named(names)}) do"
                    if names[1:]
                    else f"node {names[0]} does"
                )
                self.notes.append(f"{who} not name the {level.name} ({level.label}): {outcome}")


_MOST_NAMES = 10
"""Names that one note lists."""


def _named(names: Sequence[str]) -> str:
    """The first of these names, and how many more there are."""
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _filled(columns: Sequence[_Column]) -> list[list[_Value | None]]:
    """The columns with the gaps closed that nearer levels close.

    Nodes that name one leaf are on one leaf, whether or not each also names its spine: a gap is
    filled with what the others of the next nearer domain agree on, or of the nearest that does
    agree; where all of them are silent, with that domain itself. Else it stays.
    """
    filled: list[list[_Value | None]] = [list(column) for column in columns]
    for at in range(len(columns) - 2, -1, -1):
        if None not in filled[at]:
            continue
        for nearer in filled[at + 1 :]:
            if None in filled[at]:
                filled[at] = _inferred(filled[at], nearer)
        filled[at] = [
            above or ((at + 1, below) if isinstance(below, str) else below)
            for above, below in zip(filled[at], filled[at + 1], strict=True)
        ]
    return filled


def _inferred(
    column: Sequence[_Value | None], nearer: Sequence[_Value | None]
) -> list[_Value | None]:
    agreed: dict[_Value | None, set[_Value]] = {}
    for above, below in set(zip(column, nearer, strict=True)):
        if above is not None and below is not None:
            agreed.setdefault(below, set()).add(above)
    instead = {below: found.pop() for below, found in agreed.items() if len(found) == 1}
    return [above or instead.get(below) for above, below in zip(column, nearer, strict=True)]


# Bandwidths


class _Rate:
    """What a tier is worth where nobody says, GB/s.

    The fastest NICs decide, and slower nodes are limited by themselves (`limits`). A limit would
    also hold on tiers whose bandwidth a person gave, so where one is given there are none, and the
    slowest NICs decide for the others. Oversubscription is not known, so coarser switches are taken
    to be as fast as near ones. RDMA ends at the zone ("EFA traffic can't cross Availability Zones",
    AWS, EFA limitations; the RDMA networks of GKE and OKE are zonal too), so past it nothing is
    known.
    """

    def __init__(self, rows: _Rows, rdma: Rates | None, nvlink: Rates | None) -> None:
        self._nodes = rows.nodes
        self._nvlink = nvlink or {}
        rates = {node: _known(rdma.get(node)) for node in rows.nodes} if rdma else {}
        self._own = {node: max(UNKNOWN_NETWORK, rate or 0) for node, rate in rates.items()}
        self._fastest = max(self._own.values(), default=UNKNOWN_NETWORK)

    def limits(
        self,
        tiers: Sequence[Tier],
        domains: Mapping[NodeName, tuple[str, ...]],
        assumed: frozenset[str],
    ) -> dict[NodeName, float]:
        """GB/s of the nodes that are slower than the fastest.

        None for nodes that reach others over NVLink of known speed, which no NIC slows down; such
        machines are sold with RDMA (NVIDIA, DGX GB200 data sheet: four ConnectX-7 a tray), whether
        or not the node says so.
        """
        slow = {node: rate for node, rate in self._own.items() if rate < self._fastest}
        for at, tier in enumerate(tiers):
            if slow and tier.name == "nvlink" and tier.name not in assumed:
                sizes = Counter(path[at] for path in domains.values())
                slow = {node: rate for node, rate in slow.items() if sizes[domains[node][at]] == 1}
        return slow

    def reach(self, column: _Column) -> float | None:
        """GB/s over NVLink between the nodes that name a domain of it: of the slowest."""
        rates = [
            _known(self._nvlink.get(node))
            for node, said in zip(self._nodes, column, strict=True)
            if said
        ]
        known = [rate for rate in rates if rate is not None]
        return min(known) if known and len(known) == len(rates) else None

    def tiers(
        self, levels: Mapping[Level, _Column], beyond: float | None
    ) -> tuple[list[Tier], float, frozenset[str]]:
        """A tier for each level, and `beyond`: what is given, and defaults that fit between.

        What is given must not grow outward. The last are the names of those that are defaults.
        """
        names = [level.name for level in levels]
        far = names.index("region") + 1 if "region" in names else 0
        local = not {"region", "zone"} & set(names)
        given = [beyond, *(level.bandwidth for level in levels)]
        network = self._fastest
        if any(one is not None for one in given):
            network = min(self._own.values(), default=UNKNOWN_NETWORK)
        default = [network if local else UNKNOWN_NETWORK]
        default += [UNKNOWN_NETWORK if at < far else network for at in range(len(names))]
        known = {name for name, one in zip([BEYOND, *names], given, strict=True) if one is not None}
        for at, (level, column) in enumerate(levels.items(), start=1):
            if level.name == "nvlink" and (reach := self.reach(column)) is not None:
                default[at] = reach
                known.add(level.name)
        rates: list[float] = []
        for at, rate in enumerate(given):
            if rate is None:
                nearer = [one for one in given[at:] if one is not None]
                rates.append(min([max([default[at], *rates[-1:]]), *nearer]))
            else:
                rates.append(rate)
        edge, *rest = rates
        tiers = [Tier(name=n, bandwidth=r) for n, r in zip(names, rest, strict=True)]
        return tiers, edge, frozenset({BEYOND, *names} - known)


def _known(rate: float | None) -> float | None:
    return rate if rate is not None and SLOWEST <= rate <= FASTEST else None
