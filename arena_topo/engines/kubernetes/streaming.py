"""A log over a connection of its own: the body of the response as it comes, and its new lines.

`http.client` reads heads, chunks and lengths (RFC 9112) from a `Stream`, which stands for the
socket. The lines are in the format of a kubelet's `timestamps=true`.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import re
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from arena_topo.engines.lines import NOWHERE, Key, Line, Parser, Source, after, moment

PIECE = 16_384
"""Bytes of a batch of lines."""

_BUFFER = 4096
"""Bytes of the read buffer of a connection: each of a thousand silent logs has such a buffer."""


class Stream(io.RawIOBase):
    """The response on a socket; a thread reads it, and any thread may hang up.

    `idle` is called before each wait; the wait raises TimeoutError after the time-out of the
    socket. `since` is when the present wait began (`time.monotonic`), None outside a wait.
    """

    def __init__(self, sock: Any) -> None:
        super().__init__()
        timeout = sock.gettimeout()
        self._silence = None if timeout is None else 1000 * timeout
        self._sock, self._poll = sock, select.poll()
        self._poll.register(sock, select.POLLIN)
        # A blocking read of TLS allocates 17 KB for as long as it waits.
        sock.settimeout(0.0)
        self.idle: Callable[[], None] = lambda: None
        self.since: float | None = None

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read some bytes, waiting for the first; 0 at the end."""
        self.idle()
        while True:
            with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
                return int(self._sock.recv_into(buffer) or 0)
            self.since = time.monotonic()
            came = self._poll.poll(self._silence)
            self.since = None
            if not came:
                raise TimeoutError

    def makefile(self, _mode: str) -> io.BufferedReader:
        """The only method of a socket that `http.client` calls."""
        return io.BufferedReader(self, _BUFFER)

    def answer(self) -> http.client.HTTPResponse:
        """The response, once its head has come; a kubelet sends it with the first byte of the log.

        OSError, HTTPException.
        """
        found = http.client.HTTPResponse(cast("socket.socket", self))
        found.begin()
        return found

    def hang_up(self) -> None:
        """End the wait of the reading thread, which gets an error of a broken connection."""
        # The TCP socket, also of TLS within TLS: TLS has no message for this from another thread.
        sock = getattr(self._sock, "socket", self._sock)
        with contextlib.suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()
        super().close()


def pieces(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """The body as it comes; OSError, HTTPException or ValueError if the connection breaks."""
    while piece := answer.read1(PIECE):
        yield piece
    if answer.length:
        raise http.client.IncompleteRead(b"", answer.length)


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
