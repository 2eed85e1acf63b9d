"""Type-checked access to plain Kubernetes objects, which may be invalid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arena_topo.topology import decoding

Object = Mapping[str, Any]


def mapping_at(parent: Object, key: str) -> Object:
    """The mapping under a key; empty if absent or null; TypeError for another type."""
    value = parent.get(key)
    if value is None:
        return {}
    # A hot path, some twenty calls per node, and an instance check of `Mapping` is slow.
    if type(value) is not dict and not isinstance(value, Mapping):
        raise TypeError(f"{key} is no mapping")
    return value


def items(parent: Object, key: str) -> list[Object]:
    """The mappings in the list under a key; empty if absent or null; else TypeError."""
    value = parent.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(
        type(item) is dict or isinstance(item, Mapping) for item in value
    ):
        raise TypeError(f"{key} is no list of mappings")
    return value


def invalid_object_text(error: Exception) -> str:
    """The error of an invalid object, as a text: `spec.taints: expected a list, got a mapping`."""
    return ": ".join(filter(None, decoding.decoding_error(error)))
