"""The network of a cluster, by all its sources -> tiers, and the domains of every node.

Sources, best first: a fabric file written by a person; the Kueue `Topology` that places most GPU
nodes; the labels of nodes. Pure: `observed` passes in what it has read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from arena_topo.bandwidth.rates import lane_rate
from arena_topo.notes import Notes
from arena_topo.topology import (
    BEYOND,
    Machine,
    NodeName,
    Tier,
    fabric,
)
from arena_topo.topology.fabric import FabricFile, Level
from arena_topo.topology.models import MODELS
from arena_topo.topology.nics import is_rdma

RDMA_RATE = 12.5
"""GB/s of a node that offers RDMA at an unknown rate, to compare it with nodes without RDMA: one
NIC of 100 Gb/s. What such a node sends is estimated by `bandwidth`."""


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """The network between nodes: as in `Cluster`, with an entry of `domains` for every node.

    `limits` are GB/s of the nodes whose own network is slower than that between nodes. `unused` are
    the levels of a file that join no nodes.
    """

    tiers: tuple[Tier, ...]
    beyond: float | None
    domains: Mapping[NodeName, tuple[str, ...]]
    limits: Mapping[NodeName, float]
    guesses: Mapping[str, str]
    notes: tuple[str, ...]
    unused: frozenset[str]


def rdma_resource(offers: Iterable[str]) -> str | None:
    """The first of these resources that is RDMA, by name; None without one."""
    return min(filter(is_rdma, offers), default=None)


def joining(
    machines: Mapping[NodeName, Machine],
    labels: fabric.Labels,
    *,
    rdma: Mapping[NodeName, str],
    topologies: Mapping[str, Sequence[Level]] | None = None,
    file: FabricFile | None = None,
) -> Network:
    """The network between nodes of which some have GPUs.

    `rdma` is the RDMA resource of each node that offers one; `topologies` are the levels of Kueue's
    topologies, by name. Nodes without GPUs get domains of their own: nothing is placed there, and
    missing labels on them are no gap.
    """
    with_gpus = {name: machine for name, machine in machines.items() if machine.gpus}
    labels = {name: labels[name] for name in with_gpus}
    rates = {name: RDMA_RATE for name in labels if name in rdma}
    reach = _reach(with_gpus, labels)
    notes, where, unused = Notes(), "", frozenset[str]()
    if file is not None and file.levels is not None:
        where = f"{file.where}: "
        tree = fabric.fabric_from_file(file, labels, rdma=rates, nvlink=reach)
        unused = frozenset(level.name for level in file.levels) - {t.name for t in tree.tiers}
    else:
        levels = _best(topologies or {}, labels, notes)
        tree = fabric.fabric_from_labels(labels, levels, rdma=rates, nvlink=reach)
    for note in tree.notes:
        notes.add("the network", note, f"{where}{note}")
    alone = {name: (f"({name})",) * len(tree.tiers) for name in machines}
    return Network(
        tiers=tree.tiers,
        beyond=tree.beyond,
        domains={**alone, **tree.domains},
        limits=tree.limits,
        guesses=_guesses(tree, {rdma[name] for name in rates}),
        notes=tuple(notes),
        unused=unused,
    )


def _guesses(tree: fabric.Fabric, resources: Collection[str]) -> dict[str, str]:
    """For each level without a given bandwidth, what is known instead.

    RDMA ends at the zone ("EFA traffic can't cross Availability Zones", AWS, EFA limitations; the
    RDMA networks of GKE and OKE are zonal too), so beyond it nothing is known.
    """
    named = sorted(resources)
    more = ", ..." if named[1:] else ""
    lacking = len(tree.limits)
    without = f"; {lacking} node{'s offer' if lacking > 1 else ' offers'} none" if lacking else ""
    rates = {BEYOND: tree.beyond, **{tier.name: tier.bandwidth for tier in tree.tiers}}
    names = list(rates)
    zoned = names.index("region") if "region" in names else 0 if "zone" in names else -1
    guesses: dict[str, str] = {}
    for at, (name, rate) in enumerate(rates.items()):
        if rate is not None:
            continue
        where = "the network between nodes" if name == BEYOND else f"the network within one {name}"
        why = f"the speed of {where} is not known"
        if named and at > zoned:
            why = f"nodes offer RDMA ({named[0]}{more}{without}), whose speed is not known"
        guesses[name] = f"{why}; --fabric FILE gives it"
    return guesses


def _reach(
    machines: Mapping[NodeName, Machine], labels: fabric.Labels
) -> dict[NodeName, float | None]:
    """GB/s over NVLink from a GPU of each node to other nodes, None if not known, or not used.

    Nodes that certainly have no such links are left out.
    """
    known: dict[int, tuple[bool, float | None]] = {}
    reach: dict[NodeName, float | None] = {}
    for name, machine in machines.items():
        # Nodes of a kind share their GPUs, and `model` looks at each GPU.
        key = id(machine.gpus)
        if key not in known:
            known[key] = _reach_of(machine.model)
        possible, rate = known[key]
        if possible or fabric.CLIQUE in labels[name]:
            reach[name] = rate if machine.software.p2p else None
    return reach


def _reach_of(model: str | None) -> tuple[bool, float | None]:
    """Whether NVLink may leave a machine with these GPUs, and its rate (None if not known)."""
    known = MODELS.get(model or "")
    if known is None or known.nvlinks is None:
        return True, None
    return (True, known.nvlinks * lane_rate(model)) if known.domain else (False, None)


def _best(
    topologies: Mapping[str, Sequence[Level]], labels: fabric.Labels, notes: Notes
) -> Sequence[Level]:
    """The levels of the Kueue topology that places most GPU nodes, the deepest of equals.

    Kueue places pods only on nodes that have all labels of a topology's levels (its documentation,
    "Topology Aware Scheduling"), so only those count. Empty if no topology places any.
    """
    placed = {
        name: sum({level.label for level in levels} <= own.keys() for own in labels.values())
        for name, levels in topologies.items()
        if levels
    }
    best = min(placed, key=lambda name: (-placed[name], -len(topologies[name]), name), default="")
    if not placed or not labels:
        return ()
    if not placed[best]:
        notes.add(
            min(placed),
            "no topology",
            f"no GPU node has all labels of topology {min(placed)}: the network is taken from"
            " other labels",
        )
        return ()
    if len(placed) > 1:
        used = f"topology {best} is used, which places {placed[best]} of {len(labels)} GPU nodes"
        notes.add(best, "topology", used)
    return topologies[best]
