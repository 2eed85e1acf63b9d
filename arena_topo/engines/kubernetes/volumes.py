"""The bound volume claims of a cluster."""

from __future__ import annotations

from typing import Any

from arena_topo.clusters import objects
from arena_topo.engines.kubernetes.connection import Connection
from arena_topo.engines.kubernetes.job_writer import part
from arena_topo.engines.kubernetes.mpijob import seconds
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
    metadata, spec = objects.mapping_at(claim, "metadata"), objects.mapping_at(claim, "spec")
    status, notes = objects.mapping_at(claim, "status"), objects.mapping_at(metadata, "annotations")
    if metadata.get("deletionTimestamp") or status.get("phase") != "Bound":
        return None
    modes = spec.get("accessModes") or ()
    return Volume(
        name=metadata["name"],
        namespace=str(metadata.get("namespace") or ""),
        modes=tuple(mode for mode in _MODES if mode in modes),
        description=str(notes.get("description") or ""),
        owner=str(notes.get("owner") or ""),
        capacity=str(objects.mapping_at(status, "capacity").get("storage") or ""),
        storage_class=str(spec.get("storageClassName") or ""),
        created=seconds(metadata.get("creationTimestamp")),
    )
