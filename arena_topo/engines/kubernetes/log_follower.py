"""The logs of many pods of a job at once, read by a single thread.

The caller of `Follow.read` reads all connections, so that nothing is read ahead of it: a slow
caller blocks the kubelets. What may block is called in other threads: one reads the pods where a
watch has reported a change, and a few open connections; a single one, in turns, where no more can
be started. They are daemons and are not joined.
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
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from arena_topo.engines.daemon_thread import start_daemon
from arena_topo.engines.kubernetes import podlog
from arena_topo.engines.kubernetes.containerlog import ContainerLog, On, Outlived, Silent, Wait
from arena_topo.engines.kubernetes.job_writer import part
from arena_topo.engines.kubernetes.mpijob import is_launcher, worker_index
from arena_topo.engines.kubernetes.pod_lister import PodList, PodLister
from arena_topo.engines.kubernetes.podlog import Object
from arena_topo.engines.lines import Line, LogOptions, Notice, Source, SourceFilter, more_files
from arena_topo.errors import ArenaError

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.connection import Connection

OPENERS = 8
"""Concurrent requests: enough for hundreds of pods a second, no burden to a server."""

PIECE = 16_384
"""Bytes that are read of a log before the next log has its turn: the longest record of TLS."""

ROOM = 64 * PIECE
"""Bytes that a `read` reads at most, of all logs."""

_Then = Callable[[Any, Exception | None], None]
"""What the reader does with the result of a call, or with its error."""

_Calls = queue.SimpleQueue[tuple[_Then, Callable[[], Any]] | None]
"""Calls that may block; None ends a thread."""


class Follow:
    """See `engines.lines.Following`."""

    def __init__(
        self,
        api: Connection,
        path: str,
        pods: Callable[[bool], tuple[list[Object], float]],
        *,
        options: LogOptions,
        wanted: SourceFilter,
        every: float,
        close: Callable[[], None],
    ) -> None:
        """`pods` returns the pods and when they were read; True: they are read now.

        It is called every `every` seconds.
        """
        self._api, self._options = api, options
        self._path, self._wanted, self._close = path, wanted, close
        self._lister = PodLister(api, pods, every=every, follows=options.follow)
        self._logs: dict[str, list[ContainerLog]] = {}
        """By the uids of the pods; of a pod in the order of its containers."""
        self._unwanted: set[tuple[str, str]] = set()
        self._out: list[Line | Notice] = []
        self._error: Exception | None = None
        """What `read` raises after the lines before it."""
        self._ready: dict[ContainerLog, None] = {}
        """The logs of which more may have come: an ordered set."""
        self._due = math.inf
        """When the next wait of a log ends at the earliest."""
        self._news = False
        """Whether a list has come, or a log has ended, since the logs were resumed for that."""
        self._settled = 0.0
        """When the last log came to its end (`time.monotonic`; 0: never)."""
        self._closed = False
        self._openers = 0
        """How many threads open connections; `OPENERS` as well where no more can be started."""
        self._opening: _Calls = queue.SimpleQueue()
        self._listing: _Calls = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[_Then, Any, Exception | None]] = queue.SimpleQueue()

    @property
    def done(self) -> bool:
        """Whether all pods are over and their logs read, by a list from after the last read."""
        listed = self._lister.read_at
        return (
            listed > 0
            and (not self._options.follow or listed >= self._settled)
            and not self._out
            and self._error is None
            and all(log.settled for log in self._all())
        )

    def read(self, wait: float) -> Sequence[Line | Notice]:
        """The lines and notices that have come, at once or within `wait` seconds; maybe none."""
        if self._closed:
            return []
        end, was_done = time.monotonic() + wait, self.done
        self._turn(end)
        while not self._out and self._error is None and self.done == was_done:
            if time.monotonic() >= end:
                break
            self._turn(end)
        waiting_items, self._out[:] = list(self._out), ()
        if not waiting_items and self._error is not None:
            error, self._error = self._error, None
            raise error
        return waiting_items

    def __enter__(self) -> Self:
        """Start the threads; the first request is sent by the first `read`.

        ArenaError where they cannot be started.
        """
        more_files()
        self._selector = selectors.DefaultSelector()
        self._alarm, self._bell = socket.socketpair()
        """The threads ring the bell when they have a result."""
        self._alarm.setblocking(False)
        self._bell.setblocking(False)
        self._selector.register(self._alarm, selectors.EVENT_READ)
        try:
            start_daemon(self._work, self._listing)
            self._add_opener()
        except ArenaError:
            self.close()
            raise
        return self

    def __exit__(self, *_wrong: object) -> None:
        """See `close`."""
        self.close()

    def close(self) -> None:
        """Close all connections, and those that are being opened once they are open."""
        if self._closed:
            return
        self._closed = True
        self._close()
        for calls in [self._listing] + OPENERS * [self._opening]:
            calls.put(None)
        for log in self._all():
            log.hang_up()
        self._drop()
        for end in (self._selector, self._alarm, self._bell):
            end.close()

    def _all(self) -> Iterator[ContainerLog]:
        return (log for several in self._logs.values() for log in several)

    # Events.

    def _turn(self, end: float) -> None:
        """Wait for an event, until a time at most, and resume the logs that it concerns."""
        now = time.monotonic()
        if now >= self._lister.due:
            self._listing.put((self._take_over, self._lister.begin()))
        until = min(end, self._due, self._lister.due)
        for key, _ in self._selector.select(0.0 if self._ready else max(0.0, until - now)):
            if key.data is None:
                self._alarm.recv(PIECE)
            else:
                self._ready[key.data] = None
        while not self._results.empty():
            then, result, error = self._results.get()
            then(result, error)
        self._end_waits()
        room = ROOM
        for log in list(self._ready):
            if room > 0:
                del self._ready[log]
                room -= self._receive(log)
        while self._news:
            self._news = False
            for log in list(self._all()):
                listed = log.wait.on is On.LIST and self._lister.read_at >= log.since
                if listed or log.wait.on is On.NEWS:
                    self._resume(log)

    def _receive(self, log: ContainerLog) -> int:
        """Pass on some bytes of a log; their number."""
        if log.connection is None:
            return 0
        try:
            # TLS within TLS returns 0 at an end without a message of TLS.
            data = log.connection.recv(PIECE) or b""
        except (BlockingIOError, ssl.SSLWantReadError):
            return 0
        except (OSError, ValueError) as error:
            self._resume(log, error=error)
            return 0
        if data:
            # More may wait, also in a buffer of TLS, which no selector sees.
            self._ready[log] = None
        self._resume(log, data)
        return len(data)

    def _end_waits(self) -> None:
        """Resume the logs whose pause is over, or whose connection was silent for too long."""
        now = time.monotonic()
        if now < self._due:
            return
        for log in [log for log in self._all() if log.until <= now and log not in self._ready]:
            self._resume(log, error=Silent() if log.wait.on is On.BYTES else None)
        self._due = min((log.until for log in self._all()), default=math.inf)

    def _resume(
        self, log: ContainerLog, result: Any = None, error: Exception | None = None
    ) -> None:
        """Take the next steps of a log, until it waits again."""
        before = log.connection
        try:
            log.wait = log.steps.send(result) if error is None else log.steps.throw(error)
        except StopIteration:
            log.wait, log.settled = Wait(On.TIME), True
        except Exception as wrong:  # noqa: BLE001  raised by `read`
            log.wait, log.settled = Wait(On.TIME), True
            self._stop(wrong)
        if log.connection is not before:
            if before is not None:
                self._selector.unregister(before)
            if log.connection is not None:
                # A blocking read of TLS allocates 17 KB for as long as it waits.
                log.connection.settimeout(0.0)
                self._selector.register(log.connection, selectors.EVENT_READ, log)
                self._ready[log] = None
        log.since = time.monotonic()
        self._due = min(self._due, log.until)
        if log.wait.call is not None:
            self._opening.put((partial(self._resume, log), log.wait.call))
            if self._opening.qsize() > 1 and self._openers < OPENERS:
                try:
                    self._add_opener()
                except ArenaError:
                    self._openers = OPENERS
        if log.settled:
            self._settled, self._news = log.since, True
        if log.settled or log.wait.on is On.LIST:
            self._lister.hurry()

    def _stop(self, error: Exception) -> None:
        """End the follow with an error."""
        if isinstance(error, ArenaError) and error.why == os.strerror(errno.EMFILE):
            error = ArenaError(
                f"{sum(1 for _ in self._all())} logs are too many at once for this process",
                why=error.why,
                hint="raise the limit (`ulimit -n`), or name fewer with --only",
            )
        self._error = self._error or error

    # Pods.

    def _take_over(self, result: PodList | None, error: Exception | None) -> None:
        """Take over a list of the pods, or its error."""
        first = not self._lister.read_at
        try:
            pods = self._lister.end(result, error)
        except Exception as fatal:  # noqa: BLE001  raised by `read`
            self._stop(fatal)
            return
        if pods is None:
            return
        self._news, now = True, time.monotonic()
        present = {pod["metadata"]["uid"] for pod in pods}
        for log in self._all():
            log.missing = log.missing or log.source.uid not in present
        for pod in pods:
            if (new := self._see(pod, first=first)) is not None:
                self._resume(new)
        for log in self._all():
            quiet = 0.0 if log in self._ready else now - log.since
            if log.wait.on is On.BYTES and log.outlived(now, quiet):
                self._resume(log, error=Outlived())

    def _see(self, pod: Object, *, first: bool) -> ContainerLog | None:
        """Take over a pod; its log, if that is another than the one that is read."""
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        several = self._logs.get(uid, [])
        for log in several:
            log.view = podlog.container_view(pod, log.source.container)
        container = self._options.container or podlog.main_container(pod)
        if container is None or (uid, container) in self._unwanted:
            return None
        before = several[-1] if several else None
        if before is not None and before.source.container == container:
            return None
        view = podlog.container_view(pod, container)
        chief = is_launcher(pod)
        source = Source(
            pod=name,
            uid=uid,
            container=container,
            run=view.run - 1 if self._options.previous and view.run else view.run,
            chief=chief,
            worker=None if chief else worker_index(pod),
        )
        if not self._wanted(source):
            self._unwanted.add((uid, container))
            return None
        container_log = ContainerLog(
            self._api,
            self._options,
            f"{self._path}/{part(name)}",
            source,
            view,
            whole=not (first and view.readable),
            before=before,
            out=self._out,
        )
        self._logs.setdefault(uid, []).append(container_log)
        return container_log

    # The threads.

    def _add_opener(self) -> None:
        start_daemon(self._work, self._opening)
        self._openers += 1

    def _work(self, calls: _Calls) -> None:
        """Make calls, and leave their results to the reader.

        Connections are opened here also because a handshake of TLS leaves 16 KB of memory in its
        thread.
        """
        while (pending_call := calls.get()) is not None:
            then, call = pending_call
            try:
                self._results.put((then, None if self._closed else call(), None))
            except Exception as error:  # noqa: BLE001  raised in the steps of the log, or by `read`
                self._results.put((then, None, error))
            with contextlib.suppress(OSError):
                self._bell.send(b"\0")
        if self._closed:
            self._drop()

    def _drop(self) -> None:
        """Close the connections that were opened too late."""
        with contextlib.suppress(queue.Empty):
            while True:
                _, result, _ = self._results.get_nowait()
                if hasattr(result, "close"):
                    result.close()
