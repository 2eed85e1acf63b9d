"""The body of one long answer as it comes, and the lines of a log that it brings.

`http.client` reads heads, chunks and lengths (RFC 9112); a `Stream` is the socket that it reads
from. The format of the lines is that of a kubelet's `timestamps=true`.
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
"""Bytes of lines that are handed on together."""

_BUFFER = 4096
"""Bytes that are taken from a socket at once: each of a thousand silent logs has such a buffer."""


class Stream(io.RawIOBase):
    """The answer to a GET that was sent on a socket; one thread reads it, others may hang up.

    `idle` is called before each wait for more, which raises TimeoutError after the time-out of the
    socket. `since` is when the wait that lasts began (`time.monotonic`), None without one.
    """

    def __init__(self, sock: Any) -> None:
        super().__init__()
        timeout = sock.gettimeout()
        self._silence = None if timeout is None else 1000 * timeout
        self._sock, self._poll = sock, select.poll()
        self._poll.register(sock, select.POLLIN)
        # A TLS connection that waits in a read of its own holds 17 KB for it meanwhile.
        sock.settimeout(0.0)
        self.idle: Callable[[], None] = lambda: None
        self.since: float | None = None

    def readable(self) -> bool:
        """It is there to be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Wait for some bytes; 0 at the end."""
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
        """What `http.client` asks a socket for."""
        return io.BufferedReader(self, _BUFFER)

    def answer(self) -> http.client.HTTPResponse:
        """The answer with its head, for which a kubelet waits until there is something to send.

        OSError, HTTPException.
        """
        # All that it asks of a socket is `makefile`.
        found = http.client.HTTPResponse(cast("socket.socket", self))
        found.begin()
        return found

    def hang_up(self) -> None:
        """End the wait of the thread that reads; it sees a connection that broke."""
        # Of TLS within TLS this is the outer connection. TLS itself has no word for it that another
        # thread might say.
        sock = getattr(self._sock, "socket", self._sock)
        with contextlib.suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the connection."""
        self._sock.close()
        super().close()


def pieces(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """The body as it comes; OSError, HTTPException or ValueError where it breaks."""
    while piece := answer.read1(PIECE):
        yield piece
    if answer.length:
        raise http.client.IncompleteRead(b"", answer.length)


@dataclass(slots=True)
class Place:
    """How far a log was read: `stamp` is the time of the last line, `key` its place in the log."""

    stamp: bytes = b""
    key: Key = NOWHERE

    @property
    def at(self) -> int:
        """The latest time of a line: Unix nanoseconds, 0 without one."""
        return max(0, self.key[0])

    @property
    def since(self) -> str | None:
        """From when on to ask, in whole seconds, as an API server takes it; None: for all of it.

        Times do not tell which lines come later where a clock was set back.
        """
        if moment(self.stamp) != self.at:
            return None
        return re.sub(r"\.\d+", "", self.stamp.decode("latin-1"))


class Lines:
    """Lines cut from the body of a log, behind a place, which it brings up to date."""

    def __init__(self, place: Place, source: Source, *, pieces: bool = False) -> None:
        self._place = place
        self._parser = Parser(source, at=place.at, pieces=pieces)
        self._known: Key | None = place.key if place.stamp else None
        self._key = NOWHERE

    def feed(self, data: bytes) -> list[Line]:
        """The lines that these bytes complete, and pieces of one that is too long to wait for."""
        return self._new(self._parser.feed(data))

    def finish(self) -> list[Line]:
        """What the log ends with, if that is no whole line."""
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
