"""What `top node` and `top job` show, compared whole with the files in `screens/`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from arena_nodes import (
    addressed,
    arenas_node,
    asking,
    document,
    measured,
    mixed,
    only,
    screen,
    seen,
    sharing,
)
from kube_objects import config_map, group, job, node, pod, resource_slice, uuid
from plain_text import plain

from arena_topo.engines import Instance, JobStatus, Phase
from arena_topo.engines.metrics import GpuSample
from arena_topo.engines.occupancy import Mode
from arena_topo.jobs import job_order
from arena_topo.jobs import top as topjob
from arena_topo.manifests import PlacementForecast
from arena_topo.nodes import top_view

NOW = 1795244530.0
"""130 seconds after 2026-11-21 07:00:00 UTC."""


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


# ---------------------------------------------------------------- arena's screens


def test_a_topology_node_is_shown_as_arena_shows_it():
    found = only(*arenas_node(), asking("mpi-dist-worker-0", "node-a", 2, annotations=group("0,3")))
    assert plain(top_view.details([found])) == screen("top-node-topology.txt")


def test_a_mixed_cluster_is_shown_as_arena_shows_it():
    assert plain(top_view.nodes_table(seen(*mixed()).nodes)) == screen("top-node-mixed.txt")


def test_a_cluster_of_one_class_has_no_column_for_it():
    found = seen(
        addressed("node-b", "10.0.0.2", gpus=4, labels={"node-role.kubernetes.io/gpu": ""}),
        addressed("node-c", "10.0.0.3", gpus=4, allocatable=3, ready="False"),
        asking("other-0", "node-b", 2, "nvidia.com/gpu"),
    )
    assert plain(top_view.nodes_table(found.nodes)) == screen("top-node-exclusive.txt")


def test_nodes_without_gpus_have_no_total():
    found = seen(addressed("m1", "10.0.0.9"), addressed("m2", "10.0.0.8", ready="Unknown"))
    assert plain(top_view.nodes_table(found.nodes)).splitlines() == [
        "NAME  IPADDRESS  ROLE    STATUS    GPU(Total)  GPU(Allocated)",
        "m1    10.0.0.9   <none>  Ready     0           0",
        "m2    10.0.0.8   <none>  NotReady  0           0",
    ]


def test_a_mixed_summary_of_named_nodes_has_no_total():
    assert "----" not in top_view.nodes_table(seen(*mixed()).nodes, named=True)


def test_all_classes_in_detail_follow_each_other_as_in_arena():
    assert plain(top_view.details(seen(*mixed()).nodes)) == screen("top-node-details.txt")


def test_the_document_has_arenas_keys_in_arenas_order():
    value = top_view.nodes_value(seen(*mixed()).nodes)
    assert value == document("top-node.json")
    assert json.dumps(value) == json.dumps(document("top-node.json"))


# ---------------------------------------------------------------- what arena gets wrong


def test_roles_are_filled_in_for_gpu_nodes_too():
    found = only(addressed("n", "1.2.3.4", gpus=1, labels={"kubernetes.io/role": "gpu"}))
    assert plain(top_view.nodes_table([found])).splitlines()[1].split()[2] == "gpu"
    assert top_view.nodes_value([found])["gpuExclusiveNodes"][0]["role"] == "gpu"


def test_a_pod_without_annotation_has_no_allocation_rather_than_an_empty_one():
    found = only(*arenas_node(), asking("p", "node-a", 1))
    [instance] = top_view.nodes_value([found])["gpuTopologyNodes"][0]["instances"]
    assert (instance["allocation"], instance["visibleGPUs"]) == ([], [])
    states = [
        one["status"] for one in top_view.nodes_value([found])["gpuTopologyNodes"][0]["devices"]
    ]
    assert states == ["unknown"] * 4
    assert "1 of the unknown GPUs is in use; it is not reported which." in top_view.details([found])


def test_gpus_that_the_kubelet_chose_are_only_planned():
    annotations = {
        **group("1,2"),
        "topology.kubernetes.io/gpu-visible": "1,2",
        "arena-topo.io/format": "v1",
        "arena-topo.io/guarantee": "node",
    }
    found = only(*arenas_node(), asking("p", "node-a", 2, annotations=annotations))
    assert "  default    p     2               1,2 (planned)\n" in top_view.details([found])
    [instance] = top_view.nodes_value([found])["gpuTopologyNodes"][0]["instances"]
    assert (instance["allocation"], instance["planned"]) == ([], ["1", "2"])
    assert instance["visibleGPUs"] == ["1", "2"]


def test_rows_of_devices_come_by_index_whatever_the_order_of_the_config_map():
    devices = {str(index): "Healthy" for index in (3, 1, 0, 2)}
    rows = top_view.details([only(*arenas_node(devices=devices))]).splitlines()
    assert [row.split()[0] for row in rows if "idle" in row] == ["GPU0", "GPU1", "GPU2", "GPU3"]


def test_a_gpu_that_is_not_healthy_is_named():
    devices = {"0": "Healthy", "1": "Unhealthy", "2": "Healthy", "3": "Healthy"}
    found = only(*arenas_node(devices=devices, allocatable=3))
    text = top_view.details([found])
    assert "  GPU1   idle    false\n" in text
    assert "  Unhealthy GPUs: 1\n" in text
    assert plain(top_view.nodes_table([found])).splitlines()[0].endswith("UNHEALTHY")


def test_terminating_pods_hold_their_gpus():
    gone = asking("p", "node-a", 2, annotations=group("1,2"))
    gone["metadata"]["deletionTimestamp"] = "2026-11-21T07:00:00Z"
    found = only(*arenas_node(), gone)
    assert (found.allocated, found.pods[0].status) == (2, "Terminating")


def test_finished_pods_hold_nothing():
    plain = addressed("node-b", "10.0.0.2", gpus=4)
    found = only(plain, asking("p", "node-b", 2, "nvidia.com/gpu", phase="Succeeded"))
    assert (found.allocated, found.pods) == (0, ())


def test_pods_that_ask_for_no_gpu_are_not_listed():
    plain = addressed("node-b", "10.0.0.2", gpus=4)
    assert only(plain, asking("p", "node-b", 0, "nvidia.com/gpu"), pod("q", gpus=0)).pods == ()


def test_gpus_planned_for_a_job_are_neither_idle_nor_allocated():
    found = only(*arenas_node(), job("j", "node-a/0,1"))
    assert found.allocated == 0
    assert [found.state(gpu) for gpu in range(4)] == ["planned", "planned", "idle", "idle"]


def test_matrices_have_the_size_of_the_machine_despite_a_lost_device():
    rows = top_view.details([only(node(), config_map())]).splitlines()
    header = next(row for row in rows if row.strip().startswith("GPU0  GPU1"))
    assert header.split() == [f"GPU{gpu}" for gpu in range(8)]


# ---------------------------------------------------------------- classes of nodes


def test_links_that_are_known_make_a_topology_node_whatever_its_resource():
    found = only(node(), config_map())
    assert found.mode is Mode.TOPOLOGY
    assert "Pods get them by the resource nvidia.com/gpu." in top_view.details([found])
    assert top_view.nodes_value([found])["gpuTopologyNodes"][0]["bandwidthSource"] == "computed"


def test_a_node_of_a_dra_driver_shows_the_gpus_that_claims_give():
    claim = {
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "default"},
        "status": {
            "reservedFor": [{"resource": "pods", "name": "p"}],
            "allocation": {
                "devices": {
                    "results": [
                        {"driver": "gpu.nvidia.com", "pool": "node-a", "device": "gpu-1"},
                        {"driver": "gpu.nvidia.com", "pool": "node-a", "device": "gpu-3"},
                    ]
                }
            },
        },
    }
    claiming = pod(
        "p",
        gpus=0,
        spec={"resourceClaims": [{"name": "gpus", "resourceClaimName": "c"}]},
        status={"resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": "c"}]},
    )
    found = only(node(gpus=0), resource_slice(), claim, claiming)
    assert found.pods is not None
    assert [(one.name, one.gpus, one.devices) for one in found.pods] == [("p", 2, (1, 3))]
    assert (found.total, found.allocated) == (8, 2)
    assert "Pods get them by claims of gpu.nvidia.com." in top_view.details([found])
    [value] = top_view.nodes_value([found])["gpuTopologyNodes"]
    assert value["devices"][3]["uuid"] == uuid("node-a", 3)
    assert value["devices"][3]["status"] == "using"


def test_shared_and_sliced_nodes_are_of_their_own_class():
    found = seen(*sharing())
    assert [one.mode for one in found.nodes] == [Mode.SHARE, Mode.SHARE]
    assert plain(top_view.nodes_table(found.nodes)) == screen("top-node-share.txt")


def test_shared_and_sliced_nodes_in_detail():
    assert plain(top_view.details(seen(*sharing()).nodes)) == screen("top-node-share-details.txt")


def test_the_document_of_shared_nodes():
    assert top_view.nodes_value(seen(*sharing()).nodes) == document("top-node-share.json")


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("n", Mode.NORMAL),
        ("Exclusive", Mode.EXCLUSIVE),
        ("GPUTopology", Mode.TOPOLOGY),
        ("t", Mode.TOPOLOGY),
        ("SHARE", Mode.SHARE),
    ],
)
def test_modes_are_read_by_name_word_and_letter(text: str, mode: Mode):
    assert Mode.parse(text) is mode


@pytest.mark.parametrize("text", ["T", "gputopology", "all", ""])
def test_other_modes_are_refused_in_arenas_words(text: str):
    with pytest.raises(ValueError, match=r"^unknown node type,only supports:\[n\(none\)\|e\("):
        Mode.parse(text)


# ---------------------------------------------------------------- arena's Python SDK


COMMON = ("name", "ip", "status", "role", "type")
METRIC = ("id", "uuid", "status", "gpuDutyCycle", "totalGPUMemory", "usedGPUMemory")
SDK = {
    "normalNodes": {"": COMMON},
    "gpuExclusiveNodes": {
        "": (*COMMON, "totalGPUs", "allocatedGPUs", "unhealthyGPUs"),
        "instances": ("name", "namespace", "requestGPUs"),
        "gpuMetrics": METRIC,
    },
    "gpuTopologyNodes": {
        "": (*COMMON, "totalGPUs", "allocatedGPUs", "unhealthyGPUs"),
        "instances": ("name", "namespace", "requestGPUs", "allocation", "visibleGPUs"),
        "devices": ("gpuIndex", "status", "healthy"),
        "gpuMetrics": METRIC,
        "gpuTopology": ("linkMatrix", "bandwidthMatrix"),
    },
    "gpuShareNodes": {
        "": (*COMMON, "totalGPUs", "unhealthyGPUs", "totalGPUMemory", "allocatedGPUMemory"),
        "instances": ("name", "namespace", "requestGPUMemory", "allocation"),
        "devices": ("id", "allocatedGPUMemory", "totalGPUMemory"),
        "gpuMetrics": METRIC,
    },
}
"""What it reads of each class of nodes (sdk/arena-python-sdk/arenasdk/nodes), KeyError without."""


def test_the_document_has_every_key_that_the_python_sdk_reads():
    samples = [one for name in ("node-a", "node-b", "node-s") for one in measured(name, 0)]
    value = top_view.nodes_value(seen(*mixed(), *sharing()).nodes, top_view.by_node(samples))
    for kind, parts in SDK.items():
        assert value[kind], kind
        for found in value[kind]:
            for part, keys in parts.items():
                inside = found[part] if part else found
                for one in inside if isinstance(inside, list) else [inside]:
                    assert set(keys) <= set(one), (kind, part)


# ---------------------------------------------------------------- measured


def test_what_gpus_do_is_shown_in_arenas_layout():
    found = only(*arenas_node(), asking("p", "node-a", 2, annotations=group("0,3")))
    samples = measured("node-a", 0, 3, namespace="default", pod="p")
    assert plain(top_view.details([found], top_view.by_node(samples))) == screen(
        "top-node-metric.txt"
    )


def test_exclusive_nodes_show_on_which_gpus_their_pods_were_measured():
    found = only(
        addressed("node-b", "10.0.0.2", gpus=4), asking("p", "node-b", 2, "nvidia.com/gpu")
    )
    samples = measured("node-b", 0, 1, namespace="default", pod="p")
    rows = plain(top_view.details([found], top_view.by_node(samples))).splitlines()
    row = next(one for one in rows if one.startswith("  default "))
    assert row.split() == ["default", "p", "Running", "2", "gpu0,gpu1"]


def test_published_bandwidths_are_printed_with_arenas_digits():
    rate = 96.44000244140625
    matrix = [[0 if one == other else rate for other in range(4)] for one in range(4)]
    published = arenas_node()
    published[1]["data"]["bandwidth"] = json.dumps(matrix)
    text = top_view.details([only(*published)])
    assert "  GPU0  0      96.44  96.44  96.44\n" in text


# ---------------------------------------------------------------- top job


def running(name: str = "mpi-dist", **more: Any) -> JobStatus:
    launcher = Instance(
        name=f"{name}-launcher-x7k2p",
        status="Running",
        created=NOW - 130,
        started=NOW - 130,
        chief=True,
        node="node-a",
        node_ip="10.0.0.1",
    )
    workers = [
        Instance(
            name=f"{name}-worker-{index}",
            status="Running",
            created=NOW - 130,
            started=NOW - 130,
            worker=index,
            gpus=2,
            node="node-a",
            node_ip="10.0.0.1",
            holds_gpus=True,
        )
        for index in range(2)
    ]
    facts = {
        "uid": "u",
        "name": name,
        "namespace": "default",
        "phase": Phase.RUNNING,
        "created": NOW - 130,
        "instances": (launcher, *workers),
        "request_gpus": 4,
        "allocated_gpus": 4,
    }
    return JobStatus(**{**facts, **more})


def test_jobs_come_by_the_gpus_that_they_ask_for_then_by_name():
    jobs = [
        running("b", request_gpus=2),
        running("a-10", request_gpus=2),
        running("a-9", request_gpus=2),
        running("large", request_gpus=64),
    ]
    assert [one.name for one in job_order.by_requested(jobs)] == ["large", "a-9", "a-10", "b"]


def test_the_table_of_jobs_is_arenas():
    done = running("done", phase=Phase.SUCCEEDED, finished=NOW - 100, request_gpus=8)
    waits = running("waits", phase=Phase.PENDING, instances=(), allocated_gpus=0, request_gpus=16)
    jobs = job_order.by_requested([running(), done, waits])
    assert plain(topjob.top_jobs_table(jobs, now=NOW)) == screen("top-job-list.txt")


def test_jobs_of_all_namespaces_show_their_namespace():
    first = topjob.top_jobs_table([running()], now=NOW, namespaces=True).splitlines()[:2]
    assert [line.split()[0] for line in first] == ["NAMESPACE", "default"]


def test_a_job_without_measurements_is_arenas_screen():
    assert plain(topjob.top_job_text(running(), now=NOW)) == screen("top-job.txt")


def test_a_job_with_measurements_has_a_row_for_each_gpu():
    samples = [
        *measured("node-a", 10, 2, namespace="default", pod="mpi-dist-worker-0"),
        GpuSample(node="node-a", index=1, namespace="default", pod="mpi-dist-worker-1"),
    ]
    assert plain(topjob.top_job_text(running(), now=NOW, samples=samples)) == screen(
        "top-job-metric.txt"
    )


def test_a_job_can_be_narrowed_to_one_pod():
    text = topjob.top_job_text(running(), now=NOW, instance="mpi-dist-worker-1")
    assert "mpi-dist-worker-1" in text
    assert "mpi-dist-worker-0" not in text


def test_gpus_that_are_guaranteed_are_named_without_measurements():
    forecast = PlacementForecast(
        state="placed",
        workers=((0, "node-a", (0, 3)), (1, "node-a", (1, 2))),
        guarantee="gpus",
        binding="claims",
    )
    rows = topjob.top_job_text(running(forecast=forecast), now=NOW).splitlines()
    assert [row.split()[4] for row in rows if "-worker-" in row] == ["0,3", "1,2"]
    free = PlacementForecast(
        **{**{name: getattr(forecast, name) for name in ("state", "workers")}, "guarantee": "node"}
    )
    rows = topjob.top_job_text(running(forecast=free), now=NOW).splitlines()
    assert [row.split()[4] for row in rows if "-worker-" in row] == ["N/A", "N/A"]
