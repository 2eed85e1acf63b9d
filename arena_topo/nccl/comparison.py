"""NCCL's use of a job's GPUs, beside the placement that the job records.

Pure. A rank is matched to its worker by the name of its host, which is that of the worker's pod. If
no host has the name of a pod, the number of the rank counts: workers have their ranks in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from arena_topo.engines import JobStatus
from arena_topo.errors import ArenaError
from arena_topo.manifests import Guarantee, PlacementForecast
from arena_topo.nccl import Communicator, NcclReport
from arena_topo.nccl.bandwidth_tables import BadTable, BandwidthTable, bandwidth_of_table
from arena_topo.topology import Cluster, LinkKind, Machine, natural_key

MEASURE = "all_reduce_perf -b 1G -e 4G -f 2 -g 1"
"""The command of nccl-tests (its README) that measures the links, with a rank for each GPU."""

Pair = tuple[int, int]
"""Two ranks, in the direction of the data."""


class RelativePlace(StrEnum):
    """The relative place of two ranks, in the words of a sentence."""

    POD = "in one pod"
    NODE = "between pods of one node"
    NODES = "between nodes"
    HOST = "with one host name"
    """The plan does not place these ranks, as for HOSTS."""
    HOSTS = "with two host names"
    UNKNOWN = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSlot:
    """A worker of the plan: its pod, its node, and its GPUs in the order of the ring.

    `gpus` is empty if the kubelet picks them.
    """

    worker: int
    pod: str
    node: str
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The placement of a job: workers in order, `slots` ranks on each.

    `machines` are the known machines, by node.
    """

    forecast: PlacementForecast
    workers: tuple[WorkerSlot, ...]
    slots: int
    machines: Mapping[str, Machine] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """The planned number of ranks."""
        return len(self.workers) * self.slots

    @property
    def nodes(self) -> int:
        """The planned number of nodes."""
        return len({slot.node for slot in self.workers})

    @property
    def exact(self) -> bool:
        """Whether the guarantee gives the workers exactly the planned GPUs."""
        return self.forecast.guarantee == Guarantee.GPUS


def recorded_plan(status: JobStatus, slots: int, cluster: Cluster | None = None) -> Planned | None:
    """The recorded placement of a job; None without one.

    `slots` are the ranks of a worker. `cluster` has the links between the GPUs of its nodes.
    """
    forecast = status.forecast
    if forecast is None or forecast.state != "placed" or not forecast.workers:
        return None
    pods = {pod.worker: pod.name for pod in status.instances if pod.worker is not None}
    return Planned(
        forecast=forecast,
        workers=tuple(
            WorkerSlot(
                worker=index,
                pod=pods.get(index, f"{status.name}-worker-{index}"),
                node=node,
                gpus=gpus,
            )
            for index, node, gpus in forecast.workers
        ),
        slots=slots,
        machines={str(node.name): node.machine for node in (cluster.nodes if cluster else ())},
    )


class Observed:
    """The largest communicator of a report, beside a plan.

    `workers` is the planned worker of each identified rank; `by_number`: only the numbers of the
    ranks identify them. `transports` are the transports from rank to rank, most used first.
    """

    def __init__(self, report: NcclReport, planned: Planned | None) -> None:
        self.report = report
        self.planned = planned
        self.main = report.largest or Communicator(name=None, size=None, ranks=())
        self.hosts = {host.name: host for host in report.hosts}
        self.settings = {setting.name: setting for setting in report.settings}
        self.ranks = {rank.rank: rank for rank in self.main.ranks}
        self.workers, self.by_number = self._workers()
        self.ranks_of_worker: dict[int, list[int]] = {}
        """The ranks in ascending order."""
        for rank, slot in sorted(self.workers.items(), key=lambda entry: entry[0]):
            self.ranks_of_worker.setdefault(slot.worker, []).append(rank)
        self.transports = self.main.matrix()

    @property
    def joined(self) -> Counter[tuple[RelativePlace, str]]:
        """The number of connected pairs of ranks, by place and most used kind of transport."""
        return Counter((self.place(pair), kinds[0]) for pair, kinds in self.transports.items())

    def _workers(self) -> tuple[dict[int, WorkerSlot], bool]:
        """The workers by rank, and whether only the ranks' numbers identify them.

        A host's name is that of its pod, or that of the node with the node's network.
        """
        planned = self.planned
        if planned is None:
            return {}, False
        names = {slot.pod: slot for slot in planned.workers}
        of_node = Counter(slot.node for slot in planned.workers)
        for slot in planned.workers:
            if of_node[slot.node] == 1:
                names.setdefault(slot.node.partition(".")[0], slot)
        slots = {
            rank.rank: names[host]
            for rank in self.main.ranks
            for host in (rank.host, rank.speaker)
            if host in names
        }
        if self.main.size != planned.ranks:
            return slots, False
        numbered = {rank: planned.workers[rank // planned.slots] for rank in range(planned.ranks)}
        # Ranks without any line are placed by number, if that agrees with all other ranks.
        agree = all(numbered[rank] == slot for rank, slot in slots.items())
        return (numbered, not slots) if agree else (slots, False)

    def place(self, pair: Pair) -> RelativePlace:
        """The relative place of two ranks by the plan, else by their host names."""
        source, target = (self.workers.get(rank) for rank in pair)
        if source is not None and target is not None:
            if source.worker == target.worker:
                return RelativePlace.POD
            return RelativePlace.NODE if source.node == target.node else RelativePlace.NODES
        first, second = (self.ranks[rank].host if rank in self.ranks else "" for rank in pair)
        if not first or not second:
            return RelativePlace.UNKNOWN
        return RelativePlace.HOST if first == second else RelativePlace.HOSTS

    def pairs(self, place: RelativePlace) -> dict[str, list[Pair]]:
        """The pairs of ranks at this relative place, by each transport that connects them."""
        by_kind: dict[str, list[Pair]] = {}
        for pair, kinds in self.transports.items():
            if self.place(pair) is place:
                for kind in kinds:
                    by_kind.setdefault(kind, []).append(pair)
        return by_kind

    def nvlink(self, pair: Pair) -> bool:
        """Whether the plan puts two ranks of one node on GPUs joined by NVLink, as far as known."""
        source, target = (self.workers.get(rank) for rank in pair)
        if self.planned is None or source is None or target is None or source.node != target.node:
            return False
        machine = self.planned.machines.get(source.node)
        if machine is None:
            return False
        first, second = (self._gpu(rank, self.planned) for rank in pair)
        if first is None or second is None or first == second:
            return {link.kind for row in machine.links for link in row if link} == {LinkKind.NVLINK}
        known = max(first, second) < len(machine.gpus)
        return known and machine.link(first, second).kind is LinkKind.NVLINK

    def _gpu(self, rank: int, plan: Planned) -> int | None:
        """The planned GPU of a rank: workers assign theirs in order, rank by rank."""
        slot = self.workers[rank]
        ranks = self.ranks_of_worker[slot.worker]
        at = ranks.index(rank) if len(ranks) == plan.slots else rank % plan.slots
        return slot.gpus[at] if plan.exact and at < len(slot.gpus) else None

    def value(self, name: str) -> str:
        """The value that a variable has in the environment, by NCCL's lines; empty if unknown."""
        return self.settings[name].value if name in self.settings else ""

    def lines_setting(self, *names: str) -> tuple[str, ...]:
        """The lines that show the values of these variables in the environment."""
        return tuple(self.settings[name].line for name in names if name in self.settings)

    def via(self, pair: Pair, kind: str) -> str:
        """A line that connects a pair of ranks by this transport."""
        return next(
            connection.line
            for connection in self.main.connections
            if (connection.source, connection.target, connection.kind) == (*pair, kind)
        )

    def host(self, rank: int) -> str:
        """The host of a rank by its lines, else the pod of the plan; empty if unknown."""
        named = self.ranks[rank].host if rank in self.ranks else ""
        return named or (self.workers[rank].pod if rank in self.workers else "")

    def hosts_of(self, pairs: Iterable[Pair]) -> list[str]:
        """The known hosts of some pairs, without repetition."""
        return sorted({self.host(rank) for pair in pairs for rank in pair} - {""}, key=natural_key)


# ---------------------------------------------------------------- measured bandwidths


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSets:
    """GB/s of bus bandwidth of sets of GPUs of a node, by all-reduces of `size` bytes or more."""

    node: str
    table: Mapping[tuple[int, ...], float]
    size: int


def measured_sets(
    tables: Iterable[BandwidthTable], observed: Observed, planned: Planned
) -> MeasuredSets:
    """The bandwidths that a job's tests reached; of two tests of a set the lower value.

    The lines of a test name PCI addresses and CUDA's own numbers, so the plan decides which GPUs of
    the node a worker has.

    ArenaError says why the table is missing, and how to measure it.
    """
    if planned.forecast.emulated:
        raise ArenaError(
            "there is nothing to measure: the GPUs of this job are emulated",
            hint="measure where there are GPUs",
        )
    by_node: dict[str, dict[tuple[int, ...], float]] = {}
    refusals: dict[str, None] = {}
    sizes: list[int] = []
    for test in tables:
        try:
            rate, size = bandwidth_of_table(test)
            node, gpus = _place(test, observed, planned)
        except BadTable as error:
            refusals[str(error)] = None
            continue
        table = by_node.setdefault(node, {})
        table[gpus] = min(rate, table.get(gpus, rate))
        sizes.append(size)
    if not by_node:
        raise ArenaError(
            "no usable bandwidth was measured",
            why="; ".join(refusals) or "there is no table of nccl-tests in these lines",
            hint="measure it in a job of its own, with --gputopology and all workers of it on one"
            f' node: "mpirun {MEASURE}"',
        )
    if len(by_node) > 1:
        raise ArenaError(
            f"{len(by_node)} nodes were measured: {', '.join(sorted(by_node))}",
            why="a table is one of a single node",
            hint="read one of them: --only worker:N",
        )
    ((node, table),) = by_node.items()
    return MeasuredSets(node=node, table=dict(sorted(table.items())), size=min(sizes))


def _place(
    table: BandwidthTable, observed: Observed, planned: Planned
) -> tuple[str, tuple[int, ...]]:
    """The node and the GPUs of a test; Unfit if they are not known."""
    pods = {slot.pod: slot for slot in planned.workers}
    slots = [pods.get(rank.host) for rank in table.ranks]
    # If no host is a pod, the numbers of the ranks identify their workers.
    if None in slots and sorted(rank.rank for rank in table.ranks) == list(range(planned.ranks)):
        slots = [planned.workers[rank.rank // planned.slots] for rank in table.ranks]
    workers = {slot.worker: slot for slot in slots if slot is not None}
    if None in slots:
        raise BadTable(f"host {table.ranks[0].host} is no pod of the job")
    nodes = {slot.node for slot in workers.values()}
    if len(nodes) > 1:
        raise BadTable(f"{len(nodes)} nodes took part: a table is one of a single machine")
    if len(workers) > 1 and not all(
        kind.startswith("P2P") for kind in observed.pairs(RelativePlace.NODE)
    ):
        raise BadTable(
            "the ranks are in several pods, so it is the way between pods that was measured"
        )
    gpus = tuple(sorted(gpu for slot in workers.values() for gpu in slot.gpus))
    (node,) = nodes
    machine = planned.machines.get(node)
    everything = machine is not None and len(gpus) == len(machine.gpus)
    if not gpus or not (planned.exact or everything):
        raise BadTable("the kubelet has picked the GPUs, and no line tells their indexes")
    if len(table.ranks) != len(gpus):
        raise BadTable(
            f"{len(table.ranks)} of the {len(gpus)} GPUs of the workers took part, and no line"
            " tells which"
        )
    return node, gpus
