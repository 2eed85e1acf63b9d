"""The log of a container of a pod, read run after run, through broken connections and restarts.

A generator (`ContainerLog.steps`) has the steps in their order. It yields what the next step waits
for, and `log_follower.Follow` resumes it, so that a single thread reads hundreds of logs.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Callable, Generator
from dataclasses import replace
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from arena_topo.engines.kubernetes import podlog
from arena_topo.engines.kubernetes.failures import odd_body, refusal_error
from arena_topo.engines.kubernetes.log_position import Lines, ReadPosition
from arena_topo.engines.kubernetes.podlog import ContainerView
from arena_topo.engines.kubernetes.response import Response
from arena_topo.engines.kubernetes.shapes import BadAnswer
from arena_topo.engines.kubernetes.transport import FAULTS
from arena_topo.engines.lines import Line, LogOptions, LogTurn, Notice, Source
from arena_topo.errors import (
    GOOD,
    REDIRECT,
    UNKNOWN_CALLER,
    ArenaError,
    ClusterError,
    NotFound,
    TimedOut,
    temporary,
)

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.connection import Connection

_SHORTEST, _LONGEST = 0.1, 5.0
"""Bounds of the back-off (seconds) before a broken stream is requested again; it doubles."""
_TRIES = 5
"""Requests in a row, without a line, for the log of a run that is over."""
_TRIES_UNNOTED = 3
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
_NANO = 1_000_000_000


class On(Enum):
    """An event that a log waits for."""

    NEWS = auto()
    """A list of the pods, or the end of another log."""
    LIST = auto()
    """A list of the pods that begins from now on."""
    CALL = auto()
    """The result of a call that may block."""
    BYTES = auto()
    """Bytes of the connection, none at its end; `Silent` is raised if they do not come in time."""
    TIME = auto()
    """The end of a pause."""


class Wait(NamedTuple):
    """What a log waits for: `call` for `CALL`; `seconds` at most for `BYTES` and `TIME`."""

    on: On
    call: Callable[[], Any] | None = None
    seconds: float = math.inf


_Result = TypeVar("_Result")

Steps = Generator[Wait, Any, _Result]
"""The steps of a log, which yield what the next step waits for, and return a result."""


class Outlived(Exception):
    """A connection was open longer than its run or its pod existed."""


class Silent(Exception):
    """Nothing has come of a connection for the seconds of the wait."""


class ContainerLog:
    """The log of a container of a pod.

    `path` is the path of the pod, `view` the state of the container. Lines and notices are
    appended to `out`. `whole`: the log is read from its beginning (no `tail`, no `since`).
    `before`: the log of an earlier container of the pod, which is read to its end first.
    """

    def __init__(
        self,
        api: Connection,
        options: LogOptions,
        path: str,
        source: Source,
        view: ContainerView,
        *,
        whole: bool,
        before: ContainerLog | None,
        out: list[Line | Notice],
    ) -> None:
        self.source, self.view = source, view
        self.missing = self.settled = self.superseded = False
        """Whether the pod is deleted; whether no more of the log will be read; whether the log of a
        later container follows."""
        self.connection: Any = None
        """The open socket."""
        self.steps = self._steps()
        self.wait, self.since = Wait(On.NEWS), 0.0
        """What the next step waits for, and since when (`time.monotonic`)."""
        self._api, self._options, self._path = api, options, path
        self._finite = not options.follow or options.previous
        """Whether the log is read to its present end."""
        self._whole, self._before, self._out = whole, before, out
        self._place, self._anchor = ReadPosition(), ReadPosition()
        """How far it was read; the same when the stream was opened."""
        self._ahead: ReadPosition | None = None
        """How far the next run was read already, by a stream that was opened for this run."""
        self._overdue = 0.0
        """When a stream no longer counts as this run's; 0 unless there is a newer run."""
        self._answered = self._last = False
        """Whether the head of the response has come; whether the request reads to the end."""
        self._joined = self._broken = False
        self._trouble: ArenaError | None = None
        """The last failure, until the log can be read."""
        self._begun = ""
        """The server's time of the first response, for a log without a line."""
        self._tries, self._delay = 0, 0.0

    def outlived(self, now: float, quiet: float) -> bool:
        """Whether the connection has outlived its run; called after each list of the pods.

        `quiet`: nothing has come for so many seconds. A request that stays unanswered counts as
        accepted: the head of a response may come with the first byte of the log.
        """
        if self._last:
            return False
        if not self._answered and quiet > (_QUIET if self._trouble is None else _SILENCE):
            self._take_up()
        if self.missing or self.view.over:
            return quiet > _SILENCE
        if self.view.run > self.source.run:
            self._overdue = self._overdue or now + _OVERDUE
            return now >= self._overdue
        return False

    @property
    def until(self) -> float:
        """When the wait ends though nothing has come."""
        return self.since + self.wait.seconds

    def _steps(self) -> Steps[None]:
        """Read the log until nothing more can come; ArenaError if no log can be read at all."""
        if (before := self._before) is not None:
            before.superseded = True
            while not before.settled:
                yield Wait(On.NEWS)
        while not self.settled:
            yield from self._await_log()
            yield from self._read_run()
            yield from self._await_next_run()

    # The steps of a run. Each of them may settle the log, and then the later ones do nothing.

    def _await_log(self) -> Steps[None]:
        """Wait for something to read."""
        if self._options.previous:
            if not self.view.run:
                self._settle(LogTurn.REFUSED, podlog.no_earlier_run_error(self.source))
            return
        while not (self._finite or self.missing or self.view.readable or self.view.final):
            yield Wait(On.NEWS)
        if self.missing:
            self._end_with_pod()
        elif not self.view.readable:
            self._settle(LogTurn.ENDED)
        elif not self._joined and not self._place.stamp:
            self.source = replace(self.source, run=self.view.run)

    def _read_run(self) -> Steps[None]:
        """Read the log of this run to its end."""
        while not self.settled:
            view = self.view
            behind = view.run - self.source.run
            previous = self._options.previous or behind == 1
            last = self._finite or previous or view.over
            if self.missing:
                self._end_with_pod()
                return
            if behind > 1 and not self._options.previous:
                # Kubelets store only the run before the present one.
                return
            if last and not self._last:
                self._tries, self._delay = 0, 0.0
            self._last = last
            try:
                yield from self._read(previous=previous)
            except Outlived:
                self._after_outlived()
            except ArenaError as error:
                if podlog.no_previous(error) and not self._options.previous:
                    return
                yield from self._after_error(error)
            else:
                if last:
                    return
                yield Wait(On.LIST)
                if not (self.missing or self.view.over or self.view.run > self.source.run):
                    # The server closed a long request early.
                    yield self._pause()

    def _await_next_run(self) -> Steps[None]:
        """Wait for the next run, and go on with that."""
        if self.settled:
            return
        if self._finite:
            self._settle(LogTurn.ENDED if self.view.final else None)
            return
        while not (self.missing or self.view.final or self.view.run > self.source.run):
            yield Wait(On.NEWS)
        view = self.view
        if view.run <= self.source.run:
            if view.final:
                self._settle(LogTurn.ENDED)
            else:
                self._end_with_pod()
            return
        run = max(self.source.run + 1, view.run - 1)
        self.source = replace(self.source, run=run)
        begun = view.begun if run == view.run else view.begun_before
        if self._ahead is not None:
            self._place = self._ahead
        elif self._place.at // _NANO < begun:
            self._place = ReadPosition()
        self._ahead, self._whole, self._begun, self._last = None, True, "", False
        self._notify(LogTurn.RESTARTED)

    def _after_outlived(self) -> None:
        """Go on after a connection that was silent, or was the next run's.

        If the container was restarted just before the request, the response is the log of the next
        run: its lines count for that run, and this run is read again from where it was.
        """
        if self.missing:
            # A kubelet ends even an empty response with its container.
            if not self._answered:
                self._trouble = self._trouble or podlog.silence_error(self.source, _SILENCE)
        elif self.view.run > self.source.run:
            newer = self._place != self._anchor
            if newer and self._place.at // _NANO >= self.view.begun:
                self._place, self._ahead = self._anchor, self._place

    def _after_error(self, error: ArenaError) -> Steps[None]:
        """Decide after an error whether the log is requested again, and pause before that.

        An error that all logs would have is raised.
        """
        vain = self._tries >= _TRIES
        late = isinstance(error, TimedOut) and self._api.left <= 0
        if late or _concerns_all(error):
            raise error
        if podlog.too_early(error):
            # A kubelet may lag behind the API server.
            if self._finite or (self._last and vain):
                self._settle(LogTurn.ENDED)
                return
            self._tries += 1
        elif isinstance(error, NotFound) and not self._finite:
            self._trouble = None
            yield Wait(On.LIST)
            if self.missing:
                return
        elif isinstance(error, BadAnswer) or not temporary(error):
            never = podlog.no_previous(error)
            self._settle(
                LogTurn.REFUSED, podlog.no_earlier_run_error(self.source) if never else error
            )
            return
        else:
            self._trouble = error
            if self.missing:
                return
            self._tries += 1
            if vain and self._last:
                self._settle(LogTurn.REFUSED, error)
                return
            known = self._joined or (self._tries >= _TRIES_UNNOTED and not self._last)
            if known and not self._broken:
                self._broken = True
                self._notify(LogTurn.BROKEN, error)
            if not self._finite:
                # Meanwhile another pod may have the name.
                yield self._pause()
                yield Wait(On.LIST)
                return
        yield self._pause()

    def _pause(self) -> Wait:
        self._delay = min(_LONGEST, max(_SHORTEST, 2 * self._delay))
        return Wait(On.TIME, seconds=self._delay)

    # A single request.

    def _read(self, *, previous: bool) -> Steps[None]:
        """Read the response to a request; ArenaError if it is refused or the connection breaks."""
        self._anchor, self._answered, self._overdue = replace(self._place), False, 0.0
        query = self._query(previous=previous)
        silence = min(_ANSWER, self._api.silence) if self._last else math.inf
        came = Wait(On.BYTES, seconds=silence)
        try:
            response, body = yield from self._accepted(query, came)
            lines = Lines(self._place, self.source, pieces=self._options.unfinished)
            self._pass_on(lines.feed(body))
            while not response.ended:
                self._pass_on(lines.feed(response.feed((yield came))))
            if self._last:
                self._pass_on(lines.finish())
        except Silent:
            self._settle(LogTurn.REFUSED, podlog.silence_error(self.source, silence))
        except FAULTS as error:
            why = error.strerror if isinstance(error, OSError) else None
            raise ClusterError(
                f"the connection to {self._api.access.server} broke",
                why=why or "the answer is no HTTP, or ended too early",
            ) from error
        finally:
            self.hang_up()

    def _accepted(self, query: dict[str, str], came: Wait) -> Steps[tuple[Response, bytes]]:
        """A response of success and the beginning of its body; ArenaError if there is none."""
        path = f"{self._path}/log"
        for again in (False, True):
            used = self._api.access
            call = partial(self._api.asked, path, query, None)
            self.connection = yield Wait(On.CALL, call=call)
            response, body = Response(), b""
            while not response.status:
                body = response.feed((yield came))
            if GOOD <= response.status < REDIRECT:
                break
            # The status is known, whatever becomes of the message.
            with contextlib.suppress(*FAULTS):
                while not response.ended and len(body) < _BODY:
                    body += response.feed((yield came))
            error = refusal_error("GET", path, response.status, response.reason, body)
            if again or response.status != UNKNOWN_CALLER:
                raise error
            self.hang_up()
            if not (yield Wait(On.CALL, call=partial(self._api.renewed, used))):
                raise error
        if (why := odd_body(response.headers, log=True)) is not None:
            raise self._api.no_server(why)
        self._answered = True
        self._begun = self._begun or _date(response.headers.get("date", ""))
        self._take_up()
        return response, body

    def hang_up(self) -> None:
        """Close the connection."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def _pass_on(self, lines: list[Line]) -> None:
        if lines:
            self._delay, self._tries = 0.0, 0
            self._out += lines

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
        if self._whole:
            return query
        if options.tail is not None and self._begun:
            # `tail` does not apply to lines since the first response.
            return query | {"sinceTime": self._begun}
        return query | podlog.since_parameters(options)

    # Notices.

    def _take_up(self) -> None:
        """The log can be read, or can be read again."""
        if self._broken and self._joined:
            self._notify(LogTurn.RESUMED)
        self._broken, self._trouble = False, None
        if not self._joined:
            self._joined = True
            self._notify(LogTurn.JOINED)

    def _notify(self, turn: LogTurn, error: ArenaError | None = None) -> None:
        self._out.append(Notice(turn=turn, source=self.source, error=error))

    def _end_with_pod(self) -> None:
        """The pod is deleted."""
        never = self._trouble is not None and not self._joined
        self._settle(LogTurn.REFUSED if never else LogTurn.GONE, self._trouble)

    def _settle(self, turn: LogTurn | None, error: ArenaError | None = None) -> None:
        """End the log, with a notice if it was open, or is known never to be."""
        ends = self._joined or (turn is LogTurn.ENDED and self.view.final)
        if turn is LogTurn.REFUSED or (turn is not None and ends and not self.superseded):
            self._notify(turn, error)
        self.settled = True


def _concerns_all(error: ArenaError) -> bool:
    """Whether all logs would have this error: no file left, no credentials, no server."""
    if isinstance(error, ClusterError):
        return error.status == UNKNOWN_CALLER or error.why == os.strerror(errno.EMFILE)
    return not isinstance(error, TimedOut | NotFound)


def _date(text: str) -> str:
    """A Date header as RFC 3339; empty if invalid."""
    try:
        return parsedate_to_datetime(text).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, TypeError, OverflowError):
        return ""
