"""The command `top job`: shows the GPUs of jobs and their load."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from msgspec.structs import replace

from arena_topo import layout
from arena_topo.cli.arguments import (
    PANEL,
    EverywhereFlag,
    JobKind,
    Output,
    OutputFlag,
    PerhapsName,
    TypeFlag,
)
from arena_topo.cli.parameters import command_from_records
from arena_topo.cli.refresh import RefreshFlag, print_once, redraw_screen
from arena_topo.cli.session import Session
from arena_topo.cli.targets import namespace_of, open_engine, suggest_similar_job
from arena_topo.drawing import tables
from arena_topo.engines import JobStatus, Phase, metrics
from arena_topo.engines.backend import Backend
from arena_topo.errors import NotFound
from arena_topo.escaping import one_line
from arena_topo.flag import Flag
from arena_topo.jobs import job_order, view
from arena_topo.topology import natural_key

if TYPE_CHECKING:
    from arena_topo.engines.metrics import GpuSample
    from arena_topo.reasons.job_reading import SeenJob


@command_from_records
def top_job(
    name: PerhapsName,
    session: Session,
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
    console = session.console
    backend = open_engine(session, stays=refresh)
    namespace = namespace_of(session, backend)
    heard = print_once(console)

    def look() -> tuple[SeenJob, ...]:
        if name:
            with suggest_similar_job(name, namespace, backend, kind):
                status = backend.job(name, namespace)
            return _job(backend, status, instance, heard)
        if kind is JobKind.OTHER:
            return ()
        documents = output_format is not Output.WIDE
        within = None if all_namespaces else namespace
        return job_order.jobs_by_gpus(backend, within, metrics=documents, tell=heard)

    def screen(seen: tuple[SeenJob, ...], width: int | None) -> str:
        now = console.clock()
        if name:
            [seen_job] = seen
            return top_job_text(
                seen_job.status, now=now, instance=instance, samples=seen_job.samples
            )
        statuses = [seen_job.status for seen_job in seen]
        return top_jobs_table(statuses, now=now, namespaces=all_namespaces, width=width)

    def value(seen: tuple[SeenJob, ...]) -> list[dict[str, Any]]:
        now = console.clock()
        return [view.job_json(seen_job, now=now) for seen_job in seen]

    first = look()
    forecasts = [seen_job.status.forecast for seen_job in first]
    emulated = any(forecast is not None and forecast.emulated for forecast in forecasts)
    if emulated and output_format is Output.WIDE:
        console.info(tables.emulated_note())
    if refresh:
        limit = session.common.timeout
        redraw_screen(console, first, look, screen, value, output_format=output_format, limit=limit)
    elif output_format is Output.WIDE:
        console.screen(screen(first, console.width))
    else:
        console.write(layout.arena_document(value(first), yaml=output_format is Output.YAML))


def _job(
    backend: Backend, status: JobStatus, instance: str, heard: Callable[[str], None]
) -> tuple[SeenJob, ...]:
    from arena_topo.reasons.job_reading import SeenJob, gpu_load  # noqa: PLC0415 - only here

    if instance and instance not in {instance.name for instance in status.instances}:
        raise NotFound(
            f"the job {status.name} has no pod {instance}",
            hint=", ".join(instance.name for instance in status.instances) or None,
        )
    return (SeenJob(status=status, samples=gpu_load(backend, status, tell=heard)),)


def top_jobs_table(
    statuses: Sequence[JobStatus],
    *,
    now: float,
    namespaces: bool = False,
    width: int | None = None,
) -> str:
    """Arena's table (pkg/training/top_job.go): a line for each job, in the order given.

    Below it are the GPUs that running jobs have and request. AGE is arena's word for a job's
    duration; `now` is Unix seconds; `namespaces` adds a first column. On a terminal of `width`
    columns the least important columns are left out if they do not fit.
    """
    columns = [
        (name, (lambda status: str(status.allocated_gpus)) if name == "GPU(Allocated)" else cell)
        for name, cell in view.job_columns("AGE", now, namespaces=namespaces)
    ]
    running = [status for status in statuses if status.phase is Phase.RUNNING]
    allocated = sum(status.allocated_gpus for status in running)
    counted = f"{allocated}/{sum(status.request_gpus for status in running)}"
    total = f"Total Allocated/Requested GPUs of Training Jobs: {counted}"
    fit = layout.fitting_columns(columns, statuses, width, view.SPARE)
    return layout.align([*layout.column_table(fit, statuses), "", total])


def top_job_text(
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
    measured_samples = tuple(samples)
    for pod in sorted(status.instances, key=lambda some: natural_key(some.name)):
        if instance not in {"", pod.name}:
            continue
        row = [
            pod.name,
            layout.cell_text(layout.state(pod.status)),
            str(pod.gpus),
            one_line(view.address_of(pod)),
        ]
        for at, cells in enumerate(metrics.cells(status, pod, measured_samples)):
            lines.append("  " + "\t".join([*(row if at == 0 else [""] * len(row)), *cells]))
    total_line = f"  Allocated/Requested GPUs of Job: {status.allocated_gpus}/{status.request_gpus}"
    head = view.head(replace(status, model_name="", model_version="", model_source=""), now)
    return head + layout.align(["", "Instances:", *lines, "", "GPUs:", total_line])
