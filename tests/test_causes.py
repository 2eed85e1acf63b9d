"""Why a gang does not run, recorded as data: read back, by versions before and after this one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from job_shapes import CREATED, NOW, SUSPENDED, mpijob, ours

from arena_topo.engines.kubernetes.mpijob import job_status
from arena_topo.jobs.view import job_text as job_screen
from arena_topo.manifests import FORECAST, FORMAT_ANNOTATION, PlacementForecast
from arena_topo.manifests.annotations import annotated, recorded_placement
from arena_topo.manifests.cause import Cause, CauseCode, because, in_words

SHORT = because(
    CauseCode.QUOTA, quota="gpus", left="1", resource="requests.nvidia.com/gpu", needs="8"
)


def stored(cause: Cause) -> dict[str, Any]:
    return annotated(mpijob(CREATED, SUSPENDED), PlacementForecast(state="waiting", cause=cause))


def told(forecast: dict[str, Any]) -> Cause | None:
    notes = ours("waiting") | {FORECAST: json.dumps(forecast)}
    found = recorded_placement(mpijob(CREATED, SUSPENDED, notes=notes))
    assert found is not None
    return found.cause


@pytest.mark.parametrize("code", CauseCode)
def test_every_cause_is_read_back_as_it_was_recorded(code: CauseCode) -> None:
    cause = SHORT if code is CauseCode.QUOTA else because(code, text="as somebody says it")
    found = recorded_placement(stored(cause))
    assert found is not None
    assert found.cause == cause
    assert found.reason == str(cause)


def test_a_version_that_does_not_know_a_code_shows_the_sentence_beside_it() -> None:
    notes = stored(SHORT)["metadata"]["annotations"]
    sentence = "quota gpus of the namespace leaves 1 requests.nvidia.com/gpu, and the gang needs 8"
    assert json.loads(notes[FORECAST])["reason"] == sentence
    assert notes[FORMAT_ANNOTATION] == "v1"
    assert told({"reason": "2 GPUs are missing"}) == in_words("2 GPUs are missing")


def test_a_code_of_a_newer_version_is_shown_by_its_sentence_or_with_its_parameters() -> None:
    new = {"code": "solar-flare", "sun": "7", "hours": 3}
    assert str(told({"cause": new, "reason": "the sun is too loud"})) == "the sun is too loud"
    assert str(told({"cause": new})) == "solar-flare, sun: 7"
    status = job_status(
        mpijob(
            CREATED,
            SUSPENDED,
            notes=ours("waiting") | {FORECAST: json.dumps({"cause": new})},
            policy={"suspend": True},
        ),
        [],
    )
    assert "none yet: solar-flare, sun: 7" in job_screen(status, now=NOW)


def test_a_cause_that_lacks_a_parameter_is_still_a_sentence() -> None:
    assert str(told({"cause": {"code": "node-lost", "node": "a"}})) == "node a was lost: ?"


@pytest.mark.parametrize("nonsense", [None, 3, [], {"code": 3}, {"no": "code"}, "text"])
def test_an_invalid_cause_counts_as_missing(nonsense: object) -> None:
    assert told({"cause": nonsense}) is None
    assert told({"cause": nonsense, "reason": "full"}) == in_words("full")
