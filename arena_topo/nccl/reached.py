"""What all-reduces of nccl-tests reached in a job, as the table of a node that the solver heeds.

Only what was measured counts, only on GPUs of one node that are known by their indexes: the lines
of a test name PCI addresses and CUDA's own numbers, so it is the plan that says which GPUs a worker
has, and only where it has all of them in the test.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from arena_topo.errors import ArenaError
from arena_topo.nccl.measured import Measured, Table, TestedRank, measured
from arena_topo.nccl.transports import Compared, Place, Seat

MEASURE = "all_reduce_perf -b 1G -e 4G -f 2 -g 1"
"""The line of nccl-tests (its README) that measures what links carry, a rank for each GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """GB/s of bus bandwidth of sets of GPUs of a node, by all-reduces of `size` bytes or more."""

    node: str
    table: Mapping[tuple[int, ...], float]
    size: int


def reached(tables: Iterable[Table], found: Compared) -> Reached:
    """What the tests of a job with a plan reached; of two tests of a set the lower value.

    ArenaError says why there is no such table, and how to measure one.
    """
    if found.planned is not None and found.planned.emulated:
        raise ArenaError(
            "there is nothing to measure: the GPUs of this job are emulated",
            hint="measure where there are GPUs",
        )
    taken: dict[str, dict[tuple[int, ...], float]] = {}
    refusals: dict[str, None] = {}
    sizes: list[int] = []
    for one in tables:
        result = measured(one)
        if isinstance(result, str):
            refusals.setdefault(result)
            continue
        place = _place(result, found)
        if isinstance(place, str):
            refusals.setdefault(place)
            continue
        node, gpus = place
        table = taken.setdefault(node, {})
        table[gpus] = min(result.rate, table.get(gpus, result.rate))
        sizes.append(result.size)
    if not taken:
        raise ArenaError(
            "nothing was measured that a table of bandwidths could hold",
            why="; ".join(refusals) or "there is no table of nccl-tests in these lines",
            hint="measure it in a job of its own, with --gputopology and all workers of it on one"
            f' node: "mpirun {MEASURE}"',
        )
    if len(taken) > 1:
        raise ArenaError(
            f"{len(taken)} nodes were measured: {', '.join(sorted(taken))}",
            why="a table is one of a single node",
            hint="read one of them: --only worker:N",
        )
    ((node, table),) = taken.items()
    return Reached(node=node, table=dict(sorted(table.items())), size=min(sizes))


def _place(result: Measured, found: Compared) -> tuple[str, tuple[int, ...]] | str:
    """The node and the GPUs of a test, or why they are not known."""
    plan = found.planned
    assert plan is not None
    seats = _seats(result.ranks, found)
    if seats is None:
        return f"host {result.host} is no pod of the job"
    nodes = {seat.node for seat in seats}
    if len(nodes) > 1:
        return f"{len(nodes)} nodes took part: a table is one of a single machine"
    if len(seats) > 1 and not all(
        kind.startswith("P2P") for place, kind in found.joined if place is Place.NODE
    ):
        return "the ranks are in several pods, so it is the way between pods that was measured"
    gpus = tuple(sorted(gpu for seat in seats for gpu in seat.gpus))
    node = nodes.pop()
    machine = plan.machines.get(node)
    whole = machine is not None and len(gpus) == len(machine.gpus)
    if not gpus or not (plan.exact or whole):
        return "the kubelet has picked the GPUs, and no line tells their indexes"
    if len(result.ranks) != len(gpus):
        return (
            f"{len(result.ranks)} of the {len(gpus)} GPUs of the workers took part, and no line"
            " tells which"
        )
    return node, gpus


def _seats(ranks: Iterable[TestedRank], found: Compared) -> tuple[Seat, ...] | None:
    """The seats of the ranks of a test, by the name of the host, else by their numbers."""
    plan = found.planned
    assert plan is not None
    pods = {seat.pod: seat for seat in plan.seats}
    tested = tuple(ranks)
    seats = [pods.get(one.host) for one in tested]
    if (
        None in seats
        and len(tested) == plan.ranks
        and sorted(one.rank for one in tested) == list(range(plan.ranks))
    ):
        seats = [plan.seats[one.rank // plan.slots] for one in tested]
    known = {seat.worker: seat for seat in seats if seat is not None}
    return None if None in seats else tuple(known.values())
