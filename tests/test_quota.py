"""What is left of a namespace's quotas against all pods of a gang, before any of them is made."""

from __future__ import annotations

from typing import Any

import pytest

from arena_topo.clusters.quota import shortfall


def a_gang(workers: int = 4, limits: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    """A launcher with half a CPU, and workers with two GPUs, 4 CPUs and 8 Gi each."""

    def role(replicas: int, resources: dict[str, Any], **spec: Any) -> dict[str, Any]:
        containers = [{"name": "main", "resources": resources}]
        return {"replicas": replicas, "template": {"spec": {"containers": containers, **spec}}}

    asked = limits or {"nvidia.com/gpu": "2", "cpu": "4", "memory": "8Gi"}
    return {
        "spec": {
            "mpiReplicaSpecs": {
                "Launcher": role(1, {"requests": {"cpu": "500m"}, "limits": {"cpu": "1"}}, **more),
                "Worker": role(workers, {"limits": asked}, **more),
            }
        }
    }


def a_quota(used: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    hard = spec.get("hard", {})
    return {
        "metadata": {"name": "q"},
        "spec": spec,
        "status": {"hard": hard, "used": used or dict.fromkeys(hard, "0")},
    }


@pytest.mark.parametrize(
    ("hard", "used", "short"),
    [
        ({"requests.nvidia.com/gpu": "8"}, {}, None),
        ({"requests.nvidia.com/gpu": "7"}, {}, "leaves 7 requests.nvidia.com/gpu"),
        (
            {"requests.nvidia.com/gpu": "10"},
            {"requests.nvidia.com/gpu": "3"},
            "leaves 7 requests.nvidia.com/gpu, and the gang needs 8",
        ),
        # More is used than there may be, since the quota came later.
        ({"requests.nvidia.com/gpu": "2"}, {"requests.nvidia.com/gpu": "6"}, "leaves 0 "),
        # The launcher counts.
        ({"pods": "4"}, {}, "leaves 4 pods, and the gang needs 5"),
        ({"count/pods": "5"}, {"count/pods": "1"}, "leaves 4 count/pods"),
        ({"pods": "5"}, {}, None),
        ({"requests.cpu": "16500m"}, {}, None),
        ({"requests.cpu": "16400m"}, {}, "leaves 16.4 requests.cpu, and the gang needs 16.5"),
        ({"cpu": "16"}, {}, "leaves 16 cpu, and the gang needs 16.5"),
        ({"limits.cpu": "17"}, {}, None),
        ({"limits.cpu": "16.5"}, {}, "needs 17"),
        ({"memory": "32Gi"}, {}, None),
        ({"requests.memory": "31Gi"}, {}, "requests.memory"),
        # Of what the gang does not ask for, nothing can be short.
        ({"requests.example.com/fpga": "0"}, {}, None),
        ({"services": "0", "requests.storage": "0"}, {}, None),
        # The server decides what such a thing means.
        ({"requests.nvidia.com/gpu": "some"}, {}, None),
    ],
)
def test_the_quota_is_compared_with_the_whole_gang(
    hard: dict[str, str], used: dict[str, str], short: str | None
) -> None:
    found = shortfall(a_gang(), [a_quota(used, hard=hard)])
    if short is None:
        assert found is None
    else:
        assert found is not None
        assert short in str(found)
        assert str(found).startswith("quota q of the namespace leaves ")


def test_requests_count_where_they_are_less_than_limits() -> None:
    gang = a_gang()
    worker = gang["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    worker["resources"]["requests"] = {"cpu": "1"}
    assert shortfall(gang, [a_quota(hard={"requests.cpu": "4.5"})]) is None
    assert shortfall(gang, [a_quota(hard={"requests.cpu": "4.4"})]) is not None


def test_the_peak_of_init_containers_and_the_overhead_of_pods_count() -> None:
    first = {"name": "wait", "resources": {"requests": {"cpu": "10"}}}
    gang = a_gang(1, initContainers=[first], overhead={"cpu": "1"})
    found = shortfall(gang, [a_quota(hard={"requests.cpu": "21"})])
    assert found is not None
    assert "needs 22" in str(found)
    assert shortfall(gang, [a_quota(hard={"requests.cpu": "22"})]) is None


def test_every_quota_counts_and_the_first_short_quota_is_reported() -> None:
    roomy = a_quota(hard={"pods": "100"})
    tight = a_quota(hard={"pods": "1"}) | {"metadata": {"name": "tight"}}
    found = shortfall(a_gang(), [roomy, tight])
    assert found is not None
    assert str(found).startswith("quota tight ")
    assert shortfall(a_gang(), []) is None


def test_a_quota_without_a_status_is_judged_by_its_spec() -> None:
    new = {"metadata": {"name": "new"}, "spec": {"hard": {"pods": "4"}}}
    assert shortfall(a_gang(), [new]) is not None
    assert shortfall(a_gang(workers=3), [new]) is None


def expression(operator: str, *values: str, scope: str = "PriorityClass") -> dict[str, Any]:
    term = {"scopeName": scope, "operator": operator} | ({"values": list(values)} if values else {})
    return {"scopeSelector": {"matchExpressions": [term]}}


@pytest.mark.parametrize(
    ("spec", "priority", "counts"),
    [
        ({"scopes": ["NotTerminating"]}, None, True),
        ({"scopes": ["NotBestEffort", "NotTerminating"]}, None, True),
        ({"scopes": ["BestEffort"]}, None, False),
        ({"scopes": ["Terminating"]}, None, False),
        ({"scopes": ["NotTerminating", "CrossNamespacePodAffinity"]}, None, False),
        (expression("In", "high", "low"), "high", True),
        (expression("In", "high"), "other", False),
        (expression("In", "high"), None, False),
        (expression("NotIn", "high"), "other", True),
        (expression("NotIn", "high"), "high", False),
        (expression("Exists"), "any", True),
        (expression("Exists"), None, False),
        (expression("DoesNotExist"), None, True),
        (expression("DoesNotExist"), "any", False),
        (expression("Exists", scope="Terminating"), None, False),
    ],
)
def test_a_quota_for_some_pods_counts_for_those(
    spec: dict[str, Any], priority: str | None, counts: object
) -> None:
    gang = a_gang(**({"priorityClassName": priority} if priority else {}))
    found = shortfall(gang, [a_quota(hard={"pods": "4"}, **spec)])
    assert (found is not None) is counts


def test_claims_are_counted_as_the_objects_that_they_are() -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}
    claim = {"kind": "ResourceClaim", "spec": {"devices": {"requests": [request]}}}
    for key, enough in (
        ("count/resourceclaims.resource.k8s.io", 3),
        ("gpu.nvidia.com.deviceclass.resource.k8s.io/devices", 6),
    ):
        quota, short = a_quota(hard={key: str(enough)}), a_quota(hard={key: str(enough - 1)})
        assert shortfall(a_gang(), [quota], claims=[claim] * 3) is None
        assert key in str(shortfall(a_gang(), [short], claims=[claim] * 3))
        # Those that it has count already, so they are not asked for again.
        assert shortfall(a_gang(), [short], claims=[claim] * 3, held=[claim]) is None


def test_quantities_of_the_gang_that_make_no_sense_are_left_to_the_server() -> None:
    gang = a_gang(limits={"nvidia.com/gpu": "two", "cpu": "4"})
    assert shortfall(gang, [a_quota(hard={"requests.nvidia.com/gpu": "0"})]) is None
    assert shortfall(gang, [a_quota(hard={"requests.cpu": "16"})]) is not None
