"""Logs of pods: which part of them is wanted, what a line of them is, and how many are followed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

if TYPE_CHECKING:
    from types import TracebackType

    from arena_topo.errors import ArenaError

LONGEST = 65_536
"""Bytes of a line that are held at once; a longer one comes in pieces (`Line.ends`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Which part of a log: `tail` lines (None: all), `since` seconds or `since_time` RFC 3339.

    With `previous` it is the log of the run of the container before this one. With `follow` the log
    is read until its pod ends.
    """

    follow: bool = False
    tail: int | None = None
    since: int | None = None
    since_time: str | None = None
    timestamps: bool = False
    container: str | None = None
    previous: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Whose log it is: one run of one container of one pod.

    `run` counts the restarts before it. `worker` is the worker's index, None for the launcher
    (`chief`) and for other pods.
    """

    pod: str
    uid: str = ""
    container: str = ""
    run: int = 0
    chief: bool = False
    worker: int | None = None


class Line(NamedTuple):
    """One line of a log, without its line feed; bytes as the program wrote them.

    `at` is when it was written, Unix time in nanoseconds by the clock of its node, 0 where that is
    not known; `stamp` the same as the engine says it (RFC 3339, any zone). Lines of a source come
    in their order, and each once. `ends` is False where more of the same line follows, `fed` where
    the log ends without a line feed. A tuple, since there may be 100,000 a second: it is made in a
    quarter of a frozen dataclass's time.
    """

    source: Source
    at: int
    stamp: bytes
    text: bytes
    ends: bool = True
    fed: bool = True


class Turn(StrEnum):
    """What happens to a log that is followed."""

    JOINED = "joined"
    """A container's log is being read for the first time."""
    RESTARTED = "restarted"
    """Its container runs anew: what comes is of the next run."""
    CUT = "cut"
    """Some of its oldest lines were given up before they could be read; `error` says how many."""
    BROKEN = "broken"
    """The connection is lost, or was never made, and is taken up again; `error` says why."""
    RESUMED = "resumed"
    """A log that was broken is read again."""
    ENDED = "ended"
    """The pod is over, and all of its log was read; maybe it never had one."""
    GONE = "gone"
    """The pod was deleted; what could be read was. `error` says why not all may have been."""
    REFUSED = "refused"
    """It cannot be read, now or later; the other logs can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something that happened to a log that is followed; `error` says why, where it went wrong."""

    turn: Turn
    source: Source
    error: ArenaError | None = None


class Following(Protocol):
    """The logs of many pods of one job, read at once by one thread, with bounded memory.

    Pods that come later join, and so do the next runs of containers. A stream that breaks goes on
    after its last line: none is lost, none comes twice. Whoever does not read holds the streams up.
    """

    @property
    def done(self) -> bool:
        """Whether every pod there was last seen is over and all was read; more may come."""

    def read(self, wait: float) -> Sequence[Line | Notice]:
        """What has come: at once if there is any, else within `wait` seconds; maybe nothing.

        ArenaError where nothing can be read at all: not allowed, no server.
        """

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close all streams."""


Wanted = Callable[[Source], bool]
"""Which pods' logs are wanted; asked with the run and the container that are there."""
