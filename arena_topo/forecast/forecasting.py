"""What NCCL reaches on GPUs of a machine, alone or on several alike, and how a log compares."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from arena_topo.bandwidth import (
    Algorithm,
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
from arena_topo.forecast import Asked
from arena_topo.job import PodShape
from arena_topo.nccl import Cause
from arena_topo.nccl.causes import Advice, advice_for, advice_on
from arena_topo.nccl.measured import Table, TableReader, from_json
from arena_topo.nccl.reading import Reader
from arena_topo.numbers import whole
from arena_topo.topology import (
    GPUSet,
    Machine,
    behind_nvswitch,
    count,
    gpu_set,
)
from arena_topo.topology.models import MODELS, model_of
from arena_topo.topology.nics import NICs, parse_nics

MOST_NODES = 10_000
"""Nodes of a forecast."""

MOST_SETS = 2_000
"""Sets of GPUs that are gone through to find the best one of a size."""

MOST_BYTES = 50_000_000
"""The largest log that is read."""

SIZES = tuple(sorted({1 << power for power in range(20, 34)} | {25 << 20}))
"""Bytes whose shares are shown: 1 MiB to 8 GiB, and PyTorch's bucket of 25 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A forecast and what it is of; `estimate` is None for a single GPU, which talks to nobody."""

    machine: Machine
    gpus: GPUSet
    nodes: int
    hosts: int
    pod_shape: PodShape
    algorithm: Algorithm | None
    estimate: Estimate | None
    notes: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        """GPUs of the whole job."""
        return self.nodes * count(self.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A size of a log: bytes, measured GB/s, and what was forecast for that size."""

    size: int
    measured: float
    forecast: float
    low: float
    high: float

    @property
    def inside(self) -> bool:
        """Whether the range holds what was measured."""
        return self.low <= self.measured <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """A log beside a forecast; `verdict` is the largest size, `causes` what may explain it."""

    points: tuple[Point, ...]
    verdict: Point
    causes: tuple[Advice, ...]


def forecast(machine: Machine, asked: Asked) -> Forecast:
    """What these GPUs of `asked.nodes` such machines reach; UsageError for what makes no sense."""
    if not machine.gpus:
        raise UsageError(f"{machine.name} has no GPUs")
    if not 1 <= asked.nodes <= MOST_NODES:
        raise UsageError(f"--nodes {asked.nodes}: a forecast is of 1 to {MOST_NODES:,} nodes")
    machine = _with_model(machine, asked.gpu_model)
    machine, notes = _with_nics(machine, asked)
    gpus = _chosen(machine, asked.chosen) if asked.chosen else _best(machine, asked, notes)
    hosts = _hosts(machine, gpus, asked, notes)
    try:
        found = estimate(hosts, algorithm=asked.algorithm, wire=Wire.TCP if asked.tcp else None)
    except NotModelled as error:
        raise UsageError(
            "there is no forecast for that", why=str(error), hint="leave out --algorithm"
        ) from error
    return Forecast(
        machine=machine,
        gpus=gpus,
        nodes=asked.nodes,
        hosts=len(hosts),
        pod_shape=asked.pod_shape,
        algorithm=asked.algorithm,
        estimate=found,
        notes=tuple(notes),
    )


def _with_model(machine: Machine, name: str) -> Machine:
    """The machine with the GPU model that was named, where it does not tell another."""
    if not name:
        return machine
    model = model_of(name)
    told = {gpu.model for gpu in machine.gpus} - {None}
    if told - {model}:
        raise UsageError(
            f"--gpu-model {name}: {machine.name} has GPUs of model {min(filter(None, told))}",
            hint="leave out --gpu-model: it is for files that do not tell",
        )
    return replace(
        machine,
        gpus=tuple(replace(gpu, model=model) for gpu in machine.gpus),
        nvswitch=machine.nvswitch or behind_nvswitch(model, machine.links),
    )


def _with_nics(machine: Machine, asked: Asked) -> tuple[Machine, list[str]]:
    """The machine with the NICs that were named, else its own, else those of its model."""
    if asked.nics:
        try:
            nics = parse_nics(asked.nics)
        except ValueError as error:
            raise UsageError(
                f"--nics {asked.nics}: {error}",
                hint="write their number and the speed of each: 8x400G (Gb/s) or 8x50GB (GB/s)",
            ) from error
        return nics.of(machine), []
    if asked.nodes == 1 and machine.nics_assumed and not any(nic.speed for nic in machine.nics):
        # Nobody said that the pods of one node have RDMA.
        return replace(machine, nics=(), nics_assumed=""), []
    known = MODELS.get(machine.model or "")
    if machine.nics or known is None or known.nic is None or asked.nodes == 1:
        return machine, []
    return NICs(number=len(machine.gpus), speed=None).of(machine), []


def _chosen(machine: Machine, text: str) -> GPUSet:
    indexes: list[int] = []
    for word in text.split(","):
        index = whole(word.strip())
        if index is None:
            raise UsageError(f"--set {text}: {word.strip()!r} is no GPU", hint="write 0,1,2,3")
        if index >= len(machine.gpus):
            raise UsageError(
                f"--set {text}: there is no GPU {index} in {machine.name}",
                hint=f"its GPUs are 0 to {len(machine.gpus) - 1}",
            )
        if index in indexes:
            raise UsageError(f"--set {text}: GPU {index} is named twice")
        indexes.append(index)
    return gpu_set(indexes)


def _best(machine: Machine, asked: Asked, notes: list[str]) -> GPUSet:
    """The set of so many GPUs with the largest point; of equal ones the first."""
    size = len(machine.gpus)
    many = size if asked.gpus is None else asked.gpus
    if not 1 <= many <= size:
        raise UsageError(f"--gpus {many}: {machine.name} has {size} GPUs")
    first = GPUSet((1 << many) - 1)
    alike = len({link for row in machine.links for link in row if link is not None}) <= 1
    if many in {1, size} or alike:
        return first
    if math.comb(size, many) > MOST_SETS:
        notes.append(f"the first {many} GPUs: too many sets to compare them; --set names others")
        return first

    def worth(gpus: GPUSet) -> float:
        found = estimate([Host.of(machine, gpus)])
        return found.point if found else 0.0

    sets = (gpu_set(one) for one in itertools.combinations(range(size), many))
    return max(sets, key=worth)


def _hosts(machine: Machine, gpus: GPUSet, asked: Asked, notes: list[str]) -> list[Host]:
    """The hosts as NCCL counts them."""
    alike = [replace(machine, name=f"{machine.name}-{node}") for node in range(asked.nodes)]
    if asked.pod_shape is PodShape.SEPARATE:
        alone = [GPUSet(1 << gpu) for gpu in range(len(machine.gpus)) if gpus >> gpu & 1]
        return [Host.of(node, gpu) for node in alike for gpu in alone]
    known = MODELS.get(machine.model or "")
    if known and known.domain and machine.nvswitch and asked.nodes > 1:
        many = max(1, known.domain // len(machine.gpus))
        notes.append(f"NVLink joins {many} such nodes: NCCL takes them for one host")
        return [
            Host(parts=tuple((node, gpus) for node in alike[start : start + many]))
            for start in range(0, len(alike), many)
        ]
    return [Host.of(node, gpus) for node in alike]


# ---------------------------------------------------------------- beside a log


def against(found: Forecast, source: str) -> Against:
    """A log of nccl-tests beside a forecast; UsageError if it has none that fits."""
    text, shown = _text(source)
    table = _table(text, shown)
    if found.estimate is None:
        raise UsageError("--against needs two GPUs or more", why="one GPU alone has no bandwidth")
    _check(table, found, shown)
    points = tuple(
        _point(row.size, row.rate, found.estimate)
        for row in sorted(table.rows, key=lambda row: row.size)
        if row.rate and row.size >= SIZES[0]
    )
    if not points:
        raise UsageError(
            f"{shown}: no size from 1 MiB on",
            why="smaller messages measure latency and not bandwidth",
            hint="all_reduce_perf -b 1M -e 8G -f 2",
        )
    return Against(
        points=points, verdict=points[-1], causes=_causes(text, points[-1], found.estimate)
    )


def _text(source: str) -> tuple[str, str]:
    shown = "standard input" if source == STDIN else source
    try:
        with opened(source) as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"cannot read {shown}",
            why=error.strerror,
            hint="--against takes the path of a log, or -",
        ) from error
    if len(data) > MOST_BYTES:
        raise UsageError(f"{shown}: more than {MOST_BYTES // 1_000_000} MB are no log of a test")
    return data.decode(errors="replace"), shown


def _table(text: str, shown: str) -> Table:
    """The last table of an all-reduce in a log."""
    if Path(shown).suffix == ".json" or text.lstrip()[:1] == "{":
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        table = from_json(value) if isinstance(value, dict) else None
        tables = [table] if table else []
    else:
        reader = TableReader()
        reader.feed_all(text.splitlines())
        tables = [table for table in reader.tables() if table.rows]
    if not tables:
        raise UsageError(
            f"{shown}: this is no output of nccl-tests",
            hint="make one: all_reduce_perf -b 1M -e 8G -f 2 > FILE",
        )
    fitting = [table for table in tables if table.operation == "all_reduce"]
    if not fitting:
        unknown = all(table.operation is None for table in tables)
        raise UsageError(
            f"{shown}: {'no line tells which operation was measured' if unknown else ''}"
            + ("" if unknown else f"{tables[-1].operation} was measured, not all_reduce"),
            hint="a forecast is of all_reduce: all_reduce_perf -b 1M -e 8G -f 2 > FILE",
        )
    return fitting[-1]


def _check(table: Table, found: Forecast, shown: str) -> None:
    if table.mixed:
        raise UsageError(
            f"{shown}: several tests wrote at once, so their rows cannot be told apart"
        )
    ranks = len(table.ranks)
    # Builds without MPI list one device in JSON, whatever their number.
    if ranks > 1 and ranks != found.ranks:
        nodes = len({one.host for one in table.ranks})
        raise UsageError(
            f"{shown}: {ranks} GPUs took part, and the forecast is of {found.ranks}",
            hint=f"--nodes {nodes} --gpus {ranks // nodes}" if ranks % nodes == 0 else None,
        )


def _point(size: int, rate: float, found: Estimate) -> Point:
    point, low, high = found.at(size)
    return Point(size=size, measured=rate, forecast=point, low=low, high=high)


_USUAL = {
    Limit.NICS: (Cause.GDR_OFF, Cause.IB_SETUP),
    Limit.HOST: (Cause.NVLS, Cause.GDR_OFF),
    Limit.NVLINK: (Cause.NVLINK_OFF,),
    Limit.BRIDGE: (Cause.NVLINK_OFF, Cause.P2P_OFF),
    Limit.PCIE: (Cause.P2P_OFF,),
    Limit.MEMORY: (Cause.SHM_FULL,),
    Limit.NETWORK: (Cause.NO_INTERFACE,),
}
"""What usually makes a job slower than forecast, by what limits it."""


def _causes(text: str, verdict: Point, found: Estimate) -> tuple[Advice, ...]:
    """What NCCL itself complains of in the log, else what usually is the cause; none if inside."""
    if verdict.measured >= verdict.low:
        return ()
    reader = Reader()
    for line in text.splitlines():
        reader.feed(line, "", ends=True)
    complaints = reader.report().complaints
    said = [advice_on(one.text) for one in complaints]
    own = tuple(dict.fromkeys(one for one in said if one is not None))
    if own:
        return own
    usual: Sequence[Cause] = _USUAL[found.limited_by]
    if found.regime is Regime.NVLS:
        usual = (Cause.NVLS, *usual)
    return tuple(map(advice_for, usual))
