"""The names of what a cluster has, and nothing more of it: for completion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from arena_topo.completion.names import gpus
from arena_topo.numbers import whole

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.connection import Connection

_GPUS = "nvidia.com/gpu"

_PATHS: Mapping[str, str] = {
    "nodes": "/api/v1/nodes",
    "namespaces": "/api/v1/namespaces",
    "priorities": "/apis/scheduling.k8s.io/v1/priorityclasses",
}


def named(api: Connection, kind: str) -> dict[str, str]:
    """All nodes, namespaces or priorities by name, with what is to be said of each.

    AccessDenied where they may not be listed; KeyError for another kind.
    """
    found: dict[str, str] = {}

    def keep(one: dict[str, Any]) -> None:
        found[str(one["metadata"]["name"])] = _said(kind, one)

    api.collect(_PATHS[kind], keep)
    return found


def _said(kind: str, one: dict[str, Any]) -> str:
    if kind == "priorities":
        return str(one.get("value") or 0)
    # What a node offers is a quantity; of GPUs that is a whole number.
    offered = whole(((one.get("status") or {}).get("allocatable") or {}).get(_GPUS))
    return gpus(offered) if kind == "nodes" and offered is not None else ""
