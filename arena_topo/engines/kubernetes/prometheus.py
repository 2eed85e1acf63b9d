"""Where a Prometheus answers, and what it says of GPUs.

Found as arena finds it (v0.15.5, pkg/prometheus/query.go): by the address that was said, in
PROMETHEUS_ADDRESS or elsewhere, else by the labels of its service, to which the API server passes
requests on. After arena's three come the labels of the Prometheus operator and of the community's
chart.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from arena_topo.engines import metrics
from arena_topo.engines.kubernetes.failures import cause
from arena_topo.engines.kubernetes.kubeconfig import basic, parted, proxy_of_environment
from arena_topo.errors import AccessDenied, ArenaError, ClusterError, TimedOut
from arena_topo.escaping import brief

if TYPE_CHECKING:
    from arena_topo.engines import Options
    from arena_topo.engines.kubernetes.connection import Connection
    from arena_topo.engines.metrics import GpuSample

ADDRESS, TOKEN = "PROMETHEUS_ADDRESS", "PROMETHEUS_TOKEN"
"""Environment variables that arena reads too."""

PATIENCE = 2.0
"""Seconds that looking for a Prometheus and asking it may take in all."""

MOST = 128 << 20
"""Bytes of an answer, decoded: a sample takes about 600, and 1000 nodes of 8 GPUs have 64,000."""

SERVICES = (
    ("kubernetes.io/service-name=prometheus-admin", 9335),
    ("kubernetes.io/service-name=prometheus-server", 9090),
    ("kubernetes.io/name=Prometheus", 9090),
    ("operated-prometheus=true", 9090),
    ("app.kubernetes.io/name=prometheus,app.kubernetes.io/component=server", 80),
)
"""Labels of services behind which a Prometheus is, and the port it has there, best first."""

_PATH = "/api/v1/query"
_NOT_OK = 300
_ODD = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_PIECE = 1 << 16


class Prometheus:
    """What measures the GPUs of one cluster. Where it was found is remembered, and that it was not.

    `gpus` gives up `PATIENCE` seconds after it began to ask.
    """

    def __init__(self, api: Connection, options: Options) -> None:
        self._api, self._options = api, options
        self._found: tuple[str | None] | None = None

    def gpus(
        self,
        *,
        namespace: str | None,
        pods: Collection[str],
        tell: Callable[[str], None],
    ) -> tuple[GpuSample, ...]:
        """The samples of all GPUs, or of a namespace's or of some pods'.

        None where there is no Prometheus or it cannot be asked; `tell` hears why.
        """
        query, deadline = metrics.query(pods), time.monotonic() + PATIENCE
        address = self._options.prometheus_address or os.environ.get(ADDRESS)
        try:
            if address:
                return metrics.samples(_asked(address, query, deadline), namespace=namespace)
            with self._api.within(PATIENCE):
                if self._found is None:
                    self._found = (found(self._api),)
                [path] = self._found
                if path is not None:
                    left = max(0.1, deadline - time.monotonic())
                    pieces = self._api.streamed(path, {"query": query}, silence=left)
                    answer = _read("Prometheus", pieces, deadline)
                    return metrics.samples(answer, namespace=namespace)
            tell(
                "no Prometheus was found that could say what GPUs do; if there is one,"
                f" set {ADDRESS}, or label its service {SERVICES[1][0]}"
            )
        except AccessDenied as error:
            tell(
                f"what GPUs do is not known: {error.message}; set {ADDRESS} to ask Prometheus"
                " itself"
            )
        except ArenaError as error:
            # It may have gone elsewhere.
            self._found = None
            why = f": {error.why}" if error.why else ""
            tell(f"what GPUs do is not known: {error.message}{why}")
        except _ODD:
            # What measures is not what is looked at: nothing that it says may be in the way.
            tell("what GPUs do is not known: Prometheus gave an answer that makes no sense")
        return ()


def _read(where: str, pieces: Iterable[bytes], deadline: float) -> list[Any]:
    """The vector in an answer; TimedOut or ClusterError if it is late, too much, or none."""
    body = bytearray()
    for piece in pieces:
        body += piece
        if len(body) > MOST:
            raise ClusterError(f"{where} answers with more than {MOST >> 20} MiB")
        if time.monotonic() > deadline:
            raise TimedOut(f"{where} does not answer", why=f"it had {PATIENCE:g} s")
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ClusterError(f"{where} does not answer like a Prometheus") from error
    if isinstance(answer, dict) and answer.get("status") == "success":
        data = answer.get("data")
        if isinstance(data, dict) and isinstance(data.get("result"), list):
            return list(data["result"])
    said = answer.get("error") if isinstance(answer, dict) else None
    raise ClusterError("Prometheus gave no samples", why=brief(str(said)) if said else None)


def found(api: Connection) -> str | None:
    """The path that the API server passes on to a Prometheus; None if no service looks like one."""
    for labels, port in SERVICES:
        for service in api.collect("/api/v1/services", labelSelector=labels):
            meta = service.get("metadata") or {}
            at = _port(service, port)
            return (
                f"/api/v1/namespaces/{meta.get('namespace')}/services/http:{meta.get('name')}:{at}"
                f"/proxy{_PATH}"
            )
    return None


def _port(service: Mapping[str, Any], usual: int) -> int:
    """The port of a service that queries go to: the usual one, else one for the web, else any."""
    ports = [one for one in (service.get("spec") or {}).get("ports") or () if one.get("port")]
    if not ports or any(one["port"] == usual for one in ports):
        return usual
    web = [one for one in ports if str(one.get("name")) in {"web", "http", "http-web"}]
    return int((web or ports)[0]["port"])


def _asked(address: str, query: str, deadline: float) -> list[Any]:
    """What a Prometheus at an address answers; ClusterError, without a password, if it does not."""
    import urllib3

    try:
        bare, login = parted(address)
    except ValueError:
        raise ClusterError("its address is none such as http://10.0.0.1:9090") from None
    headers = {"accept": "application/json"}
    if token := os.environ.get(TOKEN, "").strip():
        if not (token.isascii() and token.isprintable()):
            raise ClusterError(f"{TOKEN} has characters that no token has")
        headers["authorization"] = f"Bearer {token}"
    elif login:
        headers["authorization"] = basic(login)
    settings: dict[str, Any] = {"retries": False, "timeout": max(0.1, deadline - time.monotonic())}
    proxy = proxy_of_environment(bare)
    url = f"{bare.rstrip('/')}{_PATH}?{urlencode({'query': query})}"
    try:
        pool = urllib3.ProxyManager(proxy, **settings) if proxy else urllib3.PoolManager(**settings)
        answer = pool.request("GET", url, headers=headers, redirect=False, preload_content=False)
        with pool, contextlib.closing(answer):
            if answer.status >= _NOT_OK:
                said = f"{answer.status} {answer.reason or ''}".rstrip()
                raise ClusterError(f"{bare} answers {said}")
            return _read(bare, iter(lambda: answer.read1(_PIECE), b""), deadline)
    except (urllib3.exceptions.HTTPError, ValueError) as error:
        raise ClusterError(f"{bare} does not answer", why=cause(error)) from error
