"""The values of a simulation: traces, cases to replay, and what became of the jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from arena_topo.queueing.patience import WORTHWHILE
from arena_topo.simulate import ReplayPolicy
from arena_topo.topology import GPUSet, NodeName


class TraceJob(NamedTuple):
    """A job of a trace; times are seconds since the first submission.

    `gpus` is the number of all its GPUs, `each` that of a worker. `workload` is "" where the trace
    has none, `timeout` the limit of its running time.
    """

    name: str
    submitted: float
    duration: float
    gpus: int
    each: int = 1
    workload: str = ""
    priority: int = 0
    timeout: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The jobs of a trace in the order of their submission.

    `layout` is the kind of its source. `left_out` counts the rows without a job of GPUs, by reason.
    `shaped`: it has the number of GPUs of a worker. `disordered` rows came before an earlier one.
    """

    jobs: tuple[TraceJob, ...]
    layout: str
    left_out: Mapping[str, int] = field(default_factory=dict)
    shaped: bool = False
    disordered: int = 0

    @property
    def gpu_seconds(self) -> float:
        """The GPU time that all jobs ask for."""
        return sum(job.gpus * job.duration for job in self.jobs)

    @property
    def span(self) -> float:
        """Seconds from the first submission to the last."""
        return self.jobs[-1].submitted if self.jobs else 0.0


class WaitCause(IntEnum):
    """Why a job waits, as at its last try."""

    CAPACITY = 0
    FRAGMENTS = 1
    RESERVED = 2
    PATIENCE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCase:
    """One replay: the policy, the rule of the queue, seconds of patience, the load, the seed.

    The load is GPU time asked for over GPU time there is; None leaves the times of the trace.
    `worthwhile` is the share of the best bandwidth for which gangs wait.
    """

    policy: ReplayPolicy
    queue: str
    patience: float
    load: float | None
    seed: int
    worthwhile: float = WORTHWHILE


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job that runs at the start: its GPUs by node, how long it has run, and its time limit.

    It ends by its limit, else after as long again as it has run; one of unknown age never ends.
    """

    name: str
    places: Mapping[NodeName, tuple[GPUSet, int]]
    age: float | None
    timeout: float | None = None


class ReplayedJob(NamedTuple):
    """What became of a job; times are seconds since the first submission.

    `row` is its place in the trace. `nodes` are those it ran on, `fewest` those of its best
    placement. `slowdown` is the length of
    its steps over that on its best placement, with its range. `ideal` is its duration there.
    `waits` are seconds by cause, `neighbours` how near other jobs were on average (0 to 1).
    """

    row: int
    submitted: float
    started: float
    ended: float
    gpus: int
    nodes: int
    fewest: int
    slowdown: float
    low: float
    high: float
    ideal: float
    waits: tuple[float, ...]
    neighbours: float

    @property
    def waited(self) -> float:
        """Seconds from its submission to its start."""
        return self.started - self.submitted

    @property
    def completion(self) -> float:
        """Seconds from its submission to its end."""
        return self.ended - self.submitted


class Sample(NamedTuple):
    """A moment: GPUs in use, and GPUs that waiting jobs ask for."""

    at: float
    used: int
    queued: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOutcome:
    """The outcome of one replay: the measured jobs in the order of the trace, and sums over time.

    `never` counts jobs that fit the empty cluster never, by reason; `waiting` are those that still
    wait when nothing more happens. `integrals` are sums of quantities times seconds.
    """

    case: ReplayCase
    load: float
    gpus: int
    nodes: int
    jobs: tuple[ReplayedJob, ...]
    never: Mapping[str, int]
    waiting: int
    integrals: Mapping[str, float]
    samples: tuple[Sample, ...]
    makespan: float
