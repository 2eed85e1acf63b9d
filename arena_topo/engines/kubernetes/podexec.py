"""Run a command in a container of a pod: exit code, stdout and stderr.

The API server speaks WebSocket for it: each message starts with the number of its channel, the last
of which carries a Status with the exit code (kubernetes, apimachinery
pkg/util/remotecommand/constants.go; `v5.channel.k8s.io` since 1.30, `v4` before). urllib3 makes the
connection, through whatever proxy, as it does for requests; websocket-client speaks over it.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from arena_topo.clusters.objects import items, of
from arena_topo.engines.kubernetes.connection import CONNECT_TIMEOUT, log
from arena_topo.engines.kubernetes.failures import refusal
from arena_topo.errors import ClusterError, TimedOut
from arena_topo.numbers import whole

if TYPE_CHECKING:
    import websocket

    from arena_topo.engines.kubernetes.connection import Connection

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")

STDIN, STDOUT, STDERR, STATUS, SIZE, CLOSED = 0, 1, 2, 3, 4, 255
"""Channels; on SIZE goes the terminal's, on CLOSED (v5 only) the number of one that has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a command ended, and what it wrote."""

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
    """Run a command and wait for its end, for so many seconds in all.

    NotFound if there is no such pod, AccessDenied where it is not allowed, TimedOut if the command
    does not end, ClusterError if it cannot be started or the connection breaks.
    """
    from websocket import ABNF

    query = [*(("command", word) for word in command), ("stdout", "true"), ("stderr", "true")]
    if container is not None:
        query.append(("container", container))
    deadline = time.monotonic() + timeout
    channels: dict[int, bytearray] = {number: bytearray() for number in (STDOUT, STDERR, STATUS)}
    opening = connected(api, namespace, pod, query, timeout=min(CONNECT_TIMEOUT, timeout))
    with opening as opened:
        while True:
            opened.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                opcode, data = opened.recv_data()
            except errors() as error:
                # Load balancers may reset what is over; the exit code has arrived for all that.
                if channels[STATUS]:
                    break
                if _late(error):
                    late = f"a command in pod {pod} did not end within {timeout:g} s"
                    raise TimedOut(late) from error
                raise broken(api.access.server, pod, str(error)) from error
            if opcode == ABNF.OPCODE_CLOSE:
                break
            if data and data[0] in channels:
                channels[data[0]] += data[1:]
    code = exit_code(bytes(channels[STATUS]), pod, command)
    return Done(code=code, stdout=bytes(channels[STDOUT]), stderr=bytes(channels[STDERR]))


@contextlib.contextmanager
def connected(
    api: Connection,
    namespace: str,
    pod: str,
    query: Sequence[tuple[str, str]],
    *,
    timeout: float,
) -> Iterator[websocket.WebSocket]:
    """A connection to a command in a pod, which `query` describes, made in so many seconds.

    NotFound if there is no such pod, AccessDenied where it is not allowed, TimedOut, ClusterError.
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
                subprotocols=list(PROTOCOLS),
                # A browser's header, which some API servers refuse.
                suppress_origin=True,
                redirect_limit=0,
                enable_multithread=False,
            )
            outcome = str(opened.status)
        except websocket.WebSocketBadStatusException as error:
            outcome = str(error.status_code)
            # The right to run commands is to create pods/exec, whatever method carries it.
            body = error.resp_body or b""
            raise refusal("POST", path, error.status_code, None, body) from error
        except errors() as error:
            if _late(error):
                raise TimedOut(f"pod {pod} did not take a command within {timeout:g} s") from error
            raise broken(found.server, pod, str(error)) from error
        finally:
            log("GET", path, outcome, begun)
        yield opened
    finally:
        if line is not None:
            line.close()


def broken(server: str, pod: str, why: str) -> ClusterError:
    """The error of a connection that broke."""
    return ClusterError(f"{server} broke the connection to pod {pod}", why=why or None)


def errors() -> tuple[type[Exception], ...]:
    """What websocket-client raises where a connection breaks or is silent."""
    import websocket

    return websocket.WebSocketException, OSError


def _late(error: Exception) -> bool:
    import websocket

    return isinstance(error, websocket.WebSocketTimeoutException | TimeoutError)


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
        # Of odd shapes no code is known.
        with contextlib.suppress(TypeError):
            for cause in items(of(said, "details"), "causes"):
                code = whole(cause.get("message")) if cause.get("reason") == "ExitCode" else None
                if code is not None:
                    return code
    raise ClusterError(
        f"`{' '.join(command)}` cannot be run in pod {pod}",
        why=str(said.get("message") or said.get("reason") or "") or None,
    )
