"""`check`: what a cluster and its caller lack for jobs to be placed, and the way out of it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from fake_api import FakeApi, kubeconfig
from fake_resources import rfc3339
from plain_text import plain

from arena_topo import cli, layout
from arena_topo.admin import view as shown
from arena_topo.admin.checks import CheckReport, CheckResult, Prerequisite
from arena_topo.admin.inspection import Inspection
from arena_topo.admin.inspection import InspectionResult as Seen
from arena_topo.engines import Instance, JobStatus, Phase
from arena_topo.engines.machines import publishing
from arena_topo.manifests import PlacementForecast, install
from arena_topo.manifests.install import Installation
from arena_topo.reasons.drift import SeenDevice, WorkerGpus
from arena_topo.topology import TAINT, published

SYSTEM = install.SYSTEM
FIX = "arena-topo install --image IMAGE | kubectl apply -f -"


@pytest.fixture
def api(tmp_path, monkeypatch):
    """A cluster with an operator, a node with published links, and all that is installed."""
    fake = FakeApi()
    for one in install.installation_objects(Installation(image="any")):
        fake.add(one)
    fake.add(operator())
    fake.add(node("n1"))
    fake.add(topology("n1"))
    fake.add(lease())
    fake.tokens = {"admin": "admin", "sub": "sub"}
    config = kubeconfig(tmp_path / "config", fake.url, user={"token": "admin"}, namespace="team-a")
    monkeypatch.setenv("KUBECONFIG", config)
    yield fake
    fake.close()


@pytest.fixture
def check(capfd):
    """Run check; {name: (result, found, fix)} with the code, and what was said on stderr."""

    def run(*argv: str) -> tuple[int, dict[str, list[tuple[str, str, str | None]]], str]:
        capfd.readouterr()
        code = cli.run(("check", "-o", "json", *argv))
        out, err = capfd.readouterr()
        found: dict[str, list[tuple[str, str, str | None]]] = {}
        for one in json.loads(out)["checks"] if out else ():
            found.setdefault(one["name"], []).append((one["result"], one["found"], one["fix"]))
        return code, found, err

    return run


def operator(image: str = "mpioperator/mpi-operator:0.6.0", available: int = 1) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "mpi-operator", "namespace": "kube-system"},
        "spec": {"template": {"spec": {"containers": [{"name": "main", "image": image}]}}},
        "status": {"availableReplicas": available},
    }


def node(name: str, **labels: str) -> dict[str, Any]:
    offers = {"cpu": "64", "memory": "256Gi", "nvidia.com/gpu": "8"}
    product = {"nvidia.com/gpu.product": "Tesla-V100-SXM2-16GB"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**product, **labels}},
        "status": {
            "capacity": offers,
            "allocatable": offers,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def topology(name: str, age: float = 0.0) -> dict[str, Any]:
    machine = publishing(name, preset="dgx-1-v100").machine
    found = published.config_map(machine, machine.everything)
    found["metadata"]["namespace"] = SYSTEM
    del found["metadata"]["annotations"]
    found["data"]["observedAt"] = rfc3339(time.time() - age)
    return found


def lease(age: float = 0.0) -> dict[str, Any]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": install.CONTROLLER, "namespace": SYSTEM},
        "spec": {"holderIdentity": "pod-a", "renewTime": rfc3339(time.time() - age)},
    }


def of(api: FakeApi, kind: str, name: str, namespace: str = SYSTEM) -> Any:
    return api.edit(kind, name, namespace)


# ---------------------------------------------------------------- a cluster in order


@pytest.mark.usefixtures("api")
def test_where_all_is_in_order_nothing_needs_to_be_done(check):
    code, found, _err = check()
    assert code == 0
    assert {name: [one[0] for one in seen] for name, seen in found.items()} == {
        "API server": ["ok"],
        "mpijobs": ["ok"],
        "operator": ["ok"],
        "controller": ["ok"],
        "placement policy": ["ok"],
        "topology": ["ok"],
        "topology nodes": ["ok"],
        "pod security": ["ok"],
        "rights to submit": ["ok"],
        "rights to attach": ["ok"],
        "rights to place": ["ok"],
    }
    assert [fix for seen in found.values() for _, _, fix in seen if fix] == []
    said = {name: seen[0][1] for name, seen in found.items()}
    assert said["operator"] == "kube-system/mpi-operator: mpi-operator:0.6.0"
    assert said["controller"] == "pod-a is at work"
    assert said["topology"] == "the links of node n1 are published"


# ---------------------------------------------------------------- each thing that may be missing


def no_mpijobs(api: FakeApi) -> None:
    api.versions = []


def new_mpijobs(api: FakeApi) -> None:
    api.versions = ["v4", "v3"]


def old_mpijobs(api: FakeApi) -> None:
    api.versions = ["v1alpha1"]


def dead_operator(api: FakeApi) -> None:
    with of(api, "Deployment", "mpi-operator", "kube-system") as one:
        one["status"] = {}


def no_operator(api: FakeApi) -> None:
    with of(api, "Deployment", "mpi-operator", "kube-system") as one:
        one["spec"]["template"]["spec"]["containers"][0]["image"] = "nginx"


def no_controller(api: FakeApi) -> None:
    with of(api, "Lease", install.CONTROLLER) as one:
        del one["spec"]["renewTime"]


def silent_controller(api: FakeApi) -> None:
    with of(api, "Lease", install.CONTROLLER) as one:
        one["spec"]["renewTime"] = rfc3339(time.time() - 600)


def old_view(api: FakeApi) -> None:
    api.add(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": install.VIEW, "namespace": SYSTEM},
            "data": {"observedAt": rfc3339(time.time() - 3 * 3600)},
        }
    )


def no_policy(api: FakeApi) -> None:
    for kind in ("MutatingAdmissionPolicyBinding", "MutatingAdmissionPolicy"):
        for one in api.all(kind):
            api.remove(f"{_plural(kind)}.admissionregistration.k8s.io", "", one["metadata"]["name"])


def _plural(kind: str) -> str:
    return f"{kind.lower()[:-1]}ies" if kind.endswith("y") else f"{kind.lower()}s"


def other_policy(api: FakeApi) -> None:
    with of(api, "MutatingAdmissionPolicy", install.PLACEMENT_POLICY, "") as one:
        one["metadata"]["labels"][install.FORMAT_LABEL] = "v0"
        selector = one["spec"]["matchConstraints"]["objectSelector"]["matchExpressions"]
        selector[-1]["values"] = ["v0"]


def assumed_links(api: FakeApi) -> None:
    api.add(node("n2"))


def old_links(api: FakeApi) -> None:
    with of(api, "ConfigMap", "n1-gpu-topology") as one:
        one["data"]["observedAt"] = rfc3339(time.time() - 3600)


def half_marked(api: FakeApi) -> None:
    with of(api, "Node", "n1", "") as one:
        one["metadata"]["labels"][TAINT] = "true"


def mixed(api: FakeApi) -> None:
    with of(api, "Node", "n1", "") as one:
        one["metadata"]["labels"][TAINT] = "true"
        one["spec"] = {"taints": [{"key": TAINT, "value": "true", "effect": "NoSchedule"}]}
    container = {"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    api.add(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "theirs", "namespace": "default"},
            "spec": {"nodeName": "n1", "containers": [container]},
            "status": {"phase": "Running"},
        }
    )


def broken_gpus(api: FakeApi) -> None:
    api.add(node("n2"))
    api.add(topology("n2"))
    for name, offered in (("n1", "6"), ("n2", "0")):
        with of(api, "Node", name, "") as one:
            one["status"]["allocatable"] = {"nvidia.com/gpu": offered}


def restricted(api: FakeApi) -> None:
    with of(api, "Namespace", "team-a", "") as one:
        one["metadata"]["labels"] = {"pod-security.kubernetes.io/enforce": "restricted"}


@pytest.mark.parametrize(
    "case",
    [
        (
            no_mpijobs,
            "mpijobs",
            "fail",
            "the MPI operator is not installed: this cluster serves no MPIJob",
            "installs a release of it: https://github.com/kubeflow/mpi-operator/releases",
        ),
        (
            new_mpijobs,
            "mpijobs",
            "fail",
            "serves MPIJob only as v4, v3; arena-topo knows v2beta1, v1, v1alpha1",
            "installs an operator of these versions: https://github.com/kubeflow/mpi-operator",
        ),
        (old_mpijobs, "mpijobs", "warn", "v1alpha1, which cannot be suspended", "v2beta1"),
        (
            dead_operator,
            "operator",
            "fail",
            "mpi-operator:0.6.0 has no pod that is available",
            "kubectl describe deployment mpi-operator -n kube-system",
        ),
        (no_operator, "operator", "warn", "no Deployment runs an image called", "another name"),
        (no_controller, "controller", "warn", "none: users start their own waiting jobs", FIX),
        (
            silent_controller,
            "controller",
            "warn",
            "no sign of it for 10 min: waiting jobs are not started",
            f"kubectl get pods -n {SYSTEM}",
        ),
        (old_view, "controller", "warn", "cluster-view is 3 h old", "kubectl logs"),
        (no_policy, "placement policy", "warn", "not installed: the submitter, or the", FIX),
        (
            other_policy,
            "placement policy",
            "warn",
            "installed for maps of format v0; this version writes v1",
            FIX,
        ),
        (
            assumed_links,
            "topology",
            "warn",
            "the links of node n2 are assumed from the GPU product and count",
            "arena-topo topology publish NODE",
        ),
        (
            old_links,
            "topology",
            "warn",
            "no agent has looked at node n1 for 15 min or more",
            f"kubectl get pods -n {SYSTEM} -o wide",
        ),
        (
            half_marked,
            "topology nodes",
            "warn",
            "n1 is labelled but not tainted: other pods may come",
            "arena-topo nodes topology n1, or nodes default n1",
        ),
        (
            mixed,
            "topology nodes",
            "warn",
            "pods that arena-topo did not place use GPUs of node n1",
            "kubectl get pods -A -o wide --field-selector spec.nodeName=n1",
        ),
        (
            broken_gpus,
            "GPU health",
            "warn",
            "no job gets the unhealthy GPUs of 2 nodes: 2 of n1, 8 of n2",
            "arena-topo top node -d n1; kubectl describe node n1",
        ),
        (
            restricted,
            "pod security",
            "fail",
            "restricted, which refuses workers: their sshd runs as root",
            "kubectl label namespace team-a --overwrite pod-security.kubernetes.io/enforce=",
        ),
    ],
)
def test_what_is_missing_is_named_with_the_way_out(check, api, case):
    change, name, result, said, fix = case
    change(api)
    code, found, _err = check()
    odd = [one for one in found[name] if one[0] == result]
    assert odd, found[name]
    assert odd[0][1].startswith(said) or said in odd[0][1]
    assert fix in (odd[0][2] or "")
    others = {
        other for other, seen in found.items() if other != name and {"fail"} & {r for r, *_ in seen}
    }
    assert not others
    assert code == (1 if result == "fail" else 0)


def test_links_of_shared_gpus_are_not_reported_as_published(check, api):
    with of(api, "Node", "n1", "") as one:
        one["metadata"]["labels"]["nvidia.com/gpu.replicas"] = "2"
    code, found, _err = check()
    assert (code, found["topology"]) == (
        0,
        [
            (
                "warn",
                (
                    "only node n1 has GPUs, and they are shared or cut up: no job is placed by"
                    " topology"
                ),
                "arena-topo top node shows how each node is set up",
            )
        ],
    )


@pytest.mark.parametrize(
    ("count", "said"), [(5, "the same of node n5"), (6, "the same of 2 nodes (n5, n6)")]
)
def test_of_many_nodes_that_are_set_up_by_halves_the_last_are_named_together(
    check, api, count, said
):
    for at in range(2, count + 1):
        api.add(node(f"n{at}"))
    for at in range(1, count + 1):
        with of(api, "Node", f"n{at}", "") as one:
            one["metadata"]["labels"][TAINT] = "true"
    _code, found, _err = check()
    assert found["topology nodes"][-1] == ("warn", said, "arena-topo nodes list")


@pytest.mark.usefixtures("api")
def test_a_missing_namespace_fails(check):
    code, found, _err = check("-n", "nowhere")
    assert code == 1
    assert found["pod security"][0] == (
        "fail",
        "there is no namespace nowhere",
        "kubectl create namespace nowhere, or name another with -n",
    )


# ---------------------------------------------------------------- few rights


def bound(api: FakeApi, role: str, space: str = "") -> None:
    api.add(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding" if space else "ClusterRoleBinding",
            "metadata": {"name": f"sub-{role}", **({"namespace": space} if space else {})},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": role,
            },
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "sub"}],
        }
    )


@pytest.fixture
def limited(api, tmp_path, monkeypatch):
    """The same cluster for a user without rights."""
    api.rbac = True
    config = kubeconfig(tmp_path / "sub", api.url, user={"token": "sub"}, namespace="team-a")
    monkeypatch.setenv("KUBECONFIG", config)
    return api


@pytest.mark.usefixtures("limited")
def test_a_user_without_rights_gets_the_rights_to_request_and_unknown_results(check):
    code, found, _err = check()
    assert code == 1
    result, said, fix = found["rights to submit"][0]
    assert result == "fail"
    assert fix == (
        "kubectl create rolebinding arena-topo-submitter -n team-a"
        " --clusterrole=arena-topo-submitter --user=YOU"
    )
    assert said == (
        "not allowed to create mpijobs.kubeflow.org, get mpijobs.kubeflow.org,"
        " list mpijobs.kubeflow.org, watch mpijobs.kubeflow.org and 2 more"
    )
    assert found["operator"][0][0] == "unknown"
    assert 'resources: ["deployments"], verbs: ["list"]' in (found["operator"][0][2] or "")
    assert found["topology nodes"][0][0] == "unknown"
    assert found["controller"][0][0] == "ok"
    assert found["rights to place"] == [("ok", "the controller places your jobs", None)]


def test_a_submitter_with_a_controller_passes(check, limited):
    bound(limited, install.SUBMITTER, "team-a")
    code, found, _err = check()
    assert found["rights to submit"][0][0] == "ok"
    assert not [name for name, seen in found.items() if any(one[0] == "fail" for one in seen)]
    assert code == 0


def test_the_rights_to_submit_and_to_attach_are_separate(check, limited):
    _code, found, _err = check()
    assert found["rights to attach"] == [
        (
            "warn",
            "not allowed to create pods/exec, get pods/exec: neither attach nor check JOB",
            (
                "kubectl create rolebinding arena-topo-attach -n team-a"
                " --clusterrole=arena-topo-attach --user=YOU"
            ),
        )
    ]
    bound(limited, install.SUBMITTER, "team-a")
    found = check()[1]
    assert (found["rights to submit"][0][0], found["rights to attach"][0][0]) == ("ok", "warn")
    bound(limited, install.ATTACH, "team-a")
    assert check()[1]["rights to attach"][0][0] == "ok"


def test_without_a_controller_the_user_must_read_the_cluster(check, limited):
    no_controller(limited)
    bound(limited, install.SUBMITTER, "team-a")
    code, found, _err = check()
    assert code == 1
    result, said, fix = found["rights to place"][0]
    assert result == "fail"
    assert "not allowed to get nodes, list nodes, list pods" in said
    assert (fix or "").startswith("kubectl create clusterrolebinding arena-topo-cluster-reader")
    bound(limited, install.CLUSTER_READER)
    code, found, _err = check()
    # He cannot patch gates, which matters only where no policy lifts them.
    assert (code, found["rights to place"][0][0]) == (0, "warn")
    bound(limited, install.SELF_PLACER, "team-a")
    assert check()[1]["rights to place"][0][0] == "ok"
    # What he may not watch is listed.
    limited.deny("watch nodes")
    code, found, _err = check()
    result, said, fix = found["rights to place"][0]
    assert (code, result) == (0, "warn")
    assert said.startswith("not allowed to watch nodes, and no controller")
    assert (fix or "").startswith("kubectl create clusterrolebinding arena-topo-cluster-reader")


def test_whom_the_server_does_not_know_is_no_finding_but_an_error(
    check, api, tmp_path, monkeypatch
):
    config = kubeconfig(tmp_path / "who", api.url, user={"token": "who"})
    monkeypatch.setenv("KUBECONFIG", config)
    code, found, err = check()
    assert (code, found) == (4, {})
    assert err.startswith("error: the API server does not know who is asking")


def test_a_login_that_runs_out_half_way_is_an_error_too(check, api):
    api.fail("deployments", status=401)
    code, found, err = check()
    assert (code, found) == (4, {})
    assert "log in again" in err


def test_a_cluster_out_of_reach_is_an_error(check, api):
    api.close()
    code, found, err = check()
    assert (code, found) == (1, {})
    assert "does not accept connections" in err


def test_without_a_cluster_there_is_nothing_to_check(check):
    code, found, err = check()
    assert (code, found) == (2, {})
    assert "this command needs a Kubernetes cluster, and the local engine is in use" in err


# ---------------------------------------------------------------- how it is shown

REPORT = CheckReport(
    namespace="team-a",
    findings=(
        Prerequisite(name="mpijobs", outcome=CheckResult.OK, finding="v2beta1"),
        Prerequisite(
            name="controller",
            outcome=CheckResult.WARN,
            finding="none: users start their own waiting jobs, with submit --wait or resume",
            fix=FIX,
        ),
        Prerequisite(
            name="pod security", outcome=CheckResult.FAIL, finding="restricted", fix="do something"
        ),
    ),
)


def test_a_report_is_a_table_with_the_way_out_below_each_row():
    assert plain(shown.check_text(REPORT)) == (
        "CHECK         RESULT  FOUND\n"
        "mpijobs       ok      v2beta1\n"
        "controller    warn    none: users start their own waiting jobs, with submit --wait or"
        " resume\n"
        f"                      fix: {FIX}\n"
        "pod security  fail    restricted\n"
        "                      fix: do something\n"
    )


def test_on_a_narrow_terminal_sentences_are_wrapped_and_command_lines_are_not():
    text = shown.check_text(REPORT, width=60)
    assert all(len(line) <= 60 for line in text.splitlines() if "fix: " not in line)
    assert f"fix: {FIX}\n" in text


def test_a_report_passes_unless_something_fails():
    assert not REPORT.passed
    assert CheckReport(namespace="a", findings=REPORT.findings[:2]).passed
    assert shown.check_json(REPORT)["passed"] is False


# ---------------------------------------------------------------- check JOB


def sight(worker: int, *uuids: str, trouble: str | None = None) -> WorkerGpus:
    seen = tuple(SeenDevice(index=at, name="V100", uuid=one) for at, one in enumerate(uuids))
    return WorkerGpus(
        worker=worker,
        pod=f"demo-worker-{worker}",
        node="n1",
        planned=(2 * worker, 2 * worker + 1),
        uuids=(f"GPU-0000000{worker}-a", f"GPU-0000000{worker}-b"),
        seen=seen,
        trouble=trouble,
    )


def inspected(*sights: WorkerGpus, guarantee: str = "gpus") -> Inspection:
    status = JobStatus(
        uid="u",
        name="demo",
        namespace="team-a",
        phase=Phase.RUNNING,
        created=0.0,
        instances=(Instance(name="demo-worker-0", status="Running", created=0.0),),
        forecast=PlacementForecast(state="placed", guarantee=guarantee),
    )
    return Inspection(status=status, differences=(), workers=sights)


SEEN = (
    sight(0, "GPU-00000000-a", "GPU-00000000-b"),
    sight(1, "GPU-00000001-a", "GPU-00000009-b"),
    sight(2, "GPU-00000002-a"),
    sight(3, trouble="it does not run"),
)


def test_visible_gpus_are_shown_beside_planned_gpus():
    assert plain(shown.inspection_text(inspected(*SEEN))) == (
        "WORKER         NODE  PLANNED  RESULT   SEES\n"
        "demo-worker-0  n1    0,1      ok       GPU-00000000, GPU-00000000\n"
        "demo-worker-1  n1    2,3      differs  GPU-00000001, GPU-00000009\n"
        "demo-worker-2  n1    4,5      differs  GPU-00000002\n"
        "demo-worker-3  n1    6,7      unknown  it does not run\n"
    )


def test_other_gpus_are_a_fault_only_where_these_were_guaranteed():
    exact, loose = inspected(*SEEN[:2]), inspected(*SEEN[:2], guarantee="node")
    assert [exact.outcome(one) for one in exact.workers] == [Seen.OK, Seen.DIFFERS]
    assert [loose.outcome(one) for one in loose.workers] == [Seen.OK, Seen.OTHERS]
    assert (exact.passed, loose.passed) == (False, True)
    few = inspected(SEEN[2], guarantee="node")
    assert (few.outcome(SEEN[2]), few.passed) == (Seen.DIFFERS, False)
    assert inspected(SEEN[0], SEEN[3]).passed


def test_an_inspection_as_json_has_the_uuids_whole():
    value = json.loads(layout.go_json(shown.inspection_json(inspected(SEEN[1]))))
    assert value["workers"][0]["plannedUUIDs"] == ["GPU-00000001-a", "GPU-00000001-b"]
    assert value["workers"][0]["seen"][1] == {"index": 1, "name": "V100", "uuid": "GPU-00000009-b"}
    assert (value["passed"], value["workers"][0]["result"]) == (False, "differs")


def test_a_missing_or_unplaced_job_is_an_error(api, capfd):
    assert cli.run(("check", "demo")) == 1
    assert "Not found training job demo in namespace team-a" in capfd.readouterr().err
    worker = {"replicas": 1, "template": {"spec": {"containers": [{"name": "main"}]}}}
    api.add(
        {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": {"name": "demo", "namespace": "team-a"},
            "spec": {"mpiReplicaSpecs": {"Worker": worker}},
        }
    )
    assert cli.run(("check", "demo")) == 1
    assert "the job demo has no placement to compare with" in capfd.readouterr().err
