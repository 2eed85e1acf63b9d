"""Jobs and pods that no API server would send: refused with a word of why, or understood."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_api import FakeApi, kubeconfig
from fake_operator import FakeOperator
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import planned

from arena_topo.engines import Options
from arena_topo.engines.kubernetes import engine as kubernetes
from arena_topo.engines.kubernetes import mpijob, podlog
from arena_topo.engines.kubernetes.mpijob import job_status
from arena_topo.engines.kubernetes.shapes import identity_only, object_error
from arena_topo.job import MPIJob

Run = Callable[..., tuple[int, str, str]]

STATES: list[dict[str, Any]] = [
    {"running": {"startedAt": "2026-11-21T07:00:00Z"}},
    {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
    {"terminated": {"exitCode": 3, "reason": "Error", "finishedAt": "2026-11-21T07:00:00Z"}},
]


def a_pod(name: str, role: str, phase: str, state: dict[str, Any]) -> dict[str, Any]:
    status = {"name": "mpi", "state": state, "lastState": STATES[2], "restartCount": 1}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-11-21T07:00:00Z",
            "labels": {"training.kubeflow.org/job-role": role},
            "annotations": {"kubectl.kubernetes.io/default-container": "mpi"},
            "ownerReferences": [{"kind": "MPIJob", "name": "demo", "uid": "job-uid"}],
        },
        "spec": {
            "nodeName": "node-0",
            "restartPolicy": "Never",
            "containers": [{"name": "mpi", "resources": {"limits": {"nvidia.com/gpu": 2}}}],
            "initContainers": [{"name": "wait", "restartPolicy": "Always"}],
        },
        "status": {
            "phase": phase,
            "hostIP": "10.0.0.1",
            "podIP": "10.1.0.1",
            "conditions": [{"type": "PodScheduled", "status": "True", "reason": "x"}],
            "containerStatuses": [status],
            "initContainerStatuses": [{**status, "name": "wait"}],
        },
    }


JOB: dict[str, Any] = {
    "apiVersion": "kubeflow.org/v2beta1",
    "kind": "MPIJob",
    "metadata": {
        "name": "demo",
        "namespace": "default",
        "uid": "job-uid",
        "creationTimestamp": "2026-11-21T07:00:00Z",
        "labels": {"app": "mpijob", "release": "demo"},
        "annotations": {"requestGPUsOfJobOwner": "4"},
    },
    "spec": {
        "runPolicy": {"suspend": False, "managedBy": "x"},
        "mpiReplicaSpecs": {
            role: {
                "replicas": 2,
                "template": {"spec": {"containers": [{"name": "mpi", "command": ["x"]}]}},
            }
            for role in ("Launcher", "Worker")
        },
    },
    "status": {
        "launcherStatus": "",
        "completionTime": None,
        "conditions": [{"type": "Failed", "status": "True", "reason": "x", "message": "y"}],
    },
}
THINGS = [
    JOB,
    *(a_pod("demo-launcher", "launcher", "Failed", state) for state in STATES),
    *(a_pod("demo-worker-0", "worker", "Pending", state) for state in STATES),
]

ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda some: (
        st.lists(some, max_size=2) | st.dictionaries(st.text(max_size=2), some, max_size=2)
    ),
    max_leaves=3,
)


def places(one: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    below = (
        one.items() if isinstance(one, dict) else enumerate(one) if isinstance(one, list) else ()
    )
    for key, value in below:
        yield from places(value, (*path, key))


def changed(one: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    found = copy.deepcopy(one)
    inner = found
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return found


@settings(max_examples=10 * settings.default.max_examples)
@given(st.data())
def test_whatever_is_in_the_place_of_a_field_is_refused_or_understood(data: st.DataObject):
    things = list(THINGS)
    index = data.draw(st.integers(0, len(things) - 1))
    path = data.draw(st.sampled_from(list(places(things[index]))))
    things[index] = changed(things[index], path, data.draw(ANY))
    odd = object_error(things[index])
    assert object_error(THINGS[index]) is None
    if odd is not None:
        return
    job, *pods = things
    mine = [pod for pod in pods if mpijob.is_pod_of(pod, job)]
    mpijob.is_arenas(job)
    job_status(job, mine)
    job_status(identity_only(job), [])
    for pod in pods:
        slim = podlog.log_fields(pod)
        podlog.container_view(slim, podlog.main_container(slim) or "")


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (None, "it has no name"),
        ({}, "it has no name"),
        ({"metadata": {"name": 5}}, "metadata.name: expected a text, got a whole number"),
        ({"metadata": {"name": "a"}, "status": [1]}, "status: expected a mapping, got a list"),
        (
            {"metadata": {"name": "a", "labels": {"a": 1}}},
            "metadata.labels[...]: expected a text, got a whole number",
        ),
        (
            {"metadata": {"name": "a", "annotations": {"requestGPUsOfJobOwner": []}}},
            "metadata.annotations[...]: expected a text, got a list",
        ),
        (
            {"metadata": {"name": "a", "annotations": {"a": None}}, "spec": None},
            "metadata.annotations[...]: expected a text, got nothing",
        ),
        ({"metadata": {"name": "a", "labels": None}, "status": {"conditions": None}}, None),
        (
            {"metadata": {"name": "a"}, "status": {"conditions": [1]}},
            "status.conditions[0]: expected a mapping, got a whole number",
        ),
        (
            {"metadata": {"name": "a"}, "status": {"containerStatuses": [{"restartCount": "1"}]}},
            "status.containerStatuses[0].restartCount: expected a whole number, got a text",
        ),
    ],
)
def test_the_field_that_makes_no_sense_is_named(one: Any, said: str | None):
    assert object_error(one) == said


def test_who_wrote_which_field_is_not_read():
    nested: dict[str, Any] = {}
    for _ in range(5000):
        nested = {"f:spec": nested}
    fields = [{"manager": "kubelet", "fieldsV1": nested}]
    assert (
        object_error({"metadata": {"name": "a", "labels": None, "managedFields": fields}}) is None
    )


THREADS = """
import sys, threading
sys.setswitchinterval(1e-6)
from arena_topo.engines.kubernetes.shapes import object_error

together = threading.Barrier(8)

def look():
    together.wait()
    for _ in range(500):
        pod = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "b"}]}}
        assert object_error(pod) is None

threads = [threading.Thread(target=look) for _ in range(8)]
for one in threads:
    one.start()
for one in threads:
    one.join()
"""


def test_threads_may_look_at_their_first_objects_at_the_same_time():
    for _ in range(3):
        assert subprocess.run([sys.executable, "-c", THREADS], check=False).returncode == 0


# ---------------------------------------------------------------- commands


@pytest.fixture
def config(api: FakeApi, tmp_path: Path) -> str:
    """A kubeconfig for a server with a running job `demo`."""
    config = kubeconfig(tmp_path / "config", api.url, user={"username": "alice"})
    backend = kubernetes.open_kubernetes(Options(kubeconfig=config))
    backend.apply(planned(backend, MPIJob(name="demo", command="true", image="i", workers=1)))
    FakeOperator(api).start("demo")
    return config


ODD_OBJECTS = [
    b"{}",
    b'{"metadata":{}}',
    b'{"metadata":{"name":"demo"},"status":[1]}',
    b'{"metadata":{"name":"demo"},"spec":5}',
    b'{"metadata":{"name":"demo","labels":[]}}',
]


@pytest.mark.parametrize("body", ODD_OBJECTS)
@pytest.mark.parametrize("words", [["get"], ["logs"], ["logs", "--all"], ["why"]], ids=" ".join)
def test_a_job_that_makes_no_sense_is_an_error(
    api: FakeApi, config: str, body: bytes, words: list[str], run: Run
):
    api.fail("GET .*/mpijobs/demo$", status=200, body=body, times=9)
    code, out, err = run(*words, "demo", "--kubeconfig", config)
    assert (code, out) == (1, "")
    assert "made a mistake" not in err
    assert "does not answer like a Kubernetes API server" in err or "makes no sense" in err


@pytest.mark.parametrize("body", ODD_OBJECTS)
def test_a_pod_that_makes_no_sense_is_an_error(api: FakeApi, config: str, body: bytes, run: Run):
    api.fail(r"GET .*/pods/demo-launcher-\w+$", status=200, body=body, times=9)
    code, out, err = run("attach", "demo", "--kubeconfig", config)
    assert (code, out) == (1, "")
    assert "made a mistake" not in err
    assert "does not answer like a Kubernetes API server" in err or "makes no sense" in err


def test_a_job_that_makes_no_sense_does_not_hide_the_others(api: FakeApi, config: str, run: Run):
    def spoilt(body: bytes) -> bytes:
        said = json.loads(body)
        if said.get("kind") == "MPIJobList":
            said["items"] += [{"metadata": {"name": "odd", "namespace": "default"}, "spec": [1]}]
        return json.dumps(said).encode()

    api.rewrites = spoilt
    code, out, err = run("list", "--kubeconfig", config)
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == ["NAME", "demo", "odd"]
