"""The network between nodes as a tree: from labels, a Kueue `Topology` or a fabric file.

    from_labels    labels by topograph, the GPU operator and the clouds, or the labels
                   that a Kueue `Topology` lists
    from_file      the levels, and their bandwidths, in a file written by a person

Each gives a tree: every node has a path of domains, coarse to near. A fabric file has this form
(docs/fabric-file.md):

    levels:
      - name: spine
        label: example.com/spine
        bandwidthGBps: 25
      - name: leaf
        label: example.com/leaf
        bandwidthGBps: 50
    beyondGBps: 3.1
    nics:
      - label: example.com/pool
        value: training
        nics: 4x200G
        near: [[0, 1], [2, 3], [4, 5], [6, 7]]
    software:
      - label: example.com/pool
        value: training
        gdr: false
        plugin: cxi
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, Any, NoReturn

import msgspec

from arena_topo.errors import InvalidJob, UsageError, near
from arena_topo.names import is_key, is_label_value, is_word
from arena_topo.topology import (
    BEYOND,
    MOST_GPUS,
    NODE_TIER,
    NVLINK,
    USUAL,
    WITHOUT_RDMA,
    Cluster,
    NodeName,
    Plugin,
    PoolRates,
    Software,
    Tier,
    gpu_set,
)
from arena_topo.topology.decoding import Refuse, check_length, decode_or_refuse
from arena_topo.topology.documents import Rate
from arena_topo.topology.nics import NICs, parse_nics

RESERVED_LEVELS = frozenset({NODE_TIER, BEYOND})
"""Words that no level may have as its name: they mean less and more than any level."""

MAX_FABRIC_LEVELS = 16
"""The limit of levels: from zones down to hosts there are half as many, the limit of Kueue
(TopologySpec.levels)."""

Labels = Mapping[NodeName, Mapping[str, str]]
"""The labels of each node."""

CLIQUE = "nvidia.com/gpu.clique"
GKE_SUBBLOCK = "cloud.google.com/gce-topology-subblock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The network between nodes as a tree.

    `tiers` run from coarse to near and never get slower on the way; `beyond` (GB/s) joins nodes
    that share none. A rate that is not known is None. `domains` has one entry per tier for every
    node; within a tier, equal entries mean one domain. `limits` are GB/s of the nodes whose own
    network is slower than that of others. `notes` are sentences about missing or contradictory
    data.
    """

    tiers: tuple[Tier, ...]
    beyond: float | None
    domains: Mapping[NodeName, tuple[str, ...]]
    notes: tuple[str, ...]
    limits: Mapping[NodeName, float] = field(default_factory=dict)


# The fabric file


class Level(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One level of a fabric: its name, its node label, and GB/s if given."""

    name: str
    label: str
    bandwidth: Rate | None = msgspec.field(default=None, name="bandwidthGBps")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNICs:
    """The NICs of all nodes on which a label has this value."""

    label: str
    value: str
    nics: NICs


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSoftware:
    """The software of all nodes on which a label has this value; of all nodes without a label."""

    label: str
    value: str
    software: Software


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricFile:
    """The content of a fabric file: levels from coarse to near, GB/s beyond them if given.

    `levels` is None if the file leaves them to the cluster. The first of `nics` that matches a node
    counts, and the first of `software`; `site` is known of all nodes beside that, and the first of
    `pools` that a node is of. `where` names the file for people.
    """

    where: str
    levels: tuple[Level, ...] | None
    beyond: float | None = None
    nics: tuple[NodeNICs, ...] = ()
    software: tuple[NodeSoftware, ...] = ()
    site: Software = USUAL
    pools: tuple[PoolRates, ...] = ()


class _Cards(msgspec.Struct, forbid_unknown_fields=True):
    label: str
    value: str
    nics: str
    near: list[list[Annotated[int, msgspec.Meta(ge=0, lt=MOST_GPUS)]]] | None = None


class _Software(msgspec.Struct, forbid_unknown_fields=True):
    label: str | None = None
    value: str | None = None
    p2p: bool = True
    gdr: bool = True
    plugin: str | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    levels: Annotated[list[Level], msgspec.Meta(max_length=MAX_FABRIC_LEVELS)] | None = None
    beyond: Rate | None = msgspec.field(default=None, name="beyondGBps")
    nics: list[_Cards] = []
    software: list[_Software] = []


def parse_fabric(data: Any, *, where: str, lines: Mapping[str, int] | None = None) -> FabricFile:
    """Check a parsed file; UsageError names the file (`where`), the line and the path in it.

    `levels`, coarse to near, each have `name`, `label` and optionally `bandwidthGBps`; beside them
    `beyondGBps` is allowed. Bandwidths must not grow outward. `nics` are entries of `label`,
    `value`, `nics` (as `parse_nics` reads them) and optionally `near`, the GPUs near each NIC.
    `software` are entries of `p2p`, `gdr` and `plugin`, with a label for some nodes alone. A file
    with `nics` or `software` alone needs no levels. `lines` are those of the values by their paths.
    """

    def refuse(path: str, problem: str) -> NoReturn:
        part = re.match(r"\w*", path)
        example = _EXAMPLES.get(part[0] if part else "")
        guess = _guess(path, problem)
        raise UsageError(
            f"{where}: {_line(path, lines or {})}{path or 'the file'}: {problem}",
            why=None if example or guess else _EXPECTED,
            hint=guess
            or example
            or "levels: [{name: rack, label: example.com/rack, bandwidthGBps: 50}]",
        )

    def demand(path: str, text: str, fits: Callable[[str], bool], expected: str) -> None:
        if not fits(text):
            refuse(path, f"{text[:_SHOWN]!r} is not {expected}")

    file = decode_or_refuse(lambda: msgspec.convert(data, _File), refuse)
    if file.levels is None and (file.beyond is not None or not (file.nics or file.software)):
        refuse("levels", "is missing")
    rates = [("beyondGBps", file.beyond)]
    for at, level in enumerate(file.levels or ()):
        path, before = f"levels[{at}]", (file.levels or [])[:at]
        demand(f"{path}.name", level.name, is_word, "a word of letters, digits, '-', '_', '.'")
        demand(f"{path}.label", level.label, is_key, "the key of a node label")
        if level.name in RESERVED_LEVELS or level.name in {other.name for other in before}:
            refuse(f"{path}.name", f"{level.name} is another level")
        if level.label in {other.label for other in before}:
            refuse(f"{path}.label", f"{level.label} is the label of another level")
        rates.append((f"{path}.bandwidthGBps", level.bandwidth))
    for (path, rate), (nearer, less) in pairwise((path, rate) for path, rate in rates if rate):
        if rate > less:
            refuse(
                path, f"{rate:g} GB/s is more than the {less:g} GB/s of {nearer}, which is nearer"
            )
    levels = None if file.levels is None else tuple(file.levels)
    cards = tuple(_cards(card, f"nics[{at}]", demand, refuse) for at, card in enumerate(file.nics))
    software = tuple(
        _software(entry, f"software[{at}]", demand, refuse)
        for at, entry in enumerate(file.software)
    )
    return FabricFile(where=where, levels=levels, beyond=file.beyond, nics=cards, software=software)


def _guess(path: str, problem: str) -> str | None:
    """What a person meant by a field or a plug-in that does not exist; None without a guess."""
    if path.endswith(".plugin"):
        return near(problem.partition("'")[2].partition("'")[0], [*Plugin])
    unknown = re.search(r"unknown field (\S+)$", problem)
    if unknown is None:
        return None
    part = path.partition("[")[0]
    fields = _FIELDS.get(part, _FIELDS[""])
    elsewhere = [name for name in _EXAMPLES if not part and unknown[1] in _FIELDS[name]]
    return _EXAMPLES[elsewhere[-1]] if elsewhere else near(unknown[1], fields)


def _line(path: str, lines: Mapping[str, int]) -> str:
    """The line of a value, or of what it is missing in; empty if it is not known."""
    while path and path not in lines:
        path = path[: max(0, path.rfind("."), path.rfind("["))]
    return f"line {lines[path]}: " if path else ""


def _cards(card: _Cards, path: str, demand: Callable[..., None], refuse: Refuse) -> NodeNICs:
    demand(f"{path}.label", card.label, is_key, "the key of a node label")
    demand(f"{path}.value", card.value, is_label_value, "the value of a node label")
    try:
        nics = parse_nics(card.nics)
    except ValueError as error:
        refuse(f"{path}.nics", f"{error}")
    if card.near is not None:
        check_length(card.near, nics.number, refuse, f"{path}.near")
        nics = replace(nics, near=tuple(map(gpu_set, card.near)))
    return NodeNICs(label=card.label, value=card.value, nics=nics)


def _software(
    entry: _Software, path: str, demand: Callable[..., None], refuse: Refuse
) -> NodeSoftware:
    for key, text, other in (
        ("label", entry.label, entry.value),
        ("value", entry.value, entry.label),
    ):
        if text is None and other is not None:
            refuse(f"{path}.{key}", "is missing")
    if entry.label is not None:
        demand(f"{path}.label", entry.label, is_key, "the key of a node label")
        demand(f"{path}.value", entry.value, is_label_value, "the value of a node label")
    if entry.plugin is not None and entry.plugin not in [*Plugin]:
        refuse(f"{path}.plugin", f"{entry.plugin[:_SHOWN]!r} is none of {', '.join(Plugin)}")
    return NodeSoftware(
        label=entry.label or "",
        value=entry.value or "",
        software=Software(
            p2p=entry.p2p,
            gdr=entry.gdr,
            plugin=None if entry.plugin is None else Plugin(entry.plugin),
        ),
    )


_EXAMPLES = {
    "nics": "nics: [{label: example.com/pool, value: training, nics: 8x400G}]",
    "software": "software: [{label: example.com/pool, value: training, p2p: false, plugin: efa}]",
}
"""What entries of a part of the file look like."""

_PARTS: Mapping[str, type[msgspec.Struct]] = {
    "": _File,
    "levels": Level,
    "nics": _Cards,
    "software": _Software,
}
_FIELDS = {
    part: tuple(field.encode_name for field in msgspec.structs.fields(kind))
    for part, kind in _PARTS.items()
}
"""The fields of the file, and of the entries of its parts."""

_EXPECTED = "levels run from coarse to near; each has a name, the key of a node label, maybe GB/s"

_SHOWN = 40
"""Characters of a foreign text that a message shows."""


# Label families, best first: tools that look at the fabric itself before labels of a cloud.

_Family = Mapping[str, tuple[str, ...]]
"""Levels from coarse to near, each with its labels over time, the current one first."""

_TOPOGRAPH = "fabric.topograph.run/tier-"
_NVIDIA = "network.topology.nvidia.com/"
_EKS = "topology.k8s.aws/network-node-layer-"
_OCI = "oci.oraclecloud.com/"

# topograph has no limit of tiers; no real network has eight switches in a row.
_DEPTH = 8
# `core` is topograph's word for the third switch from the node.
_SWITCHES = ("leaf", "spine", "core", *(f"tier-{at}" for at in range(3, _DEPTH)))


def _switch_family(*nearest_first: str | tuple[str, ...]) -> _Family:
    labels = [(label,) if isinstance(label, str) else label for label in nearest_first]
    return dict(reversed([*zip(_SWITCHES, labels, strict=False)]))


_NETWORKS: tuple[_Family, ...] = (
    # NVIDIA/topograph v1, docs/reference/node-labels.md: tier 0 is closest to the node.
    _switch_family(*(f"{_TOPOGRAPH}{tier}" for tier in range(_DEPTH))),
    # The labels shortly before v1 (CHANGELOG.md).
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
    # only some instance types have a layer 4 below the third. It counts if all nodes have it.
    _switch_family(*(f"{_EKS}{layer}" for layer in (4, 3, 2, 1))),
    _switch_family(*(f"{_EKS}{layer}" for layer in (3, 2, 1))),
    # oracle-quickstart/oci-hpc-oke, docs/using-rdma-network-locality-when-running-workloads-on-
    # oke.md: local block, network block and HPC island are latency bands 0, 1 and 2.
    _switch_family(
        f"{_OCI}rdma.local_block_id", f"{_OCI}rdma.network_block_id", f"{_OCI}rdma.hpc_island_id"
    ),
    # OKE's labels without an RDMA topology (topograph, docs/reference/node-labels.md, "Without
    # Topograph").
    _switch_family(f"{_OCI}host.rack_id", f"{_OCI}host.network_block_id"),
    # Alibaba Cloud, ACK Lingjun clusters, "network topology-aware scheduling": a point of delivery
    # has several access switches (ASW), the first ones from a node.
    _switch_family("alibabacloud.com/asw-id", "alibabacloud.com/point-of-delivery"),
)

_PLACES: _Family = {
    # kubernetes.io/docs/reference/labels-annotations-taints, and their names before 1.17.
    "region": ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"),
    "zone": ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"),
}

_NVLINKS: tuple[str, ...] = (
    # NVIDIA/k8s-device-plugin, internal/lm/fabric.go: <cluster UUID>.<clique>, the GPUs that do
    # reach each other over NVLink; all other labels name units that can be divided into cliques.
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
        label: name
        for family in reversed(_NETWORKS)
        for name, labels in family.items()
        for label in labels
    },
    **{label: name for name, labels in _PLACES.items() for label in labels},
    **dict.fromkeys(_NVLINKS, NVLINK),
}
"""The level name of each known label."""

KNOWN_LEVELS = frozenset({NODE_TIER, BEYOND, *_WORDS.values()})
"""All level names of the known labels; --fabric may define others."""


def levels_text(cluster: Cluster) -> str:
    """The levels of a cluster as a user names them: `node, rack`."""
    return ", ".join(word for word in cluster.distances if word != BEYOND)


def check_level(flag: str, level: str, cluster: Cluster, elsewhere: Iterable[str] = ()) -> None:
    """Raise InvalidJob if a flag names a level that neither the cluster nor `elsewhere` has."""
    known = (*cluster.distances, *elsewhere)
    if level and level not in known:
        raise InvalidJob(
            f"{flag} {level}: this cluster has no such level",
            why=f"its levels: {levels_text(cluster)}",
            hint=near(level, known)
            or "leave it out, or on a cluster name the levels with --fabric FILE",
            flag=flag,
        )


_MACHINES = (
    "kubernetes.io/hostname",
    "cloud.google.com/gce-topology-host",
    "topology.gke.io/host",
    f"{_OCI}rdma.host_id",
)
"""Labels that identify the machine itself, so they are no level between machines."""

_UNREGISTERED = "00000000-0000-0000-0000-000000000000."
"""The start of the clique label on a machine outside any NVLink cluster (go-nvlib,
IsFabricAttached): machines with it are not in one cluster."""


# Labels of nodes

Rates = Mapping[NodeName, float | None]
"""GB/s of each node, None if not known."""

_Column = list[str | None]
"""The labels of all nodes for a level, in the order of node names: one list per label is several
times faster than one object per node."""


class _Columns:
    """The labels of nodes, by column."""

    def __init__(self, labels: Labels, rdma: Rates | None, nvlink: Rates | None) -> None:
        self.nodes = sorted(labels)
        self.nvlink = nvlink
        known = rdma or {}
        self.rdma = {node: max(WITHOUT_RDMA, known.get(node) or 0.0) for node in self.nodes}
        self._labels = [labels[node] for node in self.nodes]
        used: set[str] = set().union(*(_WORDS.keys() & labels.keys() for labels in self._labels))
        self._absent = _WORDS.keys() - used

    def column(self, *keys: str) -> _Column | None:
        """The value of the first of these labels on each node; None if no node has one."""
        column: _Column = []
        for key in keys:
            if key in self._absent:
                continue
            # Dumps come from anywhere: values that the API would refuse count as missing.
            values: Sequence[object] = [labels.get(key) for labels in self._labels]
            texts = [text if isinstance(text, str) and is_word(text) else None for text in values]
            column = [a or b for a, b in zip(column, texts, strict=True)] if column else texts
        return column if any(column) else None

    def stated(self, family: _Family) -> dict[Level, _Column]:
        """The levels of a family with a label on some node."""
        return {
            Level(name=name, label=labels[0]): column
            for name, labels in family.items()
            if (column := self.column(*labels)) is not None
        }

    def switches(self) -> dict[Level, _Column]:
        """The family with most nodes at its nearest level, then at any; the first of equals."""
        best: dict[Level, _Column] = {}
        most = (0, 0)
        for family in _NETWORKS:
            levels = self.stated(family)
            nearest = levels.get(Level(name="leaf", label=family["leaf"][0]), [])
            placed = sum(map(any, zip(*levels.values(), strict=True)))
            if (size := (len(nearest) - nearest.count(None), placed)) > most:
                best, most = levels, size
            if most[0] == len(self.nodes):
                break
        return best

    def nvlinks(self) -> dict[Level, _Column]:
        """The NVLink domains by the best label on some node.

        topograph sets the accelerator domain of every AWS node to its capacity block (provider
        aws), so labels of nodes whose GPUs have no NVLink to others are ignored; it sets that of
        every GKE node to the sub-block (provider gcp), where only the clique is reliable.
        """
        blocks = self.column(GKE_SUBBLOCK) or [None] * len(self.nodes)
        with_links = self.nodes if self.nvlink is None else self.nvlink
        for label in _NVLINKS:
            column = [
                name if name and node in with_links and not name.startswith(_UNREGISTERED) else None
                for name, node in zip(self.column(label) or [], self.nodes, strict=False)
            ]
            if any(name and name != block for name, block in zip(column, blocks, strict=False)):
                return {Level(name=NVLINK, label=label): column}
        return {}


def fabric_from_labels(
    labels: Labels,
    levels: Sequence[Level] = (),
    *,
    rdma: Rates | None = None,
    nvlink: Rates | None = None,
) -> Fabric:
    """The fabric by the labels of these nodes; pass only the nodes with GPUs.

    `levels` are those of a Kueue `Topology`; if no level is the NVLink domain and the speed of
    NVLink is known, it goes below all. Without them one family of switch labels is used, the one
    that places most nodes, the best of equals; zone and region go above it, the NVLink domain
    below. `rdma` is GB/s of all RDMA NICs of each node together; `nvlink` is GB/s over NVLink from
    a GPU of each node to other nodes, if its model has such links (NVL72). A node missing in
    `nvlink` has none, whatever its labels say.
    """
    columns = _Columns(labels, rdma, nvlink)
    if levels:
        below = _nvlinks_below(columns, levels)
    else:
        below = {**columns.stated(_PLACES), **columns.switches(), **columns.nvlinks()}
    return _fabric(columns, levels, below)


def fabric_from_file(
    file: FabricFile, labels: Labels, *, rdma: Rates | None = None, nvlink: Rates | None = None
) -> Fabric:
    """The fabric of a file; bandwidths that it leaves out are not known.

    `rdma` and `nvlink` as in `fabric_from_labels`, and NVLink goes below the levels as there.
    """
    columns, levels = _Columns(labels, rdma, nvlink), file.levels or ()
    return _fabric(columns, levels, _nvlinks_below(columns, levels), beyond=file.beyond)


def _nvlinks_below(columns: _Columns, levels: Sequence[Level]) -> Mapping[Level, _Column]:
    """The NVLink domains, if none of these levels has them and the speed of NVLink is known."""
    return {
        domain: names
        for domain, names in columns.nvlinks().items()
        if _reach(columns, names) is not None
        and not any(level.name == NVLINK or level.label == domain.label for level in levels)
    }


def levels_of(labels: Sequence[str]) -> tuple[Level, ...]:
    """The levels of a Kueue `Topology` with these labels, coarse to near, without the node itself.

    A level has the known name for its label, else the end of the label as its name;
    `kubernetes.io/hostname` is the node itself. ValueError names an invalid label.
    """
    levels: list[Level] = []
    for at, label in enumerate(labels):
        if not is_key(label) or label in labels[:at]:
            why = "repeats another" if is_key(label) else "is not the key of a node label"
            raise ValueError(f"spec.levels[{at}].nodeLabel: {label[:_SHOWN]!r} {why}")
        name = _WORDS.get(label, label.rpartition("/")[2])
        if name in RESERVED_LEVELS or any(level.name == name for level in levels):
            name = label
        if label not in _MACHINES:
            levels.append(Level(name=name, label=label))
    return tuple(levels)


# The tree

_MOST_NAMES = 10
"""The most names in one note."""

_Path = tuple[str, ...]
"""A domain with its parents: leaf 1 of spine a is not leaf 1 of spine b."""


def _fabric(
    columns: _Columns,
    listed: Sequence[Level],
    below: Mapping[Level, _Column],
    *,
    beyond: float | None = None,
) -> Fabric:
    """The fabric of these levels, coarse to near, with a note on each unused listed level."""
    nodes = columns.nodes
    levels = {**{level: columns.column(level.label) for level in listed}, **below}
    tiers = _tiers(columns, levels)
    stated = {level: column for level, column in levels.items() if column is not None}
    paths, notes = _tree(nodes, stated)
    depth = len(paths[0]) if paths else 0
    names = [level.name for level in stated][:depth]
    used = tuple(tier for tier in tiers if tier.name in names)
    domains = dict(zip(nodes, _named(paths), strict=True))
    given = beyond is not None or any(level.bandwidth is not None for level in levels)
    unused = [
        f"{'no two nodes share' if level in stated else 'no node has'} the label {level.label}: the"
        f" level {level.name} is not used"
        for level in listed
        if level.name not in names and len(nodes) > 1
    ]
    return Fabric(
        tiers=used,
        beyond=beyond,
        domains=domains,
        notes=(*unused, *notes),
        limits={} if given else _limits(columns, used, domains),
    )


def _tree(
    nodes: Sequence[NodeName], stated: Mapping[Level, _Column]
) -> tuple[list[_Path], list[str]]:
    """The path of each node, down to the level where each is alone, and notes on missing labels."""
    filled: list[list[str]] = []
    nearer, inner = [f"({node})" for node in nodes], ""
    for level, column in reversed(list(stated.items())):
        nearer, inner = _filled(column, nearer, inner), level.name
        filled.insert(0, nearer)
    paths: list[_Path] = [()] * len(nodes)
    notes: list[str] = []
    for (level, column), domains in zip(stated.items(), filled, strict=True):
        deeper = [(*path, domain) for path, domain in zip(paths, domains, strict=True)]
        if len(set(deeper)) == len(nodes):
            break
        paths = deeper
        missing = [node for node, domain in zip(nodes, column, strict=True) if domain is None]
        # Most machines have no NVLink to others.
        if missing and level.name != NVLINK:
            names = ", ".join(missing[:_MOST_NAMES]) + (", ..." if missing[_MOST_NAMES:] else "")
            subject = f"{len(missing)} nodes ({names}) do" if missing[1:] else f"node {names} does"
            notes.append(f"{subject} not name the {level.name} ({level.label})")
    return paths, notes


def _filled(column: _Column, nearer: Sequence[str], inner: str) -> list[str]:
    """The domains of a level; a missing label is filled in from the next nearer level.

    A node is in the domain of the other nodes of its nearer domain, if they agree. Else it shares
    the level only with the unlabelled nodes of that domain. `word` is the name of the nearer level.
    """
    agreed: dict[str, set[str]] = defaultdict(set)
    for above, below in set(zip(column, nearer, strict=True)):
        if above is not None:
            agreed[below].add(above)
    # Labels have no brackets, so a substitute is never equal to a domain.
    instead = {
        below: min(agreed[below])
        if len(agreed[below]) == 1
        else below
        if below.startswith("(")
        else f"({inner} {below})"
        for below in set(nearer)
    }
    return [above or instead[below] for above, below in zip(column, nearer, strict=True)]


def _named(paths: Sequence[_Path]) -> list[_Path]:
    """The paths with a unique name for each domain: its whole path if others have the same name."""
    domains = {path[:at] for path in set(paths) for at in range(1, len(path) + 1)}
    counts = Counter((len(domain), domain[-1]) for domain in domains)
    names = {
        domain: domain[-1] if counts[len(domain), domain[-1]] == 1 else "/".join(domain)
        for domain in domains
    }
    named = {path: tuple(names[path[:at]] for at in range(1, len(path) + 1)) for path in set(paths)}
    return [named[path] for path in paths]


# Bandwidths


def _tiers(columns: _Columns, levels: Mapping[Level, _Column | None]) -> list[Tier]:
    """A tier for each level, with its given rate; that of NVLink follows from the GPUs."""
    tiers: list[Tier] = []
    for level, column in levels.items():
        rate = level.bandwidth
        if rate is None and level.name == NVLINK:
            rate = _reach(columns, column or ())
        tiers.append(Tier(name=level.name, bandwidth=rate))
    return tiers


def _reach(columns: _Columns, column: Sequence[str | None]) -> float | None:
    """GB/s over NVLink between the nodes with a domain of it: the slowest, if all are known."""
    rates = [
        (columns.nvlink or {}).get(node)
        for node, domain in zip(columns.nodes, column, strict=False)
        if domain
    ]
    known = [rate for rate in rates if rate is not None]
    return min(known) if known and len(known) == len(rates) else None


def _limits(
    columns: _Columns,
    tiers: Sequence[Tier],
    domains: Mapping[NodeName, _Path],
) -> dict[NodeName, float]:
    """GB/s of the nodes that are slower than the fastest.

    Nodes that reach others over NVLink of known speed have no limit, as no NIC slows NVLink down;
    such machines are sold with RDMA (NVIDIA, DGX GB200 data sheet: four ConnectX-7 a tray), whether
    or not the node reports it.
    """
    fastest = max(columns.rdma.values(), default=WITHOUT_RDMA)
    slow = {node: rate for node, rate in columns.rdma.items() if rate < fastest}
    for at, tier in enumerate(tiers):
        if tier.name == NVLINK and tier.bandwidth is not None:
            sizes = Counter(path[at] for path in domains.values())
            slow = {node: rate for node, rate in slow.items() if sizes[domains[node][at]] == 1}
    return slow
