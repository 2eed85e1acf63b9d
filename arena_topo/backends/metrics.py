"""What GPUs are doing now: samples, from the series of the exporters that people run.

Two exporters are known: arena's own (`nvidia_gpu_*`, of kubernetes-artifacts/prometheus in
kubeflow/arena) and NVIDIA's dcgm-exporter (`DCGM_FI_DEV_*`, etc/default-counters.csv there). Their
labels differ, and a Prometheus may rename them again: whatever names a pod, a node or a GPU counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from arena_topo.backends import unheard

if TYPE_CHECKING:
    from arena_topo.backends import Backend, JobStatus

MIB = 1 << 20

SERIES: Mapping[str, tuple[str, float]] = {
    "nvidia_gpu_duty_cycle": ("duty_cycle", 1.0),
    "nvidia_gpu_memory_used_bytes": ("memory_used", 1.0),
    "nvidia_gpu_memory_total_bytes": ("memory_total", 1.0),
    "DCGM_FI_DEV_GPU_UTIL": ("duty_cycle", 1.0),
    "DCGM_FI_DEV_FB_USED": ("memory_used", MIB),
    "DCGM_FI_DEV_FB_FREE": ("free", MIB),
    "DCGM_FI_DEV_FB_RESERVED": ("reserved", MIB),
    "DCGM_FI_DEV_FB_TOTAL": ("memory_total", MIB),
}
"""What each series says, and what its values are to be multiplied with: percent and bytes."""

POD_LABELS = ("exported_pod", "pod_name", "pod")
"""Where series name the pod that uses a GPU; `pod` may be the exporter's own."""

NAMESPACE_LABELS = ("exported_namespace", "namespace_name", "pod_namespace", "namespace")

_NODE_LABELS = ("node_name", "node", "kubernetes_node", "exported_node", "Hostname", "instance")
_INDEX_LABELS = ("minor_number", "gpu", "index", "device")
_UUID_LABELS = ("uuid", "UUID")

_EXPORTER = re.compile(r"dcgm-exporter|gpu-exporter|nvidia-smi-exporter")
"""Names of pods that measure GPUs: a GPU that nobody uses is not theirs."""

_LONGEST_FILTER = 2000
"""Characters of a list of pods in a query, which travels in an address; longer, all are asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One GPU at one moment: its duty cycle in percent, its memory in bytes; None: not measured.

    `pod` and `namespace` are those of the pod that has it, empty where nobody has. `index` is the
    GPU's on its node.
    """

    node: str
    index: int
    namespace: str = ""
    pod: str = ""
    uuid: str = ""
    duty_cycle: float | None = None
    memory_used: float | None = None
    memory_total: float | None = None


def of_job(
    backend: Backend, status: JobStatus, *, tell: Callable[[str], None] = unheard
) -> tuple[GpuSample, ...]:
    """What the GPUs of a job's pods do; none where it holds none. `tell` hears why none is known.

    Nothing is asked for a job that has no pod with a GPU.
    """
    pods = [one.name for one in status.instances if one.node and not one.finished]
    if not pods or not status.request_gpus or status.phase.over:
        return ()
    mine = set(pods)
    return tuple(
        one
        for one in backend.metrics(status.namespace, pods=pods, tell=tell)
        if one.pod in mine and one.namespace in {"", status.namespace}
    )


def query(pods: Collection[str] = ()) -> str:
    """The PromQL for all known series, or for those of some pods."""
    names = f'__name__=~"{"|".join(SERIES)}"'
    wanted = "|".join(sorted(pods)).replace(".", "[.]")
    if not wanted or len(wanted) > _LONGEST_FILTER:
        return f"{{{names}}}"
    return " or ".join(f'{{{names},{label}=~"{wanted}"}}' for label in POD_LABELS)


@dataclass(slots=True)
class _Measured:
    """What was heard of one GPU of one pod so far; the firmer exporter's word first."""

    labels: Mapping[str, str]
    values: dict[str, dict[str, float]] = field(default_factory=dict)

    def add(self, series: str, value: float) -> None:
        what, unit = SERIES[series]
        known = self.values.setdefault(series.partition("_")[0], {})
        if what == "duty_cycle":
            known[what] = max(known.get(what, 0.0), value * unit)
        else:
            # Several series of one GPU are shares of it.
            known[what] = known.get(what, 0.0) + value * unit

    def value(self, what: str) -> float | None:
        for exporter in ("nvidia", "DCGM"):
            known = self.values.get(exporter, {})
            if what == "memory_total" and what not in known and {"memory_used", "free"} <= {*known}:
                return known["memory_used"] + known["free"] + known.get("reserved", 0.0)
            if what in known:
                return known[what]
        return None


def samples(results: Iterable[Any], *, namespace: str | None = None) -> tuple[GpuSample, ...]:
    """The samples in the `result` of a Prometheus vector, by node and GPU.

    What is no vector of known series is left out; only GPUs of a namespace where one is named.
    """
    found: dict[tuple[str, int, str, str], _Measured] = {}
    for labels, value in _readable(results):
        space, pod = _holder(labels)
        index = _index(labels)
        if index is None or (namespace is not None and space not in {"", namespace}):
            continue
        key = (_node(labels), index, space, pod)
        found.setdefault(key, _Measured(labels)).add(labels["__name__"], value)
    return tuple(
        GpuSample(
            node=node,
            index=index,
            namespace=space,
            pod=pod,
            uuid=_first(one.labels, _UUID_LABELS),
            duty_cycle=one.value("duty_cycle"),
            memory_used=one.value("memory_used"),
            memory_total=one.value("memory_total"),
        )
        for (node, index, space, pod), one in sorted(found.items())
    )


def _readable(results: Iterable[Any]) -> Iterable[tuple[Mapping[str, str], float]]:
    for one in results:
        try:
            labels, value = one["metric"], float(one["value"][1])
        except (TypeError, KeyError, IndexError, ValueError):
            continue
        if isinstance(labels, dict) and labels.get("__name__") in SERIES and math.isfinite(value):
            yield labels, value


def _first(labels: Mapping[str, str], names: Iterable[str]) -> str:
    return next((str(labels[name]) for name in names if labels.get(name)), "")


def _holder(labels: Mapping[str, str]) -> tuple[str, str]:
    """Namespace and name of the pod that has the GPU; empty where that is the exporter itself."""
    pod = _first(labels, POD_LABELS)
    if not pod or _EXPORTER.search(pod):
        return "", ""
    return _first(labels, NAMESPACE_LABELS), pod


def _index(labels: Mapping[str, str]) -> int | None:
    for name in _INDEX_LABELS:
        number = re.fullmatch(r"(?:nvidia)?([0-9]+)", str(labels.get(name) or ""))
        if number:
            return int(number[1])
    return None


def _node(labels: Mapping[str, str]) -> str:
    for name in _NODE_LABELS:
        if said := labels.get(name):
            # Where the exporter answers, with its port, if nothing better is known.
            return str(said).rpartition(":")[0] or str(said) if name == "instance" else str(said)
    return ""
