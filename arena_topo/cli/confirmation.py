"""The question before a command stops or deletes what nobody has named, or nobody gets back."""

from __future__ import annotations

import os
import select
from typing import Annotated, TextIO

from arena_topo.argv import parse_bool
from arena_topo.cli.arguments import PANEL
from arena_topo.cli.console import Console, LogLevel
from arena_topo.errors import UsageError
from arena_topo.flag import Flag

_YES = "ARENA_TOPO_YES"
"""Replaces --yes where the command line cannot be changed, as in arena's Python SDK."""

YesFlag = Annotated[
    bool,
    Flag(
        help="Do not ask for confirmation; needed without a terminal.",
        name="--yes",
        short="-y",
        panel=PANEL,
    ),
]


_LOOK_SECONDS = 0.5
"""How long one wait for an answer lasts."""


def must_confirm(console: Console, command: str, *, yes: bool, look: str) -> bool:
    """Whether a command has to ask; UsageError where it cannot, with the advice to `look` first."""
    if yes or _agreed_before():
        return False
    if not (_terminal(console.stdin) and _terminal(console.stderr)):
        raise UsageError(
            f"{command} needs --yes where it cannot ask for confirmation",
            why="standard input or standard error is not a terminal",
            hint=f"look first, with {look}; then add --yes, or set {_YES}=true",
        )
    return True


def confirm(console: Console, facts: str, question: str) -> bool:
    """Ask on the terminal, below the facts; the default is no."""
    if facts:
        console.info(facts, LogLevel.ERROR)
    console.stderr.write(f"{question} [y/N] ")
    console.stderr.flush()
    # A signal just before a read is handled only after it: the wait lets Python handle signals.
    while not select.select([console.stdin], [], [], _LOOK_SECONDS)[0]:
        pass
    return console.stdin.readline().strip().lower() in {"y", "yes"}


def _terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _agreed_before() -> bool:
    value = os.environ.get(_YES, "")
    return bool(value) and parse_bool(_YES, value) == "true"
