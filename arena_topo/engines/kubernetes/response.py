"""A response of HTTP/1.1 (RFC 9112), decoded from bytes as they come.

Bytes in, bytes out: sockets and time limits are in `transport` and `log_follower`.
"""

from __future__ import annotations

import http.client
import io
import re
from email.message import Message
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    import socket

_MOST = 65_536
"""Bytes of the head of a response, of its interim responses, of its trailers, or of the line before
a chunk; `http.client` allows as many for one line."""

_SIZE = re.compile(rb"[0-9A-Fa-f]+")
"""The size of a chunk (RFC 9112, 7.1); `int` would also take 0x5, +5 and 1_0."""

_BLANK = re.compile(rb"\r?\n\r?\n")

_INTERIM = re.compile(rb"HTTP/1\.\d 1(?!01)\d\d\b")
"""A response that announces another (RFC 9110, 15.2), also where its code is not known; 101 is
final."""

_SWITCHED = 101


class _Head(io.BytesIO):
    """The bytes of a head, in the place of the socket that `http.client` expects."""

    def makefile(self, _mode: str) -> io.BytesIO:
        """The only method of a socket that `http.client` calls."""
        return self


class Response:
    """A response to a GET, POST, PUT, PATCH or DELETE, decoded from bytes as they come.

    `status` is 0 until the head has come. `ended`: the whole body has come. `reusable`: the
    connection may then serve another request, because the response was the only one on it.
    """

    def __init__(self) -> None:
        self.status, self.reason = 0, ""
        self.headers = Message()
        self.ended = self.reusable = False
        self._chunked = self._trailing = False
        self._rest = b""
        """The beginning of the head, of the line before a chunk, or of a trailer."""
        self._left: int | None = 0
        """Bytes that are left of the body or of its chunk; None: the body ends with its connection.
        """
        self._skipped = 0
        """Bytes of interim responses, and then of trailers."""

    def feed(self, data: bytes) -> bytes:
        """The part of the body in these bytes; no bytes: the connection has ended.

        HTTPException or ValueError if this is no HTTP, or the connection ended too early.
        """
        if not data:
            self._close()
        if not self.status:
            data = self._begin(data)
        if self.status and not self.ended:
            if self._chunked:
                return self._unchunked(data)
            if self._left is None:
                return data
            body, data = data[: self._left], data[self._left :]
            self._left -= len(body)
            self.ended = not self._left
            self.reusable = self.reusable and not data
            return body
        self.reusable = self.reusable and not data
        return b""

    def _close(self) -> None:
        """Take note of the end of the connection."""
        if not self.status and not self._rest and not self._skipped:
            raise http.client.RemoteDisconnected("the connection was closed without an answer")
        # Some servers leave out the blank line behind the last chunk.
        if not self.ended and self._left is not None and not self._trailing:
            raise http.client.HTTPException("the answer ended too early")
        self.ended, self.reusable = True, False

    def _begin(self, data: bytes) -> bytes:
        """Read the head; the bytes behind it."""
        data = self._rest + data
        while (end := _BLANK.search(data)) is not None and _INTERIM.match(data):
            self._skipped += end.end()
            data = data[end.end() :]
            if self._skipped > _MOST:
                raise http.client.HTTPException("interim answers came without end")
        if end is None:
            if b"\n" in data and not data.startswith(b"HTTP/"):
                raise http.client.BadStatusLine(repr(data[:80]))
            if len(data) > _MOST:
                raise http.client.LineTooLong("head")
            self._rest = data
            return b""
        head = http.client.HTTPResponse(cast("socket.socket", _Head(data[: end.end()])))
        head.begin()
        self.status, self.reason, self.headers = head.status, head.reason, head.headers
        self._rest, self._chunked = b"", bool(head.chunked)
        self._left = 0 if self._chunked else head.length
        self.ended = not self._chunked and self._left == 0
        # An intermediary that sends interim responses may count the responses wrongly.
        self.reusable = not (head.will_close or self._skipped or head.status == _SWITCHED)
        self._skipped = 0
        return data[end.end() :]

    def _unchunked(self, data: bytes) -> bytes:
        data = self._rest + data
        body: list[bytes] = []
        at, left = 0, self._left or 0
        while at < len(data):
            if left:
                piece = data[at : at + left]
                body.append(piece)
                at += len(piece)
                left -= len(piece)
                continue
            end = data.find(b"\n", at)
            if end < 0:
                break
            line, length = data[at:end].strip(), end + 1 - at
            at = end + 1
            if self._trailing:
                self._skipped += length
                if not line:
                    self.ended, self.reusable = True, self.reusable and at == len(data)
                    break
            # A blank line ends the chunk before.
            elif line:
                size = line.partition(b";")[0].rstrip()
                if not _SIZE.fullmatch(size):
                    raise ValueError("a chunk without a size")
                left = int(size, 16)
                self._trailing = not left
        self._left, self._rest = left, data[at:]
        if max(len(self._rest), self._skipped) > _MOST:
            raise http.client.LineTooLong("trailer" if self._trailing else "chunk size")
        return b"".join(body)
