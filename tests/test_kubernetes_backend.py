"""The Kubernetes engine against an API server that behaves, misbehaves and refuses."""

from __future__ import annotations

import http.client
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import fake_crd
import pytest
from fake_api import FakeApi, kubeconfig, rfc3339
from fake_operator import FakeOperator
from log_bytes import log_of

from arena_topo.engines import Options, Phase
from arena_topo.engines.kubernetes import engine as kubernetes
from arena_topo.engines.kubernetes import podlog
from arena_topo.engines.kubernetes.engine import KubernetesBackend
from arena_topo.engines.lines import LogOptions
from arena_topo.errors import (
    AccessDenied,
    AlreadyExists,
    ClusterError,
    NotFound,
    TimedOut,
    UsageError,
)
from arena_topo.job import MPIJob
from arena_topo.jobs.proposal import count_only
from arena_topo.manifests import Plan, render
from arena_topo.manifests.serialize import manifests_yaml
from arena_topo.manifests.versions import ApiVersion
from arena_topo.topology import Knowledge, Tier, fabric, presets, published

JOBS = "/apis/kubeflow.org/v2beta1/namespaces/default/mpijobs"


@pytest.fixture
def backend(api: FakeApi, tmp_path: Path) -> KubernetesBackend:
    config = kubeconfig(tmp_path / "config", api.url, user={"username": "alice"})
    return kubernetes.open_kubernetes(Options(kubeconfig=config))


def plan(name: str = "demo", *, api: ApiVersion = ApiVersion.V2BETA1, **more: Any) -> Plan:
    usual = {"command": "mpirun true", "image": "i", "gpus": 2, "tensorboard_image": "t"}
    job = MPIJob(**{"name": name, **usual, **more})
    return render.build_plan(job, namespace="default", api=api, owner="alice", files={})


def foreign(name: str = "theirs") -> dict[str, Any]:
    """A job that kubectl made: no label of arena's, no annotation of ours."""
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    worker = {"replicas": 2, "template": {"spec": {"containers": [container]}}}
    launcher = {"replicas": 1, "template": {"spec": {"containers": [{"name": "main"}]}}}
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"mpiReplicaSpecs": {"Worker": worker, "Launcher": launcher}},
    }


# Who, where, which version.


def test_the_owner_is_whom_the_server_sees_else_the_kubeconfigs_user(api: FakeApi, tmp_path: Path):
    config = kubeconfig(tmp_path / "config", api.url, user={"username": "carol"})
    assert kubernetes.open_kubernetes(Options(kubeconfig=config)).owner() == "carol"
    api.fail("selfsubjectreviews", status=403, times=2)
    config = kubeconfig(tmp_path / "config", api.url)
    assert kubernetes.open_kubernetes(Options(kubeconfig=config)).owner() == "alice"
    heard: list[str] = []
    assert (
        kubernetes.open_kubernetes(Options(kubeconfig=config)).owner(tell=heard.append) == "alice"
    )
    assert heard == [
        "the API server does not tell who is asking: alice is the kubeconfig's name for it"
    ]
    api.close()
    with pytest.raises(ClusterError):
        kubernetes.open_kubernetes(Options(kubeconfig=config)).owner()


def test_the_namespace_is_the_flags_else_the_contexts_else_default(api: FakeApi, tmp_path: Path):
    config = kubeconfig(tmp_path / "config", api.url, namespace="team-a")
    options = Options(kubeconfig=config)
    assert kubernetes.open_kubernetes(options).default_namespace() == "team-a"
    named = Options(kubeconfig=config, namespace="team-b")
    assert kubernetes.open_kubernetes(named).default_namespace() == "team-b"


@pytest.mark.parametrize(
    ("served", "chosen"),
    [
        (["v1", "v2beta1", "v1alpha1"], "v2beta1"),
        (["v1alpha1", "v1"], "v1"),
        (["v1alpha1"], "v1alpha1"),
    ],
)
def test_the_best_version_that_is_served_is_chosen_once(
    api: FakeApi, backend: KubernetesBackend, served: list[str], chosen: str
):
    api.versions = served
    assert backend.api_version() == chosen
    asked = len(api.requests)
    assert backend.api_version() == chosen
    assert len(api.requests) == asked


def test_a_cluster_without_the_operator_says_so_and_how_to_get_it(
    api: FakeApi, backend: KubernetesBackend
):
    api.versions = []
    for call in (backend.api_version, lambda: backend.jobs(None), lambda: backend.delete("a", "b")):
        with pytest.raises(ClusterError, match="the MPI operator is not installed") as caught:
            call()
        assert "github.com/kubeflow/mpi-operator/releases" in (caught.value.hint or "")


# The cluster.


def add_node(api: FakeApi, name: str) -> None:
    offers = {"cpu": "8", "memory": "1Gi", "nvidia.com/gpu": "8"}
    status = {"capacity": offers, "allocatable": offers}
    api.add({"kind": "Node", "metadata": {"name": name}, "status": status})


def test_the_cluster_is_read_in_six_lists_and_three_discoveries(
    api: FakeApi, backend: KubernetesBackend
):
    add_node(api, "node-0")
    machine = presets.preset_machine("dgx-1-v100", "node-0")
    api.add(published.config_map(machine, machine.everything))
    cluster = backend.cluster()
    assert cluster.nodes[0].machine.knowledge is Knowledge.MEASURED
    assert cluster.notes == ()
    assert cluster.source == "test"
    assert len(api.requests) == 9


def rack(api: FakeApi, name: str, where: str) -> None:
    add_node(api, name)
    found = api.find("Node", name)
    assert found is not None
    found["metadata"]["labels"] = {"example.com/rack": where}


def kueue(api: FakeApi) -> None:
    """Four nodes in two racks, and a Kueue topology that knows of racks."""
    for name, where in (("a", "1"), ("b", "1"), ("c", "2"), ("d", "2")):
        rack(api, name, where)
    spec = {"levels": [{"nodeLabel": "example.com/rack"}]}
    api.add({"kind": "Topology", "metadata": {"name": "default"}, "spec": spec})


@pytest.mark.parametrize(
    ("group", "topologies", "more"),
    [
        (["v1beta2", "v1beta1"], ["v1beta2", "v1beta1"], 1),
        (["v1beta1", "v1alpha1"], ["v1alpha1"], 2),
    ],
)
def test_kueue_topologies_are_read_in_whatever_version_has_them(
    api: FakeApi, backend: KubernetesBackend, group: list[str], topologies: list[str], more: int
):
    kueue(api)
    api.kueue, api.topologies = group, topologies
    cluster = backend.cluster()
    assert [tier.name for tier in cluster.tiers] == ["rack"]
    assert {node.name: node.domains for node in cluster.nodes} == {
        "a": ("1",),
        "b": ("1",),
        "c": ("2",),
        "d": ("2",),
    }
    assert cluster.notes == ()
    assert len(api.requests) == 9 + more


def test_kueue_without_topologies_is_no_news(api: FakeApi, backend: KubernetesBackend):
    kueue(api)
    api.kueue, api.topologies = ["v1beta1"], []
    assert (backend.cluster().tiers, backend.cluster().notes) == ((), ())


def test_topologies_that_may_not_be_read_are_a_note(api: FakeApi, backend: KubernetesBackend):
    kueue(api)
    api.kueue = api.topologies = ["v1beta1"]
    api.deny("list topologies")
    cluster = backend.cluster()
    assert cluster.tiers == ()
    (note,) = cluster.notes
    assert "topologies" in note
    assert note.endswith(": the network is taken from node labels")


def test_with_a_fabric_file_nobody_asks_for_topologies(api: FakeApi, tmp_path: Path):
    kueue(api)
    api.kueue = api.topologies = ["v1beta1"]
    levels = [{"name": "row", "label": "example.com/rack", "bandwidthGBps": 50}]
    file = fabric.parse_fabric({"levels": levels, "beyondGBps": 3}, where="net.yaml")
    config = kubeconfig(tmp_path / "config", api.url)
    cluster = kubernetes.open_kubernetes(Options(kubeconfig=config, fabric=file)).cluster()
    assert cluster.tiers == (Tier(name="row", bandwidth=50.0),)
    assert cluster.beyond == 3.0
    assert not [one for one in api.requests if "kueue" in one]


def test_pages_of_a_large_cluster_are_all_read(api: FakeApi, backend: KubernetesBackend):
    for index in range(501):
        add_node(api, f"node-{index}")
    assert len(backend.cluster().nodes) == 501


def test_what_may_not_be_read_is_a_note_where_one_can_do_without(
    api: FakeApi, backend: KubernetesBackend
):
    add_node(api, "node-0")
    api.deny("list configmaps kube-system")
    api.deny("list mpijobs")
    cluster = backend.cluster()
    topology, records = cluster.notes
    assert topology == (
        "not allowed to list configmaps in namespace kube-system:"
        " the links of GPUs are taken from node labels"
    )
    assert records == (
        "not allowed to list mpijobs: GPUs planned for jobs that have not started count as free"
    )
    assert len(cluster.nodes) == 1


def test_a_cluster_without_the_operator_can_still_be_looked_at(
    api: FakeApi, backend: KubernetesBackend
):
    api.versions = []
    add_node(api, "node-0")
    (note,) = backend.cluster().notes
    assert note.startswith("the MPI operator is not installed")
    job = MPIJob(name="demo", command="true", image="i", workers=2, gpus=1)
    assert count_only(job, backend).counts.gangs > 0


@pytest.mark.parametrize("kind", ["nodes", "pods"])
def test_a_cluster_that_may_not_be_read_names_the_rule_that_is_missing(
    api: FakeApi, backend: KubernetesBackend, kind: str
):
    api.deny(f"list {kind}")
    with pytest.raises(AccessDenied, match=f"not allowed to list {kind}") as caught:
        backend.cluster()
    rule = '{apiGroups: [""], resources: ["nodes", "pods"], verbs: ["list"]}'
    assert (caught.value.hint or "").startswith(f"ask for this rule in a ClusterRole: {rule}; or")
    assert caught.value.exit_code == 4


# Writing.


def test_everything_created_belongs_to_the_job(api: FakeApi, backend: KubernetesBackend):
    created = backend.apply(plan(tensorboard=True))
    assert set(created) == {
        "mpijob.kubeflow.org/demo",
        "configmap/demo-mpijob",
        "service/demo-tensorboard",
        "deployment.apps/demo-tensorboard",
    }
    job = api.find("MPIJob", "demo")
    assert job is not None
    for kind, name in (
        ("ConfigMap", "demo-mpijob"),
        ("Service", "demo-tensorboard"),
        ("Deployment", "demo-tensorboard"),
    ):
        owned = api.find(kind, name)
        assert owned is not None
        assert owned["metadata"]["ownerReferences"] == [
            {
                "apiVersion": "kubeflow.org/v2beta1",
                "kind": "MPIJob",
                "name": "demo",
                "uid": job["metadata"]["uid"],
                "controller": True,
            }
        ]
    backend.delete("demo", "default")
    assert [api.all(kind) for kind in ("MPIJob", "ConfigMap", "Service", "Deployment")] == [[]] * 4


def test_what_is_applied_is_the_plan_unchanged(api: FakeApi, backend: KubernetesBackend):
    made = plan()
    before = manifests_yaml(made.objects)
    backend.apply(made)
    assert manifests_yaml(made.objects) == before
    job = api.find("MPIJob", "demo")
    assert job is not None
    given = made.objects[0]["spec"]
    asked = {**given, "runPolicy": {**given["runPolicy"], "suspend": False}}
    assert job["spec"] == {**fake_crd.DEFAULTS, **asked}, "the rest is what the server fills in"


def test_who_looks_at_a_job_again_and_again_looks_up_its_tensorboard_once(
    api: FakeApi, backend: KubernetesBackend
):
    backend.apply(plan())
    for _ in range(3):
        assert backend.job("demo", "default").tensorboard == ""
    assert sum("/services" in one and one.startswith("GET") for one in api.requests) == 1


def test_when_one_object_cannot_be_created_nothing_is_left(
    api: FakeApi, backend: KubernetesBackend
):
    api.deny("create services default")
    with pytest.raises(AccessDenied, match="not allowed to create services in namespace default"):
        backend.apply(plan(tensorboard=True))
    assert [api.all(kind) for kind in ("MPIJob", "ConfigMap", "Deployment")] == [[]] * 3


@pytest.mark.parametrize("fault", [{"reset": True}, {"cut": 0}], ids=["before", "after"])
@pytest.mark.parametrize("kind", ["mpijobs", "services", "deployments"])
def test_a_creation_whose_answer_is_lost_is_made_once_and_whole(
    api: FakeApi, backend: KubernetesBackend, kind: str, fault: dict[str, Any]
):
    made = plan(tensorboard=True)
    backend.api_version()
    api.fail(f"^POST .*/{kind}$", **fault)
    assert len(backend.apply(made)) == len(made.objects)
    assert not api.faults[0].times
    for one in ("MPIJob", "ConfigMap", "Service", "Deployment"):
        assert len(api.all(one)) == 1


@pytest.mark.parametrize("fault", [{"reset": True}, {"cut": 0}, {"status": 504}])
@pytest.mark.parametrize("kind", ["mpijobs", "services"])
def test_nothing_is_left_of_a_job_whose_creation_breaks_again_and_again(
    api: FakeApi, backend: KubernetesBackend, kind: str, fault: dict[str, Any]
):
    backend.api_version()
    api.fail(f"^POST .*/{kind}$", times=9, **fault)
    with pytest.raises(ClusterError) as caught:
        backend.apply(plan(tensorboard=True))
    assert [api.all(one) for one in ("MPIJob", "ConfigMap", "Service")] == [[]] * 3
    assert "half made" not in (caught.value.hint or "")


def test_a_creation_that_is_not_answered_in_time_is_taken_back(api: FakeApi, tmp_path: Path):
    config = kubeconfig(tmp_path / "config", api.url, user={"username": "alice"})
    backend = kubernetes.open_kubernetes(Options(kubeconfig=config, request_timeout=1.0))
    made = plan()
    backend.api_version()
    given_up = threading.Event()
    api.before("^(GET|DELETE) ", given_up.set)
    api.after("^POST .*/mpijobs$", lambda: given_up.wait(60))
    with pytest.raises(TimedOut, match="whether it took the request is not known"):
        backend.apply(made)
    assert api.all("MPIJob") == []


def test_ctrl_c_while_a_job_is_created_leaves_none(api: FakeApi, backend: KubernetesBackend):
    backend.api_version()

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)

    api.after("^POST .*/mpijobs$", interrupt)
    with pytest.raises(KeyboardInterrupt):
        backend.apply(plan())
    assert api.all("MPIJob") == []


@pytest.mark.parametrize("kind", ["mpijobs", "services"])
def test_what_cannot_be_taken_back_is_told_with_what_shows_and_deletes_it(
    api: FakeApi, backend: KubernetesBackend, kind: str
):
    made = plan(tensorboard=True)
    api.fail(f"^POST .*/{kind}$", cut=0, times=9)
    api.fail("^(GET|DELETE) .*/mpijobs/demo$", reset=True, times=99)
    with pytest.raises(ClusterError) as caught:
        backend.apply(made)
    assert caught.value.hint == (
        "a job demo may be there, half made: see `arena-topo get demo -n default`;"
        " `arena-topo delete demo -n default` takes it away"
    )


def test_a_job_of_somebody_else_is_neither_taken_for_ours_nor_deleted(
    api: FakeApi, backend: KubernetesBackend
):
    backend.api_version()
    made = plan()
    api.before("^POST .*/mpijobs$", lambda: api.add(foreign("demo")))
    api.fail("^POST .*/mpijobs$", cut=0)
    with pytest.raises(AlreadyExists):
        backend.apply(made)
    api.fail("^POST .*/mpijobs$", reset=True, times=9)
    with pytest.raises(ClusterError, match="broke the connection") as caught:
        backend.apply(made)
    assert "`arena-topo get demo -n default`" in (caught.value.hint or "")
    assert [one["metadata"]["name"] for one in api.all("MPIJob")] == ["demo"]


def test_arenas_own_config_map_may_fail_except_where_arena_reads_it(
    api: FakeApi, backend: KubernetesBackend
):
    api.versions = ["v2beta1", "v1alpha1"]
    api.deny("create configmaps default")
    assert backend.apply(plan()) == ("mpijob.kubeflow.org/demo",)
    with pytest.raises(AccessDenied, match="create configmaps"):
        backend.apply(plan("old", api=ApiVersion.V1ALPHA1))
    assert [one["metadata"]["name"] for one in api.all("MPIJob")] == ["demo"]


def test_leftovers_of_a_job_just_deleted_are_cleared_away(api: FakeApi, backend: KubernetesBackend):
    backend.apply(plan(tensorboard=True))
    api.collects_garbage = False
    backend.delete("demo", "default")
    assert api.find("Service", "demo-tensorboard") is not None
    assert "service/demo-tensorboard" in backend.apply(plan(tensorboard=True))
    job, service = api.find("MPIJob", "demo"), api.find("Service", "demo-tensorboard")
    assert job is not None
    assert service is not None
    assert service["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]


def test_somebody_elses_object_is_never_deleted(api: FakeApi, backend: KubernetesBackend):
    theirs = api.add({"kind": "Service", "metadata": {"name": "demo-tensorboard"}})
    uid = theirs["metadata"]["uid"]
    with pytest.raises(AlreadyExists, match="the service demo-tensorboard already exists"):
        backend.apply(plan(tensorboard=True))
    kept = api.find("Service", "demo-tensorboard")
    assert kept is not None
    assert kept["metadata"]["uid"] == uid
    assert api.all("MPIJob") == []


def test_a_missing_namespace_is_named(backend: KubernetesBackend):
    job = MPIJob(name="demo", command="true", image="i")
    made = render.build_plan(
        job, namespace="nowhere", api=ApiVersion.V2BETA1, owner="alice", files={}
    )
    with pytest.raises(NotFound, match="there is no namespace nowhere"):
        backend.apply(made)


def test_a_version_that_is_not_served_is_named_with_the_one_that_is(backend: KubernetesBackend):
    with pytest.raises(ClusterError, match="serves no MPIJob v1alpha1") as caught:
        backend.apply(plan(api=ApiVersion.V1ALPHA1))
    assert caught.value.hint == "it serves v2beta1: use --api-version v2beta1"


def test_versions_that_are_not_known_are_named_with_those_that_are(
    api: FakeApi, backend: KubernetesBackend
):
    api.versions = ["v3"]
    with pytest.raises(ClusterError) as caught:
        backend.api_version()
    assert caught.value.message == "this cluster serves MPIJob only as v3"
    assert caught.value.why == "arena-topo knows v2beta1, v1, v1alpha1"


def test_the_server_can_check_a_plan_without_storing_it(api: FakeApi, backend: KubernetesBackend):
    api.warnings = ["unknown field"]
    assert backend.validate(plan(tensorboard=True)) == ("unknown field",) * 4
    assert api.all("MPIJob") == api.all("Service") == []
    api.warnings = []
    backend.apply(plan())
    with pytest.raises(AlreadyExists):
        backend.validate(plan())


# Jobs.


def test_one_job_costs_few_requests_and_a_list_does_not_grow_with_jobs(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    for number in range(5):
        backend.apply(plan(f"job-{number}"))
        operator.start(f"job-{number}")
    api.requests.clear()
    backend.job("job-3", "default")
    assert len(api.requests) == 4
    api.requests.clear()
    assert len(backend.jobs(None)) == 5
    assert len(api.requests) == 2


def test_jobs_made_elsewhere_are_seen_with_their_pods(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    backend.apply(plan())
    operator.start("demo")
    api.add(foreign())
    operator.start("theirs")
    status = backend.job("theirs", "default")
    assert (status.phase, status.request_gpus, len(status.instances)) == (Phase.RUNNING, 2, 3)
    listed = {one.name: one for one in backend.jobs(None)}
    assert listed["theirs"] == status
    assert len(listed["demo"].instances) == 2


def test_pods_of_tensorboard_and_of_an_earlier_namesake_are_not_the_jobs(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    backend.apply(plan())
    operator.start("demo")
    labels = {"app": "mpijob", "release": "demo"}
    board = {"name": "demo-tensorboard-x", "labels": {**labels, "role": "tensorboard"}}
    api.add({"kind": "Pod", "metadata": board})
    earlier = {"name": "demo-worker-1", "labels": labels}
    earlier["ownerReferences"] = [{"kind": "MPIJob", "name": "demo", "uid": "gone"}]
    api.add({"kind": "Pod", "metadata": earlier})
    old = {"name": "demo-launcher-old", "labels": labels, "creationTimestamp": rfc3339(1)}
    api.add({"kind": "Pod", "metadata": old})
    names = [one.name for one in backend.job("demo", "default").instances]
    assert names == ["demo-launcher-x7k2p", "demo-worker-0"]
    # Whoever starts a gang anew waits for those of its last run, and for no others.
    found = backend.queue.pods(api.find("MPIJob", "demo") or {})
    assert sorted(one["metadata"]["name"] for one in found) == names


def event(about: dict[str, Any], reason: str, message: str, at: float, **more: Any) -> Any:
    return {
        "kind": "Event",
        "metadata": {"name": f"e{at:.0f}"},
        "involvedObject": about,
        "reason": reason,
        "message": message,
        "lastTimestamp": rfc3339(at),
        **more,
    }


def test_a_job_without_pods_tells_the_operators_last_warning(
    api: FakeApi, backend: KubernetesBackend
):
    backend.apply(plan())
    job = api.find("MPIJob", "demo")
    assert job is not None
    about = {"kind": "MPIJob", "name": "demo", "uid": job["metadata"]["uid"]}
    now = api.clock()
    denied = "worker pod created failed: exceeded quota: gpus"
    api.add(event(about, "MPIJobCreated", "created", now + 1, type="Normal"))
    api.add(event(about, "MPIJobFailed", denied, now + 2, type="Warning"))
    assert backend.job("demo", "default").reason == f"MPIJobFailed: {denied}"
    api.deny("list events default")
    assert backend.job("demo", "default").reason == "the MPI operator has not created its pods yet"


def test_events_are_those_of_the_job_and_its_pods_those_gone_included(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    backend.apply(plan())
    operator.start("demo")
    status = backend.job("demo", "default")
    now = status.created

    def about(name: str, uid: str = "") -> dict[str, str]:
        return {"kind": "Pod", "name": name, "uid": uid}

    api.add(event(about("demo-worker-0", "gone"), "Killing", "stopped", now + 3))
    api.add(event(about("demo-launcher-x7k2p"), "Pulled", "image", now + 2, type="Normal"))
    api.add(event(about("demo-worker-0", "older"), "Old", "of a namesake", now - 60))
    api.add(event(about("demo-2-worker-0"), "Other", "of another job", now + 1))
    events = backend.events(status)
    assert [(one.source, one.reason, one.kind, one.when) for one in events] == [
        ("pod/demo-launcher-x7k2p", "Pulled", "Normal", now + 2),
        ("pod/demo-worker-0", "Killing", "Normal", now + 3),
    ]


def test_the_queue_has_events_in_order_whichever_of_their_times_is_written(
    api: FakeApi, backend: KubernetesBackend
):
    backend.apply(plan())
    job = api.find("MPIJob", "demo") or {}
    about = {"kind": "MPIJob", "name": "demo", "uid": job["metadata"]["uid"]}
    now = api.clock()
    series = {"count": 3, "lastObservedTime": rfc3339(now + 3)}
    # As events.k8s.io/v1 stores them: the time of the core group is empty.
    new = {"lastTimestamp": None, "eventTime": rfc3339(now + 1)}
    api.add(event(about, "Third", "", now + 31, **new, series=series))
    api.add(event(about, "Second", "", now + 2))
    api.add(event(about, "First", "", now + 11, **new))
    told = [one["reason"] for one in backend.queue.events(job)]
    assert told == ["First", "Second", "Third"]
    assert [one.reason for one in backend.events(backend.job("demo", "default"))] == told


def test_the_tensorboard_of_a_job_without_pods_answers_on_its_own_node(
    api: FakeApi, backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(kubernetes, "_KNOWN", 0.0)
    backend.apply(plan(tensorboard=True))
    service = api.find("Service", "demo-tensorboard")
    assert service is not None
    service["spec"]["ports"][0]["nodePort"] = 31234
    assert backend.job("demo", "default").tensorboard == ""
    labels = {"app": "mpijob", "release": "demo", "role": "tensorboard"}
    board = {"metadata": {"name": "demo-tensorboard-x", "labels": labels}}
    api.add({"kind": "Pod", **board, "status": {"hostIP": "10.0.0.7"}})
    assert backend.job("demo", "default").tensorboard == "http://10.0.0.7:31234"


def test_tensorboard_is_where_its_service_answers(
    api: FakeApi,
    backend: KubernetesBackend,
    operator: FakeOperator,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(kubernetes, "_KNOWN", 0.0)
    backend.apply(plan(tensorboard=True))
    operator.start("demo")
    service = api.find("Service", "demo-tensorboard")
    assert service is not None
    service["spec"]["ports"][0]["nodePort"] = 31234
    assert backend.job("demo", "default").tensorboard == "http://10.0.0.1:31234"
    service["status"] = {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}
    assert backend.job("demo", "default").tensorboard == "http://1.2.3.4:6006"
    api.deny("list services default")
    assert backend.job("demo", "default").tensorboard == ""


def test_delete_takes_arenas_books_of_an_old_job_but_nobody_elses(
    api: FakeApi, backend: KubernetesBackend
):
    api.versions = ["v1alpha1"]
    for name, labels in (("a", {"createdBy": "arena"}), ("b", {})):
        job = foreign(name)
        api.add(job)
        api.add({"kind": "ConfigMap", "metadata": {"name": f"{name}-mpijob", "labels": labels}})
        backend.delete(name, "default")
    assert [one["metadata"]["name"] for one in api.all("ConfigMap")] == ["b-mpijob"]


def test_names_cannot_leave_their_place_in_a_path(api: FakeApi, backend: KubernetesBackend):
    backend.apply(plan())
    before = len(api.requests)
    for name in ("", ".", "..", "../../nodes", "a/b", "a?x=y", "A", " "):
        with pytest.raises(UsageError):
            backend.delete(name, "default")
        with pytest.raises(UsageError):
            backend.job(name, "default")
        with pytest.raises(UsageError):
            backend.jobs(name or ".")
    assert all("/mpijobs" not in one for one in api.requests[before:])
    assert backend.job("demo", "default").name == "demo"


def test_the_fake_deletes_a_whole_collection_like_the_real_server(api: FakeApi, tmp_path: Path):
    """So that the test above can fail: an empty name is not a 404 there."""
    config = kubeconfig(tmp_path / "config", api.url, user={"username": "alice"})
    kubernetes.open_kubernetes(Options(kubeconfig=config)).apply(plan())
    connection = http.client.HTTPConnection(api.url.removeprefix("http://"))
    connection.request("DELETE", JOBS + "/", headers={"Authorization": "Bearer alice"})
    connection.getresponse().read()
    connection.close()
    assert api.all("MPIJob") == []


# Logs.


def running_log(backend: KubernetesBackend, operator: FakeOperator, *lines: str) -> Any:
    backend.apply(plan())
    operator.start("demo")
    for line in lines:
        operator.say("demo", line)
    return backend.job("demo", "default")


def test_options_reach_the_server(api: FakeApi, backend: KubernetesBackend, operator: FakeOperator):
    status = running_log(backend, operator, "one", "two")
    options = LogOptions(tail=1, since=60, since_time="2026-11-21T07:00:00Z", container="mpi")
    assert log_of(backend, status, "demo-launcher-x7k2p", options) == b"two\n"
    asked = api.requests[-1]
    for word in ("tailLines=1", "sinceSeconds=60", "sinceTime=2026", "container=mpi"):
        assert word in asked
    assert "follow" not in asked


def test_a_log_that_may_not_be_read_says_which_right_is_missing(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    status = running_log(backend, operator, "one")
    api.deny("get pods/log default")
    with pytest.raises(AccessDenied, match="not allowed to get pods/log"):
        log_of(backend, status, "demo-launcher-x7k2p")


@pytest.mark.parametrize(
    ("pod", "container"),
    [
        ({"containers": [{"name": "a"}, {"name": "mpi"}]}, "mpi"),
        ({"containers": [{"name": "a"}, {"name": "b"}]}, "a"),
        ({"containers": []}, None),
    ],
)
def test_the_main_container_is_chosen_among_several(pod: dict[str, Any], container: str | None):
    assert podlog.main_container({"metadata": {}, "spec": pod}) == container


def test_the_default_container_annotation_and_a_running_init_container_decide():
    meta = {"annotations": {"kubectl.kubernetes.io/default-container": "b"}}
    spec = {"containers": [{"name": "mpi"}, {"name": "b"}]}
    assert podlog.main_container({"metadata": meta, "spec": spec}) == "b"
    init = [
        {"name": "done", "state": {"terminated": {"exitCode": 0}}},
        {"name": "kubectl-delivery", "state": {"running": {}}},
    ]
    one = {"metadata": meta, "spec": spec, "status": {"initContainerStatuses": init}}
    assert podlog.main_container(one) == "kubectl-delivery"
    init[1]["state"] = {"terminated": {"exitCode": 1}}
    assert podlog.main_container(one) == "kubectl-delivery"
    init[1] = {"name": "sidecar", "state": {"running": {}}, "started": True}
    assert podlog.main_container(one) == "b"
