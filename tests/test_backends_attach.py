"""What every engine does with a command in a pod."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import program
import pytest
from worlds import WORLDS, World

from arena_topo.engines import JobStatus, attachment, ignore_message
from arena_topo.engines.attach_request import AttachRequest
from arena_topo.errors import ArenaError, NotFound, NotPossible
from arena_topo.joblogs import follow
from arena_topo.joblogs.log_request import LogRequest


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with WORLDS[request.param](tmp_path) as opened:
        yield opened


def running(world: World, name: str = "demo") -> JobStatus:
    world.backend.apply(world.plan(world.job(name, workers=2, gpus=2)))
    world.start(name)
    return world.backend.job(name, "default")


def attach(world: World, job: JobStatus, *command: str, **more: Any) -> int:
    tell = more.pop("tell", ignore_message)
    request = AttachRequest(words=command, **more)
    return attachment.attach_to_job(world.backend, job, request, tell=tell)


def test_a_command_has_both_outputs_and_ends_with_its_own_code(world: World, capfd: Any):
    job = running(world)
    capfd.readouterr()
    assert attach(world, job, "sh", "-c", "echo out; echo err >&2; exit 7") == 7
    assert capfd.readouterr() == ("out\n", "err\n")
    assert attach(world, job, "true") == 0


def test_words_reach_the_command_as_they_are(world: World, capfd: Any):
    job = running(world)
    words = ("", "two  words", "a'b\"c", "$HOME", "*", "ünï", "-n", "--", "x\ny")
    capfd.readouterr()
    assert attach(world, job, "printf", "<%s>", *words) == 0
    assert capfd.readouterr().out == "".join(f"<{one}>" for one in words)


def test_a_signal_that_ends_the_command_is_its_code(world: World):
    assert attach(world, running(world), "sh", "-c", "kill -9 $$") == 137


def test_the_launcher_is_meant_unless_another_pod_is_named(world: World, capfd: Any):
    job = running(world)
    heard: list[str] = []
    attach(world, job, "sh", "-c", "echo $HOSTNAME", tell=heard.append)
    attach(
        world,
        job,
        "sh",
        "-c",
        "echo $HOSTNAME",
        instance="demo-worker-1",
        container="mpi",
        tell=heard.append,
    )
    assert job.chief is not None
    assert capfd.readouterr().out.split() == [job.chief.name, "demo-worker-1"]
    assert heard == [
        f"Attached to container mpi of {job.chief.name}",
        "Attached to container mpi of demo-worker-1",
    ]


def test_without_a_command_a_shell_reads_its_commands(world: World, capfd: Any):
    job = running(world)
    reading, writing = os.pipe()
    os.write(writing, b"echo in the shell\nexit 3\n")
    os.close(writing)
    before = os.dup(0)
    os.dup2(reading, 0)
    try:
        assert attach(world, job) == 3
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(reading)
    assert capfd.readouterr().out == "in the shell\n"


def test_pods_and_containers_that_are_not_there_are_named(world: World):
    job = running(world)
    with pytest.raises(NotFound, match="job demo has no pod demo-worker-7") as caught:
        attach(world, job, "true", instance="demo-worker-7")
    assert caught.value.hint in {"did you mean demo-worker-0?", "did you mean demo-worker-1?"}
    with pytest.raises(NotFound, match="container nope is not valid for instance demo-worker-0"):
        attach(world, job, "true", instance="demo-worker-0", container="nope")


def test_of_an_instance_that_is_named_without_its_job_the_whole_name_is_suggested(world: World):
    job, said = running(world), "job demo has no pod worker-1"
    with pytest.raises(NotFound, match=said) as attaching_to:
        attach(world, job, "true", instance="worker-1")
    log = follow.RequestedLines(world.backend, "demo", "default", LogRequest(instance="worker-1"))
    with pytest.raises(NotFound, match=said) as reading:
        next(iter(log))
    assert attaching_to.value.hint == reading.value.hint == "did you mean demo-worker-1?"


def test_a_pod_that_has_ended_is_not_gone_into(world: World):
    running(world)
    world.finish("demo", 3)
    job = world.backend.job("demo", "default")
    with pytest.raises(NotPossible) as caught:
        attach(world, job, "true")
    assert caught.value.message == f"cannot attach to {job.chief.name}: it has ended (Failed)"
    assert (caught.value.hint or "").startswith("arena-topo logs demo -i demo-launcher")


def test_a_program_that_is_not_there_is_an_error_with_its_name(world: World):
    with pytest.raises(ArenaError, match="`no-such-program` cannot be run in") as caught:
        attach(world, running(world), "no-such-program")
    assert caught.value.exit_code == 1


def test_a_job_that_has_to_wait_says_why(world: World):
    """On the local engine two such jobs do not fit; on clusters nothing makes their pods here."""
    plan = world.plan(world.job("long", workers=16, gpus=1))
    world.backend.apply(plan)
    if world.backend.name == "local":
        world.start("long")
        world.backend.apply(world.plan(world.job("demo", workers=16, gpus=1)))
    job = world.backend.job("demo" if world.backend.name == "local" else "long", "default")
    with pytest.raises(NotPossible) as caught:
        attach(world, job, "true")
    if world.backend.name == "local":
        assert caught.value.message == "container mpi of instance demo-launcher is not running"
        assert caught.value.why
    else:
        assert caught.value.message == "cannot attach to job long: it has no pods"


def test_the_gpus_of_a_local_worker_are_those_of_what_is_run_in_it(tmp_path: Path, capfd: Any):
    with WORLDS["local"](tmp_path) as world:
        job = running(world)
        attach(world, job, "sh", "-c", "echo $CUDA_VISIBLE_DEVICES", instance="demo-worker-1")
        given = next(gpus for index, _, gpus in job.forecast.workers if index == 1)
        assert capfd.readouterr().out == ",".join(map(str, given)) + "\n"


def test_what_runs_in_a_local_job_ends_with_it(tmp_path: Path):
    with WORLDS["local"](tmp_path) as world:
        job = running(world)
        line = ["--backend=local", "attach", "demo", "--"]
        with program.start([*line, "sh", "-c", "echo in; sleep 600"], stdout=-1) as inside:
            assert inside.stdout.readline() == b"in\n"
            world.backend.delete("demo", "default")
            assert inside.wait() == 143
        with pytest.raises(NotFound):
            attach(world, job, "true")


def test_who_is_told_to_end_does_not_leave_a_command_behind(tmp_path: Path):
    with WORLDS["local"](tmp_path) as world:
        running(world)
        line = ["--backend=local", "attach", "demo", "--"]
        with program.start([*line, "sh", "-c", "echo $$; exec sleep 600"], stdout=-1) as inside:
            pid = int(inside.stdout.readline())
            inside.terminate()
            assert inside.wait() == 143
        deadline = time.monotonic() + 20
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_command_that_starts_as_its_caller_is_told_to_end_does_not_stay(tmp_path: Path):
    with WORLDS["local"](tmp_path) as world:
        running(world)
        line = ["--backend=local", "attach", "demo", "--"]
        # Nobody can tell the caller any earlier than its own command.
        number = tmp_path / "number"
        early = f"echo $$ > {number}; kill -TERM $PPID; exec sleep 600"
        with program.start([*line, "sh", "-c", early]) as inside:
            assert inside.wait() == 143
        pid = int(number.read_text())
        deadline = time.monotonic() + 20
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
