"""A sheet of SVG: boxes, lines and text that fits, in one style for light and dark screens."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from html import escape

from arena_topo.escaping import one_line

SheetPoint = tuple[float, float]

TEXT, SMALL_TEXT, HEAD, BIG = 13, 12, 17, 24
"""Sizes of text in pixels."""

_MARGIN = 20
_PAD = 12.0

COLOURS = {
    ".paper": ("fill:#ffffff;stroke:#d5dde5", "fill:#10161d;stroke:#2b3743"),
    ".frame": ("fill:#f2f5f8;stroke:#c3ced9", "fill:#182029;stroke:#36434f"),
    ".on-frame": ("fill:#cfe5f6;stroke:#0067b1", "fill:#15344c;stroke:#4aa9ee"),
    ".poor-frame": ("fill:#fbe3d6;stroke:#c8400a", "fill:#45220f;stroke:#ff8a4c"),
    "text": ("fill:#17212b", "fill:#e6edf3"),
    ".dim": ("fill:#566473", "fill:#9aa8b6"),
    ".good": ("fill:#0062a8", "fill:#6cbcf7"),
    ".bad": ("fill:#b83a08", "fill:#ff9a66"),
    ".node": ("fill:#ffffff;stroke:#43515f", "fill:#10161d;stroke:#b4c0cc"),
    ".used": ("fill:#d8dee4;stroke:#b4bfca", "fill:#2b3641;stroke:#414e5b"),
    ".broken": ("fill:#e6e0dd;stroke:#b83a08", "fill:#33261f;stroke:#ff8a4c"),
    ".on": ("fill:#0067b1;stroke:#0067b1", "fill:#4aa9ee;stroke:#4aa9ee"),
    ".poor": ("fill:#b83a08;stroke:#b83a08", "fill:#ff9a66;stroke:#ff9a66"),
    ".on-text": ("fill:#ffffff", "fill:#07131d"),
    ".used-text": ("fill:#5d6975", "fill:#94a1ae"),
    ".link": ("stroke:#6d7c8b", "stroke:#8b99a7"),
    ".faint": ("stroke:#bcc7d2", "stroke:#445260"),
    ".lit": ("stroke:#0067b1", "stroke:#4aa9ee"),
    ".seen": ("stroke:#00845a", "stroke:#37c894"),
    ".slow": ("stroke:#c8400a", "stroke:#ff8a4c"),
}
"""The rule of each class on light and on dark screens; lightness differs, not hue alone."""

_SHAPE = (
    "text{font-family:sans-serif;font-size:13px}"
    ".small{font-size:12px}.head{font-size:17px;font-weight:600}"
    ".big{font-size:24px;font-weight:700}.strong{font-weight:600}"
    ".middle{text-anchor:middle}.end{text-anchor:end}path{fill:none}"
    ".dashed,.doubt{stroke-dasharray:5 4}.node,.used,.on,.poor,.broken{stroke-width:1.5}"
)


def _rules(screen: int) -> str:
    return "".join(f"{name}{{{rules[screen]}}}" for name, rules in COLOURS.items())


STYLE = f"{_SHAPE}{_rules(0)}@media (prefers-color-scheme:dark){{{_rules(1)}}}"

_NARROW = frozenset("fijlrtI.,:;'|!()[]/- ")
_WIDE = frozenset("mwMW@%&")
_LEAST = 0.4


def text_width(words: str, size: float = TEXT) -> float:
    """The approximate width of a line in pixels, in the wider of the usual sans-serif fonts."""
    return size * sum(map(_advance, words))


def _advance(character: str) -> float:
    if unicodedata.east_asian_width(character) in "WF":
        return 1.05
    if character in _NARROW:
        return _LEAST
    if character in _WIDE:
        return 0.98
    return 0.7 if character.isupper() else 0.61


def crop_text(words: str, room: float, size: float = TEXT) -> str:
    """The words on one line; if they are too long the beginning and the end, with an ellipsis."""
    line = one_line(words)
    if text_width(line, size) <= room:
        return line
    # An upper limit: the number of the narrowest characters that have room.
    keep = min(len(line) - 1, int(room / (size * _LEAST)) + 1)
    while keep > 2 and text_width(_cut(line, keep), size) > room:  # noqa: PLR2004 one at each end
        keep -= 1
    return _cut(line, keep)


def _cut(line: str, keep: int) -> str:
    head = (keep + 1) // 2
    return f"{line[:head]}\u2026{line[len(line) - (keep - head) :]}"


def wrap_text(words: str, room: float, size: float = TEXT) -> list[str]:
    """The words in lines of at most so many pixels; a longer word is truncated in its middle."""
    lines: list[str] = []
    line = ""
    for word in one_line(words).split():
        longer = f"{line} {word}" if line else word
        if line and text_width(longer, size) > room:
            lines.append(line)
            longer = word
        line = crop_text(longer, room, size)
    return [*lines, line] if line else lines


class Sheet:
    """A drawing that grows; y grows downward, and later parts are drawn above earlier ones.

    Names may be any untrusted text.
    """

    def __init__(self) -> None:
        self._shapes: list[str] = []
        self._left = self._top = math.inf
        self._right = self._bottom = -math.inf

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of all that is drawn."""
        if not self._shapes:
            return 0.0, 0.0
        return self._right - self._left, self._bottom - self._top

    def reserve(self, high: float) -> None:
        """Grow to at least this height."""
        self._bottom = max(self._bottom, self._top + high)

    def inset(self, other: Sheet, at: SheetPoint) -> None:
        """Insert another sheet, by its upper left corner."""
        if not other._shapes:
            return
        self._reach(*at)
        self._reach(at[0] + other.size[0], at[1] + other.size[1])
        moved = _pair((at[0] - other._left, at[1] - other._top))
        self._shapes += [f'<g transform="translate({moved})">', *other._shapes, "</g>"]

    def box(
        self, at: SheetPoint, size: tuple[float, float], css: str, *, corner: float = 8
    ) -> None:
        """A rectangle with round corners, by its upper left one."""
        self._reach(*at)
        self._reach(at[0] + size[0], at[1] + size[1])
        self._shapes.append(
            f'<rect class="{css}" x="{_number(at[0])}" y="{_number(at[1])}"'
            f' width="{_number(size[0])}" height="{_number(size[1])}" rx="{_number(corner)}"/>'
        )

    def line(self, points: Sequence[SheetPoint], css: str, *, thick: float = 2) -> None:
        """A line through these points."""
        for point in points:
            self._reach(*point)
        path = "L".join(map(_pair, points))
        self._shapes.append(f'<path class="{css}" stroke-width="{_number(thick)}" d="M{path}"/>')

    def text(
        self,
        at: SheetPoint,
        words: str,
        css: str = "",
        *,
        room: float = math.inf,
        size: float = TEXT,
    ) -> None:
        """A line of text on the baseline at `at`, truncated in the middle if it has no room."""
        line = crop_text(words, room, size)
        wide = text_width(line, size)
        classes = css.split()
        left = at[0] - (wide / 2 if "middle" in classes else wide if "end" in classes else 0)
        self._reach(left, at[1] - 0.8 * size)
        self._reach(left + wide, at[1] + 0.2 * size)
        named = f' class="{css}"' if css else ""
        self._shapes.append(
            f'<text{named} x="{_number(at[0])}" y="{_number(at[1])}">{escape(line)}</text>'
        )

    def finish(self, title: str, description: str) -> str:
        """The whole document; title and description are for people who cannot see it."""
        wide, high = (length + 2 * _MARGIN for length in self.size)
        left, top = self._left - _MARGIN, self._top - _MARGIN
        size = f'width="{_number(wide)}" height="{_number(high)}"'
        view = f"{_pair((left, top))} {_pair((wide, high))}"
        return "\n".join(
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="{view}" {size}>',
                f"<title>{escape(one_line(title))}</title>",
                f"<desc>{escape(one_line(description))}</desc>",
                f"<style>{STYLE}</style>",
                f'<rect class="paper" x="{_number(left)}" y="{_number(top)}" {size} rx="10"/>',
                *self._shapes,
                "</svg>\n",
            )
        )

    def _reach(self, x: float, y: float) -> None:
        self._left, self._top = min(self._left, x), min(self._top, y)
        self._right, self._bottom = max(self._right, x), max(self._bottom, y)


def lines(captions: Sequence[tuple[str, str]], room: float) -> Sheet:
    """Sentences below each other, each with the class of its text, wrapped to so many pixels."""
    sheet = Sheet()
    y = 0.0
    for words, css in captions:
        classes = css.split()
        sizes = {"small": SMALL_TEXT, "head": HEAD, "big": BIG}
        size = next((sizes[name] for name in classes if name in sizes), TEXT)
        # Bold text is slightly wider.
        bold = 1.1 if size > TEXT or "strong" in classes else 1.0
        for line in wrap_text(words, room / bold, size):
            sheet.text((0, y + size), line, css, size=size)
            y += 1.4 * size
    return sheet


def stack(parts: Sequence[Sheet], *, gap: float = _PAD, across: bool = False) -> Sheet:
    """Sheets one below the other, or side by side."""
    sheet = Sheet()
    at = 0.0
    for part in parts:
        wide, high = part.size
        sheet.inset(part, (at, 0.0) if across else (0.0, at))
        at += (wide if across else high) + (gap if part.size != (0.0, 0.0) else 0.0)
    return sheet


def frame_sheet(content: Sheet, words: str, css: str = "frame", *, least: float = 0.0) -> Sheet:
    """A sheet in a box of at least this width, with words below its content."""
    wide, high = content.size
    inner = max(wide, least - 2 * _PAD)
    sheet = Sheet()
    sheet.box((0, 0), (inner + 2 * _PAD, high + 2 * _PAD + (18 if words else 0)), css)
    sheet.inset(content, (_PAD + (inner - wide) / 2, _PAD))
    if words:
        middle = (_PAD + inner / 2, high + _PAD + 19)
        sheet.text(middle, words, "small middle", room=inner, size=SMALL_TEXT)
    return sheet


def _pair(point: SheetPoint) -> str:
    return f"{_number(point[0])} {_number(point[1])}"


def _number(value: float) -> str:
    return f"{round(value, 1) + 0.0:g}"
