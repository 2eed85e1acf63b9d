"""The JSON schema of a job file, for editors; made from the flags and the keys of `jobkeys`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from arena_topo.cli.jobkeys import (
    ARENA,
    COMMAND,
    Carried,
    Entry,
    Equal,
    Items,
    Only,
    Refused,
    Section,
    kinds,
    own_keys,
)
from arena_topo.cli.options import Globals
from arena_topo.flag import Flag, flags_of
from arena_topo.job import Duration, KeyValue, MPIJob, Quantity, values
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
    arenas = {key: one for key, entry in ARENA.items() if (one := _entry(entry)) is not None}
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
    if issubclass(kind, KeyValue) or kind is values.Device:
        amounts = _quantity() if kind is values.Device else _PLAIN
        pairs = {"type": "object", "additionalProperties": amounts}
        pairs["propertyNames"] = {"pattern": "^[^=]+$"}
        return said | {"anyOf": [pairs, items]}
    return said | items


def _help(flag: Flag) -> str:
    return flag.help.replace("; repeat for more", "")


def _item(kind: Any, flag: Flag) -> Schema:
    if issubclass(kind, KeyValue) or kind is values.Device:
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


def _entry(entry: Entry) -> Schema | None:
    """What an entry of arena v2's keys may be; None for what cannot be said."""
    made: Schema | None
    match entry:
        case Carried():
            made = _carried(entry)
        case Only():
            made = {"description": f"Only so: {entry.why}.", "enum": _spellings(entry.values)}
        case Equal():
            made = {"description": f"Only so: {entry.why}.", "type": ["string", "integer"]}
        case Section():
            made = _object(entry.keys, entry.required, others=bool(entry.others))
        case Items():
            item = _object(entry.keys, entry.required)
            if entry.one_of:
                item["oneOf"] = [{"required": [one]} for one in entry.one_of]
            made = {"type": "array", "items": item}
        case Refused():
            made = None
    return made


def _carried(entry: Carried) -> Schema:
    if entry.field == COMMAND:
        return {"description": "What the job runs, a line for its shell.", "type": "string"}
    if entry.adds or not entry.field:
        return {"type": ["string", "number"]}
    flag = flags_of(MPIJob)[entry.field]
    key = next(key for key, name in own_keys().items() if name == entry.field)
    kind, several = kinds()[entry.field]
    if several and issubclass(kind, KeyValue):
        return {
            "description": _help(flag),
            "type": "object",
            "propertyNames": {"pattern": "^[^=]+$"},
            "additionalProperties": _PLAIN,
        }
    if entry.form:
        spans = [{"type": "string", "pattern": f"^({entry.form})$"}, {"const": 0}]
        return {"description": _help(flag), "anyOf": spans}
    return {"$ref": f"#/properties/{key}"}


def _spellings(texts: tuple[str, ...]) -> list[Any]:
    """The values as an editor's YAML reader may see them."""
    known = {"false": False, "true": True}
    found: list[Any] = []
    for text in texts:
        if (number := whole(text)) is not None:
            found.append(number)
        found.append(known.get(text, text))
    return found


def _object(
    keys: Mapping[str, Entry], required: tuple[str, ...] = (), *, others: bool = False
) -> Schema:
    found = {key: one for key, entry in keys.items() if (one := _entry(entry)) is not None}
    made: Schema = {"type": "object", "properties": found, "additionalProperties": False}
    if others:
        made["patternProperties"] = {"/|^hugepages-|^ephemeral-storage$": _quantity()}
    if required:
        made["required"] = list(required)
    return made
