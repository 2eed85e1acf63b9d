"""Changes to a job that would give its pods more bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs

from arena_topo.bandwidth import Estimate, Wire
from arena_topo.errors import ArenaError
from arena_topo.gang import planning, shape
from arena_topo.gang.request import Site
from arena_topo.job import MPIJob, PodShape
from arena_topo.manifests import Plan, estimates
from arena_topo.manifests.forecast import counted_on, valued_as
from arena_topo.solver import Placement, band
from arena_topo.solver.door import revalue
from arena_topo.topology import Cluster, Node
from arena_topo.topology.nics import RDMA_DEVICE


def advice_on_plan(plan: Plan, cluster: Cluster, site: Site) -> tuple[str, ...]:
    """Changes that would give the pods of a plan more: another shape, or the NICs of their nodes.

    `cluster` is the cluster on which the plan was made, so it also holds for a job that has its
    GPUs by now.
    """
    placement, binding, forecast = plan.placement, plan.binding, plan.forecast
    if placement is None or binding is None or forecast is None or forecast.usable is None:
        return ()
    shapes = _other_shape(plan.job, cluster, site, forecast.usable) if binding.separate else None
    chosen = set(placement.nodes)
    nodes = [node for node in cluster.nodes if node.name in chosen]
    nics = None
    if placement.wire is not Wire.RDMA and all(map(_has_rdma, nodes)):
        other = revalue(
            structs.replace(placement, wire=Wire.RDMA), cluster, joined=not binding.separate
        )
        estimate = counted_on(other, binding)
        if estimate is not None and band(estimate.point) > band(forecast.usable):
            nics = _with_nics(nodes, estimate, placement)
    return tuple(filter(None, (shapes, nics)))


def _has_rdma(node: Node) -> bool:
    """Whether a node offers RDMA devices, or its NICs are known, not assumed from its model."""
    return bool(node.rdma or (node.machine.nics and not node.machine.nics_assumed))


def _with_nics(nodes: Sequence[Node], estimate: Estimate, placement: Placement) -> str:
    """The bandwidth of pods with the NICs of their nodes, which they do not get now."""
    words = f"would give these pods {estimates.estimate_text(estimate)}"
    before = placement.bandwidth.assumed if placement.bandwidth is not None else ()
    if more := [note for note in estimate.assumed if note not in before]:
        words += f", assumed: {'; '.join(more)}"
    offered = {node.rdma for node in nodes}
    if offered == {RDMA_DEVICE}:
        return f"--rdma {words}"
    if len(offered) == 1 and "" not in offered:
        return f"--device {offered.pop()}=1 {words}"
    return f"these nodes offer pods no common RDMA device; their NICs {words}"


def _other_shape(job: MPIJob, cluster: Cluster, site: Site, least: float) -> str | None:
    """The bandwidth of pods of another shape, on any nodes, if that is in a higher band.

    Fused pods need no support from the cluster, so `shared` is named only if it gives more.
    """
    words = None
    tried = {PodShape.FUSED, PodShape.SHARED} - {job.pod_shape}
    if shape.fixes_ranks(job.command):
        tried.discard(PodShape.FUSED)
    if job.pod_shape is PodShape.FUSED or job.workers == 1:
        return None
    for pods in sorted(tried):
        try:
            other = planning.as_pods(replace(job, pod_shape=pods), cluster, site, later=False)
            decision = planning.decide_unexplained(other, cluster, site)
        except ArenaError:
            # A shape that cannot be planned is not advice.
            continue
        if decision.placement is None or decision.binding is None:
            continue
        placement, binding = decision.placement, decision.binding
        counted = counted_on(valued_as(placement, cluster, binding), binding)
        if counted is None or band(counted.point) <= band(least):
            continue
        least, gives = counted.point, estimates.estimate_text(counted)
        planned = placement.bandwidth
        if planned is not None and planned.point > least:
            gives += f" at worst, {estimates.gbps_text(planned.point)} as planned"
        words = f"--pod-shape shared would give {gives}, where the namespace allows hostIPC"
        if pods is PodShape.FUSED:
            size = (
                f"{other.workers} pod{'s' * (other.workers != 1)} of {job.workers // other.workers}"
            )
            words = f"--pod-shape fused ({size} workers) would give {gives}"
    return words
