"""Logs of which nothing, or not all, could be read: whose they are, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from arena_topo.engines import Instance, JobStatus
from arena_topo.engines.lines import Line, Notice, Source, Turn
from arena_topo.errors import ArenaError, ClusterError, NotFound
from arena_topo.joblogs.telling import Note, named

_Pod = tuple[str, str]

AGAIN = 30.0
"""Seconds before one log's next break is told of: a connection that is cut every second is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacking:
    """A log that was asked for and could not be read to its end; `told` if people know that."""

    source: Source
    error: ArenaError
    told: bool = False


class Unread:
    """What is known of logs that cannot be read, from what happens to them (`Notice`).

    Where there are `many`, each that cannot be read is told of as soon as that is known.
    """

    def __init__(self, *, many: bool) -> None:
        self._many = many
        self.broken: dict[_Pod, Lacking] = {}
        """Those that may be read again any moment."""
        self._lost: dict[_Pod, Lacking] = {}
        self._said: dict[_Pod, float] = {}
        self._spoke: set[_Pod] = set()

    def notice(self, notice: Notice, now: float) -> bool:
        """Something happened to a log at a time (seconds); whether that is news."""
        source, error = notice.source, notice.error
        pod = source.pod, source.uid
        news = True
        if notice.turn is Turn.BROKEN:
            self.broken[pod] = Lacking(source=source, error=error or _unknown())
            said = self._said.get(pod)
            news = said is None or (pod in self._spoke and now - said >= AGAIN)
            if news:
                self._said[pod] = now
                self._spoke.discard(pod)
        elif notice.turn is not Turn.CUT:
            self.broken.pop(pod, None)
        # Where there is nothing to be read, nothing is lacking.
        if error is not None and not isinstance(error, NotFound):
            if notice.turn is Turn.REFUSED:
                self._lost[pod] = Lacking(source=source, error=error, told=self._many)
            elif notice.turn is Turn.GONE:
                self._lost[pod] = Lacking(source=source, error=error)
        return news

    def came(self, lines: Sequence[Line]) -> None:
        """Lines came: who speaks can be read, and a later break is news again."""
        if self._said:
            speaking = {(one.pod, one.uid) for one in {line.source for line in lines}}
            self._spoke |= speaking & self._said.keys()

    def lacking(self, owed: Sequence[Source] = ()) -> list[Lacking]:
        """All logs that could not be read, if this is the end; `owed` are over, and say nothing."""
        found = {**self._lost, **self.broken}
        for source in owed:
            error = ClusterError(f"nothing more came of the log of {source.pod}, which is over")
            found.setdefault((source.pod, source.uid), Lacking(source=source, error=error))
        return list(found.values())


def _unknown() -> ArenaError:
    return ClusterError("the connection is lost")


def owed(status: JobStatus, pods: Sequence[Instance], finished: set[_Pod]) -> list[Instance]:
    """The pods of these that are over, and whose logs must come to their end at once."""
    return [
        one
        for one in pods
        if status.phase.over and one.finished is not None and (one.name, one.uid) not in finished
    ]


def notes(lacking: Sequence[Lacking]) -> Iterator[Note]:
    """What is to be told at the end of logs that could not be read."""
    several: dict[str, list[Lacking]] = {}
    for one in lacking:
        if not one.told:
            several.setdefault(_why(one.error), []).append(one)
    for why, some in several.items():
        pods = named(one.source.pod for one in some)
        logs = "the log" if len(some) == 1 else f"{len(some)} logs"
        yield Note(text=f"{logs} could not be read to the end ({pods}): {why}", warns=True)


def failure(lacking: Sequence[Lacking]) -> ArenaError:
    """The error of logs that could not be read; there is one at least."""
    first = lacking[0].error
    pods = [one.source.pod for one in lacking]
    if len(pods) == 1:
        text = f"the log of {pods[0]} could not be read to the end"
    else:
        text = f"{len(pods)} logs could not be read to the end: {named(pods)}"
    return ArenaError(text, why=_why(first), hint=first.hint)


def _why(error: ArenaError) -> str:
    return f"{error.message}: {error.why}" if error.why else error.message
