"""A proxy before an API server, fake or real, on which requests go wrong as a test wants.

Clients speak plain HTTP to it and need no credentials: it adds those of the kubeconfig behind it.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from socketserver import StreamRequestHandler, TCPServer, ThreadingMixIn
from typing import Any

from fake_api import kubeconfig
from fake_store import STALE

from arena_topo.engines import Options
from arena_topo.engines.kubernetes.connection import Connection

MODIFIED = (
    "the object has been modified; please apply your changes to the latest version and try again"
)
KEPT = {"content-type", "date", "warning", "retry-after", "audit-id"}


@dataclass(slots=True, kw_only=True)
class Trouble:
    """What happens to requests whose `METHOD /path` matches, so many times, after `skip` of them.

    `late`: the server does what was asked before the client hears of the trouble.
    """

    match: str
    times: int = 1
    skip: int = 0
    delay: float = 0.0
    status: int | None = None
    message: str = "the server is currently unable to handle the request"
    reason: str = "ServiceUnavailable"
    retry_after: int | None = None
    reset: bool = False
    cut: int | None = None
    """Bytes of the body after which the connection is reset."""
    torn: bool = False
    """The answer is half of the body, and says that this is all of it."""
    lines: int | None = None
    """Events of a watch after which it ends."""
    late: bool = False
    call: Callable[[], object] | None = None


class Proxy:
    """`config` is the kubeconfig of the server behind; `url` is where clients go."""

    def __init__(self, config: str) -> None:
        self._behind = Connection(Options(kubeconfig=config))
        self.troubles: list[Trouble] = []
        self.requests: list[str] = []
        self._lock = threading.Lock()
        proxy = self

        class Connected(_Handler):
            owner = proxy

        class Server(ThreadingMixIn, TCPServer):
            daemon_threads = True
            allow_reuse_address = True
            request_queue_size = 128
            # A client that leaves is no news.
            handle_error = staticmethod(lambda *_: None)

        self._server = Server(("127.0.0.1", 0), Connected)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def kubeconfig(self, path: Path, namespace: str | None = None) -> str:
        """Write a kubeconfig for clients of the proxy."""
        return kubeconfig(path, self.url, namespace=namespace)

    # Troubles by name.

    def slow(self, match: str, seconds: float, *, times: int = 1) -> None:
        """Answer late."""
        self.troubles.append(Trouble(match=match, times=times, delay=seconds))

    def fail(self, match: str, status: int = 500, **more: Any) -> None:
        """Answer with an error, such as 429 with `retry_after`, or 500."""
        self.troubles.append(Trouble(match=match, status=status, **more))

    def cut(self, match: str, after: int = 100, *, times: int = 1) -> None:
        """Reset the connection in the middle of the answer's body."""
        self.troubles.append(Trouble(match=match, times=times, cut=after))

    def reset(self, match: str, *, times: int = 1, late: bool = False) -> None:
        """Reset the connection instead of an answer; `late`: what was asked for was done."""
        self.troubles.append(Trouble(match=match, times=times, reset=True, late=late))

    def expire(self, *, times: int = 1) -> None:
        """Let continue tokens be too old."""
        self.troubles.append(
            Trouble(match="continue=", times=times, status=410, message=STALE, reason="Expired")
        )

    def end_watch(self, match: str = "watch=", after: int = 0, *, times: int = 1) -> None:
        """End a watch after so many events."""
        self.troubles.append(Trouble(match=match, times=times, lines=after))

    def conflicts(self, match: str, times: int) -> None:
        """Let writes find that somebody else was faster."""
        message = f"Operation cannot be fulfilled: {MODIFIED}"
        self.troubles.append(
            Trouble(match=match, times=times, status=409, message=message, reason="Conflict")
        )

    def after(self, number: int, call: Callable[[], object], match: str = ".") -> None:
        """Do something, such as killing the client, once the Nth request that matches is done.

        Its answer never arrives.
        """
        self.troubles.append(
            Trouble(match=match, skip=number - 1, reset=True, late=True, call=call)
        )

    def trouble(self, line: str) -> Trouble | None:
        """The trouble that a request is in."""
        with self._lock:
            self.requests.append(line)
            for one in self.troubles:
                if one.times <= 0 or not re.search(one.match, line):
                    continue
                if one.skip:
                    one.skip -= 1
                    continue
                one.times -= 1
                return one
        return None

    def send(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Any:
        """Ask the server behind; the answer is read by whoever asked."""
        access = self._behind.access
        return self._behind._pool.request(
            method,
            path,
            {**access.headers, **headers}.items(),
            body,
            connect=10,
            rest=lambda: math.inf,
        )


class _Handler(StreamRequestHandler):
    owner: Proxy
    disable_nagle_algorithm = True

    def handle(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while self._one():
                pass

    def _one(self) -> bool:
        line = self.rfile.readline(65536).decode("latin-1").split()
        if len(line) != 3:
            return False
        method, path, _ = line
        headers: dict[str, str] = {}
        while text := self.rfile.readline(65536).decode("latin-1").strip():
            name, _, value = text.partition(":")
            headers[name.lower()] = value.strip()
        length = int(headers.get("content-length") or 0)
        body = self.rfile.read(length) if length else None
        trouble = self.owner.trouble(f"{method} {path}") or Trouble(match="")
        time.sleep(trouble.delay)
        if not trouble.late and self._spoilt(trouble):
            return True
        passed = {
            name: headers[name]
            for name in ("authorization", "content-type", "accept", "impersonate-user")
            if name in headers
        }
        answer = self.owner.send(method, path, body, passed)
        try:
            if trouble.late:
                b"".join(answer.pieces())
                if trouble.call is not None:
                    trouble.call()
                if self._spoilt(trouble):
                    return True
            self._pass_on(answer, trouble, streams="watch=" in path or "follow=true" in path)
        finally:
            answer.close()
        return True

    def _spoilt(self, trouble: Trouble) -> bool:
        """Answer with the trouble itself, if it is one."""
        if trouble.reset:
            self._reset()
        if trouble.status is None:
            return False
        body = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {"continue": "again"} if trouble.reason == "Expired" else {},
            "status": "Failure",
            "message": trouble.message,
            "reason": trouble.reason,
            "code": trouble.status,
        }
        headers = {"content-type": "application/json"}
        if trouble.retry_after is not None:
            headers["retry-after"] = str(trouble.retry_after)
        self._send(trouble.status, headers, json.dumps(body).encode())
        return True

    def _pass_on(self, answer: Any, trouble: Trouble, *, streams: bool) -> None:
        headers = {name: value for name, value in answer.headers.items() if name.lower() in KEPT}
        if not streams:
            body = b"".join(answer.pieces())
            whole = body[: len(body) // 2] if trouble.torn else body
            self._send(answer.status, headers, whole, cut=trouble.cut)
            return
        self._head(answer.status, {**headers, "transfer-encoding": "chunked"})
        left = trouble.lines
        if left != 0:
            for piece in answer.pieces():
                for line in piece.splitlines(keepends=True):
                    self._write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                    if left is not None and line.endswith(b"\n"):
                        left -= 1
                    if left == 0:
                        break
                if left == 0:
                    break
        self._write(b"0\r\n\r\n")

    def _head(self, status: int, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._write("\r\n".join([*lines, "", ""]).encode("latin-1"))

    def _send(
        self, status: int, headers: dict[str, str], body: bytes, *, cut: int | None = None
    ) -> None:
        self._head(status, {**headers, "content-length": str(len(body))})
        self._write(body if cut is None else body[:cut])
        if cut is not None and cut < len(body):
            # What was sent must arrive before the reset does.
            time.sleep(0.02)
            self._reset()

    def _write(self, data: bytes) -> None:
        self.wfile.write(data)

    def _reset(self) -> None:
        # Linger 0 makes close() send RST.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RD)
        self.connection.close()
        raise BrokenPipeError
