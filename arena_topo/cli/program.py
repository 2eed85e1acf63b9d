"""The commands about the program: whoami, its options, the schema of job files."""

from __future__ import annotations

import json
from typing import Annotated

from arena_topo.cli.arguments import Output, format_document, output
from arena_topo.cli.parameters import command_from_records
from arena_topo.cli.session import Session


@command_from_records
def whoami(
    session: Session,
    *,
    output_format: Annotated[Output, output(Output.JSON, Output.YAML)] = Output.JSON,
) -> None:
    """Show the name that jobs are submitted under.

    Examples:
      # The name that jobs are submitted under
      whoami
    """
    import hashlib  # noqa: PLC0415 - only here

    from arena_topo.cli.targets import open_engine  # noqa: PLC0415 - loads the engines

    backend = open_engine(session)
    name = backend.owner(tell=session.console.warn)
    # An identifier that arena derives in the same way, not a secret.
    identity = hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()
    administrator = name in backend.administrators(session.common.arena_namespace)
    shown = {"Name": name, "Id": identity, "IsAdminUser": administrator}
    if output_format is Output.YAML:
        session.console.write(format_document(shown, output_format))
    else:
        session.console.write(json.dumps(shown, separators=(",", ":"), ensure_ascii=False) + "\n")


@command_from_records
def options(session: Session) -> None:
    """Show the options that every command takes.

    They may stand before or after the command. Most can be set in files and by variables, too;
    `arena-topo config view --resolved` shows every setting in effect.

    Examples:
      # The options of every command
      options
    """
    from arena_topo.cli.commands import options_of_all  # noqa: PLC0415 - as above
    from arena_topo.cli.root import command_tree  # noqa: PLC0415 - the tree knows this command

    session.console.screen(options_of_all(command_tree()))


@command_from_records
def config_schema(session: Session) -> None:
    """Print the JSON schema of job files (submit mpi -f), for editors.

    Examples:
      # The schema of job files, for an editor
      config schema
    """
    from arena_topo.cli import jobfile  # noqa: PLC0415 - only here

    session.console.write(jobfile.schema_text())
