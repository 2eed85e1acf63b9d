"""Placements and nodes that a person names: `--on` and `--avoid`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain

from arena_topo.errors import UsageError, near
from arena_topo.manifests.annotations import parse_map
from arena_topo.solver import Constraint, Seats
from arena_topo.topology import Cluster, Node, NodeName
from arena_topo.words import counted


def constraint(
    cluster: Cluster, *, pods: int, gpus: int, avoid: Sequence[str] = (), on: str = ""
) -> Constraint:
    """The constraint that a person names for a job of so many pods with `gpus` GPUs each.

    UsageError if `avoid` or `on` names nodes or GPUs that do not exist, or that do not suit it.
    """
    names = [str(node.name) for node in cluster.nodes]
    for name in avoid:
        if name not in names:
            raise _no_node("--avoid", name, names)
    seats = seats_of(read_placement(on), cluster, pods=pods, gpus=gpus) if on else ()
    return Constraint(avoid=tuple(map(NodeName, avoid)), seats=seats)


def read_placement(text: str) -> tuple[tuple[int, str, tuple[int, ...]], ...]:
    """The worker, the node and the GPUs of each item of `--on`; UsageError for a wrong form."""
    try:
        return parse_map(text.replace(" ", ""))
    except ValueError as error:
        raise _wrong(str(error)) from None


def seats_of(
    workers: Sequence[tuple[int, str, tuple[int, ...]]], cluster: Cluster, *, pods: int, gpus: int
) -> Seats:
    """The seats that `--on` names; UsageError where such a job cannot have them on any day."""
    nodes = {node.name: node for node in cluster.nodes}
    if len(workers) != pods:
        asked = f"{pods} {'are' if pods != 1 else 'is'} asked for"
        raise _wrong(f"it names {counted(len(workers), 'worker')}, and {asked}")
    for at, name, own in workers:
        if name not in nodes:
            raise _no_node("--on", name, [str(known) for known in nodes])
        _check(at, nodes[NodeName(name)], own, gpus)
    for name, many in Counter(name for _at, name, _own in workers).items():
        most = len(nodes[NodeName(name)].machine.gpus)
        if many * gpus > most:
            raise _wrong(f"{many} workers of {gpus} GPUs on {name}, which has {most} GPUs")
    return tuple((NodeName(name), own) for _at, name, own in workers)


def _no_node(flag: str, name: str, names: Sequence[str]) -> UsageError:
    hint = near(name, names) or "see them all: arena-topo top node"
    return UsageError(f"{flag}: this cluster has no node {name}", hint=hint)


def _wrong(
    why: str,
    hint: str = 'name the node and the GPUs of each worker: --on "node-a/0,3;node-b/1,2"',
) -> UsageError:
    return UsageError("--on is invalid", why=why, hint=hint)


def check_fused(pods: Sequence[tuple[int, str, tuple[int, ...]]]) -> None:
    """Refuse several pods on one node: --pod-shape fused makes one pod of them."""
    by_node: dict[str, list[tuple[int, ...]]] = {}
    for _at, node, gpus in pods:
        by_node.setdefault(node, []).append(gpus)
    each = math.gcd(*map(len, by_node.values()))
    if each > 1:
        fused = [
            f"{node}/{','.join(map(str, chain(*some[at : at + each])))}"
            for node, some in by_node.items()
            for at in range(0, len(some), each)
        ]
        why = f"--pod-shape fused makes one pod of each {each} that it names on a node"
        raise _wrong(why, f'write --on "{";".join(fused)}"')


def _check(at: int, node: Node, gpus: Sequence[int], size: int) -> None:
    """Refuse GPUs that the node does not have, and a wrong number of them."""
    most = len(node.machine.gpus)
    if odd := [gpu for gpu in gpus if gpu >= most]:
        has = f"GPUs 0 to {most - 1}" if most > 1 else "GPU 0 alone" if most else "no GPUs"
        raise _wrong(f"worker {at}: {node.name} has {has}, not GPU {odd[0]}")
    # Without indexes the kubelet picks the GPUs.
    if gpus and len(gpus) != size:
        raise _wrong(f"worker {at} has {counted(len(gpus), 'GPU')}, and --gpus {size}")
