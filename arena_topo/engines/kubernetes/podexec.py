"""Run a command in a container of a pod: for its output, or on this process's own streams.

The protocol is WebSocket: each message starts with the number of its channel, the last of which
carries a Status with the exit code (kubernetes, apimachinery pkg/util/remotecommand/constants.go;
`v5.channel.k8s.io`, since 1.30). The connection is made as for requests, through a proxy if there
is one; websocket-client runs over it.

One thread reads and writes, and never blocks on one direction: a command may write while it is
written to. Received messages are read whole, and a message is sent if the connection accepts it at
once.
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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from arena_topo.clusters.objects import items, mapping_at
from arena_topo.clusters.rules import OVER
from arena_topo.engines import JobStatus, raw_terminal
from arena_topo.engines.attach_request import AttachRequest
from arena_topo.engines.kubernetes.connection import CONNECT_TIMEOUT, log
from arena_topo.engines.kubernetes.failures import refusal_error
from arena_topo.engines.kubernetes.job_writer import part
from arena_topo.engines.kubernetes.mpijob import pod_status
from arena_topo.engines.kubernetes.podlog import default_container
from arena_topo.engines.kubernetes.shapes import kube_object
from arena_topo.engines.kubernetes.transport import Rest, pending, set_socket_timeout
from arena_topo.errors import ArenaError, ClusterError, NotFound, NotPossible, TimedOut
from arena_topo.numbers import parse_count

if TYPE_CHECKING:
    import websocket

    from arena_topo.engines.kubernetes.connection import Connection

Object = dict[str, Any]

PROTOCOL = "v5.channel.k8s.io"

STDIN_CHANNEL, STDOUT, STDERR, STATUS, SIZE, CLOSED = 0, 1, 2, 3, 4, 255
"""Channels. SIZE carries the terminal's size, CLOSED the number of a channel that has ended."""

PING = 5.0
"""Seconds between two pings, which prevent proxies from closing a silent connection."""

SERVER_SILENCE = 61.0
"""Seconds without any message of the server until the connection counts as lost.

Both are client-go's (v0.30, tools/remotecommand/websocket.go: pingPeriod, pingReadDeadline).
"""

_OPENING = 30.0
"""The timeout in seconds of the handshake between the API server and the kubelet."""

_FAREWELL = 2.0
"""Seconds after the exit code for the server to close the connection."""

_MOST = 4 << 20
"""The limit of bytes that `execute` collects of each output; the command is a tenant's."""

_PIECE = 1 << 13
"""Bytes of input in a message: Linux reports a socket as writable only if it has room for more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The exit code and the output of a command."""

    code: int
    stdout: bytes = b""
    stderr: bytes = b""


def execute(
    api: Connection,
    namespace: str,
    pod: str,
    command: Sequence[str],
    *,
    container: str | None = None,
    timeout: float = 10.0,
) -> Done:
    """Run a command and wait for its end; `timeout` (seconds) limits all of it.

    NotFound if the pod does not exist, AccessDenied if that is not allowed, TimedOut if the command
    does not end, ClusterError if it cannot be started, prints too much or the connection breaks.
    """
    query = [*(("command", word) for word in command), ("stdout", "true"), ("stderr", "true")]
    if container is not None:
        query.append(("container", container))
    late = f"a command in pod {pod} did not end within {timeout:g} s"
    wrote = {STDOUT: bytearray(), STDERR: bytearray()}

    def collect(channel: int, data: bytes) -> None:
        wrote[channel].extend(data)
        if len(wrote[channel]) > _MOST:
            words = " ".join(command)
            raise ClusterError(f"`{words}` in pod {pod} prints more than {_MOST >> 20} MiB")

    deadline = time.monotonic() + timeout
    patience = min(CONNECT_TIMEOUT, timeout)
    with _connected(api, namespace, pod, query, timeout=patience) as opened:
        talk = _Talk(opened, deadline, late, collect)
        status = talk.run(api.access.server, pod)
    code = command_exit_code(status, pod, command)
    return Done(code=code, stdout=bytes(wrote[STDOUT]), stderr=bytes(wrote[STDERR]))


def attach_container(
    api: Connection,
    job: JobStatus,
    instance: str,
    request: AttachRequest,
    *,
    tell: Callable[[str], None],
) -> int:
    """Run a command in a container of a pod on this process's streams; its exit code.

    NotFound, NotPossible, AccessDenied; ClusterError if the command
    cannot be started or the connection breaks; TimedOut at the deadline of the connection.
    """
    space = part(job.namespace)
    pod = api.get(f"/api/v1/namespaces/{space}/pods/{part(instance)}")
    chosen = _container(pod, request.container, job, tell)
    words, terminal = request.command, request.terminal
    feeds = terminal or raw_terminal.offers_input(shell=not request.words)
    query = [*(("command", word) for word in words), ("container", chosen), ("stdout", "true")]
    query += [("stdin", "true")] if feeds else []
    # A terminal merges both outputs.
    query.append(("tty" if terminal else "stderr", "true"))
    tell(f"Attached to container {chosen} of {instance}")
    late = f"`{' '.join(words)}` still ran at the end of --timeout"
    deadline = time.monotonic() + api.left
    patience = max(0.001, min(_OPENING, api.left))
    try:
        with _connected(api, space, instance, query, timeout=patience) as opened:
            talk = _Talk(opened, deadline, late, raw_terminal.write)
            with raw_terminal.raw() if terminal else contextlib.nullcontext() as resized:
                try:
                    status = talk.run(api.access.server, instance, feeds=feeds, resized=resized)
                except ArenaError:
                    if terminal:
                        # Messages of the program must not start in the middle of a line.
                        raw_terminal.write(raw_terminal.STDOUT, b"\r\n")
                    raise
        return command_exit_code(status, instance, words)
    except ClusterError as error:
        if "no such file" in (error.why or "") or "not found" in (error.why or ""):
            error.hint = (
                f"check that {words[0]} is in the image"
                if request.words
                else "the image has no shell: name a command that it has, after --"
            )
        raise
    except KeyboardInterrupt:
        tell(f"The command may go on in {instance}.")
        raise


def _container(pod: Object, wanted: str | None, job: JobStatus, tell: Callable[[str], None]) -> str:
    """The container to run in: the given one or the main one; NotPossible unless it runs."""
    fields = kube_object(pod)
    spec, status, name = fields.spec, fields.status, fields.metadata.name
    if status.phase in OVER:
        raise NotPossible(
            f"cannot attach to {name}: it has ended ({status.phase})",
            hint=f"arena-topo logs {job.name} -i {name} -n {job.namespace}",
        )
    containers = (*spec.containers, *spec.init_containers, *spec.ephemeral_containers)
    known = [container.name for container in containers]
    if wanted is not None and wanted not in known:
        raise NotFound(
            f"container {wanted} is not valid for instance {name}",
            hint=f"choose one of: {', '.join(known)}",
        )
    chosen = wanted or default_container(pod)
    if chosen is None:
        raise NotPossible(f"instance {name} has no containers")
    reported = (
        *status.container_statuses,
        *status.init_container_statuses,
        *status.ephemeral_container_statuses,
    )
    running = [entry.state.running is not None for entry in reported if entry.name == chosen]
    if not all(running) or (not running and status.phase == "Pending"):
        raise NotPossible(
            f"container {chosen} of instance {name} is not running",
            why=f"the status of the pod is {pod_status(pod)}",
            hint=f"arena-topo why {job.name} -n {job.namespace}",
        )
    if wanted is None and len(spec.containers) > 1:
        tell(f"Defaulting container name to {chosen}.")
    return chosen


@contextlib.contextmanager
def _connected(
    api: Connection,
    namespace: str,
    pod: str,
    query: Sequence[tuple[str, str]],
    *,
    timeout: float,
) -> Iterator[websocket.WebSocket]:
    """A connection to a command in a pod, which `query` describes; `timeout` in seconds.

    NotFound if the pod does not exist, AccessDenied if that is not allowed, TimedOut, ClusterError.
    """
    import websocket

    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/exec"
    access, begun, outcome = api.access, time.monotonic(), "failed"
    sock: Any = None
    try:
        try:
            sock = api.dialled(timeout)
            end = begun + timeout
            opened = websocket.create_connection(
                f"ws{access.server.removeprefix('http')}{path}?{urlencode(query)}",
                socket=_Limited(sock, lambda: end - time.monotonic()),
                header=[f"{key}: {value}" for key, value in access.sent],
                subprotocols=[PROTOCOL],
                # A header of browsers, which some API servers refuse.
                suppress_origin=True,
                redirect_limit=0,
                enable_multithread=False,
            )
            opened.sock = sock
            outcome = str(opened.status)
        except websocket.WebSocketBadStatusException as error:
            outcome = str(error.status_code)
            # The required right is create on pods/exec, for every HTTP method.
            body = error.resp_body or b""
            raise refusal_error("POST", path, error.status_code, None, body) from error
        except (websocket.WebSocketTimeoutException, TimeoutError) as error:
            raise TimedOut(f"pod {pod} did not take a command within {timeout:g} s") from error
        except (websocket.WebSocketException, OSError) as error:
            raise _broken(access.server, pod, str(error)) from error
        finally:
            log("GET", path, outcome, begun)
        yield opened
    finally:
        if sock is not None:
            sock.close()


class _Limited:
    """A socket whose steps have the time that is left, for a handshake as a whole."""

    def __init__(self, sock: Any, rest: Rest) -> None:
        self._sock, self._rest = sock, rest

    def recv(self, size: int) -> bytes:
        """Receive some bytes; TimeoutError."""
        set_socket_timeout(self._sock, self._rest)
        data: bytes = self._sock.recv(size)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def _broken(server: str, pod: str, why: str) -> ClusterError:
    return ClusterError(f"{server} broke the connection to pod {pod}", why=why or None)


def command_exit_code(status: bytes, pod: str, command: Sequence[str]) -> int:
    """The exit code in a Status; ClusterError if the command did not run to its end."""
    try:
        document = json.loads(status)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise ClusterError(f"the connection to pod {pod} ended before `{' '.join(command)}` did")
    if document.get("status") == "Success":
        return 0
    if document.get("reason") == "NonZeroExitCode":
        # A Status without an integer code has none.
        with contextlib.suppress(TypeError):
            for cause in items(mapping_at(document, "details"), "causes"):
                code = (
                    parse_count(cause.get("message")) if cause.get("reason") == "ExitCode" else None
                )
                if code is not None:
                    return code
    raise ClusterError(
        f"`{' '.join(command)}` cannot be run in pod {pod}",
        why=str(document.get("message") or document.get("reason") or "") or None,
    )


class _Talk:
    """Copies data in both directions until the command has ended, or the deadline has passed."""

    def __init__(
        self,
        opened: websocket.WebSocket,
        deadline: float,
        late: str,
        write: Callable[[int, bytes], object],
    ) -> None:
        self._opened, self._deadline, self._late, self._write = opened, deadline, late, write
        self._status = bytearray()
        self._waiting: deque[tuple[int, bytes]] = deque()
        """The messages to send: kind and content."""
        self._heard = self._pinged = time.monotonic()
        self._ended = math.inf
        self._why = "it was closed before the command ended"
        self._size: tuple[int, int] | None = None

    def run(
        self, server: str, pod: str, *, feeds: bool = False, resized: int | None = None
    ) -> bytes:
        """The Status at the end; `resized` becomes readable when the terminal's size changes."""
        self._converse(feeds=feeds, resized=resized)
        # Load balancers may reset a finished connection; the exit code has arrived nonetheless.
        if not self._status:
            if time.monotonic() >= self._deadline:
                raise TimedOut(self._late)
            raise _broken(server, pod, self._why)
        return bytes(self._status)

    def _converse(self, *, feeds: bool, resized: int | None) -> None:
        sock: Any = self._opened.sock
        self._opened.settimeout(max(0.001, min(SERVER_SILENCE, self._deadline - self._heard)))
        if resized is not None:
            self._resize()
        while (now := time.monotonic()) < self._ended:
            if not self._keeps_alive(now):
                break
            reads: list[Any] = [sock] if resized is None else [sock, resized]
            if feeds and not self._waiting:
                reads.append(raw_terminal.STDIN_FD)
            writes = [sock] if self._waiting else []
            patience = min(self._pinged + PING, self._deadline, self._ended) - now
            buffered = pending(sock)
            ready, free = _ready(reads, writes, 0 if buffered else max(0, patience))
            if resized in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(resized or 0, _PIECE)
                self._resize()
            if raw_terminal.STDIN_FD in ready:
                feeds = self._feed()
            if free:
                feeds = self._send() and feeds
            if (buffered or sock in ready) and not self._receive():
                break

    def _receive(self) -> bool:
        """Receive the next message, whole; False if no more will come."""
        from websocket import ABNF, WebSocketConnectionClosedException, WebSocketException

        try:
            kind, data = self._opened.recv_data(control_frame=True)
        except WebSocketConnectionClosedException:
            return False
        except (WebSocketException, OSError) as error:
            self._why = str(error)
            return False
        self._heard = time.monotonic()
        if kind in {ABNF.OPCODE_BINARY, ABNF.OPCODE_TEXT} and data:
            channel, data = data[0], data[1:]
            if channel in {STDOUT, STDERR}:
                self._write(channel, data)
            elif channel == STATUS:
                self._status += data
                self._ended = self._heard + _FAREWELL
        return bool(kind != ABNF.OPCODE_CLOSE)

    def _send(self) -> bool:
        """Send the first message of the queue; False if the server accepts no more."""
        import websocket

        kind, data = self._waiting.popleft()
        try:
            self._opened.send(data, kind)
        except (websocket.WebSocketException, OSError):
            # Earlier messages, such as the exit code or the reason of the failure, may still be
            # unread.
            self._waiting.clear()
            return False
        return True

    def _say(self, channel: int, data: bytes) -> None:
        from websocket import ABNF

        self._waiting.append((ABNF.OPCODE_BINARY, bytes([channel]) + data))

    def _feed(self) -> bool:
        """Send the input that was typed or piped, or its end; whether more may come."""
        try:
            data = os.read(raw_terminal.STDIN_FD, _PIECE)
        except BlockingIOError:
            return True
        except OSError:
            # The terminal was closed.
            data = b""
        self._say(STDIN_CHANNEL if data else CLOSED, data or bytes([STDIN_CHANNEL]))
        return bool(data)

    def _resize(self) -> None:
        with contextlib.suppress(OSError):
            now = raw_terminal.terminal_size()
            if now != self._size:
                self._size = now
                self._say(SIZE, json.dumps({"Width": now[0], "Height": now[1]}).encode())

    def _keeps_alive(self, now: float) -> bool:
        """Ping the server when a ping is due; False once the server has been silent for long."""
        from websocket import ABNF

        if now >= self._deadline:
            raise TimedOut(self._late)
        if now - self._heard > SERVER_SILENCE:
            self._why = f"silent for {SERVER_SILENCE:g} s"
            return False
        if now - self._pinged >= PING:
            self._pinged = now
            if not self._waiting:
                self._waiting.append((ABNF.OPCODE_PING, b""))
        return True


def _ready(
    reads: Sequence[Any], writes: Sequence[Any], seconds: float
) -> tuple[list[Any], list[Any]]:
    """Which of the files can be read, and which written, within so many seconds, or have ended.

    Unlike `select.select` it takes descriptors above 1,023.
    """
    poll, wanted = select.poll(), dict.fromkeys(writes, select.POLLOUT)
    for descriptor in reads:
        wanted[descriptor] = wanted.get(descriptor, 0) | select.POLLIN
    for descriptor, events in wanted.items():
        poll.register(descriptor, events)
    ready = dict(poll.poll(math.ceil(seconds * 1000)))

    def which(files: Sequence[Any], event: int) -> list[Any]:
        """Those with this event, or with an error or an end, which no file asks for."""
        others = ~(select.POLLIN | select.POLLOUT)
        return [
            file
            for file in files
            if ready.get(file if isinstance(file, int) else file.fileno(), 0) & (event | others)
        ]

    return which(reads, select.POLLIN), which(writes, select.POLLOUT)
