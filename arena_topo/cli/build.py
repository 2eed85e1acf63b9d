"""What this installation is: the commit it was installed from, its Python, its packages."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

from arena_topo import __version__
from arena_topo.cli.options import PROGRAM

_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]*")
_FOR_TESTS = re.compile(r"""extra\s*==\s*['"]test['"]""")


def facts(*, verbose: bool) -> dict[str, Any]:
    """What is known, in arena's order; the commit only where pip has recorded one (PEP 610)."""
    known: dict[str, Any] = {}
    commit = _commit()
    if commit is not None:
        known["gitCommit"] = commit
    known["pythonVersion"] = platform.python_version()
    known["platform"] = f"{sys.platform}/{os.uname().machine}"
    if verbose:
        from arena_topo.manifests.templates import template_folder  # noqa: PLC0415 - only here

        known["templates"] = str(template_folder())
        known["packages"] = _packages()
    return known


def _commit() -> str | None:
    # Where pip puts it, beside the package; to ask importlib.metadata would take 15 ms.
    package = Path(__file__).parents[1]
    record = package.parent / f"{package.name}-{__version__}.dist-info" / "direct_url.json"
    try:
        commit = json.loads(record.read_bytes())["vcs_info"]["commit_id"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return commit if isinstance(commit, str) else None


def _packages() -> dict[str, str]:
    """The packages that it needs or can use, with their versions; those for tests are left out.

    None where it runs from its sources alone and nothing says what it needs.
    """
    from importlib import metadata  # noqa: PLC0415 - only here

    try:
        requirements = metadata.requires(PROGRAM) or ()
    except metadata.PackageNotFoundError:
        return {}
    versions = {}
    for requirement in requirements:
        name = _NAME.match(requirement)
        if name is None or _FOR_TESTS.search(requirement):
            continue
        try:
            versions[name[0]] = metadata.version(name[0])
        except metadata.PackageNotFoundError:
            versions[name[0]] = "not installed"
    return versions
