"""The logs of many pods of a job at once, through broken connections and restarts of containers.

A thread reads each log, run after run (`_Log`), and another lists the pods once a second. Lines and
notices reach `Follow.read` through a bounded queue: a slow reader blocks the threads, and they the
kubelets. The threads are daemons and are not joined.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Self

from arena_topo.engines.kubernetes import podlog, streaming
from arena_topo.engines.kubernetes.failures import UNKNOWN_CALLER, odd_body, refusal
from arena_topo.engines.kubernetes.mpijob import is_launcher, worker_index
from arena_topo.engines.kubernetes.podlog import Object, Sight
from arena_topo.engines.kubernetes.writing import part
from arena_topo.engines.lines import Line, LogOptions, Notice, Source, Turn, Wanted, more_files
from arena_topo.errors import ArenaError, ClusterError, NotFound, TimedOut

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

ROOM = 64
"""Batches of lines in the queue, each of `streaming.PIECE` bytes or a little more."""

_GAP = 0.1
"""The least seconds between two lists of the pods."""
_SHORTEST, _LONGEST = 0.1, 5.0
"""Bounds of the back-off (seconds) before a broken stream is requested again; it doubles."""
_TRIES = 5
"""Requests in a row, without a line, for the log of a run that is over."""
_TOLD = 3
"""Failed requests before the failure of a log that was never read is noted."""
_ANSWER = 15.0
"""Time-out (seconds of silence) of a log that is not followed."""
_SILENCE = 5.0
"""Time-out (seconds of silence) of a stream whose container is over, or whose pod is deleted."""
_OVERDUE = 15.0
"""Seconds in which the stream of a restarted container must end: kubelets look every 5."""
_QUIET = 0.25
"""Seconds after which an unanswered request counts as accepted: the head may take hours."""
_BODY = 65_536
"""Bytes that are read of the body of a refusal."""
_GOOD, _REDIRECT = 200, 300
_NANO = 1_000_000_000


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


_Errand = tuple[Callable[[], Any], "queue.SimpleQueue[tuple[Any, Exception | None]]"]


class _Left(Exception):
    """The follow is closed."""


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
        self.api, self.options = api, options
        self.finite = not options.follow or options.previous
        """Whether each log is read to its present end."""
        self._errands: queue.SimpleQueue[_Errand | None] = queue.SimpleQueue()
        """Calls that block until a connection is open."""
        self.changed = threading.Condition()
        """Guards the shared state; notified after each list of the pods and each end of a log."""
        self.looked = 0.0
        """When the last list of the pods began (`time.monotonic`)."""
        self._path, self._pods, self._wanted, self._every = path, pods, wanted, every
        self._logs: dict[str, list[_Log]] = {}
        self._unwanted: set[tuple[str, str]] = set()
        self._queue: queue.SimpleQueue[list[Line] | Notice | BaseException] = queue.SimpleQueue()
        self._room = threading.Semaphore(ROOM)
        self._error: BaseException | None = None
        self._settled = 0.0
        """When the last log came to its end."""
        self._answered = time.monotonic()
        self._closed, self._kick = threading.Event(), threading.Event()
        self._begun = False

    # For the reader.

    @property
    def done(self) -> bool:
        """Whether all pods are over and their logs read, by a list from after the last read."""
        with self.changed:
            fresh = not self.options.follow or self.looked >= self._settled
            return (
                bool(self.looked and fresh)
                and self._queue.empty()
                and self._error is None
                and all(one.settled for one in self._all())
            )

    def read(self, wait: float) -> Sequence[Line | Notice]:
        """The lines and notices that have come, at once or within `wait` seconds; maybe none."""
        if not self._begun:
            self._begun = True
            for work in [self._look] + OPENERS * [self._open]:
                threading.Thread(target=work, daemon=True).start()
        found: list[Line | Notice] = []
        with contextlib.suppress(queue.Empty):
            for _ in range(ROOM):
                if self._error is not None and not found:
                    error, self._error = self._error, None
                    raise error
                one = self._queue.get(block=not found, timeout=wait)
                if isinstance(one, list):
                    self._room.release()
                    found += one
                elif isinstance(one, Notice):
                    found.append(one)
                else:
                    self._error = one
                    if found:
                        break
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_wrong: object) -> None:
        """Close all streams, and those that are being opened once they are open."""
        if self.closed:
            return
        with self.changed:
            self._closed.set()
            self.changed.notify_all()
            logs = list(self._all())
            for one in logs:
                if one.stream is not None:
                    one.stream.hang_up()
        self._kick.set()
        self._room.release(len(logs) + 1)
        for _ in range(OPENERS):
            self._errands.put(None)

    def _all(self) -> Iterator[_Log]:
        return (one for several in self._logs.values() for one in several)

    # For the threads of the logs.

    def too_many(self, why: str) -> ArenaError:
        """The error of more streams than this process may have files or threads."""
        return ArenaError(
            f"{sum(1 for _ in self._all())} logs are too many at once for this process",
            why=why,
            hint="raise the limit (`ulimit -n`, `ulimit -u`), or name fewer with --only",
        )

    @property
    def closed(self) -> bool:
        """Whether the reader has closed the follow."""
        return self._closed.is_set()

    def give(self, lines: list[Line]) -> None:
        """Queue lines, waiting for room."""
        self._room.acquire()
        if self.closed:
            raise _Left
        self._queue.put(lines)

    def tell(self, notice: Notice | BaseException) -> None:
        """Queue a notice, or the error that ends the follow."""
        self._queue.put(notice)

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait for a condition, evaluated after each list of the pods and each end of a log."""
        with self.changed:
            while not until():
                if self.closed:
                    raise _Left
                self.changed.wait()

    def opened(self, work: Callable[[], Any]) -> Any:
        """The result of `work`, called in one of the few threads that open connections.

        The handshake of TLS leaves 16 KB of memory in its thread, and there may be 500 threads.
        """
        outcome: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        with self.changed:
            if self.closed:
                raise _Left
            self._errands.put((work, outcome))
        found, error = outcome.get()
        if error is not None:
            raise error
        return found

    def _open(self) -> None:
        while (errand := self._errands.get()) is not None:
            work, outcome = errand
            try:
                outcome.put((None if self.closed else work(), None))
            except Exception as error:  # noqa: BLE001  raised by `opened`
                outcome.put((None, error))

    def rest(self, seconds: float) -> None:
        """Sleep; `_Left` if the follow is closed meanwhile."""
        if self._closed.wait(seconds):
            raise _Left

    def look_again(self) -> None:
        """Wait for a list of the pods that begins from now on."""
        now = time.monotonic()
        self._kick.set()
        self.wait(lambda: self.looked >= now)

    def settle(self, one: _Log, notice: Notice | None) -> None:
        """A log has come to its end, or will never be read."""
        with self.changed:
            one.settled, self._settled = True, time.monotonic()
            if notice is not None:
                self.tell(notice)
            self.changed.notify_all()
        self._kick.set()

    # The thread that lists the pods.

    def _look(self) -> None:
        while not self.closed:
            self._kick.clear()
            began = time.monotonic()
            try:
                pods = self._pods()
                with self.changed:
                    self._seen(began, pods)
            except Exception as error:  # noqa: BLE001  told by `read`
                self._astray(error)
            if not self.options.follow:
                return
            spent = time.monotonic() - began
            self._closed.wait(min(_GAP, self._every))
            self._kick.wait(max(self._every, 10 * spent))

    def _astray(self, error: Exception) -> None:
        passes = isinstance(error, ClusterError | TimedOut) and podlog.passes(error)
        late = time.monotonic() - self._answered > PATIENCE or self.api.left <= 0
        if late or not passes or not (self.looked and self.options.follow):
            self.tell(error)

    def _seen(self, began: float, pods: list[Object]) -> None:
        """Take over a list of the pods."""
        if self.closed:
            return
        if not self.looked:
            more_files()
        first, self._answered = not self.looked, time.monotonic()
        there = {pod["metadata"]["uid"] for pod in pods}
        for one in self._all():
            one.missing = one.missing or one.source.uid not in there
        new = [log for pod in pods if (log := self._see(pod, first=first)) is not None]
        self.looked = began
        for one in self._all():
            one.heed(self._answered)
        self.changed.notify_all()
        for one in new:
            try:
                threading.Thread(target=one.run, daemon=True).start()
            except RuntimeError as error:
                raise self.too_many(str(error)) from error

    def _see(self, pod: Object, *, first: bool) -> _Log | None:
        """Take over a pod; its log, if that is another than the one that is read."""
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        several = self._logs.get(uid, [])
        for one in several:
            one.sight = podlog.sight(pod, one.source.container)
        container = self.options.container or podlog.main_container(pod)
        if container is None or (uid, container) in self._unwanted:
            return None
        before = several[-1] if several else None
        if before is not None and before.source.container == container:
            return None
        sight = podlog.sight(pod, container)
        chief = is_launcher(pod)
        source = Source(
            pod=name,
            uid=uid,
            container=container,
            run=sight.run - 1 if self.options.previous and sight.run else sight.run,
            chief=chief,
            worker=None if chief else worker_index(pod),
        )
        if not self._wanted(source):
            self._unwanted.add((uid, container))
            return None
        found = _Log(self, f"{self._path}/{part(name)}", source, sight, before)
        found.whole = not (first and sight.readable)
        self._logs.setdefault(uid, []).append(found)
        return found


class _Log:
    """The log of a container of a pod, which a thread reads run after run."""

    def __init__(
        self, owner: Follow, path: str, source: Source, sight: Sight, before: _Log | None
    ) -> None:
        self.source, self.sight = source, sight
        self.missing = self.settled = False
        self.whole = True
        """Whether it is read from its beginning (no `tail`, no `since`)."""
        self._owner, self._api, self._options = owner, owner.api, owner.options
        self._path, self._before = path, before
        self.superseded = False
        self.stream: streaming.Stream | None = None
        self._place, self._anchor = streaming.Place(), streaming.Place()
        """How far it was read; the same when the stream was opened."""
        self._ahead: streaming.Place | None = None
        """How far the next run was read already, by a stream that was opened for this run."""
        self._overdue = 0.0
        """When a stream no longer counts as this run's; 0 unless there is a newer run."""
        self._given_up = self._answered = self._last = False
        self._joined = self._broken = False
        self._trouble: ArenaError | None = None
        """The last failure, until the log can be read."""
        self._begun = ""
        """The server's time of the first response, for a log without a line."""
        self._tries, self._delay = 0, 0.0

    # Called by the thread that lists the pods, with the lock.

    def heed(self, now: float) -> None:
        """Hang up a stream that has outlived its run."""
        stream, sight = self.stream, self.sight
        if stream is None or self._last:
            return
        since = stream.since
        quiet = 0.0 if since is None else now - since
        if not self._answered and quiet > (_QUIET if self._trouble is None else _SILENCE):
            self._take()
        if self.missing or sight.over:
            gone = quiet > _SILENCE
        elif sight.run > self.source.run:
            self._overdue = self._overdue or now + _OVERDUE
            gone = now >= self._overdue
        else:
            gone = False
        if gone:
            self._given_up = True
            stream.hang_up()

    # The thread of the log.

    def run(self) -> None:
        """Read the log until nothing more can come."""
        try:
            if (before := self._before) is not None:
                # After an init container, its log is read to the end first.
                before.superseded = True
                self._owner.wait(lambda: before.settled)
            while self._readable() and self._read_run() and self._next_run():
                pass
        except _Left:
            pass
        except Exception as error:  # noqa: BLE001  told by `Follow.read`
            self._owner.tell(error)
            self._owner.settle(self, None)

    def _readable(self) -> bool:
        """Wait for something to read; whether there is."""
        if self._options.previous:
            if not self.sight.run:
                self._settle(Turn.REFUSED, podlog.never_before(self.source))
            return not self.settled
        if not self._owner.finite:
            self._owner.wait(lambda: self.missing or self.sight.readable or self.sight.final)
        if self.missing:
            self._lose()
        elif not self.sight.readable:
            self._settle(Turn.ENDED)
        elif not self._joined and not self._place.stamp:
            self.source = replace(self.source, run=self.sight.run)
        return not self.settled

    def _read_run(self) -> bool:
        """Read the log of this run to its end; whether the next run is to be waited for."""
        while True:
            sight = self.sight
            behind = sight.run - self.source.run
            previous = self._options.previous or behind == 1
            last = self._owner.finite or previous or sight.over
            if self.missing:
                self._lose()
            elif behind > 1 and not self._options.previous:
                # Kubelets store only the run before the present one.
                return True
            if self.settled:
                return False
            if last and not self._last:
                self._tries, self._delay = 0, 0.0
            self._last = last
            try:
                self._read(previous=previous)
            except ArenaError as error:
                if self._given_up:
                    self._give_up()
                elif podlog.no_previous(error) and not self._options.previous:
                    return True
                else:
                    self._heal(error)
            else:
                if last:
                    return not self.settled
                self._owner.look_again()
                if not (self.missing or self.sight.over or self.sight.run > self.source.run):
                    # The server closed a long request early.
                    self._pause()

    def _next_run(self) -> bool:
        """Wait for the next run; whether there is one."""
        if self._owner.finite:
            self._settle(Turn.ENDED if self.sight.final else None)
            return False
        self._owner.wait(
            lambda: self.missing or self.sight.final or self.sight.run > self.source.run,
        )
        sight = self.sight
        if sight.run <= self.source.run:
            if sight.final:
                self._settle(Turn.ENDED)
            else:
                self._lose()
            return False
        run = max(self.source.run + 1, sight.run - 1)
        self.source = replace(self.source, run=run)
        begun = sight.begun if run == sight.run else sight.begun_before
        if self._ahead is not None:
            self._place = self._ahead
        elif self._place.at // _NANO < begun:
            self._place = streaming.Place()
        self._ahead, self.whole, self._begun, self._last = None, True, "", False
        self._tell(Turn.RESTARTED)
        return True

    def _give_up(self) -> None:
        """Go on after a hang-up: the stream was silent, or was the next run's.

        If the container was restarted just before the request, the response is the log of the next
        run: its lines count for that run, and this run is read again from where it was.
        """
        if self.missing:
            # A kubelet ends even an empty response with its container.
            if not self._answered:
                self._trouble = self._trouble or podlog.silent(self.source, _SILENCE)
        elif self.sight.run > self.source.run:
            newer = self._place != self._anchor
            if newer and self._place.at // _NANO >= self.sight.begun:
                self._place, self._ahead = self._anchor, self._place

    def _heal(self, error: ArenaError) -> None:
        """Decide after an error whether the log is requested again."""
        finite, vain = self._owner.finite, self._tries >= _TRIES
        if error.why == os.strerror(errno.EMFILE):
            self._stop(self._owner.too_many(error.why))
        late = isinstance(error, TimedOut) and self._api.left <= 0
        if late or not isinstance(error, ClusterError | TimedOut | NotFound):
            self._stop(error)
        if podlog.too_early(error):
            # A kubelet may lag behind the API server.
            if finite or (self._last and vain):
                self._settle(Turn.ENDED)
                return
            self._tries += 1
        elif isinstance(error, NotFound) and not finite:
            self._trouble = None
            self._owner.look_again()
            if self.missing:
                return
        elif not podlog.passes(error):
            never = podlog.no_previous(error)
            self._settle(Turn.REFUSED, podlog.never_before(self.source) if never else error)
            return
        else:
            self._trouble = error
            if self.missing:
                return
            self._tries += 1
            if vain and self._last:
                self._settle(Turn.REFUSED, error)
                return
            known = self._joined or (self._tries >= _TOLD and not self._last)
            if known and not self._broken:
                self._broken = True
                self._tell(Turn.BROKEN, error)
        self._pause()

    def _pause(self) -> None:
        self._delay = min(_LONGEST, max(_SHORTEST, 2 * self._delay))
        self._owner.rest(self._delay)

    # A single request.

    def _read(self, *, previous: bool) -> None:
        """Read the response to a request; ArenaError if it is refused or the connection breaks."""
        self._anchor, self._answered, self._overdue = replace(self._place), False, 0.0
        self._given_up = False
        query = self._query(previous=previous)
        silence = min(_ANSWER, self._api.silence) if self._last else None
        try:
            answer = self._answer(query, silence)
            self._read_body(answer)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if silence is not None and isinstance(error, TimeoutError) and error.errno is None:
                self._settle(Turn.REFUSED, podlog.silent(self.source, silence))
                return
            why = error.strerror if isinstance(error, OSError) else None
            raise ClusterError(
                f"the connection to {self._api.access.server} broke",
                why=why or "the answer is no HTTP, or ended too early",
            ) from error
        finally:
            with self._owner.changed:
                if self.stream is not None:
                    self.stream.close()
                self.stream = None

    def _answer(self, query: dict[str, str], silence: float | None) -> http.client.HTTPResponse:
        """A response of success; ArenaError if there is none."""
        for again in (False, True):
            used = self._api.access
            asked = partial(self._api.asked, f"{self._path}/log", query, silence)
            sock = self._owner.opened(asked)
            if sock is None:
                raise _Left
            stream = streaming.Stream(sock)
            with self._owner.changed:
                self.stream = stream
                if self._owner.closed:
                    raise _Left
            answer = stream.answer()
            if _GOOD <= answer.status < _REDIRECT:
                break
            body = answer.read(_BODY)
            error = refusal("GET", f"{self._path}/log", answer.status, answer.reason, body)
            if answer.status != UNKNOWN_CALLER:
                raise error
            if again or not self._api.renewed(used):
                self._stop(error)
            stream.close()
        headers = {name.lower(): value for name, value in answer.headers.items()}
        if (why := odd_body(headers, log=True)) is not None:
            self._settle(Turn.REFUSED, self._api.no_server(why))
            raise _Left
        return answer

    def _read_body(self, answer: http.client.HTTPResponse) -> None:
        lines = streaming.Lines(self._place, self.source, pieces=self._options.unfinished)
        held = bytearray()

        def hand_on() -> None:
            if held:
                data = bytes(held)
                held.clear()
                self._say(lines.feed(data))

        with self._owner.changed:
            self._answered = True
            self._begun = self._begun or _date(answer.headers.get("date", ""))
            self._take()
            stream = self.stream
        if stream is not None:
            stream.idle = hand_on
        for piece in streaming.pieces(answer):
            held += piece
            if len(held) >= streaming.PIECE:
                hand_on()
        hand_on()
        if self._last:
            self._say(lines.finish())

    def _say(self, lines: list[Line]) -> None:
        if lines:
            self._delay, self._tries = 0.0, 0
            self._owner.give(lines)

    def _query(self, *, previous: bool) -> dict[str, str]:
        options = self._options
        query = {"container": self.source.container, "timestamps": "true"}
        if previous:
            query["previous"] = "true"
        elif not self._last:
            query["follow"] = "true"
        if self._place.stamp:
            since = self._place.since
            return query | ({} if since is None else {"sinceTime": since})
        if self.whole:
            return query
        if options.tail is not None and self._begun:
            # `tail` does not apply to lines since the first response.
            return query | {"sinceTime": self._begun}
        return query | podlog.cut(options)

    # Notices.

    def _take(self) -> None:
        """The log can be read, or can be read again."""
        if self._broken and self._joined:
            self._tell(Turn.RESUMED)
        self._broken, self._trouble = False, None
        if not self._joined:
            self._joined = True
            self._tell(Turn.JOINED)

    def _tell(self, turn: Turn, error: ArenaError | None = None) -> None:
        self._owner.tell(Notice(turn=turn, source=self.source, error=error))

    def _lose(self) -> None:
        """The pod is deleted."""
        never = self._trouble is not None and not self._joined
        self._settle(Turn.REFUSED if never else Turn.GONE, self._trouble)

    def _stop(self, error: ArenaError) -> NoReturn:
        """End the follow with an error that all logs would have."""
        self._owner.tell(error)
        self._settle(None)
        raise _Left

    def _settle(self, turn: Turn | None, error: ArenaError | None = None) -> None:
        # An end is noted of a log that was open, or is known never to be.
        ends = self._joined or (turn is Turn.ENDED and self.sight.final)
        told = turn is Turn.REFUSED or (ends and not self.superseded)
        notice = Notice(turn=turn, source=self.source, error=error) if turn and told else None
        self._owner.settle(self, notice)


def _date(said: str) -> str:
    """A Date header as RFC 3339; empty if invalid."""
    try:
        return parsedate_to_datetime(said).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, TypeError, OverflowError):
        return ""
