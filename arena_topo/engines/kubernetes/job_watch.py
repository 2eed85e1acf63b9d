"""Jobs that are read again only after a change, for `wait` and for logs that are followed.

A job is always read whole: first the MPIJob, then its pods, which are therefore never older.
Watches only tell when to read again. They start from the revisions of the reading, so that no
change between the two is missed.
"""

from __future__ import annotations

import contextlib
import math
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from arena_topo.engines import JobStatus, Phase
from arena_topo.engines.kubernetes import podlog
from arena_topo.engines.kubernetes.job_writer import part
from arena_topo.engines.kubernetes.jobs import Jobs, ListSnapshot, WatchedList
from arena_topo.engines.kubernetes.mpijob import NO_PODS, job_status, pod_selectors
from arena_topo.engines.kubernetes.watch_cache import (
    ASK_AGAIN,
    WatchThread,
    later_revision,
    revision_of,
)
from arena_topo.engines.lines import LogOptions, SourceFilter
from arena_topo.errors import ArenaError, JobNotFound

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.connection import Connection
    from arena_topo.engines.kubernetes.log_follower import Follow
    from arena_topo.engines.kubernetes.transport import HttpAnswer

Object = dict[str, Any]

REREAD = 5.0
"""Seconds between two readings without the right to watch, or of what no watch reports."""

_LEAST = 1.0
"""The least seconds between two readings because of changes: a gang that starts has many."""

_MOST_WATCHED = 8
"""Jobs that have watches of their own; further jobs are read every `REREAD` seconds."""

_UNCHANGED = 60.0
"""Seconds after which a job is read again although no watch has reported a change: a proxy may hold
back the events of a watch."""

_WATCH = 120.0
"""Seconds after which a server is asked to end a watch. TCP notices a dead server within a minute,
but not one behind a proxy that lives."""

_RANDOM = random.Random()  # noqa: S311  no secret; threads leave the generator of others alone

_Content = TypeVar("_Content")


class ChangeWatch(WatchThread):
    """A thread that watches a list from a revision on, and tells whether it has changed."""

    def __init__(self, api: Connection, watched: WatchedList) -> None:
        # The watch of a single object goes on from now: it begins with the present state.
        revision = "" if watched.single else watched.revision
        super().__init__(api, f"watch {watched.path}", revision)
        self.interval: float | None = REREAD
        """Seconds between two readings while no change is reported; None while the watch is
        broken."""
        self._list = watched
        self._newest = ""
        """The revision of the last change."""
        self._noted = -math.inf
        """When the last change came (`time.monotonic`), for revisions without an order."""
        self._unbroken = -math.inf
        """Since when no change was missed (`time.monotonic`)."""
        # Without a thread the list is read again every `REREAD` seconds.
        with contextlib.suppress(ArenaError):
            self.start()

    def changed(self, since: float, revision: str) -> bool:
        """Whether the list may have changed since it was read at a time and a revision."""
        ordered = self._newest.isdecimal() and revision.isdecimal()
        later = later_revision(self._newest, revision) if ordered else since < self._noted
        return since < self._unbroken or later

    def _refused(self, error: ArenaError) -> float:
        del error
        self.interval = REREAD
        return ASK_AGAIN

    def _failed(self, error: Exception) -> None:
        del error
        self.interval = None

    def _read(self) -> None:
        """Take note of changes until the server ends the watch."""
        self.interval = REREAD if self.interval is not None else None
        events = self._api.watch(
            self._list.path,
            resource_version=self.revision,
            timeout=_WATCH * _RANDOM.uniform(0.8, 1.0),
            opened=self._opened,
            **self._list.query,
        )
        begins = self._list.single and not self.revision
        for kind, thing in events:
            revision = revision_of(thing)
            # A watch from now on begins with the present objects, in any order.
            ordered = revision.isdecimal()
            if begins:
                begins, self.interval = False, _UNCHANGED
                if kind != "ADDED" or not self._as_read(revision):
                    self._unbroken = time.monotonic()
            if not (self.revision and ordered) or later_revision(revision, self.revision):
                self.revision = revision
            if kind != "BOOKMARK":
                self._noted = time.monotonic()
                if not ordered or later_revision(revision, self._newest or "0"):
                    self._newest = revision
            if self._stop.is_set():
                return

    def _as_read(self, revision: str) -> bool:
        """Whether a single object is as it was read, or was so later than at a revision."""
        read = self._list.revision
        return revision == read or later_revision(read, revision)

    def _opened(self, answer: HttpAnswer) -> None:
        if self.revision or not self._list.single:
            self.interval = _UNCHANGED
        # Else the state of the object comes first, or nothing if it is deleted.
        if not (self.revision or self._list.single):
            self._unbroken = time.monotonic()
        super()._opened(answer)


class ReadOnChange(Generic[_Content]):
    """A reading that is repeated only after a change, and watches that report changes.

    Threads may share it; a reading is at least `every` seconds old before it is repeated.
    """

    def __init__(
        self, api: Connection, read: Callable[[], ListSnapshot[_Content]], *, every: float
    ) -> None:
        self._api, self._read, self._every = api, read, every
        self._lock = threading.Lock()
        self._reading: tuple[float, ListSnapshot[_Content]] | None = None
        """The last reading, and when it began."""
        self._failed = self._closed = False
        self._watches: dict[tuple[str, ...], ChangeWatch] = {}

    def current(self, *, fresh: bool = False, watch: bool = True) -> tuple[_Content, float]:
        """The content, and when its reading began; with `fresh` from now on.

        With `watch` the watches begin where a first reading ended; without it there is no second.

        All errors of the reading. Seconds are those of `time.monotonic`.
        """
        called = time.monotonic()
        with self._lock:
            if self._reading is not None:
                began, reading = self._reading
                if watch:
                    self._watch(reading)
                if not (began < called if fresh else watch and self._stale(began, reading)):
                    return reading.content, began
            began, self._failed = time.monotonic(), True
            reading = self._read()
            self._reading, self._failed = (began, reading), False
            return reading.content, began

    def close(self) -> None:
        """End the watches."""
        self._closed = True
        for watch in list(self._watches.values()):
            watch.stop()

    def _watch(self, reading: ListSnapshot[_Content]) -> None:
        for watched in reading.lists:
            if (key := _key(watched)) not in self._watches and not self._closed:
                self._watches[key] = ChangeWatch(self._api, watched)
        if self._closed:
            self.close()

    def _stale(self, began: float, reading: ListSnapshot[_Content]) -> bool:
        age = time.monotonic() - began
        if self._failed or age < self._every:
            return self._failed
        if self._closed:
            # Nothing watches any more.
            return True
        watches = [(self._watches.get(_key(watched)), watched) for watched in reading.lists]
        lasts = reading.lasts
        for watch, watched in watches:
            if watch is None or watch.changed(began, watched.revision):
                return True
            lasts = min(lasts, self._every if watch.interval is None else watch.interval)
        return age >= lasts


class WatchedJobs:
    """The jobs of a namespace, each read again only after a change; see `JobReads`."""

    def __init__(
        self,
        jobs: Jobs,
        namespace: str,
        *,
        every: float,
        read_all: Callable[[], ListSnapshot[tuple[JobStatus, ...]]],
        completed: Callable[[JobStatus, list[Object]], JobStatus],
    ) -> None:
        """`every` are the least seconds between two readings of a job.

        `read_all` reads all jobs of the namespace; `completed` adds to a status what neither the
        job nor its pods say.
        """
        self._source, self._namespace = jobs, namespace
        self._every = min(_LEAST, every)
        self._read_all, self._completed = read_all, completed
        self._known: dict[str, Object] = {}
        """The MPIJob of each name as it was read first."""
        self._jobs: dict[str, ReadOnChange[tuple[JobStatus | None, list[Object]]]] = {}
        self._all: ReadOnChange[tuple[JobStatus, ...]] | None = None
        self._whole: dict[str, tuple[float, JobStatus]] = {}
        """The last status of each job, and when its reading began."""
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_wrong: object) -> None:
        self.close()

    def close(self) -> None:
        """End all watches; later readings are made anew each time, and nothing is watched."""
        self._closed = True
        for reads in self._jobs.values():
            reads.close()
        if self._all is not None:
            self._all.close()

    def job(self, name: str, *, fresh: bool = False) -> JobStatus:
        """A job as of its last change; NotFound if it does not exist."""
        # Who reads once needs no watch.
        (status, pods), began = self._reads(name).current(fresh=fresh, watch=name in self._whole)
        if status is None:
            raise JobNotFound(name, self._namespace)
        if (last := self._whole.get(name)) is None or last[0] != began:
            last = self._whole[name] = began, self._completed(status, pods)
        return last[1]

    def jobs(self) -> tuple[JobStatus, ...]:
        """All jobs of the namespace as of their last change."""
        if self._all is None:
            self._all = self._reading(self._read_all)
        return self._all.current()[0]

    def follow(
        self,
        job: JobStatus,
        options: LogOptions,
        wanted: SourceFilter = lambda _: True,
        *,
        close: Callable[[], None] = lambda: None,
    ) -> Follow:
        """See `Backend.follow`; `close` is called at its end."""
        from arena_topo.engines.kubernetes import log_follower, pod_lister  # noqa: PLC0415  for logs

        def pods(fresh: bool) -> tuple[list[Object], float]:  # noqa: FBT001  a callback
            reads = self._reads(job.name)
            (_, pods), began = reads.current(fresh=fresh, watch=options.follow)
            return pods, began

        return log_follower.Follow(
            self._source.api,
            f"/api/v1/namespaces/{part(self._namespace)}/pods",
            pods,
            options=options,
            wanted=wanted,
            every=min(pod_lister.LOOK, self._every),
            close=close,
        )

    def _reads(self, name: str) -> ReadOnChange[tuple[JobStatus | None, list[Object]]]:
        if name not in self._jobs:
            self._jobs[name] = self._reading(partial(self._read, name))
        return self._jobs[name]

    def _reading(self, read: Callable[[], ListSnapshot[_Content]]) -> ReadOnChange[_Content]:
        reading = ReadOnChange(self._source.api, read, every=self._every)
        if self._closed:
            reading.close()
        return reading

    def _read(self, name: str) -> ListSnapshot[tuple[JobStatus | None, list[Object]]]:
        """Read a job and the pods of the first job of this name, which may be deleted by now."""
        jobs, mpijob = self._source, None
        with contextlib.suppress(*([JobNotFound] if name in self._known else [])):
            mpijob = jobs.mpijob(name, self._namespace)
        known = self._known.setdefault(name, mpijob or {})
        pods, revision = jobs.pods_listed(known)
        status, lasts = None, math.inf
        if mpijob is not None:
            status = job_status(mpijob, pods if _uid(mpijob) == _uid(known) else [])
            refused = status.phase is Phase.PENDING and status.reason == NO_PODS
            if refused or any(instance.pending for instance in status.instances):
                # No watch reports a refused pod, and a proxy may hold back that a pod has started.
                lasts = REREAD
        if list(self._known).index(name) >= _MOST_WATCHED:
            return ListSnapshot((status, [podlog.log_fields(pod) for pod in pods]), (), REREAD)
        lists = _watched_lists(jobs, known, mpijob, revision)
        return ListSnapshot((status, [podlog.log_fields(pod) for pod in pods]), lists, lasts)


def gang_reads(
    jobs: Jobs, stored: Object, *, lasts: float
) -> ReadOnChange[tuple[Object | None, list[Object]]]:
    """A job, None once it is gone, and its pods, all with all their fields.

    A reading counts for `lasts` seconds at most.
    """
    meta = stored["metadata"]

    def read() -> ListSnapshot[tuple[Object | None, list[Object]]]:
        mpijob = None
        with contextlib.suppress(JobNotFound):
            mpijob = jobs.mpijob(meta["name"], meta["namespace"])
        pods, revision = jobs.pods_listed(stored)
        lists = _watched_lists(jobs, stored, mpijob, revision)
        same = mpijob is not None and _uid(mpijob) == _uid(stored)
        return ListSnapshot((mpijob if same else None, pods), lists, lasts)

    return ReadOnChange(jobs.api, read, every=_LEAST)


def _watched_lists(
    jobs: Jobs, known: Object, mpijob: Object | None, revision: str
) -> tuple[WatchedList, ...]:
    """The list of a job, unless it is gone, and those of its pods, read at a revision.

    The pods are those of the job that was `known`.
    """
    name, namespace = known["metadata"]["name"], known["metadata"]["namespace"]
    pods, lists = f"/api/v1/namespaces/{part(namespace)}/pods", list[WatchedList]()
    if mpijob is not None:
        path = jobs.job_path(name, namespace).rpartition("/")[0]
        query = {"fieldSelector": f"metadata.name={name}"}
        lists.append(WatchedList(path, query, revision_of(mpijob), single=True))
    lists += [
        WatchedList(pods, {"labelSelector": selector}, revision)
        for selector in pod_selectors(known, jobs.api_version())
    ]
    return tuple(lists)


def _key(watched: WatchedList) -> tuple[str, ...]:
    return watched.path, *watched.query.values()


def _uid(mpijob: Object) -> str:
    return str(mpijob["metadata"]["uid"])
