"""Equal lines of several speakers shown as one, with their count.

While logs are followed a line waits up to `HELD` for equal ones of others; those that come later
make another one. So folding is done on what came together, and a line is on the screen about half a
second after it was written (`merging.LAG` and this). What a speaker says before its equal line is
shown first, so that the lines of each speaker stay in their order; if that cannot be done for all,
some are left out of the fold. A speaker that repeats itself is folded where nothing of its own
comes in between. A line that comes in pieces is not folded, nor held: before it all that waits is
shown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from arena_topo.engines.lines import Source
from arena_topo.joblogs.speakers import Entry, Speaker

WINDOW = 1.0
"""Seconds between equal lines that are one, by their own times: ranks that do the same do it about
as fast."""

HELD = 0.2
"""Seconds that a line waits for its like: most come within a tenth of that, and a person notices no
more."""

MOST = 20_000
MOST_BYTES = 8 << 20
"""Lines, and bytes of theirs, that wait at once; beyond it the oldest go on."""

_SECOND = 1_000_000_000
_DEEP = 32
"""Folds that may wait for each other; more are not worth the stack."""


class _Held:
    """A line that waits."""

    __slots__ = ("at", "came", "entry", "key", "shown", "speaker")

    def __init__(self, entry: Entry, key: bytes, speaker: Speaker, at: int, came: float) -> None:
        self.entry = entry
        self.key = key
        self.speaker = speaker
        self.at = at
        self.came = came
        self.shown = False


class Fold:
    """Folds entries of one line each; time is what the caller says, of one clock."""

    def __init__(self, *, held: float = HELD, patient: bool = False) -> None:
        """With `patient`, lines wait for others by their own times only, however long that takes.

        That is for logs that are read to where they end now: what folds is the same however their
        lines come. `patient` may be changed meanwhile.
        """
        self._held = held
        self._span = int(WINDOW * _SECOND)
        self.patient = patient
        self._order: deque[_Held] = deque()
        self._queues: dict[Speaker, deque[_Held]] = {}
        self._same: dict[bytes, _Held | list[_Held]] = {}
        """Equal lines; no list for one alone, as most are."""
        self._cut: set[Speaker] = set()
        """Of whose last line there is more to come."""
        self._newest = 0
        self._waiting = self._size = 0

    @property
    def held(self) -> int:
        """Lines that wait."""
        return self._waiting

    def forget(self, source: Source) -> None:
        """Who speaks in a log says nothing more, so nobody waits for them."""
        for one in [one for one in self._queues if one.source is source or one.source == source]:
            if not self._queues[one]:
                del self._queues[one]
        self._cut = {one for one in self._cut if one.source != source}

    def add(self, entries: Sequence[Entry], now: float) -> list[Entry]:
        """What may be shown after these came at a time."""
        out: list[Entry] = []
        order, queues, same, span = self._order, self._queues, self._same, self._span
        patient, newest = self.patient, self._newest
        until = self._until(order)
        for entry in entries:
            speaker = entry.speakers[0]
            line = entry.line
            if not line.ends or (self._cut and speaker in self._cut):
                out += self._pieced(entry, speaker)
                until = self._until(order)
                continue
            at, key = line.at, entry.text
            if at > newest:
                newest = self._newest = at
            held = _Held(entry, key, speaker, at, now)
            order.append(held)
            queue = queues.get(speaker)
            if queue is None:
                queue = queues[speaker] = deque()
            queue.append(held)
            alike = same.get(key)
            if alike is None:
                same[key] = held
            elif isinstance(alike, list):
                alike.append(held)
            else:
                same[key] = [alike, held]
            self._waiting += 1
            self._size += len(key)
            if patient and len(order) == 1:
                until = at + span
            if (patient and newest > until) or self._waiting > MOST or self._size > MOST_BYTES:
                out += self._due(now)
                until = self._until(order)
        out += self._due(now)
        return out

    def _until(self, order: Sequence[_Held]) -> int:
        """Up to what time of the newest line the oldest waits, of those that are read whole."""
        return order[0].at + self._span if order else 0

    def _pieced(self, entry: Entry, speaker: Speaker) -> list[Entry]:
        """What is shown with a piece of a line: before the first, all that waits."""
        before = [] if speaker in self._cut else self.rest()
        if entry.line.ends:
            self._cut.discard(speaker)
        else:
            self._cut.add(speaker)
        return [*before, entry]

    def rest(self) -> list[Entry]:
        """All that is left."""
        out: list[Entry] = []
        while self._order:
            held = self._order.popleft()
            if not held.shown:
                self._show(held, out, set())
        return out

    def _due(self, now: float) -> list[Entry]:
        out: list[Entry] = []
        order = self._order
        before = now - self._held
        while order:
            held = order[0]
            if held.shown:
                order.popleft()
            elif self._waits(held, before):
                break
            else:
                order.popleft()
                self._show(held, out, set())
        return out

    def _waits(self, held: _Held, before: float) -> bool:
        """Whether an equal line may still come for one, and there is room to wait for it."""
        alike = self._same[held.key]
        said = len(alike) if isinstance(alike, list) else 1
        if self._waiting > MOST or self._size > MOST_BYTES:
            return False
        if held.at and self._newest - held.at > self._span:
            return False
        return self.patient or (said < len(self._queues) and held.came > before)

    def _show(self, first: _Held, out: list[Entry], under: set[bytes]) -> None:
        """Show a line that its speaker has nothing before of, with the equal ones of others."""
        key = first.key
        alike = self._same[key]
        if not isinstance(alike, list):
            del self._same[key]
            self._queues[first.speaker].popleft()
            first.shown = True
            self._waiting -= 1
            self._size -= len(first.entry.text)
            out.append(first.entry)
            return
        under.add(key)
        joined = {first.speaker}
        latest = first.at + self._span
        for held in alike:
            near = held.at <= latest and not held.shown
            if near and held.speaker not in joined and self._reach(held, out, under):
                joined.add(held.speaker)
        under.discard(key)
        out.append(self._joined(first, joined))
        left = [one for one in alike if not one.shown]
        if left:
            self._same[key] = left
        else:
            del self._same[key]

    def _reach(self, held: _Held, out: list[Entry], under: set[bytes]) -> bool:
        """Show all that a speaker said before a line; False where that waits for others itself."""
        queue = self._queues[held.speaker]
        while queue[0] is not held:
            if queue[0].key in under or len(under) > _DEEP:
                return False
            self._show(queue[0], out, under)
        return True

    def _joined(self, first: _Held, joined: Iterable[Speaker]) -> Entry:
        latest, key = first.at + self._span, first.key
        counts: dict[Speaker, int] = {}
        for speaker in joined:
            queue = self._queues[speaker]
            count = 0
            while queue and queue[0].key == key and queue[0].at <= latest:
                queue.popleft().shown = True
                count += 1
            counts[speaker] = count
        total = sum(counts.values())
        self._waiting -= total
        self._size -= total * len(first.entry.text)
        if total == 1:
            return first.entry
        speakers = tuple(sorted(counts, key=_place))
        times = tuple(counts[one] for one in speakers)
        return first.entry._replace(
            speakers=speakers, total=total, times=() if total == len(times) else times
        )


def unfolded(entries: Sequence[Entry]) -> list[tuple[Speaker, bytes]]:
    """Whose lines a fold stands for, each as often as it was there."""
    return [
        (speaker, entry.text)
        for entry in entries
        for speaker, times in zip(
            entry.speakers, entry.times or (1,) * len(entry.speakers), strict=True
        )
        for _ in range(times)
    ]


def _place(speaker: Speaker) -> tuple[int, int, str, str, int]:
    """Where a speaker stands among those of a fold: by rank, then workers by index, then pods."""
    source = speaker.source
    known = speaker.rank if speaker.rank is not None else source.worker
    return (
        0 if speaker.rank is not None else 1 + (source.worker is None),
        -1 if known is None else known,
        source.pod,
        source.container,
        source.run,
    )
