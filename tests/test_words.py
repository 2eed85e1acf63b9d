"""Lists and plurals in sentences."""

from __future__ import annotations

import pytest

from arena_topo.words import counted, shortened


@pytest.mark.parametrize(("number", "said"), [(0, "0 nodes"), (1, "1 node"), (12, "12 nodes")])
def test_a_number_has_its_word(number: int, said: str) -> None:
    assert counted(number, "node") == said


def test_a_list_says_how_many_it_leaves_out() -> None:
    assert shortened("abc", 3) == "a, b, c"
    assert shortened("abcd", 3) == "a, b, c and 1 more"
    assert shortened("", 3) == ""
