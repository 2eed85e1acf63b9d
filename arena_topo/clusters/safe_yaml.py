"""Reader of untrusted YAML: plain values, or an error with its position, never a crash.

PyYAML composes recursively in C, without a limit, and aliases (`*a`) can expand to far more than is
written. So the text is scanned once before it is composed, which costs a seventh of the time of
reading it, and aliases are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

DEEPEST = 100
"""Levels of nesting; a Kubernetes object has some 30, and Python's stack allows some 200."""

_LONGEST = 100
"""Characters of a number; Python converts at most 4,300 digits."""


class Excess(Exception):
    """A text exceeds a limit: which one, and in which line."""

    def __init__(self, problem: str, mark: Any) -> None:
        super().__init__(f"{problem} (line {mark.line + 1})")


def documents(text: str | bytes, *, most: int | None = None) -> Iterator[Any]:
    """The documents of a text as plain values; invalid numbers and dates stay text.

    Excess if the text is nested too deeply, has more than `most` values, or has aliases;
    yaml.YAMLError, with a mark, for any other invalid text.
    """
    import yaml

    _examine(text, most)
    yield from yaml.load_all(text, Loader=_loader())


def document(text: str | bytes, *, most: int) -> Any:
    """The one document of a small text; None if it is empty. Errors as of `documents`."""
    _examine(text, most)
    loader = _loader()(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _examine(text: str | bytes, most: int | None) -> None:
    import yaml

    depth = values = 0
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.events.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.events.AliasEvent):
            raise Excess("has an alias, and aliases are not read", event.start_mark)
        elif isinstance(event, yaml.events.NodeEvent):
            values += 1
            depth += isinstance(event, yaml.events.CollectionStartEvent)
            if depth > DEEPEST:
                raise Excess("is nested too deeply", event.start_mark)
            if most is not None and values > most:
                raise Excess(f"has more than {most:,} values", event.start_mark)


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
