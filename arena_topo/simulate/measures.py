"""What a replay measured: by class of sizes and as a whole, and the differences between replays.

Waiting, completion and run times are hours; sums go over the jobs in the order of the trace, so
that equal replays give equal numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from arena_topo.simulate.cases import (
    ReplayCase,
    ReplayedJob,
    ReplayOutcome,
    Sample,
    WaitCause,
)
from arena_topo.simulate.neighbours import SENSITIVITIES, interference

HOUR = 3600.0

SIZE_CLASSES: tuple[tuple[str, int, float], ...] = (
    ("1", 1, 1),
    ("2-4", 2, 4),
    ("5-8", 5, 8),
    (">8", 9, math.inf),
)
"""The classes of jobs by their number of GPUs: those of Philly's study."""

QUANTILES = tuple(share / 100 for share in (*range(0, 100, 5), 99, 100))
"""The shares of the jobs at which a curve of waiting times is sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeMeasures:
    """The measures of the jobs of a class; all are 0 if it has no job.

    `causes` are mean hours of waiting by cause; `curve` are waiting times at `QUANTILES`.
    `slowdown`, `low` and `high` are means. `neighbours` are mean factors at `SENSITIVITIES`.
    `lost` are GPU-hours by slower steps. `fewest` are the nodes of the best placements.
    """

    name: str
    jobs: int
    mean: float
    median: float
    p95: float
    longest: float
    causes: tuple[float, ...]
    curve: tuple[float, ...]
    completion: float
    slowdown: float
    low: float
    high: float
    neighbours: tuple[float, ...]
    lost: float
    nodes: float
    fewest: float
    single: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayMeasures:
    """The measures of a replay.

    `gar` is the share of the GPUs in use over time (GPU allocation ratio), `gar_waiting` while jobs
    wait; `gfr` the share of nodes that are partly in use (GPU fragmentation ratio). `jtted` is the
    number of nodes of a gang over the fewest, on average. `reserved` are GPU-hours of GPUs that
    were free, but reserved for the head of the queue. `queued` is the mean number of waiting jobs.
    """

    case: ReplayCase
    load: float
    jobs: int
    never: tuple[tuple[str, int], ...]
    waiting: int
    sizes: tuple[SizeMeasures, ...]
    completion: float
    lost: float
    reserved: float
    gar: float
    gar_waiting: float
    gfr: float
    jtted: float
    queued: float
    makespan: float
    samples: tuple[Sample, ...]

    @property
    def setting(self) -> tuple[object, ...]:
        """The case without its seed."""
        case = self.case
        return case.load, case.policy, case.queue, case.patience, case.worthwhile


def measures_of(outcome: ReplayOutcome) -> ReplayMeasures:
    """The measures of an outcome."""
    jobs, sums = outcome.jobs, outcome.integrals
    time, waiting = sums.get("time", 0.0), sums.get("time waiting", 0.0)
    gangs = [job for job in jobs if job.gpus > 1]
    return ReplayMeasures(
        case=outcome.case,
        load=outcome.load,
        jobs=len(jobs),
        never=tuple(sorted(outcome.never.items())),
        waiting=outcome.waiting,
        sizes=tuple(
            _of_size(name, [job for job in jobs if least <= job.gpus <= most])
            for name, least, most in SIZE_CLASSES
        ),
        completion=_mean(job.completion for job in jobs) / HOUR,
        lost=_lost(jobs),
        reserved=sums.get("reserved idle", 0.0) / HOUR,
        gar=_share(sums.get("used", 0.0), time * outcome.gpus),
        gar_waiting=_share(sums.get("used waiting", 0.0), waiting * outcome.gpus),
        gfr=_share(sums.get("partial", 0.0), time * outcome.nodes),
        jtted=_mean(job.nodes / job.fewest for job in gangs),
        queued=_share(sums.get("queued", 0.0), time),
        makespan=outcome.makespan / HOUR,
        samples=outcome.samples,
    )


def _of_size(name: str, jobs: Sequence[ReplayedJob]) -> SizeMeasures:
    waits = sorted(job.waited / HOUR for job in jobs)
    return SizeMeasures(
        name=name,
        jobs=len(jobs),
        mean=_mean(waits),
        median=quantile(waits, 0.5),
        p95=quantile(waits, 0.95),
        longest=quantile(waits, 1.0),
        causes=tuple(_mean(job.waits[cause] for job in jobs) / HOUR for cause in WaitCause),
        curve=tuple(quantile(waits, share) for share in QUANTILES),
        completion=_mean(job.completion for job in jobs) / HOUR,
        slowdown=_mean(job.slowdown for job in jobs),
        low=_mean(job.low for job in jobs),
        high=_mean(job.high for job in jobs),
        neighbours=tuple(
            _mean(interference(sensitivity, job.neighbours) for job in jobs)
            for sensitivity in SENSITIVITIES
        ),
        lost=_lost(jobs),
        nodes=_mean(job.nodes for job in jobs),
        fewest=_mean(job.fewest for job in jobs),
        single=_mean(job.nodes == 1 for job in jobs),
    )


def _lost(jobs: Iterable[ReplayedJob]) -> float:
    """The GPU-hours by which jobs ran longer than on their best placements."""
    return sum(job.gpus * (job.ended - job.started - job.ideal) for job in jobs) / HOUR


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below or at which this share of sorted values lies (nearest rank); 0 of none."""
    if not ordered:
        return 0.0
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _mean(values: Iterable[float]) -> float:
    some = list(values)
    return fmean(some) if some else 0.0


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedDifference:
    """The mean completion time of a setting over that of the first, seed by seed.

    The ratios minus 1: their mean, least and largest over the seeds.
    """

    mean: float
    least: float
    most: float
    seeds: int

    @property
    def verdict(self) -> str:
        """`longer` or `shorter` where all seeds say so, else `no difference`."""
        if self.seeds == 1:
            return "one seed"
        if self.least <= 0 <= self.most:
            return "no difference"
        return "longer" if self.mean > 0 else "shorter"


def seed_difference(
    runs: Sequence[ReplayMeasures], first: Sequence[ReplayMeasures]
) -> SeedDifference | None:
    """The difference of a setting to the first one by seeds that both have; None without any."""
    base = {run.case.seed: run.completion for run in first}
    ratios = [
        run.completion / base[run.case.seed] - 1 for run in runs if base.get(run.case.seed, 0.0)
    ]
    if not ratios:
        return None
    return SeedDifference(
        mean=fmean(ratios), least=min(ratios), most=max(ratios), seeds=len(ratios)
    )


def by_setting(runs: Iterable[ReplayMeasures]) -> dict[tuple[object, ...], list[ReplayMeasures]]:
    """The replays of each setting, in the order of the settings."""
    settings: dict[tuple[object, ...], list[ReplayMeasures]] = {}
    for run in runs:
        settings.setdefault(run.setting, []).append(run)
    return settings


def mean_min_max(values: Iterable[float]) -> tuple[float, float, float]:
    """The mean of some values, the least and the largest."""
    some = list(values)
    return _mean(some), min(some, default=0.0), max(some, default=0.0)
