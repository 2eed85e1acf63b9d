"""Whose turn it is, what is kept for the first in the queue, and who may use it meanwhile."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from cube_mesh import HGX, cluster, node
from replacing import replace

from arena_topo.clusters.queues import suspender
from arena_topo.engines.kubernetes.queued import (
    MOST_TRIES,
    Clusters,
    QueuedJob,
    Snapshot,
    parse_time,
    queued,
    written,
)
from arena_topo.errors import InvalidJob
from arena_topo.gang import fairness
from arena_topo.job import MPIJob
from arena_topo.manifests import (
    FORMAT_ANNOTATION,
    MAP,
    RECORDED,
    REQUEST,
    STATE,
    TRIES_ANNOTATION,
    render,
)
from arena_topo.manifests.recorded_job import job_of
from arena_topo.manifests.requests import request_annotation
from arena_topo.manifests.versions import ApiVersion
from arena_topo.queueing.reservation import QueueHead
from arena_topo.topology import Cluster

NOW = 1_900_000_000.0


def a_job(name: str, workers: int = 2, gpus: int = 4, **more: Any) -> QueuedJob:
    """A gang that waits since it was created at 0."""
    asked = MPIJob(name=name, command="x", image="y", workers=workers, gpus=gpus, gputopology=True)
    plan = render.build_plan(
        asked, namespace="default", api=ApiVersion.V2BETA1, owner="a", files={}, waiting=""
    )
    manifest = plan.objects[0]
    manifest["metadata"].setdefault("annotations", {})[REQUEST] = request_annotation(asked)
    values: dict[str, Any] = {
        "namespace": "default",
        "name": name,
        "created": 0.0,
        "priority": 0,
        "state": "waiting",
        "record": None,
        "recorded": None,
        "suspended": True,
        "suspender": None,
        "tries": 0,
        "timeout": None,
        "started": None,
        "manifest": manifest,
    }
    return QueuedJob(**values | more)


def seen(jobs: Sequence[QueuedJob], emptied: Cluster) -> Snapshot:
    """What is in the cluster if all of arena-topo had ended is all that is asked of it here."""
    return Snapshot(jobs=tuple(jobs), now=NOW, clusters=Clusters((), lambda _: emptied))


TWO = cluster(node("node-0", HGX), node("node-1", HGX))


def test_the_order_is_by_priority_then_age_then_name() -> None:
    jobs = [
        a_job("b", created=1.0),
        a_job("a", created=1.0),
        a_job("c", created=1.0, namespace="another"),
        a_job("old", created=0.5),
        a_job("urgent", created=9.0, priority=10),
        a_job("idle", created=0.0, priority=-10),
    ]
    wanted = ["urgent", "old", "c", "a", "b", "idle"]
    for order in itertools.permutations(jobs):
        assert [one.name for one in fairness.order(order)] == wanted


@pytest.mark.parametrize(
    "more",
    [
        {"state": "held"},
        {"state": "placed"},
        {"suspended": False},
        {"suspender": "Kueue"},
        {"tries": MOST_TRIES},
    ],
)
def test_who_waits_for_somebody_else_is_not_in_the_queue(more: dict[str, Any]) -> None:
    assert fairness.order([a_job("a", **more)]) == []
    assert fairness.order([a_job("a")])


def head_of(jobs: Sequence[QueuedJob], on: Cluster = TWO) -> QueueHead | None:
    return fairness.find_head(seen(jobs, on), blocked=lambda _: False)


def test_what_makes_no_sense_is_not_the_head() -> None:
    broken, real = a_job("broken"), a_job("real", created=1.0)
    broken.manifest["metadata"]["annotations"][REQUEST] = '{"maxNodes":"many"}'
    with pytest.raises(InvalidJob):
        job_of(broken.manifest)
    head = head_of([broken, real])
    assert head is not None
    assert head.gang.key == "default/real"


def test_a_gang_that_something_else_than_gpus_keeps_from_starting_keeps_nothing() -> None:
    short, real = a_job("short"), a_job("real", created=1.0)
    head = fairness.find_head(seen([short, real], TWO), blocked=lambda job: job is short)
    assert head is not None
    assert head.gang.key == "default/real"


@pytest.mark.parametrize(
    "mine",
    [
        a_job("mine"),
        a_job("mine", state="placed", record="node-0/0"),
        a_job("mine", priority=1, created=5.0),
    ],
)
def test_nothing_is_kept_from_whose_turn_it_is(mine: QueuedJob) -> None:
    younger = a_job("younger", created=2.0)
    head = head_of([mine, younger])
    assert fairness.left_to(mine, TWO, head, NOW) is TWO


def test_a_stopped_gang_gets_back_its_own_gpus_alone() -> None:
    """Not all that the head has reserved on the same node."""
    one = cluster(node("node-0", HGX))
    first = a_job("first", workers=1, gpus=8)
    stopped = a_job("stopped", workers=2, gpus=1, created=1.0, reserved="node-0/2;node-0/3")
    head = head_of([first, stopped], one)
    assert head is not None
    assert head.gang.key == "default/first"
    assert fairness.left_to(stopped, one, head, NOW).nodes[0].free == 0b1100
    counted = a_job("stopped", workers=2, gpus=1, created=1.0, reserved="node-0/;node-0/")
    unnamed = replace(
        head.placement, assignments=(replace(head.placement.assignments[0], gpus=()),)
    )
    left = fairness.left_to(counted, one, replace(head, placement=unnamed), NOW)
    assert left.nodes[0].free_count == 2


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({"recorded": NOW - 61}, True),
        ({"recorded": NOW - 59}, False),
        ({"recorded": NOW + 5}, False),
        ({"recorded": NOW + 59}, False),
        ({"recorded": NOW + 61}, True),
        ({"recorded": NOW + 1e9}, True),
        ({"recorded": None}, True),
        ({"recorded": NOW - 61, "suspended": False}, False),
        ({"recorded": NOW - 61, "suspender": "Kueue"}, False),
        ({"recorded": NOW - 61, "state": "held"}, False),
        ({"recorded": NOW - 61, "state": "waiting"}, False),
    ],
)
def test_a_record_is_left_behind_after_a_minute_of_the_servers_time(
    more: dict[str, Any], wanted: object
) -> None:
    job = a_job("a", **{"state": "placed", "record": "node-0/0", **more})
    assert fairness.is_abandoned(job, NOW) is wanted


# What the queue reads


def an_mpijob(**notes: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "j",
            "namespace": "default",
            "creationTimestamp": "2026-11-21T12:00:00Z",
            "annotations": {FORMAT_ANNOTATION: "v1", STATE: "placed", MAP: "node-0/0", **notes},
        },
        "spec": {
            "runPolicy": {"suspend": True, "activeDeadlineSeconds": 60},
            "mpiReplicaSpecs": {
                "Worker": {
                    "replicas": 1,
                    "template": {
                        "spec": {"priorityClassName": "high", "containers": [{"name": "w"}]}
                    },
                }
            },
        },
    }


def test_a_job_is_read_as_it_stands() -> None:
    found = queued(
        an_mpijob(**{RECORDED: "2026-11-21T12:00:05.25Z", TRIES_ANNOTATION: "2"}), {"high": 7}
    )
    assert found is not None
    assert (found.key, found.state, found.record) == (("default", "j"), "placed", "node-0/0")
    assert found.recorded == found.created + 5.25
    assert (found.priority, found.tries, found.timeout) == (7, 2, 60.0)
    assert (found.suspended, found.suspender, found.stopped) == (True, None, False)


@pytest.mark.parametrize("state", ["waiting", "held"])
def test_a_map_counts_only_in_the_state_placed(state: str) -> None:
    found = queued(an_mpijob(**{STATE: state}), {})
    assert found is not None
    assert found.record is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (STATE, "running"),
        (STATE, ""),
        (FORMAT_ANNOTATION, "v2"),
        (FORMAT_ANNOTATION, None),
        (STATE, None),
    ],
)
def test_what_is_not_ours_is_not_queued(key: str, value: str | None) -> None:
    job = an_mpijob()
    if value is None:
        del job["metadata"]["annotations"][key]
    else:
        job["metadata"]["annotations"][key] = value
    assert queued(job, {}) is None


def test_what_is_over_or_going_is_not_queued() -> None:
    going = an_mpijob()
    going["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    over = an_mpijob() | {"status": {"conditions": [{"type": "Succeeded", "status": "True"}]}}
    assert queued(going, {}) is None
    assert queued(over, {}) is None


def test_notes_that_make_no_sense_are_as_good_as_none() -> None:
    found = queued(an_mpijob(**{RECORDED: "yesterday", TRIES_ANNOTATION: "-4"}), {})
    assert found is not None
    assert (found.recorded, found.tries, found.priority) == (None, 0, 0)
    for text in (None, "", "x", 7, "2026-13-01T00:00:00Z"):
        assert parse_time(text) is None
    for tries in ("\N{SUPERSCRIPT TWO}", "\N{ARABIC-INDIC DIGIT TWO}", "9" * 5000, " 2", "2.0"):
        found = queued(an_mpijob(**{TRIES_ANNOTATION: tries}), {})
        assert found is not None
        assert found.tries == 0
    endless = an_mpijob()
    endless["spec"]["runPolicy"]["activeDeadlineSeconds"] = 10**400
    found = queued(endless, {})
    assert found is not None
    assert found.timeout is None


def at(job: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """The job with something else in one place; `...` for nothing at all there."""
    *parents, last = path.split("/")
    inner: Any = job
    for part in parents:
        inner = inner[int(part)] if isinstance(inner, list) else inner.setdefault(part, {})
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return job


WORKER = "spec/mpiReplicaSpecs/Worker"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec", ...),
        ("spec/mpiReplicaSpecs", None),
        (WORKER, ...),
        (WORKER, None),
        (f"{WORKER}/template", ...),
        (f"{WORKER}/template/spec", {}),
        (f"{WORKER}/template/spec/containers", []),
        (f"{WORKER}/template/spec/containers", ["image"]),
        (f"{WORKER}/template/spec/containers", {"name": "w"}),
        (f"{WORKER}/template/spec/containers/0/resources", "all"),
        (f"{WORKER}/template/metadata", "x"),
        (f"{WORKER}/replicas", "2"),
        (f"{WORKER}/replicas", True),
        ("spec/mpiReplicaSpecs/Launcher", {"replicas": 1}),
        ("spec/runPolicy", "Never"),
        ("spec/template", {"spec": {"containers": [{"name": "w"}]}}),
        ("spec/template", None),
        ("metadata/name", ...),
        ("metadata/labels", ["a"]),
        ("metadata/annotations/tries", 2),
        ("status", {"conditions": "Failed"}),
        ("status", {"conditions": ["Failed"]}),
    ],
)
def test_what_makes_no_sense_as_a_job_is_not_queued(path: str, value: object) -> None:
    """Any tenant may write it; it must stop nobody else's jobs."""
    assert queued(at(an_mpijob(), path, value), {}) is None


def test_the_form_of_v1alpha1_is_queued_too() -> None:
    job = at(an_mpijob(), "spec/mpiReplicaSpecs", ...)
    worker = {"spec": {"priorityClassName": "high", "containers": [{"name": "w"}]}}
    found = queued(at(at(job, "spec/template", worker), "spec/replicas", 2), {"high": 7})
    assert found is not None
    assert found.priority == 7
    assert queued(at(job, "spec/template/spec/containers", []), {}) is None


def test_times_are_written_to_the_microsecond_and_read_back() -> None:
    assert written(NOW + 0.123456) == "2030-03-17T17:46:40.123456Z"
    assert parse_time(written(NOW + 0.123456)) == pytest.approx(NOW + 0.123456, abs=1e-6)


@pytest.mark.parametrize(
    ("label", "note", "manager", "who"),
    [
        (None, None, None, None),
        (None, None, "kubeflow.org/mpi-operator", None),
        ("kueue.x-k8s.io/queue-name", None, None, "Kueue"),
        (None, None, "kueue.x-k8s.io/multikueue", "Kueue"),
        (None, "scheduling.x-k8s.io/suspend", None, "kube-queue"),
        (None, None, "example.com/own", "example.com/own"),
    ],
)
def test_who_alone_may_suspend_a_job(
    label: str | None, note: str | None, manager: str | None, who: str | None
) -> None:
    job = an_mpijob()
    if label:
        job["metadata"]["labels"] = {label: "team"}
    if note:
        job["metadata"]["annotations"][note] = "true"
    if manager:
        job["spec"]["runPolicy"]["managedBy"] = manager
    assert suspender(job) == who


def test_a_job_was_started_when_it_was_last_resumed() -> None:
    job = an_mpijob()
    job["status"] = {
        "startTime": "2026-11-21T11:00:00Z",
        "conditions": [
            {
                "type": "Suspended",
                "status": "False",
                "lastTransitionTime": "2026-11-21T12:30:00Z",
            }
        ],
    }
    found = queued(job, {})
    assert found is not None
    assert found.started == found.created + 1800
    del job["status"]["conditions"]
    found = queued(job, {})
    assert found is not None
    assert found.started == found.created - 3600
