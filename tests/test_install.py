"""`install`: what is printed, what each role may do and may not, and how it is removed again."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_api import FakeApi, kubeconfig

from arena_topo.admin.install import dependents
from arena_topo.cli import root
from arena_topo.engines import heartbeat
from arena_topo.engines.engine_choice import read_fabric
from arena_topo.manifests import (
    CLAIMS,
    GANG,
    GATE,
    GPU_GROUP,
    GPU_VISIBLE,
    INLINE,
    MAP,
    MAP_FORMAT,
    PER_WORKER,
    STATE,
    install,
)
from arena_topo.manifests.install import Installation
from arena_topo.manifests.serialize import kubectl_name
from arena_topo.topology import TAINT, nodelabels, published

ROOT = Path(__file__).parents[1]
GOLDENS = Path(__file__).parent / "install"
WRITE = os.environ.get("ARENA_TOPO_WRITE_GOLDENS") == "1"
IMAGE = f"registry.example/tools/arena-topo@sha256:{'0123456789abcdef' * 4}"

FABRIC = """\
# by the data sheet of the switches
levels:
  - {name: leaf, label: fabric.topograph.run/tier-0, bandwidthGBps: 400}
beyondGBps: 12.5
"""

CASES = {
    "install": {},
    "install-everything": {
        "gang": True,
        "ack": True,
        "fabric": FABRIC,
        "runtime_class": "nvidia",
        "node_selector": {"pool": "gpu"},
        "image_pull_secrets": ("registry",),
    },
    "install-policies-and-roles": {"controller": False, "agent": False},
}
MODELS = {
    "rbac.authorization.k8s.io/v1": "V1",
    "admissionregistration.k8s.io/v1": "V1",
    "apps/v1": "V1",
    "v1": "V1",
}


@pytest.fixture
def api(tmp_path, monkeypatch):
    fake = FakeApi()
    config = kubeconfig(tmp_path / "config", fake.url, user={"username": "admin"})
    monkeypatch.setenv("KUBECONFIG", config)
    yield fake
    fake.close()


def named(kind: str, name: str, **how: Any) -> dict[str, Any]:
    """One of the objects of an installation."""
    return next(
        manifest
        for manifest in install.installation_objects(Installation(image=IMAGE, **how))
        if (manifest["kind"], manifest["metadata"]["name"]) == (kind, name)
    )


def container(kind: str, **how: Any) -> dict[str, Any]:
    """The container of the agent or the controller."""
    name = {"DaemonSet": "arena-topo-agent", "Deployment": install.CONTROLLER}[kind]
    return named(kind, name, **how)["spec"]["template"]["spec"]["containers"][0]


# ---------------------------------------------------------------- what is printed


@pytest.mark.parametrize("name", CASES)
def test_the_text_is_the_golden_one(name):
    text = install.installation_yaml(Installation(image=IMAGE, **CASES[name]))
    file = GOLDENS / f"{name}.yaml"
    if WRITE:
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def test_the_command_prints_the_text_with_its_reasons(arena):
    code, out, err = arena("install", "--image", IMAGE)
    assert (code, out, err) == (0, (GOLDENS / "install.yaml").read_text(encoding="utf-8"), "")


def test_json_and_names_are_those_of_the_same_objects(arena):
    code, out, _err = arena("install", "--image", IMAGE, "-o", "json")
    objects = list(yaml.safe_load_all((GOLDENS / "install.yaml").read_text(encoding="utf-8")))
    assert (code, json.loads(out)["items"]) == (0, objects)
    code, out, _err = arena("install", "--image", IMAGE, "-o", "name")
    assert (code, out.splitlines()) == (0, [kubectl_name(manifest) for manifest in objects])


def test_every_flag_reaches_the_manifests(arena, tmp_path):
    (tmp_path / "net.yaml").write_text(FABRIC, encoding="utf-8")
    code, out, _err = arena(
        *("install", "--image", IMAGE, "--gang-scheduling", "--ack", "--runtime-class", "nvidia"),
        *("--agent-selector", "pool=gpu", "--image-pull-secret", "registry"),
        *("--fabric", str(tmp_path / "net.yaml")),
    )
    assert code == 0
    assert out == (GOLDENS / "install-everything.yaml").read_text(encoding="utf-8")
    code, out, _err = arena("install", "--image", IMAGE, "--without-controller", "--without-agent")
    assert code == 0
    assert out == (GOLDENS / "install-policies-and-roles.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(("lines", "noted"), [(70_000, False), (90_000, True)])
def test_a_fabric_file_too_large_for_kubectl_apply_is_noted_with_another_way(
    arena, tmp_path, lines, noted
):
    (tmp_path / "net.yaml").write_text(FABRIC + "#\n" * lines, encoding="utf-8")
    line = ("install", "--image", IMAGE, "--fabric", str(tmp_path / "net.yaml"), "-o", "json")
    code, out, err = arena(*line)
    assert (code, "kubectl apply --server-side -f -" in err) == (0, noted)
    [stored] = [one for one in json.loads(out)["items"] if "fabric.yaml" in one.get("data", {})]
    # The limit of the annotations of an object (kubernetes, TotalAnnotationSizeLimitB).
    assert (len(json.dumps(stored, separators=(",", ":"))) > 262144) is noted


@pytest.mark.parametrize("text", ["pool=gpu=big", "pool=-gpu", "pool=a b", f"pool={'x' * 64}"])
def test_a_label_that_no_node_can_have_is_not_selected_by(text, arena):
    code, out, err = arena("install", "--image", IMAGE, f"--agent-selector={text}")
    value = text.removeprefix("pool=")
    assert (code, out) == (2, "")
    assert err == (
        f"error: --agent-selector {text} is invalid\n"
        f"  why:  {value!r} is not the value of a label\n"
        "  try:  repeat --agent-selector for more labels\n"
    )
    assert arena("install", "--image", IMAGE, "--agent-selector=pool=")[0] == 0


@pytest.mark.parametrize("name", CASES)
def test_every_field_is_one_that_kubernetes_knows(name):
    from kubernetes import client  # noqa: PLC0415 - a second opinion, slow to import

    models = client.ApiClient()
    for manifest in install.installation_objects(Installation(image=IMAGE, **CASES[name])):
        model = MODELS[manifest["apiVersion"]] + manifest["kind"]
        if "AdmissionPolicy" in model and not hasattr(client, model):
            continue  # of Kubernetes 1.36: older versions of the package that are allowed lack it
        # The client drops what its models do not have.
        known = models._ApiClient__deserialize(manifest, model)
        assert models.sanitize_for_serialization(known) == manifest


@pytest.mark.parametrize("name", CASES)
def test_what_an_object_refers_to_is_there_before_it(name):
    seen: set[tuple[str, str]] = {("Namespace", "kube-system")}
    for manifest in install.installation_objects(Installation(image=IMAGE, **CASES[name])):
        spec = manifest.get("spec") or {}
        needs = [("Namespace", space)] if (space := manifest["metadata"].get("namespace")) else []
        if "roleRef" in manifest:
            needs.append((manifest["roleRef"]["kind"], manifest["roleRef"]["name"]))
        if "policyName" in spec:
            needs.append((manifest["kind"].removesuffix("Binding"), spec["policyName"]))
        if "template" in spec:
            needs.append(("ServiceAccount", spec["template"]["spec"]["serviceAccountName"]))
        needs += [
            ("ServiceAccount", subject["name"])
            for subject in manifest.get("subjects") or ()
            if subject["kind"] == "ServiceAccount"
        ]
        assert set(needs) <= seen
        seen.add((manifest["kind"], manifest["metadata"]["name"]))


def test_each_right_has_a_reason():
    """Above the rule or the group of rules that it is for; one of a single rule above its role."""
    seen = 0
    for text in install.installation_yaml(Installation(image=IMAGE, gang=True, ack=True)).split(
        "---\n"
    ):
        lines = text.splitlines()
        rules = [at for at, line in enumerate(lines) if line.startswith("- {apiGroups: [")]
        for at in rules:
            above = next(line for line in reversed(lines[:at]) if not line.startswith("- {apiG"))
            assert above.startswith("# ") or (len(rules) == 1 and lines[0].startswith("# "))
        seen += len(rules)
    assert seen > 30


def test_no_role_has_all_rights_or_reads_secrets():
    for manifest in install.all_objects():
        for rule in manifest.get("rules") or ():
            words = {*rule["verbs"], *rule["resources"], *rule["apiGroups"]}
            assert not words & {"*", "secrets", "escalate", "bind", "impersonate", "roles"}


# ---------------------------------------------------------------- words that others write


def test_the_policies_read_what_jobs_carry():
    policies = {
        manifest["metadata"]["name"]: manifest
        for manifest in install.all_objects()
        if manifest["kind"] == "MutatingAdmissionPolicy"
    }
    assert set(policies) == {install.PLACEMENT_POLICY, install.CLAIMS_POLICY, install.GANG_POLICY}

    def asked(name: str) -> dict[str, list[str] | None]:
        selector = policies[name]["spec"]["matchConstraints"]["objectSelector"]
        return {
            expression["key"]: expression.get("values")
            for expression in selector["matchExpressions"]
        }

    role = {"training.kubeflow.org/job-role": ["worker"]}
    index = {"training.kubeflow.org/replica-index": None}
    placement = policies[install.PLACEMENT_POLICY]
    assert placement["metadata"]["labels"][install.FORMAT_LABEL] == MAP_FORMAT
    assert asked(install.PLACEMENT_POLICY) == role | index | {INLINE: [MAP_FORMAT]}
    assert asked(install.CLAIMS_POLICY) == role | index | {CLAIMS: [PER_WORKER]}
    assert asked(install.GANG_POLICY) == role | {GANG: ["true"]}
    text = json.dumps(placement)
    for word in (MAP, GATE, GPU_GROUP, GPU_VISIBLE):
        assert word in text


def test_the_policies_of_writers_know_the_names_of_what_is_published():
    agent = json.dumps(named("ValidatingAdmissionPolicy", "arena-topo-agent"))
    suffix = published.config_map_name("")
    for word in (f"variables.node + '{suffix}'", f"[?'{published.NODE_LABEL}']", "[?'nodeName']"):
        assert word in agent
    controller = json.dumps(named("ValidatingAdmissionPolicy", install.CONTROLLER, ack=True))
    assert f"[?'{published.SCHEDULE_LABEL}'].orValue('') == 'topology'" in controller
    assert f"request.namespace == '{published.ACK_NAMESPACE}'" in controller


def test_the_agent_runs_where_labels_tell_of_gpus():
    assert {*nodelabels.PRODUCT_LABELS, published.SCHEDULE_LABEL, TAINT} <= set(install.GPU_LABELS)
    pod = named("DaemonSet", "arena-topo-agent")["spec"]["template"]["spec"]
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    # Terms are alternatives: any of the labels will do.
    keys = [
        [expression["key"] for expression in term["matchExpressions"]]
        for term in terms["nodeSelectorTerms"]
    ]
    assert keys == [[key] for key in install.GPU_LABELS]
    chosen = named("DaemonSet", "arena-topo-agent", node_selector={"pool": "gpu"})
    assert chosen["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "gpu"}
    assert "affinity" not in chosen["spec"]["template"]["spec"]


@pytest.mark.parametrize("kind", ["DaemonSet", "Deployment"])
def test_a_loop_shows_that_it_lives_by_the_file_that_its_probe_looks_at(kind, tmp_path):
    spec = container(kind)
    variables = {each["name"]: each.get("value") for each in spec["env"]}
    file = Path(variables[install.HEARTBEAT])
    mounts = {each["mountPath"] for each in spec["volumeMounts"]}
    assert str(file.parent) in mounts
    command = [word.replace(str(file.parent), str(tmp_path)) for word in install.ALIVE]
    assert spec["livenessProbe"]["exec"]["command"] == list(install.ALIVE)

    def alive() -> bool:
        import subprocess  # noqa: PLC0415 - only here

        return subprocess.run(command, check=False).returncode == 0

    assert not alive()
    heartbeat.beat({install.HEARTBEAT: str(tmp_path / file.name)})
    assert alive()
    os.utime(tmp_path / file.name, (0, 0))
    assert not alive()


def test_a_loop_outside_of_a_pod_leaves_no_sign_and_a_full_disk_does_not_stop_it(tmp_path):
    heartbeat.beat({})
    heartbeat.beat({install.HEARTBEAT: str(tmp_path / "missing" / "alive")})
    assert not list(tmp_path.iterdir())


def test_the_controllers_pod_meets_pod_security_restricted():
    pod = named("Deployment", install.CONTROLLER)["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    own = container("Deployment")["securityContext"]
    assert own["allowPrivilegeEscalation"] is False
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert all("emptyDir" in volume for volume in pod["volumes"])
    mounted = named("Deployment", install.CONTROLLER, fabric=FABRIC)
    volumes = mounted["spec"]["template"]["spec"]["volumes"]
    # PodSecurity restricted allows both (Pod Security Standards, "Volume Types").
    assert {kind for volume in volumes for kind in volume} == {"name", "emptyDir", "configMap"}


def test_the_namespace_is_as_strict_as_what_runs_in_it_allows():
    level = "pod-security.kubernetes.io/enforce"
    for agent, wanted in ((True, "privileged"), (False, "restricted")):
        labels = named("Namespace", install.SYSTEM, agent=agent)["metadata"]["labels"]
        assert labels[level] == wanted


def test_the_image_of_the_dockerfile_has_the_user_that_the_controller_runs_as():
    user = named("Deployment", install.CONTROLLER)["spec"]["template"]["spec"]["securityContext"]
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert re.findall(r"^USER (\S+)", text, re.MULTILINE) == [f"{user['runAsUser']}"]
    assert 'ENTRYPOINT ["arena-topo"]' in text


def as_mounted(folder: Path, **how: Any) -> Path:
    """The controller's fabric file as its container has it: a link, as the kubelet mounts them."""
    deployment = named("Deployment", install.CONTROLLER, **how)["spec"]["template"]["spec"]
    args = container("Deployment", **how)["args"]
    path = Path(args[args.index("--fabric") + 1])
    mounts = {
        each["mountPath"]: each["name"] for each in container("Deployment", **how)["volumeMounts"]
    }
    volumes = {each["name"]: each for each in deployment["volumes"]}
    config = named("ConfigMap", volumes[mounts[str(path.parent)]]["configMap"]["name"], **how)
    (folder / "..data").mkdir()
    (folder / "..data" / path.name).write_text(config["data"][path.name], encoding="utf-8")
    (folder / path.name).symlink_to(f"..data/{path.name}")
    return folder / path.name


def test_the_controller_reads_the_network_that_was_given_to_install(tmp_path):
    mounted = as_mounted(tmp_path, fabric=FABRIC)
    given = tmp_path / "given.yaml"
    given.write_text(FABRIC, encoding="utf-8")
    assert replace(read_fabric(str(mounted)), where="") == replace(
        read_fabric(str(given)), where=""
    )
    assert "by the data sheet" in mounted.read_text(encoding="utf-8")


def test_another_network_starts_the_controller_again_and_changes_no_right():
    def template(text: str) -> dict[str, Any]:
        return named("Deployment", install.CONTROLLER, fabric=text)["spec"]["template"]

    faster = FABRIC.replace("400", "800")
    assert template(FABRIC)["metadata"] == template(FABRIC)["metadata"]
    assert template(FABRIC)["metadata"] != template(faster)["metadata"]

    def rights(text: str) -> list[dict[str, Any]]:
        objects = install.installation_objects(Installation(image=IMAGE, fabric=text))
        return [
            manifest
            for manifest in objects
            if "rbac" in manifest["apiVersion"] or "Policy" in manifest["kind"]
        ]

    assert rights(FABRIC) == rights("")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("levels: 5", "line 1: levels: expected a list, got a whole number"),
        (
            FABRIC.replace("12.5", "500"),
            "line 4: beyondGBps: 500 GB/s is more than the 400 GB/s of levels[0]",
        ),
        (f"{FABRIC}levels: []", "line 5: levels is given twice"),
        ("", "the file: expected a mapping, got nothing"),
        ("levels: [", "line 2, column 1: not YAML: "),
    ],
)
def test_a_bad_fabric_file_prints_nothing_but_the_place_in_it(arena, tmp_path, text, problem):
    path = tmp_path / "net.yaml"
    path.write_text(text, encoding="utf-8")
    code, out, err = arena("install", "--image", IMAGE, "--fabric", str(path))
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {path}: {problem}")
    assert "\n  try:  " in err


@pytest.mark.parametrize("kind", ["DaemonSet", "Deployment"])
def test_the_pods_run_commands_that_there_are(kind):
    words = container(kind, fabric=FABRIC)["args"]
    command = root.command_tree()
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    assert not hasattr(command, "commands")
    known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= known


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("image", "problem"),
    [
        ("", "--image is missing"),
        ("two words", "'two words' is not the name of an image"),
        ("a/b@sha256:12", "'a/b@sha256:12' is not the name of an image"),
        ('a"\nkind: Secret', "is not the name of an image"),
    ],
)
def test_an_image_that_is_none_is_refused(arena, image, problem):
    code, out, err = arena("install", "--image", image)
    assert (code, out) == (2, "")
    assert problem in err.splitlines()[0]


def test_an_image_is_required_only_for_controller_or_agent(arena):
    nothing = ("install", "--without-controller", "--without-agent")
    golden = (GOLDENS / "install-policies-and-roles.yaml").read_text(encoding="utf-8")
    assert arena(*nothing) == (0, golden, "")
    assert arena(*nothing, "--image", "a/b:1") == (0, golden, "")
    assert arena(*nothing, "--image", "two words")[:2] == (2, "")
    for part in nothing[1:]:
        code, out, err = arena("install", part)
        assert (code, out) == (2, "")
        assert err.startswith("error: --image is missing\n")


def test_an_image_by_its_tag_is_taken_with_a_note(arena):
    code, out, err = arena("install", "--image", "registry.example:5000/arena-topo:1.0")
    assert code == 0
    assert 'image: "registry.example:5000/arena-topo:1.0"' in out
    assert err == (
        "note: registry.example:5000/arena-topo:1.0 can become another image at any time: name it"
        " by its digest, NAME@sha256:...\n"
    )


def test_flags_that_contradict_each_other_are_refused(arena):
    assert arena("install", "--image", IMAGE, "--ack", "--without-controller")[0] == 2
    assert arena("install", "--remove", "--image", IMAGE)[0] == 2
    for other in ("--remove", "--without-controller"):
        code, out, err = arena("install", other, "--fabric", "net.yaml")
        assert (code, out) == (2, "")
        assert err.startswith(f"error: {other} and --fabric exclude each other\n")


def test_values_cannot_change_the_structure_of_a_manifest():
    text = 'x"}\n---\nkind: Secret'
    objects = install.installation_objects(
        Installation(image=IMAGE, runtime_class=text, node_selector={text: text})
    )
    plain = install.installation_objects(Installation(image=IMAGE))
    assert [manifest["kind"] for manifest in objects] == [manifest["kind"] for manifest in plain]
    assert named("ConfigMap", "arena-topo-fabric", fabric=text)["data"] == {"fabric.yaml": text}
    pod = objects[-1]["spec"]["template"]["spec"]
    assert (pod["runtimeClassName"], pod["nodeSelector"]) == (text, {text: text})


# ---------------------------------------------------------------- how it goes again


def installed(api: FakeApi, **how: Any) -> list[dict[str, Any]]:
    """Put an installation into the cluster, as `kubectl apply` does."""
    objects = list(install.installation_objects(Installation(image=IMAGE, **how)))
    for manifest in objects:
        api.add(manifest)
    return objects


def job(name: str, *, labels: dict[str, str] | None = None, **annotations: str) -> dict[str, Any]:
    worker = {"template": {"metadata": {"labels": labels or {}}, "spec": {"containers": []}}}
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": name, "namespace": "team-a", "annotations": annotations},
        "spec": {"mpiReplicaSpecs": {"Worker": worker}},
    }


def test_jobs_that_need_what_would_go_are_named_with_what_they_need():
    over = {**job("over", labels={INLINE: "v1"}), "status": {"launcherStatus": "Succeeded"}}
    waiting = job("waiting")
    waiting["metadata"]["annotations"] = {STATE: "waiting"}
    named_jobs = dict(
        dependents(
            [
                over,
                waiting,
                job("plain"),
                job("placed", labels={INLINE: "v1"}),
                job("claims", labels={CLAIMS: "per-worker"}),
                job("gang", labels={GANG: "true"}),
            ]
        )
    )
    assert named_jobs == {
        "team-a/waiting": "waits to be started, by the controller where one runs",
        "team-a/placed": "has workers that get their node from arena-topo-placement",
        "team-a/claims": "has workers that get their GPUs from arena-topo-claims",
        "team-a/gang": "has workers that get their PodGroup from arena-topo-gang",
    }


def test_nothing_is_removed_under_a_job_that_needs_it(arena, api):
    installed(api)
    api.add(job("bert", labels={INLINE: "v1"}))
    code, out, err = arena("install", "--remove")
    assert (code, out) == (1, "")
    assert err.splitlines()[:2] == [
        "error: 1 job would be left unfinished",
        "  why:  team-a/bert has workers that get their node from arena-topo-placement",
    ]


def test_what_is_installed_is_printed_in_the_order_in_which_it_may_go(arena, api):
    objects = installed(api, gang=True, agent=False, fabric=FABRIC)
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1", "labels": {TAINT: "true"}},
    }
    api.add(node)
    code, out, err = arena("install", "--remove")
    printed = list(yaml.safe_load_all(out))
    assert code == 0
    assert [kubectl_name(manifest) for manifest in printed] == [
        kubectl_name(manifest) for manifest in reversed(objects)
    ]
    assert all(set(manifest) == {"apiVersion", "kind", "metadata"} for manifest in printed)
    assert all(set(manifest["metadata"]) <= {"name", "namespace"} for manifest in printed)
    assert "1 node keeps its label" in err
    assert "arena-topo nodes default n1" in err


@pytest.mark.usefixtures("api")
def test_where_nothing_is_installed_nothing_is_printed(arena):
    assert arena("install", "--remove") == (0, "", "Nothing of arena-topo is installed.\n")


def test_removing_needs_a_cluster(arena):
    code, out, err = arena("install", "--remove")
    assert (code, out) == (2, "")
    assert "this command needs a Kubernetes cluster, and the local engine is in use" in err


def test_a_mistake_of_the_server_is_an_error_like_any_other(arena, api):
    api.fail("mpijobs", status=500, times=99)
    code, _out, err = arena("install", "--remove", "--request-timeout", "1s")
    assert code == 1
    assert err.startswith("error: ")
    assert "Traceback" not in err
