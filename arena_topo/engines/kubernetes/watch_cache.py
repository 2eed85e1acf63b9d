"""A cache of a cluster's objects: each list is read once, and then watched by a thread.

It works like an informer of client-go (tools/cache, Reflector): events are applied in the order of
their revisions; a watch that ends is opened again from the last revision or bookmark, and if the
server no longer has that revision (410), or `LIST_AGAIN` has passed, the list is read again.
Objects are reduced as soon as they arrive; an event without an effect on the reduced object is no
change.

A cache lags behind, by a moment or, over a network that loses packets, by up to `MAX_CACHE_LAG`. So
the server must test each write that is based on the cache.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from arena_topo.engines.daemon_thread import start_daemon
from arena_topo.engines.kubernetes.connection import Connection
from arena_topo.engines.kubernetes.sources import UNREAD, Answers, ObjectList, first_served
from arena_topo.engines.kubernetes.transport import HttpAnswer
from arena_topo.errors import FORBIDDEN, GONE, AccessDenied, ArenaError, ClusterError

Object = dict[str, Any]

WATCH = 30.0
"""Seconds after which a server is asked to end a watch, so that a dead connection is noticed;
client-go asks for minutes, and pings its HTTP/2 connections every 30 s."""

MAX_CACHE_LAG = WATCH + 10.0
"""The most seconds by which a cache may lag behind, as long as the server answers."""

ASK_AGAIN = 60.0
"""Seconds until the retry of a list that may not be read, or is not served."""

LIST_AGAIN = 600.0
"""Seconds after which a list is read again although it is watched, at the next end of a watch: a
deletion that was delivered out of order, or not at all, would count for ever."""

_FIRST_DELAY, _LAST_DELAY = 0.1, 5.0
"""Seconds to wait after the first failure, doubled with each further one, and their maximum."""

DEPARTED = 120.0
"""Seconds for which the last state of a deleted object is remembered."""

_BRIEF = 1.0
"""A watch that ends within so many seconds counts as a failure, so that reopening is slowed
down."""

_RANDOM = random.Random()  # noqa: S311  no secret; threads leave the generator of others alone


class WatchThread(ABC):
    """A thread that reads a list or its changes again and again; slower after failures."""

    def __init__(self, api: Connection, name: str, revision: str = "") -> None:
        self.revision = revision
        """All changes up to this revision are known; empty: none, or the server forgot it."""
        self._api, self._name = api, name
        self._stop = threading.Event()
        self._answer: HttpAnswer | None = None
        self._errors = 0
        """Errors since a watch last ended in good order."""

    def start(self) -> None:
        """Start the thread; ArenaError where there can be no more threads."""
        start_daemon(self._run, name=self._name)

    def stop(self) -> None:
        """End the thread, soon."""
        self._stop.set()
        if self._answer is not None:
            self._answer.interrupt()

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            begun, pause, before = time.monotonic(), 0.0, self._errors
            try:
                self._read()
                self._errors = 0
            except UNREAD as error:
                pause = self._refused(error)
            except Exception as error:  # noqa: BLE001  a thread that ends in silence is a lie
                self._errors += 1
                gone = isinstance(error, ClusterError) and error.status == GONE
                if gone or not isinstance(error, ArenaError):
                    # An unexpected object may be the reason.
                    self.revision = ""
                if not gone:
                    self._failed(error)
            brief = time.monotonic() - begun < _BRIEF
            failures = failures + 1 if brief else int(self._errors > before)
            if failures:
                pause = max(pause, min(_LAST_DELAY, _FIRST_DELAY * 2 ** min(failures, 10)))
            self._stop.wait(pause * _RANDOM.uniform(0.5, 1.0))

    def _opened(self, answer: HttpAnswer) -> None:
        """Take note that the server has accepted a watch."""
        self._answer = answer
        if self._stop.is_set():
            answer.interrupt()

    @abstractmethod
    def _read(self) -> None:
        """Read until the server ends the watch."""

    @abstractmethod
    def _refused(self, error: ArenaError) -> float:
        """Note one of `UNREAD`; the seconds until the next try."""

    @abstractmethod
    def _failed(self, error: Exception) -> None:
        """Note another error, but for a revision that the server no longer has."""


class ListWatch(WatchThread):
    """One list that a thread watches; `keep` reduces its objects (None: left out).

    A list that may not be watched is read again every `list_every` seconds (None: `ASK_AGAIN`).
    With `list_every` it is also read again after each watch that breaks: a proxy may let none pass.
    """

    def __init__(
        self,
        api: Connection,
        source: ObjectList,
        keep: Callable[[Object], Any],
        changed: Callable[[], None],
        list_every: float | None = None,
    ) -> None:
        super().__init__(api, source.kind)
        self.source = source
        self.version = 0
        """The number of changes of the reduced objects."""
        self.ready = threading.Event()
        """Set as soon as the first list was read, or was refused."""
        self._keep = keep
        self._changed = changed
        self._list_every = list_every
        self._lock = threading.Lock()
        self._items: dict[tuple[str, str], Any] = {}
        self._revisions: dict[tuple[str, str], str] = {}
        self._departed: deque[tuple[float, Any]] = deque()
        self.path = ""
        """The path of the list; empty if it is not served."""
        self._listed = 0.0
        """When the list was last asked for (`time.monotonic`)."""
        self._error: ArenaError | None = ClusterError("nothing was read yet")

    def answer(self) -> list[Any] | ArenaError:
        """The objects; an error if they are unknown, or may lag by more than `MAX_CACHE_LAG`."""
        with self._lock:
            return self._error or list(self._items.values())

    def departed(self) -> list[Any]:
        """The objects that were deleted less than `DEPARTED` ago, as they were seen last."""
        since = time.monotonic() - DEPARTED
        with self._lock:
            return [thing for at, thing in self._departed if at >= since]

    def _leave(self, things: Iterable[Any]) -> None:
        """Remember deleted objects for a while; call it under the lock."""
        now = time.monotonic()
        # Another object may have the name by now, and be deleted in its turn.
        self._departed.extend((now, thing) for thing in things)
        while self._departed and self._departed[0][0] < now - DEPARTED:
            self._departed.popleft()

    def _read(self) -> None:
        now = time.monotonic()
        if not self.revision or now >= self._listed + LIST_AGAIN:
            self._listed = now
            self._list()
        self._follow()

    def _list(self) -> None:
        ask = partial(self._api.listed, keep=self._entry, judged=True)
        path, (items, revision) = first_served(self.source, ask) or ("", ((), ""))
        self._replace(path, items, revision)

    def _entry(self, thing: Object) -> Object | None:
        reduced = self._keep(thing)
        if reduced is None:
            return None
        key = _key(thing)
        known = self._items.get(key)
        # A list that is read again needs no second copy of what is the same.
        kept = known if known == reduced else reduced
        return {"at": key, "is": kept, "revision": revision_of(thing)}

    def _replace(self, path: str, objects: Iterable[Object], revision: str) -> None:
        listed = list(objects)
        items = {obj["at"]: obj["is"] for obj in listed}
        revisions = {obj["at"]: obj["revision"] for obj in listed}
        with self._lock:
            news = self._error is not None or items != self._items
            self._leave(last for key, last in self._items.items() if key not in items)
            self._items, self._revisions, self.path = items, revisions, path
            self._answered(changed=news)
            self.revision = revision

    def _follow(self) -> None:
        """Apply events until the server ends the watch; without a path only wait."""
        if not self.path:
            self._stop.wait(ASK_AGAIN)
            return
        events = self._api.watch(
            self.path,
            resource_version=self.revision,
            timeout=WATCH * _RANDOM.uniform(0.8, 1.0),
            opened=self._opened,
            **self.source.query,
        )
        for kind, thing in events:
            with self._lock:
                changed = kind != "BOOKMARK" and self._take(thing, gone=kind == "DELETED")
                self._answered(changed=changed or self._error is not None)
                # After the version: a reader of this revision also sees its changes.
                self.revision = revision_of(thing) or self.revision
            if self._stop.is_set():
                return

    def _take(self, thing: Mapping[str, Any], *, gone: bool = False) -> bool:
        """Apply one object; whether that changes any reduced object."""
        key, revision = _key(thing), revision_of(thing)
        known = self._items.get(key)
        if known is not None and later_revision(self._revisions[key], revision):
            return False
        reduced = None if gone else self._keep(dict(thing))
        if reduced is None:
            if gone and (last := self._keep(dict(thing))) is not None:
                self._leave([last])
            self._revisions.pop(key, None)
            return self._items.pop(key, None) is not None
        self._revisions[key] = revision
        if known == reduced:
            return False
        self._items[key] = reduced
        return True

    def _opened(self, answer: HttpAnswer) -> None:
        super()._opened(answer)
        with self._lock:
            self._answered(changed=self._error is not None)

    def _answered(self, *, changed: bool) -> None:
        """Note that the server has answered, so the list is up to date; call it under the lock."""
        self._error = None
        self.ready.set()
        if changed:
            self.version += 1
            self._changed()

    def _refused(self, error: ArenaError) -> float:
        """Note that a list is denied or not served.

        If it may be listed but not watched, the listed objects count until the next list.
        """
        listed, self.revision = bool(self.revision), ""
        if listed and isinstance(error, AccessDenied):
            return ASK_AGAIN if self._list_every is None else self._list_every
        self._note(error)
        return ASK_AGAIN if not isinstance(error, AccessDenied) or error.status == FORBIDDEN else 0

    def _failed(self, error: Exception) -> None:
        """Note that the list may be out of date, unless the next try succeeds."""
        if self._list_every is not None and self.revision:
            # The listed objects count until the next list, as without the right to watch.
            self.revision = ""
        elif self._errors > 1 or not self.ready.is_set():
            if not isinstance(error, ArenaError):
                error = ClusterError(f"{type(error).__name__}: {error}")
            self._note(error)

    def _note(self, error: ArenaError) -> None:
        """Let readers have this error in place of the objects."""
        with self._lock:
            news = self._error is None or self._error.message != error.message
            self._error = error
            self.ready.set()
            if news:
                self.version += 1
                self._changed()


class ClusterCache:
    """All watched lists of a cluster; their threads call `changed`."""

    def __init__(
        self,
        api: Connection,
        sources: Iterable[ObjectList],
        keep: Callable[[str], Callable[[Object], Any]],
        changed: Callable[[], None],
        *,
        list_every: float | None = None,
    ) -> None:
        """ArenaError where the threads cannot be started."""
        self._watches = [
            ListWatch(api, source, keep(source.kind), changed, list_every) for source in sources
        ]
        try:
            for watch in self._watches:
                watch.start()
        except ArenaError:
            self.stop()
            raise

    @property
    def version(self) -> int:
        """The number of changes so far."""
        return sum(watch.version for watch in self._watches)

    def answers(self) -> Answers:
        """The objects of each list, or its error; waits until all lists were read once."""
        for watch in self._watches:
            watch.ready.wait()
        return [(watch.source, watch.answer()) for watch in self._watches]

    def departed(self, kind: str) -> list[Any]:
        """The objects of a kind that were deleted a moment ago, as they were seen last."""
        watches = (watch for watch in self._watches if watch.source.kind == kind)
        return [thing for watch in watches for thing in watch.departed()]

    def revisions(self) -> list[tuple[str, str]]:
        """The path of each known list, and the last revision that was applied."""
        known = [source for source, answer in self.answers() if not isinstance(answer, ArenaError)]
        return [
            (watch.path, watch.revision)
            for watch in self._watches
            if watch.path and watch.source in known
        ]

    def stop(self) -> None:
        """Stop the threads."""
        for watch in self._watches:
            watch.stop()


def _key(thing: Mapping[str, Any]) -> tuple[str, str]:
    meta = thing["metadata"]
    return str(meta.get("namespace", "")), str(meta["name"])


def revision_of(thing: Mapping[str, Any]) -> str:
    """The resourceVersion of an object; empty without one."""
    return str((thing.get("metadata") or {}).get("resourceVersion") or "")


def later_revision(revision: str, other: str) -> bool:
    """Whether a revision comes after another (kubernetes.io, API concepts: they are numbers)."""
    if revision.isdecimal() and other.isdecimal():
        return int(revision) > int(other)
    return False
