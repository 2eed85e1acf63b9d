"""The command tree; main(): errors to exit codes."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import typer

from arena_topo import __version__, output
from arena_topo.cli import admin, cluster, jobs, queue, why
from arena_topo.cli import topology as machines
from arena_topo.cli.options import (
    PROGRAM,
    ArenaCommand,
    JobCommand,
    NamedCommand,
    NodesCommand,
    ParserError,
    SubmitGroup,
    group,
    say,
)
from arena_topo.errors import ArenaError, UsageError

INTERRUPTED = 130

_RARELY = (100_000, 20, 20)
"""Objects, and collections of the younger ones, between two collections of garbage."""

_SURPLUS = re.compile(r"Got unexpected extra argument\S* \((.*)\)")
"""What the parser says of words that no command takes."""

_ORDER = (
    "submit",
    "plan",
    "get",
    "why",
    "list",
    "logs",
    "suspend",
    "resume",
    "replan",
    "delete",
    "topology",
    "check",
    "install",
    "nodes",
    "controller",
    "whoami",
    "version",
    "completion",
)


def tree() -> Any:
    """The command that all sub-commands hang on."""
    # Typer prepares its answers to shells only where completion is switched on.
    root = group(
        "Submit MPI training jobs, each worker placed on the best-linked GPUs.",
        completes=cluster.COMPLETE_VARIABLE in os.environ,
    )
    submit = group("Submit a job.", SubmitGroup)
    submit.command("mpi", cls=JobCommand)(jobs.submit_mpi)
    plan = group("Show where a job would go, without submitting it.", SubmitGroup)
    plan.command("mpi", cls=JobCommand)(jobs.plan_mpi)
    topology = group("Show and publish how GPUs are linked.")
    topology.command("presets", cls=ArenaCommand)(machines.topology_presets)
    topology.command("show", cls=ArenaCommand)(machines.topology_show)
    topology.command("discover", cls=ArenaCommand)(machines.topology_discover)
    topology.command("publish", cls=ArenaCommand)(machines.topology_publish)

    nodes = group("Keep nodes for topology jobs alone, or give them back.")
    nodes.command("topology", cls=NodesCommand)(admin.nodes_topology)
    nodes.command("default", cls=NodesCommand)(admin.nodes_default)
    nodes.command("list", cls=ArenaCommand)(admin.nodes_list)

    root.add_typer(submit, name="submit")
    root.add_typer(plan, name="plan")
    root.command("get", cls=NamedCommand)(jobs.get)
    root.command("why", cls=NamedCommand)(why.why)
    root.command("list", cls=ArenaCommand)(jobs.list_jobs)
    root.command("logs", cls=NamedCommand)(jobs.logs)
    root.command("suspend", cls=NamedCommand)(queue.suspend)
    root.command("resume", cls=NamedCommand)(queue.resume)
    root.command("replan", cls=NamedCommand)(queue.replan)
    root.command("delete", cls=NamedCommand)(jobs.delete)
    root.add_typer(topology, name="topology")
    root.command("check", cls=ArenaCommand)(admin.check)
    root.command("install", cls=ArenaCommand)(admin.install)
    root.add_typer(nodes, name="nodes")
    root.command("controller", cls=ArenaCommand)(queue.controller)
    root.command("whoami", cls=ArenaCommand)(cluster.whoami)
    root.command("version", cls=ArenaCommand)(cluster.version)
    root.command("completion", cls=ArenaCommand)(cluster.completion)
    command: Any = typer.main.get_command(root)
    # Typer lists commands before groups; people submit first and ask for the version last.
    command.commands = {name: command.commands[name] for name in _ORDER}
    return command


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
