"""The NICs that NCCL is to use: those nearest to the GPUs of a job, by name (NCCL_IB_HCA).

All workers are made from one template, so one list of names has to be right on every node. Where
none is, or where pods may have other NICs, the variable is not set and NCCL chooses by itself: a
list without any NIC of the pod would leave it with sockets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from arena_topo.bandwidth import nearest_nics
from arena_topo.escaping import one_line
from arena_topo.job import MPIJob
from arena_topo.manifests import HCA_VARIABLE, Binding, Guarantee
from arena_topo.solver import Placement
from arena_topo.topology import Cluster, Machine, NodeName
from arena_topo.topology.nics import is_rdma

_HCA = re.compile(r"mlx[45]_\w{1,56}", re.ASCII)
"""What the Linux drivers mlx4 and mlx5 call their devices; NICs of other makes have other names,
and NCCL_IB_HCA is for the verbs of these (NCCL, environment variables)."""

_SHARED = "rdma/"
"""The prefix of devices of which each pod gets all that there are on the node
(Mellanox/k8s-rdma-shared-dev-plugin)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HCAs:
    """The names of the NICs in the order of the machine, or why a job that asks gets none."""

    names: tuple[str, ...] = ()
    why: str = ""


def named_by_job(job: MPIJob) -> bool:
    """Whether a job says itself which NICs NCCL uses: by --env, or by -x in its command."""
    return HCA_VARIABLE in job.command or any(one.key == HCA_VARIABLE for one in job.env)


def chosen_hcas(
    job: MPIJob, placement: Placement, cluster: Cluster | None, binding: Binding
) -> HCAs:
    """The NICs nearest to the GPUs of a job that asks for them, the same on each of its nodes."""
    if not job.nccl_hca:
        return HCAs()
    why = _why_not(job, placement, binding)
    if why:
        return HCAs(why=why)
    machines = {node.name: node.machine for node in cluster.nodes} if cluster is not None else {}
    found: dict[NodeName, tuple[str, ...]] = {}
    for name, cards in _nearest(placement, machines).items():
        if why := _unnamed(machines.get(name), cards, name):
            return HCAs(why=why)
        found[name] = tuple(machines[name].nics[card].name for card in sorted(cards))
    names = set(found.values())
    if len(names) > 1:
        return HCAs(
            why="the NICs nearest to the GPUs are not called the same on all nodes, and all"
            " workers share one template"
        )
    return HCAs(names=names.pop())


def _why_not(job: MPIJob, placement: Placement, binding: Binding) -> str:
    """Why no names are said, whatever the machines have."""
    if named_by_job(job):
        return "the job sets it itself"
    hosts = len(placement.assignments if binding.separate else placement.nodes)
    if hosts == 1:
        return "all GPUs are in one host, which needs no NIC"
    if binding.guarantee is not Guarantee.GPUS or not all(
        one.gpus for one in placement.assignments
    ):
        return f"the workers may get other GPUs than planned (guarantee {binding.guarantee})"
    given = ["rdma/hca"] if job.rdma else []
    given += [one.name for one in job.device if is_rdma(one.name)]
    if not given and not job.host_network:
        return "the pods are given no NIC: add --rdma, --device rdma/NAME=1 or --hostNetwork"
    own = next((name for name in given if not name.startswith(_SHARED)), None)
    if own is not None:
        return f"which of its NICs a node gives to each pod as {own} is not known before"
    return ""


def _nearest(
    placement: Placement, machines: Mapping[NodeName, Machine]
) -> dict[NodeName, set[int]]:
    """The NICs that the GPUs of the job use on each node; none where the machine is not known.

    Workers of one node share them: of these each takes those that are nearest to its own GPUs.
    """
    found: dict[NodeName, set[int]] = {}
    for one in placement.assignments:
        cards, machine = found.setdefault(one.node, set()), machines.get(one.node)
        if machine is not None and not machine.nics_assumed:
            cards.update(card for gpu in one.gpus for card in nearest_nics(machine, gpu))
    return found


def _unnamed(machine: Machine | None, cards: set[int], node: NodeName) -> str:
    """Why the NICs of a node cannot be named; empty if they can."""
    if machine is not None and machine.nics_assumed:
        return f"the NICs of node {node} are only assumed: {one_line(machine.nics_assumed)}"
    if machine is None or not cards:
        return f"the NICs of node {node} are not known"
    names = [machine.nics[card].name for card in sorted(cards)]
    odd = next((name for name in names if not _HCA.fullmatch(name)), "")
    return f"{one_line(odd)} of node {node} is no name of an HCA, such as mlx5_0" if odd else ""
