"""Suspending local jobs: their processes end, their GPUs are free, and they stay to be resumed.

A job that is to be held is marked in its folder first, so that whoever ends it, or finds it ended,
writes down that it is held and not that it failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from arena_topo.engines import Event, Phase
from arena_topo.engines.local import logfile, processes, seating, supervisor
from arena_topo.engines.local.ledger import Entry, Ledger, Record, not_found
from arena_topo.errors import ArenaError, NotPossible


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPausing:
    """Stops jobs of this machine and starts them again.

    `alive` is a job as it stands; None if it is gone. `stop` ends the processes of one, and says
    which cannot be ended. `begin` starts its supervisor, and makes the record to be written; the
    other jobs are given, and the lock is held.
    """

    ledger: Ledger
    alive: Callable[[Entry], Entry | None]
    stop: Callable[[Entry], AbstractSet[int]]
    begin: Callable[[Entry, tuple[Entry, ...]], Record]

    def suspend(self, name: str, namespace: str) -> None:
        """End a job's processes, and hold it; nothing happens to one that is held already."""
        with self.ledger.lock():
            entry = self._found(name, namespace)
            _check(entry, f"{name} cannot be suspended", f"{_delete(entry)} removes it")
            if entry.record.phase is Phase.SUSPENDED:
                return
            self.ledger.hold(entry)
        left = self.stop(entry)
        after = self.alive(self.ledger.entry(name, namespace))
        if after is None or after.submission.uid != entry.submission.uid:
            raise not_found(name, namespace)
        # It may have come to its end by itself at this very moment.
        _check(after, f"{name} cannot be suspended", f"{_delete(after)} removes it")
        self._note(after, "Suspended", "its processes were ended, and its GPUs are free")
        if left:
            raise ArenaError(
                f"the job {name} is suspended, but {processes.listed(left)} of it cannot be ended",
                why="they run as another user, or wait in the kernel for a device or file server",
                hint="its GPUs count as free; look with ps -p PID -o user,stat,wchan,args",
            )

    def resume(self, name: str, namespace: str) -> bool:
        """Let a job that is held wait for its turn again, or start; False if it was not held."""
        with self.ledger.lock():
            entry = self._found(name, namespace)
            again = f"{_delete(entry)}, and submit it again"
            _check(entry, f"there is nothing to resume about {name}", again)
            if entry.record.phase is not Phase.SUSPENDED:
                return False
            entries = supervisor.living(self.ledger, self.ledger.entries())
            others = (one for one in entries if one.submission.uid != entry.submission.uid)
            # As on a cluster, its pods are new ones; what the last ones wrote is their last run.
            for pod in logfile.pods(entry.folder):
                (pod / "env").unlink(missing_ok=True)
                logfile.begin_run(pod)
            self.ledger.let_go(entry)
            entry = self.ledger.write(entry, self.begin(entry, tuple(others)))
            self._note(entry, "Resumed", "it starts again from its beginning")
        return True

    def _found(self, name: str, namespace: str) -> Entry:
        """The job as it stands; the caller holds the lock."""
        found = supervisor.current(self.ledger, self.ledger.entry(name, namespace))
        if found is None:
            raise not_found(name, namespace)
        return found

    def _note(self, entry: Entry, reason: str, message: str) -> None:
        source = f"mpijob/{entry.submission.name}"
        event = Event(
            source=source, kind="Normal", when=time.time(), reason=reason, message=message
        )
        self.ledger.note(entry, event)


def _check(entry: Entry, cannot: str, over: str) -> None:
    """NotPossible for a job that is over, and what to do then, or for another machine's."""
    job, phase = entry.submission, entry.record.phase
    if phase.over:
        raise NotPossible(cannot, why=f"it has {phase}", hint=over)
    if not seating.is_here(entry):
        raise NotPossible(cannot, why=f"it runs on {job.host}", hint=f"say the same on {job.host}")


def _delete(entry: Entry) -> str:
    return f"arena-topo delete {entry.submission.name} -n {entry.submission.namespace}"
