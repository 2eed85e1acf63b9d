"""What the local engine reads from its state folder: never trusted, and one job harms no other."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import socket
import sys
import time
from pathlib import Path

import pytest

from arena_topo.engines import Options, Phase
from arena_topo.engines.local import processes, scheduler, store
from arena_topo.engines.local.engine import open_local
from arena_topo.jobs import listing

PATIENCE = 30.0
DEEP = "[" * 100_000


def eventually(reached) -> None:
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """The folder of a job that has run to its end."""
    from arena_topo import cli  # noqa: PLC0415  the settings of the machine are hidden first

    home = tmp_path_factory.mktemp("template")
    with pytest.MonkeyPatch.context() as world:
        for name in list(os.environ):
            if name.startswith(("ARENA_", "KUBE", "XDG_")):
                world.delenv(name)
        world.setenv("HOME", str(home))
        world.setenv("XDG_STATE_HOME", str(home / "state"))
        world.setenv("ARENA_TOPO_BACKEND", "local")
        world.setenv("ARENA_TOPO_EMULATE", "dgx-1-v100:2")
        world.chdir(home)
        line = ["submit", "mpi", "--name=good", "--gpus=1", "--workers=2", "--image=local"]
        assert cli.run([*line, "--gputopology", "echo one; echo two"]) == 0
        folder = home / "state/arena-topo/jobs/default/good"
        eventually(lambda: '"SUCCEEDED"' in (folder / "record").read_text())
    return folder


@pytest.fixture
def state(template, tmp_path, monkeypatch) -> Path:
    """A state folder with the jobs `good` and `bad`, which are over."""
    root = tmp_path / "state/arena-topo"
    (root / "jobs/default").mkdir(parents=True)
    for folder in (root, root / "jobs", root / "jobs/default"):
        folder.chmod(0o700)
    monkeypatch.setenv("XDG_STATE_HOME", str(root.parent))
    monkeypatch.setenv("ARENA_TOPO_BACKEND", "local")
    monkeypatch.setenv("ARENA_TOPO_EMULATE", "dgx-1-v100:2")
    # As if called by its path in the environment that the tests run in.
    monkeypatch.setattr(sys, "argv", [str(Path(sys.executable).parent / "arena-topo")])
    monkeypatch.chdir(tmp_path)
    plant(template, root, "good", uid="00000000-0000-4000-8000-000000000001")
    plant(template, root, "bad", uid="00000000-0000-4000-8000-000000000002")
    yield root
    backend = open_local(Options(backend="local", emulate="dgx-1-v100:2"))
    for one in backend.jobs(None):
        backend.delete(one.name, one.namespace)


def plant(template: Path, root: Path, name: str, *, uid: str) -> None:
    folder = root / "jobs/default" / name
    shutil.copytree(template, folder)
    for file in ("submission.json", "record", "manifest.json"):
        text = (folder / file).read_text()
        (folder / file).write_text(text.replace('"good', f'"{name}'))
    digest = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    for pod in list((folder / "pods").iterdir()):
        pod.rename(pod.with_name(pod.name.replace("good", name)))
    change(folder, "submission.json", uid=uid, digest=digest)


def change(folder: Path, file: str, **changes) -> None:
    """Change what the JSON object of a file says; of `record` what is within."""
    found = json.loads((folder / file).read_text())
    (found["record"] if file == "record" else found).update(changes)
    (folder / file).write_text(json.dumps(found))


def running(folder: Path, **changes) -> None:
    """Make the record that of a job whose supervisor was killed while it ran."""
    gone = {"pid": 1 << 30, "started": 1, "boot": processes.boot_id()}
    change(folder, "record", phase="RUNNING", finished=None, supervisor=gone, **changes)


def submitted(run, name: str, command: str, *more: str) -> tuple[int, str, str]:
    line = ["submit", "mpi", f"--name={name}", "--gpus=1", "--workers=1", "--image=local"]
    return run(*line, "--gputopology", *more, command)


@pytest.mark.parametrize(
    "namespace", ["a\0b", "../default", ".."], ids=["zero byte", "path", "dots"]
)
@pytest.mark.parametrize("line", [["list"], ["top", "job"], ["get", "good"]], ids=" ".join)
@pytest.mark.usefixtures("state")
def test_a_namespace_that_is_no_name_of_a_folder_is_refused(line, namespace, run):
    code, _, err = run(*line, "--namespace", namespace)
    assert code == 2
    assert "is not a namespace" in err


# ---------------------------------------------------------------------------- one job's files

BROKEN = {
    "record is a list": ("record", "[]"),
    "record is no JSON": ("record", "{"),
    "record is nested": ("record", DEEP),
    "record is of bytes": ("record", b"\xff\xfe\xff"),
    "pods is a list": ("record", {"pods": []}),
    "pods of others": ("record", {"pods": {"../../good/pods/good-launcher": {}}}),
    "a time is a text": ("record", {"finished": "x"}),
    "a time is out of range": ("record", {"finished": 1e300}),
    "a time is no number": ("record", {"finished": float("nan")}),
    "a pod's time is a list": ("record", {"pods": {"bad-launcher": {"started": []}}}),
    "forecast is a text": ("record", {"forecast": "x"}),
    "a GPU is a text": ("record", {"forecast": {"state": "placed", "workers": [[0, "n", ["a"]]]}}),
    "a GPU is huge": ("record", {"forecast": {"state": "placed", "workers": [[0, "n", [10**9]]]}}),
    "a GPU is negative": ("record", {"forecast": {"state": "placed", "workers": [[0, "n", [-1]]]}}),
    "a node is a list": ("record", {"forecast": {"state": "placed", "workers": [[0, [], [1]]]}}),
    "the exit code is a text": ("record", {"exit_code": "x"}),
    "the supervisor is a list": ("record", {"supervisor": []}),
    "the reason is a number": ("record", {"reason": 7}),
    "submission is a number": ("submission.json", "7"),
    "submission is nested": ("submission.json", DEEP),
    "created is a text": ("submission.json", {"created": "x"}),
    "created is out of range": ("submission.json", {"created": 1e18}),
    "workers without end": ("submission.json", {"workers": 10**9}),
    "negative workers": ("submission.json", {"workers": -1}),
    "GPUs without end": ("submission.json", {"gpus": 10**12}),
    "request is a list": ("submission.json", {"request": []}),
    "request without end": ("submission.json", {"request": {"workers": 10**9, "gpus": 1}}),
    "a request of negative workers": ("submission.json", {"request": {"workers": -1, "gpus": 1}}),
    "a request without GPUs": ("submission.json", {"request": {"workers": 1, "gpus": 0}}),
    "a request of an unknown level": (
        "submission.json",
        {"request": {"workers": 1, "gpus": 1, "required": "rack"}},
    ),
    "uid is a list": ("submission.json", {"uid": []}),
    "uid is empty": ("submission.json", {"uid": ""}),
    "the name of another": ("submission.json", {"name": "good"}),
    "a name that leads away": ("submission.json", {"name": "../good"}),
    "priority is a mapping": ("submission.json", {"priority": {}}),
    "environment is a list": ("submission.json", {"environment": []}),
}
"""Files of the job `bad` that make no sense: a whole text, or what an object says otherwise."""


def damage(folder: Path, file: str, content: str | bytes | dict) -> None:
    if isinstance(content, dict):
        change(folder, file, **content)
    elif isinstance(content, bytes):
        (folder / file).write_bytes(content)
    else:
        (folder / file).write_text(content)


@pytest.mark.parametrize("what", BROKEN)
def test_a_job_with_damaged_files_is_broken_and_stops_no_other(what, run, state):
    damage(state / "jobs/default/bad", *BROKEN[what])
    plan = ["plan", "mpi", "--name=new", "--gpus=1", "--image=local", "--gputopology", "true"]
    for line in (["why", "good"], ["top", "node"], plan):
        code, _, err = run(*line)
        assert code == 0, (line, err)
    code, out, _ = run("list", "-o", "json")
    assert code == 0
    assert {one["name"]: one["status"] for one in json.loads(out)} == {
        "good": "SUCCEEDED",
        "bad": "UNKNOWN",
    }
    code, out, err = run("get", "bad")
    assert "made a mistake" not in err
    assert "arena-topo delete bad" in out + err
    assert run("delete", "bad")[0] == 0
    assert [one.name for one in (state / "jobs/default").iterdir()] == ["good"]


LATER = {
    "a phase": {"phase": "RESTARTING"},
    "a state": {"forecast": {"state": "moving", "workers": [[0, "dgx-1-v100-0", [0, 3]]]}},
    "a format": {},
}


@pytest.mark.parametrize("what", LATER)
def test_a_record_of_a_later_version_is_shown_and_never_changed(what, run, state):
    workers = [[0, "dgx-1-v100-0", [0, 3]]]
    forecast = {"state": "placed", "workers": workers, "guarantee": "socket", "power": 7}
    folder = state / "jobs/default/bad"
    running(folder, forecast=forecast, mood="good")
    change(folder, "record", **LATER[what])
    record = folder / "record"
    if what == "a format":
        record.write_text(record.read_text().replace('"format": 1', '"format": 2'))
    before = record.read_bytes()
    [bad] = [one for one in json.loads(run("list", "-o", "json")[1]) if one["name"] == "bad"]
    assert bad["status"] == ("UNKNOWN" if what == "a phase" else "RUNNING")
    code, out, _ = run("get", "bad")
    assert code == 0
    assert "dgx-1-v100-0" in out
    cluster = open_local(Options(backend="local", emulate="dgx-1-v100:2")).cluster()
    assert [node.free for node in cluster.nodes] == [0b11110110, 0b11111111]
    for verb in ("suspend", "replan"):
        code, _, err = run(verb, "bad")
        assert (code, "a later version of arena-topo has recorded it" in err) == (1, True), err
    assert run("why", "bad")[0] == run("top", "node")[0] == run("prune", "--since=1s", "-y")[0] == 0
    assert submitted(run, "new", "true")[0] == 0
    assert run("wait", "new", "--timeout", "30s")[0] == 0
    assert record.read_bytes() == before
    assert run("delete", "bad")[0] == 0
    assert not folder.exists()


@pytest.mark.parametrize(
    "line", [["get", "good"], ["logs", "good"], ["top", "job"], ["delete", "good"]], ids=" ".join
)
def test_no_command_about_another_job_fails_for_a_damaged_one(line, run, state):
    damage(state / "jobs/default/bad", "record", {"pods": []})
    assert run(*line)[0] == 0


def test_a_suspended_job_with_recorded_gpus_stops_no_other(run, state):
    change(state / "jobs/default/bad", "record", phase="SUSPENDED", finished=None)
    for line in (["top", "node"], ["top", "node", "-o", "json"], ["list"], ["get", "bad"]):
        code, _, err = run(*line)
        assert code == 0, (line, err)


def test_what_is_wrong_with_a_job_is_said_with_its_place(run, state):
    change(state / "jobs/default/bad", "record", pods={"bad-launcher": {"started": "x"}})
    said = " ".join(run("why", "bad")[1].split())
    assert "record: Expected `float | null`, got `str` - at `$.pods[...].started`" in said


def test_a_job_is_submitted_beside_a_damaged_one(run, state):
    damage(state / "jobs/default/bad", "record", {"pods": []})
    damage(state / "jobs/default/good", "submission.json", {"created": "x"})
    assert submitted(run, "new", "true")[0] == 0
    assert run("wait", "new", "--timeout", "30s")[0] == 0


@pytest.mark.parametrize(("kind", "place"), [("MPIJob", "metadata"), ("ConfigMap", "data")])
def test_a_job_with_damaged_objects_is_not_taken_for_the_same_request(kind, place, run, state):
    file = state / "jobs/default/good/manifest.json"
    objects = json.loads(file.read_text())
    one = next(one for one in objects if one["kind"] == kind)
    one[place] = {**one[place], "annotations": 9} if place == "metadata" else 9
    file.write_text(json.dumps(objects))
    code, _, err = submitted(run, "good", "true", "--exists=ok")
    assert code == 1
    assert "manifest.json: it was changed after the job was submitted" in err


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("manifest.json", "7"),
        ("manifest.json", "[]"),
        ("manifest.json", "[7]"),
        ("manifest.json", DEEP),
        ("manifest.json", '[{"metadata": 7, "spec": 7}]'),
        ("manifest.json", '[{"kind": "MPIJob", "metadata": {"name": "bad", "labels": 7}}]'),
        ("manifest.json", '[{"kind": "MPIJob", "metadata": {"name": "bad"}, "spec": []}]'),
        (
            "manifest.json",
            '[{"kind": "MPIJob", "metadata": {"name": "bad"}, "spec": {"template": {"spec": 7}}}]',
        ),
        ("events", DEEP),
        ("events", b"\xff\xfe{}\n"),
        ("events", "7\n[]\n{}\n"),
        (
            "events",
            '{"source": "x", "kind": "x", "when": 1e300, "reason": "x", "message": "x"}\n',
        ),
        (
            "events",
            '{"source": 7, "kind": [], "when": 1, "reason": {}, "message": null}\n',
        ),
        ("pods/bad-launcher/0-0.log", b"\xff\0" * 1000),
        ("pods/bad-launcher/0-0.log", "9999-99-99T99:99:99.999999999Z one\n2026"),
        ("pods/bad-launcher/0-999999999999999999.log", "one\n"),
        ("pods/bad-launcher/999999999-0.log", ""),
    ],
)
def test_damage_that_leaves_a_job_readable_is_never_a_mistake(file, content, run, state):
    damage(state / "jobs/default/bad", file, content)
    for line in (
        ["list"],
        ["list", "-l", "app=mpijob"],
        ["get", "bad", "--events"],
        ["get", "bad", "-o", "json"],
        ["why", "bad"],
        ["logs", "bad"],
        ["logs", "bad", "--timestamps"],
        ["logs", "bad", "--previous"],
        ["logs", "bad", "--since=1h"],
        ["logs", "bad", "--tail=1"],
        ["logs", "bad", "--all-pods"],
        ["attach", "bad", "--", "true"],
        ["resume", "bad"],
        ["delete", "bad"],
    ):
        code, _, err = run(*line)
        assert "made a mistake" not in err, (line, err)
        assert "Traceback" not in err
        assert code in {0, 1, 2, 3}
    assert not (state / "jobs/default/bad").exists()


def endless(file: Path) -> None:
    file.symlink_to("/dev/zero")


def blocking(file: Path) -> None:
    os.mkfifo(file)


def enormous(file: Path) -> None:
    file.touch()
    os.truncate(file, 1 << 36)


@pytest.mark.parametrize("make", [endless, blocking, enormous, Path.mkdir])
@pytest.mark.parametrize(
    "name",
    [
        *("manifest.json", "record", "events", "pods.json", "supervisor.log", "alive", "over"),
        "pods/bad-launcher/0-0.log",
    ],
)
def test_an_odd_file_of_a_job_stops_no_command(name, make, run, state):
    file = state / "jobs/default/bad" / name
    if file.is_dir():
        shutil.rmtree(file)
    file.unlink(missing_ok=True)
    make(file)
    for line in (
        ["list"],
        ["top", "node"],
        ["get", "bad", "--events"],
        ["why", "bad"],
        ["logs", "bad", "--tail=1"],
        ["attach", "bad", "--", "true"],
        ["resume", "bad"],
        ["delete", "bad"],
    ):
        code, _, err = run(*line)
        assert "made a mistake" not in err, (line, err)
        assert code == 0 or line[-1] != "node", err
    assert submitted(run, "new", "true")[0] == 0
    assert not (state / "jobs/default/bad").exists()


@pytest.mark.parametrize(
    "line", [["top", "node"], ["submit", "mpi", "--name=new", "--gpus=1", "--image=local", "true"]]
)
def test_who_looks_for_gpus_does_not_read_jobs_that_have_ended(line, run, state, monkeypatch):
    assert submitted(run, "first", "true")[0] == 0
    assert run("wait", "first", "--timeout=30s")[0] == 0
    read: list[str] = []
    opened = os.open

    def noted(path, *words, **more):
        read.append(str(path))
        return opened(path, *words, **more)

    with monkeypatch.context() as world:
        world.setattr(os, "open", noted)
        assert run(*line)[0] == 0
    folders = {str(state / "jobs/default" / name) for name in ("good", "bad", "first")}
    assert read
    assert folders.isdisjoint(read)


def test_a_job_whose_record_was_edited_after_its_end_is_read_by_who_looks_for_gpus(run, state):
    assert submitted(run, "first", "true")[0] == 0
    running(state / "jobs/default/good")
    assert submitted(run, "second", "true")[0] == 0
    record = json.loads((state / "jobs/default/good/record").read_text())["record"]
    assert (record["phase"], record["reason"]) == (
        "FAILED",
        "the process that ran the job was killed",
    )


def test_a_list_of_very_many_jobs_that_have_ended_names_the_command_that_removes_them(
    run, state, monkeypatch
):
    assert state.exists()
    assert "prune" not in run("list")[2]
    monkeypatch.setattr(listing, "_MANY_ENDED", 1)
    hint = "Remove those that are a week old: arena-topo prune --since 7d -n default"
    assert f"2 of these jobs have ended. {hint}" in " ".join(run("list")[2].split())
    assert "prune" not in run("list", "-o", "json")[2]


def test_of_two_who_delete_a_damaged_job_the_later_finds_none(run, state, monkeypatch):
    (state / "jobs/default/bad/record").write_text("{")
    remove = store.JobStore.remove

    def removed(self, folder):
        remove(self, folder)
        remove(self, folder)

    with monkeypatch.context() as world:
        world.setattr(store.JobStore, "remove", removed)
        code, _, err = run("delete", "bad")
    assert code == 1
    assert "no job bad in namespace default" in err


def test_deleting_a_job_with_an_empty_uid_ends_no_other_job(run, state):
    assert submitted(run, "busy", "sleep 600")[0] == 0
    assert run("wait", "busy", "--for=running", "--timeout=30s")[0] == 0
    change(state / "jobs/default/bad", "submission.json", uid="")
    assert run("delete", "bad")[0] == 0
    (keeper,) = [json.loads((state / "jobs/default/busy/record").read_text())["record"]]
    # A supervisor that was told to end needs a moment for it.
    time.sleep(0.3)
    assert processes.alive(processes.Process(**keeper["supervisor"]))
    assert json.loads(run("get", "busy", "-o", "json")[1])["status"] == "RUNNING"


def copied(job: Path, target: Path) -> None:
    shutil.copytree(job, target)


def linked(job: Path, target: Path) -> None:
    target.symlink_to(job)


def edited(job: Path, target: Path) -> None:
    """A copy with a name and a uid of its own; its record names the supervisor of the other."""
    copied(job, target)
    change(target, "submission.json", name=target.name, uid="00000000-0000-4000-8000-000000000009")


def sharing(job: Path, target: Path) -> None:
    """Such a copy, with hard links: it seems to have a supervisor, that of the other."""
    edited(job, target)
    (target / "alive").unlink()
    (target / "alive").hardlink_to(job / "alive")


def renamed(job: Path, target: Path) -> None:
    """A copy with a name of its own, and the uid of the other."""
    copied(job, target)
    change(target, "submission.json", name=target.name)


def damaged(job: Path, target: Path) -> None:
    copied(job, target)
    (target / "record").write_text("{")


@pytest.mark.parametrize("make", [copied, linked, edited, sharing, renamed, damaged])
def test_deleting_a_copy_of_the_folder_of_a_job_leaves_the_job_running(
    make, run, state, monkeypatch
):
    # The supervisor of the other job does not end, however long that is waited for.
    monkeypatch.setattr("arena_topo.engines.local.engine._PATIENCE", 1.0)
    assert submitted(run, "busy", "sleep 600")[0] == 0
    assert run("wait", "busy", "--for=running", "--timeout=30s")[0] == 0
    space = state / "jobs/default"
    uid = json.loads((space / "busy/submission.json").read_text())["uid"]
    before = processes.processes_of_job(uid)
    scratch = json.loads((space / "busy/record").read_text())["record"]["scratch"]
    make(space / "busy", space / "odd")
    assert {one["name"] for one in json.loads(run("list", "-o", "json")[1])} > {"busy", "odd"}
    code, _, err = run("delete", "odd")
    assert code == 0, err
    # A supervisor that was told to end needs a moment for it.
    time.sleep(0.3)
    assert processes.processes_of_job(uid) == before
    assert Path(scratch).is_dir()
    assert json.loads(run("get", "busy", "-o", "json")[1])["status"] == "RUNNING"
    assert sorted(one.name for one in space.iterdir()) == ["bad", "busy", "good"]


def test_the_folder_of_a_running_job_that_cannot_be_read_is_deleted_with_its_processes(run, state):
    assert submitted(run, "busy", "sleep 600")[0] == 0
    assert run("wait", "busy", "--for=running", "--timeout=30s")[0] == 0
    space = state / "jobs/default"
    uid = json.loads((space / "busy/submission.json").read_text())["uid"]
    shutil.copytree(space / "busy", space / "copy")
    (space / "busy/record").write_text("{")
    assert run("delete", "busy")[0] == 0
    assert not processes.processes_of_job(uid)
    assert run("delete", "copy")[0] == 0


def test_a_copy_of_the_folder_of_a_job_does_not_end_the_job_when_it_runs_again(run, state):
    assert submitted(run, "busy", "sleep 600")[0] == 0
    assert run("wait", "busy", "--for=running", "--timeout=30s")[0] == 0
    copied(state / "jobs/default/busy", state / "jobs/default/odd")
    assert run("suspend", "busy")[0] == 0
    assert run("resume", "busy")[0] == 0
    assert run("wait", "busy", "--for=running", "--timeout=30s")[0] == 0
    change(state / "jobs/default/odd", "submission.json", name="odd")
    shown = {one["name"]: one["status"] for one in json.loads(run("list", "-o", "json")[1])}
    assert shown["odd"] == "FAILED"
    time.sleep(0.3)
    assert json.loads(run("get", "busy", "-o", "json")[1])["status"] == "RUNNING"


def test_bytes_of_the_environment_that_are_no_text_reach_the_job(run, state):
    os.environ["ODD"] = os.fsdecode(b"a\xffb")
    try:
        assert submitted(run, "odd", "printf %s $ODD | od -An -tx1")[0] == 0
    finally:
        del os.environ["ODD"]
    assert run("wait", "odd", "--timeout=30s")[0] == 0
    assert run("logs", "odd")[1].split() == ["61", "ff", "62"]
    assert state.exists()


def test_more_workers_than_can_be_read_back_are_refused(run, state):
    line = ["submit", "mpi", "--name=crowd", "--gpus=0", "--image=local", "true"]
    code, _, err = run(*line, "--workers=1000000")
    assert code == 2
    assert "1000000 workers" in err
    assert not (state / "jobs/default/crowd").exists()


# ---------------------------------------------------------------------------- whose folder it is


def foreign(monkeypatch) -> None:
    """Everything there is belongs to somebody else from now on."""
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)


COMMANDS = [
    ["list"],
    ["get", "good"],
    ["delete", "good"],
    ["top", "node"],
    ["submit", "mpi", "--name=new", "--gpus=1", "--image=local", "true"],
]


@pytest.mark.parametrize("line", COMMANDS, ids=lambda line: line[0])
def test_a_state_folder_of_another_user_is_refused(line, run, state, monkeypatch):
    before = sorted(state.rglob("*"))
    with monkeypatch.context() as world:
        foreign(world)
        code, out, err = run(*line)
    assert (code, out) == (1, "")
    assert f"error: the folder {state} is not used\n" in err
    assert "  why:  it belongs to" in err
    assert "XDG_STATE_HOME" in err.partition("  try:  ")[2]
    assert sorted(state.rglob("*")) == before


def test_a_link_to_a_folder_of_another_user_is_refused(run, state, monkeypatch, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    state.rename(elsewhere)
    state.symlink_to(elsewhere)
    assert run("get", "good")[0] == 0, "one's own link to one's own folder is fine"
    theirs, lstat = os.geteuid() + 1, os.lstat

    def linked_by_another(path, **options):
        found = lstat(path, **options)
        if Path(path) == state:
            values = list(found)
            values[4] = theirs
            return os.stat_result(values)
        return found

    with monkeypatch.context() as world:
        world.setattr(os, "lstat", linked_by_another)
        code, _, err = run("list")
    state.unlink()
    elsewhere.rename(state)
    assert code == 1
    assert f"the folder {state} is not used" in err


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o755])
@pytest.mark.parametrize("line", [["list"], COMMANDS[-1]], ids=["list", "submit"])
def test_an_own_state_folder_that_is_open_to_others_is_closed(mode, line, run, state):
    folders = (state, state / "jobs", state / "jobs/default")
    for folder in folders:
        folder.chmod(mode)
    code, _, err = run(*line)
    assert code == 0, err
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}


def test_a_state_folder_that_cannot_be_closed_is_refused(run, state, monkeypatch):
    state.chmod(0o777)
    with monkeypatch.context() as world:
        # As on file systems that have no modes.
        world.setattr(os, "chmod", lambda *_, **__: None)
        code, _, err = run("list")
    assert code == 1
    assert "  why:  other users can look into it or change it" in err


def test_a_jobs_folder_of_another_user_is_broken(run, state, monkeypatch):
    other, fstat = os.geteuid() + 1, os.fstat
    bad = (state / "jobs/default/bad").stat().st_ino

    def planted(descriptor):
        found = fstat(descriptor)
        if found.st_ino == bad:
            values = list(found)
            values[4] = other
            return os.stat_result(values)
        return found

    with monkeypatch.context() as world:
        world.setattr(os, "fstat", planted)
        code, out, _ = run("list", "-o", "json")
    assert code == 0
    assert {one["name"]: one["status"] for one in json.loads(out)}["bad"] == "UNKNOWN"


def test_nobody_waits_for_a_lock_that_another_user_has_put_there(run, state, monkeypatch):
    other, fstat = os.geteuid() + 1, os.fstat
    (state / "lock").touch()
    lock = (state / "lock").stat().st_ino

    def planted(descriptor):
        found = fstat(descriptor)
        if found.st_ino == lock:
            values = list(found)
            values[4] = other
            return os.stat_result(values)
        return found

    descriptor = os.open(state / "lock", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with monkeypatch.context() as world:
            world.setattr(os, "fstat", planted)
            code, _, err = submitted(run, "new", "true")
    finally:
        os.close(descriptor)
    assert code == 1
    assert "lock in it belongs to another user" in err


def test_only_a_jobs_own_scratch_folder_is_removed(run, state, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("data")
    running(state / "jobs/default/bad", scratch=str(precious))
    code, out, _ = run("list", "-o", "json")
    assert code == 0
    assert {one["name"]: one["status"] for one in json.loads(out)}["bad"] == "FAILED"
    assert (precious / "file").read_text() == "data"


def test_a_link_in_place_of_the_scratch_folder_is_left_alone(run, state, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("data")
    scratch = tmp_path / "arena-topo-00000000"
    scratch.symlink_to(precious)
    running(state / "jobs/default/bad", scratch=str(scratch))
    assert run("delete", "bad")[0] == 0
    assert (precious / "file").read_text() == "data"


def test_the_scratch_folder_of_a_killed_job_is_removed(run, state, tmp_path):
    scratch = tmp_path / "arena-topo-00000000"
    scratch.mkdir()
    (scratch / "file").write_text("data")
    running(state / "jobs/default/bad", scratch=str(scratch))
    assert run("list")[0] == 0
    assert not scratch.exists()


# ---------------------------------------------------------------------------- leftovers


@pytest.mark.parametrize("leftover", [".new-abc", ".gone-abc"])
def test_what_a_killed_submit_or_delete_left_is_removed_by_who_looks_next(leftover, run, state):
    for namespace in ("default", "team"):
        folder = state / "jobs" / namespace / leftover
        (folder / "pods").mkdir(parents=True)
        (folder / "submission.json").write_text('{"environment": {"TOKEN": "secret"}}')
    assert run("list")[0] == 0
    assert not (state / "jobs/default" / leftover).exists()
    assert run("list", "-A")[0] == 0
    assert not (state / "jobs/team").exists()
    assert sorted(one.name for one in (state / "jobs/default").iterdir()) == ["bad", "good"]


def test_what_a_living_submit_is_making_is_left_alone(run, state):
    folder = state / "jobs/default/.new-abc"
    folder.mkdir()
    descriptor = os.open(state / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert run("list")[0] == 0
        assert folder.exists()
    finally:
        os.close(descriptor)


# ---------------------------------------------------------------------------- long names


@pytest.mark.parametrize(
    "line",
    [
        ["get", "NAME"],
        ["why", "NAME"],
        ["logs", "NAME"],
        ["wait", "NAME", "--timeout=1s"],
        ["attach", "NAME", "--", "true"],
        ["resume", "NAME"],
        ["suspend", "NAME"],
        ["delete", "NAME"],
        ["top", "job", "NAME"],
        ["get", "good", "-n", "NAME"],
        ["list", "-n", "NAME"],
    ],
    ids=" ".join,
)
def test_a_name_that_no_folder_can_have_is_not_found_like_any_other(line, run, state):
    def said(name):
        return run(*[word.replace("NAME", name) for word in line])

    known, long = said("absent"), said("x" * 300)
    assert state.exists()
    assert long == tuple(
        one.replace("absent", "x" * 300) if isinstance(one, str) else one for one in known
    )


# ---------------------------------------------------------------------------- another host name


def test_a_machine_that_is_renamed_knows_its_running_jobs(run, state, monkeypatch):
    assert submitted(run, "busy", "sleep 600")[0] == 0
    assert run("wait", "busy", "--for=running", "--timeout=30s")[0] == 0
    backend = open_local(Options(backend="local", emulate="dgx-1-v100:2"))
    before = [node.free for node in backend.cluster().nodes]
    monkeypatch.setattr(socket, "gethostname", lambda: "renamed")
    assert backend.job("busy", "default").phase is Phase.RUNNING
    assert [node.free for node in backend.cluster().nodes] == before
    uid = backend.job("busy", "default").uid
    assert run("suspend", "busy")[0] == 0
    eventually(lambda: not processes.processes_of_job(uid))
    assert [node.free for node in backend.cluster().nodes] == [0xFF, 0xFF]
    assert backend.job("busy", "default").phase is Phase.SUSPENDED
    assert run("resume", "busy")[0] == 0
    assert run("wait", "busy", "--for=running", "--timeout=30s")[0] == 0
    assert [node.free for node in backend.cluster().nodes] == before
    assert state.exists()


def test_the_job_of_another_container_of_this_machine_runs_and_has_its_gpus(
    run, state, monkeypatch, tmp_path
):
    assert submitted(run, "busy", "sleep 600")[0] == 0
    assert run("wait", "busy", "--for=running", "--timeout=30s")[0] == 0
    backend = open_local(Options(backend="local", emulate="dgx-1-v100:2"))
    before = [node.free for node in backend.cluster().nodes]
    assert before != [0xFF, 0xFF]
    (tmp_path / "proc").mkdir()
    with monkeypatch.context() as container:
        # It has a name of its own, and sees no processes but its own.
        container.setattr(socket, "gethostname", lambda: "container")
        container.setattr(processes, "PROC", tmp_path / "proc")
        assert backend.job("busy", "default").phase is Phase.RUNNING
        assert [node.free for node in backend.cluster().nodes] == before
    assert state.exists()


def test_a_job_whose_supervisor_was_killed_ends_on_a_renamed_machine_too(run, state, monkeypatch):
    assert submitted(run, "busy", "sleep 600")[0] == 0
    assert run("wait", "busy", "--for=running", "--timeout=30s")[0] == 0
    found = json.loads((state / "jobs/default/busy/record").read_text())["record"]
    uid = json.loads((state / "jobs/default/busy/submission.json").read_text())["uid"]
    os.kill(found["supervisor"]["pid"], 9)
    eventually(lambda: processes.process(found["supervisor"]["pid"]) is None)
    monkeypatch.setattr(socket, "gethostname", lambda: "renamed")
    eventually(lambda: json.loads(run("get", "busy", "-o", "json")[1])["status"] == "FAILED")
    assert not processes.processes_of_job(uid)


SMI = """#!/bin/sh
if [ "$1" != topo ]; then
  echo "0, GPU-aa, Tesla V100-SXM2-16GB"
  echo "1, GPU-bb, Tesla V100-SXM2-16GB"
else
  printf '\\tGPU0\\tGPU1\\tCPU Affinity\\nGPU0\\t X \\tNV2\\t0-7\\nGPU1\\tNV2\\t X \\t0-7\\n'
fi
"""


def test_the_gpus_of_a_renamed_machine_are_given_out_once(run, state, monkeypatch, tmp_path):
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("ARENA_TOPO_EMULATE")
    scheduler.this_machine.cache_clear()
    try:
        assert submitted(run, "busy", "sleep 600")[0] == 0
        assert run("wait", "busy", "--for=running", "--timeout=30s")[0] == 0
        monkeypatch.setattr(socket, "gethostname", lambda: "renamed")
        scheduler.this_machine.cache_clear()
        (node,) = open_local(Options(backend="local")).cluster().nodes
        assert (node.name, node.free.bit_count()) == ("renamed", 1)
        assert json.loads(run("top", "node", "-o", "json")[1])
        assert run("delete", "busy")[0] == 0
    finally:
        scheduler.this_machine.cache_clear()
    assert state.exists()
