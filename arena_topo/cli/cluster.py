"""The commands about the program: version, whoami, completion."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated

import typer

from arena_topo import __version__
from arena_topo.cli.arguments import PANEL
from arena_topo.cli.commands import COMPLETE_VARIABLE
from arena_topo.cli.opening import engine
from arena_topo.cli.options import PROGRAM, Globals, show, spread
from arena_topo.errors import UsageError
from arena_topo.flag import Flag

SHELLS = ("bash", "zsh", "fish", "powershell")


@spread
def version(
    everywhere: Globals,
    *,
    short: Annotated[bool, Flag(help="Only the version.", panel=PANEL)] = False,
) -> None:
    """Show the version of the program."""
    del everywhere
    show(f"{PROGRAM}: v{__version__}\n")
    if not short:
        import platform  # noqa: PLC0415 - only here

        show(f"  PythonVersion: {platform.python_version()}\n")
        show(f"  Platform: {sys.platform}/{os.uname().machine}\n")


@spread
def whoami(everywhere: Globals) -> None:
    """Show the name that jobs are submitted under."""
    import hashlib  # noqa: PLC0415 - only here

    name = engine(everywhere).owner()
    # An identifier that arena derives in the same way, not a secret.
    identity = hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()
    shown = {"Name": name, "Id": identity, "IsAdminUser": False}
    show(json.dumps(shown, separators=(",", ":"), ensure_ascii=False) + "\n")


@spread
def completion(
    shell: Annotated[str, typer.Argument(metavar="SHELL", show_default=False)],
    everywhere: Globals,
) -> None:
    """Print the completion script for bash, zsh, fish or powershell."""
    from typer._completion_shared import (  # noqa: PLC0415 - no public name prints them
        get_completion_script,
    )

    del everywhere
    if shell not in SHELLS:
        *some, last = SHELLS
        raise UsageError(
            f"Invalid shell {shell!r}. The supported shells are {', '.join(some)} and {last}.",
            hint=f"source <({PROGRAM} completion bash)",
        )
    script = get_completion_script(prog_name=PROGRAM, complete_var=COMPLETE_VARIABLE, shell=shell)
    show(script + "\n")
