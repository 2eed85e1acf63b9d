"""`help COMMAND` is `COMMAND --help`, as in every program of cobra's; and its colours."""

from __future__ import annotations

import itertools
import shlex

import pytest

from arena_topo import cli
from arena_topo.cli import catalogue
from arena_topo.cli.root import command_tree


def answer(capfd: pytest.CaptureFixture[str], *line: str) -> tuple[int, str, str]:
    capfd.readouterr()
    code = cli.run(line)
    return code, *capfd.readouterr()


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("submit",),
        ("submit", "mpi"),
        ("submit", "mj"),
        ("list",),
        ("ls",),
        ("top", "node"),
        ("attach",),
        ("version",),
        ("list", "and", "more"),
    ],
)
def test_help_before_a_command_shows_its_help(words, capfd):
    code, out, err = answer(capfd, "help", *words)
    assert (code, err) == (0, "")
    assert out == answer(capfd, *words, "--help")[1]
    assert out.startswith("Usage: ")
    assert answer(capfd, "-n", "team", "help", *words) == (0, out, "")


@pytest.mark.parametrize(
    "words", [("foo",), ("submit", "foo"), ("logviewer",), ("submit", "tfjob")]
)
def test_help_of_a_command_that_there_is_not_is_the_error_of_that_command(words, capfd):
    code, out, err = answer(capfd, "help", *words)
    assert (code, out) == (2, "")
    assert err == answer(capfd, *words)[2]


def test_help_of_help_is_the_programs(capfd):
    assert answer(capfd, "help", "help") == answer(capfd, "help") == answer(capfd, "--help")


def test_a_group_has_no_help_command_and_a_job_may_be_called_help(capfd):
    assert answer(capfd, "submit", "help")[0] == 2
    code, _out, err = answer(capfd, "get", "help", "--backend=local")
    assert (code, "Not found training job help" in err) == (1, True)
    assert "help" not in command_tree().commands


def test_every_command_has_examples_with_flags_that_it_has():
    leaves = [one for one in catalogue.commands() if not one.commands]
    for command in leaves:
        assert command.examples, command.path
        flags = {name for option in command.options for name in option.names}
        for _what, line in command.examples:
            words = shlex.split(line)
            assert words[: len(command.path)] == [*command.path]
            own = itertools.takewhile(lambda word: word != "--", words)
            given = {word.partition("=")[0] for word in own if word.startswith("-")}
            assert given <= flags, line


def test_the_help_of_a_command_shows_its_examples_whole_under_any_name(capfd):
    for name in ("list", "ls"):
        code, out, _err = answer(capfd, name, "--help")
        assert code == 0
        examples = out.partition("\nExamples:\n")[2].partition("\n\n")[0]
        assert examples.splitlines()[:2] == [
            "  # Jobs of all namespaces that wait or run",
            "  arena-topo list -A --status PENDING,RUNNING",
        ]


def test_paths_and_names_with_hyphens_stay_whole_in_help(capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, shown, _err = answer(capfd, "topology", "publish", "--help")
    assert code == 0
    assert "/var/lib/kubelet/pod-resources/kubelet.sock" in shown
    assert "arena-topo-system" in shown
