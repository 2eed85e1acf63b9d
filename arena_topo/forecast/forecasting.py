"""The bandwidth of NCCL on GPUs of a machine, alone or on several equal ones; its logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from arena_topo.bandwidth import Estimate, Host, Limit, NotModelled, Regime, Wire
from arena_topo.bandwidth.nics import UNMEASURED
from arena_topo.bandwidth.several_hosts import estimate
from arena_topo.errors import UsageError
from arena_topo.files import STDIN, opened
from arena_topo.forecast import ForecastRequest, PoolRequest
from arena_topo.job import PodShape, StepTime, check_step
from arena_topo.nccl import ComplaintCause
from arena_topo.nccl.bandwidth_tables import BandwidthTable, tables_in
from arena_topo.nccl.complaints import Advice, advice_for, advice_on
from arena_topo.nccl.line_parser import NcclReader
from arena_topo.numbers import parse_count
from arena_topo.solver import Request
from arena_topo.topology import (
    Cluster,
    GPUSet,
    Machine,
    Node,
    NodeName,
    PoolRates,
    Software,
    behind_nvswitch,
    count,
    gpu_set,
    in_pool,
    members,
)
from arena_topo.topology.models import MODELS, model_of
from arena_topo.topology.nics import NICs, parse_nics
from arena_topo.training import Workload, workload_on

MAX_FORECAST_NODES = 10_000
"""The most nodes of a forecast."""

ALIKE = 3
"""Nodes of a job from which more nodes no longer change which of their GPUs are best."""

MAX_LOG_BYTES = 50_000_000
"""The size limit of a log in bytes."""

MESSAGE_SIZES = tuple(sorted({1 << power for power in range(20, 34)} | {25 << 20}))
"""Bytes whose shares are shown: 1 MiB to 8 GiB, and PyTorch's bucket of 25 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A forecast and its GPUs; `estimate` is None for a single GPU, which has no bandwidth.

    `workload` is the training that the request names, with the source of its single-GPU step.
    """

    request: ForecastRequest
    machine: Machine
    gpus: GPUSet
    hosts: int
    estimate: Estimate | None
    workload: tuple[Workload, str] | None = None
    notes: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        """GPUs of the whole job."""
        return self.request.nodes * count(self.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSize:
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
class LogComparison:
    """A log beside a forecast, by size, the largest last; `causes` may explain the difference."""

    points: tuple[MeasuredSize, ...]
    causes: tuple[Advice, ...]


def forecast(
    machine: Machine, request: ForecastRequest, pools: Sequence[PoolRates] = ()
) -> Forecast:
    """The forecast for these GPUs of `request.nodes` equal machines; UsageError if invalid.

    The first of `pools` that fits counts; one has to.
    """
    size, notes = len(machine.gpus), []
    number = size if request.gpus is None else request.gpus
    if not 1 <= request.nodes <= MAX_FORECAST_NODES:
        raise UsageError(
            f"--nodes {request.nodes}: a forecast is of 1 to {MAX_FORECAST_NODES:,} nodes"
        )
    if not 1 <= number <= size:
        raise UsageError(f"--gpus {number}: {machine.name} has {size} GPUs")
    machine = in_pool(machine_for(machine, request, nodes=request.nodes), pools)
    if pools and machine.pool is None:
        pool = pools[0]
        raise UsageError(
            f"calibration {pool.name} is of machines with {pool.gpus} x {pool.model or 'GPU'}, and"
            f" {machine.name} has {size} x {machine.model or 'GPU'}"
        )
    if machine.software.plugin in UNMEASURED:
        notes.append(f"no measured rows of plug-in {machine.software.plugin}: the range is wider")
    if request.chosen:
        gpus = _chosen(machine, request.chosen)
    else:
        gpus, proven = _best(machine, number, request)
        if not proven:
            notes.append("too many sets of GPUs to compare them all; --set names others")
    machines = [replace(machine, name=f"{machine.name}-{node}") for node in range(request.nodes)]
    model = MODELS.get(machine.model or "")
    if request.pod_shape is PodShape.SEPARATE:
        hosts = [Host.of(node, gpu_set([gpu])) for node in machines for gpu in members(gpus)]
    elif model and model.domain and machine.nvswitch and machine.software.p2p and request.nodes > 1:
        joined = max(1, model.domain // size)
        notes.append(f"NVLink joins {joined} such nodes: NCCL takes them for one host")
        hosts = [
            Host(parts=tuple((node, gpus) for node in machines[start : start + joined]))
            for start in range(0, len(machines), joined)
        ]
    else:
        hosts = [Host.of(node, gpus) for node in machines]
    try:
        value = estimate(hosts, algorithm=request.algorithm, wire=_wire(machine, request))
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
        workload=workload_for(machine, request),
        notes=tuple(notes),
    )


def machine_for(machine: Machine, request: PoolRequest, *, nodes: int) -> Machine:
    """The machine with the GPU model, the NICs and the software of the request."""
    machine = _with_model(_with_software(machine, request), request.gpu_model)
    return _with_nics(machine, request, nodes)


def workload_for(
    machine: Machine, request: PoolRequest, *, solo: bool = False
) -> tuple[Workload, str] | None:
    """The training of the request on one of these GPUs; UsageError if its step is not known.

    With `solo` its step was measured elsewhere, and need not be known.
    """
    name, size, step = request.workload, request.gradient_bytes, request.step_time
    if solo and step is None and (name or size):
        step = StepTime(text="1s")
    check_step(step, name, size)
    if not name and size is None:
        return None
    return workload_on(
        machine.model,
        name=name,
        batch=request.batch,
        gradient_bytes=None if size is None else size.bytes,
        step=None if step is None else step.seconds,
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


def _with_software(machine: Machine, request: PoolRequest) -> Machine:
    """The machine with what the command line says of its software beside what its site does."""
    requested = Software(p2p=not request.no_p2p, gdr=not request.no_gdr, plugin=request.plugin)
    software = machine.software.beside(requested)
    return machine if software == machine.software else replace(machine, software=software)


def _with_nics(machine: Machine, request: PoolRequest, nodes: int) -> Machine:
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
    if nodes == 1:
        # It is unknown whether the pods of a single node have RDMA.
        unknown = machine.nics_assumed and not any(nic.speed for nic in machine.nics)
        return replace(machine, nics=(), nics_assumed="") if unknown else machine
    if machine.nics or known is None or known.nic is None:
        return machine
    return NICs(number=len(machine.gpus), speed=None).of(machine)


def _chosen(machine: Machine, text: str) -> GPUSet:
    """The GPUs of --set, without repetition."""
    indexes = [parse_count(index.strip()) for index in text.split(",")]
    valid = {index for index in indexes if index is not None and index < len(machine.gpus)}
    twice = [index for index in indexes if indexes.count(index) > 1 and index in valid]
    if len(valid) < len(indexes):
        last = len(machine.gpus) - 1
        problem = f"GPU {twice[0]} is named twice" if twice else f"{machine.name} has no such GPUs"
        raise UsageError(
            f"--set {text}: {problem}",
            hint=f"name some of 0 to {last}, each once: 0,1,2,3",
        )
    return gpu_set(valid)


def _best(machine: Machine, number: int, request: ForecastRequest) -> tuple[GPUSet, bool]:
    """The GPUs that the solver chooses on each of the nodes, and whether it has proven them best.

    Each node gets a pod of all its GPUs, or as many pods as GPUs.
    """
    if number == len(machine.gpus):
        return machine.everything, True
    from arena_topo.solver.door import Solver  # noqa: PLC0415 - only to choose

    separate = request.pod_shape is PodShape.SEPARATE
    pods, size = (number, 1) if separate else (1, number)
    nodes = tuple(
        Node(name=NodeName(f"{machine.name}-{at}"), machine=machine, free=machine.everything)
        for at in range(min(request.nodes, ALIKE))
    )
    placement = Solver(Cluster(nodes=nodes)).place(
        Request(
            workers=pods * len(nodes),
            gpus=size,
            per_node=pods,
            joined=not separate,
            wire=_wire(machine, request),
        )
    )
    first = placement.nodes[0]
    chosen = [gpu for pod in placement.assignments if pod.node == first for gpu in pod.gpus]
    return gpu_set(chosen), placement.proof.optimal


def _wire(machine: Machine, request: ForecastRequest) -> Wire:
    """What joins the nodes: RDMA if there are NICs, unless TCP is asked for."""
    return Wire.TCP if request.tcp or not machine.nics else Wire.RDMA


# ---------------------------------------------------------------- beside a log


def against(result: Forecast, source: str) -> LogComparison:
    """A log of nccl-tests beside a forecast; UsageError if no table fits."""
    shown = "standard input" if source == STDIN else source
    if result.estimate is None:
        raise UsageError("--against needs two GPUs or more", why="one GPU alone has no bandwidth")
    text = log_text(source)
    points = tuple(
        MeasuredSize(size=row.size, measured=row.rate, forecast=point, low=low, high=high)
        for row in sorted(_table(text, result, shown).rows, key=lambda row: row.size)
        if row.rate and row.size >= MESSAGE_SIZES[0]
        for point, low, high in [result.estimate.at(row.size)]
    )
    if not points:
        raise UsageError(
            f"{shown}: no size from 1 MiB on",
            why="smaller messages measure latency and not bandwidth",
            hint=_MAKE,
        )
    causes = _causes(text, result.estimate) if points[-1].verdict == "below" else ()
    return LogComparison(points=points, causes=causes)


_MAKE = "make one: all_reduce_perf -b 1M -e 8G -f 2 > FILE"


def log_text(source: str) -> str:
    """The text of a log (`-`: standard input); UsageError if it cannot be read."""
    shown = "standard input" if source == STDIN else source
    try:
        with opened(source) as file:
            data = file.read(MAX_LOG_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {shown}", why=error.strerror) from error
    if len(data) > MAX_LOG_BYTES:
        raise UsageError(f"{shown}: more than {MAX_LOG_BYTES // 1_000_000} MB are no log of a test")
    return data.decode(errors="replace")


def _table(text: str, result: Forecast, shown: str) -> BandwidthTable:
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
    Limit.NICS: (ComplaintCause.GDR_OFF, ComplaintCause.IB_SETUP),
    Limit.HOST: (ComplaintCause.NVLS, ComplaintCause.GDR_OFF),
    Limit.NVLINK: (ComplaintCause.NVLINK_OFF,),
    Limit.BRIDGE: (ComplaintCause.NVLINK_OFF, ComplaintCause.P2P_OFF),
    Limit.PCIE: (ComplaintCause.P2P_OFF,),
    Limit.MEMORY: (ComplaintCause.SHM_FULL,),
    Limit.NETWORK: (ComplaintCause.NO_INTERFACE,),
}
"""The usual causes of a job slower than forecast, by the limit of its bandwidth."""


def _causes(text: str, estimated: Estimate) -> tuple[Advice, ...]:
    """NCCL's own complaints in the log, else the usual causes."""
    reader = NcclReader()
    reader.feed_all(text.splitlines())
    advice = [advice_on(complaint.text) for complaint in reader.report().complaints]
    if own := tuple(dict.fromkeys(entry for entry in advice if entry is not None)):
        return own
    first = (ComplaintCause.NVLS,) if estimated.regime is Regime.NVLS else ()
    return tuple(map(advice_for, (*first, *_USUAL[estimated.limited_by])))
