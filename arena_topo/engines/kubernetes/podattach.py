"""Give a command in a pod the terminal of this process, or its streams.

One thread, and nothing in it waits for one side only: a command may want to be read from while it
is written to. Frames are taken apart here (RFC 6455, section 5.2); `podexec` opens the connection.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from arena_topo.clusters.usage import pod_over
from arena_topo.engines import JobStatus, console
from arena_topo.engines.kubernetes import podexec
from arena_topo.engines.kubernetes.podlog import default_container
from arena_topo.engines.kubernetes.shapes import sound
from arena_topo.engines.kubernetes.writing import part
from arena_topo.errors import ArenaError, ClusterError, NotFound, NotPossible, TimedOut

if TYPE_CHECKING:
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

_PIECE = 1 << 15
"""Bytes read at once; a TLS record has half of that at most (RFC 8446, section 5.1)."""

_MOST_WAITING = 1 << 18
"""Bytes on their way to the server from which on no more input is read."""

_PER_TURN = 1 << 20
"""Bytes taken from the server before keys are looked at again."""

_TEXT, _BINARY, _CLOSE, _PINGED, _PONG = 1, 2, 8, 9, 10
_CONTROL = 8
_NOT_YET = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


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
    opened = podexec.connect(
        api, space, part(instance), query, timeout=max(0.001, min(_OPENING, api.left))
    )
    try:
        link = _Link(opened.sock, api.access.server, instance)
        talk = _Talk(link, words, closes=opened.subprotocol == podexec.PROTOCOLS[0], tell=tell)
        talk.deadline = time.monotonic() + api.left
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
    finally:
        opened.shutdown()


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
        self, link: _Link, command: Sequence[str], *, closes: bool, tell: Callable[[str], None]
    ) -> None:
        self._link, self._command, self._closes, self._tell = link, command, closes, tell
        self._status = bytearray()
        self._heard = time.monotonic()
        self._pinged = self._heard
        self._size: tuple[int, int] | None = None
        self.deadline = math.inf

    def run(self, *, feeds: bool, resized: int | None = None) -> int:
        """The command's exit code; `resized` is readable when the terminal's size has changed."""
        link, ended = self._link, math.inf
        if resized is not None:
            self._resize()
        while True:
            # Even before the first `select`, which sees nothing of what came in one TLS record with
            # the server's consent.
            if not self._exchange():
                break
            if self._status and ended == math.inf:
                ended = time.monotonic() + _FAREWELL
            self._keep_alive()
            if not link.open or time.monotonic() >= ended:
                break
            reads: list[Any] = [link.socket]
            if resized is not None:
                reads.append(resized)
            if feeds and link.waiting < _MOST_WAITING:
                reads.append(console.STDIN)
            writes = [link.socket] if link.waiting else []
            ready, _, _ = select.select(reads, writes, [], self._patience(ended))
            if resized is not None and resized in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(resized, _PIECE)
                self._resize()
            if console.STDIN in ready:
                feeds = self._feed()
        if not self._status:
            raise podexec.broken(link.server, link.pod, "it was closed before the command ended")
        return podexec.exit_code(bytes(self._status), link.pod, self._command)

    def _exchange(self) -> bool:
        """Take what has arrived, and send what waits; False where that is over for good."""
        try:
            for channel, data in self._link.received():
                self._take(channel, data)
            self._link.flush()
        except ClusterError:
            # Load balancers may reset what is over; the exit code has arrived for all that.
            if not self._status:
                raise
            return False
        return True

    def _patience(self, ended: float) -> float:
        now = time.monotonic()
        return max(0.0, min(self._pinged + PING, self.deadline, ended) - now)

    def _take(self, channel: int, data: bytes) -> None:
        self._heard = time.monotonic()
        if channel == podexec.STDOUT:
            console.write(console.STDOUT, data)
        elif channel == podexec.STDERR:
            console.write(console.STDERR, data)
        elif channel == podexec.STATUS:
            self._status += data

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
            self._link.send(podexec.STDIN, data)
        elif self._closes:
            self._link.send(podexec.CLOSED, bytes([podexec.STDIN]))
        else:
            self._tell(
                "warning: this API server is older than 1.30 and cannot tell the command that its"
                " input has ended; if it waits for more, Ctrl-C ends it"
            )
        return bool(data)

    def _resize(self) -> None:
        with contextlib.suppress(OSError):
            now = console.size()
            if now != self._size:
                self._size = now
                value = {"Width": now[0], "Height": now[1]}
                self._link.send(podexec.SIZE, json.dumps(value).encode())

    def _keep_alive(self) -> None:
        now = time.monotonic()
        if now >= self.deadline:
            raise TimedOut(f"`{' '.join(self._command)}` still ran at the end of --timeout")
        if now - self._heard > SILENCE:
            raise podexec.broken(self._link.server, self._link.pod, f"silent for {SILENCE:g} s")
        if now - self._pinged >= PING:
            self._pinged = now
            self._link.ping()


class _Link:
    """Frames over a socket that never blocks."""

    def __init__(self, opened: socket.socket, server: str, pod: str) -> None:
        opened.setblocking(False)
        self.socket, self.server, self.pod = opened, server, pod
        self.open = True
        self._in, self._out = bytearray(), bytearray()
        self._message = bytearray()

    @property
    def waiting(self) -> int:
        """Bytes that have not left yet."""
        return len(self._out)

    def send(self, channel: int, data: bytes) -> None:
        """Put a message on its way."""
        self._frame(_BINARY, bytes([channel]) + data)

    def ping(self) -> None:
        """Ask for a sign of life."""
        self._frame(_PINGED, b"")

    def _frame(self, opcode: int, data: bytes) -> None:
        from websocket import ABNF

        self._out += ABNF.create_frame(data, opcode).format()

    def flush(self) -> None:
        """Send what the connection takes now."""
        while self._out:
            try:
                sent = self.socket.send(memoryview(self._out)[:_PIECE])
            except _NOT_YET:
                return
            except OSError as error:
                if isinstance(error, ssl.SSLEOFError | ConnectionError) and not self.open:
                    return
                raise podexec.broken(self.server, self.pod, error.strerror or str(error)) from error
            del self._out[:sent]

    def received(self) -> Iterator[tuple[int, bytes]]:
        """The messages that have arrived, each with its channel."""
        taken = 0
        while self.open and taken < _PER_TURN:
            try:
                # More than a TLS record: nothing of one is left where `select` does not see it.
                data = self.socket.recv(_PIECE)
            except _NOT_YET:
                break
            except OSError as error:
                raise podexec.broken(self.server, self.pod, error.strerror or str(error)) from error
            if not data:
                self.open = False
            taken += len(data)
            self._in += data
            yield from self._messages()

    def _messages(self) -> Iterator[tuple[int, bytes]]:
        at = 0
        while (found := _frame_at(self._in, at)) is not None:
            last, opcode, start, at = found
            data = bytes(self._in[start:at])
            if opcode == _CLOSE:
                self.open = False
            elif opcode == _PINGED:
                self._frame(_PONG, data)
            elif opcode == _PONG:
                yield -1, b""
            elif opcode < _CONTROL:
                self._message += data
                if last and self._message:
                    yield self._message[0], bytes(self._message[1:])
                if last:
                    self._message.clear()
        del self._in[:at]


def _frame_at(data: bytearray, at: int) -> tuple[bool, int, int, int] | None:
    """Whether the frame at a byte is a message's last, its kind, its start and its end.

    None if it has not arrived whole.
    """
    head = 2
    if len(data) < at + head:
        return None
    size = data[at + 1] & 0x7F
    form = {126: ">H", 127: ">Q"}.get(size)
    if form is not None:
        head += struct.calcsize(form)
        if len(data) < at + head:
            return None
        (size,) = struct.unpack_from(form, data, at + 2)
    if len(data) < at + head + size:
        return None
    return bool(data[at] & 0x80), data[at] & 0x0F, at + head, at + head + size
