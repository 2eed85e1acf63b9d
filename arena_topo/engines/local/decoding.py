"""The one way in which the engine reads its own JSON files: typed, and never trusted.

A disk that was full, an editor, or another version may have left anything in them.
"""

from __future__ import annotations

import json
import math
import os
import stat
from typing import TypeVar

from arena_topo.errors import ArenaError

_Kind = TypeVar("_Kind")

_LAST_MOMENT = 250_000_000_000
"""Unix seconds of the year 9892: later times cannot be written as a date in every time zone."""


def read(opened: int, name: str, kind: type[_Kind]) -> _Kind:
    """The content of a JSON file in an open folder, which has the type `kind`.

    OSError where there is no such file of this user's; ValueError names the file, the place in it
    and the reason.
    """
    # Without waiting, should a pipe be there.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=opened)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise PermissionError(f"{name} is no file of this user")
        return decoded(file.read(), kind, name)


def decoded(data: bytes, kind: type[_Kind], name: str) -> _Kind:
    """What a JSON text of the file `name` says, as the type `kind`; ValueError as in `read`."""
    try:
        # The decoder of msgspec refuses lone surrogates, which stand for the bytes of environments
        # that are no UTF-8.
        value = json.loads(data, parse_float=_finite, parse_constant=_finite)
    except RecursionError as error:
        raise ValueError(f"{name}: it is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return converted(value, kind, name)


def converted(value: object, kind: type[_Kind], name: str) -> _Kind:
    """What JSON of the file `name` has given, as the type `kind`; ValueError as in `read`."""
    import msgspec  # noqa: PLC0415  not for an engine without jobs

    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, ArenaError) as error:
        # What types check of themselves, such as a request, they refuse as any user's mistake.
        raise ValueError(f"{name}: {error}") from error
    except RecursionError as error:
        raise ValueError(f"{name}: it is nested too deeply") from error


def is_moment(value: float) -> bool:
    """Whether a number is a time in Unix seconds that a clock can show."""
    return 0 <= value < _LAST_MOMENT


def _finite(word: str) -> float:
    found = float(word)
    if not math.isfinite(found):
        raise ValueError(f"{word} is no finite number")
    return found
