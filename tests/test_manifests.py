"""A job and its placement -> objects: what they say and promise, and how they are printed."""

from __future__ import annotations

import hashlib
import json
import math
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from cube_mesh import nvlink, sockets
from hypothesis import example, given, settings
from hypothesis import strategies as st
from replacing import replace

from arena_topo.errors import ArenaError, InvalidJob
from arena_topo.job import (
    Claim,
    CleanPodPolicy,
    ConfigFile,
    Device,
    Duration,
    EnvVar,
    HostPath,
    KeyValue,
    MPIJob,
    PodShape,
    Quantity,
    SyncMode,
    Toleration,
)
from arena_topo.manifests import HCAS, Binding, Guarantee, Mechanisms, PlacementForecast, Plan
from arena_topo.manifests.annotations import parse_map, placement_map, recorded_placement
from arena_topo.manifests.binding import bind
from arena_topo.manifests.cause import in_words
from arena_topo.manifests.pins import with_pins
from arena_topo.manifests.render import build_plan, check_expressible
from arena_topo.manifests.serialize import manifests_json, manifests_yaml
from arena_topo.manifests.versions import ApiVersion
from arena_topo.names import is_subdomain
from arena_topo.solver import Assignment, Placement, Proof
from arena_topo.topology import (
    GPU,
    NIC,
    Cluster,
    Link,
    LinkKind,
    Machine,
    Node,
    NodeName,
    Taint,
    flat,
    gpu_set,
)

GOLDENS = Path(__file__).parent / "manifests"
WRITE = os.environ.get("ARENA_TOPO_WRITE_GOLDENS") == "1"
ALL = tuple(ApiVersion)
OPERATORS = (ApiVersion.V1, ApiVersion.V2BETA1)
V2BETA1, V1, V1ALPHA1 = ApiVersion.V2BETA1, ApiVersion.V1, ApiVersion.V1ALPHA1


# The values that the tests are made of


def a_job(**said: Any) -> MPIJob:
    plain = {
        "name": "mpi-dist",
        "gpus": 2,
        "workers": 2,
        "image": "horovod:0.20",
        "command": "mpirun python train.py",
    }
    return MPIJob(**(plain | said))


def a_topology_job(**said: Any) -> MPIJob:
    return a_job(**({"gang": True, "gputopology": True} | said))


def a_node(name: str, gpus: int = 8, **said: Any) -> Node:
    machine = Machine(
        name=name, gpus=tuple(GPU(index=index) for index in range(gpus)), links=flat(gpus)
    )
    return Node(name=NodeName(name), machine=machine, free=machine.everything, **said)


def a_railed_node(name: str, **said: Any) -> Node:
    """A node with four GPUs and two NICs, each near to two of them."""
    near, far = Link(kind=LinkKind.PIX), Link(kind=LinkKind.SYS)
    nics = (
        NIC(name="mlx5_0", attachment=(near, near, far, far)),
        NIC(name="mlx5_1", attachment=(far, far, near, near)),
    )
    plain = a_node(name, 4, **said)
    return replace(plain, machine=replace(plain.machine, nics=nics))


def a_driven_node(name: str, gpus: int = 8, **said: Any) -> Node:
    """A node whose GPUs are published by a DRA driver, with uuids that say whose they are."""
    uuids = [
        f"GPU-{hashlib.sha256(f'{name}/{one}'.encode()).hexdigest()[:8]}" for one in range(gpus)
    ]
    machine = Machine(
        name=name,
        gpus=tuple(
            GPU(index=index, uuid=f"{uuid}-0000-0000-0000-000000000000")
            for index, uuid in enumerate(uuids)
        ),
        links=flat(gpus),
    )
    plain = {"driver": "gpu.nvidia.com", "resource": "gpu.nvidia.com"}
    return Node(name=NodeName(name), machine=machine, free=machine.everything, **(plain | said))


def a_cluster(*nodes: Node, **said: Any) -> Cluster:
    return Cluster(nodes=nodes, **said)


def a_placement(*workers: tuple[str, tuple[int, ...]], **said: Any) -> Placement:
    rates = {"bandwidth": nvlink(80.0), "inside": nvlink(80.0), "worst": nvlink(18.0)}
    plain = rates | {"tier": "node"}
    rate = said.get("bandwidth", rates["bandwidth"])
    return Placement(
        assignments=tuple(
            Assignment(worker=index, node=NodeName(node), gpus=gpus)
            for index, (node, gpus) in enumerate(workers)
        ),
        proof=Proof(optimal=True, bound=math.inf if rate is None else rate.point),
        **(plain | said),
    )


def planned(job: MPIJob, api: ApiVersion = V2BETA1, **said: Any) -> Plan:
    plain: dict[str, Any] = {"namespace": "team-a", "owner": "USER", "files": {}}
    return build_plan(job, api=api, **(plain | said))


def templates(mpijob: dict[str, Any]) -> dict[str, Any]:
    """The pod templates by role; v1alpha1 has one for both."""
    if "template" in mpijob["spec"]:
        return {"both": mpijob["spec"]["template"]}
    specs = mpijob["spec"]["mpiReplicaSpecs"]
    return {"worker": specs["Worker"]["template"], "launcher": specs["Launcher"]["template"]}


def worker_of(made: Plan) -> dict[str, Any]:
    found = templates(made.objects[0])
    return found.get("worker") or found["both"]


def environment(template: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one.get("value", one) for one in template["spec"]["containers"][0]["env"]}


def of_kind(made: Plan, kind: str) -> list[dict[str, Any]]:
    return [one for one in made.objects if one["kind"] == kind]


# Whole texts

PAIR = a_placement(("gpu-1", (0, 3)), ("gpu-1", (1, 2)))
SLOW = {"bandwidth": sockets(), "inside": sockets(), "worst": sockets()}
APART = a_placement(("gpu-1", (0, 3)), ("gpu-2", (0, 3)), **SLOW, tier="beyond")
WHOLE = a_placement(("gpu-1", (0, 3, 2, 1)), ("gpu-2", (0, 3, 2, 1)), **SLOW, tier="beyond")
BOTH = a_cluster(a_node("gpu-1"), a_node("gpu-2"))
SMALL = a_cluster(a_node("gpu-1", 4), a_node("gpu-2", 4))
OURS = a_cluster(a_node("gpu-1", dedicated=True), a_node("gpu-2", dedicated=True))
CLAIMED = a_cluster(a_driven_node("gpu-1"), a_driven_node("gpu-2"))
ACROSS = a_placement(("gpu-1", (0, 3)), ("gpu-1", (1, 2)), ("gpu-2", (4, 7)), **SLOW, tier="beyond")
THREE = a_topology_job(workers=3)
RAILS = a_cluster(*(a_railed_node(name) for name in ("gpu-1", "gpu-2")))
POLICIES = Mechanisms(admission=True, claims=True, classes={"gpu.nvidia.com": "gpu.nvidia.com"})
SETTINGS = ConfigFile(source="hosts.json", target="/etc/config/hosts.json")

SCENES: dict[str, tuple[MPIJob, dict[str, Any], tuple[ApiVersion, ...]]] = {
    "plain": (a_job(), {}, ALL),
    "topology-one-node": (a_topology_job(), {"placement": PAIR, "cluster": BOTH}, ALL),
    "topology-two-nodes": (a_topology_job(), {"placement": APART, "cluster": BOTH}, ALL),
    "topology-whole-nodes": (a_topology_job(gpus=4), {"placement": WHOLE, "cluster": SMALL}, ALL),
    "binding-admission": (
        THREE,
        {"placement": ACROSS, "cluster": OURS, "mechanisms": POLICIES},
        OPERATORS,
    ),
    "binding-gates": (
        THREE,
        {
            "placement": ACROSS,
            "cluster": BOTH,
            "mechanisms": Mechanisms(admission=False, patches=True),
        },
        OPERATORS,
    ),
    "binding-claims": (
        THREE,
        {"placement": ACROSS, "cluster": CLAIMED, "mechanisms": POLICIES},
        OPERATORS,
    ),
    "topology-waiting": (a_topology_job(), {"waiting": "no free quad"}, OPERATORS),
    "topology-shared": (
        a_topology_job(
            pod_shape=PodShape.SHARED,
            ssh_auth_mount_path="/home/me/.ssh",
            running_timeout=Duration(5400),
        ),
        {"waiting": "no free quad"},
        (V2BETA1,),
    ),
    "sync": (
        a_job(
            sync_mode=SyncMode.GIT,
            sync_source="https://git.example/team/models.git",
            sync_image="git-sync:v3.3.5",
            cpu=Quantity(text="4"),
            memory=Quantity(text="8Gi"),
        ),
        {},
        (V2BETA1,),
    ),
    "tensorboard": (
        a_job(
            tensorboard=True,
            tensorboard_image="tensorflow:2.19",
            toleration=(Toleration.parse("all"),),
            image_pull_secret=("pull",),
        ),
        {},
        (V1ALPHA1,),
    ),
    "config-file": (
        a_job(config_file=(SETTINGS,), data=(Claim(name="imagenet", path="/data"),)),
        {"files": {SETTINGS: '{"a": 1}\n'}},
        (V1,),
    ),
    "nccl-hca": (
        a_topology_job(gpus=4, rdma=True, nccl_hca=True),
        {"placement": WHOLE, "cluster": RAILS},
        ALL,
    ),
    "nccl-debug": (a_job(nccl_debug=True), {}, (V2BETA1,)),
    "rdma": (
        a_job(
            rdma=True,
            host_network=True,
            data_dir=(HostPath(host="/mnt/a", container="/a"),),
            mounts_on_launcher=True,
            selector=(KeyValue(key="pool", value="a100"),),
            priority="high",
            scheduler="volcano",
            queue=True,
        ),
        {},
        (V2BETA1,),
    ),
}


@pytest.mark.parametrize(
    ("scene", "api"),
    [(scene, api) for scene, (_, _, versions) in SCENES.items() for api in versions],
)
def test_the_printed_objects_are_the_golden_ones(scene: str, api: ApiVersion):
    job, said, _ = SCENES[scene]
    printed = manifests_yaml(planned(job, api, **said).objects)
    golden = GOLDENS / f"{scene}.{api}.yaml"
    if WRITE:
        golden.write_text(printed, encoding="utf-8")
    assert golden.is_file(), f"{golden} is missing: read the output, then write it"
    assert printed == golden.read_text(encoding="utf-8")


def test_every_golden_file_belongs_to_a_scene():
    expected = {
        f"{scene}.{api}.yaml" for scene, (_, _, versions) in SCENES.items() for api in versions
    }
    # What an administrator applies has a test of its own.
    found = {one.name for one in GOLDENS.iterdir() if not one.name.startswith("install")}
    assert found == expected


# The NICs that NCCL is to use

RAILED = a_cluster(*(a_railed_node(name, dedicated=True) for name in ("gpu-1", "gpu-2")))


@pytest.mark.parametrize(
    ("workers", "named"),
    [
        # Pods of one node name the NICs of all GPUs that the job has there.
        ((("gpu-1", (0,)), ("gpu-1", (2,)), ("gpu-2", (3,)), ("gpu-2", (1,))), "=mlx5_0,mlx5_1"),
        ((("gpu-1", (0,)), ("gpu-1", (1,)), ("gpu-2", (0,)), ("gpu-2", (1,))), "=mlx5_0"),
        ((("gpu-1", (0,)), ("gpu-1", (1,)), ("gpu-2", (2,)), ("gpu-2", (3,))), None),
    ],
)
def test_workers_name_nics_where_the_same_are_nearest_on_each_node(
    workers: tuple[tuple[str, tuple[int, ...]], ...], named: str | None
):
    made = planned(
        a_topology_job(workers=4, gpus=1, rdma=True, nccl_hca=True),
        placement=a_placement(*workers, **SLOW, tier="beyond"),
        cluster=RAILED,
        mechanisms=POLICIES,
    )
    template = worker_of(made)
    assert template["metadata"]["annotations"].get(HCAS) == named
    assert ("NCCL_IB_HCA" in environment(template)) == (named is not None)


# What arena writes, retyped from its output for the same command line

ARENA_PLAIN = """
apiVersion: kubeflow.org/v1alpha1
kind: MPIJob
metadata:
  name: mpi-dist
  labels: &labels {app: mpijob, chart: mpijob-0.28.0, release: mpi-dist, heritage: Helm,
    createdBy: MPIJob, arena.kubeflow.org/uid: 2e40ad879e955201df4dedbf8d479a12}
  annotations: &notes {arena.kubeflow.org/username: USER, requestGPUsOfJobOwner: "4"}
spec:
  cleanPodPolicy: All
  launcherResources: {}
  backoffLimit: 0
  replicas: 2
  mountsOnLauncher: false
  template:
    metadata: {name: mpi-dist, labels: *labels, annotations: *notes}
    spec:
      restartPolicy: Never
      volumes: [{name: dshm, emptyDir: {medium: Memory, sizeLimit: 2Gi}}]
      containers:
      - name: mpi
        image: horovod:0.20
        imagePullPolicy: Always
        workingDir: /root
        command: [sh, -c, mpirun python train.py]
        resources: {requests: {nvidia.com/gpu: "2"}, limits: {nvidia.com/gpu: "2"}}
        env: [{name: gpus, value: "2"}, {name: workers, value: "2"}]
        volumeMounts: [{mountPath: /dev/shm, name: dshm}]
"""


def without_namespace(mpijob: dict[str, Any]) -> dict[str, Any]:
    metadata = {key: value for key, value in mpijob["metadata"].items() if key != "namespace"}
    return mpijob | {"metadata": metadata}


def test_a_plain_job_on_v1alpha1_is_arenas_own():
    made = planned(a_job(), V1ALPHA1)
    assert without_namespace(made.objects[0]) == yaml.safe_load(ARENA_PLAIN)


def test_gang_and_topology_add_to_v1alpha1_what_arena_adds_and_keep_shared_memory():
    expected = yaml.safe_load(ARENA_PLAIN)
    template = expected["spec"]["template"]
    template["metadata"]["labels"] = template["metadata"]["labels"] | {
        "pod-group.scheduling.sigs.k8s.io/name": "mpijob-mpi-dist",
        "pod-group.scheduling.sigs.k8s.io/min-available": "2",
        "gpu-topology": "mpi-dist",
        "gpu-topology-replica": "2",
    }
    template["spec"] |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    gpus = {"aliyun.com/gpu": "2"}
    template["spec"]["containers"][0]["resources"] = {"requests": gpus, "limits": gpus}
    made = planned(a_topology_job(), V1ALPHA1)
    assert without_namespace(made.objects[0]) == expected


def test_the_config_map_is_the_one_that_arena_deletes_jobs_by():
    (kept,) = of_kind(planned(a_job(), V1ALPHA1), "ConfigMap")
    assert kept["metadata"]["name"] == "mpi-dist-mpijob"
    assert kept["metadata"]["labels"] == {"createdBy": "arena"}
    assert kept["data"]["mpijob"] == "0.28.0"
    assert kept["data"]["app"] == "mpijob.kubeflow.org/mpi-dist"
    assert yaml.safe_load(kept["data"]["values"])["command"] == "mpirun python train.py"


# What every job says


@pytest.mark.parametrize("api", ALL)
def test_labels_and_annotations_of_the_user_reach_job_and_pods_beside_ours(
    api: ApiVersion,
):
    job = a_topology_job(
        label=(KeyValue(key="team", value="nlp"), KeyValue(key="app", value="mpijob")),
        annotation=(
            KeyValue(key="note", value="hi"),
            KeyValue(key="requestGPUsOfJobOwner", value="4"),
        ),
    )
    mpijob = planned(job, api).objects[0]
    for one in (mpijob, *templates(mpijob).values()):
        assert one["metadata"]["labels"]["team"] == "nlp"
        assert one["metadata"]["labels"]["app"] == "mpijob"
        assert one["metadata"]["annotations"]["note"] == "hi"
        assert one["metadata"]["annotations"]["requestGPUsOfJobOwner"] == "4"


OURS = [
    *("app", "createdBy", "release", "heritage", "chart", "arena.kubeflow.org/uid", "modelName"),
    *("gpu-topology", "gpu-topology-replica", "pod-group.scheduling.sigs.k8s.io/name"),
]
NOTES = [
    *("arena.kubeflow.org/username", "requestGPUsOfJobOwner", "scheduling.x-k8s.io/suspend"),
    "modelSource",
]


@pytest.mark.parametrize(
    ("flag", "key"), [*(("label", key) for key in OURS), *(("annotation", key) for key in NOTES)]
)
@pytest.mark.parametrize("api", ALL)
def test_what_would_replace_a_label_or_an_annotation_of_ours_is_refused_and_not_dropped(
    flag: str, key: str, api: ApiVersion
):
    more = {"model_name": "m", "model_source": "s3://m", "gang": True, "queue": True}
    pair = KeyValue(key=key, value="mine")
    with pytest.raises(InvalidJob) as refused:
        planned(a_topology_job(**more, **{flag: (pair,)}), api)
    assert refused.value.message == f"--{flag}: {key} is written by arena-topo alone"
    assert refused.value.why
    assert refused.value.hint == "leave it out, or use a name of your own"


@pytest.mark.parametrize("whose", ["", "USER", "somebody"])
def test_annotations_cannot_forge_the_owner_of_a_job(whose: str):
    pair = KeyValue(key="arena.kubeflow.org/username", value=whose)
    with pytest.raises(InvalidJob, match="username is written by arena-topo alone"):
        planned(a_job(annotation=(pair,)), V1)


def test_a_label_that_only_other_jobs_reserve_is_free_to_use():
    for key in ("modelName", "gpu-topology", "pod-group.scheduling.sigs.k8s.io/name"):
        pair = KeyValue(key=key, value="mine")
        assert planned(a_job(label=(pair,)), V1).objects[0]["metadata"]["labels"][key] == "mine"


@pytest.mark.parametrize("key", ["arena-topo.io/state", "topology.kubernetes.io/gpu-group"])
def test_annotations_that_placements_are_read_from_cannot_be_forged(key: str):
    with pytest.raises(InvalidJob, match=key):
        check_expressible(a_job(annotation=(KeyValue(key=key, value="0"),)), V2BETA1)


@pytest.mark.parametrize("api", OPERATORS)
def test_only_workers_carry_gang_labels_gpus_and_data(api: ApiVersion):
    job = a_topology_job(
        data=(Claim(name="imagenet", path="/data"),),
        cpu=Quantity(text="4"),
        device=(Device.parse("amd.com/gpu=1"),),
    )
    found = templates(planned(job, api).objects[0])
    worker, launcher = found["worker"], found["launcher"]
    assert worker["metadata"]["labels"]["gpu-topology"] == "mpi-dist"
    assert not [key for key in launcher["metadata"]["labels"] if "topology" in key or "/n" in key]
    asked = worker["spec"]["containers"][0]["resources"]
    assert asked["requests"] == asked["limits"]
    assert asked["limits"] == {"nvidia.com/gpu": "2", "amd.com/gpu": "1", "cpu": "4"}
    assert launcher["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "4"}
    assert [one["name"] for one in worker["spec"]["volumes"]] == [
        "training-claim-0",
        "dshm",
    ]
    assert "volumes" not in launcher["spec"]
    assert "command" not in worker["spec"]["containers"][0]


@pytest.mark.parametrize("api", OPERATORS)
def test_the_launcher_prefers_a_node_of_its_workers_by_a_label_that_only_workers_have(
    api: ApiVersion,
):
    found = templates(planned(a_topology_job(), api).objects[0])
    (term,) = found["launcher"]["spec"]["affinity"]["podAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    wanted = term["podAffinityTerm"]["labelSelector"]["matchLabels"].items()
    assert wanted <= found["worker"]["metadata"]["labels"].items()
    assert not wanted <= found["launcher"]["metadata"]["labels"].items()


@pytest.mark.parametrize("api", ALL)
@pytest.mark.parametrize("policy", CleanPodPolicy)
def test_the_clean_pod_policy_is_always_written(api: ApiVersion, policy: CleanPodPolicy):
    spec = planned(a_job(clean_task_policy=policy), api).objects[0]["spec"]
    assert spec.get("runPolicy", spec)["cleanPodPolicy"] == policy.value


@pytest.mark.parametrize("api", OPERATORS)
def test_host_network_is_never_forced_where_workers_run_sshd(api: ApiVersion):
    made = planned(a_topology_job(), api, placement=PAIR, cluster=BOTH)
    assert "hostNetwork" not in manifests_yaml(made.objects)


@pytest.mark.parametrize("api", ALL)
def test_host_network_is_left_out_for_pods_with_a_network_card_of_their_own(api: ApiVersion):
    alone = a_job(host_network=True)
    card = a_job(host_network=True, annotation=(KeyValue(key="k8s.aliyun.com/eni", value="true"),))
    assert worker_of(planned(alone, api))["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert "hostNetwork" not in worker_of(planned(card, api))["spec"]


@pytest.mark.parametrize("api", ALL)
def test_workers_without_gpus_see_no_gpus_unless_they_share_one(api: ApiVersion):
    mine = (EnvVar(key="NVIDIA_VISIBLE_DEVICES", value="all"),)
    shared = a_job(gpus=0, device=(Device.parse("aliyun.com/gpu-mem=4"),))
    counted = a_job(gpus=0, label=(KeyValue(key="aliyun.com/gpu-count", value="1"),))
    void = environment(worker_of(planned(a_job(gpus=0, env=mine), api)))
    assert void["NVIDIA_VISIBLE_DEVICES"] == "void"
    for job in (shared, counted, a_job()):
        assert "NVIDIA_VISIBLE_DEVICES" not in environment(worker_of(planned(job, api)))


@pytest.mark.parametrize("api", ALL)
def test_the_environment_is_sorted_and_says_how_many_workers_and_gpus_there_really_are(
    api: ApiVersion,
):
    job = a_job(
        env=(
            EnvVar(key="z", value="1"),
            EnvVar(key="workers", value="9"),
            EnvVar(key="A", value="2"),
        )
    )
    for template in templates(planned(job, api).objects[0]).values():
        said = environment(template)
        assert list(said) == sorted(said)
        assert (said["workers"], said["gpus"], said["z"]) == ("2", "2", "1")


def test_open_mpi_5_gets_the_host_file_unless_the_user_sets_another():
    key = "PRTE_MCA_prte_default_hostfile"
    mine = (EnvVar(key=key, value="/mine"),)
    for job, expected in ((a_job(), "/etc/mpi/hostfile"), (a_job(env=mine), "/mine")):
        assert environment(templates(planned(job).objects[0])["launcher"])[key] == expected
    assert key not in environment(worker_of(planned(a_job())))


@pytest.mark.parametrize("api", ALL)
def test_every_object_names_its_namespace_and_no_owner(api: ApiVersion):
    job = a_job(tensorboard=True, tensorboard_image="tb", config_file=(SETTINGS,))
    made = planned(job, api, files={SETTINGS: "x"})
    assert [one["kind"] for one in made.objects] == [
        "MPIJob",
        "ConfigMap",
        "ConfigMap",
        "Service",
        "Deployment",
    ]
    for one in made.objects:
        assert one["metadata"]["namespace"] == "team-a"
        assert "ownerReferences" not in one["metadata"]


@pytest.mark.parametrize("api", OPERATORS)
def test_a_queued_job_starts_suspended_for_both_kinds_of_queue(api: ApiVersion):
    mpijob = planned(a_job(queue=True), api).objects[0]
    assert mpijob["spec"]["runPolicy"]["suspend"] is True
    assert mpijob["metadata"]["annotations"]["scheduling.x-k8s.io/suspend"] == "true"


def test_the_model_is_named_on_the_job():
    job = a_job(model_name="bert", model_source="s3://models/bert")
    metadata = planned(job).objects[0]["metadata"]
    assert metadata["labels"]["modelName"] == "bert"
    assert metadata["annotations"]["modelSource"] == "s3://models/bert"


# What is mounted


def test_config_files_of_one_folder_share_a_config_map_named_after_the_folder():
    other = ConfigFile(source="b", target="/etc/config/b.txt")
    third = ConfigFile(source="c", target="/opt/c")
    job = a_job(config_file=(SETTINGS, other, third, SETTINGS))
    made = planned(job, files={SETTINGS: "1", other: "2", third: "3"})
    _, config, opt = of_kind(made, "ConfigMap")
    assert config["metadata"]["name"] == "mpi-dist-a9cbad1b8719778"
    assert config["data"] == {"hosts.json": "1", "b.txt": "2"}
    assert opt["data"] == {"c": "3"}
    for template in templates(made.objects[0]).values():
        mounts = template["spec"]["containers"][0]["volumeMounts"]
        assert {"mountPath": "/etc/config", "name": "a9cbad1b8719778"} in mounts


def test_a_config_file_without_a_target_has_the_same_path_as_here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    one = ConfigFile(source="here.json")
    made = planned(a_job(config_file=(one,)), files={one: "1"})
    mounts = worker_of(made)["spec"]["containers"][0]["volumeMounts"]
    assert mounts[0]["mountPath"] == str(tmp_path)


@pytest.mark.parametrize(
    "said",
    [
        {
            "data": (Claim(name="a1", path="/x"),),
            "data_dir": (HostPath(host="/h", container="/x/"),),
        },
        {"data": (Claim(name="a1", path="/dev/shm"),)},
    ],
)
def test_two_things_at_one_path_are_refused(said: dict[str, Any]):
    with pytest.raises(InvalidJob, match="two things would be mounted at"):
        planned(a_job(**said))


def test_two_config_files_at_one_path_are_refused():
    other = ConfigFile(source="b", target=SETTINGS.target)
    with pytest.raises(InvalidJob, match="two files would be put at /etc/config"):
        planned(a_job(config_file=(SETTINGS, other)), files={SETTINGS: "1", other: "2"})


@pytest.mark.parametrize(
    "claims",
    [("training-claim-1:/a", "data.v1:/b"), ("dshm:/d", "training-data-0:/e", "code-sync:/f")],
)
def test_no_two_volumes_of_a_pod_have_one_name(claims: tuple[str, ...]):
    job = a_job(data=claims, data_dir=(HostPath(host="/h", container="/h"),))
    worker = worker_of(planned(job))["spec"]
    names = [one["name"] for one in worker["volumes"]]
    assert len(names) == len(set(names))
    claimed = {
        one["name"]: one["persistentVolumeClaim"]["claimName"]
        for one in worker["volumes"]
        if "persistentVolumeClaim" in one
    }
    mounts = worker["containers"][0]["volumeMounts"]
    placed = {
        f"{claimed[one['name']]}:{one['mountPath']}" for one in mounts if one["name"] in claimed
    }
    assert placed == set(claims)


def test_tensorboard_follows_the_logs_to_their_node_only_if_they_are_on_one():
    board = {"tensorboard": True, "tensorboard_image": "tb", "logdir": "/data/logs"}
    on_claim = a_job(data=(Claim(name="imagenet", path="/data"),), **board)
    beside = a_job(data=(Claim(name="imagenet", path="/dat"),), **board)
    for job, follows in ((on_claim, False), (beside, True)):
        (deployment,) = of_kind(planned(job), "Deployment")
        pod = deployment["spec"]["template"]["spec"]
        assert ("affinity" in pod) == follows
        assert len(pod["volumes"]) == 1
        assert ("persistentVolumeClaim" in pod["volumes"][0]) == (not follows)


# What a version cannot express


def test_a_name_that_is_too_long_for_its_last_worker_is_refused_with_the_longest_that_fits():
    name = "a" * 49
    check_expressible(a_job(name=name, workers=10**6), V2BETA1)
    with pytest.raises(InvalidJob, match="too long for 10000001 workers") as caught:
        check_expressible(a_job(name=name, workers=10**7 + 1), V2BETA1)
    assert caught.value.hint == "use a name of at most 47 characters"


def test_a_name_with_a_leading_digit_is_refused_only_where_a_service_gets_it():
    job = a_job(name="2fast")
    check_expressible(job, V1ALPHA1)
    check_expressible(job, V1)
    with pytest.raises(InvalidJob, match="must begin with a letter") as caught:
        check_expressible(job, V2BETA1)
    assert caught.value.hint == "use a name such as job-2fast"


@pytest.mark.parametrize(
    ("said", "flag"),
    [
        ({"sync_mode": SyncMode.GIT, "sync_source": "x"}, "--sync-image"),
        ({"tensorboard": True}, "--tensorboard-image"),
    ],
)
def test_a_missing_image_is_refused_with_its_flag(said: dict[str, Any], flag: str):
    with pytest.raises(InvalidJob, match=flag):
        planned(a_job(**said))


def test_text_that_no_manifest_can_hold_is_refused_by_flag():
    with pytest.raises(InvalidJob, match="--env is invalid"):
        planned(a_job(env=(EnvVar(key="A", value=os.fsdecode(b"\xff")),)))


@pytest.mark.parametrize("name", ["my settings.json", "..data", "ä.conf", "n" * 254])
def test_a_config_file_that_no_config_map_can_name_is_refused_with_the_way_out(name: str):
    file = ConfigFile(source=f"/tmp/{name}")
    with pytest.raises(InvalidJob, match="no file of --config-file can be called") as caught:
        planned(a_job(config_file=(file,)), files={file: "x"})
    assert caught.value.hint == f"give it another name there: /tmp/{name}:/tmp/NAME"


def test_nodes_that_name_their_gpus_differently_cannot_share_a_job():
    cluster = a_cluster(a_node("gpu-1"), a_node("gpu-2", resource="aliyun.com/gpu"))
    with pytest.raises(ArenaError, match="under different names"):
        planned(a_topology_job(), placement=APART, cluster=cluster)


@pytest.mark.parametrize("api", ALL)
def test_workers_ask_for_the_resource_that_the_chosen_nodes_offer(api: ApiVersion):
    cluster = a_cluster(a_node("gpu-1", resource="aliyun.com/gpu"), a_node("gpu-2"))
    made = planned(a_topology_job(), api, placement=PAIR, cluster=cluster)
    limits = worker_of(made)["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"aliyun.com/gpu": "2"}


# How firmly a placement holds


def bound(placement: Placement, *nodes: Node, api: ApiVersion = V2BETA1) -> tuple[str, bool]:
    found = bind(a_topology_job(), placement, a_cluster(*nodes), api)
    assert (found.why is None) == (found.guarantee is Guarantee.GPUS)
    return found.guarantee.value, found.inject


def test_workers_that_take_whole_nodes_get_exactly_their_gpus():
    assert bound(WHOLE, a_node("gpu-1", 4), a_node("gpu-2", 4)) == ("gpus", True)


def test_whole_counts_the_gpus_that_the_kubelet_can_still_give():
    healthy = gpu_set((0, 3))
    both = [a_node(name, 4, allocatable=healthy) for name in ("gpu-1", "gpu-2")]
    assert bound(APART, *both) == ("gpus", True)
    assert bound(APART, a_node("gpu-1", 4), both[1])[0] == "node"


def test_whole_nodes_with_different_gpus_are_exact_but_not_injected():
    mixed = a_placement(("gpu-1", (0, 3)), ("gpu-2", (0, 1)))
    nodes = (
        a_node("gpu-1", 4, allocatable=gpu_set((0, 3))),
        a_node("gpu-2", 4, allocatable=gpu_set((0, 1))),
    )
    assert bound(mixed, *nodes) == ("gpus", False)


def test_part_of_a_node_is_injected_only_on_dedicated_nodes():
    kept = a_node("gpu-1", dedicated=True)
    assert bound(APART, kept, a_node("gpu-2", dedicated=True)) == ("gpus", True)
    assert bound(APART, kept, a_node("gpu-2")) == ("node", False)
    assert bound(APART, kept, a_node("gpu-2", dedicated=True, foreign=True)) == ("node", False)


def test_one_template_injects_equal_gpus_on_whole_and_dedicated_nodes():
    whole = a_node("gpu-1", 4, allocatable=gpu_set((0, 3)))
    same = a_placement(("gpu-1", (0, 3)), ("gpu-2", (0, 3)))
    assert bound(same, whole, a_node("gpu-2", 4, dedicated=True)) == ("gpus", True)
    assert bound(same, whole, a_node("gpu-2", 4)) == ("node", False)


def test_v1alpha1_never_injects_because_the_launcher_would_see_the_gpus_too():
    kept = (a_node("gpu-1", dedicated=True), a_node("gpu-2", dedicated=True))
    assert bound(APART, *kept, api=V1ALPHA1) == ("node", False)
    assert bound(WHOLE, a_node("gpu-1", 4), a_node("gpu-2", 4), api=V1ALPHA1) == ("gpus", False)


def test_several_workers_on_a_node_get_the_node_and_the_kubelet_picks_the_gpus():
    assert bound(PAIR, a_node("gpu-1", 4, dedicated=True)) == ("node", False)
    even = a_placement(*[(node, (gpu,)) for node in ("gpu-1", "gpu-2") for gpu in (0, 1)])
    assert bound(even, a_node("gpu-1"), a_node("gpu-2")) == ("node", False)


def test_unequal_numbers_of_workers_on_several_nodes_are_only_advice():
    uneven = a_placement(("gpu-1", (0,)), ("gpu-1", (1,)), ("gpu-2", (0,)))
    assert bound(uneven, a_node("gpu-1"), a_node("gpu-2")) == ("advisory", False)


def test_no_gpus_are_injected_on_an_opaque_node():
    opaque = a_placement(("gpu-1", ()), ("gpu-2", ()))
    kept = (a_node("gpu-1", dedicated=True), a_node("gpu-2", dedicated=True))
    assert bound(opaque, *kept) == ("node", False)


def test_one_template_cannot_name_gpus_that_differ_by_node():
    differ = a_placement(("gpu-1", (0, 3)), ("gpu-2", (1, 2)))
    kept = (a_node("gpu-1", dedicated=True), a_node("gpu-2", dedicated=True))
    assert bound(differ, *kept) == ("node", False)


def test_without_a_cluster_nothing_is_known_to_be_ours():
    found = bind(a_topology_job(), WHOLE, None, V2BETA1)
    assert (found.guarantee, found.inject) == (Guarantee.NODE, False)


# What pins the workers


def node_terms(template: dict[str, Any]) -> list[str]:
    affinity = template["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    names = []
    for term in terms:
        (field,) = term["matchFields"]
        assert (field["key"], field["operator"]) == ("metadata.name", "In")
        names += field["values"]
    return names


@pytest.mark.parametrize("api", ALL)
def test_workers_may_run_on_the_chosen_nodes_alone(api: ApiVersion):
    made = planned(a_topology_job(), api, placement=APART, cluster=BOTH)
    assert node_terms(worker_of(made)) == ["gpu-1", "gpu-2"]
    assert "nodeName" not in worker_of(made)["spec"]


@pytest.mark.parametrize("api", ALL)
def test_one_worker_on_each_of_several_nodes_is_counted_apart_from_the_launcher(api: ApiVersion):
    made = planned(a_topology_job(), api, placement=APART, cluster=BOTH)
    spec = worker_of(made)["spec"]
    (even,) = spec["topologySpreadConstraints"]
    assert (even["maxSkew"], even["topologyKey"]) == (1, "kubernetes.io/hostname")
    assert even["labelSelector"]["matchLabels"] == (
        {"mpi_job_name": "mpi-dist", "mpi_role_type": "worker"}
        if api is V1ALPHA1
        else {"gpu-topology": "mpi-dist"}
    )


@pytest.mark.parametrize("api", ALL)
def test_the_same_number_of_workers_on_several_nodes_is_spread_evenly(api: ApiVersion):
    even = a_placement(*[(node, (gpu,)) for node in ("gpu-1", "gpu-2") for gpu in (0, 1)])
    job = a_topology_job(gpus=1, workers=4)
    (spread,) = worker_of(planned(job, api, placement=even, cluster=BOTH))["spec"][
        "topologySpreadConstraints"
    ]
    assert spread["maxSkew"] == 1
    assert spread["whenUnsatisfiable"] == "DoNotSchedule"


@pytest.mark.parametrize("api", ALL)
def test_the_gpus_of_a_node_are_written_on_workers_that_share_it(api: ApiVersion):
    made = planned(a_topology_job(), api, placement=PAIR, cluster=BOTH)
    notes = worker_of(made)["metadata"]["annotations"]
    assert notes["topology.kubernetes.io/gpu-group"] == "0,1,2,3"
    assert notes["topology.kubernetes.io/gpu-visible"] == "0,1,2,3"
    assert notes["arena-topo.io/guarantee"] == "node"
    assert "NVIDIA_VISIBLE_DEVICES" not in environment(worker_of(made))


def test_a_worker_alone_on_its_node_sees_its_gpus_in_ring_order():
    made = planned(a_topology_job(gpus=4), placement=WHOLE, cluster=SMALL)
    notes = worker_of(made)["metadata"]["annotations"]
    assert notes["topology.kubernetes.io/gpu-group"] == "0,1,2,3"
    assert notes["topology.kubernetes.io/gpu-visible"] == "0,3,2,1"


def test_gpus_that_one_template_cannot_name_are_left_out_of_it():
    differ = a_placement(("gpu-1", (0, 3)), ("gpu-2", (1, 2)))
    made = planned(a_topology_job(), placement=differ, cluster=BOTH)
    assert not [key for key in worker_of(made)["metadata"]["annotations"] if "gpu-" in key]


@pytest.mark.parametrize("api", OPERATORS)
def test_injected_devices_come_from_the_annotation_and_only_to_workers(api: ApiVersion):
    mine = (EnvVar(key="NVIDIA_VISIBLE_DEVICES", value="all"),)
    job = a_topology_job(gpus=4, env=mine)
    made = planned(job, api, placement=WHOLE, cluster=SMALL)
    path = "metadata.annotations['topology.kubernetes.io/gpu-visible']"
    container = worker_of(made)["spec"]["containers"][0]
    injected = [one for one in container["env"] if one["name"] == "NVIDIA_VISIBLE_DEVICES"]
    # Of two variables of one name the last counts.
    assert injected[-1] == {
        "name": "NVIDIA_VISIBLE_DEVICES",
        "valueFrom": {"fieldRef": {"fieldPath": path}},
    }
    assert "fieldRef" not in json.dumps(templates(made.objects[0])["launcher"])


@pytest.mark.parametrize("api", ALL)
def test_pods_tolerate_only_the_taint_that_reserves_their_nodes(api: ApiVersion):
    """The launcher too: it is to run beside its workers."""
    taints = (Taint(key="arena-topo.io/topology"), Taint(key="other"))
    cluster = a_cluster(a_node("gpu-1", taints=taints), a_node("gpu-2"))
    job = a_topology_job(toleration=(Toleration.parse("a=b:NoExecute,Equal"),))
    made = planned(job, api, placement=PAIR, cluster=cluster)
    for template in templates(made.objects[0]).values():
        assert template["spec"]["tolerations"] == [
            {"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute"},
            {"key": "arena-topo.io/topology", "operator": "Exists", "effect": "NoSchedule"},
        ]


@pytest.mark.parametrize("api", ALL)
def test_pinning_changes_nothing_in_the_object_that_it_was_given(api: ApiVersion):
    mpijob = planned(a_topology_job(), api).objects[0]
    before = manifests_yaml([mpijob])
    with_pins(mpijob, PAIR, Binding(name="template", guarantee=Guarantee.NODE))
    assert manifests_yaml([mpijob]) == before


# What waits


@pytest.mark.parametrize("api", OPERATORS)
def test_a_job_that_must_wait_is_suspended_unpinned_and_says_why(api: ApiVersion):
    made = planned(a_topology_job(), api, placement=PAIR, cluster=BOTH, waiting="no free quad")
    mpijob = made.objects[0]
    assert mpijob["spec"]["runPolicy"]["suspend"] is True
    assert "affinity" not in worker_of(made)["spec"]
    assert recorded_placement(mpijob) == PlacementForecast(
        state="waiting", cause=in_words("no free quad")
    )
    assert made.forecast == recorded_placement(mpijob)


# What is promised


def test_separate_pods_of_one_node_get_what_tcp_carries_between_them():
    forecast = planned(a_topology_job(), placement=PAIR, cluster=BOTH).forecast
    assert forecast is not None
    assert forecast.kept_apart
    assert (forecast.regime, forecast.low, forecast.high) == ("tcp", 3.2, 10.0)


def test_an_engine_that_binds_by_itself_says_what_its_workers_can_use():
    binding = Binding(name="local", guarantee=Guarantee.GPUS, separate=False)
    made = planned(a_topology_job(), placement=PAIR, cluster=BOTH, binding=binding)
    assert made.binding == binding
    assert made.forecast is not None
    assert (made.forecast.usable, made.forecast.guarantee) == (80.0, "gpus")


def test_one_pod_with_exact_gpus_can_use_all_that_they_have():
    lone = a_placement(("gpu-1", (0, 3, 2, 1)))
    forecast = planned(a_topology_job(gpus=4, workers=1), placement=lone, cluster=SMALL).forecast
    assert forecast is not None
    assert (forecast.bus_bandwidth, forecast.usable) == (80.0, 80.0)


def test_where_the_kubelet_picks_the_gpus_the_worst_it_may_pick_is_what_counts():
    lone = a_placement(("gpu-1", (0, 3, 2, 1)))
    forecast = planned(a_topology_job(gpus=4, workers=1), placement=lone, cluster=BOTH).forecast
    assert forecast is not None
    assert (forecast.bus_bandwidth, forecast.usable) == (80.0, 18.0)


def test_a_job_of_one_gpu_has_no_bandwidth():
    lone = a_placement(("gpu-1", (0,)), bandwidth=None, inside=None, worst=None)
    made = planned(a_topology_job(gpus=1, workers=1), placement=lone, cluster=BOTH)
    assert made.forecast is not None
    assert (made.forecast.bus_bandwidth, made.forecast.usable) == (None, None)
    assert made.forecast.bound is None
    assert recorded_placement(made.objects[0]) == made.forecast


# What is written on the job and read back

WORKERS = st.lists(
    st.tuples(
        st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,8}[a-z0-9])?", fullmatch=True).filter(
            lambda name: not any(bad in name for bad in ("..", ".-", "-."))
        ),
        st.integers(min_value=0, max_value=4),
    ),
    min_size=1,
    max_size=6,
)


@given(WORKERS)
def test_the_map_of_a_placement_reads_back_as_the_placement(workers):
    firsts: dict[str, int] = {}
    asked = []
    for node, size in workers:
        start = firsts.get(node, 0)
        asked.append((node, tuple(reversed(range(start, start + size)))))
        firsts[node] = start + size
    text = placement_map(a_placement(*asked))
    assert parse_map(text) == tuple((index, *one) for index, one in enumerate(asked))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "node",
        "node/a",
        "/0",
        "node/0,",
        "node/0;",
        "node/0 ",
        "no de/0",
        "node/00",
        "node/-1",
        "node/0,0",
        "node/0;node/0",
        "node/99999",
        "Node/0",
        "node/\u0661",
    ],
)
def test_an_invalid_map_is_a_value_error(text: str):
    with pytest.raises(ValueError, match=r"worker [01]: "):
        parse_map(text)


def test_workers_that_are_not_numbered_from_zero_have_no_map():
    odd = Placement(
        assignments=(Assignment(worker=1, node=NodeName("a"), gpus=(0,)),),
        bandwidth=nvlink(1.0),
        inside=nvlink(1.0),
        worst=nvlink(1.0),
        tier="node",
        proof=Proof(optimal=True, bound=1.0),
    )
    with pytest.raises(ValueError, match="numbered"):
        placement_map(odd)


@pytest.mark.parametrize("api", ALL)
def test_a_forecast_reads_back_from_the_printed_job_as_it_was(api: ApiVersion):
    emulated = a_cluster(a_node("gpu-1"), emulated=True)
    made = planned(a_topology_job(), api, placement=PAIR, cluster=emulated)
    printed = yaml.safe_load(manifests_yaml(made.objects[:1]))
    assert recorded_placement(printed) == made.forecast
    assert made.forecast is not None
    assert made.forecast.workers == ((0, "gpu-1", (0, 3)), (1, "gpu-1", (1, 2)))
    assert made.forecast.emulated


def noted(**notes: Any) -> dict[str, Any]:
    said = {"format": "v1", "state": "placed"} | notes
    return {"metadata": {"annotations": {f"arena-topo.io/{key}": said[key] for key in said}}}


@pytest.mark.parametrize(
    "mpijob",
    [
        {},
        {"metadata": None},
        {"metadata": {"annotations": None}},
        {"metadata": {"annotations": {"note": "x"}}},
        noted(state=""),
        planned(a_job()).objects[0],
    ],
)
def test_a_job_that_says_nothing_we_understand_has_no_forecast(mpijob: dict[str, Any]):
    assert recorded_placement(mpijob) is None


@pytest.mark.parametrize("more", [{"format": "v2"}, {"state": "moving"}, {"mood": "good"}])
def test_a_record_of_a_later_version_is_read_as_far_as_it_is_known(more: dict[str, str]):
    text = '{"usableGBps": 5, "regime": "light", "guarantee": "socket", "powerWatts": [7]}'
    assert recorded_placement(noted(placement="a/0,3", forecast=text, **more)) == PlacementForecast(
        state=more.get("state", "placed"),
        workers=((0, "a", (0, 3)),),
        usable=5.0,
        regime="light",
        guarantee="socket",
    )


def test_what_is_whole_of_a_broken_record_is_still_read():
    text = (
        '{"usableGBps": 5, "busBandwidthGBps": "x", "optimal": 1, "boundGBps": NaN, "tier": "node"}'
    )
    assert recorded_placement(noted(placement="a/0;;", forecast=text)) == PlacementForecast(
        state="placed", usable=5.0, tier="node"
    )
    assert recorded_placement(noted(placement="a/0", forecast="{")) == PlacementForecast(
        state="placed", workers=((0, "a", (0,)),)
    )


def test_a_record_stores_only_that_it_is_not_confirmed():
    told = {}
    for sure in (True, False):
        binding = Binding(name="admission", guarantee=Guarantee.NODE, confirmed=sure)
        mpijob = planned(a_topology_job(), placement=PAIR, cluster=BOTH, binding=binding).objects[0]
        found = recorded_placement(mpijob)
        assert found is not None
        assert found.confirmed is sure
        told[sure] = json.loads(mpijob["metadata"]["annotations"]["arena-topo.io/forecast"])
    assert told[False] == told[True] | {"confirmed": False}
    assert "confirmed" not in told[True]


def test_a_record_says_where_a_bandwidth_rests_on_an_assumed_network():
    for rate, assumed in ((sockets(), True), (sockets(assumed=()), False)):
        placement = replace(APART, bandwidth=rate, inside=rate, worst=rate)
        mpijob = planned(a_topology_job(), placement=placement, cluster=BOTH).objects[0]
        found = recorded_placement(mpijob)
        assert found is not None
        assert found.assumed is assumed
        note = json.loads(mpijob["metadata"]["annotations"]["arena-topo.io/forecast"])
        assert note.get("assumed", False) is assumed


def test_a_record_calls_nothing_optimal_of_which_the_pods_can_use_less():
    made = planned(a_topology_job(), placement=PAIR, cluster=BOTH).objects[0]
    note = json.loads(made["metadata"]["annotations"]["arena-topo.io/forecast"])
    assert note["optimal"] is False
    assert "boundGBps" not in note


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(placement=JSON | st.text(), forecast=JSON | JSON.map(json.dumps))
@example(placement="a/0", forecast="[" * 100_000)
@example(placement="a/0", forecast='{"usableGBps": 1' + "0" * 400 + "}")
def test_reading_a_record_never_raises(placement, forecast):
    found = recorded_placement(noted(placement=placement, forecast=forecast))
    assert found is not None
    assert found.state == "placed"


# How it is printed

TEXT = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=40
) | st.sampled_from(
    [
        'it\'s "quoted"',
        "a: b # c",
        "{{ job.name }}{% raw %}",
        "* &x !y",
        "- a\n- b\n",
        "\n lead\n\ttab \n\n",
        "no",
        "1e3",
        "~",
        "\x7f\x85\u2028\ufeff\ufffe\U0001f600",
        "\\u0041 ${HOME} $(id)",
        "--- \n...\n",
    ]
)


WORD = st.from_regex(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,20}[A-Za-z0-9])?", fullmatch=True) | (
    st.sampled_from(["no", "1e3", "0x1F", "y", "null", "2024-01-01", "0o17", "1_000", "0b1"])
)
"""What a label may hold, and what YAML takes for something else."""

TOKEN = TEXT.map(lambda text: "".join(text.split())).filter(bool)
"""Text without blanks."""


def leaves(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set().union(*(leaves(one) for pair in value.items() for one in pair), set())
    if isinstance(value, list):
        return set().union(*(leaves(one) for one in value), set())
    return {value} if isinstance(value, str) else set()


@settings(max_examples=settings.default.max_examples // 3)
@pytest.mark.parametrize("api", ALL)
@given(data=st.data())
def test_any_text_in_any_flag_comes_back_unchanged(api: ApiVersion, data: st.DataObject):
    words = {
        name: data.draw(kind, label=name)
        for kind, names in (
            (TEXT, ("working_dir", "scheduler", "sync_source", "logdir", "model_source")),
            (TOKEN, ("image", "shell", "sync_image", "tensorboard_image")),
            (WORD, ("model_name",)),
            (WORD.map(str.lower).filter(is_subdomain), ("priority", "service_account")),
        )
        for name in names
    }
    drawn = {
        name: data.draw(kind, label=name)
        for kind, names in (
            (TEXT, ("env", "note", "file")),
            (WORD, ("key", "label", "node", "taint")),
            (WORD.map(str.lower).filter(is_subdomain), ("secret", "claim")),
        )
        for name in names
    }
    command = data.draw(TEXT.filter(str.strip), label="command")
    pair = KeyValue(key=drawn["key"], value=drawn["node"])
    job = a_job(
        command=command,
        env=(EnvVar(key=f"e{drawn['key']}", value=drawn["env"]),),
        label=(KeyValue(key=f"l{drawn['key']}", value=drawn["label"]),),
        annotation=(KeyValue(key=f"n{drawn['key']}", value=drawn["note"]),),
        selector=(pair,),
        toleration=(Toleration(key=drawn["taint"], operator="Exists"),),
        image_pull_secret=(drawn["secret"],),
        data=(Claim(name=drawn["claim"], path=f"/claim/{drawn['claim']}"),),
        data_dir=(HostPath(host=f"/{drawn['file']}", container=f"/dir/{drawn['file']}"),),
        config_file=(SETTINGS,),
        sync_mode=SyncMode.RSYNC,
        tensorboard=True,
        mounts_on_launcher=True,
        **words,
    )
    made = planned(job, api, files={SETTINGS: drawn["file"]}, owner=drawn["note"])
    expected = {command, *words.values(), *drawn.values()} | {
        f"e{drawn['key']}",
        f"l{drawn['key']}",
        f"/claim/{drawn['claim']}",
        f"/dir/{drawn['file']}",
    }
    printed = manifests_yaml(made.objects)
    for loader in (yaml.SafeLoader, yaml.CSafeLoader):
        read = list(yaml.load_all(printed, Loader=loader))
        assert read == list(made.objects)
    assert expected <= leaves(list(made.objects))
    assert json.loads(manifests_json(made.objects))["items"] == list(made.objects)


@given(st.dictionaries(TEXT, TEXT, min_size=1, max_size=4))
def test_any_mapping_of_texts_survives_printing(mapping: dict[str, str]):
    assert yaml.safe_load(manifests_yaml([mapping])) == mapping


@pytest.mark.parametrize(
    "word",
    [
        "1e3",
        "1e-3",
        "y",
        "N",
        "on",
        "Null",
        "0o17",
        "0x1F",
        "0b1",
        "1_000",
        ".5",
        "1:30",
        "+1",
        "~",
        "=",
        "<<",
        "2024-01-01",
        "-.inf",
        ".nan",
        "-1",
        "0",
        "",
        "true",
    ],
)
def test_words_that_some_reader_takes_for_something_else_are_quoted(word: str):
    assert manifests_yaml([{"v": word}]) in {f"v: '{word}'\n", f'v: "{word}"\n'}


def test_scripts_are_printed_line_by_line_and_commands_on_one_line():
    command = (
        "mpirun -np 4 -x PATH --mca pml ob1 --mca btl ^openib python train.py " + "--x=1 " * 40
    )
    assert manifests_yaml([{"a": "one\n\n  two\n", "b": command.strip()}]) == (
        f"a: |\n  one\n\n    two\nb: {command.strip()}\n"
    )


def test_an_object_that_is_used_twice_is_printed_twice():
    once = {"gpu": "2"}
    assert "&" not in manifests_yaml([{"requests": once, "limits": once}])


def test_documents_are_separated_and_a_lone_object_is_no_list():
    made = planned(a_job())
    assert manifests_yaml(made.objects).count("\n---\n") == len(made.objects) - 1
    assert json.loads(manifests_json(made.objects[:1]))["kind"] == "MPIJob"
    several = json.loads(manifests_json(made.objects))
    assert (several["apiVersion"], several["kind"]) == ("v1", "List")


# The scripts in the pods


def scripted(command: list[str], path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={"PATH": f"{path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


def waiting_command(workers: int, patience: str) -> list[str]:
    made = planned(a_topology_job(workers=workers))
    (container,) = templates(made.objects[0])["launcher"]["spec"]["initContainers"]
    assert container["name"] == "wait-for-workers"
    *command, limit = container["command"]
    assert limit == "600"
    return [*command, patience]


def test_the_launcher_waits_for_every_worker_and_names_those_that_are_missing(tmp_path: Path):
    getent = tmp_path / "getent"
    getent.write_text(
        f'#!/bin/sh\necho "$1 $2" >>{tmp_path}/asked\n'
        "case $2 in mpi-dist-worker-[02].mpi-dist.team-a.svc) exit 0;; esac\nexit 2\n"
    )
    getent.chmod(0o755)
    refused = scripted(waiting_command(4, "0"), tmp_path)
    assert refused.returncode == 1
    assert refused.stderr == "not ready after 0 s: mpi-dist-worker-1 mpi-dist-worker-3\n"
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[0] == "ahosts mpi-dist-worker-0.mpi-dist.team-a.svc"
    # Each by both names that its Service may have, unless the first is known.
    assert len(asked) == 6
    assert scripted(waiting_command(1, "0"), tmp_path).returncode == 0


def test_a_launcher_whose_workers_may_have_to_queue_is_patient():
    (container,) = templates(planned(a_job()).objects[0])["launcher"]["spec"]["initContainers"]
    assert int(container["command"][-1]) > 24 * 3600


def test_a_worker_is_ready_once_its_sshd_listens_on_whatever_port_the_image_chose(tmp_path: Path):
    probe = worker_of(planned(a_job()))["spec"]["containers"][0]["readinessProbe"]
    shell, option, script = probe["exec"]["command"]
    command = [shell, option, script.replace("/etc/ssh", str(tmp_path))]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        (tmp_path / "sshd_config").write_text(f"#Port 22\nPort {port}\nUseDNS no\n")
        assert scripted(command, tmp_path).returncode != 0
        listener.listen()
        assert scripted(command, tmp_path).returncode == 0


# The house


def test_importing_the_module_loads_neither_yaml_nor_templates():
    code = "import sys, arena_topo.manifests.render; print({'yaml', 'jinja2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
