"""Suspending and resuming jobs: ordinary ones of any creator, on every engine."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import prompt
import pytest
from worlds import living_world

from arena_topo import cli
from arena_topo.engines import JobStatus, Phase
from arena_topo.engines.kubernetes.queue import Queue
from arena_topo.engines.local import engine, processes
from arena_topo.job import KeyValue

arena = prompt.where_jobs_wait


def phase(arena: prompt.Prompt, name: str = "demo") -> Phase:
    return arena.world.backend.job(name, "default").phase


def running(arena: prompt.Prompt, name: str = "demo", **more: Any) -> JobStatus:
    arena.applied(name, **{"workers": 2, "gpus": 2, **more})
    arena.world.start(name)
    return arena.world.backend.job(name, "default")


def test_an_ordinary_job_is_suspended_and_resumed(arena: prompt.Prompt):
    running(arena)
    code, out, err = arena("suspend", "demo")
    assert (code, out) == (0, "mpijob.kubeflow.org/demo suspended\n")
    free = "Its GPUs are free once its pods have ended. "
    assert f"{free}Start it again: arena-topo resume demo -n default" in err
    assert phase(arena) is Phase.SUSPENDED
    _, out, _ = arena("list")
    assert "SUSPENDED" in out
    assert arena("resume", "demo")[:2] == (0, "mpijob.kubeflow.org/demo resumed\n")
    assert phase(arena) is not Phase.SUSPENDED


def test_suspending_or_resuming_twice_is_no_error(arena: prompt.Prompt):
    running(arena)
    assert arena("suspend", "demo")[:2] == (0, "mpijob.kubeflow.org/demo suspended\n")
    assert phase(arena) is Phase.SUSPENDED
    code, out, err = arena("suspend", "demo")
    assert (code, out) == (0, "")
    assert "demo is suspended already" in err
    assert phase(arena) is Phase.SUSPENDED
    for _ in range(2):
        assert arena("resume", "demo")[0] == 0


def test_a_suspended_job_says_who_starts_it_and_can_be_waited_for_and_deleted(arena: prompt.Prompt):
    running(arena)
    arena("suspend", "demo")
    resume = "arena-topo resume demo -n default"
    code, out, _ = arena("why", "demo")
    assert (code, resume in out) == (0, True)
    code, _, err = arena("--timeout=1s", "wait", "demo")
    assert code == 6
    assert resume in err
    assert arena("delete", "demo")[0] == 0
    assert arena("get", "demo")[0] == 1


def test_what_is_over_or_not_there_is_neither_suspended_nor_resumed(arena: prompt.Prompt):
    arena.finished("demo", 3)
    delete = "arena-topo delete demo -n default"
    assert arena("suspend", "demo") == (
        1,
        "",
        f"error: demo cannot be suspended\n  why:  it has FAILED\n  try:  {delete} removes it\n",
    )
    assert arena("resume", "demo") == (
        1,
        "",
        (
            "error: demo cannot be resumed\n  why:  it has FAILED\n"
            f"  try:  {delete}, and submit it again\n"
        ),
    )
    for verb in ("suspend", "resume"):
        code, _, err = arena(verb, "nobody")
        assert code == 1
        assert err.startswith("error: no job nobody in namespace default")


QUEUES = {
    "Kueue's label": ({"labels": {"kueue.x-k8s.io/queue-name": "q"}}, {}),
    "MultiKueue": ({}, {"managedBy": "kueue.x-k8s.io/multikueue"}),
    "another manager": ({}, {"managedBy": "example.com/queue"}),
    "kube-queue holds it": ({"annotations": {"scheduling.x-k8s.io/suspend": "true"}}, {}),
    "kube-queue let it go": ({"annotations": {"scheduling.x-k8s.io/suspend": "false"}}, {}),
    "the operator": ({}, {"managedBy": "kubeflow.org/mpi-operator"}),
    "nobody": ({}, {}),
}


@pytest.mark.parametrize(("meta", "policy"), QUEUES.values(), ids=QUEUES.keys())
def test_a_job_is_queuing_exactly_where_resume_leaves_its_start_to_a_queue(
    tmp_path: Any, capfd: Any, meta: dict[str, Any], policy: dict[str, Any]
):
    with prompt.opened("kubernetes-v2beta1", tmp_path, capfd) as arena:
        arena.applied("demo", workers=2, gpus=2)
        assert arena("suspend", "demo")[0] == 0
        with arena.world.api.edit("MPIJob", "demo") as job:
            for key, value in meta.items():
                job["metadata"][key] = {**(job["metadata"].get(key) or {}), **value}
            job["spec"]["runPolicy"] |= policy
        shown = phase(arena)
        _, why, _ = arena("why", "demo")
        code, _, err = arena("resume", "demo")
        refused = code != 0 and " decides when demo starts" in err
        assert (shown is Phase.QUEUING) == refused
        assert (shown is Phase.SUSPENDED) == (code == 0)
        assert ("a user or another program has suspended it" in why) == (code == 0)


def test_jobs_of_mpijob_v1alpha1_can_only_be_deleted(tmp_path: Any, capfd: Any):
    with prompt.opened("kubernetes-v1alpha1", tmp_path, capfd) as arena:
        running(arena)
        for line in (("suspend",), ("replan",)):
            assert arena(*line, "demo") == (
                1,
                "",
                (
                    "error: jobs of this engine cannot be suspended or resumed\n"
                    "  why:  MPIJob v1alpha1 knows no suspension\n"
                    "  try:  arena-topo delete demo -n default ends it; submit it again later\n"
                ),
            )


QUEUED = ("--name=demo", "--image=i", "--queue", "c")


@pytest.mark.parametrize(
    "line",
    [
        ("submit", "mpi", *QUEUED),
        ("submit", "mpi", "--dry-run", *QUEUED),
        ("submit", "mpi", "--dry-run=server", *QUEUED),
        ("plan", "mpi", *QUEUED),
    ],
    ids=["submit", "dry run", "server's dry run", "plan"],
)
@pytest.mark.parametrize("which", ["kubernetes-v1alpha1", "kubernetes-v1"])
def test_where_a_job_cannot_be_suspended_it_is_said_that_a_queue_may_not_hold_it(
    tmp_path: Any, capfd: Any, line: tuple[str, ...], which: str
):
    with prompt.opened(which, tmp_path, capfd) as arena:
        code, out, err = arena(*line)
    assert code == 0
    said = "an operator that does not know it starts the job at once"
    assert (said in err) is (which == "kubernetes-v1alpha1")
    assert said not in out


# ---------------------------------------------------------------- on a cluster


@pytest.fixture(params=["kubernetes-v2beta1", "kubernetes-v1"])
def cluster(request: pytest.FixtureRequest, tmp_path: Any, capfd: Any) -> Iterator[Any]:
    with prompt.opened(request.param, tmp_path, capfd) as one:
        yield one


POLICIES: dict[str, Any] = {
    "none": None,
    "empty": {},
    "others": {"cleanPodPolicy": "Running", "backoffLimit": 3},
    "not suspended": {"suspend": False, "ttlSecondsAfterFinished": 9},
}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_job_of_another_creator_loses_nothing_but_its_pods(cluster: Any, policy: Any):
    with cluster.world.api.edit("MPIJob", made(cluster)) as job:
        job["metadata"].pop("labels", None)
        job["metadata"].pop("annotations", None)
        job["spec"].pop("runPolicy", None)
        if policy is not None:
            job["spec"]["runPolicy"] = policy
        before = json.loads(json.dumps(job["spec"]))
    assert cluster("suspend", "demo")[0] == 0
    suspended = cluster.world.api.find("MPIJob", "demo", "default")["spec"]
    assert suspended == {**before, "runPolicy": {**(policy or {}), "suspend": True}}
    assert cluster("resume", "demo")[0] == 0
    resumed = cluster.world.api.find("MPIJob", "demo", "default")["spec"]
    assert resumed == {**before, "runPolicy": {**(policy or {}), "suspend": False}}


def made(cluster: Any) -> str:
    cluster.applied("demo", workers=2)
    return "demo"


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_what_somebody_else_suspends_at_that_moment_is_left_to_be_looked_at_again(
    cluster: Any, policy: Any, monkeypatch: pytest.MonkeyPatch
):
    made(cluster)
    with cluster.world.api.edit("MPIJob", "demo") as job:
        job["spec"].pop("runPolicy", None)
        if policy is not None:
            job["spec"]["runPolicy"] = policy
    change, patches = Queue.change, []

    def late(self: Any, stored: Any, patch: Any) -> Any:
        if not patches:
            with cluster.world.api.edit("MPIJob", "demo") as job:
                job["spec"].setdefault("runPolicy", {})["suspend"] = True
        patches.append(change(self, stored, patch))
        return patches[-1]

    monkeypatch.setattr(Queue, "change", late)
    assert cluster("suspend", "demo")[0] == 0
    # The first did not hold; at the second look there was nothing left to do.
    assert patches == [None]


def test_what_another_queue_owns_is_left_to_it_and_says_what_to_do(cluster: Any):
    kueue = KeyValue(key="kueue.x-k8s.io/queue-name", value="team")
    cluster.applied("kueues", label=(kueue,))
    cluster.applied("queued", queue=True)
    for name in ("kueues", "queued"):
        with cluster.world.api.edit("MPIJob", name) as job:
            job["spec"].setdefault("runPolicy", {})["suspend"] = True
    for verb, word in (("suspend", "runs"), ("resume", "starts")):
        code, out, err = cluster(verb, "kueues")
        assert (code, out) == (1, "")
        assert err.startswith(f"error: Kueue decides when kueues {word}\n")
        assert "kubectl kueue stop workload" in err
        code, out, err = cluster(verb, "queued")
        assert (code, out) == (1, "")
        assert err.startswith(f"error: kube-queue decides when queued {word}\n")
        assert "if this cluster has no kube-queue" in err
        assert "arena-topo delete queued -n default" in err
        assert "without --queue" in err


def test_an_operator_that_knows_no_suspension_is_named(cluster: Any):
    made(cluster)

    def forgetful(resource: Any, thing: dict[str, Any], _operation: str) -> None:
        if resource.plural == "mpijobs":
            thing["spec"].get("runPolicy", {}).pop("suspend", None)

    cluster.world.api.mutators.append(forgetful)
    code, out, err = cluster("suspend", "demo")
    assert (code, out) == (1, "")
    assert "knows no suspension" in err
    assert "try:  end it with: arena-topo delete demo -n default" in err


def test_a_suspended_job_of_a_cluster_has_no_pods_and_runs_again_when_resumed(
    tmp_path: Any, capfd: Any
):
    with living_world(tmp_path) as world:
        flags = f"--kubeconfig={tmp_path / 'config'}"
        world.backend.apply(world.plan(world.job("demo", workers=2, image="fine")))
        world.start("demo")
        assert cli.run([flags, "suspend", "demo"]) == 0
        until(lambda: not world.backend.job("demo", "default").instances)
        assert world.backend.job("demo", "default").phase is Phase.SUSPENDED
        assert cli.run([flags, "resume", "--wait", "demo"]) == 0
        assert world.backend.job("demo", "default").phase is Phase.RUNNING
    capfd.readouterr()


def until(reached: Any) -> None:
    deadline = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# ---------------------------------------------------------------- on this machine


@pytest.fixture
def here(tmp_path: Any, capfd: Any) -> Iterator[Any]:
    with prompt.opened("local", tmp_path, capfd) as one:
        yield one


def test_nothing_of_a_suspended_local_job_runs_and_others_get_its_gpus(here: Any):
    uid = running(here, workers=2, gpus=8).uid
    here.applied("next", workers=2, gpus=8)
    assert phase(here, "next") is Phase.PENDING
    assert here("suspend", "demo")[0] == 0
    assert not processes.processes_of_job(uid)
    assert here.world.backend.job("demo", "default").instances == ()
    here.world.start("next")
    # Whoever is held keeps nothing back, and takes its turn again when it is resumed.
    assert here("resume", "demo")[0] == 0
    assert phase(here) is Phase.PENDING
    here.world.finish("next")
    here.world.start("demo")


def test_a_resumed_local_job_starts_again_from_its_beginning(here: Any):
    running(here)
    here.world.say("demo", "first")
    until(lambda: "first" in here("logs", "demo")[1])
    here("suspend", "demo")
    assert here("resume", "--wait", "demo")[0] == 0
    assert here("logs", "demo")[1] == ""
    here.world.say("demo", "second")
    until(lambda: here("logs", "demo")[1] == "second\n")
    here.world.finish("demo", 0)
    assert phase(here) is Phase.SUCCEEDED


def test_a_local_job_that_waits_its_turn_is_suspended_too(here: Any):
    running(here, "first", workers=2, gpus=8)
    here.applied("demo", workers=2, gpus=8)
    here.applied("small", workers=1, gpus=1)
    again = "Start it again: arena-topo resume demo -n default\n"
    assert here("suspend", "demo") == (0, "mpijob.kubeflow.org/demo suspended\n", again)
    here.world.finish("first")
    here.world.start("small")
    assert phase(here) is Phase.SUSPENDED
    code, out, err = here("resume", "demo")
    assert (code, out) == (0, "mpijob.kubeflow.org/demo resumed\n")
    assert "The Job demo is PENDING: 2 workers x 8 GPUs cannot be placed now" in err
    assert err.endswith("It starts by itself once it can.\n")
    assert phase(here) is Phase.PENDING


def test_a_local_job_whose_supervisor_is_killed_while_it_is_suspended_is_held_not_failed(
    here: Any, monkeypatch: pytest.MonkeyPatch
):
    running(here)

    def killed(_self: Any, entry: Any) -> frozenset[int]:
        processes.terminate(lambda: {entry.state.supervisor.pid}, grace=0.0)
        return frozenset()

    with monkeypatch.context() as gone:
        gone.setattr(engine.LocalBackend, "_stop", killed)
        assert here("suspend", "demo")[0] == 0
    assert phase(here) is Phase.SUSPENDED
    assert here("resume", "demo")[0] == 0
    here.world.start("demo")


def test_no_look_sees_a_local_job_fail_while_it_is_suspended(here: Any):
    running(here)
    seen: set[Phase] = set()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            seen.add(phase(here))

    watching = threading.Thread(target=look)
    watching.start()
    here("suspend", "demo")
    done.set()
    watching.join()
    assert seen <= {Phase.RUNNING, Phase.SUSPENDED}


def test_a_slow_suspend_does_not_end_the_run_of_a_later_resume(
    here: Any, monkeypatch: pytest.MonkeyPatch
):
    running(here)
    backend, end = here.world.backend, processes.terminate

    def halted(*words: Any, **more: Any) -> Any:
        left = end(*words, **more)
        # The supervisor of the next run is a fork of this process.
        slow.undo()
        until(lambda: phase(here) is Phase.SUSPENDED)
        assert backend.resume("demo", "default")
        here.world.start("demo")
        return left

    with monkeypatch.context() as slow:
        slow.setattr(processes, "terminate", halted)
        assert here("suspend", "demo")[0] == 0
    time.sleep(0.5)
    assert phase(here) is Phase.RUNNING
    reasons = [one.reason for one in backend.events(backend.job("demo", "default"))]
    assert "Suspended" not in reasons[reasons.index("Resumed") :]
