"""Lists and plurals in sentences, and advice."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import arena_topo
from arena_topo.words import counted, shortened


@pytest.mark.parametrize(("number", "said"), [(0, "0 nodes"), (1, "1 node"), (12, "12 nodes")])
def test_a_number_has_its_word(number: int, said: str) -> None:
    assert counted(number, "node") == said


def test_a_list_says_how_many_it_leaves_out() -> None:
    assert shortened("abc", 3) == "a, b, c"
    assert shortened("abcd", 3) == "a, b, c and 1 more"
    assert shortened("", 3) == ""


ASKS = re.compile(r"(^|[.:;,] )(is|are|do|does|has|have|can|which) [^?]*\?( |$)", re.IGNORECASE)


def test_advice_tells_what_to_do_and_does_not_ask() -> None:
    texts = {
        f"{path.name}:{node.lineno}: {node.value}"
        for path in sorted(Path(arena_topo.__file__).parent.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if ASKS.search(node.value)
    }
    assert texts == set()
