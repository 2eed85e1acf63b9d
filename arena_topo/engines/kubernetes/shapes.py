"""Whether what a server gives out as an object has the shape of one, as far as it is read.

Pure. An API server keeps to the shape; whatever else may answer in its place need not. The one
exception are custom resources whose CRD checks little: what one tenant writes there must stop
nobody else, so whoever lists them looks at each (`oddity`) and goes on without the odd ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arena_topo.errors import ClusterError
from arena_topo.escaping import brief

_Shape = Any
"""A type; a dict of the shapes under keys; a list of one shape; or `_Map` of texts to texts."""


class _Map:
    """Texts by texts, as labels are."""


_ENDED = {"exitCode": int, "reason": str, "message": str, "signal": int}
_STATE = {"running": {}, "waiting": {"reason": str, "message": str}, "terminated": _ENDED}
_CONTAINER = {
    "name": str,
    "env": [{"name": str}],
    "resources": {"limits": {}, "requests": {}},
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
    "schedulingGroup": {},
    "resourceClaims": [{"name": str}],
    "volumes": [{"name": str, "configMap": {"name": str}}],
}
_META = {"labels": _Map, "annotations": _Map}
_REPLICAS = {"replicas": int, "template": {"metadata": _META, "spec": _POD_SPEC}}
_KNOWN: dict[str, _Shape] = {
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
        "runPolicy": {},
        # Of a node, a service, a DeviceClass.
        "taints": [{"key": str, "value": str, "effect": str}],
        "ports": [{}],
        "selectors": [{"cel": {"expression": str}}],
        "extendedResourceName": str,
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
        "capacity": {},
        "allocatable": {},
        "hard": {},
        "used": {},
        # Of reviews.
        "userInfo": {"username": str},
    },
    # Of an event, a PriorityClass.
    "involvedObject": {"kind": str, "name": str, "uid": str},
    "series": {},
    "type": str,
    "reason": str,
    "message": str,
    "value": int,
    # Of what a server serves.
    "resources": [{"name": str}],
    "versions": [{"version": str}],
    "preferredVersion": {"version": str},
}
"""What is read of MPIJobs (all three versions), pods and all others; the names of their fields
differ where they do."""

_TYPES = {str: "text", int: "number"}


def oddity(one: Any) -> str | None:
    """What is wrong with an object: `status.conditions is no list`; None if nothing is.

    What may be absent may be null too; only `metadata.name` must be there.
    """
    meta = one.get("metadata") if isinstance(one, Mapping) else None
    if not isinstance(meta, Mapping) or not meta.get("name"):
        return "it has no name"
    return misfit(one)


def misfit(one: Any) -> str | None:
    """What is wrong with an answer that need not have a name, such as a review."""
    return _odd(one, _KNOWN, "")


def sound(one: dict[str, Any], kind: type[ClusterError] = ClusterError) -> dict[str, Any]:
    """The same object; ClusterError, of this kind, if it has not the shape of one."""
    odd = oddity(one)
    if odd is not None:
        raise nonsense(one, odd, kind)
    return one


def stored_job(
    one: dict[str, Any], kind: type[ClusterError] = ClusterError, *, tried: bool = False
) -> dict[str, Any]:
    """The same MPIJob as a server stores it; ClusterError if something is missing that each has.

    One that was only `tried`, in a dry run, has no revision.
    """
    meta, spec = sound(one, kind)["metadata"], one.get("spec")
    for key in ("namespace", "uid", *(() if tried else ("resourceVersion",))):
        if not meta.get(key):
            raise nonsense(one, f"there is no metadata.{key}", kind)
    if spec is None:
        raise nonsense(one, "there is no spec", kind)
    return one


def nonsense(one: Any, odd: str, kind: type[ClusterError] = ClusterError) -> ClusterError:
    """The error of an object that makes no sense."""
    meta = one.get("metadata") if isinstance(one, Mapping) else None
    name = meta.get("name") if isinstance(meta, dict) else None
    return kind(
        f"what the API server says of {brief(str(name or 'an object'), 253)} makes no sense",
        why=odd,
        hint="is there a proxy in between? see what `kubectl get -o yaml` says",
    )


def bare(one: dict[str, Any]) -> dict[str, Any]:
    """An object without all that may make no sense."""
    kept = ("name", "namespace", "uid", "creationTimestamp")
    meta = one["metadata"]
    return {"metadata": {key: meta[key] for key in kept if isinstance(meta.get(key), str)}}


def _odd(value: Any, shape: _Shape, path: str) -> str | None:
    """What is wrong with a value that is not null."""
    if isinstance(shape, dict):
        return _odd_fields(value, shape, path)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{path} is no list"
        if isinstance(shape[0], dict) and not all(isinstance(item, dict) for item in value):
            return f"{path} is no list of objects"
        return next((odd for item in value if (odd := _odd(item, shape[0], path))), None)
    if shape is _Map:
        good = isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
        return None if good else f"{path} is no map of texts"
    good = isinstance(value, shape) and not isinstance(value, bool)
    return None if good else f"{path} is no {_TYPES[shape]}"


def _odd_fields(value: Any, shape: dict[str, _Shape], path: str) -> str | None:
    if not isinstance(value, dict):
        return f"{path} is no object"
    for key, below in shape.items():
        said = value.get(key)
        if said is not None and (odd := _odd(said, below, f"{path}.{key}" if path else key)):
            return odd
    return None
