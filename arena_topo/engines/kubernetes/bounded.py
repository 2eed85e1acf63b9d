"""Calls that take no longer than they may in all, and whose answers are no longer than they may be.

A read time-out of urllib3 is for each read of the socket, and starts anew with every byte. Here it
is the time for the whole answer, its head included; and a megabyte of gzip may hold a gigabyte, so
what counts is the length of an answer as decoded. Answers that are read as they arrive (logs,
watches) are left as they are: silence alone ends those.
"""

from __future__ import annotations

import io
import time
from http.client import HTTPResponse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

    import urllib3


MOST = 128 << 20
"""Bytes of an answer, as decoded: a page of 500 pods has about 10 MB."""

_PIECE = 1 << 16


class Overlong(Exception):
    """An answer is longer than any that is meant."""


class _Clocked(io.RawIOBase):
    """What a socket says until a moment of the monotonic clock; TimeoutError from then on."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock = sock
        self._until = until
        # It counts who reads from the socket, and closes it after the last.
        self._file = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer did not end in time")
        self._sock.settimeout(left)
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


def _answered(sock: socket.socket, until: float, *told: Any, **named: Any) -> HTTPResponse:
    response = HTTPResponse(sock, *told, **named)
    plain, response.fp = response.fp, io.BufferedReader(_Clocked(sock, until))
    plain.close()
    return response


def _read(answer: urllib3.HTTPResponse) -> urllib3.HTTPResponse:
    """The same answer, its body read and decoded."""
    import urllib3

    pieces, size = [], 0
    while piece := answer.read(_PIECE):
        size += len(piece)
        if size > MOST:
            answer.close()
            raise Overlong
        pieces.append(piece)
    return urllib3.HTTPResponse(
        body=io.BytesIO(b"".join(pieces)),
        headers=answer.headers,
        status=answer.status,
        reason=answer.reason,
        decode_content=False,
        # The length that was told is that of the body as it came, before it was decoded.
        enforce_content_length=False,
    )


class _Bounded:
    """A connection that knows whether the answer to its request is read as a whole."""

    _whole = False
    timeout: float | None

    def request(self, *told: Any, **named: Any) -> None:
        self._whole = named.get("preload_content", True)
        connection: Any = super()  # urllib3's, which `bound` puts behind this class
        connection.request(*told, **{**named, "preload_content": False})

    def getresponse(self) -> urllib3.BaseHTTPResponse:
        """The answer; Overlong if it is to be read as a whole, and has more than `MOST` bytes."""
        connection: Any = super()
        answer: urllib3.HTTPResponse = connection.getresponse()
        return _read(answer) if self._whole else answer

    def response_class(self, sock: socket.socket, *told: Any, **named: Any) -> HTTPResponse:
        """What http.client makes of an answer, while `timeout` is the time for reading it."""
        if not self._whole or self.timeout is None:
            return HTTPResponse(sock, *told, **named)
        return _answered(sock, time.monotonic() + self.timeout, *told, **named)


def bound(pool: urllib3.PoolManager) -> urllib3.PoolManager:
    """The same pool, whose read time-outs are for whole answers, whatever its connections are."""
    known: dict[str, type[Any]] = pool.pool_classes_by_scheme
    pool.pool_classes_by_scheme = {
        scheme: type(kind.__name__, (kind,), {"ConnectionCls": _bounded(kind.ConnectionCls)})
        for scheme, kind in known.items()
    }
    return pool


def _bounded(connection: type[Any]) -> type[Any]:
    return type(connection.__name__, (_Bounded, connection), {})
