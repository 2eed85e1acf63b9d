"""One job and lists of jobs, as text and as values for JSON and YAML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from arena_topo.drawing.tables import emulated
from arena_topo.engines import Event, Instance, JobStatus, Phase, slots_of
from arena_topo.escaping import one_line
from arena_topo.layout import (
    NOTHING,
    Cell,
    Column,
    align,
    clock,
    drawn,
    duration,
    number,
    state,
    table,
    tabulated,
    truth,
)
from arena_topo.manifests import Binding, Forecast, Guarantee, enforced_by, estimates

if TYPE_CHECKING:
    from arena_topo.engines.metrics import GpuSample
    from arena_topo.reasons.view import SeenJob


TRAINER = "mpijob"
RESOURCE = "mpijob.kubeflow.org"

HOLDS: Mapping[str, str] = {
    Guarantee.GPUS: "each worker gets these GPUs",
    Guarantee.NODE: "each worker gets its node; which GPUs there, the kubelet decides",
    Guarantee.ADVISORY: "nothing enforces this plan",
}
"""What each guarantee means for the workers."""

UNCONFIRMED = {
    "admission": "whether a policy places workers could not be tried",
    "claims": "whether workers get the claims that are meant for them could not be tried",
    "gates": "whether workers may be patched could not be asked",
}
"""The doubt about each binding whose mechanism could not be tested on the cluster."""


# ---------------------------------------------------------------- one job


def job(
    status: JobStatus,
    *,
    now: float,
    gpus: bool = False,
    samples: Sequence[GpuSample] = (),
    events: Sequence[Event] | None = None,
) -> str:
    """One job in arena's wide layout, with its placement after its instances.

    With `gpus` also the load of its GPUs, from `samples`.
    """
    blocks = [head(status, now), _instances(status, now)]
    if status.forecast is not None and status.forecast.workers:
        slots = slots_of(status.forecast, status)
        blocks.append(placement(status.forecast, status.name, slots=slots))
    elif status.forecast is not None:
        blocks.append(_unplaced(status.forecast, status.reason))
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


def head(status: JobStatus, now: float) -> str:
    """The first lines about a job: its name, its status, its times."""
    fields: list[tuple[str, Cell]] = [
        ("Name", status.name),
        ("Status", state(status.phase.value)),
        ("Namespace", status.namespace),
        ("Priority", status.priority),
        ("Trainer", TRAINER.upper()),
        ("Duration", duration(lasted(status, now))),
        ("CreateTime", clock(status.created)),
        ("EndTime", clock(status.finished) if status.finished and status.phase.over else ""),
    ]
    fields += [
        (label, value)
        for label, value in (
            ("ModelName", status.model_name),
            ("ModelVersion", status.model_version),
            ("ModelSource", status.model_source),
        )
        if value
    ]
    return align(f"{label}:\t{drawn(value)}" for label, value in fields)


def _instances(status: JobStatus, now: float) -> str:
    columns: list[Column[Instance]] = [
        ("NAME", lambda one: one.name),
        ("STATUS", lambda one: state(one.status)),
        ("AGE", lambda one: duration(age_of(one, now))),
        ("IS_CHIEF", lambda one: truth(one.chief)),
        ("GPU(Requested)", lambda one: str(one.gpus)),
        ("NODE", lambda one: place_of(one, one.node)),
    ]
    return align(["Instances:", *tabulated(columns, in_order(status.instances), indent="  ")])


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
    for one in in_order(status.instances):
        pod = (one.name, place_of(one, one.node_ip), str(one.gpus))
        for cells in metrics.cells(status, one, samples):
            rows.append((*pod, *cells))
            pod = ("", "", "")
    total = f"  Allocated/Requested GPUs of Job: {status.allocated_gpus}/{status.request_gpus}"
    return align(["GPUs:", *table(header, rows, indent="  "), "", total])


def _events(events: Sequence[Event], now: float) -> str:
    if not events:
        return "Events:\n  No events for resources\n"
    lines = ["Events:", *table(("SOURCE", "TYPE", "AGE", "MESSAGE"), (), indent="  ")]
    from arena_topo.topology import natural  # noqa: PLC0415 - only where there is much to sort

    by_source = sorted(events, key=lambda event: natural(event.source))
    for source, group in groupby(by_source, key=lambda event: event.source):
        lines += [
            f"  {one_line(source)}\t{one_line(one.kind)}\t{duration(now - one.when)}"
            f"\t[{one_line(one.reason)}] {one_line(one.message)}"
            for one in group
        ]
        lines.append("")
    return align(lines)


MOST_ROWS = 16
"""Workers up to which each has its own row."""


def workers(forecast: Forecast, name: str, *, slots: int) -> list[str]:
    """A row for each worker, as lines for `align`; for many workers a row for each node.

    `slots` is the number of ranks of each worker; unknown GPUs are `N/A`.
    """
    own = [[one] for one in sorted(forecast.workers)]
    if len(own) > MOST_ROWS:
        runs = groupby(sorted(forecast.workers), key=lambda one: one[1])
        own = [list(group) for _node, group in runs]
    # Workers with one GPU each form one ring; others have a ring each.
    between = "," if slots == 1 else " "
    rows = [
        (
            ranks(run[0][0], slots, last=run[-1][0]),
            run[0][1],
            between.join(",".join(map(str, gpus)) for _index, _node, gpus in run if gpus)
            or NOTHING,
            f"{name}-worker-{run[0][0]}{f'..{run[-1][0]}' if len(run) > 1 else ''}",
        )
        for run in own
    ]
    return table(("RANKS", "NODE", "GPUS", "WORKER"), rows, indent="  ")


def placement(forecast: Forecast, name: str, *, slots: int, binding: Binding | None = None) -> str:
    """The node and GPUs of each rank, the bandwidth, and the guarantee of the placement.

    `slots` is the number of ranks of each worker.
    """
    lines: list[str] = []
    if forecast.usable is not None:
        lines.append(f"  Bus bandwidth: {_bandwidth(forecast)}")
    if forecast.guarantee is not None:
        lines.append(f"  {guarantee(forecast)}")
    if binding is not None and binding.why:
        lines.append(f"  Why not a stronger guarantee: {one_line(binding.why)}")
    if forecast.emulated:
        lines.append(f"  {emulated()}")
    return align(["Placement:", *workers(forecast, name, slots=slots), *lines])


def guarantee(forecast: Forecast) -> str:
    """The guarantee of a placement, its mechanism, and whether that is confirmed."""
    binding = str(forecast.binding)
    by = one_line(enforced_by(binding))
    if not forecast.confirmed:
        doubt = UNCONFIRMED.get(binding)
        by += f", unconfirmed: {doubt}" if doubt else ", unconfirmed"
    named = one_line(str(forecast.guarantee))
    # A newer version may have recorded a guarantee of its own.
    meaning = HOLDS.get(named, "this version of arena-topo does not know what that means")
    return f"Guarantee: {named}, by {by} ({meaning})"


def confirmed(forecast: Forecast | None) -> bool | None:
    """Whether the mechanism of a guarantee was tested; None without a guarantee."""
    return None if forecast is None or forecast.guarantee is None else forecast.confirmed


def _unplaced(forecast: Forecast, reason: str | None) -> str:
    """The block of a job without a placement."""
    why = forecast.reason or reason
    lines = ["Placement:", f"  none yet: {one_line(why)}" if why else "  none"]
    if forecast.emulated:
        lines.append(f"  {emulated()}")
    return align(lines)


def explained(status: JobStatus) -> bool:
    """Whether the screen of `job` already says why the job does not run."""
    forecast = status.forecast
    return (
        forecast is not None
        and not forecast.workers
        and (forecast.reason or status.reason) == status.reason
    )


def trouble(status: JobStatus) -> str | None:
    """Why a job does not run, in a line; None for a job that runs or has succeeded."""
    if status.reason is None or status.phase in {Phase.RUNNING, Phase.SUCCEEDED}:
        return None
    return f"The Job {status.name} is {status.phase}: {one_line(status.reason)}"


def _bandwidth(forecast: Forecast) -> str:
    text = estimates.recorded(forecast)
    if forecast.assumed:
        text += " assumed"
    where = estimates.recorded_limit(forecast)
    if where:
        text += f", {where}"
    if forecast.optimal:
        text += " (proven best)"
    elif forecast.optimal is not None and _more_is_possible(forecast):
        text += f" (at most {estimates.amount(forecast.bound or 0.0)} GB/s is possible)"
    if forecast.falls_short:
        inside = estimates.amount(forecast.bus_bandwidth or 0.0)
        text += f"; {inside} GB/s if the workers of a node shared one pod"
    return text


def _more_is_possible(forecast: Forecast) -> bool:
    bound, usable = forecast.bound, forecast.usable
    return bound is not None and usable is not None and bound > usable


def ranks(index: int, slots: int, *, last: int | None = None) -> str:
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
        "duration": f"{int(lasted(status, now))}s",
        "status": status.phase.value,
        "trainer": TRAINER,
        "tensorboard": status.tensorboard,
        "chiefName": status.chief.name if status.chief else "",
        "instances": [_instance_value(one, now, samples) for one in in_order(status.instances)],
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
        "reason": status.reason,
        "exitCode": status.exit_code,
    }


def _instance_value(one: Instance, now: float, samples: Sequence[GpuSample]) -> dict[str, Any]:
    measures: dict[str, Any] = {}
    if samples:
        from arena_topo.engines import metrics  # noqa: PLC0415 - only where there are some

        measures = metrics.value(samples, one.name)
    return {
        "ip": one.ip,
        "status": one.status,
        "name": one.name,
        "age": f"{int(age_of(one, now))}s",
        "node": place_of(one, one.node),
        "nodeIP": place_of(one, one.node_ip),
        "chief": one.chief,
        "requestGPUs": one.gpus,
        "gpuMetrics": measures,
        "creationTimestamp": int(one.created),
    }


def placement_value(forecast: Forecast | None, *, slots: int) -> dict[str, Any] | None:
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
        "bandwidth": estimates.recorded_value(forecast),
        "guarantee": forecast.guarantee,
        "confirmed": confirmed(forecast),
        "binding": forecast.binding,
        "tier": forecast.tier,
        "assumed": forecast.assumed,
        "nodes": list(dict.fromkeys(node for _index, node, _gpus in rows)),
        "workers": [worker_value(*row, slots=slots) for row in rows],
        "proof": {"optimal": forecast.optimal, "bound": number(forecast.bound)},
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


def jobs(
    statuses: Iterable[JobStatus],
    *,
    now: float,
    namespaces: bool = False,
    headers: bool = True,
    wide: bool = False,
) -> str:
    """Arena's list of jobs, in the order given; with `namespaces` a first column names them.

    Without `headers` the first line is a job; `wide` adds run time, `WORKERSxGPUS`, nodes, GB/s
    and the reason why a job does not run.
    """
    lines = job_lines(statuses, now=now, namespaces=namespaces, wide=wide)
    aligned = align(lines if headers else lines[1:])
    # As in arena nothing is padded at the end of a line; most jobs have no reason there.
    return "".join(f"{line.rstrip()}\n" for line in aligned.splitlines()) if wide else aligned


def job_lines(
    statuses: Iterable[JobStatus], *, now: float, namespaces: bool = False, wide: bool = False
) -> Sequence[str]:
    """The header of that list and a line for each job, to be aligned."""
    columns = [*job_columns("DURATION", now, namespaces=namespaces), *(_wide(now) if wide else [])]
    return tabulated(columns, statuses)


def job_columns(age: str, now: float, *, namespaces: bool) -> list[Column[JobStatus]]:
    """Arena's columns of a list of jobs; `age` is the header of the job's duration."""
    space: list[Column[JobStatus]] = [("NAMESPACE", lambda one: one.namespace)]
    return [
        *(space if namespaces else []),
        ("NAME", lambda one: one.name),
        ("STATUS", lambda one: state(one.phase.value)),
        ("TRAINER", lambda _one: TRAINER.upper()),
        (age, lambda one: duration(lasted(one, now))),
        ("GPU(Requested)", lambda one: str(one.request_gpus)),
        ("GPU(Allocated)", _allocated),
        ("NODE", lambda one: place_of(one.chief, one.chief.node_ip) if one.chief else NOTHING),
    ]


def _allocated(one: JobStatus) -> str:
    return NOTHING if one.phase not in {Phase.PENDING, Phase.RUNNING} else str(one.allocated_gpus)


def _wide(now: float) -> list[Column[JobStatus]]:
    return [
        ("RUNTIME", lambda one: NOTHING if (ran := run_time(one, now)) is None else duration(ran)),
        ("WORKERS", _shape),
        ("NODES", _nodes),
        ("GB/s", _usable),
        ("REASON", lambda one: "" if trouble(one) is None else one.reason or ""),
    ]


def _usable(status: JobStatus) -> str:
    usable = status.forecast.usable if status.forecast is not None else None
    return NOTHING if usable is None else estimates.amount(usable)


_MOST_NODES = 3
"""Nodes of a job that a line names; the others are counted."""


def _nodes(status: JobStatus) -> str:
    placed = sorted(status.forecast.workers) if status.forecast is not None else ()
    names = [node for _index, node, _gpus in placed] or [
        one.node for one in _workers(status) if one.node and not one.pending
    ]
    several = list(dict.fromkeys(names))
    more = len(several) - _MOST_NODES
    return ",".join(several[:_MOST_NODES]) + (f",+{more}" if more > 0 else "") or NOTHING


def _workers(status: JobStatus) -> list[Instance]:
    return [one for one in in_order(status.instances) if one.worker is not None]


def _shape(status: JobStatus) -> str:
    """The number of workers of a job and the GPUs of each: `4x2`."""
    forecast = status.forecast
    if forecast is not None and forecast.workers and status.request_gpus:
        return f"{len(forecast.workers)}x{slots_of(forecast, status)}"
    workers = _workers(status)
    return f"{len(workers)}x{max(one.gpus for one in workers)}" if workers else NOTHING


def run_time(status: JobStatus, now: float) -> float | None:
    """Seconds since the pods of a job's last start ran, to its end; None if none has run."""
    starts = [one.started for one in status.instances if one.started is not None]
    if not starts:
        return None
    end = now if status.finished is None else status.finished
    return max(0.0, end - min(starts))


# ---------------------------------------------------------------- shared by the above


def in_order(instances: Iterable[Instance]) -> list[Instance]:
    """The pods by name, in natural order."""
    from arena_topo.topology import natural  # noqa: PLC0415 - only where there is much to sort

    return sorted(instances, key=lambda one: natural(one.name))


def lasted(status: JobStatus, now: float) -> float:
    """Seconds from a job's creation to its end, or to now; 0 where a clock was set back."""
    return max(0.0, (now if status.finished is None else status.finished) - status.created)


def age_of(one: Instance, now: float) -> float:
    """Seconds that a pod has run, or waited if it has not; 0 where a clock was set back."""
    if one.pending or one.started is None:
        return max(0.0, now - one.created)
    return max(0.0, (now if one.finished is None else one.finished) - one.started)


def place_of(one: Instance, place: str | None) -> str:
    """The node or address of a pod; N/A for a pod without one."""
    return NOTHING if one.pending or not place else place


def seen(found: SeenJob, *, now: float) -> dict[str, Any]:
    """A job for JSON, with its drift and its explanation where they are known.

    Ages are counted to `now`, in Unix seconds.
    """
    made = job_value(found.status, now=now, samples=found.samples)
    if not found.drift and found.explanation is None:
        return made
    from arena_topo.reasons import view  # noqa: PLC0415 - reads the solver

    if found.drift:
        made["drift"] = [view.difference_value(one) for one in found.drift]
    if found.explanation is not None:
        made["explanation"] = view.value(found.explanation)
    return made
