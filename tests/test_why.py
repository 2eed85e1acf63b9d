"""Why a job waits, failed or runs: one verdict from what clusters really say, and what it rests on.

The first part goes through the decision table, each row with the shapes that lead to it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cube_mesh import V100, cluster
from cube_mesh import node as node_of_cluster
from fake_api import FakeApi, kubeconfig
from job_shapes import (
    CREATED,
    GATED,
    NOW,
    RUNNING,
    SUSPENDED,
    T0,
    at,
    condition,
    ended,
    event,
    launcher,
    mpijob,
    node,
    ours,
    pinned,
    pod,
    runs,
    unscheduled,
    waits,
    worker,
)
from plain_text import plain
from replacing import replace

from arena_topo import cli, layout
from arena_topo.clusters import view
from arena_topo.engines import JobStatus, Options, Phase
from arena_topo.engines.kubernetes import engine as kubernetes
from arena_topo.engines.kubernetes.facts import Denied, JobFacts
from arena_topo.engines.kubernetes.mpijob import job_status
from arena_topo.jobs.view import job_text as job_screen
from arena_topo.jobs.view import job_value, why_not_running
from arena_topo.manifests import PlacementForecast
from arena_topo.manifests.cause import Cause, CauseCode, because
from arena_topo.queueing.patience import PatientWait
from arena_topo.reasons import view as screens
from arena_topo.reasons.case import Case, Code, Fit
from arena_topo.reasons.explanation import BlockingHolder, Explanation, explain_job
from arena_topo.reasons.launcher_log import LauncherLog
from arena_topo.reasons.live_events import current
from arena_topo.reasons.rules import RULES, verdict
from arena_topo.solver import Reason, Request
from arena_topo.solver import Verdict as Fits
from arena_topo.solver.door import Solver
from arena_topo.topology import NodeName

SCREENS = Path(__file__).parent / "screens"
SUSPEND = {"suspend": True}
FAILED = condition("Failed", reason="BackoffLimitExceeded", message="Job has reached the limit")
KUEUE = {"kueue.x-k8s.io/queue-name": "gpus"}


def case(
    job: dict[str, Any],
    *pods: dict[str, Any],
    events: tuple[dict[str, Any], ...] = (),
    fit: Fit | None = None,
    starts: bool | None = None,
    log: str | None = None,
    start: str = "",
    **more: Any,
) -> Case:
    facts = JobFacts(
        status=job_status(job, pods), mpijob=job, now=NOW, pods=pods, events=events, **more
    )
    end = None if log is None else LauncherLog(pod="demo-launcher-x7k2p", text=log)
    lines = start.encode().splitlines()
    return Case(facts, fit=fit, watched=lambda: starts, log=end, start=lines)


def here(status: JobStatus, fit: Fit | None = None, *, starts: bool | None = None) -> Case:
    """A job of an engine without objects."""
    return Case(JobFacts(status=status, mpijob={}, now=NOW), fit=fit, watched=lambda: starts)


def waiting(**more: Any) -> dict[str, Any]:
    reason = "4 workers x 2 GPUs cannot be placed now: 2 nodes (a, ...): not enough free GPUs"
    said = more if "cause" in more else {"reason": reason, **more}
    return mpijob(CREATED, SUSPENDED, notes=ours("waiting", **said), policy=SUSPEND)


def workload(*conditions: dict[str, Any]) -> dict[str, Any]:
    return {
        "metadata": {"name": "mpijob-demo-1a2b3"},
        "spec": {"queueName": "gpus"},
        "status": {"conditions": list(conditions)},
    }


def queued(*conditions: dict[str, Any]) -> Case:
    return case(
        mpijob(CREATED, SUSPENDED, labels=KUEUE, policy=SUSPEND), workload=workload(*conditions)
    )


def refused(text: str, *, about: str = "MPIJob/demo", reason: str = "MPIJobFailed") -> Case:
    """A job one of whose pods the API server refused to the operator."""
    return case(mpijob(CREATED), events=(event(about, reason, text),))


def local(phase: Phase, *, state: str = "placed", **more: Any) -> JobStatus:
    return JobStatus(
        uid="u",
        name="demo",
        namespace="default",
        phase=phase,
        created=T0,
        forecast=PlacementForecast(state=state),
        **more,
    )


def held_because(cause: Cause, *pods: dict[str, Any]) -> Case:
    """A job that the controller has suspended until somebody resumes it."""
    notes = ours("held", cause=cause)
    return case(mpijob(CREATED, SUSPENDED, notes=notes, policy=SUSPEND), *pods)


def leaving(index: int, *, since: float = 590) -> dict[str, Any]:
    """A worker of the last run that is to end."""
    meta = {"deletionTimestamp": at(since)}
    one = worker(index, "Running", node="a", **runs())
    return one | {"metadata": one["metadata"] | meta}


def quota(hard: int, used: int, key: str = "requests.nvidia.com/gpu") -> dict[str, Any]:
    return {
        "metadata": {"name": "gpus", "namespace": "team-a"},
        "status": {"hard": {key: str(hard)}, "used": {key: str(used)}},
    }


NO_FIT = Fit(
    verdict=Fits.NOT_NOW,
    message="4 workers x 2 GPUs cannot be placed now",
    why="2 nodes (a, ...): not enough free GPUs",
    nearest="fits when 2 more GPUs of node a are free",
)
FITS = Fit(verdict=Fits.PLACEABLE)
NO_IMAGE = because(
    CauseCode.IMAGE,
    pod="demo-worker-0",
    text='ErrImagePull: Failed to pull image "registry/img:1": registry/img:1: not found',
)
ON_A_LOST_NODE = because(CauseCode.NODE_LOST, node="a", state="not ready")


def too_little(left: int, resource: str = "requests.nvidia.com/gpu") -> Cause:
    """What is recorded of a gang that asks for more than the quota of its namespace leaves."""
    said = {"quota": "gpus", "left": str(left), "resource": resource, "needs": "8"}
    return because(CauseCode.QUOTA, **said)


SHORT = too_little(1)
SSHD = {"readinessProbe": {"exec": {"command": ["sh", "-c", "cat /etc/ssh/sshd_config"]}}}
PLACED = ours("placed", map="a/0,3;a/1,2;b/0,3;b/1,2", binding="admission", guarantee="gpus")
UNMARKED = {"arena-topo.io/incomplete": "true"}
MAP = {"arena-topo.io/placement": "a/0,3;a/1,2;b/0,3;b/1,2"}
GATE = "arena-topo.io/placement"


def bereft(on_loss: str, *conditions: dict[str, Any]) -> Case:
    """A gang that has lost a node, and is to do so much about it."""
    notes = PLACED | {"arena-topo.io/request": json.dumps({"onNodeLoss": on_loss})}
    return case(
        mpijob(*conditions, notes=notes),
        worker(0, "Running", node="a", **runs(ready=False)),
        nodes={"a": node("a", ready="Unknown")},
    )


def test_a_gang_that_is_left_on_a_lost_node_is_said_to_hold_its_gpus():
    found = verdict(bereft("fail", RUNNING))
    assert (found.code, found.what) == (Code.NODE_LOST, "demo-worker-0 was on a node that is lost")
    assert found.why == (
        "node a is not ready: Kubelet stopped posting node status; by --on-node-loss fail the gang"
        " is left as it is, and holds its GPUs until MPI notices"
    )
    assert found.hint == "arena-topo replan demo -n team-a moves it"
    # The controller sees to one that is to move, and one that is over holds nothing.
    for other in (bereft("hold", RUNNING), bereft("fail", FAILED)):
        assert "left as it is" not in (verdict(other).why or "")


# What is the matter: the case, then the code, a part of the sentence and one of the cause.
def a_wait() -> PatientWait:
    """A job waits for one node in place of two, where it is ten times slower."""
    machines = (node_of_cluster("a", V100), node_of_cluster("b", V100))
    solver = Solver(cluster(*machines, beyond=1.25))
    best, offer = (
        solver.value(Request(workers=2, gpus=1), ((NodeName("a"), (0,)), (NodeName(b), (3,))))
        for b in "ab"
    )
    assert best.bandwidth is not None
    slow = replace(best.bandwidth, point=best.bandwidth.point / 10)
    return PatientWait(best=best, offer=replace(offer, bandwidth=slow), until=NOW + 60)


CASES: dict[str, tuple[Callable[[], Case], Code, str, str]] = {
    "deleting": (
        lambda: case(mpijob(RUNNING, deletionTimestamp=at(590), finalizers=["example.com/books"])),
        Code.DELETING,
        "is being deleted",
        "example.com/books",
    ),
    "hostfile not read": (
        lambda: case(
            mpijob(FAILED),
            launcher("Failed", **ended(1)),
            log="There are not enough slots available in the system to satisfy the 4\nslots that",
        ),
        Code.HOSTFILE_NOT_READ,
        "mpirun found no slots for 4 ranks, although the workers have 4",
        "",
    ),
    "succeeded": (
        lambda: case(mpijob(CREATED, condition("Succeeded")), launcher("Succeeded", **ended(0))),
        Code.SUCCEEDED,
        "succeeded",
        "",
    ),
    "out of memory": (
        lambda: case(
            mpijob(FAILED),
            launcher("Failed", **ended(1)),
            worker(2, "Failed", node="a", **ended(137, reason="OOMKilled")),
        ),
        Code.OUT_OF_MEMORY,
        "demo-worker-2 was killed",
        "OOMKilled",
    ),
    # A kubelet-evicted worker stays Failed, and mpi-operator calls the job failed.
    "evicted": (
        lambda: case(
            mpijob(
                condition("Failed", reason="MPIJobEvicted", message="1/4 workers are evicted"),
                notes=PLACED,
            ),
            launcher(**runs()),
            worker(
                0,
                "Failed",
                node="a",
                reason="Evicted",
                message="The node was low on resource: ephemeral-storage. ",
            ),
        ),
        Code.EVICTED,
        "demo-worker-0 was evicted",
        "low on resource: ephemeral-storage",
    ),
    "node lost": (
        lambda: case(
            mpijob(RUNNING, notes=PLACED),
            launcher(**runs()),
            worker(0, "Running", node="a", **runs(ready=False)),
            worker(1, "Running", node="a", **runs(ready=False)),
            nodes={"a": node("a", ready="Unknown")},
        ),
        Code.NODE_LOST,
        "demo-worker-0 and 1 more were on a node that is lost",
        "node a is not ready: Kubelet stopped posting node status",
    ),
    "rejected": (
        lambda: case(
            mpijob(CREATED, notes=PLACED),
            worker(
                0,
                "Failed",
                node="a",
                reason="UnexpectedAdmissionError",
                message="Allocate failed due to requested number of devices unavailable for"
                " nvidia.com/gpu. Requested: 2, Available: 1, which is unexpected",
            ),
        ),
        Code.REJECTED_BY_NODE,
        "the kubelet rejected demo-worker-0",
        "Requested: 2, Available: 1",
    ),
    "lost, and left to fail": (
        lambda: case(
            mpijob(CREATED, FAILED),
            launcher("Failed", **ended(1)),
            events=(
                event(
                    "MPIJob/demo",
                    "NotRevived",
                    "failed: node a was lost: deleted; by --on-node-loss fail it is not started"
                    " again",
                    kind="Normal",
                ),
            ),
        ),
        Code.NODE_LOST,
        "the job has failed, as the gang was ended from outside",
        "node a was lost: deleted; by --on-node-loss fail it is not started again",
    ),
    "preempted": (
        lambda: case(
            mpijob(CREATED),
            worker(0, conditions=[condition("PodScheduled", "False", reason="Unschedulable")]),
            events=(
                event(
                    "Pod/demo-worker-0",
                    "Preempted",
                    "Preempted by pod 1f2e on node a",
                    kind="Normal",
                    uid="the-one-before",
                ),
            ),
        ),
        Code.PREEMPTED,
        "preempted by pods of higher priority",
        "Preempted by pod 1f2e on node a",
    ),
    "running timeout": (
        lambda: case(
            mpijob(
                condition(
                    "Failed",
                    reason="DeadlineExceeded",
                    message="Job was active longer than specified deadline",
                ),
                policy={"activeDeadlineSeconds": 300},
            )
        ),
        Code.RUNNING_TIMEOUT,
        "exceeded its --running-timeout",
        "300 s",
    ),
    "no login": (
        lambda: case(
            mpijob(FAILED),
            launcher("Failed", **ended(255)),
            log="ssh: connect to host demo-worker-1.demo.team-a.svc port 22: Connection refused\n"
            "ORTE was unable to reliably start one or more daemons.\n",
        ),
        Code.NO_SSHD,
        "cannot log in to a worker",
        "demo-worker-1.demo.team-a.svc port 22: Connection refused",
    ),
    "worker failed": (
        lambda: case(
            mpijob(FAILED),
            launcher("Failed", **ended(1, finished=61)),
            worker(3, "Failed", node="b", **ended(139, finished=60)),
        ),
        Code.WORKER_FAILED,
        "demo-worker-3 has ended before the launcher",
        "exit code 139",
    ),
    "failed, launcher": (
        lambda: case(
            mpijob(FAILED), launcher("Failed", **ended(3)), log="training\nValueError: no data\n\n"
        ),
        Code.LAUNCHER_FAILED,
        "exit code 3",
        "last line of its log: ValueError: no data",
    ),
    "failed": (
        lambda: case(mpijob(FAILED)),
        Code.FAILED,
        "has failed",
        "Job has reached the limit",
    ),
    "kueue, preempted": (
        lambda: queued(
            condition("QuotaReserved", "False", reason="Pending", message="waiting for quota"),
            condition("Evicted", reason="Preempted", message="Preempted to accommodate a workload"),
            condition(
                "Preempted",
                reason="InClusterQueue",
                message="Preempted to accommodate a workload (UID: 9f) due to prioritization in"
                " the ClusterQueue",
            ),
        ),
        Code.PREEMPTED,
        "Kueue has preempted the job",
        "prioritization in the ClusterQueue",
    ),
    "kueue, quota": (
        lambda: queued(
            condition(
                "QuotaReserved",
                "False",
                reason="Pending",
                message="couldn't assign flavors to pod set worker: insufficient unused quota for"
                " nvidia.com/gpu in flavor v100, 4 more needed",
            )
        ),
        Code.KUEUE_QUOTA,
        "queue gpus has no quota",
        "nvidia.com/gpu in flavor v100, 4 more needed",
    ),
    "kueue": (
        lambda: queued(
            condition(
                "QuotaReserved", "False", reason="Inadmissible", message="LocalQueue is inactive"
            )
        ),
        Code.SUSPENDED_BY_KUEUE,
        "Kueue decides when it starts (queue gpus)",
        "LocalQueue is inactive",
    ),
    "kube queue": (
        lambda: case(mpijob(notes={"scheduling.x-k8s.io/suspend": "true"})),
        Code.SUSPENDED_BY_KUBE_QUEUE,
        "kube-queue decides",
        "scheduling.x-k8s.io/suspend",
    ),
    "other manager": (
        lambda: case(mpijob(policy={"managedBy": "kueue.x-k8s.io/multikueue"})),
        Code.SUSPENDED_BY_MANAGER,
        "kueue.x-k8s.io/multikueue runs the job",
        "cannot be changed",
    ),
    "by controller or user, node": (
        lambda: held_because(because(CauseCode.NODE_LOST, node="node-1", state="not ready")),
        Code.NODE_LOST,
        "the controller has suspended it, by --on-node-loss hold",
        "node node-1 was lost: not ready",
    ),
    "by controller or user, pod": (
        lambda: held_because(
            because(CauseCode.EVICTED, pod="demo-worker-0", text="low on resource: memory")
        ),
        Code.EVICTED,
        "the controller has suspended it",
        "demo-worker-0 was evicted: low on resource: memory",
    ),
    "by controller or user, drained": (
        lambda: held_because(
            because(
                CauseCode.WORKER_DELETED,
                pod="demo-worker-0",
                node="node-1",
                state=", which is cordoned",
            )
        ),
        Code.EVICTED,
        "the controller has suspended it, by --on-node-loss hold",
        "demo-worker-0 was deleted from node node-1, which is cordoned",
    ),
    "by controller or user": (
        lambda: case(mpijob(CREATED, SUSPENDED, notes=ours("held"), policy=SUSPEND)),
        Code.SUSPENDED_BY_USER,
        "it was suspended with `arena-topo suspend`",
        "",
    ),
    "never": (
        lambda: case(waiting(), fit=replace(NO_FIT, verdict=Fits.NEVER, message="never")),
        Code.NEVER_FITS,
        "never",
        "not enough free GPUs",
    ),
    "incomplete": (
        lambda: case(
            mpijob(CREATED, SUSPENDED, notes=PLACED | UNMARKED, policy=SUSPEND),
            missing=("demo-182f153bd948039",),
        ),
        Code.NOT_RESUMED,
        "it was not created completely",
        "no configmap demo-182f153bd948039",
    ),
    "unmarked": (
        lambda: case(
            mpijob(CREATED, SUSPENDED, notes=ours("waiting") | UNMARKED, policy=SUSPEND), fit=NO_FIT
        ),
        Code.NOT_RESUMED,
        "it waits, and no controller starts it",
        "its submission stopped",
    ),
    "gave up, image": (
        lambda: case(waiting(tries=1, cause=NO_IMAGE), fit=FITS, starts=False),
        Code.IMAGE_PULL,
        "rolled back, as its image cannot be pulled",
        "registry/img:1: not found",
    ),
    "old pods": (
        lambda: case(waiting(), leaving(0), leaving(1), fit=FITS, starts=False),
        Code.PODS_TERMINATING,
        "waits until the pods of its last run have ended",
        "demo-worker-0 on a, demo-worker-1 on a",
    ),
    "short of quota": (
        lambda: case(waiting(cause=SHORT), fit=FITS, starts=False, quotas=(quota(8, 7),)),
        Code.QUOTA_EXCEEDED,
        "the quota gpus of namespace team-a has no room for the gang",
        str(SHORT),
    ),
    "gave up": (
        lambda: case(waiting(tries=3, reason="the image img:2 was not found"), fit=NO_FIT),
        Code.TAKEN_BACK,
        "its last 3 starts were rolled back",
        "the image img:2 was not found",
    ),
    "no room": (
        lambda: case(waiting(), fit=NO_FIT, starts=False),
        Code.WAITING_FOR_GPUS,
        "4 workers x 2 GPUs cannot be placed now",
        "2 nodes (a, ...): not enough free GPUs",
    ),
    "turn": (
        lambda: case(waiting(), fit=Fit(verdict=Fits.PLACEABLE, behind="ml/big"), starts=True),
        Code.WAITING_FOR_TURN,
        "it fits, but ml/big comes first in the queue",
        "reserved for ml/big",
    ),
    "patience": (
        lambda: case(waiting(), fit=Fit(verdict=Fits.PLACEABLE, wait=a_wait()), starts=True),
        Code.WAITING_FOR_BANDWIDTH,
        "it is patient: it waits for one node",
        "10.0 x slower on 2 nodes now",
    ),
    "nobody starts": (
        lambda: case(waiting(), fit=Fit(verdict=Fits.PLACEABLE), starts=False),
        Code.NOBODY_STARTS,
        "it fits now, but no controller starts it",
        "controller",
    ),
    "not resumed": (
        lambda: case(
            mpijob(CREATED, SUSPENDED, notes=PLACED | ours("placed", recorded=at(500)))
            | {"spec": {"runPolicy": SUSPEND}}
        ),
        Code.NOT_RESUMED,
        "was never started",
        "other jobs may take its GPUs",
    ),
    "refused, quota": (
        lambda: refused(
            'worker pod created failed: pods "demo-worker-3" is forbidden: exceeded quota: gpus,'
            " requested: requests.nvidia.com/gpu=2, used: requests.nvidia.com/gpu=7,"
            " limited: requests.nvidia.com/gpu=8"
        ),
        Code.QUOTA_EXCEEDED,
        "quota gpus of namespace team-a has no room",
        "exceeded quota: gpus, requested: requests.nvidia.com/gpu=2",
    ),
    "refused, security": (
        lambda: refused(
            'worker pod created failed: pods "demo-worker-0" is forbidden: violates PodSecurity'
            ' "baseline:latest": host namespaces (hostIPC=true)'
        ),
        Code.POD_SECURITY,
        "allows no such pods",
        "host namespaces (hostIPC=true)",
    ),
    "refused, policy": (
        lambda: refused(
            "worker pod created failed: policy 'arena-topo-placement' with binding"
            " 'arena-topo-placement' denied request: expression 'variables.entry' resulted in"
            " error: index out of bounds: 5"
        ),
        Code.POLICY_DENIED,
        "a policy of the cluster refuses its pods",
        "policy 'arena-topo-placement'",
    ),
    "refused, right": (
        lambda: refused(
            'worker pod created failed: pods is forbidden: User "system:serviceaccount:mpi-operator'
            ':mpi-operator" cannot create resource "pods" in API group "" in the namespace'
            ' "team-a"'
        ),
        Code.FORBIDDEN,
        "system:serviceaccount:mpi-operator:mpi-operator may not create pods",
        'cannot create resource "pods"',
    ),
    "refused": (
        lambda: refused(
            'Error creating: pods "demo-launcher-q2" is forbidden: error looking up service account'
            ' team-a/trainer: serviceaccount "trainer" not found',
            about="Job/demo-launcher",
            reason="FailedCreate",
        ),
        Code.PODS_REFUSED,
        "refuses its pods",
        'serviceaccount "trainer" not found',
    ),
    "name taken": (
        lambda: case(
            mpijob(),
            events=(
                event(
                    "MPIJob/demo",
                    "ErrResourceExists",
                    'Resource "demo-worker-0" of Kind "Pod" already exists and is not managed by'
                    " MPIJob",
                ),
            ),
        ),
        Code.NAME_TAKEN,
        "already has a name that this job needs",
        'Resource "demo-worker-0" of Kind "Pod" already exists',
    ),
    "invalid": (
        lambda: case(
            mpijob(),
            events=(
                event(
                    "MPIJob/demo",
                    "ValidationError",
                    "Found validation errors: spec.mpiReplicaSpecs[Worker].replicas: Invalid value",
                ),
            ),
        ),
        Code.INVALID_JOB,
        "does not accept the job",
        "spec.mpiReplicaSpecs[Worker].replicas",
    ),
    "image": (
        lambda: case(
            mpijob(CREATED),
            worker(
                0,
                node="a",
                **waits(
                    "ImagePullBackOff",
                    'Back-off pulling image "registry/img:1": ErrImagePull: rpc error: code ='
                    " NotFound desc = failed to pull and unpack image: registry/img:1: not found",
                ),
            ),
        ),
        Code.IMAGE_PULL,
        "the image of demo-worker-0 cannot be pulled",
        "registry/img:1: not found",
    ),
    "container": (
        lambda: case(
            mpijob(CREATED),
            worker(
                0,
                node="a",
                **waits("CreateContainerConfigError", 'configmap "settings" not found'),
            ),
        ),
        Code.CONTAINER_ERROR,
        "a container of demo-worker-0 cannot start, or keeps crashing",
        'configmap "settings" not found',
    ),
    "volume": (
        lambda: case(
            mpijob(CREATED),
            worker(0, node="a", **waits("ContainerCreating")),
            events=(
                event(
                    "Pod/demo-worker-0",
                    "FailedMount",
                    'MountVolume.SetUp failed for volume "data" : persistentvolumeclaim not found',
                ),
            ),
        ),
        Code.VOLUME_MISSING,
        "a volume of demo-worker-0 cannot be mounted",
        'MountVolume.SetUp failed for volume "data"',
    ),
    "volume not attached": (
        lambda: case(
            mpijob(CREATED),
            worker(0, node="a", **waits("ContainerCreating")),
            events=(event("Pod/demo-worker-0", "FailedAttachVolume", "Multi-Attach error"),),
        ),
        Code.VOLUME_MISSING,
        "a volume of demo-worker-0 cannot be mounted",
        "Multi-Attach error",
    ),
    "gated, policy": (
        lambda: case(mpijob(CREATED, notes=PLACED), worker(0, gates=(GATE,), notes=MAP, **GATED)),
        Code.POLICY_NOT_EFFECTIVE,
        "demo-worker-0 waits at the gate: no policy has answered",
        "arena-topo-placement",
    ),
    "gated": (
        lambda: case(
            mpijob(CREATED, notes=PLACED), worker(0, gates=(GATE,), **GATED), starts=False
        ),
        Code.GATED_NO_PATCHER,
        "demo-worker-0 waits at the gate without a node",
        "no controller",
    ),
    "gated by others": (
        lambda: case(
            mpijob(CREATED), worker(0, gates=("kueue.x-k8s.io/topology",), **GATED), starts=False
        ),
        Code.GATED_BY_OTHERS,
        "at the gate kueue.x-k8s.io/topology",
        "",
    ),
    "pinned": (
        lambda: case(
            mpijob(CREATED, notes=PLACED),
            worker(
                0,
                spec=pinned("gpu-7"),
                **unscheduled(
                    "0/3 nodes are available: 3 node(s) didn't satisfy plugin(s) [NodeAffinity]."
                ),
            ),
            nodes={"gpu-7": None},
        ),
        Code.PINNED_NODE_GONE,
        "demo-worker-0 may only run on node gpu-7",
        "node gpu-7 does not exist any more; the scheduler says: 0/3 nodes are available",
    ),
    "unschedulable": (
        lambda: case(
            mpijob(CREATED),
            worker(0, **unscheduled("0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")),
        ),
        Code.UNSCHEDULABLE,
        "demo-worker-0 has no node to run on",
        "2 Insufficient nvidia.com/gpu",
    ),
    "no scheduler": (
        lambda: case(mpijob(CREATED), worker(0, spec={"schedulerName": "volcano"})),
        Code.NO_SCHEDULER,
        "scheduler volcano has not handled demo-worker-0",
        "over a minute old and has no PodScheduled condition",
    ),
    "no sshd": (
        lambda: case(
            mpijob(CREATED),
            launcher("Pending", node="a", **waits("PodInitializing")),
            worker(0, "Running", node="a", **runs(ready=False)),
            events=(
                event(
                    "Pod/demo-worker-0",
                    "Unhealthy",
                    "Readiness probe failed: dial tcp 10.0.0.9:22: connect: connection refused",
                ),
            ),
        ),
        Code.NO_SSHD,
        "demo-worker-0 runs without an sshd that answers",
        "dial tcp 10.0.0.9:22",
    ),
    "operator": (
        lambda: case(mpijob(), operators={"mpi-operator/mpi-operator": 0}),
        Code.OPERATOR_NOT_RESPONDING,
        "has not acted on the job",
        "the job has had no status for a minute; ready pods: mpi-operator/mpi-operator 0",
    ),
    "hidden": (
        lambda: case(
            mpijob(CREATED),
            denied=(Denied(verb="list", resource="pods", namespace="team-a"),),
        ),
        Code.FORBIDDEN,
        "not allowed to list pods in namespace team-a",
        "",
    ),
    "running": (
        lambda: case(mpijob(RUNNING), launcher(**runs()), worker(0, "Running", node="a", **runs())),
        Code.RUNNING,
        "the job runs",
        "",
    ),
    "starting": (
        lambda: case(mpijob(CREATED), worker(0, node="a", **waits("ContainerCreating"))),
        Code.STARTING,
        "it is starting",
        "the launcher has not been created yet",
    ),
    "unknown": (
        lambda: here(local(Phase.UNKNOWN, reason="it runs on another host")),
        Code.UNKNOWN,
        "the state of the job is unknown",
        "it runs on another host",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_cause_has_its_verdict(name: str):
    build, code, what, why = CASES[name]
    said = verdict(build())
    assert said.code is code
    assert what in said.what
    assert why in (said.why or "")


def test_a_patient_job_says_until_when_it_waits_and_how_to_start_it_at_once():
    fit = Fit(verdict=Fits.PLACEABLE, wait=a_wait())
    said = verdict(case(waiting(), fit=fit, starts=True))
    wanted = f"from {layout.clock(NOW + 60)} on it starts wherever it fits; now: "
    assert said.hint == f"{wanted}arena-topo resume demo -n team-a"
    # Nobody would end its wait.
    assert verdict(case(waiting(), fit=fit, starts=False)).code is Code.NOBODY_STARTS


def test_no_row_of_the_table_is_out_of_reach_and_no_code_unused():
    decides = {
        next(at for at, row in enumerate(RULES) if row.detect(found) is not None)
        for found in (build() for build, _code, _what, _why in CASES.values())
    }
    assert decides == set(range(len(RULES)))
    assert {code for _build, code, _what, _why in CASES.values()} == set(Code)


@pytest.mark.parametrize("name", CASES)
def test_verdicts_are_sentences_without_secrets_of_the_wire(name: str):
    said = verdict(CASES[name][0]())
    for text in filter(None, (said.what, said.why, said.hint)):
        assert not text.endswith((" ", ":", ";")), text
        assert "None" not in text
        assert "{'" not in text


# What looks like a cause and is none.


def code(found: Case) -> Code:
    return verdict(found).code


@pytest.mark.parametrize(
    "reason",
    ["WaitingForQuota", "ExceedsMaxQuota", "TopologyPlacementFailed", "NoMatchingFlavor"],
)
def test_the_reasons_of_kueue_are_named(reason: str):
    quota = condition("QuotaReserved", "False", reason=reason, message="as Kueue says it")
    said = verdict(queued(quota))
    assert (said.code, said.why) == (Code.KUEUE_QUOTA, f"{reason}: as Kueue says it")
    assert said.hint == "kubectl describe workload mpijob-demo-1a2b3 -n team-a"


def test_a_job_that_runs_with_a_pod_that_was_deleted_and_does_not_end_says_so():
    pods = [launcher(**runs()), leaving(0, since=500), leaving(1)]
    said = verdict(case(mpijob(RUNNING), *pods))
    assert said.code is Code.RUNNING
    assert (said.why or "").startswith(
        "deleted, but not ended since its grace period: demo-worker-0 on a"
    )
    assert "demo-worker-1" not in (said.why or "")
    assert (said.hint or "").endswith(
        "kubectl delete pod demo-worker-0 -n team-a --grace-period=0 --force"
    )


def test_a_job_that_runs_with_a_launcher_that_does_not_end_says_so():
    boss = launcher(node="a", **runs())
    boss["metadata"]["deletionTimestamp"] = at(500)
    said = verdict(case(mpijob(RUNNING), boss, worker(0, "Running", node="a", **runs())))
    assert said.code is Code.RUNNING
    name = boss["metadata"]["name"]
    assert said.why == f"deleted, but not ended since its grace period: {name} on a"


def test_a_job_that_runs_is_not_explained_by_what_went_wrong_before():
    late = event("Pod/demo-worker-0", "FailedScheduling", "0/2 nodes are available", when=2)
    quota = "worker pod created failed: exceeded quota: gpus, requested: pods=1, used: pods=4"
    pods = [launcher(**runs()), *(worker(i, "Running", node="a", **runs()) for i in range(4))]
    found = case(mpijob(RUNNING), *pods, events=(late, event("MPIJob/demo", "MPIJobFailed", quota)))
    assert code(found) is Code.RUNNING
    assert found.events == ()


def test_gated_workers_are_starting_where_a_controller_names_their_nodes():
    pods = [worker(0, gates=(GATE,), **GATED)]
    assert code(case(mpijob(CREATED, notes=PLACED), *pods, starts=True)) is Code.STARTING
    assert code(case(mpijob(CREATED, notes=PLACED), *pods, starts=None)) is Code.GATED_NO_PATCHER


@pytest.mark.parametrize(
    ("version", "label"),
    [("v2beta1", "training.kubeflow.org/job-name"), ("v1alpha1", "mpi_job_name")],
)
def test_the_advice_for_gates_of_others_finds_the_pods_of_each_version(version: str, label: str):
    job = {**mpijob(CREATED), "apiVersion": f"kubeflow.org/{version}"}
    pod = worker(0, gates=("kueue.x-k8s.io/topology",), **GATED)
    assert f"-l {label}=demo " in (verdict(case(job, pod, starts=False)).hint or "")


def test_a_placement_recorded_a_moment_ago_is_about_to_start():
    notes = PLACED | ours("placed", recorded=at(570))
    fresh = mpijob(CREATED, SUSPENDED, notes=notes, policy=SUSPEND)
    assert code(case(fresh)) is Code.STARTING
    stale = mpijob(CREATED, SUSPENDED, notes=notes, policy=SUSPEND)
    stale["metadata"]["annotations"]["arena-topo.io/recorded"] = at(530)
    assert code(case(stale)) is Code.NOT_RESUMED


def test_a_waiting_job_that_fits_starts_where_somebody_starts_it():
    fits = Fit(verdict=Fits.PLACEABLE)
    assert code(case(waiting(), fit=fits, starts=True)) is Code.STARTING
    assert verdict(case(waiting(), fit=fits, starts=True)).what.endswith("about to be started")


def test_the_way_out_of_waiting_depends_on_who_starts_jobs():
    by_itself = verdict(case(waiting(), fit=NO_FIT, starts=True)).hint or ""
    by_hand = verdict(case(waiting(), fit=NO_FIT, starts=False)).hint or ""
    assert by_itself == "the job starts by itself once enough GPUs are free"
    assert by_hand == "once enough GPUs are free: arena-topo resume demo -n team-a"


def test_where_the_cluster_may_not_be_read_the_recorded_reason_stands():
    said = verdict(case(waiting(), fit=Fit()))
    assert (said.code, said.why) == (
        Code.WAITING_FOR_GPUS,
        "4 workers x 2 GPUs cannot be placed now: 2 nodes (a, ...): not enough free GPUs",
    )
    nodes = Denied(verb="list", resource="nodes")
    said = verdict(case(waiting(reason=None), fit=Fit(), denied=(nodes,)))
    assert said.code is Code.FORBIDDEN
    assert said.what == "it waits, and you are not allowed to list nodes"
    rule = '{apiGroups: [""], resources: ["nodes"], verbs: ["list"]}'
    assert said.hint == f"ask for the rule {rule}"


def test_a_worker_that_ends_with_its_launcher_is_not_the_cause():
    pods = [
        launcher("Failed", **ended(3, finished=60)),
        worker(0, "Failed", node="a", **ended(143, finished=70)),
    ]
    assert code(case(mpijob(FAILED), *pods)) is Code.LAUNCHER_FAILED


def test_an_image_without_sshd_is_seen_in_the_workers_last_words():
    message = (
        'failed to create containerd task: exec: "/usr/sbin/sshd": stat /usr/sbin/sshd: no such'
        " file or directory: unknown"
    )
    pods = [worker(0, "Failed", node="a", **ended(128, reason="StartError", message=message))]
    said = verdict(case(mpijob(CREATED), *pods))
    assert said.code is Code.NO_SSHD
    assert "demo-worker-0: failed to create containerd task" in (said.why or "")


def test_the_launcher_names_the_worker_that_never_answered():
    waited = {
        "initContainerStatuses": [
            {
                "name": "wait-for-workers",
                "state": {
                    "terminated": {
                        "exitCode": 1,
                        "reason": "Error",
                        "message": "not ready after 600 s: demo-worker-2\n",
                    }
                },
            }
        ]
    }
    said = verdict(case(mpijob(FAILED), launcher("Failed", **waited)))
    assert (said.code, said.why) == (Code.NO_SSHD, "not ready after 600 s: demo-worker-2")


def test_a_probe_that_fails_is_only_sshds_where_it_asks_for_sshd():
    slow = worker(0, "Running", node="a", **runs(ready=False))
    assert code(case(mpijob(CREATED), slow)) is Code.STARTING
    slow["spec"]["containers"][0] |= SSHD
    assert code(case(mpijob(CREATED), slow)) is Code.NO_SSHD
    young = worker(0, "Running", node="a", **runs(ready=False, since=570))
    young["spec"]["containers"][0] |= SSHD
    assert code(case(mpijob(CREATED), young)) is Code.STARTING


@pytest.mark.parametrize(
    ("there", "cause"),
    [
        (node("gpu-7", cordoned=True), "node gpu-7 is cordoned"),
        (node("gpu-7", ready="Unknown"), "node gpu-7 is not ready: Kubelet stopped posting"),
    ],
)
def test_a_pinned_node_that_takes_no_pods_is_named_with_the_cause(there: Any, cause: str):
    held = worker(0, spec=pinned("gpu-7"), **unscheduled("0/3 nodes are available"))
    found = case(mpijob(CREATED, notes=PLACED), held, nodes={"gpu-7": there})
    said = verdict(found)
    assert said.code is Code.PINNED_NODE_GONE
    assert cause in (said.why or "")
    assert said.hint == "arena-topo replan demo -n team-a"


def test_a_pinned_node_that_is_well_leaves_it_to_the_scheduler():
    held = worker(0, spec=pinned("gpu-7"), **unscheduled("0/3 nodes: Insufficient nvidia.com/gpu"))
    found = case(mpijob(CREATED, notes=PLACED), held, nodes={"gpu-7": node("gpu-7")})
    assert code(found) is Code.UNSCHEDULABLE
    # A node that may not be looked at is not gone.
    found = case(mpijob(CREATED, notes=PLACED), held, nodes={"gpu-7": {}})
    assert code(found) is Code.UNSCHEDULABLE


def test_an_operator_has_a_minute_and_answers_after_a_resume_too():
    young = mpijob(creationTimestamp=at(560))
    assert code(case(young)) is Code.STARTING
    resumed = mpijob(
        CREATED,
        SUSPENDED,
        managedFields=[
            {"manager": "arena-topo", "time": at(580)},
            {"manager": "mpi-operator", "subresource": "status", "time": at(10)},
        ],
    )
    assert code(case(resumed)) is Code.STARTING
    # What the operator itself writes into the status is no change of the job.
    resumed["metadata"]["managedFields"][0]["time"] = at(500)
    resumed["metadata"]["managedFields"][1]["time"] = at(590)
    assert code(case(resumed)) is Code.OPERATOR_NOT_RESPONDING


@pytest.mark.parametrize(
    ("found", "cause"),
    [
        ({}, "no Deployment of an MPI operator was found"),
        (None, "whether it runs may not be read"),
        (
            {"a/mpi-operator": 1},
            "the job has had no status for a minute; ready pods: a/mpi-operator 1",
        ),
    ],
)
def test_what_is_known_of_the_operator_is_said(found: Any, cause: str):
    assert cause in (verdict(case(mpijob(), operators=found)).why or "")


def test_v1alpha1_jobs_are_judged_by_their_launcher_status_and_statefulset():
    old = mpijob()
    old["apiVersion"] = "kubeflow.org/v1alpha1"
    old["spec"] = {"replicas": 4, "template": {"spec": {"containers": [{}]}}}
    old["status"] = {"launcherStatus": "Active", "workerReplicas": 4}
    assert code(case(old)) is Code.STARTING
    text = (
        'create Pod demo-worker-2 in StatefulSet demo-worker failed error: pods "demo-worker-2" is'
        " forbidden: exceeded quota: gpus, requested: pods=1, used: pods=2, limited: pods=2"
    )
    told = (event("StatefulSet/demo-worker", "FailedCreate", text),)
    some = [worker(0, "Running", node="a", **runs()), worker(1, "Running", node="a", **runs())]
    found = case(old, *some, events=told)
    assert code(found) is Code.QUOTA_EXCEEDED
    every = [worker(index, "Running", node="a", **runs()) for index in range(4)]
    assert code(case(old, *every, events=told)) is Code.STARTING


def test_several_pods_are_counted_and_the_first_is_named_in_natural_order():
    gone = [worker(index, "Failed", node="a", reason="Evicted") for index in (10, 2, 3)]
    said = verdict(case(mpijob(CREATED, notes=PLACED), *gone))
    assert said.what == "demo-worker-2 and 2 more were evicted from the node"
    assert said.hint == "arena-topo replan demo -n team-a"


def test_a_local_job_has_verdicts_without_any_objects():
    waits_here = local(Phase.PENDING, state="waiting", reason="no room")
    fit = replace(NO_FIT, nearest=None)
    assert code(here(waits_here, fit, starts=True)) is Code.WAITING_FOR_GPUS
    failed = local(Phase.FAILED, exit_code=7, reason="the launcher ended with exit code 7")
    said = verdict(here(failed))
    assert (said.code, said.hint) == (Code.LAUNCHER_FAILED, "arena-topo logs demo -n default")
    # The verdict says what the engine gives as the reason, and nothing twice.
    assert (said.what, said.why) == ("the launcher ended with exit code 7", None)


def test_a_quota_that_has_room_again_does_not_keep_a_gang_any_more():
    more = {"fit": FITS, "starts": False}
    assert code(case(waiting(cause=SHORT), quotas=(quota(16, 8),), **more)) is Code.NOBODY_STARTS
    assert code(case(waiting(), quotas=(quota(8, 1),), **more)) is Code.QUOTA_EXCEEDED
    # What may not be read may still be so.
    unread = verdict(case(waiting(cause=SHORT), quotas=None, **more))
    assert (unread.code, unread.why) == (Code.QUOTA_EXCEEDED, str(SHORT))
    # Nobody knows what is free, but somebody found the quota too small.
    assert code(case(waiting(cause=SHORT), quotas=None, fit=Fit())) is Code.QUOTA_EXCEEDED
    assert code(case(waiting(cause=SHORT), quotas=None, fit=NO_FIT)) is Code.WAITING_FOR_GPUS


def test_a_quota_for_claims_stands_as_recorded_until_it_is_tried_again():
    key = "gpu.nvidia.com.deviceclass.resource.k8s.io/devices"
    more = {"quotas": (quota(8, 3, key),), "fit": FITS, "starts": True}
    said = verdict(case(waiting(cause=too_little(0, key)), **more))
    assert said.code is Code.QUOTA_EXCEEDED
    assert said.why == f"quota gpus of the namespace leaves 0 {key}, and the gang needs 8"
    assert (said.hint or "").endswith("the job starts by itself then")


def test_old_pods_that_end_in_time_are_waited_for():
    old = [leaving(0), leaving(1)]
    by_hand = verdict(case(waiting(), *old, fit=FITS, starts=False))
    assert by_hand.hint == "once they have ended: arena-topo resume demo -n team-a"
    by_itself = verdict(case(waiting(), *old, fit=FITS, starts=True))
    assert by_itself.hint == "the job starts by itself once they have ended"
    over = [worker(0, "Succeeded", node="a", **ended(0))]
    assert code(case(waiting(), *over, fit=FITS, starts=False)) is Code.NOBODY_STARTS


def test_old_pods_on_a_lost_node_can_be_deleted_by_hand():
    dead = {"a": node("a", ready="Unknown")}
    delete = "kubectl delete pod demo-worker-0 demo-worker-1 -n team-a --grace-period=0 --force"
    old = [leaving(0), leaving(1)]
    said = verdict(case(waiting(), *old, fit=FITS, starts=False, nodes=dead))
    assert said.code is Code.PODS_TERMINATING
    assert "node a is not ready: Kubelet stopped posting node status" in (said.why or "")
    assert said.hint == (
        f"restore the node, or, if it is gone for good: {delete};"
        " then: arena-topo resume demo -n team-a"
    )
    said = verdict(case(waiting(), *old, fit=FITS, starts=True, nodes=dead))
    assert (said.hint or "").endswith(f"{delete}; the job starts by itself then")
    # A node may look well and still not answer.
    late = case(waiting(), leaving(0, since=500), leaving(1), fit=FITS, starts=False)
    assert delete in (verdict(late).hint or "")


def test_a_gang_that_was_taken_back_is_not_told_that_it_lost_a_node_or_a_pod():
    dead = {"a": node("a", ready="Unknown")}
    notes = ours("held", cause=ON_A_LOST_NODE)
    held = mpijob(CREATED, SUSPENDED, notes=notes, policy=SUSPEND)
    said = verdict(case(held, leaving(0), nodes=dead))
    assert (said.code, said.why) == (Code.NODE_LOST, "node a was lost: not ready")
    assert (said.hint or "").startswith("arena-topo resume demo")
    gone = worker(0, "Failed", node="a", reason="Evicted")
    assert code(case(waiting(), gone, fit=FITS, starts=False)) is Code.NOBODY_STARTS


def test_a_suspension_by_other_means_is_told_with_its_reason():
    said = verdict(held_because(because(CauseCode.SUSPENDED_BY_OTHERS)))
    reason = "it was suspended by other means than arena-topo"
    assert (said.code, said.why) == (Code.SUSPENDED_BY_USER, reason)


def on_node(
    there: dict[str, Any] | None,
    *,
    loss: str | None = None,
    labels: dict[str, str] | None = None,
    starts: bool,
) -> Case:
    """A gang that runs on one node, which is in such a state."""
    notes = ours("placed", map="a/0,3", binding="admission", guarantee="gpus")
    if loss is not None:
        notes["arena-topo.io/request"] = json.dumps({"workers": 1, "gpus": 2, "onNodeLoss": loss})
    pods = [launcher(**runs()), worker(0, "Running", node="a", **runs())]
    job = mpijob(CREATED, RUNNING, notes=notes, labels=labels)
    return case(job, *pods, starts=starts, nodes={"a": there})


MOVES = "arena-topo replan demo -n team-a moves it"
MOVES_AT_ONCE = f"the controller moves the gang, if it can start elsewhere then; {MOVES} now"
IN_TIME = "once its pods no longer tolerate that, in 300 s"


def test_a_job_that_runs_on_a_node_that_does_not_answer_is_told_who_moves_it():
    for loss, starts, hint in (
        (None, False, MOVES),
        (
            None,
            True,
            f"the controller moves the gang {IN_TIME}, if it can start elsewhere then; {MOVES} now",
        ),
        (
            "hold",
            True,
            f"the controller suspends the gang, by --on-node-loss hold, {IN_TIME}; {MOVES} now",
        ),
        ("fail", True, MOVES),
    ):
        said = verdict(on_node(node("a", ready="Unknown"), loss=loss, starts=starts))
        assert (said.code, said.hint) == (Code.NODE_LOST, hint)
        assert "node a is not ready" in (said.why or "")
        assert ("by --on-node-loss fail" in (said.why or "")) == (loss == "fail")


def silent(since: float) -> dict[str, Any]:
    """A node that has not answered since so many seconds after the job was created."""
    there = node("a", ready="Unknown")
    taint = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
    there["spec"]["taints"] = [taint | {"timeAdded": at(since)}]
    return there


@pytest.mark.parametrize(
    ("there", "seconds", "when"),
    [
        (None, 300, " once the node has been gone for 40 s"),
        (silent(590), 300, " once its pods no longer tolerate that, in 290 s"),
        (silent(590), 30, " once its pods no longer tolerate that, in 20 s"),
        (silent(500), 30, ""),
        (silent(500), None, None),
    ],
    ids=["deleted", "silent", "hardly tolerated", "due", "tolerated for ever"],
)
def test_a_job_on_a_lost_node_is_told_when_the_controller_moves_it(there, seconds, when):
    borne = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
    borne |= {} if seconds is None else {"tolerationSeconds": seconds}
    found = on_node(there, starts=True)
    found.pods[1]["spec"]["tolerations"] = [borne]
    moves = f"the controller moves the gang{when}, if it can start elsewhere then; {MOVES} now"
    if when is None:
        moves = f"its pods tolerate that without limit; {MOVES}"
    assert verdict(found).hint == moves


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        ({"phase": "Running", "reason": "NodeLost"}, MOVES),
        ({"phase": "Failed", "reason": "NodeShutdown"}, MOVES),
        ({"phase": "Failed", "reason": "NodeLost"}, MOVES_AT_ONCE),
        (
            {
                "phase": "Failed",
                "conditions": [
                    condition("DisruptionTarget", reason="DeletionByTaintManager", message="taint")
                ],
            },
            MOVES_AT_ONCE,
        ),
    ],
    ids=["node back", "refused at shutdown", "lost", "evicted"],
)
def test_pods_on_a_node_that_is_well_are_not_said_to_tolerate_anything(status, hint):
    found = on_node(node("a"), starts=True)
    found.pods[1]["status"] |= status
    said = verdict(found)
    assert (said.code, said.hint) == (Code.NODE_LOST, hint)


@pytest.mark.parametrize(("since", "left"), [(590, 290), (350, 50)])
def test_the_wait_for_a_node_without_a_taint_counts_from_when_it_fell_silent(since, left):
    there = node("a", ready="Unknown")
    there["status"]["conditions"][0]["lastTransitionTime"] = at(since)
    assert f", in {left} s, " in (verdict(on_node(there, starts=True)).hint or "")
    # A taint without a time has nothing to do with when a node became ready.
    well = node("a")
    well["status"]["conditions"][0]["lastTransitionTime"] = at(since)
    well["spec"]["taints"] = [{"key": "a", "effect": "NoExecute"}]
    found = on_node(well, starts=True)
    found.pods[1]["status"]["reason"] = "NodeLost"
    found.pods[1]["spec"]["tolerations"] = [
        {"key": "a", "operator": "Exists", "tolerationSeconds": 300}
    ]
    assert ", in 300 s, " in (verdict(found).hint or "")


@pytest.mark.parametrize("loss", [None, "hold", "fail"])
def test_a_job_that_runs_on_a_cordoned_node_is_told_that_it_stays_there(loss: str | None):
    said = verdict(on_node(node("a", cordoned=True), loss=loss, starts=True))
    assert said.code is Code.RUNNING
    assert (said.why or "").startswith("a is cordoned; the pods that run there stay")
    assert said.hint == "arena-topo logs demo -n team-a -f"
    well = verdict(on_node(node("a"), starts=False))
    assert (well.code, well.hint) == (Code.RUNNING, "arena-topo logs demo -n team-a -f")


def test_what_ended_an_earlier_start_of_a_job_is_past_once_it_was_resumed():
    for resumed, told in ((450, ["BackoffLimitExceeded", "TaintManagerEviction"]), (501, [])):
        job = mpijob(CREATED, condition("Suspended", "False", lastTransitionTime=at(resumed)))
        events = (
            event("MPIJob/demo", "BackoffLimitExceeded", "Job has reached its limit"),
            event("Pod/demo-launcher-old", "TaintManagerEviction", "Marking", kind="Normal"),
        )
        found = case(job, launcher(**runs()), events=events)
        assert sorted(event.reason for event in found.events) == told


def test_a_job_of_another_queue_is_not_promised_to_be_moved():
    found = on_node(node("a", ready="Unknown"), labels=KUEUE, starts=True)
    assert verdict(found).hint == "arena-topo delete demo -n team-a, and submit it again"


def test_a_missing_image_is_tried_again_only_by_a_controller_and_not_for_ever():
    once = waiting(tries=1, cause=NO_IMAGE)
    assert code(case(once, fit=FITS, starts=True)) is Code.STARTING
    said = verdict(case(waiting(tries=3, cause=NO_IMAGE), fit=FITS, starts=True))
    assert said.code is Code.IMAGE_PULL
    assert said.hint == (
        "arena-topo delete demo -n team-a, and submit it with the right --image or"
        " --image-pull-secret; resume does not change them"
    )
    # A program that is not found is no image.
    other = waiting(tries=3, reason="demo-worker-0: StartError: sshd: not found")
    assert code(case(other, fit=FITS, starts=True)) is Code.TAKEN_BACK


def test_a_job_that_runs_says_where_with_which_bandwidth_and_how_firmly():
    forecast = PlacementForecast(
        state="placed",
        workers=((0, "b", (0, 3)), (1, "a", (1, 2)), (2, "b", (4, 5))),
        bus_bandwidth=76.8,
        usable=46.5,
        low=40.0,
        high=50.0,
        regime="several-hosts",
        limited_by="NICs",
        tier="leaf",
        optimal=True,
        binding="gates",
        guarantee="gpus",
    )
    runs_there = replace(local(Phase.RUNNING), forecast=forecast)
    said = verdict(here(runs_there))
    assert said.what == "the job runs on a (GPUs 1,2), b (GPUs 0,3; 4,5)"
    assert said.why == (
        "bus bandwidth 46.5 GB/s (40 to 50), limited by the NICs between 2 nodes within one"
        " leaf, no placement had more at its start; 76.8 GB/s if the workers of a node shared one"
        " pod; guarantee gpus, by scheduling gates (each worker gets these GPUs)"
    )
    guessed = replace(runs_there, forecast=replace(forecast, optimal=False, assumed=True))
    assert verdict(here(guessed)).why.startswith(
        "bus bandwidth 46.5 GB/s (40 to 50) assumed, limited by the NICs between 2 nodes"
        " within one leaf;"
    )
    # The recorded GPUs are not those that the kubelet picks.
    many = tuple((index, f"n{index}", (0, 3)) for index in range(7))
    forecast = replace(
        forecast,
        workers=many,
        guarantee="node",
        confirmed=False,
        optimal=False,
        regime=None,
        low=None,
        high=None,
        bus_bandwidth=46.5,
    )
    said = verdict(here(replace(runs_there, forecast=forecast)))
    assert said.what == "the job runs on n0, n1, n2, n3 and 3 more nodes"
    assert said.why == (
        "bus bandwidth 46.5 GB/s; guarantee node, by scheduling gates, unconfirmed: whether"
        " workers may be patched could not be asked (each worker gets its node; the kubelet"
        " picks the GPUs)"
    )
    plain = case(mpijob(RUNNING), launcher(**runs()), worker(0, "Running", node="a", **runs()))
    assert (verdict(plain).what, verdict(plain).why) == ("the job runs on a", None)


def test_a_submitter_that_was_killed_is_thought_of_at_once():
    notes = PLACED | ours("placed", recorded=at(570))
    said = verdict(case(mpijob(CREATED, SUSPENDED, notes=notes, policy=SUSPEND)))
    assert (said.code, said.what, said.hint) == (
        Code.STARTING,
        "it has its GPUs, and is about to be started",
        "if the command that submitted it was stopped: arena-topo resume demo -n team-a",
    )


@pytest.mark.parametrize("starts", [True, False])
def test_a_job_that_its_queue_has_started_waits_at_its_gates(*, starts: bool):
    notes = ours("waiting", cause=because(CauseCode.OTHER_QUEUE, queue="Kueue"))
    job = mpijob(CREATED, notes=notes, labels=KUEUE, policy={"suspend": False})
    pods = [worker(index, gates=(GATE,), **GATED) for index in range(4)]
    said = verdict(case(job, *pods, fit=FITS, starts=starts))
    assert "decides when it starts" not in (said.why or "")
    if starts:
        assert (said.code, said.hint) == (Code.STARTING, "the controller places them")
        assert said.what == "Kueue has started it; its workers wait at their gates to be placed"
    else:
        assert (said.code, said.hint) == (
            Code.GATED_NO_PATCHER,
            "arena-topo resume demo -n team-a",
        )
        assert said.why == "Kueue has started it, and no controller of arena-topo runs here"
    assert code(case(job, *pods, fit=NO_FIT, starts=starts)) is Code.WAITING_FOR_GPUS


def test_what_was_recorded_before_its_queue_started_a_job_is_not_shown_any_more():
    notes = ours("waiting", cause=because(CauseCode.OTHER_QUEUE, queue="Kueue"))
    held = job_status(mpijob(CREATED, SUSPENDED, notes=notes, labels=KUEUE, policy=SUSPEND), [])
    assert "none yet: Kueue decides when it starts" in job_screen(held, now=NOW)
    pods = [worker(index, gates=(GATE,), **GATED) for index in range(4)]
    started = job_status(
        mpijob(CREATED, notes=notes, labels=KUEUE, policy={"suspend": False}), pods
    )
    shown = job_screen(started, now=NOW)
    assert "Kueue decides" not in shown
    assert "none yet: demo-worker-0 waits at its gate to be given a node" in shown


@pytest.mark.parametrize("state", ["waiting", "held"])
def test_a_job_that_ended_while_it_was_taken_back_does_not_wait_any_more(state: str):
    notes = ours(state, reason="node gpu-2 is cordoned")
    for end, phase in (("Succeeded", Phase.SUCCEEDED), ("Failed", Phase.FAILED)):
        over = mpijob(CREATED, SUSPENDED, condition(end), notes=notes, policy=SUSPEND)
        over["status"]["completionTime"] = at(60)
        found = job_status(over, [])
        assert found.phase is phase
        assert "cordoned" not in job_screen(found, now=NOW)
        assert "none yet" not in job_screen(found, now=NOW)
        assert "cordoned" not in json.dumps(job_value(found, now=NOW))


def test_a_job_that_ended_keeps_its_last_placement():
    found = job_status(mpijob(CREATED, condition("Succeeded"), notes=PLACED), [])
    assert "Placement:" in job_screen(found, now=NOW)


def test_a_heading_does_not_say_the_same_twice():
    for phase, head in (
        (Phase.RUNNING, "demo: RUNNING\n"),
        (Phase.SUCCEEDED, "demo: SUCCEEDED\n"),
        (Phase.PENDING, "demo: PENDING, Starting\n"),
    ):
        found = here(local(phase))
        told = Explanation(status=found.status, verdict=verdict(found), now=NOW)
        assert plain(screens.explanation_text(told)).startswith(head)
        assert "Nodes:" not in screens.explanation_text(told)
    held = job_status(mpijob(notes=ours("held"), policy=SUSPEND), [])
    assert why_not_running(held) == (
        "The Job demo is SUSPENDED: `arena-topo resume demo -n team-a` starts it"
    )


# Events that still hold.

BOUND = worker(0, node="a", **waits("ContainerCreating"))
UNBOUND = worker(0, **unscheduled("0/2 nodes are available"))
PULLING = worker(0, node="a", **waits("ErrImagePull"))
CRASHED = worker(0, "Running", node="a", **waits("CrashLoopBackOff"))
WELL = worker(0, "Running", node="a", **runs())
INITIALIZING = launcher(
    "Pending",
    node="a",
    initContainerStatuses=[{"name": "wait-for-workers", "state": {"running": {}}}],
    **waits("PodInitializing"),
)
UNREADY = worker(0, "Running", node="a", **runs(ready=False))
THROWN_OUT = worker(0, "Failed", node="a", reason="Evicted")


@pytest.mark.parametrize(
    ("reason", "kind", "holds", "passed"),
    [
        ("FailedScheduling", "Warning", UNBOUND, BOUND),
        ("Failed", "Warning", PULLING, WELL),
        ("BackOff", "Warning", PULLING, WELL),
        ("BackOff", "Warning", CRASHED, WELL),
        ("FailedMount", "Warning", BOUND, WELL),
        ("FailedAttachVolume", "Warning", BOUND, UNREADY),
        ("FailedCreatePodSandBox", "Warning", BOUND, WELL),
        ("Unhealthy", "Warning", UNREADY, WELL),
        ("Evicted", "Warning", THROWN_OUT, WELL),
        ("Pulling", "Normal", BOUND, WELL),
        ("Preempted", "Normal", UNBOUND, WELL),
        ("SomethingNew", "Warning", BOUND, WELL),
    ],
)
def test_a_complaint_holds_as_long_as_the_pod_is_in_that_state(
    reason: str, kind: str, holds: Any, passed: Any
):
    told = [event("Pod/demo-worker-0", reason, "text", kind=kind)]
    world = {"worker_count": 4, "now": NOW, "over": False}
    assert [one.reason for one in current(told, [holds], **world)] == [reason]
    assert current(told, [passed], **world) == ()


@pytest.mark.parametrize("reason", ["Pulling", "FailedMount"])
def test_what_was_before_the_first_container_of_a_pod_has_passed(reason: str):
    told = [event("Pod/demo-launcher-x7k2p", reason, "text")]
    assert current(told, [INITIALIZING], worker_count=4, now=NOW, over=False) == ()


def test_the_newest_of_a_complaint_counts_and_they_come_oldest_first():
    told = [
        event("Pod/demo-worker-1", "FailedScheduling", "0/1", when=300),
        event("Pod/demo-worker-0", "FailedScheduling", "0/3", when=400),
        event("Pod/demo-worker-0", "FailedScheduling", "0/2", when=200),
    ]
    pods = [UNBOUND, worker(1, **unscheduled("0/1"))]
    found = current(told, pods, worker_count=4, now=NOW, over=False)
    assert [(one.source, one.message, one.when) for one in found] == [
        ("pod/demo-worker-1", "0/1", T0 + 300),
        ("pod/demo-worker-0", "0/3", T0 + 400),
    ]


def test_events_of_a_pod_that_was_made_again_are_not_its_own():
    told = [event("Pod/demo-worker-0", "FailedScheduling", "0/2", uid="the-one-before")]
    assert current(told, [UNBOUND], worker_count=4, now=NOW, over=False) == ()


def test_a_refusal_holds_until_the_pod_is_there():
    text = 'worker pod created failed: pods "demo-worker-0" is forbidden: exceeded quota: q'
    told = [event("MPIJob/demo", "MPIJobFailed", text)]
    world = {"worker_count": 4, "now": NOW, "over": False}
    assert len(current(told, [worker(1)], **world)) == 1
    assert current(told, [worker(0)], **world) == ()
    launch = [event("Job/demo-launcher", "FailedCreate", "Error creating: forbidden: quota")]
    assert len(current(launch, [worker(0)], **world)) == 1
    assert current(launch, [launcher()], **world) == ()


def test_complaints_about_quotas_and_jobs_pass_with_time():
    for about in ("ResourceQuota/gpus", "MPIJob/demo"):
        told = [event(about, "Odd", "something", when=400)]
        world = {"worker_count": 0, "over": False}
        assert len(current(told, [], now=T0 + 500, **world)) == 1
        assert current(told, [], now=T0 + 1000, **world) == ()


# Asked of a cluster.


@pytest.fixture
def api() -> Iterator[FakeApi]:
    fake = FakeApi()
    fake.now = NOW
    yield fake
    fake.close()


@pytest.fixture
def backend(api: FakeApi, tmp_path: Path) -> Any:
    config = kubeconfig(tmp_path / "config", api.url, user={"username": "alice"})
    return kubernetes.open_kubernetes(Options(kubeconfig=config))


def busy(api: FakeApi) -> None:
    """Two nodes, filled by a job of ours and a pod of others; three gangs wait, demo second."""
    for name in ("gpu-1", "gpu-2"):
        api.add(node(name))
    api.add(node("gpu-3", cordoned=True))
    train = mpijob(
        CREATED,
        RUNNING,
        name="train",
        notes=ours("placed", map=";".join(f"gpu-1/{2 * i},{2 * i + 1}" for i in range(4))),
        policy={"activeDeadlineSeconds": 7200},
    )
    train["status"]["startTime"] = at(60)
    api.add(train)
    limits = {"resources": {"limits": {"nvidia.com/gpu": "7"}}}
    api.add(
        pod("notebook-0", "Running", node="gpu-2", spec={"containers": [{"name": "x", **limits}]})
    )
    api.add({"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000})
    for name, created, priority in (("big", 300, "high"), ("demo", 0, ""), ("late", 100, "")):
        one = waiting()
        one["metadata"] |= {"name": name, "uid": f"uid-{name}", "creationTimestamp": at(created)}
        template = one["spec"]["mpiReplicaSpecs"]["Worker"]["template"]
        template["spec"]["priorityClassName"] = priority
        if name == "big":
            one["metadata"]["namespace"] = "default"
        api.add(one)


def ask(backend: Any, name: str = "demo") -> Explanation:
    return explain_job(backend, name, "team-a", now=time.time())


def golden(name: str) -> str:
    return (SCREENS / name).read_text(encoding="utf-8")


def test_a_waiting_job_is_explained_by_nodes_holders_and_its_place_in_the_queue(
    api: FakeApi, backend: Any
):
    busy(api)
    found = ask(backend)
    assert found.verdict.code is Code.WAITING_FOR_GPUS
    assert {(one.reason, one.nodes, one.example) for one in found.refusals} == {
        (Reason.BUSY, 2, "gpu-1"),
        (Reason.CORDONED, 1, "gpu-3"),
    }
    assert found.holders == (
        BlockingHolder(
            name="train",
            namespace="team-a",
            gpus=8,
            gpus_on={"gpu-1": 8},
            since=T0 + 60,
            left=7200 - 540,
        ),
        BlockingHolder(
            name="notebook-0",
            namespace="team-a",
            gpus=7,
            gpus_on={"gpu-2": 7},
            since=None,
            pod=True,
        ),
    )
    assert found.unnamed == 0
    assert found.turn is not None
    assert (found.turn.place, found.turn.of, found.turn.whole) == (2, 3, True)
    assert [(one.namespace, one.name, one.gpus) for one in found.turn.ahead] == [
        ("default", "big", 8)
    ]
    assert found.denied == ()


def test_the_first_that_waits_is_told_when_it_starts_at_the_latest(api: FakeApi, backend: Any):
    busy(api)
    # Nobody starts it by itself.
    assert explain_job(backend, "big", "default", now=time.time()).starts_by is None
    renewed = {"holderIdentity": "one", "renewTime": at(595), "leaseDurationSeconds": 15}
    api.add({"kind": "Namespace", "metadata": {"name": "arena-topo-system"}})
    meta = {"name": "arena-topo-controller", "namespace": "arena-topo-system"}
    api.add({"kind": "Lease", "metadata": meta, "spec": renewed})
    first = explain_job(backend, "big", "default", now=time.time())
    train, _notebook = first.holders
    assert train.left is not None
    assert first.starts_by == first.now + train.left
    assert (
        "Start: in 1h51m at the latest, once jobs on its GPUs reach their --running-timeout"
    ) in screens.explanation_text(first)
    assert screens.explanation_json(first)["startsBy"] == int(train.left)
    # It comes first, and nobody has said how long it may run.
    assert ask(backend).starts_by is None


@pytest.mark.parametrize(
    ("left", "shown"),
    [
        (-3.0, "0s"),
        (44.2, "45s"),
        (60.0, "60s"),
        (61.0, "2m"),
        (3599.0, "1h"),
        (7196.0, "2h"),
        (7141.0, "2h"),
        (7139.0, "1h59m"),
        (86399.0, "1d"),
        (86401.0, "1d1h"),
    ],
)
def test_the_time_until_a_deadline_is_never_shown_too_short(
    api: FakeApi, backend: Any, left: float, shown: str
):
    busy(api)
    found = explain_job(backend, "big", "default", now=time.time())
    later = replace(found, starts_by=found.now + left)
    assert f"Start: in {shown} at the latest" in screens.explanation_text(later)


def test_the_time_of_a_job_that_was_suspended_runs_from_when_it_was_resumed(
    api: FakeApi, backend: Any
):
    busy(api)
    train = api.find("MPIJob", "train", "team-a")
    assert train is not None
    resumed = {"type": "Suspended", "status": "False", "lastTransitionTime": at(360)}
    train["status"]["conditions"].append(resumed)
    holder, _notebook = ask(backend).holders
    assert (holder.since, holder.left) == (T0 + 360, 7200 - 240)


def test_pods_of_others_that_are_on_their_way_out_are_named(api: FakeApi, backend: Any):
    busy(api)
    notebook = api.find("Pod", "notebook-0", "team-a")
    assert notebook is not None
    notebook["metadata"]["deletionTimestamp"] = at(590)
    found = ask(backend)
    assert found.unnamed == 0
    assert [(one.namespace, one.name, one.gpus) for one in found.holders] == [
        ("team-a", "train", 8),
        ("team-a", "notebook-0", 7),
    ]
    shown = screens.explanation_text(found)
    assert re.search(r"team-a/notebook-0 +7 .* gpu-2 \(terminating\)\n", shown)
    assert "others" not in shown
    assert screens.explanation_json(found)["holders"][1]["terminating"] is True


def test_jobs_without_a_record_are_named_by_their_bound_pods_and_pods_of_others_by_name(
    api: FakeApi, backend: Any
):
    for name, product in (
        ("gpu-1", "V100-SXM2-32GB"),
        ("gpu-2", "V100-SXM2-32GB"),
        ("h-1", "H100"),
    ):
        one = node(name)
        one["metadata"]["labels"]["nvidia.com/gpu.product"] = f"NVIDIA {product}"
        api.add(one)
    asks = json.dumps({"workers": 4, "gpus": 2, "model": "V100"})
    wants = waiting()
    wants["metadata"]["annotations"]["arena-topo.io/request"] = asks
    api.add(wants)
    api.add(mpijob(CREATED, RUNNING, name="plain"))
    api.add(mpijob(CREATED, RUNNING, name="elsewhere"))
    for name, where, gpus in (
        ("plain-worker-0", "gpu-2", 4),
        ("plain-worker-1", "h-1", 4),
        ("elsewhere-worker-0", "h-1", 2),
        ("notebook-0", "gpu-1", 7),
        ("unbound", None, 8),
    ):
        limits = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
        spec = {"containers": [{"name": "x", **limits}]}
        api.add(pod(name, "Running", node=where, spec=spec, startTime=at(480)))
    found = ask(backend)
    shown = screens.explanation_text(found)
    assert shown.partition("GPUs in use by:\n")[2].partition("\n\n")[0].splitlines() == [
        "  USED BY                GPUS  AGE  LEFT  NODES",
        "  -------                ----  ---  ----  -----",
        "  pod team-a/notebook-0  7     2m   -     gpu-1",
        "  team-a/plain           4     10m  -     gpu-2",
        "  which GPUs: arena-topo top node -d gpu-1 gpu-2",
    ]
    value = screens.explanation_json(found)
    assert [(one["name"], one["pod"], one["gpusOn"]) for one in value["holders"]] == [
        ("notebook-0", True, {"gpu-1": 7}),
        ("plain", False, {"gpu-2": 4}),
    ]
    assert value["heldByOthers"] == 0


def test_gpus_of_pods_that_the_caller_may_not_see_are_counted_with_their_nodes(
    api: FakeApi, backend: Any
):
    busy(api)
    published = view.encode(backend.cluster(), observed_at=NOW)
    meta = {"name": "cluster-view", "namespace": "arena-topo-system"}
    api.add({"kind": "Namespace", "metadata": {"name": "arena-topo-system"}})
    api.add({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, **published})
    for right in ("nodes", "pods"):
        api.deny(f"list {right}.*")
    shown = screens.explanation_text(ask(backend))
    assert re.search(r"\n  others +7 +gpu-2\n", shown)
    api.add(mpijob(CREATED, RUNNING, name="plain"))
    found = ask(backend)
    shown = screens.explanation_text(found)
    assert re.search(r"\n  team-a/plain +\d+ .* not known; pods may not be listed\n", shown)
    assert "not recorded" not in shown
    age = r"the cluster is shown as it was .* ago \(configmap arena-topo-system/cluster-view\)"
    assert re.search(rf"\n\nnote: {age}", shown)
    assert re.match(age, screens.explanation_json(found)["notes"][0])


def test_a_pod_on_its_way_out_of_a_job_that_is_named_is_not_named_twice(api: FakeApi, backend: Any):
    busy(api)
    limits = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    leaves = pod("train-worker-0", "Running", node="gpu-1", spec={"containers": [limits]})
    leaves["metadata"]["deletionTimestamp"] = at(590)
    api.add(leaves)
    assert [one.name for one in ask(backend).holders] == ["train", "notebook-0"]


@pytest.mark.parametrize(("width", "file"), [(80, "why-80.txt"), (200, "why-200.txt")])
def test_the_explanation_on_a_screen(api: FakeApi, backend: Any, width: int, file: str):
    busy(api)
    assert plain(screens.explanation_text(ask(backend), width=width)) == golden(file)


def test_the_explanation_in_a_pipe_is_not_wrapped(api: FakeApi, backend: Any):
    busy(api)
    assert plain(screens.explanation_text(ask(backend))) == golden("why.txt")


def test_the_explanation_as_json(api: FakeApi, backend: Any):
    busy(api)
    api.deny("list resourcequotas team-a")
    text = json.dumps(screens.explanation_json(ask(backend)), indent=2, ensure_ascii=False) + "\n"
    assert text == golden("why.json")


def test_a_job_that_fits_behind_an_older_one_waits_for_its_turn(api: FakeApi, backend: Any):
    api.add(node("gpu-1"))
    old = waiting()
    old["metadata"] |= {"name": "old", "uid": "uid-old", "creationTimestamp": at(-60)}
    api.add(old)
    api.add(waiting())
    found = ask(backend)
    assert found.verdict.code is Code.WAITING_FOR_TURN
    assert "team-a/old" in found.verdict.what
    assert ask(backend, "old").verdict.code is Code.NOBODY_STARTS
    lease = {
        "kind": "Lease",
        "metadata": {"name": "arena-topo-controller", "namespace": "arena-topo-system"},
        "spec": {"holderIdentity": "one", "renewTime": at(595), "leaseDurationSeconds": 15},
    }
    api.add({"kind": "Namespace", "metadata": {"name": "arena-topo-system"}})
    api.add(lease)
    assert ask(backend, "old").verdict.code is Code.STARTING


def test_a_job_larger_than_the_cluster_never_fits(api: FakeApi, backend: Any):
    small = node("gpu-1", gpus=4)
    small["metadata"]["labels"]["nvidia.com/gpu.count"] = "4"
    api.add(small)
    api.add(waiting())
    found = ask(backend)
    assert found.verdict.code is Code.NEVER_FITS
    assert found.nearest is not None


def test_whoever_may_read_nothing_but_the_job_still_gets_a_verdict(api: FakeApi, backend: Any):
    busy(api)
    for right in ("nodes", "pods", "events", "resourcequotas", "priorityclasses"):
        api.deny(f"list {right}.*")
    api.deny("list mpijobs")
    api.deny("get .*arena-topo-system")
    found = ask(backend)
    assert found.verdict.code is Code.WAITING_FOR_GPUS
    assert "not enough free GPUs" in (found.verdict.why or "")
    assert [str(one) for one in found.denied] == [
        "not allowed to list pods in namespace team-a",
        "not allowed to list events in namespace team-a",
        "not allowed to list resourcequotas in namespace team-a",
        "not allowed to list mpijobs",
        "not allowed to list priorityclasses",
        "not allowed to list nodes",
    ]
    # Jobs of its own namespace may be listed, and only those are counted and named.
    assert found.turn is not None
    assert (found.turn.of, found.turn.whole) == (2, False)


@pytest.mark.parametrize("kind", ["pods", "events", "resourcequotas", "workloads", "nodes"])
def test_a_server_in_trouble_with_one_list_does_not_keep_the_rest_back(
    api: FakeApi, backend: Any, kind: str
):
    busy(api)
    api.kueue = ["v1beta2"]
    api.fail(f"/{kind}", status=403, times=100)
    found = ask(backend)
    assert found.verdict.code is Code.WAITING_FOR_GPUS
    assert kind in {one.resource for one in found.denied}


def test_the_workload_of_a_job_is_found_by_its_uid(api: FakeApi, backend: Any):
    api.kueue = ["v1beta2", "v1beta1"]
    api.add(mpijob(CREATED, SUSPENDED, labels=KUEUE, policy=SUSPEND))
    quota = condition(
        "QuotaReserved", "False", reason="Pending", message="insufficient unused quota"
    )
    for age, name, uid in (
        (0, "mpijob-demo-1a2b3", "0b5d6e2c-demo"),
        (60, "mpijob-other-9", "other"),
    ):
        one = workload(quota) | {"kind": "Workload", "apiVersion": "kueue.x-k8s.io/v1beta2"}
        one["metadata"] = {
            "name": name,
            "namespace": "team-a",
            "creationTimestamp": at(age),
            "labels": {"kueue.x-k8s.io/job-uid": uid},
        }
        api.add(one)
    found = ask(backend)
    assert found.verdict.code is Code.KUEUE_QUOTA
    assert found.verdict.hint == "kubectl describe workload mpijob-demo-1a2b3 -n team-a"


def test_the_launchers_log_is_read_where_workers_do_not_answer(api: FakeApi, backend: Any):
    api.add(mpijob(CREATED))
    api.add(launcher("Failed", **ended(255)))
    with api.edit("MPIJob", "demo", "team-a") as job:
        job["status"]["conditions"] = [CREATED, FAILED]
    line = "ssh: connect to host demo-worker-0.demo.team-a.svc port 22: Connection refused"
    api.write("demo-launcher-x7k2p", line, at="2026-11-21T07:01:00.000000000Z", namespace="team-a")
    api.end_log("demo-launcher-x7k2p", "team-a")
    found = ask(backend)
    assert (found.verdict.code, found.verdict.why) == (Code.NO_SSHD, line)


def init(host: str, rank: int, of: int) -> str:
    """A line of NCCL 2.27 for a rank."""
    return (
        f"[1,{rank}]<stdout>:{host}:{100 + rank}:{200 + rank} [{rank}] NCCL INFO ncclCommInitRank"
        f" comm 0x55 rank {rank} nranks {of} cudaDev {rank} busId 42000 - Init COMPLETE"
    )


JOB_MAP = """
 ========================   JOB MAP   ========================

 Data for node: {}\tNum slots: 8\tMax slots: 0\tNum procs: 8
 \tProcess OMPI jobid: [26696,1] App: 0 Process rank: 0 Bound: N/A
{}
 =============================================================
"""
"""What mpirun --display-map of Open MPI 4.1 prints."""
OTHER = " Data for node: {}\tNum slots: 2\tMax slots: 0\tNum procs: 2"
HERE, THERE = "demo-launcher", "demo-worker-1"


@pytest.mark.parametrize(
    ("start", "proves"),
    [
        ([init(HERE, rank, 8) for rank in range(8)], True),
        ([init("demo-launcher-x7k2p", rank, 8) for rank in range(8)], True),
        (JOB_MAP.format(HERE, "").splitlines(), True),
        (JOB_MAP.format(f"{HERE}.demo.team-a.svc", "").splitlines(), True),
        # Some of the ranks, or of a communicator of one, prove nothing; nor do ranks elsewhere.
        ([init(HERE, rank, 8) for rank in range(7)], False),
        ([init(HERE, 0, 1)], False),
        ([init(THERE, 4, 8), *(init(HERE, rank, 2) for rank in range(2))], False),
        ([init(THERE, rank, 8) for rank in range(8)], False),
        (JOB_MAP.format(HERE, OTHER.format(THERE)).splitlines(), False),
        (JOB_MAP.format(THERE, "").splitlines(), False),
    ],
)
def test_ranks_that_all_run_on_the_launcher_are_an_error(
    api: FakeApi, backend: Any, start: list[str], *, proves: bool
):
    api.add(mpijob(CREATED, RUNNING))
    api.add(launcher(**runs()))
    for index in range(4):
        api.add(worker(index, "Running", node="a", **runs()))
    for line in (*start, *(f"step {number}" for number in range(100))):
        when = "2026-11-21T07:01:00.000000000Z"
        api.write("demo-launcher-x7k2p", line, at=when, namespace="team-a")
    api.end_log("demo-launcher-x7k2p", "team-a")
    said = ask(backend).verdict
    assert (said.code is Code.HOSTFILE_NOT_READ) is proves
    if proves:
        assert said.what == "all 8 ranks run in the launcher's pod, although 4 workers wait"
        assert "PRTE_MCA_prte_default_hostfile" in (said.hint or "")


def test_a_job_that_succeeded_on_its_launcher_alone_is_not_called_a_success():
    on_launcher = "\n".join(init(HERE, rank, 2) for rank in range(2))
    done = mpijob(CREATED, condition("Succeeded"))
    said = verdict(case(done, launcher("Succeeded", **ended(0)), start=on_launcher))
    assert (said.code, said.what) == (
        Code.HOSTFILE_NOT_READ,
        "all 2 ranks run in the launcher's pod, and none on a worker",
    )
    # A launcher that asks for GPUs is a worker as well.
    limits = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    with_gpus = launcher("Succeeded", spec={"containers": [{"name": "mpi", **limits}]}, **ended(0))
    assert verdict(case(done, with_gpus, start=on_launcher)).code is Code.SUCCEEDED


def test_more_ranks_than_the_workers_have_slots_say_nothing_of_the_hostfile():
    log = "There are not enough slots available in the system to satisfy the 5\nslots that"
    said = verdict(case(mpijob(FAILED), launcher("Failed", **ended(1)), log=log))
    assert said.code is Code.LAUNCHER_FAILED


def test_a_node_that_is_gone_is_asked_for_by_name(api: FakeApi, backend: Any):
    api.add(mpijob(CREATED, notes=PLACED))
    api.add(worker(0, spec=pinned("gpu-7"), **unscheduled("0/3 nodes are available")))
    api.add(worker(1, "Running", node="gpu-8", **runs()))
    api.add(node("gpu-8"))
    assert ask(backend).verdict.code is Code.PINNED_NODE_GONE
    asked = [one for one in api.requests if "/nodes/" in one]
    assert asked == ["GET /api/v1/nodes/gpu-7", "GET /api/v1/nodes/gpu-8"]
    api.deny("get nodes")
    found = ask(backend)
    assert found.verdict.code is Code.UNSCHEDULABLE
    assert [str(one) for one in found.denied] == ["not allowed to get nodes"]


def test_a_job_that_runs_is_explained_in_few_requests(api: FakeApi, backend: Any):
    api.add(mpijob(CREATED, RUNNING, notes=PLACED))
    api.add(launcher(**runs()))
    for index in range(4):
        api.add(worker(index, "Running", node="a", **runs()))
    api.add(node("a"))
    assert ask(backend).verdict.code is Code.RUNNING
    # Discovery, the job, its pods by two labels, events, quotas, its node, its launcher, the log.
    assert len(api.requests) <= 9


def test_the_nodes_of_a_job_that_runs_are_looked_at(api: FakeApi, backend: Any):
    api.add(node("a", ready="Unknown"))
    api.add(mpijob(CREATED, RUNNING, notes=PLACED))
    api.add(launcher(**runs()))
    for index in range(4):
        api.add(worker(index, "Running", node="a", **runs()))
    said = ask(backend).verdict
    assert (said.code, said.hint) == (Code.NODE_LOST, MOVES)
    lease = {
        "kind": "Lease",
        "metadata": {"name": "arena-topo-controller", "namespace": "arena-topo-system"},
        "spec": {"holderIdentity": "one", "renewTime": at(595), "leaseDurationSeconds": 15},
    }
    api.add({"kind": "Namespace", "metadata": {"name": "arena-topo-system"}})
    api.add(lease)
    assert (ask(backend).verdict.hint or "").startswith("the controller moves the gang")


# On the command line.


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.run(words)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_why_ends_well_whatever_is_the_matter(
    api: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    busy(api)
    config = kubeconfig(tmp_path / "config", api.url)
    code, out, _ = run(capsys, "why", "demo", "-n", "team-a", "--kubeconfig", config)
    assert (code, out) == (0, golden("why.txt"))
    words = ("-n", "team-a", "--kubeconfig", config)
    code, out, _ = run(capsys, "why", "demo", "-o", "json", *words)
    assert (code, json.loads(out)["code"]) == (0, "WaitingForGPUs")
    code, out, _ = run(capsys, "why", "demo", "-o", "yaml", *words)
    assert code == 0
    assert "code: WaitingForGPUs" in out


def test_why_of_a_missing_job_has_the_text_that_arenas_sdk_looks_for(
    api: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    config = kubeconfig(tmp_path / "config", api.url)
    for command in (("why", "none"), ("get", "none", "--explain")):
        code, _, err = run(capsys, *command, "-n", "team-a", "--kubeconfig", config)
        assert code == 1
        assert "Not found training job none in namespace team-a" in err


def test_get_explains_below_its_screen_and_in_json(
    api: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    busy(api)
    words = ("-n", "team-a", "--kubeconfig", kubeconfig(tmp_path / "config", api.url))
    code, plain, _ = run(capsys, "get", "demo", *words)
    code, out, err = run(capsys, "get", "demo", "--explain", *words)
    assert code == 0
    assert err == ""
    explained = "".join(f"  {line}".rstrip() + "\n" for line in golden("why.txt").splitlines())
    head = [line for line in plain.splitlines() if not line.startswith("Duration")]
    assert [line for line in out.splitlines() if not line.startswith("Duration")][
        : len(head)
    ] == head
    assert out.endswith("\nWhy:\n" + explained)
    _, out, _ = run(capsys, "get", "demo", "--explain", "-o", "json", *words)
    assert json.loads(out)["explanation"]["queue"]["place"] == 2


def test_get_explains_even_where_pods_may_not_be_listed(
    api: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    api.add(mpijob(CREATED))
    api.deny("list pods team-a")
    words = ("-n", "team-a", "--kubeconfig", kubeconfig(tmp_path / "config", api.url))
    code, out, _ = run(capsys, "get", "demo", "--explain", *words)
    assert code == 0
    assert "demo: PENDING, Forbidden" in out
    assert run(capsys, "get", "demo", *words)[0] == 4
