"""The log of one pod over HTTP: which container to read, and how to follow it through breaks."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from arena_topo.backends import LogOptions
from arena_topo.errors import ArenaError, ClusterError, NotFound, TimedOut

if TYPE_CHECKING:
    from arena_topo.backends.kubernetes.connection import Connection

Object = dict[str, Any]

MAIN_CONTAINER = "mpi"
"""What arena and the training operator call the container that matters."""

POLL = 0.5
"""Seconds between looks at a pod that has not started, or whose log broke off."""

RECONNECTS = 20
"""How often in a row a broken log is taken up again without a new line."""

_BAD_REQUEST = 400
_SERVER_ERRORS = 500
_STAMP = re.compile(rb"\d{4}-\d\d-\d\dT\S+ ")


def log_query(options: LogOptions, pod: Object) -> dict[str, str]:
    """The parameters of the API server's log endpoint."""
    query = {
        "container": options.container or main_container(pod),
        "tailLines": None if options.tail is None else str(options.tail),
        "sinceSeconds": None if options.since is None else str(options.since),
        "sinceTime": options.since_time,
        "timestamps": "true" if options.timestamps else None,
    }
    return {key: value for key, value in query.items() if value}


def main_container(pod: Object) -> str | None:
    """The container a person means: the init container that runs now, else the main one."""
    status = pod.get("status") or {}
    for one in status.get("initContainerStatuses") or ():
        state = one.get("state") or {}
        if "running" in state and not one.get("started"):
            return str(one["name"])
        if (state.get("terminated") or {}).get("exitCode"):
            return str(one["name"])
    return default_container(pod)


def default_container(pod: Object) -> str | None:
    """The main container: what the pod says is, else arena's, else the first; None without any."""
    names = [str(one.get("name")) for one in (pod.get("spec") or {}).get("containers") or ()]
    annotations = pod["metadata"].get("annotations") or {}
    chosen = annotations.get("kubectl.kubernetes.io/default-container")
    if chosen in names:
        return str(chosen)
    return MAIN_CONTAINER if MAIN_CONTAINER in names else next(iter(names), None)


def follow(api: Connection, path: str, options: LogOptions) -> Iterator[bytes]:
    """The log as it is written, until the pod ends, line by line.

    A connection that breaks, or that the API server closes early, is taken up after the last line
    seen: lines are asked for with their times, which are taken off again unless they were wanted.
    NotFound if there is no such pod to begin with.
    """
    resumed = _Resumed(keep_stamps=options.timestamps)
    breaks = 0
    while True:
        over = False
        try:
            pod = api.get(path)
            over = _is_over(pod, options.container)
            query = resumed.query(log_query(options, pod))
            for piece in api.stream(f"{path}/log", **query):
                breaks = 0
                yield from resumed.lines(piece)
        except NotFound:
            if not resumed.asked:
                raise
            return
        except (ClusterError, TimedOut) as error:
            breaks += 1
            if _not_started(error):
                breaks = 0
            elif breaks > RECONNECTS or not (resumed.begun and _passes(error)):
                raise
            over &= _not_started(error)
        # After the end was seen it is read once more: it may have come while no one listened.
        if over:
            yield from resumed.rest()
            return
        time.sleep(POLL)


def _not_started(error: ArenaError) -> bool:
    """Whether the kubelet only says that it is too early: no node yet, no container yet."""
    return (
        isinstance(error, ClusterError)
        and error.status == _BAD_REQUEST
        and re.search(r"waiting to start|host assigned", error.message) is not None
    )


def _passes(error: ArenaError) -> bool:
    """Whether a break may be over in a moment: the server restarts, or the network did."""
    status = error.status if isinstance(error, ClusterError) else None
    return status is None or status >= _SERVER_ERRORS


def _is_over(pod: Object, container: str | None) -> bool:
    status = pod.get("status") or {}
    if status.get("phase") in {"Succeeded", "Failed"}:
        return True
    if container is None:
        return False
    every = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return any(
        one.get("name") == container and "terminated" in (one.get("state") or {}) for one in every
    )


class _Resumed:
    """Lines of a log that may arrive twice, each handed on once.

    Times have nanoseconds, and a pod's are of one format and zone, so they compare as text; of
    lines with the very same time, as many are skipped as were seen.
    """

    def __init__(self, *, keep_stamps: bool) -> None:
        self._keep_stamps = keep_stamps
        self._container: str | None = None
        self._buffer = b""
        self._last = b""
        self._with_last = 0
        self._again = 0
        self.asked = False
        self.begun = False

    def query(self, query: dict[str, str]) -> dict[str, str]:
        """The parameters for the next connection, which goes on where the last one broke off."""
        self.asked = True
        container = query.get("container")
        if container != self._container or not self._last:
            self._container = container
            self._last, self._with_last = b"", 0
        else:
            query = {key: query[key] for key in query if key not in _ONLY_FIRST}
            query["sinceTime"] = re.sub(r"\.\d+", "", self._last.decode().strip())
        self._buffer, self._again = b"", 0
        return {**query, "follow": "true", "timestamps": "true"}

    def lines(self, piece: bytes) -> Iterator[bytes]:
        """The whole lines that a piece completes, without those seen before."""
        self.begun = True
        *whole, self._buffer = (self._buffer + piece).split(b"\n")
        for line in whole:
            yield from self._line(line + b"\n")

    def rest(self) -> Iterator[bytes]:
        """What the log ends with, if that is no whole line."""
        if self._buffer:
            yield from self._line(self._buffer)

    def _line(self, line: bytes) -> Iterator[bytes]:
        found = _STAMP.match(line)
        if found is None:
            yield line
            return
        stamp = found[0]
        if stamp < self._last:
            return
        if stamp == self._last:
            self._again += 1
            if self._again <= self._with_last:
                return
            self._with_last += 1
        else:
            self._last, self._with_last, self._again = stamp, 1, 1
        yield line if self._keep_stamps else line[len(stamp) :]


_ONLY_FIRST = frozenset({"tailLines", "sinceSeconds", "sinceTime"})
