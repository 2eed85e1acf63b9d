"""Access -> Connection: JSON over HTTP with one API server, and errors that people can act on.

Certificates, tokens, passwords and proxies of a kubeconfig are used over urllib3 directly.
Credential plugins and in-cluster configuration go through the `kubernetes` package, which takes
a third of a second to import and is imported only then.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import random
import re
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from arena_topo import __version__
from arena_topo.backends import Options
from arena_topo.backends.kubernetes.kubeconfig import (
    IN_CLUSTER,
    SERVICE_ACCOUNT,
    Access,
    configured,
    present,
    resolve,
)
from arena_topo.errors import (
    AccessDenied,
    AlreadyExists,
    ArenaError,
    ClusterError,
    NotFound,
    TimedOut,
    UsageError,
)

if TYPE_CHECKING:
    import urllib3

__all__ = ["Access", "Connection", "Keep", "access", "configured", "refusal"]

CONNECT_TIMEOUT = 5.0
"""Seconds to wait for a TCP or TLS handshake; a reachable API server needs a few milliseconds."""

PAGE = 500
"""Objects per list request (kubectl's own chunk size)."""

Keep = Callable[[dict[str, Any]], dict[str, Any] | None]
"""What is kept of an object that a list returns."""

_ATTEMPTS = 5
_FIRST_DELAY = 0.1
_PIECE = 1 << 16
_HEADERS = {
    "accept": "application/json, */*",
    "accept-encoding": "gzip",
    "user-agent": f"arena-topo/{__version__}",
}

_REDIRECT = 300
_ERRORS = 400
_UNKNOWN_CALLER = 401
FORBIDDEN = 403
_ABSENT = 404
CONFLICT = 409
_GONE = 410
_OVERLOADED = 429
_PASSING = frozenset({500, 502, 503, 504})


def access(options: Options) -> Access:
    """Where the API server is and what proves who asks; UsageError names what is wrong."""
    found = resolve(options)
    if found.plugin is None:
        return found
    return _in_pod() if found.plugin == IN_CLUSTER else _asked(found)


class _Heard(logging.Handler):
    """Keeps what the kubernetes package only logs, such as why a plugin failed."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@contextlib.contextmanager
def _heard() -> Iterator[list[str]]:
    handler, root = _Heard(), logging.getLogger()
    root.addHandler(handler)
    try:
        yield handler.texts
    finally:
        root.removeHandler(handler)


def _asked(found: Access) -> Access:
    """Let the kubernetes package run the credential plugin, and take what it answers."""
    from kubernetes.client.configuration import Configuration
    from kubernetes.config import ConfigException, load_kube_config

    settings = Configuration()
    load: Callable[..., None] = load_kube_config
    with _heard() as texts:
        try:
            load(config_file=found.files, context=found.context, client_configuration=settings)
        except (ConfigException, OSError, ValueError, KeyError) as error:
            raise UsageError(f"{found.files}: {error}") from error
    headers = _headers(settings)
    certificate = None
    if settings.cert_file and settings.key_file:
        certificate = (settings.cert_file, settings.key_file)
    if not headers and certificate is None:
        raise AccessDenied(
            f"the credential plugin of user {found.user!r} gave no credentials",
            why="; ".join(texts) or None,
            hint=f"run it by hand: {found.plugin}",
        )
    return replace(found, headers={**found.headers, **headers}, certificate=certificate)


def _in_pod() -> Access:
    """The credentials that a pod finds inside itself."""
    from kubernetes.client.configuration import Configuration
    from kubernetes.config import ConfigException, load_incluster_config

    settings = Configuration()
    load: Callable[..., None] = load_incluster_config
    try:
        load(client_configuration=settings)
    except ConfigException as error:
        raise UsageError(f"{IN_CLUSTER} cannot be used: {error}") from error
    namespace = SERVICE_ACCOUNT / "namespace"
    return Access(
        server=settings.host.rstrip("/"),
        namespace=namespace.read_text(encoding="utf-8").strip() if present(namespace) else None,
        headers=_headers(settings),
        ca_file=settings.ssl_ca_cert,
        plugin=IN_CLUSTER,
    )


def _headers(settings: Any) -> dict[str, str]:
    return {
        one["key"]: one["value"]
        for one in settings.auth_settings().values()
        if one.get("in") == "header" and one.get("value")
    }


class Connection:
    """One API server: JSON in, JSON out. Every failure is an ArenaError that says what to try.

    GET requests are repeated when the server is overloaded or breaks off, at most five times and
    never beyond the request timeout (seconds; 0 is no limit, as in kubectl); other requests only
    where the server said that it did not take them (429).
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._timeout = options.request_timeout or math.inf
        self.access = access(options)
        self._pool = _pool(self.access)

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Read one object."""
        return self._json("GET", path, query)[0]

    def post(
        self, path: str, body: Mapping[str, Any], **query: str
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Create one object: what was stored, and the server's warnings.

        AlreadyExists if its name is taken.
        """
        return self._json("POST", path, query, body)

    def put(self, path: str, body: Mapping[str, Any], **query: str) -> dict[str, Any]:
        """Replace one object: what was stored.

        ClusterError with status 409 if somebody has changed it since its `resourceVersion`.
        """
        return self._json("PUT", path, query, body)[0]

    def delete(self, path: str, body: Mapping[str, Any], **query: str) -> None:
        """Delete one object; the body is a DeleteOptions."""
        if path.endswith("/"):
            raise ValueError(f"{path} names no object, and would delete them all")
        self._json("DELETE", path, query, body)

    def collect(self, path: str, keep: Keep | None = None, **query: str) -> list[dict[str, Any]]:
        """All objects of a list, page by page; of each only what `keep` returns (None: nothing).

        Pages are dropped as they are reduced. A list that changed too much between its pages
        (410) is read once more from the start, then in one piece.
        """
        for limit in (PAGE, PAGE, 0):
            try:
                return self._pages(path, keep, limit, query)
            except ClusterError as error:
                if error.status != _GONE or not limit:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _pages(
        self, path: str, keep: Keep | None, limit: int, query: Mapping[str, str]
    ) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        asked = {**query, "limit": str(limit)} if limit else dict(query)
        while True:
            page, _ = self._json("GET", path, asked)
            for one in page.get("items") or ():
                kept = keep(one) if keep else one
                if kept is not None:
                    found.append(kept)
            more = (page.get("metadata") or {}).get("continue")
            if not more:
                return found
            asked["continue"] = more

    def stream(self, path: str, **query: str) -> Iterator[bytes]:
        """The body of a GET as it arrives, however long that takes; ends when the server does.

        ClusterError if the connection breaks in between.
        """
        from urllib3.exceptions import HTTPError

        response = self._answer("GET", path, query, None, preload=False)
        try:
            if response.status >= _ERRORS:
                raise refusal("GET", path, response.status, response.reason, response.data)
            while piece := response.read1(_PIECE):
                yield piece
        except HTTPError as error:
            raise ClusterError(
                f"the connection to {self.access.server} broke", why=_cause(error)
            ) from error
        finally:
            response.close()

    def _json(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None = None,
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        response = self._answer(method, path, query, body, preload=True)
        if response.status == _UNKNOWN_CALLER and self.access.plugin:
            # The plugin's token has run out; it is asked for a new one once, never in a loop.
            self.access = access(self._options)
            self._pool = _pool(self.access)
            response = self._answer(method, path, query, body, preload=True)
        if response.status >= _REDIRECT:
            raise refusal(method, path, response.status, response.reason, response.data)
        try:
            answer = json.loads(response.data)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ClusterError(
                f"{self.access.server} does not answer like a Kubernetes API server",
                why=f"{method} {path} returned no JSON object",
                hint="is there a proxy or a login page in between? see `kubectl version`",
            )
        return answer, _warnings(response)

    def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None,
        *,
        preload: bool,
    ) -> urllib3.BaseHTTPResponse:
        """Send a request until it is answered, within the number of attempts and the timeout."""
        import urllib3

        deadline = time.monotonic() + self._timeout
        url = self.access.server + path + ("?" + urlencode(query) if query else "")
        headers = {**_HEADERS, **self.access.headers}
        if body is not None:
            headers["content-type"] = "application/json"
        for attempt in range(1, _ATTEMPTS + 1):
            left = max(0.001, deadline - time.monotonic())
            reading = left if preload and math.isfinite(left) else None
            delay = _FIRST_DELAY * 2**attempt * random.uniform(0.5, 1.0)  # noqa: S311  # no secret
            try:
                response = self._pool.request(
                    method,
                    url,
                    body=None if body is None else json.dumps(body).encode(),
                    headers=headers,
                    timeout=urllib3.Timeout(connect=min(CONNECT_TIMEOUT, left), read=reading),
                    preload_content=preload,
                )
            except urllib3.exceptions.HTTPError as error:
                broken = isinstance(error, urllib3.exceptions.ProtocolError)
                late = attempt == _ATTEMPTS or time.monotonic() + delay > deadline
                if not broken or method != "GET" or late:
                    raise _unreachable(self.access.server, method, error, self._timeout) from error
            else:
                again = response.status == _OVERLOADED or (
                    method == "GET" and response.status in _PASSING
                )
                wait = response.headers.get("retry-after", "").strip()
                delay = float(wait) if wait.isdigit() else delay
                if not again or attempt == _ATTEMPTS or time.monotonic() + delay > deadline:
                    return response
                response.drain_conn()
            time.sleep(delay)
        raise AssertionError("the last attempt returns or raises")


def _warnings(response: urllib3.BaseHTTPResponse) -> tuple[str, ...]:
    """The texts of Warning headers: `299 - "unknown field ..."`."""
    said = ", ".join(response.headers.getlist("warning"))
    found = re.findall(r'299 \S+ "((?:[^"\\]|\\.)*)"', said)
    return tuple(re.sub(r"\\(.)", r"\1", text) for text in found)


def _pool(found: Access) -> urllib3.PoolManager:
    """The connection pool for one API server, with its certificates checked as it says."""
    import urllib3
    from urllib3.connection import HTTPConnection

    settings: dict[str, Any] = {
        "retries": False,
        "socket_options": [*HTTPConnection.default_socket_options, *_keepalive()],
    }
    if found.server.startswith("https:"):
        settings["ssl_context"] = _tls(found)
        if found.server_name:
            settings["server_hostname"] = settings["assert_hostname"] = found.server_name
        if not found.verify:
            settings |= {"cert_reqs": "CERT_NONE", "assert_hostname": False}
            # The kubeconfig asks for it; a warning on every request would say nothing new.
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    if found.proxy:
        return urllib3.ProxyManager(found.proxy, **settings)
    return urllib3.PoolManager(**settings)


def _keepalive() -> Iterator[tuple[int, int, int]]:
    """Notice within a minute that the other side of a silent log is gone."""
    yield socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            yield socket.IPPROTO_TCP, getattr(socket, name), value


def _tls(found: Access) -> ssl.SSLContext:
    where = f"context {found.context}" if found.context else "the pod's service account"
    try:
        context = ssl.create_default_context(cafile=found.ca_file, cadata=found.ca)
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(f"{where}: certificate-authority is no PEM certificate") from error
    # Python 3.13 asks for extensions that the CAs of many clusters do not have.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not found.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if found.certificate:
        try:
            with contextlib.ExitStack() as stack:
                certificate, key = (_as_file(one, stack) for one in found.certificate)
                context.load_cert_chain(certificate, key)
        except ssl.SSLError as error:
            raise UsageError(
                f"{where}: client-certificate and client-key do not belong together, or are no PEM"
            ) from error
    return context


def _as_file(value: str | bytes, stack: contextlib.ExitStack) -> str:
    """A path for OpenSSL, which reads client keys from files only; gone when the stack closes."""
    if isinstance(value, str):
        return value
    file = stack.enter_context(
        tempfile.NamedTemporaryFile(prefix="arena-topo-")  # noqa: SIM115  the stack closes it
    )
    file.write(value)
    file.flush()
    return file.name


def _cause(error: BaseException) -> str:
    """The innermost reason, without urllib3's object names."""
    seen: BaseException = error
    while (inner := seen.__cause__ or seen.__context__) is not None:
        seen = inner
    return (seen.strerror if isinstance(seen, OSError) else None) or str(seen)


def _unreachable(server: str, method: str, error: Exception, timeout: float) -> ArenaError:
    from urllib3 import exceptions

    why = _cause(error)
    elsewhere = "is the cluster up? `--context` names another, `--backend local` is this machine"
    if isinstance(error, exceptions.ProxyError):
        return ClusterError(
            f"the proxy to {server} does not answer", why=why, hint="see HTTPS_PROXY, proxy-url"
        )
    if isinstance(error, exceptions.SSLError):
        return ClusterError(
            f"{server} cannot be trusted",
            why=why,
            hint="does certificate-authority in the kubeconfig belong to this cluster?",
        )
    if isinstance(error, exceptions.NameResolutionError):
        return ClusterError(f"the host of {server} is not known", why=why, hint=elsewhere)
    if isinstance(error, exceptions.NewConnectionError) and not _no_route(error):
        return ClusterError(f"{server} does not accept connections", why=why, hint=elsewhere)
    if isinstance(error, exceptions.TimeoutError):
        return TimedOut(
            f"{server} did not answer in time",
            why=why,
            hint=f"is there a route to it (VPN, firewall)? --request-timeout is {timeout:g} s",
        )
    unsure = "" if method == "GET" else "; whether it took the request is not known"
    return ClusterError(f"{server} broke the connection{unsure}", why=why, hint=elsewhere)


def _no_route(error: BaseException) -> bool:
    inner = error.__cause__ or error.__context__
    return isinstance(inner, OSError) and inner.errno in {
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.ETIMEDOUT,
    }


_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/[^/]+(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>[^/]+))?"
)
_VERBS = {"POST": "create", "DELETE": "delete", "PATCH": "patch", "PUT": "update"}


def refusal(method: str, path: str, status: int, reason: str | None, body: bytes) -> ArenaError:
    """The error that an answer of the API server means; its message is kept, never a raw body."""
    try:
        said = json.loads(body)
    except ValueError:
        said = None
    said = said if isinstance(said, dict) and said.get("kind") == "Status" else {}
    message = str(said.get("message") or "") or None
    target = _PATH.fullmatch(path)
    what = target["resource"] if target else path
    if target and target["sub"]:
        what += f"/{target['sub']}"
    verb = _VERBS.get(method, "get" if target and target["name"] else "list")
    if status == _UNKNOWN_CALLER:
        return AccessDenied(
            "the API server does not know who is asking",
            status=status,
            why=message,
            hint="log in again, or name another --context",
        )
    if status == FORBIDDEN:
        group = (target["group"] if target else None) or ""
        space = target["namespace"] if target else None
        where = f" in namespace {space}" if space else ""
        return AccessDenied(
            f"not allowed to {verb} {what}{where}",
            status=status,
            why=message,
            hint=f"ask for this rule in a {'Role' if space else 'ClusterRole'}: "
            f'{{apiGroups: ["{group}"], resources: ["{what}"], verbs: ["{verb}"]}}',
        )
    if status == _ABSENT:
        return NotFound(message or f"the API server has no {what}")
    if status == CONFLICT and said.get("reason") == "AlreadyExists":
        return AlreadyExists(message or f"{what} already exists")
    return ClusterError(
        message or f"the API server answered {status} {reason or ''}".rstrip(),
        status=status,
        why=f"{verb} {what} failed" if message else None,
    )
