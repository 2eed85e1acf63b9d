"""Volume claims as arena shows them, and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arena_topo.engines.volume import Volume
from arena_topo.layout import align, duration, table

RESOURCE = "persistentvolumeclaim"


def volumes(found: Sequence[Volume], *, now: float, namespaces: bool = False) -> str:
    """Arena's table, in the order given; with `namespaces` the second column names them."""
    rows = []
    for one in found:
        row = [
            one.name,
            ",".join(one.modes),
            one.description,
            one.owner,
            "<unknown>" if one.created is None else duration(now - one.created),
        ]
        rows.append([row[0], one.namespace, *row[1:]] if namespaces else row)
    header = ["NAME", "ACCESSMODE", "DESCRIPTION", "OWNER", "AGE"]
    return align(table(["NAME", "NAMESPACE", *header[1:]] if namespaces else header, rows))


def value(one: Volume) -> dict[str, Any]:
    """One claim for JSON and YAML; the time is in Unix seconds, null where it is not known."""
    return {
        "name": one.name,
        "namespace": one.namespace,
        "accessModes": list(one.modes),
        "description": one.description,
        "owner": one.owner,
        "capacity": one.capacity,
        "storageClass": one.storage_class,
        "creationTimestamp": None if one.created is None else int(one.created),
    }
