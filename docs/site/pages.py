"""What a page of the documentation consists of: its blocks, and what is said above them.

A block is text between fences; its kind is the word after the first fence. What is said about it
stands above it in comments, which readers of the page do not see:

    <!-- not run: REASON -->   it cannot run here
    <!-- exit: N -->           its commands exit with 0 or N, and N does occur
    <!-- file: NAME -->        it is written to that file first; `~/` is the home of the page
    <!-- happens: WORDS -->    what happens in the world before it runs (`doc_worlds.py`)
    <!-- stop: TEXT -->        Ctrl-C is pressed once TEXT is seen
    <!-- changes: REGEX -->    what matches may differ from one time to the next
    <!-- world: NAME -->       anywhere on a page: where all of it runs
"""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]

RUN = ("console", "bash", "python")
DATA = ("yaml", "json", "toml")
SHOWN = ("text",)
KINDS = (*RUN, *DATA, *SHOWN)

ABOVE = ("not run", "exit", "file", "happens", "stop", "changes")

WORDS_OF_A_REASON = 3

ANY_LINES = "..."
"""A line of a screen that stands for any number of lines."""

_INSIDE = "\0"
_FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})\s*([^\s`]*)(.*)$")
_COMMENT = re.compile(r"<!--\s*(.*?)\s*-->", re.DOTALL)
_SAID = re.compile(r"([a-z][a-z ]*?):\s*(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something wrong with a page, at a line."""

    page: Path
    line: int
    text: str

    def __str__(self) -> str:
        path = self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page
        return f"{path}:{self.line}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command of a block with what the page shows of it; `line` is its line in the page."""

    text: str
    line: int
    typed: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of a page: `line` is that of its first fence, counted from 1."""

    kind: str
    line: int
    indent: str
    lines: tuple[str, ...]
    comments: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """The text between the fences, without the indent of a list."""
        return "".join(f"{line}\n" for line in self.lines)

    def get(self, key: str) -> str | None:
        """The value of a comment above it; the last of several."""
        return next((value for name, value in reversed(self.comments) if name == key), None)

    def all(self, key: str) -> list[str]:
        """The values of a comment above it."""
        return [value for name, value in self.comments if name == key]

    @property
    def exits(self) -> set[int]:
        """The exit codes that its commands have; 0 is always among them."""
        return {0, *(int(code) for code in re.findall(r"\d+", self.get("exit") or ""))}


@dataclass(slots=True, kw_only=True)
class Page:
    """A page as it was read."""

    path: Path
    lines: list[str]
    world: str
    blocks: list[Block]
    problems: list[Problem] = field(default_factory=list)

    def problem(self, line: int, text: str) -> None:
        """Tell of something wrong."""
        self.problems.append(Problem(page=self.path, line=line, text=text))


def pages() -> list[Path]:
    """Every page of the documentation, README.md first."""
    below = [path for path in (ROOT / "docs").rglob("*.md") if "site" not in path.parts[-2:-1]]
    return [ROOT / "README.md", *sorted(below)]


def read(path: Path) -> Page:
    """Read a page; what is wrong with its form is among its problems."""
    lines = path.read_text(encoding="utf-8").splitlines()
    page = Page(path=path, lines=lines, world="local", blocks=[])
    outside = _blocks(page)
    for match in _COMMENT.finditer("\n".join(outside)):
        if (comment := _SAID.fullmatch(match[1])) and comment[1] == "world":
            page.world = comment[2]
    for block in page.blocks:
        _check(page, block)
    return page


def _blocks(page: Page) -> list[str]:
    """Find the blocks; the lines outside of them, with `_INSIDE` in place of theirs."""
    outside: list[str] = []
    first, fence = 0, None
    for number, line in enumerate(page.lines):
        mark = _FENCE.match(line)
        if fence is None and mark and "`" not in mark[4]:
            first, fence = number, mark
        elif fence is None:
            outside.append(line)
            continue
        elif mark and mark[2][0] == fence[2][0] and len(mark[2]) >= len(fence[2]) and not mark[3]:
            inside = page.lines[first + 1 : number]
            page.blocks.append(
                Block(
                    kind=fence[3],
                    line=first + 1,
                    indent=fence[1],
                    lines=tuple(line.removeprefix(fence[1]) for line in inside),
                    comments=tuple(_above(page, outside, first + 1)),
                )
            )
            fence = None
        outside.append(_INSIDE)
    if fence is not None:
        page.problem(first + 1, "this block is never closed")
    return outside


def _above(page: Page, outside: list[str], line: int) -> Iterator[tuple[str, str]]:
    """What the comments directly above a block say."""
    text = "\n".join(outside[: line - 1])
    comments: list[tuple[str, str]] = []
    while (text := text.rstrip()).endswith("-->"):
        start = text.rfind("<!--")
        match = _COMMENT.fullmatch(text[start:])
        words = _SAID.fullmatch(match[1]) if match else None
        if words is None:
            break
        key, value = words[1], " ".join(words[2].split())
        if key in ABOVE:
            comments.append((key, value))
        elif key != "world":
            page.problem(line, f"nothing is known of `{key}:` above a block, only {ABOVE}")
        text = text[:start]
    return reversed(comments)


def _check(page: Page, block: Block) -> None:
    if (reason := block.get("not run")) is not None:
        if len(reason.split()) < WORDS_OF_A_REASON:
            page.problem(block.line, f"`not run: {reason}` is no reason that a stranger accepts")
        return
    if block.kind not in KINDS:
        kind = f"of the kind {block.kind!r}" if block.kind else "without a kind"
        page.problem(block.line, f"a block {kind}: not one of {', '.join(KINDS)}, nor `not run`")
    try:
        if block.kind == "yaml":
            list(yaml.safe_load_all(block.text))
        elif block.kind == "json":
            json.loads(block.text)
        elif block.kind == "toml":
            tomllib.loads(block.text)
        elif block.kind == "console" and not any(
            pattern.startswith("$ ") for pattern in block.lines
        ):
            page.problem(block.line, "a console block without a line that begins with `$ `")
        for pattern in block.all("changes"):
            re.compile(pattern)
    except (ValueError, yaml.YAMLError, re.error) as error:
        page.problem(block.line, f"cannot be read as {block.kind}: {error}")


def commands(block: Block) -> list[Command]:
    """The commands of a console or bash block; ValueError says which one has no end."""
    lines, read, number = list(block.lines), [], 0
    while number < len(lines):
        line = lines[number]
        if block.kind == "console":
            if not line.startswith("$ "):
                raise ValueError(f"{block.line + 1 + number}: {line!r} belongs to no command")
            line = line.removeprefix("$ ")
        elif not line.strip() or line.lstrip().startswith("#"):
            number += 1
            continue
        start, text = number, line
        number += 1
        while not _whole(text):
            if number == len(lines):
                raise ValueError(f"{block.line + 1 + start}: the command has no end: {text!r}")
            text += "\n" + lines[number]
            number += 1
        shown: list[str] = []
        while block.kind == "console" and number < len(lines) and lines[number][:2] != "$ ":
            shown.append(lines[number])
            number += 1
        while shown and not shown[-1].strip():
            shown.pop()
        read.append(
            Command(
                text=text,
                line=block.line + 1 + start,
                typed=tuple(lines[start : start + text.count("\n") + 1]),
                shown=tuple(shown),
            )
        )
    return read


def _whole(text: str) -> bool:
    """Whether bash would run this, rather than wait for more lines."""
    if text.endswith("\\"):
        return False
    if not any(sign in text for sign in "'\"<({`") and "do" not in text.split():
        return True
    asked = subprocess.run(["bash", "-n", "-c", text], capture_output=True, text=True, check=False)
    return not ("unexpected end of file" in asked.stderr
                or "unexpected EOF" in asked.stderr
                or "delimited by end-of-file" in asked.stderr)  # fmt: skip
