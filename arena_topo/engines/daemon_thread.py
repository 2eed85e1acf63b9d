"""Threads that nobody waits for, where the system has one left."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from arena_topo.errors import ArenaError


def start_daemon(target: Callable[..., object], *args: Any, name: str | None = None) -> None:
    """Call a function in a daemon thread; ArenaError where no thread can be started."""
    try:
        threading.Thread(target=target, args=args, name=name, daemon=True).start()
    except RuntimeError as error:
        raise ArenaError(
            "this process can start no more threads",
            why=str(error),
            hint="end other processes, or raise their limit (`ulimit -u`, or the pids of a"
            " container)",
        ) from error
