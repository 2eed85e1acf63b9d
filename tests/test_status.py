"""What an MPIJob and its pods say of a job: phase, rows, times, GPUs and the reason to wait."""

from __future__ import annotations

from typing import Any

import pytest

from arena_topo.engines import Instance, Phase
from arena_topo.engines.kubernetes.mpijob import job_status, pod_status, seconds

CREATED = "2026-11-21T07:00:00Z"
T0 = 1795244400.0


def mpijob(**status: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]}}
    return {
        "metadata": {
            "name": "demo",
            "namespace": "default",
            "uid": "job-uid",
            "creationTimestamp": CREATED,
        },
        "spec": {"mpiReplicaSpecs": {"Worker": {"replicas": 2, "template": template}}},
        "status": status,
    }


def condition(kind: str, status: str = "True", **more: str) -> dict[str, str]:
    return {"type": kind, "status": status, **more}


def pod(name: str, phase: str = "Running", **status: Any) -> dict[str, Any]:
    role = "launcher" if "launcher" in name else "worker"
    limits = {} if role == "launcher" else {"nvidia.com/gpu": "2"}
    return {
        "metadata": {
            "name": name,
            "uid": name,
            "labels": {"training.kubeflow.org/job-role": role},
            "creationTimestamp": status.pop("created", CREATED),
            **status.pop("metadata", {}),
        },
        "spec": {
            "nodeName": status.pop("node", "node-a"),
            "containers": [{"name": "mpi", "resources": {"limits": limits}}],
            **status.pop("spec", {}),
        },
        "status": {"phase": phase, "hostIP": "10.0.0.1", "podIP": "172.27.0.10", **status},
    }


def running(at: str = CREATED) -> list[dict[str, Any]]:
    return [{"name": "mpi", "ready": True, "state": {"running": {"startedAt": at}}}]


def ended(code: int = 0, **more: Any) -> list[dict[str, Any]]:
    reason = "Completed" if code == 0 else "Error"
    state = {
        "exitCode": code,
        "reason": reason,
        "startedAt": "2026-11-21T07:00:17Z",
        "finishedAt": "2026-11-21T07:10:18Z",
        **more,
    }
    return [{"name": "mpi", "ready": False, "state": {"terminated": state}}]


def waiting(reason: str, message: str | None = None) -> list[dict[str, Any]]:
    said = {"reason": reason, **({"message": message} if message else {})}
    return [{"name": "mpi", "ready": False, "state": {"waiting": said}}]


def test_a_running_job_has_its_launcher_first_and_its_workers_in_natural_order():
    names = ["demo-worker-10", "demo-worker-2", "demo-launcher-x7k2p", "demo-worker-0"]
    status = job_status(mpijob(), [pod(name, containerStatuses=running()) for name in names])
    assert status.phase is Phase.RUNNING
    assert [one.name for one in status.instances] == [
        "demo-launcher-x7k2p",
        "demo-worker-0",
        "demo-worker-2",
        "demo-worker-10",
    ]
    assert [one.worker for one in status.instances] == [None, 0, 2, 10]
    assert status.chief is not None
    assert status.chief.name == "demo-launcher-x7k2p"
    assert (status.request_gpus, status.allocated_gpus) == (6, 6)
    assert (status.created, status.finished, status.reason) == (T0, None, None)


@pytest.mark.parametrize(
    ("job", "phase"),
    [
        (mpijob(conditions=[condition("Created")]), Phase.PENDING),
        (mpijob(conditions=[condition("Running"), condition("Succeeded")]), Phase.SUCCEEDED),
        (mpijob(conditions=[condition("Failed")]), Phase.FAILED),
        (mpijob(conditions=[condition("Failed", "False")]), Phase.PENDING),
        (mpijob(launcherStatus="Succeeded"), Phase.SUCCEEDED),
        (mpijob(launcherStatus="Failed"), Phase.FAILED),
        (mpijob(launcherStatus="Active"), Phase.PENDING),
        (mpijob(), Phase.PENDING),
    ],
)
def test_without_pods_the_operator_decides(job: dict[str, Any], phase: Phase):
    assert job_status(job, []).phase is phase


def test_a_pending_pod_makes_the_whole_job_pending():
    pods = [pod("demo-launcher-a"), pod("demo-worker-0", "Pending"), pod("demo-worker-1")]
    assert job_status(mpijob(), pods).phase is Phase.PENDING
    assert job_status(mpijob(), pods[1:]).phase is Phase.PENDING
    assert job_status(mpijob(), [pods[0], pods[2]]).phase is Phase.RUNNING


def test_the_chief_is_the_newest_launcher_that_has_left_pending():
    later = "2026-11-21T07:05:00Z"
    old = pod("demo-launcher-old", "Failed")
    new = pod("demo-launcher-new", created=later)
    newest = pod("demo-launcher-newest", "Pending", created="2026-11-21T07:06:00Z")
    for pods, chief in (([old, new, newest], "new"), ([old, newest], "old"), ([newest], "newest")):
        status = job_status(mpijob(), pods)
        assert status.chief is not None
        assert status.chief.name == f"demo-launcher-{chief}"
        assert sum(one.chief for one in status.instances) == 1


@pytest.mark.parametrize(
    "labels",
    [
        {"training.kubeflow.org/job-role": "launcher"},
        {"training.kubeflow.org/job-role": "master"},
        {"mpi-job-role": "launcher"},
        {"mpi_role_type": "launcher"},
    ],
)
def test_every_operators_word_for_the_launcher_is_known(labels: dict[str, str]):
    status = job_status(mpijob(), [pod("demo-x", metadata={"labels": labels})])
    assert status.chief is not None


def suspended(annotations: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    job = mpijob()
    job["spec"]["runPolicy"] = {"suspend": True, **more.pop("policy", {})}
    job["metadata"] |= {"annotations": annotations or {}, **more}
    return job


def ours(state: str) -> dict[str, str]:
    return {
        "arena-topo.io/format": "v1",
        "arena-topo.io/state": state,
        "arena-topo.io/forecast": '{"reason": "8 GPUs are busy"}',
    }


@pytest.mark.parametrize(
    ("job", "phase"),
    [
        (suspended(ours("waiting")), Phase.PENDING),
        (suspended(ours("placed")), Phase.PENDING),
        (suspended(ours("held")), Phase.SUSPENDED),
        (suspended(), Phase.SUSPENDED),
        (suspended({"scheduling.x-k8s.io/suspend": "true"}), Phase.QUEUING),
        (suspended(labels={"kueue.x-k8s.io/queue-name": "q"}), Phase.QUEUING),
        (suspended(policy={"managedBy": "kueue.x-k8s.io/multikueue"}), Phase.QUEUING),
        (suspended({"scheduling.x-k8s.io/suspend": "false"}), Phase.QUEUING),
        (suspended(policy={"managedBy": "example.com/queue"}), Phase.QUEUING),
        (suspended(policy={"managedBy": "kubeflow.org/mpi-operator"}), Phase.SUSPENDED),
    ],
)
def test_a_suspended_job_says_who_holds_it(job: dict[str, Any], phase: Phase):
    assert job_status(job, []).phase is phase


def test_a_job_that_waits_for_gpus_gives_the_recorded_reason():
    assert job_status(suspended(ours("waiting")), []).reason == "8 GPUs are busy"


def test_times_codes_and_gpus_of_a_job_that_has_succeeded():
    job = mpijob(conditions=[condition("Succeeded")], completionTime="2026-11-21T07:10:18Z")
    status = job_status(job, [pod("demo-launcher-6fwhd", "Succeeded", containerStatuses=ended())])
    assert (status.finished, status.exit_code, status.allocated_gpus) == (T0 + 618, 0, 0)
    (launcher,) = status.instances
    assert (launcher.status, launcher.started, launcher.finished) == (
        "Completed",
        T0 + 17,
        T0 + 618,
    )
    assert (status.request_gpus, launcher.node, launcher.node_ip) == (4, "node-a", "10.0.0.1")


def test_the_end_is_found_where_the_operator_does_not_tell_it():
    succeeded = mpijob(launcherStatus="Succeeded")
    pods = [pod("demo-launcher-a", "Succeeded", containerStatuses=ended())]
    assert job_status(succeeded, pods).finished == T0 + 618
    changed = condition("Failed", lastTransitionTime="2026-11-21T07:00:09Z")
    assert job_status(mpijob(conditions=[changed]), []).finished == T0 + 9
    assert job_status(mpijob(), []).finished is None


def test_a_failed_launcher_hands_on_its_code_and_why():
    job = mpijob(conditions=[condition("Failed", message="BackoffLimitExceeded")])
    status = job_status(job, [pod("demo-launcher-a", "Failed", containerStatuses=ended(7))])
    assert (status.exit_code, status.reason) == (7, "the launcher ended with exit code 7")
    killed = pod("demo-launcher-a", "Failed", containerStatuses=ended(137, reason="OOMKilled"))
    assert job_status(job, [killed]).reason == "the launcher ended with exit code 137 (OOMKilled)"
    gone = job_status(job, [])
    assert (gone.exit_code, gone.reason) == (None, "BackoffLimitExceeded")


@pytest.mark.parametrize(
    ("launcher", "reason"),
    [
        ({}, "1/4 workers are evicted"),
        (
            {"reason": "Evicted", "message": "low on memory.", "containerStatuses": ended(137)},
            "the launcher was evicted: low on memory (exit code 137)",
        ),
        (
            {"reason": "DeadlineExceeded", "message": "too long."},
            "the launcher failed (DeadlineExceeded): too long.",
        ),
    ],
)
def test_what_was_done_to_the_launcher_comes_before_its_exit_code_and_the_operators_words(
    launcher, reason
):
    job = mpijob(conditions=[condition("Failed", message="1/4 workers are evicted")])
    assert job_status(job, [pod("demo-launcher-a", "Failed", **launcher)]).reason == reason


@pytest.mark.parametrize(
    ("pods", "reason"),
    [
        ([], "the MPI operator has not created its pods yet"),
        ([pod("demo-worker-0")], "the launcher has not been created yet"),
        (
            [
                pod(
                    "demo-worker-0",
                    "Pending",
                    conditions=[
                        condition(
                            "PodScheduled",
                            "False",
                            reason="Unschedulable",
                            message="0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
                        )
                    ],
                )
            ],
            "demo-worker-0: 0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
        ),
        (
            [
                pod(
                    "demo-worker-0",
                    "Pending",
                    containerStatuses=waiting("ImagePullBackOff", "not found"),
                )
            ],
            "demo-worker-0: ImagePullBackOff: not found",
        ),
        (
            [
                pod(
                    f"demo-worker-{index}",
                    "Pending",
                    initContainerStatuses=waiting("ErrImagePull"),
                )
                for index in range(3)
            ],
            "demo-worker-0: ErrImagePull (3 pods wait)",
        ),
        (
            [
                pod("demo-launcher-a"),
                pod("demo-worker-0", "Pending", containerStatuses=waiting("ContainerCreating")),
            ],
            "1 of 2 pods is starting",
        ),
    ],
)
def test_a_pending_job_says_what_it_waits_for(pods: list[dict[str, Any]], reason: str):
    assert job_status(mpijob(), pods).reason == reason


def test_requested_gpus_are_arenas_annotation_else_the_pods_else_the_template():
    annotated = mpijob()
    annotated["metadata"]["annotations"] = {"requestGPUsOfJobOwner": "16"}
    assert job_status(annotated, [pod("demo-worker-0")]).request_gpus == 16
    assert job_status(mpijob(), [pod("demo-worker-0")]).request_gpus == 2
    assert job_status(mpijob(), []).request_gpus == 4
    v1alpha1 = mpijob()
    v1alpha1["spec"] = {
        "replicas": 3,
        "template": {"spec": {"containers": [{"resources": {"limits": {"aliyun.com/gpu": 2}}}]}},
    }
    assert job_status(v1alpha1, []).request_gpus == 6


@pytest.mark.parametrize(
    "said",
    ["99999999999999999999", "2147483648", "9" * 5000, "0", "-1", "²", "٣", "8 GPUs"],
)
def test_an_annotation_that_no_job_could_ask_for_is_not_believed(said: str):
    annotated = mpijob()
    annotated["metadata"]["annotations"] = {"requestGPUsOfJobOwner": said}
    assert job_status(annotated, []).request_gpus == 4


def instance_of(one: dict[str, Any]) -> Instance:
    [instance] = job_status(mpijob(), [one]).instances
    return instance


@pytest.mark.parametrize("label", ["²", "9" * 5000, "one"])
def test_an_index_that_is_no_number_is_none(label: str):
    odd = pod("demo-other", metadata={"labels": {"training.kubeflow.org/replica-index": label}})
    assert instance_of(odd).worker is None


def test_gpus_are_held_from_the_binding_to_the_end_under_either_name():
    def holds(one: dict[str, Any]) -> bool:
        return instance_of(one).holds_gpus

    terminating = {"deletionTimestamp": CREATED}
    assert holds(pod("demo-worker-0", "Pending"))
    assert holds(pod("demo-worker-0", metadata=terminating))
    assert not holds(pod("demo-worker-0", "Pending", node=None))
    assert not holds(pod("demo-worker-0", "Succeeded"))
    assert not holds(pod("demo-launcher-a"))
    acks = pod("demo-worker-0")
    acks["spec"]["containers"][0]["resources"]["limits"] = {"aliyun.com/gpu": "4"}
    assert instance_of(acks).gpus == 4


def test_the_priority_is_that_of_the_workers():
    job = mpijob()
    assert job_status(job, []).priority == "N/A"
    job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["priorityClassName"] = "high"
    assert job_status(job, []).priority == "high"


def init(*states: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "spec": {"initContainers": [{"name": f"i{n}", **spec} for n in range(2)]},
        "initContainerStatuses": [
            {"name": f"i{n}", "state": state} for n, state in enumerate(states)
        ],
    }


DONE = {"terminated": {"exitCode": 0}}


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (pod("p"), "Running"),
        (pod("p", "Pending"), "Pending"),
        (pod("p", "Failed", reason="Evicted"), "Evicted"),
        (
            pod(
                "p",
                "Pending",
                conditions=[condition("PodScheduled", "False", reason="SchedulingGated")],
            ),
            "SchedulingGated",
        ),
        (pod("p", "Pending", containerStatuses=waiting("ContainerCreating")), "ContainerCreating"),
        (pod("p", containerStatuses=waiting("CrashLoopBackOff")), "CrashLoopBackOff"),
        (pod("p", "Succeeded", containerStatuses=ended()), "Completed"),
        (pod("p", "Failed", containerStatuses=ended(1)), "Error"),
        (pod("p", "Failed", containerStatuses=ended(137, reason="OOMKilled")), "OOMKilled"),
        (pod("p", "Failed", containerStatuses=ended(3, reason="")), "ExitCode:3"),
        (pod("p", "Failed", containerStatuses=ended(0, reason="", signal=9)), "Signal:9"),
        (pod("p", "Pending", **init({"running": {}})), "Init:0/2"),
        (pod("p", "Pending", **init(DONE, {"running": {}})), "Init:1/2"),
        (pod("p", "Pending", **init(DONE, {"waiting": {"reason": "PodInitializing"}})), "Init:1/2"),
        (
            pod("p", "Pending", **init({"waiting": {"reason": "ErrImagePull"}})),
            "Init:ErrImagePull",
        ),
        (
            pod("p", "Pending", **init({"terminated": {"exitCode": 1, "reason": "Error"}})),
            "Init:Error",
        ),
        (pod("p", "Pending", **init({"terminated": {"exitCode": 2}})), "Init:ExitCode:2"),
        (pod("p", **init(DONE, DONE)), "Running"),
        (pod("p", metadata={"deletionTimestamp": CREATED}), "Terminating"),
        (pod("p", "Succeeded", metadata={"deletionTimestamp": CREATED}), "Succeeded"),
        (
            pod("p", reason="NodeLost", metadata={"deletionTimestamp": CREATED}),
            "Unknown",
        ),
        (
            pod(
                "p",
                containerStatuses=[*ended(), *running()],
                conditions=[condition("Ready")],
            ),
            "Running",
        ),
        (pod("p", containerStatuses=[*ended(), *running()]), "NotReady"),
    ],
)
def test_the_status_of_a_pod_is_kubectls(one: dict[str, Any], text: str):
    assert pod_status(one) == text


def test_a_started_sidecar_does_not_keep_a_pod_in_init():
    one = pod("p", containerStatuses=running(), **init({"running": {}}, restartPolicy="Always"))
    one["status"]["initContainerStatuses"][0]["started"] = True
    assert pod_status(one) == "Running"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (CREATED, T0),
        ("2026-11-21T07:00:00.500000Z", T0 + 0.5),
        ("2026-11-21T07:00:00.500000000Z", T0 + 0.5),
        ("2026-11-21T08:00:00+01:00", T0),
        (None, None),
        ("", None),
        ("yesterday", None),
        (7, None),
    ],
)
def test_times_are_read_as_the_server_writes_them(text: Any, value: float | None):
    assert seconds(text) == value


def test_a_worker_at_its_gate_and_one_that_was_evicted_say_so():
    scheduled = condition(
        "PodScheduled",
        "False",
        reason="SchedulingGated",
        message="Scheduling is blocked due to non-empty scheduling gates",
    )
    gated = pod("demo-worker-0", "Pending", conditions=[scheduled])
    assert (
        job_status(mpijob(), [gated]).reason == "demo-worker-0 waits at its gate to be given a node"
    )
    gone = pod("demo-worker-1", "Failed", reason="Evicted", message="The node was low on memory. ")
    assert (
        job_status(mpijob(), [gone]).reason == "demo-worker-1: Evicted: The node was low on memory."
    )
