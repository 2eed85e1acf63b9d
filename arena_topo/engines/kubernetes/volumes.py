"""What can be mounted: the volume claims of a cluster; and who its administrators are to arena."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arena_topo.clusters import objects
from arena_topo.engines.kubernetes.mpijob import seconds
from arena_topo.engines.kubernetes.writing import part
from arena_topo.engines.volume import Volume
from arena_topo.errors import AccessDenied, ArenaError, ClusterError

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.connection import Connection

_MODES = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
"""In the order in which arena names them; the last is younger than arena's list."""

_CONFIG = "arena-config"
_ADMINISTRATORS = "adminUsers"
"""Where arena keeps its administrators (arena v0.15.5, pkg/apis/config/arenaconfig.go)."""


def bound(api: Connection, namespace: str | None) -> tuple[Volume, ...]:
    """The bound claims of a namespace, or of all (None), that nobody is deleting; by name.

    AccessDenied says which right is missing; UsageError is for what no namespace is called.
    """
    space = f"/namespaces/{part(namespace)}" if namespace else ""
    path = f"/api/v1{space}/persistentvolumeclaims"
    try:
        found = [_volume(one) for one in api.collect(path, judged=True)]
    except AccessDenied as error:
        if namespace is None:
            error.hint = f"{error.hint}; or ask for one namespace with -n"
        raise
    except (AttributeError, KeyError, TypeError) as error:
        raise ClusterError("the list of volume claims makes no sense", why=str(error)) from error
    kept = [one for one in found if one is not None]
    return tuple(sorted(kept, key=lambda one: (one.namespace, one.name)))


def _volume(claim: dict[str, Any]) -> Volume | None:
    metadata, spec = objects.of(claim, "metadata"), objects.of(claim, "spec")
    status, notes = objects.of(claim, "status"), objects.of(metadata, "annotations")
    if metadata.get("deletionTimestamp") or status.get("phase") != "Bound":
        return None
    modes = spec.get("accessModes") or ()
    return Volume(
        name=metadata["name"],
        namespace=metadata["namespace"],
        modes=tuple(one for one in _MODES if one in modes),
        description=str(notes.get("description") or ""),
        owner=str(notes.get("owner") or ""),
        capacity=str(objects.of(status, "capacity").get("storage") or ""),
        storage_class=str(spec.get("storageClassName") or ""),
        created=seconds(metadata.get("creationTimestamp")),
    )


def administrators(api: Connection, namespace: str) -> frozenset[str]:
    """The names that arena takes for administrators; none where that may not be read.

    UsageError is for what no namespace is called.
    """
    path = f"/api/v1/namespaces/{part(namespace)}/configmaps/{_CONFIG}"
    try:
        found = api.get(path)
        listed = objects.of(found, "data").get(_ADMINISTRATORS)
    except (ArenaError, TypeError):
        return frozenset()
    return frozenset(name.strip(" ") for name in str(listed or "").split(",")) - {""}
