"""No two gangs ever get the same GPU, in whatever order their submitters' requests arrive.

What is explored is the program itself, from `submission.submit` down to its requests, against the
fake API server without sockets: a model of either could be right where the original is wrong.
"""

from __future__ import annotations

import itertools
import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from cube_mesh import machine, matrix
from fake_api import FakeApi, kubeconfig
from interleaving import (
    Actor,
    Choose,
    Killed,
    Memory,
    Step,
    Wire,
    at_random,
    explore,
    play,
    scripted,
    with_one_switch,
)

from arena_topo.engines import Options
from arena_topo.engines.kubernetes import engine as kubernetes
from arena_topo.engines.kubernetes.queue import Queue
from arena_topo.engines.kubernetes.queued import QueuedJob
from arena_topo.gang import fairness, planning, protocol, resume, submission
from arena_topo.gang.request import Site
from arena_topo.gang.resume import resume_job
from arena_topo.gang.stored_job import open_starter
from arena_topo.job import MPIJob
from arena_topo.manifests import FORECAST, GPU_GROUP, MAP, STATE, Mechanisms, Plan, patches
from arena_topo.manifests.annotations import parse_map
from arena_topo.topology import TAINT, published

JOBS = "mpijobs.kubeflow.org"
NOON = 1_900_000_000.0
"""The server's clock at the start of everything."""

SMALL = machine("small", "V100", matrix(4, {(0, 3): 2, (1, 2): 2, (0, 1): 1}))


@pytest.fixture(autouse=True)
def only_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody here makes pods, so that nobody waits for them; see tests/test_gathering.py."""
    for verb in (submission, resume):
        monkeypatch.setattr(verb, "wait_until_placed", lambda _s, _j, outcome, _w: outcome)
    # They are put in every order anyway.
    monkeypatch.setattr(protocol, "_PAUSE", 0.0)


@dataclass(slots=True)
class World:
    """A cluster of small nodes, and the submitters that are let loose on it.

    `dedicated`: GPUs are chosen one by one, which makes records exact; else they are counted.
    """

    api: FakeApi
    config: str
    memory: Memory
    plans: dict[str, Plan] = field(default_factory=dict)

    @classmethod
    def build(cls, api: FakeApi, config: str, *, nodes: int = 1, dedicated: bool = True) -> World:
        api.now = NOON
        for index in range(nodes):
            name = f"node-{index}"
            offers = {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "4"}
            spec: dict[str, Any] = {}
            labels = {}
            if dedicated:
                labels[TAINT] = "true"
                spec["taints"] = [{"key": TAINT, "value": "true", "effect": "NoSchedule"}]
            api.add(
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": name, "labels": labels},
                    "spec": spec,
                    "status": {"capacity": offers, "allocatable": offers},
                }
            )
            its = machine(name, "V100", SMALL.links)
            api.add(published.config_map(its, its.everything))
        return cls(api, config, Memory(api))

    def backend(self, point: Callable[[Step], None], **how: Any) -> kubernetes.KubernetesBackend:
        engine = kubernetes.open_kubernetes(Options(kubeconfig=self.config))
        engine.api._pool = Wire(self.api, point, **how)
        return engine

    def submitter(
        self,
        name: str,
        *,
        alone: bool = True,
        each: Callable[[str], None] = lambda _: None,
        **asked: Any,
    ) -> Actor:
        job = MPIJob(
            name=name, command="mpirun true", image="x", gputopology=True, gang=True, **asked
        )

        def act(point: Callable[[Step], None]) -> Any:
            return submission.submit(
                job, self.backend(point, alone=alone, each=each), namespace="default"
            )

        return Actor(name, act)

    def starter(self, name: str, **asked: Any) -> Actor:
        """A submitter without what comes before and after the protocol; five times as fast."""
        job = MPIJob(
            name=name, command="mpirun true", image="x", gputopology=True, gang=True, **asked
        )
        if name not in self.plans:
            engine = self.backend(lambda _: None)
            site = Site(backend=engine, namespace="default")
            waits = planning.decision_to_wait(job, site, engine.cluster(), None)
            self.plans[name] = planning.render_decision(waits, site)
        plan = self.plans[name]

        def act(point: Callable[[Step], None]) -> Any:
            engine = self.backend(point)
            queue = engine.queue
            starter = open_starter(engine, queue)
            # It was asked before, and stands still.
            engine._mechanisms["default"] = time.monotonic(), Mechanisms(patches=True)
            view = queue.read()
            starter.withdraw(view.jobs, view.now)
            mine = newcomer(name)
            decision = starter.decide(job, mine, view)
            stored = starter.admit(plan, decision)
            if decision.placement is not None:
                return starter.start(job, stored, decision)
            return None

        return Actor(name, act)

    def resumer(self, name: str, job: str) -> Actor:
        def act(point: Callable[[Step], None]) -> Any:
            return resume_job(self.backend(point, alone=False), job, "default")

        return Actor(name, act)

    def clock(self, seconds: float) -> Actor:
        """Time that passes at some moment."""

        def act(point: Callable[[Step], None]) -> None:
            point(Step(f"{seconds:g} s pass", "*", None, True))
            self.api.now += seconds

        return Actor("clock", act)

    # What is stored.

    def jobs(self) -> dict[str, dict[str, Any]]:
        return {key[1]: entry.thing for key, entry in self.api.tables[JOBS].items()}

    def running(self) -> set[str]:
        return {name for name, job in self.jobs().items() if not is_suspended(job)}

    def check(self) -> None:
        """What must hold after every request."""
        holders: dict[tuple[str, int], str] = {}
        counts: Counter[str] = Counter()
        for name, job in self.jobs().items():
            if is_suspended(job):
                continue
            notes = job["metadata"]["annotations"]
            assert notes[STATE] == "placed", f"{name} runs, but it is {notes[STATE]}"
            exact = json.loads(notes[FORECAST])["guarantee"] == "gpus"
            each = gpus_of(job)
            for _, node, gpus in parse_map(notes[MAP]):
                counts[node] += each
                assert not exact or len(gpus) == each, (name, notes[MAP])
                for gpu in gpus:
                    other = holders.setdefault((node, gpu), name)
                    assert other == name, f"GPU {gpu} of {node} is held by {other} and {name}"
        for node, count in counts.items():
            assert count <= 4, f"{count} GPUs of {node} are held, and it has 4"
        assert not self.api.crashes, self.api.crashes[-1]

    def check_end(self, *, lost: Container[str] = (), by_hand: bool = False) -> None:
        """What must hold when nobody does anything any more.

        `lost` are those who were killed; `by_hand`: records were also taken off on request.
        """
        for name, job in self.jobs().items():
            notes = job["metadata"]["annotations"]
            if is_suspended(job) and name not in lost:
                assert notes[STATE] == "waiting", f"{name} is {notes[STATE]}, and nobody is at it"
                assert MAP not in notes
                assert json.loads(notes[FORECAST]).get("reason"), f"{name} waits, nobody knows why"
        if not by_hand:
            self.check_yields()

    def check_yields(self) -> None:
        """Whoever gave a record up had seen an older one in its way: of two, exactly one yields."""
        past = self.api.past[JOBS]
        for key, versions in past.items():
            for (_, before), (_, after) in itertools.pairwise(versions):
                if before is None or after is None or not is_suspended(before.thing):
                    continue
                was, now = (one.thing["metadata"]["annotations"] for one in (before, after))
                gave_up = was.get(MAP) is not None and was.get(MAP) != now.get(MAP)
                if not gave_up or "not-resumed" in now.get(FORECAST, ""):
                    continue
                revision = written_at(versions, was[MAP], before.revision)
                others = [
                    entry.thing
                    for other, entry in self.api.at(JOBS, revision).items()
                    if other != key
                ]
                assert any(self.conflict(before.thing, other) for other in others), (
                    f"{key[1]} gave up {was[MAP]} of revision {revision}, and nothing was in its"
                    " way there"
                )

    @staticmethod
    def conflict(one: dict[str, Any], other: dict[str, Any]) -> bool:
        maps = [job["metadata"]["annotations"].get(MAP) for job in (one, other)]
        if not all(maps):
            return False
        exact = all(
            json.loads(job["metadata"]["annotations"][FORECAST])["guarantee"] == "gpus"
            for job in (one, other)
        )
        mine, its = (parse_map(text) for text in maps)
        if exact:
            sets = [
                {(node, gpu) for _, node, gpus in workers for gpu in gpus}
                for workers in (mine, its)
            ]
            return bool(sets[0] & sets[1])
        return bool({node for _, node, _ in mine} & {node for _, node, _ in its})


def newcomer(name: str) -> QueuedJob:
    """A job that does not exist yet, and so is the last in the queue."""
    return QueuedJob(
        namespace="default",
        name=name,
        created=math.inf,
        priority=0,
        state="waiting",
        record=None,
        recorded=None,
        suspended=True,
        suspender=None,
        tries=0,
        timeout=None,
        started=None,
        manifest={},
    )


def written_at(versions: list[Any], record: str, revision: int) -> int:
    """At which revision a record was written that still stood at a later one."""
    found = revision
    for at, entry in reversed(versions):
        if at > revision or entry is None:
            continue
        if entry.thing["metadata"]["annotations"].get(MAP) != record:
            break
        found = at
    return found


def is_suspended(job: dict[str, Any]) -> bool:
    return job["spec"]["runPolicy"].get("suspend") is True


def gpus_of(job: dict[str, Any]) -> int:
    worker = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    return int(worker["resources"]["limits"]["nvidia.com/gpu"])


@pytest.fixture
def build(tmp_path) -> Iterator[Callable[..., World]]:
    api = FakeApi()
    config = kubeconfig(tmp_path / "config", api.url, user={"username": "alice"})
    yield partial(World.build, api, config)
    api.close()


def orders(
    world: World,
    actors: Callable[[], list[Actor]],
    end: Callable[[list[Actor]], None],
    *,
    kill: str | None = None,
) -> int:
    """Play all orders of these actors; how many there are."""

    def run(choose: Choose) -> bool:
        world.memory.restore()
        mine = actors()
        if play(mine, choose, world.check) is None:
            return False
        end(mine)
        return True

    return max(explore(run, kill=kill))


SAMPLE = 20
"""Orders by lot of a test whose orders are too many for every run."""


def some_orders(
    world: World,
    actors: Callable[[], list[Actor]],
    end: Callable[[list[Actor]], None],
    *,
    kill: str | None = None,
) -> None:
    """Play orders that a die chooses; `kill` is killed after as many steps as the die shows."""
    for seed in range(SAMPLE):
        world.memory.restore()
        mine = actors()
        choose = at_random(seed)
        if kill is not None:
            choose = killing(choose, kill, after=seed)
        assert play(mine, choose, world.check) is not None
        end(mine)


def killing(choose: Choose, who: str, *, after: int) -> Choose:
    """A chooser that kills somebody after so many steps of all."""
    steps = itertools.count()

    def chosen(ready: dict[str, Actor]) -> str | None:
        return f"!{who}" if next(steps) == after and who in ready else choose(ready)

    return chosen


in_every_order = pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["sample", "every"]
)


def settled(world: World, actors: list[Actor], *, running: int) -> None:
    """Nobody failed, nobody is lost, and as many run as can."""
    for one in actors:
        assert one.error is None, repr(one.error)
    world.check_end()
    assert set(world.jobs()) == {one.name for one in actors}
    assert len(world.running()) == running, world.running()


TAKES_ALL = {"workers": 2, "gpus": 2}


def two(
    world: World, *, running: int, a: dict[str, int], b: dict[str, int], every: bool = True
) -> None:
    """Orders of two submitters, after each of which so many run."""

    def actors() -> list[Actor]:
        return [world.submitter("a", **a), world.submitter("b", **b)]

    def end(actors: list[Actor]) -> None:
        settled(world, actors, running=running)

    if every:
        assert orders(world, actors, end) > 20
    else:
        some_orders(world, actors, end)


def test_of_two_gangs_that_want_the_same_gpus_exactly_one_runs(build) -> None:
    two(build(), running=1, a=TAKES_ALL, b=TAKES_ALL)


@in_every_order
def test_two_gangs_that_fit_together_both_run_whatever_they_wanted_first(build, every) -> None:
    a, b = {"workers": 2, "gpus": 1}, {"workers": 1, "gpus": 2}
    two(build(), running=2, a=a, b=b, every=every)


@in_every_order
def test_gangs_that_overlap_in_part_share_nothing(build, every) -> None:
    a, b = {"workers": 3, "gpus": 1}, {"workers": 2, "gpus": 1}
    two(build(), running=1, a=a, b=b, every=every)


@in_every_order
def test_where_gpus_are_only_counted_no_node_is_given_more_than_it_has(build, every) -> None:
    world = build(nodes=2, dedicated=False)
    a, b = {"workers": 3, "gpus": 1}, {"workers": 4, "gpus": 1}
    two(world, running=2, a=a, b=b, every=every)


# The kubelet may pick GPUs that have 10 GB/s, so no placement of these is called the best.
FIRST = ("node-0/0,3", 38.4, False)
# Of the two that are left nobody knows whether NVLink joins them; else PCIe does.
BESIDE = ("node-0/", 9.97, False)


@in_every_order
@pytest.mark.parametrize(
    ("nodes", "least", "ends"),
    [
        (1, 0.0, {(BESIDE, FIRST)}),
        pytest.param(1, 9.0, {(BESIDE, FIRST)}, marks=pytest.mark.exhaustive),
        (1, 38.0, {()}),
        # Nothing more can be promised on an empty node, so it stays whole.
        (2, 0.0, {(BESIDE, FIRST)}),
        pytest.param(2, 38.0, {()}, marks=pytest.mark.exhaustive),
    ],
)
def test_where_gpus_are_only_counted_the_second_gang_goes_where_it_would_go_later(
    build, nodes: int, least: float, ends: set[Any], every
) -> None:
    """Their records, GB/s, and whether that is proven best."""
    world, seen = build(nodes=nodes, dedicated=False), set()
    asked = {"workers": 1, "gpus": 2, "min_bandwidth": least}

    def end(actors: list[Actor]) -> None:
        notes = [world.jobs()[name]["metadata"]["annotations"] for name in world.running()]
        said = [(one[MAP], json.loads(one[FORECAST])) for one in notes]
        seen.add(tuple(sorted((at, it["busBandwidthGBps"], it["optimal"]) for at, it in said)))
        settled(world, actors, running=len(said))

    play_all = orders if every else some_orders
    play_all(world, lambda: [world.submitter(name, **asked) for name in "ab"], end)
    assert seen == ends


def stalled(world: World, *, every: bool) -> None:
    """Orders of two submitters, and of a minute that passes at some moment."""

    def actors() -> list[Actor]:
        submitters = [world.submitter(name, **TAKES_ALL) for name in "ab"]
        return [*submitters, world.clock(61)]

    def end(actors: list[Actor]) -> None:
        ended(world, actors)

    if every:
        assert orders(world, actors, end) > 100
    else:
        some_orders(world, actors, end)


@in_every_order
def test_a_stalled_submitter_whose_record_was_withdrawn_does_not_run(build, every) -> None:
    stalled(build(), every=every)


def ended(world: World, actors: list[Actor]) -> None:
    """As `settled`, where how many run depends on who withdrew what."""
    for one in actors:
        assert one.error is None, repr(one.error)
    world.check_end()


@in_every_order
def test_a_resume_beside_the_submitter_starts_the_job_once(build, every) -> None:
    """Orders of a submitter with whoever resumes its job by hand."""
    world = build()

    def end(actors: list[Actor]) -> None:
        submitter, resumer = actors
        assert submitter.error is None, repr(submitter.error)
        assert resumer.error is None or "no job" in str(resumer.error), repr(resumer.error)
        world.check_end(by_hand=True)
        assert world.running() == {"a"}

    def actors() -> list[Actor]:
        return [world.submitter("a", alone=False, **TAKES_ALL), world.resumer("r", "a")]

    if every:
        assert orders(world, actors, end) > 20
    else:
        some_orders(world, actors, end)


@in_every_order
def test_a_record_that_is_withdrawn_at_once_does_no_harm(build, monkeypatch, every) -> None:
    """Whoever is late solves again: the minute of grace is for peace, not for safety."""
    monkeypatch.setattr(fairness, "STALE_RECORD_SECONDS", -1.0)
    world = build()

    def actors() -> list[Actor]:
        return [world.submitter(name, **TAKES_ALL) for name in "ab"]

    def end(actors: list[Actor]) -> None:
        ended(world, actors)

    if every:
        assert orders(world, actors, end) > 20
    else:
        some_orders(world, actors, end)


REWRITTEN = "b aaaa rrrr bbb r a"
"""`b` looks; `a` records and looks; `r` takes the record of `a` off, and looks; `b` records, looks
and runs; `r` records for `a` what it found, the same again; `a` goes on."""


def test_a_record_that_was_taken_off_and_written_again_is_not_the_one_that_was_looked_at(
    build,
) -> None:
    world = build()
    actors = [
        world.submitter("a", alone=False, **TAKES_ALL),
        world.submitter("b", **TAKES_ALL),
        world.resumer("r", "a"),
    ]
    history = play(actors, scripted(REWRITTEN), world.check)
    assert history is not None
    assert [who for who, _ in history][: len(REWRITTEN.replace(" ", ""))] == list(
        REWRITTEN.replace(" ", "")
    )
    assert not any(one.error for one in actors)
    world.check_end(by_hand=True)
    assert world.running() == {"b"}


@in_every_order
def test_of_three_gangs_that_want_the_same_gpus_exactly_one_runs(build, every) -> None:
    world = build()

    def actors() -> list[Actor]:
        return [world.starter(name, **TAKES_ALL) for name in "abc"]

    def end(actors: list[Actor]) -> None:
        settled(world, actors, running=1)

    if every:
        assert orders(world, actors, end) > 1000
    else:
        some_orders(world, actors, end)


@in_every_order
@pytest.mark.parametrize("dedicated", [True, False])
def test_three_gangs_that_overlap_in_part_share_nothing(build, dedicated, every) -> None:
    """Orders with at most one switch away from who could go on, and some by lot."""
    world = build(nodes=2, dedicated=dedicated)
    sizes = {
        "a": {"workers": 3, "gpus": 1},
        "b": {"workers": 2, "gpus": 2},
        "c": {"workers": 3, "gpus": 1},
    }
    firsts = [("abc"[first:] + "abc"[:first]) for first in range(3)]
    choosers = [
        with_one_switch(list(who), at, to) for who in firsts for at in range(8) for to in who[1:]
    ]
    choosers += [at_random(seed) for seed in range(100)]
    if not every:
        choosers = choosers[::5]
    for choose in choosers:
        world.memory.restore()
        actors = [world.starter(name, **size) for name, size in sizes.items()]
        assert play(actors, choose, world.check) is not None
        ended(world, actors)
        assert set(world.jobs()) == set(sizes)
        assert world.running()


@in_every_order
def test_clocks_of_clients_are_not_asked_and_those_of_servers_may_differ(
    build, monkeypatch: pytest.MonkeyPatch, every
) -> None:
    """Two API servers whose clocks are 5 s off, one to each side."""
    world = build()

    def never() -> float:
        if threading.current_thread().name in {"a", "b"}:
            raise AssertionError("a client looked at its own clock")
        return NOON

    monkeypatch.setattr(time, "time", never)

    def submitter(name: str, skew: float) -> Actor:
        def each(_: str) -> None:
            world.api.skew = skew

        return world.submitter(name, each=each, **TAKES_ALL)

    def end(actors: list[Actor]) -> None:
        settled(world, actors, running=1)

    play_all = orders if every else some_orders
    play_all(world, lambda: [submitter("a", -5), submitter("b", 5)], end)


def afterwards(world: World) -> None:
    """A minute after the submitter of `a` was killed others go on, and `a` is still of use."""
    world.api.now += 61
    engine = world.backend(lambda _: None)
    before = world.running()
    other = MPIJob(
        name="c", command="mpirun true", image="x", gputopology=True, gang=True, workers=1, gpus=4
    )
    submission.submit(other, engine, namespace="default")
    world.check()
    # Nobody is left who looks as if somebody were at it.
    world.check_end()
    if "a" in world.jobs():
        resume_job(engine, "a", "default")
        world.check()
        if before <= {"a"} and "c" not in world.running():
            assert "a" in world.running(), "it is the oldest, and nobody has its GPUs"
        engine.delete("a", "default")
        world.check()
    for name in sorted(set(world.jobs()) - world.running()):
        resume_job(engine, name, "default")
        world.check()
    assert len(world.running()) == 1
    world.check_end()


@in_every_order
def test_whoever_is_killed_between_two_requests_stops_nobody(build, every) -> None:
    world = build()

    def end(actors: list[Actor]) -> None:
        victim, other = actors
        assert victim.dead or victim.error is None, repr(victim.error)
        assert other.error is None, repr(other.error)
        world.check_end(lost={"a"})
        afterwards(world)

    def actors() -> list[Actor]:
        return [world.submitter(name, **TAKES_ALL) for name in "ab"]

    if every:
        assert orders(world, actors, end, kill="a") > 40
    else:
        some_orders(world, actors, end, kill="a")


def test_a_submitter_killed_after_each_of_its_requests_leaves_nothing_or_a_job_to_go_on_with(
    build,
) -> None:
    world = build()
    left = []
    for last in range(1, 100):
        world.memory.restore()
        made: list[str] = []

        def each(line: str, made: list[str] = made, last: int = last) -> None:
            if len(made) == last:
                raise Killed
            made.append(line)

        victim = world.submitter("a", each=each, **TAKES_ALL)
        assert play([victim], at_random(0), world.check) is not None
        if victim.result is not None:
            break
        left.append(sorted(world.running()) if "a" in world.jobs() else None)
        world.check()
        afterwards(world)
    assert len(left) > 20
    # Nothing, then a job that waits with its record, then one that runs.
    assert None in left
    assert [] in left
    assert ["a"] in left


@pytest.mark.parametrize(
    ("place", "ends", "suspended", "counts"),
    [
        # (node of the worker's pod and its GPUs, it ends, its job is suspended) -> GPUs in use.
        (("node-1", "0,1"), False, False, {"node-0": 0, "node-1": 2}),
        (("node-1", "0,1"), True, False, {"node-0": 0, "node-1": 2}),
        (("node-1", "0,1"), True, True, {"node-0": 0, "node-1": 2}),
        # Where it is counts; it may have been sent elsewhere than planned.
        (("node-0", "0,1"), False, False, {"node-0": 2, "node-1": 0}),
        # It is of an earlier placement: it has its GPUs still, and the record has others.
        (("node-0", "0,1"), True, False, {"node-0": 2, "node-1": 2}),
        (("node-0", "0,1"), True, True, {"node-0": 2, "node-1": 2}),
        (("node-0", "0,1"), False, True, {"node-0": 2, "node-1": 2}),
        (("node-1", "2,3"), True, True, {"node-0": 0, "node-1": 4}),
        # It has ended, and holds nothing.
        (("node-0", None), False, False, {"node-0": 0, "node-1": 0}),
        (("node-0", None), False, True, {"node-0": 0, "node-1": 2}),
        (None, False, True, {"node-0": 0, "node-1": 2}),
    ],
)
def test_a_record_counts_beside_pods_of_an_earlier_placement(
    build, place: Any, ends: Any, suspended: Any, counts: dict[str, int]
) -> None:
    """A gang that is placed anew while its last pods end holds the GPUs of both."""
    world = build(nodes=2)
    engine = world.backend(lambda _: None)
    job = MPIJob(name="a", command="x", image="y", workers=1, gpus=2, gputopology=True)
    submission.submit(job, engine, namespace="default")
    with world.api.edit("MPIJob", "a") as stored:
        stored["metadata"]["annotations"][MAP] = "node-1/0,1"
        stored["spec"]["runPolicy"]["suspend"] = suspended
    if place is not None:
        node, gpus = place
        template = stored["spec"]["mpiReplicaSpecs"]["Worker"]["template"]
        notes = {**template["metadata"]["annotations"], GPU_GROUP: gpus or "0,1"}
        meta = {"name": "a-worker-0", "annotations": notes}
        if ends:
            meta["deletionTimestamp"] = "2026-11-21T12:00:00Z"
        spec = {key: value for key, value in template["spec"].items() if key != "schedulingGates"}
        world.api.add(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": meta,
                "spec": {**spec, "nodeName": node},
                "status": {"phase": "Running" if gpus else "Failed"},
            }
        )
    used = {one.name: 4 - one.free_count for one in engine.cluster().nodes}
    assert used == counts


def without_record(made: Any) -> Any:
    """What makes patches, but none of them tests what is recorded on a job."""

    def patch(stored: Any, **more: Any) -> patches.Patch:
        steps = made(stored, **more)
        notes = "/metadata/annotations/"
        return [one for one in steps if one["op"] != "test" or not one["path"].startswith(notes)]

    return patch


class TestWhatIsExploredIsEnoughToNotice:
    """The protocol, broken in each of its parts; what the tests above say of it then."""

    def test_a_submitter_that_does_not_yield(self, build, monkeypatch) -> None:
        monkeypatch.setattr(protocol, "_fits", lambda *_: True)
        with pytest.raises(AssertionError, match=r"GPU 0 of node-0 is held by [ab] and [ab]"):
            two(build(), running=1, a=TAKES_ALL, b=TAKES_ALL)

    def test_a_look_at_the_newest_jobs_instead_of_those_at_the_write(
        self, build, monkeypatch
    ) -> None:
        monkeypatch.setattr(Queue, "read_at", lambda self, _: self.read())
        with pytest.raises(AssertionError):
            two(build(), running=1, a=TAKES_ALL, b=TAKES_ALL)

    def test_a_resume_that_does_not_test_the_record(self, build, monkeypatch) -> None:
        monkeypatch.setattr(patches, "_patch", without_record(patches._patch))
        with pytest.raises(AssertionError, match="a runs, but it is waiting"):
            stalled(build(), every=True)

    def test_records_that_can_be_told_apart_by_the_second_only(self, build, monkeypatch) -> None:
        monkeypatch.setattr(protocol.Starter, "_stamp", lambda _: "2030-03-17T17:46:40Z")
        world = build()
        actors = [
            world.submitter("a", alone=False, **TAKES_ALL),
            world.submitter("b", **TAKES_ALL),
            world.resumer("r", "a"),
        ]
        with pytest.raises(AssertionError, match=r"GPU 0 of node-0 is held by a and b"):
            play(actors, scripted(REWRITTEN), world.check)

    def test_a_name_that_is_kept_where_gpus_are_only_counted(self, build, monkeypatch) -> None:
        monkeypatch.setattr(protocol, "_outdated", lambda *_: False)
        pair = {"workers": 1, "gpus": 2}
        with pytest.raises(AssertionError, match=r"GPU 0 of node-0 is held by [ab] and [ab]"):
            two(build(dedicated=False), running=2, a=pair, b=pair)
