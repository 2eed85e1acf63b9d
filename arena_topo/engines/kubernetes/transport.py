"""Access -> Pool: requests to one server over HTTP/1.1, through a proxy if there is one.

`http.client` and `ssl` do the work: `get` and `list` are short, and importing urllib3 costs more
time than their requests.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import select
import socket
import ssl
import tempfile
import weakref
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Literal
from urllib.parse import SplitResult, quote, unquote, urlsplit

from arena_topo.engines.kubernetes.kubeconfig import Access, basic
from arena_topo.errors import UsageError

UNPACKED = frozenset({"gzip", "x-gzip", "deflate"})
"""The encodings of a body that `Answer.pieces` decodes."""

FAULTS = (OSError, http.client.HTTPException, ValueError, zlib.error)
"""The errors of a connection in use. ValueError: a chunk of negative length."""

Obstacle = Literal["proxy", "trust", "name", "server", "time"]

_PIECE = 1 << 18
"""The most bytes of a body that are read at once."""

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS

_PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}


class Unopened(Exception):
    """No connection was opened, and so nothing was sent; `obstacle` is the cause."""

    def __init__(self, obstacle: Obstacle) -> None:
        super().__init__(obstacle)
        self.obstacle = obstacle


class Answer:
    """An answer whose head has come. The caller reads its `pieces` to the end, or closes it.

    The connection then returns to its pool, or is closed.
    """

    def __init__(self, pool: Pool, line: http.client.HTTPConnection) -> None:
        self._pool = pool
        self._line: http.client.HTTPConnection | None = line
        self._response = line.getresponse()
        self.status, self.reason = self._response.status, self._response.reason
        self.headers = self._response.headers

    def pieces(self) -> Iterator[bytes]:
        """The decoded body as it comes; one of `FAULTS` if it breaks off."""
        coding = self.headers.get("content-encoding", "").strip().lower()
        unpack = zlib.decompressobj(_GZIP_OR_ZLIB) if coding in UNPACKED else None
        whole = True
        while piece := self._response.read1(_PIECE):
            if unpack is None:
                yield piece
                continue
            # More members may follow the first (RFC 1952, 2.2), or zeros.
            while piece := piece.lstrip(b"\0") if unpack.eof else piece:
                if unpack.eof:
                    unpack = zlib.decompressobj(_GZIP_OR_ZLIB)
                # A megabyte of gzip may contain a gigabyte.
                if unpacked := unpack.decompress(piece, _PIECE):
                    yield unpacked
                piece = unpack.unconsumed_tail or unpack.unused_data
            whole = unpack.eof
        # A closed connection looks like the end of the body.
        if self._response.length or not whole:
            raise http.client.HTTPException("the answer ended too early")
        self._response.close()
        line, self._line = self._line, None
        if line is not None:
            self._pool.take_back(line)

    def close(self) -> None:
        """Close the connection, unless the whole body has been read."""
        self._response.close()
        if self._line is not None:
            self._line.close()


class Pool:
    """The connections to one server. Threads may share it; each request has its own connection."""

    def __init__(self, access: Access) -> None:
        """UsageError for invalid certificates, or for an address that no proxy can have."""
        self._idle: list[http.client.HTTPConnection] = []
        self._server = urlsplit(access.server)
        self._prefix = quote(self._server.path, safe="/%:@!$&'()*+,;=~")
        self._trust = tls(access) if self._server.scheme == "https" else None
        self._name = access.server_name or (self._server.hostname or "").rstrip(".")
        self._checked = access.verify
        self._proxy = _proxy(access.proxy) if access.proxy else None
        weakref.finalize(self, _close, self._idle)

    def close(self) -> None:
        """Close the idle connections; later requests open new ones."""
        _close(self._idle)

    def take_back(self, line: http.client.HTTPConnection) -> None:
        """Keep a connection for another request; its answer has been read."""
        if line.sock is not None:  # else the answer ended with the connection
            self._idle.append(line)

    def request(
        self,
        method: str,
        path: str,
        headers: Iterable[tuple[str, str]],
        body: bytes | None = None,
        *,
        connect: float,
        silence: float | None,
    ) -> Answer:
        """The answer to a request for a path with its query; redirects are not followed.

        `connect` limits each step towards a connection, `silence` each wait for a part of the
        answer, in seconds (None: no limit). Unopened, or one of `FAULTS`.
        """
        line = self._reused() or self.dialled(connect)
        try:
            line.sock.settimeout(silence)
            self.send(line, method, path, headers, body)
            return Answer(self, line)
        except BaseException:
            line.close()
            raise

    def send(
        self,
        line: http.client.HTTPConnection,
        method: str,
        path: str,
        headers: Iterable[tuple[str, str]],
        body: bytes | None = None,
    ) -> None:
        """Send a request over a connection; one of `FAULTS`."""
        line.putrequest(method, self._prefix + path, skip_accept_encoding=True)
        for name, value in headers:
            line.putheader(name, value)
        if body is not None:
            line.putheader("content-length", str(len(body)))
        # A server may answer before it has read the whole body, and close.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
            line.endheaders(body)

    def _reused(self) -> http.client.HTTPConnection | None:
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread has taken the last
                line = self._idle.pop()
                poll = select.poll()
                poll.register(line.sock, select.POLLIN)
                if not poll.poll(0):
                    return line
                line.close()  # the server has closed it
        return None

    def dialled(self, timeout: float) -> http.client.HTTPConnection:
        """A new connection; `timeout` (seconds) limits each step of its opening.

        Unopened; OSError if the server breaks the connection.
        """
        host, port = self._server.hostname or "", _port(self._server)
        line = http.client.HTTPConnection(host, port)
        line.default_port = _PORTS[self._server.scheme]
        # A closed connection must not open itself again, without a proxy or TLS.
        line.auto_open = 0
        sock = self._reached(host, port, timeout)
        try:
            for level, name, value in _options():
                sock.setsockopt(level, name, value)
            if self._trust is not None:
                sock = _secured(sock, self._trust, self._name)
        except TimeoutError as error:
            sock.close()
            raise Unopened("time") from error
        except BaseException:
            sock.close()
            raise
        line.sock = sock
        return line

    def _reached(self, host: str, port: int, timeout: float) -> Any:
        """A socket whose other end is the server, directly or through the proxy."""
        proxy = self._proxy
        # A text would load the codec of international names, which takes a millisecond.
        at: Any = host.encode("ascii") if host.isascii() else host, port
        try:
            if proxy is None:
                return socket.create_connection(at, timeout)
            return self._through(proxy, host, port, timeout)
        except (Unopened, OSError, http.client.HTTPException) as error:
            if proxy is not None:
                raise Unopened("proxy") from error
            if isinstance(error, TimeoutError):
                raise Unopened("time") from error
            raise Unopened("name" if isinstance(error, socket.gaierror) else "server") from error
        except UnicodeError as error:  # no host has this name
            raise Unopened("name") from error

    def _through(self, proxy: SplitResult, host: str, port: int, timeout: float) -> Any:
        at = proxy.hostname or "", _port(proxy)
        login = [unquote(proxy.username or ""), unquote(proxy.password or "")]
        if proxy.scheme.startswith("socks"):
            import socks  # type: ignore[import-untyped]  # noqa: PLC0415  only for SOCKS

            # As in kubectl the proxy resolves the host.
            by_proxy = socks.SOCKS5, *at, True, *login
            return socks.create_connection((host, port), timeout, None, *by_proxy)
        sock: Any = socket.create_connection(at, timeout)
        try:
            if proxy.scheme == "https":
                sock = _secured(sock, _public(checked=self._checked), at[0])
            known = f"Proxy-Authorization: {basic(':'.join(login))}\r\n" if any(login) else ""
            there = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            sock.sendall(f"CONNECT {there} HTTP/1.1\r\nHost: {there}\r\n{known}\r\n".encode())
            answer = http.client.HTTPResponse(sock, method="CONNECT")
            answer.begin()
            answer.close()
            if answer.status != http.client.OK:
                said = f"{answer.status} {answer.reason}".strip()
                raise OSError(f"Tunnel connection failed: {said}")  # noqa: TRY301  closes below
        except BaseException:
            sock.close()
            raise
        return sock


def _close(idle: list[http.client.HTTPConnection]) -> None:
    with contextlib.suppress(IndexError):  # the last is closed, perhaps by another thread
        while True:
            idle.pop().close()


def _secured(sock: Any, trust: ssl.SSLContext, name: str) -> Any:
    """TLS over a socket, with a server of this name."""
    name = name.partition("%")[0]  # the zone of an IPv6 address
    try:
        if isinstance(sock, ssl.SSLSocket):
            from urllib3.util.ssltransport import SSLTransport  # TLS within TLS: no socket can

            return SSLTransport(sock, trust, name)
        return trust.wrap_socket(sock, server_hostname=name)
    # ValueError: a name that no certificate can have.
    except (ssl.SSLError, ValueError) as error:
        raise Unopened("trust") from error


def _proxy(address: str) -> SplitResult:
    """The parts of a proxy's address; UsageError, without the address, if it is invalid."""
    with contextlib.suppress(ValueError):
        found = urlsplit(address)
        if found.scheme in _PORTS and found.hostname and _port(found):
            if found.scheme.startswith("socks") and importlib.util.find_spec("socks") is None:
                raise UsageError(
                    "the proxy to the API server is a SOCKS proxy, and PySocks is missing",
                    hint="pip install 'arena-topo[socks]'",
                )
            return found
    raise UsageError(
        "the proxy to the API server has no address that can be used",
        why="it is like http://HOST:PORT, https://HOST:PORT or socks5://HOST:PORT",
        hint="see HTTPS_PROXY, proxy-url",
    )


def _port(address: SplitResult) -> int:
    return address.port or _PORTS[address.scheme]


def _options() -> Iterator[tuple[int, int, int]]:
    """Socket options: no delay, and detection of a dead peer of a silent log within a minute."""
    yield socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
    yield socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
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


def tls(found: Access) -> ssl.SSLContext:
    """The TLS settings: trusted CAs and the client's certificate; UsageError if one is invalid."""
    where = f"context {found.context}" if found.context else "the pod's service account"
    try:
        context = _trusting(cafile=found.ca_file, cadata=found.ca)
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(f"{where}: certificate-authority is no PEM certificate") from error
    except OSError as error:
        raise UsageError(f"{found.ca_file}: cannot be read", why=error.strerror) from error
    context.set_alpn_protocols(["http/1.1"])
    if not found.verify:
        _unchecked(context)
    if found.certificate:
        try:
            with contextlib.ExitStack() as stack:
                context.load_cert_chain(*(_as_file(one, stack) for one in found.certificate))
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
