"""Lines of many logs in the order of their times, with equal lines of several speakers folded.

A merge with bounded delay: the oldest first line of all speakers goes next, once every open log has
brought a newer line, or the line has waited long enough. With folding, the equal first lines of all
other speakers go with it. Lines of one speaker never change their order, so lines that alternate in
different orders may stay apart.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

from arena_topo.engines.lines import Source
from arena_topo.joblogs.ranks import Entry, Speaker

REORDER_SECONDS = 0.25
"""Seconds that a line waits for older lines of other logs: less than a person notices."""

HELD_SECONDS = 0.2
"""Seconds more for equal lines of other speakers: most come within a tenth of that."""

BACKLOG_SECONDS = 3.0
"""Seconds that a line waits where logs are read to their present end: a log that is silent for
longer does not delay the others."""

FOLD_NANOSECONDS = 1_000_000_000
"""Nanoseconds between two equal lines that are folded: ranks that do the same do it about as fast.
"""

MOST_LINES = 40_000
MAX_WAITING_BYTES = 32 << 20
"""Bounds of the lines that wait; beyond them the oldest lines go at once."""


class Window:
    """The lines of many logs that wait; times (`now`) are of any monotonic clock.

    With `whole` the logs are read to their present end, else followed. Without `fold` equal lines
    stay apart.
    """

    def __init__(self, *, whole: bool = False, fold: bool = True) -> None:
        self._whole, self._fold = whole, fold
        self._lag = BACKLOG_SECONDS if whole else REORDER_SECONDS + (HELD_SECONDS if fold else 0.0)
        self._queues: dict[Speaker, deque[tuple[int, int, Entry]]] = {}
        """The lines of each speaker that wait: time, serial number, line."""
        self._heads: list[tuple[int, int, Speaker]] = []
        """A heap of each speaker's first line; items of lines that have gone are skipped."""
        self._speakers_by_first_line: dict[bytes, set[Speaker]] = {}
        """The speakers whose first line has a text."""
        self._speaking: set[Speaker] = set()
        self._arrivals: deque[tuple[float, int]] = deque()
        """When lines arrived, and the latest of their times."""
        self._latest: dict[Source, int] = {}
        """The time of each log's last line, -1 before the first."""
        self._open: set[Source] = set()
        self._awaited: set[str] = set()
        """Pods whose logs are not open yet."""
        self._serial = self._bytes = self.size = 0
        """`size`: the number of lines that wait."""
        self._waited = self._gone = -1
        """The time up to which lines have waited long enough, and of the last line that went."""

    def expect(self, pods: Sequence[str]) -> None:
        """The logs of these pods will be opened, and may have older lines."""
        self._awaited.update(pods)

    def open_log(self, source: Source) -> None:
        """A log is open now, and no other run of its pod."""
        for other in [
            other for other in self._open if (other.pod, other.uid) == (source.pod, source.uid)
        ]:
            self.end_log(other)
        self._awaited.discard(source.pod)
        self._latest.setdefault(source, -1)
        self._open.add(source)

    def end_log(self, source: Source) -> None:
        """A log has come to its end."""
        self._awaited.discard(source.pod)
        self._open.discard(source)
        self._speaking = {speaker for speaker in self._speaking if speaker.source != source}

    def put(self, entries: Sequence[Entry], now: float) -> list[Entry]:
        """Add lines, those of each log in their order; the lines that need not wait any longer."""
        queues, source, last, highest = self._queues, None, -1, -1
        for entry in entries:
            line, speaker = entry.line, entry.speakers[0]
            if line.source is not source:
                source = line.source
                self._awaited.discard(source.pod)
                last = self._latest.get(source, -1)
            # After the line before it, even if the clock was set back; a line may have no time.
            last = max(last, line.at or self._gone)
            self._latest[source] = last
            highest = max(highest, last)
            self._serial += 1
            self._bytes += len(entry.text)
            queue = queues.get(speaker)
            if queue is None:
                queue = queues[speaker] = deque()
            queue.append((last, self._serial, entry))
            if len(queue) == 1:
                self._note_first_line(speaker)
        if entries:
            self.size += len(entries)
            self._speaking.update([entry.speakers[0] for entry in entries])
            self._arrivals.append((now, highest))
        return self._take(now)

    def remaining(self) -> list[Entry]:
        """All lines that wait."""
        return [self._pop_first() for _ in iter(lambda: self.size, 0)]

    def _note_first_line(self, speaker: Speaker) -> None:
        """Take note of a speaker's first line."""
        at, serial, entry = self._queues[speaker][0]
        heapq.heappush(self._heads, (at, serial, speaker))
        if self._fold:
            self._speakers_by_first_line.setdefault(entry.text, set()).add(speaker)

    def _take(self, now: float) -> list[Entry]:
        while self._arrivals and now - self._arrivals[0][0] >= self._lag:
            self._waited = max(self._waited, self._arrivals.popleft()[1])
        newest = max(self._latest.values(), default=-1)
        complete = min([self._latest[source] for source in self._open], default=newest)
        complete = -1 if self._awaited else complete
        ready: list[Entry] = []
        while self.size and (
            self._is_due(complete) or self.size > MOST_LINES or self._bytes > MAX_WAITING_BYTES
        ):
            ready.append(self._pop_first())
        return ready

    def _is_due(self, complete: int) -> bool:
        """Whether the first line may go: no older one can come, and none to fold it with."""
        at, speaker = self._first()
        if at <= self._waited:
            return True
        if at > complete:
            return False
        if not self._fold or complete - at > FOLD_NANOSECONDS:
            return True
        # Of logs that are read at once a speaker's next equal lines come right behind.
        text = self._queues[speaker][0][2].text
        return not self._whole and len(self._speakers_by_first_line[text]) >= len(self._speaking)

    def _first(self) -> tuple[int, Speaker]:
        """The time and the speaker of the oldest line."""
        while True:
            at, serial, speaker = self._heads[0]
            queue = self._queues[speaker]
            if queue and queue[0][1] == serial:
                return at, speaker
            heapq.heappop(self._heads)

    def _pop_first(self) -> Entry:
        """The oldest line, folded with the equal first lines of other speakers."""
        self._gone, first = self._first()
        entry = self._queues[first][0][2]
        counts: dict[Speaker, int] = {}
        speaking_alike = self._speakers_by_first_line.pop(entry.text) if self._fold else {first}
        for speaker in speaking_alike:
            queue, count = self._queues[speaker], 0
            while (
                queue
                and queue[0][2].text == entry.text
                and queue[0][0] - self._gone <= FOLD_NANOSECONDS
            ):
                queue.popleft()
                count += 1
                if not self._fold:
                    break
            if count:
                counts[speaker] = count
            if queue:
                self._note_first_line(speaker)
        total = sum(counts.values())
        self.size -= total
        self._bytes -= total * len(entry.text)
        if total == 1:
            return entry
        speakers = tuple(sorted(counts, key=_speaker_order))
        times = tuple(counts[speaker] for speaker in speakers)
        return entry._replace(
            speakers=speakers, total=total, times=() if total == len(times) else times
        )


def _speaker_order(speaker: Speaker) -> tuple[int, int, str, str, int]:
    """The sort key of the speakers of a folded line: ranks, then workers by index, then pods."""
    source = speaker.source
    known = speaker.rank if speaker.rank is not None else source.worker
    return (
        0 if speaker.rank is not None else 1 + (source.worker is None),
        -1 if known is None else known,
        source.pod,
        source.container,
        source.run,
    )
