"""Lines of many logs in the order of their times; equal ones of several speakers as one.

Lines of one log never change their order. Those of several are sorted by `Line.at`: a line waits
until every log has said something newer, at most `LAG` while logs are followed, at most `PATIENCE`
where they are read to where they end now. Then it waits a little for equal lines of others. A line
may only move up past lines of others, to the last equal one: greedy, so that lines which take turns
may stay apart.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from operator import itemgetter

from arena_topo.engines.lines import Source
from arena_topo.joblogs.ranks import Entry, Speaker

LAG = 0.25
"""Seconds that a line waits for older ones of other logs: less than a person notices."""

PATIENCE = 3.0
"""The same where logs are read whole: a log that is silent for longer holds no other up."""

HELD = 0.2
"""Seconds that a line waits for its like: most come within a tenth of that."""

SPAN = 1_000_000_000
"""Nanoseconds between equal lines that are one: ranks that do the same do it about as fast."""

MOST_LINES = 40_000
MOST_BYTES = 32 << 20
"""What waits at once; beyond it the oldest lines go on, whatever may still come."""

_TIME = itemgetter(0)


class _Row:
    """A line that waits for its like: how often each speaker has said it."""

    __slots__ = ("at", "came", "counts", "entry")

    def __init__(self, entry: Entry, at: int, came: float) -> None:
        self.entry, self.at, self.came = entry, at, came
        self.counts: dict[Speaker, int] = {}

    def folded(self) -> Entry:
        total = sum(self.counts.values())
        if total == 1:
            return self.entry
        speakers = tuple(sorted(self.counts, key=_place))
        times = tuple(self.counts[one] for one in speakers)
        return self.entry._replace(
            speakers=speakers, total=total, times=() if total == len(times) else times
        )


class Window:
    """Entries of many logs, to be taken in order; times are of any clock that does not go back.

    With `whole` the logs are read to where they end now, else followed. Without `fold` equal lines
    stay apart.
    """

    def __init__(self, *, whole: bool = False, fold: bool = True) -> None:
        self._whole, self._fold = whole, fold
        self._lag = PATIENCE if whole else LAG
        self._held: list[tuple[int, Entry]] = []
        """What waits for older lines, in order but for what came since the last `take`."""
        self._arrivals: deque[tuple[float, int]] = deque()
        """When lines came, and the latest of their times."""
        self._latest: dict[Source, int] = {}
        """The time of each log's last line, -1 before the first."""
        self._open: set[Source] = set()
        self._awaited: set[str] = set()
        """Pods whose logs are to come."""
        self._floor = 0
        self._rows: deque[_Row] = deque()
        """What waits for its like."""
        self._shown = 0
        """Rows that have gone on before the first of these."""
        self._newest: dict[bytes, int] = {}
        """The last row of each text, counted from the very first."""
        self._reached: dict[Speaker, int] = {}
        """The last row of each speaker."""
        self._speaking: set[Speaker] = set()
        self._bytes = 0
        self._time = 0.0

    @property
    def size(self) -> int:
        """Lines that wait."""
        return len(self._held) + len(self._rows)

    def await_(self, pods: Sequence[str]) -> None:
        """Logs of these pods are to come, which may hold older lines."""
        self._awaited.update(pods)

    def join(self, source: Source) -> None:
        """A log is being read from now on, and no other run of its pod."""
        for one in [one for one in self._open if (one.pod, one.uid) == (source.pod, source.uid)]:
            self.end(one)
        self._awaited.discard(source.pod)
        self._latest.setdefault(source, -1)
        self._open.add(source)

    def end(self, source: Source) -> None:
        """Nothing more comes of a log."""
        self._awaited.discard(source.pod)
        self._open.discard(source)
        self._speaking = {one for one in self._speaking if one.source != source}

    def put(self, entries: Sequence[Entry], now: float) -> list[Entry]:
        """What need not wait any longer once these have come; those of each log in their order."""
        self._time = now
        held, latest = self._held, self._latest
        source, last, highest, size = None, 0, 0, 0
        for entry in entries:
            line = entry.line
            if line.source is not source:
                if source is not None:
                    latest[source] = last
                source = line.source
                self._awaited.discard(source.pod)
                last = latest.get(source, -1)
            # A clock that was set back, or none: after what its own log said before.
            last = max(last, line.at or self._floor)
            highest = max(highest, last)
            held.append((last, entry))
            size += len(entry.text)
        if source is not None:
            latest[source] = last
            self._arrivals.append((now, highest))
        self._bytes += size
        return self._take(now)

    def rest(self) -> list[Entry]:
        """All that is left."""
        self._held.sort(key=_TIME)
        ready = self._release(len(self._held))
        while self._rows:
            ready.append(self._show())
        return ready

    def _take(self, now: float) -> list[Entry]:
        held, arrivals = self._held, self._arrivals
        ready: list[Entry] = []
        if held:
            held.sort(key=_TIME)
            open_logs = [self._latest[one] for one in self._open]
            until = -1 if self._awaited else min(open_logs, default=held[-1][0])
            while arrivals and now - arrivals[0][0] >= self._lag:
                until = max(until, arrivals.popleft()[1])
            ready = self._release(bisect_right(held, until, key=_TIME))
        while self._rows and self._is_due(self._rows[0], now):
            ready.append(self._show())
        while (self._held or self._rows) and (self.size > MOST_LINES or self._bytes > MOST_BYTES):
            ready += [self._show()] if self._rows else self._release(1 + len(held) // 8)
        return ready

    def _release(self, count: int) -> list[Entry]:
        """Let the oldest lines wait for their like, or go on where they do not."""
        gone = self._held[:count]
        if not gone:
            return []
        del self._held[:count]
        self._floor = max(self._floor, gone[-1][0])
        if not self._fold:
            self._bytes -= sum([len(entry.text) for _, entry in gone])
            return [entry for _, entry in gone]
        rows, newest, reached = self._rows, self._newest, self._reached
        for at, entry in gone:
            text, speaker = entry.text, entry.speakers[0]
            place = newest.get(text, -1)
            row = rows[place - self._shown] if place >= self._shown else None
            if row is None or at - row.at > SPAN or reached.get(speaker, -1) > place:
                place = self._shown + len(rows)
                row = _Row(entry, at, self._time)
                rows.append(row)
                newest[text] = place
            row.counts[speaker] = row.counts.get(speaker, 0) + 1
            reached[speaker] = place
        self._speaking.update(entry.speakers[0] for _, entry in gone)
        return []

    def _is_due(self, row: _Row, now: float) -> bool:
        """Whether no equal line can come for one, or it has waited long enough."""
        if row.at and self._rows[-1].at - row.at > SPAN:
            return True
        if self._whole:
            return False
        return now - row.came >= HELD or len(row.counts) >= len(self._speaking)

    def _show(self) -> Entry:
        row = self._rows.popleft()
        if self._newest.get(row.entry.text) == self._shown:
            del self._newest[row.entry.text]
        self._shown += 1
        entry = row.folded()
        self._bytes -= len(entry.text) * entry.total
        return entry


def _place(speaker: Speaker) -> tuple[int, int, str, str, int]:
    """Where a speaker stands among those of a row: by rank, then workers by index, then pods."""
    source = speaker.source
    known = speaker.rank if speaker.rank is not None else source.worker
    return (
        0 if speaker.rank is not None else 1 + (source.worker is None),
        -1 if known is None else known,
        source.pod,
        source.container,
        source.run,
    )
