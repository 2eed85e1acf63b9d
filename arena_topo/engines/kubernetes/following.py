"""The logs of many pods of a job at once: joined, followed through breaks and restarts, and left.

`Follow.read` is called by one thread, which reads all streams itself. Two things may block, and
have threads of their own: looking at the pods (one list a second), and opening streams (a few at a
time, which ends when the request is sent: the answer may come hours later).
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from email.utils import parsedate_to_datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from arena_topo.engines.kubernetes import podlog, streaming
from arena_topo.engines.kubernetes.errands import Errands
from arena_topo.engines.kubernetes.failures import ABSENT, UNKNOWN_CALLER, refusal
from arena_topo.engines.kubernetes.mpijob import is_launcher, worker_index
from arena_topo.engines.kubernetes.podlog import Object
from arena_topo.engines.kubernetes.reading import Reading, State
from arena_topo.engines.kubernetes.writing import part
from arena_topo.engines.lines import Line, LogOptions, Notice, Source, Turn, Wanted
from arena_topo.errors import ArenaError, ClusterError, TimedOut

if TYPE_CHECKING:
    from arena_topo.engines import JobStatus
    from arena_topo.engines.kubernetes.connection import Connection
    from arena_topo.engines.kubernetes.engine import KubernetesBackend
    from arena_topo.engines.kubernetes.kubeconfig import Access

LOOK = 1.0
"""Seconds between two looks at the pods; more where a look takes long."""

PATIENCE = 60.0
"""Seconds that an API server may be away, as for whoever waits for a job."""

OPENERS = 8
"""Requests that are made at once: enough for hundreds of pods in a second, no burden to a server"""

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
_AT_ONCE = 2 << 20
"""Bytes that one `read` takes from all streams together."""
_BODY = 65_536
"""Bytes of a refusal that are read."""
_ERRORS = 300
_SPARE = 64
"""File descriptors for all but streams."""
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
        self._api = api
        self._path = path
        self._pods = pods
        self._options = options
        self._wanted = wanted
        self._every = every
        self._readings: dict[str, list[Reading]] = {}
        self._unwanted: set[tuple[str, str]] = set()
        self._out: list[Line | Notice] = []
        self._refusals: list[Notice] = []
        self._error: BaseException | None = None
        self._heard = False
        """Whether any log could be read at all."""
        self._looked = self._settled = 0.0
        """When the last look began; when the last log came to its end."""
        self._answered = time.monotonic()
        self._clock: tuple[float, float] | None = None
        """The server's time, and what `time.monotonic` was then or before."""
        self._errands = Errands(OPENERS)
        self._kick = threading.Event()
        self._due: deque[Reading] = deque()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._errands.bell, selectors.EVENT_READ, None)
        self._room: tuple[int, int] | None = None
        """How many files this process could open before, and can since there are many streams."""
        self._begun = False
        self._left = self._away = 0.0
        """When `read` has returned, and the seconds spent elsewhere between its calls."""

    @property
    def done(self) -> bool:
        """Whether every pod there was last seen is over and all was read; more may come.

        That they were last seen is after the last of them was read.
        """
        idle = not (self._errands.pending or self._out or self._refusals or self._error)
        fresh = not self._options.follow or self._looked >= self._settled
        return bool(self._looked) and fresh and idle and all(one.settled for one in self._all())

    def _all(self) -> Iterator[Reading]:
        return (one for several in self._readings.values() for one in several)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close all streams; what still opens is closed as soon as it does."""
        if self._errands.closed.is_set():
            return
        self._errands.closed.set()
        self._kick.set()
        for one in self._all():
            self._hang_up(one)
            one.state = State.SETTLED
        self._selector.close()
        self._errands.close()
        self._give_room_back()

    # What other threads do.

    def _look(self) -> None:
        closed = self._errands.closed
        while not closed.is_set():
            self._kick.clear()
            began = time.monotonic()
            news: Callable[[], None]
            try:
                news = partial(self._seen, began, self._pods())
            except Exception as error:  # noqa: BLE001  told by `read`
                news = partial(self._astray, error)
            self._errands.post(news)
            if not self._options.follow:
                return
            spent = time.monotonic() - began
            closed.wait(min(_GAP, self._every))
            self._kick.wait(max(self._every, 10 * spent))

    def _request(self, one: Reading, query: dict[str, str], renew: Access | None = None) -> None:
        """Send the request for a log, in another thread."""

        def work() -> None:
            news: Callable[[], None]
            try:
                if renew is not None:
                    self._api.renewed(renew)
                sock, used = self._api.opened(f"{one.path}/log", query)
                news = partial(self._sent, one, streaming.plain(sock), used)
            except Exception as error:  # noqa: BLE001  told by `read`
                news = partial(self._unsent, one, error)
            self._errands.post(news)

        self._errands.run(work)

    # What the reading thread does.

    def read(self, wait: float) -> Sequence[Line | Notice]:
        """What has come: at once if there is any, else within `wait` seconds; maybe nothing."""
        if not self._begun:
            self._begun = True
            threading.Thread(target=self._look, daemon=True).start()
        began = time.monotonic()
        self._away += began - (self._left or began)
        until = began + wait
        while True:
            self._errands.heed()
            now = time.monotonic()
            next_one = self._tick(now)
            self._tell_refusals()
            if self._error is not None and not self._out:
                error, self._error = self._error, None
                raise error
            rest = 0.0 if self._out or self._due else max(0.0, min(until, next_one) - now)
            self._receive(rest)
            if self._out or time.monotonic() >= until:
                self._errands.heed()
                found, self._out = self._out, []
                self._left = time.monotonic()
                return found

    def _listened(self) -> float:
        """The time, but for what whoever reads has spent elsewhere: that is no log's silence."""
        return time.monotonic() - self._away

    def _receive(self, wait: float) -> None:
        """Take what sockets have, up to a limit; the others are the first the next time."""
        for key, _ in self._selector.select(wait):
            # The bell is heeded before anything else the next time.
            if key.data is not None and key.data not in self._due:
                self._due.append(key.data)
        taken = 0
        while self._due and taken < _AT_ONCE:
            one = self._due.popleft()
            if one.sock is not None:
                taken += self._take(one, one.sock)

    def _take(self, one: Reading, sock: socket.socket) -> int:
        taken = 0
        try:
            for data in streaming.received(sock):
                taken += len(data)
                one.heard = self._listened()
                if data:
                    self._fed(one, one.answer.feed(data))
                else:
                    one.answer.close()
                if one.answer.over:
                    self._answer_over(one)
                if one.sock is not sock:
                    break
        except streaming.Foreign as error:
            self._settle(one, Turn.REFUSED, self._api.no_server(str(error)))
        except (OSError, streaming.Broken) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            message = f"the connection to {self._api.access.server} broke"
            self._break(one, ClusterError(message, why=why))
        return taken

    def _fed(self, one: Reading, body: bytes) -> None:
        status = one.answer.status
        if status is None:
            return
        if status >= _ERRORS:
            one.body = (one.body + body)[:_BODY]
            return
        if one.lines is None:
            cut = not one.whole and self._options.tail is not None
            one.lines = streaming.Lines(one.place, one.source, cut=cut)
            one.begun = one.begun or self._date(one.answer.headers.get("date", ""))
            one.renewed = False
            self._resume(one)
            self._join(one)
        if body:
            self._say(one, one.lines.feed(body))

    def _say(self, one: Reading, lines: list[Line]) -> None:
        if lines:
            one.delay, one.tries = 0.0, 0
            one.came = time.monotonic()
            self._out += lines

    @staticmethod
    def _date(said: str) -> str:
        try:
            return parsedate_to_datetime(said).strftime("%Y-%m-%dT%H:%M:%SZ")
        except (ValueError, TypeError, OverflowError):
            return ""

    def _resume(self, one: Reading) -> None:
        """It can be read, again maybe."""
        if one.broken and one.joined:
            self._tell(Turn.RESUMED, one)
        one.broken, one.trouble = False, None

    def _join(self, one: Reading) -> None:
        self._heard = True
        if not one.joined:
            one.joined = True
            self._tell(Turn.JOINED, one)

    def _tell(self, turn: Turn, one: Reading, error: ArenaError | None = None) -> None:
        self._out.append(Notice(turn=turn, source=one.source, error=error))

    def _answer_over(self, one: Reading) -> None:
        answer, lines = one.answer, one.lines
        self._hang_up(one)
        if (answer.status or 0) >= _ERRORS:
            self._refuse(one, answer)
        elif self._finite or one.last:
            if lines is not None:
                self._say(one, lines.finish())
            self._run_over(one)
        else:
            self._ask(one)

    @property
    def _finite(self) -> bool:
        return not self._options.follow or self._options.previous

    def _ask(self, one: Reading) -> None:
        """Let the next look say why a stream has ended."""
        one.state, one.when = State.ENDED, time.monotonic()
        self._kick.set()

    def _hang_up(self, one: Reading) -> None:
        if one.sock is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(one.sock)
            with contextlib.suppress(OSError):
                one.sock.close()
        one.sock, one.lines = None, None

    # The state of one log.

    def _settle(self, one: Reading, turn: Turn | None, error: ArenaError | None = None) -> None:
        self._hang_up(one)
        one.state, self._settled = State.SETTLED, time.monotonic()
        self._kick.set()
        if turn is Turn.REFUSED:
            one.refused = True
            self._refusals.append(Notice(turn=turn, source=one.source, error=error))
        elif turn is not None and not one.superseded and self._concerns(turn, one):
            self._tell(turn, one, error)
        for other in self._readings.get(one.source.uid, ()):
            if other.after is one:
                other.after = None
                self._proceed(other)

    @staticmethod
    def _concerns(turn: Turn, one: Reading) -> bool:
        """Whether an end is told: there was a log, or it is known now that there will be none."""
        return one.joined or (turn is Turn.ENDED and one.sight.final)

    def _tell_refusals(self) -> None:
        """Hand on what was refused; where that is all there is, it is an error."""
        if not self._refusals:
            return
        if not self._heard:
            flying = {State.OPENING, State.OPEN, State.PAUSED, State.ENDED}
            if any(one.state in flying for one in self._all()):
                return
            error = self._refusals[0].error
            passes = error is not None and podlog.passes(error)
            if all(one.refused for one in self._all()) and (self._finite or not passes):
                self._error = self._error or error
                self._refusals = []
                return
        self._out += self._refusals
        self._refusals = []

    def _proceed(self, one: Reading) -> None:
        """Open what is to be read next, as far as it is known what that is."""
        sight = one.sight
        if one.after is not None or one.settled:
            return
        if one.missing:
            self._lost(one)
        elif self._options.previous:
            self._open(one, previous=True, last=True)
        elif not sight.readable:
            one.state = State.WAITING
            if sight.final or not self._options.follow:
                self._settle(one, Turn.ENDED)
        elif one.run_read:
            self._run_over(one)
        elif not one.joined and not one.place.stamp and not one.previous:
            one.source = replace(one.source, run=sight.run)
            self._open(one, previous=False, last=sight.over)
        elif one.source.run == sight.run:
            self._open(one, previous=False, last=sight.over)
        elif one.source.run == sight.run - 1:
            self._open(one, previous=True, last=True)
        else:
            self._run_over(one)

    def _run_over(self, one: Reading) -> None:
        """Go on after the end of a run's log."""
        sight = one.sight
        one.run_read = True
        if self._finite:
            self._settle(one, Turn.ENDED if sight.final else None)
        elif sight.run > one.source.run:
            # Of several runs that came and went only the last one before this is kept.
            run = max(one.source.run + 1, sight.run - 1)
            one.source = replace(one.source, run=run)
            begun = sight.begun if run == sight.run else sight.begun_before
            if one.ahead is not None:
                one.place = one.ahead
            elif one.place.at // _NANO < begun:
                one.place = streaming.Place()
            one.ahead = None
            one.run_read, one.whole, one.begun = False, True, ""
            self._tell(Turn.RESTARTED, one)
            self._open(one, previous=run < sight.run, last=run < sight.run or sight.over)
        elif sight.final:
            self._settle(one, Turn.ENDED)
        else:
            one.state = State.WAITING

    def _open(self, one: Reading, *, previous: bool, last: bool) -> None:
        if last and not one.last:
            one.tries, one.delay = 0, 0.0
        one.state, one.previous, one.last = State.OPENING, previous, last
        one.answer, one.body, one.overdue = streaming.Answer(), b"", 0.0
        one.anchor = replace(one.place)
        self._request(one, self._query(one))

    def _query(self, one: Reading) -> dict[str, str]:
        options = self._options
        query = {"container": one.source.container, "timestamps": "true"}
        if one.previous:
            query["previous"] = "true"
        elif options.follow and not one.last:
            query["follow"] = "true"
        if one.place.stamp:
            since = None if self._is_ahead(one) else one.place.since
            query |= {} if since is None else {"sinceTime": since}
        elif not one.whole:
            if options.tail is not None and one.begun:
                query["sinceTime"] = one.begun
            else:
                query |= podlog.cut(options)
        return query

    def _is_ahead(self, one: Reading) -> bool:
        """Whether the last line came before its time: its clock is ahead, or was.

        What was written since may have times before it, so all of the log is read again.
        """
        if self._clock is None:
            return False
        said, then = self._clock
        # The server tells whole seconds.
        return one.place.at // _NANO > said + 1 + one.came - then

    def _sent(self, one: Reading, sock: socket.socket, used: Access) -> None:
        if self._errands.closed.is_set() or one.settled:
            sock.close()
            return
        sock.setblocking(False)
        one.sock, one.used, one.state = sock, used, State.OPEN
        one.sent = one.heard = self._listened()
        self._selector.register(sock, selectors.EVENT_READ, one)

    def _unsent(self, one: Reading, error: Exception) -> None:
        if self._errands.closed.is_set() or one.settled:
            return
        if not isinstance(error, ClusterError | TimedOut):
            self._error = error
        elif error.why == os.strerror(errno.EMFILE):
            self._error = podlog.too_many(sum(1 for _ in self._all()))
        elif isinstance(error, TimedOut) and self._api.left <= 0:
            self._error = error
        else:
            self._break(one, error)

    def _break(self, one: Reading, error: ArenaError) -> None:
        """Take a stream up again after a while."""
        self._hang_up(one)
        one.trouble = error
        if one.missing:
            self._lost(one)
            return
        one.tries += 1
        ends = self._finite or one.last
        if one.tries > _TRIES and ends:
            self._settle(one, Turn.REFUSED, error)
            return
        if not one.broken and (one.joined or (one.tries >= _TOLD and not ends)):
            self._tell(Turn.BROKEN, one, error)
            one.broken = True
        self._pause(one)

    def _lost(self, one: Reading) -> None:
        """The pod is deleted: nothing more can be read."""
        never = one.trouble is not None and not one.joined
        self._settle(one, Turn.REFUSED if never else Turn.GONE, one.trouble)

    def _pause(self, one: Reading) -> None:
        one.delay = min(_LONGEST, max(_SHORTEST, 2 * one.delay))
        one.state, one.when = State.PAUSED, time.monotonic() + one.delay

    def _refuse(self, one: Reading, answer: streaming.Answer) -> None:
        """Act on an answer that is no log."""
        status = answer.status or 0
        error = refusal("GET", f"{one.path}/log", status, answer.reason, one.body)
        if status == UNKNOWN_CALLER:
            self._log_in(one, error)
        elif podlog.too_early(error):
            # A kubelet may be behind what the API server says of it.
            if self._finite or (one.last and one.tries >= _TRIES):
                self._settle(one, Turn.ENDED)
            else:
                one.tries += 1
                self._pause(one)
        elif podlog.no_previous(error) and not self._options.previous:
            self._run_over(one)
        elif status == ABSENT and not self._finite:
            one.trouble = None
            self._ask(one)
        elif podlog.passes(error):
            self._break(one, error)
        else:
            told = podlog.never_before(one.source) if podlog.no_previous(error) else error
            self._settle(one, Turn.REFUSED, told)

    def _log_in(self, one: Reading, error: ArenaError) -> None:
        """Ask once more as who is known anew, once."""
        used, again = one.used, one.renewed
        one.renewed = True
        if used is None or again or not (used.plugin or used.rotates):
            self._error = error
            self._settle(one, None)
            return
        one.state, one.answer, one.body = State.OPENING, streaming.Answer(), b""
        self._request(one, self._query(one), renew=used)

    def _tick(self, now: float) -> float:
        """Do what is due; when the next thing will be."""
        next_one = now + 3600.0
        for one in list(self._all()):
            if one.state is State.PAUSED:
                if one.when <= now:
                    self._proceed(one)
                else:
                    next_one = min(next_one, one.when)
            elif one.state is State.OPEN:
                next_one = min(next_one, self._watch(one, now - self._away) + self._away)
        return next_one

    def _watch(self, one: Reading, now: float) -> float:
        """See whether a stream is still what it was opened for; when to do so again.

        Both times are such as `_listened` tells.
        """
        due = [now + 3600.0]
        if self._finite or one.last:
            longest = min(_ANSWER, self._api.silence)
            if now - one.heard >= longest:
                self._settle(one, Turn.REFUSED, podlog.silent(one.source, longest))
                return due[0]
            return one.heard + longest
        if one.answer.status is None and not (one.joined and one.trouble is None):
            taken = one.sent + (_QUIET if one.trouble is None else _SILENCE)
            if now >= taken:
                self._resume(one)
                self._join(one)
            else:
                due.append(taken)
        if one.missing or one.sight.over:
            if now - one.heard > _SILENCE:
                self._hang_up(one)
                self._ask(one)
                if one.missing:
                    # A kubelet ends even an empty answer with its container.
                    if one.answer.status is None:
                        one.trouble = one.trouble or podlog.silent(one.source, _SILENCE)
                    self._lost(one)
                return min(due)
            due.append(one.heard + _SILENCE + 0.01)
        elif one.sight.run > one.source.run:
            one.overdue = one.overdue or now + _OVERDUE
            if now >= one.overdue:
                self._mistaken(one)
            else:
                due.append(one.overdue)
        return min(due)

    def _mistaken(self, one: Reading) -> None:
        """Go back for the rest of a run: the container was new already when its log was asked for.

        A stream of the run before would have ended. What it brought is of the next one.
        """
        self._hang_up(one)
        if one.place != one.anchor and one.place.at // _NANO >= one.sight.begun:
            one.place, one.ahead = one.anchor, one.place
        self._proceed(one)

    # What a look tells.

    def _astray(self, error: Exception) -> None:
        passes = isinstance(error, ClusterError | TimedOut) and podlog.passes(error)
        late = time.monotonic() - self._answered > PATIENCE or self._api.left <= 0
        if late or not passes or not (self._looked and self._options.follow):
            self._error = error

    def _seen(self, began: float, pods: list[Object]) -> None:
        """Take note of the pods that there are."""
        if self._errands.closed.is_set():
            return
        first, self._looked = not self._looked, began
        self._answered = time.monotonic()
        if self._api.server_time is not None:
            self._clock = self._api.server_time, began
        there = set()
        for pod in pods:
            there.add(pod["metadata"]["uid"])
            self._see(pod, first=first)
        self._make_room()
        for uid, several in self._readings.items():
            for one in several:
                one.missing = one.missing or uid not in there
                if one.state is State.WAITING:
                    self._proceed(one)
                elif one.state is State.ENDED and began >= one.when:
                    if one.missing or one.sight.run != one.source.run or one.sight.over:
                        self._proceed(one)
                    else:
                        # Closed early, as servers do with long requests.
                        self._pause(one)

    def _see(self, pod: Object, *, first: bool) -> None:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        several = self._readings.get(uid, [])
        for one in several:
            one.sight = podlog.sight(pod, one.source.container)
        container = self._options.container or podlog.main_container(pod)
        if container is None or (uid, container) in self._unwanted:
            return
        current = several[-1] if several else None
        if current is not None and current.source.container == container:
            return
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
            return
        whole = not (first and sight.readable)
        one = Reading(source=source, path=f"{self._path}/{name}", whole=whole, sight=sight)
        if current is not None and not current.settled:
            current.superseded = True
            one.after = current
        self._readings.setdefault(uid, []).append(one)
        if self._options.previous and not sight.run:
            self._settle(one, Turn.REFUSED, podlog.never_before(source))

    def _make_room(self) -> None:
        """Let this process open as many files as there are streams."""
        import resource  # noqa: PLC0415  only to follow logs

        needed = sum(not one.settled for one in self._all()) + _SPARE
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY or needed <= soft:
            return
        wish = 2 * needed if hard == resource.RLIM_INFINITY else min(2 * needed, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wish), hard))
            self._room = (self._room[0] if self._room else soft, max(soft, wish))

    def _give_room_back(self) -> None:
        """Let this process open as many files as before, unless others have set that since."""
        import resource  # noqa: PLC0415  only to follow logs

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if self._room is not None and soft == self._room[1]:
            resource.setrlimit(resource.RLIMIT_NOFILE, (self._room[0], hard))
