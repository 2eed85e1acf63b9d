"""What `-o name` and `--quiet` leave on stdout: the names of jobs that something was done to."""

from __future__ import annotations

import prompt
import pytest

NAME = "mpijob.kubeflow.org/demo\n"


arena = prompt.where_jobs_wait


@pytest.fixture(params=[("-q",), ("-o", "name"), ("-q", "-o", "name")], ids=" ".join)
def briefly(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return request.param


def test_whatever_is_done_to_a_job_can_be_told_by_its_name_alone(
    arena: prompt.Prompt, briefly: tuple[str, ...]
):
    arena.applied("demo", workers=1)
    arena.world.start("demo")
    for line in (
        ("wait", "--for=running", "demo"),
        ("resume", "demo"),
        ("suspend", "demo"),
        ("suspend", "demo"),
        ("resume", "demo"),
        ("delete", "demo"),
    ):
        code, out, err = arena(*line, *briefly)
        assert (code, out) == (0, NAME), line
        if "-q" in briefly:
            assert err == "", line


def test_nothing_is_named_that_nothing_was_done_to(arena: prompt.Prompt, briefly: tuple[str, ...]):
    for line in (("wait",), ("suspend",), ("resume",), ("delete",), ("get",)):
        code, out, err = arena(*line, "nobody", *briefly)
        assert (code, out) == (1, ""), line
        assert err.startswith("error: no job nobody in namespace"), line
    assert arena("delete", "nobody", "--ignore-not-found", *briefly) == (0, "", "")


def test_a_job_that_is_there_is_named_and_no_more(arena: prompt.Prompt, briefly: tuple[str, ...]):
    arena.applied("demo")
    assert arena("get", "demo", *briefly) == (0, NAME, "")


def test_some_of_several_jobs_are_named(arena: prompt.Prompt, briefly: tuple[str, ...]):
    arena.applied("demo")
    code, out, err = arena("delete", "nobody", "demo", *briefly)
    assert (code, out) == (1, NAME)
    assert "nobody" in err


def test_other_formats_than_names_are_an_error_before_anything_is_done(arena: prompt.Prompt):
    arena.applied("demo")
    for verb in ("wait", "suspend", "resume", "delete"):
        assert arena(verb, "demo", "-o", "json")[:2] == (2, "")
    assert arena("get", "demo", "-o", "name")[:2] == (0, NAME)
