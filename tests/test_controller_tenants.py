"""Whatever tenants write beside the gangs of a cluster, the controller leaves it alone.

A property: objects whose labels, owners, names, events and annotations imitate those of gangs are
put beside two gangs, one that runs and one that waits, and the controller does its rounds.
"""

from __future__ import annotations

import copy
import re
from typing import Any

from fake_resources import named, rfc3339
from hypothesis import given, settings
from hypothesis import strategies as st
from test_controller import World, world

from arena_topo.manifests import FORMAT_ANNOTATION, GATE, GPU_GROUP, MAP, STATE
from arena_topo.topology import presets, published

__all__ = ["world"]
"""The fixture."""

GANGS = ("bert", "late")
TRAINING = "training.kubeflow.org"
KUBE_SYSTEM = published.ACK_NAMESPACE
OURS = published.OWN_NAMESPACE

NAMES = (
    *(f"{gang}-{end}" for gang in GANGS for end in ("worker-8", "launcher-x1y2z", "web-0")),
    "late-worker-0",
    "late-launcher",
)

Object = dict[str, Any]


def owner(kind: str, name: str, uid: str, *, controller: bool = True) -> Object:
    version = {"Job": "batch/v1", "StatefulSet": "apps/v1"}.get(kind, "kubeflow.org/v1")
    reference = {"apiVersion": version, "kind": kind, "name": name, "uid": uid}
    return reference | ({"controller": True} if controller else {})


def owners(uids: dict[str, str]) -> st.SearchStrategy[list[Object]]:
    """Owners that are no gang: others of its name, or a gang that does not control the object."""
    others = [
        owner(kind, name, f"uid-of-{kind}")
        for gang in GANGS
        for kind, name in (
            ("PyTorchJob", gang),
            ("MPIJob", gang),
            ("Job", f"{gang}-launcher"),
            ("StatefulSet", f"{gang}-worker"),
        )
    ]
    seen = [owner("MPIJob", gang, uids[gang], controller=False) for gang in GANGS]
    return st.lists(st.sampled_from([*others, *seen]), max_size=2).filter(
        lambda chosen: sum("controller" in one for one in chosen) <= 1
    )


LABELS = st.fixed_dictionaries(
    {},
    optional={
        f"{TRAINING}/job-name": st.sampled_from(GANGS),
        f"{TRAINING}/job-role": st.sampled_from(("worker", "launcher", "master")),
        f"{TRAINING}/replica-index": st.sampled_from(("0", "1")),
        "mpi-job-name": st.sampled_from(GANGS),
        "release": st.sampled_from(GANGS),
        "app": st.just("mpijob"),
        published.SCHEDULE_LABEL: st.just("topology"),
        published.NODE_LABEL: st.sampled_from(("node-0", "node-9")),
    },
)
NOTES = st.fixed_dictionaries(
    {},
    optional={
        MAP: st.sampled_from(("node-0/0;node-0/1", "nonsense")),
        STATE: st.sampled_from(("placed", "waiting", "nonsense")),
        GPU_GROUP: st.just("0,1"),
    },
)
STATUSES = st.sampled_from(
    [
        {"phase": "Failed", "reason": "Evicted", "message": "disk"},
        {"phase": "Failed"},
        {"phase": "Running"},
        {"phase": "Pending"},
        {
            "phase": "Pending",
            "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"},
            ],
        },
    ]
)


@st.composite
def pods(draw: st.DrawFn, uids: dict[str, str], now: float) -> Object:
    meta = {
        "name": draw(st.sampled_from(NAMES)),
        "labels": draw(LABELS),
        "annotations": draw(NOTES) | draw(st.sampled_from(({}, {FORMAT_ANNOTATION: "v1"}))),
        "ownerReferences": draw(owners(uids)),
        "finalizers": ["example.com/theirs"],
        "creationTimestamp": rfc3339(now + draw(st.sampled_from((-3600, 0)))),
    }
    spec: Object = {"containers": [{"name": "main", "image": "theirs"}]}
    match draw(st.sampled_from(("bound", "silent", "gated"))):
        case "bound":
            spec["nodeName"] = "node-0"
        case "silent":
            spec["nodeName"] = "node-1"
        case _:
            spec["schedulingGates"] = [{"name": GATE}]
    if draw(st.booleans()):
        meta["deletionTimestamp"] = rfc3339(now)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": spec,
        "status": copy.deepcopy(draw(STATUSES)),
    }


@st.composite
def mpijobs(draw: st.DrawFn, uids: dict[str, str]) -> Object:
    """Jobs that arena-topo has nothing to do with, or whose start is another queue's decision."""
    ordinary = draw(st.booleans())
    container = {"name": "mpi", "image": "theirs"}
    roles = {
        role: {"replicas": 1, "template": {"spec": {"containers": [dict(container)]}}}
        for role in ("Launcher", "Worker")
    }
    policy = {"suspend": draw(st.booleans())}
    notes = draw(NOTES)
    if not ordinary:
        policy["suspend"] = True
        policy["managedBy"] = "example.com/queue"
        notes |= {FORMAT_ANNOTATION: "v1", STATE: "waiting"}
        notes.pop(MAP, None)
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {
            "name": draw(st.sampled_from(("bert-web", "theirs"))),
            "labels": draw(LABELS),
            "annotations": notes,
            "ownerReferences": draw(owners(uids)),
        },
        "spec": {"slotsPerWorker": 1, "runPolicy": policy, "mpiReplicaSpecs": roles},
    }


@st.composite
def config_maps(draw: st.DrawFn) -> Object:
    """What somebody else keeps under the names, and with the labels, of published topology."""
    name = draw(st.sampled_from(("node-0", "node-8", "node-9")))
    labels = {published.SCHEDULE_LABEL: "topology", published.NODE_LABEL: name}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": published.config_map_name(name),
            "namespace": draw(st.sampled_from((KUBE_SYSTEM, "default"))),
            "labels": draw(st.sampled_from((labels, {}))),
            "annotations": {"who": "somebody else"},
        },
        "data": {"busBandwidth": "theirs"},
    }


@st.composite
def events(draw: st.DrawFn, now: float) -> Object:
    about = {
        "kind": draw(st.sampled_from(("Pod", "Job", "ReplicaSet", "StatefulSet", "MPIJob"))),
        "name": draw(st.sampled_from((*GANGS, *NAMES, "bert-worker-0", "bert-launcher"))),
        "namespace": "default",
        "uid": "uid-of-another",
    }
    message = draw(st.sampled_from(("exceeded quota: q", 'pods "x" is forbidden', "denied")))
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"event-{draw(st.integers(0, 99))}", "namespace": "default"},
        "involvedObject": about,
        "type": "Warning",
        "reason": draw(st.sampled_from(("FailedCreate", "MPIJobFailed", "Failed", "FailedMount"))),
        "message": message,
        "lastTimestamp": rfc3339(now + draw(st.sampled_from((0, 5)))),
    }


def objects(uids: dict[str, str], now: float) -> st.SearchStrategy[list[Object]]:
    each = st.one_of(pods(uids, now), events(now), mpijobs(uids), config_maps())
    return st.lists(each, min_size=1, max_size=6, unique_by=_key)


def _key(thing: Object) -> tuple[str, str, str]:
    meta = thing["metadata"]
    return thing["kind"], meta.get("namespace", "default"), meta["name"]


def is_fine(request: str, names: set[str]) -> bool:
    """Whether a request changes nothing, or only a gang, or what the controller keeps for all.

    `names` are those of the pods of gangs.
    """
    path, _, query = request.partition("?")
    return "dryRun" in query or any(
        re.search(pattern, path)
        for pattern in (
            r"^GET |/selfsubject\w+reviews$",
            rf"/namespaces/{OURS}/",
            r"/mpijobs/(bert|late)$",
            *(rf"/namespaces/default/pods/{re.escape(name)}$" for name in names),
            # Copies that it makes; those that are there already were made by somebody else.
            rf"^POST \S+/namespaces/{KUBE_SYSTEM}/configmaps$",
        )
    )


def prepared(here: World) -> dict[str, str]:
    """A gang that runs, its workers not all there yet, and one that waits; a machine is silent."""
    here.submit("bert", workers=8)
    here.submit("late", workers=8)
    here.cluster.operates = False
    here.api.remove("pods", "default", "bert-worker-7", {"gracePeriodSeconds": 0})
    for name in ("node-0", "node-8"):
        machine = presets.preset_machine("dgx-1-v100", name)
        one = published.config_map(machine, machine.everything)
        one["metadata"]["namespace"] = OURS
        here.api.add(one)
    here.api.remove("configmaps", KUBE_SYSTEM, published.config_map_name("node-0"))
    here.cluster.node("node-1")
    here.cluster.lose("node-1")
    here.controller.ack = True
    return {gang: here.job(gang)["metadata"]["uid"] for gang in GANGS}


def test_nothing_that_a_tenant_writes_makes_the_controller_touch_it_or_stop_a_gang(world):
    here = world(1)
    uids = prepared(here)
    assert here.nodes("bert") == {"node-0"}
    own = {pod["metadata"]["name"] for pod in here.api.all("Pod")}

    @settings(max_examples=settings.default.max_examples // 4)
    @given(objects(uids, here.api.clock()))
    def holds(things: list[Object]) -> None:
        for one in things:
            here.api.add(one)
        before = stored(here, things)
        here.controller = here.another()
        here.controller.ack = True
        here.api.requests.clear()
        here.said.clear()
        for seconds in (1, 61):
            here.later(seconds)
            here.caught_up()
            here.controller.round()
        after, requests = stored(here, things), tuple(here.api.requests)
        copies = [
            ("ConfigMap", KUBE_SYSTEM, published.config_map_name(name))
            for name in ("node-0", "node-8")
        ]
        for kind, space, name in {*map(_key, things), *copies}:
            if here.api.find(kind, name, space) is not None:
                here.api.drop(named(kind), (space, name))
        assert after == before
        assert [one for one in requests if not is_fine(one, own)] == []
        assert here.runs("bert")
        assert not [line for line in here.said if "taken back" in line or "warning" in line]

    holds()


def stored(here: World, things: list[Object]) -> list[Object | None]:
    """What is there now of some objects."""
    found = []
    for kind, space, name in map(_key, things):
        found.append(copy.deepcopy(here.api.find(kind, name, space)))
    return found
