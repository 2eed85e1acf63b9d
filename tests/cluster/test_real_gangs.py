"""Gangs on a real cluster: bindings, the queue, machines that fail, and many submitters."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from real import JOBS, Real, words

from arena_topo.manifests import MAP, STATE
from arena_topo.manifests.annotations import parse_map

pytestmark = pytest.mark.cluster

SUBMITTING = Path(__file__).parents[1] / "submitting.py"


def test_a_gang_bound_by_admission_runs_exactly_where_it_was_planned(cluster: Real):
    cluster.machines(2)
    done = cluster.arena(*words("gang", 8, 2))
    assert done.code == 0, done.err
    assert "by an admission policy" in done.err
    cluster.until(lambda: cluster.exact("gang"), "all workers run where they were planned")
    uid = cluster.pods()["gang-worker-3"]["metadata"]["uid"]
    cluster.called("DELETE", cluster.live.path("pods", "gang-worker-3"))
    cluster.until(
        lambda: cluster.exact("gang") and cluster.pods()["gang-worker-3"]["metadata"]["uid"] != uid,
        "the worker that was created again is where the other one was",
    )


def test_a_job_ends_as_its_launcher_does_and_its_workers_go(cluster: Real):
    cluster.machines(1)
    assert cluster.arena(*words("good", 2, 1)).code == 0
    cluster.until(lambda: cluster.exact("good"), "the workers run")
    launcher = next(name for name in cluster.pods() if "launcher" in name)
    cluster.tell(launcher, "exit", "0")
    done = cluster.arena("wait", "good", "--timeout=30s")
    assert done.code == 0, done.err
    cluster.until(lambda: not cluster.bound("good"), "the workers are gone")
    assert "SUCCEEDED" in cluster.arena("get", "good").out


def test_a_job_lasts_as_long_as_its_launcher_says(cluster: Real):
    cluster.machines(1)
    lasts = "--annotation=test.arena-topo.io/lasts=1s"
    assert cluster.arena(*words("short", 1, 1, lasts)).code == 0
    done = cluster.arena("wait", "short", "--timeout=30s")
    assert done.code == 0, done.err


def test_gangs_that_wait_are_started_in_their_turn(cluster: Real):
    cluster.machines(1)
    assert cluster.arena(*words("first", 1, 8)).code == 0
    for name in ("second", "third"):
        done = cluster.arena(*words(name, 2, 4))
        assert done.code == 0, done.err
        assert not cluster.planned(name)
    with cluster.controller():
        cluster.arena("delete", "first")
        cluster.until(lambda: cluster.exact("second"), "the older one starts")
        assert not cluster.planned("third")
        cluster.arena("delete", "second")
        cluster.until(lambda: cluster.exact("third"), "the younger one starts after it")


def test_gates_that_nobody_opens_are_opened_by_the_controller(cluster: Real):
    cluster.machines(2)
    assert cluster.arena(*words("gang", 4, 4, "--binding=gates")).code == 0
    cluster.until(lambda: cluster.exact("gang"), "the submitter opens the gates")
    cluster.called("DELETE", cluster.live.path("pods", "gang-worker-1"))
    with cluster.controller():
        cluster.until(lambda: cluster.exact("gang"), "the controller opens that of the new worker")


def test_suspend_resume_and_replan_move_a_gang_whole(cluster: Real):
    cluster.machines(2)
    assert cluster.arena(*words("gang", 2, 4)).code == 0
    cluster.until(lambda: cluster.exact("gang"), "the gang runs")
    assert cluster.arena("suspend", "gang").code == 0
    cluster.until(lambda: not cluster.pods(), "its pods are gone, the launcher's as well")
    assert "SUSPENDED" in cluster.arena("get", "gang").out
    assert cluster.arena("resume", "gang").code == 0
    cluster.until(lambda: cluster.exact("gang"), "the gang runs again")
    [before] = set(cluster.bound("gang").values())
    cluster.kubectl("cordon", before)
    done = cluster.arena("replan", "gang")
    assert done.code == 0, done.err
    cluster.until(lambda: cluster.exact("gang"), "the gang runs elsewhere")
    assert set(cluster.bound("gang").values()) == {"node-0", "node-1"} - {before}


def test_the_controller_moves_gangs_whose_machine_or_worker_is_lost(cluster: Real):
    """One machine is cordoned, one falls silent, and of the third gang a worker is evicted."""
    cluster.machines(6)
    names = ("cordoned", "silent", "evicted")
    for name in names:
        assert cluster.arena(*words(name, 2, 4)).code == 0
        cluster.until(lambda name=name: cluster.exact(name), f"{name} runs")
    before = {name: cluster.bound(name)[f"{name}-worker-0"] for name in names}
    uids = {name: one["metadata"]["uid"] for name, one in cluster.pods().items()}
    cluster.kubectl("cordon", before["cordoned"])
    cluster.silence(before["silent"])
    cluster.tell("evicted-worker-1", "evicted", "true")

    def anew(name: str) -> bool:
        pods = cluster.pods()
        workers = [pods.get(f"{name}-worker-{index}") for index in range(2)]
        return cluster.exact(name) and all(
            one is not None and one["metadata"]["uid"] != uids[one["metadata"]["name"]]
            for one in workers
        )

    with cluster.controller() as log:
        for name in reversed(names):
            cluster.until(lambda name=name: anew(name), f"{name}: {log.read_text()}", patience=180)
    for name in ("cordoned", "silent"):
        assert before[name] not in cluster.bound(name).values()


def held(cluster: Real) -> dict[tuple[str, int], str]:
    """Each GPU that a running gang holds by its record, and who holds it; none has two holders."""
    found: dict[tuple[str, int], str] = {}
    for job in cluster.called("GET", cluster.live.path("mpijobs", group=JOBS))["items"]:
        notes = job["metadata"]["annotations"]
        if notes[STATE] != "placed" or job["spec"]["runPolicy"]["suspend"]:
            continue
        for index, node, gpus in parse_map(notes[MAP]):
            for gpu in gpus:
                worker = f"{job['metadata']['name']}-worker-{index}"
                other = found.setdefault((node, gpu), worker)
                assert other == worker, f"GPU {gpu} of {node}: {other} and {worker}"
    return found


def test_no_gpu_is_given_twice_to_200_gangs_of_eight_submitters(cluster: Real):
    """Each gang takes two GPUs, in two pods; 15 machines have room for 60 of them."""
    cluster.machines(15, kept=True)
    names = [f"gang-{index}" for index in range(200)]
    processes = [
        subprocess.Popen(
            [sys.executable, str(SUBMITTING), cluster.live.config, *names[first::8]],
            env=cluster.env(SUBMITTING_NAMESPACE=cluster.live.namespace),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for first in range(8)
    ]
    try:
        while any(one.poll() is None for one in processes):
            held(cluster)
            time.sleep(1)
        for one in processes:
            out, err = one.communicate()
            assert one.returncode == 0, err
            assert not [line for line in map(json.loads, out.splitlines()) if "error" in line]
    finally:
        for one in processes:
            one.kill()
            one.wait()
    # Whoever yielded to one that yielded in its turn waits although there is room.
    assert 30 < len(started(cluster)) <= 60
    for name in sorted(started(cluster)):
        cluster.until(lambda name=name: cluster.exact(name), f"{name} runs where it was planned")


def started(cluster: Real) -> set[str]:
    """The gangs that hold GPUs."""
    return {worker.rpartition("-worker-")[0] for worker in held(cluster).values()}
