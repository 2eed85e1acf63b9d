"""Objects of the wrong shape from a server, or whatever answers in its place: one clear error.

Each request of a command gets such an answer once. What the command makes of it is an exit code
that scripts know and at most one error; a traceback is never among it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from exhaustive import all_but
from fake_api import FakeApi, kubeconfig
from fake_cluster import FakeCluster
from job_shapes import CREATED, RUNNING, mpijob, node, ours

from arena_topo import cli
from arena_topo.engines.kubernetes import connection, queue

GANG = ("--image", "i", "--workers", "2", "--gpus", "2", "--gputopology", "mpirun x")
COMMANDS = {
    "get": ("get", "b", "--events"),
    "why": ("why", "b"),
    "list": ("list",),
    "whoami": ("whoami",),
    "top": ("top", "node", "-d"),
    "nodes": ("nodes", "list"),
    "plan": ("plan", "mpi", "--name", "c", *GANG),
    "submit": ("submit", "mpi", "--name", "c", *GANG),
    "plain": ("submit", "mpi", "--name", "c", "--image", "i", "sleep 1"),
    "suspend": ("suspend", "b"),
    "resume": ("resume", "b"),
    "check": ("check",),
}
ODD: dict[str, dict[str, Any]] = {
    "labels": {"metadata": {"labels": 7}, "spec": []},
    "bare": {},
    "lists": {
        "metadata": {"uid": 7, "annotations": [], "ownerReferences": [7]},
        "spec": {"containers": 7, "runPolicy": [], "taints": {}, "ports": [7], "selectors": [7]},
        "status": {"conditions": {}, "resourceRules": [{"verbs": 7}], "userInfo": [], "hard": 7},
        "resources": [7],
        "versions": 7,
    },
}
SWEPT = ("bare", "lists")


class World:
    """A living cluster with a gang `b`, and the command line."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
        self.api = FakeApi()
        self.config = kubeconfig(folder / "config", self.api.url, user={"username": "alice"})
        monkeypatch.setenv("KUBECONFIG", self.config)
        monkeypatch.setattr(connection, "_FIRST_DELAY", 0.0005)
        monkeypatch.setattr(queue, "_TRIES", 2)
        self.cluster = FakeCluster(self.api)
        for index in range(3):
            labels = {"nvidia.com/gpu.product": "Tesla-V100-SXM2-16GB"}
            self.cluster.node(f"node-{index}", 8, labels=labels)
        self._capfd = capfd
        self.run("submit", "mpi", "--name", "b", *GANG)

    def run(self, *words: str) -> tuple[int, str, str]:
        """A command line while the cluster lives: exit code, stdout, stderr."""
        self.api.requests.clear()
        self._capfd.readouterr()
        with self.cluster.running():
            code = cli.run(words)
        self.api.faults.clear()
        self.cluster.settle()
        return code, *self._capfd.readouterr()

    def answer(self, line: str, odd: dict[str, Any]) -> None:
        """Let one request of this kind be answered with an odd object, or a list of one."""
        match = re.sub(r"resourceVersion=\\?\d+", r"resourceVersion=\\d+", re.escape(line))
        self.api.fail(f"^{match}$", status=200, body=json.dumps(answered(line, odd)).encode())


def answered(line: str, odd: dict[str, Any]) -> dict[str, Any]:
    """What an odd server answers to a request."""
    path = line.split()[1].partition("?")[0]
    name = path.rpartition("/")[2] if line.startswith("GET") else "c"
    one = {**odd, "metadata": {"name": name, **odd.get("metadata", {})}}
    listed = re.search(r"/(v\d\w*)(/namespaces/[^/]+)?/[^/]+$", path) and line.startswith("GET")
    return {"kind": "List", "metadata": {}, "items": [one]} if listed else one


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> Iterator[World]:
    made = World(tmp_path, monkeypatch, capfd)
    yield made
    made.api.close()


@pytest.mark.parametrize("command", all_but(3, COMMANDS))
def test_no_object_of_a_server_is_a_mistake_of_the_program(world: World, command: str):
    words = COMMANDS[command]
    world.run(*words)
    wrong = []
    for line in dict.fromkeys(world.api.requests):
        for kind in SWEPT:
            world.answer(line, ODD[kind])
            code, _out, err = world.run(*words, "--request-timeout=5s")
            errors = [one for one in err.splitlines() if one.startswith("error: ")]
            if "made a mistake" in err or "Traceback" in err or code not in {0, 1, 3, 4, 5, 6}:
                wrong.append(f"{line} answered with {kind}: exit {code}: {err}")
            elif len(errors) > 1 or (code in {1, 4} and not errors and command != "check"):
                wrong.append(f"{line} answered with {kind}: exit {code}, {len(errors)} errors")
            if world.api.find("MPIJob", "c"):
                world.run("delete", "c")
            if words[0] == "suspend":
                world.run("resume", "b")
    assert not wrong, "\n".join(wrong)


def test_the_error_names_the_object_and_where_it_is_odd(world: World):
    world.answer("GET /apis/kubeflow.org/v2beta1/namespaces/default/mpijobs/b", ODD["labels"])
    code, out, err = world.run("suspend", "b")
    assert (code, out) == (1, "")
    assert err.splitlines()[:2] == [
        "error: the API server's answer about b makes no sense",
        "  why:  metadata.labels: expected a mapping, got a whole number",
    ]


@pytest.mark.parametrize("odd", [{"runPolicy": [7]}, {"mpiReplicaSpecs": [7]}, {"template": 7}])
def test_invalid_objects_of_one_tenant_do_not_affect_others(
    api: FakeApi, tmp_path: Path, run: Any, odd: dict[str, Any]
):
    config = kubeconfig(tmp_path / "config", api.url, namespace="team-a")
    api.add(node("gpu-1"))
    train = mpijob(CREATED, RUNNING, name="train", notes=ours("placed", map="gpu-1/0,1,2,3,4,5,6"))
    api.add(train)
    api.add(mpijob(CREATED, notes=ours("waiting"), policy={"suspend": True}))
    theirs = mpijob(name="odd", notes=ours("placed", map="gpu-1/7"))
    api.add(theirs | {"metadata": theirs["metadata"] | {"namespace": "default"}})
    with api.edit("MPIJob", "odd") as found:
        found["spec"] |= odd
    code, out, _err = run("why", "demo", "--kubeconfig", config)
    assert code == 0
    assert "demo: PENDING, WaitingForGPUs" in out
    assert "team-a/train" in out
    assert f"MPIJob odd makes no sense: spec.{next(iter(odd))}: expected a mapping, got" in out
    gang = ("--name=c", "--image=i", "--workers=1", "--gpus=1", "--gputopology", "x")
    for words in (("check",), ("list", "-A"), ("top", "node"), ("plan", "mpi", *gang)):
        code, out, err = run(*words, "--kubeconfig", config)
        assert "made a mistake" not in err
        assert "error: " not in err or words[0] == "plan"
