"""The scheduler of local jobs: their machines, free GPUs, and their queue.

A job gets all its GPUs at once and exclusively. Its turn comes as for the gangs of a cluster, by
the rule in `queueing`, but for priorities, which do not count here.
"""

from __future__ import annotations

import re
import socket
import subprocess
import time
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
from arena_topo.manifests import Binding, Guarantee, PlacementForecast
from arena_topo.manifests.cause import Cause, CauseCode, because, in_words, patience_cause
from arena_topo.solver import UNCONSTRAINED, Constraint, Unplaceable, Verdict
from arena_topo.topology import (
    NODE_TIER,
    Cluster,
    GPUSet,
    Holding,
    Machine,
    Node,
    count,
    gpu_set,
    idle_node,
    members,
    nvidia,
)
from arena_topo.topology.models import model_of

if TYPE_CHECKING:
    from arena_topo.engines.local.store import Job, StoredRequest
    from arena_topo.manifests.forecast import Move
    from arena_topo.queueing import Waiting
    from arena_topo.queueing.reservation import QueueHead

DEFAULT_EMULATION = "dgx-1-v100:2"
"""The machines that are emulated where there are no GPUs: those of the published example."""

BINDING = "local"

LOCAL_BINDING = Binding(name=BINDING, guarantee=Guarantee.GPUS, separate=False)
"""Each worker gets its GPUs, and all share this machine's host id and /dev/shm."""


def host() -> str:
    """The name of this machine."""
    return socket.gethostname()


def is_here(job: Job) -> bool:
    """Whether a job runs on this machine, which may have been renamed since.

    No job runs where processes cannot be seen. The state folder may be shared: by machines with a
    common home folder, and by containers of one machine, which see each other's supervisors by
    their locks.
    """
    if not processes.processes_visible():
        return False
    supervisor = job.state.supervisor
    booted = supervisor is not None and supervisor.boot == processes.boot_id()
    return booted or job.submission.host == host()


def emulation(wanted: str | None, environment: Mapping[str, str]) -> str | None:
    """The machines to emulate, as asked for; else the default where this machine has no GPUs."""
    chosen = wanted or environment.get("ARENA_TOPO_EMULATE")
    if chosen:
        return chosen
    try:
        this_machine()
    except _Silent:
        return DEFAULT_EMULATION
    return None


def local_machines(emulate: str | None) -> Cluster:
    """The machines with all their GPUs free; ArenaError if this one has lost its GPUs."""
    if emulate is not None:
        from arena_topo.topology import presets  # noqa: PLC0415  not needed on a real machine

        return _cluster(
            presets.emulated_machines(emulate), emulated=True, source=f"emulated {emulate}"
        )
    machine = this_machine()
    return _cluster((machine,), emulated=False, source=f"this machine ({machine.name})")


def _cluster(machines: Iterable[Machine], *, emulated: bool, source: str) -> Cluster:
    return Cluster(
        nodes=tuple(idle_node(machine) for machine in machines),
        emulated=emulated,
        source=source,
    )


@cache
def this_machine() -> Machine:
    """This machine; ArenaError without GPUs.

    Only an answer with GPUs is cached: asking takes seconds on large machines, but a driver that
    lists no GPUs may list them a moment later.
    """
    detected = detect_machine()
    if isinstance(detected, Machine):
        return detected
    raise _Silent(
        "this machine has no GPUs that NVML or nvidia-smi can list",
        hint=f"nvidia-smi tells more; --emulate {DEFAULT_EMULATION} works anywhere",
    )


def detect_machine() -> Machine | tuple[str, ...]:
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


def with_local_nics(machine: Machine) -> Machine:
    """This machine with the NICs that nvidia-smi lists, and the speed of their active ports.

    NVML lists no NICs. The speed of a NIC without an active port is unknown.
    """
    if not machine.nics:
        try:
            listed = nvidia.parse_topo(_nvidia_smi_output("topo", "-m"))
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
        machine = nvidia.machine_from_nvml(pynvml, host())
    finally:
        pynvml.nvmlShutdown()
    if not machine.gpus:
        raise _Silent("NVML lists no GPUs")
    return machine


def _nvidia_smi() -> Machine:
    listing = _nvidia_smi_output("--query-gpu=index,uuid,name", "--format=csv,noheader")
    matrix = _nvidia_smi_output("topo", "-m")
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


def _nvidia_smi_output(*words: str) -> str:
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
        first_line = (done.stderr + done.stdout).strip().partition("\n")[0]
        raise _Silent(f"nvidia-smi: {first_line or f'it ended with {done.returncode}'}")
    return done.stdout


def in_use(cluster: Cluster, jobs: Iterable[Job]) -> Cluster:
    """The machines without the GPUs that jobs have, and with these jobs."""
    holdings: dict[str, list[Holding]] = defaultdict(list)
    for job in jobs:
        if job.holding and is_here(job):
            for name, bits in _bits([current_placement(job)]).items():
                gpus = GPUSet(bits)
                holdings[name].append(Holding(job=_key(job), size=count(gpus), gpus=gpus))

    def used(node: Node) -> Node:
        holders = tuple(holding for holding in holdings.get(node.name, ()) if holding.size)
        taken = gpu_set(gpu for holder in holders for gpu in members(holder.gpus))
        return replace(node, free=GPUSet(node.free & ~taken), holders=holders)

    return replace(cluster, nodes=tuple(map(used, cluster.nodes)))


def _key(job: Job) -> str:
    """The namespace and name of a job, as people write them."""
    return f"{job.submission.namespace}/{job.submission.name}"


def current_placement(job: Job) -> PlacementForecast:
    """The placement of a job; a renamed machine has its new name in it."""
    submission, forecast = job.submission, job.state.forecast
    if submission.emulate is not None or submission.host == host() or not is_here(job):
        return forecast
    return structs.replace(
        forecast, workers=tuple((worker, host(), gpus) for worker, _, gpus in forecast.workers)
    )


def placement_text(forecast: PlacementForecast) -> str:
    """A placement in a few words, such as `dgx-1-v100-0: 0,1,2,3`."""
    nodes: dict[str, list[int]] = {}
    for _, node, gpus in forecast.workers:
        nodes.setdefault(node, []).extend(gpus)
    return "; ".join(
        f"{node}: {','.join(map(str, gpus)) or 'no GPUs'}" for node, gpus in nodes.items()
    )


def _bits(forecasts: Iterable[PlacementForecast]) -> dict[str, int]:
    bitmaps: dict[str, int] = defaultdict(int)
    for forecast in forecasts:
        for _, node, gpus in forecast.workers:
            bitmaps[node] |= gpu_set(gpus)
    return bitmaps


def schedule(job: Job, jobs: Iterable[Job]) -> PlacementForecast:
    """The placement that a job gets now; Unplaceable gives the reason if it must wait.

    `jobs` are all jobs, oldest first; the caller holds the lock.
    """
    jobs = tuple(jobs)
    others = (other for other in jobs if other.submission.uid != job.submission.uid)
    now = in_use(local_machines(job.submission.emulate), others)
    head = local_head(jobs, emulate=job.submission.emulate)
    left = _left(now, head, job)
    try:
        forecast = forecast_on(job.submission, left)
    except Unplaceable as refused:
        if head is None or left is now:
            raise
        try:
            forecast_on(job.submission, now)
        except Unplaceable:
            raise refused from None
        raise _ToWait(because(CauseCode.TURN, job=head.gang.key)) from None
    _check_patience(job, left)
    return forecast


class _ToWait(Unplaceable):
    """A job that fits waits nonetheless: for its turn, or for a better placement."""

    def __init__(self, cause: Cause) -> None:
        self.cause = cause
        super().__init__(str(cause), verdict=Verdict.NOT_NOW, refusals=())


def cause_of(refused: Unplaceable) -> Cause | None:
    """Why a job waits that was refused."""
    return refused.cause if isinstance(refused, _ToWait) else in_words(refused.sentence)


def _check_patience(job: Job, left: Cluster) -> None:
    """Refuse a placement for which a job does not end its wait yet."""
    from arena_topo.queueing.patience import waits_for  # noqa: PLC0415  loads the solver
    from arena_topo.solver.door import Solver  # noqa: PLC0415  as above

    submission, until = job.submission, job.patient_until
    if submission.request is None or time.time() >= until:
        return
    offer = Solver(left).find(submission.request)
    if offer is None:
        return
    best = Solver(local_machines(submission.emulate)).find(submission.request)
    wait = waits_for(submission.request, offer, best, until=until)
    if wait is not None:
        raise _ToWait(patience_cause(wait))


def with_constraint(job: Job, constraint: Constraint) -> Job:
    """A job with this constraint on its placement."""
    submission = job.submission
    if constraint == UNCONSTRAINED:
        return job
    request = constraint.on(submission.request or submission.counted)
    return structs.replace(job, submission=structs.replace(submission, request=request))


def foresee_locally(job: Job, jobs: Iterable[Job], constraint: Constraint) -> Move:
    """Where a job is, and where it would go after a suspension; Unplaceable if it had to wait.

    `jobs` are all jobs, oldest first. While the job is suspended, waiting jobs may take its GPUs.
    """
    from arena_topo.manifests.forecast import Move, where_it_is  # noqa: PLC0415  loads the solver

    submission, after, started = job.submission, list(jobs), list[str]()
    before: PlacementForecast | None = None
    compelled = ""
    if job.holding:
        others = (other for other in after if not other.same(job))
        cluster = in_use(local_machines(submission.emulate), others)
        before = current_placement(job)
        if submission.gpus:
            request = submission.request or submission.counted
            before, compelled = where_it_is(before, request, cluster, LOCAL_BINDING)
        for index, other in enumerate(after):
            if other.waiting and is_here(other):
                rest = [other for other in after if not other.same(job)]
                with suppress(Unplaceable):
                    state = other.changed(forecast=schedule(other, rest))
                    after[index] = structs.replace(other, state=state)
                    started.append(other.submission.name)
    try:
        forecast = schedule(with_constraint(job, constraint), after)
    except Unplaceable as refused:
        if refused.verdict is Verdict.NEVER or not started:
            raise
        raise Unplaceable(
            f"{started[0]} waits and would start on its GPUs",
            verdict=Verdict.NOT_NOW,
            refusals=(),
        ) from None
    return Move(before=before, after=forecast, compelled=compelled)


def machines_left(
    now: Cluster,
    jobs: Iterable[Job],
    *,
    emulate: str | None,
    before: Job | None,
    timeout: float | None = None,
) -> Cluster:
    """The machines as they are now, with the GPUs reserved for the first job that waits.

    `before`: only a job older than that one counts; None for a job that is yet to come, with this
    `timeout`. `jobs` are all jobs, oldest first.
    """
    return _left(now, local_head(jobs, emulate=emulate), before, timeout=timeout)


def _left(
    now: Cluster, head: QueueHead | None, mine: Job | None, *, timeout: float | None = None
) -> Cluster:
    """What the head of the queue leaves of the machines for a job, or for one with this timeout."""
    from arena_topo.queueing import LAST  # noqa: PLC0415  loads the solver
    from arena_topo.queueing.reservation import left_for  # noqa: PLC0415  as above

    rank, timeout = (
        (LAST, timeout) if mine is None else (_waiting(mine).rank, mine.submission.timeout)
    )
    if head is None or not head.delayed_by(rank, timeout, time.time()):
        return now
    return left_for(head, now)


def _waiting(job: Job) -> Waiting:
    """A job as the rule of the queue sees it."""
    from arena_topo.queueing import Waiting  # noqa: PLC0415  loads the solver

    submission = job.submission
    return Waiting(
        key=_key(job),
        request=submission.request or submission.counted,
        since=submission.created,
        timeout=submission.timeout,
        until=job.patient_until,
    )


def local_head(jobs: Iterable[Job], *, emulate: str | None) -> QueueHead | None:
    """The head of the queue on these machines; `jobs` are all jobs, oldest first.

    A job without GPUs, or for other machines, is not in it.
    """
    here = [job for job in jobs if is_here(job)]
    queue = [
        job
        for job in here
        if job.waiting and job.submission.gpus and job.submission.emulate == emulate
    ]
    if not queue:
        return None
    from arena_topo.queueing import Running, Situation  # noqa: PLC0415  loads the solver
    from arena_topo.queueing.reservation import head_of  # noqa: PLC0415  as above

    machines = local_machines(emulate)
    running = (
        Running(key=_key(job), started=job.started, timeout=job.submission.timeout)
        for job in here
        if job.holding
    )
    seen = Situation(
        cluster=in_use(machines, here), emptied=machines, running=tuple(running), now=time.time()
    )
    head = head_of(sorted(map(_waiting, queue), key=lambda gang: gang.rank), seen)
    # No reservation is stored here: it has idled at most since its job began to wait.
    return None if head is None else replace(head, since=head.gang.since)


def forecast_on(submission: StoredRequest, cluster: Cluster) -> PlacementForecast:
    """The best placement of a job on what is free; Unplaceable if there is none.

    GPUs that are only counted are taken node by node, lowest indexes first.
    """
    from arena_topo.manifests.forecast import forecast_of  # noqa: PLC0415  loads the solver
    from arena_topo.solver.door import Solver  # noqa: PLC0415

    solver = Solver(cluster)
    if submission.request is not None:
        return forecast_of(solver.place(submission.request), cluster, LOCAL_BINDING)
    if not submission.gpus:
        node = str(cluster.nodes[0].name)
        workers = tuple((worker, node, ()) for worker in range(submission.workers))
        return PlacementForecast(
            state="placed", workers=workers, tier=NODE_TIER, emulated=cluster.emulated
        )
    placement = solver.first_fit(submission.counted)
    if placement is None:
        raise solver.explain(submission.counted)
    # Nothing was searched for, so nothing is proven.
    return structs.replace(forecast_of(placement, cluster, LOCAL_BINDING), optimal=None)


def visible_devices(cluster: Cluster, node: str, gpus: Iterable[int]) -> str:
    """The value of CUDA_VISIBLE_DEVICES for these GPUs: UUIDs where known, else indexes."""
    known: dict[int, Any] = {
        gpu.index: gpu.uuid or gpu.index
        for host in cluster.nodes
        if host.name == node
        for gpu in host.machine.gpus
    }
    return ",".join(str(known.get(index, index)) for index in gpus)
