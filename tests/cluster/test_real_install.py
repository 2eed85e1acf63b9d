"""What `arena-topo install` prints, applied to a real cluster, and people with its roles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from real import IMAGE, JOBS, Real, words

from arena_topo.errors import AccessDenied
from arena_topo.manifests import install

pytestmark = pytest.mark.cluster

RBAC = "rbac.authorization.k8s.io"


def printed(cluster: Real, *more: str) -> str:
    """What `install` prints for this cluster."""
    done = cluster.arena("install", f"--image={IMAGE}", *more)
    assert done.code == 0, done.err
    return done.out


def generations(cluster: Real, text: str) -> dict[str, object]:
    """Of each installed object its generation, or where it has none all but its bookkeeping."""
    found = {}
    for one in yaml.safe_load_all(text):
        meta = one["metadata"]
        where = ("-n", meta["namespace"]) if "namespace" in meta else ()
        stored = json.loads(cluster.kubectl("get", one["kind"], meta["name"], *where, "-o", "json"))
        number = stored["metadata"].pop("generation", None)
        del stored["metadata"]
        stored.pop("status", None)
        found[f"{one['kind']} {meta['name']}"] = number or stored
    return found


def test_applying_the_same_again_changes_nothing_and_kubectl_diff_says_so(cluster: Real):
    text = printed(cluster)
    before = generations(cluster, text)
    said = cluster.kubectl("apply", "--server-side", "-f", "-", text=text)
    assert all(line.endswith("serverside-applied") for line in said.splitlines())
    assert generations(cluster, text) == before
    assert cluster.kubectl("diff", "--server-side", "-f", "-", text=text) == ""


def test_another_fabric_file_starts_the_controller_again_and_the_same_one_does_not(
    cluster: Real, tmp_path: Path
):
    """`kubectl apply` of what `install --fabric` prints: a new pod template for each new file."""
    file = tmp_path / "net.yaml"
    plain, changes = printed(cluster), []
    try:
        for rate in (100, 100, 200):
            file.write_text(f"levels: [{{name: rack, label: a/rack, bandwidthGBps: {rate}}}]\n")
            text = printed(cluster, "--fabric", str(file))
            before = generations(cluster, plain)
            cluster.kubectl("apply", "--server-side", "-f", "-", text=text)
            after = generations(cluster, plain)
            changes.append({name for name in before if before[name] != after[name]})
        config = cluster.kubectl(
            *("get", "configmap", "arena-topo-fabric", "-n", install.SYSTEM, "-o", "json")
        )
        assert json.loads(config)["data"] == {"fabric.yaml": file.read_text()}
    finally:
        cluster.kubectl("apply", "--server-side", "-f", "-", text=plain)
        cluster.kubectl("delete", "configmap", "arena-topo-fabric", "-n", install.SYSTEM)
    assert changes == [
        {f"Deployment {install.CONTROLLER}"},
        set(),
        {f"Deployment {install.CONTROLLER}"},
    ]


def test_the_check_of_a_cluster_finds_all_that_was_installed(cluster: Real):
    cluster.machines(1)
    out = cluster.arena("check").out
    result = out.index("RESULT")
    found = {line[:result].strip(): line[result:].split()[0] for line in out.splitlines()[1:]}
    for name in ("API server", "mpijobs", "placement policy", "topology"):
        assert found.get(name) == "ok", out


def account(cluster: Real, name: str, *roles: str) -> str:
    """The kubeconfig of a new account with cluster roles in this namespace."""
    space = cluster.live.namespace
    cluster.kubectl("create", "serviceaccount", name, "-n", space)
    for role in roles:
        who = f"--serviceaccount={space}:{name}"
        kind = "clusterrolebinding" if role == "arena-topo-cluster-reader" else "rolebinding"
        where = () if kind == "clusterrolebinding" else ("-n", space)
        cluster.kubectl(
            "create", kind, f"{space}-{name}-{role}", f"--clusterrole={role}", who, *where
        )
    return cluster.account(name, space)


def test_who_may_only_submit_has_his_gang_placed_by_the_controller(cluster: Real):
    cluster.machines(2)
    config = account(cluster, "sub", install.SUBMITTER)
    with cluster.controller() as log:
        cluster.until(lambda: "at work" in log.read_text(), "the controller is at work")
        done = cluster.arena(*words("gang", 4, 4), config=config)
        assert done.code == 0, done.err
        cluster.until(lambda: cluster.exact("gang"), f"the gang runs: {log.read_text()}")
    shown = cluster.arena("get", "gang", config=config)
    assert (shown.code, "gang-worker-3" in shown.out) == (0, True), shown.err
    assert cluster.live.call("GET", "/api/v1/nodes").status == 200
    refused = cluster.arena("nodes", "list", config=config)
    assert refused.code == AccessDenied.exit_code, refused.err
    assert cluster.arena("delete", "gang", config=config).code == 0
    cluster.until(lambda: not cluster.pods(), "the pods are gone")


def test_who_has_the_roles_for_it_places_a_gang_without_a_controller(cluster: Real):
    cluster.machines(2)
    config = account(
        cluster, "self", install.SUBMITTER, "arena-topo-self-placer", "arena-topo-cluster-reader"
    )
    done = cluster.arena(*words("gang", 4, 4), config=config)
    assert done.code == 0, done.err
    cluster.until(lambda: cluster.exact("gang"), "the gang runs")


def test_who_has_no_role_is_told_what_is_missing(cluster: Real):
    cluster.machines(1)
    done = cluster.arena(*words("gang", 1, 1), config=account(cluster, "stranger"))
    assert done.code == AccessDenied.exit_code
    assert done.err.startswith("error: not allowed to list nodes")
    assert "try:  ask for this rule" in done.err
    assert cluster.called("GET", cluster.live.path("mpijobs", group=JOBS))["items"] == []


def test_an_agent_writes_of_its_own_machine_alone(cluster: Real):
    cluster.machines(2)
    space = install.SYSTEM

    def agents() -> dict[str, str]:
        found = cluster.called("GET", f"/api/v1/namespaces/{space}/pods")["items"]
        return {
            one["spec"].get("nodeName", ""): one["metadata"]["name"]
            for one in found
            if "agent" in one["metadata"]["name"] and "deletionTimestamp" not in one["metadata"]
        }

    cluster.until(lambda: {"node-0", "node-1"} <= set(agents()), "both machines have their agents")
    bound = ("--bound-object-kind=Pod", f"--bound-object-name={agents()['node-0']}")
    token = cluster.kubectl("create", "token", "arena-topo-agent", "-n", space, *bound)
    agent = Real(type(cluster.live)(cluster.config(token=token.strip()), space), cluster.home)
    links = f"/api/v1/namespaces/{space}/configmaps"
    answers = []
    for name in ("node-0", "node-1"):
        published = cluster.called("GET", f"{links}/{name}-gpu-topology")
        published["metadata"]["annotations"] = {"test.arena-topo.io/seen": "1"}
        answers.append(agent.live.call("PUT", f"{links}/{name}-gpu-topology", published))
    own, other = answers
    assert own.status == 200, own.said
    assert other.status == 403
    assert "the agent of node node-0 may publish the topology of that node only" in other.said


def test_what_was_installed_is_removed_without_a_trace(cluster: Real):
    text = printed(cluster)
    try:
        gone = cluster.arena("install", "--remove")
        assert gone.code == 0, gone.err
        cluster.kubectl("delete", "-f", "-", text=gone.out)
        again = cluster.arena("install", "--remove")
        assert (again.code, again.out) == (0, "")
    finally:
        space = f"/api/v1/namespaces/{install.SYSTEM}"
        cluster.until(
            lambda: cluster.live.call("GET", space).status == 404, "its namespace is gone"
        )
        cluster.kubectl("apply", "--server-side", "-f", "-", text=text)
        cluster.until(
            lambda: "ok      gives workers" in cluster.arena("check").out, "all is there again"
        )
