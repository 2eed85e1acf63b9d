"""Which waiting gang starts when: one rule, pure, for every starter, every engine, and a simulator.

The oldest waiting gang that fits at all is the head of the queue: by priority, then age. It
reserves GPUs; younger gangs get others, unless they must end before the head could start: these do
not delay it (EASY backfilling, Lifka 1995, "The ANL/IBM SP Scheduling System").

    reservation   the head, the GPUs that it reserves, and what is left for others
    patience      whether a gang waits for more bandwidth than it could have now

This module has the values. Times are Unix seconds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from arena_topo.solver import Placement, Request, Seats
from arena_topo.solver.door import Follower, Solver
from arena_topo.topology import Cluster, GPUSet, Node, NodeName, count, gpu_set

Rank = tuple[int, float, tuple[str, ...]]
"""The place of a gang in the queue: priority, then age, then name; the smaller comes first."""

LAST: Rank = (1 << 62, math.inf, ())
"""Behind all others, whatever their priority."""


def queue_rank(priority: int, since: float, key: tuple[str, ...]) -> Rank:
    """The place of a gang that waits since a time: the one order of every queue."""
    return -priority, since, key


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A gang that waits since `since`; inf for a gang that is yet to be submitted.

    `key` is its name for people (`namespace/name`). `timeout` is the limit of its running time in
    seconds. It is patient until `until`. `last` is what it has reserved before, as its seats, and
    since when.
    """

    key: str
    request: Request
    priority: int = 0
    since: float = 0.0
    timeout: float | None = None
    until: float = -math.inf
    last: tuple[Seats, float] | None = None

    @property
    def rank(self) -> Rank:
        """Its place in the queue; the smaller comes first."""
        return queue_rank(self.priority, self.since, tuple(self.key.split("/")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A job with GPUs, or with GPUs reserved for its next start; nodes name it by the same key.

    `started` is None before its start, `timeout` is the limit of its running time in seconds.
    """

    key: str
    started: float | None = None
    timeout: float | None = None

    @property
    def ends(self) -> float | None:
        """When it must have ended; None if that is not known."""
        known = self.timeout is not None and self.started is not None
        return (self.started or 0.0) + (self.timeout or 0.0) if known else None

    def remaining(self, now: float) -> float:
        """The seconds that it will run on: to its limit, else as long again as it has run."""
        if self.ends is not None:
            return max(0.0, self.ends - now)
        return 0.0 if self.started is None else max(0.0, now - self.started)


class JobUse(NamedTuple):
    """The GPUs of a job on one node: those with known indexes, and the number of the others."""

    job: Running
    gpus: GPUSet
    unnamed: int

    @property
    def size(self) -> int:
        """The number of GPUs."""
        return count(self.gpus) + self.unnamed


@dataclass(frozen=True, slots=True)
class Followers:
    """Solvers that follow a cluster from one situation to the next: as it is, and emptied."""

    present: Follower = field(default_factory=Follower)
    emptied: Follower = field(default_factory=Follower)


@dataclass(frozen=True, kw_only=True)
class Situation:
    """The cluster as it is at `now`, the jobs that run on it, and the cluster without these jobs.

    Both clusters have the same nodes in the same order. Whoever owns `followers` passes them on to
    the next situation.
    """

    cluster: Cluster
    emptied: Cluster
    running: tuple[Running, ...]
    now: float
    followers: Followers = field(default_factory=Followers, repr=False, compare=False)

    @cached_property
    def _jobs(self) -> Mapping[str, Running]:
        return {job.key: job for job in self.running}

    def uses(self, node: Node) -> tuple[JobUse, ...]:
        """The jobs on a node."""
        jobs = self._jobs
        uses = [
            JobUse(jobs[job], gpus, max(0, size - count(gpus)))
            for job, size, gpus in node.holders
            if job in jobs
        ]
        uses += [
            JobUse(jobs[entry.job], entry.gpus, entry.unnamed)
            for entry, _ in node.reservations()
            if entry.job in jobs
        ]
        return tuple(uses)

    @cached_property
    def _reserved(self) -> tuple[Node, ...]:
        """The nodes with reserved GPUs."""
        return tuple(node for node in self.cluster.nodes if node.reserved is not None)

    def seen_by(self, gang: str) -> Situation:
        """The situation of a gang (a key): what is reserved for its own next start is free."""
        if all(entry.job != gang for node in self._reserved for entry, _ in node.reservations()):
            return self
        nodes = tuple(node.unreserved_by(gang) for node in self.cluster.nodes)
        return replace(self, cluster=replace(self.cluster, nodes=nodes))

    @property
    def present(self) -> Solver:
        """The solver of the cluster as it is."""
        return self.followers.present.at(self.cluster)

    @property
    def solver(self) -> Solver:
        """The solver of the emptied cluster."""
        return self.followers.emptied.at(self.emptied)

    def best_ever(self, request: Request) -> Placement | None:
        """The best placement of a gang on the emptied cluster."""
        return self.solver.find(request)

    def overlapping(self, seats: Seats, gpus: int) -> Iterator[tuple[JobUse | None, int]]:
        """The jobs on the GPUs of these seats, `gpus` each, with the number of their GPUs there.

        None stands for GPUs that are not free, and of none of these jobs.
        """
        wanted = gpus_by_node(seats, gpus)
        for node in self.cluster.nodes:
            if node.name not in wanted:
                continue
            named, unnamed = wanted[node.name]
            others = GPUSet(named & ~node.free)
            for use in self.uses(node):
                # GPUs without indexes may be any of their node.
                if unnamed or use.unnamed or use.gpus & named:
                    shared = count(GPUSet(use.gpus & named))
                    yield use, use.size if unnamed else shared + use.unnamed
                others = GPUSet(0) if use.unnamed else GPUSet(others & ~use.gpus)
            if others:
                yield None, count(others)


def gpus_by_node(seats: Seats, gpus: int) -> Mapping[NodeName, tuple[GPUSet, int]]:
    """The GPUs of seats by node, and the number of those without indexes, at `gpus` per seat."""
    named: dict[NodeName, list[int]] = defaultdict(list)
    unnamed: dict[NodeName, int] = defaultdict(int)
    for node, indexes in seats:
        named[node] += indexes
        unnamed[node] += 0 if indexes else gpus
    return {node: (gpu_set(indexes), unnamed[node]) for node, indexes in named.items()}


def seats_of_placement(placement: Placement) -> Seats:
    """The seats of a placement in rank order."""
    return tuple((assignment.node, assignment.gpus) for assignment in placement.assignments)
