"""How a placement is made to hold: the objects pinned, and what that guarantees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from copy import deepcopy

from arena_topo.errors import ArenaError
from arena_topo.job import MPIJob
from arena_topo.manifests.values import (
    FORMAT,
    GPU_GROUP,
    GPU_VISIBLE,
    GUARANTEE,
    ApiVersion,
    Binding,
    Guarantee,
    Manifest,
)
from arena_topo.solver import Placement
from arena_topo.topology import ORDINARY, PUBLISHED, TAINT, Cluster, Node, NodeName, gpu_set

_HOSTNAME = "kubernetes.io/hostname"


def bind(job: MPIJob, placement: Placement, cluster: Cluster | None, api: ApiVersion) -> Binding:
    """The strongest promise that one template, shared by all workers, can keep.

    `gpus` only where the kubelet has no choice (a worker takes its whole node), or where nobody
    but arena-topo uses the nodes, so that showing a container GPUs of our choice takes them from
    nobody. `node` where affinity can force how many workers each node gets.
    """
    known = {one.name: one for one in cluster.nodes} if cluster is not None else {}
    nodes = [known.get(name) for name in placement.nodes]
    per_node = set(Counter(one.node for one in placement.assignments).values())
    alone = per_node == {1}
    whole = alone and all(_is_whole(one.gpus, known.get(one.node)) for one in placement.assignments)
    same = len({frozenset(one.gpus) for one in placement.assignments}) == 1
    told = all(one.gpus for one in placement.assignments)
    ours = all(node is not None and node.dedicated and not node.foreign for node in nodes)
    # In v1alpha1 the launcher is made from the same template: it would see the GPUs as well.
    injectable = told and same and job.gpus > 0 and api is not ApiVersion.V1ALPHA1
    if whole or (alone and injectable and ours):
        return Binding(name="template", guarantee=Guarantee.GPUS, inject=injectable)
    if len(nodes) > 1 and len(per_node) > 1:
        return Binding(
            name="template",
            guarantee=Guarantee.ADVISORY,
            why="the nodes take different numbers of workers, and all workers share one template"
            " that cannot say so",
        )
    if not told:
        why = "a node does not say which of its GPUs are free, so the kubelet picks them"
    elif not alone:
        why = (
            "several workers share a node and one template that cannot tell them apart, so the"
            " kubelet picks each one's GPUs"
        )
    elif not same:
        why = (
            "the GPUs differ from node to node, and all workers share one template, so the kubelet"
            " picks them"
        )
    elif not ours:
        why = "other pods may use GPUs of the same nodes, so the kubelet picks the workers' GPUs"
    else:
        why = (
            "in v1alpha1 the launcher shares the template of the workers, so the kubelet picks the"
            " GPUs"
        )
    return Binding(name="template", guarantee=Guarantee.NODE, why=why)


def _is_whole(gpus: tuple[int, ...], node: Node | None) -> bool:
    """Whether these are all GPUs that the kubelet of a node can give."""
    if node is None or not gpus:
        return False
    everything = node.machine.everything if node.allocatable is None else node.allocatable
    return gpu_set(gpus) == everything


def placed(
    mpijob: Manifest, placement: Placement, binding: Binding, *, kept: Iterable[str] = ()
) -> Manifest:
    """The same MPIJob with its workers pinned to the chosen nodes; the one given stays as it is.

    `kept` are the effects of taints that keep the chosen nodes for arena-topo; workers bear them.
    """
    pinned = deepcopy(mpijob)
    spec = pinned["spec"]
    shared = "template" in spec
    template = spec["template"] if shared else spec["mpiReplicaSpecs"]["Worker"]["template"]
    name = pinned["metadata"]["name"]
    workers = (
        {"mpi_job_name": name, "mpi_role_type": "worker"} if shared else {"gpu-topology": name}
    )
    pod = template["spec"]
    pod["affinity"] = _node_affinity(placement.nodes)
    per_node = set(Counter(one.node for one in placement.assignments).values())
    if len(placement.nodes) > 1 and len(per_node) == 1:
        if per_node == {1} and not shared:
            pod["affinity"] |= _apart(workers)
        else:
            # Also for one worker per node where the launcher is made from the same template: kept
            # apart from workers, it could not run on any of the nodes that it is pinned to.
            pod["topologySpreadConstraints"] = [_evenly(workers)]
    for effect in sorted(set(kept)):
        bears = {"key": TAINT, "operator": "Exists", "effect": effect}
        # The launcher is to run beside its workers.
        for one in (
            [pod] if shared else [pod, spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]]
        ):
            one["tolerations"] = [*one.get("tolerations", ()), bears]
    notes = {FORMAT: "v1", GUARANTEE: binding.guarantee.value}
    gpus = _shared_gpus(placement)
    if gpus:
        notes[GPU_GROUP] = ",".join(map(str, sorted(gpus)))
        notes[GPU_VISIBLE] = ",".join(map(str, gpus))
    template["metadata"]["annotations"] |= notes
    if binding.inject:
        container = pod["containers"][0]
        container["env"] = _with_devices(container["env"])
    return pinned


def _node_affinity(nodes: Iterable[str]) -> Manifest:
    # By name of the node object, not by its hostname label, which need not be the same; terms are
    # alternatives, and matchFields takes exactly one value in each.
    terms = [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [str(node)]}]}
        for node in nodes
    ]
    return {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
        }
    }


def _apart(workers: Mapping[str, str]) -> Manifest:
    term = {"topologyKey": _HOSTNAME, "labelSelector": {"matchLabels": dict(workers)}}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def _evenly(workers: Mapping[str, str]) -> Manifest:
    # With k workers for each of n nodes, a skew of at most 1 leaves only k on each.
    return {
        "maxSkew": 1,
        "topologyKey": _HOSTNAME,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": dict(workers)},
    }


def _shared_gpus(placement: Placement) -> tuple[int, ...]:
    """The job's GPUs on each of its nodes, in ring order if one worker has them all.

    Empty if they are not the same on every node, or not known.
    """
    orders = {one.gpus for one in placement.assignments}
    if len(orders) == 1 and len(placement.nodes) == len(placement.assignments):
        return orders.pop()
    held: dict[NodeName, set[int]] = {}
    for one in placement.assignments:
        if not one.gpus:
            return ()
        held.setdefault(one.node, set()).update(one.gpus)
    sets = {frozenset(gpus) for gpus in held.values()}
    return tuple(sorted(sets.pop())) if len(sets) == 1 else ()


def _with_devices(variables: Iterable[Manifest]) -> list[Manifest]:
    name = "NVIDIA_VISIBLE_DEVICES"
    source = {"fieldRef": {"fieldPath": f"metadata.annotations['{GPU_VISIBLE}']"}}
    kept = [one for one in variables if one["name"] != name]
    return sorted([*kept, {"name": name, "valueFrom": source}], key=lambda one: str(one["name"]))


def _chosen(placement: Placement, cluster: Cluster | None) -> list[Node]:
    names = set(placement.nodes)
    return [one for one in cluster.nodes if one.name in names] if cluster is not None else []


def keeping(placement: Placement, cluster: Cluster | None) -> set[str]:
    """The effects of the taints that keep the chosen nodes for arena-topo."""
    return {
        taint.effect
        for node in _chosen(placement, cluster)
        for taint in node.taints
        if taint.key == TAINT
    }


def offered(
    job: MPIJob, placement: Placement | None, cluster: Cluster | None, api: ApiVersion
) -> str:
    """The GPU resource of the chosen nodes; ArenaError if they differ, as workers are all alike.

    A job that has yet to be placed asks for what most GPUs of the cluster are called, of the nodes
    for topology jobs where there are some; without a cluster for what arena asks for.
    """
    names = (
        {one.resource for one in _chosen(placement, cluster)} if placement is not None else set()
    )
    if len(names) > 1:
        raise ArenaError(
            "the chosen nodes offer their GPUs under different names",
            why=f"{' and '.join(sorted(names))}, and all workers ask for the same",
            hint="choose nodes of one kind with --selector",
        )
    if names:
        return names.pop()
    if job.gputopology and cluster is not None and cluster.nodes:
        kept = [one for one in cluster.nodes if one.dedicated] or cluster.nodes
        gpus: Counter[str] = Counter()
        for one in kept:
            gpus[one.resource] += len(one.machine.gpus)
        return gpus.most_common(1)[0][0]
    return PUBLISHED if job.gputopology and api is ApiVersion.V1ALPHA1 else ORDINARY
