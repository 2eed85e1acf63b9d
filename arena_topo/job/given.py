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
        return (
            tuple(_one(kind, one) for one in _each(kind, value)) if several else _one(kind, value)
        )
    except (ValueError, ArithmeticError) as error:
        name = spelling(field, flag) if flag else field
        raise InvalidJob(f"{name} is invalid", why=str(error), flag=name) from None


def _each(kind: type, value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        texts = all(type(key) is str and type(one) in {str, int} for key, one in value.items())
        if not (texts and issubclass(kind, (KeyValue, Device))):
            raise InvalidValue(f"expected {_form(kind)}, got {value!r}")
        return [f"{key}={one}" for key, one in value.items()]
    return [value] if isinstance(value, (str, kind)) or not isinstance(value, Iterable) else value


def _one(kind: Any, value: Any) -> Any:
    number = type(value) in {int, float} and math.isfinite(value)
    if type(value) is kind and (number or kind is not float):
        return value
    if isinstance(value, str) and kind not in {bool, int, float}:
        return _read(kind, value)
    if number and kind is Quantity:
        return Quantity.parse(str(value))
    if number and kind in {float, Duration}:
        return kind(math.ceil(value)) if kind is Duration else kind(value)
    raise InvalidValue(f"expected {_form(kind)}, got {value!r}")


def _read(kind: Any, text: str) -> Any:
    if not issubclass(kind, StrEnum):
        return kind.parse(text)
    try:
        return kind(text)
    except ValueError:
        raise InvalidValue(f"expected {_form(kind)}, got {text!r}") from None


def _form(kind: Any) -> str:
    if issubclass(kind, StrEnum):
        *some, last = (one.value for one in kind if one.value)
        return f"{', '.join(some)} or {last}"
    return _FORMS.get(kind) or kind.__name__


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
