"""arena's Python SDK (v0.15.5, sdk/arena-python-sdk) with our program behind the name `arena`.

What it runs, what it looks for in the output and which keys it reads is retyped here; jobs are
submitted through a shell, as the SDK does everything. Its `list` reads no list that has a job in
it, not arena's either (it decodes every inner object as a job), so here each object is read alone.
"""

import json
import subprocess
from datetime import UTC, datetime

import prompt
import pytest
from worlds import WORLDS, KubernetesWorld

from arena_topo import cli

TYPE = "mpijob"

JOB_KEYS = {
    "name": str,
    "namespace": str,
    "duration": str,
    "status": str,
    "trainer": str,
    "tensorboard": str,
    "chiefName": str,
    "priority": str,
    "requestGPUs": int,
    "allocatedGPUs": int,
    "instances": list,
}
INSTANCE_KEYS = {
    "name": str,
    "status": str,
    "age": str,
    "node": str,
    "nodeIP": str,
    "chief": bool,
    "requestGPUs": int,
    "gpuMetrics": dict,
}
NODE_KEYS = {"name": str, "ip": str, "status": str, "role": str, "type": str}
GPU_NODE_KEYS = {
    **NODE_KEYS,
    "totalGPUs": (int, float),
    "allocatedGPUs": (int, float),
    "unhealthyGPUs": (int, float),
    "instances": list,
    "gpuMetrics": list,
}
METRIC_KEYS = {"id", "uuid", "status", "gpuDutyCycle", "totalGPUMemory", "usedGPUMemory"}
STATES = {"PENDING", "RUNNING", "SUCCEEDED", "FAILED", "SCALING"}
CLASSES = ("normalNodes", "gpuTopologyNodes", "gpuExclusiveNodes", "gpuShareNodes")


class Failed(Exception):
    """The SDK's ArenaException: the kind of error, and both streams."""


class Sdk:
    """What the SDK's clients do."""

    def __init__(self, world_flags, capfd, namespace="default"):
        self.capfd = capfd
        config = [one.removeprefix("--kubeconfig=") for one in world_flags if "kubec" in one]
        self.everywhere = [
            *(f"--config={one}" for one in config),
            f"--namespace={namespace}",
            "--arena-namespace=arena-system",
            "--loglevel=info",
        ]

    def run(self, command, *words):
        line = " ".join([command, *self.everywhere, *words])
        # The SDK gives the line to a shell, as text.
        split = f"printf '%s\\0' {line}"
        said = subprocess.run(split, shell=True, capture_output=True, text=True, check=True).stdout
        self.capfd.readouterr()
        code = cli.run(said.split("\0")[:-1])
        return code, *self.capfd.readouterr()

    def checked(self, command, *words):
        code, out, err = self.run(command, *words)
        if code:
            raise Failed(out + err)
        return out

    def submit(self, name, options, command):
        code, out, err = self.run("submit", TYPE, f"--name={name}", *options, command)
        if code:
            taken = f"the job {name} is already exist, please delete it first."
            raise FileExistsError if taken in out or taken in err else Failed(out + err)
        return out

    def get(self, name, namespace="default"):
        code, out, err = self.run("get", name, f"--type={TYPE}", "-o", "json")
        if code:
            missing = (
                f"Not found training job {name} in namespace {namespace},"
                "please use 'arena submit' to create it."
            )
            if missing in out or missing in err:
                return None
            raise Failed(out + err)
        return read(json.loads(out))


def read(job):
    """A job as the SDK reads it: the keys it cannot do without, in the types it hands on."""
    for key, kind in JOB_KEYS.items():
        assert isinstance(job[key], kind), key
    assert job["trainer"] == TYPE
    assert job["status"] in STATES
    for one in job["instances"]:
        for key, kind in INSTANCE_KEYS.items():
            assert isinstance(one[key], kind), key
        for value in one["gpuMetrics"].values():
            assert {"gpuDutyCycle", "usedGPUMemory", "totalGPUMemory"} <= value.keys()
    return job


@pytest.fixture(params=WORLDS)
def arena(request, tmp_path, capfd, monkeypatch):
    """A world and the SDK in it."""
    if request.param == "local":
        monkeypatch.setenv("ARENA_TOPO_BACKEND", "local")
        monkeypatch.setenv("ARENA_TOPO_EMULATE", "dgx-1-v100:2")
    # The SDK sets these for itself, and they reach what it starts.
    monkeypatch.setenv("ARENA_LOG_LEVEL", "info")
    monkeypatch.setenv("DEFAULT_NAMESPACE", "default")
    with prompt.opened(request.param, tmp_path, capfd) as one:
        one.sdk = Sdk(one.flags, capfd)
        yield one


SAMPLE = """"sh -c -- 'mpirun python train.py --model resnet101 --batch_size 64     --train'" """


def test_a_job_is_submitted_found_and_deleted(arena):
    sdk = arena.sdk
    assert sdk.get("mpi-dist") is None
    out = sdk.submit("mpi-dist", ["--workers=1", "--gpus=1", "--image=local"], SAMPLE)
    assert out.splitlines()[0] == "mpijob.kubeflow.org/mpi-dist created"
    assert sdk.get("mpi-dist")["name"] == "mpi-dist"
    with pytest.raises(FileExistsError):
        sdk.submit("mpi-dist", ["--image=local"], SAMPLE)
    sdk.checked("delete", "mpi-dist", f"--type={TYPE}")
    assert sdk.get("mpi-dist") is None
    with pytest.raises(Failed):
        sdk.checked("delete", "mpi-dist", f"--type={TYPE}")


def test_a_job_is_read_in_every_state(arena):
    sdk = arena.sdk
    arena.applied("demo", workers=2, gpus=1)
    if arena.flags[0] != "--backend=local":
        assert sdk.get("demo")["status"] == "PENDING"
    arena.world.start("demo")
    runs = sdk.get("demo")
    assert (runs["status"], runs["requestGPUs"], runs["allocatedGPUs"]) == ("RUNNING", 2, 2)
    assert [one["chief"] for one in runs["instances"]].count(True) == 1
    assert runs["chiefName"] in [one["name"] for one in runs["instances"] if one["chief"]]
    arena.world.finish("demo")
    assert sdk.get("demo")["status"] == "SUCCEEDED"


def test_lists_are_arrays_of_the_same_objects(arena):
    sdk = arena.sdk
    assert json.loads(sdk.checked("list", "-o", "json"), object_hook=list) == []
    arena.finished("done", 3)
    arena.applied("demo", gpus=1)
    arena.world.start("demo")
    for words in ((), ("-A",), (f"--type={TYPE}",)):
        jobs = json.loads(sdk.checked("list", *words, "-o", "json"))
        assert [read(job)["name"] for job in jobs] == ["demo", "done"]
        assert [job["status"] for job in jobs] == ["RUNNING", "FAILED"]
    assert json.loads(sdk.checked("list", "--type=tfjob", "-o", "json")) == []


def test_logs_of_each_instance_are_read_as_the_sdk_asks_for_them(arena):
    if isinstance(arena.world, KubernetesWorld):
        # The fake launcher's lines have times of their own, not two hours before these.
        arena.world.operator.api.now = datetime(2026, 11, 21, 8, tzinfo=UTC).timestamp()
    arena.applied("demo", gpus=1)
    arena.world.start("demo")
    arena.world.say("demo", "step 1")
    chief = arena.sdk.get("demo")["chiefName"]
    words = ("demo", f"-T={TYPE}", "--tail=10", "--since=2h", f"-i={chief}")
    out = ""
    for _look in range(50):  # the launcher writes when it gets round to it
        out = arena.sdk.checked("logs", *words)
        if out:
            break
    assert out.endswith("step 1\n")


def test_old_jobs_are_pruned_where_the_environment_agrees(arena, monkeypatch):
    arena.finished("old")
    with pytest.raises(Failed, match="ARENA_TOPO_YES"):
        arena.sdk.checked("prune", "--since=0s")
    monkeypatch.setenv("ARENA_TOPO_YES", "true")
    assert arena.sdk.checked("prune", "--since=100h", "-A") == "No jobs to delete.\n"
    out = arena.sdk.checked("prune", "--since=0s")
    assert out.startswith("Delete mpijob old with Age ")
    assert arena.sdk.get("old") is None


def test_nodes_have_the_keys_that_the_sdk_reads(arena):
    arena.applied("demo", workers=2, gpus=2)
    arena.world.start("demo")
    found = json.loads(arena.sdk.checked("top", "node", "-d", "-o", "json"))
    assert json.loads(arena.sdk.checked("top", "node", "-d", "-o", "json", "-m=t")) == found
    assert set(CLASSES) <= found.keys()
    assert found["gpuTopologyNodes"]
    for node in found["gpuTopologyNodes"]:
        for key, kind in GPU_NODE_KEYS.items():
            assert isinstance(node[key], kind), key
        for one in node["instances"]:
            assert {"name", "namespace", "requestGPUs"} <= one.keys()
        for one in node["gpuMetrics"]:
            assert one.keys() >= METRIC_KEYS
        for one in node["instances"]:
            assert {"allocation", "visibleGPUs"} <= one.keys()
        assert all({"gpuIndex", "status", "healthy"} <= one.keys() for one in node["devices"])
        assert {len(row) for row in node["gpuTopology"]["linkMatrix"]} == {8}
        assert {len(row) for row in node["gpuTopology"]["bandwidthMatrix"]} == {8}


@pytest.mark.parametrize("arena", ["kubernetes-v2beta1"], indirect=True)
def test_nodes_of_a_mode_that_none_has_are_an_error_as_in_arena(arena):
    for mode in ("-m=e", "-m=s", "-m=n"):
        with pytest.raises(Failed, match="display nodes's informations: not found nodes"):
            arena.sdk.checked("top", "node", "-d", "-o", "json", mode)


OPTIONS = """
--cpu=2 --memory=4Gi --image=registry/horovod:1 --workers=2 --image-pull-secret=a
--image-pull-secret=b --gpus=1 --env=K=V --env=L=a,b --selector=gpu=yes
--toleration=k=v:NoSchedule,Equal --config-file={file}:/etc/app/conf --annotation=k=v
--data=claim:/data --data-dir=/host:/in --logdir=/logs --priority=high --rdma
--sync-image=git:1 --sync-mode=git
--sync-source=https://example.com/x.git --tensorboard --tensorboard-image=tb:1 --working-dir=/w
--retry=3 --gang
"""


@pytest.mark.parametrize("arena", [one for one in WORLDS if one != "local"], indirect=True)
def test_every_option_of_the_sdks_builder_is_taken(arena, tmp_path):
    (tmp_path / "conf").write_text("x")
    arena.world.api.add({"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000})
    options = OPTIONS.format(file=tmp_path / "conf").split()
    out = arena.sdk.submit("demo", options, '"mpirun true"')
    assert "mpijob.kubeflow.org/demo created\n" in out
    assert arena.sdk.get("demo")["priority"] == "high"


# ---------------------------------------------------------------- what scripts do


@pytest.mark.parametrize("arena", ["kubernetes-v2beta1", "local"], indirect=True)
def test_columns_stand_where_awk_looks_for_them(arena):
    arena.finished("good", gpus=2)
    arena.applied("runs", gpus=1)
    arena.world.start("runs")
    rows = [line.split() for line in arena.sdk.checked("list").splitlines()]
    assert rows[0] == [
        *("NAME", "STATUS", "TRAINER", "DURATION", "GPU(Requested)", "GPU(Allocated)", "NODE")
    ]
    assert [row[:3] + row[4:6] for row in rows[1:]] == [
        ["runs", "RUNNING", "MPIJOB", "1", "1"],
        ["good", "SUCCEEDED", "MPIJOB", "2", "N/A"],
    ]
    lines = arena.sdk.checked("get", "runs").splitlines()
    assert lines[1].split() == ["Status:", "RUNNING"]
    assert "Instances:" in lines
