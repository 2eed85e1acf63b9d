"""The command tree; main(): errors to exit codes."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import typer

from arena_topo import __version__
from arena_topo.cli.console import Console, LogLevel, forget_output
from arena_topo.cli.interruption import Interruption, OutOfTime
from arena_topo.cli.options import PROGRAM
from arena_topo.cli.root import command_tree
from arena_topo.errors import ArenaError, TimedOut

INTERRUPTED = 130
"""Typer's exit code for an interrupt of any kind."""


def main(interruption: Interruption) -> NoReturn:
    """Run the program on the words of the shell, and exit."""
    if not os.environ.get("HOME", "unset"):
        # An empty one would be read as the root of the file system.
        del os.environ["HOME"]
    code = run(sys.argv[1:], interruption)
    # Python looks for cycles once more as it ends, and the process takes all of them along anyway.
    gc.freeze()
    sys.exit(code)


def run(arguments: Sequence[str], interruption: Interruption | None = None) -> int:
    """Run one command line; the exit code. Nothing escapes as a traceback."""
    console = Console(interruption)
    try:
        return _ended(arguments, console)
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted(console)
    except OutOfTime:  # maybe while an error was being written
        console.interruption.remove_deadline()
        late = TimedOut("--timeout is over", hint="allow more with --timeout")
        console.error(late)
        return late.exit_code
    finally:
        console.interruption.remove_deadline()
        console.close()


def _ended(arguments: Sequence[str], console: Console) -> int:
    """Run one command line and print its error; the exit code."""
    try:
        code = command_tree().main(
            args=list(arguments), prog_name=PROGRAM, standalone_mode=False, obj=console
        )
        code = _interrupted(console) if code == INTERRUPTED else code
        if console.stdout is not None:
            console.stdout.flush()
    except ArenaError as error:
        console.interruption.remove_deadline()
        console.error(error)
        code = error.exit_code
    except typer.Abort:  # an Exception, and no mistake of ours
        raise
    except BrokenPipeError:
        # The reader of stdout has gone.
        forget_output(console.stdout)
        code = 1
    except SystemExit as leaving:  # Typer leaves by itself after a broken pipe
        code = leaving.code
    except Exception as error:  # noqa: BLE001 - the last resort: no traceback for users
        code = _unexpected(error, arguments, console)
    return int(code or 0)


def _interrupted(console: Console) -> int:
    """Print the outcome of a command that printed none; the exit code of its signal."""
    if word := console.interruption.untouched:
        console.after_echo(word)
    return console.interruption.code


def _unexpected(error: Exception, arguments: Sequence[str], console: Console) -> int:
    """Report a defect of the program, with a file for its maintainers."""
    import tempfile  # noqa: PLC0415 - only for mistakes of ours
    import traceback  # noqa: PLC0415

    text = "".join(traceback.format_exception(error))
    if _debugging(arguments, console):
        console.info(text.rstrip("\n"), LogLevel.ERROR)
        return 1
    with tempfile.NamedTemporaryFile(
        "w", prefix=f"{PROGRAM}-", suffix=".txt", delete=False, encoding="utf-8"
    ) as report:
        # Without the command line: environment variables of jobs may be secrets.
        report.write(f"{PROGRAM} {__version__}, Python {sys.version}\n\n{text}")
    console.info(
        f"error: {PROGRAM} made a mistake: {type(error).__name__}: {error}\n"
        f"  try:  report it with {report.name}, or see more with ARENA_TOPO_DEBUG=1",
        LogLevel.ERROR,
    )
    return 1


def _debugging(arguments: Sequence[str], console: Console) -> bool:
    # In the raw words: the defect may be in parsing them.
    words = " ".join(arguments).replace("=", " ")
    wanted = os.environ.get("ARENA_TOPO_DEBUG") == "1" or "--loglevel debug" in words
    return wanted or console.shows(LogLevel.DEBUG)
