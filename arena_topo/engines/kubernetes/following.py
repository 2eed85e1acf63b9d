"""The logs of many pods of a job at once: joined, followed through breaks and restarts, and left.

A thread of its own reads each log, run after run (`_Log`), and one looks at the pods once a second.
Lines and notices come to `Follow.read` through a queue with room for a number of batches: who does
not read holds the threads up, and they the kubelets. They are daemons that nobody waits for.
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
"""Seconds between two looks at the pods; more where a look takes long."""

PATIENCE = 60.0
"""Seconds that an API server may be away, as for whoever waits for a job."""

OPENERS = 8
"""Requests that are sent at once: enough for hundreds of pods in a second, no burden to a server"""

ROOM = 64
"""Batches of lines that wait for the reader, each of `streaming.PIECE` bytes or a little more."""

_GAP = 0.1
"""Seconds between two looks, even where something waits for the next."""
_SHORTEST, _LONGEST = 0.1, 5.0
"""Seconds before a stream that broke is taken up again, which double each time."""
_TRIES = 5
"""How often in a row the log of a run that is over is asked for in vain."""
_TOLD = 3
"""After how many tries in vain it is told of a log that was never read: it is news no more."""
_ANSWER = 15.0
"""Seconds of silence after which a log is given up that must come at once: it is not followed."""
_SILENCE = 5.0
"""Seconds of silence after which a stream is left whose container is over, or whose pod is gone."""
_OVERDUE = 15.0
"""Seconds after which a stream must have ended whose container runs anew: kubelets look every 5."""
_QUIET = 0.25
"""Seconds after which a request that was not refused counts as taken: the head may take hours."""
_BODY = 65_536
"""Bytes of a refusal that are read."""
_GOOD, _REDIRECT = 200, 300
_NANO = 1_000_000_000


def follow(
    engine: KubernetesBackend, job: JobStatus, options: LogOptions, wanted: Wanted
) -> Follow:
    """The logs of a job's pods. Nothing is asked before the first `read`."""
    known: list[Object] = []

    def pods() -> list[Object]:
        version = engine.api_version()
        if not known:
            known.append(engine.mpijob(job.name, job.namespace))
        return engine.pods_of(known[0], version, job.namespace, podlog.slim)

    path = f"/api/v1/namespaces/{part(job.namespace)}/pods"
    return Follow(
        engine.api, path, pods, options=options, wanted=wanted, every=min(LOOK, engine.look_every)
    )


_Errand = tuple[Callable[[], Any], "queue.SimpleQueue[tuple[Any, Exception | None]]"]


class _Left(Exception):
    """Nobody reads any more."""


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
        """Whether each log is read to where it ends now."""
        self._errands: queue.SimpleQueue[_Errand | None] = queue.SimpleQueue()
        """What blocks until a stream is open."""
        self.changed = threading.Condition()
        """Guards all that the threads share; notified after each look and each log's end."""
        self.looked = 0.0
        """When the last look began (`time.monotonic`)."""
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

    # For who reads.

    @property
    def done(self) -> bool:
        """Whether every pod there was last seen is over and all was read; more may come.

        That they were last seen is after the last of them was read.
        """
        with self.changed:
            fresh = not self.options.follow or self.looked >= self._settled
            return (
                bool(self.looked and fresh)
                and self._queue.empty()
                and self._error is None
                and all(one.settled for one in self._all())
            )

    def read(self, wait: float) -> Sequence[Line | Notice]:
        """What has come: at once if there is any, else within `wait` seconds; maybe nothing."""
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
        """Close all streams; what still opens is closed as soon as it does."""
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

    # For the threads.

    def too_many(self, why: str) -> ArenaError:
        """The error of more streams than this process may have open files, or threads."""
        return ArenaError(
            f"{sum(1 for _ in self._all())} logs are too many at once for this process",
            why=why,
            hint="raise the limit (`ulimit -n`, `ulimit -u`), or name fewer with --only",
        )

    @property
    def closed(self) -> bool:
        """Whether nobody reads any more."""
        return self._closed.is_set()

    def give(self, lines: list[Line]) -> None:
        """Hand lines on, as soon as there is room."""
        self._room.acquire()
        if self.closed:
            raise _Left
        self._queue.put(lines)

    def tell(self, notice: Notice | BaseException) -> None:
        """Hand a notice on, or what ends everything."""
        self._queue.put(notice)

    def wait(self, until: Callable[[], bool]) -> None:
        """Return as soon as a look or the end of a log has brought something about."""
        with self.changed:
            while not until():
                if self.closed:
                    raise _Left
                self.changed.wait()

    def opened(self, work: Callable[[], Any]) -> Any:
        """What `work` returns, done by one of the few threads that open streams.

        A handshake leaves as much memory in its thread as a silent stream takes.
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
            except Exception as error:  # noqa: BLE001  raised where it is waited for
                outcome.put((None, error))

    def rest(self, seconds: float) -> None:
        """Let some time pass."""
        if self._closed.wait(seconds):
            raise _Left

    def look_again(self) -> None:
        """Wait for a look at the pods that begins from now on."""
        now = time.monotonic()
        self._kick.set()
        self.wait(lambda: self.looked >= now)

    def settle(self, one: _Log, notice: Notice | None) -> None:
        """Nothing more is done about a log."""
        with self.changed:
            one.settled, self._settled = True, time.monotonic()
            if notice is not None:
                self.tell(notice)
            self.changed.notify_all()
        self._kick.set()

    # The thread that looks at the pods.

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
        """Take note of the pods that there are."""
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
        """Take note of a pod; its log, if that is another than the one that is read."""
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
    """The log of one container of one pod, which a thread reads run after run."""

    def __init__(
        self, owner: Follow, path: str, source: Source, sight: Sight, before: _Log | None
    ) -> None:
        self.source, self.sight = source, sight
        self.missing = self.settled = False
        self.whole = True
        """Whether nothing of it is cut off (`tail`, `since`)."""
        self._owner, self._api, self._options = owner, owner.api, owner.options
        self._path, self._before = path, before
        self.superseded = False
        self.stream: streaming.Stream | None = None
        self._place, self._anchor = streaming.Place(), streaming.Place()
        """How far it was read; the same when the stream was opened."""
        self._ahead: streaming.Place | None = None
        """How far the next run was read already, by a stream that was to be this run's."""
        self._overdue = 0.0
        """When a stream is no longer taken for this run's; 0 unless there is a newer one."""
        self._given_up = self._answered = self._last = False
        self._joined = self._broken = False
        self._trouble: ArenaError | None = None
        """Why it could not be read the last time, until it can."""
        self._begun = ""
        """The server's time when it was first asked for, for a log of which no line came."""
        self._tries, self._delay = 0, 0.0

    # What the thread that looks at pods does, which holds the lock.

    def heed(self, now: float) -> None:
        """See whether a stream is still what it was opened for."""
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

    # What its own thread does.

    def run(self) -> None:
        """Read it until nothing more can come."""
        try:
            if (before := self._before) is not None:
                # The next container of a pod waits for the log of the one before.
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
        """Wait until there is something to read; whether there is."""
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
        """Read the log of this run to its end, however often that breaks; whether that is all."""
        while True:
            sight = self.sight
            behind = sight.run - self.source.run
            previous = self._options.previous or behind == 1
            last = self._owner.finite or previous or sight.over
            if self.missing:
                self._lose()
            elif behind > 1 and not self._options.previous:
                # Of several runs that came and went only the last one before this is there.
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
                    # Closed early, as servers do with long requests.
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
        """Go on after the stream was left that brought nothing, or was of another run.

        The container was new already when the log of the run before was asked for, whose stream
        would have ended: what it brought is of the next run.
        """
        if self.missing:
            # A kubelet ends even an empty answer with its container.
            if not self._answered:
                self._trouble = self._trouble or podlog.silent(self.source, _SILENCE)
        elif self.sight.run > self.source.run:
            newer = self._place != self._anchor
            if newer and self._place.at // _NANO >= self.sight.begun:
                self._place, self._ahead = self._anchor, self._place

    def _heal(self, error: ArenaError) -> None:
        """See to it that a log is asked for again, or not, after an error."""
        finite, vain = self._owner.finite, self._tries >= _TRIES
        if error.why == os.strerror(errno.EMFILE):
            self._stop(self._owner.too_many(error.why))
        late = isinstance(error, TimedOut) and self._api.left <= 0
        if late or not isinstance(error, ClusterError | TimedOut | NotFound):
            self._stop(error)
        if podlog.too_early(error):
            # A kubelet may be behind what the API server says of it.
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

    # One stream.

    def _read(self, *, previous: bool) -> None:
        """Read what comes on one connection; ArenaError where it is refused, or breaks."""
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
        """A good answer with its head; ArenaError where there is none."""
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
        if (why := odd_body(headers)) is not None:
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
            # What was written since the first try is no more to be cut off.
            return query | {"sinceTime": self._begun}
        return query | podlog.cut(options)

    # What is told.

    def _take(self) -> None:
        """It can be read, again maybe."""
        if self._broken and self._joined:
            self._tell(Turn.RESUMED)
        self._broken, self._trouble = False, None
        if not self._joined:
            self._joined = True
            self._tell(Turn.JOINED)

    def _tell(self, turn: Turn, error: ArenaError | None = None) -> None:
        self._owner.tell(Notice(turn=turn, source=self.source, error=error))

    def _lose(self) -> None:
        """The pod is deleted: nothing more can be read."""
        never = self._trouble is not None and not self._joined
        self._settle(Turn.REFUSED if never else Turn.GONE, self._trouble)

    def _stop(self, error: ArenaError) -> NoReturn:
        """End everything with an error: the other logs would have the same."""
        self._owner.tell(error)
        self._settle(None)
        raise _Left

    def _settle(self, turn: Turn | None, error: ArenaError | None = None) -> None:
        # An end is told where there was a log, or it is known now that there will be none.
        ends = self._joined or (turn is Turn.ENDED and self.sight.final)
        told = turn is Turn.REFUSED or (ends and not self.superseded)
        notice = Notice(turn=turn, source=self.source, error=error) if turn and told else None
        self._owner.settle(self, notice)


def _date(said: str) -> str:
    """A Date header as RFC 3339; empty where it is none."""
    try:
        return parsedate_to_datetime(said).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, TypeError, OverflowError):
        return ""
