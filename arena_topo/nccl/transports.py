"""What NCCL did with the GPUs that a job got, beside what its placement had promised.

Pure. Ranks are told apart by the names of their hosts, which are those of the workers' pods; where
the lines know no such name, by their numbers: workers hand out their ranks in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from arena_topo.engines import JobStatus
from arena_topo.manifests import Guarantee
from arena_topo.nccl import Communicator, Connection, Loose, Report
from arena_topo.topology import Cluster, LinkKind, Machine, natural

if TYPE_CHECKING:
    from arena_topo.nccl.deviations import Finding


class Place(StrEnum):
    """Where two ranks are to each other."""

    POD = "pod"
    """In one worker's pod."""
    NODE = "node"
    """In two pods of one node."""
    NODES = "nodes"
    """On two nodes."""
    HOST = "host"
    """On hosts of one name, of which no plan says more."""
    HOSTS = "hosts"
    """On hosts of two names, of which no plan says more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A worker as it was planned: its pod, its node, and GPUs of that node in the ring's order.

    `gpus` is empty where the kubelet picks them.
    """

    worker: int
    pod: str
    node: str
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What a placement promised: seats by worker, `slots` ranks on each.

    Bandwidths are GB/s (None: of one GPU, or not recorded): `usable`, in a range from `low` to
    `high`, is what the pods get, `bandwidth` what joined ones would. `tier` is what joins the
    nodes. `exact`: the workers have the very GPUs of their seats; `emulated`: there are none.
    `machines` are by node, where they are known.
    """

    seats: tuple[Seat, ...]
    slots: int
    bandwidth: float | None = None
    usable: float | None = None
    low: float | None = None
    high: float | None = None
    regime: str | None = None
    tier: str | None = None
    exact: bool = True
    emulated: bool = False
    machines: Mapping[str, Machine] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """How many ranks there should be."""
        return len(self.seats) * self.slots

    @property
    def nodes(self) -> int:
        """How many nodes they should be on."""
        return len({seat.node for seat in self.seats})


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A report beside the plan. `main` is the communicator of most ranks, None without any.

    `place` is where `main` stands in `report.communicators`. Where lines do not tell of which of
    several communicators a connection is, and each of them has the same processes at its ends,
    it is one of `main` as well: `together` are the places of all of these, empty where there are
    none. `unplaced` are the connections of which not even that is known.
    `seats` is the seat of each rank of `main` that could be told, `by_number` that only the number
    of the rank told it. `joined` counts pairs by place (None: not known) and kind of transport.
    """

    report: Report
    planned: Planned | None
    main: Communicator | None
    seats: Mapping[int, Seat]
    by_number: bool
    joined: Mapping[tuple[Place | None, str], int]
    findings: tuple[Finding, ...]
    place: int | None = None
    together: tuple[int, ...] = ()
    unplaced: tuple[Connection, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether there is a plan, and all that was read is as it says."""
        return (
            self.planned is not None
            and bool(self.joined)
            and all(one.foretold for one in self.findings)
        )


def promised(status: JobStatus, slots: int, cluster: Cluster | None = None) -> Planned | None:
    """What the placement that is recorded on a job promised; None for a job without one.

    `slots` are the ranks of a worker. `cluster` tells how the GPUs of its nodes are linked.
    """
    forecast = status.forecast
    if forecast is None or forecast.state != "placed" or not forecast.workers:
        return None
    pods = {one.worker: one.name for one in status.instances if one.worker is not None}
    nodes = {node for _index, node, _gpus in forecast.workers}
    return Planned(
        seats=tuple(
            Seat(
                worker=index,
                pod=pods.get(index, f"{status.name}-worker-{index}"),
                node=node,
                gpus=gpus,
            )
            for index, node, gpus in forecast.workers
        ),
        slots=slots,
        bandwidth=forecast.bus_bandwidth,
        usable=forecast.usable,
        low=forecast.low,
        high=forecast.high,
        regime=forecast.regime,
        tier=forecast.tier,
        exact=forecast.guarantee == Guarantee.GPUS,
        emulated=forecast.emulated,
        machines={
            str(one.name): one.machine
            for one in (cluster.nodes if cluster is not None else ())
            if one.name in nodes
        },
    )


def compare(report: Report, planned: Planned | None) -> Compared:
    """Hold what was read against what was planned; without a plan only NCCL's own word counts."""
    from arena_topo.nccl import deviations  # noqa: PLC0415 - built on the values of this module

    main = largest(report)
    if main is None:
        seen = Seen(report, planned, Communicator(name=None, size=None, ranks=()))
        return Compared(
            report=report,
            planned=planned,
            main=None,
            seats={},
            by_number=False,
            joined={},
            findings=tuple(deviations.complaints(seen)),
        )
    place = next((at for at, one in enumerate(report.communicators) if one is main), None)
    shared, unplaced = _shared(report, place)
    main = replace(main, connections=(*main.connections, *(one.connection for one in shared)))
    others = tuple(one for at, one in enumerate(report.communicators) if at != place)
    seen = Seen(report, planned, main, others)
    return Compared(
        report=report,
        planned=planned,
        main=main,
        place=place,
        together=tuple(sorted({at for one in shared for at in one.candidates})),
        unplaced=unplaced,
        seats=seen.seats,
        by_number=seen.by_number,
        joined=Counter((seen.place(*pair), kind) for pair, kind in seen.used()),
        findings=deviations.findings(seen),
    )


def largest(report: Report) -> Communicator | None:
    """The communicator of most ranks; of connections that belong to none, one without a name."""
    if report.communicators:
        return max(report.communicators, key=lambda one: (one.size or 0, len(one.connections)))
    if report.loose:
        return Communicator(
            name=None,
            size=None,
            ranks=(),
            certain=False,
            connections=tuple(one.connection for one in report.loose),
        )
    return None


def _shared(report: Report, place: int | None) -> tuple[tuple[Loose, ...], tuple[Connection, ...]]:
    """Which loose connections join the same processes whatever they are of, and which do not."""
    if place is None:
        return (), ()
    who = [
        {one.rank: (one.host or one.speaker, one.pid, one.device) for one in each.ranks}
        for each in report.communicators
    ]
    for each, known in zip(report.communicators, who, strict=True):
        for rank, count in Counter(one.rank for one in each.ranks).items():
            if count > 1:
                del known[rank]
    shared, unplaced = [], []
    for one in report.loose:
        ends = {
            (who[at].get(one.connection.source), who[at].get(one.connection.target))
            for at in one.candidates
        }
        if place in one.candidates and len(ends) == 1 and None not in ends.pop():
            shared.append(one)
        else:
            unplaced.append(one.connection)
    return tuple(shared), tuple(unplaced)


class Seen:
    """The lines of one communicator, beside a plan; `others` are those of which less is said."""

    def __init__(
        self,
        report: Report,
        planned: Planned | None,
        main: Communicator,
        others: tuple[Communicator, ...] = (),
    ) -> None:
        self.report = report
        self.planned = planned
        self.main = main
        self.others = others
        self.hosts = {one.name: one for one in report.hosts}
        self.settings = {one.name: one for one in report.settings}
        self.seats, self.by_number = self._seats()
        self.mates: dict[int, list[int]] = {}
        """The ranks of each worker, in order."""
        for rank, seat in sorted(self.seats.items()):
            self.mates.setdefault(seat.worker, []).append(rank)
        self.kinds = main.matrix()
        counted = Counter(one.rank for one in main.ranks)
        self._spoke = {one.rank: one for one in main.ranks if counted[one.rank] == 1}

    # ------------------------------------------------------------ who is where

    def _seats(self) -> tuple[dict[int, Seat], bool]:
        """By the name of the host, which is the pod's, or its node's on the node's network."""
        planned = self.planned
        if planned is None:
            return {}, False
        names = {seat.pod: seat for seat in planned.seats}
        alone = Counter(seat.node for seat in planned.seats)
        for seat in planned.seats:
            if alone[seat.node] == 1:
                names.setdefault(seat.node.partition(".")[0], seat)
        found = {
            one.rank: names[host]
            for one in self.main.ranks
            for host in (one.host, one.speaker)
            if host in names
        }
        if self.main.size != planned.ranks:
            return found, False
        numbered = {rank: planned.seats[rank // planned.slots] for rank in range(planned.ranks)}
        # Ranks of which no line was read are where the others would have them.
        if all(numbered[rank] == seat for rank, seat in found.items()):
            return numbered, not found
        return found, False

    def place(self, one: int, other: int) -> Place | None:
        """Where two ranks are to each other by the plan, else by the hosts that they name."""
        here, there = self.seats.get(one), self.seats.get(other)
        if here is not None and there is not None:
            if here.worker == there.worker:
                return Place.POD
            return Place.NODE if here.node == there.node else Place.NODES
        first, second = self._spoke.get(one), self._spoke.get(other)
        if first is None or second is None or not first.host or not second.host:
            return None
        return Place.HOST if first.host == second.host else Place.HOSTS

    def used(self) -> Iterator[tuple[tuple[int, int], str]]:
        """Each pair of ranks that is joined, and the transport that most of its channels take."""
        return ((pair, kinds[0]) for pair, kinds in self.kinds.items())

    def nvlink(self, one: int, other: int) -> bool | None:
        """Whether the plan has two ranks of one node on GPUs joined by NVLink; None: not known."""
        here, there = self.seats.get(one), self.seats.get(other)
        if self.planned is None or here is None or there is None or here.node != there.node:
            return None
        machine = self.planned.machines.get(here.node)
        if machine is None:
            return None
        first, second = self._gpu(one), self._gpu(other)
        if first is None or second is None or first == second or not self.planned.exact:
            kinds = {link.kind is LinkKind.NVLINK for row in machine.links for link in row if link}
            return kinds.pop() if len(kinds) == 1 else None
        if max(first, second) >= len(machine.gpus):
            return None
        return machine.link(first, second).kind is LinkKind.NVLINK

    def _gpu(self, rank: int) -> int | None:
        """The GPU that was planned for a rank: workers hand out theirs in order, rank by rank."""
        seat, slots = self.seats[rank], self.planned.slots if self.planned else 1
        mates = self.mates[seat.worker]
        at = mates.index(rank) if len(mates) == slots else rank % slots
        return seat.gpus[at] if at < len(seat.gpus) else None

    def pairs(self, *places: Place) -> dict[str, list[tuple[int, int]]]:
        """Pairs of ranks that are so to each other, by each transport that joins them."""
        found: dict[str, list[tuple[int, int]]] = {}
        for pair, kinds in self.kinds.items():
            if self.place(*pair) in places:
                for kind in kinds:
                    found.setdefault(kind, []).append(pair)
        return found

    # ------------------------------------------------------------ what lines say

    def value(self, name: str) -> str | None:
        """What NCCL says that the environment sets a variable to; None where it says nothing."""
        return self.settings[name].value if name in self.settings else None

    def asked(self, *names: str) -> tuple[str, ...]:
        """The names of those of these variables that are set; `0` and nothing turn a thing off."""
        return tuple(
            name
            for name in names
            if (value := self.value(name)) is not None
            and (value not in {"", "0"} or name.endswith("_LEVEL"))
        )

    def set_by(self, *names: str) -> tuple[str, ...]:
        """The lines that say to what the environment sets these variables."""
        return tuple(self.settings[name].said for name in names if name in self.settings)

    def via(self, pair: tuple[int, int], kind: str) -> str:
        """A line by which a pair of ranks is joined so."""
        return next(
            one.said
            for one in self.main.connections
            if (one.source, one.target) == pair and one.kind == kind
        )

    def host(self, rank: int) -> str:
        """The host that a rank names, else the pod that it should be in; empty if not known.

        A log of some ranks only names others as ends of connections, and nothing more of them.
        """
        found, seat = self._spoke.get(rank), self.seats.get(rank)
        return (found.host if found is not None else "") or (seat.pod if seat is not None else "")

    def names(self, pairs: Iterable[tuple[int, int]]) -> list[str]:
        """The known hosts of some pairs, each once."""
        return sorted({self.host(rank) for pair in pairs for rank in pair} - {""}, key=natural)
