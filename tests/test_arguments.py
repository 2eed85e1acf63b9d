"""Flags that many commands take: each means the same, and says the same of itself, everywhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from arena_topo.cli.root import tree


def commands(of: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, one in of.commands.items():
        if hasattr(one, "commands"):
            yield from commands(one, f"{path}{name} ")
        else:
            yield f"{path}{name}", one


@pytest.mark.parametrize(
    ("flag", "short", "help_text"),
    [
        ("--all-namespaces", "-A", "In all namespaces, not only in one."),
        ("--output", "-o", "How to "),
    ],
)
def test_a_flag_of_many_commands_is_the_same_everywhere(flag: str, short: str, help_text: str):
    said = defaultdict(list)
    for path, command in commands(tree()):
        for option in command.params:
            if flag in option.opts:
                assert short in option.opts, path
                assert option.help.startswith(help_text), path
                said[option.help.partition(" (default")[0]].append(path)
    wanted = {"list", "prune", "top job", "data list"}
    assert any(wanted <= set(paths) for paths in said.values()), said
