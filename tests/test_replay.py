"""The replay of a trace: what starts when and where, and what it must never do."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_controller import World, world

from arena_topo.bandwidth import Wire
from arena_topo.queueing import Running, Situation, Waiting, gpus_by_node, seats_of_placement
from arena_topo.queueing.patience import waits_for
from arena_topo.queueing.reservation import head_of, left_for
from arena_topo.simulate import QUEUE_NAMES, ReplayPolicy
from arena_topo.simulate.cases import ReplayCase, ReplayOutcome, Trace, TraceJob, WaitCause
from arena_topo.simulate.emulation import emulated_cluster
from arena_topo.simulate.measures import ReplayMeasures, measures_of
from arena_topo.simulate.neighbours import interference, nearness
from arena_topo.simulate.replay import QUEUE_RULES, ReplayRules, replay_trace
from arena_topo.simulate.traces import Poisson
from arena_topo.solver import Placement, Request
from arena_topo.solver.door import Solver
from arena_topo.topology import Cluster, GPUSet, Holding, count, members, presets

__all__ = ["world"]
"""The fixture."""

HOUR = 3600.0


def trace(*jobs: tuple[float, float, int], **more: Any) -> Trace:
    """Jobs by submission, duration and GPUs."""
    rows = tuple(TraceJob(f"j{at}", *job)._replace(**more) for at, job in enumerate(jobs))
    return Trace(jobs=rows, layout="test")


def replay(
    source: Trace,
    nodes: str,
    *,
    wire: Wire = Wire.RDMA,
    rules: dict[str, Any] | None = None,
    **case: Any,
) -> ReplayOutcome:
    values = {
        "policy": ReplayPolicy.PACK,
        "queue": "gpu-hours",
        "patience": 0.0,
        "load": None,
        "seed": 0,
    }
    cluster = emulated_cluster(nodes, wire)
    return replay_trace(
        source,
        ReplayRules(cluster=cluster, wire=wire, **(rules or {})),
        ReplayCase(**{**values, **case}),
    )


def starts(outcome: ReplayOutcome) -> list[float]:
    return [job.started for job in outcome.jobs]


# By hand


def fifo(jobs: Sequence[tuple[float, float, int]], gpus: int) -> list[float]:
    """The starts on one node where nobody passes anybody, computed without the replay."""
    starts, running, now = [], deque[tuple[float, int]](), 0.0
    for submitted, duration, size in jobs:
        now = max(now, submitted)
        running = deque(sorted(job for job in running if job[0] > now))
        while gpus - sum(held for _, held in running) < size:
            now = running.popleft()[0]
            running = deque(job for job in running if job[0] > now)
        starts.append(now)
        running.append((now + duration, size))
    return starts


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 20).map(float),
            st.integers(1, 9).map(float),
            st.sampled_from([1, 2, 4, 8]),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_one_node_in_strict_order_is_a_fifo_computed_by_hand(
    jobs: list[tuple[float, float, int]],
):
    jobs.sort(key=lambda job: job[0])
    jobs = [(submitted - jobs[0][0], duration, gpus) for submitted, duration, gpus in jobs]
    outcome = replay(trace(*jobs), "1xdgx-1-v100", queue="strict", rules={"as_run": True})
    assert starts(outcome) == fifo(jobs, 8)
    assert all(job.ended == job.started + jobs[job.row][1] for job in outcome.jobs)


def test_a_younger_job_starts_beside_the_head_and_not_on_its_gpus():
    jobs = ((0.0, 100.0, 8), (1.0, 500.0, 4), (2.0, 50.0, 16), (3.0, 50.0, 4), (4.0, 10.0, 1))
    outcome = replay(trace(*jobs), "2xdgx-1-v100")
    # The head needs all GPUs, so nobody passes it.
    assert starts(outcome) == [0.0, 1.0, 501.0, 551.0, 551.0]
    assert outcome.jobs[3].waits == (50.0, 0.0, 498.0, 0.0)
    assert outcome.jobs[2].waits[WaitCause.CAPACITY] == 499.0
    assert starts(replay(trace(*jobs), "2xdgx-1-v100", queue="none"))[3:] == [3.0, 53.0]


def test_a_job_with_a_limit_is_backfilled_where_it_ends_before_the_head_could_start():
    jobs = (
        TraceJob("long", 0.0, 1000.0, 12, timeout=1000.0),
        TraceJob("head", 1.0, 10.0, 16),
        TraceJob("short", 2.0, 100.0, 2, timeout=200.0),
        TraceJob("later", 3.0, 100.0, 2, timeout=2000.0),
    )
    outcome = replay(Trace(jobs=jobs, layout="test"), "2xdgx-1-v100")
    assert starts(outcome) == [0.0, 1000.0, 2.0, 1010.0]


def test_the_higher_priority_comes_first():
    jobs = (
        TraceJob("now", 0.0, 10.0, 8),
        TraceJob("low", 1.0, 10.0, 8),
        TraceJob("high", 2.0, 10.0, 8, priority=5),
    )
    assert starts(replay(Trace(jobs=jobs, layout="test"), "1xdgx-1-v100")) == [0.0, 20.0, 10.0]


def test_patience_waits_for_one_node_until_it_ends():
    jobs = ((0.0, 900.0, 4), (0.0, 5000.0, 5), (1.0, 60.0, 7))
    wait = replay(trace(*jobs), "2xdgx-1-v100", wire=Wire.TCP, patience=HOUR)
    assert starts(wait)[2] == 900.0
    assert wait.jobs[2].waits == (0.0, 0.0, 0.0, 899.0)
    assert (wait.jobs[2].nodes, wait.jobs[2].slowdown) == (1, 1.0)
    short = replay(trace(*jobs), "2xdgx-1-v100", wire=Wire.TCP, patience=60.0)
    assert starts(short)[2] == 61.0
    assert short.jobs[2].nodes == 2
    assert short.jobs[2].low < short.jobs[2].slowdown < short.jobs[2].high
    assert short.jobs[2].ended - 61.0 == pytest.approx(60 * short.jobs[2].slowdown)
    # On a fast network two nodes are good enough.
    halves = ((0.0, 900.0, 4), (0.0, 5000.0, 6), (1.0, 60.0, 6))
    fast = replay(trace(*halves), "2xdgx-1-v100", patience=HOUR)
    assert (starts(fast)[2], fast.jobs[2].nodes) == (1.0, 2)


def test_durations_as_run_have_no_slowdown():
    jobs = ((0.0, 900.0, 4), (0.0, 900.0, 5), (1.0, 60.0, 7))
    outcome = replay(trace(*jobs), "2xdgx-1-v100", wire=Wire.TCP, rules={"as_run": True})
    assert outcome.jobs[2].ended == 61.0


def test_a_faster_model_ends_sooner_where_that_is_said():
    jobs = trace((0.0, 100.0, 8))
    outcome = replay(jobs, "1xhgx-a100", rules={"speeds": {"A100": 2.5}})
    assert outcome.jobs[0].ended == 40.0


def test_what_never_fits_is_named_and_reserves_nothing():
    outcome = replay(trace((0.0, 10.0, 32), (1.0, 10.0, 8)), "2xdgx-1-v100")
    assert outcome.never == {"more GPUs than the cluster has of one model": 1}
    assert [job.row for job in outcome.jobs] == [1]
    worker = replay(trace((0.0, 10.0, 16), each=16), "2xdgx-1-v100")
    assert worker.never == {"a worker has more GPUs than a node (8)": 1}


def test_the_load_stretches_the_times_of_submission():
    jobs = trace((0.0, 100.0, 8), (50.0, 100.0, 8), (100.0, 100.0, 8))
    assert replay(jobs, "2xdgx-1-v100").load == pytest.approx(1.5)
    half = replay(jobs, "2xdgx-1-v100", load=0.75)
    assert [job.submitted for job in half.jobs] == [0.0, 100.0, 200.0]


def test_only_jobs_of_the_window_are_measured():
    jobs = trace(*((float(at), 5.0, 1) for at in range(10)))
    outcome = replay(jobs, "1xdgx-1-v100", rules={"window": (0.2, 0.8)})
    assert [job.row for job in outcome.jobs] == [2, 3, 4, 5, 6, 7]
    assert outcome.integrals["time"] == 5.0


# Properties


_JOBS = st.lists(
    st.tuples(
        st.integers(0, 300).map(float),
        st.integers(1, 200).map(float),
        st.sampled_from([1, 1, 2, 3, 4, 8, 12, 16, 24, 40]),
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(
    _JOBS,
    st.sampled_from(list(ReplayPolicy)),
    st.sampled_from(QUEUE_NAMES),
    st.sampled_from([0.0, 40.0]),
    st.sampled_from(["3xdgx-1-v100", "2xdgx-1-v100,1xhgx-a100", "1xpcie-8,2xhgx-v100-4"]),
    st.sampled_from(list(Wire)),
)
def test_every_job_ends_or_never_fits_and_no_gpu_is_given_twice(  # noqa: PLR0917 - drawn
    jobs: list[tuple[float, float, int]],
    policy: ReplayPolicy,
    queue: str,
    patience: float,
    nodes: str,
    wire: Wire,
):
    """The replay itself asserts that GPUs are free when they are given, and back when it ends."""
    jobs.sort(key=lambda job: job[0])
    outcome = replay(trace(*jobs), nodes, wire=wire, policy=policy, queue=queue, patience=patience)
    assert outcome.waiting == 0
    assert len(outcome.jobs) + sum(outcome.never.values()) == len(jobs)
    busy = sorted({job.started for job in outcome.jobs})
    for moment in busy:
        held = sum(job.gpus for job in outcome.jobs if job.started <= moment < job.ended)
        assert held <= outcome.gpus
    for job in outcome.jobs:
        assert job.submitted <= job.started < job.ended < math.inf
        assert job.waited == pytest.approx(sum(job.waits))
        assert job.gpus == jobs[job.row][2]
        assert job.slowdown >= 1 - 1e-9
        assert 0 <= job.neighbours <= 1
    # Little's law: over a closed run the mean queue is the rate of arrival times the mean wait.
    waited = sum(job.waited for job in outcome.jobs)
    assert outcome.integrals.get("queued", 0.0) == pytest.approx(waited)
    used = sum(job.gpus * (job.ended - job.started) for job in outcome.jobs)
    assert outcome.integrals.get("used", 0.0) == pytest.approx(used)


def test_a_replay_is_the_same_each_time():
    source = Poisson(jobs=60).trace(3, 32)
    for policy in ReplayPolicy:
        one, two = (
            replay(source, "2xdgx-1-v100", policy=policy, load=0.8, seed=3) for _ in range(2)
        )
        assert one == two


def test_all_rules_of_the_queue_have_a_name():
    assert set(QUEUE_NAMES) == set(QUEUE_RULES)


# As production decides


@dataclasses.dataclass
class Gang:
    """A job in the plain loop below."""

    waits: Waiting
    job: TraceJob
    placement: Placement | None = None


def plain_starts(  # noqa: C901 - one loop, to be read from top to bottom
    jobs: Sequence[TraceJob],
    idle: Cluster,
    *,
    wire: Wire,
    queue: str,
    patience: float,
    share: float,
) -> list[tuple[float, dict[str, set[int]]]]:
    """The starts of jobs whose durations are as run, job by job, as the controller decides.

    After each change the head of the queue is found anew, and the jobs are tried in their order;
    nothing is remembered but the last reservation of the head.
    """
    gangs = [
        Gang(
            Waiting(
                key=f"{at:09}",
                request=Request(workers=job.gpus // job.each, gpus=job.each, wire=wire),
                priority=job.priority,
                since=job.submitted,
                timeout=job.timeout,
                until=job.submitted + patience if patience and job.gpus > 1 else -math.inf,
            ),
            job,
        )
        for at, job in enumerate(jobs)
    ]
    done: dict[str, tuple[float, float, Placement]] = {}

    def now_of(now: float) -> Situation:
        held: dict[str, list[Holding]] = {}
        running = []
        for gang in gangs:
            if gang.waits.key in done and done[gang.waits.key][1] > now:
                started, _, placement = done[gang.waits.key]
                running.append(
                    Running(key=gang.waits.key, started=started, timeout=gang.job.timeout)
                )
                for name, (gpus, _) in gpus_by_node(seats_of_placement(placement), 1).items():
                    held.setdefault(name, []).append(Holding(gang.waits.key, count(gpus), gpus))
        nodes = []
        for node in idle.nodes:
            free = node.free
            for holding in held.get(node.name, ()):
                free = GPUSet(free & ~holding.gpus)
            holders = tuple(held.get(node.name, ()))
            nodes.append(dataclasses.replace(node, free=free, holders=holders))
        cluster = dataclasses.replace(idle, nodes=tuple(nodes))
        return Situation(cluster=cluster, emptied=idle, running=tuple(running), now=now)

    def start(now: float) -> bool:
        seen = now_of(now)
        queued = sorted(
            (gang for gang in gangs if gang.job.submitted <= now and gang.waits.key not in done),
            key=lambda gang: gang.waits.rank,
        )
        rule = dataclasses.replace(QUEUE_RULES[queue], worthwhile=share)
        head = head_of((gang.waits for gang in queued), seen, rule)
        if head is not None:
            first = next(gang for gang in queued if gang.waits.key == head.gang.key)
            first.waits = dataclasses.replace(first.waits, last=(head.seats, head.since))
        for gang in queued:
            cluster = seen.cluster
            if head is not None and head.delayed_by(gang.waits.rank, gang.job.timeout, now):
                cluster = left_for(head, cluster)
            offer = Solver(cluster).find(gang.waits.request)
            if offer is None:
                continue
            best = Solver(idle).find(gang.waits.request)
            if now < gang.waits.until and waits_for(
                gang.waits.request, offer, best, until=gang.waits.until, share=share
            ):
                continue
            done[gang.waits.key] = now, now + gang.job.duration, offer
            return True
        return False

    fitting = [gang for gang in gangs if Solver(idle).find(gang.waits.request) is not None]
    gangs[:] = fitting
    moments = sorted({gang.job.submitted for gang in gangs} | {gang.waits.until for gang in gangs})
    while len(done) < len(gangs):
        now = moments.pop(0)
        if now < 0:
            continue
        while start(now):
            pass
        moments = sorted({*moments, *(end for _, end, _ in done.values() if end > now)})
    return [
        (
            done[gang.waits.key][0],
            {
                str(name): set(members(gpus))
                for name, (gpus, _) in gpus_by_node(
                    seats_of_placement(done[gang.waits.key][2]), 1
                ).items()
            },
        )
        for gang in gangs
    ]


@settings(max_examples=60, deadline=None)
@given(
    _JOBS,
    st.sampled_from(["gpu-hours", "gpus", "emptied", "strict"]),
    st.sampled_from([0.0, 40.0, 1000.0]),
    st.sampled_from([1 / 3, 1 / 1.5]),
    st.sampled_from(list(Wire)),
    st.lists(st.sampled_from([None, None, 60.0, 250.0]), min_size=30, max_size=30),
    st.lists(st.sampled_from([0, 0, 0, 1]), min_size=30, max_size=30),
)
@example(  # The fourth job becomes the head while no GPU is free, and reserves its GPUs then.
    [
        (0, 103, 16),
        (23, 123, 4),
        (28, 200, 4),
        (42, 9, 16),
        (85, 79, 24),
        (257, 1, 8),
        (257, 3, 16),
    ],
    "gpu-hours",
    0.0,
    1 / 3,
    Wire.RDMA,
    [None] * 7,
    [0, 0, 0, 0, 1, 0, 1],
)
def test_starts_are_those_of_the_functions_that_decide_on_a_cluster(  # noqa: PLR0917 - drawn
    jobs: list[tuple[float, float, int]],
    queue: str,
    patience: float,
    share: float,
    wire: Wire,
    limits: list[float | None],
    priorities: list[int],
):
    jobs.sort(key=lambda job: job[0])
    rows = tuple(
        TraceJob(f"j{at}", submitted - jobs[0][0], duration, gpus, 1, "", priority, limit)
        for at, ((submitted, duration, gpus), limit, priority) in enumerate(
            zip(jobs, limits, priorities, strict=False)
        )
    )
    outcome = replay(
        Trace(jobs=rows, layout="test"),
        "3xdgx-1-v100",
        wire=wire,
        queue=queue,
        patience=patience,
        worthwhile=share,
        rules={"as_run": True, "review": 0.0},
    )
    idle = emulated_cluster("3xdgx-1-v100", wire)
    wanted = plain_starts(rows, idle, wire=wire, queue=queue, patience=patience, share=share)
    assert starts(outcome) == [start for start, _ in wanted]
    assert [job.nodes for job in outcome.jobs] == [len(places) for _, places in wanted]


CONTROLLED = (
    TraceJob("long", 0.0, 9000.0, 4, 4, timeout=9000.0),
    TraceJob("half", 200.0, 1500.0, 8, 8, timeout=1600.0),
    TraceJob("large", 400.0, 600.0, 16, 8),
    TraceJob("brief", 600.0, 700.0, 8, 8, timeout=800.0),
    TraceJob("small", 800.0, 900.0, 4, 4),
    TraceJob("young", 1000.0, 400.0, 8, 8),
    TraceJob("last", 1200.0, 300.0, 16, 8),
)
"""Jobs for three machines: a head that waits, backfill by a time limit, and gangs behind it."""


def controlled_starts(here: World, jobs: Sequence[TraceJob]) -> dict[str, tuple[float, set[str]]]:
    """When and where the controller starts jobs that are submitted, and end, as in a trace."""
    started: dict[str, tuple[float, set[str]]] = {}
    left, now = list(jobs), 0.0
    ends: dict[str, float] = {}
    while left or ends or len(started) < len(jobs):
        moment = min([*(job.submitted for job in left), *ends.values()])
        here.later(moment - now)
        now = moment
        for name in [name for name, end in ends.items() if end == now]:
            here.backend.delete(name, "default")
            del ends[name]
        here.cluster.settle()
        for job in [job for job in left if job.submitted == now]:
            limit = int(job.timeout or 0)
            here.submit(job.name, job.gpus // job.each, job.each, running_timeout=limit)
            left.remove(job)
        here.rounds(3)
        for job in jobs:
            if job.name not in started and job not in left and here.runs(job.name):
                started[job.name] = now, here.nodes(job.name)
                ends[job.name] = now + job.duration
    return started


def test_the_controller_on_a_fake_cluster_starts_the_jobs_of_a_trace_as_the_replay_does(
    world: Callable[..., World],
) -> None:
    wanted = controlled_starts(world(3), CONTROLLED)
    outcome = replay(
        Trace(jobs=CONTROLLED, layout="test"),
        "3xdgx-1-v100",
        rules={"as_run": True, "review": 0.0},
    )
    began = {CONTROLLED[job.row].name: (job.started, job.nodes) for job in outcome.jobs}
    assert {name: (at, len(nodes)) for name, (at, nodes) in wanted.items()} == began
    assert [job.row for job in outcome.jobs if job.waited] == [2, 5, 6]


# What was published


def by_class(runs: Sequence[ReplayMeasures], at: int, what: str) -> float:
    return fmean(getattr(run.sizes[at], what) for run in runs)


def mean_min_max(**case: Any) -> list[ReplayMeasures]:
    """Five seeds on a busy cluster."""
    return [
        measures_of(
            replay(
                Poisson(jobs=500).trace(seed, 128),
                "16xdgx-1-v100",
                rules={"window": (0.2, 0.8), **case.get("rules", {})},
                load=case.get("load", 0.9),
                seed=seed,
                **{name: value for name, value in case.items() if name not in {"rules", "load"}},
            )
        )
        for seed in range(5)
    ]


def test_the_effects_that_studies_of_clusters_have_published_have_their_direction():
    """Larger jobs wait longer, relaxed locality shortens that, more servers are less efficient.

    Jeon et al., ATC 2019.
    """
    relaxed = mean_min_max(wire=Wire.TCP, policy=ReplayPolicy.BEST_FIT)
    strict = mean_min_max(wire=Wire.TCP, policy=ReplayPolicy.BEST_FIT, patience=1e9)
    assert by_class(relaxed, 3, "mean") > 2 * by_class(relaxed, 0, "mean")
    assert by_class(strict, 2, "mean") > 1.1 * by_class(relaxed, 2, "mean")
    spread = mean_min_max(wire=Wire.TCP, policy=ReplayPolicy.RANDOM, load=0.5)
    assert by_class(spread, 2, "nodes") > 2 * by_class(relaxed, 2, "nodes")
    assert by_class(spread, 2, "slowdown") > 1.5 * by_class(relaxed, 2, "slowdown")


# Neighbours


def test_the_nearest_neighbour_counts_by_what_is_shared():
    machine = presets.preset_machine("dgx-1-v100", "n")
    near = [nearness(machine, GPUSet(1), GPUSet(1 << gpu)) for gpu in range(1, 8)]
    assert near == [1.0, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25]
    assert nearness(machine, GPUSet(1), GPUSet(0)) == 0.0
    assert nearness(machine, GPUSet(1), GPUSet(0b11100)) == 0.5
    assert interference(0.4, 0.5) == pytest.approx(1.2)


def test_neighbours_count_as_long_as_they_are_there():
    outcome = replay(trace((0.0, 100.0, 6), (50.0, 100.0, 2)), "1xdgx-1-v100")
    # Six GPUs leave a pair that shares a socket, but no switch, with them.
    assert [job.neighbours for job in outcome.jobs] == pytest.approx([0.5, 0.5])
