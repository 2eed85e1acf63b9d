"""What a terminal takes: its colours, its width and its height."""

from __future__ import annotations

import os
import re
import sys
import termios

import pytest
from fake_terminal import Running
from hypothesis import given
from hypothesis import strategies as st
from plain_text import plain
from replacing import replace
from rich.cells import cell_len

from arena_topo import layout
from arena_topo.admin import view
from arena_topo.admin.checks import CheckReport, CheckResult, Prerequisite
from arena_topo.cli import live, terminal
from arena_topo.engines import Instance, JobStatus, Phase
from arena_topo.errors import ArenaError
from arena_topo.jobs import progress
from arena_topo.layout import Style, Styled

CODES = re.compile(r"\x1b\[[0-9;]*m")


# ---------------------------------------------------------------- whether there are colours


class Stream:
    """Somewhere to write."""

    encoding = "utf-8"

    def __init__(self, *, tty: bool) -> None:
        self.tty = tty

    def isatty(self) -> bool:
        return self.tty


CUSTOMS = [
    # The surest first: each wins over all that come after it.
    ({"choice": "always"}, True),
    ({"choice": "never"}, False),
    ({"NO_COLOR": "1"}, False),
    ({"CLICOLOR": "0"}, False),
    ({"TERM": "dumb"}, False),
    ({"FORCE_COLOR": "1"}, True),
    ({"CLICOLOR_FORCE": "1"}, True),
]


def coloured(monkeypatch, said, *, tty):
    for name in ("NO_COLOR", "CLICOLOR", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    said = dict(said)
    choice = said.pop("choice", "auto")
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    return terminal.colours(Stream(tty=tty), choice)


@pytest.mark.parametrize("tty", [True, False])
@pytest.mark.parametrize("place", range(len(CUSTOMS)))
def test_the_surest_word_about_colours_wins_over_all_after_it(monkeypatch, place, tty):
    said, expected = CUSTOMS[place]
    for others, _ in CUSTOMS[place:]:
        both = {**others, **said}
        assert coloured(monkeypatch, both, tty=tty) is expected, both


@pytest.mark.parametrize("tty", [True, False])
def test_without_a_word_a_terminal_has_colours_and_nothing_else_has(monkeypatch, tty):
    assert coloured(monkeypatch, {}, tty=tty) is tty
    assert coloured(monkeypatch, {"NO_COLOR": "", "FORCE_COLOR": ""}, tty=tty) is tty
    assert coloured(monkeypatch, {"FORCE_COLOR": "0"}, tty=tty) is False
    monkeypatch.delenv("FORCE_COLOR")
    monkeypatch.delenv("TERM")
    assert terminal.colours(Stream(tty=True), "auto") is False


# ---------------------------------------------------------------- what is coloured


def marked(text):
    """Colours in words that a person can read."""
    names = {one.value: one.name.lower() for one in Style}
    shown = layout.render_styles(text, colours=True)
    return re.sub(r"\x1b\[([0-9;]+)m(.*?)\x1b\[0m", lambda it: f"<{names[it[1]]}:{it[2]}>", shown)


CELLS = st.one_of(
    st.sampled_from(["RUNNING", "Pending", "ok", "", "a b"]).map(layout.state),
    st.builds(Styled, st.text(st.characters(codec="utf-8")), st.sampled_from(Style)),
    st.text(st.characters(codec="utf-8")),
)


@given(st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=4), st.integers(20, 60))
def test_a_table_with_styles_is_laid_out_as_without_them(rows, width):
    def shown(rows):
        return layout.fold_text(layout.align(layout.table(("A", "B", "C"), rows)), width)

    bare = shown(
        [[cell.text if isinstance(cell, Styled) else cell for cell in row] for row in rows]
    )
    assert plain(shown(rows)) == bare
    assert CODES.sub("", layout.render_styles(shown(rows), colours=True)) == bare


def test_states_are_coloured_in_their_cells_and_not_where_they_are_mentioned():
    rows = [
        ("worker-0", layout.state("Running"), "it is not Running on a"),
        ("Running", layout.state("ImagePullBackOff"), "b"),
        ("FAILED", layout.state("Odd"), "c"),
    ]
    assert marked(layout.align(layout.table(("NAME", "STATUS", "WHY"), rows))) == (
        "NAME      STATUS            WHY\n"
        "worker-0  <good:Running>           it is not Running on a\n"
        "Running   <bad:ImagePullBackOff>  b\n"
        "FAILED    Odd               c\n"
    )


def test_a_text_of_others_cannot_look_as_if_it_had_a_style():
    forged = str(Styled("ok", Style.GOOD))
    assert marked(layout.align(layout.table(("A",), [(forged,)]))) == "A\n\\U000f006f\\U000f006b\n"


def test_messages_are_coloured_by_their_first_word():
    error = ArenaError("no", why="it is PENDING", hint="get")
    error.notes = ("n",)
    assert marked(layout.error_text(error)) == (
        "<note:note:> n\n<error:error:> no\n  why:  it is PENDING\n  try:  get"
    )
    assert marked(layout.note_line("w", alert=True)) == "<warning:warning:> w"


@pytest.mark.parametrize("phase", Phase)
def test_every_phase_has_a_colour(phase):
    assert isinstance(layout.state(phase.value), Styled)


# ---------------------------------------------------------------- what fits


def test_lines_are_cut_at_the_width_and_at_the_height():
    lines = [f"{index} {'x' * index}" for index in range(30)]
    assert live.cut_to_screen(lines, 20, 4, unicode=True) == [
        "0 ",
        "1 x",
        "2 xx",
        "... 27 more lines",
    ]
    assert live.cut_to_screen(lines, 12, 30, unicode=True)[11:13] == [
        "11 xxxxxxxx…",
        "12 xxxxxxxx…",
    ]
    assert live.cut_to_screen(lines, 12, 30, unicode=False)[11] == "11 xxxxxx..."
    assert len(live.cut_to_screen(lines, 12, 30, unicode=True)) == 30


@given(st.text(st.characters(codec="utf-8", exclude_categories=["C"])), st.integers(1, 40))
def test_no_line_is_wider_than_the_terminal(line, columns):
    for unicode in (True, False):
        found = terminal.crop_line(line, columns, unicode=unicode)
        assert cell_len(found) <= max(columns, 1 if unicode else 3)
        assert found == line or cell_len(line) > columns


def status(count, running):
    pods = tuple(
        Instance(
            name=f"demo-worker-{index}",
            status="Running" if index < running else "Pending",
            created=0.0,
            started=1.0 if index < running else None,
            pending=index >= running,
            node="node-0",
        )
        for index in range(count)
    )
    return JobStatus(
        uid="u", name="demo", namespace="default", phase=Phase.PENDING, created=0.0, instances=pods
    )


def test_a_stream_that_is_redrawn_in_place_is_still_a_terminal():
    script = (
        "from arena_topo.cli.console import Console\n"
        "from arena_topo.cli.live import live\n"
        "console = Console()\n"
        "with live(console, console.stderr, lambda columns: 'a wait'):\n"
        "    moving = console.shows_progress\n"
        "print('moves:', moving)"
    )
    shown = Running.of([sys.executable, "-c", script], {"TERM": "xterm"})
    assert shown.end() == 0
    assert shown.screen.text == "moves: True"


def test_of_many_pods_only_those_are_shown_that_do_not_run():
    assert plain(progress.progress_screen(status(64, 62), now=5.0)) == (
        "demo is PENDING, 5s, 62 of 64 pods run\n"
        "  NAME            STATUS   AGE  NODE\n"
        "  ----            ------   ---  ----\n"
        "  demo-worker-62  Pending  5s   N/A\n"
        "  demo-worker-63  Pending  5s   N/A\n"
    )
    assert (
        plain(progress.progress_screen(status(64, 64), now=5.0))
        == "demo is PENDING, 5s, 64 of 64 pods run\n"
    )
    assert "demo-worker-0 " in progress.progress_screen(status(4, 4), now=5.0)


@pytest.mark.parametrize(
    ("phase", "pods", "line"),
    [
        (Phase.FAILED, ("Error", "Completed"), "demo is FAILED, 5s"),
        (Phase.SUCCEEDED, ("Completed", "Completed"), "demo is SUCCEEDED, 5s"),
        (
            Phase.RUNNING,
            ("Running", "Completed"),
            "demo is RUNNING, 5s, 1 of 2 pods runs, 1 has completed",
        ),
    ],
)
def test_no_pod_of_a_job_that_is_over_is_counted_as_running(phase, pods, line):
    waits = status(2, 0)
    ended = tuple(
        replace(one, status=each, pending=False)
        for one, each in zip(waits.instances, pods, strict=True)
    )
    job = replace(waits, phase=phase, finished=5.0, instances=ended)
    shown = plain(progress.progress_screen(job, now=5.0))
    assert shown.splitlines()[0] == line
    assert [row.split()[1] for row in shown.splitlines()[3:]] == list(pods)


def test_sentences_are_wrapped_at_the_terminal_they_are_written_to(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    outer, inner = os.openpty()
    with os.fdopen(inner, "w", encoding="utf-8") as stream, os.fdopen(outer, "rb"):
        for columns, rows in ((50, 10), (200, 60)):
            termios.tcsetwinsize(stream, (rows, columns))
            assert terminal.wrap_columns(stream) == columns
            assert terminal.window(stream) == (columns, rows)
        said = "note: one two three four five"
        monkeypatch.setenv("COLUMNS", "20")
        assert (
            layout.fold_text(said, terminal.wrap_columns(stream))
            == "note: one two three\n  four five"
        )
        assert terminal.window(stream) == (200, 60)
        termios.tcsetwinsize(stream, (0, 0))
        assert terminal.window(stream) == (80, 24)
    assert layout.fold_text(said, terminal.wrap_columns(Stream(tty=False))) == said
    assert terminal.wrap_columns(Stream(tty=False)) is None
    assert terminal.wrap_columns(None) is None


def test_of_an_error_the_reason_and_what_to_try_are_folded_below_themselves():
    error = ArenaError("one two three four", why="one two three four five", hint="a b c d e f g")
    assert plain(layout.error_text(error, 20)) == (
        "error: one two three\n"
        "  four\n"
        "  why:  one two\n"
        "        three four\n"
        "        five\n"
        "  try:  a b c d e f\n"
        "        g"
    )


def test_a_command_is_never_broken_wherever_a_sentence_is():
    hint = "wait, or end it: arena-topo delete demo -n default; then submit it again"
    assert plain(layout.error_text(ArenaError("no", hint=hint), 30)) == (
        "error: no\n"
        "  try:  wait, or end it:\n"
        "        arena-topo delete demo -n default;\n"
        "        then submit it again"
    )
    dump = "kubectl get nodes,pods -A -o json"
    assert layout.fold(f"make it with: {dump}, then look at it", 20) == (
        f"make it with:\n  {dump},\n  then look at it"
    )
    line = "  try:  arena-topo delete demo -n default, and submit it again"
    assert layout.fold(line, 30, indent="        ") == (
        "  try:  arena-topo delete demo -n default,\n        and submit it again"
    )


def test_a_word_wider_than_a_line_stays_below_its_header():
    assert layout.fold("    gpu-node-a,gpu-node-b,gpu-node-c 0.8", 20, indent="      ") == (
        "    gpu-node-a,gpu-node-b,gpu-node-c\n      0.8"
    )


ODD = ["²", "-5", "0", "1e2", "eighty", "", "9" * 30, "65536", "٤٠"]
"""What no terminal is so wide as; the last is 40 in Arabic digits."""


@pytest.mark.parametrize("said", ODD)
def test_a_number_of_columns_that_no_terminal_has_counts_for_none(monkeypatch, said):
    monkeypatch.setenv("COLUMNS", said)
    outer, inner = os.openpty()
    with os.fdopen(inner, "w", encoding="utf-8") as stream, os.fdopen(outer, "rb"):
        termios.tcsetwinsize(stream, (10, 50))
        assert terminal.wrap_columns(stream) == 50


def test_a_fix_is_wrapped_unless_it_is_a_command_to_be_copied():
    report = CheckReport(
        namespace="default",
        findings=(
            Prerequisite(
                name="a", outcome=CheckResult.WARN, finding="x", fix="ask one of those who know"
            ),
            Prerequisite(
                name="b", outcome=CheckResult.FAIL, finding="y", fix="kubectl get pods of all"
            ),
        ),
    )
    assert plain(view.check_text(report, width=30)) == (
        "CHECK  RESULT  FOUND\n"
        "a      warn    x\n"
        "               fix: ask one of\n"
        "                    those who\n"
        "                    know\n"
        "b      fail    y\n"
        "               fix: kubectl get pods of all\n"
    )
