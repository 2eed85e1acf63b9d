"""The JSON schema of a job file, for editors; made from the flags and the keys of `jobkeys`."""

from __future__ import annotations

import dataclasses
import json
from enum import StrEnum
from typing import Any

from arena_topo.cli.jobkeys import ARENA, COMMAND, DAYS, ONE_OF, Key, below, kinds, own_keys
from arena_topo.cli.options import Globals
from arena_topo.flag import Flag, flags_of
from arena_topo.job import Device, Duration, KeyValue, MPIJob, Quantity
from arena_topo.numbers import whole

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_PLAIN: Schema = {"type": ["string", "number", "boolean"]}
"""A value that is taken as it is typed."""

_SPAN = r"(([0-9]+(\.[0-9]*)?|\.[0-9]+)(h|ms|us|ns|m|s))+|0"
"""A time span as Go writes it (time.ParseDuration)."""

_AMOUNT = r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?"
"""A Kubernetes quantity, as `Quantity` reads it."""


def text() -> str:
    """The schema as JSON, two spaces deep."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def schema() -> Schema:
    """The schema (draft 2020-12): what fits it can be read, except for what keys say together."""
    flags = flags_of(MPIJob)
    own = {
        key: _flag(name, flags[name]) if name in flags else _elsewhere(key)
        for key, name in own_keys().items()
    }
    arenas = _object("")["properties"]
    return {
        "$schema": DIALECT,
        "title": "A job of arena-topo",
        "description": "The flags of `arena-topo submit mpi`, in their own words or in those of"
        " arena v2's schema 0.1.0. Flags on the command line win.",
        "type": "object",
        "properties": own | arenas,
        "additionalProperties": False,
    }


def _elsewhere(key: str) -> Schema:
    """What a key may be that is no flag of a job."""
    if key == COMMAND:
        return {
            "description": "What the job runs: a line for its shell, or a list of words.",
            "anyOf": [
                {"type": "string", "pattern": r"\S"},
                {"type": "array", "items": _PLAIN, "minItems": 1},
            ],
            "examples": ["mpirun -np 4 python train.py"],
        }
    if key == "namespace":
        return {"description": flags_of(Globals)["namespace"].help, "type": "string"}
    return {"description": "Start of the name; submit completes it.", "type": "string"}


def _flag(name: str, flag: Flag) -> Schema:
    kind, several = kinds()[name]
    said: Schema = {"description": _help(flag)}
    default = next(one.default for one in dataclasses.fields(MPIJob) if one.name == name)
    if kind in {int, float, bool} and default is not None:
        said["default"] = default
    elif default not in {dataclasses.MISSING, None, "", ()}:
        said["default"] = str(default)
    if not several:
        return said | _value(kind, flag)
    items: Schema = {"type": "array", "items": _item(kind, flag)}
    if issubclass(kind, KeyValue) or kind is Device:
        amounts = _quantity() if kind is Device else _PLAIN
        pairs = {"type": "object", "additionalProperties": amounts}
        pairs["propertyNames"] = {"pattern": "^[^=]+$"}
        return said | {"anyOf": [pairs, items]}
    return said | items


def _help(flag: Flag) -> str:
    return flag.help.replace("; repeat for more", "")


def _item(kind: Any, flag: Flag) -> Schema:
    if issubclass(kind, KeyValue) or kind is Device:
        return {"type": "string", "pattern": "^[^=]+="}
    return {"type": "string", **({"examples": [flag.metavar]} if flag.metavar else {})}


def _value(kind: Any, flag: Flag) -> Schema:
    names = {bool: "boolean", int: "integer", float: "number"}
    if kind in names:
        least = {} if flag.at_least is None else {"minimum": flag.at_least}
        return {"type": names[kind], **least}
    if kind is Quantity:
        return _quantity()
    if kind is Duration:
        # A number without a unit is only a time span if it is 0.
        return {"anyOf": [{"type": "string", "pattern": f"^({_SPAN})$"}, {"const": 0}]}
    if issubclass(kind, StrEnum):
        return {"enum": [one.value for one in kind if one.value]}
    return {"type": "string"}


def _quantity() -> Schema:
    return {"type": ["string", "number"], "pattern": f"^({_AMOUNT})$", "minimum": 0}


def _arena(path: str) -> Schema:
    """What a key of arena v2 may be, by its path."""
    key = ARENA.get(path)
    if key is None:
        made = _object(path)
        return {"type": "array", "items": made} if path.endswith("[]") else made
    if key.only:
        return {"description": f"Only so: {key.why}.", "enum": _spellings(key.only)}
    if key.agrees:
        return {"description": f"Only so: {key.why}.", "type": ["string", "integer"]}
    return _carried(key)


def _carried(key: Key) -> Schema:
    if key.field == COMMAND:
        return {"description": "What the job runs, a line for its shell.", "type": "string"}
    if key.adds or not key.field:
        return {"type": ["string", "number"]}
    flag = flags_of(MPIJob)[key.field]
    kind, several = kinds()[key.field]
    if several and issubclass(kind, KeyValue):
        return {
            "description": _help(flag),
            "type": "object",
            "propertyNames": {"pattern": "^[^=]+$"},
            "additionalProperties": _PLAIN,
        }
    if key.days:
        spans = [{"type": "string", "pattern": f"^({DAYS})$"}, {"const": 0}]
        return {"description": _help(flag), "anyOf": spans}
    own = next(name for name, field in own_keys().items() if field == key.field)
    return {"$ref": f"#/properties/{own}"}


def _spellings(texts: tuple[str, ...]) -> list[Any]:
    """The values as an editor's YAML reader may see them."""
    known = {"false": False, "true": True}
    found: list[Any] = []
    for text in texts:
        if (number := whole(text)) is not None:
            found.append(number)
        found.append(known.get(text, text))
    return found


def _object(path: str) -> Schema:
    """A mapping of arena v2, by its path."""
    known = below(path)
    read = {name: key for name, key in known.items() if not (key in ARENA and ARENA[key].refused)}
    found = {name: _arena(key) for name, key in read.items()}
    made: Schema = {"type": "object", "properties": found, "additionalProperties": False}
    if f"{path}.*" in ARENA:
        made["patternProperties"] = {"/|^hugepages-|^ephemeral-storage$": _quantity()}
    needed = [name for name, key in known.items() if key in ARENA and ARENA[key].needed]
    if needed:
        made["required"] = needed
    if path in ONE_OF:
        made["oneOf"] = [{"required": [one]} for one in ONE_OF[path]]
    return made
