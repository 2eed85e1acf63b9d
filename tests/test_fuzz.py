"""Some hostile inputs of every kind, the same in each run; `python -m tests.fuzz` tries more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from fuzz import verdicts
from fuzz.campaign import Campaign, Chunk, Found, Tally
from fuzz.mutators import Sample, encoded, text, value
from fuzz.sandbox import Outcome, Place
from fuzz.targets import every
from fuzz.worker import source

SEED = 1
TARGETS = every()


@pytest.fixture(scope="module")
def tallies(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Tally]:
    """What the inputs of the chosen tests came to; all run in one process, which starts once."""
    chosen = {
        item.callspec.params["target"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.path == request.path
        and "target" in getattr(getattr(item, "callspec", None), "params", {})
    }
    work = [
        Chunk(target=name, first=0, count=TARGETS[name].few) for name in TARGETS if name in chosen
    ]
    campaign = Campaign(seed=SEED, keep=tmp_path_factory.mktemp("fuzz"))
    return campaign.run(work, workers=1, fresh=False)


@pytest.mark.parametrize("target", TARGETS)
def test_no_hostile_input_is_a_traceback_an_odd_exit_or_without_end(
    tallies: Mapping[str, Tally], target: str
):
    tally = tallies[target]
    if tally.found:
        pytest.fail("\n".join(map(told, tally.found.values())), pytrace=False)
    assert tally.ran == TARGETS[target].few


def told(one: Found) -> str:
    line = Path(one.kept, "line").read_text(encoding="utf-8")[:2000] if one.kept else ""
    return f"{one.times} x {one.what}, first input {one.number}: {line}{one.detail[-1500:]}"


def test_an_input_is_made_again_from_target_seed_and_number():
    sample = Sample.of({"a": [1, "x", {"b": None}], "json": '{"c": [1, 2]}'})
    first, again = (
        [
            (encoded(value(rng, sample), rng), text(rng, b"a line\nb 1.5\n"))
            for rng in (source("topo", 7, number) for number in range(200))
        ]
        for _ in range(2)
    )
    assert first == again
    assert len(set(first)) > 150
    assert sample.value == {"a": [1, "x", {"b": None}], "json": '{"c": [1, 2]}'}


def outcome(**more) -> Outcome:
    usual = {"code": 0, "out": b"", "err": b"", "computed": 0.1, "took": 0.1, "peak": 1, "grown": 1}
    return Outcome(**usual | more)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (outcome(crash=Place.of("Traceback\nValueError: x")), verdicts.TRACEBACK),
        (outcome(code=7), verdicts.EXIT),
        (outcome(code=1), verdicts.EXIT),
        (outcome(ended=Place.of("_NoEnd: computes")), verdicts.HANG),
        (outcome(grown=verdicts.MEMORY + 1), verdicts.OTHER),
        (outcome(out=b"\xff"), verdicts.OTHER),
        (outcome(err=b"\x1b[2J"), verdicts.OTHER),
        (outcome(out=b"over\rwritten"), verdicts.OTHER),
    ],
)
def test_what_is_wrong_with_a_run_is_found(given: Outcome, kind: str):
    assert [one.kind for one in verdicts.of(given)] == [kind]


def test_a_run_in_our_colours_with_an_error_is_as_it_should_be():
    assert not list(verdicts.of(outcome(code=2, out=b"\x1b[32mok\x1b[0m\n", err=b"error: x\n")))


WILD = """
import json, os, socket, subprocess, sys
from pathlib import Path
from fuzz import sandbox

sandbox.CPU_LIMIT = 0.2
says = os.fdopen(os.dup(1), "w")

def wild(line):
    match line:
        case ["remove", path]: os.remove(path)
        case ["write", path]: open(path, "w")
        case ["signal"]: os.kill(os.getppid(), 15)
        case ["start"]: subprocess.run(["true"])
        case ["connect"]: socket.socket().connect(("192.0.2.1", 80))
        case ["spin"]:
            while True: pass
        case _: print(*line)
    return 0

runs = sandbox.Sandbox(Path.cwd(), entry=wild)
for line in json.loads(sys.argv[1]):
    done = runs.run(sandbox.Input(line=line))
    crash = done.crash.kind if done.crash else done.ended and "no end"
    print(json.dumps([done.out.decode(), crash, done.refused]), file=says, flush=True)
"""


def test_a_run_reaches_nothing_outside_its_sandbox(tmp_path: Path):
    (tmp_path / "own").mkdir()
    (outside := tmp_path / "outside").write_text("precious")
    lines = [
        *(["remove", str(outside)], ["write", str(outside)], ["write", "inside"], ["signal"]),
        *(["start"], ["connect"], ["spin"], ["said", "é"]),
    ]
    done = subprocess.run(
        [sys.executable, "-c", WILD, json.dumps(lines)],
        cwd=tmp_path / "own",
        env={"PYTHONPATH": str(Path(__file__).parent), "TMPDIR": str(tmp_path / "own")},
        capture_output=True,
        text=True,
        check=True,
    )
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert said == [
        ["", "PermissionError", [f"a change to {outside}"]],
        ["", "PermissionError", [f"a change to {outside}"]],
        ["", None, []],
        ["", "PermissionError", [f"signal 15 to {os.getpid()}"]],
        ["", "FileNotFoundError", ["a program"]],
        ["", "ConnectionRefusedError", ["a connection to 192.0.2.1"]],
        ["", "no end", []],
        ["said é\n", None, []],
    ]
    assert outside.read_text() == "precious"
