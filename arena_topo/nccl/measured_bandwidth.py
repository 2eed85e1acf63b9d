"""What all-reduces of nccl-tests reached in a job, as the table of a node that the solver heeds.

Only what was measured counts, only on GPUs of one node that are known by their indexes: the lines
of a test name PCI addresses and CUDA's own numbers, so it is the plan that says which GPUs a worker
has, and only where it has all of them in the test.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from arena_topo.errors import ArenaError
from arena_topo.nccl.comparison import Observed, Place, Planned, WorkerSlot
from arena_topo.nccl.measured import Measured, Table, TestedRank, measured

MEASURE = "all_reduce_perf -b 1G -e 4G -f 2 -g 1"
"""The line of nccl-tests (its README) that measures what links carry, a rank for each GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """GB/s of bus bandwidth of sets of GPUs of a node, by all-reduces of `size` bytes or more."""

    node: str
    table: Mapping[tuple[int, ...], float]
    size: int


def reached(tables: Iterable[Table], seen: Observed, planned: Planned) -> Reached:
    """What the tests of a job with a plan reached; of two tests of a set the lower value.

    ArenaError says why there is no such table, and how to measure one.
    """
    if planned.emulated:
        raise ArenaError(
            "there is nothing to measure: the GPUs of this job are emulated",
            hint="measure where there are GPUs",
        )
    taken: dict[str, dict[tuple[int, ...], float]] = {}
    refusals: dict[str, None] = {}
    sizes: list[int] = []
    for one in tables:
        result = measured(one)
        place = result if isinstance(result, str) else _place(result, seen, planned)
        if isinstance(result, str) or isinstance(place, str):
            refusals.setdefault(str(place))
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


def _place(result: Measured, seen: Observed, planned: Planned) -> tuple[str, tuple[int, ...]] | str:
    """The node and the GPUs of a test, or why they are not known."""
    workers = _workers(result.ranks, planned)
    if workers is None:
        return f"host {result.host} is no pod of the job"
    nodes = {slot.node for slot in workers}
    if len(nodes) > 1:
        return f"{len(nodes)} nodes took part: a table is one of a single machine"
    if len(workers) > 1 and not all(kind.startswith("P2P") for kind in seen.pairs(Place.NODE)):
        return "the ranks are in several pods, so it is the way between pods that was measured"
    gpus = tuple(sorted(gpu for slot in workers for gpu in slot.gpus))
    node = nodes.pop()
    machine = planned.machines.get(node)
    whole = machine is not None and len(gpus) == len(machine.gpus)
    if not gpus or not (planned.exact or whole):
        return "the kubelet has picked the GPUs, and no line tells their indexes"
    if len(result.ranks) != len(gpus):
        return (
            f"{len(result.ranks)} of the {len(gpus)} GPUs of the workers took part, and no line"
            " tells which"
        )
    return node, gpus


def _workers(ranks: Sequence[TestedRank], planned: Planned) -> tuple[WorkerSlot, ...] | None:
    """The workers of the ranks of a test, by the name of the host, else by their numbers."""
    pods = {slot.pod: slot for slot in planned.workers}
    named = [pods.get(one.host) for one in ranks]
    if None in named and sorted(one.rank for one in ranks) == list(range(planned.ranks)):
        named = [planned.workers[one.rank // planned.slots] for one in ranks]
    known = {slot.worker: slot for slot in named if slot is not None}
    return None if None in named else tuple(known.values())
