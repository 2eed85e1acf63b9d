"""Who has which GPUs: what jobs have recorded, what kubelets gave, and what is not believed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kube_objects import config_map, group, job, node, only, pod, records_of, seen

from arena_topo.clusters import observed
from arena_topo.topology import Knowledge, count, gpu_set, members, presets, published


def asking(**said: Any) -> dict[str, str]:
    return {"arena-topo.io/request": json.dumps(said)}


def forecast_of(guarantee: str) -> dict[str, str]:
    return {"arena-topo.io/forecast": json.dumps({"guarantee": guarantee})}


@pytest.mark.parametrize("state", ["waiting", "held"])
def test_a_stale_record_of_a_waiting_job_holds_no_gpus(state: str):
    assert only(node(), job("a", "node-a/0,1", state=state)).free_count == 8


def test_the_record_of_a_suspended_job_holds_its_gpus():
    suspended = job(
        "a", "node-a/0,1", status={"conditions": [{"type": "Suspended", "status": "True"}]}
    )
    suspended["spec"]["runPolicy"] = {"suspend": True}
    assert members(only(node(), suspended).free) == (2, 3, 4, 5, 6, 7)


def test_a_record_of_more_workers_than_the_job_has_holds_no_more():
    greedy = job("a", "node-a/0,1;node-a/2,3;node-a/4,5", worker={"replicas": 1})
    found = seen(node(), greedy)
    assert members(found.nodes[0].free) == (2, 3, 4, 5, 6, 7)
    assert found.notes == (
        (
            "MPIJob default/a: its recorded placement is of more than it asks for; the rest does"
            " not count"
        ),
    )
    unsaid = job("a", "node-a/0,1;node-a/2,3", annotations=asking(workers=1, gpus=2))
    assert members(only(node(), unsaid).free) == (2, 3, 4, 5, 6, 7)


@pytest.mark.parametrize("replicas", [-1, "two", None, [2]])
def test_an_invalid_number_of_workers_is_replaced_by_the_requested_number(replicas: object):
    odd = job(
        "a",
        "node-a/0,1;node-a/2,3",
        worker={"replicas": replicas},
        annotations=asking(workers=1, gpus=2),
    )
    assert members(only(node(), odd).free) == (2, 3, 4, 5, 6, 7)


def test_a_record_of_more_gpus_than_the_workers_ask_for_holds_no_more():
    found = seen(node(), job("a", "node-a/0,1;node-a/2,3,4,5", worker={"replicas": 2}))
    assert members(found.nodes[0].free) == (4, 5, 6, 7)
    assert found.notes == (
        (
            "MPIJob default/a: its recorded placement is of more than it asks for; the rest does"
            " not count"
        ),
    )


def test_a_record_of_a_job_that_asks_for_no_gpus_holds_none():
    found = seen(node(), job("a", "node-a/0,1", gpus=0))
    assert found.nodes[0].free_count == 8
    assert len(found.notes) == 1


@pytest.mark.parametrize(
    ("said", "replicas", "placement"),
    [
        ({"workers": 2, "gpus": 2}, 2, "node-a/0,1;node-a/2,3"),
        ({"workers": 4, "gpus": 1}, 2, "node-a/0,1;node-a/2,3"),
        ({"workers": 4}, 1, "node-a/"),
    ],
)
def test_the_gpus_of_a_job_with_claims_follow_from_its_annotation(
    said: dict[str, int], replicas: int, placement: str
):
    claiming = job(
        "a", placement, gpus=0, worker={"replicas": replicas}, annotations=asking(**said)
    )
    found = seen(node(), claiming)
    assert found.notes == ()
    assert found.nodes[0].free_count == 8 - said.get("gpus", 0) * said["workers"]


@pytest.mark.parametrize("said", [{"workers": "2"}, {"workers": 2, "gpus": -1}, {"workers": True}])
def test_an_invalid_request_in_an_annotation_is_a_note(said: dict[str, Any]):
    found = seen(node(), job("a", "node-a/0,1", gpus=0, annotations=asking(**said)))
    (note,) = found.notes
    assert note.startswith("MPIJob default/a: its recorded placement makes no sense: ")
    assert found.nodes[0].free_count == 8


def test_a_job_that_has_not_started_says_itself_what_is_guaranteed():
    found = only(node(), job("a", "node-a/0,1", annotations=forecast_of("node")))
    assert (count(found.free), found.unattributed) == (8, 2)


# Workers that will be on their node as soon as a scheduler looks at them.

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def on(*nodes: str, **more: Any) -> dict[str, Any]:
    terms = [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [one]}]}
        for one in nodes
    ]
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}, **more}


def promised(
    name: str = "a-worker-0", *, gpus: int = 2, annotations: Any = None, **more: Any
) -> dict[str, Any]:
    notes = {"arena-topo.io/format": "v1", **(group("0,1") if annotations is None else annotations)}
    spec = more.pop("spec", on("node-a"))
    return pod(name, on=None, phase="Pending", gpus=gpus, annotations=notes, spec=spec, **more)


def test_an_unscheduled_worker_holds_the_gpus_of_its_placement():
    """Its job may be gone, or suspended, and the operator slow to delete it."""
    found = only(node(), promised(requests={"cpu": "2"}))
    assert (members(found.free), found.unattributed, found.cpu) == ((2, 3, 4, 5, 6, 7), 0, 30.0)
    assert not found.foreign
    ending = promised(metadata={"deletionTimestamp": "2026-11-21T12:00:00Z"})
    assert members(only(node(), ending).free) == (2, 3, 4, 5, 6, 7)


def test_a_worker_with_a_promised_node_holds_the_gpus_of_its_request():
    notes = {"arena-topo.io/guarantee": "node"}
    found = only(node(), promised(annotations=notes))
    assert (count(found.free), found.unattributed) == (8, 2)
    planned = only(node(), promised(annotations={**notes, **group("0,1")}))
    assert (count(planned.free), planned.unattributed) == (8, 2)


OTHERS = {"matchExpressions": [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}


@pytest.mark.parametrize(
    "spec",
    [
        {},
        on("node-a", schedulingGates=[{"name": "arena-topo.io/placement"}]),
        # Whichever it will be, it is one of them only.
        on("node-a", "node-b"),
        {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [OTHERS]}}}},
        {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{}]}}}},
        {"affinity": {"nodeAffinity": {}}},
    ],
)
def test_a_worker_that_is_promised_no_single_node_has_nothing_yet(spec: dict[str, Any]):
    found = seen(node(), node("node-b"), promised(spec=spec))
    assert found.notes == ()
    assert [one.free_count for one in found.nodes] == [8, 8]


def test_a_worker_at_a_foreign_gate_holds_gpus_of_its_node():
    spec = on("node-a", "node-a", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])
    assert only(node(), promised(spec=spec)).free_count == 6


def test_pods_of_others_without_a_node_and_workers_that_are_over_have_nothing():
    theirs = promised()
    del theirs["metadata"]["annotations"]["arena-topo.io/format"]
    over = promised()
    over["status"]["phase"] = "Failed"
    assert only(node(), theirs).free_count == 8
    assert only(node(), over).free_count == 8
    assert only(node(), over, job("a", "node-a/0,1")).free_count == 8


def test_a_worker_without_a_node_whose_resources_make_no_sense_takes_every_gpu_of_its_place():
    odd = promised()
    odd["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "many"
    found = seen(node(), node("node-b"), odd)
    assert [one.free_count for one in found.nodes] == [0, 8]
    assert found.notes[0].startswith("pod default/a-worker-0 asks for resources that make no sense")


@pytest.mark.parametrize(
    ("record", "suspended", "ends", "counts"),
    [
        # The same place, whatever becomes of it: once.
        ("node-a/1,0", False, False, [2, 0]),
        ("node-a/1,0", True, True, [2, 0]),
        # Another: it may be of an earlier placement, and be bound all the same.
        ("node-a/2,3", False, False, [4, 0]),
        ("node-b/0,1", False, False, [2, 2]),
        ("node-b/0,1", True, True, [2, 2]),
    ],
)
def test_a_record_counts_beside_a_worker_that_is_promised_another_place(
    record: str, suspended: object, ends: object, counts: list[int]
):
    placed = job("a", record)
    placed["spec"]["runPolicy"] = {"suspend": suspended}
    meta = {"deletionTimestamp": "2026-11-21T12:00:00Z"} if ends else {}
    found = seen(node(), node("node-b"), placed, promised(metadata=meta))
    assert [8 - one.free_count for one in found.nodes] == counts
    assert found.notes == ()


@pytest.mark.parametrize(
    ("suspended", "labels", "used"),
    [
        (True, {"kueue.x-k8s.io/queue-name": "q"}, 0),
        (False, {"kueue.x-k8s.io/queue-name": "q"}, 2),
        (True, {}, 2),
    ],
)
def test_a_job_suspended_by_its_queue_holds_no_gpus(
    suspended: object, labels: dict[str, str], used: int
):
    placed = job("a", "node-a/0,1", metadata={"labels": labels})
    placed["spec"]["runPolicy"] = {"suspend": suspended}
    assert 8 - only(node(), placed).free_count == used


def test_a_record_of_a_node_is_that_of_the_worker_that_is_promised_the_node():
    notes = {"arena-topo.io/guarantee": "node"}
    placed = job("a", "node-a/0,1", template=notes)
    assert only(node(), placed, promised(annotations=notes)).unattributed == 2


@pytest.mark.parametrize(
    ("guarantee", "where", "ends", "counts"),
    [
        # Jobs are looked at as of a write, pods after it: it was resumed meanwhile.
        ("node", "node-a", False, [2, 0]),
        ("node", "node-a", True, [4, 0]),
        ("node", "node-b", False, [2, 2]),
        ("gpus", "node-a", False, [4, 0]),
    ],
)
def test_a_record_that_names_gpus_is_that_of_a_worker_there_which_names_none(
    guarantee: str, where: str, ends: object, counts: list[int]
):
    placed = job("a", "node-a/0,1", annotations=forecast_of(guarantee))
    placed["spec"]["runPolicy"] = {"suspend": True}
    notes = {"arena-topo.io/format": "v1", "arena-topo.io/guarantee": "node"}
    meta = {"deletionTimestamp": "2026-11-21T12:00:00Z"} if ends else {}
    worker = pod("a-worker-0", on=where, gpus=2, annotations=notes, metadata=meta)
    found = seen(node(), node("node-b"), placed, worker)
    assert [8 - one.free_count for one in found.nodes] == counts


def test_a_worker_that_claims_its_gpus_leaves_them_to_its_record():
    claiming = promised(gpus=0)
    assert only(node(), claiming).free_count == 8
    assert only(node(), job("a", "node-a/0,1"), claiming).free_count == 6


def test_the_record_of_a_job_without_containers_holds_no_gpus():
    """Such a job never has pods, so nobody would ever withdraw it."""
    empty = job("a", "node-a/0,1", annotations=asking(workers=1, gpus=2))
    empty["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"] = []
    found = seen(node(), empty)
    assert found.nodes[0].free_count == 8
    assert found.notes == (
        (
            "MPIJob default/a: its recorded placement makes no sense: its workers have no"
            " containers; only its pods are counted"
        ),
    )


# What the kubelet gave.

SEEN = 1_800_000_000.0
LATER, EARLIER = "2027-01-15T07:59:00Z", "2027-01-15T08:01:00Z"
"""Starts of pods before and after that: the agent has looked later, or earlier."""


def looked(*, on: str = "node-a", **given: tuple[int, ...]) -> dict[str, Any]:
    return published.config_map(
        presets.preset_machine("dgx-1-v100", on),
        gpu_set(range(8)),
        namespace="arena-topo-system",
        observed_at=SEEN,
        allocations={f"default/{name}": gpu_set(gpus) for name, gpus in given.items()},
    )


def test_what_the_kubelet_gave_to_a_foreign_pod_is_in_use():
    foreign = pod("w", gpus=2, status={"startTime": LATER})
    found = only(node(), foreign, looked(w=(1, 6)))
    assert (members(found.free), found.unattributed) == ((0, 2, 3, 4, 5, 7), 0)
    assert found.foreign


def test_what_a_foreign_pod_says_itself_counts_less_than_the_kubelets_word():
    foreign = pod("w", gpus=2, annotations=group("0,3"), status={"startTime": LATER})
    assert members(only(node(), foreign, looked(w=(1, 6))).free) == (0, 2, 3, 4, 5, 7)


@pytest.mark.parametrize("status", [{"startTime": EARLIER}, {}, {"startTime": "soon"}])
def test_an_allocation_older_than_a_pod_belongs_to_another_pod(status: dict[str, str]):
    foreign = pod("w", gpus=2, status=status)
    found = only(node(), foreign, looked(w=(1, 6)))
    assert (count(found.free), found.unattributed) == (8, 2)


def test_gpus_of_a_pod_beyond_its_kubelet_allocation_count_as_unattributed():
    found = only(node(), pod("w", gpus=3, status={"startTime": LATER}), looked(w=(1, 6)))
    assert (count(found.free), found.unattributed) == (6, 1)


def test_a_pod_of_ours_has_the_gpus_it_was_promised():
    ours = {**group("0,3"), "arena-topo.io/format": "v1"}
    mine = pod("w", gpus=2, annotations=ours, status={"startTime": LATER})
    assert members(only(node(), mine, looked(w=(1, 6))).free) == (1, 2, 4, 5, 6, 7)


def test_a_pod_of_ours_that_was_promised_its_node_has_what_the_kubelet_gave():
    ours = {
        **group("0,3"),
        "arena-topo.io/format": "v1",
        "arena-topo.io/guarantee": "node",
    }
    mine = pod("w", gpus=2, annotations=ours, status={"startTime": LATER})
    found = only(node(), mine, looked(w=(1, 6)))
    assert (members(found.free), found.unattributed) == ((0, 2, 3, 4, 5, 7), 0)
    assert not found.foreign
    late = pod("w", gpus=2, annotations=ours, status={"startTime": EARLIER})
    assert only(node(), late, looked(w=(1, 6))).unattributed == 2


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("allocations", "[1]", "data.allocations: expected a mapping, got a list"),
        (
            "allocations",
            '{"default/w": [99]}',
            "data.allocations[...][0]: expected a whole number <= 63",
        ),
        ("allocations", "x", "data.allocations: not JSON: "),
        ("observedAt", "yesterday", "data.observedAt: does not say when the allocations were seen"),
        ("uuids", '["a", "a"]', "data.uuids: does not name each GPU once"),
        ("uuids", '{"a": 1}', "data.uuids: expected a list, got a mapping"),
    ],
)
def test_what_an_agent_has_written_wrong_costs_nothing_else(key: str, text: str, said: str):
    wrong = looked(w=(1, 6))
    wrong["data"][key] = text
    found = seen(node(), pod("w", gpus=2, status={"startTime": LATER}), wrong)
    assert found.nodes[0].machine.knowledge is Knowledge.MEASURED
    assert found.nodes[0].free_count == 6
    (note,) = found.notes
    assert note.startswith(f"configmap arena-topo-system/node-a-gpu-topology {said}")


def test_uuids_that_an_agent_has_written_name_the_gpus():
    told = looked()
    told["data"]["uuids"] = json.dumps([f"GPU-{i}" for i in range(8)])
    assert [gpu.uuid for gpu in only(node(), told).machine.gpus] == [f"GPU-{i}" for i in range(8)]
    told["data"]["uuids"] = json.dumps(["GPU-0"])
    assert {gpu.uuid for gpu in only(node(), told).machine.gpus} == {None}


def test_nodes_with_agents_share_one_matrix():
    one, other = seen(node("a"), node("b"), looked(on="a", w=(1,)), looked(on="b")).nodes
    assert one.machine.links is other.machine.links


def test_our_own_namespace_is_believed_before_acks():
    theirs = config_map(healthy=gpu_set(range(4)))
    for order in ((theirs, looked()), (looked(), theirs)):
        found = seen(node(), *order)
        assert members(found.nodes[0].free) == tuple(range(8))
        assert found.notes == ()


def test_an_agent_that_has_not_looked_for_long_is_a_note():
    def notes(now: float | None, *others: dict[str, Any]) -> tuple[str, ...]:
        objects = records_of((node(), looked(), *others))
        return observed.ClusterReader(source="test").read(objects, now=now).cluster.notes

    assert notes(SEEN + 600) == ()
    assert notes(None) == ()
    assert notes(SEEN + 3 * 3600) == (
        (
            "node node-a was last looked at 3 h ago, as configmap"
            " arena-topo-system/node-a-gpu-topology says; check that its agent runs"
        ),
    )
    newer = looked(on="node-b")
    newer["data"]["observedAt"] = "2027-01-15T08:30:00Z"
    assert notes(None, node("node-b"), newer) == (
        (
            "node node-a was last looked at 30 min ago, as configmap"
            " arena-topo-system/node-a-gpu-topology says; check that its agent runs"
        ),
    )
