"""YAML that anybody may have written: plain values, or an error that says where, never a crash.

PyYAML composes by recursion in C, without a bound; its constructors raise ValueError, and others,
for values such as `2020-13-45`; and aliases (`*a`) can stand for far more than is written. So the
text is gone through once before it is composed, which costs a seventh of reading it.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

DEEPEST = 100
"""Levels of nesting; an object of Kubernetes has some 30, and Python's stack room for some 200."""

_WIDEST = 10_000
"""Bits of an integer; Python writes out some 14,000 (4,300 digits) and refuses more."""

_REPEATED = 4 << 20
"""Values and characters that aliases may make of any text; a larger one may become 4 times it."""

_ODD = {"int": "number", "float": "number", "bool": "true or false", "timestamp": "time"}
"""What plain words are read as, and may be no sound ones of."""


class Excess(Exception):
    """There is too much in a text: what, and in which line."""

    def __init__(self, problem: str, mark: Any) -> None:
        super().__init__(f"{problem} (line {mark.line + 1})")


def documents(text: str) -> Iterator[Any]:
    """The documents of a text, as plain values, read by libyaml where PyYAML has it.

    Excess if one is nested too deeply, or its aliases repeat too much; yaml.YAMLError, with a mark,
    for all else that cannot be read.
    """
    repeats = _examined(text, None)
    loader = _loader(quick=True)(text)
    try:
        while loader.check_node():
            yield loader.construct_document(_bounded(loader.get_node(), text, repeats=repeats))
    finally:
        loader.dispose()


def document(text: str | bytes, *, most: int, quick: bool = False) -> Any:
    """The one document of a small text, which has at most so many values; None if it is empty.

    `quick`: libyaml reads it. Errors as of `documents`, else in the words of PyYAML itself.
    """
    repeats = _examined(text, most)
    loader = _loader(quick=quick)(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        return loader.construct_document(_bounded(node, text, repeats=repeats))
    finally:
        loader.dispose()


def _examined(text: str | bytes, most: int | None) -> bool:
    """Whether a text has aliases; Excess if it is nested too deeply or has too many values."""
    import yaml

    depth = values = 0
    repeats = False
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            if isinstance(event, yaml.events.CollectionEndEvent):
                depth -= 1
            elif isinstance(event, yaml.events.NodeEvent):
                values += 1
                repeats = repeats or isinstance(event, yaml.events.AliasEvent)
                depth += isinstance(event, yaml.events.CollectionStartEvent)
                if depth > DEEPEST:
                    raise Excess("is nested too deeply", event.start_mark)
                if most is not None and values > most:
                    raise Excess(f"has more than {most:,} values", event.start_mark)
    except yaml.YAMLError:
        # Whoever composes it meets the same, after what stands before it.
        return True
    return repeats


def _bounded(node: Any, text: str | bytes, *, repeats: bool) -> Any:
    if repeats and _size(node) > max(_REPEATED, 4 * len(text)):
        raise Excess("repeats too much of itself by aliases", node.start_mark)
    return node


def _size(root: Any) -> int:
    """The values and characters of a node and all below it, those of aliases each time."""
    sizes: dict[int, int] = {}
    around: set[int] = set()
    stack = [(root, False)]
    while stack:
        node, gathered = stack.pop()
        key = id(node)
        if node.id == "scalar":
            sizes[key] = 1 + len(node.value)
        elif gathered:
            sizes[key] = 1 + sum(sizes[id(one)] for one in _children(node))
            around.discard(key)
        elif key in around:
            raise Excess("has a value that contains itself", node.start_mark)
        elif key not in sizes:
            around.add(key)
            stack.append((node, True))
            stack += [(one, False) for one in _children(node)]
    return sizes[id(root)]


def _children(node: Any) -> list[Any]:
    if node.id == "sequence":
        return list(node.value)
    return [one for pair in node.value for one in pair]


@cache
def _loader(*, quick: bool) -> Any:
    """A loader of plain values whose constructors say where a value is that they refuse."""
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader) if quick else yaml.SafeLoader
    loader: Any = type("Loader", (base,), {})
    for kind, what in _ODD.items():
        tag = f"tag:yaml.org,2002:{kind}"
        loader.add_constructor(tag, partial(_constructed, base.yaml_constructors[tag], what))
    return loader


def _constructed(construct: Callable[[Any, Any], Any], what: str, loader: Any, node: Any) -> Any:
    import yaml

    try:
        value = construct(loader, node)
        sound = not isinstance(value, int) or value.bit_length() <= _WIDEST
    except (ValueError, ArithmeticError, LookupError, AttributeError, TypeError):
        sound = False
    if not sound:
        problem = f"{reprlib.repr(node.value)} is no {what}"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
    return value
