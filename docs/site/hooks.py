"""What MkDocs does for this site beyond its theme: screens of terminals, and no notes to ourselves.

A `console` block becomes commands and lines of output, each an element of its own: the button that
copies takes the commands alone, a line that is too long goes on below it with a sign in front, and
no line of output is taken for a prompt. Names in tables and words of commands stay whole, as far as
there is room. `site.css` has the looks.
"""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from pages import ANY_LINES, Block, commands  # noqa: E402

COLUMNS = 100
"""Of the terminal at which pages are run (`running.py`, which is more than a site needs)."""

_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_NOTHING_LEFT = re.compile(r"<p>\s*</p>\n?")
_CODE_IN_CELL = re.compile(r"(?<=<code>)[^<]+(?=</code>(?:(?!</?td).)*</td>)", re.DOTALL)
_FLAGS = re.compile(r"<table>\s*<thead>\s*<tr>\s*<th>Flag</th>.*?</table>", re.DOTALL)
_WORD = re.compile(r"\S*-\S*")

LONG = 30
"""From how many letters on what stands in a cell may go on below, between its parts."""


def on_config(config: Any) -> None:
    """Let `screen` make the console blocks."""
    fence = {"name": "console", "class": "console", "format": screen}
    config["mdx_configs"].setdefault("pymdownx.superfences", {})["custom_fences"] = [fence]


def on_page_content(text: str, **_: object) -> str:
    """Take out the comments, which are for those who write and check pages; mark up the tables."""
    text = _NOTHING_LEFT.sub("", _COMMENT.sub("", text))
    text = _CODE_IN_CELL.sub(lambda found: _parts(found[0]), text)
    return _FLAGS.sub(r'<div class="flags">\g<0></div>', text)


def _parts(code: str) -> str:
    """Code of a cell that may only be broken where a word, a choice or a folder ends."""
    return (
        re.sub(r"\||&#124;|::|/| ", r"\g<0><wbr>", code)
        if len(html.unescape(code)) > LONG
        else code
    )


def screen(source: str, *_: object, **__: object) -> str:
    """A console block as HTML. `data-copy` is what the theme's button copies."""
    lines = source.split("\n")
    kinds = _kinds(lines)
    typed = [
        line.removeprefix("$ ") if kind == "command" else line
        for line, kind in zip(lines, kinds, strict=True)
        if kind in {"command", "more"}
    ]
    shown = "\n".join(map(_line, lines, kinds))
    # As wide as its widest line, and never wider than the terminal was.
    widths = [len(line) for line, kind in zip(lines, kinds, strict=True) if kind == "output"]
    columns = min(max(widths, default=0), COLUMNS)
    copied = html.escape("\n".join(typed)).replace("\n", "&#10;")
    return (
        f'<div class="language-console highlight" data-copy="{copied}">'
        f'<pre style="--columns: {columns}"><span></span><code>{shown}</code></pre></div>'
    )


def _kinds(lines: list[str]) -> list[str]:
    """Of each line whether it is a `command`, `more` of it, `output`, or a `gap` in that."""
    kinds = ["gap" if line.strip() == ANY_LINES else "output" for line in lines]
    for command in commands(Block(kind="console", line=0, indent="", lines=tuple(lines))):
        first = command.line - 1
        kinds[first : first + len(command.typed)] = [
            "command",
            *["more"] * (len(command.typed) - 1),
        ]
    return kinds


def _line(line: str, kind: str) -> str:
    prompt = '<span class="prompt">$ </span>' if kind == "command" else ""
    words = html.escape(line.removeprefix("$ ") if prompt else line, quote=False)
    if prompt or kind == "more" or len(line) > COLUMNS:
        # Browsers would break after a hyphen, and flags begin with two.
        words = _WORD.sub(r'<span class="word">\g<0></span>', words)
    # Without the break an empty line would have no height.
    return f'<span class="{kind}">{prompt}{words or "<br>"}</span>'
