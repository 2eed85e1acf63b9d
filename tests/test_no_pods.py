"""A job whose pods the operator has not created yet: what each command shows, and ^C leaves."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Timer
from typing import Any

import program
import pytest
from worlds import KubernetesWorld, kubernetes_world

from arena_topo.gang import submission

Run = Callable[..., tuple[int, str, str]]

NO_PODS = "the MPI operator has not created its pods yet"

SHOWN = {
    "get": (0, f"The Job demo is PENDING: {NO_PODS}\n"),
    "logs": (
        1,
        (
            f"error: job demo has no pods yet\n  why:  {NO_PODS}\n"
            "  try:  wait for it: arena-topo logs -f demo -n default\n"
        ),
    ),
    "logs --all": (
        1,
        (
            f"error: job demo has no pods yet\n  why:  {NO_PODS}\n"
            "  try:  wait for it: arena-topo logs -f demo -n default\n"
        ),
    ),
    "logs -i worker-0": (
        1,
        (
            f"error: job demo has no pod worker-0\n  why:  {NO_PODS}\n"
            "  try:  arena-topo get demo -n default lists its pods\n"
        ),
    ),
    "attach": (
        1,
        (
            f"error: cannot attach to job demo: it has no pods\n  why:  {NO_PODS}\n"
            "  try:  arena-topo why demo -n default\n"
        ),
    ),
}
"""The exit code and stderr of commands about such a job."""

LEFT = "The job demo goes on. Come back: arena-topo {} -n default; delete it: {}\n"
DELETE = "arena-topo delete demo -n default"
AS_IT_IS = "The job demo is left as it is. Come back: arena-topo wait demo --for {} -n default\n"

FOLLOWED = {
    "logs -f demo": (f"demo waits: {NO_PODS}\n", LEFT.format("logs -f demo", DELETE)),
    "logs -f --all demo": (f"demo waits: {NO_PODS}\n", LEFT.format("logs -f --all demo", DELETE)),
    "wait demo": (f"The Job demo is PENDING: {NO_PODS}\n", AS_IT_IS.format("finished")),
    "get demo -w": (f"PENDING  {NO_PODS}\n", LEFT.format("get demo -w", DELETE)),
    "list -w": ("demo  PENDING", ""),
    "top job demo -r": ("Allocated/Requested GPUs of Job: 0/", ""),
}
"""What a command shows before it is interrupted, and its last words."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[KubernetesWorld]:
    with kubernetes_world("v2beta1")(tmp_path) as opened:
        submission.submit(opened.job("demo"), opened.backend, namespace="default")
        yield opened


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("words", SHOWN)
def test_a_job_without_pods_is_explained(tmp_path: Path, arena: Run, words: str) -> None:
    verb, *flags = words.split()
    more = ["--", "true"] if verb == "attach" else []
    code, _, err = arena(f"--kubeconfig={tmp_path / 'config'}", verb, "demo", *flags, *more)
    assert (code, err) == SHOWN[words]


def test_why_a_job_has_no_pods_is_the_operator_once_a_minute_has_passed(
    world: KubernetesWorld, tmp_path: Path, arena: Run
) -> None:
    config = f"--kubeconfig={tmp_path / 'config'}"
    code, out, _ = arena(config, "why", "demo")
    assert (code, out) == (0, f"demo: PENDING, Starting\n  it is starting\n  why:  {NO_PODS}\n")
    with world.api.edit("MPIJob", "demo") as job:
        job["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
    code, out, _ = arena(config, "why", "demo", "-o", "json")
    assert (code, json.loads(out)["code"]) == (0, "OperatorNotResponding")


@pytest.mark.parametrize("line", FOLLOWED)
def test_an_interrupt_leaves_a_job_without_pods_and_says_how_to_come_back(
    world: KubernetesWorld, tmp_path: Path, line: str
) -> None:
    shown, farewell = FOLLOWED[line]
    config = f"--kubeconfig={tmp_path / 'config'}"
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with program.start([config, *line.split()], **pipes, text=True, bufsize=1) as follows:
        impatient = Timer(30, follows.kill)
        impatient.start()
        assert any(shown in text for text in follows.stdout)
        impatient.cancel()
        follows.send_signal(signal.SIGINT)
        rest, _ = follows.communicate(timeout=30)
    assert follows.returncode == 130
    assert rest.endswith(farewell)
    assert "Traceback" not in rest
    assert world.backend.job("demo", "default").reason == NO_PODS
