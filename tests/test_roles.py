"""Each role that `install` prints: what it must be able to do, and not more."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import fake_dra
import pytest
from fake_api import FakeApi, kubeconfig
from fake_cluster import FakeCluster

from arena_topo import cli
from arena_topo.engines import Options
from arena_topo.engines.kubernetes import engine, watch_cache
from arena_topo.engines.kubernetes.admin import Administration
from arena_topo.engines.kubernetes.connection import Connection
from arena_topo.engines.kubernetes.topology_report import AgentReport, Reports
from arena_topo.engines.machines import publishing
from arena_topo.errors import AccessDenied
from arena_topo.manifests import MAP, install
from arena_topo.manifests.annotations import parse_map
from arena_topo.manifests.install import Installation, Right
from arena_topo.topology import published

SYSTEM = install.SYSTEM
RBAC = "rbac.authorization.k8s.io"


@pytest.fixture
def api():
    """A cluster with everything installed, and people with one role each."""
    fake = FakeApi()
    for one in install.installation_objects(Installation(image="any", gang=True)):
        fake.add(one)
    for who, role, space in (
        ("sub", install.SUBMITTER, "team-a"),
        ("runner", install.SUBMITTER, "team-a"),
        ("runner", install.ATTACH, "team-a"),
        ("placer", install.SUBMITTER, "team-a"),
        ("placer", install.SELF_PLACER, "team-a"),
        ("placer", install.CLUSTER_READER, ""),
        ("placer", "arena-topo-topology-reader", SYSTEM),
        ("placer", "arena-topo-topology-reader", "kube-system"),
    ):
        fake.add(binding(who, role, space))
    fake.tokens |= {who: who for who in ("admin", "sub", "runner", "placer", "stranger")}
    for account in (install.CONTROLLER, AGENT):
        fake.tokens[account] = f"system:serviceaccount:{SYSTEM}:{account}"
    fake.rbac = True
    yield fake
    fake.close()


def binding(who: str, role: str, space: str) -> dict[str, Any]:
    own = space in {SYSTEM, "kube-system"}
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding" if space else "ClusterRoleBinding",
        "metadata": {"name": f"{who}-{role}", **({"namespace": space} if space else {})},
        "roleRef": {"apiGroup": RBAC, "kind": "Role" if own else "ClusterRole", "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": who}],
    }


@pytest.fixture
def config(api, tmp_path):
    """The kubeconfig of somebody."""

    def made(who: str) -> str:
        return kubeconfig(tmp_path / who, api.url, user={"token": who}, namespace="team-a")

    return made


@pytest.fixture
def arena(config, capfd, monkeypatch):
    """Run a command line as somebody; (exit code, stdout, stderr)."""

    def run(who: str, *argv: str):
        monkeypatch.setenv("KUBECONFIG", config(who))
        capfd.readouterr()
        code = cli.run(argv)
        return code, *capfd.readouterr()

    return run


CTL, AGENT = install.CONTROLLER, "arena-topo-agent"
TEAM, OTHER, NONE = "team-a", "default", ""

MAY = [
    # what everybody needs to plan and to know who starts what waits
    *[(who, "get configmaps/cluster-view", SYSTEM) for who in ("stranger", "sub", "placer", CTL)],
    ("stranger", f"get leases.coordination.k8s.io/{CTL}", SYSTEM),
    (
        "stranger",
        "get mutatingadmissionpolicies.admissionregistration.k8s.io/arena-topo-placement",
        NONE,
    ),
    (
        "stranger",
        "get mutatingadmissionpolicybindings.admissionregistration.k8s.io/arena-topo-placement",
        NONE,
    ),
    ("stranger", "list deviceclasses.resource.k8s.io", NONE),
    ("stranger", "list priorityclasses.scheduling.k8s.io", NONE),
    ("stranger", "get priorityclasses.scheduling.k8s.io", NONE),
    # a submitter, in his namespace
    *[
        ("sub", f"{verb} mpijobs.kubeflow.org", TEAM)
        for verb in ("create", "get", "list", "watch", "patch", "delete")
    ],
    ("sub", "get pods/log", TEAM),
    ("sub", "list events", TEAM),
    ("sub", "list resourcequotas", TEAM),
    *[("sub", f"{verb} configmaps", TEAM) for verb in ("create", "get", "delete")],
    ("sub", "list persistentvolumeclaims", TEAM),
    # who may run commands in pods as well
    *[("runner", f"{verb} pods/exec", TEAM) for verb in ("create", "get")],
    # who places himself
    ("placer", "list nodes", NONE),
    ("placer", "list pods", NONE),
    ("placer", "list mpijobs.kubeflow.org", NONE),
    ("placer", "list resourceslices.resource.k8s.io", NONE),
    ("placer", "list resourceclaims.resource.k8s.io", NONE),
    ("placer", "list configmaps", SYSTEM),
    ("placer", "list configmaps", "kube-system"),
    ("placer", "patch pods", TEAM),
    ("placer", "create resourceclaims.resource.k8s.io", TEAM),
    ("placer", "create podgroups.scheduling.k8s.io", TEAM),
    ("placer", "create workloads.scheduling.k8s.io", TEAM),
    # the controller, everywhere
    *[(CTL, f"{verb} nodes", NONE) for verb in ("list", "watch")],
    *[(CTL, f"{verb} pods", OTHER) for verb in ("list", "watch", "patch", "delete")],
    *[(CTL, f"{verb} mpijobs.kubeflow.org", OTHER) for verb in ("list", "watch", "patch")],
    *[(CTL, f"{verb} resourceclaims.resource.k8s.io", OTHER) for verb in ("create", "delete")],
    (CTL, "create podgroups.scheduling.k8s.io", OTHER),
    (CTL, "list resourcequotas", OTHER),
    *[(CTL, f"{verb} configmaps", SYSTEM) for verb in ("list", "create", "update", "patch")],
    (CTL, "create leases.coordination.k8s.io", SYSTEM),
    (CTL, f"update leases.coordination.k8s.io/{CTL}", SYSTEM),
    (CTL, "list configmaps", "kube-system"),
    # the agent
    *[(AGENT, f"{verb} configmaps", SYSTEM) for verb in ("get", "create", "update")],
]

MAY_NOT = [
    (AGENT, "list resourceslices.resource.k8s.io", NONE),
    ("stranger", "list configmaps", SYSTEM),
    ("stranger", "get configmaps/node-1-gpu-topology", SYSTEM),
    ("stranger", f"update leases.coordination.k8s.io/{CTL}", SYSTEM),
    ("stranger", "list pods", TEAM),
    ("stranger", "create mpijobs.kubeflow.org", TEAM),
    ("sub", "create mpijobs.kubeflow.org", OTHER),
    ("sub", "list mpijobs.kubeflow.org", NONE),
    ("sub", "create pods", TEAM),
    ("sub", "patch pods", TEAM),
    *[("sub", f"{verb} pods/exec", TEAM) for verb in ("create", "get")],
    ("sub", "list persistentvolumeclaims", OTHER),
    ("runner", "create pods/exec", OTHER),
    ("runner", "create pods", TEAM),
    ("sub", "list pods", NONE),
    ("sub", "list nodes", NONE),
    ("sub", "list secrets", TEAM),
    ("sub", "update configmaps/cluster-view", SYSTEM),
    ("placer", "patch pods", OTHER),
    ("placer", "patch mpijobs.kubeflow.org", OTHER),
    ("placer", "patch nodes", NONE),
    ("placer", "get pods/log", OTHER),
    ("placer", "update configmaps", SYSTEM),
    ("placer", "list events", OTHER),
    (CTL, "create pods", OTHER),
    *[(CTL, f"{verb} mpijobs.kubeflow.org", OTHER) for verb in ("create", "delete")],
    *[(CTL, f"{verb} nodes", NONE) for verb in ("patch", "update")],
    (CTL, "list secrets", OTHER),
    (CTL, "list configmaps", OTHER),
    (CTL, "update configmaps", "kube-system"),
    (CTL, "update leases.coordination.k8s.io/another", SYSTEM),
    (AGENT, "list configmaps", SYSTEM),
    (AGENT, "create configmaps", "kube-system"),
    (AGENT, "delete configmaps", SYSTEM),
    (AGENT, "patch nodes", NONE),
    (AGENT, "list pods", NONE),
]


def right(said: str) -> tuple[Right, str]:
    """`get configmaps/cluster-view` as a right, and the name in it."""
    verb, _, what = said.partition(" ")
    resource, _, name = what.partition("/")
    if name in {"log", "exec"}:
        resource, name = what, ""
    head, sub, tail = resource.partition("/")
    plural, _, group = head.partition(".")
    return Right(verb=verb, group=group, resource=plural + sub + tail), name


def allowed(api: FakeApi, who: str, said: str, space: str) -> bool:
    wanted, name = right(said)
    user = api.tokens[who]
    return api.allowed(user, wanted.verb, wanted.resource, wanted.group, space, name)


@pytest.mark.parametrize(("who", "said", "space"), MAY)
def test_a_role_may_do_what_it_is_for(api, who, said, space):
    assert allowed(api, who, said, space)


@pytest.mark.parametrize(("who", "said", "space"), MAY_NOT)
def test_a_role_may_not_do_more(api, who, said, space):
    assert not allowed(api, who, said, space)


def test_with_the_option_for_ack_the_controller_may_write_there(api):
    assert not allowed(api, CTL, "create configmaps", "kube-system")
    for one in install.installation_objects(Installation(image="any", ack=True)):
        if one["kind"] == "Role" and one["metadata"]["namespace"] == "kube-system":
            with api.edit("Role", one["metadata"]["name"], "kube-system") as stored:
                stored["rules"] = one["rules"]
    for verb in ("create", "update", "delete"):
        assert allowed(api, CTL, f"{verb} configmaps", "kube-system")
    assert not allowed(api, AGENT, "create configmaps", "kube-system")


@pytest.mark.usefixtures("api")
def test_who_asks_the_server_is_told_the_same(config):
    """The reviews that `check` asks for, and the requests themselves."""
    admin = Administration(engine.open_kubernetes(Options(kubeconfig=config("sub"))))
    for one in install.rights(install.SUBMITTER):
        assert admin.allowed(one, "team-a"), str(one)
    assert not admin.allowed(Right(verb="list", group="", resource="nodes", everywhere=True), "x")
    # He may get pods; what is below them is asked for by itself.
    assert not admin.allowed(Right(verb="get", group="", resource="pods/exec"), "team-a")
    connection = Connection(Options(kubeconfig=config("sub")))
    assert connection.collect("/api/v1/namespaces/team-a/pods") == []
    with pytest.raises(AccessDenied, match="not allowed to list nodes"):
        connection.collect("/api/v1/nodes")


# ---------------------------------------------------------------- as people do it


def node(name: str) -> dict[str, Any]:
    offers = {"cpu": "64", "memory": "256Gi", "nvidia.com/gpu": "8"}
    labels = {"nvidia.com/gpu.product": "Tesla-V100-SXM2-16GB"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {
            "capacity": offers,
            "allocatable": offers,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


JOB = ("--name=demo", "--gpus=1", "--workers=2", "--image=IMAGE", "mpirun true")


def test_a_submitter_submits_looks_at_and_deletes_a_job(arena, api, tmp_path):
    file = tmp_path / "settings.json"
    file.write_text("{}")
    more = ("--config-file", f"{file}:/etc/settings.json", "--tensorboard", "--tensorboard-image=T")
    assert arena("sub", "submit", "mpi", *more, *JOB)[0] == 0
    assert api.find("MPIJob", "demo", "team-a")
    assert api.find("Deployment", "demo-tensorboard", "team-a")
    assert arena("sub", "get", "demo", "-e")[0] == 0
    assert arena("sub", "list")[0] == 0
    assert arena("sub", "delete", "demo")[0] == 0
    code, _out, err = arena("sub", "submit", "mpi", "-n", "default", *JOB)
    assert code == 4
    assert "not allowed to create mpijobs in namespace default" in err


def test_a_submitter_has_the_rights_of_every_command_about_his_jobs(arena, api):
    cluster = FakeCluster(api)
    cluster.node("node-1", gpus=8)
    api.add(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "high"},
            "value": 100,
        }
    )
    api.add(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "imagenet", "namespace": "team-a"},
            "status": {"phase": "Bound"},
        }
    )
    assert arena(CTL, "controller", "--once")[0] == 0
    submit = ("submit", "mpi", "--priority=high", "--exists=ok", *JOB)
    code, _out, err = arena("sub", *submit)
    assert code == 0, err
    cluster.settle()
    code, out, err = arena("sub", *submit)
    assert (code, "unchanged" in out + err) == (0, True), err
    for words, said in (
        (("data", "list"), "imagenet"),
        (("top", "job", "demo"), "demo"),
        (("top", "node"), "node-1"),
        (("get", "demo"), "demo-worker-1"),
        (("wait", "demo", "--for=running"), "demo"),
        (("whoami",), "sub"),
    ):
        code, out, err = arena("sub", *words)
        assert (code, said in out) == (0, True), (words, out, err)
        assert "not allowed" not in err or words[0] == "top", (words, err)


def test_who_runs_commands_in_pods_has_a_role_of_his_own(arena, api):
    cluster = FakeCluster(api)
    cluster.node("node-1", gpus=8)
    assert arena("runner", "submit", "mpi", *JOB)[0] == 0
    cluster.settle()
    code, out, err = arena("runner", "attach", "demo", "-i", "demo-worker-0", "--", "echo", "hi")
    assert (code, out) == (0, "hi\n"), err
    code, _out, err = arena("sub", "attach", "demo", "-i", "demo-worker-0", "--", "echo", "hi")
    assert code == 4
    assert "not allowed to create pods/exec in namespace team-a" in err


def test_who_places_himself_reads_the_whole_cluster_and_no_more(arena, api):
    api.add(node("node-1"))
    code, out, err = arena("placer", "plan", "mpi", "--gputopology", *JOB)
    assert code == 0, err
    assert "node-1" in out
    assert "not allowed" not in err
    assert arena("placer", "topology", "show")[0] == 0
    assert arena("placer", "nodes", "topology", "node-1")[0] == 4


@contextmanager
def at_work(api: FakeApi) -> Iterator[None]:
    """A controller that holds its Lease, unlike one that ends after its first round."""
    renewed = datetime.fromtimestamp(api.clock(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    api.add(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": CTL, "namespace": SYSTEM},
            "spec": {
                "holderIdentity": "one",
                "leaseDurationSeconds": 15,
                "renewTime": renewed,
            },
        }
    )
    yield
    del api.tables["leases.coordination.k8s.io"][SYSTEM, CTL]


def test_a_job_of_somebody_who_may_only_submit_is_placed_by_the_controller(arena, api):
    api.add(node("node-1"))
    assert arena(CTL, "controller", "--once")[0] == 0
    assert api.find("ConfigMap", install.VIEW, SYSTEM)
    with at_work(api):
        code, _out, err = arena("sub", "submit", "mpi", "--gputopology", *JOB)
    assert code == 0, err
    stored = api.find("MPIJob", "demo", "team-a")
    assert stored is not None
    assert stored["spec"]["runPolicy"]["suspend"] is True
    code, _out, err = arena(CTL, "controller", "--once")
    assert (code, err) == (0, "team-a/demo: started\n")
    stored = api.find("MPIJob", "demo", "team-a")
    assert stored is not None
    assert stored["spec"]["runPolicy"]["suspend"] is False
    assert stored["metadata"]["annotations"][MAP].startswith("node-1/")


def test_the_controller_may_watch_whatever_it_reads(api, config, monkeypatch):
    """What it may list and not watch would be listed once a minute for ever."""
    monkeypatch.setattr(watch_cache, "ASK_AGAIN", 0.01)
    api.kueue = api.topologies = ["v1beta2"]
    queue = engine.open_kubernetes(Options(kubeconfig=config(CTL))).queue
    queue.watch(lambda: None)
    try:
        assert queue.read().unread == ()
        lists = {path for path, _ in queue.revisions}
        end = time.monotonic() + 20
        while watched(api) < lists and time.monotonic() < end:
            time.sleep(0.01)
        # Those that are refused would be asked for again by now.
        time.sleep(0.2)
    finally:
        queue.unwatch()
    assert {path.rpartition("/")[2] for path in lists} == {
        *("nodes", "pods", "mpijobs", "configmaps", "priorityclasses"),
        *("topologies", "resourceslices", "resourceclaims"),
    }
    assert watched(api) == lists
    asked = Counter(one[4:].partition("?")[0] for one in api.requests if "watch=1" not in one)
    assert {path: asked[path] for path in lists} == dict.fromkeys(lists, 1)


def watched(api: FakeApi) -> set[str]:
    return {one[4:].partition("?")[0] for one in api.requests if "watch=1" in one}


def test_a_mistyped_level_is_found_before_a_job_is_left_to_the_controller(arena, api):
    api.add(node("node-1"))
    assert arena(CTL, "controller", "--once")[0] == 0
    with at_work(api):
        wrong = ("--gputopology", "--topology-preferred=leef")
        code, _out, err = arena("sub", "submit", "mpi", *wrong, *JOB)
        assert (code, api.find("MPIJob", "demo", "team-a")) == (2, None)
        assert "did you mean leaf?" in err
        right = ("--gputopology", "--topology-preferred=leaf")
        code, _out, err = arena("sub", "submit", "mpi", *right, *JOB)
    assert code == 0
    assert "note: --topology-preferred leaf is left out: this cluster has no such level" in err
    code, _out, err = arena(CTL, "controller", "--once")
    assert (code, err) == (0, "team-a/demo: started\n")


ALPHA = {
    "podGroupTemplateRef": {"workload": {"workloadName": "demo", "podGroupTemplateName": "workers"}}
}
BETA = {"workloadRef": {"workloadName": "demo", "templateName": "workers"}}


@pytest.mark.parametrize(
    ("served", "reference"),
    [(("v1alpha2",), ALPHA), (("v1beta1", "v1alpha3"), BETA)],
    ids=["1.36", "1.37"],
)
def test_the_controller_gives_each_worker_its_own_claim_and_its_gang(
    arena, api, served: tuple[str, ...], reference: dict[str, Any]
):
    """It may not create pods, and so not try the policies: what can be read of them counts."""
    api.gangs = served
    api.unserved -= {"scheduling.k8s.io", "podgroups.scheduling.k8s.io"}
    api.unserved -= {"workloads.scheduling.k8s.io"}
    cluster = FakeCluster(api)
    cluster.node("dra-1", gpus=0)
    api.add(fake_dra.device_class())
    uuids = [f"GPU-{one:08x}-0000-4000-8000-{one:012x}" for one in range(8)]
    api.add(fake_dra.resource_slice("dra-1", uuids))
    job = ("--name=demo", "--gpus=2", "--workers=4", "--image=IMAGE", "--gang", "mpirun true")
    assert arena(CTL, "controller", "--once")[0] == 0
    with at_work(api):
        code, _out, err = arena("sub", "submit", "mpi", "--gputopology", *job)
    assert code == 0, err
    code, _out, err = arena(CTL, "controller", "--once")
    assert (code, err) == (0, "team-a/demo: started\n")
    cluster.settle()
    places = stored_places(api)
    assert len(places) == 4
    for index, gpus in enumerate(places):
        name = f"demo-worker-{index}"
        pod = api.find("Pod", name, "team-a")
        assert pod is not None
        assert pod["spec"]["resourceClaims"] == [{"name": "gpus", "resourceClaimName": name}]
        assert pod["spec"]["schedulingGroup"] == {"podGroupName": "demo"}
        claim = api.find("ResourceClaim", name, "team-a")
        assert claim is not None
        results = claim["status"]["allocation"]["devices"]["results"]
        assert {one["device"] for one in results} == {f"gpu-{one}" for one in gpus}
    group, workload = (api.find(kind, "demo", "team-a") for kind in ("PodGroup", "Workload"))
    assert group is not None
    assert workload is not None
    policy = {"gang": {"minCount": 4}}
    assert group["spec"] == {"schedulingPolicy": policy, **reference}
    assert workload["spec"]["podGroupTemplates"] == [
        {"name": "workers", "schedulingPolicy": policy}
    ]
    assert {one["apiVersion"] for one in (group, workload)} == {f"scheduling.k8s.io/{served[0]}"}


def stored_places(api: FakeApi) -> list[list[int]]:
    """The GPUs of each worker, as the job says."""
    stored = api.find("MPIJob", "demo", "team-a")
    assert stored is not None
    record = stored["metadata"]["annotations"][MAP]
    return [list(gpus) for _, _, gpus in parse_map(record)]


# ---------------------------------------------------------------- what policies add to the roles


def config_map(node: str, name: str = "", **labels: str) -> dict[str, Any]:
    """What is published of a node."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name or f"{node}-gpu-topology",
            "labels": {"ack.node.gpu.schedule": "topology", "nodename": node} | labels,
        },
        "data": {"nodeName": node},
    }


def refused(api: FakeApi, config: Any, who: str, space: str, body: dict[str, Any]) -> str | None:
    """Let an account write a ConfigMap, or write it again; the refusal, None without one."""
    connection = Connection(Options(kubeconfig=config(who)))
    path = f"/api/v1/namespaces/{space}/configmaps"
    name = body["metadata"]["name"]
    try:
        if api.find("ConfigMap", name, space):
            connection.put(f"{path}/{name}", body)
        else:
            connection.post(path, body)
    except AccessDenied as error:
        return error.why or error.message
    return None


@pytest.fixture
def on_node(api):
    """Say on which node the pod of the agent runs, as its token does."""

    def say(node: str | None) -> None:
        key = "authentication.kubernetes.io/node-name"
        api.extra[api.tokens[AGENT]] = {} if node is None else {key: [node]}

    return say


def test_an_agent_publishes_its_own_node_and_does_so_again(api, config, on_node):
    on_node("n1")
    assert refused(api, config, AGENT, SYSTEM, config_map("n1")) is None
    assert refused(api, config, AGENT, SYSTEM, config_map("n1", other="label")) is None
    machine = publishing("n1", preset="dgx-1-v100").machine
    reports = Reports(Connection(Options(kubeconfig=config(AGENT))), "n1")
    reports.read()
    reports.write(AgentReport(machine=machine, healthy=machine.everything), 1.0)
    stored = api.find("ConfigMap", "n1-gpu-topology", SYSTEM)
    assert stored is not None
    assert "linkType" in stored["data"]


@pytest.mark.parametrize(
    "body",
    [
        config_map("n2"),
        config_map("n2", name="n1-gpu-topology"),
        config_map("n1", name="n2-gpu-topology"),
        config_map("n1", nodename="n2"),
        config_map("n1") | {"data": {}},
        config_map("n1", name=install.VIEW),
    ],
    ids=["another", "its name", "their name", "their label", "no data", "cluster-view"],
)
def test_an_agent_publishes_no_other_node(api, config, on_node, body):
    on_node("n1")
    said = refused(api, config, AGENT, SYSTEM, body)
    assert said is not None
    assert "the agent of node n1 may publish the topology of that node only" in said


def test_an_agent_whose_token_does_not_say_where_it_runs_publishes_nothing(api, config, on_node):
    on_node(None)
    said = refused(api, config, AGENT, SYSTEM, config_map("n1"))
    assert said is not None
    assert "the token of the agent does not name its node" in said


def test_the_policy_of_the_agent_is_for_the_agent_alone(api, config):
    assert refused(api, config, "admin", SYSTEM, config_map("n2")) is None
    assert refused(api, config, CTL, SYSTEM, config_map("n1", name=install.VIEW)) is None


def test_in_kube_system_the_controller_writes_topology_and_nothing_else(api, config):
    for one in install.installation_objects(Installation(image="any", ack=True)):
        name, space = one["metadata"]["name"], one["metadata"].get("namespace")
        if one["kind"].startswith("ValidatingAdmissionPolicy") and name == CTL:
            api.add(one)
        if one["kind"] == "Role" and space == "kube-system" and name == CTL:
            with api.edit("Role", name, space) as stored:
                stored["rules"] = one["rules"]
    plain = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "dns"}, "data": {}}
    api.add(plain | {"metadata": {"name": "dns", "namespace": "kube-system"}})
    mirrored = {published.MIRRORED: "true"}
    taken = config_map("n1", name="dns", **mirrored)
    connection = Connection(Options(kubeconfig=config(CTL)))
    path = "/api/v1/namespaces/kube-system/configmaps"
    assert refused(api, config, CTL, "kube-system", config_map("n1", **mirrored)) is None
    assert refused(api, config, CTL, "kube-system", config_map("n1", more="x", **mirrored)) is None
    assert refused(api, config, "admin", "kube-system", config_map("n2")) is None
    theirs = config_map("n2", **mirrored)
    for body in (plain, taken, {**plain, "metadata": {"name": "another"}}, theirs):
        said = refused(api, config, CTL, "kube-system", body)
        assert said is not None
        assert "in kube-system the controller may write the topology of nodes only" in said
    connection.delete(f"{path}/n1-gpu-topology")
    for name in ("dns", "n2-gpu-topology"):
        with pytest.raises(AccessDenied):
            connection.delete(f"{path}/{name}")
    # Elsewhere it is RBAC alone that limits it.
    assert refused(api, config, CTL, SYSTEM, plain) is None
