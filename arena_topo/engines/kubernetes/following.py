"""The logs of many pods of a job at once, read by a single thread.

The caller of `Follow.read` reads all connections, so that nothing is read ahead of it: a slow
caller blocks the kubelets. What may block has threads of its own: a thread lists the pods once a
second, and a few open connections. These threads are daemons and are not joined.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import queue
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from arena_topo.engines.kubernetes import podlog
from arena_topo.engines.kubernetes.containerlog import ContainerLog, On, Outlived, Steps, Wait
from arena_topo.engines.kubernetes.mpijob import is_launcher, worker_index
from arena_topo.engines.kubernetes.podlog import Object
from arena_topo.engines.kubernetes.writing import part
from arena_topo.engines.lines import Line, LogOptions, Notice, Source, Wanted, more_files
from arena_topo.errors import ArenaError, ClusterError, TimedOut

if TYPE_CHECKING:
    from arena_topo.engines import JobStatus
    from arena_topo.engines.kubernetes.connection import Connection
    from arena_topo.engines.kubernetes.engine import KubernetesBackend

LOOK = 1.0
"""Seconds between two lists of the pods; more if a list takes long."""

PATIENCE = 60.0
"""Seconds that the API server may be unreachable, as in `wait`."""

OPENERS = 8
"""Concurrent requests: enough for hundreds of pods a second, no burden to a server."""

PIECE = 16_384
"""Bytes that are read of a log before the next log has its turn: the longest record of TLS."""

ROOM = 64 * PIECE
"""Bytes that a `read` reads at most, of all logs."""

_GAP = 0.1
"""The least seconds between two lists of the pods."""


def follow(
    engine: KubernetesBackend, job: JobStatus, options: LogOptions, wanted: Wanted
) -> Follow:
    """The logs of a job's pods; requests are sent from the first `read` on."""
    known: list[Object] = []

    def pods() -> list[Object]:
        if not known:
            known.append(engine.mpijob(job.name, job.namespace))
        return engine.pods_of(known[0], podlog.slim)

    path = f"/api/v1/namespaces/{part(job.namespace)}/pods"
    return Follow(
        engine.api, path, pods, options=options, wanted=wanted, every=min(LOOK, engine.look_every)
    )


class _Reading:
    """A log that is being read: its steps, and what the next step waits for."""

    def __init__(self, log: ContainerLog) -> None:
        self.log = log
        self.steps: Steps[None] = log.steps()
        self.wait = Wait(On.NEWS)
        self.since = 0.0
        """When the wait began (`time.monotonic`)."""

    @property
    def until(self) -> float:
        """When the wait ends though nothing has come."""
        return self.since + self.wait.seconds


class Follow:
    """See `engines.lines.Following`."""

    def __init__(
        self,
        api: Connection,
        path: str,
        pods: Callable[[], list[Object]],
        *,
        options: LogOptions,
        wanted: Wanted,
        every: float,
    ) -> None:
        self._api, self._options = api, options
        self._path, self._pods, self._wanted, self._every = path, pods, wanted, every
        self._begun = False
        # Shared by the threads.
        self._calls: queue.SimpleQueue[tuple[_Reading, Callable[[], Any]] | None]
        self._calls = queue.SimpleQueue()
        self._closed, self._kick = threading.Event(), threading.Event()
        """Tell the threads to end, and the lister to list at once."""
        self._lock = threading.Lock()
        """Guards the closing and the next two."""
        self._listed: tuple[float, list[Object]] | None = None
        """The newest list of the pods, and when it began, until it is taken over."""
        self._results: list[tuple[_Reading | None, Any, Exception | None]] = []
        """Of calls; an error of the lister has no log."""
        # Used by the reader alone.
        self._logs: dict[str, list[_Reading]] = {}
        """By the uids of the pods; of a pod in the order of its containers."""
        self._unwanted: set[tuple[str, str]] = set()
        self._out: list[Line | Notice] = []
        self._error: Exception | None = None
        """What `read` raises next."""
        self._ready: dict[_Reading, None] = {}
        """The logs of which more may have come: an ordered set."""
        self._due = math.inf
        """When the next wait ends at the earliest."""
        self._news = False
        """Whether a list has come, or a log has ended, since logs were told."""
        self._looked = 0.0
        """When the newest list of the pods began (`time.monotonic`)."""
        self._settled = 0.0
        """When the last log came to its end."""

    # The reader.

    @property
    def done(self) -> bool:
        """Whether all pods are over and their logs read, by a list from after the last read."""
        fresh = not self._options.follow or self._looked >= self._settled
        return (
            bool(self._looked and fresh)
            and not self._out
            and self._error is None
            and all(one.log.settled for one in self._all())
        )

    def read(self, wait: float) -> Sequence[Line | Notice]:
        """The lines and notices that have come, at once or within `wait` seconds; maybe none."""
        if self._closed.is_set():
            return []
        if not self._begun:
            self._begin()
        end, was_done = time.monotonic() + wait, self.done
        while True:
            self._turn(end)
            if self._out or self._error is not None or self.done != was_done:
                break
            if time.monotonic() >= end:
                break
        found, self._out[:] = list(self._out), ()
        if not found and (error := self._error) is not None:
            self._error = None
            raise error
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_wrong: object) -> None:
        """Close all connections, and those that are being opened once they are open."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
        self._kick.set()
        for _ in range(OPENERS):
            self._calls.put(None)
        for one in self._all():
            one.log.hang_up()
        for _, result, _ in self._results:
            _drop(result)
        if self._begun:
            for end in (self._selector, self._alarm, self._bell):
                end.close()

    def _begin(self) -> None:
        more_files()
        self._selector = selectors.DefaultSelector()
        self._alarm, self._bell = socket.socketpair()
        """The threads ring the bell when they have something for the reader."""
        self._alarm.setblocking(False)
        self._bell.setblocking(False)
        self._selector.register(self._alarm, selectors.EVENT_READ)
        self._begun = True
        for work in [self._look] + OPENERS * [self._open]:
            threading.Thread(target=work, daemon=True).start()

    def _all(self) -> Iterator[_Reading]:
        return (one for several in self._logs.values() for one in several)

    def _turn(self, end: float) -> None:
        """Wait for an event, until a time at most, and resume the logs that it concerns."""
        wait = 0.0 if self._ready else max(0.0, min(end, self._due) - time.monotonic())
        for key, _ in self._selector.select(wait):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    self._alarm.recv(PIECE)
            else:
                self._ready[key.data] = None
        self._take_over()
        self._end_waits()
        room = ROOM
        for one in list(self._ready):
            if room <= 0:
                break
            del self._ready[one]
            if one.log.connection is not None:
                room -= self._receive(one)
        while self._news:
            self._news = False
            for one in list(self._all()):
                if one.wait.on is On.NEWS or (one.wait.on is On.LIST and self._looked >= one.since):
                    self._resume(one)

    def _receive(self, one: _Reading) -> int:
        """Pass on some bytes of a log; their number."""
        try:
            data = one.log.connection.recv(PIECE)
        except (BlockingIOError, ssl.SSLWantReadError):
            return 0
        except (OSError, ValueError) as error:
            self._resume(one, error=error)
            return 0
        if data:
            # More may wait, also in a buffer of TLS, which no selector sees.
            self._ready[one] = None
        self._resume(one, data)
        return len(data)

    def _end_waits(self) -> None:
        """Resume the logs whose pause is over, or whose connection was silent for too long."""
        now = time.monotonic()
        if now < self._due:
            return
        for one in [one for one in self._all() if one.until <= now and one not in self._ready]:
            silent = one.wait.on is On.BYTES
            self._resume(one, error=TimeoutError() if silent else None)
        self._due = min((one.until for one in self._all()), default=math.inf)

    def _resume(
        self, one: _Reading, result: Any = None, *, error: BaseException | None = None
    ) -> None:
        """Take the next steps of a log, until it waits again."""
        log, before = one.log, one.log.connection
        try:
            one.wait = one.steps.send(result) if error is None else one.steps.throw(error)
        except StopIteration:
            one.wait, log.settled = Wait(On.TIME), True
        except Exception as wrong:  # noqa: BLE001  raised by `read`
            one.wait, log.settled = Wait(On.TIME), True
            self._stop(wrong)
        if log.connection is not before:
            self._watch(one, before)
        one.since = time.monotonic()
        self._due = min(self._due, one.until)
        if log.settled:
            self._settled, self._news = one.since, True
            self._kick.set()
        elif one.wait.on is On.LIST:
            self._kick.set()
        elif one.wait.call is not None:
            self._calls.put((one, one.wait.call))

    def _stop(self, error: Exception) -> None:
        """End the follow with an error."""
        if isinstance(error, ArenaError) and error.why == os.strerror(errno.EMFILE):
            error = ArenaError(
                f"{sum(1 for _ in self._all())} logs are too many at once for this process",
                why=error.why,
                hint="raise the limit (`ulimit -n`), or name fewer with --only",
            )
        self._error = self._error or error

    def _watch(self, one: _Reading, before: Any) -> None:
        """Watch the connection of a log, and no longer the one before."""
        if before is not None:
            self._selector.unregister(before)
        if (connection := one.log.connection) is not None:
            # A blocking read of TLS allocates 17 KB for as long as it waits.
            connection.settimeout(0.0)
            self._selector.register(connection, selectors.EVENT_READ, one)
            self._ready[one] = None

    def _take_over(self) -> None:
        """Take over what the threads have found."""
        with self._lock:
            results, self._results = self._results, []
            listed, self._listed = self._listed, None
        for one, result, error in results:
            if one is not None:
                self._resume(one, result, error=error)
            elif error is not None:
                self._stop(error)
        if listed is not None:
            self._seen(*listed)

    def _seen(self, began: float, pods: list[Object]) -> None:
        """Take over a list of the pods."""
        first, self._looked, self._news = not self._looked, began, True
        there = {pod["metadata"]["uid"] for pod in pods}
        for one in self._all():
            one.log.missing = one.log.missing or one.log.source.uid not in there
        for pod in pods:
            if (new := self._see(pod, first=first)) is not None:
                self._resume(new)
        now = time.monotonic()
        for one in self._all():
            quiet = 0.0 if one in self._ready else now - one.since
            if one.wait.on is On.BYTES and one.log.outlived(now, quiet):
                self._resume(one, error=Outlived())

    def _see(self, pod: Object, *, first: bool) -> _Reading | None:
        """Take over a pod; its log, if that is another than the one that is read."""
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        several = self._logs.get(uid, [])
        for one in several:
            one.log.sight = podlog.sight(pod, one.log.source.container)
        container = self._options.container or podlog.main_container(pod)
        if container is None or (uid, container) in self._unwanted:
            return None
        before = several[-1].log if several else None
        if before is not None and before.source.container == container:
            return None
        sight = podlog.sight(pod, container)
        chief = is_launcher(pod)
        source = Source(
            pod=name,
            uid=uid,
            container=container,
            run=sight.run - 1 if self._options.previous and sight.run else sight.run,
            chief=chief,
            worker=None if chief else worker_index(pod),
        )
        if not self._wanted(source):
            self._unwanted.add((uid, container))
            return None
        log = ContainerLog(
            self._api,
            self._options,
            f"{self._path}/{part(name)}",
            source,
            sight,
            whole=not (first and sight.readable),
            before=before,
            out=self._out,
        )
        found = _Reading(log)
        self._logs.setdefault(uid, []).append(found)
        return found

    # The threads.

    def _ring(self) -> None:
        with contextlib.suppress(OSError):
            self._bell.send(b"\0")

    def _open(self) -> None:
        """Make the calls of logs: they open connections and renew credentials.

        A handshake of TLS leaves 16 KB of memory in its thread.
        """
        while (errand := self._calls.get()) is not None:
            one, call = errand
            result: Any = None
            error: Exception | None = None
            try:
                result = None if self._closed.is_set() else call()
            except Exception as wrong:  # noqa: BLE001  raised in the steps of the log
                error = wrong
            with self._lock:
                closed = self._closed.is_set()
                if not closed:
                    self._results.append((one, result, error))
            if closed:
                _drop(result)
            self._ring()

    def _look(self) -> None:
        """List the pods once a second."""
        answered = time.monotonic()
        seen = False
        while not self._closed.is_set():
            self._kick.clear()
            began = time.monotonic()
            try:
                pods = self._pods()
                answered, seen = time.monotonic(), True
                with self._lock:
                    self._listed = began, pods
            except Exception as error:  # noqa: BLE001  raised by `read`
                passes = isinstance(error, ClusterError | TimedOut) and podlog.passes(error)
                late = time.monotonic() - answered > PATIENCE or self._api.left <= 0
                if late or not passes or not (seen and self._options.follow):
                    with self._lock:
                        self._results.append((None, None, error))
            self._ring()
            if not self._options.follow:
                return
            spent = time.monotonic() - began
            self._closed.wait(min(_GAP, self._every))
            self._kick.wait(max(self._every, 10 * spent))


def _drop(result: Any) -> None:
    """Close a connection that came too late."""
    if isinstance(result, bool | None):
        return
    result.close()
