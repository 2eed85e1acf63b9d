"""Give a command in a pod the terminal of this process, or its streams.

One thread, in which nothing waits for one side only: a command may want to be read from while it is
written to. What arrives is read whole, and a message is sent where the connection takes it at once.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from arena_topo.clusters.usage import pod_over
from arena_topo.engines import JobStatus, console
from arena_topo.engines.kubernetes import podexec
from arena_topo.engines.kubernetes.podlog import default_container
from arena_topo.engines.kubernetes.shapes import sound
from arena_topo.engines.kubernetes.writing import part
from arena_topo.errors import ArenaError, ClusterError, NotFound, NotPossible, TimedOut
from arena_topo.notes import Alert

if TYPE_CHECKING:
    import websocket

    from arena_topo.engines.kubernetes.connection import Connection

Object = dict[str, Any]

PING = 5.0
"""Seconds between two pings, which keep proxies from closing a connection that is silent."""

SILENCE = 61.0
"""Seconds without any sign of the server until the connection counts as lost.

Both are client-go's (v0.30, tools/remotecommand/websocket.go: pingPeriod, pingReadDeadline).
"""

_OPENING = 30.0
"""Seconds for the API server and the kubelet to agree on a connection."""

_FAREWELL = 2.0
"""Seconds after the exit code for the server to close the connection."""

_PIECE = 1 << 13
"""Bytes of input in a message: Linux calls a socket writable only where it takes more than that."""


def attach(
    api: Connection,
    job: JobStatus,
    instance: str,
    command: Sequence[str],
    *,
    container: str | None,
    terminal: bool,
    tell: Callable[[str], None],
) -> int:
    """Run a command in a container of a pod on this process's streams; its exit code.

    Without a command it is a shell. NotFound, NotPossible, AccessDenied; ClusterError where the
    command cannot be started or the connection breaks; TimedOut at the deadline of the connection.
    """
    space = part(job.namespace)
    pod = sound(api.get(f"/api/v1/namespaces/{space}/pods/{part(instance)}"))
    chosen = _container(pod, container, job, tell)
    words = tuple(command) or (console.SHELL if terminal else console.PLAIN_SHELL)
    feeds = terminal or console.offers_input(shell=not command)
    query = [*(("command", word) for word in words), ("container", chosen), ("stdout", "true")]
    query += [("stdin", "true")] if feeds else []
    # On a terminal both outputs are one.
    query.append(("tty" if terminal else "stderr", "true"))
    tell(f"Hello! Arena attach the container {chosen} of instance {instance}")
    opening = podexec.connected(
        api, space, part(instance), query, timeout=max(0.001, min(_OPENING, api.left))
    )
    try:
        with opening as opened:
            talk = _Talk(opened, api, instance, words, tell)
            if not terminal:
                return talk.run(feeds=feeds)
            with console.raw() as resized:
                try:
                    return talk.run(feeds=True, resized=resized)
                except ArenaError:
                    # What is said of it must not start in the middle of a line.
                    console.write(console.STDOUT, b"\r\n")
                    raise
    except ClusterError as error:
        raise _explained(error, words, named=bool(command)) from error
    except KeyboardInterrupt:
        tell(f"The command may go on in {instance}.")
        raise


def _explained(error: ClusterError, words: Sequence[str], *, named: bool) -> ClusterError:
    """The error with what to try, where the container has no such program."""
    absent = error.why or ""
    if "no such file" in absent or "not found" in absent:
        error.hint = (
            f"is {words[0]} in the image?"
            if named
            else "the image has no shell: name a command that it has, after --"
        )
    return error


# ---------------------------------------------------------------- which container


def _container(pod: Object, wanted: str | None, job: JobStatus, tell: Callable[[str], None]) -> str:
    """The container to go to; it runs."""
    spec, status, name = pod.get("spec") or {}, pod.get("status") or {}, pod["metadata"]["name"]
    if pod_over(pod):
        raise NotPossible(
            "cannot exec into a container in a completed Instance;"
            f" current phase is {status['phase']}",
            hint=f"arena-topo logs {job.name} -i {name} -n {job.namespace}",
        )
    main = [str(one.get("name")) for one in spec.get("containers") or ()]
    others = [
        str(one.get("name"))
        for kind in ("initContainers", "ephemeralContainers")
        for one in spec.get(kind) or ()
    ]
    if wanted is not None and wanted not in {*main, *others}:
        raise NotFound(
            f"container {wanted} is not valid for instance {name}",
            hint=f"choose one of: {', '.join([*main, *others])}",
        )
    chosen = wanted or default_container(pod)
    if chosen is None:
        raise NotPossible(f"instance {name} has no containers")
    why = _absence(status, chosen)
    if why is not None:
        raise NotPossible(
            f"container {chosen} of instance {name} is not running",
            why=why or job.reason,
            hint=_elsewhere(status, name, job) or f"arena-topo why {job.name} -n {job.namespace}",
        )
    if wanted is None and len(main) > 1:
        tell(f"Defaulting container name to {chosen}.")
    return chosen


def _statuses(status: Object) -> Iterator[Object]:
    for kind in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
        yield from status.get(kind) or ()


def _absence(status: Object, container: str) -> str | None:
    """Why a container does not run; None if it does, or nobody says that it does not."""
    for one in _statuses(status):
        state = one.get("state") or {}
        if one.get("name") != container:
            continue
        if "running" in state:
            return None
        if ended := state.get("terminated"):
            return f"it has ended with exit code {ended.get('exitCode')}"
        waiting = state.get("waiting") or {}
        said = [str(waiting[key]) for key in ("reason", "message") if waiting.get(key)]
        return ": ".join(said) or "it has not started yet"
    if status.get("phase") != "Pending":
        return None
    for one in status.get("conditions") or ():
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return str(one.get("message") or one.get("reason") or "")
    return ""


def _elsewhere(status: Object, instance: str, job: JobStatus) -> str | None:
    """The init container that runs now instead."""
    for one in status.get("initContainerStatuses") or ():
        if "running" in (one.get("state") or {}):
            return (
                f"its init container runs: arena-topo attach {job.name} -n {job.namespace}"
                f" -i {instance} -c {one.get('name')}"
            )
    return None


# ---------------------------------------------------------------- the conversation


class _Talk:
    """Hands on what either side says until the command has ended."""

    def __init__(
        self,
        opened: websocket.WebSocket,
        api: Connection,
        pod: str,
        command: Sequence[str],
        tell: Callable[[str], None],
    ) -> None:
        self._opened, self._server, self._pod = opened, api.access.server, pod
        self._command, self._tell = command, tell
        self._status = bytearray()
        self._waiting: deque[tuple[int, bytes]] = deque()
        """What is to be sent: kind and content of messages."""
        self._heard = self._pinged = time.monotonic()
        self._deadline = self._heard + api.left
        self._ended = math.inf
        self._size: tuple[int, int] | None = None

    def run(self, *, feeds: bool, resized: int | None = None) -> int:
        """The command's exit code; `resized` is readable when the terminal's size has changed."""
        sock: Any = self._opened.sock
        self._opened.settimeout(SILENCE)
        if resized is not None:
            self._resize()
        while (now := time.monotonic()) < self._ended:
            self._keep_alive(now)
            reads: list[Any] = [sock] if resized is None else [sock, resized]
            if feeds and not self._waiting:
                reads.append(console.STDIN)
            writes = [sock] if self._waiting else []
            patience = min(self._pinged + PING, self._deadline, self._ended) - now
            buffered = _buffered(sock)
            ready, free, _ = select.select(reads, writes, [], 0 if buffered else max(0, patience))
            if resized in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(resized or 0, _PIECE)
                self._resize()
            if console.STDIN in ready:
                feeds = self._feed()
            if free:
                feeds = self._send() and feeds
            if (buffered or sock in ready) and not self._receive():
                break
        if not self._status:
            why = "it was closed before the command ended"
            raise podexec.broken(self._server, self._pod, why)
        return podexec.exit_code(bytes(self._status), self._pod, self._command)

    def _receive(self) -> bool:
        """Take the next message, whole; False if there are no more."""
        from websocket import ABNF, WebSocketConnectionClosedException

        try:
            kind, data = self._opened.recv_data(control_frame=True)
        except WebSocketConnectionClosedException:
            return False
        except podexec.errors() as error:
            # Load balancers may reset what is over; the exit code has arrived for all that.
            if self._status:
                return False
            raise podexec.broken(self._server, self._pod, str(error)) from error
        self._heard = time.monotonic()
        if kind in {ABNF.OPCODE_BINARY, ABNF.OPCODE_TEXT} and data:
            channel, data = data[0], data[1:]
            if channel == podexec.STDOUT:
                console.write(console.STDOUT, data)
            elif channel == podexec.STDERR:
                console.write(console.STDERR, data)
            elif channel == podexec.STATUS:
                self._status += data
                self._ended = self._heard + _FAREWELL
        return bool(kind != ABNF.OPCODE_CLOSE)

    def _send(self) -> bool:
        """Send the first message that waits; False if the server takes none any more."""
        kind, data = self._waiting.popleft()
        try:
            self._opened.send(data, kind)
        except podexec.errors():
            # What it said before, such as the exit code, is still to be read, or why it broke.
            self._waiting.clear()
            return False
        return True

    def _say(self, channel: int, data: bytes) -> None:
        from websocket import ABNF

        self._waiting.append((ABNF.OPCODE_BINARY, bytes([channel]) + data))

    def _feed(self) -> bool:
        """Send on what is typed or piped; whether there may be more."""
        try:
            data = os.read(console.STDIN, _PIECE)
        except BlockingIOError:
            return True
        except OSError:
            # The terminal is gone.
            data = b""
        if data:
            self._say(podexec.STDIN, data)
        elif self._opened.subprotocol == podexec.PROTOCOLS[0]:
            self._say(podexec.CLOSED, bytes([podexec.STDIN]))
        else:
            self._tell(
                Alert(
                    "warning: this API server is older than 1.30 and cannot tell the command that"
                    " its input has ended; if it waits for more, Ctrl-C ends it"
                )
            )
        return bool(data)

    def _resize(self) -> None:
        with contextlib.suppress(OSError):
            now = console.size()
            if now != self._size:
                self._size = now
                value = {"Width": now[0], "Height": now[1]}
                self._say(podexec.SIZE, json.dumps(value).encode())

    def _keep_alive(self, now: float) -> None:
        from websocket import ABNF

        if now >= self._deadline:
            raise TimedOut(f"`{' '.join(self._command)}` still ran at the end of --timeout")
        if now - self._heard > SILENCE:
            raise podexec.broken(self._server, self._pod, f"silent for {SILENCE:g} s")
        if now - self._pinged >= PING:
            self._pinged = now
            if not self._waiting:
                self._waiting.append((ABNF.OPCODE_PING, b""))


def _buffered(sock: Any) -> bool:
    """Whether something has arrived that `select` does not see: the rest of a TLS record.

    Of TLS within TLS urllib3 holds the inner part itself.
    """
    inner, outer = getattr(sock, "sslobj", sock), getattr(sock, "incoming", None)
    return bool(getattr(inner, "pending", int)() or (outer is not None and outer.pending))
