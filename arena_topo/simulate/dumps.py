"""The cluster of a simulation from dumps: its nodes without jobs, and the jobs that run there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from arena_topo.clusters import dump, observed
from arena_topo.clusters.records import ClaimRecord, JobRecord, PodRecord
from arena_topo.errors import UsageError
from arena_topo.simulate.cases import RunningJob
from arena_topo.topology import Cluster, GPUSet, NodeName, count
from arena_topo.topology.fabric import FabricFile


def read_running_cluster(
    paths: Sequence[str], fabric: FabricFile | None
) -> tuple[Cluster, tuple[RunningJob, ...]]:
    """The cluster of dumps without any pod, and what runs on it, with the time since its start.

    Nodes that take no pods, and those without a whole GPU, are left out. The newest start of a pod
    counts as now. UsageError if the dumps have no usable GPU.
    """
    source = ", ".join(paths)
    records = list(dump.read_dumps(paths))
    busy = observed.cluster(records, source=source, file=fabric)
    used = (PodRecord, JobRecord, ClaimRecord)
    idle = observed.cluster(
        (record for record in records if not isinstance(record, used)), source=source, file=fabric
    )
    nodes = tuple(
        node
        for node in idle.nodes
        if node.unavailable is None and node.shared is None and node.machine.gpus
    )
    if not any(node.free_count for node in nodes):
        raise UsageError(f"{source}: the dump has no node with usable GPUs")
    idle = replace(idle, nodes=nodes)
    pods = [record for record in records if isinstance(record, PodRecord)]
    starts: dict[str, float] = {}
    for pod in pods:
        if pod.started is not None:
            owner = f"{pod.namespace}/{pod.name.rpartition('-worker-')[0] or pod.name}"
            starts[owner] = min(pod.started, starts.get(owner, pod.started))
    now = max((pod.started for pod in pods if pod.started is not None), default=0.0)
    free = {node.name: (node.free, node.free_count) for node in idle.nodes}
    places: dict[str, dict[NodeName, tuple[GPUSet, int]]] = defaultdict(dict)
    for node in (each for each in busy.nodes if each.name in free):
        for job, size, gpus in node.holders:
            known, left = free[node.name]
            mine = GPUSet(gpus & known)
            unnamed = max(0, min(size, left) - count(mine))
            free[node.name] = GPUSet(known & ~mine), left - count(mine) - unnamed
            if mine or unnamed:
                places[job][node.name] = mine, unnamed
    limits = {job.path: job.timeout for job in records if isinstance(job, JobRecord)}
    return idle, tuple(
        RunningJob(
            name=job,
            places=taken,
            age=now - starts[job] if job in starts else None,
            timeout=limits.get(job),
        )
        for job, taken in sorted(places.items())
    )
