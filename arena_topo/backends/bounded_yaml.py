"""YAML -> plain values, refused where it is small and means something without bound.

Aliases may multiply what they name (ten lines of nine each mean 3 billion values), and the parser
in C recurses once for each level, without a limit of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import yaml

MOST_LEVELS = 100
MOST_VALUES = 200_000
"""Values that a document may have once each alias stands for what it names."""

_UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What PyYAML raises for a value that looks like a number or a date, and is none."""


def load(text: bytes) -> Any:
    """The values of one document; yaml.MarkedYAMLError, or its kin, for what cannot be read."""
    import yaml  # 30 ms that most commands save

    _check(text)
    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    def construct_object(self: Any, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002  PyYAML's own
        try:
            return base.construct_object(self, node, deep=deep)
        except _UNREADABLE as error:
            kind = node.tag.rpartition(":")[2]
            raise _refused(f"a value of type {kind} makes no sense", node.start_mark) from error

    loader = type("Loader", (base,), {"construct_object": construct_object})
    return yaml.load(text, Loader=loader)  # noqa: S506  # a safe loader


def _check(text: bytes) -> None:
    """Refuse a document with too many levels or values, before anything is made of it."""
    import yaml

    sizes: dict[str, int] = {}
    # Of each collection that is still open its anchor, and the values in it so far.
    opened: list[tuple[str | None, int]] = [(None, 0)]
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        anchor, size = getattr(event, "anchor", None), 1
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append((anchor, 1))
            if len(opened) > MOST_LEVELS:
                raise _refused(f"more than {MOST_LEVELS} levels", event.start_mark)
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = opened.pop()
        elif isinstance(event, yaml.AliasEvent):
            if any(one == anchor for one, _ in opened):
                raise _refused("an alias stands inside what it names", event.start_mark)
            size = sizes.get(str(anchor), 1)
        elif not isinstance(event, yaml.ScalarEvent):
            continue
        if anchor is not None:
            sizes[anchor] = size
        outer, before = opened.pop()
        opened.append((outer, before + size))
        if before + size > MOST_VALUES:
            raise _refused(
                f"more than {MOST_VALUES} values, aliases counted as what they name",
                event.start_mark,
            )


def _refused(problem: str, mark: Any) -> yaml.YAMLError:
    import yaml

    return yaml.constructor.ConstructorError(None, None, problem, mark)
