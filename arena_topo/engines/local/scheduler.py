"""The scheduler of local jobs: their machines, free GPUs, and a FIFO queue with a reservation.

A job gets all its GPUs at once and exclusively. The job that has waited longest reserves the GPUs
of its best placement on the empty machines; younger jobs may only use other GPUs.
"""

from __future__ import annotations

import re
import socket
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from arena_topo.engines.local import processes
from arena_topo.errors import ArenaError, UnreadableTopology
from arena_topo.manifests import Binding, Forecast, Guarantee
from arena_topo.solver import NODE_TIER, Unplaceable, Verdict
from arena_topo.topology import (
    Cluster,
    GPUSet,
    Machine,
    Node,
    NodeName,
    gpu_set,
    nvidia,
)
from arena_topo.topology.models import model_of

if TYPE_CHECKING:
    from arena_topo.engines.local.store import Job, Submission

DEFAULT_EMULATION = "dgx-1-v100:2"
"""The machines that are emulated where there are no GPUs: those of the published example."""

BINDING = "local"

HOLDS = Binding(name=BINDING, guarantee=Guarantee.GPUS, separate=False)
"""Each worker gets its GPUs, and all share this machine's host id and /dev/shm."""


def host() -> str:
    """The name of this machine."""
    return socket.gethostname()


def is_here(job: Job) -> bool:
    """Whether a job runs on this machine, which may have been renamed since.

    The state folder may be shared: by machines with a common home folder, and by containers of one
    machine, which see each other's supervisors by their locks.
    """
    supervisor = job.state.supervisor
    booted = supervisor is not None and supervisor.boot == processes.boot()
    return booted or job.submission.host == host()


def emulation(asked: str | None, environment: Mapping[str, str]) -> str | None:
    """The machines to emulate, as asked for; else the default where this machine has no GPUs."""
    chosen = asked or environment.get("ARENA_TOPO_EMULATE")
    if chosen:
        return chosen
    try:
        this_machine()
    except _Silent:
        return DEFAULT_EMULATION
    return None


def machines(emulate: str | None) -> Cluster:
    """The machines with all their GPUs free; ArenaError if this one has lost its GPUs."""
    if emulate is not None:
        from arena_topo.topology import presets  # noqa: PLC0415  not needed on a real machine

        return _cluster(presets.emulated(emulate), emulated=True, source=f"emulated {emulate}")
    found = this_machine()
    return _cluster((found,), emulated=False, source=f"this machine ({found.name})")


def _cluster(found: Iterable[Machine], *, emulated: bool, source: str) -> Cluster:
    return Cluster(
        nodes=tuple(
            Node(
                name=NodeName(machine.name),
                machine=machine,
                free=machine.everything,
                allocatable=machine.everything,
                # No other scheduler is known to give out these GPUs.
                dedicated=True,
            )
            for machine in found
        ),
        emulated=emulated,
        source=source,
    )


@cache
def this_machine() -> Machine:
    """This machine; ArenaError without GPUs.

    Only an answer with GPUs is cached: asking takes seconds on large machines, but a driver that
    lists no GPUs may list them a moment later.
    """
    found = look()
    if isinstance(found, Machine):
        return found
    raise _Silent(
        "this machine has no GPUs that NVML or nvidia-smi can list",
        hint=f"nvidia-smi tells more; --emulate {DEFAULT_EMULATION} works anywhere",
    )


def look() -> Machine | tuple[str, ...]:
    """This machine as NVML describes it, else nvidia-smi; or why neither does."""
    reasons = []
    for ask in (_nvml, _nvidia_smi):
        try:
            return ask()
        except _Silent as silent:
            reasons.append(silent.message)
    return tuple(reasons)


INFINIBAND = Path("/sys/class/infiniband")
"""Where Linux lists the devices of RDMA (Documentation/ABI/stable/sysfs-class-infiniband)."""


def with_nics(machine: Machine) -> Machine:
    """This machine with the NICs that nvidia-smi lists, and the speed of their active ports.

    NVML lists no NICs. The speed of a NIC without an active port is unknown.
    """
    if not machine.nics:
        try:
            listed = nvidia.parse_topo(_asked("topo", "-m"))
        except (_Silent, UnreadableTopology):
            return machine
        if len(listed.gpus) != len(machine.gpus):
            return machine
        machine = replace(machine, nics=listed.nics)
    return replace(
        machine,
        nics=tuple(replace(nic, speed=_speed(INFINIBAND / nic.name)) for nic in machine.nics),
    )


def _speed(device: Path) -> float | None:
    """The GB/s of all active ports of a device together; None without an active port."""
    total = 0.0
    for port in device.glob("ports/*"):
        try:
            active = "ACTIVE" in (port / "state").read_text(encoding="utf-8")
            rate = re.match(r"(\d+(?:\.\d+)?) Gb/sec", (port / "rate").read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            continue
        if active and rate:
            total += float(rate[1]) / 8
    return total or None


def _nvml() -> Machine:
    try:
        import pynvml
    except ImportError:
        raise _Silent("the Python package nvidia-ml-py is not installed") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise _Silent(f"NVML: {error}") from error
    try:
        machine = nvidia.from_nvml(pynvml, host())
    finally:
        pynvml.nvmlShutdown()
    if not machine.gpus:
        raise _Silent("NVML lists no GPUs")
    return machine


def _nvidia_smi() -> Machine:
    listing = _asked("--query-gpu=index,uuid,name", "--format=csv,noheader")
    matrix = _asked("topo", "-m")
    rows = [line.split(", ", 2) for line in listing.splitlines() if line.count(", ") > 1]
    if not rows:
        raise _Silent("nvidia-smi lists no GPUs")
    machine = nvidia.parse_topo(matrix, name=host(), model=rows[0][2])
    known = {index: (uuid, product) for index, uuid, product in rows}
    if known.keys() != {str(gpu.index) for gpu in machine.gpus}:
        return machine
    gpus = tuple(
        replace(gpu, uuid=known[str(gpu.index)][0], model=model_of(known[str(gpu.index)][1]))
        for gpu in machine.gpus
    )
    return replace(machine, gpus=gpus)


class _Silent(ArenaError):
    """NVML or nvidia-smi is missing or fails."""


def _asked(*words: str) -> str:
    try:
        done = subprocess.run(
            ["nvidia-smi", *words],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=30,
            check=False,
        )
    except FileNotFoundError:
        raise _Silent("nvidia-smi is not on the PATH") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise _Silent(f"nvidia-smi: {error}") from None
    if done.returncode:
        said = (done.stderr + done.stdout).strip().partition("\n")[0]
        raise _Silent(f"nvidia-smi: {said or f'it ended with {done.returncode}'}")
    return done.stdout


def minus(cluster: Cluster, taken: Mapping[str, int]) -> Cluster:
    """The machines without the GPUs that are taken (bits by node)."""
    return replace(
        cluster,
        nodes=tuple(
            replace(node, free=GPUSet(node.free & ~taken.get(node.name, 0)))
            for node in cluster.nodes
        ),
    )


def taken(jobs: Iterable[Job]) -> dict[str, int]:
    """The GPUs that jobs have on this machine and the emulated machines: bitmaps by node."""
    return _bits(present(job) for job in jobs if job.holding and is_here(job))


def present(job: Job) -> Forecast:
    """The placement of a job; a renamed machine has its new name in it."""
    asked, forecast = job.submission, job.state.forecast
    if asked.emulate is not None or asked.host == host() or not is_here(job):
        return forecast
    return structs.replace(
        forecast, workers=tuple((worker, host(), gpus) for worker, _, gpus in forecast.workers)
    )


def _bits(forecasts: Iterable[Forecast]) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for forecast in forecasts:
        for _, node, gpus in forecast.workers:
            found[node] |= gpu_set(gpus)
    return found


def schedule(job: Job, jobs: Iterable[Job]) -> Forecast:
    """The placement that a job gets now; Unplaceable gives the reason if it must wait.

    `jobs` are all jobs, oldest first; the caller holds the lock.
    """
    here = [one for one in jobs if is_here(one)]
    cluster = machines(job.submission.emulate)
    now = minus(cluster, taken(one for one in here if one.submission.uid != job.submission.uid))
    head = _head(job, here, cluster)
    if head is None:
        return choose(job.submission, now)
    older, reserved = head
    try:
        return choose(job.submission, minus(now, reserved))
    except Unplaceable as refused:
        try:
            choose(job.submission, now)
        except Unplaceable:
            raise refused from None
        raise Unplaceable(
            f"{older.submission.name} has waited longer and comes first",
            verdict=Verdict.NOT_NOW,
            refusals=(),
        ) from None


def check_restart(job: Job, jobs: Iterable[Job]) -> None:
    """Unplaceable if a job that has GPUs would not start at once after a suspension.

    `jobs` are all jobs, oldest first. While the job is suspended, waiting jobs may take its GPUs.
    """
    after, started = list(jobs), []
    for index, other in enumerate(after):
        if other.waiting and is_here(other):
            others = [one for one in after if not one.same(job)]
            with suppress(Unplaceable):
                state = other.changed(forecast=schedule(other, others))
                after[index] = structs.replace(other, state=state)
                started.append(other.submission.name)
    try:
        schedule(job, after)
    except Unplaceable as refused:
        if refused.verdict is Verdict.NEVER or not started:
            raise
        raise Unplaceable(
            f"{started[0]} waits and would start on its GPUs",
            verdict=Verdict.NOT_NOW,
            refusals=(),
        ) from None


def _head(job: Job, jobs: Iterable[Job], cluster: Cluster) -> tuple[Job, dict[str, int]] | None:
    """The head of the queue, if it is older than a job, and the GPUs that it reserves."""
    for other in jobs:
        if other.submission.uid == job.submission.uid:
            return None
        if other.waiting and other.submission.emulate == job.submission.emulate:
            # A job that never fits reserves nothing.
            with suppress(Unplaceable):
                return other, _bits([choose(other.submission, cluster)])
    return None


def choose(submission: Submission, cluster: Cluster) -> Forecast:
    """The best placement of a job on what is free; Unplaceable if there is none.

    GPUs that are only counted are taken node by node, lowest indexes first.
    """
    from arena_topo.manifests.forecast import forecast_of  # noqa: PLC0415  loads the solver
    from arena_topo.solver import Solver  # noqa: PLC0415

    solver = Solver(cluster)
    if submission.request is not None:
        return forecast_of(solver.place(submission.request), cluster, HOLDS)
    if not submission.gpus:
        node = str(cluster.nodes[0].name)
        workers = tuple((worker, node, ()) for worker in range(submission.workers))
        return Forecast(state="placed", workers=workers, tier=NODE_TIER, emulated=cluster.emulated)
    found = solver.first_fit(submission.counted)
    if found is None:
        raise solver.explain(submission.counted)
    # Nothing was searched for, so nothing is proven.
    return structs.replace(forecast_of(found, cluster, HOLDS), optimal=None)


def visible_devices(cluster: Cluster, node: str, gpus: Iterable[int]) -> str:
    """The value of CUDA_VISIBLE_DEVICES for these GPUs: UUIDs where known, else indexes."""
    known: dict[int, Any] = {
        gpu.index: gpu.uuid or gpu.index
        for one in cluster.nodes
        if one.name == node
        for gpu in one.machine.gpus
    }
    return ",".join(str(known.get(index, index)) for index in gpus)
