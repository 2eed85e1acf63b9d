"""The output of log lines: text, JSON, or raw; a piece of output for each batch.

Behind a prefix a line cannot imitate another pod's: of text that a program overwrites only the last
state is shown, and of control sequences only colours pass.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from json.encoder import encode_basestring
from typing import TYPE_CHECKING

from arena_topo.engines.lines import Line, Source
from arena_topo.escaping import escaped_in_quotes, one_line
from arena_topo.joblogs.log_text import LogText, log_line, ordinary

if TYPE_CHECKING:
    from arena_topo.joblogs.ranks import Entry, Speaker

PALETTE = (32, 166, 28, 133, 30, 168, 100, 99, 66, 130)
"""Colours of xterm's 256 that are legible on black and on white.

Their contrast with both is at least 3, the bound for large text of WCAG 2.1, 1.4.3.
"""

_DIM, _BOLD, _END = "\x1b[2m", "\x1b[1m", "\x1b[0m"
_MARK, _UNMARK = "\x1b[1;7m", "\x1b[22;27m"
_SEQUENCE = re.compile("\x1b\\[[0-9;:]*[mK]")

_LONGEST_SPANS = 20
"""Characters for the numbers of ranks in a prefix."""

_MOST_PREFIXES = 4096
"""The size of the cache of prefixes."""

_MAIN = "mpi"
"""How the names of main containers begin, of arena and of the operator; they are not shown."""

_SECOND = 1_000_000_000


def spans(numbers: Iterable[int], most: int = _LONGEST_SPANS) -> str:
    """Numbers as spans, `0-3,7`; the middle of a text longer than `most` is left out."""
    parts: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][1] == number - 1:
            parts[-1] = (parts[-1][0], number)
        else:
            parts.append((number, number))
    words = [str(first) if first == last else f"{first}-{last}" for first, last in parts]
    text = ",".join(words)
    if len(text) <= most:
        return text
    end = f",...,{words[-1]}"
    head = text[: max(1, most - len(end)) + 1].rpartition(",")[0] or words[0]
    return head + end


def speaker_name(speaker: Speaker) -> str:
    """The name of a speaker: `rank 3 worker-3`, `launcher`, or the pod's name."""
    source = speaker.source
    words = [] if speaker.rank is None else [f"rank {speaker.rank}"]
    if not speaker.tagged:
        words.append(_pod(source))
    if speaker.attempt:
        words.append(f"try {speaker.attempt + 1}")
    if source.run:
        words.append(f"restart {source.run}")
    return " ".join(words)


def speakers_text(speakers: Sequence[Speaker]) -> str:
    """The name of several speakers: `ranks 0-63`, `workers 0-7`, `launcher, ranks 0-7`."""
    if len(speakers) == 1:
        return speaker_name(speakers[0])
    ranks = [speaker.rank for speaker in speakers if speaker.rank is not None]
    rest = [speaker.source for speaker in speakers if speaker.rank is None]
    workers = [source.worker for source in rest if source.worker is not None]
    others = list(dict.fromkeys(_pod(source) for source in rest if source.worker is None))
    words = [
        f"{kind}{'s'[: len(some) != 1]} {spans(some)}"
        for kind, some in (("rank", ranks), ("worker", workers))
        if some
    ]
    if len(others) > 1:
        others = [f"{len(others)} pods"]
    return ", ".join([*others, *words])


def _pod(source: Source) -> str:
    name = f"worker-{source.worker}" if source.worker is not None else one_line(source.pod)
    if source.chief:
        name = "launcher"
    if source.container and not source.container.startswith(_MAIN):
        name += f"/{one_line(source.container)}"
    return name


# ---------------------------------------------------------------- text


class Text:
    """Lines as text, made safe for a terminal.

    `prefixes` name the speaker of each line; `timestamps` go first, as the API server writes them;
    matches of `highlight` are marked if there are `colours`. Without these three the log is a
    stream: progress bars move, and a line may come in parts.
    """

    def __init__(
        self,
        *,
        prefixes: bool = False,
        timestamps: bool = False,
        colours: bool = False,
        highlight: Sequence[re.Pattern[str]] = (),
    ) -> None:
        self._colours, self._highlight = colours, tuple(highlight) if colours else ()
        self._prefixes, self._timestamps = prefixes, timestamps
        self._stream = LogText(colours=colours)
        self._width = 0
        self._cache: dict[object, bytes] = {}
        self._joiner = _Joiner()

    def lines(self, batch: Sequence[Entry]) -> bytes:
        """The output of some lines."""
        if not (self._prefixes or self._timestamps or self._highlight):
            return self._stream.feed(b"".join(self._joiner.join(batch)))
        easy = not self._highlight and ordinary(
            b"\n".join([line.text + line.line.stamp for line in batch])
        )
        return b"".join(self._with_prefixes(batch, easy=easy))

    def end(self) -> bytes:
        """The output after the last line: the end of a cut sequence, and of its colours."""
        return self._stream.end()

    def _with_prefixes(self, batch: Sequence[Entry], *, easy: bool) -> Iterator[bytes]:
        cached, stamps, prefixes = self._cache, self._timestamps, self._prefixes
        for line, text, speakers, count, _times in batch:
            if stamps:
                yield (line.stamp if easy else self._safe_text(line.stamp)) + b" "
            if prefixes:
                yield (count == 1 and cached.get(speakers[0])) or self._prefix(speakers, count)
            yield text if easy else self._safe_text(text)
            yield b"\n"

    def _safe_text(self, text: bytes) -> bytes:
        shown = log_line(text, colours=self._colours)
        return (self._highlighted(shown) if self._highlight else shown).encode()

    def _highlighted(self, text: str) -> str:
        bare = _SEQUENCE.sub("", text) if "\x1b" in text else text
        spans = sorted(
            match.span()
            for pattern in self._highlight
            for match in pattern.finditer(bare)
            if match[0]
        )
        if not spans:
            return text
        done, at = [], 0
        for start, end in spans:
            if end > at:
                done += [bare[at : max(at, start)], _MARK, bare[max(at, start) : end], _UNMARK]
                at = end
        return "".join([*done, bare[at:]])

    def _prefix(self, speakers: tuple[Speaker, ...], count: int) -> bytes:
        key: object = speakers[0] if count == 1 else (speakers, count)
        cached = self._cache.get(key)
        if cached is not None:
            return cached
        label = f"x{count} {speakers_text(speakers)}" if count > 1 else speaker_name(speakers[0])
        if len(label) > self._width or len(self._cache) > _MOST_PREFIXES:
            self._width = max(len(label), self._width)
            self._cache.clear()
        label = label.ljust(self._width)
        if self._colours:
            label = f"{_colour_of(speakers)}{label}{_END}"
        cached = self._cache[key] = f"{label} | ".encode()
        return cached


def _colour_of(speakers: Sequence[Speaker]) -> str:
    """The colour of some speakers: always the same for the same rank, worker or pod."""
    if len(speakers) > 1:
        return _BOLD
    [speaker] = speakers
    if speaker.source.chief and speaker.rank is None:
        return _DIM
    known = [number for number in (speaker.rank, speaker.source.worker) if number is not None]
    number = known[0] if known else zlib.crc32(speaker.source.pod.encode(errors="replace"))
    return f"\x1b[38;5;{PALETTE[number % len(PALETTE)]}m"


# ---------------------------------------------------------------- JSON and raw


class Records:
    """Lines as JSON, an object on each line of output.

    The keys are time (RFC 3339), job, namespace, pod, container, worker, rank, run and message; an
    unknown value is null. `run` is the number of restarts of the container. Bytes that are no UTF-8
    become U+FFFD.
    """

    def __init__(self, *, job: str, namespace: str) -> None:
        names = f'"job":{encode_basestring(job)},"namespace":{encode_basestring(namespace)}'
        self._names = names
        self._cache: dict[Speaker, str] = {}

    def lines(self, batch: Sequence[Entry]) -> bytes:
        """The output of some lines."""
        cached = self._cache
        parts: list[str] = []
        for line, text, speakers, _count, _times in batch:
            parts += (
                '{"time":',
                _time_json(line),
                cached.get(speakers[0]) or self._speaker_json(speakers[0]),
                encode_basestring(text.decode(errors="replace")),
                "}\n",
            )
        done = "".join(parts)
        # DEL is the only ASCII character that JSON leaves unescaped.
        if not done.isascii() or "\x7f" in done:
            done = escaped_in_quotes(done)
        return done.encode()

    def end(self) -> bytes:
        """The output after the last line: none."""
        return b""

    def _speaker_json(self, speaker: Speaker) -> str:
        source = speaker.source
        names = (("pod", source.pod), ("container", source.container))
        numbers = (("worker", source.worker), ("rank", speaker.rank), ("run", source.run))
        words = [
            self._names,
            *(f'"{key}":{encode_basestring(text)}' for key, text in names),
            *(f'"{key}":{"null" if number is None else number}' for key, number in numbers),
        ]
        cached = self._cache[speaker] = f',{",".join(words)},"message":'
        return cached


def _time_json(line: Line) -> str:
    """The time of a line as JSON; null if unknown."""
    if line.stamp.endswith(b"Z") and line.stamp.isascii():
        return encode_basestring(line.stamp.decode())
    if not line.at:
        return "null"
    seconds, rest = divmod(line.at, _SECOND)
    return f'"{time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))}.{rest:09d}Z"'


class Raw:
    """Lines as the programs wrote them, byte for byte."""

    def __init__(self, *, timestamps: bool = False) -> None:
        self._joiner = _Joiner(timestamps=timestamps)

    def lines(self, batch: Sequence[Entry]) -> bytes:
        """The output of some lines."""
        return b"".join(self._joiner.join(batch))

    def end(self) -> bytes:
        """The output after the last line: none."""
        return b""


class _Joiner:
    """Joins lines; a line without a line feed is ended before a line of another log."""

    def __init__(self, *, timestamps: bool = False) -> None:
        self._timestamps = timestamps
        self._open: Source | None = None

    def join(self, batch: Sequence[Entry]) -> Iterator[bytes]:
        for line, *_ in batch:
            if self._open is not None and line.source != self._open:
                yield b"\n"
                self._open = None
            if self._timestamps and self._open is None:
                yield line.stamp + b" "
            yield line.text
            if line.fed:
                yield b"\n"
            self._open = None if line.fed else line.source
