"""The bytes of a log: the response of HTTP/1.1 (RFC 9112) as it comes, and its new lines.

Bytes in, lines out: sockets and time-outs are in `following`. The lines are in the format of a
kubelet's `timestamps=true`.
"""

from __future__ import annotations

import http.client
import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from arena_topo.engines.lines import NOWHERE, Key, Line, Parser, Source, after, moment

if TYPE_CHECKING:
    import socket

_MOST = 65_536
"""Bytes of the head of a response, or of the line before a chunk; `http.client` allows as many."""

_BLANK = re.compile(rb"\r?\n\r?\n")
_INTERIM = re.compile(rb"HTTP/1\.\d 1\d\d")


class _Head(io.BytesIO):
    """The bytes of a head, in the place of the socket that `http.client` expects."""

    def makefile(self, _mode: str) -> io.BytesIO:
        """The only method of a socket that `http.client` calls."""
        return self


class Response:
    """A response to a GET, decoded from bytes as they come.

    `status` is 0 until the head has come; `headers` have lower-case names. `ended`: the whole body
    has come.
    """

    def __init__(self) -> None:
        self.status, self.reason = 0, ""
        self.headers: dict[str, str] = {}
        self.ended = self._chunked = False
        self._rest = b""
        """The beginning of the head, or of the line before a chunk."""
        self._left: int | None = 0
        """Bytes that are left of the body or of its chunk; None: the body ends with its connection.
        """

    def feed(self, data: bytes) -> bytes:
        """The part of the body in these bytes; no bytes: the connection has ended.

        HTTPException or ValueError if this is no HTTP, or the connection ended too early.
        """
        if not data and not self.ended:
            if not self.status or self._left is not None:
                raise http.client.IncompleteRead(b"")
            self.ended = True
        if not self.status:
            data = self._begin(data)
        if not self.status or self.ended:
            return b""
        if self._chunked:
            return self._unchunked(data)
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
            self.ended = not self._left
        return data

    def _begin(self, data: bytes) -> bytes:
        """Read the head; the bytes behind it."""
        data = self._rest + data
        while (end := _BLANK.search(data)) is not None and _INTERIM.match(data):
            data = data[end.end() :]
        if end is None:
            if len(data) > _MOST or (b"\n" in data and not data.startswith(b"HTTP/")):
                raise http.client.BadStatusLine(repr(data[:80]))
            self._rest = data
            return b""
        head = http.client.HTTPResponse(cast("socket.socket", _Head(data[: end.end()])))
        head.begin()
        self.status, self.reason = head.status, head.reason
        self.headers = {name.lower(): value for name, value in head.headers.items()}
        self._rest, self._chunked = b"", bool(head.chunked)
        self._left = 0 if self._chunked else head.length
        self.ended = not self._chunked and self._left == 0
        return data[end.end() :]

    def _unchunked(self, data: bytes) -> bytes:
        data = self._rest + data
        found: list[bytes] = []
        at, left = 0, self._left or 0
        while at < len(data):
            if left:
                piece = data[at : at + left]
                found.append(piece)
                at += len(piece)
                left -= len(piece)
                continue
            end = data.find(b"\n", at)
            if end < 0:
                break
            # A blank line ends the chunk before.
            if line := data[at:end].partition(b";")[0].strip():
                left = int(line, 16)
                if left < 0:
                    raise ValueError("a chunk of negative length")
                if not left:
                    self.ended = True
                    break
            at = end + 1
        self._left, self._rest = left, data[at:]
        if len(self._rest) > _MOST:
            raise http.client.LineTooLong("chunk size")
        return b"".join(found)


@dataclass(slots=True)
class Place:
    """How far a log was read: the time and the position (`Key`) of the last line."""

    stamp: bytes = b""
    key: Key = NOWHERE

    @property
    def at(self) -> int:
        """The latest time of a line: Unix nanoseconds, 0 without one."""
        return max(0, self.key[0])

    @property
    def since(self) -> str | None:
        """The parameter `sinceTime` in whole seconds, as an API server takes it; None: read all.

        After a clock was set back, times do not tell which lines are later.
        """
        if moment(self.stamp) != self.at:
            return None
        return re.sub(r"\.\d+", "", self.stamp.decode("latin-1"))


class Lines:
    """The lines of a body behind a place, which is updated."""

    def __init__(self, place: Place, source: Source, *, pieces: bool = False) -> None:
        self._place = place
        self._parser = Parser(source, at=place.at, pieces=pieces)
        self._known: Key | None = place.key if place.stamp else None
        self._key = NOWHERE

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
            self._key = place.key = after(self._key, [one.at for one in lines if one.stamp])
            place.stamp = next((one.stamp for one in reversed(lines) if one.stamp), place.stamp)
        return lines

    def _is_new(self, line: Line) -> bool:
        self._key = after(self._key, (line.at,))
        if self._known is not None and self._key <= self._known:
            return False
        self._known = None
        self._place.key, self._place.stamp = self._key, line.stamp
        return True
