"""What `top job` shows: arena's table of jobs by the GPUs that they ask for, and one job's GPUs.

Layouts and texts are arena's (pkg/training/top_job.go).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from arena_topo import output
from arena_topo.backends import Instance, JobStatus, Phase
from arena_topo.manifests import Guarantee
from arena_topo.topology import natural

if TYPE_CHECKING:
    from arena_topo.backends.metrics import GpuSample

_MIB = float(1 << 20)


def by_requested(statuses: Iterable[JobStatus]) -> list[JobStatus]:
    """Jobs in the order of `top job`: those that ask for most GPUs first, then by name."""
    return sorted(statuses, key=lambda one: (-one.request_gpus, natural(one.name), one.namespace))


def jobs(statuses: Iterable[JobStatus], *, now: float, namespaces: bool = False) -> str:
    """A line for each job, in the order given, and how many GPUs those that run ask for and have.

    AGE is how long the job has lasted (arena's word for it). `now` is Unix seconds; with
    `namespaces` a first column names them.
    """
    header = ("NAME", "STATUS", "TRAINER", "AGE", "GPU(Requested)", "GPU(Allocated)", "NODE")
    rows = []
    requested = allocated = 0
    for one in statuses:
        if one.phase is Phase.RUNNING:
            requested += one.request_gpus
            allocated += one.allocated_gpus
        row = (
            one.name,
            one.phase.value,
            output.TRAINER.upper(),
            output.duration(_lasted(one, now)),
            str(one.request_gpus),
            str(one.allocated_gpus),
            output.NOTHING if one.chief is None else _host(one.chief),
        )
        rows.append((one.namespace, *row) if namespaces else row)
    total = f"Total Allocated/Requested GPUs of Training Jobs: {allocated}/{requested}"
    first = ("NAMESPACE", *header) if namespaces else header
    return output.align([*output.table(first, rows), "", total])


def job(
    status: JobStatus,
    *,
    now: float,
    instance: str = "",
    samples: Iterable[GpuSample] = (),
) -> str:
    """One job: its head as in `get`, then each pod, or only `instance`, with its GPUs.

    Without samples what a GPU does is N/A, and its index too where nobody knows it.
    """
    measured: dict[str, list[GpuSample]] = {}
    for sample in samples:
        measured.setdefault(sample.pod, []).append(sample)
    header = (
        *("NAME", "STATUS", "GPU(Request)", "NODE", "GPU(DeviceIndex)", "GPU(DutyCycle)"),
        "GPU_MEMORY(Used/Total)",
    )
    # The last group of arena's dashes is shorter than the word above it.
    lines = [
        "  " + "\t".join(header),
        "  " + "\t".join([*("-" * len(word) for word in header[:-1]), "-" * 15]),
    ]
    forecast = status.forecast
    placed = {index: gpus for index, _, gpus in forecast.workers} if forecast is not None else {}
    for one in sorted(status.instances, key=lambda some: natural(some.name)):
        if instance not in {"", one.name}:
            continue
        row = [one.name, one.status, str(one.gpus), _host(one)]
        mine = sorted(measured.get(one.name, ()), key=lambda sample: sample.index)
        if not mine:
            known = one.devices or (placed.get(one.worker, ()) if one.worker is not None else ())
            exact = forecast is not None and forecast.guarantee == Guarantee.GPUS
            gpus = ",".join(map(str, known)) if known and exact and not one.pending else ""
            rest = [gpus or output.NOTHING, output.NOTHING, output.NOTHING]
            lines.append("  " + "\t".join([*row, *rest]))
        for at, sample in enumerate(mine):
            used, total = sample.memory_used, sample.memory_total
            memory = output.NOTHING
            if used is not None and total is not None:
                memory = f"{used / _MIB:.1f}/{total / _MIB:.1f}(MiB)"
            rest = [str(sample.index), percent(sample.duty_cycle), memory]
            lines.append("  " + "\t".join([*(row if at == 0 else [""] * len(row)), *rest]))
    total_line = f"  Allocated/Requested GPUs of Job: {status.allocated_gpus}/{status.request_gpus}"
    head = output.head(replace(status, model_name="", model_version="", model_source=""), now)
    return head + output.align(["", "Instances:", *lines, "", "GPUs:", total_line])


def _lasted(status: JobStatus, now: float) -> float:
    return (now if status.finished is None else status.finished) - status.created


def _host(one: Instance) -> str:
    return output.NOTHING if one.pending or not one.node_ip else one.node_ip


def percent(value: float | None) -> str:
    """A share as arena shows it; N/A where nobody knows it."""
    return output.NOTHING if value is None else f"{value:.1f}%"
