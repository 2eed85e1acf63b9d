"""Objects that workers need beside their MPIJob: claims of their GPUs, and their PodGroup.

If a DRA driver publishes the GPUs of a node, each worker has a ResourceClaim named JOB-worker-I
that names its devices by uuid. The scheduler allocates exactly those; a policy gives each worker
its own claim. Tried on a 1.36 control plane, with 256 workers on 64 nodes among others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from arena_topo.manifests import Binding, Manifest
from arena_topo.manifests.pins import worker_template
from arena_topo.numbers import parse_count
from arena_topo.solver import Assignment, Placement
from arena_topo.topology import ORDINARY, PUBLISHED, Cluster, Node, NodeName

SCHEDULING = "scheduling.k8s.io"

_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
"""The valid uuids for a selector; they come from a driver."""


def claims_of(
    mpijob: Manifest, placement: Placement, binding: Binding, cluster: Cluster | None
) -> tuple[Manifest, ...]:
    """The objects that the workers of a binding need; the MPIJob will own them.

    For claims one ResourceClaim per worker; for a gang of the scheduler a Workload and its
    PodGroup; else none. ValueError if the uuids of the GPUs are unknown, which `bind` has checked.
    """
    group = _gang(mpijob, binding.gang_version) if binding.gang else ()
    if binding.name != "claims":
        return group
    nodes = {node.name: node for node in cluster.nodes} if cluster is not None else {}
    ordered = sorted(placement.assignments, key=lambda worker: worker.worker)
    return (*group, *(_claim(mpijob, worker, binding, nodes) for worker in ordered))


def missing_quota_line(quotas: Iterable[Mapping[str, object]], device_class: str) -> str | None:
    """The line that a namespace's quota lacks for claims, or None.

    A quota of a device plugin's resource does not count claims: without a line for the class,
    claims would bypass it.
    """
    limits: dict[str, object] = {}
    for quota in quotas:
        spec = quota.get("spec")
        hard = spec.get("hard") if isinstance(spec, Mapping) else None
        limits |= hard if isinstance(hard, Mapping) else {}
    line = f"{device_class}.deviceclass.resource.k8s.io/devices"
    counted = {f"requests.{name}" for name in (ORDINARY, PUBLISHED)}
    metered = [key for key in limits if key in counted]
    if not metered or line in limits:
        return None
    return f'{line}: "{limits[metered[0]]}"'


def uuids_of(worker: Assignment, nodes: Mapping[NodeName, Node]) -> list[str]:
    """The uuids of a worker's GPUs; ValueError says why no claim can name them."""
    node = nodes.get(worker.node)
    if node is None or not node.driver:
        raise ValueError(f"no DRA driver publishes the GPUs of node {worker.node}")
    known = dict(enumerate(gpu.uuid or "" for gpu in node.machine.gpus))
    for index in worker.gpus:
        if _UUID.fullmatch(known.get(index, "")) is None:
            raise ValueError(
                f"driver {node.driver} does not say the uuid of GPU {index} of node {worker.node}"
            )
    return [known[index] for index in worker.gpus]


def _claim(
    mpijob: Manifest, worker: Assignment, binding: Binding, nodes: Mapping[NodeName, Node]
) -> Manifest:
    uuids = uuids_of(worker, nodes)
    quoted = ", ".join(f"'{uuid}'" for uuid in uuids)
    expression = f"device.attributes['{nodes[worker.node].driver}'].uuid in [{quoted}]"
    # If the free GPUs of a node are not known, the scheduler picks them.
    selectors = {"selectors": [{"cel": {"expression": expression}}]} if uuids else {}
    exactly = {
        "deviceClassName": binding.device_class,
        **selectors,
        "allocationMode": "ExactCount",
        "count": len(uuids) or _gpus_of(mpijob),
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": _metadata(mpijob, f"{mpijob['metadata']['name']}-worker-{worker.worker}"),
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def _gpus_of(mpijob: Manifest) -> int:
    """The number of GPUs of each worker, from a variable that every job of ours has."""
    env = worker_template(mpijob)["spec"]["containers"][0].get("env") or ()
    return next((parse_count(own.get("value")) or 0 for own in env if own.get("name") == "gpus"), 0)


def _metadata(mpijob: Manifest, name: str) -> Manifest:
    ours = mpijob["metadata"]
    space = {"namespace": ours["namespace"]} if "namespace" in ours else {}
    copied = ("app", "release", "createdBy")
    labels = {key: value for key, value in (ours.get("labels") or {}).items() if key in copied}
    return {"name": name, **space, **({"labels": labels} if labels else {})}


def _gang(mpijob: Manifest, version: str) -> tuple[Manifest, ...]:
    """The PodGroup that the policy joins workers to, of the job's name, and its Workload.

    The fields are those of Kubernetes 1.36 (v1alpha2) and 1.37 (v1beta1), which calls the reference
    to the Workload otherwise.
    """
    name = mpijob["metadata"]["name"]
    policy = {"gang": {"minCount": mpijob["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"]}}
    workload = {
        "controllerRef": {"apiGroup": "kubeflow.org", "kind": "MPIJob", "name": name},
        "podGroupTemplates": [{"name": "workers", "schedulingPolicy": policy}],
    }
    reference: Manifest = {"workloadRef": {"workloadName": name, "templateName": "workers"}}
    if version == "v1alpha2":
        template = {"workloadName": name, "podGroupTemplateName": "workers"}
        reference = {"podGroupTemplateRef": {"workload": template}}
    group = {**reference, "schedulingPolicy": policy}
    api, metadata = f"{SCHEDULING}/{version}", _metadata(mpijob, name)
    return (
        {"apiVersion": api, "kind": "Workload", "metadata": metadata, "spec": workload},
        {"apiVersion": api, "kind": "PodGroup", "metadata": metadata, "spec": group},
    )
