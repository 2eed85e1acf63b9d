"""The command `top job`: shows the GPUs of jobs and their load."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from msgspec.structs import replace

from arena_topo import layout
from arena_topo.cli.arguments import (
    PANEL,
    EverywhereFlag,
    Kind,
    Output,
    OutputFlag,
    PerhapsName,
    TypeFlag,
)
from arena_topo.cli.opening import engine, namespace_of, suggesting
from arena_topo.cli.options import Globals, display, say, show, spread
from arena_topo.cli.terminal import wrapped
from arena_topo.cli.watching import RefreshFlag, once, renew
from arena_topo.drawing import tables
from arena_topo.engines import Backend, JobStatus, Phase, metrics
from arena_topo.errors import NotFound
from arena_topo.escaping import one_line
from arena_topo.flag import Flag
from arena_topo.jobs import filtering, view
from arena_topo.topology import natural

if TYPE_CHECKING:
    from arena_topo.engines.metrics import GpuSample
    from arena_topo.reasons.view import SeenJob


@spread
def top_job(
    name: PerhapsName,
    everywhere: Globals,
    *,
    all_namespaces: EverywhereFlag = False,
    kind: TypeFlag = None,
    instance: Annotated[
        str,
        Flag(
            help="With a job, only this pod of it.",
            short="-i",
            panel=PANEL,
            needs=("JOB",),
            metavar="POD",
            completes="instances",
        ),
    ] = "",
    refresh: RefreshFlag = False,
    output_format: OutputFlag = Output.WIDE,
) -> None:
    """Show the jobs by the GPUs that they ask for; with a job, how busy its GPUs are.

    Examples:
      # Jobs by the GPUs that they ask for
      top job
      # How busy the GPUs of a job are
      top job bert
    """
    backend = engine(everywhere, stays=refresh)
    namespace = namespace_of(everywhere, backend)
    heard = once(set())

    def look() -> tuple[SeenJob, ...]:
        if name:
            with suggesting(name, namespace, backend, kind):
                status = backend.job(name, namespace)
            return _job(backend, status, instance, heard)
        if kind is Kind.OTHER:
            return ()
        documents = output_format is not Output.WIDE
        within = None if all_namespaces else namespace
        return filtering.jobs(backend, within, metrics=documents, tell=heard)

    def screen(seen: tuple[SeenJob, ...], _width: int | None) -> str:
        now = time.time()
        if name:
            [one] = seen
            return job(one.status, now=now, instance=instance, samples=one.samples)
        statuses = [one.status for one in seen]
        return jobs(statuses, now=now, namespaces=all_namespaces)

    first = look()
    forecasts = [one.status.forecast for one in first]
    emulated = any(one is not None and one.emulated for one in forecasts)
    if emulated and output_format is Output.WIDE:
        say(tables.emulated())
    if refresh:
        renew(first, look, screen, _jobs_value, output_format, limit=everywhere.timeout)
    elif output_format is Output.WIDE:
        display(screen(first, wrapped(sys.stdout)))
    else:
        show(layout.arenas(_jobs_value(first), yaml=output_format is Output.YAML))


def _job(
    backend: Backend, status: JobStatus, instance: str, heard: Callable[[str], None]
) -> tuple[SeenJob, ...]:
    from arena_topo.reasons.view import SeenJob, measured  # noqa: PLC0415 - only here

    if instance and instance not in {one.name for one in status.instances}:
        raise NotFound(
            f"the job {status.name} has no pod {instance}",
            hint=", ".join(one.name for one in status.instances) or None,
        )
    return (SeenJob(status=status, samples=measured(backend, status, tell=heard)),)


def jobs(statuses: Sequence[JobStatus], *, now: float, namespaces: bool = False) -> str:
    """Arena's table (pkg/training/top_job.go): a line for each job, in the order given.

    Below it are the GPUs that running jobs have and request. AGE is arena's word for a job's
    duration; `now` is Unix seconds; `namespaces` adds a first column.
    """
    columns = [
        (name, (lambda one: str(one.allocated_gpus)) if name == "GPU(Allocated)" else cell)
        for name, cell in view.job_columns("AGE", now, namespaces=namespaces)
    ]
    running = [one for one in statuses if one.phase is Phase.RUNNING]
    counted = (
        f"{sum(one.allocated_gpus for one in running)}/{sum(one.request_gpus for one in running)}"
    )
    total = f"Total Allocated/Requested GPUs of Training Jobs: {counted}"
    return layout.align([*layout.tabulated(columns, statuses), "", total])


def job(
    status: JobStatus,
    *,
    now: float,
    instance: str = "",
    samples: Iterable[GpuSample] = (),
) -> str:
    """One job: its head as in `get`, then each pod, or only `instance`, with its GPUs.

    Without samples the load of a GPU is N/A, and so is its index where it is not known.
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
        row = [
            one.name,
            layout.drawn(layout.state(one.status)),
            str(one.gpus),
            one_line(view.place_of(one, one.node_ip)),
        ]
        for at, cells in enumerate(metrics.cells(status, one, told)):
            lines.append("  " + "\t".join([*(row if at == 0 else [""] * len(row)), *cells]))
    total_line = f"  Allocated/Requested GPUs of Job: {status.allocated_gpus}/{status.request_gpus}"
    head = view.head(replace(status, model_name="", model_version="", model_source=""), now)
    return head + layout.align(["", "Instances:", *lines, "", "GPUs:", total_line])


def _jobs_value(seen: tuple[SeenJob, ...]) -> list[dict[str, Any]]:
    now = time.time()
    return [view.seen(one, now=now) for one in seen]
