"""The command that deletes jobs: delete."""

from __future__ import annotations

from typing import Annotated

import typer

from arena_topo import layout
from arena_topo.cli import remembering
from arena_topo.cli.arguments import PANEL, Kind, Names, Told, ToldFlag, TypeFlag
from arena_topo.cli.opening import engine, missing, namespace_of
from arena_topo.cli.options import Globals, LogLevel, say, show, spread
from arena_topo.errors import ArenaError, NotFound
from arena_topo.flag import Flag
from arena_topo.jobs import view


@spread
def delete(
    names: Names,
    everywhere: Globals,
    *,
    kind: TypeFlag = None,
    ignore_not_found: Annotated[
        bool, Flag(help="Do not mind jobs that are not there.", panel=PANEL)
    ] = False,
    output_format: ToldFlag = Told.WIDE,
) -> None:
    """Delete jobs and all that belongs to them."""
    names_only = output_format is Told.NAME or everywhere.quiet
    backend = engine(everywhere)
    namespace = namespace_of(everywhere, backend)
    code = 0
    for name in dict.fromkeys(names):
        try:
            if kind is Kind.OTHER:
                raise missing(name, namespace)
            backend.delete(name, namespace)
        except NotFound:
            if not ignore_not_found:
                say(layout.complaint(missing(name, namespace, backend)), LogLevel.ERROR)
                code = code or 1
        except ArenaError as error:
            # The other jobs are deleted all the same; the first failure decides the exit code.
            say(layout.complaint(error), LogLevel.ERROR)
            code = code or error.exit_code
        else:
            if names_only:
                show(f"{view.RESOURCE}/{name}\n")
            else:
                say(f"The training job {name} has been deleted successfully")
            remembering.gone(backend, namespace, name)
    if code:
        raise typer.Exit(code)
