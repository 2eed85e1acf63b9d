"""`replan`: what is shown and asked before a running job is stopped, and when it is not stopped."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pexpect
import program
import prompt
import pytest
from worlds import living_world, local_world

from arena_topo import Client, NoGain
from arena_topo.engines import Options, Phase


@dataclass
class Running:
    """Jobs that run on two DGX-1 V100 machines, and the command line beside them."""

    arena: prompt.Prompt
    nodes: tuple[str, str]
    options: Options

    def __call__(self, *line: str) -> tuple[int, str, str]:
        return self.arena(*line)

    def gang(self, name: str, workers: int, gpus: int) -> None:
        """A gang that runs until the end of the test."""
        line = ["submit", "mpi", f"--name={name}", "--image=local", f"--workers={workers}"]
        line += [f"--gpus={gpus}", "--gputopology", "sleep 600"]
        code, _out, err = self(*line)
        assert code == 0, err
        self.until(name, lambda: self.job(name).phase is Phase.RUNNING)

    def job(self, name: str) -> Any:
        return self.arena.world.backend.job(name, "default")

    def places(self, name: str) -> list[tuple[str, tuple[int, ...]]]:
        return [(node, tuple(sorted(gpus))) for _, node, gpus in self.job(name).forecast.workers]

    def started(self, name: str) -> set[tuple[str, float | None]]:
        return {(one.uid, one.started) for one in self.job(name).instances}

    def until(self, name: str, reached: Callable[[], object]) -> None:
        deadline = time.monotonic() + 30
        while not reached():
            assert time.monotonic() < deadline, self.job(name)
            time.sleep(0.02)


@contextmanager
def opened(engine: str, folder: Path, capfd: Any) -> Iterator[Running]:
    make = local_world if engine == "local" else living_world
    with make(folder) as world:
        if engine == "local":
            flags: tuple[str, ...] = ("--backend=local", "--emulate=dgx-1-v100:2")
            options = Options(backend="local", emulate="dgx-1-v100:2")
            nodes = ("dgx-1-v100-0", "dgx-1-v100-1")
        else:
            flags, nodes = (f"--kubeconfig={folder / 'config'}",), ("node-0", "node-1")
            options = Options(kubeconfig=str(folder / "config"))
        yield Running(prompt.Prompt(world, flags, capfd), nodes, options)


@pytest.fixture(params=["kubernetes", "local"])
def running(request: pytest.FixtureRequest, tmp_path: Path, capfd: Any) -> Iterator[Running]:
    with opened(request.param, tmp_path, capfd) as one:
        yield one


@pytest.fixture
def local(tmp_path: Path, capfd: Any) -> Iterator[Running]:
    with opened("local", tmp_path, capfd) as one:
        yield one


def test_a_job_that_would_gain_no_bandwidth_goes_on_and_both_are_named(running: Running):
    running.gang("work", 2, 2)
    before = running.started("work")
    stays = "work would start again from its beginning without more bandwidth, so it goes on\n"
    code, out, err = running("replan", "work", "--dry-run")
    assert (code, f"\n{stays}" in out, err) == (0, True, "Nothing was changed.\n")
    code, out, err = running("replan", "work", "--yes")
    gbps = f"{running.job('work').forecast.usable:.3g} GB/s"
    assert (code, out) == (0, "")
    assert err.startswith(stays)
    assert err.count(gbps) == 2
    assert "--force" in err
    assert running.started("work") == before


def test_force_restarts_it_all_the_same(running: Running):
    running.gang("work", 2, 2)
    before = running.started("work")
    code, out, err = running("replan", "work", "--yes", "--force")
    assert (code, out) == (0, "mpijob.kubeflow.org/work replanned\n"), err
    running.until("work", lambda: running.job("work").phase is Phase.RUNNING)
    assert not running.started("work") & before


def test_a_job_that_gains_bandwidth_moves_and_its_dry_run_says_where(running: Running):
    """Its two workers are on two machines, as others had the rest of each."""
    for name in ("first", "second"):
        running.gang(name, 1, 6)
    running.gang("work", 2, 2)
    assert {node for node, _ in running.places("work")} == set(running.nodes)
    running("delete", "first")
    before = running.started("work")
    code, out, err = running("replan", "work", "--dry-run")
    assert (code, err) == (0, "Nothing was changed.\n")
    now, anew = (line for line in out.splitlines() if "GB/s" in line)
    assert now.startswith("  now ")
    assert all(node in now for node in running.nodes)
    assert anew.startswith("  replanned ")
    assert running.nodes[1] not in anew
    assert running.started("work") == before
    assert running("replan", "work", "-y")[0] == 0
    assert {node for node, _ in running.places("work")} == {running.nodes[0]}


def waiting(running: Running) -> None:
    """A gang, and another that waits for its GPUs."""
    running.gang("work", 2, 1)
    line = ["submit", "mpi", "--name=big", "--image=local", "--workers=8", "--gpus=2"]
    code, _out, err = running(*line, "--gputopology", "sleep 600")
    assert (code, "PENDING" in err) == (0, True), err


@pytest.mark.parametrize(
    "line",
    [
        ("resume", "big"),
        ("replan", "big", "--dry-run"),
        ("replan", "big", "--yes"),
        ("replan", "work", "--dry-run"),
        ("wait", "big", "--timeout=1s"),
    ],
    ids=" ".join,
)
def test_what_is_advised_is_a_line_that_the_program_reads(running: Running, line: tuple[str, ...]):
    """Each command, and each flag for the verb that was typed or for another submission."""
    waiting(running)
    _code, out, err = running(*line)
    said = re.sub(r"\n {8}", " ", out + err)
    [advice] = re.findall("^  try:  (.*)$", said, re.MULTILINE)
    command = r"arena-topo ((?:\S+ )+?-n \S+)"
    for words in re.findall(command, advice):
        code, _out, err = running(*words.split(), "--help")
        assert code == 0, err
    flags = re.findall("--[a-z-]+", re.sub(command, "", advice))
    verb = ("submit", "mpi") if "new submission" in advice else line[:1]
    for flag in flags:
        code, _out, err = running(*verb, f"{flag}=1", "--help")
        assert code == 0, err


def test_a_local_job_that_waits_is_not_called_resumed(local: Running):
    waiting(local)
    code, out, err = local("resume", "big")
    assert (code, out) == (3, "")
    assert "error: big waits already, and starts by itself once it can\n" in err


def test_a_dry_run_answers_plainly_where_a_job_cannot_move(local: Running):
    waiting(local)
    code, out, err = local("replan", "work", "--dry-run")
    assert (code, err) == (3, "Nothing was changed.\n")
    assert out.startswith(
        "work cannot be replanned, and goes on running\n"
        "  why:  big waits and would start on its GPUs\n"
    )


def test_a_node_to_avoid_is_left_though_that_gains_nothing(running: Running):
    running.gang("work", 2, 2)
    [before] = {node for node, _ in running.places("work")}
    code, _out, err = running("replan", "work", "--yes", "--avoid", before)
    assert code == 0, err
    running.until("work", lambda: running.job("work").phase is Phase.RUNNING)
    assert {node for node, _ in running.places("work")} == {*running.nodes} - {before}


def test_a_placement_of_ones_choice_is_what_the_job_gets(running: Running):
    running.gang("work", 2, 2)
    first = running.nodes[1]
    code, _out, err = running("replan", "work", "-y", "--on", f"{first}/4,7;{first}/5,6")
    assert code == 0, err
    assert running.places("work") == [(first, (4, 7)), (first, (5, 6))]


def test_a_job_whose_placement_of_choice_is_not_free_goes_on(running: Running):
    """In the cluster the kubelet has picked the GPUs of the other job, so none can be chosen."""
    running.gang("other", 1, 2)
    [(node, taken)] = running.places("other")
    running.gang("work", 2, 2)
    before = running.started("work")
    wanted = f"{node}/{taken[0]},7;{running.nodes[1]}/0,1"
    code, _out, err = running("replan", "work", "-y", "--on", wanted)
    assert (code, "work cannot be replanned, and goes on running" in err) == (3, True), err
    assert (
        f"GPU {taken[0]} of {node} is in use" in err
        or f"the node alone can be named: {node}/" in err
    )
    assert running.started("work") == before


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--avoid=nowhere", "--avoid: this cluster has no node nowhere"),
        ("--on=nowhere/0,1;nowhere/2,3", "--on: this cluster has no node nowhere"),
        ("--on=dgx-1-v100-0/0,1", "it names 1 worker, and 2 are asked for"),
    ],
)
def test_a_place_that_makes_no_sense_is_a_mistake_of_the_line(
    local: Running, flag: str, words: str
):
    local.gang("work", 2, 2)
    before = local.started("work")
    code, out, err = local("replan", "work", "--yes", flag)
    assert (code, out, words in err) == (2, "", True), err
    assert local.started("work") == before


def test_a_job_with_nowhere_else_to_go_goes_on(running: Running):
    running.gang("work", 2, 8)
    code, _out, err = running("replan", "work", "-y", "--avoid", running.nodes[0])
    assert (code, "work cannot be replanned, and goes on running" in err) == (5, True), err


def test_without_a_terminal_it_needs_yes(local: Running):
    local.gang("work", 2, 2)
    assert local("replan", "work") == (
        2,
        "",
        (
            "error: replan needs --yes where it cannot ask for confirmation\n"
            "  why:  standard input or standard error is not a terminal\n"
            "  try:  look first, with --dry-run; then add --yes, or set ARENA_TOPO_YES=true\n"
        ),
    )


@pytest.mark.parametrize("answer", ["n", "y"])
def test_on_a_terminal_it_shows_both_placements_and_asks(local: Running, answer: str):
    local.gang("work", 2, 2)
    before = local.started("work")
    [node] = {node for node, _ in local.places("work")}
    [other] = {*local.nodes} - {node}
    line = [*local.arena.flags, "replan", "work", "--avoid", node]
    with program.at_terminal(line, encoding="utf-8", timeout=30, dimensions=(24, 120)) as asked:
        asked.expect("now .*replanned .*\r\n")
        assert (node in asked.after, other in asked.after) == (True, True)
        asked.expect_exact("Stop work, and start it again from its beginning? [y/N] ")
        asked.sendline(answer)
        asked.expect(pexpect.EOF)
    assert asked.exitstatus == (0 if answer == "y" else 1)
    moved = {one for one, _ in local.places("work")} == {other}
    assert moved is (answer == "y")
    assert (local.started("work") == before) is (answer == "n")


def test_a_program_looks_first_and_moves_by_the_same_rules(running: Running):
    running.gang("work", 2, 2)
    client, [node] = Client(running.options), {node for node, _ in running.places("work")}
    seen = client.foresee("work")
    assert (seen.pays, seen.before.usable) == (False, seen.after.usable)
    with pytest.raises(NoGain, match="without more bandwidth"):
        client.replan("work")
    assert {one for _, one, _ in client.foresee("work", avoid=[node]).after.workers} != {node}
    assert node not in {one for _, one, _ in client.replan("work", avoid=node).forecast.workers}
    assert client.replan("work", force=True).forecast.state == "placed"


def test_a_suspended_job_is_listed_with_its_workers_and_not_called_waiting_by_a_dry_run(
    running: Running,
):
    running.gang("work", 2, 2)
    assert running("suspend", "work")[0] == 0
    header, row = running("list", "-o", "wide")[1].splitlines()[:2]
    assert row[header.index("WORKERS") :].startswith("2x2 ")
    code, out, err = running("replan", "work", "--dry-run")
    assert (code, err) == (0, "Nothing was changed.\n")
    assert out.splitlines()[1].split() == ["now", "N/A", "nowhere"]
