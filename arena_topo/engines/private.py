"""Folders and files of one user: what is in them is trusted, and may be secret."""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from collections.abc import Mapping
from pathlib import Path

from arena_topo.errors import ArenaError

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def state_folder(environment: Mapping[str, str]) -> Path:
    """The folder of the state; ArenaError if the user has no home folder."""
    named = environment.get("XDG_STATE_HOME", "")
    base = Path()
    # The XDG specification says to ignore relative paths.
    if named.startswith("/"):
        base = Path(named)
    elif environment.get("HOME") != "":
        with contextlib.suppress(RuntimeError):
            base = Path("~/.local/state").expanduser()
    if base.is_absolute():
        return base / "arena-topo"
    raise ArenaError(
        "there is no place to keep local jobs",
        why="neither XDG_STATE_HOME nor HOME is set, and the user has no home folder",
        hint="set XDG_STATE_HOME to a folder that you may write to",
    )


def require_private(folder: Path) -> None:
    """Make sure that an existing folder belongs to this user and is closed to all others.

    The mode of the user's own folder is repaired. ArenaError for the folder of another user, also
    behind a link, for another user's link, and if the mode cannot be repaired.
    """
    try:
        statuses = [os.lstat(folder), os.stat(folder)]  # noqa: PTH116  a Path costs more than the call
    except OSError:
        # The next use of the folder reports what is wrong with it.
        return
    owner = next((status.st_uid for status in statuses if status.st_uid != os.geteuid()), None)
    if owner is not None:
        raise _refusal(folder, f"it belongs to {_name(owner)}, who could change what is in it")
    if statuses[1].st_mode & _OTHERS:
        with contextlib.suppress(OSError):
            os.chmod(folder, stat.S_IRWXU)  # noqa: PTH101
        if os.stat(folder).st_mode & _OTHERS:  # noqa: PTH116
            raise _refusal(folder, "other users can look into it or change it")


def require_own(descriptor: int, what: str) -> None:
    """PermissionError unless an open file, which `what` names, belongs to this user."""
    if os.fstat(descriptor).st_uid != os.geteuid():
        raise PermissionError(f"{what} belongs to another user")


def require_file(descriptor: int, name: str, most: float) -> None:
    """OSError unless an open file is a regular one of this user, of at most `most` bytes."""
    require_own(descriptor, name)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise PermissionError(f"{name} is not a file")
    if status.st_size > most:
        raise OSError(f"{name} is larger than any file that arena-topo writes there")


def _refusal(folder: Path, why: str) -> ArenaError:
    return ArenaError(
        f"the folder {folder} is not used",
        why=why,
        hint="set XDG_STATE_HOME to a folder that only you can write to",
    )


def _name(owner: int) -> str:
    try:
        return f"the user {pwd.getpwuid(owner).pw_name}"
    except KeyError:
        return f"the user with the number {owner}"
