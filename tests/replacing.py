"""`replace` for both kinds of frozen values: dataclasses, and structs of msgspec."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import msgspec

Value = TypeVar("Value")


def replace(value: Value, **changes: Any) -> Value:
    """A copy with other values of some fields."""
    of = msgspec.structs if isinstance(value, msgspec.Struct) else dataclasses
    return of.replace(value, **changes)
