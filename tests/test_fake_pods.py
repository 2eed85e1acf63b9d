"""What a fake API server refuses of pods, jobs and claims; a real one must pass these as well."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from clusters import Live
from fake_api import FakeApi, kubeconfig
from wire_objects import GATE, gated, made, mpijob, on, pod

real_too = pytest.mark.cluster


@pytest.fixture
def api() -> Iterator[FakeApi]:
    fake = FakeApi()
    yield fake
    fake.close()
    assert not fake.crashes, fake.crashes[0]


@pytest.fixture
def client(api: FakeApi, tmp_path) -> Live:
    return Live(kubeconfig(tmp_path / "c", api.url, user={"username": "alice"}), "default", api)


# Gates.


ADDED_ONLY = "only additions are allowed (no mutations or deletions)"
FORBIDDEN = "spec: Forbidden: pod updates may not change fields other than"


@real_too
def test_one_strategic_patch_pins_a_gated_pod_and_leaves_other_gates(live: Live):
    made(live, gated("p"))
    patch = {
        "metadata": {"annotations": {"topology.kubernetes.io/gpu-group": "0,3"}},
        "spec": {
            "affinity": on("node-2"),
            "schedulingGates": [{"$patch": "delete", "name": GATE}],
        },
    }
    answer = live.call("PATCH", live.path("pods", "p"), patch, kind="strategic")
    assert answer.status == 200, answer.said
    assert answer.body["spec"]["schedulingGates"] == [{"name": "x.io/own"}]
    assert answer.body["spec"]["affinity"] == on("node-2")
    assert answer.body["metadata"]["annotations"] == {"topology.kubernetes.io/gpu-group": "0,3"}


@real_too
@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            {"affinity": on("a")},
            {"affinity": on("b")},
            f"nodeSelectorTerms[0]: Invalid value: ....: {ADDED_ONLY}",
        ),
        (
            {"affinity": on("a")},
            {"affinity": on("a", "b")},
            (
                "nodeSelectorTerms: Invalid value: ....: no additions/deletions to non-empty"
                " NodeSelectorTerms list are allowed"
            ),
        ),
        (
            {"nodeSelector": {"a": "b"}},
            {"nodeSelector": {"a": "c"}},
            (
                'spec.nodeSelector: Invalid value: {"a":"c"}: only additions to'
                " spec.nodeSelector are"
                " allowed (no mutations or deletions)"
            ),
        ),
        (
            {},
            {"schedulingGates": [{"name": GATE}, {"name": "x.io/own"}, {"name": "x.io/other"}]},
            (
                "spec.schedulingGates[2].name: Forbidden: only deletion is allowed, but found new"
                " scheduling gate 'x.io/other'"
            ),
        ),
        ({}, {"nodeName": "n"}, FORBIDDEN),
        ({}, {"resourceClaims": [{"name": "g", "resourceClaimName": "c"}]}, FORBIDDEN),
        ({}, {"containers": [{"name": "main", "env": [{"name": "A", "value": "1"}]}]}, FORBIDDEN),
    ],
)
def test_gated_pods_may_only_be_narrowed(
    live: Live, before: dict[str, Any], after: dict[str, Any], said: str
):
    made(live, gated("p", **before))
    answer = live.call("PATCH", live.path("pods", "p"), {"spec": after}, kind="strategic")
    assert answer.status == 422
    for part in said.split("....: "):
        assert part in answer.said


@real_too
def test_a_gated_pods_terms_may_be_narrowed_and_its_selector_added_to(live: Live):
    term = {"matchExpressions": [{"key": "a", "operator": "Exists"}]}
    required = {"nodeSelectorTerms": [term]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    made(live, gated("p", affinity=affinity, nodeSelector={"a": "b"}))
    narrower = copy.deepcopy(affinity)
    node = narrower["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    node["nodeSelectorTerms"][0] |= {
        "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]
    }
    change = {"spec": {"affinity": narrower, "nodeSelector": {"c": "d"}}}
    answer = live.call("PATCH", live.path("pods", "p"), change, kind="merge")
    assert answer.status == 200, answer.said
    assert answer.body["spec"]["nodeSelector"] == {"a": "b", "c": "d"}


@real_too
def test_once_ungated_a_pods_affinity_is_fixed(live: Live):
    made(live, pod("p", nodeSelector={"no": "such"}))
    answer = live.call(
        "PATCH", live.path("pods", "p"), {"spec": {"affinity": on("n")}}, kind="strategic"
    )
    assert answer.status == 422
    assert FORBIDDEN in answer.said


@real_too
def test_a_pod_with_a_gate_takes_no_node_neither_at_creation_nor_by_binding(live: Live):
    answer = live.call("POST", live.path("pods"), gated("p", nodeName="n"))
    assert answer.status == 422
    said = "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared"
    assert said in answer.said
    made(live, gated("p"))
    target = {"apiVersion": "v1", "kind": "Node", "name": "n"}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": target}
    answer = live.call("POST", live.path("pods", "p/binding"), body)
    assert answer.status == 409
    assert answer.said == (
        'Operation cannot be fulfilled on pods/binding "p": pod p has non-empty'
        " .spec.schedulingGates"
    )


@real_too
def test_gated_pods_say_so_in_their_status(live: Live):
    made(live, gated("p"))
    conditions = live.call("GET", live.path("pods", "p")).body["status"]["conditions"]
    assert [(one["type"], one["reason"]) for one in conditions] == [
        ("PodScheduled", "SchedulingGated")
    ]


@real_too
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {"affinity": on("no de")},
            (
                '.matchFields[0].values[0]: Invalid value: "no de": a lowercase RFC'
                " 1123 subdomain must"
                " consist of"
            ),
        ),
        (
            {
                "containers": [
                    {"name": "a", "image": "i", "resources": {"claims": [{"name": "gpus"}]}}
                ]
            },
            (
                'spec.containers[0].resources.claims[0]: Not found: "gpus": must be'
                " one of the names in"
                " pod.spec.resourceClaims which is empty"
            ),
        ),
        (
            {
                "containers": [
                    {
                        "name": "a",
                        "image": "i",
                        "env": [
                            {
                                "name": "A",
                                "valueFrom": {
                                    "fieldRef": {"fieldPath": "metadata.annotations[a.b/c]"}
                                },
                            }
                        ],
                    }
                ]
            },
            "error converting fieldPath: field label not supported: metadata.annotations[a.b/c]",
        ),
    ],
)
def test_pods_that_make_no_sense_are_refused(live: Live, spec: dict[str, Any], said: str):
    answer = live.call("POST", live.path("pods"), pod("p", **spec))
    assert answer.status == 422
    assert said in answer.said


@real_too
def test_a_priority_class_must_exist(live: Live):
    answer = live.call("POST", live.path("pods"), pod("p", priorityClassName="none"))
    assert (answer.status, answer.said) == (
        403,
        'pods "p" is forbidden: no PriorityClass with name none was found',
    )


# CRDs.


def unknown(path: str) -> str:
    return f'299 - "unknown field \\"{path}\\""'


@real_too
def test_the_crd_of_v2beta1_keeps_gates_and_claims_and_prunes_the_scheduling_group(live: Live):
    group = "kubeflow.org/v2beta1"
    body = mpijob(
        "j",
        schedulingGates=[{"name": GATE}],
        resourceClaims=[{"name": "gpus", "resourceClaimName": "c"}],
        schedulingGroup={"podGroupName": "j"},
    )
    answer = live.call("POST", live.path("mpijobs", group=group), body)
    spec = answer.body["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    assert spec["schedulingGates"] == [{"name": GATE}]
    assert spec["resourceClaims"] == [{"name": "gpus", "resourceClaimName": "c"}]
    assert "schedulingGroup" not in spec
    warned = "spec.mpiReplicaSpecs.Worker.template.spec.schedulingGroup"
    assert answer.headers["warning"] == unknown(warned)
    strict = live.call(
        "POST", live.path("mpijobs", group=group), {**body}, fieldValidation="Strict"
    )
    assert strict.status == 400
    assert f'strict decoding error: unknown field "{warned}"' in strict.said


@real_too
def test_managed_by_of_v2beta1_can_be_changed(live: Live):
    group = "kubeflow.org/v2beta1"
    body = mpijob("j")
    body["spec"]["runPolicy"]["managedBy"] = "kubeflow.org/mpi-operator"
    made(live, body, group=group)
    change = {"spec": {"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}}}
    answer = live.call("PATCH", live.path("mpijobs", "j", group=group), change, kind="merge")
    assert answer.status == 200, "its CRD has no rule against it, whatever its comment says"


def test_managed_by_of_v1_cannot_be_changed(api: FakeApi, client: Live):
    api.versions = ["v1"]
    group = "kubeflow.org/v1"
    body = mpijob("j") | {"apiVersion": group}
    body["spec"]["runPolicy"]["managedBy"] = "kubeflow.org/mpi-operator"
    made(client, body, group=group)
    change = {"spec": {"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}}}
    answer = client.call("PATCH", client.path("mpijobs", "j", group=group), change, kind="merge")
    assert answer.status == 422
    assert "field is immutable" in answer.said


def test_the_crd_of_v1alpha1_prunes_gates_claims_and_the_policies_of_later_versions(
    api: FakeApi, client: Live
):
    api.versions = ["v1alpha1"]
    spec = {
        "containers": [{"name": "mpi", "resources": {"claims": [{"name": "gpus"}], "limits": {}}}],
        "schedulingGates": [{"name": GATE}],
        "resourceClaims": [{"name": "gpus"}],
        "os": {"name": "linux"},
        "hostUsers": False,
        "nodeSelector": {"a": "b"},
        "topologySpreadConstraints": [],
    }
    body = {
        "apiVersion": "kubeflow.org/v1alpha1",
        "kind": "MPIJob",
        "metadata": {"name": "j"},
        "spec": {"replicas": 2, "runPolicy": {"suspend": True}, "template": {"spec": spec}},
    }
    stored = made(client, body, group="kubeflow.org/v1alpha1")["spec"]
    assert set(stored) == {"replicas", "template"}
    kept = {"containers", "nodeSelector", "topologySpreadConstraints"}
    assert set(stored["template"]["spec"]) == kept
    assert stored["template"]["spec"]["containers"] == [
        {"name": "mpi", "resources": {"limits": {}}}
    ]


@pytest.mark.parametrize("version", ["v2beta1", "v1"])
def test_an_operator_that_cannot_suspend_prunes_it(api: FakeApi, client: Live, version: str):
    api.versions, api.suspends = [version], False
    body = {**mpijob("j"), "apiVersion": f"kubeflow.org/{version}"}
    answer = client.call("POST", client.path("mpijobs", group=f"kubeflow.org/{version}"), body)
    assert answer.body["spec"]["runPolicy"] == {"cleanPodPolicy": "All"}
    assert answer.headers["warning"] == unknown("spec.runPolicy.suspend")


# Quotas and PodSecurity.


def asking(name: str, gpus: int = 2, **resources: str) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": str(gpus), **resources}
    container = {"name": "mpi", "image": "none", "resources": {"limits": limits}}
    return pod(name, containers=[container], nodeSelector={"no": "such"})


def quota(live: Live, **hard: str) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpu-quota"},
        "spec": {"hard": hard},
    }
    assert live.call("POST", live.path("resourcequotas"), body).status == 201
    path = live.path("resourcequotas", "gpu-quota")
    live.until(
        lambda: set((live.call("GET", path).body.get("status") or {}).get("used", {})) == set(hard),
        "the quota is counted",
    )


@real_too
def test_a_pod_beyond_the_quota_is_refused_and_what_is_used_is_told(live: Live):
    quota(live, **{"requests.nvidia.com/gpu": "4"})
    made(live, asking("a"))
    made(live, asking("b"))
    used = live.call("GET", live.path("resourcequotas", "gpu-quota")).body["status"]["used"]
    assert used == {"requests.nvidia.com/gpu": "4"}
    for query in ({}, {"dryRun": "All"}):
        answer = live.call("POST", live.path("pods"), asking("x"), **query)
        assert (answer.status, answer.said) == (
            403,
            (
                'pods "x" is forbidden: exceeded quota: gpu-quota, requested:'
                " requests.nvidia.com/gpu=2, used: requests.nvidia.com/gpu=4, limited:"
                " requests.nvidia.com/gpu=4"
            ),
        )
    live.call("DELETE", live.path("pods", "a"))
    live.until(
        lambda: live.call("POST", live.path("pods"), asking("x")).status == 201, "room again"
    )


@real_too
def test_a_quota_on_memory_wants_every_container_to_say_what_it_takes(live: Live):
    quota(live, **{"limits.memory": "8Gi"})
    answer = live.call("POST", live.path("pods"), asking("x"))
    assert answer.status == 403
    assert answer.said == (
        'pods "x" is forbidden: failed quota: gpu-quota: must specify limits.memory for: mpi'
    )
    made(live, asking("x", memory="6Gi"))
    over = live.call("POST", live.path("pods"), asking("y", memory="4Gi"))
    assert "requested: limits.memory=4Gi, used: limits.memory=6Gi, limited" in over.said


RESTRICTED = (
    'pods "x" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation !='
    ' false (container "main" must set securityContext.allowPrivilegeEscalation=false),'
    ' unrestricted capabilities (container "main" must set'
    ' securityContext.capabilities.drop=["ALL"]), runAsNonRoot != true (pod or container "main"'
    ' must set securityContext.runAsNonRoot=true), seccompProfile (pod or container "main" must'
    ' set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")'
)


def enforce(live: Live, level: str) -> None:
    labels = {"pod-security.kubernetes.io/enforce": level}
    path = f"/api/v1/namespaces/{live.namespace}"
    answer = live.call("PATCH", path, {"metadata": {"labels": labels}}, kind="merge")
    assert answer.status == 200


@real_too
def test_a_restricted_namespace_names_all_that_a_pod_must_set(live: Live):
    enforce(live, "restricted")
    live.until(
        lambda: live.call("POST", live.path("pods"), pod("x"), dryRun="All").status == 403,
        "the label is seen",
    )
    assert live.call("POST", live.path("pods"), pod("x")).said == RESTRICTED
    safe = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {"name": "main", "image": "none", "securityContext": safe}
    made(live, pod("x", containers=[container], nodeSelector={"no": "such"}))


@real_too
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"hostIPC": True}, "host namespaces (hostIPC=true)"),
        (
            {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]},
            'hostPath volumes (volume "v")',
        ),
        (
            {
                "containers": [
                    {
                        "name": "a",
                        "image": "none",
                        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
                    }
                ]
            },
            (
                'non-default capabilities (container "a" must not include "IPC_LOCK" in'
                " securityContext.capabilities.add)"
            ),
        ),
    ],
)
def test_a_baseline_namespace_refuses_what_reaches_the_host(
    live: Live, spec: dict[str, Any], said: str
):
    enforce(live, "baseline")
    live.until(
        lambda: live.call("POST", live.path("pods"), pod("x", **spec), dryRun="All").status == 403,
        "the label is seen",
    )
    answer = live.call("POST", live.path("pods"), pod("x", **spec))
    expected = f'pods "x" is forbidden: violates PodSecurity "baseline:latest": {said}'
    assert answer.said == expected
    made(live, pod("x", nodeSelector={"no": "such"}))


# DRA.


def claim(name: str, *requests: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": list(requests)}},
    }


def one_of(expression: str, name: str = "c") -> dict[str, Any]:
    return {
        "name": name,
        "deviceClassName": "gpu.nvidia.com",
        "selectors": [{"cel": {"expression": expression}}],
        "allocationMode": "ExactCount",
        "count": 1,
    }


@real_too
def test_claims_have_at_most_eight_alternatives_and_short_selectors(live: Live):
    group = "resource.k8s.io/v1"
    path = live.path("resourceclaims", group=group)
    many = [one_of("true", f"c{index}") for index in range(9)]
    answer = live.call("POST", path, claim("a", {"name": "gpu", "firstAvailable": many}))
    assert answer.status == 422
    assert "firstAvailable: Too many: 9: must have at most 8 items" in answer.said
    exactly = dict(one_of("'" + "a" * 10240 + "' == ''").items())
    del exactly["name"]
    answer = live.call("POST", path, claim("a", {"name": "gpu", "exactly": exactly}))
    assert answer.status == 422
    assert "cel.expression: Too long: may not be more than 10240 bytes" in answer.said
