"""The command `version`: what this installation is, with its commit and its Python."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Annotated, Any

from arena_topo import __version__
from arena_topo.cli.arguments import PANEL, Output, OutputFlag, format_document
from arena_topo.cli.options import PROGRAM
from arena_topo.cli.parameters import command_from_records
from arena_topo.cli.session import Session
from arena_topo.flag import Flag


@command_from_records
def version(
    session: Session,
    *,
    short: Annotated[bool, Flag(help="Only the version.", panel=PANEL)] = False,
    verbose: Annotated[
        bool,
        Flag(help="Not used.", short="-v", panel=PANEL, hidden=True),
    ] = False,
    output_format: OutputFlag = Output.WIDE,
) -> None:
    """Show the version of the program.

    Examples:
      # The version and the Python below it
      version
    """
    del verbose  # arena's charts
    known: dict[str, Any] = {"version": f"v{__version__}"}
    if not short and not session.common.quiet:
        known |= facts()
    if output_format is not Output.WIDE:
        session.console.write(format_document(known, output_format))
        return
    first, *others = known.items()
    lines = [f"  {key[0].upper()}{key[1:]}: {value}\n" for key, value in others]
    session.console.write(f"{PROGRAM}: {first[1]}\n{''.join(lines)}")


def facts() -> dict[str, Any]:
    """What is known, in arena's order; the commit only where pip has recorded one (PEP 610)."""
    known: dict[str, Any] = {}
    commit = _commit()
    if commit is not None:
        known["gitCommit"] = commit
    known["pythonVersion"] = platform.python_version()
    known["platform"] = f"{sys.platform}/{os.uname().machine}"
    return known


def _commit() -> str | None:
    # Where pip puts it, beside the package; to ask importlib.metadata would take 15 ms.
    package = Path(__file__).parents[1]
    record = package.parent / f"{package.name}-{__version__}.dist-info" / "direct_url.json"
    try:
        text = record.read_bytes()
    except OSError:
        return None
    import json  # noqa: PLC0415 - only for this record

    try:
        commit = json.loads(text)["vcs_info"]["commit_id"]
    except (ValueError, LookupError, TypeError):
        return None
    return commit if isinstance(commit, str) else None
