"""Which local pods hold which GPUs of which machine, for those who look at nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from arena_topo.engines import JobStatus, Phase
from arena_topo.engines.occupancy import NodePod, Occupancy, viewed
from arena_topo.topology import Cluster, GPUSet, gpu_set


def occupancy(cluster: Cluster, jobs: Iterable[JobStatus], *, address: str) -> Occupancy:
    """The machines with the pods of these jobs that hold GPUs there.

    GPUs of workers that have not started yet are planned. `address` is this machine's.
    """
    pods: dict[str, list[NodePod]] = defaultdict(list)
    planned: dict[str, int] = defaultdict(int)
    for job in jobs:
        forecast = job.forecast
        # What runs on another machine of the same home holds nothing here.
        elsewhere = job.phase is Phase.UNKNOWN
        if forecast is None or forecast.state != "placed" or job.phase.over or elsewhere:
            continue
        running = {one.worker: one for one in job.instances if one.holds_gpus}
        for worker, node, gpus in forecast.workers:
            one = running.get(worker)
            if one is None:
                planned[node] |= gpu_set(gpus)
                continue
            devices = tuple(sorted(gpus))
            pods[node].append(
                NodePod(
                    name=one.name,
                    namespace=job.namespace,
                    status=one.status,
                    gpus=len(gpus),
                    devices=devices,
                    visible=devices,
                )
            )
    plain = viewed(cluster, pods=True)
    return replace(
        plain,
        nodes=tuple(
            replace(
                node,
                ip=address,
                pods=tuple(sorted(pods[node.name], key=lambda pod: (pod.namespace, pod.name))),
                planned=GPUSet(planned[node.name]),
                capacity={node.node.resource: float(len(node.node.machine.gpus))},
                allocatable={node.node.resource: float(len(node.node.machine.gpus))},
            )
            for node in plain.nodes
        ),
    )
