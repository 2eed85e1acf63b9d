"""The NICs for NCCL: those nearest to the GPUs of a job, by name (NCCL_IB_HCA).

All workers share one template, so one list of names must be right on every node. Otherwise, or if
pods may have other NICs, the variable is not set and NCCL chooses by itself: with a list that names
no NIC of the pod it would fall back to sockets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from arena_topo.bandwidth.nics import nearest_nics
from arena_topo.escaping import one_line
from arena_topo.job import MPIJob
from arena_topo.manifests import HCA_VARIABLE, Binding, Guarantee
from arena_topo.solver import Placement
from arena_topo.topology import Cluster, Machine, NodeName
from arena_topo.topology.nics import RDMA_DEVICE, is_rdma

_HCA = re.compile(r"mlx[45]_\w{1,56}", re.ASCII)
"""The names of devices of the Linux drivers mlx4 and mlx5, to which NCCL_IB_HCA applies (NCCL,
environment variables)."""

_SHARED = "rdma/"
"""The prefix of devices of which each pod gets all that there are on the node
(Mellanox/k8s-rdma-shared-dev-plugin)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HCAs:
    """The names of the NICs in the order of the machine, or why there are none."""

    names: tuple[str, ...] = ()
    why: str = ""


def named_by_job(job: MPIJob) -> bool:
    """Whether a job names the NICs for NCCL itself: by --env, or by -x in its command."""
    return HCA_VARIABLE in job.command or any(variable.key == HCA_VARIABLE for variable in job.env)


def chosen_hcas(
    job: MPIJob, placement: Placement, cluster: Cluster | None, binding: Binding
) -> HCAs:
    """The NICs nearest to the GPUs of a job with --nccl-hca, the same on each of its nodes."""
    if not job.nccl_hca:
        return HCAs()
    hosts = len(placement.assignments if binding.separate else placement.nodes)
    known = all(worker.gpus for worker in placement.assignments)
    resources = [device.name for device in job.device if is_rdma(device.name)]
    resources += [RDMA_DEVICE] * job.rdma
    own = next((name for name in resources if not name.startswith(_SHARED)), "")
    for wrong, why in (
        (named_by_job(job), "the job sets it itself"),
        (hosts == 1, "all GPUs are in one host, which needs no NIC"),
        (
            binding.guarantee is not Guarantee.GPUS or not known,
            f"the workers may get other GPUs than planned (guarantee {binding.guarantee})",
        ),
        (
            not resources and not job.host_network,
            "the pods are given no NIC: add --rdma, --device rdma/NAME=1 or --hostNetwork",
        ),
        (own, f"which of its NICs a node gives to each pod as {own} is not known before"),
    ):
        if wrong:
            return HCAs(why=why)
    machines = {node.name: node.machine for node in cluster.nodes} if cluster is not None else {}
    try:
        names = {_names(name, machines.get(name), placement) for name in placement.nodes}
    except ValueError as error:
        return HCAs(why=str(error))
    if len(names) > 1:
        return HCAs(
            why="the NICs nearest to the GPUs are not called the same on all nodes, and all"
            " workers share one template"
        )
    return HCAs(names=names.pop())


def _names(node: NodeName, machine: Machine | None, placement: Placement) -> tuple[str, ...]:
    """The NICs nearest to each GPU of the job on a node; ValueError says why they have no names."""
    if machine is not None and machine.nics_assumed:
        raise ValueError(
            f"the NICs of node {node} are only assumed: {one_line(machine.nics_assumed)}"
        )
    gpus = [gpu for worker in placement.assignments if worker.node == node for gpu in worker.gpus]
    near = {card for gpu in gpus for card in nearest_nics(machine, gpu)} if machine else set()
    if machine is None or not near:
        raise ValueError(f"the NICs of node {node} are not known")
    names = tuple(machine.nics[card].name for card in sorted(near))
    for name in names:
        if not _HCA.fullmatch(name):
            raise ValueError(
                f"{one_line(name)} of node {node} is no name of an HCA, such as mlx5_0"
            )
    return names
