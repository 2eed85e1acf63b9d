"""Whoever follows logs and stops reading for a while, as with a pager, misses nothing by that."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_api import Log
from fake_logs import rfc3339_nano
from worlds import WORLDS, KubernetesWorld

from arena_topo.engines.kubernetes import containerlog
from arena_topo.engines.lines import LogOptions
from arena_topo.gang import submission
from arena_topo.joblogs import follow as logs
from arena_topo.joblogs.log_request import End, LogRequest

WORKERS = 2
LINES, BEGUN = 4_000, 1_795_244_400.0
"""Lines of each worker, more than sockets hold, and when they were written (Unix seconds)."""

PATIENCE = 4.0
"""Seconds of silence that end a log here: more than a busy machine lets its processes wait."""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesWorld]:
    monkeypatch.setattr(logs, "AFTER_END", PATIENCE)
    monkeypatch.setattr(logs, "MISSING_LOG_GRACE", PATIENCE)
    monkeypatch.setattr(logs, "END_GRACE", 0.1)
    monkeypatch.setattr(containerlog, "_SILENCE", PATIENCE)
    with WORLDS["kubernetes-v2beta1"](tmp_path) as opened:
        assert isinstance(opened, KubernetesWorld)
        yield opened


def submitted(world: KubernetesWorld) -> None:
    """A job that runs, whose workers have written more than is read at once."""
    world.api.now = world.api.clock() + 1
    submission.submit(world.job("demo", workers=WORKERS), world.backend, namespace="default")
    world.start("demo")
    for worker in range(WORKERS):
        lines = [
            (rfc3339_nano(BEGUN + number / LINES), b"%d of %d %01000d\n" % (number, worker, 0))
            for number in range(LINES)
        ]
        world.api.logs["default", f"demo-worker-{worker}"] = Log(lines=lines)


def paused(world: KubernetesWorld, *, keeps_pods: bool) -> tuple[int, End | None]:
    """How many lines come if the job ends while nobody reads, and what ended it."""
    asked = LogRequest(all_pods=True, options=LogOptions(follow=True), to_archive=False)
    shown = logs.RequestedLines(world.backend, "demo", "default", asked)
    batches = iter(shown)
    count, heard = 0, set()
    while len(heard) < WORKERS:
        batch = next(batches)
        count += len(batch)
        heard |= {one.line.source.pod for one in batch}
    assert count < WORKERS * LINES
    if keeps_pods:
        for worker in range(WORKERS):
            with world.api.edit("Pod", f"demo-worker-{worker}") as pod:
                pod["status"]["phase"] = "Succeeded"
                state = {"terminated": {"exitCode": 0}}
                pod["status"]["containerStatuses"][0] |= {"ready": False, "state": state}
            world.api.end_log(f"demo-worker-{worker}")
        world.api.end_log(world.operator.launcher("demo")["metadata"]["name"])
        with world.api.edit("MPIJob", "demo") as job:
            job["status"] = {"conditions": [{"type": "Succeeded", "status": "True"}]}
    else:
        world.finish("demo")
    time.sleep(1.5 * PATIENCE)
    return count + sum(len(batch) for batch in batches), shown.end


@pytest.mark.parametrize("keeps_pods", [True, False], ids=["pods stay", "pods are deleted"])
def test_a_job_that_ends_while_nobody_reads_is_shown_to_its_last_line(
    world: KubernetesWorld, *, keeps_pods: bool
):
    submitted(world)
    assert paused(world, keeps_pods=keeps_pods) == (WORKERS * LINES, End.JOB)
