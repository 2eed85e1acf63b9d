"""`completion`: the scripts that let a shell complete arena-topo, printed or installed.

The scripts are those of completions/, word for word. What they ask the program is answered by
`arena_topo.completion`, which imports none of this.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from arena_topo.cli.arguments import PANEL
from arena_topo.cli.options import PROGRAM, Globals, show, spread
from arena_topo.cli.settings import at_home
from arena_topo.completion import ASKED, SHELLS
from arena_topo.errors import AlreadyExists, ArenaError, UsageError
from arena_topo.flag import Flag, Word

_FILES = dict(
    zip(
        SHELLS,
        (f"{PROGRAM}.bash", f"_{PROGRAM}", f"{PROGRAM}.fish", f"{PROGRAM}.ps1"),
        strict=True,
    )
)


@spread
def completion(
    shell: Annotated[
        str, typer.Argument(metavar="[SHELL]", show_default=False), Word(completes="shells")
    ],
    everywhere: Globals,
    *,
    install: Annotated[
        bool,
        Flag(
            help="Put the script where the shell looks for yours, and say what is left to do;"
            " without SHELL, for that of $SHELL.",
            panel=PANEL,
        ),
    ] = False,
) -> None:
    """Print the completion script for bash, zsh, fish or powershell; or install it.

    `--install` puts it where new shells look, and says what is left to do. Else the file that your
    shell reads when it starts has the line: bash `source <(arena-topo completion bash)`, zsh the
    same with zsh, after compinit; fish `arena-topo completion fish | source`; PowerShell
    `arena-topo completion powershell | Out-String | Invoke-Expression`.
    """
    del everywhere
    if install and not shell:
        shell = _own_shell()
    if shell not in SHELLS:
        *some, last = SHELLS
        nothing = "no shell is named, and SHELL is not set"
        said = nothing if install and not shell else f"Invalid shell {shell!r}"
        raise UsageError(
            f"{said}. The supported shells are {', '.join(some)} and {last}.",
            hint=f"{PROGRAM} completion bash --install"
            if install
            else f"source <({PROGRAM} completion bash)",
        )
    show(_installed(shell) if install else script(shell))


def script(shell: str) -> str:
    """The script for one of `completion.SHELLS`; ArenaError if the installation lacks it."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "completions"
    folder = inside if inside.is_dir() else package.parent / "completions"
    path = folder / _FILES[shell]
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ArenaError(
            f"cannot read {path}",
            why=error.strerror,
            hint="it is part of the program: install that again",
        ) from error


def _own_shell() -> str:
    """The shell that the user logs in with; what is no shell we know is named as it is."""
    name = os.environ.get("SHELL", "").rpartition("/")[2]
    return "powershell" if name == "pwsh" else name


def _installed(shell: str) -> str:
    """Install a script; what was done, and what is left to do."""
    if shell == "powershell":
        return (
            "Nothing was written: PowerShell looks nowhere for completions. Add this line to the"
            " file that $PROFILE names:\n"
            f"  {PROGRAM} completion powershell | Out-String | Invoke-Expression\n"
        )
    path = _place(shell)
    done = _write(path, script(shell))
    if shell == "fish":
        left = f"New shells complete {PROGRAM}; nothing is left to do."
    elif shell == "bash":
        left = (
            "New shells complete it where the package bash-completion is loaded. Where it is not,"
            f" add this line to ~/.bashrc:\n  source {shlex.quote(str(path))}"
        )
    else:
        left = (
            "New shells complete it with these two lines in ~/.zshrc; of any other compinit there,"
            f" the first must come before:\n  fpath=({shlex.quote(str(path.parent))} $fpath)\n"
            "  autoload -Uz compinit && compinit"
        )
    return f"{done}\n{left}\n"


def _place(shell: str) -> Path:
    """Where a shell looks for the scripts of its user; zsh looks nowhere, but may be told to.

    bash: the README of bash-completion, under BASH_COMPLETION_USER_DIR, where several folders may
    stand since 2.12. fish: its manual, under "Where to put completions".
    """
    if shell == "fish":
        return _base("XDG_CONFIG_HOME", "~/.config") / "fish" / "completions" / _FILES[shell]
    data = _base("XDG_DATA_HOME", "~/.local/share")
    if shell == "zsh":
        return data / "zsh" / "site-functions" / _FILES[shell]
    named = os.environ.get("BASH_COMPLETION_USER_DIR", "").partition(":")[0]
    return (Path(named) if named else data / "bash-completion") / "completions" / PROGRAM


def _base(variable: str, else_at: str) -> Path:
    """A folder of the XDG base directory specification, which has relative paths ignored."""
    named = Path(os.environ.get(variable, ""))
    folder = named if named.is_absolute() else Path(at_home(else_at))
    if not folder.is_absolute():
        raise ArenaError(
            "there is no place for the script",
            why=f"neither {variable} nor HOME is set, and the user has no home folder",
            hint=f"set {variable}, or send the script to a file that the shell reads",
        )
    return folder


def _write(path: Path, text: str) -> str:
    """Put the script there, through a link should it be one; what was done, in a sentence."""
    try:
        place = path.resolve()
        before = place.read_bytes() if place.exists() else None
        if before == text.encode():
            return f"{path} is there already, as it should be."
        if before is not None and ASKED.encode() not in before:
            raise AlreadyExists(
                f"{path} is there already, and is no script of {PROGRAM}",
                hint="look at it, and move it away",
            )
        place.parent.mkdir(parents=True, exist_ok=True)
        opened, temporary = tempfile.mkstemp(prefix=".new-", dir=place.parent)
        try:
            with os.fdopen(opened, "w", encoding="utf-8") as file:
                file.write(text)
                os.fchmod(file.fileno(), 0o644)
            Path(temporary).replace(place)
        except OSError:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
    except (OSError, RuntimeError) as error:  # RuntimeError: links that lead in a circle
        raise ArenaError(
            f"cannot write {path}",
            why=getattr(error, "strerror", None) or str(error),
            hint="send the script to a file that the shell reads, without --install",
        ) from error
    return f"{'Installed' if before is None else 'Updated'} {path}."
