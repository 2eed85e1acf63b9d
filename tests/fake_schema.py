"""The recorded schemas in `schemas/`: what an API server knows of a kind, and what it says of more.

A schema is the name of a type (`string boolean number integer int32 int64 quantity object list`,
`int-or-string`, or `enum A B`), `#Name` for one that stands apart, `[item]`, or an object: of its
keys, those with `!` are required, and `*` stands for any key. What none of our objects reaches is
recorded as `object` or `list` and not looked into. Each file names where its facts are from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "schemas"

QUANTITY = re.compile(
    r"(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?"
)
"""What the CRDs say of quantities."""

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "int32": (int,),
    "int64": (int,),
    "number": (int, float),
    "object": (dict,),
    "list": (list,),
}
_JSON = {"list": "array", "int32": "integer", "int64": "integer"}
"""What JSON schemas call some of the types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """A field that the schema does not have, and the object that has it."""

    path: str
    where: dict[str, Any]
    key: str


@cache
def _file(name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))
    return found


def schema(kind: str, version: str) -> tuple[Any, Mapping[str, Any]] | None:
    """The schema of a kind and the types that it refers to; None where it was not recorded."""
    common = _file("kubernetes")
    own = _file(f"mpijob.{version}") if kind == "MPIJob" else common
    if kind in {"source", "types"} or kind not in own:
        return None
    return own[kind], {**common["types"], **own.get("types", {})}


def unknown(value: Any, kind: str, version: str) -> list[Unknown]:
    """The fields of an object that its schema does not have: what a server prunes."""
    found = schema(kind, version)
    if found is None:
        return []
    known, clean = _without_clean_spec(value, found[0], ("unknown", kind, version))
    result = list(_unknown(value, known, found[1], ""))
    if clean and not any(one.path.startswith("spec") for one in result):
        _clean.add(clean)
    return result


def _unknown(value: Any, known: Any, types: Mapping[str, Any], path: str) -> Iterator[Unknown]:
    known = _resolved(known, types)
    if isinstance(known, list) and isinstance(value, list):
        for index, one in enumerate(value):
            yield from _unknown(one, known[0], types, f"{path}[{index}]")
    if not isinstance(known, dict) or not isinstance(value, dict):
        return
    fields = {key.rstrip("!"): one for key, one in known.items()}
    for key, one in value.items():
        below = f"{path}.{key}" if path else key
        if key in fields or "*" in fields:
            yield from _unknown(one, fields.get(key, fields.get("*")), types, below)
        else:
            yield Unknown(path=below, where=value, key=key)


def faults(value: Any, kind: str, version: str) -> list[str]:
    """What of an object is not as its schema says, in the words of an API server."""
    found = schema(kind, version)
    if found is None:
        return []
    known, clean = _without_clean_spec(value, found[0], ("faults", kind, version))
    result = list(_faults(value, known, found[1], ""))
    if clean and not any(one.startswith("spec") for one in result):
        _clean.add(clean)
    return result


_clean: set[tuple[str, ...]] = set()
"""The specs with nothing to say of, as JSON: most are seen again and again."""


def _without_clean_spec(
    value: Any, known: Any, key: tuple[str, ...]
) -> tuple[Any, tuple[str, ...] | None]:
    """The schema of an object without that of a clean spec, else the key of the spec."""
    if not isinstance(value, dict) or "spec" not in value or not isinstance(known, dict):
        return known, None
    clean = (*key, json.dumps(value["spec"]))
    if clean not in _clean:
        return known, clean
    names = {name: "any" if name.rstrip("!") == "spec" else one for name, one in known.items()}
    return names, None


def _faults(value: Any, known: Any, types: Mapping[str, Any], path: str) -> Iterator[str]:
    known = _resolved(known, types)
    if value is None:
        # A null stands for a field that is not there; the server drops it.
        return
    if isinstance(known, str):
        yield from _scalar(value, known, path)
    elif isinstance(known, list):
        if not isinstance(value, list):
            yield _mistyped(value, "list", path)
            return
        for index, one in enumerate(value):
            yield from _faults(one, known[0], types, f"{path}[{index}]")
    elif not isinstance(value, dict):
        yield _mistyped(value, "object", path)
    else:
        dot = f"{path}." if path else ""
        for key, one in known.items():
            name = key.rstrip("!")
            if name != key and value.get(name) is None:
                yield f"{dot}{name}: Required value"
            elif name in value:
                yield from _faults(value[name], one, types, dot + name)
        if "*" in known:
            for key, one in value.items():
                yield from _faults(one, known["*"], types, dot + key)


def _resolved(known: Any, types: Mapping[str, Any]) -> Any:
    return types[known[1:]] if isinstance(known, str) and known.startswith("#") else known


def _scalar(value: Any, known: str, path: str) -> Iterator[str]:
    name, *values = known.split()
    match name:
        case "any":
            return
        case "enum":
            if value not in values:
                said = ", ".join(f'"{one}"' for one in values)
                yield f'{path}: Unsupported value: "{value}": supported values: {said}'
        case "quantity" | "int-or-string":
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not (whole or isinstance(value, str)):
                yield _mistyped(value, "integer,string", path)
            elif name == "quantity" and not whole and QUANTITY.fullmatch(value) is None:
                yield (
                    f'{path}: Invalid value: "{value}": {path} in body should match'
                    f" '^{QUANTITY.pattern}$'"
                )
        case _:
            fits = isinstance(value, _TYPES[name])
            if not fits or (isinstance(value, bool) and name != "boolean"):
                yield _mistyped(value, name, path)
            elif name == "int32" and not -(1 << 31) <= value < 1 << 31:
                yield f"{path}: Invalid value: {value}: {path} in body should be int32"


def _mistyped(value: Any, name: str, path: str) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    found = kinds.get(type(value), "object")
    return (
        f'{path}: Invalid value: "{found}": {path} in body must be of type'
        f' {_JSON.get(name, name)}: "{found}"'
    )
