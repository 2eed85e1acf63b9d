"""What becomes of a gang after it was resumed, by what its pods and events say."""

from __future__ import annotations

from typing import Any

import pytest

from arena_topo.engines.kubernetes.queued import written
from arena_topo.gang import pod_state
from arena_topo.gang.pod_state import Fate, StallTimer, status_of
from arena_topo.manifests import GATE, MAP, PROPOSED

NOW = 1_900_000_000.0
JOB = {
    "metadata": {"name": "j", "annotations": {MAP: "node-0/0,1;node-0/2,3;node-1/4,5"}},
    "spec": {"mpiReplicaSpecs": {"Worker": {"replicas": 3}}},
}


def why(found: pod_state.GangStatus) -> str:
    """What is in the way of a gang."""
    return str(found.broken or found.progress)


def worker(
    index: int,
    *,
    node: str | None = None,
    phase: str = "Pending",
    waits: tuple[str, str] | None = None,
    gates: tuple[str, ...] = (),
    ends: bool = False,
    **status: Any,
) -> dict[str, Any]:
    said: dict[str, Any] = {"phase": phase, **status}
    if waits is not None:
        state = {"waiting": {"reason": waits[0], "message": waits[1]}}
        said["containerStatuses"] = [{"name": "mpi", "state": state}]
    meta: dict[str, Any] = {
        "name": f"j-worker-{index}",
        "namespace": "default",
        "uid": f"u{index}",
        "labels": {
            "training.kubeflow.org/job-role": "worker",
            "training.kubeflow.org/replica-index": str(index),
        },
    }
    if ends:
        meta["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    spec: dict[str, Any] = {"nodeName": node} if node else {}
    if gates:
        spec["schedulingGates"] = [{"name": name} for name in gates]
    return {"metadata": meta, "spec": spec, "status": said}


def launcher(**status: Any) -> dict[str, Any]:
    meta = {"name": "j-launcher", "labels": {"training.kubeflow.org/job-role": "launcher"}}
    return {"metadata": meta, "spec": {"nodeName": "node-9"}, "status": status}


def running(index: int) -> dict[str, Any]:
    return worker(index, node="node-0", phase="Running")


def unschedulable(since: float, message: str = "0/2 nodes are available") -> dict[str, Any]:
    return {
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": message,
                "lastTransitionTime": written(since),
            }
        ]
    }


def warning(message: str, at: float = NOW) -> dict[str, Any]:
    return {"message": message, "lastTimestamp": written(at), "type": "Warning"}


def told(index: int, reason: str, message: str = "", **more: Any) -> dict[str, Any]:
    """What a kubelet, or the scheduler, says of a worker."""
    kind = "Warning" if reason.startswith(("Failed", "BackOff")) else "Normal"
    about = {"kind": "Pod", "name": f"j-worker-{index}", "uid": f"u{index}", **more}
    return {"involvedObject": about, "reason": reason, "message": message, "type": kind}


def seen(*pods: dict[str, Any], events: Any = (), since: float = NOW - 5) -> pod_state.GangStatus:
    return status_of(JOB, pods, events, now=NOW, since=since)


def pulls(*pods: dict[str, Any], events: Any = ()) -> bool:
    return pod_state.pulls_image(pods, events, now=NOW)


def test_all_workers_that_run_have_started() -> None:
    assert seen(*map(running, range(3)), launcher(phase="Pending")).fate is Fate.STARTED
    ended = worker(0, node="node-0", phase="Succeeded")
    assert seen(ended, running(1), running(2)).fate is Fate.STARTED


def test_all_workers_with_a_node_are_bound_and_those_that_run_are_counted() -> None:
    found = seen(running(0), worker(1, node="node-0"), worker(2, node="node-1"))
    assert (found.fate, found.running, why(found)) == (Fate.BOUND, 1, "1 of 3 workers runs")


@pytest.mark.parametrize(
    ("pods", "reason"),
    [
        ((), "0 of 3 workers exist"),
        ((running(0), running(1)), "2 of 3 workers exist"),
        # The launcher, a worker on its way out and one too many are no workers.
        ((running(0), running(1), launcher(phase="Running")), "2 of 3 workers exist"),
        ((running(0), running(1), worker(2, node="n", ends=True)), "2 of 3 workers exist"),
        ((running(0), running(1), running(3)), "2 of 3 workers exist"),
        ((running(0), running(1), worker(2)), "2 of 3 workers have their nodes"),
        ((running(0), running(1), worker(2, gates=(GATE,))), "2 of 3 workers have their nodes"),
    ],
)
def test_a_gang_that_is_not_complete_gathers(pods: Any, reason: str) -> None:
    found = seen(*pods)
    assert (found.fate, why(found)) == (Fate.GATHERING, reason)


@pytest.mark.parametrize(
    ("reason", "message", "broken"),
    [
        ("ErrImagePull", "failed to authorize: 401 Unauthorized", True),
        ("ImagePullBackOff", "unexpected status from HEAD request: 403 Forbidden", True),
        ("ErrImagePull", "code = NotFound desc = failed to pull: x: not found", True),
        ("ErrImagePull", "manifest unknown", True),
        ("ErrImagePull", "pull access denied, repository does not exist", True),
        ("InvalidImageName", "couldn't parse image name", True),
        ("ErrImageNeverPull", "", True),
        ("ErrImagePull", "dial tcp: i/o timeout", False),
        ("ImagePullBackOff", "toomanyrequests: 429", False),
        ("ErrImagePull", "unexpected status: 503 Service Unavailable", False),
        # A number inside of another word is no status.
        ("ErrImagePull", "layer sha256:a4034041 timed out", False),
        ("ContainerCreating", "", False),
        ("CreateContainerConfigError", 'configmap "j-config" not found', False),
    ],
)
def test_an_image_that_is_refused_breaks_a_gang_and_one_that_is_late_does_not(
    reason: str, message: str, broken: object
) -> None:
    found = seen(running(0), running(1), worker(2, node="node-1", waits=(reason, message)))
    assert (found.fate is Fate.BROKEN) is broken
    if broken:
        assert why(found).startswith(f"j-worker-2: {reason}")


def test_a_worker_that_failed_breaks_a_gang_with_what_it_said() -> None:
    failed = worker(1, node="n", phase="Failed", reason="Evicted", message="low on memory")
    assert why(seen(running(0), failed)) == "j-worker-1: Evicted: low on memory"
    assert why(seen(worker(0, node="n", phase="Failed"))) == "j-worker-0: it failed"
    gone = worker(0, node="n", phase="Failed", ends=True)
    assert seen(gone).fate is Fate.GATHERING


@pytest.mark.parametrize(("ago", "broken"), [(14.0, False), (15.0, True), (60.0, True)])
def test_the_scheduler_is_given_time_to_change_its_mind(ago: float, broken: object) -> None:
    found = seen(running(0), running(1), worker(2, **unschedulable(NOW - ago)))
    assert (found.fate is Fate.BROKEN) is broken
    assert not broken or why(found) == "j-worker-2: 0/2 nodes are available"


def test_a_condition_without_a_time_is_as_of_now() -> None:
    status = unschedulable(NOW)
    del status["conditions"][0]["lastTransitionTime"]
    assert seen(worker(0, **status)).fate is Fate.GATHERING


@pytest.mark.parametrize(
    ("message", "broken"),
    [
        ('pods "j-worker-2" is forbidden: exceeded quota: gpu-quota', True),
        ('pods "j-worker-2" is forbidden: violates PodSecurity "restricted:latest"', True),
        ("worker pod created failed: policy 'p' with binding 'b' denied request", True),
        ("Failed to pull image: connection reset", False),
    ],
)
def test_a_worker_that_may_not_be_created_breaks_a_gang(message: str, broken: object) -> None:
    found = seen(running(0), running(1), events=[warning(message)])
    assert (found.fate is Fate.BROKEN) is broken
    assert not broken or why(found) == message


def test_events_of_an_earlier_try_and_of_workers_that_came_in_the_end_do_not_count() -> None:
    refused = "is forbidden: exceeded quota"
    assert seen(running(0), events=[warning(refused, NOW - 20)]).fate is Fate.GATHERING
    assert seen(*map(running, range(3)), events=[warning(refused)]).fate is Fate.STARTED
    # What is no warning refuses nothing, whatever it says.
    normal = {**warning(refused), "type": "Normal"}
    assert seen(running(0), events=[normal]).fate is Fate.GATHERING
    # Events are written to the second.
    found = status_of(JOB, [], [warning(refused, NOW)], now=NOW + 1, since=NOW + 0.9)
    assert found.fate is Fate.BROKEN


def test_the_newest_refusal_is_the_one_that_is_told() -> None:
    events = [warning("is forbidden: first", NOW - 3), warning("is forbidden: second", NOW - 1)]
    assert why(seen(events=events)) == "is forbidden: second"


def test_a_refusal_counts_by_when_it_was_last_seen() -> None:
    repeated = warning("is forbidden: exceeded quota", NOW - 60)
    repeated["eventTime"] = repeated.pop("lastTimestamp")
    assert seen(running(0), events=[repeated]).fate is Fate.GATHERING
    repeated["series"] = {"count": 9, "lastObservedTime": written(NOW - 1)}
    assert seen(running(0), events=[repeated]).fate is Fate.BROKEN


def test_an_event_about_something_else_of_a_workers_name_is_not_the_workers() -> None:
    pod = worker(0, node="n", waits=("ContainerCreating", ""))
    service = told(0, "FailedMount", "no luck", kind="Service", uid="")
    assert why(seen(pod, running(1), running(2), events=[service])) == "2 of 3 workers run"


# Patience


def test_patience_ends_when_nothing_has_moved_for_so_long() -> None:
    patience = StallTimer(limit=10.0)
    still = seen(running(0))
    assert not patience.expired(still, pulling=False, now=0.0)
    assert not patience.expired(still, pulling=False, now=9.9)
    assert patience.expired(still, pulling=False, now=10.0)


def test_every_step_of_a_gang_starts_it_anew() -> None:
    patience = StallTimer(limit=10.0)
    steps = [
        seen(),
        seen(worker(0, gates=(GATE,))),
        seen(worker(0)),
        seen(worker(0, node="n")),
        seen(worker(0, node="n", waits=("ContainerCreating", ""))),
        seen(running(0)),
        seen(running(0), worker(1)),
    ]
    for index, step in enumerate(steps):
        assert not patience.expired(step, pulling=False, now=9.0 * index), index


def test_a_pull_that_goes_on_is_progress_and_one_that_is_tried_again_is_not() -> None:
    patience = StallTimer(limit=10.0)
    pod = worker(0, node="n", waits=("ContainerCreating", ""))
    events = [told(0, "Scheduled"), told(0, "Pulling")]
    assert pulls(pod, events=events)
    for now in range(0, 100, 9):
        assert not patience.expired(seen(pod), pulling=True, now=float(now))
    # Between two tries kubelets say one word, after each the other.
    patience = StallTimer(limit=10.0)
    lost = []
    for now, word in enumerate(["ErrImagePull", "ImagePullBackOff"] * 10):
        pod = worker(0, node="n", waits=(word, "dial tcp: i/o timeout"))
        assert not pulls(pod, events=events)
        lost.append(patience.expired(seen(pod), pulling=False, now=float(now)))
    assert lost.index(True) == 10


def test_a_worker_without_a_node_pulls_nothing() -> None:
    events = [told(0, "Pulling")]
    assert not pulls(worker(0, waits=("ContainerCreating", "")), events=events)
    assert not pulls(running(0), worker(1), events=events)


SCHEDULED = told(0, "Scheduled", "Successfully assigned default/j-worker-0 to n")
MOUNT = told(0, "FailedMount", 'MountVolume.SetUp failed for volume "s": secret "s" not found')


@pytest.mark.parametrize(
    ("events", "pulling"),
    [
        ([SCHEDULED], False),
        ([SCHEDULED, MOUNT], False),
        ([SCHEDULED, told(0, "FailedCreatePodSandBox", "cni: no address")], False),
        ([SCHEDULED, told(0, "Pulling")], True),
        ([SCHEDULED, MOUNT, told(0, "Pulling")], True),
        ([SCHEDULED, told(0, "Pulling"), told(0, "Pulled")], False),
        ([SCHEDULED, told(0, "Pulling"), told(0, "Failed")], False),
        ([SCHEDULED, told(0, "Pulling"), told(0, "Failed"), told(0, "BackOff")], False),
        # The image of its init container, then its own.
        ([told(0, "Pulling"), told(0, "Pulled"), told(0, "Created"), told(0, "Pulling")], True),
        # That another worker pulls is progress of the other, while that one waits for it.
        ([SCHEDULED, told(1, "Pulling")], False),
        # The worker of that name before this one.
        ([SCHEDULED, told(0, "Pulling", uid="before")], False),
    ],
)
def test_what_a_worker_that_is_being_created_waits_for_is_told_by_its_events(
    events: Any, pulling: object
) -> None:
    pod = worker(0, node="n", waits=("ContainerCreating", ""))
    assert pulls(pod, running(1), events=events) is pulling


def test_without_events_a_worker_that_is_being_created_is_taken_to_pull() -> None:
    """Who may not read them sees none."""
    pod = worker(0, node="n", waits=("ContainerCreating", ""))
    assert pulls(pod)
    # Those of the others are there: it has none because it is not looked after.
    pod["metadata"]["creationTimestamp"] = written(NOW - 3599)
    assert not pulls(pod, events=[told(1, "Started")])
    # They are kept for an hour, and a pull may take longer than that.
    pod["metadata"]["creationTimestamp"] = written(NOW - 3600)
    assert pulls(pod, events=[told(1, "Started")])


def test_a_launcher_that_waits_for_its_workers_pulls_nothing() -> None:
    state = {"waiting": {"reason": "PodInitializing"}}
    waits = launcher(phase="Pending", containerStatuses=[{"name": "mpi", "state": state}])
    assert not pulls(waits)


def test_a_volume_that_is_not_there_ends_patience_and_is_told() -> None:
    patience = StallTimer(limit=10.0)
    pod = worker(0, node="n", waits=("ContainerCreating", ""))
    lost = []
    for now in range(12):
        stands = seen(pod, running(1), running(2), events=[SCHEDULED, MOUNT])
        going = pulls(pod, running(1), running(2), events=[SCHEDULED, MOUNT])
        lost.append(patience.expired(stands, pulling=going, now=float(now)))
    assert lost.index(True) == 10
    assert stands.fate is Fate.BOUND
    assert why(stands) == (
        'j-worker-0: FailedMount: MountVolume.SetUp failed for volume "s": secret "s" not found'
    )


@pytest.mark.parametrize(
    "events",
    [
        [MOUNT, told(0, "Pulling")],
        [MOUNT, told(0, "Pulled")],
        [MOUNT, told(0, "Failed", "pull: 429")],
        [told(1, "FailedMount", "of one that runs")],
        [told(0, "FailedMount", "of the one before", uid="before")],
    ],
)
def test_a_trouble_that_is_over_or_of_others_is_not_told(events: Any) -> None:
    pod = worker(0, node="n", waits=("ContainerCreating", ""))
    assert why(seen(pod, running(1), running(2), events=events)) == "2 of 3 workers run"


@pytest.mark.parametrize(
    "reason", ["FailedAttachVolume", "FailedCreatePodSandBox", "FailedPrepareDynamicResources"]
)
def test_whatever_keeps_a_worker_from_its_image_is_the_reason(reason: str) -> None:
    pod = worker(0, node="n", waits=("ContainerCreating", ""))
    found = seen(pod, running(1), running(2), events=[SCHEDULED, told(0, reason, "no\nluck")])
    assert why(found) == f"j-worker-0: {reason}: no luck"


# Workers at their gates


def test_workers_at_the_gate_are_sent_where_the_record_says() -> None:
    pods = [
        worker(2, gates=(GATE,)),
        worker(0, gates=("other", GATE)),
        running(1),
        worker(1, gates=("other",)),
        worker(1, gates=(GATE,), ends=True),
        launcher(phase="Pending"),
    ]
    found = pod_state.worker_places(JOB, pods)
    assert [pod["metadata"]["name"] for pod, _ in found] == ["j-worker-2", "j-worker-0"]
    notes = found[0][1]["metadata"]["annotations"]
    assert notes["topology.kubernetes.io/gpu-group"] == "4,5"
    assert {"$patch": "delete", "name": GATE} in found[0][1]["spec"]["schedulingGates"]
    assert "node-1" in str(found[0][1]["spec"]["affinity"])


@pytest.mark.parametrize("record", [None, "", "nonsense", "node-0/0;node-0/0", "node-0/0"])
def test_a_record_that_does_not_speak_of_a_worker_leaves_it_at_its_gate(record: str | None) -> None:
    job = {**JOB, "metadata": {"name": "j", "annotations": {MAP: record} if record else {}}}
    assert pod_state.worker_places(job, [worker(2, gates=(GATE,))]) == []


def test_a_worker_without_a_number_stays_at_its_gate() -> None:
    pod = worker(0, gates=(GATE,))
    pod["metadata"] |= {"labels": {}, "name": "stranger"}
    assert pod_state.worker_places(JOB, [pod]) == []


def test_a_record_that_nobody_has_compared_with_others_yet_sends_no_worker_anywhere() -> None:
    at_gate = [worker(index, gates=(GATE,)) for index in range(3)]
    assert len(pod_state.worker_places(JOB, at_gate)) == 3
    notes = {**JOB["metadata"]["annotations"], PROPOSED: "true"}
    proposed = {**JOB, "metadata": {**JOB["metadata"], "annotations": notes}}
    assert pod_state.worker_places(proposed, at_gate) == []
