"""A priority class that does not exist is refused before anything is created, as by arena."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_api import FakeApi, kubeconfig

from arena_topo import cli

TEXT = (
    "error: the priority high doesn't exist. Please check with `kubectl get pc` to get a valid"
    " priority\n"
)
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


@pytest.fixture
def api() -> Iterator[FakeApi]:
    fake = FakeApi()
    yield fake
    fake.close()
    assert not fake.crashes, fake.crashes[0]


@pytest.fixture
def config(api: FakeApi, tmp_path: Path) -> str:
    return str(kubeconfig(tmp_path / "config", api.url, user={"username": "alice"}))


def submit(config: str, *words: str) -> int:
    line = ["submit", "mpi", "--kubeconfig", config, "--name=demo", "--image=i", "--gpus=1"]
    return cli.run([*line, *words, "mpirun true"])


def asked(api: FakeApi) -> list[str]:
    return [one for one in api.requests if f"GET {CLASSES}/" in one]


def jobs(api: FakeApi) -> list[dict[str, Any]]:
    return api.listing("mpijobs.kubeflow.org", "default", {})


@pytest.mark.parametrize("words", [[], ["--dry-run=server"]])
def test_a_priority_class_that_does_not_exist_is_refused_in_arenas_words(
    api: FakeApi, config: str, words: list[str], capfd: pytest.CaptureFixture[str]
):
    assert submit(config, "--priority=high", *words) == 2
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("", TEXT)
    assert jobs(api) == []


def test_one_that_exists_is_the_priority_of_the_pods(api: FakeApi, config: str):
    api.add({"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 7})
    assert submit(config, "--priority=high") == 0
    (job,) = jobs(api)
    for role in job["spec"]["mpiReplicaSpecs"].values():
        assert role["template"]["spec"]["priorityClassName"] == "high"
    assert len(asked(api)) == 1


def test_whoever_may_not_look_at_priority_classes_may_use_them(api: FakeApi, config: str):
    api.deny("get priorityclasses.*")
    assert submit(config, "--priority=high") == 0
    assert len(jobs(api)) == 1


def test_nobody_is_asked_for_a_priority_that_nobody_asked_for(api: FakeApi, config: str):
    assert submit(config) == 0
    assert asked(api) == []
