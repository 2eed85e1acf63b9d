"""The catalogue has every command and flag that the parser takes, and says of them what is true."""

from __future__ import annotations

import re
from functools import reduce
from itertools import takewhile

import pytest

from arena_topo import cli
from arena_topo.cli import catalogue
from arena_topo.cli.options import flag_variables
from arena_topo.cli.parameters import GLOBAL_PANEL
from arena_topo.cli.root import command_tree
from arena_topo.flag import COMPLETION_KINDS
from arena_topo.job import MPIJob

_SPELLING = re.compile(r"-|/$")

HEADINGS = {
    "Plan and submit": ("submit", "plan", "forecast"),
    "Look at jobs": ("get", "why", "list", "logs", "attach"),
    "Control jobs": ("suspend", "resume", "wait", "replan", "delete", "prune"),
    "Machines": ("top", "topology"),
    "For administrators": ("check", "install", "nodes", "controller"),
    "Data, settings and the program": ("data", "whoami", "config", "options", "version"),
}
"""The headings of the help of the program, and commands that stand below each."""

ALL = {command.path: command for command in catalogue.commands()}


def option(path: tuple[str, ...], name: str) -> catalogue.CatalogueOption:
    return next(one for one in ALL[path].options if name in one.names)


def helped(capfd: pytest.CaptureFixture[str], path: tuple[str, ...]) -> str:
    assert cli.run([*path, "--help"]) == 0
    return capfd.readouterr().out


def test_what_a_flag_needs_or_excludes_is_something_that_a_command_with_it_has():
    asked: set[tuple[str, str]] = set()
    met: set[tuple[str, str]] = set()
    for path in [one for one in ALL if not ALL[one].commands]:
        command = reduce(lambda group, word: group.commands[word], path, command_tree())
        words = {parameter.long for parameter in command.declaration.parameters}
        for option in command.declaration.options:
            needs = (word for need in option.flag.needs for word in need.split(" or "))
            pairs = {(option.long, other) for other in (*option.flag.excludes, *needs)}
            asked |= pairs
            met |= {pair for pair in pairs if pair[1].partition(" ")[0] in words}
    assert asked == met
    assert ("--follow", "--wait") in met


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_a_command_has_the_flags_and_commands_of_its_help_in_that_order(path, capfd):
    command = ALL[path]
    shown = helped(capfd, path).splitlines()
    entries = [line.split() for line in shown if line.startswith("  -")]
    names = [tuple(takewhile(_SPELLING.match, words)) for words in entries]
    own = [one for one in command.options if one.panel != GLOBAL_PANEL]
    assert shown[-1] == "arena-topo options shows the options that every command takes."
    assert [one.names for one in own if not one.hidden] == [
        tuple(word.partition("[=")[0].rstrip(",") for word in each if word != "/") for each in names
    ]
    titles = [line[:-1] for line in shown if line and line[0] != " " and line.endswith(":")]
    panels = list(dict.fromkeys(one.panel for one in own))
    headings = HEADINGS if not path else ["Commands"]
    assert [title for title in titles if title not in {*headings, "Examples"}] == panels


def test_the_help_of_the_program_has_its_commands_below_headings(capfd):
    below: dict[str, list[str]] = {}
    for line in helped(capfd, ()).splitlines():
        if line.endswith(":") and line[0] != " ":
            below[line[:-1]] = heading = []
        elif re.match(r"  \S", line) and below:
            heading.append(line.split()[0])
    assert list(below) == list(HEADINGS)
    assert [name for names in below.values() for name in names] == list(ALL[()].commands)
    for heading, names in HEADINGS.items():
        assert set(names) <= set(below[heading]), heading


def test_every_command_and_group_is_there_once_each_group_before_its_commands():
    paths = list(ALL)
    assert len(paths) == len(catalogue.commands())
    for path in paths[1:]:
        assert path[-1] in ALL[path[:-1]].commands
        assert paths.index(path[:-1]) < paths.index(path)
    below = [one.commands for path, one in ALL.items() if path != ("job",)]
    assert sum(map(len, below)) == len(paths) - 1
    assert set(ALL["job",].commands) > {"run", "status"}


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_the_first_sentence_of_the_text_is_the_summary(path):
    first = ALL[path].text.split("\n\n")[0]
    assert " ".join(first.split()) == ALL[path].summary


def test_what_is_completed_is_one_of_the_kinds():
    said = {
        kind
        for command in ALL.values()
        for one in (*command.options, *command.arguments)
        for kind in one.completes.split()
    }
    assert said <= COMPLETION_KINDS
    assert COMPLETION_KINDS - said == set()


def test_words_say_what_they_are():
    words = {
        path: [(one.metavar, one.several, one.required, one.completes) for one in command.arguments]
        for path, command in ALL.items()
        if command.arguments
    }
    assert words[("get",)] == [("JOB", False, True, "jobs")]
    assert words[("wait",)] == [("JOB...", True, True, "jobs")]
    assert words[("delete",)] == [("[JOB...]", True, False, "jobs")]
    assert words[("check",)] == [("[JOB]", False, False, "jobs")]
    assert words[("top", "node")] == [("[NODE...]", True, False, "nodes")]
    assert words[("topology", "show")] == [("[PRESET|NODE]", False, False, "presets nodes")]
    # A job file may have the command.
    assert words[("submit", "mpi")] == [("COMMAND", False, False, "command")]
    assert words[("attach",)] == [
        ("JOB", False, True, "jobs"),
        ("[-- COMMAND...]", True, False, "command"),
    ]
    unsaid = {path for path, found in words.items() for one in found if not one[3]}
    assert unsaid == set()


def test_flags_say_what_they_are():
    assert option(("get",), "-o").choices == ("wide", "json", "yaml", "name")
    assert option(("list",), "--status").completes == "choices"
    assert "RUNNING" in option(("list",), "--status").choices
    # Arena's other kinds of jobs can be asked for; there are none.
    assert option(("list",), "--type").choices == ("mpijob",)
    assert option(("submit", "mpi"), "--sync-mode").choices == ("git", "rsync")
    assert option(("submit", "mpi"), "--dry-run").choices == ("client", "server")
    assert option(("logs",), "--fold").names == ("--fold", "--no-fold")
    assert option(("logs",), "--fold").metavar is None
    assert option(("submit", "mpi"), "--env").names == ("-e", "--env")
    assert option(("submit", "mpi"), "--env").repeats
    assert not option(("submit", "mpi"), "--name").repeats
    assert option(("submit", "mpi"), "--working-dir").deprecated == ("--workingDir",)
    assert option(("top", "job"), "-A").deprecated == ("--allNamespaces",)
    assert option((), "--quiet").variables == ("ARENA_TOPO_QUIET",)
    assert option(("list",), "--pprof").hidden
    assert option(("list",), "--sort-by").help.endswith("(default age)")


def test_every_choice_is_one_that_the_parser_takes():
    for path, command in ALL.items():
        made = reduce(lambda group, name: group.commands[name], path, command_tree())
        options = {name: each for each in made.declaration.options for name in each.spellings}
        for one in command.options:
            for choice in one.choices:
                assert options[one.names[0]].parse(choice)


def test_global_flags_are_last_and_the_same_everywhere():
    for command in ALL.values():
        panels = [one.panel == GLOBAL_PANEL for one in command.options]
        assert panels == sorted(panels)
    everywhere = [one for one in ALL[()].options if one.panel == GLOBAL_PANEL]
    assert "--help" in everywhere[-1].names
    for path, command in ALL.items():
        named = {one.names: one for one in command.options}
        for one in everywhere:
            assert named[one.names] == one, path


def test_flags_of_jobs_have_their_variables():
    for field, variables in flag_variables(MPIJob).items():
        names = {name for one in ALL[("submit", "mpi")].options for name in one.variables}
        assert set(variables) <= names, field


def test_aliases_are_arenas():
    aliases = {path: command.aliases for path, command in ALL.items() if command.aliases}
    assert aliases == {
        ("list",): ("ls",),
        ("logs",): ("log",),
        ("delete",): ("del",),
        ("submit", "mpi"): ("mpijob", "mj"),
        ("plan", "mpi"): ("mpijob", "mj"),
        ("nodes", "list"): ("ls",),
        ("data", "list"): ("ls",),
    }
