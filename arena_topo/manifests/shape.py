"""How the workers of one node become pods: what each of them sees."""

from __future__ import annotations

from collections.abc import Iterable

from arena_topo.job import MPIJob
from arena_topo.manifests.versions import ApiVersion


def on_host_network(job: MPIJob) -> bool:
    """Whether the job asks for the network of its nodes, and gets no network card of its own."""
    eni = {one.key: one.value for one in job.annotation}.get("k8s.aliyun.com/eni") == "true"
    return job.host_network and not eni


def one_per_node(job: MPIJob, api: ApiVersion) -> bool:
    """Whether no two workers of a job can run on one node, whatever room it has.

    Workers that run sshd do so on the port of their image; on the network of the node only one of
    them gets it (kubeflow/mpi-operator issue 593).
    """
    return api.traits.sshd and on_host_network(job)


def visible(
    workers: Iterable[tuple[int, str, tuple[int, ...]]], *, shared: bool
) -> tuple[tuple[int, ...], ...]:
    """The GPUs that each worker sees, by worker; `workers` are as `parse_map` returns them.

    Its own, in ring order. Under `--pod-shape shared` then those of the job's other workers on its
    node as well, in theirs; there nobody of a node is told anything unless all its workers are.
    """
    ordered = sorted(workers)
    if not shared:
        return tuple(gpus for _index, _node, gpus in ordered)
    held: dict[str, list[tuple[int, ...]]] = {}
    for _index, node, gpus in ordered:
        held.setdefault(node, []).append(gpus)
    return tuple(
        tuple(dict.fromkeys([*gpus, *(gpu for each in held[node] for gpu in each)]))
        if all(held[node])
        else ()
        for _index, node, gpus in ordered
    )
