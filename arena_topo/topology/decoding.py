"""JSON and YAML that others wrote, decoded by msgspec into the types that are wanted of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sized
from typing import NoReturn, TypeVar

Wanted = TypeVar("Wanted")

Refuse = Callable[[str, str], NoReturn]
"""Hears the path of what makes no sense, and why; raises."""

_WORDS = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "null": "nothing",
    "object": "a mapping",
    "str": "a text",
}
"""What msgspec calls a type -> what a person does."""


def misfit(error: Exception) -> tuple[str, str]:
    """The path of what did not fit, and why; errors that are not msgspec's have no path."""
    # "Expected `str`, got `int` - at `$.levels[0].name`"
    told, _, place = str(error).replace(" | null", "").partition(" - at ")
    reason = re.sub("`([^`]*)`", lambda found: _WORDS.get(found[1], found[1]), told)
    if place or told.startswith(("Expected ", "Object ")):
        reason = reason[:1].lower() + reason[1:]
    elif isinstance(error, UnicodeError) or told.startswith(("JSON is ", "Input data ")):
        reason = f"not JSON: {told}"
    return place.rpartition("$")[2].rstrip("`").removeprefix("."), reason


def tried(attempt: Callable[[], Wanted], refuse: Refuse, path: str = "") -> Wanted:
    """What msgspec makes of something at this path."""
    try:
        return attempt()
    except (ValueError, RecursionError) as error:
        place, reason = misfit(error)
        refuse((path + place) if place.startswith("[") else f"{path}.{place}".strip("."), reason)


def check_length(values: Sized, size: int, refuse: Refuse, path: str) -> None:
    """Refuse a list that does not have so many entries."""
    if len(values) != size:
        refuse(path, f"expected a list of length {size}, got {len(values)}")
