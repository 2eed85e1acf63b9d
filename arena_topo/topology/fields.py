"""A value out of foreign JSON or YAML, read with its path: the one way to check what others wrote.

    Field(document, "", refuse)["gpus"].items()[1]["numa"].whole(range(1024))

hears `gpus[1].numa is 'x', not a whole number from 0 to 1023` as `refuse("gpus[1].numa", ...)`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

Refuse = Callable[[str, str], NoReturn]
"""Hears the path of what makes no sense, and why; raises."""

Found = TypeVar("Found")

_NAME = re.compile(r"[\w][-\w.]{0,62}", re.ASCII)


SLOWEST, FASTEST = 0.001, 1e6
"""GB/s between which all links and networks are; products of such rates neither vanish nor end."""


@dataclass(frozen=True, slots=True)
class Field:
    """A value, the path to it, and who hears why it makes no sense."""

    value: Any
    path: str
    complain: Refuse

    def refuse(self, reason: str) -> NoReturn:
        """Complain of this value."""
        self.complain(self.path, reason)

    def wanted(self, what: str) -> NoReturn:
        """Complain that the value is something else, or missing."""
        missing = self.value is None and self.path
        self.refuse("is missing" if missing else f"is {show(self.value)}, not {what}")

    def maybe(self, read: Callable[[Field], Found]) -> Found | None:
        """What `read` makes of the value; None where there is none."""
        return None if self.value is None else read(self)

    def mapping(self, *known: str) -> Mapping[str, Any]:
        """A mapping; with `known`, of no other keys."""
        if not isinstance(self.value, Mapping):
            self.wanted(f"a mapping of {', '.join(known)}" if known else "a mapping")
        for key in self.value if known else ():
            if key not in known:
                shown = key if isinstance(key, str) and _NAME.fullmatch(key) else show(key)
                self._at(f".{shown}").refuse(f"is not known here; known: {', '.join(known)}")
        return self.value

    def __getitem__(self, key: str) -> Field:
        return self._at(f".{key}", self.mapping().get(key))

    def entries(self) -> dict[str, Field]:
        """The values of a mapping whose keys are data, each with its key in the path."""
        return {str(key): self._at(f"[{key!r}]", one) for key, one in self.mapping().items()}

    def items(self, size: int | None = None, *, most: int | None = None) -> list[Field]:
        """The entries of a list; of exactly `size`, or at most `most`."""
        if not isinstance(self.value, list):
            self.wanted("a list")
        many = f"has {len(self.value)} {'entry' if len(self.value) == 1 else 'entries'}"
        if size is not None and len(self.value) != size:
            self.refuse(f"{many}, not {size}")
        if most is not None and len(self.value) > most:
            self.refuse(f"{many}; {most} are the most")
        return [self._at(f"[{at}]", one) for at, one in enumerate(self.value)]

    def text(self, fits: Callable[[str], bool] | None = None, what: str = "a text") -> str:
        """A text, of which `fits` says whether it is what is wanted."""
        if not isinstance(self.value, str) or not (fits is None or fits(self.value)):
            self.wanted(what)
        return self.value

    def whole(self, allowed: range) -> int:
        """A whole number out of a range."""
        if type(self.value) is not int or self.value not in allowed:
            self.wanted(f"a whole number from {allowed[0]} to {allowed[-1]}")
        return self.value

    def rate(self, *, zero: bool = False) -> float:
        """A number of GB/s from SLOWEST to FASTEST; with `zero` 0 as well."""
        try:
            rate = float(self.value) if type(self.value) in {int, float} else math.nan
        except OverflowError:
            rate = math.inf
        if not (SLOWEST <= rate <= FASTEST or (zero and rate == 0)):
            span = f"from {SLOWEST} to {FASTEST:,.0f}"
            self.wanted(f"a number of GB/s, 0 or {span}" if zero else f"a number of GB/s {span}")
        return rate

    def truth(self) -> bool:
        """True or false."""
        return self.value if isinstance(self.value, bool) else self.wanted("true or false")

    def json(self) -> Field:
        """What a JSON text says; nothing where it is blank."""
        text = self.text().strip() or "null"
        try:
            value = json.loads(text, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            self.refuse(f"is not JSON: {error}")
        return Field(value, self.path, self.complain)

    def _at(self, more: str, value: object = None) -> Field:
        return Field(value, f"{self.path}{more}".removeprefix("."), self.complain)


def show(value: object) -> str:
    """Show a foreign value on one line, cut where it is long."""
    try:
        shown = repr(value)
    except ValueError:
        # Python refuses to print integers of more than 4300 digits.
        return "a huge number"
    return f"{shown[:37]}..." if shown[40:] else shown


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number")
