"""Who wrote a line of a log: a pod, or a rank whose output `mpirun` forwards behind a tag.

`mpirun` forwards the output of all ranks to the launcher's log, with a tag before each line if it
was asked for:

    Open MPI 4       mpirun --tag-output                [1,3]<stdout>:text
    Open MPI 5       mpirun --output tag                [1,3]<stdout>: text
                     or with the name of the run        [prterun-host-17@1,3]<stdout>: text
                     mpirun --output rank               [3]<stdout>: text
    MPICH, Intel     mpirun -prepend-rank, -l (Hydra)   [3] text
    Slurm            srun -l                            3: text

The tags of Open MPI are unmistakable. Any program may print text like the others, so those count
as tags only if the job's command asks for them (`engines.rank_tags`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from arena_topo.engines import JobStatus, slots_of
from arena_topo.engines.lines import Line, Source
from arena_topo.engines.rank_tags import Tagging
from arena_topo.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Speaker:
    """Who wrote a line: a rank if known, else a pod.

    A single object for each, compared by identity, which makes it a fast key. `rank` is set for
    tagged lines and for workers of a single slot. `ranks` are the first and the last rank of a
    worker's pod, None for other pods. `tagged`: a rank in the launcher's log. `attempt` is the
    number of launchers that were tried before.
    """

    source: Source
    rank: int | None = None
    ranks: tuple[int, int] | None = None
    tagged: bool = False
    attempt: int = 0


class Entry(NamedTuple):
    """A line as it is shown; for folded lines the first of them.

    `text` is the line without the tag of its rank, `line.text` with it. `speakers` are in the order
    of their ranks. `total` is the number of folded lines, and `times` that of each speaker, empty
    if each wrote a single line. A named tuple is made in a quarter of a frozen dataclass's time.
    """

    line: Line
    text: bytes
    speakers: tuple[Speaker, ...]
    total: int = 1
    times: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakerSelection:
    """The choice of `--only`: the launcher's pod, and spans of ranks and workers, first to last."""

    launcher: bool = False
    ranks: tuple[tuple[int, int], ...] = ()
    workers: tuple[tuple[int, int], ...] = ()


_WORD = re.compile(r"(rank|worker):(\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*)", re.ASCII)


def parse_only(words: Sequence[str]) -> SpeakerSelection:
    """Read the words of `--only`: `launcher`, `rank:0-3,7`, `worker:2`, in any number.

    UsageError names a wrong word. `rank:3-1` is `rank:1-3`.
    """
    launcher = False
    spans: dict[str, list[tuple[int, int]]] = {"rank": [], "worker": []}
    for word in words:
        if word == "launcher":
            launcher = True
            continue
        match = _WORD.fullmatch(word)
        if match is None:
            raise UsageError(
                f"--only {word!r}: expected rank:N, worker:N or launcher",
                hint="such as rank:0-3,7 or worker:2",
            )
        for part in match[2].split(","):
            first, _, last = part.partition("-")
            start, end = sorted((int(first), int(last or first)))
            spans[match[1]].append((start, end))
    return SpeakerSelection(
        launcher=launcher, ranks=tuple(spans["rank"]), workers=tuple(spans["worker"])
    )


def may_be_selected(choice: SpeakerSelection, source: Source, slots: int | None) -> bool:
    """Whether the log of a pod may have wanted lines.

    `slots` are the ranks of each worker; if None, any worker may have wanted ranks.
    """
    if source.worker is None:
        # The launcher's log has the lines of all ranks; other pods have none.
        return source.chief and bool(choice.launcher or choice.ranks or choice.workers)
    if _is_in_spans(source.worker, choice.workers):
        return True
    if not choice.ranks:
        return False
    if slots is None:
        return True
    return _overlaps_spans(_ranks(source.worker, slots), choice.ranks)


def is_selected(choice: SpeakerSelection, speaker: Speaker, slots: int | None) -> bool:
    """Whether the lines of a speaker are wanted.

    `launcher` chooses all lines of its log; a rank chooses all lines of its worker's pod.
    """
    if speaker.tagged and speaker.rank is not None:
        if choice.launcher or _is_in_spans(speaker.rank, choice.ranks):
            return True
        return slots is not None and _is_in_spans(speaker.rank // slots, choice.workers)
    if speaker.source.worker is None:
        return choice.launcher and speaker.source.chief
    return may_be_selected(choice, speaker.source, slots)


def _ranks(worker: int, slots: int) -> tuple[int, int]:
    return worker * slots, worker * slots + slots - 1


def _is_in_spans(number: int, spans: Sequence[tuple[int, int]]) -> bool:
    return any(first <= number <= last for first, last in spans)


def _overlaps_spans(span: tuple[int, int], spans: Sequence[tuple[int, int]]) -> bool:
    return any(first <= span[1] and span[0] <= last for first, last in spans)


def rank_counts(status: JobStatus) -> tuple[int | None, int | None]:
    """The ranks of each worker, and of the job; None if that is not known yet."""
    if status.forecast is not None and status.forecast.workers:
        slots = slots_of(status.forecast, status)
        return slots, slots * len(status.forecast.workers)
    indexes = [instance.worker for instance in status.instances if instance.worker is not None]
    if not indexes:
        return None, None
    # Workers are numbered from 0; missing workers count as well.
    workers = max(indexes) + 1
    if status.request_gpus % workers:
        return None, None
    slots = max(1, status.request_gpus // workers)
    return slots, slots * workers


_DATE = rb"[A-Z][a-z]{2} [A-Z][a-z]{2} [ 0-3][0-9] [0-9]{2}:[0-9]{2}:[0-9]{2} [0-9]{4}"

_OPEN_MPI = re.compile(
    rb"(?:" + _DATE + rb"|\[" + _DATE + rb"\])?"
    rb"\[(?:(?:[^]\s,@]{1,200}@)?([0-9]{1,9}),)?([0-9]{1,9})\](?:\[[^]\s]{1,200}\])?"
    rb"<std(?:out|err|diag)>:"
)
"""Tags of Open MPI, maybe with the time: the job's number, and the rank.

Open MPI 4: orte/mca/iof/base/iof_base_output.c. From version 5 on PMIx writes them, also with the
name of the run, or the host and the process, or only the rank: openpmix src/common/pmix_iof.c.
"""

_MARK, _WITHIN = b"]<std", 640
"""A part of every tag of Open MPI, and the most bytes of a tag."""

_FIRST = (b"1", None)
"""The number of the job that mpirun started; spawned jobs have ranks of their own."""

_ASKED = {
    Tagging.HYDRA: re.compile(rb"\[([0-9]{1,7})\](?: |$)"),
    Tagging.SLURM: re.compile(rb" {0,6}([0-9]{1,7}):(?: |$)"),
}
"""Tags that are text of the program unless the command asks for them."""


class _LineSource:
    """The log of a pod, and the ranks in it."""

    __slots__ = ("pod", "ranks", "tagged", "tight")

    def __init__(self, pod: Speaker, *, tagged: bool) -> None:
        self.pod = pod
        self.tagged = tagged
        self.ranks: dict[int, Speaker] = {}
        self.tight = False
        """Whether a space after the tag belongs to the text: PMIx adds one, Open MPI 4 does not."""


class LineAttributor:
    """Attributes lines to pods and ranks.

    `slots` are the ranks of each worker, `total` those of the job; None if unknown. `tagging` is
    the kind of tags that the job's command asks for. Without `tags` no tag is read. `tries` are the
    names and uids of the launchers in the order of their tries; the list may grow.
    """

    def __init__(
        self,
        *,
        slots: int | None = None,
        total: int | None = None,
        tags: bool = True,
        tagging: Tagging | None = None,
    ) -> None:
        self.slots = slots
        self._total = total
        self._tags = tags
        self._style = None if tagging is None else _ASKED.get(tagging)
        self.tries: list[tuple[str, str]] = []
        self._sources: dict[Source, _LineSource] = {}
        self._last: tuple[Source | None, _LineSource | None] = (None, None)

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks in the logs of launchers so far."""
        return frozenset(rank for source in self._sources.values() for rank in source.ranks)

    def entry(self, line: Line) -> Entry:
        """A line with its speaker; to be called for the lines of each log in their order."""
        source, known = self._last
        if known is None or source is not line.source:
            # Hashing a source is slow, and lines of a log come in batches.
            known = self._sources.get(line.source) or self._source_of(line.source)
            self._last = line.source, known
        if not known.tagged:
            return Entry(line, line.text, (known.pod,))
        rank, text = self._read(line.text, known)
        if rank is None:
            return Entry(line, text, (known.pod,))
        speaker = known.ranks.get(rank)
        if speaker is None:
            attempt = known.pod.attempt
            speaker = Speaker(source=line.source, rank=rank, tagged=True, attempt=attempt)
            known.ranks[rank] = speaker
        return Entry(line, text, (speaker,))

    def _read(self, text: bytes, known: _LineSource) -> tuple[int | None, bytes]:
        """The rank that a line is tagged with, None without a tag, and the line without it."""
        if self._style is not None and (match := self._style.match(text)):
            rank = int(match[1])
            if self._total is None or rank < self._total:
                return rank, text[match.end() :]
        if text.find(_MARK, 0, _WITHIN) < 0 or (match := _OPEN_MPI.match(text)) is None:
            return None, text
        if match[1] not in _FIRST:
            return None, text
        end = match.end()
        known.tight = known.tight or text[end : end + 1] != b" "
        return int(match[2]), text[end:] if known.tight else text[end + 1 :]

    def _source_of(self, source: Source) -> _LineSource:
        ranks = None
        if source.worker is not None and self.slots is not None:
            ranks = _ranks(source.worker, self.slots)
        attempt = 0
        if source.chief:
            pod = source.pod, source.uid
            if pod not in self.tries:
                self.tries.append(pod)
            attempt = self.tries.index(pod)
        rank = ranks[0] if ranks is not None and ranks[0] == ranks[1] else None
        speaker = Speaker(source=source, rank=rank, ranks=ranks, attempt=attempt)
        # The log of a worker has no tags, whatever its lines look like.
        known = _LineSource(speaker, tagged=self._tags and source.worker is None)
        self._sources[source] = known
        return known
