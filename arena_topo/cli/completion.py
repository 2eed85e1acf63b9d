"""`completion`: prints the scripts that let a shell complete arena-topo, those of completions/.

What they ask the program is answered by `arena_topo.completion`, which imports none of this.
"""

from __future__ import annotations

from typing import Annotated

from arena_topo.cli.options import PROGRAM
from arena_topo.cli.parameters import command_from_records
from arena_topo.cli.session import Session
from arena_topo.completion import SHELLS
from arena_topo.errors import UsageError
from arena_topo.files import packaged
from arena_topo.flag import Word

_FILES = dict(
    zip(
        SHELLS,
        (f"{PROGRAM}.bash", f"_{PROGRAM}", f"{PROGRAM}.fish", f"{PROGRAM}.ps1"),
        strict=True,
    )
)


@command_from_records
def completion(
    shell: Annotated[str, Word("[SHELL]", "shells")],
    session: Session,
) -> None:
    """Print the completion script for bash, zsh, fish or powershell.

    Add a line to the startup file of your shell:

    bash: `source <(arena-topo completion bash)`

    zsh, below compinit: `source <(arena-topo completion zsh)`

    fish: `arena-topo completion fish | source`

    pwsh: `arena-topo completion powershell | Out-String | Invoke-Expression`

    Examples:
      # The script for bash
      completion bash
    """
    if shell not in SHELLS:
        *some, last = SHELLS
        raise UsageError(
            f"unknown shell {shell!r}" if shell else "no shell is named",
            why=f"expected {', '.join(some)} or {last}",
            hint=f"source <({PROGRAM} completion bash)",
        )
    session.console.write((packaged("completions") / _FILES[shell]).read_text(encoding="utf-8"))
