"""A solver that follows its cluster answers as a new solver of the changed cluster does."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import suppress

import pytest
from cube_mesh import HGX, PCIE, V100, cluster, node
from hypothesis import given, settings
from hypothesis import strategies as st
from replacing import replace
from test_solver_best import RAILS, TRAY, TRAYS

from arena_topo.bandwidth import Wire
from arena_topo.solver import Instead, Policy, Reason, Request
from arena_topo.solver.door import Follower, Solver
from arena_topo.topology import (
    CORDONED,
    NOT_READY,
    ORDINARY,
    PUBLISHED,
    Cluster,
    GPUSet,
    Holding,
    Machine,
    Node,
    NodeName,
    Tier,
)

GIB = 1 << 30


class World:
    """A cluster that changes at random, and its nodes as they are now."""

    def __init__(self, dice: random.Random, most: int) -> None:
        self.dice = dice
        self.tiers, self.beyond = self._network()
        kinds = dice.sample([V100, PCIE, HGX, *RAILS], dice.randint(1, 3))
        if self.tiers and self.tiers[-1].name == "nvlink":
            kinds = [*dice.sample(TRAYS, dice.randint(1, 2)), *kinds[: dice.choice((0, 0, 1))]]
            # Parts of many different trays take seconds.
            most = min(most, 6)
        self.kinds = kinds
        self.limited = dice.random() < 0.4
        """Whether CPU and memory are known."""
        numbers = dice.sample(range(1, 2 * most), dice.randint(1, most))
        self.nodes = {one.name: one for one in map(self.node, numbers)}

    def _network(self) -> tuple[tuple[Tier, ...], float | None]:
        dice = self.dice
        names = dice.choice([(), ("leaf",), ("spine", "leaf"), ("nvlink",), ("spine", "nvlink")])
        rates = sorted(dice.choice((1.0, 3.0, 12.5, 50.0, 200.0)) for _ in range(len(names) + 1))
        given = [rate if dice.random() < 0.7 else None for rate in rates]
        return tuple(map(tier, names, given[1:])), given[0]

    @property
    def cluster(self) -> Cluster:
        return cluster(*self.nodes.values(), tiers=self.tiers, beyond=self.beyond)

    def node(self, number: int) -> Node:
        """A node of any kind, in any domain and state."""
        dice, name = self.dice, f"n{number}"
        of = dice.choice(self.kinds)
        if dice.random() < 0.2:
            gpus = tuple(replace(gpu, numa=gpu.index // 4 % 2) for gpu in of.gpus)
            of = replace(of, gpus=gpus)
        domains = [dice.choice("ab") for _ in self.tiers]
        if len(domains) > 1:
            domains[-1] = domains[0] + domains[-1]
        if domains and self.tiers[-1].name == "nvlink" and of.model != TRAY.model:
            domains[-1] = f"(n{number})"
        known = {"all_cpu": 16.0, "all_memory": 64 * GIB} if self.limited else {}
        fresh = node(name, of, domains=tuple(domains), **known)
        if dice.random() < 0.1:
            fresh = replace(fresh, network=dice.choice((1.25, 25.0)))
        if dice.random() < 0.05:
            fresh = replace(fresh, resource=PUBLISHED)
        return self.state(fresh)

    def state(self, one: Node) -> Node:
        """The node in another state."""
        dice, of = self.dice, one.machine
        free = subset(dice, of, dice.choice((0.1, 0.5, 0.9, 1.0, 1.0)))
        allocatable, broken, more = None, 0, {}
        if dice.random() < 0.1:
            allocatable = subset(dice, of, 0.8)
            free = GPUSet(free & allocatable)
        unattributed = dice.randint(0, free.bit_count()) if dice.random() < 0.15 else 0
        if unattributed and dice.random() < 0.3:
            broken = dice.randint(0, unattributed)
        if self.limited:
            more = {
                "cpu": dice.choice((None, 1.0, 2.5, 16.0)),
                "memory": dice.choice((None, 3 * GIB, 8 * GIB, 64 * GIB)),
            }
        if dice.random() < 0.3:
            more |= {"dedicated": True, "foreign": dice.random() < 0.3}
        elif dice.random() < 0.1:
            more["driver"] = "gpu.example.com"
            more["resource"] = "gpu.example.com"
        taken = GPUSet(of.everything & ~free)
        if taken and dice.random() < 0.6:
            jobs = (f"a/j{dice.randrange(4)}", f"a/j{4 + dice.randrange(4)}")
            low = GPUSet(taken & 0b1111)
            parts = zip(jobs, (low, taken & ~low), strict=True)
            more["holders"] = tuple(
                Holding(job, part.bit_count(), GPUSet(part)) for job, part in parts if part
            )
        state = replace(
            one,
            **{"driver": "", "dedicated": False, "foreign": False, "holders": (), **more},
            free=free,
            unattributed=unattributed,
            broken=broken,
            allocatable=allocatable,
            unavailable=dice.choice((*[None] * 12, CORDONED, NOT_READY)),
            shared=dice.choice((*[None] * 24, "MIG")),
            reserved=None,
        )
        if not more.get("driver") and state.resource not in {ORDINARY, PUBLISHED}:
            state = replace(state, resource=ORDINARY)
        if dice.random() < 0.15:
            gpus = subset(dice, of, 0.4)
            state = state.reserve(
                f"a/head{dice.randrange(2)}",
                gpus,
                unnamed=dice.randint(0, state.free_count) if state.unattributed else 0,
                cpu=dice.choice((0.0, 1.0)),
            )
        return state

    def request(self) -> Request:
        """A gang in any shape and with any limits, of about as many GPUs as are free."""
        dice = self.dice
        gpus = dice.choice((1, 1, 1, 2, 2, 3, 4, 8))
        free = sum(one.free_count for one in self.nodes.values())
        words = ("node", *(one.name for one in self.tiers), "beyond")
        names = [name for name in self.nodes if dice.random() < 0.2]
        reasons = (Reason.TAINT, Reason.SELECTOR, Reason.AVOIDED)
        workers = dice.choice((dice.randint(1, 4), dice.randint(1, max(1, free // gpus)), free + 1))
        request = Request(
            workers=workers,
            gpus=gpus,
            cpu=dice.choice((0.0, 0.0, 0.5, 1.5)),
            memory=dice.choice((0, 0, GIB, 5 * GIB)),
            model=dice.choice((*[None] * 8, dice.choice(self.kinds).model, "K80")),
            mix_models=dice.random() < 0.3,
            excluded={name: dice.choice(reasons) for name in names} if dice.random() < 0.2 else {},
            min_bandwidth=dice.choice((*[0.0] * 4, 4.0, 10.0, 60.0)),
            max_nodes=dice.choice((*[None] * 4, 1, 2, 3)),
            per_node=dice.choice((*[None] * 6, 1, 2)),
            joined=dice.random() < 0.5,
            wire=dice.choice(list(Wire)),
            required=dice.choice((*[None] * 5, dice.choice(words))),
            preferred=dice.choice((*[None] * 5, dice.choice(words))),
            policy=dice.choice(list(Policy)),
            pack_above=dice.choice((0.3, 0.5, 0.7)),
            blind=dice.random() < 0.4,
        )
        if dice.random() < 0.05:
            name = dice.choice([*self.nodes, NodeName("elsewhere")])
            seats = tuple((name, (at,)) for at in range(min(workers, 4)))
            request = replace(request, workers=len(seats), gpus=1, seats=seats)
        return request


def tier(name: str, bandwidth: float | None) -> Tier:
    return Tier(name=name, bandwidth=bandwidth)


def subset(dice: random.Random, of: Machine, share: float) -> GPUSet:
    return GPUSet(sum(1 << gpu for gpu in range(len(of.gpus)) if dice.random() < share))


def answers(solver: Solver, request: Request) -> dict[str, object]:
    """All that a solver says about a gang."""
    placement = solver.find(request)
    said: dict[str, object] = {"placement": placement, "fits": solver.fits(request)}
    if request.seats:
        said["hindrances"] = list(solver.hindrances(request, request.seats))
    if placement is None:
        later = Instead(words="the taint is gone", excluded={}, later=True)
        refused = solver.explain(request, others=[later] if request.excluded else [])
        said |= {
            "why": (str(refused), refused.why, refused.hint, refused.nearest),
            "verdict": (refused.verdict, refused.refusals),
        }
        if not request.seats:
            said["release"] = solver.to_free(request)
    elif not request.seats:
        best = solver.best(request)
        assert best is not None
        said["worth"] = best.worth
        said["capable"] = list(solver.capable(request, best))
    said["withheld"] = solver.withheld(request)
    said["usable"] = solver.usable(request)
    said["baselines"] = (solver.first_fit(request), solver.spread(request), solver.counts(request))
    return said


def agree(solver: Solver, expected: Iterable[Node], like: Cluster, request: Request) -> None:
    """Fail where a solver does not answer as a new one of these nodes."""
    fresh = Solver(replace(like, nodes=tuple(expected)))
    said, wanted = answers(solver, request), answers(fresh, request)
    for what, value in wanted.items():
        assert said[what] == value, (what, request)
    assert said["fits"] is (said["placement"] is not None), request
    assert solver.cluster == fresh.cluster


class Stopped(Exception):
    """The end of a block before its last line."""


def follow(dice: random.Random, most: int, steps: int) -> None:
    """Change a cluster so many times, at random, and compare the answers with a new solver's."""
    world = World(dice, most)
    like = world.cluster
    solver = Solver(like)
    asked = [world.request()]
    for _ in range(steps):
        change = dice.random()
        some = dice.sample(list(world.nodes), min(len(world.nodes), dice.choice((1, 1, 1, 2, 5))))
        states = [world.state(world.nodes[name]) for name in some]
        if change < 0.55:
            solver.put(*states)
            world.nodes |= {one.name: one for one in states}
        elif change < 0.65:
            number = dice.randrange(2 * most, 4 * most)
            new = world.node(number)
            solver.put(new)
            world.nodes[new.name] = new
        elif change < 0.7 and len(world.nodes) > 1:
            solver.remove(some[0])
            del world.nodes[some[0]]
        else:
            if dice.random() < 0.2:
                states.append(world.node(4 * most))
            before = dict(world.nodes)
            with suppress(Stopped), solver.changed(states):
                then = world.nodes | {one.name: one for one in states}
                agree(solver, then.values(), like, dice.choice(asked))
                inner = [world.state(one) for one in states[:1]]
                with solver.changed(inner):
                    nested = then | {one.name: one for one in inner}
                    agree(solver, nested.values(), like, world.request())
                if dice.random() < 0.5:
                    raise Stopped
            assert world.nodes == before
        # A new request, or one that was asked before the change.
        asked.append(world.request())
        agree(solver, world.nodes.values(), like, asked[-1])
        agree(solver, world.nodes.values(), like, dice.choice(asked))


@settings(max_examples=2 * settings.default.max_examples)
@given(st.randoms(use_true_random=False))
def test_a_solver_that_follows_answers_as_a_new_one(dice):
    follow(dice, dice.choice((1, 3, 6)), 3)


def test_a_solver_follows_a_larger_cluster_through_many_changes():
    for seed in range(6):
        follow(random.Random(seed), 40, 12)


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", range(1000, 3000, 100))
def test_a_solver_follows_two_thousand_clusters(first: int):
    for seed in range(first, first + 100):
        dice = random.Random(seed)
        follow(dice, dice.choice((2, 5, 12, 40)), 10)


@given(st.randoms(use_true_random=False))
def test_a_follower_answers_for_each_reading_of_its_cluster(dice):
    world, follower = World(dice, 5), Follower()
    reading = world.cluster
    for _ in range(4):
        some = dice.sample(list(world.nodes), min(len(world.nodes), dice.choice((0, 1, 2))))
        world.nodes |= {name: world.state(world.nodes[name]) for name in some}
        if dice.random() < 0.3:
            new = world.node(dice.randrange(10, 20))
            world.nodes.setdefault(new.name, new)
        if dice.random() < 0.3 and len(world.nodes) > 1:
            del world.nodes[dice.choice(list(world.nodes))]
        beyond = dice.choice((0.5, world.beyond)) if dice.random() < 0.2 else reading.beyond
        reading = replace(world.cluster, beyond=beyond)
        agree(follower.at(reading), reading.nodes, reading, world.request())
        assert follower.at(reading) is follower.at(reading)


def test_what_if_is_undone_when_its_block_fails():
    on = cluster(node("a", V100), node("b", V100, 0))
    solver, request = Solver(on), Request(workers=1, gpus=8)
    with suppress(Stopped), solver.changed([node("a", V100, 0b1)]):
        assert not solver.fits(request)
        raise Stopped
    assert solver.fits(request)
    assert solver.cluster == on


def test_a_node_of_a_what_if_that_did_not_exist_is_gone_afterwards():
    solver, request = Solver(cluster(node("a", V100))), Request(workers=2, gpus=8)
    with solver.changed([node("b", V100)]):
        assert solver.place(request).nodes == ("a", "b")
    assert solver.find(request) is None
    assert [one.name for one in solver.cluster.nodes] == ["a"]


def test_a_shared_solver_refuses_to_follow():
    on = cluster(node("a", V100))
    with pytest.raises(RuntimeError, match="shared"):
        Solver.of(on).put(node("a", V100, 0))
    assert Solver.of(on).fits(Request(workers=1, gpus=8))


def test_a_solver_that_follows_is_not_the_solver_of_its_cluster_for_others():
    solver = Solver(cluster(node("a", V100)))
    solver.put(node("a", V100, 0b11))
    assert Solver.of(solver.cluster) is not solver


def test_a_node_that_is_not_there_cannot_vanish():
    with pytest.raises(KeyError):
        Solver(cluster(node("a", V100))).remove(NodeName("b"))
