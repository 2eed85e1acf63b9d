"""Where a Prometheus answers, and what it says of GPUs.

Found as arena finds it (v0.15.5, pkg/prometheus/query.go): by the address that was said, in
PROMETHEUS_ADDRESS or elsewhere, else by the labels of its service, to which the API server passes
requests on. After arena's three come the labels of the Prometheus operator and of the community's
chart.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from arena_topo.backends import metrics
from arena_topo.backends.kubernetes.failures import cause
from arena_topo.backends.kubernetes.kubeconfig import proxy_of_environment
from arena_topo.errors import AccessDenied, ArenaError, ClusterError

if TYPE_CHECKING:
    from arena_topo.backends import Options
    from arena_topo.backends.kubernetes.connection import Connection
    from arena_topo.backends.metrics import GpuSample

ADDRESS, TOKEN = "PROMETHEUS_ADDRESS", "PROMETHEUS_TOKEN"
"""Environment variables that arena reads too."""

PATIENCE = 2.0
"""Seconds that looking for a Prometheus and asking it may take in all."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Direct:
    """A Prometheus that answers at an address of its own."""

    address: str
    token: str = ""


def gpus(
    api: Connection,
    options: Options,
    *,
    namespace: str | None,
    pods: Collection[str],
    tell: Callable[[str], None],
) -> tuple[GpuSample, ...]:
    """The samples of all GPUs, or of a namespace's or of some pods', in at most `PATIENCE` s.

    None where there is no Prometheus or it cannot be asked; `tell` hears why.
    """
    query = metrics.query(pods)
    deadline = time.monotonic() + PATIENCE
    direct = known(options, os.environ)
    try:
        if direct is not None:
            answer = _asked(direct, query, deadline)
        else:
            with api.within(PATIENCE):
                path = found(api)
                if path is None:
                    tell(
                        "no Prometheus was found that could say what GPUs do; if there is one,"
                        f" set {ADDRESS}, or label its service {SERVICES[1][0]}"
                    )
                    return ()
                answer = api.get(path, query=query)
        return metrics.samples(_results(answer), namespace=namespace)
    except AccessDenied as error:
        tell(f"what GPUs do is not known: {error.message}; set {ADDRESS} to ask Prometheus itself")
    except ArenaError as error:
        why = f": {error.why}" if error.why else ""
        tell(f"what GPUs do is not known: {error.message}{why}")
    return ()


def known(options: Options, environment: Mapping[str, str]) -> Direct | None:
    """The Prometheus that the options or the environment name; None if neither does."""
    address = options.prometheus_address or environment.get(ADDRESS)
    if not address:
        return None
    return Direct(address=address, token=environment.get(TOKEN, ""))


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


def _asked(direct: Direct, query: str, deadline: float) -> Any:
    """What a Prometheus at an address answers; ClusterError if it does not."""
    import urllib3

    split = urlsplit(direct.address)
    if split.scheme not in {"http", "https"} or not split.hostname:
        raise ClusterError(f"{direct.address!r} is no address such as http://10.0.0.1:9090")
    bare = split._replace(netloc=split.netloc.rpartition("@")[2], query="", fragment="").geturl()
    headers = {"accept": "application/json"}
    if split.username:
        login = f"{split.username}:{split.password or ''}"
        headers |= urllib3.make_headers(basic_auth=login)
    if direct.token:
        headers["authorization"] = f"Bearer {direct.token}"
    settings: dict[str, Any] = {"retries": False, "timeout": max(0.1, deadline - time.monotonic())}
    proxy = proxy_of_environment(bare)
    pool = urllib3.ProxyManager(proxy, **settings) if proxy else urllib3.PoolManager(**settings)
    try:
        with pool:
            url = f"{bare.rstrip('/')}{_PATH}?{urlencode({'query': query})}"
            answer = pool.request("GET", url, headers=headers)
    except (urllib3.exceptions.HTTPError, ValueError) as error:
        raise ClusterError(f"{bare} does not answer", why=cause(error)) from error
    if answer.status >= _NOT_OK:
        raise ClusterError(f"{bare} answers {answer.status} {answer.reason or ''}".rstrip())
    try:
        return json.loads(answer.data)
    except ValueError as error:
        raise ClusterError(f"{bare} does not answer like a Prometheus") from error


def _results(answer: Any) -> list[Any]:
    """The vector in an answer; ClusterError if it is none."""
    if isinstance(answer, dict) and answer.get("status") == "success":
        data = answer.get("data")
        if isinstance(data, dict) and isinstance(data.get("result"), list):
            return list(data["result"])
    said = answer.get("error") if isinstance(answer, dict) else None
    raise ClusterError("Prometheus gave no samples", why=str(said) if said else None)
