"""What pages of explanation name is there: every verdict, every test that holds a promise."""

from __future__ import annotations

import re
from pathlib import Path

from arena_topo.workflow.cases import Code

ROOT = Path(__file__).parent.parent


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the tables below a heading, down to the next of its level."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    part = re.split(rf"^{re.escape(heading)}$", text, flags=re.MULTILINE)[1]
    part = part.split(f"\n{heading.split(maxsplit=1)[0]} ")[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_every_verdict_that_why_can_give_is_in_the_table_of_verdicts_once():
    shown = [one for row in rows("howto/pending.md", "## All verdicts") for one in row[:1]]
    named = re.findall(r"`(\w+)`", " ".join(shown))
    assert sorted(named) == sorted(code.value for code in Code)


def test_every_promise_names_tests_that_are_there():
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    promises = re.findall(r"^\| (?!promise)(.*) \| (.*) \|$", text, flags=re.MULTILINE)
    assert len(promises) > 25
    for promise, tests in promises:
        files = re.findall(r"`(test_\w+\.py)`", tests)
        assert files, promise
        assert [one for one in files if not (ROOT / "tests" / one).exists()] == [], promise
