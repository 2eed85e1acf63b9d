"""The pools of connections to an API server: trust, client certificates, proxies."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import ssl
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from arena_topo.engines.kubernetes.kubeconfig import Access
from arena_topo.errors import UsageError

if TYPE_CHECKING:
    import urllib3


def pool_of(found: Access) -> urllib3.PoolManager:
    """The connection pool for one API server, with its certificates checked as it says."""
    import urllib3
    from urllib3.connection import HTTPConnection

    settings: dict[str, Any] = {
        "retries": False,
        # Several threads ask at once while logs are followed, or a cluster is watched; urllib3
        # would keep one connection.
        "maxsize": 16,
        "socket_options": [*HTTPConnection.default_socket_options, *_keepalive()],
    }
    if found.server.startswith("https:"):
        settings["ssl_context"] = tls(found)
        if found.server_name:
            settings["server_hostname"] = settings["assert_hostname"] = found.server_name
        if not found.verify:
            settings |= {"cert_reqs": "CERT_NONE", "assert_hostname": False}
            # The kubeconfig asks for it; a warning on every request would say nothing new.
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    if found.proxy:
        return _through(found.proxy, settings)
    return urllib3.PoolManager(**settings)


def _through(proxy: str, settings: dict[str, Any]) -> urllib3.PoolManager:
    """The pool behind a proxy; UsageError, without its address, if there can be none."""
    import urllib3

    try:
        scheme, login, host, *_ = urllib3.util.parse_url(proxy)
    except urllib3.exceptions.LocationParseError:
        scheme = login = host = None
    if scheme in {"http", "https"} and host:
        # urllib3 leaves out what an address says of who logs in.
        known = urllib3.make_headers(proxy_basic_auth=unquote(login)) if login else None
        return urllib3.ProxyManager(proxy, proxy_headers=known, **settings)
    if scheme not in {"socks5", "socks5h"} or not host:
        raise UsageError(
            "the proxy to the API server has no address that can be used",
            why="it is like http://HOST:PORT, https://HOST:PORT or socks5://HOST:PORT",
            hint="see HTTPS_PROXY, proxy-url",
        )
    if importlib.util.find_spec("socks") is None:
        raise UsageError(
            "the proxy to the API server is a SOCKS proxy, and PySocks is missing",
            hint="pip install 'arena-topo[socks]'",
        )
    from urllib3.contrib.socks import SOCKSProxyManager

    # As with kubectl the proxy finds the host; urllib3's name for that is socks5h.
    return SOCKSProxyManager(f"socks5h{proxy[len(scheme) :]}", **settings)


def _keepalive() -> Iterator[tuple[int, int, int]]:
    """Notice within a minute that the other side of a silent log is gone."""
    yield socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            yield socket.IPPROTO_TCP, getattr(socket, name), value


def tls(found: Access) -> ssl.SSLContext:
    """How a server is trusted, and what certificate it is shown; UsageError if that is broken."""
    where = f"context {found.context}" if found.context else "the pod's service account"
    try:
        context = ssl.create_default_context(cafile=found.ca_file, cadata=found.ca)
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(f"{where}: certificate-authority is no PEM certificate") from error
    except OSError as error:
        raise UsageError(f"{found.ca_file}: cannot be read", why=error.strerror) from error
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
        except OSError as error:
            raise UsageError(
                f"{where}: client-certificate or client-key cannot be read", why=error.strerror
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
