"""`nodes topology`, `default` and `list`: who may use the GPUs of a node."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_api import FakeApi, kubeconfig
from hypothesis import given
from hypothesis import strategies as st
from job_shapes import CREATED, SUSPENDED, mpijob, ours
from kube_objects import records_of

from arena_topo import cli
from arena_topo.admin import nodes
from arena_topo.admin.nodes import Use
from arena_topo.clusters import observed
from arena_topo.manifests import FORMAT_ANNOTATION, GUARANTEE
from arena_topo.topology import TAINT

OURS = {"key": TAINT, "value": "true", "effect": "NoSchedule"}
THEIRS = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
ACK = "ack.node.gpu.schedule"


@pytest.fixture
def api(tmp_path, monkeypatch):
    fake = FakeApi()
    config = kubeconfig(tmp_path / "config", fake.url, user={"username": "admin"})
    monkeypatch.setenv("KUBECONFIG", config)
    yield fake
    fake.close()


@pytest.fixture
def arena(capfd):
    """Run a command line; (exit code, stdout, stderr)."""

    def run(*argv):
        capfd.readouterr()
        code = cli.run(("nodes", *argv))
        return code, *capfd.readouterr()

    return run


def node(name: str, *taints: dict[str, str], gpus: int = 8, **labels: str) -> dict[str, Any]:
    offers = {"cpu": "64", "nvidia.com/gpu": str(gpus)} if gpus else {"cpu": "64"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
        "spec": {"taints": list(taints)} if taints else {},
        "status": {
            "capacity": offers,
            "allocatable": offers,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(
    name: str, on: str, gpus: str = "1", phase: str = "Running", **notes: str
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team-a", "annotations": notes},
        "spec": {
            "nodeName": on,
            "containers": [
                {"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": gpus}}}
            ],
        },
        "status": {"phase": phase},
    }


def stored(api: FakeApi, name: str) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Labels and taints of a node."""
    found = api.find("Node", name)
    assert found is not None
    return found["metadata"]["labels"], found["spec"].get("taints") or []


def test_a_node_for_topology_jobs_is_labelled_and_tainted_and_read_as_such(arena, api):
    api.add(node("n1", THEIRS))
    assert arena("topology", "n1") == (0, "node/n1 labeled and tainted\n", "")
    labels, taints = stored(api, "n1")
    assert labels == {"kubernetes.io/hostname": "n1", TAINT: "true"}
    assert taints == [THEIRS, OURS]
    (seen,) = observed.cluster(records_of([api.find("Node", "n1")]), source="").nodes
    assert seen.dedicated


def test_the_nodes_that_are_closed_to_topology_jobs_from_now_on_are_named(arena, api):
    for name in ("n1", "n2", "n3", "n10"):
        api.add(node(name))
    api.add(node("cpu", gpus=0))
    assert arena("topology", "n1", "n2", "--dry-run")[2] == (
        "note: topology jobs use reserved nodes only: 2 other nodes with GPUs (n3, n10) are closed"
        " to new ones\n"
    )
    assert arena("topology", "n1", "n2", "n3")[2] == (
        "note: topology jobs use reserved nodes only: 1 other node with GPUs (n10) is closed to new"
        " ones\n"
    )
    assert arena("topology", "n10")[2] == ""
    assert arena("default", "n10")[2] == ""


def test_gangs_that_wait_for_nodes_that_are_closed_are_named(arena, api):
    api.add(node("n1", gpus=4))
    api.add(node("n2", gpus=8))
    for name, gpus in (("large", 8), ("small", 4)):
        waits = mpijob(CREATED, SUSPENDED, name=name, policy={"suspend": True})
        waits["metadata"]["annotations"] = ours("waiting") | {
            "arena-topo.io/request": json.dumps({"workers": 1, "gpus": gpus})
        }
        worker = waits["spec"]["mpiReplicaSpecs"]["Worker"]
        worker["replicas"] = 1
        worker["template"]["spec"]["containers"][0]["resources"]["limits"] = {
            "nvidia.com/gpu": str(gpus)
        }
        api.add(waits)
    _code, _out, err = arena("topology", "n1", "--dry-run")
    assert err.splitlines()[-1] == (
        "warning: these gangs wait, and fit on no reserved node: team-a/large"
    )
    api.deny("list pods")
    assert "warning" not in arena("topology", "n1")[2]


def test_a_node_returned_to_default_use_is_as_before(arena, api):
    api.add(node("n1", THEIRS))
    before = stored(api, "n1")
    arena("topology", "n1")
    assert arena("default", "n1") == (0, "node/n1 given back\n", "")
    assert stored(api, "n1") == before


def test_an_equal_change_writes_nothing(arena, api):
    api.add(node("n1"))
    arena("topology", "n1", "--ack")
    api.requests.clear()
    assert arena("topology", "n1", "--ack") == (0, "node/n1 unchanged\n", "")
    assert not [one for one in api.requests if not one.startswith("GET")]


def test_acks_own_label_is_set_on_request(arena, api):
    api.add(node("n1"))
    arena("topology", "n1")
    assert ACK not in stored(api, "n1")[0]
    arena("topology", "n1", "--ack")
    assert stored(api, "n1")[0][ACK] == "topology"
    arena("default", "n1", "--ack")
    assert stored(api, "n1") == ({"kubernetes.io/hostname": "n1", ACK: "default"}, [])


def test_a_half_marked_node_is_made_whole(arena, api):
    api.add(node("labelled", **{TAINT: "true"}))
    api.add(node("tainted", {**OURS, "effect": "PreferNoSchedule"}))
    assert arena("topology", "labelled", "tainted")[0] == 0
    for name in ("labelled", "tainted"):
        assert stored(api, name) == ({"kubernetes.io/hostname": name, TAINT: "true"}, [OURS])


@pytest.mark.parametrize("use", ["topology", "default"])
@pytest.mark.usefixtures("api")
def test_a_change_without_node_names_is_a_usage_error(use, arena):
    assert arena(use, "--dry-run") == (
        2,
        "",
        "error: no node is named\n  try:  arena-topo nodes list shows them\n",
    )


def test_a_dry_run_checks_and_changes_nothing(arena, api):
    api.add(node("n1"))
    before = stored(api, "n1")
    assert arena("topology", "n1", "--dry-run") == (
        0,
        "node/n1 labeled and tainted (dry run)\n",
        "",
    )
    assert stored(api, "n1") == before


def test_foreign_pods_with_gpus_prevent_the_change_and_are_named(arena, api):
    api.add(node("n1"))
    api.add(node("n2"))
    api.add(pod("theirs", "n2"))
    api.add(pod("odd", "n2", gpus="many"))
    code, out, err = arena("topology", "n1", "n2")
    assert (code, out) == (1, "")
    assert err.splitlines() == [
        "error: pods that arena-topo did not place use GPUs there",
        "  why:  team-a/odd on n2, team-a/theirs on n2",
        "  try:  wait until they have ended, delete them, or add --force; nothing was changed",
    ]
    assert TAINT not in stored(api, "n1")[0]
    assert arena("topology", "n1", "n2", "--force")[0] == 0
    assert TAINT in stored(api, "n2")[0]


def test_pods_without_gpus_finished_pods_and_ours_do_not_prevent_the_change(arena, api):
    api.add(node("n1"))
    api.add(pod("plain", "n1", gpus="0"))
    api.add(pod("over", "n1", phase="Succeeded"))
    api.add(pod("ours", "n1", **{FORMAT_ANNOTATION: "v1"}))
    assert arena("topology", "n1")[0] == 0


def test_a_node_with_pinned_workers_is_not_returned_to_default_use(arena, api):
    api.add(node("n1"))
    arena("topology", "n1")
    api.add(pod("theirs", "n1"))
    api.add(pod("worker", "n1", **{FORMAT_ANNOTATION: "v1"}))
    code, _out, err = arena("default", "n1")
    assert code == 1
    assert "topology jobs run there: their GPUs could be given to other pods as well" in err
    assert "  why:  team-a/worker on n1\n" in err
    assert stored(api, "n1")[1] == [OURS]
    with api.edit("Pod", "worker", "team-a") as seen:
        seen["metadata"]["annotations"][GUARANTEE] = "node"
    assert arena("default", "n1")[0] == 0


def test_a_missing_node_is_named_before_any_node_changes(arena, api):
    api.add(node("n1"))
    code, _out, err = arena("topology", "n1", "gone")
    assert code == 1
    assert err.startswith("error: there is no node gone in this cluster\n")
    assert TAINT not in stored(api, "n1")[0]


def test_a_taint_of_a_concurrent_writer_is_not_lost(arena, api):
    api.add(node("n1"))
    other = {"key": "upgrade", "effect": "NoExecute"}

    def interfere() -> None:
        with api.edit("Node", "n1") as seen:
            seen["spec"]["taints"] = [other]

    api.before("PATCH /api/v1/nodes/n1", interfere)
    assert arena("topology", "n1")[0] == 0
    assert stored(api, "n1")[1] == [other, OURS]


def test_a_node_that_changes_all_the_time_ends_in_a_one_line_error(arena, api):
    api.add(node("n1"))

    def interfere() -> None:
        with api.edit("Node", "n1") as seen:
            seen["metadata"]["labels"]["beat"] = seen["metadata"]["resourceVersion"]

    api.before("PATCH /api/v1/nodes/n1", interfere, times=99)
    code, out, err = arena("topology", "n1")
    assert (code, out) == (1, "")
    assert err.splitlines()[0] == "error: node n1 is changed by another program all the time"


def test_a_user_who_may_not_change_nodes_gets_the_missing_right(arena, api):
    api.add(node("n1"))
    api.deny("patch nodes")
    code, _out, err = arena("topology", "n1")
    assert code == 4
    assert 'resources: ["nodes"], verbs: ["patch"]' in err


def test_nodes_are_listed_with_their_use_and_what_contradicts_it(arena, api):
    api.add(node("both", OURS, **{TAINT: "true"}))
    api.add(node("free"))
    api.add(node("labelled", gpus=4, **{TAINT: "true"}))
    api.add(node("plain", gpus=0))
    api.add(node("tainted", OURS))
    theirs = node("theirs", **{ACK: "topology"})
    theirs["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    api.add(theirs)
    for name in ("both", "labelled"):
        with api.edit("Node", name, "") as one:
            one["spec"]["unschedulable"] = True
    code, out, _err = arena("list")
    assert code == 0
    assert out.splitlines() == [
        "NODE      GPUS  USE       REMARK",
        "both      8     topology  cordoned",
        "free      8     default",
        "labelled  4     default   labelled but not tainted: other pods may come; cordoned",
        "tainted   8     default   tainted but not labelled: not taken for a topology node",
        "theirs    8     topology  not ready",
    ]
    code, out, _err = arena("list", "-o", "json")
    assert json.loads(out)["items"][2] == {
        "name": "labelled",
        "gpus": 4,
        "use": "default",
        "remark": "labelled but not tainted: other pods may come",
        "cordoned": True,
        "ready": True,
    }


def test_a_list_without_nodes_says_why_nodes_of_a_dra_driver_are_not_in_it(arena, api):
    api.add(node("plain", gpus=0))
    code, out, err = arena("list")
    assert (code, out) == (0, "NODE  GPUS  USE  REMARK\n")
    assert err.endswith("GPUs of a DRA driver need no reservation.\n")


words = st.text("ab/.-1", min_size=1, max_size=4)
taint = st.fixed_dictionaries(
    {"key": words | st.just(TAINT), "effect": st.sampled_from(["NoSchedule", "NoExecute"])},
    optional={"value": st.sampled_from(["true", "x"])},
)


@given(
    labels=st.dictionaries(words | st.just(TAINT), words, max_size=3),
    taints=st.lists(taint, max_size=3),
    use=st.sampled_from(Use),
    ack=st.booleans(),
)
def test_a_patch_changes_what_is_ours_alone_and_once_is_enough(labels, taints, use, ack):
    seen = {
        "metadata": {"name": "n", "resourceVersion": "7", "labels": labels},
        "spec": {"taints": taints},
    }
    steps = nodes.patch(seen, use, ack=ack)
    changed = json.loads(json.dumps(seen))
    for step in steps[1:]:
        where, _, key = step["path"].strip("/").partition("/")
        changed[where][key] = step["value"]
    assert not nodes.patch(changed, use, ack=ack)

    def others(one: dict[str, Any]) -> tuple[Any, Any]:
        mine = {TAINT, ACK} if ack else {TAINT}
        kept = {key: value for key, value in one["metadata"]["labels"].items() if key not in mine}
        return kept, [each for each in one["spec"]["taints"] if each["key"] != TAINT]

    assert others(changed) == others(seen)
    assert (OURS in changed["spec"]["taints"]) == (use is Use.TOPOLOGY)
    assert (TAINT in changed["metadata"]["labels"]) == (use is Use.TOPOLOGY)
    if steps:
        assert steps[0] == {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}
