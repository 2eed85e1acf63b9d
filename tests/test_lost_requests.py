"""A submit that loses one request: the job is not there, or it runs, or the error names it.

Every request from the creation of the job on goes wrong once, in every way that servers and the
proxies before them have. A gang that was left behind can be resumed, by name or by the same line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from exhaustive import all_but
from fake_api import FakeApi, kubeconfig
from fake_cluster import FakeCluster
from proxy import Proxy, Trouble

from arena_topo import cli
from arena_topo.engines.kubernetes import connection
from arena_topo.manifests import INCOMPLETE, RECORDED, STATE

NAME = "gang-7"
GANG = ("--image", "i", "--workers", "2", "--gpus", "2", "--gputopology", "mpirun x")
SUBMIT = ("submit", "mpi", "--name", NAME, *GANG)
CREATION = r"POST .*/namespaces/default/mpijobs$"
START = rf"PATCH .*/mpijobs/{NAME}$"

LOST: dict[str, dict[str, Any]] = {
    "500": {"status": 500},
    "503": {"status": 503},
    "403": {"status": 403, "reason": "Forbidden", "message": "not now"},
    "reset before it was taken": {"reset": True},
    "reset after it was taken": {"reset": True, "late": True},
    "500 after it was taken": {"status": 500, "late": True},
    "unreadable": {"torn": True},
}
SWEPT = ("500 after it was taken", "403", "reset before it was taken", "unreadable")
PASSING = [kind for kind in LOST if kind != "403"]


class World:
    """A living cluster with a proxy before it, and the command line."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
        self.api = FakeApi()
        self.proxy = Proxy(kubeconfig(folder / "direct", self.api.url, user={"username": "alice"}))
        monkeypatch.setenv("KUBECONFIG", self.proxy.kubeconfig(folder / "config"))
        monkeypatch.setattr(connection, "_FIRST_DELAY", 0.0005)
        self.cluster = FakeCluster(self.api)
        for index in range(3):
            labels = {"nvidia.com/gpu.product": "Tesla-V100-SXM2-16GB"}
            self.cluster.node(f"node-{index}", 8, labels=labels)
        self._capfd = capfd

    def run(self, *words: str) -> tuple[int, str, str]:
        """A command line while the cluster lives: exit code, stdout, stderr."""
        self.proxy.requests.clear()
        self._capfd.readouterr()
        with self.cluster.running():
            code = cli.run(words)
        self.proxy.troubles.clear()
        self.cluster.settle()
        return code, *self._capfd.readouterr()

    def lose(self, match: str, *, skip: int = 0, times: int = 1, **trouble: Any) -> None:
        self.proxy.troubles.append(Trouble(match=match, skip=skip, times=times, **trouble))

    def job(self) -> dict[str, Any] | None:
        return self.api.find("MPIJob", NAME)

    @property
    def runs(self) -> bool:
        job = self.job()
        return job is not None and job["spec"]["runPolicy"]["suspend"] is False

    @property
    def notes(self) -> dict[str, str]:
        job = self.job()
        assert job is not None
        return dict(job["metadata"]["annotations"])

    def age(self) -> None:
        """Let nobody be at work on the job any more."""
        with self.api.edit("MPIJob", NAME) as job:
            long_ago = "2020-01-01T00:00:00Z"
            job["metadata"]["creationTimestamp"] = long_ago
            if RECORDED in job["metadata"]["annotations"]:
                job["metadata"]["annotations"][RECORDED] = long_ago

    def close(self) -> None:
        self.proxy.close()
        self.api.close()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> Iterator[World]:
    made = World(tmp_path, monkeypatch, capfd)
    yield made
    made.close()


# ---------------------------------------------------------------- one request is lost


@pytest.mark.parametrize("kind", all_but(1, SWEPT))
def test_whichever_request_is_lost_the_job_is_gone_or_runs_or_is_named(world: World, kind: str):
    world.run(*SUBMIT)
    every = list(world.proxy.requests)
    world.run("delete", NAME)
    first = next(at for at, line in enumerate(every) if re.search(CREATION, line))
    wrong = []
    for at in range(first, len(every)):
        world.lose(".", skip=at, **LOST[kind])
        code, _out, err = world.run(*SUBMIT)
        if world.job() is None:
            if code == 0:
                wrong.append(f"{at} {every[at]}: exit 0, and there is no job")
            continue
        if code == 0 and not world.runs:
            wrong.append(f"{at} {every[at]}: exit 0, and the job does not run")
        if code != 0 and f"arena-topo resume {NAME} -n default" not in err:
            wrong.append(f"{at} {every[at]}: the job is there, and not named:\n{err}")
        if code != 0 and world.run("resume", NAME)[0] != 0:
            wrong.append(f"{at} {every[at]}: it cannot be resumed")
        world.run("delete", NAME)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("kind", PASSING)
def test_the_request_that_starts_a_gang_is_sent_again(world: World, kind: str):
    world.lose(START, **LOST[kind])
    code, _out, err = world.run(*SUBMIT)
    assert (code, world.runs) == (0, True), err
    assert "error" not in err


def test_a_server_that_refuses_the_start_for_good_is_told_with_the_job_and_the_way_on(world: World):
    world.lose(START, times=99, status=500)
    code, _out, err = world.run(*SUBMIT)
    assert (code, world.runs) == (1, False)
    assert err.splitlines()[0] == "error: the server is currently unable to handle the request"
    assert f"arena-topo resume {NAME} -n default" in err
    assert len([line for line in world.proxy.requests if re.search(START, line)]) < 10
    assert world.run("resume", NAME)[0] == 0
    assert world.runs


def test_a_right_that_is_missing_is_still_told_where_the_job_is_left(world: World):
    world.lose(START, **LOST["403"])
    code, _out, err = world.run(*SUBMIT)
    assert (code, world.runs) == (4, False)
    assert f"arena-topo resume {NAME} -n default" in err
    assert 'resources: ["mpijobs"], verbs: ["patch"]' in err


def test_a_look_that_fails_after_the_job_was_created_is_told_with_the_job(world: World):
    world.lose("GET .*resourceVersionMatch=Exact", status=403, times=9, reason="Forbidden")
    code, _out, err = world.run(*SUBMIT)
    assert world.job() is not None
    assert code == 0 or f"arena-topo resume {NAME} -n default" in err


@pytest.mark.parametrize("kind", PASSING)
def test_a_creation_of_which_the_answer_is_lost_is_found_again(world: World, kind: str):
    world.lose(CREATION, **LOST[kind])
    code, out, err = world.run(*SUBMIT)
    assert (code, world.runs) == (0, True), err
    assert out.startswith(f"mpijob.kubeflow.org/{NAME} created\n")
    assert len(world.api.all("MPIJob")) == 1


# ---------------------------------------------------------------- the same line again


def left(world: World, *more: str) -> None:
    """Leave a gang as a submitter does whose last request is lost: placed, and suspended."""
    world.lose(START, times=99, status=500)
    assert world.run(*SUBMIT, *more)[0] == 1
    assert world.notes[STATE] == "placed"
    assert not world.runs


def filled(world: World) -> None:
    """Let pods of others have every GPU."""
    limits = {"limits": {"nvidia.com/gpu": "8"}}
    for index in range(3):
        world.api.add(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"other-{index}"},
                "spec": {
                    "nodeName": f"node-{index}",
                    "containers": [{"name": "main", "image": "theirs", "resources": limits}],
                },
                "status": {"phase": "Running"},
            }
        )


def test_the_same_line_with_exists_ok_starts_what_was_left_before_its_start(world: World):
    left(world)
    world.age()
    code, out, err = world.run(*SUBMIT, "--exists", "ok")
    assert (code, out) == (0, f"mpijob.kubeflow.org/{NAME} resumed\n")
    assert f"{NAME} was left before its start" in err
    assert world.runs


def test_exists_ok_says_so_where_a_gang_that_was_left_does_not_fit_any_more(world: World):
    left(world)
    world.age()
    filled(world)
    code, out, err = world.run(*SUBMIT, "--exists", "ok")
    assert (code, out) == (0, f"mpijob.kubeflow.org/{NAME} unchanged\n")
    assert f"{NAME} has to wait" in err
    assert world.notes[STATE] == "waiting"


def test_exists_ok_that_cannot_start_what_was_left_is_an_error_that_names_it(world: World):
    left(world)
    world.age()
    world.lose(START, times=99, status=500)
    code, out, err = world.run(*SUBMIT, "--exists", "ok")
    assert (code, out) == (1, "")
    assert f"arena-topo resume {NAME} -n default" in err


def test_exists_ok_leaves_a_gang_to_whoever_is_starting_it(world: World):
    left(world)
    looks = iter(range(99))

    def begin() -> None:
        if next(looks) == 3:
            with world.api.edit("MPIJob", NAME) as found:
                found["spec"]["runPolicy"]["suspend"] = False

    world.api.before(rf"GET .*/mpijobs/{NAME}$", begin, times=99)
    code, out, _err = world.run(*SUBMIT, "--exists", "ok")
    assert (code, out) == (0, f"mpijob.kubeflow.org/{NAME} unchanged\n")
    assert not [line for line in world.proxy.requests if line.startswith("PATCH")]


# ---------------------------------------------------------------- with files


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "conf.txt").write_text("lr: 1\n", encoding="utf-8")
    return f"--config-file={tmp_path / 'conf.txt'}:/etc/x/conf.txt"


def files(world: World) -> list[str]:
    """The ConfigMaps that hold the job's files."""
    found = [one["metadata"]["name"] for one in world.api.all("ConfigMap")]
    return [
        one for one in found if one.startswith(NAME) and not one.endswith(("-mpijob", "-config"))
    ]


def test_a_gang_whose_files_are_there_is_resumed(world: World, file: str):
    left(world, file)
    assert INCOMPLETE in world.notes
    code, out, err = world.run("resume", NAME)
    assert (code, out) == (0, f"mpijob.kubeflow.org/{NAME} resumed\n"), err
    assert world.runs
    assert INCOMPLETE not in world.notes


def test_a_gang_whose_files_are_there_and_that_does_not_fit_waits_like_any_other(
    world: World, file: str
):
    left(world, file)
    world.age()
    filled(world)
    assert world.run("resume", NAME)[0] == 3
    assert world.notes[STATE] == "waiting"
    assert INCOMPLETE not in world.notes


def test_the_same_line_with_exists_ok_starts_a_gang_whose_files_are_there(world: World, file: str):
    left(world, file)
    world.age()
    code, out, err = world.run(*SUBMIT, file, "--exists", "ok")
    assert (code, out) == (0, f"mpijob.kubeflow.org/{NAME} resumed\n"), err
    assert world.runs


@pytest.mark.parametrize("old", ["", "old"])
def test_why_says_of_a_gang_without_its_files_what_resume_says(world: World, file: str, old: str):
    left(world, file)
    if old:
        world.age()
    gone = files(world)
    assert len(gone) == 1
    world.api.remove("configmaps", "default", gone[0])
    code, _out, err = world.run("resume", NAME)
    assert code == 1
    assert f"error: {NAME} was not created completely\n" in err
    assert gone[0] in err
    assert f"arena-topo delete {NAME}" in err
    code, out, _err = world.run("why", NAME)
    assert code == 0
    assert gone[0] in out
    assert f"arena-topo delete {NAME}" in out
    assert "arena-topo resume" not in out


@pytest.mark.parametrize("old", ["", "old"])
def test_why_sends_a_gang_whose_files_are_there_to_resume(world: World, file: str, old: str):
    left(world, file)
    if old:
        world.age()
    code, out, _err = world.run("why", NAME)
    assert code == 0
    assert f"arena-topo resume {NAME} -n default" in out


def test_who_may_not_look_for_the_files_hears_which_right_that_takes(world: World, file: str):
    left(world, file)
    world.api.deny("get configmaps default")
    code, _out, err = world.run("resume", NAME)
    assert code == 4
    assert '{apiGroups: [""], resources: ["configmaps"], verbs: ["get"]}' in err
