"""Which GPUs there are for local jobs, who has them, and whose turn it is.

The same few rules for everyone who starts a job (design, section 5, "Fairness"): a job gets all its
GPUs at once and has them alone; the job that has waited longest reserves the GPUs of its best
placement on the machines as if they were empty, and younger ones may only use others.
"""

from __future__ import annotations

import re
import socket
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from arena_topo import solver
from arena_topo.bandwidth import Estimate, Wire
from arena_topo.engines import Phase
from arena_topo.engines.local import processes
from arena_topo.engines.local.ledger import Entry, Submission
from arena_topo.errors import ArenaError, UnreadableTopology
from arena_topo.manifests import Binding, Forecast, Guarantee
from arena_topo.solver import (
    UNLIMITED,
    Assignment,
    Placement,
    Request,
    Unplaceable,
    Verdict,
)
from arena_topo.topology import (
    Cluster,
    GPUSet,
    Machine,
    Node,
    NodeName,
    gpu_set,
    members,
    nvidia,
)
from arena_topo.topology.models import model_of

DEFAULT_EMULATION = "dgx-1-v100:2"
"""What is pretended where there are no GPUs: the cluster of the published example."""

BINDING = "local"

HOLDS = Binding(name=BINDING, guarantee=Guarantee.GPUS, separate=False)
"""Each worker gets its GPUs, and all share this machine's host id and /dev/shm."""

Free = Callable[[str | None], Cluster]
"""Gives the machines that a job may use, all free: this one for None, else the emulated ones."""


def host() -> str:
    """The name of this machine."""
    return socket.gethostname()


def is_here(entry: Entry) -> bool:
    """Whether a job is one of this machine, which may have another name by now.

    Machines that share a home folder have names of their own, and so have containers of one
    machine; the processes of a job are seen only where it runs, and a held job has none.
    """
    if entry.submission.host == host():
        return True
    supervisor = entry.record.supervisor
    if supervisor is None or supervisor.boot != processes.boot():
        return False
    held = entry.record.phase is Phase.SUSPENDED
    return held or processes.alive(supervisor) or bool(processes.of_job(entry.submission.uid))


def emulation(asked: str | None, environment: Mapping[str, str]) -> str | None:
    """What to emulate: what was asked for, else the default where this machine has no GPUs."""
    chosen = asked or environment.get("ARENA_TOPO_EMULATE")
    if chosen:
        return chosen
    return None if this_machine() is not None else DEFAULT_EMULATION


def machines(emulate: str | None) -> Cluster:
    """The machines with all their GPUs free; ArenaError if this one has lost its GPUs."""
    if emulate is not None:
        from arena_topo.topology import presets  # noqa: PLC0415  not needed on a real machine

        return _cluster(presets.emulated(emulate), emulated=True, source=f"emulated {emulate}")
    found = this_machine()
    if found is None:
        raise ArenaError(
            "this machine has no GPUs that NVML or nvidia-smi can list",
            hint=f"nvidia-smi tells more; --emulate {DEFAULT_EMULATION} works anywhere",
        )
    return _cluster((found,), emulated=False, source=f"this machine ({found.name})")


def _cluster(found: Iterable[Machine], *, emulated: bool, source: str) -> Cluster:
    return Cluster(
        nodes=tuple(
            Node(
                name=NodeName(machine.name),
                machine=machine,
                free=machine.everything,
                allocatable=machine.everything,
                # Only jobs of this engine run here as far as it knows, so it gives out devices.
                dedicated=True,
            )
            for machine in found
        ),
        emulated=emulated,
        source=source,
    )


@cache
def this_machine() -> Machine | None:
    """This machine, if it has GPUs; asked once, since asking takes seconds on large ones."""
    found = look()
    return found if isinstance(found, Machine) else None


def look() -> Machine | tuple[str, ...]:
    """This machine as NVML tells it, else nvidia-smi; or why each of them does not."""
    reasons = []
    for ask in (_nvml, _nvidia_smi):
        found = ask()
        if isinstance(found, Machine):
            return found
        reasons.append(found)
    return tuple(reasons)


INFINIBAND = Path("/sys/class/infiniband")
"""Where Linux lists the devices of RDMA (Documentation/ABI/stable/sysfs-class-infiniband)."""


def with_nics(machine: Machine) -> Machine:
    """This machine with its NICs, as far as nvidia-smi lists them, and what their ports reach.

    NVML knows of no NIC. A NIC with no active port keeps an unknown speed.
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
    """GB/s that the active ports of a device reach together; None where none is active."""
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


def _nvml() -> Machine | str:
    try:
        import pynvml
    except ImportError:
        return "the Python package nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return f"NVML: {error}"
    try:
        machine = nvidia.from_nvml(pynvml, host())
    finally:
        pynvml.nvmlShutdown()
    return machine if machine.gpus else "NVML lists no GPUs"


def _nvidia_smi() -> Machine | str:
    try:
        listing = _asked("--query-gpu=index,uuid,name", "--format=csv,noheader")
        matrix = _asked("topo", "-m")
    except _Silent as silent:
        return silent.message
    rows = [line.split(", ", 2) for line in listing.splitlines() if line.count(", ") > 1]
    if not rows:
        return "nvidia-smi lists no GPUs"
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
    """nvidia-smi is missing, or has nothing to say."""


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


def less(cluster: Cluster, taken: Mapping[str, int]) -> Cluster:
    """The machines without the GPUs that are taken."""
    return replace(
        cluster,
        nodes=tuple(
            replace(node, free=GPUSet(node.free & ~taken.get(node.name, 0)))
            for node in cluster.nodes
        ),
    )


def held(entries: Iterable[Entry]) -> dict[str, int]:
    """The GPUs that jobs have on this machine and the emulated ones, as bits by node."""
    return _bits(present(entry) for entry in entries if entry.holding and is_here(entry))


def present(entry: Entry) -> Forecast:
    """Where a job is; on this machine by the name that the machine has now."""
    job, forecast = entry.submission, entry.record.forecast
    if job.emulate is not None or job.host == host() or not is_here(entry):
        return forecast
    return replace(
        forecast, workers=tuple((worker, host(), gpus) for worker, _, gpus in forecast.workers)
    )


def _bits(forecasts: Iterable[Forecast]) -> dict[str, int]:
    taken: dict[str, int] = defaultdict(int)
    for forecast in forecasts:
        for _, node, gpus in forecast.workers:
            taken[node] |= gpu_set(gpus)
    return taken


def seat(
    entry: Entry, entries: Iterable[Entry], free: Free, *, wish: Placement | None = None
) -> Forecast:
    """Where a job goes now; Unplaceable says in a sentence why it must wait.

    `entries` are all jobs as they stand; the caller holds the lock. `wish` is a placement that was
    found best a moment ago: it is taken if its GPUs are free.
    """
    here = [one for one in entries if is_here(one)]
    cluster = free(entry.submission.emulate)
    others = [one for one in here if one.submission.uid != entry.submission.uid]
    now = less(cluster, held(others))
    head = _head(entry, here, free)
    if head is None:
        return _chosen(entry.submission, now, wish)
    older, reserved = head
    try:
        return _chosen(entry.submission, less(now, reserved), wish)
    except Unplaceable as refused:
        try:
            choose(entry.submission, now)
        except Unplaceable:
            raise refused from None
        raise Unplaceable(
            f"{older.submission.name} has waited longer and comes first",
            verdict=Verdict.NOT_NOW,
            refusals=(),
        ) from None


def _head(
    entry: Entry, entries: Iterable[Entry], free: Free
) -> tuple[Entry, dict[str, int]] | None:
    """The job that has waited longest, if it is an older one, and what it reserves."""
    for other in entries:
        if other.submission.uid == entry.submission.uid:
            return None
        if not other.waiting or other.submission.emulate != entry.submission.emulate:
            continue
        try:
            best = choose(other.submission, free(other.submission.emulate))
        except Unplaceable:
            # It will never fit, so it holds up nobody.
            continue
        return other, _bits([best])
    return None


def choose(submission: Submission, cluster: Cluster) -> Forecast:
    """The best place for a job on what is free; Unplaceable if there is none."""
    if submission.request is None:
        assignments = _counted(submission, cluster)
        return _forecast(cluster, assignments, _worth(submission, cluster, assignments))
    # The search is loaded when something is placed: most commands only look.
    return _promised(cluster, solver.Solver(cluster).place(submission.request))


def _chosen(submission: Submission, cluster: Cluster, wish: Placement | None) -> Forecast:
    if wish is not None and _is_free(wish, cluster):
        return _promised(cluster, wish)
    return choose(submission, cluster)


def _promised(cluster: Cluster, found: Placement) -> Forecast:
    return _forecast(cluster, found.assignments, found.bandwidth, found)


def _is_free(wish: Placement, cluster: Cluster) -> bool:
    free = {node.name: node.free for node in cluster.nodes}
    return all(
        one.gpus and not gpu_set(one.gpus) & ~free.get(one.node, 0) for one in wish.assignments
    )


def _counted(submission: Submission, cluster: Cluster) -> tuple[Assignment, ...]:
    """GPUs by count: each worker on the first node with enough of them, lowest indexes first."""
    free = {node.name: list(members(node.free)) for node in cluster.nodes}
    assignments = []
    for worker in range(submission.workers):
        node = next((name for name in free if len(free[name]) >= submission.gpus), None)
        if node is None:
            # Workers are all alike, so they fit by count exactly where the solver finds a place.
            request = Request(workers=submission.workers, gpus=submission.gpus, mix_models=True)
            raise solver.Solver(cluster).explain(request)
        gpus, free[node] = free[node][: submission.gpus], free[node][submission.gpus :]
        assignments.append(Assignment(worker=worker, node=node, gpus=tuple(gpus)))
    return tuple(assignments)


def _worth(
    submission: Submission, cluster: Cluster, assignments: Iterable[Assignment]
) -> Estimate | None:
    """The bandwidth among the GPUs of a placement that was not chosen for it."""
    seats = [(one.node, one.gpus) for one in assignments if one.gpus]
    if not seats:
        return None
    asked = Request(workers=len(seats), gpus=submission.gpus, wire=Wire.RDMA)
    return solver.Solver(cluster).value(asked, seats).bandwidth


def _forecast(
    cluster: Cluster,
    assignments: Iterable[Assignment],
    bandwidth: Estimate | None,
    placement: Placement | None = None,
) -> Forecast:
    workers = tuple((one.worker, str(one.node), one.gpus) for one in assignments)
    nodes = {node for _, node, _ in workers}
    proof = placement.proof if placement else None
    some = any(gpus for _, _, gpus in workers)
    return Forecast(
        state="placed",
        workers=workers,
        # The processes of one machine are one host for NCCL.
        bus_bandwidth=bandwidth.point if bandwidth else None,
        usable=bandwidth.point if bandwidth else None,
        low=bandwidth.low if bandwidth else None,
        high=bandwidth.high if bandwidth else None,
        regime=str(bandwidth.regime) if bandwidth else None,
        limited_by=str(bandwidth.limited_by) if bandwidth else None,
        tier=placement.tier if placement else "node" if len(nodes) == 1 else "beyond",
        binding=BINDING if some else None,
        guarantee=Guarantee.GPUS.value if some else None,
        optimal=proof.optimal if proof else None,
        bound=proof.bound if proof and proof.bound != UNLIMITED else None,
        emulated=cluster.emulated,
        assumed=bandwidth is not None and bool(bandwidth.assumed),
    )


def visible(cluster: Cluster, node: str, gpus: Iterable[int]) -> str:
    """What CUDA_VISIBLE_DEVICES says for these GPUs: UUIDs where they are known, else indexes."""
    known: dict[int, Any] = {
        gpu.index: gpu.uuid or gpu.index
        for one in cluster.nodes
        if one.name == node
        for gpu in one.machine.gpus
    }
    return ",".join(str(known.get(index, index)) for index in gpus)
