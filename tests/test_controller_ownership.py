"""The controller touches what is a gang's, and nothing that only looks like it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from fake_resources import rfc3339
from test_controller import World, world

from arena_topo.topology import presets, published

__all__ = ["world"]
"""The fixture."""

SYSTEM = published.OWN_NAMESPACE
JOB_NAME = "training.kubeflow.org/job-name"


def pod_of_another(
    here: World, name: str, job: str, owner: dict[str, Any] | None, **status: Any
) -> None:
    """A pod that carries a job's name in the labels of the training operator and of arena."""
    labels = {JOB_NAME: job, "training.kubeflow.org/job-role": "worker"}
    labels |= {"app": "mpijob", "release": job}
    here.cluster.pod(
        name, "node-0", 0, labels=labels, **({"ownerReferences": [owner]} if owner else {})
    )
    with here.api.edit("Pod", name) as one:
        one["status"] = {"phase": "Failed", "reason": "Evicted", "message": "disk", **status}


PYTORCH = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "bert", "uid": "py-uid"}
OWNERS = {
    "another kind of training job": {**PYTORCH, "controller": True},
    "an earlier MPIJob of that name": {**PYTORCH, "kind": "MPIJob", "controller": True},
    "a Job of somebody else": {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": "bert-launcher",
        "uid": "job-uid",
        "controller": True,
    },
    "nobody": None,
}


@pytest.mark.parametrize("owner", OWNERS.values(), ids=OWNERS.keys())
def test_a_failed_pod_of_another_owner_is_not_deleted_beside_a_suspended_gang(world, owner):
    here = world(1)
    here.submit("first", workers=8)
    here.submit("bert", workers=8)
    pod_of_another(here, "bert-master-0", "bert", owner)
    here.rounds(2)
    assert not here.runs("bert")
    assert here.api.find("Pod", "bert-master-0") is not None


@pytest.mark.parametrize("owner", OWNERS.values(), ids=OWNERS.keys())
def test_an_evicted_pod_of_another_owner_stops_no_gang(world, owner):
    here = world(1)
    here.submit("bert", workers=4)
    pod_of_another(here, "bert-master-0", "bert", owner)
    here.rounds(2)
    assert here.runs("bert")
    assert not [line for line in here.said if "taken back" in line]


def test_a_waiting_gang_starts_beside_a_pod_of_another_owner_that_lives(world):
    here = world(1)
    here.submit("first", workers=8)
    here.submit("bert", workers=8)
    owner = OWNERS["another kind of training job"]
    pod_of_another(here, "bert-master-0", "bert", owner, phase="Running")
    here.backend.delete("first", "default")
    here.cluster.settle()
    here.rounds(2)
    assert here.runs("bert")


def test_pods_of_another_owner_are_no_pods_of_the_job_on_any_screen(world):
    here = world(1)
    here.submit("bert", workers=2)
    for index, owner in enumerate(OWNERS.values()):
        if owner is None or owner["kind"] != "Job":
            pod_of_another(here, f"bert-master-{index}", "bert", owner)
    names = {one.name for one in here.backend.job("bert", "default").instances}
    assert {name for name in names if "master" in name} == set()
    assert {"bert-worker-0", "bert-worker-1"} <= names


@pytest.mark.parametrize("late", [False, True], ids=["may look", "may look from now on"])
def test_a_launcher_left_on_a_silent_machine_is_let_go_of_as_the_gang_owns_it(world, *, late: bool):
    here = world(2)
    here.submit("bert", workers=8)
    if late:
        here.api.deny("get jobs default")
    here.rounds()
    here.api.denied.clear()
    node = here.nodes("bert").pop()
    launcher = next(
        pod for pod in here.api.all("Pod") if pod["metadata"]["name"].startswith("bert-launcher")
    )
    with here.api.edit("Pod", launcher["metadata"]["name"]) as one:
        one["spec"]["nodeName"] = node
    here.cluster.lose(node)
    here.rounds()
    here.later(301)
    here.rounds(3)
    assert here.runs("bert")
    assert here.nodes("bert") != {node}


def test_a_job_of_another_owner_of_the_launchers_name_keeps_its_pods(world):
    here = world(1)
    here.submit("first", workers=8)
    here.submit("bert", workers=8)
    owner = OWNERS["a Job of somebody else"]
    pod_of_another(here, "bert-launcher-x1y2z", "bert", owner, phase="Running")
    with here.api.edit("Pod", "bert-launcher-x1y2z") as one:
        one["metadata"]["finalizers"] = ["theirs"]
        one["metadata"]["deletionTimestamp"] = rfc3339(here.api.clock())
        one["metadata"]["labels"]["training.kubeflow.org/job-role"] = "launcher"
    here.cluster.lose("node-0")
    here.rounds()
    here.later(61)
    here.api.requests.clear()
    here.rounds(2)
    assert not [one for one in here.api.requests if "bert-launcher-x1y2z" in one]


REFUSED = 'Error creating: pods "bert-web-7d9-x" is forbidden: exceeded quota: q, requested: cpu=4'
ABOUT = {
    "a ReplicaSet whose name begins like the job's": ("ReplicaSet", "bert-web-7d9", "other"),
    "a Deployment of the job's name": ("Deployment", "bert", "other"),
    "a StatefulSet that is called like workers": ("StatefulSet", "bert-worker", "other"),
    "a pod that is called like a worker": ("Pod", "bert-worker-1", "other"),
    "an earlier MPIJob of that name": ("MPIJob", "bert", "earlier"),
}


def gathering_gang(here: World) -> None:
    """A gang that was resumed a moment ago, and whose operator is slow."""
    here.submit("first", workers=8)
    here.submit("bert", workers=8)
    here.backend.delete("first", "default")
    here.cluster.settle()
    here.cluster.operates = False
    here.rounds()
    assert here.runs("bert")
    assert here.cluster.workers("bert") == []


def told(here: World, kind: str, name: str, uid: str) -> None:
    thing = {"kind": kind, "metadata": {"name": name, "uid": uid, "namespace": "default"}}
    here.cluster.event(thing, "FailedCreate", REFUSED)


@pytest.mark.parametrize("about", ABOUT.values(), ids=ABOUT.keys())
def test_an_event_about_something_else_breaks_no_gang(world, about):
    here = world(1)
    gathering_gang(here)
    here.later(2)
    told(here, *about)
    here.rounds(2)
    assert here.runs("bert")
    assert not [line for line in here.said if "taken back" in line]


def test_an_event_about_the_job_itself_breaks_its_gang(world):
    here = world(1)
    gathering_gang(here)
    here.later(2)
    told(here, "MPIJob", "bert", here.job("bert")["metadata"]["uid"])
    here.rounds()
    assert [line for line in here.said if "rolled back" in line and "exceeded quota" in line]


def test_get_and_the_queue_agree_whose_events_are_whose(world):
    here = world(1)
    gathering_gang(here)
    for about in ABOUT.values():
        told(here, *about)
    told(here, "MPIJob", "bert", here.job("bert")["metadata"]["uid"])
    queue = here.backend.queue
    sources = {
        f"{one['involvedObject']['kind'].lower()}/{one['involvedObject']['name']}"
        for one in queue.events(here.job("bert"))
    }
    shown = {one.source for one in here.backend.events(here.backend.job("bert", "default"))}
    assert sources == shown
    assert "replicaset/bert-web-7d9" not in shown


def reported(here: World, name: str) -> None:
    """What the agent of a node has published."""
    machine = presets.preset_machine("dgx-1-v100", name)
    one = published.config_map(machine, machine.everything)
    one["metadata"]["namespace"] = SYSTEM
    here.api.add(one)


def foreign(here: World, name: str, **data: str) -> dict[str, Any]:
    """The topology of a node in kube-system that somebody else has written."""
    machine = presets.preset_machine("dgx-2", name)
    one = published.config_map(machine, machine.everything)
    one["metadata"]["annotations"] = {"who": "a person"}
    one["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Node", "name": name, "uid": "node-uid"}
    ]
    one["data"] |= data
    here.api.add(one)
    return copied(here, name)


def copied(here: World, name: str) -> dict[str, Any] | None:
    found = here.api.find("ConfigMap", f"{name}-gpu-topology", "kube-system")
    return None if found is None else copy.deepcopy(found)


def test_what_somebody_else_publishes_for_acks_tools_is_left_and_the_controller_says_so(world):
    here = world(1)
    here.controller.ack = True
    before = foreign(here, "node-7", busBandwidth='{"0,1,2,3": 82.1}')
    for name in ("node-7", "node-8"):
        reported(here, name)
    here.rounds()
    here.later(20)
    here.rounds()
    assert copied(here, "node-7") == before
    assert copied(here, "node-8") is not None
    left = "note: ConfigMap kube-system/node-7-gpu-topology is left unchanged"
    assert [line for line in here.said if "node-7" in line] == [f"{left}: another program made it"]
    here.api.remove("configmaps", SYSTEM, "node-7-gpu-topology", {})
    here.api.remove("configmaps", SYSTEM, "node-8-gpu-topology", {})
    here.later(20)
    here.rounds()
    assert copied(here, "node-7") == before
    assert copied(here, "node-8") is None


def test_what_somebody_takes_over_from_the_mirror_is_theirs(world):
    here = world(1)
    here.controller.ack = True
    reported(here, "node-7")
    here.rounds()
    with here.api.edit("ConfigMap", "node-7-gpu-topology", "kube-system") as one:
        one["metadata"]["labels"].pop("arena-topo.io/mirrored")
        one["data"]["linkType"] = "[]"
    before = copied(here, "node-7")
    here.later(20)
    here.rounds()
    assert copied(here, "node-7") == before


def test_what_a_person_publishes_over_a_copy_stays(world):
    here = world(1)
    here.controller.ack = True
    reported(here, "node-0")
    with here.api.edit("ConfigMap", "node-0-gpu-topology", "kube-system") as one:
        one["metadata"]["labels"][published.MIRRORED] = "true"
        one["data"]["linkType"] = "{}"
    here.rounds()
    copy_of_report = copied(here, "node-0")
    assert copy_of_report["data"]["linkType"] != "{}"
    here.backend.publish(presets.preset_machine("dgx-1-p100", "node-0"))
    before = copied(here, "node-0")
    assert before["data"]["linkType"] != copy_of_report["data"]["linkType"]
    here.later(20)
    here.rounds()
    assert copied(here, "node-0") == before
