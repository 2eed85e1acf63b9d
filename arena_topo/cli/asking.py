"""Names for TAB that are not cached yet: read as a command would read them, and cached.

Flags, variables and settings count as for every command. Nothing is printed, and no password is
asked for. TAB waits for at most a moment (`completion.names`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from arena_topo.cli import remembering, settings
from arena_topo.cli.commands import ArenaCommand
from arena_topo.cli.opening import namespace_of
from arena_topo.cli.options import PROGRAM, Globals, LogLevel, listen, spread
from arena_topo.completion import names
from arena_topo.engines import opening


def ask(kind: str, given: Sequence[tuple[str, str]]) -> None:
    """Read the names of a kind for a line with these options, and cache them.

    Any exception where they cannot be read.
    """
    listen(LogLevel.ERROR)

    @spread
    def look(everywhere: Globals) -> None:
        """Read names."""
        _look(kind, everywhere)

    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    app.command("names", cls=ArenaCommand)(look)
    line = [f"--{name}={text}" for name, text in given if name in {*names.FLAGS, "namespace"}]
    line.append(f"--request-timeout={names.LIMIT:g}s")
    command: Any = typer.main.get_command(app)
    command.steady = True
    command.main(args=line, prog_name=PROGRAM, standalone_mode=False)


def _look(kind: str, everywhere: Globals) -> None:
    remembering.begin(everywhere)
    options = everywhere.options()
    if kind == "profiles":
        files = settings.read().files
        remembering.own(kind, {name for one in files for name in one.table("profile")})
        return
    if kind in names.OWN:
        from arena_topo.engines.kubernetes import kubeconfig  # noqa: PLC0415 - loads YAML

        for each, found in kubeconfig.entries(options).items():
            remembering.own(each, found)
        return
    backend = opening.open_backend(options)
    namespace = namespace_of(everywhere, backend)
    if kind in {"jobs", "instances"}:
        remembering.jobs(backend, namespace, backend.jobs(namespace), whole=True)
    elif kind == "claims":
        remembering.claims(backend, backend.volumes(namespace), namespace)
    elif backend.name != "local":
        remembering.others(backend, kind, opening.administration(backend).named(kind))
    elif kind == "nodes":
        remembering.nodes(backend, backend.cluster())
    else:
        spaces = {"default", *(one.namespace for one in backend.jobs(None))}
        remembering.others(backend, kind, dict.fromkeys(spaces if kind == "namespaces" else (), ""))
