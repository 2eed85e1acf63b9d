"""From lines to entries: attribution to ranks, selection, filters, order and folding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from arena_topo.engines.lines import Line, LogTurn, Notice
from arena_topo.engines.rank_tags import Tagging
from arena_topo.joblogs.ranks import Entry, LineAttributor, Speaker, is_selected
from arena_topo.joblogs.window import HELD_SECONDS, REORDER_SECONDS, Window

if TYPE_CHECKING:
    from arena_topo.joblogs.log_request import LogRequest

_OVER = frozenset({LogTurn.ENDED, LogTurn.GONE, LogTurn.REFUSED})


class Pipeline:
    """The way of lines to the screen, in batches.

    `slots` and `total` are the ranks of each worker and of the job, None if unknown; `tagging` is
    the kind of tags that the job's command asks for. `whole`: logs are read to their present end.
    """

    def __init__(
        self,
        request: LogRequest,
        *,
        slots: int | None = None,
        total: int | None = None,
        tagging: Tagging | None = None,
        whole: bool = False,
    ) -> None:
        self._request, self._tagging = request, tagging
        self._filters = bool(request.include or request.exclude)
        tags = request.several_pods or request.tags or self._filters
        self._lines = LineAttributor(slots=slots, total=total, tags=tags, tagging=tagging)
        self._window = Window(whole=whole, fold=request.fold) if request.several_pods else None
        self._choices: dict[Speaker, bool] = {}
        self._untagged, self._matched = 0, False

    @property
    def lag(self) -> float:
        """Seconds that a line of a followed log may wait."""
        if self._window is None:
            return 0.0
        return REORDER_SECONDS + (HELD_SECONDS if self._request.fold else 0.0)

    @property
    def left_out_note(self) -> str | None:
        """The note on lines that `--only` may have left out for lack of tags, if there is one."""
        if self._matched or self._request.only is None:
            return None
        if ranks := sorted(self._lines.ranks):
            some = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} other ranks"
            return f"none of these has a line: the launcher's log has tags of {some} only"
        if not self._untagged:
            return None
        lines = f"{self._untagged} line{'s'[: self._untagged != 1]} of the launcher"
        if self._tagging is not None:
            return f"{lines} left out: no tag of a rank, though the job's command asks for tags"
        return (
            f"{lines} left out: its log does not say which rank wrote what; let the job's mpirun"
            " say it: --tag-output (Open MPI 4), --output tag (Open MPI 5), -prepend-rank (MPICH,"
            " Intel MPI)"
        )

    def set_launchers(self, launchers: list[tuple[str, str]]) -> None:
        """The names and uids of the launchers in the order of their tries; the list may grow."""
        self._lines.tries = launchers

    def expect(self, pods: Sequence[str]) -> None:
        """The logs of these pods will be opened."""
        if self._window is not None:
            self._window.expect(pods)

    def put(self, lines: Sequence[Line], now: float) -> list[Entry]:
        """Add lines, or none, at a time; the entries that are ready to be shown."""
        entry = self._lines.entry
        entries = [entry(line) for line in lines]
        if self._request.only is not None:
            entries = [entry for entry in entries if self._is_chosen(entry.speakers[0])]
        if self._filters:
            entries = [entry for entry in entries if self._passes(entry)]
        return entries if self._window is None else self._window.put(entries, now)

    def remaining(self) -> list[Entry]:
        """The entries that still wait."""
        return [] if self._window is None else self._window.remaining()

    def add_notice(self, notice: Notice) -> None:
        """Take note of an event of a log, after its lines up to then."""
        if self._window is None:
            return
        if notice.turn in _OVER:
            self._window.end_log(notice.source)
        elif notice.turn in {LogTurn.JOINED, LogTurn.RESTARTED}:
            self._window.open_log(notice.source)

    def _is_chosen(self, speaker: Speaker) -> bool:
        known = self._choices.get(speaker)
        if known is None and self._request.only is not None:
            known = is_selected(self._request.only, speaker, self._lines.slots)
            self._choices[speaker] = known
        if speaker.source.chief:
            self._matched |= bool(known)
            self._untagged += not known and not speaker.tagged
        return bool(known)

    def _passes(self, entry: Entry) -> bool:
        """Whether the filters let a line pass."""
        request, text = self._request, entry.text.decode("utf-8", "replace")
        passes = not request.include or any(pattern.search(text) for pattern in request.include)
        return passes and not any(pattern.search(text) for pattern in request.exclude)
