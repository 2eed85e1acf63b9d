"""The load of GPUs: a sample of each, and arena's cells and JSON keys for those of a pod.

Cells and keys are those of arena v0.15.5, pkg/training/get.go.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from arena_topo import layout
from arena_topo.engines import Instance, JobStatus
from arena_topo.manifests import Guarantee

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One GPU at one moment: its duty cycle in percent, its memory in bytes; None: not measured.

    `pod` and `namespace` name the pod that uses the GPU; they are empty for an idle GPU. `index` is
    the index of the GPU on its node.
    """

    node: str
    index: int
    namespace: str = ""
    pod: str = ""
    uuid: str = ""
    duty_cycle: float | None = None
    memory_used: float | None = None
    memory_total: float | None = None


def of_pod(samples: Iterable[GpuSample], pod: str) -> list[GpuSample]:
    """The samples of a pod's GPUs, by index."""
    return sorted(
        (sample for sample in samples if sample.pod == pod), key=lambda sample: sample.index
    )


def cells(
    status: JobStatus, pod: Instance, samples: Iterable[GpuSample]
) -> list[tuple[str, str, str]]:
    """Index, duty cycle and memory of each GPU of a pod; at least one row.

    Without samples the indexes are those of the pod's devices, if they are certain.
    """
    mine = of_pod(samples, pod.name)
    if not mine:
        return [(_given(status, pod), layout.NOTHING, layout.NOTHING)]
    return [(str(sample.index), percent(sample.duty_cycle), _memory(sample)) for sample in mine]


def gpu_metrics_json(samples: Iterable[GpuSample], pod: str) -> dict[str, dict[str, Any]]:
    """Arena's `gpuMetrics` of a pod: percent and bytes by index, 0 without a measurement."""
    return {
        str(sample.index): {
            "gpuDutyCycle": layout.number(sample.duty_cycle) or 0,
            "usedGPUMemory": layout.number(sample.memory_used) or 0,
            "totalGPUMemory": layout.number(sample.memory_total) or 0,
        }
        for sample in of_pod(samples, pod)
    }


def _given(status: JobStatus, pod: Instance) -> str:
    forecast = status.forecast
    if forecast is None or forecast.guarantee != Guarantee.GPUS or pod.pending:
        return layout.NOTHING
    planned = {index: gpus for index, _node, gpus in forecast.workers}
    known = pod.devices or (() if pod.worker is None else planned.get(pod.worker, ()))
    return ",".join(map(str, known)) or layout.NOTHING


def percent(share: float | None) -> str:
    """A share as arena shows it; N/A if unknown."""
    return layout.NOTHING if share is None else f"{share:.1f}%"


def _memory(sample: GpuSample) -> str:
    if sample.memory_used is None or sample.memory_total is None:
        return layout.NOTHING
    return f"{sample.memory_used / MIB:.1f}/{sample.memory_total / MIB:.1f}(MiB)"
