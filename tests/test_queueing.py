"""The rule of the queue: who is first, what is reserved for it, and who may pass it meanwhile."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from cube_mesh import HGX, V100, cluster, node
from hypothesis import given
from hypothesis import strategies as st
from replacing import replace

from arena_topo.queueing import Running, Situation, Waiting, seats_of_placement
from arena_topo.queueing.reservation import (
    EMPTIED,
    GPU_HOURS,
    GPUS,
    STRICT,
    QueueHead,
    QueueRule,
    head_of,
    left_for,
    price_of_missing,
    reserved_placement,
)
from arena_topo.solver import Request, Seats
from arena_topo.solver.door import Solver
from arena_topo.topology import Cluster, GPUSet, Holding, Machine, NodeName, Tier, count, gpu_set

NOW = 1_900_000_000.0
HOUR = 3600.0

Places = Mapping[str, Sequence[int]]
"""The GPUs of a job by node."""


def gang(name: str, workers: int = 1, gpus: int = 8, **more: Any) -> Waiting:
    request = Request(workers=workers, gpus=gpus, **more.pop("request", {}))
    return Waiting(key=f"a/{name}", request=request, **{"since": NOW - 60, **more})


def runs(age: float | None, timeout: float | None = None) -> tuple[float | None, float | None]:
    """The start and the limit of a job that has run for so many hours, with a limit in hours."""
    return (
        None if age is None else NOW - age * HOUR,
        None if timeout is None else timeout * HOUR,
    )


def situation(
    jobs: Mapping[str, tuple[tuple[float | None, float | None], Places]],
    *,
    nodes: int = 2,
    machine: Machine = HGX,
    tiers: float | None = None,
    **more: Any,
) -> Situation:
    """Nodes with these jobs on them; `tiers`: GB/s of a leaf that joins all nodes."""
    if tiers is not None:
        more["domains"] = ("leaf-0",)
    emptied = cluster(*(node(f"node-{at}", machine, **more) for at in range(nodes)))
    if tiers is not None:
        emptied = replace(emptied, tiers=(Tier(name="leaf", bandwidth=tiers),))
    return busy(emptied, jobs)


def busy(
    emptied: Cluster, jobs: Mapping[str, tuple[tuple[float | None, float | None], Places]]
) -> Situation:
    """These jobs on these nodes."""
    now = []
    for each in emptied.nodes:
        held = {
            name: gpu_set(places[each.name])
            for name, (_, places) in jobs.items()
            if each.name in places
        }
        used = GPUSet(0)
        for gpus in held.values():
            used = GPUSet(used | gpus)
        holders = tuple(
            Holding(job=f"a/{name}", size=count(gpus), gpus=gpus) for name, gpus in held.items()
        )
        now.append(replace(each, free=GPUSet(each.free & ~used), holders=holders))
    running = tuple(
        Running(key=f"a/{name}", started=started, timeout=timeout)
        for name, ((started, timeout), _) in jobs.items()
    )
    return Situation(
        cluster=replace(emptied, nodes=tuple(now)), emptied=emptied, running=running, now=NOW
    )


ALL = range(8)


def reserved(head: QueueHead | None) -> dict[str, set[int]]:
    """The reserved GPUs by node."""
    assert head is not None
    places: dict[str, set[int]] = {}
    for name, gpus in seats_of_placement(head.placement):
        places.setdefault(str(name), set()).update(gpus)
    return places


# Who is first


def test_the_order_is_by_priority_then_age_then_name() -> None:
    gangs = [
        gang("b", since=1.0),
        gang("a", since=1.0),
        gang("old", since=0.5),
        gang("urgent", since=9.0, priority=10),
        gang("idle", since=0.0, priority=-10),
    ]
    for order in itertools.permutations(gangs):
        names = [one.key for one in sorted(order, key=lambda one: one.rank)]
        assert names == ["a/urgent", "a/old", "a/a", "a/b", "a/idle"]


def test_a_gang_that_never_fits_reserves_nothing() -> None:
    queue = [gang("huge", workers=9), gang("real")]
    head = head_of(queue, situation({}))
    assert head is not None
    assert head.gang.key == "a/real"
    assert head_of(queue[:1], situation({})) is None


def test_a_gang_that_is_blocked_reserves_nothing() -> None:
    queue = [gang("short"), gang("real")]
    head = head_of(queue, situation({}), blocked=lambda one: one is queue[0])
    assert head is not None
    assert head.gang is queue[1]


# What it reserves


def test_the_head_does_not_wait_for_a_job_of_weeks() -> None:
    """A job of weeks has node-0, and the other half of node-1 is about to be free."""
    seen = situation(
        {"weeks": (runs(500), {"node-0": ALL}), "young": (runs(0.1), {"node-1": range(4)})}
    )
    head = head_of([gang("head")], seen)
    assert reserved(head) == {"node-1": {*ALL}}
    assert head is not None
    left = left_for(head, seen.cluster)
    assert Solver(left).find(gang("younger", gpus=4).request) is None


def test_large_gangs_do_not_starve_while_the_cluster_turns_over() -> None:
    """Younger gangs of 4 that each run for an hour keep coming; node-0 has a job of weeks."""
    emptied = situation({}).emptied
    jobs: dict[str, tuple[tuple[float | None, float | None], Places]] = {
        "weeks": (runs(500), {"node-0": ALL}),
        "first": (runs(0.5), {"node-1": range(4)}),
    }
    head = gang("head")
    for hour in range(4):
        seen = busy(emptied, jobs)
        if Solver(seen.cluster).find(head.request) is not None:
            break
        first = head_of([head], seen)
        assert first is not None
        younger = Solver(left_for(first, seen.cluster)).find(Request(workers=1, gpus=4))
        # Whoever ends is replaced by a younger gang, if that gets a place.
        jobs = {"weeks": jobs["weeks"]}
        if younger is not None:
            places = {str(name): gpus for name, gpus in seats_of_placement(younger)}
            jobs[f"younger-{hour}"] = (runs(0.5), places)
    else:
        pytest.fail("the head has starved")


class Turnover:
    """Machines on which jobs of at most an hour follow each other, whatever the queue leaves them.

    Nobody knows how long they run. The head needs whole machines.
    """

    def __init__(self, dice: random.Random, nodes: int) -> None:
        self.dice, self.hours, self.started = dice, 0.0, 0
        self.emptied = situation({}, nodes=nodes).emptied
        self.jobs: dict[str, tuple[float, float, Places]] = {}
        self.last: tuple[Seats, float] | None = None
        self.moves = 0
        self.follow(self.seen().cluster)

    def seen(self) -> Situation:
        jobs = {name: (runs(-start), places) for name, (start, _, places) in self.jobs.items()}
        return replace(busy(self.emptied, jobs), now=NOW + self.hours * HOUR)

    def follow(self, left: Cluster) -> None:
        """Start younger jobs as long as there is a place for the next on this part of it."""
        solver = Solver(left)
        while True:
            size = self.dice.choice([1, 2, 4, 4])
            place = solver.find(Request(workers=1, gpus=size))
            if place is None:
                return
            places = {str(name): gpus for name, gpus in seats_of_placement(place)}
            self.started += 1
            ends = self.hours + self.dice.uniform(0.2, 1.0)
            self.jobs[f"younger-{self.started}"] = self.hours, ends, places
            taken = {node.name: node for node in solver.cluster.nodes}
            solver.put(
                *(
                    replace(taken[name], free=GPUSet(taken[name].free & ~gpu_set(gpus)))
                    for name, gpus in seats_of_placement(place)
                )
            )

    def step(self, head: Waiting) -> bool:
        """Go to the end of the next job; whether the head can start then."""
        self.hours = min(ends for _, ends, _ in self.jobs.values())
        self.jobs = {name: job for name, job in self.jobs.items() if job[1] > self.hours}
        seen = self.seen()
        if Solver(seen.cluster).fits(head.request):
            return True
        first = head_of([replace(head, last=self.last)], seen)
        assert first is not None
        if first.changed:
            self.last = first.seats, seen.now
            self.moves += 1
        self.follow(left_for(first, seen.cluster))
        return False


@pytest.mark.parametrize(("nodes", "workers"), [(2, 1), (4, 1), (4, 2), (4, 3)])
def test_nobody_waits_for_ever_while_the_cluster_turns_over(nodes: int, workers: int) -> None:
    """Jobs that have just started must not draw the reservation from one place to the next."""
    for seed in range(6):
        world = Turnover(random.Random(seed), nodes)
        head = gang("head", workers, since=NOW)
        while not world.step(head):
            assert world.hours < 2, seed
        assert world.moves <= 2, seed


@pytest.mark.parametrize(
    ("rule", "node_name"),
    [
        # The first by name, where the most GPUs have run the longest.
        (EMPTIED, "node-0"),
        # Seven GPUs of node-1, four of node-2.
        (GPUS, "node-2"),
        # 8 x 9 h, 7 x 1 h, 4 x 5 h.
        (GPU_HOURS, "node-1"),
        (STRICT, "node-1"),
    ],
    ids=["emptied", "GPUs", "GPU-hours", "strict"],
)
def test_each_rule_reserves_its_own(rule: QueueRule, node_name: str) -> None:
    seen = situation(
        {
            "old": (runs(9), {"node-0": ALL}),
            "young": (runs(1), {"node-1": range(7)}),
            "half": (runs(5), {"node-2": range(4)}),
        },
        nodes=3,
    )
    assert [*reserved(head_of([gang("head")], seen, rule))] == [node_name]


def test_nobody_passes_the_head_of_a_strict_queue() -> None:
    seen = situation({"one": (runs(1), {"node-0": ALL})})
    head = head_of([gang("head", gpus=4)], seen, STRICT)
    assert head is not None
    assert all(not one.free for one in left_for(head, seen.cluster).nodes)
    assert head.delayed_by(gang("younger", since=NOW).rank, 1.0, NOW)


def test_a_rule_may_reserve_only_after_some_waiting() -> None:
    seen = situation({})
    later = replace(GPU_HOURS, after=120.0)
    assert head_of([gang("head", since=NOW - 119)], seen, later) is None
    assert head_of([gang("head", since=NOW - 121)], seen, later) is not None


def test_a_job_with_a_limit_is_worth_what_is_left_of_it() -> None:
    """Nine hours old, and over in a minute; the other is three hours old."""
    seen = situation({"ends": (runs(9, 9.01), {"node-0": ALL}), "open": (runs(3), {"node-1": ALL})})
    assert [*reserved(head_of([gang("head")], seen))] == ["node-0"]


def test_of_one_node_the_gpus_of_the_youngest_jobs_are_reserved() -> None:
    seen = situation(
        {
            "old": (runs(20), {"node-0": range(4)}),
            "young": (runs(1), {"node-0": range(4, 8)}),
            "other": (runs(5), {"node-1": ALL}),
        }
    )
    assert reserved(head_of([gang("head", gpus=4)], seen)) == {"node-0": {4, 5, 6, 7}}


def test_the_nodes_of_a_reservation_are_those_that_the_gang_may_use() -> None:
    seen = situation(
        {
            "a": (runs(1), {"node-0": ALL}),
            "b": (runs(2), {"node-1": ALL}),
            "c": (runs(3), {"node-2": ALL}),
        },
        nodes=3,
    )
    shut = replace(seen.cluster.nodes[0], unavailable="cordoned")
    seen = replace(
        seen,
        cluster=replace(seen.cluster, nodes=(shut, *seen.cluster.nodes[1:])),
        emptied=replace(
            seen.emptied,
            nodes=(replace(seen.emptied.nodes[0], unavailable="cordoned"), *seen.emptied.nodes[1:]),
        ),
    )
    assert {*reserved(head_of([gang("head", workers=2)], seen))} == {"node-1", "node-2"}


def test_gpus_without_indexes_are_reserved_where_they_become_free() -> None:
    """The kubelet picked the GPUs of the jobs."""
    seen = situation(
        {"old": (runs(9), {"node-0": range(6)}), "young": (runs(1), {"node-1": range(6)})}
    )
    nodes = tuple(
        replace(
            one,
            free=one.machine.everything,
            unattributed=6,
            holders=tuple(replace_holding(holding) for holding in one.holders),
        )
        for one in seen.cluster.nodes
    )
    seen = replace(seen, cluster=replace(seen.cluster, nodes=nodes))
    head = head_of([gang("head")], seen)
    assert head is not None
    assert head.placement.nodes == (NodeName("node-1"),)


def replace_holding(holding: Holding) -> Holding:
    return holding._replace(gpus=GPUSet(0))


def test_cpu_and_memory_must_become_free_as_well() -> None:
    """Four GPUs of node-0 are free, but its CPU is in use; that of node-1 comes free sooner."""
    seen = situation(
        {"old": (runs(9), {"node-0": range(4)}), "young": (runs(1), {"node-1": ALL})}, cpu=8.0
    )
    used = tuple(replace(one, cpu=0.0) for one in seen.cluster.nodes)
    seen = replace(seen, cluster=replace(seen.cluster, nodes=used))
    head = head_of([gang("head", gpus=4, request={"cpu": 4.0})], seen)
    assert head is not None
    assert head.placement.nodes == (NodeName("node-1"),)
    left = left_for(head, seen.emptied).nodes[1]
    assert (left.cpu, count(left.free)) == (4.0, 4)


def test_gpus_that_are_only_counted_are_reserved_by_number() -> None:
    opaque = cluster(node("node-0", V100, unattributed=4))
    head = head_of([gang("head", gpus=2)], busy(opaque, {}))
    assert head is not None
    unknown = replace(
        head.placement,
        assignments=tuple(replace(one, gpus=()) for one in head.placement.assignments),
    )
    left = left_for(replace(head, placement=unknown), opaque).nodes[0]
    assert (left.unattributed, left.free_count, left.reserved_for) == (6, 2, ("a/head",))


# The last reservation


def seats(name: str, gpus: Sequence[int] = ALL) -> Seats:
    return ((NodeName(name), tuple(gpus)),)


@pytest.mark.parametrize(
    ("ages", "kept"),
    [((3.0, 2.0), True), ((3.9, 2.0), True), ((4.1, 2.0), False), ((2.0, 2.0), True)],
    ids=str,
)
def test_the_last_reservation_is_kept_while_it_is_not_clearly_worse(
    ages: tuple[float, float], kept: object
) -> None:
    """It is on node-1, whose job is as old as the first number; the second is node-0's."""
    seen = situation({"b": (runs(ages[0]), {"node-1": ALL}), "a": (runs(ages[1]), {"node-0": ALL})})
    head = head_of([gang("head", last=(seats("node-1"), NOW - 5))], seen)
    assert head is not None
    assert ([*reserved(head)] == ["node-1"]) is kept
    assert head.since == NOW - (5 if kept else 0)
    assert {one.reserved.since for one in left_for(head, seen.cluster).nodes if one.reserved} == {
        head.since
    }


@pytest.mark.parametrize(
    "last",
    [
        seats("node-9"),
        seats("node-0", [0, 1]),
        (*seats("node-1"), *seats("node-0")),
        seats("node-1", [0, 1, 2, 3, 4, 5, 6, 9]),
    ],
    ids=["no node", "too few GPUs", "too many workers", "no GPU"],
)
def test_a_last_reservation_that_makes_no_sense_does_not_count(last: Seats) -> None:
    """Anybody may edit the annotation of a job."""
    seen = situation({"b": (runs(3), {"node-1": ALL}), "a": (runs(2), {"node-0": ALL})})
    assert [*reserved(head_of([gang("head", last=(last, NOW - 5))], seen))] == ["node-0"]


# Who may pass


@pytest.mark.parametrize(
    ("jobs", "until"),
    [
        ({}, None),
        ({"r": (runs(0.5, 1), {"node-0": range(4)})}, 0.5),
        ({"r": (runs(0.5, 1), {"node-0": range(4)}), "s": (runs(0, 0.9), {"node-0": [4]})}, 0.9),
        # Nobody knows when these end.
        ({"r": (runs(1), {"node-0": range(4)})}, None),
        ({"r": (runs(None, 1), {"node-0": range(4)})}, None),
        ({"r": (runs(0.5, 1), {"node-0": range(4)}), "s": (runs(1), {"node-0": [4]})}, None),
    ],
)
def test_the_head_starts_when_the_last_of_those_before_it_must_have_ended(
    jobs: Mapping[str, tuple[tuple[float | None, float | None], Places]], until: float | None
) -> None:
    head = head_of([gang("head")], situation(jobs, nodes=1))
    assert head is not None
    assert head.starts == (None if until is None else pytest.approx(NOW + until * HOUR))


def test_the_start_of_the_head_is_not_known_beside_gpus_of_an_unknown_holder() -> None:
    """A pod that ends, for example, whose job is gone."""
    seen = situation({"r": (runs(0.5, 1), {"node-0": range(4)})}, nodes=1)
    used = replace(seen.cluster.nodes[0], free=GPUSet(0xE0))
    head = head_of([gang("head")], replace(seen, cluster=replace(seen.cluster, nodes=(used,))))
    assert head is not None
    assert head.starts is None


@pytest.mark.parametrize(
    ("timeout", "passes"), [(0.49, True), (0.5, True), (0.51, False), (None, False)]
)
def test_who_ends_before_the_head_could_start_passes_it(
    timeout: float | None, passes: object
) -> None:
    seen = situation({"r": (runs(0.5, 1), {"node-0": range(4)})}, nodes=1)
    head = head_of([gang("head")], seen)
    assert head is not None
    limit = None if timeout is None else timeout * HOUR
    assert head.delayed_by(gang("mine", since=NOW).rank, limit, NOW) is not passes
    # Older gangs are delayed by nobody.
    assert not head.delayed_by(gang("older", since=0.0).rank, None, NOW)


# Laws

hours = st.one_of(st.floats(0, 100), st.none())
sizes = st.sampled_from([1, 2, 4, 8])


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    nodes = draw(st.integers(1, 4))
    jobs: dict[str, tuple[tuple[float | None, float | None], Places]] = {}
    for at in range(nodes):
        free = list(ALL)
        while free and draw(st.booleans()):
            size = min(len(free), draw(sizes))
            mine, free = free[:size], free[size:]
            limit = draw(st.one_of(st.none(), st.floats(0, 100)))
            name = f"j{at}-{mine[0]}"
            jobs[name] = (runs(draw(st.floats(0, 100)), limit), {f"node-{at}": mine})
    return situation(jobs, nodes=nodes, tiers=draw(st.sampled_from([None, 10.0])))


gangs = st.builds(gang, st.just("head"), workers=st.integers(1, 4), gpus=sizes)


@given(seen=situations(), head=gangs)
def test_whoever_fits_the_emptied_cluster_reserves_a_place_there(
    seen: Situation, head: Waiting
) -> None:
    first = head_of([head], seen)
    fits = Solver(seen.emptied).find(head.request)
    assert (first is None) is (fits is None)
    if first is not None:
        places = seats_of_placement(first.placement)
        assert not [*Solver(seen.emptied).hindrances(head.request, places)]
        assert len(places) == head.request.workers
    # The rule has no memory but its arguments.
    assert first == head_of([head], replace(seen))


@given(seen=situations(), head=gangs)
def test_a_gang_that_fits_now_needs_nobody_to_end(seen: Situation, head: Waiting) -> None:
    first = head_of([head], seen)
    if first is not None and Solver(seen.cluster).find(head.request) is not None:
        assert price_of_missing(first.placement, seen, lambda _job, _now: 1.0) == 0


@given(seen=situations(), head=gangs)
def test_whoever_comes_later_never_delays_the_head(seen: Situation, head: Waiting) -> None:
    """What is left and the reservation are disjoint, and every GPU of it is reserved."""
    first = head_of([head], seen)
    if first is not None:
        left = {one.name: one for one in left_for(first, seen.cluster).nodes}
        for name, gpus in seats_of_placement(first.placement):
            assert not left[name].free & gpu_set(gpus)
            assert left[name].reserved_for == ("a/head",)


@given(seen=situations(), size=sizes)
def test_a_gang_of_one_worker_reserves_the_node_where_the_youngest_jobs_are_fewest(
    seen: Situation, size: int
) -> None:
    """On each node its jobs end, the shortest remaining time first, until the worker fits.

    Of jobs with equal times the last by name ends first.
    """
    assert GPU_HOURS.price is not None
    placement = reserved_placement(gang("head", gpus=size), seen, GPU_HOURS)
    assert placement is not None

    def greedy(at: int) -> float:
        one, cost = seen.cluster.nodes[at], 0.0
        free = one.free_count
        by_name = sorted(seen.uses(one), key=lambda use: use.job.key, reverse=True)
        for use in sorted(by_name, key=lambda use: use.job.remaining(NOW)):
            if free >= size:
                break
            free, cost = free + use.size, cost + use.job.remaining(NOW) * use.size / HOUR
        return cost

    least = min(map(greedy, range(len(seen.cluster.nodes))))
    assert price_of_missing(placement, seen, GPU_HOURS.price) <= least + 1e-6


never = st.builds(
    gang,
    st.sampled_from(["n1", "n2"]),
    workers=st.integers(1, 9),
    gpus=st.sampled_from([9, 16]),
    priority=st.integers(-1, 2),
)
queues = st.lists(
    st.builds(
        gang,
        st.uuids().map(str),
        workers=st.integers(1, 5),
        gpus=sizes,
        priority=st.integers(-1, 1),
        since=st.sampled_from([NOW - 1, NOW - 2]),
    ),
    max_size=4,
)


@given(seen=situations(), queue=queues, others=st.lists(never, max_size=3))
def test_the_head_is_the_first_that_can_ever_fit_whatever_else_waits(
    seen: Situation, queue: list[Waiting], others: list[Waiting]
) -> None:
    """The first by priority, then by age. A gang that never fits reserves nothing."""
    order = sorted([*queue, *others], key=lambda one: one.rank)
    first = head_of(order, seen)
    fitting = [one for one in queue if Solver(seen.emptied).fits(one.request)]
    wanted = sorted(fitting, key=lambda one: (-one.priority, one.since, one.key))
    assert (first and first.gang) == (wanted[0] if wanted else None)
    assert first == head_of([one for one in order if one in fitting], seen)


@given(seen=situations(), head=gangs, priority=st.integers(-1, 1), hours=hours)
def test_only_later_gangs_that_may_delay_the_head_are_kept_from_its_gpus(
    seen: Situation, head: Waiting, priority: int, hours: float | None
) -> None:
    first = head_of([head], seen)
    if first is None:
        return
    other = gang("other", since=NOW - 30, priority=priority)
    limit = None if hours is None else hours * HOUR
    ends_before = None not in {limit, first.starts} and NOW + limit <= first.starts
    delays = first.delayed_by(other.rank, limit, NOW)
    assert delays is (priority <= 0 and not ends_before)
