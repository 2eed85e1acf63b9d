"""The address of a Prometheus, and its metrics of GPUs.

It is found as in arena (v0.15.5, pkg/prometheus/query.go): by the given address (PROMETHEUS_ADDRESS
or a setting), else by the labels of its service, reached through the API server's proxy. After
arena's three labels come those of the Prometheus operator and of the community's chart. Unlike in
arena a service of `PROMETHEUS_NAMESPACES` comes before any other.

Two exporters are known: arena's own (`nvidia_gpu_*`, of kubernetes-artifacts/prometheus in
kubeflow/arena) and NVIDIA's dcgm-exporter (`DCGM_FI_DEV_*`, etc/default-counters.csv there). Their
labels differ, and a Prometheus may rename them: every known label for a pod, a node or a GPU is
accepted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from arena_topo.engines import Options
from arena_topo.engines.kubernetes.connection import Connection
from arena_topo.engines.kubernetes.failures import parsed, refusal_error
from arena_topo.engines.kubernetes.kubeconfig import (
    Access,
    basic,
    parted,
    proxy_of_environment,
)
from arena_topo.engines.kubernetes.shapes import kube_object
from arena_topo.engines.metrics import MIB, GpuSample
from arena_topo.errors import REDIRECT, AccessDenied, ArenaError, ClusterError
from arena_topo.escaping import brief

ADDRESS_VARIABLE, TOKEN = "PROMETHEUS_ADDRESS", "PROMETHEUS_TOKEN"
"""Environment variables that arena reads too."""

PROMETHEUS_TIMEOUT = 2.0
"""The timeout of a Prometheus in seconds."""

SERVICES = (
    ("kubernetes.io/service-name=prometheus-admin", 9335),
    ("kubernetes.io/service-name=prometheus-server", 9090),
    ("kubernetes.io/name=Prometheus", 9090),
    ("operated-prometheus=true", 9090),
    ("app.kubernetes.io/name=prometheus,app.kubernetes.io/component=server", 80),
)
"""Labels of services in front of a Prometheus, and their port, best first."""

PROMETHEUS_NAMESPACES = (
    *("kube-system", "monitoring", "prometheus", "observability", "arena-system", "arms-prom"),
    *("gpu-operator", "cattle-monitoring-system", "openshift-monitoring"),
)
"""Namespaces in which administrators install a Prometheus. Whoever may create a service in another
namespace may call it a Prometheus."""

SERIES: Mapping[str, float] = {
    "nvidia_gpu_duty_cycle": 1.0,
    "nvidia_gpu_memory_used_bytes": 1.0,
    "nvidia_gpu_memory_total_bytes": 1.0,
    "DCGM_FI_DEV_GPU_UTIL": 1.0,
    "DCGM_FI_DEV_FB_USED": MIB,
    "DCGM_FI_DEV_FB_FREE": MIB,
    "DCGM_FI_DEV_FB_RESERVED": MIB,
    "DCGM_FI_DEV_FB_TOTAL": MIB,
}
"""The series that are read, and the factors to percent or bytes."""

POD_LABELS = ("exported_pod", "pod_name", "pod")
"""Labels of the pod that uses a GPU; `pod` may be the exporter's own."""

NAMESPACE_LABELS = ("exported_namespace", "namespace_name", "pod_namespace", "namespace")

_NODE_LABELS = ("node_name", "node", "kubernetes_node", "exported_node", "Hostname", "instance")
_INDEX_LABELS = ("minor_number", "gpu", "index", "device")
_UUID_LABELS = ("uuid", "UUID")

_PARTS = ("GPU_I_ID", "vgpu")
"""Labels of the parts of one GPU: a MIG instance and a virtual GPU of dcgm-exporter."""

_EXPORTER = re.compile(r"dcgm-exporter|gpu-exporter|nvidia-smi-exporter")
"""Names of the exporters' own pods, which are not the users of an idle GPU."""

_LONGEST_FILTER = 2000
"""Characters of a list of pods in a query, which is part of the URL; for a longer list all pods are
queried."""

_PERCENT = 100.0
_BYTES = float(1 << 50)
"""An upper limit of the memory of a GPU in bytes: thousands of times that of today's GPUs."""

_PATH = "/api/v1/query"


class _Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where a Prometheus is asked; `doubt`: why its answers may not be the cluster's."""

    api: Connection
    path: str
    doubt: str = ""


class Prometheus:
    """The source of metrics of one cluster's GPUs. The result of the search for it is cached.

    `gpus` gives up after `PROMETHEUS_TIMEOUT` seconds without an answer.
    """

    def __init__(self, api: Connection, options: Options) -> None:
        self._api, self._options = api, options
        self._service: tuple[_Source | None] | None = None

    def gpus(
        self,
        *,
        namespace: str | None,
        pods: Collection[str],
        tell: Callable[[str], None],
    ) -> tuple[GpuSample, ...]:
        """The samples of all GPUs, or of a namespace's or of some pods'.

        Empty if there is no Prometheus or it cannot be queried; `tell` gets the reason.
        """
        try:
            if self._service is None:
                self._service = (self._look(),)
            [service] = self._service
            if service is None:
                tell(
                    "no Prometheus was found that could say what GPUs do; if there is one,"
                    f" set {ADDRESS_VARIABLE}, or label its service {SERVICES[1][0]}"
                )
                return ()
            series = self._vector(service.api, service.path, query(pods))
            if service.doubt:
                tell(service.doubt)
            return samples(series, namespace=namespace)
        except ArenaError as error:
            # It may have moved.
            self._service = None
            more = f": {error.why}" if error.why else ""
            if isinstance(error, AccessDenied):
                more = f"; set {ADDRESS_VARIABLE} to ask Prometheus itself"
            tell(f"what GPUs do is not known: {error.message}{more}")
        return ()

    def _look(self) -> _Source | None:
        """Where a Prometheus is; None if no service looks like one."""
        if address := self._options.prometheus_address or os.environ.get(ADDRESS_VARIABLE):
            return _Source(api=Connection(self._options, _at(address)), path=_PATH)
        foreign: _Source | None = None
        for labels, port in SERVICES:
            for service in self._api.collect("/api/v1/services", labelSelector=labels):
                meta = service["metadata"]
                name, space = meta["name"], meta.get("namespace")
                path = (
                    f"/api/v1/namespaces/{space}/services"
                    f"/http:{name}:{_port(service, port)}/proxy{_PATH}"
                )
                if space in PROMETHEUS_NAMESPACES:
                    return _Source(api=self._api, path=path)
                doubt = (
                    f"the load of GPUs is from service {name} of namespace {space}; set"
                    f" {ADDRESS_VARIABLE} if that is not the cluster's Prometheus"
                )
                foreign = foreign or _Source(api=self._api, path=path, doubt=doubt)
        return foreign

    def _vector(self, api: Connection, path: str, query: str) -> list[Any]:
        response, data = api.answer("GET", path, {"query": query}, patience=PROMETHEUS_TIMEOUT)
        if response.status >= REDIRECT:
            if api is self._api:
                raise refusal_error("GET", path, response.status, response.reason, data)
            status_line = f"{response.status} {response.reason or ''}".rstrip()
            raise ClusterError(f"{api.access.server} answers {status_line}")
        answer = parsed(data)
        answer_data = answer.get("data") if isinstance(answer, dict) else None
        if isinstance(answer_data, dict) and isinstance(answer_data.get("result"), list):
            return list(answer_data["result"])
        why = answer.get("error") if isinstance(answer, dict) else None
        raise ClusterError("Prometheus gave no samples", why=brief(str(why)) if why else None)


def _at(address: str) -> Access:
    """A Prometheus at an address; ClusterError, without a password, for an invalid address."""
    try:
        bare, login = parted(address)
    except ValueError:
        raise ClusterError(
            f"{ADDRESS_VARIABLE} is no address such as http://10.0.0.1:9090"
        ) from None
    headers = {"authorization": basic(login)} if login else {}
    if token := os.environ.get(TOKEN, "").strip():
        headers = {"authorization": f"Bearer {token}"}
    proxy = proxy_of_environment(bare)
    return Access(server=bare.rstrip("/"), headers=headers, proxy=proxy, files=TOKEN)


def _port(service: Mapping[str, Any], usual: int) -> int:
    """The port of a service for queries: the usual one, else one for the web, else any."""
    ports = [port for port in kube_object(service).spec.ports if port.port]
    if not ports or any(port.port == usual for port in ports):
        return usual
    web = [port for port in ports if port.name in {"web", "http", "http-web"}]
    return (web or ports)[0].port


# ---------------------------------------------------------------- series


def query(pods: Collection[str] = ()) -> str:
    """The PromQL for all known series, or for those of some pods."""
    names = f'__name__=~"{"|".join(SERIES)}"'
    wanted = "|".join(sorted(pods)).replace(".", "[.]")
    if not wanted or len(wanted) > _LONGEST_FILTER:
        return f"{{{names}}}"
    return " or ".join(f'{{{names},{label}=~"{wanted}"}}' for label in POD_LABELS)


def samples(results: Iterable[Any], *, namespace: str | None = None) -> tuple[GpuSample, ...]:
    """The samples in the `result` of a Prometheus vector, by node and GPU.

    Unknown or malformed series are skipped, and so are values that are no percentage, or no number
    of bytes that a GPU could have; with a `namespace` only its GPUs count. A GPU that several
    exporters measure, or one that several jobs of Prometheus scrape, counts once, identified by its
    uuid, or without one by node and index. The memory of its parts (MIG) adds up.
    """
    readable = list(_readable(results))
    uuids = {
        _place(labels): uuid for labels, _ in readable if (uuid := _first(labels, _UUID_LABELS))
    }
    readings: dict[tuple[object, str, str], dict[str, dict[object, float]]] = {}
    named: dict[object, Mapping[str, str]] = {}
    for labels, value in readable:
        place = _place(labels)
        gpu = _first(labels, _UUID_LABELS) or uuids.get(place) or place
        part = tuple(labels.get(name, "") for name in _PARTS)
        parts = readings.setdefault((gpu, *_holder(labels)), {}).setdefault(labels["__name__"], {})
        parts[part] = max(parts.get(part, 0.0), value)
        named[gpu] = min(named.get(gpu, labels), labels, key=_rank)
    in_pods = {gpu for gpu, _, pod in readings if pod}
    shown: dict[tuple[str, int, str, str], GpuSample] = {}
    for (who, space, pod), values in readings.items():
        # Not every exporter knows the pod of a GPU: a sample with a pod replaces one without.
        if (not pod and who in in_pods) or (namespace is not None and space not in {"", namespace}):
            continue
        node, index = _place(named[who])
        uuid = who if isinstance(who, str) else ""
        sample = _sample(values, node=node, index=index, namespace=space, pod=pod, uuid=uuid)
        shown.setdefault((node, index, space, pod), sample)
    return tuple(sample for _, sample in sorted(shown.items()))


def _sample(values: Mapping[str, Mapping[object, float]], **known: Any) -> GpuSample:
    """The sample of a GPU and its parts; of two exporters arena's own counts."""

    def first(*names: str) -> float | None:
        for name in names:
            if name in values:
                reading = (max if _is_share(name) else sum)(values[name].values())
                return reading if reading <= _BYTES else None
        return None

    used, free = first("DCGM_FI_DEV_FB_USED"), first("DCGM_FI_DEV_FB_FREE")
    total = first("nvidia_gpu_memory_total_bytes", "DCGM_FI_DEV_FB_TOTAL")
    if total is None and used is not None and free is not None:
        total = used + free + (first("DCGM_FI_DEV_FB_RESERVED") or 0.0)
    return GpuSample(
        duty_cycle=first("nvidia_gpu_duty_cycle", "DCGM_FI_DEV_GPU_UTIL"),
        memory_used=first("nvidia_gpu_memory_used_bytes", "DCGM_FI_DEV_FB_USED"),
        memory_total=None if total is None or total > _BYTES else total,
        **known,
    )


def _readable(results: Iterable[Any]) -> Iterator[tuple[dict[str, str], float]]:
    """The labels and values, in percent or bytes, of the valid series."""
    for result in results:
        try:
            labels = {
                name: text for name, text in result["metric"].items() if isinstance(text, str)
            }
            name = labels["__name__"]
            value = float(result["value"][1]) * SERIES[name]
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            continue
        most = _PERCENT if _is_share(name) else _BYTES
        # NaN fails both tests.
        if 0 <= value <= most and _index(labels) is not None:
            yield labels, value


def _is_share(series: str) -> bool:
    return series.endswith(("UTIL", "duty_cycle"))


def _rank(labels: Mapping[str, str]) -> int:
    """How well labels name the node: the lower the better."""
    every = enumerate(_NODE_LABELS)
    return next((rank for rank, name in every if labels.get(name)), len(_NODE_LABELS))


def _first(labels: Mapping[str, str], names: Iterable[str]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")


def _holder(labels: Mapping[str, str]) -> tuple[str, str]:
    """Namespace and name of the pod that uses the GPU; empty for the exporter itself."""
    pod = _first(labels, POD_LABELS)
    if not pod or _EXPORTER.search(pod):
        return "", ""
    return _first(labels, NAMESPACE_LABELS), pod


def _place(labels: Mapping[str, str]) -> tuple[str, int]:
    """The node and the index of a GPU; `instance` is the exporter's address, with a port."""
    node = _first(labels, _NODE_LABELS)
    if _rank(labels) == len(_NODE_LABELS) - 1:
        node = node.rpartition(":")[0] or node
    return node, _index(labels) or 0


def _index(labels: Mapping[str, str]) -> int | None:
    for name in _INDEX_LABELS:
        number = re.fullmatch(r"(?:nvidia)?([0-9]{1,4})", labels.get(name, ""))
        if number:
            return int(number[1])
    return None
