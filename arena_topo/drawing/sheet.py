"""A sheet of SVG: shapes in layers, text that fits, and one look for light and dark screens."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from enum import IntEnum
from html import escape

from arena_topo.escaping import one_line

Point = tuple[float, float]

MARGIN = 20
"""Pixels around everything."""

TEXT = 13
SMALL = 12
HEAD = 17
BIG = 24


class Layer(IntEnum):
    """What lies over what, from below."""

    FRAME = 0
    LINK = 1
    RING = 2
    NODE = 3
    LABEL = 4


_LIGHT = {
    ".paper": "fill:#ffffff;stroke:#d5dde5",
    ".frame": "fill:#f2f5f8;stroke:#c3ced9",
    "text": "fill:#17212b",
    ".dim": "fill:#566473",
    ".good": "fill:#0062a8",
    ".bad": "fill:#b83a08",
    ".node": "fill:#ffffff;stroke:#43515f",
    ".used": "fill:#d8dee4;stroke:#b4bfca",
    ".broken": "fill:#e6e0dd;stroke:#b83a08",
    ".on": "fill:#0067b1;stroke:#0067b1",
    ".poor": "fill:#b83a08;stroke:#b83a08",
    ".on-text": "fill:#ffffff",
    ".used-text": "fill:#5d6975",
    ".link": "stroke:#6d7c8b",
    ".faint": "stroke:#bcc7d2",
    ".bar": "fill:#dfe6ed;stroke:#9fadbb",
    ".bar-on": "fill:#cfe5f6;stroke:#0067b1",
    ".bar-slow": "fill:#fbe3d6;stroke:#c8400a",
    ".ring0": "stroke:#0067b1",
    ".ring1": "stroke:#00845a",
    ".ring2": "stroke:#a1399f",
    ".slow,.weak": "stroke:#c8400a",
}
_DARK = {
    ".paper": "fill:#10161d;stroke:#2b3743",
    ".frame": "fill:#182029;stroke:#36434f",
    "text": "fill:#e6edf3",
    ".dim": "fill:#9aa8b6",
    ".good": "fill:#6cbcf7",
    ".bad": "fill:#ff9a66",
    ".node": "fill:#10161d;stroke:#b4c0cc",
    ".used": "fill:#2b3641;stroke:#414e5b",
    ".broken": "fill:#33261f;stroke:#ff8a4c",
    ".on": "fill:#4aa9ee;stroke:#4aa9ee",
    ".poor": "fill:#ff9a66;stroke:#ff9a66",
    ".on-text": "fill:#07131d",
    ".used-text": "fill:#94a1ae",
    ".link": "stroke:#8b99a7",
    ".faint": "stroke:#445260",
    ".bar": "fill:#26313c;stroke:#566472",
    ".bar-on": "fill:#15344c;stroke:#4aa9ee",
    ".bar-slow": "fill:#45220f;stroke:#ff8a4c",
    ".ring0": "stroke:#4aa9ee",
    ".ring1": "stroke:#37c894",
    ".ring2": "stroke:#d58ad4",
    ".slow,.weak": "stroke:#ff8a4c",
}
_SHAPE = (
    "text{font-family:sans-serif;font-size:13px}"
    ".small{font-size:12px}.head{font-size:17px;font-weight:600}"
    ".big{font-size:24px;font-weight:700}.strong{font-weight:600}"
    ".middle{text-anchor:middle}.end{text-anchor:end}"
    ".link,.faint,.ring0,.ring1,.ring2,.slow,.weak{fill:none;stroke-linejoin:round}"
    ".pcie,.doubt{stroke-dasharray:5 4}.slow{stroke-dasharray:9 5}"
    ".node,.used,.on,.poor,.broken,.doubt{stroke-width:1.5}"
)


def _rules(look: dict[str, str]) -> str:
    return "".join(f"{name}{{{rule}}}" for name, rule in look.items())


STYLE = f"{_SHAPE}{_rules(_LIGHT)}@media (prefers-color-scheme:dark){{{_rules(_DARK)}}}"
"""One look in two colourings, which differ in lightness too: nothing is told by hue alone."""

_NARROW = frozenset("fijlrtI.,:;'|!()[]/- ")
_WIDE = frozenset("mwMW@%&")
_LEAST = 0.4


def width(words: str, size: float = TEXT) -> float:
    """About how many pixels a line takes, in the wider of the usual sans-serif fonts."""
    return size * sum(map(_advance, words))


def _advance(character: str) -> float:
    if unicodedata.east_asian_width(character) in "WF":
        return 1.05
    if character in _NARROW:
        return _LEAST
    if character in _WIDE:
        return 0.98
    return 0.7 if character.isupper() else 0.61


def fitted(words: str, room: float, size: float = TEXT) -> str:
    """The words on one line; of too many the beginning and the end, with an ellipsis between."""
    line = one_line(words)
    if width(line, size) <= room:
        return line
    # However long the line is, no more than so many of its narrowest characters have room.
    keep = min(len(line) - 1, int(room / (size * _LEAST)) + 1)
    while keep > 2 and width(_cut(line, keep), size) > room:  # noqa: PLR2004 one at each end
        keep -= 1
    return _cut(line, keep)


def _cut(line: str, keep: int) -> str:
    head = (keep + 1) // 2
    return f"{line[:head]}\u2026{line[len(line) - (keep - head) :]}"


def wrapped(words: str, room: float, size: float = TEXT) -> list[str]:
    """The words in lines of at most so many pixels; a word that is longer is cut in its middle."""
    lines: list[str] = []
    line = ""
    for word in one_line(words).split():
        longer = f"{line} {word}" if line else word
        if line and width(longer, size) > room:
            lines.append(line)
            longer = word
        line = fitted(longer, room, size)
    return [*lines, line] if line else lines


class Sheet:
    """A drawing that grows; y grows downward. What is said of others may be anything at all."""

    def __init__(self) -> None:
        self._layers: dict[Layer, list[str]] = {layer: [] for layer in Layer}
        self._left = self._top = math.inf
        self._right = self._bottom = -math.inf

    @property
    def edges(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of all that is drawn."""
        return self._left, self._top, self._right, self._bottom

    def inset(self, other: Sheet, at: Point) -> tuple[float, float]:
        """Put all of another sheet here, by its upper left corner; how large it is."""
        left, top, right, bottom = other.edges
        x, y = _number(at[0] - left), _number(at[1] - top)
        self._reach(*at)
        self._reach(at[0] + right - left, at[1] + bottom - top)
        self._layers[Layer.NODE] += [
            f'<g transform="translate({x} {y})">',
            *(shape for layer in Layer for shape in other._layers[layer]),
            "</g>",
        ]
        return right - left, bottom - top

    def box(
        self,
        at: Point,
        size: tuple[float, float],
        look: str,
        *,
        layer: Layer = Layer.FRAME,
        round_: float = 8,
    ) -> None:
        """A rectangle with round corners, by its upper left one."""
        self._reach(*at)
        self._reach(at[0] + size[0], at[1] + size[1])
        self._layers[layer].append(
            f'<rect class="{look}" x="{_number(at[0])}" y="{_number(at[1])}"'
            f' width="{_number(size[0])}" height="{_number(size[1])}" rx="{_number(round_)}"/>'
        )

    def line(
        self, points: Sequence[Point], look: str, *, thick: float = 2, layer: Layer = Layer.LINK
    ) -> None:
        """A line over these points, its corners rounded."""
        for point in points:
            self._reach(*point)
        self._layers[layer].append(
            f'<path class="{look}" stroke-width="{_number(thick)}" d="{_rounded(points)}"/>'
        )

    def text(
        self,
        at: Point,
        words: str,
        look: str = "",
        *,
        room: float = float("inf"),
        size: float = TEXT,
    ) -> None:
        """A line of text on the baseline at `at`, cut in the middle where it has no room."""
        line = fitted(words, room, size)
        wide = width(line, size)
        looks = look.split()
        left = at[0] - (wide / 2 if "middle" in looks else wide if "end" in looks else 0)
        self._reach(left, at[1] - 0.8 * size)
        self._reach(left + wide, at[1] + 0.2 * size)
        named = f' class="{look}"' if look else ""
        self._layers[Layer.LABEL].append(
            f'<text{named} x="{_number(at[0])}" y="{_number(at[1])}">{escape(line)}</text>'
        )

    def finish(self, title: str, description: str) -> str:
        """The whole document; title and description are for those who do not see it."""
        left, top, right, bottom = self.edges
        wide, high = right - left + 2 * MARGIN, bottom - top + 2 * MARGIN
        shapes = [shape for layer in Layer for shape in self._layers[layer]]
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="{_number(left - MARGIN)}'
            f' {_number(top - MARGIN)} {_number(wide)} {_number(high)}" width="{_number(wide)}"'
            f' height="{_number(high)}">'
        )
        paper = (
            f'<rect class="paper" x="{_number(left - MARGIN + 0.5)}"'
            f' y="{_number(top - MARGIN + 0.5)}" width="{_number(wide - 1)}"'
            f' height="{_number(high - 1)}" rx="10"/>'
        )
        return "\n".join(
            (
                head,
                f"<title>{escape(one_line(title))}</title>",
                f"<desc>{escape(one_line(description))}</desc>",
                f"<style>{STYLE}</style>",
                paper,
                *shapes,
                "</svg>\n",
            )
        )

    def _reach(self, x: float, y: float) -> None:
        self._left, self._top = min(self._left, x), min(self._top, y)
        self._right, self._bottom = max(self._right, x), max(self._bottom, y)


_CORNER = 14


def _rounded(points: Sequence[Point]) -> str:
    parts = [f"M{_pair(points[0])}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        parts.append(f"L{_pair(_toward(corner, before))}Q{_pair(corner)} ")
        parts.append(_pair(_toward(corner, after)))
    return "".join((*parts, f"L{_pair(points[-1])}"))


def _toward(start: Point, end: Point) -> Point:
    """A little from `start` toward `end`, never past half the way."""
    away = ((end[0] - start[0]) ** 2 + (end[1] - start[1]) ** 2) ** 0.5
    share = min(0.5, _CORNER / away) if away else 0.0
    return start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share


def _pair(point: Point) -> str:
    return f"{_number(point[0])} {_number(point[1])}"


def _number(value: float) -> str:
    return f"{round(value, 1) + 0.0:g}"
