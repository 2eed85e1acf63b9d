"""From lines as they come to entries as they are shown: whose, which, in what order, how many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from arena_topo.engines.lines import Line, Notice, Source, Turn
from arena_topo.engines.tagging import Tagging
from arena_topo.joblogs.folding import HELD, Fold
from arena_topo.joblogs.merging import LAG, Merge
from arena_topo.joblogs.speakers import Entry, Only, Speaker, Voices, chosen
from arena_topo.joblogs.telling import Note, named

if TYPE_CHECKING:
    from arena_topo.joblogs.following import Asked

_OVER = frozenset({Turn.ENDED, Turn.GONE, Turn.REFUSED})

_MOST_UNDECIDED, _MOST_UNDECIDED_BYTES = 10_000, 8 << 20
"""Lines that wait until it is clear whether their log is tagged, where logs are read whole."""


class Flow:
    """Everything that happens to lines on their way to the screen, in batches.

    `slots` and `total` are the ranks of each worker and of the job, where they are known, and
    `tagging` what its command says of its tags. With `patient`, lines wait for those of other logs
    as long as it takes, and a short one is read to its end before it is said who speaks in it;
    without `merge` they are in order already. Memory is bounded in either case (`merging`,
    `folding`).
    """

    def __init__(
        self,
        asked: Asked,
        *,
        slots: int | None = None,
        total: int | None = None,
        tagging: Tagging | None = None,
        patient: bool = False,
        merge: bool = True,
    ) -> None:
        self._only, self._slots = asked.only, slots
        self._include, self._exclude = asked.include, asked.exclude
        self._filters = bool(asked.include or asked.exclude)
        self._voices = Voices(
            slots=slots,
            total=total,
            tags=asked.many or asked.tags or self._filters,
            asked=tagging,
        )
        self._patient = patient
        self._undecided: list[Line] = []
        self._undecided_bytes = 0
        self._merge = Merge(lag=None if patient else LAG) if asked.many and merge else None
        self._fold = Fold(patient=patient) if asked.many and asked.fold else None
        self._choices: dict[Speaker, bool] = {}
        self._cut: dict[Speaker, bool] = {}
        """Whether the line of which more is to come is shown."""
        self._open: set[Source] = set()
        self._nameless, self._found = 0, False
        self._passed: frozenset[str] = frozenset()

    @property
    def lag(self) -> float:
        """Seconds that a line may be held back."""
        return (LAG if self._merge else 0.0) + (HELD if self._fold else 0.0)

    @property
    def left_out(self) -> str | None:
        """Why `--only` may show less than there is, in a sentence; None where it does not."""
        ranks = sorted(self._voices.ranks)
        if self._found or self._only is None:
            return None
        if ranks:
            some = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} other ranks"
            return f"none of these has spoken: the launcher's log is tagged by {some} only"
        if not self._nameless:
            return None
        lines = f"{self._nameless} line{'s'[: self._nameless != 1]} of the launcher"
        if self._voices.asked not in {None, Tagging.NONE}:
            return f"{lines} left out: no rank stands before, though the job's command asks for it"
        return (
            f"{lines} left out: its log does not say which rank wrote what; let mpirun say it:"
            " --tag-output (Open MPI 4), --output tag (Open MPI 5), -prepend-rank (MPICH, Intel"
            " MPI)"
        )

    def tried(self, launchers: list[tuple[str, str]]) -> None:
        """The launchers in the order they were tried, names and uids; more may come to the list."""
        self._voices.tries = launchers

    def awaits(self, pods: Sequence[str]) -> None:
        """The logs of these are to come."""
        if self._merge is not None:
            self._merge.await_(pods)

    def put(self, lines: Sequence[Line], now: float) -> list[Entry]:
        """What is to be shown once these have come at a time; none may come as well."""
        self._voices.hear(lines)
        ready: Sequence[Line] = lines
        silent: frozenset[str] = frozenset()
        if self._merge is not None:
            self._merge.add(lines, now)
            ready, silent = self._merge.take(now), self._merge.silent
        if silent:
            # What is there is shown now, whatever those may still say.
            ready = [*self._decided(), *ready]
        elif self._patient and (self._undecided or self._voices.undecided):
            self._undecided += ready
            self._undecided_bytes += sum(len(one.text) for one in ready)
            few = len(self._undecided) < _MOST_UNDECIDED
            if self._voices.undecided and few and self._undecided_bytes < _MOST_UNDECIDED_BYTES:
                return []
            ready = self._decided()
        entries = self._entries(ready)
        if self._fold is None:
            return entries
        self._fold.patient = self._patient and not silent
        return self._fold.add(entries, now)

    def _decided(self) -> list[Line]:
        """The lines of which it was not clear who says them; that is settled now, or not heeded."""
        left, self._undecided, self._undecided_bytes = self._undecided, [], 0
        return left

    def passed_over(self) -> list[Note]:
        """What is to be told of logs that others do not wait for any more."""
        silent = frozenset() if self._merge is None else self._merge.missing
        pods, self._passed = sorted(silent - self._passed), self._passed | silent
        if not pods:
            return []
        logs = "the log" if len(pods) == 1 else f"{len(pods)} logs"
        return [
            Note(
                text=f"nothing comes of {logs} ({named(pods)}): the others are shown meanwhile",
                warns=True,
            )
        ]

    def rest(self, now: float) -> list[Entry]:
        """All that was held back."""
        if self._patient:
            self._voices.settle()
        left = self._decided()
        entries = self._entries([*left, *(self._merge.rest() if self._merge is not None else ())])
        if self._fold is None:
            return entries
        return [*self._fold.add(entries, now), *self._fold.rest()]

    def notice(self, notice: Notice) -> None:
        """Something happened to a log; its lines up to then were put."""
        source = notice.source
        if notice.turn in _OVER:
            self._ended(source)
        elif notice.turn in {Turn.JOINED, Turn.RESTARTED}:
            for one in [one for one in self._open if _before(one, source)]:
                self._ended(one)
            self._open.add(source)
            if self._merge is not None:
                self._merge.join(source)

    def _ended(self, source: Source) -> None:
        self._open.discard(source)
        if self._patient:
            self._voices.settle(source)
        if self._merge is not None:
            self._merge.end(source)
        if self._fold is not None:
            self._fold.forget(source)

    def _entries(self, lines: Sequence[Line]) -> list[Entry]:
        entry = self._voices.entry
        entries = [entry(line) for line in lines]
        if self._only is not None:
            only = self._only
            entries = [one for one in entries if self._wanted(only, one.speakers[0])]
        if self._filters:
            entries = [one for one in entries if self._passes(one)]
        return entries

    def _wanted(self, only: Only, speaker: Speaker) -> bool:
        known = self._choices.get(speaker)
        if known is None:
            known = self._choices[speaker] = chosen(only, speaker, self._slots)
        if speaker.source.chief:
            self._found |= known
            self._nameless += not known and not speaker.tagged
        return known

    def _passes(self, entry: Entry) -> bool:
        """Whether the filters let a line pass; of a long one the first piece decides."""
        speaker = entry.speakers[0]
        passes = self._cut.pop(speaker, None) if self._cut else None
        if passes is None:
            text = entry.text.decode("utf-8", "replace")
            passes = not self._include or any(one.search(text) for one in self._include)
            passes = passes and not any(one.search(text) for one in self._exclude)
        if not entry.line.ends:
            self._cut[speaker] = passes
        return passes


def _before(one: Source, other: Source) -> bool:
    """Whether a log is of an earlier run, or of an earlier container, of the same pod."""
    same = (one.pod, one.uid) == (other.pod, other.uid)
    return same and one != other
