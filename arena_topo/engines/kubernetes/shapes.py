"""Whether an answer of a server has the shape of an object, as far as it is read.

Pure. An API server keeps to the shape; anything else that answers in its place may not. The one
exception are custom resources whose CRD checks little: one tenant's invalid object must not stop
others, so their readers check each (`oddity`) and skip the invalid ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypedDict, TypeVar

import msgspec

from arena_topo.errors import ArenaError, ClusterError
from arena_topo.escaping import brief
from arena_topo.topology import decoding


class Unsure(ArenaError):
    """An unreadable answer: a write may have been applied, or not."""


class Unreadable(Unsure, ClusterError):
    """An answer is truncated or invalid."""


_ENDED = {"exitCode": int, "reason": str, "message": str, "signal": int}
_STATE = {"running": dict, "waiting": {"reason": str, "message": str}, "terminated": _ENDED}
_CONTAINER = {
    "name": str,
    "env": [{"name": str}],
    "resources": {"limits": dict, "requests": dict},
}
_CONTAINER_STATUS = {"name": str, "state": _STATE, "lastState": _STATE, "restartCount": int}
_REQUIRED = {
    "nodeSelectorTerms": [{"matchFields": [{"key": str, "values": [str]}]}],
}
_POD_SPEC = {
    "containers": [_CONTAINER],
    "initContainers": [_CONTAINER],
    "ephemeralContainers": [_CONTAINER],
    "nodeName": str,
    "priorityClassName": str,
    "restartPolicy": str,
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _REQUIRED}},
    "schedulingGates": [{"name": str}],
    "schedulingGroup": dict,
    "resourceClaims": [{"name": str}],
    "volumes": [{"name": str, "configMap": {"name": str}}],
}
_TEXTS = dict[str, str]
_META = {"labels": _TEXTS, "annotations": _TEXTS}
_REPLICAS = {"replicas": int, "template": {"metadata": _META, "spec": _POD_SPEC}}
_READ = {
    "apiVersion": str,
    "kind": str,
    "metadata": {
        "name": str,
        "namespace": str,
        "uid": str,
        "resourceVersion": str,
        **_META,
        "ownerReferences": [{"kind": str, "name": str, "uid": str}],
    },
    "spec": {
        **_POD_SPEC,
        **_REPLICAS,
        "runPolicy": dict,
        # Of a volume claim, a node, a service, a DeviceClass.
        "accessModes": [str],
        "taints": [{"key": str, "value": str, "effect": str}],
        "ports": [dict],
        "selectors": [{"cel": {"expression": str}}],
        "extendedResourceName": str,
        # Of a quota.
        "scopes": [str],
        "scopeSelector": {
            "matchExpressions": [{"scopeName": str, "operator": str, "values": [str]}]
        },
        "mpiReplicaSpecs": {"Launcher": _REPLICAS, "Worker": _REPLICAS},
    },
    "status": {
        "phase": str,
        "reason": str,
        "message": str,
        "hostIP": str,
        "podIP": str,
        "launcherStatus": str,
        "conditions": [{"type": str, "status": str, "reason": str, "message": str}],
        "containerStatuses": [_CONTAINER_STATUS],
        "initContainerStatuses": [_CONTAINER_STATUS],
        # Of a Deployment, a service, a node, a quota.
        "readyReplicas": int,
        "loadBalancer": {"ingress": [{"ip": str, "hostname": str}]},
        "capacity": dict,
        "allocatable": dict,
        "hard": dict,
        "used": dict,
        # Of reviews.
        "userInfo": {"username": str},
    },
    # Of an event, a PriorityClass.
    "involvedObject": {"kind": str, "name": str, "uid": str},
    "series": dict,
    "type": str,
    "reason": str,
    "message": str,
    "value": int,
    # Of what a server serves.
    "resources": [{"name": str}],
    "versions": [{"version": str}],
    "preferredVersion": {"version": str},
}
"""The fields that are read of MPIJobs (all three versions), pods and all other kinds; a name has
the same type in all of them."""


def typed(shape: Any) -> Any:
    """The type of a shape, ready for threads: msgspec builds its tables at the first use."""
    record_type = _type(shape)
    msgspec.convert({}, record_type)
    return record_type


def _type(shape: Any) -> Any:
    """The type of a shape: a type, a dict of the shapes under keys, or a list of one shape."""
    if isinstance(shape, list):
        return list[_type(shape[0])]  # type: ignore[misc]
    if not isinstance(shape, dict):
        return shape
    # An optional field may be null too.
    fields = {key: _type(below) | None for key, below in shape.items()}
    return TypedDict("object", fields, total=False)  # type: ignore[operator]


_TYPE = typed(_READ)

_META_OF_POD = (
    *("name", "generateName", "namespace", "uid", "resourceVersion", "generation"),
    *("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"),
    *("labels", "annotations", "ownerReferences", "finalizers"),
)
_POD = {
    **dict.fromkeys(("apiVersion", "kind", "spec", "status"), Any),
    "metadata": dict.fromkeys(_META_OF_POD, Any),
}


_Item = TypeVar("_Item")


class _List(msgspec.Struct, Generic[_Item]):
    kind: str
    items: list[_Item] | None
    """null is Go's empty list."""
    metadata: Any = None


ANY = msgspec.json.Decoder()

LIST = msgspec.json.Decoder(_List[msgspec.Raw])
"""A page of a list, whose objects are left as they came."""

_POD_TYPE = typed(_POD)
POD = msgspec.json.Decoder(_POD_TYPE)
"""A pod without `managedFields`: more than half of what a pod decodes to."""

PODS = msgspec.json.Decoder(_List[_POD_TYPE])  # type: ignore[valid-type]
"""A page of such pods."""


def oddity(obj: Any) -> str | None:
    """What is wrong with an object: `status.conditions: expected a list, got a text`; else None.

    Only `metadata.name` is required.
    """
    meta = obj.get("metadata") if isinstance(obj, Mapping) else None
    if not isinstance(meta, Mapping) or not meta.get("name"):
        return "it has no name"
    return shape_error(obj)


def shape_error(obj: Any, kind: Any = _TYPE) -> str | None:
    """What is wrong with an answer that may lack a name, such as a review; None if nothing is."""
    try:
        msgspec.convert(obj, kind)
    except (ValueError, RecursionError) as error:
        return ": ".join(filter(None, decoding.decoding_error(error)))
    return None


def sound(obj: dict[str, Any]) -> dict[str, Any]:
    """The same object; Unreadable if it does not have the shape of an object."""
    odd = oddity(obj)
    if odd is not None:
        raise nonsense(obj, odd)
    return obj


def stored_job(obj: dict[str, Any], *, tried: bool = False) -> dict[str, Any]:
    """The same MPIJob as a server stores it; Unreadable if a field is missing that each has.

    A job that was only `tried`, in a dry run, has no revision.
    """
    meta, spec = sound(obj)["metadata"], obj.get("spec")
    for key in ("namespace", "uid", *(() if tried else ("resourceVersion",))):
        if not meta.get(key):
            raise nonsense(obj, f"there is no metadata.{key}")
    if spec is None:
        raise nonsense(obj, "there is no spec")
    return obj


def nonsense(obj: Any, odd: str) -> Unreadable:
    """The error for an invalid object."""
    meta = obj.get("metadata") if isinstance(obj, Mapping) else None
    name = meta.get("name") if isinstance(meta, dict) else None
    return Unreadable(
        f"the API server's answer about {brief(str(name or 'an object'), 253)} makes no sense",
        why=odd,
        hint="look for a proxy in between, and compare with `kubectl get -o yaml`",
    )


def common_fields(obj: dict[str, Any]) -> dict[str, Any]:
    """An object with only the fields that are valid in every object."""
    kept = ("name", "namespace", "uid", "creationTimestamp")
    meta = obj["metadata"]
    return {"metadata": {key: meta[key] for key in kept if isinstance(meta.get(key), str)}}
