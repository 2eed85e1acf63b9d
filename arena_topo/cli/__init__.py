"""The command tree; main(): errors to exit codes."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

import typer

from arena_topo import __version__
from arena_topo.cli import stopping
from arena_topo.cli.options import (
    PROGRAM,
    LogLevel,
    ParserError,
    complain,
    forget_output,
    hears,
    listen,
    say,
)
from arena_topo.cli.root import tree
from arena_topo.cli.terminal import keep_styles
from arena_topo.errors import ArenaError, TimedOut, UsageError
from arena_topo.layout import Styles

INTERRUPTED = 130
"""Typer's exit code for an interrupt of any kind."""

_SURPLUS = re.compile(r"Got unexpected extra argument\S* \((.*)\)")
"""The parser's message about surplus arguments."""


def main() -> NoReturn:
    """Run the program on the words of the shell, and exit."""
    if not os.environ.get("HOME", "unset"):
        # An empty one would be read as the root of the file system.
        del os.environ["HOME"]
    code = run(sys.argv[1:])
    # Python looks for cycles once more as it ends, and the process takes all of them along anyway.
    gc.freeze()
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command line; the exit code. Nothing escapes as a traceback."""
    listen(LogLevel.INFO)
    try:
        keep_styles()
        return _ended(arguments)
    except (KeyboardInterrupt, typer.Abort):
        return stopping.code()
    except stopping.OutOfTime:  # maybe while an error was being written
        stopping.unlimited()
        late = TimedOut("--timeout is over", hint="allow more with --timeout")
        complain(late)
        return late.exit_code
    finally:
        stopping.unlimited()
        Styles.kept = False


def _ended(arguments: Sequence[str]) -> int:
    """Run one command line and print its error; the exit code."""
    try:
        code = tree().main(args=list(arguments), prog_name=PROGRAM, standalone_mode=False)
        code = stopping.code() if code == INTERRUPTED else code
        if sys.stdout is not None:  # it may have been closed by the caller: `>&-`
            sys.stdout.flush()
    except ArenaError as error:
        stopping.unlimited()
        complain(error)
        code = error.exit_code
    except ParserError as error:
        said = _SURPLUS.sub(r"too many words: \1", error.format_message())
        usage = error.ctx.get_usage() if getattr(error, "ctx", None) else ""
        wrong = UsageError(said, hint=" ".join(usage.split()[1:]) or None)
        complain(wrong)
        code = UsageError.exit_code
    except typer.Abort:  # an Exception, and no mistake of ours
        raise
    except BrokenPipeError:
        # The reader of stdout has gone.
        forget_output()
        code = 1
    except SystemExit as leaving:  # Typer leaves by itself after a broken pipe
        code = leaving.code
    except Exception as error:  # noqa: BLE001 - the last resort: no traceback for users
        code = _unexpected(error, arguments)
    return int(code or 0)


def _unexpected(error: Exception, arguments: Sequence[str]) -> int:
    """Report a defect of the program, with a file for its maintainers."""
    import tempfile  # noqa: PLC0415 - only for mistakes of ours
    import traceback  # noqa: PLC0415

    text = "".join(traceback.format_exception(error))
    if _debugging(arguments):
        say(text.rstrip("\n"), LogLevel.ERROR)
        return 1
    with tempfile.NamedTemporaryFile(
        "w", prefix=f"{PROGRAM}-", suffix=".txt", delete=False, encoding="utf-8"
    ) as report:
        # Without the command line: environment variables of jobs may be secrets.
        report.write(f"{PROGRAM} {__version__}, Python {sys.version}\n\n{text}")
    say(
        f"error: {PROGRAM} made a mistake: {type(error).__name__}: {error}\n"
        f"  try:  report it with {report.name}, or see more with ARENA_TOPO_DEBUG=1",
        LogLevel.ERROR,
    )
    return 1


def _debugging(arguments: Sequence[str]) -> bool:
    # In the raw words: the defect may be in parsing them.
    words = " ".join(arguments).replace("=", " ")
    asked = os.environ.get("ARENA_TOPO_DEBUG") == "1" or "--loglevel debug" in words
    return asked or hears(LogLevel.DEBUG)
