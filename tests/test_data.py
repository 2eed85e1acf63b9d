"""`data list`: the volume claims that jobs can mount, on each engine and on the screen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_api import FakeApi, kubeconfig, rfc3339
from worlds import WORLDS

from arena_topo.engines.volume import Volume


def claim(name: str, namespace: str = "default", phase: str = "Bound", **more: Any) -> dict:
    metadata = {"name": name, "namespace": namespace, **more.pop("metadata", {})}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "nas", **more},
        "status": {"phase": phase, "capacity": {"storage": "20Gi"}},
    }


def namespace(name: str) -> dict:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A cluster that commands go to, with claims in two namespaces, in no order."""
    fake = FakeApi()
    config = kubeconfig(tmp_path / "config", fake.url, user={"username": "alice"})
    monkeypatch.setenv("KUBECONFIG", config)
    born = {"creationTimestamp": rfc3339(fake.clock() - 7300)}
    notes = {"description": "public\timages\n2012", "owner": "ann"}
    fake.add(claim("imagenet", metadata={**born, "annotations": notes}))
    fake.add(claim("code", accessModes=["ReadWriteMany", "ReadOnlyMany"], metadata=born))
    fake.add(claim("pending", phase="Pending", metadata=born))
    going = {**born, "deletionTimestamp": born["creationTimestamp"], "finalizers": ["x/y"]}
    fake.add(claim("going", metadata=going))
    fake.add(namespace("team-b"))
    fake.add(claim("private", "team-b", metadata=born))
    yield fake
    fake.close()


@pytest.mark.usefixtures("api")
def test_the_bound_claims_of_one_namespace_are_listed_by_name(arena):
    code, out, err = arena("data", "list")
    assert (code, err) == (0, "")
    assert out == (
        "NAME      ACCESSMODE                  DESCRIPTION         OWNER  AGE\n"
        "code      ReadOnlyMany,ReadWriteMany                             2h\n"
        "imagenet  ReadWriteMany               public images 2012  ann    2h\n"
    )


@pytest.mark.usefixtures("api")
def test_the_namespace_of_the_command_counts_and_not_all_of_them(arena):
    code, out, _err = arena("data", "list", "-n", "team-b", "-o", "name")
    assert (code, out) == (0, "persistentvolumeclaim/private\n")


@pytest.mark.parametrize("flag", ["-A", "--all-namespaces", "--allNamespaces"])
@pytest.mark.usefixtures("api")
def test_all_namespaces_come_with_a_column_that_names_them(arena, flag):
    code, out, err = arena("data", "list", flag)
    assert code == 0
    assert out == (
        "NAME      NAMESPACE  ACCESSMODE                  DESCRIPTION         OWNER  AGE\n"
        "code      default    ReadOnlyMany,ReadWriteMany                             2h\n"
        "imagenet  default    ReadWriteMany               public images 2012  ann    2h\n"
        "private   team-b     ReadWriteMany                                          2h\n"
    )
    renamed = (
        "warning: Flag --allNamespaces has been deprecated, please use --all-namespaces instead\n"
    )
    assert err == (renamed if flag == "--allNamespaces" else "")


def test_programs_get_what_is_known_of_each_claim(arena, api):
    _code, out, _err = arena("data", "list", "-o", "json")
    created = int(json.loads(out)[0]["creationTimestamp"])
    assert abs(api.clock() - 7300 - created) < 60
    assert json.loads(out) == [
        {
            "name": "code",
            "namespace": "default",
            "accessModes": ["ReadOnlyMany", "ReadWriteMany"],
            "description": "",
            "owner": "",
            "capacity": "20Gi",
            "storageClass": "nas",
            "creationTimestamp": created,
        },
        {
            "name": "imagenet",
            "namespace": "default",
            "accessModes": ["ReadWriteMany"],
            "description": "public\timages\n2012",
            "owner": "ann",
            "capacity": "20Gi",
            "storageClass": "nas",
            "creationTimestamp": created,
        },
    ]
    _code, written, _err = arena("data", "list", "-o", "yaml")
    assert yaml.safe_load(written) == json.loads(out)


@pytest.mark.usefixtures("api")
def test_quiet_prints_the_names_alone(arena):
    code, out, err = arena("data", "list", "-q")
    assert (code, err) == (0, "")
    assert out == "persistentvolumeclaim/code\npersistentvolumeclaim/imagenet\n"


@pytest.mark.usefixtures("api")
def test_a_namespace_without_claims_says_so_beside_the_header(arena):
    code, out, err = arena("data", "list", "-n", "empty")
    assert code == 0
    assert out == "NAME  ACCESSMODE  DESCRIPTION  OWNER  AGE\n"
    assert err == "No bound volume claims in namespace empty.\n"


def test_who_may_not_list_claims_hears_which_right_is_missing(arena, api):
    api.deny("list persistentvolumeclaims default")
    code, out, err = arena("data", "list")
    assert (code, out) == (4, "")
    assert err.startswith(
        "error: not allowed to list persistentvolumeclaims in namespace default\n"
    )
    assert (
        'try:  ask for this rule in a Role: {apiGroups: [""],'
        ' resources: ["persistentvolumeclaims"], verbs: ["list"]}\n'
    ) in err


def test_who_may_list_the_claims_of_one_namespace_alone_is_told_to_name_it(arena, api):
    api.rbac = True
    code, _out, err = arena("data", "list", "-A")
    assert code == 4
    assert err.rstrip().endswith("; or ask for one namespace with -n")


def test_claims_that_make_no_sense_are_an_error_of_the_cluster(arena, api):
    api.add({**claim("odd"), "status": {"phase": "Bound", "capacity": "lots"}})
    code, out, err = arena("data", "list")
    assert (code, out) == (1, "")
    assert err.startswith("error: the API server's answer about odd makes no sense\n")
    assert "why:  status.capacity: expected a mapping, got a text" in err


def test_data_alone_shows_its_help(arena):
    code, out, _err = arena("data")
    assert code == 0
    assert "List the bound volume claims, which --data can mount." in out


def test_this_machine_has_no_claims_and_says_so(arena):
    code, out, err = arena("data", "list", "--backend", "local")
    assert code == 0
    assert out == "NAME  ACCESSMODE  DESCRIPTION  OWNER  AGE\n"
    assert err == "This machine has no volume claims: jobs see its folders as they are.\n"


@pytest.mark.parametrize("opened", WORLDS.values(), ids=WORLDS)
def test_every_engine_lists_the_claims_it_has(tmp_path: Path, opened):
    with opened(tmp_path) as world:
        assert world.backend.volumes("default") == world.backend.volumes(None) == ()
        api = getattr(world, "api", None)
        if api is None:
            return
        api.add(claim("b"))
        api.add(claim("a"))
        api.add(namespace("team-b"))
        api.add(claim("c", "team-b"))
        assert [one.name for one in world.backend.volumes("default")] == ["a", "b"]
        everywhere = world.backend.volumes(None)
        assert [(one.namespace, one.name) for one in everywhere] == [
            ("default", "a"),
            ("default", "b"),
            ("team-b", "c"),
        ]
        assert all(isinstance(one, Volume) for one in everywhere)
