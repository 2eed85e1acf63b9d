"""Which nodes are near which: network levels from labels, a Kueue `Topology` or a fabric file.

    from_labels    what topograph, the GPU operator and the clouds write on nodes, or the labels
                   that a Kueue `Topology` lists
    from_file      the levels, and their bandwidths, that a person wrote down

Each gives a tree: every node has a path of domains, coarse to near. A fabric file looks so
(docs/how-it-works.md):

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
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, Any, NoReturn

import msgspec

from arena_topo.errors import UsageError
from arena_topo.names import is_key, is_label_value, is_word
from arena_topo.topology import BEYOND, MOST_GPUS, UNKNOWN_NETWORK, NodeName, Tier, gpu_set
from arena_topo.topology.decoding import Refuse, check_length, tried
from arena_topo.topology.documents import Rate
from arena_topo.topology.nics import NICs, parse_nics

RESERVED = frozenset({"node", BEYOND})
"""Level words that no level may have: they stand for less and for more than any of them."""

MOST_LEVELS = 16
"""Levels of a network: from zones down to hosts there are half as many, which is what Kueue allows
(TopologySpec.levels)."""

Labels = Mapping[NodeName, Mapping[str, str]]
"""The labels of each node."""

CLIQUE = "nvidia.com/gpu.clique"
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


# What a person writes


class Level(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One level of a fabric: the word for it, the label that tells it, GB/s where given."""

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
class FabricFile:
    """What a fabric file says: levels from coarse to near, GB/s beyond them where it is given.

    `levels` is None where the file leaves them to the cluster. Of `nics` the first that fits a node
    counts. `where` names the file for people.
    """

    where: str
    levels: tuple[Level, ...] | None
    beyond: float | None = None
    nics: tuple[NodeNICs, ...] = ()


class _Cards(msgspec.Struct, forbid_unknown_fields=True):
    label: str
    value: str
    nics: str
    near: list[list[Annotated[int, msgspec.Meta(ge=0, lt=MOST_GPUS)]]] | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    levels: Annotated[list[Level], msgspec.Meta(max_length=MOST_LEVELS)] | None = None
    beyond: Rate | None = msgspec.field(default=None, name="beyondGBps")
    nics: list[_Cards] = []


def read(data: Any, *, where: str) -> FabricFile:
    """Check a file as parsed; UsageError names the file (`where`) and the path in it.

    `levels`, coarse to near, each have `name`, `label` and maybe `bandwidthGBps`; beside them there
    may be `beyondGBps`. Bandwidths must not grow outward. `nics` are entries of `label`, `value`,
    `nics` (as `parse_nics` reads them) and maybe `near`, the GPUs near each NIC. A file with `nics`
    alone needs no levels.
    """

    def refuse(path: str, problem: str) -> NoReturn:
        of_nics = path.startswith("nics")
        raise UsageError(
            f"{where}: {path or 'the file'}: {problem}",
            why=None if of_nics else _EXPECTED,
            hint="nics: [{label: example.com/pool, value: training, nics: 8x400G}]"
            if of_nics
            else "levels: [{name: rack, label: example.com/rack, bandwidthGBps: 50}]",
        )

    def demand(path: str, text: str, fits: Callable[[str], bool], what: str) -> None:
        if not fits(text):
            refuse(path, f"{text[:_SHOWN]!r} is not {what}")

    file = tried(lambda: msgspec.convert(data, _File), refuse)
    if file.levels is None and (file.beyond is not None or not file.nics):
        refuse("levels", "is missing")
    for at, level in enumerate(file.levels or ()):
        path, before = f"levels[{at}]", (file.levels or [])[:at]
        demand(f"{path}.name", level.name, is_word, "a word of letters, digits, '-', '_', '.'")
        demand(f"{path}.label", level.label, is_key, "the key of a node label")
        if level.name in RESERVED or level.name in {one.name for one in before}:
            refuse(f"{path}.name", f"{level.name} is another level")
        if level.label in {one.label for one in before}:
            refuse(f"{path}.label", f"{level.label} is the label of another level")
    given = [("beyondGBps", file.beyond)]
    given += [
        (f"levels[{at}].bandwidthGBps", one.bandwidth) for at, one in enumerate(file.levels or ())
    ]
    for (path, rate), (nearer, less) in pairwise((path, rate) for path, rate in given if rate):
        if rate > less:
            refuse(path, f"{rate:g} is more than the {less:g} of {nearer}, which is nearer")
    levels = None if file.levels is None else tuple(file.levels)
    cards = tuple(_cards(one, f"nics[{at}]", demand, refuse) for at, one in enumerate(file.nics))
    return FabricFile(where=where, levels=levels, beyond=file.beyond, nics=cards)


def _cards(one: _Cards, path: str, demand: Callable[..., None], refuse: Refuse) -> NodeNICs:
    demand(f"{path}.label", one.label, is_key, "the key of a node label")
    demand(f"{path}.value", one.value, is_label_value, "the value of a node label")
    try:
        nics = parse_nics(one.nics)
    except ValueError as error:
        refuse(f"{path}.nics", f"{error}")
    if one.near is not None:
        check_length(one.near, nics.number, refuse, f"{path}.near")
        nics = replace(nics, near=tuple(map(gpu_set, one.near)))
    return NodeNICs(label=one.label, value=one.value, nics=nics)


_EXPECTED = "levels run from coarse to near; each has a name, the key of a node label, maybe GB/s"

_SHOWN = 40
"""Characters of a foreign text that a message shows."""


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


# What nodes say

Rates = Mapping[NodeName, float | None]
"""GB/s for each node, None where not known."""

_Column = list[str | None]
"""What each node says of a level, in the order of their names: one list for each label is several
times faster than one object for each node."""


class _Columns:
    """What the nodes say, by label."""

    def __init__(self, labels: Labels, rdma: Rates | None, nvlink: Rates | None) -> None:
        self.nodes = sorted(labels)
        self.nvlink = nvlink
        known = rdma or {}
        self.rdma = {node: max(UNKNOWN_NETWORK, known.get(node) or 0.0) for node in self.nodes}
        self._labels = [labels[node] for node in self.nodes]
        used: set[str] = set().union(*(_WORDS.keys() & one.keys() for one in self._labels))
        self._absent = _WORDS.keys() - used

    def column(self, *keys: str) -> _Column | None:
        """What every node says under the first of these labels that it has; None if none does."""
        column: _Column = []
        for key in keys:
            if key in self._absent:
                continue
            # Dumps come from anywhere: what the API would not let in counts as nothing.
            said: Sequence[object] = [labels.get(key) for labels in self._labels]
            texts = [one if isinstance(one, str) and is_word(one) else None for one in said]
            column = [a or b for a, b in zip(column, texts, strict=True)] if column else texts
        return column if any(column) else None

    def stated(self, family: _Family) -> dict[Level, _Column]:
        """The levels of a family that some node states."""
        return {
            Level(name=word, label=labels[0]): column
            for word, labels in family.items()
            if (column := self.column(*labels)) is not None
        }

    def switches(self) -> dict[Level, _Column]:
        """The family that places most nodes at its nearest level, then at any; best of equals."""
        best: dict[Level, _Column] = {}
        most = (0, 0)
        for family in _NETWORKS:
            found = self.stated(family)
            nearest = found.get(Level(name="leaf", label=family["leaf"][0]), [])
            placed = sum(map(any, zip(*found.values(), strict=True)))
            if (size := (len(nearest) - nearest.count(None), placed)) > most:
                best, most = found, size
            if most[0] == len(self.nodes):
                break
        return best

    def nvlinks(self) -> dict[Level, _Column]:
        """The NVLink domains by the best label that some node has.

        topograph takes the capacity block for the accelerator domain of every AWS node (provider
        aws), so what a node says whose GPUs have no NVLink to others is left out; and the sub-block
        for that of every GKE node (provider gcp), where only the clique can be believed.
        """
        blocks = self.column(GKE_SUBBLOCK) or [None] * len(self.nodes)
        with_links = self.nodes if self.nvlink is None else self.nvlink
        for label in _NVLINKS:
            column = [
                one if one and node in with_links and not one.startswith(_UNREGISTERED) else None
                for one, node in zip(self.column(label) or [], self.nodes, strict=False)
            ]
            if any(one and one != block for one, block in zip(column, blocks, strict=False)):
                return {Level(name="nvlink", label=label): column}
        return {}


def from_labels(
    labels: Labels,
    levels: Sequence[Level] = (),
    *,
    rdma: Rates | None = None,
    nvlink: Rates | None = None,
) -> Fabric:
    """The fabric that the labels of these nodes tell; give the nodes that have GPUs, no others.

    `levels` are those of a Kueue `Topology`; where no level is the NVLink domain and the speed of
    NVLink is known, it goes below all. Without them one family of switch labels is used, the one
    that places most nodes, the best of equals; zone and region go above it, the NVLink domain
    below. `rdma` is what the RDMA NICs of each node reach together, GB/s; `nvlink` what a GPU of
    each node reaches over NVLink in other nodes, GB/s, where its model has such links (NVL72). A
    node that `nvlink` leaves out has none, whatever its labels say.
    """
    columns = _Columns(labels, rdma, nvlink)
    below = columns.nvlinks()
    if not levels:
        below = {**columns.stated(_PLACES), **columns.switches(), **below}
    elif any(level.name == "nvlink" for level in levels):
        below = {}
    else:
        below = {level: one for level, one in below.items() if _reach(columns, one) is not None}
    return _fabric(columns, levels, below)


def from_file(
    file: FabricFile, labels: Labels, *, rdma: Rates | None = None, nvlink: Rates | None = None
) -> Fabric:
    """The fabric that a file describes; bandwidths left out fit between the others.

    `rdma` and `nvlink` as in `from_labels`.
    """
    return _fabric(_Columns(labels, rdma, nvlink), file.levels or (), {}, beyond=file.beyond)


def levels_of(labels: Sequence[str]) -> tuple[Level, ...]:
    """The levels of a Kueue `Topology` with these labels, coarse to near, without the node itself.

    A level is called by the word for its label where that is known, else by the end of the label;
    `kubernetes.io/hostname` is the node itself. ValueError names the label that makes no sense.
    """
    levels: list[Level] = []
    for at, label in enumerate(labels):
        if not is_key(label) or label in labels[:at]:
            why = "repeats another" if is_key(label) else "is not the key of a node label"
            raise ValueError(f"spec.levels[{at}].nodeLabel: {label[:_SHOWN]!r} {why}")
        word = _WORDS.get(label, label.rpartition("/")[2])
        if word in RESERVED or any(level.name == word for level in levels):
            word = label
        if label not in _MACHINES:
            levels.append(Level(name=word, label=label))
    return tuple(levels)


# The tree

_MOST_NAMES = 10
"""Names that one note lists."""

_Path = tuple[str, ...]
"""A domain, after those that hold it: leaf 1 of spine a is not leaf 1 of spine b."""


def _fabric(
    columns: _Columns,
    listed: Sequence[Level],
    below: Mapping[Level, _Column],
    *,
    beyond: float | None = None,
) -> Fabric:
    """The fabric of these levels, coarse to near; of those listed it notes which join no nodes.

    Levels without use still bound the bandwidths of the others.
    """
    nodes = columns.nodes
    levels = {**{one: columns.column(one.label) for one in listed}, **below}
    tiers, edge, assumed = _tiers(columns, levels, beyond)
    stated = {level: column for level, column in levels.items() if column is not None}
    paths, notes = _tree(nodes, stated)
    depth = len(paths[0]) if paths else 0
    names = [level.name for level in stated][:depth]
    used = tuple(tier for tier in tiers if tier.name in names)
    guessed = assumed & {BEYOND, *names}
    domains = dict(zip(nodes, _named(paths), strict=True))
    given = beyond is not None or any(level.bandwidth is not None for level in levels)
    unused = [
        f"{'no two nodes share' if one in stated else 'no node has'} the label {one.label}: the"
        f" level {one.name} is not used"
        for one in listed
        if one.name not in names and len(nodes) > 1
    ]
    return Fabric(
        tiers=used,
        beyond=edge,
        domains=domains,
        assumed=guessed,
        notes=(*unused, *notes),
        limits={} if given else _limits(columns, used, domains, guessed),
    )


def _tree(
    nodes: Sequence[NodeName], stated: Mapping[Level, _Column]
) -> tuple[list[_Path], list[str]]:
    """The path of each node, down to the level where all are alone, and what nodes do not say."""
    filled: list[list[str]] = []
    nearer, word = [f"({node})" for node in nodes], ""
    for level, column in reversed(list(stated.items())):
        nearer, word = _filled(column, nearer, word), level.name
        filled.insert(0, nearer)
    paths: list[_Path] = [()] * len(nodes)
    notes: list[str] = []
    for (level, column), domains in zip(stated.items(), filled, strict=True):
        deeper = [(*path, domain) for path, domain in zip(paths, domains, strict=True)]
        if len(set(deeper)) == len(nodes):
            break
        paths = deeper
        silent = [node for node, said in zip(nodes, column, strict=True) if said is None]
        # Most machines have no NVLink to others.
        if silent and level.name != "nvlink":
            some = ", ".join(silent[:_MOST_NAMES]) + (", ..." if silent[_MOST_NAMES:] else "")
            who = f"{len(silent)} nodes ({some}) do" if silent[1:] else f"node {some} does"
            notes.append(f"{who} not name the {level.name} ({level.label})")
    return paths, notes


def _filled(column: _Column, nearer: Sequence[str], word: str) -> list[str]:
    """The domains of a level, those that nodes do not name taken from the next nearer level.

    A node is where others of its nearer domain are, if they agree. Else it shares the level with
    the silent ones of that domain alone. `word` is the name of the nearer level.
    """
    agreed: dict[str, set[str]] = defaultdict(set)
    for above, below in set(zip(column, nearer, strict=True)):
        if above is not None:
            agreed[below].add(above)
    # No label has a bracket, so that what stands in for a domain is never taken for one.
    instead = {
        below: min(agreed[below])
        if len(agreed[below]) == 1
        else below
        if below.startswith("(")
        else f"({word} {below})"
        for below in set(nearer)
    }
    return [above or instead[below] for above, below in zip(column, nearer, strict=True)]


def _named(paths: Sequence[_Path]) -> list[_Path]:
    """The paths with a name of its own for each domain: its path, where others are called so."""
    domains = {path[:at] for path in set(paths) for at in range(1, len(path) + 1)}
    alike = Counter((len(domain), domain[-1]) for domain in domains)
    names = {
        domain: domain[-1] if alike[len(domain), domain[-1]] == 1 else "/".join(domain)
        for domain in domains
    }
    whole = {path: tuple(names[path[:at]] for at in range(1, len(path) + 1)) for path in set(paths)}
    return [whole[path] for path in paths]


# Bandwidths


def _tiers(
    columns: _Columns, levels: Mapping[Level, _Column | None], beyond: float | None
) -> tuple[list[Tier], float, frozenset[str]]:
    """A tier for each level, and `beyond`: what is given, and defaults that fit between.

    The fastest NICs decide, and slower nodes are limited by themselves (`_limits`). A limit would
    also hold on tiers whose bandwidth a person gave, so where one is given there are none, and the
    slowest NICs decide for the others. Oversubscription is not known, so coarser switches are taken
    to be as fast as near ones. RDMA ends at the zone ("EFA traffic can't cross Availability Zones",
    AWS, EFA limitations; the RDMA networks of GKE and OKE are zonal too), so past it nothing is
    known. The last are the names of the tiers, and `beyond`, whose rate is such a default.
    """
    names = [BEYOND, *(level.name for level in levels)]
    given = [beyond, *(level.bandwidth for level in levels)]
    one_given = any(rate is not None for rate in given)
    network = (min if one_given else max)(columns.rdma.values(), default=UNKNOWN_NETWORK)
    zoned = names.index("region") if "region" in names else 0 if "zone" in names else -1
    assumed = {name for name, rate in zip(names, given, strict=True) if rate is None}
    rates: list[float] = []
    for at, rate in enumerate(given):
        default = UNKNOWN_NETWORK if at <= zoned else network
        if names[at] == "nvlink":
            reach = _reach(columns, list(levels.values())[at - 1] or ())
            assumed -= {"nvlink"} if reach is not None else set()
            default = default if reach is None else reach
        # A default is never slower than what is outside, nor faster than what is inside of it.
        nearer = [one for one in given[at:] if one is not None]
        rates.append(min([max([default, *rates[-1:]]), *nearer]) if rate is None else rate)
    tiers = [Tier(name=name, bandwidth=rate) for name, rate in zip(names, rates, strict=True)]
    return tiers[1:], rates[0], frozenset(assumed)


def _reach(columns: _Columns, column: Sequence[str | None]) -> float | None:
    """GB/s over NVLink between the nodes that name a domain of it: of the slowest, if known."""
    rates = [
        (columns.nvlink or {}).get(node)
        for node, said in zip(columns.nodes, column, strict=False)
        if said
    ]
    known = [rate for rate in rates if rate is not None]
    return min(known) if known and len(known) == len(rates) else None


def _limits(
    columns: _Columns,
    tiers: Sequence[Tier],
    domains: Mapping[NodeName, _Path],
    assumed: frozenset[str],
) -> dict[NodeName, float]:
    """GB/s of the nodes that are slower than the fastest.

    None for nodes that reach others over NVLink of known speed, which no NIC slows down; such
    machines are sold with RDMA (NVIDIA, DGX GB200 data sheet: four ConnectX-7 a tray), whether
    or not the node says so.
    """
    fastest = max(columns.rdma.values(), default=UNKNOWN_NETWORK)
    slow = {node: rate for node, rate in columns.rdma.items() if rate < fastest}
    for at, tier in enumerate(tiers):
        if tier.name == "nvlink" and tier.name not in assumed:
            sizes = Counter(path[at] for path in domains.values())
            slow = {node: rate for node, rate in slow.items() if sizes[domains[node][at]] == 1}
    return slow
