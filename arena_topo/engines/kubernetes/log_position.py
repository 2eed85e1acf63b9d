"""The new lines in the bytes of a log.

Bytes in, lines out: sockets and time-outs are in `log_follower`. The lines are in the format of a
kubelet's `timestamps=true`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from arena_topo.engines.lines import (
    LOG_START,
    Key,
    Line,
    Parser,
    Source,
    parse_nanoseconds,
    position_after,
)


@dataclass(slots=True)
class ReadPosition:
    """How far a log was read: the time and the position (`Key`) of the last line."""

    stamp: bytes = b""
    key: Key = LOG_START

    @property
    def at(self) -> int:
        """The latest time of a line: Unix nanoseconds, 0 without one."""
        return max(0, self.key[0])

    @property
    def since(self) -> str | None:
        """The parameter `sinceTime` in whole seconds, as an API server takes it; None: read all.

        After a clock was set back, times do not tell which lines are later.
        """
        if parse_nanoseconds(self.stamp) != self.at:
            return None
        return re.sub(r"\.\d+", "", self.stamp.decode("latin-1"))


class Lines:
    """The lines of a body behind a place, which is updated."""

    def __init__(self, place: ReadPosition, source: Source, *, pieces: bool = False) -> None:
        self._place = place
        self._parser = Parser(source, at=place.at, pieces=pieces)
        self._known: Key | None = place.key if place.stamp else None
        self._key = LOG_START

    def feed(self, data: bytes) -> list[Line]:
        """The new lines that these bytes complete."""
        return self._new(self._parser.feed(data))

    def finish(self) -> list[Line]:
        """The last line, if it has no line feed."""
        return self._new(self._parser.finish())

    def _new(self, lines: list[Line]) -> list[Line]:
        if self._known is not None:
            lines = [line for line in lines if not line.stamp or self._is_new(line)]
        elif lines:
            place = self._place
            self._key = place.key = position_after(
                self._key, [line.at for line in lines if line.stamp]
            )
            place.stamp = next((line.stamp for line in reversed(lines) if line.stamp), place.stamp)
        return lines

    def _is_new(self, line: Line) -> bool:
        self._key = position_after(self._key, (line.at,))
        if self._known is not None and self._key <= self._known:
            return False
        self._known = None
        self._place.key, self._place.stamp = self._key, line.stamp
        return True
