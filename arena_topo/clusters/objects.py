"""Plain Kubernetes objects, and how what is in them is asked for without trusting them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arena_topo.topology import decoding

Object = Mapping[str, Any]


def of(one: Object, key: str) -> Object:
    """The mapping under a key; an absent or null one is empty, another type is a TypeError."""
    value = one.get(key)
    if value is None:
        return {}
    # Asked some twenty times for every node, and `Mapping` is slow to answer.
    if type(value) is not dict and not isinstance(value, Mapping):
        raise TypeError(f"{key} is no mapping")
    return value


def items(one: Object, key: str) -> list[Object]:
    """The mappings in the list under a key; absent or null is empty, else a TypeError."""
    value = one.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise TypeError(f"{key} is no list of mappings")
    return value


def misfit(error: Exception) -> str:
    """What is wrong with an object: `spec.taints: expected a list, got a mapping`."""
    return ": ".join(filter(None, decoding.misfit(error)))
