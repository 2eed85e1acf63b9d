"""A cached method: it remembers its results as long as its object lives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

_Method = TypeVar("_Method", bound=Callable[..., Any])


class _Remembered:
    """`functools.cache` for a method: each object has a cache of its own."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method
        self.__doc__ = method.__doc__

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self.method
        cached = functools.cache(self.method.__get__(instance, owner))
        # Now the instance attribute is found before the descriptor.
        instance.__dict__[self.method.__name__] = cached
        return cached


if TYPE_CHECKING:

    def remembered(method: _Method) -> _Method:
        """Cache the results of a method per object."""
else:
    remembered = _Remembered
