"""What Kubernetes objects say of a cluster: machines, free GPUs, and doubt that is never hope."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kube_objects import (
    bare,
    claim,
    config_map,
    group,
    job,
    node,
    only,
    pod,
    record_of,
    resource_slice,
    seen,
)

from arena_topo.clusters import observed, records, rules
from arena_topo.clusters.usage import NodeUsage
from arena_topo.manifests import RESERVED_ANNOTATION
from arena_topo.topology import (
    Knowledge,
    Link,
    LinkKind,
    Taint,
    count,
    gpu_set,
    members,
)


def test_a_published_matrix_is_the_machine_whatever_the_labels_say():
    found = only(node(labels={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}), config_map())
    assert found.machine.knowledge is Knowledge.MEASURED
    assert found.machine.link(0, 3) == Link(kind=LinkKind.NVLINK, lanes=2)
    assert found.machine.name == "node-a"


def test_without_a_config_map_a_known_product_is_an_assumed_machine():
    found = only(node(labels={"nvidia.com/gpu.product": "Tesla-V100-SXM2-32GB"}))
    assert found.machine.knowledge is Knowledge.ASSUMED
    assert found.machine.link(0, 4) == Link(kind=LinkKind.NVLINK, lanes=2)


def test_a_node_that_says_nothing_has_unknown_links():
    found = only(node(gpus=4))
    assert found.machine.knowledge is Knowledge.UNKNOWN
    assert members(found.free) == (0, 1, 2, 3)


def test_a_broken_config_map_is_a_note_and_the_rest_of_the_cluster_still_works():
    broken = config_map()
    broken["data"]["linkType"] = '[["N-A", "NV1"], ["NV1"]]'
    cluster = seen(node(), node("node-b"), broken, config_map("node-b"))
    assert [one.machine.knowledge for one in cluster.nodes] == [
        Knowledge.UNKNOWN,
        Knowledge.MEASURED,
    ]
    (note,) = cluster.notes
    assert "configmap kube-system/node-a-gpu-topology" in note
    assert "using the labels of node node-a" in note


def test_a_config_map_outside_kube_system_has_no_effect():
    forged = config_map()
    forged["metadata"]["namespace"] = "default"
    assert only(node(), forged).machine.knowledge is Knowledge.UNKNOWN


def test_a_config_map_that_describes_fewer_gpus_than_the_node_offers_is_not_believed():
    cluster = seen(node(gpus=16), config_map())
    assert len(cluster.nodes[0].machine.gpus) == 16
    assert "describes 8 GPUs, but node node-a offers 16" in cluster.notes[0]


def test_nodes_with_equal_config_maps_share_one_matrix():
    cluster = seen(*(node(f"n{i}") for i in range(3)), *(config_map(f"n{i}") for i in range(3)))
    first, *others = (one.machine.links for one in cluster.nodes)
    assert all(links is first for links in others)
    assert [one.machine.name for one in cluster.nodes] == ["n0", "n1", "n2"]


def test_nodes_of_one_instance_type_share_what_the_solver_would_have_to_compare():
    labels = {"node.kubernetes.io/instance-type": "p5.48xlarge"}
    first, second = (
        one.machine for one in seen(*(node(f"n{i}", labels=labels) for i in (0, 1))).nodes
    )
    assert first.nics_plugin is not None
    assert (first.nics is second.nics, first.software is second.software) == (True, True)


def test_equal_matrices_of_different_gpu_models_are_different_machines():
    cluster = seen(
        node("n0", labels={"nvidia.com/gpu.product": "Tesla-V100-SXM2-32GB"}),
        node("n1", labels={"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}),
        config_map("n0"),
        config_map("n1"),
    )
    assert [one.machine.model for one in cluster.nodes] == ["V100", "A100"]


def test_gpus_that_a_gang_has_already_are_not_reserved_for_its_next_start_as_well():
    moving = job("m", "node-a/1,2", annotations={"arena-topo.io/reserved": "node-a/0,1"})
    found = only(node(), config_map(), moving)
    assert members(found.free) == (3, 4, 5, 6, 7)
    assert (members(found.reserved_gpus), found.free_count) == ((0,), 5)


def test_the_next_start_of_a_gang_has_its_cpu_and_memory_reserved_until_its_pods_use_them():
    notes = {"arena-topo.io/reserved": "node-a/0,1;node-a/2,3"}
    stopped = job("m", "", state="waiting", annotations=notes, worker={"replicas": 2})
    limits = stopped["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    limits["resources"]["limits"] |= {"cpu": "6", "memory": "8Gi"}
    found = only(node(), config_map(), stopped)
    assert (found.cpu, found.memory) == (32 - 2 * 6, (64 - 2 * 8) << 30)
    assert (found.unreserved.cpu, found.unreserved.memory) == (32, 64 << 30)
    ending = pod("m-worker-0", gpus=2, requests={"cpu": "6"})
    assert only(node(), config_map(), stopped, ending).cpu == 32 - 2 * 6


def test_a_pod_that_names_its_devices_makes_exactly_those_busy():
    found = only(node(), pod("w", gpus=2, annotations=group("0,3")))
    assert members(found.free) == (1, 2, 4, 5, 6, 7)
    assert found.unattributed == 0


def test_only_pods_that_carry_our_format_are_not_foreign():
    """Other schedulers write device ids too, and are not bound by what we inject."""
    theirs = pod("w", gpus=2, annotations=group("0,3"))
    ours = pod("w", gpus=2, annotations={**group("0,3"), "arena-topo.io/format": "v1"})
    assert (only(node(), theirs).foreign, only(node(), ours).foreign) == (True, False)


@pytest.mark.parametrize(
    "text",
    [
        '{"allocatedGPUs": {"0": ["1", "2"]}, "visibleGPUs": ["1", "2"], "assumeTime": 7}',
        '{"allocatedGPUs": {"0": ["1"], "1": ["2"]}}',
        "[1, 2]",
        "1,2",
        " 1, 2 ",
    ],
)
def test_acks_allocation_is_read_in_every_known_shape(text: str):
    annotations = {"gputopology.alibabacloud.com/allocation": text}
    found = only(node(), pod("w", gpus=2, annotations=annotations))
    assert members(found.free) == (0, 3, 4, 5, 6, 7)
    assert found.unattributed == 0


def test_container_indexes_in_acks_allocation_are_no_devices():
    annotations = {"gputopology.alibabacloud.com/allocation": '{"allocatedGPUs": {"0": ["5"]}}'}
    found = only(node(), pod("w", annotations=annotations))
    assert members(found.free) == (0, 1, 2, 3, 4, 6, 7)


def test_a_pod_without_device_ids_is_counted_and_makes_its_node_opaque_and_foreign():
    found = only(node(), pod("w", gpus=3))
    assert (found.free_count, found.unattributed, found.foreign) == (5, 3, True)


def test_devices_that_are_only_planned_are_hidden_not_known():
    annotations = {
        **group("0,3"),
        "arena-topo.io/guarantee": "node",
        "arena-topo.io/format": "v1",
    }
    found = only(node(), pod("w", gpus=2, annotations=annotations))
    assert (count(found.free), found.unattributed, found.foreign) == (8, 2, False)


def test_devices_guaranteed_by_the_plan_are_known():
    annotations = {**group("0,3"), "arena-topo.io/guarantee": "gpus"}
    found = only(node(), pod("w", gpus=2, annotations=annotations))
    assert (count(found.free), found.unattributed) == (6, 0)


@pytest.mark.parametrize("text", ["zero", "", " "])
def test_devices_that_make_no_sense_count_as_hidden_and_are_noted(text: str):
    cluster = seen(node(), pod("w", gpus=2, annotations=group(text)))
    assert (cluster.nodes[0].free_count, cluster.nodes[0].unattributed) == (6, 2)
    assert "pod default/w: annotation topology.kubernetes.io/gpu-group" in cluster.notes[0]


def test_a_device_that_the_node_does_not_have_is_hidden_somewhere_else():
    cluster = seen(node(gpus=4), pod("w", gpus=2, annotations=group("1,9")))
    assert members(cluster.nodes[0].free) == (0, 2, 3)
    assert cluster.nodes[0].unattributed == 1
    assert (
        "says it has GPU 9 of node node-a, which has 4; it counts as a GPU of unknown index"
        in cluster.notes[0]
    )


def test_two_pods_with_one_device_make_another_unattributed():
    found = only(
        node(), pod("v", annotations=group("0")), pod("w", gpus=2, annotations=group("0,1"))
    )
    assert (count(found.free), found.unattributed) == (6, 1)


def test_a_pod_with_fewer_ids_than_gpus_hides_the_difference():
    found = only(node(), pod("w", gpus=4, annotations=group("0,1")))
    assert (count(found.free), found.unattributed) == (6, 2)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_finished_pods_hold_nothing(phase: str):
    found = only(node(), pod("w", gpus=8, phase=phase, requests={"cpu": "8"}))
    assert (found.free_count, found.cpu, found.foreign) == (8, 32.0, False)


def test_terminating_pods_hold_their_gpus():
    gone = {"deletionTimestamp": "2026-11-21T07:00:00Z"}
    assert only(node(), pod("w", gpus=2, annotations=group("0,1"), metadata=gone)).free_count == 6


def test_pods_without_a_node_hold_nothing():
    assert only(node(), pod("w", on=None, gpus=8, phase="Pending")).free_count == 8


def test_a_full_node_leaves_nothing_in_doubt():
    found = only(node(), pod("v", gpus=4, annotations=group("0,1,2,3")), pod("w", gpus=4))
    assert (found.free, found.unattributed) == (0, 0)


def test_gpus_of_either_resource_count_and_acks_comes_first():
    both = node()
    both["status"]["allocatable"] = both["status"]["capacity"] = {
        "aliyun.com/gpu": "8",
        "nvidia.com/gpu": "8",
    }
    held = pod("w", gpus=0)
    held["spec"]["containers"][0]["resources"]["limits"] = {"aliyun.com/gpu": "2"}
    found = only(both, held)
    assert (found.resource, found.free_count) == ("aliyun.com/gpu", 6)


def test_recorded_placements_hold_gpus_until_their_pods_do():
    record = job("a", "node-a/0,3;node-a/1,2")
    assert members(only(node(), record).free) == (4, 5, 6, 7)
    bound = pod("a-worker-0", gpus=2, annotations=group("0,3"))
    assert members(only(node(), record, bound).free) == (4, 5, 6, 7)
    elsewhere = pod("a-worker-0", gpus=2, annotations=group("6,7"))
    assert members(only(node(), record, elsewhere).free) == (0, 3, 4, 5)


def test_a_record_still_counts_while_its_pod_waits_for_a_node():
    waiting = pod("a-worker-0", on=None, gpus=2, phase="Pending")
    assert members(only(node(), job("a", "node-a/0,3"), waiting).free) == (1, 2, 4, 5, 6, 7)


@pytest.mark.parametrize(
    "record",
    [
        job("a", "node-a/0,3", state="waiting"),
        job("a", "node-a/0,3", state="held"),
        job("a", "node-a/0,3", status={"conditions": [{"type": "Succeeded", "status": "True"}]}),
        job("a", "node-a/0,3", status={"conditions": [{"type": "Failed", "status": "True"}]}),
        job("a", "node-a/0,3", status={"launcherStatus": "Failed"}),
        job("a", "node-a/0,3", metadata={"deletionTimestamp": "2026-11-21T07:00:00Z"}),
    ],
)
def test_jobs_that_wait_or_have_ended_record_nothing(record: dict[str, Any]):
    assert only(node(), record).free_count == 8


def test_a_job_that_runs_again_after_a_failed_condition_turned_false_still_counts():
    status = {"conditions": [{"type": "Failed", "status": "False"}]}
    assert only(node(), job("a", "node-a/0,3", status=status)).free_count == 6


def test_recorded_placements_whose_devices_the_kubelet_picks_are_hidden():
    for record in (
        job("a", "node-a/;node-a/"),
        job("a", "node-a/0,3;node-a/1,2", template={"arena-topo.io/guarantee": "node"}),
    ):
        found = only(node(), record)
        assert (count(found.free), found.unattributed) == (8, 4)


def test_an_invalid_record_is_a_note():
    cluster = seen(node(), job("a", "node-a"))
    assert cluster.nodes[0].free_count == 8
    assert "MPIJob default/a: its recorded placement makes no sense" in cluster.notes[0]


def test_unhealthy_devices_are_neither_free_nor_allocatable():
    found = only(node(gpus=7), config_map(healthy=gpu_set([0, 1, 2, 4, 5, 6, 7])))
    assert members(found.free) == (0, 1, 2, 4, 5, 6, 7)
    assert found.free == found.allocatable
    assert found.unattributed == 0


def test_fewer_allocatable_gpus_than_known_ones_hide_the_difference():
    found = only(node(gpus=6), config_map())
    assert (count(found.free), found.unattributed, found.free_count) == (8, 2, 6)


def test_a_gpu_that_fell_off_the_bus_is_remembered_by_the_label():
    found = only(
        node(
            gpus=7,
            labels={
                "nvidia.com/gpu.count": "8",
                "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
            },
        )
    )
    assert (len(found.machine.gpus), found.machine.nvswitch, found.free_count) == (8, True, 7)


def test_a_node_without_its_device_plugin_offers_no_gpus():
    bare = node()
    bare["status"]["allocatable"] = bare["status"]["capacity"] = {"cpu": "8"}
    found = only(bare, config_map())
    assert (found.free_count, found.allocatable, found.memory) == (0, 0, None)


def test_cpu_and_memory_are_what_requests_leave():
    found = only(
        node(),
        pod("v", gpus=0, requests={"cpu": "1500m", "memory": "1Gi"}),
        pod("w", gpus=0, requests={"cpu": "2", "memory": "1Gi"}),
    )
    assert (found.cpu, found.memory) == (28.5, 62 * 2**30)


def test_init_containers_count_by_the_larger_of_them_and_the_others():
    def asking(cpu: str, **more: str) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    first = {"initContainers": [asking("5"), asking("3")]}
    sidecar = {"initContainers": [asking("2", restartPolicy="Always"), asking("5")]}
    assert only(node(), pod("w", requests={"cpu": "4"}, spec=first)).cpu == 32 - 5
    assert only(node(), pod("w", requests={"cpu": "6"}, spec=first)).cpu == 32 - 6
    assert only(node(), pod("w", requests={"cpu": "4"}, spec=sidecar)).cpu == 32 - 7
    assert only(node(), pod("w", requests={"cpu": "6"}, spec=sidecar)).cpu == 32 - 8


def test_requests_that_a_dump_leaves_out_are_its_limits_and_overhead_is_added():
    bare = pod("w", gpus=0, spec={"overhead": {"cpu": "250m"}})
    bare["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1"}}
    assert only(node(), bare).cpu == 30.75


def test_a_node_that_offers_nothing_is_not_limited():
    bare = node()
    bare["status"] = {}
    found = only(bare, config_map())
    assert (found.cpu, found.memory, found.free_count) == (None, None, 8)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"conditions": [{"type": "Ready", "status": "False"}]}, "NotReady"),
        ({"conditions": [{"type": "Ready", "status": "Unknown"}]}, "NotReady"),
        ({"spec": {"unschedulable": True}}, "cordoned"),
        ({"conditions": [{"type": "Ready", "status": "True"}]}, None),
    ],
)
def test_nodes_say_why_they_are_unavailable(more: dict[str, Any], reason: str | None):
    assert only(node(**more)).unavailable == reason


def test_shared_gpus_are_not_a_passing_state_of_their_node():
    found = only(node(labels={"nvidia.com/gpu.replicas": "4"}))
    assert (found.unavailable, found.shared) == (None, "GPUs are shared (4 replicas of each)")


def test_totals_of_a_node_are_recorded_beside_the_free_amounts():
    found = only(node(), pod("w", gpus=1, spec={"overhead": {"cpu": "2"}}))
    assert found.all_cpu == 32.0
    assert found.cpu is not None
    assert found.cpu < found.all_cpu
    assert found.all_memory is not None


def test_taints_are_read_and_make_a_labelled_node_dedicated():
    ours = {"key": "arena-topo.io/topology", "effect": "NoSchedule"}
    tainted = {"taints": [ours, {"key": "team", "value": "a", "effect": "NoExecute"}]}
    label = {"arena-topo.io/topology": "true"}
    found = only(node(spec=tainted, labels=label))
    assert found.dedicated
    assert found.taints[1] == Taint(key="team", value="a", effect="NoExecute")
    assert not only(node(labels=label)).dedicated
    assert not only(node(spec=tainted)).dedicated
    assert only(node(labels={"ack.node.gpu.schedule": "topology"})).dedicated


def test_of_two_nodes_with_one_name_the_first_counts():
    cluster = seen(node(gpus=4), node(gpus=8))
    assert [len(one.machine.gpus) for one in cluster.nodes] == [4]
    assert cluster.notes == ("node node-a is listed twice; the first one counts",)


def test_nodes_are_in_natural_order():
    cluster = seen(node("n10"), node("n9"), node("n1"))
    assert [one.name for one in cluster.nodes] == ["n1", "n9", "n10"]


@pytest.mark.parametrize("kind", ["Node", "Pod", "MPIJob", "ConfigMap"])
@pytest.mark.parametrize(
    "nonsense",
    [
        {},
        {"metadata": None},
        {"metadata": []},
        {"metadata": {"name": 7}},
        {"metadata": {"name": "x", "labels": "y", "annotations": "z"}, "spec": [], "status": 1},
        {"metadata": {"name": "x"}, "spec": {"taints": {}, "nodeName": "n", "containers": [1]}},
        {"metadata": {"name": "x"}, "status": {"conditions": "no", "phase": {}}, "data": []},
    ],
)
def test_nonsense_never_crashes_and_spoils_nothing(kind: str, nonsense: dict[str, Any]):
    cluster = seen({"kind": kind, **nonsense}, node())
    assert "node-a" in [one.name for one in cluster.nodes]


def test_no_note_is_lost_and_each_names_its_object():
    pods = [pod(f"w{i}", gpus=1, annotations=group("x")) for i in range(10)]
    notes = seen(node(), *pods).notes
    assert len(notes) == 10
    assert all(f"pod default/w{i}: annotation" in note for i, note in enumerate(notes))
    assert notes[0].endswith("; it has 1 of the GPUs of node node-a, it is not known which")


def test_a_quantity_that_is_none_is_a_note_and_its_pod_may_hold_every_gpu():
    bad = pod("w")
    bad["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": "two"}
    found = seen(node(), bad)
    assert "pod default/w asks for resources that make no sense" in found.notes[0]
    assert found.notes[0].endswith("; every GPU of node node-a counts as in use")
    assert found.nodes[0].free_count == 0


@pytest.mark.parametrize("side", ["capacity", "allocatable"])
@pytest.mark.parametrize("key", ["nvidia.com/gpu", "cpu", "memory", "rdma/ib"])
def test_a_node_that_offers_what_is_no_quantity_is_left_out_with_a_note(key: str, side: str):
    odd = node()
    odd["status"][side] = {**odd["status"][side], key: "banana"}
    found = seen(odd, node("node-b"))
    assert found.notes == (
        "Node node-a is ignored: 'banana' is not a quantity such as 500m, 2 or 4Gi",
    )
    assert [one.name for one in found.nodes] == ["node-b"]


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        (
            "linkType",
            '[["N-A", "banana"], ["NV1", "N-A"]]',
            (
                "data.linkType[0][1]: 'banana' is not a link nvidia-smi knows (X, NV#, PIX, PXB,"
                " PHB, NODE, SYS); using the labels of node node-a"
            ),
        ),
        (
            "linkType",
            '[["N-A", "NV1"], ["NV1"]]',
            "data.linkType[1]: expected a list of length 2, got 1; using the labels of node node-a",
        ),
        (
            "bandwidth",
            "[[-5.0]]",
            (
                "data.bandwidth[0][0]: expected a number >= 0.0; it is for display only, and"
                " node node-a does without"
            ),
        ),
        (
            "busBandwidth",
            '{"0,7": 3}',
            (
                "data.busBandwidth['0,7']: GPU 7 of 2 is out of range; what sets of GPUs of"
                " node node-a reach is computed from its links"
            ),
        ),
        (
            "devices",
            '{"0":"Healthy","9":"Healthy"}',
            (
                'data.devices: does not number the GPUs, as in {"0":"Healthy"}; using the labels of'
                " node node-a"
            ),
        ),
    ],
)
def test_a_note_says_what_replaces_an_invalid_config_map(key: str, text: str, said: str):
    broken = config_map()
    broken["data"] = {"nodeName": "node-a", "devices": '{"0":"Healthy","1":"Healthy"}', key: text}
    found = seen(node(gpus=2), broken, node("node-b"))
    assert found.notes == (f"configmap kube-system/node-a-gpu-topology {said}",)
    assert found.nodes[1].free_count == 8


def test_what_was_measured_of_a_machine_counts_for_all_machines_like_it():
    one, other = config_map("node-a"), config_map("node-b")
    one["data"]["busBandwidth"] = '{"0,1": 11.5, "1,2": 12.5}'
    other["data"]["busBandwidth"] = '{"0,1": 14.0}'
    size = len(json.loads(one["data"]["devices"]))
    nodes = [node(name, gpus=size) for name in ("node-a", "node-b")]
    found = seen(*nodes, one, other, node("node-c", gpus=2))
    assert [dict(one.machine.measured) for one in found.nodes] == [
        {0b11: 11.5, 0b110: 12.5},
        {0b11: 14.0, 0b110: 12.5},
        {},
    ]


@pytest.mark.parametrize("side", ["nvidia.com/gpu", "cpu", "memory"])
@pytest.mark.parametrize("huge", ["1e400", "1e99999999", "9e999999", "1e30", 10**400])
def test_a_quantity_beyond_all_bounds_is_noted_and_stops_nothing(side: str, huge: object):
    odd = node(labels={"nvidia.com/gpu.count": "8"})
    odd["status"]["allocatable"] = {**odd["status"]["allocatable"], side: huge}
    odd["status"]["capacity"] = odd["status"]["allocatable"]
    (note,) = (found := seen(odd, node("node-b"), config_map())).notes
    assert note.startswith("Node node-a is ignored: ")
    assert note.endswith(" is out of range")
    assert [one.free_count for one in found.nodes] == [8]


def test_pods_whose_requests_add_up_beyond_all_bounds_stop_nothing():
    huge = pod("w")
    huge["spec"]["containers"] = [{"resources": {"limits": {"nvidia.com/gpu": "9e307"}}}] * 9
    found = seen(node(), huge)
    assert "pod default/w asks for resources that make no sense" in found.notes[0]
    assert found.nodes[0].free_count == 0


@pytest.mark.parametrize("huge", ["65", "10000", "1e9"])
@pytest.mark.parametrize("published_too", [True, False])
def test_more_gpus_than_a_machine_can_have_are_none_and_noted(huge: str, *, published_too: bool):
    odd = node()
    odd["status"]["capacity"] = odd["status"]["allocatable"] = {"nvidia.com/gpu": huge}
    found = seen(odd, node("node-b"), *([config_map()] if published_too else []))
    assert found.notes == (
        (
            f"node node-a: nvidia.com/gpu is {float(huge):.15g}, but one machine has at most 64"
            " GPUs; it is taken for none"
        ),
    )
    assert found.nodes[0].free_count == 0
    assert len(found.nodes[0].machine.gpus) == (8 if published_too else 0)
    assert found.nodes[1].free_count == 8


def test_a_label_that_counts_more_gpus_than_a_machine_can_have_is_not_believed():
    assert only(node(labels={"nvidia.com/gpu.count": "99999"})).free_count == 8


@pytest.mark.parametrize(
    "labels",
    [
        {"nvidia.com/gpu.replicas": "10", "nvidia.com/gpu.count": "8"},
        {"nvidia.com/gpu.replicas": "10"},
    ],
)
def test_gpus_that_are_shared_by_time_count_once(labels: dict[str, str]):
    found = seen(node(gpus=80, labels=labels))
    assert found.notes == ()
    assert len(found.nodes[0].machine.gpus) == 8
    assert found.nodes[0].shared == "GPUs are shared (10 replicas of each)"


def test_a_config_map_whose_label_names_another_node_is_noted_though_its_twin_was_read():
    twin = config_map("node-b")
    twin["metadata"]["labels"]["nodename"] = "node-a"
    found = seen(node(), node("node-b"), config_map(), twin)
    assert found.notes == (
        (
            "configmap kube-system/node-b-gpu-topology data.nodeName: 'node-b', but the label"
            " nodename is 'node-a'; using the labels of node node-b"
        ),
    )
    assert found.nodes[1].machine.knowledge is Knowledge.UNKNOWN


@pytest.mark.parametrize("name", [5, ["node-a"], {"a": 1}, True])
def test_a_config_map_whose_node_is_no_name_is_noted(name: object):
    junk = config_map()
    junk["data"]["nodeName"] = name
    (note,) = seen(node(), junk).notes
    assert note.startswith("ConfigMap node-a-gpu-topology is ignored: data[...]: expected a text, ")


def test_the_config_map_of_a_missing_node_is_ignored():
    assert seen(node(), config_map("gone")) == seen(node())


@given(
    number=st.integers(0, 10**20),
    suffix=st.sampled_from(["", "Ki", "Mi", "m", "k", "e2"]),
    zeros=st.integers(0, 3),
)
@example(number=1 << 63, suffix="", zeros=0)
@example(number=1 << 53, suffix="Ki", zeros=0)
def test_a_quantity_is_worth_what_its_exact_reading_is(number: int, suffix: str, zeros: int):
    text = f"{'0' * zeros}{number}{suffix}"
    worth = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "m": "0.001", "k": 1000, "e2": 100}
    exact = number * Decimal(worth[suffix])
    if exact < 1 << 63:
        assert rules.parse_quantity(text) == float(exact)
    else:
        with pytest.raises(ValueError, match="out of range"):
            rules.parse_quantity(text)


def test_config_maps_too_many_or_of_no_node_are_named_with_what_becomes_of_them():
    second = config_map()
    second["metadata"]["name"] = "again"
    nobody = config_map()
    nobody["metadata"] = {
        "name": "stray",
        "namespace": "kube-system",
        "labels": {"ack.node.gpu.schedule": "topology"},
    }
    del nobody["data"]["nodeName"]
    assert seen(node(), config_map(), second, nobody).notes == (
        "configmap kube-system/again is the second for node node-a; the first one counts",
        "configmap kube-system/stray does not say which node it is of; it is not used",
    )


def test_nothing_that_a_terminal_would_obey_is_in_a_note():
    found = seen(node("x\x1b[31mred\n"), node("N" * 300), {"kind": "Pod"})
    assert found.notes == (
        "Node x\\x1b[31mred is ignored: no node can be called so",
        f"Node {'N' * 63}... (237 more characters) is ignored: no node can be called so",
        "Pod without a name is ignored: object missing required field metadata",
    )


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        ({"name": None}, "metadata.name: expected a text, got nothing"),
        ({"labels": None}, "metadata: object missing required field name"),
    ],
)
def test_a_required_field_that_is_null_is_named(meta: dict[str, Any], said: str):
    assert seen({"kind": "Pod", "metadata": meta}).notes == (
        f"Pod without a name is ignored: {said}",
    )


def test_an_object_says_the_same_as_json_and_as_plain_values():
    objects = [
        node(spec={"taints": [{"key": "k", "effect": "NoSchedule"}]}),
        pod("v", gpus=2, annotations=group("0,1"), requests={"cpu": "1"}),
        pod("w", gpus=1, phase="Failed"),
        job("a", "node-a/4,5"),
        config_map(),
    ]
    read = [
        records.read_record(one["kind"], msgspec.Raw(json.dumps(one).encode())) for one in objects
    ]
    assert read == [record_of(one) for one in objects]
    assert observed.cluster(read, source="test") == seen(*objects)


_NONSENSE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "x", "1", "0,3"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("metadata", "spec", "status", "data", "name", "namespace", "labels"),
                    *("annotations", "nodeName", "containers", "initContainers", "resources"),
                    *("limits", "requests", "nvidia.com/gpu", "cpu", "conditions", "taints", "key"),
                    *("type", "phase", "allocatable", "capacity", "template", "mpiReplicaSpecs"),
                    *("Worker", "nodeName", "devices", "linkType", "ack.node.gpu.schedule"),
                    *("arena-topo.io/placement", "topology.kubernetes.io/gpu-group"),
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(
    things=st.lists(
        st.tuples(
            st.sampled_from(["Node", "Pod", "MPIJob", "ConfigMap"]),
            st.dictionaries(st.sampled_from(["metadata", "spec", "status", "data"]), _NONSENSE),
        ),
        max_size=4,
    )
)
def test_no_object_whatever_its_shape_stops_the_reader(things: list[tuple[str, dict[str, Any]]]):
    objects = []
    for kind, thing in things:
        meta = thing.get("metadata")
        named = {"name": "node-a", **meta} if isinstance(meta, dict) else {"name": "node-a"}
        objects.append({"kind": kind, **thing, "metadata": named})
    assert "node-b" in [one.name for one in seen(*objects, node("node-b")).nodes]


def test_a_broken_display_matrix_costs_neither_links_nor_health():
    sick = config_map()
    sick["data"]["devices"] = sick["data"]["devices"].replace('"3":"Healthy"', '"3":"Unhealthy"')
    sick["data"]["bandwidth"] = "garbage"
    found = seen(node(), sick)
    assert members(found.nodes[0].free) == (0, 1, 2, 4, 5, 6, 7)
    assert found.nodes[0].machine.knowledge is Knowledge.MEASURED
    assert any("data.bandwidth" in note for note in found.notes)


def test_an_unreadable_cpu_request_does_not_free_the_gpus_of_its_pod():
    odd = pod("w", gpus=2, annotations=group("0,3"), spec={"overhead": {"cpu": "two"}})
    found = seen(node(), odd)
    assert members(found.nodes[0].free) == (1, 2, 4, 5, 6, 7)
    assert any("make no sense" in note for note in found.notes)


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ({"metadata": {"annotations": {"team": 7}}}, "metadata.annotations[...]: expected a text"),
        ({"spec": {"initContainers": {}}}, "spec.initContainers: expected a list"),
        ({"spec": {"overhead": 7}}, "overhead is no mapping"),
        ({"status": {"phase": ["Failed"]}}, "status.phase: expected a text"),
        ({"status": [], "metadata": {"name": ""}}, "metadata.name: expected a text of length"),
    ],
)
def test_a_pod_that_cannot_be_read_frees_no_gpu_of_its_node(odd, why):
    broken = pod("w", gpus=2)
    for part, value in odd.items():
        broken[part] = broken[part] | value if isinstance(value, dict) else value
    found = seen(node(), node("node-b"), broken)
    assert [one.free.bit_count() for one in found.nodes] == [0, 8]
    (note,) = found.notes
    assert why in note
    assert note.endswith("; every GPU of node node-a counts as in use")
    for over in ({"status": {"phase": "Failed"}}, {"spec": {"nodeName": None}}):
        ended = broken | {"metadata": {"name": "w", "labels": [], "annotations": 7}} | over
        assert [one.free.bit_count() for one in seen(node(), ended).nodes] == [8]


def test_a_name_that_no_node_can_have_is_noted_and_left_out():
    found = seen(node(), node("Node_A"))
    assert [one.name for one in found.nodes] == ["node-a"]
    assert any("Node_A" in note for note in found.notes)


_NAMES = ("node-a", "node-b", "node-c")
_ENTRIES = ("one", "two", "three")
_GROUPS = ("0", "0,1", "2,3", "7", "9", "nonsense")


@st.composite
def _used_by(draw: st.DrawFn, name: str, *, odd: bool) -> dict[str, Any]:
    """A pod, the pod of a worker, a job with recorded workers, or a claim, of this name.

    A claim, or an entry that gets a note, is `odd`: with one, all nodes are worked out again.
    """
    nodes, groups = (_NAMES, _GROUPS) if odd else (_NAMES[:2], _GROUPS[:4])
    # Hypothesis prefers the first of several: for a pod another node than for a record.
    on, ids = draw(st.sampled_from((*reversed(nodes), None))), draw(st.sampled_from(groups))
    claims = ("claim",) if odd else ()
    kinds = ("job",) if name == "one" else ("pod", "worker", "worker", "worker", "job", *claims)
    match draw(st.sampled_from(kinds)):
        case "job":
            places, reserved = (
                ";".join(
                    f"{draw(st.sampled_from(nodes))}/{draw(st.sampled_from(('', '0', '4,5')))}"
                    for _ in range(2)
                )
                for _ in range(2)
            )
            state = draw(st.sampled_from(("placed", "placed", "waiting")))
            again = draw(st.sampled_from(({}, {RESERVED_ANNOTATION: reserved})))
            return job(name, places, state=state, annotations=again)
        case "claim":
            return claim(name, "gpu-0", node=draw(st.sampled_from(nodes)))
        case kind:
            asked = {"cpu": draw(st.sampled_from(("1", "2", *(("no number",) if odd else ()))))}
            phase = draw(st.sampled_from(("Running", "Running", "Succeeded")))
            notes = group(ids) | draw(st.sampled_from(({}, {"arena-topo.io/format": "v1"})))
            more = {"annotations": notes, "requests": asked, "phase": phase}
            if kind == "worker":
                # More than one entry may be of this name, as while a pod is replaced.
                name = f"one-worker-{draw(st.integers(0, 1))}"
            return pod(name, on=on, gpus=draw(st.integers(0, 3)), **more)


@settings(max_examples=100)
@given(st.data())
def test_a_cluster_that_is_read_again_is_the_same_as_one_that_is_read_for_the_first_time(
    data: st.DataObject,
):
    still = [entry for name in _NAMES[:2] for entry in (node(name), config_map(name))]
    still += [bare(_NAMES[2]), resource_slice(_NAMES[2])]
    static = [record_of(entry) for entry in still]
    odd = data.draw(st.sampled_from((False, False, True)))
    of = {name: record_of(data.draw(_used_by(name, odd=odd))) for name in _ENTRIES}
    again = observed.ClusterReader(source="test")
    for _ in range(data.draw(st.integers(1, 6))):
        for name in data.draw(st.sets(st.sampled_from((*_ENTRIES, "four")))):
            if of.pop(name, None) is None or data.draw(st.booleans()):
                of[name] = record_of(data.draw(_used_by(name, odd=odd)))
        objects = [entry for entry in (*static, *of.values()) if entry is not None]
        some = [entry for entry in objects if not isinstance(entry, records.JobRecord)]
        for seen_now in (objects, some):
            fresh = observed.ClusterReader(source="test").read(seen_now, now=0.0)
            known = again.read(seen_now, now=0.0)
            assert known.cluster == fresh.cluster
            assert {
                n: use for n, use in known.uses.items() if n in _NAMES and use != NodeUsage()
            } == {n: use for n, use in fresh.uses.items() if n in _NAMES and use != NodeUsage()}


def test_a_pod_elsewhere_frees_the_node_that_is_recorded_for_its_worker_when_read_again():
    still = [entry for name in _NAMES[:2] for entry in (node(name), config_map(name))]
    recorded = [record_of(entry) for entry in (*still, job("one", "node-a/0,1"))]
    reader = observed.ClusterReader(source="test")
    assert [one.free_count for one in reader.read(recorded).cluster.nodes] == [6, 8]
    moved = record_of(pod("one-worker-0", on="node-b", gpus=2, annotations=group("0,1")))
    assert [one.free_count for one in reader.read([*recorded, moved]).cluster.nodes] == [8, 6]
