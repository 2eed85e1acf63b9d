"""Access -> Pool: requests to one server over HTTP/1.1, through a proxy if there is one.

Sockets and `ssl` do the work: `get` and `list` are short, and importing urllib3 costs more time
than their requests.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import re
import select
import socket
import ssl
import tempfile
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal
from urllib.parse import SplitResult, quote, unquote, urlsplit

from arena_topo.engines.kubernetes.kubeconfig import Access, basic
from arena_topo.engines.kubernetes.response import Response
from arena_topo.errors import UsageError
from arena_topo.words import with_extra

UNPACKED = frozenset({"gzip", "x-gzip", "deflate"})
"""The encodings of a body that `HttpAnswer.pieces` decodes."""

FAULTS = (OSError, http.client.HTTPException, ValueError, zlib.error)
"""The errors of a connection in use. ValueError: a chunk without a size."""

Obstacle = Literal["proxy", "trust", "handshake", "name", "server", "time"]

Rest = Callable[[], float]
"""The seconds that are left for the next step of a connection; infinite without a limit."""

MAX_POLL_SECONDS = (1 << 31) / 1000
"""The longest timeout of poll(2) in seconds: its milliseconds are a C int, and Python truncates
them."""

LEAST_SHARE = 2.0
"""The least seconds that an address of a host gets of the time of a connection, if as many are
left."""

_READ = 1 << 16
"""The most bytes that are read at once."""

_PIECE = 1 << 18
"""The most bytes of a body that are unpacked at once."""

_UNFIT = re.compile(r"[\x00-\x20\x7f]|[^\x00-\x7f]")
"""Characters that the target of a request cannot have."""

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS

_PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}


class Unopened(Exception):
    """No connection was opened, and so nothing was sent; `obstacle` is the cause."""

    def __init__(self, obstacle: Obstacle) -> None:
        super().__init__(obstacle)
        self.obstacle = obstacle


class HttpAnswer:
    """An answer whose head has come. The caller reads its `pieces` to the end, or closes it.

    The connection then returns to its pool, or is closed.
    """

    def __init__(self, pool: ConnectionPool, sock: Any, rest: Rest) -> None:
        """Read the head; one of `FAULTS`."""
        self._pool, self._sock, self._rest = pool, sock, rest
        self._response = Response()
        self._body = b""
        """The beginning of the body, which came with the head."""
        while not self._response.status:
            self._body = self._response.feed(received(sock, rest))
        self.status, self.reason = self._response.status, self._response.reason
        self.headers = self._response.headers

    def pieces(self, rest: Rest | None = None) -> Iterator[bytes]:
        """The decoded body as it comes; one of `FAULTS` if it breaks off.

        `rest` limits each step, in place of the limit of the request.
        """
        coding = self.headers.get("content-encoding", "").strip().lower()
        members = _Members() if coding in UNPACKED else None
        piece, self._body = self._body, b""
        while True:
            if members is not None:
                yield from members.unpacked(piece)
            elif piece:
                yield piece
            if self._response.ended:
                break
            piece = self._response.feed(received(self._sock, rest or self._rest))
        if members is not None and not members.whole:
            raise http.client.HTTPException("the answer ended too early")
        sock, self._sock = self._sock, None
        if sock is not None:
            if self._response.reusable:
                self._pool.take_back(sock)
            else:
                sock.close()

    def interrupt(self) -> None:
        """Let a thread that waits for more of the body see its end."""
        sock = self._sock
        # TLS within TLS has the socket inside; the method of a TLS socket is for its reader.
        with contextlib.suppress(OSError, TypeError):
            socket.socket.shutdown(getattr(sock, "socket", sock), socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection, unless the whole body has been read."""
        if self._sock is not None:
            self._sock.close()


class _Members:
    """The decoder of a body in gzip, which may have several members (RFC 1952, 2.2), or in zlib."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP_OR_ZLIB)
        self.whole = True
        """Whether the last member has ended, or none has begun."""

    def unpacked(self, data: bytes) -> Iterator[bytes]:
        """The decoded bytes; zlib.error if they are not compressed in this way."""
        while data:
            if self._member.eof:
                # Zeros may follow the last member.
                data = data.lstrip(b"\0")
                if not data:
                    break
                self._member = zlib.decompressobj(_GZIP_OR_ZLIB)
            # A megabyte of gzip may contain a gigabyte.
            if piece := self._member.decompress(data, _PIECE):
                yield piece
            data = self._member.unconsumed_tail or self._member.unused_data
            self.whole = self._member.eof


class ConnectionPool:
    """The connections to one server. Threads may share it; each request has its own connection."""

    def __init__(self, access: Access) -> None:
        """UsageError for invalid certificates, or for an address that no proxy can have."""
        self._idle: list[Any] = []
        self._server = urlsplit(access.server)
        self._prefix = quote(self._server.path, safe="/%:@!$&'()*+,;=~")
        self._trust = tls(access) if self._server.scheme == "https" else None
        self._name = access.server_name or _host(self._server).rstrip(".")
        self._checked = access.verify
        self._proxy = _proxy(access.proxy) if access.proxy else None
        weakref.finalize(self, _close, self._idle)

    def close(self) -> None:
        """Close the idle connections; later requests open new ones."""
        _close(self._idle)

    def take_back(self, sock: Any) -> None:
        """Keep a connection for another request; its answer has been read."""
        self._idle.append(sock)

    def request(
        self,
        method: str,
        path: str,
        headers: Iterable[tuple[str, str]],
        body: bytes | None = None,
        *,
        connect: float,
        rest: Rest,
    ) -> HttpAnswer:
        """The answer to a request for a path with its query; redirects are not followed.

        `connect` limits each step towards a connection, in seconds, and `rest` every step.
        Unopened, or one of `FAULTS`.
        """
        sock = self._reused() or self.dialled(connect, rest)
        try:
            set_socket_timeout(sock, rest)
            self.send(sock, method, path, headers, body)
            return HttpAnswer(self, sock, rest)
        except BaseException:
            sock.close()
            raise

    def send(
        self,
        sock: Any,
        method: str,
        path: str,
        headers: Iterable[tuple[str, str]],
        body: bytes | None = None,
    ) -> None:
        """Send a request over a connection, within its timeout; one of `FAULTS`."""
        target = self._prefix + path
        if _UNFIT.search(target):
            raise http.client.InvalidURL(f"{target!r} has characters that no request can carry")
        length = [] if body is None else [("content-length", str(len(body)))]
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._authority()}"]
        lines += [f"{name}: {value}" for name, value in (*headers, *length)]
        # A server may answer before it has read the whole body, and close.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
            sock.sendall("\r\n".join([*lines, "", ""]).encode() + (body or b""))

    def _authority(self) -> str:
        """The server's name and port in a request, without the zone of an address."""
        host = _host(self._server).partition("%")[0]
        host = f"[{host}]" if ":" in host else host
        host = host if host.isascii() else host.encode("idna").decode()
        port = self._server.port
        return host if port in {None, _PORTS[self._server.scheme]} else f"{host}:{port}"

    def _reused(self) -> Any:
        """An idle connection on which nothing has come since its last answer; None without one."""
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread has taken the last
                sock = self._idle.pop()
                poll = select.poll()
                poll.register(sock, select.POLLIN)
                if not pending(sock) and not poll.poll(0):
                    return sock
                sock.close()  # closed by the server, or it sent what nobody asked for
        return None

    def dialled(self, connect: float, rest: Rest) -> Any:
        """The socket of a new connection; `connect` (seconds) limits each step of its opening.

        Unopened.
        """
        host, port = _host(self._server), _port(self._server)

        def step() -> float:
            return min(connect, rest())

        sock = self._reached(host, port, step)
        try:
            for level, name, value in _options():
                sock.setsockopt(level, name, value)
            if self._trust is not None:
                sock = _secured(sock, self._trust, self._name, step)
        except BaseException:
            sock.close()
            raise
        return sock

    def _reached(self, host: str, port: int, step: Rest) -> Any:
        """A socket whose other end is the server, directly or through the proxy."""
        proxy = self._proxy
        try:
            if proxy is None:
                return _opened(host, port, step, _connected)
            return self._through(proxy, host, port, step)
        except (Unopened, OSError, http.client.HTTPException) as error:
            if proxy is not None:
                raise Unopened("proxy") from error
            if isinstance(error, TimeoutError):
                raise Unopened("time") from error
            raise Unopened("name" if isinstance(error, socket.gaierror) else "server") from error
        except UnicodeError as error:  # no host has this name
            raise Unopened("name") from error

    def _through(self, proxy: SplitResult, host: str, port: int, step: Rest) -> Any:
        at = _host(proxy), _port(proxy)
        login = [unquote(proxy.username or ""), unquote(proxy.password or "")]
        if proxy.scheme.startswith("socks"):
            import socks  # type: ignore[import-untyped]  # noqa: PLC0415  only for SOCKS

            def by_proxy(_family: int, at: Any, limit: float | None) -> Any:
                # As in kubectl the proxy resolves the host.
                means = socks.SOCKS5, *at[:2], True, *login
                return socks.create_connection((host, port), limit, None, *means)

            return _opened(*at, step, by_proxy)
        sock: Any = _opened(*at, step, _connected)
        end = time.monotonic() + step()
        try:
            if proxy.scheme == "https":
                sock = _secured(sock, _public(checked=self._checked), at[0], step)
            known = f"Proxy-Authorization: {basic(':'.join(login))}\r\n" if any(login) else ""
            authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            sock.sendall(
                f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{known}\r\n".encode()
            )
            answer = Response()
            while not answer.status:
                answer.feed(received(sock, lambda: end - time.monotonic()))
            if answer.status != http.client.OK:
                text = f"{answer.status} {answer.reason}".strip()
                raise OSError(f"Tunnel connection failed: {text}")  # noqa: TRY301  closes below
        except BaseException:
            sock.close()
            raise
        return sock


def _close(idle: list[Any]) -> None:
    with contextlib.suppress(IndexError):  # the last is closed, perhaps by another thread
        while True:
            idle.pop().close()


def _opened(host: str, port: int, step: Rest, dial: Callable[[int, Any, float | None], Any]) -> Any:
    """A connection to the first address of a host that takes it; OSError of the last.

    `dial` opens one for a family, an address and a limit in seconds. The addresses share the time
    of the step: an address that never answers must not use all of it (Go, net: partialDeadline).
    """
    # A text would load the codec of international names, which takes a millisecond.
    name: Any = host.encode("ascii") if host.isascii() else host
    addresses = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    end, last = time.monotonic() + step(), OSError("the host has no address")
    for tried, (family, _, _, _, address) in enumerate(addresses):
        left = end - time.monotonic()
        share = max(left / (len(addresses) - tried), min(left, LEAST_SHARE))
        try:
            return dial(family, address, _limit(share))
        except OSError as error:
            last = error
    raise last


def _connected(family: int, address: Any, limit: float | None) -> socket.socket:
    """A socket that is connected to an address within a limit in seconds."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(limit)
        sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock


def _limit(left: float) -> float | None:
    """A time limit as sockets take it; TimeoutError if no time is left."""
    if left <= 0:
        raise TimeoutError("timed out")
    return left if left < MAX_POLL_SECONDS else None


def set_socket_timeout(sock: Any, rest: Rest) -> None:
    """Limit the next step of a socket; TimeoutError if no time is left.

    The timeout of a socket is for each step, and would start again with every byte.
    """
    sock.settimeout(_limit(rest()))


def received(sock: Any, rest: Rest) -> bytes:
    """The next bytes of a connection; none at its end. TimeoutError, OSError."""
    set_socket_timeout(sock, rest)
    # TLS within TLS returns 0 at an end without a message of TLS.
    return sock.recv(_READ) or b""


def pending(sock: Any) -> bool:
    """Whether bytes have come that `poll` does not report: the rest of a record of TLS.

    For TLS within TLS urllib3 buffers the inner part itself.
    """
    inner, outer = getattr(sock, "sslobj", sock), getattr(sock, "incoming", None)
    return bool(getattr(inner, "pending", int)() or (outer is not None and outer.pending))


def _secured(sock: Any, trust: ssl.SSLContext, name: str, step: Rest) -> Any:
    """TLS over a socket, with a server of this name."""
    name = name.partition("%")[0]  # the zone of an IPv6 address
    try:
        set_socket_timeout(sock, step)
        if isinstance(sock, ssl.SSLSocket):
            from urllib3.util.ssltransport import SSLTransport  # TLS within TLS: no socket can

            return SSLTransport(sock, trust, name)
        return trust.wrap_socket(sock, server_hostname=name)
    except TimeoutError as error:
        raise Unopened("time") from error
    except ssl.SSLEOFError as error:  # a load balancer without a server, or one that starts
        raise Unopened("handshake") from error
    # ValueError: a name that no certificate can have.
    except (ssl.SSLError, ValueError) as error:
        raise Unopened("trust") from error
    except OSError as error:
        raise Unopened("handshake") from error


def _proxy(address: str) -> SplitResult:
    """The parts of a proxy's address; UsageError, without the address, if it is invalid."""
    with contextlib.suppress(ValueError):
        url = urlsplit(address)
        if url.scheme in _PORTS and url.hostname and _port(url):
            if url.scheme.startswith("socks") and importlib.util.find_spec("socks") is None:
                raise UsageError(
                    "the proxy to the API server is a SOCKS proxy, and PySocks is missing",
                    hint=f"install {with_extra('socks')}",
                )
            return url
    raise UsageError(
        "the proxy to the API server has no address that can be used",
        why="it is like http://HOST:PORT, https://HOST:PORT or socks5://HOST:PORT",
        hint="see HTTPS_PROXY, proxy-url",
    )


def _host(address: SplitResult) -> str:
    """The host of an address; the zone of an IPv6 address is quoted there (RFC 6874)."""
    host = address.hostname or ""
    return host.replace("%25", "%", 1) if ":" in host else host


def _port(address: SplitResult) -> int:
    return address.port or _PORTS[address.scheme]


def _options() -> Iterator[tuple[int, int, int]]:
    """Socket options: no delay, and detection of a dead peer of a silent log within a minute."""
    yield socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
    yield socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1
    # macOS calls the first of them TCP_KEEPALIVE.
    idle = "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE"
    for name, value in ((idle, 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            yield socket.IPPROTO_TCP, getattr(socket, name), value


# ---------------------------------------------------------------- trust and certificates


def _public(*, checked: bool) -> ssl.SSLContext:
    """The TLS settings for a proxy: the authorities that this machine trusts."""
    context = _trusting()
    return context if checked else _unchecked(context)


def _trusting(**authorities: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(**authorities)
    # Python 3.13 requires extensions that the CAs of many clusters lack.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _unchecked(context: ssl.SSLContext) -> ssl.SSLContext:
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def tls(access: Access) -> ssl.SSLContext:
    """The TLS settings: trusted CAs and the client's certificate; UsageError if one is invalid."""
    where = f"context {access.context}" if access.context else "the pod's service account"
    try:
        context = _trusting(cafile=access.ca_file, cadata=access.ca)
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(f"{where}: certificate-authority is no PEM certificate") from error
    except OSError as error:
        raise UsageError(f"{access.ca_file}: cannot be read", why=error.strerror) from error
    context.set_alpn_protocols(["http/1.1"])
    if not access.verify:
        _unchecked(context)
    if access.certificate:
        try:
            with contextlib.ExitStack() as stack:
                context.load_cert_chain(*(_as_file(file, stack) for file in access.certificate))
        except ssl.SSLError as error:
            raise UsageError(
                f"{where}: client-certificate and client-key do not belong together, or are no PEM"
            ) from error
        except OSError as error:
            raise UsageError(
                f"{where}: client-certificate or client-key cannot be read", why=error.strerror
            ) from error
    return context


def _as_file(value: str | bytes, stack: contextlib.ExitStack) -> str:
    """A path for OpenSSL, which reads client keys only from files; deleted with the stack."""
    if isinstance(value, str):
        return value
    file = stack.enter_context(
        tempfile.NamedTemporaryFile(prefix="arena-topo-")  # noqa: SIM115  the stack closes it
    )
    file.write(value)
    file.flush()
    return file.name
