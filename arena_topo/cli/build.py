"""What this installation is: the commit it was installed from and its Python."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from arena_topo import __version__


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
        commit = json.loads(record.read_bytes())["vcs_info"]["commit_id"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return commit if isinstance(commit, str) else None
