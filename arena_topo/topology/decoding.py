"""JSON and YAML that others wrote, decoded by msgspec into the types that are wanted of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sized
from typing import Annotated, NoReturn, TypeVar

import msgspec

Wanted = TypeVar("Wanted")

Refuse = Callable[[str, str], NoReturn]
"""Hears the path of what makes no sense, and why; raises."""

SLOWEST, FASTEST = 0.001, 1e6
"""GB/s between which all links and networks are; products of such rates neither vanish nor end."""

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

Rate = Annotated[float, msgspec.Meta(ge=SLOWEST, le=FASTEST)]


def decoded(text: str, kind: type[Wanted], refuse: Refuse, path: str = "") -> Wanted:
    """JSON text as a value of this type."""
    return _tried(lambda: msgspec.json.decode(text, type=kind), refuse, path)


def converted(value: object, kind: type[Wanted], refuse: Refuse, path: str = "") -> Wanted:
    """A parsed document as a value of this type."""
    return _tried(lambda: msgspec.convert(value, kind), refuse, path)


def _tried(attempt: Callable[[], Wanted], refuse: Refuse, path: str) -> Wanted:
    try:
        return attempt()
    except msgspec.ValidationError as error:
        # "Expected `str`, got `int` - at `$.levels[0].name`"
        told, _, place = str(error).replace(" | null", "").partition(" - at ")
        reason = re.sub("`([^`]*)`", lambda found: _WORDS.get(found[1], found[1]), told)
        inside = path + place.rpartition("$")[2].rstrip("`")
        refuse(inside.removeprefix("."), reason[:1].lower() + reason[1:])
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        refuse(path, f"not JSON: {error}")


def check_length(values: Sized, size: int, refuse: Refuse, path: str) -> None:
    """Refuse a list that does not have so many entries."""
    if len(values) != size:
        refuse(path, f"expected a list of length {size}, got {len(values)}")
