"""What a cluster is found to offer: the probe that is tried, and what is made of each answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cube_mesh import nvlink
from fake_api import FakeApi, kubeconfig
from fake_resources import Refused, Resource
from replacing import replace

from arena_topo.engines import Options
from arena_topo.engines.kubernetes import engine
from arena_topo.engines.local import engine as local
from arena_topo.errors import AccessDenied, ClusterError, TimedOut
from arena_topo.job import MPIJob
from arena_topo.manifests import Mechanisms, install, render
from arena_topo.manifests.versions import ApiVersion
from arena_topo.solver import Assignment, Placement, Proof
from arena_topo.topology import GPU, Cluster, Machine, Node, NodeName, flat

INLINE, CLAIMS, GANG = (f"arena-topo.io/{one}" for one in ("inline-placement", "claims", "gang"))
GATE = MAP = "arena-topo.io/placement"
Mutator = Callable[[Resource, dict[str, Any], str], None]


def asked(api: FakeApi, tmp_path: Path, namespace: str = "team-a", **said: Any) -> Mechanisms:
    config = kubeconfig(tmp_path / "config", api.url, user={"username": "alice"})
    backend = engine.open_kubernetes(Options(kubeconfig=config, **said))
    # The version of MPIJob is known by the time anybody asks how to bind one.
    backend.api_version()
    api.requests.clear()
    return backend.mechanisms(namespace)


# Admission policies as a real server was seen to apply them: by label, to new workers alone


def policy(label: str, value: str, effect: Callable[[dict[str, Any]], None]) -> Mutator:
    def mutate(resource: Resource, thing: dict[str, Any], operation: str) -> None:
        labels = thing["metadata"].get("labels") or {}
        worker = labels.get("training.kubeflow.org/job-role") == "worker"
        numbered = "training.kubeflow.org/replica-index" in labels
        created = resource.name == "pods" and operation == "CREATE"
        if created and worker and numbered and labels.get(label) == value:
            effect(thing)

    return mutate


def placing(pod: dict[str, Any]) -> None:
    notes, labels, spec = pod["metadata"]["annotations"], pod["metadata"]["labels"], pod["spec"]
    entries = notes.pop(MAP).split(";")
    node, gpus = entries[int(labels["training.kubeflow.org/replica-index"])].split("/")
    notes["topology.kubernetes.io/gpu-group"] = notes["topology.kubernetes.io/gpu-visible"] = gpus
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    spec["affinity"] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}
    }
    spec["schedulingGates"] = [one for one in spec["schedulingGates"] if one["name"] != GATE]


def claiming(pod: dict[str, Any]) -> None:
    labels = pod["metadata"]["labels"]
    name = (
        f"{labels['training.kubeflow.org/job-name']}-worker-"
        f"{labels['training.kubeflow.org/replica-index']}"
    )
    pod["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimName": name}]


def joining(pod: dict[str, Any]) -> None:
    name = pod["metadata"]["labels"]["training.kubeflow.org/job-name"]
    pod["spec"]["schedulingGroup"] = {"podGroupName": name}


PLACEMENT = policy(INLINE, "v1", placing)
CLAIM = policy(CLAIMS, "per-worker", claiming)
JOIN = policy(GANG, "true", joining)


def a_policy(name: str, **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": name, "labels": labels},
        "spec": {},
    }


def a_policy_binding(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name},
    }


# What the probe finds


def test_policies_are_effective_where_a_probe_comes_back_as_they_make_it(api, tmp_path):
    assert asked(api, tmp_path).admission is False
    api.mutators = [PLACEMENT]
    found = asked(api, tmp_path)
    assert (found.admission, found.claims, found.gang) == (True, False, False)
    api.mutators = [PLACEMENT, CLAIM]
    found = asked(api, tmp_path)
    assert (found.admission, found.claims) == (True, True)
    assert found.notes == ()


def test_a_gang_is_held_back_only_where_the_server_keeps_what_the_policy_says(api, tmp_path):
    """Without the scheduler's feature the field is dropped without a word."""
    api.mutators = [PLACEMENT, JOIN]
    assert asked(api, tmp_path).gang is False
    api.unserved -= {"scheduling.k8s.io", "podgroups.scheduling.k8s.io"}
    for served, version in ((("v1alpha2",), "v1alpha2"), (("v1beta1", "v1alpha3"), "v1beta1")):
        api.gangs = served
        found = asked(api, tmp_path)
        assert (found.gang, found.gang_version) == (True, version)


def test_a_gang_is_not_held_back_by_groups_of_a_version_that_nobody_here_can_write(api, tmp_path):
    api.mutators = [PLACEMENT, JOIN]
    api.unserved -= {"scheduling.k8s.io", "podgroups.scheduling.k8s.io"}
    api.gangs = ("v1alpha3",)
    found = asked(api, tmp_path)
    assert found.gang is False
    (note,) = found.notes
    assert note.startswith("the cluster serves no PodGroup of scheduling.k8s.io in v1beta1 or ")


def test_a_policy_for_another_map_does_not_count(api, tmp_path):
    api.mutators = [policy(INLINE, "true", placing)]
    assert asked(api, tmp_path).admission is False


@pytest.mark.parametrize("half", ["gate", "node", "gpus"])
def test_a_policy_that_does_half_of_its_work_does_not_count(api, tmp_path, half: str):
    def partly(pod: dict[str, Any]) -> None:
        gates = pod["spec"]["schedulingGates"]
        placing(pod)
        if half == "gate":
            pod["spec"]["schedulingGates"] = gates
        elif half == "node":
            del pod["spec"]["affinity"]
        else:
            del pod["metadata"]["annotations"]["topology.kubernetes.io/gpu-group"]

    api.mutators = [policy(INLINE, "v1", partly)]
    assert asked(api, tmp_path).admission is False


def test_probing_stores_nothing_and_takes_five_requests(api, tmp_path):
    api.mutators = [PLACEMENT, CLAIM]
    asked(api, tmp_path)
    assert api.all("Pod") == []
    assert [one.partition("?")[0] for one in api.requests] == [
        "POST /api/v1/namespaces/team-a/pods",
        "GET /apis/resource.k8s.io/v1/deviceclasses",
        "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        "GET /api/v1/namespaces/team-a/resourcequotas",
    ]
    assert api.requests[0].endswith("?dryRun=All")


def test_who_may_not_ask_for_rights_is_told_so_and_can_still_submit(api, tmp_path):
    api.fail("POST .*/selfsubjectaccessreviews", status=403)
    found = asked(api, tmp_path)
    assert found.patches is None
    assert any("whether you may patch pods could not be asked" in one for one in found.notes)


def test_the_probe_is_admitted_where_pods_are_restricted_and_must_say_what_they_use(api, tmp_path):
    api.mutators = [PLACEMENT]
    space = api.find("Namespace", "team-a")
    space["metadata"]["labels"] = {"pod-security.kubernetes.io/enforce": "restricted"}
    hard = {
        f"{side}.{what}": "8" for side in ("requests", "limits") for what in ("cpu", "memory")
    } | {"limits.memory": "8Gi", "requests.memory": "8Gi"}
    api.add(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "q", "namespace": "team-a"},
            "spec": {"hard": hard},
        }
    )
    found = asked(api, tmp_path)
    assert (found.admission, found.notes) == (True, ())


# The policies that `install` prints, on a server that evaluates them


def installed(api: FakeApi) -> None:
    """Store the policies as an administrator would."""
    policies = install.installation_objects(install.Installation(image="any", gang=True))
    for one in policies:
        if one["kind"].startswith("MutatingAdmissionPolicy"):
            api.add(one)


def test_the_printed_policies_are_found_effective(api, tmp_path):
    installed(api)
    found = asked(api, tmp_path)
    assert (found.admission, found.claims, found.notes) == (True, True, ())
    assert found.gang is False
    api.unserved -= {"scheduling.k8s.io", "podgroups.scheduling.k8s.io"}
    assert asked(api, tmp_path).gang is True


def test_workers_of_a_placed_template_get_their_places_from_the_printed_policies(api, tmp_path):
    """Each worker its own entry of the map and its own claim; gates of others stay."""
    installed(api)
    gpus = tuple(
        GPU(index=one, uuid=f"GPU-{one:08x}-0000-4000-8000-{one:012x}") for one in range(8)
    )
    machine = Machine(name="dra-1", gpus=gpus, links=flat(8))
    driven = Node(
        name=NodeName("dra-1"),
        machine=machine,
        free=machine.everything,
        driver="gpu.nvidia.com",
        resource="gpu.nvidia.com",
    )
    plain = replace(driven, name=NodeName("node-2"), driver="", resource="nvidia.com/gpu")
    api.add(a_class("gpu.nvidia.com", WHOLE))
    offers = asked(api, tmp_path)
    for node, name in ((driven, "claims"), (plain, "admission")):
        places = ((0, 3), (2, 1), (4, 7))
        placement = Placement(
            assignments=tuple(
                Assignment(worker=index, node=node.name, gpus=chosen)
                for index, chosen in enumerate(places)
            ),
            bandwidth=nvlink(1.0),
            inside=nvlink(1.0),
            worst=nvlink(1.0),
            tier="node",
            proof=Proof(optimal=True, bound=1.0),
        )
        made = render.build_plan(
            MPIJob(name=name, image="i", command="c", gpus=2, workers=3, gputopology=True),
            namespace="team-a",
            api=ApiVersion.V2BETA1,
            owner="alice",
            files={},
            placement=placement,
            cluster=Cluster(nodes=(node,)),
            mechanisms=offers,
        )
        assert made.binding is not None
        assert made.binding.name == name
        template = made.objects[0]["spec"]["mpiReplicaSpecs"]["Worker"]["template"]
        template["spec"]["schedulingGates"].append({"name": "other"})
        for index, chosen in enumerate(places):
            pod = api.add(worker(name, index, template))
            assert pod["spec"]["schedulingGates"] == [{"name": "other"}]
            notes = pod["metadata"]["annotations"]
            assert notes["topology.kubernetes.io/gpu-group"] == ",".join(map(str, chosen))
            assert MAP not in notes
            claims = [{"name": "gpus", "resourceClaimName": f"claims-worker-{index}"}]
            assert pod["spec"].get("resourceClaims", []) == (claims if name == "claims" else [])
            required = pod["spec"]["affinity"]["nodeAffinity"][
                "requiredDuringSchedulingIgnoredDuringExecution"
            ]
            (field,) = required["nodeSelectorTerms"][0]["matchFields"]
            assert field["values"] == [node.name]


def worker(job: str, index: int, template: dict[str, Any]) -> dict[str, Any]:
    """A worker as mpi-operator makes it."""
    ours = {
        "training.kubeflow.org/job-name": job,
        "training.kubeflow.org/job-role": "worker",
        "training.kubeflow.org/replica-index": str(index),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{job}-worker-{index}",
            "namespace": "team-a",
            "labels": template["metadata"]["labels"] | ours,
            "annotations": template["metadata"]["annotations"],
        },
        "spec": template["spec"],
    }


# What is not allowed


def test_who_may_not_create_pods_learns_from_the_policy_itself_if_it_may_be_read(api, tmp_path):
    api.deny("create pods team-a")
    name = "arena-topo-placement"
    assert asked(api, tmp_path).admission is False
    api.add(a_policy(name, **{"arena-topo.io/map-format": "v1"}))
    assert asked(api, tmp_path).admission is False, "no binding, no effect"
    api.add(a_policy_binding(name))
    found = asked(api, tmp_path)
    assert (found.admission, found.claims, found.gang, found.notes) == (True, False, False, ())


def test_a_policy_that_can_be_read_counts_for_the_format_it_says(api, tmp_path):
    api.deny("create pods team-a")
    for labels in ({}, {"arena-topo.io/map-format": "v0"}):
        api.tables["mutatingadmissionpolicies.admissionregistration.k8s.io"].clear()
        api.tables["mutatingadmissionpolicybindings.admissionregistration.k8s.io"].clear()
        api.add(a_policy("arena-topo-placement", **labels))
        api.add(a_policy_binding("arena-topo-placement"))
        assert asked(api, tmp_path).admission is False


def test_who_may_not_create_pods_finds_each_of_the_printed_policies(api, tmp_path):
    api.deny("create pods team-a")
    installed(api)
    found = asked(api, tmp_path)
    assert (found.admission, found.claims, found.gang) == (True, True, False)
    # The gang's works where there are PodGroups; elsewhere the server drops what it writes.
    api.unserved -= {"scheduling.k8s.io", "podgroups.scheduling.k8s.io"}
    assert asked(api, tmp_path).gang is True
    for one in ("claims", "gang"):
        key = ("", f"arena-topo-{one}")
        del api.tables["mutatingadmissionpolicybindings.admissionregistration.k8s.io"][key]
        found = asked(api, tmp_path)
        assert (found.admission, getattr(found, one)) == (True, False), "no binding, no effect"


def test_policies_of_another_format_and_those_that_may_not_be_read_do_not_count(api, tmp_path):
    api.deny("create pods team-a")
    installed(api)
    with api.edit("MutatingAdmissionPolicy", "arena-topo-claims", "") as stored:
        stored["metadata"]["labels"]["arena-topo.io/map-format"] = "v0"
    assert asked(api, tmp_path).claims is False
    api.rbac = True
    rule = {"apiGroups": ["admissionregistration.k8s.io"], "resources": ["*"], "verbs": ["get"]}
    reader(api, {**rule, "resourceNames": ["arena-topo-placement"]})
    found = asked(api, tmp_path)
    assert (found.admission, found.claims, found.gang) == (True, None, None)


def reader(api: FakeApi, rule: dict[str, Any]) -> None:
    """Let alice read things of no namespace."""
    group = "rbac.authorization.k8s.io"
    meta = {"name": "reader"}
    one = {"apiVersion": f"{group}/v1", "metadata": meta}
    api.add(one | {"kind": "ClusterRole", "rules": [rule]})
    subject = {"apiGroup": group, "kind": "User", "name": "alice"}
    role = {"apiGroup": group, "kind": "ClusterRole", "name": "reader"}
    api.add(one | {"kind": "ClusterRoleBinding", "roleRef": role, "subjects": [subject]})


def test_who_may_neither_try_nor_read_is_told_what_was_refused(api, tmp_path):
    api.deny("create pods team-a")
    api.deny("get mutatingadmissionpolicies")
    found = asked(api, tmp_path)
    assert (found.admission, found.claims, found.gang) == (None, None, None)
    (note,) = found.notes
    assert note == (
        "whether a policy places workers in namespace team-a could not be tried: pods is"
        ' forbidden: User "alice" cannot create resource "pods" in API group "" in the namespace'
        ' "team-a"'
    )


def denying(message: str, status: int = 403, *, label: str = INLINE) -> Mutator:
    def mutate(resource: Resource, thing: dict[str, Any], _: str) -> None:
        if resource.name == "pods" and label in (thing["metadata"].get("labels") or {}):
            raise Refused(status, "Forbidden" if status == 403 else "Invalid", message)

    return mutate


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (403, 'admission webhook "images.example" denied the request: unknown image'),
        (403, 'pods "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=9'),
        (403, 'pods "x" is forbidden: minimum cpu usage per Container is 50m, but request is 10m'),
        (422, 'Pod "x" is invalid: spec.tolerations: Invalid value'),
        (500, 'Internal error occurred: failed calling webhook "x": connection refused'),
    ],
)
def test_a_probe_that_others_refuse_says_nothing_about_our_policies(
    api, tmp_path, status: int, message: str
):
    api.mutators = [denying(message, status), PLACEMENT]
    found = asked(api, tmp_path)
    assert found.admission is None
    (note,) = found.notes
    assert message in note
    assert [one for one in api.requests if "/pods" in one][1:] == [], "asked once"


def test_a_policy_of_ours_that_fails_does_not_hide_the_one_that_places(api, tmp_path):
    failing = (
        "policy 'arena-topo-claims' with binding 'arena-topo-claims' denied request: expression"
        " resulted in error"
    )
    api.mutators = [denying(failing, label=CLAIMS), PLACEMENT]
    found = asked(api, tmp_path)
    assert (found.admission, found.claims, found.gang) == (True, False, False)


def test_a_placement_policy_that_fails_is_not_relied_upon(api, tmp_path):
    failing = "policy 'arena-topo-placement' with binding 'x' denied request: index out of bounds"
    api.mutators = [denying(failing)]
    found = asked(api, tmp_path)
    assert found.admission is None
    assert failing in found.notes[0]


def test_a_namespace_that_is_not_there_is_a_note_and_not_the_end(api, tmp_path):
    found = asked(api, tmp_path, "nowhere")
    assert found.admission is None
    assert 'namespaces "nowhere" not found' in found.notes[0]


def test_a_caller_whom_the_server_does_not_know_is_an_error(api, tmp_path):
    config = kubeconfig(tmp_path / "config", api.url, user={"token": "stale"})
    api.tokens["fresh"] = "alice"
    backend = engine.open_kubernetes(Options(kubeconfig=config))
    with pytest.raises(AccessDenied, match="does not know who is asking"):
        backend.mechanisms("team-a")


def test_a_server_that_is_overloaded_is_not_taken_for_one_that_offers_nothing(api, tmp_path):
    api.fail("POST .*/pods", status=503)
    with pytest.raises(ClusterError, match="currently unable to handle"):
        asked(api, tmp_path)


def test_a_server_that_does_not_answer_is_not_taken_for_one_that_offers_nothing(api, tmp_path):
    api.fail("POST .*/pods", silent=True)
    with pytest.raises(TimedOut):
        asked(api, tmp_path, request_timeout=0.3)


# Rights to patch


def role(api: FakeApi, *rules: dict[str, Any]) -> None:
    group = "rbac.authorization.k8s.io"
    meta = {"name": "mine", "namespace": "team-a"}
    api.add({"apiVersion": f"{group}/v1", "kind": "Role", "metadata": meta, "rules": list(rules)})
    api.add(
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "mine"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": "alice"}],
        }
    )


def a_rule(*verbs: str, **more: Any) -> dict[str, Any]:
    return {"apiGroups": [""], "resources": ["pods"], "verbs": list(verbs), **more}


@pytest.mark.parametrize(
    "rules",
    [
        [a_rule("list", "patch")],
        [a_rule("list", "watch"), a_rule("get", "patch")],
        [a_rule("*")],
        [a_rule("*", resources=["*"], apiGroups=["*"])],
    ],
)
def test_who_may_list_and_patch_all_pods_of_a_namespace_may_patch_workers(
    api, tmp_path, rules: list[dict[str, Any]]
):
    role(api, *rules)
    api.rbac = True
    assert asked(api, tmp_path).patches is True


@pytest.mark.parametrize(
    "rules",
    [
        [a_rule("list", "watch")],
        [a_rule("get", "patch")],
        [a_rule("list", "watch", "patch", resourceNames=["one"])],
        [a_rule("list", "watch", "patch", apiGroups=["apps"])],
        [a_rule("list", "watch", "patch", resources=["pods/status"])],
        [],
    ],
)
def test_rights_to_less_than_that_do_not_help(api, tmp_path, rules: list[dict[str, Any]]):
    role(api, *rules)
    api.rbac = True
    assert asked(api, tmp_path).patches is False


# Device classes and quotas


def a_class(name: str, *expressions: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": one}} for one in expressions], **spec},
    }


WHOLE = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"
PART = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig'"


def test_whole_devices_of_a_driver_have_the_class_that_is_called_as_the_driver(api, tmp_path):
    for one in (
        a_class("a100-only", 'device.driver == "gpu.nvidia.com"'),
        a_class("gpu.nvidia.com", WHOLE, extendedResourceName="nvidia.com/gpu"),
        a_class("mig.nvidia.com", PART),
    ):
        api.add(one)
    found = asked(api, tmp_path)
    assert found.classes is not None
    assert found.classes["gpu.nvidia.com"] == "gpu.nvidia.com"
    assert found.extended == {"gpu.nvidia.com": "nvidia.com/gpu"}


def test_a_class_of_another_name_does_not_stand_for_the_driver(api, tmp_path):
    api.add(a_class("training-gpus", WHOLE))
    found = asked(api, tmp_path).classes
    assert found is not None
    assert "gpu.nvidia.com" not in found


def test_a_cluster_without_claims_has_no_classes_and_one_that_hides_them_none_known(api, tmp_path):
    assert asked(api, tmp_path).classes == {}
    api.deny("list deviceclasses")
    found = asked(api, tmp_path)
    assert found.classes is None
    (note,) = found.notes
    assert note == (
        "not allowed to list deviceclasses: DeviceClasses are taken to be called as their"
        " drivers are"
    )
    api.unserved.add("resource.k8s.io")
    api.denied.clear()
    assert asked(api, tmp_path).classes == {}


def test_quotas_are_handed_on_and_those_that_may_not_be_read_are_a_note(api, tmp_path):
    hard = {"requests.nvidia.com/gpu": "16"}
    api.add(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "q", "namespace": "team-a"},
            "spec": {"hard": hard},
        }
    )
    (quota,) = asked(api, tmp_path).quotas
    assert quota["spec"]["hard"] == hard
    api.deny("list resourcequotas team-a")
    found = asked(api, tmp_path)
    assert found.quotas == ()
    assert "whether a quota covers claims of GPUs is not known" in found.notes[0]


# Engines


def test_only_v1alpha1_is_known_not_to_suspend(api, tmp_path):
    for version, can in (("v2beta1", True), ("v1", True), ("v1alpha1", False)):
        api.versions = [version]
        assert asked(api, tmp_path).suspends is can


def test_a_cluster_without_an_operator_can_be_asked_all_the_same(api, tmp_path):
    api.versions = []
    config = kubeconfig(tmp_path / "config", api.url, user={"username": "alice"})
    assert engine.open_kubernetes(Options(kubeconfig=config)).mechanisms("team-a").suspends


def test_the_local_engine_needs_no_mechanism(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    backend = local.open_local(Options(backend="local", emulate="dgx-1-v100:2"))
    assert backend.mechanisms("default") == Mechanisms()
