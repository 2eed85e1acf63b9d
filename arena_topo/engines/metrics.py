"""What GPUs are doing now: samples, from the series of the exporters that people run.

Two exporters are known: arena's own (`nvidia_gpu_*`, of kubernetes-artifacts/prometheus in
kubeflow/arena) and NVIDIA's dcgm-exporter (`DCGM_FI_DEV_*`, etc/default-counters.csv there). Their
labels differ, and a Prometheus may rename them again: whatever names a pod, a node or a GPU counts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MIB = 1 << 20

_PERCENT = 100.0
_BYTES = float(1 << 50)
"""Bytes that no GPU has: thousands of times what any has today."""

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

_CONTAINER_LABELS = {
    "exported_pod": "exported_container",
    "pod_name": "container_name",
    "pod": "container",
}
"""Where series name the container of the pod that they name in such a label."""

_PARTS = ("GPU_I_ID", "vgpu")
"""Labels of the parts of one GPU: a MIG instance and a virtual GPU of dcgm-exporter."""

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


def query(pods: Collection[str] = ()) -> str:
    """The PromQL for all known series, or for those of some pods."""
    names = f'__name__=~"{"|".join(SERIES)}"'
    wanted = "|".join(sorted(pods)).replace(".", "[.]")
    if not wanted or len(wanted) > _LONGEST_FILTER:
        return f"{{{names}}}"
    return " or ".join(f'{{{names},{label}=~"{wanted}"}}' for label in POD_LABELS)


@dataclass(slots=True)
class _Measured:
    """What was heard of one GPU of one pod so far, by series and by who shares the GPU."""

    labels: Mapping[str, str]
    values: dict[str, dict[tuple[str, ...], float]] = field(default_factory=dict)

    def add(self, labels: Mapping[str, str], value: float) -> None:
        shares = self.values.setdefault(labels["__name__"], {})
        # Whoever else measures the same share tells the same of it.
        share = _share(labels)
        shares[share] = max(shares.get(share, 0.0), value)
        if _rank(labels) < _rank(self.labels):
            self.labels = labels

    def value(self, what: str) -> float | None:
        """The word of the firmer exporter."""
        for exporter in ("nvidia", "DCGM"):
            known = dict(self._of(exporter))
            if what == "memory_total" and what not in known and {"memory_used", "free"} <= {*known}:
                known[what] = known["memory_used"] + known["free"] + known.get("reserved", 0.0)
            if what in known and _sensible(what, known[what]):
                return known[what]
        return None

    def _of(self, exporter: str) -> Iterator[tuple[str, float]]:
        for series, shares in self.values.items():
            what, unit = SERIES[series]
            if series.partition("_")[0] == exporter:
                several = max if what == "duty_cycle" else sum
                yield what, unit * several(shares.values())


def samples(results: Iterable[Any], *, namespace: str | None = None) -> tuple[GpuSample, ...]:
    """The samples in the `result` of a Prometheus vector, by node and GPU.

    What is no vector of known series is left out, and so is what is no percentage, or is no number
    of bytes that a GPU could have; only GPUs of a namespace where one is named. A
    GPU that several exporters measure, or one that several jobs of Prometheus scrape, counts once:
    it is known by its uuid, or where none is told by node and index.
    """
    told = [
        (labels, value, (_node(labels), index))
        for labels, value in _readable(results)
        if (index := _index(labels)) is not None
    ]
    uuids = {place: uuid for labels, _, place in told if (uuid := _first(labels, _UUID_LABELS))}
    found: dict[tuple[object, str, str], _Measured] = {}
    for labels, value, place in told:
        space, pod = _holder(labels)
        gpu = _first(labels, _UUID_LABELS) or uuids.get(place) or place
        found.setdefault((gpu, space, pod), _Measured(labels)).add(labels, value)
    held = {who for who, _, pod in found if pod}
    shown: dict[tuple[str, int, str, str], GpuSample] = {}
    for (who, space, pod), one in found.items():
        # Not every exporter knows who has a GPU; whoever does is heard.
        unheld = not pod and who in held
        if unheld or (namespace is not None and space not in {"", namespace}):
            continue
        sample = GpuSample(
            node=_node(one.labels),
            index=_index(one.labels) or 0,
            namespace=space,
            pod=pod,
            uuid=who if isinstance(who, str) else "",
            duty_cycle=one.value("duty_cycle"),
            memory_used=one.value("memory_used"),
            memory_total=one.value("memory_total"),
        )
        shown.setdefault((sample.node, sample.index, space, pod), sample)
    return tuple(one for _, one in sorted(shown.items()))


def _rank(labels: Mapping[str, str]) -> int:
    """How well labels name the node: less is better."""
    every = enumerate(_NODE_LABELS)
    return next((rank for rank, name in every if labels.get(name)), len(_NODE_LABELS))


def _share(labels: Mapping[str, str]) -> tuple[str, ...]:
    """What of a GPU a series is about, where it is cut up or several containers have it."""
    named = next((name for name in POD_LABELS if labels.get(name)), None)
    own = named == "pod" and _EXPORTER.search(str(labels["pod"]))
    container = "" if own else str(labels.get(_CONTAINER_LABELS[named or "pod_name"], ""))
    return container, *(str(labels.get(name, "")) for name in _PARTS)


def _readable(results: Iterable[Any]) -> Iterable[tuple[Mapping[str, str], float]]:
    for one in results:
        try:
            said = one["metric"].items()
            labels = {name: text for name, text in said if isinstance(text, str)}
            what, unit = SERIES[labels["__name__"]]
            value = float(one["value"][1])
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            continue
        if _sensible(what, value * unit):
            yield labels, value


def _sensible(what: str, value: float) -> bool:
    """Whether a value can be what a GPU does; NaN is not."""
    return 0 <= value <= (_PERCENT if what == "duty_cycle" else _BYTES)


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
        number = re.fullmatch(r"(?:nvidia)?([0-9]{1,4})", labels.get(name, ""))
        if number:
            return int(number[1])
    return None


def _node(labels: Mapping[str, str]) -> str:
    for name in _NODE_LABELS:
        if said := labels.get(name):
            # Where the exporter answers, with its port, if nothing better is known.
            return str(said).rpartition(":")[0] or str(said) if name == "instance" else str(said)
    return ""
