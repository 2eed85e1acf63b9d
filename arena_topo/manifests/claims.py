"""What workers need beside their MPIJob: claims of the GPUs chosen for them, and their PodGroup.

Where a DRA driver publishes the GPUs of a node, a claim names the devices by uuid and the scheduler
allocates exactly those. There are two ways:

    per worker  a ResourceClaim for each, named JOB-worker-I; a policy gives each worker its own
    coloured    one ResourceClaimTemplate for all. The groups of GPUs on each node are numbered, and
                alternative c of the template holds group c of every node; a worker takes a whole
                group or nothing, and which one is the scheduler's choice

Both were tried on a 1.36 control plane, 256 workers on 64 nodes among others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from arena_topo.manifests.pinning import claim_template, gpus_of, worker_template
from arena_topo.manifests.values import Binding, Manifest
from arena_topo.solver import Assignment, Placement
from arena_topo.topology import ORDINARY, PUBLISHED, Cluster, Node, NodeName

RESOURCES = "resource.k8s.io/v1"
SCHEDULING = "scheduling.k8s.io"

MOST_GROUPS = 8
"""Alternatives that one request may have (`firstAvailable: Too many: 9: must have at most 8`)."""

LONGEST_SELECTOR = 10 * 1024
"""Bytes that a CEL selector may have (resource.k8s.io, CELSelectorExpressionMaxLength)."""

_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
"""What may stand between quotes in a selector; it comes from a driver."""

_PREFIX = slice(4, 12)
"""The first group of digits of `GPU-12345678-...`."""


def claims_of(
    mpijob: Manifest, placement: Placement, binding: Binding, cluster: Cluster | None
) -> tuple[Manifest, ...]:
    """The objects that workers bound so need beside the MPIJob, which is to own them.

    For claims one ResourceClaim per worker, or the one template; for a gang that the scheduler
    itself holds back a Workload and its PodGroup; else none. ValueError if the cluster does not
    say which devices the GPUs are, which `bind` has checked.
    """
    group = _gang(mpijob, binding.gang_version) if binding.gang else ()
    if binding.name != "claims":
        return group
    nodes = _known(cluster)
    if not binding.coloured:
        return (*group, *(_claim(mpijob, one, binding, nodes) for one in _ordered(placement)))
    colours = _colours(placement, nodes)
    if isinstance(colours, str):
        raise ValueError(colours)  # noqa: TRY004 - a reason, where the groups could not be made
    return (*group, _template(mpijob, colours, len(placement.assignments[0].gpus), binding))


def unclaimable(placement: Placement, cluster: Cluster | None) -> str | None:
    """Why no claim can name the GPUs chosen, or None: a node whose devices are not known."""
    nodes = _known(cluster)
    for one in placement.assignments:
        found = _uuids(one, nodes)
        if isinstance(found, str):
            return found
    return None


def uncoloured(placement: Placement, cluster: Cluster | None) -> str | None:
    """Why one template cannot claim the GPUs of all workers, or None."""
    found = _colours(placement, _known(cluster))
    return found if isinstance(found, str) else None


def unmetered(quotas: Iterable[Mapping[str, object]], device_class: str) -> str | None:
    """The line that a namespace's quota lacks for claims, or None.

    Claims are not counted by a quota of a device plugin's resource: where there is one, and none
    of the class, claiming would take what the quota was to keep.
    """
    limits: dict[str, object] = {}
    for quota in quotas:
        spec = quota.get("spec")
        hard = spec.get("hard") if isinstance(spec, Mapping) else None
        limits |= hard if isinstance(hard, Mapping) else {}
    wanted = f"{device_class}.deviceclass.resource.k8s.io/devices"
    counted = {f"requests.{name}" for name in (ORDINARY, PUBLISHED)}
    metered = [key for key in limits if key in counted]
    if not metered or wanted in limits:
        return None
    return f'{wanted}: "{limits[metered[0]]}"'


def _known(cluster: Cluster | None) -> dict[NodeName, Node]:
    return {one.name: one for one in cluster.nodes} if cluster is not None else {}


def _ordered(placement: Placement) -> list[Assignment]:
    return sorted(placement.assignments, key=lambda one: one.worker)


def _uuids(one: Assignment, nodes: Mapping[NodeName, Node]) -> tuple[str, list[str]] | str:
    """The driver of a worker's GPUs and their uuids, or why there are none."""
    node = nodes.get(one.node)
    if node is None or not node.driver:
        return f"no DRA driver publishes the GPUs of node {one.node}"
    uuids = []
    for index in one.gpus:
        uuid = node.machine.gpus[index].uuid if index < len(node.machine.gpus) else None
        if uuid is None or _UUID.fullmatch(uuid) is None:
            return f"driver {node.driver} does not say the uuid of GPU {index} of node {one.node}"
        uuids.append(uuid)
    return node.driver, uuids


def _claim(
    mpijob: Manifest, one: Assignment, binding: Binding, nodes: Mapping[NodeName, Node]
) -> Manifest:
    found = _uuids(one, nodes)
    if isinstance(found, str):
        raise ValueError(found)  # noqa: TRY004 - a reason, where the devices are not known
    driver, uuids = found
    # Where a node does not let us know which GPUs are free, the scheduler picks them.
    selectors = [_selector(_full(driver, uuids))] if uuids else []
    return {
        "apiVersion": RESOURCES,
        "kind": "ResourceClaim",
        "metadata": _metadata(mpijob, f"{mpijob['metadata']['name']}-worker-{one.worker}"),
        "spec": _request(
            {
                "exactly": {
                    "deviceClassName": binding.device_class,
                    **({"selectors": selectors} if selectors else {}),
                    "allocationMode": "ExactCount",
                    "count": len(uuids) or gpus_of(worker_template(mpijob)),
                }
            }
        ),
    }


def _template(mpijob: Manifest, colours: list[str], each: int, binding: Binding) -> Manifest:
    alternatives = [
        {
            "name": f"c{index}",
            "deviceClassName": binding.device_class,
            "selectors": [_selector(expression)],
            "allocationMode": "ExactCount",
            "count": each,
        }
        for index, expression in enumerate(colours)
    ]
    return {
        "apiVersion": RESOURCES,
        "kind": "ResourceClaimTemplate",
        "metadata": _metadata(mpijob, claim_template(mpijob["metadata"]["name"])),
        "spec": {"spec": _request({"firstAvailable": alternatives})},
    }


def _request(what: Manifest) -> Manifest:
    return {"devices": {"requests": [{"name": "gpu", **what}]}}


def _selector(expression: str) -> Manifest:
    return {"cel": {"expression": expression}}


def _metadata(mpijob: Manifest, name: str) -> Manifest:
    ours = mpijob["metadata"]
    space = {"namespace": ours["namespace"]} if "namespace" in ours else {}
    kept = ("app", "release", "createdBy")
    labels = {key: value for key, value in (ours.get("labels") or {}).items() if key in kept}
    return {"name": name, **space, **({"labels": labels} if labels else {})}


def _colours(placement: Placement, nodes: Mapping[NodeName, Node]) -> list[str] | str:
    """A selector for group 0, 1, ... of every node, or why that cannot be."""
    most = max(Counter(one.node for one in placement.assignments).values())
    if most > MOST_GROUPS:
        return f"{most} workers share a node, and a claim template tells {MOST_GROUPS} apart"
    groups: list[list[str]] = [[] for _ in range(most)]
    taken: Counter[NodeName] = Counter()
    drivers = set()
    for one in _ordered(placement):
        found = _uuids(one, nodes)
        if isinstance(found, str):
            return found
        driver, uuids = found
        if not uuids:
            return f"node {one.node} does not say which of its GPUs are free"
        drivers.add(driver)
        groups[taken[one.node]] += uuids
        taken[one.node] += 1
    if len(drivers) > 1:
        return f"the GPUs are published by several drivers: {', '.join(sorted(drivers))}"
    driver = drivers.pop()
    others = [gpu.uuid for node in nodes.values() if node.driver for gpu in node.machine.gpus]
    found_all = [_shortest(driver, uuids, others) for uuids in groups]
    whole = [one for one in found_all if one is not None]
    if len(whole) < len(groups):
        return (
            f"a selector of {max(map(len, groups))} GPUs is longer than the"
            f" {LONGEST_SELECTOR} bytes that it may have"
        )
    return whole


def _shortest(driver: str, uuids: list[str], others: Iterable[str | None]) -> str | None:
    """The selector of these GPUs that fits, by their whole uuids or else by what begins them."""
    full = _full(driver, uuids)
    if len(full) <= LONGEST_SELECTOR:
        return full
    begin, end = _PREFIX.start, _PREFIX.stop
    wanted = set(uuids)
    begins = {uuid[_PREFIX] for uuid in uuids}
    for uuid in others:
        # An expression that fails on one device, for being too short, fails for all of them.
        if uuid is None or len(uuid) < end or (uuid not in wanted and uuid[_PREFIX] in begins):
            return None
    short = f"{_attribute(driver)}.substring({begin}, {end}) in [{_quoted(sorted(begins))}]"
    return short if len(begins) == len(uuids) and len(short) <= LONGEST_SELECTOR else None


def _full(driver: str, uuids: Iterable[str]) -> str:
    return f"{_attribute(driver)} in [{_quoted(uuids)}]"


def _attribute(driver: str) -> str:
    return f"device.attributes['{driver}'].uuid"


def _quoted(words: Iterable[str]) -> str:
    return ", ".join(f"'{word}'" for word in words)


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
