"""Lines of many logs put in the order in which they were written, as far as their times tell.

Lines of one log never change their order. Those of several are sorted by `Line.at`; while logs are
followed, one that is silent must not hold up the others for long, so a line waits at most `LAG` for
older ones of other logs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from operator import itemgetter

from arena_topo.engines.lines import Line, Source

LAG = 0.25
"""Seconds that a line waits for older ones of other logs: less than a person notices."""

PATIENCE = 3.0
"""Seconds that a log which is read to where it ends may be silent before the others go on."""

MOST_LINES = 40_000
MOST_BYTES = 32 << 20
"""What is held back at once; beyond it the oldest lines go on, whatever may still come."""

_NEVER = -1
_FIRST = itemgetter(0)


class Merge:
    """What came of many logs, to be taken in the order of its times.

    With a `lag` (seconds) no line waits longer; None waits until every log has shown that it has no
    older line, is at its end, or has been silent for `PATIENCE`. Times given to it are of any one
    clock that does not go back.
    """

    def __init__(self, *, lag: float | None = LAG) -> None:
        self._lag = lag
        self._held: list[tuple[int, Line]] = []
        """In order, but for what came since the last `take`."""
        self._sorted = True
        self._bytes = 0
        self._latest: dict[Source, int] = {}
        """The time of each open log's last line, `_NEVER` before the first."""
        self._past: dict[Source, int] = {}
        """The same of logs that have ended."""
        self._awaited: set[str] = set()
        self._arrivals: deque[tuple[float, int]] = deque()
        """When lines came, and the latest of their times."""
        self._floor = 0
        self._heard: dict[Source | str, float] = {}
        """When a log, or the pod of one that is to come, was last heard of, or waited for first."""
        self.silent: frozenset[str] = frozenset()
        """The pods whose logs are not waited for any more."""

    @property
    def held(self) -> int:
        """Lines that wait."""
        return len(self._held)

    @property
    def missing(self) -> frozenset[str]:
        """The pods that are not waited for any more, and of which nothing at all has come."""
        return self.silent & self._awaited

    def await_(self, pods: Sequence[str]) -> None:
        """Logs of these pods are to come, which may hold older lines."""
        self._awaited.update(pods)

    def join(self, source: Source) -> None:
        """A log is being read from now on."""
        self._awaited.discard(source.pod)
        self._latest.setdefault(source, _NEVER)
        self._heard.pop(source, None)

    def end(self, source: Source) -> None:
        """Nothing more comes of a log."""
        self._awaited.discard(source.pod)
        # Should more come all the same, it stays behind what came before.
        self._past[source] = self._latest.pop(source, _NEVER)

    def add(self, lines: Sequence[Line], now: float) -> None:
        """Lines that came at a time, those of each log in their order."""
        if not lines:
            return
        held, latest, floor = self._held, self._latest, self._floor
        source, last, size, highest = lines[0].source, None, 0, 0
        for line in lines:
            if last is None or line.source is not source:
                if last is not None:
                    latest[source] = last
                source = line.source
                self._awaited.discard(source.pod)
                self._heard[source] = now
                last = latest.get(source, _NEVER)
                if last == _NEVER:
                    last = self._past.get(source, _NEVER)
            at = line.at
            # A clock that was set back, or none: after what its own log said before.
            if at < last:
                at = last
            elif not at:
                at = floor
            last = at
            if at > highest:  # noqa: PLR1730  a call for each line takes longer
                highest = at
            held.append((at, line))
            size += len(line.text)
        if last is not None:
            latest[source] = last
        self._bytes += size
        self._sorted = False
        self._arrivals.append((now, highest))

    def take(self, now: float) -> list[Line]:
        """The lines that need wait no longer, in order."""
        if self._lag is None:
            self._listen(now)
        if not self._held:
            return []
        if not self._sorted:
            self._held.sort(key=_FIRST)
            self._sorted = True
        until = _NEVER
        if self._awaited <= self.silent:
            waits = [at for one, at in self._latest.items() if one.pod not in self.silent]
            until = min(waits, default=self._held[-1][0])
        while self._arrivals and self._lag is not None and now - self._arrivals[0][0] >= self._lag:
            until = max(until, self._arrivals.popleft()[1])
        return self._release(bisect_right(self._held, until, key=_FIRST))

    def _listen(self, now: float) -> None:
        """See which logs have been silent for too long."""
        known: list[Source | str] = [*self._awaited, *self._latest]
        self.silent = frozenset(
            one if isinstance(one, str) else one.pod
            for one in known
            if now - self._heard.setdefault(one, now) >= PATIENCE
        )

    def rest(self) -> list[Line]:
        """All that is left, in order."""
        self._held.sort(key=_FIRST)
        return self._release(len(self._held))

    def _release(self, cut: int) -> list[Line]:
        held = self._held
        if len(held) - cut > MOST_LINES or self._bytes > MOST_BYTES:
            cut = self._relieved(cut)
        if not cut:
            return []
        self._floor = max(self._floor, held[cut - 1][0])
        lines = [line for _at, line in held[:cut]]
        del held[:cut]
        if held:
            self._bytes -= sum([len(line.text) for line in lines])
        else:
            self._bytes = 0
            self._arrivals.clear()
        return lines

    def _relieved(self, cut: int) -> int:
        """How many of the oldest lines must go so that half of what may be held is left."""
        left = self._bytes
        for index, (_at, line) in enumerate(self._held):
            if (
                index >= cut
                and left <= MOST_BYTES // 2
                and len(self._held) - index <= MOST_LINES // 2
            ):
                return index
            left -= len(line.text)
        return len(self._held)
