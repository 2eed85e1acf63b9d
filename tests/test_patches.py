"""The patches by which a job moves: what they test, what they make of it, and what they leave."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from cube_mesh import V100, cluster, node
from fake_patch import json_patch
from fake_resources import Refused

from arena_topo.gang import planning, protocol
from arena_topo.gang.request import request_of
from arena_topo.job import MPIJob
from arena_topo.manifests import (
    FORECAST,
    FORMAT_ANNOTATION,
    MAP,
    RECORDED,
    REQUEST,
    STATE,
    TRIES_ANNOTATION,
    Mechanisms,
    PlacementForecast,
    patches,
    pins,
    render,
)
from arena_topo.manifests.annotations import placement_map, recorded_placement
from arena_topo.manifests.binding import bind
from arena_topo.manifests.cause import CauseCode, because, in_words
from arena_topo.manifests.forecast import forecast_of
from arena_topo.manifests.requests import request_annotation
from arena_topo.manifests.versions import ApiVersion

NOON = "2026-11-21T12:00:00.123456Z"
LATER = "2026-11-21T12:00:01.654321Z"
JOB = MPIJob(
    name="j", command="mpirun true", image="x", workers=2, gpus=2, gputopology=True, gang=True
)
CLUSTER = cluster(node("node-0", V100), node("node-1", V100))
PLACEMENT = planning.best_placement(JOB, request_of(JOB, CLUSTER), CLUSTER)
BINDING = bind(
    JOB, PLACEMENT, CLUSTER, ApiVersion.V2BETA1, Mechanisms(patches=True, admission=False)
)
PLACED = forecast_of(PLACEMENT, CLUSTER, BINDING)

Object = dict[str, Any]

BROKEN = because(CauseCode.TEXT, text="broken")


def created(forecast: PlacementForecast, at: str | None = None) -> Object:
    """A job as the server stores it after it was created suspended."""
    plan = render.build_plan(
        JOB, namespace="default", api=ApiVersion.V2BETA1, owner="alice", files={}, waiting=""
    )
    form = patches.as_suspended(
        pins.without_pins(plan.objects[0]), forecast, at=at, request=request_annotation(JOB)
    )
    stored = json.loads(json.dumps(form))
    stored["metadata"] |= {"uid": "1-2-3", "resourceVersion": "7", "namespace": "default"}
    return stored


def waiting() -> Object:
    return created(PlacementForecast(state="waiting", cause=in_words("no room")))


def placed() -> Object:
    return created(PLACED, NOON)


def running() -> Object:
    return json_patch(placed(), patches.resuming(placed(), pinned()))


def held() -> Object:
    return json_patch(running(), patches.holding(running(), pins.without_pins(running())))


def pinned() -> Object:
    return protocol.pin_workers(placed(), PLACEMENT, BINDING, CLUSTER)


def unpinned(stored: Object) -> Object:
    return pins.without_pins(stored)


def notes(stored: Object) -> dict[str, str]:
    return stored["metadata"]["annotations"]


def suspend(stored: Object) -> object:
    return stored["spec"]["runPolicy"].get("suspend")


MOVES: dict[str, tuple[Callable[[], Object], Callable[[Object], patches.Patch]]] = {
    "record": (waiting, lambda one: patches.recording(one, PLACED, at=LATER)),
    "record-again": (placed, lambda one: patches.recording(one, PLACED, at=LATER)),
    "record-in-place": (running, lambda one: patches.recording_in_place(one, PLACED, at=LATER)),
    "resume": (placed, lambda one: patches.resuming(one, pinned())),
    "withdraw": (placed, lambda one: patches.waiting(one, unpinned(one), in_words("too slow"))),
    "take-back": (running, lambda one: patches.taking_back(one, unpinned(one), BROKEN, 2)),
    "hold": (running, lambda one: patches.holding(one, unpinned(one))),
    "release": (held, lambda one: patches.releasing(one, at=LATER)),
    "clear": (running, lambda one: patches.clearing(one, in_words("evicted"))),
}
"""Every move: from what it starts, and its patch."""

BY_OTHERS = {"record-in-place", "hold", "clear"}
"""Moves of jobs whose suspension may be anything."""


def other_uid(one: Object) -> None:
    one["metadata"]["uid"] = "another"


def other_state(one: Object) -> None:
    notes(one)[STATE] = "held" if notes(one)[STATE] != "held" else "waiting"


def other_suspension(one: Object) -> None:
    one["spec"]["runPolicy"]["suspend"] = not suspend(one)


def no_suspension(one: Object) -> None:
    del one["spec"]["runPolicy"]["suspend"]


def other_map(one: Object) -> None:
    notes(one)[MAP] = "node-1/0,1;node-1/2,3"


def other_time(one: Object) -> None:
    notes(one)[RECORDED] = "2026-11-21T12:00:00.123457Z"


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize(
    "change", [other_uid, other_state, other_map, other_time, other_suspension, no_suspension]
)
def test_a_job_that_changed_since_it_was_read_is_not_patched(
    move: str, change: Callable[[Object], None]
) -> None:
    start, patch = MOVES[move]
    seen, now = start(), start()
    if change in {other_map, other_time} and MAP not in notes(seen):
        # It has another state as well then, for which there is a test.
        other_state(now)
    change(now)
    before = copy.deepcopy(now)
    if change in {other_suspension, no_suspension} and move in BY_OTHERS:
        json_patch(now, patch(seen))
    else:
        with pytest.raises(Refused) as refused:
            json_patch(now, patch(seen))
        assert refused.value.status == 422
    assert now == before


@pytest.mark.parametrize("move", MOVES)
def test_every_move_leaves_a_job_that_is_whole(move: str) -> None:
    start, patch = MOVES[move]
    stored = start()
    before = copy.deepcopy(stored)
    after = json_patch(stored, patch(stored))
    assert stored == before, "a patch is a value"
    said = notes(after)
    assert said[FORMAT_ANNOTATION] == "v1"
    assert said[REQUEST] == notes(before)[REQUEST]
    assert (said[STATE] == "placed") == (MAP in said) == (RECORDED in said)
    assert recorded_placement(after).state == said[STATE]
    assert after["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == 2


def test_a_job_is_created_suspended_and_its_template_says_nothing_of_places() -> None:
    assert suspend(placed()) is True
    assert notes(placed())[MAP] == placement_map(PLACEMENT)
    assert notes(placed())[RECORDED] == NOON
    assert placed()["spec"]["mpiReplicaSpecs"] == waiting()["spec"]["mpiReplicaSpecs"]
    assert MAP not in notes(waiting())
    assert RECORDED not in notes(waiting())


def test_resuming_is_one_step_with_the_template_and_the_record_tested() -> None:
    patch = patches.resuming(placed(), pinned())
    tested = [one["path"] for one in patch if one["op"] == "test"]
    assert tested == [
        "/metadata/uid",
        "/metadata/annotations/arena-topo.io~1state",
        "/metadata/annotations/arena-topo.io~1placement",
        "/metadata/annotations/arena-topo.io~1recorded",
        "/spec/runPolicy/suspend",
    ]
    assert [one["op"] for one in patch[: len(tested)]] == ["test"] * len(tested)
    after = running()
    assert suspend(after) is False
    assert after["spec"]["mpiReplicaSpecs"] == pinned()["spec"]["mpiReplicaSpecs"]
    assert notes(after) == notes(placed())


def test_a_gang_that_is_taken_back_is_as_it_was_before_it_was_placed() -> None:
    stored = running()
    after = json_patch(stored, patches.taking_back(stored, unpinned(stored), BROKEN, 2))
    assert suspend(after) is True
    assert after["spec"] == waiting()["spec"]
    assert notes(after)[TRIES_ANNOTATION] == "2"
    assert patches.tries_of(after) == 2
    assert json.loads(notes(after)[FORECAST]) == {"reason": "broken"}


def test_a_withdrawn_record_leaves_a_job_that_waits_and_says_why() -> None:
    after = json_patch(
        placed(), patches.waiting(placed(), unpinned(placed()), in_words("too slow"))
    )
    assert suspend(after) is True
    assert notes(after)[STATE] == "waiting"
    assert recorded_placement(after) == PlacementForecast(
        state="waiting", cause=in_words("too slow")
    )


def test_holding_and_releasing_forget_how_often_it_was_tried() -> None:
    stored = running()
    notes(stored)[TRIES_ANNOTATION] = "2"
    after = json_patch(stored, patches.holding(stored, unpinned(stored)))
    assert notes(after)[STATE] == "held"
    assert suspend(after) is True
    assert TRIES_ANNOTATION not in notes(after)
    notes(after)[TRIES_ANNOTATION] = "3"
    released = json_patch(after, patches.releasing(after, at="2026-11-24T12:00:00Z"))
    assert notes(released)[STATE] == "waiting"
    assert TRIES_ANNOTATION not in notes(released)
    assert suspend(released) is True


@pytest.mark.parametrize("move", ["record-in-place", "clear"])
@pytest.mark.parametrize("owner", [True, False, None])
def test_jobs_of_other_queues_keep_the_suspension_that_they_have(move: str, owner: object) -> None:
    start, patch = MOVES[move]
    stored = start()
    if owner is None:
        no_suspension(stored)
    else:
        stored["spec"]["runPolicy"]["suspend"] = owner
    steps = patch(stored)
    assert not [one for one in steps if one["path"].startswith("/spec")]
    assert suspend(json_patch(stored, steps)) is owner


def test_a_job_that_is_handed_over_is_suspended_only_if_its_queue_does_not_do_that() -> None:
    said = PlacementForecast(state="waiting", cause=in_words("Kueue decides"))
    form = waiting()
    for asked, left in ((True, True), (False, None)):
        after = patches.handed_over(form, said, request="{}", suspend=asked)
        assert suspend(after) is left
        assert notes(after)[REQUEST] == "{}"
        assert MAP not in notes(after)


def test_a_job_without_annotations_gets_some() -> None:
    stored = waiting()
    del stored["metadata"]["annotations"]
    after = json_patch(stored, patches.recording_in_place(stored, PLACED, at=NOON))
    assert notes(after)[MAP] == notes(placed())[MAP]


@pytest.mark.parametrize(
    ("said", "tries"), [("0", 0), ("3", 3), ("", 0), ("-1", 0), ("many", 0), ("1.5", 0)]
)
def test_an_invalid_number_of_tries_counts_as_zero(said: str, tries: int) -> None:
    stored = waiting()
    notes(stored)[TRIES_ANNOTATION] = said
    assert patches.tries_of(stored) == tries
