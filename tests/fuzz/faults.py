"""A proxy before an API server that spoils answers: cut, late, of wrong types, huge, or no HTTP.

Unlike `proxy.py`, which lets a test say what goes wrong in the words of Kubernetes, it writes what
it likes to the socket.
"""

from __future__ import annotations

import json
import random
import re
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from . import mutators

LOGIN = b"<!DOCTYPE html><html><title>Sign in</title><script>alert(1)</script></html>"
FORGED = "\x1b]0;TITLE\x07\x1b[2Jred\nerror: FORGED line\r\u202egnp"
_LONG = 30.0
"""Seconds that a server says nothing at most, where nobody leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens to the request of a number, and with `lasting` to all after it."""

    kind: str
    at: int
    lasting: bool
    seed: int


def _answer(status: str, body: bytes, kind: str = "application/json", more: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n{more}\r\n".encode() + body


def _status(code: int, reason: str, message: str = "injected", more: str = "") -> bytes:
    said = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
    return _answer(f"{code} {reason}", json.dumps(said).encode(), more=more)


def _ok(body: bytes, more: str = "") -> bytes:
    return _answer("200 OK", body, more=more)


def _raw(*lines: str, body: bytes = b"") -> bytes:
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode("latin-1") + body


_WEIRD = b"""{"metadata": {"name": "x", "uid": 7, "annotations": [], "labels": 7,
 "creationTimestamp": "yesterday", "resourceVersion": {}}, "spec": [], "status": "x"}"""

ANSWERS: dict[str, bytes] = {
    "unauthorized": _status(401, "Unauthorized"),
    "forbidden": _status(403, "Forbidden", "forbidden: User cannot do it"),
    "not found": _status(404, "NotFound"),
    "no path": _answer("404 Not Found", b"404 page not found\n", "text/plain"),
    "no method": _status(405, "MethodNotAllowed"),
    "conflict": _status(409, "Conflict"),
    "exists": _status(409, "AlreadyExists"),
    "expired": _status(410, "Expired"),
    "too large": _answer("413 Too Large", LOGIN, "text/html"),
    "invalid": _status(422, "Invalid"),
    "later": _status(429, "TooManyRequests", more="Retry-After: 0\r\n"),
    "much later": _status(429, "TooManyRequests", more="Retry-After: 100000\r\n"),
    "never": _status(429, "TooManyRequests", more=f"Retry-After: {'9' * 400}\r\n"),
    "error": _status(500, "InternalError"),
    "bad gateway": _answer("502 Bad Gateway", LOGIN, "text/html"),
    "unavailable": _status(503, "ServiceUnavailable"),
    "long unavailable": _status(503, "ServiceUnavailable", more="Retry-After: 100000\r\n"),
    "login": _answer("200 OK", LOGIN, "text/html"),
    "login as JSON": _ok(LOGIN),
    "login first": _answer("401 Unauthorized", LOGIN, "text/html"),
    "login forbidden": _answer("403 Forbidden", LOGIN, "text/html"),
    "forged": _status(500, "InternalError", FORGED),
    "forged forbidden": _status(403, "Forbidden", FORGED),
    "forged reason": _raw("HTTP/1.1 500 \x1b[5;45mRED\x1b]0;x\x07", "Content-Length: 0"),
    "nothing": _ok(b""),
    "null": _ok(b"null"),
    "list": _ok(b"[]"),
    "object": _ok(b"{}"),
    "number": _ok(b"1e999"),
    "text": _ok(b'"x"'),
    "many digits": _ok(b'{"metadata":{"name":' + b"9" * 6000 + b"}}"),
    "deep": _ok(b"[" * 200_000 + b"]" * 200_000),
    "deep objects": _ok(b'{"a":' * 50_000 + b"1" + b"}" * 50_000),
    "not a number": _ok(b'{"kind":"NodeList","items":NaN,"metadata":{"resourceVersion":Infinity}}'),
    "items of null": _ok(b'{"kind":"PodList","metadata":{},"items":[null]}'),
    "weird items": _ok(b'{"kind":"PodList","metadata":{},"items":[' + _WEIRD + b"]}"),
    "weird": _ok(b'{"kind":"MPIJob",' + _WEIRD[1:]),
    "UTF-16": _ok('{"kind":"PodList","items":[]}'.encode("utf-16")),
    "no UTF-8": _ok(b'{"kind":"PodList","items":[],"metadata":{"name":"\xff\xfe"}}'),
    "surrogate": _ok(b'{"items":[],"metadata":{"name":"\\ud800","resourceVersion":"\\u001b[5m"}}'),
    "failure with 200": _ok(_status(500, "InternalError").partition(b"\r\n\r\n")[2]),
    "no items": _ok(b'{"kind":"PodList","metadata":{"resourceVersion":"5"}}'),
    "continued for ever": _ok(
        b'{"kind":"PodList","metadata":{"resourceVersion":"5","continue":"abc"},"items":[]}'
    ),
    "status 999": _raw("HTTP/1.1 999 Huh", "Content-Length: 0"),
    "radio": _raw("ICY 200 OK"),
    "HTTP 0.9": b"hello world\n",
    "negative length": _raw("HTTP/1.1 200 OK", "Content-Length: -5", body=b"{}"),
    "length in words": _raw("HTTP/1.1 200 OK", "Content-Length: abc", body=b"{}"),
    "two lengths": _raw("HTTP/1.1 200 OK", "Content-Length: 2", "Content-Length: 5", body=b"{}"),
    "bad chunk": _raw(
        "HTTP/1.1 200 OK", "Transfer-Encoding: chunked", body=b"ZZ\r\n{}\r\n0\r\n\r\n"
    ),
    "negative chunk": _raw("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", body=b"-5\r\n{}\r\n"),
    "continue": _raw("HTTP/1.1 100 Continue") * 200,
    "upgrade": _raw("HTTP/1.1 101 Switching", "Upgrade: x", "Connection: Upgrade"),
    "no content": _raw("HTTP/1.1 204 No Content", "Connection: close"),
    "not modified": _raw("HTTP/1.1 304 Not Modified", "Connection: close"),
    "many headers": _raw("HTTP/1.1 200 OK", *(f"X-{at}: y" for at in range(5000))),
    "long header": _raw("HTTP/1.1 200 OK", f"X: {'y' * 5_000_000}"),
    "bad date": _ok(b"{}", more="Date: Mon, 99 Foo 99999999999 99:99:99 GMT\r\n"),
    "unknown encoding": _ok(b"xx", more="Content-Encoding: br\r\n"),
    "bad gzip": _ok(b"not gzip", more="Content-Encoding: gzip\r\n"),
}
SPOILED = ("mutated", "mutated", "mutated", "cut", "half", "half and reset", "cut head")
"""What the server answers, changed."""
BROKEN = ("reset", "close", "late reset", "late close", "garbage")
REDIRECTS = ("301", "302", "303", "307", "308", "302 self", "302 file", "302 lines")
SLOW = ("hang", "late hang", "longer than said", "drip", "endless", "endless items")
KINDS = (*(*ANSWERS, *REDIRECTS) * 2, *SPOILED * 12, *BROKEN * 2, *SLOW)
"""Faults, as often as they are tried: those that take their time more seldom."""


class FaultyProxy:
    """`url` is where clients go; `stranger` hears of all who follow a redirect."""

    def __init__(self, behind: str) -> None:
        host, _, port = behind.rpartition("/")[2].partition(":")
        self.behind = (host, int(port))
        self.fault: Fault | None = None
        self.lines: list[str] = []
        self.strangers: list[bytes] = []
        self.lock = threading.Lock()
        self._servers = [_Server(self._spoil), _Server(self._strange)]
        self.port, self._elsewhere = (one.server_address[1] for one in self._servers)
        self.url = f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        """Stop answering."""
        for one in self._servers:
            one.shutdown()
            one.server_close()

    def expect(self, fault: Fault | None) -> None:
        """Let a fault happen to the requests from now on, or none."""
        with self.lock:
            self.fault, self.lines, self.strangers = fault, [], []

    def _strange(self, connection: socket.socket) -> None:
        self.strangers.append(connection.recv(65536))
        connection.sendall(_ok(b'{"kind":"PodList","metadata":{"resourceVersion":"1"},"items":[]}'))

    def _spoil(self, connection: socket.socket) -> None:
        request = _read(connection)
        if not request:
            return
        line = request.partition(b"\r\n")[0].decode("latin-1")
        with self.lock:
            number, fault = len(self.lines), self.fault
            self.lines.append(line)
        if fault is None or number < fault.at or (number > fault.at and not fault.lasting):
            self._forward(connection, request)
        elif fault.kind in ANSWERS:
            connection.sendall(ANSWERS[fault.kind])
        elif fault.kind in REDIRECTS:
            connection.sendall(self._redirect(fault.kind, line.split()[1]))
        elif fault.kind in SPOILED:
            self._spoiled(connection, request, fault)
        elif fault.kind in SLOW:
            self._slow(connection, request, fault.kind)
        else:
            self._broken(connection, request, fault)

    def _redirect(self, kind: str, path: str) -> bytes:
        where = {
            "302 self": path,
            "302 file": "file:///etc/passwd",
            "302 lines": f"http://127.0.0.1:{self._elsewhere}/%0d%0aX: y",
        }.get(kind, f"http://127.0.0.1:{self._elsewhere}{path}")
        return _answer(f"{kind[:3]} Moved", b"", more=f"Location: {where}\r\n")

    def _upstream(self, request: bytes) -> socket.socket:
        head, end, body = request.partition(b"\r\n\r\n")
        if b"upgrade:" not in head.lower():
            head = re.sub(rb"(?im)^(?:connection|accept-encoding):[^\n]*\n", b"", head + b"\r\n")
            head += b"Connection: close"
        upstream = socket.create_connection(self.behind, timeout=_LONG)
        upstream.sendall(head + end + body)
        return upstream

    def _forward(self, connection: socket.socket, request: bytes) -> None:
        with self._upstream(request) as upstream:
            if b"upgrade:" in request.lower():
                threading.Thread(target=_pump, args=(connection, upstream), daemon=True).start()
            _pump(upstream, connection)

    def _whole(self, request: bytes) -> tuple[bytes, bytes]:
        """The head and the body of what the server answers, as far as it does so at once."""
        with self._upstream(request) as upstream:
            upstream.settimeout(1.0)
            data = b""
            with suppress(OSError):
                while more := upstream.recv(65536):
                    data += more
        head, _, body = data.partition(b"\r\n\r\n")
        return head, body

    def _spoiled(self, connection: socket.socket, request: bytes, fault: Fault) -> None:
        head, body = self._whole(request)
        half = len(body) // 2
        match fault.kind:
            case "mutated":
                connection.sendall(_ok(_mutated(random.Random(fault.seed), body)))
            case "cut":
                connection.sendall(_ok(body[: max(1, fault.seed % (len(body) + 1))]))
            case "cut head":
                connection.sendall(head[: len(head) // 2])
            case _:
                connection.sendall(head + b"\r\n\r\n" + body[:half])
                if fault.kind == "half and reset":
                    time.sleep(0.02)
                    _reset(connection)

    def _broken(self, connection: socket.socket, request: bytes, fault: Fault) -> None:
        if fault.kind.startswith("late"):
            self._whole(request)
        if fault.kind == "garbage":
            connection.sendall(random.Random(fault.seed).randbytes(500))
        if fault.kind.endswith("reset"):
            _reset(connection)

    def _slow(self, connection: socket.socket, request: bytes, kind: str) -> None:
        connection.settimeout(_LONG)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
        match kind:
            case "endless":
                _flood(connection, head + b'\r\n{"x":"', b"a" * 65536)
            case "endless items":
                item = b'{"metadata":{"name":"a"}},'
                _flood(connection, head + b'\r\n{"kind":"PodList","items":[', item * 2000)
            case "drip":
                said, body = self._whole(request)
                connection.sendall(said + b"\r\n\r\n")
                for byte in body:
                    connection.sendall(bytes([byte]))
                    time.sleep(0.05)
            case "longer than said":
                connection.sendall(head + b"Content-Length: 99999999\r\n\r\n" + b"{}")
                connection.recv(1)
            case _:
                if kind == "late hang":
                    self._whole(request)
                connection.recv(1)


def _mutated(rng: random.Random, body: bytes) -> bytes:
    try:
        sample = mutators.Sample.of(json.loads(body))
    except ValueError:
        return mutators.text(rng, body)
    changed = mutators.encoded(mutators.value(rng, sample), rng)
    return mutators.text(rng, changed) if rng.random() < 0.1 else changed


def _flood(connection: socket.socket, first: bytes, piece: bytes) -> None:
    connection.sendall(first)
    for _ in range((1 << 30) // len(piece)):
        connection.sendall(piece)


def _read(connection: socket.socket) -> bytes:
    """A whole request."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return b""
        data += more
    length = re.search(rb"(?i)\ncontent-length: *(\d+)", data.partition(b"\r\n\r\n")[0])
    whole = data.index(b"\r\n\r\n") + 4 + (int(length[1]) if length else 0)
    while len(data) < whole:
        data += connection.recv(65536)
    return data


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


class _Server(socketserver.ThreadingTCPServer):
    """Answers each connection in a thread of its own."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, answer: Callable[[socket.socket], object]) -> None:
        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with suppress(OSError):
                    answer(self.request)

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()

    def handle_error(self, *_: Any) -> None:
        """Say nothing: a client that leaves is no news."""
