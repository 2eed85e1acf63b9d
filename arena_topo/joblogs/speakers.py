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
believed only where the job's command asks for them (`engines.tagging`), or while the log is tagged
throughout (`Tags`).
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
    where that is not one. A piece of a
    long line (`line.ends` is False) may be followed by lines of others before the rest comes.
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

    UsageError says which word cannot be read, and how it is written.
    """
    launcher = False
    spans: dict[str, list[tuple[int, int]]] = {"rank": [], "worker": []}
    for word in words:
        if word == "launcher":
            launcher = True
            continue
        found = _WORD.fullmatch(word)
        if found is None:
            raise _unreadable(word)
        for part in found[2].split(","):
            first, _, last = part.partition("-")
            span = int(first), int(last or first)
            if span[0] > span[1]:
                raise UsageError(
                    f"--only {word}: {part} is no range",
                    why=f"{span[0]} is more than {span[1]}",
                    hint=f"write {found[1]}:{span[1]}-{span[0]}",
                )
            spans[found[1]].append(span)
    return Only(launcher=launcher, ranks=tuple(spans["rank"]), workers=tuple(spans["worker"]))


def _unreadable(word: str) -> UsageError:
    kind, colon, rest = word.partition(":")
    if re.fullmatch(r"[0-9,-]+", word):
        why, hint = "it does not say of what", f"write rank:{word} or worker:{word}"
    elif kind == "launcher" and colon:
        why, hint = "there is one launcher", "write launcher"
    elif kind in {"ranks", "workers"} and colon:
        why, hint = f"{kind!r} is not one of rank, worker, launcher", f"write {kind[:-1]}:{rest}"
    elif kind in {"rank", "worker"}:
        why, hint = "it needs numbers from 0 on", f"such as {kind}:0-3,7"
    else:
        why, hint = f"{kind!r} is not one of rank, worker, launcher", "such as rank:0-3,7"
    return UsageError(f"--only {word!r} names nobody", why=why, hint=hint)


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

_CERTAIN = re.compile(
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

_LIKELY = {
    Tagging.HYDRA: re.compile(rb"\[([0-9]{1,7})\](?: |$)"),
    Tagging.SLURM: re.compile(rb" {0,6}([0-9]{1,7}):(?: |$)"),
}
"""Tags that may be words of the program."""

_RUN, _START = 8, 4
"""Lines in a row that must be tagged before that is believed; at the start of a log fewer do."""

_LIST = 4096
"""Lines of as many different ranks at the start of a log that are a list at the latest."""

_HEADS = 4096
"""Tags that are remembered; with the time in them there is no end of new ones."""


class Tags:
    """The tags of one log: which rank wrote a line.

    Open MPI's are taken as they are, and so are others that were `asked` for. Where there can be
    none (`Tagging.NONE`), no others are believed. Else those are
    believed once `_RUN` lines in a row have them (the first `_START` of a log), with ranks that the
    job has, at least two, one of them twice: a list that a program prints numbers no two lines
    alike. Where it is one rank alone, the log must begin with `_RUN` lines of it. As many lines
    without end that belief; one without is just nobody's. Empty lines say nothing.

    What is read to its end, and all of it tagged, may be believed with less: `settle`.
    """

    def __init__(self, total: int | None = None, *, asked: Tagging | None = None) -> None:
        """Of a job with so many ranks, where that is known."""
        self.total = total
        self.certain = False
        """Whether tags were seen that cannot be mistaken."""
        self._tight = False
        self._heads: dict[bytes, int | None] = {}
        self._style = None if asked is None else _LIKELY.get(asked)
        self._asked = self._style is not None
        self._none = asked is Tagging.NONE
        self._candidate: re.Pattern[bytes] | None = None
        self._run, self._missed, self._fresh = 0, 0, True
        self._ranks: set[int] = set()
        self._twice = False

    @property
    def known(self) -> bool:
        """Whether the log is tagged, as far as can be said."""
        return self.certain or self._style is not None

    @property
    def undecided(self) -> bool:
        """Whether all lines so far look tagged, but are too few to be believed."""
        return self._fresh and self._run > 0 and not self.known

    def settle(self) -> None:
        """The log ends here: a short one is believed if all of it is tagged.

        That is with `_START` lines, or one line of every rank.
        """
        if self.undecided and (self._run >= _START or len(self._ranks) == self.total):
            self._style, self._missed = self._candidate, 0

    def hear(self, text: bytes) -> None:
        """Learn from a line that is to be attributed a little later."""
        if self.certain or self._style is not None or not text or text.isspace():
            return
        for style in () if self._none else _LIKELY.values():
            found = style.match(text)
            if found is not None and self._is_rank(int(found[1])):
                self._tagged(style, int(found[1]))
                return
        if text.find(_MARK, 0, _WITHIN) > 0 and _CERTAIN.match(text) is not None:
            self.certain = True
            return
        self._forget()
        self._fresh = False

    def of(self, text: bytes) -> tuple[int | None, bytes]:
        """The rank that wrote a line, None where it does not say, and the line without its tag."""
        if self._style is not None:
            return self._believed(text, self._style)
        found = text.find(_MARK, 0, _WITHIN)
        if found < 0:
            return None, text
        end = text.find(b":", found, found + 16) + 1
        head = text[:end]
        rank = self._heads[head] if head in self._heads else self._learn(head)
        if rank is None:
            return None, text
        if self._tight:
            return rank, text[end:]
        if text[end : end + 1] == b" ":
            return rank, text[end + 1 :]
        # PMIx sets a space after each tag, Open MPI 4 after none: there it is the program's.
        self._tight = True
        return rank, text[end:]

    def _learn(self, head: bytes) -> int | None:
        found = _CERTAIN.fullmatch(head)
        rank = int(found[2]) if found is not None and found[1] in _FIRST else None
        if len(self._heads) >= _HEADS:
            self._heads.clear()
        self._heads[head] = rank
        self.certain |= found is not None
        return rank

    def _is_rank(self, number: int) -> bool:
        return self.total is None or number < self.total

    def _tagged(self, style: re.Pattern[bytes], rank: int) -> None:
        if style is not self._candidate:
            self._fresh &= self._candidate is None
            self._forget()
            self._candidate = style
        self._run += 1
        self._twice |= rank in self._ranks
        self._ranks.add(rank)
        several = self.total == 1 or len(self._ranks) > 1 or (self._fresh and self._run >= _RUN)
        enough = self._run >= (_START if self._fresh else _RUN)
        if enough and several and (self._twice or self.total == 1):
            self._style, self._missed = style, 0
        elif self._run > _LIST:
            self._fresh = False

    def _believed(self, text: bytes, style: re.Pattern[bytes]) -> tuple[int | None, bytes]:
        found = style.match(text)
        if found is not None and self._is_rank(int(found[1])):
            self._missed = 0
            return int(found[1]), text[found.end() :]
        if text and not text.isspace() and not self._asked:
            self._missed += 1
            if self._missed >= _RUN:
                self._style = None
                self._forget()
                self._fresh = False
        return None, text

    def _forget(self) -> None:
        self._run, self._twice = 0, False
        self._ranks.clear()
        self._candidate = None


class _Voice:
    """One log, and those who speak in it."""

    __slots__ = ("alone", "cut", "ranks", "source", "tags")

    def __init__(self, source: Source, alone: Speaker, tags: Tags | None) -> None:
        self.source = source
        self.alone = (alone,)
        self.tags = tags
        self.ranks: dict[int, tuple[Speaker, ...]] = {}
        self.cut: tuple[Speaker, ...] | None = None
        """Who speaks in the line of which more is to come."""


class Voices:
    """Tells whose each line is.

    `slots` are the ranks of each worker, `total` those of the job; None where that is not known.
    """

    def __init__(
        self,
        *,
        slots: int | None = None,
        total: int | None = None,
        tags: bool = True,
        asked: Tagging | None = None,
    ) -> None:
        """Without `tags` a launcher's lines are all its own; `asked` are those that it should have.

        That is what the job's command says of them, where that is known.
        """
        self.slots = slots
        self.asked = asked
        self._total = total
        self._tags = tags
        self.tries: list[tuple[str, str]] = []
        """The launchers (names and uids) in the order they were tried, or else have spoken in."""
        self._voices: dict[Source, _Voice] = {}
        # Sources are many words to hash; there is one object of each, as a rule.
        self._quick: dict[int, _Voice] = {}

    @property
    def ranks(self) -> frozenset[int]:
        """Those that have spoken in the log of a launcher."""
        return frozenset(rank for one in self._voices.values() for rank in one.ranks)

    @property
    def undecided(self) -> bool:
        """Whether a log must be read further to know whether it is tagged."""
        return any(one.tags is not None and one.tags.undecided for one in self._voices.values())

    def settle(self, source: Source | None = None) -> None:
        """A log ends here, or all do."""
        for one in self._voices.values():
            if one.tags is not None and source in {None, one.source}:
                one.tags.settle()

    def hear(self, lines: Sequence[Line]) -> None:
        """Learn from lines that `entry` is asked about a little later."""
        if not self._tags:
            return
        quick = self._quick
        for line in lines:
            voice = quick.get(id(line.source)) or self._voice(line.source)
            if voice.tags is not None:
                voice.tags.hear(line.text)

    def entry(self, line: Line) -> Entry:
        """A line with whoever wrote it; those of each log in their order."""
        source = line.source
        voice = self._quick.get(id(source)) or self._voice(source)
        if voice.tags is None:
            return Entry(line, line.text, voice.alone)
        if voice.cut is not None:
            speakers, text = voice.cut, line.text
        else:
            rank, text = voice.tags.of(line.text)
            speakers = voice.alone if rank is None else voice.ranks.get(rank) or _rank(voice, rank)
        voice.cut = None if line.ends else speakers
        return Entry(line, text, speakers)

    def _voice(self, source: Source) -> _Voice:
        voice = self._voices.get(source)
        if voice is None:
            ranks = None
            if source.worker is not None and self.slots is not None:
                ranks = _ranks(source.worker, self.slots)
            rank = ranks[0] if ranks is not None and ranks[0] == ranks[1] else None
            alone = Speaker(source=source, rank=rank, ranks=ranks, attempt=self._attempt(source))
            # A worker's own words are no tags, whatever they look like.
            speaks = self._tags and source.worker is None
            tags = Tags(self._total, asked=self.asked) if speaks else None
            voice = self._voices[source] = _Voice(source, alone, tags)
        if voice.source is source:
            self._quick[id(source)] = voice
        return voice

    def _attempt(self, source: Source) -> int:
        pod = source.pod, source.uid
        if not source.chief:
            return 0
        if pod not in self.tries:
            self.tries.append(pod)
        return self.tries.index(pod)


def _rank(voice: _Voice, rank: int) -> tuple[Speaker, ...]:
    attempt = voice.alone[0].attempt
    speaker = Speaker(source=voice.source, rank=rank, tagged=True, attempt=attempt)
    voice.ranks[rank] = (speaker,)
    return voice.ranks[rank]
