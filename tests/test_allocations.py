"""Claims of devices: what they hold, whose they are, and what is not counted beside them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from kube_objects import (
    bare,
    claim,
    device,
    group,
    job,
    node,
    only,
    pod,
    record_of,
    resource_slice,
    seen,
    uuid,
    v1beta1,
)

from arena_topo.clusters import observed, records
from arena_topo.topology import members

FORMAT = {"arena-topo.io/format": "v1"}


def test_allocated_devices_are_in_use_for_any_owner():
    found = only(bare(), resource_slice(), claim("c", "gpu-0", "gpu-3"), claim("d", "gpu-5"))
    assert members(found.free) == (1, 2, 4, 6, 7)
    assert found.unattributed == 0
    assert found.foreign


def test_a_claim_without_an_allocation_holds_no_gpus():
    assert members(only(bare(), resource_slice(), claim("c")).free) == tuple(range(8))


def test_a_claim_holds_its_devices_until_the_scheduler_takes_them_back():
    ended = pod("worker", gpus=0, phase="Succeeded", spec={"resourceClaims": [{"name": "gpus"}]})
    going = claim("c", "gpu-0", users=["worker"], deletionTimestamp="2026-11-21T10:00:00Z")
    assert members(only(bare(), resource_slice(), ended, going).free) == tuple(range(1, 8))
    assert members(only(bare(), resource_slice(), going).free) == tuple(range(1, 8))


def test_claims_of_pods_that_arena_topo_placed_are_not_foreign():
    worker = pod("w", gpus=0, annotations=FORMAT | group("0"))
    mine = claim("c", "gpu-0", users=["w"])
    assert not only(bare(), resource_slice(), worker, mine).foreign
    assert not only(bare(), resource_slice(), claim("c", "gpu-0", annotations=FORMAT)).foreign
    owned = claim("c", "gpu-0", ownerReferences=[{"kind": "MPIJob", "name": "j"}])
    assert not only(bare(), resource_slice(), owned).foreign
    made = claim("c", "gpu-0", ownerReferences=[{"kind": "Pod", "name": "w"}])
    assert not only(bare(), resource_slice(), worker, made).foreign
    assert only(bare(), resource_slice(), worker, claim("c", "gpu-0", users=["w", "x"])).foreign


def test_looking_at_a_device_does_not_hold_it():
    watching = claim("c", "gpu-0")
    watching["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    assert members(only(bare(), resource_slice(), watching).free) == tuple(range(8))


def test_a_part_that_is_allocated_takes_its_gpu():
    mig = device("node-a", 20, type="mig", uuid="MIG-1", parentUUID=uuid("node-a", 2))
    vfio = device("node-a", 4, type="vfio", uuid="V") | {"name": "gpu-vfio-4"}
    devices = [*(device("node-a", i) for i in range(8)), mig, vfio]
    told = resource_slice(devices=devices)
    assert members(only(bare(), told).free) == tuple(range(8))
    found = only(bare(), told, claim("c", "gpu-20"), claim("d", "gpu-vfio-4"))
    assert members(found.free) == (0, 1, 3, 5, 6, 7)
    assert found.shared is None


def test_a_claim_of_a_lost_device_does_not_affect_the_others():
    devices = [device("node-a", i) for i in range(8) if i != 2]
    found = only(bare(), resource_slice(devices=devices), claim("c", "gpu-2"))
    assert members(found.free) == (0, 1, 3, 4, 5, 6, 7)


def test_devices_of_other_drivers_and_pools_are_others():
    elsewhere = claim("c", "gpu-0", node="node-b")
    network = claim("d", "gpu-1")
    network["status"]["allocation"]["devices"]["results"][0]["driver"] = "dra.net"
    assert members(only(bare(), resource_slice(), elsewhere, network).free) == tuple(range(8))


def test_two_claims_that_share_a_device_hide_no_other():
    found = only(bare(), resource_slice(), claim("c", "gpu-0"), claim("d", "gpu-0"))
    assert (members(found.free), found.unattributed) == (tuple(range(1, 8)), 0)


def claiming(name: str, of: str | None, **more: Any) -> dict[str, Any]:
    """A pod with one claim, made from a template where its own status names it."""
    return pod(
        name,
        gpus=0,
        spec={"resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "t"}]},
        status={"resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": of}]},
        **more,
    )


def test_a_pod_is_not_counted_beside_its_claim():
    found = only(bare(), resource_slice(), claiming("w", "c"), claim("c", "gpu-0", "gpu-1"))
    assert (members(found.free), found.unattributed) == ((2, 3, 4, 5, 6, 7), 0)


def test_a_pod_is_not_counted_beside_the_claim_that_the_scheduler_made_of_its_limits():
    extended = pod(
        "w",
        gpus=2,
        status={"extendedResourceClaimStatus": {"resourceClaimName": "w-extended"}},
    )
    found = only(bare(), resource_slice(), extended, claim("w-extended", "gpu-0", "gpu-1"))
    assert (members(found.free), found.unattributed) == ((2, 3, 4, 5, 6, 7), 0)
    unread = only(bare(), resource_slice(), extended)
    assert (unread.free_count, unread.unattributed) == (6, 2)


def test_a_pod_whose_claim_could_not_be_read_may_have_any_gpu():
    found = seen(bare(), resource_slice(), claiming("w", "c"))
    assert found.nodes[0].free == 0
    assert found.notes == (
        (
            "pod default/w has devices by ResourceClaim c, which could not be read; every GPU of"
            " node node-a counts as in use"
        ),
    )
    assert only(node(), claiming("w", "c")).free_count == 8


def test_a_claim_template_without_a_claim_holds_no_gpus():
    assert only(bare(), resource_slice(), claiming("w", None)).free_count == 8


# Records.

REQUEST = "arena-topo.io/request"


def asking(**said: int) -> dict[str, str]:
    return {REQUEST: json.dumps(said)}


def test_a_record_counts_until_the_claim_of_its_worker_is_allocated():
    planned = job("j", "node-a/0,1;node-a/2,3", gpus=0, annotations=asking(workers=2, gpus=2))
    waiting = [claim("j-worker-0"), claim("j-worker-1")]
    found = only(bare(), resource_slice(), planned, *waiting)
    assert (members(found.free), found.unattributed) == ((4, 5, 6, 7), 0)
    bound = [claim("j-worker-0", "gpu-0", "gpu-1"), claim("j-worker-1")]
    found = only(bare(), resource_slice(), planned, *bound)
    assert (members(found.free), found.unattributed) == ((4, 5, 6, 7), 0)


def test_the_gpus_of_the_kubelet_count_instead_of_the_planned_gpus():
    planned = job("j", "node-a/0,1", gpus=0, annotations=asking(workers=1, gpus=2))
    given = claim("made-of-a-template", "gpu-4", "gpu-5", users=["j-worker-0"])
    found = only(bare(), resource_slice(), planned, given)
    assert (members(found.free), found.unattributed) == ((0, 1, 2, 3, 6, 7), 0)


def test_a_claim_of_other_devices_leaves_the_record_as_it_is():
    planned = job("j", "node-a/0,1", gpus=0, annotations=asking(workers=1, gpus=2))
    network = claim("nic", "eth1", users=["j-worker-0"])
    found = only(bare(), resource_slice(), planned, network)
    assert members(found.free) == (2, 3, 4, 5, 6, 7)


_DEVICES = st.sampled_from([f"gpu-{i}" for i in range(8)])


@given(
    held=st.lists(st.sets(_DEVICES, max_size=3), max_size=4),
    order=st.randoms(use_true_random=False),
)
def test_free_gpus_are_those_without_a_claim_in_any_order(held: list[set[str]], order: Any):
    objects = [
        bare(),
        resource_slice(),
        *(claim(f"c{at}", *sorted(names)) for at, names in enumerate(held)),
    ]
    order.shuffle(objects)
    taken = {int(name[4:]) for names in held for name in names}
    assert set(members(only(*objects).free)) == set(range(8)) - taken


def test_slices_and_claims_read_the_same_as_json_and_as_plain_values():
    worker = claiming("w", "c")
    worker["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "x"}
    objects = [bare(), v1beta1(resource_slice()), claim("c", "gpu-0", users=["w"]), worker]
    read = [
        records.read_record(one["kind"], msgspec.Raw(json.dumps(one).encode())) for one in objects
    ]
    assert read == [record_of(one) for one in objects]
    assert observed.cluster(read, source="test") == seen(*objects)
