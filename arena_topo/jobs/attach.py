"""The command `attach`: runs a command in a pod of a job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import typer

from arena_topo.cli.arguments import PANEL, Name, TypeFlag
from arena_topo.cli.parameters import command_from_records
from arena_topo.cli.session import Session
from arena_topo.cli.targets import namespace_of, open_engine, suggest_similar_job
from arena_topo.engines.attach_request import AttachRequest
from arena_topo.flag import Flag, Word

_Words = Annotated[tuple[str, ...], Word("[-- COMMAND...]")]


@command_from_records
def attach(
    name: Name,
    session: Session,
    *,
    command: _Words = (),
    instance: Annotated[
        str,
        Flag(
            help="Pod to run the command in; else the launcher.",
            short="-i",
            panel=PANEL,
            metavar="POD",
            completes="instances",
        ),
    ] = "",
    container: Annotated[
        str,
        Flag(
            help="Container to run it in; else the main one.",
            short="-c",
            panel=PANEL,
            metavar="NAME",
            completes="containers",
        ),
    ] = "",
    no_tty: Annotated[
        bool,
        Flag(help="Give the command no terminal, even from a terminal.", panel=PANEL),
    ] = False,
    kind: TypeFlag = None,
) -> None:
    """Run a command in a job's launcher, or in another of its pods; else a shell.

    From a terminal, it gets this terminal; in a pipe, stdin, stdout and stderr. Ends with the exit
    code of the command.

    Examples:
      # A shell in the launcher
      attach bert
      # A command in a worker
      attach bert -i bert-worker-0 -- nvidia-smi
    """
    from arena_topo.engines import attachment, raw_terminal  # noqa: PLC0415 - only here

    backend = open_engine(session)
    namespace = namespace_of(session, backend)
    with suggest_similar_job(name, namespace, backend, kind):
        status = backend.job(name, namespace)
    request = AttachRequest(
        words=_words(command),
        instance=instance or None,
        container=container or None,
        terminal=raw_terminal.is_terminal() and not no_tty,
    )
    code = attachment.attach_to_job(backend, status, request, tell=session.console.event)
    raise typer.Exit(code)


def _words(words: Sequence[str]) -> tuple[str, ...]:
    """The command as a list; a single word with spaces is run by a shell."""
    if len(words) == 1 and re.search(r"\s", words[0]):
        return "sh", "-c", words[0]
    return tuple(words)
