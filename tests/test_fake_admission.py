"""Admission policies on the fake API server: the very texts that `install` prints are evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fake_api import FakeApi
from fake_cel import CelError, evaluate
from fake_cluster import FakeCluster
from fake_resources import Refused

from arena_topo.manifests import install
from arena_topo.manifests.install import Installation

LABEL = "training.kubeflow.org"
GATE = "arena-topo.io/placement"
MAP = "node-a/0,3;node-b/1,2"


@pytest.fixture
def api() -> Iterator[FakeApi]:
    fake = FakeApi()
    for one in install.installation_objects(Installation(image="any", gang=True)):
        if "Admission" in one["kind"]:
            fake.add(one)
    yield fake
    fake.close()


def worker(
    index: int = 0, text: str | None = MAP, *, labels: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    marks = {
        f"{LABEL}/job-role": "worker",
        f"{LABEL}/job-name": "j",
        f"{LABEL}/replica-index": str(index),
        "arena-topo.io/inline-placement": "v1",
        **(labels or {}),
    }
    notes = {} if text is None else {GATE: text}
    body = {"schedulingGates": [{"name": "x.io/own"}, {"name": GATE}], **spec}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"j-worker-{index}", "labels": marks, "annotations": notes},
        "spec": {"containers": [{"name": "mpi"}], **body},
    }


def fields(pod: dict[str, Any]) -> list[Any]:
    """The nodes that each term of a pod's required node affinity names."""
    affinity = pod["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return [[one["values"] for one in term.get("matchFields", ())] for term in terms]


@pytest.mark.parametrize("dry", [True, False])
def test_each_worker_gets_its_entry_and_loses_the_map_and_our_gate(api: FakeApi, *, dry: bool):
    one = api.create("pods", "default", worker(1), dry=dry)
    assert one["metadata"]["annotations"] == {
        "topology.kubernetes.io/gpu-group": "1,2",
        "topology.kubernetes.io/gpu-visible": "1,2",
    }
    assert fields(one) == [[["node-b"]]]
    assert one["spec"]["schedulingGates"] == [{"name": "x.io/own"}]
    assert (api.find("Pod", "j-worker-1") is None) == dry


@pytest.mark.parametrize(
    ("affinity", "expected"),
    [
        ({"podAntiAffinity": {}}, [[["node-a"]]]),
        (
            {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
            [[["node-a"]]],
        ),
        (
            {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
                            {
                                "matchFields": [
                                    {"key": "metadata.name", "operator": "In", "values": ["x"]}
                                ]
                            },
                        ]
                    }
                }
            },
            [[["node-a"]], [["x"], ["node-a"]]],
        ),
    ],
)
def test_the_node_goes_into_every_term_that_the_template_has(
    api: FakeApi, affinity: dict[str, Any], expected: list[Any]
):
    one = api.create("pods", "default", worker(0, affinity=affinity), dry=True)
    assert fields(one) == expected
    assert set(affinity) <= set(one["spec"]["affinity"])


@pytest.mark.parametrize(
    ("index", "text", "said"),
    [
        (5, MAP, 'composited variable "entry" fails to evaluate: index out of bounds: 5'),
        (0, "node-a", 'composited variable "gpus" fails to evaluate: index out of bounds: 1'),
    ],
)
def test_a_map_that_cannot_be_read_is_a_denial_to_the_pods_creator(
    api: FakeApi, index: int, text: str, said: str
):
    with pytest.raises(Refused) as caught:
        api.create("pods", "default", worker(index, text))
    assert caught.value.status == 403
    start = "policy 'arena-topo-placement' with binding 'arena-topo-placement' denied request: "
    assert caught.value.message.startswith(start)
    assert caught.value.message.endswith(said)


def test_an_index_that_is_no_number_is_a_denial_too(api: FakeApi):
    labels = {f"{LABEL}/replica-index": "x"}
    with pytest.raises(Refused, match="type conversion error from 'string' to 'int'"):
        api.create("pods", "default", worker(labels=labels))


def test_a_bad_node_name_is_for_the_pods_own_rules(api: FakeApi):
    with pytest.raises(Refused, match=r"matchFields\[0\].values\[0\]: Invalid value") as caught:
        api.create("pods", "default", worker(0, "no de/0"))
    assert caught.value.status == 422


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        (None, {}),
        (MAP, {"arena-topo.io/inline-placement": "v2"}),
        (MAP, {f"{LABEL}/job-role": "launcher"}),
    ],
)
def test_pods_of_others_and_of_other_formats_are_left_at_their_gate(
    api: FakeApi, text: str | None, labels: dict[str, str]
):
    one = api.create("pods", "default", worker(0, text, labels=labels), dry=True)
    assert one["spec"]["schedulingGates"] == [{"name": "x.io/own"}, {"name": GATE}]
    assert "affinity" not in one["spec"]


def test_claims_and_gangs_are_added_where_the_labels_ask_for_them(api: FakeApi):
    api.unserved -= {"podgroups.scheduling.k8s.io"}
    labels = {"arena-topo.io/claims": "per-worker", "arena-topo.io/gang": "true"}
    container = {"name": "mpi", "resources": {"claims": [{"name": "gpus"}]}}
    one = api.create("pods", "default", worker(1, labels=labels, containers=[container]), dry=True)
    assert one["spec"]["resourceClaims"] == [{"name": "gpus", "resourceClaimName": "j-worker-1"}]
    assert one["spec"]["schedulingGroup"] == {"podGroupName": "j"}


def test_a_policy_without_its_binding_or_removed_does_nothing(api: FakeApi):
    api.remove("mutatingadmissionpolicybindings", "", "arena-topo-placement")
    one = api.create("pods", "default", worker(), dry=True)
    assert {"name": GATE} in one["spec"]["schedulingGates"]


def test_a_policy_may_be_bound_to_some_namespaces_only(api: FakeApi):
    with api.edit("MutatingAdmissionPolicyBinding", "arena-topo-placement") as binding:
        selector = {"matchLabels": {"kubernetes.io/metadata.name": "team-a"}}
        binding["spec"]["matchResources"] = {"namespaceSelector": selector}
    inside = api.create("pods", "team-a", worker(), dry=True)
    outside = api.create("pods", "default", worker(), dry=True)
    assert {"name": GATE} not in inside["spec"]["schedulingGates"]
    assert {"name": GATE} in outside["spec"]["schedulingGates"]


def test_a_failing_policy_that_may_be_ignored_is(api: FakeApi):
    with api.edit("MutatingAdmissionPolicy", "arena-topo-placement") as policy:
        policy["spec"]["failurePolicy"] = "Ignore"
    assert api.create("pods", "default", worker(9), dry=True)["metadata"]["annotations"] == {
        GATE: MAP
    }


def test_an_apply_configuration_cannot_set_a_node(api: FakeApi):
    with api.edit("MutatingAdmissionPolicy", "arena-topo-placement") as policy:
        policy["spec"]["mutations"] = [
            {
                "patchType": "ApplyConfiguration",
                "applyConfiguration": {
                    "expression": 'Object{spec: Object.spec{nodeSelector: {"a": variables.node}}}'
                },
            }
        ]
    with pytest.raises(Refused) as caught:
        api.create("pods", "default", worker())
    assert caught.value.message.endswith(
        "error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or"
        " structs: .spec.nodeSelector"
    )


def test_a_job_is_placed_by_the_policy_again_after_a_worker_is_deleted(api: FakeApi):
    world = FakeCluster(api)
    for name in ("node-a", "node-b"):
        world.node(name)
    pod = worker()
    limits = {"nvidia.com/gpu": "2"}
    spec = {
        "schedulingGates": [{"name": GATE}],
        "containers": [{"name": "mpi", "image": "i", "resources": {"limits": limits}}],
    }
    labels = {"arena-topo.io/inline-placement": "v1"}
    template = {"metadata": {"labels": labels, "annotations": {GATE: MAP}}, "spec": spec}
    launcher = {"spec": {"containers": [{"name": "mpi", "image": "i"}]}}
    replicas = {
        "Launcher": {"template": launcher},
        "Worker": {"replicas": 3, "template": template},
    }
    api.create(
        "mpijobs",
        "default",
        {"kind": "MPIJob", "metadata": {"name": "j"}, "spec": {"mpiReplicaSpecs": replicas}},
    )
    world.settle()
    # The map has two entries: the third worker is refused, the first two hold their GPUs.
    assert world.phases()["j-worker-1"] == "Running"
    assert "j-worker-2" not in world.phases()
    events = [one["message"] for one in api.all("Event") if one["reason"] == "MPIJobFailed"]
    assert len(events) == 1
    said = "worker pod created failed: policy 'arena-topo-placement' with binding"
    assert events[0].startswith(said)
    assert events[0].endswith("index out of bounds: 2")
    api.remove("pods", "default", "j-worker-1")
    world.settle()
    assert [one["spec"]["nodeName"] for one in world.workers("j")] == ["node-a", "node-b"]
    assert pod["spec"]["schedulingGates"]


# Validating policies.


def test_a_validating_policy_sees_the_user_the_object_and_the_one_before(api: FakeApi):
    rules = [
        {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE", "UPDATE", "DELETE"],
            "resources": ["configmaps"],
        }
    ]
    node = "request.userInfo.extra['authentication.kubernetes.io/node-name'][0]"
    api.add(
        {
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": "own-node"},
            "spec": {
                "matchConstraints": {"resourceRules": rules},
                "matchConditions": [
                    {"name": "agent", "expression": "request.userInfo.username.endsWith(':agent')"}
                ],
                "validations": [
                    {
                        "expression": "(object == null ? oldObject : object).data.nodeName == "
                        f"{node}",
                        "message": "agents write of their own node",
                    }
                ],
            },
        }
    )
    api.add(
        {
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": "own-node"},
            "spec": {"policyName": "own-node", "validationActions": ["Deny"]},
        }
    )
    agent = api.tokens[api.service_account("agent", "team-a", node="node-1")]
    other = api.tokens[api.service_account("agent", "team-a", node="node-2")]

    def config_map(name: str, node: str) -> dict[str, Any]:
        data = {"nodeName": node}
        return {"kind": "ConfigMap", "metadata": {"name": name}, "data": data}

    api.create("configmaps", "team-a", config_map("a", "node-1"), user=agent)
    api.create("configmaps", "team-a", config_map("b", "node-9"), user="alice")
    with pytest.raises(Refused) as caught:
        api.create("configmaps", "team-a", config_map("c", "node-1"), user=other)
    assert (caught.value.status, caught.value.message) == (
        422,
        (
            "configmaps \"c\" is forbidden: ValidatingAdmissionPolicy 'own-node' with binding"
            " 'own-node' denied request: agents write of their own node"
        ),
    )
    with pytest.raises(Refused):
        api.remove("configmaps", "team-a", "a", user=other)
    api.remove("configmaps", "team-a", "a", user=agent)


# CEL.


SCOPE = {
    "object": {"m": {"a/b": "c"}, "list": ["x", "y"], "n": 3, "none": None},
    "device": {"attributes": {"d": {"uuid": "GPU-0123456789"}}},
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3 - 4 / 3 % 2", 6),
        ("-7 / 2", -3),
        ("'a' + \"b\"", "ab"),
        ("has(object.m) && !has(object.q)", True),
        ("has(object.list) ? object.list[1] : 'z'", "y"),
        ("object.m['a/b'] in ['c', 'd']", True),
        ("'a/b' in object.m", True),
        ("object.q == 1 || true", True),
        ("false && object.q", False),
        ("object.list.map(one, one + '!')", ["x!", "y!"]),
        ("object.list.filter(one, one != 'x')", ["y"]),
        ("object.list.all(one, one.size() == 1) && object.list.exists(one, one == 'y')", True),
        ("object.list.transformList(i, one, i > 0, one + string(i))", ["y1"]),
        ("object.m.transformMap(key, value, key + value)", {"a/b": "a/bc"}),
        ("object.?q.orValue('d')", "d"),
        ("object.?m[?'a/b'].orValue('d')", "c"),
        ("'a;b;c'.split(';')[2] + 'x'.upperAscii()", "cX"),
        ("device.attributes['d'].uuid.substring(4, 8) in ['0123']", True),
        ("'GPU-0123456789,GPU-1'.contains(device.attributes['d'].uuid)", True),
        ("jsonpatch.escapeKey('a~b/c')", "a~0b~1c"),
        ("{'a': dyn(1), 'b': dyn('c')}", {"a": 1, "b": "c"}),
        ("Object.spec.containers.env{name: 'A', value: 'B'}", {"name": "A", "value": "B"}),
        ("object.none == null", True),
        ("int('12') >= 12 && size(object.list) == 2", True),
    ],
)
def test_expressions_have_their_values(text: str, value: Any):
    assert evaluate(text, SCOPE) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("object.q.r", "no such key: q"),
        ("object.list[2]", "index out of bounds: 2"),
        ("int('1x')", "type conversion error from 'string' to 'int'"),
        ("other", "undeclared reference to 'other' (in container '')"),
        ("object.none.a", "no such key: a"),
        ("1 + 'a'", "no such overload"),
        ("1 / 0", "division by zero"),
        ("object.list[", "Syntax error"),
        ("object.n)", "Syntax error: mismatched input ')'"),
        ("object # a", "Syntax error: token recognition error"),
    ],
)
def test_expressions_without_a_value_say_why(text: str, said: str):
    with pytest.raises(CelError) as caught:
        evaluate(text, SCOPE)
    assert said in str(caught.value)
