"""Flags that many commands take: each means the same, and says the same of itself, everywhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from arena_topo.cli.arguments import name_without_kind
from arena_topo.cli.root import command_tree


def commands(of: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, one in of.commands.items():
        if hasattr(one, "commands"):
            yield from commands(one, f"{path}{name} ")
        else:
            yield f"{path}{name}", one


@pytest.mark.parametrize(
    ("flag", "short", "help_text", "wanted"),
    [
        (
            "--all-namespaces",
            "-A",
            "In all namespaces, not only in one.",
            {"list", "prune", "top job", "data list"},
        ),
        # That of `list` says besides what `wide` adds.
        ("--output", "-o", "How to ", {"get", "why", "prune", "top job", "data list"}),
    ],
)
def test_a_flag_of_many_commands_is_the_same_everywhere(
    flag: str, short: str, help_text: str, wanted: set[str]
):
    said = defaultdict(list)
    for path, command in commands(command_tree()):
        for option in command.params:
            if flag in option.opts:
                assert short in option.opts, path
                assert option.help.startswith(help_text), path
                said[option.help.partition(" (default")[0]].append(path)
    assert any(wanted <= set(paths) for paths in said.values()), said


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("mpijob.kubeflow.org/bert", "bert"),
        ("mpijob/bert", "bert"),
        ("mpijobs/bert", "bert"),
        ("mpijobs.v2beta1.kubeflow.org/bert", "bert"),
        ("bert", "bert"),
        # What is of another kind, or nothing at all, is no job of that name.
        ("pod/bert", "pod/bert"),
        ("mpijob.example.org/bert", "mpijob.example.org/bert"),
        ("mpijob.notkubeflow.org/bert", "mpijob.notkubeflow.org/bert"),
        ("mpijob/", "mpijob/"),
        ("mpijob/a/b", "a/b"),
        ("mpijob", "mpijob"),
        ("", ""),
    ],
)
def test_a_job_may_be_named_as_kubectl_names_it(word: str, name: str):
    assert name_without_kind(word) == name


def test_every_command_takes_the_names_of_jobs_as_they_are_printed():
    printed = "mpijob.kubeflow.org/bert"
    taking = set()
    for path, command in commands(command_tree()):
        for argument in command.declaration.arguments:
            if "JOB" in str(argument.metavar):
                assert argument.parse(printed) == "bert", path
                taking.add(path)
    wanted = {"get", "wait", "logs", "why", "delete", "suspend", "resume", "replan", "attach"}
    assert wanted | {"top job"} <= taking
