"""A cache of a cluster's objects: each list is read once, and then watched by a thread.

It works like an informer of client-go (tools/cache, Reflector): events are applied in the order of
their revisions; a watch that ends is opened again from the last revision or bookmark, and if the
server no longer has that revision (410), the list is read again. Objects are reduced as soon as
they arrive; an event without an effect on the reduced object is no change.

A cache lags behind, by a moment or, over a network that loses packets, by up to `LAG`. So the
server must test each write that is based on the cache.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from arena_topo.engines.kubernetes.connection import FORBIDDEN, GONE, Connection
from arena_topo.engines.kubernetes.sources import UNREAD, Answers, Source, first_served
from arena_topo.errors import AccessDenied, ArenaError, ClusterError

Object = dict[str, Any]

WATCH = 30.0
"""Seconds after which a server is asked to end a watch, so that a dead connection is noticed;
client-go asks for minutes, and pings its HTTP/2 connections every 30 s."""

LAG = WATCH + 10.0
"""The most seconds by which a cache may lag behind, as long as the server answers."""

ASK_AGAIN = 60.0
"""Seconds until the retry of a list that may not be read, or is not served."""

_FIRST_DELAY, _LAST_DELAY = 0.1, 5.0
"""Seconds to wait after the first failure, doubled with each further one, and their maximum."""

_BRIEF = 1.0
"""A watch that ends within so many seconds counts as a failure, so that reopening is slowed
down."""

_RANDOM = random.Random()  # noqa: S311  no secret; threads leave the generator of others alone


class Watch:
    """One list that a thread watches; `keep` reduces its objects (None: left out)."""

    def __init__(
        self,
        api: Connection,
        source: Source,
        keep: Callable[[Object], Any],
        changed: Callable[[], None],
    ) -> None:
        self.source = source
        self.version = 0
        """The number of changes of the reduced objects."""
        self.ready = threading.Event()
        """Set as soon as the first list was read, or was refused."""
        self._api = api
        self._keep = keep
        self._changed = changed
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._items: dict[tuple[str, str], tuple[str, Any]] = {}
        self.path = ""
        """The path of the list; empty if it is not served."""
        self.revision = ""
        """The cache includes all changes up to this revision; empty: list again."""
        self._error: ArenaError | None = ClusterError("nothing was read yet")
        self._thread = threading.Thread(target=self._run, name=source.kind, daemon=True)

    def start(self) -> None:
        """Start the thread that lists and watches."""
        self._thread.start()

    def stop(self) -> None:
        """Stop at the next event, at the latest when the server ends the watch."""
        self._stop.set()

    def answer(self) -> list[Any] | ArenaError:
        """The objects; an error if they are unknown, or may lag by more than `LAG`."""
        with self._lock:
            return self._error or [one for _, one in self._items.values()]

    def _run(self) -> None:
        errors = brief = 0
        while not self._stop.is_set():
            begun, pause = time.monotonic(), 0.0
            try:
                if not self.revision:
                    self._list()
                self._follow()
                errors = 0
            except UNREAD as error:
                pause = ASK_AGAIN * self._refused(error)
            except Exception as error:  # noqa: BLE001  a thread that ends in silence is a lie
                errors += 1
                if isinstance(error, ClusterError) and error.status == GONE:
                    self.revision = ""
                else:
                    self._failed(error, at_once=errors > 1)
            brief = brief + 1 if time.monotonic() - begun < _BRIEF else 0
            if worse := max(errors, brief):
                pause = max(pause, min(_LAST_DELAY, _FIRST_DELAY * 2 ** min(worse, 10)))
            self._stop.wait(pause * _RANDOM.uniform(0.5, 1.0))

    def _list(self) -> None:
        ask = partial(self._api.listed, keep=self._entry, judged=True)
        path, (found, revision) = first_served(self.source, ask) or ("", ((), ""))
        self._replace(path, found, revision)

    def _entry(self, thing: Object) -> Object | None:
        kept = self._keep(thing)
        return None if kept is None else {"at": _key(thing), "is": (_revision(thing), kept)}

    def _replace(self, path: str, found: Iterable[Object], revision: str) -> None:
        with self._lock:
            self._items, self.path = {one["at"]: one["is"] for one in found}, path
            self._told(changed=True)
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
            opened=self._right,
            **self.source.query,
        )
        for kind, thing in events:
            with self._lock:
                changed = kind != "BOOKMARK" and self._take(thing, gone=kind == "DELETED")
                self._told(changed=changed or self._error is not None)
                # After the version: a reader of this revision also sees its changes.
                self.revision = _revision(thing) or self.revision
            if self._stop.is_set():
                return

    def _take(self, thing: Mapping[str, Any], *, gone: bool = False) -> bool:
        """Apply one object; whether that changes any reduced object."""
        key, revision = _key(thing), _revision(thing)
        known = self._items.get(key)
        if known is not None and _later(known[0], revision):
            return False
        kept = None if gone else self._keep(dict(thing))
        if kept is None:
            return self._items.pop(key, None) is not None
        same = known is not None and known[1] == kept
        self._items[key] = revision, known[1] if known is not None and same else kept
        return not same

    def _right(self) -> None:
        with self._lock:
            self._told(changed=self._error is not None)

    def _told(self, *, changed: bool) -> None:
        """Note that the server has answered, so the list is up to date; call it under the lock."""
        self._error = None
        self.ready.set()
        if changed:
            self.version += 1
            self._changed()

    def _refused(self, error: ArenaError) -> bool:
        """Note that a list is denied or not served; True for a retry after `ASK_AGAIN` seconds.

        If it may be listed but not watched, the listed objects count until the next list.
        """
        listed = bool(self.revision)
        self.revision = ""
        if listed and isinstance(error, AccessDenied):
            return True
        self._failed(error, at_once=True)
        return not isinstance(error, AccessDenied) or error.status == FORBIDDEN

    def _failed(self, error: Exception, *, at_once: bool) -> None:
        """Note that the list may be out of date, unless the next try succeeds."""
        if not isinstance(error, ArenaError):
            # An unexpected object may be the reason: list again.
            self.revision = ""
            error = ClusterError(f"{type(error).__name__}: {error}")
        with self._lock:
            if at_once or not self.ready.is_set():
                news = self._error is None or self._error.message != error.message
                self._error = error
                self.ready.set()
                if news:
                    self.version += 1
                    self._changed()


class Cache:
    """All watched lists of a cluster; their threads call `changed`."""

    def __init__(
        self,
        api: Connection,
        sources: Iterable[Source],
        keep: Callable[[str], Callable[[Object], Any]],
        changed: Callable[[], None],
    ) -> None:
        self._watches = [Watch(api, one, keep(one.kind), changed) for one in sources]
        for one in self._watches:
            one.start()

    @property
    def version(self) -> int:
        """The number of changes so far."""
        return sum(one.version for one in self._watches)

    def answers(self) -> Answers:
        """The objects of each list, or its error; waits until all lists were read once."""
        for one in self._watches:
            one.ready.wait()
        return [(one.source, one.answer()) for one in self._watches]

    def revisions(self) -> list[tuple[str, str]]:
        """The path of each known list, and the last revision that was applied."""
        known = [source for source, answer in self.answers() if not isinstance(answer, ArenaError)]
        return [
            (one.path, one.revision) for one in self._watches if one.path and one.source in known
        ]

    def stop(self) -> None:
        """Stop the threads."""
        for one in self._watches:
            one.stop()


def _key(thing: Mapping[str, Any]) -> tuple[str, str]:
    meta = thing["metadata"]
    return str(meta.get("namespace", "")), str(meta["name"])


def _revision(thing: Mapping[str, Any]) -> str:
    return str((thing.get("metadata") or {}).get("resourceVersion") or "")


def _later(one: str, other: str) -> bool:
    """Whether a revision comes after another (kubernetes.io, API concepts: they are numbers)."""
    if one.isdecimal() and other.isdecimal():
        return int(one) > int(other)
    return False
