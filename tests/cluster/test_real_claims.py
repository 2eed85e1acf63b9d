"""GPUs of a DRA driver, whose ResourceSlices are written by hand: the real scheduler allocates."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
from fake_dra import device_class, resource_slice
from real import IMAGE, JOBS, PRODUCT, Real, words

from arena_topo.manifests import MAP
from arena_topo.manifests.annotations import parse_map

pytestmark = pytest.mark.cluster

GROUP = "/apis/resource.k8s.io/v1"


@pytest.fixture
def dra(cluster: Real) -> Iterator[Real]:
    """Two machines whose eight GPUs each a driver publishes."""
    cluster.machines(2, gpus=0)
    product = PRODUCT.replace("-", " ", 1)
    made = [f"{GROUP}/deviceclasses/gpu.nvidia.com"]
    cluster.called("POST", f"{GROUP}/deviceclasses", device_class())
    for node in cluster.nodes:
        uuids = [f"GPU-{node}-{index}" for index in range(8)]
        one = resource_slice(node, uuids, product=product)
        cluster.called("POST", f"{GROUP}/resourceslices", one)
        made.append(f"{GROUP}/resourceslices/{one['metadata']['name']}")
    try:
        yield cluster
    finally:
        with contextlib.suppress(AssertionError):
            cluster.called("DELETE", cluster.live.path("mpijobs", group=JOBS))
        for path in made:
            cluster.live.call("DELETE", path)


def claims(cluster: Real) -> dict[str, dict[str, Any]]:
    """The claims of the namespace, by name."""
    path = cluster.live.path("resourceclaims", group="resource.k8s.io/v1")
    return {one["metadata"]["name"]: one for one in cluster.called("GET", path)["items"]}


def allocated(claim: dict[str, Any]) -> set[tuple[str, str]]:
    """The node and the device of each GPU of a claim."""
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    return {(one["pool"], one["device"]) for one in results}


def planned(cluster: Real, name: str) -> dict[str, set[tuple[str, str]]]:
    """The same by the record of a job, for each worker."""
    text = cluster.job(name)["metadata"]["annotations"][MAP]
    return {
        f"{name}-worker-{index}": {(node, f"gpu-{gpu}") for gpu in gpus}
        for index, node, gpus in parse_map(text)
    }


def test_the_scheduler_allocates_to_each_worker_the_gpus_of_the_plan(dra: Real):
    done = dra.arena(*words("gang", 8, 2))
    assert done.code == 0, done.err
    assert "Guarantee: gpus, by resource claims" in done.err
    dra.until(lambda: dra.exact("gang"), "all workers run where they were planned")
    wanted = planned(dra, "gang")
    held = {name: allocated(one) for name, one in claims(dra).items()}
    assert held == wanted
    uid = dra.pods()["gang-worker-5"]["metadata"]["uid"]
    dra.called("DELETE", dra.live.path("pods", "gang-worker-5"))
    dra.until(
        lambda: dra.exact("gang") and dra.pods()["gang-worker-5"]["metadata"]["uid"] != uid,
        "the worker is created again",
    )
    assert allocated(claims(dra)["gang-worker-5"]) == wanted["gang-worker-5"]
    assert dra.arena("delete", "gang").code == 0
    dra.until(lambda: not claims(dra), "the claims go with their job")


def test_gpus_that_claims_hold_are_not_planned_for_others(dra: Real):
    assert dra.arena(*words("first", 3, 4)).code == 0
    dra.until(lambda: dra.exact("first"), "the first gang runs")
    done = dra.arena(*words("second", 1, 4))
    assert done.code == 0, done.err
    dra.until(lambda: dra.exact("second"), "the second gang has what is left")
    every = [device for one in claims(dra).values() for device in allocated(one)]
    assert len(every) == len(set(every)) == 16
    late = dra.arena(*words("late", 1, 1))
    assert late.code == 0, late.err
    assert not dra.planned("late")


def test_without_the_policies_nothing_is_claimed_and_the_way_to_them_is_named(dra: Real):
    policies = ("arena-topo-claims", "arena-topo-placement")
    kinds = ("mutatingadmissionpolicybinding", "mutatingadmissionpolicy")
    printed = dra.arena("install", f"--image={IMAGE}")
    assert printed.code == 0, printed.err
    for kind in kinds:
        dra.kubectl("delete", kind, *policies)
    try:
        dra.until(
            lambda: "not effective" in dra.arena("check").out,
            "the policies are gone",
        )
        done = dra.arena(*words("gang", 3, 2))
        assert done.code == 1
        assert "arena-topo install" in done.err
        assert not claims(dra)
    finally:
        dra.kubectl("apply", "--server-side", "-f", "-", text=printed.out)
        dra.until(lambda: re.search(r"claims policy +ok", dra.arena("check").out), "they are back")
