"""Decoding of foreign JSON and YAML by msgspec into typed values, with errors for people."""

from __future__ import annotations

import re
from collections.abc import Callable, Sized
from typing import NoReturn, TypeVar

_Decoded = TypeVar("_Decoded")

Refuse = Callable[[str, str], NoReturn]
"""A callback with the path of an invalid value and the reason; it raises."""

_WORDS = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "null": "nothing",
    "object": "a mapping",
    "str": "a text",
}
"""The type names of msgspec -> words for people."""


def decoding_error(error: Exception) -> tuple[str, str]:
    """The path of an invalid value and the reason; the path is empty for errors not of msgspec."""
    # "Expected `str`, got `int` - at `$.levels[0].name`"
    message, _, place = str(error).replace(" | null", "").partition(" - at ")
    reason = re.sub("`([^`]*)`", lambda quoted: _WORDS.get(quoted[1], quoted[1]), message)
    if place or message.startswith(("Expected ", "Object ")):
        reason = reason[:1].lower() + reason[1:]
    elif isinstance(error, UnicodeError) or message.startswith(("JSON is ", "Input data ")):
        reason = f"not JSON: {message}"
    return place.rpartition("$")[2].rstrip("`").removeprefix("."), reason


def decode_or_refuse(attempt: Callable[[], _Decoded], refuse: Refuse, path: str = "") -> _Decoded:
    """The decoded value; an error of msgspec is raised by `refuse`, below this path."""
    try:
        return attempt()
    except (ValueError, RecursionError) as error:
        place, reason = decoding_error(error)
        refuse((path + place) if place.startswith("[") else f"{path}.{place}".strip("."), reason)


def check_length(values: Sized, size: int, refuse: Refuse, path: str) -> None:
    """Refuse a list with another number of entries."""
    if len(values) != size:
        refuse(path, f"expected a list of length {size}, got {len(values)}")
