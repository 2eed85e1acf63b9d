"""GPUs that DRA drivers publish, and the claims that hold them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_objects import (
    bare,
    claim,
    config_map,
    device,
    node,
    only,
    resource_slice,
    seen,
    uuid,
    v1beta1,
)

from arena_topo.topology import (
    GPU,
    Knowledge,
    Link,
    LinkKind,
    gpu_set,
    members,
    presets,
)

DRIVER = "gpu.nvidia.com"

FORMAT = {"arena-topo.io/format": "v1"}


# Machines.


def test_a_published_node_is_the_machine_that_its_product_and_count_make_it():
    found = only(bare(), resource_slice())
    assert found.machine.knowledge is Knowledge.ASSUMED
    assert found.machine.model == "H100"
    assert found.machine.link(0, 7) == Link(kind=LinkKind.NVLINK, lanes=18)
    assert [gpu.uuid for gpu in found.machine.gpus] == [uuid("node-a", i) for i in range(8)]
    assert (found.driver, found.resource) == (DRIVER, DRIVER)
    assert members(found.free) == tuple(range(8))
    assert found.allocatable == found.machine.everything
    assert (found.unattributed, found.shared, found.foreign) == (0, None, False)


def test_every_version_of_the_api_says_the_same():
    expected = seen(bare(), resource_slice())
    assert seen(bare(), v1beta1(resource_slice())) == expected
    v1beta2 = resource_slice() | {"apiVersion": "resource.k8s.io/v1beta2"}
    assert seen(bare(), v1beta2) == expected


def test_a_node_without_slices_has_no_driver():
    assert only(node()).driver == ""


def test_attributes_may_carry_the_name_of_their_driver_and_of_no_other():
    mine, theirs = resource_slice(), resource_slice()
    for told, prefix in ((mine, DRIVER), (theirs, "example.com")):
        for one in told["spec"]["devices"]:
            one["attributes"] = {
                key if "/" in key else f"{prefix}/{key}": value
                for key, value in one["attributes"].items()
            }
    assert seen(bare(), mine) == seen(bare(), resource_slice())
    assert only(bare(), theirs).machine.gpus == ()


@pytest.mark.parametrize("kind", ["mig", "vfio", "amdgpu-partition"])
def test_parts_of_gpus_are_no_gpus(kind: str):
    found = only(bare(), resource_slice(devices=[device("node-a", 0, type=kind)]))
    assert found.machine.gpus == ()


def test_a_node_of_slices_of_gpus_says_so():
    parts = [
        device("node-a", 0, type="mig", parentUUID="GPU-of-nobody", profile="1g.10gb")
        | {"name": f"m{i}"}
        for i in range(2)
    ]
    found = only(bare(), resource_slice(devices=parts))
    assert found.shared == "MIG slices (1g.10gb)"


def test_gpus_that_several_claims_may_have_at_once_are_shared():
    devices = [device("node-a", i) | {"allowMultipleAllocations": True} for i in range(8)]
    found = only(bare(), resource_slice(devices=devices))
    assert found.shared == "GPUs are shared (allowMultipleAllocations)"


def test_devices_that_are_no_gpus_are_nothing():
    nic = {"name": "eth1", "attributes": {"dra.net/ifName": {"string": "eth1"}}}
    channel = {
        "name": "channel-0",
        "attributes": {"type": {"string": "channel"}, "id": {"int": 0}},
    }
    found = seen(node(), resource_slice(devices=[nic, channel], driver="dra.net"))
    assert found == seen(node())


# Numbers.


def test_the_attribute_index_is_the_number_whatever_the_name():
    devices = [device("node-a", i, index=7 - i) for i in range(8)]
    found = only(bare(), resource_slice(devices=devices))
    assert [gpu.uuid for gpu in found.machine.gpus] == [uuid("node-a", 7 - i) for i in range(8)]


def test_without_an_index_the_number_is_in_the_name():
    devices = [device("node-a", i) for i in (3, 1, 0, 2, 10, 4, 5, 6, 7, 8, 9, 11)]
    found = only(bare(), resource_slice(devices=devices))
    assert [gpu.uuid for gpu in found.machine.gpus] == [uuid("node-a", i) for i in range(12)]


def test_minor_numbers_that_run_against_the_bus_are_no_indexes():
    addresses = {0: "0000:47:00.0", 1: "0000:4e:00.0", 2: "0000:07:00.0", 3: "0000:0f:00.0"}
    devices = [
        device("node-a", minor, **{"resource.kubernetes.io/pciBusID": address})
        for minor, address in addresses.items()
    ]
    found = only(bare(), resource_slice(devices=devices))
    assert [gpu.uuid for gpu in found.machine.gpus] == [uuid("node-a", i) for i in (2, 3, 0, 1)]


def test_uuids_of_an_agent_take_precedence_over_names_and_addresses():
    said = config_map()
    said["data"]["uuids"] = json.dumps([uuid("node-a", i) for i in (4, 5, 6, 7, 0, 1, 2, 3)])
    found = only(bare(), resource_slice(), said, claim("c", "gpu-4", "gpu-0"))
    assert found.machine.gpus[0].uuid == uuid("node-a", 4)
    assert members(found.free) == (1, 2, 3, 5, 6, 7)


def test_a_gpu_that_is_lost_leaves_its_place_and_the_links_of_the_others():
    devices = [device("node-a", i) for i in range(8) if i != 2]
    found = only(bare(), resource_slice(devices=devices))
    assert members(found.free) == (0, 1, 3, 4, 5, 6, 7)
    assert found.machine.link(0, 7) == Link(kind=LinkKind.NVLINK, lanes=18)
    assert found.machine.gpus[2] == GPU(index=2, model="H100")


def test_the_last_gpu_that_is_lost_is_remembered_by_the_label():
    devices = [device("node-a", i) for i in range(7)]
    found = only(bare(labels={"nvidia.com/gpu.count": "8"}), resource_slice(devices=devices))
    assert len(found.machine.gpus) == 8
    assert members(found.free) == tuple(range(7))


def test_two_gpus_of_one_number_are_counted_by_their_names():
    devices = [device("node-a", i, index=0) for i in range(4)]
    found = only(bare(), resource_slice(devices=devices))
    assert [gpu.uuid for gpu in found.machine.gpus] == [uuid("node-a", i) for i in range(4)]


def test_boards_that_tell_nothing_have_unknown_links():
    devices = [device("node-a", i, productName="NVIDIA L40S", numaNode=i // 2) for i in range(4)]
    found = only(bare(), resource_slice(devices=devices)).machine
    assert found.knowledge is Knowledge.UNKNOWN
    assert [gpu.numa for gpu in found.gpus] == [0, 0, 1, 1]
    assert {str(found.link(0, i)) for i in range(1, 4)} == {"SYS"}


def test_equal_nodes_share_one_matrix():
    def unknown(name: str) -> dict[str, Any]:
        devices = [device(name, i, productName="NVIDIA L40S") for i in range(4)]
        return resource_slice(name, devices=devices)

    one, other = seen(bare("a"), bare("b"), unknown("a"), unknown("b")).nodes
    assert one.machine.links is other.machine.links
    assert one.machine.gpus != other.machine.gpus


def test_an_nvlink_clique_is_a_domain_as_its_label_is():
    def world(told: str | None, labelled: dict[str, str]) -> list[dict[str, Any]]:
        more = {"productName": "NVIDIA GB200", "nvlinkClique": told}
        return [
            thing
            for name in ("a", "b", "c", "d")
            for thing in (
                bare(name, labels={key: value for key, value in labelled.items() if name < "c"}),
                resource_slice(
                    name,
                    devices=[
                        device(name, i, **(more if name < "c" else {**more, "nvlinkClique": None}))
                        for i in range(4)
                    ],
                ),
            )
        ]

    by_attribute = seen(*world("f5ee.1", {}))
    by_label = seen(*world(None, {"nvidia.com/gpu.clique": "f5ee.1"}))
    assert by_attribute.tiers == by_label.tiers
    assert [tier.name for tier in by_attribute.tiers] == ["nvlink"]
    assert [one.domains for one in by_attribute.nodes] == [one.domains for one in by_label.nodes]
    assert by_attribute.nodes[0].domains == ("f5ee.1",)
    assert "nvidia.com/gpu.clique" not in by_attribute.nodes[0].labels


# Pools.


def test_a_pool_in_several_slices_is_one_machine():
    halves = [
        resource_slice(
            name=f"slice-{half}",
            devices=[device("node-a", half * 4 + i) for i in range(4)],
            pool={"resourceSliceCount": 2},
        )
        for half in (0, 1)
    ]
    assert seen(bare(), *halves) == seen(bare(), resource_slice())


def test_of_a_pool_only_the_newest_generation_counts():
    old = resource_slice(name="old", devices=[device("node-a", i) for i in range(8)])
    new = resource_slice(
        name="new", devices=[device("node-a", i) for i in range(4)], pool={"generation": 2}
    )
    assert seen(bare(), old, new) == seen(bare(), new)
    assert len(only(bare(), new, old).machine.gpus) == 4


@pytest.mark.parametrize("field", ["generation", "resourceSliceCount"])
def test_a_slice_with_a_number_beyond_all_bounds_is_passed_over_with_a_note(field: str):
    odd = resource_slice("node-a", pool={field: 1.5})
    found = seen(bare("node-a"), odd, bare("node-b"), resource_slice("node-b"))
    assert found.notes == (
        (
            f"ResourceSlice node-a-slice is ignored: spec.pool.{field}: expected a whole number,"
            " got a number"
        ),
    )
    assert [node.free_count for node in found.nodes] == [0, 8]


def test_gpus_of_a_pool_that_is_not_complete_wait_until_it_is():
    half = resource_slice(pool={"resourceSliceCount": 2})
    found = seen(bare(), half)
    assert found.nodes[0].free == 0
    assert found.nodes[0].allocatable == 0
    assert found.notes == (
        (
            "node node-a: 1 of 2 ResourceSlices of gpu.nvidia.com exist; none of its GPUs can"
            " be used until all do"
        ),
    )


def test_a_slice_that_is_listed_twice_counts_once():
    half = resource_slice(pool={"resourceSliceCount": 2})
    assert seen(bare(), half, half) == seen(bare(), half)
    assert seen(bare(), half, half).nodes[0].free == 0


@pytest.mark.parametrize("where", [{"allNodes": True}, {"nodeSelector": {}}])
def test_gpus_of_no_single_node_are_not_used(where: dict[str, Any]):
    found = seen(bare(), resource_slice(None, **where))
    assert found.nodes[0].machine.gpus == ()


@pytest.mark.parametrize(
    ("effect", "usable"), [("NoSchedule", False), ("NoExecute", False), ("None", True)]
)
def test_a_tainted_device_is_not_healthy(effect: str, *, usable: bool):
    for shape in (dict, v1beta1):
        told = resource_slice()
        told["spec"]["devices"][3]["taints"] = [{"key": "gpu.nvidia.com/xid", "effect": effect}]
        found = only(bare(), shape(told))
        assert (3 in members(found.free)) is usable
        assert (3 in members(found.allocatable or 0)) is usable


def test_of_two_drivers_on_one_node_the_one_with_more_gpus_counts():
    other = resource_slice(
        name="other", driver="gpu.example.com", devices=[device("node-a", i) for i in range(2)]
    )
    found = seen(bare(), other, resource_slice())
    assert found.nodes[0].driver == DRIVER
    assert found.notes == (
        (
            "node node-a: gpu.nvidia.com and gpu.example.com both publish GPUs; those of"
            " gpu.nvidia.com count"
        ),
    )


def test_more_gpus_than_a_machine_can_have_are_none_and_noted():
    devices = [device("node-a", i) | {"name": f"x-{i}"} for i in range(65)]
    found = seen(bare(), resource_slice(devices=devices))
    assert found.nodes[0].machine.gpus == ()
    assert found.notes == (
        (
            "node node-a: gpu.nvidia.com publishes 65 GPUs, but one machine has at most 64 GPUs; it"
            " is taken for none"
        ),
    )


# What else says of the same node.


def test_links_come_from_the_config_map_and_devices_from_slices():
    told = config_map(healthy=gpu_set(range(7)))
    slices = resource_slice(
        devices=[device("node-a", i, productName="Tesla V100-SXM2-16GB") for i in range(8)]
    )
    found = only(bare(), slices, told, claim("c", "gpu-0"))
    assert found.machine.knowledge is Knowledge.MEASURED
    assert found.machine.links == presets.preset_machine("dgx-1-v100", "node-a").links
    assert found.machine.model == "V100"
    assert found.machine.gpus[5].uuid == uuid("node-a", 5)
    assert members(found.free) == (1, 2, 3, 4, 5, 6)
    assert found.driver == DRIVER


def test_the_product_that_slices_tell_says_whether_links_go_through_a_switch():
    told = config_map()
    links = [["N-A" if i == j else "NV4" for j in range(4)] for i in range(4)]
    told["data"] = {
        "nodeName": "node-a",
        "devices": json.dumps(dict.fromkeys("0123", "Healthy")),
        "linkType": json.dumps(links),
    }
    for product, switched in (("Tesla V100-SXM3-32GB", True), ("NVIDIA A100-SXM4-40GB", False)):
        devices = [device("node-a", i, productName=product) for i in range(4)]
        assert only(bare(), resource_slice(devices=devices), told).machine.nvswitch is switched


def test_a_config_map_of_another_number_of_gpus_is_not_believed():
    found = seen(
        bare(), resource_slice(devices=[device("node-a", i) for i in range(4)]), config_map()
    )
    assert len(found.nodes[0].machine.gpus) == 4
    assert found.notes == (
        (
            "configmap kube-system/node-a-gpu-topology describes 8 GPUs, but gpu.nvidia.com"
            " publishes 4 of node node-a; what the driver says counts"
        ),
    )


def test_a_config_map_without_links_gives_health_only():
    told = config_map(healthy=gpu_set(range(6)))
    del told["data"]["linkType"]
    found = only(bare(), resource_slice(), told)
    assert found.machine.link(0, 7) == Link(kind=LinkKind.NVLINK, lanes=18)
    assert members(found.free) == tuple(range(6))


def test_where_a_device_plugin_offers_gpus_slices_only_name_them():
    found = seen(node(), resource_slice(), config_map(), claim("c", "gpu-6"))
    (one,) = found.nodes
    assert (one.driver, one.resource) == ("", "nvidia.com/gpu")
    assert one.machine.gpus[5].uuid == uuid("node-a", 5)
    assert members(one.free) == (0, 1, 2, 3, 4, 5, 7)
    assert found.notes == (
        (
            "node node-a: a device plugin offers its GPUs, and gpu.nvidia.com publishes them too;"
            " the device plugin's count"
        ),
    )


def test_a_device_plugin_that_stops_offering_devices_counts_as_missing():
    gone = {"cpu": "32", "nvidia.com/gpu": "0"}
    found = only(node(allocatable=gone), resource_slice())
    assert found.driver == DRIVER
    assert members(found.free) == tuple(range(8))


# What makes no sense.


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        ({"devices": 3}, "devices: expected a list, got a whole number"),
        (
            {"devices": [{"attributes": []}]},
            "devices[0].attributes: expected a mapping, got a list",
        ),
        (
            {"pool": {"name": "p", "generation": "new"}},
            "pool.generation: expected a whole number, got a text",
        ),
        ({"pool": {"name": 3}}, "pool.name: expected a text, got a whole number"),
        ({"driver": 3}, "driver: expected a text, got a whole number"),
        ({"nodeName": ["node-a"]}, "nodeName: expected a text, got a list"),
    ],
)
def test_an_invalid_slice_is_a_note_and_the_rest_is_read(spec: dict[str, Any], wrong: str):
    broken = resource_slice("node-b", **spec)
    found = seen(bare(), resource_slice(), broken)
    assert members(found.nodes[0].free) == tuple(range(8))
    assert found.notes == (f"ResourceSlice node-b-slice is ignored: spec.{wrong}",)


_NONSENSE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 99)
    | st.sampled_from(["", "gpu", "node-a", "gpu-0"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("name", "driver", "pool", "generation", "resourceSliceCount", "nodeName"),
                    *("devices", "basic", "attributes", "uuid", "type", "productName", "index"),
                    *(
                        "int",
                        "string",
                        "ints",
                        "taints",
                        "effect",
                        "allocation",
                        "results",
                        "device",
                    ),
                    *("reservedFor", "resource", "ownerReferences", "kind", "annotations"),
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@given(
    things=st.lists(
        st.tuples(
            st.sampled_from(["ResourceSlice", "ResourceClaim"]),
            st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), _NONSENSE),
        ),
        max_size=4,
    )
)
def test_no_slice_or_claim_whatever_its_shape_stops_the_reader(
    things: list[tuple[str, dict[str, Any]]],
):
    objects = []
    for at, (kind, thing) in enumerate(things):
        meta = thing.get("metadata")
        named = {"name": f"x{at}", **(meta if isinstance(meta, dict) else {})}
        objects.append({"kind": kind, **thing, "metadata": named})
    assert [one.name for one in seen(*objects, bare(), resource_slice()).nodes] == ["node-a"]


# Captured entries (kubernetes-sigs/dra-driver-nvidia-gpu issues 744 and 719,
# ROCm/k8s-gpu-dra-driver pull request 21), as far as they were shown there.


def test_a_gb200_of_driver_25_3_is_read_with_its_index():
    told = {
        "name": "gpu-3",
        "basic": {
            "attributes": {
                "architecture": {"string": "Blackwell"},
                "brand": {"string": "Nvidia"},
                "cudaComputeCapability": {"version": "10.0.0"},
                "index": {"int": 3},
                "minor": {"int": 3},
                "productName": {"string": "NVIDIA GB200"},
                "type": {"string": "gpu"},
                "uuid": {"string": "GPU-0"},
            }
        },
    }
    found = only(bare(), resource_slice(devices=[told])).machine
    assert found.gpus[3] == GPU(index=3, uuid="GPU-0", model="GB200")


def test_an_a100_with_mig_is_not_the_one_without():
    whole = {
        "name": "gpu-1",
        "attributes": {
            "productName": {"string": "NVIDIA A100 80GB PCIe"},
            "type": {"string": "gpu"},
            "uuid": {"string": "GPU-13719f71-412c-d11e-b236-a262f530a4fc"},
        },
    }
    part = {
        "name": "gpu-0-mig-9-4-4",
        "attributes": {
            "parentUUID": {"string": "GPU-ddf64803-f421-0e5b-883e-cd752de16db7"},
            "profile": {"string": "3g.40gb"},
            "type": {"string": "mig"},
        },
    }
    found = only(bare(), resource_slice(devices=[part, whole]))
    assert members(found.free) == (1,)
    assert found.machine.model == "A100"


def test_a_partition_of_an_mi300x_is_no_gpu():
    part = {
        "name": "gpu-32-160",
        "basic": {
            "attributes": {
                "cardIndex": {"int": 32},
                "parentDeviceID": {"string": "7066866330502360227"},
                "productName": {"string": "AMD_Instinct_MI300X_OAM"},
                "resource.kubernetes.io/pcieRoot": {"string": "pci0003:00"},
                "type": {"string": "amdgpu-partition"},
            }
        },
    }
    told = resource_slice(devices=[part], driver="gpu.amd.com")
    assert seen(bare(), told) == seen(bare())
