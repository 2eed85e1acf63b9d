"""One job and lists of jobs, as text and as values for JSON and YAML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any

from arena_topo.drawing.tables import emulated_note
from arena_topo.engines import Event, Instance, JobStatus, Phase, slots_of, state_of
from arena_topo.escaping import one_line
from arena_topo.layout import (
    NOTHING,
    Cell,
    Column,
    align,
    cell_text,
    clock,
    column_table,
    duration,
    fitting_columns,
    go_bool,
    number,
    state,
    table,
)
from arena_topo.manifests import Binding, Guarantee, PlacementForecast, estimates
from arena_topo.manifests.cause import CauseCode
from arena_topo.words import shortened_cell

if TYPE_CHECKING:
    from arena_topo.engines.metrics import GpuSample
    from arena_topo.manifests.forecast import Move
    from arena_topo.reasons.job_reading import SeenJob
    from arena_topo.reasons.training_line import RecordedTraining


TRAINER = "mpijob"
RESOURCE = "mpijob.kubeflow.org"

# ---------------------------------------------------------------- one job


def job_text(
    status: JobStatus,
    *,
    now: float,
    gpus: bool = False,
    samples: Sequence[GpuSample] = (),
    events: Sequence[Event] | None = None,
    width: int | None = None,
) -> str:
    """One job in arena's wide layout, with its placement after its instances.

    With `gpus` also the load of its GPUs, from `samples`. On a terminal of `width` columns the
    least important columns of the instances are left out if they do not fit.
    """
    blocks = [head(status, now), _instances(status, now, width)]
    if status.forecast is not None and status.forecast.workers:
        slots = slots_of(status.forecast, status)
        trained = _trained(status)
        blocks.append(
            placement_rows(
                status.forecast,
                status.name,
                slots=slots,
                training="" if trained is None else trained.text,
            )
        )
    elif status.forecast is not None:
        blocks.append(_unplaced(status.forecast, status.reason, status.until))
    if gpus and status.phase is not Phase.SUCCEEDED and status.request_gpus > 0:
        blocks.append(_gpus(status, samples))
    if status.tensorboard:
        blocks.append(
            "Tensorboard:\n  Your tensorboard will be available on: \n"
            f"  {one_line(status.tensorboard)}\n"
        )
    if events is not None:
        blocks.append(_events(events, now))
    return "\n".join(blocks)


def _trained(status: JobStatus) -> RecordedTraining | None:
    """What its placement means for the training of a job; None without one."""
    if status.training is None:
        return None
    from arena_topo.reasons.training_line import recorded_training  # noqa: PLC0415 - few jobs

    return recorded_training(status)


def head(status: JobStatus, now: float) -> str:
    """The first lines about a job: its name, its status, its times."""
    fields: list[tuple[str, Cell]] = [
        ("Name", status.name),
        ("Status", state(status.phase.value)),
        ("Namespace", status.namespace),
        ("Priority", status.priority),
        ("Trainer", TRAINER.upper()),
        ("Duration", duration(job_duration(status, now))),
        ("CreateTime", clock(status.created)),
        ("EndTime", clock(status.finished) if status.finished and status.phase.over else ""),
    ]
    fields += [
        (label, value)
        for label, value in (
            ("Stopped", status.stop_sentence(now)),
            ("ModelName", status.model_name),
            ("ModelVersion", status.model_version),
            ("ModelSource", status.model_source),
        )
        if value
    ]
    return align(f"{label}:\t{cell_text(value)}" for label, value in fields)


def _instances(status: JobStatus, now: float, width: int | None) -> str:
    columns: list[Column[Instance]] = [
        ("NAME", lambda instance: instance.name),
        ("STATUS", lambda instance: state(instance.status)),
        ("AGE", lambda instance: duration(age_of(instance, now))),
        ("IS_CHIEF", lambda instance: go_bool(instance.chief)),
        ("GPU(Requested)", lambda instance: str(instance.gpus)),
        ("NODE", lambda instance: place_of(instance, instance.node)),
    ]
    instances, indent = in_order(status.instances), "  "
    room = None if width is None else width - len(indent)
    columns = fitting_columns(columns, instances, room, ("IS_CHIEF", "AGE", "GPU(Requested)"))
    return align(["Instances:", *column_table(columns, instances, indent=indent)])


def _gpus(status: JobStatus, samples: Sequence[GpuSample]) -> str:
    from arena_topo.engines import metrics  # noqa: PLC0415 - only for those who ask

    header = (
        "INSTANCE",
        "NODE(IP)",
        "GPU(Requested)",
        "GPU(IndexId)",
        "GPU(DutyCycle)",
        "GPU Memory(Used/Total)",
    )
    rows = []
    for instance in in_order(status.instances):
        pod = (instance.name, address_of(instance), str(instance.gpus))
        for cells in metrics.cells(status, instance, samples):
            rows.append((*pod, *cells))
            pod = ("", "", "")
    total = f"  Allocated/Requested GPUs of Job: {status.allocated_gpus}/{status.request_gpus}"
    return align(["GPUs:", *table(header, rows, indent="  "), "", total])


def _events(events: Sequence[Event], now: float) -> str:
    if not events:
        return "Events:\n  No events for resources\n"
    lines = ["Events:", *table(("SOURCE", "TYPE", "AGE", "MESSAGE"), (), indent="  ")]
    from arena_topo.topology import natural_key  # noqa: PLC0415 - only where there is much to sort

    by_source = sorted(events, key=lambda event: natural_key(event.source))
    for source, group in groupby(by_source, key=lambda event: event.source):
        lines += [
            f"  {one_line(source)}\t{one_line(event.kind)}\t{duration(now - event.when)}"
            f"\t[{one_line(event.reason)}] {one_line(event.message)}"
            for event in group
        ]
        lines.append("")
    return align(lines)


MAX_WORKER_ROWS = 16
"""Workers up to which each has its own row."""


def workers(forecast: PlacementForecast, name: str, *, slots: int, mark: str = "") -> list[str]:
    """A row for each worker, as lines for `align`; for many workers a row for each node.

    `slots` is the number of ranks of each worker; unknown GPUs are `N/A`, the others have a `mark`.
    """
    own = [[worker] for worker in sorted(forecast.workers)]
    if len(own) > MAX_WORKER_ROWS:
        runs = groupby(sorted(forecast.workers), key=lambda worker: worker[1])
        own = [list(group) for _node, group in runs]
    # Workers with one GPU each form one ring; others have a ring each.
    between = "," if slots == 1 else " "
    rows = [
        (
            rank_range(run[0][0], slots, last=run[-1][0]),
            run[0][1],
            _gpu_cell([gpus for _index, _node, gpus in run if gpus], between, mark),
            f"{name}-worker-{run[0][0]}{f'..{run[-1][0]}' if len(run) > 1 else ''}",
        )
        for run in own
    ]
    return table(("RANKS", "NODE", "GPUS", "WORKER"), rows, indent="  ")


def _gpu_cell(sets: Sequence[Sequence[int]], between: str, mark: str) -> str:
    gpus = between.join(",".join(map(str, gpu_set)) for gpu_set in sets)
    return f"{gpus}{mark}" if gpus else NOTHING


def planned_mark(forecast: PlacementForecast) -> str:
    """The mark of GPUs that a job has only if the kubelet picks them: ` (planned)`; else empty."""
    return "" if forecast.guarantee in {None, Guarantee.GPUS} else " (planned)"


def placement_rows(
    forecast: PlacementForecast,
    name: str,
    *,
    slots: int,
    binding: Binding | None = None,
    training: str = "",
) -> str:
    """The node and GPUs of each rank, the bandwidth, and the guarantee of the placement.

    `slots` is the number of ranks of each worker, `training` what it means for the training.
    """
    lines: list[str] = []
    if forecast.usable is not None:
        lines.append(f"  Bus bandwidth: {_bandwidth(forecast)}")
    if training:
        lines.append(f"  Training: {training}")
    if forecast.guarantee is not None:
        lines.append(f"  {guarantee_line(forecast)}")
    if binding is not None and binding.why:
        lines.append(f"  Why not a stronger guarantee: {one_line(binding.why)}")
    if forecast.emulated:
        lines.append(f"  {emulated_note()}")
    rows = workers(forecast, name, slots=slots, mark=planned_mark(forecast))
    return align(["Placement:", *rows, *lines])


def move(foreseen: Move, name: str) -> str:
    """Where a job is and where it would go, with the bandwidth of both."""
    rows = [("now", foreseen.before), ("replanned", foreseen.after)]
    lines = [f"{name}:"]
    for label, forecast in rows:
        if forecast is None:
            where = "nowhere" if label == "now" else "where the controller decides"
            lines.append(f"  {label}\t{NOTHING}\t{where}")
            continue
        gpus: dict[str, list[int]] = {}
        for _index, node, own in sorted(forecast.workers):
            gpus.setdefault(node, []).extend(own)
        nodes = "; ".join(
            f"{node}/{','.join(map(str, some))}{planned_mark(forecast)}" if some else node
            for node, some in gpus.items()
        )
        lines.append(f"  {label}\t{estimates.planned_and_worst(forecast) or NOTHING}\t{nodes}")
    if foreseen.compelled:
        lines.append(f"  It cannot stay: {foreseen.compelled}")
    return align(lines)


def guarantee_line(forecast: PlacementForecast) -> str:
    """The guarantee of a placement, its mechanism, and whether that is confirmed."""
    return f"Guarantee: {one_line(estimates.guarantee_sentence(forecast))}"


def confirmed(forecast: PlacementForecast | None) -> bool | None:
    """Whether the mechanism of a guarantee was tested; None without a guarantee."""
    return None if forecast is None or forecast.guarantee is None else forecast.confirmed


def _unplaced(forecast: PlacementForecast, reason: str | None, until: float | None) -> str:
    """The block of a job without a placement; it is patient `until` then (Unix seconds)."""
    why = forecast.reason or reason
    lines = ["Placement:", f"  none yet: {one_line(why)}" if why else "  none"]
    lines += [] if until is None else [f"  {patience_clause(until)}"]
    if forecast.emulated:
        lines.append(f"  {emulated_note()}")
    return align(lines)


def patience_clause(until: float) -> str:
    """What a job does once its patience ends (Unix seconds): the end of a sentence about it."""
    return f"starts wherever it fits from {clock(until)} on"


def shows_reason(status: JobStatus) -> bool:
    """Whether the screen of `job_text` already says why the job does not run."""
    forecast = status.forecast
    return (
        forecast is not None
        and not forecast.workers
        and (forecast.reason or status.reason) == status.reason
    )


def why_not_running(status: JobStatus) -> str | None:
    """Why a job does not run, in a line; None for a job that runs or has succeeded."""
    if status.reason is None or status.phase in {Phase.RUNNING, Phase.SUCCEEDED}:
        return None
    return f"The Job {state_of(status)}"


def _bandwidth(forecast: PlacementForecast) -> str:
    text = estimates.estimate_sentence(forecast)
    among = estimates.proof_scope(
        rated=forecast.rated, guess=forecast.guess, regime=forecast.regime
    )
    if forecast.optimal:
        text += f" (proven best{among})"
    elif forecast.optimal is not None and _more_is_possible(forecast):
        text += f" (at most {estimates.gbps_text(forecast.bound or 0.0)} GB/s is possible{among})"
    more = estimates.in_one_pod(forecast)
    return f"{text}; {more}" if more else text


def _more_is_possible(forecast: PlacementForecast) -> bool:
    bound, ours = forecast.bound, forecast.as_planned
    return bound is not None and ours is not None and bound > ours


def rank_range(index: int, slots: int, *, last: int | None = None) -> str:
    """The ranks of a worker, or of the workers up to `last`, as a number or a range."""
    first = index * slots
    end = ((index if last is None else last) + 1) * slots - 1
    return str(first) if first == end else f"{first}-{end}"


def job_value(
    status: JobStatus, *, now: float, samples: Sequence[GpuSample] = ()
) -> dict[str, Any]:
    """One job as arena's JSON object; our keys, `placement` to `exitCode`, come last.

    Ours are None where nothing is known. `samples` are the load of its GPUs.
    """
    return {
        "uuid": status.uid,
        "name": status.name,
        "namespace": status.namespace,
        "duration": f"{int(job_duration(status, now))}s",
        "status": status.phase.value,
        "trainer": TRAINER,
        "tensorboard": status.tensorboard,
        "chiefName": status.chief.name if status.chief else "",
        "instances": [
            _instance_value(instance, now, samples) for instance in in_order(status.instances)
        ],
        "priority": status.priority,
        "requestGPUs": status.request_gpus,
        "allocatedGPUs": status.allocated_gpus,
        "creationTimestamp": int(status.created),
        "modelName": status.model_name,
        "modelVersion": status.model_version,
        "modelSource": status.model_source,
        "placement": placement_value(
            status.forecast,
            slots=1 if status.forecast is None else slots_of(status.forecast, status),
        ),
        "runTime": None if (ran := run_time(status, now)) is None else f"{int(ran)}s",
        "lastStop": _last_stop(status),
        "reason": status.reason,
        "waitsFor": waits_for_value(status),
        "until": None if status.until is None else int(status.until),
        "reservedBy": (status.waits_because(CauseCode.TURN) or {}).get("job"),
        "exitCode": status.exit_code,
        **_training_value(status),
    }


def _training_value(status: JobStatus) -> dict[str, Any]:
    """The training of a job for JSON, in milliseconds; empty without one."""
    if (trained := _trained(status)) is None:
        return {}
    from arena_topo.training.wording import span_json  # noqa: PLC0415 - few jobs

    times = {"allReduceMs": span_json(trained.all_reduce)}
    known = {"workload": trained.name, "gradientBytes": trained.gradient_bytes}
    return {"training": {**known, **times}}


def waits_for_value(status: JobStatus) -> dict[str, Any] | None:
    """What a patient job waits for, for JSON: the place and its bandwidth; null for others."""
    wanted = status.waits_because(CauseCode.PATIENCE)
    if wanted is None:
        return None
    rate = None
    # Users can edit what is recorded.
    with suppress(KeyError, ValueError):
        rate = number(float(wanted["best"]))
    return {"place": wanted.get("place"), "bandwidthGBps": rate}


def _last_stop(status: JobStatus) -> dict[str, Any] | None:
    if status.last_stop is None:
        return None
    from arena_topo.reasons import view  # noqa: PLC0415 - reads the solver

    return view.stop_value(status.last_stop)


def _instance_value(instance: Instance, now: float, samples: Sequence[GpuSample]) -> dict[str, Any]:
    measures: dict[str, Any] = {}
    if samples:
        from arena_topo.engines import metrics  # noqa: PLC0415 - only where there are some

        measures = metrics.gpu_metrics_json(samples, instance.name)
    return {
        "ip": instance.ip,
        "status": instance.status,
        "name": instance.name,
        "age": f"{int(age_of(instance, now))}s",
        "node": place_of(instance, instance.node),
        "nodeIP": place_of(instance, instance.node_ip),
        "chief": instance.chief,
        "requestGPUs": instance.gpus,
        "gpuMetrics": measures,
        "creationTimestamp": int(instance.created),
    }


def placement_value(forecast: PlacementForecast | None, *, slots: int) -> dict[str, Any] | None:
    """A recorded placement for JSON. Bandwidths are GB/s, null for a job of one GPU.

    `slots` is the number of ranks of each worker.
    """
    if forecast is None:
        return None
    rows = sorted(forecast.workers)
    return {
        "state": forecast.state,
        "busBandwidthGBps": number(forecast.bus_bandwidth),
        "usableGBps": number(forecast.usable),
        "plannedGBps": number(forecast.as_planned),
        "atWorst": forecast.at_worst,
        "bandwidth": estimates.recorded_value(forecast),
        "guarantee": forecast.guarantee,
        "confirmed": confirmed(forecast),
        "binding": forecast.binding,
        "tier": forecast.tier,
        "assumed": forecast.assumed,
        "nodes": list(dict.fromkeys(node for _index, node, _gpus in rows)),
        "workers": [worker_value(*row, slots=slots) for row in rows],
        "proof": {
            "optimal": forecast.optimal,
            "bound": number(forecast.bound),
            "knownNetworks": forecast.rated,
        },
        "emulated": forecast.emulated,
        "reason": forecast.reason,
    }


def worker_value(index: int, node: str, gpus: Sequence[int], *, slots: int) -> dict[str, Any]:
    """A worker's place and ranks for JSON; `gpus` is null where the kubelet picks them."""
    first = index * slots
    return {
        "index": index,
        "node": node,
        "gpus": list(gpus) or None,
        "ranks": list(range(first, first + slots)),
    }


# ---------------------------------------------------------------- many jobs


def jobs_table(
    statuses: Iterable[JobStatus],
    *,
    now: float,
    namespaces: bool = False,
    headers: bool = True,
    wide: bool = False,
    width: int | None = None,
) -> str:
    """Arena's list of jobs, in the order given; with `namespaces` a first column names them.

    Without `headers` the first line is a job; `wide` adds run time, `WORKERSxGPUS`, nodes, GB/s
    and the reason why a job does not run. On a terminal of `width` columns the least important
    columns are left out if they do not fit.
    """
    lines = job_lines(statuses, now=now, namespaces=namespaces, wide=wide, width=width)
    aligned = align(lines if headers else lines[1:])
    # As in arena nothing is padded at the end of a line; most jobs have no reason there.
    return "".join(f"{line.rstrip()}\n" for line in aligned.splitlines()) if wide else aligned


def job_lines(
    statuses: Iterable[JobStatus],
    *,
    now: float,
    namespaces: bool = False,
    wide: bool = False,
    width: int | None = None,
) -> Sequence[str]:
    """The header of that list and a line for each job, to be aligned."""
    columns, jobs = job_columns("DURATION", now, namespaces=namespaces), list(statuses)
    if not wide:
        return column_table(fitting_columns(columns, jobs, width, SPARE), jobs)
    *columns, reason = [*columns, *_wide(now)]
    # A reason goes on below itself.
    room = None if width is None else width - MIN_REASON_WIDTH
    return column_table([*fitting_columns(columns, jobs, room, _SPARE_WIDE), reason], jobs)


SPARE = ("TRAINER", "GPU(Allocated)", "DURATION", "AGE", "NODE")
"""Columns of jobs that a narrow terminal can do without, the least important first."""

_SPARE_WIDE = ("TRAINER", "GPU(Allocated)", "NODE", "GPU(Requested)", "RUNTIME", "DURATION")
"""The same with `-o wide`, whose other columns say more."""

MIN_REASON_WIDTH = 24
"""Columns that are left for reasons."""


def job_columns(age: str, now: float, *, namespaces: bool) -> list[Column[JobStatus]]:
    """Arena's columns of a list of jobs; `age` is the header of the job's duration."""
    space: list[Column[JobStatus]] = [("NAMESPACE", lambda status: status.namespace)]
    return [
        *(space if namespaces else []),
        ("NAME", lambda status: status.name),
        ("STATUS", lambda status: state(status.phase.value)),
        ("TRAINER", lambda _job: TRAINER.upper()),
        (age, lambda status: duration(job_duration(status, now))),
        ("GPU(Requested)", lambda status: str(status.request_gpus)),
        ("GPU(Allocated)", _allocated),
        ("NODE", lambda status: address_of(status.chief) if status.chief else NOTHING),
    ]


def _allocated(status: JobStatus) -> str:
    return (
        NOTHING
        if status.phase not in {Phase.PENDING, Phase.RUNNING}
        else str(status.allocated_gpus)
    )


def _wide(now: float) -> list[Column[JobStatus]]:
    return [
        (
            "RUNTIME",
            lambda status: NOTHING if (ran := run_time(status, now)) is None else duration(ran),
        ),
        ("WORKERS", _shape),
        ("NODES", _nodes),
        ("GB/s", _usable),
        ("REASON", lambda status: "" if why_not_running(status) is None else status.reason or ""),
    ]


def _usable(status: JobStatus) -> str:
    """The bandwidth of a job; where the kubelet picks the GPUs, the planned one, and the worst."""
    forecast = status.forecast
    if forecast is None or forecast.usable is None:
        return NOTHING
    usable = estimates.gbps_text(forecast.usable)
    if not forecast.at_worst:
        return usable
    planned = (
        "" if forecast.planned is None else f"{estimates.gbps_text(forecast.planned)} planned, "
    )
    return f"{planned}{usable} at worst"


_MOST_NODES = 3
"""Nodes of a job that a line names; the others are counted."""


def _nodes(status: JobStatus) -> str:
    placed = sorted(status.forecast.workers) if status.forecast is not None else ()
    names = [node for _index, node, _gpus in placed] or [
        worker.node for worker in _workers(status) if worker.node and not worker.pending
    ]
    return shortened_cell(list(dict.fromkeys(names)), _MOST_NODES) or NOTHING


def _workers(status: JobStatus) -> list[Instance]:
    return [instance for instance in in_order(status.instances) if instance.worker is not None]


def _shape(status: JobStatus) -> str:
    """The number of workers of a job and the GPUs of each: `4x2`."""
    forecast = status.forecast
    if forecast is not None and forecast.workers and status.request_gpus:
        return f"{len(forecast.workers)}x{slots_of(forecast, status)}"
    if workers := _workers(status):
        return f"{len(workers)}x{max(worker.gpus for worker in workers)}"
    replicas = status.replicas
    return f"{replicas}x{status.request_gpus // replicas}" if replicas else NOTHING


def run_time(status: JobStatus, now: float) -> float | None:
    """Seconds since the pods of a job's last start ran, to its end; None if none has run."""
    starts = [instance.started for instance in status.instances if instance.started is not None]
    if not starts:
        return None
    end = now if status.finished is None else status.finished
    return max(0.0, end - min(starts))


# ---------------------------------------------------------------- shared by the above


def in_order(instances: Iterable[Instance]) -> list[Instance]:
    """The pods by name, in natural order."""
    from arena_topo.topology import natural_key  # noqa: PLC0415 - only where there is much to sort

    return sorted(instances, key=lambda instance: natural_key(instance.name))


def job_duration(status: JobStatus, now: float) -> float:
    """Seconds from a job's creation to its end, or to now; 0 where a clock was set back."""
    return max(0.0, (now if status.finished is None else status.finished) - status.created)


def age_of(instance: Instance, now: float) -> float:
    """Seconds that a pod has run, or waited if it has not; 0 where a clock was set back."""
    if instance.pending or instance.started is None:
        return max(0.0, now - instance.created)
    return max(0.0, (now if instance.finished is None else instance.finished) - instance.started)


def place_of(instance: Instance, place: str | None) -> str:
    """The node or address of a pod; N/A for a pod without one."""
    return NOTHING if instance.pending or not place else place


_LOOPBACK = "127.0.0.1"


def address_of(instance: Instance) -> str:
    """The address of a pod's node, as arena shows; the node's name on the local engine.

    There every node has the address of this machine.
    """
    return place_of(instance, instance.node if instance.node_ip == _LOOPBACK else instance.node_ip)


def job_json(seen_job: SeenJob, *, now: float) -> dict[str, Any]:
    """A job for JSON, with its drift and its explanation where they are known.

    Ages are counted to `now`, in Unix seconds.
    """
    made = job_value(seen_job.status, now=now, samples=seen_job.samples)
    if not seen_job.drift and seen_job.explanation is None:
        return made
    from arena_topo.reasons import view  # noqa: PLC0415 - reads the solver

    if seen_job.drift:
        made["drift"] = [view.difference_value(difference) for difference in seen_job.drift]
    if seen_job.explanation is not None:
        made["explanation"] = view.explanation_json(seen_job.explanation)
    return made
