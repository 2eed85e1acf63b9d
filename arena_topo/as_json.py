"""What `-o json` prints, as a dictionary, for every value that a verb returns."""

from __future__ import annotations

import importlib
import json
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self, overload

from arena_topo.drawing import tables
from arena_topo.engines import JobStatus
from arena_topo.jobs import view

if TYPE_CHECKING:
    from arena_topo.errors import JobFailed
    from arena_topo.joblogs.follow import Shown
    from arena_topo.joblogs.ranks import Entry
from arena_topo.jobs.view import seen


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of a log: who wrote it, when (RFC 3339), and its text without the tag of its rank.

    What is not known is None. `run` counts the restarts of the container. What is no UTF-8 is
    U+FFFD in `message`. Of a line that comes in pieces, being very long, all but the last are
    `partial`.
    """

    time: str | None
    job: str
    namespace: str
    pod: str
    container: str
    worker: int | None
    rank: int | None
    run: int
    message: str
    partial: bool = False


class Records:
    """Lines as `logs -o json` has them."""

    def __init__(self, *, job: str, namespace: str) -> None:
        from arena_topo.joblogs import view  # noqa: PLC0415 - only where there are lines

        self._records = view.Records(job=job, namespace=namespace)

    def lines(self, batch: Sequence[Entry]) -> Iterator[LogLine]:
        """The same lines as values."""
        for one in self._records.lines(batch).split(b"\n"):
            if one:
                yield LogLine(**json.loads(one))


class Logs(Iterator[LogLine]):
    """The lines of a log as they come; to be gone through once, and closed if left before its end.

    `close` ends it where it is not gone through to its end, and so does the end of a `with`. It may
    be closed from another thread: the loop over it then ends as at the end of the log.
    """

    def __init__(
        self, shown: Shown, *, job: str, namespace: str, done: Callable[[], None] = lambda: None
    ) -> None:
        """Nothing is asked of anybody before the first line is; `done` when there are no more."""
        self._shown = shown
        self._closed = threading.Event()
        # No method of this, whose generator would keep it from being let go of when it is left.
        self._lines = _lines(shown, Records(job=job, namespace=namespace), self._closed, done)

    def __next__(self) -> LogLine:
        return next(self._lines)

    @property
    def status(self) -> JobStatus | None:
        """The job as it was last seen; None where it was not."""
        return self._shown.status

    @property
    def failure(self) -> JobFailed | None:
        """How the job failed that was followed to its end; None as long as it did not."""
        return self._shown.failure

    def close(self) -> None:
        """Read no more of it, and give back its connections."""
        self._closed.set()
        # Where another thread waits for the next line, that does it, a moment later.
        with suppress(ValueError):
            self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_wrong: object) -> None:
        self.close()


def _lines(
    shown: Shown, records: Records, closed: threading.Event, done: Callable[[], None]
) -> Generator[LogLine, None, None]:
    try:
        for batch in shown:
            for line in records.lines(batch):
                if closed.is_set():
                    return
                yield line
            if closed.is_set():
                return
    finally:
        done()


_SHOWN = {
    "arena_topo.gang.comparison.Proposal": "jobs.plan_view.value",
    "arena_topo.reasons.explanation.Explanation": "reasons.view.value",
    "arena_topo.nodes.overview.Overview": "nodes.documents.nodes",
    "arena_topo.admin.checks.Report": "admin.view.report_value",
    "arena_topo.admin.inspection.Inspection": "admin.view.inspection_value",
    "arena_topo.topology.Cluster": "nodes.fabric.value",
}
"""What shows a value whose module need not be loaded for others: a module, and its function."""


@overload
def value(  # type: ignore[overload-overlap]  # what is no list is one thing
    shown: list[Any] | tuple[Any, ...], *, now: float | None = None
) -> list[dict[str, Any]]: ...


@overload
def value(shown: object, *, now: float | None = None) -> dict[str, Any]: ...


def value(shown: object, *, now: float | None = None) -> dict[str, Any] | list[dict[str, Any]]:
    """The very dictionary that `-o json` prints of a value, or a list of those of several.

    Ages are counted to `now` (Unix seconds), which is now if nobody says. TypeError for what no
    command prints.
    """
    now = time.time() if now is None else now
    if isinstance(shown, list | tuple):
        return [_value(one, now) for one in shown]
    return _value(shown, now)


def _value(shown: object, now: float) -> dict[str, Any]:
    if isinstance(shown, JobStatus):
        return view.job_value(shown, now=now)
    if isinstance(shown, LogLine):
        found = asdict(shown)
        return found if shown.partial else {key: found[key] for key in found if key != "partial"}
    kind = f"{type(shown).__module__}.{type(shown).__qualname__}"
    if kind == "arena_topo.reasons.viewing.SeenJob":
        whole: Any = shown
        return seen(whole, now=now)
    if kind == "arena_topo.topology.Machine":
        machine: Any = shown
        return tables.machine_value(machine)
    if kind not in _SHOWN:
        raise TypeError(f"no command prints a {type(shown).__name__}")
    module, _, name = _SHOWN[kind].rpartition(".")
    show = getattr(importlib.import_module(f"arena_topo.{module}"), name)
    made: dict[str, Any] = show(shown)
    return made
