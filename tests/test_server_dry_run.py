"""What `--dry-run -o yaml` prints is what a server takes: the requests of `kubectl apply`."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import flag_cases_placing
import flag_cases_pods
import pytest
import yaml
from clusters import Live
from fake_schema import faults, schema, unknown
from flag_cases import FILE, Case

from arena_topo import cli
from arena_topo.engines.kubernetes.job_writer import path_of
from arena_topo.manifests.versions import ApiVersion

TESTS = Path(__file__).parent
DUMP = TESTS / "dumps/two-dgx-1.json"
EVERY = [
    pytest.param(
        case,
        api,
        id="-".join(filter(None, [flag, case.note, api])),
        # `test_every_flag.py` reads what each version makes of a flag, in every run.
        marks=() if api is ApiVersion.V2BETA1 else pytest.mark.exhaustive,
    )
    for flag, several in {**flag_cases_placing.CASES, **flag_cases_pods.CASES}.items()
    for case in several
    for api in ApiVersion
]
LAST = "kubectl.kubernetes.io/last-applied-configuration"


def applied(live: Live, one: dict[str, Any]) -> dict[str, Any]:
    """What `kubectl apply --dry-run=server -f -` asks for one object that is not there yet."""
    path = path_of(one, live.namespace)
    assert live.call("GET", f"{path}/{one['metadata']['name']}").status == 404
    body = copy.deepcopy(one)
    notes = body["metadata"].setdefault("annotations", {})
    notes[LAST] = json.dumps(one, separators=(",", ":")) + "\n"
    answer = live.call(
        "POST",
        path,
        body,
        dryRun="All",
        fieldManager="kubectl-client-side-apply",
        fieldValidation="Strict",
    )
    assert answer.status == 201, answer.said
    assert "warning" not in answer.headers
    return dict(answer.body)


@pytest.mark.cluster
@pytest.mark.parametrize(("case", "api"), EVERY)
def test_every_flag_prints_objects_that_a_server_takes_whole(
    case: Case, api: ApiVersion, live: Live, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    if live.fake is not None:
        live.fake.versions = [str(api)]
    elif live.call("GET", f"/apis/kubeflow.org/{api}").status == 404:
        pytest.skip(f"this cluster has no operator for MPIJob {api}")
    file = tmp_path / "app.json"
    file.write_text('{"a": 1}\n', encoding="utf-8")
    words = [word.replace(FILE.source, str(file)) for word in case.words()]
    where = [f"--state={DUMP}"] if case.job().gputopology else []
    options = [f"--api-version={api}", "--dry-run", "-o", "yaml", "-n", live.namespace]
    code = cli.run(["submit", "mpi", *options, *where, *words])
    shown = capfd.readouterr()
    if api in case.refused:
        assert code == 2
        assert shown.out == ""
        assert shown.err.startswith(f"error: {case.refused[api]}\n  why:  ")
        return
    assert code == 0, shown.err
    for one in yaml.load_all(shown.out, yaml.CSafeLoader):
        kept = applied(live, one)
        assert lost(one, kept) == []


def lost(sent: Any, kept: Any, path: str = "") -> list[str]:
    """What of an object is not in what the server made of it."""
    if isinstance(sent, dict) and isinstance(kept, dict):
        return [
            missing
            for key, one in sent.items()
            for missing in lost(one, kept.get(key), f"{path}.{key}")
        ]
    if isinstance(sent, list) and isinstance(kept, list) and len(sent) == len(kept):
        return [
            missing
            for index, one in enumerate(sent)
            for missing in lost(one, kept[index], f"{path}[{index}]")
        ]
    return [] if sent == kept else [path]


# The fake server is as strict as a real one


def golden(api: ApiVersion = ApiVersion.V2BETA1) -> dict[str, Any]:
    text = (TESTS / f"manifests/plain.{api}.yaml").read_text(encoding="utf-8")
    found = next(iter(yaml.load_all(text, yaml.CSafeLoader)))
    found["metadata"].pop("namespace")
    return dict(found)


WORKER = "spec.mpiReplicaSpecs.Worker.template.spec"


def put(thing: Any, path: str, value: Any) -> None:
    *above, last = path.split(".")
    for part in above:
        thing = thing[int(part)] if isinstance(thing, list) else thing[part]
    thing[int(last) if isinstance(thing, list) else last] = value


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("path", "value", "status", "said"),
    [
        ("spec.foo", 1, 400, 'strict decoding error: unknown field "spec.foo"'),
        (
            f"{WORKER}.containers.0.imagePolicy",
            "Always",
            400,
            f'unknown field "{WORKER}.containers[0].imagePolicy"',
        ),
        ("metadata.label", {}, 400, 'unknown field "metadata.label"'),
        (
            "spec.slotsPerWorker",
            "2",
            422,
            'spec.slotsPerWorker in body must be of type integer: "string"',
        ),
        (
            "spec.mpiImplementation",
            "OpenMP",
            422,
            'spec.mpiImplementation: Unsupported value: "OpenMP": supported values: ',
        ),
        ("spec.mpiReplicaSpecs", None, 422, "spec.mpiReplicaSpecs: Required value"),
        (
            f"{WORKER}.containers.0",
            {"image": "i"},
            422,
            f"{WORKER}.containers[0].name: Required value",
        ),
        (
            f"{WORKER}.containers.0.resources.limits",
            {"cpu": "four"},
            422,
            f'{WORKER}.containers[0].resources.limits.cpu: Invalid value: "four"',
        ),
        (
            f"{WORKER}.hostNetwork",
            "true",
            422,
            f'{WORKER}.hostNetwork in body must be of type boolean: "string"',
        ),
    ],
)
def test_a_server_refuses_what_its_schema_does_not_know(
    live: Live, path: str, value: Any, status: int, said: str
):
    job = golden()
    put(job, path, value)
    answer = live.call(
        "POST", path_of(job, live.namespace), job, dryRun="All", fieldValidation="Strict"
    )
    assert (answer.status, said in answer.said) == (status, True), answer.said


@pytest.mark.parametrize("api", list(ApiVersion))
def test_the_versions_know_different_fields_of_pods(api: ApiVersion):
    job = golden(api)
    spec = job["spec"]
    replicas = spec.get("mpiReplicaSpecs")
    pod = (replicas["Worker"]["template"] if replicas else spec["template"])["spec"]
    pod |= {"schedulingGates": [{"name": "a"}], "workloadRef": {}, "priority": 1}
    strays = [one.key for one in unknown(job, "MPIJob", api)]
    assert (
        strays
        == {
            ApiVersion.V2BETA1: [],
            ApiVersion.V1: ["workloadRef"],
            ApiVersion.V1ALPHA1: ["schedulingGates", "workloadRef"],
        }[api]
    )


def test_a_config_map_holds_texts_alone():
    thing = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}, "data": {"a": 1}}
    assert faults(thing, "ConfigMap", "v1") == [
        'data.a: Invalid value: "integer": data.a in body must be of type string: "integer"'
    ]


def test_every_schema_says_where_its_facts_are_from():
    for file in (TESTS / "schemas").iterdir():
        source = json.loads(file.read_text(encoding="utf-8"))["source"]
        assert source["repository"]
        assert source["path"]
        assert source.get("commit") or source.get("version")


def test_what_was_not_recorded_is_not_judged():
    assert schema("Gadget", "v1") is None
    assert faults({"spec": 1}, "Gadget", "v1") == []
    assert unknown({"spec": {"a": 1}}, "Gadget", "v1") == []
