"""How much the controller does while gangs wait: what did not change is not worked out again."""

from __future__ import annotations

from typing import Any

import pytest
from fake_api import FakeApi
from test_controller import World, world

from arena_topo.admin import controller
from arena_topo.admin.controller import REASON_PERIOD
from arena_topo.gang import planning
from arena_topo.gang.protocol import Starter
from arena_topo.job import MPIJob
from arena_topo.manifests import FORECAST, HEAD_RESERVATION
from arena_topo.queueing import reservation as queue_rule
from arena_topo.solver import Request
from arena_topo.solver.door import Solver

__all__ = ["world"]
"""The fixture."""


class Solved:
    """Which jobs the controller of a world had the solver work on since it was asked last."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.explained: list[str] = []
        """Those of which it was to say why they do not fit."""
        self.searches: list[Request] = []
        """What it searched a place for."""
        decide, fit, fits = planning.decide, planning.fit, Solver.fits

        def decided(job: MPIJob, *rest: Any, **more: Any) -> Any:
            self.names.append(job.name)
            self.explained.append(job.name)
            return decide(job, *rest, **more)

        def fitted(job: MPIJob, *rest: Any, **more: Any) -> Any:
            self.names.append(job.name)
            return fit(job, *rest, **more)

        def searched(solver: Solver, request: Request) -> bool:
            self.searches.append(request)
            return fits(solver, request)

        patch.setattr(Solver, "fits", searched)
        patch.setattr(planning, "decide", decided)
        patch.setattr(planning, "fit", fitted)

    def since(self) -> set[str]:
        names = set(self.names)
        self.names.clear()
        return names


@pytest.fixture
def crowded(world) -> World:
    """One machine that is full, and three gangs that wait for it."""
    here = world(1)
    here.submit("first", workers=8)
    for name in ("one", "two", "three"):
        here.later(1)
        here.submit(name, workers=8)
    return here


def written(api: FakeApi) -> list[str]:
    """The requests since the last look that change jobs or pods."""
    found = [one for one in api.requests if not one.startswith("GET")]
    api.requests.clear()
    return [one for one in found if "configmaps" not in one]


def test_a_round_in_which_nothing_has_changed_solves_nothing_and_writes_nothing(
    crowded, monkeypatch
):
    solved = Solved(monkeypatch)
    crowded.rounds()
    assert solved.since() == {"one", "two", "three"}
    written(crowded.api)
    crowded.rounds(3)
    assert solved.since() == set()
    assert written(crowded.api) == []


def searches_for_the_head(patch: pytest.MonkeyPatch) -> list[str]:
    """The gangs for which the controller searches a place to reserve, from now on."""
    search, searched = queue_rule.reserved_placement, list[str]()

    def counted(gang, *rest):
        searched.append(gang.key)
        return search(gang, *rest)

    patch.setattr(queue_rule, "reserved_placement", counted)
    return searched


def test_a_view_that_is_published_again_unchanged_needs_no_search_for_the_head(
    crowded, monkeypatch
):
    crowded.rounds(2)
    searched = searches_for_the_head(monkeypatch)
    crowded.api.requests.clear()
    crowded.later(16)
    crowded.rounds()
    assert [one for one in crowded.api.requests if "cluster-view" in one]
    assert searched == []
    crowded.cluster.pod("theirs", "node-0", 0)
    crowded.later(16)
    crowded.rounds()
    assert searched == ["default/one"]


def test_the_head_is_searched_anew_after_a_while_as_a_quota_may_have_changed(crowded, monkeypatch):
    crowded.rounds(2)
    searched = searches_for_the_head(monkeypatch)
    crowded.rounds()
    assert searched == []
    crowded.later(REASON_PERIOD + 1)
    crowded.rounds()
    assert searched == ["default/one"]


def test_a_start_has_a_head_of_its_own_should_that_of_the_round_be_out_of_date(world, monkeypatch):
    here = world(1)
    here.submit("first", workers=4)
    here.later(1)
    here.submit("head", workers=8)
    here.later(1)
    here.submit("late", workers=4)
    monkeypatch.setattr(controller, "head_of_queue", lambda *_: None)
    starts, start = list[str](), Starter.start

    def started(self, job, *rest):
        starts.append(job.name)
        return start(self, job, *rest)

    monkeypatch.setattr(Starter, "start", started)
    here.rounds(2)
    assert starts == ["late"]
    assert [here.state(name) for name in ("head", "late")] == ["waiting", "waiting"]
    assert "default/head comes first in the queue" in (here.reason("late") or "")


def reservation(here: World, name: str) -> str | None:
    """What a gang has reserved as the head of the queue: a time and a map."""
    return here.job(name)["metadata"]["annotations"].get(HEAD_RESERVATION)


def test_the_reservation_of_the_head_is_stored_on_its_job_alone(crowded):
    crowded.rounds()
    places = (reservation(crowded, "one") or "").partition(" ")[2]
    assert {*places.split(";")} == {f"node-0/{gpu}" for gpu in range(8)}
    assert reservation(crowded, "two") is None
    crowded.backend.delete("first", "default")
    crowded.cluster.settle()
    crowded.rounds()
    assert reservation(crowded, "one") is None


def test_a_reservation_is_written_again_only_if_it_changes_and_after_a_minute(world):
    here = world(2)
    here.submit("a", workers=8)
    here.later(600)
    here.submit("b", workers=8)
    here.submit("head", workers=8)
    here.rounds()
    first = reservation(here, "head")
    assert first is not None
    assert "node-1/" in first
    here.submit("late", workers=8)
    written(here.api)
    here.later(300)
    here.rounds()
    assert not [one for one in written(here.api) if "mpijobs/head" in one]
    assert reservation(here, "head") == first


def test_a_gang_that_was_refused_starts_in_the_round_after_its_gpus_became_free(crowded):
    crowded.rounds(2)
    crowded.backend.delete("first", "default")
    crowded.cluster.settle()
    crowded.rounds()
    assert [crowded.runs(name) for name in ("one", "two", "three")] == [True, False, False]


def test_a_change_that_makes_no_room_is_looked_at_without_saying_again_why_gangs_wait(
    crowded, monkeypatch
):
    crowded.rounds(2)
    solved = Solved(monkeypatch)
    crowded.cluster.pod("theirs", "node-0", 0)
    written(crowded.api)
    crowded.rounds()
    assert {(one.workers, one.gpus) for one in solved.searches} == {(8, 1)}
    assert solved.since() == set()
    assert solved.explained == []
    assert written(crowded.api) == []


def test_gangs_that_ask_for_the_same_need_one_search_however_many_they_are(crowded, monkeypatch):
    crowded.rounds(2)
    solved = Solved(monkeypatch)

    def searches(pod: str) -> int:
        solved.searches.clear()
        crowded.cluster.pod(pod, "node-0", 0)
        crowded.rounds()
        return len(solved.searches)

    before = searches("theirs")
    for at in range(5):
        crowded.submit(f"more-{at}", workers=8)
    crowded.rounds()
    assert before >= 1
    assert searches("theirs-too") == before
    crowded.submit("other", workers=4)
    crowded.rounds()
    assert searches("and-one-more") > before


def test_reasons_are_written_for_some_gangs_a_minute_and_for_all_in_time(world, monkeypatch):
    monkeypatch.setattr(controller, "MOST_REASONS", 3)
    here = world(1)
    here.submit("first", workers=8)
    for at in range(8):
        here.submit(f"wait-{at}", workers=8)
    names = [f"wait-{at}" for at in range(8)]

    def reasoned() -> int:
        """Let every reason be out of date, and count those written in this round."""
        here.cluster.pod(f"pod-{here.time}", "node-0", 0)
        written(here.api)
        here.rounds()
        return len([one for one in written(here.api) if one.startswith("PATCH")])

    for name in names:
        with here.api.edit("MPIJob", name) as job:
            job["metadata"]["annotations"][FORECAST] = "{}"
    counts = []
    for _ in range(12):
        here.later(20)
        counts.append(reasoned())
    assert max(sum(counts[at : at + 3]) for at in range(10)) <= 4
    assert all(here.reason(name) for name in names)


def test_a_gang_is_looked_at_anew_after_a_while_even_if_nothing_has_changed(crowded, monkeypatch):
    crowded.rounds(2)
    solved = Solved(monkeypatch)
    crowded.time += REASON_PERIOD
    crowded.rounds()
    assert solved.since() == {"one", "two", "three"}
    crowded.rounds()
    assert solved.since() == set()


def test_a_new_gang_of_the_name_of_one_that_was_refused_is_looked_at(crowded, monkeypatch):
    crowded.rounds(2)
    crowded.backend.delete("three", "default")
    crowded.later(2)
    crowded.submit("three", workers=1)
    solved = Solved(monkeypatch)
    crowded.rounds()
    assert "three" in solved.since()


def test_all_gangs_that_wait_are_looked_at_on_one_cluster(crowded):
    view = crowded.backend.queue.read()
    waiting = [job for job in view.jobs if job.state == "waiting"]
    assert len(waiting) == 3
    assert {id(view.cluster(without={job.key})) for job in waiting} == {id(view.cluster())}
    assert view.cluster(without={("default", "first")}) is not view.cluster()
