"""The world around the fake API server: operators, scheduler, kubelets, devices and Kueue."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest
from fake_api import FakeApi
from fake_cluster import FakeCluster
from fake_kueue import QUEUE
from fake_operators import condition, is_ready
from fake_resources import Refused
from wire_objects import waits

LABEL = "training.kubeflow.org"
OLD = "v1alpha1"


@pytest.fixture
def api() -> Iterator[FakeApi]:
    fake = FakeApi()
    fake.now = 1_800_000_000.0
    yield fake
    fake.close()
    assert not fake.crashes, fake.crashes[0]


@pytest.fixture
def world(api: FakeApi) -> FakeCluster:
    cluster = FakeCluster(api)
    for index in range(3):
        cluster.node(f"node-{index}")
    return cluster


def mpijob(
    api: FakeApi,
    name: str = "j",
    *,
    workers: int = 2,
    gpus: int = 2,
    suspend: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """Create an MPIJob of the served version."""
    version = api.versions[0]
    limits = {"nvidia.com/gpu": str(gpus)}
    worker = {"containers": [{"name": "mpi", "image": "img", "resources": {"limits": limits}}]}
    template = {"metadata": more.pop("meta", {}), "spec": {**worker, **more.pop("worker", {})}}
    launcher = {
        "spec": {"containers": [{"name": "mpi", "image": "img"}], **more.pop("launcher", {})}
    }
    if version == OLD:
        spec: dict[str, Any] = {"replicas": workers, "template": template}
    else:
        spec = {
            "slotsPerWorker": gpus,
            "runPolicy": {"suspend": suspend, "cleanPodPolicy": more.pop("clean", "All")},
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "template": launcher},
                "Worker": {"replicas": workers, "template": template},
            },
            **more.pop("spec", {}),
        }
    thing = {
        "apiVersion": f"kubeflow.org/{version}",
        "kind": "MPIJob",
        "metadata": {"name": name, **more},
        "spec": spec,
    }
    return api.create("mpijobs", "default", thing)


def suspend(api: FakeApi, name: str = "j", *, on: bool = True) -> None:
    with api.edit("MPIJob", name) as job:
        job["spec"]["runPolicy"]["suspend"] = on


def conditions(api: FakeApi, name: str = "j") -> dict[str, tuple[str, str]]:
    job = api.find("MPIJob", name) or {}
    found = (job.get("status") or {}).get("conditions") or ()
    return {one["type"]: (one["status"], one["reason"]) for one in found}


def where(world: FakeCluster, name: str = "j") -> list[str | None]:
    return [one["spec"].get("nodeName") for one in world.workers(name)]


def on(node: str) -> dict[str, Any]:
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


# mpi-operator v2beta1.


def test_a_suspended_job_has_no_workers_but_its_launchers_batch_job(api: FakeApi, world):
    mpijob(api, suspend=True, spec={"launcherCreationPolicy": "WaitForWorkersReady"})
    world.settle()
    assert world.phases() == {}
    assert conditions(api) == {
        "Created": ("True", "MPIJobCreated"),
        "Suspended": ("True", "MPIJobSuspended"),
        "Running": ("False", "MPIJobSuspended"),
    }
    launcher = api.find("Job", "j-launcher")
    assert launcher["spec"]["suspend"] is True


def test_on_resume_the_launcher_starts_at_once_whatever_its_creation_policy(api: FakeApi, world):
    world.sshd = False
    mpijob(api, suspend=True, spec={"launcherCreationPolicy": "WaitForWorkersReady"})
    world.settle()
    suspend(api, on=False)
    world.settle()
    assert conditions(api)["Suspended"] == ("False", "MPIJobResumed")
    assert [name for name in world.phases() if "launcher" in name]
    # The same job that was never suspended waits for its workers.
    mpijob(api, "k", spec={"launcherCreationPolicy": "WaitForWorkersReady"})
    world.settle()
    assert not [name for name in world.phases() if name.startswith("k-launcher")]
    assert api.find("Job", "k-launcher") is None


def test_workers_get_their_names_labels_and_the_template_of_the_job(api: FakeApi, world):
    meta = {"labels": {"a": "b", f"{LABEL}/job-name": "x"}, "annotations": {"c": "d"}}
    gate = {"name": "arena-topo.io/placement"}
    mpijob(api, meta=meta, worker={"schedulingGates": [gate], "affinity": on("node-1")})
    world.settle()
    one = world.workers("j")[1]
    assert one["metadata"]["name"] == "j-worker-1"
    assert one["metadata"]["labels"] == {
        "a": "b",
        f"{LABEL}/operator-name": "mpi-operator",
        f"{LABEL}/job-name": "j",
        f"{LABEL}/job-role": "worker",
        f"{LABEL}/replica-index": "1",
    }
    assert one["metadata"]["annotations"] == {"c": "d"}
    owner = one["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["controller"], owner["blockOwnerDeletion"]) == (
        "MPIJob",
        True,
        True,
    )
    spec = one["spec"]
    assert (spec["hostname"], spec["subdomain"]) == ("j-worker-1", "j")
    assert spec["schedulingGates"] == [gate]
    assert spec["affinity"] == on("node-1")
    assert spec["restartPolicy"] == "Never"
    assert {"name": "K_MPI_JOB_ROLE", "value": "worker"} in spec["containers"][0]["env"]
    assert spec["containers"][0]["command"] == ["/usr/sbin/sshd", "-De"]
    hosts = api.find("ConfigMap", "j-config")["data"]["hostfile"]
    assert hosts == "".join(f"j-worker-{index}.j.default.svc slots=2\n" for index in range(2))
    launcher = next(pod for name, pod in _pods(api) if "launcher" in name)
    assert launcher["metadata"]["labels"][f"{LABEL}/job-role"] == "launcher"
    assert f"{LABEL}/replica-index" not in launcher["metadata"]["labels"]


def _pods(api: FakeApi) -> list[tuple[str, dict[str, Any]]]:
    return [(one["metadata"]["name"], one) for one in api.all("Pod")]


def test_the_launcher_as_a_worker_shifts_the_indexes(api: FakeApi, world):
    mpijob(api, spec={"runLauncherAsWorker": True})
    world.settle()
    indexes = [one["metadata"]["labels"][f"{LABEL}/replica-index"] for one in world.workers("j")]
    assert indexes == ["1", "2"]


def test_a_deleted_worker_comes_back_under_its_name_and_an_evicted_one_does_not(
    api: FakeApi, world
):
    mpijob(api)
    world.settle()
    assert conditions(api)["Running"] == ("True", "MPIJobRunning")
    first = world.workers("j")[0]["metadata"]["uid"]
    api.remove("pods", "default", "j-worker-0")
    world.settle()
    assert world.workers("j")[0]["metadata"]["uid"] != first
    assert is_ready(world.workers("j")[0])
    world.evict("j-worker-1")
    world.settle()
    assert world.phases()["j-worker-1"] == "Failed"
    assert world.workers("j")[1]["status"]["reason"] == "Evicted"
    assert conditions(api)["Failed"] == ("True", "MPIJobEvicted")
    assert "1/2 workers are evicted" in [one["message"] for one in api.all("Event")]


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        ("drain", "EvictionByEvictionAPI"),
        ("taint", "DeletionByTaintManager"),
        ("silence", "DeletionByTaintManager"),
    ],
)
def test_a_pod_that_is_ended_from_outside_says_so_and_is_deleted(api: FakeApi, world, loss, reason):
    world.keeps_terminating = True
    world.node("only")
    world.pod("theirs", "only")
    world.settle()
    if loss == "silence":
        world.lose("only")
        api.now += 299
        world.settle()
        assert "deletionTimestamp" not in api.find("Pod", "theirs")["metadata"]
        api.now += 2
    elif loss == "drain":
        world.drain("only")
    else:
        world.taint("only", "repair")
    world.settle()
    pod = api.find("Pod", "theirs")
    assert condition(pod["status"], "DisruptionTarget")["reason"] == reason
    assert "deletionTimestamp" in pod["metadata"]


def test_suspending_ends_all_pods_and_resuming_makes_new_ones_from_the_patched_template(
    api: FakeApi, world
):
    mpijob(api)
    world.settle()
    suspend(api)
    world.settle()
    assert world.phases() == {}
    assert conditions(api)["Running"] == ("False", "MPIJobSuspended")
    with api.edit("MPIJob", "j") as job:
        job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["affinity"] = on("node-2")
        job["spec"]["runPolicy"]["suspend"] = False
    world.settle()
    assert where(world) == ["node-2", "node-2"]
    assert conditions(api)["Running"] == ("True", "MPIJobRunning")


def test_on_resume_only_some_of_the_launchers_template_is_synced(api: FakeApi, world):
    mpijob(api, suspend=True)
    world.settle()
    with api.edit("MPIJob", "j") as job:
        spec = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]
        spec |= {"nodeSelector": {"a": "b"}, "affinity": on("node-1"), "tolerations": []}
        spec["schedulingGates"] = [{"name": "x.io/y"}]
        job["spec"]["runPolicy"]["suspend"] = False
    world.settle()
    synced = api.find("Job", "j-launcher")["spec"]["template"]["spec"]
    assert synced["nodeSelector"] == {"a": "b"}
    assert synced["schedulingGates"] == [{"name": "x.io/y"}]
    assert "affinity" not in synced


def test_a_refused_worker_is_an_event_and_those_before_it_hold_their_gpus(api: FakeApi, world):
    world.quota(gpus="3")
    mpijob(api)
    world.settle()
    assert world.phases() == {"j-worker-0": "Running"}
    events = [(one["reason"], one["message"]) for one in api.all("Event")]
    assert (
        "MPIJobFailed",
        (
            'worker pod created failed: pods "j-worker-1" is forbidden: exceeded quota: gpu-quota,'
            " requested: requests.nvidia.com/gpu=2, used: requests.nvidia.com/gpu=2, limited:"
            " requests.nvidia.com/gpu=3"
        ),
    ) in events
    # The operator tries again.
    with api.edit("ResourceQuota", "gpu-quota") as one:
        one["spec"]["hard"]["requests.nvidia.com/gpu"] = "4"
    world.settle()
    assert set(world.phases().values()) == {"Running"}


def test_a_job_that_another_manages_is_left_alone(api: FakeApi, world):
    policy = {"managedBy": "kueue.x-k8s.io/multikueue", "suspend": False}
    mpijob(api, spec={"runPolicy": policy})
    world.settle()
    assert world.phases() == {}
    assert "status" not in api.find("MPIJob", "j")


@pytest.mark.parametrize(("clean", "left"), [("All", 0), ("Running", 0), ("None", 2)])
def test_when_the_launcher_has_ended_workers_are_cleaned_as_asked(
    api: FakeApi, world, clean: str, left: int
):
    mpijob(api, clean=clean)
    world.settle()
    world.finish("j")
    world.settle()
    assert conditions(api)["Succeeded"] == ("True", "MPIJobSucceeded")
    assert conditions(api)["Running"][0] == "False"
    assert len(world.workers("j")) == left
    assert api.find("MPIJob", "j")["status"]["completionTime"]


def test_with_the_policy_running_a_failed_worker_outlives_suspension_and_keeps_its_name(
    api: FakeApi, world
):
    mpijob(api, clean="Running")
    world.settle()
    world.evict("j-worker-1")
    suspend(api)
    world.settle()
    assert world.phases() == {"j-worker-1": "Failed"}
    suspend(api, on=False)
    world.settle()
    assert world.phases()["j-worker-1"] == "Failed"


def test_a_launcher_is_tried_again_until_its_backoff_limit(api: FakeApi, world):
    mpijob(api, spec={"runPolicy": {"backoffLimit": 1, "cleanPodPolicy": "All"}})
    world.settle()
    for _ in range(2):
        world.finish("j", 3)
        world.settle()
    assert conditions(api)["Failed"] == ("True", "BackoffLimitExceeded")
    assert sorted(world.phases().values()) == ["Failed", "Failed"]


# The other versions.


def test_the_training_operators_launcher_is_a_bare_pod(api: FakeApi, world):
    api.versions = ["v1"]
    mpijob(api, suspend=True)
    world.settle()
    assert world.phases() == {}
    suspend(api, on=False)
    world.settle()
    assert set(world.phases()) == {"j-launcher", "j-worker-0", "j-worker-1"}
    labels = api.find("Pod", "j-launcher")["metadata"]["labels"]
    assert labels[f"{LABEL}/operator-name"] == "mpijob-controller"
    assert (labels["mpi-job-name"], labels[f"{LABEL}/job-role"]) == ("j", "launcher")
    assert api.all("Job") == []
    world.finish("j")
    world.settle()
    assert conditions(api)["Succeeded"] == ("True", "MPIJobSucceeded")


def test_v1alpha1_workers_are_a_stateful_set_and_the_launcher_waits_for_them(api: FakeApi, world):
    api.versions = [OLD]
    world.sshd = False
    mpijob(api)
    world.settle()
    assert set(world.phases()) == {"j-worker-0", "j-worker-1"}
    assert world.workers("j")[0]["metadata"]["labels"] == {
        "group_name": "kubeflow.org",
        "mpi_job_name": "j",
        "mpi_role_type": "worker",
        "statefulset.kubernetes.io/pod-name": "j-worker-0",
        "apps.kubernetes.io/pod-index": "0",
    }
    world.sshd = True
    for name in ("j-worker-0", "j-worker-1"):
        api.remove("pods", "default", name)
    world.settle()
    launcher = next(one for name, one in _pods(api) if "launcher" in name)
    assert "resources" not in launcher["spec"]["containers"][0]
    assert api.find("MPIJob", "j")["status"] == {"workerReplicas": 2, "launcherStatus": "Active"}
    world.finish("j")
    world.settle()
    assert api.find("MPIJob", "j")["status"]["launcherStatus"] == "Succeeded"
    assert world.workers("j") == []


# The scheduler.


def test_pods_wait_where_their_pins_point_and_say_what_every_node_has_against_them(
    api: FakeApi, world
):
    world.pod("theirs", "node-1", 7)
    mpijob(api, worker={"affinity": on("node-1")})
    world.settle()
    assert where(world) == [None, None]
    assert waits(api, "j-worker-0") == (
        "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 node(s) didn't satisfy plugin(s)"
        " [NodeAffinity]. no new claims to deallocate, preemption: 0/3 nodes are available: 1 No"
        " preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling."
    )
    api.remove("pods", "default", "theirs")
    world.settle()
    assert where(world) == ["node-1", "node-1"]


def test_taints_cordons_and_selectors_keep_pods_away(api: FakeApi, world):
    taint = {"key": "arena-topo.io/topology", "value": "true", "effect": "NoSchedule"}
    world.node("kept", taints=[taint], labels={"kind": "a"})
    world.cordon("node-0")
    world.cordon("node-1")
    world.pod("p", None, nodeSelector=None)
    with api.edit("Pod", "p") as one:
        one["spec"]["nodeSelector"] = {"kind": "a"}
    world.settle()
    said = waits(api, "p")
    assert "2 node(s) were unschedulable" in said
    assert "1 node(s) had untolerated taint {arena-topo.io/topology: true}" in said
    assert "1 node(s) didn't match Pod's node affinity/selector" in said
    with api.edit("Pod", "p") as one:
        one["spec"]["tolerations"] = [{"key": "arena-topo.io/topology", "operator": "Exists"}]
    world.settle()
    assert api.find("Pod", "p")["spec"]["nodeName"] == "kept"


def test_terminating_pods_hold_their_gpus_until_they_are_gone(api: FakeApi, world):
    world.pod("theirs", "node-0", 8)
    world.settle()
    world.keeps_terminating = True
    api.remove("pods", "default", "theirs")
    mpijob(api, workers=1, gpus=8, worker={"affinity": on("node-0")})
    world.settle()
    assert where(world) == [None]
    world.keeps_terminating = False
    world.settle()
    assert where(world) == ["node-0"]


def test_spread_constraints_and_anti_affinity_hold(api: FakeApi, world):
    selector = {"matchLabels": {f"{LABEL}/job-name": "j"}}
    rule = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": selector,
    }
    world.pod("theirs", "node-0", 3)
    mpijob(api, workers=6, worker={"topologySpreadConstraints": [rule]})
    world.settle()
    assert sorted(map(str, where(world))) == [f"node-{index // 2}" for index in range(6)]
    selector = {"matchLabels": {f"{LABEL}/job-name": "k"}}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}
    apart = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    mpijob(api, "k", workers=4, gpus=1, worker={"affinity": {"podAntiAffinity": apart}})
    world.settle()
    assert sorted(filter(None, where(world, "k"))) == ["node-0", "node-1", "node-2"]


def test_a_gang_is_bound_whole_or_not_at_all(api: FakeApi, world):
    api.unserved -= {"podgroups.scheduling.k8s.io"}
    world.pod("theirs", "node-0", 8)
    world.pod("others", "node-1", 8)
    world.pod("more", "node-2", 4)
    group = {"schedulingGroup": {"podGroupName": "g"}}
    for index in range(4):
        world.pod(f"w{index}", None, 2)
        with api.edit("Pod", f"w{index}") as one:
            one["spec"] |= copy.deepcopy(group)
    world.settle()
    # Without the PodGroup they wait without a word.
    assert condition(api.find("Pod", "w0")["status"], "PodScheduled") is None
    policy = {"gang": {"minCount": 4}}
    api.add(
        {
            "apiVersion": "scheduling.k8s.io/v1alpha2",
            "kind": "PodGroup",
            "metadata": {"name": "g"},
            "spec": {"schedulingPolicy": policy},
        }
    )
    world.settle()
    assert {world.phases()[f"w{index}"] for index in range(4)} == {"Pending"}
    assert "waiting for minCount pods from a gang to be scheduled" in waits(api, "w0")
    api.remove("pods", "default", "others")
    world.settle()
    assert {world.phases()[f"w{index}"] for index in range(4)} == {"Running"}


def test_without_the_feature_gate_the_scheduling_group_is_dropped(api: FakeApi):
    spec = {"containers": [{"name": "a"}], "schedulingGroup": {"podGroupName": "g"}}
    one = api.create("pods", "default", {"kind": "Pod", "metadata": {"name": "p"}, "spec": spec})
    assert "schedulingGroup" not in one["spec"]


# Kubelets and machines.


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ("missing", "not found"),
        ("denied", "401 Unauthorized"),
        ("forbidden", "403 Forbidden"),
        ("timeout", "i/o timeout"),
    ],
)
def test_an_image_that_cannot_be_pulled_keeps_a_pod_waiting(
    api: FakeApi, world, outcome: str, said: str
):
    world.images["img"] = outcome
    mpijob(api)
    world.step()
    world.step()
    world.settle()
    for one in world.workers("j"):
        state = one["status"]["containerStatuses"][0]["state"]["waiting"]
        assert state["reason"] == "ImagePullBackOff"
        assert said in state["message"]
        assert one["status"]["phase"] == "Pending"
    failed = [one["message"] for one in api.all("Event") if one["reason"] == "Failed"]
    assert failed
    assert all(said in one and one.startswith('Failed to pull image "img": ') for one in failed)


def test_a_slow_pull_takes_its_time(api: FakeApi, world):
    world.images["img"] = 90.0
    mpijob(api)
    world.settle()
    api.now += 80
    world.settle()
    assert set(world.phases().values()) == {"Pending"}
    api.now += 10
    world.settle()
    assert set(world.phases().values()) == {"Running"}


def test_a_launcher_waits_for_its_workers_and_gives_up_naming_them(api: FakeApi, world):
    words = ["sh", "-c", "...", "wait-for-workers", "j", "2", "j.default.svc", "600"]
    init = {"name": "wait-for-workers", "image": "img", "command": words}
    world.sshd = False
    mpijob(api, launcher={"initContainers": [init]})
    world.settle()
    launcher = next(one for name, one in _pods(api) if "launcher" in name)
    assert launcher["status"]["phase"] == "Pending"
    assert "running" in launcher["status"]["initContainerStatuses"][0]["state"]
    api.now += 601
    world.settle()
    found = [one for name, one in _pods(api) if "launcher" in name]
    state = found[0]["status"]["initContainerStatuses"][0]["state"]["terminated"]
    assert state["message"] == "not ready after 600 s: j-worker-0 j-worker-1\n"
    assert found[0]["status"]["phase"] == "Failed"


def test_on_a_lost_machine_nothing_ends_and_a_removed_one_takes_its_pods_along(api: FakeApi, world):
    mpijob(api, worker={"affinity": on("node-1")})
    world.settle()
    world.lose("node-1")
    api.remove("pods", "default", "j-worker-0")
    world.settle()
    assert "deletionTimestamp" in api.find("Pod", "j-worker-0")["metadata"]
    ready = condition(api.find("Node", "node-1")["status"], "Ready")
    assert (ready["status"], ready["reason"]) == ("Unknown", "NodeStatusUnknown")
    world.restore("node-1")
    world.settle()
    assert where(world) == ["node-1", "node-1"]
    world.remove_node("node-1")
    world.settle()
    assert where(world) == [None, None]
    assert "2 node(s) didn't satisfy plugin(s) [NodeAffinity]" in waits(api, "j-worker-0")


def test_a_preempted_pod_says_by_whom(api: FakeApi, world):
    world.pod("p", "node-0")
    world.settle()
    world.keeps_terminating = True
    world.preempt("p")
    reasons = {
        one["type"]: one["reason"]
        for one in api.find("Pod", "p")["status"]["conditions"]
        if "reason" in one
    }
    assert reasons["DisruptionTarget"] == "PreemptionByScheduler"


# Kueue.


def test_kueue_suspends_admits_and_evicts_with_the_templates_it_was_given(api: FakeApi):
    world = FakeCluster(api, kueue=True)
    world.node("node-0", labels={"flavor": "a"})
    world.node("node-1", labels={"flavor": "b"})
    mpijob(api, labels={QUEUE: "q"}, meta={"annotations": {"mine": "1"}})
    world.settle()
    assert world.phases() == {}
    workload = api.all("Workload.kueue.x-k8s.io")[0]
    assert condition(workload["status"], "QuotaReserved")["status"] == "False"
    world.kueue.admit("j", selector={"flavor": "b"})
    world.settle()
    assert where(world) == ["node-1", "node-1"]
    with api.edit("MPIJob", "j") as job:
        meta = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["metadata"]
        meta["annotations"]["arena-topo.io/placement"] = "node-1/0"
    world.kueue.evict("j")
    world.settle()
    assert world.phases() == {}
    template = api.find("MPIJob", "j")["spec"]["mpiReplicaSpecs"]["Worker"]["template"]
    assert template["metadata"]["annotations"] == {"mine": "1"}
    assert "nodeSelector" not in template["spec"]
    assert condition(api.all("Workload.kueue.x-k8s.io")[0]["status"], "Evicted")["status"] == "True"
    # Whoever resumes it in Kueue's stead is undone.
    suspend(api, on=False)
    world.settle()
    assert api.find("MPIJob", "j")["spec"]["runPolicy"]["suspend"] is True
    assert world.phases() == {}


def test_kueue_names_a_workload_after_its_job_and_a_hash(api: FakeApi):
    world = FakeCluster(api, kueue=True)
    names = []
    for long in ("j", "j", "k" * 250):
        mpijob(api, long, labels={QUEUE: "q"})
        world.settle()
        (made,) = api.all("Workload.kueue.x-k8s.io")
        names.append(made["metadata"]["name"])
        api.remove("mpijobs", "default", long)
        world.settle()
    assert re.fullmatch(r"mpijob-j-[0-9a-f]{5}", names[0])
    assert names[0] != names[1]
    assert len(names[2]) == 253


def test_the_world_lives_in_a_thread_as_it_does_by_steps(api: FakeApi, world):
    api.now = 0.0
    with world.running():
        mpijob(api, workers=3)
        while "Running" not in conditions(api):
            with api.lock:
                api.lock.wait(0.01)
        api.remove("mpijobs", "default", "j")
        while world.phases():
            with api.lock:
                api.lock.wait(0.01)
    with pytest.raises(Refused):
        api.get("mpijobs", "default", "j")


def test_another_launcher_starts_once_the_one_before_has_ended(api: FakeApi, world: FakeCluster):
    mpijob(api)
    world.settle()

    def launchers() -> list[str]:
        return sorted(name for name in world.phases() if "-launcher-" in name)

    [first] = launchers()
    world.keeps_terminating = True
    with api.lock:
        api.remove("pods", "default", first)
    world.settle()
    assert launchers() == [first], "its Job says podReplacementPolicy: Failed"
    world.keeps_terminating = False
    world.settle()
    [second] = launchers()
    assert second != first
