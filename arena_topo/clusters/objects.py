"""Plain Kubernetes objects, and how what is in them is asked for without trusting them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

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
    """What is wrong with an object: `spec.taints is no list`."""
    import msgspec  # noqa: PLC0415  8 ms that most commands save

    told = str(error)
    if not isinstance(error, msgspec.MsgspecError):
        return "it is not UTF-8 text" if isinstance(error, UnicodeError) else told
    place = re.search(r" - at `\$\.?(.*)`$", told)
    where = place[1] if place else ""
    if lacking := re.match(r"Object missing required field `(\w+)`", told):
        return f"{where}.{lacking[1]} is missing".removeprefix(".")
    if wanted := re.match(r"Expected `(\w+)[^`]*`( of length)?", told):
        what = "empty" if wanted[2] else f"no {_WORDS.get(wanted[1], wanted[1])}"
        return f"{where or 'it'} is {what}"
    return f"{where or 'it'} is no JSON that can be read: {told}"


_WORDS = {
    "array": "list",
    "bool": "true or false",
    "int": "whole number",
    "object": "mapping",
    "str": "text",
}
"""What msgspec calls a type -> what a person does."""
