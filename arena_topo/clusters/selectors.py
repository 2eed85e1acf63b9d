"""Label selectors as Kubernetes reads them (apimachinery, pkg/labels/selector.go).

An API server selects by itself; engines without one select by `LabelSelector.matches`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Self

import msgspec

_KEY = r"(?P<key>[A-Za-z0-9](?:[A-Za-z0-9_./-]*[A-Za-z0-9])?)"
_VALUE = r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?)?"
_REQUIREMENT = re.compile(
    rf"\s*(?:!\s*(?P<absent>{_KEY.replace('key', 'no')})"
    rf"|{_KEY}(?:\s*(?P<sign>==|=|!=)\s*(?P<value>{_VALUE})"
    r"|\s+(?P<word>in|notin)\s*\((?P<values>[^()]*)\))?)\s*",
    re.ASCII,
)
_WHOLE_VALUE = re.compile(_VALUE, re.ASCII)
Requirement = tuple[str, frozenset[str] | None, bool]

_FORM = "expected labels such as team=vision, team in (vision,speech), owner or !owner"


class LabelSelector(msgspec.Struct, frozen=True, kw_only=True):
    """A conjunction of requirements on the labels of an object; without any it selects everything.

    A requirement is a key, its allowed values (None: any), and whether it is negated.
    """

    text: str
    requirements: tuple[Requirement, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a selector in kubectl's syntax; ValueError shows the form."""
        requirements: list[Requirement] = []
        at = 0
        while at < len(text) or not requirements:
            match = _REQUIREMENT.match(text, at)
            if match is None or (match.end() < len(text) and text[match.end()] != ","):
                raise ValueError(f"{_FORM}, got {text!r}")
            requirement = _requirement(match)
            if not all(map(_WHOLE_VALUE.fullmatch, requirement[1] or ())):
                raise ValueError(f"{_FORM}, got {text!r}")
            requirements.append(requirement)
            at = match.end() + 1
            if at == len(text):  # a comma with nothing after it
                raise ValueError(f"{_FORM}, got {text!r}")
        return cls(text=text, requirements=tuple(requirements))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        return all(
            (key in labels and (values is None or labels[key] in values)) is not turned
            for key, values, turned in self.requirements
        )

    def __str__(self) -> str:
        return self.text


def all_selectors(*texts: str) -> str:
    """The conjunction of some selectors; empty ones select everything."""
    return ",".join(filter(None, texts))


def any_value(key: str, values: Iterable[str]) -> str:
    """The selector of objects that have one of these values."""
    return f"{key} in ({','.join(sorted(values))})"


def _requirement(match: re.Match[str]) -> Requirement:
    if match["absent"] is not None:
        return match["absent"], None, True
    if match["sign"]:
        return match["key"], frozenset({match["value"]}), match["sign"] == "!="
    if match["word"]:
        values = frozenset(value.strip() for value in match["values"].split(","))
        return match["key"], values, match["word"] == "notin"
    return match["key"], None, False
