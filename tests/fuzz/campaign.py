"""Hands inputs to workers, looks after them, and adds up what they found."""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import verdicts
from .worker import AT

TESTS = Path(__file__).resolve().parents[1]

PATIENCE = 90.0
"""Seconds in which one input has to end, whatever the worker itself does about it."""

ROUNDS = 8
"""How many times a long campaign comes to each target, with a worker that knows nothing of the
last time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Inputs of one target, by their numbers."""

    target: str
    first: int
    count: int


@dataclass(slots=True, kw_only=True)
class Found:
    """One place where inputs of a target go wrong."""

    kind: str
    what: str
    number: int
    """The first input that got there."""
    kept: str
    detail: str
    times: int = 0


@dataclass(slots=True, kw_only=True)
class Tally:
    """What the inputs of a target came to."""

    ran: int = 0
    seconds: float = 0.0
    computed: float = 0.0
    peak: int = 0
    found: dict[str, Found] = field(default_factory=dict)

    def of(self, kind: str) -> int:
        """How many inputs had findings of a kind."""
        return sum(one.times for one in self.found.values() if one.kind == kind)

    def add(self, said: Mapping[str, Any]) -> None:
        """Count a finding."""
        new = Found(
            kind=said["kind"],
            what=said["found"],
            number=said["number"],
            kept=said["kept"],
            detail=said["detail"],
        )
        self.found.setdefault(new.what, new).times += 1


def chunks(inputs: Mapping[str, int], *, rounds: int) -> list[Chunk]:
    """The inputs of each target in so many rounds."""
    made = []
    for at in range(rounds):
        for name, count in inputs.items():
            first, end = count * at // rounds, count * (at + 1) // rounds
            if end > first:
                made.append(Chunk(target=name, first=first, count=end - first))
    return made


class Campaign:
    """One run over some targets, and what it has found so far."""

    def __init__(self, *, seed: int, keep: Path, seconds: float = float("inf")) -> None:
        self._seed, self._keep = seed, keep
        self._until = time.monotonic() + seconds
        self._lock = threading.Lock()
        self.tallies: dict[str, Tally] = {}

    def stop(self) -> None:
        """End a run that another thread is in after the chunks that have begun."""
        self._until = time.monotonic()

    def run(
        self,
        work: Sequence[Chunk],
        *,
        workers: int,
        fresh: bool,
        tell: Callable[[str], object] = lambda _: None,
    ) -> dict[str, Tally]:
        """Run all of it; `fresh` gives each chunk a worker of its own."""
        left: queue.SimpleQueue[Chunk] = queue.SimpleQueue()
        for one in work:
            self.tallies.setdefault(one.target, Tally())
            left.put(one)
        with ThreadPoolExecutor(workers) as pool:
            for done in [
                pool.submit(self._serve, left, fresh=fresh, tell=tell) for _ in range(workers)
            ]:
                done.result()
        return self.tallies

    def _serve(
        self, left: queue.SimpleQueue[Chunk], *, fresh: bool, tell: Callable[[str], object]
    ) -> None:
        worker: Worker | None = None
        try:
            while time.monotonic() < self._until:
                try:
                    chunk = left.get_nowait()
                except queue.Empty:
                    return
                worker = self._chunk(worker or Worker(), chunk)
                tell(f"{chunk.target}: {chunk.first + chunk.count}")
                if fresh and worker is not None:
                    worker.close()
                    worker = None
        finally:
            if worker is not None:
                worker.close()

    def _chunk(self, worker: Worker, chunk: Chunk) -> Worker | None:
        """Run a chunk, going on after inputs that end the worker; the worker, if it lives."""
        tally, first, end = self.tallies[chunk.target], chunk.first, chunk.first + chunk.count
        while first < end:
            order = {
                "target": chunk.target,
                "seed": self._seed,
                "first": first,
                "count": end - first,
                "until": min(self._until, 1e12),
                "keep": str(self._keep),
            }
            for said in worker.ask(order):
                with self._lock:
                    if "found" in said:
                        tally.add(said)
                        continue
                    tally.ran += said["ran"]
                    tally.seconds += said["seconds"]
                    tally.computed += said["computed"]
                    tally.peak = max(tally.peak, said["peak"])
                    return worker
            # It is gone, and took with it what it had counted.
            at, how = worker.at(first), worker.close()
            if not how:
                with self._lock:
                    tally.add(
                        {
                            "found": "the fuzzer itself has failed",
                            "kind": verdicts.OTHER,
                            "number": at,
                            "kept": "",
                            "detail": worker.said,
                        }
                    )
                return None
            what = f"the process was ended by {how}"
            kept = self._kept(chunk.target, at, what)
            with self._lock:
                tally.ran += at - first + 1
                tally.add(
                    {
                        "found": what,
                        "kind": verdicts.HANG if how == "SIGKILL" else verdicts.OTHER,
                        "number": at,
                        "kept": kept,
                        "detail": worker.said,
                    }
                )
            worker, first = Worker(), at + 1
        return worker

    def _kept(self, target: str, number: int, what: str) -> str:
        """Write down an input whose worker could not; the folder where that is."""
        order = {
            "target": target,
            "seed": self._seed,
            "first": number,
            "count": 1,
            "until": 1e12,
            "keep": str(self._keep),
            "only_keep": what,
        }
        worker = Worker()
        try:
            return str(next(iter(worker.ask(order)))["kept"])
        finally:
            worker.close()


class Worker:
    """A process that runs inputs, with a home, a state and caches of its own, and nothing else."""

    def __init__(self) -> None:
        memory = Path("/dev/shm")
        place = memory if os.access(memory, os.W_OK) else None
        self._folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=place))
        for name in ("home", "tmp", "work"):
            (self._folder / "work" / name).mkdir(parents=True, exist_ok=True)
        own = self._folder / "work"
        self._errors = (self._folder / "errors").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", f"{__package__.rpartition('.')[2]}.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=own,
            env={
                "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
                "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}",
                "PYTHONDONTWRITEBYTECODE": "1",
                "HOME": f"{own}/home",
                "XDG_STATE_HOME": f"{own}/home/state",
                "XDG_CACHE_HOME": f"{own}/home/cache",
                "TMPDIR": f"{own}/tmp",
                "LANG": "C.UTF-8",
                "TZ": "UTC",
                "ARENA_TOPO_SETTINGS": "",
            },
            # Ctrl-C is for the campaign.
            process_group=0,
        )

    def ask(self, order: Mapping[str, Any]) -> Any:
        """Give an order; what is said until it is done, or until the worker is gone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        stop = threading.Event()
        watch = threading.Thread(target=self._look, args=(stop,), daemon=True)
        watch.start()
        try:
            with suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(order) + "\n")
                self._process.stdin.flush()
            for line in self._process.stdout:
                said = json.loads(line)
                yield said
                if "found" not in said:
                    return
        finally:
            stop.set()
            watch.join()

    def _look(self, stop: threading.Event) -> None:
        """Kill the process once it has been at the same input for too long."""
        at, since = -1, time.monotonic()
        while not stop.wait(1.0):
            now = self.at(-1)
            if now != at:
                at, since = now, time.monotonic()
            elif time.monotonic() > since + PATIENCE:
                self._process.kill()
                return

    def at(self, default: int) -> int:
        """The number of the input that runs."""
        try:
            (number,) = AT.unpack((self._folder / "at").read_bytes())
        except (OSError, struct.error):  # it has not begun
            return default
        return max(int(number), default)

    def close(self) -> str:
        """End the process and remove its folder; the signal that had ended it before."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            code = self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._process.stdout.close()
        self._errors.seek(0)
        self.said = self._errors.read()[-4000:]
        self._errors.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        return signal.Signals(-code).name if code < 0 else ""
