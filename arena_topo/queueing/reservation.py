"""The head of the queue, the GPUs that it reserves, and what is left for other gangs.

A reservation that ignores the jobs that run keeps the head waiting: the longest of them may be
there. So GPUs are reserved where the fewest GPU-hours are missing (`GPU_HOURS`). The search is
greedy: each node has a price, that of the cheapest jobs which would have to end until as many
workers fit there as can; nodes are opened in the order of their price per worker until the solver
finds a place. So the last opened node is needed, but a dearer set of nodes may be cheaper in sum,
CPU and memory of a job count in proportion to its GPUs, and domains of the network have no price.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from arena_topo.queueing import (
    JobUse,
    Rank,
    Running,
    Situation,
    Waiting,
    gpus_by_node,
    seats_of_placement,
)
from arena_topo.queueing.patience import WORTHWHILE, patient_request
from arena_topo.solver import Placement, Request, Seats
from arena_topo.topology import Cluster, GPUSet, Node, NodeName, count, natural_key

Price = Callable[[Running, float], float]
"""The price of each GPU of a job at a time: what is missing until it is free."""

Prices = Mapping[str, float]
"""The price of each GPU of each job."""

CLEARLY_WORSE = 2.0
"""The factor of the price from which a reservation is given up for another: our choice. Each
change loses the GPUs that were idle for the reservation so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRule:
    """A rule of the queue: what the head reserves.

    It reserves the GPUs of least `price` (None: its best GPUs whoever has them), once it has waited
    for `after` seconds. If it is `strict`, nobody passes the head. A patient head reserves no place
    with less than the share `worthwhile` of its best bandwidth.
    """

    price: Price | None
    after: float = 0.0
    strict: bool = False
    worthwhile: float = WORTHWHILE


EMPTIED = QueueRule(price=None)
GPUS = QueueRule(price=lambda _job, _now: 1.0)
GPU_HOURS = QueueRule(price=lambda job, now: job.remaining(now) / 3600)
STRICT = QueueRule(price=GPU_HOURS.price, strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueHead:
    """The head of the queue and the placement that it reserves; with `strict` it reserves all.

    `starts` is when the jobs there must have ended; None if that is not known. It has reserved
    these GPUs `since` (Unix seconds both).
    """

    gang: Waiting
    placement: Placement
    starts: float | None
    since: float
    strict: bool = False

    @property
    def seats(self) -> Seats:
        """The reserved seats."""
        return seats_of_placement(self.placement)

    @property
    def changed(self) -> bool:
        """Whether these are other GPUs than it reserved last."""
        last = self.gang.last
        return last is None or gpus_by_node(last[0], 1) != gpus_by_node(self.seats, 1)

    def delayed_by(self, rank: Rank, timeout: float | None, now: float) -> bool:
        """Whether a gang of this rank and time limit that starts now might delay the head."""
        ends = math.inf if timeout is None else now + timeout
        return self.gang.rank < rank and (self.strict or self.starts is None or ends > self.starts)


def head_of(
    queue: Iterable[Waiting],
    whole: Situation,
    rule: QueueRule = GPU_HOURS,
    *,
    blocked: Callable[[Waiting], bool] = lambda _: False,
) -> QueueHead | None:
    """The first gang of the queue, which is in order, that fits the emptied cluster; None if none.

    A gang that is `blocked` by something other than GPUs, such as its quota, reserves nothing.
    """
    for gang in queue:
        if whole.now - gang.since < rule.after:
            return None
        situation = whole.seen_by(gang.key)
        placement = reserved_placement(gang, situation, rule)
        if placement is not None and not blocked(gang):
            head = QueueHead(
                gang=gang,
                placement=placement,
                starts=latest_start(placement, situation),
                since=situation.now,
                strict=rule.strict,
            )
            return head if gang.last is None or head.changed else replace(head, since=gang.last[1])
    return None


def reserved_placement(gang: Waiting, situation: Situation, rule: QueueRule) -> Placement | None:
    """The placement that a gang would reserve as the head; None if it fits not even then.

    The last one is kept while it is possible and not clearly worse than the cheapest.
    """
    request = patient_request(gang, situation, share=rule.worthwhile)
    whole = situation.best_ever(request)
    if whole is None or rule.price is None:
        return whole
    last, (seats, _since) = None, gang.last or ((), 0.0)
    whole_job = len(seats) == request.workers and all(
        len(gpus) in {0, request.gpus} for _, gpus in seats
    )
    if whole_job and not any(situation.solver.hindrances(request, seats)):
        last = situation.solver.value(request, seats)
        enough = last.bandwidth is None or last.bandwidth.point >= request.min_bandwidth
        last = last if enough else None
    new = _cheapest(request, situation, rule.price) or whole
    if last is None:
        return new
    price = partial(_price_while_waiting, gang.since, rule.price)
    before, after = (price_of_missing(placement, situation, price) for placement in (last, new))
    return new if before > CLEARLY_WORSE * after else last


def _price_while_waiting(since: float, price: Price, job: Running, now: float) -> float:
    """The price of a job for a gang that waits since a time, to judge its last reservation.

    A job without limit counts as if it had run at least as long. Else a place where all jobs have
    just started would be the cheapest: the reservation would follow these jobs, and never be free.
    """
    if job.ends is None:
        started = since if job.started is None else min(since, job.started)
        job = replace(job, started=started)
    return price(job, now)


def price_of_missing(placement: Placement, situation: Situation, price: Price) -> float:
    """The price of the GPUs of a placement that others have now."""
    used = situation.overlapping(seats_of_placement(placement), placement.gpus)
    return sum(price(use.job, situation.now) * gpus for use, gpus in used if use is not None)


def latest_start(placement: Placement, situation: Situation) -> float | None:
    """When all jobs on the GPUs of a placement must have ended; None if not known, or without."""
    used = situation.overlapping(seats_of_placement(placement), placement.gpus)
    ends = [None if use is None else use.job.ends for use, _ in used]
    return None if None in ends else max(filter(None, ends), default=None)


class _Offer(NamedTuple):
    """What a node offers at a cost per worker: its state once all jobs but those left ended."""

    cost: float
    node: Node
    empty: Node
    left: Sequence[JobUse]

    @property
    def order(self) -> tuple[object, ...]:
        """The sort key: the cheapest node first, then by name."""
        return self.cost, natural_key(self.node.name)

    def free(self) -> int:
        """The number of GPUs that are free then."""
        named = GPUSet(0)
        for use in self.left:
            named = GPUSet(named | use.gpus)
        others = sum(use.unnamed for use in self.left)
        return max(0, count(GPUSet(self.empty.free & ~named)) - self.empty.unattributed - others)

    def room(self, request: Request) -> int:
        """The number of workers that fit then."""
        workers = self.free() // request.gpus
        if request.cpu or request.memory:
            cpu, memory = self._resources()
            if request.cpu and cpu is not None:
                workers = min(workers, int((cpu + 1e-9) // request.cpu))
            if request.memory and memory is not None:
                workers = min(workers, memory // request.memory)
        return min(workers, request.workers, request.per_node or workers)

    def _resources(self) -> tuple[float | None, int | None]:
        """CPU and memory, of which the jobs left have a share as large as of the GPUs."""
        node, empty = self.node, self.empty
        share = (empty.free_count - self.free()) / max(1, empty.free_count - node.free_count)
        cpu, memory = empty.cpu, empty.memory
        if cpu is not None and node.cpu is not None:
            cpu -= share * (cpu - node.cpu)
        if memory is not None and node.memory is not None:
            memory -= math.ceil(share * (memory - node.memory))
        return cpu, memory

    def opened(self) -> Node:
        """The node as it is then."""
        named, (cpu, memory) = GPUSet(0), self._resources()
        for use in self.left:
            named = GPUSet(named | use.gpus)
        return replace(
            self.empty,
            free=GPUSet(self.empty.free & ~named),
            unattributed=self.empty.unattributed + sum(use.unnamed for use in self.left),
            cpu=cpu,
            memory=memory,
        )


def _offer(
    node: Node, empty: Node, uses: Sequence[JobUse], request: Request, prices: Prices
) -> _Offer:
    """The offer of a node: its cheapest jobs end until as many workers fit as ever can."""
    most = _Offer(0.0, node, empty, ()).room(request)
    left = sorted(uses, key=lambda use: (-prices[use.job.key], use.job.key))
    total = 0.0
    while left and _Offer(0.0, node, empty, left).room(request) < most:
        total += prices[left[-1].job.key] * left.pop().size
    return _Offer(total / max(1, most), node, empty, left)


def _cheapest(request: Request, situation: Situation, price: Price) -> Placement | None:
    """The placement that needs the fewest of the nodes, cheapest first, with their jobs ended."""
    prices = {job.key: price(job, situation.now) for job in situation.running}
    usable = {node.name for node in situation.solver.usable(request)}
    pairs = zip(situation.cluster.nodes, situation.emptied.nodes, strict=True)
    offers = [
        _offer(node, empty, situation.uses(node), request, prices)
        for node, empty in pairs
        # Readings share the nodes on which no job runs.
        if node is not empty and node.free_count < empty.free_count and node.name in usable
    ]
    offers = sorted(
        (offer for offer in offers if offer.free() > offer.node.free_count),
        key=lambda offer: offer.order,
    )
    wanted, least = request.workers * request.gpus, 0
    free = sum(node.free_count for node in situation.cluster.nodes if node.name in usable)
    while least < len(offers) and free < wanted:
        free += offers[least].free() - offers[least].node.free_count
        least += 1

    present = situation.present

    def fits(number: int) -> bool:
        with present.changed(offer.opened() for offer in offers[:number]):
            return present.fits(request)

    step, most = 1, least
    while not fits(most):
        if most == len(offers):
            return None
        least, most, step = most + 1, min(len(offers), most + step), 2 * step
    while least < most:
        middle = (least + most) // 2
        least, most = (least, middle) if fits(middle) else (middle + 1, most)
    with present.changed(offer.opened() for offer in offers[:most]):
        return present.find(request)


def left_for(
    head: QueueHead, cluster: Cluster, own: Mapping[NodeName, tuple[GPUSet, int]] | None = None
) -> Cluster:
    """The cluster with the GPUs, CPU and memory of the head reserved, as others see it.

    `own` are the GPUs by node that wait for such a gang itself, since it was stopped there. What
    waits for the next start of the head stays reserved.
    """
    request = head.gang.request
    reserved = gpus_by_node(head.seats, head.placement.gpus)

    def less(node: Node) -> Node:
        if node.name not in reserved and not (head.strict and node.free):
            return node
        gpus, unnamed = reserved.get(node.name, (GPUSet(0), 0))
        workers = head.placement.loads.get(node.name, 0)
        mine, counted = (own or {}).get(node.name, (GPUSet(0), 0))
        if head.strict:
            gpus, unnamed = GPUSet(gpus | node.free), 0
        cpu, memory, again = 0.0, 0, 0
        for entry, _ in node.reservations():
            if entry.job == head.gang.key:
                gpus, unnamed = GPUSet(gpus | entry.gpus), max(unnamed, entry.unnamed)
                # Less than its request as long as its last pods use the rest.
                cpu, memory = cpu + entry.cpu, memory + entry.memory
                again += math.ceil((count(entry.gpus) + entry.unnamed) / head.placement.gpus)
        withheld, rest = GPUSet(gpus & ~mine), max(0, unnamed - counted)
        if not (withheld or rest):
            return node
        workers = min(workers, math.ceil((count(withheld) + rest) / head.placement.gpus))
        more = max(0, workers - again)
        return node.unreserved_by(head.gang.key).reserve(
            head.gang.key,
            withheld,
            unnamed=rest,
            cpu=cpu + request.cpu * more,
            memory=memory + request.memory * more,
            since=head.since,
        )

    return replace(cluster, nodes=tuple(map(less, cluster.nodes)))
