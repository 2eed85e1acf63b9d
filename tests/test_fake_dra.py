"""Claims, slices and the scheduler's choice of devices on the fake API server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fake_api import FakeApi
from fake_cluster import FakeCluster
from fake_dra import device_class, resource_slice
from wire_objects import waits


@pytest.fixture
def api() -> Iterator[FakeApi]:
    fake = FakeApi()
    yield fake
    fake.close()
    assert not fake.crashes, fake.crashes[0]


def uuids(node: str) -> list[str]:
    return [f"GPU-{node}-{index:04}" for index in range(4)]


def request(chosen: list[str], count: int = 2) -> dict[str, Any]:
    listed = ", ".join(f"'{one}'" for one in chosen)
    return {
        "deviceClassName": "gpu.nvidia.com",
        "selectors": [
            {"cel": {"expression": f"device.attributes['gpu.nvidia.com'].uuid in [{listed}]"}}
        ],
        "allocationMode": "ExactCount",
        "count": count,
    }


@pytest.fixture
def dra(api: FakeApi) -> FakeCluster:
    cluster = FakeCluster(api)
    api.add(device_class())
    for node in ("dra-1", "dra-2"):
        cluster.node(node, 0)
        api.add(resource_slice(node, uuids(node)))
    return cluster


def claim(api: FakeApi, name: str, chosen: list[str]) -> None:
    exactly = {"name": "gpu", "exactly": request(chosen)}
    spec = {"devices": {"requests": [exactly]}}
    meta = {"name": name, "namespace": "default"}
    api.add(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": meta,
            "spec": spec,
        }
    )


def claiming(api: FakeApi, name: str, **of: str) -> None:
    spec = {
        "containers": [{"name": "a", "resources": {"claims": [{"name": "gpus"}]}}],
        "resourceClaims": [{"name": "gpus", **of}],
    }
    api.create("pods", "default", {"kind": "Pod", "metadata": {"name": name}, "spec": spec})


def held(api: FakeApi) -> dict[str, list[str]]:
    """The devices of each allocated claim."""
    return {
        one["metadata"]["name"]: [
            f"{got['pool']}/{got['device']}"
            for got in one["status"]["allocation"]["devices"]["results"]
        ]
        for one in api.all("ResourceClaim")
        if (one.get("status") or {}).get("allocation")
    }


def test_a_claim_per_worker_gets_the_very_devices_and_keeps_them_for_the_next_pod(
    api: FakeApi, dra: FakeCluster
):
    claiming(api, "w0", resourceClaimName="c0")
    dra.settle()
    assert waits(api, "w0") == 'waiting for resourceclaim "c0": not found'
    claim(api, "c0", [uuids("dra-2")[0], uuids("dra-2")[3]])
    dra.settle()
    assert held(api) == {"c0": ["dra-2/gpu-0", "dra-2/gpu-3"]}
    assert api.find("Pod", "w0")["spec"]["nodeName"] == "dra-2"
    # Somebody else who wants one of them waits.
    claim(api, "c1", [uuids("dra-2")[3], uuids("dra-2")[1]])
    claiming(api, "w1", resourceClaimName="c1")
    dra.settle()
    assert "cannot allocate all claims" in waits(api, "w1")
    api.remove("pods", "default", "w0")
    dra.settle()
    assert held(api) == {"c1": ["dra-2/gpu-1", "dra-2/gpu-3"]}


def test_a_coloured_template_gives_whole_groups_and_a_plain_set_does_not(
    api: FakeApi, dra: FakeCluster
):
    groups = ([0, 3], [1, 2])
    colours = [
        {
            "name": f"c{number}",
            **request([uuids(node)[gpu] for node in ("dra-1", "dra-2") for gpu in group]),
        }
        for number, group in enumerate(groups)
    ]
    devices = {"requests": [{"name": "gpu", "firstAvailable": colours}]}
    api.add(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "coloured", "namespace": "default"},
            "spec": {"spec": {"devices": devices}},
        }
    )
    for index in range(5):
        claiming(api, f"w{index}", resourceClaimTemplateName="coloured")
    dra.settle()
    assert sorted(held(api).values()) == [
        [f"{node}/gpu-{gpu}" for gpu in group] for node in ("dra-1", "dra-2") for group in groups
    ]
    phases = dra.phases()
    assert sorted(phases.values()) == ["Pending", "Running", "Running", "Running", "Running"]
    # Their claims go with the pods.
    for name, phase in phases.items():
        if phase == "Running":
            api.remove("pods", "default", name)
    dra.settle()
    assert len(held(api)) == 1
