"""The bound volume claims of a cluster."""

from __future__ import annotations

from typing import Any

from arena_topo.engines.kubernetes.connection import Connection
from arena_topo.engines.kubernetes.job_writer import part
from arena_topo.engines.kubernetes.mpijob import seconds
from arena_topo.engines.kubernetes.shapes import kube_object
from arena_topo.engines.volume import Volume
from arena_topo.errors import AccessDenied

_MODES = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
"""In the order in which arena names them; the last is newer than arena's list."""


def bound(api: Connection, namespace: str | None) -> tuple[Volume, ...]:
    """The bound claims of a namespace, or of all (None), by name, without those being deleted.

    AccessDenied says which right is missing; UsageError for an invalid name of a namespace.
    """
    space = f"/namespaces/{part(namespace)}" if namespace else ""
    path = f"/api/v1{space}/persistentvolumeclaims"
    try:
        volumes = [_volume(claim) for claim in api.collect(path)]
    except AccessDenied as error:
        if namespace is None:
            error.hint = f"{error.hint}; or ask for one namespace with -n"
        raise
    readable = [volume for volume in volumes if volume is not None]
    return tuple(sorted(readable, key=lambda volume: (volume.namespace, volume.name)))


def _volume(claim: dict[str, Any]) -> Volume | None:
    fields = kube_object(claim)
    meta, spec, status = fields.metadata, fields.spec, fields.status
    if meta.deletion_timestamp or status.phase != "Bound":
        return None
    return Volume(
        name=meta.name,
        namespace=meta.namespace,
        modes=tuple(mode for mode in _MODES if mode in spec.access_modes),
        description=meta.annotations.get("description", ""),
        owner=meta.annotations.get("owner", ""),
        capacity=str(status.capacity.get("storage") or ""),
        storage_class=spec.storage_class_name,
        created=seconds(meta.creation_timestamp),
    )
