"""Reader of untrusted YAML: plain values, or an error with its position, never a crash.

PyYAML composes recursively in C, without a limit, and aliases (`*a`) can expand to far more than is
written. So the text is scanned once before it is composed, which costs a seventh of the time of
reading it, and aliases are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

DEEPEST = 100
"""Levels of nesting; a Kubernetes object has some 30, and Python's stack allows some 200."""

_LONGEST = 100
"""Characters of a number; Python converts at most 4,300 digits."""


_TOO_DEEP = "is nested too deeply"

_DEEP_IN_LIBYAML = "exceeded maximum nesting depth"
"""The error of libyaml 0.2.6 for 1,000 levels, which it scans ahead (src/scanner.c)."""


class Excess(Exception):
    """A text exceeds a limit: which one, and in which line."""

    def __init__(self, problem: str, mark: Any) -> None:
        super().__init__(f"{problem} (line {mark.line + 1})")


def documents(text: str | bytes) -> Iterator[Any]:
    """The documents of a text as plain values; invalid numbers and dates stay text.

    Excess if the text is nested too deeply or has aliases; yaml.YAMLError, with a mark, for any
    other invalid text.
    """
    import yaml

    _examine(text, math.inf)
    yield from yaml.load_all(text, Loader=_loader())


def parse_document(text: str | bytes, *, most: int) -> Any:
    """The one document of a text; None if it is empty.

    Errors as of `documents`, and Excess if it has more than `most` values.
    """
    _examine(text, most)
    loader = _loader()(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


class YamlLines(NamedTuple):
    """The line of each value of a text by its path (`levels[0].name`), from 1 on.

    `repeated` is the path of a key that a mapping has twice, with the line of the second.
    """

    of: Mapping[str, int]
    repeated: tuple[str, int] | None = None


def key_lines(text: str, *, most: int) -> YamlLines:
    """The lines of a text in YAML or JSON. Errors as of `parse_document`."""
    import yaml

    _examine(text, most)
    line_numbers: dict[str, int] = {}
    repeated: list[tuple[str, int]] = []

    def walk(node: Any, path: str) -> None:
        line_numbers[path] = node.start_mark.line + 1
        if isinstance(node, yaml.MappingNode):
            keys = set()
            for key, value in node.value:
                inner = f"{path}.{key.value}".strip(".")
                if isinstance(key, yaml.ScalarNode):
                    if key.value in keys:
                        repeated.append((inner, key.start_mark.line + 1))
                    keys.add(key.value)
                    walk(value, inner)
                    # A list or a mapping starts on the line after its key.
                    line_numbers[inner] = key.start_mark.line + 1
        elif isinstance(node, yaml.SequenceNode):
            for at, value in enumerate(node.value):
                walk(value, f"{path}[{at}]")

    loader = _loader()(text)
    try:
        root = loader.get_single_node()
    finally:
        loader.dispose()
    if root is not None:
        walk(root, "")
    return YamlLines(line_numbers, repeated[0] if repeated else None)


def _examine(text: str | bytes, most: float) -> None:
    import yaml

    depth = values = 0
    for event in _events(text):
        if isinstance(event, yaml.events.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.events.AliasEvent):
            raise Excess("has an alias, and aliases are not read", event.start_mark)
        elif isinstance(event, yaml.events.NodeEvent):
            values += 1
            depth += isinstance(event, yaml.events.CollectionStartEvent)
            if depth > DEEPEST:
                raise Excess(_TOO_DEEP, event.start_mark)
            if values > most:
                raise Excess(f"has more than {most:,} values", event.start_mark)


def _events(text: str | bytes) -> Iterator[Any]:
    """The events of a text; Excess if the scanner meets too many levels before the first one."""
    import yaml

    try:
        yield from yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        if error.problem == _DEEP_IN_LIBYAML and error.problem_mark is not None:
            raise Excess(_TOO_DEEP, error.problem_mark) from error
        raise


@cache
def _loader() -> Any:
    """A loader of plain values, with libyaml if PyYAML has it."""
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader: Any = type("Loader", (base,), {})
    for kind in ("int", "float", "bool", "timestamp"):
        tag = f"tag:yaml.org,2002:{kind}"
        loader.add_constructor(tag, partial(_constructed, base.yaml_constructors[tag]))
    return loader


def _constructed(construct: Callable[[Any, Any], Any], loader: Any, node: Any) -> Any:
    """The value of a plain scalar, or the scalar itself if it has no valid value."""
    try:
        return construct(loader, node) if len(node.value) <= _LONGEST else node.value
    except (ValueError, ArithmeticError, LookupError, AttributeError, TypeError):
        return node.value
