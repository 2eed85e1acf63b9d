"""Bodies of many HTTP answers, read by one thread: sockets, heads, chunks and lines of logs.

A kubelet sends not even the head of an answer before there is something in the log, so heads are
read here too, when they come. All of it is fed with bytes as they arrive and keeps what is not yet
whole; the formats are those of RFC 9112 (HTTP/1.1) and of a kubelet's `timestamps=true`.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from arena_topo.engines.kubernetes.failures import odd_body
from arena_topo.engines.lines import NOWHERE, Key, Line, Parser, Source, after, moment

PIECE = 65_536
"""Bytes that are taken from a socket at once."""

_LONGEST_HEAD = 65_536
_LONGEST_SIZE = 1024
"""Bytes of the line that says how long a chunk is, with its extensions."""
_CONTINUE, _GOOD, _REDIRECT = 100, 200, 300
_MOST_INTERIM = 100
"""Heads that say no more than that the real one will come."""
_LONGEST_LENGTH = 18
"""Digits of a Content-Length: an int64 has no more."""
_NO_CONTENT = 204
_END = 2
"""Bytes of the line end behind a chunk."""


class Broken(Exception):
    """The bytes of an answer are no HTTP, or end too early."""


class Foreign(Exception):
    """An answer that came whole, but not from what keeps logs; another try gets the same."""


class Handed(Exception):
    """A request was sent; who asked for that reads the answer from the socket itself."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__("the answer is read elsewhere")
        self.sock = sock


def handing(pool: Any) -> Any:
    """The same urllib3 pool, whose requests end with `Handed` as soon as they are sent."""
    pool.pool_classes_by_scheme = {
        scheme: type(kind.__name__, (kind,), {"ConnectionCls": _handing(kind.ConnectionCls)})
        for scheme, kind in pool.pool_classes_by_scheme.items()
    }
    return pool


def _handing(connection: type[Any]) -> type[Any]:
    def getresponse(self: Any) -> None:
        sock, self.sock = self.sock, None
        raise Handed(sock)

    return type(connection.__name__, (connection,), {"getresponse": getresponse})


class Answer:
    """The answer to one GET as its bytes come: `status` once the head is there, then the body."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.reason = ""
        self.headers: dict[str, str] = {}
        self.over = False
        """Whether the body has come to its end."""
        self._rest = b""
        self._chunked = False
        self._interim = 0
        self._left: int | None = None
        """Bytes of the body, or of its chunk, that are still to come; None: until it closes."""

    def feed(self, data: bytes) -> bytes:
        """What these bytes add to the body; Broken if they are no HTTP, Foreign if no log."""
        if self.over:
            return b""
        if self.status is None:
            data = self._head(self._rest + data)
            if self.status is None:
                return b""
        if self._chunked:
            return self._chunks(data)
        if self._left is None:
            return data
        found = data[: self._left]
        self._left -= len(found)
        self.over = not self._left
        return found

    def close(self) -> None:
        """The other side has closed; Broken if that is too early."""
        endless = self.status is not None and not self._chunked and self._left is None
        if not self.over and not endless:
            raise Broken("the connection was closed before the answer had ended")
        self.over = True

    def _head(self, data: bytes) -> bytes:
        """Read the head if it is whole; what follows it."""
        while True:
            head, found, data = data.partition(b"\r\n\r\n")
            if not found:
                if len(head) > _LONGEST_HEAD:
                    raise Broken("the head of the answer has no end")
                self._rest = head
                return b""
            first, *lines = head.decode("latin-1").split("\r\n")
            told = re.fullmatch(r"HTTP/1\.[01] ([0-9]{3})(?: (.*))?", first)
            if told is None:
                raise Broken("the answer is no HTTP")
            status = int(told[1])
            if status // 100 * 100 != _CONTINUE:
                break
            self._interim += 1
            if self._interim > _MOST_INTERIM:
                raise Broken("the answer is announced again and again, and never comes")
        self._rest = b""
        for line in lines:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        self.status, self.reason = status, told[2] or ""
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._chunked, self._left = True, 0
        elif "content-length" in self.headers:
            self._left = _length(self.headers["content-length"])
        if status == _NO_CONTENT or (self._left == 0 and not self._chunked):
            self.over = True
        why = odd_body(self.headers) if _GOOD <= status < _REDIRECT else None
        if why is not None:
            raise Foreign(why)
        return data

    def _chunks(self, data: bytes) -> bytes:
        """The contents of chunks; `_left` counts the line end behind a chunk too."""
        data, at = self._rest + data, 0
        size, left = len(data), self._left or 0
        found = []
        while at < size:
            if left:
                # The rest of a chunk that came in pieces; the last two bytes are its line end.
                if left > _END:
                    found.append(data[at : at + left - _END])
                skip = min(left, size - at)
                at, left = at + skip, left - skip
                continue
            end = data.find(b"\n", at)
            if end < 0:
                if size - at > _LONGEST_SIZE:
                    raise Broken("the size of a chunk has no end")
                break
            length = _size(data[at:end])
            if not length:
                self.over = True
                break
            at = end + 1
            found.append(data[at : at + length])
            left = length + _END
            if at + left <= size:
                at, left = at + left, 0
            else:
                at, left = size, left - (size - at)
        self._rest, self._left = data[at:], left
        return b"".join(found)


def _length(said: str) -> int:
    """What a Content-Length says; Broken if that is no length."""
    if re.fullmatch(rf"[0-9]{{1,{_LONGEST_LENGTH}}}", said) is None:
        raise Broken("the answer has a length that is none")
    return int(said)


def _size(line: bytes) -> int:
    """The size of a chunk, in the line before it; Broken if there is none."""
    try:
        # Spaces around it are left out by `int`; what follows a semicolon has no meaning here.
        size = int(line.split(b";", 1)[0] if b";" in line else line, 16)
    except ValueError as error:
        raise Broken("a chunk of the answer has no size") from error
    if size < 0:
        raise Broken("a chunk of the answer has no size")
    return size


@dataclass(slots=True)
class Place:
    """How far a log was read: what to ask for to go on, and what of the answer is known.

    `stamp` is the time of the last line, `key` its place in the log (see `lines.after`). `first` is
    how a log begins whose beginning a tail has cut off, so that lines of the same time may precede.
    """

    stamp: bytes = b""
    key: Key = NOWHERE
    first: tuple[int, bytes] | None = None

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
    """Lines cut from the body of a log, behind a place, which it brings up to date.

    `cut` says that a tail has left out lines of the log.
    """

    def __init__(self, place: Place, source: Source, *, cut: bool = False) -> None:
        self._place, self._cut = place, cut
        self._parser = Parser(source, at=place.at)
        self._known: Key | None = place.key if place.stamp else None
        self._key = NOWHERE
        self._first = place.first

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
            if self._cut and not place.stamp:
                place.first = lines[0].at, lines[0].text
            self._key = place.key = after(self._key, [one.at for one in lines if one.stamp])
            place.stamp = next((one.stamp for one in reversed(lines) if one.stamp), place.stamp)
        return lines

    def _is_new(self, line: Line) -> bool:
        if self._first is not None and line.at == self._first[0]:
            if line.text != self._first[1]:
                return False
            self._first = None
        self._key = after(self._key, (line.at,))
        if self._known is not None and self._key <= self._known:
            return False
        self._known = None
        self._place.key, self._place.stamp = self._key, line.stamp
        return True


class _Piped(socket.socket):
    """What a thread reads from elsewhere; to close it ends that as well."""

    __slots__ = ("line",)
    line: socket.socket

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.line.shutdown(socket.SHUT_RDWR)
        self.line.close()
        super().close()


def plain(sock: Any) -> socket.socket:
    """A socket that can be waited for, with what this one says.

    A TLS connection inside that to an HTTPS proxy can only be read by waiting; that is left to a
    thread of its own, which ends when either side is closed.
    """
    if isinstance(sock, socket.socket):
        return sock
    near, theirs = socket.socketpair()
    ours = _Piped(fileno=near.detach())
    ours.line = socket.socket(fileno=os.dup(sock.fileno()))
    threading.Thread(target=_pump, args=(sock, theirs), daemon=True).start()
    return ours


def _pump(source: Any, target: socket.socket) -> None:
    with contextlib.closing(source), target, contextlib.suppress(OSError):
        while data := source.recv(PIECE):
            target.sendall(data)


def received(sock: socket.socket) -> Iterator[bytes]:
    """What has come on a socket that does not block; b"" at its end. OSError if it broke.

    Of a TLS connection all that it has decrypted: nobody would be told of that again.
    """
    try:
        data = sock.recv(PIECE)
        yield data
        while data and isinstance(sock, ssl.SSLSocket) and sock.pending():
            data = sock.recv(PIECE)
            yield data
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return
