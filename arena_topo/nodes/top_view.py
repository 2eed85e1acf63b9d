"""What `top node` shows: arena's tables and documents of nodes, their GPUs and who has them.

Layouts, texts and keys are arena's (pkg/topnode); what its Python SDK reads is there under the
names that it asks for. Ours come last in each object.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from arena_topo import layout
from arena_topo.engines.measured import percent
from arena_topo.engines.occupancy import SHARE_CORE, SHARE_MEMORY, Mode, NodePod, NodeStatus
from arena_topo.escaping import one_line
from arena_topo.topology import Knowledge, count, gpu_set

if TYPE_CHECKING:
    from arena_topo.engines.metrics import GpuSample

Samples = Mapping[str, Mapping[int, "GpuSample"]]
"""What was measured, by node and by GPU."""

_GIB = float(1 << 30)

_RULE = "-" * 99
_SHARE_RULE = "-" * 107

_HEADER = ("NAME", "IPADDRESS", "ROLE", "STATUS", "GPU(Total)", "GPU(Allocated)")

_NONE = "<none>"
_SELF = "N-A"
"""What stands on the diagonal of a matrix of links, as ACK writes it."""

_KEYS = {
    Mode.EXCLUSIVE: "gpuExclusiveNodes",
    Mode.SHARE: "gpuShareNodes",
    Mode.TOPOLOGY: "gpuTopologyNodes",
    Mode.NORMAL: "normalNodes",
}
"""Where each class of nodes stands in documents, in the order of Go's maps."""

_LEFT_OUT = "Links and addresses are left out: the terminal is too small."

_Blocks = tuple[list[str], list[str], list[str]]
"""The lines about a node's pods, about the links between its GPUs, and about the GPUs."""

_FLOAT_DIGITS = 9
"""Digits that tell any two numbers of 32 bits apart."""


def by_node(samples: Iterable[GpuSample]) -> dict[str, dict[int, GpuSample]]:
    """Samples by node and GPU; of a GPU that several pods share the first."""
    found: dict[str, dict[int, GpuSample]] = {}
    for one in samples:
        found.setdefault(one.node, {}).setdefault(one.index, one)
    return found


# ---------------------------------------------------------------- one line for each node


def nodes(statuses: Sequence[NodeStatus], *, named: bool = False) -> str:
    """The summary: a line for each node, class by class, and how many GPUs are taken of all.

    `named` says that only some nodes were asked for; then a mixed summary has no total.
    """
    modes = {one.mode for one in statuses}
    if len(modes) == 1:
        [mode] = modes
        return _of_shares(statuses) if mode is Mode.SHARE else _of_one_class(statuses, mode)
    ill = any(one.unhealthy for one in statuses)
    several = len(modes - {Mode.NORMAL}) > 1
    header = [*_HEADER, *(["GPU(Mode)"] if several else []), *(["UNHEALTHY"] if ill else [])]
    rows = []
    for one in _ordered(statuses):
        row = [*_begun(one), _go(one.total), _go(one.allocated)]
        row += [one.mode.alias] if several else []
        rows.append([*row, *([_go(one.unhealthy)] if ill else [])])
    lines = layout.table(header, rows)
    if not named:
        lines += [_RULE, *_totals(statuses, "GPUs In Cluster:")]
    return layout.align(lines)


def _ordered(statuses: Iterable[NodeStatus]) -> list[NodeStatus]:
    modes = list(Mode)
    return sorted(statuses, key=lambda one: modes.index(one.mode))


def _begun(one: NodeStatus) -> list[str]:
    return [one.name, one.ip, one.role or _NONE, one.status]


def _of_one_class(statuses: Sequence[NodeStatus], mode: Mode) -> str:
    ill = any(one.unhealthy for one in statuses)
    header = [*_HEADER, *(["UNHEALTHY"] if ill else [])]
    rows = [
        [
            *_begun(one),
            _go(one.total),
            _go(one.allocated),
            *([_go(one.unhealthy)] if ill else []),
        ]
        for one in statuses
    ]
    lines = layout.table(header, rows)
    if mode is not Mode.NORMAL:
        resources = ", ".join(sorted({one.node.resource for one in statuses}))
        of = f"GPUs of nodes which own resource {resources} In Cluster:"
        lines += [_RULE, *_totals(statuses, of)]
    return layout.align(lines)


def _totals(statuses: Sequence[NodeStatus], of: str) -> Iterator[str]:
    """How many GPUs are taken, and where some do not work how many those are."""
    total = sum(one.total for one in statuses)
    for word, some in (
        ("Allocated", sum(one.allocated for one in statuses)),
        ("Unhealthy", sum(one.unhealthy for one in statuses)),
    ):
        if some or word == "Allocated":
            share = 100 * some / total if total else 0.0
            yield f"{word}/Total {of}"
            yield f"{_go(round(some, 1))}/{_go(total)} ({share:.1f}%)"


def _of_shares(statuses: Sequence[NodeStatus]) -> str:
    ill = any(one.unhealthy for one in statuses)
    header = [
        *_HEADER[:4],
        "GPUs(Allocated/Total)",
        "GPU_MEMORY(Allocated/Total)",
        "GPU_CORE(Allocated/Total)",
        *(["UNHEALTHY"] if ill else []),
    ]
    rows = []
    for one in statuses:
        memory, core = _memory(one), _core(one)
        rows.append(
            [
                *_begun(one),
                f"{_go(one.allocated)}/{_go(one.total)}",
                f"{memory[0]:.1f}/{memory[1]:.1f} GiB" if memory[1] else "__",
                f"{core[0]}/{core[1]}" if core[1] else "__",
                *([_go(one.unhealthy)] if ill else []),
            ]
        )
    lines = [*layout.table(header, rows), _SHARE_RULE]
    resources = ", ".join(sorted({resource for one in statuses for resource in _offered(one)}))
    allocated, *unhealthy = zip(
        *[iter(_totals(statuses, f"GPUs of nodes which own resource {resources} In Cluster:"))] * 2,
        strict=True,
    )
    lines += allocated
    for name, resource, unit, one_decimal in (
        ("GPU Memory", SHARE_MEMORY, " GiB", True),
        ("GPU Core", SHARE_CORE, " ", False),
    ):
        of = [_memory(one) if one_decimal else _core(one) for one in statuses]
        taken, most = sum(some for some, _ in of), sum(some for _, some in of)
        if most:
            form = ".1f" if one_decimal else "d"
            lines.append(
                f"Allocated/Total {name} of nodes which own resource {resource} In Cluster:"
            )
            lines.append(f"{taken:{form}}/{most:{form}}{unit}({100 * taken / most:.1f}%)")
    for two in unhealthy:
        lines += two
    return layout.align(lines)


def _offered(one: NodeStatus) -> list[str]:
    """What pods ask for to get a part of these GPUs."""
    return [SHARE_MEMORY] if one.capacity.get(SHARE_MEMORY) else list(one.slices)


def _memory(one: NodeStatus) -> tuple[float, float]:
    """GiB of GPU memory that are taken, and that there are."""
    shares = [pod.share for pod in one.pods or () if pod.share is not None]
    taken = sum(sum(share.memory_of.values()) for share in shares)
    return float(taken), one.capacity.get(SHARE_MEMORY, 0.0)


def _core(one: NodeStatus) -> tuple[int, int]:
    """Hundredths of GPUs that are taken, and that there are."""
    shares = [pod.share for pod in one.pods or () if pod.share is not None]
    taken = sum(sum(share.core_of.values()) for share in shares)
    return taken, int(one.capacity.get(SHARE_CORE, 0.0))


# ---------------------------------------------------------------- nodes in detail


def details(
    statuses: Iterable[NodeStatus], samples: Samples | None = None, *, brief: bool = False
) -> str:
    """All about each node, class by class, with what was measured of its GPUs.

    `brief` leaves out what does not change, says so in the first line, and puts the GPUs before
    the pods that have them.
    """
    lines = [_LEFT_OUT] if brief else []
    for one in _ordered(statuses):
        measured = (samples or {}).get(one.name, {})
        pods, links, gpus = _BLOCKS[one.mode](one, measured)
        if brief:
            lines += ["", *_head(one)[:2], *gpus, *pods]
        else:
            lines += ["", *_head(one), *pods, *links, *gpus, ""]
    return layout.align(lines)


def _head(one: NodeStatus) -> list[str]:
    return [
        f"Name:    {one_line(one.name)}",
        f"Status:  {one_line(one.status)}",
        f"Role:    {one_line(one.role or _NONE)}",
        f"Type:    {one.mode.label}",
        f"Address: {one_line(one.ip)}",
        "Description:",
        *(f"  {one_line(line)}" for line in _description(one)),
    ]


def _description(one: NodeStatus) -> list[str]:
    node = one.node
    if one.mode is Mode.NORMAL:
        return ["This node has no GPUs."]
    if one.mode is Mode.SHARE:
        why = node.shared or "GPUs are shared"
        return [f"{why}: no gang gets a whole one.", f"Pods ask for {', '.join(_offered(one))}."]
    how = f"claims of {node.driver}" if node.driver else f"the resource {node.resource}"
    told = {
        Knowledge.MEASURED: "The links between its GPUs are known.",
        Knowledge.ASSUMED: f"The links between its GPUs are assumed from {node.machine.model}.",
        Knowledge.UNKNOWN: "The links between its GPUs are not known.",
    }
    return [told[node.machine.knowledge], f"Pods get them by {how}."]


def _normal(one: NodeStatus, samples: Mapping[int, GpuSample]) -> _Blocks:
    del one, samples
    return [], [], []


def _topology(one: NodeStatus, samples: Mapping[int, GpuSample]) -> _Blocks:
    pods: list[str] = []
    if one.pods:
        header = ("NAMESPACE", "NAME", "GPU(Requested)", "GPU(Allocated)")
        rows = [(pod.namespace, pod.name, str(pod.gpus), _devices(pod)) for pod in one.pods]
        pods += ["Instances:", *layout.table(header, rows, indent="  ")]
    lines = []
    names = [f"GPU{gpu.index}" for gpu in one.node.machine.gpus]
    matrices = [("LinkTypeMatrix:", _links(one))]
    matrices.append(("BandwidthMatrix:", [[_go(rate) for rate in row] for row in _rates(one)]))
    for title, matrix in matrices:
        lines += [title, "\t".join(["  ", *names])]
        lines += ["\t".join([f"  {name}", *row]) for name, row in zip(names, matrix, strict=True)]
    if one.node.machine.bandwidth is None:
        lines.append("  Computed from the links, GB/s; nobody has measured them.")
    return pods, lines, _gpus(one, samples)


def _gpus(one: NodeStatus, samples: Mapping[int, GpuSample]) -> list[str]:
    if samples:
        return _measured(one, samples)
    lines = ["GPUs:", "  INDEX\tSTATUS\tHEALTHY", "  ----\t------\t-------"]
    for gpu in one.node.machine.gpus:
        healthy = "true" if one.healthy(gpu.index) else "false"
        lines.append(f"  GPU{gpu.index}\t{one.state(gpu.index)}\t{healthy}")
    if one.node.opaque:
        lines.append(
            f"  {one.node.hidden} of the unknown ones are in use; which ones is not reported."
        )
    return [*lines, *_summary(one)]


def _summary(one: NodeStatus, *, wide: bool = False) -> list[str]:
    """The last lines of a node; arena aligns them for exclusive nodes only."""
    fields = (
        ("Total GPUs:", one.total),
        ("Allocated GPUs:", one.allocated),
        ("Unhealthy GPUs:", one.unhealthy),
    )
    gap = max(len(name) for name, _ in fields) if wide else 0
    return ["GPU Summary:", *(f"  {name:<{gap}} {_go(value)}" for name, value in fields)]


def _measured(one: NodeStatus, samples: Mapping[int, GpuSample]) -> list[str]:
    """The GPUs with their memory, in GiB, and duty cycle; N/A for what nobody measures."""
    header = ("INDEX", "MEMORY(Total)", "MEMORY(Allocated)", "MEMORY(Used)", "DUTY_CYCLE")
    rows = []
    totals = [0.0, 0.0, 0.0]
    for gpu in one.node.machine.gpus:
        sample = samples.get(gpu.index)
        total = None if sample is None else sample.memory_total
        taken = one.using >> gpu.index & 1 or (sample is not None and bool(sample.pod))
        allocated = None if total is None else total if taken else 0.0
        used = None if sample is None else sample.memory_used
        for at, value in enumerate((total, allocated, used)):
            totals[at] += value or 0.0
        cycle = None if sample is None else sample.duty_cycle
        rows.append((str(gpu.index), _gib(total), _gib(allocated), _gib(used), percent(cycle)))
    lines = ["GPUs:", *layout.table(header, rows, indent="  "), "GPU Summary:"]
    for name, text in (
        ("Total GPUs:", _go(one.total)),
        ("Allocated GPUs:", _go(one.allocated)),
        ("Unhealthy GPUs:", _go(one.unhealthy)),
        ("Total GPU Memory:", _gib(totals[0])),
        ("Allocated GPU Memory:", _gib(totals[1])),
        ("Used GPU Memory:", _gib(totals[2])),
    ):
        lines.append(f"  {name:<21} {text}")
    return lines


def _gib(value: float | None) -> str:
    return layout.NOTHING if value is None else f"{value / _GIB:.1f} GiB"


def _exclusive(one: NodeStatus, samples: Mapping[int, GpuSample]) -> _Blocks:
    lines = []
    if one.pods:
        header = ["NAMESPACE", "NAME", "STATUS", "GPU(Requested)"]
        header += ["GPU(Allocated)"] if samples else []
        rows = []
        for pod in one.pods:
            row = [pod.namespace, pod.name, pod.status, str(pod.gpus)]
            rows.append([*row, *([_seen_on(pod, samples)] if samples else [])])
        lines += ["Instances:", *layout.table(header, rows, indent="  ")]
    return lines, [], _measured(one, samples) if samples else _summary(one, wide=True)


def _seen_on(pod: NodePod, samples: Mapping[int, GpuSample]) -> str:
    """The GPUs on which a pod was measured."""
    mine = [
        index
        for index, sample in sorted(samples.items())
        if (sample.namespace, sample.pod) == (pod.namespace, pod.name)
    ]
    return ",".join(f"gpu{index}" for index in mine) or layout.NOTHING


def _share(one: NodeStatus, samples: Mapping[int, GpuSample]) -> _Blocks:
    if not one.capacity.get(SHARE_MEMORY):
        return _sliced(one)
    core = bool(_core(one)[1])
    gpus = [str(gpu) for gpu in range(int(one.total))]
    pods = []
    if one.pods:
        header = ["NAMESPACE", "NAME", "GPU_MEM(Requested)", "GPU_MEM(Allocated)"]
        header += ["GPU_CORE(Requested)", "GPU_CORE(Allocated)"] if core else []
        rows = []
        for pod in one.pods:
            share = pod.share
            if share is None:
                continue
            given = [
                f"gpu{gpu}({share.memory_of[gpu]:.1f}GiB)" for gpu in gpus if gpu in share.memory_of
            ]
            row = [pod.namespace, pod.name, f"{share.memory:.1f} GiB", ",".join(given)]
            if core:
                cores = [f"gpu{gpu}({share.core_of[gpu]})" for gpu in gpus if gpu in share.core_of]
                row += [str(share.core), ",".join(cores)]
            rows.append(row)
        pods = ["Instances:", *layout.table(header, rows, indent="  ")]
    if samples:
        return pods, [], _measured(one, samples)
    header = ["INDEX", "MEMORY(Total)", "MEMORY(Allocated)"]
    header += ["CORE(Total)", "CORE(Allocated)"] if core else []
    rows = []
    for device in _share_devices(one):
        total, taken = device["totalGPUMemory"] / _GIB, device["allocatedGPUMemory"] / _GIB
        part = 100 * taken / total if total else 0.0
        row = [device["id"], f"{_go(total)} GiB", f"{_go(taken)} GiB({part:.1f}%)"]
        if core:
            most, some = device["totalGPUCore"], device["allocatedGPUCore"]
            row += [str(most), f"{some}({100 * some / most if most else 0.0:.1f}%)"]
        rows.append(row)
    lines = ["GPUs:", *layout.table(header, rows, indent="  "), *_summary(one)]
    taken_memory, all_memory = _memory(one)
    lines.append(f"  Total GPU Memory: {all_memory:.1f} GiB")
    lines.append(f"  Allocated GPU Memory: {taken_memory:.1f} GiB")
    if core:
        taken_core, all_core = _core(one)
        lines += [f"  Total GPU Core: {all_core}", f"  Allocated GPU Core: {taken_core}"]
    return pods, [], lines


def _sliced(one: NodeStatus) -> _Blocks:
    """A node whose GPUs are cut up or handed out several times: what it offers, who asks for it."""
    lines = []
    if one.pods:
        rows = [
            (
                pod.namespace,
                pod.name,
                pod.status,
                ",".join(f"{name}={_go(many)}" for name, many in sorted(pod.asks.items())),
            )
            for pod in one.pods
        ]
        header = ("NAMESPACE", "NAME", "STATUS", "REQUESTED")
        lines += ["Instances:", *layout.table(header, rows, indent="  ")]
    rows_of = [(name, _go(most), _go(some)) for name, (most, some) in one.slices.items()]
    slices = ["Slices:", *layout.table(("RESOURCE", "TOTAL", "ALLOCATED"), rows_of, indent="  ")]
    return lines, [], [*slices, *_summary(one)]


_BLOCKS = {
    Mode.NORMAL: _normal,
    Mode.EXCLUSIVE: _exclusive,
    Mode.TOPOLOGY: _topology,
    Mode.SHARE: _share,
}


def _devices(pod: NodePod) -> str:
    if pod.devices is None:
        plan = ",".join(map(str, pod.planned))
        return f"{plan} (planned)" if plan else layout.NOTHING
    return ",".join(map(str, pod.devices))


def _links(one: NodeStatus) -> list[list[str]]:
    return [
        [_SELF if link is None else str(link) for link in row] for row in one.node.machine.links
    ]


def _rates(one: NodeStatus) -> list[list[float]]:
    """GB/s between any two GPUs: as published, else what the solver makes of their link."""
    machine = one.node.machine
    if machine.bandwidth is not None:
        return [[_single(rate) for rate in row] for row in machine.bandwidth]
    from arena_topo.solver.gpu_sets import gpu_sets  # noqa: PLC0415 - only for pairs

    worth = gpu_sets(machine.configuration).value
    size = len(machine.gpus)
    return [
        [0.0 if one == other else worth(gpu_set((one, other))) for other in range(size)]
        for one in range(size)
    ]


# ---------------------------------------------------------------- documents


def nodes_value(
    statuses: Iterable[NodeStatus], samples: Samples | None = None, *, emulated: bool = False
) -> dict[str, list[dict[str, Any]]]:
    """All nodes as arena's object: a list for each class, the keys of its Python SDK among theirs.

    Numbers of GPUs are whole but for shares, memory is in bytes, bandwidth in GB/s. Ours are the
    last keys of a node: `resource`, `knowledge` of its links (`measured`, `assumed`, `unknown`),
    of its pods `planned` (GPUs that it was to get, where nobody knows which it has),
    `bandwidthSource` (`published`, or `computed` from the links), `hiddenGPUs` (in use, nobody says
    which) and `emulated`.
    """
    found: dict[str, list[dict[str, Any]]] = {key: [] for key in _KEYS.values()}
    for one in statuses:
        measured = (samples or {}).get(one.name, {})
        found[_KEYS[one.mode]].append(_VALUES[one.mode](one, measured, emulated=emulated))
    return found


def _common(one: NodeStatus) -> dict[str, Any]:
    return {
        "name": one.name,
        "description": "\n".join(_description(one)),
        "ip": one.ip,
        "status": one.status,
        "role": one.role,
        "type": one.mode.label,
    }


def _gpu_counts(one: NodeStatus, samples: Mapping[int, GpuSample]) -> dict[str, Any]:
    return {
        "totalGPUs": _plain(one.total),
        "allocatedGPUs": _plain(one.allocated),
        "unhealthyGPUs": _plain(one.unhealthy),
        "gpuMetrics": [
            {
                "id": str(index),
                "uuid": sample.uuid,
                # The SDK asks for it, although arena never writes it.
                "status": one.state(index) if index < len(one.node.machine.gpus) else "idle",
                "gpuDutyCycle": sample.duty_cycle or 0,
                "usedGPUMemory": _plain(sample.memory_used or 0),
                "totalGPUMemory": _plain(sample.memory_total or 0),
                "podNames": [f"{sample.namespace}/{sample.pod}"] if sample.pod else [],
            }
            for index, sample in sorted(samples.items())
        ],
    }


def _ours(one: NodeStatus, *, emulated: bool) -> dict[str, Any]:
    return {
        "resource": one.node.resource,
        "hiddenGPUs": min(one.node.hidden, count(one.node.free)),
        "emulated": emulated,
    }


def _normal_value(
    one: NodeStatus, samples: Mapping[int, GpuSample], *, emulated: bool
) -> dict[str, Any]:
    del samples, emulated
    return _common(one)


def _exclusive_value(
    one: NodeStatus, samples: Mapping[int, GpuSample], *, emulated: bool
) -> dict[str, Any]:
    return {
        "instances": [
            {**_named(pod), "requestGPUs": pod.gpus, "allocation": _ids(pod.devices)}
            for pod in one.pods or ()
        ],
        **_common(one),
        **_gpu_counts(one, samples),
        **_ours(one, emulated=emulated),
    }


def _topology_value(
    one: NodeStatus, samples: Mapping[int, GpuSample], *, emulated: bool
) -> dict[str, Any]:
    machine = one.node.machine
    return {
        "instances": [
            {
                **_named(pod),
                "requestGPUs": pod.gpus,
                "allocation": _ids(pod.devices),
                "visibleGPUs": _ids(pod.visible),
                "planned": _ids(pod.planned),
            }
            for pod in one.pods or ()
        ],
        "gpuTopology": {
            "linkMatrix": _links(one),
            "bandwidthMatrix": [[_plain(rate) for rate in row] for row in _rates(one)],
        },
        **_gpu_counts(one, samples),
        **_common(one),
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
        **_ours(one, emulated=emulated),
    }


def _share_value(
    one: NodeStatus, samples: Mapping[int, GpuSample], *, emulated: bool
) -> dict[str, Any]:
    instances = []
    for pod in one.pods or ():
        share = pod.share
        memory_of = {} if share is None else dict(share.memory_of)
        instances.append(
            {
                **_named(pod),
                "requestGPUMemory": 0 if share is None else share.memory,
                "requestGPUCore": 0 if share is None else share.core,
                "gpuMemoryAllocation": memory_of,
                "gpuCoreAllocation": {} if share is None else dict(share.core_of),
                # What arena's Python SDK reads.
                "allocation": memory_of,
                "asks": {name: _plain(many) for name, many in sorted(pod.asks.items())},
            }
        )
    taken, memory = _memory(one)
    taken_core, core = _core(one)
    return {
        "instances": instances,
        "totalGPUMemory": _plain(memory * _GIB),
        "allocatedGPUMemory": _plain(taken * _GIB),
        "totalGPUCore": core,
        "allocatedGPUCore": taken_core,
        "devices": [
            {key: _plain(value) if key != "id" else value for key, value in device.items()}
            for device in _share_devices(one)
        ],
        **_gpu_counts(one, samples),
        **_common(one),
        "slices": {
            name: {"total": _plain(most), "allocated": _plain(some)}
            for name, (most, some) in one.slices.items()
        },
        **_ours(one, emulated=emulated),
    }


_VALUES = {
    Mode.NORMAL: _normal_value,
    Mode.EXCLUSIVE: _exclusive_value,
    Mode.TOPOLOGY: _topology_value,
    Mode.SHARE: _share_value,
}


def _named(pod: NodePod) -> dict[str, Any]:
    return {"name": pod.name, "namespace": pod.namespace, "status": pod.status}


def _ids(devices: Iterable[int] | None) -> list[str]:
    return [str(one) for one in devices or ()]


def _share_devices(one: NodeStatus) -> list[dict[str, Any]]:
    """The shared GPUs, with bytes and hundredths that are taken of each."""
    shares = [pod.share for pod in one.pods or () if pod.share is not None]
    total, (_, core) = int(one.total), _core(one)
    return [
        {
            "id": gpu,
            "totalGPUMemory": one.memory_of() * _GIB,
            "allocatedGPUMemory": sum(some.memory_of.get(gpu, 0) for some in shares) * _GIB,
            "totalGPUCore": core // total,
            "allocatedGPUCore": sum(some.core_of.get(gpu, 0) for some in shares),
        }
        for gpu in map(str, range(total))
    ]


# ---------------------------------------------------------------- numbers as Go prints them


def _go(value: float) -> str:
    """A number as Go's %v prints it: the fewest digits, exponents from a million up."""
    if not math.isfinite(value):
        return "+Inf" if value > 0 else str(value)
    exact = Decimal(repr(float(value))).normalize()
    exponent = exact.adjusted()
    if exact and not -4 <= exponent < 6:  # noqa: PLR2004 - strconv.FormatFloat, 'g'
        digits = format(exact.scaleb(-exponent), "f")
        return f"{digits}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    return format(exact, "f")


def _plain(value: float) -> float:
    """A number as Go's JSON has it: whole ones without a point."""
    return int(value) if value == int(value) else value


def _single(value: float) -> float:
    """The number of the fewest digits that has the same 32 bits, as arena keeps bandwidths."""
    try:
        bits = struct.pack("f", value)
    except OverflowError:
        return value
    [kept] = struct.unpack("f", bits)
    for digits in range(1, _FLOAT_DIGITS + 1):
        text = f"{kept:.{digits}g}"
        if struct.pack("f", float(text)) == bits:
            return float(text)
    return value
