"""Type-checked access to plain Kubernetes objects, which may be invalid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from arena_topo.topology import decoding

Object = Mapping[str, Any]

_Kind = TypeVar("_Kind", bound=msgspec.Struct)

_AS_THEY_ARE = frozenset({"labels", "annotations", "as-user-extra", "managedFields"})
"""Maps whose keys are no fields, so that null is a value; and what is large and never read."""


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


def fields_of(obj: Any, kind: type[_Kind]) -> _Kind:
    """The fields of an object that its kind names; ValueError, RecursionError if they do not fit.

    As in Go a field that is null is absent.
    """
    try:
        return msgspec.convert(obj, kind)
    except ValueError as first:
        try:
            return msgspec.convert(without_nulls(obj), kind)
        except ValueError as second:
            raise null_error(first, second) from None


def null_error(first: Exception, second: Exception) -> Exception:
    """The error of an object that fits neither with its nulls (`first`) nor without (`second`).

    A required field that is null is not called missing.
    """
    parent, _, name = decoding.decoding_error(first)[0].rpartition(".")
    missing = parent, f"object missing required field {name}"
    return first if decoding.decoding_error(second) == missing else second


def without_nulls(value: Any) -> Any:
    """A plain value without the fields that are null, but for what nobody reads."""
    if isinstance(value, Mapping):
        return {
            key: below if key in _AS_THEY_ARE else without_nulls(below)
            for key, below in value.items()
            if below is not None
        }
    return [without_nulls(below) for below in value] if isinstance(value, list) else value
