"""Kubernetes objects -> the few hundred bytes of each that `observed` reads."""

from __future__ import annotations

from typing import Any

from arena_topo.clusters import slices
from arena_topo.clusters.objects import Object, items, of, only, texts
from arena_topo.clusters.queues import suspended, suspender
from arena_topo.clusters.usage import (
    ACK_ALLOCATION,
    OVER,
    REQUIRED,
    worker_replicas,
    worker_template,
)
from arena_topo.manifests import (
    FORECAST,
    FORMAT,
    GATE,
    GPU_GROUP,
    GPU_VISIBLE,
    GUARANTEE,
    MAP,
    REQUEST,
    STATE,
)
from arena_topo.names import is_subdomain
from arena_topo.topology import published

_POD_ANNOTATIONS = (GPU_GROUP, GPU_VISIBLE, ACK_ALLOCATION, GUARANTEE, FORMAT)
_JOB_ANNOTATIONS = (MAP, STATE, REQUEST, FORECAST)


def project(kind: str, one: Object) -> dict[str, Any]:
    """Keep of an object of these kinds only what `cluster` reads, in the same shape.

    A pod of 6.7 kB becomes some 400 bytes, which is what makes clusters of 10,000 nodes fit in
    memory. KeyError for another kind; TypeError or ValueError for an object without a name.
    """
    try:
        small = PROJECTIONS[kind](one)
    except OverflowError:  # JSON has no bound for numbers: 1e999 is read as infinity
        raise ValueError("a number in it is too large") from None
    name = small["metadata"].get("name")
    if not isinstance(name, str) or not name:
        raise ValueError("it has no name")
    if kind == "Node" and not is_subdomain(name):
        raise ValueError("no node can be called so")
    return {"kind": kind, **small}


def _labels(meta: Object) -> dict[str, str]:
    return {str(key): str(value) for key, value in of(meta, "labels").items()}


def _project_node(one: Object) -> dict[str, Any]:
    meta, spec, status = of(one, "metadata"), of(one, "spec"), of(one, "status")
    return {
        "metadata": {"name": meta.get("name"), "labels": _labels(meta)},
        "spec": {
            "unschedulable": spec.get("unschedulable"),
            "taints": [texts(taint, ("key", "value", "effect")) for taint in items(spec, "taints")],
        },
        "status": {
            **{
                side: dict(of(status, side))
                for side in ("allocatable", "capacity")
                if status.get(side) is not None
            },
            "conditions": [
                texts(condition, ("type", "status"))
                for condition in items(status, "conditions")
                if condition.get("type") == "Ready"
            ],
        },
    }


def _project_pod(one: Object) -> dict[str, Any]:
    meta, spec, status = of(one, "metadata"), of(one, "spec"), of(one, "status")
    small: dict[str, Any] = {
        "metadata": {
            **texts(meta, ("name", "namespace", "deletionTimestamp")),
            "annotations": only(of(meta, "annotations"), _POD_ANNOTATIONS),
        },
        "spec": texts(spec, ("nodeName",)),
        "status": texts(status, ("phase",)),
    }
    over = small["status"].get("phase") in OVER
    if "nodeName" not in small["spec"] and not over and FORMAT in small["metadata"]["annotations"]:
        small["spec"] |= _promise(spec)
    if "nodeName" in small["spec"] and not over:
        small["spec"] |= only(spec, ("overhead", "resources")) | _containers(spec)
        # Without a start no kubelet has given it anything.
        small["status"] |= texts(status, ("startTime",))
        if spec.get("resourceClaims"):
            small["spec"]["resourceClaims"] = _claims(spec, "resourceClaims")
            small["status"]["resourceClaimStatuses"] = _claims(status, "resourceClaimStatuses")
        if status.get("extendedResourceClaimStatus"):
            extended = of(status, "extendedResourceClaimStatus")
            small["status"]["extendedResourceClaimStatus"] = texts(extended, ("resourceClaimName",))
    return small


def _promise(spec: Object) -> dict[str, Any]:
    """Of a worker without a node: which nodes it is kept to, and what it will take there.

    Nothing of one that waits at our gate, which no scheduler looks at before it has its place.
    """
    if any(gate.get("name") == GATE for gate in items(spec, "schedulingGates")):
        return {}
    required = of(of(of(spec, "affinity"), "nodeAffinity"), REQUIRED)
    terms = [
        {"matchFields": [only(one, ("key", "operator", "values")) for one in fields]}
        for term in items(required, "nodeSelectorTerms")
        if (fields := items(term, "matchFields")) or term
    ]
    if not terms:
        return {}
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
    return {"affinity": affinity, **only(spec, ("overhead", "resources")), **_containers(spec)}


def _claims(one: Object, key: str) -> list[dict[str, Any]]:
    return [texts(claim, ("name", "resourceClaimName")) for claim in items(one, key)]


def _containers(spec: Object) -> dict[str, Any]:
    return {
        key: [only(one, ("resources", "restartPolicy")) for one in items(spec, key)]
        for key in ("containers", "initContainers")
        if spec.get(key)
    }


def _project_mpijob(one: Object) -> dict[str, Any]:
    meta, status = of(one, "metadata"), of(one, "status")
    template, replicas = worker_template(one), worker_replicas(one)
    # What its own queue has suspended holds nothing, whatever is still written on it.
    stopped = suspended(one) and suspender(one) is not None
    notes = [key for key in _JOB_ANNOTATIONS if not (stopped and key == STATE)]
    return {
        "metadata": {
            **texts(meta, ("name", "namespace", "deletionTimestamp")),
            "annotations": only(of(meta, "annotations"), notes),
        },
        "spec": {
            **({} if replicas is None else {"replicas": replicas}),
            **({"runPolicy": {"suspend": True}} if suspended(one) else {}),
            "template": {
                "metadata": {
                    "annotations": only(of(of(template, "metadata"), "annotations"), (GUARANTEE,))
                },
                "spec": _containers(of(template, "spec")),
            },
        },
        "status": {
            **texts(status, ("launcherStatus", "completionTime")),
            "conditions": [
                texts(condition, ("type", "status", "reason"))
                for condition in items(status, "conditions")
            ],
        },
    }


def _project_config_map(one: Object) -> dict[str, Any]:
    meta = of(one, "metadata")
    return {
        "metadata": {
            **texts(meta, ("name", "namespace")),
            "labels": _labels(meta),
            "annotations": only(of(meta, "annotations"), (published.KNOWLEDGE_ANNOTATION,)),
        },
        "data": dict(of(one, "data")) if publishes_topology(meta) else {},
    }


def _project_topology(one: Object) -> dict[str, Any]:
    return {
        "metadata": texts(of(one, "metadata"), ("name",)),
        # `network` says what is wrong with it.
        "spec": one.get("spec"),
    }


PROJECTIONS = {
    "Node": _project_node,
    "Pod": _project_pod,
    "MPIJob": _project_mpijob,
    "ConfigMap": _project_config_map,
    "Topology": _project_topology,
    "ResourceSlice": slices.project_slice,
    "ResourceClaim": slices.project_claim,
}


def publishes_topology(meta: Object) -> bool:
    """Whether an object with this metadata says what machine a node is, and may be believed."""
    return (
        meta.get("namespace") in published.NAMESPACES
        and of(meta, "labels").get(published.SCHEDULE_LABEL) == "topology"
    )
