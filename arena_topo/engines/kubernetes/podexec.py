"""Run a command in a container of a pod: exit code, stdout and stderr.

The API server speaks WebSocket for it: each message starts with the number of its channel, the last
of which carries a Status with the exit code (kubernetes, apimachinery
pkg/util/remotecommand/constants.go; `v5.channel.k8s.io` since 1.30, `v4` before).
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlencode, urlsplit

from arena_topo.engines.kubernetes.connection import CONNECT_TIMEOUT, log
from arena_topo.engines.kubernetes.failures import refusal
from arena_topo.engines.kubernetes.pooling import socks_missing, tls
from arena_topo.errors import ClusterError, NotPossible, TimedOut
from arena_topo.numbers import whole

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.connection import Access, Connection

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
    query = [*(("command", word) for word in command), ("stdout", "true"), ("stderr", "true")]
    if container is not None:
        query.append(("container", container))
    deadline = time.monotonic() + timeout
    socket = connect(api, namespace, pod, query, timeout=min(CONNECT_TIMEOUT, timeout))
    try:
        return _heard(socket, pod, command, deadline)
    except _errors() as error:
        if _late(error):
            raise TimedOut(f"a command in pod {pod} did not end within {timeout:g} s") from error
        raise broken(api.access.server, pod, str(error)) from error
    finally:
        close(socket)


def connect(
    api: Connection,
    namespace: str,
    pod: str,
    query: Sequence[tuple[str, str]],
    *,
    timeout: float,
) -> Any:
    """A `websocket.WebSocket` to a command in a pod, which `query` describes, in so many seconds.

    NotFound if there is no such pod, AccessDenied where it is not allowed, TimedOut, ClusterError,
    NotPossible where a proxy is in between to which one speaks over TLS.
    """
    import websocket

    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/exec"
    found, begun, outcome = api.access, time.monotonic(), "failed"
    try:
        opened = websocket.create_connection(
            f"ws{found.server.removeprefix('http')}{path}?{urlencode(query)}",
            timeout=timeout,
            header=[f"{key}: {value}" for key, value in found.sent],
            subprotocols=list(PROTOCOLS),
            # A browser's header, which some API servers refuse.
            suppress_origin=True,
            redirect_limit=0,
            enable_multithread=False,
            sslopt=_trust(found),
            **_proxy(found, timeout),
        )
    except websocket.WebSocketBadStatusException as error:
        outcome = str(error.status_code)
        # The right to run commands is to create pods/exec, whatever method carries it.
        body = error.resp_body or b""
        raise refusal("POST", path, error.status_code, None, body) from error
    except _errors() as error:
        if _late(error):
            raise TimedOut(f"pod {pod} did not take a command within {timeout:g} s") from error
        raise broken(found.server, pod, str(error)) from error
    else:
        outcome = str(opened.status)
        return opened
    finally:
        log("GET", path, outcome, begun)


def close(socket: Any) -> None:
    """Let go of a connection, whatever state it is in."""
    with contextlib.suppress(*_errors()):
        socket.close(timeout=1)
    # It leaves its socket open where the server was the first to close.
    socket.shutdown()


def broken(server: str, pod: str, why: str) -> ClusterError:
    """The error of a connection that broke."""
    return ClusterError(f"{server} broke the connection to pod {pod}", why=why or None)


def _errors() -> tuple[type[Exception], ...]:
    import websocket

    if importlib.util.find_spec("python_socks") is None:
        return websocket.WebSocketException, OSError
    import python_socks  # noqa: PLC0415  not everybody has it

    return websocket.WebSocketException, OSError, python_socks.ProxyError


def _late(error: Exception) -> bool:
    import websocket

    return isinstance(error, websocket.WebSocketTimeoutException | TimeoutError)


def _trust(found: Access) -> dict[str, Any]:
    if not found.server.startswith("https:"):
        return {}
    trust: dict[str, Any] = {"context": tls(found)}
    if found.server_name:
        trust["server_hostname"] = found.server_name
    return trust


def _proxy(found: Access, timeout: float) -> dict[str, Any]:
    if not found.proxy:
        # What is not said here would be taken from the environment, which `access` has read.
        return {"http_no_proxy": ["*"]}
    split = urlsplit(found.proxy)
    if split.scheme == "https":
        raise NotPossible(
            "commands in pods cannot be run through an https:// proxy",
            why="websocket-client would speak to the proxy, and log in there, in clear text",
            hint="name an http:// or socks5:// proxy in proxy-url or HTTPS_PROXY, or the API server"
            " in NO_PROXY",
        )
    settings: dict[str, Any] = {
        "http_proxy_host": split.hostname,
        "http_proxy_port": split.port or 80,
        "proxy_type": "http",
    }
    if split.scheme.startswith("socks"):
        if importlib.util.find_spec("python_socks") is None:
            raise socks_missing("python-socks")
        # As with kubectl the proxy finds the host.
        settings |= {"http_proxy_port": split.port or 1080, "proxy_type": "socks5h"}
        settings["http_proxy_timeout"] = timeout
    if split.username:
        settings["http_proxy_auth"] = (unquote(split.username), unquote(split.password or ""))
    return settings


def _heard(socket: Any, pod: str, command: Sequence[str], deadline: float) -> Done:
    """What arrives on the channels until the command has ended."""
    from websocket import ABNF

    channels: dict[int, bytearray] = {number: bytearray() for number in (STDOUT, STDERR, STATUS)}
    while True:
        socket.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            opcode, data = socket.recv_data()
        except _errors():
            # Load balancers may reset what is over; the exit code has arrived for all that.
            if not channels[STATUS]:
                raise
            break
        if opcode == ABNF.OPCODE_CLOSE:
            break
        if data and data[0] in channels:
            channels[data[0]] += data[1:]
    code = exit_code(bytes(channels[STATUS]), pod, command)
    return Done(code=code, stdout=bytes(channels[STDOUT]), stderr=bytes(channels[STDERR]))


def exit_code(status: bytes, pod: str, command: Sequence[str]) -> int:
    """The exit code in a Status; ClusterError if the command did not run to its end."""
    try:
        said = json.loads(status)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise ClusterError(f"the connection to pod {pod} ended before `{' '.join(command)}` did")
    if said.get("status") == "Success":
        return 0
    if said.get("reason") == "NonZeroExitCode":
        for cause in (said.get("details") or {}).get("causes") or ():
            code = whole(cause.get("message")) if cause.get("reason") == "ExitCode" else None
            if code is not None:
                return code
    raise ClusterError(
        f"`{' '.join(command)}` cannot be run in pod {pod}",
        why=str(said.get("message") or said.get("reason") or "") or None,
    )
