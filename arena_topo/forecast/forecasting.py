"""The bandwidth of NCCL on GPUs of a machine, alone or on several equal ones; its logs."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from arena_topo.bandwidth import (
    Estimate,
    Host,
    Limit,
    NotModelled,
    Regime,
    Wire,
    estimate,
)
from arena_topo.errors import UsageError
from arena_topo.files import STDIN, opened
from arena_topo.forecast import ForecastRequest
from arena_topo.job import PodShape
from arena_topo.nccl import Cause
from arena_topo.nccl.causes import Advice, advice_for, advice_on
from arena_topo.nccl.measured import Table, tables_in
from arena_topo.nccl.reading import Reader
from arena_topo.numbers import whole
from arena_topo.topology import (
    GPUSet,
    Machine,
    behind_nvswitch,
    count,
    gpu_set,
    members,
)
from arena_topo.topology.models import MODELS, model_of
from arena_topo.topology.nics import NICs, parse_nics

MOST_NODES = 10_000
"""The most nodes of a forecast."""

MOST_SETS = 2_000
"""The most sets of GPUs that are examined to find the best one of a size."""

MOST_BYTES = 50_000_000
"""The size limit of a log in bytes."""

SIZES = tuple(sorted({1 << power for power in range(20, 34)} | {25 << 20}))
"""Bytes whose shares are shown: 1 MiB to 8 GiB, and PyTorch's bucket of 25 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A forecast and its GPUs; `estimate` is None for a single GPU, which has no bandwidth."""

    request: ForecastRequest
    machine: Machine
    gpus: GPUSet
    hosts: int
    estimate: Estimate | None
    notes: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        """GPUs of the whole job."""
        return self.request.nodes * count(self.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A size in a log: bytes, measured GB/s, and the forecast for that size."""

    size: int
    measured: float
    forecast: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """The measured value relative to the range: below, inside or above."""
        if self.measured < self.low:
            return "below"
        return "above" if self.measured > self.high else "inside"


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """A log beside a forecast, by size, the largest last; `causes` may explain the difference."""

    points: tuple[Point, ...]
    causes: tuple[Advice, ...]


def forecast(machine: Machine, request: ForecastRequest) -> Forecast:
    """The forecast for these GPUs of `request.nodes` equal machines; UsageError if invalid."""
    size, notes = len(machine.gpus), []
    number = size if request.gpus is None else request.gpus
    if not 1 <= request.nodes <= MOST_NODES:
        raise UsageError(f"--nodes {request.nodes}: a forecast is of 1 to {MOST_NODES:,} nodes")
    if not 1 <= number <= size:
        raise UsageError(f"--gpus {number}: {machine.name} has {size} GPUs")
    machine = _with_nics(_with_model(machine, request.gpu_model), request)
    gpus = _chosen(machine, request.chosen) if request.chosen else _best(machine, number)
    if gpus is None:
        gpus = GPUSet((1 << number) - 1)
        notes.append(f"the first {number} GPUs: too many sets to compare them; --set names others")
    machines = [replace(machine, name=f"{machine.name}-{node}") for node in range(request.nodes)]
    model = MODELS.get(machine.model or "")
    if request.pod_shape is PodShape.SEPARATE:
        hosts = [Host.of(node, gpu_set([gpu])) for node in machines for gpu in members(gpus)]
    elif model and model.domain and machine.nvswitch and request.nodes > 1:
        joined = max(1, model.domain // size)
        notes.append(f"NVLink joins {joined} such nodes: NCCL takes them for one host")
        hosts = [
            Host(parts=tuple((node, gpus) for node in machines[start : start + joined]))
            for start in range(0, len(machines), joined)
        ]
    else:
        hosts = [Host.of(node, gpus) for node in machines]
    try:
        value = estimate(hosts, algorithm=request.algorithm, wire=Wire.TCP if request.tcp else None)
    except NotModelled as error:
        raise UsageError(
            "there is no forecast for that", why=str(error), hint="leave out --algorithm"
        ) from error
    return Forecast(
        request=request,
        machine=machine,
        gpus=gpus,
        hosts=len(hosts),
        estimate=value,
        notes=tuple(notes),
    )


def _with_model(machine: Machine, name: str) -> Machine:
    """The machine with the given GPU model; UsageError if it has another."""
    if not name:
        return machine
    model, known = model_of(name), {gpu.model for gpu in machine.gpus if gpu.model}
    if known - {model}:
        raise UsageError(
            f"--gpu-model {name}: {machine.name} has GPUs of model {min(known)}",
            hint="leave out --gpu-model: it is for files that do not tell",
        )
    gpus = tuple(replace(gpu, model=model) for gpu in machine.gpus)
    nvswitch = machine.nvswitch or behind_nvswitch(model, machine.links)
    return replace(machine, gpus=gpus, nvswitch=nvswitch)


def _with_nics(machine: Machine, request: ForecastRequest) -> Machine:
    """The machine with the given NICs, else its own, else those of its model."""
    if request.nics:
        try:
            return parse_nics(request.nics).of(machine)
        except ValueError as error:
            raise UsageError(
                f"--nics {request.nics}: {error}",
                hint="write their number and the speed of each: 8x400G (Gb/s) or 8x50GB (GB/s)",
            ) from error
    known = MODELS.get(machine.model or "")
    if request.nodes == 1:
        # It is unknown whether the pods of a single node have RDMA.
        unknown = machine.nics_assumed and not any(nic.speed for nic in machine.nics)
        return replace(machine, nics=(), nics_assumed="") if unknown else machine
    if machine.nics or known is None or known.nic is None:
        return machine
    return NICs(number=len(machine.gpus), speed=None).of(machine)


def _chosen(machine: Machine, text: str) -> GPUSet:
    """The GPUs of --set, without repetition."""
    indexes = [whole(index.strip()) for index in text.split(",")]
    valid = {index for index in indexes if index is not None and index < len(machine.gpus)}
    if len(valid) < len(indexes):
        last = len(machine.gpus) - 1
        raise UsageError(
            f"--set {text}: {machine.name} has no such GPUs",
            hint=f"name some of 0 to {last}, each once: 0,1,2,3",
        )
    return gpu_set(valid)


def _best(machine: Machine, number: int) -> GPUSet | None:
    """The set of so many GPUs with the largest point, the first of equal ones; None: too many."""
    size = len(machine.gpus)
    uniform = len({link for row in machine.links for link in row if link is not None}) <= 1
    if number in {1, size} or uniform:
        return GPUSet((1 << number) - 1)
    if math.comb(size, number) > MOST_SETS:
        return None

    def worth(gpus: GPUSet) -> float:
        value = estimate([Host.of(machine, gpus)])
        return value.point if value else 0.0

    return max(map(gpu_set, itertools.combinations(range(size), number)), key=worth)


# ---------------------------------------------------------------- beside a log


def against(result: Forecast, source: str) -> Against:
    """A log of nccl-tests beside a forecast; UsageError if no table fits."""
    shown = "standard input" if source == STDIN else source
    if result.estimate is None:
        raise UsageError("--against needs two GPUs or more", why="one GPU alone has no bandwidth")
    text = _text(source, shown)
    points = tuple(
        Point(size=row.size, measured=row.rate, forecast=point, low=low, high=high)
        for row in sorted(_table(text, result, shown).rows, key=lambda row: row.size)
        if row.rate and row.size >= SIZES[0]
        for point, low, high in [result.estimate.at(row.size)]
    )
    if not points:
        raise UsageError(
            f"{shown}: no size from 1 MiB on",
            why="smaller messages measure latency and not bandwidth",
            hint=_MAKE,
        )
    causes = _causes(text, result.estimate) if points[-1].verdict == "below" else ()
    return Against(points=points, causes=causes)


_MAKE = "make one: all_reduce_perf -b 1M -e 8G -f 2 > FILE"


def _text(source: str, shown: str) -> str:
    try:
        with opened(source) as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {shown}", why=error.strerror) from error
    if len(data) > MOST_BYTES:
        raise UsageError(f"{shown}: more than {MOST_BYTES // 1_000_000} MB are no log of a test")
    return data.decode(errors="replace")


def _table(text: str, result: Forecast, shown: str) -> Table:
    """The last table of an all-reduce in a log; UsageError unless it has the forecast's GPUs."""
    tables = tables_in(text)
    if not tables:
        raise UsageError(f"{shown}: this is no output of nccl-tests", hint=_MAKE)
    table = next((test for test in reversed(tables) if test.operation == "all_reduce"), tables[-1])
    if table.defect is not None:
        raise UsageError(f"{shown}: {table.defect}", hint=_MAKE)
    # In JSON builds without MPI list a single device for any number of devices.
    ranks, nodes = len(table.ranks), len({rank.host for rank in table.ranks})
    if ranks > 1 and ranks != result.ranks:
        raise UsageError(
            f"{shown}: {ranks} GPUs took part, and the forecast is of {result.ranks}",
            hint=f"--nodes {nodes} --gpus {ranks // nodes}" if ranks % nodes == 0 else None,
        )
    return table


_USUAL = {
    Limit.NICS: (Cause.GDR_OFF, Cause.IB_SETUP),
    Limit.HOST: (Cause.NVLS, Cause.GDR_OFF),
    Limit.NVLINK: (Cause.NVLINK_OFF,),
    Limit.BRIDGE: (Cause.NVLINK_OFF, Cause.P2P_OFF),
    Limit.PCIE: (Cause.P2P_OFF,),
    Limit.MEMORY: (Cause.SHM_FULL,),
    Limit.NETWORK: (Cause.NO_INTERFACE,),
}
"""The usual causes of a job slower than forecast, by the limit of its bandwidth."""


def _causes(text: str, estimated: Estimate) -> tuple[Advice, ...]:
    """NCCL's own complaints in the log, else the usual causes."""
    reader = Reader()
    reader.feed_all(text.splitlines())
    advice = [advice_on(complaint.text) for complaint in reader.report().complaints]
    if own := tuple(dict.fromkeys(entry for entry in advice if entry is not None)):
        return own
    first = (Cause.NVLS,) if estimated.regime is Regime.NVLS else ()
    return tuple(map(advice_for, (*first, *_USUAL[estimated.limited_by])))
