"""The text and JSON of `top node`: arena's tables and documents of nodes, GPUs and pods.

Layouts, texts and keys are arena's (pkg/topnode); the keys that its Python SDK reads have the names
that the SDK expects. Our own keys come last in each object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from arena_topo import layout
from arena_topo.engines.metrics import percent
from arena_topo.engines.occupancy import (
    SHARE_CORE,
    SHARE_MEMORY,
    GpuShare,
    Mode,
    NodePod,
    NodeStatus,
)
from arena_topo.escaping import one_line
from arena_topo.layout import Column
from arena_topo.topology import Knowledge, gpu_set
from arena_topo.words import counted

if TYPE_CHECKING:
    from arena_topo.engines.metrics import GpuSample
    from arena_topo.nodes.overview import Overview

Samples = Mapping[str, Mapping[int, "GpuSample"]]
"""Measurements, by node and by GPU."""

_GIB = float(1 << 30)
_RULE = "-" * 99
_NONE = "<none>"

_SELF = "N-A"
"""The diagonal of a matrix of links, as ACK writes it."""

_DIGITS = 4
"""Decimals of a bandwidth between two GPUs: arena stores it as a 32-bit float, and prints no
more."""

_KEYS = {
    Mode.EXCLUSIVE: "gpuExclusiveNodes",
    Mode.SHARE: "gpuShareNodes",
    Mode.TOPOLOGY: "gpuTopologyNodes",
    Mode.NORMAL: "normalNodes",
}
"""The key of each class of nodes in documents, in the order of Go's maps."""


def by_node(samples: Iterable[GpuSample]) -> dict[str, dict[int, GpuSample]]:
    """Samples by node and GPU; the first of a GPU that several pods share."""
    by_name: dict[str, dict[int, GpuSample]] = {}
    for sample in samples:
        by_name.setdefault(sample.node, {}).setdefault(sample.index, sample)
    return by_name


# ---------------------------------------------------------------- one line for each node


_NODE: tuple[Column[NodeStatus], ...] = (
    ("NAME", lambda node: node.name),
    ("IPADDRESS", lambda node: node.ip),
    ("ROLE", lambda node: node.role or _NONE),
    ("STATUS", lambda node: layout.state(node.status)),
)
_COUNTS: tuple[Column[NodeStatus], ...] = (
    ("GPU(Total)", lambda node: _go(node.total)),
    ("GPU(Allocated)", lambda node: _go(node.allocated)),
)
_MODE: Column[NodeStatus] = ("GPU(Mode)", lambda node: node.mode.alias)
_RESERVED: Column[NodeStatus] = ("RESERVED", lambda node: str(node.reserved))
_UNHEALTHY: Column[NodeStatus] = ("UNHEALTHY", lambda node: _go(node.unhealthy))


def nodes_table(
    statuses: Sequence[NodeStatus],
    *,
    named: bool = False,
    now: float | None = None,
    width: int | None = None,
) -> str:
    """The summary: a line for each node, class by class, and the number of allocated GPUs.

    `named` says that only some nodes were requested; then a mixed summary has no total. `now` (Unix
    seconds) is for what reservations cost. On a terminal of `width` columns the least important
    columns are left out if they do not fit.
    """
    modes = {node.mode for node in statuses}
    columns = [*_NODE, *_COUNTS]
    columns += [_MODE] if len(modes - {Mode.NORMAL}) > 1 else []
    columns += [_RESERVED] if any(node.reserved for node in statuses) else []
    columns += [_UNHEALTHY] if any(node.unhealthy for node in statuses) else []
    ordered = _ordered(statuses)
    columns = layout.fitting_columns(columns, ordered, width, ("ROLE", "IPADDRESS", "GPU(Mode)"))
    lines = layout.column_table(columns, ordered)
    resources = {name for status in statuses for name in _offers(status) or [status.node.resource]}
    of = f"GPUs of nodes which own resource {', '.join(sorted(resources))} In Cluster:"
    if len(modes) > 1:
        lines += [] if named else [_RULE, *_totals(statuses, "GPUs In Cluster:")]
    elif modes != {Mode.NORMAL}:
        lines += [_RULE, *_totals(statuses, of)]
    return layout.align(lines) + ("" if now is None else _idle_reserved(statuses, now))


def _idle_reserved(statuses: Iterable[NodeStatus], now: float) -> str:
    """The line about GPUs that are idle, and reserved for gangs; empty without any.

    A GPU may have become idle after it was reserved.
    """
    idle: dict[str, list[tuple[int, float | None]]] = {}
    for status in statuses:
        for reservation, gpus in status.node.reservations():
            if gpus:
                idle.setdefault(reservation.job, []).append((gpus, reservation.since))
    parts = []
    for job, entries in idle.items():
        hours = sum(gpus * max(0.0, now - (since or now)) / 3600 for gpus, since in entries)
        known = all(since is not None for _, since in entries)
        cost = f", at most {hours:.1f} GPU-hours so far" if known else ""
        parts.append(f"{counted(sum(gpus for gpus, _ in entries), 'GPU')} for {job}{cost}")
    return f"Reserved and idle: {'; '.join(parts)}\n" if parts else ""


def _ordered(statuses: Iterable[NodeStatus]) -> list[NodeStatus]:
    modes = list(Mode)
    return sorted(statuses, key=lambda node: modes.index(node.mode))


def _totals(statuses: Sequence[NodeStatus], of: str) -> Iterator[str]:
    """The number of allocated GPUs, and that of unhealthy ones if there are any."""
    total = sum(node.total for node in statuses)
    for title, gpus in (
        ("Allocated", sum(node.allocated for node in statuses)),
        ("Unhealthy", sum(node.unhealthy for node in statuses)),
    ):
        if gpus or title == "Allocated":
            share = 100 * gpus / total if total else 0.0
            yield f"{title}/Total {of}"
            yield f"{_go(round(gpus, 1))}/{_go(total)} ({share:.1f}%)"


def _offers(status: NodeStatus) -> dict[str, tuple[float, float]]:
    """The resources of parts of GPUs: the amount of each, and the allocated amount."""
    if status.mode is not Mode.SHARE:
        return {}
    parts = {SHARE_MEMORY: _memory(status), SHARE_CORE: _core(status)}
    shared = {name: (most, used) for name, (used, most) in parts.items() if most}
    return {**shared, **status.slices}


def _shares(status: NodeStatus) -> list[GpuShare]:
    return [pod.share for pod in status.pods or () if pod.share is not None]


def _memory(status: NodeStatus) -> tuple[float, float]:
    """GiB of GPU memory: allocated, and in total."""
    allocated = sum(sum(share.memory_of.values()) for share in _shares(status))
    return float(allocated), status.capacity.get(SHARE_MEMORY, 0.0)


def _core(status: NodeStatus) -> tuple[int, int]:
    """Hundredths of GPUs: allocated, and in total."""
    allocated = sum(sum(share.core_of.values()) for share in _shares(status))
    return allocated, int(status.capacity.get(SHARE_CORE, 0.0))


# ---------------------------------------------------------------- nodes in detail


def details(
    statuses: Iterable[NodeStatus], samples: Samples | None = None, *, brief: bool = False
) -> str:
    """All details of each node, class by class, with the measurements of its GPUs.

    `brief` leaves out what does not change: links, addresses and descriptions.
    """
    lines: list[str] = []
    for node in _ordered(statuses):
        measured = (samples or {}).get(node.name, {})
        status = layout.cell_text(layout.state(node.status))
        lines += ["", f"Name:    {one_line(node.name)}", f"Status:  {status}"]
        if not brief:
            lines += [
                f"Role:    {one_line(node.role or _NONE)}",
                f"Type:    {node.mode.label}",
                f"Address: {one_line(node.ip)}",
                "Description:",
                *(f"  {one_line(line)}" for line in _description(node)),
            ]
        if node.pods:
            columns = _pods(node, measured)
            lines += ["Instances:", *layout.column_table(columns, node.pods, indent="  ")]
        if node.mode is Mode.TOPOLOGY and not brief:
            lines += _matrices(node)
        if measured:
            lines += _measured(node, measured)
        elif node.mode is not Mode.NORMAL:
            lines += [*_gpus(node), *_summary(node)]
        lines += [] if brief else [""]
    return layout.align(lines)


def _description(status: NodeStatus) -> list[str]:
    node = status.node
    if status.mode is Mode.NORMAL:
        return ["This node has no GPUs."]
    if status.mode is Mode.SHARE:
        why = node.shared or "GPUs are shared"
        return [f"{why}: no gang gets a whole one.", f"Pods ask for {', '.join(_offers(status))}."]
    how = f"claims of {node.driver}" if node.driver else f"the resource {node.resource}"
    sentences = {
        Knowledge.MEASURED: "The links between its GPUs are known.",
        Knowledge.ASSUMED: f"The links between its GPUs are assumed from {node.machine.model}.",
        Knowledge.UNKNOWN: "The links between its GPUs are not known.",
    }
    return [sentences[node.machine.knowledge], f"Pods get them by {how}."]


def _pods(node: NodeStatus, samples: Mapping[int, GpuSample]) -> list[Column[NodePod]]:
    """The columns of the pods on a node, which differ by its class."""
    columns: list[Column[NodePod]] = [
        ("NAMESPACE", lambda pod: pod.namespace),
        ("NAME", lambda pod: pod.name),
    ]
    status: Column[NodePod] = ("STATUS", lambda pod: layout.state(pod.status))
    requested: Column[NodePod] = ("GPU(Requested)", lambda pod: str(pod.gpus))
    if node.mode is Mode.TOPOLOGY:
        return [*columns, requested, ("GPU(Allocated)", _devices)]
    if node.mode is Mode.EXCLUSIVE:
        measured: Column[NodePod] = ("GPU(Allocated)", lambda pod: _measured_on(pod, samples))
        return [*columns, status, requested, *([measured] if samples else [])]
    return [*columns, status, ("REQUESTED", _requests)]


def _requests(pod: NodePod) -> str:
    return ",".join(f"{name}={_go(amount)}" for name, amount in sorted(pod.asks.items()))


def _devices(pod: NodePod) -> str:
    if pod.devices is None:
        plan = ",".join(map(str, pod.planned))
        return f"{plan} (planned)" if plan else layout.NOTHING
    return ",".join(map(str, pod.devices))


def _measured_on(pod: NodePod, samples: Mapping[int, GpuSample]) -> str:
    """The GPUs on which a pod was measured."""
    where = (pod.namespace, pod.name)
    mine = [gpu for gpu, own in sorted(samples.items()) if (own.namespace, own.pod) == where]
    return ",".join(f"gpu{gpu}" for gpu in mine) or layout.NOTHING


def _matrices(status: NodeStatus) -> list[str]:
    names = [f"GPU{gpu.index}" for gpu in status.node.machine.gpus]
    lines = []
    rates = [[_go(rate) for rate in row] for row in _rates(status)]
    for title, matrix in (("LinkTypeMatrix:", _links(status)), ("BandwidthMatrix:", rates)):
        lines += [title, "\t".join(["  ", *names])]
        lines += ["\t".join([f"  {name}", *row]) for name, row in zip(names, matrix, strict=True)]
    if status.node.machine.bandwidth is None:
        lines.append("  Computed from the links, GB/s; not measured.")
    return lines


def _links(status: NodeStatus) -> list[list[str]]:
    return [[str(link or _SELF) for link in row] for row in status.node.machine.links]


def _rates(status: NodeStatus) -> list[list[float]]:
    """GB/s between any two GPUs: as published, else the solver's value of their link."""
    machine = status.node.machine
    if machine.bandwidth is not None:
        return [[round(rate, _DIGITS) for rate in row] for row in machine.bandwidth]
    from arena_topo.solver.door import sets_of  # noqa: PLC0415 - only for pairs

    worth = sets_of(machine).value
    gpus = range(len(machine.gpus))
    return [[0.0 if a == b else round(worth(gpu_set((a, b))), _DIGITS) for b in gpus] for a in gpus]


def _gpus(status: NodeStatus) -> list[str]:
    """The state of the GPUs of a node, or of the parts that it offers of them."""
    if status.mode is Mode.EXCLUSIVE:
        return []
    if status.mode is Mode.TOPOLOGY:
        lines = ["GPUs:", "  INDEX\tSTATUS\tHEALTHY", "  ----\t------\t-------"]
        for gpu in status.node.machine.gpus:
            state, healthy = status.state(gpu.index), status.healthy(gpu.index)
            shown = "unknown" if healthy is None else layout.go_bool(healthy)
            lines.append(f"  GPU{gpu.index}\t{state}\t{shown}")
        node, which = status.node, "it is not reported which."
        if hidden := node.unreserved.in_use_unknown:
            are = "is" if hidden == 1 else "are"
            lines.append(f"  {hidden} of the unknown GPUs {are} in use; {which}")
        if hidden := status.reserved_unknown:
            are = "is" if hidden == 1 else "are"
            lines.append(f"  {hidden} of the unknown GPUs {are} reserved; {which}")
        if node.broken:
            are = "is" if node.broken == 1 else "are"
            lines.append(f"  {counted(node.broken, 'GPU')} {are} unhealthy; {which}")
        return lines
    header = ("RESOURCE", "TOTAL", "ALLOCATED")
    rows = [(name, _go(most), _go(used)) for name, (most, used) in _offers(status).items()]
    return ["Slices:", *layout.table(header, rows, indent="  ")]


def _summary(status: NodeStatus, *more: tuple[str, str]) -> list[str]:
    """The last lines of a node; arena aligns them for exclusive nodes, and with measurements."""
    fields = [
        ("Total GPUs:", _go(status.total)),
        ("Allocated GPUs:", _go(status.allocated)),
        ("Unhealthy GPUs:", _go(status.unhealthy)),
        *more,
    ]
    aligned = more or status.mode is Mode.EXCLUSIVE
    gap = max(len(name) for name, _text in fields) if aligned else 0
    return ["GPU Summary:", *(f"  {name:<{gap}} {text}" for name, text in fields)]


def _measured(status: NodeStatus, samples: Mapping[int, GpuSample]) -> list[str]:
    """The GPUs with their memory, in GiB, and duty cycle; N/A without a measurement."""
    rows, totals = [], [0.0, 0.0, 0.0]
    for gpu in status.node.machine.gpus:
        sample = samples.get(gpu.index)
        total = None if sample is None else sample.memory_total
        in_use = status.using >> gpu.index & 1 or (sample is not None and bool(sample.pod))
        allocated = None if total is None else total if in_use else 0.0
        amounts = (total, allocated, None if sample is None else sample.memory_used)
        totals = [most + (amount or 0.0) for most, amount in zip(totals, amounts, strict=True)]
        cycle = percent(None if sample is None else sample.duty_cycle)
        rows.append((str(gpu.index), *map(_gib, amounts), cycle))
    header = ("INDEX", "MEMORY(Total)", "MEMORY(Allocated)", "MEMORY(Used)", "DUTY_CYCLE")
    names = ("Total GPU Memory:", "Allocated GPU Memory:", "Used GPU Memory:")
    summary = _summary(status, *zip(names, map(_gib, totals), strict=True))
    return ["GPUs:", *layout.table(header, rows, indent="  "), *summary]


def _gib(value: float | None) -> str:
    return layout.NOTHING if value is None else f"{value / _GIB:.1f} GiB"


# ---------------------------------------------------------------- documents


def nodes_json(overview: Overview) -> dict[str, Any]:
    """Nodes and their GPUs, in arena's classes."""
    emulated = overview.occupancy.cluster.emulated
    return nodes_value(overview.occupancy.nodes, by_node(overview.samples), emulated=emulated)


def nodes_value(
    statuses: Iterable[NodeStatus], samples: Samples | None = None, *, emulated: bool = False
) -> dict[str, list[dict[str, Any]]]:
    """All nodes as arena's object: a list for each class, including the keys of its Python SDK.

    Numbers of GPUs are whole but for shares, memory is in bytes, bandwidth in GB/s. Ours are the
    last keys of a node: `resource`, `knowledge` of its links (`measured`, `assumed`, `unknown`), of
    its pods `planned` (GPUs of the plan, if the actual ones are not known), `bandwidthSource`
    (`published`, or `computed` from the links), `hiddenGPUs` (in use, their indexes not known),
    `emulated` and `reservedGPUs` (free, but for the head of the queue or for the next start of a
    gang), beside `reservedSince` (Unix seconds; null if that is not known). `healthy`
    of a device is null if it may be one of the unhealthy ones, whose indexes are not known.
    """
    classes: dict[str, list[dict[str, Any]]] = {key: [] for key in _KEYS.values()}
    for status in statuses:
        value = _node_value(status, (samples or {}).get(status.name, {}))
        if status.mode is not Mode.NORMAL:
            node = status.node
            value["resource"] = node.resource
            value |= {"hiddenGPUs": node.unreserved.in_use_unknown, "emulated": emulated}
            value["reservedGPUs"] = status.reserved
            times = [entry.since for entry, idle in node.reservations() if idle]
            known = [since for since in times if since is not None]
            value["reservedSince"] = min(known) if known and None not in times else None
        classes[_KEYS[status.mode]].append(value)
    return classes


def _node_value(status: NodeStatus, samples: Mapping[int, GpuSample]) -> dict[str, Any]:
    common = {
        "name": status.name,
        "description": "\n".join(_description(status)),
        "ip": status.ip,
        "status": status.status,
        "role": status.role,
        "type": status.mode.label,
    }
    if status.mode is Mode.NORMAL:
        return common
    counts = {
        "totalGPUs": _plain(status.total),
        "allocatedGPUs": _plain(status.allocated),
        "unhealthyGPUs": _plain(status.unhealthy),
        "gpuMetrics": [_metric(status, gpu, sample) for gpu, sample in sorted(samples.items())],
    }
    instances = {"instances": [_pod_value(status, pod) for pod in status.pods or ()]}
    if status.mode is Mode.EXCLUSIVE:
        return {**instances, **common, **counts}
    if status.mode is Mode.TOPOLOGY:
        machine = status.node.machine
        return {
            **instances,
            "gpuTopology": {
                "linkMatrix": _links(status),
                "bandwidthMatrix": [[_plain(rate) for rate in row] for row in _rates(status)],
            },
            **counts,
            **common,
            "devices": [
                {
                    "id": str(gpu.index),
                    "healthy": status.healthy(gpu.index),
                    "status": status.state(gpu.index),
                    # What arena's Python SDK reads.
                    "gpuIndex": str(gpu.index),
                    "uuid": gpu.uuid or "",
                }
                for gpu in machine.gpus
            ],
            "knowledge": machine.knowledge.value,
            "bandwidthSource": "computed" if machine.bandwidth is None else "published",
        }
    (used_memory, memory), (used_core, core) = _memory(status), _core(status)
    return {
        **instances,
        "totalGPUMemory": _plain(memory * _GIB),
        "allocatedGPUMemory": _plain(used_memory * _GIB),
        "totalGPUCore": core,
        "allocatedGPUCore": used_core,
        "devices": _share_devices(status),
        **counts,
        **common,
        "slices": {
            name: {"total": _plain(most), "allocated": _plain(used)}
            for name, (most, used) in status.slices.items()
        },
    }


def _metric(status: NodeStatus, gpu: int, sample: GpuSample) -> dict[str, Any]:
    return {
        "id": str(gpu),
        "uuid": sample.uuid,
        # The SDK reads this key, although arena never writes it.
        "status": status.state(gpu) if gpu < len(status.node.machine.gpus) else "idle",
        "gpuDutyCycle": sample.duty_cycle or 0,
        "usedGPUMemory": _plain(sample.memory_used or 0),
        "totalGPUMemory": _plain(sample.memory_total or 0),
        "podNames": [f"{sample.namespace}/{sample.pod}"] if sample.pod else [],
    }


def _pod_value(status: NodeStatus, pod: NodePod) -> dict[str, Any]:
    named = {"name": pod.name, "namespace": pod.namespace, "status": pod.status}
    if status.mode is Mode.SHARE:
        share = pod.share or GpuShare()
        return {
            **named,
            "requestGPUMemory": share.memory,
            "requestGPUCore": share.core,
            "gpuMemoryAllocation": dict(share.memory_of),
            "gpuCoreAllocation": dict(share.core_of),
            # What arena's Python SDK reads.
            "allocation": dict(share.memory_of),
            "asks": {name: _plain(amount) for name, amount in sorted(pod.asks.items())},
        }
    instance = {**named, "requestGPUs": pod.gpus, "allocation": _ids(pod.devices)}
    if status.mode is Mode.EXCLUSIVE:
        return instance
    return {**instance, "visibleGPUs": _ids(pod.visible), "planned": _ids(pod.planned)}


def _ids(devices: Iterable[int] | None) -> list[str]:
    return [str(device) for device in devices or ()]


def _share_devices(status: NodeStatus) -> list[dict[str, Any]]:
    """The shared GPUs, with the allocated bytes and hundredths of each."""
    shares = _shares(status)
    total, (_, core) = int(status.total), _core(status)
    return [
        {
            "id": gpu,
            "totalGPUMemory": _plain(status.memory_of() * _GIB),
            "allocatedGPUMemory": _plain(sum(own.memory_of.get(gpu, 0) for own in shares) * _GIB),
            "totalGPUCore": core // total,
            "allocatedGPUCore": sum(share.core_of.get(gpu, 0) for share in shares),
        }
        for gpu in map(str, range(total))
    ]


def _plain(value: float) -> float:
    """A number as Go's JSON has it: whole ones without a point."""
    return int(value) if value == int(value) else value


def _go(value: float) -> str:
    """A number as Go prints it: the fewest digits, whole ones without a point."""
    return str(_plain(value))
