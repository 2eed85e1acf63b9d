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

from arena_topo.clusters.objects import items, of
from arena_topo.clusters.usage import pod_over
from arena_topo.engines import JobStatus, console
from arena_topo.engines.kubernetes.connection import CONNECT_TIMEOUT, log
from arena_topo.engines.kubernetes.failures import refusal
from arena_topo.engines.kubernetes.mpijob import pod_status
from arena_topo.engines.kubernetes.podlog import default_container
from arena_topo.engines.kubernetes.writing import part
from arena_topo.errors import ArenaError, ClusterError, NotFound, NotPossible, TimedOut
from arena_topo.numbers import whole

if TYPE_CHECKING:
    import websocket

    from arena_topo.engines.kubernetes.connection import Connection

Object = dict[str, Any]

PROTOCOL = "v5.channel.k8s.io"

STDIN, STDOUT, STDERR, STATUS, SIZE, CLOSED = 0, 1, 2, 3, 4, 255
"""Channels. SIZE carries the terminal's size, CLOSED the number of a channel that has ended."""

PING = 5.0
"""Seconds between two pings, which prevent proxies from closing a silent connection."""

SILENCE = 61.0
"""Seconds without any message of the server until the connection counts as lost.

Both are client-go's (v0.30, tools/remotecommand/websocket.go: pingPeriod, pingReadDeadline).
"""

_OPENING = 30.0
"""The timeout in seconds of the handshake between the API server and the kubelet."""

_FAREWELL = 2.0
"""Seconds after the exit code for the server to close the connection."""

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
    does not end, ClusterError if it cannot be started or the connection breaks.
    """
    query = [*(("command", word) for word in command), ("stdout", "true"), ("stderr", "true")]
    if container is not None:
        query.append(("container", container))
    late = f"a command in pod {pod} did not end within {timeout:g} s"
    wrote = {STDOUT: bytearray(), STDERR: bytearray()}
    deadline = time.monotonic() + timeout
    patience = min(CONNECT_TIMEOUT, timeout)
    with _connected(api, namespace, pod, query, timeout=patience) as opened:
        talk = _Talk(opened, deadline, late, lambda channel, data: wrote[channel].extend(data))
        status = talk.run(api.access.server, pod)
    code = exit_code(status, pod, command)
    return Done(code=code, stdout=bytes(wrote[STDOUT]), stderr=bytes(wrote[STDERR]))


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

    An empty command is a shell. NotFound, NotPossible, AccessDenied; ClusterError if the command
    cannot be started or the connection breaks; TimedOut at the deadline of the connection.
    """
    space = part(job.namespace)
    pod = api.get(f"/api/v1/namespaces/{space}/pods/{part(instance)}")
    chosen = _container(pod, container, job, tell)
    words = tuple(command) or (console.SHELL if terminal else console.PLAIN_SHELL)
    feeds = terminal or console.offers_input(shell=not command)
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
            talk = _Talk(opened, deadline, late, console.write)
            with console.raw() if terminal else contextlib.nullcontext() as resized:
                try:
                    status = talk.run(api.access.server, instance, feeds=feeds, resized=resized)
                except ArenaError:
                    if terminal:
                        # Messages of the program must not start in the middle of a line.
                        console.write(console.STDOUT, b"\r\n")
                    raise
        return exit_code(status, instance, words)
    except ClusterError as error:
        if "no such file" in (error.why or "") or "not found" in (error.why or ""):
            error.hint = (
                f"is {words[0]} in the image?"
                if command
                else "the image has no shell: name a command that it has, after --"
            )
        raise
    except KeyboardInterrupt:
        tell(f"The command may go on in {instance}.")
        raise


def _container(pod: Object, wanted: str | None, job: JobStatus, tell: Callable[[str], None]) -> str:
    """The container to run in: the given one or the main one; NotPossible unless it runs."""
    spec, status, name = pod.get("spec") or {}, pod.get("status") or {}, pod["metadata"]["name"]
    if pod_over(pod):
        raise NotPossible(
            f"cannot attach to {name}: it has ended ({status['phase']})",
            hint=f"arena-topo logs {job.name} -i {name} -n {job.namespace}",
        )
    main, *others = (
        [str(one.get("name")) for one in spec.get(kind) or ()]
        for kind in ("containers", "initContainers", "ephemeralContainers")
    )
    known = [*main, *(one for each in others for one in each)]
    if wanted is not None and wanted not in known:
        raise NotFound(
            f"container {wanted} is not valid for instance {name}",
            hint=f"choose one of: {', '.join(known)}",
        )
    chosen = wanted or default_container(pod)
    if chosen is None:
        raise NotPossible(f"instance {name} has no containers")
    states = [
        one.get("state") or {}
        for kind in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
        for one in status.get(kind) or ()
        if one.get("name") == chosen
    ]
    pending = not states and status.get("phase") == "Pending"
    if pending or any("running" not in one for one in states):
        raise NotPossible(
            f"container {chosen} of instance {name} is not running",
            why=f"the status of the pod is {pod_status(pod)}",
            hint=f"arena-topo why {job.name} -n {job.namespace}",
        )
    if wanted is None and len(main) > 1:
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
    found, begun, outcome = api.access, time.monotonic(), "failed"
    line: Any = None
    try:
        try:
            line = api.dialled(timeout)
            opened = websocket.create_connection(
                f"ws{found.server.removeprefix('http')}{path}?{urlencode(query)}",
                socket=line.sock,
                header=[f"{key}: {value}" for key, value in found.sent],
                subprotocols=[PROTOCOL],
                # A header of browsers, which some API servers refuse.
                suppress_origin=True,
                redirect_limit=0,
                enable_multithread=False,
            )
            outcome = str(opened.status)
        except websocket.WebSocketBadStatusException as error:
            outcome = str(error.status_code)
            # The required right is create on pods/exec, for every HTTP method.
            body = error.resp_body or b""
            raise refusal("POST", path, error.status_code, None, body) from error
        except (websocket.WebSocketTimeoutException, TimeoutError) as error:
            raise TimedOut(f"pod {pod} did not take a command within {timeout:g} s") from error
        except (websocket.WebSocketException, OSError) as error:
            raise _broken(found.server, pod, str(error)) from error
        finally:
            log("GET", path, outcome, begun)
        yield opened
    finally:
        if line is not None:
            line.close()


def _broken(server: str, pod: str, why: str) -> ClusterError:
    return ClusterError(f"{server} broke the connection to pod {pod}", why=why or None)


def exit_code(status: bytes, pod: str, command: Sequence[str]) -> int:
    """The exit code in a Status; ClusterError if the command did not run to its end."""
    try:
        said = json.loads(status)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise ClusterError(f"the connection to pod {pod} ended before `{' '.join(command)}` did")
    if said.get("status") == "Success":
        return 0
    if said.get("reason") == "NonZeroExitCode":
        # A Status without an integer code has none.
        with contextlib.suppress(TypeError):
            for cause in items(of(said, "details"), "causes"):
                code = whole(cause.get("message")) if cause.get("reason") == "ExitCode" else None
                if code is not None:
                    return code
    raise ClusterError(
        f"`{' '.join(command)}` cannot be run in pod {pod}",
        why=str(said.get("message") or said.get("reason") or "") or None,
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
        self._opened.settimeout(max(0.001, min(SILENCE, self._deadline - self._heard)))
        if resized is not None:
            self._resize()
        while (now := time.monotonic()) < self._ended:
            if not self._keeps_alive(now):
                break
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
            data = os.read(console.STDIN, _PIECE)
        except BlockingIOError:
            return True
        except OSError:
            # The terminal was closed.
            data = b""
        self._say(STDIN if data else CLOSED, data or bytes([STDIN]))
        return bool(data)

    def _resize(self) -> None:
        with contextlib.suppress(OSError):
            now = console.size()
            if now != self._size:
                self._size = now
                self._say(SIZE, json.dumps({"Width": now[0], "Height": now[1]}).encode())

    def _keeps_alive(self, now: float) -> bool:
        """Ping the server when a ping is due; False once the server has been silent for long."""
        from websocket import ABNF

        if now >= self._deadline:
            raise TimedOut(self._late)
        if now - self._heard > SILENCE:
            self._why = f"silent for {SILENCE:g} s"
            return False
        if now - self._pinged >= PING:
            self._pinged = now
            if not self._waiting:
                self._waiting.append((ABNF.OPCODE_PING, b""))
        return True


def _buffered(sock: Any) -> bool:
    """Whether data has arrived that `select` does not report: the rest of a TLS record.

    For TLS within TLS urllib3 buffers the inner part itself.
    """
    inner, outer = getattr(sock, "sslobj", sock), getattr(sock, "incoming", None)
    return bool(getattr(inner, "pending", int)() or (outer is not None and outer.pending))
