"""The text and JSON of `top node`: arena's tables and documents of nodes, GPUs and pods.

Layouts, texts and keys are arena's (pkg/topnode); the keys that its Python SDK reads have the names
that the SDK expects. Our own keys come last in each object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from arena_topo import layout
from arena_topo.engines.metrics import percent
from arena_topo.engines.occupancy import SHARE_CORE, SHARE_MEMORY, Mode, NodePod, NodeStatus, Share
from arena_topo.escaping import one_line
from arena_topo.layout import Column
from arena_topo.topology import Knowledge, count, gpu_set

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
    found: dict[str, dict[int, GpuSample]] = {}
    for one in samples:
        found.setdefault(one.node, {}).setdefault(one.index, one)
    return found


# ---------------------------------------------------------------- one line for each node


_NODE: tuple[Column[NodeStatus], ...] = (
    ("NAME", lambda one: one.name),
    ("IPADDRESS", lambda one: one.ip),
    ("ROLE", lambda one: one.role or _NONE),
    ("STATUS", lambda one: layout.state(one.status)),
)
_COUNTS: tuple[Column[NodeStatus], ...] = (
    ("GPU(Total)", lambda one: _go(one.total)),
    ("GPU(Allocated)", lambda one: _go(one.allocated)),
)
_MODE: Column[NodeStatus] = ("GPU(Mode)", lambda one: one.mode.alias)
_ILL: Column[NodeStatus] = ("UNHEALTHY", lambda one: _go(one.unhealthy))


def nodes(statuses: Sequence[NodeStatus], *, named: bool = False) -> str:
    """The summary: a line for each node, class by class, and the number of allocated GPUs.

    `named` says that only some nodes were requested; then a mixed summary has no total.
    """
    modes = {one.mode for one in statuses}
    columns = [*_NODE, *_COUNTS]
    columns += [_MODE] if len(modes - {Mode.NORMAL}) > 1 else []
    columns += [_ILL] if any(one.unhealthy for one in statuses) else []
    lines = layout.tabulated(columns, _ordered(statuses))
    resources = {name for one in statuses for name in _offers(one) or [one.node.resource]}
    of = f"GPUs of nodes which own resource {', '.join(sorted(resources))} In Cluster:"
    if len(modes) > 1:
        lines += [] if named else [_RULE, *_totals(statuses, "GPUs In Cluster:")]
    elif modes != {Mode.NORMAL}:
        lines += [_RULE, *_totals(statuses, of)]
    return layout.align(lines)


def _ordered(statuses: Iterable[NodeStatus]) -> list[NodeStatus]:
    modes = list(Mode)
    return sorted(statuses, key=lambda one: modes.index(one.mode))


def _totals(statuses: Sequence[NodeStatus], of: str) -> Iterator[str]:
    """The number of allocated GPUs, and that of unhealthy ones if there are any."""
    total = sum(one.total for one in statuses)
    for word, some in (
        ("Allocated", sum(one.allocated for one in statuses)),
        ("Unhealthy", sum(one.unhealthy for one in statuses)),
    ):
        if some or word == "Allocated":
            share = 100 * some / total if total else 0.0
            yield f"{word}/Total {of}"
            yield f"{_go(round(some, 1))}/{_go(total)} ({share:.1f}%)"


def _offers(one: NodeStatus) -> dict[str, tuple[float, float]]:
    """The resources of parts of GPUs: the amount of each, and the allocated amount."""
    if one.mode is not Mode.SHARE:
        return {}
    parts = {SHARE_MEMORY: _memory(one), SHARE_CORE: _core(one)}
    shared = {name: (most, taken) for name, (taken, most) in parts.items() if most}
    return {**shared, **one.slices}


def _shares(one: NodeStatus) -> list[Share]:
    return [pod.share for pod in one.pods or () if pod.share is not None]


def _memory(one: NodeStatus) -> tuple[float, float]:
    """GiB of GPU memory: allocated, and in total."""
    allocated = sum(sum(share.memory_of.values()) for share in _shares(one))
    return float(allocated), one.capacity.get(SHARE_MEMORY, 0.0)


def _core(one: NodeStatus) -> tuple[int, int]:
    """Hundredths of GPUs: allocated, and in total."""
    allocated = sum(sum(share.core_of.values()) for share in _shares(one))
    return allocated, int(one.capacity.get(SHARE_CORE, 0.0))


# ---------------------------------------------------------------- nodes in detail


def details(
    statuses: Iterable[NodeStatus], samples: Samples | None = None, *, brief: bool = False
) -> str:
    """All details of each node, class by class, with the measurements of its GPUs.

    `brief` leaves out what does not change: links, addresses and descriptions.
    """
    lines: list[str] = []
    for one in _ordered(statuses):
        measured = (samples or {}).get(one.name, {})
        status = layout.drawn(layout.state(one.status))
        lines += ["", f"Name:    {one_line(one.name)}", f"Status:  {status}"]
        if not brief:
            lines += [
                f"Role:    {one_line(one.role or _NONE)}",
                f"Type:    {one.mode.label}",
                f"Address: {one_line(one.ip)}",
                "Description:",
                *(f"  {one_line(line)}" for line in _description(one)),
            ]
        if one.pods:
            lines += ["Instances:", *layout.tabulated(_pods(one, measured), one.pods, indent="  ")]
        if one.mode is Mode.TOPOLOGY and not brief:
            lines += _matrices(one)
        if measured:
            lines += _measured(one, measured)
        elif one.mode is not Mode.NORMAL:
            lines += [*_gpus(one), *_summary(one)]
        lines += [] if brief else [""]
    return layout.align(lines)


def _description(one: NodeStatus) -> list[str]:
    node = one.node
    if one.mode is Mode.NORMAL:
        return ["This node has no GPUs."]
    if one.mode is Mode.SHARE:
        why = node.shared or "GPUs are shared"
        return [f"{why}: no gang gets a whole one.", f"Pods ask for {', '.join(_offers(one))}."]
    how = f"claims of {node.driver}" if node.driver else f"the resource {node.resource}"
    told = {
        Knowledge.MEASURED: "The links between its GPUs are known.",
        Knowledge.ASSUMED: f"The links between its GPUs are assumed from {node.machine.model}.",
        Knowledge.UNKNOWN: "The links between its GPUs are not known.",
    }
    return [told[node.machine.knowledge], f"Pods get them by {how}."]


def _pods(one: NodeStatus, samples: Mapping[int, GpuSample]) -> list[Column[NodePod]]:
    """The columns of the pods on a node, which differ by its class."""
    columns: list[Column[NodePod]] = [
        ("NAMESPACE", lambda pod: pod.namespace),
        ("NAME", lambda pod: pod.name),
    ]
    status: Column[NodePod] = ("STATUS", lambda pod: layout.state(pod.status))
    requested: Column[NodePod] = ("GPU(Requested)", lambda pod: str(pod.gpus))
    if one.mode is Mode.TOPOLOGY:
        return [*columns, requested, ("GPU(Allocated)", _devices)]
    if one.mode is Mode.EXCLUSIVE:
        seen: Column[NodePod] = ("GPU(Allocated)", lambda pod: _seen_on(pod, samples))
        return [*columns, status, requested, *([seen] if samples else [])]
    return [*columns, status, ("REQUESTED", _asks)]


def _asks(pod: NodePod) -> str:
    return ",".join(f"{name}={_go(many)}" for name, many in sorted(pod.asks.items()))


def _devices(pod: NodePod) -> str:
    if pod.devices is None:
        plan = ",".join(map(str, pod.planned))
        return f"{plan} (planned)" if plan else layout.NOTHING
    return ",".join(map(str, pod.devices))


def _seen_on(pod: NodePod, samples: Mapping[int, GpuSample]) -> str:
    """The GPUs on which a pod was measured."""
    where = (pod.namespace, pod.name)
    mine = [gpu for gpu, one in sorted(samples.items()) if (one.namespace, one.pod) == where]
    return ",".join(f"gpu{gpu}" for gpu in mine) or layout.NOTHING


def _matrices(one: NodeStatus) -> list[str]:
    names = [f"GPU{gpu.index}" for gpu in one.node.machine.gpus]
    lines = []
    rates = [[_go(rate) for rate in row] for row in _rates(one)]
    for title, matrix in (("LinkTypeMatrix:", _links(one)), ("BandwidthMatrix:", rates)):
        lines += [title, "\t".join(["  ", *names])]
        lines += ["\t".join([f"  {name}", *row]) for name, row in zip(names, matrix, strict=True)]
    if one.node.machine.bandwidth is None:
        lines.append("  Computed from the links, GB/s; not measured.")
    return lines


def _links(one: NodeStatus) -> list[list[str]]:
    return [[str(link or _SELF) for link in row] for row in one.node.machine.links]


def _rates(one: NodeStatus) -> list[list[float]]:
    """GB/s between any two GPUs: as published, else the solver's value of their link."""
    machine = one.node.machine
    if machine.bandwidth is not None:
        return [[round(rate, _DIGITS) for rate in row] for row in machine.bandwidth]
    from arena_topo.solver import sets_of  # noqa: PLC0415 - only for pairs

    worth = sets_of(machine).value
    every = range(len(machine.gpus))
    return [
        [0.0 if a == b else round(worth(gpu_set((a, b))), _DIGITS) for b in every] for a in every
    ]


def _gpus(one: NodeStatus) -> list[str]:
    """The state of the GPUs of a node, or of the parts that it offers of them."""
    if one.mode is Mode.EXCLUSIVE:
        return []
    if one.mode is Mode.TOPOLOGY:
        lines = ["GPUs:", "  INDEX\tSTATUS\tHEALTHY", "  ----\t------\t-------"]
        for gpu in one.node.machine.gpus:
            healthy = layout.truth(one.healthy(gpu.index))
            lines.append(f"  GPU{gpu.index}\t{one.state(gpu.index)}\t{healthy}")
        if one.node.unattributed:
            doubt = "of the unknown GPUs are in use; it is not reported which."
            lines.append(f"  {one.node.unattributed} {doubt}")
        return lines
    header = ("RESOURCE", "TOTAL", "ALLOCATED")
    rows = [(name, _go(most), _go(some)) for name, (most, some) in _offers(one).items()]
    return ["Slices:", *layout.table(header, rows, indent="  ")]


def _summary(one: NodeStatus, *more: tuple[str, str]) -> list[str]:
    """The last lines of a node; arena aligns them for exclusive nodes, and with measurements."""
    fields = [
        ("Total GPUs:", _go(one.total)),
        ("Allocated GPUs:", _go(one.allocated)),
        ("Unhealthy GPUs:", _go(one.unhealthy)),
        *more,
    ]
    aligned = more or one.mode is Mode.EXCLUSIVE
    gap = max(len(name) for name, _text in fields) if aligned else 0
    return ["GPU Summary:", *(f"  {name:<{gap}} {text}" for name, text in fields)]


def _measured(one: NodeStatus, samples: Mapping[int, GpuSample]) -> list[str]:
    """The GPUs with their memory, in GiB, and duty cycle; N/A without a measurement."""
    rows, totals = [], [0.0, 0.0, 0.0]
    for gpu in one.node.machine.gpus:
        sample = samples.get(gpu.index)
        total = None if sample is None else sample.memory_total
        taken = one.using >> gpu.index & 1 or (sample is not None and bool(sample.pod))
        allocated = None if total is None else total if taken else 0.0
        amounts = (total, allocated, None if sample is None else sample.memory_used)
        totals = [most + (some or 0.0) for most, some in zip(totals, amounts, strict=True)]
        cycle = percent(None if sample is None else sample.duty_cycle)
        rows.append((str(gpu.index), *map(_gib, amounts), cycle))
    header = ("INDEX", "MEMORY(Total)", "MEMORY(Allocated)", "MEMORY(Used)", "DUTY_CYCLE")
    names = ("Total GPU Memory:", "Allocated GPU Memory:", "Used GPU Memory:")
    summary = _summary(one, *zip(names, map(_gib, totals), strict=True))
    return ["GPUs:", *layout.table(header, rows, indent="  "), *summary]


def _gib(value: float | None) -> str:
    return layout.NOTHING if value is None else f"{value / _GIB:.1f} GiB"


# ---------------------------------------------------------------- documents


def value(found: Overview) -> dict[str, Any]:
    """Nodes and their GPUs, in arena's classes."""
    emulated = found.found.cluster.emulated
    return nodes_value(found.found.nodes, by_node(found.samples), emulated=emulated)


def nodes_value(
    statuses: Iterable[NodeStatus], samples: Samples | None = None, *, emulated: bool = False
) -> dict[str, list[dict[str, Any]]]:
    """All nodes as arena's object: a list for each class, including the keys of its Python SDK.

    Numbers of GPUs are whole but for shares, memory is in bytes, bandwidth in GB/s. Ours are the
    last keys of a node: `resource`, `knowledge` of its links (`measured`, `assumed`, `unknown`), of
    its pods `planned` (GPUs of the plan, if the actual ones are not known), `bandwidthSource`
    (`published`, or `computed` from the links), `hiddenGPUs` (in use, their indexes not known) and
    `emulated`.
    """
    found: dict[str, list[dict[str, Any]]] = {key: [] for key in _KEYS.values()}
    for one in statuses:
        value = _node_value(one, (samples or {}).get(one.name, {}))
        if one.mode is not Mode.NORMAL:
            hidden = min(one.node.unattributed, count(one.node.free))
            value |= {"resource": one.node.resource, "hiddenGPUs": hidden, "emulated": emulated}
        found[_KEYS[one.mode]].append(value)
    return found


def _node_value(one: NodeStatus, samples: Mapping[int, GpuSample]) -> dict[str, Any]:
    common = {
        "name": one.name,
        "description": "\n".join(_description(one)),
        "ip": one.ip,
        "status": one.status,
        "role": one.role,
        "type": one.mode.label,
    }
    if one.mode is Mode.NORMAL:
        return common
    counts = {
        "totalGPUs": _plain(one.total),
        "allocatedGPUs": _plain(one.allocated),
        "unhealthyGPUs": _plain(one.unhealthy),
        "gpuMetrics": [_metric(one, gpu, sample) for gpu, sample in sorted(samples.items())],
    }
    instances = {"instances": [_pod_value(one, pod) for pod in one.pods or ()]}
    if one.mode is Mode.EXCLUSIVE:
        return {**instances, **common, **counts}
    if one.mode is Mode.TOPOLOGY:
        machine = one.node.machine
        return {
            **instances,
            "gpuTopology": {
                "linkMatrix": _links(one),
                "bandwidthMatrix": [[_plain(rate) for rate in row] for row in _rates(one)],
            },
            **counts,
            **common,
            "devices": [
                {
                    "id": str(gpu.index),
                    "healthy": one.healthy(gpu.index),
                    "status": one.state(gpu.index),
                    # What arena's Python SDK reads.
                    "gpuIndex": str(gpu.index),
                    "uuid": gpu.uuid or "",
                }
                for gpu in machine.gpus
            ],
            "knowledge": machine.knowledge.value,
            "bandwidthSource": "computed" if machine.bandwidth is None else "published",
        }
    (taken, memory), (some, core) = _memory(one), _core(one)
    return {
        **instances,
        "totalGPUMemory": _plain(memory * _GIB),
        "allocatedGPUMemory": _plain(taken * _GIB),
        "totalGPUCore": core,
        "allocatedGPUCore": some,
        "devices": _share_devices(one),
        **counts,
        **common,
        "slices": {
            name: {"total": _plain(most), "allocated": _plain(used)}
            for name, (most, used) in one.slices.items()
        },
    }


def _metric(one: NodeStatus, gpu: int, sample: GpuSample) -> dict[str, Any]:
    return {
        "id": str(gpu),
        "uuid": sample.uuid,
        # The SDK reads this key, although arena never writes it.
        "status": one.state(gpu) if gpu < len(one.node.machine.gpus) else "idle",
        "gpuDutyCycle": sample.duty_cycle or 0,
        "usedGPUMemory": _plain(sample.memory_used or 0),
        "totalGPUMemory": _plain(sample.memory_total or 0),
        "podNames": [f"{sample.namespace}/{sample.pod}"] if sample.pod else [],
    }


def _pod_value(one: NodeStatus, pod: NodePod) -> dict[str, Any]:
    named = {"name": pod.name, "namespace": pod.namespace, "status": pod.status}
    if one.mode is Mode.SHARE:
        share = pod.share or Share()
        return {
            **named,
            "requestGPUMemory": share.memory,
            "requestGPUCore": share.core,
            "gpuMemoryAllocation": dict(share.memory_of),
            "gpuCoreAllocation": dict(share.core_of),
            # What arena's Python SDK reads.
            "allocation": dict(share.memory_of),
            "asks": {name: _plain(many) for name, many in sorted(pod.asks.items())},
        }
    whole = {**named, "requestGPUs": pod.gpus, "allocation": _ids(pod.devices)}
    if one.mode is Mode.EXCLUSIVE:
        return whole
    return {**whole, "visibleGPUs": _ids(pod.visible), "planned": _ids(pod.planned)}


def _ids(devices: Iterable[int] | None) -> list[str]:
    return [str(one) for one in devices or ()]


def _share_devices(one: NodeStatus) -> list[dict[str, Any]]:
    """The shared GPUs, with the allocated bytes and hundredths of each."""
    shares = _shares(one)
    total, (_, core) = int(one.total), _core(one)
    return [
        {
            "id": gpu,
            "totalGPUMemory": _plain(one.memory_of() * _GIB),
            "allocatedGPUMemory": _plain(sum(some.memory_of.get(gpu, 0) for some in shares) * _GIB),
            "totalGPUCore": core // total,
            "allocatedGPUCore": sum(some.core_of.get(gpu, 0) for some in shares),
        }
        for gpu in map(str, range(total))
    ]


def _plain(value: float) -> float:
    """A number as Go's JSON has it: whole ones without a point."""
    return int(value) if value == int(value) else value


def _go(value: float) -> str:
    """A number as Go prints it: the fewest digits, whole ones without a point."""
    return str(_plain(value))
