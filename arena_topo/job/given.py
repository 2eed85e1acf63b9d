"""What a program may give for a field of a job, and the value that it becomes.

A field takes its own values, and the text that a person types for one. Of a repeatable field one
value will do; one of `KEY=VALUE` takes a mapping. Numbers stand for quantities, and for seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, get_args, get_origin

from arena_topo.errors import InvalidJob, InvalidValue
from arena_topo.flag import Flag, hints_of, spelling
from arena_topo.job.values import Device, Duration, EnvVar, KeyValue, Quantity


@cache
def kinds(record: type) -> dict[str, tuple[type, bool, bool]]:
    """The kind of each field, whether it holds several, and whether None stands for none."""
    return {field: _kind(hint) for field, hint in hints_of(record).items()}


def _kind(hint: Any) -> tuple[type, bool, bool]:
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if get_origin(hint) is tuple:
        return get_args(hint)[0], True, False
    some = [one for one in get_args(hint) or (hint,) if one is not type(None)]
    return some[0], False, len(get_args(hint)) > 1


def taken(record: type, field: str, value: Any, flag: Flag | None) -> Any:
    """The value of a field that what was given stands for; InvalidJob names the field."""
    kind, several, optional = kinds(record)[field]
    if value is None and optional:
        return None
    try:
        return tuple(_each(kind, value)) if several else _one(kind, value)
    except (ValueError, ArithmeticError) as error:
        name = spelling(field, flag) if flag else field
        raise InvalidJob(f"{name} is invalid", why=str(error), flag=name) from None


def _each(kind: type, value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        if not issubclass(kind, (KeyValue, Device)):
            raise InvalidValue(f"expected several values, got {value!r}")
        return [_pair(kind, key, one) for key, one in value.items()]
    if isinstance(value, (str, kind)) or not isinstance(value, Iterable):
        return [_one(kind, value)]
    return [_one(kind, one) for one in value]


def _pair(kind: Any, key: Any, value: Any) -> Any:
    if not isinstance(key, str) or isinstance(value, bool) or not isinstance(value, str | int):
        raise InvalidValue(f"expected texts, got {key!r}: {value!r}")
    return kind.parse(f"{key}={value}") if kind is Device else kind(key=key, value=str(value))


def _one(kind: Any, value: Any) -> Any:
    if type(value) is kind and kind is not float:
        return value
    made = _made(kind, _plain(kind, value))
    if made is None:
        raise InvalidValue(f"expected {_FORMS.get(kind) or kind.__name__}, got {value!r}")
    return made


_FORMS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Quantity: "a quantity such as 500m, 2 or 4Gi",
    Duration: "a time such as 90s, 10m or 1h30m",
    KeyValue: "KEY=VALUE",
    EnvVar: "KEY=VALUE",
}


def _plain(kind: Any, value: Any) -> Any:
    """The text of a path, the seconds of a time span; anything else as it is."""
    # By what they can do: their modules are slow to import, and no command line has such values.
    if hasattr(value, "__fspath__"):
        return value.__fspath__()
    if kind is Duration and hasattr(value, "total_seconds"):
        return value.total_seconds()
    return value


def _made(kind: Any, value: Any) -> Any:
    """The value of a kind that a text or a number stands for; None if it stands for none."""
    if isinstance(value, KeyValue):
        return kind(key=value.key, value=value.value) if issubclass(kind, KeyValue) else None
    if isinstance(value, str):
        return None if kind in {bool, int, float} else _read(kind, value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return _counted(kind, value) if number and math.isfinite(value) else None


def _counted(kind: Any, value: float) -> Any:
    if kind is Quantity:
        return Quantity.parse(str(value))
    if kind is Duration:
        return Duration(math.ceil(value))
    if kind is float or (kind is int and isinstance(value, int)):
        return kind(value)
    return None


def _read(kind: Any, text: str) -> Any:
    if kind is str:
        return text
    if not issubclass(kind, StrEnum):
        return kind.parse(text)
    try:
        return kind(text)
    except ValueError:
        *some, last = (one.value for one in kind if one.value)
        raise InvalidValue(f"expected {', '.join(some)} or {last}, got {text!r}") from None
