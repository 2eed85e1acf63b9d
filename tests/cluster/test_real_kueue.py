"""Jobs of a Kueue queue on a real API server with Kueue's kinds; the test does what Kueue would."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
from fake_kueue import QUEUE, workload_name
from real import JOBS, Real, words

pytestmark = pytest.mark.cluster

VERSION = "kueue.x-k8s.io/v1beta2"
RACK = "example.com/rack"
POLICIES = "/apis/admissionregistration.k8s.io/v1"
WEBHOOK = "test-kueue"


@pytest.fixture
def queue(cluster: Real) -> Iterator[Real]:
    """Two racks of two machines; jobs of a queue are suspended when they are created."""
    for index in range(4):
        cluster.machine(f"node-{index}", **{RACK: f"rack-{index // 2}"})
    cluster.machines(0)
    levels = [{"nodeLabel": RACK}, {"nodeLabel": "kubernetes.io/hostname"}]
    racks = {
        "apiVersion": VERSION,
        "kind": "Topology",
        "metadata": {"name": "racks"},
        "spec": {"levels": levels},
    }
    suspends = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": WEBHOOK},
        "spec": {
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": ["kubeflow.org"],
                        "apiVersions": ["v2beta1"],
                        "operations": ["CREATE"],
                        "resources": ["mpijobs"],
                    }
                ],
                "objectSelector": {"matchExpressions": [{"key": QUEUE, "operator": "Exists"}]},
            },
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "mutations": [
                {
                    "patchType": "ApplyConfiguration",
                    "applyConfiguration": {
                        "expression": "Object{spec: Object.spec{runPolicy:"
                        " Object.spec.runPolicy{suspend: true}}}"
                    },
                }
            ],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": WEBHOOK},
        "spec": {"policyName": WEBHOOK},
    }
    made = {
        f"/apis/{VERSION}/topologies": racks,
        f"{POLICIES}/mutatingadmissionpolicies": suspends,
        f"{POLICIES}/mutatingadmissionpolicybindings": binding,
    }
    for path, thing in made.items():
        cluster.called("POST", path, thing)
    probe = {
        "apiVersion": JOBS,
        "kind": "MPIJob",
        "metadata": {"name": "probe", "labels": {QUEUE: "research"}},
        "spec": {"mpiReplicaSpecs": {}},
    }
    path = cluster.live.path("mpijobs", group=JOBS)
    cluster.until(
        lambda: (
            cluster.called("POST", path, probe, dryRun="All")["spec"]
            .get("runPolicy", {})
            .get("suspend")
        ),
        "jobs of the queue are suspended",
    )
    try:
        yield cluster
    finally:
        for path, thing in made.items():
            with contextlib.suppress(AssertionError):
                cluster.called("DELETE", f"{path}/{thing['metadata']['name']}")


def said(
    cluster: Real, name: str, *conditions: tuple[str, str, str, str], **status: object
) -> None:
    """Let Kueue say something of a job, whose Workload it makes first."""
    job = cluster.job(name)
    workload = workload_name(job)
    path = cluster.live.path("workloads", group=VERSION)
    owner = {
        "apiVersion": JOBS,
        "kind": "MPIJob",
        "name": name,
        "uid": job["metadata"]["uid"],
        "controller": True,
    }
    body = {
        "apiVersion": VERSION,
        "kind": "Workload",
        "metadata": {
            "name": workload,
            "labels": {"kueue.x-k8s.io/job-uid": job["metadata"]["uid"]},
            "ownerReferences": [owner],
        },
        "spec": {"active": True, "queueName": "research", "podSets": []},
    }
    answer = cluster.live.call("POST", path, body)
    assert answer.status in {201, 409}, answer.said
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    told = [
        {
            "type": kind,
            "status": value,
            "reason": reason,
            "message": message,
            "lastTransitionTime": now,
        }
        for kind, value, reason, message in conditions
    ]
    change = {"status": {"conditions": told, **status}}
    cluster.called("PATCH", f"{path}/{workload}/status", change, kind="merge")


QUOTA = (
    "couldn't assign flavors to pod set worker: insufficient unused quota for nvidia.com/gpu in"
    " flavor default, 2 more needed"
)


def test_a_job_of_a_queue_waits_for_kueue_and_is_placed_where_kueue_admits_it(queue: Real):
    label = f"--label={QUEUE}=research"
    done = queue.arena(*words("vgg16", 2, 8, label))
    assert done.code == 0, done.err
    assert "QUEUING" in done.out + done.err
    assert queue.job("vgg16")["spec"]["runPolicy"]["suspend"] is True
    said(queue, "vgg16", ("QuotaReserved", "False", "Pending", QUOTA))
    why = queue.arena("why", "vgg16").out
    assert why.startswith("vgg16: QUEUING, KueueQuota"), why
    assert "2 more needed" in " ".join(why.split())
    assert queue.arena("resume", "vgg16").code == 1
    said(
        queue,
        "vgg16",
        ("QuotaReserved", "True", "QuotaReserved", "Quota reserved"),
        ("Admitted", "True", "Admitted", "The workload is admitted"),
        admission={"clusterQueue": "queue", "podSetAssignments": []},
    )
    job = queue.job("vgg16")
    for one in job["spec"]["mpiReplicaSpecs"].values():
        one["template"]["spec"].setdefault("nodeSelector", {})[RACK] = "rack-1"
    job["spec"]["runPolicy"]["suspend"] = False
    queue.called("PUT", queue.live.path("mpijobs", "vgg16", group=JOBS), job)
    queue.until(lambda: len(queue.pods()) == 3, "the pods wait at their gates")
    done = queue.arena("resume", "vgg16")
    assert done.code == 0, done.err
    assert "by scheduling gates" in done.out + done.err
    queue.until(lambda: queue.exact("vgg16"), "the workers run where they were planned")
    assert set(queue.bound("vgg16").values()) == {"node-2", "node-3"}
    said(
        queue,
        "vgg16",
        ("QuotaReserved", "False", "Pending", "Preempted to accommodate a workload"),
        ("Evicted", "True", "Preempted", "Preempted to accommodate a workload"),
        ("Admitted", "False", "NoReservation", "Preempted to accommodate a workload"),
        admission=None,
    )
    suspend = {"spec": {"runPolicy": {"suspend": True}}}
    path = queue.live.path("mpijobs", "vgg16", group=JOBS)
    queue.called("PATCH", path, suspend, kind="merge")
    queue.until(lambda: not queue.pods(), "its pods are gone")
    assert queue.arena("why", "vgg16").out.startswith("vgg16: QUEUING, Preempted")


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("WaitingForQuota", QUOTA),
        ("ExceedsMaxQuota", "insufficient quota for nvidia.com/gpu, request > maximum capacity"),
        ("TopologyPlacementFailed", 'topology "racks" allows to fit only 1 out of 2 pod(s)'),
        ("NoMatchingFlavor", "flavor default doesn't match node affinity"),
    ],
)
def test_what_kueue_says_of_a_job_that_waits_is_what_why_says(
    queue: Real, reason: str, message: str
):
    assert queue.arena(*words("held", 2, 8, f"--label={QUEUE}=research")).code == 0
    said(queue, "held", ("QuotaReserved", "False", reason, message))
    why = queue.arena("why", "held").out
    assert why.startswith("held: QUEUING"), why
    assert message in " ".join(why.split())
