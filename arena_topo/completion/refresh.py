"""The child that asks a cluster for names: started at TAB where they are old, and left alone.

It is a command of its own without a terminal, told by a variable what to ask for. It writes what it
found as every command does; TAB finds it there the next time. One is under way for a cluster at a
time, none is started again soon after one that failed, and none lives longer than LIMIT.
"""

from __future__ import annotations

import os
import sys

from arena_topo.completion import keeping, place

ASKED = "_ARENA_TOPO_REFRESH"
"""The variable that makes the program such a child: the kind of names, the file that says whose
turn it is, what stands for the cluster, and perhaps a job, with blanks between them."""

LIMIT = 15
"""Seconds after which a child is ended, wherever it is, with all that it started."""

BACKOFF = 30
"""Seconds between a failure and the next try."""

_COMPLETES = "_ARENA_TOPO_COMPLETE"

_WINDOWS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
"""Where a credential plugin would open a window: nobody asked for one who pressed TAB."""

_FLAGS = {field: flag for flag, field in place.OURS.items() if flag != "--config"}


def start(kind: str, line: place.Line, job: str = "") -> bool:
    """Start a child for a kind of names, if it is its turn; whether one was started.

    It costs a millisecond, and nobody waits for it.
    """
    turn = f"turn-{place.digest(f'{line.key} {line.namespace} {kind} {job}')}"
    started: list[bool] = []

    def look(folder: keeping.Folder) -> None:
        state, _, told = folder.read(turn).strip().partition(" ")
        quiet = BACKOFF if state == "failed" else LIMIT
        if told.isdecimal() and 0 <= keeping.now() - int(told) < quiet * 1000:
            return
        folder.write(turn, f"running {keeping.now()}\n")
        started.append(True)

    keeping.kept(line.environ, look)
    if not started or not sys.executable:
        return False
    words = [
        f"{_FLAGS[field]}={text}"
        for field, said in line.said.items()
        for text in (said.split("\n") if field == "groups" else (said,))
    ]
    # What variables say of the cluster is said by the flags.
    without = {*_WINDOWS, _COMPLETES, *(one for some in place.VARIABLES.values() for one in some)}
    told = {one: text for one, text in line.environ.items() if one not in without}
    told[ASKED] = f"{kind} {turn} {place.digest(line.key)} {job}"
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_DUP2, 1, 2),
        # A shell waits for all that hold the other end of its pipes.
        *((os.POSIX_SPAWN_CLOSE, one) for one in _open()),
    ]
    # -P: the folder that somebody stands in has no say in what is loaded.
    command = [sys.executable, "-P", "-m", "arena_topo", *words]
    try:
        os.posix_spawn(sys.executable, command, told, file_actions=actions, setsid=True)
    except NotImplementedError:  # the child does it itself, a moment later
        os.posix_spawn(sys.executable, command, told, file_actions=actions)
    return True


def _open() -> list[int]:
    """The file descriptors that are open beside the standard ones."""
    return [one for one in map(int, os.listdir("/proc/self/fd")) if one > 2]  # noqa: PTH208, PLR2004
