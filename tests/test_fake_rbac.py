"""Rights on the fake API server: who is told what, by which role."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters import Answer, Live
from fake_api import FakeApi, kubeconfig

RBAC = "rbac.authorization.k8s.io"


@pytest.fixture
def api() -> Iterator[FakeApi]:
    fake = FakeApi()
    fake.rbac = True
    yield fake
    fake.close()
    assert not fake.crashes, fake.crashes[0]


@pytest.fixture
def ask(api: FakeApi, tmp_path: Path):
    def call(who: str, method: str, path: str, body: Any = None, **query: str) -> Answer:
        config = kubeconfig(tmp_path / who.replace(":", "."), api.url, user={"username": who})
        kind = "merge" if method == "PATCH" else ""
        return Live(config, "default", api).call(method, path, body, kind=kind, **query)

    return call


def role(name: str, *rules: dict[str, Any], space: str = "") -> dict[str, Any]:
    kind = "Role" if space else "ClusterRole"
    meta = {"name": name, **({"namespace": space} if space else {})}
    return {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": meta, "rules": list(rules)}


def bound(
    name: str, to: str, *, kind: str = "User", space: str = "", of: str = "ClusterRole"
) -> dict[str, Any]:
    meta = {"name": f"{name}-{to}".replace(":", "."), **({"namespace": space} if space else {})}
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding" if space else "ClusterRoleBinding",
        "metadata": meta,
        "roleRef": {"apiGroup": RBAC, "kind": of, "name": name},
        "subjects": [{"kind": kind, "name": to, "apiGroup": RBAC}],
    }


EDIT = {"apiGroups": ["kubeflow.org"], "resources": ["mpijobs"], "verbs": ["*"]}
JOBS = "/apis/kubeflow.org/v2beta1/namespaces/team-a/mpijobs"
JOB = {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": "j"}}


def test_nobody_may_do_anything_that_no_role_says(ask):
    for path, said in (
        (
            "/api/v1/nodes",
            (
                'nodes is forbidden: User "alice" cannot list resource "nodes" in'
                ' API group "" at the'
                " cluster scope"
            ),
        ),
        (
            "/api/v1/namespaces/team-a/pods",
            (
                'pods is forbidden: User "alice" cannot list resource "pods" in API group "" in the'
                ' namespace "team-a"'
            ),
        ),
        (
            f"{JOBS}/j",
            (
                'mpijobs.kubeflow.org "j" is forbidden: User "alice" cannot get'
                ' resource "mpijobs" in'
                ' API group "kubeflow.org" in the namespace "team-a"'
            ),
        ),
        (
            "/api/v1/namespaces/team-a/pods/p/log",
            (
                'pods "p" is forbidden: User "alice" cannot get resource "pods/log"'
                ' in API group "" in'
                ' the namespace "team-a"'
            ),
        ),
    ):
        answer = ask("alice", "GET", path)
        assert (answer.status, answer.said) == (403, said)
    assert ask("alice", "GET", "/version").status == 200
    assert ask("alice", "GET", "/apis/kubeflow.org").status == 200
    assert ask("admin", "GET", "/api/v1/nodes").status == 200


def test_a_role_binding_lends_a_cluster_role_in_its_namespace_only(api: FakeApi, ask):
    api.add(role("edit", EDIT))
    api.add(bound("edit", "alice", space="team-a"))
    assert ask("alice", "POST", JOBS, JOB).status == 201
    assert ask("alice", "GET", JOBS).status == 200
    assert ask("alice", "GET", JOBS.replace("team-a", "default")).status == 403
    assert ask("alice", "GET", "/apis/kubeflow.org/v2beta1/mpijobs").status == 403
    assert ask("bob", "GET", JOBS).status == 403
    api.add(bound("edit", "bob"))
    assert ask("bob", "GET", "/apis/kubeflow.org/v2beta1/mpijobs").status == 200


def test_verbs_are_told_apart(api: FakeApi, ask):
    path = "/api/v1/namespaces/team-a/configmaps"
    api.add({"kind": "ConfigMap", "metadata": {"name": "c", "namespace": "team-a"}})
    calls = {
        "list": ("GET", path),
        "get": ("GET", f"{path}/c"),
        "watch": ("GET", path),
        "patch": ("PATCH", f"{path}/c"),
        "update": ("PUT", f"{path}/c"),
        "create": ("POST", path),
        "deletecollection": ("DELETE", path),
        "delete": ("DELETE", f"{path}/c"),
    }
    for verb in calls:
        rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": [verb]}
        api.add(role(verb, rule, space="team-a"))
        api.add(bound(verb, f"user-{verb}", space="team-a", of="Role"))
    for verb, (method, where) in calls.items():
        query = {"watch": "true", "timeoutSeconds": "0.01"} if verb == "watch" else {}
        for other in calls:
            body = {"metadata": {"name": "new"}, "kind": "ConfigMap"} if verb == "create" else {}
            answer = ask(f"user-{other}", method, where, body or None, dryRun="All", **query)
            assert (answer.status != 403) == (other == verb), (verb, other, answer.said)


def test_names_of_resources_narrow_a_rule(api: FakeApi, ask):
    api.add({"kind": "ConfigMap", "metadata": {"name": "cluster-view", "namespace": "team-a"}})
    api.add({"kind": "ConfigMap", "metadata": {"name": "other", "namespace": "team-a"}})
    rule = {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "verbs": ["get", "list"],
        "resourceNames": ["cluster-view"],
    }
    api.add(role("view", rule, space="team-a"))
    everyone = {**bound("view", "system:authenticated", kind="Group", space="team-a", of="Role")}
    api.add(everyone)
    path = "/api/v1/namespaces/team-a/configmaps"
    assert ask("anybody", "GET", f"{path}/cluster-view").status == 200
    assert ask("anybody", "GET", f"{path}/other").status == 403
    assert ask("anybody", "GET", path).status == 403


def test_service_accounts_have_their_names_and_groups(api: FakeApi, tmp_path: Path):
    token = api.service_account("agent", "team-a", node="node-1")
    api.add(role("read", {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}))
    one = bound("read", "agent")
    one["subjects"] = [{"kind": "ServiceAccount", "name": "agent", "namespace": "team-a"}]
    api.add(one)
    live = Live(kubeconfig(tmp_path / "c", api.url, user={"token": token}), "team-a", api)
    assert live.call("GET", "/api/v1/nodes").status == 200
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = live.call("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    assert answer.body["status"]["userInfo"] == {
        "username": "system:serviceaccount:team-a:agent",
        "groups": [
            "system:serviceaccounts",
            "system:serviceaccounts:team-a",
            "system:authenticated",
        ],
    }


def test_access_reviews_answer_as_requests_are_answered(api: FakeApi, ask):
    api.add(role("edit", EDIT))
    api.add(bound("edit", "alice", space="team-a"))

    def may(who: str, **asked: str) -> bool:
        body = {"spec": {"resourceAttributes": asked}}
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        return ask(who, "POST", path, body).body["status"]["allowed"]

    jobs = {"group": "kubeflow.org", "resource": "mpijobs", "verb": "create"}
    assert may("alice", namespace="team-a", **jobs)
    assert not may("alice", namespace="default", **jobs)
    assert not may("alice", **jobs)
    assert not may("alice", namespace="team-a", resource="pods", subresource="log", verb="get")
    assert may("admin", **jobs)
    api.rbac = False
    assert may("alice", **jobs)
    api.deny("create mpijobs default")
    assert not may("alice", namespace="default", **jobs)
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    api.rbac = True
    rules = ask("alice", "POST", path, {"spec": {"namespace": "team-a"}}).body["status"]
    assert rules["resourceRules"] == [EDIT]


def test_impersonation_needs_a_right_of_its_own(api: FakeApi, tmp_path: Path):
    user = {"username": "alice", "as": "bob"}
    live = Live(kubeconfig(tmp_path / "c", api.url, user=user), "default", api)
    answer = live.call("GET", "/version")
    assert (answer.status, answer.said) == (
        403,
        (
            'users "bob" is forbidden: User "alice" cannot impersonate resource'
            ' "users" in API group ""'
            " at the cluster scope"
        ),
    )
    api.add(role("act", {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"]}))
    api.add(bound("act", "alice"))
    assert live.call("GET", "/version").status == 200
    assert 'User "bob" cannot list resource "nodes"' in live.call("GET", "/api/v1/nodes").said


def test_discovery_tells_what_is_served(api: FakeApi, ask):
    groups = {one["name"] for one in ask("alice", "GET", "/apis").body["groups"]}
    assert {"apps", "batch", "kubeflow.org", "resource.k8s.io", RBAC} <= groups
    assert "kueue.x-k8s.io" not in groups
    one = ask("alice", "GET", "/apis/resource.k8s.io").body
    assert one["preferredVersion"] == {"groupVersion": "resource.k8s.io/v1", "version": "v1"}
    served = ask("alice", "GET", "/apis/scheduling.k8s.io/v1").body["resources"]
    assert [one["name"] for one in served] == ["priorityclasses"]
    assert ask("alice", "GET", "/apis/scheduling.k8s.io/v1alpha2").status == 404
    api.unserved -= {"podgroups.scheduling.k8s.io"}
    assert ask("alice", "GET", "/apis/scheduling.k8s.io/v1alpha2").status == 200
    api.unserved.add("resource.k8s.io")
    assert ask("alice", "GET", "/apis/resource.k8s.io").status == 404
    assert ask("admin", "GET", "/apis/resource.k8s.io/v1/resourceslices").status == 404
    api.kueue = ["v1beta1"]
    assert ask("alice", "GET", "/apis/kueue.x-k8s.io").body["versions"][0]["version"] == "v1beta1"
