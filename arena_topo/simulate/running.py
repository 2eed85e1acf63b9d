"""All replays of a simulation, one after another or in several processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from arena_topo.simulate import ReplayPolicy
from arena_topo.simulate.cases import (
    ReplayCase,
    ReplayedJob,
    Trace,
)
from arena_topo.simulate.measures import ReplayMeasures, measures_of
from arena_topo.simulate.replay import ReplayRules, replay_trace
from arena_topo.simulate.traces import Poisson


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationPlan:
    """What a simulation replays: a trace, or one to generate by seed, and the cases.

    `network` is the network of the cluster in words.
    """

    source: Trace | Poisson
    rules: ReplayRules
    network: str
    cases: tuple[ReplayCase, ...]

    def trace(self, seed: int) -> Trace:
        """The trace of a seed."""
        if isinstance(self.source, Trace):
            return self.source
        largest = sum(node.free_count for node in self.rules.cluster.nodes)
        return self.source.trace(seed, largest)


@dataclass(slots=True, kw_only=True)
class Simulation:
    """The replays of a plan that are done, in its order. `jobs` are those of each, if asked for."""

    plan: SimulationPlan
    runs: list[ReplayMeasures] = field(default_factory=list)
    jobs: list[tuple[ReplayedJob, ...]] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether all replays are done."""
        return len(self.runs) == len(self.plan.cases)


def cases_of(
    policies: Sequence[ReplayPolicy],
    queues: Sequence[str],
    patiences: Sequence[float],
    loads: Sequence[float | None],
    seeds: int,
) -> tuple[ReplayCase, ...]:
    """Every combination, the seeds of a setting beside each other."""
    return tuple(
        ReplayCase(policy=policy, queue=queue, patience=patience, load=load, seed=seed)
        for load, policy, queue, patience, seed in product(
            loads, policies, queues, patiences, range(seeds)
        )
    )


def simulate_plan(
    simulation: Simulation, *, processes: int, keep_jobs: bool, tell: Callable[[int], None]
) -> None:
    """Replay every case of a plan, in its order; `tell` gets the number of replays that are done.

    The simulation has what was done, whatever ends this early. The result does not depend on the
    number of processes.
    """
    cases = simulation.plan.cases
    number = max(1, min(processes, len(cases)))
    tell(0)
    if number == 1:
        results: Iterable[_Result] = (_replayed(simulation.plan, case, keep_jobs) for case in cases)
        _collect(simulation, results, tell)
        return
    import multiprocessing  # noqa: PLC0415 - only for several processes
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415 - as above

    before = {child.pid for child in multiprocessing.active_children()}
    # Forked, so that the trace is not sent to each process.
    with ProcessPoolExecutor(
        number,
        mp_context=multiprocessing.get_context("fork"),
        initializer=_begin_worker,
        initargs=(simulation.plan, keep_jobs),
    ) as pool:
        try:
            _collect(simulation, pool.map(_work, cases), tell)
        except BaseException:
            for child in multiprocessing.active_children():
                if child.pid not in before:
                    child.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


_Result = tuple[ReplayMeasures, tuple[ReplayedJob, ...]]


def _collect(
    simulation: Simulation, results: Iterable[_Result], tell: Callable[[int], None]
) -> None:
    for measures, jobs in results:
        simulation.runs.append(measures)
        simulation.jobs.append(jobs)
        tell(len(simulation.runs))


def _replayed(plan: SimulationPlan, case: ReplayCase, keep_jobs: bool) -> _Result:  # noqa: FBT001
    outcome = replay_trace(plan.trace(case.seed), plan.rules, case)
    return measures_of(outcome), outcome.jobs if keep_jobs else ()


_WORK: list[tuple[SimulationPlan, bool]] = []


def _begin_worker(plan: SimulationPlan, keep_jobs: bool) -> None:  # noqa: FBT001
    """The program that started this process ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _WORK[:] = [(plan, keep_jobs)]


def _work(case: ReplayCase) -> _Result:
    plan, keep_jobs = _WORK[0]
    return _replayed(plan, case, keep_jobs)


def usable_processors() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0))


def done_so_far(simulation: Simulation) -> Iterator[tuple[ReplayMeasures, Sequence[ReplayedJob]]]:
    """Each replay that is done, with its jobs."""
    yield from zip(simulation.runs, simulation.jobs, strict=True)
