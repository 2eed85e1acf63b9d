"""What `top job` shows: arena's table of jobs by the GPUs that they ask for, and one job's GPUs.

Layouts and texts are arena's (pkg/training/top_job.go).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from arena_topo import layout
from arena_topo.engines import Instance, JobStatus, Phase, measured
from arena_topo.escaping import one_line
from arena_topo.jobs import view
from arena_topo.topology import natural

if TYPE_CHECKING:
    from arena_topo.engines.metrics import GpuSample


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
            view.TRAINER.upper(),
            layout.duration(view.lasted(one, now)),
            str(one.request_gpus),
            str(one.allocated_gpus),
            layout.NOTHING if one.chief is None else _host(one.chief),
        )
        rows.append((one.namespace, *row) if namespaces else row)
    total = f"Total Allocated/Requested GPUs of Training Jobs: {allocated}/{requested}"
    first = ("NAMESPACE", *header) if namespaces else header
    return layout.align([*layout.table(first, rows), "", total])


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
    header = (
        *("NAME", "STATUS", "GPU(Request)", "NODE", "GPU(DeviceIndex)", "GPU(DutyCycle)"),
        "GPU_MEMORY(Used/Total)",
    )
    # The last group of arena's dashes is shorter than the word above it.
    lines = [
        "  " + "\t".join(header),
        "  " + "\t".join([*("-" * len(word) for word in header[:-1]), "-" * 15]),
    ]
    told = tuple(samples)
    for one in sorted(status.instances, key=lambda some: natural(some.name)):
        if instance not in {"", one.name}:
            continue
        row = [one.name, one_line(one.status), str(one.gpus), one_line(_host(one))]
        for at, cells in enumerate(measured.cells(status, one, told)):
            lines.append("  " + "\t".join([*(row if at == 0 else [""] * len(row)), *cells]))
    total_line = f"  Allocated/Requested GPUs of Job: {status.allocated_gpus}/{status.request_gpus}"
    head = view.head(replace(status, model_name="", model_version="", model_source=""), now)
    return head + layout.align(["", "Instances:", *lines, "", "GPUs:", total_line])


def _host(one: Instance) -> str:
    return layout.NOTHING if one.pending or not one.node_ip else one.node_ip
