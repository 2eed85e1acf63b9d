"""Notes beside the lines of a log: events of its pods, each noted once, and many alike as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from arena_topo.engines import Phase
from arena_topo.engines.goals import failed_with
from arena_topo.engines.lines import LogTurn, Notice, Source
from arena_topo.errors import ArenaError, JobFailed
from arena_topo.layout import clock
from arena_topo.words import shortened

if TYPE_CHECKING:
    from pathlib import Path

    from arena_topo.engines.archive import Kept

DELETION_DELAY = 3.0
"""Seconds before the deletion of a pod is noted: not if its job has just ended."""

GATHER = 0.5
"""Seconds within which equal events of many pods become a single note."""

MAX_NAMED_PODS = 3
"""Pods that a note names; it counts the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNote:
    """A sentence for the user that is no line of a log.

    `turn` and `source` are set for an event of a pod's log, `error` where it is a failure.
    `plural` is the text for several such events, with `{}` for their number; empty if they are not
    joined.
    """

    text: str
    turn: LogTurn | None = None
    source: Source | None = None
    error: ArenaError | None = None
    warns: bool = False
    plural: str = ""


OnNote = Callable[[LogNote], None]


def note_after(notice: Notice, *, many: bool, joined: bool = True) -> LogNote | None:
    """The note on an event of a log, to be shown after the lines before it; None if it needs none.

    `joined`: the log could be read before.
    """
    source, error = notice.source, notice.error
    why = "" if error is None else f": {error.message}"
    match notice.turn:
        case LogTurn.GONE:
            text = f"{source.pod} is gone: its log ends here"
            plural = "{} pods are gone: their logs end here"
        case LogTurn.REFUSED if many:
            text = f"the log of {source.pod} cannot be read{why}"
            plural = "{} logs cannot be read"
        case LogTurn.BROKEN if not joined:
            text = f"the log of {source.pod} cannot be read yet, and is asked for again{why}"
            plural = f"{{}} logs cannot be read yet, and are asked for again{why}"
        case LogTurn.BROKEN:
            text = f"the connection to the log of {source.pod} is lost and taken up again{why}"
            plural = f"the connections to {{}} logs are lost and taken up again{why}"
        case LogTurn.CUT:
            text = f"the oldest lines of {source.pod} are not shown{why}"
            plural = "the oldest lines of {} pods are not shown"
        case _:
            return None
    warns = notice.turn in {LogTurn.REFUSED, LogTurn.CUT}
    return LogNote(
        text=text, turn=notice.turn, source=source, error=error, warns=warns, plural=plural
    )


def pods_text(pods: Iterable[str]) -> str:
    """Pods in a sentence: the names of the first few, and the number of the others."""
    return shortened(list(dict.fromkeys(pods)), MAX_NAMED_PODS)


class NoticeBuffer:
    """Notes that wait for the lines before them, and for equal notes on other pods."""

    def __init__(self) -> None:
        self._notes: list[tuple[float, LogNote]] = []

    def add(self, at: float, note: LogNote) -> None:
        """Add a note on an event at a time."""
        self._notes.append((at, note))

    def take(self, before: float | None, *, ends: bool) -> list[LogNote]:
        """The notes on events before a time, or on all events.

        If the job `ends`, the deletion of its pods is not noted.
        """
        notes: list[LogNote] = []
        while due := [
            note for at, note in self._notes if before is None or at + _hold_seconds(note) <= before
        ]:
            first = due[0]
            equal = [note for _, note in self._notes if note is first or _joinable(note, first)]
            self._notes = [(at, note) for at, note in self._notes if note not in equal]
            if not (ends and first.turn is LogTurn.GONE):
                notes.append(_joined(equal))
        return notes


def _hold_seconds(note: LogNote) -> float:
    if note.turn is LogTurn.GONE:
        return DELETION_DELAY
    return GATHER if note.plural else 0.0


def _joinable(note: LogNote, other: LogNote) -> bool:
    return bool(note.plural) and (note.plural, note.warns) == (other.plural, other.warns)


def _joined(notes: Sequence[LogNote]) -> LogNote:
    first = notes[0]
    pods = list(dict.fromkeys(note.source.pod for note in notes if note.source is not None))
    if len(pods) < 2:  # noqa: PLR2004  one pod, whatever happened to it how often
        return first
    text = f"{first.plural.replace('{}', str(len(pods)), 1)}: {pods_text(pods)}"
    return LogNote(text=text, turn=first.turn, warns=first.warns, error=first.error)


def archived_error(kept: Kept) -> JobFailed | None:
    """The error of an archived job; None if it succeeded."""
    if kept.phase == Phase.SUCCEEDED:
        return None
    if kept.phase == Phase.FAILED:
        why = f"the launcher ended with exit code {kept.exit_code}" if kept.exit_code else None
        return failed_with(kept.exit_code, kept.name, why)
    if kept.deleted:
        text = f"the job {kept.name} was deleted before it had ended"
        return JobFailed(text, exit_code=1, why=f"it was {kept.phase} when it was deleted")
    return JobFailed(
        f"how the job {kept.name} ended is not known",
        exit_code=1,
        why=f"it no longer exists, and was {kept.phase} when it was last seen",
    )


def archive_note(kept: Kept, *, requested: bool, older: int, root: Path | None) -> LogNote:
    """The note on archived logs: which job, their time span, missing lines, and older jobs.

    `requested`: the user asked for the archive. `older`: the number of older jobs of that name in
    `root`.
    """
    # Nothing may be archived of a younger job of this name.
    text = f"this is the archived log of the job that was created {clock(kept.created)}"
    if not requested:
        text = f"the pods of {kept.name} are gone: {text}"
    if kept.first:
        text += f", from {clock(kept.first / 1e9)} to {clock(kept.last / 1e9)}"
    else:
        text += ": nothing had been written"
    if kept.lacking:
        text += f"; lines may be missing of {pods_text(speaker.pod for speaker in kept.lacking)}"
    elif kept.first and not kept.complete:
        text += "; the log may have gone on after that"
    if older:
        jobs = "an older job" if older == 1 else f"{older} older jobs"
        text += f"; {jobs} of that name {'is' if older == 1 else 'are'} kept in {root}"
    return LogNote(text=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class IncompleteLog:
    """A wanted log that could not be read to its end; `noted`: a note names it."""

    source: Source
    error: ArenaError
    noted: bool = False


def incomplete_log_notes(logs: Sequence[IncompleteLog]) -> Iterator[LogNote]:
    """The notes on logs that could not be read to their end."""
    several: dict[str, list[IncompleteLog]] = {}
    for log in logs:
        if not log.noted:
            several.setdefault(log.error.sentence, []).append(log)
    for why, some in several.items():
        pods = pods_text(incomplete_log.source.pod for incomplete_log in some)
        logs_of = "the log" if len(some) == 1 else f"{len(some)} logs"
        yield LogNote(text=f"{logs_of} could not be read to the end ({pods}): {why}", warns=True)


def unreadable_logs_error(logs: Sequence[IncompleteLog]) -> ArenaError:
    """The error of logs, at least one, that could not be read to their end."""
    first = logs[0].error
    pods = [log.source.pod for log in logs]
    text = f"the log of {pods[0]} could not be read to the end"
    if len(pods) > 1:
        text = f"{len(pods)} logs could not be read to the end: {pods_text(pods)}"
    return ArenaError(text, why=first.sentence, hint=first.hint)
