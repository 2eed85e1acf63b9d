"""The command tree; main(): errors to exit codes."""

from __future__ import annotations

import gc
import importlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import typer

from arena_topo import __version__, output
from arena_topo.cli.commands import (
    COMPLETE_VARIABLE,
    ArenaCommand,
    ArenaGroup,
    JobCommand,
    NamedCommand,
    NodesCommand,
    SubmitGroup,
    group,
)
from arena_topo.cli.options import PROGRAM, ParserError, say
from arena_topo.errors import ArenaError, UsageError

INTERRUPTED = 130

_RARELY = (100_000, 20, 20)
"""Objects, and collections of the younger ones, between two collections of garbage."""

_SURPLUS = re.compile(r"Got unexpected extra argument\S* \((.*)\)")
"""What the parser says of words that no command takes."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A command: the function that does it, in a module of this package, and its kind."""

    module: str
    function: str
    kind: type[ArenaCommand] = ArenaCommand


@dataclass(frozen=True, slots=True)
class Branch:
    """A group of commands and its summary."""

    summary: str
    commands: Mapping[str, Leaf | Branch]
    kind: type[ArenaGroup] = ArenaGroup


ROOT = Branch(
    "Submit MPI training jobs, each worker placed on the best-linked GPUs.",
    {
        "submit": Branch(
            "Submit a job.", {"mpi": Leaf("submit", "submit_mpi", JobCommand)}, SubmitGroup
        ),
        "plan": Branch(
            "Show where a job would go, without submitting it.",
            {"mpi": Leaf("submit", "plan_mpi", JobCommand)},
            SubmitGroup,
        ),
        "get": Leaf("jobs", "get", NamedCommand),
        "why": Leaf("why", "why", NamedCommand),
        "list": Leaf("jobs", "list_jobs"),
        "logs": Leaf("jobs", "logs", NamedCommand),
        "suspend": Leaf("queue", "suspend", NamedCommand),
        "resume": Leaf("queue", "resume", NamedCommand),
        "replan": Leaf("queue", "replan", NamedCommand),
        "delete": Leaf("jobs", "delete", NamedCommand),
        "topology": Branch(
            "Show and publish how GPUs are linked.",
            {
                "presets": Leaf("topology", "topology_presets"),
                "show": Leaf("topology", "topology_show"),
                "discover": Leaf("topology", "topology_discover"),
                "publish": Leaf("topology", "topology_publish"),
            },
        ),
        "check": Leaf("admin", "check"),
        "install": Leaf("admin", "install"),
        "nodes": Branch(
            "Keep nodes for topology jobs alone, or give them back.",
            {
                "topology": Leaf("admin", "nodes_topology", NodesCommand),
                "default": Leaf("admin", "nodes_default", NodesCommand),
                "list": Leaf("admin", "nodes_list"),
            },
        ),
        "controller": Leaf("queue", "controller"),
        "whoami": Leaf("cluster", "whoami"),
        "version": Leaf("cluster", "version"),
        "completion": Leaf("cluster", "completion"),
    },
)
"""The whole tree, in the order of the help: people submit first and ask for the version last."""


class _Commands(Mapping[str, Any]):
    """The commands of a group; each is imported and made when it is first asked for."""

    def __init__(self, branch: Branch) -> None:
        self._of = branch.commands
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _made(self._of[name], name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)


def tree() -> Any:
    """The command that all sub-commands hang on."""
    return _made(ROOT, PROGRAM)


def _made(one: Leaf | Branch, name: str) -> Any:
    if isinstance(one, Leaf):
        app = typer.Typer(
            rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False
        )
        module = importlib.import_module(f"{__name__}.{one.module}")
        app.command(name, cls=one.kind)(getattr(module, one.function))
        return typer.main.get_command(app)
    # Typer prepares its answers to shells only where completion is switched on.
    completes = one is ROOT and COMPLETE_VARIABLE in os.environ
    made: Any = typer.main.get_command(group(one.summary, one.kind, completes=completes))
    made.name, made.commands = name, _Commands(one)
    return made


def main() -> NoReturn:
    """Run the program on the words of the shell, and exit."""
    # What a server answers has no cycles, and looking for them takes a fifth of the time of a list.
    gc.set_threshold(*_RARELY)
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line; the exit code. Nothing escapes as a traceback."""
    try:
        code = tree().main(args=list(arguments), prog_name=PROGRAM, standalone_mode=False)
        sys.stdout.flush()
    except ArenaError as error:
        say(output.complaint(error))
        code = error.exit_code
    except ParserError as error:
        said = _SURPLUS.sub(r"too many words: \1", error.format_message())
        usage = error.ctx.get_usage() if getattr(error, "ctx", None) else ""
        say(output.complaint(UsageError(said, hint=" ".join(usage.split()[1:]) or None)))
        code = UsageError.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough. What is still buffered goes nowhere, so that
        # Python does not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except SystemExit as leaving:  # Typer leaves by itself after a broken pipe
        code = leaving.code
    except Exception as error:  # noqa: BLE001 - the last resort: nobody is shown a traceback
        code = _unexpected(error, arguments)
    return int(code or 0)


def _unexpected(error: Exception, arguments: Sequence[str]) -> int:
    """Say that the program is wrong, and leave what a maintainer needs in a file."""
    import tempfile  # noqa: PLC0415 - only for mistakes of ours
    import traceback  # noqa: PLC0415

    text = "".join(traceback.format_exception(error))
    if _debugging(arguments):
        say(text.rstrip("\n"))
        return 1
    with tempfile.NamedTemporaryFile(
        "w", prefix=f"{PROGRAM}-", suffix=".txt", delete=False, encoding="utf-8"
    ) as report:
        # The command line stays out of it: environment variables of jobs may be secrets.
        report.write(f"{PROGRAM} {__version__}, Python {sys.version}\n\n{text}")
    say(
        f"error: {PROGRAM} made a mistake: {type(error).__name__}: {error}\n"
        f"  try:  report it with {report.name}, or see more with ARENA_TOPO_DEBUG=1"
    )
    return 1


def _debugging(arguments: Sequence[str]) -> bool:
    # Looked for in the words as they are: the mistake may be in reading them.
    words = " ".join(arguments).replace("=", " ")
    return os.environ.get("ARENA_TOPO_DEBUG") == "1" or "--loglevel debug" in words
