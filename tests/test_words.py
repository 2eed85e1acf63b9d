"""Lists and plurals in sentences, and advice."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from pathlib import Path

import pytest

import arena_topo
from arena_topo.words import counted, shortened, with_extra


@pytest.mark.parametrize(("number", "said"), [(0, "0 nodes"), (1, "1 node"), (12, "12 nodes")])
def test_a_number_has_its_word(number: int, said: str) -> None:
    assert counted(number, "node") == said


def test_a_list_says_how_many_it_leaves_out() -> None:
    assert shortened("abc", 3) == "a, b, c"
    assert shortened("abcd", 3) == "a, b, c and 1 more"
    assert shortened("", 3) == ""


ASKS = re.compile(r"(^|[.:;,] )(is|are|do|does|has|have|can|which) [^?]*\?( |$)", re.IGNORECASE)


@functools.cache
def texts() -> tuple[tuple[str, str], ...]:
    """Where each text of the package stands, and the text."""
    return tuple(
        (f"{path.name}:{node.lineno}", node.value)
        for path in sorted(Path(arena_topo.__file__).parent.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def test_advice_tells_what_to_do_and_does_not_ask() -> None:
    assert {place: text for place, text in texts() if ASKS.search(text)} == {}


def test_no_text_installs_the_package_by_a_line_of_its_own() -> None:
    """A package index may have another package of this name: the page says how it is installed."""
    assert {place: text for place, text in texts() if "pip install" in text} == {}


def test_the_page_that_hints_name_has_each_extra_of_the_package() -> None:
    root = Path(__file__).parents[1]
    extras = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = with_extra("gpu").partition("(")[2].rstrip(")")
    rows = re.findall(r"^\| `(\w+)` \|", (root / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert set(rows) >= set(extras["optional-dependencies"])
