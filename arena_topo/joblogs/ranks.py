"""Who speaks in a log: a pod, or one of the ranks whose words `mpirun` passes on, with their tags.

All ranks of an MPI job speak in the log of its launcher. Which one it was says the tag before each
line, where the launcher was asked to write it:

    Open MPI 4       mpirun --tag-output                [1,3]<stdout>:text
    Open MPI 5       mpirun --output tag                [1,3]<stdout>: text
                     or with the name of the run        [prterun-host-17@1,3]<stdout>: text
                     mpirun --output rank               [3]<stdout>: text
    MPICH, Intel     mpirun -prepend-rank, -l (Hydra)   [3] text
    Slurm            srun -l                            3: text

Open MPI's cannot be mistaken. The others look like what any program might print, so they are
believed only where the job's command asks for them (`engines.tagging`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from arena_topo.engines import JobStatus, slots_of
from arena_topo.engines.lines import Line, Source
from arena_topo.engines.tagging import Tagging
from arena_topo.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Speaker:
    """Who wrote a line: a rank, where that is known, else a pod.

    There is one object for each, so what is made of it can be kept by it. `rank` is set for a
    tagged line, and for a worker of one slot. `ranks` are those of the worker's pod, first and
    last; None for the launcher's and other pods. `tagged`: the rank spoke in the launcher's log.
    `attempt` counts the launchers that were tried before it.
    """

    source: Source
    rank: int | None = None
    ranks: tuple[int, int] | None = None
    tagged: bool = False
    attempt: int = 0


class Entry(NamedTuple):
    """A line as it is shown; of several equal ones of several speakers the first, and their count.

    A named tuple, because one is made for each line: a frozen dataclass takes four times as long.
    `text` is the line without the tag of its rank, `line.text` with it. `speakers` are in the order
    of their ranks, `total` is how many lines it stands for, and `times` how many of each speaker,
    where that is not one.
    """

    line: Line
    text: bytes
    speakers: tuple[Speaker, ...]
    total: int = 1
    times: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Only:
    """Whose lines are wanted: the launcher's pod, some ranks, some workers; from first to last."""

    launcher: bool = False
    ranks: tuple[tuple[int, int], ...] = ()
    workers: tuple[tuple[int, int], ...] = ()


_WORD = re.compile(r"(rank|worker):(\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*)", re.ASCII)


def only(words: Sequence[str]) -> Only:
    """What `--only` says: `launcher`, `rank:0-3,7`, `worker:2`, each as often as one likes.

    UsageError names a word that cannot be read. `rank:3-1` is `rank:1-3`.
    """
    launcher = False
    spans: dict[str, list[tuple[int, int]]] = {"rank": [], "worker": []}
    for word in words:
        if word == "launcher":
            launcher = True
            continue
        found = _WORD.fullmatch(word)
        if found is None:
            raise UsageError(
                f"--only {word!r}: expected rank:N, worker:N or launcher",
                hint="such as rank:0-3,7 or worker:2",
            )
        for part in found[2].split(","):
            first, _, last = part.partition("-")
            start, end = sorted((int(first), int(last or first)))
            spans[found[1]].append((start, end))
    return Only(launcher=launcher, ranks=tuple(spans["rank"]), workers=tuple(spans["worker"]))


def wants(choice: Only, source: Source, slots: int | None) -> bool:
    """Whether a pod may have lines of those who are wanted.

    `slots` are the ranks of each worker, None where that is not known: then all may be wanted.
    """
    if source.worker is None:
        # Every rank speaks in the launcher's log, but other pods have none.
        return source.chief and bool(choice.launcher or choice.ranks or choice.workers)
    if _within(source.worker, choice.workers):
        return True
    if not choice.ranks:
        return False
    if slots is None:
        return True
    return _meets(_ranks(source.worker, slots), choice.ranks)


def chosen(choice: Only, speaker: Speaker, slots: int | None) -> bool:
    """Whether the lines of a speaker are wanted.

    All of a worker's pod are where one of its ranks is; all of the launcher's where it is named.
    """
    if speaker.tagged and speaker.rank is not None:
        if choice.launcher or _within(speaker.rank, choice.ranks):
            return True
        return slots is not None and _within(speaker.rank // slots, choice.workers)
    if speaker.source.worker is None:
        return choice.launcher and speaker.source.chief
    return wants(choice, speaker.source, slots)


def _ranks(worker: int, slots: int) -> tuple[int, int]:
    return worker * slots, worker * slots + slots - 1


def _within(number: int, spans: Sequence[tuple[int, int]]) -> bool:
    return any(first <= number <= last for first, last in spans)


def _meets(span: tuple[int, int], spans: Sequence[tuple[int, int]]) -> bool:
    return any(first <= span[1] and span[0] <= last for first, last in spans)


def ranks_of(status: JobStatus) -> tuple[int | None, int | None]:
    """Ranks of each worker, and of the whole job; None where that cannot be known (yet)."""
    if status.forecast is not None and status.forecast.workers:
        slots = slots_of(status.forecast, status)
        return slots, slots * len(status.forecast.workers)
    indexes = [one.worker for one in status.instances if one.worker is not None]
    if not indexes:
        return None, None
    # Workers are numbered from 0 on; those that are not there (yet) count as well.
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
"""Open MPI's tags, with the time if that was asked for as well: the job's number, and the rank.

Open MPI 4: orte/mca/iof/base/iof_base_output.c. From 5 on PMIx writes them, also with the name of
the run, or the host and the process, or only the rank: openpmix src/common/pmix_iof.c.
"""

_MARK, _WITHIN = b"]<std", 640
"""What every such tag holds, and the bytes it may take."""

_FIRST = (b"1", None)
"""The number of the job that mpirun started; those that it spawns have ranks of their own."""

_ASKED = {
    Tagging.HYDRA: re.compile(rb"\[([0-9]{1,7})\](?: |$)"),
    Tagging.SLURM: re.compile(rb" {0,6}([0-9]{1,7}):(?: |$)"),
}
"""Tags that may be words of the program, unless the command asks for them."""


class _LineSource:
    """The log of a pod, and the ranks that speak in it."""

    __slots__ = ("pod", "ranks", "tagged", "tight")

    def __init__(self, pod: Speaker, *, tagged: bool) -> None:
        self.pod = pod
        self.tagged = tagged
        self.ranks: dict[int, Speaker] = {}
        self.tight = False
        """Whether a space after Open MPI's tag is the program's: PMIx sets one, Open MPI 4 none."""


class LineAttributor:
    """Tells whose each line is.

    `slots` are the ranks of each worker, `total` those of the job; None where that is not known.
    `tagging` are the tags that the job's command asks for. Without `tags` a launcher's lines are
    all its own. `tries` are the launchers (names and uids) in the order they were tried, or else
    have spoken in; more may come to the list.
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
        """Those that have spoken in the log of a launcher."""
        return frozenset(rank for one in self._sources.values() for rank in one.ranks)

    def entry(self, line: Line) -> Entry:
        """A line with whoever wrote it; those of each log in their order."""
        source, known = self._last
        if known is None or source is not line.source:
            # Sources take long to hash, and the lines of each come together.
            known = self._sources.get(line.source) or self._begun(line.source)
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
        """The rank that wrote a line, None where it does not say, and the line without its tag."""
        if self._style is not None and (found := self._style.match(text)):
            rank = int(found[1])
            if self._total is None or rank < self._total:
                return rank, text[found.end() :]
        if text.find(_MARK, 0, _WITHIN) < 0 or (found := _OPEN_MPI.match(text)) is None:
            return None, text
        if found[1] not in _FIRST:
            return None, text
        end = found.end()
        known.tight = known.tight or text[end : end + 1] != b" "
        return int(found[2]), text[end:] if known.tight else text[end + 1 :]

    def _begun(self, source: Source) -> _LineSource:
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
        # A worker's own words are no tags, whatever they look like.
        known = _LineSource(speaker, tagged=self._tags and source.worker is None)
        self._sources[source] = known
        return known
