"""The processes of a local job: finding them, testing whether they run, and ending them.

Neither process groups nor sessions identify them, since `mpirun` daemons start sessions of their
own. A variable in their environment does, which children inherit, and, while the supervisor lives,
descent from it. Linux only: everything is read from /proc. Elsewhere no job runs, so the others of
these functions are not called there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PROC = Path("/proc")

JOB_MARK = "ARENA_TOPO_JOB_UID"
"""The environment variable that says which job a process belongs to."""

POD_MARK = "ARENA_TOPO_POD"
"""The environment variable that says which pod of the job a process belongs to."""

KEEPER_MARK = "ARENA_TOPO_KEEPER_UID"
"""The environment variable that says which job a process is the supervisor of."""

KILL_GRACE = 3.0
"""Seconds between asking a process to end and killing it."""

INSIST = 10.0
"""Seconds to wait for a process to end after SIGKILL: freeing much memory takes seconds, and a
process that waits for a broken device or file server may never end."""

_STEP = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process, identified despite PID reuse: by its process ID, start and boot.

    `started` is in clock ticks since the boot (proc(5), field 22).
    """

    pid: int
    started: int
    boot: str


def process(pid: int) -> Process | None:
    """The process that has this ID now; None if there is none, or only its remains."""
    stat = _stat(pid)
    return None if stat is None else Process(pid=pid, started=stat[1], boot=boot_id())


@cache
def processes_visible() -> bool:
    """Whether processes can be seen: on Linux, and nowhere else."""
    return (PROC / "self/stat").exists()


def alive(member: Process) -> bool:
    """Whether this process, and not another with its ID, still runs."""
    return process(member.pid) == member


def supervises(process: Process, uid: str) -> bool:
    """Whether this process runs, and is the supervisor of the job with this uid."""
    return alive(process) and f"{KEEPER_MARK}={uid}".encode() in _environment(process.pid)


@cache
def boot_id() -> str:
    """The ID of this start of the machine."""
    return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def shell_exit_code(waited: int) -> int:
    """The exit code as shells give it: 128 and the signal that ended a process (negative here)."""
    return waited if waited >= 0 else 128 - waited


def processes_of_job(uid: str) -> AbstractSet[int]:
    """The processes with the mark of a job in their environment."""
    mark = f"{JOB_MARK}={uid}".encode()
    return {
        pid
        for pid in _pids()
        if mark in _environment(pid) and _stat(pid) is not None and pid != os.getpid()
    }


def descendants(ancestor: int) -> AbstractSet[int]:
    """All descendants of a process except supervisors, since a job may submit other jobs."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        stat = _stat(pid)
        if stat is not None:
            children.setdefault(stat[0], []).append(pid)
    known: set[int] = set()
    waiting = [ancestor]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in known and not _is_supervisor(child):
                known.add(child)
                waiting.append(child)
    return known


def terminate(
    find: Callable[[], AbstractSet[int]],
    *,
    grace: float = KILL_GRACE,
    reap: Callable[[], None] = lambda: None,
) -> AbstractSet[int]:
    """End all processes that `find` returns; the processes that cannot be ended.

    SIGTERM comes first, SIGKILL after `grace` seconds; `INSIST` seconds later the rest is given up.
    `find` is called repeatedly, since processes that are ending may start others. `reap` is called
    after each round, where this process has to collect its children.
    """
    deadline = time.monotonic() + grace
    signalled: set[int] = set()
    denied: set[int] = set()
    while (left := find()) - denied:
        now = time.monotonic()
        if now < deadline:
            # A stopped process handles SIGTERM only after SIGCONT.
            denied |= _send(find, left - signalled, signal.SIGTERM, signal.SIGCONT)
            signalled |= left
        elif now < deadline + INSIST:
            denied |= _send(find, left - denied, signal.SIGKILL)
        else:
            break
        time.sleep(_STEP)
        reap()
    return left


def processes_text(pids: AbstractSet[int]) -> str:
    """Process IDs for a person: `process 7`, `processes 7, 8`."""
    return f"process{'es' * (len(pids) > 1)} {', '.join(map(str, sorted(pids)))}"


def _send(
    find: Callable[[], AbstractSet[int]], pids: AbstractSet[int], *numbers: signal.Signals
) -> set[int]:
    """Send signals; the processes that run as another user by now, which may not be signalled.

    A process ID may have been reused since `find` was called. So each process is opened first, and
    `find` called once more: the processes that it still returns are those that were opened.
    """
    opened: dict[int, int | None] = {}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            opened[pid] = _opened(pid)
    denied = set()
    try:
        current = find() if opened else frozenset()
        # The oldest first: a shell that outlives its child reports the end of the child in the log.
        for pid in sorted(opened.keys() & current, key=_age):
            try:
                for number in numbers:
                    _signal(pid, opened[pid], number)
            except ProcessLookupError:
                continue
            except PermissionError:
                denied.add(pid)
    finally:
        for descriptor in opened.values():
            if descriptor is not None:
                os.close(descriptor)
    return denied


def _opened(pid: int) -> int | None:
    """A pidfd of a process; None where the kernel has none (before Linux 5.3).

    ProcessLookupError if the process is gone.
    """
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):
        return None


def _signal(pid: int, opened: int | None, number: signal.Signals) -> None:
    if opened is None:
        os.kill(pid, number)
    else:
        signal.pidfd_send_signal(opened, number)


def _age(pid: int) -> tuple[int, int]:
    """A sort key: the start of a process, then its ID."""
    stat = _stat(pid)
    return (0 if stat is None else stat[1], pid)


def _environment(pid: int) -> list[bytes]:
    """The environment that a process was started with; empty if it may not be read."""
    try:
        return (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _is_supervisor(pid: int) -> bool:
    return any(variable.startswith(f"{KEEPER_MARK}=".encode()) for variable in _environment(pid))


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir(PROC) if name.isdigit())  # noqa: PTH208  10x faster


def _stat(pid: int) -> tuple[int, int] | None:
    """Parent and start of a process; None if it is gone, or dead and not yet collected."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may itself hold spaces and parentheses.
    state, parent, *rest = text.rpartition(")")[2].split()
    return None if state in "ZXx" else (int(parent), int(rest[17]))
