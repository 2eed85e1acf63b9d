"""Polling that survives a server that does not answer for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeVar

from arena_topo.engines import JobStatus
from arena_topo.errors import ClusterError, TimedOut, temporary

if TYPE_CHECKING:
    from arena_topo.engines.backend import Backend
    from arena_topo.engines.lines import Following, LogOptions, SourceFilter

MAX_UNANSWERED = 60.0
"""Seconds without an answer of the server after which polling ends."""

_Answer = TypeVar("_Answer")


def poll_repeatedly(
    look: Callable[[], _Answer],
    *,
    every: float,
    blind: Callable[[str | None], None] = lambda _: None,
    end: float | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[_Answer]:
    """Poll: yield the result of each look, every `every` seconds, without an end.

    A server that does not answer for a while does not end the polling: `blind` is called with the
    reason, and with None as soon as the server answers again. ClusterError or TimedOut after
    `MAX_UNANSWERED` seconds, or if the deadline of the command leaves no time for another request.
    No pause lasts beyond `end` (`time.monotonic`); `pause` sleeps for some seconds.
    """
    seen, sees = time.monotonic(), True
    while True:
        try:
            answer = look()
        except (ClusterError, TimedOut) as error:
            # A caller with an end of its own raises a better error.
            over = end is None and isinstance(error, TimedOut) and error.final
            if over or not temporary(error) or time.monotonic() - seen > MAX_UNANSWERED:
                raise
            blind(error.message)
            sees = False
        else:
            if not sees:
                blind(None)
            seen, sees = time.monotonic(), True
            yield answer
        pause(every if end is None else min(every, max(0.0, end - time.monotonic())))


@dataclass(frozen=True, slots=True)
class RereadJobs:
    """The jobs of a namespace of an engine without watches; see `JobReads`."""

    backend: Backend
    namespace: str

    def job(self, name: str, *, fresh: bool = False) -> JobStatus:
        """A job as of now; NotFound if it does not exist."""
        del fresh
        return self.backend.job(name, self.namespace)

    def jobs(self) -> tuple[JobStatus, ...]:
        """All jobs as of now."""
        return self.backend.jobs(self.namespace)

    def follow(
        self, job: JobStatus, options: LogOptions, wanted: SourceFilter = lambda _: True
    ) -> Following:
        """See `Backend.follow`."""
        return self.backend.follow(job, options, wanted)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_wrong: object) -> None: ...
